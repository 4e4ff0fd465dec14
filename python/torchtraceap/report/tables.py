"""Tables for the terminal: any `ColumnTable` with units, and text tables fitted to a width."""

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
    one_line,
    replace_controls,
)
from torchtraceap.core.records import dataclass

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable

__all__ = ["TextTable", "cut_apart", "render_table", "table_for_reading", "write_column"]

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
    """A hint how to see columns that are left out."""


def render_table(table: TextTable, *, bold: bool = False, width: int = 0) -> str:
    """Render a table for reading, not wider than `width` (0: unlimited).

    Numbers stand to the right. Where there is no room, headings take several lines, texts are cut
    so that they still differ, and the least telling columns are left out, which a line says.
    Control sequences in cells are replaced; only the heading in bold has some.
    """
    rows = [list(row) for row in table.rows]
    columns = [
        _TextColumn(_plain(heading), [_plain(row[place]) for row in rows])
        for place, heading in enumerate(table.columns)
    ]
    order = [*table.first, *(i for i in range(len(columns)) if i not in table.first)]
    places: list[int] = []
    left = width + GAP
    for place in order:
        needed = columns[place].min_width(place == order[0]) + GAP
        if not width or table.whole or needed <= left or not places:
            places.append(place)
            left -= needed
    places.sort()
    shown = [columns[place] for place in places]
    widths = [column.width for column in shown]
    if width:
        widths = _fit(widths, [columns[p].min_width(p == order[0]) for p in places], width)
    # Headings take as many lines as they need, the last one just above the cells.
    wrapped = [
        [column.heading]
        if display_width(column.heading) <= room
        else textwrap.wrap(column.heading, room)
        for column, room in zip(shown, widths, strict=True)
    ]
    height = max(map(len, wrapped), default=1)
    padded = [[""] * (height - len(lines)) + lines for lines in wrapped]
    texts = [column.cut(room) for column, room in zip(shown, widths, strict=True)]
    right = [column.is_figures for column in shown]
    headings = [_row(row, widths, right) for row in zip(*padded, strict=True)]
    lines = [f"\x1b[1m{line}\x1b[0m" if bold else line for line in headings]
    lines += [_row(row, widths, right) for row in zip(*texts, strict=True)]
    head = [_plain(table.title)] if table.title else []
    left_out = [column.heading for place, column in enumerate(columns) if place not in places]
    if left_out:
        more = f"left out at this width: {', '.join(left_out)}{table.others}"
        lines += _folded(more, width)
    return "\n".join([*head, *lines, *_folded(replace_controls(table.note), width)])


