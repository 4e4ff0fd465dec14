"""Copies, allocator calls and the `[memory]` events of the caching allocator."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import ALLOCATOR_CALLS, HOST_MEMORY_CALLS, MEMORY_RETURNS
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_bytes, format_ns, format_share
from torchtraceap.core.sums import clamp, cumulative, round_to_int, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    most_frequent,
    row_numbers,
)
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key
from torchtraceap.tables.labels import check_choice, steps_of, threads_of
from torchtraceap.tables.spec import PageView, TableSpec
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_memory"]

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
