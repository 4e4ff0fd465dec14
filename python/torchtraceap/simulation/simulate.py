"""`simulate`: what an iteration would take if findings were fixed.

Note [Prediction]: predicted = measured x iteration in the edited replay / iteration in the replay
as it was. Four replays give four savings: the edit as far as it may go and as far as it is
certain, each on the graph with what the measured run took beyond its dependencies and on the graph
without. The smallest and the largest, times the share of such savings that runs have realised, are
the interval, widened by the steps' own noise; the guess is the mean of the four times the middle of
that share. None of them is shorter than what the GPU itself needs (`edits/floor.py`).

Note [Noise]: steps vary by themselves. A saving below 2 CV / sqrt(steps) of the measured time can't
be told from that and is not shown: predicted is then measured, and the note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchtraceap.aliases import Array
from torchtraceap.errors import OptionError
from torchtraceap.ranks import Ranks
from torchtraceap.results import Result
from torchtraceap.simulation.edited_trace import EditedTrace, Form, edited_trace
from torchtraceap.simulation.edits.base import (
    Change,
    Edit,
    EditedGraph,
    NotApplicableError,
    joined,
)
from torchtraceap.simulation.edits.floor import gpu_floor_ns
from torchtraceap.simulation.excerpt import simulated_run
from torchtraceap.simulation.registry import default_edits, make_edit
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.units import format_ns, format_share

__all__ = ["EditOutcome", "PlanStep", "SimulatedStep", "Simulation", "simulate"]

SCHEMA = "torchtraceap.simulation/1"
LEAST_GAIN = 0.001
"""Of the measured time: what a fix of the plan must add where steps show no noise."""
TRUSTED_ERROR = 0.05
"""Replay error up to which savings are predictions; beyond it they are bounds."""


@dataclass(frozen=True, slots=True)
class SimulatedStep(Result):
    """A step as it was and as its dependencies alone replay it."""

    name: str
    rank: int | None
    measured_ns: int
    replayed_ns: int


@dataclass(frozen=True, slots=True)
class EditOutcome(Result):
    """One edit: the step's time after it, or why there is none."""

    edit: str
    predicted_ns: int | None
    """None: the edit is unknown or does not apply; `note` says why."""
    low_ns: int | None
    high_ns: int | None
    note: str
    source: str = ""

    @property
    def applies(self) -> bool:
        return self.predicted_ns is not None


@dataclass(frozen=True, slots=True)
class PlanStep(Result):
    """A fix of the plan, on top of those before it."""

    edit: str
    gain_ns: int
    """What it adds to the fixes before it."""
    predicted_ns: int
    """With all fixes up to this one."""
    low_ns: int
    high_ns: int


@dataclass(frozen=True, slots=True)
class _Saving:
    best_ns: float
    low_ns: float
    high_ns: float


def simulate(trace: Ranks, edits: Iterable[str | Edit] | None = None) -> Simulation:
    """Replays a trace from its dependencies, once as it was and once with each edit.

    Args:
        trace: One or several ranks.
        edits: Names such as "loader_workers=4", or objects of the Edit protocol; by default every
            fix that needs no decision. A name that is unknown or does not apply is said in the
            outcome's note.
    """
    named = default_edits() if edits is None else tuple(edits)
    return Simulation(simulated_run(trace), named, trace)


