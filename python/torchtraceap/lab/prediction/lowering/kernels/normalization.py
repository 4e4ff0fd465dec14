"""Kernels of layer, group and batch norms, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap.core import DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    as_number,
    bool_at,
    bytes_of,
    ceil_div,
    cpp_name,
    number_at,
    opmath_name,
    required,
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.kernels.pointwise import strided_loop
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_ANONYMOUS = "at::native::(anonymous namespace)::"
_FEW_ROWS = 128


def _wanted(op: LaunchingOp, place: int) -> tuple[bool, ...]:
    """Return which gradients are requested; all if unknown."""
    value = op.value(place)
    if isinstance(value, tuple) and value and all(isinstance(each, bool) for each in value):
        return tuple(bool(each) for each in value)
    return (True, True, True)


def _columns(op: LaunchingOp, place: int, source: TensorInfo) -> int:
    """Return the elements normalized together."""
    value = op.value(place)
    if isinstance(value, tuple) and value:
        found = 1
        for size in value:
            found *= int(as_number(size, 1)) if not isinstance(size, (tuple, TensorInfo)) else 1
        return max(1, found)
    return max(1, source.shape[-1]) if source.shape else 1


# ------------------------------------------------------------------------------------- layer norm


@rule(RULES, "native_layer_norm _fused_rms_norm")
def _layer_norm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel if rows can be read four elements at a time, else two."""
    source = required(op, 0)
    columns = _columns(op, 1, source)
    rows, t, a = source.elements // columns, cpp_name(source.dtype), opmath_name(source.dtype)
    is_rms = op.name == "aten::_fused_rms_norm"
    kind = f", {'true' if is_rms else 'false'}" if is_rms or setting.torch_from(2, 9) else ""
    given = f"{t} const*, {t} const*, {t} const*, {a}*, {a}*, {t}*"
    if columns % 4 == 0:
        name = f"void {_ANONYMOUS}vectorized_layer_norm_kernel<{t}, {a}{kind}>(int, {a}, {given})"
        return [Launch(name, rows, (setting.warp, 4, 1), None, 40, 24)]
    moments = (
        f"void {_ANONYMOUS}RowwiseMomentsCUDAKernel<{t}, {a}{kind}>(long, {a}, "
        f"{t} const*, {a}*, {a}*)"
    )
    forward = f"void {_ANONYMOUS}LayerNormForwardCUDAKernel<{t}, {a}{kind}>(long, {given})"
    moved = bytes_of(source)
    return [
        Launch(moments, rows, 512, moved, 32, 512),
        Launch(forward, rows, 256, 2 * moved, 22),
    ]


