"""Calls of operators with what they compute, and which GPU events count for which of them.

Every GPU event goes to the innermost operator above it that has a model, so that none counts
twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import distinct
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import sum_by_index
from torchtraceap.ops.models import BATCH, Work, family_of, model_of
from torchtraceap.ops.models.registry import cached_work_of
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = ["MOST_KERNELS", "Calls", "GpuCalls", "KindOfCall", "Texts", "reason_of", "union_by"]

Texts = tuple[str | None, str | None, str | None, str | None]
"""Of `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs`."""
MOST_KERNELS = 8
"""Names of kernels that are kept of a call."""
_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_NO_ROW = np.uint32(_core.NO_ROW)
# Work of an operator that these alone stand below is still its own: they only prepare it.
_HELPERS = ("copy", "memory_set", "view", "padding")


@dataclass(frozen=True, slots=True)
class KindOfCall:
    """One kind of call: operators of one name with the same arguments."""

    name: str
    texts: Texts
    kernels: tuple[str, ...]
    work: Work | None
    why_not: str
    """What the model says where there is no work; `reason_of` for a person."""
    batch: str | None = None
    """The range in which a serving engine says what it works on, for models that ask for it."""


def reason_of(kind: KindOfCall) -> str:
    """Why the work of a call is not known; empty where it is."""
    if kind.work is None and family_of(kind.name) == "communication":
        return "communication: see the table of collectives"
    return kind.why_not


class Calls:
    """Operator rows grouped by name and arguments, with one evaluation of the model per group.

    Attributes:
        rows: Rows of operators that launched GPU work; all operators where none did.
        group: int64 `[rows]`: index in `kinds`.
        has_work: bool `[n events]`: rows whose model gave numbers, as far as they count.
    """

    def __init__(self, part: RankTrace, compat: str | None = None) -> None:
        self.part = part
        table = part.table
        is_op = table.kind == _core.EventKind.CPU_OP
        launched = part.costs.subtree_gpu_events > 0
        self.gpu = bool(np.any(is_op & launched)) or len(part.tree.gpu_rows) > 0
        self.strings, self._names = table.strings, table.name
        self.rows: Array = np.flatnonzero(is_op & launched if self.gpu else is_op)
        self._columns = [table.text_codes(key, rows=self.rows) for key in _KEYS]
        codes = [column[0].astype(np.int64) for column in self._columns]
        self._batch = _names_of_batches(part, self.rows)
        self.groups = Groups(table.name[self.rows].astype(np.int64), *codes, self._batch)
        self.group = self.groups.index
        self._owned = _names_by_owner(part, self.strings, self.rows[self.groups.first])
        self.kinds = self._kinds(compat)
        self.has_work = np.zeros(len(table) + 1, dtype=bool)
        if len(self.rows):
            known = np.array([kind.work is not None for kind in self.kinds])
            self.has_work[self.rows[known[self.group]]] = True
            self._drop_wrappers()

    def _kinds(self, compat: str | None) -> list[KindOfCall]:
        first = self.groups.first
        rows = self.rows[first].tolist()
        names = [self.strings[code] for code in self._names[self.rows[first]].tolist()]
        columns = (_texts_at(codes[first], texts) for codes, texts in self._columns)
        texts: list[Texts] = list(zip(*columns, strict=True))
        batches = _texts_at(self._batch[first], self.strings)
        kinds = []
        for row, name, given, batch in zip(rows, names, texts, batches, strict=True):
            kernels = self._owned.get(row, ())
            if compat is None:
                work, why_not = cached_work_of(name, *given, kernels, batch)
            else:
                work, why_not = _tracelens_work(name, *given)
            kinds.append(KindOfCall(name, given, kernels, work, why_not, batch))
        return kinds

    def kind_of(self, row: int) -> KindOfCall:
        """The kind of an operator's row, one of `rows`."""
        return self.kinds[int(self.group[np.searchsorted(self.rows, row)])]

    def _drop_wrappers(self) -> None:
        """A composite operator counts only where no other modelled work stands below it."""
        names = {kind.name for kind in self.kinds if kind.work is not None}
        composites = {name for name in names if _is_composite(name)}
        if not composites:
            return
        helpers = {name for name in names if family_of(name) in _HELPERS}
        composite = np.array([kind.name in composites for kind in self.kinds])
        helper = np.array([kind.name in helpers for kind in self.kinds])
        doers = self.rows[~helper[self.group] & self.has_work[self.rows]]
        wraps = _ancestors(self.part.tree.parent, doers)
        self.has_work[self.rows[composite[self.group] & wraps[self.rows]]] = False


def _texts_at(codes: Array, texts: Sequence[str]) -> list[str | None]:
    """Texts by code; None for -1."""
    known = [*texts, None]
    return [known[code] for code in codes.tolist()]


def _names_of_batches(part: RankTrace, rows: Array) -> Array:
    """int64 `[rows]`: name of the range around an operator that says what an engine works on.

    -1 for operators whose model does not ask for it, and outside of such ranges.
    """
    table = part.table
    result = np.full(len(rows), -1, dtype=np.int64)
    asks = np.zeros(len(table.strings), dtype=bool)
    for name in distinct(table.name[rows]).tolist():
        entry = model_of(table.strings[name])
        asks[name] = entry is not None and entry.needs_batch
    places = np.flatnonzero(asks[table.name[rows]])
    if not len(places):
        return result
    says = np.array([BATCH.search(text) is not None for text in table.strings], dtype=bool)
    above = _core.innermost_marked(table, part.tree, says[table.name])[rows[places]]
    found = above != _NO_ROW
    result[places[found]] = table.name[above[found]]
    return result


