"""Memory of the device: its copies, allocator calls, and `[memory]` events."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import ALLOCATOR_CALLS, HOST_MEMORY_CALLS, MEMORY_RETURNS
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_bytes, format_ns
from torchtraceap.core.sums import clamp, cumulative, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.copies import (
    MemoryView,
    bandwidth_over_time,
    copies_by_direction,
    copies_one_by_one,
    copy_rate_changes,
    sensible_bytes,
    sums_of_bytes,
)
from torchtraceap.tables.gpu.gpu_events import GpuEvents, Masked, most_frequent, row_numbers
from torchtraceap.tables.grouping import Groups, rows_by_key, steps_of, threads_of
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "TABLE",
    "MemoryEvents",
    "build_memory",
]


def build_memory(part: RankTrace, *, by: str = "direction") -> ColumnTable:
    """Build the table of `Trace.memory` for one rank.

    Returns:
        Columns as docs/tables.md lists them; GB are 10^9 bytes.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    columns, shown, facts, notes = _VIEWS[by](part)
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


# ----------------------------------------------------------------------------- allocator calls


def _by_allocator(part: RankTrace) -> MemoryView:
    table = part.table
    rows = np.flatnonzero(np.isin(part.tree.api, ALLOCATOR_CALLS) & table.complete)
    api = part.tree.api[rows]
    returns = np.where(np.isin(api, MEMORY_RETURNS), 1, 0)
    kinds = TextCodes(
        np.where(np.isin(api, HOST_MEMORY_CALLS), 2, returns), ("allocate", "free", "host")
    )
    duration_ns = table.dur_ns[rows]
    step = steps_of(part, rows)
    groups = Groups(table.name[rows], step.codes)
    first = groups.first
    op = GpuEvents.of(part).names_of(part.tree.op[rows])
    sizes = np.full(len(rows), np.nan)
    for key in ("size", "bytes", "sizeBytes"):  # as HIP's calls say it
        values, present = table.int_column(key, rows)
        use = np.isnan(sizes) & present
        sizes[use] = values[use]
    columns: dict[str, Column] = {
        "call": TextCodes(table.name[rows].astype(np.int32), table.strings).take(first),
        "kind": kinds.take(first),
        "step": step.take(first),
        "count": groups.count,
        **groups.statistics(duration_ns, "sum", "mean", "max"),
        "total_bytes": sums_of_bytes(groups, sensible_bytes(sizes)),
        "thread": threads_of(part, rows).take(first),
        "op": TextCodes(most_frequent(groups, op.codes)[0], table.strings),
        "first_row": rows[first],
    }
    shown = ("call", "kind", "step", "count", "sum_ns", "mean_ns", "max_ns", "op")
    events = MemoryEvents(part)
    change = events.bytes[events.known]
    facts: dict[str, Any] = {
        "calls": len(rows),
        "calls_ns": total(duration_ns),
        "memory_events": len(events.rows),
        "allocations": int((change > 0).sum()),
        "allocated_bytes": total(change[change > 0]),
        "frees": int((change < 0).sum()),
        "freed_bytes": clamp(-total(change[change < 0])),
        "peaks": events.peaks(),
    }
    notes = []
    if not len(rows):
        notes.append(
            "No call allocates or frees memory: the caching allocator served all requests from "
            "what it held."
            if (part.tree.api != _core.ApiClass.NONE).any()
            else "The trace has no runtime calls, so none that allocate or free memory."
        )
    inside = int((step.codes >= 0).sum())
    if inside:
        notes.append(
            f"{inside} of {len(rows)} allocator calls are inside of steps, where a caching "
            "allocator should need none; each may wait for the GPU."
        )
    if not len(events.rows):
        notes.append(_HOW_TO_RECORD)
    return columns, shown, facts, notes


# ------------------------------------------------------------------------------ [memory] events

_HOW_TO_RECORD = (
    "The trace has no [memory] events of the caching allocator: record them with "
    "torch.profiler.profile(profile_memory=True)."
)
# c10::DeviceType
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 14: "meta",
                 15: "hpu", 19: "mtia", 20: "privateuseone"}  # fmt: skip


class MemoryEvents:
    """The `[memory]` instants of a rank by time.

    Attributes:
        bytes: int64 `[n]`, negative where memory was given back.
        known: bool `[n]`: the event says its bytes.
        net: int64 `[n]`: running sum of `bytes` on the event's device, 0 before its first event.
    """

    def __init__(self, part: RankTrace) -> None:
        table = part.table
        self.part = part
        strings = table.strings
        name = strings.index("[memory]") if "[memory]" in strings else -1
        self.rows: Array = np.flatnonzero(
            (table.name == name) & ((table.flags & _core.HAS_TIME) != 0)
        )
        self.time_ns: Array = table.ts_ns[self.rows]
        self.bytes, self.known = table.int_column("Bytes", self.rows)
        types, typed = table.int_column("Device Type", self.rows)
        self.device_type = encode_texts(
            _DEVICE_TYPES.get(value, f"type {value}") if says else None
            for value, says in zip(types.tolist(), typed.tolist(), strict=True)
        )
        self.device = self.integers("Device Id")
        self.allocated = self.integers("Total Allocated")
        self.reserved = self.integers("Total Reserved")
        self.net: Array = np.where(self.known, self.bytes, 0)
        groups = self.by_device()
        for group in range(len(groups)):
            members = groups.rows(group)
            self.net[members] = cumulative(self.net[members])

    def integers(self, key: str) -> Masked:
        """Return one key of `args`, int64, masked where an event lacks it."""
        values, present = self.part.table.int_column(key, self.rows)
        return np.ma.array(values, mask=~present)

    def by_device(self) -> Groups:
        """Return the events grouped by device."""
        return Groups(self.device_type.codes, np.ma.filled(self.device, -1))

    def peaks(self) -> list[dict[str, Any]]:
        """Return for each device the most that was allocated and reserved, and when.

        Traces before 2022 lack totals: there only the growth since the first event is known.
        """
        groups = self.by_device()
        found = []
        for members in map(groups.rows, range(len(groups))):
            absolute = not np.ma.getmaskarray(self.allocated)[members].any()
            held = np.ma.getdata(self.allocated)[members] if absolute else self.net[members]
            reserved = self.reserved[members]
            top = members[np.argmax(held)]
            peak = {
                "device_type": self.device_type.take(members[:1]).to_list()[0],
                "device": self.device[top : top + 1].tolist()[0],
                "events": len(members),
                "peak_allocated_bytes": int(held.max()) if absolute else None,
                "peak_growth_bytes": int(self.net[members].max()),
                "peak_time_ns": int(self.time_ns[top]),
                "peak_row": int(self.rows[top]),
                "peak_reserved_bytes": int(reserved.max()) if reserved.count() else None,
            }
            found.append(peak)
        return found


