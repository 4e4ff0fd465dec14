"""The difference between two recordings by operator, kernel, cause or finding, to the nanosecond.

Note [A difference that adds up]: Every instant of a step belongs to one GPU event, one idle cause
or, in a trace without GPU events, one host row (`_core.step_pieces`), so the pieces of a step sum
to its length. Medians of pieces do not sum to the median step, and a single median step carries
its own noise. So the pieces are averaged over the middle half of the whole steps by length (the
interquartile mean), rounded to integers, and what is left to the median step is a row of its own,
`(spread between steps)`. Rows of B minus rows of A then sum to the difference of the medians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_share
from torchtraceap.core.intervals import covered_ns, union
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import add, sum_by_index, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.compare.alignment import Comparison, Side, compare
from torchtraceap.tables.compare.noise import (
    FEWEST_STEPS,
    LARGEST_SPREAD,
    CommonFactor,
    common_factor,
    recording_noise_ns,
    step_noise_ns,
)
from torchtraceap.tables.detection import detect, judge
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.quality import quality_of_both
from torchtraceap.tables.steps.pieces import (
    Bounds,
    Cells,
    Codebook,
    Cut,
    first_idle_part,
    joined,
    middle_half,
    part_titles,
)

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["VIEWS", "StepRows", "align", "build_diff", "shared_nodes", "step_rows"]

VIEWS = ("op", "kernel", "ancestor", "cause", "finding", "tree")

UNCHANGED_SHARE = 0.001
"""Differences below this share of the longer step count as unchanged if noise is unknown."""
MOST_SHAPES = 16
"""The largest number of shapes of one operator at one place that get a row each."""
MOST_NAMES = 40
"""The largest number of calls in a path."""
MOST_OPS = 3
"""The largest number of operators that are named in a row of kernels."""
ALIKE_SHARE = 0.1
"""The share of operators with a partner below which the recordings hardly are of one program."""


def build_diff(before: Ranks, after: Ranks, *, by: str = "op") -> ColumnTable:
    """Return a table of where the step time of `after` differs from that of `before`.

    Args:
        before: Recording A.
        after: Recording B. Ranks are paired by number; two lone ranks are always paired.
        by: "op" (operators at their place in the call tree, and idle causes), "kernel",
            "ancestor" (kernels by the lowest call around them that both recordings have), "cause"
            (classes of GPU work and idle causes), "finding" (what `diagnose` says of either) or
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
    view = {
        "op": _OpRows,
        "kernel": _KernelRows,
        "ancestor": _AncestorRows,
        "cause": _CauseRows,
    }[by](comparison)
    return _piece_table(comparison, view)


@dataclass(frozen=True)
class StepRows:
    """The rows of `build_diff(by="op")` before they are averaged, step by step."""

    comparison: Comparison
    columns: Mapping[str, Column]
    """The columns of `by="op"` that name the rows, and calls per step; `[rows]` each."""
    row_of: Sequence[Array]
    """The row of each piece, int64 `[pieces]` per side."""
    cells: Sequence[Cells]
    """The time of each row in each step in ns, per side."""


def step_rows(before: Ranks, after: Ranks) -> StepRows:
    """Return the rows of `build_diff(by="op")` step by step, for other ways to average them."""
    comparison = compare(before, after)
    view = _OpRows(comparison)
    keys, row_of, measured = _measured_rows(comparison, view)
    means = _Means([m.ns for m in measured], [m.calls for m in measured])
    columns = view.columns(keys, means)
    return StepRows(comparison, columns, row_of, [m.cells(len(keys)) for m in measured])


# ---------------------------------------------------------------------------------- rows


class _Rows:
    """Interface of a view: it assigns pieces to rows of the table and names the rows."""

    key: list[Array]
    """Integers that are equal for pieces of one row, int64 `[pieces]` per side."""

    def columns(self, keys: Array, means: _Means) -> dict[str, Column]:
        """Return the columns that name the rows of the given keys."""
        raise NotImplementedError

    def kinds(self, keys: Array) -> Array:
        """Return the kind of piece of each key, an index of `_core.step_part_names()`."""
        return _unpack(keys)[1]


