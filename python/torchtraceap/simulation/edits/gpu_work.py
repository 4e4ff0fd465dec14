"""What each GPU event computes, by the models of operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.ops.models import OpCall, Work, family_of
from torchtraceap.simulation.edits.view import RankView
from torchtraceap.tables.ops.calls import Calls, GpuCalls

__all__ = ["EventWorks", "families_of", "works_of"]


@dataclass(frozen=True, slots=True)
class EventWorks:
    """Works of a rank, and which GPU event belongs to which."""

    kinds: tuple[Any, ...]
    """One for each operator name with arguments: `name`, `texts`, `kernels`, `work`."""
    kind_of: Array
    """int64 `[rows]`: index in `kinds` of a GPU row whose work is known; -1 for others."""

    def work(self, kind: int) -> Work:
        found: Work = self.kinds[kind].work
        return found

    def call(self, kind: int) -> OpCall:
        """The operator with its arguments."""
        found = self.kinds[kind]
        dims, types, strides, concrete = found.texts
        return OpCall(found.name, dims, types, strides, concrete, found.kernels)


def works_of(view: RankView) -> EventWorks:
    """The works of a rank; made once."""
    return view.cached("works", lambda: _build(view))


def _build(view: RankView) -> EventWorks:
    calls = Calls(view.part, None)
    on_gpu = GpuCalls(view.part, calls)
    of_row = np.full(len(view.table), -1, dtype=np.int64)
    counted = calls.has_work[calls.rows]
    of_row[calls.rows[counted]] = calls.group[counted]
    owner = on_gpu.rows[on_gpu.event_call].astype(np.int64)
    known = owner < len(view.table)
    kind_of = np.full(len(view.table), -1, dtype=np.int64)
    kind_of[on_gpu.events[known]] = of_row[owner[known]]
    return EventWorks(tuple(calls.kinds), kind_of)


def families_of(view: RankView, rows: Array) -> Array:
    """Family of each GPU event, by its operator and kernel; one look-up for each pair."""
    calls = view.launch_of(rows)
    operator = np.where(calls >= 0, view.tree.op[np.maximum(calls, 0)], _core.NO_ROW)
    has_operator = operator != _core.NO_ROW
    op_name = np.full(len(rows), -1, dtype=np.int64)
    op_name[has_operator] = view.table.name[operator[has_operator]]
    pairs = op_name * len(view.names) + view.table.name[rows]
    unique, place = np.unique(pairs, return_inverse=True)
    names = [
        family_of(view.names[op] if op >= 0 else "", (view.names[kernel],))
        for op, kernel in (divmod(pair, len(view.names)) for pair in unique.tolist())
    ]
    return np.array(names, dtype=object)[place] if names else np.zeros(0, dtype=object)
