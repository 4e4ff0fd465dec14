"""`GraphBuilder`: an execution graph from parts, or one of a run that gains work.

Lanes are threads and streams of ranks, and the places where ranks meet. Work on a lane runs from a
point to another; edges say what waits for what. Points are numbered in the order in which they are
added. The graph wants those of a lane, and the lanes of a rank, beside each other: `Built.points`
tells which number each has there.

    builder = GraphBuilder()
    host, stream = builder.add_lane(THREAD), builder.add_lane(STREAM)
    calls = builder.add_work(host, [3_000, 3_000])
    kernels = builder.add_work(stream, [90_000, 40_000])
    builder.add_edges(calls.end, kernels.begin, 5_000, kind="launch")
    built = builder.build()
    _core.replay(built.graph)[built.points(kernels.end)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.errors import SchemaError

__all__ = ["MEETING", "STREAM", "THREAD", "Built", "GraphBuilder", "Work"]

THREAD, STREAM, MEETING = 0, 1, 2
"""Kinds of lanes."""
_KINDS = {kind.name.lower(): int(kind) for kind in _core.DependencyKind}
_EVIDENCE = {"explicit": 0, "inferred": 1, "assumed": 2}


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces of work that were added, int64 `[n]` each."""

    begin: Array
    """Points where they begin."""
    end: Array
    """Points where they end."""


@dataclass(frozen=True, slots=True)
class Built:
    """A graph, and which of its points those are that the builder gave out."""

    graph: _core.ExecutionGraph
    _number: Array

    def points(self, points: npt.ArrayLike) -> Array:
        """int64: numbers in the graph of points of the builder, in their shape."""
        chosen: Array = self._number[np.asarray(points, dtype=np.int64)]
        return chosen


@dataclass(frozen=True, slots=True)
class _Points:
    lane: Array
    time_ns: Array
    row: Array
    is_end: Array
    held: Array
    name: Array


@dataclass(frozen=True, slots=True)
class _Edges:
    source: Array
    destination: Array
    lag_ns: Array
    residual_ns: Array
    kind: Array
    evidence: Array
    owner: Array


