"""A step replayed with what the other steps cost: `held_out_errors`.

A replay of a step from its own durations is right wherever the dependencies are, whatever these
cost. Here a step keeps its structure alone: every lag and duration of the run is the mean of the
same edge in the rank's other chosen steps. What is left is the step's own variation, and what
dependencies can't say. Means, because a host now and then takes long for one of its many short
stretches: medians of these sum up to less than a step takes, by 3 to 9 % on public traces.

Note [The same edge]: two points are the same if they lie on the same lane, are of the same name and
come as the same in number among such points of their step. Two edges are the same if they are of
one kind, between the same lanes and names, and lead to the same point. Where no other step has an
edge, one of the same names will do, in any place; where there is none either, it keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.simulation.run import RunStep, SimulatedRun

__all__ = ["HeldOutStep", "held_out_errors", "step_noise"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class HeldOutStep:
    """A step as measured, and as the others predict it."""

    rank: int
    """Index in the run's `ranks`."""
    name: str
    measured_ns: int
    replayed_ns: int

    @property
    def error(self) -> float:
        """Replayed / measured - 1."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else 0.0


def held_out_errors(run: SimulatedRun) -> list[HeldOutStep]:
    """Every chosen step of ranks that have three or more, from what the others cost."""
    results = []
    for rank in range(len(run.ranks)):
        chosen = [step for step in run.chosen_steps if step.rank == rank]
        if len(chosen) < 3:
            continue
        steps = [_EdgesOfStep(run, step) for step in run.steps if step.rank == rank]
        results += [_hold_out(run, steps, held, chosen) for held in chosen]
    return results


def step_noise(run: SimulatedRun, rank: int) -> float:
    """Coefficient of variation of a rank's chosen steps, as measured; 0 with fewer than two."""
    lengths = [run.measured_step_ns(s) for s in run.chosen_steps if s.rank == rank]
    return float(np.std(lengths, ddof=1) / np.mean(lengths)) if len(lengths) > 1 else 0.0


class _EdgesOfStep:
    """Edges that lead to a step's points, with keys by which other steps find them."""

    def __init__(self, run: SimulatedRun, step: RunStep) -> None:
        graph = run.graph
        self.step = step
        inside = np.zeros(len(graph), dtype=bool)
        inside[step.points] = True
        self.edges = np.flatnonzero(inside[run.destination])
        self.lags = graph.lag_ns[self.edges]
        places = _place_keys(run)
        destination, source = run.destination[self.edges], graph.source[self.edges]
        number = np.zeros(len(graph), dtype=np.uint64)
        number[step.points] = _occurrence(places[step.points])
        kind = graph.kind[self.edges]
        self.wide = _mix(places[destination], places[source], kind)
        self.narrow = _mix(self.wide, number[destination])


def _hold_out(
    run: SimulatedRun, steps: list[_EdgesOfStep], held: RunStep, chosen: list[RunStep]
) -> HeldOutStep:
    use = {id(step) for step in chosen if step is not held}
    others = [edges for edges in steps if id(edges.step) in use]
    other_lags = _joined(others, "lags")
    lags = _joined(steps, "lags")
    for level in ("wide", "narrow"):
        known, typical = _means(_joined(others, level), other_lags)
        keys = _joined(steps, level)
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        found = known[at] == keys
        lags[found] = typical[at[found]]
    delta = _core.GraphDelta()
    delta.set_lags(_joined(steps, "edges").astype(np.uint32), lags)
    times = run.replay(delta, with_residuals=False)
    return HeldOutStep(held.rank, held.name, run.measured_step_ns(held), run.step_ns(held, times))


def _joined(steps: list[_EdgesOfStep], column: str) -> Array:
    joined: Array = np.concatenate([getattr(step, column) for step in steps])
    return joined


def _place_keys(run: SimulatedRun) -> Array:
    """uint64 `[points]`: lane, name, begin or end."""
    graph = run.graph
    name = np.zeros(len(graph), dtype=np.uint64)
    for index, part in enumerate(run.ranks):
        for points in (graph.begin_of(index), graph.end_of(index)):
            rows = np.flatnonzero(points != _core.NO_ROW)
            name[points[rows]] = part.table.name[rows].astype(np.uint64) + 1
    return _mix(name, graph.lane, graph.is_end)


def _mix(*parts: Array) -> Array:
    """uint64: a hash of numbers side by side."""
    mixed = np.zeros(len(parts[0]), dtype=np.uint64)
    for part in parts:
        mixed = (mixed ^ part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _occurrence(keys: Array) -> Array:
    """How many equal keys stand before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(keys)])
    number = np.empty(len(keys), dtype=np.uint64)
    number[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return number


def _means(keys: Array, values: Array) -> tuple[Array, Array]:
    """Distinct keys, ascending, and the mean of each one's values."""
    known, place, count = np.unique(keys, return_inverse=True, return_counts=True)
    sums = np.bincount(place, values, len(known))
    return known, np.rint(sums / count).astype(np.int64)
