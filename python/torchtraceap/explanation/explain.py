"""Build an explanation: segments, a pack and a verdict for each, and doubts scored again.

Note [Whose word counts]: what a segment is called is the judge's verdict. A rule's proof is not
taken back by a language model: the segment stays, with what the model says of it, and `problems`
says what the rule found. Advice, diffs and checks come from the knowledge base, whoever judged: a
model names an entry and never writes code.

Note [Doubt]: what a model takes for misclassified is dropped where other grids do not flag it
either, and its further places stay. The offline judge doubts parts that it has no name for, and is
given the types of other grids. It drops nothing: of the windows that the vote of grids would have
dropped for it, nearly all lost time (docs/evaluation.md#judges).

`torchtraceap explain`, `diagnosis.explain` and `.ask` call `explain` and `answer`. Without settings
of a model nothing is asked of anybody, and no package for it is imported.
"""

from __future__ import annotations

import difflib
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchtraceap import _core
from torchtraceap.core.formatting import format_ns, one_line
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.errors import TraceError
from torchtraceap.explanation.explanation import (
    Change,
    DryRun,
    ExplainedSegment,
    Explanation,
    Response,
    Round,
    Where,
)
from torchtraceap.explanation.language_model import AnswerError, ModelError, RefusalError
from torchtraceap.explanation.offline_judge import OfflineJudge, advice_without_finding
from torchtraceap.explanation.pack_builder import build_pack, rank_of
from torchtraceap.explanation.rescore import Doubt, resolve_doubts
from torchtraceap.explanation.segments import NONE, Segment, find_segments, largest_part
from torchtraceap.explanation.verdict import check_verdict, find_citations
from torchtraceap.tables.frames import Frame, frame_of

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.completions import Progress
    from torchtraceap.explanation.pack import Pack
    from torchtraceap.explanation.settings import ModelSettings
    from torchtraceap.explanation.verdict import Verdict
    from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "DOUBT",
    "Judge",
    "JudgedSegment",
    "Judgments",
    "answer",
    "build_explanation",
    "dry_run",
    "explain",
    "judge_segments",
]

DOUBT = 0.6
"""Confidence from which a "misclassified" verdict has its segment scored again."""
_MOST_FRAMES = 3
_MOST_GAPS = 64
"""Longest idle pieces whose host events are looked at for frames."""
_MOST_INSIDE = 8
_NO_FRAMES = (
    "The trace has no Python frames here: record with with_stack=True to see file, line and "
    "function."
)
_UNKNOWN_CHECK = "Record the same steps again: `torchtraceap explain` no longer lists this part."


class Judge(Protocol):
    """Names what a segment is."""

    @property
    def asked_by(self) -> str:
        """Party that asks for another scoring: "rule" or "model"."""

    @property
    def reads_tables(self) -> bool:
        """True if the judge needs the pack's tables."""

    def judge(self, segment: Segment, pack: Pack, *, settled: bool) -> Verdict:
        """Return the verdict; `settled` says that the segment has been scored again already.

        Raises:
            TraceError: It has no answer that holds.
        """


@dataclass(frozen=True, slots=True)
class JudgedSegment:
    """A segment with its verdict."""

    segment: Segment
    pack: Pack
    verdict: Verdict
    source: str
    """"offline" or "llm"."""


