"""Kernels by the size of their grid: do they fill the multiprocessors, and how evenly?

A wave is what the device can hold at once: the blocks that fit on a multiprocessor times the
multiprocessors. The last wave of a grid is seldom full, and a grid of less than one wave leaves
room on the device for as long as it runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.events import steps_of
from torchtraceap.tables.gpu.gpu_events import (
    GpuEvents,
    device_and_stream,
    gpu_notes,
    most_frequent,
    time_statistics,
    weighted_mean,
)
from torchtraceap.tables.gpu.recorded_device import (
    LIMITS,
    Multiprocessor,
    multiprocessors_of,
    resident_blocks,
)
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_grids"]

_UNKNOWN = Multiprocessor()
_SHAPE = ("grid", "block", "registers per thread", "shared memory")
_NO_SIZE = (np.nan, np.nan, np.nan)
_CALLS_IN_THREADS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")


def build_grids(part: RankTrace, *, by: str = "name") -> ColumnTable:
    """Kernels of one rank by waves, longest total time first, or each by start.

    Args:
        part: The rank.
        by: "name" (canonical), "grid" (name and launch shape) or "event".

    Returns:
        Columns as docs/kernels.md lists them; `sum_ns` sums to the fact `kernels_ns`.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    kernels = _Grids(GpuEvents.of(part, _core.EventKind.KERNEL))
    views = {"name": _by_name, "grid": _by_grid, "event": _by_event}
    columns, shown = views[by](kernels)
    facts = _facts(kernels)
    return ColumnTable(columns, shown=shown, facts=facts, notes=_notes(kernels, facts))


