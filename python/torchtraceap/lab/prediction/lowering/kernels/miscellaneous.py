"""Kernels of pooling, interpolation, losses, random numbers and others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    as_number,
    ceil_div,
    cpp_name,
    first_output,
    memset,
    opmath_name,
    required,
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_ANONYMOUS = "at::native::(anonymous namespace)::"


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel with a thread for one or a few elements of the result."""

    name: str
    """Kernel name; {t} stands for the element type and {a} for that of sums."""
    of: int = 0
    """Place of the tensor that determines the type."""
    threads: int = 256
    each: int = 1
    """Elements per thread."""
    most_waves: int = 0
    """Limit on blocks per multiprocessor; 0 for none."""
    one_block: bool = False


_KERNELS: dict[str, _Kernel] = {
    # pooling
    "max_pool2d_with_indices": _Kernel(
        "void {n}max_pool_forward_nchw<{t}>(int, {t} const*, long, long, long, int, int, int, int, "
        "int, int, int, int, int, int, {t}*, long*)"
    ),
    "max_pool2d_with_indices_backward": _Kernel(
        "void {n}max_pool_backward_nchw<{t}, {a}>({t} const*, long const*, int, long, long, long, "
        "int, int, int, int, int, int, int, int, int, int, {t}*)"
    ),
    "avg_pool2d": _Kernel("void {n}avg_pool2d_out_cuda_frame<{t}, {a}, int>(int, {t} const*)"),
    "avg_pool2d_backward": _Kernel(
        "void {n}avg_pool2d_backward_out_cuda_frame<{t}, {a}, int>(int, {t} const*)"
    ),
    "avg_pool3d": _Kernel("void {n}avg_pool3d_cuda_update_output<{t}, {a}>(int)"),
    "max_pool3d_with_indices": _Kernel(
        "void {n}max_pool3d_with_indices_single_out_frame<{t}>(int)"
    ),
    "_adaptive_avg_pool2d": _Kernel("void {n}adaptive_average_pool<{t}>({t} const*, {t}*, int)"),
    "_adaptive_avg_pool2d_backward": _Kernel(
        "void {n}adaptive_average_gradinput<{t}>({t}*, {t} const*, int)"
    ),
    "adaptive_max_pool2d": _Kernel("void {n}adaptivemaxpool<{t}>({t} const*, {t}*, long*, int)"),
    # interpolation
    "upsample_nearest1d": _Kernel(
        "void {n}upsample_nearest1d_out_frame<{t}, "
        "&at::native::nearest_neighbor_compute_source_index>"
        "({t} const*, unsigned long, unsigned long, unsigned long, unsigned long, {t}*, float)",
        threads=512,
    ),
    "upsample_nearest2d": _Kernel(
        "void {n}upsample_nearest2d_out_frame<{t}, "
        "&at::native::nearest_neighbor_compute_source_index>"
        "({t} const*, {t}*, unsigned long, unsigned long, unsigned long, unsigned long, unsigned "
        "long, float, float)"
    ),
    "upsample_nearest2d_backward": _Kernel(
        "void {n}upsample_nearest2d_backward_out_frame<{t}, {a}>({t} const*, int)"
    ),
    "upsample_bilinear2d": _Kernel(
        "void {n}upsample_bilinear2d_out_frame<{t}, {a}>(int, {a}, {a}, bool)", threads=512
    ),
    "upsample_bilinear2d_backward": _Kernel(
        "void {n}upsample_bilinear2d_backward_out_frame<{t}, {a}>(unsigned long, {a}, {a}, bool)"
    ),
    "_upsample_bilinear2d_aa": _Kernel("void {n}upsample_gen2d_aa_out_frame<{t}, {a}>({a}, {a})"),
    "upsample_bicubic2d": _Kernel("void {n}upsample_bicubic2d_out_frame<{t}, {a}>(int, {a}, {a})"),
    "_upsample_bicubic2d_aa": _Kernel("void {n}upsample_gen2d_aa_out_frame<{t}, {a}>({a}, {a})"),
    "grid_sampler_2d": _Kernel("void {n}grid_sampler_2d_kernel<{t}, int>(int)"),
    "grid_sampler_2d_backward": _Kernel("void {n}grid_sampler_2d_backward_kernel<{t}, int>(int)"),
    "grid_sampler_3d": _Kernel("void {n}grid_sampler_3d_kernel<{t}, int>(int)"),
    # losses
    "nll_loss_forward": _Kernel(
        "void {n}nll_loss_forward_reduce_cuda_kernel_2d<{t}, {a}, long>({t}*, {t}*, {t} const*, "
        "long const*, {t} const*, bool, long, long, long, long)",
        threads=64,
        one_block=True,
    ),
    "nll_loss_backward": _Kernel(
        "void {n}nll_loss_backward_reduce_cuda_kernel_2d<{t}, long>({t}*, {t} const*, long const*, "
        "{t} const*, {t} const*, bool, int, int, long, long)",
        threads=64,
        one_block=True,
    ),
    "nll_loss2d_forward": _Kernel("void {n}nll_loss2d_forward_kernel<{t}, {a}, int>({t}*, {t}*)"),
    "nll_loss2d_backward": _Kernel("void {n}nll_loss2d_backward_kernel<{t}>({t}*, {t} const*)"),
    # random numbers and dropout
    "native_dropout": _Kernel(
        "void {n}fused_dropout_kernel_vec<{t}, {a}, 1, 4, bool>(at::cuda::detail::TensorInfo<{t} "
        "const, unsigned int>, at::cuda::detail::TensorInfo<{t}, unsigned int>, "
        "at::cuda::detail::TensorInfo<bool, unsigned int>, unsigned int, {a}, at::PhiloxCudaState)",
        each=4,
        most_waves=8,
    ),
    "native_dropout_backward": _Kernel(
        "void at::native::vectorized_elementwise_kernel<4, at::native::masked_scale_kernel<"
        "bool, {t}, "
        "{a}>(at::Tensor&, at::Tensor const&, at::Tensor const&, {a})::{{lambda({t}, bool)#1}}, "
        "std::array<char*, 3ul> >(int)",
        threads=128,
        each=4,
    ),
    **{
        name: _Kernel(
            "void {n}distribution_elementwise_grid_stride_kernel<{a}, 4, at::native::templates::"
            f"cuda::{kind}<{{t}}, {{a}}, at::CUDAGeneratorImpl*>(at::TensorIteratorBase&)"
            "::{{lambda({a})#1}}>(long, at::PhiloxCudaState)",
            most_waves=8,
        )
        for name, kind in (
            ("normal_", "normal_and_transform"),
            ("uniform_", "uniform_and_transform"),
            ("bernoulli_", "bernoulli_kernel"),
            ("random_", "random_kernel"),
            ("exponential_", "exponential_kernel"),
            ("rand_like", "uniform_and_transform"),
            ("randn_like", "normal_and_transform"),
            ("rand", "uniform_and_transform"),
            ("randn", "normal_and_transform"),
            ("randint", "random_from_to_kernel"),
        )
    },
    # made from positions
    "arange": _Kernel(
        "void (anonymous namespace)::elementwise_kernel_with_index<int, "
        "at::native::arange_cuda_out("
        "c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{{lambda()#1}}::"
        "operator()() const::{{lambda()#4}}::operator()() const::{{lambda({t})#1}}>(int)",
        of=3,
        threads=64,
    ),
    "linspace": _Kernel("void (anonymous namespace)::elementwise_kernel_with_index<int, {t}>(int)"),
    "tril": _Kernel("void at::native::triu_tril_kernel<{t}, int, false, 2, false>(int)"),
    "triu": _Kernel("void at::native::triu_tril_kernel<{t}, int, true, 2, false>(int)"),
    "flip": _Kernel("void at::native::elementwise_kernel<128, 4, {n}flip_kernel_impl<{t}>>(int)"),
    "roll": _Kernel("void at::native::roll_cuda_kernel<{t}>({t} const*, {t}*, long, long, long)",
                    threads=512),
    "im2col": _Kernel("void at::native::im2col_kernel<{t}>(long, {t} const*)", threads=512),
    "col2im": _Kernel("void at::native::col2im_kernel<{t}, {a}>(long, {t} const*)", threads=512),
    "reflection_pad2d": _Kernel("void {n}reflection_pad2d_out_kernel<{t}>({t} const*, {t}*, long)"),
    "replication_pad2d": _Kernel("void {n}replication_pad_forward_kernel2d<{t}>(int)"),
    "repeat_interleave": _Kernel("void compute_cuda_kernel<long>(long const*, long const*, long*)"),
    "bucketize": _Kernel("void {n}searchsorted_cuda_kernel<{t}, long>(long*, {t} const*)",
                         threads=512),
    "searchsorted": _Kernel("void {n}searchsorted_cuda_kernel<{t}, long>(long*, {t} const*)",
                            threads=512),
    "_cdist_forward": _Kernel("void {n}cdist_kernel_cuda_impl<{t}, {n}dists<{t}>::two>({t}*)"),
}  # fmt: skip


