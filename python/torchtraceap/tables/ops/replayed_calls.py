"""Calls of operators that were recorded into CUDA graphs, for the GPU work that replays them.

A replayed kernel counts for the operator that launched it at the capture, with the arguments that
it had there: the shapes of a graph do not change. What a serving engine says of its batch is said
at the replay.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.ops.models import model_of
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import MOST_KERNELS, Calls, KindOfCall, kind_of_call
from torchtraceap.tables.serving.attribution import Attribution
from torchtraceap.tables.serving.iterations import served_iterations
from torchtraceap.trace.ranks import RankTrace

__all__ = ["ReplayedCalls"]


class ReplayedCalls:
    """The calls behind the replayed GPU events of a rank.

    Attributes:
        events: int64: index in `tree.gpu_rows` of those with an operator in a capture.
        call: int64 `[events]`: the call of each, from 0.
        kind: int64 `[calls]`: index in `kinds`.
        kinds: Calls of one name with the same arguments.
    """

    def __init__(self, part: RankTrace, known: Attribution) -> None:
        events = np.flatnonzero(known.captured_part >= 0)
        source, rows = known.captured_part[events], known.captured_row[events]
        target = np.full(len(events), -1, dtype=np.int64)
        kind = target.copy()
        captured = [Calls(each, launched_only=False) for each in known.captures]
        for number, (each, calls) in enumerate(zip(known.captures, captured, strict=True)):
            own = np.flatnonzero(source == number)
            op = each.tree.op[rows[own]].astype(np.int64)
            own, op = own[op != _core.NO_ROW], op[op != _core.NO_ROW]
            modeled = _core.innermost_marked(each.table, each.tree, calls.has_work[:-1])[op]
            target[own] = np.where(modeled != _core.NO_ROW, modeled, op)
            kind[own] = calls.group[np.searchsorted(calls.rows, target[own])]
        found = target >= 0
        self.events: Array = events[found]
        source, target, kind = source[found], target[found], kind[found]
        event_rows = part.tree.gpu_rows[self.events].astype(np.int64)
        launches = part.tree.launch[event_rows].astype(np.int64)
        self._calls = Groups(launches, source, target)
        self.call: Array = self._calls.index
        first = self._calls.first
        batch = self._batches(part, captured, source[first], kind[first], self.events[first])
        groups = Groups(source[first], kind[first], batch)
        self.kind: Array = groups.index
        names = part.table.name[event_rows]
        self.kinds: list[KindOfCall] = []
        for group in groups.first.tolist():
            base = captured[int(source[first[group]])].kinds[int(kind[first[group]])]
            codes = dict.fromkeys(names[self._calls.rows(group)].tolist())
            kernels = tuple(part.table.strings[code] for code in codes)[:MOST_KERNELS]
            said = part.table.strings[batch[group]] if batch[group] >= 0 else None
            self.kinds.append(kind_of_call(base.name, base.texts, kernels, said))

    @staticmethod
    def _batches(
        part: RankTrace, captured: list[Calls], source: Array, kind: Array, events: Array
    ) -> Array:
        """Return the name of the iteration around each call whose model asks for it, int64, else
        -1."""
        entries = [[model_of(each.name) for each in calls.kinds] for calls in captured]
        asks = [[entry is not None and entry.needs_batch for entry in part] for part in entries]
        iterations = served_iterations(part)
        marked = part.tree.iteration_rows().astype(np.int64)
        names = np.full(len(iterations) + 1, -1, dtype=np.int64)
        if iterations.source == "annotations":
            names[:-1] = part.table.name[marked]
        found = names[iterations.of_event[events]]
        wanted = [asks[one][other] for one, other in zip(source, kind, strict=True)]
        batch: Array = np.where(np.array(wanted, dtype=bool), found, -1)
        return batch
