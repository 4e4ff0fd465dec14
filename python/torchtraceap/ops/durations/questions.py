"""Public functions that estimate durations, one for each kind of work.

Each function checks the sizes, parses types and names, and asks a chain of models in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.calibration import Calibration, kernel_class
from torchtraceap.ops.durations.collectives import collective_kind, estimate_collectives
from torchtraceap.ops.durations.copies import estimate_copies
from torchtraceap.ops.durations.embedding import EmbeddingTable, estimate_embedding_bags
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    element_bytes,
    resolve_device,
)
from torchtraceap.ops.durations.families import estimate_works
from torchtraceap.ops.durations.gemm import estimate_gemms
from torchtraceap.ops.durations.inputs import (
    Many,
    Numbers,
    checked_sizes,
    collective_named,
    copy_named,
    dtype_label,
)
from torchtraceap.ops.durations.kernels import (
    estimate_attention,
    estimate_elementwise,
    estimate_row_kernel,
    tensors_moved,
)
from torchtraceap.ops.durations.model_chain import Question, evaluate_model, vectorize
from torchtraceap.ops.durations.operators import call_class, estimate_op
from torchtraceap.ops.models.arguments import OpCall

__all__ = [
    "Answer",
    "Options",
    "attention_ns",
    "collective_ns",
    "copy_ns",
    "elementwise_ns",
    "embedding_bag_ns",
    "gemm_ns",
    "layer_norm_ns",
    "op_ns",
    "softmax_ns",
]


class Options(TypedDict, total=False):
    """Options of every function that estimates a duration."""

    strict: bool
    """Raise `UnknownDurationError` with the reason instead of returning None (or NaN)."""
    calibration: Calibration | None
    """Ratios of the user's own kernels that correct the models."""


Answer = Estimate | Estimates | None
_NARROW_PRODUCTS = ("int8", "fp4")
# Sizes of an embedding table, with True if the size must be a whole number.
_TABLE_SIZES = {"rows": True, "columns": True, "lookups_per_bag": False}
FloatArray = npt.NDArray[np.float64]


@overload
def collective_ns(
    kind: str,
    size: float,
    ranks: int,
    device: str | Device,
    nodes: int = 1,
    *,
    dtype: object = "",
    **options: Unpack[Options],
) -> Estimate | None: ...
@overload
def collective_ns(
    kind: str,
    size: Numbers,
    ranks: Numbers,
    device: str | Device,
    nodes: int = 1,
    *,
    dtype: object = "",
    **options: Unpack[Options],
) -> Estimates: ...
def collective_ns(
    kind: str,
    size: Numbers,
    ranks: Numbers,
    device: str | Device,
    nodes: int = 1,
    *,
    dtype: object = "",
    **options: Unpack[Options],
) -> Answer:
    """Estimate the transfer time of a collective after the last rank has arrived.

    Args:
        kind: Name in any of PyTorch's or NCCL's spellings, or name of a kernel.
        size: Bytes of the larger of one rank's input and output.
        ranks: Number of members of the group, which all have the same device.
        device: A GPU by name or id.
        nodes: Number of machines that the group spans.
        dtype: Type of the elements; by default the type in the name of a kernel.
        options: See `Options`.
    """
    name, said = collective_named(kind)
    checked_sizes(nodes=(nodes, True))

    def measured(sizes: FloatArray, counts: FloatArray) -> Estimates:
        label = dtype_label(dtype) if dtype else said
        groups = [np.flatnonzero(counts == count) for count in np.unique(counts).tolist()]
        parts = [
            evaluate_model(
                lambda some, count=int(counts[rows[0]]): estimate_collectives(
                    name, some, count, device, nodes, dtype=label
                ),
                sizes[rows],
            )
            for rows in groups
        ]
        return Estimates.scatter(parts, groups)

    sizes = checked_sizes(size=(size, False), ranks=(ranks, True))
    class_name = f"communication {collective_kind(name)}"
    held = sizes["size"]
    return Question(sizes, (measured,), class_name, device, held, **options).answer()


