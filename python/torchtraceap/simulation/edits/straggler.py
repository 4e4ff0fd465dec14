"""`straggler_to_median`: no rank takes longer from one collective to the next than the others."""

from __future__ import annotations

import numpy as np

from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.units import format_ns

__all__ = ["StragglerToMedian"]

_LEAST_RANKS = 3
"""With two ranks the median lies between them, and neither is the usual one."""


class StragglerToMedian:
    """Between two collectives that all of its members join, a rank that took longer than the
    median of them takes that median: all its work in between shrinks alike.

    Best: every such rank. Cautious: only the one that kept the others waiting longest. (ByteDance,
    OSDI'25, replaces the durations of operators by their mean over the ranks; here ranks needn't
    run the same operators.) Both: a silent host that goes on right behind its collective's end
    waited for it, though no call says so.
    """

    name = "straggler_to_median"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        if len(run.ranks) < 2:
            raise NotApplicableError("it compares ranks, and there is one")
        if not run.collectives:
            raise NotApplicableError("the ranks share no collective that all of them must join")
        pieces = _Pieces(run)
        late_ns = pieces.late_ns
        if not late_ns.any():
            raise NotApplicableError("no rank arrives later than the median of the others")
        worst = int(late_ns.argmax())
        best, cautious = Change(), Change()
        for rank in np.flatnonzero(late_ns).tolist():
            pieces.shrink(best, rank)
        pieces.shrink(cautious, worst)
        for change in (best, cautious):
            _follow_collectives(run, change)
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


def _follow_collectives(run: SimulatedRun, change: Change) -> None:
    graph = run.graph
    order = run.edges_of("program_order")
    silent = order[run.cost_ns[order] >= SILENT_NS]
    on_rank = np.array([lane[0] for lane in graph.lanes])[graph.lane[run.destination[silent]]]
    for rank in np.unique(on_rank).tolist():
        rows = [row for members in run.collectives for r, row in members if r == rank]
        if not rows:
            continue
        ends = graph.end_of(rank)[rows]
        ends = ends[np.argsort(graph.time_ns[ends])]
        edges = silent[on_rank == rank]
        since, until = graph.time_ns[graph.source[edges]], graph.time_ns[run.destination[edges]]
        place = np.searchsorted(graph.time_ns[ends], until, side="right") - 1
        source = ends[np.maximum(place, 0)]
        ended = graph.time_ns[source]
        waited = (place >= 0) & (ended > since) & (until - ended <= RETURN_NS)
        change.set_lags(edges[waited], 0)
        change.add(source[waited], run.destination[edges[waited]], (until - ended)[waited])


class _Pieces:
    """The time of each rank between its collectives, and what share of it the median takes."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._begin: list[list[int]] = [[] for _ in run.ranks]
        self._end: list[list[int]] = [[] for _ in run.ranks]
        self._factor: list[list[float]] = [[] for _ in run.ranks]
        self.late_ns = np.zeros(len(run.ranks))
        self._free_since = self._first_times()
        for members in sorted(run.collectives, key=self._met_ns):
            self._compare(members)

    def _first_times(self) -> dict[int, int]:
        """When each rank's first step, or recording, begins."""
        times: dict[int, int] = {}
        for step in self._run.steps:
            times.setdefault(step.rank, int(self._run.graph.time_ns[step.begin]))
        return times

    def _times(self, rank: int, row: int) -> tuple[int, int]:
        graph = self._run.graph
        begin, end = graph.begin_of(rank)[row], graph.end_of(rank)[row]
        return int(graph.time_ns[begin]), int(graph.time_ns[end])

    def _met_ns(self, members: list[tuple[int, int]]) -> int:
        return max(self._times(rank, row)[0] for rank, row in members)

    def _compare(self, members: list[tuple[int, int]]) -> None:
        arrived = {rank: self._times(rank, row) for rank, row in members}
        spans = {
            rank: begin - self._free_since[rank]
            for rank, (begin, _) in arrived.items()
            if rank in self._free_since
        }
        if len(spans) >= 2:
            self._record(arrived, spans)
        for rank, (_, end) in arrived.items():
            self._free_since[rank] = max(self._free_since.get(rank, end), end)

    def _record(self, arrived: dict[int, tuple[int, int]], spans: dict[int, int]) -> None:
        usual = float(np.median(list(spans.values())))
        if len(spans) < _LEAST_RANKS:
            usual = float(min(spans.values()))
        for rank, span in spans.items():
            if span <= max(usual, 0.0):
                continue
            self._begin[rank].append(self._free_since[rank])
            self._end[rank].append(arrived[rank][0])
            self._factor[rank].append(max(usual, 0.0) / span)
            self.late_ns[rank] += span - max(usual, 0.0)

    def shrink(self, change: Change, rank: int) -> None:
        """All work of the rank in its long pieces takes less time."""
        run = self._run
        lanes = np.array([lane[0] if lane[1] < 2 else -1 for lane in run.graph.lanes])
        mine = np.flatnonzero(lanes[run.graph.lane[run.destination]] == rank)
        times = run.graph.time_ns[run.destination[mine]]
        begin, end = np.array(self._begin[rank]), np.array(self._end[rank])
        place = np.searchsorted(begin, times, side="left") - 1
        inside = (place >= 0) & (times <= end[np.maximum(place, 0)])
        inside &= ~np.isin(mine, run.edges_of("rendezvous"))
        edges = mine[inside]
        change.set_lags(edges, run.cost_ns[edges] * np.array(self._factor[rank])[place[inside]])
