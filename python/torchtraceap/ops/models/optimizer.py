"""Models of optimizers and other operations on lists of tensors."""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register


def _elements(tensors: list[Tensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.bytes for tensor in tensors)


def _optional_list(call: OpCall, position: int) -> list[Tensor]:
    return call.tensor_list(position) if call.argument(position).tensors else []


def _fused(call: OpCall, states: tuple[int, ...], per_element: int) -> Work:
    """Arguments: (parameters, gradients, ...): parameters and `states` are read and written."""
    parameters, gradients = call.tensor_list(0), call.tensor_list(1)
    kept = [tensor for position in states for tensor in _optional_list(call, position)]
    updated = _bytes(parameters) + _bytes(kept)
    return Work(_elements(parameters) * per_element, updated + _bytes(gradients), updated)


# 14 operations: decay, two moments of three each, two corrections, root, sum, quotient, step.
@register("aten::_fused_adam_", "aten::_fused_adamw_")
def fused_adam(call: OpCall) -> Work:
    """Arguments: (parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, ...)"""
    return _fused(call, (2, 3, 4), 14)


@register("aten::_fused_sgd_")
def fused_sgd(call: OpCall) -> Work:
    """Arguments: (parameters, gradients, momentum_buffers, ...)"""
    return _fused(call, (2,), 6 if call.argument(2).tensors else 4)


@register("aten::_fused_adagrad_")
def fused_adagrad(call: OpCall) -> Work:
    """Arguments: (parameters, gradients, state_sums, steps, ...)"""
    return _fused(call, (2,), 7)


_FOREACH = {
    "add": (2, 1), "sub": (2, 1), "mul": (2, 1), "div": (2, 1), "pow": (2, 1),
    "maximum": (2, 1), "minimum": (2, 1), "clamp_min": (2, 1), "clamp_max": (2, 1),
    "addcmul": (3, 3), "addcdiv": (3, 3), "lerp": (3, 3),
    "sqrt": (1, 1), "rsqrt": (1, 1), "neg": (1, 1), "abs": (1, 1), "exp": (1, 1), "log": (1, 1),
    "reciprocal": (1, 1), "sign": (1, 1), "sigmoid": (1, 1), "tanh": (1, 1), "clone": (1, 0),
}  # fmt: skip
"""Number of lists among the leading arguments, and operations per element."""


@register(*(f"aten::_foreach_{name}" for name in _FOREACH))
def foreach(call: OpCall) -> Work:
    """Count a foreach operator whose result replaces the first list or is as large."""
    base = call.name.removeprefix("aten::_foreach_").rstrip("_")
    count, per_element = _FOREACH[base]
    lists = [call.tensor_list(0), *(_optional_list(call, i) for i in range(1, count))]
    single = [t for i in range(1, count) if (t := call.optional_tensor(i)) is not None]
    first = lists[0]
    read = sum(map(_bytes, lists)) + sum(tensor.bytes for tensor in single)
    written = sum(tensor.elements * tensor.dtype.size for tensor in first)
    return Work(_elements(first) * per_element, read, written)


@register("aten::_foreach_zero_")
def foreach_zero(call: OpCall) -> Work:
    return Work(0, 0, _bytes(call.tensor_list(0)))


@register("aten::_foreach_copy_")
def foreach_copy(call: OpCall) -> Work:
    target, source = call.tensor_list(0), call.tensor_list(1)
    return Work(0, _bytes(source), _bytes(target))


@register("aten::_foreach_norm")
def foreach_norm(call: OpCall) -> Work:
    x = call.tensor_list(0)
    return Work(2 * _elements(x), _bytes(x), sum(tensor.dtype.size for tensor in x))


@register("aten::_amp_foreach_non_finite_check_and_unscale_")
def unscale(call: OpCall) -> Work:
    x = call.tensor_list(0)
    if not x:
        raise UnknownWorkError("a list without tensors")
    return Work(2 * _elements(x), _bytes(x), _bytes(x))
