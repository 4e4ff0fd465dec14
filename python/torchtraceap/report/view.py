"""What both reports say: wording and figures, worked out once from a diagnosis.

The terminal and the HTML report only lay out a `ReportView`; neither decides anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchtraceap.core.formatting import (
    format_change,
    format_count,
    format_ns,
    format_percent,
    format_range,
    one_line,
)
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.records import dataclass
from torchtraceap.diagnosis.verdict import COMPUTATION
from torchtraceap.report.simulation_trust import trust_text
from torchtraceap.report.step import step_note
from torchtraceap.tables.quality import is_unrecorded, recording_line

if TYPE_CHECKING:
    from torchtraceap.core.results import (
        Diagnostic,
        Finding,
        RankTimeline,
        ReplayCheck,
        Saving,
        Step,
        Summary,
    )
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
_NO_GPU = ("GPU events",)
# Ranks whose busy shares lie this close are alike.
SPREAD = 0.02

GPU_LABELS = {
    "compute": "compute",
    "communication": "exposed communication",
    "memcpy": "exposed copies",
    "device_memcpy": "exposed device copies",
}
IDLE_LABELS = {
    "data_loading": "waiting for data",
    "host_wait": "host busy, nothing queued",
    "synchronization": "synchronisation",
    "memory_copy": "blocking copy call",
    "communication_wait": "waiting for a collective",
    "compilation": "compilation",
    "allocator": "memory allocator",
    "launch_latency": "launch latency",
    "profiler": "profiler overhead",
    "unknown": "waits for work outside the file",
    "within_graph": "between kernels of one CUDA graph",
}
# Of a run that computes on the host: causes of its critical path.
HOST_LABELS = {
    "host_forward": "forward pass",
    "host_backward": "backward pass",
    "host_optimizer": "optimiser",
    "host_other": "other work",
    "host_gap": "between operators",
    "data_loading": "data loading",
}
BOUND_BY = {
    "host_forward": "the forward pass",
    "host_backward": "the backward pass",
    "host_optimizer": "the optimiser",
    "host_other": "other work of the host",
    "host_gap": "work between operators",
    "compute": "GPU compute",
    "communication": "communication",
    "memcpy": "copies between host and device",
    "device_memcpy": "copies between or within devices",
    "data_loading": "data loading",
    "host_wait": "the host (CPU bound)",
    "synchronization": "synchronisation with the host",
    "memory_copy": "blocking copies",
    "communication_wait": "waiting for collectives",
    "compilation": "compilation",
    "allocator": "the memory allocator",
    "launch_latency": "launch latency",
    "profiler": "the profiler's own overhead",
    "unknown": "waits for work outside the file",
    "within_graph": "gaps between kernels of one CUDA graph",
}


# What a part of the bar means, for those who ask.
MEANINGS = {
    "compute": "at least one kernel computes",
    "communication": "a collective runs, and no computation beside it",
    "memcpy": "a copy between host and device runs, and nothing else",
    "device_memcpy": "a copy between or within devices runs, and nothing else",
    "data_loading": "the loop waits for its next batch",
    "host_wait": "the queue is empty while the host works on what comes next",
    "synchronization": "the host had waited for the GPU, and launches only then",
    "memory_copy": "the host sits in a call that copies",
    "communication_wait": "what comes next waits for a collective",
    "compilation": "code is compiled or loaded on first use",
    "allocator": "device memory is allocated or freed through the driver",
    "launch_latency": "work is launched and has not begun yet",
    "profiler": "the profiler itself works",
    "unknown": "nothing in the file says why: its cause lies outside",
    "within_graph": "the device goes from one node of a graph to the next; no launch lies between",
    "host_forward": "operators of the forward pass",
    "host_backward": "operators of the backward pass",
    "host_optimizer": "operators of the optimiser",
    "host_other": "other operators and calls",
    "host_gap": "time between operators, such as Python code",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of the time bar."""

    key: str
    label: str
    time_ns: int
    """Of one rank (the mean over ranks)."""
    share: float
    """Of the profiled time."""
    is_idle: bool
    text: str = ""
    """What the bar says of it; by default its share."""

    @property
    def meaning(self) -> str:
        """What the part stands for, in a few words; empty if nobody knows."""
        return MEANINGS.get(self.key, "")


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two bars: what a step takes, and what it would take; shares are of the longer one."""

    label: str
    """What is done."""
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
    """Only of a simulated saving."""
    sureness: str
    fix: str
    code_before: str
    code_after: str
    doc_url: str


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A type that could not be checked."""

    type: str
    title: str
    missing: str
    paper: bool


