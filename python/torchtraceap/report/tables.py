"""Tables for the terminal."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import (
    column_headings,
    display_width,
    format_count,
    format_ns,
    format_percent,
    one_line,
    replace_controls,
)
from torchtraceap.core.records import dataclass
from torchtraceap.report.step import step_note

if TYPE_CHECKING:
    from torchtraceap.core.results import Summary, Timeline
    from torchtraceap.core.table import ColumnTable

__all__ = ["TextTable", "render_table", "summary_tables", "table_for_reading"]

MIN_COLUMN = 16  # a column of texts is cut down to this
KEY = 26  # and the first of those that identify a row to this
GAP = 2
MAX_NOTES = 10  # under a table for reading


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table as it is printed: headings, rows of cells, a note below."""

    title: str
    columns: tuple[str, ...]
    rows: Iterable[Sequence[Any]]
    note: str = ""
    first: tuple[int, ...] = ()
    """Columns that a narrow terminal keeps, the most telling first; others follow in order."""
    whole: bool = False
    """No column may be left out, however narrow the terminal."""
    others: str = ""
    """How to see what is left out."""


def render_table(table: TextTable, *, bold: bool = False, width: int = 0) -> str:
    """A table for reading, not wider than `width` (0: as wide as it is).

    Numbers stand to the right. Where there is no room, headings take several lines, texts are cut
    so that they still differ, and the least telling columns are left out, which a line says.
    Nothing in it commands a terminal, but for the heading in bold.
    """
    columns = [
        _TextColumn(_plain(heading), [_plain(cell) for cell in texts])
        for heading, texts in zip(table.columns, _by_column(table), strict=True)
    ]
    order = [*table.first, *(i for i in range(len(columns)) if i not in table.first)]
    places = sorted(order) if not width or table.whole else _chosen(columns, order, width)
    shown = [columns[place] for place in places]
    widths = _fit(shown, order[0] if order else 0, places, width)
    lines = [f"\x1b[1m{line}\x1b[0m" if bold else line for line in _headings(shown, widths)]
    texts = [column.cut(room) for column, room in zip(shown, widths, strict=True)]
    right = [column.is_figures for column in shown]
    lines += [_row(row, widths, right) for row in zip(*texts, strict=True)]
    head = [_plain(table.title)] if table.title else []
    left_out = [column.heading for place, column in enumerate(columns) if place not in places]
    if left_out:
        more = f"left out at this width: {', '.join(left_out)}{table.others}"
        lines += _sentences(more, width)
    return "\n".join([*head, *lines, *_sentences(replace_controls(table.note), width)])


def _sentences(text: str, width: int) -> list[str]:
    """Lines of a text, folded between words where there is a width."""
    if not width:
        return text.splitlines()
    return [part for line in text.splitlines()
            for part in textwrap.wrap(line, width, break_on_hyphens=False)]  # fmt: skip


def _by_column(table: TextTable) -> list[list[Any]]:
    rows = [list(row) for row in table.rows]
    return [[row[place] for row in rows] for place in range(len(table.columns))]


class _TextColumn:
    """A column of cells that are plain text."""

    def __init__(self, heading: str, texts: list[str]) -> None:
        self.heading = heading
        self.texts = texts
        self.is_figures = bool(texts) and all(map(_is_figure, texts))
        self._widest = max(map(display_width, texts), default=0)

    @property
    def width(self) -> int:
        """Of the widest cell and the heading in one line."""
        return max(self._widest, display_width(self.heading))

    def least(self, is_key: bool) -> int:
        """The width below which it is not cut; figures are not cut at all."""
        words = max(map(display_width, self.heading.split()), default=0)
        room = self._widest if self.is_figures else min(self._widest, KEY if is_key else MIN_COLUMN)
        return max(room, words)

    def cut(self, width: int) -> list[str]:
        if self._widest <= width:
            return self.texts
        short = cut_apart({text for text in self.texts if display_width(text) > width}, width)
        return [short.get(text, text) for text in self.texts]


