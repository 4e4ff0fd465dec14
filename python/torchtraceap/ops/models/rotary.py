"""Models of rotary position embeddings with 3 operations for each rotated element.

Two rotated elements take four multiplications, an addition and a subtraction. The other elements
are copied, or left alone if the operator works in place.
"""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.paged_attention import rows_written
from torchtraceap.ops.models.registry import Work, register

__all__ = ["ROTATION"]

ROTATION = 3
_NORM = 4  # square, sum; multiply by the reciprocal root, by the weight
_WHOLE_HEADS = "all of each head is counted as rotated"


def _angles(positions: Tensor, *tables: Tensor) -> int:
    """Return the bytes of the positions and of the rows of the tables that they select."""
    picked = 0
    for table in tables:
        rows = table.shape[0] if table.shape else 0
        if not rows:
            raise UnknownWorkError("the table of angles is empty")
        picked += min(positions.elements, rows) * (table.bytes // rows)
    return positions.bytes + picked


@register("_C::rotary_embedding", "sgl_kernel::rotary_embedding")
@register("vllm::rocm_aiter_triton_rotary_embedding", composite=True)
def rotary_in_place(call: OpCall) -> Work:
    """Arguments: (positions, query, key, head_size, cos_sin_cache, is_neox)"""
    table = call.tensor(4)
    if len(table.shape) != 2:
        raise UnknownWorkError("the table of angles has not two dimensions")
    return _in_place(call, table.shape[1], call.integer(3, 0), _angles(call.tensor(0), table))


@register("aiter::rotary_embedding_fwd")
def rotary_in_place_two_tables(call: OpCall) -> Work:
    """Arguments: (positions, query, key, head_size, cos_cache, sin_cache, ...): each of half the
    angles."""
    cos, sin = call.tensor(4), call.tensor(5)
    width = 2 * cos.shape[-1] if cos.shape else 0
    return _in_place(call, width, call.integer(3, 0), _angles(call.tensor(0), cos, sin))


def _in_place(call: OpCall, width: int, head: int, angles: int) -> Work:
    """Count an in-place rotation of `width` elements in each head of query and key."""
    query, key = call.tensor(1), call.optional_tensor(2)
    tensors = [query] if key is None else [query, key]
    known = head >= width > 0 and all(tensor.elements % head == 0 for tensor in tensors)
    share = width / head if known else 1
    moved = share * sum(tensor.elements * tensor.dtype.size for tensor in tensors)
    return Work(
        ROTATION * share * sum(tensor.elements for tensor in tensors),
        moved + angles,
        moved,
        upper_bound=not known,
        notes=() if known else (_WHOLE_HEADS,),
    )


@register("aiter::rope_cached_positions_2c_fwd_impl")
def rotary_of_two(call: OpCall) -> Work:
    """Arguments: (out_x, out_y, x, y, cos, sin, positions, rotate_style, reuse_front, nope_first)

    The tables hold half of the angles where the front half is used again, else all.
    """
    outs, inputs = [call.tensor(0), call.tensor(1)], [call.tensor(2), call.tensor(3)]
    cos, sin, positions = (call.tensor(i) for i in (4, 5, 6))
    if any(out.shape != x.shape or not x.shape for out, x in zip(outs, inputs, strict=True)):
        raise UnknownWorkError("its outputs do not fit its inputs")
    width = (cos.shape[-1] if cos.shape else 0) * (2 if call.boolean(8) else 1)
    heads = sum(x.elements // x.shape[-1] for x in inputs if x.shape[-1])
    if any(width > x.shape[-1] for x in inputs):
        raise UnknownWorkError("there are more angles than elements of a head")
    return Work(
        ROTATION * heads * width,
        sum(x.bytes for x in inputs) + _angles(positions, cos, sin),
        sum(out.bytes for out in outs),
    )


@register("sgl_kernel::apply_rope_pos_ids_cos_sin_cache")
def rotary_from_positions(call: OpCall) -> Work:
    """Arguments: (q, k, q_rope, k_rope, cos_sin_cache, positions, interleave, ...), perhaps with a
    cache.

    (..., v, k_buffer, v_buffer, kv_cache_loc) write keys and values to a cache as well.
    """
    inputs, outs = [call.tensor(0), call.tensor(1)], [call.tensor(2), call.tensor(3)]
    table, positions = call.tensor(4), call.tensor(5)
    if any(out.elements != x.elements for out, x in zip(outs, inputs, strict=True)):
        raise UnknownWorkError("its outputs do not fit its inputs")
    if any(call.optional_tensor(i) is not None for i in (10, 11)):
        raise UnknownWorkError("which of its outputs are written is not recorded")
    rotated = 0
    for x in inputs:
        if len(x.shape) < 3 or len(table.shape) != 2 or table.shape[1] > x.shape[-1]:
            raise UnknownWorkError("heads and angles do not fit together")
        rotated += x.elements // max(x.shape[-1], 1) * table.shape[1]
    read = sum(x.bytes for x in inputs) + _angles(positions, table)
    return Work(ROTATION * rotated, read, sum(out.bytes for out in outs))


@register("FusedRoPEFunc", composite=True)
def rotary_transformer_engine(call: OpCall) -> Work:
    """Arguments: (input, angles, ...): (..., heads, depth); elements beyond the angles are
    copied."""
    x, angles = call.tensor(0), call.tensor(1)
    width = angles.shape[-1] if angles.shape else 0
    if len(x.shape) < 3 or not 0 < width <= x.shape[-1]:
        raise UnknownWorkError("heads and angles do not fit together")
    rotated = x.elements // x.shape[-1] * width
    return Work(ROTATION * rotated, x.bytes + angles.bytes, x.elements * x.dtype.size)


@register("_C::fused_qk_norm_rope")
def norm_and_rotary(call: OpCall) -> Work:
    """Arguments: (qkv, heads_q, heads_k, heads_v, head_dim, eps, q_weight, k_weight, cos_sin,
    is_neox, pos)

    In place; values are not touched.
    """
    qkv, table = call.tensor(0), call.tensor(8)
    q, k, v, depth = (call.integer(i) for i in range(1, 5))
    if len(qkv.shape) != 2 or qkv.shape[1] != (q + k + v) * depth or len(table.shape) != 2:
        raise UnknownWorkError("its heads do not fit its input")
    touched = qkv.shape[0] * (q + k)
    weights = call.tensor(6).bytes + call.tensor(7).bytes
    moved = touched * depth * qkv.dtype.size
    return Work(
        touched * (_NORM * depth + ROTATION * min(table.shape[1], depth)),
        moved + weights + _angles(call.tensor(10), table),
        moved,
    )


# --------------------------------------------------------- rotated into a latent cache (MLA)


@register("aiter::fused_qk_rope_cat_and_cache_mla", composite=True)
def rotary_and_latent_cache(call: OpCall) -> Work:
    """Arguments: (q_nope, q_pe, k_nope, k_pe, kv_cache, slots, positions, cos, sin, k_scale,
    is_neox, zero_rows, apply_scale, q_out, decode_q_pe_out, k_pe_out, q_out_dtype, ...)

    The query is returned whole; rotated parts are returned alone as well where asked.
    """
    if call.integer(11, 0):
        raise UnknownWorkError("how many rows it clears is not modeled")
    q, q_pe, k, k_pe = (call.tensor(i) for i in range(4))
    given = call.optional_tensor(13)
    out_type = (given.dtype if given else None) or call.dtype_argument(16) or q.dtype
    written = (q.elements + q_pe.elements) * out_type.size + k_pe.elements * k_pe.dtype.size
    return _latent(call, (q, q_pe, k, k_pe), (6, 7, 8), written)


@register("aiter::fused_qk_rope_concat_and_cache_mla")
def rotary_and_latent_cache_into(call: OpCall) -> Work:
    """Arguments: (q_nope, q_pe, kv_c, k_pe, kv_cache, q_out, slots, k_scale, q_scale, positions,
    cos, sin)"""
    q, q_pe, k, k_pe, out = (call.tensor(i) for i in (0, 1, 2, 3, 5))
    if out.elements != q.elements + q_pe.elements:
        raise UnknownWorkError("its output does not fit its input")
    return _latent(call, (q, q_pe, k, k_pe), (9, 10, 11), out.bytes, slots_at=6)


def _latent(
    call: OpCall,
    parts: tuple[Tensor, Tensor, Tensor, Tensor],
    angles_at: tuple[int, int, int],
    written: int,
    slots_at: int = 5,
) -> Work:
    """Count rotating the second and fourth part and storing the third next to the fourth."""
    cache, slots = call.tensor(4), call.tensor(slots_at)
    rows = parts[2].shape[0] if parts[2].shape else 0
    per_row = (parts[2].elements + parts[3].elements) // rows if rows else 0
    if not cache.shape or per_row % max(cache.shape[-1], 1):
        raise UnknownWorkError("keys do not fit the rows of their cache")
    angles = _angles(*(call.tensor(i) for i in angles_at))
    return Work(
        ROTATION * (parts[1].elements + parts[3].elements),
        sum(part.bytes for part in parts) + slots.bytes + angles,
        written + rows_written(rows, slots) * per_row * cache.dtype.size,
    )


@register("_C_cache_ops::concat_and_cache_mla_rope_fused")
def rotary_in_place_and_latent_cache(call: OpCall) -> Work:
    """Arguments: (positions, q_pe, k_pe, kv_c, cos_sin_cache, is_neox, slots, kv_cache, ...)"""
    positions, q, k, latent, table = (call.tensor(i) for i in range(5))
    slots, cache = call.tensor(6), call.tensor(7)
    if not cache.shape or not latent.shape:
        raise UnknownWorkError("a cache without rows")
    stored = rows_written(latent.shape[0], slots) * cache.shape[-1] * cache.dtype.size
    rotated = q.elements * q.dtype.size + k.elements * k.dtype.size
    return Work(
        ROTATION * (q.elements + k.elements),
        rotated + latent.bytes + slots.bytes + _angles(positions, table),
        rotated + stored,
    )