@dataclass(frozen=True, slots=True)
class _Means:
    """Means per step of each row, before and after, `[rows]` each."""

    ns: Sequence[Array]
    """int64 in ns."""
    calls: Sequence[Array]
    """Number of stretches of time, float64."""


class _CauseRows(_Rows):
    """View of classes of GPU work and idle causes."""

    def __init__(self, comparison: Comparison) -> None:
        self.key = [side.column("kind", np.int64) for side in comparison.sides]

    def columns(self, keys: Array, means: _Means) -> dict[str, Column]:
        return {"name": TextCodes(keys.astype(np.int32), part_titles())}

    def kinds(self, keys: Array) -> Array:
        return keys


class _KernelRows(_Rows):
    """View of kernels by canonical name, and of idle causes."""

    def __init__(self, comparison: Comparison) -> None:
        self._book = Codebook()
        idle = first_idle_part()
        self.key = []
        for side in comparison.sides:
            kind = side.column("kind", np.int64)
            leaf = joined([part.leaf_codes(self._book) for part in side.cuts], np.int64)
            self.key.append(_pack(np.where(kind < idle, leaf, -1), kind))

    def columns(self, keys: Array, means: _Means) -> dict[str, Column]:
        leaf, kind = _unpack(keys)
        return {
            "name": encode_texts(_leaf_titles(leaf, kind, self._book)),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "before_calls": means.calls[0],
            "after_calls": means.calls[1],
        }


_KINDS = 64  # more than there are kinds of pieces


def _pack(code: Array, kind: Array) -> Array:
    packed: Array = (code + 1) * _KINDS + kind
    return packed


def _unpack(keys: Array) -> tuple[Array, Array]:
    return keys // _KINDS - 1, keys % _KINDS


def _leaf_titles(leaf: Array, kind: Array, book: Codebook) -> list[str]:
    """Return the names of kernels or host events, with the idle cause in front."""
    texts, titles, idle = book.texts(), part_titles(), first_idle_part()
    names = []
    for code, part in zip(leaf.tolist(), kind.tolist(), strict=True):
        text = texts[code] if code >= 0 else ""
        if part < idle:
            names.append(text or "(no recorded call)")
        else:
            names.append(f"{titles[part]} ({text})" if text else titles[part])
    return names


class _TreeRows(_Rows):
    """View of places in the aligned trees: the variant of a node, and of a leaf there."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._book = Codebook()
        self._trees, self._dims = align(comparison)
        self._variant_of = _few_variants(self._trees)
        self.key = [
            joined(
                [self._keys_of(index, part, is_after) for index, part in enumerate(side.cuts)],
                np.int64,
            )
            for is_after, side in enumerate(comparison.sides)
        ]

    def _keys_of(self, index: int, part: Cut, is_after: int) -> Array:
        """Return the keys of pieces, int64 `[pieces]`."""
        raise NotImplementedError

    def _nodes(self, index: int, part: Cut, is_after: int) -> Array:
        """Return the innermost node around each piece, uint32 `[pieces]`; NO_ROW if there is none
        or nothing runs."""
        node_of_row = (self._trees.after_node if is_after else self._trees.before_node)(index)
        node = np.full(len(part.kind), _core.NO_ROW, dtype=np.uint32)
        placed = (part.kind < first_idle_part()) & (part.row != _core.NO_ROW)
        node[placed] = node_of_row[part.row[placed]]
        return node

    def _pack_place(self, node: Array, leaf: Array, part: Cut) -> Array:
        """Return keys of a node's variant, a leaf (-1 if none) and a kind, int64 `[pieces]`."""
        inside = node != _core.NO_ROW
        variant = np.full(len(node), -1, dtype=np.int64)
        variant[inside] = self._variant_of[self._trees.variant[node[inside]]]
        return _pack((variant + 1) * _LEAVES + leaf + 1, part.kind.astype(np.int64))

    @staticmethod
    def _unpack_place(keys: Array) -> tuple[Array, Array, Array]:
        """Return variant, leaf and kind of each key; -1 if there is none."""
        code, kind = _unpack(keys)
        return code // _LEAVES - 1, code % _LEAVES - 1, kind


