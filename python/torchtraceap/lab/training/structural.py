"""Trains `structural`: boosted trees and an isolation forest on window features.

Note [What the trees learn from]: in track S a window's label is what its generator or curator says
of it, and windows whose fault is small (`Sample.ignore`) are left out. In track W only the trace's
label counts: the windows of traces with a fault that an isolation forest, fitted on good traces,
finds strangest are taken as faults, and further rounds learn from the trees before. Types are
learned from windows with a fault alone.

Validation data calibrate the score, and choose nothing else here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
from sklearn.ensemble import IsolationForest

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.progress import progress_stage
from torchtraceap.datasets.samples import TYPES, Sample, load_samples
from torchtraceap.diagnosis.scoring.structural import StructuralScorer, WindowFigures, Z, columns_of
from torchtraceap.diagnosis.scoring.weight_files import read_weights, write_weights
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.figures import platt, window_figures
from torchtraceap.lab.training.result import Trained
from torchtraceap.lab.training.settings import take
from torchtraceap.lab.training.tree_arrays import Seeing, boosted_trees, isolation_trees

__all__ = ["TreeSettings", "train"]

VERSION = "1"


@dataclass(frozen=True)
class TreeSettings:
    """What is learned, and how; `[trees]` in a file."""

    track: str = "S"
    """S: from labels of windows; W: from labels of traces. See Note [What the trees learn from]."""
    view: str = "both"
    """What the trees of *any* see: "absolute", features; "relative", shares and z-scores; "both",
    boosters of the one kind and of the other. See `views_of`."""
    grids: int = 3
    """1: windows of the grid of 100; 3: of those of 50, 100 and 200."""
    excerpts: bool = True
    """A short excerpt of each run is learned from beside it, in track S."""
    trees: int = 300
    leaves: int = 15
    rate: float = 0.05
    least: int = 50
    """Windows in a leaf."""
    type_trees: int = 60
    """Of each type."""
    seeds: int = 1
    """Boosters of each view. The mean of all is taken."""
    time_scale: float = 0.7
    """Standard deviation of the logarithm of a factor by which a trace's times are stretched; a
    stretched copy of each trace is learned from beside it. 0: none."""
    isolation_trees: int = 100

    def __post_init__(self) -> None:
        counts = (self.trees, self.leaves, self.least, self.type_trees, self.seeds, self.grids)
        if min(*counts, self.isolation_trees) < 1 or self.leaves < 2 or not 0 < self.rate <= 1:
            raise OptionError(f"[trees]: these settings make no sense: {self}")
        if self.view not in ("absolute", "relative", "both"):
            raise OptionError(f"[trees]: there is no view {self.view!r}")
        if self.track not in ("S", "W") or self.grids not in (1, 3) or self.time_scale < 0:
            raise OptionError(f"[trees]: these settings make no sense: {self}")


@dataclass(frozen=True)
class Table:
    """Windows of many traces below each other."""

    columns: npt.NDArray[np.float64]
    """`[n, columns]`."""
    positive: npt.NDArray[np.bool_]
    """`[n]`."""
    ignore: npt.NDArray[np.bool_]
    """`[n]`."""
    type: npt.NDArray[np.int64]
    """`[n]`: place in `TYPES` of the type that costs most."""
    bad: npt.NDArray[np.bool_]
    """`[n]`: the trace has a fault."""


def train(
    dataset: PathLike,
    out: PathLike,
    tables: Mapping[str, Any],
    *,
    seed: int = 0,
    resume: bool = False,
    minutes: float | None = None,
) -> Trained:
    """Trains on the split "train", calibrates on "validation"; see `training.train`. A call takes
    some minutes and is never cut off, so there is nothing to resume."""
    settings = take(TreeSettings, tables, "trees")
    grids = (50, 100, 200) if settings.grids == 3 else (100,)
    learned = [
        sample
        for count in grids
        for sample in load_samples(dataset, splits=["train"], windows=count)
    ]
    if settings.excerpts and settings.track == "S":
        learned += load_samples(dataset, splits=["train"], excerpts=True)
    held_out = load_samples(dataset, splits=["validation"])
    path = Path(out) / f"{StructuralScorer.name}.safetensors"
    figures = train_trees(learned, held_out, settings, path, seed=seed)
    return Trained(path, figures, finished=True)


def train_trees(
    learned: Sequence[Sample],
    held_out: Sequence[Sample],
    settings: TreeSettings,
    path: PathLike,
    *,
    seed: int = 0,
) -> dict[str, float]:
    """Writes the weights, and gives the figures of the traces that were held out.

    Raises:
        OptionError: There is nothing to learn from.
    """
    if not any(sample.positive.any() for sample in learned) or not held_out:
        raise OptionError("traces with a fault, and some to validate with, are needed to train")
    names = column_names()
    table = table_of(learned, names, settings.time_scale, seed)
    with progress_stage("fitting trees"):
        forest = isolation_forest(table, settings, seed)
        arrays = {
            **_prefixed("forest", isolation_trees(forest)),
            **_prefixed("any", boosted_trees(any_boosters(table, forest, settings, seed), 1)),
            **_prefixed("type", boosted_trees(type_boosters(table, settings, seed), len(TYPES))),
            "calibration": np.array([1.0, 0.0]),
        }
    about = {
        "scorer": StructuralScorer.name, "version": VERSION, "types": list(TYPES),
        "columns": list(names), "settings": asdict(settings), "seed": seed,
        "traces": len({sample.id for sample in learned}),
    }  # fmt: skip
    write_weights(path, arrays, about)
    scorer = StructuralScorer(read_weights(path))
    logits = [figures_of(scorer, sample).logit for sample in held_out]
    arrays["calibration"] = np.array(platt(*used(logits, held_out)))
    figures = window_figures(
        logits, [sample.positive for sample in held_out], [sample.ignore for sample in held_out]
    )
    write_weights(path, arrays, about | {"validation": figures})
    return figures


def column_names() -> tuple[str, ...]:
    """Of features, and of their z-scores."""
    names = _core.feature_names()
    return (*names, *(name + Z for name in names))


def views_of(view: str) -> list[npt.NDArray[np.intp]]:
    """Places of columns that boosters see, one set for each kind of booster.

    Features are best on machines like those learned from; shares and z-scores, which have no
    scale, are as good on others.
    """
    names = column_names()
    views = {
        "absolute": [not name.endswith(Z) for name in names],
        "relative": [name.endswith((Z, "_share", "_ratio")) for name in names],
    }
    return [np.flatnonzero(seen) for name, seen in views.items() if view in (name, "both")]


def figures_of(scorer: StructuralScorer, sample: Sample) -> WindowFigures:
    """What the trees say of a sample's windows."""
    return scorer.figures(_core.feature_names(), sample.values, sample.zscores)


