"""The events of a rank that a measure counts, with their sums in all and by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import cumulative, sum_by_index, total
from torchtraceap.errors import OptionError
from torchtraceap.tables.steps.iterations import counted_steps
from torchtraceap.trace.ranks import RankTrace

__all__ = ["CountedEvents", "UnknownMeasureError", "has_runtime_calls", "is_without_gpu"]


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
        """Each row counts once."""
        rows = np.sort(rows.astype(np.int64))
        return cls(part, rows, np.ones(len(rows), dtype=np.int64), note=note)

    def where(self, mask: Array) -> CountedEvents:
        """Some of them."""
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
        """int64 `[steps]`: the same for each step."""
        count = len(self.part.tree.steps)
        steps = self.part.tree.step[self.rows]
        known = steps != _core.NO_ROW
        if not self.is_level:
            return sum_by_index(steps[known], self.amounts[known], count)
        most = np.zeros(count, dtype=np.int64)
        np.maximum.at(most, steps[known], self.amounts[known])
        return most

    def row_beyond(self, most: float, *, at_it: bool = False) -> int | None:
        """The event with which the sum (the level) first exceeds a limit, or reaches it."""
        levels = self.amounts if self.is_level else cumulative(self.amounts)
        beyond = np.flatnonzero(levels >= most if at_it else levels > most)
        return int(self.rows[beyond[0]]) if len(beyond) else None


def host_times(part: RankTrace, rows: Array) -> Array:
    """int64: when each row starts on the host's clock; of GPU events their launch."""
    tree, table = part.tree, part.table
    launch = tree.launch[rows]
    is_linked = launch != _core.NO_ROW
    times = table.ts_ns[np.where(is_linked, launch, rows)].copy()
    alone = ~is_linked & (tree.gpu_class[rows] != _core.GpuClass.NONE)
    times[alone] += tree.launch_delay_correction_ns
    return times


def counted_places(part: RankTrace) -> list[int]:
    """Places of the counted steps among all."""
    return [int(place) for place in np.flatnonzero(counted_steps(part))]
