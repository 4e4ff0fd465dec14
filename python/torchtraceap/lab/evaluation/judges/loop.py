"""What a judge's doubts change: windows told before and after doubted segments are scored again.

Note [Ways of telling]: the same traces told four ways. "scorer": the windows that the scorer flags,
each called by its likeliest type. "judged": the segments of an explanation, named by the judge.
"dropped at once": the same without those that it doubts, as if its word alone counted. "loop":
those that stay once other grids were asked, with their last names.

Note [Not labelled]: labels of generated traces count what was put in, and not what the run that it
was put into loses by itself. So windows that are negative, and told for a type that was there
before, are neither right nor wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.explanation.explain import judge_segments
from torchtraceap.explanation.segments import FLAGGED, NONE
from torchtraceap.lab.evaluation.judges.naming import Named, window_names

if TYPE_CHECKING:
    from torchtraceap.core.results import Windows
    from torchtraceap.explanation.explain import Judgments
    from torchtraceap.explanation.segments import Segment
    from torchtraceap.lab.evaluation.judges.labelled import JudgeOf, Labelled

__all__ = ["WAYS", "Grid", "LoopCounts", "Told", "count_loop"]

WAYS = ("scorer", "judged", "dropped at once", "loop")
"""See Note [Ways of telling]."""


@dataclass(frozen=True, slots=True)
class Told(Result):
    """Windows that one way tells, without those that are neither positive nor negative."""

    way: str
    """One of `WAYS`."""
    unlabelled: int
    """See Note [Not labelled]; none of them counts below."""
    windows: int
    right: int
    """Of them positive."""
    positive: int
    """Windows that should be told."""
    typed: int
    """Of `right`: those whose type is known."""
    named_right: int
    """Of `typed`."""
    unnamed: int
    """Of `typed`."""

    @property
    def precision(self) -> float | None:
        return _share(self.right, self.windows)

    @property
    def recall(self) -> float | None:
        return _share(self.right, self.positive)

    @property
    def type_accuracy(self) -> float | None:
        return _share(self.named_right, self.typed)

    def to_dict(self) -> dict[str, Any]:
        shares = {
            "precision": self.precision,
            "recall": self.recall,
            "type_accuracy": self.type_accuracy,
        }
        return Result.to_dict(self) | shares


def _share(part: int, whole: int) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Grid(Result):
    """Another number of windows in which doubted segments were scored."""

    windows: int
    asked: int
    """Segments."""
    against: int
    """Of them not flagged on it."""


@dataclass(frozen=True, slots=True)
class LoopCounts(Result):
    """All that is counted, over the traces of a data set."""

    judge: str
    asked_by: str
    """Who doubts: "rule" or "model"."""
    windows: int
    """Of each trace."""
    traces: int
    segments: int
    """As they are found."""
    doubted: int
    dropped: int
    """Of `doubted`."""
    dropped_right: int
    """Of `dropped`: those without a positive window."""
    dropped_windows: int
    """That no segment tells any more, without those that are neither."""
    dropped_windows_right: int
    """Of them negative."""
    renamed: int
    """Doubted segments that stay with another name."""
    renamed_right: int
    """Of them: those whose new name is the type that most of their positive windows have, or "none"
    without such a window."""
    renamed_wrong: int
    """Of them: those whose old name was."""
    grids: tuple[Grid, ...]
    told: tuple[Told, ...]
    """In the order of `WAYS`."""
    problems: tuple[str, ...]
    """Segments that a language model could not judge, or against the rules' word."""

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "torchtraceap.judged/1", **Result.to_dict(self)}


def count_loop(traces: Iterable[Labelled], judge_of: JudgeOf, name: str) -> LoopCounts:
    """Judges traces as explanations are, with the loop, and counts against their labels.

    Args:
        traces: Labelled ones.
        judge_of: The judge of a diagnosis.
        name: Of the judge.
    """
    tally = _Tally()
    with progress_stage("judging labelled traces"):
        for labelled in traces:
            judge = judge_of(labelled.diagnosis)
            tally.add(labelled, judge_segments(labelled.diagnosis, judge), judge.asked_by)
    return tally.counts(name)


