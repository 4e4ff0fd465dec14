"""`cuda_graph` and `merge_compiled_regions`: less host work between the launches.

Note [What a graph can't hold]: a capture fails, or repeats what was captured, where the host needs
a result between the kernels: a wait, a copy to the host, an operator whose output's shape depends
on values. It also repeats the shapes of the step that was captured. So the edit refuses where such
a thing lies between the first and the last launch of a step, and where steps launch different
kernels.

Note [What a graph takes off]: the calls that launch, and the operators around them. What Python
does between operators is the program's; short stretches of it call the operators, so that they go
at best. A stretch of operators that takes far longer than others of the segment sets something up
(loads code, tries algorithms, allocates), and would only do so before the capture.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap._core import ApiClass, CopyDirection, EventKind, HostMemory, Phase
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import ALLOCATOR_CALLS, API_KINDS
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.sums import distinct, median, total
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.view import (
    CALLING_NS,
    RankView,
    beyond_usual,
    ranges_of,
    views,
)
from torchtraceap.simulation.run import KINDS, SimulatedRun

__all__ = ["CudaGraph", "MergeCompiledRegions"]

FEWEST_LAUNCHES = 10
"""Fewer in a row are not worth a graph."""
GAP_NS = 1_000
"""Most time between the kernels of a graph on one stream; also the host time of a node where the
driver still walks the graph at launch (before CUDA 12.6)."""
_WITH_THE_HOST = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)
_NO_LAUNCHES = (ApiClass.NONE, ApiClass.GRAPH_LAUNCH, ApiClass.GRAPH_BUILDING)
_SHAPED_BY_VALUES = (
    r"^aten::(?:nonzero|_unique2?|unique_dim|unique_consecutive|masked_select|bincount)$|::nms$"
)
_OPERATORS = (EventKind.CPU_OP, *API_KINDS)
_HOST_EDGES = ("program_order", "thread_start", "thread_join", "queue_limit")


class CudaGraph:
    """Replace all launches of a step by one call.

    A graph ends where the host copies from its own memory, fetches a batch, or begins a step; where
    no steps are known, also where it waits. Best: within, operators cost the host nothing, nor
    does the Python that calls them, and kernels follow each other within a microsecond. Cautious:
    all Python stays, the one call takes a microsecond for each kernel, and the optimizer stays as
    it is (`torch.compile` captures forward and backward). See Note [What a graph can't hold] and
    Note [What a graph takes off].
    """

    name = "cuda_graph"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        launches = graphs = host_ns = 0
        for view in views(run):
            obstacle = _shaped_by_values(view)
            if not obstacle and view.tree.steps:
                obstacle = _waits_inside(run, view) or _other_kernels(view)
            if obstacle:
                raise NotApplicableError(obstacle)
            for calls in _segments(run, view, optimizer=True):
                host_ns += _capture(run, view, calls, best, python_ns=CALLING_NS)
                launches += len(calls)
                graphs += 1
            for calls in _segments(run, view, optimizer=False):
                _capture(run, view, calls, cautious, per_kernel_ns=GAP_NS)
        if not graphs:
            if any(len(v.calls_that(np.array([ApiClass.GRAPH_LAUNCH]))) for v in views(run)):
                raise NotApplicableError("what is launched comes from graphs already")
            raise NotApplicableError(
                f"nowhere are {FEWEST_LAUNCHES} kernels launched without the host waiting in "
                "between, or the trace has no launch calls"
            )
        note = (
            f"{launches} launches become {graphs}, each of a whole graph; the host is spared "
            f"{format_ns(host_ns)} at best"
        )
        if any(len(_compared_steps(view)) < 2 for view in views(run)):
            note += (
                "; that every step launches the same kernels is assumed, the trace doesn't show it"
            )
        return EditedGraph(best, cautious, note=note)


# ------------------------------------------------------------------------- obstacles


def _compared_steps(view: RankView) -> Array:
    """Return numbers of the steps whose kernels are compared: in steady state if two are, and of
    more than three without the first and last."""
    steps = view.tree.steps
    numbers = np.arange(len(steps))
    if len(steps) > 2:
        numbers = numbers[1:-1] if len(steps) > 3 else numbers[1:]
    warm_up = view.tree.warm_up
    if warm_up.known:
        start_ns = np.array([step.start_ns for step in steps], dtype=np.int64)
        steady = numbers[start_ns[numbers] >= warm_up.end_ns]
        numbers = steady if len(steady) >= 2 else numbers
    return numbers[np.isin(numbers, view.step_of(_kernels(view)))]


def _kernels(view: RankView) -> Array:
    return view.gpu_rows[view.is_kind(EventKind.KERNEL)[view.gpu_rows]]


def _shaped_by_values(view: RankView) -> str:
    """Name operators whose output has a shape that depends on values; empty without such."""
    operators = view.outermost(view.rows_named(_SHAPED_BY_VALUES, EventKind.CPU_OP))
    _, place = view.launched_inside(operators)
    found = operators[distinct(place)]
    if not len(found):
        return ""
    name = view.table.name_of(int(found[0]))
    return f"shapes depend on values: {pluralize(len(found), 'operator')} such as {name}"


def _waits_inside(run: SimulatedRun, view: RankView) -> str:
    """Describe waits of the host between the first and the last launch of a step; empty without
    such. The warm-up and the ends of the recording are left out."""
    calls = _capturable_calls(view)
    step = view.tree.step[calls].astype(np.int64)
    calls, step = calls[step != _core.NO_ROW], step[step != _core.NO_ROW]
    if not len(calls):
        return ""
    time_ns = run.graph.time_ns
    number, place = np.unique(step, return_inverse=True)
    first, last = np.zeros((2, int(place.max()) + 1), dtype=np.int64)
    first[:], last[:] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.minimum.at(first, place, time_ns[view.end_of[calls]])
    np.maximum.at(last, place, time_ns[view.begin_of[calls]])
    waits = _waiting_calls(view)
    waited_ns = time_ns[view.end_of[waits]]
    at = np.searchsorted(first, waited_ns, side="right") - 1
    inside = (at >= 0) & (waited_ns < last[np.maximum(at, 0)])
    inside &= np.isin(number[np.maximum(at, 0)], _compared_steps(view))
    if not inside.any():
        return ""
    steps, times = len(distinct(at[inside])), pluralize(int(inside.sum()), "time")
    operator = view.tree.op[waits[inside][0]]
    row = waits[inside][0] if operator == _core.NO_ROW else operator
    return (
        f"the host waits for the GPU inside {pluralize(steps, 'step')}, {times} in total (first in "
        f"{view.table.name_of(int(row))}), and goes on with what it got"
    )


def _waiting_calls(view: RankView) -> Array:
    """Return calls that wait for the GPU, or copy to memory of the host that is not page-locked, by
    the threads that launch; not those of the allocator, which has a pool for each graph."""
    copies = view.copies(CopyDirection.DEVICE_TO_HOST)
    copies = copies[view.tree.host_memory[copies] != HostMemory.PINNED]
    waits = np.isin(view.end_of[view.calls], view.wait_ends)
    calls = view.calls[waits | np.isin(view.calls, view.launch_of(copies))]
    calls = calls[~np.isin(view.tree.api[calls], ALLOCATOR_CALLS)]
    launching = distinct(view.table.track[_capturable_calls(view)])
    waiting: Array = calls[np.isin(view.table.track[calls], launching)]
    return waiting


def _other_kernels(view: RankView) -> str:
    """Describe how far steps launch different kernels, or the same on other grids; empty without
    a difference."""
    steps = _compared_steps(view)
    rows = _kernels(view)
    step = view.step_of(rows)
    rows, step = rows[np.isin(step, steps)], step[np.isin(step, steps)]
    grid, _ = view.table.text_codes("grid", rows=rows)
    order = np.lexsort((view.launch_times_ns(rows), view.tree.stream_of[rows], step))
    launched = np.stack([view.tree.stream_of[rows], view.table.name[rows], grid])[:, order]
    parts = np.split(launched, np.flatnonzero(np.diff(step[order])) + 1, axis=1)
    kinds = {part.tobytes() for part in parts}
    if len(kinds) < 2:
        return ""
    return (
        f"steps launch different kernels or grids ({len(kinds)} kinds among {len(parts)} steps): "
        "a graph repeats one of them"
    )


# ------------------------------------------------------------------------- captures


def _capturable_calls(view: RankView) -> Array:
    """Return calls that launch work that a graph can hold; cached."""

    def find() -> Array:
        gpu = view.gpu_rows
        to_host = np.isin(view.tree.copy_direction[gpu], _WITH_THE_HOST)
        calls = view.launch_of(gpu)
        held = distinct(calls[(calls >= 0) & ~to_host])
        return held[~np.isin(view.tree.api[held], _NO_LAUNCHES)]

    return view.cached("capturable calls", find)


def _segments(run: SimulatedRun, view: RankView, *, optimizer: bool) -> list[Array]:
    """Return groups of launch calls, in order of time, between operations that no graph holds."""
    held, place = view.cached("calls by graph", lambda: _placed_calls(run, view))
    if not optimizer:
        in_optimizer = view.tree.phase[held] == Phase.OPTIMIZER
        place = np.cumsum(np.diff(place + in_optimizer, prepend=-1) != 0)
        held, place = held[~in_optimizer], place[~in_optimizer]
    groups = np.split(held, np.flatnonzero(np.diff(place)) + 1) if len(held) else []
    return [group for group in groups if len(group) >= FEWEST_LAUNCHES]


def _placed_calls(run: SimulatedRun, view: RankView) -> tuple[Array, Array]:
    """Return the calls that graphs can hold, in order of time, and twice how many times lie before
    each at which no graph may go on: of copies, waits, fetches, begins of steps."""
    gpu = view.gpu_rows
    to_host = np.isin(view.tree.copy_direction[gpu], _WITH_THE_HOST)
    calls = view.launch_of(gpu)
    held = _capturable_calls(view)
    times = run.graph.time_ns[view.begin_of[held]]
    held, times = held[np.argsort(times, kind="stable")], np.sort(times)
    copies = distinct(calls[(calls >= 0) & to_host])
    waits = view.wait_ends[np.isin(view.wait_ends, view.end_of[view.calls])]
    fetches = view.rows_named(r"DataLoader.*__next__", EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    points = np.concatenate([waits, view.end_of[copies], view.end_of[fetches]])
    steps = np.array([step.start_ns for step in view.tree.steps], dtype=np.int64)
    ends = np.sort(np.concatenate([run.graph.time_ns[points], steps + view.offset_ns]))
    return held, 2 * np.searchsorted(ends, times, side="right")


def _capture(
    run: SimulatedRun,
    view: RankView,
    calls: Array,
    change: Change,
    *,
    per_kernel_ns: int = 0,
    python_ns: int = 0,
) -> int:
    """Make launches one call.

    Args:
        run: The run.
        view: The rank.
        calls: The launch calls.
        change: Takes the modifications.
        per_kernel_ns: Host time of the one call for each kernel.
        python_ns: Python between two launches goes if it took no longer.

    Returns:
        The host time that is gone, ns.
    """
    edges = _spared_edges(run, view, calls, python_ns)
    gone_ns = total(run.cost_ns[edges])
    change.set_lags(edges, 0)
    cost_ns = min(gone_ns, view.launch_cost_ns + per_kernel_ns * len(calls))
    first = view.edges_into(view.end_of[calls[:1]], "program_order")
    change.set_lags(first[(first[:, None] == edges).any(axis=1)], cost_ns)
    offsets = view.tree.launched_offsets
    places, _ = ranges_of(offsets[calls].astype(np.int64), offsets[calls + 1] - offsets[calls])
    rows = view.tree.launched_rows[places]
    view.launch_together(change, int(calls[0]), rows)
    begins = view.begin_of[np.sort(rows)[1:]]
    launch = view.edges_into(begins, "launch")
    change.set_lags(launch, run.graph.lag_ns[launch])
    order = view.edges_into(begins, "stream_order")
    change.set_lags(order, np.minimum(run.graph.lag_ns[order], GAP_NS))
    return gone_ns - cost_ns


def _spared_edges(run: SimulatedRun, view: RankView, calls: Array, python_ns: int) -> Array:
    """Return the edges of host work that a graph of these launches does without. See Note [What a
    graph takes off]."""
    # The cautious graph is often of the same launches.
    edges, work, in_operator, stretch = view.cached(
        ("work of", calls.tobytes()), lambda: _work_of(run, view, calls)
    )
    kept = np.zeros(len(edges), dtype=bool)
    for mine in (in_operator, work & ~in_operator):
        cost_ns = np.bincount(
            stretch[mine], weights=run.cost_ns[edges[mine]], minlength=len(calls) + 1
        )
        if mine is in_operator:
            too_long = beyond_usual(cost_ns, int(median(cost_ns[1:])) if len(calls) else 0)
        else:
            too_long = cost_ns > python_ns
        kept |= mine & too_long[stretch]
    return edges[~kept]


def _work_of(run: SimulatedRun, view: RankView, calls: Array) -> tuple[Array, Array, Array, Array]:
    """Return the edges of the host from the first of some launches to the end of the last; masks of
    those that are work, and work in operators; and the launch up to whose begin each goes."""
    graph, time_ns = run.graph, run.graph.time_ns
    start_ns = int(time_ns[view.begin_of[calls[0]]])
    end_ns = int(time_ns[view.end_of[calls]].max())
    parts = []
    for thread in distinct(graph.lane[view.begin_of[calls]]).tolist():
        # The points of a thread are adjacent and in order of time.
        first, last = int(graph.lane_begin[thread]), int(graph.lane_end[thread])
        within = np.searchsorted(time_ns[first:last], [start_ns, end_ns], side="right")
        parts.append(view.edges_into(np.arange(*(first + within)), *_HOST_EDGES))
    edges = np.concatenate(parts)
    work = graph.kind[edges] == KINDS["program_order"]
    in_operator = np.zeros(len(edges), dtype=bool)
    in_operator[work] = _in_operators(run, view, calls, edges[work])
    begins_ns = np.sort(time_ns[view.begin_of[calls]])
    # The stretch up to the end of each launch, and the one after the last.
    stretch = np.searchsorted(begins_ns, time_ns[run.destination[edges]], side="left")
    return edges, work, in_operator, stretch


def _in_operators(run: SimulatedRun, view: RankView, calls: Array, edges: Array) -> Array:
    """Return a mask of work of a call that launches, of an operator around one, or of the calls of
    such an operator; not of Python inside it."""
    owner = run.graph.owner[edges]
    known = owner != _core.NO_ROW
    of_operator = known & view.kind_among(np.where(known, owner, 0), _OPERATORS)
    operators, starts, reach = view.cached("operators", lambda: _operators_by_begin(view))
    begins = np.sort(view.begin_of[calls])
    near = slice(
        np.searchsorted(reach, begins[0]), np.searchsorted(starts, begins[-1], side="right")
    )
    first = np.searchsorted(begins, starts[near])
    behind = np.searchsorted(begins, view.end_of[operators[near]])
    around = operators[near][behind > first]
    holders = view.outermost(np.concatenate([around, calls]))
    held = view.inside(run.destination[edges].astype(np.int64), holders) >= 0
    inside: Array = of_operator & held
    return inside


def _operators_by_begin(view: RankView) -> tuple[Array, Array, Array]:
    """Return operators of the graph, the points at which they begin, ascending, and the last point
    in any of them up to each."""
    operators = np.flatnonzero(view.has_points & view.is_kind(EventKind.CPU_OP))
    operators = operators[np.argsort(view.begin_of[operators], kind="stable")]
    reach = np.maximum.accumulate(view.end_of[operators])
    return operators, view.begin_of[operators], reach


class MergeCompiledRegions:
    """Compiled functions don't fall apart: between two regions of one call the host does nothing.

    The rule `graph_break` finds the regions. Cautious: operators that run between them still do.
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
                _close_breaks(run, view, found.intervals, best, cautious)
                breaks += found.evidence_count
        if not breaks:
            raise NotApplicableError(reason)
        return EditedGraph(
            best, cautious, note=f"closed: {pluralize(breaks, 'break')} between compiled regions"
        )


def _close_breaks(
    run: SimulatedRun, view: RankView, intervals: Array, best: Change, cautious: Change
) -> None:
    """Remove host work of the main thread in intervals between regions."""
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
    in_operator[known] = np.isin(view.table.kind[owner[known]], _OPERATORS)
    cautious.set_lags(edges[~in_operator], 0)
