"""Holistic Trace Analysis as a script, from start to exit: load, then its four breakdowns."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import script


def available() -> str:
    return "" if find_spec("hta") else "HolisticTraceAnalysis is not installed"


def run(path: str) -> dict[str, int]:
    return script.run(__file__, path)


def answers(found: dict[str, int]) -> dict[str, int]:
    return found


def main(path: str) -> dict[str, int]:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/", include_last_profiler_step=True)
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    events = analysis.t.get_trace(0)
    return {
        "gpu_events": int((events["stream"] != -1).sum()),
        "gpu_busy_ns": round((times["kernel_time(us)"] - times["idle_time(us)"]) * 1000),
        "gpu_span_ns": round(times["kernel_time(us)"] * 1000),
        "steps": len(analysis.get_profiler_steps()),
    }


if __name__ == "__main__":
    script.main(main)
