"""The content of reports: wording and figures, derived once from a diagnosis.

The terminal and the HTML report only lay out a `ReportView`; neither decides anything.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchtraceap.core.formatting import (
    format_change,
    format_count,
    format_ns,
    format_part,
    format_percent,
    format_range,
    one_line,
)
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import GPU_PARTS
from torchtraceap.diagnosis.verdict import COMPUTATION
from torchtraceap.report.labels import (
    BOUND_BY,
    MEANINGS,
    step_note,
    trust_text,
)
from torchtraceap.tables.quality import is_unrecorded, recording_line

if TYPE_CHECKING:
    from torchtraceap.core.results import Diagnostic, Finding, Step, Summary
    from torchtraceap.diagnosis.result import Diagnosis

# A run is called healthy where no finding leads, the GPU is busy for this share of the time, and
# no other part of the time takes the share below: measured steps of one run differ by as much
# (research on benchmark noise: 5-9 % between runs of one build).
HEALTHY_BUSY_SHARE = 0.85
LOST_SHARE = 0.10
# Words for a rule's confidence. It is an ordering of the evidence, not a measured probability.
SURE, FAIRLY_SURE = 0.85, 0.6
# Operators of a run on the host that are named, and the least share of the time.
MOST_OPERATORS, LEAST_OPERATOR = 6, 0.01
# Ranks whose busy shares lie this close are alike.
SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of the time bar."""

    key: str
    label: str
    time_ns: int
    """Time of one rank, as the mean over ranks."""
    share: float
    """Share of the profiled time."""
    is_idle: bool
    text: str = ""
    """Text in the bar; by default its share."""

    @property
    def meaning(self) -> str:
        """An explanation of the part in a few words; empty for parts without one."""
        return MEANINGS.get(self.key, "")


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two bars, the measured and the predicted step; shares are of the longer one."""

    label: str
    """The fix."""
    before: str
    after: str
    between: str
    """The bounds of `after`, such as "127–132 ms"."""
    before_share: float
    after_share: float
    low_share: float
    high_share: float


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding, in words."""

    number: int
    """1 for the first in the ranking."""
    finding: Finding
    saves: str
    """Such as "saves at most 84 ms per step (48 %)", or "177 → 130 ms per step (simulated,
    124–135 ms)" with the bounds of the time after the fix."""
    saves_short: str
    bars: BeforeAfter | None
    """None unless the saving is simulated."""
    sureness: str
    fix: str
    code_before: str
    code_after: str
    doc_url: str

    @property
    def is_told_above(self) -> bool:
        """Whether other findings have claimed all of its time: it sees a symptom of theirs."""
        return self.number > 1 and self.finding.unclaimed_cost_ns == 0


