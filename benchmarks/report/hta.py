"""HTA: load, then its five breakdowns."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def available() -> str:
    return "" if find_spec("hta") else "HolisticTraceAnalysis is not installed"


def prepare() -> None:
    import hta.trace_analysis  # noqa: F401


def run(path: str) -> Any:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/", include_last_profiler_step=True)
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_cuda_kernel_launch_stats(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    return times


def answers(times: Any) -> dict[str, int]:
    busy_us = times["kernel_time(us)"] - times["idle_time(us)"]
    return {
        "gpu_busy_ns": round(busy_us * 1000),
        "gpu_span_ns": round(times["kernel_time(us)"] * 1000),
    }
