"""Models of matrix products of serving libraries with 8-bit and 4-bit operands and scales.

A shuffled weight keeps its shape. Two elements of 4 bits share a byte (`uint8`, `float4_x2`), eight
share an `int32`. The bytes of packed tensors follow from their shape and type; the depth of the
product counts elements.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt, prod

from torchtraceap.core.dtypes import DType, parse_dtype
from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError, optional_bytes
from torchtraceap.ops.models.gemm import product
from torchtraceap.ops.models.registry import Work, register

__all__ = ["packing"]

_NO_OUTPUT = "the type of its output is not in the trace"
_MISFIT = "operands and output do not fit together"
_AWQ_BITS = 4


def packing(tensor: Tensor, *, in_bytes: bool) -> int:
    """Return how many elements one stored element holds; `in_bytes`: bytes hold two of 4 bits."""
    if tensor.dtype.label == "fp4" or (in_bytes and tensor.dtype.label in ("uint8", "int8")):
        return 2
    return 1


def result_type(call: OpCall, position: int, default: str | None = None) -> DType:
    """Return the type that an argument requests, else the library's default.

    Raises:
        UnknownWorkError: The trace has no values of scalars, or there is no default.
    """
    if not call.has_values:
        raise UnknownWorkError(_NO_OUTPUT)
    found = call.dtype_argument(position) or (parse_dtype(default) if default else None)
    if found is None:
        raise UnknownWorkError(_NO_OUTPUT)
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of the arguments of a matrix product."""

    a: int = 0
    b: int = 1
    out: int | None = None
    """Tensor that is written; if it is not passed, the result is returned."""
    out_type: int | None = None
    default_type: str | None = None
    scales: tuple[int, ...] = (2, 3)
    """Scales, bias and zero points."""
    rows_of_b: bool = True
    """True if b is (columns, depth), False if it is (depth, columns)."""
    half_bytes: bool = False
    """True if bytes of the operands hold two elements of 4 bits."""


_SCALED_OUT = _Places(out=4, scales=(2, 3, 5))
_BF16 = "bfloat16"
_SCALED_BIAS = _Places(out_type=5, default_type=_BF16, scales=(2, 3, 4))
_SCALED = _Places(out_type=4, default_type=_BF16)
_FP4_OUT = _Places(out=4, scales=(2, 3, 5), half_bytes=True)
_SGL_SCALED = _Places(out_type=4, scales=(2, 3, 5), rows_of_b=False)
_SPLIT_K = _Places(out=3, out_type=2, default_type=_BF16, scales=())

