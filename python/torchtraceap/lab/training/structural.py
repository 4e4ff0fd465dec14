"""Train `structural`: boosted trees on window features.

Note [Labels of the tracks]: in track S a window's label is what its generator or curator says
of it, and windows whose fault is small (`Sample.ignore`) are left out. In track W only the trace's
label counts: the windows of traces with a fault that an isolation forest, fitted on good traces,
finds strangest are taken as faults, and further rounds learn from the trees before. Types are
learned from windows with a fault alone.

Validation data calibrate the score, and choose nothing else here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import lightgbm
import numpy as np
import numpy.typing as npt
from sklearn.ensemble import IsolationForest

from torchtraceap.core import Array, PathLike, progress_stage
from torchtraceap.datasets import TYPES, Sample, load_samples
from torchtraceap.diagnosis import (
    ZSCORE_SUFFIX,
    StructuralScorer,
    WindowFigures,
    columns_of,
    read_weights,
    write_weights,
)
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.figures import clear_windows, platt, window_figures
from torchtraceap.lab.training.settings import RunOptions, Trained, take
from torchtraceap.tables import feature_names

__all__ = ["BoosterView", "TreeSettings", "boosted_trees", "train"]

VERSION = "1"
_SUREST, _UNSURE = 0.15, 0.25
"""Parts of the windows of traces with a fault, in track W: faults, and those left out."""


@dataclass(frozen=True)
class TreeSettings:
    """Settings of the trees; `[trees]` in a file."""

    track: str = "S"
    """S: from labels of windows; W: from labels of traces. See Note [Labels of the tracks]."""
    view: str = "both"
    """Columns that the trees of *any* see: "absolute", features; "relative", shares and z-scores;
    "both", boosters of the one kind and of the other. See `views_of`."""
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
    """Trees of each type."""
    seeds: int = 1
    """Boosters of each view. The mean of all is taken."""
    time_scale: float = 0.7
    """Standard deviation of the logarithm of a factor by which a trace's times are stretched; a
    stretched copy of each trace is learned from beside it. 0: none."""
    isolation_trees: int = 100
    """Of the forest that chooses windows in track W."""

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
    dataset: PathLike, out: PathLike, tables: Mapping[str, Any], **run: Unpack[RunOptions]
) -> Trained:
    """Train on the split "train", calibrate on "validation"; see `training.train`. A call takes
    some minutes and is never cut off, so there is nothing to resume.

    Raises:
        OptionError: There is nothing to learn from.
    """
    settings, seed = take(TreeSettings, tables, "trees"), run["seed"]
    grids = (50, 100, 200) if settings.grids == 3 else (100,)
    learned = [
        sample
        for count in grids
        for sample in load_samples(dataset, splits=["train"], windows=count)
    ]
    if settings.excerpts and settings.track == "S":
        learned += load_samples(dataset, splits=["train"], excerpts=True)
    held_out = load_samples(dataset, splits=["validation"])
    if not any(sample.positive.any() for sample in learned) or not held_out:
        raise OptionError("traces with a fault, and some to validate with, are needed to train")
    names = column_names()
    table = table_of(learned, names, settings.time_scale, seed)
    with progress_stage("fitting trees"):
        trees = {
            "any": boosted_trees(any_boosters(table, settings, seed), 1),
            "type": boosted_trees(type_boosters(table, settings, seed), len(TYPES)),
        }
    arrays = {f"{kind}.{name}": each for kind, of in trees.items() for name, each in of.items()}
    arrays["calibration"] = np.array([1.0, 0.0])
    about = {
        "scorer": StructuralScorer.name, "version": VERSION, "types": list(TYPES),
        "columns": list(names), "settings": asdict(settings), "seed": seed,
        "traces": len({sample.id for sample in learned}),
    }  # fmt: skip
    path = Path(out) / f"{StructuralScorer.name}.safetensors"
    write_weights(path, arrays, about)
    scorer = StructuralScorer(read_weights(path))
    logits = [figures_of(scorer, sample).logit for sample in held_out]
    arrays["calibration"] = np.array(platt(*clear_windows(logits, held_out)))
    figures = window_figures(logits, held_out)
    write_weights(path, arrays, about | {"validation": figures})
    return Trained(path, figures, finished=True)


def column_names() -> tuple[str, ...]:
    """Return the names of features, and of their z-scores."""
    names = feature_names()
    return (*names, *(name + ZSCORE_SUFFIX for name in names))


def views_of(view: str) -> list[npt.NDArray[np.intp]]:
    """Places of columns that boosters see, one set for each kind of booster.

    Features are best on machines like those learned from; shares and z-scores, which have no
    scale, are as good on others.
    """
    names = column_names()
    views = {
        "absolute": [not name.endswith(ZSCORE_SUFFIX) for name in names],
        "relative": [name.endswith((ZSCORE_SUFFIX, "_share", "_ratio")) for name in names],
    }
    return [np.flatnonzero(seen) for name, seen in views.items() if view in (name, "both")]


def figures_of(scorer: StructuralScorer, sample: Sample) -> WindowFigures:
    """Return the output of the trees for a sample's windows."""
    return scorer.figures(list(feature_names()), sample.values, sample.zscores)


