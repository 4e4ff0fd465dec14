"""Models of element-wise operators, including activations and dropout, of optimizers and other
operators on lists of tensors, of the gated activations of serving libraries, and of kernels that a
compiler generates, from the sizes of their arguments.

Each input is read once in its stored size (a broadcast input is smaller than the result), and the
result is written. An operation such as `exp` or `gelu` counts as one; operators that combine
several (`addcmul`, `lerp`) count each.
"""

from __future__ import annotations

import re
from math import prod

from torchtraceap.core.dtypes import BOOL, FP32, DType
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError, promote
from torchtraceap.ops.models.gemm import broadcast
from torchtraceap.ops.models.registry import Work, register


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in text.split())


_UNARY_TEXT = """
abs absolute bitwise_not ceil clamp_max clamp_min clip floor frac hardshrink hardtanh leaky_relu
logical_not masked_scale nan_to_num neg negative positive relu relu6 round rrelu sgn sign square
threshold trunc fix hardswish hardsigmoid softshrink
"""
_UNARY_TO_FLOAT_TEXT = """
acos acosh arccos arcsin arctan asin asinh atan atanh celu cos cosh deg2rad digamma elu erf erfc
erfinv exp exp2 expm1 gelu i0 lgamma log log10 log1p log2 log_sigmoid logit mish mvlgamma
rad2deg reciprocal rsqrt selu sigmoid silu sin sinc sinh softplus special_expit sqrt tan tanh
"""
_UNARY_TO_BOOL_TEXT = "isfinite isinf isnan isneginf isposinf signbit"
_BINARY_TEXT = """
add bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign
floor_divide fmax fmin fmod gcd heaviside hypot lcm ldexp maximum minimum mul multiply nextafter
pow remainder rsub sub subtract xlogy __and__ __iand__ __or__ __ior__ __xor__ __ixor__ __lshift__
__rshift__ prelu _prelu_kernel
"""
_BINARY_TO_FLOAT_TEXT = "atan2 arctan2 div divide float_power logaddexp logaddexp2 true_divide"
_BINARY_TO_BOOL_TEXT = """
eq ge gt le lt ne greater greater_equal less less_equal not_equal logical_and logical_or
logical_xor isclose
"""


def _result(tensors: list[Tensor], dtype: DType, flops: int, *, shape: tuple[int, ...]) -> Work:
    """Return the work of a result of this shape and type with `flops` operations per element."""
    arithmetic = dtype if dtype.rank >= 2 else promote([tensor.dtype for tensor in tensors])
    return Work(
        flops=flops * prod(shape),
        bytes_read=sum(tensor.bytes for tensor in tensors),
        bytes_written=prod(shape) * dtype.size,
        dtype=arithmetic_type(arithmetic),
    )


def arithmetic_type(dtype: DType) -> str:
    """Return the type in which vector units compute: fp32 for half types, as in torch's kernels."""
    return "fp32" if dtype.label in ("fp16", "bf16", "fp8") else dtype.label


def _promoted(tensors: list[Tensor]) -> DType:
    """Return the result type; wrapped numbers (0-dimensional) count only if they rank higher."""
    sized = [tensor.dtype for tensor in tensors if tensor.shape]
    single = [tensor.dtype for tensor in tensors if not tensor.shape]
    if not sized:
        return promote(single)
    own = promote(sized)
    higher = [dtype for dtype in single if dtype.rank > own.rank]
    if not higher:
        return own
    found = promote(higher)
    return FP32 if found.label == "fp64" else found


def _inputs(call: OpCall, *positions: int) -> list[Tensor]:
    found = [t for i in positions if (t := call.optional_tensor(i)) is not None]
    if not found:
        raise UnknownWorkError("no argument is a tensor of a known type")
    return found


def _shape(call: OpCall, tensors: list[Tensor]) -> tuple[int, ...]:
    if call.in_place:
        return tensors[0].shape
    return broadcast(*(tensor.shape for tensor in tensors))


def _typed_as_inputs(call: OpCall, *positions: int, flops: int = 1) -> Work:
    tensors = _inputs(call, *positions)
    dtype = tensors[0].dtype if call.in_place else _promoted(tensors)
    return _result(tensors, dtype, flops, shape=_shape(call, tensors))


