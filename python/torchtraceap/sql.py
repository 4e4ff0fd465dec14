"""SQL over every table of a trace, with DuckDB; columns go there through Arrow without a copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.columns import Column, encode_json, encode_texts
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.table import ColumnTable

if TYPE_CHECKING:
    from torchtraceap.trace import Trace

__all__ = ["SQL_TABLES", "run_sql"]

SQL_TABLES: dict[str, Callable[[Trace], Any]] = {
    "events": lambda trace: trace.events(),
    "ops": lambda trace: trace.ops(),
    "op_args": lambda trace: trace.ops(by="args"),
    "op_calls": lambda trace: trace.ops(by="call"),
    "categories": lambda trace: trace.ops(by="category"),
    "modules": lambda trace: trace.modules(),
    "kernels": lambda trace: trace.kernels(),
    "gpu_events": lambda trace: trace.kernels(by="event"),
    "short_kernels": lambda trace: trace.short_kernels(),
    "sequences": lambda trace: trace.sequences(),
    "launches": lambda trace: trace.launches(by="event"),
    "queue": lambda trace: trace.launches(by="queue"),
    "roofline": lambda trace: trace.roofline(),
    "copies": lambda trace: trace.memory(by="copy"),
    "allocator": lambda trace: trace.memory(by="allocator"),
    "memory": lambda trace: trace.memory(by="timeline"),
    "host": lambda trace: trace.host(by="op"),
    "steps": lambda trace: trace.steps(),
    "collectives": lambda trace: trace.collectives(),
    "ranks": lambda trace: trace.ranks_table(),
    "critical_path": lambda trace: trace.critical_path(by="event"),
}
"""What a query may name; a table is made only when the query names it."""


def run_sql(trace: Trace, query: str) -> ColumnTable:
    """Runs one query over the tables of a trace.

    Args:
        trace: What to query.
        query: DuckDB's SQL; tables are those of `SQL_TABLES`. Files and networks are out of reach.

    Raises:
        OptionError: DuckDB does not understand the query.
        MissingDependencyError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingDependencyError("SQL needs DuckDB: pip install 'torchtraceap[sql]'") from None
    words = set(re.findall(r"\w+", query.lower()))
    connection = duckdb.connect(config={"enable_external_access": "false"})
    try:
        for name in SQL_TABLES.keys() & words:
            connection.register(name, SQL_TABLES[name](trace))
        return _to_table(connection.execute(query) if query.strip() else None)
    except duckdb.Error as error:
        tables = ", ".join(SQL_TABLES)
        raise OptionError(f"SQL: {' '.join(str(error).split())} (tables: {tables})") from None
    finally:
        connection.close()


def _to_table(result: Any) -> ColumnTable:
    if result is None or result.description is None:
        raise OptionError("SQL: the query gives no rows")
    names = _unique([entry[0] for entry in result.description])
    rows = result.fetchall()
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return ColumnTable(
        {name: _column(list(values)) for name, values in zip(names, columns, strict=True)}
    )


def _unique(names: list[str]) -> list[str]:
    """`select a, a` gives two columns of one name."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        result.append(f"{name}_{count}" if count else name)
    return result


def _column(values: list[Any]) -> Column:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and all(-(2**63) <= v < 2**63 for v in values if v is not None):
        absent = [value is None for value in values]
        plain = [0 if value is None else value for value in values]
        return np.ma.array(plain, mask=absent, dtype=np.int64)
    if kinds <= {int, float, Decimal}:
        return np.array([np.nan if v is None else float(v) for v in values])
    if kinds == {bool}:
        return encode_texts(None if v is None else str(v).lower() for v in values)
    if kinds & {list, dict, tuple}:
        return encode_json(values)
    return encode_texts(None if value is None else str(value) for value in values)
