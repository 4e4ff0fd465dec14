"""Measured curves of time over size: monotone, piecewise, small enough to ship.

Between two knots time is linear in the size, that is each piece is an alpha-beta model of its own:
a start-up time and a rate. On public tables of collectives with every other size held out this
errs less than a line in log-log (docs/durations.md), which bends the wrong way where the start-up
time ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass

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

    def covers(self, sizes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether `at` may be asked: inside the measured sizes or not far above them."""
        wanted = np.asarray(sizes, dtype=np.float64)
        begin = 0.0 if self.sizes[0] <= _SMALL_BYTES else self.sizes[0]
        return np.asarray((wanted >= begin) & (wanted <= self.sizes[-1] * _REACH))

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        """Times in ns; constant below the first knot, at the last rate above the last one."""
        wanted = np.asarray(sizes, dtype=np.float64)
        inside = np.interp(wanted, self.sizes, self.ns)
        if self.sizes.size < 2:
            return np.asarray(inside)
        rate = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        return np.asarray(inside + rate * np.maximum(wanted - self.sizes[-1], 0.0))
