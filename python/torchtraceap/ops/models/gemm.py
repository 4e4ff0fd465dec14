"""Models of matrix products with 2MNK operations; accumulators start from 0 or from the bias."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchtraceap.core.dtypes import INT32, DType
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

_LOW = ("fp8", "fp4", "int8", "uint8")


def product(
    a: Tensor,
    b: Tensor,
    output: tuple[int, ...],
    depth: int,
    out_type: DType,
    *extra: Tensor | None,
    allow_tf32: bool | None = None,
) -> Work:
    """Return the work of a matrix product of two tensors.

    Args:
        a, b: Operands.
        output: Shape of the result.
        depth: Number of products summed in each element of the result.
        out_type: Type of the result.
        extra: Other tensors that are read, such as a bias and scales.
        allow_tf32: fp32 may be computed as tf32.
    """
    elements = prod(output)
    # The slower of the operands' types decides the rate.
    order = ("fp64", "fp32", "bf16", "fp16", "int8", "uint8", "fp8", "fp4")
    labels = (a.dtype.label, b.dtype.label)
    slower = next((label for label in order if label in labels), labels[0])
    complex_factor = 4 if a.dtype.rank == 3 else 1
    read = a.bytes + b.bytes + sum(tensor.bytes for tensor in extra if tensor is not None)
    return Work(
        flops=2 * elements * depth * complex_factor,
        bytes_read=read,
        bytes_written=elements * out_type.size,
        dtype="int8" if slower == "uint8" else slower,
        unit="matrix",
        allow_tf32=allow_tf32,
    )


def _shared(a: int, b: int) -> int:
    if a != b:
        raise UnknownWorkError(f"the inner sizes of the product differ: {a} and {b}")
    return a


def _ranks(a: Tensor, b: Tensor, rank_a: int, rank_b: int) -> None:
    if len(a.shape) != rank_a or len(b.shape) != rank_b:
        raise UnknownWorkError(f"operands of {len(a.shape)} and {len(b.shape)} dimensions")


def _mm(call: OpCall, first: int, bias: Tensor | None = None) -> Work:
    a, b = call.tensor(first), call.tensor(first + 1)
    _ranks(a, b, 2, 2)
    depth = _shared(a.shape[1], b.shape[0])
    return product(a, b, (a.shape[0], b.shape[1]), depth, a.dtype, bias)


@register("aten::mm", "vllm::rocm_unquantized_gemm_impl")
def mm(call: OpCall) -> Work:
    return _mm(call, 0)


@register("aten::_int_mm")
def int_mm(call: OpCall) -> Work:
    a, b = call.tensor(0), call.tensor(1)
    _ranks(a, b, 2, 2)
    depth = _shared(a.shape[1], b.shape[0])
    return product(a, b, (a.shape[0], b.shape[1]), depth, INT32)


@register("aten::addmm", "aten::_addmm_activation")
def addmm(call: OpCall) -> Work:
    return _mm(call, 1, call.tensor(0))


def _bmm(call: OpCall, first: int, bias: Tensor | None = None) -> Work:
    a, b = call.tensor(first), call.tensor(first + 1)
    _ranks(a, b, 3, 3)
    batch = _shared(a.shape[0], b.shape[0])
    depth = _shared(a.shape[2], b.shape[1])
    return product(a, b, (batch, a.shape[1], b.shape[2]), depth, a.dtype, bias)


@register("aten::bmm")
def bmm(call: OpCall) -> Work:
    return _bmm(call, 0)


@register("aten::baddbmm")
def baddbmm(call: OpCall) -> Work:
    return _bmm(call, 1, call.tensor(0))


@register("aten::addbmm")
def addbmm(call: OpCall) -> Work:
    a, b = call.tensor(1), call.tensor(2)
    _ranks(a, b, 3, 3)
    depth = _shared(a.shape[0], b.shape[0]) * _shared(a.shape[2], b.shape[1])
    return product(a, b, (a.shape[1], b.shape[2]), depth, a.dtype, call.tensor(0))


@register("aten::mv")
def mv(call: OpCall) -> Work:
    return _mv(call, 0)


@register("aten::addmv")
def addmv(call: OpCall) -> Work:
    return _mv(call, 1, call.tensor(0))


def _mv(call: OpCall, first: int, bias: Tensor | None = None) -> Work:
    a, x = call.tensor(first), call.tensor(first + 1)
    _ranks(a, x, 2, 1)
    return product(a, x, (a.shape[0],), _shared(a.shape[1], x.shape[0]), a.dtype, bias)


@register("aten::dot", "aten::vdot")
def dot(call: OpCall) -> Work:
    a, b = call.tensor(0), call.tensor(1)
    _ranks(a, b, 1, 1)
    return product(a, b, (), _shared(a.shape[0], b.shape[0]), a.dtype)


@register("aten::addr")
def addr(call: OpCall) -> Work:
    a, b = call.tensor(1), call.tensor(2)
    _ranks(a, b, 1, 1)
    return product(a, b, (a.shape[0], b.shape[0]), 1, a.dtype, call.tensor(0))


@register("aten::matmul", "aten::linalg_matmul", composite=True)
def matmul(call: OpCall) -> Work:
    a, b = call.tensor(0), call.tensor(1)
    if not a.shape or not b.shape:
        raise UnknownWorkError("a product with a number")
    rows = a.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    depth = _shared(a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return product(a, b, (*batch, *rows, *columns), depth, a.dtype)


@register("aten::linear", "aten::mkldnn_linear", "vllm::rocm_unquantized_gemm", composite=True)
def linear(call: OpCall) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    if not x.shape or len(weight.shape) not in (1, 2):
        raise UnknownWorkError("a linear layer without dimensions")
    depth = _shared(x.shape[-1], weight.shape[-1])
    output = (*x.shape[:-1], *weight.shape[:-1])
    return product(x, weight, output, depth, x.dtype, call.optional_tensor(2))


@register("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_mm(call: OpCall) -> Work:
    """Count a product of operands in fp8 or fp4 with scales; `out_dtype` is the output's type."""
    a, b = call.tensor(0), call.tensor(1)
    _ranks(a, b, 2, 2)
    packed = 2 if a.dtype.label == "fp4" else 1
    depth = _shared(a.shape[1], b.shape[0]) * packed
    scales = [call.optional_tensor(i) for i in (2, 3, 4, 5)]
    return product(a, b, (a.shape[0], b.shape[1]), depth, _scaled_output(call, a), *scales)


