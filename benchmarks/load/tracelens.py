"""TraceLens, from the checkout that TRACELENS_CHECKOUT names: load and tree."""

from __future__ import annotations

import os
import sys
from typing import Any

CHECKOUT = os.environ.get("TRACELENS_CHECKOUT", "")


def available() -> str:
    return "" if os.path.isdir(CHECKOUT) else "TRACELENS_CHECKOUT names no folder"


def prepare() -> None:
    sys.path.insert(0, CHECKOUT)
    import TraceLens  # noqa: F401


def run(path: str) -> Any:
    from TraceLens import TreePerfAnalyzer

    return TreePerfAnalyzer.from_file(profile_filepath=path)


def answers(analyzer: Any) -> dict[str, int]:
    timeline = analyzer.get_df_gpu_timeline().set_index("type")["time ms"]
    return {
        "gpu_busy_ns": round(timeline["busy_time"] * 1e6),
        "gpu_span_ns": round(timeline["total_time"] * 1e6),
    }