def table_of(
    samples: Sequence[Sample], columns: Sequence[str], time_scale: float = 0.0, seed: int = 0
) -> Table:
    """Return the windows of traces, and of stretched copies of them."""
    names = feature_names()
    copies = [(sample, sample.values) for sample in samples]
    if time_scale:
        draw = np.random.default_rng(seed)
        factors = np.exp(time_scale * draw.standard_normal(len(samples)))
        for sample, factor in zip(samples, factors, strict=True):
            # The same trace, had all of it taken `factor` times as long. z-scores stay.
            stretched = sample.values.copy()
            for place, name in enumerate(names):
                if name.endswith("_log10_us"):
                    stretched[:, place] += np.log10(factor)
                elif name.endswith("_us"):
                    stretched[:, place] *= factor
            copies.append((sample, stretched))
    return Table(
        columns=np.concatenate(
            [columns_of(columns, names, values, sample.zscores) for sample, values in copies]
        ),
        positive=np.concatenate([sample.positive for sample, _ in copies]),
        ignore=np.concatenate([sample.ignore for sample, _ in copies]),
        type=np.concatenate([sample.cost.argmax(axis=1) for sample, _ in copies]),
        bad=np.concatenate([np.full(len(sample.positive), sample.label) for sample, _ in copies]),
    )


def any_boosters(table: Table, settings: TreeSettings, seed: int) -> list[BoosterView]:
    """Fit a booster for each view and seed."""
    positive, used = table.positive, ~table.ignore
    if settings.track == "W":
        absolute = table.columns * [not name.endswith(ZSCORE_SUFFIX) for name in column_names()]
        forest = IsolationForest(n_estimators=settings.isolation_trees, random_state=seed)
        strange = -forest.fit(absolute[~table.bad]).score_samples(absolute)
        for _ in range(2):
            positive, used = pseudo_labels(strange, table.bad)
            booster = _boosted(table.columns[used], positive[used], settings, seed)
            strange = np.asarray(booster.predict(table.columns, raw_score=True))
        positive, used = pseudo_labels(strange, table.bad)
    columns, labels = table.columns[used], positive[used]
    return [
        BoosterView(
            _boosted(columns[:, view], labels, settings, seed * settings.seeds + place), view
        )
        for view in views_of(settings.view)
        for place in range(settings.seeds)
    ]


