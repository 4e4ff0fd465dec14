"""Build an explanation: segments, a pack and a verdict for each, and doubts scored again.

Note [Whose word counts]: what a segment is called is the judge's verdict. A rule's proof is not
taken back by a language model: the segment stays, with what the model says of it, and `problems`
says what the rule found. Advice, diffs and checks come from the knowledge base, whoever judged: a
model names an entry and never writes code.

Note [Doubt]: what a model takes for misclassified is dropped where other grids do not flag it
either. The offline judge doubts parts that it has no name for, and is given the types of other
grids. It drops nothing: of the windows that the vote of grids would have dropped for it, nearly all
lost time (docs/benchmark.md#judges).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torchtraceap.core.formatting import format_ns
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.errors import TraceError
from torchtraceap.explanation.build_pack import build_pack
from torchtraceap.explanation.citations import check_verdict, find_citations
from torchtraceap.explanation.explanation import Change, ExplainedSegment, Explanation, Round
from torchtraceap.explanation.language_model import AnswerError, ModelError, RefusalError
from torchtraceap.explanation.offline_judge import OfflineJudge
from torchtraceap.explanation.rescore import Doubt, resolve_doubts
from torchtraceap.explanation.segments import NONE, Segment, find_segments

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.pack import Pack
    from torchtraceap.explanation.verdict import Verdict

__all__ = ["DOUBT", "Judge", "JudgedSegment", "Judgments", "build_explanation", "judge_segments"]

DOUBT = 0.6
"""Confidence from which a "misclassified" verdict has its segment scored again."""
_UNKNOWN_FIX = (
    "Nothing is known to change. Look at this part of the trace: `torchtraceap annotate` marks it "
    "for Perfetto."
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
        if self.judge is not self.offline and not self._is_gone:
            try:
                return self._judge_by_model(segment, settled)
            except TraceError as error:
                self._note_failure(segment, error)
        pack = build_pack(self.diagnosis, segment, tables=False)
        verdict = self.offline.judge(segment, pack, settled=settled)
        wrong = check_verdict(verdict, pack)
        if wrong:
            raise AssertionError(f"{self._segment_name(segment)}: {wrong}")
        return JudgedSegment(segment, pack, verdict, "offline")

    def _judge_by_model(self, segment: Segment, settled: bool) -> JudgedSegment:
        pack = build_pack(self.diagnosis, segment, tables=self.judge.reads_tables)
        verdict = self.judge.judge(segment, pack, settled=settled)
        self._compare(segment, verdict)
        return JudgedSegment(segment, pack, verdict, "llm")

    def _note_failure(self, segment: Segment, error: TraceError) -> None:
        """A server that can't be asked, or a cap that is reached, is not tried again."""
        answered = isinstance(error, (AnswerError, RefusalError))
        self._is_gone = isinstance(error, ModelError) and not answered
        which = "this part and those behind it are" if self._is_gone else "this part is"
        self.problems.append(f"{self._segment_name(segment)}: {error}; {which} judged offline")

    def doubt(self, judged: JudgedSegment) -> Doubt:
        """Return the doubt about a judged segment; see Note [Doubt]."""
        drops = self.judge.asked_by == "model"
        return Doubt(judged.segment, judged.verdict.suggested_windows, drops=drops)

    def _compare(self, segment: Segment, verdict: Verdict) -> None:
        """Note a problem if the model contradicts a rule; see Note [Whose word counts]."""
        found = segment.finding.type if segment.finding else None
        if found and verdict.primary != found:
            said = f"the rules prove {found}, the model says {verdict.primary}"
            self.problems.append(f"{self._segment_name(segment)}: {said}")

    def _segment_name(self, segment: Segment) -> str:
        """Return a name of the segment such as "part at 12.3 ms (cpu_bound)"."""
        begin_ns = self.diagnosis.windows.bounds_ns[0]
        return f"part at {format_ns(segment.start_ns - begin_ns)} ({segment.type})"


@dataclass(frozen=True, slots=True)
class Judgments:
    """The verdicts on the segments of a diagnosis."""

    first: tuple[JudgedSegment, ...]
    """Every segment as it was found."""
    doubts: dict[int, Doubt]
    """Votes of other grids on the doubted segments, by place in `first`."""
    final: dict[int, JudgedSegment]
    """Remaining segments with their last verdicts, by place in `first`."""
    rounds: tuple[Round, ...]
    problems: tuple[str, ...]


