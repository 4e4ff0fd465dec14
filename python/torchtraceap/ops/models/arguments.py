"""Arguments of an operator, parsed from the lists that a trace records.

The profiler writes four lists per operator: `Input Dims` (shapes; for a list of tensors a list of
shapes), `Input type` (`float`, `c10::BFloat16`, `Scalar`, `ScalarList`, `TensorList`, or empty),
`Input Strides`, and `Concrete Inputs` (scalars as text: `"0.1"`, `"True"`, `"[1, 1]"`, `""`).
They come from a file, so they are parsed and never evaluated.

The order of arguments differs between libraries and between releases. A model names the position of
each argument and checks that the arguments fit together, so that an operator with another order has
no numbers rather than wrong ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from torchtraceap import _core
from torchtraceap.core.dtypes import FP32, INT16, DType, dtype_of_code, parse_dtype
from torchtraceap.core.records import dataclass

__all__ = [
    "Argument",
    "OpCall",
    "Tensor",
    "UnknownWorkError",
    "check_packed_output",
    "check_width",
    "group_scales",
    "lengths_of",
    "mxfp4_bytes",
    "optional_bytes",
    "promote",
]


_MOST_DIMS = 64
_LARGEST_SIZE = 2**62
_MOST_ARGUMENTS = 4096
_INTEGER = re.compile(r"[+-]?\d{1,19}")


class UnknownWorkError(Exception):
    """Raised if the work of a call is unknown; the message is the reason, as part of a sentence."""


_NOT_TENSORS = frozenset(
    ("", "scalar", "scalarlist", "genericlist", "tensorlist", "none", "string", "device", "layout")
)
# Types of scalars in old traces; the types of tensors are spelled in lowercase.
_OLD_SCALARS = frozenset(("Int", "Bool", "Double", "Float", "String", "Device", "IntList"))


def promote(types: Sequence[DType]) -> DType:
    """Return the result type of an operation on tensors of these types, by torch's rules."""
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
    """Shape, type and, if recorded, strides of one tensor."""

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Number of elements in memory; dimensions of stride 0 repeat them."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.elements
        if not self.elements:
            return 0
        return prod(n for n, stride in zip(self.shape, self.strides, strict=True) if stride != 0)

    @property
    def bytes(self) -> int:
        """Bytes in memory, the least that one pass over the tensor moves."""
        return self.stored * self.dtype.size


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call."""

    tensor: Tensor | None
    tensors: tuple[Tensor | tuple[int, ...], ...] | None
    """Members of a list of tensors; shapes where their type is not recorded."""
    is_none: bool
    """True if nothing was passed, or something that the profiler does not record."""
    text: str | None
    """Concrete value; None if the trace has none."""


def lengths_of(mark: _core.IterationMark) -> list[tuple[int, int, int, int]]:
    """Return what the name of an iteration says of its prompts and of its continued sequences:
    sums of queries, keys, squared queries, and queries times keys; empty where it has no lengths.
    """
    parts = []
    for group in (mark.prefill, mark.decode):
        sums = (group.tokens, group.cached_tokens, group.query_squares, group.query_keys)
        known = [number for number in sums if number is not None]
        if len(known) == len(sums):
            parts.append((known[0], known[1], known[2], known[3]))
        elif group.requests != 0 and (known or group.requests is not None):
            return []
    return parts


class OpCall:
    """One call of an operator as recorded in a trace.

    Args:
        name: Name of the operator.
        dims, types, strides, concrete: The four lists, parsed or as JSON text; None if absent.
        kernels: Names of the kernels that it launched; they reveal the type of lists of tensors.
        batch: Name of the enclosing range in which a serving engine describes its batch.
        allow_tf32: True if the program lets fp32 be computed as tf32, for operators whose
            arguments don't say it; None if that is not known.
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
        allow_tf32: bool | None = None,
    ) -> None:
        self.name = name
        self.allow_tf32 = allow_tf32
        self.kernels = tuple(kernels)
        self.batch = batch
        self._dims = _parse_list(dims)
        self._types = _parse_list(types)
        self._strides = _parse_list(strides)
        self._concrete = _parse_list(concrete)
        self._arguments: dict[int, Argument] = {}

    @property
    def in_place(self) -> bool:
        """True if the name ends in one underscore: the operator writes its first argument."""
        return self.name.endswith("_") and not self.name.endswith("__")

    @property
    def has_values(self) -> bool:
        """True if the trace has concrete inputs."""
        return self._concrete is not None

    def __len__(self) -> int:
        return len(self._types or ())

    def argument(self, position: int) -> Argument:
        """Return the argument at a position; beyond the end, one that was not passed.

        Raises:
            UnknownWorkError: The trace has no shapes, or they are invalid.
        """
        if position not in self._arguments:
            self._arguments[position] = self._read(position)
        return self._arguments[position]

    def tensor(self, position: int) -> Tensor:
        """Return the tensor at a position.

        Raises:
            UnknownWorkError: The argument is not a tensor of a known type.
        """
        found = self.argument(position).tensor
        if found is None:
            raise UnknownWorkError(f"argument {position} is no tensor of a known type")
        return found

    def optional_tensor(self, position: int) -> Tensor | None:
        return self.argument(position).tensor

    def is_none(self, position: int) -> bool:
        return self.argument(position).is_none

    def tensor_list(self, position: int) -> list[Tensor]:
        """Return the tensors of a list; if unrecorded, their type is that of the kernels.

        Raises:
            UnknownWorkError: The shapes or the type are not in the trace.
        """
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
        """Return the integer at a position.

        Raises:
            UnknownWorkError: The value is not in the trace and there is no default.
        """
        text = self._text(position)
        if text is not None and _INTEGER.fullmatch(text):
            return int(text)
        if default is None:
            raise UnknownWorkError(self._missing(position))
        return default

    def integers(self, position: int) -> tuple[int, ...]:
        """Return a list of integers; a single integer is a list of one.

        Raises:
            UnknownWorkError: The values are not in the trace.
        """
        text = (self._text(position) or "").strip()
        inner = text.strip("[]()").strip()
        items = [item.strip() for item in inner.split(",")] if inner else []
        if not all(map(_INTEGER.fullmatch, items)) or not (items or text.startswith("[")):
            raise UnknownWorkError(self._missing(position))
        return tuple(map(int, items))

    def boolean(self, position: int, default: bool | None = None) -> bool:
        """Return the truth value at a position.

        Raises:
            UnknownWorkError: The value is not in the trace and there is no default.
        """
        text = self._text(position)
        if text in ("True", "true", "1"):
            return True
        if text in ("False", "false", "0"):
            return False
        if default is None:
            raise UnknownWorkError(self._missing(position))
        return default

    def booleans(self, position: int) -> tuple[bool, ...]:
        """Return a list of truth values, such as the mask of the wanted gradients.

        Raises:
            UnknownWorkError: The values are not in the trace.
        """
        text = self._text(position) or ""
        items = [item.strip() for item in text.strip("[]() ").split(",")]
        if not text.startswith("[") or not set(items) <= {"True", "False", "true", "false"}:
            raise UnknownWorkError(self._missing(position))
        return tuple(item in ("True", "true") for item in items)

    def dtype_argument(self, position: int) -> DType | None:
        """Return a `dtype=` argument, which is recorded as a number; None if it was left out."""
        text = self._text(position)
        if not text or text == "None":
            return None
        number = int(text) if _INTEGER.fullmatch(text) else -1
        return dtype_of_code(number) or parse_dtype(text)

    def _text(self, position: int) -> str | None:
        return self.argument(position).text

    def _missing(self, position: int) -> str:
        """Return the reason why a value is unknown."""
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
        text = _item(self._concrete, position)
        value = text if isinstance(text, str) else None
        if position >= min(len(self._dims), len(self._types)):
            return Argument(None, None, is_none=True, text=value)
        kind, dims = self._types[position], self._dims[position]
        if isinstance(kind, list) or kind == "TensorList":
            return Argument(None, _parse_tensors(dims, kind), is_none=False, text=value)
        if not isinstance(kind, str):
            raise UnknownWorkError(f"the type of argument {position} is no text")
        if kind.lower() in _NOT_TENSORS or kind in _OLD_SCALARS:
            return Argument(None, None, is_none=kind == "", text=value)
        dtype = parse_dtype(kind)
        if dtype is None:
            return Argument(None, None, is_none=False, text=value)
        tensor = Tensor(_parse_shape(dims), dtype, _parse_strides(_item(self._strides, position)))
        return Argument(tensor, None, is_none=False, text=value)