_LEAVES = 1 << 24  # more than there are distinct names


class _OpRows(_TreeRows):
    """View of operators by place in the aligned trees and shape, and of idle causes by the event
    that explains them."""

    def _keys_of(self, index: int, part: Cut, is_after: int) -> Array:
        node = self._nodes(index, part, is_after)
        inside = node != _core.NO_ROW
        # An operator stands for all that it launches; what no operator launched keeps its name.
        of_op = np.zeros(len(node), dtype=bool)
        owner = (self._trees.after_row if is_after else self._trees.before_row)[node[inside]]
        host = part.kind[inside] == first_idle_part() - 1
        is_op = part.part.table.kind[owner] == _core.EventKind.CPU_OP
        of_op[inside] = np.where(host, owner == part.row[inside], is_op)
        return self._pack_place(node, np.where(of_op, -1, part.leaf_codes(self._book)), part)

    def columns(self, keys: Array, means: _Means) -> dict[str, Column]:
        variant, leaf, kind = self._unpack_place(keys)
        places = _Places(self._trees, self._dims)
        of_op = (leaf < 0) & (variant >= 0)
        titles = _leaf_titles(leaf, kind, self._book)
        for i in np.flatnonzero(of_op):
            titles[i] = places.name(int(variant[i]))
        counted = self._op_calls()
        shown = np.where(of_op, variant, -1)
        paths = [
            places.path(v, with_self=not op) if v >= 0 else []
            for v, op in zip(variant.tolist(), of_op.tolist(), strict=True)
        ]
        return {
            "name": encode_texts(titles),
            "parent": encode_texts(path[-1] if path else None for path in paths),
            "path": encode_texts(" / ".join(path) or None for path in paths),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "before_calls": np.where(of_op, counted[0][shown], means.calls[0]),
            "after_calls": np.where(of_op, counted[1][shown], means.calls[1]),
            "dims": encode_texts(places.both_dims(v) for v in shown.tolist()),
            "before_dims": encode_texts(places.dims(v, 0) for v in shown.tolist()),
            "after_dims": encode_texts(places.dims(v, 1) for v in shown.tolist()),
            "matched_by": TextCodes(self._matched_by(shown), _core.matched_by_names()),
        }

    def _matched_by(self, variant: Array) -> Array:
        codes = np.full(len(variant), -1, dtype=np.int32)
        known = variant >= 0
        codes[known] = self._trees.variant_matched_by[variant[known]]
        return codes

    def _op_calls(self) -> list[Array]:
        """Return mean calls per compared step, float64 `[variants + 1]` with 0 at the end."""
        counts = []
        for is_after, side in enumerate(self._comparison.sides):
            rows = self._trees.after_row if is_after else self._trees.before_row
            chosen = set(middle_half(side.durations).tolist())
            count = np.zeros(len(self._trees.variant_context) + 1)
            for index, (part, bounds) in enumerate(zip(side.cuts, side.bounds, strict=True)):
                first = int(side.first_step[index])
                kept = [b for i, b in enumerate(bounds) if first + i in chosen]
                nodes = np.arange(*self._trees.pair_offsets[index : index + 2])
                nodes = nodes[rows[nodes] != _core.NO_ROW]
                inside = _is_inside(part.part.table.ts_ns[rows[nodes]], kept)
                np.add.at(count, self._variant_of[self._trees.variant[nodes[inside]]], 1)
            counts.append(count / max(1, len(chosen)))
        return counts


