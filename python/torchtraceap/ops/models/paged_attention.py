"""Models of attention over a paged cache of keys and values.

The lengths in use are data. The range of a serving engine around the call may say their sums; a
call that names the longest sequence or the pages that are read has an upper bound; other calls have
no numbers. The tensor of the cache says nothing because it is as large as the memory allows.
Writing keys and values moves bytes without arithmetic; only the rows that the slots name are
written.
"""

from __future__ import annotations

from math import prod

from torchtraceap import _core
from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.arguments import (
    OpCall,
    Tensor,
    UnknownWorkError,
    lengths_of,
    optional_bytes,
)
from torchtraceap.ops.models.attention import Heads, Mask, flash, tile_padding, varlen
from torchtraceap.ops.models.registry import Work, register, register_unknown_work

__all__ = ["rows_written"]

_NO_LENGTHS = "how much of the cache of keys and values is used is not recorded"
_NOTE = "the lengths in use of the cache are not recorded: at most the longest for each sequence"
_PAGES_NOTE = "the last page of a sequence is counted whole"
_INDICES_NOTE = "every index is counted, though lists may be padded"
_MISFIT = "queries and cache do not fit together"


def _row_bytes(keys: Tensor, values: Tensor, page: int) -> float:
    """Return the bytes of the keys and values of one position, for any layout within a page."""
    rows = keys.shape[0] * page if keys.shape else 0
    if not rows or values.shape[:1] != keys.shape[:1] or keys.elements % rows:
        raise UnknownWorkError(_MISFIT)
    return (keys.elements * keys.dtype.size + values.elements * values.dtype.size) / rows


