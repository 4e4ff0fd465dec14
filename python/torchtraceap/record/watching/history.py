"""The findings of a training over its time: lines of `watch.jsonl`, and the table made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core.writing import naming

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable

__all__ = ["SCHEMA", "append_line", "metrics_of", "read_lines", "series_table"]

SCHEMA = "torchtraceap.watch/1"
FILE = "watch.jsonl"
PREFIX = "torchtraceap"

WatchRow = dict[str, Any]


def append_line(path: Path, row: WatchRow) -> None:
    """Appends a row to a file of JSON lines: in one write, so that several runs may share it.

    Raises:
        OutputError: It can't be written.
    """
    line = json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    with naming(path):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # what was cut short stays a line of its own
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read_lines(path: Path, run: str | None = None) -> list[WatchRow]:
    """The rows of a file, of all runs or one; a line that was cut short is left out."""
    rows = []
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and row.get("schema") == SCHEMA:
                rows.append(row)
    return [row for row in rows if run is None or row.get("run") == run]


def metrics_of(row: WatchRow) -> dict[str, float]:
    """The figures of a row by name, for loggers of metrics: times in ms, shares as fractions."""
    metrics = {
        "step_time_ms": _ms(row.get("step_time_ns")),
        "recorded_step_time_ms": _ms(row.get("recorded_step_ns")),
        "gpu_busy_share": row.get("busy_share"),
        "findings": float(len(row["findings"])),
        "overhead_share": row.get("overhead_share"),
    }
    for finding in row["findings"]:
        metrics[f"cost_share/{finding['type']}"] = finding["cost_share"]
        metrics[f"saving_share/{finding['type']}"] = finding["saving_share"]
    for name in row.get("gone", ()):  # so that its line ends at 0 and not where it was last seen
        metrics[f"cost_share/{name}"] = 0.0
    return {f"{PREFIX}/{name}": float(v) for name, v in metrics.items() if v is not None}


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def series_table(rows: Sequence[WatchRow]) -> ColumnTable:
    """One row for each finding of each recording, and one for a recording without a finding."""
    import numpy as np

    from torchtraceap.core.columns import encode_texts
    from torchtraceap.core.table import ColumnTable

    flat = [(row, finding) for row in rows for finding in row["findings"] or [{}]]

    def whole(values: Iterable[Any]) -> Any:
        listed = list(values)
        absent = [value is None for value in listed]
        return np.ma.array(
            [int(value or 0) for value in listed], mask=np.asarray(absent, bool), dtype=np.int64
        )

    def share(values: Iterable[Any]) -> Any:
        return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)

    return ColumnTable(
        {
            "time_s": share(row["time"] for row, _ in flat),
            "step": whole(row["step"] for row, _ in flat),
            "step_time_ns": whole(row.get("step_time_ns") for row, _ in flat),
            "busy_share": share(row.get("busy_share") for row, _ in flat),
            "finding": encode_texts(finding.get("type") for _, finding in flat),
            "cost_share": share(finding.get("cost_share") for _, finding in flat),
            "saving_share": share(finding.get("saving_share") for _, finding in flat),
            "cost_ns": whole(finding.get("cost_ns") for _, finding in flat),
            "saving_ns": whole(finding.get("saving_ns") for _, finding in flat),
            "overhead_share": share(row.get("overhead_share") for row, _ in flat),
            "run": encode_texts(row.get("run") for row, _ in flat),
            "trace": encode_texts(row.get("trace") for row, _ in flat),
        },
        shown=("step", "step_time_ns", "busy_share", "finding", "cost_share", "saving_share"),
        first=("step", "finding", "cost_share"),
        notes=() if rows else ("No recording has been examined yet.",),
    )
