"""Estimate memory-bound kernels (element-wise, softmax, layer norm) and fused attention.

A call takes a startup time plus its traffic over the memory's rate times a factor:

    time = start + factor(operator, row length, device) x bytes / bandwidth

Traffic counts every operand and the result once. Data that a row-wise kernel reads again comes from
L2 as long as the active rows fit into it, and otherwise from memory. Layer norm reads its input
twice, so its factor rises by a share where 16 rows for each multiprocessor exceed L2. The factor of
softmax follows a slow trend, fitted up to 4,094 and constant beyond 6,144; rows up to 1,024 have
their own kernel. The numbers were measured in fp32 on five GPUs (`data/kernels.json`, made by
benchmarks/simulation/fit_durations.py). Any other GPU uses the mean of all with its own L2, and the
estimate says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import (
    Estimates,
    UnknownDurationError,
    element_bytes,
    peak_rate,
    resolve_device,
)
from torchtraceap.ops.durations.families import estimate_works
from torchtraceap.ops.models.attention import tile_padding

__all__ = [
    "KernelModel",
    "estimate_attention",
    "estimate_elementwise",
    "estimate_row_kernel",
    "load_kernels",
    "tensors_moved",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "kernels.json"
FLOOR_NS = 2000.0
"""Time of a kernel with almost no work."""
# Interval (in logarithms) of kernels with at most as much work as startup, which were not measured.
_SMALL = (-0.5, 0.5)
# Rows up to this length have a softmax kernel of their own.
_NARROW = 1024
# Row lengths at which the trend of softmax begins, is 1, and ends.
_TREND = (1024.0, 2048.0, 6144.0)
# Active rows of layer norm per multiprocessor over the share of L2 that they may fill, and the
# steepness of the transition to memory. Both were fitted to five GPUs together.
_ROWS_AT_WORK = 16 / 1.15
_STEEPNESS = 2.0
# Architectures whose L2 has two halves, with the data of each multiprocessor in one of them.
_HALVED_L2 = frozenset({"8.0", "9.0"})
_BINARY = frozenset({"add", "mul", "pow", "div", "sub"})
_UNARY = frozenset({"addu", "mulu", "powu", "divu", "relu", "gelu", "tanh", "copy"})
_ROWS = frozenset({"softmax", "layer_norm"})
_FP32_BYTES = 4


def tensors_moved(op: str) -> int:
    """Return the number of tensors that an operator reads and writes.

    Names that end in `u` are element-wise operators with a scalar operand.

    Raises:
        UnknownDurationError: The operator is not one of those measured.
    """
    if op in _BINARY:
        return 3
    if op in _UNARY or op in _ROWS:
        return 2
    raise UnknownDurationError(f"no measurements of {op!r}")


@dataclass(frozen=True, slots=True)
class KernelModel:
    """Fitted model of one operator on one device, or on all devices if `device` is empty."""

    op: str
    device: str
    start_ns: float
    """Startup time of a call timed from the host with events, including launch and ramp-up."""
    factor: float
    """Time over that at the memory's full rate."""
    spilled: float
    """Relative increase of the time of layer norm if its rows exceed L2."""
    trend: float
    """Exponent of (row length / 2,048) for softmax."""
    narrow: float
    """Factor of softmax for rows up to 1,024."""
    source: str
    known: tuple[float, float]
    """Logarithms of the 10th and 90th percentile of measured over estimated time, for held-out
    lengths; in the mean model for held-out devices."""
    widths: tuple[float, ...] = ()
    """log2 of the row lengths at which residuals of the formula are known; they are 0 beyond."""
    missed: tuple[float, ...] = ()
    """Logarithms of the residuals at those lengths; the first and the last are 0."""

    def factors(self, columns: npt.ArrayLike, device: Device) -> FloatArray:
        """Return the time over that at the memory's full rate for rows of these lengths, `[n]`."""
        length = np.asarray(columns, dtype=np.float64)
        if self.op == "softmax":
            begin, middle, end = _TREND
            wide = self.factor * (np.clip(length, begin, end) / middle) ** self.trend
            form = np.where(length <= _NARROW, self.narrow, wide)
        else:
            # Length of the rows whose active part fills L2.
            halves = 2 if device.architecture in _HALVED_L2 else 1
            active_rows = max(device.multiprocessors, 1) * _ROWS_AT_WORK
            filling = max(device.l2_bytes, 1 << 20) / halves / active_rows / _FP32_BYTES
            share = 1.0 / (1.0 + (filling / length) ** _STEEPNESS)
            form = self.factor * (1.0 + self.spilled * share)
        if not self.widths:
            return np.asarray(form)
        return np.asarray(form * np.exp(np.interp(np.log2(length), self.widths, self.missed)))

    def moving_ns(self, size: npt.ArrayLike, columns: npt.ArrayLike, device: Device) -> FloatArray:
        """Return the ns of moving `size` bytes, without the startup time."""
        moved = np.asarray(size, dtype=np.float64) / device.bandwidth * 1e9
        return np.asarray(moved * self.factors(columns, device))


