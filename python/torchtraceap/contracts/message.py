"""What is told of a broken contract: each limit that doesn't hold, where, and at what price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchtraceap.contracts.call_lines import Place
from torchtraceap.contracts.result import CheckResult, KeyResult
from torchtraceap.units import format_ns

__all__ = ["broken_message", "shown_limit"]

_WIDEST_SOURCE = 100


def broken_message(
    result: CheckResult, places: Mapping[str, Place], *, path: Path | None, frames: str = ""
) -> str:
    """The text of `ContractBroken`.

    Args:
        result: The check.
        places: By key, where the first event beyond the limit came from.
        path: Of the trace; None where it was not kept.
        frames: Why there are no Python frames; empty where there are.
    """
    return "\n".join(_lines(result, places, path, frames))


def _lines(
    result: CheckResult, places: Mapping[str, Place], path: Path | None, frames: str
) -> Iterator[str]:
    failed, unknown = result.failed, result.inconclusive
    total = len(result.results)
    of = f" of {result.name}" if result.name else ""
    if failed:
        verb = "does not hold" if len(failed) == 1 else "do not hold"
        yield f"{len(failed)} of {total} limit{'s' * (total != 1)}{of} {verb}"
    else:
        yield f"{len(unknown)} of {total} limit{'s' * (total != 1)}{of} could not be checked"
    for each in failed:
        yield ""
        yield from _failed_lines(each, places.get(each.key))
    if unknown:
        yield ""
        yield "  could not be checked:"
        for each in unknown:
            yield f"    {each.key} {shown_limit(each.limit)}: {each.reason}"
    notes = dict.fromkeys(each.note for each in failed if each.note)
    tail = [*notes, *([frames] if frames and failed else [])]
    tail += [f"trace: {path}"] if path is not None else []
    if tail:
        yield ""
        yield from (f"  {line}" for line in tail)


def _failed_lines(each: KeyResult, place: Place | None) -> Iterator[str]:
    yield f"  {each.key}: {each.reason.removesuffix(f'; {each.note}')}"
    if each.first_event is not None:
        yield f"    first beyond it: {each.first_event.name}{_at(each, place)}"
        if place is not None and place.source:
            yield f"        {place.source[:_WIDEST_SOURCE]}"
    if each.price_ns is not None:
        note = f" ({each.price_note})" if each.price_note else ""
        yield f"    a fix would save {format_ns(each.price_ns)}{note}"
    elif each.price_note:
        yield f"    price not known: {each.price_note}"


def _at(each: KeyResult, place: Place | None) -> str:
    if place is not None:
        return f" at {place.text}"
    return f" in {each.frame}" if each.frame is not None else ""


def shown_limit(limit: Any) -> str:
    """A limit as a person writes it."""
    if isinstance(limit, Mapping):
        return ", ".join(f"{name} {each}" for name, each in limit.items())
    if isinstance(limit, (list, tuple)):
        return f"none of {', '.join(limit)}"
    return str(limit)
