"""Segments: adjacent windows that a scorer flags for one type, and where findings cost most.

Note [Which segments]: a window is flagged if its score is one half or more, what calibration makes
of scores (docs/scorers.md). Adjacent flagged windows of the same name are a run. Each finding has a
run of its own where it costs most: windows of which its cost covers a tenth each. A finding that
covers so much of no window has the part of a window where its intervals lie densest: what it costs
beyond a tenth of the part is greatest there. Flagged windows of its type inside that run belong to
it. Runs of one finding, or of one type that was not checked, are one segment: the dearest leads,
the others are `further` places of it. Runs without a name are one segment where the largest part
of their time is the same. Segments of findings come first, in the order of the diagnosis, then
others by what a fix is expected to save there.

Note [Names]: scorers guess, rules prove. A part is called by the likeliest type whose finding costs
a tenth of it; without one, by the finding that costs half of it or more and most; without one, by
the likeliest that the rules do not exclude, as they lacked signals of it; else "none".
benchmarks/detectors/judged.py compares this with other ways to name (docs/evaluation.md#judges).

Note [Expected saving]: a finding's saving, as the diagnosis believes it, falls to its segments by
the part of its cost in each. What no finding explains is bounded by the time in which a GPU idles
there, and counts with its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from torchtraceap.core.intervals import EMPTY, covered_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Finding, Int64Array, Windows
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.diagnosis.verdict import parts_over_time

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "FLAGGED",
    "MOST_SEGMENTS",
    "NONE",
    "Segment",
    "cost_inside",
    "find_segments",
    "finding_of",
    "idle_inside",
    "largest_part",
    "likely_name",
    "likely_types",
    "name_windows",
    "rule_says",
    "runs_of",
    "segment_of",
    "shared_with",
]

Value = TypeVar("Value")
NONE = "none"
FLAGGED = 0.5
MOST_SEGMENTS = 10
_COVERED = 0.1
"""Part of a window from which it counts as one with the fault, as in the labels of data sets."""
_MOST_OF_IT = 0.5
"""Part of a window that a finding has to cost to name it against the scorer's types."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the profiled time that is to be judged."""

    start_ns: int
    end_ns: int
    grid: int
    """Number of windows of the trace."""
    first: int
    last: int
    """Windows, both included."""
    type: str
    """The likeliest, or that of the finding, or "none"."""
    score: float
    """The mean over its windows."""
    types: tuple[tuple[str, float], ...]
    """Types and how likely each is by the scorer, the likeliest first; those above nothing."""
    finding: Finding | None
    """The finding of its type, if there is one."""
    expected_ns: float
    """Expected saving, see Note [Expected saving]."""
    further: tuple[Segment, ...] = ()
    """Other runs of windows of which the same is to be told, in the order of time."""

    def lies_in(self, other: Segment) -> bool:
        """Return True if this is a part of the other segment, and of the same type."""
        return self.type == other.type and other.first <= self.first and self.last <= other.last


def find_segments(diagnosis: Diagnosis) -> list[Segment]:
    """Return at most `MOST_SEGMENTS` segments, the most important first. See Note [Which
    segments]."""
    dearest = (_costliest_segment(diagnosis, finding) for finding in diagnosis.findings)
    located = [segment for segment in dearest if segment]
    flagged = [
        segment_of(diagnosis, first, last, name)
        for name, first, last in runs_of(name_windows(diagnosis))
        if name
    ]
    runs: dict[tuple[str, str], list[Segment]] = {}
    for segment in (*located, *(each for each in flagged if not any(map(each.lies_in, located)))):
        most = largest_part(diagnosis, segment) if segment.type == NONE else ""
        runs.setdefault((segment.type, most), []).append(segment)
    places = {finding.type: place for place, finding in enumerate(diagnosis.findings)}

    def importance(segment: Segment) -> tuple[int, float, int]:
        expected_ns = segment.expected_ns + sum(each.expected_ns for each in segment.further)
        return places.get(segment.type, len(places)), -expected_ns, segment.start_ns

    return sorted(map(_join_runs, runs.values()), key=importance)[:MOST_SEGMENTS]


