"""Peak memory of a process, by kind.

Note [Resident memory]: `ru_maxrss` of a process counts from when it was a copy of the one that
started it, and what PyTorch's libraries take is in it. So a process asks the kernel for the highest
mark of its own memory (`VmHWM`), and says beside it what it held before the workload was made.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result

__all__ = ["Memory", "current_rss_bytes", "measure_memory", "peak_rss_bytes", "reset_peak_rss"]

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Memory(Result):
    """Memory peaks of one process in bytes; None if there is no such memory."""

    rss_peak_bytes: int
    """Peak resident memory, libraries included."""
    rss_baseline_bytes: int
    """Resident memory after the import of PyTorch, before anything is made."""
    rss_above_bytes: int
    """Peak resident memory that the workload added."""
    allocated_peak_bytes: int | None = None
    """Peak of the memory that tensors hold on the GPU."""
    reserved_peak_bytes: int | None = None
    """Peak of the memory that PyTorch's allocator takes from the GPU, which other processes cannot
    have."""
    fragmentation: float | None = None
    """Share of the reserved peak that tensors did not hold at their own peak; 0 if nothing was
    reserved."""


def current_rss_bytes() -> int:
    """Return the resident memory of this process."""
    return _status_bytes("VmRSS") or peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process; see Note [Resident memory]."""
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_rss() -> None:
    """Reset the peak, if the kernel allows it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def measure_memory(baseline_bytes: int, torch: Any = None) -> Memory:
    """Return the memory peaks of this process.

    Args:
        baseline_bytes: Resident memory before the workload was made.
        torch: The module, where the workload ran on a GPU.
    """
    peak = peak_rss_bytes()
    above = max(0, peak - baseline_bytes)
    if torch is None:
        return Memory(peak, baseline_bytes, above)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    lost = 1.0 - allocated / reserved if reserved else 0.0
    return Memory(peak, baseline_bytes, above, allocated, reserved, lost)


def _status_bytes(name: str) -> int | None:
    """Return a value of `/proc/self/status` in bytes; the kernel gives it in units of 1024
    bytes."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text("ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
