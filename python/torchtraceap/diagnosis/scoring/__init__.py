"""Scorers: the probability of lost time in each window of a trace. docs/scorers.md compares them.

Each module of `SCORERS` has a `load()`, and is imported on demand: torch is needed by the networks
alone.

Note [Windows of several ranks]: the windows are those of the trace, from the first to the last
profiled nanosecond of any rank, so that a score means the same time on every rank.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence, Sized
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from torchtraceap.core.results import Int64Array, Windows
from torchtraceap.errors import OptionError

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = [
    "DEFAULT",
    "DEVICES",
    "NETWORKS",
    "SCORERS",
    "BatchScorer",
    "Scorer",
    "WindowScores",
    "common_bounds",
    "label_of",
    "load_scorer",
]

SCORERS = ("evidence", "structural", "paper", "v2", "fused")
NETWORKS = ("paper", "v2")
"""Scorers that run on any of `DEVICES`; the others run on the CPU alone."""
DEVICES = ("cpu", "cuda")
DEFAULT = "fused"
"""The scorer of `diagnose`: the best on validation data of those that need no torch."""
WindowScores = Windows
"""The result of a scorer; every number is finite and in [0, 1]."""


class Scorer(Protocol):
    """A judge of windows: the probability of lost time in each, and of its types."""

    @property
    def name(self) -> str:
        """The name for `--scorer`."""

    @property
    def version(self) -> str:
        """The version; another one gives other scores."""

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Score `count` windows of equal time over all ranks together.

        A trace that has nothing to judge, such as one without GPU events, gets scores of 0.
        """


@runtime_checkable
class BatchScorer(Scorer, Protocol):
    """A scorer that reads several traces at once, which is faster than one after the other."""

    @property
    def rows_at_once(self) -> int:
        """The number of rows of inputs, by their `len`, that make a batch."""

    def inputs(self, trace: Ranks, count: int) -> Sized:
        """Read the inputs of `count` windows; the trace can be released then."""

    def score_inputs(self, traces: Sequence[Any]) -> list[WindowScores]:
        """Score each trace, up to rounding the same as `score` alone."""


def common_bounds(trace: Ranks, count: int) -> Int64Array:
    """Return the bounds of windows, int64 `[count + 1]`. See Note [Windows of several ranks]."""
    profiled = [rank.tree.profiled for rank in trace.ranks]
    start_ns, end_ns = min(start for start, _ in profiled), max(end for _, end in profiled)
    return np.array(
        [start_ns + (end_ns - start_ns) * i // count for i in range(count + 1)], dtype=np.int64
    )


def load_scorer(name: str | None = None, *, device: str = "cpu") -> Scorer:
    """Load the scorer of that name.

    Args:
        name: One of `SCORERS`; `DEFAULT` for None.
        device: One of `DEVICES`, on which the scorer's network runs.

    Raises:
        OptionError: There is no scorer of that name, or it does not run on the device, or this
            build or machine does not have the device.
        MissingDependencyError: The scorer needs a package that is not installed.
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
    """Return name and version, as in documents."""
    return f"{scorer.name} {scorer.version}"
