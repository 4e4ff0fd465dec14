"""`kernel_kind` and `layers_and_roles`: what a kernel of a served model is for.

Names tell most kernels apart: norms, attention, rotary embedding, collectives, experts. What a
matrix product is for, its place tells: products before attention make queries, keys and values, the
one behind it projects the output, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models.families import family_of
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.serving.layers import KernelClasses, fold_layers

__all__ = ["ROLES", "kernel_kind", "kinds_of", "layers_and_roles"]

ROLES = (
    "norm",
    "qkv",
    "rope",
    "kv_write",
    "attention",
    "attention_output",
    "router",
    "dispatch",
    "experts_up",
    "experts_down",
    "combine",
    "gate_up",
    "activation",
    "down",
    "all_reduce",
    "quantize",
    "embedding",
    "lm_head",
    "sampling",
    "metadata",
    "other",
)
"""Every role."""

_WORDS: tuple[tuple[str, str], ...] = (
    ("dispatch", r"dispatch(?!er)"),
    ("combine", r"combine(?!d|.*(?:attn|attention|split|flash|mla|fmha))"),
    ("sampling", r"sampl|argmax|top_?k_?top_?p|topptopk|gumbel|rejection|penalt"),
    ("rope", r"rope|rotary"),
    ("kv_write", r"reshape_and_cache|(?<!paged)kv_?cache|store_?cache|set_kv|concat_and_cache"),
    ("router", r"top_?k|gating|grouped_?topk|moe_align|routing|bitmatrix|moe_?sort|sort_tokens"),
    ("experts", r"matmul_ogs|moe_?gemm|fused_moe|moe_?kernel|group(?:ed)?_?gemm|m_?grouped|"
     r"bmm_.*(?:swiglu|expert)|moe.*(?:gemm|matmul|mlp)|fmoe|expert.*gemm"),
    ("combine", r"moe_?(?:sum|finalize|reduce|unpermute)|finalize_(?:matmul|moe)|unpermute"),
    ("norm", r"norm"),
    ("activation", r"act_and_mul|silu|gelu|swiglu|relu"),
    ("quantize", r"quant|per_token_cast|to_fp8|cast_fp8|fp4_convert"),
    ("embedding", r"embedding|vectorized_gather|indexselect|index_select"),
)  # fmt: skip
_OF_FAMILY = {
    "attention_forward": "attention",
    "normalization_forward": "norm",
    "gemm": "product",
    "grouped_gemm": "experts",
    "communication": "all_reduce",
    "rope": "rope",
    "kv_cache": "kv_write",
    "activation": "activation",
    "quantization": "quantize",
    "copy": "metadata",
    "memory_set": "metadata",
    "moe": "router",
    "ssm": "attention",
}
_PARTS_OF_COLLECTIVE = ("dispatch", "combine")


@lru_cache(maxsize=1 << 14)
def kernel_kind(name: str) -> str:
    """Return what the name of a kernel says: one of `ROLES`, `product` for a matrix product whose
    purpose its place tells, or `experts` for one of several experts."""
    lower = canonical_name(name).lower()  # template arguments name what is not done as well
    family = family_of("", [name])
    kind = next((kind for kind, words in _WORDS if re.search(words, lower)), None)
    if family == "attention_forward" and kind != "kv_write":
        return "attention"
    if family == "communication":
        return kind if kind in _PARTS_OF_COLLECTIVE else "all_reduce"
    if family == "gemm" and kind not in ("experts", "router"):
        return "product"
    return kind or _OF_FAMILY.get(family, "other")


def kinds_of(events: GpuEvents) -> Array:
    """Return what the name of each event says, object `[n]` of str."""
    codes, index = np.unique(events.name, return_inverse=True)
    kinds = np.array([kernel_kind(events.texts[code]) for code in codes.tolist()], dtype=object)
    found: Array = kinds[index]
    return found


def layers_and_roles(names: Array, kinds: Array, noted: Array | None = None) -> tuple[Array, Array]:
    """Find the layers of one pass through a model, and what each kernel is for.

    Args:
        names: int64 `[n]`: a code for the name of each kernel, in order.
        kinds: Object `[n]`: what the names say.
        noted: int64 `[n]`: layers that are known; where there is one, none are looked for.

    Returns:
        int64 `[n]`: the layers, -1 outside; int32 `[n]`: the roles, index in `ROLES`. All -1 where
        there are no layers.
    """
    classes = KernelClasses(
        norm=kinds == "norm",
        attention=kinds == "attention",
        product=(kinds == "product") | (kinds == "experts"),
    )
    is_noted = noted is not None and bool((noted >= 0).any())
    layer = noted if noted is not None and is_noted else fold_layers(names, classes)
    if not (layer >= 0).any():
        return layer, np.full(len(layer), -1, dtype=np.int32)
    roles = _roles_outside(kinds.tolist(), layer)
    for number in np.unique(layer[layer >= 0]).tolist():
        inside = np.flatnonzero(layer == number)
        own = _roles_in_layer(kinds[inside].tolist())
        for place, role in zip(inside.tolist(), own, strict=True):
            roles[place] = role
    return layer, np.array([ROLES.index(role) for role in roles], dtype=np.int32)


def _roles_in_layer(kinds: Sequence[str]) -> list[str]:
    """Return the role of each kernel of one layer, in order, given what their names say.

    Products before attention make queries, keys and values, the first behind it projects its
    output. Of those that follow, one before the router's kernels scores the experts; the others are
    the feed-forward network, up to its activation and from there on.
    """
    first = next((place for place, kind in enumerate(kinds) if kind == "attention"), -1)
    last = max((place for place, kind in enumerate(kinds) if kind == "attention"), default=-1)
    routed = any(kind in ("router", "experts", "dispatch") for kind in kinds[last + 1 :])
    router = next(
        (place for place in range(last + 1, len(kinds)) if kinds[place] == "router"), len(kinds)
    )
    products = [place for place in range(last + 1, len(kinds)) if kinds[place] == "product"]
    dense = [place for place in products if place < router] if routed else products
    output = dense[0] if first >= 0 and dense else -1
    roles = list(kinds)
    for place, kind in enumerate(kinds):
        if kind == "product":
            if place < last:
                roles[place] = "qkv"
            elif place == output:
                roles[place] = "attention_output"
            elif routed and place < router:
                roles[place] = "router"
            else:
                roles[place] = _half(kinds, place, max(output, last), "gate_up", "down", products)
        elif kind == "experts":
            experts = [at for at, other in enumerate(kinds) if other == "experts"]
            roles[place] = _half(kinds, place, last, "experts_up", "experts_down", experts)
    return roles


def _half(
    kinds: Sequence[str], place: int, begin: int, up: str, down: str, products: Sequence[int]
) -> str:
    """Tell the two halves of a feed-forward network by its activation, or where that is fused by
    the order of the products."""
    after = [at for at in products if at > begin]
    activations = [at for at in range(begin + 1, len(kinds)) if kinds[at] == "activation"]
    cut = activations[0] if activations else after[len(after) // 2] - 1 if len(after) > 1 else None
    return up if cut is None or place <= cut else down


def _roles_outside(kinds: Sequence[str], layer: Array) -> list[str]:
    """Return the roles of kernels outside of layers; those inside stay as they are.

    Args:
        kinds: What the names say, in order.
        layer: int64 `[n]`: the layer of each kernel, -1 outside.
    """
    inside = np.flatnonzero(layer >= 0)
    last = int(inside[-1]) if len(inside) else -1
    roles = list(kinds)
    for place in np.flatnonzero(layer < 0).tolist():
        kind = kinds[place]
        if kind == "product":
            roles[place] = "lm_head" if place > last else "other"
        elif kind == "experts":
            roles[place] = "experts_up"
        elif kind in ("router", "other") and place > last >= 0:
            # Sorting and softmax behind the last layer choose tokens, not experts.
            roles[place] = "sampling" if kind == "router" else "other"
    return roles
