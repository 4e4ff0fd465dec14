"""Launch calls of CUDA and HIP: what they cost the host, how long work waits, queue lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    gpu_notes,
    masked_integers,
    most_frequent,
)
from torchtraceap.tables.grouping import Groups, order_by, steps_of, threads_of
from torchtraceap.tables.host import idle_by_stream
from torchtraceap.trace.ranks import RankTrace

__all__ = ["FULL_QUEUE", "TABLE", "build_launches"]


FULL_QUEUE = _core.QUEUE_DEPTH * 49 // 50
"""Launches in a stream's queue from which it counts as full: within 2 % of its depth, since the
next call returns some time after a place is free."""

# Other runtimes hold other numbers: a queue is full as well where it stays at its longest.
_PLATEAU_HEIGHT = 32
_PLATEAU_LAUNCHES = 64
_PLATEAU_SHARE = 0.1
_PLATEAU_BELOW_MAX = 2


@dataclass(frozen=True)
class Launches:
    """The linked GPU events of a rank and the queues of its streams."""

    events: GpuEvents
    queue: _core.LaunchQueue

    @property
    def found(self) -> Array:
        """int64: the number of launches that each event's launch found in its stream's queue."""
        found: Array = self.queue.found[self.events.places].astype(np.int64)
        return found

    def where(self, mask: Array) -> Launches:
        return Launches(self.events.where(mask), self.queue)

    @property
    def is_short(self) -> Array:
        """bool: the event is shorter than the call that launched it, which launched no other."""
        events = self.events
        alone: Array = events.events_of_launch == 1
        return alone & (events.duration_ns < events.call_ns)

    @property
    def first_of_call(self) -> Array:
        """bool: the first event of each launch call, so that calls count once."""
        _, first = np.unique(self.events.launch, return_index=True)
        mask = np.zeros(len(self.events), dtype=bool)
        mask[first] = True
        return mask


def build_launches(part: RankTrace, *, by: str = "call") -> ColumnTable:
    """Build the table of `Trace.launches` for one rank.

    Returns:
        Columns as docs/tables.md lists them; `delay_ns` is from the end of a call to the start
        of its event, at least 0, clocks corrected.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    every = GpuEvents.of(part)
    launches = Launches(every.where(every.is_linked), _core.launch_queue(part.table, part.tree))
    build: Callable[[Launches], View] = {
        "call": _by_call,
        "kernel": _by_kernel,
        "op": _by_op,
        "stream": _by_stream,
        "idle": lambda _: idle_by_stream(every),
        "event": _by_event,
        "queue": _by_queue,
    }[by]
    columns, shown = build(launches)
    streams = [_queue_statistics(launches.queue, i) for i in range(len(launches.queue.offsets) - 1)]
    is_first = launches.first_of_call
    facts = {
        "gpu_events": len(every),
        "linked_gpu_events": len(launches.events),
        "calls": int(is_first.sum()),
        "host_ns": total(launches.events.call_ns[is_first]),
        "short": int(launches.is_short.sum()),
        "max_queue_length": max((row["max_length"] for row in streams), default=0),
        "full_queue_ns": sum(row["full_ns"] for row in streams),
        "launch_delay_correction_ns": part.tree.launch_delay_correction_ns,
    }
    notes = _notes(every, launches, facts, with_durations=by not in ("stream", "idle", "queue"))
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


View = tuple[dict[str, Column], tuple[str, ...]]


def _by_call(launches: Launches) -> View:
    """Return calls that launched something, and calls of the same names that did not. Delays are
    those of the first event of a call: what follows in a graph waits for the graph."""
    events = launches.events
    calls = launches.where(launches.first_of_call)
    names = events.names_of(events.launch)
    groups = Groups(names.codes)
    of_calls = Groups(calls.events.names_of(calls.events.launch).codes)  # in the same order
    order = order_by(of_calls.count, descending=[True])
    # API calls by name, with and without GPU events.
    table, api = events.part.table, events.part.tree.api != _core.ApiClass.NONE
    recorded = np.bincount(table.name[api], minlength=len(events.texts))[names.codes[groups.first]]
    columns: dict[str, Column] = {
        "call": names.take(groups.first[order]),
        "calls": of_calls.count[order],
        "calls_without_event": (recorded - of_calls.count)[order],
        "gpu_events": groups.count[order],
        **of_calls.statistics(calls.events.call_ns, *_HOST, prefix="host_", order=order),
        **_delays(calls, of_calls, order),
        **_gpu_times(launches, groups, order),
    }
    shown = ("call", "calls", "gpu_events", "host_sum_ns", "host_median_ns", "host_p95_ns")
    return columns, (*shown, *_SHOWN_WAITING)


