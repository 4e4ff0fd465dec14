"""Intervals by resampling groups: windows of a trace, and traces of a base, depend on each other.

Note [Resamples]: as many groups are drawn as there are, with replacement, always the same draws for
the same groups; of an average of tasks, in each task by itself. So the difference of two methods is
taken on the same resamples. A resample in which one class is missing has no value, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.evaluation.metrics import RECALL, Scored, group_pairs, per_trace_auc

__all__ = ["RESAMPLES", "Interval", "draws", "interval", "paired", "replicates"]

RESAMPLES = 2_000
_SLOW_RESAMPLES = 200
"""Of metrics that look at every window."""
_LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float


def draws(groups: int, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """int64 `[resamples, groups]`: how often each of so many groups is drawn."""
    even = np.full(groups, 1 / groups)
    found: Array = np.random.default_rng(seed).multinomial(groups, even, size=resamples)
    return found


def replicates(scored: Scored, metric: str, weights: Array) -> Array:
    """A metric of each resample.

    Args:
        scored: Windows; their groups are the columns of the weights.
        metric: "auc", "per_trace", "ap" or "fpr".
        weights: `[resamples, groups]`: how often each group counts.

    Returns:
        float64 `[resamples]`; NaN where it has no value. The slow metrics are taken of the first
        200 resamples alone.
    """
    if metric == "auc":
        won, pairs = group_pairs(scored, weights.shape[1])
        return _quotient(_form(weights, won), _form(weights, pairs))
    if metric == "per_trace":
        values, groups = per_trace_auc(scored)
        own = weights[:, groups].astype(np.float64)
        return _quotient(own @ values, own.sum(axis=1))
    if metric == "ap":
        return _precisions(scored, weights[:_SLOW_RESAMPLES])
    return _false_positive_rates(scored, weights[:_SLOW_RESAMPLES])


def _ranked(scored: Scored, weights: Array) -> tuple[Array, Array, Array]:
    """Windows from the highest score on, each weighed as its group is drawn.

    Returns:
        Order of the windows; where each run of equal scores ends in it; weights
        `[resamples, windows]` in that order.
    """
    order = np.argsort(-scored.score, kind="stable")
    ends = np.flatnonzero(np.diff(scored.score[order], append=-np.inf))
    return order, ends, weights[:, scored.group[order]].astype(np.float64)


def _precisions(scored: Scored, weights: Array) -> Array:
    order, ends, weight = _ranked(scored, weights)
    found = np.cumsum(weight * scored.positive[order], axis=1)[:, ends]
    flagged = np.cumsum(weight, axis=1)[:, ends]
    more = np.diff(found, axis=1, prepend=0)
    precision = np.divide(found, flagged, out=np.zeros_like(found), where=flagged > 0)
    return _quotient((more * precision).sum(axis=1), found[:, -1])


def _false_positive_rates(scored: Scored, weights: Array) -> Array:
    order, ends, weight = _ranked(scored, weights)
    found = np.cumsum(weight * scored.positive[order], axis=1)[:, ends]
    good = np.cumsum(weight * ~scored.bad[order], axis=1)[:, ends]
    place = (found >= RECALL * found[:, -1:] - 1e-9).argmax(axis=1)
    flagged = good[np.arange(len(good)), place]
    return _quotient(np.where(found[:, -1] > 0, flagged, np.nan), good[:, -1])


def _form(weights: Array, matrix: Array) -> Array:
    found: Array = np.einsum("rg,gh,rh->r", weights, matrix, weights, optimize=True)
    return found


def _quotient(above: Array, below: Array) -> Array:
    found: Array = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return found


def interval(value: float, values: Array) -> Interval:
    """The value with the middle 95 % of the resamples."""
    kept = values[np.isfinite(values)]
    if not len(kept):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(kept, ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))
    return Interval(value, float(low), float(high))


def paired(values: tuple[float, float], resampled: tuple[Array, Array]) -> Interval:
    """The first less the second, on the same resamples. See Note [Resamples]."""
    return interval(values[0] - values[1], resampled[0] - resampled[1])
