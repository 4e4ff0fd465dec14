"""Scorers: how likely each window of a trace holds lost time. docs/scorers.md compares them.

Each module of `SCORERS` has a `load()`, and is imported when its scorer is asked for: torch is
needed by the networks alone.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, cast

from torchtraceap.errors import OptionError

if TYPE_CHECKING:
    from torchtraceap.diagnosis.scoring.base import Scorer

__all__ = ["DEFAULT", "SCORERS", "label_of", "load_scorer"]

SCORERS = ("evidence", "structural", "paper", "v2", "fused")
DEFAULT = "fused"
"""Of `diagnose`: the best on validation data of those that need no torch."""


def load_scorer(name: str | None = None) -> Scorer:
    """The scorer of that name; `DEFAULT` for None.

    Raises:
        OptionError: There is none of that name.
        MissingDependencyError: It needs a package that is not installed.
        SchemaError: Its weights are damaged.
    """
    chosen = DEFAULT if name is None else name
    if chosen not in SCORERS:
        near = difflib.get_close_matches(str(chosen), SCORERS, n=1)
        guess = f", did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"there is no scorer {chosen!r}{guess} (scorers: {', '.join(SCORERS)})")
    return cast("Scorer", import_module(f"torchtraceap.diagnosis.scoring.{chosen}").load())


def label_of(scorer: Scorer) -> str:
    """Name and version, as documents say them."""
    return f"{scorer.name} {scorer.version}"