class _AncestorRows(_TreeRows):
    """View of kernels by the lowest call around them that both recordings have.

    Where operators were replaced, fused or split, their kernels meet at that call: those that went
    stand beside those that came, whatever launched either.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._ops: tuple[list[Array], list[Array]] = [], []
        super().__init__(comparison)

    def _keys_of(self, index: int, part: Cut, is_after: int) -> Array:
        node = self._nodes(index, part, is_after)
        inside = node != _core.NO_ROW
        node[inside] = self._shared[node[inside]]
        keys = self._pack_place(node, part.leaf_codes(self._book), part)
        self._ops[is_after].append(self._ops_by_key(keys, part))
        return keys

    def _ops_by_key(self, keys: Array, part: Cut) -> Array:
        """Return keys and the codes of operators that launched their kernels, int64 `[2,
        pairs]`."""
        known = (part.kind < first_idle_part()) & (part.row != _core.NO_ROW)
        code = part.row_texts(part.part.tree.op[part.row[known]], self._book.host_code)
        pairs: Array = np.stack([keys[known], code])[:, code >= 0]
        return pairs

    @cached_property
    def _shared(self) -> Array:
        return shared_nodes(self._trees)

    def columns(self, keys: Array, means: _Means) -> dict[str, Column]:
        variant, leaf, kind = self._unpack_place(keys)
        places = _Places(self._trees, self._dims)
        variants = variant.tolist()
        paths = [places.path(v, with_self=True) if v >= 0 else [] for v in variants]
        sums = [_sums_where(variant >= 0, variant, ns) for ns in means.ns]
        return {
            "name": encode_texts(_leaf_titles(leaf, kind, self._book)),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "ancestor": encode_texts(places.name(v) if v >= 0 else None for v in variants),
            "path": encode_texts(" / ".join(path) or None for path in paths),
            "dims": encode_texts(places.both_dims(v) for v in variants),
            "before_ops": self._op_names(keys, 0),
            "after_ops": self._op_names(keys, 1),
            "before_calls": means.calls[0],
            "after_calls": means.calls[1],
            "ancestor_before_ns": sums[0],
            "ancestor_after_ns": sums[1],
            "ancestor_delta_ns": sums[1] - sums[0],
        }

    def _op_names(self, keys: Array, is_after: int) -> TextCodes:
        """Return the operators of each row, at most MOST_OPS by name."""
        none = np.zeros((2, 0), dtype=np.int64)
        pairs = np.unique(np.concatenate([none, *self._ops[is_after]], axis=1), axis=1)
        begin = np.searchsorted(pairs[0], keys).tolist()
        end = np.searchsorted(pairs[0], keys, side="right").tolist()
        texts = self._book.texts()
        return encode_texts(
            _join_names([texts[code] for code in pairs[1, i:j].tolist()]) or None
            for i, j in zip(begin, end, strict=True)
        )


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - MOST_OPS
    return ", ".join(names[:MOST_OPS]) + (f" and {more} more" if more > 0 else "")


def _sums_where(known: Array, group: Array, ns: Array) -> Array:
    """Return for each row the sum over the rows of its group, int64, masked if the group is
    unknown."""
    groups = Groups(group)
    return np.ma.array(groups.sum(ns)[groups.index], mask=~known)


def _is_inside(times_ns: Array, bounds: Bounds) -> Array:
    """Return which times lie in one of the sorted, disjoint bounds."""
    if not bounds:
        return np.zeros(len(times_ns), dtype=bool)
    starts, ends = np.asarray(bounds, dtype=np.int64).T
    at = np.searchsorted(starts, times_ns, side="right") - 1
    inside: Array = (at >= 0) & ((times_ns < ends[at]) | (starts[at] == ends[at]))
    return inside


def align(comparison: Comparison) -> tuple[_core.TreeDiff, list[str]]:
    """Align the call trees of all pairs into one; also return the texts of its shape codes."""
    book = Codebook()
    sides: list[list[Any]] = [
        [
            (part.part.table, part.part.tree, part.part.costs, _dims_codes(part.part, book))
            for part in side.cuts
        ]
        for side in comparison.sides
    ]
    return _core.tree_diff(*sides), book.texts()


def shared_nodes(trees: _core.TreeDiff) -> Array:
    """Return each node if both sides have it, else the next one above, uint32 `[nodes]`; NO_ROW if
    there is none."""
    unmatched = _core.matched_by_names().index("unmatched")
    count = len(trees.parent)
    parents = np.where(trees.parent == _core.NO_ROW, count, trees.parent.astype(np.int64))
    above = np.where(trees.matched_by == unmatched, parents, np.arange(count))
    above = np.append(above, count)
    while not np.array_equal(above, further := above[above]):
        above = further
    found: Array = np.where(above == count, _core.NO_ROW, above)[:count].astype(np.uint32)
    return found


def _dims_codes(part: RankTrace, book: Codebook) -> Array:
    """Return codes of operators' shapes that both sides share, int32 `[rows]`; -1 if absent."""
    codes = np.full(len(part.table), -1, dtype=np.int32)
    ops = np.flatnonzero(part.table.kind == _core.EventKind.CPU_OP)
    for key in ("Input Dims", "Input dims"):
        own, texts = part.table.text_codes(key, ops)
        shared = np.asarray([*(book.code(text) for text in texts), -1], dtype=np.int32)
        codes[ops] = np.maximum(codes[ops], shared[own])
    return codes