@dataclass(frozen=True, slots=True)
class Passed:
    """A type that was checked and is not there."""

    type: str
    title: str
    audit: str
    paper: bool


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything the reports show, in the order in which they show it."""

    title: str
    files: tuple[str, ...]
    facts: tuple[str, ...]
    headline: str
    explanation: str
    recording: str
    """What the recording lacks (`recording_line`); empty where it is fine."""
    sureness: str
    step_ns: int | None
    step_note: str
    """Such as "mean of 6 steps, median 177 ms"; empty without steps."""
    steps_inferred: bool
    profiled_ns: int
    """Of one rank (the mean over ranks)."""
    busy_share: float
    has_gpu: bool
    operators: tuple[Segment, ...]
    """Of a run that computes on the host: operators by the time in which they themselves run."""
    segments: tuple[Segment, ...]
    idle: tuple[Segment, ...]
    """Idle time by cause, largest first."""
    findings: tuple[FindingView, ...]
    together: str
    """What all fixes save: the plan where they are simulated, else a bound."""
    plan: tuple[BeforeAfter, ...]
    """Fixes on top of each other, in order."""
    replay: str
    """How well the run can be replayed, or why savings are bounds; empty if nothing was tried."""
    unchecked: tuple[Unchecked, ...]
    passed: tuple[Passed, ...]
    notes: tuple[Diagnostic, ...]
    steps: tuple[Step, ...]
    ranks: int
    rank_range: str
    """For several ranks: how far their busy time lies apart."""
    is_healthy: bool
    path_argument: str
    """The input as one would type it."""
    input_name: str
    """Its last part: the name of the file or folder."""


def label_of(name: str) -> str:
    """A type's name as words."""
    return name.replace("_", " ")


def _check_name(type_: str, *, on_host: bool) -> str:
    entry = load_knowledge().get(type_)
    return entry.name_text(on_host=on_host) if entry else label_of(type_)


def build_view(diagnosis: Diagnosis) -> ReportView:
    """Works out wording and figures from a diagnosis."""
    ranks = max(1, len(diagnosis.summary.files))
    profiled_ns = diagnosis.profiled_ns // ranks
    has_gpu = diagnosis.computes_on == "gpu"
    segments = _segments(diagnosis, ranks)
    idle = sorted((s for s in segments if s.is_idle), key=lambda s: (-s.time_ns, s.key))
    findings = _findings(diagnosis, profiled_ns)
    return ReportView(
        title=title_of(diagnosis.summary),
        files=tuple(file.path for file in diagnosis.summary.files),
        facts=facts_of(diagnosis.summary),
        headline=headline_of(diagnosis),
        explanation=_explanation(diagnosis),
        recording=recording_line(diagnosis.trace),
        sureness=_sureness(diagnosis),
        step_ns=diagnosis.step.measured_ns if diagnosis.step else None,
        step_note=step_note(diagnosis.summary),
        steps_inferred=diagnosis.summary.steps_inferred,
        profiled_ns=profiled_ns,
        busy_share=diagnosis.busy_share,
        has_gpu=has_gpu,
        operators=_operators(diagnosis),
        segments=tuple(segments),
        idle=tuple(idle),
        findings=findings,
        together=_planned(diagnosis) or _together(diagnosis, profiled_ns),
        plan=_plan_bars(diagnosis),
        replay=replay_text(diagnosis),
        unchecked=_unchecked(diagnosis),
        passed=_passed(diagnosis),
        notes=diagnosis.summary.diagnostics,
        steps=diagnosis.summary.steps,
        ranks=ranks,
        rank_range=_rank_range(diagnosis.summary.ranks),
        is_healthy=_is_healthy(diagnosis),
        path_argument=_path_argument([file.path for file in diagnosis.summary.files]),
        input_name=_input_name([file.path for file in diagnosis.summary.files]),
    )


