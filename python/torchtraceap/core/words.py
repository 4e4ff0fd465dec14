"""Numbers and names as people read them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from torchtraceap.core.units import format_ns

__all__ = [
    "arrow",
    "cells",
    "format_percent",
    "harmless",
    "headings",
    "one_line",
    "unbroken",
]

# Control, format and bidirectional characters could reorder or hide what a terminal shows, or
# command it; private and unassigned ones show as nothing.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

MAX_HEADING = 60
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|min|h|B|[KMGT]i?B)(?!\w))")
_UNITS = ("_ns", "_share", "_bytes", "_gb_per_s")


def format_percent(share: float) -> str:
    """A share as a percentage with two leading digits; never rounded up to 100 %."""
    percent = share * 100
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if percent < 9.95:
        return f"{percent:.1f} %"
    if 99 < percent < 100:
        return f"{math.floor(percent * 10) / 10:.1f} %"
    return f"{percent:.0f} %"


def unbroken(text: str) -> str:
    """Text in which no line breaks between a figure and its unit."""
    return _UNIT.sub("\u00a0", text)


def arrow(before_ns: int, after_ns: int) -> str:
    """Such as "177 → 130 ms"; each with its own unit where they differ."""
    return _pair(before_ns, after_ns, " → ")


def dash(low_ns: int, high_ns: int) -> str:
    """Such as "127–132 ms"."""
    same = format_ns(low_ns) == format_ns(high_ns)
    return format_ns(low_ns) if same else _pair(low_ns, high_ns, "–")


def _pair(first_ns: int, second_ns: int, between: str) -> str:
    first, second = format_ns(first_ns), format_ns(second_ns)
    if not first_ns or first.split()[1] == second.split()[1]:
        first = first.split()[0]
    return f"{first}{between}{second}"


def cells(text: str) -> int:
    """Columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def headings(names: Sequence[str]) -> tuple[str, ...]:
    """Names of columns as words: without the unit, which cells show, unless two then look alike.

    A query may make columns of what stands in a trace.
    """
    short = [name.removesuffix(next(filter(name.endswith, _UNITS), "")) for name in names]
    chosen = (
        name if short.count(plain) > 1 and not name.endswith("_ns") else plain
        for name, plain in zip(names, short, strict=True)
    )
    return tuple(one_line(name.replace("_", " "), MAX_HEADING) for name in chosen)


def one_line(text: str, limit: int) -> str:
    """Text from a trace as one harmless line of at most `limit` columns.

    Controls become U+FFFD, runs of blanks one blank, and what is too long ends in an ellipsis.
    """
    if len(text) <= limit and text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    head = " ".join(text[: limit * 4].split())
    clean = head
    if not (head.isascii() and head.isprintable()):
        clean = harmless(head)
    if len(text) <= limit * 4 and cells(clean) <= limit:
        return clean
    clean = clean[:limit]
    while clean and cells(clean) > limit - 1:
        clean = clean[:-1]
    return clean + "…"


def harmless(text: str) -> str:
    """Text with its line breaks kept and every other character replaced that commands a terminal,
    reorders what it shows, or hides in it."""
    if text.isascii() and text.isprintable():
        return text
    hidden = [c for c in set(text) if c != "\n" and unicodedata.category(c) in _HIDDEN]
    return text.translate(dict.fromkeys(map(ord, hidden), "�")) if hidden else text