class _Tally:
    """Sums over traces."""

    def __init__(self) -> None:
        self._asked_by = "rule"
        self._windows = 0
        self._sums = Counter[str]()
        self._told = {way: Counter[str]() for way in WAYS}
        self._asked, self._against = Counter[int](), Counter[int]()
        self._problems: list[str] = []

    def add(self, labelled: Labelled, judging: Judgments, asked_by: str) -> None:
        self._asked_by, self._windows = asked_by, labelled.diagnosis.windows.count
        self._sums.update(traces=1, segments=len(judging.first), doubted=len(judging.doubts))
        told = _told(labelled.diagnosis.windows, judging)
        for way, named in told.items():
            self._told[way].update(_windows(labelled, named))
        for doubt in judging.doubts.values():
            for grid, score in zip(doubt.grids[1:], doubt.scores[1:], strict=True):
                self._asked[grid] += 1
                self._against[grid] += score < FLAGGED
        self._sums.update(_dropped(labelled, judging, told))
        self._sums.update(_renamed(labelled, judging))
        self._problems += [f"{labelled.id}: {problem}" for problem in judging.problems]

    def counts(self, name: str) -> LoopCounts:
        names = ("traces", "segments", "doubted", "dropped", "dropped_right", "dropped_windows",
                 "dropped_windows_right", "renamed", "renamed_right", "renamed_wrong")  # fmt: skip
        told = ("unlabelled", "windows", "right", "positive", "typed", "named_right", "unnamed")
        return LoopCounts(
            judge=name,
            asked_by=self._asked_by,
            windows=self._windows,
            grids=tuple(
                Grid(grid, asked, self._against[grid])
                for grid, asked in sorted(self._asked.items())
            ),
            told=tuple(Told(way, **{each: self._told[way][each] for each in told}) for way in WAYS),
            problems=tuple(self._problems),
            **{each: self._sums[each] for each in names},
        )


def _told(windows: Windows, judging: Judgments) -> dict[str, Named]:
    """By `WAYS`."""
    first = list(enumerate(judging.first))
    ways = {
        "judged": [each for _, each in first],
        "dropped at once": [each for place, each in first if place not in judging.doubts],
        "loop": list(judging.final.values()),
    }
    told = {"scorer": _by_scorer(windows)}
    for way, of in ways.items():
        verdicts = [(each.segment, each.verdict.primary) for each in of]
        told[way] = window_names(windows.count, verdicts)
    return told


def _by_scorer(windows: Windows) -> Named:
    """Each flagged window by its likeliest type."""
    kinds = list(windows.types)
    inside = windows.scores >= FLAGGED
    shares = np.stack([windows.types[kind] for kind in kinds], axis=1)
    names = [
        (kinds[int(row.argmax())] if row.any() else NONE) if there else ""
        for there, row in zip(inside.tolist(), shares, strict=True)
    ]
    return Named(inside, tuple(names))


def _windows(labelled: Labelled, named: Named) -> dict[str, int]:
    """Counts of `Told`."""
    right = named.inside & labelled.positive
    told = named.inside & ~labelled.ignore
    was_there = np.array([name in labelled.already for name in named.names], dtype=np.bool_)
    unlabelled = told & ~labelled.positive & was_there
    truth = labelled.type_names
    typed = [place for place in np.flatnonzero(right).tolist() if truth[place]]
    return {
        "unlabelled": int(unlabelled.sum()),
        "windows": int((told & ~unlabelled).sum()),
        "right": int(right.sum()),
        "positive": int(labelled.positive.sum()),
        "typed": len(typed),
        "named_right": sum(named.names[place] == truth[place] for place in typed),
        "unnamed": sum(named.names[place] == NONE for place in typed),
    }


def _dropped(labelled: Labelled, judging: Judgments, told: Mapping[str, Named]) -> dict[str, int]:
    gone = [each.segment for place, each in enumerate(judging.first) if place not in judging.final]
    windows = told["judged"].inside & ~told["loop"].inside & ~labelled.ignore
    return {
        "dropped": len(gone),
        "dropped_right": sum(not labelled.positive[_inside(segment)].any() for segment in gone),
        "dropped_windows": int(windows.sum()),
        "dropped_windows_right": int((windows & ~labelled.positive).sum()),
    }


def _renamed(labelled: Labelled, judging: Judgments) -> dict[str, int]:
    found = Counter[str]()
    for place in judging.doubts:
        if place not in judging.final:
            continue
        old, new = (of[place].verdict.primary for of in (judging.first, judging.final))
        if old != new:
            truth = _type_of(labelled, _inside(judging.first[place].segment))
            found.update(
                renamed=1, renamed_right=int(new == truth), renamed_wrong=int(old == truth)
            )
    return dict(found)


def _inside(segment: Segment) -> slice:
    return slice(segment.first, segment.last + 1)


def _type_of(labelled: Labelled, windows: slice) -> str | None:
    """The type that most of these windows have; "none" where none of them is positive; None where
    it is not known."""
    there = Counter(name for name in labelled.type_names[windows] if name)
    if there:
        return there.most_common(1)[0][0]
    return None if labelled.positive[windows].any() else NONE
