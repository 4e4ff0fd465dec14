"""What a diagnosis puts first: the largest part of the profiled time, and the leading finding.

Note [Leading finding]: a report begins with the finding whose fix regains most of its own cost,
among those that are worth it: what is saved can be believed (a simulated saving above what steps
vary, or a bound above zero), the cost is 5 % of the time or more, and a third of the largest cost
or more. The largest cost is that of any finding or of any part of the time that is not computation
(of a GPU, or of a host that computes), whether a finding explains it or not: nobody reads of 3 %
first where 90 % is lost. Where it neither lies in the largest part of the time nor explains a third
of that, the sentence names the part too (`Lead.beside`): it agrees with the bar and with what the
run is bound by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import EMPTY, Int64Array, covered_ns, union
from torchtraceap.core.results import GPU_PARTS, Finding
from torchtraceap.core.sums import total
from torchtraceap.tables.steps.critical_path import build_critical_path
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "COMPUTATION",
    "LEAST_SHARE",
    "computes_on",
    "idle_by_cause",
    "is_beside",
    "largest_part",
    "leading_finding",
    "parts_over_time",
    "time_parts",
]

COMPUTATION = ("compute", "host_forward", "host_backward", "host_optimizer", "host_other")
"""Parts of the time that no fix is needed for as such: what a GPU computes, or the operators of a
run that computes on the host."""
LEAST_SHARE = 0.05
"""Of the profiled time: a smaller finding is never what a report begins with."""
_THIRD = 1 / 3
_HALF = 1 / 2

_HOST_COPIES = (_core.CopyDirection.HOST_TO_DEVICE, _core.CopyDirection.DEVICE_TO_HOST)


def computes_on(trace: Ranks) -> str | None:
    """ "gpu"; "host", where no rank recorded anything of a GPU and operators do the work there; or
    None: the GPU's work is not in the recording."""
    if any(len(rank.tree.gpu_rows) for rank in trace.ranks):
        return "gpu"
    return "host" if all(rank.computes_on_host for rank in trace.ranks) else None


def time_parts(trace: Ranks) -> dict[str, int]:
    """The profiled time by what the GPUs did or waited for, in ns, summed over the ranks.

    Returns:
        `compute`, exposed `communication`, exposed copies between host and device (`memcpy`) and
        other exposed copies (`device_memcpy`), and idle time by cause; they sum to the profiled
        time. Of a run that computes on the host the causes of its critical path, rank by rank.
        Empty where the work is not recorded.
    """
    where = computes_on(trace)
    if where == "host":
        return _host_parts(trace)
    return _gpu_parts(trace) if where else {}


def _host_parts(trace: Ranks) -> dict[str, int]:
    parts: dict[str, int] = {}
    for rank in trace.ranks:
        for cause, start_ns, end_ns in _path(rank):
            parts[cause] = parts.get(cause, 0) + end_ns - start_ns
    return parts


def _path(rank: RankTrace) -> list[tuple[str, int, int]]:
    """The segments of a rank's own critical path: cause, start and end; computed once."""

    def find() -> list[tuple[str, int, int]]:
        table = build_critical_path(Ranks([rank]), by="event")
        bounds = (table[name].tolist() for name in ("cause", "start_ns", "end_ns"))
        return list(zip(*bounds, strict=True))

    return rank.cached("path of the rank alone", find)


def _gpu_parts(trace: Ranks) -> dict[str, int]:
    parts = dict.fromkeys(GPU_PARTS, 0)
    for rank in trace.ranks:
        timeline = rank.profiled_timeline()
        between = _exposed_host_copies_ns(rank, timeline.exposed_memcpy_ns)
        parts["compute"] += timeline.compute_ns
        parts["communication"] += timeline.exposed_communication_ns
        parts["memcpy"] += between
        parts["device_memcpy"] += timeline.exposed_memcpy_ns - between
    return parts | idle_by_cause(trace)


def parts_over_time(
    rank: RankTrace, bounds_ns: Int64Array, where: str | None = None
) -> dict[str, Int64Array]:
    """`time_parts` of one rank in each of the slots between consecutive bounds, inside the profiled
    time; empty where the work is not recorded.

    Args:
        rank: The rank.
        bounds_ns: Ascending, int64 `[count + 1]`.
        where: "gpu" or "host", where it is known what the run computes on [`computes_on`].

    Returns:
        int64 `[count]` by part, in ns.
    """
    where = where or computes_on(Ranks([rank]))
    if where == "host":
        return _host_over_time(rank, bounds_ns)
    if where is None:
        return {}
    sets = _core.gpu_intervals(rank.table, rank.tree)
    copies, is_host = _copies(rank)
    layers = {
        "compute": sets["compute"],
        "communication": sets["communication"],
        "memcpy": _times(rank, copies[is_host]),
        "device_memcpy": sets["memcpy"],
    }
    parts, above = {}, EMPTY
    for name, intervals in layers.items():
        both = union([above, intervals])
        parts[name] = covered_ns(both, bounds_ns) - covered_ns(above, bounds_ns)
        above = both
    idle = rank.idle(rank.tree.profiled)
    spans = np.stack((idle.start_ns, idle.end_ns), axis=1)
    for code, name in enumerate(_core.idle_cause_names()):
        parts[name] = covered_ns(spans[idle.cause == code], bounds_ns)
    return parts


