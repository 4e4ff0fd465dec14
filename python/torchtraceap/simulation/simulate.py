"""`simulate`: the time of an iteration if findings were fixed.

Note [Prediction]: predicted = measured x iteration in the edited replay / iteration in the replay
as it was. Four replays give four savings: the edit as far as it may go and as far as it is
certain, each on the graph with the residuals of the measured run and on the graph without. The
smallest and the largest are the interval, widened by the steps' own noise (`trust.py`); the guess
is the mean of the four, or the likely effect by the edit. A saving below the noise is not shown:
predicted is then measured, and the note says so.

Note [Floor]: the edited replay is a time by itself. Where it is below the measured time no
prediction is below it: work that hid a stall in the recording, such as that from before it, need
not hide it in a steady state, and the ratio would credit the edit with both. And no edit makes a
stream do its work faster than one event after the other (`gpu_floors_ns`): the busiest stream, with
the durations that the edit leaves, is the least prediction; its interval ends below that by the
variation of this work.

Note [A rank alone]: the time of a collective in the trace of one rank of many is its wait for the
others and the transfer, and these can't be told apart. Edits that change collectives are
not predicted there. Of any other saving the share that collectives have of the step may be lost to
longer waits, if the other ranks don't gain it too.

Note [Plan]: savings overlap, so every candidate is replayed on top of the fixes before it, all
candidates of a round in one call. Two bounds spare replays. A path through the graph meets each
edge once, so an edit that only shortens work gains at most the sum of the time that it removes; and
where edits only remove, no order of them gains more than all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.results import PredictedTime, Result, Trust
from torchtraceap.core.sums import median
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import (
    Change,
    Edit,
    EditedGraph,
    NotApplicableError,
    default_edits,
    edit_names,
    join_changes,
    make_edit,
    share_work,
)
from torchtraceap.simulation.excerpt import simulated_run
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.trust import (
    Noise,
    absent_ranks,
    gpu_floors_ns,
    gpu_noise,
    noise_of,
    noise_of_lengths,
    recorded_clause,
    trust_of,
    waiting_edges,
)
from torchtraceap.trace.ranks import Ranks

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.simulation.edited_trace import EditedTrace, Form

__all__ = ["EditOutcome", "PlanStep", "SimulatedStep", "Simulation", "simulate"]

SCHEMA = "torchtraceap.simulation/1"
LEAST_GAIN = 0.001
"""Share of the measured time that a fix of the plan must add where steps show no noise."""
AT_ONCE = 2
"""Edits, of two or three forms each, that are held and replayed at a time: each may change every
edge of the graph, so that all at once would take more memory than the run itself."""
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class SimulatedStep(Result):
    """An iteration as it was and as its dependencies alone replay it."""

    name: str
    rank: int | None
    measured_ns: int
    replayed_ns: int


@dataclass(frozen=True, slots=True)
class EditOutcome(Result):
    """One edit: the step's time after it, or why there is none."""

    edit: str
    predicted_ns: int | None
    """None: the edit is unknown, does not apply or can't be predicted; `note` says why."""
    low_ns: int | None
    high_ns: int | None
    note: str
    source: str = ""

    @property
    def applies(self) -> bool:
        return self.predicted_ns is not None


@dataclass(frozen=True, slots=True)
class PlanStep(PredictedTime):
    """A fix of the plan, and the time with all fixes up to this one."""

    edit: str
    gain_ns: int
    """Its gain on top of the fixes before it."""


@dataclass(frozen=True, slots=True)
class _Replayed:
    """The savings of several edits together."""

    saved_ns: Array
    """float64 `[forms x exact]`: at best, then cautiously, each with residuals and without."""
    guess_ns: float
    """The mean of the likely savings, between the least and the most of these."""
    left_out: int
    """New dependencies that contradict the order of events and are left out."""
    noises: tuple[Noise, Noise]
    """Noise of the steps with these edits, at best and cautiously."""


