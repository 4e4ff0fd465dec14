"""Models of scaled dot-product attention in all its backends, forward and backward.

The work follows from the number of query-key pairs that attend to each other. Causal masks and
windows exclude pairs, and the kernels of all backends skip whole tiles of them. Kernels compute
whole tiles, so that a single query costs as much as a tile of queries (`tile_padding`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register, register_unknown_work

__all__ = ["Heads", "Mask", "flash", "pairs", "tile_padding", "varlen"]

_FP32_BYTES = 4
# The smallest tile of queries and keys and the step of the depth in the kernels of FlashAttention 2
# and of PyTorch's efficient attention.
_TILE, _DEPTH_STEP = 64, 32
_VARLEN_NOTE = "the sequence lengths are not recorded: at most this many pairs"


def pairs(
    queries: int,
    keys: int,
    *,
    causal: bool = False,
    bottom_right: bool = False,
    left: int = -1,
    right: int = -1,
) -> int:
    """Return the number of pairs of a query i and a key j that attend to each other.

    Args:
        queries, keys: Lengths of the sequence.
        causal: Allow only j <= i, counted from the first query and key.
        bottom_right: Count from the last query and key instead: j <= i + keys - queries.
        left, right: Allow only i - left <= j <= i + right in the same count; -1 for no limit.
    """
    shift = keys - queries if bottom_right else 0
    if causal:
        right = 0 if right < 0 else min(right, 0)
    end = keys * queries if right < 0 else _clamped_sum(queries, keys, shift + right + 1)
    start = 0 if left < 0 else _clamped_sum(queries, keys, shift - left)
    return max(end - start, 0)


def tile_padding(queries: float, keys: float, depth: float) -> float:
    """Return the work of kernels in whole tiles over the work needed, for sizes above 0."""
    padding = 1.0
    for size, step in ((queries, _TILE), (keys, _TILE), (depth, _DEPTH_STEP)):
        padding *= -(-size // step) * step / size
    return padding


def _clamped_sum(count: int, limit: int, offset: int) -> int:
    """Return the sum of min(max(i + offset, 0), limit) over 0 <= i < count."""
    first = min(max(-offset, 0), count)  # terms before it are 0
    last = min(max(limit - offset, first), count)  # terms from it on are the limit
    rising = last - first
    return rising * (first + offset) + rising * (rising - 1) // 2 + (count - last) * limit


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of one call, independent of the layout of its tensors."""

    batch: int
    queries: int
    keys: int
    heads: int
    depth: int
    value_depth: int

    @property
    def padding(self) -> float:
        """Work in whole tiles over the work needed."""
        if min(self.queries, self.keys, self.depth) < 1:
            return 1.0
        return tile_padding(self.queries, self.keys, self.depth)


def _heads_first(query: Tensor, key: Tensor, value: Tensor) -> Heads:
    """Read (..., heads, length, depth), the layout of `scaled_dot_product_attention`."""
    q, k, v = query.shape, key.shape, value.shape
    if min(len(q), len(k), len(v)) < 2:
        raise UnknownWorkError("queries, keys or values have fewer than two dimensions")
    heads = q[-3] if len(q) > 2 else 1
    return _checked(Heads(prod(q[:-3]), q[-2], k[-2], heads, q[-1], v[-1]), k[-1], v[-2])


def _length_first(query: Tensor, key: Tensor, value: Tensor) -> Heads:
    """Read (batch, length, heads, depth), the layout of flash attention."""
    q, k, v = query.shape, key.shape, value.shape
    if not len(q) == len(k) == len(v) == 4:
        raise UnknownWorkError("queries, keys and values have not four dimensions")
    return _checked(Heads(q[0], q[1], k[1], q[2], q[3], v[3]), k[3], v[1])


def _checked(sizes: Heads, key_depth: int, values: int) -> Heads:
    if sizes.depth != key_depth or sizes.keys != values:
        raise UnknownWorkError("queries, keys and values do not fit together")
    return sizes


def _forward_work(
    sizes: Heads, met: int, query: Tensor, key: Tensor, value: Tensor, *extra: Tensor | None
) -> Work:
    """Count two products per pair: with the depth of the keys, then with that of the values."""
    lead = sizes.batch * sizes.heads
    rows = lead * sizes.queries
    read = query.bytes + key.bytes + value.bytes
    return Work(
        flops=2 * lead * met * (sizes.depth + sizes.value_depth),
        bytes_read=read + sum(t.bytes for t in extra if t is not None),
        bytes_written=rows * sizes.value_depth * query.dtype.size,
        dtype=query.dtype.label,
        unit="matrix",
        padding=sizes.padding,
    )


