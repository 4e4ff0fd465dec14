"""Embedding tables to place, and their JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.errors import MissingFileError, OptionError, ParseError
from torchtraceap.ops.durations import (
    EmbeddingTable,
    ReuseHistogram,
    UnknownDurationError,
    dtype_label,
)
from torchtraceap.ops.durations.estimate import element_bytes

__all__ = ["Table", "as_tables", "read_tables"]

_MOST_TABLES = 100_000
_MOST_ROWS = 10**13
_MOST_DIM = 1 << 20
_MOST_LOOKUPS = 1e7
_TYPES = {8: "fp64", 4: "fp32", 2: "fp16", 1: "fp8"}
_KEYS = ("name", "rows", "dim", "pooling_factor", "dtype", "reuse", "mean_reuse")


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table and its lookups."""

    name: str
    rows: int
    dim: int
    """Elements of a row."""
    pooling_factor: float = 1.0
    """Mean lookups of one sample."""
    histogram: ReuseHistogram | None = None
    """Reuse of distinct rows in a global batch; None for uniform lookups."""
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        for what, value, most in (
            ("rows", self.rows, _MOST_ROWS),
            ("dim", self.dim, _MOST_DIM),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise OptionError(
                    f"table {self.name}: {what} must be a whole number from 1 to {most:,}, "
                    f"not {value!r}"
                )
        lookups = self.pooling_factor
        is_number = isinstance(lookups, (int, float)) and not isinstance(lookups, bool)
        if not is_number or not 0 < lookups <= _MOST_LOOKUPS:
            raise OptionError(
                f"table {self.name}: pooling_factor must be a number above 0 and at most "
                f"{_MOST_LOOKUPS:,.0f}, not {lookups!r}"
            )
        try:
            element_bytes(dtype_label(self.dtype))
        except UnknownDurationError as error:
            raise OptionError(f"table {self.name}: {error}") from None

    @property
    def element_bytes(self) -> int:
        """Size of one element, bytes."""
        return element_bytes(dtype_label(self.dtype))

    def embedding(self) -> EmbeddingTable:
        """Return the table as the duration models take it."""
        return EmbeddingTable(
            self.rows, self.dim, self.pooling_factor, self.histogram, self.element_bytes
        )


def as_tables(
    tables: Sequence[Table | EmbeddingTable | Mapping[str, Any]],
) -> tuple[Table, ...]:
    """Return tables from `Table`, `EmbeddingTable` or mappings.

    Raises:
        OptionError: There are none, a name is there twice, or one is none.
    """
    if isinstance(tables, (str, bytes, Mapping)) or not isinstance(tables, Sequence):
        raise OptionError(f"tables are a list of tables, not {type(tables).__name__}")
    found = tuple(_table(entry, number) for number, entry in enumerate(tables))
    if not found:
        raise OptionError("there is no table to place")
    if len(found) > _MOST_TABLES:
        raise OptionError(f"{len(found):,} tables are more than {_MOST_TABLES:,}")
    names: set[str] = set()
    for table in found:
        if table.name in names:
            raise OptionError(f"two tables are called {table.name!r}")
        names.add(table.name)
    return found


def _table(entry: Table | EmbeddingTable | Mapping[str, Any], number: int) -> Table:
    if isinstance(entry, Table):
        return entry
    if isinstance(entry, EmbeddingTable):
        return _named(entry, f"table_{number}")
    if not isinstance(entry, Mapping):
        raise OptionError(f"table {number} is no object with {', '.join(_KEYS)}")
    name = str(entry.get("name", f"table_{number}"))
    unknown = sorted(str(key) for key in entry if key not in _KEYS)
    if unknown:
        raise OptionError(
            f"table {name}: there is no {', '.join(unknown)}; known are {', '.join(_KEYS)}"
        )
    missing = [key for key in ("rows", "dim") if key not in entry]
    if missing:
        raise OptionError(f"table {name}: {' and '.join(missing)} must be given")
    return Table(
        name,
        _whole(entry["rows"]),
        _whole(entry["dim"]),
        entry.get("pooling_factor", 1.0),
        _histogram(name, entry.get("reuse"), entry.get("mean_reuse")),
        str(entry.get("dtype", "fp32")),
    )


def _named(table: EmbeddingTable, name: str) -> Table:
    dtype = _TYPES.get(table.element_bytes)
    if dtype is None:
        raise OptionError(f"table {name}: elements of {table.element_bytes} bytes have no type")
    sizes = [np.asarray(one) for one in (table.rows, table.columns, table.lookups_per_bag)]
    if any(one.shape or one.dtype.kind not in "iuf" for one in sizes):
        raise OptionError(f"table {name}: its sizes must be single numbers")
    rows, columns, lookups = (one.item() for one in sizes)
    return Table(name, _whole(rows), _whole(columns), float(lookups), table.histogram, dtype)


def _whole(value: Any) -> Any:
    """Return an integral float as int; `Table` refuses others."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _histogram(name: str, shares: Any, mean: Any) -> ReuseHistogram | None:
    if shares is None:
        if mean is not None:
            raise OptionError(f"table {name}: mean_reuse says nothing without reuse")
        return None
    numbers = [shares] if not isinstance(shares, Sequence) or isinstance(shares, str) else shares
    given = [*numbers, *([] if mean is None else [mean])]
    if not all(_is_finite(value) for value in given):
        raise OptionError(f"table {name}: reuse is a list of numbers, mean_reuse a number")
    try:
        return ReuseHistogram(
            tuple(float(share) for share in numbers), None if mean is None else float(mean)
        )
    except ValueError as error:
        raise OptionError(f"table {name}: reuse: {error}") from None


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < 1e300


def read_tables(path: str | os.PathLike[str]) -> tuple[Table, ...]:
    """Read tables from JSON: a list of objects, or an object with such a list as `tables`.

    Each has `rows` and `dim`, and may have `name`, `pooling_factor` (1), `dtype` ("fp32"), `reuse`
    (17 shares of the distinct rows by how often a batch looks them up; see `ReuseHistogram`) and
    `mean_reuse` (lookups per distinct row).

    Raises:
        MissingFileError: There is no such file.
        ParseError: The file is no JSON.
        OptionError: The file holds no tables, or an invalid one.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise ParseError(f"{path} is no JSON: it is not text") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path} is no JSON: {error}") from None
    tables = document.get("tables") if isinstance(document, dict) else document
    if not isinstance(tables, list):
        raise OptionError(f"{path} holds no list of tables")
    return as_tables(tables)
