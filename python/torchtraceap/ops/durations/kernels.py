"""Kernels that memory bounds: element-wise ones, softmax, layer norm; and attention.

A call takes `start_ns` plus its traffic over the memory's rate times a factor:

    time = start + factor(operator, row length, device) x bytes / bandwidth

Traffic counts every operand and the result once. What a kernel by rows reads again comes from L2
while the rows at work fit into it, and from memory beyond: layer norm reads its input twice, so
its factor rises by a share where 16 rows for each multiprocessor outgrow L2. Softmax keeps its
factor but for a slow trend, fitted up to 4,094 and kept beyond 6,144; rows up to 1,024 have a
kernel of their own. The numbers were measured in fp32 on five GPUs (`data/kernels.json`, made by
benchmarks/simulation/fit_durations.py). On a GPU that was not among them the mean of all is used,
with its own L2, and the estimate says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    element_bytes,
    peak_rate,
    the_device,
)
from torchtraceap.ops.durations.families import estimate_works
from torchtraceap.ops.models.attention import tile_padding

__all__ = [
    "KernelModel",
    "estimate_attention",
    "estimate_attentions",
    "estimate_elementwise",
    "estimate_elementwises",
    "estimate_rows",
    "estimate_rows_of_lengths",
    "load_kernels",
    "tensors_moved",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "kernels.json"
# A kernel that has next to nothing to do.
FLOOR_NS = 2000.0
# Of a single kernel that has as much start as work, at most (in logarithms): small ones were not
# measured.
_SMALL = (-0.5, 0.5)
# Rows up to this length have a softmax kernel of their own.
_NARROW = 1024
# Where the trend of softmax begins, is 1, and ends.
_TREND = (1024.0, 2048.0, 6144.0)
# Rows of layer norm that a multiprocessor has at work, over the share of L2 that they may fill; and
# how fast they outgrow it. Fitted to five GPUs together.
_ROWS_AT_WORK = 16 / 1.15
_STEEPNESS = 2.0
# The L2 of these is two halves, and each multiprocessor has its data in one.
_HALVED_L2 = frozenset({"8.0", "9.0"})
_BINARY = frozenset({"add", "mul", "pow", "div", "sub"})
_UNARY = frozenset({"addu", "mulu", "powu", "divu", "relu", "gelu", "tanh", "copy"})
_ROWS = frozenset({"softmax", "layer_norm"})
_FP32_BYTES = 4


def tensors_moved(op: str) -> int:
    """Tensors read and written by an element-wise operator; `u` ends those with a scalar.

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
    """One operator on one device, or on all (`device` is empty)."""

    op: str
    device: str
    start_ns: float
    """Of a call timed from the host with events; includes launching and ramping up."""
    factor: float
    """How much longer than at the memory's full rate."""
    spilled: float
    """Of layer norm: by what share longer where its rows outgrow L2."""
    trend: float
    """Of softmax: power of the row length over 2,048."""
    narrow: float
    """Of softmax: the factor of rows up to 1,024."""
    source: str
    known: tuple[float, float]
    """Logarithms of the 10th and the 90th percentile of measured over modelled time, for lengths
    that were left out; in the mean model for devices that were."""
    widths: tuple[float, ...] = ()
    """log2 of row lengths between which what the form misses is known; 0 beyond."""
    missed: tuple[float, ...] = ()
    """Its logarithms at those lengths, the first and the last 0."""

    def factors(self, columns: npt.ArrayLike, device: Device) -> FloatArray:
        """How much longer than at the memory's full rate, for rows of these lengths."""
        length = np.asarray(columns, dtype=np.float64)
        if self.op == "softmax":
            begin, middle, end = _TREND
            wide = self.factor * (np.clip(length, begin, end) / middle) ** self.trend
            form = np.where(length <= _NARROW, self.narrow, wide)
        else:
            share = 1.0 / (1.0 + (_spilling_length(device) / length) ** _STEEPNESS)
            form = self.factor * (1.0 + self.spilled * share)
        if not self.widths:
            return np.asarray(form)
        return np.asarray(form * np.exp(np.interp(np.log2(length), self.widths, self.missed)))

    def moving_ns(self, size: npt.ArrayLike, columns: npt.ArrayLike, device: Device) -> FloatArray:
        """Time of moving `size` bytes without the start, in ns."""
        moved = np.asarray(size, dtype=np.float64) / device.bandwidth * 1e9
        return np.asarray(moved * self.factors(columns, device))


def _spilling_length(device: Device) -> float:
    """Length of the rows that fill L2 while they are worked on."""
    halves = 2 if device.architecture in _HALVED_L2 else 1
    rows = max(device.multiprocessors, 1) * _ROWS_AT_WORK
    return max(device.l2_bytes, 1 << 20) / halves / rows / _FP32_BYTES