def _typed_as_float(call: OpCall, *positions: int) -> Work:
    tensors = _inputs(call, *positions)
    promoted = tensors[0].dtype if call.in_place else _promoted(tensors)
    dtype = promoted if call.in_place or promoted.rank >= 2 else FP32
    return _result(tensors, dtype, 1, shape=_shape(call, tensors))


def _typed_as_bool(call: OpCall, *positions: int) -> Work:
    tensors = _inputs(call, *positions)
    dtype = tensors[0].dtype if call.in_place else BOOL
    return _result(tensors, dtype, 1, shape=_shape(call, tensors))


@register(*_names(_UNARY_TEXT))
def unary(call: OpCall) -> Work:
    return _typed_as_inputs(call, 0)


@register(*_names(_UNARY_TO_FLOAT_TEXT))
def unary_to_float(call: OpCall) -> Work:
    return _typed_as_float(call, 0)


@register(*_names(_UNARY_TO_BOOL_TEXT))
def unary_to_bool(call: OpCall) -> Work:
    return _typed_as_bool(call, 0)


@register(*_names(_BINARY_TEXT))
def binary(call: OpCall) -> Work:
    return _typed_as_inputs(call, 0, 1)


@register(*_names(_BINARY_TO_FLOAT_TEXT))
def binary_to_float(call: OpCall) -> Work:
    return _typed_as_float(call, 0, 1)


@register(*_names(_BINARY_TO_BOOL_TEXT))
def binary_to_bool(call: OpCall) -> Work:
    return _typed_as_bool(call, 0, 1)


@register("aten::clamp")
def clamp(call: OpCall) -> Work:
    return _typed_as_inputs(call, 0, 1, 2)


@register("aten::lerp", "aten::addcmul", "aten::addcdiv")
def three_operations(call: OpCall) -> Work:
    return _typed_as_inputs(call, 0, 1, 2, flops=3)


@register("aten::where")
def where(call: OpCall) -> Work:
    """Arguments: (condition, self, other); with the condition alone it is `nonzero`."""
    condition, values = call.tensor(0), _inputs(call, 1, 2)
    shape = broadcast(condition.shape, *(tensor.shape for tensor in values))
    return _result([condition, *values], _promoted(values), 1, shape=shape)


@register("aten::masked_fill")
def masked_fill(call: OpCall) -> Work:
    x, mask = call.tensor(0), call.tensor(1)
    shape = x.shape if call.in_place else broadcast(x.shape, mask.shape)
    return _result([x, mask], x.dtype, 1, shape=shape)


_GRADIENTS = {
    "sigmoid": 3,
    "tanh": 3,
    "threshold": 1,
    "gelu": 1,
    "silu": 1,
    "mish": 1,
    "hardtanh": 1,
    "hardswish": 1,
    "hardsigmoid": 1,
    "hardshrink": 1,
    "softshrink": 1,
    "softplus": 1,
    "leaky_relu": 2,
    "logit": 3,
    "log_sigmoid": 2,
}


@register(*(f"aten::{name}_backward" for name in _GRADIENTS))
def activation_backward(call: OpCall) -> Work:
    """Arguments: (grad, input or output, ...)"""
    base = call.name.removeprefix("aten::").removesuffix("_backward")
    return _typed_as_inputs(call, 0, 1, flops=_GRADIENTS[base])


@register("aten::elu_backward")
def elu_backward(call: OpCall) -> Work:
    return _typed_as_inputs(call, 0, 5)