def title_of(summary: Summary) -> str:
    """The name of the file, or of the folder of the ranks."""
    files = summary.files
    first = PurePath(files[0].path) if files else PurePath("trace")
    if len(files) == 1:
        return one_line(first.name, 80)
    folder = first.parent.name or first.name
    return f"{one_line(folder, 70)} ({len(files)} ranks)"


def facts_of(summary: Summary) -> tuple[str, ...]:
    """Which GPUs, which rank, how many events."""
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


def _rank_range(ranks: Sequence[RankTimeline]) -> str:
    if len(ranks) < 2:
        return ""
    busy = sorted((rank.timeline.share(rank.timeline.busy_ns), rank.rank or 0) for rank in ranks)
    (low, first), (high, last) = busy[0], busy[-1]
    if high - low < SPREAD:
        return f"{len(ranks)} ranks: GPU busy {format_percent((low + high) / 2)} on each"
    return (
        f"{len(ranks)} ranks: GPU busy from {format_percent(low)} (rank {first}) "
        f"to {format_percent(high)} (rank {last})"
    )


def _path_argument(paths: Sequence[str]) -> str:
    """The one file, the folder of all files, or the first file and dots."""
    if len(paths) == 1:
        return shlex.quote(one_line(paths[0], 300))
    folders = {str(PurePath(path).parent) for path in paths}
    if len(folders) == 1:
        return shlex.quote(one_line(folders.pop(), 300))
    return f"{shlex.quote(one_line(paths[0], 300))} ..." if paths else ""


def _input_name(paths: Sequence[str]) -> str:
    first = PurePath(paths[0]) if paths else PurePath("trace")
    return one_line((first if len(paths) == 1 else first.parent).name or "PATH", 100)


def _segments(diagnosis: Diagnosis, ranks: int) -> list[Segment]:
    """The parts of the profiled time: what GPUs did, then why they idled, largest first."""
    on_host = diagnosis.computes_on == "host"
    parts = [
        Segment(
            key,
            HOST_LABELS.get(key, label_of_part(key)) if on_host else label_of_part(key),
            ns // ranks,
            _share(diagnosis, key),
            is_idle=key not in GPU_LABELS and not on_host,
        )
        for key, ns in diagnosis.time_ns.items()
        if ns > 0
    ]
    order = list(GPU_LABELS)
    return sorted(
        parts,
        key=lambda s: (order.index(s.key), 0, "") if s.key in order else (99, -s.time_ns, s.key),
    )


def label_of_part(key: str) -> str:
    return GPU_LABELS.get(key) or IDLE_LABELS.get(key) or label_of(key)


def _share(diagnosis: Diagnosis, key: str) -> float:
    return diagnosis.time_ns.get(key, 0) / max(1, diagnosis.profiled_ns)


def _operators(diagnosis: Diagnosis) -> tuple[Segment, ...]:
    """What takes most of a run that computes on the host."""
    if diagnosis.computes_on != "host":
        return ()
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


def _loss(diagnosis: Diagnosis) -> str | None:
    """The largest part of the time that is not computation, where it is worth a word."""
    lost = [key for key in diagnosis.time_ns if key not in COMPUTATION]
    worst = max(lost, key=lambda key: diagnosis.time_ns[key], default=None)
    return worst if worst and _share(diagnosis, worst) >= LOST_SHARE else None


def _is_whole(diagnosis: Diagnosis) -> bool:
    """Is nothing known to be missing from the recording, or to be left out?"""
    return all(note.code == "several_processes" for note in diagnosis.summary.quality.notes)


def _is_healthy(diagnosis: Diagnosis) -> bool:
    on_gpu = diagnosis.computes_on == "gpu"
    is_busy = on_gpu and _is_whole(diagnosis) and diagnosis.busy_share >= HEALTHY_BUSY_SHARE
    return diagnosis.lead is None and is_busy and _loss(diagnosis) is None


