"""FBGEMM's fused lookups of several embedding tables, as in TorchRec: durations and kernels.

Such an operator has the weights of all tables in one tensor; rows, columns and lookups of each
table are lists among the arguments of a captured call.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, log2
from types import MappingProxyType

from torchtraceap.lab.prediction.capture.calls import TensorInfo, Value
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    bytes_of,
    ceil_div,
    cpp_name,
    required,
    rule,
)
from torchtraceap.lab.prediction.lowering.kernels.reductions import radix_sort, scan_launches
from torchtraceap.lab.prediction.lowering.step import LaunchingOp
from torchtraceap.ops import (
    Device,
    EmbeddingTable,
    Estimate,
    UnknownDurationError,
    estimate_embedding_bags,
)

__all__ = ["BACKWARD", "FORWARD", "RULES", "lookup_estimate"]

RULES: dict[str, Rule] = {}
"""Rules by operator."""
FORWARD = "fbgemm::split_embedding_codegen_forward_unweighted_cuda"
BACKWARD = MappingProxyType(
    {
        optimizer: f"fbgemm::split_embedding_backward_codegen_{optimizer}_unweighted_exact_cuda"
        for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    }
)
"""Backward operators by the optimizer that updates the rows."""
_WARPS_PER_MULTIPROCESSOR = 64
_THREADS = 512
_LANES = 32
_VECTOR = 4
_FEWEST_LANES = 8
_ROW_THREADS = 1024
_LONG_SEGMENTS = "find_long_segments"
_PACKED = "at::GenericPackedTensorAccessor"


def _tables(inputs: Sequence[Value]) -> list[tuple[int, int, float]]:
    """Return rows, columns and lookups in all bags of each table of a lookup or update."""
    lists = []
    for place in (-3, -2, -1):
        value = inputs[place] if len(inputs) >= -place else ()
        listed = value if isinstance(value, tuple) else ()
        numbers = (float(each) for each in listed if isinstance(each, (int, float)))
        lists.append([each for each in numbers if isfinite(each) and each >= 0])
    return [
        (int(rows), int(columns), looked) for rows, columns, looked in zip(*lists, strict=False)
    ]


def lookup_estimate(op: LaunchingOp, device: Device) -> Estimate | None:
    """Return the GPU time of a lookup or update; None for other operators or an unknown cache.

    All rows of a table are taken to be as likely to be looked up.
    """
    is_update = op.name in BACKWARD.values()
    tables = _tables(op.inputs) if is_update or op.name == FORWARD else ()
    # The tensors are weights, indices and offsets, after the gradient in an update.
    tensors = op.tensors[1:] if is_update else op.tensors
    if not tables:
        return None
    weights, _, offsets = tensors[:3]
    bags = max(1, (offsets.elements - 1) // len(tables))
    warps = _WARPS_PER_MULTIPROCESSOR * max(1, device.multiprocessors)
    asked = [
        EmbeddingTable(rows, columns, lookups / bags, None, weights.dtype.size)
        for rows, columns, lookups in tables
    ]
    at_once = min(len(tables), max(1, ceil(warps / bags)))
    try:
        found = estimate_embedding_bags(asked, [bags], device, backward=is_update, at_once=at_once)
    except UnknownDurationError:
        return None
    ns, low, high = found.ns[0], found.low_ns[0], found.high_ns[0]
    return Estimate(float(ns), float(low), float(high), "traffic of lookups, all rows as likely")


# ------------------------------------------------------------------------------------- kernels


def _accessor(t: str, dims: int = 1) -> str:
    return f"{_PACKED}<{t}, {dims}ul, at::RestrictPtrTraits, long>"


@rule(RULES, FORWARD)
def _lookup(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a lookup in which a warp, or part of one, reads a row."""
    weights, indices, offsets = (required(op, place) for place in range(3))
    t, lanes, rounds = _shape(op, weights)
    name = (
        f"void split_embedding_codegen_forward_unweighted_kernel<{t}, {t}, {t}, false, "
        f"{cpp_name(indices.dtype)}, {rounds}ul, {lanes}ul>({_accessor(t)})"
    )
    rows = _THREADS // lanes
    return [Launch(name, ceil_div(offsets.elements, rows), (lanes, rows, 1), None, 40)]


def _shape(op: LaunchingOp, weights: TensorInfo) -> tuple[str, int, int]:
    """Return the element type, the threads of a row, and their rounds along it."""
    widest = max((columns for _, columns, _ in _tables(op.inputs)), default=_LANES)
    lanes = min(_LANES, max(_FEWEST_LANES, 1 << ceil(log2(max(1, ceil_div(widest, _VECTOR))))))
    return cpp_name(weights.dtype), lanes, max(1, ceil_div(widest, _VECTOR * lanes))


