"""Operators by what they launch and how long it takes them: a view of `launches`."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.grouping import Groups, order_by

__all__ = ["launches_by_op"]

MOST_KERNELS = 8
"""Names in a sequence; a graph launches thousands."""


@dataclass(frozen=True, slots=True)
class _OpCalls:
    """Calls of operators that launch something; arrays have one entry per call."""

    row: Array
    """int64: the operator's row."""
    begin: Array
    """int64: its first event in `order`; its last is before the next call's."""
    order: Array
    """int64 `[events]`: events by operator, then in the order of their launches."""

    @property
    def count(self) -> Array:
        return np.diff(np.append(self.begin, len(self.order)))


def launches_by_op(events: GpuEvents) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Calls of operators by name and by the kernels that they launch.

    Args:
        events: GPU events with a launch call.

    Returns:
        Columns as docs/kernels.md lists them, and those that are shown.
    """
    events = events.where(events.part.tree.op[events.rows] != _core.NO_ROW)
    calls = _op_calls(events)
    table = events.part.table
    sequence = _sequence_codes(events, calls)
    first = calls.order[calls.begin]
    op_delay_ns = events.of_launch(table.ts_ns)[first] - table.ts_ns[calls.row]
    start_delay_ns = events.part.tree.launch_delays_ns()[events.places[first]]
    gpu_ns = np.zeros(0, dtype=np.int64)
    if len(first):
        gpu_ns = Groups(events.part.tree.op[events.rows][calls.order].astype(np.int64)).sum(
            events.duration_ns[calls.order]
        )
    groups = Groups(table.name[calls.row].astype(np.int64), calls.count, sequence)
    order = order_by(groups.count, groups.sum(gpu_ns), descending=[True, True])
    shown_call = groups.first[order]
    columns: dict[str, Column] = {
        "op": TextCodes(table.name[calls.row[shown_call]].astype(np.int32), events.texts),
        "kernels": encode_texts(_sequence_text(events, calls, call) for call in shown_call),
        "calls": groups.count[order],
        "gpu_events": calls.count[shown_call],
    }
    for name, values in (("op_delay", op_delay_ns), ("start_delay", start_delay_ns)):
        columns |= {
            f"{name}_mean_ns": groups.mean(values)[order],
            f"{name}_median_ns": groups.median(values)[order],
            f"{name}_max_ns": groups.maximum(values)[order],
        }
    columns["host_sum_ns"] = groups.sum(table.dur_ns[calls.row])[order]
    columns["gpu_sum_ns"] = groups.sum(gpu_ns)[order]
    delays = ("op_delay_mean_ns", "op_delay_max_ns", "start_delay_mean_ns", "gpu_sum_ns")
    return columns, ("op", "kernels", "calls", "gpu_events", *delays)


def _op_calls(events: GpuEvents) -> _OpCalls:
    op = events.part.tree.op[events.rows].astype(np.int64)
    call_ns = events.of_launch(events.part.table.ts_ns)
    order = np.lexsort((events.start_ns, events.launch, call_ns, op))
    begin = np.flatnonzero(np.diff(op[order], prepend=-1))
    return _OpCalls(op[order][begin], begin, order)


def _sequence_codes(events: GpuEvents, calls: _OpCalls) -> Array:
    """int64: equal where the canonical names of a call's events are, in order.

    A sum of 64-bit hashes of (name, place), so that no list is made for each call.
    """
    if not len(calls.begin):
        return np.zeros(0, dtype=np.int64)
    name = events.canonical.codes[calls.order].astype(np.uint64)
    place = np.arange(len(calls.order)) - np.repeat(calls.begin, calls.count)
    hashes = _mixed(_mixed(name) + place.astype(np.uint64))
    codes: Array = np.add.reduceat(hashes, calls.begin).view(np.int64)
    return codes


def _mixed(values: Array) -> Array:
    """Each bit of the result hangs on all of the value (the finish of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed


def _sequence_text(events: GpuEvents, calls: _OpCalls, call: int) -> str:
    begin, count = int(calls.begin[call]), int(calls.count[call])
    shown = calls.order[begin : begin + min(count, MOST_KERNELS)]
    names = [str(name) for name in events.canonical.take(shown).to_list()]
    more = count - len(shown)
    return " → ".join(names) + (f" → {more} more" if more else "")
