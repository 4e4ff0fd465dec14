"""Calls of operators with what they compute, and which GPU events count for which of them.

Every GPU event goes to the innermost operator above it that has a model, so that none counts
twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct, sum_by_index
from torchtraceap.ops.models import Work, family_of, lengths_of, model_of
from torchtraceap.ops.models.registry import cached_work_of
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "MOST_KERNELS",
    "Calls",
    "GpuCalls",
    "KindOfCall",
    "Texts",
    "kind_of_call",
    "names_of_batches",
    "reason_of",
]

Texts = tuple[str | None, str | None, str | None, str | None]
"""Texts of `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs`."""
MOST_KERNELS = 8
"""The most names of kernels that are kept of a call."""
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
    """The reason of the model where there is no work; `reason_of` for a person."""
    batch: str | None = None
    """The range in which a serving engine says what it works on, for models that ask for it."""


def reason_of(kind: KindOfCall) -> str:
    """Return why the work of a call is not known; empty where it is."""
    if kind.work is None and family_of(kind.name) == "communication":
        return "communication: see the table of collectives"
    return kind.why_not


def kind_of_call(
    name: str,
    texts: Texts,
    kernels: tuple[str, ...],
    batch: str | None,
    compat: str | None = None,
) -> KindOfCall:
    """Return a kind of call with the work that its model gives."""
    if compat is None:
        return KindOfCall(
            name, texts, kernels, *cached_work_of(name, *texts, kernels, batch), batch
        )
    from torchtraceap.ops.models.tracelens.registry import compat_work

    found = compat_work(name, *texts)
    if found is None:
        why_not = "TraceLens has no model for this call"
        return KindOfCall(name, texts, kernels, None, why_not, batch)
    flops, moved = found
    work = Work(flops, float("nan") if moved is None else moved, 0, dtype="")
    return KindOfCall(name, texts, kernels, work, "", batch)


class Calls:
    """Operator rows grouped by name and arguments, with one evaluation of the model per group.

    Attributes:
        rows: Rows of operators that launched GPU work; all operators where none did, or if not
            `launched_only`.
        group: int64 `[rows]`: index in `kinds`.
        has_work: bool `[n events]`: rows whose model gave numbers, as far as they count.
    """

    def __init__(
        self, part: RankTrace, compat: str | None = None, *, launched_only: bool = True
    ) -> None:
        self.part = part
        table = part.table
        is_op = table.kind == _core.EventKind.CPU_OP
        launched = part.costs.subtree_gpu_events > 0
        self.gpu = bool(np.any(is_op & launched)) or len(part.tree.gpu_rows) > 0
        self.strings, self._names = table.strings, table.name
        self.rows: Array = np.flatnonzero(is_op & launched if self.gpu and launched_only else is_op)
        self._columns = [table.text_codes(key, rows=self.rows) for key in _KEYS]
        codes = [column[0].astype(np.int64) for column in self._columns]
        self._batch = names_of_batches(part, self.rows)
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
        return [
            kind_of_call(name, given, self._owned.get(row, ()), batch, compat)
            for row, name, given, batch in zip(rows, names, texts, batches, strict=True)
        ]

    def kind_of(self, row: int) -> KindOfCall:
        """Return the kind of an operator's row, one of `rows`."""
        return self.kinds[int(self.group[np.searchsorted(self.rows, row)])]

    def _drop_wrappers(self) -> None:
        """Let a composite operator count only where no other modeled work stands below it."""
        names = {kind.name for kind in self.kinds if kind.work is not None}
        entries = ((name, model_of(name)) for name in names)
        composites = {name for name, entry in entries if entry is not None and entry.composite}
        if not composites:
            return
        helpers = {name for name in names if family_of(name) in _HELPERS}
        composite = np.array([kind.name in composites for kind in self.kinds])
        helper = np.array([kind.name in helpers for kind in self.kinds])
        doers = self.rows[~helper[self.group] & self.has_work[self.rows]]
        parent = self.part.tree.parent
        wraps = np.zeros(len(parent) + 1, dtype=bool)
        above = distinct(parent[doers]) if len(doers) else doers
        while len(above := above[above != _NO_ROW]):
            above = above[~wraps[above]]
            wraps[above] = True
            above = distinct(parent[above])
        self.has_work[self.rows[composite[self.group] & wraps[self.rows]]] = False


