"""Kernels of operators that compute each element independently.

Note [Loops]: the loop is chosen as in `gpu_kernel` of ATen (native/cuda/CUDALoops.cuh). Tensors of
one type and dense layout take `vectorized_elementwise_kernel`; types other than the function's,
which are cast while loading, `unrolled_elementwise_kernel`; strided tensors `elementwise_kernel`,
or `elementwise_kernel_manual_unroll` on AMD since torch 2.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtraceap.core.dtypes import DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.functors import Functor, functor_of, is_pointwise
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Grid,
    Launch,
    Setting,
    ceil_div,
    cpp_name,
    first_output,
    memcpy,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp

__all__ = ["copy", "copy_loop", "fill", "loop", "pointwise", "strided_loop"]

_THREADS = 128
_ELEMENTS = 4
"""Elements per thread before torch 2.7."""
_MOST_BYTES = 16
"""Bytes that a thread reads at once."""


def pointwise(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel over all elements; nothing for an operator not known as pointwise."""
    operands = [each for each in op.tensors if not _is_number(each, op)]
    if not is_pointwise(op.name) or not operands:
        return ()
    functor = functor_of(op, operands)
    made = _made(op, operands, functor)
    read = operands[: functor.arguments] if functor.arguments else operands
    return [loop(functor.name, functor.computes, made, read, setting)]


def _is_number(each: TensorInfo, op: LaunchingOp) -> bool:
    """Return whether a zero-dimensional tensor stands for a Python number."""
    if each.shape or all(not other.shape for other in op.tensors):
        return len(op.tensors) > 1 and each is not op.tensors[0] and not any(
            other.shape for other in op.tensors
        ) and each.dtype.name == "int64"  # fmt: skip
    return each.dtype.name in ("float64", "int64") and each is not op.tensors[0]


def _made(op: LaunchingOp, operands: Sequence[TensorInfo], functor: Functor) -> TensorInfo:
    """Return the output: as recorded, else broadcast and laid out as the first operand of that
    shape."""
    known = first_output(op)
    if known is not None:
        return known
    if op.name.endswith("_"):
        return operands[0]
    shape = _broadcast([each.shape for each in operands])
    like = next((each for each in operands if each.shape == shape), None)
    strides = _dense(shape, like.strides if like is not None else tuple(range(len(shape), 0, -1)))
    return TensorInfo(shape, strides, functor.makes, -1)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


def _dense(shape: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    """Return dense strides with the dimensions in the order of other strides."""
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (like[axis], -axis)):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def is_one_run(tensors: Sequence[TensorInfo], shape: tuple[int, ...]) -> bool:
    """Return whether all tensors have the same dense layout."""
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    strides = [_strides_of(each, shape) for each in tensors]
    for axis in axes:
        if len({each[axis] for each in strides}) > 1:
            return False
    expected = 1
    for axis in sorted(axes, key=lambda axis: strides[0][axis]):
        if strides[0][axis] != expected:
            return False
        expected *= shape[axis]
    return True


