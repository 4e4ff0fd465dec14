"""SQL over a corpus: a view for each table with the rows that count, and `costs` in GPU hours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from torchtraceap.core.table import ColumnTable
from torchtraceap.corpus.analyse import COLUMNS
from torchtraceap.corpus.sources import tag_of
from torchtraceap.corpus.store import TABLES, Store, import_pyarrow
from torchtraceap.tables.sql import MAX_SECONDS, connect_closed, run_query, sql_text

__all__ = ["VIEWS", "connect", "run_corpus_sql"]

VIEWS = (*TABLES, "costs")
_TYPES = {"s": "varchar", "i": "bigint", "f": "double", "b": "boolean"}
_COSTS = """
create view costs as
select runs.*, findings.* exclude (run),
       gpu_hours * cost_share as lost_gpu_hours, gpu_hours * saving_share as saved_gpu_hours
from runs join findings using (run)
"""


def run_corpus_sql(folder: str, query: str, *, seconds: float = MAX_SECONDS) -> ColumnTable:
    """Run one query over the tables of a corpus.

    Args:
        folder: The corpus.
        query: One statement that selects, of the views `VIEWS`.
        seconds: The longest that it may take.

    Raises:
        OptionError: It is no corpus, or see `run_query`.
        MissingDependencyError: DuckDB or pyarrow is not installed.
    """
    store = Store(folder)
    make = partial(_make_views, store=store)
    make_of = [str(store.folder.resolve()) + os.sep]
    store.settings()
    return run_query(make, VIEWS, query, folders=make_of, seconds=seconds)


def connect(folder: str) -> Any:
    """Return a connection of DuckDB that has the views; for queries of ours."""
    store = Store(folder)
    store.settings()
    connection = connect_closed([str(store.folder.resolve()) + os.sep])
    _make_views(connection, store)
    return connection


def _make_views(connection: Any, store: Store) -> None:
    pa = import_pyarrow()
    batches = store.batches()
    alive = store.living(batches)
    living = pa.table(
        {
            "run": pa.array(list(alive), pa.string()),
            "batch": pa.array([batch for batch, _ in alive.values()], pa.string()),
        }
    )
    connection.register("living", living)
    folder = store.folder.resolve()
    for table in TABLES:
        files = [str(folder / name) for batch in batches for name in batch.tables.get(table, ())]
        connection.execute(f"create view {table} as {_select(table, files, store)}")
    connection.execute(_COSTS)


def _select(table: str, files: Sequence[str], store: Store) -> str:
    further = _tags(store) if table == "runs" else ""
    columns = COLUMNS.get(table, {"run": "s"})
    typed = ", ".join(f"null::{_TYPES[kind]} as {name}" for name, kind in columns.items())
    if not files:
        return f"select *{further} from (select {typed}) where false"
    listed = ", ".join(map(sql_text, files))
    # Files of an older version may lack columns; their values are null.
    return (
        f"select rows.* exclude (batch){further} from "
        f"(select {typed}, null::varchar as batch where false union all by name "
        f"select * from read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        ") rows semi join living on split_part(rows.run, '.', 1) = living.run "
        "and rows.batch = living.batch"
    )


def _tags(store: Store) -> str:
    """Return a column for each tag that has none of its own yet."""
    names = [tag_of(text)[0] for text in store.settings()["tags"]]
    taken = {name.lower() for table in ("runs", "findings") for name in COLUMNS[table]}
    return "".join(
        f', json_extract_string(tags, {sql_text(f"$.{name}")}) as "{name}"'
        for name in dict.fromkeys(names)
        if name.lower() not in taken
    )
