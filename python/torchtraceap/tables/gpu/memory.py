"""DOC"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.codes import ALLOCATOR_CALLS, HOST_MEMORY_CALLS, MEMORY_RETURNS
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_bytes, format_ns, format_share
from torchtraceap.core.sums import clamp, cumulative, round_to_int, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import MissingFileError, ParseError
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.events import steps_of, threads_of
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    most_frequent,
    row_numbers,
)
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "CATEGORIES",
    "MAX_ENTRIES",
    "MAX_TEXT_BYTES",
    "TABLE",
    "build_memory",
    "read_memory_timeline",
]


Masked = np.ma.MaskedArray[Any, Any]
View = tuple[dict[str, Column], tuple[str, ...], dict[str, Any], list[str]]

_BINS = 100
_MOST_BYTES = 2.0**50

# ------------------------------------------------------------------------------------- copies


# By `CopyDirection`; of what is copied or set only memsets have no direction.
_DIRECTIONS = ("memset", "HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "unknown")
# By `HostMemory`, NONE left out; ROCm says no more than Host.
_HOST_MEMORIES = ("Pageable", "Pinned", "Managed", "Host")


class Copies:
    """Copies and memsets of a rank."""

    def __init__(self, part: RankTrace) -> None:
        every = GpuEvents.of(part)
        memset = part.table.kind[every.rows] == _core.EventKind.GPU_MEMSET
        memcpy = every.gpu_class.codes == _core.GpuClass.MEMCPY
        self.events = every.where(memcpy | memset)
        direction = part.tree.copy_direction[self.events.rows]
        memory = part.tree.host_memory[self.events.rows].astype(np.int32)
        says = (memory != _core.HostMemory.NONE) & (direction != _core.CopyDirection.UNKNOWN)
        self.direction = TextCodes(direction.astype(np.int32), _DIRECTIONS)
        self.host_memory = TextCodes(np.where(says, memory - 1, -1), _HOST_MEMORIES)
        self.bytes: Array = self._read_bytes()
        """float64, NaN where the trace doesn't say."""

    def __len__(self) -> int:
        return len(self.events)

    def _read_bytes(self) -> Array:
        """Of the event, else of its launch call, which says `bytes` or `size` on ROCm."""
        events, table = self.events, self.events.part.table
        sizes = events.number_arg("bytes")
        alone = events.is_linked & (events.events_of_launch == 1)
        for key in ("bytes", "size"):
            unsaid = np.flatnonzero(np.isnan(sizes) & alone)
            values, present = table.int_column(key, events.launch[unsaid])
            sizes[unsaid[present]] = values[present]
        return _sensible(sizes)

    @property
    def recorded_rates(self) -> Array:
        """float64, GB/s as the profiler wrote it; NaN where it did not."""
        return self.events.number_arg("memory bandwidth (GB/s)")

    def bandwidth(self) -> Array:
        """float64, GB/s: bytes over duration; NaN without bytes or length."""
        return _ratio(self.bytes, self.events.duration_ns)

    def groups(self) -> Groups:
        """By direction and host memory."""
        return Groups(self.direction.codes, self.host_memory.codes)


def _sensible(sizes: Array) -> Array:
    """Bytes; NaN where a trace says less than none, or more than any memory holds."""
    return np.where((sizes >= 0) & (sizes < _MOST_BYTES), sizes, np.nan)


def _ratio(size: Array, duration_ns: Array) -> Array:
    """Bytes per nanosecond are GB/s."""
    lasts = duration_ns > 0
    rates: Array = np.where(lasts, size / np.where(lasts, duration_ns, 1), np.nan)
    return rates


