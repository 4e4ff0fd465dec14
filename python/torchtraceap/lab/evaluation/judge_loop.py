"""Count what a judge's doubts change: windows told before and after doubted segments are scored
again.

Note [Ways of telling]: the same traces told four ways. "scorer": the windows that the scorer flags,
each called by its likeliest type. "judged": the segments of an explanation, named by the judge.
"dropped at once": the same without those that it doubts, as if its word alone counted. "loop":
those that stay once other grids were asked, with their last names.

Note [Not labeled]: labels of generated traces count what was put in, and not what the run that it
was put into loses by itself. So windows that are negative, and told for a type that was there
before, are neither right nor wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core import Result, dataclass, progress_stage
from torchtraceap.explanation import FLAGGED, NONE, judge_segments
from torchtraceap.lab.evaluation.judged_traces import WindowNames, window_names

if TYPE_CHECKING:
    from torchtraceap.explanation import Judgments
    from torchtraceap.lab.evaluation.judged_traces import JudgeOf, LabeledTrace

__all__ = ["WAYS", "Grid", "LoopCounts", "Told", "count_loop"]

WAYS = ("scorer", "judged", "dropped at once", "loop")
"""See Note [Ways of telling]."""


@dataclass(frozen=True, slots=True)
class Told(Result):
    """Windows that one way tells, without those that are neither positive nor negative."""

    way: str
    """One of `WAYS`."""
    unlabelled: int
    """See Note [Not labeled]; none of them counts below."""
    windows: int
    right: int
    """Positive ones of them."""
    positive: int
    """Windows that should be told."""
    typed: int
    """The part of `right` whose type is known."""
    named_right: int
    """The part of `typed` that has the right type."""
    unnamed: int
    """The part of `typed` that has no name."""

    @property
    def precision(self) -> float | None:
        return self.right / self.windows if self.windows else None

    @property
    def recall(self) -> float | None:
        return self.right / self.positive if self.positive else None

    @property
    def type_accuracy(self) -> float | None:
        return self.named_right / self.typed if self.typed else None

    def to_dict(self) -> dict[str, Any]:
        shares = {
            "precision": self.precision,
            "recall": self.recall,
            "type_accuracy": self.type_accuracy,
        }
        return Result.to_dict(self) | shares


@dataclass(frozen=True, slots=True)
class Grid(Result):
    """Another number of windows in which doubted segments were scored."""

    windows: int
    asked: int
    """Segments."""
    against: int
    """Segments that are not flagged on it."""


@dataclass(frozen=True, slots=True)
class LoopCounts(Result):
    """All that is counted, over the traces of a data set."""

    judge: str
    asked_by: str
    """The one that doubts: "rule" or "model"."""
    windows: int
    """Windows of each trace."""
    traces: int
    segments: int
    """Segments as they are found."""
    doubted: int
    dropped: int
    """Segments that no longer stand."""
    dropped_right: int
    """Dropped segments without a positive window."""
    dropped_windows: int
    """Windows that no segment tells any more, without those that are neither."""
    dropped_windows_right: int
    """Negative ones of them."""
    renamed: int
    """Doubted segments that stay with another name."""
    renamed_right: int
    """Renamed segments whose new name is the type that most of their positive windows have, or
    "none" without such a window."""
    renamed_wrong: int
    """Renamed segments whose old name was."""
    grids: tuple[Grid, ...]
    told: tuple[Told, ...]
    """Windows told, in the order of `WAYS`."""
    problems: tuple[str, ...]
    """Segments that a language model could not judge, or against the rules' word."""

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "torchtraceap.judged/1", **Result.to_dict(self)}


