"""Functions of which a script carries the source: they make tensors, and check the memory.

Each that makes a tensor takes shape, strides (in elements), dtype and device last, and returns a
tensor with exactly these strides over a storage no larger than they need: a stride of 0 repeats, as
after `expand`.
"""

from __future__ import annotations

import os
import sys

import torch

Shape = tuple[int, ...]


def storage_size(shape: Shape, strides: Shape) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def strided(flat: torch.Tensor, shape: Shape, strides: Shape) -> torch.Tensor:
    return flat.as_strided(shape, strides)


def empty(shape: Shape, strides: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    flat = torch.empty(storage_size(shape, strides), dtype=dtype, device=device)
    return strided(flat, shape, strides)


def normal(shape: Shape, strides: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    draw = torch.complex64 if dtype.is_complex else torch.float32
    flat = torch.randn(storage_size(shape, strides), dtype=draw, device=device)
    return strided(flat.to(dtype), shape, strides)


def uniform(shape: Shape, strides: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    flat = torch.rand(storage_size(shape, strides), device=device)
    return strided(flat.to(dtype), shape, strides)


def integers(
    low: int, high: int, shape: Shape, strides: Shape, dtype: torch.dtype, device: str
) -> torch.Tensor:
    flat = torch.randint(low, high, (storage_size(shape, strides),), device=device)
    return strided(flat.to(dtype), shape, strides)


def booleans(shape: Shape, strides: Shape, device: str) -> torch.Tensor:
    flat = torch.rand(storage_size(shape, strides), device=device) < 0.5
    return strided(flat, shape, strides)


def filled(
    value: float, shape: Shape, strides: Shape, dtype: torch.dtype, device: str
) -> torch.Tensor:
    flat = torch.full((storage_size(shape, strides),), value, device=device)
    return strided(flat.to(dtype), shape, strides)


def ascending(
    first: int, last: int, shape: Shape, strides: Shape, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Even steps from first to last along the last axis: offsets, boundaries."""
    count = shape[-1] if shape else 1
    steps = torch.arange(count, device=device) * (last - first) // max(count - 1, 1) + first
    return empty(shape, strides, dtype, device).copy_(steps)


def shares(
    total: int, shape: Shape, strides: Shape, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Lengths that sum to the total, as equal as can be."""
    count = max(shape[-1] if shape else 1, 1)
    parts = total // count + (torch.arange(count, device=device) < total % count)
    return empty(shape, strides, dtype, device).copy_(parts)


def identity(shape: Shape, strides: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Identity matrices, which are positive definite."""
    rows = torch.eye(shape[-2], shape[-1], device=device)
    return empty(shape, strides, dtype, device).copy_(rows)


def free_bytes(device: torch.device) -> int | None:
    """Free memory where a device's tensors live; None if nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def claim_room(needed: int, device: torch.device) -> None:
    """Ends this process if the call does not fit; else bounds what it takes of the host."""
    free = free_bytes(device)
    if free is None:
        return
    if needed > free:
        sys.exit(f"it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free")
    if device.type == "cpu" and os.path.exists("/proc/self/statm"):
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_DATA, (used + free, used + free))
