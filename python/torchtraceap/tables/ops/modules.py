"""The tree of `nn.Module` calls with GPU and host time of every module, backward included."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.sums import add, totals
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec
from torchtraceap.tables.gpu.gpu_events import row_numbers
from torchtraceap.tables.ops.module_paths import module_paths
from torchtraceap.tables.serving.attribution import attribute
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_modules"]

_FORWARD, _BACKWARD, _RECOMPUTE, _NONE = range(4)

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
}


def build_modules(part: RankTrace) -> ColumnTable:
    """Build a table of the modules of one rank in order of their calls, each under its caller.

    Returns:
        `own_gpu_ns` sums to the fact `busy_ns`. Where the trace names no modules, no rows and a
        note that says how to record them. docs/tables.md has the columns.
    """
    tree = _core.build_modules(part.table, part.tree, part.costs)
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
        "module": TextCodes(np.arange(len(order), dtype=np.int32), module_paths(tree, order)),
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
            _own_module(part, tree, place), part.table.dur_ns[part.tree.gpu_rows], len(order)
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


def _own_module(part: RankTrace, tree: _core.ModuleTree, place: Array) -> Array:
    """Return the row of the innermost module of each GPU event, int64; -1 without one."""
    node = tree.node_of[part.tree.gpu_rows].astype(np.int64)
    inside = node < len(place)
    found: Array = np.where(inside, np.append(place, -1)[np.where(inside, node, -1)], -1)
    return found


def _texts(texts: list[str], nodes: Array) -> TextCodes:
    """Return a text of every node; absent where it is empty."""
    empty = np.array([not text for text in texts], dtype=bool)
    return TextCodes(np.where(empty[nodes], -1, nodes.astype(np.int64)).astype(np.int32), texts)


def _calls(tree: _core.ModuleTree, calls: Array, order: Array) -> Array:
    """Return calls of modules; absent where the trace records none."""
    unknown = (tree.calls[order] == 0) & (tree.recompute_calls[order] == 0)
    return np.ma.array(calls[order].astype(np.int64), mask=unknown)


def _notes(part: RankTrace, tree: _core.ModuleTree) -> list[str]:
    notes = [_SOURCES[tree.source]]
    if tree.source == "none":
        return notes
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
