"""How much of an operator's GPU time passes while other work runs: a view of `kernels`."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column
from torchtraceap.core.intervals import covered_before, overlaps, union
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key

__all__ = ["overlap_by_op"]


def overlap_by_op(events: GpuEvents) -> tuple[dict[str, Column], tuple[str, ...]]:
    """GPU events by operator and class, with what runs beside them on their device.

    Args:
        events: All GPU events of a rank.

    Returns:
        Columns as docs/kernels.md lists them, and those that are shown.
    """
    beside = _beside_ns(events)
    groups = Groups(events.op.codes, events.gpu_class.codes)
    sums = groups.sum(events.duration_ns)
    order = order_by(sums, descending=[True])
    first = groups.first[order]
    alone_ns = groups.sum(beside[_NONE])[order]
    columns: dict[str, Column] = {
        "op": events.op.take(first),
        "class": events.gpu_class.take(first),
        "count": groups.count[order],
        "sum_ns": sums[order],
        "exclusive_ns": groups.sum(events.exclusive_ns)[order],
        **{
            f"under_{_core.gpu_class_names()[code]}_ns": groups.sum(beside[code])[order]
            for code in _CLASSES
        },
        "alone_ns": alone_ns,
        "overlap_share": 1 - alone_ns / np.where(sums[order] > 0, sums[order], np.nan),
    }
    return columns, tuple(name for name in columns if name != "exclusive_ns")


_NONE = int(_core.GpuClass.NONE)
_CLASSES = [code for code in range(len(_core.gpu_class_names())) if code != _NONE]


def _beside_ns(events: GpuEvents) -> list[Array]:
    """int64 `[n]` by class: of every event the time during which others of that class run on its
    device, and at _NONE that during which nothing else does."""
    device = np.asarray([stream.device or 0 for stream in events.part.tree.streams], dtype=np.int64)
    gpu_class = events.gpu_class.codes
    found = [np.zeros(len(events), dtype=np.int64) for _ in _core.gpu_class_names()]
    for _, members in rows_by_key(device[events.stream]):
        bounds = np.stack(
            (events.start_ns[members], events.start_ns[members] + events.duration_ns[members]), 1
        )
        for code in _CLASSES:
            own = gpu_class[members] == code
            others = covered_within(union([bounds[own]]), bounds)
            twins = covered_within(overlaps(bounds[own]), bounds)
            found[code][members] = np.where(own, twins, others)
        accompanied = covered_within(overlaps(bounds), bounds)
        found[_NONE][members] = bounds[:, 1] - bounds[:, 0] - accompanied
    return found


def covered_within(intervals: Array, bounds: Array) -> Array:
    """int64 `[n]`: the length of sorted, disjoint intervals inside each of `[n, 2]`."""
    before = covered_before(intervals, bounds)
    inside: Array = before[:, 1] - before[:, 0]
    return inside