def _few_variants(trees: _core.TreeDiff) -> Array:
    """Return each variant, or the first of its context if that has too many."""
    contexts = trees.variant_context
    numbers = np.arange(len(contexts), dtype=np.int64)
    if not len(contexts):
        return numbers
    _, first, inverse, count = np.unique(
        contexts, return_index=True, return_inverse=True, return_counts=True
    )
    kept: Array = np.where(count[inverse] > MOST_SHAPES, first[inverse], numbers)
    return kept


class _Places:
    """Names, paths and shapes of variants."""

    def __init__(self, trees: _core.TreeDiff, dims: Sequence[str]) -> None:
        self._context = trees.variant_context.tolist()
        self._parent = trees.context_parent.tolist()
        self._sides = [trees.context_before.tolist(), trees.context_after.tolist()]
        self._names = trees.names
        self._dims_codes = [trees.variant_before_dims.tolist(), trees.variant_after_dims.tolist()]
        self._dims = dims
        self._shapes = np.bincount(trees.variant_context, minlength=1).tolist()
        self._paths: dict[int, list[str]] = {}

    def name(self, variant: int) -> str:
        return self.context_name(self._context[variant])

    def context_name(self, context: int) -> str:
        names = [
            self._names[side[context]] for side in self._sides if side[context] != _core.NO_STRING
        ]
        return " → ".join(dict.fromkeys(names))

    def path(self, variant: int, *, with_self: bool) -> list[str]:
        """Return names from the outside in without steps, the innermost MOST_NAMES of them."""
        context = self._context[variant]
        return self._path(context if with_self else self._parent[context])

    def _path(self, context: int) -> list[str]:
        missing = []
        while context != _core.NO_ROW and context not in self._paths:
            missing.append(context)
            context = self._parent[context]
        path = [] if context == _core.NO_ROW else self._paths[context]
        for inner in reversed(missing):
            name = self.context_name(inner)
            path = path if name.startswith("ProfilerStep#") else [*path[1 - MOST_NAMES :], name]
            self._paths[inner] = path
        return path

    def dims(self, variant: int, is_after: int) -> str | None:
        if variant < 0:
            return None
        shapes = self._shapes[self._context[variant]]
        if shapes > MOST_SHAPES:
            return f"({shapes} shapes)"
        code = self._dims_codes[is_after][variant]
        return self._dims[code] if code >= 0 else None

    def both_dims(self, variant: int) -> str | None:
        """Return the shapes, with an arrow if they changed."""
        sides = [self.dims(variant, is_after) for is_after in (0, 1)]
        return " → ".join(dict.fromkeys(text for text in sides if text)) or None


# ---------------------------------------------------------------------------------- table


def _piece_table(comparison: Comparison, view: _Rows) -> ColumnTable:
    keys, _, measured = _measured_rows(comparison, view)
    kept = np.flatnonzero((measured[0].ns != 0) | (measured[1].ns != 0))
    ns = [m.ns[kept] for m in measured]
    naming = view.columns(keys[kept], _Means(ns, [m.calls[kept] for m in measured]))
    rest = [step - total(part) for step, part in zip(comparison.step_ns, ns, strict=True)]
    noise = _noise_ns(comparison, view, keys, measured, kept)
    return _closed_table(comparison, naming, ns, rest, noise)


