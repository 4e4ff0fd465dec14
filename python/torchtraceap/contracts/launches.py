"""Find the operator that would launch a kernel, in a run without a GPU.

What would be launched is predicted from a step that was called again
(contracts/measures/predicted.py), so a kernel has an operator and no event. Its operator is found
by name and place, where the recorded step has as many of that name as launch in the predicted one,
or each launches equally many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap.contracts.measures.events import counted_places
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import EventKind
from torchtraceap.trace.ranks import RankTrace

__all__ = ["launching_row"]


def launching_row(part: RankTrace, operators: Sequence[str], place: int) -> int | None:
    """Row of the operator in the first counted step; None where nothing tells it.

    Args:
        part: Recorded without a GPU.
        operators: The operator of each kernel of a step, in order.
        place: The place of the kernel in that order.
    """
    if not 0 <= place < len(operators):
        return None
    name = operators[place]
    rows = _outermost(part, name)
    launched = sum(each == name for each in operators)
    if not len(rows) or launched % len(rows):
        return None
    before = sum(each == name for each in operators[:place])
    return int(rows[before // (launched // len(rows))])


def _outermost(part: RankTrace, name: str) -> Array:
    """Rows of that name in the first counted step (the trace, if it has none), but for those inside
    of another one."""
    table, tree = part.table, part.tree
    codes = [code for code, text in enumerate(table.strings) if text == name]
    is_named = np.isin(table.name, codes) & (table.kind == EventKind.CPU_OP)
    rows = np.flatnonzero(is_named)
    if tree.steps:
        rows = rows[tree.step[rows] == counted_places(part)[0]]
    parent = tree.parent[rows]
    inside = (parent < len(is_named)) & is_named[np.minimum(parent, len(is_named) - 1)]
    found: Array = rows[~inside]
    return found
