"""Train `fused`: a logistic model over what the trees and the rules say.

Note [Strangers]: trees are surest of runs like those that they learned from, so the stack is fitted
to the split "validation", which they did not learn from. Add recorded runs with planted faults to
it (`dataset add`), and the stack trusts the trees as far as they may be trusted on recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from sklearn.linear_model import LogisticRegression

from torchtraceap.core import Array, PathLike
from torchtraceap.datasets import load_samples
from torchtraceap.diagnosis import (
    FUSED_INPUTS,
    FusedScorer,
    StructuralScorer,
    fused_inputs,
    read_weights,
    write_weights,
)
from torchtraceap.lab.training import structural
from torchtraceap.lab.training.figures import LabeledWindows, clear_windows, window_figures
from torchtraceap.lab.training.settings import RunOptions, Trained
from torchtraceap.lab.training.structural import figures_of

__all__ = ["fit_stack", "train", "write_stack"]

VERSION = "4"


def train(
    dataset: PathLike, out: PathLike, tables: Mapping[str, Any], **run: Unpack[RunOptions]
) -> Trained:
    """Train the trees as `structural` does, and the stack on top of them; `out` has both.

    Raises:
        OptionError: There is nothing to learn from.
    """
    base, seed = structural.train(dataset, out, tables, **run), run["seed"]
    path = Path(out) / f"{FusedScorer.name}.safetensors"
    scorer = StructuralScorer(read_weights(base.weights or path))
    held_out = load_samples(dataset, splits=["validation"])
    rows = [fused_inputs(figures_of(scorer, sample).logit, sample.surprisal) for sample in held_out]
    weights = fit_stack(rows, held_out)
    figures = window_figures([row @ weights[:-1] + weights[-1] for row in rows], held_out)
    write_stack(path, weights, {"seed": seed, "validation": figures})
    return Trained(path, figures, finished=True)


def fit_stack(rows: Sequence[Array], labels: Sequence[LabeledWindows]) -> Array:
    """Return the weights of `FUSED_INPUTS`, and the intercept behind them, float64 `[inputs + 1]`.

    Args:
        rows: float64 `[W, inputs]` of each trace.
        labels: The traces; each counts alike.
    """
    values, positive = clear_windows(rows, labels)
    sizes = [int((~each.ignore).sum()) for each in labels]
    each_window = np.concatenate([np.full(size, 1 / max(size, 1)) for size in sizes])
    scale = values.std(axis=0) + np.finfo(np.float64).tiny
    model = LogisticRegression(C=100.0, max_iter=1000).fit(
        values / scale, positive, sample_weight=each_window * len(values) / len(labels)
    )
    return np.append(model.coef_[0] / scale, model.intercept_[0])


def write_stack(path: Path, weights: Array, about: Mapping[str, Any]) -> None:
    """Write the file that `scoring.fused` reads.

    Args:
        path: Path of the file.
        weights: float64 `[inputs + 1]`.
        about: Further metadata.
    """
    about = {
        "scorer": FusedScorer.name, "version": VERSION, "inputs": list(FUSED_INPUTS), **about,
    }  # fmt: skip
    write_weights(path, {"weights": weights}, about)
