"""A rank's GPU work as units whose time can be estimated, and which of them are alike.

A unit is a call of an operator whose work is known, with all its kernels; else a single GPU event.
Copies, memsets and collectives are always units of their own. Units of one *kind* do the same: the
same operator with the same arguments, or the same kernel with the same launch from the same call.
"""

from __future__ import annotations

import json
import math
from functools import cached_property
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models import family_of
from torchtraceap.ops.models.arguments import OpCall
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.gpu.memory import Copies
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import Calls, GpuCalls, KindOfCall, union_by
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Collective", "GpuWork", "Kind"]

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
