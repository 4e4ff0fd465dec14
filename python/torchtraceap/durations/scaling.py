"""From one GPU to another: the measured time times the ratio of two models.

A model's own error cancels where it errs alike on both GPUs. For products of matrices the ratio of
their models is taken, else that of the rooflines: docs/durations.md says how far either is off.
"""

from __future__ import annotations

from math import prod

from torchtraceap.devices import Device
from torchtraceap.durations.estimate import Estimate, UnknownDurationError, the_device
from torchtraceap.durations.gemm import estimate_gemm
from torchtraceap.models.arguments import OpCall, UnknownWorkError
from torchtraceap.models.registry import Work, model_of

__all__ = ["estimate_ratio", "known_work", "product_shape", "ratio", "type_on"]

_FLOOR_NS = 3000.0
_FIRST_OPERAND = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}


def product_shape(call: OpCall) -> tuple[int, int, int, int] | None:
    """batch, m, n, k of a product of matrices; None for other operators."""
    first = _FIRST_OPERAND.get(call.name)
    if first is None:
        return None
    a, b = call.tensor(first).shape, call.tensor(first + 1).shape
    if len(a) < 2 or len(b) < 2:
        return None
    return prod(a[:-2]), a[-2], b[-1], a[-1]


def ratio(op_call: OpCall, from_device: str | Device, to_device: str | Device) -> float | None:
    """Time on `to_device` over time on `from_device`; None where nothing tells it."""
    try:
        return estimate_ratio(op_call, from_device, to_device)[0]
    except UnknownDurationError:
        return None


def estimate_ratio(
    op_call: OpCall, from_device: str | Device, to_device: str | Device
) -> tuple[float, str]:
    """As `ratio`, with its source.

    Raises:
        UnknownDurationError: A device or its peak is not known, or the work of the call.
    """
    old, new = the_device(from_device), the_device(to_device)
    work = known_work(op_call)
    shape = _shape(op_call)
    if shape is not None and min(shape) > 0:
        measured = _measured(shape, work, old, new)
        if measured is not None:
            return measured
    after, before = _roofline(work, new), _roofline(work, old)
    return after / before, "ratio of rooflines"


def known_work(call: OpCall) -> Work:
    """What a call computes and moves.

    Raises:
        UnknownDurationError: It has no model, or the arguments say too little.
    """
    entry = model_of(call.name)
    if entry is None:
        raise UnknownDurationError(f"no model for {call.name}")
    try:
        return entry.model(call)
    except UnknownWorkError as reason:
        raise UnknownDurationError(f"{call.name}: {reason}") from None


def _shape(call: OpCall) -> tuple[int, int, int, int] | None:
    try:
        return product_shape(call)
    except UnknownWorkError:
        return None


def _measured(
    shape: tuple[int, int, int, int], work: Work, old: Device, new: Device
) -> tuple[float, str] | None:
    batch, m, n, k = shape
    try:
        before: Estimate = estimate_gemm(m, n, k, type_on(work, old), old, batch)
        after = estimate_gemm(m, n, k, type_on(work, new), new, batch)
    except UnknownDurationError:
        return None
    return after.ns / before.ns, f"ratio of models: {after.source}"


def type_on(work: Work, device: Device) -> str:
    """In which a device computes some work: tf32 where the call allows it and there is such."""
    allowed = work.unit == "matrix" and work.dtype == "fp32" and work.allow_tf32
    return "tf32" if allowed and "tf32" in device.matrix else work.dtype


def _roofline(work: Work, device: Device) -> float:
    moved = work.bytes / device.bandwidth
    if not work.flops:
        return _FLOOR_NS + 1e9 * moved
    rates = device.matrix if work.unit == "matrix" else device.vector
    dtype = type_on(work, device)
    peak = rates.get(dtype) or device.vector.get(dtype)
    if not peak:
        if work.unit == "matrix":
            raise UnknownDurationError(f"the peak rate of {device.name} for {dtype} is not known")
        return _FLOOR_NS + 1e9 * moved
    return _FLOOR_NS + 1e9 * max(work.flops / peak, moved)
