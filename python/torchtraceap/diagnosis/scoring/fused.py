"""`fused`: the trees' log odds, the one-class score and the evidence of the rules, in one logistic
model. No torch.

Each has its strength: trees know faults like those in the training data; the isolation forest,
windows unlike good ones; rules, faults that events prove, of any network or GPU.

Note [Standing out]: where a run loses time in most of its windows, a finding that covers them all
says little of one of them. So rules have two inputs: the part of the window that findings of any
type cover, and the excess of the part that a type covers over that type's median over the trace,
for the type with the largest excess.

Note [Which type]: of the types, too, the trees know those in the training data on machines like
those there, and rules know those that can be proved. A type's share of a window grows with
the trees' log chance of it, and with the same two inputs of the rules, of that type alone.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchtraceap.core.sums import median
from torchtraceap.diagnosis.scoring import WindowScores, common_bounds, structural
from torchtraceap.diagnosis.scoring.evidence import rank_shares
from torchtraceap.diagnosis.scoring.structural import (
    StructuralScorer,
    WindowFigures,
    judged_windows,
    probability,
    window_scores,
)
from torchtraceap.diagnosis.scoring.weight_files import Weights, read_weights, shipped
from torchtraceap.errors import SchemaError
from torchtraceap.tables.detection import present_findings

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.trace.ranks import Ranks

__all__ = [
    "FUSED_INPUTS",
    "TYPE_INPUTS",
    "FusedScorer",
    "fused_inputs",
    "load",
    "type_inputs",
    "type_shares",
]

FUSED_INPUTS = ("logit", "strangeness", "evidence", "standing_out")
"""The stacked inputs, in the order of the weights."""
TYPE_INPUTS = ("log chance", "evidence", "standing_out")
"""The stacked inputs of each type. See Note [Which type]."""
TREES_ALONE = (1.0, 0.0, 0.0)
"""Their weights where nothing was learned from rules, as before version 3."""
_LEAST_CHANCE = 1e-3
"""Least probability of a type by the trees: what they rule out is never certain."""


class FusedScorer:
    """A stack of one file of weights on top of the trees."""

    name = "fused"

    def __init__(self, weights: Weights, trees: StructuralScorer) -> None:
        """Raises SchemaError for weights that are damaged, or not of this scorer."""
        if weights.entry("scorer", str) != self.name or weights.texts("inputs") != FUSED_INPUTS:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = f"{weights.entry('version', str)}.{trees.version}"
        self._trees = trees
        self._weights = weights.finite("weights", len(FUSED_INPUTS) + 1)
        self._type_weights = np.array(TREES_ALONE)
        if "type_weights" in weights.arrays:
            self._type_weights = weights.finite("type_weights", len(TYPE_INPUTS))

    def likelihood(self, figures: WindowFigures, evidence: Array) -> npt.NDArray[np.float64]:
        """Return the probability of a fault in each window, `[W]`.

        Args:
            figures: Outputs of the trees.
            evidence: float64 `[W, T + 1]`: shares of the window that findings of each type, and
                those of any, cover.
        """
        return probability(fused_inputs(figures, evidence) @ self._weights[:-1] + self._weights[-1])

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Score windows by the worst rank in each, as `structural` does."""
        bounds_ns = common_bounds(trace, count)
        present = present_findings(trace)
        scores, types = [], []
        for place, rank in enumerate(trace.ranks):
            figures = self._trees.evaluate_rank(rank, bounds_ns)
            evidence = rank_shares(present, place, bounds_ns, self._trees.types)
            likely = self.likelihood(figures, evidence)
            scores.append(likely * judged_windows(rank, bounds_ns))
            types.append(type_shares(type_inputs(figures.types, evidence), self._type_weights))
        return window_scores(bounds_ns, scores, types, self._trees.types)


def fused_inputs(figures: WindowFigures, evidence: Array) -> npt.NDArray[np.float64]:
    """Return `FUSED_INPUTS`, float64 `[W, inputs]`. See Note [Standing out]."""
    standing_out = _excess(evidence).max(axis=1).clip(0.0)
    share = evidence[:, -1].astype(np.float64)
    return np.stack([figures.logit, figures.strangeness, share, standing_out], axis=1)


def type_inputs(types: Array, evidence: Array) -> npt.NDArray[np.float64]:
    """Return `TYPE_INPUTS`, float64 `[W, T, inputs]`.

    Args:
        types: `[W, T]`, from `WindowFigures`.
        evidence: See `FusedScorer.likelihood`.
    """
    own = evidence[:, :-1].astype(np.float64)
    standing_out = _excess(evidence)[:, :-1].clip(0.0)
    return np.stack([np.log(types + _LEAST_CHANCE), own, standing_out], axis=2)


def type_shares(inputs: Array, weights: Array) -> npt.NDArray[np.float64]:
    """Return the probability of each type, given a fault, float64 `[W, T]`; rows sum to 1."""
    votes = inputs @ weights
    likely = np.exp(votes - votes.max(axis=1, keepdims=True))
    shares: npt.NDArray[np.float64] = likely / likely.sum(axis=1, keepdims=True)
    return shares


def _excess(evidence: Array) -> npt.NDArray[np.float64]:
    """Return the excess of each share over its median in the trace, float64 `[W, T + 1]`."""
    shares = evidence.astype(np.float64)
    above: npt.NDArray[np.float64] = shares - [median(column) for column in shares.T]
    return above


@cache
def load() -> FusedScorer:
    return FusedScorer(read_weights(shipped(FusedScorer.name)), structural.load())
