"""Shared parts of kernel rules: launches, the device, and type names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torchtraceap.core import DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo, Value
from torchtraceap.lab.prediction.lowering.step import LaunchingOp, Libraries, WorkKind
from torchtraceap.ops import Device

__all__ = [
    "Grid",
    "Launch",
    "Rule",
    "Setting",
    "UnknownArgumentError",
    "as_number",
    "bool_at",
    "bytes_of",
    "ceil_div",
    "cpp_name",
    "first_output",
    "memcpy",
    "memcpy_to_host",
    "memset",
    "next_power",
    "number_at",
    "opmath_name",
    "required",
    "rule",
    "tensor_at",
]


Grid: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, copy or memset before its duration is known."""

    name: str
    grid: int | Grid = 1
    """Blocks; a number alone is that along x."""
    block: int | Grid = 128
    """Threads, likewise."""
    moved: float | None = None
    """Bytes read and written by a helper kernel; None for the main work of the operator."""
    registers: int = 32
    shared_memory: int = 0
    kind: WorkKind = WorkKind.KERNEL
    bytes: int = 0
    """Size of a copy or memset."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The device and the build of torch that run operators."""

    device: Device
    libraries: Libraries

    @property
    def is_amd(self) -> bool:
        return self.device.vendor == "amd"

    @property
    def generation(self) -> int:
        """Major compute capability: 9 for an H100."""
        major = self.device.architecture.partition(".")[0]
        return int(major) if major.isdecimal() else 0

    @property
    def processors(self) -> int:
        """Multiprocessors or compute units; those of an A100 if unknown."""
        return self.device.multiprocessors or 108

    @property
    def warp(self) -> int:
        return 64 if self.is_amd else 32

    def torch_from(self, major: int, minor: int) -> bool:
        """Return whether torch has that version or a newer one."""
        return self.libraries.torch >= (major, minor)


Rule: TypeAlias = Callable[[LaunchingOp, Setting], Sequence[Launch]]
"""Returns the launches of an operator, or raises `UnknownArgumentError`."""


_Rule = TypeVar("_Rule", bound=Callable[..., Any])


class UnknownArgumentError(LookupError):
    """Raised by rules for operators whose arguments don't tell what they launch."""


def rule(rules: dict[str, _Rule], names: str | Iterable[str]) -> Callable[[_Rule], _Rule]:
    """Return a decorator that adds a rule to a table under the names of its operators.

    A text lists names separated by spaces; all are without "aten::".
    """

    def add(function: _Rule) -> _Rule:
        listed = names.split() if isinstance(names, str) else names
        rules.update(dict.fromkeys(listed, function))
        return function

    return add


_CPP_NAMES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "complex32": "c10::complex<c10::Half>",
}


def cpp_name(dtype: DType) -> str:
    """Return the type name in demangled kernel names."""
    return _CPP_NAMES.get(dtype.name, dtype.name)


def opmath_name(dtype: DType) -> str:
    """Return the type in which ATen's kernels compute (`at::opmath_type`)."""
    return "float" if dtype.name in ("float16", "bfloat16") else cpp_name(dtype)


def tensor_at(op: LaunchingOp, place: int) -> TensorInfo | None:
    """Return an input if it is a tensor, else None."""
    value = op.value(place)
    return value if isinstance(value, TensorInfo) else None


def required(op: LaunchingOp, place: int, *, dims: int = 0) -> TensorInfo:
    """Return an input that has to be a tensor of at least so many dimensions.

    Raises:
        UnknownArgumentError: It is not.
    """
    tensor = tensor_at(op, place)
    if tensor is None or len(tensor.shape) < dims:
        raise UnknownArgumentError
    return tensor


def as_number(value: Value, default: float) -> float:
    """Return a plain number, or the default."""
    return float(value) if isinstance(value, (bool, int, float)) else default


def number_at(op: LaunchingOp, place: int, default: float) -> float:
    """Return an input if it is a number, else the default."""
    return as_number(op.value(place), default)


def bool_at(op: LaunchingOp, place: int, *, default: bool = False) -> bool:
    """Return an input if it is a boolean, else the default."""
    value = op.value(place)
    return value if isinstance(value, bool) else default


def first_output(op: LaunchingOp) -> TensorInfo | None:
    """Return the first output if it is a tensor, else None."""
    first = op.outputs[0] if op.outputs else None
    return first if isinstance(first, TensorInfo) else None


def bytes_of(*tensors: TensorInfo | None) -> float:
    """Return the size of all elements."""
    return float(sum(t.elements * t.dtype.size for t in tensors if t is not None))


def ceil_div(count: int, size: int) -> int:
    """Return the number of blocks that hold a count, at least one."""
    return max(1, -(-count // max(1, size)))


def next_power(count: int) -> int:
    """Return the lowest power of 2 that is not below a count."""
    return 1 << max(0, count - 1).bit_length()


def memset(size: int) -> Launch:
    """Return a memset of so many bytes."""
    return Launch("Memset (Device)", moved=size, kind=WorkKind.MEMSET, bytes=size)


def memcpy(size: int) -> Launch:
    """Return a copy of so many bytes within the device."""
    name = "Memcpy DtoD (Device -> Device)"
    return Launch(name, moved=2.0 * size, kind=WorkKind.MEMCPY, bytes=size)


def memcpy_to_host(size: int) -> Launch:
    """Return a copy of so many bytes to the host, which waits for it."""
    name = "Memcpy DtoH (Device -> Pageable)"
    return Launch(name, moved=float(size), kind=WorkKind.MEMCPY, bytes=size)
