"""GPU events by name, by operator with what runs beside them, or one by one; and short kernels."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import Column, JsonCodes, TextCodes, encode_json, encode_texts
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.intervals import covered_before, overlaps, union
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.kernel_names import triton_name
from torchtraceap.tables.catalog import Option, PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    gpu_notes,
    most_frequent,
    row_numbers,
    time_statistics,
    weighted_mean,
)
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key, steps_of
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_kernels"]

_HISTOGRAM_BINS = 100
SHORT_NS = 10_000
"""The duration of a kernel below which it is short by default."""
_SHAPE_KEYS = (
    ("registers_per_thread", "registers per thread", 1.0),
    ("shared_memory_bytes", "shared memory", 1.0),
    ("occupancy_share", "est. achieved occupancy %", 0.01),
    ("blocks_per_sm", "blocks per SM", 1.0),
    ("warps_per_sm", "warps per SM", 1.0),
)
_NONE = int(_core.GpuClass.NONE)
_CLASSES = [code for code in range(len(_core.gpu_class_names())) if code != _NONE]

View = tuple[dict[str, Column], tuple[str, ...]]
"""Columns, and those shown first."""


def build_kernels(
    part: RankTrace,
    *,
    by: str = "name",
    short: bool = False,
    below_ns: int = SHORT_NS,
    capture: PathLike | None = None,
    eager: PathLike | None = None,
) -> ColumnTable:
    """Build the table of `Trace.kernels` for one rank, or if `short` that of `Trace.short_kernels`.

    Returns:
        Rows by total time, the longest first, or events by start; docs/tables.md has the columns.
        `exclusive_ns` sums to the busy time. Facts of short kernels hold totals and a histogram of
        durations.

    Raises:
        OptionError: `by` is something else, or `below_ns` is not positive.
    """
    if short:
        return _short_kernels(part, below_ns)
    check_choice("by", by, TABLE.views)
    events = GpuEvents.of(part)
    if by == "event":
        columns, shown = _by_event(events, capture, eager)
    else:
        columns, shown = _by_overlap(events) if by == "overlap" else _grouped(events, by)
    notes = gpu_notes(events)
    of_graphs = int((events.events_of_launch > 1).sum())
    if of_graphs:
        notes.append(
            f"{of_graphs} events belong to calls that launched several, such as graph replays: "
            "their operator is the one that made the call."
        )
    kernels = GpuEvents.of(part, _core.EventKind.KERNEL)
    if len(kernels) and np.isnan(kernels.number_arg("est. achieved occupancy %")).all():
        notes.append("Occupancy is not recorded in this trace (the profiler has it on CUDA only).")
    facts = {"busy_ns": total(events.exclusive_ns), "gpu_events": len(events)}
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


def _grouped(events: GpuEvents, by: str) -> View:
    if by == "name":
        groups = Groups(events.name, events.op.codes, events.stream)
    else:
        groups = Groups(events.canonical.codes)
    order = order_by(groups.sum(events.duration_ns), descending=[True])
    first = groups.first[order]
    canonical, gpu_class = events.canonical.take(first), events.gpu_class.take(first)
    head: dict[str, Column]
    if by == "name":
        shown_head: tuple[str, ...] = ("name", "op", "stream")
        head = {
            "name": events.names.take(first),
            "canonical": canonical,
            "class": gpu_class,
            "op": events.op.take(first),
            **device_and_stream(events.part, events.stream[first]),
        }
    else:
        shown_head = ("canonical", "class", "names", "op")
        op, ops = most_frequent(groups, events.op.codes)
        head = {
            "canonical": canonical,
            "class": gpu_class,
            "names": most_frequent(groups, events.name)[1][order],
            "op": TextCodes(op[order], events.texts),
            "ops": ops[order],
            "streams": most_frequent(groups, events.stream)[1][order],
        }
    busy_ns = max(1, total(events.exclusive_ns))
    exclusive_ns = groups.sum(events.exclusive_ns)[order]
    columns: dict[str, Column] = {
        **head,
        **time_statistics(groups, events.duration_ns, order),
        "exclusive_ns": exclusive_ns,
        "busy_share": exclusive_ns / busy_ns,
        "cumulative_share": np.cumsum(exclusive_ns) / busy_ns,
    }
    # Grid and block that occur most often and how many there are; the rest as weighted means.
    for key in ("grid", "block"):
        codes = events.json_arg(key)
        best, distinct = most_frequent(groups, codes.codes)
        columns[key] = JsonCodes(best[order], codes.texts)
        columns[f"{key}s"] = distinct[order]
    for name, key, scale in _SHAPE_KEYS:
        values = events.number_arg(key) * scale
        columns[name] = weighted_mean(groups, values, events.duration_ns)[order]
    columns |= _triton(events, first)
    from torchtraceap.tables.serving.attribution import attribute

    evidence = attribute(events.part).of_groups(groups.index, events.duration_ns, len(groups))
    columns["attribution"] = evidence.take(order)
    shown = (*shown_head, "count", "sum_ns", "mean_ns", "min_ns", "max_ns", "busy_share")
    return columns, (*shown, "cumulative_share", "grid", "block", "occupancy_share")


def _triton(events: GpuEvents, first: Array) -> dict[str, Column]:
    """Return what the names and the operators' arguments say of generated kernels."""
    some = GpuEvents(events.part, events.places[first])
    pairs = Groups(some.name, some.op.codes)
    found = []
    for kernel, op in zip(
        some.name[pairs.first].tolist(), some.op.codes[pairs.first].tolist(), strict=True
    ):
        # The kernel's name tells, else (names used to be cut to `triton__0d1d2`) its operator's.
        of_kernel = triton_name(some.texts[kernel])
        if not (of_kernel and of_kernel.source_ops) and op >= 0:
            of_kernel = triton_name(some.texts[op]) or of_kernel
        found.append(of_kernel)
    kinds = encode_texts(name.kind or None if name else None for name in found)
    sources = encode_json(list(name.source_ops) or None if name else None for name in found)
    return {
        "triton_kind": kinds.take(pairs.index),
        "source_ops": sources.take(pairs.index),
        **{key: some.owner_arg(key) for key in ("kernel_backend", "kernel_file", "kernel_hash")},
    }


