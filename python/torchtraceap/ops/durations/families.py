"""Any kernel of a known family: its work over the device's peaks, with a calibrated efficiency.

A call that launches n kernels and whose roofline is r (the longer of computing and moving, each
times the family's factor) takes

    n x start + r + 2 x bend x sqrt(n x start x r)

The start is that of a kernel with next to nothing to do, the factors say how far large kernels of
the family stay below the peaks, the bend what is lost between. They were fitted to the kernels of
public traces (`data/families.json`, made by benchmarks/simulation/fit_durations.py); the interval
is what the fit missed on the kernels of traces that it had not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    the_device,
)

__all__ = [
    "FamilyModel",
    "estimate_work",
    "estimate_works",
    "load_families",
    "usable_rate",
    "variant_of",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "families.json"
_NO_MODEL = frozenset({"communication", "synchronization", "data_loading", "graph"})
# Types that a device without units for them computes in, by what comes nearest.
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
# The values of indices, which nothing records, decide how often kernels wait for each other: a
# factor of three beside what other programs' kernels show, chosen so that 0.8 of 24 kinds lie in.
_BY_VALUES, _VALUES = frozenset({"indexing"}), np.log(3.0)
# No end lies further away: a factor of six says that little is known.
_WIDEST = np.log(6.0)
# What moves more than so many times L2 comes from memory: no faster than its rate.
_CACHED = 2.0
# PyTorch's kernel for operands that are broadcast or not contiguous: it reckons every index.
_STRIDED = "::elementwise_kernel<"


@dataclass(frozen=True, slots=True)
class FamilyModel:
    """How fast the kernels of one family run; all times in ns."""

    family: str
    start_ns: float
    """Of each kernel."""
    bend: float
    memory: float
    """Time of moving over bytes / bandwidth."""
    compute: float
    """Time of computing over flops / peak."""
    amd_start: float
    """How much longer the start is on AMD's GPUs."""
    amd_work: float
    """How much longer moving and computing take there."""
    small: tuple[float, float]
    """Logarithms of the 10th and the 90th percentile of measured over modelled time, where the
    start is the larger part."""
    large: tuple[float, float]
    """As `small`, elsewhere."""
    says: str

    def times(
        self, moving: FloatArray, computing: FloatArray, kernels: FloatArray, amd: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Times in ns, and the part that is the start.

        Args:
            moving: Bytes over bandwidth, ns.
            computing: Flops over the peak, ns.
            kernels: How many a call launches.
            amd: Whether the device is one of AMD's.
        """
        start = kernels * self.start_ns * (self.amd_start if amd else 1.0)
        work = np.maximum(self.memory * moving, self.compute * computing)
        work = work * (self.amd_work if amd else 1.0)
        return np.asarray(start + work + 2.0 * self.bend * np.sqrt(start * work)), start


@cache
def load_families() -> Mapping[str, FamilyModel]:
    """The shipped models by family, "" for all families; read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    models = (_model(entry, document["says"]) for entry in document["models"])
    return MappingProxyType({model.family: model for model in models})


def _ends(family: str, ends: tuple[float, float]) -> tuple[float, float]:
    """Both ends of an interval as they are answered."""
    by_values = _VALUES if family in _BY_VALUES else 0.0
    reach = min(float(np.hypot(max(ends[1], -ends[0]), by_values)), _WIDEST)
    return -reach, reach


def _model(entry: Mapping[str, Any], says: str) -> FamilyModel:
    numbers = {name: float(entry[name]) for name in FamilyModel.__slots__ if name in _NUMBERS}
    return FamilyModel(
        family=entry["family"],
        small=_ends(entry["family"], entry["small"]),
        large=_ends(entry["family"], entry["large"]),
        says=says.format(kind=entry["kind"], rows=f"{entry['rows']:,}", sources=entry["sources"]),
        **numbers,
    )


_NUMBERS = frozenset({"start_ns", "bend", "memory", "compute", "amd_start", "amd_work"})


def variant_of(family: str, kernel: str) -> str:
    """The row of the table for a kernel of this name: some families have more than one.

    Args:
        family: Of the operator, as `torchtraceap.ops.models.family_of` says.
        kernel: Name of the (first) kernel that it launches; empty where unknown.
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
    """How long a call takes that computes `flops` and moves `size` bytes; see `estimate_works`.

    Raises:
        UnknownDurationError: Nothing tells it.
    """
    found = estimate_works(
        [family], [flops], [size], [dtype], device, units=[unit], kernels=[kernels], names=[kernel]
    )
    return found[0].known()


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
    """How long calls take, from their work: for every family of kernels.

    Args:
        families: `[n]`, as `torchtraceap.ops.models.family_of` says.
        flops: float64 `[n]`; NaN or 0 where nothing is computed or nobody knows.
        sizes: float64 `[n]`: bytes read and written; NaN where nobody knows.
        dtypes: `[n]`: in which they compute: fp32, tf32, bf16, ...
        devices: One for all, or `[n]`.
        units: `[n]`: "matrix" where tensor or matrix cores may do it, else "vector" (default).
        kernels: `[n]`: how many kernels each call launches; one by default.
        names: `[n]`: of the first kernel, empty where unknown; they tell variants of a family.
        models: Others than those shipped.

    Returns:
        NaN where neither flops nor bytes are known, where the family is no GPU work of its own
        (communication, synchronisation), or where the device is not known.
    """
    count = len(families)
    table = load_families() if models is None else models
    work = np.nan_to_num(np.broadcast_to(np.asarray(flops, np.float64), count))
    moved = np.broadcast_to(np.asarray(sizes, np.float64), count)
    launched = np.broadcast_to(np.asarray(1.0 if kernels is None else kernels, np.float64), count)
    single = isinstance(devices, str | Device)
    groups: dict[tuple[str, str, str, str | Device], list[int]] = {}
    for at in range(count):
        variant = variant_of(families[at], names[at] if names is not None else "")
        where: str | Device = devices if single else devices[at]  # type: ignore[assignment,index]
        unit = units[at] if units is not None else "vector"
        groups.setdefault((variant, dtypes[at], unit, where), []).append(at)
    parts, order = [], []
    for (variant, dtype, unit, where), members in groups.items():
        rows = np.array(members, dtype=np.int64)
        order.append(rows)
        parts.append(_group(table, variant, dtype, unit, where, work[rows], moved[rows],
                            launched[rows]))  # fmt: skip
    return _in_order(parts, order)


def _in_order(parts: list[Estimates], order: list[npt.NDArray[np.int64]]) -> Estimates:
    back = np.argsort(np.concatenate([np.empty(0, np.int64), *order]), kind="stable")
    return Estimates.joined(parts).take(back)


def _group(
    table: Mapping[str, FamilyModel],
    family: str,
    dtype: str,
    unit: str,
    device: str | Device,
    flops: FloatArray,
    sizes: FloatArray,
    kernels: FloatArray,
) -> Estimates:
    """Calls of one family, type and device."""
    if family in _NO_MODEL:
        return _unknown(len(flops), f"{family} is no work whose time bytes and flops tell")
    try:
        chip = the_device(device)
    except UnknownDurationError as reason:
        return _unknown(len(flops), str(reason))
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


def _unknown(count: int, reason: str) -> Estimates:
    nothing = np.full(count, np.nan)
    return Estimates(nothing, nothing, nothing, np.zeros(count, np.int32), (reason,))


def usable_rate(device: Device, dtype: str, unit: str) -> tuple[float | None, str]:
    """flop/s, and what type stands in where the device has no rate for the one wanted.

    Args:
        device: The GPU.
        dtype: Such as "bf16".
        unit: "matrix" or "vector".
    """
    if unit == "matrix":
        near = _STAND_INS["matrix"].get(dtype, ())
        for one in _first_known((dtype, *near), device.matrix):
            return device.matrix[one], "" if one == dtype else one
    near = _STAND_INS["vector"].get(dtype, ())
    for one in _first_known((dtype, *near, "fp32"), device.vector):
        said = "" if one == dtype or unit == "vector" or dtype == "fp32" else f"{one} vectors"
        return device.vector[one], said
    return None, ""


def _first_known(names: Iterable[str], rates: Mapping[str, float]) -> list[str]:
    return [name for name in names if rates.get(name)][:1]
