"""Decompositions of layers that torch runs as one operator in inference.

A capture of a model disables these fused layers (`composite_ops.py`), and profiles are treated
alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

__all__ = ["LAYERS"]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Compute `nn.MultiheadAttention` of [batch, length, width]; keys may be padded (mask_type 1).

    Key and value are the query: torch takes them together in no other case.
    """
    is_padding = mask_type == 1
    given = query.transpose(0, 1)
    found, _ = functional.multi_head_attention_forward(
        given, given, given, embed_dim, num_head, qkv_weight, qkv_bias, None, None, False, 0.0,
        proj_weight, proj_bias, training=False, need_weights=need_weights,
        key_padding_mask=mask if is_padding else None, attn_mask=None if is_padding else mask,
        average_attn_weights=average_attn_weights,
    )  # fmt: skip
    return found.transpose(0, 1)


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Compute `nn.TransformerEncoderLayer` of [batch, length, width]."""
    activation = functional.gelu if use_gelu else functional.relu

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = activation(functional.linear(x, ffn_weight_1, ffn_bias_1))
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed(x))


LAYERS: dict[str, Callable[..., Any]] = {
    "aten::_native_multi_head_attention": _attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
}
"""Decompositions by fused operator."""
