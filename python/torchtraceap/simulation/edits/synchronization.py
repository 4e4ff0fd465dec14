"""`remove_host_sync`: the host no longer waits for values from the GPU."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap._core import CopyDirection, EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import COPY_CALLS, SYNCHRONISATIONS
from torchtraceap.core.formatting import pluralize
from torchtraceap.core.order import distinct
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["RemoveHostSync"]

SMALL_BYTES = 64 << 10
"""Reads up to this size are values; larger ones are results (the rules' bound)."""
_VALUES = r"^aten::(?:item|_local_scalar_dense|is_nonzero)$"
_COPIES = r"^aten::(?:to|_to_copy|copy_|cpu)$"


@register("remove_host_sync", default=True, fixes=("host_sync_in_loop", "explicit_synchronize"))
class RemoveHostSync:
    """Values stay on the device; the program doesn't synchronise.

    Best: reads of values (`item`) and of up to 64 KiB (`cpu`) are gone with their operators, and no
    other call waits, explicit synchronisations included. Cautious: only reads of values and
    explicit synchronisations go; where an operator needs its result for a shape (`nonzero`, boolean
    masks, `unique`) or the program may use a copy at once, the host still waits. What waits behind
    an upload belongs to `pin_memory`.
    """

    name = "remove_host_sync"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        counts = np.zeros(3, dtype=np.int64)
        for view in views(run):
            counts += _apply(view, best, cautious)
        if not counts.sum():
            raise NotApplicableError("no call makes the host wait for a value from the GPU")
        reads, explicit, others = counts.tolist()
        note = (
            f"gone are {pluralize(reads, 'read')} of values, "
            f"{pluralize(explicit, 'explicit synchronisation')} and (at best) "
            f"{pluralize(others, 'other wait')}"
        )
        return EditedGraph(best, cautious, note=note)


def _apply(view: RankView, best: Change, cautious: Change) -> tuple[int, int, int]:
    waiting = _waiting_calls(view)
    values, rest = _reads(view, waiting, _VALUES)
    copies, rest = _reads(view, rest, _COPIES)
    explicit, others = _split(view, rest)
    for change in (best, cautious):
        _remove_reads(view, change, values)
        view.remove_calls(change, explicit)
    _remove_reads(view, best, copies)
    best.drop(view.waits_of(others))
    return len(values), len(explicit), len(copies) + len(others)


def _reads(view: RankView, waiting: Array, pattern: str) -> tuple[Array, Array]:
    """Outermost operators of a name that wait, and the waiting calls in none of them."""
    operators = view.outermost(_operators(view, pattern))
    place = view.inside(view.begin_of[waiting].astype(np.int64), operators)
    return operators[distinct(place[place >= 0])], waiting[place < 0]


def _operators(view: RankView, pattern: str) -> Array:
    rows = view.rows_named(pattern, EventKind.CPU_OP)
    return rows[np.argsort(view.begin_of[rows])]


def _remove_reads(view: RankView, change: Change, reads: Array) -> None:
    launched, _ = view.launched_inside(reads)
    change.drop(view.waits_of(_calls_inside(view, reads)))
    view.set_host_work(change, reads, 0)
    view.remove_gpu(change, launched)


def _calls_inside(view: RankView, rows: Array) -> Array:
    calls = view.calls
    return calls[view.inside(view.begin_of[calls].astype(np.int64), rows) >= 0]


def _waiting_calls(view: RankView) -> Array:
    """Synchronisations and copies of values that the host waits for, uploads left out."""
    calls = view.calls_that(np.concatenate([SYNCHRONISATIONS, COPY_CALLS]))
    calls = calls[_has_wait(view, calls)]
    launched = view.launched_by(calls)
    at = np.maximum(launched, 0)
    is_sync = np.isin(view.tree.api[calls], SYNCHRONISATIONS)
    to_host = view.tree.copy_direction[at] == CopyDirection.DEVICE_TO_HOST
    reads = (launched >= 0) & to_host & (view.bytes_of[at] <= SMALL_BYTES)
    uploads = view.copies_before(calls, CopyDirection.HOST_TO_DEVICE)
    large = view.copies_before(calls, CopyDirection.DEVICE_TO_HOST, SMALL_BYTES)
    last = view.begin_of[calls] > _last_launch(view)
    waiting: Array = calls[(is_sync & ~uploads & ~large & ~last) | reads]
    return waiting


def _has_wait(view: RankView, calls: Array) -> Array:
    return view.count_edges(view.end_of[calls], "host_wait") > 0


def _last_launch(view: RankView) -> int:
    """A wait behind all launches is the end of the program, or the profiler's own."""
    calls = view.launch_of(view.gpu_rows)
    return int(view.begin_of[calls[calls >= 0]].max()) if (calls >= 0).any() else -1


def _split(view: RankView, calls: Array) -> tuple[Array, Array]:
    """Synchronisations that no operator made, and the rest."""
    is_sync = np.isin(view.tree.api[calls], SYNCHRONISATIONS)
    explicit = (view.tree.op[calls] == _core.NO_ROW) & is_sync
    return calls[explicit], calls[~explicit]
