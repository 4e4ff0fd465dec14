"""The questions that a person asks: one function for each kind of work; see the package.

Each checks the sizes, takes types and names as they are found, and asks the models in order.
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
from torchtraceap.ops.durations.answers import Question, answers, each
from torchtraceap.ops.durations.calibration import Calibration, kernel_class
from torchtraceap.ops.durations.collectives import collective_kind, estimate_collectives
from torchtraceap.ops.durations.copies import estimate_copies
from torchtraceap.ops.durations.embedding import EmbeddingTable, estimate_embedding_bags
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    element_bytes,
    the_device,
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
    estimate_attentions,
    estimate_elementwises,
    estimate_rows_of_lengths,
    tensors_moved,
)
from torchtraceap.ops.durations.operators import class_of, estimate_op
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
    """What every question takes."""

    strict: bool
    """Raise the reason instead of answering None (or NaN)."""
    calibration: Calibration | None
    """Ratios of the user's own kernels, to correct the models with."""


Answer = Estimate | Estimates | None
_NARROW_PRODUCTS = ("int8", "fp4")
# Of an embedding table, with whether it counts something.
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
    """Transfer time of a collective once all ranks have come.

    Args:
        kind: Its name in any of PyTorch's or NCCL's spellings, or a kernel's.
        size: Bytes of the larger of one rank's input and output.
        ranks: Members of the group, all of one device.
        device: A GPU by name or id.
        nodes: Machines that the group spans.
        dtype: Of the elements; by default what a kernel's name says.
        options: See `Options`.
    """
    name, said = collective_named(kind)
    checked_sizes(nodes=(nodes, True))

    def measured(sizes: FloatArray, counts: FloatArray) -> Estimates:
        label = dtype_label(dtype) if dtype else said
        groups = [np.flatnonzero(counts == count) for count in np.unique(counts).tolist()]
        parts = [
            answers(
                lambda some, count=int(counts[rows[0]]): estimate_collectives(
                    name, some, count, device, nodes, dtype=label
                ),
                sizes[rows],
            )
            for rows in groups
        ]
        back = np.argsort(np.concatenate([np.empty(0, np.int64), *groups]), kind="stable")
        return Estimates.joined(parts).take(back)

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
    """Time of a product of (batch) m x k by k x n.

    Args:
        m: Rows of the left operand: of a linear layer, all but the last of the input's sizes.
        n: Columns of the right operand: of a linear layer, the output features.
        k: The size summed over.
        dtype: fp32, tf32, fp16, bf16, fp8, ...
        device: A GPU by name or id.
        batch: Products at once.
        options: See `Options`.
    """

    def measured(*shape: FloatArray) -> Estimates:
        return estimate_gemms(np.stack(shape, axis=1), dtype_label(dtype), device)

    def by_work(*shape: FloatArray) -> Estimates:
        return _narrow_products(_flops_of(*shape), width * _operands_of(*shape), dtype, device)

    width = _width(dtype)
    sizes = checked_sizes(batch=(batch, True), m=(m, True), n=(n, True), k=(k, True))
    held = width * _operands_of(*sizes.values())
    models = (measured, by_work)
    return Question(sizes, models, _class("gemm", dtype), device, held, **options).answer()


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
    """Time of a copy.

    Args:
        size: Bytes.
        direction: "HtoD", "DtoH", "DtoD", or a name such as "Memcpy HtoD (Pinned -> Device)".
        pinned: Whether the host's side is page-locked; of no account on the device. None: as the
            name says, else pageable.
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
    """Time of an element-wise kernel.

    Args:
        op: add, mul, pow, div (two tensors); addu, mulu, powu, divu (a tensor and a scalar);
            relu, gelu, tanh.
        elements: Of the result.
        dtype: Of the elements.
        device: A GPU by name or id.
        options: See `Options`.
    """

    def measured(elements: FloatArray) -> Estimates:
        return estimate_elementwises(op, elements, dtype_label(dtype), device)

    def by_work(elements: FloatArray) -> Estimates:
        return _moving("elementwise", width * tensors_moved(op) * elements, dtype, device)

    width = _width(dtype)
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
    """Time of a softmax over the last of two sizes (forward)."""
    return _by_rows("softmax", "softmax", rows, columns, dtype, device, options)


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
    """Time of a layer norm over the last of two sizes (forward)."""
    family = "normalization_forward"
    return _by_rows("layer_norm", family, rows, columns, dtype, device, options)


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
    """Time of a fused attention kernel (forward).

    Args:
        batch: Sequences.
        heads: Of the queries.
        queries: Length of the sequence of queries.
        keys: Length of the sequence of keys and values.
        head_size: Elements of a head.
        dtype: Of the elements.
        device: A GPU by name or id.
        causal: Half of the products are left out.
        options: See `Options`.
    """

    def by_work(*shape: FloatArray) -> Estimates:
        return estimate_attentions(
            np.stack(shape, axis=1), dtype_label(dtype), device, causal=causal
        )

    sizes = checked_sizes(batch=(batch, True), heads=(heads, True), queries=(queries, True),
                          keys=(keys, True), head_size=(head_size, True))  # fmt: skip
    lengths = sizes["queries"] + sizes["keys"]
    held = _width(dtype) * sizes["batch"] * sizes["heads"] * sizes["head_size"] * 2.0 * lengths
    class_name = _class("attention_forward", dtype)
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
    """Time of the lookups of a batch in tables, one after the other.

    Args:
        tables: Each with what one bag looks up; its sizes may be arrays where `batch` is one.
        batch: Bags.
        device: A GPU by name or id.
        backward: The update of the rows instead.
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
    """Time of the GPU work of any operator that has a model, from its arguments.

    Args:
        call: `torchtraceap.ops.models.OpCall("aten::addmm", dims, types)`, as a trace records them.
        device: A GPU by name or id.
        kernels: How many it launches.
        options: See `Options`.
    """

    def by_work(kernels: int) -> Estimate:
        return estimate_op(call, device, kernels=kernels)

    class_name = class_of(call, device)
    sizes = checked_sizes(kernels=(kernels, True))
    held = np.zeros(())  # of operands that the trace at hand held
    models = (each(by_work),)
    found = Question(sizes, models, class_name, device, held, op=call.name, **options).answer()
    assert not isinstance(found, Estimates)  # one size was asked for
    return found


