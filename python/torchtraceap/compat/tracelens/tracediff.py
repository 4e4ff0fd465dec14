"""Kernels of two traces by the lowest call that both have, in the columns of TraceLens's TraceDiff.

The trees are aligned as `torchtraceap diff` aligns them, not by an edit distance over names.

Source: the files that TraceLens at 171dd747 wrote, and `diff_stats_df` of TraceDiff/trace_diff.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.tracelens.launchers import to_us, union_us
from torchtraceap.compat.tracelens.sheets import Sheet, as_tuples, take, write_csv
from torchtraceap.core.aliases import Array
from torchtraceap.core.writing import write_files
from torchtraceap.tables.compare.alignment import compare
from torchtraceap.tables.compare.rows import align, shared_nodes
from torchtraceap.tables.grouping import Groups

if TYPE_CHECKING:
    from torchtraceap.core.aliases import PathLike
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["diff_stats", "write_diff_stats"]

_ARGUMENTS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
_NO_MODULE = "root"
"""Of every call where Python frames are left out, as theirs does by default."""


def diff_stats(before: Ranks, after: Ranks) -> Sheet:
    """A row for each kernel that an operator launched, of the first pair of ranks.

    `cpu_op_uid` and `gpu_op_uid` are row numbers of the trace, `lowest_common_ancestor_id` is a
    number of the call in the merged tree; without a call that both have it is absent.
    """
    comparison = compare(before, after)
    trees, _ = align(comparison)
    shared = shared_nodes(trees)
    sheets, nodes = [], []
    for is_after, side in enumerate(comparison.sides):
        part = side.cuts[0].part
        rows = np.asarray(part.tree.linked_gpu_rows).astype(np.int64)
        op = np.asarray(part.tree.op)[rows].astype(np.int64)
        node = np.asarray((trees.after_node if is_after else trees.before_node)(0))[rows]
        known = (op != _core.NO_ROW) & (node != _core.NO_ROW)
        rows, op, node = rows[known], op[known], shared[node[known]].astype(np.int64)
        sheets.append(_side(part, rows, op, node, f"trace{is_after + 1}"))
        nodes.append(node)
    joined = {key: sheets[0][key] + sheets[1][key] for key in sheets[0]}
    node = np.concatenate(nodes)
    names = [
        None
        if number == _core.NO_ROW
        else trees.names[trees.context_before[trees.variant_context[trees.variant[number]]]]
        for number in node.tolist()
    ]
    joined["lowest_common_ancestor_name"] = names
    numbers = [None if number == _core.NO_ROW else number for number in node.tolist()]
    joined["lowest_common_ancestor_id"] = numbers
    last = ("gpu_op_uid", "nn_module_stack", "nn_module_parent")
    ordered = {key: joined[key] for key in (*(k for k in joined if k not in last), *last)}
    return take(ordered, np.argsort(node, kind="stable"))


def write_diff_stats(
    before: Ranks, after: Ranks, folder: PathLike, *, spreadsheet: bool = False
) -> list[Path]:
    """Writes `diff_stats.csv`.

    Args:
        before: The first trace.
        after: The second.
        folder: Is made if it does not exist.
        spreadsheet: No cell is taken for a formula; see `ColumnTable.to_csv`.

    Returns:
        The file.

    Raises:
        OptionError, OutputError: See `write_tracelens_csvs`.
    """
    write = partial(write_csv, diff_stats(before, after), spreadsheet=spreadsheet)
    inputs = [part.path for side in (before, after) for part in side.ranks]
    return write_files(folder, [("diff_stats.csv", write)], inputs=inputs)


def _side(part: RankTrace, rows: Array, op: Array, node: Array, source: str) -> Sheet:
    table = part.table
    strings, names = table.strings, np.asarray(table.name)
    start, dur = (np.asarray(times)[rows] for times in (table.ts_ns, table.dur_ns))
    # What has no call that both have is of its operator alone.
    groups = Groups(np.where(node == _core.NO_ROW, -1 - op, node))
    start = (start - start.min(initial=np.iinfo(np.int64).max)).astype(np.float64)
    busy = union_us(len(groups), groups.index, start, start + dur) / 1000  # both in ns
    sheet: Sheet = {
        "name": [strings[i] for i in names[rows].tolist()],
        "cpu_op_name": [strings[i] for i in names[op].tolist()],
        "cpu_op_uid": op.tolist(),
        "source": [source] * len(rows),
    }
    for key in _ARGUMENTS:
        codes, texts = table.text_codes(key, op)
        words: list[Any] = [*map(as_tuples, texts), None]  # the last is that of code -1
        sheet[key] = [words[code] for code in np.asarray(codes).tolist()]
    sheet["kernel_time"] = to_us(dur).tolist()
    sheet["busy_time"] = busy[groups.index].tolist()
    sheet["gpu_op_uid"] = rows.tolist()
    sheet["nn_module_stack"] = sheet["nn_module_parent"] = [_NO_MODULE] * len(rows)
    return sheet
