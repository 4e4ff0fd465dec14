"""Models of operators that move elements: by index, embeddings, copies, fills, concatenation and
random numbers.

Indexed elements are counted once for each index, although repeated ones may come from a cache;
there are no numbers where the indices are not recorded. A copy between host and device crosses a
link, not only the device's memory; the roofline excludes it by its GPU events.
"""

from __future__ import annotations

from math import prod

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register, register_unknown_work

_NOTE = "rows are counted once per index: repeated ones may come from a cache"


def _picked(source: Tensor, elements: int) -> int:
    """Return the bytes read for `elements` of a source, at most all of it."""
    return min(elements, source.stored) * source.dtype.size


@register("aten::index_select")
def index_select(call: OpCall) -> Work:
    """Arguments: (self, dim, index)"""
    x, index = call.tensor(0), call.tensor(2)
    dim = 0 if len(x.shape) <= 1 else call.integer(1)
    if x.shape and not -len(x.shape) <= dim < len(x.shape):
        raise UnknownWorkError("a dimension that the input does not have")
    size = x.shape[dim] if x.shape else 1
    elements = x.elements // size * index.elements if size else 0
    return Work(
        0,
        _picked(x, elements) + index.bytes,
        elements * x.dtype.size,
        upper_bound=True,
        notes=(_NOTE,),
    )


@register("aten::gather", "aten::take_along_dim")
def gather(call: OpCall) -> Work:
    """Arguments: (self, dim, index)"""
    at = 1 if call.name.endswith("dim") else 2
    x, index = call.tensor(0), call.tensor(at)
    return Work(
        0,
        _picked(x, index.elements) + index.bytes,
        index.elements * x.dtype.size,
        upper_bound=True,
        notes=(_NOTE,),
    )


@register("aten::take")
def take(call: OpCall) -> Work:
    x, index = call.tensor(0), call.tensor(1)
    return Work(0, _picked(x, index.elements) + index.bytes, index.elements * x.dtype.size)


@register("aten::scatter_", "aten::scatter_add_", "aten::scatter_reduce_", "aten::scatter",
          "aten::scatter_add")  # fmt: skip
def scatter(call: OpCall) -> Work:
    """Arguments: (self, dim, index, src).

    The indexed elements are written, and read if values are added to them. If the operator is not
    in-place, another operator copies the target.
    """
    x, index, source = call.tensor(0), call.tensor(2), call.optional_tensor(3)
    adds = "add" in call.name or "reduce" in call.name
    touched = _picked(x, index.elements)
    read = index.bytes + touched * adds
    if source is not None:
        read += index.elements * source.dtype.size
    return Work(index.elements * adds, read, touched, upper_bound=True, notes=(_NOTE,))


@register("aten::index_add_", "aten::index_copy_", "aten::index_fill_")
def index_write(call: OpCall) -> Work:
    """Arguments: (self, dim, index, source)"""
    x, index, source = call.tensor(0), call.tensor(2), call.optional_tensor(3)
    if source is None or (source.shape == () and x.shape):
        raise UnknownWorkError("the number of written elements is not recorded")
    adds = call.name == "aten::index_add_"
    touched = _picked(x, source.elements)
    read = index.bytes + source.bytes + touched * adds
    return Work(source.elements * adds, read, touched, upper_bound=True, notes=(_NOTE,))


@register("aten::index", "aten::_unsafe_index")
def index(call: OpCall) -> Work:
    """Arguments: (self, indices): indices broadcast to the leading shape of the result."""
    x, indices = call.tensor(0), call.argument(1).tensors
    if indices is None:  # most profilers do not record lists of optional tensors
        raise UnknownWorkError("the indices are not in the trace")
    if len(indices) != 1 or not x.shape:
        raise UnknownWorkError("several index tensors: the shape of the result is not certain")
    row = x.elements // x.shape[0] if x.shape[0] else 0
    count = prod(indices[0].shape if isinstance(indices[0], Tensor) else indices[0])
    return Work(
        0,
        _picked(x, row * count) + 8 * count,
        row * count * x.dtype.size,
        upper_bound=True,
        notes=(_NOTE,),
    )