def _by_rows(
    op: str,
    family: str,
    rows: Numbers,
    columns: Numbers,
    dtype: object,
    device: str | Device,
    options: Options,
) -> Answer:
    def measured(rows: FloatArray, columns: FloatArray) -> Estimates:
        return estimate_rows_of_lengths(op, rows, columns, dtype_label(dtype), device)

    def by_work(rows: FloatArray, columns: FloatArray) -> Estimates:
        width = element_bytes(dtype_label(dtype))
        return _moving(family, 2.0 * width * rows * columns, dtype, device)

    sizes = checked_sizes(rows=(rows, False), columns=(columns, False))
    models, held = (measured, by_work), _width(dtype) * sizes["rows"] * sizes["columns"]
    return Question(sizes, models, family, device, held, **options).answer()


def _moving(family: str, moved: FloatArray, dtype: object, device: str | Device) -> Estimates:
    """By the bytes that are read and written."""
    label, count = dtype_label(dtype), len(moved)
    the_device(device)  # the reason is that of the device, not of each size
    return estimate_works([family] * count, np.zeros(count), moved, [label] * count, device)


def _narrow_products(
    flops: FloatArray, moved: FloatArray, dtype: object, device: str | Device
) -> Estimates:
    """Types that no measured product had, by the work: int8 and fp4."""
    label, count = dtype_label(dtype), len(flops)
    if label not in _NARROW_PRODUCTS:
        raise UnknownDurationError(f"no durations of products in {label} are known")
    the_device(device)
    return estimate_works(
        ["gemm"] * count, flops, moved, [label] * count, device, units=["matrix"] * count
    )


def _flops_of(batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    return np.asarray(2.0 * batch * m * n * k)


def _operands_of(batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """Elements of both operands and the result."""
    return np.asarray(batch * (m * k + k * n + m * n))


def _width(dtype: object) -> float:
    """Bytes of an element; 0 of a type that nobody knows, which a model will say."""
    try:
        label = dtype_label(dtype)
    except UnknownDurationError:
        return 0.0
    found = parse_dtype("fp32" if label == "tf32" else label)
    return (0.5 if label == "fp4" else float(found.size)) if found is not None else 0.0


def _class(family: str, dtype: object) -> str:
    try:
        return kernel_class(family, dtype_label(dtype))
    except UnknownDurationError:  # the question itself says so
        return family