@dataclass(frozen=True, slots=True)
class Check:
    """An anti-pattern that was found absent, or that could not be checked."""

    type: str
    title: str
    note: str
    """The audit of an absent one; the missing signals of one that could not be checked."""
    paper: bool
    """One of the 8 main checks."""


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything the reports show, in the order in which they show it."""

    title: str
    files: tuple[str, ...]
    facts: tuple[str, ...]
    headline: str
    explanation: str
    serving: str
    """Where the time of a token goes, of a serving engine; else empty."""
    operators_line: str
    """How much of its GPU time has an operator; else empty."""
    recording: str
    """Shortcomings of the recording (`recording_line`); empty where it is fine."""
    sureness: str
    step_ns: int | None
    step_note: str
    """Such as "mean of 6 steps, median 177 ms"; empty without steps."""
    steps_inferred: bool
    profiled_ns: int
    """Profiled time of one rank, as the mean over ranks."""
    busy_share: float
    has_gpu: bool
    operators: tuple[Segment, ...]
    """Operators by self time; empty unless the run computes on the host."""
    segments: tuple[Segment, ...]
    idle: tuple[Segment, ...]
    """Idle time by cause, largest first."""
    findings: tuple[FindingView, ...]
    together: str
    """The saving of all fixes: the plan where they are simulated, else a bound."""
    plan: tuple[BeforeAfter, ...]
    """Fixes on top of each other, in order."""
    replay: str
    """How well unseen steps are simulated, or the reason for bounds; empty if nothing was tried."""
    is_simulated: bool
    """False where savings are bounds."""
    unchecked: tuple[Check, ...]
    passed: tuple[Check, ...]
    notes: tuple[Diagnostic, ...]
    steps: tuple[Step, ...]
    ranks: int
    rank_range: str
    """The range of busy shares over several ranks; empty for one rank."""
    is_healthy: bool
    path_argument: str
    """The input as one would type it in a shell."""
    input_name: str
    """Its last part: the name of the file or folder."""


def build_view(diagnosis: Diagnosis) -> ReportView:
    """Derive wording and figures from a diagnosis."""
    summary = diagnosis.summary
    paths = [file.path for file in summary.files]
    ranks = max(1, len(paths))
    profiled_ns = diagnosis.profiled_ns // ranks
    segments = _segments(diagnosis, ranks)
    idle = sorted((s for s in segments if s.is_idle), key=lambda s: (-s.time_ns, s.key))
    plan = diagnosis.plan
    longest = max((max(fix.total_ns_after + fix.gain_ns, fix.high_ns) for fix in plan), default=1)
    if len(paths) == 1:
        path_argument, name = shlex.quote(one_line(paths[0], 300)), PurePath(paths[0]).name
    else:
        folders = {str(PurePath(path).parent) for path in paths}
        name = PurePath(paths[0]).parent.name if paths else ""
        if len(folders) == 1:
            path_argument = shlex.quote(one_line(folders.pop(), 300))
        else:
            path_argument = f"{shlex.quote(one_line(paths[0], 300))} ..." if paths else ""
    served = diagnosis.serving
    return ReportView(
        title=title_of(summary),
        files=tuple(paths),
        facts=facts_of(summary),
        headline=headline_of(diagnosis),
        explanation=_explanation(diagnosis, profiled_ns),
        serving=str(served) if served else "",
        operators_line=served.operators_line if served else "",
        recording=recording_line(diagnosis.trace),
        sureness=_sureness(diagnosis),
        step_ns=diagnosis.step.measured_ns if diagnosis.step else None,
        step_note=step_note(summary),
        steps_inferred=summary.steps_inferred,
        profiled_ns=profiled_ns,
        busy_share=diagnosis.busy_share,
        has_gpu=diagnosis.computes_on == "gpu",
        operators=_operators(diagnosis) if diagnosis.computes_on == "host" else (),
        segments=tuple(segments),
        idle=tuple(idle),
        findings=_findings(diagnosis, profiled_ns),
        together=_total_saving(diagnosis, profiled_ns),
        plan=tuple(
            before_after(
                fix.edit,
                fix.total_ns_after + fix.gain_ns,
                fix.total_ns_after,
                fix.low_ns,
                fix.high_ns,
                longest,
            )
            for fix in plan
        ),
        replay=replay_text(diagnosis),
        is_simulated=diagnosis.replay is not None and diagnosis.replay.trust.supports_prediction,
        unchecked=_unchecked_checks(diagnosis),
        passed=_passed_checks(diagnosis),
        notes=summary.diagnostics,
        steps=summary.steps,
        ranks=ranks,
        rank_range=_rank_range(summary),
        is_healthy=_is_healthy(diagnosis),
        path_argument=path_argument,
        input_name=one_line(name or "PATH", 100),
    )


def title_of(summary: Summary) -> str:
    """Return the name of the file, or of the folder of the ranks."""
    files = summary.files
    first = PurePath(files[0].path) if files else PurePath("trace")
    if len(files) == 1:
        return one_line(first.name, 80)
    folder = first.parent.name or first.name
    return f"{one_line(folder, 70)} ({len(files)} ranks)"


def facts_of(summary: Summary) -> tuple[str, ...]:
    """Return the GPUs, the rank and the number of events, each as a text."""
    names = summary.device_names
    facts = []
    if names:
        count = f"{len(summary.devices)} × " if len(summary.devices) > 1 else ""
        facts.append(count + one_line(", ".join(names), 60))
    lone = summary.files[0] if len(summary.files) == 1 else None
    if lone and lone.rank is not None and (lone.world_size or 0) > 1:
        facts.append(f"rank {lone.rank} of {lone.world_size}")
    facts.append(f"{format_count(summary.events.total)} events")
    return tuple(facts)


def _rank_range(summary: Summary) -> str:
    if len(summary.ranks) < 2:
        return ""
    lacking = {
        note.rank for note in summary.quality.notes if note.code == "launches_without_gpu_work"
    }
    ranks = [rank for rank in summary.ranks if rank.rank not in lacking]
    if not ranks:
        return f"{len(summary.ranks)} ranks, which all lack GPU records"
    busy = sorted((rank.timeline.share(rank.timeline.busy_ns), rank.rank or 0) for rank in ranks)
    (low, first), (high, last) = busy[0], busy[-1]
    without = f"; {len(lacking)} more lack GPU records" if lacking else ""
    plural = "ranks" if len(ranks) > 1 else "rank"
    if high - low < SPREAD:
        on_each = " on each" if len(ranks) > 1 else ""
        return (
            f"{len(ranks)} {plural}: GPU busy {format_percent((low + high) / 2)}{on_each}{without}"
        )
    return (
        f"{len(ranks)} ranks: GPU busy from {format_percent(low)} (rank {first}) "
        f"to {format_percent(high)} (rank {last}){without}"
    )


# ------------------------------------------------------------------------- parts of the time


def _segments(diagnosis: Diagnosis, ranks: int) -> list[Segment]:
    """Return the parts of the profiled time: GPU work, then causes of idle time by size."""
    on_host = diagnosis.computes_on == "host"
    parts = [
        Segment(
            key,
            format_part(key),
            ns // ranks,
            _share(diagnosis, key),
            is_idle=key not in GPU_PARTS and not on_host,
        )
        for key, ns in diagnosis.time_ns.items()
        if ns > 0
    ]
    order = list(GPU_PARTS)
    return sorted(
        parts,
        key=lambda s: (order.index(s.key), 0, "") if s.key in order else (99, -s.time_ns, s.key),
    )


def _share(diagnosis: Diagnosis, key: str) -> float:
    return diagnosis.time_ns.get(key, 0) / max(1, diagnosis.profiled_ns)


def _operators(diagnosis: Diagnosis) -> tuple[Segment, ...]:
    """Return the operators with the most self time on the host."""
    from torchtraceap.tables.ops.ops import build_ops

    parts: dict[str, int] = {}
    for rank in diagnosis.trace.ranks:
        table = build_ops(rank)
        for name, ns in zip(table["name"].tolist(), table["self_host_ns"].tolist(), strict=True):
            parts[name] = parts.get(name, 0) + ns
    largest = sorted(parts.items(), key=lambda item: (-item[1], item[0]))[:MOST_OPERATORS]
    whole = max(1, diagnosis.profiled_ns)
    return tuple(
        Segment(name, one_line(name, 60), ns, ns / whole, is_idle=False)
        for name, ns in largest
        if ns >= LEAST_OPERATOR * whole
    )


def _main_loss(diagnosis: Diagnosis) -> str | None:
    """Return the largest part of the time that is not computation, unless it is small."""
    lost = [key for key in diagnosis.time_ns if key not in COMPUTATION]
    worst = max(lost, key=lambda key: diagnosis.time_ns[key], default=None)
    return worst if worst and _share(diagnosis, worst) >= LOST_SHARE else None


def _is_complete(diagnosis: Diagnosis) -> bool:
    """Return whether nothing is known to be missing from the recording."""
    notes = diagnosis.summary.quality.notes
    return all(note.code in ("some_steps", "several_processes") for note in notes)


def _is_healthy(diagnosis: Diagnosis) -> bool:
    on_gpu = diagnosis.computes_on == "gpu"
    is_busy = on_gpu and _is_complete(diagnosis) and diagnosis.busy_share >= HEALTHY_BUSY_SHARE
    return diagnosis.lead is None and is_busy and _main_loss(diagnosis) is None


# ------------------------------------------------------------------------- findings and savings


def _findings(diagnosis: Diagnosis, profiled_ns: int) -> tuple[FindingView, ...]:
    views: list[FindingView] = []
    first_with: dict[str, int] = {}
    replay = diagnosis.replay
    for number, finding in enumerate(diagnosis.findings, start=1):
        saving, bars, short = finding.saving, None, "—"
        saves = _saving_text(diagnosis, finding, profiled_ns)
        if saving and saving.edit and first_with.setdefault(saving.edit, number) != number:
            saves = f"saved by the same fix as {first_with[saving.edit]}"
        if saving and saving.high_ns > 0 and (saving.best_ns or not saving.simulated):
            time_ns = saving.best_ns if saving.simulated else saving.high_ns
            per = f" / {_unit(diagnosis)}" if saving.per_step else ""
            short = f"{format_ns(time_ns)}{per}"
        if saving and replay and saving.simulated and saving.best_ns:
            now_ns = replay.measured_ns
            after = (now_ns - ns for ns in (saving.best_ns, saving.high_ns, saving.low_ns))
            bars = before_after(saving.edit, now_ns, *after)
        views.append(
            FindingView(
                number=number,
                finding=finding,
                saves=saves,
                saves_short=short,
                bars=bars,
                sureness=_confidence_text(finding.confidence),
                fix=finding.fix,
                code_before=finding.code_before,
                code_after=finding.code,
                doc_url=finding.doc_url,
            )
        )
    return tuple(views)


def _saving_text(diagnosis: Diagnosis, finding: Finding, profiled_ns: int) -> str:
    saving, replay, step = finding.saving, diagnosis.replay, diagnosis.step
    if saving is None:
        return "saving not estimated"
    if saving.simulated and replay:
        if not saving.best_ns:
            than = f"{_unit(diagnosis)} noise" if replay.noise_ns else "0.1 %"
            return f"saves less than {than} (simulated)"
        before_ns, after_ns = replay.measured_ns, replay.measured_ns - saving.best_ns
        if format_ns(before_ns) == format_ns(after_ns):
            between = format_range(saving.low_ns, saving.high_ns)
            saved = format_ns(saving.best_ns)
            return f"saves {saved}{_per_unit(diagnosis, saving.per_step)} (simulated, {between})"
        change = format_change(before_ns, after_ns)
        between = format_range(before_ns - saving.high_ns, before_ns - saving.low_ns)
        return f"{change}{_per_unit(diagnosis, saving.per_step)} (simulated, {between})"
    if saving.high_ns <= 0:
        rest = step is not None and step.left_out > 0
        return "saves nothing in these steps" if rest else "saves no GPU time by itself"
    per = f" per {_unit(diagnosis)}" if saving.per_step else ""
    percent = format_percent(min(saving.high_ns / _whole_ns(diagnosis, profiled_ns), 1.0))
    return f"saves at most {format_ns(saving.high_ns)}{per} ({percent})"


def _whole_ns(diagnosis: Diagnosis, profiled_ns: int) -> int:
    """Return the time of a step, else the profiled time of a rank: the whole of a saving."""
    return max(1, diagnosis.step.measured_ns if diagnosis.step else profiled_ns)


def _unit(diagnosis: Diagnosis) -> str:
    return diagnosis.step.unit if diagnosis.step else "step"


def _per_unit(diagnosis: Diagnosis, per_step: bool) -> str:
    return f" per {_unit(diagnosis)}" if per_step else " in total"


def before_after(
    label: str, before_ns: int, after_ns: int, low_ns: int, high_ns: int, longest: int = 1
) -> BeforeAfter:
    """Make two bars on the scale of `longest` or the longer of them; times in ns."""
    longest = max(longest, before_ns, high_ns)
    return BeforeAfter(
        label=label,
        before=format_ns(before_ns),
        after=format_ns(after_ns),
        between=format_range(low_ns, high_ns),
        before_share=before_ns / longest,
        after_share=after_ns / longest,
        low_share=low_ns / longest,
        high_share=high_ns / longest,
    )


def _total_saving(diagnosis: Diagnosis, profiled_ns: int) -> str:
    """Return the saving of all fixes in one sentence: the plan, else a bound.

    The bound is neither more than the savings added up, nor more than the time that the findings
    cover, in which overlaps count once: a mean over the ranks, of which one may pay more.
    """
    plan, replay = diagnosis.plan, diagnosis.replay
    if plan and replay:
        numbers = {finding.type: n for n, finding in enumerate(diagnosis.findings, start=1)}
        order = ", then ".join(f"{numbers.get(fix.type, '?')} ({fix.edit})" for fix in plan)
        last = plan[-1]
        change = format_change(replay.measured_ns, last.total_ns_after) + _per_unit(
            diagnosis, replay.per_step
        )
        share = format_percent(1 - last.total_ns_after / replay.measured_ns)
        between = format_range(last.low_ns, last.high_ns)
        first = "Fix" if len(plan) == 1 else "In this order, on top of each other: fix"
        return f"{first} {order}: {change} ({share} less; simulated, {between})."
    savings = [finding.saving for finding in diagnosis.findings if finding.saving]
    if len(savings) < 2 or not profiled_ns or any(saving.simulated for saving in savings):
        return ""
    whole_ns = _whole_ns(diagnosis, profiled_ns)
    covered = sum(finding.unclaimed_cost_ns for finding in diagnosis.findings)
    covered_ns = whole_ns * min(1.0, covered / diagnosis.profiled_ns)
    each_ns = [saving.high_ns for saving in savings]
    most_ns = min(max(min(sum(each_ns), covered_ns), max(each_ns)), whole_ns)
    per = f" per {_unit(diagnosis)}" if savings[0].per_step else ""
    most = f"{format_ns(round(most_ns))}{per} ({format_percent(most_ns / whole_ns)})"
    return f"All fixes together save at most {most}, overlaps counted once."


def replay_text(diagnosis: Diagnosis) -> str:
    """Describe how far simulated savings can be trusted; empty where nothing was replayed."""
    replay = diagnosis.replay
    if replay is None:
        return ""
    if not replay.trust.supports_prediction:
        return f"Savings are bounds: {replay.trust.reason}"
    return f"Simulation check: {trust_text(replay.trust.to_dict(), unit=_unit(diagnosis))}"


# ------------------------------------------------------------------------- the verdict in words


def _confidence_text(confidence: float) -> str:
    word = "fairly sure" if confidence >= FAIRLY_SURE else "not sure"
    return f"{'sure' if confidence >= SURE else word} ({confidence:.2f})"


def _sureness(diagnosis: Diagnosis) -> str:
    """Return how sure the leading finding is, else how many checks could be made."""
    if diagnosis.lead:
        leading = diagnosis.finding(diagnosis.lead.type)
        return _confidence_text(leading.confidence) if leading else ""
    open_checks = sum(1 for verdict in diagnosis.verdicts.values() if verdict == "unknown")
    if not open_checks:
        return "all 8 main checks could be made"
    return f"{len(diagnosis.verdicts) - open_checks} of 8 main checks could be made"


def headline_of(diagnosis: Diagnosis) -> str:
    """Return the one sentence: the leading finding, else the health of the run or its main loss.

    See verdict.py, Note [Leading finding].
    """
    key, waits = diagnosis.largest_part, ""
    on_collectives = key in ("communication", "communication_wait")
    if key and on_collectives and 2 * diagnosis.waiting_ns >= diagnosis.time_ns[key]:
        waits = (
            "; collectives wait for another rank: the other ranks' traces would tell who is late"
        )
    lead = diagnosis.finding(diagnosis.lead.type) if diagnosis.lead else None
    if is_unrecorded(diagnosis.trace):
        if any(note.code == "no_load" for note in diagnosis.summary.quality.notes):
            said = "Hardly anything ran while this was recorded: there is nothing to judge"
        else:
            said = "The GPU's work is not recorded: nothing can be said of its time"
    elif lead and diagnosis.lead:
        whose = "all ranks' time" if len(diagnosis.summary.files) > 1 else "the time"
        said = f"{_leading_title(diagnosis, lead)}: {format_percent(lead.cost_share)} of {whose}"
        if diagnosis.lead.beside and key is not None:
            said += f", next to {format_percent(_share(diagnosis, key))} {format_part(key)}"
    elif not diagnosis.computes_on:
        said = "This trace holds no GPU work: only the host side could be checked"
    elif diagnosis.computes_on == "host" and key:
        share = format_percent(_share(diagnosis, key))
        little = "explains much of" if diagnosis.findings else "found in"
        said = f"No known anti-pattern {little} this run on the host: {share} {_named(key)}"
    else:
        said = _headline_without_lead(diagnosis)
    return said + waits


def _headline_without_lead(diagnosis: Diagnosis) -> str:
    part = "the time" if _is_complete(diagnosis) else "the recorded time"
    busy = f"the GPU is busy {format_percent(diagnosis.busy_share)} of {part}"
    minor = sum(1 for f in diagnosis.findings if f.saving and f.saving.believed_ns > 0)
    small = f"; {minor} smaller {'thing' if minor == 1 else 'things'} to change" if minor else ""
    if _is_healthy(diagnosis):
        return f"Healthy: {busy}{small}"
    loss = _main_loss(diagnosis)
    if loss is None:
        return f"No known anti-pattern found; {busy}{small}"
    share = format_percent(_share(diagnosis, loss))
    return f"No known anti-pattern explains most of what is lost: {share} {_named(loss)}{small}"


def _named(part: str) -> str:
    """Return the name of a part of the time with its meaning."""
    meaning = MEANINGS.get(part)
    return f"{format_part(part)} ({meaning})" if meaning else format_part(part)


def _leading_title(diagnosis: Diagnosis, lead: Finding) -> str:
    """Return the finding's title with the ranks that it concerns."""
    title = lead.title.rstrip(".")
    count = len(diagnosis.summary.files)
    late = lead.facts.get("late rank")
    if late is not None:
        return f"{title} (rank {late} of {count})"
    if count < 2 or len(lead.ranks) == count:
        return title
    if len(lead.ranks) == 1:
        return f"{title} (rank {lead.ranks[0]} of {count})"
    return f"{title} (on {len(lead.ranks)} of {count} ranks)"


