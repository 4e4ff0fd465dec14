"""TraceLens as a script, from start to exit: its PyTorch report, written as CSV files."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import script

CHECKOUT = os.environ.get("TRACELENS_CHECKOUT", "")


def available() -> str:
    return "" if os.path.isdir(CHECKOUT) else "TRACELENS_CHECKOUT names no folder"


def run(path: str) -> dict[str, int]:
    return script.run(__file__, path)


def answers(found: dict[str, int]) -> dict[str, int]:
    return found


def main(path: str) -> dict[str, int]:
    sys.path.insert(0, CHECKOUT)
    from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch

    with tempfile.TemporaryDirectory() as folder:
        sheets = generate_perf_report_pytorch(profile_json_path=path, output_csvs_dir=folder)
    timeline = sheets["gpu_timeline"].set_index("type")["time ms"]
    return {
        "gpu_busy_ns": round(timeline["busy_time"] * 1e6),
        "gpu_span_ns": round(timeline["total_time"] * 1e6),
    }


if __name__ == "__main__":
    script.main(main)
