"""The findings of a training over its time: lines of `watch.jsonl` and the table made of them; what
is new since the last recording; which traces stay."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import parse_json, read_stored
from torchtraceap.core.writing import naming
from torchtraceap.errors import SchemaError

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable

__all__ = [
    "SCHEMA",
    "Change",
    "Changes",
    "Kept",
    "append_line",
    "metrics_of",
    "read_lines",
    "series_table",
]

SCHEMA = "torchtraceap.watch/1"
FILE = "watch.jsonl"
PREFIX = "torchtraceap"

WatchRow = dict[str, Any]


def append_line(path: Path, row: WatchRow) -> None:
    """Append a row to a file of JSON lines: in one write, so that several runs may share it.

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
    """Return the rows of a file, of all runs or one; a line that was cut short is left out."""
    rows = []
    for number, line in enumerate(read_stored(path).split(b"\n"), 1):
        with contextlib.suppress(SchemaError):
            row = parse_json(line, f"{path}, line {number}")
            if row.get("schema") == SCHEMA:
                rows.append(row)
    return [row for row in rows if run is None or row.get("run") == run]


def metrics_of(row: WatchRow) -> dict[str, float]:
    """Return the figures of a row by name, for loggers of metrics: times in ms, shares as
    fractions."""
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
    """Return a table with a row for each finding of each recording, and one for a recording without
    a finding."""
    import numpy as np

    from torchtraceap.core.columns import encode_texts
    from torchtraceap.core.table import ColumnTable

    flat = [(row, finding) for row in rows for finding in row["findings"] or [{}]]

    def integers(values: Iterable[Any]) -> Any:
        listed = list(values)
        absent = [value is None for value in listed]
        return np.ma.array(
            [int(value or 0) for value in listed], mask=np.asarray(absent, bool), dtype=np.int64
        )

    def floats(values: Iterable[Any]) -> Any:
        return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)

    return ColumnTable(
        {
            "time_s": floats(row["time"] for row, _ in flat),
            "step": integers(row["step"] for row, _ in flat),
            "step_time_ns": integers(row.get("step_time_ns") for row, _ in flat),
            "busy_share": floats(row.get("busy_share") for row, _ in flat),
            "finding": encode_texts(finding.get("type") for _, finding in flat),
            "cost_share": floats(finding.get("cost_share") for _, finding in flat),
            "saving_share": floats(finding.get("saving_share") for _, finding in flat),
            "cost_ns": integers(finding.get("cost_ns") for _, finding in flat),
            "saving_ns": integers(finding.get("saving_ns") for _, finding in flat),
            "overhead_share": floats(row.get("overhead_share") for row, _ in flat),
            "run": encode_texts(row.get("run") for row, _ in flat),
            "trace": encode_texts(row.get("trace") for row, _ in flat),
        },
        shown=("step", "step_time_ns", "busy_share", "finding", "cost_share", "saving_share"),
        first=("step", "finding", "cost_share"),
        notes=() if rows else ("No recording has been examined yet.",),
    )


ABSENT_TIMES = 2
"""A finding has gone when it is missing so often in a row: near a threshold it comes and goes."""
DRIFT = 0.10
"""Steps that take this much more or less have changed."""
SPREADS = 4.0
"""And more than so many median deviations of single steps, over the root of their number."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is new."""

    kind: str
    """"appeared", "gone" or "drift"."""
    text: str
    finding: str | None = None


class Changes:
    """Compares each recording with those before it."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}
        """How often in a row a finding has been missing, of those that are known."""
        self._usual: tuple[float, float] | None = None

    def compare_findings(self, findings: Sequence[dict[str, Any]], step: int) -> list[Change]:
        found = {finding["type"]: finding for finding in findings}
        changes = []
        for name, finding in found.items():
            if name not in self._missing:
                cost = format_share(finding["cost_share"])
                text = f"step {step}: {name} has appeared; it takes {cost} of the time"
                changes.append(Change("appeared", text, name))
            self._missing[name] = 0
        for name in [name for name in self._missing if name not in found]:
            self._missing[name] += 1
            if self._missing[name] >= ABSENT_TIMES:
                del self._missing[name]
                changes.append(Change("gone", f"step {step}: {name} has gone", name))
        return changes

    def compare_steps(self, steps_s: Sequence[float], step: int) -> Change | None:
        """Return the change of a step's time against before; None where there is none.

        Args:
            steps_s: Those without a profiler since the last recording.
            step: Number of the last one.
        """
        if len(steps_s) < 5:
            return None
        now = median(steps_s)
        spread = median(abs(each - now) for each in steps_s) * 1.5 / len(steps_s) ** 0.5
        before, spread_before = self._usual or (now, spread)
        if self._usual is None:
            self._usual = (now, spread)
            return None
        apart = abs(now - before)
        if apart <= max(DRIFT * before, SPREADS * (spread**2 + spread_before**2) ** 0.5):
            return None
        self._usual = (now, spread)
        change = f"{now / before - 1:+.0%}".replace("%", " %")
        text = (
            f"step {step}: a step takes {format_ns(round(now * 1e9))}, {change} against "
            f"{format_ns(round(before * 1e9))} before"
        )
        return Change("drift", text)


class Kept:
    """The folders of the recordings of one run; what goes is removed file by file, and nothing
    that another program put there.

    Args:
        root: The folder of the run.
        latest: How many of the latest recordings stay, whatever was found.
        most_bytes: All of them together stay below this; the last one always stays.
    """

    def __init__(self, root: Path, latest: int, most_bytes: int) -> None:
        self._root = root
        self._latest = latest
        self._most_bytes = most_bytes
        self._folders: dict[str, bool] = {}
        """By age; whether a finding was new."""

    @property
    def names(self) -> list[str]:
        return list(self._folders)

    def add(self, name: str, is_new: bool) -> None:
        """Add a recording that was examined; those that have to make room for it go."""
        self._folders[name] = is_new
        for each in self.names[: -self._latest]:
            if not self._folders[each]:
                self._remove(each)
        sizes = {each: self._bytes(each) for each in self._folders}
        for each in sorted(self.names[:-1], key=lambda each: self._folders[each]):
            if sum(sizes[each] for each in self._folders) <= self._most_bytes:
                break
            self._remove(each)

    def follow(self, names: Collection[str]) -> None:
        """Keep these as another rank does: what else was written here goes too."""
        for each in [each for each in self._folders if each not in names]:
            self._remove(each)

    def note(self, name: str) -> None:
        """Add a recording of which another rank decides."""
        self._folders[name] = False

    def _remove(self, name: str) -> None:
        self._folders.pop(name)
        folder = self._root / name
        with contextlib.suppress(OSError):
            for file in folder.glob("*_rank*.json.gz"):
                file.unlink(missing_ok=True)
            folder.rmdir()

    def _bytes(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in (self._root / name).iterdir())
        return 0
