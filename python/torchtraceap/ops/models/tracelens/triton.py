"""Triton kernels of Inductor as TraceLens counts them, from the operators in their names."""

from __future__ import annotations

from math import prod

from torchtraceap.ops.kernel_names import triton_name
from torchtraceap.ops.models.tracelens.work import Call, ModelAbsentError, Work

__all__ = ["PREFIXES", "triton_model"]

PREFIXES = ("triton_poi_", "triton_red_", "triton_per_")

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
