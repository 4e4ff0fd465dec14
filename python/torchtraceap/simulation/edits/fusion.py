"""`fused_optimizer` and `fuse_pointwise`: fewer kernels, which read and write less."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.sums import distinct, median, sum_groups, total
from torchtraceap.ops.models import family_of
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.gpu_work import families_of
from torchtraceap.simulation.edits.view import CALLING_NS, RankView, beyond_usual, views
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["FuseOptimizer", "FusePointwise"]

FEWEST_KERNELS = 50
"""Kernels of one optimizer step that are worth fusing (the rule's bound)."""
_FUSED_ACCESSES = 7.0
"""Tensors that a fused Adam reads and writes: 4 and 3."""
_OPERATOR_ACCESSES = 2.5
"""Tensors that one pointwise operator reads and writes, on average of Adam's."""
_POINTWISE = ("elementwise", "activation", "dropout", "copy", "gradient_accumulation")
_OF_OPTIMIZER = (*_POINTWISE, "optimizer", "memory_set")
_RANGES = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)


class FuseOptimizer:
    """Each operator of an optimizer step runs once for all parameters, or all of them at once.

    Best (fused): the host calls one operator, the GPU reads and writes each parameter's tensors
    once. Cautious (foreach): Python still walks over the parameters once, and
    the operators move the same bytes; only the start of each kernel is saved.

    Where the run computes on the host, operators are the kernels, and the time of the shortest of
    them is the cost of calling one. Best: one operator for all, which reads and writes each tensor
    once. Cautious: a call for each operator, and a pass over the same bytes. Nothing of Python
    stays between them.
    """

    name = "fused_optimizer"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        kernels = steps = 0
        for view in views(run):
            ranges = view.outermost(view.rows_named(r"^Optimizer\.step#", *_RANGES))
            for row in ranges.tolist():
                fuse = _fuse_on_host if view.part.computes_on_host else _fuse_on_gpu
                count = fuse(view, row, best, cautious)
                kernels, steps = kernels + count, steps + (count > 0)
        if not steps:
            stepping = [v for v in views(run) if len(v.rows_named(r"^Optimizer\.step#", *_RANGES))]
            if not stepping:
                raise NotApplicableError("the trace has no ranges of an optimizer's step")
            on_host = stepping[0].part.computes_on_host
            calls, noun = ("calls", "operators") if on_host else ("launches", "kernels")
            raise NotApplicableError(
                f"no optimizer step {calls} {FEWEST_KERNELS} or more pointwise {noun}"
            )
        on_host = all(view.part.computes_on_host for view in views(run))
        noun = "operators" if on_host else "kernels"
        note = f"{kernels} {noun} of {steps} optimizer steps are fused"
        return EditedGraph(best, cautious, note=note)


def _fuse_on_gpu(view: RankView, row: int, best: Change, cautious: Change) -> int:
    """Fuse the kernels of a step, and return their number; 0 leaves the step as it is."""
    launched, _ = view.launched_inside(np.array([row]))
    small = launched[np.isin(families_of(view, launched), _OF_OPTIMIZER)]
    operators = view.tree.op[np.maximum(view.launch_of(small), 0)]
    operators = distinct(operators[operators != _core.NO_ROW])
    names, counts = np.unique(view.table.name[operators], return_counts=True)
    texts = [view.names[name] for name in names.tolist()]
    if len(small) < FEWEST_KERNELS or not texts:
        return 0
    if any("_foreach_" in text or "fused" in text for text in texts):
        return 0
    once = 1 / median(counts)  # one call of each operator, for every parameter
    host_ns = view.work_ns(np.array([row]))
    traffic = min(1.0, _FUSED_ACCESSES / (_OPERATOR_ACCESSES * len(operators) * once))
    lengths = view.table.dur_ns[small]
    start_ns = float(lengths.min())  # of the smallest parameter's kernel: all start, no data
    kept = np.maximum(lengths - start_ns * (1 - once), 0) / np.maximum(lengths, 1)
    for change, host, gpu in (
        (best, 1 / max(len(operators), 1), kept * traffic),
        (cautious, max(1 / len(names), once), kept),
    ):
        view.set_host_work(change, np.array([row]), host_ns * host)
        view.scale_gpu(change, small, gpu)
        change.set_lags(view.edges_into(view.begin_of[small[1:]], "stream_order"), 0)
    return len(small)