@overload
def gemm_ns(
    m: int,
    n: int,
    k: int,
    dtype: object,
    device: str | Device,
    batch: int = 1,
    **options: Unpack[Options],
) -> Estimate | None: ...
@overload
def gemm_ns(
    m: Numbers,
    n: Numbers,
    k: Numbers,
    dtype: object,
    device: str | Device,
    batch: Numbers = 1,
    **options: Unpack[Options],
) -> Estimates: ...
def gemm_ns(
    m: Numbers,
    n: Numbers,
    k: Numbers,
    dtype: object,
    device: str | Device,
    batch: Numbers = 1,
    **options: Unpack[Options],
) -> Answer:
    """Estimate the time of a matrix product of (batch) m x k by k x n.

    Args:
        m: Rows of the left operand (for a linear layer, all input sizes but the last, multiplied).
        n: Columns of the right operand (for a linear layer, the output features).
        k: Inner size, which is summed over.
        dtype: fp32, tf32, fp16, bf16, fp8, ...
        device: A GPU by name or id.
        batch: Number of products in a batch.
        options: See `Options`.
    """

    def measured(*shape: FloatArray) -> Estimates:
        return estimate_gemms(np.stack(shape, axis=1), dtype_label(dtype), device)

    def moved(batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        return np.asarray(width * (batch * (m * k + k * n + m * n)))

    def by_work(batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray) -> Estimates:
        """Estimate the types that no measured product has: int8 and fp4."""
        label, count = dtype_label(dtype), len(m)
        if label not in _NARROW_PRODUCTS:
            raise UnknownDurationError(f"no durations of products in {label} are known")
        resolve_device(device)
        flops, size = 2.0 * batch * m * n * k, moved(batch, m, n, k)
        units = ["matrix"] * count
        return estimate_works(["gemm"] * count, flops, size, [label] * count, device, units=units)

    width = _element_width(dtype)
    sizes = checked_sizes(batch=(batch, True), m=(m, True), n=(n, True), k=(k, True))
    class_name, held = _class_name("gemm", dtype), moved(*sizes.values())
    return Question(sizes, (measured, by_work), class_name, device, held, **options).answer()


@overload
def copy_ns(
    size: float,
    direction: str,
    pinned: bool | None,
    device: str | Device,
    **options: Unpack[Options],
) -> Estimate | None: ...
@overload
def copy_ns(
    size: Many,
    direction: str,
    pinned: bool | None,
    device: str | Device,
    **options: Unpack[Options],
) -> Estimates: ...
def copy_ns(
    size: Numbers,
    direction: str,
    pinned: bool | None,
    device: str | Device,
    **options: Unpack[Options],
) -> Answer:
    """Estimate the time of a copy.

    Args:
        size: Bytes.
        direction: "HtoD", "DtoH", "DtoD", or a name such as "Memcpy HtoD (Pinned -> Device)".
        pinned: The host memory is page-locked; ignored for copies on the device. None takes it
            from the name, else assumes pageable memory.
        device: A GPU by name or id.
        options: See `Options`.
    """
    way, said = copy_named(direction)
    locked = bool(said) if pinned is None else pinned

    def by_link(size: FloatArray) -> Estimates:
        return estimate_copies(size, way, locked, device)

    memory = "" if way.lower() == "dtod" else "Pinned" if locked else "Pageable"
    sizes = checked_sizes(size=(size, False))
    class_name, held = f"copy {way} {memory}".strip(), sizes["size"]
    return Question(sizes, (by_link,), class_name, device, held, **options).answer()


@overload
def elementwise_ns(
    op: str, elements: float, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Estimate | None: ...
@overload
def elementwise_ns(
    op: str, elements: Many, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Estimates: ...
def elementwise_ns(
    op: str, elements: Numbers, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Answer:
    """Estimate the time of an element-wise kernel.

    Args:
        op: add, mul, pow, div (two tensors); addu, mulu, powu, divu (a tensor and a scalar);
            relu, gelu, tanh.
        elements: Number of elements of the result.
        dtype: Type of the elements.
        device: A GPU by name or id.
        options: See `Options`.
    """

    def measured(elements: FloatArray) -> Estimates:
        return estimate_elementwise(op, elements, dtype_label(dtype), device)

    def by_work(elements: FloatArray) -> Estimates:
        return _estimate_moving("elementwise", width * tensors_moved(op) * elements, dtype, device)

    width = _element_width(dtype)
    sizes = checked_sizes(elements=(elements, False))
    models, held = (measured, by_work), width * sizes["elements"]
    return Question(sizes, models, "elementwise", device, held, **options).answer()


@overload
def softmax_ns(
    rows: float, columns: float, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Estimate | None: ...
@overload
def softmax_ns(
    rows: Many,
    columns: Numbers,
    dtype: object,
    device: str | Device,
    **options: Unpack[Options],
) -> Estimates: ...
def softmax_ns(
    rows: Numbers, columns: Numbers, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Answer:
    """Estimate the time of a forward softmax over the last of two sizes."""
    return _estimate_by_rows("softmax", "softmax", rows, columns, dtype, device, options)


@overload
def layer_norm_ns(
    rows: float, columns: float, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Estimate | None: ...
@overload
def layer_norm_ns(
    rows: Many,
    columns: Numbers,
    dtype: object,
    device: str | Device,
    **options: Unpack[Options],
) -> Estimates: ...
def layer_norm_ns(
    rows: Numbers, columns: Numbers, dtype: object, device: str | Device, **options: Unpack[Options]
) -> Answer:
    """Estimate the time of a forward layer norm over the last of two sizes."""
    family = "normalization_forward"
    return _estimate_by_rows("layer_norm", family, rows, columns, dtype, device, options)


@overload
def attention_ns(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_size: int,
    dtype: object,
    device: str | Device,
    *,
    causal: bool = False,
    **options: Unpack[Options],
) -> Estimate | None: ...
@overload
def attention_ns(
    batch: Numbers,
    heads: Numbers,
    queries: Numbers,
    keys: Numbers,
    head_size: Numbers,
    dtype: object,
    device: str | Device,
    *,
    causal: bool = False,
    **options: Unpack[Options],
) -> Estimates: ...
def attention_ns(
    batch: Numbers,
    heads: Numbers,
    queries: Numbers,
    keys: Numbers,
    head_size: Numbers,
    dtype: object,
    device: str | Device,
    *,
    causal: bool = False,
    **options: Unpack[Options],
) -> Answer:
    """Estimate the time of a forward fused attention kernel.

    Args:
        batch: Number of sequences.
        heads: Number of query heads.
        queries: Length of the sequence of queries.
        keys: Length of the sequence of keys and values.
        head_size: Number of elements of a head.
        dtype: Type of the elements.
        device: A GPU by name or id.
        causal: The mask is causal, which leaves out half of the products.
        options: See `Options`.
    """

    def by_work(*shape: FloatArray) -> Estimates:
        return estimate_attention(
            np.stack(shape, axis=1), dtype_label(dtype), device, causal=causal
        )

    sizes = checked_sizes(batch=(batch, True), heads=(heads, True), queries=(queries, True),
                          keys=(keys, True), head_size=(head_size, True))  # fmt: skip
    lengths = sizes["queries"] + sizes["keys"]
    held = sizes["batch"] * sizes["heads"] * sizes["head_size"] * 2.0 * lengths
    held = _element_width(dtype) * held
    class_name = _class_name("attention_forward", dtype)
    return Question(sizes, (by_work,), class_name, device, held, **options).answer()


@overload
def embedding_bag_ns(
    tables: Sequence[EmbeddingTable],
    batch: int,
    device: str | Device,
    *,
    backward: bool = False,
    **options: Unpack[Options],
) -> Estimate | None: ...
@overload
def embedding_bag_ns(
    tables: Sequence[EmbeddingTable],
    batch: Many,
    device: str | Device,
    *,
    backward: bool = False,
    **options: Unpack[Options],
) -> Estimates: ...
def embedding_bag_ns(
    tables: Sequence[EmbeddingTable],
    batch: Numbers,
    device: str | Device,
    *,
    backward: bool = False,
    **options: Unpack[Options],
) -> Answer:
    """Estimate the time of the lookups of a batch in tables, one after the other.

    Args:
        tables: Tables with the lookups of one bag; their sizes may be arrays if `batch` is one.
        batch: Number of bags.
        device: A GPU by name or id.
        backward: Estimate the update of the rows instead.
        options: See `Options`.
    """
    if not tables:
        raise OptionError("an embedding bag needs a table at least")

    def by_traffic(batch: FloatArray, *of_tables: FloatArray) -> Estimates:
        parts = (of_tables[at :: len(_TABLE_SIZES)] for at in range(len(_TABLE_SIZES)))
        asked = [
            replace(table, **dict(zip(_TABLE_SIZES, own, strict=True)))
            for table, *own in zip(tables, *parts, strict=True)
        ]
        return estimate_embedding_bags(asked, batch, device, backward=backward)

    sizes = {
        f"{name} of table {number}" if len(tables) > 1 else name: (getattr(table, name), whole)
        for number, table in enumerate(tables, start=1)
        for name, whole in _TABLE_SIZES.items()
    }
    checked = checked_sizes(batch=(batch, True), **sizes)
    if np.ndim(batch) < checked["batch"].ndim:
        raise OptionError("sizes of a table are arrays only where batch is one")
    _, *of_tables = checked.values()
    held = sum(
        (table.element_bytes * rows * columns
         for table, rows, columns in zip(tables, of_tables[::3], of_tables[1::3], strict=True)),
        start=np.zeros(checked["batch"].shape),
    )  # fmt: skip
    return Question(checked, (by_traffic,), "embedding", device, held, **options).answer()


def op_ns(
    call: OpCall, device: str | Device, *, kernels: int = 1, **options: Unpack[Options]
) -> Estimate | None:
    """Estimate the time of the GPU work of any operator that has a model, from its arguments.

    Args:
        call: `torchtraceap.ops.models.OpCall("aten::addmm", dims, types)`, as a trace records them.
        device: A GPU by name or id.
        kernels: Number of kernels that it launches.
        options: See `Options`.
    """

    def by_work(kernels: int) -> Estimate:
        return estimate_op(call, device, kernels=kernels)

    class_name = call_class(call, device)
    sizes = checked_sizes(kernels=(kernels, True))
    held = np.zeros(())  # the device of the trace held the operands
    models = (vectorize(by_work),)
    found = Question(sizes, models, class_name, device, held, op=call.name, **options).answer()
    assert not isinstance(found, Estimates)  # one size was asked for
    return found


def _estimate_by_rows(
    op: str,
    family: str,
    rows: Numbers,
    columns: Numbers,
    dtype: object,
    device: str | Device,
    options: Options,
) -> Answer:
    def measured(rows: FloatArray, columns: FloatArray) -> Estimates:
        return estimate_row_kernel(op, rows, columns, dtype_label(dtype), device)

    def by_work(rows: FloatArray, columns: FloatArray) -> Estimates:
        width = element_bytes(dtype_label(dtype))
        return _estimate_moving(family, 2.0 * width * rows * columns, dtype, device)

    sizes = checked_sizes(rows=(rows, False), columns=(columns, False))
    models, held = (measured, by_work), _element_width(dtype) * sizes["rows"] * sizes["columns"]
    return Question(sizes, models, family, device, held, **options).answer()


def _estimate_moving(
    family: str, moved: FloatArray, dtype: object, device: str | Device
) -> Estimates:
    """Estimate by the bytes that are read and written."""
    label, count = dtype_label(dtype), len(moved)
    resolve_device(device)  # raise for the device once, not for each size
    return estimate_works([family] * count, np.zeros(count), moved, [label] * count, device)


def _element_width(dtype: object) -> float:
    """Return the bytes of an element; 0 for an unknown type, which a model reports."""
    try:
        label = dtype_label(dtype)
    except UnknownDurationError:
        return 0.0
    found = parse_dtype("fp32" if label == "tf32" else label)
    return (0.5 if label == "fp4" else float(found.size)) if found is not None else 0.0


def _class_name(family: str, dtype: object) -> str:
    try:
        return kernel_class(family, dtype_label(dtype))
    except UnknownDurationError:  # a model reports it
        return family