# aiter/ops/gemm_op_*.py and aiter/ops/triton/gemm of AITER, csrc/torch_bindings.cpp,
# csrc/rocm/torch_bindings.cpp and vllm/_aiter_ops.py of vLLM,
# sgl-kernel/csrc/common_extension.cc of SGLang, cpp/tensorrt_llm/thop of TensorRT-LLM.
_PLACES: dict[str, _Places] = {
    **dict.fromkeys(
        (
            "aiter::gemm_a8w8_ck",
            "aiter::gemm_a8w8_asm",
            "aiter::gemm_a8w8_bpreshuffle_ck",
            "aiter::gemm_a8w8_bpreshuffle_cktile",
            "aiter::gemm_a8w8_blockscale_ck",
            "aiter::gemm_a8w8_blockscale_cktile",
            "aiter::gemm_a8w8_blockscale_bpreshuffle_ck",
            "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile",
            "aiter::flatmm_a8w8_blockscale_asm",
            "aiter::gfx950_a8w8_blockscale_asm",
        ),
        _SCALED_OUT,
    ),
    "aiter::_gemm_a8w8_asm": _Places(out=4, scales=(2, 3, 6)),
    **dict.fromkeys(
        (
            "aiter::_gemm_a8w8_blockscale_bpreshuffle_asm",
            "aiter::gemm_a8w8_blockscale_bpreshuffle_asm",
        ),
        _Places(out=2, scales=(3, 4, 5)),
    ),
    **dict.fromkeys(
        (
            "aiter::gemm_a8w8",
            "aiter::gemm_a8w8_CK",
            "aiter::gemm_a8w8_bpreshuffle",
            "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
            "vllm::rocm_aiter_w8a8_gemm",
            "vllm::rocm_aiter_gemm_a8w8",
        ),
        _SCALED_BIAS,
    ),
    **dict.fromkeys(
        (
            "aiter::gemm_a8w8_blockscale",
            "aiter::gemm_a8w8_blockscale_bpreshuffle",
            "vllm::rocm_aiter_gemm_a8w8_blockscale",
            "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
            "sglang_profiler::fp8_utils_gemm_a8w8_blockscale",
            "sglang_profiler::gemm_a8w8_blockscale_gemm_a8w8_blockscale",
        ),
        _SCALED,
    ),
    "sglang_profiler::batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant_"
    "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant": _Places(
        out_type=5, default_type=_BF16, scales=(2, 4)
    ),
    **dict.fromkeys(
        ("aiter::_gemm_a4w4_asm", "aiter::gemm_a4w4_asm"),
        _Places(out=4, scales=(2, 3, 6), half_bytes=True),
    ),
    "aiter::gemm_a4w4_blockscale": _FP4_OUT,
    "aiter::gemm_afp4wfp4_": _Places(
        out=5, out_type=4, default_type=_BF16, half_bytes=True
    ),
    "aiter::batched_gemm_a16wfp4_": _Places(
        out=4, out_type=3, default_type=_BF16, scales=(2,), half_bytes=True
    ),
    "aiter::gemm_a16w16_atomic_": _SPLIT_K,
    "sglang_profiler::gemm_kernels_flydsl_hgemm": _SPLIT_K,
    "aiter::_gemm_a16w16_asm": _Places(out=2, scales=(4,)),
    "aiter::gemm_a16w16": _Places(out_type=3, default_type=_BF16, scales=(2,)),
    "_C::cutlass_scaled_mm": _Places(1, 2, out=0, scales=(3, 4, 5), rows_of_b=False),
    "_C::cutlass_scaled_mm_azp": _Places(1, 2, out=0, scales=(3, 4, 5, 6, 7), rows_of_b=False),
    **dict.fromkeys(
        ("_C::cutlass_scaled_fp4_mm", "sgl_kernel::cutlass_scaled_fp4_mm"),
        _Places(1, 2, out=0, scales=(3, 4, 5), half_bytes=True),
    ),
    **dict.fromkeys(
        ("_C::dsv3_fused_a_gemm", "sgl_kernel::dsv3_fused_a_gemm"),
        _Places(1, 2, out=0, scales=(), rows_of_b=False),
    ),
    "sgl_kernel::dsv3_router_gemm": _Places(1, 2, out=0, scales=()),
    **dict.fromkeys(
        ("sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm"), _SGL_SCALED
    ),
    "sgl_kernel::fp8_blockwise_scaled_mm": replace(_SGL_SCALED, scales=(2, 3)),
    "trtllm::cublas_scaled_mm": _Places(out_type=5, scales=(2, 3, 4), rows_of_b=False),
}  # fmt: skip


@register(*_PLACES, composite=True)
def library_product(call: OpCall) -> Work:
    """Arguments: (..., rows, depth) by (..., columns, depth) or (..., depth, columns)."""
    return _scaled_product(call, _PLACES[call.name])


@register("aiter::gemm_a4w4", composite=True)
def product_fp4(call: OpCall) -> Work:
    """Arguments: (a, b, a_scale, b_scale, bias, type, ...) or, earlier, (..., out, bias, ...)."""
    if call.dtype_argument(5) is None:
        return _scaled_product(call, _FP4_OUT)
    return _scaled_product(call, _Places(out_type=5, scales=(2, 3, 4), half_bytes=True))


def _scaled_product(call: OpCall, places: _Places) -> Work:
    a, b = call.tensor(places.a), call.tensor(places.b)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise UnknownWorkError(f"operands of {len(a.shape)} and {len(b.shape)} dimensions")
    depth = a.shape[-1] * packing(a, in_bytes=places.half_bytes)
    columns, depth_of_b = b.shape[-2:] if places.rows_of_b else (b.shape[-1], b.shape[-2])
    if depth_of_b * packing(b, in_bytes=places.half_bytes) != depth:
        raise UnknownWorkError("the inner sizes of the product differ")
    rows = _rows(a, b)
    out = None if places.out is None else call.optional_tensor(places.out)
    if out is not None and out.elements != rows * columns:
        raise UnknownWorkError(_MISFIT)
    if out is not None:
        out_type = out.dtype
    elif places.out_type is None:
        raise UnknownWorkError(f"argument {places.out} is no tensor of a known type")
    else:
        out_type = result_type(call, places.out_type, places.default_type)
    work = product(a, b, (rows, columns), depth, out_type)
    read = work.bytes_read + optional_bytes(call, places.scales)
    # Weights of 4 bits are multiplied at the fp4 rate because activations are quantized to it.
    dtype = "fp4" if places.half_bytes else work.dtype
    return replace(work, bytes_read=read, dtype=dtype)