def build_memory(part: RankTrace, *, by: str = "direction") -> ColumnTable:
    """Memory of one rank: copies, their bandwidth, allocator calls, allocations over time.

    Args:
        part: The rank.
        by: "direction" (direction and kind of host memory), "copy" (each), "bandwidth" (over
            time, in 100 bins), "counter" (every change of it), "allocator" (allocation calls by
            step) or "timeline" (`[memory]` events).

    Returns:
        Columns as docs/memory.md lists them; GB are 10^9 bytes.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    columns, shown, facts, notes = _VIEWS[by](part)
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


def _by_direction(part: RankTrace) -> View:
    copies = Copies(part)
    events, groups = copies.events, copies.groups()
    order = order_by(groups.sum(events.duration_ns), descending=[True])
    first = groups.first[order]
    known = ~np.isnan(copies.bytes)
    rates = copies.bandwidth()
    measured = known & (events.duration_ns > 0)
    measured_bytes = groups.sum(np.where(measured, copies.bytes, 0.0))
    columns: dict[str, Column] = {
        "direction": copies.direction.take(first),
        "host_memory": copies.host_memory.take(first),
        "count": groups.count[order],
        "total_bytes": _whole(groups.sum(np.where(known, copies.bytes, 0.0)), groups, known)[order],
        "time_ns": groups.sum(events.duration_ns)[order],
        "exposed_ns": groups.sum(events.exclusive_ns)[order],
        "bandwidth_gb_per_s": _ratio(
            np.where(measured_bytes > 0, measured_bytes, np.nan),
            groups.sum(np.where(measured, events.duration_ns, 0)),
        )[order],
        "fastest_gb_per_s": _largest(groups, rates)[order],
        "recorded_gb_per_s": _recorded(groups, copies)[order],
        "mean_bytes": _mean(groups, copies.bytes)[order],
        "largest_bytes": _largest(groups, copies.bytes)[order],
        "median_ns": groups.median(events.duration_ns)[order],
        "max_ns": groups.maximum(events.duration_ns)[order],
        "op": TextCodes(most_frequent(groups, events.op.codes)[0][order], events.texts),
    }
    shown = ("direction", "host_memory", "count", "total_bytes", "time_ns", "exposed_ns")
    rates_shown = ("bandwidth_gb_per_s", "recorded_gb_per_s", "mean_bytes", "op")
    facts = {"busy_ns": total(part.costs.exclusive_ns), "sizes": _sizes(copies)}
    return columns, (*shown, *rates_shown), facts, _copy_notes(copies)


def _whole(sums: Array, groups: Groups, known: Array) -> Masked:
    """Sums of bytes as int64, masked where no event of a group says its size."""
    return np.ma.array(round_to_int(sums), mask=groups.sum(known.astype(np.int64)) == 0)


def _mean(groups: Groups, values: Array) -> Array:
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Array = groups.sum(np.where(known, values, 0.0)) / groups.sum(known.astype(float))
    return means


def _largest(groups: Groups, values: Array) -> Array:
    largest = groups.maximum(np.where(np.isnan(values), -1.0, values))
    known: Array = np.where(largest < 0, np.nan, largest)
    return known


def _recorded(groups: Groups, copies: Copies) -> Array:
    """Bandwidth as the profiler wrote it, weighted with time: comparable with the achieved one."""
    events = copies.events
    rates = copies.recorded_rates
    known = ~np.isnan(rates) & (events.duration_ns > 0)
    weight = np.where(known, events.duration_ns, 0).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Array = groups.sum(np.where(known, rates, 0.0) * weight) / groups.sum(weight)
    return means


def _sizes(copies: Copies) -> list[dict[str, Any]]:
    """Copies by direction, host memory and size; sizes fall between powers of two."""
    known = ~np.isnan(copies.bytes)
    events, size = copies.events.where(known), copies.bytes[known]
    direction, host_memory = copies.direction.take(known), copies.host_memory.take(known)
    exponent = np.frexp(np.maximum(size, 0.5))[1].astype(np.int64)  # 0 for empty copies
    groups = Groups(direction.codes, host_memory.codes, exponent)
    # By the words: codes follow the strings of the table, whose order threads decide.
    words = (
        column.take(groups.first).to_numpy().astype(str) for column in (direction, host_memory)
    )
    order = order_by(*words, exponent[groups.first])
    first = groups.first[order]
    top = 2 ** exponent[first]
    columns = (
        direction.take(first).to_list(),
        host_memory.take(first).to_list(),
        np.where(exponent[first] == 0, 0, top // 2).tolist(),
        top.tolist(),
        groups.count[order].tolist(),
        round_to_int(groups.sum(size)[order]).tolist(),
        groups.sum(events.duration_ns)[order].tolist(),
    )
    names = (
        "direction",
        "host_memory",
        "from_bytes",
        "to_bytes",
        "count",
        "total_bytes",
        "time_ns",
    )
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _copy_notes(copies: Copies) -> list[str]:
    if not len(copies):
        return ["The trace has no copies and no memsets."]
    unknown = int(np.isnan(copies.bytes).sum())
    notes = []
    if unknown:
        notes.append(
            f"{unknown} of {len(copies)} copies and memsets don't say how many bytes they move: "
            "bandwidth rests on the others."
        )
    notes += _rate_notes(copies)
    if "Host" in copies.host_memory.take(slice(None)).to_list():
        notes.append("ROCm does not say whether host memory is pinned: it reads Host.")
    return notes


_RATES_DIFFER = 0.1
"""Shares of a rate from which two figures for it are told to disagree."""
_WHOLE_US = 1000


def _rate_notes(copies: Copies) -> list[str]:
    """Where the profiler's own figure is not bytes over time, and why as far as that is known."""
    recorded, achieved = copies.recorded_rates, copies.bandwidth()
    with np.errstate(invalid="ignore", divide="ignore"):
        differs = np.abs(recorded - achieved) > _RATES_DIFFER * achieved
        lasts_ns = copies.bytes / recorded
    whole = (copies.events.duration_ns % _WHOLE_US == 0) & (
        np.abs(lasts_ns - copies.events.duration_ns) <= _WHOLE_US
    )
    compared = int((~np.isnan(recorded) & ~np.isnan(achieved)).sum())
    rounded_off, others = int((differs & whole).sum()), int((differs & ~whole).sum())
    notes = []
    if rounded_off:
        notes.append(
            f"{rounded_off} of {compared} copies: recorded_gb_per_s is not bytes over time, since "
            "durations stand in whole microseconds here; for short copies it is the better figure."
        )
    if others:
        notes.append(
            f"{others} of {compared} copies: recorded_gb_per_s contradicts bytes over time by more "
            f"than {format_share(_RATES_DIFFER)}, which no rounding explains."
        )
    return notes


