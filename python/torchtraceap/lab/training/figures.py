"""Figures of a validation split: areas under the curve of window scores, and calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap.core.aliases import Array

__all__ = ["auc", "choice_weights", "platt", "window_figures"]


def auc(positive: Array, scores: Array) -> float:
    """Area under the ROC curve; ties count half. Not a number without both classes.

    Args:
        positive: bool `[n]`.
        scores: float `[n]`.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    found, others = int(positive.sum()), int((~positive).sum())
    if not found or not others:
        return float("nan")
    return float((ranks[positive].sum() - found * (found + 1) / 2) / (found * others))


def window_figures(
    scores: Sequence[Array], positive: Sequence[Array], ignore: Sequence[Array]
) -> dict[str, float]:
    """AUC of windows: `bad_only` (those of traces with a lost window), `pooled` (all) and
    `per_trace` (the mean over traces that have both kinds). Ignored windows are left out. What
    can't be said, such as without a positive window, is 0.5.

    Args:
        scores: Of each trace, float `[W]`.
        positive: Of each trace, bool `[W]`.
        ignore: Of each trace, bool `[W]`.
    """
    kept = [
        (each[~left], label[~left])
        for each, label, left in zip(scores, positive, ignore, strict=True)
    ]
    bad = [(each, label) for each, label in kept if label.any()]
    own = [auc(label, each) for each, label in bad if not label.all()]
    figures = {
        "bad_only": _pooled(bad),
        "pooled": _pooled(kept),
        "per_trace": float(np.mean(own)) if own else float("nan"),
    }
    return {name: 0.5 if np.isnan(value) else value for name, value in figures.items()}


def _pooled(traces: Sequence[tuple[Array, Array]]) -> float:
    if not traces:
        return float("nan")
    scores, labels = (np.concatenate(parts) for parts in zip(*traces, strict=True))
    return auc(labels, scores)


def platt(logits: Array, positive: Array, rounds: int = 50) -> tuple[float, float]:
    """Scale and shift that make logits probabilities: logistic regression by Newton's method.

    The labels are drawn in by one count of each kind, as Platt does, so that logits that separate
    them have finite answers too.

    Args:
        logits: float `[n]`.
        positive: bool `[n]`.
    """
    found, others = positive.sum(), (~positive).sum()
    if not found or not others:
        return 1.0, 0.0
    target = np.where(positive, (found + 1) / (found + 2), 1 / (others + 2))
    x = np.stack([logits.astype(np.float64), np.ones(len(logits))], axis=1)
    weights = np.array([1.0, 0.0])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -40, 40)))
        slope = x.T @ (p - target)
        curve = (x * (p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(2)
        weights = weights - np.clip(np.linalg.solve(curve, slope), -1, 1)
    return (float(weights[0]), float(weights[1])) if weights[0] > 0 else (1.0, 0.0)


def choice_weights(inputs: Array, chosen: Array, rounds: int = 50) -> Array:
    """Weights under which what was chosen is likeliest: conditional logit (McFadden 1974), by
    Newton's method.

    Args:
        inputs: float `[n, choices, k]`.
        chosen: int `[n]`: the choice of each.

    Returns:
        float64 `[k]`; a weak prior of 0 keeps them finite.
    """
    weights = np.zeros(inputs.shape[2])
    rows = np.arange(len(chosen))
    for _ in range(rounds):
        votes = inputs @ weights
        p = np.exp(votes - votes.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = np.einsum("nc,nck->nk", p, inputs)
        slope = (inputs[rows, chosen] - mean).sum(axis=0) - weights
        curve = np.einsum("nc,nci,ncj->ij", p, inputs, inputs) - mean.T @ mean
        weights = weights + np.clip(np.linalg.solve(curve + np.eye(len(weights)), slope), -1, 1)
    found: Array = weights
    return found
