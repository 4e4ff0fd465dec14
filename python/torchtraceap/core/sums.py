"""Sums of integers that stop at the ends of 64 bits, as those of the core do, distinct numbers,
the median and percentile ranks of an array.

A trace may claim any time and size. NumPy's sums wrap without a word: a few durations of seventy
years would make a negative total.

Note [NumPy's own]: `np.unique` and `np.median` give the same as `distinct` and `median`, and load
`numpy.ma` for it, a tenth of all imports of a diagnosis. `np.unique` also hashes first, which takes
ten times as long for rows and points, most of which are in order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import Array

__all__ = [
    "MOST",
    "add",
    "clamp",
    "cumulative",
    "distinct",
    "median",
    "percentile_rank",
    "round_to_int",
    "shares",
    "sum_by_index",
    "sum_groups",
    "total",
    "totals",
]

MOST = 2**63 - 1
_LEAST = -(2**63)
_LARGEST_FLOAT = 2.0**63 - 1024  # the largest below 2**63
_HALF = 32
_LOW = 2**_HALF - 1


def total(values: Array) -> int:
    """Return the sum of an integer array; masked values are left out."""
    # Asked in this order, so that NumPy loads its masked arrays only where there are any.
    if type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray):
        values = values.compressed()
    return int(_saturating(values, np.sum)) if values.size else 0


def totals(values: Array, axis: int) -> Array:
    """Return sums along an axis."""
    return _saturating(values, lambda part: part.sum(axis=axis))


def sum_groups(values: Array, starts: Array) -> Array:
    """Return sums of consecutive values, as `np.add.reduceat`."""
    return _saturating(values, lambda part: np.add.reduceat(part, starts))


def sum_by_index(index: Array, values: Array, length: int) -> Array:
    """Return the sum of the values with each index from 0 to `length`, int64 `[length]`."""

    def add(part: Array) -> Array:
        sums = np.zeros(length, dtype=np.int64)
        np.add.at(sums, index, part)
        return sums

    return _saturating(values.astype(np.int64, copy=False), add)


def cumulative(values: Array) -> Array:
    """Return the sums of the values up to each."""
    return _saturating(values, np.cumsum)


def add(a: Array, b: Array | int) -> Array:
    """Add element by element, int64."""
    return _saturating(np.stack(np.broadcast_arrays(a, b)), lambda part: part.sum(axis=0))


def shares(values: Array, whole: int | Array) -> Array:
    """Return the parts of a whole, or of one for each value, float64; NaN where that is nothing."""
    wholes = np.asarray(whole, dtype=np.float64)
    parts: Array = values / np.where(wholes > 0, wholes, np.nan)
    return parts


def round_to_int(values: Array) -> Array:
    """Return floats as whole numbers, int64; NaN is 0."""
    inside = np.clip(np.rint(values), -_LARGEST_FLOAT, _LARGEST_FLOAT)
    whole: Array = np.nan_to_num(inside).astype(np.int64)
    return whole


def clamp(value: int) -> int:
    """Return one of Python's integers in 64 bits."""
    return max(_LEAST, min(value, MOST))


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


def _saturating(values: Array, add: Callable[[Array], Array]) -> Array:
    """Return the result of `add`, which sums some of the values in some way; exact if it fits 64
    bits."""
    if values.dtype.kind == "f" or _fits(values):
        return add(values)
    low = add(values & _LOW)
    high = np.asarray(add(values >> _HALF)) + (low >> _HALF)
    joined = (np.clip(high, -(2**31), 2**31 - 1) << _HALF) | (low & _LOW)
    result: Array = np.where(high >= 2**31, MOST, np.where(high < -(2**31), _LEAST, joined))
    return result


def _fits(values: Array) -> bool:
    if not values.size or values.dtype.itemsize < 8 or values.dtype.kind == "u":
        return True
    largest = max(int(values.max()), -int(values.min()))
    return largest * values.size <= MOST
