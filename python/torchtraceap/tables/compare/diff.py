"""The difference between two recordings by operator, kernel, cause or finding, to the nanosecond.

Note [A difference that adds up]: Every instant of a step belongs to one GPU event, one idle cause
or, in a trace without GPU events, one host row (`_core.step_pieces`), so the pieces of a step sum
to its length. Medians of pieces do not sum to the median step, and a single median step carries
its own noise. So the pieces are averaged over the middle half of the whole steps by length (the
interquartile mean), rounded to integers, and what is left to the median step is a row of its own,
`(spread between steps)`. Rows of B minus rows of A then sum to the difference of the medians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_share
from torchtraceap.core.intervals import covered_ns, union
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.compare.alignment import Comparison, Side, compare
from torchtraceap.tables.compare.noise import (
    FEWEST_STEPS,
    LARGEST_SPREAD,
    common_factor,
    recording_noise_ns,
    step_noise_ns,
)
from torchtraceap.tables.compare.rows import (
    AncestorRows,
    KernelRows,
    LayerRows,
    Measured,
    OpRows,
    PartRows,
    Places,
    RowView,
    align,
    measure_rows,
)
from torchtraceap.tables.detection import detect, judge
from torchtraceap.tables.quality import quality_of_both
from torchtraceap.tables.steps.pieces import first_idle_part, middle_half

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["VIEWS", "build_diff"]

VIEWS = ("op", "kernel", "ancestor", "cause", "layer", "finding", "tree")

UNCHANGED_SHARE = 0.001
"""Differences below this share of the longer step count as unchanged if noise is unknown."""
ALIKE_SHARE = 0.1
"""The share of operators with a partner below which the recordings hardly are of one program."""
STATUSES = ("regression", "improvement", "new", "gone", "unchanged")
SPREAD = "(spread between steps)"


def build_diff(before: Ranks, after: Ranks, *, by: str = "op") -> ColumnTable:
    """Return a table of where the step time of `after` differs from that of `before`.

    Args:
        before: Recording A.
        after: Recording B. Ranks are paired by number; two lone ranks are always paired.
        by: "op" (operators at their place in the call tree, and idle causes), "kernel",
            "ancestor" (kernels by the lowest call around them that both recordings have), "cause"
            (classes of GPU work and idle causes), "layer" (layers of a served model and the roles
            of their kernels), "finding" (what `diagnose` says of either) or
            "tree" (the two call trees as one).

    Returns:
        Rows whose int64 column `delta_ns` sums to the fact `difference_ns`, the median whole step
        of B minus that of A (but for "tree", whose rows contain each other).

    Raises:
        OptionError: There is no such view.
    """
    if by not in VIEWS:
        raise OptionError(f"by: there is no {by!r}; there are {', '.join(VIEWS)}")
    comparison = compare(before, after)
    if by == "tree":
        return _tree_table(comparison)
    if by == "finding":
        return _finding_table(comparison)
    views: dict[str, Callable[[Comparison], RowView]] = {
        "op": OpRows,
        "kernel": KernelRows,
        "ancestor": AncestorRows,
        "cause": PartRows,
        "layer": LayerRows,
    }
    view = views[by](comparison)
    keys, _, measured = measure_rows(comparison, view)
    kept = np.flatnonzero((measured[0].ns != 0) | (measured[1].ns != 0))
    ns = [m.ns[kept] for m in measured]
    naming = view.columns(keys[kept], ns, [m.calls[kept] for m in measured])
    rest = [step - total(part) for step, part in zip(comparison.step_ns, ns, strict=True)]
    noise = _noise_ns(comparison, view, keys, measured, kept)
    return _closed_table(comparison, naming, ns, rest, noise)


# ---------------------------------------------------------------------------------- pieces


def _noise_ns(
    comparison: Comparison, view: RowView, keys: Array, measured: Sequence[Measured], kept: Array
) -> Array:
    """Return the largest difference of each kept row that is not beyond chance (noise.py).

    Returns:
        float64 `[kept]` in ns; NaN if a side has too few steps.
    """
    cells = [m.cells(len(keys)) for m in measured]
    typical = [side.middle_means() for side in cells]
    between_steps = step_noise_ns(cells, len(kept))
    # The factor is that of the rows, or of kernels if the rows are classes.
    calls, is_work = [m.calls for m in measured], view.kinds(keys) < first_idle_part()
    work_ns = typical
    if isinstance(view, PartRows):
        kernels = KernelRows(comparison)
        kernel_keys, _, of_kernels = measure_rows(comparison, kernels)
        calls, is_work = (
            [m.calls for m in of_kernels],
            kernels.kinds(kernel_keys) < first_idle_part(),
        )
        work_ns = [m.cells(len(kernel_keys)).middle_means() for m in of_kernels]
    common = common_factor(work_ns, calls, is_work)
    between_recordings = np.zeros(len(keys))
    if common.spread <= LARGEST_SPREAD:  # else most rows have changed, and tell nothing of chance
        between_recordings = recording_noise_ns(typical, common, len(kept))
    # A step that stood still may be one of the middle steps: its row differs by that much more.
    accidental = np.abs((measured[1].ns - measured[0].ns) - (typical[1] - typical[0]))
    noise: Array = np.hypot(between_steps, between_recordings) + accidental
    return noise[kept]


def _closed_table(
    comparison: Comparison,
    naming: dict[str, Column],
    ns: Sequence[Array],
    rest: Sequence[int],
    noise: Array,
) -> ColumnTable:
    """Return the table, largest differences first, with the row that completes the sum."""
    delta = ns[1] - ns[0]
    order = np.lexsort((np.arange(len(delta)), -np.abs(delta)))
    close = any(rest)
    columns = {name: _extend(column, order, close) for name, column in naming.items()}
    name = columns.pop("name")
    assert isinstance(name, TextCodes)
    if close:
        texts = [*name.texts, SPREAD]
        name = TextCodes(np.append(name.codes[:-1], np.int32(len(texts) - 1)), texts)
    before, after = (
        np.append(part[order], np.int64(left)) if close else part[order]
        for part, left in zip(ns, rest, strict=True)
    )
    delta = after - before
    noise = np.append(noise[order], np.nan) if close else noise[order]
    status = _status(comparison, before, after, noise)
    if close:
        status[-1] = -1  # what is left to the medians is nothing that comes or goes
    significance = np.where(np.isnan(noise), -1, np.where(np.abs(delta) <= noise, 1, 0))
    lead: dict[str, Column] = {"name": name}
    if "part" in columns:
        lead["part"] = columns.pop("part")
    made: dict[str, Column] = {
        **lead,
        "status": TextCodes(status, STATUSES),
        "before_ns": before,
        "after_ns": after,
        "delta_ns": delta,
        "noise_ns": noise,
        "significance": TextCodes(significance.astype(np.int32), ("beyond noise", "within noise")),
        **columns,
    }
    shown = ("name", "status", "before_ns", "after_ns", "delta_ns", "significance", "dims",
             "parent", "ancestor")  # fmt: skip
    return ColumnTable(
        made,
        shown=tuple(n for n in shown if n in made),
        first=("name", "delta_ns", "status", "before_ns", "after_ns"),
        facts=_facts(comparison),
        notes=[*comparison.notes, *_closing_notes(comparison, noise, rest, columns)],
    )


def _extend(column: Column, order: Array, close: bool) -> Column:
    """Return the column in order, with an absent value at the end."""
    if isinstance(column, TextCodes):
        codes = column.codes[order].astype(np.int32)
        return TextCodes(np.append(codes, np.int32(-1)) if close else codes, column.texts)
    if isinstance(column, np.ma.MaskedArray):
        absent = np.ma.getmaskarray(column)[order]
        values = np.ma.getdata(column)[order]
        if close:
            absent, values = np.append(absent, True), np.append(values, values.dtype.type(0))
        return np.ma.array(values, mask=absent)
    return np.append(column[order], np.nan) if close else column[order]


def _status(comparison: Comparison, before: Array, after: Array, noise: Array) -> Array:
    """Return indices of STATUSES, int32 `[rows]`. A row with time on one side alone is new or gone,
    however little it is; `significance` says if that may be chance."""
    delta = after - before
    floor = UNCHANGED_SHARE * max(comparison.step_ns)
    small = np.where(np.isnan(noise), np.abs(delta) < floor, np.abs(delta) <= noise)
    status = np.where(small | (delta == 0), 4, np.where(delta > 0, 0, 1))
    status = np.where((before == 0) & (after > 0), 2, status)
    status = np.where((after == 0) & (before > 0), 3, status)
    chosen: Array = status.astype(np.int32)
    return chosen


def _facts(comparison: Comparison) -> dict[str, Any]:
    quality, why_not = quality_of_both(comparison.before.recording, comparison.after.recording)
    return {
        "quality": quality.to_dict(),
        "why_not": why_not,
        "difference_ns": comparison.difference_ns,
        "before_step_ns": comparison.step_ns[0],
        "after_step_ns": comparison.step_ns[1],
        "before_steps": len(comparison.before.durations),
        "after_steps": len(comparison.after.durations),
        "basis": comparison.basis,
    }


def _closing_notes(
    comparison: Comparison, noise: Array, rest: Sequence[int], columns: dict[str, Column]
) -> Iterator[str]:
    if comparison.basis != "profiled range" and np.isnan(noise).all():
        yield (
            f"Fewer than {FEWEST_STEPS} whole steps: whether a difference is beyond the noise "
            "between steps is not known."
        )
    if any(rest):
        yield (
            f"{SPREAD}: the other rows are means over the middle half of the steps; this is what "
            "is left to the medians."
        )
    matched = columns.get("matched_by")
    if isinstance(matched, TextCodes) and (matched.codes >= 0).any():
        known = matched.codes[matched.codes >= 0]
        share = float(np.mean(known != list(matched.texts).index("unmatched")))
        if share < ALIKE_SHARE:
            yield (
                f"{format_share(share)} of the operators have a partner in the other recording: "
                "these are hardly recordings of the same program."
            )


# ---------------------------------------------------------------------------------- findings


def _finding_table(comparison: Comparison) -> ColumnTable:
    """Return the findings of both sides with their cost per step; the last row completes the
    sum."""
    from torchtraceap.core.knowledge import load_knowledge

    found = [_Findings(side) for side in comparison.sides]
    names = [name for name in found[0].cost_ns if any(f.verdict[name] == "present" for f in found)]
    ns = [np.asarray([f.cost_ns[name] for name in names], dtype=np.int64) for f in found]
    delta = ns[1] - ns[0]
    order = np.argsort(-np.abs(delta), kind="stable")
    names = [names[i] for i in order]
    rest = [step - total(part) for step, part in zip(comparison.step_ns, ns, strict=True)]
    before, after = (
        np.append(part[order], np.int64(left)) for part, left in zip(ns, rest, strict=True)
    )
    knowledge = load_knowledge()
    status = [_finding_status(comparison, found, name) for name in names]
    columns: dict[str, Column] = {
        "name": encode_texts([*names, "(everything else)"]),
        "title": encode_texts([*(knowledge[name].title for name in names), None]),
        "status": encode_texts([*status, None]),
        "before_ns": before,
        "after_ns": after,
        "delta_ns": after - before,
        "before_verdict": encode_texts([*(found[0].verdict[name] for name in names), None]),
        "after_verdict": encode_texts([*(found[1].verdict[name] for name in names), None]),
    }
    notes = [
        *comparison.notes,
        "Costs are per step, those of the compared steps alone. Findings may share time, so "
        "(everything else) is what is left of the step after their sum and may be negative.",
    ]
    if not names:
        notes.append("Neither recording has a finding.")
    first = ("name", "delta_ns", "before_ns", "after_ns")
    return ColumnTable(columns, first=first, facts=_facts(comparison), notes=notes)


class _Findings:
    """The verdict of each type on one side, as in `diagnose`, and its cost per compared step."""

    def __init__(self, side: Side) -> None:
        by_type = detect(side.recording)
        self.verdict = {name: judge(parts) for name, parts in by_type.items()}
        chosen = set(middle_half(side.durations).tolist())
        kept = {
            part.part.rank: [b for i, b in enumerate(bounds, int(first)) if i in chosen]
            for part, bounds, first in zip(side.cuts, side.bounds, side.first_step, strict=True)
        }
        count = max(1, len(chosen))
        self.cost_ns: dict[str, int] = {}
        """ns, by type."""
        for name, parts in by_type.items():
            cost_ns = 0
            for rank, found in parts:
                edges = np.asarray(kept.get(rank.rank, []), dtype=np.int64).ravel()
                cost_ns += total(covered_ns(union([found.intervals]), edges)[::2])
            self.cost_ns[name] = (2 * cost_ns + count) // (2 * count)


def _finding_status(comparison: Comparison, found: Sequence[_Findings], name: str) -> str:
    was, now = (f.verdict[name] == "present" for f in found)
    if was != now:
        other = found[0 if now else 1].verdict[name]
        word = "appeared" if now else "vanished"
        return f"{word} (unknown {'before' if now else 'after'})" if other == "unknown" else word
    costs = [f.cost_ns[name] for f in found]
    delta = costs[1] - costs[0]
    if (all(costs) and abs(delta) < UNCHANGED_SHARE * max(comparison.step_ns)) or not delta:
        return "unchanged"
    return "regression" if delta > 0 else "improvement"


# ---------------------------------------------------------------------------------- tree


def _tree_table(comparison: Comparison) -> ColumnTable:
    """Return both call trees as one, in pre-order, with GPU and host time of each call on either
    side."""
    trees, dims = align(comparison)
    places = Places(trees, dims)
    variant = trees.variant
    columns: dict[str, Column] = {
        "node": np.arange(len(variant), dtype=np.int64),
        "parent": np.ma.masked_equal(trees.parent.astype(np.int64), _core.NO_ROW),
        "depth": trees.depth,
        "name": TextCodes(
            trees.variant_context[variant].astype(np.int32),
            [places.context_name(context) for context in range(len(trees.context_parent))],
        ),
        "matched_by": TextCodes(trees.matched_by.astype(np.int32), _core.matched_by_names()),
    }
    subtree_ns = []
    for when, side, rows in (
        ("before", comparison.before, trees.before_row),
        ("after", comparison.after, trees.after_row),
    ):
        gpu, host = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        absent = rows == _core.NO_ROW
        for part, (begin, end) in zip(
            side.cuts, pairwise(trees.pair_offsets.tolist()), strict=True
        ):
            nodes = np.arange(begin, end)[~absent[begin:end]]
            gpu[nodes] = part.part.costs.subtree_gpu_ns[rows[nodes]]
            host[nodes] = part.part.table.dur_ns[rows[nodes]]
        columns[f"{when}_row"] = np.ma.array(rows.astype(np.int64), mask=absent)
        columns[f"{when}_gpu_ns"] = np.ma.array(gpu, mask=absent)
        columns[f"{when}_host_ns"] = np.ma.array(host, mask=absent)
        subtree_ns.append(gpu)
    columns["delta_gpu_ns"] = subtree_ns[1] - subtree_ns[0]
    if len(comparison.before.cuts) > 1:
        ranks = [part.part.rank for part in comparison.before.cuts]
        counts = np.diff(trees.pair_offsets)
        numbers = np.repeat([0 if rank is None else rank for rank in ranks], counts)
        unknown = np.repeat([rank is None for rank in ranks], counts)
        columns = {"rank": np.ma.array(numbers, mask=unknown), **columns}
    shown = ("depth", "name", "matched_by", "before_gpu_ns", "after_gpu_ns", "delta_gpu_ns")
    return ColumnTable(columns, shown=shown, facts=_facts(comparison), notes=comparison.notes)
