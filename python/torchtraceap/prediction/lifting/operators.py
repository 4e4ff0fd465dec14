"""Which operators launch GPU work, as Kineto would name them: the innermost ones.

Note [Innermost operators]: a call that a capture shows is often not the operator under which a
kernel is launched: `clone` launches in `copy_`, `embedding` in `index_select`. The rules follow
what ATen does on a GPU, none is fitted to a trace. What has no rule launches under its own name,
which holds for most of ATen: a kernel that is registered for CUDA launches itself.

Note [Implementations of attention]: of torch.nn.functional.scaled_dot_product_attention, in the
order in which torch 2 asks them: flash (fp16 and bf16, no mask, up to 256 wide), memory efficient
(a mask, or other types), else by products and softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchtraceap.prediction.capture.calls import (
    Call,
    Capture,
    Phase,
    TensorInfo,
    Value,
    tensors_in,
)

__all__ = ["LaunchingOp", "Libraries", "launching_ops"]

_WIDEST_FLASH = 256


@dataclass(frozen=True, slots=True)
class Libraries:
    """What a build of torch calls."""

    convolution: str = "cudnn"
    """"cudnn" or "miopen"."""
    torch: tuple[int, int] = (2, 7)
    """Its version: names of kernels and their widths change with it."""


@dataclass(frozen=True, slots=True)
class LaunchingOp:
    """An operator that launches GPU work."""

    name: str
    inputs: tuple[Value, ...]
    """By position, as far as they are known: tensors, lists of them, plain values."""
    outputs: tuple[Value, ...]
    phase: Phase
    modules: tuple[str, ...]
    call: int
    """Index of the captured call that it comes from."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Inputs that are tensors, those of lists among them."""
        return tuple(tensors_in(self.inputs))


def launching_ops(capture: Capture, libraries: Libraries = Libraries()) -> tuple[LaunchingOp, ...]:
    """The operators of a step that launch something, in the order of the host."""
    found: list[LaunchingOp] = []
    for index, call in enumerate(capture.calls):
        if call.is_view or call.on_host:
            continue
        rule = _RULES.get(call.name, _itself)
        for name, inputs, outputs in rule(call, libraries):
            found.append(LaunchingOp(name, inputs, outputs, call.phase, call.modules, index))
    return tuple(found)


# ------------------------------------------------------------------------------------- rules

_Launch = tuple[str, tuple[Value, ...], tuple[Value, ...]]
_Rule = Callable[[Call, Libraries], Sequence[_Launch]]


def _itself(call: Call, _: Libraries) -> Sequence[_Launch]:
    return [(call.name, tuple(call.inputs.values()), call.outputs)]


def _nothing(_call: Call, _: Libraries) -> Sequence[_Launch]:
    return []


def _named(name: str) -> _Rule:
    """The same under another name."""
    return lambda call, _: [(name, tuple(call.inputs.values()), call.outputs)]


def _copied(call: Call, _: Libraries) -> Sequence[_Launch]:
    """What goes in is copied to what comes out."""
    source, made = call.tensor("self"), call.output
    return [] if made is None else [_copy(made, source)]


def _copy(to: TensorInfo, source: Value) -> _Launch:
    return "aten::copy_", (to, source, False), (to,)


def _filled(call: Call, _: Libraries) -> Sequence[_Launch]:
    made = call.output
    return [] if made is None else [_fill(made)]


def _fill(made: TensorInfo) -> _Launch:
    return "aten::fill_", (made, None), (made,)


def _convolution(call: Call, libraries: Libraries) -> Sequence[_Launch]:
    """The library's, then the bias as one value for each channel."""
    given, weight, bias, made = (*map(call.tensor, ("input", "weight", "bias")), call.output)
    if given is None or weight is None or made is None:
        return []
    padding, stride, dilation, groups, transposed = map(
        call.inputs.get, ("padding", "stride", "dilation", "groups", "transposed")
    )
    name = f"aten::{libraries.convolution}_convolution{'_transpose' if transposed else ''}"
    own_bias = (None,) if libraries.convolution == "miopen" else ()
    around = (padding, call.inputs["output_padding"]) if transposed else (padding,)
    inputs = (given, weight, *own_bias, *around, stride, dilation, groups, False, False)
    launches: list[_Launch] = [(name, inputs, (made,))]
    if bias is not None:
        shape = (1, bias.elements) + (1,) * (len(made.shape) - 2)
        strides = (bias.elements, 1) + (1,) * (len(made.shape) - 2)
        per_channel = replace(bias, shape=shape, strides=strides)
        launches.append(("aten::add_", (made, per_channel, 1), (made,)))
    return launches


def _convolution_backward(call: Call, _: Libraries) -> Sequence[_Launch]:
    """Of input and weight in one operator, of the bias a sum."""
    grad, bias = call.tensor("grad_output"), call.outputs[-1]
    launches = _itself(call, _)
    if isinstance(bias, TensorInfo) and grad is not None:
        axes = (0, *range(2, len(grad.shape)))
        launches = [*launches, ("aten::sum", (grad, axes, False, None), (bias,))]
    return launches


def _embedding(call: Call, _: Libraries) -> Sequence[_Launch]:
    weight, indices, made = call.tensor("weight"), call.tensor("indices"), call.output
    if weight is None or indices is None or made is None:
        return []
    return [("aten::index_select", (weight, 0, _flat(indices)), (made,))]


def _flat(tensor: TensorInfo) -> TensorInfo:
    return replace(tensor, shape=(tensor.elements,), strides=(1,))


