"""DOC"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, JsonCodes, TextCodes, encode_json
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.intervals import covered_before, overlaps, union
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.kernel_names import TritonName, triton_name
from torchtraceap.tables.catalog import Option, PageView, TableSpec, check_choice
from torchtraceap.tables.events import phases_of, steps_of
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    gpu_notes,
    most_frequent,
    row_numbers,
    time_statistics,
    weighted_mean,
)
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_kernels", "build_short_kernels", "overlap_by_op"]


_HISTOGRAM_BINS = 100
SHORT_NS = 10_000  # what a short kernel is, unless asked otherwise


def build_kernels(part: RankTrace, *, by: str = "name") -> ColumnTable:
    """GPU events of one rank, longest total time first, or each by start.

    Args:
        part: The rank.
        by: "name" (name, operator and stream), "canonical", "overlap" (operator and class, with
            what runs at the same time) or "event".

    Returns:
        Columns as docs/kernels.md lists them. `exclusive_ns` sums to the busy time.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    events = GpuEvents.of(part)
    view = {"event": _by_event, "overlap": overlap_by_op}.get(by)
    columns, shown = view(events) if view else _grouped(events, by)
    facts = {"busy_ns": total(events.exclusive_ns), "gpu_events": len(events)}
    return ColumnTable(columns, shown=shown, facts=facts, notes=_notes(events))


def _grouped(events: GpuEvents, by: str) -> tuple[dict[str, Column], tuple[str, ...]]:
    if by == "name":
        groups = Groups(events.name, events.op.codes, events.stream)
    else:
        groups = Groups(events.canonical.codes)
    sums = groups.sum(events.duration_ns)
    order = order_by(sums, descending=[True])
    first = groups.first[order]
    busy_ns = max(1, total(events.exclusive_ns))
    exclusive_ns = groups.sum(events.exclusive_ns)[order]
    statistics = time_statistics(groups, events.duration_ns, order)
    shares: dict[str, Column] = {
        "exclusive_ns": exclusive_ns,
        "busy_share": exclusive_ns / busy_ns,
        "cumulative_share": np.cumsum(exclusive_ns) / busy_ns,
    }
    head = _name_head(events, first) if by == "name" else _canonical_head(events, groups, order)
    columns = {
        **head,
        **statistics,
        **shares,
        **_launch_shape(events, groups, order),
        **_triton(events, first),
    }
    shown_head = ("name", "op", "stream") if by == "name" else ("canonical", "class", "names", "op")
    shown = (*shown_head, "count", "sum_ns", "mean_ns", "min_ns", "max_ns", "busy_share")
    return columns, (*shown, "cumulative_share", "grid", "block", "occupancy_share")


def _name_head(events: GpuEvents, first: Array) -> dict[str, Column]:
    return {
        "name": events.names.take(first),
        "canonical": events.canonical.take(first),
        "class": events.gpu_class.take(first),
        "op": events.op.take(first),
        **device_and_stream(events.part, events.stream[first]),
    }


def _canonical_head(events: GpuEvents, groups: Groups, order: Array) -> dict[str, Column]:
    """The operator is the one that owns most of the events."""
    op, ops = most_frequent(groups, events.op.codes)
    _, names = most_frequent(groups, events.name)
    _, streams = most_frequent(groups, events.stream)
    first = groups.first[order]
    return {
        "canonical": events.canonical.take(first),
        "class": events.gpu_class.take(first),
        "names": names[order],
        "op": TextCodes(op[order], events.texts),
        "ops": ops[order],
        "streams": streams[order],
    }


def _launch_shape(events: GpuEvents, groups: Groups, order: Array) -> dict[str, Column]:
    """Grid and block that occur most often and how many there are; the rest as means weighted
    with time."""
    columns: dict[str, Column] = {}
    for key in ("grid", "block"):
        codes = events.json_arg(key)
        best, distinct = most_frequent(groups, codes.codes)
        columns[key] = JsonCodes(best[order], codes.texts)
        columns[f"{key}s"] = distinct[order]
    for name, key, scale in _SHAPE_KEYS:
        values = events.number_arg(key) * scale
        columns[name] = weighted_mean(groups, values, events.duration_ns)[order]
    return columns


