"""The sentence of a result: what was counted, against which limit, by how much; and the message of
a broken contract."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from torchtraceap.contracts.limits import Limit, format_value
from torchtraceap.contracts.measures.measurement import Measurement
from torchtraceap.contracts.measures.vocabulary import MEASURES, base_of, is_per_step
from torchtraceap.contracts.places import Place
from torchtraceap.contracts.result import CheckResult, KeyResult
from torchtraceap.core.formatting import format_bytes, format_count, format_ns

__all__ = [
    "broken_message",
    "describe_count",
    "describe_excess",
    "describe_headroom",
    "describe_limit",
    "describe_scope",
    "limit_text",
]

_NOUNS = {
    "launches": ("launch", "launches"),
    "syncs": ("wait of the host for the GPU", "waits of the host for the GPU"),
    "collectives": ("collective", "collectives"),
    "recompiles": ("recompilation", "recompilations"),
    "graph_breaks": ("graph break", "graph breaks"),
    "operators": ("call of an operator", "calls of operators"),
    "allocator_calls": ("allocator call", "allocator calls"),
}
_DONE = {
    "h2d_bytes": "copied to the GPU",
    "d2h_bytes": "copied to the host",
    "copied_bytes": "copied",
    "collective_bytes": "in collectives",
    "peak_allocated_bytes": "allocated at once",
    "gpu_idle": "without GPU work",
    "gpu_busy": "with GPU work",
    "exposed_communication": "in communication that nothing hides",
    "exposed_memcpy": "in copies that nothing hides",
    "step_time": "for a step",
    "gpu_time_per_step": "of GPU work",
}
_WON = 0.9
"""Part of a bound below which a value is reported as a win."""


def describe_count(key: str, value: float, name: str = "") -> str:
    """Say a value with what it is a number of; `name` is of a kind of collective."""
    base, kind = base_of(key), MEASURES[key].kind
    if base in _DONE:
        return f"{format_value(value, kind)} {_DONE[base]}"
    if name:
        return f"{format_count(int(value))} {name}"
    return f"{format_count(int(value))} {_NOUNS[base][value != 1]}"


def describe_scope(of: Measurement, step: int | None, step_name: str | None) -> str:
    """Say which time the value is of."""
    kind, part = MEASURES[of.key].kind, of.part
    assert part is not None
    if kind == "time":
        return f"in the median of {len(of.by_step)} counted steps"
    if of.predicted is not None:
        return "in a steady step" if is_per_step(of.key) else "in all steps"
    if is_per_step(of.key):
        if not of.step_places:
            return "in the whole trace, taken as one step"
        if step is not None:
            return f"in {step_name}"
        return f"in the worst of {len(of.by_step)} counted steps"
    if not part.tree.steps:
        return "of the whole trace" if kind == "share" else "in the whole trace"
    return "of the profiled time" if kind == "share" else "in the profiled time"


def describe_limit(limit: Limit, key: str) -> str:
    """Say what a limit allows."""
    kind = MEASURES[key].kind
    low, high = format_bound(limit.low, kind), format_bound(limit.high, kind)
    if limit.is_exact:
        return f"and the contract says exactly {high}"
    if limit.low > -math.inf and limit.high < math.inf:
        return f"and the contract says {low} to {high}"
    if limit.high < math.inf:
        return f"and the contract says {'less than' if limit.high_open else 'at most'} {high}"
    return f"and the contract says {'more than' if limit.low_open else 'at least'} {low}"


def format_bound(value: float, kind: str) -> str:
    """Return a bound without more digits than it was written with."""
    if not math.isfinite(value):
        return ""
    if kind == "share":
        return f"{100 * value:.6g} %"
    return format_bytes(value) if kind == "bytes" else format_value(value, kind)


def describe_excess(limit: Limit, value: float, key: str) -> str:
    """Say by how much a value lies outside of bounds."""
    kind = MEASURES[key].kind
    above = limit.is_above(value)
    by = value - limit.high if above else limit.low - value
    if kind == "share":
        return f"{100 * by:.3g} percentage points too {'much' if above else 'little'}"
    if kind == "time":
        return f"{format_ns(round(by))} too {'much' if above else 'little'}"
    if kind == "bytes":
        size = f"{int(by)} bytes" if by < 1024 else format_bytes(by)
        return f"{size} too {'much' if above else 'little'}"
    if above and limit.high_open:
        by += 1
    if not above and limit.low_open:
        by += 1
    return f"{format_count(int(by))} too {'many' if above else 'few'}"


def describe_headroom(limit: Limit, value: float, key: str) -> str:
    """Say how far a limit that holds could be tightened; empty if it is tight."""
    kind = MEASURES[key].kind
    if limit.is_exact or limit.high == math.inf or value > _WON * limit.high:
        return ""
    return (
        f"{format_value(value, kind)} where {format_bound(limit.high, kind)} "
        f"{'is' if kind != 'count' else 'are'} allowed: the limit can be tightened"
    )


_WIDTH = 100
_WIDEST_SOURCE = 90
_TRACE, _FIRST = "trace: ", "first beyond it: "


def broken_message(
    result: CheckResult, places: Mapping[str, Place], *, path: str | None, frames: str = ""
) -> str:
    """Return the text of `ContractBroken`: each limit that doesn't hold, where, and at what price.

    Args:
        result: The check.
        places: The origin of the first event beyond a limit, by key.
        path: The file of the trace; None if it was not kept.
        frames: Why there are no Python frames; empty where there are.
    """
    failed, unknown = result.failed, result.inconclusive
    # A test runner has one line for a failure: the first says enough by itself.
    short = []
    for each in failed:
        said = format_value(each.measured, each.kind)
        is_list = isinstance(each.measured, (list, tuple))
        short.append(f"{each.key}: {said}{'' if is_list else f', limit {limit_text(each.limit)}'}")
    said = "; ".join(short) or f"could not be checked: {', '.join(each.key for each in unknown)}"
    lines = [f"{said} in {result.name}" if result.name else said]
    for each in failed:
        lines += ["", *_failed_lines(each, places.get(each.key))]
    if unknown:
        lines += ["", "  could not be checked:"]
        lines += [f"    {each.key} {limit_text(each.limit)}: {each.reason}" for each in unknown]
    tail = list(dict.fromkeys(each.note for each in failed if each.note))
    tail += [frames] if frames and failed else []
    tail += [f"{_TRACE}{path}"] if path is not None else []
    if tail:
        lines += ["", *(f"  {line}" for line in tail)]
    wrapped = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        if line.lstrip().startswith((_TRACE, _FIRST)):
            wrapped.append(line)  # its file or place is to be copied
        else:
            wrapped += textwrap.wrap(
                line,
                _WIDTH,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            ) or [""]
    return "\n".join(wrapped)


def _failed_lines(each: KeyResult, place: Place | None) -> Iterator[str]:
    yield f"  {each.key}: {each.reason.removesuffix(f'; {each.note}')}"
    if each.first_event is not None:
        where = f" in {each.frame}" if each.frame is not None else ""
        if place is not None:
            where = f" {'at' if place.exact else 'near'} {place.text}"
        yield f"    {_FIRST}{each.first_event.name}{where}"
        if place is not None and place.source:
            yield f"        {place.source[:_WIDEST_SOURCE]}"
    if each.price_ns is not None:
        note = f" ({each.price_note})" if each.price_note else ""
        yield f"    a fix would save {format_ns(each.price_ns)}{note}"
    elif each.price_note:
        yield f"    price not known: {each.price_note}"


def limit_text(limit: Any) -> str:
    """Return a limit as a person writes it."""
    if isinstance(limit, Mapping):
        return ", ".join(f"{name} {each}" for name, each in limit.items())
    if isinstance(limit, (list, tuple)):
        return f"none of {', '.join(limit)}"
    return str(limit)
