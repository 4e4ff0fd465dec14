"""Kernels of operators that index or join tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchtraceap.core import BOOL
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    as_number,
    bool_at,
    bytes_of,
    ceil_div,
    cpp_name,
    first_output,
    memcpy,
    number_at,
    opmath_name,
    required,
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.kernels.pointwise import copy_loop
from torchtraceap.lab.prediction.lowering.kernels.reductions import radix_sort, scan_launches
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_ANONYMOUS = "at::native::(anonymous namespace)::"
_FEW_INDICES = 16
_FEW_LOOKUPS = 3_072
_MOST_JOINED, _MOST_JOINED_STRIDED = 128, 64
_MOST_DIMS_JOINED = 4
_LOAD_BYTES = 16


def _opaque(each: TensorInfo) -> str:
    return f"at::native::OpaqueType<{each.dtype.size}>"


@rule(RULES, "index")
def _index(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source = required(op, 0)
    known = first_output(op)
    if known is not None:
        made = known.elements
    else:
        indices = op.value(1)
        listed = indices if isinstance(indices, tuple) else (indices,)
        tensors = [each for each in listed if isinstance(each, TensorInfo) and each.dtype != BOOL]
        picked = max((each.elements for each in tensors), default=source.elements)
        places = prod(source.shape[: max(1, len(tensors))])
        made = picked * max(1, source.elements // max(1, places))
    return [_by_index("index_kernel_impl", source, made, 2.0 * made * source.dtype.size)]


def _by_index(kind: str, source: TensorInfo, made: int, moved: float) -> Launch:
    function = (
        f"at::native::{kind}<{_opaque(source)} >(at::TensorIteratorBase&, c10::ArrayRef<long>, "
        "c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}"
    )
    loop = (
        f"at::native::gpu_index_kernel<{function}>(at::TensorIteratorBase&, c10::ArrayRef<long>, "
        f"c10::ArrayRef<long>, {function} const&, bool)::{{lambda(int)#1}}"
    )
    name = f"void at::native::index_elementwise_kernel<128, 4, {loop}>(long, {loop})"
    return Launch(name, ceil_div(made, 512), 128, moved, 40)


@rule(RULES, "_index_put_impl_ index_put_")
def _index_put(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch `index_put`; accumulation sorts the indices first."""
    source, values = required(op, 0), tensor_at(op, 2)
    count = values.elements if values is not None else source.elements
    if not bool_at(op, 3):
        return [_by_index("index_put_kernel_impl", source, count, 2.0 * count * source.dtype.size)]
    t = cpp_name(source.dtype)
    rows = max((each.elements for each in op.tensors[1:] if each.dtype.rank == 1), default=count)
    name = (
        f"void {_ANONYMOUS}indexing_backward_kernel<{t}, 4>(long const*, long const*, {t} const*, "
        f"{t}*, long, long, long, long, bool)"
    )
    last = Launch(name, ceil_div(rows, 4), (32, 4, 1), 3.0 * count * source.dtype.size, 34)
    return [*radix_sort("long", rows, max(1, source.elements.bit_length())), last]