def _by_event(events: GpuEvents, capture: PathLike | None, eager: PathLike | None) -> View:
    from torchtraceap.tables.serving.attribution import EVIDENCE, attribute

    known = attribute(events.part, capture, eager)
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
        "phase": known.phase,
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
    columns |= {
        "operator": known.operator,
        "module": known.module,
        "layer": np.ma.array(known.layer, mask=known.layer < 0),
        "role": known.role,
        "attribution": TextCodes(known.evidence.astype(np.int32), EVIDENCE),
        "stack": known.stack,
    }
    shown = ("row", "name", "op", "stream", "since_first_ns", "duration_ns", "exclusive_ns")
    return columns, (*shown, "delay_ns", "grid", "block")


# --------------------------------------------------------------------------------- overlap


def _by_overlap(events: GpuEvents) -> View:
    """Return GPU events by operator and class, with what runs beside them on their device."""
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


def _beside_ns(events: GpuEvents) -> list[Array]:
    """Return by class the time of every event during which others of that class run on its device,
    int64 `[n]`, and at _NONE that during which nothing else does."""
    device = np.asarray([stream.device or 0 for stream in events.part.tree.streams], dtype=np.int64)
    gpu_class = events.gpu_class.codes
    found = [np.zeros(len(events), dtype=np.int64) for _ in _core.gpu_class_names()]
    for _, members in rows_by_key(device[events.stream]):
        bounds = np.stack(
            (events.start_ns[members], events.start_ns[members] + events.duration_ns[members]), 1
        )
        for code in _CLASSES:
            own = gpu_class[members] == code
            others = _covered_within(union([bounds[own]]), bounds)
            twins = _covered_within(overlaps(bounds[own]), bounds)
            found[code][members] = np.where(own, twins, others)
        accompanied = _covered_within(overlaps(bounds), bounds)
        found[_NONE][members] = bounds[:, 1] - bounds[:, 0] - accompanied
    return found


