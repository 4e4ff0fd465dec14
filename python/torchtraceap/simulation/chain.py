"""What leads from one copy of a step to the next: `carried_edges`.

Note [Carried edges]: the thread that marks the step goes on at once. A stream takes the first work
of the next copy a typical gap behind the last of this one. Another thread that begins with what
the step hands to it also goes on at once; one that nothing in the step starts keeps its own
rhythm, the measured time from its last point round to its first. The queue of launches does not
reach into the next copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array

__all__ = ["carried_edges"]


class Marked(Protocol):
    """A step: where its host range begins and ends, and all points of its work."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def points(self) -> Array: ...


def carried_edges(
    graph: _core.ExecutionGraph, steps: Sequence[Marked]
) -> list[tuple[int, int, int]]:
    """(point of a copy, point of the next copy, lag in ns). See Note [Carried edges].

    Args:
        graph: The run.
        steps: One of each rank.
    """
    gap_ns = _typical_gap_ns(graph)
    return [edge for step in steps for edge in _edges_of(graph, step, gap_ns)]


def _edges_of(graph: _core.ExecutionGraph, step: Marked, gap_ns: int) -> list[tuple[int, int, int]]:
    own = int(graph.lane[step.begin])
    edges = [(step.end, step.begin, 0)]
    points = step.points[np.argsort(graph.time_ns[step.points], kind="stable")]
    lanes = graph.lane[points]
    found, first_of = np.unique(lanes, return_index=True)
    last_of = len(lanes) - 1 - np.unique(lanes[::-1], return_index=True)[1]
    for lane, at, behind in zip(found.tolist(), first_of, last_of, strict=True):
        if lane == own:
            continue
        first, last = int(points[at]), int(points[behind])
        if not _is_started(graph, first, step.points):
            edges.append((last, first, _round_ns(graph, step, first, last)))
        else:
            edges.append((last, first, gap_ns if graph.lane_kind[lane] == 1 else 0))
    return edges


def _typical_gap_ns(graph: _core.ExecutionGraph) -> int:
    kind = _core.DependencyKind.STREAM_ORDER
    lags = graph.lag_ns[graph.kind == kind]
    return int(np.median(lags)) if len(lags) else 0


def _is_started(graph: _core.ExecutionGraph, point: int, inside: Array) -> bool:
    """Does other work of the step, sorted points, lead to this point?"""
    sources = graph.source[graph.in_offsets[point] : graph.in_offsets[point + 1]]
    place = np.minimum(np.searchsorted(inside, sources), len(inside) - 1)
    known = inside[place] == sources
    return bool((known & (graph.lane[sources] != graph.lane[point])).any())


def _round_ns(graph: _core.ExecutionGraph, step: Marked, first: int, last: int) -> int:
    before = graph.time_ns[first] - graph.time_ns[step.begin]
    behind = graph.time_ns[step.end] - graph.time_ns[last]
    return max(0, int(before + behind))
