"""The device on which a trace was recorded: its entry in the database, its limits, its peaks.

The rules for blocks that fit on a multiprocessor are those of CUDA's occupancy calculator
(cuda_occupancy.h). On ROCm neither registers nor LDS are recorded, so that only the threads count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device, device_named, find_device, load_devices
from torchtraceap.ops.models import Work
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "LIMITS",
    "UNATTAINABLE",
    "Attainable",
    "Multiprocessor",
    "attainable",
    "attainable_ns",
    "chosen_device",
    "computing_type",
    "copies_over_a_link",
    "matrix_types",
    "matrix_units",
    "multiprocessors_of",
    "peak_of",
    "plausible_devices",
    "recorded_device",
    "resident_blocks",
]


_AMD = ("amd", "radeon", "instinct", "gfx")


def recorded_device(entry: _core.Device) -> Device | None:
    """Return the device that an entry of `deviceProperties` describes, None if that is unsure."""
    return find_device(
        entry.name,
        multiprocessors=entry.sm_count,
        memory_bytes=entry.memory_bytes,
        architecture=_architecture(entry),
    )


def chosen_device(part: RankTrace, device: Any = None) -> tuple[Device | None, str]:
    """Return the device that a caller names, else that of the rank; or None and a note why.

    Args:
        part: The rank.
        device: A name of the device database or a `Device`; by default what the trace says.

    Raises:
        OptionError: Of that name there is none, or there are several.
    """
    if isinstance(device, Device):
        return device, ""
    if isinstance(device, str):
        return device_named(device), ""
    if device is not None:
        raise OptionError("device must be a name or a torchtraceap.ops.devices.Device")
    used = {int(number) for number in distinct(part.table.device[part.tree.gpu_rows])}
    entries = part.table.devices
    listed = [entry for entry in entries if entry.id in used] or entries[:1]
    if not listed:
        return None, (
            "The trace does not say which GPU it is of, so nothing is compared with a peak; name "
            "one with `device`."
        )
    found = {recorded_device(entry) for entry in listed}
    if len(found) == 1 and (only := found.pop()) is not None:
        return only, ""
    names = sorted({entry.name for entry in listed})
    said = ", ".join(repr(name) for name in names)
    reason = "GPUs of several kinds" if len(names) > 1 else "a GPU that is not told by its name"
    return None, (
        f"The trace is of {reason} ({said}), so nothing is compared with a peak; name one with "
        "`device`."
    )


def plausible_devices(table: _core.EventTable) -> tuple[Device, ...]:
    """Return the devices on which a trace may have been recorded: the device where it is known, the
    whole of which it is a part, else all of its architecture; all where the trace says nothing."""
    database = tuple(load_devices().values())
    for entry in table.devices:
        device = recorded_device(entry) or find_device(entry.name)
        if device is not None:
            return (device,)
        is_amd = any(word in entry.name.lower() for word in _AMD)
        vendor, architecture = "amd" if is_amd else "nvidia", _architecture(entry)
        same = [d for d in database if (d.vendor, d.architecture) == (vendor, architecture)]
        if same:
            return tuple(same)
    return database


def matrix_units(table: _core.EventTable) -> _core.MatrixUnits | None:
    """Return the rates of matrix units relative to plain fp32, of the device with the most to gain.

    A device that the database lacks gets the least favorable ratios of its architecture, or of the
    newest before it. AMD's fp32 products run on matrix units too; its TF32 is behind a switch of
    hipBLASLt and not what PyTorch's setting turns on, so that it is left out. None where the trace
    describes no device that could be told so.
    """
    best: tuple[float, float, float, str] | None = None
    for entry in table.devices:
        devices = _alike(entry)
        if devices is None:
            continue
        ratios = []
        for device in devices:
            plain = max(device.matrix.get("fp32", 0.0), device.vector.get("fp32", 0.0))
            halves = [device.matrix[name] for name in ("fp16", "bf16") if name in device.matrix]
            tf32 = device.matrix.get("tf32", 0.0) if device.vendor == "nvidia" else 0.0
            if not plain or not halves:
                ratios.append((0.0, 0.0, 0.0))
                continue
            ratios.append((min(halves) / plain, tf32 / plain, min(halves) / device.bandwidth))
        least = min(ratios, default=(0.0, 0.0, 0.0))
        if best is None or least[0] > best[0]:
            best = (*least, entry.name)
    if best is None:
        return None
    half, tf32, knee, name = best
    return _core.MatrixUnits(
        half_ratio=half, tf32_ratio=tf32, half_flops_per_byte=knee, device=name
    )


def matrix_types(table: _core.EventTable) -> frozenset[str] | None:
    """Return the number types that the matrix units of all devices of the trace take.

    They are named as in "bf16"; "tf32" only where PyTorch's setting turns it on. None where the
    trace describes no device that could be told so.
    """
    common: frozenset[str] | None = None
    for entry in table.devices:
        devices = _alike(entry)
        if devices is None:
            continue
        taken = [
            frozenset(device.matrix) - (frozenset() if device.vendor == "nvidia" else {"tf32"})
            for device in devices
        ]
        of_entry = frozenset.intersection(*taken) if taken else frozenset()
        common = of_entry if common is None else common & of_entry
    return common


def _alike(entry: _core.Device) -> list[Device] | None:
    """Return the device; of one that the database lacks, those of its architecture or the newest
    before it, none if it is older than matrix units. None where it could not be told."""
    # A part of a GPU (MIG, a partition) has the units of the whole.
    device = recorded_device(entry) or find_device(entry.name)
    if device is not None:
        return [device]
    name, version = entry.name.lower(), _version(_architecture(entry))
    if not name or version is None or any(word in name for word in _AMD):
        return None
    known = [d for d in load_devices().values() if d.vendor == "nvidia"]
    older = [v for d in known if (v := _version(d.architecture)) is not None and v <= version]
    newest = max(older, default=None)
    return [d for d in known if newest and _version(d.architecture) == newest]


def _architecture(entry: _core.Device) -> str | None:
    if entry.compute_major is None or entry.compute_minor is None:
        return None
    return f"{entry.compute_major}.{entry.compute_minor}"


def _version(architecture: str | None) -> tuple[int, int] | None:
    if not architecture:
        return None
    major, _, minor = architecture.partition(".")
    return int(major), int(minor or 0)


LIMITS = ("threads", "blocks", "registers", "shared memory")
"""The resources that a multiprocessor may run out of first."""

_REGISTERS_AT_ONCE = 256  # of a warp
_MOST_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
_MOST_BLOCKS_ELSE = 32
_SENSIBLE = 2**40


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """The limits of one multiprocessor (compute unit) of a device; 0 is not known."""

    count: int = 0
    """The number that the device has."""
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
        """The number of parts that share out the registers."""
        return 2 if self.capability == (6, 0) else 4


def multiprocessors_of(part: RankTrace) -> dict[int, Multiprocessor]:
    """Return the multiprocessors by number of the device, from `deviceProperties`."""
    text = dict(part.table.metadata).get("deviceProperties", "[]")
    try:
        entries = json.loads(text, strict=False)
    except (ValueError, RecursionError):  # too many digits for Python, or too deep
        entries = []
    listed = entries if isinstance(entries, list) else []
    described = [entry for entry in listed if isinstance(entry, dict)]
    found = {}
    for place, entry in enumerate(described):
        name, warp = entry.get("name"), _whole(entry, "warpSize", default=32)
        known = find_device(name) if isinstance(name, str) else None
        found[_whole(entry, "id", default=place)] = Multiprocessor(
            count=_whole(entry, "numSms") or (known.multiprocessors if known else 0),
            threads=_whole(entry, "maxThreadsPerMultiprocessor"),
            registers=_whole(entry, "regsPerMultiprocessor"),
            shared_bytes=_whole(entry, "sharedMemPerMultiprocessor"),
            warp=warp or 32,
            capability=(_whole(entry, "computeMajor"), _whole(entry, "computeMinor")),
            is_cuda=warp == 32,
        )
    return found


def _whole(entry: Mapping[str, Any], key: str, *, default: int = 0) -> int:
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < _SENSIBLE else default


def resident_blocks(
    on: Multiprocessor, threads: Array, registers: Array, shared_bytes: Array
) -> tuple[Array, Array]:
    """Return the number of blocks that one multiprocessor can hold at the same time.

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
            # With what the system takes, in the pieces that are given out; 0 for none.
            has_reserve = on.capability >= (8, 0)
            reserve, piece = (1024, 128) if has_reserve else (0, 256)
            of_block = _rounded_up(shared_bytes + reserve, piece)
            limits[3] = np.floor(on.shared_bytes / of_block)
    limits[:, ~(threads > 0)] = np.nan
    limits = np.where(np.isnan(limits) & (threads > 0), np.inf, limits)
    least = limits.min(axis=0)
    known = np.isfinite(least) & bool(on.threads)
    which = np.where(known, limits.argmin(axis=0), -1).astype(np.int32)
    return np.where(known, np.maximum(least, 1), np.nan), which


