"""What a choice of sharding answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torchtraceap.core.rendering import Shown, add_renderer, imported_later

__all__ = ["SCHEMA", "Candidate", "Part", "RankLoad", "Sharding"]

SCHEMA = "torchtraceap.sharding/1"


@dataclass(frozen=True, slots=True)
class Part(Shown):
    """A table, or some of its columns."""

    table: str
    first_column: int
    columns: int
    is_whole: bool = True
    """All columns of the table."""


@dataclass(frozen=True, slots=True)
class RankLoad(Shown):
    """What one rank holds and does in a step."""

    rank: int
    parts: tuple[Part, ...]
    forward_ns: float
    """Of its lookups."""
    backward_ns: float
    """Of their gradients and the update of the rows."""
    memory_bytes: int
    """Of its tables, the optimiser's state and the rows it sends and receives."""


@dataclass(frozen=True, slots=True)
class Candidate(Shown):
    """One assignment and what the model says of it."""

    sharder: str
    """Who made it: one of the seven, or "search"."""
    step_ns: float
    low_ns: float
    """The model's error is mostly common to all candidates: intervals overlap more than orders
    change."""
    high_ns: float
    lookup_ns: float
    """Of the slowest rank, forward and backward."""
    all_to_all_ns: float
    """All exchanges of a step."""
    ranks: tuple[RankLoad, ...]


@dataclass(frozen=True, slots=True)
class Sharding(Shown):
    """Assignments by predicted time, the fastest first."""

    device: str
    world_size: int
    nodes: int
    batch: int
    """Samples of one rank."""
    dense_ns: float
    """Of the rest of a step, part of every `step_ns`."""
    ranking: tuple[Candidate, ...]
    refused: dict[str, str]
    """Sharders whose assignment can't be, with the reason."""
    notes: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The fastest."""
        return self.ranking[0]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, schema torchtraceap.sharding/1."""
        return {"schema": SCHEMA, "chosen": self.best.sharder, **asdict(self)}


add_renderer(
    f"{__name__}.Sharding",
    "tables",
    imported_later("torchtraceap.lab.sharding.text", "sharding_tables"),
)
