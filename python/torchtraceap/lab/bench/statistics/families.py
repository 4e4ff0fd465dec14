"""Control of false discoveries when a suite makes several comparisons.

Note [False discoveries]: of sixty comparisons at alpha 0.01 without any change, every second suite
would raise an alarm. By Benjamini and Hochberg (1995) the expected share of false ones among the
alarms stays below `FDR`, and where nothing changed at all so does the probability of any alarm. It
needs p values that hold for the whole sequential comparison (`whole_p`). Comparisons that stopped
early have a p that is hardly below alpha; they go on, look by look, where the suite needs a smaller
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.statistics import scipy_stats

__all__ = ["FDR", "q_values"]

FDR = 0.05
"""The largest expected share of false alarms among the alarms of a suite."""


def q_values(p: Sequence[float]) -> Array:
    """Return the smallest false discovery rate at which each comparison is a discovery (Benjamini
    and Hochberg)."""

    found: Array = scipy_stats().false_discovery_control(p)
    return found
