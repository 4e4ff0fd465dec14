"""Models of copies, fills, concatenation and random numbers, which move bytes without arithmetic.

A copy between host and device crosses a link, not only the device's memory; the roofline excludes
it by its GPU events.
"""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register, register_unknown_work


@register("aten::copy", composite=True)
@register("aten::copy_")
def copy(call: OpCall) -> Work:
    """Arguments: (self, source): read in its own type, written in that of the target."""
    target, source = call.tensor(0), call.tensor(1)
    return Work(0, source.bytes, target.bytes)


@register("aten::clone", "aten::contiguous", composite=True)
def clone(call: OpCall) -> Work:
    x = call.tensor(0)
    return Work(0, x.bytes, x.elements * x.dtype.size)


@register("aten::repeat", composite=True)
def repeat(call: OpCall) -> Work:
    """Arguments: (self, repeats)"""
    x = call.tensor(0)
    times = 1
    for count in call.integers(1):
        times *= max(count, 0)
    return Work(0, x.bytes, x.elements * times * x.dtype.size)


@register("aten::fill_", "aten::zero_")
@register("aten::uniform_", "aten::normal_", "aten::random_", "aten::exponential_",
          "aten::bernoulli_", "aten::geometric_", "aten::log_normal_", "aten::cauchy_")  # fmt: skip
def fill(call: OpCall) -> Work:
    return Work(0, 0, call.tensor(0).bytes)


@register("aten::arange", composite=True)
def arange(call: OpCall) -> Work:
    """Arguments: (start, end, step, out): a trace shows `out` before it has its size."""
    out = call.tensor(3)
    count = out.elements
    if not count:
        start, end, step = (call.integer(place) for place in range(3))
        if not step:
            raise UnknownWorkError("the trace has no step")
        count = max(0, -(-(end - start) // step))
    return Work(0, 0, count * out.dtype.size)


@register("aten::cat", "aten::_cat", "aten::concat", "aten::stack", composite=True)
def concatenate(call: OpCall) -> Work:
    parts = call.tensor_list(0)
    read = sum(part.bytes for part in parts)
    return Work(0, read, _total_bytes(parts))


@register("aten::_chunk_cat")
def chunk_cat(call: OpCall) -> Work:
    """Arguments: (tensors, dim, num_chunks, out): chunks of all, one after the other, padded to one
    size."""
    parts, out = call.tensor_list(0), call.optional_tensor(3)
    written = _total_bytes(parts) if out is None else out.elements * out.dtype.size
    return Work(0, sum(part.bytes for part in parts), written)


@register("aten::split_with_sizes_copy")
def split_copy(call: OpCall) -> Work:
    """Arguments: (self, split_sizes, dim, out)"""
    x = call.tensor(0)
    return Work(0, x.bytes, x.elements * x.dtype.size)


def _total_bytes(parts: list[Tensor]) -> int:
    """Return the bytes of the concatenated parts in the largest type."""
    if not parts:
        raise UnknownWorkError("a list without tensors")
    size = max(part.dtype.size for part in parts)
    return sum(part.elements for part in parts) * size


# Collectives that libraries write themselves. With a norm in the same kernel links still bound it:
# what a rank's memory moves says little of their time.
register_unknown_work(
    "a collective: links between GPUs bound it",
    "_C_custom_ar::all_reduce",
    "_C_custom_ar::qr_all_reduce",
    "aiter::fused_allreduce_rmsnorm",
    "aiter::fused_allreduce_rmsnorm_",
    "aiter::reduce_scatter",
    "aiter::all_gather_reg",
    "aiter::all_gather_unreg",
    "sgl_kernel::all_reduce",
    "sgl_kernel::all_reduce_reg",
    "sgl_kernel::qr_all_reduce",
    "sglang::reg_all_gather_into_tensor",
    "vllm::rocm_aiter_fused_allreduce_rmsnorm",
    "MoEDispatch",
    "MoECombine",
)
