"""Grouped products, routing, state spaces, rotary embeddings, losses as TraceLens counts them."""

from __future__ import annotations

from math import prod
from typing import Any

from torchtraceap.ops.models.tracelens.work import Call, Model, Work, bytes_of, precision_of

__all__ = ["CROSS_ENTROPY", "GROUPED", "MOE", "ROPE", "SSM"]

_DEFAULT_DTYPE = "c10::BFloat16"


def _element_bytes(call: Call) -> int:
    """Return the bytes of an element of the first argument; two if unknown."""
    return bytes_of(call.types[0] if call.types else _DEFAULT_DTYPE) or 2


def _spec(unit: str, call: Call) -> str:
    return precision_of(unit, call.types[0] if call.types else None)


def _grouped(call: Call) -> Work:
    """Count [M, K] times [groups, K, N] or [groups, N, K]."""
    (m, k), weights = call.dims[0][:2], call.dims[1]
    groups, n = weights[0], weights[2] if weights[1] == k else weights[1]
    if k not in weights[1:]:
        raise ValueError(call.dims)
    size_in = bytes_of(call.types[0])
    size_out = bytes_of(call.types[1]) if len(call.types) > 1 else size_in
    p = {"M": m, "K": k, "N": n, "G": groups, "bpe_in": size_in, "bpe_out": size_out}
    if size_in is None or size_out is None:
        raise ValueError(call.types)
    moved = (m * k + groups * k * n) * size_in + m * n * size_out
    return Work(p, 2 * m * k * n, moved, _spec("matrix", call))


def _routing(call: Call) -> Work:
    tokens, hidden = call.dims[0][:2]
    size = bytes_of(call.types[0]) if call.types[0] else None
    p = {"num_tokens": tokens, "hidden_dim": hidden, "bpe": size}
    return Work(p, 0, None if size is None else tokens * hidden * size, "")


def _causal_conv1d(call: Call) -> Work:
    batch, channels, length = call.dims[0]
    kernel = call.dims[1][1]
    bias = len(call.dims) > 2 and bool(call.dims[2])
    p = {
        "batch": batch,
        "channels": channels,
        "seq_len": length,
        "kernel_size": kernel,
        "has_bias": bias,
    }
    elements = 2 * batch * channels * length + channels * kernel + (channels if bias else 0)
    flops = 2 * batch * channels * length * kernel
    return Work(p, flops, elements * _element_bytes(call), _spec("matrix", call))


def _concrete_int(call: Call, place: int, default: int) -> int:
    text = call.concrete[place] if call.concrete and len(call.concrete) > place else ""
    return int(text) if text else default


def _mamba(call: Call) -> Work:
    """Count the four matrix terms of the chunked scan and its convolution (arXiv 2405.21060)."""
    batch, length, combined = call.dims[0]
    channels, width = call.dims[1][:2]
    heads = call.dims[3][0]
    chunk, size, groups = (
        _concrete_int(call, place, default) for place, default in ((6, 128), (15, 64), (16, 1))
    )
    inner = heads * size
    state, rest = divmod(combined - 2 * inner - heads, 2 * groups)
    if rest or state <= 0:
        raise ValueError(call.dims)
    p: dict[str, Any] = {
        "B": batch,
        "T": length,
        "H": heads,
        "P": size,
        "G": groups,
        "N": state,
        "C": chunk,
        "d_inner": inner,
        "d_conv": width,
        "conv_channels": channels,
        "combined_dim": combined,
    }
    per_token = channels * width + groups * chunk * state + heads * size * (chunk + 2 * state)
    element = _element_bytes(call)

    def size_at(place: int, default: int) -> int:
        known = len(call.types) > place and call.types[place]
        return (bytes_of(call.types[place]) if known else None) or default

    tensors = batch * length * (combined + inner) + channels * (width + 1)
    moved = tensors * element + heads * (size_at(3, 4) + size_at(4, 4) + size_at(5, element))
    flops = 2 * batch * length * per_token
    return Work(p, flops, moved, _spec("matrix", call), lambda: (flops, moved))


def _rope(call: Call) -> Work:
    length, batch, heads, size = call.dims[0]
    n = prod(call.dims[0])
    p = {"seq_len": length, "batch": batch, "heads": heads, "head_dim": size, "num_elements": n}
    return Work(p, 3 * n, 2 * n * _element_bytes(call), _spec("vector", call))


def _cross_entropy(call: Call) -> Work:
    shape = call.dims[0]
    batch, vocabulary = shape[0], shape[-1]
    p = {"batch": batch, "vocab_size": vocabulary, "logits_shape": shape}
    moved = prod(shape) * _element_bytes(call) + batch * (8 + 4)
    return Work(p, 5 * batch * vocabulary, moved, _spec("vector", call))


GROUPED: dict[str, Model] = dict.fromkeys(
    (
        "primus_turbo::grouped_gemm",
        "primus_turbo::grouped_gemm_impl",
        "primus_turbo_cpp_extension::grouped_gemm",
        "primus_turbo_cpp_extension::ck_grouped_gemm",
    ),
    _grouped,
)
MOE: dict[str, Model] = {"MoEDispatch": _routing, "MoECombine": _routing}
SSM: dict[str, Model] = {
    "DaoAILab::_causal_conv1d_fwd_cpp": _causal_conv1d,
    "MambaSplitConv1dScanCombinedFn": _mamba,
}
ROPE: dict[str, Model] = {"FusedRoPEFunc": _rope}
CROSS_ENTROPY: dict[str, Model] = {"CrossEntropyFunction": _cross_entropy}
