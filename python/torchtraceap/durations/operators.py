"""Any operator whose work is known, from the arguments that a trace records."""

from __future__ import annotations

from math import prod

import numpy as np

from torchtraceap.devices import Device
from torchtraceap.durations.calibration import kernel_class
from torchtraceap.durations.estimate import Estimate, UnknownDurationError, the_device
from torchtraceap.durations.families import estimate_work
from torchtraceap.durations.gemm import estimate_gemm
from torchtraceap.models.arguments import OpCall, UnknownWorkError
from torchtraceap.models.families import family_of
from torchtraceap.models.registry import Work, model_of, modelled

__all__ = [
    "class_of",
    "estimate_op",
    "estimate_product",
    "known_work",
    "product_shape",
    "type_on",
]

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


def known_work(call: OpCall) -> Work:
    """What a call computes and moves.

    Raises:
        UnknownDurationError: It has no model, or the arguments say too little.
    """
    if model_of(call.name) is None:
        raise UnknownDurationError(f"no model for {call.name}")
    work, why_not = modelled(call)
    if work is None:
        raise UnknownDurationError(f"{call.name}: {why_not}")
    return work


def type_on(work: Work, device: Device) -> str:
    """In which a device computes some work: tf32 where the call allows it and there is such."""
    allowed = work.unit == "matrix" and work.dtype == "fp32" and work.allow_tf32
    return "tf32" if allowed and "tf32" in device.matrix else work.dtype


def estimate_product(call: OpCall, dtype: str, device: Device) -> Estimate | None:
    """Time of a product of matrices; None for other operators, and without shapes.

    Raises:
        UnknownDurationError: As `estimate_gemm`.
    """
    try:
        shape = product_shape(call)
    except UnknownWorkError:
        return None
    if shape is None or min(shape) < 1:
        return None
    batch, m, n, k = shape
    return estimate_gemm(m, n, k, dtype, device, batch)


def estimate_op(call: OpCall, device: str | Device, *, kernels: int = 1) -> Estimate:
    """How long the GPU work of an operator takes.

    Args:
        call: Its name and arguments; names of kernels tell variants of a family.
        device: A GPU by name or id.
        kernels: How many it launches.

    Raises:
        UnknownDurationError: The device or the work of the call is not known.
    """
    chip, work = the_device(device), known_work(call)
    dtype = type_on(work, chip)
    product = estimate_product(call, dtype, chip)
    if product is not None:
        return product
    return estimate_work(
        family_of(call.name, call.kernels),
        np.nan if work.computed is None else work.computed,
        work.bytes,
        dtype,
        chip,
        unit=work.unit,
        kernels=kernels,
        kernel=call.kernels[0] if call.kernels else "",
    )


def class_of(call: OpCall, device: str | Device) -> str:
    """What such calls are calibrated with; see `kernel_class`."""
    family = family_of(call.name, call.kernels)
    try:
        return kernel_class(family, type_on(known_work(call), the_device(device)))
    except UnknownDurationError:
        return family
