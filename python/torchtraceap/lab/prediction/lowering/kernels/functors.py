"""Names and compute types of the functions that ATen applies to each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtraceap.core.dtypes import BOOL, DType, parse_dtype
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import cpp_name, opmath_name
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp
from torchtraceap.ops.models.families import family_of

__all__ = ["Functor", "functor_of", "is_pointwise", "promoted_dtype"]


@dataclass(frozen=True, slots=True)
class Functor:
    """A function of one element of each operand."""

    name: str
    computes: tuple[DType, ...]
    """Input types followed by the output type."""
    makes: DType
    """Output type of the operator."""
    arguments: int = 0
    """Number of operands read; 0 for all."""


_FAMILIES = ("elementwise", "activation", "dropout", "loss")
_FLOAT32 = parse_dtype("float32")

_COMPARE = {"eq": "Eq", "ne": "Eq"}
_ORDER = ("lt", "le", "gt", "ge")

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


def is_pointwise(name: str) -> bool:
    """Return whether an operator of ATen computes each element independently."""
    return name.startswith("aten::") and family_of(name) in _FAMILIES


def promoted_dtype(operands: Sequence[TensorInfo]) -> DType:
    """Return the promoted type; tensors without dimensions count only among themselves."""
    with_dims = [each for each in operands if each.shape]
    ranked = with_dims or list(operands)
    best = max(ranked, key=lambda each: (each.dtype.rank, each.dtype.size))
    names = {each.dtype.name for each in ranked}
    if {"float16", "bfloat16"} <= names and best.dtype.size == 2 and _FLOAT32 is not None:
        return _FLOAT32
    higher = max(operands, key=lambda each: each.dtype.rank)
    return higher.dtype if higher.dtype.rank > best.dtype.rank else best.dtype


def functor_of(op: LaunchingOp, operands: Sequence[TensorInfo]) -> Functor:
    """Return the function that computes an element of an operator.

    Args:
        op: An operator that computes each element by itself.
        operands: Its tensors, without those that stand for a number.
    """
    base = op.name.removeprefix("aten::").rstrip("_")
    base = _SAME_LAMBDA.get(base, base)
    data = [each for each in operands if each.dtype != BOOL] or list(operands)
    common = promoted_dtype(data)
    if base in ("add", "sub", "mul", "div") and common.rank < 2 and base == "div":
        common = _FLOAT32 or common
    t, wide = cpp_name(common), opmath_name(common)
    two = len(operands) > 1
    same = (common,) * 3 if two else (common,) * 2
    if base in ("add", "sub"):
        return Functor(
            f"at::native::CUDAFunctor{'' if two else 'OnSelf'}_add<{t}>", same, common, 2
        )
    if base in ("mul", "div"):
        return Functor(_arithmetic(base, t, wide, op, two=two), same, common, 2)
    if base in _COMPARE:
        kind = "Binary" if two else "AUnary"
        name = f"at::native::{kind}Functor<{t}, {t}, bool, {_ANONYMOUS}CompareEqFunctor<{t}> >"
        return Functor(name, (*same[:-1], BOOL), BOOL, 2)
    if base in _ORDER:
        name = f"{_ANONYMOUS}CompareFunctor<{t}>" if two else _compare_number(t)
        return Functor(name, (*same[:-1], BOOL), BOOL, 2)
    if base.startswith("bitwise_") or base.startswith("logical_"):
        return _bits(base, t, common, two=two)
    if base in ("threshold", "threshold_backward"):
        function = f"{_ANONYMOUS}threshold_kernel_impl<{t}>(at::TensorIteratorBase&, {t}, {t})"
        inner = f"{function}::{{lambda({t}, {t})#1}}"
        return Functor(f"at::native::BinaryFunctor<{t}, {t}, {t}, {inner}>", same, common, 2)
    if base == "pow" and not two:
        return Functor(_power(t), same, common)
    return _with_lambda(base, t, common, operands)


def _arithmetic(base: str, t: str, wide: str, op: LaunchingOp, *, two: bool) -> str:
    if two:
        kind = "Mul" if base == "mul" else "Div"
        inner = f"at::native::binary_internal::{kind}Functor<{wide}>"
        return f"at::native::BinaryFunctor<{t}, {t}, {t}, {inner} >"
    inner = f"at::native::binary_internal::MulFunctor<{wide}>"  # division by a number, too
    side = "A" if base == "mul" else "B"
    return f"at::native::{side}UnaryFunctor<{t}, {t}, {t}, {inner} >"


def _compare_number(t: str) -> str:
    order = f"{_ANONYMOUS}OpType"
    return (
        f"at::native::compare_scalar_kernel<{t}>(at::TensorIteratorBase&, {order}, {t})"
        f"::{{lambda({t})#1}}"
    )


def _power(t: str) -> str:
    return (
        f"{_ANONYMOUS}pow_tensor_scalar_kernel_impl<{t}, {t}>(at::TensorIteratorBase&, {t})"
        f"::{{lambda({t})#1}}"
    )


def _bits(base: str, t: str, common: DType, *, two: bool) -> Functor:
    makes = BOOL if base.startswith("logical_") else common
    words = "".join(word.capitalize() for word in base.split("_"))
    inner = f"at::native::{words}Functor<{t}>"
    last = cpp_name(makes)
    if two:
        name = f"at::native::BinaryFunctor<{t}, {t}, {last}, {inner} >"
        return Functor(name, (common, common, makes), makes)
    return Functor(inner, (common, makes), makes)


def _with_lambda(base: str, t: str, common: DType, operands: Sequence[TensorInfo]) -> Functor:
    function, depth, order = _UNARY.get(
        base, (f"at::native::{base}_kernel_cuda{_ITERATOR}", 2, _FLOATING)
    )
    place = order.index(common.name) + 1 if common.name in order else 1
    types = tuple(common if each.dtype != BOOL else BOOL for each in operands)
    of = ", ".join(map(cpp_name, types))
    outer = f"{{lambda()#{depth}}}::operator()() const::{{lambda()#{place}}}::operator()() const"
    return Functor(f"{function}::{outer}::{{lambda({of})#1}}", (*types, common), common)
