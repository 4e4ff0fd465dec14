"""Build the evidence pack of a segment: its numbers and events.

Note [One rank]: figures of windows, GPU work and gaps are those of one rank, the one on which the
segment's finding costs most there, else the one whose GPU idles longest; `about` says which. What a
finding costs is that of all ranks, as in the diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.order import median, percentile_rank
from torchtraceap.core.results import PAPER_TYPES, Finding
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.pack import Pack, PackRow
from torchtraceap.explanation.segments import NONE, Segment, cost_inside, idle_inside, rule_says
from torchtraceap.ops.devices import find_device
from torchtraceap.tables.windows import FeatureTable, window_features

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.explanation.pack import PackTable
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["build_pack", "rank_of"]

MOST_ROWS, MOST_TYPES = 6, 3
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
_MICROSECONDS = ("kernel_median_us", "launch_delay_p50_us")
"""Features that a pack shows (docs/features.md), by how they are written."""
_OFFLINE_FEATURES = frozenset(
    ("busy_share", *(name for name in _SHARES if name.startswith("idle_")))
)


def build_pack(diagnosis: Diagnosis, segment: Segment, *, tables: bool = True) -> Pack:
    """The evidence of a segment.

    Args:
        diagnosis: The trace's diagnosis.
        segment: A part of its profiled time.
        tables: Include GPU work, gaps and neighbors, and all features of its windows, which a
            language model reads; the offline judge needs none of them.
    """
    trace = diagnosis.trace
    place = rank_of(diagnosis, segment)
    rank = trace.ranks[place]
    rows = list(_evidence(diagnosis, segment))
    types = segment.types[:MOST_TYPES]
    likely = (segment.type, *(name for name, _ in types))
    named = tuple(dict.fromkeys(name for name in likely if name != NONE))
    return Pack(
        about=_describe_recording(diagnosis, place),
        start_ns=segment.start_ns,
        end_ns=segment.end_ns,
        metrics=(
            *_segment_metrics(segment, rank),
            *_window_metrics(trace, segment, place, whole=tables),
            *_finding_metrics(diagnosis, segment, place),
        ),
        tables=_tables(trace, segment, place, rows) if tables else (),
        rows=tuple(rows),
        types=types,
        allowed=_allowed_types(diagnosis),
        knowledge=named,
        rules=tuple((name, rule_says(diagnosis, name)) for name in named),
        window_count=segment.grid,
    )


def _tables(
    trace: Ranks, segment: Segment, place: int, rows: list[PackRow]
) -> tuple[PackTable, ...]:
    """Return the tables of a pack. Their modules are imported here, as the offline judge needs
    none."""
    from torchtraceap.explanation.pack_tables import build_tables

    windows = common_features(trace, segment.grid, place)
    return tuple(build_tables(trace.ranks[place], segment, windows, rows))


def rank_of(diagnosis: Diagnosis, segment: Segment) -> int:
    """Place of the rank whose figures stand for the segment: see Note [One rank]."""
    start_ns, end_ns, finding = segment.start_ns, segment.end_ns, segment.finding

    def weight(place: int) -> tuple[int, int]:
        rank = diagnosis.trace.ranks[place]
        cost_ns = cost_inside(finding, start_ns, end_ns, rank.rank) if finding else 0
        return cost_ns, idle_inside(rank, start_ns, end_ns)

    places = range(len(diagnosis.trace.ranks))
    return places[0] if len(places) == 1 else max(places, key=weight)


def _allowed_types(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The paper's types, and further ones that the rules do not exclude: the same for all segments
    of a trace, so that the prompt's beginning is."""
    further = (name for name in load_knowledge() if rule_says(diagnosis, name) != "absent")
    return tuple(dict.fromkeys((*PAPER_TYPES, *further)))


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


# ---------------------------------------------------------------------------------- metrics


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