def table_of(
    samples: Sequence[Sample], columns: Sequence[str], time_scale: float = 0.0, seed: int = 0
) -> Table:
    """Windows of traces, and of stretched copies of them."""
    names = _core.feature_names()
    copies = [(sample, sample.values) for sample in samples]
    if time_scale:
        draw = np.random.default_rng(seed)
        factors = np.exp(time_scale * draw.standard_normal(len(samples)))
        copies += [
            (sample, _stretched(sample.values, names, factor))
            for sample, factor in zip(samples, factors, strict=True)
        ]
    return Table(
        columns=np.concatenate(
            [columns_of(columns, names, values, sample.zscores) for sample, values in copies]
        ),
        positive=np.concatenate([sample.positive for sample, _ in copies]),
        ignore=np.concatenate([sample.ignore for sample, _ in copies]),
        type=np.concatenate([sample.cost.argmax(axis=1) for sample, _ in copies]),
        bad=np.concatenate([np.full(len(sample.positive), sample.label) for sample, _ in copies]),
    )


def _stretched(values: Array, names: Sequence[str], factor: float) -> Array:
    """Features of the same trace, had all of it taken `factor` times as long. z-scores stay."""
    stretched = values.copy()
    for place, name in enumerate(names):
        if name.endswith("_log10_us"):
            stretched[:, place] += np.log10(factor)
        elif name.endswith("_us"):
            stretched[:, place] *= factor
    return stretched


