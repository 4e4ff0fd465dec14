"""`lost_intervals`: where a run loses the time that its twin does not.

Note [Growing late]: each piece of GPU work that both runs have is late in the faulty one by the
difference of its times. Along the stream, and on to the end of the recording, that lateness grows
from nothing to the whole cost. It grows where time is lost: where the stream stands still, or does
what was put in. It shrinks again where the twin waits for something that is there already in the
faulty run, such as a host that is late by itself: that much of what was lost before was no loss. It
is taken off the last stretch in which the lateness grew, from its begin on.

Note [Merged]: intervals that are close to each other are joined, the closest first, as long as what
that adds is at most 3 % of the cost: a slow host loses time in each of thousands of calls.
"""

from __future__ import annotations

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.generation.scene import Outcome

__all__ = ["covered_windows", "lost_intervals"]

_MERGED = 0.03
_COVERED = 0.1
"""Of a window: less is no label."""


def lost_intervals(faulty: Outcome, twin: Outcome, points: Array) -> Array:
    """int64 `[n, 2]`, ns of the graph's clock. See Note [Growing late].

    Args:
        faulty: With the fault.
        twin: Without it.
        points: Begins and ends of the work that both have, by time, and the end of the recording.
    """
    at_ns = np.maximum.accumulate(faulty.times_ns[points])
    late_ns = at_ns - np.maximum.accumulate(twin.times_ns[points])
    return _merged(_grown(at_ns.tolist(), late_ns.tolist()))


def _grown(at_ns: list[int], late_ns: list[int]) -> Array:
    """int64 `[n, 2]`: where lateness grows and does not shrink again."""
    stretches: list[list[list[int]]] = []
    grows = False
    before_at, before = at_ns[0] - max(late_ns[0], 0), 0
    for at, late in zip(at_ns, late_ns, strict=True):
        more = late - before
        if more > 0 and at > before_at:
            if not grows:
                stretches.append([])
            stretches[-1].append([max(before_at, at - more), at])
            grows = True
        elif more < 0:
            grows = False
            _take(stretches, -more)
        before_at, before = at, late
    found = [interval for stretch in stretches for interval in stretch]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _take(stretches: list[list[list[int]]], ns: int) -> None:
    """Of the last stretch, from its begin on."""
    while ns > 0 and stretches:
        first = stretches[-1][0]
        taken = min(ns, first[1] - first[0])
        first[0] += taken
        ns -= taken
        if first[0] == first[1]:
            stretches[-1].pop(0)
        if not stretches[-1]:
            stretches.pop()


def _merged(intervals: Array) -> Array:
    """See Note [Merged]."""
    if len(intervals) < 2:
        return intervals
    gaps = intervals[1:, 0] - intervals[:-1, 1]
    order = np.argsort(gaps, kind="stable")
    allowed = _MERGED * (intervals[:, 1] - intervals[:, 0]).sum()
    joined = np.zeros(len(gaps), dtype=bool)
    joined[order[np.cumsum(gaps[order]) <= allowed]] = True
    firsts = np.append(True, ~joined)
    lasts = np.append(~joined, True)
    return np.stack([intervals[firsts, 0], intervals[lasts, 1]], axis=1)


def covered_windows(bounds_ns: Array, intervals: Array) -> list[int]:
    """1 for each window of which the intervals cover a tenth or more.

    Args:
        bounds_ns: int64 `[windows + 1]`.
        intervals: int64 `[n, 2]`, disjoint, by time.
    """
    begins = np.maximum(intervals[:, 0, None], bounds_ns[None, :-1])
    ends = np.minimum(intervals[:, 1, None], bounds_ns[None, 1:])
    covered = np.maximum(ends - begins, 0).sum(axis=0)
    found: list[int] = (covered >= _COVERED * np.diff(bounds_ns)).astype(int).tolist()
    return found
