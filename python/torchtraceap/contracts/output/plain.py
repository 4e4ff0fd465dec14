"""Texts about a result that all formats share, harmless wherever they are shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from torchtraceap.contracts.limits import format_value
from torchtraceap.contracts.result import CheckResult, Frame, KeyResult
from torchtraceap.core.formatting import format_ns, one_line

__all__ = ["details", "format_limit", "frame_text", "headline", "plain_line", "uri_path", "verdict"]

_LONGEST = 2000
_SHOWS = {"share": "longest", "time": "longest", "findings": "evidence"}
_NAME = 200


def plain_line(text: str, limit: int = _LONGEST) -> str:
    """One line without control characters, and without what can't be written as UTF-8."""
    return one_line(text.encode("utf-8", "replace").decode("utf-8"), limit)


def headline(result: CheckResult) -> str:
    """Return the numbers of limits that failed, passed or were inconclusive."""
    counts = {
        "failed": len(result.failed),
        "passed": sum(each.status == "passed" for each in result.results),
        "inconclusive": len(result.inconclusive),
    }
    said = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    return said or "no limit"


def verdict(result: CheckResult) -> str:
    """Return the result in one word."""
    if not result.passed:
        return "failed"
    return "inconclusive" if len(result.inconclusive) == len(result.results) else "passed"


def format_limit(result: KeyResult) -> str:
    """A limit for a person."""
    if isinstance(result.limit, dict):
        return plain_line(", ".join(f"{name} {each}" for name, each in result.limit.items()), _NAME)
    if isinstance(result.limit, list):
        return plain_line("without " + ", ".join(map(str, result.limit)), _NAME)
    return plain_line(str(result.limit), _NAME)


def format_measured(result: KeyResult) -> str:
    """A measured value for a person."""
    return plain_line(format_value(result.measured, result.kind), _NAME)


def frame_text(frame: Frame) -> str:
    """Return the place in the program as text."""
    return plain_line(str(frame), _NAME)


def details(result: KeyResult) -> Iterator[tuple[str, str]]:
    """Yield what stands below the sentence of a result: pairs of a word and a text."""
    if result.first_event is not None:
        of_rank = "" if result.rank is None else f" of rank {result.rank}"
        event = result.first_event
        word = _SHOWS.get(result.kind, "first beyond it")
        yield word, f"{plain_line(event.name, _NAME)} (row {event.row}{of_rank})"
    if result.frame is not None:
        yield "in", frame_text(result.frame)
    if result.price_ns is not None:
        per = " per step" if result.price_per_step else ""
        saving = f"{format_ns(result.price_ns)}{per}" if result.price_ns else "nothing"
        yield "a fix saves", f"{saving} ({plain_line(result.price_note)})"
    elif result.price_note:
        yield "a fix saves", f"not known ({plain_line(result.price_note)})"
    if result.won:
        yield "won", plain_line(result.won)


def uri_path(path: str) -> str:
    """Return a path as annotations and artifacts name it: below the working folder relative to it,
    with slashes."""
    text = plain_line(path, 4 * _NAME)
    try:
        found = Path(os.path.abspath(text)).relative_to(Path.cwd())
    except (ValueError, OSError):
        return text.replace(os.sep, "/")
    return found.as_posix()
