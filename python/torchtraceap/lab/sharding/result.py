"""The result of a choice of sharding, and its tables for reading."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torchtraceap.core import (
    Renderable,
    add_renderer,
    format_bytes,
    format_count,
    format_ns,
    one_line,
)

if TYPE_CHECKING:
    from torchtraceap.report import TextTable

__all__ = ["SCHEMA", "Candidate", "Part", "RankLoad", "Sharding", "sharding_tables"]

SCHEMA = "torchtraceap.sharding/1"


@dataclass(frozen=True, slots=True)
class Part(Renderable):
    """A table, or some of its columns."""

    table: str
    first_column: int
    columns: int
    is_whole: bool = True
    """True if it has all columns of the table."""

    @property
    def label(self) -> str:
        """The table and its columns in a few words."""
        columns = f"[{self.first_column}:{self.first_column + self.columns}]"
        return one_line(self.table, 80) + ("" if self.is_whole else columns)


@dataclass(frozen=True, slots=True)
class RankLoad(Renderable):
    """The tables and the work of one rank in a step."""

    rank: int
    parts: tuple[Part, ...]
    forward_ns: float
    """Time of its lookups."""
    backward_ns: float
    """Time of their gradients and the update of rows."""
    memory_bytes: int
    """Memory of its tables, optimizer state and exchanged rows."""


@dataclass(frozen=True, slots=True)
class Candidate(Renderable):
    """An assignment and its predicted costs."""

    sharder: str
    """Sharder that made it, or "search"."""
    step_ns: float
    low_ns: float
    """Lower bound; the model's error is mostly common to all candidates, so that overlapping
    intervals rarely change the order."""
    high_ns: float
    lookup_ns: float
    """Lookups of the slowest rank, forward and backward."""
    all_to_all_ns: float
    """All exchanges of a step."""
    ranks: tuple[RankLoad, ...]


@dataclass(frozen=True, slots=True)
class Sharding(Renderable):
    """Assignments by predicted step time, fastest first."""

    device: str
    world_size: int
    nodes: int
    batch: int
    """Samples of one rank."""
    dense_ns: float
    """Time of the rest of a step, included in every `step_ns`."""
    ranking: tuple[Candidate, ...]
    refused: dict[str, str]
    """Reasons why assignments of sharders don't fit."""
    notes: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The fastest assignment."""
        return self.ranking[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the document of schema torchtraceap.sharding/1."""
        return {"schema": SCHEMA, "chosen": self.best.sharder, **asdict(self)}


def sharding_tables(found: Sharding) -> list[TextTable]:
    """Return the ranking and the contents of each rank in the best assignment."""
    from torchtraceap.report import MAX_ROWS, MAX_TEXT, TextTable

    head = ("sharder", "step", "10 %", "90 %", "slowest lookups", "exchanges")
    rows = [
        (
            one.sharder,
            *(
                format_ns(round(ns))
                for ns in (one.step_ns, one.low_ns, one.high_ns, one.lookup_ns, one.all_to_all_ns)
            ),
        )
        for one in found.ranking
    ]
    told = [*found.notes, *(f"{name}: {reason}" for name, reason in found.refused.items())]
    ranks = [
        (
            str(load.rank),
            format_count(len(load.parts)),
            format_ns(round(load.forward_ns + load.backward_ns)),
            format_bytes(load.memory_bytes),
            one_line(", ".join(part.label for part in load.parts), MAX_TEXT),
        )
        for load in found.best.ranks[:MAX_ROWS]
    ]
    left = len(found.best.ranks) - len(ranks)
    title = f"{found.world_size} x {found.device}, {format_count(found.batch)} samples each"
    return [
        TextTable(title, head, rows, "\n".join(one_line(text, MAX_TEXT) for text in told)),
        TextTable(
            f"Chosen: {found.best.sharder}",
            ("rank", "tables", "lookups", "memory", "which"),
            ranks,
            f"{format_count(left)} more" if left > 0 else "",
        ),
    ]


add_renderer(f"{__name__}.Sharding", "tables", sharding_tables)