@rule(RULES, "native_layer_norm_backward _fused_rms_norm_backward")
def _layer_norm_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the gradient of the input by rows, those of weight and bias by columns."""
    source = required(op, 1)
    is_rms = "rms" in op.name
    mask = _wanted(op, 5 if is_rms else 7)
    columns = _columns(op, 2, source)
    rows, t, a = source.elements // columns, cpp_name(source.dtype), opmath_name(source.dtype)
    kind = f", {'true' if is_rms else 'false'}" if is_rms or setting.torch_from(2, 9) else ""
    given = f"{t} const*, {t} const*, {a} const*, {a} const*, {t} const*, {t}*, int"
    name = f"void {_ANONYMOUS}layer_norm_grad_input_kernel<{t}, {a}{kind}>({given})"
    threads = 256 if setting.is_amd else 128
    moved = bytes_of(source)
    by_rows = Launch(name, rows, threads, 3 * moved, 32, 16)
    found = [by_rows] if mask[0] else []
    if any(mask[1:]) and tensor_at(op, 4 if is_rms else 5) is not None:
        found += _weight_gradients(rows, columns, f"{t}, {a}{kind}", 2 * moved, setting)
    return found


def _weight_gradients(
    rows: int, columns: int, types: str, moved: float, setting: Setting
) -> list[Launch]:
    """Return the gradients of the weight and the bias of a layer norm."""
    t = types.partition(",")[0]
    given = f"(long, long, {t} const*, {t} const*, {t}*, {t}*)"
    if setting.is_amd and rows >= _FEW_ROWS:
        grid = (ceil_div(columns, 64), 64, 1)
        part = f"void {_ANONYMOUS}cuComputePartGradGammaBeta<{types}>{given}"
        last = f"void {_ANONYMOUS}cuComputeGradGammaBeta<{types}>{given}"
        return [
            Launch(part, grid, (64, 4, 1), moved, 64, 8192),
            Launch(last, grid[0], (64, 8, 1), 512.0 * columns, 32, 4096),
        ]
    if rows < _FEW_ROWS:
        name = f"void {_ANONYMOUS}GammaBetaBackwardSimpleCUDAKernel<{types}>{given}"
        return [Launch(name, ceil_div(columns, 256), 256, moved, 32)]
    if columns % 32 == 0 and rows % 32 == 0:
        name = f"void {_ANONYMOUS}GammaBetaBackwardCUDAKernel_32x32<{types}>{given}"
        return [Launch(name, columns // 32, (32, 32, 1), moved, 32, 8448)]
    name = f"void {_ANONYMOUS}GammaBetaBackwardCUDAKernel<{types}>{given}"
    return [Launch(name, ceil_div(columns, 16), (16, 32, 1), moved, 32, 4096)]


# ------------------------------------------------------------------------------------- group norm


@rule(RULES, "native_group_norm")
def _group_norm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the moments of each group, fused parameters if there are weights, then a loop."""
    source = required(op, 0, dims=2)
    groups = int(number_at(op, 6, 1))
    rows, t, a = source.shape[0] * groups, cpp_name(source.dtype), opmath_name(source.dtype)
    moved = bytes_of(source)
    moments = Launch(
        f"void {_ANONYMOUS}RowwiseMomentsCUDAKernel<{t}>(long, {t}, {t} const*, {t}*, {t}*)",
        rows, 512, moved, 32, 512,
    )  # fmt: skip
    has_weight = tensor_at(op, 1) is not None
    channels = source.shape[0] * source.shape[1]
    factors = Launch(
        f"void {_ANONYMOUS}ComputeFusedParamsCUDAKernel<{t}>(long, long, long, {t} const*, "
        f"{t} const*, {t} const*, {t} const*, {a}*, {a}*)",
        ceil_div(channels, 256), 256, 24.0 * channels, 26,
    )  # fmt: skip
    arguments = f"{t}, {a}, {a}"
    function = (
        f"{_ANONYMOUS}GroupNormKernelImplInternal<{t}>(at::Tensor const&, at::Tensor const&, "
        "at::Tensor const&, long, long, long, long, float, at::Tensor&, at::Tensor&, at::Tensor&)"
        f"::{{lambda({arguments})#{2 if has_weight else 1}}}"
    )
    last = strided_loop(function, source.dtype, source.elements, 2 * moved, setting)
    return [moments, *([factors] if has_weight else []), last]


