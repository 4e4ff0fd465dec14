"""Durations that edits put in: measured tables where the package has them, else plain rates."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torchtraceap.devices import Device
from torchtraceap.models import OpCall

__all__ = ["collective_ns", "copy_rate", "product_ratio"]

LINK_SHARE = 0.79
"""Of the PCIe rate that large pinned copies reach: 12, 25, 50 GB/s of 15.75, 31.5, 63."""
_COPY_BYTES = 64 << 20


def _tables() -> Any | None:
    try:
        return import_module("torchtraceap.durations")
    except ImportError:
        return None


def _ask(name: str, *arguments: Any, **named: Any) -> tuple[float, str] | None:
    """What a measured table says; None where there is no table, or none for these arguments."""
    function = getattr(_tables(), name, None)
    try:
        found = function(*arguments, **named) if function is not None else None
    except OSError:  # the package was built without its data
        return None
    return (float(found[0]), str(found[1])) if found is not None else None


def copy_rate(direction: str, device: Device | None) -> tuple[float, str] | None:
    """byte/s of large copies between pinned memory and a device, and where it is from."""
    if device is None:
        return None
    found = _ask("copy_ns", _COPY_BYTES, direction, True, device)
    if found is not None and found[0] > 0:
        return _COPY_BYTES / found[0] * 1e9, found[1]
    link = device.links.get("pcie")
    if link is None:
        return None
    return LINK_SHARE * link, f"{LINK_SHARE:.0%} of the rate of {device.name}'s PCIe link"


def collective_ns(
    kind: str, size: float, ranks: int, device: Device | None
) -> tuple[float, str] | None:
    """Time of a collective, ns, and where it is from; None where no table has it."""
    if device is None or ranks < 2:
        return None
    return _ask("collective_ns", kind, size, ranks, device)


def product_ratio(call: OpCall, old: Device, new: Device) -> float | None:
    """Time of a product of matrices on a new over that on an old device, where products were
    measured on both."""
    tables = _tables()
    if tables is None:
        return None
    try:
        ratio, source = tables.estimate_ratio(call, old, new)
    except (tables.UnknownDurationError, OSError):
        return None
    return float(ratio) if source.startswith("ratio of models") else None
