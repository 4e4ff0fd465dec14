"""`GraphBuilder`: an execution graph from parts, or one of a run that gains work.

Lanes are threads and streams of ranks, and the places where ranks meet. Work on a lane runs from a
point to another; edges are dependencies. Points are numbered in the order in which they are added.
The graph needs those of a lane, and the lanes of a rank, adjacent: `Built.points` returns the
number of each there.

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


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces of work, int64 `[n]` each."""

    begin: Array
    """Points where they begin."""
    end: Array
    """Points where they end."""


@dataclass(frozen=True, slots=True)
class Built:
    """A graph, and the numbers in it of the builder's points."""

    graph: _core.ExecutionGraph
    _number: Array
    _edge: Array

    def points(self, points: npt.ArrayLike) -> Array:
        """Return the numbers in the graph of points of the builder, int64, in their shape."""
        chosen: Array = self._number[np.asarray(points, dtype=np.int64)]
        return chosen

    def edges(self, edges: npt.ArrayLike) -> Array:
        """Return the numbers in the graph of edges of the builder, int64, in their shape."""
        chosen: Array = self._edge[np.asarray(edges, dtype=np.int64)]
        return chosen


_POINT_COLUMNS = ("lane", "time_ns", "row", "is_end", "held", "name")
_EDGE_COLUMNS = ("source", "destination", "lag_ns", "residual_ns", "kind", "evidence", "owner")


