"""GPU events in the order in which they were launched, and the nodes of CUDA graphs behind them.

What one call launches has one order, whatever streams it runs on: that of the graph's nodes, by
their ids, which count up during the capture; where the ids are not recorded, by start.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.trace.ranks import RankTrace

__all__ = ["GraphNodes", "graph_nodes", "launch_order", "nodes_in_order"]

_GRAPH_BITS = 32
"""CUDA's id of a node for tools has the id of its graph above so many bits of the node's own."""


@dataclass(frozen=True, slots=True)
class GraphNodes:
    """The nodes behind `tree.gpu_rows`; arrays have one entry per event."""

    replayed: Array
    """bool: a graph launch ran it."""
    known: Array
    """bool: the id of its node is recorded."""
    node: Array
    """int64: `graph node id` as recorded; 0 where it is not."""
    whole: Array
    """int64: the id with that of the graph, `(graph id << 32) | node id`."""
    of_graph: Array
    """bool: `whole` tells the graph as well."""


def graph_nodes(part: RankTrace) -> GraphNodes:
    """Return the nodes behind the GPU events of a rank; kept."""
    return part.cached("graph nodes", lambda: _build(part))


def _build(part: RankTrace) -> GraphNodes:
    table, tree = part.table, part.tree
    rows = tree.gpu_rows.astype(np.int64)
    launches = tree.launch[rows]
    linked = launches != _core.NO_ROW
    api = np.asarray(tree.api)[np.where(linked, launches, 0).astype(np.int64)]
    node, known = table.int_column("graph node id", rows=rows)
    graph, of_graph = table.int_column("graph id", rows=rows)
    known = known & (node > 0)
    node = np.where(known, node, 0)
    short = of_graph & (node < 1 << _GRAPH_BITS) & (graph >= 0) & (graph < 1 << 31)
    whole = np.where(short, (graph << _GRAPH_BITS) | node, node)
    return GraphNodes(
        replayed=linked & (api == _core.ApiClass.GRAPH_LAUNCH),
        known=known,
        node=node,
        whole=whole,
        of_graph=whole >> _GRAPH_BITS > 0,
    )


def launch_order(part: RankTrace) -> Array:
    """Return the GPU events of a rank, int64 index in `tree.gpu_rows`, by their launch calls and
    those of one call by their nodes; what has no launch call stands where it starts. Kept."""
    return part.cached("launch order", lambda: _launch_order(part))


def _launch_order(part: RankTrace) -> Array:
    table, nodes = part.table, graph_nodes(part)
    rows = part.tree.gpu_rows
    start_ns, launches = table.ts_ns[rows], part.tree.launch[rows].astype(np.int64)
    linked = launches != _core.NO_ROW
    called = np.where(linked, launches, 0)
    unknown = np.bincount(called[linked & ~nodes.known], minlength=len(table))
    ids = np.where(linked & (unknown[called] == 0), nodes.node, 0)
    call_ns = np.where(linked, table.ts_ns[called], start_ns)
    order: Array = np.lexsort((start_ns, ids, launches, call_ns))
    return order


def nodes_in_order(part: RankTrace, launch_row: int) -> Array:
    """Return the events that a call launched, int64 index in `tree.gpu_rows`, in their order."""
    order, first = part.cached("events of launches", lambda: _events_of_launches(part))
    count = int(np.diff(part.tree.launched_offsets[launch_row : launch_row + 2])[0])
    events: Array = order[first[launch_row] : first[launch_row] + count]
    return events


def _events_of_launches(part: RankTrace) -> tuple[Array, Array]:
    """Return the events in order, and by row of the table the place of its first event there."""
    order = launch_order(part)
    launches = part.tree.launch[part.tree.gpu_rows[order]].astype(np.int64)
    first = np.zeros(len(part.table) + 1, dtype=np.int64)
    calls, places = np.unique(np.minimum(launches, len(part.table)), return_index=True)
    first[calls] = places
    return order, first