def _by_kernel(launches: Launches) -> View:
    events = launches.events
    groups = Groups(events.name)
    order = order_by(groups.count, descending=[True])
    call, _ = most_frequent(groups, events.names_of(events.launch).codes)
    columns: dict[str, Column] = {
        "name": events.names.take(groups.first[order]),
        "canonical": events.canonical.take(groups.first[order]),
        "call": TextCodes(call[order], events.texts),
        "gpu_events": groups.count[order],
        **groups.statistics(events.call_ns, *_HOST, prefix="host_", order=order),
        **_delays(launches, groups, order),
        **_gpu_times(launches, groups, order),
    }
    shown = ("name", "call", "gpu_events", "host_median_ns")
    return columns, (*shown, *_SHOWN_WAITING)


_HOST = ("sum", "mean", "median", "p95", "max")
_SHOWN_WAITING = ("delay_median_ns", "gpu_median_ns", "short", "queue_mean", "queue_max")


def _delays(launches: Launches, groups: Groups, order: Array) -> dict[str, Column]:
    """Return delays, and what the launches found queued."""
    delay_ns, found = np.ma.getdata(launches.events.delay_ns), launches.found
    names = ("mean", "median", "p95", "max")
    return {
        **groups.statistics(delay_ns, *names, prefix="delay_", order=order),
        "queue_mean": groups.mean(found)[order],
        "queue_max": groups.maximum(found)[order],
    }


def _gpu_times(launches: Launches, groups: Groups, order: Array) -> dict[str, Column]:
    """Return durations on the GPU, and the number that are shorter than their launch call."""
    names = ("sum", "mean", "median")
    return {
        **groups.statistics(launches.events.duration_ns, *names, prefix="gpu_", order=order),
        "short": groups.sum(launches.is_short.astype(np.int64))[order],
    }


def _by_stream(launches: Launches) -> View:
    """Return statistics of each queue's length, over time and over its changes."""
    events, queue = launches.events, launches.queue
    groups = Groups(events.stream)
    order = np.argsort(events.stream[groups.first], kind="stable")
    streams = events.stream[groups.first][order]
    statistics = [_queue_statistics(queue, int(stream)) for stream in streams]
    delays = _delays(launches, groups, order)
    columns: dict[str, Column] = {
        **device_and_stream(events.part, streams),
        "gpu_events": groups.count[order],
        **{
            name: np.array([row[name] for row in statistics], dtype=dtype)
            for name, dtype in (
                ("changes", np.int64),
                ("mean_length", np.float64),
                ("mean_length_at_change", np.float64),
                ("max_length", np.int64),
                ("waiting_ns", np.int64),
            )
        },
        "full_length": masked_integers([row["full_length"] for row in statistics]),
        "full_ns": np.array([row["full_ns"] for row in statistics], dtype=np.int64),
        **{name: delays[name] for name in delays if not name.startswith("queue")},
        **_gpu_times(launches, groups, order),
    }
    shown = ("device", "stream", "gpu_events", "mean_length", "max_length", "waiting_ns")
    return columns, (*shown, "full_length", "full_ns", "delay_median_ns", "gpu_median_ns", "short")


