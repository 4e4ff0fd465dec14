"""`no_allocator_calls`: memory comes from the caching allocator's pool."""

from __future__ import annotations

from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.units import counted, format_ns

__all__ = ["NoAllocatorCalls"]

# As the rule of allocator_thrash: device and pinned memory, taken or given back.
_CALLS = (
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister|"
    r"MallocHost|FreeHost|MallocManaged)$|"
    r"^(?:cu|hip)Mem(?:Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree|Alloc|Free)"
)


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
            rows = view.outermost(view.calls_named(_CALLS))
            since_ns = view.steady_since_ns
            if since_ns is not None:
                rows = rows[view.table.ts_ns[rows] >= since_ns]
                view.remove_calls(cautious, rows)
            sure = sure and since_ns is not None
            view.remove_calls(best, rows)
            calls += len(rows)
            work_ns += int(view.work_ns(rows).sum())
        if not calls:
            raise NotApplicableError("no call in steady state takes or gives back memory")
        note = f"gone: {counted(calls, 'call')} that took {format_ns(work_ns)} without waiting"
        if not sure:
            note += ", at best: the trace shows no steady state, so they may be warm-up"
        return EditedGraph(best, cautious, note=note)
