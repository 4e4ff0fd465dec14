"""The tree of `nn.Module` calls with GPU and host time of every module, backward included."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import add, sum_by_index, totals
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec
from torchtraceap.tables.gpu.gpu_events import row_numbers
from torchtraceap.tables.ops.module_paths import module_paths
from torchtraceap.tables.serving.attribution import attribute
from torchtraceap.tables.serving.nodes import graph_nodes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_modules"]

_FORWARD, _BACKWARD, _RECOMPUTE, _NONE = range(4)
_MOST_DEPTH = 256
"""Parts of a path that are told apart, as in the core (`kMaxModuleDepth`)."""

_SOURCES = {
    "none": (
        "The trace names no modules. Record with with_stack=True (calls of nn.Module), with "
        "with_modules=True (TorchScript), or put record_function ranges around parts of the model."
    ),
    "python_frames": "Modules are the nn.Module calls among the Python frames.",
    "module_hierarchy": (
        "Modules are those that TorchScript operators name (with_modules=True); calls are not "
        "recorded."
    ),
    "hlo_module": "Modules are XLA programs and the name scopes of their operations.",
    "annotations": (
        "The trace has no nn.Module calls; these are its record_function ranges. "
        "with_stack=True records the modules."
    ),
    "graphs": "Modules are those of the work that CUDA graphs replay, as far as they are known.",
}


def build_modules(part: RankTrace) -> ColumnTable:
    """Build a table of the modules of one rank in order of their calls, each under its caller.

    Returns:
        `own_gpu_ns` sums to the fact `busy_ns`. Where the trace names no modules, no rows and a
        note that says how to record them. docs/tables.md has the columns.
    """
    tree = _with_replays(part, _core.build_modules(part.table, part.tree, part.costs))
    order = tree.preorder if tree.source != "none" else tree.preorder[:0]
    gpu, host = tree.gpu_ns[order], tree.host_ns[order]
    own_gpu, own_host = tree.own_gpu_ns[order], tree.own_host_ns[order]
    busy_ns = part.timeline().busy_ns
    gpu_ns = totals(gpu, 1)
    names, depths = tree.names, tree.depth[order].tolist()
    outline = [
        "· " * depth + names[node] for depth, node in zip(depths, order.tolist(), strict=True)
    ]
    place = np.full(len(tree.preorder), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    parent = tree.parent[order]
    is_root = parent == _core.NO_ROW
    columns: dict[str, Column] = {
        "module": TextCodes(
            np.arange(len(order), dtype=np.int32), [tree.paths[node] for node in order.tolist()]
        ),
        "name": _texts(tree.names, order),
        "outline": TextCodes(np.arange(len(outline), dtype=np.int32), outline),
        "type": _texts(tree.types, order),
        "depth": tree.depth[order].astype(np.int64),
        "id": np.arange(len(order)),
        "parent_id": np.ma.array(place[np.where(is_root, 0, parent)], mask=is_root),
        "calls": _calls(tree, tree.calls, order),
        "recompute_calls": _calls(tree, tree.recompute_calls, order),
        "gpu_ns": gpu_ns,
        "own_gpu_ns": totals(own_gpu, 1),
        "forward_gpu_ns": gpu[:, _FORWARD],
        "backward_gpu_ns": gpu[:, _BACKWARD],
        "recompute_gpu_ns": gpu[:, _RECOMPUTE],
        "gpu_events": tree.gpu_events[order],
        "host_ns": add(host[:, _FORWARD], host[:, _NONE]),
        "self_host_ns": add(own_host[:, _FORWARD], own_host[:, _NONE]),
        "backward_host_ns": host[:, _BACKWARD],
        "recompute_host_ns": host[:, _RECOMPUTE],
        "subtree_busy_share": gpu_ns / busy_ns if busy_ns else np.full(len(order), np.nan),
        "attribution": attribute(part).of_groups(
            _own_module(tree, place), part.table.dur_ns[part.tree.gpu_rows], len(order)
        ),
        "first_row": row_numbers(tree.first_call[order]),
    }
    shown = ["outline", "calls"]
    if gpu.any():
        shown += ["gpu_ns", "subtree_busy_share", "own_gpu_ns"]
        shown += ["forward_gpu_ns", "backward_gpu_ns"] if gpu[:, _BACKWARD].any() else []
        shown += ["recompute_gpu_ns"] if gpu[:, _RECOMPUTE].any() else []
        shown.append("host_ns")
    else:
        shown += ["host_ns", "self_host_ns", "backward_host_ns"]
    return ColumnTable(
        columns,
        shown=tuple(shown),
        facts={"source": tree.source, "busy_ns": busy_ns},
        notes=_notes(part, tree),
    )


@dataclass(frozen=True, slots=True)
class _Modules:
    """The fields of `_core.ModuleTree` that the table shows; `node_of` of the GPU events alone."""

    source: str
    paths: list[str]
    names: list[str]
    types: list[str]
    parent: Array
    depth: Array
    preorder: Array
    calls: Array
    recompute_calls: Array
    first_call: Array
    node_of: Array
    gpu_events: Array
    gpu_ns: Array
    own_gpu_ns: Array
    host_ns: Array
    own_host_ns: Array
    has_replays: bool = False
    """What CUDA graphs replay stands under its modules."""


def _with_replays(part: RankTrace, tree: _core.ModuleTree) -> _Modules:
    """Let GPU events that graphs replay count for the modules that they are known to belong to,
    and not for where the graph was launched."""
    rows, known = part.tree.gpu_rows, attribute(part)
    moved = np.flatnonzero(graph_nodes(part).replayed & (known.module.codes >= 0))
    paths = module_paths(tree, np.arange(len(tree.names)))
    of_core = (each.name for each in dataclasses.fields(_Modules) if hasattr(tree, each.name))
    fields: dict[str, Any] = {name: getattr(tree, name) for name in of_core}
    fields["paths"] = paths
    fields["node_of"] = tree.node_of[rows].astype(np.int64)
    if not len(moved):
        return _Modules(**fields)
    names, parent = list(tree.names), tree.parent.astype(np.int64).tolist()
    depth, first = tree.depth.tolist(), tree.first_call.tolist()
    below: dict[int, list[int]] = {}
    for node in tree.preorder.tolist():
        below.setdefault(parent[node], []).append(node)
    roots = below.setdefault(_core.NO_ROW, [])
    place = dict(zip(paths, range(len(names)), strict=True))
    codes = known.module.codes[moved]
    target = np.full(len(known.module.texts), -1, dtype=np.int64)
    for code, event in zip(*np.unique(codes, return_index=True), strict=True):
        path = known.module.texts[code]
        mark = "/" if "/" in path else "."
        parts, node = path.split(mark)[:_MOST_DEPTH], _core.NO_ROW
        for end in range(1, len(parts) + 1):
            prefix = mark.join(parts[:end])
            if prefix not in place:
                place[prefix] = len(names)
                below.setdefault(node, []).append(len(names))
                names.append(parts[end - 1])
                paths.append(prefix)
                parent.append(node)
                depth.append(end - 1)
                first.append(int(rows[moved[event]]))
            node = place[prefix]
        target[code] = node
    # What belongs to no module stands behind the modules.
    roots.sort(key=lambda node: node == 0)
    old, count = len(tree.names), len(names)
    more = np.zeros(count - old, dtype=np.int64)
    exclusive_ns = part.costs.exclusive_ns[rows[moved]]
    passes = np.where(_is_backward(known.phase, moved), _BACKWARD, _FORWARD)
    own = np.concatenate([tree.own_gpu_ns, np.zeros((count - old, 4), dtype=np.int64)])
    source = fields["node_of"][moved] * 4 + tree.pass_of[rows[moved]]
    taken_ns = sum_by_index(source, exclusive_ns, 4 * count).reshape(-1, 4)
    given_ns = sum_by_index(target[codes] * 4 + passes, exclusive_ns, 4 * count).reshape(-1, 4)
    own = add(np.maximum(own - taken_ns, 0), given_ns)
    events = np.concatenate([tree.own_gpu_events, more])
    events -= np.bincount(fields["node_of"][moved], minlength=count)
    events += np.bincount(target[codes], minlength=count)
    fields["node_of"][moved] = target[codes]
    gpu_ns, gpu_events = own.copy(), events.copy()
    for node in range(count - 1, -1, -1):  # parents stand before their children
        if parent[node] != _core.NO_ROW:
            gpu_ns[parent[node]] = add(gpu_ns[parent[node]], gpu_ns[node])
            gpu_events[parent[node]] += gpu_events[node]
    preorder: list[int] = []
    waiting = roots[::-1]
    while waiting:
        preorder.append(node := waiting.pop())
        waiting += below.get(node, [])[::-1]
    no_host = np.zeros((count - old, 4), dtype=np.int64)
    return _Modules(
        source=tree.source if tree.source != "none" else "graphs",
        paths=paths,
        names=names,
        types=[*tree.types, *[""] * len(more)],
        parent=np.array(parent),
        depth=np.array(depth),
        preorder=np.array(preorder),
        calls=np.concatenate([tree.calls, more]),
        recompute_calls=np.concatenate([tree.recompute_calls, more]),
        first_call=np.array(first),
        node_of=fields["node_of"],
        gpu_events=gpu_events,
        gpu_ns=gpu_ns,
        own_gpu_ns=own,
        host_ns=np.concatenate([tree.host_ns, no_host]),
        own_host_ns=np.concatenate([tree.own_host_ns, no_host]),
        has_replays=True,
    )


def _is_backward(phase: TextCodes, events: Array) -> Array:
    """Return whether each of some GPU events is work of the backward pass."""
    backward = np.array([*(text == "backward" for text in phase.texts), False], dtype=bool)
    found: Array = backward[phase.codes[events]]
    return found


def _own_module(tree: _Modules, place: Array) -> Array:
    """Return the row of the innermost module of each GPU event, int64; -1 without one."""
    node = tree.node_of
    inside = node < len(place)
    found: Array = np.where(inside, np.append(place, -1)[np.where(inside, node, -1)], -1)
    return found


def _texts(texts: list[str], nodes: Array) -> TextCodes:
    """Return a text of every node; absent where it is empty."""
    empty = np.array([not text for text in texts], dtype=bool)
    return TextCodes(np.where(empty[nodes], -1, nodes.astype(np.int64)).astype(np.int32), texts)


def _calls(tree: _Modules, calls: Array, order: Array) -> Array:
    """Return calls of modules; absent where the trace records none."""
    unknown = (tree.calls[order] == 0) & (tree.recompute_calls[order] == 0)
    return np.ma.array(calls[order].astype(np.int64), mask=unknown)


def _notes(part: RankTrace, tree: _Modules) -> list[str]:
    notes = [_SOURCES[tree.source]]
    if tree.source == "none":
        return notes
    if tree.has_replays and tree.source != "graphs":
        notes.append("What CUDA graphs replay stands under the modules that it is known to be of.")
    gpu = tree.own_gpu_ns
    if gpu[:, _RECOMPUTE].any():
        notes.append("Recompute is forward work that activation checkpointing does once more.")
    if not gpu.any():
        notes.append("The trace has no GPU time: modules have host time only.")
    backward = part.tree.phase == _core.Phase.BACKWARD
    if not gpu[:, _BACKWARD].any() and gpu.any() and backward[part.tree.gpu_rows].any():
        joined = bool(np.any(part.tree.forward != _core.NO_ROW))
        why = (
            "no module or range encloses the forward calls that it goes back to"
            if joined
            else "no sequence numbers match"
        )
        notes.append(
            f"Backward work could not be joined with modules ({why}): it stands under "
            "(outside modules)/backward."
        )
    return notes


TABLE = TableSpec(
    build=build_modules,
    sql={"modules": {}},
    page=(
        PageView(
            "modules",
            "outline",
            hint="GPU time with and without (own) the modules below, backward included.",
            find="outline",
            meter="subtree_busy_share",
        ),
    ),
    first=("outline", "gpu_ns", "own_gpu_ns", "subtree_busy_share", "host_ns", "calls"),
)
