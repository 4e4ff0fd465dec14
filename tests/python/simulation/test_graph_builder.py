"""Graphs from parts: work, order, launches and collectives, and graphs of runs that gain work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_simulation_edits import launching, steps_of

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import SchemaError
from torchtraceap.simulation.graph_builder import MEETING, STREAM, THREAD, GraphBuilder
from torchtraceap.simulation.run import SimulatedRun


def test_kernels_wait_for_their_launch_and_their_stream() -> None:
    builder = GraphBuilder()
    host, stream = builder.add_lane(THREAD), builder.add_lane(STREAM)
    calls = builder.add_work(host, [3_000, 3_000], gaps_ns=1_000)
    kernels = builder.add_work(stream, [90_000, 40_000], gaps_ns=[0, 2_000])
    builder.add_edges(calls.end, kernels.begin, 5_000, kind="launch")
    built = builder.build()
    times = _core.replay(built.graph)
    assert times[built.points(calls.begin)].tolist() == [0, 4_000]
    assert times[built.points(kernels.begin)].tolist() == [8_000, 100_000]
    assert times[built.points(kernels.end)].tolist() == [98_000, 140_000]
    assert (built.graph.time_ns == times).all()


def test_a_collective_ends_after_its_last_rank_has_begun() -> None:
    builder = GraphBuilder()
    lanes = [builder.add_lane(STREAM, rank=rank) for rank in range(3)]
    ready = [builder.add_work(lane, [ns]) for lane, ns in zip(lanes, (10, 70, 30), strict=True)]
    reduced = builder.add_collective(lanes, 100, gaps_ns=[1, 2, 3])
    builder.add_work(lanes[0], [5])
    built = builder.build()
    times = built.graph.time_ns
    assert [int(times[built.points(work.end)[0]]) for work in ready] == [10, 70, 30]
    assert times[built.points(reduced.begin)].tolist() == [11, 72, 33]
    assert times[built.points(reduced.end)].tolist() == [172] * 3
    assert times.max() == 177
    assert built.graph.lane_kind.tolist() == [STREAM] * 3 + [MEETING]


def test_lanes_of_a_rank_stand_beside_each_other() -> None:
    builder = GraphBuilder()
    lanes = [builder.add_lane(rank=rank) for rank in (1, 0, 1)]
    works = [builder.add_work(lane, [1, 2]) for lane in lanes]
    later = builder.add_work(lanes[1], [4])
    built = builder.build()
    assert built.graph.lane_rank.tolist() == [0, 1, 1]
    assert built.points(works[1].begin).tolist() == [0, 2]
    assert built.points(later.begin).tolist() == [4]
    assert built.graph.lane[built.points(works[2].end)].tolist() == [2, 2]
    assert [built.graph.lane_begin.tolist(), built.graph.lane_end.tolist()] == [
        [0, 6, 10],
        [6, 10, 14],
    ]


def _run(folder: Path) -> SimulatedRun:
    path = folder / "trace.json"
    path.write_text(json.dumps(steps_of(launching)), encoding="utf-8")
    return SimulatedRun(ttap.load(path))


def test_the_graph_of_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    run = _run(tmp_path)
    built = GraphBuilder(run.graph).build()
    assert (built.points(np.arange(len(run.graph))) == np.arange(len(run.graph))).all()
    for name in (
        "source",
        "lag_ns",
        "residual_ns",
        "kind",
        "evidence",
        "owner",
        "in_offsets",
        "row",
    ):
        assert (getattr(built.graph, name) == getattr(run.graph, name)).all(), name
    for residuals in (True, False):
        before = _core.replay(run.graph, with_residuals=residuals)
        assert (_core.replay(built.graph, with_residuals=residuals) == before).all()
    assert (built.graph.begin_of(0) == run.graph.begin_of(0)).all()
    assert (built.graph.end_of(0) == run.graph.end_of(0)).all()


def test_a_run_gains_work_that_others_wait_for(tmp_path: Path) -> None:
    run = _run(tmp_path)
    gpu = run.ranks[0].tree.gpu_rows.astype(np.int64)
    last = int(run.graph.end_of(0)[gpu[-1]])
    builder = GraphBuilder(run.graph)
    more = builder.add_work(builder.add_lane(STREAM, index=1), [1_000_000])
    builder.add_edges([last], more.begin, 0)
    built = builder.build()
    assert len(built.graph) == len(run.graph) + 2
    grown = _core.replay(built.graph)
    assert grown[built.points(more.end)[0]] == run.graph.time_ns[last] + 1_000_000
    assert (grown[built.points(np.arange(len(run.graph)))] == run.graph.time_ns).all()


def test_work_is_added_behind_what_a_lane_has(tmp_path: Path) -> None:
    run = _run(tmp_path)
    builder = GraphBuilder(run.graph)
    more = builder.add_work(0, [500], gaps_ns=7)
    built = builder.build()
    lane_end = int(run.graph.lane_end[0]) - 1
    begin = built.graph.time_ns[built.points(more.begin)[0]]
    assert begin == run.graph.time_ns[lane_end] + 7
    assert (np.diff(built.graph.lane.astype(np.int64)) >= 0).all()


def _cycle(builder: GraphBuilder) -> None:
    work = builder.add_work(builder.add_lane(), [1, 1])
    builder.add_edges(work.end[1:], work.begin[:1], 0)
    builder.build()


def test_a_lone_point_lies_within_a_row_that_has_its_sides_elsewhere() -> None:
    builder = GraphBuilder(rows=[1])
    work = builder.add_work(builder.add_lane(), [1_000], rows=[0])
    inside = builder.add_points(builder.add_lane(STREAM), 1, rows=[0])
    built = builder.build()
    first, lone = (int(built.points(each)[0]) for each in (work.begin, inside))
    assert built.graph.begin_of(0)[0] == first != lone
    grown = GraphBuilder()
    grown.add_graph(built.graph)
    assert grown.build().graph.begin_of(0)[0] == first


def _twice(builder: GraphBuilder) -> None:
    builder.add_work(builder.add_lane(), [1, 1], rows=[0, 0])
    builder.build()


def _absent_point(builder: GraphBuilder) -> None:
    builder.add_lane()
    builder.add_edges([0], [1], 0)
    builder.build()


def _beyond_all_times(builder: GraphBuilder) -> None:
    builder.add_work(builder.add_lane(), [1], start_ns=2**62)
    builder.build()


def _beyond_the_table(builder: GraphBuilder) -> None:
    builder.add_work(builder.add_lane(), [1], rows=[1])
    builder.build()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_cycle, "cycle"),
        (_twice, "two points"),
        (_absent_point, "none of the 0"),
        (_beyond_all_times, "time_ns"),
        (_beyond_the_table, "row"),
        (lambda b: b.add_lane(7), "kind 7"),
        (lambda b: b.add_work(0, [1]), "no lane 0"),
        (lambda b: b.add_work(b.add_lane(), [-1]), "-1 ns"),
        (lambda b: b.add_work(b.add_lane(), [1], gaps_ns=[1, 2]), "gaps_ns"),
        (lambda b: b.add_collective([b.add_lane()], -1), "-1 ns"),
        (lambda b: b.add_edges([0], [1], 0, kind="magic"), "magic"),
        (lambda b: b.add_edges([0], [1, 2], 0), "destinations"),
    ],
)
def test_what_makes_no_graph_is_said(wrong: Callable[[GraphBuilder], object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        wrong(GraphBuilder(rows=[1]))


def test_an_empty_graph() -> None:
    built = GraphBuilder().build()
    assert len(built.graph) == 0
    assert len(_core.replay(built.graph)) == 0
