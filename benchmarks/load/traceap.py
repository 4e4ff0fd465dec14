"""torchtraceap: columns and tree, by default options."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core


def run(path: str) -> tuple[Any, Any]:
    table = _core.read_trace(path)
    return table, _core.build_tree(table)


def answers(built: tuple[Any, Any]) -> dict[str, int]:
    table, tree = built
    return {
        "objects": table.total_objects,
        "gpu_events": len(tree.gpu_rows),
        "linked_gpu_events": len(tree.linked_gpu_rows),
        "gpu_busy_ns": _core.timeline(table, tree).busy_ns,
        "gpu_span_ns": _core.timeline(table, tree).span_ns,
        "steps": len(tree.steps),
        "nested_host_events": int(np.count_nonzero(tree.parent != np.iinfo(np.uint32).max)),
    }
