"""Kernels that memory bounds: element-wise ones, softmax, layer norm; and attention.

A call takes `start_ns` plus its traffic over the memory's rate times a factor:

    time = start + factor(operator, row length, device) x bytes / bandwidth

The factors were measured in fp32 on five GPUs (`data/kernels.json`, made by
benchmarks/simulation/fit_durations.py). On a GPU that was not among them the mean factor of all
is used, and the estimate says so. Traffic counts every operand and the result once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.devices import Device
from torchtraceap.durations.estimate import (
    Estimate,
    UnknownDurationError,
    element_bytes,
    peak_rate,
    the_device,
)

__all__ = [
    "KernelModel",
    "estimate_attention",
    "estimate_elementwise",
    "estimate_rows",
    "load_kernels",
    "tensors_moved",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "kernels.json"
# A kernel that has next to nothing to do.
FLOOR_NS = 2000.0
# Note [Factors of intervals]: unseen lengths up to 4.7 %, unseen GPUs up to 16 %; few megabytes
# were not measured.
_INTERVAL = 1.15
_INTERVAL_UNMEASURED = 1.35
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
    widths: tuple[float, ...]
    """log2 of row lengths; one only where rows play no part."""
    factors: tuple[float, ...]
    """Logarithm of time over bytes / bandwidth, at those lengths."""
    source: str

    def factor(self, columns: npt.ArrayLike) -> FloatArray:
        """How much longer than at the memory's full rate."""
        x = np.log2(np.asarray(columns, dtype=np.float64))
        return np.asarray(np.exp(np.interp(x, self.widths, self.factors)))

    def moving_ns(self, size: npt.ArrayLike, columns: npt.ArrayLike, device: Device) -> FloatArray:
        """Time of moving `size` bytes without the start, in ns."""
        moved = np.asarray(size, dtype=np.float64) / device.bandwidth * 1e9
        return np.asarray(moved * self.factor(columns))


@cache
def load_kernels() -> Mapping[tuple[str, str], KernelModel]:
    """The shipped factors by operator and id of the device."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    models = (_model(entry, document["says"]) for entry in document["models"])
    return MappingProxyType({(model.op, model.device): model for model in models})


def _model(entry: Mapping[str, Any], says: str) -> KernelModel:
    return KernelModel(
        op=entry["op"],
        device=entry["device"],
        start_ns=float(entry["start_ns"]),
        widths=tuple(entry["widths"]),
        factors=tuple(entry["factors"]),
        source=says,
    )


def _chosen(op: str, device: Device, models: Mapping[tuple[str, str], KernelModel]) -> KernelModel:
    model = models.get((op, device.id)) or models.get((op, ""))
    if model is None:
        raise UnknownDurationError(f"no measurements of {op!r}")
    return model


def estimate_elementwise(
    op: str,
    elements: float,
    dtype: str,
    device: str | Device,
    *,
    models: Mapping[tuple[str, str], KernelModel] | None = None,
) -> Estimate:
    """How long the kernel of an element-wise operator runs.

    Args:
        op: add, mul, pow, div (two tensors); addu, mulu, powu, divu (a tensor and a scalar);
            relu, gelu, tanh.
        elements: Of the result.
        dtype: fp32; other types were not measured.
        device: A GPU by name or id.
        models: Others than those shipped.

    Raises:
        UnknownDurationError: The operator or type was not measured, or the device is not known.
    """
    return _estimate(op, elements, 1.0, dtype, device, models)


def estimate_rows(
    op: str,
    rows: float,
    columns: float,
    dtype: str,
    device: str | Device,
    *,
    models: Mapping[tuple[str, str], KernelModel] | None = None,
) -> Estimate:
    """How long a softmax or layer norm over the last of two sizes runs (forward).

    Raises:
        UnknownDurationError: As `estimate_elementwise`.
    """
    if op not in _ROWS:
        raise UnknownDurationError(f"no measurements of {op!r} by rows")
    return _estimate(op, rows * columns, columns, dtype, device, models)


def _estimate(
    op: str,
    elements: float,
    columns: float,
    dtype: str,
    device: str | Device,
    models: Mapping[tuple[str, str], KernelModel] | None,
) -> Estimate:
    if dtype != "fp32":
        raise UnknownDurationError(f"{op} was measured in fp32, not in {dtype}")
    chip = the_device(device)
    model = _chosen(op, chip, load_kernels() if models is None else models)
    size = tensors_moved(op) * _FP32_BYTES * elements
    ns = FLOOR_NS + float(model.moving_ns(size, columns, chip))
    where = "" if model.device else f"; mean factor of them, {chip.name} was not measured"
    factor = _INTERVAL if model.device else _INTERVAL_UNMEASURED
    return Estimate.around(ns, factor, model.source + where)


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
    """Bound of a fused attention kernel: its two products and its operands, at the peaks.

    There are no public measurements behind a correction; the answer is the roofline alone and
    says so. Use it as a ratio between devices, not as a time.

    Raises:
        UnknownDurationError: The device is not known, or its peak for this type.
    """
    chip = the_device(device)
    rate, width = peak_rate(chip, dtype), element_bytes(dtype)
    flops = 4.0 * batch * heads * queries * keys * head_size * (0.5 if causal else 1.0)
    moved = width * batch * heads * head_size * 2.0 * (queries + keys)
    ns = FLOOR_NS + 1e9 * max(flops / rate, moved / chip.bandwidth)
    # A bound: kernels reach between nearly all of it and a fifth.
    says = "roofline only: no measurements of attention kernels"
    return Estimate(ns, ns, 5.0 * ns, says)
