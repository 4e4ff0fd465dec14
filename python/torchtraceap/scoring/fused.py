"""`fused`: the trees' log odds, the one-class score and the evidence of the rules, in one logistic
model. No torch.

What each knows best: trees, faults like those that were learned from; the isolation forest, windows
unlike good ones; rules, what can be proved from the events, of any network or GPU.

Note [Standing out]: where a run loses time in most of its windows, a finding that covers them all
says little of one of them. So rules have two inputs: the part of the window that findings of any
type cover, and by how much the part that a type covers is above that type's median over the trace,
for the type of which that is most.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchtraceap.analysis.detection import present_findings
from torchtraceap.errors import SchemaError
from torchtraceap.order import median
from torchtraceap.scoring import structural
from torchtraceap.scoring.base import WindowScores, common_bounds
from torchtraceap.scoring.evidence import rank_shares
from torchtraceap.scoring.structural import (
    StructuralScorer,
    WindowFigures,
    judged_windows,
    probability,
    window_scores,
)
from torchtraceap.scoring.weight_files import Weights, read_weights, shipped

if TYPE_CHECKING:
    from torchtraceap.aliases import Array
    from torchtraceap.ranks import Ranks

__all__ = ["INPUTS", "FusedScorer", "inputs", "load"]

INPUTS = ("logit", "strangeness", "evidence", "standing_out")
"""What is stacked, in the order of the weights."""


class FusedScorer:
    """A stack of one file of weights on top of the trees."""

    name = "fused"

    def __init__(self, weights: Weights, trees: StructuralScorer) -> None:
        """Raises SchemaError for weights that are damaged, or not of this scorer."""
        if weights.says("scorer", str) != self.name or weights.texts("inputs") != INPUTS:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = f"{weights.says('version', str)}.{trees.version}"
        self._trees = trees
        self._weights = weights.finite("weights", len(INPUTS) + 1)

    def likelihood(self, figures: WindowFigures, evidence: Array) -> npt.NDArray[np.float64]:
        """`[W]`: how likely each window holds a fault.

        Args:
            figures: Of the trees.
            evidence: float64 `[W, T + 1]`: shares of the window that findings of each type, and
                those of any, cover.
        """
        return probability(inputs(figures, evidence) @ self._weights[:-1] + self._weights[-1])

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """The worst rank counts in each window, as in `structural`."""
        bounds_ns = common_bounds(trace, count)
        found = [self._trees.of_rank(rank, bounds_ns) for rank in trace.ranks]
        present = present_findings(trace)
        scores = []
        for place, (rank, figures) in enumerate(zip(trace.ranks, found, strict=True)):
            evidence = rank_shares(present, place, bounds_ns, self._trees.types)
            likely = self.likelihood(figures, evidence)
            scores.append(likely * judged_windows(rank, bounds_ns))
        return window_scores(bounds_ns, scores, found, self._trees.types)


def inputs(figures: WindowFigures, evidence: Array) -> npt.NDArray[np.float64]:
    """float64 `[W, inputs]`: see `INPUTS`, Note [Standing out] and `FusedScorer.likelihood`."""
    evidence = evidence.astype(np.float64)
    above = evidence - [median(column) for column in evidence.T]
    standing_out = above.max(axis=1).clip(0.0)
    return np.stack([figures.logit, figures.strangeness, evidence[:, -1], standing_out], axis=1)


@cache
def load() -> FusedScorer:
    return FusedScorer(read_weights(shipped(FusedScorer.name)), structural.load())
