"""Canonical names of kernels, and what the names of Triton kernels say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.ops.kernel_names import TritonName, canonical_name, triton_name

NAMES = {
    # Return type, template arguments, parameters, lambdas, unnamed namespaces.
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)": (
        "at::native::vectorized_elementwise_kernel"
    ),
    "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out("
    "c10::Scalar const&)::{lambda()#1}::operator()() const::{lambda(long)#1}>(int)": (
        "elementwise_kernel_with_index"
    ),
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 1u>(float*)": (
        "at::native::CatArrayBatchedCopy"
    ),
    "at::native::_GLOBAL__N__b97c7bc7_8_x_cu_35b3fe84::softmax(float*)": "at::native::softmax",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, (cudaKind)2>(p<int>)": (
        "internal::gemvx::kernel"
    ),
    "unsigned int scope<int>::method<float>(int) const": "scope::method",
    "void f<(1 < 2), (3 > 4)>(int)": "f",
    "launch(int)::{lambda(int)#1}::operator()(int) const": "launch",
    # Nothing to strip.
    "volta_sgemm_128x64_tn": "volta_sgemm_128x64_tn",
    "sm90_xmma_gemm_bf16bf16_f32_tn_n_tilesize128x64x64_execute_kernel__5x_cublas": (
        "sm90_xmma_gemm_bf16bf16_f32_tn_n_tilesize128x64x64_execute_kernel__5x_cublas"
    ),
    "nvjet_tst_192x8_64x8_4x1_v_bz_TNT": "nvjet_tst_192x8_64x8_4x1_v_bz_TNT",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    ),
    "embedding_kernel_cta_per_row_1<float>(int)": "embedding_kernel_cta_per_row_1",
    # Copies keep their direction.
    "Memcpy HtoD (Pageable -> Device)": "Memcpy HtoD (Pageable -> Device)",
    "Memset (Device)": "Memset (Device)",
    "CopyDeviceToHost": "CopyDeviceToHost",
    # Wrappers are called by what they wrap.
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(cutlass_80::Params)": (
        "cutlass_80_simt_sgemm_128x64_8x5_nt_align1"
    ),
    "void cutlass::device_kernel<flash::enable_sm90<flash::Fwd<1, 2> > >(flash::Params)": (
        "flash::enable_sm90"
    ),
    "void ck_tile::kentry<1, 2, ck_tile::Rmsnorm2dFwd<float>, int>(int)": "ck_tile::Rmsnorm2dFwd",
    # Tensile: layout, types and macro tile.
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1_WGM1.kd": (
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256"
    ),
    "igemm_fwd_gtcx3_nhwc_bf16.kd": "igemm_fwd_gtcx3_nhwc_bf16",
    "kernel(float*) [clone .isra.0]": "kernel",
    # Generated kernels lose their number.
    "triton_poi_fused_add_3": "triton_poi_fused_add",
    "triton_poi_fused_0": "triton_poi_fused",
    "triton__0d1d2d3de": "triton",
    "_fwd_kernel_0d1d2d34de5c": "_fwd_kernel",
    "nvfuser_pointwise_f0_c1_r0_17": "nvfuser_pointwise_f0_c1_r0",
    "loop_add_fusion_3": "loop_add_fusion",
    "input_reduce_fusion.7": "input_reduce_fusion",
    "fused_add_mul_8191736452991820abcd": "fused_add_mul",
    # Mangled.
    "_ZN2at6native12_GLOBAL__N_119softmax_warp_kernelIfLi4EEEvPT_": (
        "at::native::softmax_warp_kernel"
    ),
    "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_3FooEEEEEvT_": "Rmsnorm2dFwd",
    "_Z6kernelPfi": "kernel",
    # Odd, but a name all the same.
    "": "",
    "<>": "<>",
    "(": "(",
    "foo<bar(": "foo",
    "foo>)": "foo",
    "two words": "two words",
}


@pytest.mark.parametrize("name", NAMES)
def test_canonical_name(name: str) -> None:
    assert canonical_name(name) == NAMES[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_canonical_name_is_its_own(name: str) -> None:
    once = canonical_name(name)
    assert canonical_name(once) == once


@given(st.text(alphabet="ab_019d<>()[]{}:, .\n", max_size=60))
def test_any_text_gets_a_name(name: str) -> None:
    canonical = canonical_name(name)
    assert bool(canonical) == bool(name)
    triton_name(name)


@given(st.text(alphabet="<>(){}[],ab ", max_size=20))
def test_template_arguments_do_not_matter(arguments: str) -> None:
    balanced = "".join(c for c in arguments if c in "ab, ")
    assert canonical_name(f"void k<{balanced}>(int)") == "k"


@pytest.mark.parametrize(
    "part",
    ["<", "(", "a<b>", "::", "_1", "_0d1", " ", "{a<(b>", "cutlass::Kernel<", "fusion_", "_0",
     "1,", "cutlass::Kernel<1,", "Cijk_MT1x", "x_y_", "_ZN", "S_", "1a"],
)  # fmt: skip
@pytest.mark.parametrize("front", ["", "triton_", "triton_poi_fused_", "_ZN", "void f<"])
def test_hostile_names_end_with_a_name(front: str, part: str) -> None:
    # A quadratic step would take minutes here.
    for end in ("", "!", ">", "_x"):
        name = front + part * (100_000 // len(part)) + end
        assert 0 < len(canonical_name(name)) <= 2 * len(name)
        found = triton_name(name)
        assert found is None or name.startswith("triton_")


TRITON = {
    "triton_poi_fused_add_relu_3": TritonName("pointwise", ("add", "relu")),
    "triton_red_fused__to_copy_add_native_layer_norm_5": TritonName(
        "reduction", ("_to_copy", "add", "native_layer_norm")
    ),
    "triton_per_fused__log_softmax_nll_loss_forward_0": TritonName(
        "persistent reduction", ("_log_softmax", "nll_loss_forward")
    ),
    "triton_poi_fused_0": TritonName("pointwise", ()),
    "triton_poi_fused_add_my_custom_op_mul_2": TritonName(
        "pointwise", ("add", "my_custom_op", "mul")
    ),
    "triton_red_fused_div_mm_backward_view_0": TritonName(
        "reduction", ("div", "mm_backward", "view")
    ),
    "triton_tem_fused_addmm_relu_7": TritonName("template", ("addmm", "relu")),
    "triton_for_fused_1": TritonName("foreach", ()),
    "triton_mm_12": TritonName("template", ("mm",)),
    "triton_flex_attention_backward_4": TritonName("template", ("flex_attention_backward",)),
    "triton_fused_gelu_gelu_backward_sum_3": TritonName("", ("gelu", "gelu_backward", "sum")),
    "triton__0d1d2de": TritonName("", ()),
    "_fwd_kernel": None,
    "triton_my_own_kernel": None,
    "volta_sgemm_128x64_tn": None,
}


@pytest.mark.parametrize("name", TRITON)
def test_triton_name(name: str) -> None:
    assert triton_name(name) == TRITON[name]
