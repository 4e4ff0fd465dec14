"""Methods without anything to learn: evidence rules, outliers of kernels, chance, one score for a
whole trace."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.samples import Sample
from torchtraceap.lab.evaluation.baselines.protocol import Method
from torchtraceap.lab.evaluation.events import GpuEvents

__all__ = ["Chance", "Evidence", "Rule", "TraceConstant"]


class Evidence:
    """What `diagnose` finds: how much of each window its findings cover."""

    name = "evidence rules"
    labels = "none"
    is_random = False
    is_probability = False

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """Nothing is learned."""

    def score(self, sample: Sample) -> Array:
        return np.asarray(sample.evidence[:, -1], dtype=np.float64)

    def types(self, sample: Sample) -> Array | None:
        return np.asarray(sample.evidence[:, :-1], dtype=np.float64)


class Chance:
    """A number drawn for each window: what any metric gives for knowing nothing."""

    name = "chance"
    labels = "none"
    is_random = True
    is_probability = False

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        self._seed = seed

    def score(self, sample: Sample) -> Array:
        key = zlib.crc32(f"{sample.id}/{len(sample.positive)}".encode())
        return np.random.default_rng((self._seed, key)).random(len(sample.positive))

    def types(self, sample: Sample) -> Array | None:
        return None


class TraceConstant:
    """Another method's mean over the trace, for each of its windows: it points nowhere."""

    is_probability = False

    def __init__(self, method: Method) -> None:
        self._method = method
        self.name = f"{method.name}, one score a trace"
        self.labels, self.is_random = method.labels, method.is_random

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        self._method.fit(samples, seed)

    def score(self, sample: Sample) -> Array:
        scores = self._method.score(sample)
        return np.full(len(scores), scores.mean())

    def types(self, sample: Sample) -> Array | None:
        return None


class Rule:
    """Outliers among the runs of a kernel, as HTA's kernel breakdown shows them.

    A window scores as the largest z-score of the durations of events that begin in it, each against
    those of its name in the trace; without one it scores 0.
    """

    name = "rule: outliers among kernels"
    labels = "none"
    is_random = False
    is_probability = False

    def __init__(self, events: Mapping[str, GpuEvents]) -> None:
        self._events = events

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """Nothing is learned."""

    def score(self, sample: Sample) -> Array:
        events = self._events[sample.id]
        z = _z_by_name(events.name, (events.end_ns - events.begin_ns).astype(np.float64))
        count = len(sample.positive)
        place = np.searchsorted(sample.bounds_ns, events.begin_ns, side="right") - 1
        found = np.zeros(count)
        np.maximum.at(found, place.clip(0, count - 1), z)
        return found

    def types(self, sample: Sample) -> Array | None:
        return None


def _z_by_name(name: Array, duration: Array) -> Array:
    codes = np.unique(name, return_inverse=True)[1]
    counts = np.bincount(codes).clip(min=1)
    mean = np.bincount(codes, weights=duration) / counts
    off = duration - mean[codes]
    spread = np.sqrt(np.bincount(codes, weights=off**2) / counts)
    found: Array = np.divide(off, spread[codes], out=np.zeros(len(off)), where=spread[codes] > 0)
    return found
