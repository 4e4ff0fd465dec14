"""The arguments of a call, rebuilt: how each tensor is made and which values go with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchtraceap.compat.replay import dtypes
from torchtraceap.compat.replay.allowed import check_name, check_number, check_operator, check_text
from torchtraceap.compat.replay.bounds import MAX_BYTES, MAX_NUMBERS, MAX_TENSORS, TOO_LARGE
from torchtraceap.compat.replay.call import NO_SCALARS, NotReplayableError, RecordedCall, copy_ends
from torchtraceap.compat.replay.consistency import check_fits
from torchtraceap.compat.replay.plan import DEVICE, HOST, CallPlan, Make, TorchName
from torchtraceap.compat.replay.roles import fill_for
from torchtraceap.compat.replay.schema import Argument, Operator, match_operator

__all__ = ["plan_call"]


def plan_call(call: RecordedCall, *, without_values: bool = False) -> CallPlan:
    """Matches the overload and rebuilds the arguments.

    Args:
        call: What was recorded.
        without_values: It will be called on tensors without values (`check_operator`).

    Raises:
        NotReplayableError: With the reason.
    """
    check_name(call.name)
    operator = match_operator(call)
    check_operator(operator, without_values=without_values)
    if operator.name in _CHANGES_SHAPE:
        raise NotReplayableError(
            f"{operator.qualified} changes the shape of its argument, so that a second call would "
            "meet other inputs"
        )
    return _Planner(operator, call).plan()


_CHANGES_SHAPE = frozenset(
    {
        "as_strided_",
        "detach_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)
_COPIES = frozenset({"copy_", "to", "_to_copy"})
_HOST_SCALARS = frozenset({"float64", "int64", "bool", "complex128"})
# Required values that change what is computed but hardly the work.
_HARMLESS: dict[str, float | bool] = {
    "beta": 1.0,
    "eps": 1e-5,
    "epsilon": 1e-5,
    "exponential_average_factor": 0.1,
    "max": 1.0,
    "min": 0.0,
    "momentum": 0.1,
    "negative_slope": 0.01,
    "other": 2.0,
    "p": 0.5,
    "threshold": 0.0,
    "train": True,
    "training": True,
    "value": 0.0,
}
_SCALAR_TYPES = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "complex": (complex, float, int),
    "number": (bool, int, float, complex),
    "str": (str,),
}
_LIST_ELEMENTS = {"ints": "int", "floats": "float", "bools": "bool", "numbers": "number"}
_NUMBERED = {
    "dtype": dtypes.DTYPE_NUMBERS,
    "layout": dtypes.LAYOUT_NUMBERS,
    "memory_format": dtypes.MEMORY_FORMAT_NUMBERS,
}


class _Planner:
    """One call on its way from the recorded texts to a plan."""

    def __init__(self, operator: Operator, call: RecordedCall) -> None:
        self._operator, self._call = operator, call
        self._notes: dict[str, None] = {}
        self._bytes = 0
        self._ends = copy_ends(call) if operator.name in _COPIES else None
        self._known = {
            argument.name: self._known_value(argument, place)
            for place, argument in enumerate(operator.arguments[: len(call.types)])
        }

    def plan(self) -> CallPlan:
        positional: list[tuple[str, Any]] = []
        keyword: list[tuple[str, Any]] = []
        for place, argument in enumerate(self._operator.arguments):
            if place >= len(self._call.types):
                self._note(f"'{argument.name}' is newer than the trace: its default is taken")
                continue
            target = keyword if argument.keyword_only else positional
            target.append((argument.name, self._node(argument, place)))
        if self._call.strides is None and self._bytes:
            self._note("strides were not recorded: tensors are contiguous")
        operator = self._operator
        check_fits(operator, dict((*positional, *keyword)))
        return CallPlan(
            operator, tuple(positional), tuple(keyword), self._bytes, tuple(self._notes)
        )

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _known_value(self, argument: Argument, place: int) -> Any:
        return (
            self._call.dims[place]
            if argument.kind in ("tensor", "tensors")
            else self._call.values[place]
        )

    def _node(self, argument: Argument, place: int) -> Any:
        kind, text = argument.kind, self._call.types[place]
        if kind == "tensor":
            return self._tensor(argument, place) if text else self._absent_tensor(argument)
        if kind in ("tensors", "optional_tensors"):
            return self._tensors(argument, place) if text else self._absent_tensors(argument)
        if kind == "device":
            return self._device(argument)
        if kind == "generator":
            return None
        return self._plain(argument, place)

    # -- tensors

    def _absent_tensor(self, argument: Argument) -> None:
        if not argument.optional:
            self._note(f"'{argument.name}' was an undefined tensor")

    def _absent_tensors(self, argument: Argument) -> None:
        if argument.optional:
            return
        raise NotReplayableError(
            f"the tensors in '{argument.name}' were not recorded: the profiler leaves lists of "
            "optional tensors out, as the indices of x[i, j]"
        )

    def _tensor(self, argument: Argument, place: int) -> Make:
        call = self._call
        text, shape = call.types[place], call.dims[place]
        dtype = dtypes.dtype_of_cpp_name(text)
        if dtype is None:
            raise NotReplayableError(f"'{argument.name}' has elements of type {ascii(text)[:60]}")
        strides = None if call.strides is None else call.strides[place]
        return self._make(
            argument.name, shape, strides, dtype, self._place_of(argument, shape, dtype)
        )

    def _place_of(self, argument: Argument, shape: Any, dtype: str) -> str:
        """Where the tensor lives: "device", "cpu" or "pinned"."""
        if self._ends:
            written = argument.written and self._operator.name == "copy_"
            return self._ends[1 if written else 0]
        first = argument is self._operator.arguments[0]
        number = shape == () and dtype in _HOST_SCALARS and not first and not argument.written
        return "cpu" if number and self._has_larger_tensor() else "device"

    def _has_larger_tensor(self) -> bool:
        return any(
            argument.kind == "tensor" and self._known.get(argument.name)
            for argument in self._operator.arguments
        )

    def _tensors(self, argument: Argument, place: int) -> list[Make]:
        call = self._call
        shapes = call.dims[place]
        if not shapes:
            self._require_some_list(argument)
            return []
        if not all(isinstance(shape, tuple) for shape in shapes):
            raise NotReplayableError(f"the shapes in '{argument.name}' are not those of a list")
        if len(shapes) > MAX_TENSORS:
            raise NotReplayableError(
                f"'{argument.name}' has {len(shapes)} tensors, more than the {MAX_TENSORS} that "
                "are made"
            )
        strides: Sequence[Any] = [None] * len(shapes)
        if call.strides is not None and len(call.strides[place]) == len(shapes):
            strides = call.strides[place]
        makes = []
        for shape, stride in zip(shapes, strides, strict=True):
            dtype = self._list_dtype(argument.name, shape)
            makes.append(self._make(argument.name, shape, stride, dtype, "device"))
        return makes

    def _require_some_list(self, argument: Argument) -> None:
        """An empty list is believed only beside one that is not: long ones are written empty."""
        kinds = ("tensors", "optional_tensors")
        names = [a.name for a in self._operator.arguments if a.kind in kinds]
        if not any(self._known.get(name) for name in names):
            raise NotReplayableError(
                f"the tensors in '{argument.name}' were not recorded: PyTorch writes no shapes of "
                "lists with more than 30 tensors, and older versions of none"
            )

    def _list_dtype(self, name: str, shape: tuple[int, ...]) -> str:
        """Lists carry no types: told from operators below, kernels or other arguments."""
        if name == "state_steps":
            return "float32"
        for below, text in self._call.around.tensors:
            if below == shape and (dtype := dtypes.dtype_of_cpp_name(text)):
                return dtype
        for kernel in self._call.around.gpu_names:
            if dtype := dtypes.dtype_in_kernel_name(kernel):
                self._note(f"types in lists are not recorded: {dtype} after the kernel's name")
                return dtype
        known = (dtypes.dtype_of_cpp_name(text) for text in self._call.types)
        dtype = next((found for found in known if found), "float32")
        self._note(f"types in lists are not recorded: {dtype} is assumed")
        return dtype

    def _make(self, name: str, shape: Any, strides: Any, dtype: str, place: str) -> Make:
        if not all(isinstance(size, int) for size in shape):
            raise NotReplayableError(f"'{name}' has a list of shapes where a tensor belongs")
        if strides is None or len(strides) != len(shape):
            strides = _contiguous(shape)
        elements = (
            0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        )
        self._bytes += elements * dtypes.ELEMENT_BYTES[dtype]
        repeated = math.prod(shape) * dtypes.ELEMENT_BYTES[dtype]  # strides of 0 take no storage
        if max(self._bytes, repeated) > MAX_BYTES:
            raise NotReplayableError(
                f"'{name}' of shape {list(shape)} is too large to be real: {TOO_LARGE}"
            )
        function, leading = self._fill(name, shape, dtype)
        target = DEVICE if place == "device" else HOST
        pinned = place == "pinned"
        return Make(function, leading, tuple(shape), tuple(strides), dtype, target, pinned)

    def _fill(self, name: str, shape: tuple[int, ...], dtype: str) -> tuple[str, tuple[Any, ...]]:
        operator = self._operator
        fill = fill_for(operator.base_name, name, shape, dtype, self._known)
        if fill is not None:
            return fill
        if dtype == "bool":
            return "booleans", ()
        if not dtype.startswith(("int", "uint")):
            return "normal", ()
        if operator.namespace == "aten":
            return "integers", (1, 8)
        self._note(f"the integers in '{name}' are unknown: zeros")
        return "filled", (0,)

    # -- all else

    def _device(self, argument: Argument) -> Any:
        if self._ends and self._operator.name != "copy_":
            return DEVICE if self._ends[1] == "device" else HOST
        takes_tensors = any(isinstance(value, tuple) for value in self._known.values())
        return None if argument.optional and takes_tensors else DEVICE

    def _plain(self, argument: Argument, place: int) -> Any:
        call, value = self._call, self._call.values[place]
        if place < len(call.unread) and call.unread[place] is not None:
            text = ascii(call.unread[place])[:80]
            raise NotReplayableError(f"the value of '{argument.name}' is no literal: {text}")
        if value is None:
            return self._unknown(argument, place)
        return self._checked(argument, value)

    def _unknown(self, argument: Argument, place: int) -> Any:
        was_none = not self._call.types[place]
        if was_none and argument.optional:
            return None
        # An optional value that was given is not its default, None.
        given = argument.optional and not was_none
        if argument.has_default and not (given and argument.name in _HARMLESS):
            if argument.kind == "str" or not was_none:
                self._note(f"the value of '{argument.name}' was not recorded: its default is taken")
            return self._checked(argument, argument.default)
        if argument.kind in ("float", "number", "bool") and argument.name in _HARMLESS:
            value = _HARMLESS[argument.name]
            self._note(f"the value of '{argument.name}' was not recorded: {value} is taken")
            return self._checked(argument, value)
        if argument.optional:
            return None
        why = "" if self._call.has_values else f": {NO_SCALARS}"
        raise NotReplayableError(f"the value of '{argument.name}' was not recorded{why}")

    def _checked(self, argument: Argument, value: Any) -> Any:
        """The value as the schema wants it."""
        kind = argument.kind
        if value is None:
            return None
        if kind in _NUMBERED:
            name = _NUMBERED[kind].get(value) if isinstance(value, int) else None
            if name is None:
                text = ascii(value)[:60]
                raise NotReplayableError(
                    f"'{argument.name}' is {text}, no {kind} that can be rebuilt"
                )
            return TorchName(name)
        element = _LIST_ELEMENTS.get(kind)
        if element is None:
            return _scalar(argument, kind, value)
        if isinstance(value, list | tuple):
            if len(value) > MAX_NUMBERS:
                raise NotReplayableError(
                    f"'{argument.name}' has {len(value)} numbers, more than the {MAX_NUMBERS} "
                    "that are taken"
                )
            return [_scalar(argument, element, inner) for inner in value]
        return [_scalar(argument, element, value)]


def _scalar(argument: Argument, kind: str, value: Any) -> Any:
    allowed = _SCALAR_TYPES[kind]
    if type(value) not in allowed or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
        text = ascii(value)[:60]
        raise NotReplayableError(f"the value of '{argument.name}' is {text}, not of kind {kind}")
    if kind == "str":
        check_text(argument, value)
    else:
        check_number(argument, value)
    return float(value) if kind == "float" else value


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape))
    )