_DECODER = json.JSONDecoder(strict=False)


@lru_cache(maxsize=1 << 14)
def _decode(text: str) -> Any:
    """Decode JSON, cached because types, strides and values repeat; None if it is invalid."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _parse_list(value: Any) -> Sequence[Any] | None:
    if isinstance(value, str):
        value = _decode(value)
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_ARGUMENTS:
        return None
    return value


def _item(values: Sequence[Any] | None, position: int) -> Any:
    return values[position] if values is not None and position < len(values) else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_SIZE


def _parse_shape(dims: Any) -> tuple[int, ...]:
    if not isinstance(dims, (list, tuple)) or len(dims) > _MOST_DIMS:
        raise UnknownWorkError("a shape is no list of sizes")
    if not all(map(_is_size, dims)):
        raise UnknownWorkError("a shape is no list of sizes")
    return tuple(dims)


def _parse_strides(values: Any) -> tuple[int, ...] | None:
    if not isinstance(values, (list, tuple)) or len(values) > _MOST_DIMS:
        return None
    return tuple(values) if all(map(_is_size, values)) else None


def _parse_tensors(dims: Any, kind: Any) -> tuple[Tensor | tuple[int, ...], ...] | None:
    """Parse a list of tensors; None if it is unknown, as in old traces, which write `[]`."""
    if not isinstance(dims, (list, tuple)) or not dims:
        return None
    if not all(isinstance(item, (list, tuple)) for item in dims):
        return None
    shapes = [_parse_shape(item) for item in dims]
    if isinstance(kind, list) and len(kind) == len(shapes):
        types = [parse_dtype(item) if isinstance(item, str) else None for item in kind]
        return tuple(
            shape if dtype is None else Tensor(shape, dtype)
            for shape, dtype in zip(shapes, types, strict=True)
        )
    return tuple(shapes)


_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_ELEMENT = re.compile(
    r"[<, ](float|double|c10::Half|c10::BFloat16|__half|__nv_bfloat16|__hip_bfloat16|long|int|"
    r"bool|unsigned char|signed char|c10::Float8_e4m3fn|c10::Float8_e5m2)\b(?=[,>])"
)
_BY_SIZE = {1: "int8", 2: "bfloat16", 4: "float32", 8: "float64", 16: "complex128"}


def _kernel_dtype(kernel: str) -> DType | None:
    """Return the element type among a kernel's template arguments; None if they name none."""
    opaque = _OPAQUE.search(kernel)
    if opaque:
        name = _BY_SIZE.get(int(opaque.group(1)))
        return None if name is None else parse_dtype(name)
    found = _ELEMENT.search(kernel)
    return parse_dtype(found.group(1)) if found else None


