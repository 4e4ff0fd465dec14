"""Sequences of kernels that repeat on a stream, and what fusing each would remove."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, encode_json
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.kernel_names import canonical_name, triton_name
from torchtraceap.tables.catalog import Option, PageView, TableSpec
from torchtraceap.tables.gpu.gpu_events import GpuEvents, device_and_stream, gpu_notes
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_sequences"]

T = TypeVar("T")

_SHOWN = (
    "length", "count", "removable_ns", "launch_ns", "gap_ns", "gpu_ns", "op", "kernels", "ops"
)  # fmt: skip
_LIMIT = 1000
_LONGEST = 100_000


def build_sequences(part: RankTrace, *, length: int = 0) -> ColumnTable:
    """Build the table of `Trace.sequences` for one rank: maximal sequences of compute kernels.

    Kernels are equal if their names are, but for the numbers of generated kernels. Without a length
    every one from 2 to 64 is looked for.

    Returns:
        At most 1000 rows, most removable time first; docs/tables.md has the columns.

    Raises:
        OptionError: `length` is negative or 1, or too large.
    """
    if length < 0 or length == 1 or length > _LONGEST:
        raise OptionError(f"length must be 0 or between 2 and {_LONGEST}, not {length}")
    events = GpuEvents.of(part)
    texts = events.texts
    symbols, labels = _symbols(events)
    found = _core.kernel_sequences(part.table, part.tree, symbols, length=length, limit=_LIMIT)
    rows = found.kernel_rows
    symbol_of = np.full(len(part.table), -1, dtype=np.int32)
    symbol_of[events.rows] = symbols
    columns: dict[str, Column] = {
        "kernels": encode_json(_split(found, [labels[i] for i in symbol_of[rows].tolist()])),
        "length": found.length.astype(np.int64),
        "count": found.count.astype(np.int64),
        "removable_ns": found.removable_ns,
        "launch_ns": found.launch_ns,
        "launches": found.launches.astype(np.int64),
        "gap_ns": found.gap_ns,
        "gpu_ns": found.gpu_ns,
        "op": events.names_of(found.op),
        **device_and_stream(part, found.stream.astype(np.int64)),
        "first_row": found.first_row.astype(np.int64),
        "ops": encode_json(_split(found, events.names_of(part.costs.owner[rows]).to_list())),
        "names": encode_json(_split(found, [texts[i] for i in part.table.name[rows].tolist()])),
    }
    if not len(events):
        notes = gpu_notes(events)
    elif not len(found):
        notes = ["No sequence of two or more kernels repeats."]
    else:
        notes = [
            "Rows overlap: a kernel may be part of several sequences, so don't add them up. "
            "Removable are the gaps between the kernels, or the launch calls where the GPU waited "
            "for the host; memory traffic between the kernels, which fusing saves as well, is not "
            "in it."
        ]
    if len(found) == _LIMIT:
        notes.append(f"Only the {_LIMIT} sequences that would remove most are listed.")
    return ColumnTable(columns, shown=_SHOWN, notes=notes)


def _symbols(events: GpuEvents) -> tuple[Array, list[str]]:
    """Return the symbol of each GPU event, int32, negative for what is no compute; and the label of
    each symbol.

    Kernels are equal if their names with template arguments are, without a serial number. Where all
    Triton kernels are called `triton__0d1d2`, the operator's name tells them apart.
    """
    texts, pairs = events.texts, Groups(events.name, events.op.codes)
    kernels, ops = events.name[pairs.first], events.op.codes[pairs.first]
    distinct: dict[str, int] = {}
    codes = []
    for kernel, op in zip(kernels.tolist(), ops.tolist(), strict=True):
        name = texts[kernel]
        triton = triton_name(name)
        if triton and not triton.source_ops and op >= 0 and triton_name(texts[op]):
            name = canonical_name(texts[op])
        elif "<" not in name and "(" not in name:
            name = canonical_name(name)
        codes.append(distinct.setdefault(name, len(distinct)))
    symbols = np.array(codes, dtype=np.int32)[pairs.index]
    compute = events.gpu_class.codes == _core.GpuClass.COMPUTE
    labels = [canonical_name(key) for key in distinct]
    return np.where(compute, symbols, -1).astype(np.int32), labels


def _split(found: _core.KernelSequences, values: list[T]) -> list[list[T]]:
    ends = np.cumsum(found.length, dtype=np.int64).tolist()
    return [values[a:b] for a, b in pairwise([0, *ends])]


TABLE = TableSpec(
    build=build_sequences,
    options=(
        Option("length", "--length", "kernels in a sequence [all lengths]", "integer", 0, "N"),
    ),
    sql={"sequences": {}},
    page=(
        PageView(
            "kernels",
            "sequences",
            hint="Kernels that follow each other over and over, and what fusing them would remove.",
        ),
    ),
    first=("kernels", "removable_ns", "count", "length", "gpu_ns"),
)