def simulate(trace: Ranks, edits: Iterable[str | Edit] | None = None) -> Simulation:
    """Replay a trace from its dependencies, once as it was and once with each edit.

    Args:
        trace: One or several ranks.
        edits: Names such as "loader_workers=4", or objects of the Edit protocol; by default every
            fix that needs no decision. A name that is unknown or does not apply is said in the
            outcome's note.

    Raises:
        OptionError: `edits` is no list of names and edits.
    """
    there_are = f"there are: {', '.join(edit_names())}"
    if isinstance(edits, str):
        raise OptionError(f"edits is a list, such as [{edits!r}]; {there_are}")
    named = default_edits() if edits is None else tuple(edits)
    for edit in named:
        if not isinstance(edit, str) and not hasattr(edit, "apply"):
            raise OptionError(f"{edit!r} is no edit; {there_are}")
    return Simulation(simulated_run(trace), named, trace)


class Simulation(Renderable):
    """A run, its measured times, and its times with edits. Times are those of a step, in ns."""

    def __init__(
        self,
        run: SimulatedRun,
        edits: Sequence[str | Edit],
        trace: Ranks | None = None,
        explained_ns: Array | int = 0,
    ) -> None:
        self.run = run
        self._explained_ns = explained_ns
        self._trace = run.trace if trace is None else trace
        self._made: dict[str, Edit] = {}
        self._names = [edit if isinstance(edit, str) else edit.name for edit in edits]
        self._applied: dict[str, EditedGraph] = {}
        self._refused: dict[str, str] = {}
        for name, edit in zip(self._names, edits, strict=True):
            try:
                made = make_edit(edit) if isinstance(edit, str) else edit
                self._made[name] = made
                graph = made.apply(run)
            except (OptionError, NotApplicableError) as reason:
                self._refused[name] = str(reason)
                continue
            if not self.trust.supports_prediction:
                self._refused[name] = self.trust.reason
            elif self._alone and self._is_of_collectives(graph):
                self._refused[name] = (
                    f"it changes collectives, and {recorded_clause(*self._alone)}: how long they "
                    "wait for the others is not known"
                )
            else:
                self._applied[name] = graph

    def __repr__(self) -> str:
        return f"Simulation(edits={self._names}, applied={len(self._applied)})"

    # ------------------------------------------------------------------------- as it was

    @cached_property
    def steps(self) -> tuple[SimulatedStep, ...]:
        """The steps that count."""
        replayed = self.run.lengths_ns(with_residuals=False)[0]
        return tuple(
            SimulatedStep(step.name, self.run.ranks[step.rank].rank, measured_ns, replayed_ns)
            for step, measured_ns, replayed_ns in zip(
                self.run.steps, self.run.measured_ns.tolist(), replayed.tolist(), strict=True
            )
            if step.counted
        )

    @cached_property
    def measured_ns(self) -> int:
        """The measured iteration: the mean of the steps."""
        return round(self.run.stands_for * float(self.run.mean_ns(self.run.measured_ns)))

    @cached_property
    def median_ns(self) -> int:
        """The median of the steps, for comparison."""
        times = [step.measured_ns for step in self.steps]
        return round(self.run.stands_for * median(times)) if times else 0

    @cached_property
    def replayed_ns(self) -> int:
        """The iteration replayed from its dependencies alone."""
        return round(self.measured_ns * (1 + self.trust.iteration_error))

    @property
    def trust(self) -> Trust:
        """Tests of how far replays of this run predict a fix."""
        return trust_of(self.run)

    @property
    def noise_ns(self) -> float | None:
        """The variation of the mean of such steps, ns; None where a single step shows none."""
        share = self._noise.share
        return None if share is None else share * self.measured_ns

    @cached_property
    def _noise(self) -> Noise:
        return noise_of(self.run)

    @cached_property
    def _alone(self) -> tuple[int, int] | None:
        return absent_ranks(self.run)

    # ------------------------------------------------------------------------- with edits

    @cached_property
    def edits(self) -> tuple[EditOutcome, ...]:
        """The outcomes in the order in which the edits were named."""
        outcomes = []
        for name in self._names:
            graph = self._applied.get(name)
            if graph is None:
                outcomes.append(EditOutcome(name, None, None, None, self._refused[name]))
                continue
            alone = self._savings_alone[name]
            notes = [graph.note] if graph.note else []
            if alone.left_out:
                notes.append("what contradicts the order of events in this trace is left out")
            outcomes.append(self._outcome(name, [graph], alone, notes, graph.source))
        return tuple(outcomes)

    @property
    def applied(self) -> dict[str, EditedGraph]:
        """The change of the graph by each edit that applies, by name."""
        return dict(self._applied)

    @cached_property
    def _savings_alone(self) -> dict[str, _Replayed]:
        """The savings of each edit by itself."""
        savings = self._replayed([*self._applied.values()])
        return dict(zip(self._applied, savings, strict=True))

    def _outcome(
        self,
        name: str,
        graphs: Sequence[EditedGraph],
        replayed: _Replayed,
        notes: list[str],
        source: str,
    ) -> EditOutcome:
        """Make an outcome, without a saving where that is lost in the noise."""
        noise_ns = self._noise_ns(replayed)
        if not replayed.saved_ns.any():
            notes = [*notes, "no step becomes shorter by it"]
        elif abs(replayed.guess_ns) <= noise_ns:
            notes = [
                *notes,
                f"its {'saving' if replayed.guess_ns >= 0 else 'cost'} of "
                f"{format_ns(abs(round(replayed.guess_ns)))} lies below the steps' own noise of "
                f"{format_ns(round(noise_ns))}",
            ]
            least_ns = np.minimum(replayed.saved_ns[2:], 0.0)
            saved_ns = np.concatenate([replayed.saved_ns[:2], least_ns])
            replayed = replace(replayed, guess_ns=0.0, saved_ns=saved_ns)
        predicted, low_ns, high_ns = self._bounds(replayed, graphs)
        return EditOutcome(name, predicted, low_ns, high_ns, "; ".join(notes), source)

    def together(self, names: Iterable[str] | None = None) -> EditOutcome:
        """Simulate several edits at once, in the order given; by default all that apply.

        Raises:
            OptionError: None of them applies, or one was not named to `simulate`.
        """
        chosen = [*names] if names is not None else [n for n in self._names if n in self._applied]
        missing = [name for name in chosen if name not in self._applied]
        if missing:
            others = f"not simulated; those that apply: {', '.join(self._applied) or 'none'}"
            reasons = (self._refused.get(name, others) for name in missing)
            listed = "; ".join(f"{n}: {r}" for n, r in zip(missing, reasons, strict=True))
            raise OptionError(f"these edits can't be taken together: {listed}")
        if not chosen:
            raise OptionError("no edit applies to this trace")
        graphs = [self._applied[name] for name in chosen]
        (replayed,) = self._replayed([_union(self.run, graphs)])
        return self._outcome(" + ".join(chosen), graphs, replayed, [], "")

    def shares(self, by: str = "kernel") -> ColumnTable:
        """Return how much of a step hangs on each kernel, operator or family; see `step_shares`.

        Raises:
            OptionError: The run supports no prediction, or `by` is another word.
        """
        from torchtraceap.simulation.step_shares import step_shares

        if not self.trust.supports_prediction:
            raise OptionError(self.trust.reason)
        return step_shares(self.run, by)

    def _noise_ns(self, replayed: _Replayed) -> float:
        """Return the variation of the steps, before or with the edits: a change of some steps alone
        by an edit is no noise."""
        share = replayed.noises[0].share
        if self._noise.share is None or share is None:
            return 0.0
        after_ns = self.measured_ns - float(replayed.saved_ns.max())
        return min(self._noise.share * self.measured_ns, share * after_ns)

    def _bounds(self, replayed: _Replayed, graphs: Sequence[EditedGraph]) -> tuple[int, int, int]:
        """Return predicted, low and high times: each form with the variation of its own steps. See
        Notes [Floor] and [A rank alone]."""
        kept = 1.0
        if self._alone:
            kept = max(0.0, 1.0 - self.trust.sensitivity.collective_share)
        saved_ns = replayed.saved_ns
        least_ns = np.where(saved_ns > 0, saved_ns * kept, saved_ns)
        wide = 1.0 + np.repeat([noise.spread for noise in replayed.noises], 2)
        # The least GPU time with these edits at best, and its variation. See Note [Floor].
        floor_ns = varies = 0.0
        best = gpu_floors_ns(self.run, join_changes(self.run, [graph.best for graph in graphs]))
        if len(best):
            before = float(gpu_floors_ns(self.run, Change()).mean())
            before_ns = max(self._before_ns[True], before)
            share = float(best.mean()) / before_ns if before_ns else 0.0
            floor_ns, varies = self.measured_ns * min(share, 1.0), gpu_noise(self.run, best)
        after = (
            self.measured_ns - replayed.guess_ns,
            float(((self.measured_ns - saved_ns) / wide).min()),
            float(((self.measured_ns - least_ns) * wide).max()),
        )
        least = (floor_ns, floor_ns / (1.0 + varies), floor_ns)
        predicted, low, high = (round(max(pair)) for pair in zip(after, least, strict=True))
        return predicted, low, high

    # ------------------------------------------------------------------------- replays

    def _replayed(
        self, graphs: Iterable[EditedGraph], *, exact: tuple[bool, ...] = (True, False)
    ) -> list[_Replayed]:
        """Return the savings of each of these; `exact` says whether with the residuals of the
        measured run. See Note [Prediction]."""
        left, savings = iter(graphs), list[_Replayed]()
        while some := list(islice(left, AT_ONCE)):
            savings += self._replayed_at_once(some, exact)
        return savings

    def _replayed_at_once(
        self, graphs: Sequence[EditedGraph], exact: tuple[bool, ...]
    ) -> list[_Replayed]:
        """Replay some edits, in one call for each of `exact`."""
        changes: list[Change] = []
        forms: list[list[int]] = []
        for graph in graphs:
            distinct = [*_changes(graph), *graph.likely]
            place_of = {id(change): len(changes) + n for n, change in enumerate(distinct)}
            forms.append([place_of[id(c)] for c in (graph.best, graph.least, *graph.guesses)])
            changes += distinct
        shares = np.ones((len(exact), len(changes)))
        lost = np.zeros(len(changes), dtype=np.int64)
        most = np.full(len(changes), np.inf)
        noise = [self._noise] * len(changes)
        deltas = [change.delta() for change in changes]
        for row, kept in enumerate(exact):
            replays = self.run.replays(deltas, with_residuals=kept)
            shares[row] = _ratio(replays.steady_ns, self._before_ns[kept])
            lost = np.maximum(lost, replays.left_out)
            if kept:
                most = self.measured_ns - self.run.stands_for * replays.steady_ns
                noise = [
                    noise_of_lengths(self.run, lengths, self._explained_ns)
                    for lengths in replays.lengths_ns
                ]
        saved = self.measured_ns * (1 - shares)
        saved = np.where(saved > 0, np.minimum(saved, np.maximum(most, 0.0)), saved)
        removes = np.array([change.only_removes(self.run) for change in changes], dtype=bool)
        saved[:, removes] = np.maximum(saved[:, removes], 0.0)
        savings = []
        for best, least, *guesses in forms:
            both = saved[:, [best, least]].T.ravel()
            guess_ns = float(np.clip(saved[:, guesses].mean(), both.min(), both.max()))
            noises = noise[best], noise[least]
            savings.append(_Replayed(both, guess_ns, int(lost[[best, least]].max()), noises))
        return savings

    @cached_property
    def _before_ns(self) -> dict[bool, float]:
        return {exact: self.run.steady_ns(with_residuals=exact) for exact in (True, False)}

    def _is_of_collectives(self, graph: EditedGraph) -> bool:
        """Return whether an edit mostly changes collectives. See Note [A rank alone]."""
        if graph.of_collectives is not None:
            return graph.of_collectives
        touched = np.concatenate([graph.best.lags[0], graph.best.dropped])
        ends = np.zeros(len(self.run.graph), dtype=bool)
        waiting = waiting_edges(self.run)
        ends[self.run.destination[waiting]] = True
        ends[self.run.graph.source[waiting]] = True
        sources, destinations, _ = graph.best.added
        near = np.concatenate(
            [
                ends[self.run.destination[touched]] | ends[self.run.graph.source[touched]],
                ends[sources] | ends[destinations],
            ]
        )
        return bool(len(near) and near.mean() >= _MOSTLY)

    # ------------------------------------------------------------------------- plan

    @cached_property
    def plan(self) -> tuple[PlanStep, ...]:
        """The fixes in order of gain: at each place the one that adds most to those before it.

        One edit of those that change the same work for the same reason. The plan ends where no fix
        adds more than the noise. See Note [Plan].
        """
        return self.plan_from(None)

    def plan_from(self, first: str | None) -> tuple[PlanStep, ...]:
        """Plan with a certain edit first, where it applies and adds more than the noise."""
        chosen: EditedGraph | None = None
        left = self.applied
        plan: list[PlanStep] = []
        saved_ns, guess_ns = np.zeros(4), 0.0
        while left:
            fix = self._next_fix(chosen, left, saved_ns, first)
            if fix is None:
                break
            name, chosen, together = fix
            gain_ns = together.guess_ns - guess_ns
            if gain_ns <= self._least_gain_ns(together):
                break
            left = {other: g for other, g in left.items() if not share_work(name, other)}
            saved_ns, guess_ns = together.saved_ns, together.guess_ns
            bounds = self._bounds(together, [chosen])
            plan.append(PlanStep(*bounds, name, round(gain_ns)))
        return tuple(plan)

    def _least_gain_ns(self, together: _Replayed) -> float:
        return max(self._noise_ns(together), LEAST_GAIN * self.measured_ns)

    def _next_fix(
        self,
        chosen: EditedGraph | None,
        left: dict[str, EditedGraph],
        saved_ns: Array,
        first: str | None,
    ) -> tuple[str, EditedGraph, _Replayed] | None:
        """Return the remaining edit that adds most, all edits with it, and their saving; None where
        none can add enough."""
        if chosen is None:
            alone = self._savings_alone
            name = max(left, key=lambda each: alone[each].guess_ns)
            if first in left and alone[first].guess_ns > self._least_gain_ns(alone[first]):
                name = first
            return name, left[name], alone[name]
        names = self._promising_edits(chosen, left, saved_ns)
        if not names:
            return None
        # The edit that saves most on top of those chosen, with the residuals of the recording.
        # Only the best union is held, so that it need not be made again.
        best: list[tuple[str, EditedGraph, _Replayed]] = []
        rest = iter(names)
        while some := list(islice(rest, AT_ONCE)):
            unions = [_union(self.run, [chosen, left[name]]) for name in some]
            best += zip(some, unions, self._replayed(unions, exact=(True,)), strict=True)
            best = [max(best, key=lambda each: each[2].guess_ns)]
        name, together, exact = best[0]
        (inexact,) = self._replayed([together], exact=(False,))
        both_ns = np.stack([exact.saved_ns, inexact.saved_ns], axis=1).ravel()
        guess_ns = (exact.guess_ns + inexact.guess_ns) / 2
        return name, together, replace(exact, saved_ns=both_ns, guess_ns=guess_ns)

    def _promising_edits(
        self, chosen: EditedGraph, left: dict[str, EditedGraph], saved_ns: Array
    ) -> list[str]:
        """Return edits whose bound on the gain is large enough to show. See Note [Plan]."""
        least_ns = LEAST_GAIN * self.measured_ns
        names = [name for name in left if self._most_ns[name] > least_ns]
        rest = [left[name] for name in names]
        if len(rest) < 2 or not all(
            change.only_removes(self.run) for graph in rest for change in _changes(graph)
        ):
            return names
        (all_of_them,) = self._replayed([_union(self.run, [chosen, *rest])], exact=(True,))
        most_ns = float((all_of_them.saved_ns - saved_ns[::2]).max())
        return names if most_ns > least_ns else []

    @cached_property
    def _most_ns(self) -> dict[str, float]:
        """The most that each edit gains, whatever else is changed: the sum of removed costs."""
        steps = max(1, len(self.run.chosen_steps) // max(1, len(self.run.ranks)))
        share = _ratio(np.array([float(self.measured_ns)]), self._before_ns[True])[0]
        most = {}
        for name, graph in self._applied.items():
            removed = []
            for change in _changes(graph):
                edges, lags = change.lags
                before = np.maximum(self.run.cost_ns[edges], self.run.graph.lag_ns[edges])
                sum_ns = float(np.maximum(before - lags, 0).sum(dtype=np.float64))
                # A dropped wait may last as long as the step.
                removed.append(float("inf") if len(change.dropped) else sum_ns)
            most[name] = share * max(removed) / steps
        return most

    # ------------------------------------------------------------------------- output

    def edited_trace(
        self, names: Iterable[str] | None = None, *, form: Form | None = None
    ) -> EditedTrace:
        """Return the whole trace as it would have been recorded with edits, all at once.

        Args:
            names: Names of edits that apply; by default all that do. Without any edit the times
                are the measured ones.
            form: "best" or "cautious"; by default between the two, as predicted.

        Raises:
            OptionError: One of them does not apply, or was not named to `simulate`.
        """
        # A diagnosis writes no trace, and should start fast.
        from torchtraceap.simulation.edited_trace import edited_trace

        chosen = list(self.applied) if names is None else list(names)
        whole = self._whole_run
        if not chosen:
            return edited_trace(whole, None)
        predicted_ns = float(self.together(chosen).predicted_ns or 0)
        graphs = [
            self.applied[name] if whole is self.run else self._made[name].apply(whole)
            for name in chosen
        ]
        graph = _union(whole, graphs)
        return edited_trace(whole, graph, form=form, predicted_ns=predicted_ns)

    @cached_property
    def _whole_run(self) -> SimulatedRun:
        """The run of the whole trace, where `run` is of a part."""
        return self.run if self.run.trace is self._trace else SimulatedRun(self._trace)

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions behind the numbers, as sentences."""
        notes = [self._noise.note] if self._noise.note else []
        if self._alone and self.trust.supports_prediction:
            lost = format_share(min(1.0, self.trust.sensitivity.collective_share))
            notes.append(
                f"{recorded_clause(*self._alone)}: a fix is taken to speed up all alike. What "
                f"collectives wait for the others is not known, so up to {lost} of a saving may be "
                "lost to longer waits."
            )
        return (*(note[0].upper() + note[1:] for note in notes), *self.run.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the document `torchtraceap.simulation/1`."""
        return {
            "schema": SCHEMA,
            "steps": [step.to_dict() for step in self.steps],
            "per_step": self.run.per_step,
            "measured_ns": self.measured_ns,
            "median_ns": self.median_ns,
            "replayed_ns": self.replayed_ns,
            "noise_ns": None if self.noise_ns is None else round(self.noise_ns),
            "trust": self.trust.to_dict(),
            "edits": [outcome.to_dict() for outcome in self.edits],
            "plan": [fix.to_dict() for fix in self.plan],
            "notes": list(self.notes),
        }


def _union(run: SimulatedRun, graphs: Sequence[EditedGraph]) -> EditedGraph:
    """Combine several edits, form by form."""
    best = join_changes(run, [graph.best for graph in graphs])
    if all(graph.cautious is None for graph in graphs):
        return EditedGraph(best)
    least = join_changes(run, [graph.least for graph in graphs])
    if not any(graph.likely for graph in graphs):
        return EditedGraph(best, least)
    pairs = zip(*(graph.guesses for graph in graphs), strict=True)
    return EditedGraph(best, least, tuple(join_changes(run, changes) for changes in pairs))


def _changes(graph: EditedGraph) -> list[Change]:
    return [graph.best] if graph.cautious is None else [graph.best, graph.cautious]


def _ratio(after_ns: Array, before_ns: float) -> Array:
    """Return new over old times, float64 `[n]`; 1 where there was nothing."""
    return after_ns / before_ns if before_ns > 0 else np.ones(len(after_ns))
