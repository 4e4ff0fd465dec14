"""The events of a rank that a measure counts, with their sums in all and by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap._core import CopyDirection
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import ALLOCATOR_CALLS, ApiClass, EventKind
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import cumulative, sum_by_index, total
from torchtraceap.errors import OptionError
from torchtraceap.tables.gpu.copies import Copies
from torchtraceap.tables.gpu.memory import MemoryEvents
from torchtraceap.tables.steps.iterations import counted_steps
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "KERNEL_LAUNCHES",
    "CountedEvents",
    "UnknownMeasureError",
    "allocator_calls",
    "copied_bytes",
    "has_runtime_calls",
    "is_without_gpu",
    "launches",
    "operators",
    "peak_allocated_bytes",
    "recompiles",
]


KERNEL_LAUNCHES = (ApiClass.KERNEL_LAUNCH, ApiClass.GRAPH_LAUNCH)
"""A graph is one launch, however many kernels it holds."""
NO_CALLS = (
    "the trace has no runtime calls; record it with ProfilerActivity.CUDA, on a machine with a GPU"
)
_NO_GPU = "nothing of a GPU is recorded"


class UnknownMeasureError(OptionError):
    """The trace lacks what a measure needs; the message says what, in a sentence."""


def has_runtime_calls(part: RankTrace) -> bool:
    """Return True if the trace has calls of a GPU's runtime or driver."""
    return part.cached("has calls", lambda: bool(part.tree.api.any()))


def is_without_gpu(part: RankTrace) -> bool:
    """Return True if nothing of a GPU is recorded, neither events nor calls."""
    return not len(part.tree.gpu_rows) and not has_runtime_calls(part)


@dataclass(frozen=True)
class CountedEvents:
    """Events of one rank that are counted, in order of time."""

    part: RankTrace
    rows: Array
    """int64 `[n]`."""
    amounts: Array
    """int64 `[n]`: what each counts for: 1, or its bytes, or the level that it leaves."""
    names: Sequence[str] = ()
    """Names of kinds, if there are several."""
    kinds: Array | None = None
    """int64 `[n]`: index in `names`."""
    is_level: bool = False
    """Amounts are levels, whose largest counts, and not their sum."""
    note: str = ""
    """Note on what the count rests on."""

    @classmethod
    def of_rows(cls, part: RankTrace, rows: Array, note: str = "") -> CountedEvents:
        """Count each row once."""
        rows = np.sort(rows.astype(np.int64))
        return cls(part, rows, np.ones(len(rows), dtype=np.int64), note=note)

    def where(self, mask: Array) -> CountedEvents:
        """Return those of a mask."""
        kinds = None if self.kinds is None else self.kinds[mask]
        rows, amounts = self.rows[mask], self.amounts[mask]
        return CountedEvents(self.part, rows, amounts, self.names, kinds, self.is_level, self.note)

    def of_kind(self, name: str) -> CountedEvents:
        """Return the events of one kind."""
        assert self.kinds is not None
        place = self.names.index(name) if name in self.names else -1
        return self.where(self.kinds == place)

    def without_kind(self, name: str) -> CountedEvents:
        """Return the events of other kinds."""
        assert self.kinds is not None
        place = self.names.index(name) if name in self.names else -1
        return self.where(self.kinds != place)

    def inside(self) -> CountedEvents:
        """Return the events inside the profiled time, GPU events by their launch; all if there are
        no steps."""
        tree = self.part.tree
        if not tree.steps:
            return self
        start_ns, end_ns = tree.profiled
        times = host_times(self.part, self.rows)
        return self.where((times >= start_ns) & (times < end_ns))

    def of_step(self, step: int) -> CountedEvents:
        """Return the events of one step, by its place among all."""
        return self.where(self.part.tree.step[self.rows] == step)

    def total(self) -> int:
        """Return the sum of the values; the largest if they are levels."""
        if self.is_level:
            return int(self.amounts.max(initial=0))
        return total(self.amounts)

    def by_step(self) -> Array:
        """Return the same for each step, int64 `[steps]`."""
        count = len(self.part.tree.steps)
        steps = self.part.tree.step[self.rows]
        known = steps != _core.NO_ROW
        if not self.is_level:
            return sum_by_index(steps[known], self.amounts[known], count)
        most = np.zeros(count, dtype=np.int64)
        np.maximum.at(most, steps[known], self.amounts[known])
        return most

    def row_beyond(self, most: float, *, at_it: bool = False) -> int | None:
        """Return the event with which the sum (the level) first exceeds a limit, or reaches it."""
        levels = self.amounts if self.is_level else cumulative(self.amounts)
        beyond = np.flatnonzero(levels >= most if at_it else levels > most)
        return int(self.rows[beyond[0]]) if len(beyond) else None


