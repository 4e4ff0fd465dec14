"""`estimate_unprofiled`: the time of a run without the cost of the profiler itself.

Each recorded host event costs the host some time, half of it where the event begins and half where
it ends. No more is taken off than a stretch of host code took. GPU work keeps its times; waits for
the GPU gain nothing. The result is an estimate: what recording costs depends on the machine,
the version and the options, so both times are given, never the corrected one alone.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
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
    """The cost of recording one host event, ns."""

    operator_ns: int
    """Operators and annotations."""
    frame_ns: int
    """Python frames (`with_stack=True`)."""
    call_ns: int
    """Runtime and driver calls."""
    source: str
    """The source of the numbers."""


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
    """Return the time of an iteration with and without the cost of recording."""
    delta, events = overhead_delta(run, overhead)
    return UnprofiledTime(run.steady_ns(), run.steady_ns(delta), events, overhead.source)


def overhead_delta(
    run: SimulatedRun, overhead: ProfilerOverhead = MEASURED_OVERHEAD
) -> tuple[_core.GraphDelta, int]:
    """Return the edit that takes the cost off, and the number of host events."""
    tax = np.zeros(len(run.graph), dtype=np.int64)
    by_kind = np.zeros(len(_core.EventKind), dtype=np.int64)
    by_kind[[_core.EventKind.CPU_OP, _core.EventKind.USER_ANNOTATION]] = overhead.operator_ns
    by_kind[_core.EventKind.PYTHON_FUNCTION] = overhead.frame_ns
    by_kind[list(API_KINDS)] = overhead.call_ns
    for rank, part in enumerate(run.ranks):
        per_row = by_kind[part.table.kind]
        for points in (run.graph.begin_of(rank), run.graph.end_of(rank)):
            rows = np.flatnonzero(points != _core.NO_ROW)
            tax[points[rows]] = per_row[rows] // 2
    edges = run.edges_of("program_order")
    edges = edges[tax[run.destination[edges]] > 0]
    lags = np.maximum(run.cost_ns[edges] - tax[run.destination[edges]], 0)
    delta = _core.GraphDelta()
    delta.set_lags(edges.astype(np.uint32), lags)
    return delta, int((tax > 0).sum()) // 2
