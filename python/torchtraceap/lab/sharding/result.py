"""The result of a choice of sharding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torchtraceap.core.rendering import Renderable, add_renderer, lazy_renderer

__all__ = ["SCHEMA", "Candidate", "Part", "RankLoad", "Sharding"]

SCHEMA = "torchtraceap.sharding/1"


@dataclass(frozen=True, slots=True)
class Part(Renderable):
    """A table, or some of its columns."""

    table: str
    first_column: int
    columns: int
    is_whole: bool = True
    """True if it has all columns of the table."""


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


add_renderer(
    f"{__name__}.Sharding",
    "tables",
    lazy_renderer("torchtraceap.lab.sharding.text", "sharding_tables"),
)
