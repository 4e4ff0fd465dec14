"""SQL over every table of a trace, with DuckDB; columns go there through Arrow without a copy.

A query reads these tables and does nothing else: it is one statement that selects, calls no
function that reaches files, settings, memory addresses or other queries, and meets a DuckDB
without files, network, extensions and ways to change that.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain, count, pairwise
from math import isfinite
from typing import Any

import numpy as np

from torchtraceap.core.columns import Column, encode_json, encode_texts
from torchtraceap.core.table import ColumnTable
from torchtraceap.core.threads import core_count
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.tables.catalog import TABLES, table_spec
from torchtraceap.trace.ranks import Ranks

__all__ = ["connect_closed", "run_query", "run_sql", "sql_tables", "sql_text"]

MAX_QUERY = 20_000  # characters: the plan of 90,000 takes five seconds and can't be interrupted
MAX_VALUES = 20_000_000  # of an answer, which is Python's objects for a while: about 2 GB
MAX_THREADS = 8
FETCHED_VALUES = 50_000  # about as many at once
FETCHED_ROWS = 10_000  # at once at most
MEMORY_SHARE = 4  # DuckDB gets one part in so many
MAX_SECONDS = 10.0  # a query may take; one that counts every pair of rows would never end
STOP_SECONDS = 0.8  # for a query to notice that it is interrupted

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # variables of the caller are no tables
    "temp_directory": "",
}
# The progress bar is drawn on standard output.
_SETTINGS = ("set enable_external_access = false", "set enable_progress_bar = false",
             "set lock_configuration = true")  # fmt: skip

_FIRST_WORDS = {"select", "with", "from", "values", "table", "pivot", "pivot_wider", "unpivot",
                "pivot_longer", "summarize", "describe", "desc", "show", "("}  # fmt: skip
# PIVOT makes an enumeration of its values first, or is a statement of its own kind.
_STATEMENTS = {"SELECT", "CREATE", "MULTI"}
_TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each",
                    "json_tree", "histogram", "histogram_values", "summary"}  # fmt: skip
# Those that read settings or the environment, wait, count on, log, or take the inner state of an
# aggregate from anywhere.
_OTHER_FUNCTIONS = {"getenv", "current_setting", "getvariable", "write_log", "sleep_ms",
                    "parse_duckdb_log_message", "pg_sleep", "nextval", "currval", "setval",
                    "setseed", "combine", "finalize", "to_aggregate_state", "stats", "vector_type",
                    "json_serialize_plan", "json_execute_serialized_sql"}  # fmt: skip
_INTERNAL = "__internal"
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
MAX_MESSAGE = 600  # an internal error brings its stack along


def sql_tables() -> dict[str, Callable[[Ranks], ColumnTable]]:
    """Return the tables that a query may name; one is made only when the query names it."""
    return {
        name: partial(spec.make, **options)
        for spec in map(table_spec, TABLES)
        for name, options in spec.sql.items()
    }


def run_sql(trace: Ranks, query: str, *, seconds: float = MAX_SECONDS) -> ColumnTable:
    """Run one query over the tables of a trace.

    Args:
        trace: What to query.
        query: One statement of DuckDB's SQL that selects; tables are those of `sql_tables`. Files,
            networks, settings and extensions are out of reach.
        seconds: The longest that the query may take; making the tables that it names is not
            counted.

    Raises:
        OptionError: DuckDB does not understand the query, it does more than select, it takes longer
            than `seconds`, or its answer has more than `MAX_VALUES` values.
        MissingDependencyError: DuckDB is not installed.
    """
    tables = sql_tables()
    words = set(re.findall(r"\w+", query.lower()))

    def make(connection: Any) -> None:
        for name in tables.keys() & words:
            connection.register(name, tables[name](trace))

    return run_query(make, tables, query, seconds=seconds)


def connect_closed(folders: Sequence[str] = ()) -> Any:
    """Return a connection of DuckDB to nothing but memory and what is in `folders`.

    Raises:
        MissingDependencyError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingDependencyError("SQL needs DuckDB: pip install 'torchtraceap[sql]'") from None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MEMORY_SHARE
    threads = min(core_count(), MAX_THREADS)
    limits: dict[str, Any] = {"threads": threads, "memory_limit": f"{memory >> 20}MiB"}
    connection = duckdb.connect(config={**_CLOSED, **limits})
    listed = ", ".join(map(sql_text, folders))
    for statement in (f"set allowed_directories = [{listed}]", *_SETTINGS):
        connection.execute(statement)
    return connection


def sql_text(text: str) -> str:
    """Return a text as a constant of SQL."""
    return "'" + text.replace("'", "''") + "'"