@rule(RULES, "native_group_norm_backward")
def _group_norm_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source, weight = required(op, 1, dims=2), tensor_at(op, 4)
    groups = int(number_at(op, 8, 1))
    n, channels = source.shape[0], source.shape[1]
    t, a, moved = cpp_name(source.dtype), opmath_name(source.dtype), bytes_of(source)
    small = 16.0 * n * channels
    mask = _wanted(op, 9)
    function = (
        f"{_ANONYMOUS}GroupNormBackwardKernelImplInternal<{t}>(at::Tensor const&, at::Tensor const&"
        ", at::Tensor const&, at::Tensor const&, at::Tensor const&, long, long, long, long, "
        f"at::Tensor&, at::Tensor&, at::Tensor&)::{{lambda({t}, {a})#"
    )
    inner = Launch(
        f"void {_ANONYMOUS}ComputeInternalGradientsCUDAKernel<{t}>(long, {t} const*, {t} const*, "
        f"{a}*, {a}*)", n * channels, 512, 2 * moved, 32, 512,
    )  # fmt: skip
    parts = [inner]
    if mask[0]:
        if weight is not None:
            parts.append(strided_loop(f"{function}1}}", source.dtype, n * channels, small, setting))
        parts += [
            Launch(f"void {_ANONYMOUS}ComputeBackwardFusedParamsCUDAKernel<{t}>(long, long, long, "
                   f"{t} const*, {t} const*, {t} const*, {a} const*, {a} const*, {a}*, {a}*)",
                   (n, groups, 1), 64, small, 32),
            strided_loop(f"{function}2}}", source.dtype, source.elements, 3 * moved, setting),
        ]  # fmt: skip
    if any(mask[1:]) and weight is not None:
        kind = "1" if n <= _FEW_ROWS else "2"
        parts.append(
            Launch(f"void {_ANONYMOUS}GammaBetaBackwardCUDAKernel{kind}<{t}>(long, long, long, "
                   f"{t} const*, {t} const*, {a} const*, {a} const*, {t}*, {t}*)",
                   ceil_div(channels, 256), 256, small, 32)
        )  # fmt: skip
    return parts


# ------------------------------------------------------------------------------------- batch norm


def _is_last(source: TensorInfo) -> bool:
    """Return whether the tensor is channels-last."""
    return len(source.shape) > 2 and source.strides[1] == 1 and source.shape[1] > 1


@rule(RULES, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training")
def _batch_norm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch ATen's kernels: moments of each channel, statistics, then the transform."""
    source = required(op, 0, dims=2)
    place = 5 if op.name != "aten::_native_batch_norm_legit_no_training" else len(op.inputs)
    training = place < len(op.inputs) and bool_at(op, place, default=True)
    t, a = cpp_name(source.dtype), opmath_name(source.dtype)
    moved, channels = bytes_of(source), source.shape[1]
    last = "_channels_last" if _is_last(source) else ""
    transform = Launch(
        f"void at::native::batch_norm_transform_input{last}_kernel<{t}, {t}, {a}, "
        f"{'true' if training else 'false'}, int>({_accessors(source.dtype)})",
        (channels, source.shape[0], 1), 256, 2 * moved, 32,
    )  # fmt: skip
    if not training:
        return [_invstd(source.dtype, channels), transform]
    collect = Launch(
        f"void at::native::batch_norm_collect_statistics{last}_kernel<at::native::Var, {t}, {t}, "
        f"{a}, int>({_accessors(source.dtype)})", channels, 512, moved, 32, 4096,
    )  # fmt: skip
    if all(tensor_at(op, place) is None for place in (3, 4)):
        return [collect, _invstd(source.dtype, channels), transform]
    function = (
        f"{_ANONYMOUS}batch_norm_update_stats_and_invert(at::Tensor const&, at::Tensor const&, "
        "at::Tensor const&, at::Tensor const&, double, double, long)::{lambda()#1}::operator()() "
        f"const::{{lambda()#2}}::operator()() const::{{lambda({a}, {a}, {a}, {a})#1}}"
    )
    name = (
        f"void {_ANONYMOUS}unrolled_elementwise_kernel_for_multi_outputs<3, {function}, "
        "std::array<char*, 7ul> >(int)"
    )
    update = Launch(name, ceil_div(channels, 512), 128, 28.0 * channels, 32)
    return [collect, update, transform]


def _invstd(dtype: DType, channels: int) -> Launch:
    a = opmath_name(dtype)
    function = (
        f"{_ANONYMOUS}batch_norm_calc_invstd(at::Tensor const&, at::Tensor const&, double)"
        f"::{{lambda()#1}}::operator()() const::{{lambda()#2}}::operator()("
        f") const::{{lambda({a})#1}}"
    )
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, {function}, std::array<char*, 2ul> >"
        f"(int, {function}, std::array<char*, 2ul>)"
    )
    return Launch(name, ceil_div(channels, 512), 128, 8.0 * channels, 20)


