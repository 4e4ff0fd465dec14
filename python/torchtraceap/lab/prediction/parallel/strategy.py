"""Parallelism strategies: `ddp`, `fsdp2`, `tp`, `embedding`, `pp=4,dp=2`, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from torchtraceap.errors import OptionError

__all__ = ["DATA", "EMBEDDING", "PIPELINE", "SHARDED", "TENSOR", "Strategy", "parse_strategy"]

DATA, SHARDED, TENSOR, PIPELINE, EMBEDDING = "dp", "fsdp", "tp", "pp", "embedding"
"""Dimensions: replicas, sharded replicas, parts of every layer, stages, replicas with shared
tables."""
_NAMES = {
    "ddp": DATA,
    "dp": DATA,
    "fsdp2": SHARDED,
    "fsdp": SHARDED,
    "tp": TENSOR,
    "pp": PIPELINE,
    "embedding": EMBEDDING,
}
_MICROBATCHES = "microbatches"
_MOST_RANKS = 65_536
"""Limit on ranks, since a larger grid has no values in a capture."""
_SPLIT_TOO = _SEQUENCE, _WORDS = "sequence", "vocabulary"
_PART = re.compile(r"([a-z]+[0-9]?)(?:=([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A grid of ranks with named dimensions, row-major as in torch's DeviceMesh."""

    dimensions: tuple[tuple[str, int], ...] = ()
    """Names and sizes, outermost first; empty for a single process."""
    microbatches: int | None = None
    """Number of microbatches of a pipeline; None: as many as fit."""
    by_sequence: bool = False
    """True for sequence parallelism."""
    by_words: bool = False
    """True if the vocabulary is split."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(size for _, size in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(size for _, size in self.dimensions)

    def size(self, dimension: str) -> int:
        """Return the size of a dimension; 1 if it doesn't exist."""
        return dict(self.dimensions).get(dimension, 1)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank in the order of the dimensions."""
        found: list[int] = []
        for size in reversed(self.shape):
            rank, coordinate = divmod(rank, size)
            found.append(coordinate)
        return tuple(reversed(found))

    def rank_at(self, coordinates: tuple[int, ...]) -> int:
        """Return the rank with these coordinates."""
        rank = 0
        for size, coordinate in zip(self.shape, coordinates, strict=True):
            rank = rank * size + coordinate
        return rank

    def coordinate(self, rank: int, dimension: str) -> int:
        """Return the coordinate of a rank along a dimension; 0 if it doesn't exist."""
        names = [name for name, _ in self.dimensions]
        return self.coordinates(rank)[names.index(dimension)] if dimension in names else 0

    def seen_from(self, rank: int, others: tuple[int, ...], example: int) -> tuple[int, ...]:
        """Translate ranks that `example` communicates with to those of `rank`.

        They have the same coordinates along the dimensions in which they differ from the example.
        """
        here, own = self.coordinates(example), self.coordinates(rank)
        there = [self.coordinates(other) for other in others]
        differs = [any(each[axis] != here[axis] for each in there) for axis in range(len(own))]
        return tuple(
            self.rank_at(
                tuple(each[axis] if differs[axis] else own[axis] for axis in range(len(own)))
            )
            for each in there
        )


def parse_strategy(text: str | None, world_size: int) -> Strategy:
    """Parse a strategy.

    Args:
        text: Dimensions with their sizes, outermost first: `pp=4,dp=2`. One of them may go without
            a size and gets what is left: `ddp`, `fsdp2,tp=4`. `microbatches=8` says into how many
            parts a pipeline splits a batch, else up to 4 for each stage; `sequence` and
            `vocabulary` say what tensor parallelism splits as well. None for one rank.
        world_size: Number of ranks.

    Raises:
        OptionError: The text is no strategy, or not one for so many ranks.
    """
    if not 1 <= world_size <= _MOST_RANKS:
        raise OptionError(f"a job has 1 to {_MOST_RANKS:,} ranks, not {world_size:,}")
    if text is None or not text.strip():
        if world_size > 1:
            raise OptionError(
                f"{world_size} ranks need a strategy, such as ddp, fsdp2, tp, embedding or pp=2,dp"
            )
        return Strategy()
    parts = text.lower().replace(" ", "").split(",")
    said = {part for part in parts if part in _SPLIT_TOO}
    sizes = _sizes(text, [part for part in parts if part not in said])
    microbatches = sizes.pop(_MICROBATCHES, None)
    open_ones = [name for name, size in sizes.items() if size is None]
    if len(open_ones) > 1:
        raise OptionError(f"strategy {text!r}: only one of {', '.join(open_ones)} may lack a size")
    given = prod(size for size in sizes.values() if size is not None)
    left, rest = divmod(world_size, given)
    if rest or (left != 1 and not open_ones):
        ranks = f"a multiple of {given}" if open_ones else f"{given}"
        raise OptionError(f"strategy {text!r} is for {ranks} ranks, not {world_size}")
    if not sizes:
        raise OptionError(f"strategy {text!r} names no dimension")
    dimensions = tuple((name, left if size is None else size) for name, size in sizes.items())
    strategy = Strategy(dimensions, microbatches, _SEQUENCE in said, _WORDS in said)
    for name in said:
        if TENSOR not in sizes:
            raise OptionError(
                f"strategy {text!r}: {name} is of tensor parallelism, and there is no tp"
            )
    if strategy.by_sequence and (PIPELINE in sizes or SHARDED in sizes):
        raise OptionError(f"strategy {text!r}: sequence goes with tp and dp, not with pp or fsdp2")
    if microbatches is not None and PIPELINE not in sizes:
        raise OptionError(f"strategy {text!r}: microbatches are of a pipeline, and there is no pp")
    if strategy.size(PIPELINE) > 1 and strategy.size(SHARDED) > 1:
        raise OptionError(f"strategy {text!r}: a pipeline has copies (dp), not shards (fsdp2)")
    if strategy.size(EMBEDDING) not in (1, world_size):
        raise OptionError(
            f"strategy {text!r}: embedding shares tables among all ranks, which are copies of the "
            "rest; it goes with no other"
        )
    return strategy


def _sizes(text: str, parts: list[str]) -> dict[str, int | None]:
    """Return dimensions and microbatches with their sizes, None where none is given."""
    sizes: dict[str, int | None] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        name = match and (match[1] if match[1] == _MICROBATCHES else _NAMES.get(match[1]))
        if not match or not name:
            known = ", ".join((*_NAMES, *_SPLIT_TOO))
            raise OptionError(f"strategy {text!r}: {part!r} is none of {known} and {_MICROBATCHES}")
        if name in sizes:
            raise OptionError(f"strategy {text!r} has {part.partition('=')[0]} twice")
        size = int(match[2]) if match[2] else None
        if size == 0 or (size is None and name == _MICROBATCHES):
            raise OptionError(f"strategy {text!r}: {name} is a number from 1")
        sizes[name] = size
    return sizes
