"""`carried_edges`: the dependencies from one copy of a run's steps to the next.

Note [Carried edges]: the thread that marks the steps goes on at once. A stream takes the first work
of the next copy a typical gap after the last of this one. Another thread that begins with work that
the steps hand to it also goes on at once; one that nothing in them starts keeps its own rhythm, the
measured time from its last point round to its first. The queue of launches does not reach into the
next copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import median

__all__ = ["carried_edges"]

_STREAM = 1  # kind of a lane


def carried_edges(
    graph: _core.ExecutionGraph, stretches: Sequence[tuple[int, int]], inside: Sequence[Array]
) -> Array:
    """Return points of a copy, points of the next copy, and lags in ns, int64 `[carries, 3]`. See
    Note [Carried edges].

    Args:
        graph: The run.
        stretches: For each rank the points where the host's range of the first step begins and
            that of the last ends.
        inside: All points of each rank's steps, ascending.
    """
    lags = graph.lag_ns[graph.kind == _core.DependencyKind.STREAM_ORDER]
    gap_ns = int(median(lags)) if len(lags) else 0
    edges = []
    for (begin, end), mine in zip(stretches, inside, strict=True):
        edges.append((end, begin, 0))
        own = int(graph.lane[begin])
        # The points of a lane are adjacent.
        begins = np.flatnonzero(np.diff(graph.lane[mine], prepend=_core.NO_ROW))
        for points in np.split(mine, begins[1:]):
            lane = int(graph.lane[points[0]]) if len(points) else own
            if lane == own:
                continue
            times = graph.time_ns[points]
            first, last = int(points[times.argmin()]), int(points[::-1][times[::-1].argmax()])
            if _is_started(graph, first, mine):
                lag_ns = gap_ns if graph.lane_kind[lane] == _STREAM else 0
            else:
                before_ns = int(graph.time_ns[first] - graph.time_ns[begin])
                behind_ns = int(graph.time_ns[end] - graph.time_ns[last])
                lag_ns = max(0, before_ns + behind_ns)
            edges.append((last, first, lag_ns))
    return np.array(edges, dtype=np.int64).reshape(-1, 3)


def _is_started(graph: _core.ExecutionGraph, point: int, inside: Array) -> bool:
    """Return whether other work of the steps, sorted points, leads to a point."""
    sources = graph.source[graph.in_offsets[point] : graph.in_offsets[point + 1]]
    place = np.minimum(np.searchsorted(inside, sources), len(inside) - 1)
    known = inside[place] == sources
    return bool((known & (graph.lane[sources] != graph.lane[point])).any())