class Simulation:
    """A run, what it took, and what it would take. Times are those of a step, in ns."""

    def __init__(
        self, run: SimulatedRun, edits: Sequence[str | Edit], trace: Ranks | None = None
    ) -> None:
        self.run = run
        self._trace = run.trace if trace is None else trace
        self._made: dict[str, Edit] = {}
        self._names = [edit if isinstance(edit, str) else edit.name for edit in edits]
        self._applied: dict[str, EditedGraph] = {}
        self._refused: dict[str, str] = {}
        for name, edit in zip(self._names, edits, strict=True):
            self._apply(name, edit)

    def _apply(self, name: str, edit: str | Edit) -> None:
        try:
            made = make_edit(edit) if isinstance(edit, str) else edit
            self._made[name] = made
            self._applied[name] = made.apply(self.run)
        except (OptionError, NotApplicableError) as reason:
            self._refused[name] = str(reason)

    # ------------------------------------------------------------------------- as it was

    @cached_property
    def steps(self) -> tuple[SimulatedStep, ...]:
        """First and last left out where a rank has more than two."""
        times = self.run.replay(with_residuals=False)
        return tuple(
            SimulatedStep(
                step.name,
                self.run.ranks[step.rank].rank,
                self.run.measured_step_ns(step),
                self.run.step_ns(step, times),
            )
            for step in self.run.chosen_steps
        )

    @cached_property
    def measured_ns(self) -> int:
        """Median of the steps."""
        return round(self.run.stands_for * _median([step.measured_ns for step in self.steps]))

    @cached_property
    def replayed_ns(self) -> int:
        """Median of the steps, without anything that only the measured run knew."""
        return round(self.run.stands_for * _median([step.replayed_ns for step in self.steps]))

    @cached_property
    def replay_error(self) -> float:
        """Replayed / measured - 1, of the worst rank: how much the dependencies leave open."""
        return self.run.replay_error()

    @cached_property
    def noise_ns(self) -> float:
        """See Note [Noise]; 0 with fewer than two steps, which show no noise."""
        lengths: dict[str, list[int]] = {}
        for step in self.steps:
            lengths.setdefault(step.name, []).append(step.measured_ns)
        means = np.array([np.mean(values) for values in lengths.values()])
        if len(means) < 2:
            return 0.0
        return float(2 * means.std(ddof=1) / np.sqrt(len(means)))

    @cached_property
    def _before_ns(self) -> dict[bool, float]:
        return {exact: self.run.steady_ns(with_residuals=exact) for exact in (True, False)}

    # ------------------------------------------------------------------------- with edits

    @cached_property
    def edits(self) -> tuple[EditOutcome, ...]:
        """In the order in which they were named."""
        return tuple(map(self._outcome, self._names))

    @property
    def applied(self) -> dict[str, EditedGraph]:
        """What each edit that applies changes in the graph, by name."""
        return dict(self._applied)

    def _outcome(self, name: str) -> EditOutcome:
        graph = self._applied.get(name)
        if graph is None:
            return EditOutcome(name, None, None, None, self._refused[name])
        saving = _saving_of(_realised(graph, self._raw([graph])))
        notes = [graph.note] if graph.note else []
        if graph.realised != (1.0, 1.0):
            low, high = graph.realised
            share = f"{100 * low:.0f} to {100 * high:.0f} %"
            source = f" ({graph.source})" if graph.source else ""
            notes.append(f"{share} of such savings were realised{source}")
        return self._said(name, saving, notes, graph.source, self._floor_ns([graph]))

    def _said(
        self, name: str, saving: _Saving, notes: list[str], source: str, floor_ns: float
    ) -> EditOutcome:
        """An outcome, silent where the saving is lost in the noise."""
        if not saving.low_ns and not saving.high_ns:
            notes = [*notes, "no step becomes shorter by it"]
        elif abs(saving.best_ns) <= self.noise_ns:
            notes = [
                *notes,
                f"its saving of {format_ns(round(saving.best_ns))} lies below the steps' own noise "
                f"of {format_ns(round(self.noise_ns))}",
            ]
            saving = _Saving(0.0, min(0.0, saving.low_ns), saving.high_ns)
        predicted, low_ns, high_ns = self._bounds(saving, floor_ns)
        return EditOutcome(name, predicted, low_ns, high_ns, "; ".join(notes), source)

    def together(self, names: Iterable[str] | None = None) -> EditOutcome:
        """Several edits at once, in the order given; by default all that apply.

        Raises:
            OptionError: None of them applies, or one was not named to `simulate`.
        """
        chosen = [name for name in self._names if name in self._applied]
        if names is not None:
            chosen = list(names)
            missing = [name for name in chosen if name not in self._applied]
            if missing:
                reasons = (self._refused.get(name, "not simulated") for name in missing)
                listed = "; ".join(f"{n}: {r}" for n, r in zip(missing, reasons, strict=True))
                raise OptionError(f"these edits can't be taken together: {listed}")
        if not chosen:
            raise OptionError("no edit applies to this trace")
        graphs: list[EditedGraph] = []
        raw, reached = np.zeros(4), np.zeros((2, 4))
        for name in chosen:
            graphs.append(self._applied[name])
            together = self._raw(graphs)
            raw, reached = together, reached + _realised(graphs[-1], together - raw)
        floor_ns = self._floor_ns(graphs)
        return self._said(" + ".join(chosen), _saving_of(reached), [], "", floor_ns)

    def _floor_ns(self, graphs: Sequence[EditedGraph]) -> float:
        """What the GPU needs with these edits at best, of the measured time."""
        best = joined(self.run, [graph.best for graph in graphs])
        before_ns = max(self._before_ns[True], gpu_floor_ns(self.run, Change()))
        share = gpu_floor_ns(self.run, best) / before_ns if before_ns else 0.0
        return self.measured_ns * min(share, 1.0)

    def _bounds(self, saving: _Saving, floor_ns: float) -> tuple[int, int, int]:
        """Predicted, low, high."""
        if not saving.low_ns and not saving.high_ns:
            return self.measured_ns, self.measured_ns, self.measured_ns
        low_ns = saving.low_ns if saving.low_ns < 0 else max(0.0, saving.low_ns - self.noise_ns)
        after = (saving.best_ns, saving.high_ns + self.noise_ns, low_ns)
        predicted, low, high = (round(max(floor_ns, self.measured_ns - ns)) for ns in after)
        return predicted, low, high

    def _raw(
        self, graphs: Sequence[EditedGraph], *, exact: tuple[bool, ...] = (True, False)
    ) -> Array:
        """What edits together save: float64 `[2 len(exact)]`, first at best, then cautiously.

        `exact`: on the graph with and without what the measured run took beyond its dependencies;
        see Note [Prediction].
        """
        best = joined(self.run, [graph.best for graph in graphs])
        cautious = best
        if any(graph.cautious is not None for graph in graphs):
            changes = [g.best if g.cautious is None else g.cautious for g in graphs]
            cautious = joined(self.run, changes)
        return np.concatenate([self._saved_ns(change, exact) for change in (best, cautious)])

    def _saved_ns(self, change: Change, exact: tuple[bool, ...]) -> Array:
        """float64 `[len(exact)]`."""
        delta = change.delta()
        before = np.array([self._before_ns[kept] for kept in exact])
        after = [self.run.steady_ns(delta, with_residuals=kept) for kept in exact]
        share = np.divide(after, before, out=np.ones(len(exact)), where=before > 0)
        saved: Array = self.measured_ns * (1 - share)
        return np.maximum(saved, 0.0) if change.only_removes(self.run) else saved

    @cached_property
    def plan(self) -> tuple[PlanStep, ...]:
        """Fixes in order of gain: at each place the one that adds most to those before it.

        Savings don't add up, so every candidate is replayed together with the fixes before it. The
        plan ends where no fix adds more than the noise.
        """
        chosen: list[EditedGraph] = []
        left = dict(self._applied)
        plan: list[PlanStep] = []
        raw, reached = np.zeros(4), np.zeros((2, 4))
        while left:
            promises = {name: self._promise(chosen, graph, raw) for name, graph in left.items()}
            name = max(promises, key=lambda candidate: promises[candidate])
            if promises[name] == -np.inf:
                break
            together = self._raw([*chosen, left[name]])
            gains = _realised(left[name], together - raw)
            gain = float(gains.mean())
            if gain <= max(self.noise_ns, LEAST_GAIN * self.measured_ns):
                break
            chosen.append(left.pop(name))
            raw, reached = together, reached + gains
            bounds = self._bounds(_saving_of(reached), self._floor_ns(chosen))
            plan.append(PlanStep(name, round(gain), *bounds))
        return tuple(plan)

    def _promise(self, chosen: Sequence[EditedGraph], graph: EditedGraph, raw: Array) -> float:
        """What a candidate adds, by half of the replays."""
        together = self._raw([*chosen, graph], exact=(True,))
        return float(_realised(graph, together - raw[::2]).mean())

    # ------------------------------------------------------------------------- ways out

    def edited_trace(
        self, names: Iterable[str] | None = None, *, form: Form | None = None
    ) -> EditedTrace:
        """The whole trace as it would have been recorded with edits, all at once.

        Args:
            names: Of edits that apply; by default all that do. Of none at all the measured times.
            form: "best" or "cautious"; by default the form whose step is nearer to the prediction.

        Raises:
            OptionError: One of them does not apply, or was not named to `simulate`.
        """
        chosen = list(self.applied) if names is None else list(names)
        if not chosen:
            return edited_trace(self._whole_run, [])
        outcome = self.together(chosen)
        whole = self._whole_run
        graphs = [
            self.applied[name] if whole is self.run else self._made[name].apply(whole)
            for name in chosen
        ]
        near_ns = float(outcome.predicted_ns or 0)
        return edited_trace(whole, graphs, form=form, near_ns=near_ns)

    @cached_property
    def _whole_run(self) -> SimulatedRun:
        """Where the run is a part of the trace, the trace."""
        return self.run if self.run.trace is self._trace else SimulatedRun(self._trace)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers rest on, the replay error first."""
        error = (
            f"Replayed from its dependencies the step takes {format_ns(self.replayed_ns)}, "
            f"measured {format_ns(self.measured_ns)} ({self.replay_error:+.1%})."
        )
        notes = [error]
        if abs(self.replay_error) > TRUSTED_ERROR:
            notes.append(
                f"That is more than {format_share(TRUSTED_ERROR)} off: take savings as bounds."
            )
        return (*notes, *self.run.notes)

    def to_dict(self) -> dict[str, Any]:
        """The document `torchtraceap.simulation/1`."""
        return {
            "schema": SCHEMA,
            "steps": [step.to_dict() for step in self.steps],
            "measured_ns": self.measured_ns,
            "replayed_ns": self.replayed_ns,
            "replay_error": self.replay_error,
            "noise_ns": round(self.noise_ns),
            "edits": [outcome.to_dict() for outcome in self.edits],
            "plan": [fix.to_dict() for fix in self.plan],
            "notes": list(self.notes),
        }


def _realised(graph: EditedGraph, raw_ns: Array) -> Array:
    """float64 `[2, 4]`: the least and the largest share of each simulated saving."""
    realised: Array = np.outer(graph.realised, raw_ns)
    return realised


def _saving_of(savings_ns: Array) -> _Saving:
    return _Saving(float(savings_ns.mean()), float(savings_ns.min()), float(savings_ns.max()))


def _median(values: Sequence[int]) -> int:
    return int(np.median(values)) if values else 0
