"""Input and output of TraceLens's performance models, and parsers of the texts of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.core.records import dataclass

__all__ = [
    "FAILURES",
    "Call",
    "Model",
    "ModelAbsentError",
    "UnmodeledError",
    "Work",
    "bytes_of",
    "parse_bool",
    "parse_bools",
    "parse_ints",
    "precision_of",
    "tuple_pair",
]

FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""Exceptions of a model that cannot read its arguments; TraceLens's report omits such a call."""


class UnmodeledError(Exception):
    """Raised if the operator has no model; the unified table drops the call and its time."""


class ModelAbsentError(UnmodeledError):
    """Raised if a model lacks the arguments it needs; the call counts as one without a model."""


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a call as parsed JSON; None if the trace lacks them."""

    name: str
    dims: Any
    types: Any
    strides: Any
    concrete: Any
    transpose: tuple[bool | None, bool | None] | None = None
    """Transposition of the operands of a product, if the kernel's name reveals it."""
    batch: str | None = None
    """Name of the range around the call in which an engine says what it works on."""


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes of one call, with the parameters that TraceLens prints."""

    params: dict[str, Any]
    flops: float
    bytes: float | None
    """Bytes read and written; None if a dtype is unknown."""
    spec: str
    """Unit and precision such as "matrix_bf16"; empty if unknown."""
    backward: Callable[[], tuple[float, float | None]] | None = None
    """Function that returns FLOPs and bytes of the backward pass, if they are modeled."""


Model = Callable[[Call], Work]

# Dtypes in TraceLens's table of sizes.
_SIZED = (
    "double",
    "long int",
    "float",
    "int",
    "c10::half",
    "c10::bfloat16",
    "c10::float8_e4m3fnuz",
    "c10::float8_e4m3fn",
    "c10::float8_e5m2",
    "c10::float8_e8m0fnu",
    "c10::float4_e2m1fn_x2",
    "unsigned char",
    "signed char",
    "fp8",
    "fp4",
)
_BYTES_OF = {name: dtype.size for name in _SIZED if (dtype := parse_dtype(name))} | {"scalar": 4}
_PRECISIONS = {
    "float": "fp32",
    "double": "fp64",
    "c10::half": "fp16",
    "c10::bfloat16": "bf16",
    "c10::float8_e4m3fnuz": "fp8",
    "c10::float8_e4m3fn": "fp8",
    "c10::float8_e5m2": "fp8",
    "unsigned char": "fp8",
    "signed char": "int8",
    "fp8": "fp8",
}


def bytes_of(dtype: str) -> int | None:
    """Return the bytes of an element; None for dtypes without a size, such as bool and short."""
    return _BYTES_OF.get(dtype.lower())


def precision_of(unit: str, dtype: str | None) -> str:
    """Return TraceLens's "Compute Spec"; empty for dtypes without one."""
    precision = _PRECISIONS.get(dtype.lower()) if dtype else None
    return f"{unit}_{precision}" if precision else ""


def tuple_pair(values: Any, first: int, second: int) -> tuple[Any, Any]:
    """Return two entries as tuples; None and None if the trace lacks the key."""
    if values is None:
        return None, None
    return tuple(values[first]), tuple(values[second])


def parse_ints(text: str) -> tuple[int, ...]:
    """Parse integers such as `[1, 2]`."""
    inner = text.strip()[1:-1].strip()
    return tuple(int(part) for part in inner.split(",")) if inner else ()


def parse_bools(text: str) -> list[bool]:
    """Parse booleans such as `[True, False]`."""
    return [parse_bool(part.strip()) for part in text.strip()[1:-1].split(",")]


def parse_bool(text: str) -> bool:
    """Parse `True` or `False`.

    Raises:
        ValueError: The text is anything else.
    """
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"
