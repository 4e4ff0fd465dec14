"""Matrix products as TraceLens counts them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torchtraceap.ops.models.tracelens.work import (
    Call,
    Model,
    Work,
    bytes_of,
    precision_of,
    tuple_pair,
)

__all__ = ["MODELS"]


def _work(
    call: Call, params: dict[str, Any], sizes: tuple[float | None, ...], batch: int = 1
) -> Work:
    """Return the work of a product; `sizes` are bytes of an element of A, B, bias and output."""
    m, n, k, bias = (params[key] for key in ("M", "N", "K", "bias"))
    params.setdefault("B", 1)
    if call.transpose is not None:
        params["transpose"] = call.transpose
    flops = batch * (2 * m * n * k + (m * n if bias else 0))
    spec = precision_of("matrix", params["dtype_A_B"][0])
    if None in sizes:
        return Work(params, flops, None, spec)
    a, b, c, out = (size or 0 for size in sizes)
    moved = m * k * a + k * n * b + m * n * out + (n if bias else 0) * c
    return Work(params, flops, batch * moved, spec)


def _product(call: Call, at: int, *, bias: bool) -> dict[str, Any]:
    """Return the parameters of A @ B at positions `at` and `at + 1`."""
    (m, k), n = call.dims[at][:2], call.dims[at + 1][1]
    stride_a, stride_b = tuple_pair(call.strides, at, at + 1)
    return {
        "M": m,
        "N": n,
        "K": k,
        "bias": bias,
        "stride_A": stride_a,
        "stride_B": stride_b,
        "dtype_A_B": tuple(call.types[at : at + 2]),
    }


def _like_a(params: dict[str, Any]) -> tuple[int | None, ...]:
    """Return the size of an element of A for all operands and the output."""
    return (bytes_of(params["dtype_A_B"][0]),) * 4


def _mm(call: Call, at: int, *, bias: bool) -> Work:
    params = _product(call, at, bias=bias)
    return _work(call, params, _like_a(params))


def _bmm(call: Call, at: int, *, bias: bool) -> Work:
    batch, m, k = call.dims[at]
    _, _, n = call.dims[at + 1]
    stride_a, stride_b = tuple_pair(call.strides, at, at + 1)
    params = {
        "B": batch,
        "M": m,
        "N": n,
        "K": k,
        "bias": bias,
        "stride_A": stride_a,
        "stride_B": stride_b,
        "dtype_A_B": tuple(call.types[at : at + 2]),
    }
    return _work(call, params, _like_a(params), batch)


def _scaled_mm(call: Call) -> Work:
    """Count 16-bit output of 8-bit operands; three arguments mean a bias."""
    params = _product(call, 0, bias=len(call.dims) == 3)
    size, other = (bytes_of(dtype) for dtype in params["dtype_A_B"])
    if size is None or other is None:
        raise ValueError(params["dtype_A_B"])
    out = {1: 2, 2: 2, 4: 4}.get(size)
    return _work(call, params, (size, size, size, out))


def _two_byte_output(call: Call) -> Work:
    params = _product(call, 0, bias=False)
    if params["dtype_A_B"][0] != params["dtype_A_B"][1]:
        raise ValueError(params["dtype_A_B"])
    size = bytes_of(params["dtype_A_B"][0])
    return _work(call, params, (size, size, size, 2))


def _dynamic_quant(call: Call) -> Work:
    """Count the product of the first two matrices among the arguments, the second transposed."""
    a, b = [shape for shape in call.dims if isinstance(shape, list) and len(shape) == 2][:2]
    stride_a, stride_b = tuple_pair(call.strides, 0, 1)
    params = {
        "M": a[0],
        "N": b[0],
        "K": a[1],
        "bias": False,
        "stride_A": stride_a,
        "stride_B": stride_b,
        "dtype_A_B": tuple(call.types[:2]),
    }
    return _work(call, params, _like_a(params))


def _transformer_engine(call: Call) -> Work:
    """Count `te_gemm_ts`: A at 0, B at 5, output at 10, transposition flags at 4 and 9."""
    a, b = call.dims[0], call.dims[5]
    m, k = (a[0], a[1]) if call.concrete[4] == "1" else (a[1], a[0])
    stride_a, stride_b = tuple_pair(call.strides, 0, 5)
    dtypes = tuple(call.types[i] for i in (0, 5, 10, 18))
    params = {
        "M": m,
        "N": b[1] if call.concrete[9] == "1" else b[0],
        "K": k,
        "bias": call.concrete[14] != "",
        "stride_A": stride_a,
        "stride_B": stride_b,
        "dtype_A_B": dtypes,
    }
    a_size, b_size, out, bias = (bytes_of(dtype) for dtype in dtypes)
    return _work(call, params, (a_size, b_size, bias, out))


# ------------------------------------------------------------------------ of serving libraries

_BF16 = "c10::bfloat16"


def _serving(
    call: Call,
    out: str,
    *,
    batch: int | None = None,
    packing: int = 1,
    halves: tuple[bool, bool] = (False, False),
    spec: str = "",
) -> Work:
    """Count (M, K) by (N, K) with a result of type `out`; `halves` marks operands of 4 bits."""
    a, b = call.dims[0], call.dims[1]
    m, k, n = a[-2], a[-1] * packing, b[-2]
    params = {
        "B": 1 if batch is None else batch,
        "M": m,
        "N": n,
        "K": k,
        "bias": False,
        "dtype_A_B": (call.types[0], call.types[1], out),
    }
    sizes = [
        0.5 if half else bytes_of(dtype) for half, dtype in zip(halves, call.types, strict=False)
    ]
    work = _work(call, params, (*sizes[:2], bytes_of(out), bytes_of(out)), batch or 1)
    return replace(work, spec=spec) if spec else work


def _blockscale(call: Call) -> Work:
    """Count a product whose scales are parameters without bytes and whose result is bf16."""
    work = _serving(call, _BF16)
    p, dims, types = work.params, call.dims, call.types
    if len(dims) > 3:
        x, w = dims[2], dims[3]
        p |= {
            "quant_scheme": "a8w8_blockscale",
            "quant_granularity": "per_block",
            "block_k": -(-p["K"] // x[-1]) if x and x[-1] else None,
            "block_n": -(-p["N"] // w[0]) if w and w[0] else None,
            "scale_dtype": types[2] if len(types) > 2 else "float32",
        }
    p |= {"output_shape": (p["M"], p["N"]), "output_dtype": _BF16}
    return work


def _unquantized(call: Call) -> Work:
    bias = len(call.dims) > 2 and len(call.dims[2]) > 0
    dtypes = (*call.types[:2], call.types[2] if len(call.types) > 2 else "")
    (m, k), n = call.dims[0][:2], call.dims[1][0]
    params = {"M": m, "N": n, "K": k, "bias": bias, "dtype_A_B": dtypes}
    out = bytes_of(dtypes[2] if bias else dtypes[1])
    return _work(call, params, (bytes_of(dtypes[0]), bytes_of(dtypes[1]), out, out))


def _split_k(call: Call) -> Work:
    return _serving(call, call.types[3] if len(call.types) > 3 else _BF16)


def _split_k_asm(call: Call) -> Work:
    known = len(call.types) > 2 and bytes_of(call.types[2]) is not None
    return _serving(call, call.types[2] if known else call.types[0])


def _a16w16(call: Call) -> Work:
    bias = len(call.dims) > 2 and len(call.dims[2]) > 0
    (m, k), n = call.dims[0][:2], call.dims[1][0]
    dtypes = (call.types[0], call.types[1], call.types[0])
    params = {"B": 1, "M": m, "N": n, "K": k, "bias": bias, "dtype_A_B": dtypes}
    a, b, out = (bytes_of(dtype) for dtype in dtypes)
    return _work(call, params, (a, b, out, out))


def _fp4_weights(call: Call) -> Work:
    halves = (False, True)
    return _serving(call, _BF16, batch=call.dims[0][0], halves=halves, spec="matrix_fp4")


def _fp4(call: Call) -> Work:
    return _serving(call, _BF16, packing=2, halves=(True, True), spec="matrix_fp4")


_SGLANG = "sglang_profiler::"
_BLOCKSCALE = (
    f"{_SGLANG}fp8_utils_gemm_a8w8_blockscale",
    f"{_SGLANG}gemm_a8w8_blockscale_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    "aiter::gemm_a8w8_blockscale_ck",
    "aiter::gemm_a8w8_blockscale_cktile",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_ck",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile",
    "aiter::flatmm_a8w8_blockscale_asm",
    "aiter::gfx950_a8w8_blockscale_asm",
    "aiter::gemm_a8w8_ck",
    "aiter::gemm_a8w8_bpreshuffle_ck",
    "aiter::gemm_a8w8_bpreshuffle",
    "aiter::_gemm_a8w8_blockscale_bpreshuffle_asm",
    "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
)
MODELS: dict[str, Model] = {
    **dict.fromkeys(_BLOCKSCALE, _blockscale),
    "vllm::rocm_unquantized_gemm": _unquantized,
    "aiter::gemm_a16w16": _a16w16,
    "aiter::gemm_a16w16_atomic_": _split_k,
    f"{_SGLANG}gemm_kernels_flydsl_hgemm": _split_k,
    "aiter::_gemm_a16w16_asm": _split_k_asm,
    "aiter::batched_gemm_a16wfp4_": _fp4_weights,
    "aiter::gemm_afp4wfp4_": _fp4,
    "aten::mm": partial(_mm, at=0, bias=False),
    "aten::addmm": partial(_mm, at=1, bias=True),
    "aten::_scaled_mm": _scaled_mm,
    "trtllm::cublas_scaled_mm": _scaled_mm,
    "bitsandbytes::int8_linear_matmul": _scaled_mm,
    "aten::bmm": partial(_bmm, at=0, bias=False),
    "tex_ts::te_gemm_ts": _transformer_engine,
    "aten::baddbmm": partial(_bmm, at=1, bias=True),
    "vllm::gemm_with_dynamic_quant": _dynamic_quant,
    **dict.fromkeys(
        (
            "_Linear_yfwd_mm",
            "_LinearBackward_xgrad_mm",
            "_LinearBackward_wgrad_mm",
            "_LayerNormLinear_yfwd_mm",
            "_LayerNormLinearBackward_xgrad_mm",
            "_LayerNormLinearBackward_wgrad_mm",
        ),
        _two_byte_output,
    ),
}
