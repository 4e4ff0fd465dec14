"""Models of writing keys and values into a paged cache, which moves bytes without arithmetic.

Only the rows of the cache that the slots name are written. The cache itself, which is one of the
arguments, may be as large as the memory of the device.
"""

from __future__ import annotations

from torchtraceap.ops.models.argument_sizes import optional_bytes
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

__all__ = ["rows_written"]

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
