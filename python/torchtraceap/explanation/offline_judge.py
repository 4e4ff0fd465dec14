"""The judge that needs no model: what rules prove, what scorers say, texts of the knowledge base.

Note [What offline texts claim]: a rule that found a type has events to show, and its sentence says
what they are. Where only the scorer flags a segment, the text says what its time is, that no rule
proves a cause, and where to look. Texts of the knowledge base hold no figures of their own; every
figure is a metric of the pack and is cited. Facts that are names with digits in them stay out of
sentences: their events are cited. What is zero is left out, or said in words.

Note [Counted once]: where half of a finding's cost or more is time that another one costs too, or
one change removes both, its text says so: costs and savings of findings do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.sums import total
from torchtraceap.explanation.numbers import Metric, numbers_in
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.segments import NONE, shared_with
from torchtraceap.explanation.verdict import Citation, Verdict
from torchtraceap.report.labels import MEANINGS
from torchtraceap.tables.steps.iterations import counted_spans

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.segments import Segment

__all__ = ["OfflineJudge", "advice_without_finding"]

_LIKELY = 0.5
"""Least score of a type so that the scorer alone can name it."""
_NOTABLE = 0.1
"""Least share of a segment of idle time, or of a finding without the name, that is told."""
_OF_IDLE = 0.25
"""Least share of the idle time behind calls that wait from which they are why the queue is dry."""
_STARVED = frozenset(
    ["cpu_bound", "tiny_kernels", "host_silence", "for_loop_indexing", "unfused_optimizer"]
)
"""Types whose cost is idle time of a GPU that has nothing queued."""


class OfflineJudge:
    """Judges one segment after another, of one diagnosis."""

    asked_by = "rule"
    reads_tables = False

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis

    def judge(self, segment: Segment, pack: Pack, *, settled: bool = False) -> Verdict:
        """Return what the rules prove of a segment, or that they prove nothing. A segment without a
        name is doubted until it has been scored again."""
        if segment.finding is not None:
            return _finding_verdict(_Text(pack), segment.finding, self._diagnosis)
        return _scorer_verdict(_Text(pack), segment, self._diagnosis, settled)


class _Text:
    """Sentences about a pack, with what they cite."""

    def __init__(self, pack: Pack) -> None:
        self._metrics = pack.every_metric()
        self._cited: dict[str, Metric] = {}
        self._rows = [Citation(row=key, metric=None, value=None) for key in pack.rows]

    def value(self, name: str) -> float:
        """Return the exact value of a metric; 0 where the pack has none or writes it as zero."""
        metric = self._metrics.get(name)
        return metric.exact if metric and metric.value else 0.0

    def say(self, name: str) -> str:
        """Return a metric as it is written; it is cited from now on."""
        metric = self._metrics[name]
        self._cited[name] = metric
        return metric.text

    def evidence(self) -> tuple[Citation, ...]:
        cited = (Citation(None, metric.name, metric.value) for metric in self._cited.values())
        return (*self._rows, *cited)

    def names(self, prefix: str) -> list[str]:
        """Return the ends of the names of metrics that begin so, in their order."""
        return [name.removeprefix(prefix) for name in self._metrics if name.startswith(prefix)]


def _finding_verdict(text: _Text, finding: Finding, diagnosis: Diagnosis) -> Verdict:
    """Return the verdict on a segment that a rule found."""
    entry, on_host = load_knowledge()[finding.type], diagnosis.computes_on == "host"
    facts: dict[str, str] = {}
    for name, fact in finding.facts.items():
        value = str(fact.value)
        if fact.kind == "text":
            if not any(map(str.isdigit, value)) and not numbers_in(value):
                facts[name] = value
        elif text.value(f"fact.{name}"):
            facts[name] = text.say(f"fact.{name}")
        elif fact.kind == "count":
            facts[name] = "0"  # which `why_text` writes in words
    of_rank = bool(text.value("finding.rank_cost"))
    which = "finding.rank_cost" if of_rank else "finding.cost"
    cost, share = text.say(which), text.say(f"{which}_share")
    what = entry.why_text(facts, cost=cost, share=share, on_host=on_host)
    if of_rank:
        what = f"Rank {text.say('finding.rank')}: {what}"
    return Verdict(
        verdict="anti_pattern",
        labels=(finding.type,),
        primary=finding.type,
        confidence=finding.confidence,
        what=" ".join([what, *_sentences_here(text, finding, of_rank, on_host)]),
        why=" ".join(
            [
                entry.because_text(on_host=on_host),
                *_counted_once(text, finding, diagnosis),
                _saving_sentence(text, finding, diagnosis),
            ]
        ),
        evidence=text.evidence(),
        fix=finding.type,
        suggested_windows=None,
    )


def _sentences_here(text: _Text, finding: Finding, of_rank: bool, on_host: bool) -> list[str]:
    """Say how much of the cost lies in the segment, and what the GPU does there."""
    length, cost_here = text.say("segment.length"), text.say("finding.cost_here")
    if of_rank:
        here = f"On rank {text.say('segment.rank')} it costs {cost_here} in this part of {length}"
    elif cost_here == text.say("finding.cost"):
        here = f"All of that lies in this part of {length}"
    else:
        here = f"{cost_here} of that lie in this part of {length}"
    if not on_host and text.value("segment.idle_share") >= _NOTABLE:
        here += f", in which the GPU idles for {text.say('segment.idle')}"
        busy, middle = "window.busy_share", "window.busy_share.median"
        if text.value(busy) and text.value(middle):
            here += f" (busy {text.say(busy)} of the time; {text.say(middle)} in the median window)"
    starved = finding.type in _STARVED and text.value("segment.waits")
    idle_ns = _OF_IDLE * text.value("segment.idle")
    if not starved or text.value("segment.idle_behind_waits") < idle_ns:
        return [f"{here}."]
    waits, behind = text.say("segment.waits"), text.say("segment.idle_behind_waits")
    calls = "wait" if text.value("segment.waits") == 1 else "waits"
    why = f"{waits} {calls} of the host for the GPU in this part let the queue run dry"
    return [f"{here}.", f"{why}, and the GPU idles for {behind} right behind them."]


def _counted_once(text: _Text, finding: Finding, diagnosis: Diagnosis) -> list[str]:
    """Say what other finding costs the same time; see Note [Counted once]."""
    shared = shared_with(diagnosis, finding)
    if shared is None or not text.value("finding.shared"):
        return []
    part = "Most of this"  # of one rank, where the figures are of all
    if not text.value("finding.rank_cost"):
        part = text.say("finding.shared")
        part = "All of this" if part == text.say("finding.cost") else f"{part} of this"
    return [f"{part} is also time of {_name_of(shared[0])}: it counts once."]


def _name_of(finding: Finding) -> str:
    """Return the name of a finding in a sentence, where it can stand without a citation."""
    name = load_knowledge()[finding.type].name
    return "another finding" if any(map(str.isdigit, name)) else f"another finding ({name})"


def _saving_sentence(text: _Text, finding: Finding, diagnosis: Diagnosis) -> str:
    saving = finding.saving
    if saving is None or not text.value("finding.saving.high"):
        if _lies_outside_steps(finding, diagnosis):
            return "It lies outside of the steps that are counted: they take as long without it."
        if saving is not None and saving.simulated:
            return "A replay of the run gains nothing from its removal: other work hides it."
        return "No time of the GPU is free without it: other work runs meanwhile."
    per = "per step" if saving.per_step else "over the whole recording"
    high = text.say("finding.saving.high")
    if not saving.simulated:
        why = "a bound, as the run could not be replayed"
        if diagnosis.replay is not None and diagnosis.replay.trust.supports_prediction:
            why = "a bound, as no replay stands for this change"
        return f"Its removal saves at most {high} {per}: {why}."
    if not text.value("finding.saving.best"):
        return f"A replay without it gains less than step noise, and at most {high} {per}."
    best = text.say("finding.saving.best")
    between = f"at most {high}"
    if text.value("finding.saving.low"):
        between = f"{text.say('finding.saving.low')} to {high}"
    said = f"A replay without it is faster by {best} {per} ({between})."
    times = len(diagnosis.trace.ranks)
    if diagnosis.step and saving.per_step:
        times = diagnosis.step.steps
    if saving.best_ns * times > finding.cost_ns:
        said += " That is more than its own cost, since work that waited behind it begins earlier."
    others = (each for each in diagnosis.findings if each is not finding)
    same = (each for each in others if each.saving and each.saving.edit == saving.edit)
    other = next(same, None) if saving.edit else None
    if other is not None:
        said += f" The same change removes {_name_of(other)}: its saving counts once."
    return said


def _lies_outside_steps(finding: Finding, diagnosis: Diagnosis) -> bool:
    """Return whether a run has counted steps, and none of a finding's cost is in them."""
    spans = [(rank.rank, counted_spans(rank)) for rank in diagnosis.trace.ranks]
    if not any(len(each) for _, each in spans):
        return False
    return not any(
        total(covered_ns(finding.intervals[_is_of(finding, rank)], each.ravel())[::2])
        for rank, each in spans
        if len(each)
    )