def run_query(
    make: Callable[[Any], None],
    names: Iterable[str],
    query: str,
    *,
    folders: Sequence[str] = (),
    seconds: float = MAX_SECONDS,
) -> ColumnTable:
    """Run one query that selects.

    Args:
        make: Makes the tables and views of a connection.
        names: Their names, for messages.
        query: One statement of DuckDB's SQL that selects.
        folders: Folders whose files the views read.
        seconds: The longest that the query may take; `make` is not counted.

    Raises:
        OptionError, MissingDependencyError: As `run_sql`.
    """
    connection = connect_closed(folders)
    import duckdb

    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise OptionError(f"SQL: the seconds of a query must be positive, not {seconds:g}")
    try:
        _check(duckdb, connection, query)
        make(connection)
        given, rows = _answer(connection, query, seconds)
    except duckdb.Error as error:
        message = " ".join(str(error).split())[:MAX_MESSAGE]
        raise OptionError(f"SQL: {message} (tables: {', '.join(names)})") from None
    if not given:
        raise OptionError("SQL: the query gives no rows")
    columns = zip(*rows, strict=True) if rows else ([] for _ in given)
    result: dict[str, Column] = {}
    for name, values in zip(given, columns, strict=True):
        # `select a, a` gives two columns of one name.
        names_left = chain([name], (f"{name}_{number}" for number in count(1)))
        result[next(n for n in names_left if n not in result)] = _column(list(values))
    return ColumnTable(result)


# ------------------------------------------------------------------------------ what may be asked


_Token = tuple[str, str]
"""The kind of a token and its text."""


def _check(duckdb: Any, connection: Any, query: str) -> None:
    """Refuse whatever does more than select from the tables."""
    if len(query) > MAX_QUERY:
        raise OptionError(f"SQL: a query has at most {MAX_QUERY} characters, not {len(query)}")
    statements = connection.extract_statements(query)
    tokens = list(_tokens(duckdb, query))
    while tokens and tokens[-1][1] == ";":
        tokens.pop()
    if not tokens:
        raise OptionError("SQL: the query gives no rows")
    if ("operator", ";") in tokens:
        raise OptionError("SQL: one statement at a time")
    kinds = {statement.type.name for statement in statements}
    first = tokens[0][1]
    if first.lower() not in _FIRST_WORDS or not kinds <= _STATEMENTS:
        raise OptionError(f"SQL: a query selects; {first.upper()} does something else")
    tables = connection.execute(
        "select distinct lower(function_name) from duckdb_functions() "
        "where function_type in ('table', 'table_macro', 'pragma')"
    ).fetchall()
    refused = {name for (name,) in tables} - _TABLE_FUNCTIONS | _OTHER_FUNCTIONS
    for (kind, text), following in pairwise(tokens):
        name = text.lower()
        called = following == ("operator", "(") and kind in ("identifier", "keyword")
        if called and (name in refused or name.startswith(_INTERNAL)):
            raise OptionError(f"SQL: {name}() is disabled: a query reads the trace's tables alone")


def _tokens(duckdb: Any, query: str) -> Iterator[_Token]:
    """Yield the tokens of a query without comments; names without their quotes."""
    text = query.encode()
    entries = duckdb.tokenize(query)
    for (start, kind), (end, _) in pairwise([*entries, (len(text), None)]):
        token = text[start:end].decode(errors="replace").strip()
        name = getattr(kind, "name", str(kind)).rpartition(".")[2]
        if name == "comment":
            continue
        if name == "identifier" and (quoted := _QUOTED.match(token)):
            token = quoted[1].replace('""', '"')
        yield name, token


# ------------------------------------------------------------------------------ the answer

_Rows = list[tuple[Any, ...]]


def _answer(connection: Any, query: str, seconds: float) -> tuple[list[str], _Rows]:
    """Return names and rows, from a thread: a signal reaches Python only where Python runs, and
    a query is stopped only from outside."""
    outcome: list[tuple[list[str], _Rows]] = []
    failure: list[BaseException] = []
    stopped, done = threading.Event(), threading.Event()

    def work() -> None:
        try:
            result = connection.execute(query)
            names = [entry[0] for entry in result.description or ()]
            outcome.append((names, _fetch(result, stopped)))
        except BaseException as error:
            failure.append(error)
        finally:
            connection.close()
            done.set()

    thread = threading.Thread(target=work, daemon=True, name="torchtraceap-sql")
    thread.start()
    try:
        # A join that is interrupted takes the thread for finished.
        if not done.wait(seconds):
            raise OptionError(
                f"SQL: stopped after {seconds:g} s: join on equal values, filter, or aggregate"
            )
    except BaseException:
        stopped.set()
        connection.interrupt()
        done.wait(STOP_SECONDS)
        raise
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _fetch(result: Any, stopped: threading.Event) -> _Rows:
    """Return all rows; one may hold a list of millions, so few are taken until that is known."""
    rows: _Rows = []
    values, at_once = 0, 1
    while not stopped.is_set() and (more := result.fetchmany(at_once)):
        size = sum(map(_size, more))
        rows += more
        values += size
        if values > MAX_VALUES:
            raise OptionError(f"SQL: more than {MAX_VALUES} values; add a LIMIT, or aggregate")
        at_once = max(1, min(FETCHED_ROWS, len(more) * FETCHED_VALUES // size))
    return rows


def _size(value: Any) -> int:
    """Return the number of values in a row, lists and structures taken apart."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return sum(map(_size, value)) + 1 if isinstance(value, (list, tuple)) else 1


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
        return encode_json(map(_json_value, values))
    return encode_texts(None if value is None else str(value) for value in values)


def _json_value(value: Any) -> Any:
    """Return a value that JSON has; NaN and infinities are absent, other things text."""
    if isinstance(value, dict):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(inner) for inner in value]
    if isinstance(value, (float, Decimal)):
        return float(value) if isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else str(value)