_SHAPE_KEYS = (
    ("registers_per_thread", "registers per thread", 1.0),
    ("shared_memory_bytes", "shared memory", 1.0),
    ("occupancy_share", "est. achieved occupancy %", 0.01),
    ("blocks_per_sm", "blocks per SM", 1.0),
    ("warps_per_sm", "warps per SM", 1.0),
)


def _triton(events: GpuEvents, first: Array) -> dict[str, Column]:
    """What the names and the operators' arguments say of generated kernels."""
    some = GpuEvents(events.part, events.places[first])
    pairs = Groups(some.name, some.op.codes)
    kernels, ops = some.name[pairs.first].tolist(), some.op.codes[pairs.first].tolist()
    found = [_generated(some.texts, *pair) for pair in zip(kernels, ops, strict=True)]
    kinds = encode_json(name.kind or None if name else None for name in found)
    sources = encode_json(list(name.source_ops) or None if name else None for name in found)
    return {
        "triton_kind": _plain(kinds).take(pairs.index),
        "source_ops": sources.take(pairs.index),
        **{key: some.owner_arg(key) for key in ("kernel_backend", "kernel_file", "kernel_hash")},
    }


def _plain(column: JsonCodes) -> TextCodes:
    return TextCodes(column.codes, [text.strip('"') for text in column.texts])


def _generated(texts: list[str], kernel: int, op: int) -> TritonName | None:
    """By the kernel's name, else (names used to be cut to `triton__0d1d2`) by its operator's."""
    of_kernel = triton_name(texts[kernel])
    if of_kernel and of_kernel.source_ops:
        return of_kernel
    of_op = triton_name(texts[op]) if op >= 0 else None
    return of_op or of_kernel


def _by_event(events: GpuEvents) -> tuple[dict[str, Column], tuple[str, ...]]:
    columns: dict[str, Column] = {
        "row": events.rows,
        "name": events.names,
        "canonical": events.canonical,
        "class": events.gpu_class,
        "op": events.op,
        "op_row": row_numbers(events.part.tree.op[events.rows]),
        "launch_row": row_numbers(events.launch),
        **device_and_stream(events.part, events.stream),
        "step": steps_of(events.part, events.rows),
        "phase": phases_of(events.part, events.rows),
        "start_ns": events.start_ns,
        "since_first_ns": events.start_ns - events.first_ns,
        "duration_ns": events.duration_ns,
        "exclusive_ns": events.exclusive_ns,
        "delay_ns": events.delay_ns,
        "grid": events.json_arg("grid"),
        "block": events.json_arg("block"),
    }
    for name, key, scale in _SHAPE_KEYS:
        columns[name] = events.number_arg(key) * scale
    shown = ("row", "name", "op", "stream", "since_first_ns", "duration_ns", "exclusive_ns")
    return columns, (*shown, "delay_ns", "grid", "block")


def _notes(events: GpuEvents) -> list[str]:
    notes = gpu_notes(events)
    if not len(events):
        return notes
    of_graphs = int((events.events_of_launch > 1).sum())
    if of_graphs:
        notes.append(
            f"{of_graphs} events belong to calls that launched several, such as graph replays: "
            "their operator is the one that made the call."
        )
    kernels = GpuEvents.of(events.part, _core.EventKind.KERNEL)
    if len(kernels) and np.isnan(kernels.number_arg("est. achieved occupancy %")).all():
        notes.append("Occupancy is not recorded in this trace (the profiler has it on CUDA only).")
    return notes


# --------------------------------------------------------------------------------- short kernels


