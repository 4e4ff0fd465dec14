"""DOC"""

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
from torchtraceap.tables.ops.calls import Calls, GpuCalls, KindOfCall, union_by
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Collective", "GpuWork", "Kind", "between_neighbours", "leave_one_out", "own_estimates"]


_MOST_BLOCKS, _AXES = 2**31, 3  # along one axis of any grid
_SPECIAL = (_core.GpuClass.MEMCPY, _core.GpuClass.COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Collective:
    """What a trace says of a collective."""

    kind: str
    size: int | None
    ranks: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Units that do the same."""

    name: str
    """Of the operator, else of the launch, else of the GPU event."""
    family: str
    kernel: str
    """Name of the first kernel."""
    kernels: int
    """GPU events of a unit."""
    call: KindOfCall | None
    """With known work; None for single events."""
    threads: float
    """Of the event's grid; NaN where not recorded."""
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
        self._is_call = self._calls.has_work[row] & ~special
        own = np.arange(len(row))
        groups = Groups(
            np.where(self._is_call, on_gpu.event_call, -1), np.where(self._is_call, -1, own)
        )
        self.unit: Array = groups.index
        self._first: Array = groups.first
        self._call_row = np.where(self._is_call, row, -1)[groups.first]
        self._kernels = groups.count
        start, length = self.events.start_ns, self.events.duration_ns
        self.start_ns: Array = groups.minimum(start)
        self.ns: Array = union_by(self.unit, len(groups), start, start + length)
        self._groups = self._alike()
        self.kind: Array = self._groups.index

    def __len__(self) -> int:
        return len(self.ns)

    def _alike(self) -> Groups:
        """Units by what they do."""
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
            self._copy_codes[self._first],
            self._collective_codes[self._first],
        ]
        keys = [np.where(is_call, -1, column) for column in alone]
        return Groups(call, np.where(is_call, self._kernels, 1), *keys)

    @cached_property
    def kinds(self) -> list[Kind]:
        """Every kind, in order of its first unit."""
        return [self._kind(int(unit)) for unit in self._groups.first.tolist()]

    def _kind(self, unit: int) -> Kind:
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
        collective = self._collectives.get(int(self.events.rows[event]))
        copy = self._copies[int(self._copy_codes[event])] if self._copy_codes[event] >= 0 else None
        if copy is not None:
            family = "memory_set" if copy[0] == "memset" else "copy"
        if self.events.gpu_class.codes[event] == _core.GpuClass.COMMUNICATION:
            family = "communication"
        threads = float(self._threads[event])
        return Kind(name or kernel, family, kernel, 1, None, threads, copy, collective)

    @cached_property
    def _threads(self) -> Array:
        """float64 `[events]`: threads of the grid, NaN where not recorded."""
        sizes = [
            np.array([*(_product(text) for text in column.texts), np.nan])[column.codes]
            for column in (self.events.json_arg("grid"), self.events.json_arg("block"))
        ]
        threads: Array = sizes[0] * sizes[1]
        return threads

    @cached_property
    def _copy_kinds(self) -> tuple[Array, list[tuple[str, str, float]]]:
        """Code of each event, -1 for kernels; direction, host memory and bytes of each code."""
        copies = Copies(self._part)
        codes = np.full(len(self.events), -1, dtype=np.int64)
        sizes = np.nan_to_num(copies.bytes, nan=-1.0).astype(np.int64)
        groups = Groups(
            copies.direction.codes.astype(np.int64),
            copies.host_memory.codes.astype(np.int64),
            sizes,
        )
        codes[copies.events.places] = groups.index
        direction, memory = copies.direction, copies.host_memory
        found = []
        for first in groups.first.tolist():
            side = memory.codes[first]
            size = float(copies.bytes[first])
            found.append((direction.texts[direction.codes[first]],
                          memory.texts[side] if side >= 0 else "", size))  # fmt: skip
        return codes, found

    @property
    def _copy_codes(self) -> Array:
        return self._copy_kinds[0]

    @property
    def _copies(self) -> list[tuple[str, str, float]]:
        return self._copy_kinds[1]

    @cached_property
    def _collectives(self) -> dict[int, Collective]:
        """By row of the GPU event."""
        part = self._part
        found = _core.collectives([(part.table, part.tree, part.rank)])
        if not len(found.row):
            return {}
        names, dtypes, groups = _core.collective_kind_names(), found.dtypes, found.groups
        sizes = [groups[group].size or len(groups[group].ranks) for group in found.group.tolist()]
        return {
            row: Collective(names[kind], None if size == _core.NO_ID else size, ranks, dtype)
            for row, kind, size, ranks, dtype in zip(
                found.row.tolist(), found.kind.tolist(), found.bytes.tolist(), sizes, dtypes,
                strict=True,
            )
        }  # fmt: skip

    @cached_property
    def _collective_codes(self) -> Array:
        """int64 `[events]`: the same for collectives that are alike, -1 for other events."""
        numbers: dict[Collective, int] = {}
        codes = np.full(len(self.events), -1, dtype=np.int64)
        for place, row in enumerate(self.events.rows.tolist()):
            if (found := self._collectives.get(row)) is not None:
                codes[place] = numbers.setdefault(found, len(numbers))
        return codes

    @cached_property
    def canonical(self) -> list[str]:
        """`[kinds]`: canonical name of the first kernel."""
        return [canonical_name(kind.kernel) for kind in self.kinds]


