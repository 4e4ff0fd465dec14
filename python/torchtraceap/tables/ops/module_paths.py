"""Paths of modules: what a row of the trace belongs to."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import TextCodes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["module_paths", "modules_of"]

_NO_PASS = 3
"""The pass of rows that belong to none: no forward, backward or recomputation."""


def modules_of(part: RankTrace, rows: Array) -> TextCodes:
    """Return the path of the innermost module of each row; absent outside of modules."""
    tree = _core.build_modules(part.table, part.tree, part.costs)
    nodes = tree.node_of[rows].astype(np.int64)
    nodes[tree.pass_of[rows] == _NO_PASS] = -1
    used, dense = np.unique(nodes, return_inverse=True)
    inside = used[used >= 0]
    codes = dense.astype(np.int32) - np.int32(len(used) - len(inside))
    return TextCodes(codes, module_paths(tree, inside))


def module_paths(tree: _core.ModuleTree, nodes: Array) -> list[str]:
    """Return the names from the root to each node; parents come before their children."""
    paths: list[str] = []
    for name, parent in zip(tree.names, tree.parent.tolist(), strict=True):
        paths.append(name if parent == _core.NO_ROW else f"{paths[parent]}/{name}")
    return [paths[node] for node in nodes.tolist()]
