"""Which kernels an operator puts on a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.lab.prediction.capture.calls import Phase, TensorInfo
from torchtraceap.lab.prediction.lowering import (
    LaunchingOp,
    Libraries,
    OpTime,
    kernels_of,
    op_times,
)
from torchtraceap.lab.prediction.lowering.kernels import _RULES
from torchtraceap.lab.prediction.lowering.kernels.lists import launch_blocks
from torchtraceap.lab.prediction.lowering.step import GpuWork, WorkKind, libraries_of
from torchtraceap.ops.devices import Device, device_named
from torchtraceap.ops.durations import Estimate
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models import family_of

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks" / "prediction"))

from kernels import measured  # noqa: E402

CORPUS = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))
H100, MI300X = "h100_sxm", "mi300x"
OLD = Libraries(torch=(2, 6))


def tensor(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] = ()) -> TensorInfo:
    found = parse_dtype(dtype)
    assert found is not None
    if not strides:
        step, steps = 1, []
        for size in reversed(shape):
            steps.append(step)
            step *= size
        strides = tuple(reversed(steps))
    return TensorInfo(shape, found, strides, 0)


def lowered(
    name: str,
    *inputs: Any,
    device: str = H100,
    libraries: Libraries = OLD,
    outputs: tuple[TensorInfo, ...] = (),
) -> tuple[GpuWork, ...]:
    chip: Device = device_named(device)
    op = LaunchingOp(f"aten::{name}", inputs, outputs, Phase.FORWARD, (), 0)
    time: OpTime = op_times([op], chip)[0]
    found = kernels_of(op, chip, libraries, time)
    assert sum(each.estimate.ns for each in found) == pytest.approx(time.estimate.ns)
    return found


def test_an_addition_reads_wide_pieces_where_tensors_lie_alike() -> None:
    (kernel,) = lowered("add", tensor(4, 197, 768), tensor(4, 197, 768), 1)
    functor = "at::native::CUDAFunctor_add<c10::BFloat16>"
    assert kernel.name == (
        f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 3ul> >"
        f"(int, {functor}, std::array<char*, 3ul>)"
    )
    assert kernel.grid == (1182, 1, 1) and kernel.block == (128, 1, 1)


def test_a_broadcast_addition_goes_by_strides() -> None:
    (kernel,) = lowered("add", tensor(4, 197, 768), tensor(1, 197, 768), 1)
    assert kernel.name.startswith("void at::native::elementwise_kernel<128, 4, ")
    assert kernel.grid == (1182, 1, 1)


def test_an_addition_of_two_types_casts() -> None:
    (kernel,) = lowered("add", tensor(1024, dtype="float32"), tensor(1024), 1)
    assert kernel.name.startswith("void at::native::unrolled_elementwise_kernel<")
    assert "LoadWithCast<2>" in kernel.name


def test_newer_torch_reads_eight_halves_at_once() -> None:
    (kernel,) = lowered(
        "add", tensor(25088, 768), tensor(25088, 768), 1, device=MI300X, libraries=Libraries()
    )
    assert kernel.name.startswith("void at::native::vectorized_elementwise_kernel<8, ")
    assert kernel.grid == (9408, 1, 1) and kernel.block == (256, 1, 1)


def test_copies_of_tensors_that_lie_alike_are_no_kernels() -> None:
    (copy,) = lowered("copy_", tensor(64), tensor(64), False)
    assert copy.kind is WorkKind.MEMCPY and copy.bytes == 128
    (turned,) = lowered("copy_", tensor(8, 4), tensor(8, 4, strides=(1, 8)), False)
    assert turned.kind is WorkKind.KERNEL and "direct_copy_kernel_cuda" in turned.name


def kernel_names(works: tuple[GpuWork, ...]) -> list[str]:
    return [canonical_name(each.name) for each in works]


def test_products_go_to_each_makers_kernels() -> None:
    factors = tensor(788, 768), tensor(768, 3072, strides=(1, 768))
    bias = tensor(3072)
    (hopper,) = lowered("addmm", bias, *factors, 1, 1)
    assert hopper.name.startswith("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize")
    (newer,) = lowered("addmm", bias, *factors, 1, 1, libraries=Libraries())
    assert newer.name.startswith("nvjet_tst_") and newer.name.endswith("_TNN")
    (ampere,) = lowered("addmm", bias, *factors, 1, 1, device="a100_sxm_80gb")
    assert ampere.name.startswith("ampere_bf16_s16816gemm_bf16_") and ampere.name.endswith("_tn")
    (amd,) = lowered("addmm", bias, *factors, 1, 1, device=MI300X, libraries=Libraries("miopen"))
    assert amd.name.startswith("Cijk_Alik_Bljk_BBS_BH_")


def test_large_products_on_hopper_count_their_tiles() -> None:
    counter, product = lowered("mm", tensor(25088, 768), tensor(768, 768))
    assert counter.kind is WorkKind.MEMSET and counter.bytes == 4
    assert product.grid[0] == 132


def test_long_sums_are_split_and_added_up() -> None:
    product, added = lowered("mm", tensor(768, 32768, strides=(1, 768)), tensor(32768, 768))
    assert product.grid[2] > 1 and "splitKreduce_kernel" in added.name
    assert product.estimate.ns > added.estimate.ns


def test_a_bias_that_the_library_cannot_take_is_copied_first() -> None:
    copy, product = lowered("addmm", tensor(1), tensor(1024, 64), tensor(64, 1), 1, 1)
    assert "direct_copy_kernel_cuda" in copy.name and "gemv" in product.name


@pytest.mark.parametrize(
    ("shape", "axes", "grid", "block"),
    [
        ((1024, 100), (0,), (2, 1, 1), (16, 8, 1)),
        ((1024, 400), (0,), (4, 16, 1), (32, 4, 1)),
    ],
)
def test_reductions_have_atens_grid(
    shape: tuple[int, ...], axes: tuple[int, ...], grid: Any, block: Any
) -> None:
    """As on an A100: where sums are long and outputs few, blocks share one."""
    given = tensor(*shape, dtype="float32")
    *before, kernel = lowered("sum", given, axes, False, None, device="a100_sxm_80gb")
    assert kernel.grid == grid and kernel.block == block
    assert [each.kind for each in before] == ([WorkKind.MEMSET] if grid[1] > 1 else [])


def test_softmax_goes_from_warps_to_blocks_beyond_1024() -> None:
    (short,) = lowered("_softmax", tensor(3136, 12, 8, 8), -1, False)
    assert "softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 3, false" in short.name
    assert short.grid == (9408, 1, 1) and short.block == (8, 16, 1)
    (long,) = lowered("_softmax", tensor(8, 12, 3137, 3137), -1, False)
    assert "cunn_SoftMaxForward<8, c10::BFloat16" in long.name and long.grid == (301152, 1, 1)
    (even,) = lowered("_softmax", tensor(8, 4096), -1, False)
    assert "cunn_SoftMaxForwardSmem<8" in even.name
    (columns,) = lowered("_softmax", tensor(8, 4096), 0, False)
    assert "cunn_SpatialSoftMaxForward" in columns.name


def test_norms_have_the_kernels_that_their_gradients_need() -> None:
    rows = tensor(4, 197, 768)
    (forward,) = lowered("native_layer_norm", rows, (768,), tensor(768), tensor(768), 1e-5)
    assert "vectorized_layer_norm_kernel<c10::BFloat16, float>" in forward.name
    odd = lowered("native_layer_norm", tensor(4, 125), (125,), tensor(125), tensor(125), 1e-5)
    assert kernel_names(odd) == [
        "at::native::RowwiseMomentsCUDAKernel",
        "at::native::LayerNormForwardCUDAKernel",
    ]
    moments = tensor(788, 1, dtype="float32")
    inputs = rows, rows, (768,), moments, moments, tensor(768), tensor(768)
    both = lowered("native_layer_norm_backward", *inputs, (True, True, True))
    only = lowered("native_layer_norm_backward", *inputs, (True, False, False))
    assert len(both) == 2 and len(only) == 1 and both[0].name == only[0].name


def test_attention_splits_keys_where_queries_are_few() -> None:
    def attention(length: int, keys: int) -> tuple[GpuWork, ...]:
        query, key = tensor(4, length, 12, 64), tensor(4, keys, 12, 64)
        lengths = (None, None, length, keys, 0.0, False, False, 0.125)
        return lowered("_flash_attention_forward", query, key, key, *lengths)

    (whole,) = attention(197, 197)
    assert "pytorch_flash::flash_fwd_kernel" in whole.name and whole.grid == (2, 4, 12)
    parts = attention(1, 16384)
    assert kernel_names(parts) == [
        "pytorch_flash::flash_fwd_splitkv_kernel",
        "pytorch_flash::flash_fwd_splitkv_combine_kernel",
    ]


def test_convolutions_move_channels_together_unless_they_are() -> None:
    def convolved(strides: tuple[int, ...] = ()) -> tuple[GpuWork, ...]:
        given = tensor(8, 64, 56, 56, strides=strides)
        around = (1, 1), (1, 1), (1, 1), 1, False, False
        return lowered("cudnn_convolution", given, tensor(64, 64, 3, 3), *around)

    apart, together = convolved(), convolved((200704, 1, 3584, 64))
    assert [name.rpartition("::")[2] for name in kernel_names(apart)[:2]] == [
        "nchwToNhwcKernel",
        "nchwToNhwcKernel",
    ]
    assert len(apart) == 4 and len(together) == 1
    assert family_of("", [together[0].name]) == "convolution_forward"


def test_lists_of_tensors_are_cut_into_chunks() -> None:
    assert launch_blocks([65_536 * 3], 2) == [3]
    assert launch_blocks([100] * 65, 2) == [64, 1]
    assert launch_blocks([65_536 * 700], 1) == [320, 320, 60]
    assert launch_blocks([], 3) == []
    parts = tuple(tensor(1000, 1000) for _ in range(70))
    works = lowered("_foreach_add_", parts, parts, 1)
    assert len(works) == 4 and all("BinaryOpListAlphaFunctor" in each.name for each in works)
    assert works[0].grid == (320, 1, 1) and works[0].block == (512, 1, 1)


def test_many_lookups_are_sorted_before_their_gradients_add_up() -> None:
    few = lowered("embedding_dense_backward", tensor(100, 64), tensor(100, dtype="int64"), 1000, -1)
    assert kernel_names(few) == ["at::native::embedding_backward_feature_kernel"]
    many = lowered(
        "embedding_dense_backward", tensor(8192, 64), tensor(8192, dtype="int64"), 50000, -1
    )
    names = " ".join(kernel_names(many))
    assert "DeviceRadixSort" in names and names.endswith("sum_and_scatter")


def test_what_the_host_reads_comes_by_a_copy() -> None:
    (item,) = lowered("_local_scalar_dense", tensor(dtype="float32"))
    assert item.kind is WorkKind.MEMCPY and "DtoH" in item.name and item.bytes == 4


ODD: tuple[tuple[Any, ...], ...] = (
    (),
    (None,),
    (1, 2, 3),
    (tensor(), tensor()),
    (tensor(0), tensor(0)),
    (tensor(5),),
    (tensor(3, 0, 2), tensor(3, 0, 2), tensor(3, 0, 2), (0,), (True,)),
    ((), ()),
    ((tensor(2), tensor(2, dtype="int64")), (tensor(2),), 1.0),
    (tensor(2, 3), tensor(2, 3, dtype="int64"), tensor(2, 3), -1, None, (1, 1), (0, 0), True),
    (tensor(2, 3, 4, 4), tensor(2, 3, 4, 4), tensor(6, 3, 1, 1), None, (1, 1), (0,), (1,), False),
    (tensor(2, 3, strides=(0, 0)), tensor(3), (1, 2), "text", 10**9, -(10**9)),
)


@pytest.mark.parametrize("device", [H100, MI300X, "v100_sxm2_32gb"])
def test_no_rule_breaks_on_inputs_that_make_no_sense(device: str) -> None:
    """Kernels come out, with grids of at least a block and times that add up."""
    chip = device_named(device)
    for name in _RULES:
        for inputs in ODD:
            op = LaunchingOp(f"aten::{name}", inputs, (), Phase.BACKWARD, (), 0)
            time = OpTime(Estimate.within_factor(1e5, 2.0, "any"), is_known=True)
            found = kernels_of(op, chip, libraries_of(chip), time)
            assert found and sum(each.estimate.ns for each in found) == pytest.approx(1e5)
            for each in found:
                assert min(each.grid) >= 1 and min(each.block) >= 1, (name, each)
                assert each.estimate.low_ns <= each.estimate.ns <= each.estimate.high_ns


def test_kernels_of_a_real_inference_are_those_of_its_trace() -> None:
    """The ViT on an H100: 151 operators and what they put on the GPU."""
    path = CORPUS / "tracelens/h100/vit_nsfw_inference.json.gz"
    if not path.is_file():
        pytest.skip("the corpus of traces is not here")
    score = measured(ttap.load(path), device_named(H100), OLD)[""]
    assert score.ops == 151
    assert abs(score.predicted / score.ran - 1) < 0.03
    assert abs(score.predicted_all / score.ran_all - 1) < 0.05
    assert score.family_right >= 0.97 * score.ops


def test_an_operator_that_nobody_knows_is_one_kernel_of_its_name() -> None:
    (kernel,) = lowered("nobody_knows_this", tensor(1024))
    assert "aten::nobody_knows_this" in kernel.name
