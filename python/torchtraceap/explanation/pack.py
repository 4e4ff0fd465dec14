"""An evidence pack: everything that a judge sees of a segment, with a name for all it may cite.

Every number that a pack shows is a `Metric`, every event an `Evidence`; tables are made of them. A
text about the segment cites them by their names, so that it can be checked without the trace.
`pack_text` writes a pack as a language model reads it: one line for each metric, event and line of
a table.

Note [Trace text]: names come from a file that anybody may have written. Each is quoted as JSON does
it, in ASCII and on one line, without backticks, and cut; so no name ends the fenced block, begins a
line, or turns the direction of writing.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import field, replace

from torchtraceap.core.formatting import plain_text
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Evidence, Result
from torchtraceap.explanation.language_model import estimate_tokens
from torchtraceap.explanation.numbers import Metric

__all__ = [
    "MOST_TOKENS",
    "Pack",
    "PackLine",
    "PackTable",
    "fit_to_budget",
    "pack_text",
    "short_name",
]


_LONGEST_NAME = 96
_LONGEST_ABOUT = 400
_FROM_THE_END = 24
"""Letters kept from the end of a name that is cut, where names of one family differ."""
MOST_TOKENS = 2500


@dataclass(frozen=True, slots=True)
class PackLine(Result):
    """One line of a table."""

    key: str
    """Key within the pack, such as "g2"; its metrics are named "g2.total" and so on."""
    names: tuple[str, ...]
    """Names out of the trace that it shows, one for each of the table's columns of names."""
    metrics: tuple[Metric, ...]
    cost_ns: int
    """Cost by which lines are dropped, the cheapest first."""
    row: str = ""
    """Key of the event that it shows; empty where it shows many."""


@dataclass(frozen=True, slots=True)
class PackTable(Result):
    """A part of a pack: groups of GPU events, gaps, neighboring windows."""

    title: str
    columns: tuple[str, ...]
    """Heads of the names."""
    lines: tuple[PackLine, ...]


@dataclass(frozen=True, slots=True)
class Pack(Result):
    """The evidence of one segment."""

    about: str
    """Description of the recording in our own words: devices, ranks, steps, training or not."""
    start_ns: int
    end_ns: int
    metrics: tuple[Metric, ...]
    """Metrics of the segment, with medians and percentile ranks among the trace's windows, and of
    findings."""
    tables: tuple[PackTable, ...]
    rows: Mapping[str, Evidence]
    """Events that may be cited, by keys such as "r3"."""
    types: tuple[tuple[str, float], ...]
    """Types and how likely each is, the likeliest first."""
    allowed: tuple[str, ...]
    """Types that a verdict may name, besides "none"."""
    knowledge: tuple[str, ...]
    """Types whose entries of the knowledge base stand beside it, the most fitting first."""
    rules: tuple[tuple[str, str], ...] = ()
    """Verdicts of the rules on the likely types in this trace: "present", "absent" or "unknown"."""
    window_count: int = 100
    """Number of windows of the grid on which the segment was found."""
    dropped: int = field(default=0)
    """Lines that the budget left out."""

    def every_metric(self) -> Mapping[str, Metric]:
        """Return all metrics by name, those of the tables included."""
        lines = (line for table in self.tables for line in table.lines)
        inside = (metric for line in lines for metric in line.metrics)
        return {metric.name: metric for metric in (*self.metrics, *inside)}

    def names(self) -> frozenset[str]:
        """Return all names from the trace that the pack shows."""
        lines = (line for table in self.tables for line in table.lines)
        shown = (name for line in lines for name in line.names)
        return frozenset((*shown, *(row.name for row in self.rows.values())))