@rule(RULES, _KERNELS)
def _single_kernel(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    kernel = _KERNELS[op.name.removeprefix("aten::")]
    own = tensor_at(op, kernel.of) or next(iter(op.tensors), None) or first_output(op)
    if own is None:
        return ()
    made = first_output(op) or max(op.tensors, key=lambda each: each.elements, default=own)
    name = kernel.name.format(n=_ANONYMOUS, t=cpp_name(own.dtype), a=opmath_name(own.dtype))
    blocks = ceil_div(made.elements, kernel.threads * kernel.each)
    if kernel.one_block:
        blocks = 1
    if kernel.most_waves:
        blocks = min(blocks, kernel.most_waves * setting.processors)
    return [Launch(name, blocks, kernel.threads, None, 32)]


# ------------------------------------------------------------------------------------- several


@rule(RULES, "_fft_r2c _fft_c2r _fft_c2c")
def _fft(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel along each dimension, three for sizes with large prime factors
    (Bluestein)."""
    source = required(op, 0)
    axes = op.value(1)
    listed = axes if isinstance(axes, tuple) and axes else (-1,)
    known = [int(as_number(axis, -1)) for axis in listed]
    dims = len(source.shape)
    sizes = [source.shape[axis] for axis in known if -dims <= axis < dims]
    kind = "r2c" if "r2c" in op.name else "c2r" if "c2r" in op.name else "c2c"
    library = "rocfft_transform" if setting.is_amd else "vector_fft"
    found: list[Launch] = []
    for size in sizes:
        name = f"void {library}<{size}, {kind}>(kernel_arguments_t<unsigned int>)"
        grid = ceil_div(source.elements // max(1, size), 4)
        rest = size
        for prime in (2, 3, 5, 7, 11, 13):
            while rest > 1 and rest % prime == 0:
                rest //= prime
        found += [Launch(name, grid, 64, None, 64)] * (1 if rest <= 1 else 3)
    return found


@rule(RULES, "torchvision::roi_align torchvision::_roi_align_backward")
def _roi_align(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = tensor_at(op, 0)
    t = cpp_name(source.dtype) if source is not None else "float"
    way = "backward" if "backward" in op.name else "forward"
    made = first_output(op) or source
    elements = made.elements if made is not None else 1
    name = (
        f"void vision::ops::(anonymous namespace)::roi_align_{way}_kernel_impl<{t}>(int, "
        f"{t} const*)"
    )
    grid = min(ceil_div(elements, 512), 4096)
    kernel = Launch(name, grid, 512)
    return [memset(elements), kernel] if way == "backward" else [kernel]


@rule(RULES, "torchvision::nms")
def _nms(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    boxes = tensor_at(op, 0)
    blocks = ceil_div(boxes.shape[0] if boxes is not None and boxes.shape else 1, 64)
    name = (
        "void vision::ops::(anonymous namespace)::nms_kernel_impl<float>(int, double, float const*)"
    )
    return [Launch(name, (blocks, blocks, 1), 64)]
