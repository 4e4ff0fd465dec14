"""A pack as a language model reads it: one line for each metric, event and line of a table.

Note [Trace text]: names come from a file that anybody may have written. Each is quoted as JSON does
it, in ASCII and on one line, without backticks, and cut; so no name ends the fenced block, begins a
line, or turns the direction of writing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from torchtraceap.core.formatting import plain_text
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.pack import Pack, PackLine, PackRow, PackTable

__all__ = ["pack_text", "short_name"]

_LONGEST_NAME = 96
_LONGEST_ABOUT = 400
_FROM_THE_END = 24
"""Letters kept from the end of a name that is cut, where names of one family differ."""


def short_name(name: str, longest: int = _LONGEST_NAME) -> str:
    """The name as texts have it: plain, and cut in the middle if it is long."""
    text = plain_text(name[: 100 * longest])
    if len(text) <= longest:
        return text
    return f"{text[: longest - _FROM_THE_END - 3]}...{text[-_FROM_THE_END:]}"


def pack_text(pack: Pack) -> str:
    """All of a pack in ASCII without backticks; see Note [Trace text]."""
    return "\n".join(_plain_ascii(line) for line in _lines(pack))


def _lines(pack: Pack) -> Iterator[str]:
    yield f"recorded: {short_name(pack.about, _LONGEST_ABOUT)}"
    yield f"grid: {pack.window_count} windows"
    if pack.types:
        yield f"scorer's types, the likeliest first: {', '.join(name for name, _ in pack.types)}"
    if pack.rules:
        said = ", ".join(f"{name} {verdict}" for name, verdict in pack.rules)
        yield f"rules of this trace: {said}"
    if pack.knowledge:
        yield f"entries of the knowledge base that fit best: {', '.join(pack.knowledge)}"
    yield "metrics of the segment:"
    yield from (_metric(metric) for metric in pack.metrics)
    for table in pack.tables:
        yield from _table(table)
    if pack.rows:
        yield "events (row | name):"
        yield from (_row(row) for row in pack.rows)
    if pack.dropped:
        yield f"left out, as they cost least: {pack.dropped} lines"


def _table(table: PackTable) -> Iterator[str]:
    if table.lines:
        yield f"{table.title} ({' | '.join(('key', *table.columns, 'metrics'))}):"
        yield from (_line(line) for line in table.lines)


def _line(line: PackLine) -> str:
    metrics = "; ".join(_metric(metric) for metric in line.metrics)
    row = [f"row {line.row}"] if line.row else []
    return " | ".join([line.key, *(_quoted(name) for name in line.names), metrics, *row])


def _row(row: PackRow) -> str:
    rank = "" if row.rank is None else f" | rank {row.rank}"
    return f"{row.key} | {_quoted(row.name)}{rank}"


def _metric(metric: Metric) -> str:
    unit = metric.unit.replace("\u00b5", "u")
    return f"{metric.name} = {metric.value!r} {unit}".rstrip()


def _quoted(name: str) -> str:
    """Return a name as a JSON string of at most three times the longest name."""
    text = short_name(name)
    while len(quoted := json.dumps(text)) > 3 * _LONGEST_NAME:
        text = text[: len(text) // 2]
    return quoted


def _plain_ascii(line: str) -> str:
    text = plain_text(line).replace("`", "'")
    return text.encode("ascii", "backslashreplace").decode("ascii")