def _join_runs(runs: list[Segment]) -> Segment:
    """Return the run that is worth most, with the others as further places."""
    leading = max(runs, key=lambda each: each.expected_ns)
    others = (each for each in runs if each is not leading)
    return replace(leading, further=tuple(sorted(others, key=lambda each: each.start_ns)))


def largest_part(diagnosis: Diagnosis, segment: Segment) -> str:
    """Return the largest part of a segment's time, a name as in `Diagnosis.time_ns`; empty where
    the work is not recorded."""
    windows = diagnosis.windows

    def compute() -> dict[str, Int64Array]:
        bounds_ns = np.asarray(windows.bounds_ns, dtype=np.int64)
        sums: dict[str, Int64Array] = {}
        for rank in diagnosis.trace.ranks:
            parts = parts_over_time(rank, bounds_ns, diagnosis.computes_on)
            for name, own_ns in parts.items():
                sums[name] = sums.get(name, 0) + own_ns
        return sums

    parts = diagnosis.trace.cached(("parts of windows", windows.bounds_ns), compute)
    inside = {name: int(ns[segment.first : segment.last + 1].sum()) for name, ns in parts.items()}
    most = max(inside, key=lambda name: inside[name], default="")
    return most if most and inside[most] else ""


def rule_says(diagnosis: Diagnosis, name: str) -> str:
    """Return the verdict of the rules on a type in this trace: "present", "absent" or "unknown"."""
    return diagnosis.verdicts.get(name) or diagnosis.further_verdicts.get(name, "unknown")


def likely_types(windows: Windows, first: int, last: int) -> tuple[tuple[str, float], ...]:
    """Return types and the mean of their scores over some windows, the likeliest first."""
    means = ((name, float(own[first : last + 1].mean())) for name, own in windows.types.items())
    there = [(name, value) for name, value in means if value > 0]
    return tuple(sorted(there, key=lambda pair: (-pair[1], pair[0])))


def cost_inside(finding: Finding, start_ns: int, end_ns: int, rank: int | None = None) -> int:
    """Return the cost of a finding within a time, summed over the ranks, or of one rank."""
    bounds_ns = np.array([start_ns, end_ns], dtype=np.int64)
    ranks = set(finding.interval_ranks) if rank is None else {rank}
    return sum(int(_cost_ns(finding, each, bounds_ns)[0]) for each in ranks)


def shared_with(diagnosis: Diagnosis, finding: Finding) -> tuple[Finding, int] | None:
    """Return the finding that costs most of the same time as another one, and how much, ns; None
    where that is less than half of the other one's cost."""
    shared_ns = dict.fromkeys((each.type for each in diagnosis.findings), 0)
    for rank in dict.fromkeys(finding.interval_ranks):
        bounds_ns = _of_rank(finding, rank).ravel()
        for each in diagnosis.findings:
            if each is not finding:
                shared_ns[each.type] += int(covered_ns(_of_rank(each, rank), bounds_ns)[::2].sum())
    most = max(diagnosis.findings, key=lambda each: shared_ns[each.type])
    ns = shared_ns[most.type]
    return (most, ns) if ns >= _MOST_OF_IT * finding.cost_ns and ns else None


def _of_rank(finding: Finding, rank: int | None) -> Int64Array:
    """Return the intervals of a finding on one rank, int64 `[n, 2]`, sorted and disjoint."""
    ranks = finding.interval_ranks
    if rank not in ranks:
        return EMPTY
    first = ranks.index(rank)  # intervals stand by rank
    return finding.intervals[first : first + ranks.count(rank)]


