"""Look-ups of edits: rows by name, the edges behind rows, and changes that most of them share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap._core import ApiClass, CopyDirection, EventKind, GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import SYNCHRONISATIONS
from torchtraceap.core.sums import distinct, median
from torchtraceap.core.threads import MemoCache
from torchtraceap.ops.devices import Device
from torchtraceap.simulation.edits.base import Change, NewEvent
from torchtraceap.simulation.run import KINDS, SimulatedRun
from torchtraceap.tables.gpu.recorded_device import recorded_device
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "ACCUMULATION",
    "CALLING_NS",
    "DEEPEST_CALLS",
    "RankView",
    "beyond_usual",
    "ranges_of",
    "views",
]

ACCUMULATION = r"(?:^|: )torch::autograd::AccumulateGrad$"
"""The name of an operator that adds a gradient to those of a parameter."""
FALLBACK_LAUNCH_NS = 10_000
"""Cost of a call that starts GPU work, where a trace has none to measure."""
FALLBACK_LATENCY_NS = 5_000
"""Time from the return of a call to the begin of its work, where a trace has none to measure: 1 to
15 us in public traces."""
FALLBACK_GAP_NS = 1_000
"""Time between two pieces of work on a stream, likewise: as a GPU's own queue has it."""
CALLING_NS = 100_000
"""Python between two launches that takes no longer calls the next operator: modules, hooks and
arguments of eager PyTorch take 5 to 50 us, recording them as much again."""
DEEPEST_CALLS = 64
"""Depth of nested calls that an edit may change; runtimes nest two deep."""
_ONE_TIME_NS, _ONE_TIME_RATIO = 1_000_000, 10  # the bounds of the rule cold_start


def views(run: SimulatedRun) -> tuple[RankView, ...]:
    """Return a view of each rank of the run, cached."""
    shared = run.cached("shared look-ups", lambda: _Shared(run))
    ranks = range(len(run.ranks))
    return run.cached("views", lambda: tuple(RankView(run, rank, shared) for rank in ranks))


def ranges_of(first: Array, count: Array) -> tuple[Array, Array]:
    """Return all numbers of several ranges, and the index of the range of each."""
    count = np.maximum(count, 0).astype(np.int64)
    place = np.repeat(np.arange(len(first)), count)
    shift = first.astype(np.int64) + count - np.cumsum(count)
    return shift[place] + np.arange(len(place)), place


def beyond_usual(work_ns: Array, usual_ns: int) -> Array:
    """Return a mask of work that takes so long that it must load code or set something up, once."""
    return work_ns > max(_ONE_TIME_NS, _ONE_TIME_RATIO * usual_ns)


class _Shared:
    """Edges by point, and matches of names, shared by the ranks of a run."""

    def __init__(self, run: SimulatedRun) -> None:
        self._graph = run.graph
        self._matches: dict[str, dict[str, bool]] = {}
        self.own = np.full(len(run.graph), -1, dtype=np.int64)
        order = run.edges_of("program_order")
        self.own[run.destination[order]] = order
        """int64 `[points]`: the edge of its own work, or -1."""

    def matches(self, pattern: str, names: Sequence[str]) -> Mapping[str, bool]:
        """Return whether each name matches, in any case. Ranks have most names in common."""
        known = self._matches.setdefault(pattern, {})
        new = set(names).difference(known)
        if new:
            search = re.compile(pattern, re.IGNORECASE).search
            known.update({name: search(name) is not None for name in new})
        return known

    @cached_property
    def work_before(self) -> Array:
        """Own work of all points before each, int64 `[points + 1]`, ns."""
        work = np.where(self.own >= 0, self._graph.lag_ns[np.maximum(self.own, 0)], 0)
        return np.concatenate([[0], np.cumsum(work)])

    @cached_property
    def in_offsets(self) -> Array:
        """Offsets of the edges by their destination, int64 `[points + 1]`."""
        return self._graph.in_offsets.astype(np.int64)

    @cached_property
    def by_source(self) -> tuple[Array, Array]:
        """Offsets `[points + 1]` and numbers `[edges]` of the edges by their source, int64."""
        return self._graph.edges_by_source()


