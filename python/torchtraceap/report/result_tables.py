"""Any result as the tables by which a person reads it, for `print` and for notebooks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.formatting import (
    format_bytes,
    format_count,
    format_ns,
    format_percent,
    one_line,
)
from torchtraceap.core.rendering import find_renderer
from torchtraceap.core.results import Finding, Summary
from torchtraceap.core.table import ColumnTable
from torchtraceap.report.simulation import simulation_tables
from torchtraceap.report.tables import (
    TextTable,
    render_table,
    summary_tables,
    table_for_reading,
)
from torchtraceap.tables.summary import build_summary

if TYPE_CHECKING:
    from torchtraceap.ops.durations.calibration import Calibration, KindTimes
    from torchtraceap.ops.durations.estimate import Estimates
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.tables.tree import TreeView
    from torchtraceap.trace.execution import ExecutionTrace
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["result_text", "tables_of", "tree_text"]

MAX_ROWS = 20
MAX_TEXT = 400  # characters of a value
MAX_ITEMS = 8  # of a list in a value
LEAST_WIDTH = 60


def result_text(result: object) -> str:
    """The tables of a result below each other, as wide as the terminal."""
    width = max(LEAST_WIDTH, shutil.get_terminal_size((100, 40)).columns)
    return "\n\n".join(render_table(table, width=width) for table in tables_of(result))


def tree_text(tree: TreeView) -> str:
    """The listing of a tree."""
    return tree.to_text()


def tables_of(result: object) -> list[TextTable]:
    """Return the tables that are registered for the result's class, or the nearest one above it;
    else a table of its fields."""
    describe = find_renderer(type(result), "tables")
    return describe(result) if describe else [_fields_table(type(result).__name__, _fields(result))]


def column_tables(table: ColumnTable) -> list[TextTable]:
    return [table_for_reading(table, limit=MAX_ROWS)]


def summary_result_tables(summary: Summary) -> list[TextTable]:
    return summary_tables(summary)


def trace_tables(trace: Ranks) -> list[TextTable]:
    return summary_tables(build_summary(trace))


def rank_tables(rank: RankTrace) -> list[TextTable]:
    told = {"rank": rank.rank, "events": len(rank.table), "path": rank.path}
    return [_fields_table("Rank of a trace", told.items())]


def finding_tables(finding: Finding) -> list[TextTable]:
    share = format_percent(finding.cost_share)
    rows: list[tuple[str, str]] = [
        ("type", finding.type),
        ("costs", f"{format_ns(finding.cost_ns)}, {share} of the profiled time"),
        ("saving", _value("saving", finding.saving)),
        ("why", one_line(finding.why, 4 * MAX_TEXT)),
        ("change", one_line(finding.fix, 4 * MAX_TEXT)),
    ]
    rows += [
        ("seen in", f"{one_line(event.name, 100)} ({format_ns(event.duration_ns)})")
        for event in finding.evidence[:3]
    ]
    return [TextTable(finding.title, ("", ""), [], "\n".join(f"{n}: {v}" for n, v in rows))]


def simulation_result_tables(simulation: Simulation) -> list[TextTable]:
    return simulation_tables(simulation.to_dict())


def estimate_tables(estimates: Estimates) -> list[TextTable]:
    sources = [estimates.sources[code] for code in estimates.source[:MAX_ROWS].tolist()]
    columns: dict[str, Any] = {
        "estimate_ns": estimates.ns[:MAX_ROWS],
        "low_ns": estimates.low_ns[:MAX_ROWS],
        "high_ns": estimates.high_ns[:MAX_ROWS],
        "source": np.array(sources, dtype=object),
    }
    return [_cut(ColumnTable(columns), len(estimates))]


def kind_time_tables(times: KindTimes) -> list[TextTable]:
    columns: dict[str, Any] = {
        "class": np.array([str(name) for name in times.classes[:MAX_ROWS]], dtype=object),
        "calls": times.calls[:MAX_ROWS],
        "measured_ns": times.measured_ns[:MAX_ROWS],
        "estimate_ns": times.estimates.ns[:MAX_ROWS],
    }
    return [_cut(ColumnTable(columns), len(times.kinds))]


def calibration_tables(calibration: Calibration) -> list[TextTable]:
    head = ("class", "ratio", "median", "10 %", "90 %", "kinds", "calls", "")
    rows = [
        (
            one_line(one.name, 40),
            *(f"{value:.2f}" for value in (one.ratio, one.median, one.low, one.high)),
            format_count(one.kinds),
            format_count(one.calls),
            "few" if one.is_few else "",
        )
        for one in calibration.classes.values()
    ]
    return [TextTable("", head, rows, "" if rows else "no kernels that a model estimates")]


def execution_trace_tables(trace: ExecutionTrace) -> list[TextTable]:
    told = {"path": trace.path, "schema": trace.schema, "pid": trace.pid}
    return [_fields_table("Execution trace", told.items()), *column_tables(trace.nodes)]


def recording_tables(recording: Any) -> list[TextTable]:
    told = {
        "file": None if recording.path is None else str(recording.path),
        "steps": recording.steps,
        "recorded_steps": recording.recorded_steps,
    }
    return [_fields_table("Recording", told.items())]


def trace_handler_tables(handler: Any) -> list[TextTable]:
    told = {"folder": str(handler.folder), "files": [path.name for path in handler.paths]}
    return [_fields_table("Trace handler", told.items())]


def _cut(table: ColumnTable, total: int) -> TextTable:
    """A table of the first rows of so many."""
    shown = table_for_reading(table)
    left = total - table.num_rows
    note = f"{format_count(left)} more" if left > 0 else ""
    return TextTable("", shown.columns, shown.rows, note)


# ------------------------------------------------------------------------------------- fields


def _fields(result: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(result):
        return ((field.name, getattr(result, field.name)) for field in fields(result))
    names = getattr(result, "_fields", None)
    if names is None:  # of the core: what it offers
        names = [name for name in dir(result) if not name.startswith("_")]
    values = ((name, getattr(result, name)) for name in names)
    return ((name, value) for name, value in values if not callable(value))


def _fields_table(title: str, told: Any) -> TextTable:
    rows = [(_words(name), _value(name, value)) for name, value in told]
    return TextTable("", (title, ""), rows)


def _words(name: str) -> str:
    return name.removesuffix("_ns").replace("_", " ")


def _value(name: str, value: Any, *, inside: bool = False) -> str:
    """A field as text, by the unit that its name ends in."""
    if value is None:
        return "—"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, float, np.number)):
        return _number(name, value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    if isinstance(value, ColumnTable):
        return f"{format_count(value.num_rows)} rows"
    if isinstance(value, Mapping):
        few = [f"{key} {_value(key, item, inside=True)}" for key, item in _first(value.items())]
        return _listed(few, value)
    if isinstance(value, tuple) and len(value) > MAX_ITEMS and isinstance(value[0], (int, float)):
        return f"{format_count(len(value))}, {_value(name, value[0])} to {_value(name, value[-1])}"
    if isinstance(value, (list, tuple, range)) and not hasattr(value, "_fields"):
        return _listed([_value(name, item, inside=True) for item in _first(value)], value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _inline(value, inside)
    return one_line(str(value), MAX_TEXT)


def _number(name: str, value: Any) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return "—" if value != value else str(value)
    if name == "ns" or name.endswith("_ns"):
        return format_ns(round(value))
    if name.endswith("_share"):
        return format_percent(value)
    if name == "bytes" or name.endswith("_bytes") or name.startswith("bytes_"):
        return format_bytes(value)
    return format_count(value) if isinstance(value, int) else f"{value:.4g}"


def _inline(value: Any, inside: bool) -> str:
    """A result within another: its name and kind, or its first fields."""
    told = dict(_fields(value))
    for name in ("title", "name", "type", "path"):
        if inside and isinstance(told.get(name), str):
            return one_line(told[name], 80)
    listed = (
        f"{_words(field)} {_value(field, item, inside=True)}"
        for field, item in told.items()
        if not (item is None or (isinstance(item, str) and not item))
    )
    return one_line(", ".join(listed), MAX_TEXT)


def _first(items: Any) -> list[Any]:
    return list(islice(items, MAX_ITEMS))


def _listed(texts: Sequence[str], whole: Any) -> str:
    left = len(whole) - len(texts)
    more = f" and {format_count(left)} more" if left > 0 else ""
    return one_line(", ".join(texts), MAX_TEXT) + more if texts else "none"
