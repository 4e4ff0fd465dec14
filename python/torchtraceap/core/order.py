"""Distinct numbers, the median and percentile ranks of an array.

Note [NumPy's own]: `np.unique` and `np.median` give the same, and load `numpy.ma` for it, a tenth
of all imports of a diagnosis. `np.unique` also hashes first, which takes ten times as long for
rows and points, most of which are in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import Array

__all__ = ["distinct", "median", "percentile_rank"]


def distinct(numbers: Array) -> Array:
    """Return each number of an integer array `[n]` once, ascending. See Note [NumPy's own]."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers.copy()
    ordered = np.sort(numbers)
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    found: Array = ordered[first]
    return found


def median(values: npt.ArrayLike) -> float:
    """Return the median of numbers `[n]` without NaN; n > 0. See Note [NumPy's own]."""
    ordered = np.sort(np.asarray(values))
    return float(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1].mean())


def percentile_rank(values: Array, value: float) -> float:
    """Return the part of numbers `[n]` that are below one, equal ones counted half; n > 0."""
    return float(((values < value).sum() + 0.5 * (values == value).sum()) / len(values))