class _SegmentJudge:
    """Judges segments of one diagnosis, by the offline judge where the other one fails."""

    def __init__(self, diagnosis: Diagnosis, judge: Judge | None) -> None:
        self.diagnosis = diagnosis
        self.offline = OfflineJudge(diagnosis)
        self.judge: Judge = judge or self.offline
        self.problems: list[str] = []
        self._is_gone = False

    def judge_segment(self, segment: Segment, *, settled: bool = False) -> JudgedSegment:
        begin_ns = self.diagnosis.windows.bounds_ns[0]
        name = f"part at {format_ns(segment.start_ns - begin_ns)} ({segment.type})"
        if self.judge is not self.offline and not self._is_gone:
            try:
                pack = build_pack(self.diagnosis, segment, tables=self.judge.reads_tables)
                verdict = self.judge.judge(segment, pack, settled=settled)
            except TraceError as error:
                # A server that can't be asked, or a cap that is reached, is not tried again.
                answered = isinstance(error, (AnswerError, RefusalError))
                self._is_gone = isinstance(error, ModelError) and not answered
                which = "this part and those behind it are" if self._is_gone else "this part is"
                self.problems.append(f"{name}: {error}; {which} judged offline")
            else:
                found = segment.finding.type if segment.finding else None
                if found and verdict.primary != found:  # see Note [Whose word counts]
                    said = f"the rules prove {found}, the model says {verdict.primary}"
                    self.problems.append(f"{name}: {said}")
                return JudgedSegment(segment, pack, verdict, "llm")
        pack = build_pack(self.diagnosis, segment, tables=False)
        verdict = self.offline.judge(segment, pack, settled=settled)
        wrong = check_verdict(verdict, pack)
        if wrong:
            raise AssertionError(f"{name}: {wrong}")
        return JudgedSegment(segment, pack, verdict, "offline")


@dataclass(frozen=True, slots=True)
class Judgments:
    """The verdicts on the segments of a diagnosis."""

    first: tuple[JudgedSegment, ...]
    """Every segment as it was found."""
    doubts: dict[int, Doubt]
    """Votes of other grids on the doubted segments, by place in `first`."""
    final: dict[int, JudgedSegment]
    """Segments that remain, with their last verdicts, by place in `first`."""
    rounds: tuple[Round, ...]
    problems: tuple[str, ...]


def judge_segments(diagnosis: Diagnosis, judge: Judge | None = None) -> Judgments:
    """Judge the segments of a diagnosis, offline if `judge` is None, and score doubted ones again.
    See Note [Doubt]."""
    bench = _SegmentJudge(diagnosis, judge)
    segments = find_segments(diagnosis)
    rounds = [Round(diagnosis.windows.count, "start", len(segments), changed=False)]
    with progress_stage("judging segments"):
        first = tuple(bench.judge_segment(segment) for segment in segments)
    drops = bench.judge.asked_by == "model"
    doubts = {}
    for place, each in enumerate(first):
        verdict, other_grid = each.verdict, each.verdict.suggested_windows
        sure = verdict.verdict == "misclassified" and verdict.confidence >= DOUBT
        if sure or other_grid is not None:
            doubts[place] = Doubt(each.segment, other_grid, drops=drops)
    others = len(first) - len(doubts)
    with progress_stage("scoring again what is in doubt"):
        rounds += resolve_doubts(diagnosis, list(doubts.values()), bench.judge.asked_by, others)
    final = {}
    for place, each in enumerate(first):
        if place not in doubts:
            final[place] = each
        elif not doubts[place].gone:
            final[place] = bench.judge_segment(doubts[place].typed(diagnosis), settled=True)
        elif each.segment.further:  # other grids were asked about the leading place alone
            leading, *behind = each.segment.further
            left = replace(leading, further=tuple(behind))
            final[place] = bench.judge_segment(left, settled=True)
    return Judgments(first, doubts, final, tuple(rounds), tuple(bench.problems))


def build_explanation(
    diagnosis: Diagnosis,
    judge: Judge | None = None,
    *,
    model: str | None = None,
    answer: Response | None = None,
) -> Explanation:
    """Build the explanation of a diagnosis.

    Args:
        diagnosis: The diagnosis to explain.
        judge: Who names segments; None: offline.
        model: Name of the language model behind the judge.
        answer: To a question.
    """
    judging = judge_segments(diagnosis, judge)
    found = tuple(judging.final.values())
    by_model = not found or any(each.source == "llm" for each in found)
    unchecked = (
        f"{name} could not be checked: the trace lacks {', '.join(signals)}"
        for name, signals in diagnosis.abstained.items()
    )
    return Explanation(
        source="offline" if judge is None else "llm" if by_model else "offline_fallback",
        model=model,
        answer=answer.text if answer else None,
        answer_citations=answer.citations if answer else (),
        segments=tuple(_explain_segment(diagnosis, each) for each in found),
        rounds=judging.rounds,
        usage=None,
        problems=(*judging.problems, *unchecked),
        begin_ns=diagnosis.windows.bounds_ns[0],
    )


