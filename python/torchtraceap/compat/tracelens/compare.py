"""Reports of several traces side by side, as TraceLens compares them.

Rows are joined by equal keys, which for kernels are names alone: one that stands behind three
operators here and two there makes six rows. `torchtraceap diff` aligns the traces instead and
gives every nanosecond to one cause.

Kernels of two traces by the lowest call that both have are in the columns of TraceLens's TraceDiff.
The trees are aligned as `torchtraceap diff` aligns them, not by an edit distance over names.

Source: TraceLens at 171dd747, Reporting/compare_perf_reports_pytorch.py, the files that it wrote,
and `diff_stats_df` of TraceDiff/trace_diff.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.tracelens.launchers import to_us, union_us
from torchtraceap.compat.tracelens.report import tracelens_sheets
from torchtraceap.compat.tracelens.sheets import Sheet, as_tuples, take, write_csv
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import write_files
from torchtraceap.errors import OptionError
from torchtraceap.tables.compare.alignment import compare
from torchtraceap.tables.compare.rows import align, shared_nodes
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

if TYPE_CHECKING:
    from torchtraceap.core.aliases import PathLike
    from torchtraceap.trace.ranks import Ranks

__all__ = ["compare_sheets", "diff_stats", "write_diff_stats", "write_tracelens_comparison"]

Row = dict[str, Any]
Key = tuple[str, ...]

_ARGUMENT_KEYS = ("name", "Input type", "Input Dims", "Input Strides", "Concrete Inputs")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Keys and columns by which a sheet is compared."""

    keys: tuple[str, ...]
    differences: tuple[str, ...]
    sorted_by: str
    left_out: tuple[str, ...] = ()


_WHOLE = {
    "ops_summary": _Plan(
        ("name",),
        ("total_direct_kernel_time_ms", "Count"),
        "total_direct_kernel_time_ms",
        ("total_direct_kernel_time_sum",),
    ),
    "kernel_summary": _Plan(
        ("Kernel name",),
        ("Kernel duration (µs)_sum", "Kernel duration (µs)_mean", "Kernel duration (µs)_count"),
        "Kernel duration (µs)_sum",
        ("Kernel duration (µs)_min", "Kernel duration (µs)_max", "Parent op category"),
    ),
}
_SPLIT = {
    "ops_unique_args": _Plan(
        _ARGUMENT_KEYS,
        (
            "total_direct_kernel_time_sum",
            "total_direct_kernel_time_mean",
            "operation_count",
        ),
        "total_direct_kernel_time_sum",
    ),
    "unified_perf_summary": _Plan(
        _ARGUMENT_KEYS,
        ("Kernel Time (µs)_sum", "Kernel Time (µs)_mean", "operation_count"),
        "Kernel Time (µs)_sum",
    ),
}
_FAMILIES = {
    "GEMM": "GEMM",
    "SDPA_fwd": "SDPA_fwd",
    "SDPA_bwd": "SDPA_bwd",
    "CONV_fwd": "CONV_fwd",
    "CONV_bwd": "CONV_bwd",
    "UnaryElementwise": "un_eltwise",
    "BinaryElementwise": "bin_eltwise",
}
_FAMILY_DIFFERENCES = (
    "Kernel Time (µs)_sum",
    "Kernel Time (µs)_mean",
    "name_count",
    "TFLOPS/s_mean",
    "TB/s_mean",
)
_SAID_BY_BASELINE = (
    "GFLOPS_first",
    "Data Moved (MB)_first",
    "FLOPS/Byte_first",
    "Input type_first",
    "Input Dims_first",
    "Input Strides_first",
    "Concrete Inputs_first",
)
_RUNNING = "Cumulative Percentage (%)"
_ARGUMENTS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
_NO_MODULE = "root"
"""Module of every call where Python frames are left out, as theirs does by default."""


def compare_sheets(
    reports: Sequence[Mapping[str, Sheet]], names: Sequence[str]
) -> dict[str, Sheet]:
    """Return joined sheets by name; the first report is the baseline.

    Args:
        reports: Results of `tracelens_sheets`.
        names: A short name of each, all different; they stand before the columns.

    Raises:
        OptionError: Fewer than two reports, or names that do not tell them apart.
    """
    if len(reports) < 2 or len(set(names)) != len(reports) or len(names) != len(reports):
        raise OptionError("a comparison needs two reports or more, each with a name of its own")
    timeline = _Plan(("type",), ("time ms",), "")
    joined = _join([report["gpu_timeline"] for report in reports], names, timeline)
    result = {"gpu_timeline": _sheet(joined, timeline, names)}
    for sheet, plan in _WHOLE.items():
        if all(sheet in report for report in reports):
            tables = [
                _without(report[sheet], (*plan.left_out, *([_RUNNING] if i else [])))
                for i, report in enumerate(reports)
            ]
            rows = _sorted(_join(tables, names, plan), f"{names[0]}::{plan.sorted_by}")
            result[sheet] = _sheet(rows, plan, names)
    for sheet, plan in _SPLIT.items():
        if all(sheet in report for report in reports):
            result |= _split(sheet, [report[sheet] for report in reports], names, plan)
    for sheet, short in _FAMILIES.items():
        if all(sheet in report for report in reports):
            tables = [
                _without(report[sheet], _SAID_BY_BASELINE if i else ())
                for i, report in enumerate(reports)
            ]
            # Parameters that every report has, by name.
            shared = set(tables[0]).intersection(*tables[1:])
            params = sorted(name for name in shared if name.startswith("param:"))
            plan = _Plan(("name", *params), _FAMILY_DIFFERENCES, _FAMILY_DIFFERENCES[0])
            result |= _split(short, tables, names, plan)
    return result


