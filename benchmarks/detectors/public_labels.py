"""Public traces that were labelled by looking, in two passes that knew nothing of each other.

Note [Two passes]: each pass says of every trace and type whether it is there, how certain that is,
and when it costs time. A window is positive where the intervals of both cover a tenth of it,
negative where those of neither cover a fiftieth, and left out where they disagree. What a pass
calls unsure makes no window positive. For whether a window holds any fault, the types of a pass
count together: the passes may call the same loss by different names.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.intervals import EMPTY, overlaps, union
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.datasets.labels import NEGATIVE, POSITIVE, covered_share
from torchtraceap.errors import MissingFileError, SchemaError

__all__ = [
    "ANY",
    "PASSES",
    "Pass",
    "RealLabels",
    "Recordings",
    "cohen_kappa",
    "read_real_labels",
    "read_recordings",
]

PASSES = ("first", "second")
ANY = "any"
"""Instead of a type: whether a window holds a fault of any."""


@dataclass(frozen=True)
class Pass:
    """The labels of a trace by one pass."""

    present: Mapping[str, bool]
    certainty: Mapping[str, str]
    """certain, likely or unsure, by type."""
    intervals: Mapping[str, Array]
    """int64 `[n, 2]` by type, relative to the first complete event; empty where it is absent."""
    doubtful: Array
    """int64 `[n, 2]`: what may be called a loss or not, such as the start of the GPU."""

    def intervals_of(self, type: str) -> Array:
        """int64 `[n, 2]` of a type, or of all where that is `ANY`."""
        if type != ANY:
            return self.intervals[type]
        return np.concatenate([EMPTY, *self.intervals.values()])


@dataclass(frozen=True)
class RealLabels:
    """The labels of all traces, by their paths below the folder of traces."""

    traces: Mapping[str, tuple[Pass, Pass]]
    sha256: str
    """Digest of the files of both passes, from before anything was trained."""

    def windows(self, path: str, bounds_ns: Array, first_ns: int, type: str = ANY) -> Array:
        """int8 `[W]`: 1 positive, 0 negative, -1 left out; see Note [Two passes].

        Args:
            path: Of the trace.
            bounds_ns: int64 `[W + 1]`, on the trace's clock.
            first_ns: The start of its first complete event.
            type: One of the paper's eight, or `ANY`.
        """
        both = self.traces[path]
        bounds_ns = bounds_ns - first_ns
        shares = [covered_share(of.intervals_of(type), bounds_ns) for of in both]
        least, most = np.minimum(*shares), np.maximum(*shares)
        doubtful = [covered_share(of.doubtful, bounds_ns) for of in both]
        labels = np.where(least >= POSITIVE, 1, -1)
        labels[np.maximum(most, np.maximum(*doubtful)) < NEGATIVE] = 0
        if type != ANY and any(of.certainty[type] == "unsure" for of in both):
            labels[labels == 1] = -1
        return labels.astype(np.int8)

    def verdict(self, path: str, type: str) -> bool | None:
        """Return True if a trace has the type; None where the passes disagree or one is not
        certain."""
        both = self.traces[path]
        if any(of.certainty[type] != "certain" for of in both):
            return None
        found = {of.present[type] for of in both}
        return found.pop() if len(found) == 1 else None

    def window_types(self, path: str, bounds_ns: Array, first_ns: int) -> Array:
        """int64 `[W]`: place in `PAPER_TYPES` of the type of each window where that is certain, and
        -1 elsewhere. It is where both passes are certain of the type, and every other is absent.

        Args:
            path, bounds_ns, first_ns: As for `windows`.
        """
        marks = np.stack(
            [self.windows(path, bounds_ns, first_ns, name) for name in PAPER_TYPES], axis=1
        )
        certain = [
            all(of.certainty[name] == "certain" for of in self.traces[path]) for name in PAPER_TYPES
        ]
        alone = ((marks == 1) & certain).any(axis=1) & ((marks != 0).sum(axis=1) == 1)
        return np.where(alone, marks.argmax(axis=1), -1).astype(np.int64)

    def costs_ns(self, path: str, first_ns: int) -> Array:
        """int64 `[n, 2]`, on the trace's clock: where both passes say that a fault costs time."""
        return (
            overlaps(np.concatenate([union([of.intervals_of(ANY)]) for of in self.traces[path]]))
            + first_ns
        )

    def fault(self, path: str) -> bool | None:
        """Return True if a trace has a fault: both passes are certain of a type, or neither has
        found any. None otherwise."""
        if any(self.verdict(path, name) for name in PAPER_TYPES):
            return True
        return None if any(any(of.present.values()) for of in self.traces[path]) else False

    def kappa(self) -> dict[str, float | None]:
        """Cohen's kappa of whether a trace has a type, by type and for all together.

        None where neither pass found the type: nothing can be said of chance then.
        """
        said = {
            name: [[of[place].present[name] for of in self.traces.values()] for place in (0, 1)]
            for name in PAPER_TYPES
        }
        every = [[is_there for of in said.values() for is_there in of[place]] for place in (0, 1)]
        return {name: cohen_kappa(*of) for name, of in {**said, ANY: every}.items()}


