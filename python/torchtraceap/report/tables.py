"""Tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtraceap.report.step import step_note
from torchtraceap.report.words import (
    cells,
    format_percent,
    harmless,
    headings,
    one_line,
)
from torchtraceap.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from torchtraceap.results import Summary, Timeline
    from torchtraceap.table import ColumnTable

__all__ = ["TextTable", "render_table", "summary_tables", "table_for_reading"]

MIN_COLUMN = 12  # a column is cut down to this
MAX_NOTES = 10  # under a table for reading


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table as it is printed: headings, rows of cells, a note below."""

    title: str
    columns: tuple[str, ...]
    rows: Iterable[Sequence[Any]]
    note: str = ""


def render_table(table: TextTable, *, bold: bool = False, width: int = 0) -> str:
    """A table for reading: numbers to the right, the first wide column cut to the width; nothing
    in it commands a terminal, but for the heading in bold."""
    columns = [_plain(name) for name in table.columns]
    rows = [[_plain(cell) for cell in row] for row in table.rows]
    widths = [cells(name) for name in columns]
    for row in rows:
        widths = [max(w, cells(cell)) for w, cell in zip(widths, row, strict=True)]
    widths = _fit(widths, width)
    right = [bool(rows) and all(_is_figure(row[i]) for row in rows) for i in range(len(widths))]
    lines = [_row(columns, widths, right)]
    if bold:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    lines += [_row(row, widths, right) for row in rows]
    head = [_plain(table.title)] if table.title else []
    return "\n".join([*head, *lines, *([harmless(table.note)] if table.note else [])])


def _plain(cell: object) -> str:
    return harmless(str(cell)).replace("\n", " ")


def _fit(widths: list[int], width: int) -> list[int]:
    """Takes what is too wide from the widest columns, each down to the next widest."""
    excess = sum(widths) + 2 * (len(widths) - 1) - width if width else 0
    fitted = list(widths)
    while excess > 0 and max(fitted, default=0) > MIN_COLUMN:
        fitted[fitted.index(max(fitted))] -= 1
        excess -= 1
    return fitted


def _is_figure(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-−<—" or not text


def _row(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for text, width, to_right in zip(row, widths, right, strict=True):
        cut = text if cells(text) <= width else one_line(text, width)
        gap = " " * (width - cells(cut))
        parts.append(gap + cut if to_right else cut + gap)
    return "  ".join(parts).rstrip()


# ---------------------------------------------------------------------------------- any table


def table_for_reading(
    table: ColumnTable, *, limit: int | None = None, every_column: bool = False
) -> TextTable:
    """Any table as a person reads it: times, sizes and shares with units, the first rows."""
    names = table.columns if every_column else table.shown
    shown = table if limit is None else table.take(slice(0, limit))
    columns = [[_cell(name, value) for value in shown.to_list(name)] for name in names]
    left = table.num_rows - shown.num_rows
    rows = list(zip(*columns, strict=True))
    more = [f"{format_count(left)} more row{'s'[: left > 1]} (--limit, --csv)"] if left else []
    notes = [one_line(note, 400) for note in table.notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(notes) - MAX_NOTES} more notes (--json)"]
    note = "\n".join([*more, *notes])
    return TextTable("", headings(names), rows, note)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return one_line(", ".join(value), 60)
    if isinstance(value, (list, dict)):
        return one_line(json.dumps(value), 60)
    if isinstance(value, str):
        return one_line(value, 100)
    if name.endswith("_ns"):
        return format_ns(round(value))
    if name.endswith("_share"):
        return format_percent(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


# ---------------------------------------------------------------------------------- summary

_TIMELINE_HEAD = ("span", "busy", "compute", "exposed comm.", "exposed copies", "idle")


def _timeline_cells(timeline: Timeline) -> tuple[str, ...]:
    parts = (
        timeline.busy_ns,
        timeline.compute_ns,
        timeline.exposed_communication_ns,
        timeline.exposed_memcpy_ns,
        timeline.idle_ns,
    )
    return format_ns(timeline.span_ns), *(format_percent(timeline.share(ns)) for ns in parts)


def summary_tables(summary: Summary) -> list[TextTable]:
    """What `torchtraceap summary` prints."""
    return [
        _file_table(summary),
        TextTable("Events", ("category", "events"), _category_rows(summary)),
        TextTable(
            "GPU time, of the span from first to last GPU event",
            ("of", *_TIMELINE_HEAD),
            _timeline_rows(summary),
        ),
        *_diagnostic_tables(summary),
    ]


def _file_table(summary: Summary) -> TextTable:
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
        note += f"\nStep {format_ns(summary.step.measured_ns)} ({step_note(summary)})"
    return TextTable("", ("file", "rank", "world"), rows, note)


def _or_dash(value: object) -> str:
    return "—" if value is None else str(value)


def _category_rows(summary: Summary) -> list[tuple[str, str]]:
    ordered = sorted(summary.events.by_category.items(), key=lambda item: (-item[1], item[0]))
    shown = [(one_line(name, 40) or "(none)", format_count(count)) for name, count in ordered[:20]]
    rest = sum(count for _, count in ordered[20:])
    return [*shown, ("(others)", format_count(rest))] if rest else shown


MAX_STEP_ROWS = 20


def _timeline_rows(summary: Summary) -> list[tuple[str, ...]]:
    several = len(summary.ranks) > 1
    rows = [("all ranks" if several else "whole trace", *_timeline_cells(summary.timeline))]
    if several:
        rows += [(f"rank {r.rank}", *_timeline_cells(r.timeline)) for r in summary.ranks]
    for device in summary.devices if len(summary.devices) > 1 else ():
        where = f"rank {device.rank} " if several else ""
        name = one_line(f"{where}GPU {_or_dash(device.device)} {device.name or ''}", 40)
        rows.append((name, *_timeline_cells(device.timeline)))
    for step in summary.steps[:MAX_STEP_ROWS]:
        where = f"rank {step.rank} " if several else ""
        rows.append((one_line(where + step.name, 40), *_timeline_cells(step.timeline)))
    if len(summary.steps) > MAX_STEP_ROWS:
        more = len(summary.steps) - MAX_STEP_ROWS
        rows.append((f"{more} more steps", *[""] * len(_TIMELINE_HEAD)))
    return rows


def _diagnostic_tables(summary: Summary) -> list[TextTable]:
    if not summary.diagnostics:
        return []
    rows = [(format_count(d.count), d.code, one_line(d.message, 200)) for d in summary.diagnostics]
    return [TextTable("Quality of the data", ("count", "code", "what"), rows)]