def _scaled_output(call: OpCall, a: Tensor) -> DType:
    """Return the type of `out` if it is given, else `out_dtype`, else the operands' type."""
    last = call.optional_tensor(len(call) - 1) if len(call) > 8 else None
    if last is not None and len(last.shape) == 2:
        return last.dtype
    if call.name.endswith("_v2"):
        raise UnknownWorkError("the type of its output is not at a fixed place")
    if not call.has_values and a.dtype.label in _LOW:
        raise UnknownWorkError("the type of its output is not in the trace")
    return call.dtype_argument(6) or a.dtype


@register("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_mm(call: OpCall) -> Work:
    """Count groups that split rows (2d x 3d), columns (3d x 2d), depth (2d x 2d), or a batch."""
    scaled = "scaled" in call.name
    a, b = call.tensor(0), call.tensor(1)
    offsets = call.optional_tensor(4 if scaled else 2)
    out_type = call.dtype_argument(7 if scaled else 4)
    if out_type is None and a.dtype.label in _LOW:
        raise UnknownWorkError("the type of its output is not in the trace")
    ranks = (len(a.shape), len(b.shape))
    output: tuple[int, ...]
    if ranks == (2, 3):
        output, depth = (a.shape[0], b.shape[2]), _shared(a.shape[1], b.shape[1])
    elif ranks == (3, 2):
        output, depth = (a.shape[1], b.shape[1]), _shared(a.shape[2], b.shape[0])
    elif ranks == (3, 3):
        batch = _shared(a.shape[0], b.shape[0])
        output, depth = (batch, a.shape[1], b.shape[2]), _shared(a.shape[2], b.shape[1])
    elif ranks == (2, 2) and offsets is not None:
        return _grouped_depth(a, b, offsets, out_type or a.dtype)
    else:
        raise UnknownWorkError(f"operands of {ranks[0]} and {ranks[1]} dimensions")
    work = product(a, b, output, depth, out_type or a.dtype, offsets)
    return work if ranks == (3, 3) else _as_upper_bound(work)


def _grouped_depth(a: Tensor, b: Tensor, offsets: Tensor, out_type: DType) -> Work:
    """Count groups that each take a part of the depth and have their own output."""
    depth = _shared(a.shape[1], b.shape[0])
    groups = offsets.elements
    work = product(a, b, (a.shape[0], b.shape[1]), depth, out_type, offsets)
    written = groups * a.shape[0] * b.shape[1] * out_type.size
    return _as_upper_bound(
        Work(work.flops, work.bytes_read, written, dtype=work.dtype, unit="matrix")
    )


@register("bitsandbytes::int8_linear_matmul")
def int8_linear(call: OpCall) -> Work:
    """Arguments: (input, weight): rows of both are multiplied, sums are int32."""
    x, weight = call.tensor(0), call.tensor(1)
    _ranks(weight, weight, 2, 2)
    depth = _shared(x.shape[-1] if x.shape else 0, weight.shape[1])
    return product(x, weight, (*x.shape[:-1], weight.shape[0]), depth, INT32)


@register(
    "primus_turbo::grouped_gemm",
    "primus_turbo::grouped_gemm_impl",
    "primus_turbo_cpp_extension::grouped_gemm",
    "primus_turbo_cpp_extension::ck_grouped_gemm",
    composite=True,
)
def grouped_rows(call: OpCall) -> Work:
    """Arguments: (rows of all groups, a matrix per group, ...): the matrices may be transposed."""
    a, b = call.tensor(0), call.tensor(1)
    _ranks(a, b, 2, 3)
    depth = a.shape[1]
    if depth not in b.shape[1:] or not depth:
        raise UnknownWorkError("operands do not fit together")
    columns = b.shape[1] * b.shape[2] // depth
    return _as_upper_bound(product(a, b, (a.shape[0], columns), depth, a.dtype))


def _as_upper_bound(work: Work) -> Work:
    """Mark the work as a bound: rows after the last offset and groups without rows are skipped."""
    note = "the sizes of the groups are not recorded: at most this"
    return replace(work, upper_bound=True, notes=(note,))


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape of tensors, by NumPy's rules.

    Raises:
        UnknownWorkError: The shapes are incompatible.
    """
    result: list[int] = []
    for k in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-k] for shape in shapes if len(shape) >= k} - {1}
        if len(sizes) > 1:
            raise UnknownWorkError("the shapes of the arguments do not fit together")
        result.append(sizes.pop() if sizes else 1)
    return tuple(reversed(result))