def build_short_kernels(part: RankTrace, *, below_ns: int = SHORT_NS) -> ColumnTable:
    """Kernels shorter than `below_ns` by owner and canonical name, longest total time first.

    Args:
        part: The rank.
        below_ns: What counts as short, ns.

    Returns:
        Columns as docs/kernels.md lists them; facts hold totals and a histogram of durations.

    Raises:
        OptionError: `below_ns` is not positive.
    """
    if below_ns <= 0:
        raise OptionError(f"below_ns must be positive, not {below_ns}")
    kernels = GpuEvents.of(part, _core.EventKind.KERNEL)
    short = kernels.where(kernels.duration_ns < below_ns)
    groups = Groups(short.op.codes, short.canonical.codes)
    order = order_by(groups.sum(short.duration_ns), descending=[True])
    first = groups.first[order]
    busy_ns = max(1, total(part.costs.exclusive_ns))
    launch_ns = _call_share_ns(short)
    columns: dict[str, Column] = {
        "op": short.op.take(first),
        "canonical": short.canonical.take(first),
        "class": short.gpu_class.take(first),
        "count": groups.count[order],
        "sum_ns": groups.sum(short.duration_ns)[order],
        "mean_ns": groups.mean(short.duration_ns)[order],
        "median_ns": groups.median(short.duration_ns)[order],
        "launch_ns": groups.sum(launch_ns)[order],
        "busy_share": groups.sum(short.exclusive_ns)[order] / busy_ns,
        "kernel_share": groups.count[order] / max(1, len(kernels)),
    }
    facts = _short_facts(kernels, short, below_ns)
    return ColumnTable(columns, facts=facts, notes=_short_notes(kernels, short, facts))


def _call_share_ns(events: GpuEvents) -> Array:
    """int64: duration of each event's launch call, divided by the events that it launched."""
    shares: Array = np.rint(events.call_ns / np.maximum(1, events.events_of_launch))
    return shares.astype(np.int64)


def _short_facts(kernels: GpuEvents, short: GpuEvents, below_ns: int) -> dict[str, Any]:
    """Totals, and durations in 100 equal bins between the shortest and the longest."""
    counts, edges = np.histogram(short.duration_ns, bins=_HISTOGRAM_BINS if len(short) else 1)
    bins = slice(0, len(counts) if len(short) else 0)
    call_ns = _call_share_ns(short)
    return {
        "below_ns": below_ns,
        "kernels": len(kernels),
        "kernels_ns": total(kernels.duration_ns),
        "short_kernels": len(short),
        "short_ns": total(short.duration_ns),
        "short_launch_ns": total(call_ns),
        "short_launch_median_ns": float(np.median(call_ns)) if len(short) else 0.0,
        "zero_length_kernels": int((short.duration_ns == 0).sum()),
        "histogram": {
            "bin_start_ns": edges[:-1][bins].tolist(),
            "bin_end_ns": edges[1:][bins].tolist(),
            "count": counts[bins].tolist(),
        },
    }


def _short_notes(kernels: GpuEvents, short: GpuEvents, facts: dict[str, Any]) -> list[str]:
    notes = gpu_notes(kernels, "kernels")
    below = format_ns(facts["below_ns"])
    if not len(kernels):
        return notes
    if not len(short):
        return [*notes, f"No kernel is shorter than {below}."]
    share = format_share(len(short) / len(kernels))
    notes.append(
        f"{share} of the kernels ({len(short)} of {len(kernels)}) are shorter than {below}. They "
        f"ran for {format_ns(facts['short_ns'])}; their launch calls kept the host busy for "
        f"{format_ns(facts['short_launch_ns'])}, "
        f"{format_ns(round(facts['short_launch_median_ns']))} each in the median."
    )
    notes.append(
        "Fused, or replayed as one CUDA or HIP graph, they need no call of their own: "
        "where the GPU waits for the host, that launch time is the most that could be gained."
    )
    if facts["zero_length_kernels"]:
        notes.append(
            f"{facts['zero_length_kernels']} kernels have no length: shorter than the clock of the "
            "recording resolves."
        )
    return notes