def _host_over_time(rank: RankTrace, bounds_ns: Int64Array) -> dict[str, Int64Array]:
    spans: dict[str, list[tuple[int, int]]] = {}
    for cause, start_ns, end_ns in _path(rank):
        spans.setdefault(cause, []).append((start_ns, end_ns))
    sets = {cause: union([np.array(span, dtype=np.int64)]) for cause, span in spans.items()}
    return {cause: covered_ns(intervals, bounds_ns) for cause, intervals in sets.items()}


def idle_by_cause(trace: Ranks) -> dict[str, int]:
    """GPU idle time inside the profiled time by cause, in ns, summed over the ranks."""
    totals = dict.fromkeys(_core.idle_cause_names(), 0)
    for rank in trace.ranks:
        for cause, ns in rank.idle(rank.tree.profiled).totals.items():
            totals[cause] += ns
    return totals


def _exposed_host_copies_ns(rank: RankTrace, exposed_ns: int) -> int:
    """The part of the exposed copies that is between host and device."""
    rows, is_host = _copies(rank)
    if not exposed_ns or is_host.all():
        return exposed_ns
    copies = _times(rank, rows[is_host])
    sets = _core.gpu_intervals(rank.table, rank.tree)
    hidden = union([sets["compute"], sets["communication"]])
    profiled = np.asarray(rank.tree.profiled, dtype=np.int64)
    return total(covered_ns(union([hidden, copies]), profiled)) - total(
        covered_ns(hidden, profiled)
    )


def _copies(rank: RankTrace) -> tuple[Array, Array]:
    """Rows of copies `[n]`, and whether each is between host and device, bool `[n]`."""
    tree = rank.tree
    rows = tree.gpu_rows[tree.gpu_class[tree.gpu_rows] == _core.GpuClass.MEMCPY]
    return rows, np.isin(tree.copy_direction[rows], _HOST_COPIES)


def _times(rank: RankTrace, rows: Array) -> Int64Array:
    """When any of the rows runs."""
    start_ns = rank.table.ts_ns[rows]
    return union([np.stack((start_ns, start_ns + rank.table.dur_ns[rows]), axis=1)])


def largest_part(parts: dict[str, int]) -> str | None:
    """What the run is bound by: a name of `time_parts`; None where that is empty."""
    return max(parts, key=lambda name: parts[name]) if any(parts.values()) else None


def leading_finding(findings: Sequence[Finding], parts: dict[str, int]) -> Finding | None:
    """See Note [Leading finding].

    Args:
        findings: With their savings, first those whose fix regains most.
        parts: As `time_parts` has them.
    """
    lost_ns = [ns for name, ns in parts.items() if name not in COMPUTATION]
    largest_ns = max([*lost_ns, *(finding.cost_ns for finding in findings)], default=0)
    return next((finding for finding in findings if _is_worth_it(finding, largest_ns)), None)


def _is_worth_it(finding: Finding, largest_ns: int) -> bool:
    is_large = finding.cost_share >= LEAST_SHARE and finding.cost_ns >= _THIRD * largest_ns
    return is_large and finding.saving is not None and finding.saving.believed_ns > 0


def is_beside(trace: Ranks, finding: Finding, parts: dict[str, int]) -> bool:
    """Does the finding neither lie in the largest part of the time nor explain a third of it?"""
    part = largest_part(parts)
    if part is None:
        return False
    inside_ns = 0
    for rank in trace.ranks:
        here = np.array([number == rank.rank for number in finding.interval_ranks], dtype=bool)
        inside_ns += _inside_ns(rank, part, finding.intervals[here])
    return inside_ns < min(_THIRD * parts[part], _HALF * finding.cost_ns)


def _inside_ns(rank: RankTrace, part: str, intervals: Int64Array) -> int:
    """Length of the intervals inside one part of the time of a rank."""
    if not len(rank.tree.gpu_rows):
        spans = [(start, end) for cause, start, end in _path(rank) if cause == part]
        return _common_ns(intervals, np.array(spans, dtype=np.int64).reshape(-1, 2))
    causes = _core.idle_cause_names()
    if part in causes:
        idle = rank.idle(rank.tree.profiled)
        chosen = idle.cause == causes.index(part)
        return _common_ns(intervals, np.stack((idle.start_ns, idle.end_ns), axis=1)[chosen])
    sets = _core.gpu_intervals(rank.table, rank.tree)
    if part == "compute":
        return _common_ns(intervals, sets["compute"])
    hidden = sets["compute"]
    if part != "communication":
        hidden = union([hidden, sets["communication"]])
    shown = sets["communication" if part == "communication" else "memcpy"]
    return _common_ns(intervals, union([hidden, shown])) - _common_ns(intervals, hidden)


def _common_ns(intervals: Int64Array, others: Int64Array) -> int:
    """Length of what two sorted and disjoint sets have in common."""
    return total(covered_ns(intervals, others.ravel())[::2])
