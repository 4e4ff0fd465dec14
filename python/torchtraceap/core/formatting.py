"""Numbers and names as text for a person; everything else speaks integer nanoseconds and bytes."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

__all__ = [
    "RUNNER_MARK",
    "RUNNER_MARK_IN_JSON",
    "column_headings",
    "display_width",
    "escape_markdown",
    "exact_us",
    "format_bytes",
    "format_change",
    "format_count",
    "format_fact",
    "format_ns",
    "format_part",
    "format_percent",
    "format_range",
    "format_rate",
    "format_share",
    "keep_units_together",
    "one_line",
    "plain_line",
    "plain_text",
    "pluralize",
    "printable_lines",
    "replace_controls",
    "short_repr",
    "shown_lines",
]

MAX_HEADING = 60
_TIME_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_COLUMN_UNITS = ("_ns", "_share", "_bytes", "_gb_per_s")
_MARKDOWN = re.compile(r"[\\`*\[\]#|~<>&@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|.)?")
_SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|min|h|B|[KMGT]i?B)(?!\w))")
# Parts of the time of which only what nothing hides counts.
_EXPOSED = {"communication", "memcpy", "device_memcpy"}
_RUNNER_LINE = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
RUNNER_MARK = re.compile(r"##(?=\w*\[)")
RUNNER_MARK_IN_JSON = r"#\\u0023"
# Control, format and bidirectional characters could reorder or hide what a terminal shows, or
# command it; private and unassigned ones show as nothing.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def format_ns(ns: int) -> str:
    """Return a time with three significant digits and the unit that fits, such as "12.3 ms"."""
    for size, unit in _TIME_UNITS:
        value = ns / size
        if abs(value) >= 0.9995 or unit == "ns":  # 999.96 µs reads 1.00 ms
            break
    if unit == "ns":
        return f"{ns} ns"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def exact_us(ns: int) -> str:
    """Return microseconds as an exact decimal number, such as "-0.5" for -500 ns."""
    whole, rest = divmod(abs(ns), 1000)
    sign = "-" if ns < 0 else ""
    return f"{sign}{whole}.{rest:03d}".rstrip("0").rstrip(".")


def format_share(share: float) -> str:
    """Return a fraction as a percentage with one decimal, such as "4.5 %"."""
    percent = 100 * share
    if 0 < abs(percent) < 0.05:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 else "100 %"


def format_bytes(size: float) -> str:
    """Return a size in binary multiples, such as "2.50 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"


def format_count(value: int) -> str:
    """Return a count with thousands separators."""
    return f"{value:,}"


def pluralize(value: int, noun: str) -> str:
    """Return a count with its noun, which takes an s: "1 step", "1,200 steps"."""
    return f"{format_count(value)} {noun}{'' if value == 1 else 's'}"


def format_rate(rate: float) -> str:
    """Return a number with at most three significant digits, such as "2.5" or "120"."""
    return f"{rate:.0f}" if abs(rate) >= 99.95 else f"{rate:.3g}"


def format_fact(kind: str, value: float | str) -> str:
    """Return a fact of a finding as text.

    Args:
        kind: `count`, `duration_ns`, `bytes`, `share`, `rate` or `text`, as `_core.Finding.facts`
            names it.
        value: The value in the unit of its kind; a `str` for `text`.

    Raises:
        ValueError: The kind is unknown.
    """
    if isinstance(value, str) and kind == "text":
        return value
    if isinstance(value, str) or kind not in _FACT_WRITERS:
        raise ValueError(f"{value!r} is no fact of kind {kind!r}")
    return _FACT_WRITERS[kind](value)


_FACT_WRITERS: dict[str, Callable[[float], str]] = {
    "count": lambda value: str(int(value)),
    "duration_ns": lambda value: format_ns(int(value)),
    "bytes": format_bytes,
    "share": format_share,
    "rate": format_rate,
}


def format_part(key: str) -> str:
    """Return the name of a part of the time, its key in words, such as "data loading" of
    `data_loading`: every surface calls it so."""
    exposed = "exposed " if key in _EXPOSED else ""
    return exposed + key.replace("_", " ")


def format_percent(share: float) -> str:
    """Return a share as a percentage with two leading digits; it is never rounded up to 100 %."""
    percent = share * 100
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if percent < 9.95:
        return f"{percent:.1f} %"
    if 99 < percent < 100:
        return f"{math.floor(percent * 10) / 10:.1f} %"
    return f"{percent:.0f} %"


