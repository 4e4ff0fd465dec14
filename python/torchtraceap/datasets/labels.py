"""Words of labels, the costs in the label of a trace, and how much of each window a fault costs.

Note [Positive]: a window is positive where the cost intervals of a type cover a tenth of it or
more, and negative where they cover less than a fiftieth. In between it is neither: a strict metric
and a loss leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import EMPTY, covered_ns, union
from torchtraceap.errors import SchemaError

__all__ = [
    "CPU_SPLIT",
    "GRIDS",
    "LABELS",
    "NEGATIVE",
    "POSITIVE",
    "SEEN_TASKS",
    "TASKS",
    "TYPES",
    "costs_of",
    "covered_share",
    "window_costs",
    "window_labels",
]

CPU_SPLIT = "cpu"
"""Split of the traces that were collected on a CPU: no other split has them, as they are no data of
GPUs."""
LABELS = "labels.jsonl"
"""The file of a generated folder that says what each trace is."""
TYPES = (
    "allocator_thrash",
    "cpu_bound",
    "explicit_synchronize",
    "graph_break",
    "high_memcpy",
    "host_silence",
    "host_sync_in_loop",
    "nccl_blocks_main_stream",
    "nccl_compute_not_overlapped",
    "no_memory_pin",
    "pageable_readback",
    "single_process_data_loading",
    "small_nccl_kernels",
    "straggler",
)
"""Types of faults that can be injected, by name."""
SEEN_TASKS = ("classification", "detection", "segmentation")
"""Tasks of workloads that may be trained on."""
TASKS = (*SEEN_TASKS, "generation", "pose", "depth")
GRIDS = (50, 100, 200)
"""Numbers of windows for which labels are stored."""
POSITIVE, NEGATIVE = 0.1, 0.02
"""Shares of a window. See Note [Positive]."""


def covered_share(intervals: Array, bounds_ns: Array) -> Array:
    """float32 `[W]`: the part of each window that intervals cover.

    Args:
        intervals: int64 `[n, 2]`, in any order.
        bounds_ns: int64 `[W + 1]`, ascending.
    """
    length_ns = np.diff(bounds_ns)
    covered = covered_ns(union([intervals]), bounds_ns)
    share: Array = np.divide(covered, length_ns, out=np.zeros(len(length_ns)), where=length_ns > 0)
    return share.astype(np.float32)


def window_costs(costs: Mapping[str, Array], bounds_ns: Array) -> Array:
    """float32 `[W, T]`: the part of each window that the cost of each of `TYPES` covers.

    Raises:
        SchemaError: A type of fault is unknown.
    """
    for name in costs:
        if name not in TYPES:
            raise SchemaError(f"no fault is of the type {name!r}: {', '.join(TYPES)}")
    shares = [covered_share(costs.get(name, EMPTY), bounds_ns) for name in TYPES]
    return np.stack(shares, axis=1)


def window_labels(cost: Array) -> tuple[Array, Array]:
    """bool `[W]` each: which windows are positive, and which are to be left out."""
    most = cost.max(axis=1, initial=0.0)
    positive = most >= POSITIVE
    return positive, ~positive & (most >= NEGATIVE)


def costs_of(label: Mapping[str, Any]) -> dict[str, Array]:
    """Cost intervals by type, int64 `[n, 2]`, of a label as `generate` writes it; `costs` may
    hold those of several types."""
    one = {} if label["type"] is None else {label["type"]: label["intervals"]}
    costs: Mapping[str, Sequence[Sequence[int]]] = label.get("costs", one)
    return {name: np.array(of, dtype=np.int64).reshape(-1, 2) for name, of in costs.items()}
