"""Match the nodes of an execution trace with rows of a Kineto trace, and find their GPU events."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.errors import ParseError
from torchtraceap.trace.execution.reader import Node
from torchtraceap.trace.ranks import RankTrace

__all__ = ["MAX_EVENTS_BELOW", "MAX_PAIRED_THREADS", "GpuRows", "match_nodes"]

_MIN_AGREEMENT = 0.9
_LOOK_AHEAD = 64
_CONFIRM = 2
_THREAD_NODE = "[pytorch|profiler|execution_"
MAX_PAIRED_THREADS = 256
"""Most threads of each trace to compare, those with the most calls: all pairs are compared."""
MAX_EVENTS_BELOW = 1 << 26
"""GPU events of all calls that depend on each other; those of a call count for all above it."""


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
    threads = {
        thread: Counter(call.name for call in by_thread[thread]) for thread in _longest(by_thread)
    }
    tracks = {track: Counter(by_track[track]) for track in _longest(by_track)}
    shared = [
        ((names & tracks[track]).total(), thread, track)
        for thread, names in threads.items()
        for track in tracks
    ]
    used: set[tuple[str, int]] = set()
    for count, thread, track in sorted(shared, key=lambda entry: (-entry[0], entry[1:])):
        if count and not used & {("thread", thread), ("track", track)}:
            used |= {("thread", thread), ("track", track)}
            yield thread, track


def _longest(lists: Mapping[int, Sized]) -> list[int]:
    """Keys of the MAX_PAIRED_THREADS longest."""
    return heapq.nlargest(MAX_PAIRED_THREADS, lists, key=lambda key: len(lists[key]))


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
    """Return how many names to skip of each list so that the next two agree: as few as possible, of
    b first."""
    if min(len(a), len(b)) < _LOOK_AHEAD + _CONFIRM:
        return _agreement_at_end(a, b)
    places: dict[tuple[str, ...], int] = {}
    for place in range(_LOOK_AHEAD - 1, -1, -1):
        places[tuple(b[place : place + _CONFIRM])] = place
    best, found = _LOOK_AHEAD, (1, 1)
    for skip_a in range(_LOOK_AHEAD):
        skip_b = places.get(tuple(a[skip_a : skip_a + _CONFIRM]), _LOOK_AHEAD)
        if 0 < skip_a + skip_b < best:
            best, found = skip_a + skip_b, (skip_a, skip_b)
    return found


def _agreement_at_end(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """Return how many names to skip if one list is about to end, with which the
    agreement may end."""
    for skipped in range(1, _LOOK_AHEAD):
        for skip_a in range(skipped + 1):
            skip_b = skipped - skip_a
            head_a, head_b = a[skip_a : skip_a + _CONFIRM], b[skip_b : skip_b + _CONFIRM]
            size = min(len(head_a), len(head_b))
            if size and head_a[:size] == head_b[:size]:
                return skip_a, skip_b
    return 1, 1


class GpuRows:
    """GPU events of host rows: those that a row owns, else those launched below it."""

    def __init__(self, rank: RankTrace) -> None:
        tree = rank.tree
        owners = rank.costs.owner[tree.gpu_rows].astype(np.int64)
        order = np.argsort(owners, kind="stable")
        self._gpu: Array = tree.gpu_rows[order].astype(np.int64)
        self._owners: Array = owners[order]
        self._position: Array = tree.host_position
        self._subtree_end: Array = tree.subtree_end
        # Launched events in the order of the rows that launched them in the tree: those below a
        # row stand side by side.
        offsets = tree.launched_offsets.astype(np.int64)
        counts = np.diff(offsets)[tree.host_rows]
        self._before: Array = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(self._before[-1]) - np.repeat(self._before[:-1], counts)
        places = np.repeat(offsets[:-1][tree.host_rows], counts) + within
        self._launched: Array = tree.launched_rows[places].astype(np.int64)
        self._seen = 0

    def of(self, row: int) -> Array:
        """int64, in no order.

        Raises:
            ParseError: With those asked for before there are more than MAX_EVENTS_BELOW.
        """
        start, end = np.searchsorted(self._owners, [row, row + 1])
        found = self._gpu[start:end] if start < end else self._below(row)
        self._seen += len(found)
        if self._seen > MAX_EVENTS_BELOW:
            raise ParseError(
                "calls that depend on each other are nested too deep: they have more than "
                f"{MAX_EVENTS_BELOW:,} GPU events"
            )
        return found

    def _below(self, row: int) -> Array:
        position = int(self._position[row])
        if position >= len(self._subtree_end):
            return self._launched[:0]
        begin, end = self._before[[position, int(self._subtree_end[position])]].tolist()
        return self._launched[begin:end]
