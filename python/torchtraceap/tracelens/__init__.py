"""TraceLens's tables with its names and its numbers, for people who come from there.

What is different in our own tables, and why, stands in docs/compatibility.md.
"""

from __future__ import annotations

from torchtraceap.models.tracelens.registry import compat_work
from torchtraceap.tracelens.report import (
    tracelens_sheets,
    write_tracelens_csvs,
    write_tracelens_xlsx,
)

__all__ = ["compat_work", "tracelens_sheets", "write_tracelens_csvs", "write_tracelens_xlsx"]
