"""Converts recorded arguments to values of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtraceap.compat.replay.allowed import check_name
from torchtraceap.compat.replay.call import NotReplayableError, RecordedCall
from torchtraceap.compat.replay.schema import match_operator
from torchtraceap.core.dtypes import DType, parse_dtype
from torchtraceap.errors import MissingDependencyError
from torchtraceap.lab.prediction.capture.batch_sizes import contiguous_strides
from torchtraceap.lab.prediction.capture.calls import TensorInfo, Value

__all__ = ["NO_STORAGE", "named_inputs", "recorded_inputs"]

NO_STORAGE = 0
"""Storage number of tensors whose shared memory is unknown."""


def recorded_inputs(call: RecordedCall) -> tuple[Value, ...]:
    """Return arguments by position: tensors, lists of them, plain values, or None if unknown.

    Strides that were not recorded are those of a contiguous tensor. Lists of tensors carry no
    types: they are taken to have that of the first other tensor, else float32.
    """
    first = next((found for text in call.types if (found := parse_dtype(text))), None)
    of_lists = first or parse_dtype("float32")
    return tuple(_input(call, place, of_lists) for place in range(len(call.types)))


def _input(call: RecordedCall, place: int, of_lists: DType | None) -> Value:
    dims, strides = call.dims[place], call.strides[place] if call.strides else None
    dtype = parse_dtype(call.types[place])
    if dtype is not None and all(isinstance(size, int) for size in dims):
        return _tensor(dims, strides, dtype)
    if of_lists is not None and dims and all(isinstance(each, tuple) for each in dims):
        given: Sequence[Any] = (
            strides if strides and len(strides) == len(dims) else [None] * len(dims)
        )
        return tuple(_tensor(*pair, of_lists) for pair in zip(dims, given, strict=True))
    return _plain(call.values[place])


def _tensor(shape: tuple[int, ...], strides: Any, dtype: DType) -> TensorInfo:
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        strides = contiguous_strides(shape)
    return TensorInfo(shape, strides, dtype, NO_STORAGE)


def _plain(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, complex):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else None


def named_inputs(call: RecordedCall) -> dict[str, Value]:
    """Return arguments by the names of the matching schema, or by position if torch knows none."""
    inputs = recorded_inputs(call)
    try:
        check_name(call.name)
        names = [argument.name for argument in match_operator(call).arguments]
    except (NotReplayableError, MissingDependencyError):
        names = []
    places = (names[k] if k < len(names) else str(k) for k in range(len(inputs)))
    return dict(zip(places, inputs, strict=True))
