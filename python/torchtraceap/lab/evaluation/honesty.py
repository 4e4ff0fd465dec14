"""What has to hold before any other number means something (docs/benchmark.md).

Note [Leaks]: a fault and its twin may differ in nothing but what the fault does. So a model that
knows a trace's bookkeeping alone has to guess, across groups it was not trained on; and of each
pair by itself, no single feature may tell which one has the fault.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.datasets.reader import DataSet, is_dataset
from torchtraceap.datasets.samples import Sample
from torchtraceap.datasets.types import LABELS
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.evaluation.baselines.protocol import Windows
from torchtraceap.lab.evaluation.baselines.trees import SupervisedTrees, make_trees
from torchtraceap.lab.evaluation.bookkeeping import bookkeeping_of
from torchtraceap.lab.evaluation.bootstrap import Interval, draws, interval, replicates
from torchtraceap.lab.evaluation.metrics import Scored, window_auc

__all__ = [
    "Books",
    "HeldOut",
    "Sided",
    "books_of",
    "check_splits",
    "held_out_forms",
    "shuffled_training",
    "sided_features",
    "told_by_bookkeeping",
]

_FOLDS, _REPEATS = 5, 3
_OF_RECORDED = ("real_graph", "event_space")
"""Sources of traces that recorded ones went into."""


@dataclass(frozen=True)
class Books:
    """Bookkeeping of one trace (`bookkeeping_of`), with its label."""

    features: Mapping[str, float]
    label: bool
    group: str
    pair: str
    """Of a trace and its twin."""
    run: str
    """Of the runs that the two belong to: ranks that were recorded together share it."""


def books_of(
    folder: PathLike, splits: Collection[str] = (), *, put_in: bool = False
) -> list[Books]:
    """Bookkeeping of the traces of a data set, or of a folder of `generate` or `collect`.

    Args:
        folder: Of the traces and their labels.
        splits: Of a data set; empty: all. Its traces are written as files again.
        put_in: Whether that counts as a fault which costs too little, or is a decoy: it was put in
            in the same way.

    Raises:
        MissingFileError: There are no labels.
        ParseError: A trace can't be read.
    """
    files = _exported(DataSet(folder), splits) if is_dataset(folder) else _generated(Path(folder))
    known = [(label, bookkeeping_of(path)) for label, path in files]
    faulty = {label["twin"]: label for label, _ in known if label["twin"] is not None}
    found = []
    for label, features in known:
        side = faulty.get(label["id"], label)
        is_bad = label["twin" if put_in else "type"] is not None
        group = label["source"]["base"]
        found.append(Books(features, is_bad, group, side["id"], side["run"]))
    return found


def _generated(folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    place = folder / LABELS
    if not place.exists():
        raise MissingFileError(f"{place}: no such file")
    for line in place.read_text("utf-8").splitlines():
        label = json.loads(line)
        yield label, folder / f"{label['id']}.json.gz"


def _exported(dataset: DataSet, splits: Collection[str]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Each as a file that is there until the next one is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        for label in dataset.labels():
            if not splits or label["split"] in splits:
                _core.write_trace(dataset.table(label["id"]), str(path))
                yield label, path


def check_splits(samples: Sequence[Sample]) -> None:
    """No group, run or twin is in two splits, and what real traces went into is for tests alone.

    Raises:
        SchemaError: One is; the message names it.
    """
    where: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for sample in samples:
        split = sample.split or "none"
        where["group", sample.group].add(split)
        where["run", sample.run].add(split)
        where["trace", sample.id].add(split)
        if sample.twin is not None:
            where["trace", sample.twin].add(split)
        if sample.source in _OF_RECORDED and split in ("train", "validation"):
            raise SchemaError(f"{sample.id}: is made from a real trace and in the split {split!r}")
    for (what, name), splits in where.items():
        if len(splits) > 1:
            raise SchemaError(
                f"the {what} {name!r} is in several splits: {', '.join(sorted(splits))}"
            )


# ------------------------------------------------------------------------- bookkeeping


def told_by_bookkeeping(books: Sequence[Books], seed: int = 0) -> dict[str, Interval]:
    """AUC of trace labels, out of fold by groups, by models that know bookkeeping alone.

    Args:
        books: Of traces of two groups at least.
        seed: Of folds and models.

    Returns:
        By model ("logistic regression", "boosted trees"), with a 95 % interval over groups.

    Raises:
        OptionError: There are fewer groups, or one label alone.
    """
    x, _ = _matrix(books)
    label = np.array([each.label for each in books])
    groups = np.unique([each.group for each in books], return_inverse=True)[1]
    if groups.max(initial=0) < 1 or label.all() or not label.any():
        raise OptionError("two groups, and traces with a fault and without, are needed")
    found = {}
    for name in ("logistic regression", "boosted trees"):
        scores = _out_of_fold(name, x, label, groups, seed)
        every = np.ones(len(label), dtype=bool)
        scored = Scored(scores, label, every, np.arange(len(label)), groups)
        weights = draws(int(groups.max()) + 1)
        found[name] = interval(window_auc(scored), replicates(scored, "auc", weights))
    return found


def _matrix(books: Sequence[Books]) -> tuple[Array, list[str]]:
    names = sorted({name for each in books for name in each.features})
    rows = [[each.features.get(name, np.nan) for name in names] for each in books]
    x = np.array(rows, dtype=np.float64)
    return x, names


def _out_of_fold(name: str, x: Array, label: Array, groups: Array, seed: int) -> Array:
    """Mean log odds over some ways to cut the groups into folds."""
    from sklearn.model_selection import StratifiedGroupKFold

    scores = np.zeros(len(label))
    folds = min(_FOLDS, int(groups.max()) + 1)
    for turn in range(_REPEATS):
        cuts = StratifiedGroupKFold(folds, shuffle=True, random_state=seed + turn)
        for train, test in cuts.split(x, label, groups):
            if len(set(label[train])) < 2:
                continue
            model = _model(name, seed + turn).fit(_filled(x, train, train), label[train])
            chance = model.predict_proba(_filled(x, test, train))[:, 1]
            scores[test] += np.log(chance + 1e-4) - np.log(1 - chance + 1e-4)
    return scores / _REPEATS


def _model(name: str, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "boosted trees":
        return make_trees(seed)
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2_000))


def _filled(x: Array, rows: Array, train: Array) -> Array:
    """What is missing is the median of what is learned from, or 0 where that has none."""
    known = np.isfinite(x[train])
    middle = np.array([np.median(x[train][k, i]) if k.any() else 0 for i, k in enumerate(known.T)])
    found: Array = np.where(np.isfinite(x[rows]), x[rows], middle)
    return found


@dataclass(frozen=True)
class Sided:
    """A feature that is larger on one side of most pairs."""

    name: str
    higher: int
    """Pairs in which the faulty trace has more of it, and less."""
    lower: int
    p: float
    """Of the sign test, times the number of features (Bonferroni)."""


def sided_features(books: Sequence[Books], level: float = 0.01) -> list[Sided]:
    """Features that tell the faulty trace of a pair from its twin, by a sign test over pairs.

    Args:
        books: Traces; a pair has one with a fault and one without, others are left out.
        level: Of the test, for all features together.

    Returns:
        Those below the level, the most telling first. Ranks of one run count as one pair, by their
        majority.
    """
    x, names = _matrix(books)
    bad, good, run = _pairs(books)
    found = []
    for column, name in enumerate(names):
        apart = np.sign(x[bad, column] - x[good, column])
        signs = np.bincount(run, weights=np.nan_to_num(apart))
        higher, lower = int((signs > 0).sum()), int((signs < 0).sum())
        p = min(1.0, _sign_test(higher, lower) * len(names))
        if p < level:
            found.append(Sided(name, higher, lower, p))
    return sorted(found, key=lambda each: each.p)


def _pairs(books: Sequence[Books]) -> tuple[Array, Array, Array]:
    """Rows of the faulty traces, of their twins, and codes of the runs that these belong to."""
    found: defaultdict[str, dict[bool, int]] = defaultdict(dict)
    for place, each in enumerate(books):
        found[each.pair][each.label] = place
    sides = [(each[True], each[False]) for each in found.values() if len(each) == 2]
    bad, good = (np.array(side, dtype=np.int64) for side in zip(*sides, strict=True))
    return bad, good, np.unique([books[i].run for i in bad], return_inverse=True)[1]


def _sign_test(higher: int, lower: int) -> float:
    from math import comb

    count = higher + lower
    if not count:
        return 1.0
    tail = sum(comb(count, k) for k in range(min(higher, lower) + 1))
    return min(1.0, 2 * tail / (1 << count))


# ------------------------------------------------------------------------- labels


def shuffled_training(
    train: Sequence[Sample], test: Sequence[Sample], seeds: Sequence[int] = range(5)
) -> float:
    """Mean AUC of boosted trees that learned from windows whose labels were dealt at random.

    Args:
        train: Traces to learn from; their windows swap labels among each other.
        test: Traces of other groups, with their own labels.
        seeds: One training for each.
    """
    windows = Windows(test)
    found = []
    for seed in seeds:
        model = SupervisedTrees()
        model.fit(list(_dealt(train, np.random.default_rng(seed))), seed)
        score = np.concatenate([model.score(sample) for sample in test])
        kept = ~windows.ignore
        scored = Scored(score, windows.positive, windows.bad, windows.trace, windows.trace)
        found.append(window_auc(scored.part(kept)))
    return float(np.mean(found))


def _dealt(samples: Sequence[Sample], rng: np.random.Generator) -> Iterator[Sample]:
    windows = Windows(samples)
    order = rng.permutation(len(windows.trace))
    ends = np.cumsum([len(sample.positive) for sample in samples])[:-1]
    for sample, rows in zip(samples, np.split(order, ends), strict=True):
        yield replace(
            sample,
            cost=windows.cost[rows],
            positive=windows.positive[rows],
            ignore=windows.ignore[rows],
        )


@dataclass(frozen=True)
class HeldOut:
    """A form of fault: AUC on its windows, with traces of that form learned from and without."""

    form: str
    traces: int
    known: float
    unknown: float


def held_out_forms(samples: Sequence[Sample], seed: int = 0, folds: int = 3) -> list[HeldOut]:
    """How well boosted trees find forms of faults that they never saw, out of fold by groups.

    Args:
        samples: Traces of training and validation; a form has two groups at least, or is left out.
        seed: Of folds and models.
        folds: Of groups; each takes a training with the form and one without.
    """
    from sklearn.model_selection import GroupKFold

    groups = [sample.group for sample in samples]
    cuts = list(GroupKFold(folds).split(groups, groups=groups))
    forms = sorted({sample.form for sample in samples if sample.label})
    scores: dict[str, list[tuple[Array, Array, Array]]] = {form: [] for form in forms}
    for train, test in cuts:
        known = _fitted([samples[i] for i in train], seed)
        for form in forms:
            tested = _of_form([samples[i] for i in test], form)
            rest = [samples[i] for i in train if samples[i].form != form]
            if tested and any(sample.positive.any() for sample in rest):
                scores[form].append(_both(tested, known, _fitted(rest, seed)))
    return [_held_out(form, found, samples) for form, found in scores.items() if found]


def _fitted(samples: Sequence[Sample], seed: int) -> SupervisedTrees:
    model = SupervisedTrees()
    model.fit(samples, seed)
    return model


def _of_form(samples: Sequence[Sample], form: str) -> list[Sample]:
    """Traces with that form and their twins."""
    bad = [sample for sample in samples if sample.form == form]
    twins = {sample.twin for sample in bad}
    return [*bad, *(sample for sample in samples if sample.id in twins)]


def _both(
    samples: Sequence[Sample], known: SupervisedTrees, unknown: SupervisedTrees
) -> tuple[Array, Array, Array]:
    windows = Windows(samples)
    kept = ~windows.ignore
    scores = [np.concatenate([m.score(s) for s in samples])[kept] for m in (known, unknown)]
    return windows.positive[kept], scores[0], scores[1]


def _held_out(
    form: str, found: Sequence[tuple[Array, Array, Array]], samples: Sequence[Sample]
) -> HeldOut:
    positive, known, unknown = (np.concatenate(column) for column in zip(*found, strict=True))
    none = np.zeros(len(positive), dtype=np.int64)
    aucs = [window_auc(Scored(s, positive, positive, none, none)) for s in (known, unknown)]
    return HeldOut(form, sum(sample.form == form for sample in samples), aucs[0], aucs[1])
