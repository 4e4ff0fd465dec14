"""Convolutions, forward and backward: cuDNN's, MIOpen's and ATen's own depthwise kernels.

Note [Layouts]: matrix units require channels-last tensors. Other tensors are converted before and
the result after; channels too few for a wide read are padded in memory that a memset clears. A 1 x
1 convolution of stride 1 is a matrix product as it is.

Note [Choice of algorithm]: a library measures or guesses its algorithm, which shapes alone don't
determine. The rules give the usual one for each kind of filter, as seen in public traces of ResNets
(V100, A100, MI300X), a ViT (H100) and Segment Anything (A100).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torchtraceap.core import DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Grid,
    Launch,
    Rule,
    Setting,
    as_number,
    bytes_of,
    ceil_div,
    cpp_name,
    memset,
    number_at,
    opmath_name,
    required,
    rule,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_WIDE_CHANNELS = 8
_MANY_POSITIONS, _FEW_POSITIONS = 65_536, 10_000
_DEEP = 128


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Sizes that determine the kernels of a convolution."""

    source: TensorInfo
    weight: TensorInfo
    made_elements: int
    stride: int

    @property
    def dtype(self) -> DType:
        return self.source.dtype

    @property
    def is_product(self) -> bool:
        return prod(self.weight.shape[2:]) == 1 and self.stride == 1

    @property
    def is_last(self) -> bool:
        """True for a channels-last tensor."""
        return self.source.strides[1] == 1 and self.source.shape[1] > 1

    @property
    def is_three(self) -> bool:
        """True for a 3 x 3 filter with stride 1."""
        return self.weight.shape[2:] == (3, 3) and self.stride == 1

    @property
    def positions(self) -> int:
        """Input positions in all images."""
        return self.source.elements // max(1, self.source.shape[1])

    @property
    def made_bytes(self) -> float:
        return float(self.made_elements * self.dtype.size)


def _convolution(
    op: LaunchingOp, source: TensorInfo, weight: TensorInfo, place: int, made: int | None = None
) -> _Convolution:
    """Return the sizes of a convolution.

    Args:
        op: The operator.
        source: Its input.
        weight: Its filters.
        place: Place of the stride among its arguments.
        made: Elements of the output; by default those without borders.
    """
    stride = op.value(place)
    steps = stride if isinstance(stride, tuple) and stride else (1,)
    if made is None:
        made = source.shape[0] * weight.shape[0]
        for at, size in enumerate(source.shape[2:]):
            made *= ceil_div(size, int(as_number(steps[min(at, len(steps) - 1)], 1)))
    widest = max(as_number(each, 1) for each in (steps if isinstance(stride, tuple) else (stride,)))
    return _Convolution(source, weight, made, int(widest))


# ------------------------------------------------------------------------------------- cuDNN


