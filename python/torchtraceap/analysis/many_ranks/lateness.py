"""Which rank keeps the others waiting, and because of what.

Note [Lateness and its cause]: between two collectives of the same ranks all of them are level at
the common end of the first, if they wait for it: a rank that computes beside a collective (DDP
reduces gradients while the backward goes on) stays as far behind as it was. From there to its own
start at the second, each rank spends a segment of time, which is split exactly: compute kernels,
then other collectives, then copies, then idle time by cause. A rank is late by its start minus the
median start of the others, and the excess of a cause is what the rank spent on it beyond the
others' median. So work that all ranks do alike drops out, and a stall early in the segment is
found although something else came last. Only when the
excess of one cause explains at least 80 % of the lateness is that cause named (traceml's rule);
otherwise the rank is late and its cause is not proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.analysis.many_ranks.matching import MatchedCollectives, recorded_bounds

if TYPE_CHECKING:
    from torchtraceap.ranks import RankTrace

__all__ = ["CAUSES", "PROVEN_SHARE", "Lateness", "measure_lateness"]

CAUSES = ("compute", "communication", "copies", "input", "host")
PROVEN_SHARE = 0.8
"""traceml's bound: below it the cause of a late rank is not named."""

_CAUSE_OF_IDLE = {
    "data_loading": "input",
    "memory_copy": "copies",
    "communication_wait": "communication",
}
"""All other idle time is the host's: late launches, synchronisation, compilation, silence."""


@dataclass(frozen=True)
class Lateness:
    """Arrays by rank (index in the trace)."""

    wait_ns: Array
    """int64: waited in collectives for later ranks."""
    compared: Array
    """int64: collectives in which arrivals could be compared."""
    times_last: Array
    """int64."""
    lateness_ns: Array
    """int64: start behind the median of the others, summed over collectives."""
    excess_ns: dict[str, Array]
    """int64 by cause: time beyond the others' median, in the segments of late arrivals."""
    profiled_ns: Array
    """int64: profiled time."""

    def excess_wait_ns(self, rank: int) -> int:
        """How much less than the median rank it waits: a late rank's partners wait for it."""
        return int(np.median(self.wait_ns)) - int(self.wait_ns[rank])

    def is_late(self, rank: int) -> bool:
        """Does it keep the others waiting for a material time, beyond jitter?"""
        bound = _core.MATERIAL_SHARE * float(self.profiled_ns[rank])
        late = min(self.excess_wait_ns(rank), int(self.lateness_ns[rank]))
        return bool(self.profiled_ns[rank]) and late > 0 and late >= bound

    def main_cause(self, rank: int) -> tuple[str, float]:
        """The cause with the largest excess, and which share of the lateness it explains."""
        total = int(self.lateness_ns[rank])
        cause = max(CAUSES, key=lambda name: int(self.excess_ns[name][rank]))
        if total <= 0:
            return cause, 0.0
        return cause, min(1.0, max(0.0, float(self.excess_ns[cause][rank]) / total))

    def verdict(self, rank: int) -> str:
        """`straggler`, `late, cause not proven`, `on time`, or `unknown`."""
        if not self.compared[rank]:
            return "unknown"
        if not self.is_late(rank):
            return "on time"
        _, share = self.main_cause(rank)
        return "straggler" if share >= PROVEN_SHARE else "late, cause not proven"


def measure_lateness(matched: MatchedCollectives) -> Lateness:
    """Arrivals at all collectives that synchronise their ranks. O(parts * causes * log events)."""
    core = matched.core
    count = len(matched.trace.ranks)
    rank = core.rank.astype(np.int64)
    usable = (matched.comparable & matched.synchronising)[core.match]
    wait = np.bincount(rank[usable], weights=matched.wait_ns[usable], minlength=count)
    latest = matched.latest_rank[matched.comparable & matched.synchronising]
    lateness, excess = _excess(matched)
    return Lateness(
        wait_ns=np.rint(wait).astype(np.int64),
        compared=np.bincount(rank[usable], minlength=count),
        times_last=np.bincount(latest[latest >= 0], minlength=count),
        lateness_ns=lateness,
        excess_ns=excess,
        profiled_ns=np.array([r.profiled_ns for r in matched.trace.ranks], dtype=np.int64),
    )


def _excess(matched: MatchedCollectives) -> tuple[Array, dict[str, Array]]:
    count = len(matched.trace.ranks)
    lateness = np.zeros(count, dtype=np.int64)
    excess = {cause: np.zeros(count, dtype=np.int64) for cause in CAUSES}
    parts, since_ns = _segments(matched)
    if not len(parts):
        return lateness, excess
    core = matched.core
    # What lies before all ranks were recorded cannot be attributed, so it does not count.
    start_ns = np.maximum(core.start_ns[parts], since_ns)
    spent = _spent_by_cause(matched, core.rank[parts], since_ns, start_ns)
    match = core.match[parts]
    bounds = np.flatnonzero(np.diff(match, prepend=-1))
    for begin, end in zip(bounds.tolist(), [*bounds.tolist()[1:], len(parts)], strict=True):
        rows = slice(begin, end)
        ranks = core.rank[parts[rows]].astype(np.int64)
        late = start_ns[rows] - _others_median(start_ns[rows])
        behind = late > 0
        np.add.at(lateness, ranks[behind], late[behind])
        for cause in CAUSES:
            beyond = spent[cause][rows] - _others_median(spent[cause][rows])
            np.add.at(excess[cause], ranks[behind], beyond[behind])
    return lateness, excess


