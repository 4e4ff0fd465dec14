"""Edits after which something is simply not done: the host's ranges go with what they launched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.aliases import Array
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.parts import parts_of
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.sums import total
from torchtraceap.units import counted, format_ns

__all__ = ["NoBroadcastBuffers", "RemoveRanges"]

_RANGES = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)


@dataclass(frozen=True)
class RemoveRanges:
    """Host ranges of a name are gone, with the GPU work that they launched."""

    name: str
    pattern: str
    what: str
    """One such range, for a person."""
    in_warm_up: bool = True
    """Whether those of the warm-up go too."""

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        ranges = work_ns = 0
        for view in views(run):
            rows = view.outermost(view.rows_named(self.pattern, *_RANGES))
            if not self.in_warm_up:
                steady = view.in_steady_state(rows)
                rows = rows[:0] if steady is None else steady
            ranges, work_ns = ranges + len(rows), work_ns + total(view.work_ns(rows))
            _remove(view, change, rows)
        if not ranges:
            where = "" if self.in_warm_up else " in steady state"
            raise NotApplicableError(f"the trace has no {self.what}{where}")
        note = f"gone: {counted(ranges, self.what)} with {format_ns(work_ns)} on the host"
        return EditedGraph(change, note=note)


def _remove(view: RankView, change: Change, rows: Array) -> None:
    launched, _ = view.launched_inside(rows)
    view.remove_gpu(change, launched)
    calls = view.calls
    inside = view.inside(view.begin_of[calls].astype(np.int64), rows) >= 0
    change.drop(view.waits_of(calls[inside]))
    view.set_host_work(change, rows, 0)


_REMOVALS = (
    (
        RemoveRanges("zero_grad_to_none", r"^Optimizer\.zero_grad#", "range of zero_grad"),
        "zero_grad_not_none",
    ),
    (
        RemoveRanges(
            "no_unused_parameter_search",
            "search_unused_parameters",
            "search for unused parameters",
        ),
        "find_unused_parameters",
    ),
    (
        RemoveRanges("no_recompilation", r"\(dynamo_timed\)", "compilation", in_warm_up=False),
        "recompilation",
    ),
)
for _edit, _finding in _REMOVALS:
    register(_edit.name, default=True, fixes=(_finding,))(partial(replace, _edit))


@register("no_broadcast_buffers", default=True, fixes=("broadcast_buffers",))
class NoBroadcastBuffers:
    """`broadcast_buffers=False`: no buffers are sent before a forward pass."""

    name = "no_broadcast_buffers"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        count = 0
        for parts in parts_of(run):
            view = parts.view
            forward = view.rows_named(r"^DistributedDataParallel\.forward", *_RANGES)
            inside, _ = view.launched_inside(view.outermost(forward))
            chosen = np.isin(parts.rows, inside) & (parts.kind == "broadcast")
            parts.remove(change, np.flatnonzero(chosen))
            count += int(chosen.sum())
        if not count:
            raise NotApplicableError("no forward pass of DistributedDataParallel broadcasts")
        return EditedGraph(change, note=f"gone: {counted(count, 'broadcast')}")