def pseudo_labels(
    strange: Array, bad: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which windows are taken for faults, and which are learned from: of bad traces the
    strangest are faults, and the next are left out."""
    high, low = np.quantile(strange[bad], [1.0 - _SUREST, 1.0 - _SUREST - _UNSURE])
    positive = bad & (strange >= high)
    return positive, ~bad | positive | (strange < low)


def _boosted(
    columns: Array, positive: Array, settings: TreeSettings, seed: int
) -> lightgbm.Booster:
    data = lightgbm.Dataset(columns, positive)
    return lightgbm.train(_options(settings, seed) | {"objective": "binary"}, data, settings.trees)


def type_boosters(table: Table, settings: TreeSettings, seed: int) -> list[BoosterView]:
    """Fit a booster of types to the windows with a fault."""
    chosen = table.positive
    (view,) = views_of("absolute")
    data = lightgbm.Dataset(table.columns[chosen][:, view], table.type[chosen])
    options = _options(settings, seed) | {
        "objective": "multiclass", "num_class": len(TYPES), "learning_rate": 0.1,
    }  # fmt: skip
    return [BoosterView(lightgbm.train(options, data, settings.type_trees), view)]


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


# ------------------------------------------------------------------------------ trees as arrays


class _TreeWriter:
    """A collector of splits and leaves; every child is written behind its parent."""

    def __init__(self) -> None:
        self._splits: list[list[float]] = []
        self._leaves: list[float] = []
        self._roots: list[tuple[int, int]] = []

    def add_leaf(self, value: float) -> int:
        self._leaves.append(value)
        return ~(len(self._leaves) - 1)

    def add_split(self, feature: int, threshold: float) -> int:
        self._splits.append([feature, threshold, 0, 0])
        return len(self._splits) - 1

    def join(self, split: int, left: int, right: int) -> None:
        self._splits[split][2:] = left, right

    def add_tree(self, root: int, output: int) -> None:
        self._roots.append((root, output))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that `scoring.trees` reads."""
        splits = np.array(self._splits, dtype=np.float64).reshape(-1, 4)
        roots = np.array(self._roots, dtype=np.int32).reshape(-1, 2)
        return {
            "feature": splits[:, 0].astype(np.int32),
            "threshold": splits[:, 1].copy(),
            "left": splits[:, 2].astype(np.int32),
            "right": splits[:, 3].astype(np.int32),
            "leaf": np.array(self._leaves, dtype=np.float64),
            "root": roots[:, 0].copy(),
            "output": roots[:, 1].copy(),
        }


@dataclass(frozen=True)
class BoosterView:
    """A booster of LightGBM with the columns that it sees."""

    booster: Any
    columns: Array
    """int `[n]`."""

    def predict(self, columns: Array) -> Array:
        """float64 `[rows]` or `[rows, classes]`: raw scores."""
        return np.asarray(self.booster.predict(columns[:, self.columns], raw_score=True))


def boosted_trees(boosters: Iterable[BoosterView], outputs: int) -> dict[str, Array]:
    """Return the trees of boosters as flat arrays; several are averaged.

    Args:
        boosters: Trained without missing values and without categories.
        outputs: Trees of one round, which take turns.
    """
    chosen = list(boosters)
    writer = _TreeWriter()
    for seeing in chosen:
        for place, tree in enumerate(seeing.booster.dump_model()["tree_info"]):
            weight = 1.0 / len(chosen)
            root = _add_boosted(writer, tree["tree_structure"], seeing.columns, weight)
            writer.add_tree(root, place % outputs)
    return writer.arrays()


def _add_boosted(writer: _TreeWriter, node: dict[str, Any], columns: Array, weight: float) -> int:
    if "leaf_value" in node:
        return writer.add_leaf(node["leaf_value"] * weight)
    if node["decision_type"] != "<=" or node["missing_type"] not in ("None", "NaN"):
        raise ValueError(f"a split of another kind: {node['decision_type']}")
    split = writer.add_split(int(columns[node["split_feature"]]), node["threshold"])
    left, right = (
        _add_boosted(writer, node[side], columns, weight) for side in ("left_child", "right_child")
    )
    writer.join(split, left, right)
    return split
