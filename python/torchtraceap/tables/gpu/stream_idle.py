"""The idle time of each stream by HTA's three causes: a view of `launches`."""

from __future__ import annotations

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.tables.gpu.gpu_events import GpuEvents, device_and_stream
from torchtraceap.tables.grouping import Groups, order_by, rows_by_key

__all__ = ["idle_by_stream"]

KERNEL_WAIT_NS = 30_000
"""Shorter gaps are what the device takes from one kernel to the next (HTA's default)."""

_CAUSES = ("host wait", "kernel wait", "other")


def idle_by_stream(events: GpuEvents) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Gaps between the events of one stream, by stream and cause.

    Args:
        events: All GPU events of a rank.

    Returns:
        Columns as docs/kernels.md lists them, and those that are shown.
    """
    place, gap_ns = _gaps(events)
    cause = _causes(events, place, gap_ns)
    groups = Groups(events.stream[place], cause)
    stream = events.stream[place[groups.first]]
    order = order_by(stream, cause[groups.first])
    sums = groups.sum(gap_ns)
    by_stream = Groups(stream)
    of_stream = by_stream.sum(sums)[by_stream.index]
    columns: dict[str, Column] = {
        **device_and_stream(events.part, stream[order]),
        "cause": TextCodes(cause[groups.first[order]].astype(np.int32), _CAUSES),
        "gaps": groups.count[order],
        "idle_ns": sums[order],
        "stream_share": (sums / np.maximum(1, of_stream))[order],
        "mean_ns": groups.mean(gap_ns)[order],
        "median_ns": groups.median(gap_ns)[order],
        "max_ns": groups.maximum(gap_ns)[order],
    }
    return columns, tuple(columns)


def _gaps(events: GpuEvents) -> tuple[Array, Array]:
    """Indices of events before which their stream idles, by stream and start, and for how long."""
    places, gaps = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for _, members in rows_by_key(events.stream):
        start_ns = events.start_ns[members]
        order = np.argsort(start_ns, kind="stable")
        start_ns = start_ns[order]
        reach_ns = np.maximum.accumulate(start_ns + events.duration_ns[members][order])
        gap_ns = start_ns[1:] - reach_ns[:-1]
        idle = gap_ns > 0
        places.append(members[order][1:][idle])
        gaps.append(gap_ns[idle])
    return np.concatenate(places), np.concatenate(gaps)


def _causes(events: GpuEvents, place: Array, gap_ns: Array) -> Array:
    """int64: in _CAUSES. The host is late if the call began when the stream already idled."""
    since_call_ns = events.part.tree.launch_delays_ns()[events.places[place]]
    host = events.is_linked[place] & (since_call_ns < gap_ns)
    causes: Array = np.where(host, 0, np.where(gap_ns < KERNEL_WAIT_NS, 1, 2))
    return causes