def _rounded_up(values: Array, piece: int) -> Array:
    rounded: Array = np.ceil(values / piece) * piece
    return rounded


# ------------------------------------------------------------------------------- peak rates

_ON_THE_DEVICE = (_core.CopyDirection.DEVICE_TO_DEVICE, _core.CopyDirection.UNKNOWN)
_SHOWS_TF32 = re.compile(r"tf32|s1688|xf32|_S_MX_|_S_B_X_", re.IGNORECASE)
_SHOWS_FP32 = re.compile(
    r"sgemm|scudnn|_simt_|gemv|f32f32_f32f32|dot_kernel|winograd", re.IGNORECASE
)
Attainable = tuple[float, str | None, str | None]
"""The least time in ns that a device needs for some work, what bounds it, and which peak."""
UNATTAINABLE: Attainable = (math.nan, None, None)


def attainable(work: Work, device: Device, kernels: Sequence[str] = ()) -> Attainable:
    """Return the least time for some work on a device, ns, what bounds it and which peak.

    Args:
        work: FLOPs and bytes.
        device: With its peak rates.
        kernels: Names of the kernels, which tell tf32 from fp32.

    Returns:
        NaN and None where the device has no rate for the type.
    """
    if copies_over_a_link(kernels):
        return (math.nan, "link", None)
    memory_ns = work.bytes / device.bandwidth * 1e9
    if not work.flops:
        return memory_ns, "memory", None
    peak = peak_of(work, device, kernels)
    if peak is None:
        is_integer = work.unit == "vector" and work.dtype not in ("fp64", "fp32", "")
        return (memory_ns, "memory", None) if is_integer else UNATTAINABLE
    compute_ns = work.flops / peak[0] * 1e9
    bound = "compute" if compute_ns >= memory_ns else "memory"
    return max(compute_ns, memory_ns), bound, peak[1]


