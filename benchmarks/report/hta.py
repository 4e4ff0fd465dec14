"""HTA: load one or all ranks, then its five breakdowns of each."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any


def available() -> str:
    return "" if find_spec("hta") else "HolisticTraceAnalysis is not installed"


def prepare() -> None:
    import hta.trace_analysis  # noqa: F401


def run(path: str) -> Any:
    from hta.trace_analysis import TraceAnalysis

    files = sorted(Path(path).iterdir()) if Path(path).is_dir() else [Path(path)]
    analysis = TraceAnalysis(
        trace_files={rank: str(file) for rank, file in enumerate(files)},
        trace_dir="/",
        include_last_profiler_step=True,
    )
    ranks = list(range(len(files)))
    times = analysis.get_temporal_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    return times


def answers(times: Any) -> dict[str, int]:
    span_us, idle_us = times["kernel_time(us)"].sum(), times["idle_time(us)"].sum()
    return {"gpu_busy_ns": round((span_us - idle_us) * 1000), "gpu_span_ns": round(span_us * 1000)}
