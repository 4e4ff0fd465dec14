"""`simulate_savings`: the saving of each finding's fix, by replaying the run with the fix.

Note [Bounds and predictions]: a finding's own saving is a bound, the idle or exposed time in its
intervals. A replay takes its place where an edit stands for the fix and changes something in this
trace, and where replays of the run can say what a fix does (`trust.py`). Otherwise the bound stays,
and its note says why. An edit is one way to fix a finding, and a replay knows only the dependencies
that the trace shows: the interval reaches to the time in which the evidence shows computation
standing still, where that is more. That is no bound for work that gets shorter; and with the other
ranks in the replay it knows what a rank's evidence does not, for whom it waits.

Note [One fix, several findings]: findings may share a fix, such as two kinds of waits for the GPU.
Each shows what the fix saves; the plan has it once, under the finding that leads, else under the
one that costs most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import Int64Array, covered_ns, union
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Finding, PlannedFix, ReplayCheck, Saving
from torchtraceap.errors import TraceError
from torchtraceap.simulation.edits.base import (
    EditedGraph,
    NotApplicableError,
    edits_by_finding,
    make_edit,
)
from torchtraceap.simulation.excerpt import simulated_run
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import EditOutcome, PlanStep, Simulation
from torchtraceap.simulation.trust import trust_of
from torchtraceap.trace.ranks import Ranks

__all__ = ["Outlook", "simulate_savings"]

Savings: TypeAlias = dict[str, Saving | None]

_NO_EDIT = "no simulated edit stands for this fix"
_SPORADIC = 0.1
"""A finding of few steps takes no more than this share of its mean in half of them."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The savings of all fixes."""

    savings: Savings
    """The simulated saving by type of finding, else its bound with the reason."""
    plan: tuple[PlannedFix, ...]
    replay: ReplayCheck | None
    """None: nothing was replayed."""


def simulate_savings(
    trace: Ranks, findings: Sequence[Finding], first: Callable[[Savings], str | None]
) -> Outlook:
    """Replay the run once for each fix, and for fixes on top of each other.

    Args:
        trace: One or several ranks.
        findings: Findings of the trace, with their bounds.
        first: Returns the type of finding with which the plan is to begin, once savings are known;
            one whose fix is not simulated, or gains nothing, is left to its place.
    """
    try:
        return _simulate(trace, findings, first)
    except TraceError as error:
        return _only_bounds(findings, f"the run can't be replayed: {error}")


def _simulate(
    trace: Ranks, findings: Sequence[Finding], first: Callable[[Savings], str | None]
) -> Outlook:
    if not any(finding.type in edits_by_finding() for finding in findings):
        return _only_bounds(findings, _NO_EDIT)
    if not any(len(rank.tree.gpu_rows) or rank.computes_on_host for rank in trace.ranks):
        return _only_bounds(findings, "there is no GPU work to replay")
    run = simulated_run(trace)
    trust = trust_of(run)
    if not trust.supports_prediction:
        return _only_bounds(findings, trust.reason, _check(Simulation(run, [])))
    tried = _Edits(run)
    chosen = {finding.type: tried.choose(finding) for finding in findings}
    explained_ns = _sporadic_ns(run, findings)
    simulation = Simulation(run, _applied_edits(chosen), explained_ns=explained_ns)
    check = _check(simulation)
    outcomes = {outcome.edit: outcome for outcome in simulation.edits}
    savings: Savings = {}
    beyond_ns: dict[str, int] = {}
    standing = {r.type for r in _core.rules() if r.saving_basis in ("idle", "idle_or_exposed")}
    for finding in findings:
        edit = chosen[finding.type]
        if isinstance(edit, _Applied):
            saving = _saving(finding, outcomes[edit.name], check)
            # Pinning is the edit for high_memcpy: where it saves less at most than the guess of the
            # bound, other copies cost.
            bound = finding.saving
            is_small_part = (
                finding.type == "high_memcpy"
                and saving is not None
                and bound is not None
                and saving.per_step == bound.per_step
                and saving.high_ns < bound.best_ns
            )
            if not is_small_part:
                stands = finding.type in standing and len(run.ranks) == 1
                if saving is not None and bound is not None and stands:
                    beyond_ns[finding.type] = _beyond_ns(saving, bound, check.measured_ns)
                    saving = replace(saving, high_ns=saving.high_ns + beyond_ns[finding.type])
                savings[finding.type] = saving
                continue
            chosen[finding.type] = edit = f"not simulated: {edit.name} changes a small part of it"
        savings[finding.type] = _bound(finding, edit)
    if len(_applied_edits(chosen)) < len(outcomes):
        # The plan has only fixes that are shown.
        simulation = Simulation(run, _applied_edits(chosen), explained_ns=explained_ns)
    leading = first(savings)
    fix = chosen[leading] if leading else None
    steps = simulation.plan_from(fix.name if isinstance(fix, _Applied) else None)
    return Outlook(savings, _plan(steps, findings, chosen, beyond_ns, leading), check)


