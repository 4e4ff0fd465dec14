"""Methods that learned scorers have to beat: the protocol of all, and those that are told of no
fault.

GPU events and gaps of traces are here too: outliers among kernels and pointed-at events are about
them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.core import Array, PathLike, union
from torchtraceap.datasets import Sample, costs_of, labeled_ranks, labeled_runs
from torchtraceap.trace import RankTrace

__all__ = [
    "Chance",
    "Forest",
    "GpuEvents",
    "KMeans",
    "Method",
    "Neighbors",
    "Pca",
    "Rule",
    "TraceConstant",
    "Windows",
    "WithoutTypes",
    "features_of",
    "gpu_events",
    "largest_in",
    "load_events",
    "one_thread",
]

_WORK = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)
_CLUSTERS, _NEIGHBORS, _VARIANCE = 16, 10, 0.9
"""Chosen on validation; see docs/evaluation.md."""
_MOST = 20_000
"""Windows that are kept for neighbors: more add time, and nothing that was measured."""


class Method(Protocol):
    """A detector of windows."""

    name: str
    labels: str
    """The labels that it is fitted with: "none", "trace" (has it a fault) or "window" (where)."""
    is_random: bool
    """Its seed changes its scores."""
    is_probability: bool
    """Its scores are to be read as chances."""

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """Learn from the traces of the training split."""

    def score(self, sample: Sample) -> Array:
        """float64 `[W]`: higher is worse."""

    def types(self, sample: Sample) -> Array | None:
        """float64 `[W, T]`: how likely each type is; None where it tells no types."""


class WithoutTypes:
    """The part of methods that tell no types, and whose scores are no chances."""

    labels = "none"
    is_random = True
    is_probability = False

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """Learn nothing."""

    def types(self, sample: Sample) -> Array | None:
        """None: it tells no types."""
        return None


def features_of(sample: Sample) -> Array:
    """float32 `[W, 2 F]`: the window features, and the same against the trace's other windows."""
    found: Array = np.concatenate([sample.values, sample.zscores], axis=1)
    return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)


class Windows:
    """All windows of several traces, one below the other."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.x = np.concatenate([features_of(sample) for sample in samples])
        lengths = [len(sample.positive) for sample in samples]
        self.trace = np.repeat(np.arange(len(samples)), lengths)
        self.bad = np.repeat([sample.label for sample in samples], lengths)
        self.positive = np.concatenate([sample.positive for sample in samples])
        self.ignore = np.concatenate([sample.ignore for sample in samples])
        self.cost = np.concatenate([sample.cost for sample in samples])


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which scikit-learn and torch compute on one thread: on a busy machine
    their threads wait for each other for longer than they work, and no sum depends on their
    number."""
    from threadpoolctl import threadpool_limits

    return cast("AbstractContextManager[Any]", threadpool_limits(1))


# ------------------------------------------------------------------------------ GPU events


@dataclass(frozen=True)
class GpuEvents:
    """The GPU events of one trace, by begin; times int64 ns."""

    begin_ns: Array
    end_ns: Array
    name: Array
    """int64 codes."""
    gaps_ns: Array
    """`[n, 2]`: times in which no GPU event runs, between the first and the last."""
    cost_ns: Array
    """`[n, 2]`: times that its fault costs."""


def load_events(dataset: PathLike, ids: Iterable[str]) -> dict[str, GpuEvents]:
    """Return the GPU events of the traces of a data set with these ids.

    Raises:
        MissingFileError: A trace is missing.
        SchemaError: It is no data set.
    """
    wanted = set(ids)
    ranks = labeled_ranks(labeled_runs(dataset), lambda label: label["id"] in wanted)
    return {
        label["id"]: gpu_events(part, union(list(costs_of(label).values())))
        for label, part in ranks
    }


def gpu_events(part: RankTrace, cost_ns: Array) -> GpuEvents:
    """Return the GPU events of one rank, with where its fault costs time (int64 `[n, 2]`)."""
    table = part.table
    rows = np.flatnonzero(np.isin(table.kind, _WORK) & table.complete)
    rows = rows[np.argsort(table.ts_ns[rows], kind="stable")]
    begin = np.asarray(table.ts_ns[rows], dtype=np.int64)
    end = begin + table.dur_ns[rows]
    busy = union([np.stack([begin, end], axis=1)])
    gaps = np.stack([busy[:-1, 1], busy[1:, 0]], axis=1)
    return GpuEvents(begin, end, np.asarray(table.name[rows], dtype=np.int64), gaps, cost_ns)


