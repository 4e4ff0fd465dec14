"""The head of a diagnosis: the largest part of the profiled time, and the leading finding.

Note [Leading finding]: a report begins with the finding whose fix regains most of its own cost,
among those that are worth it: the saving can be believed (a simulated one above the noise of steps,
or a bound above zero), the cost is 5 % of the time or more, and a third of the largest cost
or more. The largest cost is that of any finding or of any part of the time that is not computation
(of a GPU, or of a host that computes), whether a finding explains it or not: nobody reads of 3 %
first where 90 % is lost. Where it neither lies in the largest part of the time nor explains a third
of that, the sentence names the part too (`Lead.beside`): it agrees with the bar. Where no saving
can be believed, the finding that explains half of the largest loss leads: nobody reads that nothing
is known of a loss for which a finding stands below.

Note [Bound]: a run is bound by what its critical path consists of, and not by the largest part of
the bar: a GPU that computes for 55 % of the time while the loop waits for its next batch in the
rest follows the host. A GPU that is busy for nine tenths of the time is another matter: with a
host that takes no time at all the run would gain a tenth, so it is bound by what the GPU does.
Where no kind of work has half of the path, and the second is close to the first, the run is bound
by several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import EMPTY, Int64Array, covered_ns, union
from torchtraceap.core.results import GPU_PARTS, Finding
from torchtraceap.core.sums import total
from torchtraceap.tables.steps.critical_path import BOUNDS, own_path
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "COMPUTATION",
    "LEAST_SHARE",
    "bound_by",
    "computes_on",
    "covering_finding",
    "idle_by_cause",
    "is_beside",
    "largest_part",
    "leading_finding",
    "parts_over_time",
    "time_parts",
]

COMPUTATION = ("compute", "host_forward", "host_backward", "host_optimizer", "host_other")
"""Parts of the time that need no fix as such: computation of a GPU, or operators of a run that
computes on the host."""
LEAST_SHARE = 0.05
"""Least share of the profiled time of a finding with which a report begins."""
_THIRD = 1 / 3
_HALF = 1 / 2

_BOUNDS = {
    "gpu_compute_bound": "gpu_compute",
    "communication_bound": "communication",
    "copy_bound": "copies",
    "data_loading": "data",
    "unknown": "unknown",
}
"""Bounds by those of a critical path; all others are the host's."""
_GPU_BOUNDS = dict(
    zip(GPU_PARTS, ("gpu_compute", "communication", "copies", "copies"), strict=True)
)
"""Bounds by parts of the time in which a GPU is busy."""
_BUSY = 0.9
"""Share of the time from which a busy GPU leaves the host nothing to bind."""
_CLOSE = 0.75
"""Share of the first bound from which the second is close to it."""
_MOST_PATHS = 16
"""Ranks whose paths are looked at; of more, so many at equal distances."""

_HOST_COPIES = (_core.CopyDirection.HOST_TO_DEVICE, _core.CopyDirection.DEVICE_TO_HOST)


def computes_on(trace: Ranks) -> str | None:
    """Return "gpu"; "host", where no rank recorded anything of a GPU and operators do the work
    there; or None: the GPU's work is not in the recording."""
    if any(len(rank.tree.gpu_rows) for rank in trace.ranks):
        return "gpu"
    return "host" if all(rank.computes_on_host for rank in trace.ranks) else None


def time_parts(trace: Ranks) -> dict[str, int]:
    """Return the profiled time by work of the GPUs or cause of idle time, summed over the ranks.

    Returns:
        `compute`, exposed `communication`, exposed copies between host and device (`memcpy`) and
        other exposed copies (`device_memcpy`), and idle time by cause, ns; they sum to the profiled
        time. For a run that computes on the host the causes of its critical path, rank by rank.
        Empty where the work is not recorded.
    """
    where = computes_on(trace)
    if where is None:
        return {}
    if where == "host":
        causes: dict[str, int] = {}
        for rank in trace.ranks:
            for cause, bounds_ns in own_path(rank).by_cause().items():
                causes[cause] = causes.get(cause, 0) + total(np.diff(bounds_ns))
        return causes
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
    """Return `time_parts` of one rank in each slot between consecutive bounds, inside the profiled
    time; empty where the work is not recorded.

    Args:
        rank: The rank.
        bounds_ns: Ascending, int64 `[count + 1]`.
        where: "gpu" or "host", where `computes_on` is known.

    Returns:
        int64 `[count]` by part, ns.
    """
    where = where or computes_on(Ranks([rank]))
    if where == "host":
        spans = own_path(rank).by_cause()
        return {cause: covered_ns(union([span]), bounds_ns) for cause, span in spans.items()}
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
    idle_spans = np.stack((idle.start_ns, idle.end_ns), axis=1)
    for code, name in enumerate(_core.idle_cause_names()):
        parts[name] = covered_ns(idle_spans[idle.cause == code], bounds_ns)
    return parts


def idle_by_cause(trace: Ranks) -> dict[str, int]:
    """Return GPU idle time inside the profiled time by cause, ns, summed over the ranks."""
    totals = dict.fromkeys(_core.idle_cause_names(), 0)
    for rank in trace.ranks:
        for cause, ns in rank.idle(rank.tree.profiled).totals.items():
            totals[cause] += ns
    return totals


