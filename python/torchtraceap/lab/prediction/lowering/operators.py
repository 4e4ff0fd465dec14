"""Selects the operators that launch GPU work, the innermost ones in Kineto's terms.

Note [Innermost operators]: a captured call is often not the operator that launches the kernel:
`clone` launches in `copy_`, `embedding` in `index_select`. The rules follow ATen on a GPU, and none
is fitted to a trace. Operators without a rule launch under their own name, as most of ATen does: a
kernel registered for CUDA launches itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtraceap.core import BOOL, FP64, INT64
from torchtraceap.lab.prediction.capture.calls import Call, Capture, TensorInfo, tensors_in
from torchtraceap.lab.prediction.lowering.kernels.launch import rule
from torchtraceap.lab.prediction.lowering.library_rules import (
    RULES,
    LaunchedCall,
    Rule,
    contiguous_like,
    copy_launch,
    fill_launch,
    flattened,
    launch_itself,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp, Libraries

__all__ = ["launching_ops"]

_USUAL = Libraries()
_RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""

_SILENT = """empty empty_like empty_strided new_empty new_empty_strided empty_permuted _unsafe_view
detach lift_fresh resize_ set_ sym_size sym_stride sym_numel _reshape_alias is_same_size
unsafe_split unsafe_chunk unsafe_split_with_sizes
_sparse_coo_tensor_with_dims_and_tensors is_coalesced _coalesced_ _indices _values _nnz
profiler::_record_function_enter_new profiler::_record_function_exit"""
_SAME_ARGUMENTS = {
    "index_put_": "aten::_index_put_impl_",
    "_unsafe_index": "aten::index",
    "fsdp::split_with_sizes_copy": "aten::split_with_sizes_copy",
    "fsdp::chunk_cat": "aten::_chunk_cat",
}
"""Operators that launch in others, to which they pass their arguments."""

_MOST_LOOKUPS_AT_ONCE = 3_072
_LONGEST_SORT_IN_BLOCK = 4_096
_NUMBER = TensorInfo((), FP64, (), -1)
"""Tensor that stands for a Python number."""


def launching_ops(capture: Capture, libraries: Libraries = _USUAL) -> tuple[LaunchingOp, ...]:
    """Return the launching operators of a step in host order."""
    found: list[LaunchingOp] = []
    for index, call in enumerate(capture.calls):
        if call.is_view or call.on_host:
            continue
        rule_of = _RULES.get(call.name.removeprefix("aten::"), launch_itself)
        launches = launch_itself if call.is_innermost else rule_of
        for name, inputs, outputs in launches(call, libraries):
            tensors = tuple(tensors_in(outputs))
            if tensors and not any(each.elements for each in tensors):
                continue  # nothing is launched for empty outputs
            found.append(LaunchingOp(name, inputs, outputs, call.phase, call.modules, index))
    return tuple(found)


@rule(_RULES, _SILENT)
def _no_launch(_call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    return []


@rule(_RULES, _SAME_ARGUMENTS)
def _launch_under_other_name(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    name = _SAME_ARGUMENTS[call.name.removeprefix("aten::")]
    return [(name, tuple(call.inputs.values()), call.outputs)]


@rule(_RULES, "clone _to_copy repeat contiguous")
def _clone(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Copy the input to the output."""
    source, made = call.tensor("self"), call.output
    return [] if made is None else [copy_launch(made, source)]


