"""Tools for clients of the Model Context Protocol beside those that a language model is offered:
every table of the catalog, serving engines, SQL, explanations, and the events around a time.

A table that joins the catalog is a tool without a line here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.formatting import plain_line
from torchtraceap.core.results import PHASES
from torchtraceap.errors import OptionError
from torchtraceap.explanation.numbers import Own, time_quantity, to_quantities
from torchtraceap.explanation.tool_results import MOST_CELL, ToolData, clean, page, table_rows
from torchtraceap.explanation.tools import (
    COLUMNS,
    CONTAINS,
    LIMIT,
    OF_RANK,
    OFFSET,
    RANK,
    SORT,
    TABLE_RESULT,
    TOOLS,
    Json,
    Parameter,
    Tool,
)
from torchtraceap.tables.catalog import TABLES, Option, table_spec
from torchtraceap.tables.serving.serving import VIEWS
from torchtraceap.tables.sql import run_sql, sql_tables

__all__ = ["client_tools"]

MOST_QUERY = 4_000
"""Most characters of a query."""
MOST_FRAMES = 24
_MOST_ROW = 2**53


def client_tools() -> tuple[Tool, ...]:
    """Return these tools, in the order in which they are listed."""
    known = {tool.name for tool in (*TOOLS, _SERVING)}
    tables = (_table_tool(name) for name in TABLES if name not in known)
    return (*tables, _SERVING, _sql_tool(), _EXPLAIN, _EVENTS_AROUND)


def _table_tool(name: str) -> Tool:
    """Return the tool of a table, made of what the table says of itself."""
    spec = table_spec(name)
    offered = [option for option in spec.options if option.kind != "path"]
    views = Parameter(
        "by", "What a row is.", choices=spec.views, default=next(iter(spec.views), "")
    )
    parameters = [
        *([views] if spec.views else []),
        *map(_parameter, offered),
        SORT,
        CONTAINS,
        COLUMNS,
        LIMIT,
        OFFSET,
        *([RANK] if spec.per_rank else []),
    ]
    own = [option.keyword for option in offered]

    def run(box: ToolData, given: Json) -> Json:
        options = {keyword: given[keyword] for keyword in own}
        if isinstance(options.get("step"), str) and options["step"].isdecimal():
            options["step"] = int(options["step"])
        if spec.views:
            options["by"] = given["by"]
        if spec.per_rank:
            options["rank"] = given["rank"]
        table = box.table(name, **options)
        return table_rows(table, table.first or table.columns, given)

    summary = TABLES[name].summary
    return Tool(name.replace("-", "_"), f"Table: {summary}.", parameters, run, TABLE_RESULT)


def _parameter(option: Option) -> Parameter:
    """Return an option of a table as an argument; times are in nanoseconds, as in its name."""
    help, default = f"{option.help[:1].upper()}{option.help[1:]}.", option.default
    if option.kind in ("integer", "count", "microseconds"):
        return Parameter(option.keyword, help, "integer", 0, _MOST_ROW, default=default)
    if option.kind in ("flag", "no_flag"):
        return Parameter(option.keyword, help, "boolean", default=default)
    return Parameter(option.keyword, help, choices=option.choices or (), default=default)


# ------------------------------------------------------------------------- SQL


def _sql_tool() -> Tool:
    names = ", ".join(sql_tables())
    return Tool(
        "sql",
        "One query of DuckDB's SQL that selects from the tables of the trace, for at most ten "
        f"seconds; `describe TABLE` gives its columns. Tables: {names}.",
        (Parameter("query", "The query.", high=MOST_QUERY, required=True), LIMIT, OFFSET),
        _sql,
        TABLE_RESULT,
    )


def _sql(box: ToolData, given: Json) -> Json:
    query = given["query"]
    table = box.kept(("sql", query), lambda: run_sql(box.trace, query))
    paged = {"contains": None, "sort": None, "columns": None, **given}
    return table_rows(table, table.columns, paged)


# ------------------------------------------------------------------------- serving


def _serving(box: ToolData, given: Json) -> Json:
    """Return a table of `torchtraceap serving`."""
    options = {name: given[name] for name in ("by", "phase", "steady", "rank")}
    table = box.table("serving", **options)
    facts = {name: clean(value) for name, value in to_quantities(table.facts).items()}
    return {"facts": facts, **table_rows(table, table.columns, given)}


_SERVING = Tool(
    "serving",
    "Of a serving engine (vLLM, SGLang, ATOM, TensorRT-LLM, xDiT): its iterations with phase, "
    "requests, tokens and times; medians by phase; layers of the model with their GPU time; "
    "bubbles between iterations with what the host did.",
    (
        Parameter(
            "by",
            "What a row is.",
            choices=VIEWS,
            default=VIEWS[0],
        ),
        Parameter(
            "phase",
            "Only iterations of this phase.",
            choices=PHASES,
        ),
        *map(_parameter, table_spec("serving").options),
        SORT,
        CONTAINS,
        COLUMNS,
        LIMIT,
        OFFSET,
        OF_RANK,
    ),
    _serving,
    {"facts": "object", **TABLE_RESULT},
)

# ------------------------------------------------------------------------- explanations


def _explain(box: ToolData, given: Json) -> Json:
    """Return the parts of the profiled time that lose most, in words; no model is asked."""
    from torchtraceap.explanation.explain import explain

    found = explain(box.diagnosis)

    def show(segment: Any) -> Json:
        return {
            "type": Own(segment.type),
            "confidence": round(segment.confidence, 2),
            "start": time_quantity(segment.start_ns - found.begin_ns),
            "length": time_quantity(segment.end_ns - segment.start_ns),
            "text": plain_line(f"{segment.what} {segment.why}", 10 * MOST_CELL),
            "advice": plain_line(segment.change.text, 5 * MOST_CELL),
            "code": segment.change.diff and segment.change.diff[: 10 * MOST_CELL],
            "verify": plain_line(segment.verify, 5 * MOST_CELL),
        }

    return {"segments": page(found.segments, given, show)}


_EXPLAIN = Tool(
    "explain",
    "The parts of the profiled time that lose most, each in words: what happens, why it costs "
    "time, what to change and how to check it. Computed from rules; no model is asked.",
    (LIMIT, OFFSET),
    _explain,
    {"segments": "list"},
)

# ------------------------------------------------------------------------- events around a time


def _events_around(box: ToolData, given: Json) -> Json:
    """Return the complete events that run within a distance of a time, the nearest start first,
    each with the calls above it."""
    part = box.trace.rank(given["rank"])
    table, begin_ns = part.table, part.tree.profiled[0]
    starts, lengths = np.asarray(table.ts_ns), np.asarray(table.dur_ns)
    if (given["row"] is None) == (given["time_ns"] is None):
        raise OptionError("expected a row, or time_ns from the start of the profiled time")
    if given["row"] is not None:
        if given["row"] >= len(table):
            raise OptionError(f"row: there are rows 0 to {len(table) - 1}")
        first, last = starts[given["row"]], starts[given["row"]] + lengths[given["row"]]
    else:
        first = last = begin_ns + given["time_ns"]
    within = given["within_ns"]
    near = np.asarray(table.complete) & (starts <= last + within)
    near &= (starts + lengths >= first - within) & (
        np.asarray(table.kind) != _core.EventKind.PROFILER_TRACE
    )
    if given["contains"]:
        wanted = given["contains"].casefold()
        holds = np.asarray([wanted in text.casefold() for text in table.strings], dtype=bool)
        near &= holds[np.asarray(table.name)]
    rows = np.flatnonzero(near)
    rows = rows[np.argsort(np.abs(starts[rows] - first), kind="stable")]
    parent, launch = np.asarray(part.tree.parent), np.asarray(part.tree.launch)
    kinds = _core.kind_names()

    def show(row: int) -> Json:
        stack: list[str] = []
        above = int(launch[row])
        if above == _core.NO_ROW:
            above = int(parent[row])
        while above != _core.NO_ROW and len(stack) < MOST_FRAMES:
            stack.append(plain_line(table.strings[int(table.name[above])]))
            above = int(parent[above])
        return {
            "row": row,
            "name": plain_line(table.strings[int(table.name[row])]),
            "kind": Own(kinds[int(table.kind[row])]),
            "start": time_quantity(int(starts[row]) - begin_ns),
            "duration": time_quantity(int(lengths[row])),
            "stack": stack,
        }

    return {
        "around": time_quantity(int(first) - begin_ns),
        "events": page(rows.tolist(), given, show),
    }


_EVENTS_AROUND = Tool(
    "events_around",
    "Events that run around a time, or around the event of a row, the nearest first, each with "
    "the calls above it (of GPU work: above its launch), the innermost first.",
    (
        Parameter("row", "Of an event, as other tools give it.", "integer", 0, _MOST_ROW),
        Parameter(
            "time_ns", "In its place: from the start of the profiled time.", "integer", 0, 2**62
        ),
        Parameter("within_ns", "Before and after it.", "integer", 0, 10**12, default=1_000_000),
        CONTAINS,
        LIMIT,
        OFFSET,
        OF_RANK,
    ),
    _events_around,
    {"around": "quantity", "events": "list"},
)
