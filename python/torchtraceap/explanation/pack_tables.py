"""Tables of an evidence pack: GPU work, gaps and neighboring windows of a segment, of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.order import median
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.pack import PackLine, PackRow, PackTable
from torchtraceap.explanation.segments import Segment
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.grouping import Groups

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.tables.windows import FeatureTable
    from torchtraceap.trace.ranks import RankTrace

__all__ = ["MOST_GROUPS", "build_tables"]

MOST_GROUPS, MOST_GAPS = 24, 8


def build_tables(
    rank: RankTrace, segment: Segment, windows: FeatureTable, rows: list[PackRow]
) -> Iterator[PackTable]:
    """Yield the tables of one rank.

    Args:
        rank: The rank.
        segment: A part of its profiled time.
        windows: Features of all windows of the segment's grid.
        rows: Events of the pack; those that the tables show join them.
    """
    heads = ("name", "stream", "operator")
    yield PackTable("GPU work by name and stream", heads, _groups(rank, segment))
    gaps = tuple(_gaps(rank, segment, rows))
    yield PackTable("longest gaps of the GPU", ("cause", "host did", "next on the GPU"), gaps)
    yield PackTable("windows beside it", ("place",), tuple(_neighbors(segment, windows)))


def _groups(rank: RankTrace, segment: Segment) -> tuple[PackLine, ...]:
    """GPU events that start in the segment, by canonical name, stream role and operator."""
    events = GpuEvents.of(rank)
    start_ns = events.start_ns
    events = events.where((start_ns >= segment.start_ns) & (start_ns < segment.end_ns))
    if not len(events):
        return ()
    names, ops = events.canonical, events.op
    groups = Groups(names.codes, events.stream, ops.codes)
    total_ns = groups.sum(events.duration_ns)
    order = np.argsort(-total_ns, kind="stable")[:MOST_GROUPS]
    first = groups.first
    return tuple(
        PackLine(
            key=f"g{place + 1}",
            names=(
                _name(names.texts, names.codes[first[group]]),
                rank.tree.streams[int(events.stream[first[group]])].role,
                _name(ops.texts, ops.codes[first[group]]),
            ),
            metrics=_group_metrics(f"g{place + 1}", events, groups.index == group),
            cost_ns=int(total_ns[group]),
        )
        for place, group in enumerate(order.tolist())
    )


def _name(texts: Sequence[str], code: int) -> str:
    return texts[code] if code >= 0 else "-"


def _group_metrics(key: str, events: GpuEvents, mask: Array) -> tuple[Metric, ...]:
    duration_ns = events.duration_ns[mask]
    delays = events.delay_ns[mask].compressed()
    waited = (Metric.of_ns(f"{key}.delay", int(median(delays))),) if len(delays) else ()
    return (
        Metric.of_count(f"{key}.count", len(duration_ns)),
        Metric.of_ns(f"{key}.total", int(duration_ns.sum())),
        Metric.of_ns(f"{key}.median", int(median(duration_ns))),
        *waited,
    )


def _gaps(rank: RankTrace, segment: Segment, rows: list[PackRow]) -> Iterator[PackLine]:
    """Idle pieces of the segment, the longest first, with the host event behind each."""
    idle = rank.idle(rank.tree.profiled)
    start_ns = np.maximum(idle.start_ns, segment.start_ns)
    end_ns = np.minimum(idle.end_ns, segment.end_ns)
    length_ns = end_ns - start_ns
    longest = np.argsort(-length_ns, kind="stable")[:MOST_GAPS]
    causes = _core.idle_cause_names()
    for number, gap in enumerate(longest.tolist()):
        if length_ns[gap] <= 0:
            return
        key = f"gap{number + 1}"
        behind, following = int(idle.explained_by[gap]), int(idle.next_gpu_row[gap])
        yield PackLine(
            key=key,
            names=(causes[idle.cause[gap]], _row_name(rank, behind), _row_name(rank, following)),
            metrics=(Metric.of_ns(f"{key}.length", int(length_ns[gap])),),
            cost_ns=int(length_ns[gap]),
            row=_row_key(rank, behind, rows),
        )


def _row_name(rank: RankTrace, row: int) -> str:
    return "-" if row == _core.NO_ROW else rank.table.name_of(row)


def _row_key(rank: RankTrace, row: int, rows: list[PackRow]) -> str:
    """Key of an event, which joins the rows if it is new; empty for none."""
    if row == _core.NO_ROW:
        return ""
    known = next((each.key for each in rows if (each.rank, each.row) == (rank.rank, row)), None)
    if known:
        return known
    table = rank.table
    start_ns, dur_ns = int(table.ts_ns[row]), int(table.dur_ns[row])
    rows.append(PackRow(f"r{len(rows) + 1}", rank.rank, row, table.name_of(row), start_ns, dur_ns))
    return rows[-1].key


def _neighbors(segment: Segment, columns: FeatureTable) -> Iterator[PackLine]:
    for key, window in (("before", segment.first - 1), ("after", segment.last + 1)):
        if 0 <= window < segment.grid:
            yield PackLine(
                key=key,
                names=(key,),
                metrics=(
                    Metric.of_share(f"{key}.busy_share", float(columns["busy_share"][window])),
                    Metric.of_rate(f"{key}.kernel_count", float(columns["kernel_count"][window])),
                    Metric.of_rate(f"{key}.launch_count", float(columns["launch_count"][window])),
                ),
                cost_ns=0,
            )
