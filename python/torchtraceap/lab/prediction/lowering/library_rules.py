"""Rules for operators whose implementation torch chooses: convolutions, batch norms, attention.

Note [Implementations of attention]: torch 2 tries the implementations of
torch.nn.functional.scaled_dot_product_attention in this order: flash (fp16 and bf16, no mask, up to
256 wide), memory efficient (a mask, or other types), then products and softmax. AMD's build counts
the rows of a causal mask in memory that is filled with 0 before.

Note [Implementations of convolution]: the choice follows `select_conv_backend` of ATen. Depthwise
convolutions (one input channel for each group) have kernels of ATen, which add the bias themselves;
channels-last ones use cuDNN. One-dimensional convolutions run as two-dimensional ones with a
dimension of 1.

Note [Implementations of batch norm]: the choice follows `_select_batch_norm_backend` of ATen: the
library for fp32 and fp16 with weights in fp32, running statistics in both cases or in none, and
counts within its limits; otherwise ATen's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from torchtraceap.core import INT32
from torchtraceap.lab.prediction.capture.batch_sizes import contiguous_strides
from torchtraceap.lab.prediction.capture.calls import Call, TensorInfo, Value
from torchtraceap.lab.prediction.lowering.kernels.launch import rule
from torchtraceap.lab.prediction.lowering.step import Libraries

__all__ = [
    "RULES",
    "LaunchedCall",
    "Rule",
    "contiguous_like",
    "copy_launch",
    "fill_launch",
    "flattened",
    "launch_itself",
]

LaunchedCall: TypeAlias = tuple[str, tuple[Value, ...], tuple[Value, ...]]
"""Name, inputs and outputs of a launching operator."""
Rule: TypeAlias = Callable[[Call, Libraries], Sequence[LaunchedCall]]
"""Returns the launching operators of a captured call."""


def launch_itself(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Return the call itself, as most operators of ATen launch under their own names."""
    return [(call.name, tuple(call.inputs.values()), call.outputs)]


def copy_launch(to: TensorInfo, source: Value) -> LaunchedCall:
    """Return a copy from one tensor to another."""
    return "aten::copy_", (to, source, False), (to,)


def fill_launch(made: TensorInfo) -> LaunchedCall:
    """Return the fill of a tensor with one value."""
    return "aten::fill_", (made, None), (made,)


def contiguous_like(tensor: TensorInfo) -> TensorInfo:
    """Return a contiguous tensor of the same shape and type in new memory."""
    return replace(tensor, strides=contiguous_strides(tensor.shape), storage=-1)


def flattened(tensor: TensorInfo) -> TensorInfo:
    """Return the tensor as one dimension."""
    return replace(tensor, shape=(tensor.elements,), strides=(1,))


RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_WIDEST_FLASH = 256


# ------------------------------------------------------------------------------------- convolution


