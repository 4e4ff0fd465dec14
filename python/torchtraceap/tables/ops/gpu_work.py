"""A rank's GPU work as units whose time can be estimated, and what its own kernels say of each
other.

A unit is a call of an operator whose work is known, with all its kernels; else a single GPU event.
Copies, memsets and collectives are always units of their own. Units of one *kind* do the same: the
same operator with the same arguments, or the same kernel with the same launch from the same call.

Note [Own kernels]: an event is estimated from others of its trace, never from itself: from those of
its kind (the same kernel, launch and call), else from kernels of that name, else from its family.
Between two launches of a kernel the time is between theirs, as the threads of the grid are; beyond
them, and between kernels of a family, it is taken to grow with the threads to the power `_GROWTH`,
between the two ends that occur: a kernel that waits for memory (1) and one that fits the device at
once (0). How far others of a group are off each other gives the interval; where they are
few, what is usual in such groups counts as so many more of them (`_Level`).
"""

from __future__ import annotations

import json
import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.ops.durations.calibration import TAIL
from torchtraceap.ops.durations.estimate import Estimates
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models import family_of
from torchtraceap.ops.models.arguments import OpCall
from torchtraceap.tables.gpu.copies import Copies
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import Calls, GpuCalls, KindOfCall
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Collective", "GpuWork", "Kind", "between_neighbours", "leave_one_out", "own_estimates"]

FloatArray = npt.NDArray[np.float64]

