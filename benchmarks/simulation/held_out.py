"""A step replayed with what the other steps cost: `held_out_errors`.

A replay of a step from its own durations is right wherever the dependencies are, whatever these
cost. Here a step keeps its structure alone: every edge costs the mean of the same edge in the
rank's other chosen steps (`_core.held_out_lags`). What is left is the step's own variation, and
what dependencies can't say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtraceap import _core
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["HeldOutStep", "held_out_errors", "step_noise"]


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
    held = [step for step in run.chosen_steps if _number_of_steps(run, step.rank) >= 3]
    step_of = np.full(len(run.graph), _core.NO_ROW, dtype=np.uint32)
    for index, step in enumerate(held):
        step_of[step.points] = index
    lags_ns = _core.held_out_lags(run.graph, step_of, len(held))
    delta = _core.GraphDelta()
    delta.set_lags(np.arange(len(lags_ns)), lags_ns)
    times = run.replay(delta)
    return [
        HeldOutStep(step.rank, step.name, run.measured_step_ns(step), run.step_ns(step, times))
        for step in held
    ]


def _number_of_steps(run: SimulatedRun, rank: int) -> int:
    return sum(step.rank == rank for step in run.chosen_steps)


def step_noise(run: SimulatedRun, rank: int) -> float:
    """Coefficient of variation of a rank's chosen steps, as measured; 0 with fewer than two."""
    lengths = [run.measured_step_ns(s) for s in run.chosen_steps if s.rank == rank]
    return float(np.std(lengths, ddof=1) / np.mean(lengths)) if len(lengths) > 1 else 0.0
