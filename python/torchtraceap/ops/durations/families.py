"""Estimate any kernel of a known family from its work, the device's peaks and a fitted efficiency.

A call that launches n kernels and whose roofline is r (the longer of computing and moving, each
times the family's factor) takes

    n x start + r + 2 x bend x sqrt(n x start x r)

The start is the time of an almost empty kernel, the factors say how far large kernels of the family
stay below the peaks, and the bend covers the loss in between. All were fitted to the kernels of
public traces (`data/families.json`, made by benchmarks/simulation/fit_durations.py). The interval
is the error of the fit on traces that it had not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    resolve_device,
)

__all__ = [
    "FamilyModel",
    "estimate_work",
    "estimate_works",
    "family_variant",
    "load_families",
    "usable_rate",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "families.json"
_NO_MODEL = frozenset({"communication", "synchronization", "data_loading", "graph"})
# The nearest types that stand in for a type for which a device has no units.
_STAND_INS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "matrix": {
            "bf16": ("fp16",),
            "fp16": ("bf16",),
            "fp8": ("fp16", "bf16"),
            "int8": ("fp16", "bf16"),
            "fp4": ("fp8", "fp16"),
        },
        "vector": {"bf16": ("fp16",)},
    }
)
# Index values, which no trace records, decide how often atomic updates collide. They add a factor
# of three to the error seen in other programs, chosen so that the interval holds 0.8 of 24 kinds.
_BY_VALUES, _VALUES = frozenset({"indexing"}), np.log(3.0)
# The widest interval: a factor of six means that little is known.
_WIDEST = np.log(6.0)
# Traffic of more than this multiple of L2 comes from memory, no faster than its rate.
_CACHED = 2.0
# PyTorch's kernel for operands that are broadcast or not contiguous, which computes every index.
_STRIDED = "::elementwise_kernel<"


@dataclass(frozen=True, slots=True)
class FamilyModel:
    """Fitted speed of the kernels of one family."""

    family: str
    start_ns: float
    """Startup time of each kernel in ns."""
    bend: float
    """Weight of the square-root term that joins startup and work."""
    memory: float
    """Time of moving over bytes / bandwidth."""
    compute: float
    """Time of computing over flops / peak."""
    amd_start: float
    """Factor of the startup time on AMD GPUs."""
    amd_work: float
    """Factor of moving and computing on AMD GPUs."""
    small: tuple[float, float]
    """Logarithms of the 10th and 90th percentile of measured over estimated time if the startup is
    the larger part."""
    large: tuple[float, float]
    """The same percentiles for all other calls."""
    says: str
    """Description of the measurements."""

    def times(
        self, moving: FloatArray, computing: FloatArray, kernels: FloatArray, amd: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return the times and the startup part of them, float64 `[n]` in ns each.

        Args:
            moving: `[n]`: bytes over bandwidth, in ns.
            computing: `[n]`: FLOPs over the peak, in ns.
            kernels: `[n]`: number of kernels that a call launches.
            amd: The device is an AMD GPU.
        """
        start = kernels * self.start_ns * (self.amd_start if amd else 1.0)
        work = np.maximum(self.memory * moving, self.compute * computing)
        work = work * (self.amd_work if amd else 1.0)
        return np.asarray(start + work + 2.0 * self.bend * np.sqrt(start * work)), start


