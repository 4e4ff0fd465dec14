"""Labelled traces, diagnosed one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.datasets.labels import TYPES, costs_of, window_costs, window_labels
from torchtraceap.datasets.runs import labeled_runs
from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.test_access import log_look
from torchtraceap.trace.trace import Trace

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array, PathLike
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.explain import Judge

__all__ = ["JudgeOf", "Labelled", "labelled_traces"]

JudgeOf = Callable[["Diagnosis"], "Judge"]
"""The judge of a diagnosis."""


@dataclass(frozen=True)
class Labelled:
    """A trace of one rank with what is known of its W windows."""

    id: str
    diagnosis: Diagnosis
    positive: Array
    """bool `[W]`: a tenth of the window is lost, or more."""
    ignore: Array
    """bool `[W]`: neither positive nor negative."""
    types: Array
    """int64 `[W]`: place in `TYPES` of what costs most in a positive window; -1 elsewhere, and
    where it is not known."""
    already: frozenset[str]
    """Types that were there before a fault was put in: labels say nothing of what they cost."""

    @staticmethod
    def of(label: dict[str, Any], diagnosis: Diagnosis) -> Labelled:
        """With a label as `generate` writes it."""
        bounds_ns = np.asarray(diagnosis.windows.bounds_ns, dtype=np.int64)
        cost = window_costs(costs_of(label), bounds_ns)
        positive, ignore = window_labels(cost)
        types = np.where(positive, cost.argmax(axis=1), -1).astype(np.int64)
        return Labelled(
            id=label["id"],
            diagnosis=diagnosis,
            positive=positive,
            ignore=ignore,
            types=types,
            already=frozenset(label["already"]),
        )

    @property
    def type_names(self) -> list[str]:
        """The same as `types`; empty where there is none."""
        return [TYPES[code] if code >= 0 else "" for code in self.types.tolist()]


def labelled_traces(
    dataset: PathLike, splits: Sequence[str], windows: int, *, asked: str, why: str | None = None
) -> Iterator[Labelled]:
    """The traces of some splits; each is let go before the next one is read.

    Each rank is a trace of its own, as its labels are, and as `evaluate` has scorers look at it.

    Args:
        dataset: A data set, or a folder that `generate` made.
        splits: Of it; test splits need `why`, and are a look that is written down.
        windows: Of a trace.
        asked: Who is evaluated, for the log of looks.
        why: What a look at test labels is for.

    Raises:
        OptionError: A test split without a reason, or a split without traces.
        MissingFileError: There is no such folder, or a trace is missing.
        SchemaError: It is no data set, or its labels can't be read.
    """
    log_look(dataset, splits, [asked], why)
    runs = labeled_runs(dataset)
    there = {run.labels[0]["split"] for run in runs}
    for split in splits:
        if split not in there:
            raise OptionError(f"{dataset}: has no traces of the split {split!r}")
    for run in runs:
        if run.labels[0]["split"] in splits:
            for label, part in zip(run.labels, run.load().ranks, strict=True):
                yield Labelled.of(label, Trace([part]).diagnose(windows=windows))