def _queue_statistics(queue: _core.LaunchQueue, stream: int) -> dict[str, Any]:
    """Return the columns of a stream's queue, from its first to its last change: means over time
    and over the changes (as HTA has it), and the length from which it is full, None if it never
    was."""
    begin, end = int(queue.offsets[stream]), int(queue.offsets[stream + 1])
    length = queue.length[begin:end].astype(np.int64)
    lasts_ns = np.diff(queue.time_ns[begin:end])
    during = length[:-1]
    span_ns = max(1, total(lasts_ns))
    full_length = _full_length(length)
    full = during >= full_length if full_length else np.zeros(len(during), dtype=bool)
    return {
        "changes": len(length),
        "mean_length": float((during * lasts_ns.astype(np.float64)).sum()) / span_ns,
        "mean_length_at_change": float(length.mean()) if len(length) else 0.0,
        "max_length": int(length.max(initial=0)),
        "waiting_ns": total(lasts_ns[during > 0]),
        "full_length": full_length,
        "full_ns": total(lasts_ns[full]),
    }


def _full_length(length: Array) -> int | None:
    longest = int(length.max(initial=0))
    if longest >= FULL_QUEUE:
        return FULL_QUEUE
    plateau = longest - _PLATEAU_BELOW_MAX
    launches = length[np.diff(length, prepend=0) > 0]
    at_plateau = int((launches >= plateau).sum())
    is_plateau = at_plateau >= max(_PLATEAU_LAUNCHES, _PLATEAU_SHARE * len(launches))
    return plateau if longest >= _PLATEAU_HEIGHT and is_plateau else None


def _by_event(launches: Launches) -> View:
    events = launches.events
    part = events.part
    calls = events.launch.astype(np.int64)
    columns: dict[str, Column] = {
        "call_row": calls,
        "call": events.names_of(events.launch),
        "thread": threads_of(part, calls),
        "step": steps_of(part, calls),
        "op": events.op,
        "row": events.rows,
        "name": events.names,
        **device_and_stream(part, events.stream),
        "correlation": np.ma.masked_equal(part.table.correlation[events.rows], _core.NO_ID),
        "call_start_ns": part.table.ts_ns[calls],
        "since_first_ns": part.table.ts_ns[calls] - events.first_ns,
        "host_ns": events.call_ns,
        "delay_ns": np.ma.getdata(events.delay_ns),
        "start_delay_ns": part.tree.launch_delays_ns()[events.places],
        "gpu_ns": events.duration_ns,
        "queue_found": launches.found,
        "events_of_call": events.events_of_launch,
        "short": launches.is_short,
    }
    shown = ("call_row", "call", "op", "name", "stream", "since_first_ns", "host_ns")
    return columns, (*shown, "delay_ns", "gpu_ns", "queue_found")


def _by_queue(launches: Launches) -> View:
    queue, events = launches.queue, launches.events
    changes: Array = np.diff(queue.offsets.astype(np.int64))
    stream = np.repeat(np.arange(len(changes)), changes)
    columns: dict[str, Column] = {
        **device_and_stream(events.part, stream),
        "time_ns": queue.time_ns,
        "since_first_ns": queue.time_ns - events.first_ns,
        "length": queue.length.astype(np.int64),
        "row": queue.row.astype(np.int64),
        "name": events.names_of(queue.row),
    }
    return columns, ("device", "stream", "since_first_ns", "length", "name")


def _notes(
    every: GpuEvents, launches: Launches, facts: dict[str, Any], *, with_durations: bool
) -> list[str]:
    notes = gpu_notes(every)
    if not len(launches.events):
        return notes
    if facts["short"] and with_durations:
        notes.append(
            f"{facts['short']} of {len(launches.events)} GPU events are shorter than the call that "
            "launched them."
        )
    if facts["full_queue_ns"]:
        notes.append(
            f"Queues were full for {format_ns(facts['full_queue_ns'])}: launch calls then block "
            "until the GPU takes work, so that time on the host is no cost of launching; the GPU "
            "is the limit."
        )
    if facts["launch_delay_correction_ns"]:
        notes.append(
            "Host and GPU clocks disagree: delays and queue lengths are corrected by "
            f"{format_ns(facts['launch_delay_correction_ns'])}."
        )
    return notes


MOST_KERNELS = 8
"""The most names in a sequence; a graph launches thousands."""


