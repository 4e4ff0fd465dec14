"""Attention as TraceLens counts it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.tracelens.work import (
    Call,
    Model,
    Work,
    bytes_of,
    parse_bool,
    precision_of,
)

__all__ = ["MODELS"]

_BHND = (0, 1, 2, 3)
_BNHD = (0, 2, 1, 3)


def _halved(flops: float, p: dict[str, Any], n_q: float, n_kv: float) -> float:
    """Halve the FLOPs of causal attention, which TraceLens supports for equal lengths only."""
    if not p["causal"]:
        return flops
    if n_q != n_kv:
        raise ValueError((n_q, n_kv))
    return flops / 2


def _forward_flops(p: dict[str, Any], n_q: float, n_kv: float) -> float:
    per_pair = 2 * (p["d_h_qk"] + p["d_h_v"])
    return _halved(p["B"] * p["H_Q"] * n_q * n_kv * per_pair, p, n_q, n_kv)


def _backward_flops(p: dict[str, Any], n_q: float, n_kv: float) -> float:
    """Count five products if the kernel recomputes q k, else four, plus sums of grouped heads."""
    d_qk, d_v = p["d_h_qk"], p["d_h_v"]
    per_pair = 2 * (2 * d_v + (3 if p["flash_impl"] else 2) * d_qk)
    groups = p["H_Q"] // p["H_KV"] - 1
    flops = p["B"] * p["H_Q"] * n_q * n_kv * per_pair + p["B"] * n_kv * (d_qk + d_v) * groups
    return _halved(flops, p, n_q, n_kv)


def _forward_elements(p: dict[str, Any]) -> int:
    d = p["d_h_qk"] + p["d_h_v"]
    elements: int = p["B"] * d * (p["N_Q"] * p["H_Q"] + p["N_KV"] * p["H_KV"])
    return elements


def _backward_elements(p: dict[str, Any]) -> int:
    d = p["d_h_qk"] + p["d_h_v"]
    q = p["N_Q"] * p["H_Q"] * (2 * p["d_h_qk"] + p["d_h_v"])
    elements: int = p["B"] * (q + 2 * p["N_KV"] * p["H_KV"] * d)
    return elements


def _shapes(qkv: Sequence[Sequence[int]], order: Sequence[int]) -> Any:
    """Return batch, heads, lengths and head sizes; `order` gives their positions in a shape."""
    q, k, v = qkv
    batch, heads, n_q, d_q = (q[i] for i in order)
    batch_k, heads_k, n_k, d_k = (k[i] for i in order)
    batch_v, heads_v, n_v, d_v = (v[i] for i in order)
    if batch != batch_k or batch != batch_v or (heads_k, n_k, d_q) != (heads_v, n_v, d_k):
        raise ValueError((q, k, v))
    return {
        "B": batch,
        "N_Q": n_q,
        "H_Q": heads,
        "N_KV": n_k,
        "H_KV": heads_k,
        "d_h_qk": d_q,
        "d_h_v": d_v,
    }


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of the arguments of an operator; calling it computes the work."""

    q: int = 0
    order: tuple[int, ...] = _BNHD
    dropout: int | None = None
    causal: int = 0
    flash: bool = True
    dtypes: bool = False
    """True if TraceLens reads the dtypes; without them there is no Compute Spec."""
    strides: bool = False
    backward: bool = False

    def params(self, call: Call) -> dict[str, Any]:
        places = range(self.q, self.q + 3)
        p: dict[str, Any] = _shapes([call.dims[i] for i in places], self.order)
        if self.strides:
            names = ("q_stride", "k_stride", "v_stride")
            p |= {n: tuple(call.strides[i]) for n, i in zip(names, places, strict=True)}
        p["dropout"] = 0.0
        if self.dropout is not None:
            with suppress(ValueError):
                p["dropout"] = float(call.concrete[self.dropout])
        p["causal"] = call.concrete[self.causal].lower() == "true"
        p["flash_impl"] = self.flash
        if self.dtypes:
            p["dtype_A_B"] = tuple(call.types[:2])
        return p

    def __call__(self, call: Call) -> Work:
        return _work(self.params(call), backward=self.backward)


def _work(p: dict[str, Any], *, backward: bool, element_bytes: int | None = 2) -> Work:
    """Return the work with two bytes per element by default, for any dtype."""
    spec = precision_of("matrix", p.get("dtype_A_B", [None])[0])

    def of_backward() -> tuple[float, float | None]:
        flops = _backward_flops(p, p["N_Q"], p["N_KV"])
        return flops, None if element_bytes is None else _backward_elements(p) * element_bytes

    if backward:
        return Work(p, *of_backward(), spec)
    moved = None if element_bytes is None else _forward_elements(p) * element_bytes
    return Work(p, _forward_flops(p, p["N_Q"], p["N_KV"]), moved, spec, of_backward)


