"""Boosted trees on window features, with labels of windows (S) or of traces alone (W).

Note [Self-trained]: pseudo-labels of round 0 are, in each trace with a fault, the mean of two
ranks: of the isolation forest's score, and of the distance to the windows of the twin. The highest
8 % are positive, what lies below them down to 25 % is left out, and all else is negative, as are
all windows of good traces. Each of two more rounds takes the trees' own scores, out of fold by
groups, instead of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.samples import Sample
from torchtraceap.lab.evaluation.baselines.one_class import Forest
from torchtraceap.lab.evaluation.baselines.protocol import Windows, features_of

__all__ = ["CopiedTrees", "SelfTrainedTrees", "SupervisedTrees", "make_trees"]

_POSITIVE, _LEFT_OUT, _ROUNDS, _FOLDS, _LEAST = 0.08, 0.25, 2, 3, 10


def make_trees(seed: int) -> Any:
    """LightGBM's trees, as small as the number of groups asks for."""
    from lightgbm import LGBMClassifier

    return LGBMClassifier(
        n_estimators=150, learning_rate=0.08, num_leaves=15, min_child_samples=40, reg_lambda=1.0,
        colsample_bytree=0.3, subsample=0.8, subsample_freq=1, random_state=seed, n_jobs=1,
        deterministic=True, force_col_wise=True, verbose=-1,
    )  # fmt: skip


class _Trees:
    name = ""
    labels = "trace"
    is_random = True
    is_probability = False
    _model: Any

    def score(self, sample: Sample) -> Array:
        found: Array = self._model.predict_proba(features_of(sample))[:, 1]
        return found

    def types(self, sample: Sample) -> Array | None:
        return None


class CopiedTrees(_Trees):
    """The label of the trace is taken for that of each of its windows."""

    name = "boosted trees W, label copied"

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        windows = Windows(samples)
        self._model = make_trees(seed).fit(windows.x, windows.bad)


class SelfTrainedTrees(_Trees):
    """See Note [Self-trained]."""

    name = "boosted trees W, self-trained"

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        windows = Windows(samples)
        groups = _groups(samples)[windows.trace]
        forest = Forest(good_only=True)
        forest.fit(samples, seed)
        scores = np.concatenate([forest.score(sample) for sample in samples])
        ranks = _ranks_in_traces(scores, windows.trace)
        ranks = (ranks + _ranks_in_traces(_twin_distance(samples), windows.trace)) / 2
        for turn in range(_ROUNDS + 1):
            label, kept = _pseudo_labels(ranks, windows)
            self._model = make_trees(seed + turn).fit(windows.x[kept], label[kept])
            if turn < _ROUNDS:
                ranks = _out_of_fold(windows.x, label, kept, groups, seed + turn)
                ranks = _ranks_in_traces(ranks, windows.trace)


def _groups(samples: Sequence[Sample]) -> Array:
    names = sorted({sample.group for sample in samples})
    return np.array([names.index(sample.group) for sample in samples], dtype=np.int64)


def _ranks_in_traces(scores: Array, trace: Array) -> Array:
    """float64 in (0, 1]: of each window among those of its trace."""
    ranks = np.zeros(len(scores))
    for code in np.unique(trace):
        rows = np.flatnonzero(trace == code)
        ranks[rows[np.argsort(scores[rows], kind="stable")]] = np.arange(1, len(rows) + 1)
        ranks[rows] /= len(rows)
    return ranks


def _twin_distance(samples: Sequence[Sample]) -> Array:
    """Of each window to the nearest of the twin's, or of the good traces of its group."""
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import StandardScaler

    by_id = {sample.id: sample for sample in samples}
    scale = StandardScaler().fit(np.concatenate([features_of(sample) for sample in samples]))
    found = []
    for sample in samples:
        twin = by_id.get(sample.twin or "")
        if twin is None:
            found.append(np.zeros(len(sample.positive)))
            continue
        near = NearestNeighbors(n_neighbors=1).fit(scale.transform(features_of(twin)))
        found.append(near.kneighbors(scale.transform(features_of(sample)))[0][:, 0])
    return np.concatenate(found)


def _pseudo_labels(ranks: Array, windows: Windows) -> tuple[Array, Array]:
    """Whether each window is taken for positive, and which are learned from."""
    high = ranks > 1 - _POSITIVE
    label = windows.bad & high
    kept = ~windows.bad | high | (ranks <= 1 - _LEFT_OUT)
    return label, kept


def _out_of_fold(x: Array, label: Array, kept: Array, groups: Array, seed: int) -> Array:
    from sklearn.model_selection import GroupKFold

    found = np.zeros(len(x))
    folds = min(_FOLDS, len(np.unique(groups)))
    if folds < 2:
        return np.asarray(make_trees(seed).fit(x[kept], label[kept]).predict_proba(x)[:, 1])
    for train, test in GroupKFold(folds).split(x, label, groups):
        rows = train[kept[train]]
        found[test] = make_trees(seed).fit(x[rows], label[rows]).predict_proba(x[test])[:, 1]
    return found


class SupervisedTrees(_Trees):
    """Labels of windows, and a second model for the types of those that are positive."""

    name = "boosted trees S"
    labels = "window"
    is_probability = True

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        windows = Windows(samples)
        kept = ~windows.ignore
        self._model = make_trees(seed).fit(windows.x[kept], windows.positive[kept])
        self._types = windows.cost.shape[1]
        rows = np.flatnonzero(windows.positive)
        kind = windows.cost[rows].argmax(axis=1)
        common = np.isin(kind, np.flatnonzero(np.bincount(kind) >= _LEAST))
        self._type_model: Any = None
        if len(np.unique(kind[common])) > 1:
            weights = 1 / np.bincount(kind)[kind[common]] ** 0.5
            self._type_model = make_trees(seed)
            self._type_model.fit(windows.x[rows[common]], kind[common], sample_weight=weights)

    def types(self, sample: Sample) -> Array | None:
        found = np.zeros((len(sample.positive), self._types))
        if self._type_model is not None:
            found[:, self._type_model.classes_] = self._type_model.predict_proba(
                features_of(sample)
            )
        return found
