"""Kernels of operators that compute each element independently.

Note [Loops]: the loop is chosen as in `gpu_kernel` of ATen (native/cuda/CUDALoops.cuh). Tensors of
one type and dense layout take `vectorized_elementwise_kernel`; types other than the function's,
which are cast while loading, `unrolled_elementwise_kernel`; strided tensors `elementwise_kernel`,
or `elementwise_kernel_manual_unroll` on AMD since torch 2.7.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap.core import BOOL, FP32, DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    ceil_div,
    cpp_name,
    first_output,
    memcpy,
    opmath_name,
    required,
    rule,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp
from torchtraceap.ops import family_of

__all__ = ["RULES", "copy_loop", "loop", "pointwise", "strided_loop"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_THREADS = 128
_ELEMENTS = 4
"""Elements per thread before torch 2.7."""
_MOST_BYTES = 16
"""Bytes that a thread reads at once."""


# ------------------------------------------------------------------------------------- functions


_FAMILIES = ("elementwise", "activation", "dropout", "loss")

# Types of the lambdas of a dispatch macro, in the order of ATen's macros.
_FLOATING = ("float64", "float32", "float16", "bfloat16")
_ALL = ("uint8", "int8", "int32", "int64", "int16", "float64", "float32", "float16", "bfloat16")
_COMPLEX_TOO = ("float64", "float32", "complex128", "complex64", "float16", "bfloat16")
_ALL_COMPLEX_TOO = (*_ALL[:7], "complex128", "complex64", "float16", "bfloat16", "bool")

_ANONYMOUS = "at::native::(anonymous namespace)::"
_ITERATOR = "(at::TensorIteratorBase&)"
_UNARY: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "neg": (f"at::native::neg_kernel_cuda{_ITERATOR}", 2, _ALL),
    "silu": (f"{_ANONYMOUS}silu_kernel{_ITERATOR}", 1, _COMPLEX_TOO),
    "relu": (f"{_ANONYMOUS}relu_kernel{_ITERATOR}", 1, _FLOATING),
    "abs": (f"at::native::abs_kernel_cuda{_ITERATOR}", 2, _ALL),
    "sigmoid": (f"at::native::sigmoid_kernel_cuda{_ITERATOR}", 2, _FLOATING),
    "gelu": ("at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)", 2,
             _FLOATING),
    "gelu_backward": ("at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, "
                      "at::native::GeluType)", 2, _FLOATING),
    "silu_backward": (f"{_ANONYMOUS}silu_backward_kernel{_ITERATOR}", 1, _COMPLEX_TOO),
    "sigmoid_backward": (f"at::native::sigmoid_backward_kernel_cuda{_ITERATOR}", 2, _FLOATING),
    "tanh_backward": (f"at::native::tanh_backward_kernel_cuda{_ITERATOR}", 2, _FLOATING),
    "hardswish": (f"{_ANONYMOUS}hardswish_kernel(at::TensorIterator&)", 1, _FLOATING),
    "hardswish_backward": (f"{_ANONYMOUS}hardswish_backward_kernel(at::TensorIterator&)", 1,
                           _FLOATING),
    "mse_loss": (f"at::native::mse_kernel_cuda{_ITERATOR}", 1, _FLOATING),
    "mse_loss_backward": ("at::native::mse_backward_cuda_kernel(at::TensorIterator&, "
                          "c10::Scalar const&)", 1, _FLOATING),
    "clamp": (f"{_ANONYMOUS}launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, "
              "c10::Scalar, at::native::detail::ClampLimits)", 1, _ALL),
    "addcmul": ("at::native::addcmul_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)", 2,
                _ALL),
    "addcdiv": ("at::native::addcdiv_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)", 2,
                _ALL),
    "where": (f"{_ANONYMOUS}where_kernel_impl(at::TensorIterator&)", 1, _ALL_COMPLEX_TOO),
    "masked_fill": (f"{_ANONYMOUS}masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)", 1,
                    _ALL_COMPLEX_TOO),
}  # fmt: skip
"""Function name, nesting of its lambdas, and order of its types."""
_SAME_LAMBDA = {"clamp_min": "clamp", "clamp_max": "clamp"}


def _promoted_dtype(operands: Sequence[TensorInfo]) -> DType:
    """Return the promoted type; tensors without dimensions count only among themselves."""
    ranked = [each for each in operands if each.shape] or list(operands)
    best = max(ranked, key=lambda each: (each.dtype.rank, each.dtype.size))
    names = {each.dtype.name for each in ranked}
    if {"float16", "bfloat16"} <= names and best.dtype.size == 2:
        return FP32
    higher = max(operands, key=lambda each: each.dtype.rank)
    return higher.dtype if higher.dtype.rank > best.dtype.rank else best.dtype


def _functor_of(
    op: LaunchingOp, operands: Sequence[TensorInfo]
) -> tuple[str, tuple[DType, ...], int]:
    """Return the function that computes an element of an operator.

    Returns:
        Its name, the types of its inputs and, last, its output, and how many operands it reads.
    """
    base = op.name.removeprefix("aten::").rstrip("_")
    base = _SAME_LAMBDA.get(base, base)
    common = _promoted_dtype([each for each in operands if each.dtype != BOOL] or operands)
    if base == "div" and common.rank < 2:
        common = FP32
    t, wide = cpp_name(common), opmath_name(common)
    two = len(operands) > 1
    same = (common,) * 3 if two else (common,) * 2
    if base in ("add", "sub"):
        on_self = "" if two else "OnSelf"
        return f"at::native::CUDAFunctor{on_self}_add<{t}>", same, 2
    if base in ("mul", "div"):
        # Division by a number multiplies, too.
        kind = "Div" if two and base == "div" else "Mul"
        side = "Binary" if two else "AUnary" if base == "mul" else "BUnary"
        inner = f"at::native::binary_internal::{kind}Functor<{wide}>"
        return f"at::native::{side}Functor<{t}, {t}, {t}, {inner} >", same, 2
    if base in ("eq", "ne"):
        kind = "Binary" if two else "AUnary"
        name = f"at::native::{kind}Functor<{t}, {t}, bool, {_ANONYMOUS}CompareEqFunctor<{t}> >"
        return name, (*same[:-1], BOOL), 2
    if base in ("lt", "le", "gt", "ge"):
        name = f"{_ANONYMOUS}CompareFunctor<{t}>"
        if not two:
            name = (
                f"at::native::compare_scalar_kernel<{t}>(at::TensorIteratorBase&, "
                f"{_ANONYMOUS}OpType, {t})::{{lambda({t})#1}}"
            )
        return name, (*same[:-1], BOOL), 2
    if base.startswith(("bitwise_", "logical_")):
        makes = BOOL if base.startswith("logical_") else common
        words = "".join(word.capitalize() for word in base.split("_"))
        name = f"at::native::{words}Functor<{t}>"
        if two:
            name = f"at::native::BinaryFunctor<{t}, {t}, {cpp_name(makes)}, {name} >"
        return name, (*same[:-1], makes), len(operands)
    if base in ("threshold", "threshold_backward"):
        function = f"{_ANONYMOUS}threshold_kernel_impl<{t}>(at::TensorIteratorBase&, {t}, {t})"
        inner = f"{function}::{{lambda({t}, {t})#1}}"
        return f"at::native::BinaryFunctor<{t}, {t}, {t}, {inner}>", same, 2
    if base == "pow" and not two:
        name = f"{_ANONYMOUS}pow_tensor_scalar_kernel_impl<{t}, {t}>(at::TensorIteratorBase&, {t})"
        return f"{name}::{{lambda({t})#1}}", same, 1
    function, depth, order = _UNARY.get(
        base, (f"at::native::{base}_kernel_cuda{_ITERATOR}", 2, _FLOATING)
    )
    place = order.index(common.name) + 1 if common.name in order else 1
    types = tuple(common if each.dtype != BOOL else BOOL for each in operands)
    of = ", ".join(map(cpp_name, types))
    outer = f"{{lambda()#{depth}}}::operator()() const::{{lambda()#{place}}}::operator()() const"
    return f"{function}::{outer}::{{lambda({of})#1}}", (*types, common), len(operands)


# ------------------------------------------------------------------------------------- operators


def pointwise(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel over all elements; nothing for an operator not known as pointwise."""
    operands = [each for each in op.tensors if not _is_number(each, op)]
    if not op.name.startswith("aten::") or family_of(op.name) not in _FAMILIES or not operands:
        return ()
    functor, computes, count = _functor_of(op, operands)
    made = first_output(op)
    if made is None and op.name.endswith("_"):
        made = operands[0]
    elif made is None:
        made = _broadcast(operands, computes[-1])
    return [loop(functor, computes, made, operands[:count], setting)]


