"""`fused`: what trees and rules say of a window beyond its trace, in one logistic model. No torch.

Each has its strength: trees know faults like those in the training data; rules, faults that events
prove, of any network or GPU.

Note [Look here first]: where a run loses time in most of its windows, trees that say so of all and
a finding that covers them all say little of one of them. So what counts is by how much the trees'
log odds stand above their median in the trace, and how many bits findings tell of a window beyond
what they tell of all (`tables.detection.surprisal`), summed over types.

Note [Which type]: a window in which findings lie is of their types, by the bits that each tells of
it; where they cover all windows alike, by their shares. A finding whose cost others explain, such
as a busy copy engine where pageable readbacks are named, counts by the part that is its own. A
window in which no finding lies is of the types that the trees know, but for those that the rules
exclude.
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
    judged_windows,
    probability,
    window_scores,
)
from torchtraceap.diagnosis.scoring.weight_files import Weights, read_weights, shipped
from torchtraceap.errors import SchemaError
from torchtraceap.tables.detection import excluded_types, present_findings, surprisal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtraceap.core.aliases import Array
    from torchtraceap.tables.detection import PerRank
    from torchtraceap.trace.ranks import Ranks

__all__ = ["FUSED_INPUTS", "FusedScorer", "fused_inputs", "load"]

FUSED_INPUTS = ("standing_out", "surprisal")
"""The stacked inputs, in the order of the weights: by the trees, and by the rules."""
_EVEN = 1e-3
"""Bits that count for a share of 1 where findings cover all windows alike."""
_LEAST_OWN = 1e-3
"""The part of a finding that counts where others explain all of its cost."""


class FusedScorer:
    """A stack of one file of weights on top of the trees."""

    name = "fused"

    def __init__(self, weights: Weights, trees: StructuralScorer) -> None:
        """Raises SchemaError for weights that are damaged, or not of this scorer."""
        if weights.entry("scorer", str) != self.name or weights.texts("inputs") != FUSED_INPUTS:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = f"{weights.entry('version', str)}.{trees.version}"
        self._trees = trees
        self.reading = str(weights.about.get("reading", ""))
        """A sentence on how to read a score; empty for weights that were not measured."""
        self._weights = weights.finite("weights", len(FUSED_INPUTS) + 1)

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Score windows by the worst rank in each, as `structural` does."""
        bounds_ns = common_bounds(trace, count)
        present = present_findings(trace)
        names = tuple(dict.fromkeys((*self._trees.types, *present)))
        scores, types = [], []
        for place, rank in enumerate(trace.ranks):
            figures = self._trees.evaluate_rank(rank, bounds_ns)
            shares = rank_shares(present, place, bounds_ns, names)[:, :-1]
            bits = surprisal(shares)
            inputs = fused_inputs(figures.logit, bits.sum(axis=1))
            likely = probability(inputs @ self._weights[:-1] + self._weights[-1])
            scores.append(likely * judged_windows(rank, bounds_ns))
            votes = (bits + _EVEN * shares) * _own_parts(present, place, names)
            types.append(_type_shares(figures.types, votes))
        return window_scores(bounds_ns, scores, types, names, excluded_types(trace))


def fused_inputs(logit: Array, bits: Array) -> npt.NDArray[np.float64]:
    """Return `FUSED_INPUTS`, float64 `[W, inputs]`. See Note [Look here first].

    Args:
        logit: `[W]`, of the trees.
        bits: `[W]`: surprisal of all types.
    """
    standing_out = (logit - median(logit)).clip(0.0)
    return np.stack([standing_out, bits], axis=1, dtype=np.float64)


def _own_parts(
    present: Mapping[str, PerRank], place: int, names: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Return the part of each type's cost that no other finding claims, float64 `[T]`."""
    parts = np.full(len(names), _LEAST_OWN)
    for column, name in enumerate(names):
        finding = present[name][place][1] if name in present else None
        if finding and finding.cost_ns:
            parts[column] += finding.unclaimed_cost_ns / finding.cost_ns
    return parts


def _type_shares(trees: Array, votes: Array) -> npt.NDArray[np.float64]:
    """Return the probability of each type, given a fault, float64 `[W, T]`.

    See Note [Which type].

    Args:
        trees: `[W, K]`: the probability of the first K types by the trees.
        votes: `[W, T]`, of the findings.
    """
    total = votes.sum(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = np.zeros(votes.shape)
    np.divide(votes, total, out=found, where=total > 0)
    found[:, : trees.shape[1]] += np.where(total > 0, 0.0, trees)
    return found


@cache
def load() -> FusedScorer:
    return FusedScorer(read_weights(shipped(FusedScorer.name)), structural.load())