def keep_units_together(text: str) -> str:
    """Return the text with no-break spaces between figures and their units."""
    return _SPACE_BEFORE_UNIT.sub("\u00a0", text)


def format_change(before_ns: int, after_ns: int) -> str:
    """Return two times such as "177 → 130 ms", each with its own unit where these differ."""
    return _pair(before_ns, after_ns, " → ")


def format_range(low_ns: int, high_ns: int) -> str:
    """Return a range of times such as "127–132 ms"."""
    same = format_ns(low_ns) == format_ns(high_ns)
    return format_ns(low_ns) if same else _pair(low_ns, high_ns, "–")


def _pair(first_ns: int, second_ns: int, between: str) -> str:
    first, second = format_ns(first_ns), format_ns(second_ns)
    if not first_ns or first.split()[1] == second.split()[1]:
        first = first.split()[0]
    return f"{first}{between}{second}"


def display_width(text: str) -> int:
    """Return the number of columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def column_headings(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns as words, without their unit unless two then look alike.

    A query may name columns after text of a trace, so the headings are made harmless.
    """
    short = [name.removesuffix(next(filter(name.endswith, _COLUMN_UNITS), "")) for name in names]
    chosen = (
        name if short.count(plain) > 1 and not name.endswith("_ns") else plain
        for name, plain in zip(names, short, strict=True)
    )
    return tuple(one_line(name.replace("_", " "), MAX_HEADING) for name in chosen)


def one_line(text: str, limit: int) -> str:
    """Return text from a trace as one harmless line of at most `limit` columns.

    Control characters become U+FFFD and runs of blanks one blank; longer text ends in an ellipsis.
    """
    if len(text) <= limit and text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    head = " ".join(text[: limit * 4].split())
    clean = head
    if not (head.isascii() and head.isprintable()):
        clean = replace_controls(head)
    if len(text) <= limit * 4 and display_width(clean) <= limit:
        return clean
    clean = clean[:limit]
    while clean and display_width(clean) > limit - 1:
        clean = clean[:-1]
    return clean + "…"


def replace_controls(text: str) -> str:
    """Return text, line breaks kept, with U+FFFD for each character that controls a terminal.

    That includes characters that reorder what a terminal shows or are invisible in it.
    """
    if text.isascii() and text.isprintable():
        return text
    hidden = [c for c in set(text) if c != "\n" and unicodedata.category(c) in _HIDDEN]
    return text.translate(dict.fromkeys(map(ord, hidden), "�")) if hidden else text


def shown_lines(text: str) -> str:
    """Return lines for a person or program to read: see `replace_controls`, and no line of them
    commands a runner of CI.

    GitHub's takes a line that begins with `::` and one that holds `##[` for a command, such as one
    that stops annotations, and Azure's `##vso[`: a blank takes them apart. Text of a trace may
    stand at the start of a line once it is wrapped, so this comes last. In JSON, where a line
    never begins so, the second sign is escaped instead and the value is the same.
    """
    marked = RUNNER_MARK_IN_JSON if text.startswith(("{", "[")) else "# #"
    return _RUNNER_LINE.sub(r"\1: ", RUNNER_MARK.sub(marked, replace_controls(text)))


def escape_markdown(text: str) -> str:
    """Return text of a trace in which no Markdown formats, links or mentions, without characters
    that control a terminal."""
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", replace_controls(text))


def plain_text(text: str) -> str:
    """Return text on one line, with blanks for control characters and invisible ones."""
    if text.isascii() and text.isprintable():
        return text
    kept = (" " if unicodedata.category(c) in _HIDDEN else c for c in text)
    return " ".join("".join(kept).split())


def plain_line(text: str, most: int = 120) -> str:
    """Return text as one plain line of at most `most` characters; longer text ends in an
    ellipsis."""
    line = plain_text(text[: 4 * most].encode("utf-8", "replace").decode("utf-8"))
    return line if len(line) <= most else line[: most - 1] + "…"


def printable_lines(text: str) -> str:
    """Return text without escape sequences, with blanks for control characters; line breaks
    stay."""
    shown = _ESCAPE.sub("", text)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in shown).strip()


def short_repr(value: object) -> str:
    """Return the `repr` of a wrong value for an error message, cut to 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