def _by_op(launches: Launches) -> View:
    events = launches.events
    events = events.where(events.part.tree.op[events.rows] != _core.NO_ROW)
    table = events.part.table
    # Events by operator, then in the order of their launches; a call of an operator has those from
    # its `begin` on.
    op = events.part.tree.op[events.rows].astype(np.int64)
    call_ns = events.of_launch(table.ts_ns)
    in_order = np.lexsort((events.start_ns, events.launch, call_ns, op))
    begin = np.flatnonzero(np.diff(op[in_order], prepend=-1))
    count = np.diff(np.append(begin, len(in_order)))
    row, first = op[in_order][begin], in_order[begin]
    op_delay_ns = call_ns[first] - table.ts_ns[row]
    start_delay_ns = events.part.tree.launch_delays_ns()[events.places[first]]
    gpu_ns = np.zeros(0, dtype=np.int64)
    if len(first):
        gpu_ns = Groups(op[in_order]).sum(events.duration_ns[in_order])
    sequence = _sequence_codes(events.canonical.codes[in_order], begin, count)
    groups = Groups(table.name[row].astype(np.int64), count, sequence)
    order = order_by(groups.count, groups.sum(gpu_ns), descending=[True, True])
    shown_call = groups.first[order]
    sequences = []
    for at, length in zip(begin[shown_call].tolist(), count[shown_call].tolist(), strict=True):
        listed = in_order[at : at + min(length, MOST_KERNELS)]
        names = [str(name) for name in events.canonical.take(listed).to_list()]
        more = length - len(listed)
        sequences.append(" → ".join(names) + (f" → {more} more" if more else ""))
    columns: dict[str, Column] = {
        "op": TextCodes(table.name[row[shown_call]].astype(np.int32), events.texts),
        "kernels": encode_texts(sequences),
        "calls": groups.count[order],
        "gpu_events": count[shown_call],
    }
    for prefix, values in (("op_delay_", op_delay_ns), ("start_delay_", start_delay_ns)):
        columns |= groups.statistics(values, "mean", "median", "max", prefix=prefix, order=order)
    columns |= groups.statistics(table.dur_ns[row], "sum", prefix="host_", order=order)
    columns |= groups.statistics(gpu_ns, "sum", prefix="gpu_", order=order)
    delays = ("op_delay_mean_ns", "op_delay_max_ns", "start_delay_mean_ns", "gpu_sum_ns")
    return columns, ("op", "kernels", "calls", "gpu_events", *delays)


def _sequence_codes(names: Array, begin: Array, count: Array) -> Array:
    """Return for each call an int64 that is equal where the names of its events are, in order.

    A sum of 64-bit hashes of (name, place), so that no list is made for each call.
    """
    if not len(begin):
        return np.zeros(0, dtype=np.int64)
    place = np.arange(len(names)) - np.repeat(begin, count)
    hashes = _mix_bits(_mix_bits(names.astype(np.uint64)) + place.astype(np.uint64))
    codes: Array = np.add.reduceat(hashes, begin).view(np.int64)
    return codes


def _mix_bits(values: Array) -> Array:
    """Return hashes of which each bit depends on all of the value (the finish of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed


TABLE = TableSpec(
    build=build_launches,
    views=("call", "kernel", "op", "stream", "idle", "event", "queue"),
    sql={"launches": {"by": "event"}, "queue": {"by": "queue"}},
    page=(
        PageView(
            "launches",
            "by call",
            hint="Delay: from the call to the start on the GPU. Queue: launches that wait.",
            find="call",
        ),
        PageView("launches", "by kernel", {"by": "kernel"}),
        PageView("launches", "by stream", {"by": "stream"}),
    ),
    first={
        "call": ("call", "calls", "host_sum_ns", "host_median_ns"),
        "kernel": ("name", "gpu_events", "host_median_ns", "gpu_median_ns", "delay_median_ns"),
        "op": ("op", "calls", "op_delay_mean_ns", "start_delay_mean_ns", "kernels"),
        "stream": ("stream", "gpu_events", "mean_length", "waiting_ns"),
        "idle": ("stream", "cause", "idle_ns", "gaps", "stream_share"),
        "event": ("name", "host_ns", "delay_ns", "gpu_ns", "call", "call_row"),
        "queue": ("since_first_ns", "stream", "length", "name"),
    },
)
