"""Settings of training, from TOML files and defaults, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

from torchtraceap.errors import OptionError

__all__ = ["LoopSettings", "RunOptions", "Trained", "take"]

S = TypeVar("S")


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop: how long and how fast it learns; `[loop]` in a file."""

    epochs: int = 12
    learning_rate: float = 2e-3
    """At its highest: it rises over the first `warmup` of all steps and falls by a cosine."""
    weight_decay: float = 0.05
    warmup: float = 0.1
    clip: float = 1.0
    """Longest gradient."""
    patience: int = 6
    """Epochs without a better validation figure, after which training ends."""
    checkpoint_s: float = 60.0
    """Longest time between checkpoints: what a break costs."""

    def __post_init__(self) -> None:
        positive = (self.epochs, self.learning_rate, self.clip, self.patience, self.checkpoint_s)
        if min(positive) <= 0 or self.weight_decay < 0 or not 0 <= self.warmup < 1:
            raise OptionError(f"[loop]: these settings make no sense: {self}")


class RunOptions(TypedDict):
    """Options of one call of a trainer; see `training.train`."""

    seed: int
    resume: bool
    minutes: float | None


@dataclass(frozen=True)
class Trained:
    """The result of a call of `train`."""

    weights: Path | None
    """The best until now; None where the time did not suffice for a single epoch, and in all
    processes of a group but the first, which writes them."""
    figures: dict[str, float]
    """Figures of the validation split."""
    finished: bool
    """False: time was up, and it can be resumed."""


def take(kind: type[S], tables: Mapping[str, Any], name: str) -> S:
    """A dataclass of settings from a table of a file; what the table lacks has its default.

    Raises:
        OptionError: An unknown setting, or a value of another type.
    """
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise OptionError(f"{name}: a table [{name}] is needed")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise OptionError(f"[{name}]: no setting {key!r}; there are {', '.join(sorted(known))}")
        hint = hints[key]
        if isinstance(value, bool) or hint is bool:
            fits = isinstance(value, bool) and hint is bool
        elif hint is float:
            fits = isinstance(value, (int, float))
        elif hint in (int, str):
            fits = isinstance(value, hint)
        else:
            fits = isinstance(value, list) and all(type(each) is type(value[0]) for each in value)
        if not fits:
            raise OptionError(f"[{name}]: {key} = {value!r} is no {hint}")
        if isinstance(value, list):
            found[key] = tuple(value)
        else:
            found[key] = float(value) if hint is float else value
    return kind(**found)
