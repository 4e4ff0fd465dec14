"""Sheets about time: the GPU's timeline, launchers, kernels, short kernels.

Source: TraceLens at 171dd747, TreePerf/tree_perf.py, TreePerf/gpu_event_analyser.py and
Reporting/generate_perf_report_pytorch.py.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.tracelens.launchers import CompatTree, category_of, union_us
from torchtraceap.compat.tracelens.sheets import (
    METRICS,
    CallTable,
    Coded,
    Sheet,
    as_tuples,
    call_table,
    encode,
    kernel_columns,
    order_of_sums,
    shares,
    stack,
    statistics,
    take,
    texts_at,
)
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.tables.grouping import Groups

__all__ = [
    "Launchers",
    "gpu_timeline",
    "kernel_summary",
    "launchers_of",
    "ops_summary",
    "ops_summary_by_category",
    "ops_unique_args",
    "short_kernel_histogram",
    "short_kernels_summary",
]

_SHORT_US, _BINS = 10, 100
"""Longest duration of a short kernel, and the bins of their histogram."""
_TIMELINE = (
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "busy_time",
    "idle_time",
    "total_time",
    "total_comm_time",
    "total_memcpy_time",
)


def gpu_timeline(tree: CompatTree) -> Sheet:
    """GPU time by class in ms; with recomputation looked for, outside and inside of it."""
    linked = np.sort(tree.linked)
    if not tree.detect_recompute:
        return _timeline(tree, linked)
    sheets = []
    for value in (False, True):
        rows = linked[tree.recompute[linked] == value]
        if len(rows) or not value:
            part = _timeline(tree, rows)
            sheets.append(part | {"is_recompute": [value] * len(_TIMELINE)})
    return {name: [v for sheet in sheets for v in sheet[name]] for name in sheets[0]}


def _timeline(tree: CompatTree, rows: Array) -> Sheet:
    memcpy, kernels = tree.memcpy[rows], ~tree.memcpy[rows]
    communication = tree.communication[rows] & kernels
    compute = kernels & ~communication

    def union(wanted: Array) -> float:
        chosen = rows[wanted]
        nothing = np.zeros(len(chosen), dtype=np.int64)
        return float(union_us(1, nothing, tree.start_us[chosen], tree.end_us[chosen])[0])

    everything = np.ones(len(rows), dtype=bool)
    busy, computing, kernel_time = union(everything), union(compute), union(kernels)
    total = float(tree.end_us[rows].max() - tree.start_us[rows].min()) if len(rows) else 0.0
    times = (
        computing,
        kernel_time - computing,
        busy - kernel_time,
        busy,
        total - busy,
        total,
        union(communication),
        union(memcpy),
    )
    return {
        "type": list(_TIMELINE),
        "time ms": [time / 1e3 for time in times],
        "percent": [time / total * 100 if total else 0.0 for time in times],
    }


def total_us(timeline: Sheet) -> float:
    """Return their base of "percent of total time"."""
    total: float = timeline["time ms"][_TIMELINE.index("total_time")] * 1e3
    return total


# ---------------------------------------------------------------------------------- launchers


@dataclass(frozen=True, slots=True)
class Launchers:
    """Operators (or calls) that launched kernels, by start, and what they launched."""

    calls: CallTable
    direct_us: Array
    subtree_us: Array
    owner: Array
    """int64, per kernel: its launcher, ascending."""
    kernels: Array
    """int64: rows of the kernels."""

    first_kernel: Array
    """int64, per launcher: name id of the first kernel that it launched."""

    def first_kernels_of(self, rows: Array) -> Array:
        """int64: name ids of the first kernels that some rows launched themselves, or -1."""
        known = np.full(len(self.calls.tree.table), -1, dtype=np.int64)
        known[self.calls.rows] = self.first_kernel
        kernels: Array = known[rows]
        return kernels

    def categories_of(self, ops: Array) -> Coded:
        """Category of some operators: by their own first kernel if they launched one."""
        return _categories(self.calls.tree, self.calls.tree.name[ops], self.first_kernels_of(ops))


def _categories(tree: CompatTree, names: Array, first_kernels: Array) -> Coded:
    """Return categories by name ids of operators and of their first kernels, -1 without one."""
    strings = tree.strings

    def category(name: int, kernel: int) -> str:
        return category_of(strings[name], strings[kernel] if kernel >= 0 else None)

    return encode(category, names, first_kernels)


def launchers_of(tree: CompatTree) -> Launchers:
    """Every launcher of a kernel, copy or fill that is no collective."""
    wanted = ~tree.communication[tree.linked]
    launcher, kernels = tree.launcher[wanted], tree.linked[wanted]
    rows, owner = np.unique(launcher, return_inverse=True)
    order = np.lexsort((kernels, owner))
    owner, kernels = owner[order], kernels[order]
    first = tree.name[kernels[np.searchsorted(owner, np.arange(len(rows)))]]
    names = encode(tree.strings.__getitem__, tree.name[rows])
    categories = _categories(tree, tree.name[rows], first)
    return Launchers(
        call_table(tree, rows, names, categories, tree.recompute[rows]),
        union_us(len(rows), owner, tree.start_us[kernels], tree.end_us[kernels]),
        tree.busy_us(tree.below(rows)),
        owner,
        kernels,
        first,
    )


def _grouped(launchers: Launchers, key: Array) -> Groups:
    """Group by one column and, if it is looked for, recomputation."""
    calls = launchers.calls
    return Groups(key, calls.recompute) if calls.tree.detect_recompute else Groups(key)


def ops_summary_by_category(launchers: Launchers) -> Sheet:
    """Launchers by category."""
    calls = launchers.calls
    groups = _grouped(launchers, calls.categories[0])
    sums = groups.sum(launchers.direct_us)
    order = order_of_sums(sums, np.arange(len(groups)))
    first = groups.first[order]
    sheet: Sheet = {"op category": texts_at(calls.categories, first)}
    if calls.tree.detect_recompute:
        sheet["is_recompute"] = calls.recompute[first].tolist()
    sheet["Count"] = groups.count[order].tolist()
    sheet["total_direct_kernel_time_ms"] = (sums[order] / 1000).tolist()
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = shares(sums[order])
    return sheet


def ops_summary(launchers: Launchers) -> Sheet:
    """Launchers by name."""
    calls = launchers.calls
    groups = _grouped(launchers, calls.names[0])
    direct, subtree = groups.sum(launchers.direct_us), groups.sum(launchers.subtree_us)
    pairs = Groups(groups.index, calls.categories[0])
    categories: list[list[str]] = [[] for _ in range(len(groups))]
    for row, category in zip(
        pairs.first.tolist(), texts_at(calls.categories, pairs.first), strict=True
    ):
        categories[groups.index[row]].append(category)
    order = order_of_sums(direct, np.arange(len(groups)))
    first = groups.first[order]
    sheet: Sheet = {"name": texts_at(calls.names, first)}
    if calls.tree.detect_recompute:
        sheet["is_recompute"] = calls.recompute[first].tolist()
    sheet |= {
        "total_direct_kernel_time_sum": direct[order].tolist(),
        "total_subtree_kernel_time_sum": subtree[order].tolist(),
        "total_direct_kernel_time_ms": (direct[order] / 1000).tolist(),
        "total_subtree_kernel_time_ms": (subtree[order] / 1000).tolist(),
        "Count": groups.count[order].tolist(),
        "Categories": [str(sorted(categories[i])) for i in order.tolist()],
    }
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = shares(direct[order])
    return sheet


def ops_unique_args(launchers: Launchers) -> Sheet:
    """Launchers by name and arguments."""
    calls = launchers.calls
    groups = calls.groups()
    sheet = calls.key_columns(groups)
    sheet["operation_count"] = groups.count.tolist()
    direct = statistics(groups, launchers.direct_us)
    subtree = statistics(groups, launchers.subtree_us)
    for metric in (*METRICS, "sum"):
        sheet[f"total_direct_kernel_time_{metric}"] = direct[metric].tolist()
        sheet[f"total_subtree_kernel_time_{metric}"] = subtree[metric].tolist()
    first_rows = calls.rows[groups.first]
    sheet["ex_UID"] = first_rows.tolist()
    whole, short = kernel_columns(
        calls.tree, groups.index, len(groups), launchers.owner, launchers.kernels
    )
    sheet["kernel_details_summary"], sheet["trunc_kernel_details"] = whole, short
    order = order_of_sums(direct["sum"], first_rows)
    sheet = take(sheet, order)
    percent, cumulative = shares(direct["sum"][order])
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = percent, cumulative
    return sheet


# ------------------------------------------------------------------------------------ kernels


class Kernels:
    """All kernels, those without a launch too, with the operator above each."""

    def __init__(self, tree: CompatTree, launchers: Launchers) -> None:
        self.tree = tree
        kernel = _core.EventKind.KERNEL
        self.rows = tree.gpu_rows[tree.kind[tree.gpu_rows] == kernel]
        self.rows.sort()
        self.dur_us = tree.dur_us[self.rows]
        above = np.full(len(tree.table), -1, dtype=np.int64)
        call = above.copy()
        above[tree.linked], call[tree.linked] = tree.op_above, tree.call
        self.op, self.call = above[self.rows], call[self.rows]
        self.gpu_only = not (self.op >= 0).any()
        """No kernel has an operator: theirs leaves the columns about operators out."""
        self._launchers = launchers

    def names(self, rows: Array) -> list[str | None]:
        """Return the names of some rows; None for -1."""
        strings = self.tree.strings
        ids = np.where(rows >= 0, self.tree.name[rows], -1).tolist()
        return [strings[i] if i >= 0 else None for i in ids]

    def categories(self) -> Coded:
        """Return the category of the operator above each kernel, else "graph" or "runtime"; absent
        for orphans."""
        strings = self.tree.strings

        def category(name: int) -> str:
            lower = strings[name].lower()
            return "graph" if "cudagraph" in lower or "graphlaunch" in lower else "runtime"

        of_op = self._launchers.categories_of(self.op)
        of_call = encode(category, self.tree.name[self.call])
        codes, texts = stack(of_op, of_call)
        found = np.where(self.op >= 0, codes[: len(self.rows)], codes[len(self.rows) :])
        return np.where((self.op >= 0) | (self.call >= 0), found, -1), texts


def kernel_summary(kernels: Kernels, total: float) -> Sheet:
    """Kernels by category and name of the operator, name and stream."""
    tree = kernels.tree
    categories = kernels.categories()
    parent = np.where(kernels.op >= 0, kernels.op, kernels.call)
    parent_name = np.where(parent >= 0, tree.name[parent], -1)
    if kernels.gpu_only:
        parent_name[:] = -1
    stream = np.asarray(tree.table.stream)[kernels.rows]
    groups = Groups(categories[0], parent_name, tree.name[kernels.rows], stream)
    found = statistics(groups, kernels.dur_us)
    order = order_of_sums(found["sum"], np.arange(len(groups)))
    first = groups.first[order]
    sheet: Sheet = {"Parent op category": texts_at(categories, first)}
    if not kernels.gpu_only:
        sheet["Parent cpu_op"] = kernels.names(parent[first])
    sheet["Kernel name"] = kernels.names(kernels.rows[first])
    sheet["Kernel stream"] = [None if s == _core.NO_ID else int(s) for s in stream[first]]
    for metric in ("sum", "count", "mean", "min", "max"):
        column = groups.count if metric == "count" else found[metric]
        sheet[f"Kernel duration (µs)_{metric}"] = column[order].tolist()
    sums = found["sum"][order]
    everything = float(kernels.dur_us.sum())
    sheet["Percent of kernels time (%)"] = _percent(sums, everything)
    sheet["Percent of total time (%)"] = _percent(sums, total)
    return sheet


def _percent(values: Array, base: float) -> list[float]:
    percent: list[float] = (values / base * 100 if base else np.full(len(values), np.nan)).tolist()
    return percent


def short_kernel_histogram(kernels: Kernels) -> Sheet:
    """Durations of short kernels in bins of equal width; no bin where there are none."""
    short = kernels.dur_us[kernels.dur_us < _SHORT_US]
    counts, edges = np.histogram(short, bins=_BINS) if len(short) else (np.zeros(0), np.zeros(1))
    return {
        "bin_start": edges[:-1].tolist(),
        "bin_end": edges[1:].tolist(),
        "count": counts.tolist(),
    }


def short_kernels_summary(kernels: Kernels, total: float) -> Sheet:
    """Short kernels by operator, arguments and name; those without an operator are left out."""
    tree = kernels.tree
    keys = () if kernels.gpu_only else ("Input Dims", "Input Strides", "Concrete Inputs")
    wanted = kernels.dur_us < _SHORT_US
    if not kernels.gpu_only:
        wanted &= kernels.op >= 0
    op, rows, dur = kernels.op[wanted], kernels.rows[wanted], kernels.dur_us[wanted]
    texts = [tree.texts(key, op) for key in keys]
    known = np.ones(len(rows), dtype=bool)
    for codes, _ in texts:
        known &= codes >= 0
    op, rows, dur = op[known], rows[known], dur[known]
    texts = [(codes[known], words) for codes, words in texts]
    if not len(rows):
        return {}
    names = [tree.name[rows]] if kernels.gpu_only else [tree.name[op], tree.name[rows]]
    groups = Groups(*names, *(codes for codes, _ in texts))
    found = statistics(groups, dur)
    order = np.lexsort((found["mean"], groups.count, -found["sum"]))
    first = groups.first[order]
    sheet: Sheet = {}
    if not kernels.gpu_only:
        sheet["Parent cpu_op"] = kernels.names(op[first])
        for (codes, words), title in zip(
            texts, ("Input dims", "Input strides", "Concrete Inputs"), strict=True
        ):
            sheet[title] = [as_tuples(words[code]) for code in codes[first]]
    sheet["Kernel name"] = kernels.names(rows[first])
    sheet["Short Kernel duration (µs) sum"] = found["sum"][order].tolist()
    sheet["Short Kernel count"] = groups.count[order].tolist()
    sheet["Short Kernel duration (µs) mean"] = found["mean"][order].tolist()
    percent = _percent(found["sum"][order], total)
    sheet["Short Kernel duration (µs) percent of total time"] = percent
    return sheet
