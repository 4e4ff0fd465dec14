"""Operators of vLLM, SGLang and AITER as TraceLens counts them.

Source: TraceLens at 021be668, PerfModel/extensions; no reference table has such operators.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from torchtraceap import _core
from torchtraceap.ops.models.arguments import lengths_of
from torchtraceap.ops.models.tracelens.norm import norm_params, rms_work
from torchtraceap.ops.models.tracelens.work import Call, Model, Work, bytes_of, precision_of

__all__ = [
    "ATTENTION",
    "COLLECTIVES",
    "EXPERTS_APART",
    "FUSED_EXPERTS",
    "GATED",
    "HYPER",
    "QUANT",
    "RMS_NORM",
    "ROPE",
    "ROUTING",
]


def _size(dtype: str) -> int:
    size = bytes_of(dtype)
    if size is None:
        raise ValueError(dtype)
    return size


def _vector(call: Call, at: int) -> str:
    return precision_of("vector", call.types[at])


# ---------------------------------------------------------------------------------- RMS norms


def _rms(call: Call, at: int, weight: int) -> Work:
    channels = call.dims[weight][0]
    return rms_work(norm_params(call, at, channels, affine=True, bias=False, training=False))


def _with_quantization(work: Work, flops: float, moved: float) -> Work:
    """Add FLOPs to the work of a norm and replace its bytes."""
    return replace(work, flops=work.flops + flops, bytes=moved)


def _rms_with_add(call: Call) -> Work:
    work = _rms(call, 1, 4)
    n, size = prod(call.dims[1]), _size(call.types[1])
    return _with_quantization(work, n, 4 * n * size + call.dims[4][0] * size)


def _quantized(work: Work, call: Call, at: int, channels: int, group: int) -> tuple[int, int]:
    """Return the elements and the bytes of input, weight, one-byte result and scales."""
    n, size = prod(call.dims[at]), _size(call.types[at])
    scales = n // channels * -(-channels // group) * 4
    return n, n * size + channels * size + n + scales


def _rms_per_token(call: Call) -> Work:
    work, channels = _rms(call, 1, 3), call.dims[3][0]
    n, moved = _quantized(work, call, 1, channels, channels)
    return _with_quantization(work, 2 * n, moved)


def _rms_group_into(call: Call) -> Work:
    work, channels = _rms(call, 1, 3), call.dims[3][0]
    group = int(call.concrete[5]) if call.concrete and call.concrete[5] else 0
    n, moved = _quantized(work, call, 1, channels, group if group > 0 else channels)
    return _with_quantization(work, 2 * n, moved)


def _rms_group(call: Call) -> Work:
    work = _rms(call, 0, 1)
    n, moved = _quantized(work, call, 0, call.dims[1][0], int(call.concrete[3]))
    return _with_quantization(work, 2 * n, moved)


def _rms_group_with_add(call: Call) -> Work:
    work = _rms(call, 0, 2)
    n, moved = _quantized(work, call, 0, call.dims[2][0], int(call.concrete[4]))
    return _with_quantization(work, 3 * n, moved + 2 * n * _size(call.types[0]))


def _rms_of_two(call: Call) -> Work:
    q, k = tuple(call.dims[0]), tuple(call.dims[3])
    wide, narrow = call.dims[1][0], call.dims[4][0]
    p = {
        "q_shape": q,
        "q_channels": wide,
        "k_shape": k,
        "k_channels": narrow,
        "dtype_q": call.types[0],
        "dtype_k": call.types[3],
    }
    flops = sum(prod(s) // c * (2 * c + 2) + 2 * prod(s) for s, c in ((q, wide), (k, narrow)))
    size_q, size_k = _size(call.types[0]), _size(call.types[3])
    moved = (2 * prod(q) + wide) * size_q + (2 * prod(k) + narrow) * size_k
    return Work(p, flops, moved, _vector(call, 0))


RMS_NORM: dict[str, Model] = {
    "aiter::rms_norm": partial(_rms, at=0, weight=1),
    "aiter::rmsnorm": partial(_rms, at=1, weight=2),
    "aiter::rmsnorm2d_fwd_ck": partial(_rms, at=0, weight=1),
    "aiter::rmsnorm2d_fwd_with_add_ck": _rms_with_add,
    "aiter::add_rmsnorm": _rms_with_add,
    "aiter::rmsnorm2d_fwd_with_dynamicquant_ck": _rms_per_token,
    "aiter::rmsnorm_quant": _rms_group_into,
    "vllm::rocm_aiter_rmsnorm_fp8_group_quant": _rms_group,
    "vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant": _rms_group_with_add,
    "aiter::_fused_qk_rmsnorm_kernel": _rms_of_two,
}

# ------------------------------------------------------------------------- gated activations


def _gated(operations: int) -> Model:
    def model(call: Call) -> Work:
        shape = tuple(call.dims[0])
        p = {
            "op_shape": shape,
            "dtype_in_out": (call.types[1], call.types[0]),
            "stride_input": tuple(call.strides[1]),
            "stride_output": tuple(call.strides[0]),
        }
        n = prod(shape)
        moved = 2 * n * _size(call.types[1]) + n * _size(call.types[0])
        return Work(p, operations * n, moved, _vector(call, 1))

    return model


GATED: dict[str, Model] = {
    "aiter::silu_and_mul": _gated(5),
    "_C::silu_and_mul": _gated(5),
    "sgl_kernel::silu_and_mul": _gated(5),
    "aiter::gelu_and_mul": _gated(8),
    "aiter::gelu_tanh_and_mul": _gated(10),
}

# ------------------------------------------------------------------------------ quantisation

_PER_ELEMENT = 2.59375
"""Operations per element that TraceLens measured with a rocprof counter."""


def _quant_into(call: Call) -> Work:
    """Count (out, input, scales); like TraceLens, take an input that comes first for the output."""
    shapes = [tuple(shape) for shape in call.dims[:3]]
    strides = [tuple(stride) for stride in call.strides[:3]]
    out, x, scales = call.types[:3]
    p = {
        "shape_in1": shapes[1],
        "shape_in2": shapes[2],
        "shape_out": shapes[0],
        "dtype_in1_in2_out": (x, scales, out),
        "stride_input1": strides[1],
        "stride_input2": strides[2],
        "stride_output": strides[0],
    }
    moved = sum(
        prod(shape) * _size(dtype) for shape, dtype in zip(shapes, call.types, strict=False)
    )
    return Work(p, prod(shapes[0]) * _PER_ELEMENT, moved, _vector(call, 1))


def _quant_groups(call: Call) -> Work:
    shape = tuple(call.dims[0])
    rows, width = (shape[0], shape[1]) if len(shape) > 1 else (1, shape[0] if shape else 1)
    text = call.concrete[1].strip() if call.concrete and len(call.concrete) > 1 else ""
    group = int(text) if text.lstrip("-").isdigit() else 128
    groups = max(1, (width + group - 1) // group)
    p = {
        "M": rows,
        "N": width,
        "group_size": group,
        "num_groups": groups,
        "shape_x": shape,
        "dtype_x": call.types[0],
    }
    n = rows * width
    moved = n * _size(call.types[0]) + n + rows * groups * 4
    return Work(p, 6 * n, moved, _vector(call, 0))


def _mxfp4(at: int, *, strides: bool) -> Model:
    def model(call: Call) -> Work:
        shape, dtype = tuple(call.dims[at]), call.types[at]
        p = {
            "op_shape": shape,
            "dtype_in_out": (dtype, dtype),
            "stride_input": tuple(call.strides[at]) if strides else None,
            "stride_output": None,
        }
        n = prod(shape)
        return Work(p, 2 * n, n * _size(dtype) + n * 0.5 + n // 32, _vector(call, at))

    return model


_FLAT = "sglang_profiler::fused_mxfp4_quant_fused_flatten_mxfp4_quant"
QUANT: dict[str, Model] = {
    "aiter::dynamic_per_token_scaled_quant": _quant_into,
    "aiter::dynamic_per_group_scaled_quant": _quant_into,
    "aiter::dynamic_per_tensor_quant": _quant_into,
    "_C::per_token_group_fp8_quant": _quant_into,
    "vllm::triton_per_token_group_quant_fp8": _quant_groups,
    _FLAT: _mxfp4(0, strides=True),
    "sglang_profiler::quant_dynamic_mxfp4_quant": _mxfp4(0, strides=False),
    "aiter::fused_dynamic_mx_quant_moe_sort_hip": _mxfp4(2, strides=True),
    "aiter::fused_dynamic_mxfp4_quant_moe_sort_hip": _mxfp4(2, strides=False),
    "aiter::dynamic_per_group_scaled_quant_fp4": _mxfp4(1, strides=False),
}

# -------------------------------------------------------------------------- rotary embeddings


def _rope_of_two(call: Call) -> Work:
    x, y = tuple(call.dims[2]), tuple(call.dims[3])
    n = prod(x) + prod(y)
    p = {"x_shape": x, "y_shape": y, "num_elements": n}
    return Work(p, 3 * n, 2 * n * (bytes_of(call.types[0]) or 2), _vector(call, 0))


def _rope_in_place(call: Call) -> Work:
    query, key = call.dims[1], call.dims[2]
    text = call.concrete[3].strip() if call.concrete and len(call.concrete) > 3 else ""
    head = int(text) if text else query[-1]
    table = call.dims[4] if len(call.dims) > 4 else []
    width = table[1] if len(table) > 1 else head
    n = query[0] * (query[1] // head + key[1] // head) * width
    return Work(
        {"num_elements": n}, 3 * n, 2 * n * (bytes_of(call.types[1]) or 2), _vector(call, 1)
    )


ROPE: dict[str, Model] = {
    "aiter::rope_cached_positions_2c_fwd_impl": _rope_of_two,
    "sgl_kernel::rotary_embedding": _rope_in_place,
}

# ---------------------------------------------------------------------- attention, its caches


def _store(call: Call) -> Work:
    shape, dtype = tuple(call.dims[0]), call.types[0]
    n = prod(shape)
    p = {"op_shape": shape, "nelems": n, "dtype": dtype}
    return Work(p, 0, 4 * n * (bytes_of(dtype) or 2), _vector(call, 0))


def _store_latent(call: Call) -> Work:
    tokens, latent = call.dims[0][:2]
    rotary = call.dims[1][1]
    c, k, cache = call.types[:3]
    p = {
        "T": tokens,
        "d_ckv": latent,
        "d_pe": rotary,
        "dtype_kv_c": c,
        "dtype_k_pe": k,
        "dtype_cache": cache,
    }
    read = tokens * (latent * _size(c) + rotary * _size(k) + 8)
    return Work(p, 0, read + tokens * (latent + rotary) * _size(cache), _vector(call, 0))


def _concatenate_query(call: Call) -> Work:
    shapes = [tuple(shape) for shape in call.dims[:3]]
    names = ("shape_nope", "shape_pe", "shape_out", "dtype_nope", "dtype_pe", "dtype_out")
    p = dict(zip(names, (*shapes, *call.types[:3]), strict=True))
    moved = sum(prod(s) * _size(t) for s, t in zip(shapes, call.types[:3], strict=True))
    return Work(p, 0, moved, _vector(call, 0))


def _needs_annotations(call: Call) -> Work:
    """Fail, because TraceLens takes the lengths from annotations of a patched engine."""
    raise ValueError(call.name)


def _unified(call: Call) -> Work:
    """Count attention of vLLM by the lengths in the name of the iteration: prompts are causal."""
    mark = _core.read_iteration_name(call.batch) if call.batch else None
    lengths = lengths_of(mark) if mark else []
    if len(lengths) != 2:
        return _needs_annotations(call)
    (tokens, heads, width), (keys, kv_heads, _), (_, v_heads, v_width) = call.dims[:3]
    query, cached = call.types[:2]
    p = {
        "B": 1, "N_Q": tokens, "H_Q": heads, "H_V": v_heads, "H_K": kv_heads, "N_KV": keys,
        "H_KV": kv_heads, "d_h_qk": width, "d_h_v": v_width, "dropout": 0.0, "causal": False,
        "flash_impl": True,
    }  # fmt: skip
    for kind, sums in zip("cg", lengths, strict=True):
        for name, value in zip(("sq", "sk", "sqsq", "sqsk"), sums, strict=True):
            p[f"{kind}_{name}"] = value
    p |= {"dtype_Q": query, "dtype_KV": cached}
    (c_sq, c_sk, c_squares, c_pairs), (g_sq, g_sk, _, g_pairs) = lengths
    flops = 2 * heads * (width + v_width) * (c_pairs - c_squares / 2 + g_pairs)
    elements = (c_sq + g_sq) * heads * (width + v_width)
    elements += (c_sk + g_sk) * kv_heads * (width + v_width)
    return Work(p, flops, elements * (bytes_of(query) or 2), precision_of("matrix", query))


ATTENTION: dict[str, Model] = {
    "vllm::unified_attention_with_output": _unified,
    "vllm::gdn_attention_core": _needs_annotations,
    "aiter::linear_attention_with_output_base": _needs_annotations,
    "aiter::mha_batch_prefill": _needs_annotations,
    "aiter::pa_decode_gluon": _needs_annotations,
    "sglang_profiler::attention_paged_attention_ragged": _needs_annotations,
    "sglang::store_cache": _store,
    "_C_cache_ops::concat_and_cache_mla": _store_latent,
    "_C_cache_ops::concat_mla_q": _concatenate_query,
}

# ------------------------------------------------------------------------------------- experts


def _fused_experts(call: Call) -> Work:
    """Count (out, input, gate, down, ...) with the experts that a uniform choice reads."""
    tokens, up, down = call.dims[0][0], call.dims[2], call.dims[3]
    _, hidden, inner = down
    inner *= hidden // up[-1]
    experts, gated, chosen = up[0], up[1] == 2 * inner, int(call.concrete[8])
    out, x, weight = call.types[:3]
    p = {
        "num_tokens": tokens,
        "hidden_dim": hidden,
        "inter_dim": inner,
        "num_experts": experts,
        "topk": chosen,
        "gated": gated,
        "input_dtype": x,
        "weight_dtype": weight,
        "output_dtype": out,
    }
    products = 3 if gated else 2
    flops = 2 * products * tokens * hidden * inner * chosen + tokens * hidden * (2 * chosen - 1)
    active = experts * (1 - ((experts - chosen) / experts) ** tokens)
    moved = (
        tokens * hidden * ((bytes_of(x) or 1) + (bytes_of(out) or 2))
        + active * inner * hidden * products * (bytes_of(weight) or 1)
    )  # fmt: skip
    return Work(p, flops, moved, precision_of("matrix", x))


def _experts_apart(call: Call, *, is_up: bool) -> Work:
    """Count a product of all experts; their inner width is taken for that of the tokens."""
    (tokens, width), (_, experts) = call.dims[:2]
    # Of the range around it stands here what `pseudo_ops` notes: "4 gated".
    topk, *rest = (call.batch or "").split()
    chosen, gated = int(topk), rest == ["gated"]
    dtype = call.types[0]
    p = {
        "num_tokens": tokens, "hidden_dim": width, "inter_dim": width, "num_experts": experts,
        "topk": chosen, "gated": gated, "input_dtype": dtype, "weight_dtype": "FP4",
    }  # fmt: skip
    times = 2 if gated and is_up else 1
    read = experts * (1 - ((experts - chosen) / experts) ** tokens)
    moved = tokens * width * (1 + chosen) * (bytes_of(dtype) or 2)
    moved += times * read * width * width * _FP4_BYTES
    return Work(p, 2 * times * tokens * chosen * width * width, moved, "matrix_fp4")


_FP4_BYTES = 0.5

EXPERTS_APART: dict[str, Model] = {
    "pseudo_op::moe_triton_unfused_up": partial(_experts_apart, is_up=True),
    "pseudo_op::moe_triton_unfused_down": partial(_experts_apart, is_up=False),
}
"""Operators that the inference report puts around the kernels of `vllm::moe_forward`."""

FUSED_EXPERTS: dict[str, Model] = {
    "aiter::fmoe_fp8_blockscale_g1u1": _fused_experts,
    "aiter::fmoe_g1u1": _fused_experts,
}


def _softplus(call: Call) -> Work:
    (tokens, experts), chosen = call.dims[2][:2], call.dims[0][1]
    p: dict[str, Any] = {"M": tokens, "n": 1, "C": experts, "E": experts, "topk": chosen}
    p["dtype_in"] = call.types[2]
    moved = tokens * experts * _size(call.types[2]) + experts * 4 + 2 * tokens * chosen * 4
    return Work(p, 6 * tokens * experts, moved, _vector(call, 2))


ROUTING: dict[str, Model] = {"aiter::topk_softplus": _softplus}

# --------------------------------------------------------------------------- hyper-connections


def _streams(call: Call, m: int, n: int, c: int, at: int, **more: Any) -> dict[str, Any]:
    return {"M": m, "n": n, "C": c, "hc3": None, **more, "dtype_in": call.types[at]}


def _post(call: Call) -> Work:
    (m, c), n = call.dims[1][:2], call.dims[0][1]
    size = _size(call.types[1])
    moved = m * c * size * (1 + 2 * n) + (m * n + m * n * n) * 4
    return Work(_streams(call, m, n, c, 1), 2 * m * n * c * (n + 1), moved, _vector(call, 1))


def _project(call: Call) -> Work:
    (m, n, c), (rows, depth), split = call.dims[2], call.dims[3], call.dims[0][0]
    p = _streams(call, m, n, c, 2, hc3=rows, K=depth, split_k=split)
    moved = m * n * c * _size(call.types[2]) + (rows * depth + split * m * (rows + 1)) * 4
    return Work(p, 2 * m * rows * depth, moved, precision_of("matrix", call.types[2]))


def _mix(call: Call) -> Work:
    (m, c), n, rows, split = call.dims[2][:2], call.dims[0][1], call.dims[6][0], call.dims[3][0]
    size = _size(call.types[7])
    p = _streams(call, m, n, c, 7, hc3=rows, split_k=split)
    moved = (m * n * c + c + m * c) * size + (split * m * rows + m * n + m * n * n) * 4
    return Work(p, 2 * m * c * n + 5 * m * c, moved, _vector(call, 7))


def _post_and_project(call: Call) -> Work:
    (m, c), n = call.dims[3][:2], call.dims[2][1]
    (rows, depth), split = call.dims[7][:2], call.dims[0][0]
    size = _size(call.types[3])
    p = _streams(call, m, n, c, 3, hc3=rows, K=depth, split_k=split)
    numbers = m * n + m * n * n + rows * depth + split * m * (rows + 1)
    moved = m * c * size * (1 + 3 * n) + numbers * 4
    flops = 2 * m * n * c * (n + 1) + 2 * m * rows * depth
    return Work(p, flops, moved, precision_of("matrix", call.types[3]))


HYPER: dict[str, Model] = {
    "aiter::mhc_post": _post,
    "aiter::mhc_pre_gemm_sqrsum": _project,
    "aiter::mhc_pre_big_fuse_rmsnorm": _mix,
    "aiter::mhc_fused_post_pre_gemm_sqrsum": _post_and_project,
}

# --------------------------------------------------------------------------------- collectives


def _all_reduce(call: Call) -> Work:
    shape, dtype = tuple(call.dims[1]), call.types[1]
    p = {"op_shape": shape, "dtype_in": dtype, "stride_input": tuple(call.strides[1])}
    return Work(p, 0, 2 * prod(shape) * _size(dtype), "")


def _shared_out(call: Call) -> Work:
    shape, out, dtype = tuple(call.dims[1]), tuple(call.dims[2]), call.types[1]
    p = {"op_shape": shape, "out_shape": out, "dtype_in": dtype}
    p["stride_input"] = tuple(call.strides[1])
    return Work(p, 0, (prod(shape) + prod(out)) * _size(dtype), "")


def _reduced_norm(call: Call) -> Work:
    shape, dtype, channels = tuple(call.dims[2]), call.types[2], call.dims[6][0]
    p = {
        "op_shape": shape,
        "dtype_in": dtype,
        "stride_input": tuple(call.strides[2]),
        "num_channels": channels,
    }
    n = prod(shape)
    flops = n + n // channels * (2 * channels + 2) + 2 * n
    return Work(p, flops, (4 * n + channels) * _size(dtype), "")


COLLECTIVES: dict[str, Model] = {
    "aiter::fused_allreduce_rmsnorm": _reduced_norm,
    "_C_custom_ar::all_reduce": _all_reduce,
    "aiter::reduce_scatter": _shared_out,
    "aiter::all_gather_reg": _shared_out,
}