def _product(text: str) -> float:
    """Of the three sizes of a grid or block; NaN where they are none."""
    try:
        sizes = json.loads(text)
        whole = isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    except (ValueError, RecursionError):
        return math.nan
    if not whole or not all(0 < size <= _MOST_BLOCKS for size in sizes):
        return math.nan
    return float(math.prod(sizes)) if len(sizes) <= _AXES else math.nan


FloatArray = npt.NDArray[np.float64]

_GROWTH = 0.7


@dataclass(frozen=True, slots=True)
class _Level:
    """A way to say what is alike."""

    says: str
    usual: float
    """Deviation of the logarithm that is usual within such a group: stated, not fitted."""
    weight: float
    """How many members that counts as."""


_KIND = _Level("other calls of the same kernel, launched alike, in this trace", 0.15, 3.0)
_NAME = _Level("kernels of the same name in this trace, by the size of their grids", 0.7, 5.0)
_FAMILY = _Level("kernels of the same family in this trace, by the size of their grids", 1.2, 5.0)
_NOTHING = "nothing else in the trace is like it"


def own_estimates(work: GpuWork, known: Array | None = None) -> Estimates:
    """Times of units by others of their rank; NaN where no other is of the family.

    Args:
        work: The units.
        known: bool `[units]`: only these may be looked at; by default all.
    """
    usable = work.ns > 0 if known is None else known & (work.ns > 0)
    log_ns = np.log(np.maximum(work.ns, 1).astype(np.float64))
    middle, spread, others = leave_one_out(work.kind, log_ns, usable)
    estimates = _estimates(_KIND, middle, spread, others)
    for level, group in ((_NAME, _names(work)), (_FAMILY, _families(work))):
        estimates = _where_missing(estimates, _scaled(work, level, group, log_ns, usable))
    return estimates


def _names(work: GpuWork) -> list[str]:
    return [f"{kind.name} {name}" for kind, name in zip(work.kinds, work.canonical, strict=True)]


def _families(work: GpuWork) -> list[str]:
    return [
        f"{kind.family} {kind.copy[0] if kind.copy else ''}" if kind.family != "other" else ""
        for kind in work.kinds
    ]


