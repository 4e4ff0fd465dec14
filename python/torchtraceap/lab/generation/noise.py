"""How much times of the host vary: what a profiler sees again and again never takes the same time.

The quantiles are medians over eight public traces (H100, A100, V100, MI300X, RTX 2080 Ti) of the
times of launches that repeat by name, over their median. The tail is long: interrupts, other
threads, the allocator.
"""

from __future__ import annotations

import numpy as np

from torchtraceap.core.aliases import Array

__all__ = ["USUAL_VARIATION", "host_noise"]

_SHARES = np.array([0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 0.995, 1])
_LOGS = np.array([-0.6, -0.44, -0.28, -0.15, 0, 0.17, 0.33, 0.64, 1.1, 1.6])
_MEAN = float(np.exp(np.interp((np.arange(10_000) + 0.5) / 10_000, _SHARES, _LOGS)).mean())
USUAL_VARIATION = 0.25
"""Of launches of a name, the standard deviation over the mean; the median of those traces."""


def host_noise(uniform: Array, share: float) -> Array:
    """Factors with a mean of about 1.

    Args:
        uniform: float64 `[n]` from 0 to 1: drawn.
        share: How much of what is usual, 0 to 1: a recording varies already.
    """
    factors: Array = np.exp(share * np.interp(uniform, _SHARES, _LOGS)) / _MEAN**share
    return factors
