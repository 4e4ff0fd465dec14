"""Matrix products as TraceLens counts them."""

from __future__ import annotations

from typing import Any

from torchtraceap.models.tracelens.work import Call, Model, Work, bytes_of, pair, precision_of

__all__ = ["MODELS"]


def _work(
    call: Call, params: dict[str, Any], sizes: tuple[int | None, ...], batch: int = 1
) -> Work:
    """A product with `sizes` in bytes of an element of A, B, bias and output."""
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
    """Parameters of A @ B that stand at places `at` and `at + 1`."""
    (m, k), n = call.dims[at][:2], call.dims[at + 1][1]
    stride_a, stride_b = pair(call.strides, at, at + 1)
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
    """All operands counted with the dtype of A, the output too."""
    return (bytes_of(params["dtype_A_B"][0]),) * 4


def _mm(call: Call) -> Work:
    params = _product(call, 0, bias=False)
    return _work(call, params, _like_a(params))


def _addmm(call: Call) -> Work:
    params = _product(call, 1, bias=True)
    return _work(call, params, _like_a(params))


def _batched(call: Call, at: int, *, bias: bool) -> Work:
    batch, m, k = call.dims[at]
    _, _, n = call.dims[at + 1]
    stride_a, stride_b = pair(call.strides, at, at + 1)
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


def _bmm(call: Call) -> Work:
    return _batched(call, 0, bias=False)


def _baddbmm(call: Call) -> Work:
    return _batched(call, 1, bias=True)


def _scaled_mm(call: Call) -> Work:
    """A and B in 8 bits give 16 bits; the bias is read off the number of arguments."""
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
    """The first two matrices among the arguments; the second holds its rows transposed."""
    a, b = [shape for shape in call.dims if isinstance(shape, list) and len(shape) == 2][:2]
    stride_a, stride_b = pair(call.strides, 0, 1)
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
    """`te_gemm_ts`: A at 0, B at 5, output at 10; whether they are transposed at 4 and 9."""
    a, b = call.dims[0], call.dims[5]
    m, k = (a[0], a[1]) if call.concrete[4] == "1" else (a[1], a[0])
    stride_a, stride_b = pair(call.strides, 0, 5)
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


MODELS: dict[str, Model] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::_scaled_mm": _scaled_mm,
    "trtllm::cublas_scaled_mm": _scaled_mm,
    "bitsandbytes::int8_linear_matmul": _scaled_mm,
    "aten::bmm": _bmm,
    "tex_ts::te_gemm_ts": _transformer_engine,
    "aten::baddbmm": _baddbmm,
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