def _strides_of(each: TensorInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in the dimensions of a larger shape, 0 where broadcast."""
    found = [0] * len(shape)
    own = list(zip(each.shape, each.strides, strict=True))[-len(shape) :] if shape else []
    for axis, (size, stride) in enumerate(reversed(own), start=1):
        found[-axis] = 0 if size == 1 and shape[-axis] != 1 else stride
    return tuple(found)


# ------------------------------------------------------------------------------------- loops


@dataclass(frozen=True, slots=True)
class _Loop:
    """A kernel template and the elements of a block."""

    template: str
    arguments: str
    elements: int
    threads: int = _THREADS
    registers: int = 24


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
    shape = made.shape
    everything = [made, *inputs]
    casts = any(
        each.dtype != wanted for each, wanted in zip([*inputs, made], computes, strict=False)
    )
    arrays = len(everything)
    if not is_one_run(everything, shape):
        found = _strided(functor, computes, casts, setting)
    elif casts:
        found = _casting(functor, arrays, setting)
    else:
        found = _vectorized(functor, everything, setting)
    moved = sum(each.elements * each.dtype.size for each in everything)
    grid: Grid = (ceil_div(made.elements, found.elements), 1, 1)
    name = f"void at::native::{found.template}({found.arguments})"
    return Launch(name, grid, (found.threads, 1, 1), moved, found.registers)


def _array(count: int, setting: Setting) -> str:
    kind = "std::array<char*, {}ul>" if setting.torch_from(2, 5) else "at::detail::Array<char*, {}>"
    return kind.format(count)


def _vectorized(functor: str, everything: Sequence[TensorInfo], setting: Setting) -> _Loop:
    array = _array(len(everything), setting)
    narrowest = min(each.dtype.size for each in everything)
    elements, threads = _ELEMENTS, _THREADS
    is_new = setting.torch_from(2, 7)
    if is_new:
        # Each thread moves 16 bytes of the narrowest type; AMD's blocks are twice as large.
        elements = max(_ELEMENTS, min(16 if narrowest == 1 else 8, _MOST_BYTES // narrowest))
        threads = 256 if setting.is_amd else _THREADS
    widest_read = (
        8 if setting.torch_from(2, 7) and (setting.is_amd or setting.generation >= 9) else 4
    )
    width = min(widest_read if narrowest <= 2 else 4, elements, _MOST_BYTES // max(1, narrowest))
    width = max(2, width)
    template = f"vectorized_elementwise_kernel<{width}, {functor}, {array} >"
    return _Loop(template, f"int, {functor}, {array}", elements * threads, threads)


def _casting(functor: str, arrays: int, setting: Setting) -> _Loop:
    array = _array(arrays, setting)
    offsets = (
        f"TrivialOffsetCalculator<{arrays - 1}, unsigned int>, "
        "TrivialOffsetCalculator<1, unsigned int>, "
        f"at::native::memory::LoadWithCast<{arrays - 1}>, at::native::memory::StoreWithCast<1>"
    )
    elements = f"{_ELEMENTS}, " if setting.torch_from(2, 5) else ""
    template = f"unrolled_elementwise_kernel<{functor}, {array}, {elements}{offsets} >"
    return _Loop(template, f"int, {functor}, {array}, {offsets}", _ELEMENTS * _THREADS)


def strided_loop(
    functor: str, dtype: DType, elements: int, moved: float, setting: Setting
) -> Launch:
    """Return a strided loop, given its function, type and bytes."""
    found = _strided(functor, (dtype,), False, setting)
    name = f"void at::native::{found.template}({found.arguments})"
    grid = (ceil_div(elements, found.elements), 1, 1)
    return Launch(name, grid, (found.threads, 1, 1), moved, found.registers)


def _strided(functor: str, computes: tuple[DType, ...], casts: bool, setting: Setting) -> _Loop:
    kind = "gpu_kernel_impl" if casts else "gpu_kernel_impl_nocast"
    narrow = computes[-1].size < 4
    elements, template, argument = 4 if narrow or casts else 2, "elementwise_kernel", "int"
    if setting.is_amd and setting.torch_from(2, 7) and not casts:
        elements, argument = 8 if narrow else 4, "int, bool"
        template = "elementwise_kernel_manual_unroll"
    lambda_ = (
        f"at::native::{kind}<{functor} >(at::TensorIteratorBase&, {functor} const&)"
        f"::{{lambda({argument})#1}}"
    )
    whole = f"{template}<{_THREADS}, {elements}, {lambda_}>"
    return _Loop(whole, f"int, {lambda_}", elements * _THREADS, registers=18)


# ------------------------------------------------------------------------------------- copies


def copy(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a memcpy between tensors of the same type and layout, else a kernel."""
    to, source = tensor_at(op, 0), tensor_at(op, 1)
    if to is None or source is None:
        return ()
    if to.dtype == source.dtype and is_one_run([to, source], to.shape):
        return [memcpy(to.elements * to.dtype.size)]
    return [copy_loop(to, source, setting)]


def copy_loop(to: TensorInfo, source: TensorInfo, setting: Setting) -> Launch:
    """Return the kernel that copies a tensor to another type or layout."""
    functor, computes = _copying(to.dtype, source.dtype, setting)
    return loop(functor, computes, to, [source], setting)


_FROM_FLOAT = {"bfloat16": "bfloat16", "float16": "float16"}
_COPY_PLACES = {
    "uint8": 1, "int8": 2, "int32": 3, "int64": 4, "int16": 5, "float64": 6, "float32": 7,
    "complex128": 8, "complex64": 9, "float16": 10, "bool": 11, "bfloat16": 12,
}  # fmt: skip


def _copying(to: DType, source: DType, setting: Setting) -> tuple[str, tuple[DType, ...]]:
    """Return the copy function and its types; only casts of fp32 to half have their own."""
    if setting.torch_from(2, 7) and to.name in _FROM_FLOAT and source.name == "float32":
        name = f"at::native::{_FROM_FLOAT[to.name]}_copy_kernel_cuda(at::TensorIteratorBase&)"
        return f"{name}::{{lambda(float)#1}}", (source, to)
    place = _COPY_PLACES.get(to.name, 1)
    name = (
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
        f"const::{{lambda()#{place}}}::operator()() const::{{lambda({cpp_name(to)})#1}}"
    )
    return name, (to, to)


def fill(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a kernel that writes one value."""
    to = tensor_at(op, 0)
    if to is None:
        return ()
    functor = f"at::native::FillFunctor<{cpp_name(to.dtype)}>"
    return [loop(functor, (to.dtype,), to, [], setting)]
