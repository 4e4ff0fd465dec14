"""Check the sizes that a user passes to duration models and parse the names of types and work.

Sizes are checked once, here, so that no model has to handle NaN. Types and names are accepted in
any of the spellings of PyTorch, NCCL and CUPTI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.errors import OptionError
from torchtraceap.ops.durations.estimate import UnknownDurationError

__all__ = [
    "Many",
    "Numbers",
    "checked_sizes",
    "collective_kernel",
    "collective_named",
    "copy_named",
    "dtype_label",
]

FloatArray = npt.NDArray[np.float64]
Numbers = float | npt.ArrayLike
"""A number, or an array of them."""
Many = Sequence[float] | npt.NDArray[Any]

# More elements, rows or bytes than a job on any machine has.
_MOST = 1e15

# ncclDevKernel_AllReduce_Sum_bf16_RING_LL, ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem),
# ncclDevKernel_SendRecv: the kind comes first, the type somewhere behind it.
_NCCL_KERNEL = re.compile(r"\b[nr]ccl(?:Dev)?Kernel_([A-Za-z]+)((?:_\w+)?)")
_NCCL_TYPES = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "i8": "int8", "u8": "uint8",
               "i32": "int32", "u32": "int32", "i64": "int64", "u64": "int64",
               "f8e4m3": "fp8", "f8e5m2": "fp8"}  # fmt: skip
# Longest first: "signed char" never stands in a kernel's name, "__nv_bfloat16" does.
_NCCL_TYPE = re.compile(
    r"_(f8e4m3|f8e5m2|bf16|f16|f32|f64|[iu](?:8|32|64)|__nv_bfloat16|__nv_fp8_e[45]m[23]|"
    r"u?int(?:8|32|64)_t|half|float|double)(?=_|$)"
)
_NCCL_NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
               "int32": "u32", "int64": "u64"}  # fmt: skip
_REDUCTIONS = {"all_reduce": "AllReduce", "reduce": "Reduce", "reduce_scatter": "ReduceScatter"}
_MOVES = {"all_gather": "AllGather_RING_LL", "broadcast": "Broadcast_RING_LL"}
_NAMESPACE = re.compile(r"^(?:\w+::|nccl:)+")
_COPY_KERNEL = re.compile(r"^\s*mem(?:cpy|copy)?\s*([a-z]+)\s*(?:\((\w+) *-> *(\w+)\))?", re.I)


def dtype_label(dtype: object) -> str:
    """Return the label of a type: "bf16", "fp32", "tf32", "fp8", "int64", ...

    Args:
        dtype: A label, a `torch.dtype`, its name, or a spelling of C++ ("c10::BFloat16", "float",
            "__nv_bfloat16").

    Raises:
        UnknownDurationError: No type has that name.
    """
    name = str(dtype).strip()
    if name.lower().removeprefix("torch.") in ("tf32", "tensorfloat32"):
        return "tf32"
    found = parse_dtype(name)
    if found is None:
        raise UnknownDurationError(f"no type is called {name!r}")
    return found.label


def collective_named(name: str) -> tuple[str, str]:
    """Return the name of a collective and the type in its name, "" if there is none.

    Args:
        name: "all_reduce", "c10d::allreduce_", "nccl:_all_gather_base", or the name of a kernel
            such as "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)".
    """
    kernel = _NCCL_KERNEL.search(name)
    if kernel is None:
        return _NAMESPACE.sub("", name.strip()), ""
    said = _NCCL_TYPE.search(kernel[2])
    if said is None:
        return kernel[1], ""
    plain = said[1].removesuffix("_t") if said[1].endswith("_t") else said[1]
    return kernel[1], _NCCL_TYPES.get(plain) or dtype_label(plain.replace("__nv_fp8", "float8"))


def collective_kernel(kind: str, dtype: str) -> str:
    """Return NCCL's name of the kernel of a collective, without its parameters.

    Args:
        kind: As `collective_kind` returns it; whatever has no kernel of its own is built from
            sends and receives, whose kernel has one name.
        dtype: torch's name of the type, such as "float32"; NCCL takes types that it lacks for
            bytes, and sums signed integers as unsigned ones.
    """
    if kind in _REDUCTIONS:
        type_name = _NCCL_NAMES.get(dtype, "u8")
        return f"ncclDevKernel_{_REDUCTIONS[kind]}_Sum_{type_name}_RING_LL"
    return f"ncclDevKernel_{_MOVES.get(kind, 'SendRecv')}"


def copy_named(name: str) -> tuple[str, bool | None]:
    """Return the direction of a copy and whether the host memory is pinned.

    Args:
        name: "HtoD", "host to device", or the name of an event such as
            "Memcpy HtoD (Pinned -> Device)".

    Returns:
        The direction as traces write it (HtoD, DtoH, DtoD; other names unchanged), and None if the
        name does not say whether the memory is pinned.
    """
    event = _COPY_KERNEL.match(name)
    if event is None:
        return _direction(name), None
    sides = {side.lower() for side in event.groups()[1:] if side}
    pinned = True if "pinned" in sides else False if "pageable" in sides else None
    return _direction(event[1]), pinned


def _direction(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    parts = re.fullmatch(r"(h|d|host|device)(?:to|2)(h|d|host|device)", plain)
    return f"{parts[1][0].upper()}to{parts[2][0].upper()}" if parts else name


def checked_sizes(**sizes: tuple[Numbers, bool]) -> Mapping[str, FloatArray]:
    """Check sizes and broadcast them to one shape.

    Args:
        sizes: Each size by name, with True if it must be a whole number.

    Returns:
        float64 arrays by name, `[]` if all sizes are single numbers, else `[n]`.

    Raises:
        OptionError: A size is not a number, not positive, not whole or beyond reason, or the arrays
            have different lengths.
    """
    arrays = {name: _checked_size(name, *given) for name, given in sizes.items()}
    try:
        together = np.broadcast_arrays(*arrays.values())
    except ValueError:
        lengths = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items())
        raise OptionError(f"arrays of sizes must have one length ({lengths})") from None
    if together and together[0].ndim > 1:
        raise OptionError("arrays of sizes have one dimension")
    return dict(zip(arrays, together, strict=True))


def _checked_size(name: str, value: Numbers, is_whole: bool) -> FloatArray:
    array = np.asarray(value)
    try:
        if array.dtype.kind not in "iufO":
            raise TypeError
        numbers = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{name} must be a number, not {value!r}") from None
    wrong = ~(numbers > 0) | (numbers > _MOST)
    if is_whole:
        wrong |= ~wrong & (numbers != np.floor(np.where(wrong, 1.0, numbers)))
    if not np.any(wrong):
        return numbers
    first = float(numbers[wrong].flat[0]) if numbers.ndim else float(numbers)
    if first > _MOST:
        raise OptionError(f"{name} is beyond any machine: {first:g} (at most {_MOST:g})")
    kind = "a whole number above 0" if is_whole else "a number above 0"
    raise OptionError(f"{name} must be {kind}, not {first:g}")