def _accessors(dtype: DType) -> str:
    t = cpp_name(dtype)
    return f"at::GenericPackedTensorAccessor<{t} const, 3ul, at::RestrictPtrTraits, int>"


@rule(RULES, "native_batch_norm_backward")
def _batch_norm_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = required(op, 1, dims=2)
    t, a, moved = cpp_name(source.dtype), opmath_name(source.dtype), bytes_of(source)
    channels = source.shape[1]
    if not _is_last(source):
        name = f"void at::native::batch_norm_backward_kernel<{t}, {t}, {a}, int>"
        name = f"{name}({_accessors(source.dtype)})"
        return [Launch(name, channels, 512, None, 32, 4096)]
    prefix = "void at::native::batch_norm_backward"
    return [
        Launch(f"{prefix}_reduce_channels_last_kernel<4, {t}, {a}, {a}>(int)",
               (ceil_div(channels, 32), 64, 1), (32, 16, 1), 2 * moved, 40, 4096),
        Launch(f"{prefix}_elemt_channels_last_kernel<4, {t}, {a}, {a}>(int)",
               (ceil_div(channels, 32), 256, 1), (32, 16, 1), 3 * moved, 40),
    ]  # fmt: skip


@rule(RULES, "cudnn_batch_norm")
def _cudnn_batch_norm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = required(op, 0, dims=2)
    t = "float" if source.dtype.size == 4 else "__half"
    if not bool_at(op, 5, default=True):
        name = f"void cudnn::bn_fw_inf_1C11_kernel_NCHW<{t}, float, true, 1>(float, float)"
        return [Launch(name, source.shape[0] * source.shape[1], 256, None, 32)]
    name = _cudnn_name("fw_tr", source, t)
    return [Launch(name, source.shape[1], 512, None, 38, 26768)]


_ELEMENTS_IN_BLOCK = 16_384


def _cudnn_name(way: str, source: TensorInfo, t: str) -> str:
    """Return the kernel name; small channels are read once."""
    of_channel = source.elements // max(1, source.shape[1])
    if of_channel <= _ELEMENTS_IN_BLOCK:
        return f"void cudnn::bn_{way}_1C11_singleread<{t}, 512, true, 1, 2, 0>(cudnnTensorStruct)"
    kind = "kernel_NCHW" if way == "fw_tr" else "kernel_new"
    return f"void cudnn::bn_{way}_1C11_{kind}<{t}, float, 512, true, 1>(cudnnTensorStruct)"


@rule(RULES, "cudnn_batch_norm_backward")
def _cudnn_batch_norm_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = required(op, 0, dims=2)
    t = "float" if source.dtype.size == 4 else "__half"
    name = _cudnn_name("bw", source, t)
    return [Launch(name, source.shape[1], 512, None, 40, 16656)]


_ONE_KERNEL_BELOW = 8_192


@rule(RULES, "miopen_batch_norm")
def _miopen_batch_norm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel for short channels, else moments, their sum and the normalization."""
    source = required(op, 0, dims=2)
    channels, moved = source.shape[1], bytes_of(source)
    of_channel = source.elements // max(1, channels)
    if not bool_at(op, 5, default=True):
        return [Launch("MIOpenBatchNormFwdInferSpatialEst", channels, 256)]
    if of_channel < _ONE_KERNEL_BELOW:
        return [Launch("MIOpenBatchNormFwdTrainSpatial", channels * 1024, 1024)]
    prefix, grid, block = "MIOpenBatchNormFwdTrainSpatial", (channels, 256, 1), (1, 256, 1)
    return [
        Launch(f"{prefix}MeanVariance", grid, block, moved),
        Launch(f"{prefix}FinalMeanVariance", grid, block, 8192.0 * channels),
        Launch(f"{prefix}Norm", grid, block, 2 * moved),
    ]


@rule(RULES, "miopen_batch_norm_backward")
def _miopen_batch_norm_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = required(op, 0, dims=2)
    return [Launch("MIOpenBatchNormBwdSpatial", source.shape[1] * 1024, 1024)]
