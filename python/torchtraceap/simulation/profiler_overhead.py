"""What the profiler itself cost the host, taken off: `estimate_unprofiled`.

Each recorded host event costs the host some time, half of it where the event begins and half where
it ends. Taken off is at most what a stretch of host code took. GPU work keeps its times; what waits
for the GPU gains nothing. The result is an estimate: what recording costs depends on the machine,
the version and the options, so both times are given, never the corrected one alone.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import API_KINDS
from torchtraceap.core.records import dataclass
from torchtraceap.simulation.run import SimulatedRun

__all__ = [
    "MEASURED_OVERHEAD",
    "PUBLISHED_OVERHEAD",
    "ProfilerOverhead",
    "UnprofiledTime",
    "estimate_unprofiled",
    "overhead_delta",
]


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """What recording one host event costs, ns."""

    operator_ns: int
    """Operators and annotations."""
    frame_ns: int
    """Python frames (`with_stack=True`)."""
    call_ns: int
    """Runtime and driver calls."""
    source: str
    """Where the numbers come from."""


MEASURED_OVERHEAD = ProfilerOverhead(
    operator_ns=230,
    frame_ns=190,
    call_ns=0,
    source="torch 2.13 on a CPU, benchmarks/simulation/profiler_overhead.py; what CUPTI adds to "
    "runtime calls is not measured and not taken off",
)
PUBLISHED_OVERHEAD = ProfilerOverhead(
    operator_ns=2_000,
    frame_ns=0,
    call_ns=4_000,
    source="constants of ml_perf_model (2022) for the profiler of its time",
)


@dataclass(frozen=True, slots=True)
class UnprofiledTime:
    """An iteration as it was profiled, and as it may be without the profiler."""

    profiled_ns: float
    unprofiled_ns: float
    events: int
    """Recorded host events that had their cost taken off, in the whole run."""
    source: str


def estimate_unprofiled(
    run: SimulatedRun, overhead: ProfilerOverhead = MEASURED_OVERHEAD
) -> UnprofiledTime:
    """Time of an iteration with and without what recording costs."""
    delta, events = overhead_delta(run, overhead)
    return UnprofiledTime(run.steady_ns(), run.steady_ns(delta), events, overhead.source)


def overhead_delta(
    run: SimulatedRun, overhead: ProfilerOverhead = MEASURED_OVERHEAD
) -> tuple[_core.GraphDelta, int]:
    """The edit that takes it off, and the number of host events."""
    tax = np.zeros(len(run.graph), dtype=np.int64)
    for rank in range(len(run.ranks)):
        per_row = _by_row(run, rank, overhead)
        for points in (run.graph.begin_of(rank), run.graph.end_of(rank)):
            rows = np.flatnonzero(points != _core.NO_ROW)
            tax[points[rows]] = per_row[rows] // 2
    edges = run.edges_of("program_order")
    edges = edges[tax[run.destination[edges]] > 0]
    lags = np.maximum(run.cost_ns[edges] - tax[run.destination[edges]], 0)
    delta = _core.GraphDelta()
    delta.set_lags(edges.astype(np.uint32), lags)
    return delta, int((tax > 0).sum()) // 2


def _by_row(run: SimulatedRun, rank: int, overhead: ProfilerOverhead) -> Array:
    by_kind = np.zeros(len(_core.EventKind), dtype=np.int64)
    by_kind[[_core.EventKind.CPU_OP, _core.EventKind.USER_ANNOTATION]] = overhead.operator_ns
    by_kind[_core.EventKind.PYTHON_FUNCTION] = overhead.frame_ns
    by_kind[list(API_KINDS)] = overhead.call_ns
    per_row: Array = by_kind[run.ranks[rank].table.kind]
    return per_row
