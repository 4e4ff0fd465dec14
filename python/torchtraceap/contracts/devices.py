"""The device of a trace, and whether it is the one of a contract."""

from __future__ import annotations

from torchtraceap.contracts.measures.events import is_without_gpu
from torchtraceap.core.order import distinct
from torchtraceap.ops.devices import find_device
from torchtraceap.tables.gpu.recorded_device import recorded_device
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["CPU", "is_same_device", "trace_device"]

CPU = "cpu"
"""The device of a run without a GPU."""


def trace_device(trace: Ranks) -> str | None:
    """The name of the devices that work ran on, as their driver says it; "cpu" without a GPU. None
    where the trace does not say."""
    if all(is_without_gpu(part) for part in trace.ranks):
        return CPU
    names = sorted({name for part in trace.ranks for name in _names(part)})
    return ", ".join(names) or None


def _names(part: RankTrace) -> set[str]:
    used = {int(number) for number in distinct(part.table.device[part.tree.gpu_rows])}
    entries = part.table.devices
    listed = [entry for entry in entries if entry.id in used] or entries[:1]
    found = set()
    for entry in listed:
        known = recorded_device(entry)
        name = entry.name or (known.name if known else "")
        found |= {name} if name else set()
    return found


def is_same_device(one: str, other: str) -> bool:
    """Do two names say the same kind of device?"""
    if one.strip().lower() == other.strip().lower():
        return True
    known = find_device(one), find_device(other)
    return known[0] is not None and known[0] == known[1]
