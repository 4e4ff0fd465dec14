"""Models of normalizations, of softmax, of losses, and of sampling tokens from scores.

Statistics of a normalization take 4 operations per element, applying them takes 2.
"""

from __future__ import annotations

from math import prod

from torchtraceap.core.dtypes import FP32
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError, promote
from torchtraceap.ops.models.registry import Work, register, register_unknown_work

_STATISTICS = 4  # sum; subtract, square, sum
_NORMALIZE = 2  # subtract, multiply
_FP32_BYTES = 4
# Operations per element: dy * x_hat and its sum, the sum of dy; four for the input gradient.
_BACKWARD_SUMS = 3
_BACKWARD_INPUT = 4


def _bytes(*tensors: Tensor | None) -> int:
    return sum(tensor.bytes for tensor in tensors if tensor is not None)


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    statistics: int,
    running: int = 0,
    saved: int = 0,
) -> Work:
    """Count a forward pass; `running` and `saved` are bytes of statistics read and written."""
    per_element = statistics + _NORMALIZE + (weight is not None) + (bias is not None)
    return Work(
        flops=x.elements * per_element,
        bytes_read=_bytes(x, weight, bias) + running,
        bytes_written=x.elements * x.dtype.size + saved,
    )


def _groups(x: Tensor, normalized: tuple[int, ...]) -> int:
    """Return the number of groups of elements with their own statistics."""
    inner = prod(normalized)
    if not normalized or x.shape[len(x.shape) - len(normalized) :] != normalized:
        raise UnknownWorkError("the normalized shape does not end the input's")
    return x.elements // inner if inner else 0


@register("aten::native_layer_norm")
@register("aten::layer_norm", composite=True)
def layer_norm(call: OpCall) -> Work:
    x, weight, bias = call.tensor(0), call.optional_tensor(2), call.optional_tensor(3)
    affine = weight or bias
    normalized = affine.shape if affine is not None else call.integers(1)
    saved = 2 * _groups(x, normalized) * _FP32_BYTES
    return _forward(x, weight, bias, statistics=_STATISTICS, saved=saved)


@register("aten::_fused_rms_norm", "aten::rms_norm", composite=True)
def rms_norm(call: OpCall) -> Work:
    """Arguments: (input, normalized_shape, weight, eps): one sum of squares, no mean, no bias."""
    x, weight = call.tensor(0), call.optional_tensor(2)
    normalized = weight.shape if weight is not None else call.integers(1)
    saved = _groups(x, normalized) * _FP32_BYTES
    return Work(
        flops=x.elements * (3 + (weight is not None)),
        bytes_read=_bytes(x, weight),
        bytes_written=x.elements * x.dtype.size + saved,
    )


register_unknown_work(
    "the order of its arguments is not known", "fb::rms_norm", "primus::fused_ln_modulate_backward"
)


@register("aten::native_group_norm")
def group_norm(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, N, C, HxW, groups, eps)"""
    groups = call.integer(3) * call.integer(6)
    return _forward(
        call.tensor(0),
        call.optional_tensor(1),
        call.optional_tensor(2),
        statistics=_STATISTICS,
        saved=2 * max(groups, 0) * call.tensor(0).dtype.size,
    )


@register("aten::group_norm", composite=True)
def group_norm_outer(call: OpCall) -> Work:
    """Arguments: (input, groups, weight, bias, eps, cudnn_enabled)"""
    x, groups = call.tensor(0), call.integer(1)
    if len(x.shape) < 2 or groups < 1:
        raise UnknownWorkError("an input without channels")
    saved = 2 * x.shape[0] * groups * x.dtype.size
    weight, bias = call.optional_tensor(2), call.optional_tensor(3)
    return _forward(x, weight, bias, statistics=_STATISTICS, saved=saved)


@register("aiter::_groupnorm_run")
def aiter_group_norm(call: OpCall) -> Work:
    """Arguments: (y, workspace, input, groups, weight, bias, eps), which began with the input in
    older releases; the statistics stay in a workspace of kilobytes."""
    at = 0 if call.optional_tensor(1) is None else 2
    x, groups = call.tensor(at), call.integer(at + 1)
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise UnknownWorkError("an input without channels in groups")
    weight, bias = call.optional_tensor(at + 2), call.optional_tensor(at + 3)
    return _forward(x, weight, bias, statistics=_STATISTICS, saved=0)


@register("aten::instance_norm", composite=True)
def instance_norm(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
    cudnn)

    Statistics are those of each sample and channel; running ones are read and written.
    """
    x = call.tensor(0)
    if len(x.shape) < 2:
        raise UnknownWorkError("an input without channels")
    running = _bytes(call.optional_tensor(3), call.optional_tensor(4))
    own = call.boolean(5)
    return _forward(
        x,
        call.optional_tensor(1),
        call.optional_tensor(2),
        statistics=_STATISTICS if own else 0,
        running=running,
        saved=(2 * x.shape[0] * x.shape[1] * _FP32_BYTES + running) if own else 0,
    )


