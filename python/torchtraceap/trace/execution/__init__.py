"""PyTorch execution traces: which call wrote what another reads, exactly.

    execution = load_execution_trace("execution_trace.json")
    execution.nodes, execution.dependencies             # tables
    linked = execution.link(trace)                      # the Kineto trace of the same run
    linked.gpu_dependencies                             # between GPU events

docs/formats.md says what counts as a dependency.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import ParseError
from torchtraceap.trace.execution.dependencies import (
    KINDS,
    MAX_DEPENDENCIES,
    MAX_VISITS,
    Dependency,
    find_dependencies,
)
from torchtraceap.trace.execution.reader import Node, NodeFile, read_nodes
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "MAX_EVENTS_BELOW",
    "MAX_PAIRED_THREADS",
    "ExecutionTrace",
    "LinkedExecution",
    "load_execution_trace",
]

MAX_PAIRED_THREADS = 256
"""The most threads of each trace to compare, those with the most calls: all pairs are compared."""
MAX_EVENTS_BELOW = 1 << 26
"""The most GPU events of all calls that depend on each other; those of a call count for all above
it."""
_MIN_AGREEMENT = 0.9
_LOOK_AHEAD = 64
_CONFIRM = 2
_THREAD_NODE = "[pytorch|profiler|execution_"
_HOWS = {
    "record_function_id": "nodes and events were matched by record function id",
    "external_id": "nodes and events were matched by External id",
    "order": "the traces share no ids: nodes and events were matched by the order of names",
}


def load_execution_trace(path: str | os.PathLike[str]) -> ExecutionTrace:
    """Read an execution trace, JSON or gzip, schemas 1.0.1 to 1.1.x (Chakra).

    Raises:
        MissingFileError: There is no such file.
        ParseError: It is no execution trace, or its nodes contradict each other.
    """
    return ExecutionTrace(Path(path), read_nodes(Path(path)))


class ExecutionTrace(Renderable):
    """Nodes and tensor dependencies of one process."""

    def __init__(self, path: Path, file: NodeFile) -> None:
        self.path = str(path)
        self.schema = file.schema
        """Schema that the file names, such as "1.1.1-chakra.0.0.4"."""
        self.pid = file.pid
        """-1 if absent."""
        self._nodes = file.nodes
        try:
            self._found = find_dependencies(file.nodes)
        except ParseError as error:
            raise ParseError(f"{path}: {error}") from None
        self.nodes = _node_table(file, self._found)
        """One row per call: node, name, parent, rf_id, thread, ..., by id."""
        names, found = {node.node: node.name for node in file.nodes}, self._found
        columns: dict[str, Column] = {
            "producer": _ints(d.producer for d in found),
            "consumer": _ints(d.consumer for d in found),
            "kind": TextCodes(_ints(d.kind for d in found), KINDS),
            "producer_name": encode_texts(names[d.producer] for d in found),
            "consumer_name": encode_texts(names[d.consumer] for d in found),
            "storage": _ints(d.storage for d in found),
            "consumer_bytes": _ints(d.overlap_bytes for d in found),
            "device": encode_texts(d.device for d in found),
        }
        counts = {kind: sum(d.kind == code for d in found) for code, kind in enumerate(KINDS)}
        shown = ("producer_name", "consumer_name", "kind", "consumer_bytes", "device")
        self.dependencies = ColumnTable(columns, shown=shown, facts=counts)
        """One row per producer, consumer, kind and storage."""

    def __repr__(self) -> str:
        return (
            f"ExecutionTrace(nodes={self.nodes.num_rows}, "
            f"dependencies={self.dependencies.num_rows}, path={self.path!r})"
        )

    def link(self, trace: Ranks, rank: int | None = None) -> LinkedExecution:
        """Match the nodes with the events of a Kineto trace of the same run.

        Args:
            trace: The Kineto trace.
            rank: Its rank of this process; by default the first.
        """
        part = trace.rank(rank)
        rows, how = _match_nodes(self._nodes, part)
        calls = [node for node in self._nodes if node.rf_id != 0]
        by_thread: dict[int, list[int]] = {}
        for node in calls:
            by_thread.setdefault(node.thread, []).append(node.node)
        threads = sorted(by_thread)
        found = [[rows[n] for n in by_thread[t] if n in rows] for t in threads]
        columns: dict[str, Column] = {
            "thread": _ints(threads),
            "nodes": _ints(len(by_thread[t]) for t in threads),
            "matched": _ints(len(events) for events in found),
            "tracks": _ints(len(np.unique(part.table.track[events])) for events in found),
        }
        matched = sum(len(events) for events in found)
        notes = [_HOWS.get(how, "nothing matches: the traces are of different runs or processes")]
        if how and matched < len(calls):
            notes.append(f"{len(calls) - matched} of {len(calls)} nodes have no event")
        facts = {"nodes": len(calls), "matched": matched, "matched_by": how or None}
        matches = ColumnTable(columns, facts=facts, notes=notes)
        return LinkedExecution(rows, matches, _gpu_dependency_table(part, self._found, rows))


@dataclass(frozen=True, slots=True)
class LinkedExecution(Renderable):
    """An execution trace and the Kineto trace of the same run."""

    rows: dict[int, int]
    """The row of the event table by node."""
    matches: ColumnTable
    """The number of nodes of each thread, and of those that are events of the Kineto trace."""
    gpu_dependencies: ColumnTable
    """One row per pair of GPU events of which one needs the other's end."""