def _sporadic_ns(run: SimulatedRun, findings: Sequence[Finding]) -> Array:
    """Return the time that findings of few steps take in each step, int64 `[steps]`, ns; each
    instant counts once. See Note [Noise] of trust.py."""
    counted = np.array([step.counted for step in run.steps], dtype=bool)
    ranks = np.array([step.rank for step in run.steps], dtype=np.int64)
    sporadic: list[list[Int64Array]] = [[] for _ in run.ranks]

    def inside_ns(sets: Sequence[Int64Array]) -> Array:
        found = np.zeros(len(ranks), dtype=np.int64)
        for index, intervals in enumerate(sets):
            # From the clock of the graph to that of the rank's GPU.
            ahead_ns = run.offsets_ns[index] + run.ranks[index].tree.launch_delay_correction_ns
            mine = np.flatnonzero(ranks == index)
            spans_ns = run.measured_spans[mine] - ahead_ns
            found[mine] = covered_ns(intervals, spans_ns.ravel())[::2]
        return found

    for finding in findings:
        numbers = np.array([-1 if n is None else n for n in finding.interval_ranks], dtype=np.int64)
        own = [
            finding.intervals[numbers == (-1 if part.rank is None else part.rank)]
            for part in run.ranks
        ]
        each_ns = inside_ns(own)[counted]
        if len(each_ns) and np.median(each_ns) <= _SPORADIC * each_ns.mean():
            for sets, intervals in zip(sporadic, own, strict=True):
                sets.append(intervals)
    return inside_ns([union(sets) for sets in sporadic])


class _Applied:
    """An edit that was applied once, so that the simulation need not do it again."""

    def __init__(self, name: str, graph: EditedGraph) -> None:
        self.name = name
        self._graph = graph

    def apply(self, run: SimulatedRun) -> EditedGraph:
        return self._graph


class _Edits:
    """Edits that stand for fixes, each applied at most once."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._tried: dict[str, _Applied | str] = {}

    def choose(self, finding: Finding) -> _Applied | str:
        """Return the first edit for its fix that applies, else why the first does not."""
        names = edits_by_finding().get(finding.type, ())
        for name in names:
            edit = self._try(name)
            if isinstance(edit, _Applied):
                return edit
        return self._try(names[0]) if names else _NO_EDIT

    def _try(self, name: str) -> _Applied | str:
        if name not in self._tried:
            try:
                self._tried[name] = _Applied(name, make_edit(name).apply(self._run))
            except NotApplicableError as error:
                self._tried[name] = f"not simulated: {error}"
        return self._tried[name]


def _only_bounds(
    findings: Sequence[Finding], reason: str, check: ReplayCheck | None = None
) -> Outlook:
    return Outlook({f.type: _bound(f, reason) for f in findings}, (), check)


def _bound(finding: Finding, reason: str) -> Saving | None:
    return replace(finding.saving, note=reason) if finding.saving else None


def _check(simulation: Simulation) -> ReplayCheck:
    noise_ns = simulation.noise_ns
    return ReplayCheck(
        measured_ns=simulation.measured_ns,
        replayed_ns=simulation.replayed_ns,
        noise_ns=None if noise_ns is None else round(noise_ns),
        per_step=simulation.run.per_step,
        trust=simulation.trust,
        notes=simulation.notes,
    )


def _saving(finding: Finding, outcome: EditOutcome, check: ReplayCheck) -> Saving | None:
    """Return a saving between nothing and the whole step, whatever the replays say."""
    if outcome.predicted_ns is None or outcome.low_ns is None or outcome.high_ns is None:
        return _bound(finding, f"not simulated: {outcome.note}")
    after = (outcome.high_ns, outcome.predicted_ns, outcome.low_ns)
    saved = (check.measured_ns - ns for ns in after)
    low_ns, best_ns, high_ns = sorted(min(max(ns, 0), check.measured_ns) for ns in saved)
    return Saving(
        low_ns,
        best_ns,
        high_ns,
        per_step=check.per_step,
        method="simulated",
        edit=outcome.edit,
        note=outcome.note,
    )


def _beyond_ns(saving: Saving, bound: Saving, whole_ns: int) -> int:
    """Return how far the bound reaches beyond the interval of a simulated saving. See Note [Bounds
    and predictions]."""
    if not saving.simulated or saving.per_step != bound.per_step:
        return 0
    return max(0, min(bound.high_ns, whole_ns) - saving.high_ns)


def _applied_edits(chosen: Mapping[str, _Applied | str]) -> list[_Applied]:
    """Return the edits, each once."""
    edits = {edit.name: edit for edit in chosen.values() if isinstance(edit, _Applied)}
    return list(edits.values())


def _plan(
    steps: Sequence[PlanStep],
    findings: Sequence[Finding],
    chosen: Mapping[str, _Applied | str],
    beyond_ns: Mapping[str, int],
    leading: str | None,
) -> tuple[PlannedFix, ...]:
    """Name the finding of each fix. See Note [One fix, several findings].

    What is uncertain of a fix stays so under those behind it: intervals never get narrower.
    """
    owner: dict[str, str] = {}
    for finding in sorted(findings, key=lambda f: (f.type != leading, -f.cost_ns)):
        edit = chosen[finding.type]
        if isinstance(edit, _Applied):
            owner.setdefault(edit.name, finding.type)
    plan: list[PlannedFix] = []
    below_ns = above_ns = 0
    for fix in steps:
        after_ns = fix.predicted_ns
        most_ns = after_ns - fix.low_ns + beyond_ns.get(owner[fix.edit], 0)
        below_ns = min(max(below_ns, most_ns), after_ns)
        above_ns = max(above_ns, fix.high_ns - after_ns)
        plan.append(
            PlannedFix(
                type=owner[fix.edit],
                edit=fix.edit,
                gain_ns=fix.gain_ns,
                total_ns_after=after_ns,
                low_ns=after_ns - below_ns,
                high_ns=after_ns + above_ns,
            )
        )
    return tuple(plan)