def _backward_work(
    sizes: Heads, met: int, grad: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> Work:
    """Count five products: recomputed scores, gradients of values, probabilities, keys, queries."""
    lead = sizes.batch * sizes.heads
    rows = lead * sizes.queries
    output = rows * sizes.value_depth * query.dtype.size
    written = (query.elements + key.elements + value.elements) * query.dtype.size
    return Work(
        flops=2 * lead * met * (3 * sizes.depth + 2 * sizes.value_depth),
        bytes_read=grad.bytes + output + query.bytes + key.bytes + value.bytes + rows * _FP32_BYTES,
        bytes_written=written,
        dtype=query.dtype.label,
        unit="matrix",
        padding=sizes.padding,
    )


def _with_logsumexp(work: Work, sizes: Heads, wanted: bool) -> Work:
    rows = sizes.batch * sizes.heads * sizes.queries
    return replace(work, bytes_written=work.bytes_written + rows * _FP32_BYTES * wanted)


def _sdpa(
    call: OpCall, causal_at: int, *, bias_at: int | None = None, bottom_right: bool = False
) -> tuple[Work, Heads]:
    query, key, value = call.tensor(0), call.tensor(1), call.tensor(2)
    sizes = _heads_first(query, key, value)
    causal = call.boolean(causal_at)
    met = pairs(sizes.queries, sizes.keys, causal=causal, bottom_right=bottom_right)
    bias = None if bias_at is None else call.optional_tensor(bias_at)
    return _forward_work(sizes, met, query, key, value, bias), sizes


@register("aten::scaled_dot_product_attention", composite=True)
@register("aten::_scaled_dot_product_attention_math", composite=True)
def sdpa(call: OpCall) -> Work:
    return _sdpa(call, 5, bias_at=3)[0]


@register("aten::_scaled_dot_product_flash_attention", composite=True)
def sdpa_flash(call: OpCall) -> Work:
    """Count flash attention, whose causal mask is aligned at the end."""
    work, sizes = _sdpa(call, 4, bottom_right=True)
    return _with_logsumexp(work, sizes, wanted=True)


@register("aten::_scaled_dot_product_flash_attention_for_cpu")
def sdpa_flash_cpu(call: OpCall) -> Work:
    work, sizes = _sdpa(call, 4, bias_at=5)
    return _with_logsumexp(work, sizes, wanted=True)


@register("aten::_scaled_dot_product_efficient_attention", composite=True)
@register("aten::_scaled_dot_product_cudnn_attention", composite=True)
def sdpa_efficient(call: OpCall) -> Work:
    work, sizes = _sdpa(call, 6, bias_at=3)
    return _with_logsumexp(work, sizes, wanted=call.boolean(4, default=False))


@register("aten::_scaled_dot_product_fused_attention_overrideable", composite=True)
def sdpa_overrideable(call: OpCall) -> Work:
    work, sizes = _sdpa(call, 5, bias_at=3)
    return _with_logsumexp(work, sizes, wanted=True)


_BACKWARD_CAUSAL = {
    "aten::_scaled_dot_product_flash_attention_backward": (11, True, 0),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (7, False, 0),
    "aten::_scaled_dot_product_efficient_attention_backward": (11, False, 4),
    "aten::_scaled_dot_product_cudnn_attention_backward": (14, False, 8),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": (13, False, 4),
}
"""Position of `is_causal`, True if the mask is aligned at the end, position of a bias (0: none)."""


@register(*_BACKWARD_CAUSAL, composite=True)
def sdpa_backward(call: OpCall) -> Work:
    causal_at, bottom_right, bias_at = _BACKWARD_CAUSAL[call.name]
    grad, query, key, value = (call.tensor(i) for i in range(4))
    sizes = _heads_first(query, key, value)
    causal = call.boolean(causal_at)
    met = pairs(sizes.queries, sizes.keys, causal=causal, bottom_right=bottom_right)
    work = _backward_work(sizes, met, grad, query, key, value)
    bias = call.optional_tensor(bias_at) if bias_at else None
    return work if bias is None else _read_more(work, bias.bytes)


def _read_more(work: Work, extra: int) -> Work:
    return replace(work, bytes_read=work.bytes_read + extra)


# ---------------------------------------------------------------- the kernels' own operators


@dataclass(frozen=True, slots=True)
class Mask:
    """Pairs that attend to each other; the fields are the arguments of `pairs`."""

    causal: bool
    bottom_right: bool
    left: int = -1
    right: int = -1

    def met(self, queries: int, keys: int) -> int:
        """Return the number of pairs."""
        return pairs(
            queries,
            keys,
            causal=self.causal,
            bottom_right=self.bottom_right,
            left=self.left,
            right=self.right,
        )


@register("aten::_flash_attention_forward")
def aten_flash(call: OpCall) -> Work:
    mask = Mask(call.boolean(8), True, call.integer(11, -1), call.integer(12, -1))
    return flash(call, 0, (3, 4), (5, 6), mask)


@register("aten::_flash_attention_backward")
def aten_flash_backward(call: OpCall) -> Work:
    mask = Mask(call.boolean(11), True, call.integer(15, -1), call.integer(16, -1))
    return flash(call, 1, (6, 7), (8, 9), mask)


@register("aten::_efficient_attention_forward")
def aten_efficient(call: OpCall) -> Work:
    """Count efficient attention, whose older versions lack `max_k`."""
    mask_at = 9 if call.argument(9).text not in ("True", "False") else 8
    mask = _mask_type(call, mask_at)
    return flash(call, 0, (4, 5), (6, mask_at - 2), mask, bias_at=3)


@register("aten::_efficient_attention_backward")
def aten_efficient_backward(call: OpCall) -> Work:
    return flash(call, 1, (6, 7), (8, 9), _mask_type(call, 14), bias_at=4)


def _mask_type(call: OpCall, position: int) -> Mask:
    """Read `custom_mask_type`: 1 is causal from the start, 2 from the end."""
    kind = call.integer(position)
    return Mask(causal=kind in (1, 2), bottom_right=kind == 2)


def flash(
    call: OpCall,
    first: int,
    lengths_at: tuple[int, int],
    longest_at: tuple[int, int],
    mask: Mask,
    bias_at: int | None = None,
) -> Work:
    """Count flash attention of (batch, length, heads, depth) or packed (all, heads, depth).

    Args:
        call: The call.
        first: Position of the queries; 1 if the gradient comes first in a backward pass.
        lengths_at: Positions of the cumulative lengths of queries and keys.
        longest_at: Positions of the longest lengths of queries and keys.
        mask: The mask.
        bias_at: Position of a bias.
    """
    query, key, value = (call.tensor(first + i) for i in range(3))
    cumulated = [call.optional_tensor(i) for i in lengths_at]
    grad = call.tensor(0) if first else None
    bias = None if bias_at is None else call.optional_tensor(bias_at)
    if cumulated[0] is None:
        sizes = _length_first(query, key, value)
        met, known = mask.met(sizes.queries, sizes.keys), True
    else:
        sizes = _packed(query, key, value)
        count = cumulated[0].elements - 1
        met, known = varlen(sizes, count, [call.integer(i, 0) for i in longest_at], mask)
    work = (
        _forward_work(sizes, met, query, key, value, bias)
        if grad is None
        else _backward_work(sizes, met, grad, query, key, value)
    )
    if bias is not None and grad is not None:
        work = _read_more(work, bias.bytes)
    return work if known else replace(work, upper_bound=True, notes=(_VARLEN_NOTE,))


def _packed(query: Tensor, key: Tensor, value: Tensor) -> Heads:
    """Read packed sequences: (all, heads, depth), with or without a leading dimension of 1."""
    q, k, v = (tensor.shape for tensor in (query, key, value))
    if len(q) == 4 and q[0] == k[0] == v[0] == 1:
        q, k, v = q[1:], k[1:], v[1:]
    if not len(q) == len(k) == len(v) == 3:
        raise UnknownWorkError("packed queries, keys and values have not three dimensions")
    return _checked(Heads(1, q[0], k[0], q[1], q[2], v[2]), k[2], v[0])


def varlen(sizes: Heads, count: int, longest: list[int], mask: Mask) -> tuple[int, bool]:
    """Return the number of pairs of packed sequences, and True if it is exact.

    It is exact for one sequence and if all sequences have the greatest length. Otherwise it is an
    upper bound: pairs grow faster than lengths, so as many sequences of the greatest length as fit
    give the most.
    """
    if count < 1:
        raise UnknownWorkError("packed sequences without lengths")
    if count == 1:
        return mask.met(sizes.queries, sizes.keys), True
    long_q = min(longest[0], sizes.queries) if longest[0] > 0 else sizes.queries
    long_k = min(longest[1], sizes.keys) if longest[1] > 0 else sizes.keys
    if long_q * count == sizes.queries and long_k * count == sizes.keys:
        return count * mask.met(long_q, long_k), True
    full, rest = divmod(sizes.queries, max(long_q, 1))
    bound = full * mask.met(long_q, long_k) + mask.met(rest, long_k)
    return min(bound, sizes.queries * long_k), False


# ------------------------------------------------------------------- the flash-attn packages


@register(
    "flash_attn::_flash_attn_forward",
    "aiter::_flash_attn_forward",
    "aiter::mha_fwd",
    "aiter::fmha_v3_fwd",
)
def flash_attn(call: OpCall) -> Work:
    """Arguments: (q, k, v, dropout, scale, causal, window_left, window_right, ...)"""
    mask = Mask(call.boolean(5), True, call.integer(6, -1), call.integer(7, -1))
    return flash(call, 0, (99, 99), (99, 99), mask)


@register("flash_attn::_flash_attn_varlen_forward")
def flash_attn_varlen(call: OpCall) -> Work:
    """Arguments: (q, k, v, cu_q, cu_k, max_q, max_k, dropout, scale, causal, window_left,
    window_right)"""
    mask = Mask(call.boolean(9), True, call.integer(10, -1), call.integer(11, -1))
    return flash(call, 0, (3, 4), (5, 6), mask)


@register("flash_attn::_flash_attn_backward")
def flash_attn_backward(call: OpCall) -> Work:
    """Arguments: (dout, q, k, v, out, lse, dq, dk, dv, dropout, scale, causal, window_left,
    window_right)"""
    mask = Mask(call.boolean(11), True, call.integer(12, -1), call.integer(13, -1))
    return flash(call, 1, (99, 99), (99, 99), mask)


@register("aiter::_flash_attn_backward")
def aiter_backward(call: OpCall) -> Work:
    """Arguments: (dout, q, k, v, out, lse, dq, dk, dv, dbias, dropout, scale, causal, left, right,
    ...)"""
    mask = Mask(call.boolean(12), True, call.integer(13, -1), call.integer(14, -1))
    return flash(call, 1, (99, 99), (99, 99), mask)


@register("aiter::mha_bwd")
def aiter_kernel_backward(call: OpCall) -> Work:
    """Arguments: (dout, q, k, v, out, lse, dropout, scale, causal, window_left, window_right,
    ...)"""
    mask = Mask(call.boolean(8), True, call.integer(9, -1), call.integer(10, -1))
    return flash(call, 1, (99, 99), (99, 99), mask)


@register("flash_attn::_flash_attn_varlen_backward")
def flash_attn_varlen_backward(call: OpCall) -> Work:
    """Arguments: (dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, max_q, max_k, dropout, scale,
    causal, window_left, window_right, ...)"""
    mask = Mask(call.boolean(15), True, call.integer(16, -1), call.integer(17, -1))
    return flash(call, 1, (9, 10), (11, 12), mask)


@register("flash_attn_3::bwd")
def flash_attn_3_backward(call: OpCall) -> Work:
    """Arguments: (dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, used_q, used_k, max_q, max_k,
    scale, causal, window_left, window_right, ...)"""
    mask = Mask(call.boolean(16), True, call.integer(17, -1), call.integer(18, -1))
    return flash(call, 1, (9, 10), (13, 14), mask)


@register("FlashAttnFunc", composite=True)
def flash_attn_function(call: OpCall) -> Work:
    """Arguments: (q, k, v, dropout, scale, causal, window, ...); the window may be unrecorded."""
    window = call.integers(6) if call.argument(6).text not in (None, "", "None") else ()
    recorded = len(window) == 2
    left, right = window if recorded else (-1, -1)
    work = flash(call, 0, (99, 99), (99, 99), Mask(call.boolean(5), True, left, right))
    if recorded:
        return work
    return replace(work, upper_bound=True, notes=("its window is not recorded: at most this",))


@register("aiter::wrapper_fmha_v3_fwd", composite=True)
def aiter_wrapped(call: OpCall) -> Work:
    """Arguments: (nothing, q, k, v, dropout, scale, causal, window_left, window_right, ...)"""
    query, key, value = (call.tensor(i) for i in (1, 2, 3))
    sizes = _length_first(query, key, value)
    mask = Mask(call.boolean(6), True, call.integer(7, -1), call.integer(8, -1))
    return _forward_work(sizes, mask.met(sizes.queries, sizes.keys), query, key, value)


@register("EvoformerAttention", "EvoformerFusedAttention", composite=True)
def evoformer(call: OpCall) -> Work:
    """Arguments: (q, k, v, bias1, bias2) of (..., length, heads, depth), without a mask."""
    query, key, value = (call.tensor(i) for i in range(3))
    if len(query.shape) < 4 or not len(query.shape) == len(key.shape) == len(value.shape):
        raise UnknownWorkError("queries, keys or values have fewer than four dimensions")
    q, k, v = (Tensor((prod(t.shape[:-3]), *t.shape[-3:]), t.dtype) for t in (query, key, value))
    sizes = _length_first(q, k, v)
    biases = (call.optional_tensor(3), call.optional_tensor(4))
    return _forward_work(sizes, sizes.queries * sizes.keys, query, key, value, *biases)


register_unknown_work("the order of its arguments is not known", "aiter::wrapper_fmha_v3_bwd")
