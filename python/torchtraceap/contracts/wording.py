"""The sentence of a result: what was counted, against which limit, by how much."""

from __future__ import annotations

import math

from torchtraceap.contracts.limits import Limit, format_value
from torchtraceap.contracts.measures.measurement import RankMeasurement
from torchtraceap.contracts.measures.vocabulary import MEASURES, base_of, is_per_step
from torchtraceap.core.formatting import format_bytes, format_count, format_ns

__all__ = [
    "describe_count",
    "describe_excess",
    "describe_headroom",
    "describe_limit",
    "describe_scope",
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
    """The value with what it is a number of; `name` is of a kind of collective."""
    base, kind = base_of(key), MEASURES[key].kind
    if base in _DONE:
        return f"{format_value(value, kind)} {_DONE[base]}"
    if name:
        return f"{format_count(int(value))} {name}"
    return f"{format_count(int(value))} {_NOUNS[base][value != 1]}"


def describe_scope(of: RankMeasurement, step: int | None, step_name: str | None) -> str:
    """Say which time the value is of."""
    kind, part = MEASURES[of.key].kind, of.part
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
    """A bound, without more digits than it was written with."""
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
        return f"{_size(by)} too {'much' if above else 'little'}"
    if above and limit.high_open:
        by += 1
    if not above and limit.low_open:
        by += 1
    return f"{format_count(int(by))} too {'many' if above else 'few'}"


def _size(size: float) -> str:
    return f"{int(size)} bytes" if size < 1024 else format_bytes(size)


def describe_headroom(limit: Limit, value: float, key: str) -> str:
    """Say how far a limit that holds could be tightened; empty if it is tight."""
    kind = MEASURES[key].kind
    if limit.is_exact or limit.high == math.inf or value > _WON * limit.high:
        return ""
    return (
        f"{format_value(value, kind)} where {format_bound(limit.high, kind)} "
        f"{'is' if kind != 'count' else 'are'} allowed: the limit can be tightened"
    )