def _cost_ns(finding: Finding, rank: int | None, bounds_ns: Int64Array) -> Int64Array:
    """Return the cost of a finding on one rank, int64 `[windows]`, ns."""
    return covered_ns(_of_rank(finding, rank), bounds_ns)


def likely_name(
    diagnosis: Diagnosis, types: Iterable[tuple[str, float]], start_ns: int, end_ns: int
) -> str:
    """Return the name of a part of the trace; see Note [Names].

    Args:
        diagnosis: The trace's diagnosis.
        types: Types with scores, as in `Segment.types`.
        start_ns: The start of the part.
        end_ns: The end of the part.
    """
    bounds_ns = np.array([start_ns, end_ns], dtype=np.int64)
    shares = {
        each.type: float(_share(diagnosis, each, bounds_ns)[0]) for each in diagnosis.findings
    }
    return _name_among([name for name, _ in types], shares, diagnosis)


def _name_among(likely: Sequence[str], shares: Mapping[str, float], diagnosis: Diagnosis) -> str:
    """Return the name to use for a window or part; see Note [Names].

    Args:
        likely: Its types, the likeliest first.
        shares: What each finding costs there, as a part of its time.
        diagnosis: The trace's diagnosis.
    """
    proved = next((name for name in likely if shares.get(name, 0.0) >= _COVERED), None)
    if proved is not None:
        return proved
    dearest = max(shares, key=lambda name: shares[name], default="")
    if dearest and shares[dearest] >= _MOST_OF_IT:
        return dearest
    # A type that is found elsewhere was checked here too.
    open_types = (name for name in likely if name not in shares)
    return next((name for name in open_types if rule_says(diagnosis, name) != "absent"), NONE)


def _share(
    diagnosis: Diagnosis, finding: Finding, bounds_ns: Int64Array
) -> npt.NDArray[np.float64]:
    """Return the cost of a finding as a part of the windows, the mean over the ranks, float64
    `[windows]`."""
    cost_ns = np.zeros(len(bounds_ns) - 1)
    for rank in set(finding.interval_ranks):
        cost_ns += _cost_ns(finding, rank, bounds_ns)
    length_ns = np.maximum(np.diff(bounds_ns), 1).astype(np.float64)
    share: npt.NDArray[np.float64] = cost_ns / (length_ns * len(diagnosis.trace.ranks))
    return share


def name_windows(diagnosis: Diagnosis) -> list[str]:
    """Return the name of each window, empty if it is not flagged. See Note [Names]."""
    windows = diagnosis.windows
    names = [""] * windows.count
    bounds_ns = np.asarray(windows.bounds_ns, dtype=np.int64)
    shares = {each.type: _share(diagnosis, each, bounds_ns) for each in diagnosis.findings}
    kinds, chances = list(windows.types), np.stack(list(windows.types.values()))
    for place in np.flatnonzero(windows.scores >= FLAGGED).tolist():
        order = np.argsort(-chances[:, place], kind="stable").tolist()
        likely = [kinds[kind] for kind in order if chances[kind, place] > 0]
        here = {name: float(share[place]) for name, share in shares.items()}
        names[place] = _name_among(likely, here, diagnosis)
    return names