def _build(
    part: RankTrace, *, by: str = "name", short: bool = False, below_ns: int = SHORT_NS
) -> ColumnTable:
    return build_short_kernels(part, below_ns=below_ns) if short else build_kernels(part, by=by)


_FIRST = ("sum_ns", "busy_share", "count", "mean_ns", "op")

TABLE = TableSpec(
    build=_build,
    views=("name", "canonical", "overlap", "event"),
    options=(
        Option("short", "--short", "only kernels below --below-us, by owner", "flag", False),
        Option("below_ns", "--below-us", "what short means [10]", "microseconds", SHORT_NS, "US"),
    ),
    sql={
        "kernels": {},
        "gpu_events": {"by": "event"},
        "short_kernels": {"short": True},
    },
    page=(
        PageView(
            "kernels",
            "by short name",
            {"by": "canonical"},
            "Names without template arguments and numbers; copies and memsets too.",
            meter="busy_share",
        ),
        PageView("kernels", "by full name", find="name", meter="busy_share"),
        PageView("kernels", "short ones", {"short": True}, meter="busy_share"),
    ),
    first={
        "name": ("name", *_FIRST),
        "canonical": ("canonical", *_FIRST),
        "overlap": ("op", "class", "sum_ns", "exclusive_ns", "overlap_share", "count"),
        "event": ("name", "duration_ns", "row", "op", "since_first_ns"),
    },
)


def overlap_by_op(events: GpuEvents) -> tuple[dict[str, Column], tuple[str, ...]]:
    """GPU events by operator and class, with what runs beside them on their device.

    Args:
        events: All GPU events of a rank.

    Returns:
        Columns as docs/kernels.md lists them, and those that are shown.
    """
    beside = _beside_ns(events)
    groups = Groups(events.op.codes, events.gpu_class.codes)
    sums = groups.sum(events.duration_ns)
    order = order_by(sums, descending=[True])
    first = groups.first[order]
    alone_ns = groups.sum(beside[_NONE])[order]
    columns: dict[str, Column] = {
        "op": events.op.take(first),
        "class": events.gpu_class.take(first),
        "count": groups.count[order],
        "sum_ns": sums[order],
        "exclusive_ns": groups.sum(events.exclusive_ns)[order],
        **{
            f"under_{_core.gpu_class_names()[code]}_ns": groups.sum(beside[code])[order]
            for code in _CLASSES
        },
        "alone_ns": alone_ns,
        "overlap_share": 1 - alone_ns / np.where(sums[order] > 0, sums[order], np.nan),
    }
    return columns, tuple(name for name in columns if name != "exclusive_ns")


_NONE = int(_core.GpuClass.NONE)
_CLASSES = [code for code in range(len(_core.gpu_class_names())) if code != _NONE]


def _beside_ns(events: GpuEvents) -> list[Array]:
    """int64 `[n]` by class: of every event the time during which others of that class run on its
    device, and at _NONE that during which nothing else does."""
    device = np.asarray([stream.device or 0 for stream in events.part.tree.streams], dtype=np.int64)
    gpu_class = events.gpu_class.codes
    found = [np.zeros(len(events), dtype=np.int64) for _ in _core.gpu_class_names()]
    for _, members in rows_by_key(device[events.stream]):
        bounds = np.stack(
            (events.start_ns[members], events.start_ns[members] + events.duration_ns[members]), 1
        )
        for code in _CLASSES:
            own = gpu_class[members] == code
            others = covered_within(union([bounds[own]]), bounds)
            twins = covered_within(overlaps(bounds[own]), bounds)
            found[code][members] = np.where(own, twins, others)
        accompanied = covered_within(overlaps(bounds), bounds)
        found[_NONE][members] = bounds[:, 1] - bounds[:, 0] - accompanied
    return found


def covered_within(intervals: Array, bounds: Array) -> Array:
    """int64 `[n]`: the length of sorted, disjoint intervals inside each of `[n, 2]`."""
    before = covered_before(intervals, bounds)
    inside: Array = before[:, 1] - before[:, 0]
    return inside
