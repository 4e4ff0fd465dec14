"""Chains of copies of a step, chains behind idle intervals, and what recording costs: every edge
and every row, on traces of a few events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import told_point
from rank_samples import Job
from test_simulation_run import Event, host, launch, run_of, step

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.table import ColumnTable
from torchtraceap.simulation.profiler_overhead import (
    MEASURED_OVERHEAD,
    PUBLISHED_OVERHEAD,
    ProfilerOverhead,
    estimate_unprofiled,
    overhead_delta,
)
from torchtraceap.simulation.run import SimulatedRun, carried_edges
from torchtraceap.tables.matching import join_ranks

WriteTrace = Callable[..., Path]


# ------------------------------------------------------------------------- copies of a step


def carried(run: SimulatedRun) -> list[tuple[str, str, int]]:
    inside = [np.flatnonzero(run.step_of_point == place) for place in range(len(run.steps))]
    edges = carried_edges(run.graph, [(s.begin, s.end) for s in run.steps], inside).tolist()
    assert edges == run._carried.tolist()
    return [(told_point(run, a), told_point(run, b), lag) for a, b, lag in edges]


def three_kernels() -> list[Event]:
    """On a stream, 4 us apart at the usual."""
    return [
        step(1, 0, 1000),
        *launch("a", 10, 20, 100, 1),
        *launch("b", 30, 126, 50, 2),
        *launch("c", 40, 180, 50, 3),
    ]


def test_a_stream_goes_on_a_gap_later_and_the_host_at_once(write_trace: WriteTrace) -> None:
    run = run_of(write_trace(three_kernels()))
    assert carried(run) == [("ProfilerStep#1]", "ProfilerStep#1[", 0), ("c]", "a[", 4000)]


def test_without_two_kernels_on_a_stream_there_is_no_gap(write_trace: WriteTrace) -> None:
    run = run_of(write_trace([step(1, 0, 1000), *launch("a", 10, 20, 100, 1)]))
    assert carried(run) == [("ProfilerStep#1]", "ProfilerStep#1[", 0), ("a]", "a[", 0)]


def test_every_stream_and_thread_that_the_step_starts_goes_on(write_trace: WriteTrace) -> None:
    backward = [host("first", 300, 100, tid=2), host("last", 500, 100, tid=2)]
    other = launch("d", 410, 430, 20, 4, stream=8)
    run = run_of(write_trace([*three_kernels(), *backward, *other]))
    assert carried(run) == [
        ("ProfilerStep#1]", "ProfilerStep#1[", 0),
        ("last]", "first[", 0),
        ("c]", "a[", 4000),
        ("d]", "d[", 4000),
    ]


def test_a_thread_that_nothing_starts_keeps_its_rhythm(write_trace: WriteTrace) -> None:
    """Its last point lies 650 us before the end of the step, its first at the begin."""
    own = [host("first", 0, 100, tid=2), host("last", 300, 50, tid=2)]
    run = run_of(write_trace([*three_kernels(), *own]))
    assert carried(run)[1:] == [("last]", "first[", 650_000), ("c]", "a[", 4000)]


@pytest.mark.parametrize("since_us", [0, 7_000])
def test_a_rhythm_counts_what_is_before_and_what_is_behind(
    write_trace: WriteTrace, since_us: float
) -> None:
    """The first point inside the step comes 95 us behind its begin, the last 10 before its end."""
    own = [host("first", -5, 100, tid=2), host("last", 990, 50, tid=2)]
    events = [host("before", -50, 20), *three_kernels(), *own]
    run = run_of(write_trace([event | {"ts": event["ts"] + since_us} for event in events]))
    assert carried(run)[1:] == [("last[", "first]", 105_000), ("c]", "a[", 4000)]


def test_ranks_carry_their_own_edges(tmp_path: Path) -> None:
    job = Job(2).step(1, 0, 1000)
    job.kernel(0, 100, 50).kernel(1, 150, 50)
    job.all_reduce([300, 250], 400)
    run = SimulatedRun(job.load(tmp_path / "job"))
    found = carried(run)
    assert found[0] == ("0:ProfilerStep#1]", "0:ProfilerStep#1[", 0)
    assert [edge[:2] for edge in found if edge[0][0] != edge[1][0]] == []
    assert {edge[0][0] for edge in found} == {"0", "1"}
    assert len(found) == 6  # a thread and two streams of each


# ------------------------------------------------------------------------- idle intervals


def rows_of(table: ColumnTable) -> list[tuple[Any, ...]]:
    columns = ("lane", "kind", "name", "inside", "start_ns", "end_ns", "idle_ns", "hops")
    return [tuple(row[column] for column in columns) for row in table.records()]


@pytest.fixture
def outer(write_trace: WriteTrace) -> ttap.Trace:
    """The GPU idles from 120 to 810 us, from 860 to 1110, and from 1160 to 1500."""
    return ttap.load(
        write_trace(
            [
                step(1, 0, 2000),
                host("train", 1, 1990, "python_function"),
                *launch("gemm", 10, 20, 100, 1),
                host("outer", 30, 700),
                host("inner_a", 40, 300),
                host("inner_b", 350, 300),
                *launch("relu", 800, 810, 50, 2),
                host("cudaDeviceSynchronize", 820, 45, "cuda_runtime"),
                host("again", 900, 100),
                *launch("tail", 1100, 1110, 50, 3),
                *launch("late", 1200, 1500, 50, 4, stream=8),
            ]
        )
    )


OUTER = [
    ("thread 1", "program_order", "outer", "train", 40_000, 805_000, 685_000, 6),
    ("stream 7", "launch", "relu", None, 805_000, 810_000, 5_000, 1),
]
TAIL = [
    ("thread 1", "host_wait", "cudaDeviceSynchronize", "train", 860_000, 865_000, 5_000, 1),
    ("thread 1", "program_order", "train", None, 865_000, 1_105_000, 240_000, 4),
    ("stream 7", "launch", "tail", None, 1_105_000, 1_110_000, 5_000, 1),
]
LATE = [
    ("thread 1", "program_order", "train", None, 1_105_000, 1_205_000, 45_000, 2),
    ("stream 8", "launch", "late", None, 1_205_000, 1_500_000, 295_000, 1),
]


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "rows"),
    [
        (400_000, None, OUTER),
        (120_000, None, OUTER),  # an instant at either end touches the interval
        (810_000, None, OUTER),
        (119_000, 121_000, OUTER),
        (0, 2_000_000, OUTER),  # the longest
        (600_000, 1_411_000, LATE),  # 210 us of the first, 250 of the second, 251 of this
        (600_000, 1_409_000, TAIL),
        (100_000, 120_000, []),  # a range that only touches covers nothing
        (810_000, 860_000, []),
        (1_550_000, 1_600_000, []),
    ],
)
def test_the_interval_that_covers_most_of_a_range(
    outer: ttap.Trace, start_ns: int, end_ns: int | None, rows: list[tuple[Any, ...]]
) -> None:
    table = outer.explain_idle(start_ns, end_ns)
    assert rows_of(table) == rows
    if not rows:
        assert table.notes == ("The GPU does not idle in this range.",)
        assert table.facts == {}


def test_what_a_chain_says_of_its_interval(outer: ttap.Trace) -> None:
    table = outer.explain_idle(400_000)
    assert table.facts == {
        "idle_start_ns": 120_000,
        "idle_end_ns": 810_000,
        "duration_ns": 690_000,
        "cause": "host_wait",
        "waits_for": "outer",
    }
    assert table.notes == ("The GPU idles for 690 µs (host wait), most of it for outer.",)
    assert table.to_list("duration_ns") == [765_000, 5_000]
    assert table.to_list("idle_share") == pytest.approx([685 / 690, 5 / 690])
    assert table.to_list("evidence") == ["explicit", "explicit"]
    assert table.to_list("rank") == [None, None]
    names = [outer.ranks[0].table.name_of(row) for row in table.to_list("row")]
    assert names == ["outer", "relu"]
    assert table.shown[0] == "lane"


def test_a_chain_through_another_thread_is_assumed(write_trace: WriteTrace) -> None:
    events = [
        *launch("gemm", 10, 20, 100, 1),
        host("loss", 30, 50),
        host("backward", 200, 300, tid=2),
        *launch("mm", 450, 470, 50, 2),
    ]
    events[-2]["tid"] = 2
    table = ttap.load(write_trace(events)).explain_idle(300_000)
    assert rows_of(table) == [
        ("thread 2", "thread_start", "backward", None, 80_000, 200_000, 80_000, 1),
        ("thread 2", "program_order", "backward", None, 200_000, 455_000, 255_000, 2),
        ("stream 7", "launch", "mm", None, 455_000, 470_000, 15_000, 1),
    ]
    assert table.to_list("evidence") == ["assumed", "explicit", "explicit"]
    assert any("steps of the chain are assumed" in note for note in table.notes)
    assert "no steps are marked: times are those of the whole trace." in table.notes


@pytest.mark.parametrize(("first_us", "name"), [(399, "short"), (398.9, "whole")])
def test_an_event_stands_for_a_part_from_half_of_its_time_on(
    write_trace: WriteTrace, first_us: float, name: str
) -> None:
    """Of 798 us from the end of `gemm` to that of the call so many pass in `short`."""
    events = [
        step(1, 0, 2000),
        host("whole", 1, 1900),
        *launch("gemm", 10, 15, 2, 1),
        host("short", 20, first_us),
        *launch("relu", 810, 820, 50, 2),
    ]
    table = ttap.load(write_trace(events)).explain_idle(500_000)
    assert table.facts["waits_for"] == name


def test_a_collective_waits_for_the_rank_that_comes_last(tmp_path: Path) -> None:
    """Rank 0's stream of computation waits for the transfer, and that for rank 1's host."""
    job = Job(2).step(1, 0, 10_000)
    for rank, late in ((0, 0.0), (1, 3_000.0)):
        job.kernel(rank, 60, 50)
        job.host(rank, "think", 120 + rank, 10 + late)
        job.ranks[rank].host("cuda_runtime", "cudaDeviceSynchronize", 3_400, 700)
    job.all_reduce([200, 3_200], 4_000)
    for rank in range(2):
        job.kernel(rank, 4_200, 50)
    trace = job.load(tmp_path / "job")
    table = trace.explain_idle(4_100_000, rank=0)
    assert table.shown[0] == "rank"
    assert table.facts["waits_for"] == table.to_list("name")[int(np.argmax(table["idle_ns"]))]
    assert table["idle_ns"].sum() == table.facts["duration_ns"]
    assert (table["start_ns"][1:] == table["end_ns"][:-1]).all()


def test_a_clock_that_is_ahead_changes_no_chain(tmp_path: Path) -> None:
    """Times are those of the rank's own clock, whatever the graph's is."""

    def chain(offsets: tuple[float, float], name: str) -> ColumnTable:
        job = Job(2)
        for number in range(4):
            at = 1_000.0 * number + 100
            job.step(number, at, 990)
            for rank in range(2):
                job.kernel(rank, at + 50, 100)
                job.host(rank, "think", at + 160, 300)
            job.all_reduce([at + 600, at + 600], at + 700)
        trace = job.load(tmp_path / name, offsets=offsets)
        # The second idles from the end of its kernel to its all-reduce.
        return trace.explain_idle(round((1_400 + offsets[1]) * 1e3), rank=1)

    plain, moved = chain((0, 0), "plain"), chain((0, 5_000), "moved")
    assert plain.to_list("name") == moved.to_list("name")
    assert plain.to_list("rank") == [1, 1]
    assert (moved["start_ns"] - plain["start_ns"]).tolist() == [5_000_000] * 2
    assert (moved["end_ns"] - plain["end_ns"]).tolist() == [5_000_000] * 2
    assert moved.facts["idle_start_ns"] == plain.facts["idle_start_ns"] + 5_000_000
    assert plain["idle_ns"].tolist() == moved["idle_ns"].tolist()


# ------------------------------------------------------------------------- recording


def recorded() -> list[Event]:
    return [
        step(1, 0, 100),
        host("train", 1, 98, "python_function"),
        host("aten::add", 10, 30),
        host("cudaMalloc", 15, 5, "cuda_runtime"),
        host("cudaFree", 30, 5, "cuda_driver"),
    ]


@pytest.mark.parametrize(
    ("overhead", "events", "saved_ns"),
    [
        (ProfilerOverhead(1_000, 0, 0, ""), 2, 3 * 500),  # the first point has nothing before it
        (ProfilerOverhead(0, 600, 0, ""), 1, 600),
        (ProfilerOverhead(0, 0, 2_000, ""), 2, 4 * 1_000),
        (ProfilerOverhead(1_000, 600, 2_000, ""), 5, 1_500 + 600 + 4_000),
        (ProfilerOverhead(0, 0, 0, ""), 0, 0),
        # No stretch takes less than nothing: 5 us of each call, 10 of the way from it to the next.
        (ProfilerOverhead(0, 0, 1_000_000, ""), 2, 5_000 + 5_000 + 10_000 + 5_000),
    ],
)
def test_recording_costs_by_kind_half_at_each_end(
    write_trace: WriteTrace, overhead: ProfilerOverhead, events: int, saved_ns: int
) -> None:
    run = run_of(write_trace(recorded()))
    estimate = estimate_unprofiled(run, overhead)
    assert estimate.profiled_ns == 100_000
    assert (estimate.events, estimate.unprofiled_ns) == (events, 100_000 - saved_ns)
    assert overhead_delta(run, overhead)[1] == events


def test_recording_costs_each_rank(tmp_path: Path) -> None:
    job = Job(2).step(1, 0, 1000)
    job.kernel(0, 100, 50).kernel(1, 100, 50)
    job.all_reduce([300, 300], 400)
    delta, events = overhead_delta(
        SimulatedRun(job.load(tmp_path / "job")), ProfilerOverhead(0, 0, 100, "")
    )
    assert events == 4  # two launches of each
    assert len(delta) == 8


def test_known_costs_of_recording(write_trace: WriteTrace) -> None:
    costs = [
        (o.operator_ns, o.frame_ns, o.call_ns) for o in (MEASURED_OVERHEAD, PUBLISHED_OVERHEAD)
    ]
    assert costs == [(230, 190, 0), (2_000, 0, 4_000)]
    run = run_of(write_trace(recorded()))
    estimate = estimate_unprofiled(run)
    assert estimate.source == MEASURED_OVERHEAD.source
    assert estimate.unprofiled_ns == 100_000 - 3 * 115 - 190


# ------------------------------------------------------------------------- doubts, joined ranks


def test_one_rank_needs_no_clock(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(three_kernels()))
    joined = join_ranks(trace)
    assert (joined.parts, joined.places) == ([trace.ranks[0]], [0])
    assert (joined.offsets_ns, joined.meetings, joined.notes) == ([0], None, [])
    assert [offset for _, _, offset in joined.as_arguments] == [0]


def test_ranks_that_meet_are_joined_on_one_clock(tmp_path: Path) -> None:
    job = Job(3)
    for number in range(4):
        at = 1_000.0 * number + 100
        job.all_reduce([at + 200, at + 250, at + 220], at + 600)
    joined = join_ranks(job.load(tmp_path / "job", offsets=(0, 7_000, -3_000)))
    assert joined.places == [0, 1, 2]
    offsets = np.array(joined.offsets_ns)
    assert (offsets - offsets[0]).tolist() == [0, -7_000_000, 3_000_000]
    assert joined.meetings is not None and len(joined.meetings) == 4
    assert len(joined.notes) == 1
    assert joined.notes[0].startswith("A collective moves data once its last rank has begun")
    assert joined.notes[0].endswith("Clocks agree to 0 ns.")


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_share_nothing_are_taken_alone(tmp_path: Path, ranks: int) -> None:
    """The first of those that are as many as any others."""
    job = Job(ranks)
    for rank in range(ranks):
        job.kernel(rank, 100, 50)
    joined = join_ranks(job.load(tmp_path / "job"))
    assert joined.places == [0]
    words = ["1 of 2 ranks are taken together"] * (ranks - 1)
    assert [note[: len(words[0])] for note in joined.notes] == words


def test_orphans_and_missing_steps_are_counted(tmp_path: Path, write_trace: WriteTrace) -> None:
    orphan = launch("orphan", 0, 200, 50, 9)[1]
    run = run_of(write_trace([*three_kernels(), orphan]))
    assert run.notes == [
        "1 of 4 GPU events have no launch in the trace: they keep their place behind the work "
        "before them, and no edit of the host moves them."
    ]
    job = Job(2)
    job.host(0, "ProfilerStep#1", 0, 1_000)
    job.all_reduce([300, 300], 400)
    notes = SimulatedRun(job.load(tmp_path / "job")).notes
    assert notes[1:] == ["Rank 1: no steps are marked: times are those of the whole trace."]


def test_gpu_clocks_that_are_behind_are_moved_and_said(write_trace: WriteTrace) -> None:
    """Kernels that begin before their launches do."""
    events = [step(1, 0, 1000)]
    for number in range(40):
        at = 20.0 * number + 50
        events += launch("gemm", at, at - 20, 10, number + 1)
    (note,) = run_of(write_trace(events)).notes
    assert note.startswith("the clocks of host and GPU disagree; GPU times are moved by 2")


def test_kinds_of_dependencies_have_their_names() -> None:
    assert _core.dependency_kind_names()[_core.DependencyKind.STREAM_ORDER] == "stream_order"
