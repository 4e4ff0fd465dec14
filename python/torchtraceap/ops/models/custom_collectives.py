"""Collectives that libraries write themselves: the links between GPUs bound them, not the device.

With a norm in the same kernel that still holds: what a rank's memory moves says little of its time.
"""

from __future__ import annotations

from torchtraceap.ops.models.registry import register_unknown_work

register_unknown_work(
    "a collective: links between GPUs bound it",
    "_C_custom_ar::all_reduce",
    "_C_custom_ar::qr_all_reduce",
    "aiter::fused_allreduce_rmsnorm",
    "aiter::fused_allreduce_rmsnorm_",
    "aiter::reduce_scatter",
    "aiter::all_gather_reg",
    "aiter::all_gather_unreg",
    "sgl_kernel::all_reduce",
    "sgl_kernel::all_reduce_reg",
    "sgl_kernel::qr_all_reduce",
    "sglang::reg_all_gather_into_tensor",
    "vllm::rocm_aiter_fused_allreduce_rmsnorm",
    "MoEDispatch",
    "MoECombine",
)
