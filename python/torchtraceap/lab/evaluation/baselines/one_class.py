"""Methods that know what is usual and score what is not: none is told where a fault is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.samples import Sample
from torchtraceap.lab.evaluation.baselines.protocol import Windows, features_of, one_thread

__all__ = ["Forest", "KMeans", "Neighbours", "Pca"]

_CLUSTERS, _NEIGHBOURS, _VARIANCE = 16, 10, 0.9
"""Chosen on validation; see docs/benchmark.md."""
_MOST = 20_000
"""Windows that are kept for neighbours: more add time, and nothing that was measured."""


class _OneClass:
    """Features on one scale, and a model of them."""

    name = ""
    labels = "none"
    is_random = True
    is_probability = False
    good_only = False

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        from sklearn.preprocessing import StandardScaler

        windows = Windows(samples)
        x = windows.x[~windows.bad] if self.good_only else windows.x
        rows = np.random.default_rng(seed).permutation(len(x))[: self._most()]
        self._scale = StandardScaler().fit(x)
        with one_thread():
            self._fit(self._scale.transform(x[np.sort(rows)]), seed)

    def _most(self) -> int | None:
        return None

    def score(self, sample: Sample) -> Array:
        with one_thread():
            return self._score(self._scale.transform(features_of(sample)))

    def types(self, sample: Sample) -> Array | None:
        return None

    def _fit(self, x: Array, seed: int) -> None:
        raise NotImplementedError

    def _score(self, x: Array) -> Array:
        raise NotImplementedError


class KMeans(_OneClass):
    """Distance to the nearest of the centres of all windows."""

    name = "K-means"

    def _fit(self, x: Array, seed: int) -> None:
        from sklearn.cluster import MiniBatchKMeans

        self._model: Any = MiniBatchKMeans(
            _CLUSTERS, random_state=seed, n_init=3, batch_size=4096
        ).fit(x)

    def _score(self, x: Array) -> Array:
        found: Array = self._model.transform(x).min(axis=1)
        return found


class Forest(_OneClass):
    """Isolation forest on all windows, or on those of good traces."""

    def __init__(self, *, good_only: bool) -> None:
        self.good_only = good_only
        self.name = f"isolation forest, {'good' if good_only else 'all'} windows"
        self.labels = "trace" if good_only else "none"

    def _fit(self, x: Array, seed: int) -> None:
        from sklearn.ensemble import IsolationForest

        self._model: Any = IsolationForest(n_estimators=200, random_state=seed).fit(x)

    def _score(self, x: Array) -> Array:
        found: Array = -self._model.score_samples(x)
        return found


class Neighbours(_OneClass):
    """Mean distance to the nearest windows of good traces."""

    name = "kNN, good windows"
    labels = "trace"
    good_only = True

    def _most(self) -> int | None:
        return _MOST

    def _fit(self, x: Array, seed: int) -> None:
        from sklearn.neighbors import NearestNeighbors

        self._model: Any = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(x))).fit(x)

    def _score(self, x: Array) -> Array:
        found: Array = self._model.kneighbors(x)[0].mean(axis=1)
        return found


class Pca(_OneClass):
    """What the main components of good windows leave over."""

    name = "PCA error, good windows"
    labels = "trace"
    good_only = True
    is_random = False

    def _fit(self, x: Array, seed: int) -> None:
        from sklearn.decomposition import PCA

        self._model: Any = PCA(_VARIANCE, svd_solver="full").fit(x)

    def _score(self, x: Array) -> Array:
        left = x - self._model.inverse_transform(self._model.transform(x))
        found: Array = np.linalg.norm(left, axis=1)
        return found