def _is_of(finding: Finding, rank: int | None) -> list[bool]:
    return [each == rank for each in finding.interval_ranks]


# -------------------------------------------------------------------- segments without a finding

_ADVICE: Mapping[str, str] = {
    "compute": (
        "The GPU works. `torchtraceap roofline` says how far its kernels are from what the device "
        "can do."
    ),
    "communication": (
        "Load the traces of all ranks together: they tell the transfer from waiting for a late "
        "rank (`torchtraceap collectives`)."
    ),
    "memcpy": (
        "`torchtraceap memory --by copy` lists the copies. Keep what is copied on the device, or "
        "copy it from pinned memory while the GPU computes."
    ),
    "device_memcpy": (
        "`torchtraceap memory --by copy` lists the copies. Where nothing needs their result at "
        "once, put them on a stream of their own, so that they overlap the computation."
    ),
    "data_loading": (
        "Look at what makes the batch: more workers, prefetch_factor, or less work for each item."
    ),
    "host_wait": (
        "See what the host does there (`torchtraceap host`), and take it out of the loop, or do "
        "it while the GPU still has work."
    ),
    "synchronization": (
        "Take out the wait, or move it to where a value is needed: `torchtraceap events --name "
        "Synchronize` lists the calls."
    ),
    "memory_copy": (
        "Copy from pinned memory with non_blocking=True, and read results once every many steps: "
        "`torchtraceap memory --by copy` lists the copies."
    ),
    "communication_wait": (
        "Load the traces of all ranks together: they say which one the others wait for."
    ),
    "compilation": (
        "That is paid once. Record after a warm-up (schedule(wait=..., warmup=...)); where the "
        "start itself matters, keep the compile cache and load modules at the start."
    ),
    "allocator": (
        "The pool grows to its size once: record after a warm-up. Calls that come again in later "
        "steps are `torchtraceap memory --by allocator`'s to list."
    ),
    "launch_latency": "Launch less at a time: larger kernels, or a CUDA graph of the step.",
    "profiler": (
        "That is the price of the recording, not of the program. Nothing is to change; record "
        "more steps, or without stacks and shapes."
    ),
    "unknown": (
        "The GPU waits for something that this file does not hold: another process, such as a "
        "server's queue or a rank that feeds this one. Record that process at the same time."
    ),
    "within_graph": "Only fewer or larger kernels in the graph make these gaps shorter.",
    "": "Record the GPU and the host: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
}
"""What to do about a part of the time that no finding names, by its largest part."""
_HOST_ADVICE = (
    "See which operators take the time (`torchtraceap ops`), and what lies between them "
    "(`torchtraceap host`)."
)
_AT_START = (
    "That is the start of the program, which is paid once. Record after a warm-up "
    "(schedule(wait=..., warmup=...)), so that it does not hide what every step costs."
)
_AT_END = "That is the end of the recording: a run that goes on does not pay for it."


