"""What is common to the sheets that group calls by their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torchtraceap.compat.tracelens.launchers import CompatTree
from torchtraceap.compat.tracelens.sheets import Sheet, as_tuples
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.tables.grouping import Groups

__all__ = ["ARGUMENTS", "CallTable", "Coded", "call_table", "coded", "stacked", "texts_at"]

ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


Coded = tuple[Array, list[str]]
"""A text column: codes, -1 where absent, and the distinct texts."""


@dataclass(frozen=True, slots=True)
class CallTable:
    """Calls with their names, threads and arguments, as codes."""

    tree: CompatTree
    rows: Array
    """int64 `[n]`: rows whose arguments and threads these are."""
    names: Coded
    categories: Coded
    arguments: list[Coded]
    """JSON texts in the order of `ARGUMENTS`."""
    recompute: Array

    @property
    def track(self) -> Array:
        return np.asarray(self.tree.table.track)[self.rows]

    def groups(self) -> Groups:
        """Calls that agree in all columns of the key; processes and threads by their names."""
        threads: dict[tuple[str, str, str], int] = {}
        of_track = [threads.setdefault(n, len(threads)) for n in self.tree.thread_names()]
        thread = np.asarray(of_track, dtype=np.int64)[self.track]
        keys = [codes for codes, _ in (self.names, self.categories, *self.arguments)]
        if self.tree.detect_recompute:
            keys.append(self.recompute)
        return Groups(*keys, thread)

    def key_columns(self, groups: Groups) -> Sheet:
        """Name, category, process, thread, arguments and, if looked for, recomputation."""
        firsts = groups.first
        threads = self.tree.thread_names()
        tracks = self.track[firsts].tolist()
        sheet: Sheet = {
            "name": texts_at(self.names, firsts),
            "op category": texts_at(self.categories, firsts),
        }
        for place, column in enumerate(("process_name", "process_label", "thread_name")):
            sheet[column] = [threads[track][place] for track in tracks]
        for argument, column in zip(self.arguments, ARGUMENTS, strict=True):
            sheet[column] = [as_tuples(text) for text in texts_at(argument, firsts)]
        if self.tree.detect_recompute:
            sheet["is_recompute"] = self.recompute[firsts].tolist()
        return sheet


def call_table(
    tree: CompatTree, rows: Array, names: Coded, categories: Coded, recompute: Array
) -> CallTable:
    """The calls at some rows, with their arguments.

    Args:
        tree: Of the rank.
        rows: Rows whose arguments and threads count.
        names: Of each call.
        categories: Of each call.
        recompute: bool, of each call.
    """
    arguments = [tree.texts(key, rows) for key in ARGUMENTS]
    return CallTable(tree, rows, names, categories, arguments, recompute)


def texts_at(column: Coded, rows: Array) -> list[Any]:
    """Texts of some rows; None where absent."""
    codes, texts = column
    return [texts[code] if code >= 0 else None for code in codes[rows].tolist()]


def coded(function: Callable[..., str], *keys: Array) -> Coded:
    """A text for each row that depends on integer keys alone; asked once per distinct keys."""
    groups = Groups(*keys)
    distinct: dict[str, int] = {}
    values = zip(*(key[groups.first].tolist() for key in keys), strict=True)
    codes = [distinct.setdefault(function(*value), len(distinct)) for value in values]
    return np.asarray(codes, dtype=np.int64)[groups.index], list(distinct)


def stacked(a: Coded, b: Coded) -> Coded:
    """The rows of one column below those of another."""
    texts = {text: place for place, text in enumerate(a[1])}
    moved = [texts.setdefault(text, len(texts)) for text in b[1]]
    return np.r_[a[0], np.asarray(moved, dtype=np.int64)[b[0]]], list(texts)
