"""An estimated duration as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core.formatting import format_ns, one_line
from torchtraceap.report.tables import TextTable

if TYPE_CHECKING:
    from torchtraceap.ops.durations import Estimate

__all__ = ["estimate_table"]

MAX_SOURCE = 400


def estimate_table(what: str, device: str, found: Estimate) -> TextTable:
    """One row: the time, the interval that holds 8 of 10 cases; the source below it."""
    time, low, high = (format_ns(round(ns)) for ns in found[:3])
    return TextTable(
        "",
        ("", "device", "time", "8 of 10 between"),
        [(one_line(what, 60), device, time, f"{low} and {high}")],
        f"Source: {one_line(found.source, MAX_SOURCE)}.",
    )
