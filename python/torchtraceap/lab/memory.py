"""Whether the tensors of a rank fit into the memory of its GPU."""

from __future__ import annotations

from dataclasses import dataclass

from torchtraceap.core import Result
from torchtraceap.ops import Device

__all__ = ["MemoryFit", "MemoryNeed", "fit_memory"]

_DRIVER_SHARE = 0.985
"""Share of a GPU's memory, in binary gigabytes as it is sold, that drivers report: 0.978 to 1 in
the properties of 21 devices of public traces. ECC on cards with GDDR memory takes more."""
_CONTEXT_BYTES = 2**30
"""The context, code of kernels and workspaces of libraries (a guess)."""
_GROUP_BYTES = 2**30
"""Buffers of NCCL or RCCL of a rank of several (a guess)."""
_SLACK = 0.06
"""What the allocator holds beyond the activations at their peak, as a share of them (a guess)."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryNeed(Result):
    """The tensors of a rank by what they are for, bytes.

    The allocator's slack, the context and the libraries' workspaces come on top.
    """

    parameters: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    activations: int
    """The peak of all other tensors: those kept for the backward pass and those at work."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True)
class MemoryFit(Result):
    """The need of a rank for GPU memory and its capacity, bytes."""

    tensors: int
    """Parameters, gradients, optimizer state and activations at their peak."""
    slack: int
    """Memory that the allocator holds beyond them."""
    context: int
    """Context, workspaces of libraries and buffers of collectives."""
    needed: int
    capacity: int
    """Memory of the GPU that the driver leaves."""
    free: int
    """Capacity less what is needed; negative where it does not fit."""
    fits: bool

    @property
    def verdict(self) -> str:
        """The answer in words, such as "does not fit by 34.2 GiB"."""
        if self.fits:
            return f"fits, {self.free / _GIB:.1f} GiB free"
        return f"does not fit by {-self.free / _GIB:.1f} GiB"


def fit_memory(
    tensors: float, activations: float, device: Device, *, ranks: int = 1
) -> MemoryFit | None:
    """Return whether tensors fit; None if the device's memory is not known.

    Args:
        tensors: Bytes of all tensors at their peak.
        activations: Bytes of those that come and go within a step.
        device: The GPU.
        ranks: Number of ranks of the job.
    """
    if not device.memory_bytes:
        return None
    # Devices of the database have the gigabytes that are in their name, others what was given.
    sold = device.memory_bytes / 1e9 * _GIB * _DRIVER_SHARE
    capacity = round(sold) if device.id else device.memory_bytes
    slack = round(_SLACK * activations)
    context = _CONTEXT_BYTES + (_GROUP_BYTES if ranks > 1 else 0)
    needed = round(tensors) + slack + context
    return MemoryFit(
        round(tensors), slack, context, needed, capacity, capacity - needed, needed <= capacity
    )
