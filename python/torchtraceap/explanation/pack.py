"""An evidence pack: everything that a judge sees of a segment, with a name for all it may cite.

Every number that a pack shows is a `Metric`, every event a `PackRow`; tables are made of them. A
text about the segment cites them by their names, so that it can be checked without the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.explanation.numbers import Metric

__all__ = ["Pack", "PackLine", "PackRow", "PackTable"]


@dataclass(frozen=True, slots=True)
class PackRow(Result):
    """An event that may be cited."""

    key: str
    """Key within the pack, such as "r3"."""
    rank: int | None
    row: int
    """Row of the rank's event table."""
    name: str
    """Name as the trace has it, of any length."""
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class PackLine(Result):
    """One line of a table."""

    key: str
    """Key within the pack, such as "g2"; its metrics are named "g2.total" and so on."""
    names: tuple[str, ...]
    """Names out of the trace that it shows, one for each of the table's columns of names."""
    metrics: tuple[Metric, ...]
    cost_ns: int
    """Cost by which lines are dropped, the cheapest first."""
    row: str = ""
    """Key of the event that it shows; empty where it shows many."""


@dataclass(frozen=True, slots=True)
class PackTable(Result):
    """A part of a pack: groups of GPU events, gaps, neighboring windows."""

    title: str
    columns: tuple[str, ...]
    """Heads of the names."""
    lines: tuple[PackLine, ...]


@dataclass(frozen=True, slots=True)
class Pack(Result):
    """The evidence of one segment."""

    about: str
    """Description of the recording in our own words: devices, ranks, steps, training or not."""
    start_ns: int
    end_ns: int
    metrics: tuple[Metric, ...]
    """Metrics of the segment, with medians and percentile ranks among the trace's windows, and of
    findings."""
    tables: tuple[PackTable, ...]
    rows: tuple[PackRow, ...]
    types: tuple[tuple[str, float], ...]
    """Types and how likely each is, the likeliest first."""
    allowed: tuple[str, ...]
    """Types that a verdict may name, besides "none"."""
    knowledge: tuple[str, ...]
    """Types whose entries of the knowledge base stand beside it, the most fitting first."""
    rules: tuple[tuple[str, str], ...] = ()
    """Verdicts of the rules on the likely types in this trace: "present", "absent" or "unknown"."""
    window_count: int = 100
    """Number of windows of the grid on which the segment was found."""
    dropped: int = field(default=0)
    """Lines that the budget left out."""

    def every_metric(self) -> Mapping[str, Metric]:
        """Return all metrics by name, those of the tables included."""
        lines = (line for table in self.tables for line in table.lines)
        inside = (metric for line in lines for metric in line.metrics)
        return {metric.name: metric for metric in (*self.metrics, *inside)}

    def every_row(self) -> Mapping[str, PackRow]:
        """Return all events by key."""
        return {row.key: row for row in self.rows}

    def names(self) -> frozenset[str]:
        """Return all names from the trace that the pack shows."""
        lines = (line for table in self.tables for line in table.lines)
        shown = (name for line in lines for name in line.names)
        return frozenset((*shown, *(row.name for row in self.rows)))
