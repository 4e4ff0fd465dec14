"""FBGEMM's fused lookups of several embedding tables and their durations.

Such an operator has the weights of all tables in one tensor; rows, columns and lookups of each
table are lists among the arguments of a captured call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from types import MappingProxyType

from torchtraceap.lab.prediction.capture.calls import Value
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import EmbeddingTable, Estimate, UnknownDurationError
from torchtraceap.ops.durations.embedding import estimate_embedding_bags

__all__ = ["BACKWARD", "FORWARD", "FusedTable", "fused_tables", "lookup_estimate"]

FORWARD = "fbgemm::split_embedding_codegen_forward_unweighted_cuda"
BACKWARD = MappingProxyType(
    {
        optimizer: f"fbgemm::split_embedding_backward_codegen_{optimizer}_unweighted_exact_cuda"
        for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    }
)
"""Backward operators by the optimizer that updates the rows."""
_WARPS_PER_MULTIPROCESSOR = 64


@dataclass(frozen=True, slots=True)
class FusedTable:
    """A table of a fused lookup."""

    rows: int
    columns: int
    lookups: float
    """Lookups in all bags."""


def fused_tables(inputs: Sequence[Value]) -> tuple[FusedTable, ...]:
    """Return the tables of a captured lookup or update."""
    rows, columns, lookups = (_numbers(inputs, place) for place in (-3, -2, -1))
    sizes = zip(rows, columns, lookups, strict=False)
    return tuple(FusedTable(int(r), int(c), looked) for r, c, looked in sizes)


def _numbers(inputs: Sequence[Value], place: int) -> tuple[float, ...]:
    """Return the numbers in one of the last three arguments."""
    value = inputs[place] if len(inputs) >= -place else ()
    listed = value if isinstance(value, tuple) else ()
    numbers = (float(each) for each in listed if isinstance(each, (int, float)))
    return tuple(each for each in numbers if isfinite(each) and each >= 0)


def lookup_estimate(op: LaunchingOp, device: Device) -> Estimate | None:
    """Return the GPU time of a lookup or update; None for other operators or an unknown cache.

    All rows of a table are taken to be as likely to be looked up.
    """
    is_update = op.name in BACKWARD.values()
    tables = fused_tables(op.inputs) if is_update or op.name == FORWARD else ()
    # The tensors are weights, indices and offsets, after the gradient in an update.
    tensors = op.tensors[1:] if is_update else op.tensors
    if not tables:
        return None
    weights, _, offsets = tensors[:3]
    bags = max(1, (offsets.elements - 1) // len(tables))
    warps = _WARPS_PER_MULTIPROCESSOR * max(1, device.multiprocessors)
    asked = [
        EmbeddingTable(table.rows, table.columns, table.lookups / bags, None, weights.dtype.size)
        for table in tables
    ]
    at_once = min(len(tables), max(1, ceil(warps / bags)))
    try:
        found = estimate_embedding_bags(asked, [bags], device, backward=is_update, at_once=at_once)
    except UnknownDurationError:
        return None
    ns, low, high = found.ns[0], found.low_ns[0], found.high_ns[0]
    return Estimate(float(ns), float(low), float(high), "traffic of lookups, all rows as likely")
