"""Kernels of reductions over dimensions of a tensor, and scans.

Note [Shape of a reduction]: blocks are shaped as in `setReduceConfig` of ATen
(native/cuda/Reduce.cuh). Threads run along the contiguous dimension; for few outputs with long sums
several blocks share an output and synchronize by counters that a memset clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torchtraceap.core.dtypes import INT64, DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo, Value
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    bytes_of,
    ceil_div,
    cpp_name,
    memset,
    opmath_name,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp

__all__ = ["RULES", "reduction_shape"]

_MOST_THREADS = 512
_THREADS_OF_PROCESSOR = 2048
_MOST_AT_ONCE = 4
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""Values per thread before blocks share an output."""
_LONG_ENOUGH_FOR_VECTORS = 128


@dataclass(frozen=True, slots=True)
class _Shape:
    """Grid and block of a reduction."""

    blocks: int
    sharing: int
    """Blocks per output."""
    width: int
    height: int
    outputs_at_once: int


def reduction_shape(source: TensorInfo, axes: Sequence[int], setting: Setting) -> _Shape:
    """Return grid and block of a reduction; see Note [Shape of a reduction]."""
    summed = _merged(source, axes)
    kept = _merged(source, [axis for axis in range(len(source.shape)) if axis not in axes])
    inputs, outputs = prod(n for n, _ in summed), prod(n for n, _ in kept)
    along = not kept or (bool(summed) and summed[0][1] < kept[0][1])
    first, second = (inputs, outputs) if along else (kept[0][0], inputs)
    fastest = summed[0][1] if along and summed else kept[0][1] if kept else 1
    at_once = 1
    if fastest == 1 and along and not kept and first > _LONG_ENOUGH_FOR_VECTORS:
        first //= _MOST_AT_ONCE
    elif fastest == 1 and not along:
        at_once = _outputs_at_once(kept, summed)
        first //= at_once
    width, height = _block(first, second, _MOST_THREADS // at_once, setting.warp)
    step_in, step_out = (width, 1) if along else (1, width)
    values = ceil_div(inputs, step_in)
    shares_block = values >= height * _LEAST_VALUES or values >= _MOST_VALUES
    if shares_block:
        step_in *= height
    else:
        step_out *= height
    blocks = ceil_div(outputs // at_once, step_out)
    values = ceil_div(inputs, step_in)
    wanted = setting.processors * (_THREADS_OF_PROCESSOR // (width * height))
    sharing = 1
    if shares_block and values >= _MOST_VALUES and blocks <= wanted:
        most = min(ceil_div(wanted, blocks), ceil_div(values, _LEAST_VALUES))
        sharing = max(most, ceil_div(values, _MOST_VALUES))
    return _Shape(blocks, sharing, width, height, at_once)


def _merged(source: TensorInfo, axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return size and stride of merged dimensions, nearest first."""
    listed = sorted((source.strides[axis], source.shape[axis]) for axis in axes)
    found: list[tuple[int, int]] = []
    for stride, size in listed:
        if size == 1:
            continue
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = (found[-1][0] * size, found[-1][1])
        else:
            found.append((size, stride))
    return found


def _outputs_at_once(kept: list[tuple[int, int]], summed: list[tuple[int, int]]) -> int:
    """Return how many outputs a thread can load at once."""
    found = _MOST_AT_ONCE
    for number in (kept[0][0], *(stride for _, stride in (*kept[1:], *summed))):
        while number % found:
            found //= 2
    return found


def _block(first: int, second: int, most: int, warp: int) -> tuple[int, int]:
    wide, high = (_power_below(min(count, most)) for count in (first, second))
    width = min(wide, warp)
    height = min(high, most // width)
    return min(wide, most // height), height


def _power_below(count: int) -> int:
    """Return the largest power of 2 that is not above a count."""
    return 1 << (max(1, count).bit_length() - 1)


# ------------------------------------------------------------------------------------- rules


def _reduction(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = tensor_at(op, 0)
    if source is None:
        return ()
    axes = _axes(op, len(source.shape))
    shape = reduction_shape(source, axes, setting)
    most = _MOST_THREADS // shape.outputs_at_once
    functor = _functor(op, source.dtype, whole=len(axes) == len(source.shape))
    result = cpp_name(INT64 if op.name in ("aten::argmax", "aten::argmin") else source.dtype)
    is_half = source.dtype.size == 2 and source.dtype.rank == 2
    wide = (", 8" if is_half else ", 4") if setting.torch_from(2, 7) else ""
    what = (
        f"at::native::ReduceOp<{cpp_name(source.dtype)}, {functor}, unsigned int, "
        f"{result}, 4{wide}>"
    )
    name = f"void at::native::reduce_kernel<{most}, {shape.outputs_at_once}, {what} >({what})"
    grid, block = (shape.blocks, shape.sharing, 1), (shape.width, shape.height, 1)
    kernel = Launch(name, grid, block, None, 32, 2064 if shape.height > 1 else 16)
    return [memset(4 * shape.blocks), kernel] if shape.sharing > 1 else [kernel]


def _axes(op: LaunchingOp, dims: int) -> list[int]:
    """Return the reduced dimensions; all if none is named."""
    is_norm = op.name.startswith(("aten::linalg_vector_norm", "aten::_linalg_powsum"))
    place = 2 if is_norm or op.name == "aten::norm" else 1
    value: Value = op.inputs[place] if place < len(op.inputs) else None
    named = value if isinstance(value, tuple) else (value,)
    listed = [each for each in named if isinstance(each, int) and not isinstance(each, bool)]
    found = sorted({axis % dims for axis in listed}) if dims else []
    return found or list(range(dims))


_OPS = {
    "sum": "at::native::func_wrapper_t<{t}, at::native::sum_functor<{t}, {a}, {t}>::operator()"
    "(at::TensorIterator&)::{{lambda({a}, {a})#1}}>",
    "mean": "at::native::MeanOps<{t}, {a}, {a}, {t}>",
    "linalg_vector_norm": "at::native::NormTwoOps<{t}, {a}, {t}>",
    "var": "at::native::WelfordOps<{t}, {a}, int, std::pair<{t}, {t}> >",
    "argmax": "at::native::ArgMaxOps<{a}>",
    "argmin": "at::native::ArgMinOps<{a}>",
    "max": "at::native::MaxOps<{t}>",
    "min": "at::native::MinOps<{t}>",
    "amax": "at::native::func_wrapper_t<{t}, at::native::MaxNanFunctor<{t}> >",
    "amin": "at::native::func_wrapper_t<{t}, at::native::MinNanFunctor<{t}> >",
    "aminmax": "at::native::MinMaxOps<{t}, {t}, int>",
    "any": "at::native::func_wrapper_t<{t}, at::native::or_kernel_cuda(at::TensorIterator&)::"
    "{{lambda()#1}}::operator()() const::{{lambda()#12}}::operator()() const::"
    "{{lambda(bool, bool)#1}}>",
    "all": "at::native::func_wrapper_t<{t}, at::native::and_kernel_cuda(at::TensorIterator&)::"
    "{{lambda()#1}}::operator()() const::{{lambda()#12}}::operator()() const::"
    "{{lambda(bool, bool)#1}}>",
    "prod": "at::native::func_wrapper_t<{t}, at::native::prod_functor<{t}, {a}, {t}>::operator()"
    "(at::TensorIterator&)::{{lambda({a}, {a})#1}}>",
}
_SAME = {
    "std": "var", "var_mean": "var", "std_mean": "var", "norm": "linalg_vector_norm",
    "nansum": "sum", "_linalg_powsum": "linalg_vector_norm", "count_nonzero": "sum",
}  # fmt: skip


def _functor(op: LaunchingOp, dtype: DType, *, whole: bool) -> str:
    base = op.name.removeprefix("aten::").rstrip("_")
    base = _SAME.get(base, base)
    if whole and base in ("max", "min"):
        base = f"a{base}"
    return _OPS[base].format(t=cpp_name(dtype), a=opmath_name(dtype))


# ------------------------------------------------------------------------------------- scans

_CUB = "at_cuda_detail::cub::"


def _scan(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch prefix sums: cub for one row, a kernel of ATen for several."""
    source = tensor_at(op, 0)
    if source is None:
        return ()
    t, moved = cpp_name(source.dtype), 2 * bytes_of(source)
    if len([n for n in source.shape if n != 1]) <= 1:
        return scan_launches(t, source.elements, moved)
    axis = next((v for v in op.inputs[1:2] if isinstance(v, int)), -1) % len(source.shape)
    last = axis == len(source.shape) - 1
    kind, height = ("innermost_dim", 32) if last else ("outer_dim", 1)
    name = (
        f"void at::native::tensor_kernel_scan_{kind}<{t}, std::plus<{t}> >({t}*, {t} const*, "
        f"unsigned int, unsigned int, unsigned int, {t}, std::plus<{t}>)"
    )
    rows = source.elements // max(1, source.shape[axis])
    return [Launch(name, (ceil_div(rows, 32), 1, 1), (16 if last else 512, height, 1), None, 27)]


def scan_launches(t: str, elements: int, moved: float) -> list[Launch]:
    """Return cub's scan of one row."""
    state = f"{_CUB}ScanTileState<{t}, true>"
    blocks = ceil_div(elements, 128 * 15)
    begin = f"void {_CUB}DeviceScanInitKernel<{state} >({state}, int)"
    scan = (
        f"void {_CUB}DeviceScanKernel<{_CUB}AgentScanPolicy<128, 15, {t}>, {t} const*, {t}*, "
        f"{state}, std::plus<{t}>, {_CUB}NullType, int>({t} const*, {t}*, {state}, int)"
    )
    return [
        Launch(begin, (ceil_div(blocks, 128), 1, 1), (128, 1, 1), 8.0 * blocks, 16),
        Launch(scan, (blocks, 1, 1), (128, 1, 1), moved, 44, 7184),
    ]


RULES: dict[str, Rule] = {
    **dict.fromkeys((*_OPS, *_SAME), _reduction),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), _scan),
}