def _texts_at(codes: Array, texts: Sequence[str]) -> list[str | None]:
    """Return texts by code; None for -1."""
    known = [*texts, None]
    return [known[code] for code in codes.tolist()]


def names_of_batches(part: RankTrace, rows: Array) -> Array:
    """Return the name of the range around each operator that says what an engine works on.

    int64 `[rows]`; -1 for operators whose model does not ask for it, and outside of such ranges.
    """
    table = part.table
    result = np.full(len(rows), -1, dtype=np.int64)
    strings = table.strings
    asks = np.zeros(len(strings), dtype=bool)
    for name in distinct(table.name[rows]).tolist():
        entry = model_of(strings[name])
        asks[name] = entry is not None and entry.needs_batch
    places = np.flatnonzero(asks[table.name[rows]])
    if not len(places):
        return result
    marks = map(_core.read_iteration_name, strings)
    says = np.array([mark is not None and bool(lengths_of(mark)) for mark in marks], dtype=bool)
    above = _core.innermost_marked(table, part.tree, says[table.name])[rows[places]]
    found = above != _NO_ROW
    result[places[found]] = table.name[above[found]]
    return result


def _names_by_owner(
    part: RankTrace, strings: Sequence[str], rows: Array
) -> dict[int, tuple[str, ...]]:
    """Return the first distinct names of the GPU events that each of some rows owns."""
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


class GpuCalls:
    """GPU events by the call that they are counted for.

    Attributes:
        first_event: Row of the first event of each call.
        rows: int64 `[calls]`: rows of the calls; launches where no operator is above them.
            Events without a launch are calls of their own, numbered behind the last row, and
            behind these are calls that were recorded into a graph, from `first_replayed`.
        gpu_ns: int64 `[calls]`: union of the events of each call.
        exclusive_ns: int64 `[calls]`: their part of the busy time.
        events: Rows of the events, `event_call` the call of each.
    """

    def __init__(
        self, part: RankTrace, calls: Calls, replayed: tuple[Array, Array] | None = None
    ) -> None:
        """Join events with calls.

        Args:
            part: The rank.
            calls: Its operators.
            replayed: int64: index in `tree.gpu_rows` of replayed events, and the number of the
                captured call of each.
        """
        self.events = part.tree.gpu_rows.astype(np.int64)
        # The innermost row with a model at or above the owner, else the owner.
        target = part.costs.owner[self.events].astype(np.int64)
        owned = np.flatnonzero(target != _NO_ROW)
        marked = _core.innermost_marked(part.table, part.tree, calls.has_work[:-1])
        modeled = marked[target[owned]]
        target[owned] = np.where(modeled != _NO_ROW, modeled, target[owned])
        unlaunched = np.flatnonzero(target == _NO_ROW)
        target[unlaunched] = len(part.table) + unlaunched
        self.first_replayed = len(part.table) + len(self.events)
        if replayed is not None:
            target[replayed[0]] = self.first_replayed + replayed[1]
        self.rows, first, self.event_call = np.unique(
            target, return_index=True, return_inverse=True
        )
        self.first_event = self.events[first]
        call_of = self.event_call.astype(np.int32)
        self.gpu_ns = _core.gpu_union_by_group(part.table, part.tree, call_of, len(self.rows))
        self.exclusive_ns = sum_by_index(
            self.event_call, part.costs.exclusive_ns[self.events], len(self.rows)
        )
        self.count = np.bincount(self.event_call, minlength=len(self.rows))
