"""Any result as the tables by which a person reads it, for `print`, notebooks and commands."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.formatting import (
    format_bytes,
    format_count,
    format_ns,
    format_part,
    format_percent,
    one_line,
)
from torchtraceap.core.rendering import find_renderer
from torchtraceap.core.results import Finding, Summary
from torchtraceap.core.table import ColumnTable
from torchtraceap.report.labels import step_note, trust_text
from torchtraceap.report.tables import TextTable, render_table, table_for_reading
from torchtraceap.tables.summary import build_summary

if TYPE_CHECKING:
    from torchtraceap.ops.durations import Estimate
    from torchtraceap.ops.durations.calibration import Calibration, KindTimes
    from torchtraceap.ops.durations.estimate import Estimates
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.tables.serving.serving import Serving
    from torchtraceap.tables.tree import TreeView
    from torchtraceap.trace.execution import ExecutionTrace
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "estimate_table",
    "result_text",
    "serving_tables",
    "simulation_tables",
    "summary_tables",
    "tables_of",
    "tree_text",
]

MAX_ROWS = 20
MAX_TEXT = 400  # characters of a value
MAX_ITEMS = 8  # items of a list in a value
MAX_STEPS = 12  # rows of the steps of a simulation
LEAST_WIDTH = 60


def result_text(result: object) -> str:
    """Render the tables of a result below each other, as wide as the terminal."""
    width = max(LEAST_WIDTH, shutil.get_terminal_size((100, 40)).columns)
    return "\n\n".join(render_table(table, width=width) for table in tables_of(result))


def tree_text(tree: TreeView) -> str:
    """Return the listing of a tree."""
    return tree.to_text()


def tables_of(result: object) -> list[TextTable]:
    """Return the tables that are registered for the result's class, or the nearest one above it;
    else a table of its fields."""
    describe = find_renderer(type(result), "tables")
    return describe(result) if describe else [_fields_table(type(result).__name__, _fields(result))]


# ------------------------------------------------------------------------------------- traces


def column_tables(table: ColumnTable) -> list[TextTable]:
    return [table_for_reading(table, limit=MAX_ROWS)]


def trace_tables(trace: Ranks) -> list[TextTable]:
    return summary_tables(build_summary(trace))


def rank_tables(rank: RankTrace) -> list[TextTable]:
    values = {"rank": rank.rank, "events": len(rank.table), "path": rank.path}
    return [_fields_table("Rank of a trace", values.items())]


def execution_trace_tables(trace: ExecutionTrace) -> list[TextTable]:
    values = {"path": trace.path, "schema": trace.schema, "pid": trace.pid}
    return [_fields_table("Execution trace", values.items()), *column_tables(trace.nodes)]


def summary_tables(summary: Summary) -> list[TextTable]:
    """Return the tables of `torchtraceap summary`."""
    categories = sorted(summary.events.by_category.items(), key=lambda item: (-item[1], item[0]))
    rows = [(one_line(name, 40) or "(none)", format_count(n)) for name, n in categories[:20]]
    if rest := sum(count for _, count in categories[20:]):
        rows.append(("(others)", format_count(rest)))
    exposed = format_part("communication"), format_part("memcpy")
    head = ("of", "span", "busy", "compute", *exposed, "idle")
    title = "GPU time, of the span from first to last GPU event"
    tables = [
        _files_table(summary),
        TextTable("Events", ("category", "events"), rows),
        TextTable(title, head, _timeline_rows(summary)),
    ]
    if found := summary.diagnostics:
        faults = [(format_count(d.count), d.code, one_line(d.message, 200)) for d in found]
        tables.append(TextTable("Quality of the data", ("count", "code", "what"), faults))
    return tables


def serving_tables(serving: Serving) -> list[TextTable]:
    """Return the tables of `torchtraceap serving`."""
    shown = [share for share in serving.attribution.items() if share[1] > 0]
    rows = [(name, format_percent(share)) for name, share in shown]
    tables = [
        _titled("Phases", serving.phases),
        _titled(f"Iterations, told apart by {serving.source}", serving.iterations),
    ]
    if serving.layers.facts["count"]:
        tables.append(_titled(f"Layers of {serving.layers.facts['phase']}", serving.layers))
    if len(serving.bubbles):
        tables.append(_titled("Bubbles: what the host did", serving.bubbles))
    tables.append(TextTable("Evidence for what kernels are", ("evidence", "GPU time"), rows))
    if serving.notes:
        tables.append(TextTable("Notes", ("",), [(note,) for note in serving.notes]))
    return tables


def _titled(title: str, table: ColumnTable) -> TextTable:
    return replace(table_for_reading(table, limit=MAX_ROWS), title=title)


def _files_table(summary: Summary) -> TextTable:
    rows = [
        (one_line(f.path, 100), _or_dash(f.rank), _or_dash(f.world_size)) for f in summary.files
    ]
    events = summary.events
    note = (
        f"{format_count(events.total)} objects, {format_count(events.complete)} complete events, "
        f"{format_count(events.gpu)} on the GPU, {format_count(events.gpu_orphan)} of them "
        "without a launch"
    )
    if summary.step:
        unit = summary.step.unit.capitalize()
        note += f"\n{unit} {format_ns(summary.step.measured_ns)} ({step_note(summary)})"
    for fault in summary.quality.notes:
        several = len(summary.files) > 1 and fault.rank is not None
        of_rank = f" (rank {fault.rank})" if several else ""
        note += f"\nrecording{of_rank}: {one_line(fault.message, 300)}"
    return TextTable("", ("file", "rank", "world"), rows, note)


def _or_dash(value: object) -> str:
    return "—" if value is None else str(value)


def _timeline_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return a row of GPU time for the whole, each rank, device and step."""
    several = len(summary.ranks) > 1
    timelines = [("all ranks" if several else "whole trace", summary.timeline)]
    if several:
        timelines += [(f"rank {r.rank}", r.timeline) for r in summary.ranks]
    for device in summary.devices if len(summary.devices) > 1 else ():
        where = f"rank {device.rank} " if several else ""
        name = one_line(f"{where}GPU {_or_dash(device.device)} {device.name or ''}", 40)
        timelines.append((name, device.timeline))
    for step in summary.steps[:MAX_ROWS]:
        where = f"rank {step.rank} " if several else ""
        timelines.append((one_line(where + step.name, 40), step.timeline))
    rows: list[tuple[str, ...]] = []
    for name, timeline in timelines:
        parts = (
            timeline.busy_ns,
            timeline.compute_ns,
            timeline.exposed_communication_ns,
            timeline.exposed_memcpy_ns,
            timeline.idle_ns,
        )
        shares = (format_percent(timeline.share(ns)) for ns in parts)
        rows.append((name, format_ns(timeline.span_ns), *shares))
    if len(summary.steps) > MAX_ROWS:
        rows.append((f"{len(summary.steps) - MAX_ROWS} more steps", *[""] * 6))
    return rows


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


