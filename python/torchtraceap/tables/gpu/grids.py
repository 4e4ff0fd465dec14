"""Kernels by the size of their grid: how far and how evenly they fill the multiprocessors.

A wave is what the device can hold at once: the blocks that fit on a multiprocessor times the
multiprocessors. The last wave of a grid is seldom full, and a grid of less than one wave leaves
room on the device for as long as it runs.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    gpu_notes,
    most_frequent,
    time_statistics,
    weighted_mean,
    whole_numbers,
)
from torchtraceap.tables.gpu.recorded_device import (
    LIMITS,
    Multiprocessor,
    multiprocessors_of,
    resident_blocks,
)
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key, steps_of
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_grids"]

_SHAPE = ("grid", "block", "registers per thread", "shared memory")
_SHARES = ("waves", "tail_share", "empty_share", "used_share")
_CALLS_IN_THREADS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""Calls that take the size of the grid in threads, not in blocks."""


def build_grids(part: RankTrace, *, by: str = "name") -> ColumnTable:
    """Build the table of `Trace.grids` for one rank.

    Returns:
        Rows by total time, the longest first, or events by start; docs/tables.md has the columns.
        `sum_ns` sums to the fact `kernels_ns`.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    kernels = _Grids(GpuEvents.of(part, _core.EventKind.KERNEL))
    columns, shown = _by_event(kernels) if by == "event" else _grouped(kernels, by)
    # Totals; the shares are of compute kernels whose waves are known.
    duration_ns = kernels.events.duration_ns
    is_known = kernels.is_compute & ~np.isnan(kernels.waves)
    known_ns = total(duration_ns[is_known])
    below_ns = total(duration_ns[is_known & (kernels.waves < 1)])
    counts = {int(count) for count in kernels.multiprocessors if not np.isnan(count)}
    facts = {
        "kernels_ns": total(duration_ns),
        "compute_ns": total(duration_ns[kernels.is_compute]),
        "known_ns": known_ns,
        "below_one_wave_ns": below_ns,
        "below_one_wave_share": below_ns / known_ns if known_ns else None,
        "multiprocessors": sorted(counts),
    }
    return ColumnTable(columns, shown=shown, facts=facts, notes=_notes(kernels, facts))


class _Grids:
    """Kernels with what their launch requests and what their device has, float64 `[n]`; NaN is not
    known.

    Attributes:
        blocks: Blocks of the grid.
        threads: Threads of a block.
        registers: Registers of a thread.
        shared_bytes: Shared memory of a block.
        multiprocessors: Those of the device; from what the profiler says of blocks per
            multiprocessor where the trace does not describe the device.
        resident_blocks: Blocks that a multiprocessor holds at once.
        limited_by: What limits them, of `LIMITS`.
        waves: Waves of the grid.
        tail_share: The part of the last wave that is empty.
        empty_share: The part of all waves that is empty: what the tail costs if all blocks take as
            long.
        used_share: The part of the multiprocessors that gets a block.
        is_compute: bool `[n]`; collectives take few multiprocessors on purpose.
    """

    def __init__(self, events: GpuEvents) -> None:
        self.events = events
        grid, block = (_sizes(events.json_arg(key)) for key in ("grid", "block"))
        launch = events.names_of(events.launch)
        is_hip = np.array([*(text in _CALLS_IN_THREADS for text in launch.texts), False])
        self.blocks: Array = np.where(is_hip[launch.codes], np.ceil(grid / block), grid).prod(0)
        self.threads: Array = block.prod(axis=0)
        self.registers = events.number_arg("registers per thread")
        self.shared_bytes = events.number_arg("shared memory")
        gpu_class = events.part.tree.gpu_class[events.rows]
        self.is_compute: Array = gpu_class == _core.GpuClass.COMPUTE
        with np.errstate(divide="ignore", invalid="ignore"):
            implied = self.blocks / events.number_arg("blocks per SM")
        plausible = (implied >= 1) & np.isfinite(implied)
        described = multiprocessors_of(events.part)
        alike = set(described.values())
        common = alike.pop() if len(alike) == 1 else Multiprocessor()
        self.multiprocessors = np.full(len(events), np.nan)
        self.resident_blocks = np.full(len(events), np.nan)
        limit = np.full(len(events), -1, dtype=np.int32)
        for number, here in rows_by_key(events.part.table.device[events.rows].astype(np.int64)):
            on = described.get(number, common)
            usable = implied[here[plausible[here]]]
            count = on.count
            if not count and len(usable):
                count = round(float(np.median(usable)))
            self.multiprocessors[here] = count or np.nan
            self.resident_blocks[here], limit[here] = resident_blocks(
                on, self.threads[here], self.registers[here], self.shared_bytes[here]
            )
        self.limited_by = TextCodes(limit, LIMITS)
        self.waves: Array = self.blocks / (self.multiprocessors * self.resident_blocks)
        whole_waves = np.ceil(self.waves)
        self.tail_share: Array = whole_waves - self.waves
        self.empty_share: Array = self.tail_share / whole_waves
        self.used_share: Array = np.minimum(1.0, self.blocks / self.multiprocessors)


def _sizes(column: TextCodes) -> Array:
    """Return the three sizes of a grid or block, float64 `[3, n]`; NaN for anything else."""
    sizes = np.full((len(column.texts) + 1, 3), np.nan)
    for code, text in enumerate(column.texts):
        dims = json.loads(text)
        if (
            isinstance(dims, list)
            and len(dims) == 3
            and all(type(dim) is int and 0 < dim < 2**31 for dim in dims)
        ):
            sizes[code] = dims
    return sizes[column.codes].T


# ------------------------------------------------------------------------------------- views

Columns = dict[str, Column]
View = tuple[Columns, tuple[str, ...]]


def _grouped(grids: _Grids, by: str) -> View:
    """Return kernels by canonical name, or by launch shape on one kind of device: what is a mean by
    name is exact there."""
    events, duration_ns = grids.events, grids.events.duration_ns
    if by == "name":
        groups = Groups(events.canonical.codes)
    else:
        shape = [events.text_arg(key).codes for key in _SHAPE]
        count = np.ma.filled(whole_numbers(grids.multiprocessors), -1)
        groups = Groups(events.canonical.codes, *shape, count)
    order = order_by(groups.sum(duration_ns), descending=[True])
    first = groups.first[order]
    op, _ = most_frequent(groups, events.op.codes)
    columns: Columns = {
        "canonical": events.canonical.take(first),
        "class": events.gpu_class.take(first),
        "op": TextCodes(op[order], events.texts),
    }
    if by == "grid":
        columns |= _launch_shape(grids, first)
    columns |= time_statistics(groups, duration_ns, order)
    columns["kernel_share"] = (groups.sum(duration_ns) / max(1, total(duration_ns)))[order]
    if by == "grid":
        shown = ("canonical", "grid", "block", "count", "sum_ns", "kernel_share")
        return columns, (*shown, "resident_blocks", "limited_by", *_SHARES)
    columns["grids"] = most_frequent(groups, events.json_arg("grid").codes)[1][order]
    for name, values in _figures(grids).items():
        columns[name] = weighted_mean(groups, values, duration_ns)[order]
    below_ns = groups.sum(np.where(grids.waves < 1, duration_ns, 0))
    unknown = groups.sum(~np.isnan(grids.waves)) == 0
    columns["below_one_wave_ns"] = np.ma.array(below_ns[order], mask=unknown[order])
    shown = ("canonical", "count", "sum_ns", "kernel_share", "grids", "blocks")
    return columns, (*shown, "resident_blocks", *_SHARES, "below_one_wave_ns")


def _by_event(grids: _Grids) -> View:
    events = grids.events
    columns: Columns = {
        "row": events.rows,
        "name": events.names,
        "canonical": events.canonical,
        "class": events.gpu_class,
        "op": events.op,
        **device_and_stream(events.part, events.stream),
        "step": steps_of(events.part, np.where(events.is_linked, events.launch, events.rows)),
        "since_first_ns": events.start_ns - events.first_ns,
        "duration_ns": events.duration_ns,
        **_launch_shape(grids, np.arange(len(events))),
    }
    shown = ("row", "name", "op", "since_first_ns", "duration_ns", "grid", "block")
    return columns, (*shown, "resident_blocks", "limited_by", *_SHARES)


def _figures(grids: _Grids) -> dict[str, Array]:
    return {
        "blocks": grids.blocks,
        "block_threads": grids.threads,
        "multiprocessors": grids.multiprocessors,
        "resident_blocks": grids.resident_blocks,
        "waves": grids.waves,
        "tail_share": grids.tail_share,
        "empty_share": grids.empty_share,
        "used_share": grids.used_share,
    }


def _launch_shape(grids: _Grids, chosen: Array) -> Columns:
    whole = ("blocks", "block_threads", "multiprocessors", "resident_blocks")
    figures = {name: values[chosen] for name, values in _figures(grids).items()}
    return {
        "grid": grids.events.json_arg("grid").take(chosen),
        "block": grids.events.json_arg("block").take(chosen),
        "registers_per_thread": grids.registers[chosen],
        "shared_memory_bytes": grids.shared_bytes[chosen],
        **{name: whole_numbers(v) if name in whole else v for name, v in figures.items()},
        "limited_by": grids.limited_by.take(chosen),
    }


# ------------------------------------------------------------------------------------- facts


def _notes(grids: _Grids, facts: dict[str, Any]) -> list[str]:
    notes = gpu_notes(grids.events, "kernels")
    if not len(grids.events):
        return notes
    if facts["known_ns"]:
        share = format_share(facts["below_one_wave_share"])
        notes.append(
            f"Compute kernels of less than one wave ran for {format_ns(facts['below_one_wave_ns'])}"
            f", {share} of the time of those whose waves are known."
        )
    missing = np.isnan(grids.blocks)
    if missing.all():
        return [*notes, "The trace records no grid sizes, so that waves are not known."]
    if missing.any():
        notes.append(f"{int(missing.sum())} of {len(missing)} kernels have no grid size.")
    placed = ~missing
    if np.isnan(grids.multiprocessors[placed]).all():
        notes.append(
            "The trace does not describe its device (`deviceProperties`), so that waves are not "
            "known."
        )
    elif np.isnan(grids.resident_blocks[placed]).all():
        notes.append(
            "The trace does not describe its device (`deviceProperties`): the number of "
            "multiprocessors follows from what the profiler says of blocks on each, but not how "
            "many fit at once, so that waves are not known."
        )
    elif np.isnan(grids.registers[placed]).all():
        notes.append(
            "Registers and shared memory are not recorded (on ROCm never): blocks that fit are "
            "counted by threads alone, so that there may be more waves than shown."
        )
    return notes


_FIRST = ("canonical", "grid", "sum_ns", "waves", "tail_share", "count")

TABLE = TableSpec(
    build=build_grids,
    views=("name", "grid", "event"),
    sql={"grids": {"by": "grid"}},
    page=(
        PageView(
            "kernels",
            "grids",
            {"by": "grid"},
            "A wave is what the device holds at once. Tail: the empty part of the last wave.",
            meter="kernel_share",
        ),
    ),
    first={
        "name": _FIRST,
        "grid": _FIRST,
        "event": ("name", "grid", "duration_ns", "waves", "tail_share", "row"),
    },
)
