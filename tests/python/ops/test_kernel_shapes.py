"""What names and grids of kernels tell of the products that they compute."""

from __future__ import annotations

import pytest

from torchtraceap.ops.models.kernel_shapes import (
    KernelLaunch,
    NamedProduct,
    counts_threads,
    product_of_kernel,
)

CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_{}>(cutlass_80_tensorop_{}::Params)"
VLLM = (
    "void cutlass::device_kernel<vllm::enable_sm90_or_later<cutlass::gemm::kernel::GemmUniversal<"
    "cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::"
    "MainloopSm90TmaGmmaWarpSpecializedFP8<6, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, "
    "cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum>, cute::tuple<cute::C<64>, "
    "cute::C<128>, cute::C<128> >, cutlass::float_e4m3_t, cute::tuple<long, cute::C<1>, long> > > >"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT{}_MI16x16x1_SN"


def found(name: str, grid: tuple[int, ...], rows: int | None = None, **more: object) -> str | None:
    fields = {"block": (256, 1, 1), "multiprocessors": 132, **more}
    product = product_of_kernel(KernelLaunch(name, grid, **fields), rows)  # type: ignore[arg-type]
    return None if product is None else str(product)


# Launches of public traces; the true rows and columns are those of their operators.
LAUNCHES = [
    ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", (10, 20, 1), 4900, 1280),
    ("ampere_sgemm_32x32_sliced1x4_nn", (4, 4, 1), 100, 100),
    ("volta_sgemm_64x32_sliced1x4_nn", (6, 1, 8), 16, 367),
    ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align2", (32, 1, 1), 1024, 4),
    (CUTLASS.replace("{}", "s1688gemm_128x128_16x4_nt_align1"), (64, 2, 2), 1024, 1953),
    (CUTLASS.replace("{}", "s1688gemm_128x128_16x5_tn_align4"), (128, 7, 1), 2048, 6948),
    (CUTLASS.replace("{}", "s1688gemm_128x64_16x6_nt_align4"), (8, 1, 12), 224, 256),
    ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>", (25, 1, 96), 3137, 64),
]


@pytest.mark.parametrize(("name", "grid", "rows", "columns"), LAUNCHES)
def test_tiles_hold_the_true_sizes(
    name: str, grid: tuple[int, ...], rows: int, columns: int
) -> None:
    launch = KernelLaunch(name, grid, (128, 1, 1))
    alone = product_of_kernel(launch)
    with_batch = product_of_kernel(launch, rows)
    assert alone is not None and with_batch is not None
    for product in (alone, with_batch):
        assert product.rows[0] <= rows <= product.rows[1]
        assert product.n[0] <= columns <= product.n[1]
        assert product.k is None and product.work is None and not product.is_exact
    assert with_batch.rows == (rows, rows)
    assert with_batch.n[1] - with_batch.n[0] <= alone.n[1] - alone.n[0]


def test_a_swizzled_grid_is_told_by_the_batch() -> None:
    name = CUTLASS.replace("{}", "s1688gemm_128x128_16x5_tn_align4")
    # 128 blocks in x: 128, 64, 32 or 16 tiles of rows, by how many columns of tiles there are.
    assert found(name, (128, 1, 1)) == "rows 1921 to 16384, n at most 1024"
    assert found(name, (128, 1, 1), 2048) == "rows 2048, n 641 to 1024"
    assert found(name, (128, 1, 1), 16384) == "rows 16384, n at most 128"
    # A batch that fits none of them is another product's.
    assert found(name, (128, 1, 1), 64) == found(name, (128, 1, 1))


def test_blocks_of_tensile_are_parts_of_tiles_too() -> None:
    name, grid = TENSILE.format("256x48x64"), (201216, 1, 1)  # 786 blocks: 786 x 1 tiles
    assert found(name, grid, 46, counts_threads=True) == "rows 46, n at most 201216"
    assert found(name, grid, 49, counts_threads=True) == "rows 49, n at most 100608"
    assert found(name, grid, 46) is None  # the profiler may count blocks
    assert found(name, (786, 1, 1), 46, counts_threads=True) is None
    assert found(name + "_SK3", grid, 46, counts_threads=True) is None


def test_the_unit_of_a_grid_is_told_by_several() -> None:
    name = TENSILE.format("16x16x256")
    threads = [KernelLaunch(name, (256 * n, 1, 1), (256, 1, 1)) for n in (3, 14, 786)]
    assert counts_threads(threads)
    assert not counts_threads(threads[:2] * 2)
    assert not counts_threads([*threads, KernelLaunch(name, (528, 1, 1), (256, 1, 1))])


def test_kernels_that_loop_over_tiles_bound_only_small_products() -> None:
    name = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
    assert found(name, (32, 1, 1), 5) == "rows 5, n at most 2048"
    assert found(name, (32, 1, 1), 9) == "rows 9, n at most 1024"
    # Clusters of four may fill the device with fewer blocks; one that is full tells nothing.
    assert found(name, (64, 1, 1), 5) is None
    assert found("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", (64, 1, 1), 5) == "rows 5, n at most 4096"
    assert found("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", (2, 66, 1), 32768) is None
    assert found("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", (64, 1, 1), 5, multiprocessors=None) is None
    xmma = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
    assert found(xmma, (14, 7, 1), 788) is None
    assert found(xmma, (6, 6, 1), 700) == "rows 700, n at most 768"
    # Engines exchange the operands of CUTLASS 3 where there are few rows.
    assert found(VLLM, (32, 1, 1), 64) == "rows 64, n at most 4096"
    assert found(VLLM, (32, 1, 1), 65) == "rows 65, n at most 2048"
    assert found(VLLM, (132, 1, 1), 64) is None


@pytest.mark.parametrize(
    ("name", "text", "flops"),
    [
        ("void fused_a_gemm_kernel<1, 2112, 7168, 16, 8, 256, 16>(__nv_bfloat16*, int)",
         "rows 7, n 2112, k 7168", 2 * 7 * 2112 * 7168),
        ("void router_gemm_kernel_float_output<__nv_bfloat16, 128, 8, 4, 256, 7168>(float*)",
         "rows 4, n 256, k 7168", 2 * 4 * 256 * 7168),
        ("void router_gemm_kernel_bf16_output<__nv_bfloat16, __nv_bfloat16, 8, 128, 4, 7168>(int)",
         "rows 4, n 64, k 7168", 2 * 4 * 64 * 7168),
    ],
)  # fmt: skip
def test_small_products_of_deepseek_tell_all(name: str, text: str, flops: int) -> None:
    product = product_of_kernel(KernelLaunch(name, (64, 1, 1), (128, 1, 1)), 7)
    assert product is not None and product.work is not None
    assert str(product) == text and product.work.flops == flops
    assert product.is_exact and not product.work.upper_bound


def test_rows_of_a_prompt_are_at_most_those_of_the_batch() -> None:
    name = "deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, true, (deep_gemm::GemmType)0>(float*)"
    product = product_of_kernel(KernelLaunch(name), 90, is_most=True)
    assert product == NamedProduct((1, 90), (4096, 4096), 7168)
    assert product.work is not None and product.work.upper_bound
    assert product.work.flops == 2 * 90 * 4096 * 7168
    assert product_of_kernel(KernelLaunch(name)) is None


@pytest.mark.parametrize(
    "name",
    [
        "gemv2T_kernel_val<int, int, float, float, float>",
        "void marlin::Marlin<__nv_bfloat16, 1125899906909960L, 256, 1, 8, 8, 4, 8, false>",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
        "void at::native::vectorized_elementwise_kernel<4, gemm_128x128>",
        "ampere_sgemm_99999999999x128_tn",
        "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn",
        "",
    ],
)
def test_other_names_tell_nothing(name: str) -> None:
    assert found(name, (64, 1, 1), 5, counts_threads=True) is None
    assert found("ampere_sgemm_128x128_tn", (), 5) is None
