"""Stored runs with figures that a test chooses, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtraceap.lab.bench.runs.run import metrics_of
from torchtraceap.lab.bench.runs.run_store import MeasuredRun, Samples

__all__ = ["made_process", "made_run"]

MIB = 1 << 20


def made_process(
    fenced: Sequence[int],
    free: Sequence[int] | None = None,
    *,
    batch: int | None = 4,
    device: str | None = None,
    peak: int = 80 * MIB,
) -> dict[str, Any]:
    """What one process writes; `peak` is what the workload took at most."""
    on_gpu = device is not None
    return {
        "batch": batch,
        "first_batch_ns": {"total": 60, "import": 30, "construction": 20, "first_step": 10},
        "times": {"fenced": list(fenced), "free": list(free or fenced)},
        "memory": {
            "rss_peak_bytes": 200 * MIB + peak,
            "rss_baseline_bytes": 200 * MIB,
            "rss_above_bytes": peak,
            "allocated_peak_bytes": peak if on_gpu else None,
            "reserved_peak_bytes": 2 * peak if on_gpu else None,
            "fragmentation": 0.5 if on_gpu else None,
        },
        "device": device,
        "threads": 1,
    }


def made_run(
    name: str = "resnet",
    processes: Sequence[dict[str, Any]] | None = None,
    *,
    when: str = "2026-01-01T00:00:00.000000+00:00",
    environment: dict[str, Any] | None = None,
    trace: Path | None = None,
    diagnosis: dict[str, Any] | None = None,
    **config: Any,
) -> MeasuredRun:
    """A run of some processes, each of which takes 10, 11 and 12 ns for its steps."""
    made = list(processes or [made_process([10, 11, 12])] * 2)
    return MeasuredRun(
        name=name,
        when=when,
        config={
            "workload": name, "mode": "train", "device": "cpu", "precision": "fp32",
            "compiled": False, "batch": None, "size": "tiny", "threads": None, "code": None,
            "protocol": {"processes": len(made), "steps": 3, "warmup": 3}, **config,
        },
        environment=environment or {"cpu": {"model": "Test CPU"}, "now": {"load": [1.0]}},
        metrics={**metrics_of(made), "flops_per_step": None, "flops_by": None, "notes": []},
        counts={"syncs": 0},
        samples=Samples.of_processes([each["times"] for each in made]),
        trace=trace,
        diagnosis=diagnosis,
    )  # fmt: skip
