"""Load a trace and build its tree: python benchmarks/load/run.py [TRACE...]"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness

NESTING = "a child that outlasts its parent by under a microsecond is nested for traceap alone"
GPU_TIME = {
    "hta": ("HTA rounds to whole microseconds and counts synchronisation rows", 0.15),
    "tracelens": ("TraceLens adds doubles, and leaves out events without a launch", 0.15),
    "json_pandas": ("a sum of doubles", 1e-6),
    "orjson_pandas": ("a sum of doubles", 1e-6),
}


def allowed(competitor: str, answer: str) -> tuple[str, float]:
    """Why a competitor may differ by its own definitions, and up to which share."""
    if answer == "nested_host_events":
        return NESTING, 0.02
    if answer in ("gpu_busy_ns", "gpu_span_ns"):
        return GPU_TIME.get(competitor, ("", 0))
    if competitor == "hta" and answer in ("gpu_events", "linked_gpu_events"):
        return "HTA takes synchronisation rows for GPU events", 0.15
    return "", 0


if __name__ == "__main__":
    harness.main(Path(__file__).resolve().parent, allowed)