def _fit(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Narrow the widest columns down to the next widest until all fit into `width`."""
    fitted = list(widths)
    excess = sum(fitted) + GAP * (len(fitted) - 1) - width
    while excess > 0:
        spare = [(now, place) for place, now in enumerate(fitted) if now > least[place]]
        if not spare:
            break
        fitted[max(spare)[1]] -= 1
        excess -= 1
    return [min(now, width) for now in fitted]


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a text, folded between words where there is a width."""
    if not width:
        return text.splitlines()
    return [part for line in text.splitlines()
            for part in textwrap.wrap(line, width, break_on_hyphens=False)]  # fmt: skip


class _TextColumn:
    """A column of cells that are plain text."""

    def __init__(self, heading: str, texts: list[str]) -> None:
        self.heading = heading
        self.texts = texts
        self.is_figures = bool(texts) and all(
            text[:1].isdigit() or text[:1] in "-−<—" or not text for text in texts
        )
        self._widest = max(map(display_width, texts), default=0)

    @property
    def width(self) -> int:
        """The width of the widest cell or of the heading in one line."""
        return max(self._widest, display_width(self.heading))

    def min_width(self, is_key: bool) -> int:
        """Return the width below which it is not cut; figures are not cut at all."""
        words = max(map(display_width, self.heading.split()), default=0)
        room = self._widest if self.is_figures else min(self._widest, KEY if is_key else MIN_COLUMN)
        return max(room, words)

    def cut(self, width: int) -> list[str]:
        if self._widest <= width:
            return self.texts
        short = cut_apart({text for text in self.texts if display_width(text) > width}, width)
        return [short.get(text, text) for text in self.texts]


def cut_apart(texts: Set[str], width: int) -> dict[str, str]:
    """Cut texts to a width so that different ones look different where they can.

    Texts with the same beginning show where they begin to differ, or their end.
    """
    short = {text: one_line(text, width) for text in texts}
    alike: dict[str, list[str]] = {}
    for text, cut in short.items():
        alike.setdefault(cut, []).append(text)
    head = width // 3
    room = width - head - 1
    for group in alike.values():
        if len(group) < 2 or width < MIN_COLUMN or not all(text.isascii() for text in group):
            continue
        low, high = min(group), max(group)
        pairs = enumerate(zip(low, high, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), len(low))
        parted = {
            t: f"{t[:head]}…{one_line(t[max(head, min(same - 2, len(t) - room)) :], room)}"
            for t in group
        }
        ends = {text: f"{text[:head]}…{text[head + 1 - width :]}" for text in group}
        short |= parted if len(set(parted.values())) >= len(set(ends.values())) else ends
    return short


def _plain(cell: object) -> str:
    return replace_controls(str(cell)).replace("\n", " ")


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
    """Make a text table of the first rows, with times, sizes and shares in fitting units."""
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


# First words of columns that are compared, and so share a unit: before_ns with after_ns.
_COMPARED = ({"before", "after", "delta"}, {"median", "expected", "low", "high"},
             {"mean", "min", "max"})  # fmt: skip
_TIME_UNITS = ((100_000_000_000, 1_000_000_000, "s"), (10_000_000, 1_000_000, "ms"),
               (10_000, 1_000, "µs"), (0, 1, "ns"))  # fmt: skip
_SIZE_UNITS = ((10 << 30, 1 << 30, "GiB"), (10 << 20, 1 << 20, "MiB"), (10 << 10, 1 << 10, "KiB"),
               (0, 1, "B"))  # fmt: skip
_PLAIN_UNITS = {"gb_per_s": "GB/s", "tflops": "TFLOP/s", "tbps": "TB/s", "flops": "FLOP",
                "intensity": "FLOP/B", "ppm": "ppm"}  # fmt: skip


def write_column(name: str, columns: Mapping[str, Sequence[Any]]) -> tuple[str, list[str]]:
    """Return the unit of a column and its cells in it; a dash where a value is absent.

    Times and sizes have the unit that fits the largest of them, also of the columns that are
    compared with them, and as many decimals as the median needs for three digits.
    """
    first, _, rest = name.partition("_")
    numbers: list[float] = []
    for other, values in columns.items():
        other_first, _, other_rest = other.partition("_")
        words = {first, other_first}
        if other == name or (other_rest == rest and any(words <= each for each in _COMPARED)):
            numbers += [
                value
                for value in values
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            ]
    if name.endswith("_share") or name == "share":
        size, unit = 0.01, "%"
    elif name == "bytes" or name.endswith(("_ns", "_bytes")):
        units = _TIME_UNITS if name.endswith("_ns") else _SIZE_UNITS
        largest = max(map(abs, numbers), default=0) or units[1][0]
        size, unit = next((size, unit) for least, size, unit in units if largest >= least)
    else:
        unit = next((unit for end, unit in _PLAIN_UNITS.items() if name.endswith(end)), "")
        return unit, [_cell(value) for value in columns[name]]
    sizes = sorted(abs(number / size) for number in numbers if number)
    decimals = 0
    if size != 1 and sizes:
        decimals = min(max(2 - math.floor(math.log10(sizes[len(sizes) // 2])), 0), 3)
    least, cells = 10**-decimals, []
    for value in columns[name]:
        if not isinstance(value, (int, float)):
            cells.append(_cell(value))
        elif 0 < abs(value / size) < least / 2:  # it would read as 0
            cells.append(f"{'-' if value < 0 else ''}<{least:.{decimals}f}")
        else:
            cells.append(f"{value / size:.{decimals}f}")
    return unit, cells


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
