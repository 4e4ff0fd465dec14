"""Estimate any operator whose work is known from the arguments that a trace records."""

from __future__ import annotations

from math import prod

import numpy as np

from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.calibration import kernel_class
from torchtraceap.ops.durations.convolutions import estimate_convolution
from torchtraceap.ops.durations.estimate import Estimate, UnknownDurationError, resolve_device
from torchtraceap.ops.durations.families import estimate_work
from torchtraceap.ops.durations.gemm import estimate_gemm
from torchtraceap.ops.durations.kernels import FLOOR_NS, tensors_moved
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError
from torchtraceap.ops.models.families import family_of
from torchtraceap.ops.models.registry import Work, model_of, work_of_call

__all__ = [
    "call_class",
    "compute_type_on",
    "estimate_measured",
    "estimate_op",
    "estimate_product",
    "product_shape",
    "require_work",
]

_FIRST_OPERAND = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}


def product_shape(call: OpCall) -> tuple[int, int, int, int] | None:
    """Return batch, m, n and k of a matrix product; None for other operators."""
    first = _FIRST_OPERAND.get(call.name)
    if first is None:
        return None
    a, b = call.tensor(first).shape, call.tensor(first + 1).shape
    if len(a) < 2 or len(b) < 2:
        return None
    return prod(a[:-2]), a[-2], b[-1], a[-1]


def require_work(call: OpCall) -> Work:
    """Return the work of a call.

    Raises:
        UnknownDurationError: The operator has no model, or the arguments say too little.
    """
    if model_of(call.name) is None:
        raise UnknownDurationError(f"no model for {call.name}")
    work, why_not = work_of_call(call)
    if work is None:
        raise UnknownDurationError(f"{call.name}: {why_not}")
    return work


def compute_type_on(work: Work, device: Device) -> str:
    """Return the type in which a device computes: tf32 if the call and the device allow it."""
    allowed = work.unit == "matrix" and work.dtype == "fp32" and work.allow_tf32
    return "tf32" if allowed and "tf32" in device.matrix else work.dtype


def estimate_product(call: OpCall, dtype: str, device: Device) -> Estimate | None:
    """Estimate a matrix product; None for other operators and for calls without shapes.

    Raises:
        UnknownDurationError: The device or type is unknown.
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
    """Estimate the GPU work of an operator.

    Args:
        call: Name and arguments of the operator; names of kernels select variants of a family.
        device: A GPU by name or id.
        kernels: Number of kernels that it launches.

    Raises:
        UnknownDurationError: The device or the work of the call is not known.
    """
    chip, work = resolve_device(device), require_work(call)
    dtype = compute_type_on(work, chip)
    found = estimate_measured(call, dtype, chip, kernels)
    if found is not None:
        return found
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


def estimate_measured(
    call: OpCall, dtype: str, device: Device, kernels: int = 1
) -> Estimate | None:
    """Estimate a call by a model that was fitted to its own kind of kernel.

    Args:
        call: Name and arguments of the operator.
        dtype: Type in which the device computes it.
        device: The GPU.
        kernels: Number of kernels that it launches.

    Returns:
        None if there is no such model.

    Raises:
        UnknownDurationError: The device or type of a matrix product is unknown.
    """
    found = estimate_product(call, dtype, device) or _estimate_narrow_rows(call, device)
    if found is not None or not ("convolution" in call.name or "conv_depthwise" in call.name):
        return found
    work, _ = work_of_call(call)
    return None if work is None else estimate_convolution(call, work, dtype, device, kernels)


# Position of the dimension argument of a softmax and the number of tensors that it moves.
_SOFTMAXES = {
    "aten::_softmax": (1, 2),
    "aten::_log_softmax": (1, 2),
    "aten::_softmax_backward_data": (2, 3),
    "aten::_log_softmax_backward_data": (2, 3),
}
# Longer rows have one block each, of so many threads, which read 16 bytes at once if possible.
_ROW_OF_WARP = 1024
_BLOCK = 1024
_WIDE, _NARROW = 16, 4
# Note [Rows of single elements]
# Rows that do not begin at multiples of 16 bytes use ATen's general kernel. In all three passes
# over the row it reads full blocks of 16 bytes per thread and the remainder element by element. A
# row shorter than a block (8,192 elements of 2 bytes) is all remainder, and the instructions issued
# to lanes, not the memory, decide the time. The constant is the clocks of a lane per element:
# NeuSight's fp32 rows of odd lengths above 1,024 took 200 on V100 and 168 on A100. Two softmaxes of
# a public trace, which were held out, take 202 (H100) and 149 (MI300X). Backward passes were not
# measured.
_LANE_CLOCKS = 183.0
_ROWS_FACTOR, _BACKWARD_FACTOR = 1.4, 1.8
# Lanes to which a multiprocessor can issue an instruction in one clock.
_LANES = {"nvidia": 128, "amd": 64}
_ROWS_SAYS = "rows that can't be read 16 bytes at once: so many elements, one after the other"


def _estimate_narrow_rows(call: OpCall, device: Device) -> Estimate | None:
    """Estimate a softmax over long unaligned rows of 2-byte elements; None for any other call.

    See Note [Rows of single elements].
    """
    place, tensors = _SOFTMAXES.get(call.name, (0, 0))
    clocks = device.multiprocessors * _LANES.get(device.vendor, 0) * device.clock_mhz * 1e6
    if not tensors or not clocks:
        return None
    try:
        source, axis = call.tensor(0), call.integer(place, -1)
    except UnknownWorkError:
        return None
    size = source.dtype.size
    length = source.shape[-1] if source.shape else 0
    is_last = axis in (-1, len(source.shape) - 1)
    if not is_last or size >= _NARROW or length <= _ROW_OF_WARP or length * size % _WIDE == 0:
        return None
    rest = length % (_BLOCK * _WIDE // size)
    passing = 1e9 * _LANE_CLOCKS * source.elements * (rest / length) / clocks
    moving = 1e9 * tensors * source.bytes / device.bandwidth
    factor = _ROWS_FACTOR if tensors == tensors_moved("softmax") else _BACKWARD_FACTOR
    return Estimate.within_factor(FLOOR_NS + max(passing, moving), factor, _ROWS_SAYS)


def call_class(call: OpCall, device: str | Device) -> str:
    """Return the class with which such calls are calibrated; see `kernel_class`."""
    family = family_of(call.name, call.kernels)
    try:
        return kernel_class(family, compute_type_on(require_work(call), resolve_device(device)))
    except UnknownDurationError:
        return family