def _scaled(
    work: GpuWork, level: _Level, names: list[str], log_ns: Array, usable: Array
) -> Estimates:
    """From other kinds of a group: each counts once, by the median of its units."""
    if not names:
        return _estimates(level, np.empty(0), np.empty(0), np.empty(0))
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    sizes = np.array([_size(kind.threads, kind.copy) for kind in work.kinds])
    has_size = np.isfinite(sizes)
    group = np.array([codes[name] for name in names]) * 2 + has_size
    log_size = np.log(np.where(has_size, sizes, 1.0))
    times, present = _medians(work, log_ns, usable)
    present &= np.array([name != "" for name in names])
    growth = _GROWTH * log_size
    middle, spread, others = leave_one_out(group, times - growth, present)
    middle = middle + growth
    if level is _NAME:
        near = between_neighbours(group, log_size, times, present)
        middle = np.where(has_size, near, middle)
        spread = np.where(has_size, _spread(group, times - near, present), spread)
    others = np.where([name != "" for name in names], others, 0)
    return _estimates(level, middle[work.kind], spread[work.kind], others[work.kind])


def _medians(work: GpuWork, log_ns: Array, usable: Array) -> tuple[FloatArray, Array]:
    """Of the usable units of each kind; and which kinds have such."""
    seen = np.flatnonzero(usable)
    of_kind = Groups(work.kind[seen])
    times, present = np.zeros(len(work.kinds)), np.zeros(len(work.kinds), dtype=bool)
    first = work.kind[seen][of_kind.first]
    times[first], present[first] = of_kind.median(log_ns[seen]), True
    return times, present


def between_neighbours(
    group: Array, log_size: FloatArray, values: FloatArray, known: Array
) -> FloatArray:
    """For each item the value between those of the known others next to it in size.

    Beyond the smallest and the largest other it grows with the power `_GROWTH` of the size.

    Args:
        group: int64 `[n]`.
        log_size: float64 `[n]`, as the next: logarithms.
        values: Of times.
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


def _size(threads: float, copy: tuple[str, str, float] | None) -> float:
    size = copy[2] if copy is not None else threads
    return size if size > 0 else float("nan")


def leave_one_out(
    group: Array, values: FloatArray, known: Array
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each item the median of the known others of its group.

    Args:
        group: int64 `[n]`.
        values: float64 `[n]`.
        known: bool `[n]`: may be looked at for others.

    Returns:
        float64 `[n]` each: the median (NaN without others); the deviation within the group, from
        the 80 % of members nearest to the median of their others; how many others there are.
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
    low, high = (
        sorted_values[_skipping(np.maximum(at, 0), place, starts[group], others)]
        for at in ((others - 1) // 2, others // 2)
    )
    middle = (low + high) / 2.0
    return middle, _spread(group, values - middle, known & (others > 0)), others.astype(np.float64)


def _spread(group: Array, off: FloatArray, known: Array) -> FloatArray:
    """Deviation within the group of each item, from the 80 % of known members that are off least;
    0 where nobody tells."""
    spread = np.zeros(int(group.max(initial=-1)) + 1)
    told = np.flatnonzero(known & np.isfinite(off))
    if len(told):
        groups = Groups(group[told])
        spread[group[told][groups.first]] = groups.quantile(np.abs(off[told]), 0.8) / TAIL
    return spread[group]


def _skipping(at: Array, place: Array, start: Array, others: Array) -> Array:
    """Where the `at`-th of a group's sorted members lies if the one at `place` is left out."""
    index: Array = start + at + (at >= place)
    return np.where(others > 0, index, -1)


def _estimates(
    level: _Level, middle: FloatArray, spread: FloatArray, others: FloatArray
) -> Estimates:
    variance = (level.weight * level.usual**2 + others * spread**2) / (level.weight + others)
    doubt = np.where(others > 0, 1.0 + 1.0 / np.maximum(others, 1.0), np.nan)
    factor = np.exp(TAIL * np.sqrt(variance * doubt))
    return Estimates.within_factor(np.exp(np.where(others > 0, middle, np.nan)), factor, level.says)


def _where_missing(first: Estimates, second: Estimates) -> Estimates:
    """The second where the first has none."""
    return Estimates.choose(np.where(np.isfinite(first.ns), 0, 1), [first, second])
