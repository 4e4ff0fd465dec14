"""`structural`: boosted trees and a one-class score on window features. No torch.

Note [Two heads]: one set of trees says how likely a window holds any fault, another which type it
is, given that it does. The score of a type is the product, so no type exceeds the window's score.

Note [Nothing to judge]: a window of a rank gets 0 where that rank was not profiled, where the
window has no length, and everywhere if the rank has no GPU events: the features say nothing then.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import PAPER_TYPES, Int64Array
from torchtraceap.diagnosis.scoring.base import WindowScores, common_bounds
from torchtraceap.diagnosis.scoring.trees import columns_of, trees_of
from torchtraceap.diagnosis.scoring.weight_files import Weights, read_weights, shipped
from torchtraceap.errors import SchemaError
from torchtraceap.tables.windows.windows import window_features

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["StructuralScorer", "WindowFigures", "load", "probability", "window_scores"]

_FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What the trees say of W windows of one rank."""

    logit: _FloatArray
    """`[W]`: of any fault, not calibrated."""
    strangeness: _FloatArray
    """`[W]` in (0, 1): of the isolation forest; a half is what good windows have on average."""
    types: _FloatArray
    """`[W, T]`: how likely each type is, given that there is a fault; rows sum to 1."""


class StructuralScorer:
    """Learned trees of one file of weights."""

    name = "structural"

    def __init__(self, weights: Weights) -> None:
        """Raises SchemaError for weights that are damaged, or not of this scorer."""
        if weights.says("scorer", str) != self.name:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = weights.says("version", str)
        self.types = weights.texts("types")
        self.columns = weights.texts("columns")
        count = len(self.columns)
        self._any = trees_of(weights, "any", count, 1)
        self._type = trees_of(weights, "type", count, len(self.types))
        self._forest = trees_of(weights, "forest", count, 1)
        calibration = weights.finite("calibration", 2)
        self._slope, self._intercept = float(calibration[0]), float(calibration[1])

    def figures(self, names: list[str], values: Array, zscores: Array) -> WindowFigures:
        """What the trees say of features `[W, F]` and their z-scores."""
        columns = columns_of(self.columns, names, values, zscores)
        votes = self._type.sums(columns)
        likely = np.exp(votes - votes.max(axis=1, keepdims=True))
        return WindowFigures(
            logit=self._any.sums(columns)[:, 0],
            strangeness=np.exp2(-self._forest.sums(columns)[:, 0]),
            types=likely / likely.sum(axis=1, keepdims=True),
        )

    def of_rank(self, rank: RankTrace, bounds_ns: Int64Array) -> WindowFigures:
        """What the trees say of windows of one rank."""
        features = window_features(rank, bounds_ns)
        return self.figures(features.names, features.values_matrix, features.zscores)

    def likelihood(self, figures: WindowFigures) -> _FloatArray:
        """`[W]`: how likely each window holds a fault."""
        return probability(self._slope * figures.logit + self._intercept)

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """The worst rank counts in each window; see Note [Nothing to judge]."""
        bounds_ns = common_bounds(trace, count)
        found = [self.of_rank(rank, bounds_ns) for rank in trace.ranks]
        judged = [judged_windows(rank, bounds_ns) for rank in trace.ranks]
        scores = [self.likelihood(of) * there for of, there in zip(found, judged, strict=True)]
        return window_scores(bounds_ns, scores, [of.types for of in found], self.types)


@cache
def load() -> StructuralScorer:
    return StructuralScorer(read_weights(shipped(StructuralScorer.name)))


def probability(logit: _FloatArray) -> _FloatArray:
    """Of log odds, without overflow."""
    half: _FloatArray = np.tanh(0.5 * logit)
    return 0.5 + 0.5 * half


def judged_windows(rank: RankTrace, bounds_ns: Int64Array) -> npt.NDArray[np.bool_]:
    """bool `[W]`: see Note [Nothing to judge]."""
    if not len(rank.tree.gpu_rows):
        return np.zeros(len(bounds_ns) - 1, dtype=np.bool_)
    return covered_ns(np.asarray([rank.tree.profiled], dtype=np.int64), bounds_ns) > 0


def window_scores(
    bounds_ns: Int64Array,
    scores: list[_FloatArray],
    shares: list[_FloatArray],
    types: tuple[str, ...],
) -> WindowScores:
    """Scores of the worst rank in each window, with the types of that rank.

    Args:
        bounds_ns: int64 `[W + 1]`.
        scores: `[W]` of each rank.
        shares: `[W, T]` of each rank: how likely each type is, given that there is a fault.
        types: Their names.
    """
    by_rank = np.stack(scores)
    worst = by_rank.argmax(axis=0)
    windows = np.arange(len(worst))
    score = by_rank[worst, windows]
    own = np.stack(shares)[worst, windows] * score[:, None]
    known = {name: own[:, place] for place, name in enumerate(types)}
    order = dict.fromkeys((*PAPER_TYPES, *types))
    return WindowScores(
        bounds_ns=tuple(bounds_ns.tolist()),
        scores=score,
        types={name: known.get(name, np.zeros_like(score)) for name in order},
    )
