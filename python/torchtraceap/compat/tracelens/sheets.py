"""Parts of sheets: statistics of groups as pandas computes them, calls, lists of kernels, CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import lru_cache
from io import StringIO
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from torchtraceap.compat.tracelens.launchers import CompatTree
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import csv_quoting, spreadsheet_cell
from torchtraceap.core.records import dataclass
from torchtraceap.tables.grouping import Groups

__all__ = [
    "ARGUMENTS",
    "METRICS",
    "CallTable",
    "Coded",
    "Sheet",
    "as_lists",
    "as_tuples",
    "call_table",
    "csv_text",
    "encode",
    "kernel_columns",
    "order_of_sums",
    "shares",
    "stack",
    "statistics",
    "take",
    "texts_at",
    "write_csv",
]

Sheet = dict[str, list[Any]]
"""Columns in the order of a reference file; None and NaN are empty cells."""
Coded = tuple[Array, list[str]]
"""A text column: codes, -1 where absent, and the distinct texts."""
METRICS = ("mean", "median", "std", "min", "max")
ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_NAME_LENGTH = 64


def statistics(groups: Groups, values: Array) -> dict[str, Array]:
    """Return mean, median, std, min, max and sum of each group without its NaN, else NaN.

    Sums of nothing are 0.
    """
    kept = ~np.isnan(values)
    some = Groups(groups.index[kept])
    place = groups.index[kept][some.first] if kept.any() else np.zeros(0, dtype=np.int64)
    found = {
        "mean": some.mean,
        "median": some.median,
        "std": lambda values: some.std(values, ddof=1),
        "min": some.minimum,
        "max": some.maximum,
        "sum": some.sum,
    }
    result = {}
    for name, function in found.items():
        column = np.full(len(groups), 0.0 if name == "sum" else np.nan)
        if kept.any():
            column[place] = function(values[kept])
        result[name] = column
    return result


def shares(sums: Array) -> tuple[list[float], list[float]]:
    """Percent of the total, and running percent."""
    total = float(sums.sum())
    percent = sums / total * 100 if total else np.full(len(sums), np.nan)
    return percent.tolist(), np.cumsum(percent).tolist()


def order_of_sums(sums: Array, then: Array) -> Array:
    """Return the order of the greatest sum first, ties by the second key ascending."""
    return np.lexsort((then, -sums))


def take(sheet: Sheet, order: Array) -> Sheet:
    """The rows of a sheet in another order."""
    rows = order.tolist()
    return {name: [column[row] for row in rows] for name, column in sheet.items()}


@lru_cache(maxsize=1 << 14)
def as_lists(text: str | None) -> str | None:
    """JSON text of a list as Python prints it."""
    return None if text is None else _shown(text, lambda value: value)


@lru_cache(maxsize=1 << 14)
def as_tuples(text: str | None) -> str | None:
    """JSON text of lists as Python prints tuples."""
    return None if text is None else _shown(text, _tuples)


def _shown(text: str, form: Callable[[Any], Any]) -> str:
    """Return JSON as Python prints it; a text that is no JSON or nested too deep as it is."""
    try:
        return str(form(json.loads(text, strict=False)))
    except (ValueError, RecursionError):
        return text


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


# ------------------------------------------------------------------------------ calls


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
    """Return the calls at some rows, with their arguments.

    Args:
        tree: The tree of the rank.
        rows: Rows whose arguments and threads count.
        names: Names of the calls.
        categories: Categories of the calls.
        recompute: bool: each call is part of a recomputation.
    """
    arguments = [tree.texts(key, rows) for key in ARGUMENTS]
    return CallTable(tree, rows, names, categories, arguments, recompute)


def texts_at(column: Coded, rows: Array) -> list[Any]:
    """Texts of some rows; None where absent."""
    codes, texts = column
    return [texts[code] if code >= 0 else None for code in codes[rows].tolist()]


def encode(function: Callable[..., str], *keys: Array) -> Coded:
    """A text for each row that depends on integer keys alone; asked once per distinct keys."""
    groups = Groups(*keys)
    distinct: dict[str, int] = {}
    values = zip(*(key[groups.first].tolist() for key in keys), strict=True)
    codes = [distinct.setdefault(function(*value), len(distinct)) for value in values]
    return np.asarray(codes, dtype=np.int64)[groups.index], list(distinct)


def stack(a: Coded, b: Coded) -> Coded:
    """Return the rows of one column above those of another."""
    texts = {text: place for place, text in enumerate(a[1])}
    moved = [texts.setdefault(text, len(texts)) for text in b[1]]
    return np.r_[a[0], np.asarray(moved, dtype=np.int64)[b[0]]], list(texts)


# ------------------------------------------------------------------------------ kernels


def kernel_columns(
    tree: CompatTree, group: Array, groups: int, owner: Array, rows: Array
) -> tuple[list[str], list[str | None]]:
    """Return the kernels of each group: the whole list, and one with short names and mean times.

    The first member with kernels is the pattern; of the others those count that launched as many,
    kernel by kernel. Entries stand by total time and name.

    Args:
        tree: The tree of the rank.
        group: `[members]`, the group of each member.
        groups: Number of groups.
        owner: `[entries]`, the member that launched a kernel, ascending.
        rows: `[entries]`, rows of the kernels, in launch order within a member.
    """
    members = len(group)
    lengths = np.bincount(owner, minlength=members)
    begins = np.cumsum(lengths) - lengths
    busy = np.flatnonzero(lengths)
    pattern = np.full(groups, -1, dtype=np.int64)
    pattern[group[busy][::-1]] = busy[::-1]  # the first one is written last
    width = np.where(pattern >= 0, lengths[pattern], 0)
    offset = np.cumsum(width) - width
    counts = (lengths == width[group]) & (lengths > 0)
    kept = counts[owner]
    within = np.arange(len(owner)) - begins[owner]
    entry = (offset[group[owner]] + within)[kept]
    shown, means = _entry_statistics(entry, tree.dur_us[rows[kept]])
    streams = tree.part.table.stream
    whole: list[str] = []
    short: list[str | None] = []
    for member, size, begin in zip(pattern.tolist(), width.tolist(), offset.tolist(), strict=True):
        first = int(begins[member]) if size else 0
        entries = []
        for place, row in enumerate(rows[first : first + size].tolist(), begin):
            number = int(streams[row])
            stream = None if number == -(2**63) else number
            entries.append((tree.strings[tree.name[row]], stream, place))
        entries.sort(key=lambda each: (shown[each[2]]["total_duration_us"], each[0]))
        whole.append(str([{"name": n, "stream": s, **shown[place]} for n, s, place in entries]))
        brief = [
            {
                "name": name[:_NAME_LENGTH] + "..." if len(name) > _NAME_LENGTH else name,
                "stream": stream,
                "mean_duration_us": means[place],
            }
            for name, stream, place in entries
        ]
        short.append(str(brief) if brief else None)
    return whole, short


def _entry_statistics(entry: Array, durations: Array) -> tuple[list[dict[str, Any]], list[float]]:
    """Return statistics of the durations of each entry, in order, and rounded means.

    Means have two digits as NumPy rounds, which is not as Python does. Where one lies halfway the
    order of the sum decides: those are added up as NumPy does.
    """
    groups = Groups(entry)
    means = groups.mean(durations)
    columns = {
        "count": groups.count,
        "total_duration_us": groups.sum(durations),
        "mean_duration_us": means,
        "median_duration_us": groups.median(durations),
        "std_dev_duration_us": groups.std(durations),
        "min_duration_us": groups.minimum(durations),
        "max_duration_us": groups.maximum(durations),
    }
    rounded = means.copy()
    for group in np.flatnonzero(np.abs(np.mod(means * 100, 1) - 0.5) < 1e-6).tolist():
        rounded[group] = durations[groups.rows(group)].mean()
    order = np.argsort(entry[groups.first]) if len(groups) else np.zeros(0, dtype=np.int64)
    values = zip(*(column[order].tolist() for column in columns.values()), strict=True)
    statistics = [dict(zip(columns, each, strict=True)) for each in values]
    return statistics, np.round(rounded, 2)[order].tolist()


# ------------------------------------------------------------------------------ files


def write_csv(sheet: Sheet, stream: BinaryIO, *, spreadsheet: bool = False) -> None:
    """Write the sheet as CSV; one without columns is an empty line, as pandas writes it.

    Args:
        sheet: The sheet.
        stream: The file.
        spreadsheet: No cell is taken for a formula.
    """
    if spreadsheet:
        sheet = {
            spreadsheet_cell(title): [
                spreadsheet_cell(value) if isinstance(value, str) else value for value in column
            ]
            for title, column in sheet.items()
        }
    stream.write(csv_text(sheet).encode("utf-8", errors="replace"))


def csv_text(sheet: Sheet) -> str:
    """The text that `write_csv` writes."""
    if not sheet:
        return "\n"
    out = StringIO()
    columns = [
        ["" if value is None or value != value else value for value in column]
        for column in sheet.values()
    ]
    texts = (value for value in chain(sheet, *columns) if isinstance(value, str))
    writer = csv.writer(out, lineterminator="\n", quoting=csv_quoting(texts))
    writer.writerow(sheet)
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()