def _is_composite(name: str) -> bool:
    entry = model_of(name)
    return entry is not None and entry.composite


def _ancestors(parent: Array, rows: Array) -> Array:
    """bool `[n + 1]`: rows that stand above some of `rows`."""
    above = np.zeros(len(parent) + 1, dtype=bool)
    current = distinct(parent[rows]) if len(rows) else rows
    while len(current := current[current != _NO_ROW]):
        current = current[~above[current]]
        above[current] = True
        current = distinct(parent[current])
    return above


def _names_by_owner(
    part: RankTrace, strings: Sequence[str], rows: Array
) -> dict[int, tuple[str, ...]]:
    """Distinct names of the GPU events that each of some rows owns, the first few."""
    wanted = np.zeros(len(part.table) + 1, dtype=bool)
    wanted[rows] = True
    events = part.tree.gpu_rows
    owners = np.minimum(part.costs.owner[events].astype(np.int64), len(part.table))
    events, owners = events[wanted[owners]], owners[wanted[owners]]
    pairs = Groups(owners, part.table.name[events].astype(np.int64)).first
    found: dict[int, list[str]] = {}
    names = part.table.name[events[pairs]]
    for owner, name in zip(owners[pairs].tolist(), names.tolist(), strict=True):
        listed = found.setdefault(owner, [])
        if len(listed) < MOST_KERNELS:
            listed.append(strings[name])
    return {owner: tuple(listed) for owner, listed in found.items()}


def _tracelens_work(
    name: str, dims: str | None, types: str | None, strides: str | None, concrete: str | None
) -> tuple[Work | None, str]:
    from torchtraceap.ops.models.tracelens.registry import compat_work

    found = compat_work(name, dims, types, strides, concrete)
    if found is None:
        return None, "TraceLens has no model for this call"
    flops, moved = found
    return Work(flops, float("nan") if moved is None else moved, 0, dtype=""), ""


class GpuCalls:
    """GPU events by the call that they are counted for.

    Attributes:
        first_event: Row of the first event of each call.
        rows: int64 `[calls]`: rows of the calls; launches where no operator is above them.
            Events without a launch are calls of their own, numbered behind the last row.
        gpu_ns: int64 `[calls]`: union of the events of each call.
        exclusive_ns: int64 `[calls]`: their part of the busy time.
        events: Rows of the events, `event_call` the call of each.
    """

    def __init__(self, part: RankTrace, calls: Calls) -> None:
        self.events = part.tree.gpu_rows.astype(np.int64)
        target = _modelled_above(part, self.events, calls.has_work)
        unlaunched = np.flatnonzero(target == _NO_ROW)
        target[unlaunched] = len(part.table) + unlaunched
        self.rows, first, self.event_call = np.unique(
            target, return_index=True, return_inverse=True
        )
        self.first_event = self.events[first]
        table = part.table
        starts = table.ts_ns[self.events]
        ends = starts + table.dur_ns[self.events]
        self.gpu_ns = union_by(self.event_call, len(self.rows), starts, ends)
        self.exclusive_ns = sum_by_index(
            self.event_call, part.costs.exclusive_ns[self.events], len(self.rows)
        )
        self.count = np.bincount(self.event_call, minlength=len(self.rows))


def _modelled_above(part: RankTrace, events: Array, has_work: Array) -> Array:
    """For each event the innermost row with a model at or above its owner, else the owner."""
    target = part.costs.owner[events].astype(np.int64)
    owned = np.flatnonzero(target != _NO_ROW)
    modelled = _core.innermost_marked(part.table, part.tree, has_work[:-1])[target[owned]]
    target[owned] = np.where(modelled != _NO_ROW, modelled, target[owned])
    return target


def union_by(group: Array, groups: int, starts: Array, ends: Array) -> Array:
    """int64 `[groups]`: length of the union of the intervals of each group."""
    if not len(group):
        return np.zeros(groups, dtype=np.int64)
    order = np.lexsort((starts, group))
    group, starts, ends = group[order], starts[order], ends[order]
    # Each group is moved behind the one before, so that one running maximum serves all.
    origin = starts.min()
    span = int(ends.max() - origin) + 1
    first = np.flatnonzero(np.diff(group, prepend=-1))
    if span * (len(first) + 1) > 2**62:
        return _union_slowly(group, groups, starts, ends)
    shift = group.astype(np.int64) * span - origin
    reached = np.maximum.accumulate(ends + shift)
    before = np.concatenate([[0], reached[:-1]])
    covered = np.maximum(reached - np.maximum(starts + shift, before), 0)
    return sum_by_index(group, covered, groups)


def _union_slowly(group: Array, groups: int, starts: Array, ends: Array) -> Array:
    """For traces whose times span years (a damaged clock)."""
    total = np.zeros(groups, dtype=np.int64)
    reached, last = 0, -1
    for index, start, end in zip(group.tolist(), starts.tolist(), ends.tolist(), strict=True):
        reached = start if index != last else max(reached, start)
        total[index] += max(end - reached, 0)
        reached, last = max(reached, end), index
    return total
