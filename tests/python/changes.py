"""A change of an execution graph in words, so that a test can say what an edit does to which
edges."""

from __future__ import annotations

from collections import Counter

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.run import SimulatedRun

_KINDS = _core.dependency_kind_names()


def told(run: SimulatedRun, change: Change | None) -> list[str]:
    """What another change than none does: edges whose cost differs, edges gone, new edges.

    Times in microseconds. A point is `gemm[` where a row of that name begins and `gemm]` where it
    ends; with several ranks their number stands before it.
    """
    assert change is not None
    points = _points(run)
    graph, after = run.graph, costs_after(run, change)
    ends = [points[p] for p in run.destination.tolist()]
    begins = [points[p] for p in graph.source.tolist()]
    dropped = set(change.dropped.tolist())
    words = [
        f"{_KINDS[graph.kind[edge]]} {begins[edge]} {ends[edge]}: "
        + ("gone" if edge in dropped else f"{_us(run.cost_ns[edge])} to {_us(after[edge])}")
        for edge in range(len(after))
        if edge in dropped or after[edge] != run.cost_ns[edge]
    ]
    new = zip(*(column.tolist() for column in change.added), strict=True)
    return words + [f"new {points[a]} {points[b]}: {_us(lag)}" for a, b, lag in new]


def costs_after(run: SimulatedRun, change: Change) -> Array:
    """int64 `[edges]`: what every edge of the graph costs with a change, ns."""
    costs = run.cost_ns.copy()
    edges, lags = change.lags
    costs[edges] = lags
    return costs


def told_point(run: SimulatedRun, point: int) -> str:
    """`gemm[` where a row of that name begins, `gemm]` where it ends."""
    return _points(run)[point]


def _us(ns: int) -> str:
    return f"{ns / 1e3:g}"


def _points(run: SimulatedRun) -> dict[int, str]:
    found: dict[int, str] = {}
    for rank, part in enumerate(run.ranks):
        where = f"{rank}:" if len(run.ranks) > 1 else ""
        names = _numbered([part.table.name_of(row) for row in range(len(part.table))])
        sides = ("[", run.graph.begin_of(rank)), ("]", run.graph.end_of(rank))
        for side, of_row in sides:
            for row, point in enumerate(of_row.tolist()):
                if point != _core.NO_ROW:
                    found[point] = f"{where}{names[row]}{side}"
    return {point: found.get(point, "meeting") for point in range(len(run.graph))}


def _numbered(names: list[str]) -> list[str]:
    """Without arguments; of equal ones the second is called `name/2`."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in (full.split("(")[0].strip() for full in names):
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name}/{seen[name]}")
    return numbered
