"""Rebuild the arguments of a call: how each tensor is made, and which values go with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchtraceap.compat.replay import fills
from torchtraceap.compat.replay.allowed import check_name, check_number, check_operator, check_text
from torchtraceap.compat.replay.call import (
    MAX_BYTES,
    MAX_NUMBERS,
    MAX_TENSORS,
    NO_SCALARS,
    TOO_LARGE,
    NotReplayableError,
    RecordedCall,
    copy_ends,
)
from torchtraceap.compat.replay.plan import DEVICE, HOST, CallPlan, Make, TorchName, check_fits
from torchtraceap.compat.replay.schema import Argument, Operator, match_operator

__all__ = ["plan_call"]


def plan_call(call: RecordedCall, *, without_values: bool = False) -> CallPlan:
    """Match the overload and rebuild the arguments.

    Args:
        call: The recorded call.
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
    "dtype": fills.DTYPE_NUMBERS,
    "layout": fills.LAYOUT_NUMBERS,
    "memory_format": fills.MEMORY_FORMAT_NUMBERS,
}


class _Planner:
    """One call on its way from the recorded texts to a plan."""

    def __init__(self, operator: Operator, call: RecordedCall) -> None:
        self._operator, self._call = operator, call
        self._notes: dict[str, None] = {}
        self._bytes = 0
        self._ends = copy_ends(call) if operator.name in _COPIES else None
        recorded = zip(operator.arguments, call.types, call.dims, call.values, strict=False)
        self._known = {
            argument.name: dims if argument.kind in ("tensor", "tensors") else value
            for argument, _, dims, value in recorded
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

    def _node(self, argument: Argument, place: int) -> Any:
        kind, recorded = argument.kind, bool(self._call.types[place])
        if kind == "tensor":
            if recorded:
                return self._tensor(argument, place)
            if not argument.optional:
                self._note(f"'{argument.name}' was an undefined tensor")
            return None
        if kind in ("tensors", "optional_tensors"):
            if recorded:
                return self._tensors(argument, place)
            if argument.optional:
                return None
            raise NotReplayableError(
                f"the tensors in '{argument.name}' were not recorded: the profiler leaves lists of "
                "optional tensors out, as the indices of x[i, j]"
            )
        if kind == "device":
            if self._ends and self._operator.name != "copy_":
                return DEVICE if self._ends[1] == "device" else HOST
            takes_tensors = any(isinstance(value, tuple) for value in self._known.values())
            return None if argument.optional and takes_tensors else DEVICE
        return None if kind == "generator" else self._plain(argument, place)

    # -- tensors

    def _tensor(self, argument: Argument, place: int) -> Make:
        call, operator = self._call, self._operator
        text, shape = call.types[place], call.dims[place]
        dtype = fills.dtype_of_cpp_name(text)
        if dtype is None:
            raise NotReplayableError(f"'{argument.name}' has elements of type {ascii(text)[:60]}")
        strides = None if call.strides is None else call.strides[place]
        home = "device"
        if self._ends:
            home = self._ends[1 if argument.written and operator.name == "copy_" else 0]
        elif shape == () and dtype in _HOST_SCALARS and not argument.written:
            # A number beside a larger tensor lives on the host.
            beside = any(
                other.kind == "tensor" and self._known.get(other.name)
                for other in operator.arguments
            )
            home = "cpu" if beside and argument is not operator.arguments[0] else "device"
        return self._make(argument.name, shape, strides, dtype, home)

    def _tensors(self, argument: Argument, place: int) -> list[Make]:
        call, name = self._call, argument.name
        shapes = call.dims[place]
        if not shapes:
            # An empty list is believed only beside one that is not: long ones are written empty.
            kinds = ("tensors", "optional_tensors")
            lists = [a.name for a in self._operator.arguments if a.kind in kinds]
            if not any(self._known.get(each) for each in lists):
                raise NotReplayableError(
                    f"the tensors in '{name}' were not recorded: PyTorch writes no shapes of "
                    "lists with more than 30 tensors, and older versions of none"
                )
            return []
        if not all(isinstance(shape, tuple) for shape in shapes):
            raise NotReplayableError(f"the shapes in '{name}' are not those of a list")
        if len(shapes) > MAX_TENSORS:
            raise NotReplayableError(
                f"'{name}' has {len(shapes)} tensors, more than the {MAX_TENSORS} that are made"
            )
        strides: Sequence[Any] = [None] * len(shapes)
        if call.strides is not None and len(call.strides[place]) == len(shapes):
            strides = call.strides[place]
        return [
            self._make(name, shape, stride, self._list_dtype(name, shape), "device")
            for shape, stride in zip(shapes, strides, strict=True)
        ]

    def _list_dtype(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the type of a tensor of a list, which is not recorded, after operators below,
        kernels or other arguments."""
        if name == "state_steps":
            return "float32"
        for below, text in self._call.tensors_below:
            if below == shape and (dtype := fills.dtype_of_cpp_name(text)):
                return dtype
        for kernel in self._call.gpu_names:
            if dtype := fills.dtype_in_kernel_name(kernel):
                self._note(f"types in lists are not recorded: {dtype} after the kernel's name")
                return dtype
        known = (fills.dtype_of_cpp_name(text) for text in self._call.types)
        dtype = next((found for found in known if found), "float32")
        self._note(f"types in lists are not recorded: {dtype} is assumed")
        return dtype

    def _make(self, name: str, shape: Any, strides: Any, dtype: str, place: str) -> Make:
        if not all(isinstance(size, int) for size in shape):
            raise NotReplayableError(f"'{name}' has a list of shapes where a tensor belongs")
        if strides is None or len(strides) != len(shape):  # contiguous
            sizes = [max(size, 1) for size in shape]
            strides = tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(shape)))
        elements = 0
        if 0 not in shape:
            elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        self._bytes += elements * fills.ELEMENT_BYTES[dtype]
        repeated = math.prod(shape) * fills.ELEMENT_BYTES[dtype]  # strides of 0 take no storage
        if max(self._bytes, repeated) > MAX_BYTES:
            raise NotReplayableError(
                f"'{name}' of shape {list(shape)} is too large to be real: {TOO_LARGE}"
            )
        operator = self._operator
        fill = fills.fill_for(operator.base_name, name, shape, dtype, self._known)
        if fill is None:
            if dtype == "bool":
                fill = "booleans", ()
            elif not dtype.startswith(("int", "uint")):
                fill = "normal", ()
            elif operator.namespace == "aten":
                fill = "integers", (1, 8)
            else:
                self._note(f"the integers in '{name}' are unknown: zeros")
                fill = "filled", (0,)
        target = DEVICE if place == "device" else HOST
        return Make(*fill, tuple(shape), tuple(strides), dtype, target, place == "pinned")

    # -- other values

    def _plain(self, argument: Argument, place: int) -> Any:
        call, value = self._call, self._call.values[place]
        if place < len(call.unread) and call.unread[place] is not None:
            text = ascii(call.unread[place])[:80]
            raise NotReplayableError(f"the value of '{argument.name}' is no literal: {text}")
        if value is not None:
            return self._checked(argument, value)
        was_none = not call.types[place]
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
        why = "" if call.has_values else f": {NO_SCALARS}"
        raise NotReplayableError(f"the value of '{argument.name}' was not recorded{why}")

    def _checked(self, argument: Argument, value: Any) -> Any:
        """Return the value as the schema wants it."""
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
