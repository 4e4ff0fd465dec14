"""How many blocks of a kernel fit on a multiprocessor at once, from what the trace records.

The rules are those of CUDA's occupancy calculator (cuda_occupancy.h). On ROCm neither registers
nor LDS are recorded, so that only the threads count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import find_device
from torchtraceap.trace.ranks import RankTrace

__all__ = ["LIMITS", "Multiprocessor", "multiprocessors_of", "resident_blocks"]

LIMITS = ("threads", "blocks", "registers", "shared memory")
"""What a multiprocessor may run out of first."""

_REGISTERS_AT_ONCE = 256  # of a warp
_MOST_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
_MOST_BLOCKS_ELSE = 32
_SENSIBLE = 2**40


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor (compute unit) of a device holds; 0 is not told."""

    count: int = 0
    """How many the device has."""
    threads: int = 0
    registers: int = 0
    shared_bytes: int = 0
    warp: int = 32
    capability: tuple[int, int] = (0, 0)
    """CUDA's compute capability; on ROCm the version of the architecture."""
    is_cuda: bool = True

    @property
    def most_blocks(self) -> int:
        return _MOST_BLOCKS.get(self.capability, _MOST_BLOCKS_ELSE)

    @property
    def partitions(self) -> int:
        """Parts that share out the registers."""
        return 2 if self.capability == (6, 0) else 4


def multiprocessors_of(part: RankTrace) -> dict[int, Multiprocessor]:
    """By number of the device, from `deviceProperties`; empty where the trace has none."""
    text = dict(part.table.metadata).get("deviceProperties", "[]")
    try:
        entries = json.loads(text, strict=False)
    except (ValueError, RecursionError):  # too many digits for Python, or too deep
        entries = []
    listed = entries if isinstance(entries, list) else []
    described = [entry for entry in listed if isinstance(entry, dict)]
    return {
        _whole(entry, "id", default=place): _multiprocessor(entry)
        for place, entry in enumerate(described)
    }


def _multiprocessor(entry: Mapping[str, Any]) -> Multiprocessor:
    name, warp = entry.get("name"), _whole(entry, "warpSize", default=32)
    known = find_device(name) if isinstance(name, str) else None
    return Multiprocessor(
        count=_whole(entry, "numSms") or (known.multiprocessors if known else 0),
        threads=_whole(entry, "maxThreadsPerMultiprocessor"),
        registers=_whole(entry, "regsPerMultiprocessor"),
        shared_bytes=_whole(entry, "sharedMemPerMultiprocessor"),
        warp=warp or 32,
        capability=(_whole(entry, "computeMajor"), _whole(entry, "computeMinor")),
        is_cuda=warp == 32,
    )


def _whole(entry: Mapping[str, Any], key: str, *, default: int = 0) -> int:
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < _SENSIBLE else default


def resident_blocks(
    on: Multiprocessor, threads: Array, registers: Array, shared_bytes: Array
) -> tuple[Array, Array]:
    """Blocks that one multiprocessor can hold at the same time.

    Args:
        on: The multiprocessor.
        threads: float64 `[n]`, of a block; NaN is not recorded.
        registers: float64 `[n]`, of a thread; NaN and 0 are not recorded.
        shared_bytes: float64 `[n]`, of a block, static and dynamic; NaN is not recorded.

    Returns:
        float64 `[n]`, at least 1, NaN where threads are not known; and int32 `[n]`, which of
        `LIMITS` it is, -1 where that is not known.
    """
    warps = np.ceil(threads / on.warp)
    limits = np.full((len(LIMITS), len(threads)), np.inf)
    if on.threads:
        limits[0] = np.floor(on.threads / on.warp / warps)
    if on.is_cuda:
        limits[1] = on.most_blocks
    with np.errstate(divide="ignore", invalid="ignore"):
        if on.registers:
            of_warp = _rounded_up(registers * on.warp, _REGISTERS_AT_ONCE)
            warps_held = on.partitions * np.floor(on.registers / on.partitions / of_warp)
            limits[2] = np.floor(warps_held / warps)
        if on.shared_bytes:
            limits[3] = np.floor(on.shared_bytes / _shared_of_block(on, shared_bytes))
    limits[:, ~(threads > 0)] = np.nan
    limits = np.where(np.isnan(limits) & (threads > 0), np.inf, limits)
    least = limits.min(axis=0)
    known = np.isfinite(least) & bool(on.threads)
    which = np.where(known, limits.argmin(axis=0), -1).astype(np.int32)
    return np.where(known, np.maximum(least, 1), np.nan), which


def _shared_of_block(on: Multiprocessor, shared_bytes: Array) -> Array:
    """With what the system takes, in the pieces that are given out; 0 for none."""
    if on.capability >= (8, 0):
        return _rounded_up(shared_bytes + 1024, 128)
    return _rounded_up(shared_bytes, 256)


def _rounded_up(values: Array, piece: int) -> Array:
    rounded: Array = np.ceil(values / piece) * piece
    return rounded