def _masked_fill(call: Call, _: Libraries) -> Sequence[_Launch]:
    source, mask, made = call.tensor("self"), call.tensor("mask"), call.output
    if made is None:
        return []
    value = call.inputs.get("value")
    return [_copy(made, source), ("aten::masked_fill_", (made, mask, value), (made,))]


def _part_of_zeros(call: Call, _: Libraries) -> Sequence[_Launch]:
    """Zeros, into a part of which something is copied."""
    part, made = call.tensor("grad_output") or call.tensor("self"), call.output
    if made is None or part is None:
        return []
    return [_fill(made), _copy(replace(part, storage=made.storage), part)]


def _gather_copy_in(call: Call, _: Libraries) -> Sequence[_Launch]:
    """What a rank keeps, copied to its place among what all ranks keep."""
    inputs, place = call.inputs["all_gather_inputs"], call.output
    if place is None or not isinstance(inputs, tuple):
        return []
    parts = tuple(replace(part, storage=place.storage) for part in tensors_in(inputs))
    return [("aten::_foreach_copy_", (parts, inputs, False), parts)]


def _stacked(call: Call, _: Libraries) -> Sequence[_Launch]:
    tensors, axis = call.inputs["tensors"], call.inputs.get("dim", 0)
    return [("aten::cat", (tensors, axis), call.outputs)]


def _reversed_sub(call: Call, _: Libraries) -> Sequence[_Launch]:
    own, other = call.inputs["self"], call.inputs["other"]
    return [("aten::sub", (other, own, call.inputs.get("alpha", 1)), call.outputs)]


# ------------------------------------------------------------------------------------- attention


def _attention(call: Call, _: Libraries) -> Sequence[_Launch]:
    """See Note [Implementations of attention]."""
    query, key, value = map(call.tensor, ("query", "key", "value"))
    made = call.output
    if query is None or key is None or value is None or made is None:
        return []
    mask, causal = call.tensor("attn_mask"), call.inputs["is_causal"]
    dropout, scale = call.inputs["dropout_p"], call.inputs["scale"]
    of_heads = tuple(map(_heads_last, (query, key, value)))
    if _takes_flash(query, key, mask):
        inputs = (*of_heads, None, None, *_lengths(query, key), dropout, causal, False, scale)
        return [("aten::_flash_attention_forward", inputs, (_heads_last(made),))]
    inputs = (*of_heads, mask, None, None, *_lengths(query, key), dropout, causal, False, scale)
    return [("aten::_efficient_attention_forward", inputs, (_heads_last(made),))]


def _attention_backward(call: Call, _: Libraries) -> Sequence[_Launch]:
    names = ("grad_out", "query", "key", "value", "out")
    given = [_heads_last(tensor) for tensor in map(call.tensor, names) if tensor is not None]
    query, key = call.tensor("query"), call.tensor("key")
    if query is None or key is None:
        return []
    flash = _takes_flash(query, key, call.tensor("attn_mask"))
    name = "_flash_attention_backward" if flash else "_efficient_attention_backward"
    return [(f"aten::{name}", tuple(given), call.outputs)]


def _takes_flash(query: TensorInfo, key: TensorInfo, mask: TensorInfo | None) -> bool:
    is_half = query.dtype.name in ("float16", "bfloat16")
    return is_half and mask is None and len(query.shape) == 4 and key.shape[-1] <= _WIDEST_FLASH


def _heads_last(tensor: TensorInfo) -> TensorInfo:
    """[batch, heads, length, width] as [batch, length, heads, width]."""
    if len(tensor.shape) != 4:
        return tensor
    order = (0, 2, 1, 3)
    shape = tuple(tensor.shape[axis] for axis in order)
    return replace(tensor, shape=shape, strides=tuple(tensor.strides[axis] for axis in order))


def _lengths(query: TensorInfo, key: TensorInfo) -> tuple[int, int]:
    return query.shape[-2], key.shape[-2]


# ------------------------------------------------------------------------------------- table


def _every(names: str, rule: _Rule) -> dict[str, _Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_RULES: dict[str, _Rule] = {
    **_every(
        "empty empty_like empty_strided new_empty new_empty_strided empty_permuted _unsafe_view "
        "detach lift_fresh resize_ set_ sym_size sym_stride sym_numel _reshape_alias is_same_size",
        _nothing,
    ),
    **_every("clone _to_copy repeat contiguous", _copied),
    **_every(
        "full full_like zeros zeros_like ones ones_like new_full new_zeros new_ones scalar_tensor "
        "zero_ eye",
        _filled,
    ),
    **_every("convolution _convolution", _convolution),
    **_every("slice_backward select_backward diagonal_backward", _part_of_zeros),
    "aten::convolution_backward": _convolution_backward,
    "aten::embedding": _embedding,
    "aten::masked_fill": _masked_fill,
    "aten::stack": _stacked,
    "aten::rsub": _reversed_sub,
    "aten::index_put_": _named("aten::_index_put_impl_"),
    "aten::_unsafe_index": _named("aten::index"),
    "aten::scaled_dot_product_attention": _attention,
    "aten::scaled_dot_product_attention_backward": _attention_backward,
    "fsdp::all_gather_copy_in": _gather_copy_in,
    "fsdp::split_with_sizes_copy": _named("aten::split_with_sizes_copy"),
    "fsdp::chunk_cat": _named("aten::_chunk_cat"),
    "profiler::_record_function_enter_new": _nothing,
    "profiler::_record_function_exit": _nothing,
}