def _explain_segment(diagnosis: Diagnosis, judged: JudgedSegment) -> ExplainedSegment:
    """Return a segment with its advice, as it fits the trace where the finding has it."""
    segment, verdict, knowledge = judged.segment, judged.verdict, load_knowledge()
    finding = segment.finding
    change, verify = Change("", None), _UNKNOWN_CHECK
    if finding is not None and finding.type == verdict.fix:
        change = Change(finding.fix, code_diff(finding.code_before, finding.code))
    elif verdict.fix != NONE:
        advice = knowledge[verdict.fix].advice
        change = Change(advice.fix, code_diff(advice.code_before, advice.code_after))
    else:
        part = largest_part(diagnosis, segment)
        change = Change(advice_without_finding(diagnosis, segment, part), None)
    if verdict.primary != NONE:
        entry = knowledge[verdict.primary]
        after = "after/" if len(diagnosis.trace.ranks) > 1 else "after.json.gz"
        gate = f"`torchtraceap diagnose {after} --fail-on {entry.type}` exits with 0."
        on_host = diagnosis.computes_on == "host"
        verify = f"Record the same steps again. {entry.verify_text(on_host=on_host)} {gate}"
    return ExplainedSegment(
        start_ns=segment.start_ns,
        end_ns=segment.end_ns,
        type=verdict.primary,
        confidence=verdict.confidence,
        what=verdict.what,
        why=verdict.why,
        change=change,
        verify=verify,
        citations=find_citations(verdict, judged.pack),
        source=judged.source,
        where=_where(diagnosis, judged),
        places=tuple(sorted((each.start_ns, each.end_ns) for each in (segment, *segment.further))),
    )


def _where(diagnosis: Diagnosis, judged: JudgedSegment) -> Where:
    """Return the frames of the program around the events that the segment rests on, and around
    what the host does in its idle time."""
    segment = judged.segment
    start_ns, end_ns = segment.start_ns, segment.end_ns
    by_rank = {rank.rank: rank for rank in diagnosis.trace.ranks}
    spent: Counter[tuple[int | None, int]] = Counter()
    for event in segment.finding.evidence if segment.finding else ():
        end = event.start_ns + event.duration_ns
        if event.start_ns < end_ns and end > start_ns:
            inside_ns = min(end, end_ns) - max(event.start_ns, start_ns)
            spent[event.rank, event.row] += inside_ns
    if not spent:
        rank = diagnosis.trace.ranks[rank_of(diagnosis, segment)]
        idle = rank.idle(rank.tree.profiled)
        inside = np.minimum(idle.end_ns, end_ns) - np.maximum(idle.start_ns, start_ns)
        for gap in np.argsort(-inside, kind="stable")[:_MOST_GAPS].tolist():
            behind = int(idle.explained_by[gap])
            if inside[gap] > 0 and behind != _core.NO_ROW:
                spent[rank.rank, behind] += int(inside[gap])
    frames: Counter[Frame] = Counter()
    for (number, row), ns in spent.items():
        frame = _frame_around(by_rank[number], row)
        if frame is not None:
            frames[frame] += ns
    most = [frame for frame, _ in frames.most_common()]
    lines = [frame for frame in most if frame.kind == "python"][:_MOST_FRAMES]
    if lines:
        return Where("; ".join(one_line(str(frame), 160) for frame in lines), tuple(lines))
    kept = [frame for frame in most if frame.kind != "operator"][:_MOST_FRAMES]
    said = "; ".join(f"in {one_line(str(frame), 160)}" for frame in kept)
    return Where(f"{said}. {_NO_FRAMES}" if said else _NO_FRAMES, tuple(kept))


