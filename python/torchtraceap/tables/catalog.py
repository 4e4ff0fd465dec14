"""The tables of a trace, and what each says of itself: for the command line, SQL, the page, tests.

`TABLES` lists them without loading any; the module of a table has its `TABLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "TABLES",
    "Option",
    "PageView",
    "TableEntry",
    "TableSpec",
    "check_choice",
    "check_count",
    "table_spec",
]

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table in `torchtraceap --help`, which must not load what makes it."""

    module: str
    """The module below `torchtraceap.tables`."""
    summary: str
    method: str
    """The method of `Trace` that makes the table."""


TABLES: Mapping[str, TableEntry] = MappingProxyType(
    {
        "tree": TableEntry(
            "tree",
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
            "stacks", "calls by who called them: self time and time with all below", "stacks"
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
            "launches", "launch calls: cost on the host, delay, queue length", "launches"
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
        "host": TableEntry("host", "what the CPU threads did while the GPU waited", "host"),
        "steps": TableEntry("steps.steps", "steps: time, outliers, trend, what differs", "steps"),
        "serving": TableEntry(
            "serving.serving",
            "iterations of a serving engine: phases, time of a token, layers, bubbles",
            "serving_table",
        ),
        "collectives": TableEntry(
            "collectives",
            "collectives matched across ranks: bytes, transfer, waits, bandwidth",
            "collectives",
        ),
        "ranks": TableEntry(
            "ranks",
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
"""Tables by the name of their command, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a table beside `by` and `rank`."""

    keyword: str
    """The keyword of the function that builds the table."""
    flag: str
    help: str
    kind: Literal["text", "path", "integer", "count", "microseconds", "step", "flag", "no_flag"] = (
        "text"
    )
    """The way in which the command line reads it; a `no_flag` makes the keyword False, and a `path`
    of this machine is for the user alone, not for a client of a server."""
    default: Any = None
    metavar: str | None = None
    choices: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PageView:
    """A table as the page and the benchmarks want it."""

    section: str
    """The key of a section of the page."""
    label: str
    options: Options = field(default_factory=dict)
    hint: str = ""
    """A sentence that says what the columns mean."""
    find: str = ""
    """The column whose text a click looks for in the timeline."""
    meter: str = ""
    """The share that is drawn as well as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One table: how it is made, and what the ways to it need to know."""

    build: Callable[..., ColumnTable]
    """Takes a rank, or where `per_rank` is off a trace; then `by` if there are views, and the
    options, by keyword."""
    views: Sequence[str] = ()
    """Values of `by`, the default first."""
    options: Sequence[Option] = ()
    per_rank: bool = True
    stack: Callable[..., ColumnTable] | None = None
    """Joins the tables of ranks, given as (rank, table), with the options of the call; None for
    `stack_ranks`."""
    first: Sequence[str] | Mapping[str, Sequence[str]] = ()
    """Columns that a narrow terminal keeps (`ColumnTable.first`), or such by view; those that a
    view does not have are passed over."""
    json_options: Options = field(default_factory=dict)
    """Options that the JSON of the command line adds to those of its other forms."""
    sql: Mapping[str, Options] = field(default_factory=dict)
    """Names in SQL, with the options of each."""
    page: Sequence[PageView] = ()

    def make(self, trace: Ranks, /, *, rank: int | None = None, **options: Any) -> ColumnTable:
        """Build the table of a trace, or of one rank.

        Args:
            trace: One or several ranks.
            rank: The rank; by default the tables of all ranks stand under each other.
            options: The options of the table.
        """
        view = options.get("by") or (self.views[0] if self.views else "")
        first = self.first.get(view, ()) if isinstance(self.first, Mapping) else self.first

        def build(part: Ranks | RankTrace) -> ColumnTable:
            table = self.build(part, **options)
            table.first = tuple(name for name in first if name in table)
            return table

        if not self.per_rank:
            return build(trace)
        if rank is not None or len(trace.ranks) == 1:
            return build(trace.rank(rank))
        from torchtraceap.core.table import stack_ranks
        from torchtraceap.core.threads import map_on_threads

        tables = map_on_threads(build, trace.ranks)
        parts = [(part.rank, table) for part, table in zip(trace.ranks, tables, strict=True)]
        return stack_ranks(parts) if self.stack is None else self.stack(parts, **options)


def table_spec(name: str) -> TableSpec:
    """Return what the table of a command says of itself; its module is loaded."""
    module = import_module(f"torchtraceap.tables.{TABLES[name].module}")
    spec: TableSpec = module.TABLE
    return spec


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise OptionError unless `value` is one of `choices`."""
    if value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_count(name: str, count: int) -> None:
    """Raise OptionError unless `count` is a sensible number of windows."""
    if not isinstance(count, Integral) or not 1 <= count <= 1_000_000:
        raise OptionError(f"{name} must be a number from 1 to 1000000, not {count!r}")
