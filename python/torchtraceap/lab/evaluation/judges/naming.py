"""What a judge names windows, as documents of scores that `torchtraceap evaluate` reads.

Note [Given a true window]: as in the paper's Table 4, the judge is told which windows lose time and
not why. Adjacent positive windows of one type are one segment, which is called as segments that are
found are (Note [Names] in segments.py). All other windows have the scorer's score and no name, so
that the row of such a document has the scorer's areas under curves, and its own accuracy of types.

Note [As found]: the segments that an explanation begins with. They overlap: what is found over most
of a trace says little of one window, so a window takes the name of the shortest segment over it. A
window scores 1 in a segment and 0 elsewhere: what is end to end about such a document is which
windows are told, and what they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.progress import progress_stage
from torchtraceap.errors import TraceError
from torchtraceap.explanation.build_pack import build_pack
from torchtraceap.explanation.segments import (
    NONE,
    find_segments,
    likely_name,
    likely_types,
    runs_of,
    segment_of,
)
from torchtraceap.lab.evaluation.baselines.given import SCORES

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.segments import Segment
    from torchtraceap.lab.evaluation.judges.labelled import JudgeOf, Labelled

__all__ = ["Answers", "Named", "found_segments", "named", "scores_document", "true_segments"]

Json = dict[str, Any]


@dataclass
class Answers:
    """How often a judge was asked, how often it had no answer that holds, and why the last time."""

    asked: int = 0
    failed: int = 0
    failure: TraceError | None = None


@dataclass(frozen=True)
class Named:
    """What windows of a trace are called."""

    inside: Array
    """bool `[W]`: in a segment."""
    names: tuple[str, ...]
    """`[W]`: a type, "none", or "" outside of all segments."""


def true_segments(labelled: Labelled) -> Iterator[Segment]:
    """See Note [Given a true window]."""
    diagnosis = labelled.diagnosis
    bounds_ns = diagnosis.windows.bounds_ns
    for code, first, last in runs_of(labelled.types.tolist()):
        if code >= 0:
            likely = likely_types(diagnosis.windows, first, last)
            name = likely_name(diagnosis, likely, bounds_ns[first], bounds_ns[last + 1])
            yield segment_of(diagnosis, first, last, name)


def found_segments(labelled: Labelled) -> Sequence[Segment]:
    """See Note [As found]."""
    return find_segments(labelled.diagnosis)


def named(
    diagnosis: Diagnosis, segments: Iterable[Segment], judge_of: JudgeOf, answers: Answers
) -> Named:
    """What a judge calls windows of a trace.

    Args:
        diagnosis: Of the trace.
        segments: Of it, in the order in which they are told.
        judge_of: The judge of a diagnosis.
        answers: Are counted there. Where there is none that holds, a segment has no name.
    """
    judge = judge_of(diagnosis)
    verdicts = []
    for segment in segments:
        pack = build_pack(diagnosis, segment, tables=judge.reads_tables)
        answers.asked += 1
        try:
            name = judge.judge(segment, pack, settled=False).primary
        except TraceError as error:
            answers.failed += 1
            answers.failure = error
            name = NONE
        verdicts.append((segment, name))
    return window_names(diagnosis.windows.count, verdicts)


def window_names(count: int, verdicts: Iterable[tuple[Segment, str]]) -> Named:
    """Of each window the name of the shortest of its segments that have one; of equally long ones,
    the first. See Note [As found]."""
    inside = np.zeros(count, dtype=np.bool_)
    names = [""] * count
    for segment, name in sorted(verdicts, key=lambda each: each[0].last - each[0].first):
        inside[segment.first : segment.last + 1] = True
        for window in range(segment.first, segment.last + 1):
            if names[window] in ("", NONE):
                names[window] = name
    return Named(inside, tuple(names))


def scores_document(
    traces: Iterable[Labelled], judge_of: JudgeOf, name: str, *, found: bool = False
) -> Json:
    """A document of `torchtraceap score --json` with what a judge names.

    Args:
        traces: Labelled ones.
        judge_of: The judge of a diagnosis.
        name: Of the judge; that of the row in tables.
        found: In segments as they are found, instead of true ones.

    Returns:
        With a further entry "judged" that counts what was asked and had no answer.

    Raises:
        TraceError: That of the last answer, where none holds: a judge that can't be asked has no
            row in a table.
    """
    answers, entries, scorers = Answers(), [], dict[str, None]()
    with progress_stage("judging segments of labelled traces"):
        for labelled in traces:
            segments = found_segments(labelled) if found else true_segments(labelled)
            said = named(labelled.diagnosis, segments, judge_of, answers)
            scores = said.inside if found else labelled.diagnosis.windows.scores
            entries.append(entry(labelled, scores, said.names))
            scorers[labelled.diagnosis.scorer] = None
    if answers.failure is not None and answers.failed == answers.asked:
        raise answers.failure
    return {
        "schema": SCORES,
        "scorer": f"{', '.join(scorers)}; {name}",
        "name": f"{name}, as found" if found else name,
        "labels": "window",
        "judged": {
            "segments": answers.asked,
            "failed": answers.failed,
            "failure": str(answers.failure) if answers.failure else None,
        },
        "traces": entries,
    }


def entry(labelled: Labelled, scores: Array, names: Sequence[str] = ()) -> Json:
    """Of a trace in a document of scores: a window has a share of 1 of the type that it is called,
    and of no other one."""
    kinds = sorted(set(names) - {"", NONE})
    return {
        "path": labelled.id,
        "bounds_ns": list(labelled.diagnosis.windows.bounds_ns),
        "scores": np.asarray(scores, dtype=np.float64).tolist(),
        "types": {kind: [float(name == kind) for name in names] for kind in kinds},
    }