def count_loop(traces: Iterable[LabeledTrace], judge_of: JudgeOf, name: str) -> LoopCounts:
    """Judge traces as explanations are, with the loop, and count against their labels.

    Args:
        traces: Labeled ones.
        judge_of: The judge of a diagnosis.
        name: The name of the judge.
    """
    asked_by, windows = "rule", 0
    sums = Counter[str]()
    told = {way: Counter[str]() for way in WAYS}
    asked, against = Counter[int](), Counter[int]()
    problems: list[str] = []
    with progress_stage("judging labeled traces"):
        for labeled in traces:
            judge = judge_of(labeled.diagnosis)
            judging = judge_segments(labeled.diagnosis, judge)
            asked_by, windows = judge.asked_by, labeled.diagnosis.windows.count
            sums.update(traces=1, segments=len(judging.first), doubted=len(judging.doubts))
            names = _names_by_way(labeled, judging)
            for way, named in names.items():
                told[way].update(_told_counts(labeled, named))
            for doubt in judging.doubts.values():
                for grid, score in zip(doubt.grids[1:], doubt.scores[1:], strict=True):
                    asked[grid] += 1
                    against[grid] += score < FLAGGED
            gone = names["judged"].inside & ~names["loop"].inside & ~labeled.ignore
            sums["dropped_windows"] += int(gone.sum())
            sums["dropped_windows_right"] += int((gone & ~labeled.positive).sum())
            _count_segments(labeled, judging, sums)
            problems += [f"{labeled.id}: {problem}" for problem in judging.problems]
    of_loop = ("traces", "segments", "doubted", "dropped", "dropped_right", "dropped_windows",
               "dropped_windows_right", "renamed", "renamed_right", "renamed_wrong")  # fmt: skip
    of_way = ("unlabelled", "windows", "right", "positive", "typed", "named_right", "unnamed")
    return LoopCounts(
        judge=name,
        asked_by=asked_by,
        windows=windows,
        grids=tuple(Grid(grid, count, against[grid]) for grid, count in sorted(asked.items())),
        told=tuple(Told(way, **{each: told[way][each] for each in of_way}) for way in WAYS),
        problems=tuple(problems),
        **{each: sums[each] for each in of_loop},
    )


def _names_by_way(labeled: LabeledTrace, judging: Judgments) -> dict[str, WindowNames]:
    """Return the names of windows by `WAYS`."""
    windows = labeled.diagnosis.windows
    kinds = list(windows.types)
    flagged = windows.scores >= FLAGGED
    shares = np.stack([windows.types[kind] for kind in kinds], axis=1)
    likeliest = [
        (kinds[int(row.argmax())] if row.any() else NONE) if there else ""
        for there, row in zip(flagged.tolist(), shares, strict=True)
    ]
    first = list(enumerate(judging.first))
    ways = {
        "judged": [each for _, each in first],
        "dropped at once": [each for place, each in first if place not in judging.doubts],
        "loop": list(judging.final.values()),
    }
    names = {"scorer": WindowNames(flagged, tuple(likeliest))}
    for way, of in ways.items():
        verdicts = [(each.segment, each.verdict.primary) for each in of]
        names[way] = window_names(windows.count, verdicts)
    return names


def _told_counts(labeled: LabeledTrace, named: WindowNames) -> dict[str, int]:
    """Return the counts of `Told` for one trace."""
    right = named.inside & labeled.positive
    told = named.inside & ~labeled.ignore
    was_there = np.array([name in labeled.already for name in named.names], dtype=np.bool_)
    unlabelled = told & ~labeled.positive & was_there
    truth = labeled.type_names
    typed = [place for place in np.flatnonzero(right).tolist() if truth[place]]
    return {
        "unlabelled": int(unlabelled.sum()),
        "windows": int((told & ~unlabelled).sum()),
        "right": int(right.sum()),
        "positive": int(labeled.positive.sum()),
        "typed": len(typed),
        "named_right": sum(named.names[place] == truth[place] for place in typed),
        "unnamed": sum(named.names[place] == NONE for place in typed),
    }


def _count_segments(labeled: LabeledTrace, judging: Judgments, sums: Counter[str]) -> None:
    """Count the segments of a trace that were dropped or renamed."""
    for place, judged in enumerate(judging.first):
        # The leading place alone is doubted.
        windows = slice(judged.segment.first, judged.segment.last + 1)
        is_positive = bool(labeled.positive[windows].any())
        if place not in judging.final:
            sums.update(dropped=1, dropped_right=int(not is_positive))
        elif place in judging.doubts:
            old, new = judged.verdict.primary, judging.final[place].verdict.primary
            if old == new:
                continue
            # The type that most of the windows have; None where it is not known.
            types = Counter(name for name in labeled.type_names[windows] if name)
            truth = None if is_positive else NONE
            if types:
                truth = types.most_common(1)[0][0]
            sums.update(renamed=1, renamed_right=int(new == truth), renamed_wrong=int(old == truth))
