"""Any table as JSON for a page: columns of plain values with the unit that each is shown in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import column_headings, one_line

if TYPE_CHECKING:
    from torchtraceap.core.columns import Column
    from torchtraceap.core.table import ColumnTable

__all__ = ["table_data", "unit_of"]

MAX_TEXT = 300  # characters of a name or a list in a cell
MAX_INDENT = 80
DIGITS = 6  # significant digits of a rate or a ratio; a cell shows three
_INSTANTS = ("start_ns", "end_ns", "at_ns")


def unit_of(name: str) -> str:
    """How a column of numbers is shown, told by the end of its name."""
    if name in _INSTANTS:
        return "at"
    if name.startswith("delta_"):
        return "delta"
    for end, unit in (("_ns", "ns"), ("_share", "share"), ("_bytes", "bytes")):
        if name.endswith(end):
            return unit
    if name == "bytes":
        return "bytes"
    return "rate" if name.endswith("_gb_per_s") else "number"


def table_data(table: ColumnTable, *, most_rows: int, origin_ns: int = 0) -> dict[str, Any]:
    """A table for the page: its first rows, all columns that hold a value, its notes.

    Args:
        table: Any table; its rows stand in the order in which the page first shows them.
        most_rows: Rows to keep.
        origin_ns: Zero of the page's clock: instants become distances from it, which a double of
            JavaScript holds exactly.
    """
    kept = table if table.num_rows <= most_rows else table.take(slice(0, most_rows))
    names = [*table.shown, *(name for name in table.columns if name not in table.shown)]
    filled = [name for name in names if not _is_empty(kept.column(name))]
    titles = dict(zip(names, column_headings(names), strict=True))
    return {
        "columns": [
            {"name": name, "title": titles[name]} | _column(name, kept.column(name), origin_ns)
            for name in filled
        ],
        "shown": sum(name in table.shown for name in filled),
        "rows": kept.num_rows,
        "total": table.num_rows,
        "notes": [one_line(note, 600) for note in table.notes],
    }


def _is_empty(column: Column) -> bool:
    """No row has a value: a column of dashes tells nobody anything."""
    if not isinstance(column, np.ndarray):
        return bool((column.codes < 0).all())
    if column.dtype.kind == "f":
        return not np.isfinite(np.ma.getdata(column)).any()
    return bool(np.ma.getmaskarray(column).all())


def _column(name: str, column: Column, origin_ns: int) -> dict[str, Any]:
    if not isinstance(column, np.ndarray):
        return _texts(column.codes, column.texts)
    if column.dtype.kind in "OU":
        values = ["" if value is None else str(value) for value in column.tolist()]
        texts, codes = np.unique(np.array(values), return_inverse=True)
        return _texts(codes, texts.tolist())
    unit = unit_of(name)
    return {"unit": unit, "values": _numbers(column, unit, origin_ns)}


def _texts(codes: Array, texts: Any) -> dict[str, Any]:
    used, inverse = np.unique(codes, return_inverse=True)
    first = int(used[0] < 0) if len(used) else 0
    return {
        "unit": "text",
        "texts": [_text(texts[code]) for code in used[first:].tolist()],
        "values": (inverse.reshape(-1) - first).tolist(),
    }


def _text(text: str) -> str:
    """One harmless line; the indentation of an outline stays."""
    indent = min(len(text) - len(text.lstrip(" ")), MAX_INDENT)
    return " " * indent + one_line(text, MAX_TEXT)


def _numbers(column: Array, unit: str, origin_ns: int) -> list[Any]:
    """Plain values, None where absent; rounded to what a cell can show."""
    values, absent = np.ma.getdata(column), np.ma.getmaskarray(column).copy()
    if values.dtype.kind == "b":
        return [None if gone else bool(v) for v, gone in zip(values, absent, strict=True)]
    if values.dtype.kind == "f":
        absent |= ~np.isfinite(values)
        values = _rounded(np.where(absent, 0.0, values), unit)
    if unit == "at":
        values = values - origin_ns
    plain: list[Any] = values.tolist()
    if absent.any():
        return [None if gone else v for v, gone in zip(plain, absent.tolist(), strict=True)]
    return plain


def _rounded(values: Array, unit: str) -> Array:
    if unit in ("ns", "at", "bytes", "delta") and (np.abs(values) < 2**53).all():
        return np.rint(values).astype(np.int64)
    size = np.abs(values)
    exponent = np.floor(np.log10(np.where(size > 0, size, 1.0)))
    scale = 10.0 ** (DIGITS - 1 - np.clip(exponent, -280, 280))
    rounded: Array = np.rint(values * scale) / scale
    return rounded
