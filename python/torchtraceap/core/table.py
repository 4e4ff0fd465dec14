"""Tables that speak NumPy, pandas and Arrow. pandas is imported when it is asked for.

Arrow leaves through `__arrow_c_stream__` (a fresh stream at each call, as duckdb needs), which
polars, DuckDB, pyarrow and pandas read without a copy of the int64 columns and without pyarrow
here.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from io import StringIO, TextIOWrapper
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import (
    Column,
    TextCodes,
    csv_quoting,
    spreadsheet_cell,
    unique_texts,
)
from torchtraceap.core.rendering import Renderable
from torchtraceap.errors import MissingColumnError, MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ColumnTable", "MadeColumn", "stack_ranks", "take_rows"]

MOST_NAMED = 80  # columns in a sentence
ROWS_AT_ONCE = 20_000  # rows of JSON and CSV that are encoded at once

MadeColumn = Column | Callable[[], Column]
"""A column, or what makes it when it is first asked for."""


class ColumnTable(Renderable):
    """Columns of equal length by name, and what is to be said beside them: `len` is the number of
    rows, iteration gives the names of the columns, `print` shows the first rows.

    Names end in their unit: `_ns`, `_bytes`, `_share` (a fraction), `_row` (of the event table).

    Args:
        columns: Columns by name, in order; a function in place of a column is called at the first
            use of the column.
        shown: The columns that a person reads first; by default all.
        first: Columns that a narrow terminal keeps, the most telling first: what identifies a
            row, then its figures. Others follow in the order of `shown`.
        facts: Values beside the rows, such as totals; they join the JSON document.
        notes: Sentences for a person: what the table rests on, what it lacks and why.
        batches: The same rows as tables of equal columns, which Arrow takes one by one and so
            without a copy.
    """

    def __init__(
        self,
        columns: Mapping[str, MadeColumn],
        *,
        shown: Sequence[str] = (),
        first: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        batches: Sequence[ColumnTable] = (),
    ) -> None:
        self._columns: dict[str, MadeColumn] = dict(columns)
        self.batches = tuple(batches)
        self._arrow: _core.ArrowTable | None = None
        self.shown = tuple(shown) or tuple(self._columns)
        self.first = tuple(first)
        self.facts = dict(facts or {})
        self.notes = tuple(notes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    @property
    def num_rows(self) -> int:
        return len(self.column(next(iter(self._columns)))) if self._columns else 0

    def __getitem__(self, name: str) -> Array:
        column = self.column(name)
        return column.to_numpy() if isinstance(column, TextCodes) else column

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def __bool__(self) -> bool:
        """Return True always: a table without rows still says why."""
        return True

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns, so that `dict(table)` has them by name."""
        return self.columns

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={self.num_rows}, columns={list(self._columns)})"

    def column(self, name: str) -> Column:
        """Return a column as it is kept; `table[name]` gives an array of values.

        Raises:
            MissingColumnError: There is no such column.
        """
        if name not in self._columns:
            there = ", ".join(islice(self._columns, MOST_NAMED)) or "none"
            raise MissingColumnError(f"no column {name!r} in this table; there are: {there}")
        column = self._columns[name]
        if not isinstance(column, (np.ndarray, TextCodes)):
            column = self._columns[name] = column()
        return column

    def take(self, rows: Array | slice) -> ColumnTable:
        """Return the table with some rows, in the given order."""
        columns: dict[str, MadeColumn] = {}
        for name, column in self._columns.items():
            if isinstance(column, (np.ndarray, TextCodes)):
                columns[name] = take_rows(column, rows)
            else:  # made when it is first asked for
                columns[name] = partial(self._made_rows, name, rows)
        return ColumnTable(
            columns,
            shown=self.shown,
            first=self.first,
            facts=self.facts,
            notes=self.notes,
        )

    def select(self, names: Sequence[str]) -> ColumnTable:
        """Return the table with some columns, in the given order, all of them shown.

        Raises:
            MissingColumnError: There is no such column.
        """
        columns: dict[str, MadeColumn] = {
            name: self._columns[name] if name in self._columns else self.column(name)
            for name in names
        }
        return ColumnTable(columns, first=names, facts=self.facts, notes=self.notes)

    def sort(self, name: str, *, descending: bool | None = None) -> ColumnTable:
        """Return the table with its rows in the order of a column, absent values last; equal rows
        keep their order.

        Args:
            name: The column.
            descending: The order; by default numbers fall and texts rise.

        Raises:
            MissingColumnError: There is no such column.
        """
        column = self.column(name)
        if isinstance(column, np.ndarray):
            values, absent = np.ma.getdata(column), np.ma.getmaskarray(column)
            absent = absent | np.isnan(values) if values.dtype.kind == "f" else absent
        else:
            _, places = np.unique([*column.texts, ""], return_inverse=True)
            values, absent = places[column.codes], column.codes < 0
        falls = isinstance(column, np.ndarray) if descending is None else descending
        present = np.flatnonzero(~absent)
        if falls:  # from behind, so that equal rows keep their order
            order = present[::-1][np.argsort(values[present[::-1]], kind="stable")][::-1]
        else:
            order = present[np.argsort(values[present], kind="stable")]
        return self.take(np.concatenate([order, np.flatnonzero(absent)]))

    def _made_rows(self, name: str, rows: Array | slice) -> Column:
        return take_rows(self.column(name), rows)

    def to_list(self, name: str) -> list[Any]:
        """Return a column as plain values; None where absent."""
        column = self.column(name)
        if isinstance(column, TextCodes):
            return column.to_list()
        plain: list[Any] = column.tolist()
        if column.dtype.kind == "f":
            return [None if v is None or v != v or v in _INFINITE else v for v in plain]
        return plain

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield plain values, row by row."""
        return zip(*(self.to_list(name) for name in self._columns), strict=True)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row."""
        return [dict(zip(self._columns, row, strict=True)) for row in self.rows()]

    def to_dict(self) -> dict[str, Any]:
        """Return the document `torchtraceap.table/1`; facts and notes stand beside the rows."""
        return {
            "schema": "torchtraceap.table/1",
            "columns": list(self._columns),
            "rows": [list(row) for row in self.rows()],
            **self.facts,
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        text = StringIO()
        self.write_json(text)
        return text.getvalue()

    def write_json(self, stream: IO[str]) -> None:
        """Write `to_dict()` as JSON, some rows at a time: the whole of millions never lies in
        memory."""
        stream.write(_json({"schema": "torchtraceap.table/1", "columns": self.columns})[:-1])
        stream.write(',"rows":[')
        for start in range(0, self.num_rows, ROWS_AT_ONCE):
            rows = _json(list(self.take(slice(start, start + ROWS_AT_ONCE)).rows()))[1:-1]
            stream.write(f",{rows}" if start else rows)
        stream.write("]," + _json({**self.facts, "notes": self.notes})[1:])

    def to_csv(self, path: PathLike, *, spreadsheet: bool = False) -> None:
        """Write the rows as CSV, UTF-8; absent values are empty.

        Args:
            path: The file to write; one that ends in `.gz` is compressed.
            spreadsheet: For people who open it in a spreadsheet: an apostrophe stands before text
                (also of headings) that would be taken for a formula. Else text is exact.

        Raises:
            OutputError: The file can't be written.
        """
        names, columns = list(self), [self.column(name) for name in self]
        if spreadsheet:
            names = list(map(spreadsheet_cell, names))
            columns = [
                TextCodes(column.codes, list(map(spreadsheet_cell, column.texts)))
                if isinstance(column, TextCodes)
                else column
                for column in columns
            ]
        texts = (column.texts for column in columns if isinstance(column, TextCodes))
        quoting = csv_quoting(chain(names, *texts))
        import gzip  # only here: start-up counts

        from torchtraceap.core.writing import replacing_stream

        with ExitStack() as opened:
            file: Any = opened.enter_context(replacing_stream(path))
            if os.fspath(path).endswith(".gz"):
                file = opened.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
            stream = opened.enter_context(
                TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
            )
            writer = csv.writer(stream, lineterminator="\n", quoting=quoting)
            writer.writerow(names)
            for start in range(0, self.num_rows, ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                writer.writerows(
                    zip(*(_csv_cells(column, rows) for column in columns), strict=True)
                )

    def to_parquet(self, path: PathLike) -> None:
        """Write the rows as Parquet.

        Raises:
            MissingDependencyError: pyarrow is not installed.
            OutputError: The file can't be written.
        """
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            raise MissingDependencyError(
                "Parquet needs pyarrow: pip install 'torchtraceap[arrow]'"
            ) from None
        from torchtraceap.core.writing import replacing_stream

        rows = pa.table(self)
        with replacing_stream(path) as stream:
            parquet.write_table(rows, stream)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame; text columns are categorical, integers that may be absent nullable.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingDependencyError(
                "a DataFrame needs pandas: pip install 'torchtraceap[pandas]'"
            ) from None
        return pd.DataFrame({name: _pandas_column(self.column(name)) for name in self._columns})

    def _arrow_table(self) -> _core.ArrowTable:
        if self._arrow is None:
            self._arrow = _core.arrow_batches(
                [
                    [_arrow_column(name, batch.column(name)) for name in batch]
                    for batch in self.batches or (self,)
                ]
            )
        return self._arrow

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Return a fresh `arrow_array_stream` capsule; the requested schema is ignored, as it may
        be."""
        return self._arrow_table().stream()

    def __arrow_c_schema__(self) -> Any:
        return self._arrow_table().schema()


_INFINITE = (float("inf"), float("-inf"))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _csv_cells(column: Column, rows: slice) -> list[Any]:
    """Return the cells of some rows for `csv.writer`, which leaves None empty."""
    values = column.take(rows).to_numpy() if isinstance(column, TextCodes) else column[rows]
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind not in "iu":
        values = np.where(np.ma.getmaskarray(values), np.nan, values.data)
    if values.dtype.kind == "f":
        values = np.ma.masked_where(np.isnan(values), values)
    cells: list[Any] = values.tolist()
    return cells


def _pandas_column(column: Column) -> Any:
    import pandas as pd

    if isinstance(column, TextCodes):
        column = unique_texts(_few_texts(column))
        categories = pd.Index(list(column.texts), dtype="str")
        return pd.Categorical.from_codes(column.codes, categories=categories)
    if not isinstance(column, np.ma.MaskedArray):
        return column
    mask = np.ma.getmaskarray(column)
    if column.dtype.kind in "iu":
        return pd.arrays.IntegerArray(column.data.copy(), mask.copy())
    return np.where(mask, np.nan, column.data)


def _arrow_column(
    name: str, column: Column
) -> tuple[str, Array, list[str] | None, npt.NDArray[np.bool_] | None]:
    """Return the arguments of `_core.arrow_batches` for a column: name, values, texts, validity
    mask."""
    if isinstance(column, TextCodes):
        column = _few_texts(column)
        codes, texts = column.codes, list(column.texts) or [""]
        absent = codes < 0
        return (
            (name, np.where(absent, 0, codes), texts, ~absent)
            if absent.any()
            else (name, codes, texts, None)
        )
    values, absent = np.ma.getdata(column), np.ma.getmaskarray(column)
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
        absent = absent | np.isnan(values)
    elif values.dtype.kind == "b":
        values = values.astype(np.uint8)
    return name, values, None, ~absent if absent.any() else None


def take_rows(column: Column, rows: Array | slice) -> Column:
    return column.take(rows) if isinstance(column, TextCodes) else column[rows]


def _few_texts(column: TextCodes) -> TextCodes:
    """Return plain texts, not many more than rows."""
    plain = TextCodes(column.codes, column.texts)
    return plain.compact() if len(plain.texts) > len(plain.codes) else plain


def stack_ranks(
    parts: Sequence[tuple[int | None, ColumnTable]], *, uniform: bool = False
) -> ColumnTable:
    """Return tables under each other, with a first column `rank`; what a rank's table lacks is
    absent.

    Facts become lists by rank under their names. Notes that all ranks share are said once, others
    name their rank.

    Args:
        parts: Rank and table.
        uniform: The tables have equal columns of equal types. Then nothing is joined before it is
            asked for, and Arrow takes table by table.
    """
    tables = [table for _, table in parts]
    ranks = [_rank_column(rank, table.num_rows) for rank, table in parts]
    columns: dict[str, MadeColumn] = {"rank": _concatenate(ranks)}
    for name in _names_of(table.columns for table in tables):
        join = partial(_join, tables, name)
        columns[name] = join if uniform else join()
    batches = []
    for rank, table in zip(ranks, tables, strict=True) if uniform else ():
        own = {name: partial(table.column, name) for name in table}
        batches.append(ColumnTable({"rank": rank, **own}))
    # The rank stands behind what identifies a row within it.
    filled = max(tables, key=lambda table: table.num_rows > 0)
    key, *others = filled.first or filled.shown
    said_by: dict[str, list[int | None]] = {}
    for number, table in parts:
        for note in table.notes:
            said_by.setdefault(note, []).append(number)
    shared = [note for note, said in said_by.items() if len(said) == len(parts)]
    own_notes = [(note, said) for note, said in said_by.items() if len(said) < len(parts)]
    return ColumnTable(
        columns,
        batches=batches,
        shown=("rank", *filled.shown),
        first=(key, "rank", *others),
        facts={
            name: [table.facts.get(name) for table in tables]
            for name in _names_of(table.facts for table in tables)
        },
        notes=[*shared, *(f"rank {', '.join(map(str, said))}: {note}" for note, said in own_notes)],
    )


def _rank_column(rank: int | None, rows: int) -> Array:
    return np.ma.array(np.full(rows, rank or 0, dtype=np.int64), mask=np.full(rows, rank is None))


def _join(tables: Sequence[ColumnTable], name: str) -> Column:
    """Return the column of all tables; nothing but absent values where a table lacks it."""
    example = next(table.column(name) for table in tables if name in table)
    columns: list[Column] = []
    for table in tables:
        if name in table:
            columns.append(table.column(name))
        elif isinstance(example, TextCodes):
            columns.append(type(example)(np.full(table.num_rows, -1, dtype=np.int32), []))
        elif example.dtype.kind == "f":
            columns.append(np.full(table.num_rows, np.nan))
        else:
            zeros = np.zeros(table.num_rows, dtype=example.dtype)
            columns.append(np.ma.array(zeros, mask=True))
    return _concatenate(columns)


def _names_of(groups: Iterable[Iterable[str]]) -> list[str]:
    """Return each name once, in order of first use."""
    return list(dict.fromkeys(name for group in groups for name in group))


def _concatenate(columns: Sequence[Column]) -> Column:
    texts = [column for column in columns if isinstance(column, TextCodes)]
    if texts:
        # Each text once, and only those in use.
        distinct: dict[str, int] = {}
        codes = []
        for column in map(TextCodes.compact, texts):
            joined = [distinct.setdefault(text, len(distinct)) for text in column.texts]
            codes.append(np.array([*joined, -1], dtype=np.int32)[column.codes])
        return type(texts[0])(np.concatenate(codes), list(distinct))
    arrays = [column for column in columns if not isinstance(column, TextCodes)]
    if not any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        return np.concatenate(arrays)
    masks = np.concatenate([np.ma.getmaskarray(array) for array in arrays])
    return np.ma.array(np.concatenate([np.ma.getdata(array) for array in arrays]), mask=masks)
