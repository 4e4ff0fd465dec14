"""Train `fused`: a logistic model over what the trees and the rules say.

Note [Strangers]: trees are surest of runs like those that they learned from. What is stacked is
therefore what trees say of faults and GPUs that they did not learn from: for each GPU, and a third
of the types in turn, they are fitted to the others. So the stack trusts them as far as they may be
trusted on traces from elsewhere. Validation data calibrate the whole. Of which type a fault is,
trees say of GPUs alone that they did not learn from: of types that they never saw they say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from sklearn.linear_model import LogisticRegression

from torchtraceap.core import Array, PathLike, progress_stage
from torchtraceap.datasets import TYPES, Sample, load_samples
from torchtraceap.diagnosis import (
    FUSED_INPUTS,
    TREES_ALONE,
    FusedScorer,
    StructuralScorer,
    WindowFigures,
    fused_inputs,
    read_weights,
    type_inputs,
    type_shares,
    write_weights,
)
from torchtraceap.errors import OptionError
from torchtraceap.lab.training import structural
from torchtraceap.lab.training.figures import (
    choice_weights,
    clear_windows,
    platt,
    window_figures,
)
from torchtraceap.lab.training.settings import RunOptions, Trained, take
from torchtraceap.lab.training.structural import (
    TreeSettings,
    any_boosters,
    column_names,
    figures_of,
    forest_columns,
    isolation_forest,
    table_of,
    type_boosters,
)

__all__ = ["train"]

VERSION = "3"
_TYPE_PARTS = 3
_QUICKER = 3
"""Fewer trees, each of which counts more, where many are fitted for their output alone."""


def train(
    dataset: PathLike, out: PathLike, tables: Mapping[str, Any], **run: Unpack[RunOptions]
) -> Trained:
    """Train the trees as `structural` does, and the stack on top of them; `out` has both.

    Raises:
        OptionError: There is nothing to learn from, or traces are of a single GPU.
    """
    base, seed = structural.train(dataset, out, tables, **run), run["seed"]
    settings = take(TreeSettings, tables, "trees")
    quick = replace(
        settings,
        seeds=1,
        trees=max(1, settings.trees // _QUICKER),
        type_trees=max(1, settings.type_trees // _QUICKER),
        rate=min(1.0, settings.rate * _QUICKER),
    )
    learned = load_samples(dataset, splits=["train"])
    held_out = load_samples(dataset, splits=["validation"])
    with progress_stage("fitting trees without some GPUs and types"):
        said = _stranger_figures(learned, quick, seed)
        type_weights = _type_weights(learned, quick, seed)
    rows = [fused_inputs(said[sample.id], sample.evidence) for sample in learned]
    model = LogisticRegression(C=100.0, max_iter=1000).fit(*clear_windows(rows, learned))
    weights = np.append(model.coef_[0], model.intercept_[0])
    path = Path(out) / f"{FusedScorer.name}.safetensors"
    scorer = StructuralScorer(read_weights(base.weights or path))
    rows = [fused_inputs(figures_of(scorer, sample), sample.evidence) for sample in held_out]
    logits = [row @ weights[:-1] + weights[-1] for row in rows]
    slope, intercept = platt(*clear_windows(logits, held_out))
    weights = weights * slope + np.append(np.zeros(len(FUSED_INPUTS)), intercept)
    figures = window_figures(logits, held_out)
    about = {
        "scorer": FusedScorer.name,
        "version": VERSION,
        "inputs": list(FUSED_INPUTS),
        "seed": seed,
    }
    arrays = {"weights": weights, "type_weights": type_weights}
    write_weights(path, arrays, about | {"validation": figures})
    return Trained(path, figures, finished=True)


def _stranger_figures(
    samples: Sequence[Sample], settings: TreeSettings, seed: int
) -> dict[str, WindowFigures]:
    """Return the output of trees that learned from other GPUs and other types, by id of the trace.
    See Note [Strangers]."""
    devices = sorted({sample.device or "" for sample in samples})
    if len(devices) < 2:
        raise OptionError("traces of two GPUs or more are needed to learn how far trees carry")
    names = column_names()
    part_of = {
        sample.id: (TYPES.index(sample.type) if sample.type else place) % _TYPE_PARTS
        for place, sample in enumerate(samples)
    }
    figures: dict[str, WindowFigures] = {}
    for device, part in product(devices, range(_TYPE_PARTS)):
        near = [sample for sample in samples if (sample.device or "") == device]
        far = [sample for sample in samples if (sample.device or "") != device]
        others = [sample for sample in far if not sample.type or part_of[sample.id] != part]
        strangers = [sample for sample in near if part_of[sample.id] == part]
        if not strangers:
            continue
        table = table_of(others, names)
        forest = isolation_forest(table, settings, seed)
        boosters = any_boosters(table, forest, settings, seed)
        for sample in strangers:
            columns = table_of([sample], names).columns
            logit = np.mean([booster.predict(columns) for booster in boosters], axis=0)
            strangeness = -forest.score_samples(forest_columns(columns))
            figures[sample.id] = WindowFigures(logit, strangeness, np.empty((0, 0)))
    return figures


def _type_weights(samples: Sequence[Sample], settings: TreeSettings, seed: int) -> Array:
    """Return float64 `[type inputs]`: weights of types by trees that learned from other GPUs, and
    by rules."""
    faulty = [sample for sample in samples if sample.positive.any()]
    names, rows, kinds = column_names(), [], []
    for device in sorted({sample.device or "" for sample in faulty}):
        far = [sample for sample in faulty if (sample.device or "") != device]
        if not far:
            continue
        (booster,) = type_boosters(table_of(far, names), settings, seed)
        for sample in (each for each in faulty if (each.device or "") == device):
            votes = booster.predict(table_of([sample], names).columns)
            shares = type_shares(votes[:, :, None], np.ones(1))
            rows.append(type_inputs(shares, sample.evidence)[sample.positive])
            kinds.append(sample.cost.argmax(axis=1)[sample.positive])
    if not rows:
        return np.array(TREES_ALONE)
    return choice_weights(np.concatenate(rows), np.concatenate(kinds))
