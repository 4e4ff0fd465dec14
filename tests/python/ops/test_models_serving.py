"""Operators of serving libraries: work by hand from what they compute, and what has no numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_models_work import bf16, call, f32, fp8, i64

from torchtraceap.ops.models import registry as registry_module
from torchtraceap.ops.models import work_of


def u8(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "unsigned char", shape


def i8(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "signed char", shape


def i32(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "int", shape


BF16_NUMBER = 15
X, W, EPS = bf16(4, 8), bf16(8), 1e-5  # 32 elements, 64 bytes; 16 bytes

# name, arguments -> operations, bytes read, bytes written
EXPECTED: list[tuple[str, tuple[Any, ...], tuple[float, float, float]]] = [
    # ------------------------------------------------ RMS norms: 4 operations, a residual 1
    ("_C::rms_norm", (X, X, W, EPS), (128, 80, 64)),
    ("sgl_kernel::rmsnorm", (X, X, W, EPS, True), (128, 80, 64)),
    ("aiter::rmsnorm", (X, X, W, EPS, False), (128, 80, 64)),
    ("aiter::rms_norm", (X, W, EPS, 0), (128, 80, 64)),
    ("vllm::rocm_aiter_rms_norm", (X, W, EPS), (128, 80, 64)),
    ("sgl_kernel::fused_add_rmsnorm", (X, X, W, EPS, True), (160, 144, 128)),
    ("aiter::add_rmsnorm", (X, X, X, X, W, EPS, False), (160, 144, 128)),
    ("aiter::rmsnorm2d_fwd_with_add_ck", (X, X, X, X, W, EPS, 0), (160, 144, 128)),
    ("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", (X, X, W, EPS), (160, 144, 128)),
    # AITER's group norm, alone and behind what it writes to: 4 for the statistics, then 4.
    ("aiter::_groupnorm_run", (X, 2, W, W, EPS), (256, 96, 64)),
    ("aiter::_groupnorm_run", (X, f32(8192), X, 2, W, W, EPS), (256, 96, 64)),
    # Quantised: 2 with a given scale, 4 with one that is found; scales are 4 bytes.
    ("_C::rms_norm_static_fp8_quant", (fp8(4, 8), X, W, f32(1), EPS), (192, 84, 32)),
    (
        "_C::fused_add_rms_norm_static_fp8_quant",
        (fp8(4, 8), X, X, W, f32(1), EPS),
        (224, 148, 32 + 64),
    ),
    (
        "_C::rms_norm_dynamic_per_token_quant",
        (fp8(4, 8), X, W, f32(4, 1), EPS, None, None),
        (256, 80, 32 + 16),
    ),
    (
        "_C::rms_norm_dynamic_per_token_quant",
        (fp8(4, 8), X, W, f32(4, 1), EPS, None, X),
        (288, 144, 32 + 16 + 64),
    ),
    (
        "aiter::rmsnorm2d_fwd_with_dynamicquant_ck",
        (fp8(4, 8), X, f32(4, 1), W, EPS, 0),
        (256, 80, 48),
    ),
    ("aiter::rmsnorm_quant", (i8(4, 8), X, f32(4, 2), W, EPS, 4), (256, 80, 32 + 32)),
    ("vllm::rocm_aiter_rmsnorm_fp8_group_quant", (X, W, EPS, 4), (256, 80, 32 + 4 * 2 * 4)),
    (
        "vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant",
        (X, X, W, EPS, 8),
        (288, 144, 32 + 4 * 4 + 64),
    ),
    ("vllm::rocm_aiter_triton_add_rmsnorm_pad", (X, W, EPS, X, 16), (160, 144, 128 + 64)),
    # Two elements in a byte, a byte of scale for 32.
    (
        "aiter::_fuse_rmsnorm_fp4_quant",
        (bf16(2, 64), bf16(64), EPS, None, None, EPS, None),
        (1024, 256 + 128, 64 + 4),
    ),
    (
        "sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant",
        (bf16(2, 64), bf16(64), EPS, bf16(2, 8), bf16(8), EPS, bf16(2, 64)),
        (128 * 9 + 16 * 4, 256 + 128 + 256 + 32 + 16, 64 + 4 + 256 + 32),
    ),
    (
        "aiter::_fused_qk_rmsnorm_kernel",
        (X, W, EPS, bf16(4, 2), bf16(2), EPS),
        (128 + 32, 80 + 20, 64 + 16),
    ),
    (
        "primus::fused_ln_modulate",
        (bf16(3, 2, 8), bf16(2, 8), bf16(2, 8), EPS),
        (48 * 9, 96 + 64, 96 + 6 * 8),
    ),
    # ------------------------------------------------------------------- gated activations
    ("_C::silu_and_mul", (bf16(4, 8), bf16(4, 16)), (64, 128, 64)),
    ("sgl_kernel::gelu_tanh_and_mul", (bf16(4, 8), bf16(4, 16)), (64, 128, 64)),
    ("aiter::silu_and_mul", (bf16(4, 8), f32(4, 16)), (64, 256, 64)),
    ("_C::silu_and_mul_quant", (fp8(4, 8), bf16(4, 16), f32(1)), (128, 132, 32)),
    (
        "_C::silu_and_mul_per_block_quant",
        (fp8(4, 8), bf16(4, 16), f32(4, 2), 4, None, False),
        (192, 128, 32 + 32),
    ),
    ("LigerSiLUMulFunction", (X, X), (64, 128, 64)),
    ("_C::gelu_fast", (X, X), (32, 64, 64)),
    # ----------------------------------------------------------------------- quantisation
    ("_C::static_scaled_fp8_quant", (fp8(4, 8), X, f32(1)), (64, 68, 32)),
    ("_C::dynamic_scaled_int8_quant", (i8(4, 8), X, f32(4, 1), None), (128, 64, 48)),
    ("aiter::dynamic_per_token_scaled_quant", (fp8(4, 8), X, f32(4, 1), None), (128, 64, 48)),
    ("_C::per_token_group_fp8_quant", (X, fp8(4, 8), f32(4, 2), 4), (128, 64, 32 + 32)),
    ("sgl_kernel::sgl_per_tensor_quant_fp8", (X, fp8(4, 8), f32(1), True), (64, 68, 32)),
    ("sgl_kernel::sgl_per_tensor_quant_fp8", (X, fp8(4, 8), f32(1), False), (128, 64, 36)),
    (
        "aiter::dynamic_per_group_scaled_quant_fp4",
        (u8(2, 32), bf16(2, 64), u8(2, 2), 32, True),
        (512, 256, 64 + 4),
    ),
    ("vllm::triton_per_token_group_quant_fp8", (X, 4), (128, 64, 32 + 4 * 2 * 4)),
    ("sglang_profiler::quant_dynamic_mxfp4_quant", (bf16(2, 64),), (512, 256, 64 + 4)),
    ("primus_turbo::quantize_fp8_tensorwise", (X, 24, None), (128, 64, 36)),
    # 64 rows and 32 columns: 64 scales along rows, 2 x 32 along columns.
    (
        "primus_turbo::quantize_mxfp4_dual",
        (bf16(64, 32), 45, 32),
        (2048 * 8, 4096, 2 * 1024 + 64 + 64),
    ),
    # ------------------------------------------------------------------- rotary embeddings
    # 3 tokens; 4 heads of 8, of which 4 are rotated: 48 + 12 elements, half of each head.
    (
        "_C::rotary_embedding",
        (i64(3), bf16(3, 32), bf16(3, 8), 8, bf16(100, 4), True),
        (180, 120 + 24 + 24, 120),
    ),
    (
        "aiter::rope_cached_positions_2c_fwd_impl",
        (
            *[bf16(1, 3, 4, 8), bf16(1, 3, 1, 8)] * 2,
            bf16(9, 1, 1, 4), bf16(9, 1, 1, 4), i64(1, 3), 0, True, False,
        ),
        (3 * 15 * 8, 240 + 24 + 2 * 24, 240),
    ),
    ("FusedRoPEFunc", (bf16(3, 1, 2, 8), f32(3, 1, 1, 4)), (72, 96 + 48, 96)),
    (
        "_C::fused_qk_norm_rope",
        (bf16(3, 32), 2, 1, 1, 8, EPS, bf16(8), bf16(8), bf16(9, 4), True, i64(3)),
        (9 * (4 * 8 + 3 * 4), 144 + 32 + 24 + 24, 144),
    ),
    # q (3, 2, 4 + 2), latent (3, 4) and its rotated part (3, 2) into a cache of fp8.
    (
        "aiter::fused_qk_rope_concat_and_cache_mla",
        (
            bf16(3, 2, 4), bf16(3, 2, 2), bf16(3, 4), bf16(3, 2), fp8(50, 1, 6), fp8(3, 2, 6),
            i64(3), f32(1), f32(1), i64(3), bf16(9, 1), bf16(9, 1), True,
        ),
        (3 * 18, 48 + 24 + 24 + 12 + 24 + 24 + 12, 36 + 18),
    ),
    # -------------------------------------------------------------- caches of keys and values
    (
        "_C_cache_ops::reshape_and_cache_flash",
        (bf16(5, 2, 8), bf16(5, 2, 8), u8(1000, 16, 2, 8), u8(1000, 16, 2, 8), i64(3), "", f32(),
         f32()),
        (0, 2 * 3 * 16 * 2 + 24, 2 * 3 * 16),
    ),
    (
        "sglang::store_cache",
        (bf16(3, 16), bf16(3, 16), bf16(999, 16), bf16(999, 16), i64(3)),
        (0, 192 + 24, 192),
    ),
    (
        "_C_cache_ops::concat_and_cache_mla",
        (bf16(3, 8), bf16(3, 2), bf16(99, 16, 10), i64(3), "", f32(1)),
        (0, 60 + 24, 60),
    ),
    ("_C_cache_ops::concat_mla_q", (bf16(3, 2, 8), bf16(3, 2, 2), bf16(3, 2, 10)), (0, 120, 120)),
    # ---------------------------------------------------------------------------- products
    (
        "aiter::gemm_a8w8_blockscale_ck",
        (fp8(3, 8), fp8(5, 8), f32(3, 1), f32(1, 1), bf16(3, 5), 0, ""),
        (240, 24 + 40 + 16, 30),
    ),
    (
        "aiter::gemm_a8w8_bpreshuffle",
        (i8(3, 8), i8(5, 8), f32(3, 1), f32(5, 1), None, BF16_NUMBER),
        (240, 64 + 12 + 20, 30),
    ),
    (
        "aiter::_gemm_a8w8_blockscale_bpreshuffle_asm",
        (fp8(3, 8), fp8(5, 8), bf16(3, 5), f32(3, 1), f32(1, 1)),
        (240, 64 + 16, 30),
    ),
    (
        "sgl_kernel::fp8_scaled_mm",
        (fp8(3, 8), fp8(8, 5), f32(3, 1), f32(5, 1), BF16_NUMBER, bf16(5)),
        (240, 64 + 32 + 10, 30),
    ),
    (
        "_C::cutlass_scaled_mm",
        (bf16(3, 5), i8(3, 8), i8(8, 5), f32(3, 1), f32(5, 1), None),
        (240, 64 + 32, 30),
    ),
    # Two elements in a byte: a depth of 64.
    (
        "aiter::gemm_a4w4",
        (u8(3, 32), u8(5, 32), u8(3, 2), u8(5, 2), bf16(3, 5), None, 1.0, 0.0, True),
        (2 * 15 * 64, 96 + 160 + 16, 30),
    ),
    (
        "aiter::gemm_a4w4",
        (u8(3, 32), u8(5, 32), u8(3, 2), u8(5, 2), None, BF16_NUMBER),
        (2 * 15 * 64, 96 + 160 + 16, 30),
    ),
    (
        "aiter::gemm_afp4wfp4_",
        (u8(3, 32), u8(5, 32), u8(3, 2), u8(5, 2), BF16_NUMBER, bf16(3, 5)),
        (2 * 15 * 64, 96 + 160 + 16, 30),
    ),
    (
        "_C::cutlass_scaled_fp4_mm",
        (bf16(3, 5), u8(3, 32), u8(5, 32), fp8(3, 4), fp8(5, 4), f32(1)),
        (2 * 15 * 64, 256 + 32 + 4, 30),
    ),
    (
        "aiter::batched_gemm_a16wfp4_",
        (bf16(2, 3, 64), u8(2, 5, 32), u8(2, 5, 2), BF16_NUMBER, None),
        (2 * 30 * 64, 768 + 320 + 20, 60),
    ),
    ("aiter::gemm_a16w16", (bf16(3, 8), bf16(5, 8), None, BF16_NUMBER), (240, 128, 30)),
    ("aiter::gemm_a16w16_atomic_", (bf16(3, 8), bf16(5, 8), 6, f32(3, 5)), (240, 128, 60)),
    ("aiter::_gemm_a16w16_asm", (bf16(3, 8), bf16(5, 8), bf16(3, 5), i32(16, 64)), (240, 128, 30)),
    ("_rocm_C::wvSplitK", (bf16(5, 8), bf16(3, 8), None, 304), (240, 128, 30)),
    (
        "_rocm_C::wvSplitKQ",
        (fp8(5, 8), fp8(3, 8), bf16(3, 5), f32(1), f32(1), 304),
        (240, 64 + 8, 30),
    ),
    (
        "primus_turbo::hipblaslt_gemm_fp8",
        (fp8(8, 3), f32(1), fp8(5, 8), f32(1), BF16_NUMBER, True, True, False),
        (240, 64 + 8, 30),
    ),
    # Weights of 4 bits: eight in an int32.
    (
        "_C::awq_gemm",
        (("c10::Half", (3, 16)), i32(16, 1), ("c10::Half", (1, 8)), i32(1, 1), 8),
        (2 * 3 * 8 * 16, 96 + 64 + 16 + 4, 48),
    ),
    (
        "_C::gptq_gemm",
        (("c10::Half", (3, 16)), i32(2, 8), i32(1, 1), ("c10::Half", (1, 8)), i32(16), True, 4),
        (2 * 3 * 8 * 16, 96 + 64 + 4 + 16 + 64, 48),
    ),
    (
        "sgl_kernel::gptq_marlin_gemm",
        (bf16(3, 16), None, i32(1, 16), bf16(1, 8), None, None, None, None, i32(100), 3, 3, 8, 16),
        (2 * 3 * 8 * 16, 96 + 64 + 16, 48),
    ),
    # Each of 2 groups has a result of 4 x 5.
    (
        "primus_turbo::grouped_gemm_variable_k",
        (bf16(6, 4), bf16(6, 5), i64(2), i64(3)),
        (2 * 6 * 20, 48 + 60 + 16, 80),
    ),
    # ---------------------------------------------------------------------------- experts
    # 4 tokens, 2 of 8 experts each, hidden 16, inner 6, gated: all 8 experts can be read.
    (
        "vllm::outplace_fused_experts",
        (bf16(4, 16), bf16(8, 12, 16), bf16(8, 16, 6), f32(4, 2), i32(4, 2)),
        (2 * 8 * 16 * (12 + 6), 128 + 2 * 8 * 16 * 18, 128),
    ),
    # 1 token: 2 of 8 experts.
    (
        "vllm::outplace_fused_experts",
        (bf16(1, 16), bf16(8, 12, 16), bf16(8, 16, 6), f32(1, 2), i32(1, 2)),
        (2 * 2 * 16 * 18, 32 + 2 * 2 * 16 * 18, 32),
    ),
    # Weights of 4 bits in bytes: half the bytes, the same products.
    (
        "aiter::fused_moe_",
        (bf16(4, 16), u8(8, 12, 8), u8(8, 16, 3), f32(4, 2), i32(4, 2)),
        (2 * 8 * 16 * 18, 128 + 8 * 16 * 18 // 2, 128),
    ),
    (
        "aiter::fmoe_fp8_blockscale_g1u1",
        (bf16(4, 16), fp8(4, 16), fp8(8, 12, 16), fp8(8, 16, 6), i32(9), f32(9), i32(9), i32(1), 2),
        (2 * 8 * 16 * 18, 64 + 8 * 16 * 18, 128),
    ),
    (
        "aiter::ck_moe_stage1",
        (fp8(4, 16), fp8(8, 12, 16), fp8(8, 16, 6), i32(9), i32(9), i32(1), bf16(4, 2, 6), 2),
        (2 * 8 * 16 * 12, 64 + 8 * 12 * 16, 96),
    ),
    (
        "aiter::ck_moe_stage2",
        (fp8(4, 2, 6), fp8(8, 12, 16), fp8(8, 16, 6), i32(9), i32(9), i32(1), bf16(4, 16), 2),
        (2 * 8 * 16 * 6, 48 + 8 * 16 * 6, 128),
    ),
    (
        "_moe_C::moe_wna16_gemm",
        (bf16(4, 16), bf16(8, 12), u8(8, 12, 8), bf16(8, 12, 1), None, None, i32(9), i32(9),
         i32(1), 2, 16, 16, 16, 4),
        (2 * 8 * 16 * 12, 128 + 8 * 12 * 8 + 192, 192),
    ),
    ("_moe_C::topk_softmax", (f32(4, 2), i32(4, 2), i32(4, 2), f32(4, 8)), (160, 128, 96)),
    ("sgl_kernel::topk_softmax", (f32(4, 2), i32(4, 2), bf16(4, 8), True), (160, 64, 64)),
    (
        "aiter::biased_grouped_topk_hip",
        (bf16(4, 8), bf16(8), f32(4, 2), i32(4, 2), 2, 1, True, 1.0),
        (64, 64 + 16, 64),
    ),
    ("_moe_C::moe_sum", (bf16(4, 2, 16), bf16(4, 16)), (64, 256, 128)),
    (
        "_moe_C::moe_align_block_size",
        (i32(4, 2), 8, 16, i32(136), i32(9), i32(1)),
        (0, 32, 4 * 146),
    ),
    # -------------------------------------------------------------------------- attention
    # 2 sequences of at most 5 keys; a page of 16 positions, one head of keys for two of queries.
    (
        "_C::paged_attention_v1",
        (bf16(2, 2, 8), bf16(2, 2, 8), bf16(99, 1, 1, 16, 8), bf16(99, 1, 8, 16), 1, 1.0,
         i32(2, 4), i32(2), 16, 5),
        (2 * 2 * 10 * 16, 64 + 10 * 32 + 32 + 8, 64),
    ),
    (
        "sglang_profiler::attention_paged_attention_ragged",
        (bf16(2, 2, 8), u8(1), bf16(2, 2, 8), fp8(99, 1, 1, 8), fp8(99, 1, 1, 8), 1.0, i32(3),
         i32(7), i32(2), 1),
        (2 * 2 * 7 * 16, 64 + 7 * 16 + 28 + 12, 64),
    ),
    # One sequence: the last 3 of 5 positions, causal, 3 + 4 + 5 pairs.
    (
        "_vllm_fa2_C::varlen_fwd",
        (bf16(3, 2, 8), bf16(99, 16, 1, 8), bf16(99, 16, 1, 8), bf16(3, 2, 8), i32(2), None,
         i32(1), None, i32(1, 1), None, 3, 5, 0.0, 1.0, False, True, -1, -1),
        (2 * 2 * 12 * 16, 96 + 5 * 32 + 4, 96),
    ),
    (
        "aiter::fmha_v3_varlen_fwd",
        (bf16(4, 2, 8), bf16(4, 2, 8), bf16(4, 2, 8), i32(2), i32(2), 4, 4, 0, 0.0, 1.0, 0.0,
         False, True, -1, 0),
        (2 * 2 * 10 * 16, 3 * 128, 128),
    ),
    (
        "sglang_profiler::tilelang_kernel_tilelang_sparse_fwd",
        (bf16(3, 2, 8), bf16(99, 1, 8), i32(3, 1, 4), 1.0, 6),
        (2 * 2 * 12 * 14, 96 + 12 * 16 + 48, 72),
    ),
    (
        "EvoformerAttention",
        (bf16(1, 3, 4, 2, 8), bf16(1, 3, 4, 2, 8), bf16(1, 3, 4, 2, 8), bf16(1, 3, 1, 1, 4), None),
        (2 * 3 * 2 * 16 * 16, 3 * 384 + 24, 384),
    ),
    (
        "aiter::wrapper_fmha_v3_fwd",
        (f32(1), *[bf16(1, 4, 2, 8)] * 3, 0.0, 1.0, True, -1, 0),
        (2 * 2 * 10 * 16, 3 * 128, 128),
    ),
    # ---------------------------------------------------------------- scans and convolutions
    (
        "DaoAILab::_causal_conv1d_fwd_cpp",
        (bf16(2, 3, 8), bf16(3, 4), bf16(3), None, None, bf16(2, 3, 8), None, True),
        (48 * 9, 96 + 24 + 6, 96),
    ),
    # 8 positions in chunks of 4; 2 heads of 4, one group of 2 states: 6 + 8 + 4 channels.
    (
        "MambaSplitConv1dScanCombinedFn",
        (bf16(1, 8, 22), bf16(12, 4), bf16(12), f32(2), f32(2), f32(2, 4), 4),
        (2 * 8 * (48 + 2.5 * (2 + 8) + 2 * 8 * 2), 352 + 96 + 24 + 16 + 32, 128),
    ),
    (
        "_C::selective_scan_fwd",
        (f32(1, 3, 8), f32(1, 3, 8), f32(3, 2), f32(1, 1, 2, 8), f32(1, 1, 2, 8), None, None, None),
        (24 * 15, 96 + 96 + 24 + 128, 96),
    ),
    ("ConvBiasReLU_", (bf16(1, 2, 4, 4), bf16(3, 2, 3, 3), bf16(1, 3, 1, 1), 1, 1),
     (2 * 48 * 18, 64 + 108 + 6, 96)),
    # ----------------------------------------------------------------------- streams of mHC
    (
        "aiter::mhc_post",
        (bf16(3, 4, 8), bf16(3, 8), bf16(3, 4, 8), f32(3, 4, 1), f32(3, 4, 4), -1),
        (2 * 96 * 5, 48 + 192 + 48 + 192, 192),
    ),
    (
        "aiter::mhc_pre_gemm_sqrsum",
        (f32(2, 3, 24), f32(2, 3), bf16(3, 4, 8), f32(24, 32), 64),
        (2 * 96 * 25, 192 + 3072, 576 + 24),
    ),
    (
        "aiter::mixed_sample_outer_exponential",
        (i32(4), bf16(4, 100), f32(4, 100), f32(4), EPS),
        (2000, 800 + 1600 + 16, 16),
    ),
    # --------------------------------------------------------------------------- of torch
    ("aten::group_norm", (f32(2, 4, 3), 2, f32(4), f32(4), EPS, True), (24 * 8, 128, 96 + 32)),
    (
        "aten::instance_norm",
        (f32(2, 4, 3), None, None, None, None, True, 0.1, EPS, True),
        (24 * 6, 96, 96 + 64),
    ),
    ("aten::linalg_norm", (f32(4, 8), None, [1], False, None), (64, 128, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "expected"), EXPECTED)
def test_work_by_hand(
    name: str, arguments: tuple[Any, ...], expected: tuple[float, float, float]
) -> None:
    work = call(name, *arguments)
    assert (work.flops, work.bytes_read, work.bytes_written) == expected


def refused(name: str, *arguments: Any) -> str:
    """Why a call has no numbers."""
    dims, types, values = [], [], []
    for argument in arguments:
        is_tensor = isinstance(argument, tuple)
        dims.append(list(argument[1]) if is_tensor else [])
        types.append(argument[0] if is_tensor else "" if argument is None else "Scalar")
        values.append("" if is_tensor or argument is None else str(argument))
    work, reason = work_of(name, json.dumps(dims), json.dumps(types), None, json.dumps(values))
    assert work is None
    return reason


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        # The order of another release: nothing fits.
        ("_C::rms_norm", (X, W, X, EPS), "weight does not fit"),
        ("_C::silu_and_mul", (bf16(4, 16), bf16(4, 8)), "not half as large"),
        ("_C::static_scaled_fp8_quant", (f32(1), X, fp8(4, 8)), "does not fit its input"),
        ("aiter::add_rmsnorm", (X, X, bf16(4, 4), X, W, EPS), "residual does not fit"),
        ("_C::cutlass_scaled_mm", (bf16(3, 5), i8(3, 8), i8(5, 8)), "inner sizes"),
        ("aiter::gemm_a8w8_ck", (i8(3, 8), i8(5, 8), f32(3), f32(5), bf16(3, 4)), "do not fit"),
        ("aiter::gemm_a8w8_ck", (i8(3, 8), i8(5, 8), f32(3), f32(5), None), "argument 4"),
        ("sgl_kernel::fp8_scaled_mm", (fp8(3, 8), fp8(8, 5), f32(3), f32(5), ""), "type of its"),
        ("_C::awq_gemm", (bf16(3, 16), i32(8, 1), bf16(1, 8), i32(1, 1)), "inner sizes"),
        ("sgl_kernel::gptq_marlin_gemm", (bf16(3, 16), None, i32(1, 16), 3, 8, 15), "sizes of the"),
        (
            "vllm::outplace_fused_experts",
            (bf16(4, 16), bf16(8, 12, 16), bf16(8, 16, 5), f32(4, 2), i32(4, 2)),
            "do not fit together",
        ),
        ("aiter::fmoe", (bf16(4, 16), bf16(4, 16), bf16(8, 6, 16), bf16(8, 16, 6)), "argument 8"),
        ("_moe_C::topk_softmax", (f32(4, 2), i32(4, 2), i32(4, 2), f32(3, 8)), "do not fit"),
        (
            "_C::paged_attention_v1",
            (bf16(2, 2, 8), bf16(2, 2, 8), bf16(9, 1, 1, 16, 8), bf16(9, 1, 8, 16), 1, 1.0,
             i32(2, 4), i32(2), 16, 0),
            "how much of the cache",
        ),
        ("aiter::mha_varlen_fwd", (bf16(4, 2, 8), bf16(9, 16, 2, 8)), "how much of the cache"),
        ("vllm::unified_attention_with_output", (X, X, X, X), "how much of the cache"),
        ("sglang::unified_attention_with_output", (X, X, X, X), "how much of the cache"),
        ("aiter::unified_attention_with_output_base", (X, None, X, X, X, "", True), "latent keys"),
        ("aiter::_groupnorm_run", (X, 3, W, W, EPS), "channels in groups"),
        ("vllm::gdn_attention_core", (X,), "its state"),
        ("vllm::moe_forward", (X, X), "weights of the experts"),
        ("_C_custom_ar::all_reduce", (1, X, X, 0, 0), "a collective"),
        ("ConvBias_Backward", (X,), "not among its arguments"),
        ("CrossEntropyFunction", (X, i64(4)), "several libraries"),
        ("_C_cache_ops::concat_and_cache_mla", (X, X, bf16(9, 10), i64(4)), "do not fit the rows"),
        ("aiter::mhc_post", (X, X, X, X, X), "do not fit together"),
        ("aten::linalg_norm", (f32(4, 8), 2), "norm of matrices"),
        ("sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
         (*[bf16(3, 2, 8)] * 4, f32(9, 16), i64(3)), "do not fit together"),
    ],
)  # fmt: skip
def test_what_does_not_fit_has_a_reason_and_no_numbers(
    name: str, arguments: tuple[Any, ...], reason: str
) -> None:
    assert reason in refused(name, *arguments)


def test_a_trace_without_values_does_not_say_the_type_of_a_returned_product() -> None:
    dims, types = [[3, 8], [8, 5], [3], [5], []], ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2
    work, reason = work_of("sgl_kernel::fp8_scaled_mm", dims, [*types, "Scalar"])
    assert (work, reason) == (None, "the type of its output is not in the trace")


PACKED = (u8(3, 32), u8(5, 32), u8(3, 2), u8(5, 2), bf16(3, 5))


@pytest.mark.parametrize(
    ("name", "arguments", "dtype"),
    [
        ("aiter::gemm_a8w8_ck", (i8(3, 8), i8(5, 8), f32(3), f32(5), bf16(3, 5)), "int8"),
        ("aiter::gemm_a8w8_ck", (fp8(3, 8), fp8(5, 8), f32(3), f32(5), bf16(3, 5)), "fp8"),
        ("aiter::gemm_a4w4_blockscale", PACKED, "fp4"),
        # Weights in 4 bits are widened to the type of the activations.
        ("_C::awq_gemm", (bf16(3, 16), i32(16, 1), bf16(1, 8), i32(1, 1), 8), "bf16"),
        (
            "vllm::outplace_fused_experts",
            (bf16(4, 16), fp8(8, 12, 16), fp8(8, 16, 6), f32(4, 2), i32(4, 2)),
            "fp8",
        ),
    ],
)
def test_products_are_compared_with_the_rate_of_their_type(
    name: str, arguments: tuple[Any, ...], dtype: str
) -> None:
    work = call(name, *arguments)
    assert (work.dtype, work.unit) == (dtype, "matrix")


def test_experts_and_caches_are_upper_bounds() -> None:
    one = i32(1, 2)
    experts = call(
        "vllm::outplace_fused_experts",
        bf16(1, 16), bf16(8, 12, 16), bf16(8, 16, 6), f32(1, 2), one,
    )  # fmt: skip
    assert experts.upper_bound
    assert "which experts" in experts.notes[0]
    cache = bf16(99, 1, 1, 16, 8)

    def paged(sequences: int) -> bool:
        q = bf16(sequences, 2, 8)
        tables, lengths = i32(sequences, 4), i32(sequences)
        return call(
            "_C::paged_attention_v1", q, q, cache, cache, 1, 1.0, tables, lengths, 16, 5
        ).upper_bound

    # The longest of one sequence is its length.
    assert (paged(1), paged(2)) == (False, True)


def test_paged_attention_takes_no_more_keys_than_its_table_has_pages() -> None:
    q, cache = bf16(1, 2, 8), bf16(99, 1, 1, 16, 8)
    work = call("_C::paged_attention_v1", q, q, cache, cache, 1, 1.0, i32(1, 4), i32(1), 16, 10**6)
    assert work.flops == 2 * 2 * 4 * 16 * 16


def test_rocm_releases_differ_by_an_argument() -> None:
    q, cache, parts = bf16(1, 2, 8), bf16(99, 1, 1, 16, 8), [f32(1), f32(1), f32(1)]
    head = (q, *parts, q, cache, cache, 1, 1.0, i32(1, 4), i32(1))
    older = call("_rocm_C::paged_attention", *head, 16, 5)
    newer = call("_rocm_C::paged_attention", *head, None, 16, 5)
    assert older == newer
    assert older.flops == 2 * 2 * 5 * 16


def test_a_head_that_is_not_recorded_counts_as_rotated_whole() -> None:
    arguments = (i64(3), bf16(3, 32), None, None, bf16(100, 4), True)
    work = call("_C::rotary_embedding", *arguments)
    assert (work.flops, work.upper_bound) == (3 * 96, True)


def test_cross_entropy_of_transformer_engine_is_known_by_its_kernels() -> None:
    kernels = ("online_softmax_kernel", "cross_entropy_kernel")
    work = call("CrossEntropyFunction", bf16(2, 3, 10), i64(2, 3), 0.0, kernels=kernels)
    assert (work.flops, work.bytes_read, work.bytes_written) == (360, 120 + 48, 120 + 24)


LITTLE: list[tuple[Any, Any]] = [
    (None, None),
    ([], []),
    ([[]] * 20, [""] * 20),
    ([[]] * 20, ["float"] * 20),
    ([[0]] * 20, ["float"] * 20),
    ([[0, 0]] * 20, ["unsigned char"] * 20),
    ([[1, 0, 2]] * 20, ["int"] * 20),
    ([[0, 1, 1, 0]] * 20, ["c10::BFloat16"] * 20),
]


def test_no_model_fails_however_little_is_recorded() -> None:
    registry_module.load_models()
    for name in registry_module._MODELS:
        for dims, types in LITTLE:
            for value in ("", "0", "1", "[1]", "True"):
                work, reason = work_of(name, dims, types, None, [value] * 20)
                assert (work is None) == bool(reason), name
                assert "failed with" not in reason, (name, dims, value, reason)
