"""SQL over every table of a trace, with DuckDB; columns go there through Arrow without a copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from torchtraceap.analysis.catalogue import TABLES, table_spec
from torchtraceap.columns import Column, encode_json, encode_texts
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.ranks import Ranks
from torchtraceap.table import ColumnTable

__all__ = ["run_sql", "sql_tables"]


def sql_tables() -> dict[str, Callable[[Ranks], ColumnTable]]:
    """What a query may name; a table is made only when the query names it."""
    return {
        name: partial(spec.make, **options)
        for spec in map(table_spec, TABLES)
        for name, options in spec.sql.items()
    }


def run_sql(trace: Ranks, query: str) -> ColumnTable:
    """Runs one query over the tables of a trace.

    Args:
        trace: What to query.
        query: DuckDB's SQL; tables are those of `sql_tables`. Files and networks are out of reach.

    Raises:
        OptionError: DuckDB does not understand the query.
        MissingDependencyError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingDependencyError("SQL needs DuckDB: pip install 'torchtraceap[sql]'") from None
    tables = sql_tables()
    words = set(re.findall(r"\w+", query.lower()))
    connection = duckdb.connect(config={"enable_external_access": "false"})
    try:
        for name in tables.keys() & words:
            connection.register(name, tables[name](trace))
        return _to_table(connection.execute(query) if query.strip() else None)
    except duckdb.Error as error:
        names = ", ".join(tables)
        raise OptionError(f"SQL: {' '.join(str(error).split())} (tables: {names})") from None
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