def host_times(part: RankTrace, rows: Array) -> Array:
    """Return when each row starts on the host's clock, int64 ns; for GPU events their launch."""
    tree, table = part.tree, part.table
    launch = tree.launch[rows]
    is_linked = launch != _core.NO_ROW
    times = table.ts_ns[np.where(is_linked, launch, rows)].copy()
    alone = ~is_linked & (tree.gpu_class[rows] != _core.GpuClass.NONE)
    times[alone] += tree.launch_delay_correction_ns
    return times


def counted_places(part: RankTrace) -> list[int]:
    """Return the places of the counted steps among all."""
    return [int(place) for place in np.flatnonzero(counted_steps(part))]


def calls_of(part: RankTrace, classes: tuple[ApiClass, ...] | Array) -> Array:
    """Return the complete calls of these classes, by start."""
    return np.flatnonzero(np.isin(part.tree.api, classes) & part.table.complete)


def check_calls(part: RankTrace) -> None:
    """Raise UnknownMeasureError where there are no runtime calls."""
    if is_without_gpu(part):
        raise UnknownMeasureError(_NO_GPU)
    if not has_runtime_calls(part):
        raise UnknownMeasureError(NO_CALLS)


def launches(part: RankTrace) -> CountedEvents:
    """Count calls that launch kernels or graphs, also those whose kernels were not recorded."""
    check_calls(part)
    return CountedEvents.of_rows(part, calls_of(part, KERNEL_LAUNCHES))


def allocator_calls(part: RankTrace) -> CountedEvents:
    """Count calls that take memory from the driver, or give it back."""
    check_calls(part)
    return CountedEvents.of_rows(part, calls_of(part, ALLOCATOR_CALLS))


def operators(part: RankTrace) -> CountedEvents:
    """Count all calls of operators."""
    rows = np.flatnonzero((part.table.kind == EventKind.CPU_OP) & part.table.complete)
    if not len(rows):
        raise UnknownMeasureError("the trace has no operators; record it with ProfilerActivity.CPU")
    return CountedEvents.of_rows(part, rows)


def recompiles(part: RankTrace) -> CountedEvents:
    """Count what was compiled again."""
    operators(part)
    rows = part.cached("recompiled", lambda: _core.recompiled_rows(part.table, part.tree))
    return CountedEvents.of_rows(part, rows)


def copied_bytes(part: RankTrace, direction: CopyDirection | None = None) -> CountedEvents:
    """Count the bytes of all copies, or of those of one direction."""
    if not len(part.tree.gpu_rows):
        raise UnknownMeasureError(
            "no GPU event is recorded, and copies with their sizes are GPU events; record with "
            "ProfilerActivity.CUDA, on a machine with a GPU"
        )
    copies = Copies(part)
    codes = copies.direction.codes
    chosen = np.flatnonzero(codes != 0 if direction is None else codes == direction)
    if direction is not None and (unknown := int((codes == CopyDirection.UNKNOWN).sum())):
        raise UnknownMeasureError(f"the direction of {unknown} copies is not recorded")
    sizes = copies.bytes[chosen]
    if (unsized := int(np.isnan(sizes).sum())) > 0:
        raise UnknownMeasureError(f"the sizes of {unsized} copies are not recorded")
    rows = copies.events.rows[chosen]
    order = np.argsort(host_times(part, rows), kind="stable")
    return CountedEvents(part, rows[order], sizes[order].astype(np.int64))


def peak_allocated_bytes(part: RankTrace) -> CountedEvents:
    """Count the bytes allocated on one device after each change; on the host if no other device
    has events."""
    events = MemoryEvents(part)
    if not len(events.rows):
        raise UnknownMeasureError(
            "the trace has no [memory] events; record it with profile_memory=True"
        )
    types = events.device_type.to_list()
    is_host = np.array([kind == "cpu" for kind in types], dtype=bool)
    chosen = is_host if is_host.all() else ~is_host
    known = ~np.ma.getmaskarray(events.allocated)
    if not known[chosen].all():
        raise UnknownMeasureError(
            "the trace says how much memory was taken, and not how much was held; torch says so "
            "since 1.12"
        )
    rows = events.rows[chosen].astype(np.int64)
    held = np.ma.getdata(events.allocated)[chosen].astype(np.int64)
    note = "of the host's memory, as no other device has events" if is_host.all() else ""
    return CountedEvents(part, rows, held, is_level=True, note=note)