@rule(RULES, "convolution _convolution")
def _convolution(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Launch the library's convolution, then add the bias by channel."""
    given, weight, bias, made = (*map(call.tensor, ("input", "weight", "bias")), call.output)
    if given is None or weight is None or made is None:
        return []
    padding, stride, dilation, groups, transposed, output_padding = (
        call.inputs.get(name)
        for name in ("padding", "stride", "dilation", "groups", "transposed", "output_padding")
    )
    if len(given.shape) == 3:
        # [batch, channels, length] is seen as [batch, channels, 1, length].
        given, weight, made = (
            replace(
                each,
                shape=(*each.shape[:2], 1, *each.shape[2:]),
                strides=(
                    *each.strides[:2],
                    each.shape[-1] * each.strides[-1],
                    *each.strides[2:],
                ),
            )
            for each in (given, weight, made)
        )
        padding, dilation, output_padding = (
            _before(0, padding), _before(1, dilation), _before(0, output_padding),
        )  # fmt: skip
        stride = _before(1, stride)
    if not transposed and given.shape[1] > 1:
        channels = given.shape[1]
        if groups == channels and weight.shape[0] % channels == 0:
            sizes = (stride, padding, dilation)
            found = _depthwise(given, weight, bias, made, sizes, libraries)
            if found:
                return found
    name = f"aten::{libraries.convolution}_convolution{'_transpose' if transposed else ''}"
    own_bias = (None,) if libraries.for_amd else ()
    around = (padding, output_padding) if transposed else (padding,)
    inputs = (given, weight, *own_bias, *around, stride, dilation, groups, False, False)
    launches: list[LaunchedCall] = [(name, inputs, (made,))]
    if bias is not None:
        launches.append(("aten::add_", (made, _per_channel(bias, made), 1), (made,)))
    return launches


def _before(first: int, value: Value) -> Value:
    return (first, *value) if isinstance(value, tuple) and len(value) == 1 else value


def _per_channel(bias: TensorInfo, made: TensorInfo) -> TensorInfo:
    rest = (1,) * (len(made.shape) - 2)
    return replace(bias, shape=(1, bias.elements, *rest), strides=(bias.elements, 1, *rest))


def _depthwise(
    given: TensorInfo,
    weight: TensorInfo,
    bias: TensorInfo | None,
    made: TensorInfo,
    around: tuple[Value, Value, Value],
    libraries: Libraries,
) -> Sequence[LaunchedCall]:
    """Launch a depthwise convolution, or nothing if the library's usual one is used.

    See Note [Implementations of convolution].
    """
    stride, padding, dilation = around
    if libraries.for_amd:
        name, three = "aten::miopen_depthwise_convolution", len(given.shape) == 5
        inputs: tuple[Value, ...] = (
            given, weight, None, padding, stride, dilation, given.shape[1], False, False
        )  # fmt: skip
        launches: list[LaunchedCall] = [(name, inputs, (made,))]
        if bias is not None:
            launches.append(("aten::add_", (made, _per_channel(bias, made), 1), (made,)))
        return [] if three else launches
    if given.strides[1] == 1:
        return []
    name = "aten::conv_depthwise3d" if len(given.shape) == 5 else "aten::_conv_depthwise2d"
    size = tuple(weight.shape[2:])
    return [(name, (given, weight, size, bias, stride, padding, dilation), (made,))]


@rule(RULES, "convolution_backward")
def _convolution_backward(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Launch the gradients of input and weight, and a sum for the bias."""
    grad, bias = call.tensor("grad_output"), call.outputs[-1] if call.outputs else None
    launches = launch_itself(call, libraries)
    if isinstance(bias, TensorInfo) and grad is not None:
        axes = (0, *range(2, len(grad.shape)))
        launches = [*launches, ("aten::sum", (grad, axes, False, None), (bias,))]
    return launches


# ------------------------------------------------------------------------------------- batch norm

_MOST_IMAGES_TRAINING, _MOST_IMAGES = 880_801, 65_535
_MOST_ROWS_TRAINING, _MOST_ROWS = 131_070, 262_136
_LEAST_EPSILON = 1e-5


@rule(RULES, "native_batch_norm _native_batch_norm_legit")
def _batch_norm(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Launch a batch norm; see Note [Implementations of batch norm]."""
    given = call.tensor("input")
    if given is None or not _library_norms(call, given, libraries):
        return launch_itself(call, libraries)
    names = ("weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    inputs = (given, *(call.inputs.get(name) for name in names))
    return [(f"aten::{libraries.convolution}_batch_norm", inputs, call.outputs)]


@rule(RULES, "native_batch_norm_backward")
def _batch_norm_backward(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Launch the backward of the library that ran the forward pass in training."""
    given, grad = call.tensor("input"), call.tensor("grad_out")
    training = call.inputs.get("train") is True
    if given is None or grad is None or not training:
        return launch_itself(call, libraries)
    if not _library_norms(call, given, libraries):
        return launch_itself(call, libraries)
    names = ("weight", "running_mean", "running_var", "save_mean", "save_invstd", "eps")
    inputs = (given, grad, *(call.inputs.get(name) for name in names))
    return [(f"aten::{libraries.convolution}_batch_norm_backward", inputs, call.outputs)]


def _library_norms(call: Call, given: TensorInfo, libraries: Libraries) -> bool:
    weight, mean = call.tensor("weight"), call.tensor("running_mean")
    training = call.inputs.get("training", call.inputs.get("train")) is True
    types = ("float32",) if libraries.for_amd else ("float32", "float16")
    if weight is None or weight.dtype.name != "float32" or given.dtype.name not in types:
        return False
    if mean is None and not training:
        return False
    epsilon = call.inputs.get("eps")
    if isinstance(epsilon, float) and epsilon < _LEAST_EPSILON:
        return False
    count = given.shape[0]
    if len(given.shape) == 2:
        return count <= (_MOST_ROWS_TRAINING if training else _MOST_ROWS)
    return count <= (_MOST_IMAGES_TRAINING if training else _MOST_IMAGES)


# ------------------------------------------------------------------------------------- recurrent

_LSTM = 2
"""cuDNN's mode."""


@rule(RULES, "mkldnn_rnn_layer mkldnn_rnn_layer_backward")
def _lstm(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Launch one layer in one direction, as requested from the CPU."""
    given, weight = call.tensor("input"), call.tensor("weight1")
    if given is None or weight is None:
        return launch_itself(call, libraries)
    hidden = weight.shape[-1] if weight.shape else 1
    backward = call.name.endswith("_backward")
    state: tuple[Value, ...] = (None,) * (7 if backward else 3)
    inputs = (given, weight, 4, *state, _LSTM, hidden, 0, 1, False, 0.0, backward, False, ())
    return _rnn(f"aten::_cudnn_rnn{'_backward' * backward}", inputs, call.outputs, libraries)


@rule(RULES, "_cudnn_rnn _cudnn_rnn_backward")
def _recurrent(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    return _rnn(call.name, tuple(call.inputs.values()), call.outputs, libraries)


def _rnn(
    name: str, inputs: tuple[Value, ...], outputs: tuple[Value, ...], libraries: Libraries
) -> Sequence[LaunchedCall]:
    """Launch cuDNN's operator, or MIOpen's, which has neither projections nor a weight buffer."""
    if libraries.for_amd:
        left_out = (12,) if name.endswith("_backward") else (3, 8)
        inputs = tuple(each for at, each in enumerate(inputs) if at not in left_out)
        name = name.replace("_cudnn_", "miopen_")
    return [(name, inputs, outputs)]


# ------------------------------------------------------------------------------------- attention


@rule(RULES, "scaled_dot_product_attention")
def _attention(call: Call, libraries: Libraries) -> Sequence[LaunchedCall]:
    """Launch attention; see Note [Implementations of attention]."""
    query, key, value = map(call.tensor, ("query", "key", "value"))
    made = call.output
    if query is None or key is None or value is None or made is None:
        return []
    mask, causal = call.tensor("attn_mask"), call.inputs["is_causal"]
    dropout, scale = call.inputs["dropout_p"], call.inputs["scale"]
    of_heads = tuple(map(_heads_last, (query, key, value)))
    counter: list[LaunchedCall] = []
    if libraries.for_amd and causal:
        rows = replace(query, shape=(1,), strides=(1,), dtype=INT32, storage=-1)
        counter = [fill_launch(rows)]
    longest = _lengths(query, key)
    if _takes_flash(query, key, mask):
        inputs = (*of_heads, None, None, *longest, dropout, causal, False, scale)
        name = "aten::_flash_attention_forward"
    else:
        kind = int(bool(causal))
        inputs = (*of_heads, mask, None, None, *longest, dropout, kind, False, scale)
        name = "aten::_efficient_attention_forward"
    return [(name, inputs, (_heads_last(made),)), *counter]


@rule(RULES, "scaled_dot_product_attention_backward")
def _attention_backward(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    names = ("grad_out", "query", "key", "value", "out")
    tensors = [tensor for tensor in map(call.tensor, names) if tensor is not None]
    query, key, mask = map(call.tensor, ("query", "key", "attn_mask"))
    if query is None or key is None or len(tensors) < len(names):
        return []
    grad, *of_heads, out = map(_heads_last, tensors)
    dropout, causal, scale = map(call.inputs.get, ("dropout_p", "is_causal", "scale"))
    longest = _lengths(query, key)
    if _takes_flash(query, key, mask):
        name = "_flash_attention_backward"
        rest: tuple[Value, ...] = (None, *longest, dropout, causal, None, None, scale)
        inputs = (grad, *of_heads, out, None, None, *rest)
    else:
        name = "_efficient_attention_backward"
        rest = (*longest, None, dropout, None, None, int(bool(causal)), False, scale)
        inputs = (grad, *of_heads, mask, out, None, None, *rest)
    return [(f"aten::{name}", inputs, call.outputs)]


def _takes_flash(query: TensorInfo, key: TensorInfo, mask: TensorInfo | None) -> bool:
    is_half = query.dtype.name in ("float16", "bfloat16")
    return is_half and mask is None and len(query.shape) == 4 and key.shape[-1] <= _WIDEST_FLASH


def _heads_last(tensor: TensorInfo) -> TensorInfo:
    """View [batch, heads, length, width] as [batch, length, heads, width]."""
    if len(tensor.shape) != 4:
        return tensor
    order = (0, 2, 1, 3)
    shape = tuple(tensor.shape[axis] for axis in order)
    return replace(tensor, shape=shape, strides=tuple(tensor.strides[axis] for axis in order))


def _lengths(query: TensorInfo, key: TensorInfo) -> tuple[int, int]:
    return query.shape[-2], key.shape[-2]