def judge_segments(diagnosis: Diagnosis, judge: Judge | None = None) -> Judgments:
    """Segments with their verdicts; `judge` None: offline."""
    bench = _SegmentJudge(diagnosis, judge)
    segments = find_segments(diagnosis)
    rounds = [Round(diagnosis.windows.count, "start", len(segments), changed=False)]
    with progress_stage("judging segments"):
        first = tuple(bench.judge_segment(segment) for segment in segments)
    doubts = {place: bench.doubt(each) for place, each in enumerate(first) if _is_doubted(each)}
    others = len(first) - len(doubts)
    with progress_stage("scoring again what is in doubt"):
        rounds += resolve_doubts(diagnosis, list(doubts.values()), bench.judge.asked_by, others)
    final = {}
    for place, each in enumerate(first):
        if place not in doubts:
            final[place] = each
        elif not doubts[place].gone:
            final[place] = bench.judge_segment(doubts[place].typed(diagnosis), settled=True)
    return Judgments(first, doubts, final, tuple(rounds), tuple(bench.problems))


def _is_doubted(judged: JudgedSegment) -> bool:
    verdict = judged.verdict
    sure = verdict.verdict == "misclassified" and verdict.confidence >= DOUBT
    return sure or verdict.suggested_windows is not None


def build_explanation(
    diagnosis: Diagnosis,
    judge: Judge | None = None,
    *,
    model: str | None = None,
    answer: str | None = None,
) -> Explanation:
    """The explanation of a diagnosis.

    Args:
        diagnosis: The diagnosis to explain.
        judge: Who names segments; None: offline.
        model: Name of the language model behind the judge.
        answer: To a question.
    """
    judging = judge_segments(diagnosis, judge)
    found = tuple(judging.final.values())
    return Explanation(
        source=_source(found, judge),
        model=model,
        answer=answer,
        segments=tuple(_explain_segment(diagnosis, each) for each in found),
        rounds=judging.rounds,
        usage=None,
        problems=(*judging.problems, *_unchecked_types(diagnosis)),
        begin_ns=diagnosis.windows.bounds_ns[0],
    )


def _source(found: Sequence[JudgedSegment], judge: Judge | None) -> str:
    if judge is None:
        return "offline"
    by_model = not found or any(each.source == "llm" for each in found)
    return "llm" if by_model else "offline_fallback"


def _unchecked_types(diagnosis: Diagnosis) -> list[str]:
    return [
        f"{name} could not be checked: the trace lacks {', '.join(signals)}"
        for name, signals in diagnosis.abstained.items()
    ]


def _explain_segment(diagnosis: Diagnosis, judged: JudgedSegment) -> ExplainedSegment:
    segment, verdict = judged.segment, judged.verdict
    return ExplainedSegment(
        start_ns=segment.start_ns,
        end_ns=segment.end_ns,
        type=verdict.primary,
        confidence=verdict.confidence,
        what=verdict.what,
        why=verdict.why,
        change=_change(judged),
        verify=_verify(diagnosis, verdict),
        citations=find_citations(verdict, judged.pack),
        source=judged.source,
    )


def _change(judged: JudgedSegment) -> Change:
    """Advice as it fits the trace, where the finding has it."""
    fix = judged.verdict.fix
    if fix == NONE:
        return Change(_UNKNOWN_FIX, None)
    finding = judged.segment.finding
    if finding is not None and finding.type == fix:
        return Change(finding.fix, code_diff(finding.code_before, finding.code))
    advice = load_knowledge()[fix].advice
    return Change(advice.fix, code_diff(advice.code_before, advice.code_after))


def code_diff(before: str, after: str) -> str:
    """A unified diff of typical code."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before.py", "after.py", lineterm="", n=2
    )
    return "\n".join(lines)


def _verify(diagnosis: Diagnosis, verdict: Verdict) -> str:
    if verdict.primary == NONE:
        return _UNKNOWN_CHECK
    entry = load_knowledge()[verdict.primary]
    after = "after/" if len(diagnosis.trace.ranks) > 1 else "after.json.gz"
    gate = f"`torchtraceap diagnose {after} --fail-on {entry.type}` exits with 0."
    on_host = diagnosis.computes_on == "host"
    return f"Record the same steps again. {entry.verify_text(on_host=on_host)} {gate}"
