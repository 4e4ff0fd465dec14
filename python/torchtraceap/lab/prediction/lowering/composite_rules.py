"""Rules for operators that call others of ATen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtraceap.core.dtypes import BOOL, FP64, INT64
from torchtraceap.lab.prediction.capture.calls import Call, TensorInfo, tensors_in
from torchtraceap.lab.prediction.lowering.launching_op import (
    LaunchedCall,
    Libraries,
    Rule,
    contiguous_like,
    copy_launch,
    fill_launch,
    flattened,
    launch_itself,
)

__all__ = ["RULES"]

_MOST_LOOKUPS_AT_ONCE = 3_072
_LONGEST_SORT_IN_BLOCK = 4_096
_NUMBER = TensorInfo((), (), FP64, -1)
"""Tensor that stands for a Python number."""


def _copied(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Copy the input to the output."""
    source, made = call.tensor("self"), call.output
    return [] if made is None else [copy_launch(made, source)]


def _filled(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    made = call.output
    return [] if made is None else [fill_launch(made)]


def _embedding(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    weight, indices, made = call.tensor("weight"), call.tensor("indices"), call.output
    if weight is None or indices is None or made is None:
        return []
    return [("aten::index_select", (weight, 0, flattened(indices)), (made,))]


def _embedding_backward(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Add into zeros; many lookups are numbered to be sorted."""
    indices, made = call.tensor("indices"), call.output
    if made is None or indices is None:
        return launch_itself(call, libraries)
    many = indices.elements > _MOST_LOOKUPS_AT_ONCE
    numbers = _positions(indices.elements) if many else []
    return [fill_launch(made), *numbers, *launch_itself(call, libraries)]


def _bag_backward(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Add into zeros as large as the table; a sparse gradient has a row for each lookup."""
    gradient, lookups, made = call.tensor("grad"), call.tensor("indices"), call.output
    if made is None or gradient is None or lookups is None:
        return launch_itself(call, libraries)
    if call.inputs.get("sparse"):
        return [("aten::index_select", (gradient, 0, flattened(lookups)), (made,))]
    taken = (
        "grad indices offset2bag bag_size maximum_indices num_weights scale_grad_by_freq mode "
        "per_sample_weights padding_idx"
    )
    inputs = tuple(call.inputs.get(name) for name in taken.split())
    return [fill_launch(made), ("aten::_embedding_bag_dense_backward", inputs, (made,))]


def _masked_rows(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Select the rows of a dense tensor that a sparse one has."""
    own, rows, made = call.tensor("self"), call.tensor("mask"), call.output
    if own is None or rows is None or made is None or not rows.shape:
        return launch_itself(call, libraries)
    places = TensorInfo(rows.shape[:1], (1,), INT64, -1)
    return [("aten::index_select", (own, 0, places), (made,))]


def _added(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Add a sparse tensor, seen as its values, row by row."""
    own, other = call.tensor("self"), call.tensor("other")
    if own is None or other is None or not _has_rows_of(own, other):
        return launch_itself(call, libraries)
    places = TensorInfo(other.shape[:1], (1,), INT64, -1)
    inputs = (own, 0, places, other, call.inputs.get("alpha", 1))
    return [("aten::index_add_", inputs, call.outputs)]


def _has_rows_of(own: TensorInfo, other: TensorInfo) -> bool:
    """Return whether rows are added to part of a tensor: dense operands can't differ in rows."""
    if not own.shape or len(own.shape) != len(other.shape) or own.shape[1:] != other.shape[1:]:
        return False
    return own.shape[0] != other.shape[0] and 1 not in (own.shape[0], other.shape[0])


def _positions(count: int) -> list[LaunchedCall]:
    made = TensorInfo((count,), (1,), INT64, -1)
    return [("aten::arange", (0, count, 1, made), (made,))]


def _masked_fill(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    source, mask, made = call.tensor("self"), call.tensor("mask"), call.output
    if made is None:
        return []
    value = call.inputs.get("value")
    return [copy_launch(made, source), ("aten::masked_fill_", (made, mask, value), (made,))]


def _part_of_zeros(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Copy into a part of zeros."""
    part, made = call.tensor("grad_output") or call.tensor("self"), call.output
    if made is None or part is None:
        return []
    return [fill_launch(made), copy_launch(replace(part, storage=made.storage), part)]


def _gather_copy_in(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Copy a rank's shards to their place in the gathered tensor."""
    inputs, place = call.inputs["all_gather_inputs"], call.output
    if place is None or not isinstance(inputs, tuple):
        return []
    parts = tuple(replace(part, storage=place.storage) for part in tensors_in(inputs))
    return [("aten::_foreach_copy_", (parts, inputs, False), parts)]


def _stacked(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    tensors, axis = call.inputs["tensors"], call.inputs.get("dim", 0)
    return [("aten::cat", (tensors, axis), call.outputs)]


def _reversed_sub(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    own, other = call.inputs["self"], call.inputs["other"]
    other = other if isinstance(other, TensorInfo) else _NUMBER
    return [("aten::sub", (other, own, call.inputs.get("alpha", 1)), call.outputs)]


def _into_copy(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Copy the tensor before it is changed."""
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return launch_itself(call, libraries)
    return [copy_launch(made, source), *launch_itself(call, libraries)]


def _put_into_copy(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return launch_itself(call, libraries)
    inputs = tuple(call.inputs.values())
    return [copy_launch(made, source), ("aten::_index_put_impl_", (made, *inputs[1:]), (made,))]


def _into_zeros(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Fill the result with zeros before adding to it."""
    zeros = [fill_launch(each) for each in call.outputs if isinstance(each, TensorInfo)]
    return [*zeros, *launch_itself(call, libraries)]


def _padded(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return []
    return [
        fill_launch(made),
        copy_launch(replace(source, strides=made.strides, storage=-1), source),
    ]


# ------------------------------------------------------------------------------------- losses


def _reduced(call: Call, each: TensorInfo) -> list[LaunchedCall]:
    """Reduce the terms of a loss: 0 none, 1 mean, 2 sum."""
    reduction = call.inputs.get("reduction", 1)
    if reduction not in (1, 2):
        return []
    made = replace(each, shape=(), strides=(), storage=-1)
    name = "aten::mean" if reduction == 1 else "aten::sum"
    return [(name, (each, None, False, None), (made,))]


def _loss(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Compute the terms by element and reduce them."""
    source = call.tensor("self")
    if source is None:
        return launch_itself(call, libraries)
    terms = contiguous_like(source)
    return [(call.name, tuple(call.inputs.values()), (terms,)), *_reduced(call, terms)]


def _logits_loss(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Compute (1 - target) * x - log(sigmoid(x)), operator by operator."""
    source, target = call.tensor("self"), call.tensor("target")
    if source is None or target is None:
        return launch_itself(call, libraries)
    terms = contiguous_like(source)
    weights = [call.tensor(name) for name in ("pos_weight", "weight")]
    return [
        ("aten::log_sigmoid_forward", (source,), (terms,)),
        ("aten::sub", (_NUMBER, target, 1), (terms,)),
        ("aten::mul_", (terms, source), (terms,)),
        *[("aten::mul_", (terms, each), (terms,)) for each in weights if each is not None],
        ("aten::sub_", (terms, terms, 1), (terms,)),
        *_reduced(call, terms),
    ]


def _log_of_sum(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Subtract the maximum against overflow and add it in the end."""
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return launch_itself(call, libraries)
    axes, terms = call.inputs.get("dim"), contiguous_like(source)
    mask = replace(made, dtype=BOOL, storage=-1)
    return [
        ("aten::amax", (source, axes, True), (made,)),
        ("aten::abs", (made,), (made,)),
        ("aten::eq", (made, 1.0), (mask,)),
        ("aten::masked_fill_", (made, mask, 0), (made,)),
        ("aten::sub", (source, replace(made, shape=(), strides=()) if not axes else made, 1),
         (terms,)),
        ("aten::exp_", (terms,), (terms,)),
        ("aten::sum", (terms, axes, False, None), (made,)),
        ("aten::log_", (made,), (made,)),
        ("aten::add_", (made, made, 1), (made,)),
    ]  # fmt: skip


def _sorted(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Sort short rows in place after copying values and indices."""
    source = call.tensor("self")
    if source is None or not call.outputs or not source.shape:
        return launch_itself(call, libraries)
    if source.shape[-1] > _LONGEST_SORT_IN_BLOCK:
        return launch_itself(call, libraries)
    made = contiguous_like(source)
    order, length = replace(made, dtype=INT64), source.shape[-1]
    row = TensorInfo((length,), (1,), INT64, -1)
    spread = replace(row, shape=source.shape, strides=(0,) * (len(source.shape) - 1) + (1,))
    return [
        *_positions(length),
        copy_launch(order, spread),
        copy_launch(made, source),
        *launch_itself(call, libraries),
    ]


def _every(names: str, rule: Rule) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


RULES: dict[str, Rule] = {
    **_every("clone _to_copy repeat contiguous", _copied),
    **_every(
        "full full_like zeros zeros_like ones ones_like new_full new_zeros new_ones scalar_tensor "
        "zero_ eye",
        _filled,
    ),
    **_every("slice_backward select_backward diagonal_backward", _part_of_zeros),
    **_every(
        "index_add index_copy index_fill scatter scatter_add scatter_reduce masked_scatter",
        _into_copy,
    ),
    **_every("index_put _unsafe_index_put", _put_into_copy),
    **_every(
        "nll_loss_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "grid_sampler_2d_backward grid_sampler_3d_backward col2im _embedding_bag_dense_backward",
        _into_zeros,
    ),
    **_every("mse_loss smooth_l1_loss huber_loss binary_cross_entropy", _loss),
    "aten::binary_cross_entropy_with_logits": _logits_loss,
    "aten::logsumexp": _log_of_sum,
    "aten::sort": _sorted,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::_embedding_bag_backward": _bag_backward,
    "aten::add_": _added,
    "aten::sparse_mask": _masked_rows,
    "aten::masked_fill": _masked_fill,
    "aten::constant_pad_nd": _padded,
    "aten::stack": _stacked,
    "aten::rsub": _reversed_sub,
    "fsdp::all_gather_copy_in": _gather_copy_in,
}
