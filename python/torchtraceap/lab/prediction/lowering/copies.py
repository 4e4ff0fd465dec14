"""Copies between host and GPU and how long they block the host.

Note [Copies and the host]: torch waits for a copy without `non_blocking`, whatever its size. The
driver stages a copy from or to pageable memory and starts it behind the earlier work of its stream:
the host waits for it even with `non_blocking`, except for small copies to the GPU, which return
once they are staged. A copy from or to pinned memory with `non_blocking` is an ordinary launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtraceap.lab.prediction.capture.calls import Move, TensorInfo
from torchtraceap.lab.prediction.lowering.work import GpuWork, WorkKind
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.copies import estimate_copy

__all__ = ["HostCopy", "host_copy"]

_STAGED_BYTES = 64 * 1024
"""Largest copy from pageable memory that returns once it is staged."""
_STAGED_NS = 10_000.0
_BLOCKED_NS = 150_000.0
"""Overhead of a blocking copy: 80 to 230 us for 4 to 150 MB in traces of V100, A100, GP100, H100
and MI300X; staged ones take 5 to 19 us."""
_PINNED_NS = 6_000.0
"""Launch of a copy from pinned memory: 4 to 10 us in traces."""


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The GPU work and launch time of a copy."""

    work: GpuWork
    launch_ns: float
    """Duration of the call, without waiting for earlier work and the copy."""


def host_copy(tensor: TensorInfo, move: Move, device: Device) -> HostCopy:
    """Return the copy between host and GPU; see Note [Copies and the host].

    Args:
        tensor: The copied tensor.
        move: Direction and kind of the copy.
        device: The GPU.

    Raises:
        UnknownDurationError: The bandwidth between host and GPU is unknown.
    """
    size = tensor.elements * tensor.dtype.size
    is_small, direction = size <= _STAGED_BYTES, "HtoD" if move.to_gpu else "DtoH"
    is_left = move.non_blocking and (move.is_pinned or (is_small and move.to_gpu))
    launch_ns = _PINNED_NS if move.is_pinned else _STAGED_NS if is_small else _BLOCKED_NS
    kind = "Host" if device.vendor == "amd" else "Pinned" if move.is_pinned else "Pageable"
    sides = f"{kind} -> Device" if move.to_gpu else f"Device -> {kind}"
    work = GpuWork(
        f"Memcpy {direction} ({sides})",
        WorkKind.MEMCPY,
        estimate_copy(size, direction, move.is_pinned, device),
        bytes=size,
        host_waits=not is_left,
    )
    return HostCopy(work, launch_ns)
