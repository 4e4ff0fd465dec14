"""`no_allocator_calls`: memory comes from the caching allocator's pool."""

from __future__ import annotations

from torchtraceap.core.codes import ALLOCATOR_CALLS
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.sums import total
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
    register,
)
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["NoAllocatorCalls"]


@register("no_allocator_calls", default=True, fixes=("allocator_thrash", "uncached_allocator"))
class NoAllocatorCalls:
    """cudaMalloc, cudaFree and their kin cost nothing and wait for nothing.

    Calls of the warm-up stay: a pool has to be filled once. Where a trace shows no steady state
    they all go at best, none at least.
    """

    name = "no_allocator_calls"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        calls, work_ns, sure = 0, 0, True
        for view in views(run):
            rows = view.outermost(view.calls_that(ALLOCATOR_CALLS))
            warm_up = view.tree.warm_up
            if warm_up.known:
                rows = rows[view.table.ts_ns[rows] >= warm_up.end_ns]
                view.remove_calls(cautious, rows)
            sure = sure and warm_up.known
            view.remove_calls(best, rows)
            calls += len(rows)
            work_ns += total(view.work_ns(rows))
        if not calls:
            raise NotApplicableError("no call in steady state takes or gives back memory")
        note = f"gone: {pluralize(calls, 'call')} that took {format_ns(work_ns)} without waiting"
        if not sure:
            note += ", at best: the trace shows no steady state, so they may be warm-up"
        return EditedGraph(best, cautious, note=note)
