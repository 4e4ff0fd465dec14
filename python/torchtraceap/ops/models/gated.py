"""Models of the gated activations of serving libraries: half of the input gates the other half."""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

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