class GraphBuilder:
    """Lanes, work and dependencies, added as arrays.

    Args:
        graph: Begins with all that is in it; its points are the first ones, by their numbers.
        rows: How many rows the table of each rank has, where rows are named.
    """

    def __init__(
        self, graph: _core.ExecutionGraph | None = None, *, rows: Sequence[int] = ()
    ) -> None:
        self._rows = list(rows)
        self._lane_rank: list[int] = []
        self._lane_kind: list[int] = []
        self._lane_index: list[int] = []
        self._points: list[_Points] = []
        self._edges: list[_Edges] = []
        self._last_of: dict[int, int] = {}
        self._count = 0
        if graph is not None:
            self.add_graph(graph)

    # ------------------------------------------------------------------------- whole graphs

    def add_graph(
        self,
        graph: _core.ExecutionGraph,
        *,
        rank: int = 0,
        lag_ns: npt.ArrayLike | None = None,
    ) -> int:
        """All that is in a graph; returns the number of its first point, behind which the others
        have their order.

        Args:
            graph: Of one or several ranks, without those that the builder has.
            rank: Index of its first rank.
            lag_ns: int64 `[edges]`: what its edges cost, residuals included; None: as in the graph.

        Raises:
            SchemaError: Lags for another number of edges.
        """
        first, lanes = self._count, len(self._lane_rank)
        self._lane_rank += (graph.lane_rank + rank).tolist()
        self._lane_kind += graph.lane_kind.tolist()
        self._lane_index += graph.lane_index.tolist()
        lane = graph.lane.astype(np.int64) + lanes
        self._points.append(
            _Points(lane, graph.time_ns, graph.row, graph.is_end, graph.held, graph.name)
        )
        self._count += len(graph)
        ends = zip(graph.lane_begin.tolist(), graph.lane_end.tolist(), strict=True)
        for place, (begin, end) in enumerate(ends):
            if end > begin:
                self._last_of[lanes + place] = first + end - 1
        offsets = graph.in_offsets.astype(np.int64)
        destination = np.repeat(np.arange(len(graph)), np.diff(offsets))
        lags, residuals = graph.lag_ns, graph.residual_ns
        if lag_ns is not None:
            lags = _column("lag_ns", lag_ns, len(graph.lag_ns))
            residuals = np.zeros(len(lags), dtype=np.int64)
        self._edges.append(
            _Edges(
                graph.source.astype(np.int64) + first,
                destination + first,
                lags,
                residuals,
                graph.kind,
                graph.evidence,
                graph.owner,
            )
        )
        ranks = max(graph.lane_rank.tolist(), default=-1) + 1
        if len(self._rows) < rank + ranks:
            self._rows += [0] * (rank - len(self._rows))
            self._rows += [len(graph.begin_of(each)) for each in range(ranks)]
        return first

    # ------------------------------------------------------------------------- parts

    def add_lane(self, kind: int = THREAD, *, rank: int = 0, index: int = 0) -> int:
        """A thread or a stream of a rank, or a place where ranks meet; its number.

        Args:
            kind: THREAD, STREAM or MEETING.
            rank: Index of the rank.
            index: Of its tracks or streams, where a table stands behind it.

        Raises:
            SchemaError: No such kind, or a number below 0.
        """
        if kind not in (THREAD, STREAM, MEETING) or rank < 0 or index < 0:
            raise SchemaError(f"a lane of kind {kind}, rank {rank}, index {index} makes no sense")
        self._lane_rank.append(rank)
        self._lane_kind.append(kind)
        self._lane_index.append(index)
        return len(self._lane_rank) - 1

    def add_points(
        self,
        lane: int,
        count: int,
        *,
        start_ns: npt.ArrayLike = 0,
        rows: npt.ArrayLike | None = None,
        is_end: npt.ArrayLike = False,
        names: npt.ArrayLike | None = None,
    ) -> Array:
        """Points behind those that the lane has, without any dependency.

        Args:
            lane: Its number.
            count: How many, n.
            start_ns: int64 `[n]` or one: when a point happens that nothing leads to.
            rows: uint32 `[n]`: of the rank's table.
            is_end: bool `[n]` or one: the row ends there.
            names: uint32 `[n]` or one: codes that tell work apart which repeats in every step.

        Returns:
            int64 `[n]`: the points.

        Raises:
            SchemaError: There is no such lane, or columns of different lengths.
        """
        if not 0 <= lane < len(self._lane_rank):
            raise SchemaError(f"there is no lane {lane}, there are {len(self._lane_rank)}")
        self._points.append(
            _Points(
                np.full(count, lane),
                _column("start_ns", start_ns, count),
                _column("rows", _core.NO_ROW if rows is None else rows, count),
                _column("is_end", is_end, count),
                _column("held", False, count),
                _names(names, count),
            )
        )
        self._count += count
        return np.arange(self._count - count, self._count)

    def add_work(
        self,
        lane: int,
        durations_ns: npt.ArrayLike,
        *,
        start_ns: npt.ArrayLike = 0,
        gaps_ns: npt.ArrayLike = 0,
        rows: npt.ArrayLike | None = None,
        names: npt.ArrayLike | None = None,
        in_order: bool = True,
    ) -> Work:
        """Pieces of work, one behind the other where `in_order` says so.

        Args:
            lane: Where they run.
            durations_ns: int64 `[n]`, from 0.
            start_ns: int64 `[n]` or one: when a piece begins that nothing leads to.
            gaps_ns: int64 `[n]` or one: from the end of the piece before to the begin of each.
            rows: uint32 `[n]`: of the rank's table.
            names: uint32 `[n]` or one: codes that tell work apart which repeats in every step.
            in_order: Each waits for the one before on the lane, also for one added earlier.

        Raises:
            SchemaError: There is no such lane, columns of different lengths, a duration below 0.
        """
        lengths = np.atleast_1d(np.asarray(durations_ns, dtype=np.int64)).ravel()
        if (lengths < 0).any():
            raise SchemaError(f"a duration of {int(lengths.min())} ns makes no sense")
        count = len(lengths)
        starts = _column("start_ns", start_ns, count)
        named = _column("rows", _core.NO_ROW if rows is None else rows, count)
        points = self.add_points(
            lane,
            2 * count,
            start_ns=np.stack([starts, starts + lengths], axis=1).ravel(),
            rows=np.repeat(named, 2),
            is_end=np.tile([False, True], count),
            names=np.repeat(_names(names, count), 2),
        )
        begin, end = points[0::2], points[1::2]
        is_thread = self._lane_kind[lane] == THREAD
        work, order = ("program_order",) * 2 if is_thread else ("execution", "stream_order")
        self.add_edges(begin, end, lengths, kind=work, owner=named)
        if in_order:
            gaps = _column("gaps_ns", gaps_ns, count)
            before = self._last_of.get(lane)
            if before is not None and count:
                self.add_edges([before], begin[:1], gaps[:1], kind=order)
            self.add_edges(end[:-1], begin[1:], gaps[1:], kind=order)
        if count:
            self._last_of[lane] = int(end[-1])
        return Work(begin, end)

    def add_collective(
        self,
        lanes: Sequence[int],
        transfer_ns: int,
        *,
        start_ns: npt.ArrayLike = 0,
        gaps_ns: npt.ArrayLike = 0,
        rows: npt.ArrayLike | None = None,
        names: npt.ArrayLike | None = None,
    ) -> Work:
        """One piece of work on each of n lanes, whose data moves once the last has begun.

        Args:
            lanes: Of different ranks, as a rule.
            transfer_ns: From the begin of the last to the end of all.
            start_ns, gaps_ns, rows, names: As for `add_work`, one for each lane.

        Raises:
            SchemaError: As `add_work`; or a time below 0.
        """
        if transfer_ns < 0:
            raise SchemaError(f"a transfer of {transfer_ns} ns makes no sense")
        columns = (
            _column("start_ns", start_ns, len(lanes)),
            _column("gaps_ns", gaps_ns, len(lanes)),
            _column("rows", _core.NO_ROW if rows is None else rows, len(lanes)),
            _names(names, len(lanes)),
        )
        parts = [
            self.add_work(lane, [0], start_ns=start, gaps_ns=gap, rows=row, names=name)
            for lane, start, gap, row, name in zip(
                lanes, *map(np.ndarray.tolist, columns), strict=True
            )
        ]
        begin = np.array([int(part.begin[0]) for part in parts], dtype=np.int64)
        end = np.array([int(part.end[0]) for part in parts], dtype=np.int64)
        met = self.add_points(self._meeting_lane(), 1)
        self.add_edges(begin, np.repeat(met, len(begin)), 0, kind="rendezvous")
        self.add_edges(np.repeat(met, len(end)), end, transfer_ns, kind="rendezvous")
        return Work(begin, end)

    def _meeting_lane(self) -> int:
        if MEETING in self._lane_kind:
            return self._lane_kind.index(MEETING)
        return self.add_lane(MEETING)

    def add_edges(
        self,
        sources: npt.ArrayLike,
        destinations: npt.ArrayLike,
        lags_ns: npt.ArrayLike,
        *,
        kind: str = "program_order",
        evidence: str = "explicit",
        owner: npt.ArrayLike | None = None,
        residual_ns: npt.ArrayLike = 0,
    ) -> None:
        """What waits for what: a destination happens `lags_ns` after its source at the earliest.

        Args:
            sources: int64 `[n]`: points of the builder.
            destinations: The same.
            lags_ns: int64 `[n]` or one.
            kind: Name of a `_core.DependencyKind`.
            evidence: "explicit", "inferred" or "assumed".
            owner: uint32 `[n]`: row of the destination's rank whose time it is.
            residual_ns: int64 `[n]` or one: what a replay with residuals takes beyond that.

        Raises:
            SchemaError: Another kind or evidence, or columns of different lengths.
        """
        if kind not in _KINDS or evidence not in _EVIDENCE:
            known = ", ".join(_KINDS)
            raise SchemaError(f"no edge is {kind!r} by {evidence!r} evidence; kinds: {known}")
        source = np.asarray(sources, dtype=np.int64).ravel()
        count = len(source)
        self._edges.append(
            _Edges(
                source,
                _column("destinations", destinations, count),
                _column("lags_ns", lags_ns, count),
                _column("residual_ns", residual_ns, count),
                np.full(count, _KINDS[kind]),
                np.full(count, _EVIDENCE[evidence]),
                _column("owner", _core.NO_ROW if owner is None else owner, count),
            )
        )

    # ------------------------------------------------------------------------- the whole

    def build(self) -> Built:
        """The graph of all that was added.

        Raises:
            SchemaError: Edges close a cycle or name points that are not there; two points for one
                side of a row; times beyond +-2.3e18 ns.
        """
        lanes = self._lane_order()
        place = np.empty(len(lanes), dtype=np.int64)
        place[lanes] = np.arange(len(lanes))
        point = _together(self._points, _Points)
        order = np.argsort(place[point.lane], kind="stable")
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        edge = _together(self._edges, _Edges)
        ends = np.concatenate([edge.source, edge.destination])
        if len(ends) and not (ends.min() >= 0 and ends.max() < len(number)):
            raise SchemaError(f"an edge names a point that is none of the {len(number)}")
        ranks = max(self._lane_rank, default=-1) + 1
        rows = [*self._rows, *[0] * (ranks - len(self._rows))]
        graph = _core.build_graph(
            lane_rank=np.array(self._lane_rank)[lanes],
            lane_kind=np.array(self._lane_kind)[lanes],
            lane_index=np.array(self._lane_index)[lanes],
            time_ns=point.time_ns[order],
            lane=place[point.lane[order]],
            row=point.row[order],
            is_end=point.is_end[order],
            held=point.held[order],
            name=point.name[order],
            source=number[edge.source],
            destination=number[edge.destination],
            kind=edge.kind,
            evidence=edge.evidence,
            owner=edge.owner,
            lag_ns=edge.lag_ns,
            residual_ns=edge.residual_ns,
            rows=np.array(rows, dtype=np.uint32),
        )
        return Built(graph, number)

    def _lane_order(self) -> Array:
        """Lanes by rank, where ranks meet last."""
        kinds = np.array(self._lane_kind, dtype=np.int64)
        return np.lexsort([np.array(self._lane_rank, dtype=np.int64), kinds == MEETING])


def _column(what: str, values: npt.ArrayLike, count: int) -> Array:
    """int64 `[count]`; one value stands for all."""
    array = np.asarray(values)
    if array.ndim and array.size != count:
        raise SchemaError(f"{what}: one or {count} were expected, not {array.size}")
    return np.broadcast_to(array.astype(np.int64).ravel(), (count,))


def _names(names: npt.ArrayLike | None, count: int) -> Array:
    return _column("names", _core.NO_STRING if names is None else names, count)


_Columns = TypeVar("_Columns", _Points, _Edges)


def _together(parts: Sequence[_Columns], kind: type[_Columns]) -> _Columns:
    """All that was added, one behind the other, int64."""
    columns: dict[str, Array] = {}
    for column in fields(kind):
        values: list[Array] = [
            np.asarray(getattr(part, column.name), dtype=np.int64) for part in parts
        ]
        columns[column.name] = np.concatenate([np.zeros(0, dtype=np.int64), *values])
    return kind(**columns)