def _exposed_host_copies_ns(rank: RankTrace, exposed_ns: int) -> int:
    """Return the part of the exposed copies that is between host and device, ns."""
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
    """Return rows of copies `[n]`, and a mask of those between host and device, bool `[n]`."""
    tree = rank.tree
    rows = tree.gpu_rows[tree.gpu_class[tree.gpu_rows] == _core.GpuClass.MEMCPY]
    return rows, np.isin(tree.copy_direction[rows], _HOST_COPIES)


def _times(rank: RankTrace, rows: Array) -> Int64Array:
    """Return the union of the times of rows."""
    start_ns = rank.table.ts_ns[rows]
    return union([np.stack((start_ns, start_ns + rank.table.dur_ns[rows]), axis=1)])


def bound_by(trace: Ranks, parts: dict[str, int]) -> str:
    """Return what the run is bound by. See Note [Bound].

    Args:
        trace: The ranks.
        parts: See `time_parts`.

    Returns:
        "gpu_compute", "communication", "copies", "host", "data", "mixed" or "unknown".
    """
    totals: dict[str, float] = {}

    def add(bound: str, ns: float) -> None:
        kind = _BOUNDS.get(bound, "host")
        totals[kind] = totals.get(kind, 0.0) + ns

    bound_of = {cause: bound for bound, causes in BOUNDS.items() for cause in causes}
    for place in np.linspace(0, len(trace.ranks) - 1, min(len(trace.ranks), _MOST_PATHS)):
        rank = trace.ranks[int(place)]
        for cause, bounds_ns in own_path(rank).by_cause().items():
            lost_ns = covered_ns(rank.tree.not_judged, bounds_ns.ravel())[::2]
            add(bound_of[cause], total(np.diff(bounds_ns)) - total(lost_ns))
    half_ns = _HALF * sum(totals.values())
    if sum(parts.get(part, 0) for part in GPU_PARTS) >= _BUSY * max(sum(parts.values()), 1):
        totals = {kind: ns for kind, ns in totals.items() if kind not in ("host", "data")}
        if not any(totals.values()):
            totals = dict.fromkeys(_GPU_BOUNDS.values(), 0.0)
            for part, kind in _GPU_BOUNDS.items():
                totals[kind] += parts[part]
    if not any(totals.values()):
        return "unknown"
    (first, most), *others = sorted(totals.items(), key=lambda item: -item[1])
    is_mixed = most < half_ns and others and others[0][1] >= _CLOSE * most
    return "mixed" if is_mixed else first


def largest_part(parts: dict[str, int]) -> str | None:
    """Return the largest part of the time by name; None where there is none."""
    return max(parts, key=lambda name: parts[name]) if any(parts.values()) else None


def leading_finding(findings: Sequence[Finding], parts: dict[str, int]) -> Finding | None:
    """Return the finding with which a report begins. See Note [Leading finding].

    Args:
        findings: Findings with their savings, first those whose fix regains most.
        parts: See `time_parts`.
    """
    lost_ns = [ns for name, ns in parts.items() if name not in COMPUTATION]
    largest_ns = max([*lost_ns, *(finding.cost_ns for finding in findings)], default=0)
    for finding in findings:
        is_large = finding.cost_share >= LEAST_SHARE and finding.cost_ns >= _THIRD * largest_ns
        if is_large and finding.saving is not None and finding.saving.believed_ns > 0:
            return finding
    return None


def covering_finding(
    trace: Ranks, findings: Sequence[Finding], parts: dict[str, int]
) -> Finding | None:
    """Return the finding that explains half of the largest loss or more, whatever a fix saves."""
    lost = {name: ns for name, ns in parts.items() if name not in COMPUTATION}
    part = largest_part(lost)
    if part is None or lost[part] < LEAST_SHARE * sum(parts.values()):
        return None
    for finding in sorted(findings, key=lambda each: -each.cost_ns):
        if _inside_ns_of(trace, finding, part) >= _HALF * lost[part]:
            return finding
    return None


def _inside_ns_of(trace: Ranks, finding: Finding, part: str) -> int:
    """Return how much of a finding's cost lies in one part of the time, over all ranks, ns."""
    places: dict[int | None, list[int]] = {}
    for place, number in enumerate(finding.interval_ranks):
        places.setdefault(number, []).append(place)
    return sum(
        _inside_ns(rank, part, finding.intervals[places[rank.rank]])
        for rank in trace.ranks
        if rank.rank in places
    )


def is_beside(trace: Ranks, finding: Finding, parts: dict[str, int]) -> bool:
    """Return whether a finding neither lies in the largest part of the time nor explains much."""
    part = largest_part(parts)
    if part is None:
        return False
    return _inside_ns_of(trace, finding, part) < min(_THIRD * parts[part], _HALF * finding.cost_ns)


def _inside_ns(rank: RankTrace, part: str, intervals: Int64Array) -> int:
    """Return the length of the intervals inside one part of the time of a rank, ns."""
    if not len(rank.tree.gpu_rows):
        return _common_ns(intervals, own_path(rank).by_cause().get(part, EMPTY))
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
    """Return the length of the intersection of two sorted and disjoint sets, ns."""
    return total(covered_ns(intervals, others.ravel())[::2])
