"""Build the evidence pack of a segment: its numbers and events.

Note [One rank]: figures of windows, GPU work and gaps are those of one rank, the one on which the
segment's finding costs most there, else the one whose GPU idles longest; `about` says which. What a
finding costs is that of all ranks, as in the diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.results import PAPER_TYPES, Evidence
from torchtraceap.core.sums import median, percentile_rank
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.diagnosis.verdict import parts_over_time
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.pack import Pack, PackLine, PackTable
from torchtraceap.explanation.segments import (
    NONE,
    Segment,
    cost_inside,
    idle_inside,
    rule_says,
    shared_with,
)
from torchtraceap.ops.devices import find_device
from torchtraceap.tables.windows import FeatureTable, window_features

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["MOST_GROUPS", "build_pack", "build_tables", "rank_of"]

MOST_ROWS, MOST_TYPES = 6, 3
MOST_GROUPS, MOST_GAPS = 24, 8
_SHARES = (
    "busy_share", "compute_share", "exposed_communication_share", "exposed_memcpy_share",
    "idle_data_loading_share", "idle_host_wait_share", "idle_synchronization_share",
    "idle_memory_copy_share", "idle_communication_wait_share", "idle_compilation_share",
    "idle_allocator_share", "idle_launch_latency_share", "idle_profiler_share",
    "idle_unknown_share", "small_kernel_share", "host_busy_share", "synchronization_share",
    "blocking_copy_share", "data_loading_share",
)  # fmt: skip
_COUNTS = ("launch_count", "kernel_count", "copy_count", "collective_count", "allocator_count")
_RATES = ("queue_depth_mean",)
_WAITS = (
    _core.ApiClass.COPY,
    _core.ApiClass.ASYNC_COPY,
    _core.ApiClass.STREAM_SYNC,
    _core.ApiClass.DEVICE_SYNC,
    _core.ApiClass.EVENT_SYNC,
)
"""Calls that may hold the host until the GPU has done its work."""
_MICROSECONDS = ("kernel_median_us", "launch_delay_p50_us")
"""Features that a pack shows (docs/scorers.md), by how they are written."""
_OFFLINE_FEATURES = ("busy_share",)
_LEAST_PART = 0.05
"""Least share of a segment of work or idle time that is told."""


def build_pack(diagnosis: Diagnosis, segment: Segment, *, tables: bool = True) -> Pack:
    """Build the evidence of a segment.

    Args:
        diagnosis: The trace's diagnosis.
        segment: A part of its profiled time.
        tables: Include GPU work, gaps and neighbors, and all features of its windows, which a
            language model reads; the offline judge needs none of them.
    """
    trace = diagnosis.trace
    place = rank_of(diagnosis, segment)
    rank = trace.ranks[place]
    # Events of the finding that reach into the segment, else the first ones of all.
    events = segment.finding.evidence if segment.finding else ()
    inside = [
        event
        for event in events
        if event.start_ns < segment.end_ns and event.start_ns + event.duration_ns > segment.start_ns
    ]
    rows = {f"r{at}": event for at, event in enumerate(islice(inside or events, MOST_ROWS), 1)}
    types = segment.types[:MOST_TYPES]
    likely = (segment.type, *(name for name, _ in types))
    named = tuple(dict.fromkeys(name for name in likely if name != NONE))
    # The same for all segments of a trace, so that the prompt's beginning is: the paper's types,
    # and further ones that the rules do not exclude.
    further = (name for name in load_knowledge() if rule_says(diagnosis, name) != "absent")
    windows = common_features(trace, segment.grid, place)
    return Pack(
        about=_describe_recording(diagnosis, place),
        start_ns=segment.start_ns,
        end_ns=segment.end_ns,
        metrics=(
            *_segment_metrics(segment, rank),
            *_window_metrics(windows, segment, whole=tables),
            *_part_metrics(diagnosis, segment, place),
            *_finding_metrics(diagnosis, segment, place),
        ),
        tables=tuple(build_tables(rank, segment, windows, rows)) if tables else (),
        rows=rows,
        types=types,
        allowed=tuple(dict.fromkeys((*PAPER_TYPES, *further))),
        knowledge=named,
        rules=tuple((name, rule_says(diagnosis, name)) for name in named),
        window_count=segment.grid,
    )


def rank_of(diagnosis: Diagnosis, segment: Segment) -> int:
    """Return the place of the rank whose figures stand for the segment: see Note [One rank]."""
    start_ns, end_ns, finding = segment.start_ns, segment.end_ns, segment.finding

    def weight(place: int) -> tuple[int, int]:
        rank = diagnosis.trace.ranks[place]
        cost_ns = cost_inside(finding, start_ns, end_ns, rank.rank) if finding else 0
        return cost_ns, idle_inside(rank, start_ns, end_ns)

    places = range(len(diagnosis.trace.ranks))
    return places[0] if len(places) == 1 else max(places, key=weight)


def _describe_recording(diagnosis: Diagnosis, place: int) -> str:
    """Describe the recording in this package's own words, devices by the names of its
    device table."""
    trace = diagnosis.trace
    known = (find_device(name) for name in diagnosis.summary.device_names)
    devices = ", ".join(sorted({device.name for device in known if device})) or "a device"
    steps = diagnosis.step.steps if diagnosis.step else 0
    ranks = len(trace.ranks)
    whose = f"figures are of rank {trace.ranks[place].rank}" if ranks > 1 else "one rank"
    where = {"gpu": "the work runs on GPUs", "host": "the work runs on the host"}
    said = where.get(diagnosis.computes_on or "", "the GPU's work is not recorded")
    return f"{devices}; {said}; ranks: {ranks} ({whose}); steps: {steps}"


def _segment_metrics(segment: Segment, rank: RankTrace) -> Iterator[Metric]:
    length_ns = segment.end_ns - segment.start_ns
    idle_ns = idle_inside(rank, segment.start_ns, segment.end_ns)
    yield Metric.of_ns("segment.length", length_ns)
    yield Metric.of_count("segment.windows", segment.last - segment.first + 1)
    yield Metric.of_share("segment.score", segment.score)
    if len(rank.tree.gpu_rows):
        yield Metric.of_ns("segment.idle", idle_ns)
        yield Metric.of_share("segment.idle_share", idle_ns / length_ns if length_ns else 0.0)
    if rank.rank is not None:
        yield Metric.of_count("segment.rank", rank.rank)
    for name, likely in segment.types[:MOST_TYPES]:
        yield Metric.of_share(f"type.{name}", likely)


def _window_metrics(columns: FeatureTable, segment: Segment, *, whole: bool) -> Iterator[Metric]:
    """Yield features in the segment, their medians over the trace, and percentile ranks; not
    `whole`: those that offline texts speak of."""
    for name in (*_SHARES, *_COUNTS, *_RATES, *_MICROSECONDS) if whole else _OFFLINE_FEATURES:
        values = columns[name]
        value = float(values[segment.first : segment.last + 1].mean())
        middle = float(median(values))
        if not (value or middle):
            continue
        if name in _MICROSECONDS:
            name = name.removesuffix("_us")
            yield Metric.of_ns(f"window.{name}", round(1000 * value))
            yield Metric.of_ns(f"window.{name}.median", round(1000 * middle))
        else:
            make = Metric.of_share if name in _SHARES else Metric.of_rate
            yield make(f"window.{name}", value)
            yield make(f"window.{name}.median", middle)
        yield Metric.of_share(f"window.{name}.rank", percentile_rank(values, value))


def common_features(trace: Ranks, grid: int, place: int) -> FeatureTable:
    """Return features of the trace's common windows on one rank; computed once for each grid."""

    def compute() -> FeatureTable:
        from torchtraceap.diagnosis.scoring import common_bounds

        return window_features(trace.ranks[place], common_bounds(trace, grid))

    found: FeatureTable = trace.cached(("features of windows", grid, place), compute)
    return found


