"""`straggler_to_median`: no rank takes longer from one collective to the next than the others.

Note [One of them]: a rank that is mended varies as the others do, so that now and then it is the
slowest itself. The expected longest of n spans is that of the n - 1 others and 1/n of the expected
distance of the longest of n from the next, for which that among the others stands (it is the same
for any n where tails are exponential). Two ranks show no such distance.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.contention import contend
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import KINDS, SimulatedRun
from torchtraceap.tables.grouping import Groups

__all__ = ["StragglerToMedian"]

_LONG_AGO = np.iinfo(np.int64).min
_LEAST_RANKS = 3
"""With two ranks the median lies between them, and neither is the usual one."""


@register("straggler_to_median", default=True, fixes=("straggler",))
class StragglerToMedian:
    """Between two collectives that all of its members join, a rank that took longer than the
    median of them takes that median: all its work in between shrinks alike.

    Best: every such rank. Cautious: only the one that kept the others waiting longest, and it takes
    what the slowest of all would take if it were as the others. Collectives that no longer wait
    move their data beside other kernels than before. (ByteDance, OSDI'25, replaces the durations of
    operators by their mean over the ranks; here ranks needn't run the same operators.) Both: a
    silent host that goes on right behind its collective's end waited for it, though no call says
    so.
    """

    name = "straggler_to_median"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        if len(run.ranks) < 2:
            raise NotApplicableError("it compares ranks, and there is one")
        if run.meetings is None or not len(run.meetings):
            raise NotApplicableError("the ranks share no collective that all of them must join")
        arrivals = _Arrivals(run, run.meetings)
        pieces = _Pieces(run, arrivals)
        late_ns = pieces.late_ns
        if not late_ns.any():
            raise NotApplicableError("no rank arrives later than the median of the others")
        worst = int(late_ns.argmax())
        best, cautious = Change(), Change()
        for rank in np.flatnonzero(late_ns).tolist():
            pieces.shrink(best, rank)
        pieces.shrink(cautious, worst, to_slowest=True)
        for change in (best, cautious):
            _follow_collectives(run, arrivals, change)
            contend(run, change, best=change is best)
        name = run.ranks[worst].rank
        note = (
            f"rank {worst if name is None else name} took {format_ns(int(late_ns[worst]))} longer "
            f"than the median rank between collectives, {np.count_nonzero(late_ns)} of "
            f"{len(run.ranks)} ranks did at some"
        )
        return EditedGraph(best, cautious, note=note)


SILENT_NS = 1_000_000
RETURN_NS = 100_000
"""A host that was silent this long and goes on this soon behind a collective waited for it: the
caching allocator does so before it gives memory back."""


class _Arrivals:
    """Members of meetings, by rank and then by time. A rank that has two counts with the later."""

    def __init__(self, run: SimulatedRun, meetings: _core.Meetings) -> None:
        rank = meetings.rank.astype(np.int64)
        count = meetings.offsets[1:] - meetings.offsets[:-1]
        meeting = np.repeat(np.arange(len(meetings)), count)
        begin, end = np.zeros((2, len(rank)), dtype=np.int64)
        for index, mine in enumerate(_split_by(rank, len(run.ranks))):
            begin[mine] = run.graph.begin_of(index)[meetings.row[mine]]
            end[mine] = run.graph.end_of(index)[meetings.row[mine]]
        met_ns = np.maximum.reduceat(run.graph.time_ns[begin], meetings.offsets[:-1])
        place = np.argsort(np.argsort(met_ns, kind="stable"))[meeting]
        order = np.lexsort([place, rank])
        again = (np.diff(rank[order]) == 0) & (np.diff(place[order]) == 0)
        kept = order[np.append(~again, True)]
        self.rank, self.place, self.end = rank[kept], place[kept], end[kept]
        """int64: of the rank, of the meeting by time, and the point where the member ends."""
        self.begin_ns = run.graph.time_ns[begin[kept]]
        self.end_ns = run.graph.time_ns[self.end]
        self.by_rank = _split_by(self.rank, len(run.ranks))


def _split_by(keys: Array, count: int) -> list[Array]:
    """Places of each key below `count`, in order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.searchsorted(keys[order], np.arange(1, count)))