def _rows(a: Tensor, b: Tensor) -> int:
    """Return the rows of all batches; the batch is dimension 0 of b and dimension 0 or 1 of a.

    Raises:
        UnknownWorkError: Batches differ.
    """
    if len(b.shape) == 2:
        return prod(a.shape[:-1])
    if len(a.shape) == len(b.shape) == 3 and b.shape[0] in a.shape[:2]:
        return a.shape[0] * a.shape[1]
    raise UnknownWorkError("batches do not fit together")


@register("tex_ts::te_gemm_ts")
def product_into(call: OpCall) -> Work:
    """Derive the depth from the sizes alone, whatever is transposed: K^2 = |A| |B| / |D|."""
    a, b, output = call.tensor(0), call.tensor(5), call.tensor(10)
    if not output.elements:
        raise UnknownWorkError("an empty output")
    depth = isqrt(a.elements * b.elements // output.elements)
    if depth**2 * output.elements != a.elements * b.elements or depth not in a.shape + b.shape:
        raise UnknownWorkError(_MISFIT)
    return product(a, b, output.shape, depth * packing(a, in_bytes=False), output.dtype)


@register(
    "primus_turbo::hipblaslt_gemm_fp8",
    "primus_turbo::hipblaslt_gemm_fp4",
    "primus_turbo_cpp_extension::hipblaslt_gemm_fp8",
    "primus_turbo_cpp_extension::hipblaslt_gemm_fp4",
    composite=True,
)
def hipblaslt(call: OpCall) -> Work:
    """Arguments: (a, a_scale, b, b_scale, out_type, trans_a, trans_b, trans_c, ...)"""
    a, b = call.tensor(0), call.tensor(2)
    if not len(a.shape) == len(b.shape) == 2:
        raise UnknownWorkError(f"operands of {len(a.shape)} and {len(b.shape)} dimensions")
    halves = call.name.endswith("fp4")
    rows, depth = reversed(a.shape) if call.boolean(5) else a.shape
    columns, depth_of_b = b.shape if call.boolean(6) else reversed(b.shape)
    if depth != depth_of_b:
        raise UnknownWorkError("the inner sizes of the product differ")
    depth *= packing(a, in_bytes=halves)
    work = product(a, b, (rows, columns), depth, result_type(call, 4))
    read = work.bytes_read + optional_bytes(call, (1, 3))
    return replace(work, bytes_read=read, dtype="fp4" if halves else work.dtype)


@register("vllm::gemm_with_dynamic_quant", composite=True)
def product_quantizing(call: OpCall) -> Work:
    """Arguments: (input, weight, weight_scale, ...): mxfp4 weights of (columns, depth / 2)."""
    x, weight = call.tensor(0), call.tensor(1)
    if len(weight.shape) != 2 or not x.shape:
        raise UnknownWorkError("operands do not fit together")
    depth = weight.shape[1] * packing(weight, in_bytes=True)
    if depth != x.shape[-1] * packing(x, in_bytes=True):
        raise UnknownWorkError("the inner sizes of the product differ")
    if x.dtype.rank != 2 or x.dtype.size < 2:
        raise UnknownWorkError(_NO_OUTPUT)
    work = product(x, weight, (*x.shape[:-1], weight.shape[0]), depth, x.dtype)
    return replace(work, bytes_read=work.bytes_read + optional_bytes(call, (2,)), dtype="fp4")


# --------------------------------------- weights of a few bits, multiplied in the activations' type


@register("_C::gptq_marlin_gemm", "sgl_kernel::gptq_marlin_gemm", "_C::marlin_gemm")
def marlin(call: OpCall) -> Work:
    """Arguments: (a, c, b_q_weight, ..., size_m, size_n, size_k, ...).

    The arguments in between differ by release; the sizes are the first three consecutive integers
    that fit `a`.
    """
    a, weight = call.tensor(0), call.tensor(2)
    for position in range(3, len(call) - 2) if len(a.shape) == 2 else ():
        m, n, k = (call.integer(position + i, -1) for i in range(3))
        if (m, k) == a.shape and n > 0:
            return _few_bits(a, weight, n, optional_bytes(call, (3, 4)))
    raise UnknownWorkError("the sizes of the product are not in the trace")


def _few_bits(a: Tensor, weight: Tensor, columns: int, scales: int) -> Work:
    """Count a product of weights that are widened to the type of the activations."""
    if not a.shape:
        raise UnknownWorkError("operands do not fit together")
    work = product(a, weight, (*a.shape[:-1], columns), a.shape[-1], a.dtype)
    return replace(work, bytes_read=work.bytes_read + scales, dtype=a.dtype.label)


@register("_C::gptq_gemm", "sgl_kernel::gptq_gemm")
def gptq(call: OpCall) -> Work:
    """Arguments: (a, b_q_weight, zeros, scales, g_idx, ...): weights of (depth / n, columns)."""
    a, weight = call.tensor(0), call.tensor(1)
    if len(weight.shape) != 2 or not a.shape or a.shape[-1] % max(weight.shape[0], 1):
        raise UnknownWorkError("operands do not fit together")
    return _few_bits(a, weight, weight.shape[1], optional_bytes(call, (2, 3, 4)))


@register("_C::awq_gemm", "sgl_kernel::awq_gemm")
def awq(call: OpCall) -> Work:
    """Arguments: (a, weight, scales, zeros, split_k): weights of (depth, columns / 8) in int32."""
    a, weight = call.tensor(0), call.tensor(1)
    if len(weight.shape) != 2 or not a.shape or a.shape[-1] != weight.shape[0]:
        raise UnknownWorkError("the inner sizes of the product differ")
    in_word = 8 * weight.dtype.size // _AWQ_BITS
    return _few_bits(a, weight, weight.shape[1] * in_word, optional_bytes(call, (2, 3)))


# ------------------------------------------------------------------ few rows (ROCm, decoding)


@register("_rocm_C::LLMM1", "_rocm_C::wvSplitK", "_rocm_C::wvSplitKrc")
def few_rows(call: OpCall) -> Work:
    """Arguments: (weight, input, bias, ...): (columns, depth) by (rows, depth)."""
    weight, x = call.tensor(0), call.tensor(1)
    if not len(weight.shape) == len(x.shape) == 2 or weight.shape[1] != x.shape[1]:
        raise UnknownWorkError("the inner sizes of the product differ")
    work = product(x, weight, (x.shape[0], weight.shape[0]), x.shape[1], x.dtype)
    return replace(work, bytes_read=work.bytes_read + optional_bytes(call, (2,)))


@register("_rocm_C::wvSplitKQ")
def few_rows_quantized(call: OpCall) -> Work:
    """Arguments: (weight, input, bias, out, scale_a, scale_b, ...); earlier releases have no
    bias."""
    weight, x = call.tensor(0), call.tensor(1)
    if not len(weight.shape) == len(x.shape) == 2 or weight.shape[1] != x.shape[1]:
        raise UnknownWorkError("the inner sizes of the product differ")
    shape = (x.shape[0], weight.shape[0])
    for at in (3, 2):
        found = call.optional_tensor(at)
        if found is not None and found.shape == shape:
            break
    else:
        raise UnknownWorkError(_MISFIT)
    work = product(x, weight, shape, x.shape[1], call.tensor(at).dtype)
    extra = optional_bytes(call, [i for i in (2, at + 1, at + 2) if i != at])
    return replace(work, bytes_read=work.bytes_read + extra)


# -------------------------------------------------------------------- gradients of grouped products


@register(
    "primus_turbo::grouped_gemm_variable_k",
    "primus_turbo::grouped_gemm_variable_k_impl",
    "primus_turbo_cpp_extension::grouped_gemm_variable_k",
    "primus_turbo_cpp_extension::ck_grouped_gemm_variable_k",
    composite=True,
)
def grouped_depth(call: OpCall) -> Work:
    """Arguments: (a, b, group_lengths, ...): rows of both, shared out among groups, are what is
    summed over.

    Each group has a result of its own, in the type of `a`.
    """
    a, b, lengths = (call.tensor(i) for i in range(3))
    if not len(a.shape) == len(b.shape) == 2 or a.shape[0] != b.shape[0]:
        raise UnknownWorkError("operands do not fit together")
    if a.dtype.size < 2:
        raise UnknownWorkError(_NO_OUTPUT)
    work = product(a, b, (a.shape[1], b.shape[1]), a.shape[0], a.dtype)
    return replace(
        work,
        bytes_read=work.bytes_read + lengths.bytes,
        bytes_written=lengths.elements * work.bytes_written,
        upper_bound=True,
        notes=("the sizes of the groups are not recorded: at most this",),
    )