def _explanation(diagnosis: Diagnosis, profiled_ns: int) -> str:
    if diagnosis.step is not None:
        step = format_ns(diagnosis.step.measured_ns)
        parts = [f"{_unit(diagnosis).capitalize()} {step} ({step_note(diagnosis.summary)})"]
    else:
        parts = [f"{format_ns(profiled_ns)} profiled, no steps marked"]
    if diagnosis.computes_on == "gpu" and not is_unrecorded(diagnosis.trace):
        parts.append(f"GPU busy {format_percent(diagnosis.busy_share)}")
    elif diagnosis.computes_on == "host":
        parts.append("computes on the host, no GPU recorded")
    if bound := BOUND_BY.get(diagnosis.bound_by):
        parts.append(f"bound by {bound}")
    return " · ".join(parts)


# ------------------------------------------------------------------------- checks


def _check_title(type_: str, *, on_host: bool) -> str:
    entry = load_knowledge().get(type_)
    return entry.name_text(on_host=on_host) if entry else type_.replace("_", " ")


def _unchecked_checks(diagnosis: Diagnosis) -> tuple[Check, ...]:
    on_host = diagnosis.computes_on == "host"
    entries, of_gpu = [], 0
    for name, signals in diagnosis.abstained.items():
        if on_host and signals == ("GPU events",):
            of_gpu += 1
            continue
        title = _check_title(name, on_host=on_host)
        note = "; ".join(signals) or "the trace lacks the signal"
        entries.append(Check(name, title, note, name in diagnosis.verdicts))
    if of_gpu:
        title = f"{of_gpu} checks of work on a GPU"
        entries.append(Check("", title, "the run computes on the host", paper=False))
    return tuple(entries)


def _passed_checks(diagnosis: Diagnosis) -> tuple[Check, ...]:
    verdicts = diagnosis.verdicts | diagnosis.further_verdicts
    knowledge = load_knowledge()
    on_host = diagnosis.computes_on == "host"
    return tuple(
        Check(
            type=name,
            title=_check_title(name, on_host=on_host),
            note=knowledge[name].audit if name in knowledge else "",
            paper=name in diagnosis.verdicts,
        )
        for name, verdict in verdicts.items()
        if verdict == "absent" and name not in diagnosis.not_applicable
    )
