"""What a trace says about the arguments of an operator, read from its texts.

The profiler writes four lists per operator: `Input Dims` (shapes; of a list of tensors a list of
shapes), `Input type` (`float`, `c10::BFloat16`, `Scalar`, `ScalarList`, `TensorList`, or empty),
`Input Strides`, and `Concrete Inputs` (scalars as text: `"0.1"`, `"True"`, `"[1, 1]"`, `""`).
They are data from a file: they are parsed, never evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from torchtraceap.core.dtypes import FP32, INT16, DType, dtype_of_code, parse_dtype
from torchtraceap.core.records import dataclass

__all__ = ["Argument", "OpCall", "Tensor", "UnknownWorkError", "promote"]

_MOST_DIMS = 64
_LARGEST_SIZE = 2**62
_MOST_ARGUMENTS = 4096
_INTEGER = re.compile(r"[+-]?\d{1,19}")


class UnknownWorkError(Exception):
    """The work of a call cannot be known; the message says why, as part of a sentence."""


_NOT_TENSORS = frozenset(
    ("", "scalar", "scalarlist", "genericlist", "tensorlist", "none", "string", "device", "layout")
)
# Scalars of old traces; tensors of these types are spelled in small letters.
_OLD_SCALARS = frozenset(("Int", "Bool", "Double", "Float", "String", "Device", "IntList"))


def promote(types: Sequence[DType]) -> DType:
    """The type of the result of an operation on tensors of these types (torch's rules)."""
    highest = max(dtype.rank for dtype in types)
    candidates = [dtype for dtype in types if dtype.rank == highest]
    labels = {dtype.label for dtype in candidates}
    if {"fp16", "bf16"} <= labels:
        candidates = [*candidates, FP32]
    if labels == {"int8", "uint8"}:
        return INT16
    return max(candidates, key=lambda dtype: dtype.size)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape, type and, where recorded, strides of one tensor."""

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Elements in memory: dimensions of stride 0 are repeated, not stored."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.elements
        if not self.elements:
            return 0
        return prod(n for n, stride in zip(self.shape, self.strides, strict=True) if stride != 0)

    @property
    def bytes(self) -> int:
        """Of what is stored; what one pass over the tensor must move at least."""
        return self.stored * self.dtype.size


@dataclass(frozen=True, slots=True)
class Argument:
    """One position of a call."""

    tensor: Tensor | None
    tensors: tuple[Tensor | tuple[int, ...], ...] | None
    """Of a list: tensors, or shapes where their type is not recorded."""
    is_none: bool
    """Nothing was passed, or something that the profiler does not record."""
    text: str | None
    """The concrete value; None where the trace has none."""


class OpCall:
    """One call of an operator, as far as the trace knows it.

    Args:
        name: Of the operator.
        dims, types, strides, concrete: The four lists, parsed or as JSON text; None where absent.
        kernels: Names of the kernels that it launched; they tell the type of lists of tensors.
        batch: Name of the range around it in which a serving engine says what it works on.
    """

    def __init__(
        self,
        name: str,
        dims: Any = None,
        types: Any = None,
        strides: Any = None,
        concrete: Any = None,
        kernels: Sequence[str] = (),
        batch: str | None = None,
    ) -> None:
        self.name = name
        self.kernels = tuple(kernels)
        self.batch = batch
        self._dims = _parsed_list(dims)
        self._types = _parsed_list(types)
        self._strides = _parsed_list(strides)
        self._concrete = _parsed_list(concrete)
        self._arguments: dict[int, Argument] = {}

    @property
    def in_place(self) -> bool:
        """Its name ends in one underscore, as those that write their first argument do."""
        return self.name.endswith("_") and not self.name.endswith("__")

    @property
    def has_values(self) -> bool:
        """The trace has concrete inputs."""
        return self._concrete is not None

    def __len__(self) -> int:
        return len(self._types or ())

    def argument(self, position: int) -> Argument:
        """What stands at a position; beyond the end nothing does.

        Raises:
            UnknownWorkError: The trace has no shapes, or they make no sense.
        """
        if position not in self._arguments:
            self._arguments[position] = self._read(position)
        return self._arguments[position]

    def tensor(self, position: int) -> Tensor:
        """Raises UnknownWorkError if no tensor of a known type stands there."""
        found = self.argument(position).tensor
        if found is None:
            raise UnknownWorkError(f"argument {position} is no tensor of a known type")
        return found

    def optional_tensor(self, position: int) -> Tensor | None:
        return self.argument(position).tensor

    def is_none(self, position: int) -> bool:
        return self.argument(position).is_none

    def tensor_list(self, position: int) -> list[Tensor]:
        """The tensors of a list; their type is that of the kernels where it is not recorded."""
        found = self.argument(position).tensors
        if found is None:
            raise UnknownWorkError(
                f"the shapes of the list at argument {position} are not in the trace"
            )
        return [
            item if isinstance(item, Tensor) else Tensor(item, self._kernel_dtype())
            for item in found
        ]

    def integer(self, position: int, default: int | None = None) -> int:
        """Raises UnknownWorkError if the value is not in the trace and there is no default."""
        text = self._text(position)
        if text is not None and _INTEGER.fullmatch(text):
            return int(text)
        if default is None:
            raise UnknownWorkError(self._missing(position))
        return default

    def integers(self, position: int) -> tuple[int, ...]:
        """A list of integers, or one as a list of one."""
        text = self._text(position)
        values = None if text is None else _integers(text)
        if values is None:
            raise UnknownWorkError(self._missing(position))
        return values

    def boolean(self, position: int, default: bool | None = None) -> bool:
        text = self._text(position)
        if text in ("True", "true", "1"):
            return True
        if text in ("False", "false", "0"):
            return False
        if default is None:
            raise UnknownWorkError(self._missing(position))
        return default

    def booleans(self, position: int) -> tuple[bool, ...]:
        """A list such as the mask of the gradients that are wanted."""
        text = self._text(position) or ""
        items = [item.strip() for item in text.strip("[]() ").split(",")]
        if not text.startswith("[") or not set(items) <= {"True", "False", "true", "false"}:
            raise UnknownWorkError(self._missing(position))
        return tuple(item in ("True", "true") for item in items)

    def dtype_argument(self, position: int) -> DType | None:
        """A `dtype=` that was given as the number of a type; None if it was left out."""
        text = self._text(position)
        if not text or text == "None":
            return None
        number = int(text) if _INTEGER.fullmatch(text) else -1
        return dtype_of_code(number) or parse_dtype(text)

    def _text(self, position: int) -> str | None:
        return self.argument(position).text

    def _missing(self, position: int) -> str:
        if not self.has_values:
            return "the trace has no values of scalars (`Concrete Inputs`)"
        return f"the value of argument {position} is not in the trace"

    def _kernel_dtype(self) -> DType:
        found = {dtype for name in self.kernels if (dtype := _kernel_dtype(name)) is not None}
        if len(found) != 1:
            raise UnknownWorkError("the type of the tensors in a list is not in the trace")
        return found.pop()

    def _read(self, position: int) -> Argument:
        if self._dims is None or self._types is None:
            raise UnknownWorkError("the trace has no shapes (`record_shapes=True` records them)")
        text = _at(self._concrete, position)
        value = text if isinstance(text, str) else None
        if position >= min(len(self._dims), len(self._types)):
            return Argument(None, None, is_none=True, text=value)
        kind, dims = self._types[position], self._dims[position]
        if isinstance(kind, list) or kind == "TensorList":
            return Argument(None, _tensor_list(dims, kind), is_none=False, text=value)
        if not isinstance(kind, str):
            raise UnknownWorkError(f"the type of argument {position} is no text")
        if kind.lower() in _NOT_TENSORS or kind in _OLD_SCALARS:
            return Argument(None, None, is_none=kind == "", text=value)
        dtype = parse_dtype(kind)
        if dtype is None:
            return Argument(None, None, is_none=False, text=value)
        tensor = Tensor(_shape(dims), dtype, _strides(_at(self._strides, position)))
        return Argument(tensor, None, is_none=False, text=value)


_DECODER = json.JSONDecoder(strict=False)


@lru_cache(maxsize=1 << 14)
def _decoded(text: str) -> Any:
    """The same types, strides and values come again and again."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _parsed_list(value: Any) -> Sequence[Any] | None:
    if isinstance(value, str):
        value = _decoded(value)
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_ARGUMENTS:
        return None
    return value


def _at(values: Sequence[Any] | None, position: int) -> Any:
    return values[position] if values is not None and position < len(values) else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_SIZE


def _shape(dims: Any) -> tuple[int, ...]:
    if not isinstance(dims, (list, tuple)) or len(dims) > _MOST_DIMS:
        raise UnknownWorkError("a shape is no list of sizes")
    if not all(map(_is_size, dims)):
        raise UnknownWorkError("a shape is no list of sizes")
    return tuple(dims)


def _strides(values: Any) -> tuple[int, ...] | None:
    if not isinstance(values, (list, tuple)) or len(values) > _MOST_DIMS:
        return None
    return tuple(values) if all(map(_is_size, values)) else None


def _tensor_list(dims: Any, kind: Any) -> tuple[Tensor | tuple[int, ...], ...] | None:
    """Old traces write `[]` for a list of any length: nothing is known then."""
    if not isinstance(dims, (list, tuple)) or not dims:
        return None
    if not all(isinstance(item, (list, tuple)) for item in dims):
        return None
    shapes = [_shape(item) for item in dims]
    if isinstance(kind, list) and len(kind) == len(shapes):
        types = [parse_dtype(item) if isinstance(item, str) else None for item in kind]
        return tuple(
            shape if dtype is None else Tensor(shape, dtype)
            for shape, dtype in zip(shapes, types, strict=True)
        )
    return tuple(shapes)


def _integers(text: str) -> tuple[int, ...] | None:
    inner = text.strip().strip("[]()").strip()
    items = [item.strip() for item in inner.split(",")] if inner else []
    if not all(_INTEGER.fullmatch(item) for item in items):
        return None
    if not items and not text.strip().startswith("["):
        return None
    return tuple(int(item) for item in items)


_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_ELEMENT = re.compile(
    r"[<, ](float|double|c10::Half|c10::BFloat16|__half|__nv_bfloat16|__hip_bfloat16|long|int|"
    r"bool|unsigned char|signed char|c10::Float8_e4m3fn|c10::Float8_e5m2)\b(?=[,>])"
)
_BY_SIZE = {1: "int8", 2: "bfloat16", 4: "float32", 8: "float64", 16: "complex128"}


def _kernel_dtype(kernel: str) -> DType | None:
    """The element type among a kernel's template arguments; None if they name none."""
    opaque = _OPAQUE.search(kernel)
    if opaque:
        name = _BY_SIZE.get(int(opaque.group(1)))
        return None if name is None else parse_dtype(name)
    found = _ELEMENT.search(kernel)
    return parse_dtype(found.group(1)) if found else None