@rule(RULES, BACKWARD.values())
def _update(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch an update: sort and count indices, then add gradients to rows by blocks or warps."""
    weights, indices = required(op, 1), required(op, 2)
    t, lanes, rounds = _shape(op, weights)
    i, count = cpp_name(indices.dtype), indices.elements
    rows = sum(count for count, _, _ in _tables(op.inputs))
    # "fbgemm::split_embedding_backward_codegen_sgd_unweighted_exact_cuda"
    stem = op.name.removeprefix("fbgemm::").removesuffix("_exact_cuda")
    by = f"<{t}, {t}, {t}, {rounds}ul, {lanes}>({_accessor(t, 2)})"
    runs = (
        f"void cub::DeviceReduceByKeyKernel<{i}*, {i}*, cub::ConstantInputIterator<int, int>, int*,"
        f" int*, cub::Equality, cub::Sum, int>({i}*, {i}*, int)"
    )
    return [
        Launch(f"void linearize_index_kernel<{i}>({_accessor(i)})",
               ceil_div(count, _ROW_THREADS), _ROW_THREADS, 24.0 * count, 48),
        *radix_sort(i, count, max(1, ceil(log2(max(rows, 2))))),
        Launch("void cub::DeviceCompactInitKernel<cub::ReduceByKeyScanTileState<int, int, true>, "
               "int*>(cub::ReduceByKeyScanTileState<int, int, true>, int, int*)",
               1, 128, 4.0, 16),
        Launch(runs, ceil_div(count, 128 * 8), 128, 24.0 * count, 64, 12_304),
        *scan_launches("int", count, 8.0 * count),
        Launch(f"{stem}_{_LONG_SEGMENTS}({_accessor('int')})",
               ceil_div(count, _ROW_THREADS), _ROW_THREADS, 4.0 * count, 32),
        Launch(f"void {stem}_kernel_cta_per_row_1{by}",
               setting.processors, (lanes, _ROW_THREADS // _LANES, 1), 0.0, 48, 16_384),
        Launch(f"void {stem}_kernel_warp_per_row_1{by}",
               ceil_div(count, _THREADS // lanes), (lanes, _THREADS // lanes, 1), None, 32),
    ]  # fmt: skip


@rule(RULES, "fbgemm::permute_2D_sparse_data")
def _permute(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the permutation of lengths and values with prefix sums before and after."""
    lengths, values = required(op, 0), required(op, 1)
    i, count = cpp_name(lengths.dtype), lengths.elements
    moved, v = 2 * bytes_of(lengths), cpp_name(values.dtype)
    return [
        Launch(f"void fbgemm_gpu::permute_2D_lengths_kernel<{i}>(int, int, {i} const*, int const*,"
               f" {i}*)", ceil_div(count, 256), 256, moved, 28),
        *scan_launches(i, count, moved),
        *scan_launches(i, count, moved),
        Launch(f"void fbgemm_gpu::permute_2D_data_kernel<false, {i}, {v}, decltype(nullptr)>(int, "
               f"int, int, {v} const*, {v}*)", ceil_div(count, 32), (32, 32, 1), None, 17),
    ]  # fmt: skip


@rule(RULES, "fbgemm::asynchronous_complete_cumsum")
def _cumsum(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    lengths = required(op, 0)
    return scan_launches(cpp_name(lengths.dtype), lengths.elements, 2 * bytes_of(lengths))


@rule(RULES, "fbgemm::bounds_check_indices")
def _bounds_check(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    indices, offsets = required(op, 0), required(op, 1)
    i = cpp_name(indices.dtype)
    name = f"void bounds_check_indices_kernel<{i}, false>({_accessor(i)})"
    return [Launch(name, ceil_div(offsets.elements, 8), (32, 8, 1), None, 55)]


@rule(RULES, "fbgemm::block_bucketize_sparse_features")
def _bucketize(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the counting and sorting of indices by the rank that owns the row."""
    lengths, values = required(op, 0), required(op, 1)
    i, v = cpp_name(lengths.dtype), cpp_name(values.dtype)
    grid = ceil_div(lengths.elements, 256)
    stem = "void fbgemm_gpu::_block_bucketize_sparse_features_cuda_kernel"
    return [
        Launch(f"{stem}1<{i}, {v}>(int, int, {v} const*, {i} const*, {v} const*, {i}*)",
               grid, 256, bytes_of(lengths, values), 32),
        *scan_launches(i, lengths.elements, 2 * bytes_of(lengths)),
        Launch(f"{stem}2<false, {i}, {v}>(int, int, {v} const*, {i} const*, {v} const*, {v}*)",
               grid, 256, None, 40),
    ]  # fmt: skip
