"""The judge that needs no model: what rules prove, what scorers say, texts of the knowledge base.

Note [What offline texts claim]: a rule that found a type has events to show, and its sentence says
what they are. Where only the scorer flags a segment, the text says so, and that no rule proves it.
Texts of the knowledge base hold no figures of their own; every figure is a metric of the pack and
is cited. Facts that are names with digits in them stay out of sentences: their events are cited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap import _core
from torchtraceap.core.formatting import format_part
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.explanation.numbers import Metric, numbers_in
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.segments import NONE
from torchtraceap.explanation.verdict import Citation, Verdict

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
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
            return _finding_verdict(_Text(pack), segment.finding, on_host)
        return _scorer_verdict(_Text(pack), segment, on_host, settled)


class _Text:
    """Sentences about a pack, with what they cite."""

    def __init__(self, pack: Pack) -> None:
        self._metrics = pack.every_metric()
        self._cited: dict[str, Metric] = {}
        self._rows = [Citation(row=key, metric=None, value=None) for key in pack.rows]

    def has(self, name: str) -> bool:
        return name in self._metrics

    def value(self, name: str) -> float:
        return self._metrics[name].exact if name in self._metrics else 0.0

    def say(self, name: str) -> str:
        """Return a metric as it is written; it is cited from now on."""
        metric = self._metrics[name]
        self._cited[name] = metric
        return metric.text

    def evidence(self) -> tuple[Citation, ...]:
        cited = (Citation(None, metric.name, metric.value) for metric in self._cited.values())
        return (*self._rows, *cited)


def _finding_verdict(text: _Text, finding: Finding, on_host: bool) -> Verdict:
    """Return the verdict on a segment that a rule found."""
    entry = load_knowledge()[finding.type]
    facts: dict[str, str] = {}
    for name, fact in finding.facts.items():
        value = str(fact.value)
        if fact.kind != "text":
            facts[name] = text.say(f"fact.{name}")
        elif not any(map(str.isdigit, value)) and not numbers_in(value):
            facts[name] = value
    of_rank = text.has("finding.rank")
    which = "finding.rank_cost" if of_rank else "finding.cost"
    cost, share = text.say(which), text.say(f"{which}_share")
    what = entry.why_text(facts, cost=cost, share=share, on_host=on_host)
    if of_rank:
        what = f"Rank {text.say('finding.rank')}: {what}"
    # This tells how much of the cost lies in the segment, and what the GPU does there.
    length, cost_here = text.say("segment.length"), text.say("finding.cost_here")
    here = f"{cost_here} of that lie in this part of {length}"
    if of_rank:
        rank = text.say("segment.rank")
        here = f"On rank {rank} it costs {cost_here} in this part of {length}"
    if not on_host and text.has("segment.idle"):
        here += f", in which the GPU idles for {text.say('segment.idle')}"
        if text.has("window.busy_share.median"):
            busy, middle = text.say("window.busy_share"), text.say("window.busy_share.median")
            here += f" (busy {busy} of the time; {middle} in the median window)"
    return Verdict(
        verdict="anti_pattern",
        labels=(finding.type,),
        primary=finding.type,
        confidence=finding.confidence,
        what=f"{what} {here}.",
        why=f"{entry.because_text(on_host=on_host)} {_saving_sentence(text, finding)}".strip(),
        evidence=text.evidence(),
        fix=finding.type,
        suggested_windows=None,
    )


def _saving_sentence(text: _Text, finding: Finding) -> str:
    saving = finding.saving
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


def _scorer_verdict(text: _Text, segment: Segment, on_host: bool, settled: bool) -> Verdict:
    """Return the verdict on a segment that only the scorer flags. See Note [What offline texts
    claim]."""
    likely = dict(segment.types).get(segment.type, 0.0)
    name = segment.type if likely >= _LIKELY else NONE
    doubted = name == NONE and not settled
    score, length = text.say("segment.score"), text.say("segment.length")
    what = f"The scorer gives this part of {length} a chance of {score} to hold lost time"
    because = ""
    if name == NONE:
        what += "; no rule proves a cause."
    else:
        entry = load_knowledge()[name]
        what += (
            f", most likely {entry.name} ({text.say(f'type.{name}')}); the trace lacks what the "
            "rule for that would have to see."
        )
        because = entry.because_text(on_host=on_host)
    why = because or "The recording shows nothing of a GPU in this part."
    if text.has("segment.idle"):
        said = f"The GPU idles for {text.say('segment.idle')} of it"
        names = _core.idle_cause_names()
        causes = {cause: text.value(f"window.idle_{cause}_share") for cause in names}
        cause = max(causes, key=lambda each: causes[each])
        if causes[cause] > 0:
            share = text.say(f"window.idle_{cause}_share")
            said += f"; the largest cause is: {format_part(cause)}, {share} of the time"
        why = f"{because} {said}.".strip()
    return Verdict(
        verdict="misclassified" if doubted else "insufficient_evidence",
        labels=(name,) if name != NONE else (),
        primary=name,
        confidence=1.0 if doubted else likely if name != NONE else segment.score,
        what=what,
        why=why,
        evidence=text.evidence(),
        fix=name,
        suggested_windows=None,
    )
