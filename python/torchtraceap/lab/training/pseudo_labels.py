"""Labels of windows where only traces are labelled, or nothing is.

A trace with a fault and its twin without it run the same program, so windows of the one that are
unlike every window of the other are where the time is lost; and windows with a fault are rare, so
an isolation forest finds them odd. A network that was trained on the windows that are surest by
both is asked about the rest (self-training).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.errors import MissingDependencyError

__all__ = ["forest_scores", "pseudo_targets", "ranks", "self_trained", "twin_distances"]

_NEIGHBOURS = 3
_WINDOWS_OF_A_TREE = 1024


def twin_distances(values: Sequence[Array], twins: Mapping[int, int]) -> dict[int, Array]:
    """How much further each window is from the nearest ones of the trace's twin than the twin's own
    windows are from each other (nine of ten of them).

    Features hold the phase and the place in the step, so the nearest windows are those of the same
    part of a step. Each is measured in standard deviations over the windows of all twins.

    Args:
        values: Of each trace, float `[W, F]`, squashed.
        twins: The place of a trace to that of its twin.

    Returns:
        Of each trace that has a twin, float64 `[W]`.
    """
    if not twins:
        return {}
    good = np.concatenate([values[twin] for twin in sorted(set(twins.values()))]).astype(np.float64)
    mean, scale = good.mean(0), np.maximum(good.std(0), 1e-3)
    normed = [np.clip((each - mean) / scale, -5, 5) for each in values]
    usual = {twin: _nearest_others(normed[twin]) for twin in set(twins.values())}
    return {
        trace: _nearest(normed[trace], normed[twin]) - usual[twin] for trace, twin in twins.items()
    }


def _nearest_others(windows: Array) -> float:
    """Of nine of ten windows the distance to the nearest others is no longer."""
    own = [
        _nearest(windows[i : i + 1], np.delete(windows, i, axis=0))[0] for i in range(len(windows))
    ]
    return float(np.quantile(own, 0.9))


def _nearest(windows: Array, others: Array) -> Array:
    """Mean distance to the nearest three of `others`."""
    squares = (windows**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * windows @ others.T
    count = min(_NEIGHBOURS, len(others))
    nearest = np.partition(np.sqrt(np.maximum(squares, 0)), count - 1, axis=1)[:, :count]
    found: Array = nearest.mean(axis=1)
    return found


def forest_scores(values: Sequence[Array], fitted_on: Sequence[int], seed: int) -> list[Array]:
    """How odd an isolation forest finds each window; higher is odder.

    Args:
        values: Of each trace, float `[W, F]`.
        fitted_on: Places of the traces whose windows are taken as usual.
        seed: Of the forest.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import IsolationForest
    except ImportError as error:
        raise MissingDependencyError(
            "pseudo-labels need scikit-learn: pip install 'torchtraceap[train]'"
        ) from error
    usual = np.concatenate([values[place] for place in fitted_on])
    size = min(_WINDOWS_OF_A_TREE, len(usual))
    forest = IsolationForest(n_estimators=200, max_samples=size, random_state=seed % 2**32)
    forest.fit(usual)
    scores = -forest.score_samples(np.concatenate(list(values)))
    ends = np.cumsum([len(each) for each in values])[:-1]
    return list(np.split(scores, ends))


def ranks(scores: Sequence[Array]) -> list[Array]:
    """Ranks in [0, 1] over the windows of all traces; equal scores have equal ranks."""
    flat = np.concatenate(list(scores))
    levels, inverse = np.unique(flat, return_inverse=True)
    found = inverse / max(len(levels) - 1, 1)
    return list(np.split(found, np.cumsum([len(each) for each in scores])[:-1]))


def self_trained(before: Sequence[Array], logits: Sequence[Array]) -> list[Array]:
    """Of the next round: ranks of what was believed and of what the network says, averaged."""
    return [(a + b) / 2 for a, b in zip(ranks(before), ranks(logits), strict=True)]


def pseudo_targets(
    scores: Sequence[Array], positive: float, dropped: float
) -> tuple[list[Array], list[Array]]:
    """The highest scores over all traces are positive, the next are left out, the rest negative.

    Args:
        scores: Of each trace that may hold a fault, float `[W]`.
        positive: Which part is positive.
        dropped: Up to which part is left out.

    Returns:
        Of each trace targets and weights, float32 `[W]`.
    """
    flat = np.concatenate(list(scores))
    high, low = np.quantile(flat, [1 - positive, 1 - dropped])
    targets = [(each >= high).astype(np.float32) for each in scores]
    weights = [((each >= high) | (each < low)).astype(np.float32) for each in scores]
    return targets, weights