def read_real_labels(folder: PathLike) -> RealLabels:
    """Both passes of `benchmarks/detectors/real_labels`.

    Raises:
        MissingFileError: A file is missing.
        SchemaError: It can't be read as labels.
    """
    digest = hashlib.sha256()
    passes = []
    for name in PASSES:
        path = Path(folder) / f"{name}.json.gz"
        if not path.is_file():
            raise MissingFileError(f"{path}: there is no such file of labels")
        data = path.read_bytes()
        digest.update(data)
        try:
            passes.append(
                {trace: _pass(of) for trace, of in json.loads(gzip.decompress(data)).items()}
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"{path}: labels of traces were expected: {error!r}") from error
    if passes[0].keys() != passes[1].keys():
        raise SchemaError(f"{folder}: the two passes label different traces")
    both = {trace: (passes[0][trace], passes[1][trace]) for trace in passes[0]}
    return RealLabels(both, digest.hexdigest())


def _pass(labels: Mapping[str, Any]) -> Pass:
    types = {name: labels["types"][name] for name in PAPER_TYPES}
    spans = {
        name: np.array(of["intervals_ns"] if of["present"] else [], dtype=np.int64).reshape(-1, 2)
        for name, of in types.items()
    }
    doubtful = [np.array(of.get("ambiguous_ns", []), np.int64) for of in types.values()]
    return Pass(
        {name: bool(of["present"]) for name, of in types.items()},
        {name: str(of["certainty"]) for name, of in types.items()},
        spans,
        np.concatenate([each.reshape(-1, 2) for each in doubtful]),
    )


@dataclass(frozen=True)
class Recordings:
    """Groups of the traces, and those that are healthy."""

    group: Mapping[str, str]
    """Groups of traces that share one, by path; every other trace is one of its own."""
    healthy: tuple[str, ...]
    """Paths: the good trace of each pair of before and after, and what its author calls healthy."""


def read_recordings(path: PathLike) -> Recordings:
    """Groups and healthy traces, from `benchmarks/detectors/real_labels/recordings.json`.

    Raises:
        MissingFileError: There is no such file.
        SchemaError: It holds something else.
    """
    place = Path(path)
    if not place.is_file():
        raise MissingFileError(f"{path}: there is no such file")
    try:
        found = json.loads(place.read_text("utf-8"))
        group = {str(trace): str(name) for name, of in found["groups"].items() for trace in of}
        return Recordings(group, tuple(map(str, found["healthy"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"{path}: groups and healthy traces were expected: {error!r}") from None


def cohen_kappa(one: Sequence[bool] | Array, other: Sequence[bool] | Array) -> float | None:
    """Agreement of two judges beyond chance: 1 is all, 0 none; None where both always say the
    same one thing (Cohen 1960)."""
    first, second = np.array(one), np.array(other)
    agreed = float((first == second).mean())
    shares = first.mean(), second.mean()
    by_chance = float(shares[0] * shares[1] + (1 - shares[0]) * (1 - shares[1]))
    return None if by_chance == 1.0 else (agreed - by_chance) / (1 - by_chance)