@dataclass(frozen=True)
class _Grids:
    """Kernels with what their launch asks for and what their device has; NaN is not known."""

    events: GpuEvents

    @cached_property
    def blocks(self) -> Array:
        """float64: of the grid."""
        grid = _sizes(self.events.json_arg("grid"))
        counts = np.where(
            self.in_threads, np.ceil(grid / _sizes(self.events.json_arg("block"))), grid
        )
        count: Array = counts.prod(axis=0)
        return count

    @cached_property
    def in_threads(self) -> Array:
        """bool: the grid is in threads, as this call of HIP takes it; else in blocks."""
        names = self.events.names_of(self.events.launch)
        counted = np.array([*(text in _CALLS_IN_THREADS for text in names.texts), False])
        taken: Array = counted[names.codes]
        return taken

    @cached_property
    def threads(self) -> Array:
        """float64: of a block."""
        count: Array = _sizes(self.events.json_arg("block")).prod(axis=0)
        return count

    @cached_property
    def registers(self) -> Array:
        return self.events.number_arg("registers per thread")

    @cached_property
    def shared_bytes(self) -> Array:
        return self.events.number_arg("shared memory")

    @cached_property
    def device(self) -> Array:
        """int64: number of the device, -1 where it is not told."""
        return self.events.part.table.device[self.events.rows].astype(np.int64)

    @cached_property
    def described(self) -> dict[int, Multiprocessor]:
        return multiprocessors_of(self.events.part)

    @cached_property
    def multiprocessors(self) -> Array:
        """float64: of the device; from what the profiler says of blocks per multiprocessor where
        the trace does not describe the device."""
        counts = np.full(len(self.events), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            implied = self.blocks / self.events.number_arg("blocks per SM")
        plausible = (implied >= 1) & np.isfinite(implied)
        for number, here in self._rows_by_device:
            count = self._of(number).count
            usable = implied[here[plausible[here]]]
            if not count and len(usable):
                count = round(float(np.median(usable)))
            counts[here] = count or np.nan
        return counts

    @cached_property
    def _rows_by_device(self) -> list[tuple[int, Array]]:
        return list(rows_by_key(self.device))

    def _of(self, number: int) -> Multiprocessor:
        return self.described.get(number, self._common)

    @cached_property
    def _common(self) -> Multiprocessor:
        """What all devices of the trace are; unknown where they differ."""
        alike = set(self.described.values())
        return alike.pop() if len(alike) == 1 else _UNKNOWN

    @cached_property
    def _resident(self) -> tuple[Array, Array]:
        blocks = np.full(len(self.events), np.nan)
        limit = np.full(len(self.events), -1, dtype=np.int32)
        for number, here in self._rows_by_device:
            blocks[here], limit[here] = resident_blocks(
                self._of(number),
                self.threads[here],
                self.registers[here],
                self.shared_bytes[here],
            )
        return blocks, limit

    @property
    def resident_blocks(self) -> Array:
        """float64: blocks that a multiprocessor holds at once."""
        return self._resident[0]

    @property
    def limited_by(self) -> TextCodes:
        return TextCodes(self._resident[1], LIMITS)

    @cached_property
    def waves(self) -> Array:
        waves: Array = self.blocks / (self.multiprocessors * self.resident_blocks)
        return waves

    @cached_property
    def tail_share(self) -> Array:
        """The part of the last wave that is empty."""
        share: Array = np.ceil(self.waves) - self.waves
        return share

    @cached_property
    def empty_share(self) -> Array:
        """The part of all waves that is empty: what the tail costs if all blocks take as long."""
        waves = np.ceil(self.waves)
        share: Array = (waves - self.waves) / waves
        return share

    @cached_property
    def used_share(self) -> Array:
        """The part of the multiprocessors that gets a block."""
        share: Array = np.minimum(1.0, self.blocks / self.multiprocessors)
        return share

    @cached_property
    def is_compute(self) -> Array:
        """Collectives take few multiprocessors on purpose."""
        found: Array = self.events.part.tree.gpu_class[self.events.rows] == _core.GpuClass.COMPUTE
        return found


def _sizes(column: TextCodes) -> Array:
    """float64 `[3, n]`: three whole numbers in JSON; NaN for anything else."""
    sizes = np.array([*map(_three, column.texts), _NO_SIZE])
    return sizes[column.codes].T


def _three(text: str) -> tuple[float, float, float]:
    dims = json.loads(text)
    if not isinstance(dims, list) or len(dims) != 3:
        return _NO_SIZE
    if not all(type(dim) is int and 0 < dim < 2**31 for dim in dims):
        return _NO_SIZE
    return float(dims[0]), float(dims[1]), float(dims[2])


# ------------------------------------------------------------------------------------- views

Columns = dict[str, Column]
View = tuple[Columns, tuple[str, ...]]


def _by_name(grids: _Grids) -> View:
    events = grids.events
    groups = Groups(events.canonical.codes)
    order = order_by(groups.sum(events.duration_ns), descending=[True])
    first = groups.first[order]
    op, _ = most_frequent(groups, events.op.codes)
    _, shapes = most_frequent(groups, events.json_arg("grid").codes)
    below_ns = groups.sum(np.where(grids.waves < 1, events.duration_ns, 0))[order]
    unknown = groups.sum(~np.isnan(grids.waves)) == 0
    columns: Columns = {
        "canonical": events.canonical.take(first),
        "class": events.gpu_class.take(first),
        "op": TextCodes(op[order], events.texts),
        **time_statistics(groups, events.duration_ns, order),
        "kernel_share": _kernel_share(groups, events)[order],
        "grids": shapes[order],
        **{
            name: weighted_mean(groups, values, events.duration_ns)[order]
            for name, values in _figures(grids).items()
        },
        "below_one_wave_ns": np.ma.array(below_ns, mask=unknown[order]),
    }
    shown = ("canonical", "count", "sum_ns", "kernel_share", "grids", "blocks", "resident_blocks")
    return columns, (
        *shown,
        "waves",
        "tail_share",
        "empty_share",
        "used_share",
        "below_one_wave_ns",
    )


def _by_grid(grids: _Grids) -> View:
    """Rows of one launch shape on one kind of device: what is a mean by name is exact here."""
    events = grids.events
    asked = [events.text_arg(key).codes for key in _SHAPE]
    groups = Groups(
        events.canonical.codes, *asked, np.ma.filled(_as_int(grids.multiprocessors), -1)
    )
    order = order_by(groups.sum(events.duration_ns), descending=[True])
    first = groups.first[order]
    op, _ = most_frequent(groups, events.op.codes)
    columns: Columns = {
        "canonical": events.canonical.take(first),
        "class": events.gpu_class.take(first),
        "op": TextCodes(op[order], events.texts),
        **_launch_shape(grids, first),
        **time_statistics(groups, events.duration_ns, order),
        "kernel_share": _kernel_share(groups, events)[order],
    }
    shown = ("canonical", "grid", "block", "count", "sum_ns", "kernel_share", "resident_blocks")
    return columns, (*shown, "limited_by", "waves", "tail_share", "empty_share", "used_share")


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
    return columns, (
        *shown,
        "resident_blocks",
        "limited_by",
        "waves",
        "tail_share",
        "empty_share",
        "used_share",
    )


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
        **{name: _as_int(v) if name in whole else v for name, v in figures.items()},
        "limited_by": grids.limited_by.take(chosen),
    }