def _is_number(each: TensorInfo, op: LaunchingOp) -> bool:
    """Return whether a zero-dimensional tensor stands for a Python number."""
    if each.shape or all(not other.shape for other in op.tensors):
        return len(op.tensors) > 1 and each is not op.tensors[0] and not any(
            other.shape for other in op.tensors
        ) and each.dtype.name == "int64"  # fmt: skip
    return each.dtype.name in ("float64", "int64") and each is not op.tensors[0]


def _broadcast(operands: Sequence[TensorInfo], dtype: DType) -> TensorInfo:
    """Return the broadcast result, dense in the order of the first operand of its shape."""
    longest = max(len(each.shape) for each in operands)
    padded = [(1,) * (longest - len(each.shape)) + each.shape for each in operands]
    shape = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
    like = next((each.strides for each in operands if each.shape == shape), range(longest, 0, -1))
    strides, step = [0] * longest, 1
    for axis in sorted(range(longest), key=lambda axis: (like[axis], -axis)):
        strides[axis] = step
        step *= max(1, shape[axis])
    return TensorInfo(shape, dtype, tuple(strides), -1)


# ------------------------------------------------------------------------------------- loops


def _is_one_run(tensors: Sequence[TensorInfo], shape: tuple[int, ...]) -> bool:
    """Return whether all tensors have the same dense layout."""
    strides = []
    for each in tensors:
        own = [0] * len(shape)  # broadcast dimensions keep a stride of 0
        sizes = list(zip(each.shape, each.strides, strict=True))[-len(shape) :] if shape else []
        for axis, (size, stride) in enumerate(reversed(sizes), start=1):
            own[-axis] = 0 if size == 1 and shape[-axis] != 1 else stride
        strides.append(own)
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    if any(len({own[axis] for own in strides}) > 1 for axis in axes):
        return False
    expected = 1
    for axis in sorted(axes, key=lambda axis: strides[0][axis]):
        if strides[0][axis] != expected:
            return False
        expected *= shape[axis]
    return True