def attainable_ns(work: Work, device: Device, kernels: Sequence[str] = ()) -> tuple[float, str]:
    """Return the least time for some work on a device as `attainable` does, without the peak.

    The bound is an empty text where the device has no rate for the type.
    """
    ns, bound, _ = attainable(work, device, kernels)
    return ns, bound or ""


def peak_of(work: Work, device: Device, kernels: Sequence[str]) -> tuple[float, str] | None:
    """Return flop/s for the type of some work, and its name; None if there is no such rate."""
    label = computing_type(work, device, kernels)
    if work.unit != "vector" and label in device.matrix:
        return device.matrix[label], f"{label} matrix"
    rate = device.vector.get(label)
    return None if rate is None else (rate, f"{label} vector")


def computing_type(work: Work, device: Device, kernels: Sequence[str]) -> str:
    """Return the type in which some work is computed: its own, or tf32 instead of fp32."""
    if work.unit == "vector" or work.dtype != "fp32" or "tf32" not in device.matrix:
        return work.dtype
    # The kernels' names tell; where they say nothing, whether the call allows it.
    uses_tf32 = any(_SHOWS_TF32.search(name) for name in kernels) or (
        work.allow_tf32 is True and not any(_SHOWS_FP32.search(name) for name in kernels)
    )
    return "tf32" if uses_tf32 else work.dtype


def copies_over_a_link(kernels: Sequence[str]) -> bool:
    """Return True if one of the kernels is a copy that leaves the device."""
    return any(_core.classify_copy(name)[0] not in _ON_THE_DEVICE for name in kernels)