def _follow_collectives(run: SimulatedRun, arrivals: _Arrivals, change: Change) -> None:
    graph = run.graph
    order = run.edges_of("program_order")
    silent = order[run.cost_ns[order] >= SILENT_NS]
    on_rank = graph.lane_rank[graph.lane[run.destination[silent]]]
    for rank, places in enumerate(_split_by(on_rank, len(run.ranks))):
        ends = arrivals.end[arrivals.by_rank[rank]]
        if not len(ends) or not len(places):
            continue
        ends = ends[np.argsort(graph.time_ns[ends])]
        edges = silent[places]
        since, until = graph.time_ns[graph.source[edges]], graph.time_ns[run.destination[edges]]
        place = np.searchsorted(graph.time_ns[ends], until, side="right") - 1
        source = ends[np.maximum(place, 0)]
        ended = graph.time_ns[source]
        waited = (place >= 0) & (ended > since) & (until - ended <= RETURN_NS)
        change.set_lags(edges[waited], 0)
        change.add(source[waited], run.destination[edges[waited]], (until - ended)[waited])


def _expected_slowest(groups: Groups, spans: Array) -> Array:
    """float64: of each span the longest of its group, if it were as the others are; 0 where it is
    alone. See Note [One of them]."""
    order = np.lexsort([spans, groups.index])
    first = np.flatnonzero(np.diff(groups.index[order], prepend=-1))
    last = (first + groups.count - 1)[groups.index]
    place = np.empty(len(spans), dtype=np.int64)
    place[order] = np.arange(len(spans))
    count = groups.count[groups.index]
    slowest = spans[order[last - ((place == last) & (count > 1))]]
    second = spans[order[last - np.where(count > 2, 1 + (place >= last - 1), 0)]]
    gap = np.where(count > 2, slowest - second, 0)
    expected: Array = np.where(count > 1, slowest + gap / count, 0.0)
    return expected


class _Pieces:
    """The time of each rank between its collectives, and what share of it the median takes."""

    def __init__(self, run: SimulatedRun, arrivals: _Arrivals) -> None:
        self._run = run
        since_ns, known = self._free_since(arrivals)
        # What begins with the recording has no length that could be compared.
        rank, until_ns = arrivals.rank[known], arrivals.begin_ns[known]
        since_ns = since_ns[known]
        spans = until_ns - since_ns
        groups = Groups(arrivals.place[known])
        middle, least = groups.median(spans), groups.minimum(spans)
        usual = np.maximum(np.where(groups.count >= _LEAST_RANKS, middle, least), 0.0)
        usual = usual[groups.index]
        long = (groups.count[groups.index] >= 2) & (spans > usual)
        self._begin, self._end = since_ns[long], until_ns[long]
        self._factor = usual[long] / spans[long]
        slowest = _expected_slowest(groups, spans)
        self._to_slowest = np.minimum(np.maximum(slowest, usual) / np.maximum(spans, 1), 1.0)[long]
        self._by_rank = _split_by(rank[long], len(run.ranks))
        self.late_ns = np.bincount(
            rank[long], weights=(spans - usual)[long], minlength=len(run.ranks)
        )
        """float64 `[ranks]`: beyond the usual time, summed."""

    def _free_since(self, arrivals: _Arrivals) -> tuple[Array, Array]:
        """When each member's rank was done with its collectives before, and whether it had any, or
        a step or recording that began before."""
        since_ns = np.zeros(len(arrivals.rank), dtype=np.int64)
        known = np.ones(len(arrivals.rank), dtype=bool)
        for steps, mine in zip(self._run.steps_by_rank, arrivals.by_rank, strict=True):
            if not len(mine):
                continue
            first = int(self._run.graph.time_ns[steps[0].begin]) if steps else _LONG_AGO
            known[mine[0]] = bool(steps)
            before = np.concatenate([[first], arrivals.end_ns[mine[:-1]]])
            since_ns[mine] = np.maximum.accumulate(before)
        return since_ns, known

    def shrink(self, change: Change, rank: int, *, to_slowest: bool = False) -> None:
        """All work of the rank in its long pieces takes less time: the median, or `to_slowest` what
        the slowest would take. See Note [One of them]."""
        factor = self._to_slowest if to_slowest else self._factor
        run, mine = self._run, self._by_rank[rank]
        first, last = run.graph.in_offsets[run.point_bounds[rank]].tolist()
        edges = np.arange(first, last)
        times = run.graph.time_ns[run.destination[edges]]
        place = np.searchsorted(self._begin[mine], times, side="left") - 1
        inside = (place >= 0) & (times <= self._end[mine][np.maximum(place, 0)])
        inside &= run.graph.kind[edges] != KINDS["rendezvous"]
        edges = edges[inside]
        change.set_lags(edges, run.cost_ns[edges] * factor[mine][place[inside]])
