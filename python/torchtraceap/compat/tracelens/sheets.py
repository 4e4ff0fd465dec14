"""Statistics of groups as pandas computes them, and how a table is written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import lru_cache
from io import StringIO
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import csv_quoting, spreadsheet_cell
from torchtraceap.tables.grouping import Groups

__all__ = [
    "METRICS",
    "Sheet",
    "as_lists",
    "as_tuples",
    "csv_text",
    "first_values",
    "order_of_sums",
    "shares",
    "statistics",
    "take",
    "write_csv",
]

Sheet = dict[str, list[Any]]
"""Columns in the order of a reference file; None and NaN are empty cells."""

METRICS = ("mean", "median", "std", "min", "max")


def statistics(groups: Groups, values: Array, *, ddof: int = 1) -> dict[str, Array]:
    """mean, median, std, min, max and sum of each group without its NaN; NaN where none is left.

    Sums of nothing are 0.
    """
    kept = ~np.isnan(values)
    some = Groups(groups.index[kept])
    place = groups.index[kept][some.first] if kept.any() else np.zeros(0, dtype=np.int64)
    found = {
        "mean": some.mean,
        "median": some.median,
        "std": lambda values: some.std(values, ddof=ddof),
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
    """Greatest sum first, ties by the second key ascending."""
    return np.lexsort((then, -sums))


def first_values(groups: Groups, values: list[Any]) -> list[Any]:
    """The value of each group's first row."""
    return [values[row] for row in groups.first.tolist()]


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
    """As Python prints it; a text that is no JSON or nested too deep as it is."""
    try:
        return str(form(json.loads(text, strict=False)))
    except (ValueError, RecursionError):
        return text


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def write_csv(sheet: Sheet, stream: BinaryIO, *, spreadsheet: bool = False) -> None:
    """Writes the sheet as CSV; one without columns is an empty line, as pandas writes it.

    Args:
        sheet: What.
        stream: Where to.
        spreadsheet: No cell is taken for a formula.
    """
    text = csv_text(_for_spreadsheets(sheet) if spreadsheet else sheet)
    stream.write(text.encode("utf-8", errors="replace"))


def csv_text(sheet: Sheet) -> str:
    """The text that `write_csv` writes."""
    if not sheet:
        return "\n"
    out = StringIO()
    columns = [_cells(column) for column in sheet.values()]
    texts = (value for value in chain(sheet, *columns) if isinstance(value, str))
    writer = csv.writer(out, lineterminator="\n", quoting=csv_quoting(texts))
    writer.writerow(sheet)
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def _for_spreadsheets(sheet: Sheet) -> Sheet:
    def cell(value: Any) -> Any:
        return spreadsheet_cell(value) if isinstance(value, str) else value

    return {cell(title): [cell(value) for value in column] for title, column in sheet.items()}


def _cells(column: list[Any]) -> list[Any]:
    return ["" if value is None or value != value else value for value in column]