@cache
def load_kernels() -> Mapping[tuple[str, str], KernelModel]:
    """Load the shipped models by operator and id of the device; they are read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    numbers = ("start_ns", "factor", "spilled", "trend", "narrow")
    models = [
        KernelModel(
            op=entry["op"],
            device=entry["device"],
            source=document["says"],
            known=(float(entry["known"][0]), float(entry["known"][1])),
            widths=tuple(entry.get("widths", ())),
            missed=tuple(entry.get("missed", ())),
            **{name: float(entry[name]) for name in numbers},
        )
        for entry in document["models"]
    ]
    return MappingProxyType({(model.op, model.device): model for model in models})


def estimate_elementwise(
    op: str,
    elements: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    *,
    models: Mapping[tuple[str, str], KernelModel] | None = None,
) -> Estimates:
    """Estimate kernels of an element-wise operator.

    Args:
        op: add, mul, pow, div (two tensors); addu, mulu, powu, divu (a tensor and a scalar);
            relu, gelu, tanh.
        elements: `[n]`: numbers of elements of the results.
        dtype: Must be "fp32"; other types were not measured.
        device: A GPU by name or id.
        models: Models to use instead of those shipped.

    Raises:
        UnknownDurationError: The operator or type was not measured, or the device is not known.
    """
    return _estimate_traffic(op, np.asarray(elements, np.float64), 1.0, dtype, device, models)


def estimate_row_kernel(
    op: str,
    rows: npt.ArrayLike,
    columns: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    *,
    models: Mapping[tuple[str, str], KernelModel] | None = None,
) -> Estimates:
    """Estimate forward softmax or layer norm kernels over the last of two sizes.

    Args:
        op: "softmax" or "layer_norm".
        rows: `[n]`: numbers of rows.
        columns: `[n]`: lengths of the rows.
        dtype: Must be "fp32"; other types were not measured.
        device: A GPU by name or id.
        models: Models to use instead of those shipped.

    Raises:
        UnknownDurationError: The operator or type was not measured, or the device is not known.
    """
    if op not in _ROWS:
        raise UnknownDurationError(f"no measurements of {op!r} by rows")
    length = np.asarray(columns, np.float64)
    elements = np.asarray(rows, np.float64) * length
    return _estimate_traffic(op, elements, length, dtype, device, models)


def _estimate_traffic(
    op: str,
    elements: FloatArray,
    columns: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    models: Mapping[tuple[str, str], KernelModel] | None,
) -> Estimates:
    tensors = tensors_moved(op)
    if dtype != "fp32":
        raise UnknownDurationError(f"{op} was measured in fp32, not in {dtype}")
    chip = resolve_device(device)
    table = load_kernels() if models is None else models
    model = table.get((op, chip.id)) or table.get((op, ""))
    if model is None:
        raise UnknownDurationError(f"no measurements of {op!r}")
    moving = np.atleast_1d(model.moving_ns(tensors * _FP32_BYTES * elements, columns, chip))
    ns = FLOOR_NS + moving
    where = "" if model.device else f"; mean factor of them, {chip.name} was not measured"
    low, high = (
        np.where(moving < FLOOR_NS, wide, one)
        for wide, one in zip(_SMALL, model.known, strict=True)
    )
    codes = np.zeros(len(ns), dtype=np.int32)
    return Estimates(ns, ns * np.exp(low), ns * np.exp(high), codes, (model.source + where,))


def estimate_attention(
    shapes: npt.ArrayLike, dtype: str, device: str | Device, *, causal: bool = False
) -> Estimates:
    """Estimate forward fused attention kernels.

    The work is that of the two products in whole tiles and of the operands; the efficiency is that
    of attention kernels in traces.

    Args:
        shapes: `[n, 5]`: batch, heads, queries, keys and head size of each kernel.
        dtype: Type of the operands.
        device: A GPU by name or id.
        causal: The mask is causal, which leaves out half of the products.

    Raises:
        UnknownDurationError: The device or its peak for this type is not known.
    """
    chip = resolve_device(device)
    peak_rate(chip, dtype)
    batch, heads, queries, keys, head_size = np.asarray(shapes, np.float64).reshape(-1, 5).T
    flops = 4.0 * batch * heads * queries * keys * head_size * (0.5 if causal else 1.0)
    flops = flops * [tile_padding(*one) for one in zip(queries, keys, head_size, strict=True)]
    moved = element_bytes(dtype) * batch * heads * head_size * 2.0 * (queries + keys)
    count = len(flops)
    return estimate_works(
        ["attention_forward"] * count, flops, moved, [dtype] * count, chip, units=["matrix"] * count
    )
