"""What leads from one copy of a run's steps to the next: `carried_edges`.

Note [Carried edges]: the thread that marks the steps goes on at once. A stream takes the first work
of the next copy a typical gap behind the last of this one. Another thread that begins with what
the steps hand to it also goes on at once; one that nothing in them starts keeps its own rhythm, the
measured time from its last point round to its first. The queue of launches does not reach into the
next copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import median

__all__ = ["carried_edges"]

_STREAM = 1  # kind of a lane


class Marked(Protocol):
    """A stretch of steps: where the host's range of the first begins and that of the last ends."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


def carried_edges(
    graph: _core.ExecutionGraph, stretches: Sequence[Marked], inside: Sequence[Array]
) -> Array:
    """int64 `[carries, 3]`: point of a copy, point of the next copy, lag in ns. See Note [Carried
    edges].

    Args:
        graph: The run.
        stretches: One of each rank.
        inside: All points of each, in their order.
    """
    gap_ns = _typical_gap_ns(graph)
    edges = [
        edge
        for steps, points in zip(stretches, inside, strict=True)
        for edge in _edges_of(graph, steps, points, gap_ns)
    ]
    return np.array(edges, dtype=np.int64).reshape(-1, 3)


def _edges_of(
    graph: _core.ExecutionGraph, steps: Marked, inside: Array, gap_ns: int
) -> list[tuple[int, int, int]]:
    own = int(graph.lane[steps.begin])
    edges = [(steps.end, steps.begin, 0)]
    # The points of a lane stand beside each other.
    begins = np.flatnonzero(np.diff(graph.lane[inside], prepend=_core.NO_ROW))
    for points in np.split(inside, begins[1:]):
        lane = int(graph.lane[points[0]]) if len(points) else own
        if lane == own:
            continue
        times = graph.time_ns[points]
        first, last = int(points[times.argmin()]), int(points[::-1][times[::-1].argmax()])
        if not _is_started(graph, first, inside):
            edges.append((last, first, _round_ns(graph, steps, first, last)))
        else:
            edges.append((last, first, gap_ns if graph.lane_kind[lane] == _STREAM else 0))
    return edges


def _typical_gap_ns(graph: _core.ExecutionGraph) -> int:
    kind = _core.DependencyKind.STREAM_ORDER
    lags = graph.lag_ns[graph.kind == kind]
    return int(median(lags)) if len(lags) else 0


def _is_started(graph: _core.ExecutionGraph, point: int, inside: Array) -> bool:
    """Does other work of the steps, sorted points, lead to this point?"""
    sources = graph.source[graph.in_offsets[point] : graph.in_offsets[point + 1]]
    place = np.minimum(np.searchsorted(inside, sources), len(inside) - 1)
    known = inside[place] == sources
    return bool((known & (graph.lane[sources] != graph.lane[point])).any())


def _round_ns(graph: _core.ExecutionGraph, steps: Marked, first: int, last: int) -> int:
    before = graph.time_ns[first] - graph.time_ns[steps.begin]
    behind = graph.time_ns[steps.end] - graph.time_ns[last]
    return max(0, int(before + behind))
