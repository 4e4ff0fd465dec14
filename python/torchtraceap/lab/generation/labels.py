"""Members of a label: where a trace loses time, in which windows, and nothing for a twin.

Note [Growing late]: each piece of GPU work that both runs have is late in the faulty one by the
difference of its times. Along the stream, and on to the end of the recording, that lateness grows
from nothing to the whole cost. It grows where time is lost: where the stream stands still, or does
injected work. It shrinks again where the twin waits for something that is there already in the
faulty run, such as a host that is late by itself: that much of what was lost before was no loss. It
is taken off the last stretch in which the lateness grew, from its begin on.

Note [Merged]: intervals that are close to each other are joined, the closest first, as long as what
that adds is at most 3 % of the cost: a slow host loses time in each of thousands of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core import Array, covered_ns
from torchtraceap.datasets import GRIDS, POSITIVE
from torchtraceap.tables import build_windows
from torchtraceap.trace import RankTrace

if TYPE_CHECKING:
    from torchtraceap.lab.generation.scene import Outcome

__all__ = ["NO_FAULT", "covered_windows", "lost_intervals", "window_labels"]

_MERGED = 0.03

NO_FAULT: dict[str, Any] = {
    "twin": None, "type": None, "form": "none", "decoy": False, "looks_like": None,
    "late_rank": None, "role": None, "cost_ns": 0, "severity": 0.0, "intervals": [],
}  # fmt: skip
"""Members of the label of a twin."""


def lost_intervals(faulty: Outcome, twin: Outcome, points: Array) -> Array:
    """Return where a run loses the time that its twin does not, int64 `[n, 2]`, ns of the graph's
    clock. See Note [Growing late].

    Args:
        faulty: The run with the fault.
        twin: The run without it.
        points: Begins and ends of the work that both have, by time, and the end of the recording.
    """
    at_ns = np.maximum.accumulate(faulty.times_ns[points])
    late_ns = at_ns - np.maximum.accumulate(twin.times_ns[points])
    stretches: list[list[list[int]]] = []
    grows = False
    before_at, before = int(at_ns[0]) - max(int(late_ns[0]), 0), 0
    for at, late in zip(at_ns.tolist(), late_ns.tolist(), strict=True):
        more = late - before
        if more > 0 and at > before_at:
            if not grows:
                stretches.append([])
            stretches[-1].append([max(before_at, at - more), at])
            grows = True
        elif more < 0:
            grows = False
            left = -more
            while left > 0 and stretches:
                first = stretches[-1][0]
                taken = min(left, first[1] - first[0])
                first[0] += taken
                left -= taken
                if first[0] == first[1]:
                    stretches[-1].pop(0)
                if not stretches[-1]:
                    stretches.pop()
        before_at, before = at, late
    found = [interval for stretch in stretches for interval in stretch]
    return _join_close(np.array(found, dtype=np.int64).reshape(-1, 2))


def _join_close(intervals: Array) -> Array:
    """Join close intervals. See Note [Merged]."""
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
    """Return 1 for each window of which the intervals cover a tenth or more, else 0.

    Args:
        bounds_ns: int64 `[windows + 1]`.
        intervals: int64 `[n, 2]`, disjoint, by time.
    """
    covered = covered_ns(intervals, bounds_ns)
    found: list[int] = (covered >= POSITIVE * np.diff(bounds_ns)).astype(int).tolist()
    return found


def window_labels(part: RankTrace, intervals: Array) -> dict[str, list[int]]:
    """Return `covered_windows` of a trace for each number of windows."""
    return {
        str(count): covered_windows(build_windows(part, count=count).bounds_ns, intervals)
        for count in GRIDS
    }