@register("aten::index_put_", "aten::_index_put_impl_", composite=True)
def index_put(call: OpCall) -> Work:
    """Arguments: (self, indices, values, accumulate): without the indices, which are not
    recorded."""
    x, values = call.tensor(0), call.tensor(2)
    if values.elements <= 1:
        raise UnknownWorkError("the number of written elements is not recorded")
    adds = call.boolean(3)
    touched = _picked(x, values.elements)
    return Work(
        values.elements * adds,
        values.bytes + touched * adds,
        touched,
        notes=("without the indices, whose size is not recorded",),
    )


register_unknown_work(
    "the size of its result depends on the data", "aten::nonzero", "aten::masked_select"
)


@register("aten::flip", "aten::roll", "aten::rot90", "aten::tril", "aten::triu")
def rearrange(call: OpCall) -> Work:
    x = call.tensor(0)
    return Work(0, x.bytes, x.elements * x.dtype.size)


_CACHE_NOTE = "rows are counted once per index: repeated ones may come from a cache"


def _table_bytes(table: Tensor, indices: int) -> int:
    """Return the bytes of the rows that the indices select, at most the table."""
    if len(table.shape) != 2:
        raise UnknownWorkError("the table has not two dimensions")
    return min(indices, table.shape[0]) * table.shape[1] * table.dtype.size


@register("aten::embedding", composite=True)
def embedding(call: OpCall) -> Work:
    """Arguments: (weight, indices, ...)"""
    table, indices = call.tensor(0), call.tensor(1)
    read = _table_bytes(table, indices.elements) + indices.bytes
    written = indices.elements * table.shape[1] * table.dtype.size
    return Work(0, read, written, upper_bound=True, notes=(_CACHE_NOTE,))


@register("aten::embedding_dense_backward")
def embedding_backward(call: OpCall) -> Work:
    """Arguments: (grad, indices, num_weights, ...): rows that have an index; `zero_` below clears
    the rest."""
    grad, indices = call.tensor(0), call.tensor(1)
    if not grad.shape:
        raise UnknownWorkError("a gradient without rows")
    rows = min(max(call.integer(2), 0), indices.elements)
    written = rows * grad.shape[-1] * grad.dtype.size
    read = grad.bytes + indices.bytes
    return Work(grad.elements, read, written, upper_bound=True, notes=(_CACHE_NOTE,))


@register("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: OpCall) -> Work:
    """Arguments: (weight, indices, offsets, scale, mode, sparse, per_sample_weights,
    include_last_offset)"""
    table, indices, offsets = (call.tensor(i) for i in range(3))
    bags = max(offsets.elements - call.boolean(7, default=False), 0)
    weights = call.optional_tensor(6)
    read = _table_bytes(table, indices.elements) + indices.bytes + offsets.bytes
    read += 0 if weights is None else weights.bytes
    written = bags * table.shape[1] * table.dtype.size
    per_element = 1 if weights is None else 2
    return Work(
        indices.elements * table.shape[1] * per_element,
        read,
        written,
        upper_bound=True,
        notes=(_CACHE_NOTE,),
    )


@register("aten::_embedding_bag_dense_backward")
def embedding_bag_backward(call: OpCall) -> Work:
    """Arguments: (grad, indices, offset2bag, bag_size, maximum_indices, num_weights, ...)"""
    grad, indices, bags = (call.tensor(i) for i in range(3))
    if len(grad.shape) != 2:
        raise UnknownWorkError("a gradient that is no table")
    rows = min(max(call.integer(5), 0), indices.elements)
    return Work(
        indices.elements * grad.shape[1],
        grad.bytes + indices.bytes + bags.bytes,
        rows * grad.shape[1] * grad.dtype.size,
        upper_bound=True,
        notes=(_CACHE_NOTE,),
    )


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
