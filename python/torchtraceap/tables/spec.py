"""What a table says of itself; the command line, SQL, the page and benchmarks read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from torchtraceap.core.records import dataclass
from torchtraceap.core.table import ColumnTable, stack_ranks
from torchtraceap.core.threads import map_on_threads
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["Option", "PageView", "TableSpec"]

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a table beside `by` and `rank`."""

    keyword: str
    """Of the function that builds the table."""
    flag: str
    help: str
    kind: Literal["text", "integer", "count", "microseconds", "step", "flag", "no_flag"] = "text"
    """How the command line reads it; a `no_flag` makes the keyword False."""
    default: Any = None
    metavar: str | None = None
    choices: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PageView:
    """A table as the page and the benchmarks want it."""

    section: str
    """Key of a section of the page."""
    label: str
    options: Options = field(default_factory=dict)
    hint: str = ""
    """What the columns mean, in a sentence."""
    find: str = ""
    """The column whose text a click looks for in the timeline."""
    meter: str = ""
    """The share that is drawn as well as written."""


def _stack(parts: Sequence[tuple[int | None, ColumnTable]], **_: object) -> ColumnTable:
    return stack_ranks(parts)


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
    stack: Callable[..., ColumnTable] = _stack
    """Joins the tables of ranks, given as (rank, table), with the options of the call."""
    first: Sequence[str] | Mapping[str, Sequence[str]] = ()
    """Columns that a narrow terminal keeps (`ColumnTable.first`), or such by view; those that a
    view has not are passed over."""
    json_options: Options = field(default_factory=dict)
    """What the JSON of the command line has beyond its other forms."""
    sql: Mapping[str, Options] = field(default_factory=dict)
    """Names in SQL, with the options of each."""
    page: Sequence[PageView] = ()

    def make(self, trace: Ranks, /, *, rank: int | None = None, **options: Any) -> ColumnTable:
        """The table of a trace; those of single ranks under each other unless one is named."""
        if not self.per_rank:
            return self._preferring(self.build(trace, **options), options)
        if rank is not None or len(trace.ranks) == 1:
            return self._preferring(self.build(trace.rank(rank), **options), options)

        def build(part: RankTrace) -> ColumnTable:
            return self._preferring(self.build(part, **options), options)

        tables = map_on_threads(build, trace.ranks)
        parts = [(part.rank, table) for part, table in zip(trace.ranks, tables, strict=True)]
        return self.stack(parts, **options)

    def _preferring(self, table: ColumnTable, options: Options) -> ColumnTable:
        view = options.get("by") or (self.views[0] if self.views else "")
        first = self.first.get(view, ()) if isinstance(self.first, Mapping) else self.first
        table.first = tuple(name for name in first if name in table)
        return table
