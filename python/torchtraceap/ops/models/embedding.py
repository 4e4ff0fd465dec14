"""Models of embeddings: rows of a table, sums of rows in bags, and their gradients."""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

_NOTE = "rows are counted once per index: repeated ones may come from a cache"


def _rows(table: Tensor, indices: int) -> int:
    """Return the bytes of the rows that the indices select, at most the table."""
    if len(table.shape) != 2:
        raise UnknownWorkError("the table has not two dimensions")
    return min(indices, table.shape[0]) * table.shape[1] * table.dtype.size


@register("aten::embedding", composite=True)
def embedding(call: OpCall) -> Work:
    """Arguments: (weight, indices, ...)"""
    table, indices = call.tensor(0), call.tensor(1)
    read = _rows(table, indices.elements) + indices.bytes
    written = indices.elements * table.shape[1] * table.dtype.size
    return Work(0, read, written, upper_bound=True, notes=(_NOTE,))


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
    return Work(grad.elements, read, written, upper_bound=True, notes=(_NOTE,))


@register("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: OpCall) -> Work:
    """Arguments: (weight, indices, offsets, scale, mode, sparse, per_sample_weights,
    include_last_offset)"""
    table, indices, offsets = (call.tensor(i) for i in range(3))
    bags = max(offsets.elements - call.boolean(7, default=False), 0)
    weights = call.optional_tensor(6)
    read = _rows(table, indices.elements) + indices.bytes + offsets.bytes
    read += 0 if weights is None else weights.bytes
    written = bags * table.shape[1] * table.dtype.size
    per_element = 1 if weights is None else 2
    return Work(
        indices.elements * table.shape[1] * per_element,
        read,
        written,
        upper_bound=True,
        notes=(_NOTE,),
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
        notes=(_NOTE,),
    )