@rule(RULES, "index_select")
def _index_select(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source, indices = required(op, 0), required(op, 2)
    t, i = cpp_name(source.dtype), cpp_name(indices.dtype)
    axis = int(as_number(op.inputs[1], 0)) % max(1, len(source.shape))
    length = source.shape[axis] if source.shape else 1
    made = source.elements // max(1, length) * indices.elements
    dims = min(2, max(1, len(source.shape)))
    small = indices.elements <= _FEW_INDICES
    kind, order = ("Small", "") if small else ("Large", ", true")
    info = f"at::cuda::detail::TensorInfo<{t}, unsigned int>"
    name = (
        f"void {_ANONYMOUS}indexSelect{kind}Index<{t}, {i}, unsigned int, {dims}, {dims}, "
        f"-2{order}>"
        f"({info}, {info}, at::cuda::detail::TensorInfo<{i} const, unsigned int>, int, int, "
        "unsigned int, unsigned int, long)"
    )
    threads = 128 if small else 512
    blocks = min(ceil_div(made, threads), 8 * setting.processors)
    return [Launch(name, blocks, threads, 2.0 * made * source.dtype.size, 32)]


@rule(RULES, "index_add index_add_")
def _index_add(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    source, indices, added = required(op, 0), required(op, 2), tensor_at(op, 3)
    t, i = cpp_name(source.dtype), cpp_name(indices.dtype)
    kind = "Small" if indices.elements <= _FEW_INDICES else "Large"
    moved = 2 * bytes_of(added or source)
    count = (added or source).elements
    name = (
        f"void {_ANONYMOUS}indexFunc{kind}Index<{t}, {i}, unsigned int, 2, 2, -2, true, "
        "at::native::ReduceAdd>(int)"
    )
    blocks = min(ceil_div(count, 128), 8 * setting.processors)
    return [Launch(name, blocks, 128, moved, 32)]


@rule(RULES, "gather scatter scatter_ scatter_add scatter_add_")
def _scatter_gather(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel over the indices."""
    source, indices = required(op, 0), required(op, 2)
    is_gather = op.name == "aten::gather"
    t = _opaque(source) if is_gather else cpp_name(source.dtype)
    reduce_ = "ReduceAdd" if "add" in op.name else "TensorAssign"
    way = "false" if is_gather else "true"
    function = (
        f"at::native::_cuda_scatter_gather_internal_kernel<{way}, {t}, long>::operator()<"
        f"at::native::{reduce_} >(at::TensorIterator&, long, long, long, at::native::{reduce_} "
        "const&)::{lambda(int)#1}"
    )
    name = (
        f"void at::native::_scatter_gather_elementwise_kernel<128, 8, {function}>(int, {function})"
    )
    moved = indices.elements * (8.0 + 2.0 * source.dtype.size)
    return [Launch(name, ceil_div(indices.elements, 1024), 128, moved, 32)]


# ------------------------------------------------------------------------------------- embedding


@rule(RULES, "embedding_dense_backward")
def _embedding_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel for few lookups; sort many and sum them by row in parts."""
    grad, indices = required(op, 0), required(op, 1)
    t, a, i = cpp_name(grad.dtype), opmath_name(grad.dtype), cpp_name(indices.dtype)
    width, count = grad.shape[-1] if grad.shape else 1, indices.elements
    if count <= _FEW_LOOKUPS:
        name = (
            f"void {_ANONYMOUS}embedding_backward_feature_kernel<{t}, {a}, {i}>({i} const*, "
            f"{t} const*, {t}*, int, long, int)"
        )
        return [Launch(name, ceil_div(width, 32), (32, 32, 1), None, 40, 8192)]
    return _summed_by_rows(grad, indices, int(number_at(op, 2, 1)))


def _summed_by_rows(grad: TensorInfo, indices: TensorInfo, rows: int) -> list[Launch]:
    t, a, i = cpp_name(grad.dtype), opmath_name(grad.dtype), cpp_name(indices.dtype)
    count = indices.elements
    blocks = ceil_div(count, 32)
    scan = scan_launches(i, count, 16.0 * count)
    return [
        *radix_sort(i, count, max(1, rows.bit_length())),
        Launch(f"void {_ANONYMOUS}krn_partials_per_segment<{i}>({i}*, {i} const*, int const*, "
               "long)",
               blocks, 32, 16.0 * count),
        *scan,
        Launch(f"void {_ANONYMOUS}krn_partial_segment_offset<{i}>({i}*, {i} const*, {i} const*, "
               f"{i} const*, int const*)", blocks, 32, 32.0 * count),
        Launch(f"void {_ANONYMOUS}compute_grad_weight<{t}, {i}>({i} const*, {t} const*, "
               f"{i} const*, "
               f"long, long, {i} const*, int const*, {a}*, long)", blocks, 1024, None, 32),
        Launch(f"void {_ANONYMOUS}sum_and_scatter<{t}, {i}>({i} const*, {t}*, long, {i} const*, "
               f"int const*, {a} const*, {i} const*, int const*, long, long)", blocks, 1024,
               bytes_of(grad), 32),
    ]  # fmt: skip


_BAG_MODES = {0: "sum", 1: "mean", 2: "max"}


@rule(RULES, "_embedding_bag _embedding_bag_forward_only")
def _embedding_bag(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch four bags per block with a thread for each column."""
    weight, indices, offsets = required(op, 0, dims=1), required(op, 1), tensor_at(op, 2)
    t, i = cpp_name(weight.dtype), cpp_name(indices.dtype)
    mode = _BAG_MODES.get(int(number_at(op, 4, 0)), "sum")
    kind = "max" if mode == "max" else "sum_mean"
    name = (
        f"void {_ANONYMOUS}EmbeddingBag_updateOutputKernel_{kind}<{t}, {i}>({i} const*, "
        f"{i} const*, "
        f"{t} const*, {t}*, {i}*, long, long, long, int, long, long, {t} const*, long, {i}*, long, "
        "long)"
    )
    bags = offsets.elements if offsets is not None else 1
    blocks = min(ceil_div(bags, 4) * ceil_div(weight.shape[-1], 64), 1024)
    return [Launch(name, blocks, (64, 4, 1), None, 32)]


@rule(RULES, "_embedding_bag_dense_backward")
def _embedding_bag_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the sort, count and segmented sum of lookups."""
    grad, indices = required(op, 0), required(op, 1)
    return _summed_by_rows(grad, indices, int(number_at(op, 5, 1)))


# ------------------------------------------------------------------------------------- joining


@rule(RULES, "cat")
def _cat(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel for many tensors.

    Different types or too many dimensions take a kernel each, and a single tensor is copied.
    """
    listed = op.value(0)
    tensors = [
        each
        for each in (listed if isinstance(listed, tuple) else ())
        if isinstance(each, TensorInfo) and each.elements
    ]
    if not tensors:
        return ()
    types, dims = {each.dtype for each in tensors}, len(tensors[0].shape)
    if len(tensors) == 1 and tensors[0].is_contiguous:
        return [memcpy(int(bytes_of(tensors[0])))]
    if len(types) > 1 or dims > _MOST_DIMS_JOINED or len(tensors) == 1:
        made = first_output(op)
        to = made.dtype if made is not None else max(types, key=lambda t: (t.rank, t.size))
        found = []
        for each in tensors:
            # Rows of the result are longer than those of its part.
            strides = tuple(2 * stride for stride in each.strides[:-1]) + each.strides[-1:]
            found.append(copy_loop(TensorInfo(each.shape, to, strides, -1), each, setting))
        return found
    return _batched_copies(tensors, setting)


def _batched_copies(tensors: Sequence[TensorInfo], setting: Setting) -> list[Launch]:
    """Launch batched copies, of 16 bytes at once for contiguous tensors with wide elements."""
    contiguous = all(each.is_contiguous for each in tensors)
    size, dims = tensors[0].dtype.size, len(tensors[0].shape)
    whole = all(each.elements * size % _LOAD_BYTES == 0 for each in tensors)
    wide = contiguous and whole and size > 2 and not setting.is_amd
    most = _MOST_JOINED if contiguous else _MOST_JOINED_STRIDED
    kind, last = ("_contig", "128, 1") if contiguous else ("", "64, 64")
    kind = "_aligned16_contig" if wide else kind
    t = f"{_ANONYMOUS}OpaqueType<{size}u>"
    metadata = f"{_ANONYMOUS}CatArrInputTensorMetadata<{t}, unsigned int, {last}>"
    name = (
        f"void {_ANONYMOUS}CatArrayBatchedCopy{kind}<{t}, unsigned int, {dims}, {last}>({t}*, "
        f"{metadata}, {_ANONYMOUS}TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
    )
    threads, each_thread = (128, _LOAD_BYTES // size) if wide else (512, 1)
    threads, each_thread = (256, 8) if setting.is_amd else (threads, each_thread)
    found = []
    for first in range(0, len(tensors), most):
        some = tensors[first : first + most]
        blocks = ceil_div(max(each.elements for each in some), threads * each_thread)
        if not setting.is_amd and not wide:
            blocks = min(blocks, 2 * setting.processors)
        grid = (blocks, len(some), 1)
        found.append(Launch(name, grid, threads, 2 * bytes_of(*some), 21))
    return found


@rule(RULES, "split_with_sizes_copy")
def _split_copy(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel that copies parts of a tensor to other tensors."""
    source = required(op, 0)
    name = (
        "void at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, "
        "char**, long*, long*, long*, long, long, long)"
    )
    size = bytes_of(source)
    blocks = min(ceil_div(int(size), 512 * 16), 8 * setting.processors)
    return [Launch(name, blocks, 512, 2 * size, 32)]


@rule(RULES, "_chunk_cat")
def _chunk_cat(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch one kernel that copies parts of many tensors side by side."""
    made, size = first_output(op), bytes_of(*op.tensors)
    types = (op.tensors[0].dtype if op.tensors else None, made.dtype if made else None)
    names = [cpp_name(each) if each is not None else "float" for each in types]
    name = (
        f"void at::native::detail::chunk_cat_cuda_kernel<{names[1]}, {names[0]}>({names[0]}**, "
        f"{names[1]}*, long*, long*, long*, long*, long, long, long, long)"
    )
    blocks = min(ceil_div(int(size), 512 * 16), 8 * setting.processors)
    return [Launch(name, blocks, 512, 2 * size, 32)]
