"""Whether a call fits in memory. A script carries the source of these functions."""

from __future__ import annotations

import os
import sys

import torch

__all__ = ["claim_room", "free_bytes"]


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
