"""What TraceLens's report holds: its CSV files with its numbers, from the file."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any


def prepare() -> None:
    import torchtraceap.compat.tracelens  # noqa: F401


def run(path: str) -> Any:
    import torchtraceap as ttap
    from torchtraceap.compat.tracelens import write_tracelens_csvs

    with tempfile.TemporaryDirectory() as folder:
        write_tracelens_csvs(ttap.load(path), folder)
        return {p.name: p.read_text(encoding="utf-8") for p in Path(folder).iterdir()}


def answers(files: dict[str, str]) -> dict[str, int]:
    timeline = {
        row["type"]: float(row["time ms"])
        for row in csv.DictReader(files["gpu_timeline.csv"].splitlines())
    }
    kernels = list(csv.DictReader(files["kernel_summary.csv"].splitlines()))
    return {
        "tl_busy_ns": round(timeline["busy_time"] * 1e6),
        "tl_span_ns": round(timeline["total_time"] * 1e6),
        "tl_kernels": sum(int(float(row["Kernel duration (µs)_count"])) for row in kernels),
        "tl_sheets": len(files),
    }
