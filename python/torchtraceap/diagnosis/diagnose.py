"""`build_diagnosis`: the rules on every rank, merged into one answer.

Note [Several ranks]: costs and the profiled time are summed over the ranks, as the timeline is, so
a share is that of all GPUs' time. A saving is wall time, which ranks that train together save
together: it is the mean over the ranks. Where there are steps it is per step: the share that it has
of the counted steps, of an iteration (tables/steps/iterations.py). So bounds and replayed savings
are of the same steps, even where the GPU runs far behind the host's ranges. Row numbers and
intervals belong to their rank and name it. Facts that one rank's trace can't show, such as the rank
for which others waited, come from `tables/matching.py`.

Note [Savings]: a rule's own saving is a bound. Where the run can be replayed with the finding
fixed, the replayed saving takes its place, and fixes are put into an order
(simulation/savings.py). It may exceed the finding's cost, as a fix can hide other costs too; to
choose the finding that leads (verdict.py) it counts up to that cost. The plan begins with that one.

Note [Order]: the finding that leads is the first, the others stand in the order of what their fixes
save, as it is stated. Behind them stands what adds nothing to that: findings whose saving is not
believed, and those whose fix one before them has already, by cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.intervals import EMPTY, covered_ns
from torchtraceap.core.knowledge import in_unit, load_knowledge
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.results import (
    PAPER_TYPES,
    Evidence,
    Fact,
    Finding,
    Int64Array,
    Lead,
    Saving,
    StepTime,
)
from torchtraceap.core.sums import clamp, total
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.diagnosis.scoring import label_of, load_scorer
from torchtraceap.diagnosis.verdict import (
    bound_by,
    computes_on,
    covering_finding,
    idle_by_cause,
    is_beside,
    leading_finding,
    time_parts,
)
from torchtraceap.tables.catalog import check_count
from torchtraceap.tables.circumstances import circumstances_of
from torchtraceap.tables.detection import PerRank, detect, known, verdicts_of
from torchtraceap.tables.quality import is_unrecorded
from torchtraceap.tables.steps.iterations import counted_work, step_time
from torchtraceap.tables.summary import build_summary
from torchtraceap.trace.ranks import Ranks, RankTrace

if TYPE_CHECKING:
    from torchtraceap.simulation.savings import Outlook

__all__ = ["build_diagnosis"]


def build_diagnosis(trace: Ranks, *, windows: int = 100, scorer: str | None = None) -> Diagnosis:
    """Run every rule on every rank and merge the findings.

    Args:
        trace: One or several ranks.
        windows: Number of windows of equal time that get scores.
        scorer: Name of the scorer of windows; `scoring.DEFAULT` for None.

    Raises:
        OptionError: A number of windows that makes no sense, or no such scorer.
        MissingDependencyError: The scorer needs a package that is not installed.
    """
    check_count("windows", windows)
    judge_of_windows = load_scorer(scorer)
    lengths_ns = [rank.profiled_ns for rank in trace.ranks]
    if is_unrecorded(trace):  # hardly anything is judged: the whole time counts
        lengths_ns = [rank.tree.profiled[1] - rank.tree.profiled[0] for rank in trace.ranks]
    profiled_ns = clamp(sum(lengths_ns))
    with progress_stage("looking for anti-patterns"):
        by_type = detect(trace)
    verdicts = verdicts_of(trace)
    present = {name: by_type[name] for name, v in verdicts.items() if v == "present"}
    summary = build_summary(trace)
    step = summary.step
    findings = [_merge(name, parts, profiled_ns, step) for name, parts in present.items()]
    parts = time_parts(trace)
    outlook = _outlook(trace, findings, parts)
    if outlook:
        findings = _ranked(trace, findings, outlook.savings)
    with progress_stage("scoring windows"):
        scores = judge_of_windows.score(trace, windows)
    lead = leading_finding(findings, parts) or covering_finding(trace, findings, parts)
    findings = _in_order(findings, lead)
    waiting_ns = 0  # of collectives, for ranks whose traces are not here
    for _, part in by_type["straggler"]:
        waiting = part.facts.get("waiting")
        if part.verdict == "unknown" and waiting is not None:
            waiting_ns += int(Fact(*waiting).value)
    return Diagnosis(
        profiled_ns=profiled_ns,
        verdicts={name: verdicts[name] for name in PAPER_TYPES},
        further_verdicts={n: v for n, v in verdicts.items() if n not in PAPER_TYPES},
        findings=tuple(_with_advice(trace, by_type, findings, step)),
        abstained={name: _missing(by_type[name]) for name, v in verdicts.items() if v == "unknown"},
        not_applicable=tuple(
            name
            for name, by_rank in by_type.items()
            if verdicts[name] == "absent" and not any(found.applies for _, found in by_rank)
        ),
        windows=scores,
        scorer=label_of(judge_of_windows),
        idle_ns=idle_by_cause(trace),
        time_ns=parts,
        computes_on=computes_on(trace),
        bound_by="unknown" if is_unrecorded(trace) else bound_by(trace, parts),
        lead=Lead(lead.type, is_beside(trace, lead, parts)) if lead else None,
        summary=summary,
        trace=trace,
        plan=outlook.plan if outlook else (),
        replay=outlook.replay if outlook else None,
        waiting_ns=clamp(waiting_ns),
    )


def _outlook(trace: Ranks, findings: Sequence[Finding], parts: dict[str, int]) -> Outlook | None:
    """Simulate the fixes; None where there is nothing to fix. See Note [Savings]."""
    if not findings:
        return None
    from torchtraceap.simulation.savings import simulate_savings

    def first(savings: dict[str, Saving | None]) -> str | None:
        lead = leading_finding(_ranked(trace, findings, savings), parts)
        return lead.type if lead else None

    with progress_stage("replaying the run with fixes"):
        return simulate_savings(trace, findings, first)


def _ranked(
    trace: Ranks, findings: Sequence[Finding], savings: Mapping[str, Saving | None]
) -> list[Finding]:
    """Return findings with their savings, first those whose fix regains most of their own cost:
    the part of the saving that lies in cost unclaimed by those before."""
    steps = sum(len(rank.tree.steps) for rank in trace.ranks)
    keyed = []
    for finding in findings:
        saving, cost_ns, best_ns = savings[finding.type], finding.cost_ns, 0.0
        if saving:
            best_ns = saving.best_ns * (steps if saving.per_step else len(trace.ranks))
        fresh = finding.unclaimed_cost_ns / cost_ns if cost_ns else 0.0
        key = (-min(best_ns, cost_ns) * fresh, -cost_ns, finding.type)
        keyed.append((key, replace(finding, saving=saving)))
    return [finding for _, finding in sorted(keyed, key=itemgetter(0))]


def _in_order(findings: Sequence[Finding], lead: Finding | None) -> list[Finding]:
    """Return findings in the order in which a report names them. See Note [Order]."""

    def key(finding: Finding) -> tuple[bool, int, int, str]:
        saves_ns = finding.saving.believed_ns if finding.saving else 0
        return lead is None or finding.type != lead.type, -saves_ns, -finding.cost_ns, finding.type

    first: list[Finding] = []
    behind: list[Finding] = []
    fixes: set[str] = set()
    for finding in sorted(findings, key=key):
        saving = finding.saving
        adds = saving is not None and saving.believed_ns > 0 and saving.edit not in fixes
        (first if adds or finding is lead else behind).append(finding)
        fixes |= {saving.edit} if saving and saving.edit else set()
    return first + sorted(behind, key=lambda finding: (-finding.cost_ns, finding.type))


def _with_advice(
    trace: Ranks, by_type: Mapping[str, PerRank], findings: Sequence[Finding], step: StepTime | None
) -> list[Finding]:
    """Return findings with advice that fits the trace, and with why they cost what they do; they
    speak of iterations where a serving engine marks the steps."""
    unit = step.unit if step else "step"
    whole_ns = step.measured_ns if step else sum(rank.profiled_ns for rank in trace.ranks)
    entries = [load_knowledge()[finding.type] for finding in findings]
    wanted = {word for entry in entries for words, _ in entry.instead for word in words} | {"xla"}
    circumstances = circumstances_of(trace, by_type, findings, wanted)
    advice = (entry.advice_for(circumstances) for entry in entries)
    return [
        replace(
            finding,
            title=in_unit(finding.title, unit),
            why=in_unit(_why(finding, by_type[finding.type], whole_ns), unit),
            fix=in_unit(text.fix, unit),
            code_before=text.code_before,
            code=text.code_after,
        )
        for finding, text in zip(findings, advice, strict=True)
    ]


def _why(finding: Finding, parts: PerRank, whole_ns: int) -> str:
    """Return the sentence on the rank that pays most, with what the fix saves where that is clearly
    more than the cost."""
    rank, leading = _paying_most(parts)
    own_share = min(1.0, leading.cost_ns / rank.profiled_ns) if rank.profiled_ns else 0.0
    saving = finding.saving
    saved = saving.best_ns / max(whole_ns, 1) if saving and saving.simulated else 0.0
    told_share = max(own_share, finding.cost_share)
    is_more = saved > told_share + max(0.15 * told_share, 0.005)
    why = load_knowledge()[finding.type].why_text(
        {name: str(figure) for name, figure in finding.facts.items()},
        cost=format_ns(leading.cost_ns),
        share=format_share(own_share),
        saves=format_share(saved) if is_more else "",
        on_host=rank.computes_on_host,
    )
    return f"Rank {rank.rank}: {why}" if len(parts) > 1 else why


def _paying_most(parts: PerRank) -> tuple[RankTrace, _core.Finding]:
    paying = ((rank, part) for rank, part in known(parts) if part.cost_ns > 0)
    return max(paying, key=lambda part: part[1].cost_ns, default=parts[0])


def _missing(parts: PerRank) -> tuple[str, ...]:
    signals = chain.from_iterable(found.missing_signals for _, found in parts)
    return tuple(dict.fromkeys(signals))


def _merge(name: str, parts: PerRank, profiled_ns: int, step: StepTime | None) -> Finding:
    """Merge a finding of several ranks; figures are those of the rank that pays most, and the
    sentences of `_with_advice` are still missing."""
    paying = [(rank, part) for rank, part in known(parts) if part.cost_ns > 0]
    cost_ns = clamp(sum(part.cost_ns for _, part in paying))
    share = min(1.0, cost_ns / profiled_ns) if profiled_ns else 0.0
    rank, leading = _paying_most(parts)
    entry = load_knowledge()[name]
    total_ns = sum(part.cost_ns for _, part in paying)
    confidence = sum(part.confidence * part.cost_ns for _, part in paying) / max(total_ns, 1)
    return Finding(
        type=name,
        title=entry.title_text(on_host=rank.computes_on_host),
        why="",
        fix="",
        code_before="",
        code="",
        doc_url=entry.doc_url,
        cost_ns=cost_ns,
        cost_share=share,
        unclaimed_cost_ns=clamp(sum(part.unclaimed_cost_ns for _, part in paying)),
        intervals=np.concatenate([EMPTY, *(part.intervals for _, part in paying)]),
        interval_ranks=tuple(
            chain.from_iterable([rank.rank] * len(part.intervals) for rank, part in paying)
        ),
        evidence=_evidence(paying),
        evidence_count=sum(part.evidence_count for _, part in paying),
        missing_signals=_missing(parts),
        confidence=confidence,
        facts={fact: Fact(*typed) for fact, typed in leading.facts.items()},
        saving=_saving(parts, step),
        paper=name in PAPER_TYPES,
        ranks=tuple(rank.rank for rank, _ in paying),
    )


def _evidence(parts: PerRank) -> tuple[Evidence, ...]:
    """Return the most telling rows of the rank that pays most, then of the next, in turn."""
    ordered = sorted(parts, key=lambda part: -part[1].cost_ns)
    columns = [[(rank, row) for row in part.evidence.tolist()] for rank, part in ordered]
    in_turn = (pick for picks in zip_longest(*columns) for pick in picks if pick is not None)
    return tuple(
        Evidence(
            row=row,
            name=rank.table.name_of(row),
            start_ns=int(rank.table.ts_ns[row]),
            duration_ns=int(rank.table.dur_ns[row]),
            rank=rank.rank,
        )
        for rank, row in islice(in_turn, _core.MAX_EVIDENCE)
    )


def _saving(parts: PerRank, step: StepTime | None) -> Saving | None:
    """Return the mean over the ranks; at most that of the rank which pays most, since all may wait
    for it."""
    bounds_ns = np.array(
        [(f.saving_low_ns, f.saving_best_ns, f.saving_high_ns) for _, f in parts], dtype=np.float64
    )
    if not bounds_ns.any():
        return None
    scale = [_scale_to_step(rank, part.intervals, step) for rank, part in parts]
    counted_ns = bounds_ns * np.array(scale)[:, None]
    if step is not None:
        counted_ns = np.minimum(counted_ns, step.measured_ns)
    low_ns, best_ns, _ = (int(ns) for ns in counted_ns.mean(axis=0))
    high_ns = int(counted_ns[:, 2].max())
    return Saving(low_ns, best_ns, high_ns, per_step=step is not None, method="bound")


def _scale_to_step(rank: RankTrace, intervals: Int64Array, step: StepTime | None) -> float:
    """Return the factor from a finding's time to that of a step: the part of it inside the counted
    steps, of their length, of an iteration; of a serving engine the mean over its iterations.

    For a rank without steps the profiled time stands for one of the other ranks' steps; 1 where
    there are none at all.
    """
    if step is None:
        return 1.0
    spans = rank.cached("counted work", lambda: counted_work(rank))
    own = rank.cached("step time", lambda: step_time([rank])) or step
    if not len(spans):
        return own.measured_ns / max(1, rank.profiled_ns)
    length_ns = total(intervals[:, 1] - intervals[:, 0])
    inside_ns = total(covered_ns(intervals, spans.ravel())[::2])
    inside = inside_ns / length_ns if length_ns else 1.0
    if own.kinds:  # of an engine all iterations count
        return inside / len(spans)
    return inside * own.measured_ns / max(1, total(spans[:, 1] - spans[:, 0]))
