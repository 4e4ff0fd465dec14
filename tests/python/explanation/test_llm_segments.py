"""Which parts of a trace are judged, and how doubt about them is settled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.core.results import Windows
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.explanation import rescore as redetection
from torchtraceap.explanation.explanation import Round
from torchtraceap.explanation.rescore import Doubt, other_grids, resolve_doubts
from torchtraceap.explanation.segments import (
    FLAGGED,
    MOST_SEGMENTS,
    NONE,
    Segment,
    cost_inside,
    find_segments,
    idle_inside,
    largest_part,
    name_windows,
    shared_with,
)

COUNT = 100


@pytest.fixture(scope="module")
def diagnosis(bundled: Path) -> Diagnosis:
    return ttap.diagnose(bundled)


def with_windows(diagnosis: Diagnosis, **types: dict[int, float]) -> Diagnosis:
    """The same trace with other scores: of types, by window."""
    windows = diagnosis.windows
    scored = {name: np.zeros(windows.count) for name in windows.types}
    for name, values in types.items():
        scored[name][list(values)] = list(values.values())
    scores = np.max(list(scored.values()), axis=0)
    return replace(diagnosis, windows=Windows(windows.bounds_ns, scores, scored))


def test_flagged_windows_of_one_type_are_one_segment(diagnosis: Diagnosis) -> None:
    loading = dict.fromkeys((3, 4, 5, 9), 0.9)
    known = with_windows(
        diagnosis, single_process_data_loading=loading, cpu_bound={6: 0.8, 7: 0.49}
    )
    known = replace(known, findings=())
    found = [s for s in find_segments(known) if s.score >= FLAGGED]
    loads = next(s for s in found if s.type == "single_process_data_loading")
    assert sorted((s.first, s.last) for s in (loads, *loads.further)) == [(3, 5), (9, 9)]
    assert [(s.first, s.last, s.further) for s in found if s.type == "cpu_bound"] == [(6, 6, ())]
    bounds_ns = known.windows.bounds_ns
    assert all((s.start_ns, s.end_ns) == (bounds_ns[s.first], bounds_ns[s.last + 1]) for s in found)


def test_parts_without_a_name_are_told_by_what_their_time_is(diagnosis: Diagnosis) -> None:
    known = with_windows(diagnosis, graph_break=dict.fromkeys((2, 13, 15), 0.9))
    known = replace(known, findings=())
    found = [s for s in find_segments(known) if s.score >= FLAGGED]
    assert {s.type for s in found} == {NONE}
    told = {largest_part(known, s): sorted(e.first for e in (s, *s.further)) for s in found}
    assert told == {"data_loading": [2], "compute": [13, 15]}


def test_what_the_rules_exclude_names_nothing(diagnosis: Diagnosis) -> None:
    assert diagnosis.verdicts["graph_break"] == "absent"
    known = with_windows(diagnosis, graph_break={2: 0.9}, high_memcpy={3: 0.7})
    known = replace(known, findings=())
    found = [s for s in find_segments(known) if s.score >= FLAGGED]
    assert [(s.first, s.last, s.type, s.finding) for s in found] == [(2, 3, NONE, None)]
    assert found[0].types[0] == ("graph_break", 0.45)


def test_what_a_rule_proves_there_is_the_name(diagnosis: Diagnosis) -> None:
    """Although the scorer takes another type for likelier; and only where it costs a tenth."""
    cpu_bound = diagnosis.finding("cpu_bound")
    assert cpu_bound is not None
    only = replace(diagnosis, findings=(cpu_bound,))
    bounds_ns = diagnosis.windows.bounds_ns
    share = [
        cost_inside(cpu_bound, bounds_ns[i], bounds_ns[i + 1]) / (bounds_ns[i + 1] - bounds_ns[i])
        for i in range(COUNT)
    ]
    dear, cheap = int(np.argmax(share)), int(np.argmin(share))
    scores = {dear: 0.9, cheap: 0.9}
    less = {dear: 0.1, cheap: 0.1}
    names = name_windows(with_windows(only, graph_break=scores, cpu_bound=less))
    assert share[cheap] < 0.1 < share[dear]
    assert (names[dear], names[cheap]) == ("cpu_bound", NONE)
    unlikely = with_windows(only, graph_break=scores)
    assert name_windows(unlikely)[cheap] == NONE


def test_a_finding_that_costs_most_of_a_part_is_its_name(diagnosis: Diagnosis) -> None:
    """Although the scorer says nothing of it; a smaller part of it is no name."""
    loading = diagnosis.finding("single_process_data_loading")
    assert loading is not None
    only = replace(diagnosis, findings=(loading,))
    bounds_ns = diagnosis.windows.bounds_ns
    lengths_ns = np.diff(np.asarray(bounds_ns))
    costs_ns = [cost_inside(loading, bounds_ns[i], bounds_ns[i + 1]) for i in range(COUNT)]
    share = np.array(costs_ns) / lengths_ns
    most = int(np.argmax(share))
    some = next(i for i in range(COUNT) if 0.1 < share[i] < 0.5)
    names = name_windows(with_windows(only, graph_break={most: 0.9, some: 0.9}))
    assert (names[most], names[some]) == (loading.type, NONE)


def test_a_finding_that_is_thin_everywhere_has_its_densest_part(diagnosis: Diagnosis) -> None:
    """A tenth of a part at least is its cost, however little of the whole trace it is."""
    finding = diagnosis.findings[0]
    begin_ns, end_ns = diagnosis.windows.bounds_ns[0], diagnosis.windows.bounds_ns[-1]
    starts_ns = np.arange(begin_ns, end_ns, 1_000_000, dtype=np.int64)
    wide = np.full(len(starts_ns), 20_000)  # 2 % of each ms, but for ten that are 50 %
    wide[300:310] = 500_000
    intervals = np.stack((starts_ns, starts_ns + wide), axis=1)
    thin = replace(
        finding,
        intervals=intervals,
        interval_ranks=(finding.interval_ranks[0],) * len(intervals),
        cost_ns=int(wide.sum()),
    )
    for known in (thin, replace(thin, intervals=np.stack((starts_ns, starts_ns + 9_000), axis=1))):
        segment = find_segments(with_windows(replace(diagnosis, findings=(known,))))[0]
        length_ns = segment.end_ns - segment.start_ns
        assert segment.type == finding.type
        assert cost_inside(known, segment.start_ns, segment.end_ns) >= 0.1 * length_ns > 0


def test_time_of_two_findings_is_known(diagnosis: Diagnosis) -> None:
    tiny, bound = diagnosis.finding("tiny_kernels"), diagnosis.finding("cpu_bound")
    assert tiny is not None and bound is not None
    assert shared_with(diagnosis, tiny) == (bound, tiny.cost_ns)  # all of it
    assert shared_with(diagnosis, bound) is None  # a small part


def test_what_could_not_be_checked_may_be_the_name(diagnosis: Diagnosis) -> None:
    verdicts = {**diagnosis.verdicts, "graph_break": "unknown"}
    known = replace(diagnosis, verdicts=verdicts, findings=())
    assert name_windows(with_windows(known, graph_break={2: 0.9}))[2] == "graph_break"


def test_each_finding_has_a_segment_where_it_costs_most(diagnosis: Diagnosis) -> None:
    found = find_segments(with_windows(diagnosis))
    assert [s.type for s in found] == [finding.type for finding in diagnosis.findings]
    bounds_ns = diagnosis.windows.bounds_ns
    for segment in found:
        assert segment.finding is not None
        here = cost_inside(segment.finding, segment.start_ns, segment.end_ns)
        same = segment.last - segment.first + 1
        elsewhere = [
            cost_inside(segment.finding, bounds_ns[i], bounds_ns[i + 1]) for i in range(COUNT)
        ]
        assert here > 0
        assert here >= max(elsewhere) or same > 1
        assert sum(elsewhere) == pytest.approx(segment.finding.cost_ns, abs=COUNT)


def test_flagged_windows_where_the_finding_costs_most_belong_to_it(diagnosis: Diagnosis) -> None:
    dearest = find_segments(with_windows(diagnosis))[0]
    inside = dict.fromkeys(range(dearest.first, dearest.last), 0.9)
    elsewhere = {dearest.last + 3: 0.9}
    found = find_segments(with_windows(diagnosis, **{dearest.type: inside | elsewhere}))
    own = next(s for s in found if s.type == dearest.type)
    assert (own.first, own.last) == (dearest.first, dearest.last)
    where = dearest.last + 3
    assert diagnosis.finding(dearest.type) is not None
    others = [(s.first, s.last) for s in found if s.type != dearest.type]
    # There it costs nothing, so that another name, or none, is told.
    assert own.further == () and (where, where) in others


def test_expected_savings_are_shares_of_the_finding(diagnosis: Diagnosis) -> None:
    loading = dict.fromkeys(range(0, COUNT, 2), 0.9)
    found = find_segments(with_windows(diagnosis, single_process_data_loading=loading))
    finding = diagnosis.finding("single_process_data_loading")
    assert finding is not None and finding.saving is not None and diagnosis.step is not None
    assert len(found) <= MOST_SEGMENTS
    whole_ns = finding.saving.best_ns * diagnosis.step.steps
    (own,) = (s for s in found if s.type == finding.type)
    assert len(own.further) > 3
    assert 0 < own.expected_ns + sum(s.expected_ns for s in own.further) <= whole_ns
    assert own.expected_ns == max(s.expected_ns for s in (own, *own.further))
    # Those of findings come first, then the rest by what they save.
    types = [finding.type for finding in diagnosis.findings]
    assert [s.type for s in found[: len(types)]] == types
    rest = [s.expected_ns + sum(e.expected_ns for e in s.further) for s in found[len(types) :]]
    assert rest == sorted(rest, reverse=True)


def test_nothing_flagged_and_nothing_found_is_no_segment(diagnosis: Diagnosis) -> None:
    quiet = replace(with_windows(diagnosis), findings=(), plan=(), lead=None)
    assert find_segments(quiet) == []


def test_idle_time_of_parts_sums_to_the_whole(diagnosis: Diagnosis) -> None:
    rank, bounds_ns = diagnosis.trace.ranks[0], diagnosis.windows.bounds_ns
    parts = [idle_inside(rank, bounds_ns[i], bounds_ns[i + 1]) for i in range(COUNT)]
    assert sum(parts) == sum(diagnosis.idle_ns.values())


# ------------------------------------------------------------------------------ redetection


@pytest.mark.parametrize(
    ("grid", "suggested", "asked"),
    [
        (100, None, (200, 50)),
        (50, None, (100, 200)),
        (200, None, (100, 50)),
        (100, 50, (50, 200)),
        (100, 100, (200, 50)),
    ],
)
def test_the_finer_grid_is_asked_first(grid: int, suggested: int | None, asked: object) -> None:
    assert other_grids(grid, suggested) == asked


def doubted(score: float = 0.9) -> Segment:
    return Segment(
        start_ns=0,
        end_ns=100,
        grid=100,
        first=0,
        last=0,
        type=NONE,
        score=score,
        types=(("graph_break", score),),
        finding=None,
        expected_ns=0.0,
    )


def settled(
    diagnosis: Diagnosis,
    monkeypatch: pytest.MonkeyPatch,
    scores: dict[int, float],
    *,
    drops: bool = True,
) -> tuple[Doubt, list[Round]]:
    """A doubt about a segment of a trace without findings, where whole grids have these scores."""

    def windows_of(_: Diagnosis, grid: int) -> Windows:
        values = np.full(grid, scores[grid])
        bounds_ns = tuple(range(0, 10 * (grid + 1), 10))
        return Windows(bounds_ns, values, {"graph_break": values * 0, "cpu_bound": values})

    monkeypatch.setattr(redetection, "windows_of", windows_of)
    doubt = Doubt(doubted(), drops=drops)
    quiet = replace(diagnosis, findings=())
    return doubt, resolve_doubts(quiet, [doubt], "rule", others=3)


def test_two_grids_that_agree_are_enough(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt, rounds = settled(diagnosis, monkeypatch, {200: 0.8})
    assert doubt.holds and doubt.scores == [0.9, 0.8]
    assert rounds == [Round(200, "rule", 4, changed=True)]  # it has a name now


def test_a_judge_that_drops_nothing(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt, rounds = settled(diagnosis, monkeypatch, {200: 0.2, 50: 0.1}, drops=False)
    assert not doubt.holds and not doubt.gone
    assert [r.segments for r in rounds] == [4, 4]


@pytest.mark.parametrize(("last", "holds"), [(0.7, True), (0.1, False)])
def test_the_coarser_grid_decides(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch, last: float, holds: bool
) -> None:
    doubt, rounds = settled(diagnosis, monkeypatch, {200: 0.2, 50: last})
    assert doubt.holds is holds and doubt.settled
    assert [(r.grid, r.segments, r.changed) for r in rounds] == [
        (200, 4, True),
        (50, 3 + holds, not holds),
    ]


def test_other_grids_may_rename_it(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt, _ = settled(diagnosis, monkeypatch, {200: 0.95})
    segment = doubt.typed(replace(diagnosis, findings=()))
    assert (segment.type, segment.finding) == ("cpu_bound", None)
    assert dict(segment.types) == pytest.approx({"cpu_bound": 0.475, "graph_break": 0.45})
