"""Pairs of GPU traces that differ by something known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Planted", "planted"]


@dataclass(frozen=True)
class Planted:
    program: str
    kind: str
    half: str
    before: Path
    after: Path
    right: str


def planted() -> Iterator[Planted]:
    yield from ()
