"""Holistic Trace Analysis: load the trace, keep its last step, build the call graph."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import Any


def available() -> str:
    return "" if find_spec("hta") else "HolisticTraceAnalysis is not installed"


def prepare() -> None:
    import hta.common.call_stack
    import hta.trace_analysis  # noqa: F401


def run(path: str) -> Any:
    # The graph of hta.common.trace_call_graph, newer, fails on traces with textual thread ids.
    from hta.common.call_stack import CallGraph
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/", include_last_profiler_step=True)
    CallGraph(analysis.t)
    return analysis


def answers(analysis: Any) -> dict[str, int]:
    events = analysis.t.get_trace(0)
    gpu = events[events["stream"] != -1]
    found = {
        "gpu_events": len(gpu),
        "linked_gpu_events": int((gpu["index_correlation"] > 0).sum()),
        "steps": len(analysis.get_profiler_steps()),
    }
    with contextlib.suppress(KeyError, ValueError):  # a trace without GPU events
        times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
        found["gpu_span_ns"] = round(times["kernel_time(us)"] * 1000)
        found["gpu_busy_ns"] = round((times["kernel_time(us)"] - times["idle_time(us)"]) * 1000)
    return found
