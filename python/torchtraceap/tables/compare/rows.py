"""The rows of a difference: which pieces of the steps belong together, and how rows are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import add, sum_by_index
from torchtraceap.tables.compare.alignment import Comparison, Side, compare
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.serving.parts import event_places
from torchtraceap.tables.steps.pieces import (
    Cells,
    Codebook,
    Cut,
    first_idle_part,
    join_arrays,
    middle_half,
    part_titles,
)

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "AncestorRows",
    "KernelRows",
    "LayerRows",
    "Measured",
    "OpRows",
    "PartRows",
    "Places",
    "RowView",
    "StepRows",
    "align",
    "join_names",
    "measure_rows",
    "shared_nodes",
    "step_rows",
]

Columns = dict[str, Column]
MOST_SHAPES = 16
"""The largest number of shapes of one operator at one place that get a row each."""
MOST_NAMES = 40
"""The largest number of calls in a path."""


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
    view = OpRows(comparison)
    keys, row_of, measured = measure_rows(comparison, view)
    columns = view.columns(keys, [m.ns for m in measured], [m.calls for m in measured])
    return StepRows(comparison, columns, row_of, [m.cells(len(keys)) for m in measured])


class Measured:
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


def measure_rows(
    comparison: Comparison, view: RowView
) -> tuple[Array, list[Array], list[Measured]]:
    """Return the keys of the rows and, per side, the row of each piece and the measurements of each
    row."""
    keys, inverse = np.unique(join_arrays(view.key, np.int64), return_inverse=True)
    split = len(view.key[0])
    rows = [inverse[:split], inverse[split:]]
    measured = [
        Measured(side, index, len(keys)) for side, index in zip(comparison.sides, rows, strict=True)
    ]
    return keys, rows, measured


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join the first names with commas and count the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# ---------------------------------------------------------------------------------- views


class RowView:
    """Interface of a view: it assigns pieces to rows of the table and names the rows."""

    key: list[Array]
    """Integers that are equal for pieces of one row, int64 `[pieces]` per side."""

    def columns(self, keys: Array, ns: Sequence[Array], calls: Sequence[Array]) -> Columns:
        """Return the columns that name rows.

        Args:
            keys: The keys of the rows, `[rows]`.
            ns: The time per step before and after, int64 `[rows]` each.
            calls: The stretches of time per step before and after, float64 `[rows]` each.
        """
        raise NotImplementedError

    def kinds(self, keys: Array) -> Array:
        """Return the kind of piece of each key, an index of `_core.step_part_names()`."""
        return _unpack(keys)[1]


class PartRows(RowView):
    """View of classes of GPU work and idle causes."""

    def __init__(self, comparison: Comparison) -> None:
        self.key = [side.column("kind", np.int64) for side in comparison.sides]

    def columns(self, keys: Array, ns: Sequence[Array], calls: Sequence[Array]) -> Columns:
        return {"name": TextCodes(keys.astype(np.int32), part_titles())}

    def kinds(self, keys: Array) -> Array:
        return keys


class KernelRows(RowView):
    """View of kernels by canonical name, and of idle causes."""

    def __init__(self, comparison: Comparison) -> None:
        self._book = Codebook()
        idle = first_idle_part()
        self.key = []
        for side in comparison.sides:
            kind = side.column("kind", np.int64)
            leaf = join_arrays([part.leaf_codes(self._book) for part in side.cuts], np.int64)
            self.key.append(_pack(np.where(kind < idle, leaf, -1), kind))

    def columns(self, keys: Array, ns: Sequence[Array], calls: Sequence[Array]) -> Columns:
        leaf, kind = _unpack(keys)
        return {
            "name": encode_texts(_leaf_titles(leaf, kind, self._book)),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "before_calls": calls[0],
            "after_calls": calls[1],
        }


class LayerRows(RowView):
    """View of layers of a served model and the roles of their kernels, and of idle causes."""

    def __init__(self, comparison: Comparison) -> None:
        self._book = Codebook()
        idle = first_idle_part()
        self.key = []
        for side in comparison.sides:
            kind = side.column("kind", np.int64)
            place = join_arrays([self._places(part) for part in side.cuts], np.int64)
            self.key.append(_pack(np.where(kind < idle, place, -1), kind))

    def _places(self, part: Cut) -> Array:
        """Return layer (from 1; 0 outside) and role of each piece as one number; -1 without."""
        placed = (part.kind < first_idle_part() - 1) & (part.row != _core.NO_ROW)
        events = np.searchsorted(part.part.tree.gpu_rows, part.row[placed])
        layer, role = event_places(part.part)
        codes = np.array([self._book.code(text) for text in role.texts], dtype=np.int64)
        place = np.full(len(part.kind), -1, dtype=np.int64)
        place[placed] = (layer[events] + 1) * _LEAVES + codes[role.codes[events]]
        return place

    def columns(self, keys: Array, ns: Sequence[Array], calls: Sequence[Array]) -> Columns:
        place, kind = _unpack(keys)
        texts, titles = self._book.texts(), part_titles()
        layer = np.where(place >= 0, place // _LEAVES - 1, -1)
        roles = [texts[code % _LEAVES] if code >= 0 else None for code in place.tolist()]
        names = []
        for number, role, part in zip(layer.tolist(), roles, kind.tolist(), strict=True):
            outside = titles[part] if role is None else role
            names.append(f"layer {number}: {role}" if number >= 0 else outside)
        return {
            "name": encode_texts(names),
            "layer": np.ma.masked_less(layer, 0),
            "role": encode_texts(roles),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "before_calls": calls[0],
            "after_calls": calls[1],
        }


_KINDS = 64  # more than there are kinds of pieces
_LEAVES = 1 << 24  # more than there are distinct names


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


class _TreeRows(RowView):
    """View of places in the aligned trees: the variant of a node, and of a leaf there."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._book = Codebook()
        self._trees, self._dims = align(comparison)
        contexts = self._trees.variant_context
        self._variant_of: Array = np.arange(len(contexts), dtype=np.int64)
        """Each variant, or the first of its context if that has too many."""
        if len(contexts):
            _, first, inverse, count = np.unique(
                contexts, return_index=True, return_inverse=True, return_counts=True
            )
            has_many = count[inverse] > MOST_SHAPES
            self._variant_of = np.where(has_many, first[inverse], self._variant_of)
        self.key = [
            join_arrays(
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


class OpRows(_TreeRows):
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

    def columns(self, keys: Array, ns: Sequence[Array], calls: Sequence[Array]) -> Columns:
        variant, leaf, kind = self._unpack_place(keys)
        places = Places(self._trees, self._dims)
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
        matched_by = np.full(len(shown), -1, dtype=np.int32)
        matched_by[shown >= 0] = self._trees.variant_matched_by[shown[shown >= 0]]
        return {
            "name": encode_texts(titles),
            "parent": encode_texts(path[-1] if path else None for path in paths),
            "path": encode_texts(" / ".join(path) or None for path in paths),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "before_calls": np.where(of_op, counted[0][shown], calls[0]),
            "after_calls": np.where(of_op, counted[1][shown], calls[1]),
            "dims": encode_texts(places.both_dims(v) for v in shown.tolist()),
            "before_dims": encode_texts(places.dims(v, 0) for v in shown.tolist()),
            "after_dims": encode_texts(places.dims(v, 1) for v in shown.tolist()),
            "matched_by": TextCodes(matched_by, _core.matched_by_names()),
        }

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
                if not kept:
                    continue
                starts, ends = np.asarray(kept, dtype=np.int64).T  # sorted and disjoint
                nodes = np.arange(*self._trees.pair_offsets[index : index + 2])
                nodes = nodes[rows[nodes] != _core.NO_ROW]
                times_ns = part.part.table.ts_ns[rows[nodes]]
                at = np.searchsorted(starts, times_ns, side="right") - 1
                inside = (at >= 0) & ((times_ns < ends[at]) | (starts[at] == ends[at]))
                np.add.at(count, self._variant_of[self._trees.variant[nodes[inside]]], 1)
            counts.append(count / max(1, len(chosen)))
        return counts


class AncestorRows(_TreeRows):
    """View of kernels by the lowest call around them that both recordings have.

    Where operators were replaced, fused or split, their kernels meet at that call: those that went
    stand beside those that came, whatever launched either.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._ops: tuple[list[Array], list[Array]] = [], []
        """Keys and the codes of operators that launched their kernels, int64 `[2, pairs]`."""
        super().__init__(comparison)

    @cached_property
    def _shared(self) -> Array:
        return shared_nodes(self._trees)

    def _keys_of(self, index: int, part: Cut, is_after: int) -> Array:
        node = self._nodes(index, part, is_after)
        inside = node != _core.NO_ROW
        node[inside] = self._shared[node[inside]]
        keys = self._pack_place(node, part.leaf_codes(self._book), part)
        known = (part.kind < first_idle_part()) & (part.row != _core.NO_ROW)
        code = part.row_texts(part.part.tree.op[part.row[known]], self._book.host_code)
        self._ops[is_after].append(np.stack([keys[known], code])[:, code >= 0])
        return keys

    def columns(self, keys: Array, ns: Sequence[Array], calls: Sequence[Array]) -> Columns:
        variant, leaf, kind = self._unpack_place(keys)
        places = Places(self._trees, self._dims)
        variants = variant.tolist()
        paths = [places.path(v, with_self=True) if v >= 0 else [] for v in variants]
        groups = Groups(variant)
        sums = [np.ma.array(groups.sum(part)[groups.index], mask=variant < 0) for part in ns]
        return {
            "name": encode_texts(_leaf_titles(leaf, kind, self._book)),
            "part": TextCodes(kind.astype(np.int32), _core.step_part_names()),
            "ancestor": encode_texts(places.name(v) if v >= 0 else None for v in variants),
            "path": encode_texts(" / ".join(path) or None for path in paths),
            "dims": encode_texts(places.both_dims(v) for v in variants),
            "before_ops": self._op_names(keys, 0),
            "after_ops": self._op_names(keys, 1),
            "before_calls": calls[0],
            "after_calls": calls[1],
            "ancestor_before_ns": sums[0],
            "ancestor_after_ns": sums[1],
            "ancestor_delta_ns": sums[1] - sums[0],
        }

    def _op_names(self, keys: Array, is_after: int) -> TextCodes:
        """Return the names of the first operators of each row."""
        none = np.zeros((2, 0), dtype=np.int64)
        pairs = np.unique(np.concatenate([none, *self._ops[is_after]], axis=1), axis=1)
        begin = np.searchsorted(pairs[0], keys).tolist()
        end = np.searchsorted(pairs[0], keys, side="right").tolist()
        texts = self._book.texts()
        return encode_texts(
            join_names([texts[code] for code in pairs[1, i:j].tolist()]) or None
            for i, j in zip(begin, end, strict=True)
        )


# ---------------------------------------------------------------------------------- trees


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


def _dims_codes(part: RankTrace, book: Codebook) -> Array:
    """Return codes of operators' shapes that both sides share, int32 `[rows]`; -1 if absent."""
    codes = np.full(len(part.table), -1, dtype=np.int32)
    ops = np.flatnonzero(part.table.kind == _core.EventKind.CPU_OP)
    for key in ("Input Dims", "Input dims"):
        own, texts = part.table.text_codes(key, ops)
        shared = np.asarray([*(book.code(text) for text in texts), -1], dtype=np.int32)
        codes[ops] = np.maximum(codes[ops], shared[own])
    return codes


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


class Places:
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
        """Return the name of a variant, with an arrow if the sides have different ones."""
        return self.context_name(self._context[variant])

    def context_name(self, context: int) -> str:
        """Return the name of a context, with an arrow if the sides have different ones."""
        names = [
            self._names[side[context]] for side in self._sides if side[context] != _core.NO_STRING
        ]
        return " → ".join(dict.fromkeys(names))

    def path(self, variant: int, *, with_self: bool) -> list[str]:
        """Return names from the outside in without steps, the innermost MOST_NAMES of them."""
        context = self._context[variant] if with_self else self._parent[self._context[variant]]
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
        """Return the shapes of a variant on one side; None if there are none."""
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
