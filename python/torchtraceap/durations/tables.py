"""Measured curves of time over size: monotone, piecewise, small enough to ship.

Between two knots time is linear in the size, that is each piece is an alpha-beta model of its own:
a start-up time and a rate. On public tables of collectives with every other size held out this
errs less than a line in log-log (docs/durations.md), which bends the wrong way where the start-up
time ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchtraceap.durations.estimate import UnknownDurationError

__all__ = ["Curve"]

FloatArray = npt.NDArray[np.float64]

# Below the first knot time is start-up only if that knot is small; above the last one it goes on
# at the last rate.
_SMALL_BYTES = 8192
_REACH = 16.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Time over size; both ascend, time not strictly."""

    sizes: FloatArray
    """In bytes (or whatever the maker of the curve measured)."""
    ns: FloatArray

    def covers(self, size: float) -> bool:
        """Whether `at` may be asked: inside the measured sizes or not far above them."""
        below = size < self.sizes[0] and self.sizes[0] > _SMALL_BYTES
        return not below and size <= self.sizes[-1] * _REACH

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        """Times in ns; constant below the first knot, at the last rate above the last one."""
        wanted = np.asarray(sizes, dtype=np.float64)
        inside = np.interp(wanted, self.sizes, self.ns)
        if self.sizes.size < 2:
            return np.asarray(inside)
        rate = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        return np.asarray(inside + rate * np.maximum(wanted - self.sizes[-1], 0.0))

    def ns_at(self, size: float) -> float:
        """Time of one size, in ns.

        Raises:
            UnknownDurationError: The size is too far from those measured.
        """
        if not self.covers(size):
            low, high = self.sizes[0], self.sizes[-1] * _REACH
            raise UnknownDurationError(f"{size:,.0f} bytes lie outside {low:,.0f} to {high:,.0f}")
        return float(self.at(size))
