"""Score doubted segments again on other grids, deterministically.

After Section 5.6 of the paper, in which a language model may ask for a window to be looked at in
another granularity. Here the grid that the judge suggests is asked, or the next finer one, then the
next coarser one, until two of the grids agree, that on which the segment was found included. Where
two do not flag it, it goes, if the judge may drop it; else it has the types of all grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from torchtraceap.core.results import Windows
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.diagnosis.scoring import load_scorer
from torchtraceap.explanation.explanation import Round
from torchtraceap.explanation.segments import (
    FLAGGED,
    Segment,
    finding_of,
    likely_name,
    likely_types,
)
from torchtraceap.explanation.verdict import GRIDS

__all__ = ["MOST_ROUNDS", "Doubt", "other_grids", "resolve_doubts"]

MOST_ROUNDS = 2
_ENOUGH = 2
"""Grids that have to agree."""


class Doubt:
    """A segment that a judge doubts, and what grids say of it."""

    def __init__(
        self, segment: Segment, suggested: int | None = None, *, drops: bool = True
    ) -> None:
        """
        Args:
            segment: The doubted segment.
            suggested: A grid that the judge would like to see.
            drops: It goes if grids do not flag it; one that a rule proves stays all the same.
        """
        self.segment = segment
        self._drops = drops and segment.finding is None
        self.to_ask = list(other_grids(segment.grid, suggested))
        self.grids = [segment.grid]
        self.scores = [segment.score]
        """Scores on each of `grids`."""
        self._types = [dict(segment.types)]

    @property
    def settled(self) -> bool:
        return self.holds or self._votes(flagged=False) >= _ENOUGH

    @property
    def holds(self) -> bool:
        """True if it stays flagged."""
        return self._votes(flagged=True) >= _ENOUGH

    @property
    def gone(self) -> bool:
        """True if it is no segment any more."""
        return self._drops and self.settled and not self.holds

    def ask(self, diagnosis: Diagnosis) -> None:
        """Score the segment again on the next grid."""
        grid = self.to_ask.pop(0)
        windows = windows_of(diagnosis, grid)
        # The windows that share time with the segment, weighed by that time.
        start_ns, end_ns, most = self.segment.start_ns, self.segment.end_ns, windows.count - 1
        bounds_ns = np.asarray(windows.bounds_ns, dtype=np.int64)
        begin = int(np.searchsorted(bounds_ns, start_ns, side="right")) - 1
        end = int(np.searchsorted(bounds_ns, end_ns, side="left")) - 1
        first, last = min(max(begin, 0), most), min(max(end, begin, 0), most)
        inside_ns = bounds_ns[first : last + 2].astype(np.float64)
        weights = np.diff(np.clip(inside_ns, start_ns, end_ns))
        scores = windows.scores[first : last + 1]
        self.grids.append(grid)
        self.scores.append(float(np.average(scores, weights=weights if weights.any() else None)))
        self._types.append(dict(likely_types(windows, first, last)))

    def typed(self, diagnosis: Diagnosis) -> Segment:
        """Return the segment by the name that the types of all grids give it, with the finding of
        that name. What a rule proves of it stays."""
        if self.segment.finding:
            return self.segment
        names = dict.fromkeys(name for each in self._types for name in each)
        count = len(self._types)
        means = {name: sum(each.get(name, 0.0) for each in self._types) / count for name in names}
        types = tuple(sorted(means.items(), key=lambda pair: (-pair[1], pair[0])))
        name = likely_name(diagnosis, types, self.segment.start_ns, self.segment.end_ns)
        finding = finding_of(diagnosis, name)
        return replace(self.segment, type=name, types=types, finding=finding)

    def _votes(self, *, flagged: bool) -> int:
        return sum((score >= FLAGGED) == flagged for score in self.scores)


def other_grids(grid: int, suggested: int | None = None) -> tuple[int, ...]:
    """Return the grids to ask: the one that a judge suggests, the next finer, the next coarser."""
    finer = [each for each in GRIDS if each > grid]
    coarser = [each for each in reversed(GRIDS) if each < grid]
    order = [*([suggested] if suggested else []), *finer[:1], *coarser[:1], *finer, *coarser]
    return tuple(dict.fromkeys(each for each in order if each != grid))[:MOST_ROUNDS]


def resolve_doubts(
    diagnosis: Diagnosis, doubts: Sequence[Doubt], asked_by: str, others: int
) -> list[Round]:
    """Ask other grids about each segment until two agree.

    Args:
        diagnosis: The trace's diagnosis.
        doubts: The doubts, which this changes.
        asked_by: The value of `Round.asked_by`.
        others: Segments that nobody doubts.
    """
    rounds = []
    for _ in range(MOST_ROUNDS):
        open_doubts = [doubt for doubt in doubts if not doubt.settled and doubt.to_ask]
        open_doubts.sort(key=lambda doubt: doubt.to_ask[0])
        for grid, asked in groupby(open_doubts, key=lambda doubt: doubt.to_ask[0]):
            before = _standing_types(diagnosis, doubts)
            for doubt in list(asked):
                doubt.ask(diagnosis)
            after = _standing_types(diagnosis, doubts)
            rounds.append(Round(grid, asked_by, others + len(after), changed=after != before))
    return rounds


def _standing_types(diagnosis: Diagnosis, doubts: Sequence[Doubt]) -> list[str]:
    """Return the names of those that have not gone."""
    return [doubt.typed(diagnosis).type for doubt in doubts if not doubt.gone]


def windows_of(diagnosis: Diagnosis, grid: int) -> Windows:
    """Return scores by the scorer of the diagnosis; computed once for each grid."""
    trace = diagnosis.trace
    scorer = diagnosis.scorer.split()[0]
    found: Windows = trace.cached(
        ("scores of windows", scorer, grid), lambda: load_scorer(scorer).score(trace, grid)
    )
    return found