def _findings(diagnosis: Diagnosis, profiled_ns: int) -> tuple[FindingView, ...]:
    whole_ns = _whole_ns(diagnosis, profiled_ns)
    views: list[FindingView] = []
    first_with: dict[str, int] = {}
    for number, finding in enumerate(diagnosis.findings, start=1):
        saves = _saves(diagnosis, finding, whole_ns)
        edit = finding.saving.edit if finding.saving else ""
        if edit and first_with.setdefault(edit, number) != number:
            saves = f"saved by the same fix as {first_with[edit]}"
        views.append(
            FindingView(
                number=number,
                finding=finding,
                saves=saves,
                saves_short=_saves_short(finding),
                bars=_bars(finding, diagnosis.replay),
                sureness=_sure(finding.confidence),
                fix=finding.fix,
                code_before=finding.code_before,
                code_after=finding.code,
                doc_url=finding.doc_url,
            )
        )
    return tuple(views)


def _whole_ns(diagnosis: Diagnosis, profiled_ns: int) -> int:
    """What savings are a part of: a step, else the profiled time of a rank."""
    return max(1, diagnosis.step.measured_ns if diagnosis.step else profiled_ns)


def _saves(diagnosis: Diagnosis, finding: Finding, whole_ns: int) -> str:
    saving, replay, step = finding.saving, diagnosis.replay, diagnosis.step
    if saving is None:
        return "saving not estimated"
    if saving.simulated and replay:
        return _simulated(saving, replay)
    if saving.high_ns <= 0:
        rest = step is not None and step.left_out > 0
        return "saves nothing in these steps" if rest else "saves no GPU time by itself"
    per = " per step" if saving.per_step else ""
    percent = format_percent(min(saving.high_ns / whole_ns, 1.0))
    return f"saves at most {format_ns(saving.high_ns)}{per} ({percent})"


def _simulated(saving: Saving, replay: ReplayCheck) -> str:
    if not saving.best_ns:
        than = "steps vary" if replay.noise_ns else "0.1 %"
        return f"saves less than {than} (simulated)"
    before_ns, after_ns = replay.measured_ns, replay.measured_ns - saving.best_ns
    if format_ns(before_ns) == format_ns(after_ns):
        between = format_range(saving.low_ns, saving.high_ns)
        return f"saves {format_ns(saving.best_ns)}{_per(saving.per_step)} (simulated, {between})"
    change = format_change(before_ns, after_ns)
    between = format_range(before_ns - saving.high_ns, before_ns - saving.low_ns)
    return f"{change}{_per(saving.per_step)} (simulated, {between})"


def _per(per_step: bool) -> str:
    return " per step" if per_step else " in all"


def _bars(finding: Finding, replay: ReplayCheck | None) -> BeforeAfter | None:
    saving = finding.saving
    if saving is None or replay is None or not saving.simulated or not saving.best_ns:
        return None
    after = [replay.measured_ns - ns for ns in (saving.best_ns, saving.high_ns, saving.low_ns)]
    return before_after(saving.edit, replay.measured_ns, *after)


def before_after(
    label: str, before_ns: int, after_ns: int, low_ns: int, high_ns: int, longest: int = 1
) -> BeforeAfter:
    """Two bars on the scale of `longest` or the longer of them; times in ns."""
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


def _plan_bars(diagnosis: Diagnosis) -> tuple[BeforeAfter, ...]:
    """Each fix from where those before it lead to, all on one scale."""
    plan = diagnosis.plan
    longest = max((max(fix.total_ns_after + fix.gain_ns, fix.high_ns) for fix in plan), default=1)
    return tuple(
        before_after(
            fix.edit,
            fix.total_ns_after + fix.gain_ns,
            fix.total_ns_after,
            fix.low_ns,
            fix.high_ns,
            longest,
        )
        for fix in plan
    )


def _planned(diagnosis: Diagnosis) -> str:
    """The plan in one sentence; empty without one."""
    plan, replay = diagnosis.plan, diagnosis.replay
    if not plan or replay is None:
        return ""
    numbers = {finding.type: place for place, finding in enumerate(diagnosis.findings, start=1)}
    order = ", then ".join(f"{numbers.get(fix.type, '?')} ({fix.edit})" for fix in plan)
    last = plan[-1]
    change = format_change(replay.measured_ns, last.total_ns_after)
    share = format_percent(1 - last.total_ns_after / replay.measured_ns)
    between = format_range(last.low_ns, last.high_ns)
    first = "Fix" if len(plan) == 1 else "In this order, on top of each other: fix"
    return f"{first} {order}: {change}{_per(replay.per_step)} ({share} less; simulated, {between})."


