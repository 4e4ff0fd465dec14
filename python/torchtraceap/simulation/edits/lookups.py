"""Durations that edits put in, from the package's own measurements.

These are imported when an edit asks for one: few do, and a diagnosis should start fast.
"""

from __future__ import annotations

from torchtraceap.devices import Device
from torchtraceap.models import OpCall

__all__ = ["collective_ns", "copy_rate", "product_ratio"]

_COPY_BYTES = 64 << 20


def copy_rate(direction: str, device: Device | None) -> tuple[float, str] | None:
    """byte/s of large copies between pinned memory and a device, and where it is from."""
    if device is None:
        return None
    from torchtraceap import durations

    found = durations.copy_ns(_COPY_BYTES, direction, True, device)
    return (_COPY_BYTES / found.ns * 1e9, found.source) if found else None


def collective_ns(
    kind: str, size: float, ranks: int, device: Device | None
) -> tuple[float, str] | None:
    """Time of a collective, ns, and where it is from; None where no table has it."""
    if device is None or ranks < 2:
        return None
    from torchtraceap import durations

    found = durations.collective_ns(kind, size, ranks, device)
    return (found.ns, found.source) if found else None


def product_ratio(call: OpCall, old: Device, new: Device) -> float | None:
    """Time of a product of matrices on a new over that on an old device, where products were
    measured on both."""
    from torchtraceap import durations

    try:
        ratio, source = durations.estimate_ratio(call, old, new)
    except durations.UnknownDurationError:
        return None
    return ratio if source.startswith("ratio of models") else None
