"""The call tree as rows: each host call with the one above it, each GPU event with its launch."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, recode
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.gpu.gpu_events import row_numbers
from torchtraceap.tables.labels import phases_of
from torchtraceap.tables.spec import Option, TableSpec
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_tree_rows"]

ANY_DEPTH = 2**31 - 1
_SHOWN = ("row", "parent", "depth", "kind", "name", "duration_ns", "thread", "stream", "phase")


def build_tree_rows(
    part: RankTrace,
    *,
    step: str | int | None = None,
    max_depth: int = 6,
    min_duration_ns: int = 0,
    kernels: bool = True,
) -> ColumnTable:
    """The tree of one rank as rows by time; a GPU event's parent is the call that launched it.

    Args:
        part: The rank.
        step: Only what starts in this step, by name or by place (0 is the first).
        max_depth: Deepest level of host calls.
        min_duration_ns: Leave shorter host events out.
        kernels: List GPU events too.

    Raises:
        OptionError: There is no such step.
    """
    table, tree = part.table, part.tree
    rows = _chosen(part, part.step_bounds(step), max_depth, min_duration_ns, kernels)
    on_gpu = tree.gpu_class[rows] != 0
    columns: dict[str, Column] = {
        "row": rows,
        "parent": row_numbers(np.where(on_gpu, tree.launch[rows], tree.parent[rows])),
        "depth": np.ma.array(tree.depth[rows].astype(np.int64), mask=on_gpu),
        "kind": TextCodes(table.kind[rows].astype(np.int8), _core.kind_names()),
        "name": TextCodes(table.name[rows].astype(np.int32), table.strings),
        "start_ns": table.ts_ns[rows],
        "duration_ns": table.dur_ns[rows],
        "thread": _threads(part, rows, on_gpu),
        "stream": np.ma.masked_equal(table.stream[rows], _core.NO_ID),
        "phase": phases_of(part, rows),
    }
    return ColumnTable(columns, shown=_SHOWN)


def _chosen(
    part: RankTrace,
    bounds: tuple[int, int] | None,
    max_depth: int,
    min_duration_ns: int,
    kernels: bool,
) -> Array:
    table, tree = part.table, part.tree
    host = tree.host_rows.astype(np.int64)
    keep = tree.depth[host] <= max_depth
    keep &= table.dur_ns[host] >= min_duration_ns
    rows = host[keep]
    if kernels:
        rows = np.concatenate([rows, tree.gpu_rows.astype(np.int64)])
    if bounds is not None:
        # A GPU event belongs to the step that launched it, whenever it runs.
        launch = tree.launch[rows].astype(np.int64)
        start = table.ts_ns[np.where(launch == _core.NO_ROW, rows, launch)]
        rows = rows[(start >= bounds[0]) & (start < bounds[1])]
    return np.sort(rows)


def _threads(part: RankTrace, rows: Array, on_gpu: Array) -> TextCodes:
    """The number that the trace gives the thread; absent on the GPU."""
    threads = recode(part.table.track[rows], [track.tid for track in part.table.tracks])
    return TextCodes(np.where(on_gpu, np.int32(-1), threads.codes), threads.texts)


TABLE = TableSpec(
    build=build_tree_rows,
    options=(
        Option("step", "--step", "only this step, by name or place", kind="step", metavar="STEP"),
        Option(
            "max_depth",
            "--max-depth",
            "deepest level of calls [6]",
            kind="count",
            default=6,
            metavar="N",
        ),
        Option(
            "min_duration_ns",
            "--min-us",
            "leave shorter calls out",
            kind="microseconds",
            default=0,
            metavar="US",
        ),
        Option("kernels", "--no-kernels", "leave GPU events out", kind="no_flag", default=True),
    ),
    sql={"tree": {"max_depth": ANY_DEPTH}},
    first=("name", "duration_ns", "depth", "kind", "row"),
)
