"""Segments: adjacent windows that a scorer flags for one type, and where findings cost most.

Note [Which segments]: a window is flagged if its score is one half or more, what calibration makes
of scores (docs/scorers.md). Adjacent flagged windows of the same name are one segment. Each finding
has a segment of its own where it costs most: the run of windows of which its cost covers a tenth,
or half as much as of the dearest window. Flagged windows of its type inside that run belong to it.
Of more segments than are told, the dearest of each finding stay first, in the order of the
diagnosis; then come others by what a fix is expected to save there.

Note [Names]: scorers guess, rules prove. A part is called by the likeliest type whose finding costs
a tenth of it; without one, by the likeliest that the rules do not exclude, as they lacked signals
of it; else "none". benchmarks/detectors/judged.py compares this with other ways to name
(docs/evaluation.md#judges).

Note [Expected saving]: a finding's saving, as the diagnosis believes it, falls to its segments by
the part of its cost in each. What no finding explains is bounded by the time in which a GPU idles
there, and counts with its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Finding, Int64Array, Windows
from torchtraceap.diagnosis.result import Diagnosis

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
    "likely_name",
    "likely_types",
    "name_windows",
    "rule_says",
    "runs_of",
    "segment_of",
]

Value = TypeVar("Value")
NONE = "none"
FLAGGED = 0.5
MOST_SEGMENTS = 10
_COVERED = 0.1
"""Part of a window from which it counts as one with the fault, as in the labels of data sets."""


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

    def lies_in(self, other: Segment) -> bool:
        """Return True if this is a part of the other segment, and of the same type."""
        return self.type == other.type and other.first <= self.first and self.last <= other.last


def find_segments(diagnosis: Diagnosis) -> list[Segment]:
    """Return at most `MOST_SEGMENTS` segments, the most important first. See Note [Which
    segments]."""
    dearest = (_costliest_segment(diagnosis, finding) for finding in diagnosis.findings)
    located = [segment for segment in dearest if segment]
    flagged = (
        segment_of(diagnosis, first, last, name)
        for name, first, last in runs_of(name_windows(diagnosis))
        if name
    )
    segments = [*located, *(each for each in flagged if not any(map(each.lies_in, located)))]
    places = {finding.type: place for place, finding in enumerate(diagnosis.findings)}
    leading: dict[str, Segment] = {}
    for segment in segments:
        best = leading.get(segment.type)
        if best is None or segment.expected_ns > best.expected_ns:
            leading[segment.type] = segment

    def importance(segment: Segment) -> tuple[int, float, int]:
        place = places.get(segment.type, len(places))
        is_leading = leading[segment.type] is segment
        return place if is_leading else len(places) + 1, -segment.expected_ns, segment.start_ns

    return sorted(segments, key=importance)[:MOST_SEGMENTS]


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


def _cost_ns(finding: Finding, rank: int | None, bounds_ns: Int64Array) -> Int64Array:
    """Return the cost of a finding on one rank, int64 `[windows]`, ns."""
    ranks = finding.interval_ranks
    if rank not in ranks:
        return np.zeros(len(bounds_ns) - 1, dtype=np.int64)
    first = ranks.index(rank)  # intervals stand by rank, sorted and disjoint
    return covered_ns(finding.intervals[first : first + ranks.count(rank)], bounds_ns)


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
    covering = {
        each.type
        for each in diagnosis.findings
        if _share(diagnosis, each, bounds_ns)[0] >= _COVERED
    }
    return _name_among([name for name, _ in types], covering, diagnosis)


def _name_among(likely: Sequence[str], covering: Set[str], diagnosis: Diagnosis) -> str:
    """Return the name to use for a window or part, given its types, the likeliest first."""
    proved = (name for name in likely if name in covering)
    possible = (name for name in likely if rule_says(diagnosis, name) != "absent")
    return next(proved, None) or next(possible, NONE)


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
        covering = {name for name, share in shares.items() if share[place] >= _COVERED}
        names[place] = _name_among(likely, covering, diagnosis)
    return names


def _costliest_segment(diagnosis: Diagnosis, finding: Finding) -> Segment | None:
    """Return the run of windows in which a finding costs most; None if it costs nothing in any."""
    bounds_ns = np.asarray(diagnosis.windows.bounds_ns, dtype=np.int64)
    share = _share(diagnosis, finding, bounds_ns)
    if not share.any():
        return None
    inside = share >= min(_COVERED, 0.5 * float(share.max()))
    runs = [(first, last) for there, first, last in runs_of(inside.tolist()) if there]
    first, last = max(runs, key=lambda run: float(share[run[0] : run[1] + 1].sum()))
    return segment_of(diagnosis, first, last, finding.type)


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
