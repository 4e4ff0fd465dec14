"""Copies between host and device, and on the device, at the rate of their link.

No table of measured copies is shipped yet; benchmarks/device/measure_kernels.py makes one, and
copies in the trace at hand are better than both. Until then a pinned copy runs at the share of
the link's rate that PCIe's packets leave, a copy on the device at a share of the memory's rate;
pageable copies depend on the host's memory and threads, and get no estimate.
"""

from __future__ import annotations

from torchtraceap.devices import Device
from torchtraceap.durations.estimate import Estimate, UnknownDurationError, the_device

__all__ = ["COPY_START_NS", "estimate_copy"]

COPY_START_NS = 1500.0
# 12, 25 and 50 GB/s of 15.75, 31.5 and 63: what large pinned copies reach on PCIe 3, 4 and 5.
_PCIE_SHARE = 0.79
# Of the memory's rate, reading and writing; five GPUs moved 0.75 to 0.92 (docs/durations.md).
_MEMORY_SHARE = 0.83
# Note [Factors of intervals]: a guess, nothing was measured.
_INTERVAL = 1.4
_DIRECTIONS = {
    "htod": "host",
    "host to device": "host",
    "dtoh": "host",
    "device to host": "host",
    "dtod": "device",
    "device to device": "device",
}


def estimate_copy(size: float, direction: str, pinned: bool, device: str | Device) -> Estimate:
    """How long a copy of `size` bytes runs.

    Args:
        size: In bytes.
        direction: HtoD, DtoH or DtoD, or those words.
        pinned: Whether the host's side is page-locked; of no account on the device.
        device: A GPU by name or id.

    Raises:
        UnknownDurationError: Pageable memory, an unknown direction or device, or no known link.
    """
    chip = the_device(device)
    side = _DIRECTIONS.get(direction.lower().replace("_", " ").strip())
    if side is None:
        raise UnknownDurationError(f"copies {direction!r} were not measured")
    if side == "device":
        rate = _MEMORY_SHARE * chip.bandwidth / 2.0
        ns = COPY_START_NS + 1e9 * size / rate
        return Estimate.around(ns, _INTERVAL, "share of the memory's rate")
    if not pinned:
        raise UnknownDurationError("pageable copies depend on the host, not on the GPU")
    if "pcie" not in chip.links:
        raise UnknownDurationError(f"the host's link of {chip.name} is not known")
    rate = _PCIE_SHARE * chip.links["pcie"]
    ns = COPY_START_NS + 1e9 * size / rate
    return Estimate.around(ns, _INTERVAL, "share of the PCIe rate; host not measured")
