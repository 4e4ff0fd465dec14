"""Noise of machines, made up: a quiet one and a shared one, to try procedures on.

The log of what a run takes is the sum of noise of the run alone (normal), drift (autoregressive,
with coefficient 0.9 from run to run) and, now and then, a slow run (exponential).
"""

from __future__ import annotations

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass

__all__ = ["MACHINES", "Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Noise of one machine; fractions of what a run takes."""

    run: float
    """Standard deviation of the run alone."""
    drift: float
    """Standard deviation of the drift."""
    slow: float
    """Probability of a slow run."""
    memory: float = 0.9
    """Of the drift, from run to run."""
    slow_by: float = 0.05
    """By how much a slow run is slower, on average."""

    def logs(self, comparisons: int, runs: int, generator: np.random.Generator) -> Array:
        """float64 `[comparisons, runs]`: logs of what runs take, in the order of time."""
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