@cache
def load_kernels() -> Mapping[tuple[str, str], KernelModel]:
    """The shipped factors by operator and id of the device."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    models = (_model(entry, document["says"]) for entry in document["models"])
    return MappingProxyType({(model.op, model.device): model for model in models})


def _model(entry: Mapping[str, Any], says: str) -> KernelModel:
    numbers = ("start_ns", "factor", "spilled", "trend", "narrow")
    return KernelModel(
        op=entry["op"],
        device=entry["device"],
        source=says,
        known=(float(entry["known"][0]), float(entry["known"][1])),
        widths=tuple(entry.get("widths", ())),
        missed=tuple(entry.get("missed", ())),
        **{name: float(entry[name]) for name in numbers},
    )


def _chosen(op: str, device: Device, models: Mapping[tuple[str, str], KernelModel]) -> KernelModel:
    model = models.get((op, device.id)) or models.get((op, ""))
    if model is None:
        raise UnknownDurationError(f"no measurements of {op!r}")
    return model


def estimate_elementwise(op: str, elements: float, dtype: str, device: str | Device) -> Estimate:
    """How long the kernel of an element-wise operator runs; see `estimate_elementwises`."""
    return estimate_elementwises(op, [elements], dtype, device)[0]


def estimate_elementwises(
    op: str,
    elements: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    *,
    models: Mapping[tuple[str, str], KernelModel] | None = None,
) -> Estimates:
    """How long kernels of an element-wise operator run.

    Args:
        op: add, mul, pow, div (two tensors); addu, mulu, powu, divu (a tensor and a scalar);
            relu, gelu, tanh.
        elements: `[n]`: of the results.
        dtype: fp32; other types were not measured.
        device: A GPU by name or id.
        models: Others than those shipped.

    Raises:
        UnknownDurationError: The operator or type was not measured, or the device is not known.
    """
    return _estimates(op, np.asarray(elements, np.float64), 1.0, dtype, device, models)


def estimate_rows(
    op: str, rows: float, columns: float, dtype: str, device: str | Device
) -> Estimate:
    """How long a softmax or layer norm over the last of two sizes runs; see
    `estimate_rows_of_lengths`."""
    return estimate_rows_of_lengths(op, [rows], [columns], dtype, device)[0]


def estimate_rows_of_lengths(
    op: str,
    rows: npt.ArrayLike,
    columns: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    *,
    models: Mapping[tuple[str, str], KernelModel] | None = None,
) -> Estimates:
    """How long softmaxes or layer norms over the last of two sizes run (forward).

    Args:
        op: "softmax" or "layer_norm".
        rows: `[n]`.
        columns: `[n]`: lengths of the rows.
        dtype: fp32; other types were not measured.
        device: A GPU by name or id.
        models: Others than those shipped.

    Raises:
        UnknownDurationError: As `estimate_elementwises`.
    """
    if op not in _ROWS:
        raise UnknownDurationError(f"no measurements of {op!r} by rows")
    length = np.asarray(columns, np.float64)
    return _estimates(op, np.asarray(rows, np.float64) * length, length, dtype, device, models)


def _estimates(
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
    chip = the_device(device)
    model = _chosen(op, chip, load_kernels() if models is None else models)
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
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_size: int,
    dtype: str,
    device: str | Device,
    *,
    causal: bool = False,
) -> Estimate:
    """How long a fused attention kernel runs (forward); see `estimate_attentions`."""
    shape = [[batch, heads, queries, keys, head_size]]
    return estimate_attentions(shape, dtype, device, causal=causal)[0]


def estimate_attentions(
    shapes: npt.ArrayLike, dtype: str, device: str | Device, *, causal: bool = False
) -> Estimates:
    """How long fused attention kernels run (forward): the work of their two products in whole
    tiles and their operands, with the efficiency of attention kernels in traces.

    Args:
        shapes: `[n, 5]`: batch, heads, queries, keys and head size of each.
        dtype: Of the operands.
        device: A GPU by name or id.
        causal: Whether half of the products are left out.

    Raises:
        UnknownDurationError: The device is not known, or its peak for this type.
    """
    chip = the_device(device)
    peak_rate(chip, dtype)
    batch, heads, queries, keys, head_size = np.asarray(shapes, np.float64).reshape(-1, 5).T
    flops = 4.0 * batch * heads * queries * keys * head_size * (0.5 if causal else 1.0)
    flops = flops * [tile_padding(*one) for one in zip(queries, keys, head_size, strict=True)]
    moved = element_bytes(dtype) * batch * heads * head_size * 2.0 * (queries + keys)
    count = len(flops)
    return estimate_works(
        ["attention_forward"] * count, flops, moved, [dtype] * count, chip, units=["matrix"] * count
    )