def _decode(
    query: Tensor, out: Tensor, row_bytes: float, met: int, other: int, note: str, *, exact: bool
) -> Work:
    """Count one query of (heads, depth) for each sequence and `met` pairs of query and position."""
    if len(query.shape) != 3 or out.elements != query.elements:
        raise UnknownWorkError(_MISFIT)
    sequences, heads, depth = query.shape
    keys = met / sequences if sequences else 0
    return Work(
        flops=2 * heads * met * 2 * depth,
        bytes_read=query.bytes + met * row_bytes + other,
        bytes_written=out.bytes,
        dtype=query.dtype.label,
        unit="matrix",
        upper_bound=not exact,
        notes=() if exact else (note,),
        padding=tile_padding(1, keys, depth) if min(keys, depth) > 0 else 1.0,
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the range of a serving engine says of its batch."""

    queries: int
    keys: int
    met: float
    """Pairs of a query and a key, its own sequence up to itself."""


def _batch_of(call: OpCall, tokens: int | None = None) -> _Batch | None:
    """Return the batch of the range around a call; None if the range does not say the lengths, or
    says them of another number of queries than `tokens`."""
    mark = _core.read_iteration_name(call.batch) if call.batch else None
    parts = lengths_of(mark) if mark is not None else []
    queries, keys = (sum(part[i] for part in parts) for i in range(2))
    met = sum(products - (squares - own) / 2 for own, _, squares, products in parts)
    if not parts or met < queries or (tokens is not None and queries != tokens):
        return None
    return _Batch(queries, keys, met)


@dataclass(frozen=True, slots=True)
class _Paged:
    """Positions of the arguments of vLLM's paged attention."""

    query: int
    tables: int
    block: int
    longest: int


_PAGED = {
    "_C::paged_attention_v1": _Paged(1, 6, 8, 9),
    "_C::paged_attention_v2": _Paged(4, 9, 11, 12),
    "_rocm_C::paged_attention": _Paged(4, 9, 12, 13),
}


@register(*_PAGED, needs_batch=True)
def paged(call: OpCall) -> Work:
    """Arguments: (out, ..., query, key_cache, value_cache, kv_heads, scale, block_tables, lengths,
    block_size, longest, ...); on ROCm later releases have the starts of queries before the block
    size."""
    places = _PAGED[call.name]
    shift = 0
    if call.name.startswith("_rocm_C") and call.integer(11, 0) > 0:
        shift = -1
    out, tables = call.tensor(0), call.tensor(places.tables)
    query, keys, values = (call.tensor(places.query + i) for i in range(3))
    block, longest = call.integer(places.block + shift), call.integer(places.longest + shift)
    if len(tables.shape) != 2 or block < 1 or tables.shape[0] != query.shape[0]:
        raise UnknownWorkError(_MISFIT)
    length = min(longest, tables.shape[1] * block)
    if length < 1:
        raise UnknownWorkError(_NO_LENGTHS)
    other = optional_bytes(call, (places.tables, places.tables + 1))
    row_bytes = _row_bytes(keys, values, block)
    batch = _batch_of(call, query.shape[0])
    met = query.shape[0] * length if batch is None else batch.keys
    exact = batch is not None or query.shape[0] == 1
    return _decode(query, out, row_bytes, met, other, _NOTE, exact=exact)


@register("sglang_profiler::attention_paged_attention_ragged", "aiter::paged_attention_ragged",
          composite=True)  # fmt: skip
def paged_ragged(call: OpCall) -> Work:
    """Arguments: (out, workspace, query, key_cache, value_cache, scale, kv_indptr, page_indices,
    last_lengths, block_size, ...): the pages of all sequences are listed."""
    out, query, keys, values = (call.tensor(i) for i in (0, 2, 3, 4))
    starts, pages, block = call.tensor(6), call.tensor(7), call.integer(9)
    if not query.shape or starts.elements != query.shape[0] + 1 or block < 1:
        raise UnknownWorkError(_MISFIT)
    row_bytes = _row_bytes(keys, values, block)
    other = pages.bytes + starts.bytes
    return _decode(query, out, row_bytes, pages.elements * block, other, _PAGES_NOTE, exact=False)


# ------------------------------------------------------------------- several queries a sequence


def _cached(
    call: OpCall, lengths_at: int, longest: tuple[int, int], table: Tensor | None, mask: Mask
) -> Work:
    """Count packed queries (all, heads, depth) over a cache.

    The cache is (pages, page, heads, depth) or (rows, heads, depth). The lengths in use are those
    of the range around the call if it has as many queries, else at most the longest ones.
    """
    query, keys, values = (call.tensor(i) for i in range(3))
    starts = call.tensor(lengths_at)
    count = starts.elements - 1
    if len(query.shape) != 3 or len(keys.shape) not in (3, 4) or count < 1 or longest[1] < 1:
        raise UnknownWorkError(_NO_LENGTHS if longest[1] < 1 else _MISFIT)
    if query.shape[-1] != keys.shape[-1] or not values.shape:
        raise UnknownWorkError(_MISFIT)
    page = keys.shape[1] if len(keys.shape) == 4 else 1
    length = longest[1]
    if table is not None and len(table.shape) == 2:
        length = min(length, table.shape[1] * page)
    sizes = Heads(1, query.shape[0], count * length, query.shape[1], query.shape[2],
                  values.shape[-1])  # fmt: skip
    batch = _batch_of(call, query.shape[0]) if mask.causal and mask.left < 0 else None
    if batch is None:
        met: float = varlen(sizes, count, [longest[0], length], mask)[0]
        exact, cached = count == 1, sizes.keys
    else:
        met, exact, cached = batch.met, True, batch.keys
    written = query.elements // max(sizes.depth, 1) * sizes.value_depth * query.dtype.size
    table_bytes = 0 if table is None else table.bytes
    return Work(
        flops=2 * sizes.heads * met * (sizes.depth + sizes.value_depth),
        bytes_read=query.bytes + cached * _row_bytes(keys, values, page) + table_bytes,
        bytes_written=written,
        dtype=query.dtype.label,
        unit="matrix",
        upper_bound=not exact,
        notes=() if exact else (_NOTE,),
        padding=tile_padding(max(longest[0], 1), length, max(sizes.depth, 1)),
    )


@register("flash_attn_3::fwd", "_vllm_fa3_C::fwd", "sgl_kernel::fwd", needs_batch=True)
def flash_attn_3(call: OpCall) -> Work:
    """Arguments: (q, k, v, k_new, v_new, qv, out, cu_q, cu_k, cu_k_new, used_q, used_k, max_q,
    max_k, page_table, ... scale at 23, causal, window_left, window_right, ...)"""
    mask = Mask(call.boolean(24), True, call.integer(25, -1), call.integer(26, -1))
    table = call.optional_tensor(14)
    if any(call.optional_tensor(i) is not None for i in (3, 4, 10)):
        raise UnknownWorkError(_NO_LENGTHS)
    if table is not None:
        return _cached(call, 7, (call.integer(12, 0), call.integer(13, 0)), table, mask)
    if call.optional_tensor(11) is not None:
        raise UnknownWorkError(_NO_LENGTHS)
    return flash(call, 0, (7, 8), (12, 13), mask)


@register("_vllm_fa2_C::varlen_fwd", needs_batch=True)
def flash_attn_2(call: OpCall) -> Work:
    """Arguments: (q, k, v, out, cu_q, cu_k, used_k, leftpad_k, block_table, alibi, max_q, max_k,
    dropout, scale, zero_tensors, causal, window_left, window_right, ...)"""
    mask = Mask(call.boolean(15), True, call.integer(16, -1), call.integer(17, -1))
    table = call.optional_tensor(8)
    if table is not None:
        return _cached(call, 4, (call.integer(10, 0), call.integer(11, 0)), table, mask)
    if call.optional_tensor(6) is not None:
        raise UnknownWorkError(_NO_LENGTHS)
    return flash(call, 0, (4, 5), (10, 11), mask)


@register("aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd")
def aiter_packed(call: OpCall) -> Work:
    """Arguments: (q, k, v, cu_q, cu_k, max_q, max_k, min_q, dropout, scale, soft_cap, zero_tensors,
    causal, window_left, window_right, ...)"""
    if len(call.tensor(1).shape) != 3:
        raise UnknownWorkError(_NO_LENGTHS)
    mask = Mask(call.boolean(12), True, call.integer(13, -1), call.integer(14, -1))
    return flash(call, 0, (3, 4), (5, 6), mask)


@register("aiter::mha_batch_prefill", needs_batch=True)
def aiter_prefill(call: OpCall) -> Work:
    """Arguments: (q, k, v, cu_q, kv_indptr, page_indices, max_q, max_k, dropout, scale, soft_cap,
    zero_tensors, causal, window_left, window_right, ...)"""
    mask = Mask(call.boolean(12), True, call.integer(13, -1), call.integer(14, -1))
    longest = call.integer(6, 0), call.integer(7, 0)
    return _cached(call, 3, longest, None, mask)


# ------------------------------------------------------------------ queries that pick their keys


def _picked(query: Tensor, rows: Tensor, met: int, value_depth: int, other: int) -> Work:
    """Count latent keys of (rows, ..., depth), whose first `value_depth` elements are the
    values."""
    tokens, heads, depth = query.shape
    if not rows.shape or rows.shape[-1] != depth or not 0 < value_depth <= depth:
        raise UnknownWorkError(_MISFIT)
    read = min(met, rows.elements // depth) * depth * rows.dtype.size
    return Work(
        flops=2 * heads * met * (depth + value_depth),
        bytes_read=query.bytes + read + other,
        bytes_written=tokens * heads * value_depth * query.dtype.size,
        dtype=query.dtype.label,
        unit="matrix",
        upper_bound=True,
        notes=(_INDICES_NOTE,),
    )


@register("sglang_profiler::tilelang_kernel_tilelang_sparse_fwd", composite=True)
def sparse_latent(call: OpCall) -> Work:
    """Arguments: (q, kv, indices, scale, value_depth): each query has a list of positions."""
    query, rows, indices = (call.tensor(i) for i in range(3))
    if not len(query.shape) == len(rows.shape) == len(indices.shape) == 3:
        raise UnknownWorkError(_MISFIT)
    return _picked(query, rows, indices.elements, call.integer(4), indices.bytes)


@register("aiter::pa_sparse_prefill_opus_fwd")
def sparse_prefill(call: OpCall) -> Work:
    """Arguments: (q, unified_kv, prefix_indices, prefix_starts, kv, extend_indices, extend_starts,
    sink, out, scale): lists of positions in a cache, and in the keys of these tokens."""
    query, cache, prefix, own, extend = (call.tensor(i) for i in (0, 1, 2, 4, 5))
    if len(query.shape) != 3:
        raise UnknownWorkError(_MISFIT)
    depth = query.shape[2]
    first = _picked(query, cache, prefix.elements, depth, prefix.bytes)
    second = _picked(query, own, extend.elements, depth, extend.bytes)
    return Work(
        (first.flops or 0) + (second.flops or 0),
        first.bytes_read + second.bytes_read - query.bytes,
        first.bytes_written,
        first.dtype,
        "matrix",
        upper_bound=True,
        notes=first.notes,
    )


# ----------------------------------------------------------- lengths that the engine's range names


def _attention_of_batch(call: OpCall, places: tuple[int, int, int], out: Tensor | None) -> Work:
    """Count the attention of a batch whose lengths the engine's range names.

    Queries, keys and values have the tokens of all sequences as their first dimension, then heads
    and depth, as one dimension or two. Heads times depth of the values for each query head follow
    from the widths, because keys and values have equally many heads.
    """
    batch = _batch_of(call)
    if batch is None:
        raise UnknownWorkError(_NO_LENGTHS)
    query, key, value = (call.tensor(place) for place in places)
    if not all(len(each.shape) in (2, 3) for each in (query, key, value)) or not key.elements:
        raise UnknownWorkError(_MISFIT)
    width, key_width, value_width = (prod(each.shape[1:]) for each in (query, key, value))
    if batch.queries > query.shape[0] or width % key.shape[-1]:
        raise UnknownWorkError(_MISFIT)
    out_width = width * value_width / key_width
    cached = query.dtype if query.dtype.size == 1 else key.dtype
    return Work(
        flops=2 * batch.met * (width + out_width),
        bytes_read=batch.queries * width * query.dtype.size
        + batch.keys * (key_width + value_width) * cached.size,
        bytes_written=batch.queries * out_width * (out or query).dtype.size,
        dtype=query.dtype.label,
        unit="matrix",
        upper_bound=True,
        notes=("windows of layers are not recorded: at most this",),
    )


@register("vllm::unified_attention", "vllm::unified_attention_with_output",
          "sglang::unified_attention_with_output", composite=True, needs_batch=True)  # fmt: skip
def attention_of_batch(call: OpCall) -> Work:
    """Arguments: (query, key, value, output, ...).

    A query attends to its sequence up to itself. Keys are read from the cache, which has the type
    of the queries if these have 8 bits.
    """
    return _attention_of_batch(call, (0, 1, 2), call.optional_tensor(3))


@register("aiter::unified_attention_with_output_base", composite=True, needs_batch=True)
def attention_of_atom(call: OpCall) -> Work:
    """Arguments of ATOM: (q, q_scale, k, v, positions, layer_name, use_mla, ...)."""
    if call.boolean(6):
        raise UnknownWorkError("the latent keys of its cache are not among its arguments")
    return _attention_of_batch(call, (0, 2, 3), None)


register_unknown_work(
    _NO_LENGTHS,
    "vllm::unified_mla_attention",
    "vllm::unified_mla_attention_with_output",
    "aiter::pa_decode_gluon",
)
register_unknown_work(
    "its state and lengths are not among its arguments",
    "vllm::gdn_attention_core",
    "aiter::linear_attention_with_output_base",
)


_GATHER_NOTE = "all of the target is counted, though only the sequences' lengths are gathered"


def rows_written(rows: int, slots: Tensor) -> int:
    """Return the number of rows written: inputs may be padded beyond the slots.

    A slot of -1 is not written either, but its value is not recorded.
    """
    return min(rows, slots.elements)


def _rows(tensor: Tensor) -> int:
    if not tensor.shape or not tensor.shape[0]:
        raise UnknownWorkError("no tokens")
    return tensor.shape[0]


@register("_C_cache_ops::reshape_and_cache", "_C_cache_ops::reshape_and_cache_flash",
          "aiter::reshape_and_cache", "aiter::reshape_and_cache_flash",
          "sglang::store_cache")  # fmt: skip
def cache_keys_and_values(call: OpCall) -> Work:
    """Arguments: (key, value, key_cache, value_cache, slots, ...)"""
    slots = call.tensor(4)
    read = written = 0
    for source, cache in ((call.tensor(0), call.tensor(2)), (call.tensor(1), call.tensor(3))):
        rows = _rows(source)
        stored = rows_written(rows, slots) * (source.elements // rows)
        read += stored * source.dtype.size
        written += stored * cache.dtype.size
    return Work(0, read + slots.bytes, written)


@register("_C_cache_ops::concat_and_cache_mla", "aiter::concat_and_cache_mla")
def cache_latent(call: OpCall) -> Work:
    """Arguments: (kv_c, k_pe, kv_cache, slots, ...); a cache row holds both and any scales."""
    latent, rotary, cache, slots = (call.tensor(i) for i in range(4))
    rows = _rows(latent)
    if len(cache.shape) < 3 or _rows(rotary) != rows:
        raise UnknownWorkError("keys do not fit the rows of their cache")
    stored = rows_written(rows, slots)
    read = stored * (latent.elements * latent.dtype.size + rotary.elements * rotary.dtype.size)
    return Work(0, read // rows + slots.bytes, stored * cache.shape[-1] * cache.dtype.size)


@register("_C_cache_ops::concat_mla_q")
def concatenate_query(call: OpCall) -> Work:
    """Arguments: (q_nope, q_pe, q_out)"""
    first, second, out = (call.tensor(i) for i in range(3))
    if out.elements != first.elements + second.elements:
        raise UnknownWorkError("its output does not fit its inputs")
    return Work(0, first.bytes + second.bytes, out.bytes)


@register("_C_cache_ops::cp_gather_cache", "_C_cache_ops::gather_and_maybe_dequant_cache")
def gather(call: OpCall) -> Work:
    """Arguments: (source_cache, target, block_table, ...)"""
    source, target = call.tensor(0), call.tensor(1)
    return Work(
        0,
        target.elements * source.dtype.size + optional_bytes(call, (2, 3)),
        target.bytes,
        upper_bound=True,
        notes=(_GATHER_NOTE,),
    )