def isolation_forest(table: Table, settings: TreeSettings, seed: int) -> IsolationForest:
    """Fitted on windows of traces without a fault."""
    forest = IsolationForest(n_estimators=settings.isolation_trees, random_state=seed)
    return forest.fit(seen_by_forest(table.columns[~table.bad]))


def seen_by_forest(columns: Array) -> Array:
    """The features; z-scores of the others are 0, on which no tree splits."""
    return columns * [not name.endswith(Z) for name in column_names()]


def any_boosters(
    table: Table, forest: IsolationForest, settings: TreeSettings, seed: int
) -> list[Seeing]:
    """One for each view and seed."""
    positive, used = _labels(table, forest, settings, seed)
    columns, labels = table.columns[used], positive[used]
    return [
        Seeing(_boosted(columns[:, view], labels, settings, seed * settings.seeds + place), view)
        for view in views_of(settings.view)
        for place in range(settings.seeds)
    ]


def _labels(
    table: Table, forest: IsolationForest, settings: TreeSettings, seed: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which windows are taken to have a fault, and which are learned from."""
    if settings.track == "S":
        return table.positive, ~table.ignore
    strange = -forest.score_samples(seen_by_forest(table.columns))
    for _ in range(2):
        positive, used = pseudo_labels(strange, table.bad)
        booster = _boosted(table.columns[used], positive[used], settings, seed)
        strange = np.asarray(booster.predict(table.columns, raw_score=True))
    return pseudo_labels(strange, table.bad)


def pseudo_labels(
    strange: Array, bad: npt.NDArray[np.bool_], surest: float = 0.15, unsure: float = 0.25
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of windows of bad traces, the strangest are faults and the next are left out."""
    high, low = np.quantile(strange[bad], [1.0 - surest, 1.0 - surest - unsure])
    positive = bad & (strange >= high)
    return positive, ~bad | positive | (strange < low)


def _boosted(
    columns: Array, positive: Array, settings: TreeSettings, seed: int
) -> lightgbm.Booster:
    data = lightgbm.Dataset(columns, positive)
    return lightgbm.train(_options(settings, seed) | {"objective": "binary"}, data, settings.trees)


def type_boosters(table: Table, settings: TreeSettings, seed: int) -> list[Seeing]:
    """Of the windows with a fault."""
    chosen = table.positive
    (view,) = views_of("absolute")
    data = lightgbm.Dataset(table.columns[chosen][:, view], table.type[chosen])
    options = _options(settings, seed) | {
        "objective": "multiclass", "num_class": len(TYPES), "learning_rate": 0.1,
    }  # fmt: skip
    return [Seeing(lightgbm.train(options, data, settings.type_trees), view)]


def _options(settings: TreeSettings, seed: int) -> dict[str, Any]:
    return {
        "num_leaves": settings.leaves,
        "learning_rate": settings.rate,
        "min_child_samples": settings.least,
        "feature_fraction": 0.4,
        "bagging_fraction": 0.6,
        "bagging_freq": 1,
        "lambda_l2": 10.0,
        "max_bin": 127,
        "use_missing": False,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }


def used(scores: Sequence[Array], samples: Sequence[Sample]) -> tuple[Array, Array]:
    """What is said of the windows that have a clear label, `[n]` or `[n, ...]`, and the labels.

    Args:
        scores: Of each trace, `[W]` or `[W, ...]`.
        samples: The traces.
    """
    kept = [~sample.ignore for sample in samples]
    positive = [sample.positive[keep] for sample, keep in zip(samples, kept, strict=True)]
    chosen = [score[keep] for score, keep in zip(scores, kept, strict=True)]
    return np.concatenate(chosen), np.concatenate(positive)


def _prefixed(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}