@register("aten::glu")
def glu(call: OpCall) -> Work:
    """Count a gated linear unit, in which half of the elements gate the other half."""
    x = call.tensor(0)
    return Work(x.elements, x.bytes, x.elements // 2 * x.dtype.size)


@register("aten::glu_backward")
def glu_backward(call: OpCall) -> Work:
    grad, x = call.tensor(0), call.tensor(1)
    return Work(3 * x.elements, grad.bytes + x.bytes, x.elements * x.dtype.size)


@register("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: OpCall) -> Work:
    """Count dropout, which writes the result and a mask of a byte per element."""
    x = call.tensor(0)
    return Work(2 * x.elements, x.bytes, x.elements * (x.dtype.size + 1))


@register("aten::native_dropout_backward", "aten::_masked_scale")
def dropout_backward(call: OpCall) -> Work:
    return _typed_as_inputs(call, 0, 1, flops=2)


_GATE = 2  # the activation, the product
_STATIC_QUANT = 2  # divide by a given scale, clamp
_DYNAMIC_QUANT = 4  # magnitude, maximum; divide, clamp

_GATES = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")


def _gate(out: Tensor, x: Tensor, flops: int, read: int = 0, written: int = 0) -> Work:
    """Return the work of a gate; `read` and `written` are bytes of scales."""
    if x.elements != 2 * out.elements:
        raise UnknownWorkError("its output is not half as large as its input")
    return Work(flops * out.elements, x.bytes + read, out.bytes + written)


@register(*(f"{library}::{gate}" for library in ("_C", "aiter", "sgl_kernel", "flashinfer")
            for gate in _GATES))  # fmt: skip
@register("_C::mul_and_silu", "_C::fatrelu_and_mul", "_C::swigluoai_and_mul")
def gated(call: OpCall) -> Work:
    """Arguments: (out, input, ...)"""
    return _gate(call.tensor(0), call.tensor(1), _GATE)


@register("_C::silu_and_mul_quant", "aiter::scaled_silu_and_mul")
def gated_quantized(call: OpCall) -> Work:
    """Arguments: (out, input, scale)"""
    scale = call.tensor(2).bytes
    return _gate(call.tensor(0), call.tensor(1), _GATE + _STATIC_QUANT, read=scale)


@register("_C::silu_and_mul_per_block_quant")
def gated_quantized_in_groups(call: OpCall) -> Work:
    """Arguments: (out, input, scales, group_size, scale_ub, is_scale_transposed)"""
    scales = call.tensor(2).bytes
    return _gate(call.tensor(0), call.tensor(1), _GATE + _DYNAMIC_QUANT, written=scales)


@register("LigerSiLUMulFunction", composite=True)
def silu_mul(call: OpCall) -> Work:
    """Arguments: (gate, up) of one shape."""
    gate, up = call.tensor(0), call.tensor(1)
    if gate.shape != up.shape:
        raise UnknownWorkError("the gate and what it gates have different shapes")
    return Work(_GATE * gate.elements, gate.bytes + up.bytes, gate.elements * gate.dtype.size)


@register("_C::gelu_new", "_C::gelu_fast", "_C::gelu_quick", "aiter::gelu_fast")
def activation_out(call: OpCall) -> Work:
    """Arguments: (out, input)"""
    out, x = call.tensor(0), call.tensor(1)
    if out.elements != x.elements:
        raise UnknownWorkError("its output does not fit its input")
    return Work(out.elements, x.bytes, out.bytes)


# Names of generated kernels list the operators that were fused.
_PICKS = re.compile(r"embedding(?!_dense_backward)|index|gather|scatter|nll_loss|bucketize")
_PARTS = re.compile(r"slice|select|split|narrow|unbind|chunk|roll|unfold")

_WHOLE_NOTE = "every argument is counted once; those that are read and written should count twice"
_PART_NOTE = "every argument is counted whole; the kernel uses slices of some"


@register("triton_*")
def generated(call: OpCall) -> Work:
    """Count each tensor of an Inductor kernel once, as pointwise and reduction kernels do.

    Kernels that select elements by an index use an unknown part of an argument and have no numbers.
    Kernels with slices use at most the whole argument. Operations are not counted because the code
    is not in the trace.
    """
    if _PICKS.search(call.name):
        raise UnknownWorkError("it picks elements: how much of its arguments it uses is unknown")
    tensors = [t for i in range(len(call)) if (t := call.optional_tensor(i)) is not None]
    if not tensors:
        raise UnknownWorkError("its arguments are not in the trace")
    in_parts = _PARTS.search(call.name) is not None
    return Work(
        None,
        sum(tensor.bytes for tensor in tensors),
        0,
        upper_bound=in_parts,
        notes=(_PART_NOTE if in_parts else _WHOLE_NOTE,),
    )


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
