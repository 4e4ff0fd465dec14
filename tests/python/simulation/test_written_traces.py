"""Traces written of edits, as a reader finds them: their step is the predicted one, and the file is
sound."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fix_programs import FlawedProgram
from gpu_traces import GpuTrace
from test_edit_changes import CASES, steps_of
from trace_format import breaches, events_of, kernels_in_annotations

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.simulation.edited_trace import EditedTrace
from torchtraceap.simulation.edits import fusion, graphs
from torchtraceap.simulation.edits.base import Change, EditedGraph, default_edits
from torchtraceap.simulation.edits.copies import PinMemory
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.schedules import Schedules
from torchtraceap.simulation.simulate import Simulation, simulate
from torchtraceap.tables.steps.iterations import held_up_row, iterations_of, step_of_work
from torchtraceap.trace.ranks import Ranks

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NAMED = ("loader_workers=4", "mixed_precision=bf16", "bucket_size_mb=1", "device=H200")


def check_step(simulation: Simulation, names: list[str]) -> EditedTrace:
    """The summary of the written trace says what is predicted."""
    written = simulation.edited_trace(names)
    step = ttap.Trace(written.ranks).summary().step
    predicted_ns = simulation.together(names).predicted_ns
    assert predicted_ns is not None
    if simulation.run.per_step:
        assert step is not None
        assert step.measured_ns == round(written.step_ns)
    assert written.step_ns == pytest.approx(predicted_ns, rel=0.01, abs=1)
    return written


def check_all(trace: Ranks, edits: Iterable[str]) -> int:
    simulation = simulate(trace, edits)
    for name in simulation.applied:
        check_step(simulation, [name])
    if len(simulation.applied) > 1:
        check_step(simulation, list(simulation.applied))
    return len(simulation.applied)


@pytest.mark.parametrize("name", CASES)
def test_the_summary_says_the_predicted_step(name: str, tmp_path: Path) -> None:
    make, edits = CASES[name]
    with patch.object(fusion, "FEWEST_KERNELS", 6), patch.object(graphs, "FEWEST_LAUNCHES", 3):
        check_all(make(tmp_path), edits)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/trace.json")))
def test_the_summary_of_a_small_trace_says_it(name: str) -> None:
    check_all(ttap.load(GOLDEN / name / "trace.json"), [*default_edits(), *NAMED])


def test_the_summary_of_a_real_trace_says_it(bundled: Path) -> None:
    assert check_all(ttap.load(bundled), [*default_edits(), *NAMED]) >= 8


# ------------------------------------------------------------------------- sound files


def check_sound(before: Ranks, after: Ranks) -> None:
    """Nothing in the written trace breaks the format that the original keeps."""
    for was, rank in zip(before.ranks, after.ranks, strict=True):
        kinds = [
            Counter(line.split(":")[0] for line in breaches(events_of(_core.trace_json(r.table))))
            for r in (was, rank)
        ]
        assert not kinds[1] - kinds[0]


@pytest.mark.parametrize("name", CASES)
def test_written_traces_are_sound(name: str, tmp_path: Path) -> None:
    make, edits = CASES[name]
    trace = make(tmp_path)
    with patch.object(fusion, "FEWEST_KERNELS", 6), patch.object(graphs, "FEWEST_LAUNCHES", 3):
        simulation = simulate(trace, edits)
        for edit in simulation.applied:
            for form in (None, "best", "cautious"):
                check_sound(trace, simulation.edited_trace([edit], form=form))


def test_a_written_real_trace_is_sound(bundled: Path) -> None:
    trace = ttap.load(bundled)
    simulation = simulate(trace, ["cuda_graph", "loader_workers=4"])
    check_sound(trace, simulation.edited_trace())


def crowded(steps: int) -> list[dict[str, Any]]:
    """Steps with begin and end events, arrows, counters, memory and annotations on the GPU."""
    made = GpuTrace()
    for number in range(steps):
        at = 1_000 * number
        host = {"pid": 1, "tid": 1, "cat": "cpu_op"}
        made.raw(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}"}
            | {"pid": 1, "tid": 1, "ts": at, "dur": 900}
        )
        made.raw({"ph": "B", "name": "aten::mm", "ts": at + 20, **host})
        made.memory(at + 25, 512)
        for i in range(3):
            made.launch(f"k{number}.{i}", (at + 30 + 10 * i, 5), (at + 40 + 300 * i, 290))
            arrow = {"id": 10 * number + i + 1, "cat": "ac2g", "name": "ac2g"}
            made.raw({"ph": "s", "pid": 1, "tid": 1, "ts": at + 30 + 10 * i, **arrow})
            made.raw({"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": at + 40 + 300 * i, **arrow})
        made.raw({"ph": "E", "ts": at + 70, "pid": 1, "tid": 1})
        made.raw({"ph": "C", "name": "W", "pid": 9, "tid": "c", "ts": at + 80, "args": {"W": 1.5}})
        made.raw(
            {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{number}"}
            | {"pid": 0, "tid": 7, "ts": at + 40, "dur": 890}
        )
    return made.events


class _Quicker:
    """Host work takes a tenth, and kernels seven tenths of their time or nine."""

    name = "quicker"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        edges = run.edges_of("program_order")
        for view in views(run):
            for change, factor in ((best, 0.7), (cautious, 0.9)):
                view.scale_gpu(change, view.gpu_rows, factor)
                change.set_lags(edges, run.cost_ns[edges] * 0.1)
        return EditedGraph(best, cautious)


@pytest.mark.parametrize("form", [None, "best", "cautious"])
def test_what_stands_around_kernels_moves_with_them(form: Any, write_trace: Any) -> None:
    trace = ttap.load(write_trace(crowded(4)))
    (was,) = (events_of(_core.trace_json(rank.table)) for rank in trace.ranks)
    assert not breaches(was)
    simulation = simulate(trace, [_Quicker()])
    written = simulation.edited_trace(form=form)
    events = events_of(_core.trace_json(written.ranks[0].table))
    assert not breaches(events)
    assert kernels_in_annotations(events) >= kernels_in_annotations(was)
    assert len(kernels_in_annotations(was)) == 12
    for phase, count in Counter(event["ph"] for event in was).items():
        assert sum(event["ph"] == phase for event in events) >= count
    for track in {(event["pid"], event["tid"]) for event in was}:
        orders = [_in_order(some, track, known=was) for some in (was, events)]
        assert orders[0] == orders[1]


def _in_order(
    events: list[dict[str, Any]], track: tuple[Any, Any], *, known: list[dict[str, Any]]
) -> list[str]:
    """Names of what a track has, but for what still runs from earlier steps."""
    correlations = {event.get("args", {}).get("correlation") for event in known}
    mine = [
        event
        for event in events
        if event["ph"] in "XiC" and (event["pid"], event["tid"]) == track
        if event.get("args", {}).get("correlation") in correlations
    ]
    return [event["name"] for event in sorted(mine, key=lambda event: event["ts"])]


# ------------------------------------------------------------------------- in a steady state


def _behind(steps: int = 4) -> dict[str, Any]:
    """The GPU falls behind the host by 700 us in each step, but for what the host does first."""
    program = FlawedProgram()
    for number in range(steps):
        with program.step(number):
            program.work(400)
            for i in range(10):
                with program.range(f"aten::op{i}", **{"External id": 100 * number + i + 1}):
                    program.launch(f"gemm{i}", 150, **{"External id": 100 * number + i + 1})
    return program.document()


def test_work_of_earlier_steps_still_runs_when_the_first_begins(write_trace: Any) -> None:
    """Else the first iteration would begin before the GPU is free."""
    trace = ttap.load(write_trace(_behind()))
    written = simulate(trace, [_Quicker()]).edited_trace(form="best")
    run = SimulatedRun(trace)
    change = _Quicker().apply(run).best
    lengths = run.replays([change.delta()]).lengths_ns[0]
    (rank,) = written.ranks
    assert iterations_of(rank).length_ns.tolist() == lengths.tolist()
    assert len(set(lengths.tolist())) == 1
    assert run.lengths_ns([change.delta()])[0, 0] != lengths[0]
    earlier = rank.tree.gpu_rows[step_of_work(rank) < 0]
    assert len(earlier)
    assert (rank.tree.launch[earlier] == _core.NO_ROW).all()
    assert (rank.tree.launch[np.setdiff1d(rank.tree.gpu_rows, earlier)] != _core.NO_ROW).all()
    texts = [json.loads(rank.table.event_json(row)) for row in earlier.tolist()]
    assert not [text for text in texts if "External id" in text["args"]]
    order = [text["name"] for text in texts]
    assert order == [f"gemm{i}" for _ in range(4) for i in range(10)][-len(order) :]
    begin_ns = rank.tree.steps[0].start_ns
    assert rank.table.ts_ns[earlier[0]] == begin_ns
    assert begin_ns == trace.ranks[0].tree.steps[0].start_ns


def test_what_comes_before_the_steps_stays_before_them(write_trace: Any) -> None:
    """A long kernel from before the first step holds the steps up in the recording; behind it they
    begin as in a steady state."""
    program = FlawedProgram()
    program.launch("warm", 9_000)
    for number in range(3):
        with program.step(number):
            program.work(50)
            program.launch("gemm", 2_000)
    trace = ttap.load(write_trace(program.document()))
    run = SimulatedRun(trace)
    simulation = simulate(trace, [_Quicker()])
    written = simulation.edited_trace(form="best")
    change = simulation.applied["quicker"].best
    assert written.step_ns == run.steady_ns(change.delta())
    table = written.ranks[0].table
    rows = [row for row in range(len(table)) if table.name_of(row) in ("warm", "gemm")]
    ends = table.ts_ns[rows] + table.dur_ns[rows]
    assert (table.ts_ns[rows][1:] >= ends[:-1]).all()


def test_an_edit_that_changes_nothing_leaves_every_byte(write_trace: Any) -> None:
    trace = ttap.load(write_trace(_behind()))
    run = SimulatedRun(trace)

    class Same:
        name = "same"

        def apply(self, run: SimulatedRun) -> EditedGraph:
            change = Change()
            change.set_lags(np.arange(len(run.cost_ns)), run.cost_ns)
            return EditedGraph(change)

    for form in (None, "best"):
        written = simulate(trace, [Same()]).edited_trace(form=form)
        assert _core.trace_json(written.ranks[0].table) == _core.trace_json(run.ranks[0].table)
        assert "change nothing" in written.note


def test_a_saving_below_the_noise_is_not_written_either(write_trace: Any) -> None:
    program = FlawedProgram()
    for number, work_us in enumerate((900, 300, 1_500, 700)):
        with program.step(number):
            program.work(work_us)
            program.launch("gemm", 10)
            program.synchronize()
    trace = ttap.load(write_trace(program.document()))

    class Slightly:
        name = "slightly"

        def apply(self, run: SimulatedRun) -> EditedGraph:
            change = Change()
            for view in views(run):
                view.scale_gpu(change, view.gpu_rows, 0.5)
            return EditedGraph(change)

    simulation = simulate(trace, [Slightly()])
    assert "noise" in simulation.edits[0].note
    written = check_step(simulation, ["slightly"])
    assert round(written.step_ns) == simulation.measured_ns
    assert "as no saving is predicted" in written.note


def test_ranks_of_which_one_is_ahead_are_written_as_predicted(tmp_path: Path) -> None:
    trace = CASES["late"][0](tmp_path)
    simulation = simulate(trace, ["straggler_to_median"])
    written = check_step(simulation, ["straggler_to_median"])
    assert len(written.ranks) == 4
    check_sound(trace, written)


def test_between_two_schedules_order_and_dependencies_hold(bundled: Path) -> None:
    simulation = simulate(ttap.load(bundled), ["loader_workers=4"])
    run, graph = simulation.run, simulation.applied["loader_workers=4"]
    assert graph.cautious is not None
    schedules = Schedules(run)
    one = schedules.steady_schedule(graph.best, "at best")
    other = schedules.steady_schedule(graph.cautious, "at least")
    kept = np.ones(len(run.cost_ns), dtype=bool)
    for change in (graph.best, graph.cautious):
        kept[change.dropped] = kept[change.lags[0]] = False
    source, destination = run.graph.source[kept], run.destination[kept]
    for part in (1, 20_000, 40_000, 65_535):
        times = one.interpolate(other, part).times_ns
        assert (times[destination] - times[source] >= run.cost_ns[kept] - 1).all()
        assert min(schedules.step_ns(one), schedules.step_ns(other)) <= schedules.step_ns(
            one.interpolate(other, part)
        )


# ------------------------------------------------------------------------- what a reader knows


def _recorded_in_the_middle(*, linked_before: bool) -> list[dict[str, Any]]:
    """Work that was launched before the recording runs until 1,500, then what the step launches."""
    made = GpuTrace()
    if linked_before:
        made.launch("prepare", (5, 5), (15, 50))
    made.raw(
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1"}
        | {"pid": 1, "tid": 1, "ts": 100, "dur": 1_000}
    )
    for at in (700, 1_100):
        orphan = {"device": 0, "stream": 7, "correlation": 9_000 + at}
        made.raw(
            {"ph": "X", "cat": "kernel", "name": "earlier", "pid": 0, "tid": 7}
            | {"ts": at, "dur": 400, "args": orphan}
        )
    made.launch("gemm", (300, 5), (1_600, 2_000))
    return made.events


@pytest.mark.parametrize("linked_before", [True, False])
def test_work_from_before_the_recording_is_of_no_step(
    linked_before: bool, write_trace: Any
) -> None:
    """Also where something was launched before the step; and where such work is recorded, it says
    when the iteration begins."""
    events = _recorded_in_the_middle(linked_before=linked_before)
    (rank,) = ttap.load(write_trace(events)).ranks
    placed = {
        rank.table.name_of(row): step
        for row, step in zip(rank.tree.gpu_rows.tolist(), step_of_work(rank).tolist(), strict=True)
    }
    assert placed == {"earlier": -1, "gemm": 0, **({"prepare": -1} if linked_before else {})}
    assert held_up_row(rank) is None
    assert iterations_of(rank).length_ns.tolist() == [2_100_000]


def test_work_without_a_launch_behind_that_of_a_step_is_of_the_step(write_trace: Any) -> None:
    events = _recorded_in_the_middle(linked_before=True)
    for event in events:
        if event["name"] == "earlier":
            event["ts"] += 3_000
    (rank,) = ttap.load(write_trace(events)).ranks
    assert step_of_work(rank).tolist() == [-1, 0, 1, 1]


# ------------------------------------------------------------------------- pinned copies


def _uploading(program: FlawedProgram) -> None:
    """The driver stages the first part of the batch for 900 us."""
    program.work(100)
    program.copy("HtoD", "Pageable", 20_000_000, 4_000)
    call, copy = program.events[-2:]
    call["dur"] += 900
    copy["ts"] += 900
    program.host_us += 900
    program.launch("gemm", 500)


def _both(run: SimulatedRun) -> tuple[Any, Any]:
    """int64 `[points]`: as measured, and with memory that is pinned from the start."""
    best = PinMemory().apply(run).best
    return run.graph.time_ns, run.replay(best.delta())


def test_a_pinned_copy_begins_as_soon_as_any_work(tmp_path: Path) -> None:
    """A pageable one begins in its call, when the driver has moved its first part."""
    run = SimulatedRun(steps_of(_uploading, 3)(tmp_path))
    (view,) = views(run)
    copies = view.gpu_rows[view.table.dur_ns[view.gpu_rows] == 4_000_000]
    calls = view.launch_of(copies)
    for times, late_ns in zip(_both(run), (900_000, 0), strict=True):
        begins = times[view.begin_of[copies]]
        gemms = np.setdiff1d(view.gpu_rows, copies)
        free_ns = np.append(0, times[view.end_of[gemms]][:-1] + 1_000)
        called_ns = times[view.begin_of[calls]] + 10_000
        assert (np.abs(begins - np.maximum(called_ns, free_ns) - late_ns) < 20_000).all()
    written = simulate(run.trace, ["pin_memory"]).edited_trace(form="best")
    assert held_up_row(written.ranks[0]) is None


@pytest.mark.parametrize("name", CASES)
def test_no_edge_of_a_recorded_run_costs_less_than_nothing(name: str, tmp_path: Path) -> None:
    """So a change that counts lags below 0 as 0 never makes an edge cost more."""
    assert (SimulatedRun(CASES[name][0](tmp_path)).cost_ns >= 0).all()
