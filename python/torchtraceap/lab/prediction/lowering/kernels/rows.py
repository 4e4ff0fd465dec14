"""Kernels of operators over whole rows: softmax, sort and selection."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchtraceap.core.dtypes import DType
from torchtraceap.lab.prediction.lowering.kernels.launch import (
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
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp

__all__ = ["RULES", "radix_sort"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_ANONYMOUS = "at::native::(anonymous namespace)::"
_CUB = "at_cuda_detail::cub::"
_MOST_IN_WARP, _MOST_BYTES_IN_WARP = 1024, 4096
_SHARED_BYTES = 48 * 1024
_THREADS_OF_WARPS = 128


@rule(
    RULES,
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
)
def _softmax(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a softmax.

    A warp takes a row of up to 1,024 elements (`host_softmax` of ATen), a block a longer one;
    strided rows have a kernel of their own.
    """
    source = tensor_at(op, 0)
    if source is None or not source.shape:
        return ()
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
        return [Launch(name, (1, ceil_div(inner, width), 1), (width, 1, 1), None, 32)]
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
    return [Launch(name, (ceil_div(rows, height * at_once), 1, 1), (width, height, 1), None, 32)]


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
    return Launch(name, (rows, 1, 1), (threads, 1, 1), None, 32, shared)


# ------------------------------------------------------------------------------------- order

_SMALL_SORT = 32
_BLOCK_SORT = 4096


