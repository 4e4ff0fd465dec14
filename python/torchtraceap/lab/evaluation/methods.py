"""`METHODS`: every method of the benchmark by name, in the order of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.baselines.one_class import Forest, KMeans, Neighbours, Pca
from torchtraceap.lab.evaluation.baselines.protocol import Method
from torchtraceap.lab.evaluation.baselines.rtfm import Rtfm
from torchtraceap.lab.evaluation.baselines.simple import Chance, Rule, TraceConstant
from torchtraceap.lab.evaluation.baselines.trees import (
    CopiedTrees,
    SelfTrainedTrees,
    SupervisedTrees,
)
from torchtraceap.lab.evaluation.events import GpuEvents

__all__ = [
    "ABLATIONS",
    "LANGUAGE_MODEL",
    "METHODS",
    "NOT_HERE",
    "WANTED_SCORERS",
    "check_names",
    "make_methods",
]

Maker = Callable[[Mapping[str, GpuEvents]], Method]


def _without_events(make: Callable[[], Method]) -> Maker:
    return lambda events: make()


METHODS: dict[str, Maker] = {
    "chance": _without_events(Chance),
    "rule": Rule,
    "kmeans": _without_events(KMeans),
    "forest-all": _without_events(partial(Forest, good_only=False)),
    "forest-good": _without_events(partial(Forest, good_only=True)),
    "knn": _without_events(Neighbours),
    "pca": _without_events(Pca),
    "trees-w-copied": _without_events(CopiedTrees),
    "trees-w-self": _without_events(SelfTrainedTrees),
    "rtfm": _without_events(Rtfm),
    "trees-s": _without_events(SupervisedTrees),
    "trees-s-constant": _without_events(lambda: TraceConstant(SupervisedTrees())),
}
"""Those that are fitted here; the package's scorers stand below them."""
WANTED_SCORERS = ("evidence", "structural", "paper", "v2", "fused")


@dataclass(frozen=True)
class Missing:
    """A method of the protocol that has no scores here."""

    name: str
    labels: str
    why: str


LANGUAGE_MODEL = "language model, 5 parts of a trace"
"""The method whose scores `torchtraceap judge --way parts` writes."""
_NO_SCORES = "needs a training run of its own: give its scores by --scores"
NOT_HERE = (
    Missing("paper, losses as printed", "trace", _NO_SCORES),
    Missing("paper, losses corrected", "trace", _NO_SCORES),
    Missing("v2-W", "trace", _NO_SCORES),
    Missing(LANGUAGE_MODEL, "none", "needs a model that a user supplies"),
)
"""Rows that say why they have no numbers, until a document of scores has their name."""
ABLATIONS = tuple(
    (adapter, transformer, relation)
    for relation in (False, True)
    for transformer in (False, True)
    for adapter in (False, True)
)
"""The eight cells of the paper's Table 5: adapter, transformer, relation."""


def make_methods(names: Sequence[str], events: Mapping[str, GpuEvents]) -> list[Method]:
    """Those of these names that are fitted here, not yet fitted."""
    return [METHODS[name](events) for name in names if name in METHODS]


def check_names(names: Sequence[str]) -> None:
    """Raises OptionError for a name that is neither a method nor a scorer."""
    known = (*METHODS, *WANTED_SCORERS)
    for name in names:
        if name not in known:
            raise OptionError(f"there is no method {name!r}: {', '.join(known)}")
