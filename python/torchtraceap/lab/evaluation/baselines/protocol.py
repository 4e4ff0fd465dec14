"""What every method is: fitted on traces, it gives the windows of another one scores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.samples import Sample

__all__ = ["Method", "Windows", "features_of", "one_thread"]


class Method(Protocol):
    """A detector of windows."""

    name: str
    labels: str
    """What it is fitted with: "none", "trace" (has it a fault) or "window" (where)."""
    is_random: bool
    """Whether its seed changes what it says."""
    is_probability: bool
    """Whether its scores are to be read as chances."""

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """Learns from the traces of the training split."""

    def score(self, sample: Sample) -> Array:
        """float64 `[W]`: higher is worse."""

    def types(self, sample: Sample) -> Array | None:
        """float64 `[W, T]`: how much each type is the one; None where it tells no types."""


def features_of(sample: Sample) -> Array:
    """float32 `[W, 2 F]`: the window features, and the same against the trace's other windows."""
    found: Array = np.concatenate([sample.values, sample.zscores], axis=1)
    return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)


class Windows:
    """All windows of several traces, one below the other."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.x = np.concatenate([features_of(sample) for sample in samples])
        lengths = [len(sample.positive) for sample in samples]
        self.trace = np.repeat(np.arange(len(samples)), lengths)
        self.bad = np.repeat([sample.label for sample in samples], lengths)
        self.positive = np.concatenate([sample.positive for sample in samples])
        self.ignore = np.concatenate([sample.ignore for sample in samples])
        self.cost = np.concatenate([sample.cost for sample in samples])


def one_thread() -> AbstractContextManager[Any]:
    """Within it scikit-learn and torch compute on one thread: on a busy machine their threads wait
    for each other for longer than they work, and what they sum does not depend on their number."""
    from threadpoolctl import threadpool_limits

    return cast("AbstractContextManager[Any]", threadpool_limits(1))