MX_GROUP = 32
"""Number of elements that share a one-byte scale in the MX formats of the Open Compute Project."""
_BYTES_LIKE = ("uint8", "int8", "fp4")


def optional_bytes(call: OpCall, positions: Sequence[int]) -> int:
    """Return the bytes of the tensors at these positions; 0 for those that were not passed."""
    found = (call.optional_tensor(position) for position in positions)
    return sum(tensor.bytes for tensor in found if tensor is not None)


def check_width(x: Tensor, weight: Tensor) -> None:
    """Check that a weight holds one value for each element of a row.

    Raises:
        UnknownWorkError: It does not.
    """
    if not x.shape or weight.elements != x.shape[-1]:
        raise UnknownWorkError("its weight does not fit the rows of its input")


def group_scales(x: Tensor, group: int) -> int:
    """Return the number of scales of a tensor, one for each `group` elements of a row.

    Raises:
        UnknownWorkError: The tensor has no rows, or the group has no elements.
    """
    if not x.shape or group < 1:
        raise UnknownWorkError("the groups that share a scale are not known")
    return prod(x.shape[:-1]) * -(-x.shape[-1] // group)


def check_packed_output(x: Tensor, out: Tensor) -> None:
    """Check that `out` holds the elements of `x`, one or two in a byte.

    Raises:
        UnknownWorkError: It does not.
    """
    holds = 2 * out.elements if out.dtype.label in _BYTES_LIKE else out.elements
    if x.elements not in (out.elements, holds):
        raise UnknownWorkError("its output does not fit its input")


def mxfp4_bytes(x: Tensor) -> float:
    """Return the bytes of a tensor in mxfp4: 4 bits per element and a byte per `MX_GROUP`."""
    return x.elements / 2 + group_scales(x, MX_GROUP)
