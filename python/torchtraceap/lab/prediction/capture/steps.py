"""Selects the rows of a steady step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.trace.ranks import RankTrace

__all__ = ["StepRows", "steady_step"]


@dataclass(frozen=True)
class StepRows:
    """The rows of a step of one rank."""

    rows: Array
    """Host rows of the step by start, without input pipelines, int64."""
    begin_ns: int
    end_ns: int
    notes: tuple[str, ...] = ()


def steady_step(part: RankTrace) -> StepRows:
    """Return the last step with the most common operators; all rows if no steps are recorded."""
    tree = part.tree
    rows = tree.host_rows.astype(np.int64)
    rows = rows[np.argsort(rows, kind="stable")]  # rows are sorted by start, longer first
    rows = rows[_on_threads_of_the_step(part, rows) & (tree.phase[rows] != _core.Phase.INPUT)]
    if not tree.steps:
        begin, end = tree.profiled
        return StepRows(rows, begin, end, ("no steps are recorded: the whole run is taken as one",))
    of_step = [rows[tree.step[rows] == place] for place in range(len(tree.steps))]
    is_op = part.table.kind == _core.EventKind.CPU_OP
    kinds = [hash(part.table.name[each[is_op[each]]].tobytes()) for each in of_step]
    usual = Counter(kinds).most_common(1)[0][0]
    chosen = len(kinds) - 1 - kinds[::-1].index(usual)
    step = tree.steps[chosen]
    return StepRows(of_step[chosen], step.start_ns, step.end_ns)


def _on_threads_of_the_step(part: RankTrace, rows: Array) -> Array:
    """Mark rows on the thread of the step and its backward pass elsewhere, bool `[rows]`."""
    main = part.tree.main_track
    on_main = part.table.track[rows] == main
    of_backward = part.tree.phase[rows] == _core.Phase.BACKWARD
    found: Array = on_main | of_backward if main is not None else np.ones(len(rows), dtype=bool)
    return found