def _node_table(file: NodeFile, found: Sequence[Dependency]) -> ColumnTable:
    nodes = file.nodes
    after = {dependency.consumer for dependency in found}
    before = {dependency.producer for dependency in found}
    columns: dict[str, Column] = {
        "node": _ints(node.node for node in nodes),
        "name": encode_texts(node.name for node in nodes),
        "parent": _maybe(nodes, "parent"),
        "rf_id": _maybe(nodes, "rf_id"),
        "thread": _maybe(nodes, "thread"),
        "forward_parent": _ints(node.forward_parent for node in nodes),
        "forward_thread": _ints(node.forward_thread for node in nodes),
        "sequence": _maybe(nodes, "sequence"),
        "scope": _maybe(nodes, "scope"),
        "op_schema": encode_texts(node.schema or None for node in nodes),
        "input_bytes": _ints(_bytes_of(node.inputs) for node in nodes),
        "output_bytes": _ints(_bytes_of(node.outputs) for node in nodes),
        "produces": np.array([node.node in before for node in nodes], dtype=bool),
        "consumes": np.array([node.node in after for node in nodes], dtype=bool),
    }
    facts = {"execution_trace_schema": file.schema, "nodes": len(nodes), "dependencies": len(found)}
    shown = ("node", "name", "parent", "thread", "input_bytes", "output_bytes")
    return ColumnTable(columns, shown=shown, facts=facts, notes=file.notes)


def _bytes_of(accesses: Sequence[Any]) -> int:
    return sum(access.end - access.start for access in accesses)


