"""Converts a recorded step to another floating point type."""

from __future__ import annotations

from dataclasses import replace

from torchtraceap.core.dtypes import DType, parse_dtype
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Capture, TensorInfo, Value

__all__ = ["with_dtype"]

_CHANGED = ("float32", "float16", "bfloat16")


def with_dtype(capture: Capture, dtype: str) -> Capture:
    """Return the step with its 16 and 32-bit tensors converted to another type.

    Operators stay as they are: where a program mixes types, its conversions stay as copies.

    Args:
        capture: The step.
        dtype: torch's name: float32, float16 or bfloat16.

    Raises:
        OptionError: Another type.
    """
    to = parse_dtype(dtype)
    if to is None or to.name not in _CHANGED:
        raise OptionError(f"dtype {dtype!r}: one of {', '.join(_CHANGED)} is needed")
    calls = tuple(_convert_call(call, to) for call in capture.calls)
    return replace(capture, calls=calls, storages=None)


def _convert_call(call: Call, to: DType) -> Call:
    inputs = {name: _convert_value(value, to) for name, value in call.inputs.items()}
    return replace(
        call, inputs=inputs, outputs=tuple(_convert_value(each, to) for each in call.outputs)
    )


def _convert_value(value: Value, to: DType) -> Value:
    if isinstance(value, TensorInfo):
        return replace(value, dtype=to) if value.dtype.name in _CHANGED else value
    return tuple(_convert_value(each, to) for each in value) if isinstance(value, tuple) else value
