"""Simulated machines, whose noise is known.

The log of what a run takes is the sum of noise of the run alone (normal), drift (autoregressive,
with coefficient 0.9 from run to run) and, now and then, a slow run (exponential).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtraceap.core.aliases import Array


@dataclass(frozen=True)
class Machine:
    """The noise of one machine as fractions of a run's time."""

    run: float
    """Standard deviation of a single run."""
    drift: float
    """Standard deviation of the drift."""
    slow: float
    """Probability of a slow run."""
    memory: float = 0.9
    """Autoregressive coefficient of the drift from run to run."""
    slow_by: float = 0.05
    """Mean slowdown of a slow run."""

    def logs(self, comparisons: int, runs: int, generator: np.random.Generator) -> Array:
        """Draw logarithms of run times in order of time, float64 `[comparisons, runs]`."""
        size = comparisons, runs
        drift = generator.normal(0, self.drift, size)
        fresh = np.sqrt(1 - self.memory**2)
        for run in range(1, runs):
            drift[:, run] = self.memory * drift[:, run - 1] + fresh * drift[:, run]
        is_slow = generator.random(size) < self.slow
        slow = np.where(is_slow, generator.exponential(self.slow_by, size), 0.0)
        return generator.normal(0, self.run, size) + drift + slow


MACHINES = {
    "quiet": Machine(run=0.0045, drift=0.005, slow=0.02),
    "shared": Machine(run=0.015, drift=0.02, slow=0.05),
}
