"""Operators of serving libraries as TraceLens counts them: its formulas, worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_models_serving import i8, i32, u8
from test_models_work import bf16, f32, fp8, i64

from torchtraceap.compat.tracelens.launchers import category_of
from torchtraceap.ops.models.tracelens.registry import MODELS, run_model
from torchtraceap.ops.models.tracelens.work import Work

EPS = 1e-5
X, W = bf16(4, 8), bf16(8)  # 32 elements, 64 bytes; 16 bytes
# 4 rows of 2 x 8 + 2 operations, 2 for each element
NORM = 4 * 18 + 64


def theirs(name: str, *arguments: Any) -> Work:
    dims, types, strides, values = [], [], [], []
    for argument in arguments:
        is_tensor = isinstance(argument, tuple)
        shape = list(argument[1]) if is_tensor else []
        dims.append(shape)
        strides.append([1] * len(shape))
        types.append(argument[0] if is_tensor else "Scalar" if argument is not None else "")
        values.append("" if is_tensor or argument is None else str(argument))
    texts = [json.dumps(part) for part in (dims, types, strides, values)]
    work = run_model(name, (texts[0], texts[1], texts[2], texts[3]))
    assert work is not None
    return work


# name, arguments -> operations, bytes, Compute Spec
EXPECTED: list[tuple[str, tuple[Any, ...], tuple[float, float | None, str]]] = [
    ("aiter::rms_norm", (X, W, EPS, 0), (NORM, 64 * 2 + 16, "vector_bf16")),
    ("aiter::rmsnorm", (X, X, W, EPS), (NORM, 64 * 2 + 16, "vector_bf16")),
    ("aiter::add_rmsnorm", (X, X, X, X, W, EPS), (NORM + 32, 64 * 4 + 16, "vector_bf16")),
    (
        "aiter::rmsnorm2d_fwd_with_dynamicquant_ck",
        (fp8(4, 8), X, f32(4, 1), W, EPS, 0),
        (NORM + 64, 64 + 16 + 32 + 16, "vector_bf16"),
    ),
    (
        "vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant",
        (X, X, W, EPS, 4),
        (NORM + 96, 3 * 64 + 16 + 32 + 32, "vector_bf16"),
    ),
    # 6 for each channel and 5 for each element, mean, variance, running ones, weight and bias.
    ("aiter::_groupnorm_run", (X, 2, W, W, EPS), (6 * 8 + 160, 64 * 2 + 6 * 16, "vector_bf16")),
    (
        "aiter::_groupnorm_run",
        (X, f32(8192), X, 2, W, W, EPS),
        (6 * 8 + 160, 64 * 2 + 6 * 16, "vector_bf16"),
    ),
    ("_C::silu_and_mul", (bf16(4, 8), bf16(4, 16)), (160, 128 + 64, "vector_bf16")),
    ("aiter::gelu_tanh_and_mul", (bf16(4, 8), f32(4, 16)), (320, 256 + 64, "vector_fp32")),
    (
        "aiter::dynamic_per_token_scaled_quant",
        (fp8(4, 8), X, f32(4, 1), None),
        (32 * 2.59375, 32 + 64 + 16, "vector_bf16"),
    ),
    (
        "vllm::triton_per_token_group_quant_fp8",
        (X, 4),
        (192, 64 + 32 + 32, "vector_bf16"),
    ),
    (
        "sglang_profiler::quant_dynamic_mxfp4_quant",
        (bf16(2, 64),),
        (256, 256 + 64 + 4, "vector_bf16"),
    ),
    (
        "aiter::gemm_a8w8_blockscale_ck",
        (i8(3, 8), i8(5, 8), f32(3, 1), f32(1, 1), bf16(3, 5)),
        (240, 24 + 40 + 30, "matrix_int8"),
    ),
    (
        "vllm::rocm_unquantized_gemm",
        (bf16(3, 8), bf16(5, 8), bf16(5)),
        (240 + 15, 48 + 80 + 30 + 10, "matrix_bf16"),
    ),
    ("aiter::gemm_a16w16", (bf16(3, 8), bf16(5, 8), None, 15), (240, 158, "matrix_bf16")),
    (
        "aiter::_gemm_a16w16_asm",
        (bf16(3, 8), bf16(5, 8), f32(3, 5), i32(16)),
        (240, 128 + 60, "matrix_bf16"),
    ),
    (
        "aiter::gemm_afp4wfp4_",
        (u8(3, 32), u8(5, 32), u8(3, 2), u8(5, 2), 15, bf16(3, 5)),
        (2 * 15 * 64, 96 + 160 + 30, "matrix_fp4"),
    ),
    (
        "aiter::batched_gemm_a16wfp4_",
        (bf16(2, 3, 64), u8(2, 5, 32), u8(2, 5, 2), 15, None),
        (2 * 30 * 64, 2 * (384 + 160 + 30), "matrix_fp4"),
    ),
    (
        "sgl_kernel::rotary_embedding",
        (i64(3), bf16(3, 32), bf16(3, 8), 8, bf16(100, 4), True),
        (3 * 60, 240, "vector_bf16"),
    ),
    (
        "sglang::store_cache",
        (bf16(3, 16), bf16(3, 16), bf16(999, 16), bf16(999, 16), i64(3)),
        (0, 4 * 96, "vector_bf16"),
    ),
    (
        "_C_cache_ops::concat_and_cache_mla",
        (bf16(3, 8), bf16(3, 2), u8(99, 16, 10), i64(3), "", f32(1)),
        (0, 60 + 24 + 30, "vector_bf16"),
    ),
    # 4 tokens, 2 of 8 experts: 8 (1 - (6 / 8)^4) of them are to be expected.
    (
        "aiter::fmoe_fp8_blockscale_g1u1",
        (bf16(4, 16), fp8(4, 16), fp8(8, 12, 16), fp8(8, 16, 6), i32(9), f32(9), i32(9), i32(1), 2),
        (
            6 * 4 * 16 * 6 * 2 + 4 * 16 * 3,
            64 + 128 + 8 * (1 - 0.75**4) * 3 * 96,
            "matrix_fp8",
        ),
    ),
    ("_C_custom_ar::all_reduce", (1, X, X, 0, 0), (0, 128, "")),
    (
        "aiter::topk_softplus",
        (f32(4, 2), i32(4, 2), bf16(4, 8), f32(8)),
        (192, 64 + 32 + 64, "vector_bf16"),
    ),
    (
        "aiter::mhc_post",
        (bf16(3, 4, 8), bf16(3, 8), bf16(3, 4, 8), f32(3, 4, 1), f32(3, 4, 4), -1),
        (2 * 96 * 5, 48 + 2 * 192 + 48 + 192, "vector_bf16"),
    ),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), EXPECTED)
def test_formulas(
    name: str, arguments: tuple[Any, ...], expected: tuple[float, float | None, str]
) -> None:
    work = theirs(name, *arguments)
    assert (work.flops, work.bytes, work.spec) == expected


def test_parameters_stand_as_their_report_prints_them() -> None:
    work = theirs("aiter::gemm_a8w8_ck", i8(3, 8), i8(5, 8), f32(3, 1), f32(5, 1), bf16(3, 5))
    assert work.params == {
        "B": 1,
        "M": 3,
        "N": 5,
        "K": 8,
        "bias": False,
        "dtype_A_B": ("signed char", "signed char", "c10::bfloat16"),
        "quant_scheme": "a8w8_blockscale",
        "quant_granularity": "per_block",
        "block_k": 8,
        "block_n": 1,
        "scale_dtype": "float",
        "output_shape": (3, 5),
        "output_dtype": "c10::bfloat16",
    }
    assert list(theirs("aiter::rms_norm", X, W, EPS).params) == [
        "op_shape",
        "dtype_in_out",
        "stride_input",
        "stride_output",
        "num_channels",
        "has_bias",
        "is_affine",
        "is_training",
    ]


@pytest.mark.parametrize(
    ("name", "category", "sheet"),
    [
        ("aiter::rms_norm", "RMSNorm", "RMSNorm"),
        ("_C::silu_and_mul", "elementwise", "UnaryElementwise"),
        ("vllm::unified_attention_with_output", "InferenceAttention", "InferenceAttention"),
        ("aiter::fmoe_g1u1", "MoE_fused", "MoE_fused"),
        ("_C::per_token_group_fp8_quant", "GroupQuant", "GroupQuant"),
        ("_C_custom_ar::all_reduce", "CustomCollective", "CustomCollective"),
        ("aiter::gemm_a16w16", "GEMM", "GEMM"),
        ("sgl_kernel::rotary_embedding", "RoPE_fwd", "RoPE"),
    ],
)
def test_categories_and_sheets(name: str, category: str, sheet: str) -> None:
    assert (category_of(name, None), MODELS[name].sheet) == (category, sheet)


def test_attention_over_a_cache_has_no_numbers_without_annotations() -> None:
    texts = [json.dumps(part) for part in ([[3, 2, 8]] * 4, ["c10::BFloat16"] * 4)]
    found = run_model("vllm::unified_attention_with_output", (texts[0], texts[1], None, None))
    assert found is None