@rule(RULES, "sort", "argsort")
def _sort(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a sort: blocks for short rows, cub's radix sort for one long row, segments for
    many."""
    source = tensor_at(op, 0)
    if source is None:
        return ()
    place = 2 if isinstance(op.inputs[1] if len(op.inputs) > 1 else None, bool) else 1
    axis = int(number_at(op, place, -1))
    length = source.shape[axis] if source.shape else 1
    rows = source.elements // max(1, length)
    if length <= _BLOCK_SORT:
        return [_sort_in_block(source.dtype, length, rows)]
    if rows == 1:
        return radix_sort(cpp_name(source.dtype), source.elements, 8 * source.dtype.size)
    t, moved = cpp_name(source.dtype), 2 * bytes_of(source) + 16.0 * source.elements
    grid = (ceil_div(source.elements, 512), 1, 1)
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
        Launch(fill, grid, (512, 1, 1), 8.0 * source.elements),
        *[Launch(sort, (rows, 1, 1), (256, 1, 1), moved, 80, 16384) for _ in range(passes)],
        Launch(last, grid, (512, 1, 1), moved),
    ]


def _sort_in_block(dtype: DType, length: int, rows: int) -> Launch:
    t = cpp_name(dtype)
    if length <= _SMALL_SORT:
        name = f"void at::native::bitonicSortKVInPlace<2, -1, 16, 16, {t}, long>"
        return Launch(f"{name}(int)", (ceil_div(rows, 16), 1, 1), (16, 16, 1), None, 40)
    threads = max(32, next_power(ceil_div(length, 32)))
    name = f"void at::native::radixSortKVInPlace<-2, -1, {threads}, 32, {t}, long, unsigned int>"
    return Launch(f"{name}(unsigned int)", (rows, 1, 1), (threads, 1, 1), None, 128, 16912)


def radix_sort(t: str, elements: int, bits: int) -> list[Launch]:
    """Return cub's radix sort of pairs: in one block, else 8 bits at a time."""
    moved = elements * 24.0
    if elements <= 4096:
        name = f"void {_CUB}DeviceRadixSortSingleTileKernel<{_CUB}Policy, false, {t}, long, int>"
        return [Launch(f"{name}(int)", (1, 1, 1), (256, 1, 1), moved, 72)]
    blocks = ceil_div(elements, 384 * 12)
    one = f"{_CUB}Policy, false, {t}"
    begin = [
        memset(8192),
        Launch(f"void {_CUB}DeviceRadixSortHistogramKernel<{one}, int>(int)",
               (blocks, 1, 1), (128, 1, 1), moved / 3, 40),
        Launch(f"void {_CUB}DeviceRadixSortExclusiveSumKernel<{_CUB}Policy, int>(int*)",
               (ceil_div(bits, 8), 1, 1), (256, 1, 1), 8192.0, 16),
    ]  # fmt: skip
    sweep = f"void {_CUB}DeviceRadixSortOnesweepKernel<{one}, long, int, int>(int)"
    for _ in range(ceil_div(bits, 8)):
        begin += [memset(1024 * blocks),
                  Launch(sweep, (blocks, 1, 1), (384, 1, 1), 2 * moved, 56, 40448)]  # fmt: skip
    return begin


_MANY_FOR_TOPK = 20_000
_BLOCKS_OF_ONE = 4


@rule(RULES, "topk")
def _topk(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the selection of each row's k largest, then their sort; long rows take several
    blocks."""
    source = tensor_at(op, 0)
    if source is None or not source.shape:
        return ()
    t, length = cpp_name(source.dtype), source.shape[-1]
    rows, k = source.elements // max(1, length), max(1, int(number_at(op, 1, 1)))
    order = [_sort_in_block(source.dtype, k, rows)] if k > 1 else []
    if length < _MANY_FOR_TOPK:
        name = f"void at::native::sbtopk::gatherTopK<{t}, unsigned int, {len(source.shape)}, false>"
        threads = min(1024, 32 * ceil_div(length, 32))
        return [Launch(f"{name}(int)", (rows, 1, 1), (threads, 1, 1), None, 48, 256), *order]
    blocks, moved = ceil_div(length, 16_384) * rows, bytes_of(source)
    prefix = "void at::native::mbtopk::"
    digits = [
        Launch(f"{prefix}radixFindKthValues<{t}, unsigned int, unsigned int, 1>(int)",
               (blocks, 1, 1), (256, 1, 1), moved, 40),
        Launch(f"{prefix}computeBlockwiseWithinKCounts<unsigned int>(int)",
               (rows, 1, 1), (256, 1, 1), 8.0 * blocks, 32),
    ] * source.dtype.size  # fmt: skip
    gather = Launch(f"{prefix}gatherTopK<{t}, unsigned int, 1>(int)", (blocks, 1, 1), (256, 1, 1),
                    moved, 40)  # fmt: skip
    return [memset(4 * rows), *digits, gather, *order]


@rule(RULES, "nonzero")
def _nonzero(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the count, its copy to the host, then the indices."""
    source = tensor_at(op, 0)
    if source is None:
        return ()
    t, blocks = cpp_name(source.dtype), ceil_div(source.elements, 128 * 8)
    policy = f"{_CUB}DeviceReducePolicy<int, int, {_CUB}Sum>::Policy600"
    where = f"{_CUB}TransformInputIterator<bool, {_ANONYMOUS}NonZeroOp<{t}>, {t} const*, long>"
    given = f"{policy}, {where}, int*, int, {_CUB}Sum, int"
    single = f"void {_CUB}DeviceReduceSingleTileKernel<{given}>({where}, int*, int)"
    whole = f"void {_CUB}DeviceReduceKernel<{given}>({where}, int*, int)"
    again = f"void {_CUB}DeviceReduceSingleTileKernel<{policy}, int*, int*, int, {_CUB}Sum>(int*)"
    is_long = blocks > _BLOCKS_OF_ONE
    many = [Launch(whole, (blocks, 1, 1), (256, 1, 1), bytes_of(source), 27)]
    one = Launch(again if is_long else single, (1, 1, 1), (256, 1, 1), 1024.0, 26)
    begin = f"void {_CUB}DeviceCompactInitKernel<{_CUB}ScanTileState<int, true>, int*>(int)"
    kept = f"{_CUB}CountingInputIterator<long, long>, {where}, long*"
    sweep = f"void {_CUB}DeviceSelectSweepKernel<{_CUB}DispatchSelectIf<{kept}>, int>(int)"
    last = [Launch(f"void {_ANONYMOUS}write_indices<int>(long*, int)", (blocks, 1, 1), (256, 1, 1),
                   16.0 * source.elements, 26)]  # fmt: skip
    return [
        *(many if is_long else []),
        one,
        memcpy_to_host(4),
        Launch(begin, (ceil_div(blocks, 128), 1, 1), (128, 1, 1), 8.0 * blocks, 16),
        Launch(sweep, (blocks, 1, 1), (128, 1, 1), None, 39, 5120),
        *(last if len(source.shape) > 1 else []),
    ]


@rule(RULES, "_local_scalar_dense")
def _item(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the copy of one value to the host."""
    source = tensor_at(op, 0)
    return [memcpy_to_host(source.dtype.size if source is not None else 4)]
