"""Idle time of the GPU: intervals by cause, gaps of streams, and what the host did meanwhile."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.sums import shares, total, totals
from torchtraceap.core.table import ColumnTable, take_rows
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import GpuEvents, device_and_stream
from torchtraceap.tables.grouping import (
    Groups,
    names_without_addresses,
    order_by,
    rows_by_key,
    thread_names,
)
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "IdleTable", "build_host", "build_idle", "idle_by_stream"]

KERNEL_WAIT_NS = 30_000
"""Shorter gaps are what the device takes from one kernel to the next (HTA's default)."""
_CAUSES = ("host wait", "kernel wait", "other")


class IdleTable(ColumnTable):
    """Idle intervals of the GPU: start_ns, end_ns, cause, explained_by and next_gpu_row.

    The last two are rows of the event table, `_core.NO_ROW` where there is none.
    """

    def __init__(self, core: _core.IdleBreakdown) -> None:
        super().__init__(
            {
                "start_ns": core.start_ns,
                "end_ns": core.end_ns,
                "cause": TextCodes(core.cause.astype(np.int8), _core.idle_cause_names()),
                "explained_by": core.explained_by,
                "next_gpu_row": core.next_gpu_row,
            }
        )
        self.totals_ns: dict[str, int] = core.totals
        """Idle time by cause, ns; sums to the idle time exactly."""


def build_idle(part: RankTrace, *, profiled: bool = False) -> IdleTable:
    """Return the idle intervals over the profiled time, or from the first to the last GPU event."""
    return IdleTable(part.idle(part.tree.profiled if profiled else None))


def idle_by_stream(events: GpuEvents) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Return the gaps between the events of one stream, by stream and HTA's three causes.

    Args:
        events: All GPU events of a rank.

    Returns:
        Columns as docs/tables.md lists them, and those that are shown.
    """
    place, gap_ns = _gaps(events)
    # The host is late if the call began when the stream already idled.
    since_call_ns = events.part.tree.launch_delays_ns()[events.places[place]]
    by_host = events.is_linked[place] & (since_call_ns < gap_ns)
    cause = np.where(by_host, 0, np.where(gap_ns < KERNEL_WAIT_NS, 1, 2))
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
        **groups.statistics(gap_ns, "mean", "median", "max", order=order),
    }
    return columns, tuple(columns)


def _gaps(events: GpuEvents) -> tuple[Array, Array]:
    """Return the indices of events before which their stream idles, by stream and start, and the
    length of each gap in ns."""
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


# ---------------------------------------------------------------------------------- threads


def build_host(part: RankTrace, *, by: str = "thread") -> ColumnTable:
    """Build the table of `Trace.host` for one rank, over its profiled time.

    Returns:
        Rows by time while the GPU was idle. Threads run at the same time, so rows may sum to more
        than the fact `idle_ns`; over one thread they sum to it exactly, with its silent time. The
        time of Python frames includes the operators and calls that they make directly.
        docs/tables.md has the columns.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    idle = part.idle(part.tree.profiled)
    if by == "thread":
        columns, shown, notes = _by_thread(part, idle)
    else:
        columns, shown, notes = _by_name(part, idle, frames=by == "frame")
    if not len(part.tree.host_rows):
        first = "The trace has no host events: nothing is known of the CPU threads."
        notes.insert(0, first)
    elif not len(part.tree.gpu_rows):
        first = "The trace has no GPU events: all of its profiled time counts as GPU idle."
        notes.insert(0, first)
    facts = {
        "profiled_ns": part.profiled_ns,
        "idle_ns": part.profiled_timeline().idle_ns,
        "idle_by_cause_ns": idle.totals,
    }
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


View = tuple[dict[str, Column], tuple[str, ...], list[str]]
"""Columns, those shown first, further notes."""


def _by_thread(part: RankTrace, idle: _core.IdleBreakdown) -> View:
    table, tree = part.table, part.tree
    host_rows = tree.host_rows
    groups = Groups(table.track[host_rows], table.kind[host_rows], table.name[host_rows])
    host = _host_idle(part, idle, host_rows, groups)
    track = host.track.astype(np.int64)
    rows_of_track = np.bincount(table.track[host_rows], minlength=len(table.tracks))
    launches = np.diff(tree.launched_offsets.astype(np.int64))[host_rows] > 0
    launches_of_track = np.bincount(table.track[host_rows[launches]], minlength=len(table.tracks))
    top, top_ns = _top_names(part, host, groups, host_rows, track)
    busy_idle = totals(host.busy_idle_ns, 1)
    columns: dict[str, Column] = {
        "thread": TextCodes(track.astype(np.int32), thread_names(part)),
        "is_main": track == (-1 if tree.main_track is None else tree.main_track),
        "events": rows_of_track[track],
        "launches": launches_of_track[track],
        "busy_ns": host.busy_ns,
        "profiled_share": shares(host.busy_ns, part.profiled_ns),
        "busy_gpu_idle_ns": busy_idle,
        "blocked_gpu_idle_ns": host.blocked_idle_ns,
        "silent_gpu_idle_ns": totals(host.silent_idle_ns, 1),
        "top_op": top,
        "top_op_gpu_idle_ns": top_ns,
        **_cause_columns(host.busy_idle_ns),
    }
    order = order_by(busy_idle, host.busy_ns, track, descending=[True, True])
    columns = {name: take_rows(column, order) for name, column in columns.items()}
    shown = ("thread", "events", "launches", "busy_ns", "profiled_share", "busy_gpu_idle_ns")
    return columns, (*shown, "blocked_gpu_idle_ns", "silent_gpu_idle_ns", "top_op"), []


def _top_names(
    part: RankTrace, host: _core.HostIdle, groups: Groups, host_rows: Array, track: Array
) -> tuple[TextCodes, Array]:
    """Return for each thread the name with most self time while the GPU was idle, and that time."""
    idle_ns = totals(host.idle_self_ns[:-1], 1)
    best = np.full(len(part.table.tracks), -1, dtype=np.int64)
    order = np.argsort(idle_ns, kind="stable")
    # Ascending: the last write, of the largest, stays.
    best[part.table.track[host_rows[groups.first[order]]]] = order
    chosen = best[track]
    has_any = (chosen >= 0) & (idle_ns[chosen] > 0) if len(idle_ns) else chosen >= 0
    codes = part.table.name[host_rows[groups.first[chosen]]] if len(groups) else chosen
    texts = part.table.strings
    names = encode_texts(
        texts[code] if known else None
        for code, known in zip(codes.tolist(), has_any.tolist(), strict=True)
    )
    return names, np.where(has_any, idle_ns[chosen], 0) if len(idle_ns) else chosen


def _by_name(part: RankTrace, idle: _core.IdleBreakdown, *, frames: bool) -> View:
    table = part.table
    rows = part.tree.host_rows
    if frames:
        rows = rows[table.kind[rows] == _core.EventKind.PYTHON_FUNCTION]
    names = names_without_addresses(part, rows)
    groups = Groups(table.kind[rows], names.codes)
    host = _host_idle(part, idle, rows, groups)
    first = rows[groups.first]
    idle_by_cause = host.idle_self_ns[:-1]
    idle_ns, self_ns = totals(idle_by_cause, 1), host.self_ns[:-1]
    on_thread = Groups(groups.index, table.track[rows])
    threads = np.bincount(groups.index[on_thread.first], minlength=len(groups))
    causes = idle_by_cause.argmax(axis=1) if len(idle_by_cause) else np.zeros(0, dtype=np.int64)
    causes = np.where(idle_by_cause.any(axis=1), causes, -1)
    columns: dict[str, Column] = {
        "name": names.take(groups.first),
        "kind": TextCodes(table.kind[first].astype(np.int8), _core.kind_names()),
        "count": groups.count,
        "threads": threads,
        "self_ns": self_ns,
        "gpu_idle_ns": idle_ns,
        "idle_share": shares(idle_ns, sum(idle.totals.values()) * threads),
        "main_cause": TextCodes(causes.astype(np.int8), _core.idle_cause_names()),
        **_cause_columns(idle_by_cause),
    }
    order = order_by(idle_ns, self_ns, descending=[True, True])
    columns = {name: take_rows(column, order) for name, column in columns.items()}
    shown: tuple[str, ...] = ("name", "count", "self_ns", "gpu_idle_ns", "idle_share", "main_cause")
    notes = []
    if frames and not len(rows):
        notes.append("Python frames were not recorded (with_stack=True records them).")
    elif frames:
        notes.append("Time of a frame includes the operators and calls that it makes itself.")
    else:
        shown = ("name", "kind", *shown[1:])
    if total(idle_ns) > sum(idle.totals.values()):
        notes.append("Threads run at the same time: the rows sum to more than the idle time.")
    return columns, shown, notes


def _host_idle(
    part: RankTrace, idle: _core.IdleBreakdown, rows: Array, groups: Groups
) -> _core.HostIdle:
    group_of = np.full(len(part.table), -1, dtype=np.int32)
    group_of[rows] = groups.index
    return _core.host_idle(part.table, part.tree, idle, part.tree.profiled, group_of, len(groups))


def _cause_columns(by_cause: Array) -> dict[str, Column]:
    """Return a column for each cause of an array `[rows, causes]`."""
    return {f"{name}_ns": by_cause[:, i] for i, name in enumerate(_core.idle_cause_names())}


TABLE = TableSpec(
    build=build_host,
    views=("thread", "op", "frame"),
    sql={"host": {"by": "op"}},
    page=(
        PageView("host", "by thread"),
        PageView(
            "host",
            "by event",
            {"by": "op"},
            "Self time on the host, and the part of it in which the GPU had nothing to do.",
            find="name",
            meter="idle_share",
        ),
        PageView("host", "by Python frame", {"by": "frame"}, find="name", meter="idle_share"),
    ),
    first={
        "thread": ("thread", "busy_ns", "busy_gpu_idle_ns", "top_op"),
        "op": ("name", "self_ns", "gpu_idle_ns", "idle_share", "main_cause"),
        "frame": ("name", "self_ns", "gpu_idle_ns", "idle_share", "main_cause"),
    },
)
