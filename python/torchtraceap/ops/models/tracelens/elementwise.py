"""Elementwise operators, reductions and Triton kernels of Inductor as TraceLens counts them."""

from __future__ import annotations

from math import prod
from typing import Any

from torchtraceap.ops.kernel_names import triton_name
from torchtraceap.ops.models.tracelens.work import (
    Call,
    Model,
    ModelAbsentError,
    Work,
    bytes_of,
    parse_ints,
    precision_of,
)

__all__ = ["BINARY", "REDUCE", "TRITON", "UNARY", "triton_model"]


def _unary(call: Call) -> Work:
    shape, dtype, dtype_out, stride_out = tuple(call.dims[0]), call.types[0], None, None
    stride_in = tuple(call.strides[0])
    if len(call.dims) > 1 and call.dims[1]:
        dtype_out, stride_out = call.types[1], tuple(call.strides[1])
    params = {
        "op_shape": shape,
        "dtype_in_out": (dtype, dtype_out),
        "stride_input": stride_in,
        "stride_output": stride_out,
    }
    size = bytes_of(dtype)
    out_size = size if dtype_out is None else bytes_of(dtype_out)
    return _moving(params, prod(shape), prod(shape), size, out_size, dtype)


def _moving(
    params: dict[str, Any],
    read: int,
    written: int,
    size: int | None,
    out_size: int | None,
    dtype: str,
) -> Work:
    """Return the work of one operation per written element; sizes are bytes of an element."""
    known = size is not None and out_size is not None
    moved = read * (size or 0) + written * (out_size or 0)
    return Work(params, written, moved if known else None, precision_of("vector", dtype))


def _resized(call: Call, out: tuple[int, ...]) -> Work:
    """Count an output of another shape; TraceLens fails on a dtype without a size."""
    shape, dtype = tuple(call.dims[0]), call.types[0]
    params = {
        "input_shape": shape,
        "output_shape": out,
        "op_shape": out,
        "dtype_in_out": (dtype, dtype),
        "stride_input": tuple(call.strides[0]),
        "stride_output": None,
    }
    size = bytes_of(dtype)
    if size is None:
        raise ValueError(dtype)
    return _moving(params, prod(shape), prod(out), size, size, dtype)


def _upsample(call: Call) -> Work:
    return _resized(call, (*call.dims[0][:2], *parse_ints(call.concrete[1])))


