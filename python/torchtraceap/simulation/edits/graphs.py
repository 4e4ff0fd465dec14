"""`cuda_graph` and `merge_compiled_regions`: less host work between the launches."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap._core import ApiClass, CopyDirection, EventKind, Phase
from torchtraceap.aliases import Array
from torchtraceap.codes import API_KINDS
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import (
    RankView,
    ranges_of,
    views,
)
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.sums import total
from torchtraceap.units import counted, format_ns

__all__ = ["CudaGraph", "MergeCompiledRegions"]

FEWEST_LAUNCHES = 10
"""Fewer between two waits of the host are not worth a graph."""
GAP_NS = 1_000
"""Between the kernels of a graph on one stream, at most; and what a node costs the host where the
driver still walks the graph at launch (before CUDA 12.6)."""


_WITH_THE_HOST = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)
_NO_LAUNCHES = (ApiClass.NONE, ApiClass.GRAPH_LAUNCH, ApiClass.GRAPH_BUILDING)


@register("cuda_graph", default=True, fixes=("cpu_bound", "tiny_kernels"))
class CudaGraph:
    """What is launched between two waits of the host is launched by one call.

    A graph ends where the host waits, copies from or to its own memory, fetches a batch, or begins
    a step. Within, the host has nothing to do and kernels follow each other within a microsecond.
    Cautious: the one call takes a microsecond for each kernel, and the optimizer stays as it is
    (`torch.compile` captures forward and backward).
    """

    name = "cuda_graph"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        launches = graphs = host_ns = 0
        for view in views(run):
            for calls in _segments(run, view, optimizer=True):
                host_ns += _capture(run, view, calls, best, per_kernel_ns=0)
                launches += len(calls)
                graphs += 1
            for calls in _segments(run, view, optimizer=False):
                _capture(run, view, calls, cautious, per_kernel_ns=GAP_NS)
        if not graphs:
            raise NotApplicableError(_why_no_graph(run))
        note = (
            f"{launches} launches become {graphs}, each of a whole graph; the host is spared "
            f"{format_ns(host_ns)}"
        )
        return EditedGraph(best, cautious, note=note)


def _segments(run: SimulatedRun, view: RankView, *, optimizer: bool) -> list[Array]:
    """Launch calls, in order of time, between two things that a graph can't hold."""
    gpu = view.gpu_rows
    to_host = np.isin(view.tree.copy_direction[gpu], _WITH_THE_HOST)
    calls = view.launch_of(gpu)
    held = np.unique(calls[(calls >= 0) & ~to_host])
    held = held[~np.isin(view.tree.api[held], _NO_LAUNCHES)]
    times = run.graph.time_ns[view.begin_of[held]]
    held, times = held[np.argsort(times, kind="stable")], np.sort(times)
    ends = _graph_ends(run, view, np.unique(calls[(calls >= 0) & to_host]))
    place = 2 * np.searchsorted(ends, times, side="right")
    if not optimizer:
        in_optimizer = view.tree.phase[held] == Phase.OPTIMIZER
        place = np.cumsum(np.diff(place + in_optimizer, prepend=-1) != 0)
        held, place = held[~in_optimizer], place[~in_optimizer]
    groups = np.split(held, np.flatnonzero(np.diff(place)) + 1) if len(held) else []
    return [group for group in groups if len(group) >= FEWEST_LAUNCHES]


