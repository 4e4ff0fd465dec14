"""Which row of a Kineto trace each node of an execution trace is, and what follows for the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.execution_trace.reader import Node
from torchtraceap.ranks import RankTrace

__all__ = ["gpu_rows_of", "match_nodes"]

_MIN_AGREEMENT = 0.9
_LOOK_AHEAD = 64
_CONFIRM = 2
_THREAD_NODE = "[pytorch|profiler|execution_"


def match_nodes(nodes: Sequence[Node], rank: RankTrace) -> tuple[dict[int, int], str]:
    """Rows by node, and how they were found.

    By record function id where both traces have it and names agree, else by External id likewise,
    else by the order of names on each thread.

    Returns:
        The rows and "record_function_id", "external_id" or "order"; "" where nothing matches.
    """
    calls = [node for node in nodes if not node.name.startswith(_THREAD_NODE)]
    rows = _host_rows(rank)
    ids, present = rank.table.int_column("Record function id")
    columns = {
        "record_function_id": np.where(present, ids, 0)[rows],
        "external_id": rank.table.external_id[rows],
    }
    for how, values in columns.items():
        found = _match_by_id(calls, rank, rows, values)
        if found:
            return found, how
    found = _match_by_order(calls, rank, rows)
    return found, "order" if found else ""


def _host_rows(rank: RankTrace) -> Array:
    """Complete operators and annotations of the host, by start."""
    table = rank.table
    kinds = (_core.EventKind.CPU_OP, _core.EventKind.USER_ANNOTATION)
    rows = np.flatnonzero(np.isin(table.kind, kinds) & table.complete)
    # Clocks of a microsecond let calls begin together: their ids tell which came first.
    return rows[np.lexsort((table.external_id[rows], table.ts_ns[rows]))]


def _match_by_id(
    calls: Sequence[Node], rank: RankTrace, rows: Array, values: Array
) -> dict[int, int]:
    """Empty unless names agree for nearly all ids that both have."""
    by_id: dict[int, int] = {}
    for value, row in zip(values.tolist(), rows.tolist(), strict=True):
        if value > 0:
            by_id.setdefault(value, row)
    strings, name = rank.table.strings, rank.table.name
    pairs = [(call, by_id[call.rf_id]) for call in calls if call.rf_id in by_id]
    agreeing = {call.node: row for call, row in pairs if strings[name[row]] == call.name}
    return agreeing if len(agreeing) >= max(_MIN_AGREEMENT * len(pairs), 1) else {}


def _match_by_order(calls: Sequence[Node], rank: RankTrace, rows: Array) -> dict[int, int]:
    strings, names = rank.table.strings, rank.table.name
    by_thread: dict[int, list[Node]] = {}
    for call in calls:
        by_thread.setdefault(call.thread, []).append(call)
    by_track: dict[int, list[int]] = {}
    for row, track in zip(rows.tolist(), rank.table.track[rows].tolist(), strict=True):
        by_track.setdefault(track, []).append(row)
    row_names = {track: [strings[names[r]] for r in part] for track, part in by_track.items()}
    found: dict[int, int] = {}
    for thread, track in _pair_threads(by_thread, row_names):
        part = by_thread[thread]
        for i, j in _align([call.name for call in part], row_names[track]):
            found[part[i].node] = by_track[track][j]
    return found


def _pair_threads(
    by_thread: dict[int, list[Node]], by_track: dict[int, list[str]]
) -> Iterable[tuple[int, int]]:
    """Each thread with the track that shares most names with it, best pairs first."""
    tracks = {track: Counter(names) for track, names in by_track.items()}
    shared = [
        ((Counter(call.name for call in part) & tracks[track]).total(), thread, track)
        for thread, part in by_thread.items()
        for track in tracks
    ]
    used: set[tuple[str, int]] = set()
    for count, thread, track in sorted(shared, key=lambda entry: (-entry[0], entry[1:])):
        if count and not used & {("thread", thread), ("track", track)}:
            used |= {("thread", thread), ("track", track)}
            yield thread, track


def _align(a: Sequence[str], b: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Pairs of equal names in order; after a difference, from where both agree again."""
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        skip_a, skip_b = _next_agreement(a[i : i + 2 * _LOOK_AHEAD], b[j : j + 2 * _LOOK_AHEAD])
        i, j = i + skip_a, j + skip_b


def _next_agreement(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    for skipped in range(1, _LOOK_AHEAD):
        for skip_a in range(skipped + 1):
            skip_b = skipped - skip_a
            head_a, head_b = a[skip_a : skip_a + _CONFIRM], b[skip_b : skip_b + _CONFIRM]
            size = min(len(head_a), len(head_b))
            if size and head_a[:size] == head_b[:size]:
                return skip_a, skip_b
    return 1, 1


def gpu_rows_of(rank: RankTrace, rows: Iterable[int]) -> dict[int, list[int]]:
    """GPU events of each host row: those that it owns, else those launched below it."""
    owners = rank.costs.owner[rank.tree.gpu_rows].astype(np.int64)
    order = np.argsort(owners, kind="stable")
    gpu = rank.tree.gpu_rows[order].astype(np.int64)
    owners = owners[order]
    result: dict[int, list[int]] = {}
    for row in rows:
        start, end = np.searchsorted(owners, [row, row + 1])
        result[row] = gpu[start:end].tolist() or _launched_below(rank, row)
    return result


def _launched_below(rank: RankTrace, row: int) -> list[int]:
    tree = rank.tree
    position = int(tree.host_position[row])
    if position >= len(tree.host_rows) or not rank.costs.subtree_gpu_events[row]:
        return []
    below = tree.host_rows[position : int(tree.subtree_end[position])]
    offsets = tree.launched_offsets
    launched = [tree.launched_rows[offsets[r] : offsets[r + 1]].tolist() for r in below.tolist()]
    return [gpu for part in launched for gpu in part]
