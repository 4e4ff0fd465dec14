"""Copies and memsets of a rank: their bandwidth by direction, one by one, and over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.formatting import format_share
from torchtraceap.core.sums import round_to_int, total
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    Masked,
    device_and_stream,
    most_frequent,
    row_numbers,
    whole_numbers,
)
from torchtraceap.tables.grouping import Groups, order_by, steps_of
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "Copies",
    "MemoryView",
    "bandwidth_over_time",
    "copies_by_direction",
    "copies_one_by_one",
    "copy_rate_changes",
    "sensible_bytes",
    "sums_of_bytes",
]

MemoryView = tuple[dict[str, Column], tuple[str, ...], dict[str, Any], list[str]]
"""The columns of a view of `memory`, those shown first, facts and notes."""

_BINS = 100
_MOST_BYTES = 2.0**50
_RATES_DIFFER = 0.1
"""The share of a rate from which two figures for it are told to disagree."""
_WHOLE_US = 1000
# By `CopyDirection`; of what is copied or set only memsets have no direction.
_DIRECTIONS = ("memset", "HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "unknown")
# By `HostMemory`, NONE left out; ROCm says no more than Host.
_HOST_MEMORIES = ("Pageable", "Pinned", "Managed", "Host")


class Copies:
    """Copies and memsets of a rank.

    Attributes:
        events: The GPU events.
        direction: The direction of each, "memset" for memsets.
        host_memory: The kind of host memory; absent where the trace does not say.
        bytes: float64 `[n]`, NaN where the trace does not say.
        recorded_rates: float64 `[n]`, GB/s as the profiler wrote it; NaN where it did not.
        bandwidth: float64 `[n]`, GB/s: bytes over duration; NaN without bytes or length.
    """

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
        # The event says it, else its launch call, which has `bytes` or `size` on ROCm.
        sizes = self.events.number_arg("bytes")
        alone = self.events.is_linked & (self.events.events_of_launch == 1)
        for key in ("bytes", "size"):
            unsaid = np.flatnonzero(np.isnan(sizes) & alone)
            values, present = part.table.int_column(key, self.events.launch[unsaid])
            sizes[unsaid[present]] = values[present]
        self.bytes: Array = sensible_bytes(sizes)
        self.recorded_rates: Array = self.events.number_arg("memory bandwidth (GB/s)")
        self.bandwidth: Array = _ratio(self.bytes, self.events.duration_ns)

    def __len__(self) -> int:
        return len(self.events)

    def groups(self) -> Groups:
        """Return the copies grouped by direction and host memory."""
        return Groups(self.direction.codes, self.host_memory.codes)

    def notes(self) -> list[str]:
        """Return what the trace lacks, and where its own figures disagree."""
        if not len(self):
            return ["The trace has no copies and no memsets."]
        unknown = int(np.isnan(self.bytes).sum())
        notes = []
        if unknown:
            notes.append(
                f"{unknown} of {len(self)} copies and memsets don't say how many bytes they move: "
                "bandwidth rests on the others."
            )
        # Where the profiler's own figure is not bytes over time, and why as far as that is known.
        recorded, achieved = self.recorded_rates, self.bandwidth
        with np.errstate(invalid="ignore", divide="ignore"):
            differs = np.abs(recorded - achieved) > _RATES_DIFFER * achieved
            lasts_ns = self.bytes / recorded
        whole = (self.events.duration_ns % _WHOLE_US == 0) & (
            np.abs(lasts_ns - self.events.duration_ns) <= _WHOLE_US
        )
        compared = int((~np.isnan(recorded) & ~np.isnan(achieved)).sum())
        rounded_off, others = int((differs & whole).sum()), int((differs & ~whole).sum())
        if rounded_off:
            notes.append(
                f"{rounded_off} of {compared} copies: recorded_gb_per_s is not bytes over time, "
                "since durations stand in whole microseconds here; for short copies it is the "
                "better figure."
            )
        if others:
            notes.append(
                f"{others} of {compared} copies: recorded_gb_per_s contradicts bytes over time by "
                f"more than {format_share(_RATES_DIFFER)}, which no rounding explains."
            )
        if "Host" in self.host_memory.take(slice(None)).to_list():
            notes.append("ROCm does not say whether host memory is pinned: it reads Host.")
        return notes


def sensible_bytes(sizes: Array) -> Array:
    """Return sizes as they are; NaN where a trace says less than none, or more than any memory
    holds."""
    return np.where((sizes >= 0) & (sizes < _MOST_BYTES), sizes, np.nan)


def sums_of_bytes(groups: Groups, sizes: Array) -> Masked:
    """Return the bytes of each group, int64, masked where no event of a group says its size.

    Args:
        groups: The groups.
        sizes: float64 `[n]`, NaN where not known.
    """
    known = ~np.isnan(sizes)
    sums = groups.sum(np.where(known, sizes, 0.0))
    return np.ma.array(round_to_int(sums), mask=groups.sum(known.astype(np.int64)) == 0)


def _ratio(size: Array, duration_ns: Array) -> Array:
    """Return GB/s, which are bytes per nanosecond."""
    lasts = duration_ns > 0
    rates: Array = np.where(lasts, size / np.where(lasts, duration_ns, 1), np.nan)
    return rates


def copies_by_direction(part: RankTrace) -> MemoryView:
    """Return copies by direction and kind of host memory, most time first."""
    copies = Copies(part)
    events, groups = copies.events, copies.groups()
    order = order_by(groups.sum(events.duration_ns), descending=[True])
    first = groups.first[order]
    known = ~np.isnan(copies.bytes)
    measured = known & (events.duration_ns > 0)
    measured_bytes = groups.sum(np.where(measured, copies.bytes, 0.0))
    # As the profiler wrote it, weighted with time: comparable with the achieved bandwidth.
    has_rate = ~np.isnan(copies.recorded_rates) & (events.duration_ns > 0)
    weight = np.where(has_rate, events.duration_ns, 0).astype(np.float64)
    recorded = np.where(has_rate, copies.recorded_rates, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        recorded_rate = groups.sum(recorded * weight) / groups.sum(weight)
        mean_bytes = groups.sum(np.where(known, copies.bytes, 0.0)) / groups.sum(
            known.astype(float)
        )
    columns: dict[str, Column] = {
        "direction": copies.direction.take(first),
        "host_memory": copies.host_memory.take(first),
        "count": groups.count[order],
        "total_bytes": sums_of_bytes(groups, copies.bytes)[order],
        "time_ns": groups.sum(events.duration_ns)[order],
        "exposed_ns": groups.sum(events.exclusive_ns)[order],
        "bandwidth_gb_per_s": _ratio(
            np.where(measured_bytes > 0, measured_bytes, np.nan),
            groups.sum(np.where(measured, events.duration_ns, 0)),
        )[order],
        "fastest_gb_per_s": _largest(groups, copies.bandwidth)[order],
        "recorded_gb_per_s": recorded_rate[order],
        "mean_bytes": mean_bytes[order],
        "largest_bytes": _largest(groups, copies.bytes)[order],
        **groups.statistics(events.duration_ns, "median", "max", order=order),
        "op": TextCodes(most_frequent(groups, events.op.codes)[0][order], events.texts),
    }
    shown = ("direction", "host_memory", "count", "total_bytes", "time_ns", "exposed_ns")
    rates_shown = ("bandwidth_gb_per_s", "recorded_gb_per_s", "mean_bytes", "op")
    facts = {"busy_ns": total(part.costs.exclusive_ns), "sizes": _sizes(copies)}
    return columns, (*shown, *rates_shown), facts, copies.notes()


def _largest(groups: Groups, values: Array) -> Array:
    largest = groups.maximum(np.where(np.isnan(values), -1.0, values))
    known: Array = np.where(largest < 0, np.nan, largest)
    return known


def _sizes(copies: Copies) -> list[dict[str, Any]]:
    """Return copies by direction, host memory and size; sizes fall between powers of two."""
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
    columns = {
        "direction": direction.take(first).to_list(),
        "host_memory": host_memory.take(first).to_list(),
        "from_bytes": np.where(exponent[first] == 0, 0, top // 2).tolist(),
        "to_bytes": top.tolist(),
        "count": groups.count[order].tolist(),
        "total_bytes": round_to_int(groups.sum(size)[order]).tolist(),
        "time_ns": groups.sum(events.duration_ns)[order].tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def copies_one_by_one(part: RankTrace) -> MemoryView:
    """Return every copy and memset by start."""
    copies = Copies(part)
    events = copies.events
    columns: dict[str, Column] = {
        "row": events.rows,
        "name": events.names,
        "direction": copies.direction,
        "host_memory": copies.host_memory,
        "size_bytes": whole_numbers(copies.bytes),
        "start_ns": events.start_ns,
        "since_first_ns": events.start_ns - events.first_ns,
        "duration_ns": events.duration_ns,
        "exposed_ns": events.exclusive_ns,
        "bandwidth_gb_per_s": copies.bandwidth,
        "recorded_gb_per_s": copies.recorded_rates,
        "call": events.names_of(events.launch),
        "call_row": row_numbers(events.launch),
        "call_ns": np.ma.array(events.call_ns, mask=~events.is_linked),
        "delay_ns": events.delay_ns,
        "op": events.op,
        "step": steps_of(part, events.rows),
        **device_and_stream(part, events.stream),
        "from_device": whole_numbers(events.number_arg("fromDevice")),
        "to_device": whole_numbers(events.number_arg("toDevice")),
    }
    shown = ("row", "direction", "host_memory", "size_bytes", "since_first_ns", "duration_ns")
    rest = ("exposed_ns", "bandwidth_gb_per_s", "call", "op", "step")
    return columns, (*shown, *rest), {}, copies.notes()


# ------------------------------------------------------------------------- bandwidth over time


def bandwidth_over_time(part: RankTrace) -> MemoryView:
    """Return the bandwidth in bins of equal length from the first to the last GPU event."""
    copies = Copies(part)
    groups = copies.groups()
    rows = part.tree.gpu_rows
    edges = np.zeros(1, dtype=np.int64)
    if len(rows):
        begin = int(part.table.ts_ns[rows].min())
        # Events without length are given a nanosecond.
        end = int((part.table.ts_ns[rows] + np.maximum(1, part.table.dur_ns[rows])).max())
        edges = begin + np.arange(_BINS + 1) * max(1, -(-(end - begin) // _BINS))
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
    return columns, (*shown, *shown_rates), facts, copies.notes()


def _binned(copies: Copies, members: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Return bytes, time and number of copies in each bin; a copy moves its bytes evenly.

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
    """Return how much of all amounts has passed at each time: float64, growing."""
    begin = start_ns.min()
    changes = np.concatenate([start_ns, start_ns + lasts_ns]) - begin
    slopes = np.concatenate([amount / lasts_ns, -amount / lasts_ns])
    order = np.argsort(changes, kind="stable")
    at = changes[order].astype(np.float64)
    rate = np.cumsum(slopes[order])
    passed = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(at))])
    grown: Array = np.interp((times - begin).astype(np.float64), at, np.maximum.accumulate(passed))
    return grown


def copy_rate_changes(part: RankTrace) -> MemoryView:
    """Return every change of the rate at which copies run, by direction and device."""
    copies = Copies(part)
    events = copies.events
    runs = np.flatnonzero(events.duration_ns > 0)
    rates = np.nan_to_num(copies.bandwidth[runs])
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
    return columns, tuple(columns), {}, copies.notes()