def _by_timeline(part: RankTrace) -> MemoryView:
    events = MemoryEvents(part)
    op_rows = _enclosing_ops(part, events.rows)
    columns: dict[str, Column] = {
        "row": events.rows,
        "time_ns": events.time_ns,
        "since_first_ns": events.time_ns - (events.time_ns[0] if len(events.rows) else 0),
        "device_type": events.device_type,
        "device": events.device,
        "address": events.integers("Addr"),
        "change_bytes": np.ma.array(events.bytes, mask=~events.known),
        "allocated_bytes": events.allocated,
        "reserved_bytes": events.reserved,
        "net_bytes": events.net,
        "op": GpuEvents.of(part).names_of(op_rows),
        "op_row": row_numbers(op_rows),
        "step": steps_of(part, events.rows),
        "thread": threads_of(part, events.rows),
    }
    shown = ("since_first_ns", "device_type", "device", "change_bytes", "allocated_bytes")
    peaks = events.peaks()
    notes = [] if len(events.rows) else [_HOW_TO_RECORD]
    for peak in peaks:
        device = "" if peak["device"] is None or peak["device"] < 0 else f" {peak['device']}"
        where = f"{peak['device_type'] or 'a device'}{device}"
        since_ns = peak["peak_time_ns"] - int(events.time_ns.min())
        when = f"{format_ns(since_ns)} after the first event"
        if peak["peak_allocated_bytes"] is None:
            notes.append(
                f"Memory on {where} grows by at most {format_bytes(peak['peak_growth_bytes'])}, "
                f"{when}; the trace does not say how much was allocated before."
            )
            continue
        reserved = peak["peak_reserved_bytes"] or 0
        held = f"; reserved at most {format_bytes(reserved)}" if reserved > 0 else ""
        most = format_bytes(peak["peak_allocated_bytes"])
        notes.append(f"Most memory on {where}: {most}, {when}{held}.")
    return columns, (*shown, "reserved_bytes", "op", "step"), {"peaks": peaks}, notes


def _enclosing_ops(part: RankTrace, rows: Array) -> Array:
    """Return the innermost operator on the same thread around each row's start, uint32; NO_ROW if
    there is none.

    O(rows x (log n + depth)), without a loop over rows.
    """
    table, tree = part.table, part.tree
    result = np.full(len(rows), _core.NO_ROW, dtype=np.uint32)
    end_ns = table.ts_ns + table.dur_ns
    for track, here in rows_by_key(table.track[rows]):
        host = tree.host_rows[int(tree.host_offsets[track]) : int(tree.host_offsets[track + 1])]
        times = table.ts_ns[rows[here]]
        last = np.searchsorted(table.ts_ns[host], times, side="right") - 1
        above = np.where(last >= 0, host[last] if len(host) else 0, _core.NO_ROW)
        above = above.astype(np.uint32)
        while True:
            over = np.flatnonzero(above != _core.NO_ROW)
            over = over[end_ns[above[over]] < times[over]]
            if not len(over):
                break
            above[over] = tree.parent[above[over]]
        known = above != _core.NO_ROW
        result[here[known]] = tree.op[above[known]]
    return result


_VIEWS = {
    "direction": copies_by_direction,
    "copy": copies_one_by_one,
    "bandwidth": bandwidth_over_time,
    "counter": copy_rate_changes,
    "allocator": _by_allocator,
    "timeline": _by_timeline,
}

TABLE = TableSpec(
    build=build_memory,
    views=tuple(_VIEWS),
    sql={
        "copies": {"by": "copy"},
        "allocator": {"by": "allocator"},
        "memory": {"by": "timeline"},
    },
    page=(
        PageView("memory", "copies", hint="Exposed: while nothing else runs on the GPU."),
        PageView("memory", "allocator calls", {"by": "allocator"}, find="call"),
    ),
    first={
        "direction": (
            *("direction", "time_ns", "total_bytes", "bandwidth_gb_per_s"),
            *("host_memory", "count", "exposed_ns"),
        ),
        "copy": ("direction", "size_bytes", "duration_ns", "row", "bandwidth_gb_per_s", "op"),
        "allocator": ("call", "sum_ns", "count", "step"),
        "timeline": ("since_first_ns", "change_bytes", "allocated_bytes", "device_type", "op"),
        "bandwidth": ("direction", "since_first_ns", "bandwidth_gb_per_s", "moved_bytes"),
        "counter": ("direction", "since_first_ns", "bandwidth_gb_per_s", "copies"),
    },
)