def _as_int(values: Array) -> Array:
    """int64, masked where NaN or beyond any device."""
    absent = ~(np.abs(values) < 2**62)
    return np.ma.array(np.where(absent, 0, values).astype(np.int64), mask=absent)


def _kernel_share(groups: Groups, events: GpuEvents) -> Array:
    share: Array = groups.sum(events.duration_ns) / max(1, total(events.duration_ns))
    return share


# ------------------------------------------------------------------------------------- facts


def _facts(grids: _Grids) -> dict[str, Any]:
    """Totals; the shares are of compute kernels whose waves are known."""
    duration_ns = grids.events.duration_ns
    known = grids.is_compute & ~np.isnan(grids.waves)
    known_ns = total(duration_ns[known])
    below_ns = total(duration_ns[known & (grids.waves < 1)])
    return {
        "kernels_ns": total(duration_ns),
        "compute_ns": total(duration_ns[grids.is_compute]),
        "known_ns": known_ns,
        "below_one_wave_ns": below_ns,
        "below_one_wave_share": below_ns / known_ns if known_ns else None,
        "multiprocessors": sorted(
            {int(count) for count in grids.multiprocessors if not np.isnan(count)}
        ),
    }


def _notes(grids: _Grids, facts: dict[str, Any]) -> Sequence[str]:
    events = grids.events
    notes = gpu_notes(events, "kernels")
    if not len(events):
        return notes
    if facts["known_ns"]:
        share = format_share(facts["below_one_wave_share"])
        notes.append(
            f"Compute kernels of less than one wave ran for {format_ns(facts['below_one_wave_ns'])}"
            f", {share} of the time of those whose waves are known."
        )
    return [*notes, *_lacks(grids)]


def _lacks(grids: _Grids) -> Sequence[str]:
    missing = np.isnan(grids.blocks)
    if missing.all():
        return ["The trace records no grid sizes, so that waves are not known."]
    notes = []
    if missing.any():
        notes.append(f"{int(missing.sum())} of {len(missing)} kernels have no grid size.")
    placed = ~missing
    if np.isnan(grids.multiprocessors[placed]).all():
        return [*notes, "The trace does not describe its device (`deviceProperties`), so that "
                "waves are not known."]  # fmt: skip
    if np.isnan(grids.resident_blocks[placed]).all():
        return [*notes, "The trace does not describe its device (`deviceProperties`): the number "
                "of multiprocessors follows from what the profiler says of blocks on each, but "
                "not how many fit at once, so that waves are not known."]  # fmt: skip
    if np.isnan(grids.registers[placed]).all():
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
