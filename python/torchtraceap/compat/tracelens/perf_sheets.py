"""Sheets about work: one per family of operators, and the unified one.

Source: TraceLens at 171dd747, TreePerf/tree_perf.py: `build_df_perf_metrics`,
`collect_unified_perf_events` and what summarizes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from torchtraceap.compat.tracelens.launchers import SYNTHETIC, CompatTree, category_of, union_us
from torchtraceap.compat.tracelens.sheets import (
    ARGUMENTS,
    METRICS,
    CallTable,
    Sheet,
    as_lists,
    call_table,
    encode,
    kernel_columns,
    order_of_sums,
    shares,
    stack,
    statistics,
    take,
)
from torchtraceap.compat.tracelens.summaries import Launchers
from torchtraceap.core.aliases import Array
from torchtraceap.ops.models.tracelens.registry import MODELS, find_model, run_model, transpose_of
from torchtraceap.ops.models.tracelens.work import (
    FAILURES,
    ModelAbsentError,
    UnmodeledError,
    Work,
)
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import names_of_batches

__all__ = ["NOTE", "family_sheets", "unified_perf_summary"]

NOTE = "experts"
"""Argument in which a made-up operator says what its model needs."""
_ONE_SHEET = ("GEMM", "UnaryElementwise", "BinaryElementwise", "Normalization")
_LISTED_AS_BACKWARD = (
    "flash_attn::_flash_attn_varlen_backward",
    "aten::convolution_backward",
)
_NOT_BACKWARD = ("aten::convolution", "ConvBias_", "ConvBiasReLU_")


class ModeledOps:
    """Operators with a model, their work, and the GPU time below them.

    Models run once for each distinct set of arguments.

    Args:
        tree: The rank.
        serves: As in the inference report, sheets of families say how many kernels a call launches,
            and models know what the engine works on.
    """

    def __init__(self, tree: CompatTree, *, serves: bool = False) -> None:
        self.tree, self.serves = tree, serves
        names = np.unique(tree.name[tree.op_rows]).tolist()
        modeled = np.zeros(len(tree.strings), dtype=bool)
        modeled[[i for i in names if find_model(tree.strings[i])]] = True
        self.rows = tree.op_rows[modeled[tree.name[tree.op_rows]]]
        self.place = np.full(len(tree.table), -1, dtype=np.int64)
        self.place[self.rows] = np.arange(len(self.rows))
        self.below = tree.below(self.rows)
        self.busy_us = tree.busy_us(self.below)
        self.texts = [tree.texts(key, self.rows) for key in ARGUMENTS]
        transpose, transposes = self._transposes()
        batch = np.full(len(self.rows), -1, dtype=np.int64)
        if serves:
            batch = names_of_batches(tree.part, self.rows)
        noted, notes = tree.texts(NOTE, self.rows)
        batch = np.where(noted >= 0, len(tree.strings) + noted, batch)
        strings = [*tree.strings, *notes]
        keys = Groups(tree.name[self.rows], *(codes for codes, _ in self.texts), transpose, batch)
        self.key = keys.index
        """int64: the number of the distinct call of each row."""
        self.works: list[Any] = []
        for row in keys.first.tolist():
            name = tree.strings[tree.name[self.rows[row]]]
            texts = [words[codes[row]] if codes[row] >= 0 else None for codes, words in self.texts]
            told = transposes[transpose[row]] if transpose[row] >= 0 else None
            said = strings[batch[row]] if batch[row] >= 0 else None
            arguments = (texts[0], texts[1], texts[2], texts[3])
            try:
                self.works.append(run_model(name, arguments, told, said))
            except ModelAbsentError:
                self.works.append("absent")
            except UnmodeledError:
                self.works.append("dropped")
        """Work of each distinct call: a `Work`, None if it failed, else "dropped" or "absent"."""
        absent = np.asarray([work == "absent" for work in self.works], dtype=bool)
        self.has_model = np.zeros(len(tree.table), dtype=bool)
        """bool `[n]`: operators with a model that does not say itself that it cannot run."""
        self.has_model[self.rows] = ~absent[self.key] if len(absent) else True

    def _transposes(self) -> tuple[Array, list[tuple[bool | None, bool | None]]]:
        """Return transposes of matrix products by the name of the first kernel that tells them."""
        tree = self.tree
        gemm = [i for i, t in enumerate(tree.strings) if t in MODELS and MODELS[t].sheet == "GEMM"]
        places = np.flatnonzero(np.isin(tree.name[self.rows], gemm))
        owner, events = self.below.take(places).expand()
        kernel = tree.name[tree.linked[events]]
        codes = np.full(len(tree.strings), -1, dtype=np.int64)
        found: dict[tuple[bool | None, bool | None], int] = {}
        for i in np.unique(kernel).tolist():
            said = transpose_of(tree.strings[i])
            if said is not None:
                codes[i] = found.setdefault(said, len(found))
        says = codes[kernel] >= 0
        first_owner, first = np.unique(owner[says], return_index=True)
        result = np.full(len(self.rows), -1, dtype=np.int64)
        result[places[first_owner]] = codes[kernel[says]][first]
        return result, list(found)


def backward_of(work: Any) -> Work | None:
    """The work of the backward pass, with the forward parameters; None without a model."""
    if not isinstance(work, Work) or work.backward is None:
        return None
    try:
        flops, moved = work.backward()
        float(flops), float(moved or 0)
    except FAILURES:
        return None
    return Work(work.params, flops, moved, work.spec)


# ----------------------------------------------------------------------------- family sheets


def family_sheets(ops: ModeledOps) -> Iterator[tuple[str, Sheet]]:
    """(name, sheet) of every family with at least one row."""
    tree = ops.tree
    good = np.asarray([isinstance(work, Work) for work in ops.works] or [False])
    good = good[ops.key]
    sheets = dict.fromkeys(entry.sheet for entry in MODELS.values())
    for sheet in sheets:
        ids = [i for i, t in enumerate(tree.strings) if t in MODELS and MODELS[t].sheet == sheet]
        places = np.flatnonzero(np.isin(tree.name[ops.rows], ids) & good)
        if sheet in _ONE_SHEET:
            yield from _named(sheet, _forward_sheet(ops, places))
            continue
        moved = np.isin(
            tree.name[ops.rows[places]], tree.ids_where(_LISTED_AS_BACKWARD.__contains__)
        )
        yield from _named(f"{sheet}_fwd", _forward_sheet(ops, places[~moved]))
        parts = [_backward_sheet(ops, places), _forward_sheet(ops, places[moved])]
        parts = [part for part in parts if part]
        # Rows of both; a column that one lacks is empty there.
        joined: Sheet = {column: [] for part in parts for column in part}
        for part, column in product(parts, joined):
            joined[column] += part.get(column, [None] * len(part["name"]))
        yield from _named(f"{sheet}_bwd", joined)


def _named(name: str, sheet: Sheet) -> Iterator[tuple[str, Sheet]]:
    if sheet and sheet["name"]:
        yield name, sheet


def _forward_sheet(ops: ModeledOps, places: Array) -> Sheet:
    owner, events = ops.below.take(places).expand()
    return _family_sheet(
        ops,
        places,
        ops.works,
        ops.busy_us[places],
        owner,
        ops.tree.linked[events],
    )


def _backward_sheet(ops: ModeledOps, places: Array) -> Sheet:
    """Forward calls whose backward pass is known, with its time and work."""
    tree = ops.tree
    works = [backward_of(work) for work in ops.works]
    good = np.asarray([work is not None for work in works], dtype=bool)
    rows = ops.rows[places]
    kept = (tree.backward[rows] >= 0) & (good[ops.key[places]] if len(good) else False)
    kept &= ~np.isin(tree.name[rows], tree.ids_where(_NOT_BACKWARD.__contains__))
    places = places[kept]
    owner, kernels = tree.backward_lists(ops.rows[places])
    busy = union_us(len(places), owner, tree.start_us[kernels], tree.end_us[kernels])
    return _family_sheet(ops, places, works, busy, owner, kernels)


def _family_sheet(
    ops: ModeledOps, places: Array, works: list[Any], busy: Array, owner: Array, kernels: Array
) -> Sheet:
    """Calls by name and parameters."""
    if not len(places):
        return {}
    tree, rows = ops.tree, ops.rows[places]
    calls = np.unique(ops.key[places], return_index=True)
    ordered = calls[0][np.argsort(calls[1])].tolist()
    columns = list(dict.fromkeys(name for call in ordered for name in works[call].params))
    distinct: dict[tuple[Any, ...], int] = {}
    code = np.zeros(len(works), dtype=np.int64)
    for call in ordered:
        values = tuple(str(works[call].params.get(name)) for name in columns)
        code[call] = distinct.setdefault(values, len(distinct))
    keys: list[Array] = [tree.name[rows], code[ops.key[places]]]
    if tree.detect_recompute:
        keys.append(tree.recompute[rows])
    groups = Groups(*keys)
    of_first = [works[ops.key[place]] for place in places[groups.first]]
    sheet: Sheet = {"name": [tree.strings[i] for i in tree.name[rows[groups.first]]]}
    for name in columns:
        sheet[f"param: {name}"] = [
            None if (value := work.params.get(name)) is None else str(value) for work in of_first
        ]
    if tree.detect_recompute:
        sheet["is_recompute"] = tree.recompute[rows[groups.first]].tolist()
    if ops.serves:
        counts = np.bincount(owner, minlength=len(places))
        sheet["num_kernels"] = counts[groups.first].tolist()
    sheet |= _work_columns(of_first, "_first")
    for title, rate in rates(works, ops.key[places], busy).items():
        found = statistics(groups, rate)
        sheet |= {f"{title}_{metric}": found[metric].tolist() for metric in METRICS}
    kernel_time = statistics(groups, busy)
    threads = tree.thread_names()
    tracks = np.asarray(tree.table.track)[rows[groups.first]].tolist()
    for place, column in enumerate(("process_name", "process_label", "thread_name")):
        sheet[f"{column}_first"] = [threads[track][place] for track in tracks]
    sheet["Compute Spec"] = [work.spec for work in of_first]
    whole, short = kernel_columns(tree, groups.index, len(groups), owner, kernels)
    sheet["kernel_details__summarize_kernel_stats"], sheet["trunc_kernel_details"] = whole, short
    for argument, (codes, words) in zip(
        ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"), ops.texts, strict=True
    ):
        chosen = codes[places[groups.first]].tolist()
        sheet[f"{argument}_first"] = [as_lists(words[c]) if c >= 0 else None for c in chosen]
    for metric in (*METRICS, "sum"):
        sheet[f"Kernel Time (µs)_{metric}"] = kernel_time[metric].tolist()
    sheet["name_count"] = groups.count.tolist()
    sheet["UID_first"] = rows[groups.first].tolist()
    return take(sheet, order_of_sums(kernel_time["sum"], rows[groups.first]))


def _work_columns(works: list[Work | None], suffix: str) -> Sheet:
    gflops = [None if work is None else work.flops / 1e9 for work in works]
    moved = [None if work is None or work.bytes is None else work.bytes for work in works]
    intensity = [
        g * 1e9 / m if g is not None and m else None for g, m in zip(gflops, moved, strict=True)
    ]
    return {
        f"GFLOPS{suffix}": gflops,
        f"Data Moved (MB){suffix}": [None if m is None else m / 2**20 for m in moved],
        f"FLOPS/Byte{suffix}": intensity,
    }


def rates(works: list[Any], key: Array, busy: Array) -> dict[str, Array]:
    """TB/s and TFLOPS/s of every call; NaN without GPU time or without a model."""
    flops = np.asarray([_number(work, "flops") for work in works] or [0.0])
    moved = np.asarray([_number(work, "bytes") for work in works] or [0.0])
    with np.errstate(divide="ignore", invalid="ignore"):
        tb = np.where(busy > 0, moved[key] / 1e12 / (busy / 1e6), np.nan)
        tflops = np.where(busy > 0, flops[key] / 1e9 / 1e3 / (busy / 1e6), np.nan)
    return {"TB/s": tb, "TFLOPS/s": tflops}


def _number(work: Any, field: str) -> float:
    value = getattr(work, field) if isinstance(work, Work) else None
    return float("nan") if value is None else float(value)


# ------------------------------------------------------------------------------ unified sheet


class Collected:
    """The calls that the unified sheet counts, each GPU event once or, nested, not at all."""

    def __init__(self, ops: ModeledOps) -> None:
        self.ops, self.tree = ops, ops.tree
        tree = self.tree
        below = tree.below(tree.op_rows)
        active = tree.op_rows[below.lengths > 0]
        self.fallback = self._sole_backward(active)
        own = np.zeros(len(tree.table), dtype=bool)
        own[active] = ops.has_model[active]
        leaves = tree.leaf_ops()
        ends = leaves[active] | (self.fallback[active] >= 0)
        ends &= ~tree.ops_inside(own, active)
        chosen = np.sort(tree.topmost(active[own[active] | ends]))
        covered = np.zeros(len(tree.linked) + 1, dtype=np.int64)
        counts = np.r_[0, np.cumsum(tree.communication[tree.linked])]
        lists = tree.below(chosen)
        has_collective = counts[lists.end] > counts[lists.begin]
        kept = own[chosen] | (self.fallback[chosen] >= 0) | ~has_collective
        self.rows = chosen[kept]
        lists = tree.below(self.rows)
        np.add.at(covered, lists.begin, 1)
        np.add.at(covered, lists.end, -1)
        free = (np.cumsum(covered)[:-1] == 0) & ~tree.communication[tree.linked]
        self.loose = np.flatnonzero(free)
        """int64: linked GPU events that belong to none of the calls."""
        self.own = own

    def _sole_backward(self, active: Array) -> Array:
        """Return int64 `[n]`: the modeled forward of its only backward operator; else -1.

        The family of the forward must have a category for its backward pass: reductions, of
        which theirs knows the backward work too, have none.
        """
        tree, ops = self.tree, self.ops
        result = np.full(len(tree.table), -1, dtype=np.int64)
        wrapper = tree.wrapper_of(active)
        inside = wrapper >= 0
        rows, wrapper = active[inside], wrapper[inside]
        if not len(rows):
            return result
        suffix = {text: i for i, text in enumerate(tree.strings)}
        main = {
            i: suffix.get(tree.strings[i].split(": ", 1)[-1], -1)
            for i in np.unique(tree.name[wrapper]).tolist()
        }
        is_main = tree.name[rows] == np.asarray([main[i] for i in tree.name[wrapper].tolist()])
        frames, counts = np.unique(wrapper[is_main], return_counts=True)
        sole = np.isin(wrapper, frames[counts == 1])
        forward = tree.forward[wrapper]
        good = np.asarray([backward_of(work) is not None for work in ops.works] or [False])
        named = np.asarray([_backward_category(text) is not None for text in tree.strings])
        place = np.where(named[tree.name[forward]], ops.place[forward], -1)
        models = (place >= 0) & good[ops.key[np.maximum(place, 0)]] if len(ops.rows) else place >= 0
        fits = sole & models
        result[rows[fits]] = forward[fits]
        return result


def _backward_category(name: str) -> str | None:
    return MODELS[name].backward_category if name in MODELS else None


def unified_perf_summary(ops: ModeledOps, launchers: Launchers) -> Sheet:
    """Calls by name and arguments: the modeled ones, leaves without a model, loose kernels.

    A call whose model fails keeps the time of its kernels.

    Args:
        ops: Operators with a model of the rank.
        launchers: Launchers of the rank.
    """
    tree = ops.tree
    collected = Collected(ops)
    rows = collected.rows
    own, forward = collected.own[rows], collected.fallback[rows]
    place = np.where(own, ops.place[rows], np.where(forward >= 0, ops.place[forward], -1))
    works = [*ops.works, *(backward_of(work) for work in ops.works), None]
    key = np.full(len(rows), len(works) - 1, dtype=np.int64)
    modeled = place >= 0
    key[modeled] = ops.key[place[modeled]] if modeled.any() else 0
    key[modeled & ~own] += len(ops.works)
    dropped = np.asarray([work == "dropped" for work in works], dtype=bool)[key]
    rows, key, own, forward = rows[~dropped], key[~dropped], own[~dropped], forward[~dropped]
    lists = tree.below(rows)
    busy = tree.busy_us(lists)
    by_forward = np.flatnonzero(~own & (forward >= 0))
    owner, kernels = tree.backward_lists(forward[by_forward])
    busy[by_forward] = union_us(
        len(by_forward), owner, tree.start_us[kernels], tree.end_us[kernels]
    )
    owner, events = lists.expand()
    strings = tree.strings
    codes, texts = launchers.categories_of(rows)

    def category_of_call(code: int, forward: int) -> str:
        # A backward pass that is worked out from its forward has the latter's category.
        return (_backward_category(strings[forward]) if forward >= 0 else None) or texts[code]

    def synthetic_name(kernel: int, parent: int) -> str:
        return f"{strings[parent]}->{strings[kernel]}{SYNTHETIC}"

    def category_of_kernel(kernel: int, parent: int, first: int) -> str:
        # The first kernel that the parent launched decides, whichever kernel the row stands for.
        return category_of(synthetic_name(kernel, parent), strings[first] if first >= 0 else None)

    # Kernels that belong to no call stand below the calls.
    loose, above = tree.linked[collected.loose], tree.op_above[collected.loose]
    parents = np.where(above >= 0, above, tree.call[collected.loose])
    ids = tree.name[loose], tree.name[parents]
    names = stack(encode(strings.__getitem__, tree.name[rows]), encode(synthetic_name, *ids))
    of_forward = np.where(~own & (forward >= 0), tree.name[forward], -1)
    categories = stack(
        encode(category_of_call, codes, of_forward),
        encode(category_of_kernel, *ids, launchers.first_kernels_of(parents)),
    )
    examples = np.r_[rows, loose]
    if not len(examples):
        return {}
    return _unified_sheet(
        call_table(tree, np.r_[rows, parents], names, categories, tree.recompute[examples]),
        examples,
        works,
        np.r_[key, np.full(len(loose), len(works) - 1, dtype=np.int64)],
        np.r_[busy, tree.end_us[loose] - tree.start_us[loose]],
        np.r_[owner, len(rows) + np.arange(len(loose))],
        np.r_[tree.linked[events], loose],
        np.r_[own | (forward >= 0), np.zeros(len(loose), dtype=bool)],
    )


def _unified_sheet(
    calls: CallTable,
    examples: Array,
    works: list[Any],
    key: Array,
    busy: Array,
    owner: Array,
    kernels: Array,
    has_model: Array,
) -> Sheet:
    tree = calls.tree
    groups = calls.groups()
    firsts = groups.first
    sheet = calls.key_columns(groups)
    sheet["ex_UID"] = examples[firsts].tolist()
    sheet["operation_count"] = groups.count.tolist()
    host = statistics(groups, tree.dur_us[calls.rows])
    for metric, title in (("sum", "total"), ("mean", "mean"), ("std", "std")):
        sheet[f"{title}_duration_us"] = host[metric].tolist()
    of_first = [
        work if isinstance(work, Work) else None for work in (works[k] for k in key[firsts])
    ]
    sheet |= _work_columns(of_first, "")
    sheet["Compute Spec"] = [None if work is None else work.spec for work in of_first]
    found = {title: statistics(groups, values) for title, values in rates(works, key, busy).items()}
    found["Kernel Time (µs)"] = statistics(groups, busy)
    for title, columns in found.items():
        metrics = ("mean", "std", "sum") if title.startswith("Kernel") else ("mean", "std")
        sheet |= {f"{title}_{metric}": columns[metric].tolist() for metric in metrics}
    found = {"duration_us": host, **found}
    for title, columns in found.items():
        for metric in ("median", "min", "max"):
            sheet[f"{title}_{metric}"] = columns[metric].tolist()
    whole, short = kernel_columns(tree, groups.index, len(groups), owner, kernels)
    sheet["kernel_details_summary"], sheet["trunc_kernel_details"] = whole, short
    sheet["perf_params"] = [None if work is None else str(work.params) for work in of_first]
    sheet["has_perf_model"] = has_model[firsts].tolist()
    sums = found["Kernel Time (µs)"]["sum"]
    order = order_of_sums(sums, examples[firsts])
    sheet = take(sheet, order)
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = shares(sums[order])
    return sheet