def _chosen(columns: Sequence[_TextColumn], order: Sequence[int], width: int) -> list[int]:
    """Places of the columns for which there is room, the most telling first to ask."""
    chosen: list[int] = []
    left = width + GAP
    for place in order:
        needed = columns[place].least(place == order[0]) + GAP
        if needed <= left or not chosen:
            chosen.append(place)
            left -= needed
    return sorted(chosen)


def _fit(columns: Sequence[_TextColumn], key: int, places: Sequence[int], width: int) -> list[int]:
    """Widths of the columns: what is too wide is taken from the widest, down to the next widest."""
    fitted = [column.width for column in columns]
    if not width:
        return fitted
    least = [c.least(place == key) for c, place in zip(columns, places, strict=True)]
    excess = sum(fitted) + GAP * (len(fitted) - 1) - width
    while excess > 0:
        spare = [(now, place) for place, now in enumerate(fitted) if now > least[place]]
        if not spare:
            break
        fitted[max(spare)[1]] -= 1
        excess -= 1
    return [min(now, width) for now in fitted]


def _headings(columns: Sequence[_TextColumn], widths: Sequence[int]) -> list[str]:
    """Headings in as many lines as they need, on the line of the cells below."""
    wrapped = [
        [column.heading]
        if display_width(column.heading) <= width
        else textwrap.wrap(column.heading, width)
        for column, width in zip(columns, widths, strict=True)
    ]
    height = max(map(len, wrapped), default=1)
    padded = [[""] * (height - len(lines)) + lines for lines in wrapped]
    right = [column.is_figures for column in columns]
    return [_row(row, widths, right) for row in zip(*padded, strict=True)]


def cut_apart(texts: Set[str], width: int) -> dict[str, str]:
    """Texts cut to a width so that different ones look different where they can: those with the
    same beginning show where they begin to differ, or their end."""
    short = {text: one_line(text, width) for text in texts}
    alike: dict[str, list[str]] = {}
    for text, cut in short.items():
        alike.setdefault(cut, []).append(text)
    for group in alike.values():
        if len(group) > 1 and width >= MIN_COLUMN and all(text.isascii() for text in group):
            ways: list[dict[str, str]] = [_parted(group, width), _ends(group, width)]
            best = max(ways, key=lambda way: len(set(way.values())))
            short |= best
    return short


def _parted(group: Sequence[str], width: int) -> dict[str, str]:
    """The beginning of each, and from where the first of them differ."""
    head = width // 3
    low, high = min(group), max(group)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    room = width - head - 1
    return {
        t: f"{t[:head]}…{one_line(t[max(head, min(same - 2, len(t) - room)) :], room)}"
        for t in group
    }


def _ends(group: Sequence[str], width: int) -> dict[str, str]:
    head = width // 3
    return {text: f"{text[:head]}…{text[head + 1 - width :]}" for text in group}


def _plain(cell: object) -> str:
    return replace_controls(str(cell)).replace("\n", " ")


