"""Kernels of reductions over dimensions of a tensor, and scans.

Note [Shape of a reduction]: blocks are shaped as in `setReduceConfig` of ATen
(native/cuda/Reduce.cuh). Threads run along the contiguous dimension; for few outputs with long sums
several blocks share an output and synchronize by counters that a memset clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchtraceap.core.dtypes import INT64
from torchtraceap.lab.prediction.capture.calls import TensorInfo, Value
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Grid,
    Launch,
    Rule,
    Setting,
    bytes_of,
    ceil_div,
    cpp_name,
    memset,
    opmath_name,
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp

__all__ = ["RULES", "scan_launches"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_MOST_THREADS = 512
_THREADS_OF_PROCESSOR = 2048
_MOST_AT_ONCE = 4
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""Values per thread before blocks share an output."""
_LONG_ENOUGH_FOR_VECTORS = 128


def _shape_of_reduction(
    source: TensorInfo, axes: Sequence[int], setting: Setting
) -> tuple[Grid, Grid, int]:
    """Return grid, block and outputs loaded at once; see Note [Shape of a reduction]."""
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
        at_once = _MOST_AT_ONCE
        for number in (kept[0][0], *(stride for _, stride in (*kept[1:], *summed))):
            while number % at_once:
                at_once //= 2
        first //= at_once
    most_threads = _MOST_THREADS // at_once
    # The largest powers of 2 that are not above the counts.
    wide, high = (1 << (max(1, min(n, most_threads)).bit_length() - 1) for n in (first, second))
    height = min(high, most_threads // min(wide, setting.warp))
    width = min(wide, most_threads // height)
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
    return (blocks, sharing, 1), (width, height, 1), at_once


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


# ------------------------------------------------------------------------------------- rules


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


@rule(RULES, *_OPS, *_SAME)
def _reduction(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = tensor_at(op, 0)
    if source is None:
        return ()
    base = op.name.removeprefix("aten::").rstrip("_")
    base = _SAME.get(base, base)
    # All dimensions are reduced if none is named.
    place = 2 if base == "linalg_vector_norm" else 1
    value: Value = op.inputs[place] if place < len(op.inputs) else None
    named = value if isinstance(value, tuple) else (value,)
    dims = len(source.shape)
    listed = [each for each in named if isinstance(each, int) and not isinstance(each, bool)]
    axes = sorted({axis % dims for axis in listed} if dims else ()) or list(range(dims))
    grid, block, at_once = _shape_of_reduction(source, axes, setting)
    if len(axes) == dims and base in ("max", "min"):
        base = f"a{base}"
    t = cpp_name(source.dtype)
    functor = _OPS[base].format(t=t, a=opmath_name(source.dtype))
    result = cpp_name(INT64) if op.name in ("aten::argmax", "aten::argmin") else t
    is_half = source.dtype.size == 2 and source.dtype.rank == 2
    wide = (", 8" if is_half else ", 4") if setting.torch_from(2, 7) else ""
    what = f"at::native::ReduceOp<{t}, {functor}, unsigned int, {result}, 4{wide}>"
    name = f"void at::native::reduce_kernel<{_MOST_THREADS // at_once}, {at_once}, {what} >({what})"
    kernel = Launch(name, grid, block, None, 32, 2064 if block[1] > 1 else 16)
    return [memset(4 * grid[0]), kernel] if grid[1] > 1 else [kernel]


# ------------------------------------------------------------------------------------- scans

_CUB = "at_cuda_detail::cub::"


@rule(RULES, "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
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