def advice_without_finding(diagnosis: Diagnosis, segment: Segment, part: str) -> str:
    """Return what to do about a segment that no finding names.

    Args:
        diagnosis: The trace's diagnosis.
        segment: The segment.
        part: The largest part of its time.
    """
    edge = _edge(diagnosis, segment) if part in ("host_wait", "synchronization", "unknown") else ""
    if edge:
        return _AT_START if edge == "start" else _AT_END
    return _ADVICE.get(part, _HOST_ADVICE)


def _edge(diagnosis: Diagnosis, segment: Segment) -> str:
    """Return "start" for a segment that begins before any GPU work, "end" for one that ends behind
    all of it, else an empty text."""
    starts_ns, ends_ns = [], []
    for rank in diagnosis.trace.ranks:
        rows = rank.tree.gpu_rows
        if len(rows):
            starts = rank.table.ts_ns[rows]
            starts_ns.append(int(starts.min()))
            ends_ns.append(int((starts + rank.table.dur_ns[rows]).max()))
    if not starts_ns:
        return ""
    if segment.start_ns < min(starts_ns):
        return "start"
    return "end" if segment.end_ns > max(ends_ns) else ""


def _scorer_verdict(text: _Text, segment: Segment, diagnosis: Diagnosis, settled: bool) -> Verdict:
    """Return the verdict on a segment that only the scorer flags. See Note [What offline texts
    claim]."""
    on_host = diagnosis.computes_on == "host"
    likely = dict(segment.types).get(segment.type, 0.0)
    name = segment.type if likely >= _LIKELY else NONE
    doubted = name == NONE and not settled
    because = load_knowledge()[name].because_text(on_host=on_host) if name != NONE else ""
    return Verdict(
        verdict="misclassified" if doubted else "insufficient_evidence",
        labels=(name,) if name != NONE else (),
        primary=name,
        confidence=1.0 if doubted else likely if name != NONE else segment.score,
        what=_what_is_there(text, diagnosis, segment),
        why=f"{_what_the_scorer_says(text, name, diagnosis)} {because}".strip(),
        evidence=text.evidence(),
        fix=name,
        suggested_windows=None,
    )


