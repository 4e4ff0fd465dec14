"""The operators of a real trace as `launching_ops` would give them, with what they launched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.dtypes import FP32
from torchtraceap.lab.prediction.capture.calls import Phase, Plain, TensorInfo, Value
from torchtraceap.lab.prediction.lowering import LaunchingOp
from torchtraceap.ops.models.arguments import Argument, OpCall, Tensor, UnknownWorkError
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.ops.calls import Calls

__all__ = ["Event", "TracedOp", "traced_ops"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_WORDS: dict[str, Plain] = {"True": True, "False": False, "None": None, "": None}
_OF_TENSORS = ("aten::copy_", "aten::fill_")
_OF_NUMBERS = ("float64", "int64")


@dataclass(frozen=True)
class Event:
    """What ran on the GPU."""

    name: str
    ns: int
    grid: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True)
class TracedOp:
    """An operator and its GPU events, in the order of the stream."""

    op: LaunchingOp
    events: tuple[Event, ...]
    has_strides: bool
    """Of its tensors, in the trace."""


def traced_ops(trace: ttap.Trace) -> Iterator[TracedOp]:
    """Those of all ranks that launched something themselves and whose shapes are recorded."""
    for part in trace.ranks:
        calls, events = Calls(part), GpuEvents.of(part)
        known = set(calls.rows.tolist())
        grids, blocks = (events.json_arg(key) for key in ("grid", "block"))
        found: dict[int, list[Event]] = {}
        for at, row in enumerate(events.owner.tolist()):
            if row != _core.NO_ROW and row in known:
                sizes = [_sizes(each.texts, int(each.codes[at])) for each in (grids, blocks)]
                name = events.texts[int(events.name[at])]
                event = Event(name, int(events.duration_ns[at]), *sizes)
                found.setdefault(row, []).append(event)
        for row, launched in sorted(found.items()):
            kind = calls.kind_of(row)
            op = _op(OpCall(kind.name, *kind.texts, kind.kernels), kind.texts[2])
            if op is not None:
                yield TracedOp(op, tuple(launched), kind.texts[2] is not None)


def _sizes(texts: list[str], code: int) -> tuple[int, ...]:
    return tuple(json.loads(texts[code])) if code >= 0 else ()


def _op(call: OpCall, strides: str | None) -> LaunchingOp | None:
    try:
        arguments = [call.argument(place) for place in range(len(call))]
        values = tuple(
            _value(each, call, _strides_of_list(strides, place))
            for place, each in enumerate(arguments)
        )
    except UnknownWorkError:
        return None
    if not any(isinstance(each, TensorInfo | tuple) for each in values):
        return None
    inputs = values if call.name in _OF_TENSORS else _numbers(values)
    return LaunchingOp(call.name, inputs, (), Phase.FORWARD, (), 0)


def _numbers(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Python's numbers stand in a trace as tensors without dimensions, of Python's types."""
    first, *others = values
    dims = any(isinstance(each, TensorInfo) and each.shape for each in values)
    wide = isinstance(first, TensorInfo) and (first.shape or not dims)
    return (first, *(1.0 if wide and _is_number(each) else each for each in others))


def _is_number(value: Value) -> bool:
    return isinstance(value, TensorInfo) and not value.shape and value.dtype.name in _OF_NUMBERS


def _strides_of_list(text: str | None, place: int) -> list[tuple[int, ...]]:
    """Of the tensors of a list; empty if it is none or nothing is recorded."""
    listed = json.loads(text)[place : place + 1] if text else []
    return [tuple(each) for each in (listed or [[]])[0] if isinstance(each, list)]


def _value(argument: Argument, call: OpCall, strides: list[tuple[int, ...]]) -> Value:
    if argument.tensor is not None:
        return _tensor(argument.tensor)
    if argument.tensors is not None:
        types = {each.dtype for each in argument.tensors if isinstance(each, Tensor)}
        try:
            dtype = types.pop() if types else call._kernel_dtype()
        except UnknownWorkError:
            dtype = FP32
        shapes = [each.shape if isinstance(each, Tensor) else each for each in argument.tensors]
        known = strides if len(strides) == len(shapes) else [None] * len(shapes)
        return tuple(
            _tensor(Tensor(shape, dtype, each)) for shape, each in zip(shapes, known, strict=True)
        )
    return _plain(argument.text)


def _tensor(tensor: Tensor) -> TensorInfo:
    """Without strides in the trace, row after row."""
    strides = tensor.strides
    if strides is None or len(strides) != len(tensor.shape):
        step, steps = 1, []
        for size in reversed(tensor.shape):
            steps.append(step)
            step *= max(1, size)
        strides = tuple(reversed(steps))
    return TensorInfo(tensor.shape, tensor.dtype, strides, -1)


def _plain(text: str | None) -> Value:
    if text is None or text in _WORDS:
        return _WORDS[text or ""]
    if text.startswith("["):
        inner = text.strip("[]").split(",")
        return tuple(_plain(item.strip()) for item in inner if item.strip())
    if _NUMBER.fullmatch(text):
        number = float(text)
        return number if "." in text or "e" in text.lower() else int(text)
    return text
