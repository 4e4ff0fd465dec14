"""What a trainer gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Trained"]


@dataclass(frozen=True)
class Trained:
    """The result of a call of `train`."""

    weights: Path | None
    """The best until now; None where the time did not suffice for a single epoch, and in all
    processes of a group but the first, which writes them."""
    figures: dict[str, float]
    """Of the validation split."""
    finished: bool
    """False: time was up, and it can be resumed."""