def _covered_within(intervals: Array, bounds: Array) -> Array:
    """Return the length of sorted, disjoint intervals inside each of `[n, 2]`, int64 `[n]`."""
    before = covered_before(intervals, bounds)
    inside: Array = before[:, 1] - before[:, 0]
    return inside


# --------------------------------------------------------------------------------- short kernels


def _short_kernels(part: RankTrace, below_ns: int) -> ColumnTable:
    if below_ns <= 0:
        raise OptionError(f"below_ns must be positive, not {below_ns}")
    kernels = GpuEvents.of(part, _core.EventKind.KERNEL)
    short = kernels.where(kernels.duration_ns < below_ns)
    groups = Groups(short.op.codes, short.canonical.codes)
    order = order_by(groups.sum(short.duration_ns), descending=[True])
    first = groups.first[order]
    busy_ns = max(1, total(part.costs.exclusive_ns))
    # The launch call of each event, divided by the events that it launched.
    shares: Array = np.rint(short.call_ns / np.maximum(1, short.events_of_launch))
    launch_ns = shares.astype(np.int64)
    columns: dict[str, Column] = {
        "op": short.op.take(first),
        "canonical": short.canonical.take(first),
        "class": short.gpu_class.take(first),
        "count": groups.count[order],
        **groups.statistics(short.duration_ns, "sum", "mean", "median", order=order),
        "launch_ns": groups.sum(launch_ns)[order],
        "busy_share": groups.sum(short.exclusive_ns)[order] / busy_ns,
        "kernel_share": groups.count[order] / max(1, len(kernels)),
    }
    # Equal bins between the shortest and the longest.
    counts, edges = np.histogram(short.duration_ns, bins=_HISTOGRAM_BINS if len(short) else 1)
    bins = slice(0, len(counts) if len(short) else 0)
    short_ns, launches_ns = total(short.duration_ns), total(launch_ns)
    median_ns = float(np.median(launch_ns)) if len(short) else 0.0
    zero_length = int((short.duration_ns == 0).sum())
    facts = {
        "below_ns": below_ns,
        "kernels": len(kernels),
        "kernels_ns": total(kernels.duration_ns),
        "short_kernels": len(short),
        "short_ns": short_ns,
        "short_launch_ns": launches_ns,
        "short_launch_median_ns": median_ns,
        "zero_length_kernels": zero_length,
        "histogram": {
            "bin_start_ns": edges[:-1][bins].tolist(),
            "bin_end_ns": edges[1:][bins].tolist(),
            "count": counts[bins].tolist(),
        },
    }
    notes = gpu_notes(kernels, "kernels")
    if len(kernels) and not len(short):
        notes.append(f"No kernel is shorter than {format_ns(below_ns)}.")
    if len(short):
        notes.append(
            f"{format_share(len(short) / len(kernels))} of the kernels ({len(short)} of "
            f"{len(kernels)}) are shorter than {format_ns(below_ns)}. They ran for "
            f"{format_ns(short_ns)}; their launch calls kept the host busy for "
            f"{format_ns(launches_ns)}, {format_ns(round(median_ns))} each in the median."
        )
        notes.append(
            "Fused, or replayed as one CUDA or HIP graph, they need no call of their own: "
            "where the GPU waits for the host, that launch time is the most that could be gained."
        )
    if zero_length:
        notes.append(
            f"{zero_length} kernels have no length: shorter than the clock of the recording "
            "resolves."
        )
    return ColumnTable(columns, facts=facts, notes=notes)


_FIRST = ("sum_ns", "busy_share", "count", "mean_ns", "op")

TABLE = TableSpec(
    build=build_kernels,
    views=("name", "canonical", "overlap", "event"),
    options=(
        Option("short", "--short", "only kernels below --below-us, by owner", "flag", False),
        Option("below_ns", "--below-us", "what short means [10]", "microseconds", SHORT_NS, "US"),
        Option(
            "capture",
            "--capture",
            "with --by event: trace or annotations of the capture of CUDA graphs, or a folder",
            kind="path",
            metavar="PATH",
        ),
        Option(
            "eager",
            "--eager",
            "with --by event: trace of the same model without CUDA graphs",
            kind="path",
            metavar="TRACE",
        ),
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
