"""Scores that are there already: of the package's scorers, or in a document of `score --json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.datasets.runs import labeled_runs
from torchtraceap.datasets.samples import TYPES, Sample
from torchtraceap.errors import MissingFileError, SchemaError, TraceError
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

__all__ = ["SCORES", "Given", "read_scores", "scored_ranks", "scorer_methods"]

_SUFFIXES = (".json.gz", ".json", ".parquet")
SCORES = "torchtraceap.scores/1"
"""The schema of a document of scores."""


@dataclass
class Given:
    """A method whose scores are looked up."""

    name: str
    labels: str = "window"
    is_random: bool = False
    is_probability: bool = True
    found: dict[tuple[str, int], tuple[Array, Array]] = field(default_factory=dict)
    """Of a trace and a number of windows: scores `[W]` and types `[W, T]`."""

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """It was fitted before."""

    def score(self, sample: Sample) -> Array:
        return self._of(sample)[0]

    def types(self, sample: Sample) -> Array | None:
        return self._of(sample)[1] if any(t.any() for _, t in self.found.values()) else None

    def _of(self, sample: Sample) -> tuple[Array, Array]:
        try:
            return self.found[sample.id, len(sample.positive)]
        except KeyError:
            count = len(sample.positive)
            raise SchemaError(f"{self.name}: no scores of {sample.id} in {count} windows") from None


def scorer_methods(
    dataset: PathLike, ids: Iterable[str], scorers: Sequence[Any], counts: Sequence[int]
) -> list[Given]:
    """What the package's scorers say of traces, each rank alone, as its labels are.

    Args:
        dataset: A data set.
        ids: Of its traces.
        scorers: Each has `name` and `score(trace, count)`.
        counts: Numbers of windows.

    Raises:
        MissingFileError: A trace is missing.
    """
    wanted = set(ids)
    runs = labeled_runs(dataset) if scorers else ()
    chosen = (run for run in runs if not wanted.isdisjoint(label["id"] for label in run.labels))
    parts = (
        (label["id"], part)
        for run in chosen
        for label, part in zip(run.labels, run.load().ranks, strict=True)
    )
    return scored_ranks(((id, part) for id, part in parts if id in wanted), scorers, counts)


def scored_ranks(
    parts: Iterable[tuple[str, RankTrace]], scorers: Sequence[Any], counts: Sequence[int]
) -> list[Given]:
    """What the package's scorers say of ranks, each by its id and as a trace of its own."""
    methods = [_method(scorer.name) for scorer in scorers]
    for id, part in parts:
        for method, scorer in zip(methods, scorers, strict=True):
            for count in counts:
                windows = scorer.score(Trace([part]), count)
                scores = np.asarray(windows.scores, dtype=np.float64)
                method.found[id, count] = scores, _types(windows.types, count)
    return methods


def _method(name: str) -> Given:
    """Shares that findings cover are learned from nothing, and no chances."""
    if name == "evidence":
        return Given(name, "none", is_probability=False)
    return Given(name, "trace" if name == "paper" else "window")


def _types(by_name: Mapping[str, Any], count: int) -> Array:
    """float64 `[W, T]`; types that no fault has are left out."""
    columns = [np.asarray(by_name.get(name, np.zeros(count)), dtype=np.float64) for name in TYPES]
    return np.stack(columns, axis=1)


def read_scores(path: PathLike) -> Given:
    """A document of `torchtraceap score --json` as a method; a trace is known by the end of its
    path, which has to be its id. It may have a `name` for the row, and say from which `labels` the
    scorer learned.

    Raises:
        MissingFileError: There is no such file.
        SchemaError: It is no such document.
    """
    place = Path(path)
    if not place.exists():
        raise MissingFileError(f"{path}: no such file")
    try:
        document = json.loads(place.read_text("utf-8"))
        if document["schema"] != SCORES:
            raise SchemaError(f"{path}: its schema is {document['schema']!r}, not {SCORES!r}")
        method = Given(
            document.get("name", document["scorer"]), str(document.get("labels", "window"))
        )
        for trace in document["traces"]:
            if "error" in trace:
                continue
            scores = np.asarray(trace["scores"], dtype=np.float64)
            types = _types(trace["types"], len(scores))
            for name in _names(trace["path"]):
                method.found[name, len(scores)] = scores, types
    except TraceError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"{path}: no document of scores ({error!r})") from None
    return method


def _names(path: str) -> list[str]:
    """Ids that a path may stand for: of one rank, and of a rank in the folder of its run."""
    for suffix in _SUFFIXES:
        path = path.removesuffix(suffix)
    parts = Path(path).parts
    return [parts[-1], "/".join(parts[-2:])]
