"""Calls merged by who called them: one row for each stack of names, as a flame graph draws it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import add, shares, sum_by_index, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.grouping import Groups, names_without_addresses, order_by, thread_names
from torchtraceap.tables.ops.ops import ORPHAN_NAME
from torchtraceap.trace.ranks import RankTrace

__all__ = ["MAX_LEVELS", "TABLE", "build_stacks"]


MAX_LEVELS = 128
"""Levels of host calls that are told apart; what is deeper counts for its caller at the last."""
STEP_NAME = "(step)"
_NO_KIND = -1  # of a thread, which is no event
_SHOWN = ("name", "kind", "caller", "count", "self_ns", "self_share", "total_ns", "total_share")


def build_stacks(part: RankTrace, *, by: str = "gpu") -> ColumnTable:
    """Build the table of `Trace.stacks` for one rank.

    A stack is a thread, the calls on it below each other, and GPU events below the calls that
    launched them. Calls of one name under one caller are one row, and so are steps.

    Returns:
        Stacks with any time, by self time. `self_ns` sums to the fact `total_ns`, which is the busy
        time of the GPU or the time in which calls were open on each thread, summed; `total_ns` of a
        row is its own `self_ns` and the `total_ns` of the rows below. `parent_id` is smaller than
        `id`. docs/tables.md has the columns.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    nodes, node_of = _host_stacks(part)
    if by == "gpu":
        nodes, self_ns = _with_gpu_events(part, nodes, node_of)
    else:
        spent = part.costs.self_host_ns[part.tree.host_rows].astype(np.int64)
        self_ns = sum_by_index(node_of, spent, len(nodes.parent))
    below_ns = self_ns.copy()  # the time of each stack with all below it
    for level in range(int(nodes.level.max(initial=0)), 0, -1):
        here = np.flatnonzero(nodes.level == level)
        groups = Groups(nodes.parent[here])
        above = nodes.parent[here][groups.first]
        below_ns[above] = add(below_ns[above], groups.sum(below_ns[here]))
    order = np.flatnonzero(below_ns > 0)
    order = order[order_by(nodes.level[order], below_ns[order], descending=[False, True])]
    place = np.full(len(nodes.parent), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    # The caller is the nearest stack above that is no API call; calls of API hardly nest.
    api = (_core.EventKind.RUNTIME, _core.EventKind.DRIVER)
    passed = np.append(np.isin(nodes.kind, api), False)
    callers = nodes.parent.copy()
    while (inner := np.flatnonzero(passed[callers])).size:
        callers[inner] = nodes.parent[callers[inner]]
    parent = nodes.parent[order]
    whole_ns = total(self_ns)
    columns: dict[str, Column] = {
        "name": TextCodes(nodes.name[order].astype(np.int32), nodes.names),
        "kind": TextCodes(nodes.kind[order].astype(np.int8), _core.kind_names()),
        "caller": TextCodes(
            np.append(nodes.name, -1)[callers[order]].astype(np.int32), nodes.names
        ),
        "count": np.ma.masked_equal(nodes.count[order], 0),
        "self_ns": self_ns[order],
        "self_share": shares(self_ns[order], whole_ns),
        "total_ns": below_ns[order],
        "total_share": shares(below_ns[order], whole_ns),
        "depth": nodes.level[order],
        "id": np.arange(len(order)),
        "parent_id": np.ma.array(place[np.where(parent < 0, 0, parent)], mask=parent < 0),
        "first_row": np.ma.masked_equal(nodes.row[order], -1),
    }
    notes = []
    if not len(order) and by == "gpu":
        notes = ["The trace has no GPU events with a duration; --by host has the time of calls."]
    elif not len(order):
        notes = ["The trace has no calls on the host with a duration."]
    else:
        if by == "host" and len(part.tree.host_tracks) > 1:
            notes.append("Threads run at the same time: all together are longer than the run.")
        if int(part.tree.depth[part.tree.host_rows].max(initial=0)) >= MAX_LEVELS:
            notes.append(f"Calls more than {MAX_LEVELS} levels deep count for their caller there.")
    facts = {"by": by, "total_ns": whole_ns}
    table = ColumnTable(columns, shown=_SHOWN, facts=facts, notes=notes)
    return table.take(order_by(table["self_ns"], descending=[True]))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Stacks; those above come first. Arrays are int64 `[n]`."""

    parent: Array
    """The place of the stack above; -1 for threads and what has no launch."""
    level: Array
    name: Array
    """Index in `names`."""
    kind: Array
    """EventKind, or _NO_KIND."""
    row: Array
    """The first event; -1 where there is none."""
    count: Array
    """The number of events that are merged in it."""
    names: list[str]

    @classmethod
    def join(cls, parts: Sequence[_Nodes]) -> _Nodes:
        """Put parts one behind the other; names are indices in those of the last."""
        return cls(
            np.concatenate([part.parent for part in parts]),
            np.concatenate([part.level for part in parts]),
            np.concatenate([part.name for part in parts]),
            np.concatenate([part.kind for part in parts]),
            np.concatenate([part.row for part in parts]),
            np.concatenate([part.count for part in parts]),
            parts[-1].names,
        )


# ------------------------------------------------------------------------------------ merging


def _host_stacks(part: RankTrace) -> tuple[_Nodes, Array]:
    """Return the stacks of host calls, and the stack of each of the tree's `host_rows`, int64; they
    are merged a level at a time."""
    table, tree = part.table, part.tree
    rows = tree.host_rows.astype(np.int64)
    names = names_without_addresses(part, rows)
    name = names.codes.astype(np.int64)
    steps = [step.row for step in tree.steps if step.row is not None]
    name[np.isin(rows, steps)] = len(names.texts)
    kind, depth = table.kind[rows].astype(np.int64), tree.depth[rows].astype(np.int64)
    texts = [*names.texts, STEP_NAME, *thread_names(part)]
    tracks, track = np.unique(table.track[rows], return_inverse=True)
    of_thread = len(names.texts) + 1 + tracks.astype(np.int64)
    none, zero = np.full(len(tracks), -1), np.zeros(len(tracks), dtype=np.int64)
    no_kind = np.full(len(tracks), _NO_KIND)
    parts = [_Nodes(none, zero, of_thread, no_kind, none, zero, texts)]
    node_of, known = np.zeros(len(rows), dtype=np.int64), len(tracks)
    above = track.reshape(-1).astype(np.int64)
    for level in range(min(int(depth.max(initial=-1)) + 1, MAX_LEVELS)):
        here = np.flatnonzero(depth == level)
        callers = node_of[tree.host_position[tree.parent[rows[here]]]] if level else above[here]
        groups = Groups(callers, kind[here], name[here])
        first = here[groups.first]
        parts.append(
            _Nodes(
                callers[groups.first],
                np.full(len(groups), level + 1),
                name[first],
                kind[first],
                rows[first],
                groups.count,
                texts,
            )
        )
        node_of[here] = known + groups.index
        known += len(groups)
    if len(depth):
        # Rows beyond the last level get the stack of their caller there: in a pre-order the last
        # row before them that is not as deep.
        kept = np.where(depth < MAX_LEVELS, np.arange(len(depth)), 0)
        node_of = node_of[np.maximum.accumulate(kept)]
    return _Nodes.join(parts), node_of


def _with_gpu_events(part: RankTrace, nodes: _Nodes, node_of: Array) -> tuple[_Nodes, Array]:
    """Add GPU events, those of one name below a launch call as a stack of their own; also return
    the exclusive time of each stack in ns."""
    table, tree = part.table, part.tree
    rows = tree.gpu_rows.astype(np.int64)
    launch = tree.launch[rows]
    linked = launch != _core.NO_ROW
    position = tree.host_position[launch[linked]]
    known = position != _core.NO_ROW
    unlaunched = len(nodes.parent)
    callers = np.full(len(rows), unlaunched)
    callers[np.flatnonzero(linked)[known]] = node_of[position[known]]
    names = [*nodes.names, ORPHAN_NAME, *table.strings]
    name = len(nodes.names) + 1 + table.name[rows].astype(np.int64)
    kind = table.kind[rows].astype(np.int64)
    groups = Groups(callers, kind, name)
    first, above = groups.first, callers[groups.first]
    level = np.append(nodes.level, 0)[above] + 1
    one = np.ones(1, dtype=np.int64)
    orphans = _Nodes(-one, 0 * one, len(nodes.names) * one, _NO_KIND * one, -one, 0 * one, names)
    events = _Nodes(above, level, name[first], kind[first], rows[first], groups.count, names)
    spent = groups.sum(part.costs.exclusive_ns[rows].astype(np.int64))
    self_ns = np.concatenate([np.zeros(unlaunched + 1, dtype=np.int64), spent])
    return _Nodes.join([nodes, orphans, events]), self_ns


TABLE = TableSpec(
    build=build_stacks,
    views=("gpu", "host"),
    sql={"stacks": {}, "host_stacks": {"by": "host"}},
    page=(
        PageView(
            "stacks",
            "GPU time",
            {"by": "gpu"},
            hint="GPU events below the calls that launched them; each is as wide as its time, "
            "which sums to the time in which the GPU is busy.",
            find="name",
            meter="self_share",
        ),
        PageView(
            "stacks",
            "host time",
            {"by": "host"},
            hint="Calls by thread; what no call below covers is a call's own time.",
            find="name",
            meter="self_share",
        ),
    ),
    first=("name", "self_ns", "total_ns", "self_share", "caller", "kind", "count"),
)