@cache
def load_families() -> Mapping[str, FamilyModel]:
    """Load the shipped models by family, "" for all families; they are read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    numbers = ("start_ns", "bend", "memory", "compute", "amd_start", "amd_work")
    models = {}
    for entry in document["models"]:
        family = entry["family"]
        models[family] = FamilyModel(
            family=family,
            small=_symmetric_ends(family, entry["small"]),
            large=_symmetric_ends(family, entry["large"]),
            says=document["says"].format(
                kind=entry["kind"], rows=f"{entry['rows']:,}", sources=entry["sources"]
            ),
            **{name: float(entry[name]) for name in numbers},
        )
    return MappingProxyType(models)


def _symmetric_ends(family: str, ends: tuple[float, float]) -> tuple[float, float]:
    """Widen a fitted interval of logarithms to the symmetric one that is answered."""
    by_values = _VALUES if family in _BY_VALUES else 0.0
    reach = min(float(np.hypot(max(ends[1], -ends[0]), by_values)), _WIDEST)
    return -reach, reach


def family_variant(family: str, kernel: str) -> str:
    """Return the name of the model for a kernel; some families have a variant with its own model.

    Args:
        family: Family of the operator, as `torchtraceap.ops.models.family_of` returns it.
        kernel: Name of the first kernel that it launches; empty if unknown.
    """
    strided = family in ("elementwise", "copy", "activation") and _STRIDED in kernel
    return "strided" if strided else family


def estimate_work(
    family: str,
    flops: float,
    size: float,
    dtype: str,
    device: str | Device,
    *,
    unit: str = "vector",
    kernels: float = 1.0,
    kernel: str = "",
) -> Estimate:
    """Estimate a call that computes `flops` and moves `size` bytes; see `estimate_works`.

    Raises:
        UnknownDurationError: The work, the device or a model of the family is not known.
    """
    found = estimate_works(
        [family], [flops], [size], [dtype], device, units=[unit], kernels=[kernels], names=[kernel]
    )
    return found[0].require()


def estimate_works(
    families: Sequence[str],
    flops: npt.ArrayLike,
    sizes: npt.ArrayLike,
    dtypes: Sequence[str],
    devices: str | Device | Sequence[str | Device],
    *,
    units: Sequence[str] | None = None,
    kernels: npt.ArrayLike | None = None,
    names: Sequence[str] | None = None,
    models: Mapping[str, FamilyModel] | None = None,
) -> Estimates:
    """Estimate the times of calls of any family from their work.

    Args:
        families: `[n]`: families, as `torchtraceap.ops.models.family_of` returns them.
        flops: float64 `[n]`; NaN or 0 where nothing is computed or the number is unknown.
        sizes: float64 `[n]`: bytes read and written; NaN where unknown.
        dtypes: `[n]`: types in which the calls compute: fp32, tf32, bf16, ...
        devices: One device for all calls, or `[n]`.
        units: `[n]`: "matrix" where tensor or matrix cores may be used, else "vector" (default).
        kernels: `[n]`: number of kernels that each call launches; one by default.
        names: `[n]`: name of the first kernel, which selects a variant of the family; or "".
        models: Models to use instead of those shipped.

    Returns:
        `[n]` estimates; NaN where neither FLOPs nor bytes are known, where the family has no GPU
        work of its own (communication, synchronization), or where the device is unknown.
    """
    count = len(families)
    table = load_families() if models is None else models
    work = np.nan_to_num(np.broadcast_to(np.asarray(flops, np.float64), count))
    moved = np.broadcast_to(np.asarray(sizes, np.float64), count)
    launched = np.broadcast_to(np.asarray(1.0 if kernels is None else kernels, np.float64), count)
    single = isinstance(devices, str | Device)
    groups: dict[tuple[str, str, str, str | Device], list[int]] = {}
    for at in range(count):
        variant = family_variant(families[at], names[at] if names is not None else "")
        where: str | Device = devices if single else devices[at]  # type: ignore[assignment,index]
        unit = units[at] if units is not None else "vector"
        groups.setdefault((variant, dtypes[at], unit, where), []).append(at)
    parts, order = [], []
    for (variant, dtype, unit, where), members in groups.items():
        rows = np.array(members, dtype=np.int64)
        order.append(rows)
        parts.append(_estimate_group(table, variant, dtype, unit, where, work[rows], moved[rows],
                                     launched[rows]))  # fmt: skip
    return Estimates.scatter(parts, order)


def _estimate_group(
    table: Mapping[str, FamilyModel],
    family: str,
    dtype: str,
    unit: str,
    device: str | Device,
    flops: FloatArray,
    sizes: FloatArray,
    kernels: FloatArray,
) -> Estimates:
    """Estimate calls of one family, type, unit and device."""
    if family in _NO_MODEL:
        reason = f"{family} is no work whose time bytes and flops tell"
        return Estimates.unknown(len(flops), reason)
    try:
        chip = resolve_device(device)
    except UnknownDurationError as error:
        return Estimates.unknown(len(flops), str(error))
    model = table.get(family) or table[""]
    rate, stand_in = usable_rate(chip, dtype, unit)
    computing = np.zeros(len(flops)) if rate is None else 1e9 * flops / rate
    moving = 1e9 * np.nan_to_num(sizes) / chip.bandwidth
    ns, start = model.times(moving, computing, np.maximum(kernels, 1.0), chip.vendor == "amd")
    beyond_cache = np.where(np.nan_to_num(sizes) > _CACHED * chip.l2_bytes, moving, 0.0)
    ns = np.maximum(ns, np.maximum(computing, beyond_cache))
    begins = start > 0.5 * ns
    low = np.where(begins, model.small[0], model.large[0])
    high = np.where(begins, model.small[1], model.large[1])
    known = np.isfinite(sizes) | (flops > 0)
    says = model.says + (f"; at the rate of {stand_in}" if stand_in else "")
    values = [np.where(known, x, np.nan) for x in (ns, ns * np.exp(low), ns * np.exp(high))]
    why_not = "neither the bytes nor the flops of the call are known"
    source = np.where(known, 0, 1).astype(np.int32)
    return Estimates(values[0], values[1], values[2], source, (says, why_not))


def usable_rate(device: Device, dtype: str, unit: str) -> tuple[float | None, str]:
    """Return the flop/s for a type and the type that stands in if the device has no rate for it.

    Args:
        device: The GPU.
        dtype: Type such as "bf16".
        unit: "matrix" or "vector".

    Returns:
        The rate, or None if there is none; the stand-in is "" if the device has the type itself.
    """
    if unit == "matrix":
        for one in (dtype, *_STAND_INS["matrix"].get(dtype, ())):
            if device.matrix.get(one):
                return device.matrix[one], "" if one == dtype else one
    for one in (dtype, *_STAND_INS["vector"].get(dtype, ()), "fp32"):
        if device.vector.get(one):
            said = "" if one == dtype or unit == "vector" or dtype == "fp32" else f"{one} vectors"
            return device.vector[one], said
    return None, ""
