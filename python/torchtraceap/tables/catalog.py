"""Which tables there are. A table's own module says the rest in its `TABLE`, loaded on use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchtraceap.core.records import dataclass

if TYPE_CHECKING:
    from torchtraceap.tables.spec import TableSpec

__all__ = ["TABLES", "TableEntry", "table_spec"]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table in `torchtraceap --help`, which must not load what makes it."""

    module: str
    """In `torchtraceap.tables`."""
    summary: str
    method: str
    """Of `Trace`."""


TABLES: Mapping[str, TableEntry] = MappingProxyType(
    {
        "tree": TableEntry(
            "host.tree_rows",
            "host calls by thread with the GPU events that they launched",
            "tree_rows",
        ),
        "events": TableEntry("events", "the events as a table, as JSON, CSV or Parquet", "events"),
        "ops": TableEntry(
            "ops.ops", "operators: own and subtree GPU time, host time, launches", "ops"
        ),
        "modules": TableEntry(
            "ops.modules", "the nn.Module tree with GPU and host time, backward included", "modules"
        ),
        "stacks": TableEntry(
            "host.stacks", "calls by who called them: self time and time with all below", "stacks"
        ),
        "kernels": TableEntry(
            "gpu.kernels", "GPU events: counts, times, grid and block, owners", "kernels"
        ),
        "sequences": TableEntry(
            "gpu.sequences",
            "kernel sequences that repeat, and what fusing them would remove",
            "sequences",
        ),
        "grids": TableEntry(
            "gpu.grids", "kernels by grid size: waves on the multiprocessors, empty tails", "grids"
        ),
        "launches": TableEntry(
            "host.launches", "launch calls: cost on the host, delay, queue length", "launches"
        ),
        "roofline": TableEntry(
            "ops.roofline",
            "FLOPs, bytes, achieved rates and how far they are from the device's peak",
            "roofline",
        ),
        "expected": TableEntry(
            "ops.expected", "GPU work: measured against what the duration models expect", "expected"
        ),
        "memory": TableEntry(
            "gpu.memory", "copies with their bandwidth, allocator calls, memory over time", "memory"
        ),
        "host": TableEntry("host.host", "what the CPU threads did while the GPU waited", "host"),
        "steps": TableEntry("steps.steps", "steps: time, outliers, trend, what differs", "steps"),
        "collectives": TableEntry(
            "ranks.collectives",
            "collectives matched across ranks: bytes, transfer, waits, bandwidth",
            "collectives",
        ),
        "ranks": TableEntry(
            "ranks.ranks",
            "ranks compared: who arrives last, how often, because of what",
            "ranks_table",
        ),
        "critical-path": TableEntry(
            "steps.critical_path",
            "the longest chain of dependent work, and what it consists of",
            "critical_path",
        ),
        "quality": TableEntry(
            "quality", "what the recording lacks, and what was left out of it", "quality"
        ),
    }
)
"""By the name of the command, in the order in which they are listed."""


def table_spec(name: str) -> TableSpec:
    """What the table of a command says of itself."""
    module = import_module(f"torchtraceap.tables.{TABLES[name].module}")
    spec: TableSpec = module.TABLE
    return spec