def _frame_around(rank: RankTrace, row: int) -> Frame | None:
    """Return the frame around an event; where older profilers gave ranges no stack, that of the
    first operators inside."""
    frame = frame_of(rank, row)
    place = int(rank.tree.host_position[row])
    if place == _core.NO_ROW or (frame is not None and frame.kind == "python"):
        return frame
    end = int(rank.tree.subtree_end[place])
    inside = rank.tree.host_rows[place + 1 : min(end, place + 1 + _MOST_INSIDE)].tolist()
    frames = (frame_of(rank, below) for below in inside)
    return next((each for each in frames if each and each.kind == "python"), frame)


def code_diff(before: str, after: str) -> str:
    """Return a unified diff of typical code."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before.py", "after.py", lineterm="", n=2
    )
    return "\n".join(lines)


def explain(
    diagnosis: Diagnosis,
    *,
    question: str | None = None,
    settings: ModelSettings | None = None,
    redacted: bool = True,
    progress: Progress | None = None,
) -> Explanation:
    """Explain the suspicious parts of a trace: what happens, why it costs, and what to change.

    Args:
        diagnosis: The trace's diagnosis.
        question: To be answered beside it.
        settings: A language model that judges and answers; None: offline.
        redacted: Names of the trace are hidden from the model.
        progress: Told how many characters of an answer have come.

    Raises:
        MissingDependencyError: A model is to be asked, and the packages for it are not installed.
    """
    if settings is None:
        told = answer(diagnosis, question) if question else None
        return build_explanation(diagnosis, answer=told)
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.llm_judge import ModelJudge

    with closing(Client(settings, progress)) as client:
        judge = ModelJudge(client, redaction=redacted)
        found = build_explanation(diagnosis, judge, model=settings.model)
        problems = found.problems
        if question:
            answered = _answer_by_model(diagnosis, question, client, redacted)
            found = replace(found, answer=answered.text, answer_citations=answered.citations)
            problems = (*problems, *answered.problems)
        problems = (*client.problems, *problems)
        return replace(found, usage=client.usage(), problems=problems)


def answer(
    diagnosis: Diagnosis,
    question: str,
    *,
    settings: ModelSettings | None = None,
    redacted: bool = True,
) -> Response:
    """Answer a question alone. Arguments as of `explain`."""
    if settings is None:
        from torchtraceap.explanation.offline_answer import answer_offline

        told = answer_offline(diagnosis, question)
        return Response(told.text, "offline", None, None, citations=told.citations)
    from torchtraceap.explanation.client import Client

    with closing(Client(settings)) as client:
        found = _answer_by_model(diagnosis, question, client, redacted)
        return replace(found, problems=(*client.problems, *found.problems))


def _answer_by_model(
    diagnosis: Diagnosis, question: str, client: Client, redacted: bool
) -> Response:
    """Answer a question by the model, or offline if it has no answer that holds."""
    from torchtraceap.explanation.questions import ask
    from torchtraceap.explanation.redaction import Redaction
    from torchtraceap.explanation.tools import Toolbox

    box = Toolbox(diagnosis.trace, diagnosis=diagnosis)
    found = ask(box, question, client, Redaction() if redacted else None)
    if found.answer is not None:
        return Response(found.answer, "llm", client.name, client.usage(), found.problems)
    told = answer(diagnosis, question)
    return replace(
        told,
        source="offline_fallback",
        model=client.name,
        usage=client.usage(),
        problems=found.problems,
    )


def dry_run(diagnosis: Diagnosis, settings: ModelSettings, *, redacted: bool = True) -> DryRun:
    """Return the first request about each segment and an upper estimate of what all of them take.
    Nothing is sent; repairs of answers and questions come on top."""
    from torchtraceap.explanation.answer import json_schema
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.llm_judge import ModelJudge, messages

    with closing(Client(settings)) as client:
        judge = ModelJudge(client, redaction=redacted)
        packs = [judge.shown(build_pack(diagnosis, each)) for each in find_segments(diagnosis)]
        prompts = [messages(pack) for pack in packs]
        schema = json_schema(packs[0]) if packs else None
        estimate = client.estimate(prompts, schema)
    told = [tuple((each["role"], each["content"]) for each in prompt) for prompt in prompts]
    return DryRun(**estimate.to_dict(), prompts=tuple(told))