def _part_metrics(diagnosis: Diagnosis, segment: Segment, place: int) -> Iterator[Metric]:
    """Yield what the segment's time is, the largest part first; how often the GPU runs dry while
    the host waits for it; and findings that cost a part of a segment without one."""
    rank = diagnosis.trace.ranks[place]
    start_ns, end_ns = segment.start_ns, segment.end_ns
    length_ns = max(1, end_ns - start_ns)
    bounds_ns = np.array([start_ns, end_ns], dtype=np.int64)
    parts = parts_over_time(rank, bounds_ns, diagnosis.computes_on)
    for name, ns in sorted(parts.items(), key=lambda item: -item[1][0]):
        if ns[0] >= _LEAST_PART * length_ns:
            yield Metric.of_share(f"part.{name}", int(ns[0]) / length_ns)
    waits, behind_ns = _idle_behind_waits(rank, start_ns, end_ns)
    if waits:
        yield Metric.of_count("segment.waits", waits)
        yield Metric.of_ns("segment.idle_behind_waits", behind_ns)
    if segment.finding is None:
        for each in diagnosis.findings:
            cost_ns = cost_inside(each, start_ns, end_ns, rank.rank)
            if cost_ns >= _LEAST_PART * length_ns:
                yield Metric.of_share(f"here.{each.type}", cost_ns / length_ns)