def _replication_pad(call: Call) -> Work:
    out = list(call.dims[0])
    padding = parse_ints(call.concrete[1])
    for axis in range(len(padding) // 2):
        out[-1 - axis] += padding[2 * axis] + padding[2 * axis + 1]
    return _resized(call, tuple(out))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    a, b = (1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        raise ValueError((a, b))
    return tuple(max(tuple_pair) for tuple_pair in zip(a, b, strict=True))


def _binary(call: Call) -> Work:
    a, b = tuple(call.dims[0]), tuple(call.dims[1])
    dtype_a, dtype_b, dtype_out, stride_out = call.types[0], call.types[1], None, None
    if len(call.dims) > 2 and call.dims[2]:
        dtype_out, stride_out = call.types[2], tuple(call.strides[2])
    params = {
        "shape_in1": a,
        "shape_in2": b,
        "dtype_in1_in2_out": (dtype_a, dtype_b, dtype_out),
        "stride_input1": tuple(call.strides[0]),
        "stride_input2": tuple(call.strides[1]),
        "stride_output": stride_out,
    }
    size_a, size_b = bytes_of(dtype_a), bytes_of(dtype_b)
    out = prod(_broadcast(a, b))
    moved = None
    if size_a is not None and size_b is not None:
        size_out: int | None = max(size_a, size_b) if a and b else size_a
        if dtype_out is not None:
            size_out = bytes_of(dtype_out)
        if size_out is not None:
            moved = prod(a) * size_a + prod(b) * size_b + out * size_out
    return Work(params, out, moved, precision_of("vector", dtype_a))


_KEEPS_SHAPE = ("cumsum", "cumprod")
_REDUCTIONS = ("mean", "max", "min", "norm")


def _reduce(call: Call) -> Work:
    """Count a reduction to one element, because TraceLens does not read the dimensions.

    A call without shapes counts as one without elements rather than as unreadable.
    """
    if not call.dims or call.dims[0] is None:
        nothing = {"num_input_elems": 0, "num_output_elems": 0, "dtype_in_out": (None, None)}
        return Work(nothing, 0, None, "", lambda: (0, None))
    read = prod(call.dims[0])
    written = read if any(word in call.name for word in _KEEPS_SHAPE) else 1
    dtype = call.types[0] if call.types else None
    params = {
        "num_input_elems": read,
        "num_output_elems": written,
        "dtype_in_out": (dtype, None),
        "reduce_type": next((word for word in _REDUCTIONS if word in call.name), "sum"),
    }
    size = bytes_of(dtype) if dtype else None
    moved = None if size is None else (read + written) * size
    return Work(params, read, moved, precision_of("vector", dtype), lambda: (read, moved))


UNARY: dict[str, Model] = {
    **dict.fromkeys(
        (
            "aten::copy",
            "aten::copy_",
            "aten::clamp_min",
            "aten::clamp_min_",
            "aten::clamp_max",
            "aten::clamp_max_",
            "aten::sigmoid",
            "aten::rsqrt",
            "aten::silu",
            "aten::neg",
            "aten::pow",
        ),
        _unary,
    ),
    **{f"aten::replication_pad{n}d": _replication_pad for n in (1, 2, 3)},
    **dict.fromkeys(
        (
            "aten::upsample_nearest1d",
            "aten::upsample_nearest2d",
            "aten::upsample_nearest3d",
        ),
        _upsample,
    ),
}

BINARY: dict[str, Model] = dict.fromkeys(
    (
        "aten::div",
        "aten::div_",
        "aten::mul",
        "aten::mul_",
        "aten::add",
        "aten::add_",
        "aten::sigmoid_backward",
        "aten::threshold_backward",
        "LigerSiLUMulFunction",
    ),
    _binary,
)

REDUCE: dict[str, Model] = dict.fromkeys(
    (
        "aten::sum",
        "aten::mean",
        "aten::max",
        "aten::min",
        "aten::norm",
        "aten::linalg_norm",
        "aten::std",
        "aten::var",
        "aten::logsumexp",
        "aten::cumsum",
        "aten::cumprod",
        "aten::amin",
        "aten::amax",
    ),
    _reduce,
)


TRITON = ("triton_poi_", "triton_red_", "triton_per_")

# Operators that are missing in this table of TraceLens count nothing.
_FLOPS_OF_ELEMENT = {
    **dict.fromkeys(
        (
            "add",
            "sub",
            "mul",
            "div",
            "relu",
            "mean",
            "sum",
            "abs",
            "neg",
            "ne",
            "eq",
            "lt",
            "gt",
        ),
        1,
    ),
    **dict.fromkeys(("pow", "sqrt", "rsqrt", "var", "reciprocal"), 2),
    **dict.fromkeys(("exp", "log", "sigmoid", "tanh", "silu"), 4),
    "gelu": 8,
}
# Spellings in a table of TraceLens. It lacks `float`, as traces spell it, which counts no bytes.
_BYTES_OF_ELEMENT = {
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "c10::Float": 4,
    "c10::Double": 8,
    "c10::Byte": 1,
    "c10::Char": 1,
    "c10::Int": 4,
    "c10::Long": 8,
}


def triton_model(call: Call) -> Work:
    """Count the operations of every source operator for every element, and each tensor once.

    The numbers of elements are the last integers among the arguments: `xnumel`, and `rnumel` of a
    reduction. A pointwise kernel also writes `xnumel` elements of its first tensor's type.

    Raises:
        ModelAbsentError: The trace has no arguments or no numbers of elements.
    """
    counts = [
        int(text)
        for text in call.concrete or ()
        if isinstance(text, str) and text.removeprefix("-").isdecimal()
    ]
    if not counts or not call.dims or not call.types:
        raise ModelAbsentError(call.name)
    reduces = not call.name.startswith("triton_poi_")
    x, r = (counts[-2], counts[-1]) if reduces and len(counts) > 1 else (counts[-1], 1)
    name = triton_name(call.name)
    source_ops = name.source_ops if name is not None else ()
    per_element = sum(_FLOPS_OF_ELEMENT.get(op, 0) for op in source_ops)
    tensors = [
        (prod(shape), _BYTES_OF_ELEMENT.get(dtype, 0), dtype)
        for shape, dtype in zip(call.dims, call.types, strict=False)
        if dtype != "Scalar" and shape
    ]
    moved = sum(elements * size for elements, size, _ in tensors)
    moved += 0 if reduces or not tensors else tensors[0][1] * x
    params = {
        "fused_ops": ", ".join(f"aten.{op}" for op in source_ops),
        "xnumel": x,
        "rnumel": r,
    }
    computes_as = next((dtype for _, size, dtype in tensors if size), "")
    spec = f"vector_{computes_as.split('::')[-1].lower()}" if computes_as else ""
    return Work(params, float(per_element * x * r), float(moved), spec)