def _window_metrics(trace: Ranks, segment: Segment, place: int, *, whole: bool) -> Iterator[Metric]:
    """Features in the segment, their medians over the trace, and percentile ranks; not `whole`:
    those that offline texts speak of."""
    columns = common_features(trace, segment.grid, place)
    for name, make, values in _shown_features(columns):
        if not (whole or name in _OFFLINE_FEATURES):
            continue
        value = float(values[segment.first : segment.last + 1].mean())
        middle = float(median(values))
        if not (value or middle):
            continue
        yield make(f"window.{name}", value)
        yield make(f"window.{name}.median", middle)
        yield Metric.of_share(f"window.{name}.rank", percentile_rank(values, value))


def _shown_features(
    columns: FeatureTable,
) -> Iterator[tuple[str, Callable[[str, float], Metric], Array]]:
    """Names, how each is written, and values of windows."""

    def us(name: str, value: float) -> Metric:
        return Metric.of_ns(name, round(1000 * value))

    makers = ((_SHARES, Metric.of_share), (_COUNTS, Metric.of_rate), (_RATES, Metric.of_rate))
    for names, make in (*makers, (_MICROSECONDS, us)):
        for name in names:
            yield name.removesuffix("_us"), make, columns[name]


def common_features(trace: Ranks, grid: int, place: int) -> FeatureTable:
    """Features of the trace's common windows on one rank; computed once for each grid."""

    def compute() -> FeatureTable:
        from torchtraceap.diagnosis.scoring import common_bounds

        return window_features(trace.ranks[place], common_bounds(trace, grid))

    found: FeatureTable = trace.cached(("features of windows", grid, place), compute)
    return found


def _finding_metrics(diagnosis: Diagnosis, segment: Segment, place: int) -> Iterator[Metric]:
    finding = segment.finding
    if finding is None:
        return
    rank = diagnosis.trace.ranks[place].rank
    inside_ns = cost_inside(finding, segment.start_ns, segment.end_ns, rank)
    yield Metric.of_ns("finding.cost", finding.cost_ns)
    yield Metric.of_share("finding.cost_share", finding.cost_share)
    yield Metric.of_ns("finding.cost_here", inside_ns)
    yield Metric.of_share("finding.confidence", finding.confidence)
    if len(diagnosis.trace.ranks) > 1:
        yield from _costliest_rank_metrics(diagnosis, finding)
    if finding.saving:
        for end in ("low", "best", "high"):
            yield Metric.of_ns(f"finding.saving.{end}", getattr(finding.saving, f"{end}_ns"))
    for name, fact in finding.facts.items():
        metric = Metric.of_fact(f"fact.{name}", fact)
        if metric:
            yield metric
    if diagnosis.step:
        yield Metric.of_ns("step.measured", diagnosis.step.measured_ns)


def _costliest_rank_metrics(diagnosis: Diagnosis, finding: Finding) -> Iterator[Metric]:
    """Yield the metrics of the rank on which the finding costs most, whose facts are the
    finding's."""
    costs = {
        rank: cost_inside(finding, *rank.tree.profiled, rank.rank) for rank in diagnosis.trace.ranks
    }
    rank = max(costs, key=lambda each: costs[each])
    if rank.rank is None or not rank.profiled_ns:
        return
    yield Metric.of_count("finding.rank", rank.rank)
    yield Metric.of_ns("finding.rank_cost", costs[rank])
    yield Metric.of_share("finding.rank_cost_share", min(1.0, costs[rank] / rank.profiled_ns))


# ------------------------------------------------------------------------------------- rows


def _evidence(diagnosis: Diagnosis, segment: Segment) -> Iterator[PackRow]:
    """Events of the finding that reach into the segment, else the first ones of all."""
    finding = segment.finding
    if finding is None:
        return
    inside = [
        event
        for event in finding.evidence
        if event.start_ns < segment.end_ns and event.start_ns + event.duration_ns > segment.start_ns
    ]
    for place, event in enumerate(islice(inside or finding.evidence, MOST_ROWS)):
        yield PackRow(
            f"r{place + 1}",
            event.rank,
            event.row,
            event.name,
            event.start_ns,
            event.duration_ns,
        )
