"""The judge that needs no model: what rules prove, what scorers say, texts of the knowledge base.

Note [What offline texts claim]: a rule that found a type has events to show, and its sentence says
what they are. Where only the scorer flags a segment, the text says so, and that no rule proves it.
Texts of the knowledge base hold no figures of their own; every figure is a metric of the pack and
is cited. Facts that are names with digits in them stay out of sentences: their events are cited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core.knowledge import KnowledgeEntry, load_knowledge
from torchtraceap.explanation.numbers import Metric, numbers_in
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.segments import NONE
from torchtraceap.explanation.verdict import Citation, Verdict
from torchtraceap.report.labels import IDLE_LABELS

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.segments import Segment

__all__ = ["OfflineJudge"]

_LIKELY = 0.5
"""Least score of a type so that the scorer alone can name it."""


class OfflineJudge:
    """Judges one segment after another, of one diagnosis."""

    asked_by = "rule"
    reads_tables = False

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis

    def judge(self, segment: Segment, pack: Pack, *, settled: bool = False) -> Verdict:
        """Return what the rules prove of a segment, or that they prove nothing. A segment without a
        name is doubted until it has been scored again."""
        on_host = self._diagnosis.computes_on == "host"
        if segment.finding is not None:
            return _finding_verdict(_Text(pack), segment, on_host)
        return _scorer_verdict(_Text(pack), segment, on_host, settled)


class _Text:
    """Sentences about a pack, with what they cite."""

    def __init__(self, pack: Pack) -> None:
        self._metrics = pack.every_metric()
        self._cited: dict[str, Metric] = {}
        self._rows = [Citation(row=row.key, metric=None, value=None) for row in pack.rows]

    def has(self, name: str) -> bool:
        return name in self._metrics

    def value(self, name: str) -> float:
        return self._metrics[name].exact if name in self._metrics else 0.0

    def say(self, name: str) -> str:
        """A metric as it is written; it is cited from now on."""
        metric = self._metrics[name]
        self._cited[name] = metric
        return metric.text

    def evidence(self) -> tuple[Citation, ...]:
        cited = (Citation(None, metric.name, metric.value) for metric in self._cited.values())
        return (*self._rows, *cited)


def _finding_verdict(text: _Text, segment: Segment, on_host: bool) -> Verdict:
    """A rule found it."""
    finding = segment.finding
    assert finding is not None
    entry = load_knowledge()[finding.type]
    return Verdict(
        verdict="anti_pattern",
        labels=(finding.type,),
        primary=finding.type,
        confidence=finding.confidence,
        what=f"{_sentence(text, segment, entry, on_host)} {_place_sentence(text, on_host)}",
        why=f"{entry.because_text(on_host=on_host)} {_saving_sentence(text, segment)}".strip(),
        evidence=text.evidence(),
        fix=finding.type,
        suggested_windows=None,
    )


def _sentence(text: _Text, segment: Segment, entry: KnowledgeEntry, on_host: bool) -> str:
    """Return the sentence of the finding, with figures as the pack writes them."""
    finding = segment.finding
    assert finding is not None
    facts: dict[str, str] = {}
    for name, fact in finding.facts.items():
        if fact.kind != "text":
            facts[name] = text.say(f"fact.{name}")
        elif not _has_digits(str(fact.value)):
            facts[name] = str(fact.value)
    if not text.has("finding.rank"):
        cost, share = text.say("finding.cost"), text.say("finding.cost_share")
        return entry.why_text(facts, cost=cost, share=share, on_host=on_host)
    cost, share = text.say("finding.rank_cost"), text.say("finding.rank_cost_share")
    said = entry.why_text(facts, cost=cost, share=share, on_host=on_host)
    return f"Rank {text.say('finding.rank')}: {said}"


def _has_digits(text: str) -> bool:
    return any(letter.isdigit() for letter in text) or bool(numbers_in(text))


def _place_sentence(text: _Text, on_host: bool) -> str:
    """Say how much of the cost lies in the segment, and what the GPU does there."""
    length, cost = text.say("segment.length"), text.say("finding.cost_here")
    here = f"{cost} of that lie in this part of {length}"
    if text.has("finding.rank"):
        here = f"On rank {text.say('segment.rank')} it costs {cost} in this part of {length}"
    if on_host or not text.has("segment.idle"):
        return f"{here}."
    return f"{here}, in which the GPU idles for {text.say('segment.idle')}{_busy_clause(text)}."


def _busy_clause(text: _Text) -> str:
    """Say how busy the GPU is there and in the median window of the trace."""
    name = "window.busy_share"
    if not text.has(f"{name}.median"):
        return ""
    return (
        f" (busy {text.say(name)} of the time; {text.say(f'{name}.median')} in the median window)"
    )


def _saving_sentence(text: _Text, segment: Segment) -> str:
    assert segment.finding is not None
    saving = segment.finding.saving
    if saving is None or not saving.high_ns:
        return "A replay of the run gains nothing from its removal: other work hides it."
    per = "per step" if saving.per_step else "over the whole recording"
    high = text.say("finding.saving.high")
    if not saving.simulated:
        return f"Its removal saves at most {high} {per}: a bound, as the run could not be replayed."
    if not saving.best_ns:
        return f"A replay without it gains less than steps vary by, and at most {high} {per}."
    best, low = text.say("finding.saving.best"), text.say("finding.saving.low")
    return f"A replay without it is faster by {best} {per} ({low} to {high})."


# ---------------------------------------------------------------------- what no rule proves


def _scorer_verdict(text: _Text, segment: Segment, on_host: bool, settled: bool) -> Verdict:
    """Return the verdict on a segment that only the scorer flags. See Note [What offline texts
    claim]."""
    likely = dict(segment.types).get(segment.type, 0.0)
    name = segment.type if likely >= _LIKELY else NONE
    doubted = name == NONE and not settled
    return Verdict(
        verdict="misclassified" if doubted else "insufficient_evidence",
        labels=(name,) if name != NONE else (),
        primary=name,
        confidence=1.0 if doubted else likely if name != NONE else segment.score,
        what=_scorer_sentence(text, segment, name),
        why=_idle_sentence(text, name, on_host),
        evidence=text.evidence(),
        fix=name,
        suggested_windows=None,
    )


def _scorer_sentence(text: _Text, segment: Segment, name: str) -> str:
    score, length = text.say("segment.score"), text.say("segment.length")
    said = f"The scorer gives this part of {length} a chance of {score} to hold lost time"
    if name == NONE:
        return f"{said}; no rule proves a cause."
    likely = text.say(f"type.{name}")
    entry = load_knowledge()[name]
    return (
        f"{said}, most likely {entry.name} ({likely}); the trace lacks what the rule for that "
        "would have to see."
    )


def _idle_sentence(text: _Text, name: str, on_host: bool) -> str:
    """Say why that type costs time, and what is known of the GPU's idle time."""
    because = load_knowledge()[name].because_text(on_host=on_host) if name != NONE else ""
    if not text.has("segment.idle"):
        return because or "The recording shows nothing of a GPU in this part."
    said = f"The GPU idles for {text.say('segment.idle')} of it"
    causes = {cause: text.value(f"window.idle_{cause}_share") for cause in IDLE_LABELS}
    cause = max(causes, key=lambda each: causes[each])
    if causes[cause] > 0:
        share = text.say(f"window.idle_{cause}_share")
        said += f"; the largest cause is: {IDLE_LABELS[cause]}, {share} of the time"
    return f"{because} {said}.".strip()
