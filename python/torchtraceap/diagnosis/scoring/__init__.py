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

__all__ = ["DEFAULT", "DEVICES", "NETWORKS", "SCORERS", "label_of", "load_scorer"]

SCORERS = ("evidence", "structural", "paper", "v2", "fused")
NETWORKS = ("paper", "v2")
"""Those of them that run on any of `DEVICES`; the others run on the CPU alone."""
DEVICES = ("cpu", "cuda")
DEFAULT = "fused"
"""Of `diagnose`: the best on validation data of those that need no torch."""


def load_scorer(name: str | None = None, *, device: str = "cpu") -> Scorer:
    """The scorer of that name.

    Args:
        name: One of `SCORERS`; `DEFAULT` for None.
        device: One of `DEVICES`, where the scorer's network runs.

    Raises:
        OptionError: There is no scorer of that name, or it does not run on the device, or this
            build or machine does not have the device.
        MissingDependencyError: It needs a package that is not installed.
        SchemaError: Its weights are damaged.
    """
    chosen = DEFAULT if name is None else name
    if chosen not in SCORERS:
        near = difflib.get_close_matches(str(chosen), SCORERS, n=1)
        guess = f", did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"there is no scorer {chosen!r}{guess} (scorers: {', '.join(SCORERS)})")
    load = import_module(f"torchtraceap.diagnosis.scoring.{chosen}").load
    if chosen in NETWORKS:
        return cast("Scorer", load(device=device))
    if device != "cpu":
        raise OptionError(
            f"{chosen} has no network and scores on the CPU alone: leave the device out, or take "
            f"{' or '.join(NETWORKS)}"
        )
    return cast("Scorer", load())


def label_of(scorer: Scorer) -> str:
    """Name and version, as documents say them."""
    return f"{scorer.name} {scorer.version}"
