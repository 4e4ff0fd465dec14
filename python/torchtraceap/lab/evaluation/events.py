"""GPU events and gaps of traces: what kernels' outliers and pointed-at events are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.intervals import union
from torchtraceap.datasets.labels import costs_of
from torchtraceap.datasets.runs import labeled_runs
from torchtraceap.trace.ranks import RankTrace

__all__ = ["GpuEvents", "gpu_events", "largest_in", "load_events"]

_WORK = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)


@dataclass(frozen=True)
class GpuEvents:
    """Of one trace, by begin; times int64 ns."""

    begin_ns: Array
    end_ns: Array
    name: Array
    """int64 codes."""
    gaps_ns: Array
    """`[n, 2]`: where no GPU event runs, between the first and the last."""
    cost_ns: Array
    """`[n, 2]`: where its fault costs time."""


def load_events(dataset: PathLike, ids: Iterable[str]) -> dict[str, GpuEvents]:
    """Of the traces of a data set with these ids.

    Raises:
        MissingFileError: A trace is missing.
        SchemaError: It is no data set.
    """
    wanted = set(ids)
    found = {}
    for run in labeled_runs(dataset):
        if wanted.isdisjoint(label["id"] for label in run.labels):
            continue
        for label, part in zip(run.labels, run.load().ranks, strict=True):
            if label["id"] in wanted:
                cost = list(costs_of(label).values())
                found[label["id"]] = gpu_events(part, union(cost))
    return found


def gpu_events(part: RankTrace, cost_ns: Array) -> GpuEvents:
    """Of one rank, with where its fault costs time (int64 `[n, 2]`)."""
    table = part.table
    rows = np.flatnonzero(np.isin(table.kind, _WORK) & table.complete)
    rows = rows[np.argsort(table.ts_ns[rows], kind="stable")]
    begin = np.asarray(table.ts_ns[rows], dtype=np.int64)
    end = begin + table.dur_ns[rows]
    busy = union([np.stack([begin, end], axis=1)])
    gaps = np.stack([busy[:-1, 1], busy[1:, 0]], axis=1)
    return GpuEvents(begin, end, np.asarray(table.name[rows], dtype=np.int64), gaps, cost_ns)


def largest_in(events: GpuEvents, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Begin and end of the GPU event or gap that takes most of a window; None for an empty trace.

    Of equal ones it is the first, an event before a gap.
    """
    spans = np.concatenate(
        [np.stack([events.begin_ns, events.end_ns], axis=1), events.gaps_ns.reshape(-1, 2)]
    )
    if not len(spans):
        return None
    inside = np.minimum(spans[:, 1], end_ns) - np.maximum(spans[:, 0], begin_ns)
    top = int(inside.argmax())
    return (int(spans[top, 0]), int(spans[top, 1])) if inside[top] > 0 else None
