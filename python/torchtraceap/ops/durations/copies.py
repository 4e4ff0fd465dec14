"""Estimate copies between host and device, and on the device, from the rate of their link.

No table of measured copies is shipped; benchmarks/device/measure_kernels.py makes one, and copies
in the user's own trace are better still. Without them a pinned copy runs at a share of the link's
rate (see Note [Shares of a link]) and a copy on the device at a share of the memory's rate.
Pageable copies depend on the host's memory and threads, so their interval is wide.

Note [Shares of a link]: nvbandwidth shows 24.8 to 26.5 GB/s of PCIe 4's 31.5 and 55.6 of PCIe 5's
63, so the upper bound is 88 %. Hosts may have the previous generation, or two GPUs may share a
switch: pinned copies of 1 MiB and more ran at 5.0 to 12.7 GB/s in four public traces of A100, so
the lower bound is a quarter. On GH200 375 GB/s were measured to the device and 297 GB/s back, of
the 450 GB/s of C2C.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    resolve_device,
)

__all__ = ["COPY_START_NS", "HostLink", "estimate_copies", "estimate_copy", "host_link"]

COPY_START_NS = 1500.0
# The least, the usual and the longest time of a tiny copy. Medians of copies of up to 64 KiB were
# 0.8 to 12 us in 26 public traces.
_STARTS_NS = (900.0, COPY_START_NS, 8000.0)
# byte/s. Copies of 1 MiB and more between pageable memory and V100, A100 and H100 ran at 2.3 to
# 11.2 GB/s in ten public traces, half of them between 4.8 and 6.7: the host's threads copy them to
# pinned memory first, whatever the link.
_PAGEABLE_RATES = (11e9, 6e9, 2.5e9)
# The highest, the usual and the lowest share by link and direction; see Note [Shares of a link].
_LINK_SHARES = {
    ("c2c", "to"): (0.83, 0.79, 0.4),
    ("c2c", "from"): (0.66, 0.62, 0.33),
    ("pcie", "to"): (0.88, 0.79, 0.25),
    ("pcie", "from"): (0.88, 0.79, 0.25),
}
_LINK_NAMES = {"c2c": "NVLink-C2C", "pcie": "PCIe"}
# Share of the memory's rate for reading and writing; five GPUs moved 0.75 to 0.92 of it
# (docs/durations.md).
_MEMORY_SHARE = 0.83
# A guess (see Note [Factors of intervals]) because nothing was measured.
_INTERVAL = 1.4
_DIRECTIONS = {
    "htod": "to",
    "host to device": "to",
    "dtoh": "from",
    "device to host": "from",
    "dtod": "on",
    "device to device": "on",
}


@dataclass(frozen=True, slots=True)
class HostLink:
    """Rates in byte/s that large pinned copies in one direction reach."""

    name: str
    """Name of the link, such as "PCIe"."""
    most: float
    usual: float
    least: float


def host_link(device: Device, direction: str) -> HostLink | None:
    """Return the link between a device and its host; None if the database has none.

    Args:
        device: The GPU.
        direction: "HtoD" or "DtoH", or "host to device" or "device to host".

    Raises:
        UnknownDurationError: The direction is another one.
    """
    side = _parse_direction(direction)
    link = next((kind for kind in _LINK_NAMES if kind in device.links), None)
    if link is None:
        return None
    if side == "on":
        raise UnknownDurationError(f"copies {direction!r} take no link to the host")
    most, usual, least = (share * device.links[link] for share in _LINK_SHARES[link, side])
    return HostLink(_LINK_NAMES[link], most, usual, least)


def _parse_direction(direction: str) -> str:
    """Return "to", "from" or "on" (the device)."""
    side = _DIRECTIONS.get(direction.lower().replace("_", " ").strip())
    if side is None:
        raise UnknownDurationError(f"copies {direction!r} were not measured")
    return side


def estimate_copy(size: float, direction: str, pinned: bool, device: str | Device) -> Estimate:
    """Estimate the time of a copy of `size` bytes; see `estimate_copies`."""
    return estimate_copies([size], direction, pinned, device)[0]


def estimate_copies(
    sizes: npt.ArrayLike, direction: str, pinned: bool, device: str | Device
) -> Estimates:
    """Estimate the times of copies.

    Args:
        sizes: `[n]`, in bytes.
        direction: "HtoD", "DtoH" or "DtoD", or the same in words ("host to device").
        pinned: The host memory is page-locked; ignored for copies on the device.
        device: A GPU by name or id.

    Raises:
        UnknownDurationError: The direction or device is unknown, or the link of a pinned copy.
    """
    chip = resolve_device(device)
    size = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    if _parse_direction(direction) == "on":
        rate = _MEMORY_SHARE * chip.bandwidth / 2.0
        rates = (rate * _INTERVAL, rate, rate / _INTERVAL)
        return _at_rates(size, rates, "share of the memory's rate")
    link = host_link(chip, direction)
    if not pinned:
        most, usual, least = _PAGEABLE_RATES
        cap = link.most if link is not None else most
        says = "copies of pageable memory in public traces; the host decides"
        return _at_rates(size, (min(most, cap), min(usual, cap), least), says)
    if link is None:
        raise UnknownDurationError(f"the host's link of {chip.name} is not known")
    says = f"share of the {link.name} rate; host not measured"
    return _at_rates(size, (link.most, link.usual, link.least), says)


def _at_rates(
    size: npt.NDArray[np.float64], rates: tuple[float, float, float], says: str
) -> Estimates:
    """Estimate a startup time plus the bytes at the highest, the usual and the lowest rate."""
    low_ns, ns, high_ns = (
        start + 1e9 * size / rate for start, rate in zip(_STARTS_NS, rates, strict=True)
    )
    return Estimates(ns, low_ns, high_ns, np.zeros(len(ns), dtype=np.int32), (says,))