def _gpu_dependency_table(
    rank: RankTrace, found: Sequence[Dependency], rows: dict[int, int]
) -> ColumnTable:
    ends = _Ends(rank, rows)
    pairs: dict[tuple[int, int], int] = {}
    for dependency in found:
        for pair in ends.facing(dependency.producer, dependency.consumer):
            pairs[pair] = min(pairs.get(pair, dependency.kind), dependency.kind)
        if len(pairs) > MAX_DEPENDENCIES:
            raise ParseError(f"GPU events depend on each other in over {MAX_DEPENDENCIES:,} ways")
    table = rank.table
    producers = np.array([pair[0] for pair in pairs], dtype=np.int64)
    consumers = np.array([pair[1] for pair in pairs], dtype=np.int64)
    slack = table.ts_ns[consumers] - (table.ts_ns[producers] + table.dur_ns[producers])
    kinds = np.array(list(pairs.values()), dtype=np.int64)
    names = table.strings
    columns: dict[str, Column] = {
        "producer_row": producers,
        "consumer_row": consumers,
        "kind": TextCodes(kinds, KINDS),
        "producer_name": encode_texts(names[table.name[row]] for row in producers),
        "consumer_name": encode_texts(names[table.name[row]] for row in consumers),
        "same_stream": table.stream[producers] == table.stream[consumers],
        "slack_ns": slack,
    }
    early = int((slack < 0).sum())
    notes = []
    if early:
        notes.append(
            f"{early} events begin before one that they need has ended: the traces are of "
            "different runs, or streams were not synchronized"
        )
    facts = {"gpu_dependencies": len(pairs), "begin_early": early}
    shown = ("producer_name", "consumer_name", "kind", "same_stream", "slack_ns")
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


def _ints(values: Any) -> Array:
    return np.fromiter(values, dtype=np.int64)


def _maybe(nodes: Sequence[Node], name: str) -> Array:
    """Return a column of ids, masked where absent."""
    values = _ints(getattr(node, name) for node in nodes)
    return np.ma.array(values, mask=values < 0)


# ---------------------------------------------------------------------------------- GPU events


class _Ends:
    """The first and the last GPU events of calls, by stream; looked for once for each call.

    GPU events of a call are those that it owns, else those launched below it.
    """

    def __init__(self, rank: RankTrace, rows: dict[int, int]) -> None:
        tree = rank.tree
        self._rows = rows
        owners = rank.costs.owner[tree.gpu_rows].astype(np.int64)
        order = np.argsort(owners, kind="stable")
        self._gpu: Array = tree.gpu_rows[order].astype(np.int64)
        self._owners: Array = owners[order]
        # Launched events in the order of the rows that launched them in the tree: those below a
        # row stand side by side.
        offsets = tree.launched_offsets.astype(np.int64)
        counts = np.diff(offsets)[tree.host_rows]
        self._before: Array = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(self._before[-1]) - np.repeat(self._before[:-1], counts)
        places = np.repeat(offsets[:-1][tree.host_rows], counts) + within
        self._launched: Array = tree.launched_rows[places].astype(np.int64)
        self._host_position: Array = tree.host_position
        self._subtree_end: Array = tree.subtree_end
        self._stream_of: Array = tree.stream_of
        self._known: dict[int, tuple[list[int], list[int]]] = {}
        self._seen = self._pairs = 0

    def facing(self, producer: int, consumer: int) -> list[tuple[int, int]]:
        """Return pairs of the last events of the producer on each stream and the first of the
        consumer on each.

        Raises:
            ParseError: There are more than MAX_VISITS pairs, or MAX_EVENTS_BELOW events.
        """
        before, after = self._rows.get(producer), self._rows.get(consumer)
        if before is None or after is None or before == after:
            return []
        last, first = self._of(before)[1], self._of(after)[0]
        self._pairs += len(last) * len(first)
        if self._pairs > MAX_VISITS:
            raise ParseError(f"calls that depend on each other face on over {MAX_VISITS:,} streams")
        return [(p, c) for p in last for c in first if p != c]

    def _of(self, row: int) -> tuple[list[int], list[int]]:
        if row in self._known:
            return self._known[row]
        start, end = np.searchsorted(self._owners, [row, row + 1])
        found = self._gpu[start:end]
        position = int(self._host_position[row])
        if start == end and position < len(self._subtree_end):
            begin, end = self._before[[position, int(self._subtree_end[position])]].tolist()
            found = self._launched[begin:end]
        self._seen += len(found)
        if self._seen > MAX_EVENTS_BELOW:
            raise ParseError(
                "calls that depend on each other are nested too deep: they have more than "
                f"{MAX_EVENTS_BELOW:,} GPU events"
            )
        events = np.unique(found)
        streams = self._stream_of[events]
        first = np.unique(streams, return_index=True)[1]
        last = len(events) - 1 - np.unique(streams[::-1], return_index=True)[1]
        self._known[row] = (
            events[first[np.argsort(-last)]].tolist(),
            events[last[np.argsort(first)]].tolist(),
        )
        return self._known[row]


