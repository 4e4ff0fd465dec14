"""What is common to the sheets that group calls by their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.analysis.grouping import Groups
from torchtraceap.tracelens.launchers import CompatTree
from torchtraceap.tracelens.sheets import Sheet, as_tuples

__all__ = ["ARGUMENTS", "CallTable", "call_table"]

Array = npt.NDArray[Any]

ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


@dataclass(frozen=True, slots=True)
class CallTable:
    """Calls with their names, threads and arguments, as codes."""

    tree: CompatTree
    rows: Array
    """int64 `[n]`: rows whose arguments these are."""
    names: list[str]
    name: Array
    categories: list[str]
    category: Array
    arguments: list[tuple[Array, list[str]]]
    """Codes (-1 is absent) and JSON texts, in the order of `ARGUMENTS`."""
    recompute: Array

    @property
    def track(self) -> Array:
        return np.asarray(self.tree.table.track)[self.rows]

    def text(self, argument: int, member: int) -> str | None:
        """JSON text of one argument of one call."""
        codes, texts = self.arguments[argument]
        code = int(codes[member])
        return None if code < 0 else texts[code]

    def groups(self) -> Groups:
        """Calls that agree in all columns of the key; processes and threads by their names."""
        threads: dict[tuple[str, str, str], int] = {}
        of_track = [threads.setdefault(n, len(threads)) for n in self.tree.thread_names()]
        thread = np.asarray(of_track, dtype=np.int64)[self.track]
        keys = [self.name, self.category, thread, *(codes for codes, _ in self.arguments)]
        if self.tree.detect_recompute:
            keys.append(self.recompute)
        return Groups(*keys)

    def key_columns(self, groups: Groups) -> Sheet:
        """Name, category, process, thread, arguments and, if looked for, recomputation."""
        firsts = groups.first.tolist()
        threads = self.tree.thread_names()
        tracks = self.track[groups.first].tolist()
        sheet: Sheet = {
            "name": [self.names[self.name[i]] for i in firsts],
            "op category": [self.categories[self.category[i]] for i in firsts],
        }
        for place, column in enumerate(("process_name", "process_label", "thread_name")):
            sheet[column] = [threads[track][place] for track in tracks]
        for place, argument in enumerate(ARGUMENTS):
            sheet[argument] = [as_tuples(self.text(place, i)) for i in firsts]
        if self.tree.detect_recompute:
            sheet["is_recompute"] = self.recompute[groups.first].tolist()
        return sheet


def call_table(
    tree: CompatTree, rows: Array, names: list[str], categories: list[str], recompute: Array
) -> CallTable:
    """Codes of calls.

    Args:
        tree: Of the rank.
        rows: Rows whose arguments and threads count.
        names: Of each call.
        categories: Of each call.
        recompute: bool, of each call.
    """
    name, distinct_names = _codes(names)
    category, distinct_categories = _codes(categories)
    arguments = [tree.texts(key, rows) for key in ARGUMENTS]
    return CallTable(
        tree, rows, distinct_names, name, distinct_categories, category, arguments, recompute
    )


def _codes(values: list[str]) -> tuple[Array, list[str]]:
    distinct: dict[str, int] = {}
    codes = [distinct.setdefault(value, len(distinct)) for value in values]
    return np.asarray(codes, dtype=np.int64), list(distinct)
