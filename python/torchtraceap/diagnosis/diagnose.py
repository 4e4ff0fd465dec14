"""`build_diagnosis`: the rules on every rank, merged into one answer.

Note [Several ranks]: costs and the profiled time are summed over the ranks, as the timeline is, so
a share is that of all GPUs' time. A saving is wall time, which ranks that train together save
together: it is the mean over the ranks. Where there are steps it is per step: the share that it has
of the counted steps, of an iteration (tables/steps/iterations.py). So bounds and what replays save
are of the same steps, even where the GPU runs far behind the host's ranges. Row numbers and
intervals belong to their rank and say which one it is. What one rank's trace can't show, such as
who was waited for, the rules are told by `tables/matching.py`.

Note [Savings]: a rule's own saving is a bound. Where the run can be replayed with the finding
fixed, what that saves takes its place, and fixes are put into an order (simulation/savings.py).
Such a saving may exceed the finding's cost, as a fix can hide what other findings cost too; for
the ranking of findings it counts up to that cost. The plan begins with the finding that leads
(verdict.py), and findings are numbered in its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.intervals import EMPTY, covered_ns
from torchtraceap.core.knowledge import KnowledgeEntry, load_knowledge
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.results import (
    PAPER_TYPES,
    Evidence,
    Fact,
    Finding,
    Int64Array,
    Lead,
    PlannedFix,
    Saving,
    StepTime,
)
from torchtraceap.core.sums import clamp, total
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.diagnosis.scoring import label_of, load_scorer
from torchtraceap.diagnosis.verdict import (
    computes_on,
    idle_by_cause,
    is_beside,
    largest_part,
    leading_finding,
    time_parts,
)
from torchtraceap.tables.catalog import check_count
from torchtraceap.tables.circumstances import circumstances_of
from torchtraceap.tables.detection import PerRank, detect, judge, known
from torchtraceap.tables.quality import is_unrecorded
from torchtraceap.tables.steps.iterations import counted_spans, step_time
from torchtraceap.tables.summary import build_summary
from torchtraceap.trace.ranks import Ranks, RankTrace

if TYPE_CHECKING:
    from torchtraceap.simulation.savings import Outlook

__all__ = ["build_diagnosis"]


def build_diagnosis(trace: Ranks, *, windows: int = 100, scorer: str | None = None) -> Diagnosis:
    """Runs every rule on every rank and merges what they say.

    Args:
        trace: One or several ranks.
        windows: Number of windows of equal time that get scores.
        scorer: Who scores the windows, by name; `scoring.DEFAULT` for None.

    Raises:
        OptionError: A number of windows that makes no sense, or no such scorer.
        MissingDependencyError: The scorer needs a package that is not installed.
    """
    check_count("windows", windows)
    judge_of_windows = load_scorer(scorer)
    profiled_ns = clamp(sum(_profiled_ns(trace)))
    with progress_stage("looking for anti-patterns"):
        by_type = detect(trace)
    verdicts = {name: judge(parts) for name, parts in by_type.items()}
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
    lead = leading_finding(findings, parts)
    findings = _in_order(findings, lead, outlook.plan if outlook else ())
    findings = _advised(trace, by_type, findings)
    return Diagnosis(
        profiled_ns=profiled_ns,
        verdicts={name: verdicts[name] for name in PAPER_TYPES},
        further_verdicts={n: v for n, v in verdicts.items() if n not in PAPER_TYPES},
        findings=tuple(findings),
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
        bound_by=None if is_unrecorded(trace) else largest_part(parts),
        lead=Lead(lead.type, is_beside(trace, lead, parts)) if lead else None,
        summary=summary,
        trace=trace,
        plan=outlook.plan if outlook else (),
        replay=outlook.replay if outlook else None,
        waiting_ns=_waiting_ns(by_type["straggler"]),
    )


def _profiled_ns(trace: Ranks) -> list[int]:
    """By rank: what is judged of it, but the whole where hardly anything is."""
    if is_unrecorded(trace):
        return [end_ns - start_ns for start_ns, end_ns in (r.tree.profiled for r in trace.ranks)]
    return [rank.profiled_ns for rank in trace.ranks]


def _waiting_ns(straggler: PerRank) -> int:
    """By the ranks that were compared with no other one."""
    facts = (found.facts.get("waiting") for _, found in straggler if found.verdict == "unknown")
    return clamp(sum(int(Fact(*typed).value) for typed in facts if typed is not None))


def _outlook(trace: Ranks, findings: Sequence[Finding], parts: dict[str, int]) -> Outlook | None:
    """See Note [Savings]; None where there is nothing to fix."""
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
    """Findings with their savings, first those whose fix regains most of their own cost."""
    steps = sum(len(rank.tree.steps) for rank in trace.ranks)
    priced = (replace(finding, saving=savings[finding.type]) for finding in findings)
    return sorted(priced, key=lambda finding: _rank_key(finding, steps, len(trace.ranks)))


def _in_order(
    findings: Sequence[Finding], lead: Finding | None, plan: Sequence[PlannedFix]
) -> list[Finding]:
    """The leading finding, those of the plan, the others; so that their numbers are in the order in
    which a report speaks of them."""
    spoken = dict.fromkeys([*([lead.type] if lead else []), *(fix.type for fix in plan)])
    places = {name: place for place, name in enumerate(spoken)}
    return sorted(findings, key=lambda finding: places.get(finding.type, len(places)))


def _advised(
    trace: Ranks, by_type: Mapping[str, PerRank], findings: Sequence[Finding]
) -> list[Finding]:
    """Findings with the advice that fits the trace."""
    entries = [load_knowledge()[finding.type] for finding in findings]
    wanted = {word for entry in entries for words, _ in entry.instead for word in words} | {"xla"}
    circumstances = circumstances_of(trace, by_type, findings, wanted)
    advice = (entry.advice_for(circumstances) for entry in entries)
    return [
        replace(finding, fix=text.fix, code_before=text.code_before, code=text.code_after)
        for finding, text in zip(findings, advice, strict=True)
    ]


def _missing(parts: PerRank) -> tuple[str, ...]:
    signals = chain.from_iterable(found.missing_signals for _, found in parts)
    return tuple(dict.fromkeys(signals))


def _rank_key(finding: Finding, steps: int, ranks: int) -> tuple[float, int, str]:
    """What a fix adds to those ranked above: the saving's part that lies in unclaimed cost.

    Args:
        finding: With its saving.
        steps: Of all ranks together.
        ranks: Their number.
    """
    saving = finding.saving
    best_ns = 0.0
    if saving:
        best_ns = saving.best_ns * (steps if saving.per_step else ranks)
    fresh = finding.unclaimed_cost_ns / finding.cost_ns if finding.cost_ns else 0.0
    return (-min(best_ns, finding.cost_ns) * fresh, -finding.cost_ns, finding.type)


def _merge(name: str, parts: PerRank, profiled_ns: int, step: StepTime | None) -> Finding:
    paying = [(rank, found) for rank, found in known(parts) if found.cost_ns > 0]
    cost_ns = clamp(sum(found.cost_ns for _, found in paying))
    share = min(1.0, cost_ns / profiled_ns) if profiled_ns else 0.0
    of_rank, leading = max(paying, key=lambda part: part[1].cost_ns, default=parts[0])
    entry = load_knowledge()[name]
    facts = {fact: Fact(*typed) for fact, typed in leading.facts.items()}
    return Finding(
        type=name,
        title=entry.title_text(on_host=of_rank.computes_on_host),
        why=_why(entry, facts, of_rank, leading.cost_ns, len(parts)),
        fix=entry.advice.fix,
        code_before=entry.advice.code_before,
        code=entry.advice.code_after,
        doc_url=entry.doc_url,
        cost_ns=cost_ns,
        cost_share=share,
        unclaimed_cost_ns=clamp(sum(found.unclaimed_cost_ns for _, found in paying)),
        intervals=np.concatenate([EMPTY, *(found.intervals for _, found in paying)]),
        interval_ranks=tuple(
            chain.from_iterable([rank.rank] * len(found.intervals) for rank, found in paying)
        ),
        evidence=_evidence(paying),
        evidence_count=sum(found.evidence_count for _, found in paying),
        missing_signals=_missing(parts),
        confidence=_confidence(paying),
        facts=facts,
        saving=_saving(parts, step),
        paper=name in PAPER_TYPES,
        ranks=tuple(rank.rank for rank, _ in paying),
    )


def _why(
    entry: KnowledgeEntry, facts: dict[str, Fact], rank: RankTrace, cost_ns: int, ranks: int
) -> str:
    """The sentence, all figures of the rank that pays most."""
    share = min(1.0, cost_ns / rank.profiled_ns) if rank.profiled_ns else 0.0
    texts = {fact: str(figure) for fact, figure in facts.items()}
    cost, share_text = format_ns(cost_ns), format_share(share)
    why = entry.why_text(texts, cost=cost, share=share_text, on_host=rank.computes_on_host)
    return f"Rank {rank.rank}: {why}" if ranks > 1 else why


def _evidence(parts: PerRank) -> tuple[Evidence, ...]:
    """The most telling rows of the rank that pays most, then of the next, in turn."""
    ordered = sorted(parts, key=lambda part: -part[1].cost_ns)
    columns = [[(rank, row) for row in found.evidence.tolist()] for rank, found in ordered]
    in_turn = (pick for picks in zip_longest(*columns) for pick in picks if pick is not None)
    chosen = [pick for _, pick in zip(range(_core.MAX_EVIDENCE), in_turn, strict=False)]
    return tuple(_event(rank, row) for rank, row in chosen)


def _event(rank: RankTrace, row: int) -> Evidence:
    table = rank.table
    return Evidence(
        row=row,
        name=table.name_of(row),
        start_ns=int(table.ts_ns[row]),
        duration_ns=int(table.dur_ns[row]),
        rank=rank.rank,
    )


def _confidence(parts: PerRank) -> float:
    """Mean over the ranks, weighed by what they pay."""
    cost_ns = sum(found.cost_ns for _, found in parts)
    if not cost_ns:
        return 0.0
    return sum(found.confidence * found.cost_ns for _, found in parts) / cost_ns


def _saving(parts: PerRank, step: StepTime | None) -> Saving | None:
    """The mean over the ranks; at most that of the rank which pays most, since all may wait for
    it."""
    found_ns = np.array(
        [(f.saving_low_ns, f.saving_best_ns, f.saving_high_ns) for _, f in parts], dtype=np.float64
    )
    if not found_ns.any():
        return None
    scale = [_per_step(rank, found.intervals, step) for rank, found in parts]
    counted_ns = found_ns * np.array(scale)[:, None]
    low_ns, best_ns, _ = (int(ns) for ns in counted_ns.mean(axis=0))
    high_ns = int(counted_ns[:, 2].max())
    return Saving(low_ns, best_ns, high_ns, per_step=step is not None, method="bound")


def _per_step(rank: RankTrace, intervals: Int64Array, step: StepTime | None) -> float:
    """What a finding's time has to be multiplied by to be that of a step: the part of it inside
    the counted steps, of their length, of an iteration. Of a rank without steps the profiled time
    stands for one of the other ranks' steps; 1 where there are none at all."""
    if step is None:
        return 1.0
    spans = counted_spans(rank)
    own = step_time([rank]) or step
    if not len(spans):
        return own.measured_ns / max(1, rank.profiled_ns)
    length_ns = total(intervals[:, 1] - intervals[:, 0])
    inside_ns = total(covered_ns(intervals, spans.ravel())[::2])
    inside = inside_ns / length_ns if length_ns else 1.0
    return inside * own.measured_ns / max(1, total(spans[:, 1] - spans[:, 0]))
