"""What crosses between core and Python: handles go on, columns are views, nothing comes twice."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_samples import ALL_REDUCE, Job, late_rank

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.simulation.edits.collective_parts import parts_of
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.matching import join_ranks, rank_collectives
from torchtraceap.tables.steps.iterations import iterations_of


@pytest.fixture
def trace(tmp_path: Path) -> ttap.Trace:
    return late_rank().load(tmp_path)


def assert_view(column: Any, owner: object, values: list[int]) -> None:
    assert column.tolist() == values
    assert column.base is owner
    assert not column.flags.writeable


def test_columns_are_views_of_the_struct_that_holds_them(trace: ttap.Trace) -> None:
    matched = rank_collectives(trace)
    assert_view(matched.latest_rank, matched, [2] * 6)
    assert_view(matched.count, matched, [4] * 6)
    assert_view(matched.rank, matched, [0, 1, 2, 3] * 6)
    step = matched.start_ns.strides[0]
    assert step == matched.row.strides[0] > 8
    names = trace.ranks[0].table
    assert names.name_of(int(matched.row[0])) == ALL_REDUCE


def test_a_view_keeps_its_owner_alive(trace: ttap.Trace) -> None:
    scope = join_ranks(trace)
    path = _core.critical_path(scope.as_arguments, (0, 10**9), meetings=scope.meetings)
    ends = path.end_ns
    known = ends.tolist()
    del path
    gc.collect()
    assert ends.tolist() == known
    assert known == sorted(known)


def test_nothing_gives_empty_columns() -> None:
    matched = _core.collectives([])
    assert matched.matches == 0
    assert matched.start_ns.shape == matched.latest_rank.shape == (0,)
    assert len(matched.meetings([])) == 0
    assert matched.lateness(material_share=0.02).excess_ns.shape == (0, 5)


def test_excess_is_a_matrix_by_rank_and_cause(trace: ttap.Trace) -> None:
    late = rank_collectives(trace).lateness(material_share=0.02)
    compute = _core.late_cause_names().index("compute")
    assert late.excess_ns.shape == (4, len(_core.late_cause_names()))
    assert late.excess_ns[:, compute].tolist() == [0, 0, 6 * 3_000_000, 0]
    assert _core.rank_verdict_names()[late.verdict[2]] == "straggler"


def test_collectives_are_matched_once(trace: ttap.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    match = _core.collectives

    def counted(ranks: Any) -> _core.RankCollectives:
        calls.append(len(ranks))
        return match(ranks)

    monkeypatch.setattr(_core, "collectives", counted)
    trace.diagnose()
    trace.collectives()
    trace.ranks_table()
    trace.critical_path()
    parts_of(SimulatedRun(trace))
    assert calls == [4]


def test_a_run_of_some_ranks_finds_their_parts(tmp_path: Path) -> None:
    """Rank 1 meets nobody, so the run's second rank is the trace's third."""
    job = Job(3)
    for step in range(4):
        at = 10_000.0 * step + 100
        job.kernel(1, at, 500)
        job.all_reduce([at + 500, None, at + 700], at + 1_000)
    run = SimulatedRun(job.load(tmp_path))
    assert run.places == [0, 2]
    assert run.meetings is not None
    assert run.meetings.rank.tolist() == [0, 1] * 4
    for part in parts_of(run):
        assert part.kind.tolist() == ["all_reduce"] * 4
        assert part.size.tolist() == [4 << 20] * 4


def test_a_lateness_of_other_ranks_is_refused(trace: ttap.Trace) -> None:
    with pytest.raises(ttap.errors.SchemaError, match="other ranks"):
        rank_collectives(trace).peer_views(_core.collectives([]).lateness(material_share=0.02))


def test_a_place_that_no_rank_has_is_refused(trace: ttap.Trace) -> None:
    with pytest.raises(ttap.errors.OptionError, match="no such rank"):
        rank_collectives(trace).meetings([0, 4])


def test_an_iteration_ends_with_the_last_of_its_work(trace: ttap.Trace) -> None:
    """The same as taking rank by rank and step by step."""
    run = SimulatedRun(trace)
    times = run.replay()
    lengths = []
    for steps in run.steps_by_rank:
        ends = np.maximum.accumulate([int(times[step.work].max()) for step in steps])
        lengths += np.diff(ends).tolist()
    first = np.diff([step.rank for step in run.steps], prepend=-1) != 0
    assert len(lengths) == len(run.steps) - 4
    assert run.measured_ns[~first].tolist() == lengths
    assert run.lengths_ns()[0].tolist() == run.measured_ns.tolist()
    measured = [iterations_of(part).length_ns for part in run.ranks]
    assert run.measured_ns.tolist() == np.concatenate(measured).tolist()
    counted = [ns for ns, s in zip(run.measured_ns, run.steps, strict=True) if s.counted]
    assert run.steady_ns() == pytest.approx(np.mean(counted))


def test_points_of_a_rank_stand_beside_each_other(trace: ttap.Trace) -> None:
    run = SimulatedRun(trace)
    graph = run.graph
    rank, kind = graph.lane_rank[graph.lane], graph.lane_kind[graph.lane]
    for index, bounds in enumerate(run.point_bounds.tolist()):
        assert np.flatnonzero((rank == index) & (kind != 2)).tolist() == list(range(*bounds))