class RankView:
    """One rank of a run for edits. Rows are those of its table."""

    def __init__(self, run: SimulatedRun, index: int, shared: _Shared) -> None:
        self._run = run.graph, run.destination, run.cost_ns
        self.index = index
        self.part: RankTrace = run.ranks[index]
        self.table, self.tree = self.part.table, self.part.tree
        self.begin_of = run.graph.begin_of(index)
        self.end_of = run.graph.end_of(index)
        self._points = run.point_bounds[index]
        self._own_edge = shared.own
        self._shared = shared
        self.cached = MemoCache()
        """Values of the rank that several edits need."""

    # ------------------------------------------------------------------------- rows

    @cached_property
    def names(self) -> list[str]:
        """Names by string id."""
        return self.table.strings

    def has_name(self, pattern: str) -> Array:
        """Return a mask of rows whose name matches, in any case; cached."""

        def match() -> Array:
            matches = self._shared.matches(pattern, self.names)
            by_code = np.fromiter(map(matches.__getitem__, self.names), dtype=bool)
            return by_code.take(self.table.name)

        return self.cached(("named", pattern), match)

    def is_kind(self, *kinds: EventKind) -> Array:
        """Return a mask of rows of these kinds."""
        return _among(self.table.kind, kinds)

    def kind_among(self, rows: Array, kinds: Sequence[int]) -> Array:
        """Return a mask of the given rows that are of these kinds."""
        return _among(self.table.kind[rows], kinds)

    @cached_property
    def has_points(self) -> Array:
        """A mask of rows in the graph."""
        known: Array = (self.begin_of != _core.NO_ROW) & (self.end_of != _core.NO_ROW)
        return known

    def rows_named(self, pattern: str, *kinds: EventKind) -> Array:
        """Return rows of the graph by name and kind."""
        rows = np.flatnonzero(self.has_points & self.has_name(pattern))
        return rows[self.kind_among(rows, kinds)]

    def evidence(self, finding: str) -> Array:
        """Return the outermost host rows by which a rule shows its finding; cached."""

        def find() -> Array:
            rows = _core.evidence_rows(self.table, self.tree, finding).astype(np.int64)
            return self.outermost(rows[self.has_points[rows]])

        return self.cached(("evidence", finding), find)

    @cached_property
    def calls(self) -> Array:
        """Runtime and driver calls of the graph."""
        return np.flatnonzero(self.has_points & (self.tree.api != ApiClass.NONE))

    def calls_that(self, classes: Array) -> Array:
        """Return calls of some classes, such as `codes.SYNCHRONISATIONS`."""
        return self.calls[np.isin(self.tree.api[self.calls], classes)]

    def copies(self, *directions: CopyDirection) -> Array:
        """Return GPU events that copy in one of these directions, by start."""
        return self.gpu_rows[np.isin(self.tree.copy_direction[self.gpu_rows], directions)]

    @cached_property
    def gpu_rows(self) -> Array:
        """Complete GPU events by start."""
        rows = self.tree.gpu_rows.astype(np.int64)
        known: Array = rows[self.has_points[rows]]
        return known

    def gpu_class(self, name: GpuClass) -> Array:
        """Return GPU rows of a class."""
        chosen: Array = self.gpu_rows[self.tree.gpu_class[self.gpu_rows] == name]
        return chosen

    def launch_of(self, gpu_rows: Array) -> Array:
        """Return the launching calls, -1 where unknown."""
        calls = self.tree.launch[gpu_rows].astype(np.int64)
        known = calls != _core.NO_ROW
        known[known] = self.has_points[calls[known]]
        return np.where(known, calls, -1)

    def phase_of(self, gpu_rows: Array) -> Array:
        """Return the phases in which GPU work was launched; 0 (other) where unknown."""
        calls = self.launch_of(gpu_rows)
        return np.where(calls >= 0, self.tree.phase[np.maximum(calls, 0)], 0)

    def launch_times_ns(self, gpu_rows: Array) -> Array:
        """Return launch times of GPU work on the table's clock; its start where unknown."""
        calls = self.launch_of(gpu_rows)
        times = self.table.ts_ns
        return np.where(calls >= 0, times[np.maximum(calls, 0)], times[gpu_rows])

    def step_of(self, gpu_rows: Array) -> Array:
        """Return indices of the profiled steps in which GPU work was launched, or -1."""
        step = self.tree.step[gpu_rows].astype(np.int64)
        return np.where(step == _core.NO_ROW, -1, step)

    def outermost(self, rows: Array) -> Array:
        """Return the host rows that lie in none of the others."""
        rows = rows[np.argsort(self.begin_of[rows], kind="stable")]
        ends = self.end_of[rows].astype(np.int64)
        covered = np.maximum.accumulate(np.concatenate([[-1], ends[:-1]])) if len(rows) else ends
        return rows[ends > covered]

    def inside(self, points: Array, rows: Array) -> Array:
        """Return the place in `rows` (sorted, disjoint host rows) of each point, or -1."""
        if not len(rows):
            return np.full(len(points), -1)
        place = np.searchsorted(self.begin_of[rows], points, side="right") - 1
        held = (place >= 0) & (points <= self.end_of[rows][np.maximum(place, 0)])
        return np.where(held, place, -1)

    def launched_inside(self, rows: Array) -> tuple[Array, Array]:
        """Return GPU rows launched in sorted, disjoint host rows, and their places in `rows`."""
        calls = self.launch_of(self.gpu_rows)
        known = calls >= 0
        place = np.full(len(calls), -1)
        place[known] = self.inside(self.begin_of[calls[known]].astype(np.int64), rows)
        return self.gpu_rows[place >= 0], place[place >= 0]

    @cached_property
    def offset_ns(self) -> int:
        """The time to add to host times of the table for those of the graph."""
        rows = self.calls[:1]
        if not len(rows):
            rows = np.flatnonzero(self.has_points & (self.end_of != _core.NO_ROW))[:1]
        graph, _, _ = self._run
        return int((graph.time_ns[self.begin_of[rows]] - self.table.ts_ns[rows]).sum())

    @cached_property
    def bytes_of(self) -> Array:
        """Bytes of copies, int64 `[rows]`; 0 where unknown."""
        values, present = self.table.int_column("bytes")
        return np.where(present, values, 0)

    @cached_property
    def device(self) -> Device | None:
        """The GPU that the trace was recorded on, if it is known."""
        found = map(recorded_device, self.table.devices)
        return next((device for device in found if device is not None), None)

    # ------------------------------------------------------------------------- edges

    def edges_into(self, points: Array, *kinds: str) -> Array:
        """Return edges that lead to points, of these kinds, else of any; ascending."""
        return self._run[0].edges_into(
            points, sum(1 << int(KINDS[kind]) for kind in kinds or KINDS)
        )

    @cached_property
    def wait_ends(self) -> Array:
        """Points at which the rank's host goes on after a wait for the GPU, sorted."""
        waits = self.edges_into(np.arange(*self._points), "host_wait")
        ends: Array = distinct(self.destination_of(waits)).astype(np.int64)
        return ends

    def edges_from(self, points: Array, *kinds: str) -> Array:
        """Return edges that start at points, of these kinds."""
        graph, _, _ = self._run
        offsets, by_source = self._shared.by_source
        points = distinct(points).astype(np.int64)
        places, _ = ranges_of(offsets[points], offsets[points + 1] - offsets[points])
        edges: Array = np.sort(by_source[places])
        return edges[np.isin(graph.kind[edges], [int(KINDS[kind]) for kind in kinds])]

    def source_of(self, edges: Array) -> Array:
        """Return the points at which edges start."""
        return self._run[0].source[edges]

    def destination_of(self, edges: Array) -> Array:
        """Return the points to which edges lead."""
        return self._run[1][edges]

    def is_end(self, points: Array) -> Array:
        """Return a mask of points at which something ends."""
        ends: Array = self._run[0].is_end[points].astype(bool)
        return ends

    def row_of(self, points: Array) -> Array:
        """Return the rows of points."""
        return self._run[0].row[points].astype(np.int64)

    def cost_of(self, edges: Array) -> Array:
        """Return costs of edges, ns, residuals included."""
        return self.costs_ns[edges]

    @property
    def costs_ns(self) -> Array:
        """Costs of all edges of the run, int64, ns, residuals included."""
        return self._run[2]

    def lag_of(self, edges: Array) -> Array:
        """Return costs of edges, ns, without residuals: the typical cost where only order holds."""
        lags: Array = self._run[0].lag_ns[edges]
        return lags

    def waits_of(self, host_rows: Array) -> Array:
        """Return the edges on which these calls wait for the GPU."""
        return self.edges_into(self.end_of[host_rows], "host_wait")

    def duration_edges(self, gpu_rows: Array) -> Array:
        """Return the edge from begin to end of each GPU event, -1 where there is none."""
        graph, _, _ = self._run
        ends = self.end_of[gpu_rows].astype(np.int64)
        offsets = self._shared.in_offsets
        edges, place = ranges_of(offsets[ends], offsets[ends + 1] - offsets[ends])
        own = graph.source[edges] == self.begin_of[gpu_rows][place]
        found = np.full(len(gpu_rows), -1, dtype=np.int64)
        found[place[own]] = edges[own]
        return found

    def work_edges(self, host_rows: Array) -> tuple[Array, Array]:
        """Return the edges of work inside host rows, and the place of each in `host_rows`.

        Rows inside others have the same edges as well, unless calls are nested without end.
        """
        begin = self.begin_of[host_rows].astype(np.int64)
        count = self.end_of[host_rows].astype(np.int64) - begin
        if int(count.sum()) > DEEPEST_CALLS * len(self._own_edge):
            count[~np.isin(host_rows, self.outermost(host_rows))] = 0
        points, place = ranges_of(begin + 1, count)
        edges = self._own_edge[points]
        return edges[edges >= 0], place[edges >= 0]

    def work_ns(self, host_rows: Array) -> Array:
        """Return the host work inside rows, without waits, int64 `[rows]`, ns."""
        before = self._shared.work_before
        ends = self.end_of[host_rows].astype(np.int64)
        lengths: Array = before[ends + 1] - before[self.begin_of[host_rows].astype(np.int64) + 1]
        return lengths

    def launched_by(self, calls: Array) -> Array:
        """Return the first GPU row that each call launched, or -1."""
        first, behind = (self.tree.launched_offsets[calls + k] for k in (0, 1))
        has = behind > first
        found = np.full(len(calls), -1, dtype=np.int64)
        found[has] = self.tree.launched_rows[first[has]]
        return found

    def copies_before(self, calls: Array, direction: CopyDirection, above_bytes: int = -1) -> Array:
        """Return a mask of calls right before which their thread launched such a copy."""
        copies = self.copies(direction)
        copies = copies[self.bytes_of[copies] > above_bytes]
        launches = self.launch_of(copies)
        behind = self.waits_behind(launches[launches >= 0])
        return np.isin(calls, behind)

    def next_wait(self, calls: Array) -> Array:
        """Return the synchronizing call right after each call, by the same operator; -1 if none.

        Without an operator only a wait for the stream counts: others are the program's own.
        """
        syncs = self.calls_that(SYNCHRONISATIONS)
        if not len(syncs):
            return np.full(len(calls), -1)
        syncs = syncs[np.argsort(self.begin_of[syncs])]
        after = self.end_of[calls].astype(np.int64)
        place = np.searchsorted(self.begin_of[syncs], after, side="right")
        found = syncs[np.minimum(place, len(syncs) - 1)]
        near = (place < len(syncs)) & (self.begin_of[found] == after + 1)
        parent = self.tree.parent[found]
        near &= parent == self.tree.parent[calls]
        near &= (parent != _core.NO_ROW) | (self.tree.api[found] == ApiClass.STREAM_SYNC)
        return np.where(near, found, -1)

    def waits_behind(self, calls: Array) -> Array:
        """Return the synchronizing calls right after these calls, each once."""
        found = self.next_wait(calls)
        return distinct(found[found >= 0])

    @cached_property
    def launch_cost_ns(self) -> int:
        """Host time of a call that starts GPU work: the median of kernel launches."""
        calls = distinct(self.launch_of(self._kernels))
        calls = calls[calls >= 0]
        return int(median(self.work_ns(calls))) if len(calls) else FALLBACK_LAUNCH_NS

    @cached_property
    def operator_cost_ns(self) -> int:
        """Host time of an operator with one kernel, its launch included: the median of such; two
        launches where no operator is recorded."""
        operators = self.tree.op[self._kernels]
        operators, count = np.unique(operators[operators != _core.NO_ROW], return_counts=True)
        alone = operators[count == 1].astype(np.int64)
        return int(median(self.work_ns(alone))) if len(alone) else 2 * self.launch_cost_ns

    @cached_property
    def _kernels(self) -> Array:
        kernels: Array = self.gpu_rows[self.is_kind(EventKind.KERNEL)[self.gpu_rows]]
        return kernels

    def launch_latency_ns(self, gpu_rows: Array) -> int:
        """Return the time from the return of a call to the begin of its work on a free stream: the
        median of these events, else of kernels."""
        for rows in (gpu_rows, self._kernels):
            launches = self.edges_into(self.begin_of[rows], "launch")
            launches = launches[self.is_end(self.source_of(launches))]
            if len(launches):
                return int(median(self.lag_of(launches)))
        return FALLBACK_LATENCY_NS

    @cached_property
    def gap_ns(self) -> int:
        """Time between two pieces of work on a stream: the median of kernels."""
        order = self.edges_into(self.begin_of[self._kernels], "stream_order")
        return int(median(self.lag_of(order))) if len(order) else FALLBACK_GAP_NS

    # ------------------------------------------------------------------------- changes

    def set_host_work(self, change: Change, host_rows: Array, to_ns: npt.ArrayLike) -> None:
        """Limit host work inside disjoint rows to `to_ns`; its parts shrink alike."""
        _, _, cost_ns = self._run
        before = np.maximum(self.work_ns(host_rows), 1)
        factor = np.minimum(np.broadcast_to(np.asarray(to_ns), before.shape) / before, 1.0)
        edges, place = self.work_edges(host_rows)
        change.set_lags(edges, cost_ns[edges] * factor[place])

    def remove_calls(self, change: Change, host_rows: Array) -> None:
        """Remove calls: they neither cost time nor wait for the GPU."""
        self.set_host_work(change, host_rows, 0)
        change.drop(self.waits_of(host_rows))
        change.remove(self.index, host_rows)

    def scale_gpu(self, change: Change, gpu_rows: Array, factor: npt.ArrayLike) -> None:
        """Make GPU events take `factor` times as long."""
        _, _, cost_ns = self._run
        edges = self.duration_edges(gpu_rows)
        factors = np.broadcast_to(np.asarray(factor, dtype=np.float64), edges.shape)
        change.set_lags(edges[edges >= 0], (cost_ns[edges] * factors)[edges >= 0])

    def remove_gpu(self, change: Change, gpu_rows: Array) -> None:
        """Remove GPU events; their successors still wait for what these waited for."""
        edges = self.duration_edges(gpu_rows)
        change.set_lags(edges[edges >= 0], 0)
        begins = self.begin_of[gpu_rows]
        change.set_lags(self.edges_into(begins, "stream_order"), 0)
        change.drop(self.edges_into(begins, "launch", "device_busy", "copy_engine"))
        change.remove(self.index, gpu_rows)

    def replace(
        self,
        change: Change,
        host_rows: Array,
        name: str,
        *,
        args: Mapping[str, int | float | str] | None = None,
    ) -> None:
        """Write each row as an event of another name, without anything inside, as long as the row
        is then. It changes no time."""
        change.remove(self.index, host_rows)
        for row in host_rows.tolist():
            change.insert(self._new_event(row, name, args))

    def launch_together(self, change: Change, call: int, gpu_rows: Array) -> None:
        """Write a call that launches all of this work in place of a call: `cudaGraphLaunch`, or the
        same of the call's runtime. It changes no time."""
        runtime = re.match(r"cuda|hip|cu", self.table.name_of(call))
        called = (runtime[0] if runtime else "cuda") + "GraphLaunch"
        change.remove(self.index, [call])
        change.insert(replace(self._new_event(call, called), launches=gpu_rows))

    def _new_event(
        self, row: int, name: str, args: Mapping[str, int | float | str] | None = None
    ) -> NewEvent:
        begin, end = int(self.begin_of[row]), int(self.end_of[row])
        return NewEvent(self.index, name, begin, end, row, args or {})


def _among(codes: Array, kinds: Sequence[int]) -> Array:
    """Return a mask of codes of these kinds."""
    chosen = np.zeros(len(EventKind), dtype=bool)
    chosen[list(kinds)] = True
    found: Array = chosen.take(codes)
    return found