# ---------------------------------------------------------------------------------- matching


def _match_nodes(nodes: Sequence[Node], rank: RankTrace) -> tuple[dict[int, int], str]:
    """Match nodes with rows of a Kineto trace.

    By record function id where both traces have it and names agree, else by External id likewise,
    else by the order of names on each thread.

    Returns:
        The rows by node, and "record_function_id", "external_id" or "order"; "" where nothing
        matches.
    """
    calls = [node for node in nodes if not node.name.startswith(_THREAD_NODE)]
    # Complete operators and annotations by start. Clocks of a microsecond let calls begin together:
    # their ids tell which came first.
    table = rank.table
    kinds = (_core.EventKind.CPU_OP, _core.EventKind.USER_ANNOTATION)
    rows = np.flatnonzero(np.isin(table.kind, kinds) & table.complete)
    rows = rows[np.lexsort((table.external_id[rows], table.ts_ns[rows]))]
    ids, present = table.int_column("Record function id")
    columns = {
        "record_function_id": np.where(present, ids, 0)[rows],
        "external_id": table.external_id[rows],
    }
    strings, name = table.strings, table.name
    for how, values in columns.items():
        by_id: dict[int, int] = {}
        for value, row in zip(values.tolist(), rows.tolist(), strict=True):
            if value > 0:
                by_id.setdefault(value, row)
        pairs = [(call, by_id[call.rf_id]) for call in calls if call.rf_id in by_id]
        agreeing = {call.node: row for call, row in pairs if strings[name[row]] == call.name}
        if len(agreeing) >= max(_MIN_AGREEMENT * len(pairs), 1):
            return agreeing, how
    found = _match_by_order(calls, rank, rows)
    return found, "order" if found else ""


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
    """Yield each thread with the track that shares most names with it, best pairs first."""
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
    """Return the keys of the MAX_PAIRED_THREADS longest."""
    return heapq.nlargest(MAX_PAIRED_THREADS, lists, key=lambda key: len(lists[key]))


def _align(a: Sequence[str], b: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Yield pairs of equal names in order; after a difference, from where both agree again."""
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        skip_a, skip_b = _next_agreement(a[i : i + 2 * _LOOK_AHEAD], b[j : j + 2 * _LOOK_AHEAD])
        i, j = i + skip_a, j + skip_b


def _next_agreement(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of names to skip of each list so that the next two agree: as few as
    possible, of b first."""
    if min(len(a), len(b)) < _LOOK_AHEAD + _CONFIRM:
        # One list is about to end, with which the agreement may end.
        for skipped in range(1, _LOOK_AHEAD):
            for skip_a in range(skipped + 1):
                skip_b = skipped - skip_a
                head_a, head_b = a[skip_a : skip_a + _CONFIRM], b[skip_b : skip_b + _CONFIRM]
                size = min(len(head_a), len(head_b))
                if size and head_a[:size] == head_b[:size]:
                    return skip_a, skip_b
        return 1, 1
    places: dict[tuple[str, ...], int] = {}
    for place in range(_LOOK_AHEAD - 1, -1, -1):
        places[tuple(b[place : place + _CONFIRM])] = place
    best, found = _LOOK_AHEAD, (1, 1)
    for skip_a in range(_LOOK_AHEAD):
        skip_b = places.get(tuple(a[skip_a : skip_a + _CONFIRM]), _LOOK_AHEAD)
        if 0 < skip_a + skip_b < best:
            best, found = skip_a + skip_b, (skip_a, skip_b)
    return found
