"""Durations of the GPU work of lowered operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtraceap.lab.prediction.capture.calls import TensorInfo, Value
from torchtraceap.lab.prediction.lowering.kernels import kernel_names
from torchtraceap.lab.prediction.lowering.kernels.embeddings import lookup_estimate
from torchtraceap.lab.prediction.lowering.kernels.recurrent import recurrent_of, recurrent_time
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp, Libraries, libraries_of
from torchtraceap.lab.prediction.lowering.step import OpTime
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import Calibration, Estimate, op_ns
from torchtraceap.ops.durations.estimate import resolve_device
from torchtraceap.ops.models import OpCall

__all__ = ["op_call", "op_times", "profiled_arguments"]

_LEAST_NS = 2_500.0
"""Duration of a kernel with almost no work."""
_NARROW_ELEMENT = 2
_ASSUMED_SPREAD = 4.0
"""Spread of operators without a model: a quarter to four times a copy of their tensors."""

_ROW_ELEMENTS = 128
"""Elements of an embedding row of unknown size; recommendation models have 32 to 256."""


def op_times(
    ops: Sequence[LaunchingOp],
    device: str | Device,
    calibration: Calibration | None = None,
    libraries: Libraries | None = None,
) -> list[OpTime]:
    """Return the GPU time of each operator, ns, by its kernels and the loop that runs it.

    Args:
        ops: Operators from `launching_ops`.
        device: A GPU by name or id.
        calibration: Calibration by a trace from that device (`durations.calibrate`).
        libraries: Libraries of the build of torch; by default one for the device.

    Raises:
        OptionError: The device has several meanings.
        UnknownDurationError: Nobody knows the device.
    """
    chip = resolve_device(device)
    build = libraries or libraries_of(chip)
    known: dict[tuple[Any, ...], OpTime] = {}
    found = []
    for op in ops:
        key = (op.name, tuple(map(_key, op.inputs)))
        if key not in known:
            known[key] = _op_time(op, chip, calibration, build)
        found.append(known[key])
    return found


def _key(value: Value) -> Any:
    """Return a key that is equal for tensors of the same shape, strides and type."""
    if isinstance(value, TensorInfo):
        return value.shape, value.strides, value.dtype.name
    return tuple(map(_key, value)) if isinstance(value, tuple) else value


def _op_time(
    op: LaunchingOp, device: Device, calibration: Calibration | None, libraries: Libraries
) -> OpTime:
    layers = recurrent_of(op)
    if layers is not None and (whole := recurrent_time(layers, device, calibration)) is not None:
        return OpTime(whole, True)
    lookup = lookup_estimate(op, device)
    if lookup is not None:
        return OpTime(lookup, True)
    kernels = kernel_names(op, device, libraries)
    # Index computation costs per element; for wide elements it hides behind memory traffic.
    narrow = all(tensor.dtype.size <= _NARROW_ELEMENT for tensor in op.tensors)
    call = OpCall(op.name, *profiled_arguments(op.inputs), kernels if narrow else ())
    count = max(1, len(kernels))
    found = op_ns(call, device, kernels=count, calibration=calibration)
    if found is not None:
        return OpTime(found, True)
    moved = sum(_moved_elements(op, tensor) * tensor.dtype.size for tensor in op.tensors)
    ns = count * _LEAST_NS + moved / device.bandwidth * 1e9
    low, high = ns / _ASSUMED_SPREAD, ns * _ASSUMED_SPREAD
    source = f"no model knows {op.name}: its tensors moved once"
    return OpTime(Estimate(ns, low, high, source), False)


def _moved_elements(op: LaunchingOp, tensor: TensorInfo) -> int:
    """Return the elements that are moved; tables of other libraries move one row for each index."""
    if op.name.startswith("aten::") or tensor.dtype.rank <= 1:
        return tensor.elements
    indices = [each.elements for each in op.tensors if each.dtype.rank <= 1]
    return min(tensor.elements, _ROW_ELEMENTS * sum(indices)) if indices else tensor.elements


def op_call(op: LaunchingOp) -> OpCall:
    """Return the operator as a trace would record it."""
    return OpCall(op.name, *profiled_arguments(op.inputs))


def profiled_arguments(
    inputs: Sequence[Value],
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Return dims, types, strides and concrete values of the arguments."""
    arguments = [_profiled_argument(value) for value in inputs]
    dims, types, strides, concrete = ([each[k] for each in arguments] for k in range(4))
    return dims, types, strides, concrete


def _profiled_argument(value: Value) -> tuple[Any, Any, Any, str]:
    """Return dims, type, strides and concrete value of an argument."""
    if isinstance(value, TensorInfo):
        return list(value.shape), value.dtype.name, list(value.strides), ""
    if isinstance(value, tuple):
        tensors = [each for each in value if isinstance(each, TensorInfo)]
        if tensors and len(tensors) == len(value):
            dims, types, strides, _ = zip(*map(_profiled_argument, tensors), strict=True)
            return list(dims), list(types), list(strides), ""
        return [], "ScalarList", [], str(list(value))
    return [], "" if value is None else "Scalar", [], "" if value is None else str(value)