@register(
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::_native_batch_norm_legit",
)
@register("aten::batch_norm", "aten::_batch_norm_impl_index", composite=True)
def batch_norm(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, running_mean, running_var, training, momentum, eps)

    In training, statistics are computed and saved, and running statistics are read and written.
    In inference, the running statistics are read.
    """
    return _batch_norm(call, training=call.boolean(5))


@register("aten::_native_batch_norm_legit_no_training")
def batch_norm_inference(call: OpCall) -> Work:
    return _batch_norm(call, training=False)


@register("aten::_batch_norm_with_update")
def batch_norm_training(call: OpCall) -> Work:
    return _batch_norm(call, training=True)


def _batch_norm(call: OpCall, *, training: bool) -> Work:
    x = call.tensor(0)
    if len(x.shape) < 2:
        raise UnknownWorkError("an input without channels")
    running = _bytes(call.optional_tensor(3), call.optional_tensor(4))
    saved = 2 * x.shape[1] * _FP32_BYTES + running if training else 0
    return _forward(
        x,
        call.optional_tensor(1),
        call.optional_tensor(2),
        statistics=_STATISTICS if training else 0,
        running=running,
        saved=saved,
    )


# ------------------------------------------------------------------------------- backward


def _backward(
    grad: Tensor,
    x: Tensor,
    statistics: int,
    weight: Tensor | None,
    wants: tuple[bool, bool, bool],
    channels: int,
) -> Work:
    """Count a backward pass.

    Args:
        grad, x: Gradient of the output, and the input.
        statistics: Bytes of statistics that are read.
        weight: Weight, if there is one.
        wants: Which gradients of input, weight and bias are computed.
        channels: Number of elements of the weight.
    """
    parameter = weight.dtype.size if weight is not None else _FP32_BYTES
    sums = _BACKWARD_SUMS if wants[0] or wants[1] else int(wants[2])
    needs_x = wants[0] or wants[1]
    return Work(
        flops=x.elements * (sums + _BACKWARD_INPUT * wants[0]),
        bytes_read=grad.bytes + (x.bytes + statistics) * needs_x + _bytes(weight) * wants[0],
        bytes_written=x.elements * x.dtype.size * wants[0]
        + channels * parameter * (int(wants[1]) + int(wants[2])),
    )


def _mask(call: OpCall, position: int, length: int = 3) -> tuple[bool, bool, bool]:
    mask = call.booleans(position)
    if len(mask) != length:
        raise UnknownWorkError("the mask of wanted gradients has another length")
    return (mask[0], mask[1], mask[2] if length > 2 else False)


@register("aten::native_layer_norm_backward")
def layer_norm_backward(call: OpCall) -> Work:
    """Arguments: (grad, input, normalized_shape, mean, rstd, weight, bias, output_mask)"""
    weight = call.optional_tensor(5)
    channels = weight.elements if weight is not None else prod(call.integers(2))
    statistics = _bytes(call.optional_tensor(3), call.optional_tensor(4))
    return _backward(call.tensor(0), call.tensor(1), statistics, weight, _mask(call, 7), channels)


@register("aten::_fused_rms_norm_backward")
def rms_norm_backward(call: OpCall) -> Work:
    """Arguments: (grad, input, normalized_shape, rstd, weight, output_mask)"""
    weight = call.optional_tensor(4)
    channels = weight.elements if weight is not None else prod(call.integers(2))
    return _backward(
        call.tensor(0),
        call.tensor(1),
        _bytes(call.optional_tensor(3)),
        weight,
        _mask(call, 5, 2),
        channels,
    )


@register("aten::native_group_norm_backward")
def group_norm_backward(call: OpCall) -> Work:
    """Arguments: (grad, input, mean, rstd, weight, N, C, HxW, groups, output_mask)"""
    statistics = _bytes(call.optional_tensor(2), call.optional_tensor(3))
    return _backward(
        call.tensor(0),
        call.tensor(1),
        statistics,
        call.optional_tensor(4),
        _mask(call, 9),
        max(call.integer(6), 0),
    )


@register("aten::batch_norm_backward", composite=True)
@register("aten::native_batch_norm_backward")
def batch_norm_backward(call: OpCall) -> Work:
    """Arguments: (grad, input, weight, running_mean, running_var, save_mean, save_invstd, train,
    eps, mask)

    In training the saved statistics are read, else the running ones.
    """
    training = call.boolean(7)
    positions = (5, 6) if training else (3, 4)
    statistics = _bytes(*(call.optional_tensor(i) for i in positions))
    weight = call.optional_tensor(2)
    work = _backward(
        call.tensor(0), call.tensor(1), statistics, weight, _mask(call, 9), _channels(call)
    )
    if training or not call.booleans(9)[0]:
        return work
    # Without batch statistics the gradient of the input is dy times a constant.
    extra = call.tensor(1).elements * (_BACKWARD_INPUT - 1)
    return Work((work.flops or 0) - extra, work.bytes_read, work.bytes_written)


@register("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")
def library_batch_norm_backward(call: OpCall) -> Work:
    """Arguments: (input, grad, weight, running_mean, running_var, save_mean, save_var, eps, ...):
    all three"""
    statistics = _bytes(call.optional_tensor(5), call.optional_tensor(6))
    return _backward(
        call.tensor(1),
        call.tensor(0),
        statistics,
        call.tensor(2),
        (True, True, True),
        _channels(call),
    )


def _channels(call: OpCall) -> int:
    shape = call.tensor(1).shape
    if len(shape) < 2:
        raise UnknownWorkError("an input without channels")
    return shape[1]


# Maximum; subtract, exponential, sum; divide (or subtract the logarithm of the sum).
_FORWARD = 5
_BACKWARD = 4  # multiply and sum; subtract, multiply


@register("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax")
@register("aten::softmax", "aten::log_softmax", composite=True)
def softmax(call: OpCall) -> Work:
    """Arguments: (input, dim, half_to_float), or (input, dim, dtype)"""
    x = call.tensor(0)
    if call.name in ("aten::_softmax", "aten::_log_softmax"):
        out_type = FP32 if x.dtype.label == "fp16" and call.boolean(2) else x.dtype
    else:
        out_type = call.dtype_argument(2) or x.dtype
    return Work(x.elements * _FORWARD, x.bytes, x.elements * out_type.size)


@register("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(call: OpCall) -> Work:
    """Arguments: (grad, output, dim, input_dtype)"""
    grad, output = call.tensor(0), call.tensor(1)
    out_type = call.dtype_argument(3) or grad.dtype
    written = output.elements * out_type.size
    return Work(output.elements * _BACKWARD, grad.bytes + output.bytes, written)


@register("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(call: OpCall) -> Work:
    """Arguments: (input, target, weight, reduction, ignore_index): one element of each row is
    read."""
    scores, target, weight = call.tensor(0), call.tensor(1), call.optional_tensor(2)
    weights = 0 if weight is None else min(weight.bytes, target.elements * weight.dtype.size)
    written = target.elements if _keeps_elements(call, 3) else 1
    return Work(
        flops=target.elements * 2,
        bytes_read=target.elements * scores.dtype.size + target.bytes + weights,
        bytes_written=(written + 1) * scores.dtype.size,
    )


@register("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(call: OpCall) -> Work:
    """Arguments: (grad, input, target, weight, ...): one element of each row; `zero_` clears the
    rest."""
    grad, scores, target = (call.tensor(i) for i in range(3))
    weight = call.optional_tensor(3)
    weights = 0 if weight is None else min(weight.bytes, target.elements * weight.dtype.size)
    written = target.elements * scores.dtype.size
    return Work(target.elements, grad.bytes + target.bytes + weights, written)


_LOSSES = {
    "aten::mse_loss": (2, 3),
    "aten::l1_loss": (2, 3),
    "aten::smooth_l1_loss": (2, 5),
    "aten::huber_loss": (2, 5),
    "aten::binary_cross_entropy": (3, 7),
    "aten::soft_margin_loss": (2, 5),
}
"""Position of `reduction`, and operations per element including the sum."""


@register(*_LOSSES)
def loss(call: OpCall) -> Work:
    position, per_element = _LOSSES[call.name]
    inputs = [t for i in range(position) if (t := call.optional_tensor(i)) is not None]
    if len(inputs) < 2:
        raise UnknownWorkError("a loss of fewer than two tensors")
    elements = max(tensor.elements for tensor in inputs)
    written = elements if _keeps_elements(call, position) else 1
    out_type = promote([tensor.dtype for tensor in inputs])
    read = sum(tensor.bytes for tensor in inputs)
    return Work(elements * per_element, read, written * out_type.size)


_LOSS_GRADIENTS = {
    "aten::mse_loss_backward": 3,
    "aten::smooth_l1_loss_backward": 4,
    "aten::huber_loss_backward": 4,
    "aten::binary_cross_entropy_backward": 5,
    "aten::soft_margin_loss_backward": 5,
}


@register(*_LOSS_GRADIENTS)
def loss_backward(call: OpCall) -> Work:
    """Arguments: (grad, input, target, ...)"""
    grad, x, target = (call.tensor(i) for i in range(3))
    return Work(
        x.elements * _LOSS_GRADIENTS[call.name],
        grad.bytes + x.bytes + target.bytes,
        x.elements * x.dtype.size,
    )


def _keeps_elements(call: OpCall, position: int) -> bool:
    """Return True for `reduction="none"`, which is recorded as 0."""
    return call.integer(position) == 0


@register("CrossEntropyFunction", composite=True)
def cross_entropy_transformer_engine(call: OpCall) -> Work:
    """Arguments: (scores, target, ...): the gradient replaces the scores, a loss in fp32 is written
    per row.

    Functions of other libraries have the same name, and no such kernels.
    """
    if not any("online_softmax_kernel" in kernel for kernel in call.kernels):
        raise UnknownWorkError("several libraries have a function of this name")
    scores, target = call.tensor(0), call.tensor(1)
    if not scores.shape or scores.elements != target.elements * scores.shape[-1]:
        raise UnknownWorkError("scores and targets do not fit together")
    written = scores.elements * scores.dtype.size + target.elements * FP32.size
    return Work(scores.elements * (_FORWARD + 1), scores.bytes + target.bytes, written)


# Divide by the temperature; subtract the maximum, exponential; divide by the noise; compare.
_RACE = 5


@register("aiter::mixed_sample_outer_exponential")
def sample_with_noise(call: OpCall) -> Work:
    """Arguments: (out, scores, noise, temperatures, eps): the greatest of exp(scores / temperature)
    / noise.

    Noise of a single row that all tokens share is read once.
    """
    out, scores, noise, temperatures = (call.tensor(i) for i in range(4))
    if len(scores.shape) != 2 or out.elements != scores.shape[0]:
        raise UnknownWorkError("its output does not fit its scores")
    read = scores.bytes + noise.bytes + temperatures.bytes
    return Work(_RACE * scores.elements, read, out.bytes)