# ------------------------------------------------------------------------------------- simulation


def simulation_result_tables(simulation: Simulation) -> list[TextTable]:
    return simulation_tables(simulation.to_dict())


def simulation_tables(document: Mapping[str, Any], *, plan: bool = False) -> list[TextTable]:
    """Return tables of the measured steps, of each edit by itself, and of the plan.

    Args:
        document: `torchtraceap.simulation/1`.
        plan: Add the edits on top of each other.
    """
    measured_ns = document["measured_ns"]
    applied = [edit for edit in document["edits"] if edit["predicted_ns"] is not None]
    rows = [
        (
            edit["edit"],
            format_ns(measured_ns),
            format_ns(edit["predicted_ns"]),
            f"{format_ns(edit['low_ns'])} to {format_ns(edit['high_ns'])}",
            _change(edit["predicted_ns"], measured_ns),
        )
        for edit in applied
    ]
    notes = [
        one_line(
            f"{edit['edit']}: {'' if edit in applied else 'not simulated: '}{edit['note']}",
            MAX_TEXT,
        )
        for edit in document["edits"]
        if edit["note"]
    ]
    head = ("edit", "now", "then", "between", "change") if rows else ()
    edits = TextTable("Edits, each by itself", head, rows, "\n".join(notes))
    tables = [_steps_table(document), edits]
    if plan:
        fixes = [
            (
                number,
                fix["edit"],
                format_ns(fix["gain_ns"]),
                format_ns(fix["predicted_ns"]),
                f"{format_ns(fix['low_ns'])} to {format_ns(fix['high_ns'])}",
                _change(fix["predicted_ns"], measured_ns),
            )
            for number, fix in enumerate(document["plan"], start=1)
        ]
        titles = ("", "edit", "gains", "then", "between", "total change") if fixes else ()
        predicted = document["trust"]["supports_prediction"]
        none = "No edit saves more than the steps vary by themselves."
        empty = "" if fixes else none if predicted else "No edit is simulated."
        tables.append(TextTable("Plan, each on top of those before it", titles, fixes, empty))
    return tables


def _steps_table(document: Mapping[str, Any]) -> TextTable:
    """Return the steps, with a note on how well they replay or why no edit is simulated."""
    steps = document["steps"]
    several = len({step["rank"] for step in steps}) > 1
    rows = [
        (
            *([step["rank"]] if several else []),
            one_line(step["name"], 60),
            format_ns(step["measured_ns"]),
            format_ns(step["replayed_ns"]),
            _change(step["replayed_ns"], step["measured_ns"]),
        )
        for step in steps[:MAX_STEPS]
    ]
    head = (*(["rank"] if several else []), "step", "measured", "replayed", "off by")
    more = [f"and {len(steps) - MAX_STEPS} more steps (--json)"] if len(steps) > MAX_STEPS else []
    trust, measured = document["trust"], format_ns(document["measured_ns"])
    subject = "The whole takes"
    if document["per_step"]:
        median = format_ns(document["median_ns"])
        subject = "A step takes"
        measured += f" (mean; median {median})" if median != measured else ""
    note = f"{subject} {measured}. Simulation check: {trust_text(trust)}."
    if not trust["supports_prediction"]:
        note = f"No edit is simulated: {trust['reason']}. {note}"
    notes = [one_line(text, MAX_TEXT) for text in (note, *document["notes"])]
    return TextTable("Replay", head, rows, "\n".join([*more, *notes]))