def _what_is_there(text: _Text, diagnosis: Diagnosis, segment: Segment) -> str:
    """Say what a segment's time is, and which findings have a part of it."""
    length, parts = text.say("segment.length"), text.names("part.")
    edge = {"start": "at the start of the recording", "end": "at the end of the recording"}
    at = edge.get(_edge(diagnosis, segment), "")
    where = f"In this part of {length} {at}".strip()
    if not parts:
        return f"{where} nothing of a GPU is recorded."
    said = [f"{MEANINGS.get(each, each)} ({text.say(f'part.{each}')})" for each in parts[:2]]
    what = f"{where}, for most of the time {said[0]}"
    if text.value(f"part.{parts[0]}") < _LIKELY:
        what = f"{where}, {said[0]}"
    if len(said) > 1:
        what += f"; also, {said[1]}"
    what += "."
    here = [each for each in text.names("here.") if text.value(f"here.{each}") >= _NOTABLE]
    if here:
        most = max(here, key=lambda each: text.value(f"here.{each}"))
        share = text.say(f"here.{most}")
        finding = next(each for each in diagnosis.findings if each.type == most)
        what += f" {share} of it is time of {_name_of(finding)}."
    return what


def _what_the_scorer_says(text: _Text, name: str, diagnosis: Diagnosis) -> str:
    chance = (
        "a chance that is small"
        if not text.value("segment.score")
        else (f"a chance of {text.say('segment.score')}")
    )
    said = f"The scorer gives this part {chance} to hold lost time"
    if name == NONE:
        return f"{said}; no rule proves a cause."
    missing = ", ".join(diagnosis.abstained.get(name, ()))
    lacks = (
        missing
        if missing and not any(map(str.isdigit, missing))
        else ("what the rule for that would have to see")
    )
    likely = f"{load_knowledge()[name].name} ({text.say(f'type.{name}')})"
    return f"{said}, most likely {likely}; the trace lacks {lacks}."