@rule(
    _RULES,
    "full full_like zeros zeros_like ones ones_like new_full new_zeros new_ones scalar_tensor "
    "zero_ eye",
)
def _full(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    made = call.output
    return [] if made is None else [fill_launch(made)]


@rule(_RULES, "embedding")
def _embedding(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    weight, indices, made = call.tensor("weight"), call.tensor("indices"), call.output
    if weight is None or indices is None or made is None:
        return []
    return [("aten::index_select", (weight, 0, flattened(indices)), (made,))]


@rule(_RULES, "embedding_dense_backward")
def _embedding_backward(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Add into zeros; many lookups are numbered to be sorted."""
    indices, made = call.tensor("indices"), call.output
    if made is None or indices is None:
        return launch_itself(call, libraries)
    many = indices.elements > _MOST_LOOKUPS_AT_ONCE
    numbers = _positions(indices.elements) if many else []
    return [fill_launch(made), *numbers, *launch_itself(call, libraries)]


@rule(_RULES, "_embedding_bag_backward")
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


@rule(_RULES, "sparse_mask")
def _sparse_mask(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Select the rows of a dense tensor that a sparse one has."""
    own, rows, made = call.tensor("self"), call.tensor("mask"), call.output
    if own is None or rows is None or made is None or not rows.shape:
        return launch_itself(call, libraries)
    places = TensorInfo(rows.shape[:1], INT64, (1,), -1)
    return [("aten::index_select", (own, 0, places), (made,))]


@rule(_RULES, "add_")
def _add_sparse(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Add a sparse tensor, seen as its values, row by row."""
    own, other = call.tensor("self"), call.tensor("other")
    if own is None or other is None or not own.shape or len(own.shape) != len(other.shape):
        return launch_itself(call, libraries)
    # Rows are added to part of a tensor: dense operands can't differ in rows.
    rows = (own.shape[0], other.shape[0])
    if own.shape[1:] != other.shape[1:] or rows[0] == rows[1] or 1 in rows:
        return launch_itself(call, libraries)
    places = TensorInfo(other.shape[:1], INT64, (1,), -1)
    inputs = (own, 0, places, other, call.inputs.get("alpha", 1))
    return [("aten::index_add_", inputs, call.outputs)]


def _positions(count: int) -> list[LaunchedCall]:
    made = TensorInfo((count,), INT64, (1,), -1)
    return [("aten::arange", (0, count, 1, made), (made,))]


@rule(_RULES, "masked_fill")
def _masked_fill(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    source, mask, made = call.tensor("self"), call.tensor("mask"), call.output
    if made is None:
        return []
    value = call.inputs.get("value")
    return [copy_launch(made, source), ("aten::masked_fill_", (made, mask, value), (made,))]


@rule(_RULES, "slice_backward select_backward diagonal_backward")
def _part_of_zeros_backward(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Copy into a part of zeros."""
    part, made = call.tensor("grad_output") or call.tensor("self"), call.output
    if made is None or part is None:
        return []
    return [fill_launch(made), copy_launch(replace(part, storage=made.storage), part)]


@rule(_RULES, "fsdp::all_gather_copy_in")
def _gather_copy_in(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Copy a rank's shards to their place in the gathered tensor."""
    inputs, place = call.inputs["all_gather_inputs"], call.output
    if place is None or not isinstance(inputs, tuple):
        return []
    parts = tuple(replace(part, storage=place.storage) for part in tensors_in(inputs))
    return [("aten::_foreach_copy_", (parts, inputs, False), parts)]


@rule(_RULES, "stack")
def _stack(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    tensors, axis = call.inputs["tensors"], call.inputs.get("dim", 0)
    return [("aten::cat", (tensors, axis), call.outputs)]


@rule(_RULES, "rsub")
def _rsub(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    own, other = call.inputs["self"], call.inputs["other"]
    other = other if isinstance(other, TensorInfo) else _NUMBER
    return [("aten::sub", (other, own, call.inputs.get("alpha", 1)), call.outputs)]


@rule(
    _RULES,
    "index_add index_copy index_fill scatter scatter_add scatter_reduce masked_scatter",
)
def _into_copy(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Copy the tensor before it is changed."""
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return launch_itself(call, libraries)
    return [copy_launch(made, source), *launch_itself(call, libraries)]


@rule(_RULES, "index_put _unsafe_index_put")
def _index_put(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return launch_itself(call, libraries)
    inputs = tuple(call.inputs.values())
    return [copy_launch(made, source), ("aten::_index_put_impl_", (made, *inputs[1:]), (made,))]


@rule(
    _RULES,
    "nll_loss_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
    "grid_sampler_2d_backward grid_sampler_3d_backward col2im _embedding_bag_dense_backward",
)
def _into_zeros(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Fill the result with zeros before adding to it."""
    zeros = [fill_launch(each) for each in call.outputs if isinstance(each, TensorInfo)]
    return [*zeros, *launch_itself(call, libraries)]


@rule(_RULES, "constant_pad_nd")
def _pad(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    source, made = call.tensor("self"), call.output
    if source is None or made is None:
        return []
    return [
        fill_launch(made),
        copy_launch(replace(source, strides=made.strides, storage=-1), source),
    ]


# ------------------------------------------------------------------------------------- losses


def _reduce_terms(call: Call, each: TensorInfo) -> list[LaunchedCall]:
    """Reduce the terms of a loss: 0 none, 1 mean, 2 sum."""
    reduction = call.inputs.get("reduction", 1)
    if reduction not in (1, 2):
        return []
    made = replace(each, shape=(), strides=(), storage=-1)
    name = "aten::mean" if reduction == 1 else "aten::sum"
    return [(name, (each, None, False, None), (made,))]


@rule(_RULES, "mse_loss smooth_l1_loss huber_loss binary_cross_entropy")
def _loss(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Compute the terms by element and reduce them."""
    source = call.tensor("self")
    if source is None:
        return launch_itself(call, libraries)
    terms = contiguous_like(source)
    return [(call.name, tuple(call.inputs.values()), (terms,)), *_reduce_terms(call, terms)]


@rule(_RULES, "binary_cross_entropy_with_logits")
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
        *_reduce_terms(call, terms),
    ]


@rule(_RULES, "logsumexp")
def _logsumexp(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
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


@rule(_RULES, "sort")
def _sort(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Sort short rows in place after copying values and indices."""
    source = call.tensor("self")
    if source is None or not call.outputs or not source.shape:
        return launch_itself(call, libraries)
    if source.shape[-1] > _LONGEST_SORT_IN_BLOCK:
        return launch_itself(call, libraries)
    made = contiguous_like(source)
    order, length = replace(made, dtype=INT64), source.shape[-1]
    row = TensorInfo((length,), INT64, (1,), -1)
    spread = replace(row, shape=source.shape, strides=(0,) * (len(source.shape) - 1) + (1,))
    return [
        *_positions(length),
        copy_launch(order, spread),
        copy_launch(made, source),
        *launch_itself(call, libraries),
    ]


_RULES.update(RULES)
