"""Durations that edits put in, from the package's own measurements.

These are imported when an edit asks for one: few do, and a diagnosis should start fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.models import OpCall, Work

if TYPE_CHECKING:
    from torchtraceap.ops.durations.estimate import Estimate

__all__ = [
    "HostRates",
    "collective_ns",
    "host_link_ratio",
    "host_rates",
    "matrix_work_ns",
    "product_bounds",
]


@dataclass(frozen=True, slots=True)
class HostRates:
    """What pinned copies of a direction reach, byte/s."""

    cap: float
    """No device that the trace may be of is faster."""
    most: float
    least: float
    source: str


def host_rates(direction: str, devices: Sequence[Device]) -> HostRates:
    """Rates by the link to the host, of the slowest device that comes into question.

    Args:
        direction: HtoD or DtoH.
        devices: What the trace may have been recorded on; at least one has a known link.
    """
    from torchtraceap.ops.durations.copies import host_link

    found = (host_link(device, direction) for device in devices)
    links = [link for link in found if link is not None]
    slowest = min(links, key=lambda link: link.most)
    source = f"share of the {slowest.name} rate; host not measured"
    if len(devices) > 1:
        source = f"device not known: {source.replace('the ', 'the slowest plausible ', 1)}"
    return HostRates(max(link.most for link in links), slowest.most, slowest.least, source)


def host_link_ratio(direction: str, old: Device, new: Device) -> float | None:
    """Time of a copy between host and device on a new over that on an old device; None where a link
    is not known."""
    from torchtraceap.ops.durations.copies import host_link

    before, after = host_link(old, direction), host_link(new, direction)
    return before.usual / after.usual if before and after else None


def collective_ns(kind: str, size: float, ranks: int, device: Device | None) -> Estimate | None:
    """Time of a collective of `size` bytes; None where no table has it."""
    if device is None or ranks < 2 or not size > 0:
        return None
    from torchtraceap.ops.durations.collectives import estimate_collective
    from torchtraceap.ops.durations.estimate import UnknownDurationError

    try:
        return estimate_collective(kind, size, ranks, device, links=False)
    except UnknownDurationError:
        return None


def matrix_work_ns(
    families: Sequence[str], works: Sequence[Work], dtypes: Sequence[str], device: Device
) -> npt.NDArray[np.float64]:
    """float64 `[3, n]`: how long products and convolutions take in some type, ns, and the bounds
    of 80 % of such; NaN where their work is not known."""
    from torchtraceap.ops.durations.families import estimate_works

    found = estimate_works(
        families,
        [np.nan if work.computed is None else work.computed for work in works],
        [work.bytes for work in works],
        dtypes,
        device,
        units=["matrix"] * len(works),
    )
    return np.stack([found.ns, found.low_ns, found.high_ns])


def product_bounds(
    call: OpCall, old: tuple[str, Device], new: tuple[str, Device]
) -> tuple[float, float] | None:
    """Least and most of a product's time in a type on a device over that in another, by the models
    of products; None for other operators.

    What the models miss on both sides cancels, so that the interval is that of the new time alone.
    """
    from torchtraceap.ops.durations.estimate import UnknownDurationError
    from torchtraceap.ops.durations.gemm import estimate_gemm
    from torchtraceap.ops.durations.operators import product_shape
    from torchtraceap.ops.models.arguments import UnknownWorkError

    try:
        shape = product_shape(call)
        if shape is None or min(shape) < 1:
            return None
        batch, m, n, k = shape
        before = estimate_gemm(m, n, k, *old, batch)
        after = estimate_gemm(m, n, k, *new, batch)
    except (UnknownDurationError, UnknownWorkError):
        return None
    return after.low_ns / before.ns, after.high_ns / before.ns