def replay_text(diagnosis: Diagnosis) -> str:
    """How far what is simulated can be trusted; empty where nothing was replayed."""
    replay = diagnosis.replay
    if replay is None:
        return ""
    if not replay.trust.supports_prediction:
        return f"savings are bounds: {replay.trust.reason}"
    measured = f"{format_ns(replay.measured_ns)}{_per(replay.per_step)}"
    on_host = diagnosis.computes_on == "host"
    return f"{measured}; replayed {trust_text(replay.trust.to_dict(), on_host=on_host)}"


def _saves_short(finding: Finding) -> str:
    saving = finding.saving
    if saving is None or saving.high_ns <= 0 or (saving.simulated and not saving.best_ns):
        return "—"
    time_ns = saving.best_ns if saving.simulated else saving.high_ns
    return f"{format_ns(time_ns)}{' / step' if saving.per_step else ''}"


def _sure(confidence: float) -> str:
    word = "fairly sure" if confidence >= FAIRLY_SURE else "not sure"
    return f"{'sure' if confidence >= SURE else word} ({confidence:.2f})"


def _sureness(diagnosis: Diagnosis) -> str:
    """How sure the verdict is, and of what."""
    if diagnosis.lead:
        leading = diagnosis.finding(diagnosis.lead.type)
        return _sure(leading.confidence) if leading else ""
    open_checks = sum(1 for verdict in diagnosis.verdicts.values() if verdict == "unknown")
    if not open_checks:
        return "all 8 main checks could be made"
    return f"{len(diagnosis.verdicts) - open_checks} of 8 main checks could be made"


def headline_of(diagnosis: Diagnosis) -> str:
    """The one sentence: the leading finding; else whether the run is healthy, or what it loses.

    See verdict.py, Note [Leading finding].
    """
    return _leading_sentence(diagnosis) + _whose_trace_would_tell(diagnosis)


def _whose_trace_would_tell(diagnosis: Diagnosis) -> str:
    """Where half of the largest part of the time is waiting for ranks whose traces are not here."""
    part = diagnosis.bound_by
    if part not in ("communication", "communication_wait"):
        return ""
    if 2 * diagnosis.waiting_ns < diagnosis.time_ns[part]:
        return ""
    return "; collectives wait for another rank: the other ranks' traces would tell who is late"


def _not_recorded(diagnosis: Diagnosis) -> str:
    """What stands in place of a verdict where there is hardly anything to judge; else empty."""
    if not is_unrecorded(diagnosis.trace):
        return ""
    if any(note.code == "no_load" for note in diagnosis.summary.quality.notes):
        return "Hardly anything ran while this was recorded: there is nothing to judge"
    return "The GPU's work is not recorded: nothing can be said of its time"


def _leading_sentence(diagnosis: Diagnosis) -> str:
    if not_recorded := _not_recorded(diagnosis):
        return not_recorded
    lead = diagnosis.finding(diagnosis.lead.type) if diagnosis.lead else None
    if lead and diagnosis.lead:
        whose = "all ranks' time" if len(diagnosis.summary.files) > 1 else "the time"
        said = f"{_leading_title(diagnosis, lead)}: {format_percent(lead.cost_share)} of {whose}"
        key = diagnosis.bound_by
        if not diagnosis.lead.beside or key is None:
            return said
        return f"{said}, beside {format_percent(_share(diagnosis, key))} of {BOUND_BY[key]}"
    if not diagnosis.computes_on:
        return "This trace holds no GPU work: only the host side could be checked"
    if diagnosis.computes_on == "host" and diagnosis.bound_by:
        share = format_percent(_share(diagnosis, diagnosis.bound_by))
        part = BOUND_BY.get(diagnosis.bound_by, label_of_part(diagnosis.bound_by))
        little = "explains much of" if diagnosis.findings else "found in"
        return f"No known anti-pattern {little} this run on the host: {share} is {part}"
    return _without_lead(diagnosis)


