"""Categories of operators as TraceLens names them.

Source: TraceLens at 171dd747, PerfModel/torch_op_mapping.py: a table by exact name, prefixes, then
the name of the operator's first kernel.
"""

from __future__ import annotations

from functools import lru_cache

from torchtraceap.ops.models.tracelens.registry import MODELS

__all__ = ["SYNTHETIC", "category_of", "is_communication"]

SYNTHETIC = " (Synthetic Op)"
"""Ends the name of a row that stands for a kernel which no operator of the table covers."""

_WITHOUT_MODEL = {
    "aten::miopen_convolution": "CONV_fwd",
    "aten::cudnn_convolution": "CONV_fwd",
    "ConvBias_Backward": "CONV_bwd",
    "ConvBiasReLU_Backward": "CONV_bwd",
    "FlashAttnFuncBackward": "SDPA_bwd",
    "FusedAttnFuncBackward": "SDPA_bwd",
    "aten::_scaled_dot_product_cudnn_attention_backward": "SDPA_bwd",
    "aten::_scaled_dot_product_efficient_attention_backward": "SDPA_bwd",
    "aten::_scaled_dot_product_flash_attention_backward": "SDPA_bwd",
    "aten::_efficient_attention_forward": "SDPA_fwd",
    "aten::_efficient_attention_backward": "SDPA_bwd",
    "MambaSplitConv1dScanCombinedFnBackward": "SSM_bwd",
    "DaoAILab::_causal_conv1d_bwd_cpp": "SSM_bwd",
    "TokenPermuteMaskMap": "MoE_comm_fwd",
    "TokenPermuteMaskMapBackward": "MoE_comm_bwd",
    "_OperationFuserAutogradFunction": "MoE_comm_fwd",
    "_OperationFuserAutogradFunctionBackward": "MoE_comm_bwd",
    "MoEDispatchBackward": "MoE_comm_bwd",
    "MoECombineBackward": "MoE_comm_bwd",
    "FusedRoPEFuncBackward": "RoPE_bwd",
    "CrossEntropyFunctionBackward": "CrossEntropy_bwd",
    "aiter::moe_sorting_fwd": "MoE_aux",
    "aiter::moe_sorting_opus_fwd": "MoE_aux",
    "aiter::moe_align_block_size": "MoE_aux",
    "_moe_C::moe_align_block_size": "MoE_aux",
    "aiter::moe_sum": "MoE_aux",
    "aiter::topk_softmax": "MoE_aux",
    "aiter::topk_softmax_asm": "MoE_aux",
    "aiter::topk_sigmoid": "MoE_aux",
    "aiter::grouped_topk": "MoE_aux",
    "aiter::moe_fused_gate": "MoE_aux",
    "_C_cache_ops::reshape_and_cache_flash": "InferenceAttention",
}
_PREFIXES = ("triton", "record_param_comms")
_NATIVE_KERNEL = "void at::native"
_NATIVE_WORDS = ("elementwise", "reduce", "multi_tensor_apply")
_COMMUNICATION_WORDS = ("rccl", "nccl", "cross_device_reduce")


@lru_cache(maxsize=1 << 16)
def category_of(name: str, first_kernel: str | None) -> str:
    """Category of an operator.

    Args:
        name: Of the operator, or of the call where no operator launched the kernel, or of the
            row of a kernel that no operator covers.
        first_kernel: Name of the first kernel that it launched itself, if it did.
    """
    if name in MODELS:
        return MODELS[name].category
    if name in _WITHOUT_MODEL:
        return _WITHOUT_MODEL[name]
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix
    if first_kernel and first_kernel.startswith(_NATIVE_KERNEL):
        return next((word for word in _NATIVE_WORDS if word in first_kernel), "other")
    return "other"


def is_communication(kernel: str) -> bool:
    """Is it a collective by the name of its kernel?"""
    lower = kernel.lower()
    return any(word in lower for word in _COMMUNICATION_WORDS)
