"""Kernels of the `_foreach_*` and `_fused_*` operators that optimizers call.

Note [Chunks]: `multi_tensor_apply` of ATen (native/cuda/MultiTensorApply.cuh) cuts tensors into
chunks of 65,536 elements, one for each block, and launches when a kernel's arguments are full:
after 320 chunks, or as many tensors as fit for the number of lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    UnknownArgumentError,
    bytes_of,
    ceil_div,
    cpp_name,
    opmath_name,
    rule,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES", "launch_blocks"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_CHUNK, _MOST_CHUNKS = 65_536, 320
_MOST_TENSORS = (110, 64, 48, 36, 30)
_MOST_TENSORS_WITH_SCALARS = (96, 64, 48, 36, 30)
_SPACE = "at::native::(anonymous namespace)::"


def launch_blocks(sizes: Sequence[int], lists: int, *, scalars: bool = False) -> list[int]:
    """Return the blocks of each launch; see Note [Chunks].

    Args:
        sizes: Elements of each tensor of one list.
        lists: Number of lists that a kernel walks over at once.
        scalars: True if the kernel also takes a number for each tensor.
    """
    table = _MOST_TENSORS_WITH_SCALARS if scalars else _MOST_TENSORS
    most = table[min(lists, len(table)) - 1]
    found: list[int] = []
    tensors = blocks = 0
    for size in (size for size in sizes if size):
        tensors += 1
        left = ceil_div(size, _CHUNK)
        while left:
            taken = min(left, _MOST_CHUNKS - blocks)
            blocks, left = blocks + taken, left - taken
            if blocks == _MOST_CHUNKS or (not left and tensors == most):
                found.append(blocks)
                blocks, tensors = 0, 0 if not left else 1
    return [*found, blocks] if blocks else found


def _lists(op: LaunchingOp) -> list[tuple[TensorInfo, ...]]:
    found = []
    for value in op.inputs:
        if isinstance(value, tuple) and value:
            tensors = tuple(each for each in value if isinstance(each, TensorInfo))
            if len(tensors) == len(value):
                found.append(tensors)
    if not found:
        raise UnknownArgumentError
    return found


_BINARY = {"add": "std::plus", "sub": "std::minus", "mul": "std::multiplies", "div": "std::divides",
           "maximum": "maximum", "minimum": "minimum", "clamp_min": "maximum",
           "clamp_max": "minimum", "pow": "power_functor"}  # fmt: skip
_POINTWISE = {"addcmul": "std::multiplies", "addcdiv": "std::divides"}
_FOREACH = """abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min copy cos cosh div erf
erfc exp expm1 floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal
round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc zero"""


@rule(RULES, (f"_foreach_{name}{end}" for name in _FOREACH.split() for end in ("", "_")))
def _foreach(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    lists = _lists(op)
    base = op.name.removeprefix("aten::_foreach_")
    in_place = base.endswith("_") or base.startswith("copy")
    base = base.rstrip("_")
    same = [each for each in lists if len(each) == len(lists[0])]
    scalars = len(op.inputs) > len(lists) and isinstance(op.inputs[-1], tuple)
    walked = len(same) + (0 if in_place else 1)
    is_alike = all(
        one.strides == other.strides and one.shape == other.shape
        for each in same
        for one, other in zip(each, lists[0], strict=True)
    )
    if len({each.dtype for each in lists[0]}) > 1 or not is_alike:
        name = f"elementwise_kernel<aten::{base}>"
        return [
            Launch(name, ceil_div(each.elements, 512), 128, 3 * bytes_of(each)) for each in lists[0]
        ]
    t, a = cpp_name(lists[0][0].dtype), opmath_name(lists[0][0].dtype)
    name = _kernel_name(base, len(same), walked, t, a, scalars=scalars)
    sizes = [each.elements for each in lists[0]]
    moved = (walked + 1) * bytes_of(*lists[0])
    return _launches(name, sizes, walked, moved, scalars=scalars)


def _kernel_name(base: str, given: int, walked: int, t: str, a: str, *, scalars: bool) -> str:
    kind = "ScalarList" if scalars else ""
    if base in _POINTWISE:
        functor = f"PointwiseOp{'ScalarList' if scalars else 'Scalar'}Functor<{t}, {walked}, 3, 0>"
        what = f"{_POINTWISE[base]}<{a}>"
    elif base in _BINARY and given > 1:
        functor = f"BinaryOpListAlphaFunctor<{t}, {walked}, 2, {0 if walked == 2 else 2}>"
        what = f"{_BINARY[base]}<{a}>"
    elif base in _BINARY:
        functor = (
            f"BinaryOpScalar{'List' if scalars else ''}Functor<{t}, {walked}, 1, {walked - 1}>"
        )
        what = f"{_BINARY[base]}<{a}>"
    elif base == "lerp":
        functor = f"TernaryOpScalarFunctor<{t}, {walked}, 2, 0>"
        what = f"at::native::LerpFunctor<{a}>"
    elif base == "copy":
        functor, what = f"CopyFunctor<{t}, {t}, {walked}, 1, 1>", f"{_SPACE}Copy<{a}, {t}>"
    elif base == "zero":
        functor, what = f"ZeroFunctor<{t}, 1, 1, 0>", ""
    else:
        functor = f"UnaryOpFunctor<{t}, {walked}, 1, {walked - 1}>"
        what = f"at::native::{base.capitalize()}<{a}>"
    rest = f", {what}, {a}" if what and not scalars else f", {what}" if what else ""
    metadata = f"{_SPACE}TensorList{kind}Metadata<{f'{a}, ' if scalars else ''}{walked}>"
    given_to = f"{metadata}, {_SPACE}{functor}{rest}"
    return f"void {_SPACE}multi_tensor_apply_kernel<{given_to} >({given_to})"


def _launches(
    name: str, sizes: Sequence[int], walked: int, moved: float, *, scalars: bool
) -> list[Launch]:
    blocks = launch_blocks(sizes, walked, scalars=scalars)
    whole = max(1, sum(blocks))
    return [Launch(name, n, 512, moved * n / whole, 40) for n in blocks]


@rule(RULES, "_foreach_norm _foreach_norm_ _foreach_max _foreach_max_")
def _norms(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch partial norms, then one block for each tensor."""
    tensors = _lists(op)[0]
    t, a = cpp_name(tensors[0].dtype), opmath_name(tensors[0].dtype)
    metadata = f"{_SPACE}TensorListMetadata<1>"
    functor = f"{_SPACE}LpNormFunctor<{t}, (at::native::NormType)1, {t}, 1, 1, 0>"
    name = f"void {_SPACE}multi_tensor_apply_kernel<{metadata}, {functor}, {a}*, int>({metadata})"
    last = f"void at::native::lpnorm_cleanup<{t}, (at::native::NormType)1, {t}, {a}>({a} const*)"
    sizes = [each.elements for each in tensors]
    moved = bytes_of(*tensors)
    clean = Launch(last, len(tensors), 512, 1280.0 * len(tensors), 24)
    return [*_launches(name, sizes, 1, moved, scalars=False), clean]


@rule(RULES, "_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_")
def _fused(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel for the update of as many tensors as fit, with gradients and state."""
    lists = _lists(op)
    same = [each for each in lists if [t.shape for t in each] == [t.shape for t in lists[0]]]
    t = cpp_name(lists[0][0].dtype)
    walked = max(2, min(len(same), len(_MOST_TENSORS)))
    base = op.name.removeprefix("aten::_fused_").rstrip("_")
    mode = "ADAMW" if base == "adamw" else "ORIGINAL"
    metadata = f"{_SPACE}FusedOptimizerTensorListMetadata<{walked}>"
    if base == "sgd":
        functor = f"{_SPACE}FusedSgdMathFunctor<{t}, {walked}>"
    else:
        functor = (
            f"{_SPACE}FusedAdamMathFunctor<{t}, {t}, {walked}, (at::native::ADAM_MODE){mode}, "
            "false>"
        )
    name = (
        f"void {_SPACE}multi_tensor_apply_kernel<{metadata}, {functor}, float const*>({metadata})"
    )
    sizes = [each.elements for each in lists[0]]
    moved = (2.0 * walked - 1) * bytes_of(*lists[0])
    return _launches(name, sizes, walked, moved, scalars=True)