def loop(
    functor: str,
    computes: tuple[DType, ...],
    made: TensorInfo,
    inputs: Sequence[TensorInfo],
    setting: Setting,
) -> Launch:
    """Return the launch of an elementwise loop; see Note [Loops].

    Args:
        functor: Name of the function of each element.
        computes: Types that it takes and, last, gives.
        made: The output.
        inputs: Inputs in the order of the function's arguments.
        setting: Device and build of torch.
    """
    everything = [made, *inputs]
    casts = any(
        each.dtype != wanted for each, wanted in zip([*inputs, made], computes, strict=False)
    )
    moved = sum(each.elements * each.dtype.size for each in everything)
    if not _is_one_run(everything, made.shape):
        return strided_loop(functor, computes[-1], made.elements, moved, setting, casts=casts)
    count, threads, per_thread = len(everything), _THREADS, _ELEMENTS
    array = f"at::detail::Array<char*, {count}>"
    if setting.torch_from(2, 5):
        array = f"std::array<char*, {count}ul>"
    if casts:
        offsets = (
            f"TrivialOffsetCalculator<{count - 1}, unsigned int>, "
            "TrivialOffsetCalculator<1, unsigned int>, "
            f"at::native::memory::LoadWithCast<{count - 1}>, at::native::memory::StoreWithCast<1>"
        )
        elements = f"{_ELEMENTS}, " if setting.torch_from(2, 5) else ""
        template = f"unrolled_elementwise_kernel<{functor}, {array}, {elements}{offsets} >"
        arguments = f"int, {functor}, {array}, {offsets}"
    else:
        narrowest = min(each.dtype.size for each in everything)
        widest_read = 4
        if setting.torch_from(2, 7):
            # Each thread moves 16 bytes of the narrowest type; AMD's blocks are twice as large.
            per_thread = max(_ELEMENTS, min(16 if narrowest == 1 else 8, _MOST_BYTES // narrowest))
            threads = 256 if setting.is_amd else _THREADS
            if narrowest <= 2 and (setting.is_amd or setting.generation >= 9):
                widest_read = 8
        width = max(2, min(widest_read, per_thread, _MOST_BYTES // max(1, narrowest)))
        template = f"vectorized_elementwise_kernel<{width}, {functor}, {array} >"
        arguments = f"int, {functor}, {array}"
    grid = ceil_div(made.elements, per_thread * threads)
    return Launch(f"void at::native::{template}({arguments})", grid, threads, moved, registers=24)


def strided_loop(
    functor: str,
    dtype: DType,
    elements: int,
    moved: float,
    setting: Setting,
    *,
    casts: bool = False,
) -> Launch:
    """Return a loop over strided tensors that gives elements of one type; see `loop`."""
    kind = "gpu_kernel_impl" if casts else "gpu_kernel_impl_nocast"
    narrow = dtype.size < 4
    per_thread, template, argument = 4 if narrow or casts else 2, "elementwise_kernel", "int"
    if setting.is_amd and setting.torch_from(2, 7) and not casts:
        per_thread, argument = 8 if narrow else 4, "int, bool"
        template = "elementwise_kernel_manual_unroll"
    lambda_ = (
        f"at::native::{kind}<{functor} >(at::TensorIteratorBase&, {functor} const&)"
        f"::{{lambda({argument})#1}}"
    )
    name = f"void at::native::{template}<{_THREADS}, {per_thread}, {lambda_}>(int, {lambda_})"
    grid = ceil_div(elements, per_thread * _THREADS)
    return Launch(name, grid, _THREADS, moved, registers=18)


# ------------------------------------------------------------------------------------- copies


@rule(RULES, "copy_")
def _copy(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a memcpy between tensors of the same type and layout, else a kernel."""
    to, source = required(op, 0), required(op, 1)
    if to.dtype == source.dtype and _is_one_run([to, source], to.shape):
        return [memcpy(to.elements * to.dtype.size)]
    return [copy_loop(to, source, setting)]


_COPY_PLACES = {
    "uint8": 1, "int8": 2, "int32": 3, "int64": 4, "int16": 5, "float64": 6, "float32": 7,
    "complex128": 8, "complex64": 9, "float16": 10, "bool": 11, "bfloat16": 12,
}  # fmt: skip


def copy_loop(to: TensorInfo, source: TensorInfo, setting: Setting) -> Launch:
    """Return the kernel that copies a tensor to another type or layout."""
    if (
        setting.torch_from(2, 7)
        and to.dtype.name in ("bfloat16", "float16")
        and source.dtype == FP32
    ):
        # Only casts of fp32 to half have functions of their own.
        function = f"at::native::{to.dtype.name}_copy_kernel_cuda(at::TensorIteratorBase&)"
        return loop(
            f"{function}::{{lambda(float)#1}}", (source.dtype, to.dtype), to, [source], setting
        )
    place = _COPY_PLACES.get(to.dtype.name, 1)
    name = (
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
        f"const::{{lambda()#{place}}}::operator()() const::{{lambda({cpp_name(to.dtype)})#1}}"
    )
    return loop(name, (to.dtype, to.dtype), to, [source], setting)


@rule(RULES, "fill")
def _fill(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a kernel that writes one value."""
    to = required(op, 0)
    functor = f"at::native::FillFunctor<{cpp_name(to.dtype)}>"
    return [loop(functor, (to.dtype,), to, [], setting)]
