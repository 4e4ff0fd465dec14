"""Graph breaks of `torch.compile`, as the rule `graph_break` counts them.

The rule (cpp/traceap/detect/rules/graph_break.cpp) says what one is; it hands out the rows only
where it has a verdict, which it has not without a GPU. So its sure breaks are found here again: a
region inside another one, a resume function that has no region of its own, two regions of one call
of a compiled object. A test compares both.
"""

from __future__ import annotations

import re

import numpy as np

from torchtraceap import _core
from torchtraceap.contracts.measures.events import CountedEvents, operators
from torchtraceap.core.codes import EventKind
from torchtraceap.trace.ranks import RankTrace

__all__ = ["graph_breaks"]

_NONE = -1
_NUMBER = re.compile(r"Torch-Compiled Region.*?: (?P<frame>.*)/[0-9]", re.DOTALL)
_RESUME = re.compile(r"torch_dynamo_resume_in_|<resume in ")
_ENTRY = re.compile(r"torch/_dynamo/eval_frame\.py.*: (compile_wrapper|_fn)", re.DOTALL)
_DYNAMO = ("TorchDynamo", "Pregraph", "AOTDispatcher")


def graph_breaks(part: RankTrace) -> CountedEvents:
    """Return rows of the regions, or resume frames, with which compiled code goes on."""
    operators(part)
    rows = part.cached("graph breaks", lambda: _Breaks(part).rows())
    return CountedEvents.of_rows(part, np.array(rows, dtype=np.int64))


class _Breaks:
    """Walks the regions and resume frames of a rank, thread by thread."""

    def __init__(self, part: RankTrace) -> None:
        self._table, self._tree = part.table, part.tree
        self._strings = part.table.strings
        self._names = part.table.name
        self._kind = part.table.kind
        self._parent = part.tree.parent
        names = list(enumerate(self._strings))
        self._region = {code for code, name in names if name.startswith("Torch-Compiled Region")}
        self._resume = {code for code, name in names if _RESUME.search(name)}

    def rows(self) -> list[int]:
        """Return the rows of all sure breaks."""
        if not self._region and not self._resume:
            return []
        wanted = np.zeros(len(self._strings), dtype=bool)
        wanted[[*self._region, *self._resume]] = True
        position, track = self._tree.host_position, self._table.track
        chosen = np.flatnonzero(wanted[self._names] & (position != _core.NO_ROW))
        chosen = chosen[np.argsort(position[chosen], kind="stable")]
        ts_ns, dur_ns, step = self._table.ts_ns, self._table.dur_ns, self._tree.step
        found: list[int] = []
        of_track = last_into = previous = _NONE
        for row in chosen.tolist():
            if int(track[row]) != of_track:
                of_track, last_into, previous = int(track[row]), _NONE, _NONE
            name = int(self._names[row])
            outer, entry, in_operator = self._around(row)
            if name in self._region:
                if outer != _NONE:
                    found.append(row)
                    last_into = row
                elif not in_operator:
                    if (
                        previous != _NONE
                        and step[previous] == step[row]
                        and int(ts_ns[previous]) + int(dur_ns[previous]) <= int(ts_ns[row])
                    ):
                        before = self._around(previous)[1]
                        if _NONE != entry == before:
                            found.append(row)
                            last_into = row
                        elif entry == before and self._may_be_one_call(previous, row):
                            last_into = row
                    previous = row
            if name in self._resume and (outer == _NONE or last_into != outer):
                found.append(row)
                last_into = row
        return found

    def _around(self, row: int) -> tuple[int, int, bool]:
        """Return the nearest region and the nearest call of a compiled object, as long as no
        operator stands between, and whether one does."""
        entry = _NONE
        above = int(self._parent[row])
        while above != _core.NO_ROW:
            name = self._strings[int(self._names[above])]
            if int(self._names[above]) in self._region:
                return above, entry, False
            is_dynamo = name.startswith(_DYNAMO)
            is_compiled = name.startswith("CompiledFunction") or "Call CompiledFxGraph" in name
            if is_compiled or (self._kind[above] == EventKind.CPU_OP and not is_dynamo):
                return _NONE, entry, True
            if self._kind[above] == EventKind.PYTHON_FUNCTION and _ENTRY.search(name):
                entry = above if entry == _NONE else entry
            above = int(self._parent[above])
        return _NONE, entry, False

    def _may_be_one_call(self, previous: int, row: int) -> bool:
        """Return True if two rows may be one call. Without frames that can't be told: regions of
        other frames in one phase. Such a pair is no break, but a resume frame inside the second is
        not one of its own."""
        phase = self._tree.phase
        names = [self._strings[int(self._names[each])] for each in (previous, row)]
        if _frame_number(names[0]) == _frame_number(names[1]):
            return False
        return bool(phase[row] != _core.Phase.OPTIMIZER and phase[row] == phase[previous])


def _frame_number(name: str) -> str:
    """Return the "5" of "Torch-Compiled Region: 5/1"; empty where the name has none."""
    found = _NUMBER.match(name)
    return found["frame"] if found else ""