def write_tracelens_comparison(
    parts: Sequence[RankTrace],
    names: Sequence[str],
    folder: PathLike,
    *,
    spreadsheet: bool = False,
) -> list[Path]:
    """Write the joined sheets of several traces as CSV files.

    Args:
        parts: One rank of each trace, the baseline first.
        names: A short name of each.
        folder: Is made if it does not exist.
        spreadsheet: No cell is taken for a formula; see `ColumnTable.to_csv`.

    Returns:
        The files, in order.

    Raises:
        OptionError: See `compare_sheets` and `write_tracelens_csvs`.
        OutputError: See `write_tracelens_csvs`.
    """
    sheets = compare_sheets([tracelens_sheets(part) for part in parts], names)
    files = (
        (f"{name}.csv", partial(write_csv, sheet, spreadsheet=spreadsheet))
        for name, sheet in sheets.items()
    )
    return write_files(folder, files, inputs=[part.path for part in parts])


def _without(sheet: Sheet, names: Sequence[str]) -> Sheet:
    return {name: column for name, column in sheet.items() if name not in names}


def _is_absent(value: Any) -> bool:
    return value is None or value != value or value == ""


def _join(sheets: Sequence[Sheet], names: Sequence[str], plan: _Plan) -> list[Row]:
    """Return every row of every sheet, each with each of equal keys, in order of the keys."""
    titles = list(plan.keys)
    tables: list[dict[Key, list[Row]]] = []
    for sheet, name in zip(sheets, names, strict=True):
        own = [column if column in plan.keys else f"{name}::{column}" for column in sheet]
        titles += [title for title in own if title not in plan.keys]
        tables.append({})
        for values in zip(*sheet.values(), strict=True):
            row = dict(zip(own, values, strict=True))
            key = tuple(str(row.get(each)) for each in plan.keys)
            tables[-1].setdefault(key, []).append(row)
    joined = []
    for key in sorted(set().union(*tables)):
        combined: list[Row] = [{}]
        for table in tables:
            combined = [a | b for a in combined for b in table.get(key, [{}])]
        joined += [{title: row.get(title) for title in titles} for row in combined]
    for row, column, name in product(joined, plan.differences, names[1:]):
        base: Any = row.get(f"{names[0]}::{column}")
        value: Any = row.get(f"{name}::{column}")
        difference = percent = None
        if not _is_absent(base) and not _is_absent(value):
            difference = value - base
            percent = 100 * (difference / base) if base else None
        row[f"{column}__{name}_diff"] = difference
        row[f"{column}__{name}_pct"] = percent
    return joined


def _sorted(rows: list[Row], column: str) -> list[Row]:
    """Return the rows, the greatest first, those without a value last."""
    known = [row for row in rows if not _is_absent(row.get(column))]
    rest = [row for row in rows if _is_absent(row.get(column))]
    return sorted(known, key=lambda row: -row[column]) + rest


def _sheet(rows: list[Row], plan: _Plan, names: Sequence[str]) -> Sheet:
    """Keys, differences, then the columns of each report."""
    differences = [
        f"{column}__{name}_{kind}"
        for column in plan.differences
        for name in names[1:]
        for kind in ("diff", "pct")
    ]
    titles = list(rows[0]) if rows else []
    order = [*plan.keys, *differences]
    order += [title for title in titles if title not in order]
    return {title: [row.get(title) for row in rows] for title in order}


def _split(
    name: str, sheets: Sequence[Sheet], names: Sequence[str], plan: _Plan
) -> dict[str, Sheet]:
    """Return for each report but the baseline: rows of both, of the baseline alone, of it alone."""
    rows = _join(sheets, names, plan)
    base = names[0]
    column = plan.differences[0]
    result = {}
    for variant in names[1:]:
        in_base = [not _is_absent(row.get(f"{base}::{column}")) for row in rows]
        in_variant = [not _is_absent(row.get(f"{variant}::{column}")) for row in rows]
        flags = list(zip(rows, in_base, in_variant, strict=True))
        parts = {
            f"{name}_intersect_{variant}": ([r for r, b, v in flags if b and v], (base, variant)),
            f"{name}_only_baseline_{variant}": ([r for r, b, v in flags if b and not v], (base,)),
            f"{name}_only_variant_{variant}": ([r for r, b, v in flags if v and not b], (variant,)),
        }
        for title, (chosen, kept) in parts.items():
            ordered = _sorted(chosen, f"{kept[0]}::{plan.sorted_by}")
            result[title] = _of_reports(_sheet(ordered, plan, names), kept)
    return result


def _of_reports(sheet: Sheet, kept: Sequence[str]) -> Sheet:
    """Columns of some reports; those without any value are left out."""

    def belongs(title: str) -> bool:
        if "::" in title:
            return title.split("::", 1)[0] in kept
        for suffix in ("_diff", "_pct"):
            if title.endswith(suffix) and "__" in title:
                return title.removesuffix(suffix).rsplit("__", 1)[1] in kept
        return True

    return {
        title: column
        for title, column in sheet.items()
        if belongs(title) and not all(map(_is_absent, column))
    }


# ------------------------------------------------------------------------------ TraceDiff


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
    """Write `diff_stats.csv`.

    Args:
        before: The first trace.
        after: The second trace.
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
    # Work without a call that both traces have belongs to its operator alone.
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