def _is_figure(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-−<—" or not text


def _row(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for text, width, to_right in zip(row, widths, right, strict=True):
        cut = text if display_width(text) <= width else one_line(text, width)
        gap = " " * (width - display_width(cut))
        parts.append(gap + cut if to_right else cut + gap)
    return (" " * GAP).join(parts).rstrip()


# ---------------------------------------------------------------------------------- any table


def table_for_reading(
    table: ColumnTable, *, limit: int | None = None, every_column: bool = False
) -> TextTable:
    """Any table as a person reads it: times, sizes and shares with units, the first rows."""
    names = table.columns if every_column else table.shown
    shown = table if limit is None else table.take(slice(0, limit))
    values = {name: shown.to_list(name) for name in names}
    written = [write_column(name, values) for name in names]
    left = table.num_rows - shown.num_rows
    rows = list(zip(*(texts for _, texts in written), strict=True))
    more = [f"{format_count(left)} more row{'s'[: left > 1]} (--limit, --csv)"] if left else []
    notes = [one_line(note, 400) for note in table.notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(notes) - MAX_NOTES} more notes (--json)"]
    note = "\n".join([*more, *notes])
    titles = (
        f"{title} ({unit})" if unit else title
        for title, (unit, _) in zip(column_headings(names), written, strict=True)
    )
    first = tuple(names.index(name) for name in table.first if name in names)
    others = " (--all-columns, --columns)"
    return TextTable("", tuple(titles), rows, note, first, every_column, others)


def write_column(name: str, columns: Mapping[str, Sequence[Any]]) -> tuple[str, list[str]]:
    """The unit of a column and its cells in it; a dash where a value is absent.

    Times and sizes have the unit that fits the largest of them, also of the columns that are
    compared with them, and as many decimals as the median needs for three digits.
    """
    alike = [other for other in columns if other == name or _are_compared(other, name)]
    numbers = [number for other in alike for number in _numbers(columns[other])]
    scale = _scale(name, numbers)
    if scale is None:
        return _plain_unit(name), [_cell(value) for value in columns[name]]
    size, unit = scale
    decimals = _decimals([number / size for number in numbers]) if size != 1 else 0
    return unit, [
        _scaled(v / size, decimals) if isinstance(v, (int, float)) else _cell(v)
        for v in columns[name]
    ]


_COMPARED = ({"before", "after", "delta"}, {"median", "expected", "low", "high"},
             {"mean", "min", "max"})  # fmt: skip


def _are_compared(one: str, other: str) -> bool:
    """Whether their first words say so, and the rest is the same, as of before_ns and after_ns."""
    (first, _, rest), (second, _, end) = one.partition("_"), other.partition("_")
    return rest == end and any({first, second} <= words for words in _COMPARED)


def _numbers(values: Sequence[Any]) -> list[float]:
    return [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]


_TIME_UNITS = ((100_000_000_000, 1_000_000_000, "s"), (10_000_000, 1_000_000, "ms"),
               (10_000, 1_000, "µs"), (0, 1, "ns"))  # fmt: skip
_SIZE_UNITS = ((10 << 30, 1 << 30, "GiB"), (10 << 20, 1 << 20, "MiB"), (10 << 10, 1 << 10, "KiB"),
               (0, 1, "B"))  # fmt: skip
_PLAIN_UNITS = {"gb_per_s": "GB/s", "tflops": "TFLOP/s", "tbps": "TB/s", "flops": "FLOP",
                "intensity": "FLOP/B", "ppm": "ppm"}  # fmt: skip


def _scale(name: str, numbers: Sequence[float]) -> tuple[float, str] | None:
    """Divisor and unit of a column of times, shares or sizes; None for others."""
    if name.endswith("_share") or name == "share":
        return 0.01, "%"
    units = _TIME_UNITS if name.endswith("_ns") else None
    units = _SIZE_UNITS if name == "bytes" or name.endswith("_bytes") else units
    if units is None:
        return None
    largest = max(map(abs, numbers), default=0) or units[1][0]
    return next((size, unit) for least, size, unit in units if largest >= least)


def _decimals(numbers: Sequence[float]) -> int:
    """Those with which the median has three digits; three at most."""
    sizes = sorted(abs(number) for number in numbers if number)
    if not sizes:
        return 0
    return min(max(2 - math.floor(math.log10(sizes[len(sizes) // 2])), 0), 3)


def _plain_unit(name: str) -> str:
    return next((unit for end, unit in _PLAIN_UNITS.items() if name.endswith(end)), "")


def _scaled(value: float, decimals: int) -> str:
    """A number with some decimals; what would read as none is called less than the least."""
    least = 10**-decimals
    if 0 < abs(value) < least / 2:
        return f"{'-' if value < 0 else ''}<{least:.{decimals}f}"
    return f"{value:.{decimals}f}"


def _cell(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return one_line(", ".join(value), 60)
    if isinstance(value, (list, dict)):
        return one_line(json.dumps(value), 60)
    if isinstance(value, str):
        return one_line(value, 100)
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
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
    for fault in summary.quality.notes:
        of_rank = (
            f" (rank {fault.rank})" if len(summary.files) > 1 and fault.rank is not None else ""
        )
        note += f"\nrecording{of_rank}: {one_line(fault.message, 300)}"
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