def short_name(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return the name as texts have it: plain, and cut in the middle if it is long."""
    text = plain_text(name[: 100 * longest])
    if len(text) <= longest:
        return text
    return f"{text[: longest - _FROM_THE_END - 3]}...{text[-_FROM_THE_END:]}"


def pack_text(pack: Pack) -> str:
    """Return all of a pack in ASCII without backticks; see Note [Trace text]."""
    lines = [
        f"recorded: {short_name(pack.about, _LONGEST_ABOUT)}",
        f"grid: {pack.window_count} windows",
    ]
    if pack.types:
        named = ", ".join(name for name, _ in pack.types)
        lines.append(f"scorer's types, the likeliest first: {named}")
    if pack.rules:
        said = ", ".join(f"{name} {verdict}" for name, verdict in pack.rules)
        lines.append(f"rules of this trace: {said}")
    if pack.knowledge:
        lines.append(f"entries of the knowledge base that fit best: {', '.join(pack.knowledge)}")
    lines += ["metrics of the segment:", *map(_metric, pack.metrics)]
    for table in pack.tables:
        if table.lines:
            lines.append(f"{table.title} ({' | '.join(('key', *table.columns, 'metrics'))}):")
        for line in table.lines:
            row = [f"row {line.row}"] if line.row else []
            metrics = "; ".join(map(_metric, line.metrics))
            lines.append(" | ".join([line.key, *map(_quote_name, line.names), metrics, *row]))
    if pack.rows:
        lines.append("events (row | name):")
    for key, event in pack.rows.items():
        rank = "" if event.rank is None else f" | rank {event.rank}"
        lines.append(f"{key} | {_quote_name(event.name)}{rank}")
    if pack.dropped:
        lines.append(f"left out, as they cost least: {pack.dropped} lines")
    plain = "\n".join(plain_text(line).replace("`", "'") for line in lines)
    return plain.encode("ascii", "backslashreplace").decode("ascii")


def _metric(metric: Metric) -> str:
    unit = metric.unit.replace("\u00b5", "u")
    return f"{metric.name} = {metric.value!r} {unit}".rstrip()


def _quote_name(name: str) -> str:
    """Return a name as a JSON string of at most three times the longest name."""
    text = short_name(name)
    while len(quoted := json.dumps(text)) > 3 * _LONGEST_NAME:
        text = text[: len(text) // 2]
    return quoted


def fit_to_budget(pack: Pack) -> Pack:
    """Return the pack with as many lines as the budget of a language model has room for.

    Lines of tables are dropped in the order of their costs, the least first, with events that they
    alone show; then the other events, the shortest first; then metrics of the segment from the end.
    `dropped` says how many. What is left can be cited; what was dropped no judge has seen.
    """
    if _fits(pack):
        return pack
    # Where costs are equal, the last line goes first.
    lines = [(line.cost_ns, line.key) for table in pack.tables for line in table.lines]
    shown = _shown_rows(pack.tables)
    rows = [(row.duration_ns, key) for key, row in pack.rows.items() if key not in shown]
    order = [
        key
        for costs in (lines, rows)
        for _, (_, key) in sorted(enumerate(costs), key=lambda each: (each[1][0], -each[0]))
    ]
    numbers = range(1, len(order) + len(pack.metrics) + 1)
    place = bisect_left(
        numbers, True, key=lambda number: _fits(_drop_cheapest(pack, order, number))
    )
    return _drop_cheapest(pack, order, numbers[min(place, len(numbers) - 1)]) if numbers else pack


def _fits(pack: Pack) -> bool:
    return estimate_tokens(len(pack_text(pack))) <= MOST_TOKENS


def _shown_rows(tables: tuple[PackTable, ...]) -> frozenset[str]:
    return frozenset(line.row for table in tables for line in table.lines)


def _drop_cheapest(pack: Pack, order: list[str], number: int) -> Pack:
    """Return the pack without that many lines, events and metrics."""
    gone = set(order[:number])
    metrics = len(pack.metrics) - max(0, number - len(order))
    tables = tuple(
        replace(table, lines=tuple(line for line in table.lines if line.key not in gone))
        for table in pack.tables
    )
    gone |= _shown_rows(pack.tables) - _shown_rows(tables)
    return replace(
        pack,
        metrics=pack.metrics[:metrics],
        tables=tables,
        rows={key: row for key, row in pack.rows.items() if key not in gone},
        dropped=pack.dropped + number,
    )
