"""Copies between host and device, and on the device, at the rate of their link.

No table of measured copies is shipped yet; benchmarks/device/measure_kernels.py makes one, and
copies in the trace at hand are better than both. Until then a pinned copy runs at a share of the
link's rate (see Note [Shares of a link]), a copy on the device at a share of the memory's rate;
pageable copies depend on the host's memory and threads, and their interval is wide.

Note [Shares of a link]: nvbandwidth shows 24.8 to 26.5 GB/s of PCIe 4's 31.5 and 55.6 of PCIe 5's
63, so 88 % is the most. Hosts may have the generation before, or two GPUs share a switch: pinned
copies of 1 MiB and more ran at 5.0 to 12.7 GB/s in four public traces of A100, so a quarter is the
least. On GH200 375 GB/s were measured to the device and 297 GB/s back, of C2C's 450.
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
    the_device,
)

__all__ = ["COPY_START_NS", "HostLink", "estimate_copies", "estimate_copy", "host_link"]

COPY_START_NS = 1500.0
# The least, the usual and the most that a copy of next to nothing takes. Medians of copies of up to
# 64 KiB were 0.8 to 12 us in 26 public traces.
_STARTS_NS = (900.0, COPY_START_NS, 8000.0)
# byte/s. Copies of 1 MiB and more between pageable memory and V100, A100 and H100 ran at 2.3 to
# 11.2 GB/s in ten public traces, half of them between 4.8 and 6.7: the host's threads copy them to
# pinned memory first, whatever the link.
_PAGEABLE_RATES = (11e9, 6e9, 2.5e9)
# By link and side: the most, the usual and the least share. Note [Shares of a link].
_LINK_SHARES = {
    ("c2c", "to"): (0.83, 0.79, 0.4),
    ("c2c", "from"): (0.66, 0.62, 0.33),
    ("pcie", "to"): (0.88, 0.79, 0.25),
    ("pcie", "from"): (0.88, 0.79, 0.25),
}
_LINK_NAMES = {"c2c": "NVLink-C2C", "pcie": "PCIe"}
# Of the memory's rate, reading and writing; five GPUs moved 0.75 to 0.92 (docs/durations.md).
_MEMORY_SHARE = 0.83
# Note [Factors of intervals]: a guess, nothing was measured.
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
    """What large pinned copies of one direction reach, byte/s."""

    name: str
    """Such as "PCIe"."""
    most: float
    usual: float
    least: float


def host_link(device: Device, direction: str) -> HostLink | None:
    """The link between a device and its host; None where the database has none.

    Args:
        device: The GPU.
        direction: HtoD or DtoH, or those words.

    Raises:
        UnknownDurationError: Another direction.
    """
    side = _side(direction)
    link = next((kind for kind in _LINK_NAMES if kind in device.links), None)
    if link is None:
        return None
    if side == "on":
        raise UnknownDurationError(f"copies {direction!r} take no link to the host")
    most, usual, least = (share * device.links[link] for share in _LINK_SHARES[link, side])
    return HostLink(_LINK_NAMES[link], most, usual, least)


def _side(direction: str) -> str:
    side = _DIRECTIONS.get(direction.lower().replace("_", " ").strip())
    if side is None:
        raise UnknownDurationError(f"copies {direction!r} were not measured")
    return side


def estimate_copy(size: float, direction: str, pinned: bool, device: str | Device) -> Estimate:
    """How long a copy of `size` bytes runs; see `estimate_copies`."""
    return estimate_copies([size], direction, pinned, device)[0]


def estimate_copies(
    sizes: npt.ArrayLike, direction: str, pinned: bool, device: str | Device
) -> Estimates:
    """How long copies run.

    Args:
        sizes: `[n]`, in bytes.
        direction: HtoD, DtoH or DtoD, or those words.
        pinned: Whether the host's side is page-locked; of no account on the device.
        device: A GPU by name or id.

    Raises:
        UnknownDurationError: An unknown direction or device; of pinned memory no known link.
    """
    chip = the_device(device)
    size = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    if _side(direction) == "on":
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
    """A start and the bytes at the most, the usual and the least rate."""
    low_ns, ns, high_ns = (
        start + 1e9 * size / rate for start, rate in zip(_STARTS_NS, rates, strict=True)
    )
    return Estimates(ns, low_ns, high_ns, np.zeros(len(ns), dtype=np.int32), (says,))
