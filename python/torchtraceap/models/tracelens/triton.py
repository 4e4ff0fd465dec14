"""Triton kernels of Inductor as TraceLens counts them: by the operators in their name."""

from __future__ import annotations

from math import prod

from torchtraceap.kernel_names import triton_name
from torchtraceap.models.tracelens.work import Call, UnmodelledError, Work, bytes_of

__all__ = ["PREFIXES", "triton_model"]

PREFIXES = ("triton_poi_", "triton_red_", "triton_per_")

_FLOPS_OF_ELEMENT = {
    "pow": 2,
    "sqrt": 2,
    "rsqrt": 2,
    "exp": 4,
    "log": 4,
    "sigmoid": 4,
    "tanh": 4,
    "silu": 4,
    "gelu": 8,
    "var": 2,
    "reciprocal": 2,
}
_ONLY_MOVES = (
    "_to_copy",
    "copy",
    "copy_",
    "clone",
    "embedding",
    "view",
    "_unsafe_view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "expand",
    "slice",
    "select",
    "squeeze",
    "unsqueeze",
    "cat",
    "split",
    "detach",
)


def triton_model(call: Call) -> Work:
    """Operations of every source operator for every element; each tensor moves once.

    The numbers of elements are the last arguments: `xnumel`, and `rnumel` of a reduction. A
    pointwise kernel writes one tensor more, as large as its first.
    """
    name = triton_name(call.name)
    if name is None or not name.source_ops or not call.concrete:
        raise UnmodelledError(call.name)
    counts = [int(text) for text in call.concrete if text.isdecimal()]
    reduces = not call.name.startswith("triton_poi_")
    x, r = (counts[-2], counts[-1]) if reduces else (counts[-1], 1)
    per_element = sum(
        0 if op in _ONLY_MOVES else _FLOPS_OF_ELEMENT.get(op, 1) for op in name.source_ops
    )
    tensors = [
        prod(shape) * (bytes_of(dtype) or 0)
        for shape, dtype in zip(call.dims, call.types, strict=False)
        if shape
    ]
    written = 0 if reduces or not tensors else tensors[0]
    params = {
        "fused_ops": ", ".join(f"aten.{op}" for op in name.source_ops),
        "xnumel": x,
        "rnumel": r,
    }
    dtype = call.types[0].removeprefix("c10::").lower()
    return Work(params, float(per_element * x * r), sum(tensors) + written, f"vector_{dtype}")