def _by_copy(part: RankTrace) -> View:
    copies = Copies(part)
    events = copies.events
    missing = np.isnan(copies.bytes)
    columns: dict[str, Column] = {
        "row": events.rows,
        "name": events.names,
        "direction": copies.direction,
        "host_memory": copies.host_memory,
        "size_bytes": np.ma.array(
            np.where(missing, 0, copies.bytes).astype(np.int64), mask=missing
        ),
        "start_ns": events.start_ns,
        "since_first_ns": events.start_ns - events.first_ns,
        "duration_ns": events.duration_ns,
        "exposed_ns": events.exclusive_ns,
        "bandwidth_gb_per_s": copies.bandwidth(),
        "recorded_gb_per_s": copies.recorded_rates,
        "call": events.names_of(events.launch),
        "call_row": row_numbers(events.launch),
        "call_ns": np.ma.array(events.call_ns, mask=~events.is_linked),
        "delay_ns": events.delay_ns,
        "op": events.op,
        "step": steps_of(part, events.rows),
        **device_and_stream(part, events.stream),
        "from_device": _integers(events.number_arg("fromDevice")),
        "to_device": _integers(events.number_arg("toDevice")),
    }
    shown = (
        "row",
        "direction",
        "host_memory",
        "size_bytes",
        "since_first_ns",
        "duration_ns",
        "exposed_ns",
    )
    return columns, (*shown, "bandwidth_gb_per_s", "call", "op", "step"), {}, _copy_notes(copies)


def _integers(values: Array) -> Masked:
    missing = np.isnan(values)
    return np.ma.array(np.where(missing, 0, values).astype(np.int64), mask=missing)


# ------------------------------------------------------------------------- bandwidth over time


def _by_bandwidth(part: RankTrace) -> View:
    """Bins of equal length from the first to the last GPU event."""
    copies = Copies(part)
    groups = copies.groups()
    edges = _bin_edges(part)
    pieces = [_binned(copies, groups.rows(group), edges) for group in range(len(groups))]
    bins = len(edges) - 1
    first = np.repeat(groups.first, bins)
    moved, copying_ns, counts = (
        np.concatenate([piece[i] for piece in pieces]) if pieces else np.zeros(0) for i in range(3)
    )
    length_ns = np.tile(np.diff(edges), len(groups))
    columns: dict[str, Column] = {
        "direction": copies.direction.take(first),
        "host_memory": copies.host_memory.take(first),
        "start_ns": np.tile(edges[:-1], len(groups)),
        "end_ns": np.tile(edges[1:], len(groups)),
        "since_first_ns": np.tile(edges[:-1] - edges[0], len(groups)),
        "copies": counts.astype(np.int64),
        "moved_bytes": round_to_int(moved),
        "copying_ns": round_to_int(copying_ns),
        "bandwidth_gb_per_s": _ratio(moved, length_ns),
        "bandwidth_while_copying_gb_per_s": _ratio(moved, copying_ns),
    }
    shown = ("direction", "host_memory", "since_first_ns", "copies", "moved_bytes", "copying_ns")
    shown_rates = ("bandwidth_gb_per_s", "bandwidth_while_copying_gb_per_s")
    facts = {"bin_ns": int(length_ns[0]) if len(length_ns) else 0}
    return columns, (*shown, *shown_rates), facts, _copy_notes(copies)