def _noise_ns(
    comparison: Comparison, view: _Rows, keys: Array, measured: Sequence[_Measured], kept: Array
) -> Array:
    """Return the largest difference of each kept row that is not beyond chance (noise.py).

    Returns:
        float64 `[kept]` in ns; NaN if a side has too few steps.
    """
    cells = [m.cells(len(keys)) for m in measured]
    typical = [side.middle_means() for side in cells]
    between_steps = step_noise_ns(cells, len(kept))
    common = _common_factor(comparison, view, keys, measured, typical)
    between_recordings = np.zeros(len(keys))
    if common.spread <= LARGEST_SPREAD:  # else most rows have changed, and tell nothing of chance
        between_recordings = recording_noise_ns(typical, common, len(kept))
    # A step that stood still may be one of the middle steps: its row differs by that much more.
    accidental = np.abs((measured[1].ns - measured[0].ns) - (typical[1] - typical[0]))
    noise: Array = np.hypot(between_steps, between_recordings) + accidental
    return noise[kept]


def _common_factor(
    comparison: Comparison,
    view: _Rows,
    keys: Array,
    measured: Sequence[_Measured],
    typical: Sequence[Array],
) -> CommonFactor:
    """Estimate the common factor from the view's rows, or from kernels if the rows are classes."""
    if isinstance(view, _CauseRows):
        view = _KernelRows(comparison)
        keys, _, measured = _measured_rows(comparison, view)
        typical = [m.cells(len(keys)).middle_means() for m in measured]
    calls = [m.calls for m in measured]
    return common_factor(typical, calls, view.kinds(keys) < first_idle_part())


def _measured_rows(
    comparison: Comparison, view: _Rows
) -> tuple[Array, list[Array], list[_Measured]]:
    """Return the keys of the rows and, per side, the row of each piece and the measurements of each
    row."""
    keys, inverse = np.unique(joined(view.key, np.int64), return_inverse=True)
    split = len(view.key[0])
    rows = [inverse[:split], inverse[split:]]
    measured = [
        _Measured(side, index, len(keys))
        for side, index in zip(comparison.sides, rows, strict=True)
    ]
    return keys, rows, measured