def _flash_backward(call: Call) -> Work:
    """Count (dout, q, k, v, ...), the only attention whose bytes depend on the dtype."""
    concrete = [*call.concrete, *[""] * 11]
    known = [text or default for text, default in ((concrete[8], "0"), (concrete[10], "True"))]
    texts = [*concrete[:8], known[0], concrete[9], known[1]]
    layout = _Layout(q=1, strides=True, dtypes=True, dropout=8, causal=10)
    p = layout.params(Call(call.name, call.dims, call.types, call.strides, texts))
    return _work(p, backward=True, element_bytes=bytes_of(p["dtype_A_B"][0]))


def _varlen(call: Call, *, q: int, at: int, backward: bool) -> Work:
    """Count one sequence of the greatest length and the rest of equal length.

    Args:
        call: The call.
        q: Position of the queries.
        at: Position of cu_seqlens_q.
        backward: The call is a backward pass.
    """
    flops = _backward_flops if backward else _forward_flops
    shapes = [[1, *call.dims[i]] for i in range(q, q + 3)]
    p: dict[str, Any] = _shapes(shapes, _BNHD)
    names = ("q_stride", "k_stride", "v_stride")
    p |= {n: tuple(call.strides[q + i]) for i, n in enumerate(names)}
    p["dropout"] = float(call.concrete[at + 4])
    p["causal"] = parse_bool(call.concrete[at + 6])
    p["flash_impl"] = True
    p["dtype_A_B"] = tuple(call.types[:2])
    sequences = call.dims[at][0] - 1, call.dims[at + 1][0] - 1
    longest = float(call.concrete[at + 2]), float(call.concrete[at + 3])
    p |= {"num_seqs_q": sequences[0], "num_seqs_kv": sequences[1]}
    p |= {"max_seqlen_q": longest[0], "max_seqlen_kv": longest[1]}
    total = flops(p, *longest)
    if sequences[0] > 1:
        rest_q = (p["N_Q"] - longest[0]) // (sequences[0] - 1)
        rest_kv = (p["N_KV"] - longest[1]) // (sequences[1] - 1)
        total += (sequences[0] - 1) * flops(p, rest_q, rest_kv)
    elements = _backward_elements(p) if backward else _forward_elements(p)
    spec = precision_of("matrix", p["dtype_A_B"][0])
    return Work(p, total, 2 * elements, spec)


def _evoformer(call: Call) -> Work:
    """Count shapes [batch, sequences, residues, heads, size]; sequences join the batch."""
    batch, sequences, length, heads, size = call.dims[0]
    p: dict[str, Any] = _shapes([(batch * sequences, length, heads, size)] * 3, _BNHD)
    p |= {"causal": False, "flash_impl": False, "dtype_A_B": [call.types[0]]}
    return _work(p, backward=False)


_FLASH = _Layout(strides=True, dropout=3, causal=5, dtypes=True)
_ATEN = _Layout(order=_BHND, dropout=5, causal=6, flash=False, dtypes=True)
_AITER = _Layout(dropout=3, causal=5)

MODELS: dict[str, Model] = {
    "FlashAttnFunc": _FLASH,
    "flash_attn::_flash_attn_forward": _FLASH,
    "flash_attn::_flash_attn_backward": _flash_backward,
    "flash_attn::_flash_attn_varlen_forward": partial(_varlen, q=0, at=3, backward=False),
    "flash_attn::_flash_attn_varlen_backward": partial(_varlen, q=1, at=9, backward=True),
    "aten::_scaled_dot_product_cudnn_attention": _ATEN,
    "aten::_scaled_dot_product_efficient_attention": _ATEN,
    "aten::_scaled_dot_product_flash_attention": _Layout(
        order=_BHND, dropout=3, causal=4, dtypes=True
    ),
    "aiter::_flash_attn_forward": _AITER,
    "aiter::_flash_attn_backward": _Layout(dropout=10, causal=12, backward=True),
    "aiter::wrapper_fmha_v3_fwd": _Layout(q=1, dropout=4, causal=6),
    "aiter::wrapper_fmha_v3_bwd": _Layout(q=1, dropout=7, causal=9, backward=True),
    "aiter::mha_fwd": _AITER,
    "aiter::fmha_v3_fwd": _AITER,
    "aiter::mha_bwd": _Layout(q=1, dropout=6, causal=8, backward=True),
    "flash_attn_3::fwd": _Layout(causal=24),
    "EvoformerAttention": _evoformer,
}