def _fuse_on_host(view: RankView, row: int, best: Change, cautious: Change) -> int:
    """Fuse the operators of a step that the host computes, and return their number."""
    operators = view.rows_named(r"^\w+::", EventKind.CPU_OP)
    inside = view.inside(view.begin_of[operators].astype(np.int64), np.array([row])) >= 0
    operators = view.outermost(operators[inside])
    families = [family_of(view.names[name]) for name in view.table.name[operators].tolist()]
    single = operators[np.isin(families, _OF_OPTIMIZER)]
    if len(single) < FEWEST_KERNELS or 2 * len(single) < len(operators):
        return 0
    names, counts = np.unique(view.table.name[single], return_counts=True)
    lengths = view.work_ns(single)
    call_ns = int(lengths.min())
    data_ns = total(lengths) - call_ns * len(single)
    parameters = max(float(median(counts)), 1.0)
    traffic = min(1.0, _FUSED_ACCESSES / (_OPERATOR_ACCESSES * len(single) / parameters))
    begin, end = view.begin_of[single[0]], view.end_of[single[-1]]
    within = view.edges_into(np.arange(int(begin), int(end) + 1), "program_order")
    before_ns = total(view.cost_of(within))
    for change, after_ns in (
        (best, call_ns + data_ns * traffic),
        (cautious, call_ns * len(names) + data_ns),
    ):
        change.set_lags(within, view.cost_of(within) * min(1.0, after_ns / max(before_ns, 1)))
    return len(single)


class FusePointwise:
    """Pointwise kernels that follow each other on a stream become one.

    Best: it takes as long as the longest of them, and their operators cost the host one launch;
    Python between two of them that only calls the next one goes.
    Cautious: only kernels of the same grid are fused, each further one still reads one tensor (a
    third of its time), and of the host's work only the launch calls go.
    """

    name = "fuse_pointwise"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        fused = chains = gone_ns = 0
        for view in views(run):
            rows, chain = _chains(run, view, same_grid=False)
            gone_ns += _fuse_chains(view, best, rows, chain, share=0.0, operators=True)
            fused, chains = fused + len(rows), chains + len(distinct(chain))
            rows, chain = _chains(run, view, same_grid=True)
            _fuse_chains(view, cautious, rows, chain, share=1 / 3, operators=False)
        if not chains:
            raise NotApplicableError("no two pointwise kernels of operators follow each other")
        note = f"{fused} kernels become {chains}; the GPU is spared {format_ns(gone_ns)} at best"
        return EditedGraph(best, cautious, note=note)


def _chains(run: SimulatedRun, view: RankView, *, same_grid: bool) -> tuple[Array, Array]:
    """Return the rows of chains of two or more kernels, and the chain of each."""
    rows = view.gpu_rows
    stream = view.tree.stream_of[rows]
    order = np.lexsort((np.arange(len(rows)), stream))
    rows, stream = rows[order], stream[order]
    calls = view.launch_of(rows)
    known = calls >= 0
    pointwise = known & view.is_kind(EventKind.KERNEL)[rows]
    pointwise[pointwise] = np.isin(families_of(view, rows[pointwise]), _POINTWISE)
    at = np.maximum(calls, 0)
    follows = pointwise[1:] & pointwise[:-1] & (stream[1:] == stream[:-1])
    follows &= view.table.track[at[1:]] == view.table.track[at[:-1]]
    follows &= view.tree.phase[at[1:]] == view.tree.phase[at[:-1]]
    # No kernel spans a wait of the host: count the waits before each call.
    waits = view.wait_ends
    waited_ns = np.sort(run.graph.time_ns[waits[np.isin(waits, view.end_of)]])
    count = np.zeros(len(rows), dtype=np.int64)
    count[known] = np.searchsorted(waited_ns, run.graph.time_ns[view.begin_of[calls[known]]])
    follows &= count[1:] == count[:-1]
    if same_grid:
        grid, _ = view.table.text_codes("grid", rows=rows)
        follows &= (grid[1:] == grid[:-1]) & (grid[1:] >= 0)
    chain = np.cumsum(np.concatenate([[True], ~follows])) if len(rows) else np.zeros(0, int)
    size = np.bincount(chain)
    inside = size[chain] > 1
    return rows[inside], chain[inside]


def _fuse_chains(
    view: RankView, change: Change, rows: Array, chain: Array, *, share: float, operators: bool
) -> int:
    """Give the first kernel of each chain the longest's time and a share of the others'.

    Returns:
        The saved GPU time, ns.
    """
    if not len(rows):
        return 0
    lengths = view.table.dur_ns[rows]
    first = np.flatnonzero(np.diff(chain, prepend=-1))
    sums_ns = sum_groups(lengths, first)
    longest = np.maximum.reduceat(lengths, first)
    fused_ns = longest + share * (sums_ns - longest)
    rest = np.delete(rows, first)
    view.remove_gpu(change, rest)
    view.scale_gpu(change, rows[first], fused_ns / np.maximum(lengths[first], 1))
    calls = distinct(view.launch_of(rest))
    # Launches that set something up: their cost would only move to another launch.
    one_time = beyond_usual(view.work_ns(calls), view.launch_cost_ns)
    view.set_host_work(change, calls[~one_time], 0)
    if operators:
        owners = np.setdiff1d(view.tree.op[calls], view.tree.op[calls[one_time]])
        owners = view.outermost(owners[owners != _core.NO_ROW].astype(np.int64))
        view.set_host_work(change, owners, 0)
        between = view.edges_into(view.begin_of[owners], "program_order")
        change.set_lags(between[view.cost_of(between) <= CALLING_NS], 0)
    return int((sums_ns - fused_ns).sum())
