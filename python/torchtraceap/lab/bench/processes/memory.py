"""How much memory a process had at most, of each kind that can be told apart.

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
    """Peaks of one process, in bytes; None where there is no such memory."""

    rss_peak_bytes: int
    """Resident memory of the process at its highest, libraries included."""
    rss_baseline_bytes: int
    """Resident memory when PyTorch was imported and nothing was made."""
    rss_above_bytes: int
    """What the workload added at its highest."""
    allocated_peak_bytes: int | None = None
    """Held by tensors on the GPU."""
    reserved_peak_bytes: int | None = None
    """Taken from the GPU by PyTorch's allocator: what another process can't have."""
    fragmentation: float | None = None
    """Share of the reserved peak that tensors did not hold at theirs; 0 if nothing was reserved."""


def current_rss_bytes() -> int:
    """Resident memory of this process."""
    return _status_bytes("VmRSS") or peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Resident memory of this process at its highest; see Note [Resident memory]."""
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_rss() -> None:
    """Lets the highest mark begin anew, where the kernel allows it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def measure_memory(baseline_bytes: int, torch: Any = None) -> Memory:
    """What this process had at most.

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
    """A figure of `/proc/self/status`, which the kernel gives in units of 1024 bytes."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text("ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
