"""`gpu_floors_ns`: what the GPU itself needs for a step.

Whatever an edit takes off the host, the GPU events that are left still run one behind the other on
their streams. No prediction may be shorter than the stream that has most to do, whatever the
replays, their ratio, or the width of an interval say. Collectives count apart from what else is on
their stream: an edit may give them one of their own.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap._core import GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["gpu_floors_ns"]

_STREAM = 1  # kind of lanes


@dataclass(frozen=True, slots=True)
class _StreamWork:
    """GPU events of the chosen steps."""

    edges: Array
    """int64 `[events]`: the edge from begin to end of each."""
    group: Array
    """int64 `[events]`: its step and stream, collectives apart."""
    alone: Array
    """float64 `[groups]`: share of the events' time that they don't overlap on their stream."""
    step: Array
    """int64 `[groups]`: index of the chosen step."""
    steps: int


def gpu_floors_ns(run: SimulatedRun, change: Change) -> Array:
    """float64 `[chosen steps]`, ns: GPU events back to back on the stream that needs longest.

    Args:
        run: The run.
        change: With its durations; events that it removes take no time.
    """
    work = run.cached("stream work", lambda: _stream_work(run))
    if not len(work.edges):
        return np.zeros(work.steps)
    costs = change.costs_of(run.cost_ns, work.edges)
    sums = np.bincount(work.group, weights=costs, minlength=len(work.step)) * work.alone
    longest = np.zeros(work.steps)
    np.maximum.at(longest, work.step, sums)
    return longest


def _stream_work(run: SimulatedRun) -> _StreamWork:
    graph = run.graph
    steps = run.chosen_steps
    points = np.concatenate([np.zeros(0, dtype=np.int64), *(step.work for step in steps)])
    step = np.repeat(np.arange(len(steps)), [len(step.work) for step in steps])
    on_stream = graph.lane_kind[graph.lane[points]] == _STREAM
    points, step = points[on_stream], step[on_stream]
    execution = run.edges_of("execution")
    own = np.full(len(graph), -1, dtype=np.int64)
    own[run.destination[execution]] = execution
    edges = own[points]
    edges, step = edges[edges >= 0], step[edges >= 0]
    lane = 2 * graph.lane[run.destination[edges]].astype(np.int64) + _communicates(run, edges)
    begin, end = graph.time_ns[graph.source[edges]], graph.time_ns[run.destination[edges]]
    order = np.lexsort((begin, lane, step))
    edges, step, lane = edges[order], step[order], lane[order]
    is_first = (np.diff(step, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0)
    group = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    alone = _alone(begin[order], end[order], group, len(first))
    return _StreamWork(edges, group, alone, step[first], len(steps))


def _communicates(run: SimulatedRun, edges: Array) -> Array:
    """bool `[edges]`: the GPU event that each is of is a collective."""
    graph = run.graph
    points = run.destination[edges]
    rank = graph.lane_rank[graph.lane[points]]
    found = np.zeros(len(edges), dtype=bool)
    for index, part in enumerate(run.ranks):
        mine = np.flatnonzero((rank == index) & (graph.row[points] != _core.NO_ROW))
        rows = graph.row[points[mine]]
        found[mine] = part.tree.gpu_class[rows] == GpuClass.COMMUNICATION
    return found


def _alone(begin: Array, end: Array, group: Array, groups: int) -> Array:
    """Of each group's events, by begin: the time that they cover over the sum of theirs, [0, 1]."""
    if not groups:
        return np.zeros(0)
    # In floating point, which can't overflow: groups apart, so that one running maximum does for
    # all of them.
    first = np.flatnonzero(np.diff(group, prepend=-1))
    since, until = (times - begin[first][group].astype(np.float64) for times in (begin, end))
    spans = np.maximum.reduceat(until, first)
    apart = (np.cumsum(spans) - spans)[group]
    since, until = since + apart, until + apart
    before = np.concatenate([since[:1], np.maximum.accumulate(until)[:-1]])
    covered = np.maximum(until - np.maximum(since, before), 0.0)
    sums = np.bincount(group, weights=until - since, minlength=groups)
    share: Array = np.bincount(group, weights=covered, minlength=groups) / np.maximum(sums, 1.0)
    return share.clip(0.0, 1.0)