def _bin_edges(part: RankTrace) -> Array:
    """int64 `[bins + 1]`, from the first start to the last end of GPU events; those without length
    are given a nanosecond."""
    rows = part.tree.gpu_rows
    if not len(rows):
        return np.zeros(1, dtype=np.int64)
    begin = int(part.table.ts_ns[rows].min())
    end = int((part.table.ts_ns[rows] + np.maximum(1, part.table.dur_ns[rows])).max())
    return begin + np.arange(_BINS + 1) * max(1, -(-(end - begin) // _BINS))


def _binned(copies: Copies, members: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Bytes, time and number of copies in each bin; a copy moves its bytes evenly over its time.

    Times of copies that overlap add up. O(n log n).
    """
    start_ns = copies.events.start_ns[members]
    lasts_ns = np.maximum(1, copies.events.duration_ns[members])
    size = np.where(np.isnan(copies.bytes[members]), 0.0, copies.bytes[members])
    moved = np.diff(_progress(start_ns, lasts_ns, size, edges))
    has_length = copies.events.duration_ns[members] > 0
    copying = np.diff(_progress(start_ns, lasts_ns, np.where(has_length, lasts_ns, 0), edges))
    counts, _ = np.histogram(start_ns, bins=edges)
    return moved, copying, counts


def _progress(start_ns: Array, lasts_ns: Array, amount: Array, times: Array) -> Array:
    """How much of all amounts has passed at each time: float64, growing."""
    begin = start_ns.min()
    changes = np.concatenate([start_ns, start_ns + lasts_ns]) - begin
    slopes = np.concatenate([amount / lasts_ns, -amount / lasts_ns])
    order = np.argsort(changes, kind="stable")
    at = changes[order].astype(np.float64)
    rate = np.cumsum(slopes[order])
    passed = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(at))])
    grown: Array = np.interp((times - begin).astype(np.float64), at, np.maximum.accumulate(passed))
    return grown


def _by_counter(part: RankTrace) -> View:
    """The rate at which copies run, by direction and device: each moves its bytes evenly."""
    copies = Copies(part)
    events = copies.events
    runs = np.flatnonzero(events.duration_ns > 0)
    rates = np.nan_to_num(copies.bandwidth()[runs])
    time_ns = np.concatenate([events.start_ns[runs], (events.start_ns + events.duration_ns)[runs]])
    copy = np.concatenate([runs, runs])
    places = device_and_stream(part, events.stream[copy])
    device: Array = np.ma.filled(np.ma.asarray(places["device"]), -1)
    direction = copies.direction.codes[copy]
    order = np.lexsort((time_ns, device, direction))
    begun = np.repeat(np.asarray([1, -1]), len(runs))[order]
    change = np.concatenate([rates, -rates])[order]
    groups = Groups(direction[order], device[order])
    running, rate = np.zeros(len(order), dtype=np.int64), np.zeros(len(order))
    for group in range(len(groups)):
        members = groups.rows(group)
        running[members] = np.cumsum(begun[members])
        rate[members] = np.cumsum(change[members])
    # Of the changes at one time the last one holds; what sums leave where nothing runs is no rate.
    keys = np.stack([groups.index, time_ns[order]])
    last = np.append((np.diff(keys, axis=1) != 0).any(axis=0), True)[: len(order)]
    kept = order[last]
    columns: dict[str, Column] = {
        "direction": copies.direction.take(copy[kept]),
        "device": device_and_stream(part, events.stream[copy[kept]])["device"],
        "time_ns": time_ns[kept],
        "since_first_ns": time_ns[kept] - events.first_ns,
        "copies": running[last],
        "bandwidth_gb_per_s": np.where(running[last] > 0, np.maximum(rate[last], 0.0), 0.0),
    }
    return columns, tuple(columns), {}, _copy_notes(copies)


# ----------------------------------------------------------------------------- allocator calls


def _by_allocator(part: RankTrace) -> View:
    table = part.table
    rows, kinds = _allocator_calls(part)
    duration_ns = table.dur_ns[rows]
    step = steps_of(part, rows)
    groups = Groups(table.name[rows], step.codes)
    first = groups.first
    op = GpuEvents.of(part).names_of(part.tree.op[rows])
    sizes = _call_bytes(part, rows)
    known = ~np.isnan(sizes)
    columns: dict[str, Column] = {
        "call": TextCodes(table.name[rows].astype(np.int32), table.strings).take(first),
        "kind": kinds.take(first),
        "step": step.take(first),
        "count": groups.count,
        "sum_ns": groups.sum(duration_ns),
        "mean_ns": groups.mean(duration_ns),
        "max_ns": groups.maximum(duration_ns),
        "total_bytes": _whole(groups.sum(np.where(known, sizes, 0.0)), groups, known),
        "thread": threads_of(part, rows).take(first),
        "op": TextCodes(most_frequent(groups, op.codes)[0], table.strings),
        "first_row": rows[first],
    }
    shown = ("call", "kind", "step", "count", "sum_ns", "mean_ns", "max_ns", "op")
    facts = {"calls": len(rows), "calls_ns": total(duration_ns), **_allocator_totals(part)}
    return columns, shown, facts, _allocator_notes(part, facts, step)


_ALLOCATOR_KINDS = ("allocate", "free", "host")


def _allocator_calls(part: RankTrace) -> tuple[Array, TextCodes]:
    """Rows of the API calls that allocate or free, by start, and their kinds."""
    rows = np.flatnonzero(np.isin(part.tree.api, ALLOCATOR_CALLS) & part.table.complete)
    api = part.tree.api[rows]
    kinds = np.where(np.isin(api, MEMORY_RETURNS), 1, 0)
    return rows, TextCodes(np.where(np.isin(api, HOST_MEMORY_CALLS), 2, kinds), _ALLOCATOR_KINDS)


def _call_bytes(part: RankTrace, rows: Array) -> Array:
    """float64: the size that HIP's calls carry; NaN elsewhere."""
    sizes = np.full(len(rows), np.nan)
    for key in ("size", "bytes", "sizeBytes"):
        values, present = part.table.int_column(key, rows)
        use = np.isnan(sizes) & present
        sizes[use] = values[use]
    return _sensible(sizes)


def _allocator_totals(part: RankTrace) -> dict[str, Any]:
    events = MemoryEvents(part)
    size = events.bytes[events.known]
    return {
        "memory_events": len(events.rows),
        "allocations": int((size > 0).sum()),
        "allocated_bytes": total(size[size > 0]),
        "frees": int((size < 0).sum()),
        "freed_bytes": clamp(-total(size[size < 0])),
        "peaks": events.peaks(),
    }


def _allocator_notes(part: RankTrace, facts: dict[str, Any], step: TextCodes) -> list[str]:
    notes = []
    if not facts["calls"]:
        api = (part.tree.api != _core.ApiClass.NONE).any()
        notes.append(
            "No call allocates or frees memory: the caching allocator served all requests from "
            "what it held."
            if api
            else "The trace has no runtime calls, so none that allocate or free memory."
        )
    inside = int((step.codes >= 0).sum())
    if inside:
        notes.append(
            f"{inside} of {facts['calls']} allocator calls are inside of steps, where a caching "
            "allocator should need none; each may wait for the GPU."
        )
    if not facts["memory_events"]:
        notes.append(_HOW_TO_RECORD)
    return notes


# ------------------------------------------------------------------------------ [memory] events

_HOW_TO_RECORD = (
    "The trace has no [memory] events of the caching allocator: record them with "
    "torch.profiler.profile(profile_memory=True)."
)
# c10::DeviceType
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 14: "meta",
                 15: "hpu", 19: "mtia", 20: "privateuseone"}  # fmt: skip


class MemoryEvents:
    """The `[memory]` instants of a rank by time."""

    def __init__(self, part: RankTrace) -> None:
        table = part.table
        self.part = part
        strings = table.strings
        name = strings.index("[memory]") if "[memory]" in strings else -1
        self.rows: Array = np.flatnonzero(
            (table.name == name) & ((table.flags & _core.HAS_TIME) != 0)
        )
        self.time_ns: Array = table.ts_ns[self.rows]
        self.bytes, self.known = self._integers("Bytes")
        """int64, negative where memory was given back; and where the event says so."""
        types, typed = self._integers("Device Type")
        self.device_type = encode_texts(
            _DEVICE_TYPES.get(value, f"type {value}") if says else None
            for value, says in zip(types.tolist(), typed.tolist(), strict=True)
        )
        self.device = self._masked("Device Id")
        self.allocated = self._masked("Total Allocated")
        self.reserved = self._masked("Total Reserved")
        self.net: Array = self._net()
        """int64: running sum of `bytes` on the event's device, 0 before its first event."""

    def _integers(self, key: str) -> tuple[Array, Array]:
        return self.part.table.int_column(key, self.rows)

    def _masked(self, key: str) -> Masked:
        values, present = self._integers(key)
        return np.ma.array(values, mask=~present)

    def by_device(self) -> Groups:
        return Groups(self.device_type.codes, np.ma.filled(self.device, -1))

    def _net(self) -> Array:
        net = np.where(self.known, self.bytes, 0)
        groups = self.by_device()
        for group in range(len(groups)):
            members = groups.rows(group)
            net[members] = cumulative(net[members])
        return net

    def peaks(self) -> list[dict[str, Any]]:
        """Per device: the most that was allocated and reserved, and when.

        Traces before 2022 lack totals: there only the growth since the first event is known.
        """
        groups = self.by_device()
        return [self._peak(groups.rows(group)) for group in range(len(groups))]

    def _peak(self, members: Array) -> dict[str, Any]:
        absolute = not np.ma.getmaskarray(self.allocated)[members].any()
        held = np.ma.getdata(self.allocated)[members] if absolute else self.net[members]
        reserved = self.reserved[members]
        top = members[np.argmax(held)]
        return {
            "device_type": self.device_type.take(members[:1]).to_list()[0],
            "device": self.device[top : top + 1].tolist()[0],
            "events": len(members),
            "peak_allocated_bytes": int(held.max()) if absolute else None,
            "peak_growth_bytes": int(self.net[members].max()),
            "peak_time_ns": int(self.time_ns[top]),
            "peak_row": int(self.rows[top]),
            "peak_reserved_bytes": int(reserved.max()) if reserved.count() else None,
        }


def _by_timeline(part: RankTrace) -> View:
    events = MemoryEvents(part)
    op_rows = enclosing_ops(part, events.rows)
    columns: dict[str, Column] = {
        "row": events.rows,
        "time_ns": events.time_ns,
        "since_first_ns": events.time_ns - (events.time_ns[0] if len(events.rows) else 0),
        "device_type": events.device_type,
        "device": events.device,
        "address": events._masked("Addr"),
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
    facts = {"peaks": events.peaks()}
    notes = _timeline_notes(events, facts["peaks"])
    return columns, (*shown, "reserved_bytes", "op", "step"), facts, notes


def _timeline_notes(events: MemoryEvents, peaks: list[dict[str, Any]]) -> list[str]:
    if not len(events.rows):
        return [_HOW_TO_RECORD]
    return [_peak_sentence(peak, int(events.time_ns.min())) for peak in peaks]


def _peak_sentence(peak: dict[str, Any], begin_ns: int) -> str:
    device = "" if peak["device"] is None or peak["device"] < 0 else f" {peak['device']}"
    where = f"{peak['device_type'] or 'a device'}{device}"
    when = f"{format_ns(peak['peak_time_ns'] - begin_ns)} after the first event"
    if peak["peak_allocated_bytes"] is None:
        return (
            f"Memory on {where} grows by at most {format_bytes(peak['peak_growth_bytes'])}, "
            f"{when}; the trace does not say how much was allocated before."
        )
    reserved = peak["peak_reserved_bytes"] or 0
    held = f"; reserved at most {format_bytes(reserved)}" if reserved > 0 else ""
    return f"Most memory on {where}: {format_bytes(peak['peak_allocated_bytes'])}, {when}{held}."


def enclosing_ops(part: RankTrace, rows: Array) -> Array:
    """uint32: the innermost operator on the same thread around each row's start; NO_ROW if none.

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
    "direction": _by_direction,
    "copy": _by_copy,
    "bandwidth": _by_bandwidth,
    "counter": _by_counter,
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
            "direction",
            "time_ns",
            "total_bytes",
            "bandwidth_gb_per_s",
            "host_memory",
            "count",
            "exposed_ns",
        ),
        "copy": ("direction", "size_bytes", "duration_ns", "row", "bandwidth_gb_per_s", "op"),
        "allocator": ("call", "sum_ns", "count", "step"),
        "timeline": ("since_first_ns", "change_bytes", "allocated_bytes", "device_type", "op"),
        "bandwidth": ("direction", "since_first_ns", "bandwidth_gb_per_s", "moved_bytes"),
        "counter": ("direction", "since_first_ns", "bandwidth_gb_per_s", "copies"),
    },
)


CATEGORIES = (
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
)
"""By the numbers of torch.profiler._memory_profiler (`_CATEGORY_TO_INDEX`, torch 2.1 to 2.13)."""

_ACTIONS = 4  # preexisting, create, increment version, destroy: numbered from 1
_GZIP = b"\x1f\x8b"
MAX_TEXT_BYTES = 512 << 20
"""Of a file, decompressed."""
MAX_ENTRIES = 1 << 23
"""Events of a raw file, times of the others; an hour of training writes a million."""
_PIECE_BYTES = 1 << 20  # text that is made into Python's objects at once, whole rows of it
_SPACE = b" \t\r\n"
_BETWEEN = re.compile(rb"\][ \t\r\n]*,(?=[ \t\r\n]*\[)")
# The first list has ended: rows of sizes follow, or none. In a raw file the next event would.
_SIZES_FOLLOW = re.compile(rb"\][ \t\r\n]*,[ \t\r\n]*\[[ \t\r\n]*[\[\]]")


def read_memory_timeline(path: PathLike) -> ColumnTable:
    """Memory by category over time, from `.raw.json.gz`, `.json.gz` or `.json`.

    Told apart by content. A raw file is a list of [time in ns, action, bytes, category], where
    bytes are negative when memory goes away or changes category; the others are [times in us,
    [[0, bytes by category ...] ...]]. Memory from before the recording has the time -1 in a raw
    file: it is there from the first time on.

    Args:
        path: The file.

    Returns:
        One row per time: `time_ns`, `<category>_bytes` for the eight CATEGORIES, `total_bytes`,
        all int64. Facts: `format` ("raw" or "sizes"), `peak_bytes`, `peak_time_ns` and
        `peak_by_category_bytes`.

    Raises:
        MissingFileError: There is no such file.
        ParseError: It is none of these; the message says what was expected and what came.
    """
    text = _read_text(Path(path))
    is_raw = not _holds_sizes(text)
    times_ns, sizes = _from_raw(path, text) if is_raw else _from_sizes(path, text)
    return _table(times_ns, sizes, "raw" if is_raw else "sizes")


def _holds_sizes(text: bytes) -> bool:
    """[times, sizes]: two lists, the second of lists or empty."""
    first_end = text.find(b"]")
    return first_end >= 0 and _SIZES_FOLLOW.match(text, first_end) is not None


def _read_text(path: Path) -> bytes:
    """The JSON of a list, without what stands around it."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            text = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except (EOFError, zlib.error) as error:
        raise ParseError(f"{path}: the gzip data is damaged: {error}") from None
    except OSError as error:  # BadGzipFile too
        raise ParseError(f"{path}: {error.strerror or error}") from None
    if len(text) > MAX_TEXT_BYTES:
        raise ParseError(f"{path}: holds more than {MAX_TEXT_BYTES >> 20} MiB")
    text = text.removeprefix(b"\xef\xbb\xbf").strip(_SPACE)
    if not (text.startswith(b"[") and text.endswith(b"]") and len(text) > 1):
        raise _unexpected(path, f"a JSON list, found {_shown(text)}")
    return text


def _shown(text: bytes) -> str:
    start = text[:61].decode("utf-8", errors="replace")
    return start if len(text) <= 60 else start[:57] + "..."


def _list_of(path: PathLike, text: bytes, begin: int, end: int) -> list[Any]:
    """Values that stand side by side in the text."""
    try:
        values = json.loads(b"[" + text[begin:end] + b"]")
    except json.JSONDecodeError as error:
        raise _unexpected(path, f"JSON: {error.msg} at byte {begin + error.pos - 1}") from None
    except (ValueError, RecursionError) as error:
        raise _unexpected(path, f"JSON: {error} behind byte {begin}") from None
    assert isinstance(values, list)
    return values


def _pieces(text: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of a list of lists, cut at commas between inner lists."""
    while begin < end:
        cut = _BETWEEN.search(text, begin + _PIECE_BYTES, end)
        yield begin, cut.start() + 1 if cut else end
        if cut is None:
            return
        begin = cut.end()


def _rows(path: PathLike, text: bytes, begin: int, end: int, width: int, what: str) -> Array:
    """int64 `[n, width]`, of a list of lists."""
    found, count = [np.zeros((0, width), dtype=np.int64)], 0
    for piece in _pieces(text, begin, end):
        found.append(_integers(path, _list_of(path, text, *piece), width, what))
        count += len(found[-1])
        _check_entries(path, count)
    return np.concatenate(found)


def _check_entries(path: PathLike, count: int) -> None:
    if count > MAX_ENTRIES:
        raise ParseError(f"{path}: has more than {MAX_ENTRIES:,} entries")


def _unexpected(path: PathLike, found: str) -> ParseError:
    return ParseError(f"{path}: expected a file of export_memory_timeline, {found}")


def _describe(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _integers(path: PathLike, values: list[Any], width: int | None, what: str) -> Array:
    """int64 `[n]`, or `[n, width]`; fractions are refused unless whole numbers remain."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise _unexpected(path, f"{what} of equal length") from None
    if not values:
        array = np.zeros((0, width) if width else 0, dtype=np.int64)
    if array.ndim != (2 if width else 1) or (width and array.shape[1] != width):
        raise _unexpected(path, f"{what}, found {_describe(values[:1])}")
    if array.dtype.kind == "f" and np.isfinite(array).all() and (np.abs(array) < 2**62).all():
        array = np.rint(array)
    elif array.dtype.kind not in "iu" or (array.dtype.kind == "u" and (array >= 2**63).any()):
        raise _unexpected(path, f"{what} of numbers, found {_describe(values[:1])}")
    return array.astype(np.int64)


def _from_raw(path: PathLike, text: bytes) -> tuple[Array, Array]:
    what = "lists [time, action, bytes, category]"
    times_ns, action, size, category = _rows(path, text, 1, len(text) - 1, 4, what).T
    if ((action < 1) | (action > _ACTIONS)).any():
        raise _unexpected(path, f"actions from 1 to {_ACTIONS}")
    if ((category < 0) | (category >= len(CATEGORIES))).any():
        raise _unexpected(path, f"categories from 0 to {len(CATEGORIES) - 1}")
    _check_sums(path, size[None, :])
    times_ns = _fill_unknown(times_ns)
    order = np.argsort(times_ns, kind="stable")
    times_ns, size, category = times_ns[order], size[order], category[order]
    last = _is_last(times_ns)
    sizes = np.empty((int(last.sum()), len(CATEGORIES)), dtype=np.int64)
    for column in range(len(CATEGORIES)):
        sizes[:, column] = np.cumsum(np.where(category == column, size, 0))[last]
    return times_ns[last], sizes


def _from_sizes(path: PathLike, text: bytes) -> tuple[Array, Array]:
    # The times alone, then the rows between the brackets of the second list.
    first = text.index(b"[", 1)
    first_end = text.index(b"]")
    second = text.index(b"[", first_end) + 1
    second_end = text.rindex(b"]", 0, len(text) - 1)
    if text[1:first].strip(_SPACE) or text[second_end + 1 : -1].strip(_SPACE):
        raise _unexpected(path, f"[times, sizes], found {_shown(text)}")
    _check_entries(path, text.count(b",", first, first_end))
    times_us = _integers(path, _list_of(path, text, first + 1, first_end), None, "times")
    width = len(CATEGORIES) + 1
    sizes = _rows(path, text, second, second_end, width, "9 sizes for each time")
    if len(times_us) != len(sizes):
        raise _unexpected(path, f"as many sizes as times ({len(sizes)} and {len(times_us)})")
    if (np.abs(times_us) >= 2**53).any():
        raise _unexpected(path, "times in microseconds")
    _check_sums(path, sizes[:, 1:])
    times_ns = _fill_unknown(times_us) * 1000
    order = np.argsort(times_ns, kind="stable")
    last = _is_last(times_ns[order])
    return times_ns[order][last], sizes[order[last], 1:]


def _check_sums(path: PathLike, sizes: Array) -> None:
    """The sum of each row has to fit in 64 bits, whatever the order of its sizes."""
    rough = np.abs(sizes.astype(np.float64)).sum(axis=1)
    for row in sizes[rough >= 2**62].tolist():
        if sum(map(abs, row)) >= 2**63:
            raise _unexpected(path, f"sizes whose sum fits in 64 bits, found {sum(row)}")


def _fill_unknown(times: Array) -> Array:
    """Negative times become the first known one."""
    known = times[times >= 0]
    return np.where(times < 0, known.min() if len(known) else 0, times)


def _is_last(times: Array) -> Array:
    """bool: what holds after all changes of one instant."""
    return np.append(np.diff(times) != 0, True) if len(times) else np.zeros(0, dtype=bool)


def _table(times_ns: Array, sizes: Array, form: str) -> ColumnTable:
    total = sizes.sum(axis=1)
    names = [f"{category}_bytes" for category in CATEGORIES]
    columns = {"time_ns": times_ns, **dict(zip(names, sizes.T, strict=True)), "total_bytes": total}
    if not len(total):
        return ColumnTable(columns, facts=_facts(form, 0, None, sizes[:0].sum(axis=0)), notes=[
            "The file holds no memory events for its device."
        ])  # fmt: skip
    peak = int(np.argmax(total))
    facts = _facts(form, int(total[peak]), int(times_ns[peak]), sizes[peak])
    held = sorted(zip(CATEGORIES, sizes[peak].tolist(), strict=True), key=lambda item: -item[1])
    parts = ", ".join(f"{name.replace('_', ' ')} {format_bytes(n)}" for name, n in held if n > 0)
    note = f"Most memory: {format_bytes(total[peak])} ({parts})."
    return ColumnTable(columns, facts=facts, notes=[note])


def _facts(form: str, peak: int, time_ns: int | None, sizes: Array) -> dict[str, Any]:
    return {
        "format": form,
        "peak_bytes": peak,
        "peak_time_ns": time_ns,
        "peak_by_category_bytes": dict(zip(CATEGORIES, sizes.tolist(), strict=True)),
    }
