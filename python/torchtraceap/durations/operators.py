"""Any operator whose work is known, from the arguments that a trace records."""

from __future__ import annotations

import numpy as np

from torchtraceap.devices import Device
from torchtraceap.durations.calibration import kernel_class
from torchtraceap.durations.estimate import Estimate, UnknownDurationError, the_device
from torchtraceap.durations.families import estimate_work
from torchtraceap.durations.gemm import estimate_gemm
from torchtraceap.durations.scaling import known_work, product_shape, type_on
from torchtraceap.models.arguments import OpCall, UnknownWorkError
from torchtraceap.models.families import family_of

__all__ = ["class_of", "estimate_op", "estimate_product"]


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
        np.nan if work.flops is None else work.flops,
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