def _change(after_ns: int, before_ns: int) -> str:
    if not before_ns:
        return "—"
    percent = round(100 * (after_ns / before_ns - 1), 1)
    return f"{percent:+.1f} %" if percent else "0 %"


# ------------------------------------------------------------------------------------- durations


def estimate_table(title: str, device: str, estimate: Estimate) -> TextTable:
    """Return one row: the time and the interval that holds 8 of 10 cases; the source below it."""
    time, low, high = (format_ns(round(ns)) for ns in estimate[:3])
    return TextTable(
        "",
        ("", "device", "time", "8 of 10 between"),
        [(one_line(title, 60), device, time, f"{low} and {high}")],
        f"Source: {one_line(estimate.source, MAX_TEXT)}.",
    )


def estimate_tables(estimates: Estimates) -> list[TextTable]:
    sources = [estimates.sources[code] for code in estimates.source[:MAX_ROWS].tolist()]
    columns: dict[str, Any] = {
        "estimate_ns": estimates.ns[:MAX_ROWS],
        "low_ns": estimates.low_ns[:MAX_ROWS],
        "high_ns": estimates.high_ns[:MAX_ROWS],
        "source": np.array(sources, dtype=object),
    }
    return [_first_rows(ColumnTable(columns), len(estimates))]


def kind_time_tables(times: KindTimes) -> list[TextTable]:
    columns: dict[str, Any] = {
        "class": np.array([str(name) for name in times.classes[:MAX_ROWS]], dtype=object),
        "calls": times.calls[:MAX_ROWS],
        "measured_ns": times.measured_ns[:MAX_ROWS],
        "estimate_ns": times.estimates.ns[:MAX_ROWS],
    }
    return [_first_rows(ColumnTable(columns), len(times.kinds))]


def _first_rows(table: ColumnTable, total: int) -> TextTable:
    """Return a text table of the first of `total` rows."""
    shown = table_for_reading(table)
    left = total - table.num_rows
    note = f"{format_count(left)} more" if left > 0 else ""
    return TextTable("", shown.columns, shown.rows, note)


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


# ------------------------------------------------------------------------------------- recording


def recording_tables(recording: Any) -> list[TextTable]:
    values = {
        "file": None if recording.path is None else str(recording.path),
        "steps": recording.steps,
        "recorded_steps": recording.recorded_steps,
    }
    return [_fields_table("Recording", values.items())]


def trace_handler_tables(handler: Any) -> list[TextTable]:
    values = {"folder": str(handler.folder), "files": [path.name for path in handler.paths]}
    return [_fields_table("Trace handler", values.items())]


# ------------------------------------------------------------------------------------- fields


def _fields(result: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(result):
        return ((field.name, getattr(result, field.name)) for field in fields(result))
    names = getattr(result, "_fields", None)
    if names is None:  # an object of the core
        names = [name for name in dir(result) if not name.startswith("_")]
    values = ((name, getattr(result, name)) for name in names)
    return ((name, value) for name, value in values if not callable(value))


def _fields_table(title: str, values: Any) -> TextTable:
    rows = [(_words(name), _value(name, value)) for name, value in values]
    return TextTable("", (title, ""), rows)


def _words(name: str) -> str:
    return name.removesuffix("_ns").replace("_", " ")


def _value(name: str, value: Any, *, inside: bool = False) -> str:
    """Write the value of a field in the unit that its name ends in."""
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
        members = islice(value.items(), MAX_ITEMS)
        texts = [f"{key} {_value(key, item, inside=True)}" for key, item in members]
        return _listed(texts, value)
    if isinstance(value, tuple) and len(value) > MAX_ITEMS and isinstance(value[0], (int, float)):
        return f"{format_count(len(value))}, {_value(name, value[0])} to {_value(name, value[-1])}"
    if isinstance(value, (list, tuple, range)) and not hasattr(value, "_fields"):
        few = islice(value, MAX_ITEMS)
        return _listed([_value(name, item, inside=True) for item in few], value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _nested(value, inside)
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


def _nested(value: Any, inside: bool) -> str:
    """Write a result within another: its name inside a list, else its first fields."""
    values = dict(_fields(value))
    for name in ("title", "name", "type", "path"):
        if inside and isinstance(values.get(name), str):
            return one_line(values[name], 80)
    listed = (
        f"{_words(field)} {_value(field, item, inside=True)}"
        for field, item in values.items()
        if not (item is None or (isinstance(item, str) and not item))
    )
    return one_line(", ".join(listed), MAX_TEXT)


def _listed(texts: Sequence[str], items: Any) -> str:
    left = len(items) - len(texts)
    more = f" and {format_count(left)} more" if left > 0 else ""
    return one_line(", ".join(texts), MAX_TEXT) + more if texts else "none"