class _Measured:
    """The times of one side by row: the mean over the middle half of its steps, and each step."""

    def __init__(self, side: Side, row: Array, rows: int) -> None:
        durations, step, ns = side.durations, side.step, side.column("ns", np.int64)
        self.steps = len(durations)
        self._pieces = row, step, ns
        chosen = np.zeros(len(durations), dtype=bool)
        chosen[middle_half(durations)] = True
        inside = chosen[step]
        count = max(1, int(chosen.sum()))
        total_ns = sum_by_index(row[inside], ns[inside], rows)
        self.ns: Array = add(total_ns, count // 2) // count
        """int64 `[rows]`."""
        self.calls: Array = (
            sum_by_index(row[inside], side.column("count", np.int64)[inside], rows) / count
        )
        """float64 `[rows]`: stretches of time per step."""

    def cells(self, rows: int) -> Cells:
        """Return the time of each row in each step."""
        return Cells.of(*self._pieces, (rows, self.steps))


STATUSES = ("regression", "improvement", "new", "gone", "unchanged")
SPREAD = "(spread between steps)"


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
    if close:
        columns["name"] = _with_last(columns["name"], SPREAD)
    before, after = (
        np.append(part[order], np.int64(left)) if close else part[order]
        for part, left in zip(ns, rest, strict=True)
    )
    noise = np.append(noise[order], np.nan) if close else noise[order]
    status = _status(comparison, before, after, noise)
    if close:
        status[-1] = -1  # what is left to the medians is nothing that comes or goes
    lead: dict[str, Column] = {
        name: columns.pop(name) for name in ("name", "part") if name in columns
    }
    measured: dict[str, Column] = {
        "status": TextCodes(status, STATUSES),
        "before_ns": before,
        "after_ns": after,
        "delta_ns": after - before,
        "noise_ns": noise,
        "significance": TextCodes(_significance(after - before, noise), _SIGNIFICANCES),
    }
    shown = (
        "name",
        "status",
        "before_ns",
        "after_ns",
        "delta_ns",
        "significance",
        "dims",
        "parent",
        "ancestor",
    )
    return ColumnTable(
        {**lead, **measured, **columns},
        shown=tuple(n for n in shown if n in {**lead, **measured, **columns}),
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


def _with_last(column: Column, text: str) -> TextCodes:
    assert isinstance(column, TextCodes)
    texts = [*column.texts, text]
    return TextCodes(np.append(column.codes[:-1], np.int32(len(texts) - 1)), texts)


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


_SIGNIFICANCES = ("beyond noise", "within noise")


def _significance(delta: Array, noise: Array) -> Array:
    known = np.where(np.abs(delta) <= noise, 1, 0)
    codes: Array = np.where(np.isnan(noise), -1, known).astype(np.int32)
    return codes


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
    if isinstance(matched, TextCodes) and (share := _matched_share(matched)) < ALIKE_SHARE:
        yield (
            f"{format_share(share)} of the operators have a partner in the other recording: "
            "these are hardly recordings of the same program."
        )


def _matched_share(matched: TextCodes) -> float:
    known = matched.codes[matched.codes >= 0]
    unmatched = list(matched.texts).index("unmatched")
    return float(np.mean(known != unmatched)) if len(known) else 1.0


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
            covered = (_covered_ns(f.intervals, kept.get(rank.rank, [])) for rank, f in parts)
            self.cost_ns[name] = (2 * sum(covered) + count) // (2 * count)


def _covered_ns(intervals: Array, bounds: Bounds) -> int:
    """Return the length of intervals inside sorted, disjoint bounds."""
    edges = np.asarray(bounds, dtype=np.int64).ravel()
    return total(covered_ns(union([intervals]), edges)[::2])


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
    places = _Places(trees, dims)
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
    for when, side, rows in (
        ("before", comparison.before, trees.before_row),
        ("after", comparison.after, trees.after_row),
    ):
        columns |= _tree_side(when, side, rows, trees.pair_offsets)
    columns["delta_gpu_ns"] = _fill(columns["after_gpu_ns"]) - _fill(columns["before_gpu_ns"])
    if len(comparison.before.cuts) > 1:
        columns = {"rank": _rank_of_nodes(comparison, trees.pair_offsets), **columns}
    shown = ("depth", "name", "matched_by", "before_gpu_ns", "after_gpu_ns", "delta_gpu_ns")
    return ColumnTable(columns, shown=shown, facts=_facts(comparison), notes=comparison.notes)


def _fill(column: Column) -> Array:
    assert not isinstance(column, TextCodes)
    filled: Array = np.ma.filled(column, 0)
    return filled


def _tree_side(when: str, side: Side, rows: Array, offsets: Array) -> dict[str, Column]:
    """Return row, GPU time of the subtree and duration of each node, masked if the node is
    absent."""
    gpu, host = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    absent = rows == _core.NO_ROW
    for part, (begin, end) in zip(side.cuts, pairwise(offsets.tolist()), strict=True):
        nodes = np.arange(begin, end)[~absent[begin:end]]
        gpu[nodes] = part.part.costs.subtree_gpu_ns[rows[nodes]]
        host[nodes] = part.part.table.dur_ns[rows[nodes]]
    masked: Callable[[Array], Column] = lambda values: np.ma.array(values, mask=absent)  # noqa: E731
    return {
        f"{when}_row": masked(rows.astype(np.int64)),
        f"{when}_gpu_ns": masked(gpu),
        f"{when}_host_ns": masked(host),
    }


def _rank_of_nodes(comparison: Comparison, offsets: Array) -> Column:
    ranks = [part.part.rank for part in comparison.before.cuts]
    counts = np.diff(offsets)
    numbers = np.repeat([0 if rank is None else rank for rank in ranks], counts)
    return np.ma.array(numbers, mask=np.repeat([rank is None for rank in ranks], counts))
