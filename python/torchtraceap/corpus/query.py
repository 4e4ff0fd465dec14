"""SQL over a corpus: a view for each table with the rows that count, and what a fleet is asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from torchtraceap.core.table import ColumnTable
from torchtraceap.corpus.analyse import COLUMNS
from torchtraceap.corpus.sources import tag_names
from torchtraceap.corpus.store import TABLES, Store, import_pyarrow
from torchtraceap.tables.sql import MAX_SECONDS, connect_closed, run_query, sql_text

__all__ = ["FLEET_VIEWS", "VIEWS", "connect", "run_corpus_sql"]

_TYPES = {"s": "varchar", "i": "bigint", "f": "double", "b": "boolean"}
FLEET_VIEWS = {
    "costs": """
select runs.*, findings.* exclude (run),
       gpu_hours * cost_share as lost_gpu_hours,
       gpu_hours * cost_share * unclaimed_cost_ns / nullif(cost_ns, 0) as own_gpu_hours,
       gpu_hours * saving_share as saved_gpu_hours
from runs join findings using (run)
""",
    "ranks": """
select run, rank,
       max(text) filter (name = 'host') as host,
       max(value) filter (name = 'lateness_ns') as lateness_ns,
       max(text) filter (name = 'verdict') as verdict
from facts where subject = 'rank' group by run, rank
""",
    "fact_places": """
select run, subject, name, kind, value,
       percent_rank() over (partition by subject, name order by value) as place,
       median(value) over (partition by subject, name) as usual
from facts where value is not null and rank is null
""",
    "kernel_hours": """
with whole as (select run, device as gpu, gpu_hours, profiled_ns from runs),
roofs as (
  select gpu, kernel, sum(roofline_ns * count) / sum(gpu_ns) as roofline_share
  from roofline join whole using (run) where roofline_ns is not null group by gpu, kernel
)
select whole.gpu as gpu, name as kernel, any_value(class) as class, count(distinct run) as runs,
       sum(gpu_hours * exclusive_ns / nullif(profiled_ns, 0)) as gpu_hours,
       any_value(roofline_share) as roofline_share
from (select run, name, class, exclusive_ns from kernels) as shown join whole using (run)
left join roofs on roofs.gpu is not distinct from whole.gpu and roofs.kernel = name
group by whole.gpu, name
""",
    "collective_speeds": """
with speeds as (
  select run, gpu, kind, group_size, node_span,
         (2 ^ round(log2(bytes)))::bigint as size_bytes, count(*) as count,
         median(bus_bandwidth_gb_per_s) as gb_per_s
  from (select run, kind, group_size, node_span, bytes, bus_bandwidth_gb_per_s from collectives)
  join (select run, device as gpu from runs) using (run)
  where bytes > 0 and bus_bandwidth_gb_per_s > 0
  group by run, gpu, kind, group_size, node_span, size_bytes
), compared as (
  select *, median(gb_per_s) over same as usual_gb_per_s, count(*) over same as alike
  from speeds window same as (partition by gpu, kind, group_size, node_span, size_bytes)
)
select *, gb_per_s / usual_gb_per_s as share_of_usual from compared
""",
}
"""The selection of each view by its name, in the order in which they are made."""
VIEWS = (*TABLES, *FLEET_VIEWS)
_LATER = {
    "kernels": {"name": "s", "class": "s", "exclusive_ns": "i"},
    "collectives": {"kind": "s", "group_size": "i", "node_span": "i", "bytes": "i",
                    "bus_bandwidth_gb_per_s": "f"},
    "roofline": {"kernel": "s", "count": "i", "gpu_ns": "i", "roofline_ns": "f"},
}  # fmt: skip
"""Columns that the views need of tables that a corpus may lack."""


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
    is_whole = len(alive) == sum(len(batch.runs) for batch in batches)
    for table in TABLES:
        files = [str(folder / name) for batch in batches for name in batch.tables.get(table, ())]
        query = _select(table, files, store, is_whole=is_whole)
        connection.execute(f"create view {table} as {query}")
    for name, query in FLEET_VIEWS.items():
        connection.execute(f"create view {name} as {query}")


def _select(table: str, files: Sequence[str], store: Store, *, is_whole: bool) -> str:
    """Return the rows of a table that count; those of whole batches need no search."""
    further = _tags(store) if table == "runs" else ""
    columns = COLUMNS.get(table, {"run": "s", **_LATER.get(table, {})})
    typed = ", ".join(f"null::{_TYPES[kind]} as {name}" for name, kind in columns.items())
    if not files:
        return f"select *{further} from (select {typed}) where false"
    listed = ", ".join(map(sql_text, files))
    # Files of an older version may lack columns; their values are null.
    return (
        f"select rows.* exclude (batch){further} from "
        f"(select {typed}, null::varchar as batch where false union all by name "
        f"select * from read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        ") rows"
        + (
            ""
            if is_whole
            else " semi join living on split_part(rows.run, '.', 1) = living.run "
            "and rows.batch = living.batch"
        )
    )


def _tags(store: Store) -> str:
    """Return a column for each tag that has none of its own yet."""
    names = tag_names(store.settings())
    taken = {name.lower() for table in ("runs", "findings") for name in COLUMNS[table]}
    return "".join(
        f', json_extract_string(tags, {sql_text(f"$.{name}")}) as "{name}"'
        for name in dict.fromkeys(names)
        if name.lower() not in taken
    )
