"""The message of a broken contract: each limit that doesn't hold, where, and at what price."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from torchtraceap.contracts.call_lines import Place
from torchtraceap.contracts.limits import format_value
from torchtraceap.contracts.result import CheckResult, KeyResult
from torchtraceap.core.formatting import format_ns

__all__ = ["broken_message", "limit_text"]

_WIDTH = 100
_WIDEST_SOURCE = 90
_TRACE, _FIRST = "trace: ", "first beyond it: "
_WHOLE = (_TRACE, _FIRST)


def broken_message(
    result: CheckResult, places: Mapping[str, Place], *, path: str | None, frames: str = ""
) -> str:
    """The text of `ContractBroken`.

    Args:
        result: The check.
        places: The origin of the first event beyond a limit, by key.
        path: The file of the trace; None if it was not kept.
        frames: Why there are no Python frames; empty where there are.
    """
    lines = _lines(result, places, path, frames)
    return "\n".join(part for line in lines for part in _wrap(line))


def _lines(
    result: CheckResult, places: Mapping[str, Place], path: str | None, frames: str
) -> Iterator[str]:
    failed, unknown = result.failed, result.inconclusive
    of = f" in {result.name}" if result.name else ""
    if failed:
        yield f"{'; '.join(map(_short_lines, failed))}{of}"
    else:
        yield f"could not be checked: {', '.join(each.key for each in unknown)}{of}"
    for each in failed:
        yield ""
        yield from _failed_lines(each, places.get(each.key))
    if unknown:
        yield ""
        yield "  could not be checked:"
        for each in unknown:
            yield f"    {each.key} {limit_text(each.limit)}: {each.reason}"
    notes = dict.fromkeys(each.note for each in failed if each.note)
    tail = [*notes, *([frames] if frames and failed else [])]
    tail += [f"{_TRACE}{path}"] if path is not None else []
    if tail:
        yield ""
        yield from (f"  {line}" for line in tail)


def _wrap(line: str) -> list[str]:
    """A line in several, but for what begins with a place or names a file: it is to be copied."""
    indent = " " * (len(line) - len(line.lstrip()))
    wide = textwrap.wrap(line, _WIDTH, subsequent_indent=indent + "  ", break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip
    return [line] if line.lstrip().startswith(_WHOLE) else wide or [""]


def _short_lines(each: KeyResult) -> str:
    """Enough for the line that a test runner has for a failure."""
    if isinstance(each.measured, (list, tuple)):
        return f"{each.key}: {', '.join(each.measured)}"
    return f"{each.key}: {format_value(each.measured, each.kind)}, limit {limit_text(each.limit)}"


def _failed_lines(each: KeyResult, place: Place | None) -> Iterator[str]:
    yield f"  {each.key}: {each.reason.removesuffix(f'; {each.note}')}"
    if each.first_event is not None:
        yield f"    {_FIRST}{each.first_event.name}{_at_place(each, place)}"
        if place is not None and place.source:
            yield f"        {place.source[:_WIDEST_SOURCE]}"
    if each.price_ns is not None:
        note = f" ({each.price_note})" if each.price_note else ""
        yield f"    a fix would save {format_ns(each.price_ns)}{note}"
    elif each.price_note:
        yield f"    price not known: {each.price_note}"


def _at_place(each: KeyResult, place: Place | None) -> str:
    if place is not None:
        return f" {'at' if place.exact else 'near'} {place.text}"
    return f" in {each.frame}" if each.frame is not None else ""


def limit_text(limit: Any) -> str:
    """A limit as a person writes it."""
    if isinstance(limit, Mapping):
        return ", ".join(f"{name} {each}" for name, each in limit.items())
    if isinstance(limit, (list, tuple)):
        return f"none of {', '.join(limit)}"
    return str(limit)
