"""What a scorer is, and the windows that all of them score.

Note [Windows of several ranks]: the windows are those of the trace, from the first to the last
profiled nanosecond of any rank, so that a score means the same time on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from torchtraceap.core.results import Int64Array, Windows

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["BatchScorer", "Scorer", "WindowScores", "common_bounds"]

WindowScores = Windows
"""What a scorer gives; every number is finite and in [0, 1]."""


class Scorer(Protocol):
    """Says of each window of a trace how likely it holds lost time, and of which type."""

    @property
    def name(self) -> str:
        """As `--scorer` takes it."""

    @property
    def version(self) -> str:
        """Another one gives other scores."""

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Scores of `count` windows of equal time over all ranks together.

        A trace that has nothing to judge, such as one without GPU events, gets scores of 0.
        """


@runtime_checkable
class BatchScorer(Scorer, Protocol):
    """A scorer that reads several traces at once, which is faster than one after the other."""

    @property
    def rows_at_once(self) -> int:
        """How many rows of inputs, by their `len`, are worth a batch."""

    def inputs(self, trace: Ranks, count: int) -> Sized:
        """What the scorer reads of `count` windows; the trace can be let go then."""

    def score_inputs(self, traces: Sequence[Any]) -> list[WindowScores]:
        """The scores of each trace, up to rounding the same as `score` gives for it alone."""


def common_bounds(trace: Ranks, count: int) -> Int64Array:
    """int64 `[count + 1]`: see Note [Windows of several ranks]."""
    profiled = [rank.tree.profiled for rank in trace.ranks]
    start_ns, end_ns = min(start for start, _ in profiled), max(end for _, end in profiled)
    return np.array(
        [start_ns + (end_ns - start_ns) * i // count for i in range(count + 1)], dtype=np.int64
    )
