"""Models of softmax, of losses, and of sampling tokens from scores."""

from __future__ import annotations

from torchtraceap.core.dtypes import FP32
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError, promote
from torchtraceap.ops.models.registry import Work, register

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