_MOST_BLOCKS, _AXES = 2**31, 3  # along one axis of any grid
_SPECIAL = (_core.GpuClass.MEMCPY, _core.GpuClass.COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as a trace describes it."""

    kind: str
    size: int | None
    ranks: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Units that do the same."""

    name: str
    """The name of the operator, else of the launch, else of the GPU event."""
    family: str
    kernel: str
    """The name of the first kernel."""
    kernels: int
    """The number of GPU events of a unit."""
    call: KindOfCall | None
    """The call with known work; None for single events."""
    threads: float
    """The threads of the event's grid; NaN where not recorded."""
    copy: tuple[str, str, float] | None
    """Direction, host memory and bytes (NaN where not recorded) of a copy or memset."""
    collective: Collective | None

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for such units of another trace."""
        texts = (*self.call.texts, self.call.batch) if self.call is not None else ()
        return self.name, self.kernel, self.kernels, texts, self.threads, self.copy, self.collective

    @property
    def op_call(self) -> OpCall | None:
        """The call as models take it; None where its work is not known."""
        if self.call is None:
            return None
        return OpCall(self.call.name, *self.call.texts, self.call.kernels, self.call.batch)


class GpuWork:
    """The units of a rank, by their first GPU event.

    Attributes:
        ns: int64 `[units]`: time on the GPU; of several kernels the union.
        start_ns: int64 `[units]`.
        kind: int64 `[units]`: index in `kinds`.
        unit: int64 `[events]`: unit of each of `tree.gpu_rows`.
    """

    def __init__(self, part: RankTrace) -> None:
        self._part = part
        self._calls = Calls(part, None)
        on_gpu = GpuCalls(part, self._calls)
        self.events = GpuEvents.of(part)
        special = np.isin(self.events.gpu_class.codes, _SPECIAL)
        special |= part.table.kind[self.events.rows] == _core.EventKind.GPU_MEMSET
        row = np.minimum(on_gpu.rows, len(part.table))[on_gpu.event_call]
        is_call = self._calls.has_work[row] & ~special
        own = np.arange(len(row))
        units = Groups(np.where(is_call, on_gpu.event_call, -1), np.where(is_call, -1, own))
        self.unit: Array = units.index
        self._first: Array = units.first
        self._call_row = np.where(is_call, row, -1)[units.first]
        self._kernels = units.count
        self.start_ns: Array = units.minimum(self.events.start_ns)
        unit_of = self.unit.astype(np.int32)
        self.ns: Array = _core.gpu_union_by_group(part.table, part.tree, unit_of, len(units))
        self._copy_of, self._copies = self._find_copies()
        self._collective_of, self._collectives = self._find_collectives()
        self._groups = self._group_by_work()
        self.kind: Array = self._groups.index

    def __len__(self) -> int:
        return len(self.ns)

    def _group_by_work(self) -> Groups:
        part, events = self._part, self.events
        kind_of_row = np.full(len(part.table) + 1, -1, dtype=np.int64)
        kind_of_row[self._calls.rows] = self._calls.group
        is_call = self._call_row >= 0
        call = np.where(is_call, kind_of_row[np.where(is_call, self._call_row, 0)], -1)
        owner = np.minimum(events.owner.astype(np.int64), len(part.table))[self._first]
        alone = [
            events.name[self._first],
            kind_of_row[owner],
            events.json_arg("grid").codes[self._first].astype(np.int64),
            events.json_arg("block").codes[self._first].astype(np.int64),
            self._copy_of[self._first],
            self._collective_of[self._first],
        ]
        keys = [np.where(is_call, -1, column) for column in alone]
        return Groups(call, np.where(is_call, self._kernels, 1), *keys)

    @cached_property
    def kinds(self) -> list[Kind]:
        """Every kind, in order of its first unit."""
        grid, block = (
            np.array([*map(_product, column.texts), np.nan])[column.codes]
            for column in (self.events.json_arg("grid"), self.events.json_arg("block"))
        )
        threads = grid * block
        return [self._kind(int(unit), threads) for unit in self._groups.first.tolist()]

    def _kind(self, unit: int, threads: FloatArray) -> Kind:
        event = int(self._first[unit])
        kernel = self.events.texts[int(self.events.name[event])]
        row = int(self._call_row[unit])
        if row >= 0:
            call = self._calls.kind_of(row)
            family = family_of(call.name, call.kernels)
            return Kind(call.name, family, kernel, int(self._kernels[unit]), call, np.nan, None,
                        None)  # fmt: skip
        owner = int(self.events.owner[event])
        name = self.events.texts[int(self._part.table.name[owner])] if owner != _core.NO_ROW else ""
        family = family_of(name, [kernel])
        if family == "graph":  # a launch of many: each has a family of its own
            family = family_of("", [kernel])
        copy: tuple[str, str, float] | None = None
        collective: Collective | None = None
        if self._copy_of[event] >= 0:
            copy = self._copies[int(self._copy_of[event])]
            family = "memory_set" if copy[0] == "memset" else "copy"
        if self._collective_of[event] >= 0:
            collective = self._collectives[int(self._collective_of[event])]
        if self.events.gpu_class.codes[event] == _core.GpuClass.COMMUNICATION:
            family = "communication"
        grid_threads = float(threads[event])
        return Kind(name or kernel, family, kernel, 1, None, grid_threads, copy, collective)

    def _find_copies(self) -> tuple[Array, list[tuple[str, str, float]]]:
        """Return the copy of each event, int64 `[events]`, -1 for kernels; and direction, host
        memory and bytes of each."""
        copies = Copies(self._part)
        direction, memory = copies.direction, copies.host_memory
        groups = Groups(
            direction.codes.astype(np.int64),
            memory.codes.astype(np.int64),
            np.nan_to_num(copies.bytes, nan=-1.0).astype(np.int64),
        )
        codes = np.full(len(self.events), -1, dtype=np.int64)
        codes[copies.events.places] = groups.index
        first = groups.first
        directions, memories = direction.take(first).to_list(), memory.take(first).to_list()
        sides = [side or "" for side in memories]
        return codes, list(zip(directions, sides, copies.bytes[first].tolist(), strict=True))

    def _find_collectives(self) -> tuple[Array, list[Collective]]:
        """Return the collective of each event, int64 `[events]`, -1 for others; and what they are:
        those that are alike are one."""
        part = self._part
        codes = np.full(len(self.events), -1, dtype=np.int64)
        found = _core.collectives([(part.table, part.tree, part.rank)])
        if not len(found.row):
            return codes, []
        names, groups = _core.collective_kind_names(), found.groups
        place_of = {row: place for place, row in enumerate(self.events.rows.tolist())}
        by_place: dict[int, Collective] = {}
        for row, kind, size, group, dtype in zip(
            found.row.tolist(), found.kind.tolist(), found.bytes.tolist(), found.group.tolist(),
            found.dtypes, strict=True,
        ):  # fmt: skip
            if row in place_of:
                ranks = groups[group].size or len(groups[group].ranks)
                known = None if size == _core.NO_ID else size
                by_place[place_of[row]] = Collective(names[kind], known, ranks, dtype)
        numbers: dict[Collective, int] = {}
        for place in sorted(by_place):
            codes[place] = numbers.setdefault(by_place[place], len(numbers))
        return codes, list(numbers)


def _product(text: str) -> float:
    """Return the product of the sizes of a grid or block; NaN where they are none."""
    try:
        sizes = json.loads(text)
        whole = isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    except (ValueError, RecursionError):
        return math.nan
    if not whole or not all(0 < size <= _MOST_BLOCKS for size in sizes):
        return math.nan
    return float(math.prod(sizes)) if len(sizes) <= _AXES else math.nan


# ------------------------------------------------------------------------------- own kernels

_GROWTH = 0.7

_Level = tuple[str, float, float]
"""A way to say what is alike: in words, with the deviation of the logarithm that is usual within
such a group (stated, not fitted), and how many members that counts as."""

_KIND: _Level = ("other calls of the same kernel, launched alike, in this trace", 0.15, 3.0)
_NAME: _Level = ("kernels of the same name in this trace, by the size of their grids", 0.7, 5.0)
_FAMILY: _Level = ("kernels of the same family in this trace, by the size of their grids", 1.2, 5.0)


def own_estimates(work: GpuWork, known: Array | None = None) -> Estimates:
    """Estimate the times of units by others of their rank; NaN where no other is of the family.

    Args:
        work: The units.
        known: bool `[units]`: only these may be looked at; by default all.
    """
    usable = work.ns > 0 if known is None else known & (work.ns > 0)
    log_ns = np.log(np.maximum(work.ns, 1).astype(np.float64))
    estimates = _estimates(_KIND, *leave_one_out(work.kind, log_ns, usable))
    names = [f"{kind.name} {canonical_name(kind.kernel)}" for kind in work.kinds]
    families = [
        f"{kind.family} {kind.copy[0] if kind.copy else ''}" if kind.family != "other" else ""
        for kind in work.kinds
    ]
    for level, group in ((_NAME, names), (_FAMILY, families)):
        found = _by_size(work, level, group, log_ns, usable)
        missing = np.where(np.isfinite(estimates.ns), 0, 1)
        estimates = Estimates.choose(missing, [estimates, found])
    return estimates


def _by_size(
    work: GpuWork, level: _Level, names: list[str], log_ns: Array, usable: Array
) -> Estimates:
    """Estimate units from other kinds of a group: each counts once, by the median of its units."""
    if not names:
        return _estimates(level, np.empty(0), np.empty(0), np.empty(0))
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    sizes = np.array([kind.threads if kind.copy is None else kind.copy[2] for kind in work.kinds])
    has_size = sizes > 0
    group = np.array([codes[name] for name in names]) * 2 + has_size
    log_size = np.log(np.where(has_size, sizes, 1.0))
    # The median of the usable units of each kind.
    seen = np.flatnonzero(usable)
    of_kind = Groups(work.kind[seen])
    times, present = np.zeros(len(names)), np.zeros(len(names), dtype=bool)
    first = work.kind[seen][of_kind.first]
    times[first], present[first] = of_kind.median(log_ns[seen]), True
    named = np.array([name != "" for name in names])
    present &= named
    growth = _GROWTH * log_size
    middle, spread, others = leave_one_out(group, times - growth, present)
    middle = middle + growth
    if level is _NAME:
        near = between_neighbours(group, log_size, times, present)
        middle = np.where(has_size, near, middle)
        spread = np.where(has_size, _spread(group, times - near, present), spread)
    others = np.where(named, others, 0)
    return _estimates(level, middle[work.kind], spread[work.kind], others[work.kind])


def between_neighbours(
    group: Array, log_size: FloatArray, values: FloatArray, known: Array
) -> FloatArray:
    """Return for each item the value between those of the known others next to it in size.

    Beyond the smallest and the largest other it grows with the power `_GROWTH` of the size.

    Args:
        group: int64 `[n]`.
        log_size: float64 `[n]`, as the next: logarithms.
        values: float64 `[n]`, of times.
        known: bool `[n]`: may be looked at for others.

    Returns:
        float64 `[n]`, NaN without others.
    """
    order = np.lexsort((log_size, group))
    count = len(order)
    if not count:
        return np.empty(0)
    group, size, value, usable = group[order], log_size[order], values[order], known[order]
    at = np.arange(count)
    last = np.maximum.accumulate(np.where(usable, at, -1))
    following = np.minimum.accumulate(np.where(usable, at, count)[::-1])[::-1]
    below, above = np.append(-1, last[:-1]), np.append(following[1:], count)
    has_below = (below >= 0) & (group[np.maximum(below, 0)] == group)
    has_above = (above < count) & (group[np.minimum(above, count - 1)] == group)
    below, above = np.maximum(below, 0), np.minimum(above, count - 1)
    up, down = size - size[below], size[above] - size
    share = np.where(up + down > 0, up / np.where(up + down > 0, up + down, 1.0), 0.5)
    inside = value[below] + share * (value[above] - value[below])
    beyond = np.where(has_below, value[below] + _GROWTH * up, value[above] - _GROWTH * down)
    found = np.where(has_below & has_above, inside, beyond)
    result = np.empty(count)
    result[order] = np.where(has_below | has_above, found, np.nan)
    return result


def leave_one_out(
    group: Array, values: FloatArray, known: Array
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return for each item the median of the known others of its group.

    Args:
        group: int64 `[n]`.
        values: float64 `[n]`.
        known: bool `[n]`: may be looked at for others.

    Returns:
        float64 `[n]` each: the median (NaN without others); the deviation within the group, from
        the 80 % of members nearest to the median of their others; the number of others.
    """
    count = len(group)
    order = np.lexsort((values, group))
    order = order[known[order]]
    sizes = np.bincount(group[order], minlength=int(group.max(initial=-1)) + 1)
    starts = np.cumsum(sizes) - sizes
    place = np.full(count, count, dtype=np.int64)
    place[order] = np.arange(len(order)) - starts[group[order]]
    others = sizes[group] - known
    sorted_values = np.append(values[order], np.nan)
    middle = np.zeros(count)
    for at in ((others - 1) // 2, others // 2):
        # Where the `at`-th of a group's sorted members lies if the one at `place` is left out.
        index = np.maximum(at, 0) + (np.maximum(at, 0) >= place) + starts[group]
        middle += sorted_values[np.where(others > 0, index, -1)]
    middle /= 2.0
    return middle, _spread(group, values - middle, known & (others > 0)), others.astype(np.float64)


def _spread(group: Array, off: FloatArray, known: Array) -> FloatArray:
    """Return the deviation within the group of each item, from the 80 % of known members that are
    off least; 0 where nobody tells."""
    spread = np.zeros(int(group.max(initial=-1)) + 1)
    told = np.flatnonzero(known & np.isfinite(off))
    if len(told):
        groups = Groups(group[told])
        spread[group[told][groups.first]] = groups.quantile(np.abs(off[told]), 0.8) / TAIL
    return spread[group]


def _estimates(
    level: _Level, middle: FloatArray, spread: FloatArray, others: FloatArray
) -> Estimates:
    says, usual, weight = level
    variance = (weight * usual**2 + others * spread**2) / (weight + others)
    doubt = np.where(others > 0, 1.0 + 1.0 / np.maximum(others, 1.0), np.nan)
    factor = np.exp(TAIL * np.sqrt(variance * doubt))
    return Estimates.within_factor(np.exp(np.where(others > 0, middle, np.nan)), factor, says)