def _graph_ends(run: SimulatedRun, view: RankView, copies: Array) -> Array:
    """Times at which no graph may go on, sorted."""
    time_ns = run.graph.time_ns
    waits = view.wait_ends
    mine = np.isin(waits, view.end_of[view.calls])
    fetches = view.rows_named(r"DataLoader.*__next__", EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    points = np.concatenate([waits[mine], view.end_of[copies], view.end_of[fetches]])
    steps = np.array([step.start_ns for step in view.tree.steps], dtype=np.int64)
    return np.sort(np.concatenate([time_ns[points], steps + view.offset_ns]))


def _capture(
    run: SimulatedRun, view: RankView, calls: Array, change: Change, *, per_kernel_ns: int
) -> int:
    """Launches become one; returns the host time that is gone."""
    time_ns = run.graph.time_ns
    first = calls[0]
    start_ns = int(time_ns[view.begin_of[first]])
    end_ns = int(time_ns[view.end_of[calls]].max())
    threads = np.unique(run.graph.lane[view.begin_of[calls]])
    edges = _host_edges(run, threads, start_ns, end_ns)
    setting_up, _ = view.work_edges(view.outermost(calls[view.one_time(calls)]))
    if len(setting_up):
        edges = edges[~np.isin(edges, setting_up)]
    gone_ns = total(run.cost_ns[edges])
    change.set_lags(edges, 0)
    cost_ns = min(gone_ns, view.launch_cost_ns + per_kernel_ns * len(calls))
    change.set_lags(view.edges_into(view.end_of[[first]], "program_order"), cost_ns)
    offsets = view.tree.launched_offsets.astype(np.int64)
    places, _ = ranges_of(offsets[calls], offsets[calls + 1] - offsets[calls])
    rows = view.tree.launched_rows[places]
    begins = view.begin_of[np.sort(rows)[1:]]
    launch = view.edges_into(begins, "launch")
    change.set_lags(launch, run.graph.lag_ns[launch])
    order = view.edges_into(begins, "stream_order")
    change.set_lags(order, np.minimum(run.graph.lag_ns[order], GAP_NS))
    return gone_ns - cost_ns


def _host_edges(run: SimulatedRun, threads: Array, start_ns: int, end_ns: int) -> Array:
    """Edges of host work and hand-over on threads, of points within (start, end]."""
    graph = run.graph
    edges = []
    for thread in threads.tolist():
        # The points of a thread are adjacent and in order of time.
        first, last = int(graph.lane_begin[thread]), int(graph.lane_end[thread])
        times = graph.time_ns[first:last]
        inside = np.searchsorted(times, [start_ns, end_ns], side="right")
        edges.append(views(run)[0].edges_into(np.arange(*(first + inside)), *_HOST_EDGES))
    return np.concatenate(edges)


_HOST_EDGES = ("program_order", "thread_start", "thread_join", "queue_limit")


def _why_no_graph(run: SimulatedRun) -> str:
    for view in views(run):
        if len(view.calls_that(np.array([ApiClass.GRAPH_LAUNCH]))):
            return "what is launched comes from graphs already"
    return (
        f"nowhere are {FEWEST_LAUNCHES} kernels launched without the host waiting in between, or "
        "the trace has no launch calls"
    )


@register("merge_compiled_regions", default=True, fixes=("graph_break",))
class MergeCompiledRegions:
    """Compiled functions don't fall apart: between two regions of one call the host does nothing.

    The rule `graph_break` says where. Cautious: operators that run there still do.
    """

    name = "merge_compiled_regions"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        breaks, reason = 0, "no compiled function falls apart in this trace"
        for view in views(run):
            found = next(f for f in _core.detect(view.table, view.tree) if f.type == "graph_break")
            if found.verdict == "unknown":
                reason = f"the trace doesn't say: {', '.join(found.missing_signals)}"
            if len(found.intervals):
                _close(run, view, found.intervals, best, cautious)
                breaks += found.evidence_count
        if not breaks:
            raise NotApplicableError(reason)
        return EditedGraph(
            best, cautious, note=f"closed: {counted(breaks, 'break')} between compiled regions"
        )


def _close(
    run: SimulatedRun, view: RankView, intervals: Array, best: Change, cautious: Change
) -> None:
    graph = run.graph
    is_main = (graph.lane_rank == view.index) & (graph.lane_kind == 0)
    is_main &= graph.lane_index == view.tree.main_track
    bounds_of = np.stack([graph.lane_begin, graph.lane_end], axis=1)[is_main].astype(np.int64)
    points = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(*b) for b in bounds_of)])
    # Intervals are on the clock of the table's GPU events, points on the run's common clock.
    first = view.gpu_rows[:1]
    shift = graph.time_ns[view.begin_of[first]] - view.table.ts_ns[first]
    bounds = intervals + (int(shift[0]) if len(shift) else 0)
    place = np.searchsorted(bounds[:, 0], graph.time_ns[points], side="left") - 1
    inside = (place >= 0) & (graph.time_ns[points] <= bounds[np.maximum(place, 0), 1])
    edges = view.edges_into(points[inside], "program_order")
    best.set_lags(edges, 0)
    owner = graph.owner[edges]
    known = owner != _core.NO_ROW
    in_operator = known.copy()
    kinds = (EventKind.CPU_OP, *API_KINDS)
    in_operator[known] = np.isin(view.table.kind[owner[known]], kinds)
    cautious.set_lags(edges[~in_operator], 0)
