"""`build_idle_chain`: the chain of work for which the GPU waits in an idle interval.

Note [Chain]: the GPU event that ends the interval began when the last of its dependencies was done;
that one began when the last of its own was done, and so on, back to where the interval begins. In
the graph with the residuals of the measured run these steps follow each other without a gap, so
that the chain tiles the interval. Steps of one kind on one lane in a row become one row
of the table, under the deepest event that covers at least half of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, encode_texts
from torchtraceap.core.formatting import format_ns, format_part
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.grouping import thread_names
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["build_idle_chain"]

_THREAD, _STREAM = 0, 1
_SHOWN = (
    "lane",
    "kind",
    "name",
    "inside",
    "duration_ns",
    "idle_ns",
    "idle_share",
    "hops",
    "evidence",
)
_FIRST = ("name", "idle_ns", "idle_share", "lane")


@dataclass(frozen=True, slots=True)
class _Hops:
    """Edges of the chain in order of time."""

    edges: Array
    begin_ns: Array
    end_ns: Array
    lane: Array
    """Index of the lane of the point to which each leads."""
    row: Array
    """The event whose time it is, or to which it leads; NO_ROW."""
    idle_ns: Array
    """The part of each inside the interval."""


def build_idle_chain(
    trace: Ranks, start_ns: int, end_ns: int, *, rank: int | None = None
) -> ColumnTable:
    """Build the chain behind the idle interval that covers most of a range.

    Args:
        trace: One or several ranks; waits for another rank go on there.
        start_ns: In the clock of the rank.
        end_ns: The same; may be equal.
        rank: The rank whose GPU idles.

    Returns:
        A row for each part of the chain, by time. Without an idle interval, or where nothing is
        known of the event that ends it, there are no rows and the notes say so.

    Raises:
        OptionError: The range ends before it begins, or there is no such rank.
    """
    if end_ns < start_ns:
        raise OptionError(f"the range ends before it begins: {start_ns} to {end_ns} ns")
    part = trace.rank(rank)
    if not len(part.tree.gpu_rows):
        return _empty_table("The trace holds no GPU work.")
    facts, next_row = _longest_interval(part, start_ns, end_ns)
    if not facts:
        return _empty_table("The GPU does not idle in this range.")
    if next_row == _core.NO_ROW:
        return _empty_table("No GPU event follows the interval: nothing waits.", facts)
    run = SimulatedRun(trace)
    if part not in run.ranks:
        return _empty_table("The rank shares no collective with the others.", facts)
    point = int(run.graph.begin_of(run.ranks.index(part))[next_row])
    if point == _core.NO_ROW:
        return _empty_table("The event that ends the interval is not part of the graph.", facts)
    # GPU times may have been moved to agree with the host's clock.
    shift_ns = int(run.graph.time_ns[point]) - int(part.table.ts_ns[next_row])
    hops = _walk(run, point, facts["idle_start_ns"] + shift_ns, facts["idle_end_ns"] + shift_ns)
    if not len(hops.edges):
        return _empty_table(
            "Nothing is known that the event which ends the interval waits for.", facts
        )
    return _table(run, run.ranks.index(part), hops, facts)


def _longest_interval(part: RankTrace, start_ns: int, end_ns: int) -> tuple[dict[str, Any], int]:
    """Return facts of the idle interval that covers most of a range, and the GPU event that ends it
    or NO_ROW; no facts where none touches the range.

    The parts that `explain_idle` splits an interval into, one for each cause, are joined again.
    """
    idle = _core.explain_idle(part.table, part.tree)
    first = np.flatnonzero(np.r_[True, idle.start_ns[1:] != idle.end_ns[:-1]][: len(idle)])
    last = np.r_[first[1:], len(idle)] - 1
    start, end = idle.start_ns[first], idle.end_ns[last] if len(first) else idle.end_ns
    covered_ns = np.minimum(end, end_ns) - np.maximum(start, start_ns)
    touches = covered_ns >= 0 if start_ns == end_ns else covered_ns > 0
    if not touches.any():
        return {}, _core.NO_ROW
    best = int(np.where(touches, covered_ns, -1).argmax())
    parts = slice(int(first[best]), int(last[best]) + 1)
    by_cause = np.bincount(idle.cause[parts], weights=idle.end_ns[parts] - idle.start_ns[parts])
    facts = {
        "idle_start_ns": int(start[best]),
        "idle_end_ns": int(end[best]),
        "duration_ns": int(end[best]) - int(start[best]),
        "cause": _core.idle_cause_names()[int(by_cause.argmax())],
    }
    return facts, int(idle.next_gpu_row[last[best]])


def _empty_table(note: str, facts: dict[str, Any] | None = None) -> ColumnTable:
    empty = np.zeros(0, dtype=np.int64)
    texts = encode_texts([])
    columns: dict[str, Column] = {
        "rank": np.ma.array(empty),
        "lane": texts,
        "kind": texts,
        "name": texts,
        "inside": texts,
        "start_ns": empty,
        "end_ns": empty,
        "duration_ns": empty,
        "idle_ns": empty,
        "idle_share": empty.astype(np.float64),
        "hops": empty,
        "evidence": texts,
        "row": np.ma.array(empty),
    }
    return ColumnTable(columns, shown=_SHOWN, first=_FIRST, facts=facts, notes=[note])


# ------------------------------------------------------------------------------------- chain


def _walk(run: SimulatedRun, point: int, start_ns: int, end_ns: int) -> _Hops:
    """Follow the chain back to the start of the interval. O(hops) after one pass over the edges.
    See Note [Chain]."""
    graph = run.graph
    binding = _core.binding_edges(graph, graph.time_ns)
    edges: list[int] = []
    while binding[point] != _core.NO_ROW:
        edge = int(binding[point])
        edges.append(edge)
        point = int(graph.source[edge])
        if graph.time_ns[point] <= start_ns:
            break
    chain = np.array(edges[::-1], dtype=np.int64)
    ends = run.destination[chain]
    owner = graph.owner[chain]
    begin_ns, finish_ns = graph.time_ns[graph.source[chain]], graph.time_ns[ends]
    return _Hops(
        chain,
        begin_ns,
        finish_ns,
        graph.lane[ends],
        np.where(owner == _core.NO_ROW, graph.row[ends], owner),
        np.maximum(np.minimum(finish_ns, end_ns) - np.maximum(begin_ns, start_ns), 0),
    )


def _table(run: SimulatedRun, rank: int, hops: _Hops, facts: dict[str, Any]) -> ColumnTable:
    """Make a row of hops of one kind on one lane in a row; hops that took no time are left out."""
    graph = run.graph
    kind = graph.kind[hops.edges]
    lasting = np.flatnonzero(hops.end_ns > hops.begin_ns)
    if not len(lasting):
        lasting = np.arange(len(kind))[-1:]
    same = (np.diff(kind[lasting]) == 0) & (np.diff(hops.lane[lasting].astype(np.int64)) == 0)
    groups = np.split(lasting, np.flatnonzero(~same) + 1)
    idle_ns = [total(hops.idle_ns[g]) for g in groups]
    events = [_event_of(run, hops, group) for group in groups]
    kinds, evidence = _core.dependency_kind_names(), _core.evidence_names()
    # The graph's clock may be ahead of the host's clock of this rank.
    begins, starts_ns = graph.begin_of(rank), run.ranks[rank].table.ts_ns
    rows = np.flatnonzero(begins != _core.NO_ROW)
    rows = rows[(graph.lane_kind == _THREAD)[graph.lane[begins[rows]]]][:1]
    offset_ns = int(graph.time_ns[begins[rows[0]]] - starts_ns[rows[0]]) if len(rows) else 0
    begin_ns = np.array([hops.begin_ns[g[0]] for g in groups], dtype=np.int64) - offset_ns
    finish_ns = np.array([hops.end_ns[g[-1]] for g in groups], dtype=np.int64) - offset_ns
    numbers = [run.ranks[place].rank if place >= 0 else None for place, _, _ in events]
    columns: dict[str, Column] = {
        "rank": np.ma.array(
            [-1 if number is None else number for number in numbers],
            mask=[number is None for number in numbers],
            dtype=np.int64,
        ),
        "lane": encode_texts([_lane_name(run, int(hops.lane[g[0]])) for g in groups]),
        "kind": encode_texts([kinds[graph.kind[hops.edges[g[0]]]] for g in groups]),
        "name": encode_texts([name for _, _, name in events]),
        "inside": encode_texts([_outermost_event(run, place, row) for place, row, _ in events]),
        "start_ns": begin_ns,
        "end_ns": finish_ns,
        "duration_ns": finish_ns - begin_ns,
        "idle_ns": np.array(idle_ns, dtype=np.int64),
        "idle_share": np.array(idle_ns) / max(1, facts["duration_ns"]),
        "hops": np.array([len(g) for g in groups], dtype=np.int64),
        "evidence": encode_texts([evidence[graph.evidence[hops.edges[g]].max()] for g in groups]),
        "row": np.ma.masked_equal(
            np.array([row for _, row, _ in events], dtype=np.int64), _core.NO_ROW
        ),
    }
    facts = facts | {"waits_for": events[int(np.argmax(idle_ns))][2]}
    notes = [
        f"The GPU idles for {format_ns(facts['duration_ns'])} ({format_part(facts['cause'])}),"
        f" most of it for {facts['waits_for']}."
    ]
    if (graph.evidence[hops.edges] == _core.Evidence.ASSUMED).any():
        notes.append(
            "Some steps of the chain are assumed: the trace shows no dependency, and the order of "
            "events on a lane stands in for it."
        )
    shown = _SHOWN if len(run.ranks) == 1 else ("rank", *_SHOWN)
    notes += run.notes
    return ColumnTable(columns, shown=shown, first=_FIRST, facts=facts, notes=notes)


# ------------------------------------------------------------------------------------- words


def _event_of(run: SimulatedRun, hops: _Hops, group: Array) -> tuple[int, int, str]:
    """Return index of the rank, row and name of the event for a part of the chain."""
    lane = hops.lane[group[0]]
    rank, kind = int(run.graph.lane_rank[lane]), int(run.graph.lane_kind[lane])
    nameless = "(between events)" if kind == _THREAD else "(all ranks have arrived)"
    time_ns = hops.idle_ns[group]
    known = hops.row[group] != _core.NO_ROW
    if kind not in (_THREAD, _STREAM) or not known.any():
        return (rank if kind in (_THREAD, _STREAM) else -1), _core.NO_ROW, nameless
    rows = hops.row[group][known].astype(np.int64)
    part = run.ranks[rank]
    if kind == _STREAM:
        row = int(rows[time_ns[known].argmax()])
    else:
        row = _deepest_event(part, rows, time_ns[known], total(time_ns))
    return rank, row, part.table.name_of(row) if row != _core.NO_ROW else nameless


def _deepest_event(part: RankTrace, rows: Array, time_ns: Array, total_ns: int) -> int:
    """Return the shortest event that covers at least half of the time; else the longest part's."""
    parent, length = part.tree.parent, part.table.dur_ns
    covered: dict[int, int] = {}
    level, times = rows, time_ns
    while len(level):
        unique, place = np.unique(level, return_inverse=True)
        sums = np.bincount(place.reshape(-1), weights=times, minlength=len(unique))
        for row, ns in zip(unique.tolist(), sums.astype(np.int64).tolist(), strict=True):
            covered[row] = covered.get(row, 0) + ns
        above = parent[level].astype(np.int64)
        kept = above != _core.NO_ROW
        level, times = above[kept], times[kept]
    enough = [row for row, ns in covered.items() if 2 * ns >= total_ns]
    if enough:
        return min(enough, key=lambda row: (int(length[row]), row))
    return int(rows[time_ns.argmax()])


def _outermost_event(run: SimulatedRun, rank: int, row: int) -> str | None:
    """Name the outermost event of the step, or of the thread, around a host row."""
    if row == _core.NO_ROW:
        return None
    part = run.ranks[rank]
    steps = {step.row for step in part.tree.steps}
    outer, above = row, int(part.tree.parent[row])
    while above != _core.NO_ROW and above not in steps:
        outer, above = above, int(part.tree.parent[above])
    return part.table.name_of(outer) if outer != row else None


def _lane_name(run: SimulatedRun, lane: int) -> str:
    graph = run.graph
    rank, kind, index = graph.lane_rank[lane], graph.lane_kind[lane], int(graph.lane_index[lane])
    if kind == _THREAD:
        return thread_names(run.ranks[rank])[index]
    if kind == _STREAM:
        return f"stream {run.ranks[rank].tree.streams[index].stream}"
    return "collective"
