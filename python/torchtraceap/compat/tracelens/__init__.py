"""TraceLens's tables with its names and its numbers, for people who come from there.

What is different in our own tables, and why, stands in docs/compatibility.md.
"""

from __future__ import annotations

from torchtraceap.compat.tracelens.collectives import collective_sheets
from torchtraceap.compat.tracelens.compare import (
    diff_stats,
    write_diff_stats,
    write_tracelens_comparison,
)
from torchtraceap.compat.tracelens.inference import inference_sheets
from torchtraceap.compat.tracelens.report import (
    tracelens_sheets,
    write_inference_csvs,
    write_tracelens_csvs,
    write_tracelens_xlsx,
)
from torchtraceap.ops.models.tracelens.registry import compat_work

__all__ = [
    "collective_sheets",
    "compat_work",
    "diff_stats",
    "inference_sheets",
    "tracelens_sheets",
    "write_diff_stats",
    "write_inference_csvs",
    "write_tracelens_comparison",
    "write_tracelens_csvs",
    "write_tracelens_xlsx",
]
