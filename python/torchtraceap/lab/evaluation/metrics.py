"""Metrics of window scores (docs/evaluation.md has each definition), and their intervals.

Note [Strict]: windows that a cost covers by 2 to 10 % are neither positive nor negative, and no
metric here looks at them. No window is made right by a neighbor (no point adjustment).

Note [AUC by groups]: an area under the curve counts pairs of a positive and a negative window that
are in order. Counted once for each pair of groups (the runs on one base), it is a quotient of two
sums, so that a resample of groups needs no sort.

Note [Resamples]: windows of a trace, and traces of a base, depend on each other, so groups are
resampled. As many groups are drawn as there are, with replacement, always the same draws for the
same groups; of an average of tasks, in each task by itself. So the difference of two methods is
taken on the same resamples. A resample in which one class is missing has no value, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from torchtraceap.core import Array
from torchtraceap.errors import OptionError

__all__ = [
    "RECALL",
    "RESAMPLES",
    "Interval",
    "Scored",
    "average_precision",
    "calibration",
    "confusion",
    "draws",
    "event_hits",
    "false_positive_rate",
    "group_pairs",
    "interval",
    "mean",
    "paired_difference",
    "per_trace_auc",
    "replicates",
    "said_types",
    "threshold_at",
    "type_metrics",
    "typed_given_window",
    "weighted_means",
    "window_auc",
]

RECALL = 0.8
"""Recall at which false alarms on good traces are counted."""
RESAMPLES = 2_000
_SLOW_RESAMPLES = 200
"""Resamples of metrics that look at every window."""
_LEVEL = 0.95
_BINS = 10


@dataclass(frozen=True)
class Scored:
    """Windows of several traces with the scores of a method, without those to be ignored.

    All arrays have one row for each window: `score` float64, `positive` bool, `bad` bool (the trace
    has a fault), `trace` and `group` int64 codes from 0.
    """

    score: Array
    positive: Array
    bad: Array
    trace: Array
    group: Array

    def part(self, rows: Array) -> Scored:
        """Return some of the windows."""
        return Scored(*(getattr(self, field.name)[rows] for field in fields(self)))


def window_auc(scored: Scored) -> float:
    """Area under the ROC curve over all windows; NaN where one class is missing."""
    from sklearn.metrics import roc_auc_score

    if not _has_both(scored.positive):
        return float("nan")
    return float(roc_auc_score(scored.positive, scored.score))


def average_precision(scored: Scored) -> float:
    """Area under the precision-recall curve as scikit-learn sums it; NaN without a positive."""
    from sklearn.metrics import average_precision_score

    if not _has_both(scored.positive):
        return float("nan")
    return float(average_precision_score(scored.positive, scored.score))


def per_trace_auc(scored: Scored) -> tuple[Array, Array]:
    """Return float64 AUC and int64 group of each trace that has both classes, in the order of their
    codes."""
    values, groups = [], []
    order = np.argsort(scored.trace, kind="stable")
    ends = np.flatnonzero(np.diff(scored.trace[order])) + 1
    for rows in np.split(order, ends):
        if _has_both(scored.positive[rows]):
            values.append(window_auc(scored.part(rows)))
            groups.append(int(scored.group[rows[0]]))
    return np.array(values, dtype=np.float64), np.array(groups, dtype=np.int64)


def mean(values: Array) -> float:
    """The mean; NaN of nothing."""
    return float(np.mean(values)) if len(values) else float("nan")


def threshold_at(scored: Scored, recall: float = RECALL) -> float:
    """The largest score at which so many of the positive windows are flagged; NaN without one."""
    found = np.sort(scored.score[scored.positive])[::-1]
    if not len(found):
        return float("nan")
    return float(found[max(0, int(np.ceil(recall * len(found))) - 1)])


def false_positive_rate(scored: Scored, recall: float = RECALL) -> float:
    """Share of the windows of good traces that are flagged at that recall; NaN without either."""
    good = scored.score[~scored.bad]
    threshold = threshold_at(scored, recall)
    if not len(good) or np.isnan(threshold):
        return float("nan")
    return float(np.mean(good >= threshold))


def group_pairs(scored: Scored, count: int) -> tuple[Array, Array]:
    """Pairs in order, and all pairs, by groups. See Note [AUC by groups].

    Args:
        scored: Windows.
        count: Of groups.

    Returns:
        Two float64 `[count, count]`: of positives of the row's group and negatives of the column's,
        how many are in order (a tie counts half), and how many there are.
    """
    won = np.zeros((count, count))
    below = [
        np.sort(scored.score[(scored.group == group) & ~scored.positive]) for group in range(count)
    ]
    for group in range(count):
        own = scored.score[(scored.group == group) & scored.positive]
        for other, scores in enumerate(below):
            sides = [np.searchsorted(scores, own, side=side).sum() for side in ("left", "right")]
            won[group, other] = (sides[0] + sides[1]) / 2
    positives = np.bincount(scored.group[scored.positive], minlength=count)
    negatives = np.bincount(scored.group[~scored.positive], minlength=count)
    return won, np.outer(positives, negatives).astype(np.float64)


def event_hits(tops: Sequence[tuple[int, int] | None], costs: Sequence[Array]) -> float:
    """Share of traces with a fault whose top event lies in its cost.

    A method points at one GPU event or gap of a trace: the one that it gives the greatest part of
    the score to, or, where it gives none, the one that takes most of the window with the highest
    score (the first of equal ones). It is a hit where cost intervals cover half of it or more; one
    without length where it begins inside. Nothing pointed at is a miss.

    Args:
        tops: Begin and end of it in ns, for each trace.
        costs: int64 `[n, 2]` of each trace: begins and ends, apart from each other.

    Returns:
        NaN without a trace.
    """
    if len(tops) != len(costs):
        raise OptionError(f"{len(tops)} events for {len(costs)} traces")
    hits = []
    for top, cost in zip(tops, costs, strict=True):
        if top is None or not len(cost):
            hits.append(False)
            continue
        begin, end = top
        if end <= begin:
            hits.append(bool(((cost[:, 0] <= begin) & (begin < cost[:, 1])).any()))
            continue
        inside = np.minimum(end, cost[:, 1]) - np.maximum(begin, cost[:, 0])
        hits.append(bool(2 * np.maximum(inside, 0).sum() >= end - begin))
    return mean(np.array(hits))


# ------------------------------------------------------------------------- types


def typed_given_window(cost: Array, said: Array, positive: Array) -> tuple[Array, Array]:
    """Return the true and the named types of windows that are known to be positive, the setting of
    the paper's Table 4, int64 `[m]` each.

    Args:
        cost: `[n, T]`: how much of each window the cost of each type covers; the largest is the
            type of the window.
        said: `[n, T]`: how likely a method takes each type to be.
        positive: bool `[n]`.
    """
    return cost[positive].argmax(axis=1), said_types(said[positive])


def said_types(said: Array) -> Array:
    """int64 `[n]`: the likeliest type of each row of `[n, T]`; T, which no window has, where a row
    names none."""
    found: Array = np.where(said.any(axis=1), said.argmax(axis=1), said.shape[1])
    return found


def type_metrics(truth: Array, said: Array) -> dict[str, float]:
    """Accuracy and macro-F1, over the windows that have a type or are said to have one.

    Args:
        truth: int64 `[n]`: places of the types of windows, -1 for none.
        said: int64 `[n]`: the same of those that are named; the number of types where a window is
            flagged and not named.

    Where `none` is among them (end to end), a miss and a false alarm each count as an error. The
    macro mean is over the types that occur in the truth.
    """
    from sklearn.metrics import accuracy_score, f1_score

    rows = (truth >= 0) | (said >= 0)
    truth, said = truth[rows], said[rows]
    present = np.unique(truth[truth >= 0])
    if not len(present):
        return {"accuracy": float("nan"), "macro_f1": float("nan"), "windows": 0}
    f1 = f1_score(truth, said, labels=present, average="macro", zero_division=0)
    accuracy = accuracy_score(truth, said)
    return {"accuracy": float(accuracy), "macro_f1": float(f1), "windows": int(rows.sum())}


def confusion(truth: Array, said: Array, types: int) -> Array:
    """int64 `[T + 1, T + 1]`: windows by their type and by that which is named; the last is none.

    Args:
        truth, said: As `type_metrics` takes them.
        types: The number T of types.
    """
    count = types + 1
    found = np.zeros((count, count), dtype=np.int64)  # said and not named is none, too
    np.add.at(found, (truth % count, said % count), 1)
    return found


# ------------------------------------------------------------------------- calibration


def calibration(score: Array, positive: Array) -> dict[str, float]:
    """Brier score and expected calibration error of scores that claim to be probabilities.

    The error is the difference of the mean score and the share of positives, in ten bins of equal
    width, each weighed by its windows (Naeini et al. 2015).

    Raises:
        OptionError: A score is outside of [0, 1].
    """
    from sklearn.metrics import brier_score_loss

    if not len(score):
        return {"brier": float("nan"), "ece": float("nan")}
    if score.min() < 0 or score.max() > 1:
        raise OptionError("a probability lies between 0 and 1")
    place = np.minimum((score * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(place, minlength=_BINS)
    off = np.abs(
        np.bincount(place, weights=score, minlength=_BINS)
        - np.bincount(place, weights=positive.astype(np.float64), minlength=_BINS)
    )
    brier = (
        brier_score_loss(positive, score)
        if _has_both(positive)
        else np.mean((score - positive) ** 2)
    )
    return {"brier": float(brier), "ece": float(off.sum() / counts.sum())}


def _has_both(positive: Array) -> bool:
    return bool(positive.any() and not positive.all())


# ------------------------------------------------------------------------- intervals


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
    """Return a metric of each resample.

    Args:
        scored: Windows; their groups are the columns of the weights.
        metric: "auc", "per_trace", "ap" or "fpr".
        weights: `[resamples, groups]`: how often each group counts.

    Returns:
        float64 `[resamples]`; NaN where it has no value. The slow metrics are taken of the first
        200 resamples alone.
    """
    if metric == "auc":
        forms = [
            np.einsum("rg,gh,rh->r", weights, matrix, weights, optimize=True)
            for matrix in group_pairs(scored, weights.shape[1])
        ]
        return _quotient(forms[0], forms[1])
    if metric == "per_trace":
        return weighted_means(*per_trace_auc(scored), weights)
    # Windows from the highest score on, each weighed as its group is drawn; `ends` is where each
    # run of equal scores ends.
    order = np.argsort(-scored.score, kind="stable")
    ends = np.flatnonzero(np.diff(scored.score[order], append=-np.inf))
    weight = weights[:_SLOW_RESAMPLES, scored.group[order]].astype(np.float64)
    found = np.cumsum(weight * scored.positive[order], axis=1)[:, ends]
    if metric == "ap":
        flagged = np.cumsum(weight, axis=1)[:, ends]
        more = np.diff(found, axis=1, prepend=0)
        precision = np.divide(found, flagged, out=np.zeros_like(found), where=flagged > 0)
        return _quotient((more * precision).sum(axis=1), found[:, -1])
    good = np.cumsum(weight * ~scored.bad[order], axis=1)[:, ends]
    place = (found >= RECALL * found[:, -1:] - 1e-9).argmax(axis=1)
    alarms = good[np.arange(len(good)), place]
    return _quotient(np.where(found[:, -1] > 0, alarms, np.nan), good[:, -1])


def weighted_means(values: Array, groups: Array, weights: Array) -> Array:
    """Return the mean of each resample of values with groups, float64 `[resamples]`; NaN where
    none is drawn."""
    own = weights[:, groups].astype(np.float64)
    return _quotient(own @ values, own.sum(axis=1))


def _quotient(above: Array, below: Array) -> Array:
    found: Array = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return found


def interval(value: float, values: Array) -> Interval:
    """Return a value with the middle 95 % of the resamples."""
    kept = values[np.isfinite(values)]
    if not len(kept):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(kept, ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))
    return Interval(value, float(low), float(high))


def paired_difference(values: tuple[float, float], resampled: tuple[Array, Array]) -> Interval:
    """Return the first less the second, on the same resamples. See Note [Resamples]."""
    return interval(values[0] - values[1], resampled[0] - resampled[1])