def _idle_behind_waits(rank: RankTrace, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the calls in which the host waits for the GPU until that has run dry, and for how long
    it then idles, ns, inside a part of the trace."""
    idle, table, tree = rank.idle(rank.tree.profiled), rank.table, rank.tree
    rows = tree.host_rows[np.isin(tree.api[tree.host_rows], _WAITS)]
    rows = rows[np.argsort(table.ts_ns[rows], kind="stable")]
    begins_ns = table.ts_ns[rows]
    ends_ns = np.maximum.accumulate(begins_ns + table.dur_ns[rows]) if len(rows) else begins_ns
    at = np.searchsorted(begins_ns, idle.start_ns, side="right") - 1
    dry = (at >= 0) & (idle.start_ns <= ends_ns[at] if len(rows) else False)
    inside_ns = np.minimum(idle.end_ns, end_ns) - np.maximum(idle.start_ns, start_ns)
    dry &= inside_ns > 0
    return len(np.unique(at[dry])), int(inside_ns[dry].sum())


def _finding_metrics(diagnosis: Diagnosis, segment: Segment, place: int) -> Iterator[Metric]:
    finding, ranks = segment.finding, diagnosis.trace.ranks
    if finding is None:
        return
    inside_ns = cost_inside(finding, segment.start_ns, segment.end_ns, ranks[place].rank)
    yield Metric.of_ns("finding.cost", finding.cost_ns)
    yield Metric.of_share("finding.cost_share", finding.cost_share)
    yield Metric.of_ns("finding.cost_here", inside_ns)
    yield Metric.of_share("finding.confidence", finding.confidence)
    if len(ranks) > 1:
        # The facts of a finding are those of the rank on which it costs most.
        costs = {rank: cost_inside(finding, *rank.tree.profiled, rank.rank) for rank in ranks}
        rank = max(costs, key=lambda each: costs[each])
        if rank.rank is not None and rank.profiled_ns:
            share = min(1.0, costs[rank] / rank.profiled_ns)
            yield Metric.of_count("finding.rank", rank.rank)
            yield Metric.of_ns("finding.rank_cost", costs[rank])
            yield Metric.of_share("finding.rank_cost_share", share)
    if finding.saving:
        for end in ("low", "best", "high"):
            yield Metric.of_ns(f"finding.saving.{end}", getattr(finding.saving, f"{end}_ns"))
    if shared := shared_with(diagnosis, finding):
        yield Metric.of_ns("finding.shared", shared[1])
    for name, fact in finding.facts.items():
        metric = Metric.of_fact(f"fact.{name}", fact)
        if metric:
            yield metric
    if diagnosis.step:
        yield Metric.of_ns("step.measured", diagnosis.step.measured_ns)


def build_tables(
    rank: RankTrace, segment: Segment, windows: FeatureTable, rows: dict[str, Evidence]
) -> Iterator[PackTable]:
    """Yield the tables of one rank: GPU work, gaps and neighboring windows.

    Args:
        rank: The rank.
        segment: A part of its profiled time.
        windows: Features of all windows of the segment's grid.
        rows: Events of the pack; those that the tables show join them.
    """
    heads = ("name", "stream", "operator")
    yield PackTable("GPU work by name and stream", heads, tuple(_groups(rank, segment)))
    gaps = tuple(_gaps(rank, segment, rows))
    yield PackTable("longest gaps of the GPU", ("cause", "host did", "next on the GPU"), gaps)
    neighbors = []
    for key, window in (("before", segment.first - 1), ("after", segment.last + 1)):
        if 0 <= window < segment.grid:
            metrics = (
                Metric.of_share(f"{key}.busy_share", float(windows["busy_share"][window])),
                Metric.of_rate(f"{key}.kernel_count", float(windows["kernel_count"][window])),
                Metric.of_rate(f"{key}.launch_count", float(windows["launch_count"][window])),
            )
            neighbors.append(PackLine(key, (key,), metrics, cost_ns=0))
    yield PackTable("windows next to it", ("place",), tuple(neighbors))


def _groups(rank: RankTrace, segment: Segment) -> Iterator[PackLine]:
    """Yield GPU events that start in the segment, by canonical name, stream role and operator."""
    # Imported here, as the offline judge needs none of it.
    from torchtraceap.tables.gpu.gpu_events import GpuEvents
    from torchtraceap.tables.grouping import Groups

    events = GpuEvents.of(rank)
    start_ns = events.start_ns
    events = events.where((start_ns >= segment.start_ns) & (start_ns < segment.end_ns))
    if not len(events):
        return
    names, ops = events.canonical, events.op
    groups = Groups(names.codes, events.stream, ops.codes)
    total_ns = groups.sum(events.duration_ns)
    order = np.argsort(-total_ns, kind="stable")[:MOST_GROUPS]
    for place, group in enumerate(order.tolist()):
        key, first, inside = f"g{place + 1}", groups.first[group], groups.index == group
        name, op = names.codes[first], ops.codes[first]
        duration_ns = events.duration_ns[inside]
        delays = events.delay_ns[inside].compressed()
        metrics = [
            Metric.of_count(f"{key}.count", len(duration_ns)),
            Metric.of_ns(f"{key}.total", int(duration_ns.sum())),
            Metric.of_ns(f"{key}.median", int(median(duration_ns))),
        ]
        if len(delays):
            metrics.append(Metric.of_ns(f"{key}.delay", int(median(delays))))
        role = rank.tree.streams[int(events.stream[first])].role
        shown = (names.texts[name] if name >= 0 else "-", role, ops.texts[op] if op >= 0 else "-")
        yield PackLine(key, shown, tuple(metrics), int(total_ns[group]))


def _gaps(rank: RankTrace, segment: Segment, rows: dict[str, Evidence]) -> Iterator[PackLine]:
    """Yield idle pieces of the segment, the longest first, with the host event behind each."""
    idle = rank.idle(rank.tree.profiled)
    start_ns = np.maximum(idle.start_ns, segment.start_ns)
    end_ns = np.minimum(idle.end_ns, segment.end_ns)
    length_ns = end_ns - start_ns
    longest = np.argsort(-length_ns, kind="stable")[:MOST_GAPS]
    causes, table = _core.idle_cause_names(), rank.table
    for number, gap in enumerate(longest.tolist()):
        if length_ns[gap] <= 0:
            return
        key = f"gap{number + 1}"
        behind, following = int(idle.explained_by[gap]), int(idle.next_gpu_row[gap])
        row = ""  # key of the host event, which joins the rows if it is new
        if behind != _core.NO_ROW:
            event = (rank.rank, behind)
            row = next((k for k, each in rows.items() if (each.rank, each.row) == event), "")
            if not row:
                row = f"r{len(rows) + 1}"
                begin_ns, dur_ns = int(table.ts_ns[behind]), int(table.dur_ns[behind])
                name = table.name_of(behind)
                rows[row] = Evidence(behind, name, begin_ns, dur_ns, rank.rank)
        yield PackLine(
            key=key,
            names=(causes[idle.cause[gap]], _row_name(rank, behind), _row_name(rank, following)),
            metrics=(Metric.of_ns(f"{key}.length", int(length_ns[gap])),),
            cost_ns=int(length_ns[gap]),
            row=row,
        )


def _row_name(rank: RankTrace, row: int) -> str:
    return "-" if row == _core.NO_ROW else rank.table.name_of(row)