class GraphBuilder:
    """Lanes, work and dependencies, added as arrays.

    Args:
        graph: A graph to begin with; its points are the first ones, by their numbers.
        rows: The number of rows of the table of each rank, where rows are named.
    """

    def __init__(
        self, graph: _core.ExecutionGraph | None = None, *, rows: Sequence[int] = ()
    ) -> None:
        self._rows = list(rows)
        self._lane_rank: list[int] = []
        self._lane_kind: list[int] = []
        self._lane_index: list[int] = []
        self._points: list[tuple[Array, ...]] = []  # columns of `_POINT_COLUMNS`
        self._edges: list[tuple[Array, ...]] = []  # columns of `_EDGE_COLUMNS`
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
        """Add a whole graph.

        Args:
            graph: A graph of ranks that the builder does not have.
            rank: Index of its first rank.
            lag_ns: int64 `[edges]`: costs of its edges, residuals included; None: as in the graph.

        Returns:
            The number of its first point; the others follow in their order.

        Raises:
            SchemaError: Lags for another number of edges.
        """
        first, lanes = self._count, len(self._lane_rank)
        self._lane_rank += (graph.lane_rank + rank).tolist()
        self._lane_kind += graph.lane_kind.tolist()
        self._lane_index += graph.lane_index.tolist()
        lane = graph.lane.astype(np.int64) + lanes
        self._points.append((lane, graph.time_ns, graph.row, graph.is_end, graph.held, graph.name))
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
            (
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
        """Add a thread or a stream of a rank, or a place where ranks meet, and return its number.

        Args:
            kind: THREAD, STREAM or MEETING.
            rank: Index of the rank.
            index: Index in its tracks or streams, where there is a table.

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
        """Add points after those of the lane, without any dependency.

        Args:
            lane: Number of the lane.
            count: Number of points, n.
            start_ns: int64 `[n]` or one: time of a point to which nothing leads.
            rows: uint32 `[n]`: rows of the rank's table.
            is_end: bool `[n]` or one: the row ends there.
            names: uint32 `[n]` or one: codes that distinguish work that repeats in every step.

        Returns:
            int64 `[n]`: the points.

        Raises:
            SchemaError: There is no such lane, or columns of different lengths.
        """
        if not 0 <= lane < len(self._lane_rank):
            raise SchemaError(f"there is no lane {lane}, there are {len(self._lane_rank)}")
        self._points.append(
            (
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
    ) -> Work:
        """Add pieces of work, each of which waits for the one before on the lane.

        Args:
            lane: Number of the lane.
            durations_ns: int64 `[n]`, from 0.
            start_ns: int64 `[n]` or one: begin of a piece to which nothing leads.
            gaps_ns: int64 `[n]` or one: from the end of the piece before to the begin of each.
            rows: uint32 `[n]`: rows of the rank's table.
            names: uint32 `[n]` or one: codes that distinguish work that repeats in every step.

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
        gaps_ns: npt.ArrayLike = 0,
    ) -> Work:
        """Add one piece of work on each of n lanes, whose data moves once the last has begun.

        Args:
            lanes: Lanes of different ranks, as a rule.
            transfer_ns: Time from the begin of the last to the end of all.
            gaps_ns: int64 `[n]` or one: from the end of the work before on each lane.

        Raises:
            SchemaError: See `add_work`; or a time below 0.
        """
        if transfer_ns < 0:
            raise SchemaError(f"a transfer of {transfer_ns} ns makes no sense")
        gaps = _column("gaps_ns", gaps_ns, len(lanes)).tolist()
        parts = [
            self.add_work(lane, [0], gaps_ns=gap) for lane, gap in zip(lanes, gaps, strict=True)
        ]
        begin = np.array([int(part.begin[0]) for part in parts], dtype=np.int64)
        end = np.array([int(part.end[0]) for part in parts], dtype=np.int64)
        if MEETING in self._lane_kind:
            meeting = self._lane_kind.index(MEETING)
        else:
            meeting = self.add_lane(MEETING)
        met = self.add_points(meeting, 1)
        self.add_edges(begin, np.repeat(met, len(begin)), 0, kind="rendezvous")
        self.add_edges(np.repeat(met, len(end)), end, transfer_ns, kind="rendezvous")
        return Work(begin, end)

    def add_edges(
        self,
        sources: npt.ArrayLike,
        destinations: npt.ArrayLike,
        lags_ns: npt.ArrayLike,
        *,
        kind: str = "program_order",
        owner: npt.ArrayLike | None = None,
    ) -> None:
        """Add dependencies: a destination happens `lags_ns` after its source at the earliest.

        Args:
            sources: int64 `[n]`: points of the builder.
            destinations: The same.
            lags_ns: int64 `[n]` or one.
            kind: Name of a `_core.DependencyKind`.
            owner: uint32 `[n]`: row of the destination's rank whose time it is.

        Raises:
            SchemaError: Another kind, or columns of different lengths.
        """
        if kind not in _KINDS:
            raise SchemaError(f"no edge is {kind!r}; kinds: {', '.join(_KINDS)}")
        source = np.asarray(sources, dtype=np.int64).ravel()
        count = len(source)
        self._edges.append(
            (
                source,
                _column("destinations", destinations, count),
                _column("lags_ns", lags_ns, count),
                np.zeros(count, dtype=np.int64),
                np.full(count, _KINDS[kind]),
                np.full(count, int(_core.Evidence.EXPLICIT)),
                _column("owner", _core.NO_ROW if owner is None else owner, count),
            )
        )

    @property
    def edge_count(self) -> int:
        """Number of edges so far, which is the number of the next one.

        `add_work` adds the edges of its n pieces first, then those of the gaps before them.
        """
        return sum(len(columns[0]) for columns in self._edges)

    # ------------------------------------------------------------------------- the graph

    def build(self) -> Built:
        """Build the graph of all lanes, points and edges.

        Raises:
            SchemaError: Edges close a cycle or name points that are not there; two points for one
                side of a row; times beyond +-2.3e18 ns.
        """
        # Lanes by rank, places where ranks meet last.
        kinds = np.array(self._lane_kind, dtype=np.int64)
        lanes = np.lexsort([np.array(self._lane_rank, dtype=np.int64), kinds == MEETING])
        place = np.empty(len(lanes), dtype=np.int64)
        place[lanes] = np.arange(len(lanes))
        point = _columns(self._points, _POINT_COLUMNS)
        lane = place[point.pop("lane")]
        order = np.argsort(lane, kind="stable")
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        edge = _columns(self._edges, _EDGE_COLUMNS)
        ends = np.concatenate([edge["source"], edge["destination"]])
        if len(ends) and not (ends.min() >= 0 and ends.max() < len(number)):
            raise SchemaError(f"an edge names a point that is none of the {len(number)}")
        ranks = max(self._lane_rank, default=-1) + 1
        rows = [*self._rows, *[0] * (ranks - len(self._rows))]
        names = {name: number[edge[name]] for name in ("source", "destination")}
        by_destination = np.argsort(names["destination"], kind="stable")  # as the graph has them
        places = np.empty(len(by_destination), dtype=np.int64)
        places[by_destination] = np.arange(len(by_destination))
        graph = _core.build_graph(
            lane_rank=np.array(self._lane_rank)[lanes],
            lane_kind=np.array(self._lane_kind)[lanes],
            lane_index=np.array(self._lane_index)[lanes],
            lane=lane[order],
            **{name: values[order] for name, values in point.items()},
            **edge | names,
            rows=np.array(rows, dtype=np.uint32),
        )
        return Built(graph, number, places)


def _column(name: str, values: npt.ArrayLike, count: int) -> Array:
    """Return int64 `[count]`; one value stands for all."""
    array = np.asarray(values)
    if array.ndim and array.size != count:
        raise SchemaError(f"{name}: one or {count} were expected, not {array.size}")
    return np.broadcast_to(array.astype(np.int64).ravel(), (count,))


def _names(names: npt.ArrayLike | None, count: int) -> Array:
    return _column("names", _core.NO_STRING if names is None else names, count)


def _columns(parts: Sequence[tuple[Array, ...]], names: Sequence[str]) -> dict[str, Array]:
    """Concatenate the columns of all parts, int64."""
    return {
        name: np.concatenate(
            [np.zeros(0, dtype=np.int64), *(np.asarray(p[place], dtype=np.int64) for p in parts)]
        )
        for place, name in enumerate(names)
    }
