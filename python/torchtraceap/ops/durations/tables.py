"""Measured curves of time over size, monotone and piecewise linear.

Each piece between two knots is an alpha-beta model of its own: a startup time and a rate. On public
tables of collectives with every other size held out, the error is smaller than that of a line in
log-log space (docs/durations.md), which bends the wrong way at the end of the startup time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass

__all__ = ["Curve"]

FloatArray = npt.NDArray[np.float64]

# Sizes below the first knot are covered only if that knot is small enough to be startup time; sizes
# above the last knot continue at the last rate up to this multiple of it.
_SMALL_BYTES = 8192
_REACH = 16.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Time over size; both ascend, the time not strictly."""

    sizes: FloatArray
    """`[k]`: sizes, usually in bytes."""
    ns: FloatArray
    """`[k]`: times at these sizes."""

    def covers(self, sizes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return bool `[n]`: which sizes are among the measured ones or not far above them."""
        wanted = np.asarray(sizes, dtype=np.float64)
        begin = 0.0 if self.sizes[0] <= _SMALL_BYTES else self.sizes[0]
        return np.asarray((wanted >= begin) & (wanted <= self.sizes[-1] * _REACH))

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        """Return times in ns; constant below the first knot, at the last rate above the last."""
        wanted = np.asarray(sizes, dtype=np.float64)
        inside = np.interp(wanted, self.sizes, self.ns)
        if self.sizes.size < 2:
            return np.asarray(inside)
        rate = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        return np.asarray(inside + rate * np.maximum(wanted - self.sizes[-1], 0.0))