def _costliest_segment(diagnosis: Diagnosis, finding: Finding) -> Segment | None:
    """Return the windows in which a finding costs most; None if it costs nothing in any. See
    Note [Which segments]."""
    bounds_ns = np.asarray(diagnosis.windows.bounds_ns, dtype=np.int64)
    ranks = dict.fromkeys(finding.interval_ranks)
    own_ns = {rank: _cost_ns(finding, rank, bounds_ns) for rank in ranks}
    if not any(ns.any() for ns in own_ns.values()):
        return None
    length_ns = np.maximum(np.diff(bounds_ns), 1)
    share = _share(diagnosis, finding, bounds_ns)
    dearest = max(ranks, key=lambda rank: int(own_ns[rank].max()))
    if share.max() < _COVERED:  # of one rank among many it may be all the same
        share = own_ns[dearest] / length_ns
    if share.max() >= _COVERED:
        inside = (share >= _COVERED).tolist()
        runs = [(first, last) for there, first, last in runs_of(inside) if there]
        first, last = max(runs, key=lambda run: float(share[run[0] : run[1] + 1].sum()))
        return segment_of(diagnosis, first, last, finding.type)
    window = int(share.argmax())
    begin_ns, end_ns = int(bounds_ns[window]), int(bounds_ns[window + 1])
    start_ns, stop_ns = _densest_part(np.clip(_of_rank(finding, dearest), begin_ns, end_ns))
    whole = segment_of(diagnosis, window, window, finding.type)
    inside = cost_inside(finding, start_ns, stop_ns) / max(
        1, cost_inside(finding, begin_ns, end_ns)
    )
    expected_ns = whole.expected_ns * inside
    return replace(whole, start_ns=start_ns, end_ns=stop_ns, expected_ns=expected_ns)


def _densest_part(intervals: Int64Array) -> tuple[int, int]:
    """Return the start and end, ns, of the intervals one behind the other that cover most beyond
    `_COVERED` of the time from the first to the last of them.

    Args:
        intervals: int64 `[n, 2]`, sorted and disjoint, with any length.
    """
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    best, start_ns, end_ns = 0.0, 0, 0
    excess, begin_ns, before_ns = 0.0, 0, 0
    for first_ns, last_ns in intervals.tolist():
        excess -= _COVERED * (first_ns - before_ns)
        if excess <= 0:
            excess, begin_ns = 0.0, first_ns
        excess += (1 - _COVERED) * (last_ns - first_ns)
        before_ns = last_ns
        if excess > best:
            best, start_ns, end_ns = excess, begin_ns, last_ns
    return start_ns, end_ns


def runs_of(values: Iterable[Value]) -> Iterator[tuple[Value, int, int]]:
    """Yield runs of equal values: the value, its first and its last place."""
    place = 0
    for value, run in groupby(values):
        first, place = place, place + len(list(run))
        yield value, first, place - 1


def finding_of(diagnosis: Diagnosis, name: str) -> Finding | None:
    """Return the finding of a type; None where it is not present, and for "none"."""
    return next((finding for finding in diagnosis.findings if finding.type == name), None)


def segment_of(diagnosis: Diagnosis, first: int, last: int, name: str) -> Segment:
    """Return the segment of some windows, both ends included, with the name of a type."""
    windows = diagnosis.windows
    start_ns, end_ns = windows.bounds_ns[first], windows.bounds_ns[last + 1]
    finding = finding_of(diagnosis, name)
    score = float(windows.scores[first : last + 1].mean())
    if finding is None:
        ranks = diagnosis.trace.ranks
        idle_ns = sum(idle_inside(rank, start_ns, end_ns) for rank in ranks)
        expected_ns = score * (idle_ns // max(1, len(ranks)))
    elif finding.saving is None or not finding.cost_ns:
        expected_ns = 0.0
    else:
        steps = diagnosis.step.steps if finding.saving.per_step and diagnosis.step else 1
        inside = cost_inside(finding, start_ns, end_ns) / finding.cost_ns
        expected_ns = finding.saving.believed_ns * steps * inside
    return Segment(
        start_ns=start_ns,
        end_ns=end_ns,
        grid=windows.count,
        first=first,
        last=last,
        type=name,
        score=score,
        types=likely_types(windows, first, last),
        finding=finding,
        expected_ns=expected_ns,
    )


def idle_inside(rank: RankTrace, start_ns: int, end_ns: int) -> int:
    """Return the time in which a rank's GPU idles, of a part of its profiled time."""
    idle = rank.idle(rank.tree.profiled)
    spans: Array = np.stack([idle.start_ns, idle.end_ns], axis=1).astype(np.int64)
    return int(covered_ns(spans, np.array([start_ns, end_ns], dtype=np.int64))[0])
