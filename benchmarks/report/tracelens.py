"""TraceLens's PyTorch report with kernels and short kernels, as CSV files, from the file.

It is on no package index (the `tracelens` there is another project): TRACELENS_CHECKOUT names a
clone of AMD-AGI/TraceLens.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

CHECKOUT = os.environ.get("TRACELENS_CHECKOUT", "")


def available() -> str:
    return "" if os.path.isdir(CHECKOUT) else "TRACELENS_CHECKOUT names no folder"


def prepare() -> None:
    sys.path.insert(0, CHECKOUT)
    import TraceLens.Reporting.generate_perf_report_pytorch  # noqa: F401


def run(path: str) -> Any:
    from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch

    with tempfile.TemporaryDirectory() as folder:
        sheets = generate_perf_report_pytorch(
            profile_json_path=path,
            output_csvs_dir=folder,
            kernel_summary=True,
            short_kernel_study=True,
        )
        return sheets, len(list(Path(folder).iterdir()))


def answers(built: Any) -> dict[str, int]:
    sheets, files = built
    timeline = sheets["gpu_timeline"].set_index("type")["time ms"]
    kernels = sheets["kernel_summary"]
    return {
        "gpu_busy_ns": round(timeline["busy_time"] * 1e6),
        "gpu_span_ns": round(timeline["total_time"] * 1e6),
        "tl_busy_ns": round(timeline["busy_time"] * 1e6),
        "tl_span_ns": round(timeline["total_time"] * 1e6),
        "tl_kernels": int(kernels["Kernel duration (µs)_count"].sum()),
        "tl_sheets": files,
    }
