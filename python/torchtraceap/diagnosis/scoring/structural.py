"""`structural`: boosted trees on window features. No torch.

Note [Two heads]: one set of trees gives the probability of any fault in a window, another those of
its types, given that there is one. The score of a type is the product, so no type exceeds the
window's score.

Note [Excluded types]: where the rules say that a type is absent, no window bears it: its score is
0, and the others are as they were. A window may then have a score and no type.

Note [Nothing to judge]: a window of a rank gets 0 where that rank was not profiled, where the
window has no length, and everywhere if the rank has no GPU events: features mean nothing there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import PAPER_TYPES, Int64Array
from torchtraceap.diagnosis.scoring import WindowScores, common_bounds
from torchtraceap.diagnosis.scoring.weight_files import Weights, read_weights, shipped
from torchtraceap.errors import SchemaError
from torchtraceap.tables.detection import excluded_types
from torchtraceap.tables.windows import window_features

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "ZSCORE_SUFFIX",
    "StructuralScorer",
    "WindowFigures",
    "columns_of",
    "judged_windows",
    "load",
    "probability",
    "window_scores",
]

ZSCORE_SUFFIX = " z"
"""Suffix of the name of a feature for its z-score."""
_PARTS: Mapping[str, type] = {
    "feature": np.int32, "threshold": np.float64, "left": np.int32, "right": np.int32,
    "leaf": np.float64, "root": np.int32, "output": np.int32,
}  # fmt: skip

_FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """The outputs of the trees for W windows of one rank."""

    logit: _FloatArray
    """`[W]`: logit of any fault, not calibrated."""
    types: _FloatArray
    """`[W, T]`: probability of each type, given that there is a fault; rows sum to 1."""


class StructuralScorer:
    """Learned trees of one file of weights."""

    name = "structural"

    def __init__(self, weights: Weights) -> None:
        """Raises SchemaError for weights that are damaged, or not of this scorer."""
        if weights.entry("scorer", str) != self.name:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = weights.entry("version", str)
        self.types = weights.texts("types")
        self.columns = weights.texts("columns")
        self._any = self._trees(weights, "any", 1)
        self._type = self._trees(weights, "type", len(self.types))
        calibration = weights.finite("calibration", 2)
        self._slope, self._intercept = float(calibration[0]), float(calibration[1])

    def _trees(self, weights: Weights, prefix: str, outputs: int) -> _core.Trees:
        parts = {part: weights.array(f"{prefix}.{part}", kind) for part, kind in _PARTS.items()}
        try:
            return _core.Trees(**parts, columns=len(self.columns), outputs=outputs)
        except SchemaError as error:
            raise SchemaError(f"{weights.path}: {prefix}: {error}") from None

    def figures(self, names: list[str], values: Array, zscores: Array) -> WindowFigures:
        """Evaluate the trees on features `[W, F]` and their z-scores."""
        columns = columns_of(self.columns, names, values, zscores)
        votes = self._type.sums(columns)
        likely = np.exp(votes - votes.max(axis=1, keepdims=True))
        return WindowFigures(
            logit=self._any.sums(columns)[:, 0],
            types=likely / likely.sum(axis=1, keepdims=True),
        )

    def evaluate_rank(self, rank: RankTrace, bounds_ns: Int64Array) -> WindowFigures:
        """Evaluate the trees on windows of one rank."""
        features = window_features(rank, bounds_ns)
        return self.figures(features.names, features.values_matrix, features.zscores)

    def likelihood(self, figures: WindowFigures) -> _FloatArray:
        """Return the probability of a fault in each window, `[W]`."""
        return probability(self._slope * figures.logit + self._intercept)

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Score windows by the worst rank in each. See Note [Nothing to judge]."""
        bounds_ns = common_bounds(trace, count)
        figures = [self.evaluate_rank(rank, bounds_ns) for rank in trace.ranks]
        scores = [
            self.likelihood(of_rank) * judged_windows(rank, bounds_ns)
            for of_rank, rank in zip(figures, trace.ranks, strict=True)
        ]
        shares = [of_rank.types for of_rank in figures]
        return window_scores(bounds_ns, scores, shares, self.types, excluded_types(trace))


@cache
def load() -> StructuralScorer:
    return StructuralScorer(read_weights(shipped(StructuralScorer.name)))


def probability(logit: _FloatArray) -> _FloatArray:
    """Return the probability of log odds, without overflow."""
    half: _FloatArray = np.tanh(0.5 * logit)
    return 0.5 + 0.5 * half


def judged_windows(rank: RankTrace, bounds_ns: Int64Array) -> npt.NDArray[np.bool_]:
    """Return a mask of windows with anything to judge, bool `[W]`. See Note [Nothing to judge]."""
    if not len(rank.tree.gpu_rows):
        return np.zeros(len(bounds_ns) - 1, dtype=np.bool_)
    return covered_ns(np.asarray([rank.tree.profiled], dtype=np.int64), bounds_ns) > 0


def window_scores(
    bounds_ns: Int64Array,
    scores: list[_FloatArray],
    shares: list[_FloatArray],
    types: Sequence[str],
    excluded: Collection[str],
) -> WindowScores:
    """Return the scores of the worst rank in each window, with the types of that rank.

    Args:
        bounds_ns: int64 `[W + 1]`.
        scores: `[W]` for each rank.
        shares: `[W, T]` for each rank: probability of each type, given that there is a fault.
        types: Names of the types.
        excluded: Types that score 0. See Note [Excluded types].
    """
    by_rank = np.stack(scores)
    worst = by_rank.argmax(axis=0)
    windows = np.arange(len(worst))
    score = by_rank[worst, windows]
    own = np.stack(shares)[worst, windows] * score[:, None]
    known = {name: own[:, place] for place, name in enumerate(types) if name not in excluded}
    order = dict.fromkeys((*PAPER_TYPES, *types))
    return WindowScores(
        bounds_ns=tuple(bounds_ns.tolist()),
        scores=score,
        types={name: known.get(name, np.zeros_like(score)) for name in order},
    )


def columns_of(
    wanted: Sequence[str], names: Sequence[str], values: Array, zscores: Array
) -> npt.NDArray[np.float64]:
    """Choose features, in the precision with which trees were trained.

    Args:
        wanted: Names of features, with the suffix `ZSCORE_SUFFIX` for their z-scores.
        names: Names of all features.
        values: `[windows, features]`.
        zscores: `[windows, features]`.

    Returns:
        float64 `[windows, columns]`.

    Raises:
        SchemaError: There is no such feature: the weights belong to another version.
    """
    places = {
        name: place
        for place, name in enumerate((*names, *(name + ZSCORE_SUFFIX for name in names)))
    }
    missing = [name for name in wanted if name not in places]
    if missing:
        raise SchemaError(f"these weights want features that there are not: {', '.join(missing)}")
    every = np.concatenate([values, zscores], axis=1, dtype=np.float32)
    chosen = every[:, [places[name] for name in wanted]]
    return np.ascontiguousarray(chosen, dtype=np.float64)
