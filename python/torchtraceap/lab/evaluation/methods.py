"""Methods of the benchmark by name, in the order of its tables, and scores that are there
already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core import Array, PathLike, read_json
from torchtraceap.datasets import TYPES, Sample, labeled_ranks, labeled_runs
from torchtraceap.errors import MissingFileError, OptionError, SchemaError, TraceError
from torchtraceap.lab.evaluation.baselines import (
    Chance,
    Forest,
    GpuEvents,
    KMeans,
    Method,
    Neighbors,
    Pca,
    Rule,
    TraceConstant,
)
from torchtraceap.lab.evaluation.learned_baselines import (
    CopiedTrees,
    Rtfm,
    SelfTrainedTrees,
    SupervisedTrees,
)
from torchtraceap.trace import RankTrace, Trace

__all__ = [
    "ABLATIONS",
    "LANGUAGE_MODEL",
    "METHODS",
    "NOT_HERE",
    "SCORES",
    "WANTED_SCORERS",
    "StoredScores",
    "check_names",
    "make_methods",
    "read_scores",
    "scored_ranks",
    "scorer_methods",
]

METHODS: dict[str, Callable[[Mapping[str, GpuEvents]], Method]] = {
    "chance": lambda events: Chance(),
    "rule": Rule,
    "kmeans": lambda events: KMeans(),
    "forest-all": lambda events: Forest(good_only=False),
    "forest-good": lambda events: Forest(good_only=True),
    "knn": lambda events: Neighbors(),
    "pca": lambda events: Pca(),
    "trees-w-copied": lambda events: CopiedTrees(),
    "trees-w-self": lambda events: SelfTrainedTrees(),
    "rtfm": lambda events: Rtfm(),
    "trees-s": lambda events: SupervisedTrees(),
    "trees-s-constant": lambda events: TraceConstant(SupervisedTrees()),
}
"""Makers of the methods that are fitted here; the package's scorers stand below them."""
WANTED_SCORERS = ("evidence", "structural", "paper", "v2", "fused")
LANGUAGE_MODEL = "language model, 5 parts of a trace"
"""The method whose scores `torchtraceap judge --way parts` writes."""
_NO_SCORES = "needs a training run of its own: give its scores by --scores"
NOT_HERE = (
    ("paper, losses as printed", "trace", _NO_SCORES),
    ("paper, losses corrected", "trace", _NO_SCORES),
    ("v2-W", "trace", _NO_SCORES),
    (LANGUAGE_MODEL, "none", "needs a model that a user supplies"),
)
"""Methods of the protocol that have no scores here until a document of scores has their name: name,
labels, and why."""
ABLATIONS = tuple(
    (adapter, transformer, relation)
    for relation in (False, True)
    for transformer in (False, True)
    for adapter in (False, True)
)
"""The eight cells of the paper's Table 5: adapter, transformer, relation."""
SCORES = "torchtraceap.scores/1"
"""The schema of a document of scores."""
_SUFFIXES = (".json.gz", ".json", ".parquet")


def make_methods(names: Sequence[str], events: Mapping[str, GpuEvents]) -> list[Method]:
    """Return the methods of these names that are fitted here, not yet fitted."""
    return [METHODS[name](events) for name in names if name in METHODS]


def check_names(names: Sequence[str]) -> None:
    """Raise OptionError for a name that is neither a method nor a scorer."""
    known = (*METHODS, *WANTED_SCORERS)
    for name in names:
        if name not in known:
            raise OptionError(f"there is no method {name!r}: {', '.join(known)}")


# ------------------------------------------------------------------------------ scores


@dataclass
class StoredScores:
    """A method whose scores are looked up."""

    name: str
    labels: str = "window"
    is_random: bool = False
    is_probability: bool = True
    found: dict[tuple[str, int], tuple[Array, Array]] = field(default_factory=dict)
    """Scores `[W]` and types `[W, T]` by the trace and the number of windows."""

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        """Learn nothing: it was fitted before."""

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
) -> list[StoredScores]:
    """Return the scores of traces by the package's scorers, each rank alone, as its labels are.

    Args:
        dataset: A data set.
        ids: Ids of its traces.
        scorers: Each has `name` and `score(trace, count)`.
        counts: Numbers of windows.

    Raises:
        MissingFileError: A trace is missing.
    """
    wanted = set(ids)
    runs = labeled_runs(dataset) if scorers else ()
    ranks = labeled_ranks(runs, lambda label: label["id"] in wanted)
    return scored_ranks(((label["id"], part) for label, part in ranks), scorers, counts)


def scored_ranks(
    parts: Iterable[tuple[str, RankTrace]], scorers: Sequence[Any], counts: Sequence[int]
) -> list[StoredScores]:
    """Return the scores of ranks by the package's scorers, each by its id and as a trace of its
    own."""
    methods = []
    for scorer in scorers:
        labels = {"evidence": "none", "paper": "trace"}.get(scorer.name, "window")
        # Shares that findings cover are no chances.
        methods.append(StoredScores(scorer.name, labels, is_probability=scorer.name != "evidence"))
    for id, part in parts:
        for method, scorer in zip(methods, scorers, strict=True):
            for count in counts:
                windows = scorer.score(Trace([part]), count)
                scores = np.asarray(windows.scores, dtype=np.float64)
                method.found[id, count] = scores, _types(windows.types, count)
    return methods


def _types(by_name: Mapping[str, Any], count: int) -> Array:
    """float64 `[W, T]`; types that no fault has are left out."""
    columns = [np.asarray(by_name.get(name, np.zeros(count)), dtype=np.float64) for name in TYPES]
    return np.stack(columns, axis=1)


def read_scores(path: PathLike) -> StoredScores:
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
        document = read_json(place)
        if document["schema"] != SCORES:
            raise SchemaError(f"{path}: its schema is {document['schema']!r}, not {SCORES!r}")
        method = StoredScores(
            document.get("name", document["scorer"]), str(document.get("labels", "window"))
        )
        for trace in document["traces"]:
            if "error" in trace:
                continue
            scores = np.asarray(trace["scores"], dtype=np.float64)
            types = _types(trace["types"], len(scores))
            path_of_trace = trace["path"]
            for suffix in _SUFFIXES:
                path_of_trace = path_of_trace.removesuffix(suffix)
            parts = Path(path_of_trace).parts
            # An id is of one rank, or of a rank in the folder of its run.
            for name in (parts[-1], "/".join(parts[-2:])):
                method.found[name, len(scores)] = scores, types
    except TraceError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise SchemaError(f"{path}: no document of scores ({error!r})") from None
    return method
