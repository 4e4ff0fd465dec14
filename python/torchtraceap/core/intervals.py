"""Sets of half-open time intervals as int64 `[n, 2]` arrays, sorted and disjoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "covered_before", "covered_ns", "difference", "overlaps", "union"]

Int64Array = npt.NDArray[np.int64]

EMPTY: Int64Array = np.zeros((0, 2), dtype=np.int64)


def union(sets: Sequence[Int64Array]) -> Int64Array:
    """Return the union of several sets. O(n log n)."""
    if not sets:
        return EMPTY
    intervals = np.concatenate(sets)
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(intervals):
        return EMPTY
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    first = np.concatenate(([True], intervals[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((intervals[first, 0], reach[last]), axis=1)


def overlaps(intervals: Int64Array) -> Int64Array:
    """Return the set of times at which two or more intervals, `[n, 2]` in any order, overlap. O(n
    log n)."""
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(intervals) < 2:
        return EMPTY
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    shared = np.minimum(reach[:-1], intervals[1:, 1])
    return union([np.stack((intervals[1:, 0], shared), axis=1)])


def difference(whole: Int64Array, holes: Int64Array) -> Int64Array:
    """Return the part of a set that is not in another; both sorted and disjoint. O(n log n)."""
    if not len(holes) or not len(whole):
        return whole
    begins = np.concatenate((whole[:1, 0], holes[:, 1]))
    ends = np.concatenate((holes[:, 0], whole[-1:, 1]))
    return overlaps(np.concatenate((whole, np.stack((begins, ends), axis=1))))


def covered_before(intervals: Int64Array, times_ns: Int64Array) -> Int64Array:
    """Return the length of a set before each time.

    Args:
        intervals: Sorted and disjoint, `[n, 2]`.
        times_ns: Times of any shape, in any order.

    Returns:
        int64 in the shape of the times.
    """
    if not len(intervals):
        return np.zeros(times_ns.shape, dtype=np.int64)
    starts, ends = intervals[:, 0], intervals[:, 1]
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    index = np.searchsorted(starts, times_ns, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.clip(times_ns - starts[last], 0, (ends - starts)[last])
    covered: Int64Array = np.where(index > 0, before[last] + inside, 0)
    return covered


def covered_ns(intervals: Int64Array, bounds_ns: Int64Array) -> Int64Array:
    """Return the length of a set inside each of the slots between consecutive bounds.

    Args:
        intervals: Sorted and disjoint, `[n, 2]`.
        bounds_ns: Ascending, `[count + 1]`.

    Returns:
        int64 `[count]`.
    """
    return np.diff(covered_before(intervals, bounds_ns))