def _others_median(values: Array) -> Array:
    """Of each value: median of the others, rounded down. O(n log n)."""
    order = np.sort(values)
    place = np.searchsorted(order, values)
    n = len(values) - 1

    def other(k: int) -> Array:
        picked: Array = order[np.where(k < place, k, k + 1)]
        return picked

    low, high = other((n - 1) // 2), other(n // 2)
    median: Array = low + (high - low) // 2
    return median


def _segments(matched: MatchedCollectives) -> tuple[Array, Array]:
    """Parts of synchronising matches, and from when on their ranks were level (common clock)."""
    core = matched.core
    level: dict[tuple[int, ...], Array] = {}
    waited_for = _waited_for(matched)
    parts: list[Array] = []
    since: list[Array] = []
    usable = (matched.comparable & matched.synchronising).tolist()
    for match, part in enumerate(matched.parts_by_match):
        if not usable[match]:
            continue
        ranks = core.rank[part]
        key = tuple(ranks.tolist())
        if len(set(key)) < len(key):
            continue  # two kernels of one rank in one row: arrivals have no meaning
        start = level.get(key)
        if start is None:
            start = np.full(len(key), matched.recorded_ns[list(key), 0].max())
        parts.append(np.arange(part.start, part.stop))
        since.append(start)
        if waited_for[part].all():
            level[key] = core.end_ns[part]
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty
    return np.concatenate(parts), np.concatenate(since)


def _waited_for(matched: MatchedCollectives) -> Array:
    """bool by part: the rank computes for less than half of the transfer."""
    core = matched.core
    covered = np.zeros(len(core.match), dtype=np.int64)
    for index, rank in enumerate(matched.trace.ranks):
        rows = np.flatnonzero(core.rank == index)
        compute = _core.gpu_intervals(rank.table, rank.tree)["compute"]
        end = core.end_ns[rows] + matched.offsets_ns[index]
        start = end - matched.transfer_ns[rows]
        covered[rows] = _covered_before(compute, end) - _covered_before(compute, start)
    waited: Array = 2 * covered <= matched.transfer_ns
    return waited


def _spent_by_cause(
    matched: MatchedCollectives, ranks: Array, since_ns: Array, until_ns: Array
) -> dict[str, Array]:
    spent = {cause: np.zeros(len(ranks), dtype=np.int64) for cause in CAUSES}
    for index, rank in enumerate(matched.trace.ranks):
        rows = np.flatnonzero(ranks == index)
        if not len(rows):
            continue
        offset = matched.offsets_ns[index]
        low, high = since_ns[rows] + offset, until_ns[rows] + offset
        for cause, sets in _activity(rank).items():
            for intervals in sets:
                spent[cause][rows] += _covered_before(intervals, high) - _covered_before(
                    intervals, low
                )
    return spent


def _activity(rank: RankTrace) -> dict[str, list[Array]]:
    """Disjoint interval sets by cause; together they cover all recorded time."""
    gpu = _core.gpu_intervals(rank.table, rank.tree)
    begin, end = recorded_bounds(rank)
    idle = rank.idle((begin, max(begin, end)))
    names = _core.idle_cause_names()
    causes = [_CAUSE_OF_IDLE.get(name, "host") for name in names]
    of_interval = np.array([CAUSES.index(cause) for cause in causes])[idle.cause]
    bounds = np.stack([idle.start_ns, idle.end_ns], axis=1)
    activity = {cause: [bounds[of_interval == i]] for i, cause in enumerate(CAUSES)}
    activity["compute"].append(gpu["compute"])
    activity["communication"].append(_without(gpu["communication"], gpu["compute"]))
    activity["copies"].append(
        _without(_without(gpu["memcpy"], gpu["compute"]), gpu["communication"])
    )
    return activity


def _covered_before(intervals: Array, times_ns: Array) -> Array:
    """Length of a sorted disjoint set before each time."""
    if not len(intervals):
        return np.zeros(len(times_ns), dtype=np.int64)
    starts = intervals[:, 0]
    lengths = intervals[:, 1] - starts
    before = np.concatenate([[0], np.cumsum(lengths)])
    index = np.searchsorted(starts, times_ns, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.clip(times_ns - starts[last], 0, lengths[last])
    covered: Array = np.where(index > 0, before[last] + inside, 0)
    return covered


def _without(a: Array, b: Array) -> Array:
    """Set difference of sorted disjoint interval sets."""
    if not len(a) or not len(b):
        return a
    cuts = np.sort(np.concatenate([a.ravel(), b.ravel()]))
    low, high = cuts[:-1], cuts[1:]
    keep = (low < high) & _inside(a, low) & ~_inside(b, low)
    pieces: Array = np.stack([low[keep], high[keep]], axis=1)
    return pieces


def _inside(intervals: Array, times_ns: Array) -> Array:
    index = np.searchsorted(intervals[:, 0], times_ns, side="right") - 1
    inside: Array = (index >= 0) & (times_ns < intervals[np.maximum(index, 0), 1])
    return inside
