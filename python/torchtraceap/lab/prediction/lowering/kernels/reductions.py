"""Kernels along dimensions of a tensor: reductions, scans, softmax, sort and selection.

Note [Shape of a reduction]: blocks are shaped as in `setReduceConfig` of ATen
(native/cuda/Reduce.cuh). Threads run along the contiguous dimension; for few outputs with long sums
several blocks share an output and synchronize by counters that a memset clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchtraceap.core import INT64, DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Grid,
    Launch,
    Rule,
    Setting,
    bytes_of,
    ceil_div,
    cpp_name,
    memcpy_to_host,
    memset,
    next_power,
    number_at,
    opmath_name,
    required,
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES", "radix_sort", "scan_launches"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_MOST_THREADS = 512
_THREADS_OF_PROCESSOR = 2048
_MOST_AT_ONCE = 4
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""Values per thread before blocks share an output."""
_LONG_ENOUGH_FOR_VECTORS = 128
_ANONYMOUS = "at::native::(anonymous namespace)::"
_CUB = "at_cuda_detail::cub::"


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


@rule(RULES, (*_OPS, *_SAME))
def _reduction(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = required(op, 0)
    base = op.name.removeprefix("aten::").rstrip("_")
    base = _SAME.get(base, base)
    # All dimensions are reduced if none is named.
    place = 2 if base == "linalg_vector_norm" else 1
    value = op.value(place)
    named = value if isinstance(value, tuple) else (value,)
    dims = len(source.shape)
    listed = [each for each in named if isinstance(each, int) and not isinstance(each, bool)]
    axes = sorted({axis % dims for axis in listed}) if dims else []
    axes = axes or list(range(dims))
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


@rule(RULES, "cumsum cumprod cummax cummin logcumsumexp")
def _scan(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch prefix sums: cub for one row, a kernel of ATen for several."""
    source = required(op, 0)
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
    return [Launch(name, ceil_div(rows, 32), (16 if last else 512, height, 1), None, 27)]


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
        Launch(begin, ceil_div(blocks, 128), 128, 8.0 * blocks, 16),
        Launch(scan, blocks, 128, moved, 44, 7184),
    ]


# ------------------------------------------------------------------------------------- softmax

_MOST_IN_WARP, _MOST_BYTES_IN_WARP = 1024, 4096
_SHARED_BYTES = 48 * 1024
_THREADS_OF_WARPS = 128


@rule(
    RULES,
    "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
)
def _softmax(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a softmax.

    A warp takes a row of up to 1,024 elements (`host_softmax` of ATen), a block a longer one;
    strided rows have a kernel of their own.
    """
    source = required(op, 0, dims=1)
    backward, is_log = op.name.endswith("_backward_data"), "log" in op.name
    axis = int(number_at(op, 2 if backward else 1, -1)) % len(source.shape)
    length = source.shape[axis]
    inner = source.elements // max(1, prod(source.shape[: axis + 1]))
    rows = source.elements // max(1, length)
    t, a = cpp_name(source.dtype), opmath_name(source.dtype)
    way = "Backward" if backward else "Forward"
    epilogue = f"{_ANONYMOUS}{'Log' if is_log else ''}SoftMax{way}Epilogue"
    if inner > 1:
        name = (
            f"void {_ANONYMOUS}cunn_SpatialSoftMax{way}<{t}, {a}, {t}, int, {epilogue}>"
            f"({t}*, {t} const*, int, int, int)"
        )
        width = min(1024, next_power(inner))
        return [Launch(name, (1, ceil_div(inner, width), 1), width, None, 32)]
    given = f"{t} const*, {t} const*" if backward else f"{t} const*"
    if length > _MOST_IN_WARP or length * source.dtype.size > _MOST_BYTES_IN_WARP:
        types = f"{t}, {a}, {t}, {epilogue}"
        return [_softmax_in_blocks(source.dtype, length, rows, way, types, given, setting)]
    power = next_power(length)
    width = min(power, 32)
    height = _THREADS_OF_WARPS // width
    at_once = 2 if power <= 128 else 1
    name = (
        f"void (anonymous namespace)::softmax_warp_{way.lower()}<{t}, {t}, {a}, "
        f"{power.bit_length() - 1}, {str(is_log).lower()}, false>({t}*, {given}, int, int, int, "
        f"bool const*{'' if backward else ', int, bool'})"
    )
    return [Launch(name, ceil_div(rows, height * at_once), (width, height, 1), None, 32)]


def _softmax_in_blocks(
    dtype: DType, length: int, rows: int, way: str, types: str, given: str, setting: Setting
) -> Launch:
    at_once, threads = 16 // dtype.size, 1024
    values = ceil_div(length, 1024)
    first, kind, last = f"{at_once}, ", "", ""
    if way == "Forward" and setting.torch_from(2, 7) and values < 10:
        first, kind, last = "", "Reg", f", long, {values}"
    else:
        if way == "Backward":
            threads = max(32, next_power(ceil_div(min(length // at_once, 1024), 2)))
        fits = length % at_once == 0 and length * dtype.size < _SHARED_BYTES
        if fits and setting.torch_from(2, 1):
            kind = "Smem"
    index = "long" if setting.torch_from(2, 7) else "int"
    name = (
        f"void {_ANONYMOUS}cunn_SoftMax{way}{kind}<{first}{types}{last}>"
        f"({cpp_name(dtype)}*, {given}, {index})"
    )
    shared = 128 + (length * dtype.size if kind == "Smem" else 0)
    return Launch(name, rows, threads, None, 32, shared)


# ------------------------------------------------------------------------------------- order

_SMALL_SORT = 32
_BLOCK_SORT = 4096


@rule(RULES, "sort argsort")
def _sort(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a sort: blocks for short rows, cub's radix sort for one long row, segments for
    many."""
    source = required(op, 0)
    place = 2 if isinstance(op.value(1), bool) else 1
    axis = int(number_at(op, place, -1))
    length = source.shape[axis] if source.shape else 1
    rows = source.elements // max(1, length)
    if length <= _BLOCK_SORT:
        return [_sort_in_block(source.dtype, length, rows)]
    if rows == 1:
        return radix_sort(cpp_name(source.dtype), source.elements, 8 * source.dtype.size)
    t, moved = cpp_name(source.dtype), 2 * bytes_of(source) + 16.0 * source.elements
    grid = ceil_div(source.elements, 512)
    sort = f"void {_CUB}DeviceSegmentedRadixSortKernel<{_CUB}Policy, true, false, {t}, int2>(int)"
    passes = ceil_div(8 * source.dtype.size, 6)
    fill = (
        f"void {_ANONYMOUS}fill_index_and_segment_kernel(int2*, int, "
        "at::cuda::detail::IntDivider<unsigned int>)"
    )
    last = (
        f"void {_ANONYMOUS}sort_postprocess_kernel<{t}>({t} const*, {t}*, long*, "
        "int2 const*, int, int)"
    )
    return [
        Launch(fill, grid, 512, 8.0 * source.elements),
        *[Launch(sort, rows, 256, moved, 80, 16384) for _ in range(passes)],
        Launch(last, grid, 512, moved),
    ]


def _sort_in_block(dtype: DType, length: int, rows: int) -> Launch:
    t = cpp_name(dtype)
    if length <= _SMALL_SORT:
        name = f"void at::native::bitonicSortKVInPlace<2, -1, 16, 16, {t}, long>"
        return Launch(f"{name}(int)", ceil_div(rows, 16), (16, 16, 1), None, 40)
    threads = max(32, next_power(ceil_div(length, 32)))
    name = f"void at::native::radixSortKVInPlace<-2, -1, {threads}, 32, {t}, long, unsigned int>"
    return Launch(f"{name}(unsigned int)", rows, threads, None, 128, 16912)


def radix_sort(t: str, elements: int, bits: int) -> list[Launch]:
    """Return cub's radix sort of pairs: in one block, else 8 bits at a time."""
    moved = elements * 24.0
    if elements <= 4096:
        name = f"void {_CUB}DeviceRadixSortSingleTileKernel<{_CUB}Policy, false, {t}, long, int>"
        return [Launch(f"{name}(int)", 1, 256, moved, 72)]
    blocks = ceil_div(elements, 384 * 12)
    one = f"{_CUB}Policy, false, {t}"
    begin = [
        memset(8192),
        Launch(f"void {_CUB}DeviceRadixSortHistogramKernel<{one}, int>(int)",
               blocks, 128, moved / 3, 40),
        Launch(f"void {_CUB}DeviceRadixSortExclusiveSumKernel<{_CUB}Policy, int>(int*)",
               ceil_div(bits, 8), 256, 8192.0, 16),
    ]  # fmt: skip
    sweep = f"void {_CUB}DeviceRadixSortOnesweepKernel<{one}, long, int, int>(int)"
    for _ in range(ceil_div(bits, 8)):
        begin += [memset(1024 * blocks), Launch(sweep, blocks, 384, 2 * moved, 56, 40448)]
    return begin


_MANY_FOR_TOPK = 20_000
_BLOCKS_OF_ONE = 4


@rule(RULES, "topk")
def _topk(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the selection of each row's k largest, then their sort; long rows take several
    blocks."""
    source = required(op, 0, dims=1)
    t, length = cpp_name(source.dtype), source.shape[-1]
    rows, k = source.elements // max(1, length), max(1, int(number_at(op, 1, 1)))
    order = [_sort_in_block(source.dtype, k, rows)] if k > 1 else []
    if length < _MANY_FOR_TOPK:
        name = f"void at::native::sbtopk::gatherTopK<{t}, unsigned int, {len(source.shape)}, false>"
        threads = min(1024, 32 * ceil_div(length, 32))
        return [Launch(f"{name}(int)", rows, threads, None, 48, 256), *order]
    blocks, moved = ceil_div(length, 16_384) * rows, bytes_of(source)
    prefix = "void at::native::mbtopk::"
    digits = [
        Launch(f"{prefix}radixFindKthValues<{t}, unsigned int, unsigned int, 1>(int)",
               blocks, 256, moved, 40),
        Launch(f"{prefix}computeBlockwiseWithinKCounts<unsigned int>(int)",
               rows, 256, 8.0 * blocks, 32),
    ] * source.dtype.size  # fmt: skip
    gather = Launch(f"{prefix}gatherTopK<{t}, unsigned int, 1>(int)", blocks, 256, moved, 40)
    return [memset(4 * rows), *digits, gather, *order]


@rule(RULES, "nonzero")
def _nonzero(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the count, its copy to the host, then the indices."""
    source = required(op, 0)
    t, blocks = cpp_name(source.dtype), ceil_div(source.elements, 128 * 8)
    policy = f"{_CUB}DeviceReducePolicy<int, int, {_CUB}Sum>::Policy600"
    where = f"{_CUB}TransformInputIterator<bool, {_ANONYMOUS}NonZeroOp<{t}>, {t} const*, long>"
    given = f"{policy}, {where}, int*, int, {_CUB}Sum, int"
    single = f"void {_CUB}DeviceReduceSingleTileKernel<{given}>({where}, int*, int)"
    whole = f"void {_CUB}DeviceReduceKernel<{given}>({where}, int*, int)"
    again = f"void {_CUB}DeviceReduceSingleTileKernel<{policy}, int*, int*, int, {_CUB}Sum>(int*)"
    is_long = blocks > _BLOCKS_OF_ONE
    many = [Launch(whole, blocks, 256, bytes_of(source), 27)]
    one = Launch(again if is_long else single, 1, 256, 1024.0, 26)
    begin = f"void {_CUB}DeviceCompactInitKernel<{_CUB}ScanTileState<int, true>, int*>(int)"
    kept = f"{_CUB}CountingInputIterator<long, long>, {where}, long*"
    sweep = f"void {_CUB}DeviceSelectSweepKernel<{_CUB}DispatchSelectIf<{kept}>, int>(int)"
    last = [Launch(f"void {_ANONYMOUS}write_indices<int>(long*, int)", blocks, 256,
                   16.0 * source.elements, 26)]  # fmt: skip
    return [
        *(many if is_long else []),
        one,
        memcpy_to_host(4),
        Launch(begin, ceil_div(blocks, 128), 128, 8.0 * blocks, 16),
        Launch(sweep, blocks, 128, None, 39, 5120),
        *(last if len(source.shape) > 1 else []),
    ]


@rule(RULES, "_local_scalar_dense")
def _item(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the copy of one value to the host."""
    source = tensor_at(op, 0)
    return [memcpy_to_host(source.dtype.size if source is not None else 4)]
