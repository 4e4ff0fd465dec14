"""Models of quantization: 2 operations per element with a given scale, 4 with a computed one."""

from __future__ import annotations

from dataclasses import replace

from torchtraceap.core.dtypes import FP32
from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.arguments import (
    OpCall,
    Tensor,
    UnknownWorkError,
    check_packed_output,
    group_scales,
    mxfp4_bytes,
    optional_bytes,
)
from torchtraceap.ops.models.registry import Work, register

_STATIC = 2  # divide, clamp
_DYNAMIC = 4  # magnitude, maximum; divide, clamp
_SMOOTH = 5  # multiply by a given factor first
_SORT_NOTE = "rows of scales are counted with what pads them"


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of the arguments of a quantization."""

    out: int
    x: int
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    """Scales and zero points that are outputs."""
    flops: int = _DYNAMIC
    """Operations per element."""


_STATIC_OUT = _Places(0, 1, read=(2, 3), flops=_STATIC)
_DYNAMIC_OUT = _Places(0, 1, written=(2,))
_INPUT_FIRST = _Places(1, 0, written=(2,))

# csrc/torch_bindings.cpp of vLLM, sgl-kernel/csrc/common_extension.cc of SGLang,
# aiter/ops/quant.py of AITER.
_PLACES: dict[str, _Places] = {
    "_C::static_scaled_fp8_quant": _Places(0, 1, read=(2,), flops=_STATIC),
    "_C::static_scaled_int8_quant": _STATIC_OUT,
    "aiter::static_per_tensor_quant": _Places(0, 1, read=(2,), flops=_STATIC),
    "_C::dynamic_scaled_fp8_quant": _DYNAMIC_OUT,
    "_C::dynamic_per_token_scaled_fp8_quant": _DYNAMIC_OUT,
    "_C::dynamic_scaled_int8_quant": _Places(0, 1, written=(2, 3)),
    "_C::per_token_group_fp8_quant": _INPUT_FIRST,
    "_C::per_token_group_quant_int8": _INPUT_FIRST,
    "_C::scaled_fp4_quant": _Places(0, 1, read=(3,), written=(2,)),
    "sgl_kernel::scaled_fp4_quant": _Places(0, 1, read=(3,), written=(2,)),
    "sgl_kernel::sgl_per_token_group_quant_fp8": _INPUT_FIRST,
    "sgl_kernel::sgl_per_token_group_quant_int8": _INPUT_FIRST,
    "sgl_kernel::sgl_per_token_group_quant_8bit": _INPUT_FIRST,
    "sgl_kernel::sgl_per_token_quant_fp8": _INPUT_FIRST,
    "aiter::dynamic_per_tensor_quant": _DYNAMIC_OUT,
    "aiter::dynamic_per_token_scaled_quant": _DYNAMIC_OUT,
    "aiter::dynamic_per_group_scaled_quant": _DYNAMIC_OUT,
    "aiter::dynamic_per_group_scaled_quant_fp4": _DYNAMIC_OUT,
    "aiter::smoothquant_fwd": _Places(0, 1, read=(2,), written=(3,), flops=_SMOOTH),
}


@register(*_PLACES)
def quantized_into(call: OpCall) -> Work:
    """Count a quantization that writes into its arguments."""
    return _into(call, _PLACES[call.name])


def _into(call: OpCall, places: _Places) -> Work:
    x, out = call.tensor(places.x), call.tensor(places.out)
    check_packed_output(x, out)
    return Work(
        flops=x.elements * places.flops,
        bytes_read=x.bytes + optional_bytes(call, places.read),
        bytes_written=out.bytes + optional_bytes(call, places.written),
    )


@register("sgl_kernel::sgl_per_tensor_quant_fp8")
def quantized_per_tensor(call: OpCall) -> Work:
    """Arguments: (input, output, scale, is_static)"""
    if call.boolean(3):
        return _into(call, _Places(1, 0, read=(2,), flops=_STATIC))
    return _into(call, _INPUT_FIRST)


@register(
    "aiter::fused_dynamic_mx_quant_moe_sort_hip", "aiter::fused_dynamic_mxfp4_quant_moe_sort_hip"
)
def quantized_and_sorted(call: OpCall) -> Work:
    """Arguments: (out, scales, input, sorted_ids, num_valid_ids, ...): scales in the order of the
    experts."""
    work = _into(call, _Places(0, 2, read=(3, 4), written=(1,)))
    return replace(work, upper_bound=True, notes=(_SORT_NOTE,))


@register("vllm::triton_per_token_group_quant_fp8", composite=True)
def quantized_fp8_groups(call: OpCall) -> Work:
    """Arguments: (input, group_size) to fp8 with a scale in fp32 for each group."""
    x = call.tensor(0)
    scales = group_scales(x, call.integer(1)) * FP32.size
    return Work(_DYNAMIC * x.elements, x.bytes, x.elements + scales)


@register(
    "sglang_profiler::quant_dynamic_mxfp4_quant",
    "sglang_profiler::fused_mxfp4_quant_fused_flatten_mxfp4_quant",
    composite=True,
)
def quantized_mxfp4(call: OpCall) -> Work:
    """Arguments: (input, ...)"""
    x = call.tensor(0)
    return Work(_DYNAMIC * x.elements, x.bytes, mxfp4_bytes(x))


@register("primus_turbo::quantize_fp8_tensorwise",
          "primus_turbo_cpp_extension::quantize_fp8_tensorwise", composite=True)  # fmt: skip
def quantized_tensorwise(call: OpCall) -> Work:
    """Arguments: (input, type, scale): of one scale, which is computed where it is not given."""
    x, scale = call.tensor(0), call.optional_tensor(2)
    given = scale is not None
    return Work(
        flops=x.elements * (_STATIC if given else _DYNAMIC),
        bytes_read=x.bytes + FP32.size * given,
        bytes_written=x.elements + FP32.size,
    )


@register(*(f"{name}::quantize_mxfp4_dual" for name in
            ("primus", "primus_turbo", "primus_turbo_cpp_extension")), composite=True)  # fmt: skip
def quantized_mxfp4_both_ways(call: OpCall) -> Work:
    """Arguments: (input, ...): once along rows, once along columns, without what pads them."""
    x = call.tensor(0)
    if len(x.shape) != 2:
        raise UnknownWorkError("an input that is no matrix")
    turned = Tensor((x.shape[1], x.shape[0]), x.dtype)
    written = mxfp4_bytes(x) + mxfp4_bytes(turned)
    return Work(2 * _DYNAMIC * x.elements, x.bytes, written)