def largest_in(events: GpuEvents, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Begin and end of the GPU event or gap that takes most of a window; None for an empty trace.

    Of equal ones it is the first, an event before a gap.
    """
    spans = np.concatenate(
        [np.stack([events.begin_ns, events.end_ns], axis=1), events.gaps_ns.reshape(-1, 2)]
    )
    if not len(spans):
        return None
    inside = np.minimum(spans[:, 1], end_ns) - np.maximum(spans[:, 0], begin_ns)
    top = int(inside.argmax())
    return (int(spans[top, 0]), int(spans[top, 1])) if inside[top] > 0 else None


# ------------------------------------------------------------------------------ without a model


class Chance(WithoutTypes):
    """A number drawn for each window: what any metric gives for knowing nothing."""

    name = "chance"

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        self._seed = seed

    def score(self, sample: Sample) -> Array:
        key = zlib.crc32(f"{sample.id}/{len(sample.positive)}".encode())
        return np.random.default_rng((self._seed, key)).random(len(sample.positive))


class TraceConstant(WithoutTypes):
    """Another method's mean over the trace, for each of its windows: it points nowhere."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.name = f"{method.name}, one score a trace"
        self.labels, self.is_random = method.labels, method.is_random

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        self._method.fit(samples, seed)

    def score(self, sample: Sample) -> Array:
        scores = self._method.score(sample)
        return np.full(len(scores), scores.mean())


class Rule(WithoutTypes):
    """Outliers among the runs of a kernel, as HTA's kernel breakdown shows them.

    A window scores as the largest z-score of the durations of events that begin in it, each against
    those of its name in the trace; without one it scores 0.
    """

    name = "rule: outliers among kernels"
    is_random = False

    def __init__(self, events: Mapping[str, GpuEvents]) -> None:
        self._events = events

    def score(self, sample: Sample) -> Array:
        events = self._events[sample.id]
        duration = (events.end_ns - events.begin_ns).astype(np.float64)
        codes = np.unique(events.name, return_inverse=True)[1]
        counts = np.bincount(codes).clip(min=1)
        off = duration - (np.bincount(codes, weights=duration) / counts)[codes]
        spread = np.sqrt(np.bincount(codes, weights=off**2) / counts)[codes]
        z = np.divide(off, spread, out=np.zeros(len(off)), where=spread > 0)
        count = len(sample.positive)
        place = np.searchsorted(sample.bounds_ns, events.begin_ns, side="right") - 1
        found = np.zeros(count)
        np.maximum.at(found, place.clip(0, count - 1), z)
        return found


# ------------------------------------------------------------------------------ one-class models


class _OneClass(WithoutTypes):
    """Features on one scale, and a model of what is usual among them."""

    good_only = False
    """The windows of good traces alone are taken as usual."""
    most: int | None = None
    """Windows that the model is fitted to; None: all."""

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        from sklearn.preprocessing import StandardScaler

        windows = Windows(samples)
        x = windows.x[~windows.bad] if self.good_only else windows.x
        rows = np.random.default_rng(seed).permutation(len(x))[: self.most]
        self._scale = StandardScaler().fit(x)
        with one_thread():
            scaled = self._scale.transform(x[np.sort(rows)])
            self._model = self.make_model(seed, len(scaled)).fit(scaled)

    def score(self, sample: Sample) -> Array:
        with one_thread():
            return self.distances(self._scale.transform(features_of(sample)))

    def make_model(self, seed: int, windows: int) -> Any:
        """Return a model of scikit-learn that is not yet fitted."""
        raise NotImplementedError

    def distances(self, x: Array) -> Array:
        """float64 `[n]`: how unusual the fitted model finds windows `[n, 2 F]`."""
        raise NotImplementedError


class KMeans(_OneClass):
    """Distance to the nearest of the centers of all windows."""

    name = "K-means"

    def make_model(self, seed: int, windows: int) -> Any:
        from sklearn.cluster import MiniBatchKMeans

        return MiniBatchKMeans(_CLUSTERS, random_state=seed, n_init=3, batch_size=4096)

    def distances(self, x: Array) -> Array:
        found: Array = self._model.transform(x).min(axis=1)
        return found


class Forest(_OneClass):
    """Isolation forest on all windows, or on those of good traces."""

    def __init__(self, *, good_only: bool) -> None:
        self.good_only = good_only
        self.name = f"isolation forest, {'good' if good_only else 'all'} windows"
        self.labels = "trace" if good_only else "none"

    def make_model(self, seed: int, windows: int) -> Any:
        from sklearn.ensemble import IsolationForest

        return IsolationForest(n_estimators=200, random_state=seed)

    def distances(self, x: Array) -> Array:
        found: Array = -self._model.score_samples(x)
        return found


class Neighbors(_OneClass):
    """Mean distance to the nearest windows of good traces."""

    name = "kNN, good windows"
    labels = "trace"
    good_only = True
    most = _MOST

    def make_model(self, seed: int, windows: int) -> Any:
        from sklearn.neighbors import NearestNeighbors

        return NearestNeighbors(n_neighbors=min(_NEIGHBORS, windows))

    def distances(self, x: Array) -> Array:
        found: Array = self._model.kneighbors(x)[0].mean(axis=1)
        return found


class Pca(_OneClass):
    """The part of windows that the main components of good windows leave over."""

    name = "PCA error, good windows"
    labels = "trace"
    good_only = True
    is_random = False

    def make_model(self, seed: int, windows: int) -> Any:
        from sklearn.decomposition import PCA

        return PCA(_VARIANCE, svd_solver="full")

    def distances(self, x: Array) -> Array:
        left = x - self._model.inverse_transform(self._model.transform(x))
        found: Array = np.linalg.norm(left, axis=1)
        return found
