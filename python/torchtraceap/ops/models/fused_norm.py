"""Models of RMS norms of serving libraries fused with a residual, quantization or padding.

The norm takes 4 operations per element (square, sum; multiply by the reciprocal root and the
weight), plus those of the fused operations.
"""

from __future__ import annotations

from torchtraceap.core.dtypes import FP32
from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.arguments import (
    OpCall,
    Tensor,
    UnknownWorkError,
    check_packed_output,
    check_width,
    group_scales,
    mxfp4_bytes,
    optional_bytes,
)
from torchtraceap.ops.models.registry import Work, register

_NORM = 4
_RESIDUAL = 1
_STATIC_QUANT = 2  # divide by a given scale, clamp
_DYNAMIC_QUANT = 4  # magnitude, maximum; divide, clamp
_SMOOTH_QUANT = 5  # multiply by a given factor first
_LAYER_NORM = 6  # sum; subtract, square, sum; subtract, multiply
_MODULATE = 3  # 1 + scale; multiply, add the shift
_FP8_BYTES = 1


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of the arguments of a norm."""

    x: int
    weight: int
    written: tuple[int, ...]
    """The result first, then residuals and scales."""
    residual: int | None = None
    read: tuple[int, ...] = ()
    """Scales that are inputs."""
    quant: int = 0
    """Operations per element of the quantization."""


_OUT = _Places(x=1, weight=2, written=(0,))
_IN_PLACE = _Places(x=0, weight=2, written=(0, 1), residual=1)
_ADD = _Places(x=1, weight=4, written=(0, 3), residual=2)
_DYNAMIC = _Places(x=1, weight=3, written=(0, 2), quant=_DYNAMIC_QUANT)
_ADD_DYNAMIC = _Places(x=1, weight=5, written=(0, 3, 4), residual=2, quant=_DYNAMIC_QUANT)
_PER_TOKEN = _Places(x=1, weight=2, written=(0, 3, 6), residual=6, quant=_DYNAMIC_QUANT)

# csrc/torch_bindings.cpp of vLLM, sgl-kernel/csrc/common_extension.cc of SGLang, flashinfer/norm.py
# of FlashInfer, aiter/ops/rmsnorm.py of AITER.
_PLACES: dict[str, _Places] = {
    "_C::rms_norm": _OUT,
    "sgl_kernel::rmsnorm": _OUT,
    "sgl_kernel::gemma_rmsnorm": _OUT,
    "flashinfer::rmsnorm": _OUT,
    "flashinfer::gemma_rmsnorm": _OUT,
    "aiter::rmsnorm": _OUT,
    "aiter::rms_norm_cu": _OUT,
    "_C::fused_add_rms_norm": _IN_PLACE,
    "sgl_kernel::fused_add_rmsnorm": _IN_PLACE,
    "sgl_kernel::gemma_fused_add_rmsnorm": _IN_PLACE,
    "flashinfer::fused_add_rmsnorm": _IN_PLACE,
    "flashinfer::gemma_fused_add_rmsnorm": _IN_PLACE,
    "aiter::fused_add_rms_norm_cu": _IN_PLACE,
    "aiter::rmsnorm2d_fwd_with_add": _ADD,
    "aiter::rmsnorm2d_fwd_with_add_ck": _ADD,
    "aiter::add_rmsnorm": _ADD,
    "_C::rms_norm_static_fp8_quant": _Places(1, 2, (0,), read=(3,), quant=_STATIC_QUANT),
    "_C::fused_add_rms_norm_static_fp8_quant": _Places(
        1, 3, (0, 2), residual=2, read=(4,), quant=_STATIC_QUANT
    ),
    "_C::rms_norm_dynamic_per_token_quant": _PER_TOKEN,
    "_C::rms_norm_per_block_quant": _PER_TOKEN,
    "aiter::rmsnorm2d_fwd_with_dynamicquant": _DYNAMIC,
    "aiter::rmsnorm2d_fwd_with_dynamicquant_ck": _DYNAMIC,
    "aiter::rmsnorm_quant": _DYNAMIC,
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant": _ADD_DYNAMIC,
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck": _ADD_DYNAMIC,
    "aiter::add_rmsnorm_quant": _ADD_DYNAMIC,
    "aiter::rmsnorm2d_fwd_with_smoothquant": _Places(1, 4, (0, 3), read=(2,), quant=_SMOOTH_QUANT),
    "aiter::rmsnorm2d_fwd_with_smoothquant_ck": _Places(
        1, 4, (0, 3), read=(2,), quant=_SMOOTH_QUANT
    ),
    "aiter::rmsnorm2d_fwd_with_add_smoothquant": _Places(
        1, 6, (0, 3, 5), residual=2, read=(4,), quant=_SMOOTH_QUANT
    ),
    "aiter::rmsnorm2d_fwd_with_add_smoothquant_ck": _Places(
        1, 6, (0, 3, 5), residual=2, read=(4,), quant=_SMOOTH_QUANT
    ),
}


@register(*_PLACES)
def norm_into(call: OpCall) -> Work:
    """Count a norm that writes into its arguments."""
    places = _PLACES[call.name]
    x, weight, out = (call.tensor(i) for i in (places.x, places.weight, places.written[0]))
    check_width(x, weight)
    check_packed_output(x, out)
    residual = None if places.residual is None else call.optional_tensor(places.residual)
    _same_rows(x, residual)
    operations = _NORM + places.quant + _RESIDUAL * (residual is not None)
    read = 0 if residual is None else residual.bytes
    return Work(
        flops=x.elements * operations,
        bytes_read=x.bytes + weight.bytes + read + optional_bytes(call, places.read),
        bytes_written=optional_bytes(call, places.written),
    )


def _same_rows(x: Tensor, residual: Tensor | None) -> None:
    if residual is not None and residual.elements != x.elements:
        raise UnknownWorkError("its residual does not fit its input")


def _returned(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    *,
    quant: int = 0,
    result: float | None = None,
) -> Work:
    """Count a norm that returns a result of `result` bytes and, with a residual, the sum."""
    check_width(x, weight)
    _same_rows(x, residual)
    own = x.elements * x.dtype.size
    fused = residual is not None
    return Work(
        flops=x.elements * (_NORM + quant + _RESIDUAL * fused),
        bytes_read=x.bytes + weight.bytes + (0 if residual is None else residual.bytes),
        bytes_written=(own if result is None else result) + own * fused,
    )


@register("aiter::rms_norm", "aiter::rmsnorm2d_fwd", "aiter::rmsnorm2d_fwd_ck")
@register("vllm::rocm_aiter_rms_norm", composite=True)
def norm_returned(call: OpCall) -> Work:
    """Arguments: (input, weight, epsilon, ...)"""
    return _returned(call.tensor(0), call.tensor(1))


@register("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", composite=True)
def norm_returned_with_residual(call: OpCall) -> Work:
    """Arguments: (input, residual, weight, epsilon)"""
    return _returned(call.tensor(0), call.tensor(2), call.tensor(1))


@register("vllm::rocm_aiter_rmsnorm_fused_dynamic_quant", composite=True)
def norm_per_token(call: OpCall) -> Work:
    """Arguments: (input, weight, epsilon, type): a byte per element, a scale per row."""
    x, weight = call.tensor(0), call.tensor(1)
    return _returned(x, weight, quant=_DYNAMIC_QUANT, result=_per_token(x))


@register("vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant", composite=True)
def norm_per_token_with_residual(call: OpCall) -> Work:
    """Arguments: (input, residual, weight, epsilon, type)"""
    x, residual, weight = (call.tensor(i) for i in range(3))
    return _returned(x, weight, residual, quant=_DYNAMIC_QUANT, result=_per_token(x))


def _per_token(x: Tensor) -> int:
    return _fp8_groups(x, x.shape[-1] if x.shape else 0)


@register("vllm::rocm_aiter_rmsnorm_fp8_group_quant", composite=True)
def norm_fp8_groups(call: OpCall) -> Work:
    """Arguments: (input, weight, epsilon, group_size)"""
    x, weight = call.tensor(0), call.tensor(1)
    return _returned(x, weight, quant=_DYNAMIC_QUANT, result=_fp8_groups(x, call.integer(3)))


@register("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant", composite=True)
def norm_fp8_groups_with_residual(call: OpCall) -> Work:
    """Arguments: (input, residual, weight, epsilon, group_size)"""
    x, residual, weight = (call.tensor(i) for i in range(3))
    result = _fp8_groups(x, call.integer(4))
    return _returned(x, weight, residual, quant=_DYNAMIC_QUANT, result=result)


def _fp8_groups(x: Tensor, group: int) -> int:
    return x.elements * _FP8_BYTES + group_scales(x, group) * FP32.size


@register("vllm::rocm_aiter_triton_add_rmsnorm_pad", "aiter::fused_add_rmsnorm_pad_",
          composite=True)  # fmt: skip
def norm_padded(call: OpCall) -> Work:
    """Arguments: (input, weight, epsilon, residual, multiple): rows of the result are filled with
    zeros."""
    x, weight, residual = call.tensor(0), call.tensor(1), call.optional_tensor(3)
    check_width(x, weight)
    multiple = max(call.integer(4), 1)
    rows = x.elements // x.shape[-1] if x.shape[-1] else 0
    padded = -(-x.shape[-1] // multiple) * multiple
    return _returned(x, weight, residual, result=rows * padded * x.dtype.size)


@register("aiter::_fuse_rmsnorm_fp4_quant",
          "sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant", composite=True)  # fmt: skip
def norm_mxfp4(call: OpCall) -> Work:
    """Arguments: (x1, weight1, epsilon1, x2, weight2, epsilon2, residual1, ...): only x1 is
    quantised."""
    x, weight, residual = call.tensor(0), call.tensor(1), call.optional_tensor(6)
    first = _returned(x, weight, residual, quant=_DYNAMIC_QUANT, result=mxfp4_bytes(x))
    other, other_weight = call.optional_tensor(3), call.optional_tensor(4)
    if other is None or other_weight is None:
        return first
    return _both(first, _returned(other, other_weight))


@register("aiter::_fused_qk_rmsnorm_kernel")
def norm_of_two(call: OpCall) -> Work:
    """Arguments: (q, q_weight, q_epsilon, k, k_weight, k_epsilon, ...)"""
    first = _returned(call.tensor(0), call.tensor(1))
    return _both(first, _returned(call.tensor(3), call.tensor(4)))


def _both(first: Work, second: Work) -> Work:
    return Work(
        (first.flops or 0) + (second.flops or 0),
        first.bytes_read + second.bytes_read,
        first.bytes_written + second.bytes_written,
    )


# -------------------------------------------------- layer norm with a scale and a shift (DiT)


@register("primus::fused_ln_modulate", composite=True)
def layer_norm_modulated(call: OpCall) -> Work:
    """Arguments: (input, scale, shift, epsilon): mean and reciprocal deviation of each row are
    returned."""
    x, scale, shift = (call.tensor(i) for i in range(3))
    statistics = 2 * group_scales(x, x.shape[-1] if x.shape else 0) * FP32.size
    return Work(
        flops=x.elements * (_LAYER_NORM + _MODULATE),
        bytes_read=x.bytes + scale.bytes + shift.bytes,
        bytes_written=x.elements * x.dtype.size + statistics,
    )
