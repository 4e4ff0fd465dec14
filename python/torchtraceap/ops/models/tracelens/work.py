"""What a performance model gets and gives, and how it reads the texts of a trace."""

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
"""What a model raises on arguments that it cannot read; their report leaves such a call out."""


class UnmodeledError(Exception):
    """The operator has no such model; their unified table drops the call and its time."""


class ModelAbsentError(UnmodeledError):
    """The model says before it runs that it cannot: theirs treats the call as one without."""


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a call as parsed JSON; None where the trace lacks them."""

    name: str
    dims: Any
    types: Any
    strides: Any
    concrete: Any
    transpose: tuple[bool | None, bool | None] | None = None
    """Which operands of a product its kernel reads transposed, if the kernel's name says so."""


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes of one call, with the parameters that theirs prints."""

    params: dict[str, Any]
    flops: float
    bytes: float | None
    """None where a dtype is unknown."""
    spec: str
    """Unit and precision such as "matrix_bf16"; empty if unknown."""
    backward: Callable[[], tuple[float, float | None]] | None = None
    """FLOPs and bytes of the backward pass, if the forward operator has a model of it."""


Model = Callable[[Call], Work]

# Those that their table of sizes has.
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
    """Bytes of an element; None for dtypes that their table lacks, such as bool and short."""
    return _BYTES_OF.get(dtype.lower())


def precision_of(unit: str, dtype: str | None) -> str:
    """Their "Compute Spec"; empty for dtypes without one."""
    precision = _PRECISIONS.get(dtype.lower()) if dtype else None
    return f"{unit}_{precision}" if precision else ""


def tuple_pair(values: Any, first: int, second: int) -> tuple[Any, Any]:
    """Two entries as tuples; None and None where the trace lacks the key."""
    if values is None:
        return None, None
    return tuple(values[first]), tuple(values[second])


def parse_ints(text: str) -> tuple[int, ...]:
    """`[1, 2]` as the integers; never evaluated."""
    inner = text.strip()[1:-1].strip()
    return tuple(int(part) for part in inner.split(",")) if inner else ()


def parse_bools(text: str) -> list[bool]:
    """`[True, False]` as booleans; never evaluated."""
    return [parse_bool(part.strip()) for part in text.strip()[1:-1].split(",")]


def parse_bool(text: str) -> bool:
    """`True` or `False`.

    Raises:
        ValueError: Anything else.
    """
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"