def _without_lead(diagnosis: Diagnosis) -> str:
    part = "the time" if _is_whole(diagnosis) else "the recorded time"
    busy = f"the GPU is busy {format_percent(diagnosis.busy_share)} of {part}"
    minor = sum(1 for f in diagnosis.findings if f.saving and f.saving.believed_ns > 0)
    small = f"; {minor} smaller {'thing' if minor == 1 else 'things'} to change" if minor else ""
    if _is_healthy(diagnosis):
        return f"Healthy: {busy}{small}"
    loss = _loss(diagnosis)
    if loss is None:
        return f"No known anti-pattern found; {busy}{small}"
    share = format_percent(_share(diagnosis, loss))
    return (
        f"No known anti-pattern explains most of what is lost: {share} {label_of_part(loss)}{small}"
    )


def _leading_title(diagnosis: Diagnosis, lead: Finding) -> str:
    """Its title, and which of several ranks."""
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


def _explanation(diagnosis: Diagnosis) -> str:
    parts = []
    if diagnosis.step is not None:
        step = format_ns(diagnosis.step.measured_ns)
        parts.append(f"Step {step} ({step_note(diagnosis.summary)})")
    else:
        ranks = max(1, len(diagnosis.summary.files))
        parts.append(f"{format_ns(diagnosis.profiled_ns // ranks)} profiled, no steps marked")
    if diagnosis.computes_on == "gpu":
        parts.append(f"GPU busy {format_percent(diagnosis.busy_share)}")
    elif diagnosis.computes_on == "host":
        parts.append("computes on the host, no GPU recorded")
    if diagnosis.bound_by:
        parts.append(
            f"bound by {BOUND_BY.get(diagnosis.bound_by, label_of_part(diagnosis.bound_by))}"
        )
    return " · ".join(parts)


def _together(diagnosis: Diagnosis, profiled_ns: int) -> str:
    """What all fixes save at most together, where none is simulated.

    Neither more than the savings added up, nor more than the time that the findings cover, in which
    overlaps count once: a mean over the ranks, of which one may pay more.
    """
    savings = [finding.saving for finding in diagnosis.findings if finding.saving]
    if len(savings) < 2 or not profiled_ns or any(saving.simulated for saving in savings):
        return ""
    whole_ns = _whole_ns(diagnosis, profiled_ns)
    covered = sum(finding.unclaimed_cost_ns for finding in diagnosis.findings)
    covered_ns = whole_ns * min(1.0, covered / diagnosis.profiled_ns)
    each_ns = [saving.high_ns for saving in savings]
    most_ns = min(max(min(sum(each_ns), covered_ns), max(each_ns)), whole_ns)
    per = " per step" if savings[0].per_step else ""
    most = f"{format_ns(round(most_ns))}{per} ({format_percent(most_ns / whole_ns)})"
    return f"All fixes together save at most {most}, overlaps counted once."


def _unchecked(diagnosis: Diagnosis) -> tuple[Unchecked, ...]:
    on_host = diagnosis.computes_on == "host"
    of_gpu = [name for name, signals in diagnosis.abstained.items() if signals == _NO_GPU]
    shown = {n: s for n, s in diagnosis.abstained.items() if not (on_host and n in of_gpu)}
    entries = [
        Unchecked(
            type=name,
            title=_check_name(name, on_host=on_host),
            missing="; ".join(signals) or "the trace lacks the signal",
            paper=name in diagnosis.verdicts,
        )
        for name, signals in shown.items()
    ]
    if on_host and of_gpu:
        title = f"{len(of_gpu)} checks of work on a GPU"
        entries.append(Unchecked("", title, "the run computes on the host", paper=False))
    return tuple(entries)


def _passed(diagnosis: Diagnosis) -> tuple[Passed, ...]:
    verdicts = diagnosis.verdicts | diagnosis.further_verdicts
    knowledge = load_knowledge()
    on_host = diagnosis.computes_on == "host"
    return tuple(
        Passed(
            type=name,
            title=_check_name(name, on_host=on_host),
            audit=knowledge[name].audit if name in knowledge else "",
            paper=name in diagnosis.verdicts,
        )
        for name, verdict in verdicts.items()
        if verdict == "absent" and name not in diagnosis.not_applicable
    )