@rule(RULES, "cudnn_convolution")
def _cudnn(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source, weight = required(op, 0, dims=3), required(op, 1)
    return _forward(_convolution(op, source, weight, 3), "fprop", setting)


@rule(RULES, "cudnn_convolution_transpose")
def _cudnn_transpose(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a transposed convolution with the kernels of a gradient by the input."""
    source, weight = required(op, 0, dims=3), required(op, 1)
    found = _convolution(op, source, weight, 4, made=4 * source.elements)
    return _forward(found, "dgrad", setting)


def _has_matrix_units(found: _Convolution, setting: Setting) -> bool:
    half = found.dtype.size == 2
    return setting.generation >= 8 or (setting.generation == 7 and half)


def _forward(found: _Convolution, way: str, setting: Setting) -> list[Launch]:
    if not _has_matrix_units(found, setting):
        return _on_vectors(found)
    main = _main(found, way, setting)
    if found.is_last or (found.is_product and way == "fprop"):
        return [main]
    # 3 x 3 kernels for tf32 write channels-first output themselves.
    writes_apart = found.dtype.size == 4 and found.is_three
    after = [] if writes_apart else [_to_apart(found.dtype, found.made_bytes)]
    return [*_together(found, found.source), main, *after]


def _together(found: _Convolution, source: TensorInfo) -> list[Launch]:
    """Convert a tensor and the weight to channels-last; see Note [Layouts]."""
    moves: list[Launch] = []
    for each in (source, found.weight):
        if each.shape[1] % _WIDE_CHANNELS and found.dtype.size == 2:
            padded = each.elements // each.shape[1] * _WIDE_CHANNELS * found.dtype.size
            moves.append(memset(padded))
        moves.append(_to_together(found.dtype, bytes_of(each), each))
    return moves


def _library_type(dtype: DType) -> str:
    return {"float16": "__half", "bfloat16": "__nv_bfloat16"}.get(dtype.name, "float")


def _to_together(dtype: DType, size: float, each: TensorInfo) -> Launch:
    t = _library_type(dtype)
    kind = "(cudnnKernelDataType_t)" + ("2" if dtype.size == 4 else "0")
    name = (
        f"void cudnn::engines_precompiled::nchwToNhwcKernel<{t}, {t}, float, false, true, {kind}>"
        f"(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, {t} const*, {t}*)"
    )
    inner = prod(each.shape[2:])
    grid = (ceil_div(inner, 32), ceil_div(each.shape[1], 32), each.shape[0])
    return Launch(name, grid, 256, 2 * size, 32, 2112 * dtype.size // 2)


def _to_apart(dtype: DType, size: float) -> Launch:
    t = _library_type(dtype)
    name = (
        f"void cudnn::engines_precompiled::nhwcToNchwKernel<{t}, {t}, float, true, false, "
        f"(cudnnKernelDataType_t)0>(cudnn::engines_precompiled::nhwc2nchw_params_t<float>, "
        f"{t} const*, {t}*)"
    )
    blocks = ceil_div(int(size) // dtype.size, 1024)
    return Launch(name, blocks, 256, 2 * size, 36, 2112 * dtype.size // 2)


def _main(found: _Convolution, way: str, setting: Setting) -> Launch:
    """Return the main kernel of cuDNN or CUTLASS."""
    half = {"float16": "f16", "bfloat16": "bf16"}.get(found.dtype.name)
    rows = ceil_div(found.made_elements, max(1, found.weight.shape[0]))
    grid = (ceil_div(rows, 128), ceil_div(found.weight.shape[0], 128), 1)
    if half:
        name = f"cutlass_tensorop_{half}_s16816{way}_optimized_{half}_128x128_32x4_nhwc_align8"
        name = f"void cutlass__5x_cudnn::Kernel<{name}>({name}::Params)"
    else:
        layout = "nchw" if found.is_three else "nhwc"
        name = (
            f"sm80_xmma_{way}_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_{layout}_"
            "tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn"
        )
    return Launch(name, grid, 128, None, 246, 81920)


def _on_vectors(found: _Convolution) -> list[Launch]:
    """Launch fp32 kernels without matrix units: Winograd for 3 x 3 of stride 1, else implicit
    products."""
    t = "float"
    grid = ceil_div(found.made_elements, 4096)
    if found.is_three and found.source.shape[1] >= _DEEP:
        return _winograd(found, "Forward", grid)
    if found.is_three:
        return [
            Launch(f"void cudnn::winograd::generateWinogradTilesKernel<0, {t}, {t}>("
                   f"cudnn::winograd::GenerateWinogradTilesParams<{t}, {t}>)",
                   (2, 16, 1), (32, 4, 1), bytes_of(found.weight), 40),
            Launch("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", grid, 256,
                   None, 126, 49152),
        ]  # fmt: skip
    if found.positions < _MANY_POSITIONS:
        name = (
            f"void implicit_convolve_sgemm<{t}, {t}, 128, 6, 7, 3, 3, 5, 1, false, true, true>(int)"
        )
        return [Launch(name, grid, (8, 32, 1), None, 64, 6400)]
    return [
        Launch("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", 13,
               256, 4096.0, 38),
        Launch("volta_scudnn_128x64_relu_medium_nn_v1", grid, 128, None, 128, 16384),
    ]  # fmt: skip


def _winograd(found: _Convolution, way: str, grid: int | Grid) -> list[Launch]:
    space, t = "void cudnn::winograd_nonfused::winograd", "float"
    second = "Delta" if way == "Wgrad" else "Filter"
    return [
        Launch(f"{space}{way}Data4x4<{t}, {t}>(int)", grid, 256, 3 * bytes_of(found.source)),
        Launch(f"{space}{way}{second}4x4<{t}, {t}>(int)", grid, (32, 8, 1), bytes_of(found.weight)),
        Launch("volta_sgemm_64x64_nn", grid, 64, None, 126, 8448),
        Launch(f"{space}{way}Output4x4<{t}, {t}>(int)", grid, 256, 3 * found.made_bytes),
    ]


# ------------------------------------------------------------------------------------- backward


@rule(RULES, "convolution_backward")
def _backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the gradients of the input and the weight, one after the other."""
    grad, source, weight = required(op, 0), required(op, 1, dims=3), required(op, 2)
    found = _convolution(op, source, weight, 4, made=grad.elements)
    wanted = op.value(10)
    asked = wanted if isinstance(wanted, tuple) and len(wanted) > 1 else (True, True)
    groups = int(number_at(op, 9, 1))
    if groups > 1 and groups == found.source.shape[1] and found.weight.shape[1] == 1:
        t, size = cpp_name(found.dtype), found.weight.shape[-1]
        filters = f"{size if size in (1, 3, 5) else 0}, {max(1, found.stride)}, {t}, int"
        space = "void at::native::(anonymous namespace)::conv_depthwise2d_"
        blocks = ceil_div(found.source.elements, 512)
        of_input = [Launch(f"{space}backward_kernel<{filters}>(int)", blocks, 512)]
        name = f"{space}grad_weight_kernel<{t}, int>(int)"
        of_weight = [Launch(name, found.weight.elements, 256)]
    elif setting.is_amd:
        of_input, of_weight = _miopen_parts(found)
    else:
        of_input, of_weight = _cudnn_parts(found, grad, setting)
    return [*(of_input if asked[0] else []), *(of_weight if asked[1] else [])]


def _cudnn_parts(
    found: _Convolution, grad: TensorInfo, setting: Setting
) -> tuple[list[Launch], list[Launch]]:
    if not _has_matrix_units(found, setting):
        return _vector_dgrad(found), _vector_wgrad(found)
    dgrad, wgrad = (_main(found, way, setting) for way in ("dgrad", "wgrad"))
    if found.is_last:
        return [dgrad], [memset(int(bytes_of(found.weight))), wgrad]
    if found.is_product:
        helper = "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float, float>(int)"
        added = Launch(helper, 64, 256, 4 * bytes_of(found.weight))
        return [dgrad], [wgrad, added]
    into = _together(found, grad)
    of_input = [*into, dgrad, _to_apart(found.dtype, bytes_of(found.source))]
    both = [_to_together(found.dtype, bytes_of(each), each) for each in (grad, found.source)]
    of_weight = [
        *both,
        memset(int(bytes_of(found.weight))),
        wgrad,
        Launch(wgrad.name, wgrad.grid, wgrad.block, 4 * bytes_of(found.weight), 128),
        _to_apart(found.dtype, bytes_of(found.weight)),
    ]
    return of_input, of_weight


def _vector_dgrad(found: _Convolution) -> list[Launch]:
    grid = ceil_div(found.source.elements, 4096)
    if found.is_three:
        return _on_vectors(found)
    if found.positions < _MANY_POSITIONS:
        scale = (
            "void cudnn::ops::scalePackedTensor_kernel<float, float>(cudnnTensor4dStruct, "
            "float*, float)"
        )
        engine = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)"
        return [
            Launch(scale, ceil_div(found.source.elements, 256), 256, bytes_of(found.source), 16),
            Launch(engine, grid, (8, 8, 1), None, 88, 3328),
        ]
    main = "volta_scudnn_128x64_stridedB_interior_nn_v1"
    return [
        *_offsets("computeOffsetsKernel", "computeBOffsetsKernel"),
        Launch(main, grid, 128, None, 128, 32768),
    ]


def _offsets(*kernels: str) -> list[Launch]:
    return [
        Launch(f"cask_cudnn::{each}(cask_cudnn::ComputeOffsetsParams)", 4, 256, 4096.0, 24)
        for each in kernels
    ]


def _vector_wgrad(found: _Convolution) -> list[Launch]:
    size, grid = int(bytes_of(found.weight)), (ceil_div(found.weight.elements, 1024), 1, 64)
    if found.is_three:
        return _winograd(found, "Wgrad", grid)
    if found.positions < _FEW_POSITIONS:
        main = "volta_scudnn_128x128_stridedB_splitK_medium_nn_v1"
        return [
            *_offsets("computeWgradSplitKOffsetsKernel", "computeWgradBOffsetsKernel"),
            memset(size),
            memset(4096),
            Launch(main, grid, 256, None, 128, 32768),
        ]
    name = "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)"
    return [memset(size), Launch(name, grid, (8, 32, 1), None, 80, 6400)]


@rule(RULES, "cudnn_convolution_backward_input cudnn_convolution_backward_weight")
def _old_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the backward operators of torch before 1.11; the other factor follows the gradient."""
    grad, other = required(op, 1, dims=4), required(op, 2, dims=4)
    of_weight = op.name.endswith("_weight")
    if of_weight:
        stride = max(1, other.shape[2] // max(1, grad.shape[2]))
        side = 3 if other.shape[1] == grad.shape[1] and stride == 1 else 1
        shape = (grad.shape[1], other.shape[1], side, side)
        strides = (other.shape[1] * side**2, side**2, side, 1)
        source, weight = other, TensorInfo(shape, grad.dtype, strides, -1)
    else:
        source, weight, stride = grad, other, 1
    found = _Convolution(source, weight, grad.elements, stride)
    return _cudnn_parts(found, grad, setting)[1 if of_weight else 0]


# ------------------------------------------------------------------------------------- MIOpen


@rule(RULES, "miopen_convolution miopen_convolution_transpose")
def _miopen(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source, weight = required(op, 0, dims=3), required(op, 1)
    found = _convolution(op, source, weight, 4)
    if prod(found.weight.shape[2:]) == 1:
        return _through_product(found)
    main = _implicit("fwd", found)
    turn = [_turned(found, size) for size in (bytes_of(source), bytes_of(weight))]
    if found.is_last:
        return [main]
    if found.is_three:
        # Composable Kernel transposes a third tensor and clears the result.
        name = (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_139"
            "kernel_grouped_conv_fwd_xdl_cshuffle_v3E"
        )
        ck = Launch(name, ceil_div(found.made_elements, 128 * 64), 256)
        return [*turn, _turned(found, found.made_bytes), memset(int(found.made_bytes)), ck,
                _turned(found, found.made_bytes)]  # fmt: skip
    return [_scaled(found.made_bytes), *turn, main, *_cast(found), _turned(found, found.made_bytes)]


def _implicit(way: str, found: _Convolution) -> Launch:
    t = {"bfloat16": "bf16", "float16": "fp16"}.get(found.dtype.name, "fp32")
    name = f"igemm_{way}_gtcx3_nhwc_{t}_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_gkgs"
    grid = 256 * ceil_div(found.made_elements, 128 * 128)
    return Launch(name, grid, 256)


def _turned(found: _Convolution, size: float) -> Launch:
    kind = "half" if found.dtype.size == 2 else "dword"
    grid = 256 * ceil_div(int(size) // found.dtype.size, 1024)
    return Launch(f"batched_transpose_32x32_{kind}", grid, 256, 2 * size)


def _scaled(size: float) -> Launch:
    return Launch("SubTensorOpWithScalar1d", 65536, 256, size)


def _cast(found: _Convolution) -> list[Launch]:
    """Cast sums of halves, which are made in fp32."""
    cast = Launch("SubTensorOpWithCastTensor1d", 65536, 256, 3 * found.made_bytes)
    return [cast] if found.dtype.size == 2 else []


def _through_product(found: _Convolution) -> list[Launch]:
    name = "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x1_SN"
    grid = 256 * ceil_div(found.made_elements, 32 * 32)
    if found.stride == 1 and found.is_last:
        return [Launch(name, grid, 256)]
    return [
        Launch("transpose_NCHW2CNHW_V2_2D_WG_off64", grid, 256, 2 * bytes_of(found.source)),
        Launch(name, grid, 256),
        Launch("transpose_CNHW2NCHW_V2_2D_WG_off64", grid, 256, 2 * found.made_bytes),
    ]


def _miopen_parts(found: _Convolution) -> tuple[list[Launch], list[Launch]]:
    source, weight, made = bytes_of(found.source), bytes_of(found.weight), found.made_bytes
    clear = _scaled(source)
    turns = [_turned(found, made), _turned(found, weight)]
    if prod(found.weight.shape[2:]) == 1:
        of_input = [clear, *_through_product(found)]
    else:
        of_input = [clear, *turns, _implicit("bwd", found), *_cast(found), _turned(found, source)]
    both = [_turned(found, source), _turned(found, made)]
    of_weight = [_scaled(weight), *both, _implicit("wrw", found), *_cast(found),
                 _turned(found, weight)]  # fmt: skip
    if found.is_last:
        return [_implicit("bwd", found)], [_implicit("wrw", found)]
    return of_input, of_weight


# ------------------------------------------------------------------------------------- depthwise


@rule(RULES, "_conv_depthwise2d miopen_depthwise_convolution conv_depthwise3d")
def _depthwise(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source, weight = required(op, 0), required(op, 1, dims=4)
    t, size = cpp_name(source.dtype), weight.shape[-1]
    three = len(source.shape) == 5
    a = opmath_name(source.dtype)
    if three:
        name = (
            f"void at::native::(anonymous namespace)::conv_depthwise3d_cuda_kernel<{t}, {a}, "
            f"{size}>(int)"
        )
    else:
        known = size if size in (1, 3, 5) else 0
        name = (
            "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<"
            f"{known}, {t}, int>(int)"
        )
    made = _convolution(op, source, weight, 4).made_elements
    return [Launch(name, min(ceil_div(made, 512), 8 * setting.processors), 512)]
