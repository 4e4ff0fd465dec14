"""Edits after which nobody waits: for a late rank (`straggler_to_median`), or for values from the
GPU (`remove_host_sync`).

Note [One of them]: a rank that is mended varies as the others do, so that now and then it is the
slowest itself. The expected longest of n spans is that of the n - 1 others and 1/n of the expected
distance of the longest of n from the next, for which that among the others stands (it is the same
for any n where tails are exponential). Two ranks show no such distance.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap._core import CopyDirection, EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import COPY_CALLS, SYNCHRONISATIONS
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.sums import distinct
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.collective_parts import contend
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import KINDS, SimulatedRun
from torchtraceap.tables.grouping import Groups

__all__ = ["RemoveHostSync", "StragglerToMedian"]

_LONG_AGO = np.iinfo(np.int64).min
_LEAST_RANKS = 3
"""Ranks for which the median is the usual one; that of two lies between them."""
SILENT_NS = 1_000_000
RETURN_NS = 100_000
"""A host that was silent this long and goes on this soon after a collective waited for it: the
caching allocator does so before it gives memory back."""
SMALL_BYTES = 64 << 10
"""Reads up to this size are values; larger ones are results (the rules' bound)."""
_VALUES = r"^aten::(?:item|_local_scalar_dense|is_nonzero)$"
_COPIES = r"^aten::(?:to|_to_copy|copy_|cpu)$"


class StragglerToMedian:
    """Between two collectives that all of its members join, a rank that took longer than the
    median of them takes that median: all its work in between shrinks alike.

    Best: every such rank. Cautious: only the one that kept the others waiting longest, and it takes
    as long as the slowest of all would take if it were like the others. Collectives that no longer
    wait move their data beside other kernels than before. (ByteDance, OSDI'25, replaces the
    durations of operators by their mean over the ranks; here ranks needn't run the same operators.)
    Both: a silent host that goes on right after its collective's end waited for it, though no call
    says so.
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
        """int64: the rank, the number of the meeting by time, and the point at the member's end."""
        self.begin_ns = run.graph.time_ns[begin[kept]]
        self.end_ns = run.graph.time_ns[self.end]
        self.by_rank = _split_by(self.rank, len(run.ranks))


def _split_by(keys: Array, count: int) -> list[Array]:
    """Return the places of each key below `count`, in order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.searchsorted(keys[order], np.arange(1, count)))


def _follow_collectives(run: SimulatedRun, arrivals: _Arrivals, change: Change) -> None:
    """Make silent hosts wait for the collective right after which they go on."""
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


class _Pieces:
    """The time of each rank between its collectives, and the share of it that the median takes."""

    def __init__(self, run: SimulatedRun, arrivals: _Arrivals) -> None:
        self._run = run
        # Since when each member's rank was done with its earlier collectives. A piece that begins
        # with the recording, and not with a step, has no length that could be compared.
        since_ns = np.zeros(len(arrivals.rank), dtype=np.int64)
        known = np.ones(len(arrivals.rank), dtype=bool)
        for steps, mine in zip(run.steps_by_rank, arrivals.by_rank, strict=True):
            if len(mine):
                first = int(run.graph.time_ns[steps[0].begin]) if steps else _LONG_AGO
                known[mine[0]] = bool(steps)
                before = np.concatenate([[first], arrivals.end_ns[mine[:-1]]])
                since_ns[mine] = np.maximum.accumulate(before)
        rank, since_ns, until_ns = arrivals.rank[known], since_ns[known], arrivals.begin_ns[known]
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
        """float64 `[ranks]`: time beyond the usual, summed."""

    def shrink(self, change: Change, rank: int, *, to_slowest: bool = False) -> None:
        """Shrink all work of the rank in its long pieces to the median, or with `to_slowest` to the
        expected time of the slowest. See Note [One of them]."""
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


def _expected_slowest(groups: Groups, spans: Array) -> Array:
    """Return for each span the longest of its group, if it were like the others, float64; 0 where
    it is alone. See Note [One of them]."""
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


# ------------------------------------------------------------------------- host and GPU


class RemoveHostSync:
    """Values stay on the device; the program doesn't synchronize.

    Best: reads of values (`item`) and of up to 64 KiB (`cpu`) are gone with their operators, and no
    other call waits, explicit synchronizations included. Cautious: only reads of values and
    explicit synchronizations go; where an operator needs its result for a shape (`nonzero`, boolean
    masks, `unique`) or the program may use a copy at once, the host still waits. Waits after an
    upload belong to `pin_memory`.
    """

    name = "remove_host_sync"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        reads = explicit_waits = others = 0
        for view in views(run):
            values, rest = _reads(view, _waiting_calls(view), _VALUES)
            copies, rest = _reads(view, rest, _COPIES)
            # Synchronizations that no operator made.
            is_explicit = np.isin(view.tree.api[rest], SYNCHRONISATIONS)
            is_explicit &= view.tree.op[rest] == _core.NO_ROW
            explicit, rest = rest[is_explicit], rest[~is_explicit]
            for change in (best, cautious):
                _remove_reads(view, change, values)
                view.remove_calls(change, explicit)
            _remove_reads(view, best, copies)
            best.drop(view.waits_of(rest))
            reads, explicit_waits = reads + len(values), explicit_waits + len(explicit)
            others += len(copies) + len(rest)
        if not reads + explicit_waits + others:
            raise NotApplicableError("no call makes the host wait for a value from the GPU")
        note = (
            f"gone are {pluralize(reads, 'read')} of values, "
            f"{pluralize(explicit_waits, 'explicit synchronization')} and (at best) "
            f"{pluralize(others, 'other wait')}"
        )
        return EditedGraph(best, cautious, note=note)


def _waiting_calls(view: RankView) -> Array:
    """Return synchronizations and copies of values for which the host waits, without uploads."""
    calls = view.calls_that(np.concatenate([SYNCHRONISATIONS, COPY_CALLS]))
    calls = calls[np.isin(view.end_of[calls], view.wait_ends)]
    launched = view.launched_by(calls)
    at = np.maximum(launched, 0)
    is_sync = np.isin(view.tree.api[calls], SYNCHRONISATIONS)
    to_host = view.tree.copy_direction[at] == CopyDirection.DEVICE_TO_HOST
    reads = (launched >= 0) & to_host & (view.bytes_of[at] <= SMALL_BYTES)
    uploads = view.copies_before(calls, CopyDirection.HOST_TO_DEVICE)
    large = view.copies_before(calls, CopyDirection.DEVICE_TO_HOST, SMALL_BYTES)
    # A wait after all launches is the end of the program, or the profiler's own.
    launches = view.launch_of(view.gpu_rows)
    launches = launches[launches >= 0]
    last_launch = int(view.begin_of[launches].max()) if len(launches) else -1
    last = view.begin_of[calls] > last_launch
    waiting: Array = calls[(is_sync & ~uploads & ~large & ~last) | reads]
    return waiting


def _reads(view: RankView, waiting: Array, pattern: str) -> tuple[Array, Array]:
    """Return the outermost operators of a name that wait, and the waiting calls in none of them."""
    operators = view.rows_named(pattern, EventKind.CPU_OP)
    operators = view.outermost(operators[np.argsort(view.begin_of[operators])])
    place = view.inside(view.begin_of[waiting].astype(np.int64), operators)
    return operators[distinct(place[place >= 0])], waiting[place < 0]


def _remove_reads(view: RankView, change: Change, reads: Array) -> None:
    launched, _ = view.launched_inside(reads)
    calls = view.calls
    inside = view.inside(view.begin_of[calls].astype(np.int64), reads) >= 0
    change.drop(view.waits_of(calls[inside]))
    view.set_host_work(change, reads, 0)
    view.remove_gpu(change, launched)
