"""The family of an operator: by its name, else by its kernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.ops.models import families
from torchtraceap.ops.models.families import FAMILIES, family_of, split_op_name

BY_NAME = {
    "aten::mm": "gemm",
    "aten::_scaled_mm": "gemm",
    "MmBackward0": "gemm",
    "autograd::engine::evaluate_function: AddmmBackward0": "gemm",
    "vllm::rocm_unquantized_gemm": "gemm",
    "aten::_grouped_mm": "grouped_gemm",
    "aten::convolution": "convolution_forward",
    "aten::slow_conv_transpose2d": "convolution_forward",
    "aten::miopen_convolution": "convolution_forward",
    "aten::convolution_backward": "convolution_backward",
    "ConvolutionBackward0": "convolution_backward",
    "aten::_scaled_dot_product_flash_attention": "attention_forward",
    "aten::_scaled_dot_product_cudnn_attention_backward": "attention_backward",
    "flash_attn_3::fwd": "attention_forward",
    "flash_attn::_flash_attn_varlen_backward": "attention_backward",
    "vllm::unified_attention_with_output": "attention_forward",
    "aten::native_layer_norm": "normalization_forward",
    "_C::fused_add_rms_norm": "normalization_forward",
    "NativeBatchNormBackward0": "normalization_backward",
    "aten::_softmax_backward_data": "softmax",
    "aten::nll_loss_forward": "cross_entropy",
    "aten::binary_cross_entropy_with_logits": "loss",
    "aten::cosine_embedding_loss": "loss",
    "aten::gelu_backward": "activation",
    "aten::isinf": "elementwise",
    "aten::add_": "elementwise",
    "prims::add": "elementwise",
    "aten::native_dropout": "dropout",
    "aten::sum": "reduction",
    "aten::cumsum": "scan",
    "aten::topk": "sort",
    "aten::embedding_dense_backward": "embedding",
    "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function": "embedding",
    "MaxPool2DWithIndicesBackward0": "pooling",
    "aten::upsample_bilinear2d": "interpolation",
    "aten::constant_pad_nd": "padding",
    "aten::index_put_": "indexing",
    "aten::cat": "concatenate",
    "aten::_to_copy": "copy",
    "aten::zero_": "memory_set",
    "aten::view": "view",
    "TBackward0": "view",
    "aten::uniform_": "random",
    "aten::_fused_adamw_": "optimizer",
    "Optimizer.step#SGD.step": "optimizer",
    "aten::_foreach_add_": "foreach",
    "torch::autograd::AccumulateGrad": "gradient_accumulation",
    "aten::_cudnn_rnn": "rnn",
    "aten::_fft_c2c": "fft",
    "aten::linalg_cholesky_ex": "linear_algebra",
    "aten::_sparse_mm": "sparse",
    "_C::static_scaled_fp8_quant": "quantization",
    "_C::rotary_embedding": "rope",
    "vllm::moe_forward": "moe",
    "MoEDispatch": "moe",
    "aiter::topk_softplus": "moe",
    "_C::rms_norm_static_fp8_quant": "normalization_forward",
    "sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant": "normalization_forward",
    "primus::fused_ln_modulate_backward": "normalization_backward",
    "_C::silu_and_mul_quant": "activation",
    "_C::gelu_tanh_and_mul": "activation",
    "LigerSiLUMulFunction": "activation",
    "aiter::flatmm_a8w8_blockscale_asm": "gemm",
    "vllm::gemm_with_dynamic_quant": "gemm",
    "_rocm_C::wvSplitK": "gemm",
    "aiter::dynamic_per_token_scaled_quant": "quantization",
    "aiter::mixed_sample_outer_exponential": "random",
    "aiter::pa_decode_gluon": "attention_forward",
    "sglang_profiler::tilelang_kernel_tilelang_sparse_fwd": "attention_forward",
    "_vllm_fa3_C::fwd": "attention_forward",
    "sglang::store_cache": "kv_cache",
    "FusedRoPEFunc": "rope",
    "mamba_ssm::selective_scan_fwd": "ssm",
    "_C_cache_ops::reshape_and_cache_flash": "kv_cache",
    "torchvision::nms": "detection",
    "triton_poi_fused_add_mm_0": "triton",
    "c10d::allreduce_": "communication",
    "record_param_comms": "communication",
    "aten::_local_scalar_dense": "synchronization",
    "cudaGraphLaunch": "graph",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "data_loading",
    "mylib::thing": "other",
    "": "other",
}

BY_KERNEL = {
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": "gemm",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "gemm",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256": "gemm",
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc": "convolution_backward",
    "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": (
        "convolution_forward"
    ),
    "igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1": "convolution_backward",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80": "attention_forward",
    "void cudnn::bn_bw_1C11_kernel_new<float>": "normalization_backward",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>>": "optimizer",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<{lambda()#1}>>": (
        "elementwise"
    ),
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "communication",
    "Memcpy HtoD (Pageable -> Device)": "copy",
    "Memset (Device)": "memory_set",
    "triton_red_fused_mean_23": "triton",
    "zzz": "other",
}


@pytest.mark.parametrize(("name", "family"), BY_NAME.items())
def test_an_operators_name_decides(name: str, family: str) -> None:
    assert family_of(name, ["ncclKernel_AllReduce"] if name in ("aten::mm",) else ()) == family


@pytest.mark.parametrize(("kernel", "family"), BY_KERNEL.items())
def test_kernels_decide_where_the_name_says_nothing(kernel: str, family: str) -> None:
    assert family_of("CompiledFunction", [kernel]) == family
    assert family_of("cudaLaunchKernel", [kernel]) == family


def test_the_first_kernel_that_says_something_decides() -> None:
    assert family_of("mylib::op", ["zzz", "softmax_warp_forward", "ampere_sgemm"]) == "softmax"


def test_a_graph_launch_is_no_single_kind_of_work() -> None:
    assert family_of("hipGraphLaunch", ["ampere_sgemm_128x64_nn"]) == "graph"


def test_parts_of_a_name() -> None:
    parts = split_op_name("autograd::engine::evaluate_function: MaxPool2DWithIndicesBackward0")
    assert (parts.namespace, parts.base, parts.backward) == ("", "max_pool2d_with_indices", True)
    parts = split_op_name("aten::_foreach_add_")
    assert (parts.namespace, parts.base, parts.backward) == ("aten", "foreach_add", False)


@given(st.text(), st.lists(st.text(), max_size=3))
def test_any_text_has_a_family(name: str, kernels: list[str]) -> None:
    assert family_of(name, kernels) in FAMILIES


def test_every_family_can_be_reached() -> None:
    reached = {*BY_NAME.values(), *BY_KERNEL.values()}
    assert set(FAMILIES) - reached == set()


def test_no_rule_says_otherwise_of_names_that_are_asked_first() -> None:
    asked = families._FAMILY_OF_NAME
    matched = {name: families._first_match(families._BASES, name) for name in asked}
    otherwise = {n: found for n, found in matched.items() if found not in (None, asked[n])}
    assert otherwise == {}


def test_names_that_are_asked_first_stand_in_one_family() -> None:
    names = [name for listed in families._WHOLE_NAMES.values() for name in listed.split()]
    assert len(names) == len(set(names)) == len(families._FAMILY_OF_NAME)


def test_no_rule_of_namespaces_matches_a_plain_one() -> None:
    plain = sorted(families._PLAIN_NAMESPACES)
    assert [families._first_match(families._NAMESPACES, name) for name in plain] == [None] * 3
