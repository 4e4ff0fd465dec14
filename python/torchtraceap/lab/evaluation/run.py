"""`evaluate`: methods fitted, windows scored, and every metric with its interval.

Note [Splits]: methods learn from the training split. The threshold from which a window is flagged
is that of the largest F1 on validation. Test splits are read with a reason only (`looks`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.progress import progress_stage
from torchtraceap.datasets.samples import TYPES, Sample, load_samples
from torchtraceap.diagnosis.scoring import SCORERS, Scorer, load_scorer
from torchtraceap.errors import MissingFileError, OptionError, TraceError
from torchtraceap.lab.evaluation.baselines.given import Given, read_scores, scorer_methods
from torchtraceap.lab.evaluation.baselines.protocol import Method
from torchtraceap.lab.evaluation.bootstrap import Interval, draws, interval, replicates
from torchtraceap.lab.evaluation.events import GpuEvents, largest_in, load_events
from torchtraceap.lab.evaluation.honesty import check_splits
from torchtraceap.lab.evaluation.methods import (
    METHODS,
    NOT_HERE,
    WANTED_SCORERS,
    check_names,
    make_methods,
)
from torchtraceap.lab.evaluation.metrics import (
    Scored,
    Typed,
    average_precision,
    calibration,
    confusion,
    event_hits,
    false_positive_rate,
    per_trace_auc,
    said_types,
    type_metrics,
    typed_given_window,
    window_auc,
)
from torchtraceap.lab.evaluation.test_access import TEST_SPLITS, log_look

__all__ = [
    "METRICS",
    "Bench",
    "Cell",
    "Evaluation",
    "Options",
    "Row",
    "Scores",
    "TypeCell",
    "best_threshold",
    "check_packages",
    "evaluate",
    "group_codes",
    "group_draws",
    "scored_windows",
    "usable_scorers",
]

METRICS = ("auc", "bad_only", "per_trace", "ap", "fpr", "hit")
SEEDS = 5
_SPLITS = ("train", "validation", *TEST_SPLITS)


@dataclass(frozen=True)
class Options:
    """What is evaluated.

    Args:
        splits: Those whose windows are scored; test splits need `why`.
        windows: Numbers of windows of a trace.
        methods: Names; empty: all.
        scores: Documents of `score --json`, each a method more.
        seeds: Trainings of a method that is random.
        why: What a look at test labels is for.
        jobs: Traces that are read at the same time.
    """

    splits: tuple[str, ...] = ("validation",)
    windows: tuple[int, ...] = (50, 100, 200)
    methods: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    seeds: int = SEEDS
    why: str | None = None
    jobs: int = 1


@dataclass(frozen=True)
class Cell:
    """Metrics of one method on the traces of one column."""

    values: dict[str, Interval]
    spread: float
    """Standard deviation of the pooled AUC over seeds."""
    resampled: dict[str, Array] = field(repr=False)
    """Of "auc", "bad_only" and "per_trace", for paired differences."""


@dataclass(frozen=True)
class TypeCell:
    """Of one method and number of windows, on the traces of one column, its types."""

    given: dict[str, float]
    """accuracy, macro_f1 and windows, given a true window."""
    end_to_end: dict[str, float]
    confusion: Array
    """int64 `[T + 1, T + 1]`, end to end."""


@dataclass(frozen=True)
class Row:
    """One method in the tables."""

    name: str
    labels: str
    seeds: int = 0
    missing: str | None = None
    """Why it has no numbers."""
    cells: dict[tuple[int, str], Cell] = field(default_factory=dict)
    """By number of windows and column."""
    types: dict[tuple[int, str], TypeCell] = field(default_factory=dict)
    forms: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By type: traces, and their mean AUC by trace, over all splits in 100 windows."""
    calibration: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """All of it."""

    dataset: str
    splits: tuple[str, ...]
    windows: tuple[int, ...]
    columns: tuple[str, ...]
    """Tasks by split, and their averages: "seen: pose", "seen: average", "seen: pooled"."""
    counts: dict[tuple[int, str], dict[str, int]]
    """By number of windows and column: traces, bad, groups, windows, positive."""
    rows: tuple[Row, ...]
    samples: dict[int, list[Sample]] = field(repr=False)
    """Those that were scored."""


def evaluate(dataset: PathLike, options: Options) -> Evaluation:
    """Scores the windows of a data set's splits by all methods.

    Raises:
        OptionError: An unknown split or method, a split without traces, or one that is for tests
            without a reason.
        MissingFileError: There is no such data set, or a trace of it is missing.
        SchemaError: It is no data set, a group is in two splits, or scores are no document.
        MissingDependencyError: scikit-learn or LightGBM is not installed.
    """
    names = _checked(options)
    log_look(dataset, options.splits, names, options.why)
    learned_from = ("train",) if any(name in METHODS for name in names) else ()
    wanted = dict.fromkeys((*learned_from, "validation", *options.splits))
    samples = {
        count: load_samples(dataset, splits=wanted, windows=count, jobs=options.jobs)
        for count in options.windows
    }
    check_splits(next(iter(samples.values())))
    scored = {c: [s for s in of if s.split in options.splits] for c, of in samples.items()}
    first = next(iter(scored.values()))
    for split in options.splits:
        if not any(sample.split == split for sample in first):
            raise OptionError(f"{dataset}: has no traces of the split {split!r}")
    scored_too = {"validation", *options.splits}
    read = [sample.id for sample in next(iter(samples.values())) if sample.split in scored_too]
    with progress_stage(f"events of {len(read)} traces"):
        events = load_events(dataset, read)
    given, missing = _scorers(dataset, read, options, names)
    columns = _columns(first)
    bench = Bench(options, samples, scored, events, columns)
    rows = [bench.row(name) for name in names if name in METHODS]
    rows += [bench.given(method) for method in given]
    return Evaluation(
        str(dataset), options.splits, options.windows, tuple(columns),
        _counts(scored, columns), (*rows, *missing), scored,
    )  # fmt: skip


def _checked(options: Options) -> tuple[str, ...]:
    check_packages()
    names = options.methods or (*METHODS, *WANTED_SCORERS)
    check_names(names)
    for split in options.splits:
        if split not in _SPLITS:
            raise OptionError(f"there is no split {split!r}: {', '.join(_SPLITS)}")
    if not options.windows or options.seeds < 1:
        raise OptionError("a number of windows and a seed are needed")
    return names


def check_packages() -> None:
    """Raises MissingDependencyError where one that evaluates is not installed."""
    from importlib.util import find_spec

    from torchtraceap.errors import MissingDependencyError

    for package in ("sklearn", "lightgbm"):
        if find_spec(package) is None:
            raise MissingDependencyError(
                f"{package} is needed to evaluate: pip install 'torchtraceap[evaluate]'"
            )


def _scorers(
    dataset: PathLike, ids: Sequence[str], options: Options, names: Sequence[str]
) -> tuple[list[Given], list[Row]]:
    """Methods whose scores there are, and rows of those without."""
    found, missing = usable_scorers(names)
    with progress_stage(f"scores of {len(found)} scorers"):
        given = scorer_methods(dataset, ids, found, options.windows)
    given += [read_scores(path) for path in options.scores]
    known = {method.name for method in given}
    if not options.methods:
        missing += [
            Row(each.name, each.labels, missing=each.why)
            for each in NOT_HERE
            if each.name not in known
        ]
    return given, missing


def usable_scorers(names: Sequence[str]) -> tuple[list[Scorer], list[Row]]:
    """The package's scorers among these names, and rows of those that can't be had."""
    found, missing = [], []
    for name in names:
        if name not in WANTED_SCORERS:
            continue
        labels = "trace" if name == "paper" else "window"
        try:
            if name not in SCORERS:
                raise MissingFileError
            found.append(load_scorer(name))
        except MissingFileError:
            missing.append(Row(name, labels, missing="no weights in this version"))
        except TraceError as error:
            missing.append(Row(name, labels, missing=str(error)))
    return found, missing


# ------------------------------------------------------------------------- columns


def _columns(samples: Sequence[Sample]) -> dict[str, list[str]]:
    """Ids of the traces of each column; an average has none of its own but those of its tasks."""
    found: dict[str, list[str]] = {}
    for split in dict.fromkeys(sample.split for sample in samples):
        of_split = [sample for sample in samples if sample.split == split]
        for task in sorted({sample.task or "unknown" for sample in of_split}):
            found[f"{split}: {task}"] = [s.id for s in of_split if (s.task or "unknown") == task]
        found[f"{split}: average"] = [sample.id for sample in of_split]
        found[f"{split}: pooled"] = [sample.id for sample in of_split]
    return found


def tasks_of(column: str, columns: Iterable[str]) -> list[str]:
    """The columns that an average is of."""
    split = column.partition(":")[0]
    return [c for c in columns if c.startswith(f"{split}: ") and not _is_sum(c)]


def _is_sum(column: str) -> bool:
    return column.endswith((": average", ": pooled"))


def _counts(
    scored: Mapping[int, Sequence[Sample]], columns: Mapping[str, Sequence[str]]
) -> dict[tuple[int, str], dict[str, int]]:
    found = {}
    for count, samples in scored.items():
        by_id = {sample.id: sample for sample in samples}
        for column, ids in columns.items():
            own = [by_id[each] for each in ids]
            found[count, column] = {
                "traces": len(own),
                "bad": sum(sample.label for sample in own),
                "groups": len({sample.group for sample in own}),
                "windows": sum(int((~sample.ignore).sum()) for sample in own),
                "positive": sum(int(sample.positive.sum()) for sample in own),
            }
    return found


# ------------------------------------------------------------------------- scores


Scores = dict[str, tuple[Array, "Array | None"]]
"""By id: scores `[W]` and types `[W, T]`."""


class Bench:
    """What all methods are measured on."""

    def __init__(
        self,
        options: Options,
        samples: Mapping[int, Sequence[Sample]],
        scored: Mapping[int, Sequence[Sample]],
        events: Mapping[str, GpuEvents],
        columns: Mapping[str, Sequence[str]],
    ) -> None:
        self._options, self._samples, self._scored = options, samples, scored
        self._events, self._columns = events, columns

    def row(self, name: str) -> Row:
        """Of a method that is fitted here."""
        method = make_methods([name], self._events)[0]
        seeds = self._options.seeds if method.is_random else 1
        with progress_stage(f"{method.name}, {seeds} seeds"):
            by_count = {
                count: [self.fitted(name, count, seed) for seed in range(seeds)]
                for count in self._options.windows
            }
        return self._measured(method, by_count, seeds)

    def given(self, method: Given) -> Row:
        """Of a method whose scores there are already."""
        try:
            by_count = {c: [self.scores(method, c)] for c in self._options.windows}
        except TraceError as error:
            return Row(method.name, method.labels, missing=str(error))
        return self._measured(method, by_count, 1)

    def fitted(self, name: str, count: int, seed: int) -> Scores:
        """What a method of `METHODS` says once it has learned from the training split."""
        method = make_methods([name], self._events)[0]
        method.fit([s for s in self._samples[count] if s.split == "train"], seed)
        return self.scores(method, count)

    def scores(self, method: Method, count: int) -> Scores:
        """Of the scored splits, and of validation for thresholds."""
        wanted = (*self._options.splits, "validation")
        own = [s for s in self._samples[count] if s.split in wanted]
        return {sample.id: (method.score(sample), method.types(sample)) for sample in own}

    def _measured(self, method: Method, by_count: Mapping[int, list[Scores]], seeds: int) -> Row:
        row = Row(method.name, method.labels, seeds)
        for count, runs in by_count.items():
            own = {sample.id: sample for sample in self._scored[count]}
            for column, ids in self._columns.items():
                if not column.endswith(": average"):
                    row.cells[count, column] = self.cell([own[i] for i in ids], runs)
            for column in self._columns:
                if column.endswith(": average"):
                    parts = tasks_of(column, self._columns)
                    row.cells[count, column] = _average([row.cells[count, p] for p in parts])
            self._add_types(row, count, runs[0], own)
            if method.is_probability:
                marks = scored_windows(list(own.values()), runs[0])
                row.calibration[count] = calibration(marks.score, marks.positive)
        row.forms.update(self._by_type(by_count))
        return row

    def cell(self, samples: Sequence[Sample], runs: Sequence[Scores]) -> Cell:
        """Every metric on these traces, the mean over runs."""
        weights = group_draws(samples)
        found: dict[str, list[tuple[float, Array]]] = {}
        for scores in runs:
            for name, value in self._metrics(samples, scores, weights).items():
                found.setdefault(name, []).append(value)
        values, resampled = {}, {}
        for name, each in found.items():
            mean = float(np.mean([value for value, _ in each]))
            alone = np.nan if weights.shape[1] < 2 else 1.0  # one group says nothing of others
            resampled[name] = np.mean([own for _, own in each], axis=0) * alone
            values[name] = interval(mean, resampled[name])
        spread = float(np.std([value for value, _ in found["auc"]]))
        return Cell(values, spread, resampled)

    def _metrics(
        self, samples: Sequence[Sample], scores: Scores, weights: Array
    ) -> dict[str, tuple[float, Array]]:
        marks = scored_windows(samples, scores)
        bad = marks.bad_only()
        traces, _ = per_trace_auc(marks)
        hits, hit_groups = self._hits(samples, scores)
        return {
            "auc": (window_auc(marks), replicates(marks, "auc", weights)),
            "bad_only": (window_auc(bad), replicates(bad, "auc", weights)),
            "per_trace": (_mean(traces), replicates(marks, "per_trace", weights)),
            "ap": (average_precision(marks), replicates(marks, "ap", weights)),
            "fpr": (false_positive_rate(marks), replicates(marks, "fpr", weights)),
            "hit": (_mean(hits), _weighted(hits, hit_groups, weights)),
        }

    def _hits(self, samples: Sequence[Sample], scores: Scores) -> tuple[Array, Array]:
        """Of each trace with a fault whether the event pointed at lies in its cost, and groups."""
        groups = group_codes(samples)
        hits, of_groups = [], []
        for sample in samples:
            if not sample.label:
                continue
            top = int(scores[sample.id][0].argmax())
            events = self._events[sample.id]
            begin, end = sample.bounds_ns[top : top + 2].tolist()
            hits.append(event_hits([largest_in(events, begin, end)], [events.cost_ns]))
            of_groups.append(groups[sample.group])
        return np.array(hits), np.array(of_groups, dtype=np.int64)

    def _add_types(self, row: Row, count: int, scores: Scores, own: Mapping[str, Sample]) -> None:
        if any(types is None for _, types in scores.values()):
            return
        checked = [s for s in self._samples[count] if s.split == "validation"]
        threshold = best_threshold(scored_windows(checked, scores))
        for column, ids in self._columns.items():
            if not column.endswith(": average"):
                row.types[count, column] = _types([own[i] for i in ids], scores, threshold)

    def _by_type(self, by_count: Mapping[int, list[Scores]]) -> dict[str, tuple[int, float]]:
        count = 100 if 100 in by_count else next(iter(by_count))
        found = {}
        for kind in TYPES:
            own = [s for s in self._scored[count] if s.type == kind]
            if own:
                runs = [per_trace_auc(scored_windows(own, scores))[0] for scores in by_count[count]]
                found[kind] = len(own), _mean(np.concatenate(runs))
        return found


def _mean(values: Array) -> float:
    """NaN of nothing."""
    return float(np.mean(values)) if len(values) else float("nan")


def _weighted(values: Array, groups: Array, weights: Array) -> Array:
    if not len(values):
        return np.full(len(weights), np.nan)
    own = weights[:, groups].astype(np.float64)
    total = own.sum(axis=1)
    found: Array = np.divide(own @ values, total, out=np.full(len(total), np.nan), where=total > 0)
    return found


def scored_windows(samples: Sequence[Sample], scores: Scores) -> Scored:
    """Their windows, those to be ignored left out; groups by name."""
    groups = group_codes(samples)
    lengths = [len(sample.positive) for sample in samples]
    kept = ~np.concatenate([sample.ignore for sample in samples])
    return Scored(
        np.concatenate([scores[sample.id][0] for sample in samples]).astype(np.float64),
        np.concatenate([sample.positive for sample in samples]),
        np.repeat([sample.label for sample in samples], lengths),
        np.repeat(np.arange(len(samples)), lengths),
        np.repeat([groups[sample.group] for sample in samples], lengths),
    ).part(kept)


def group_draws(samples: Sequence[Sample]) -> Array:
    """int64 `[resamples, groups]`, the same ones for the same groups."""
    groups = sorted(group_codes(samples))
    return draws(len(groups), seed=zlib.crc32("/".join(groups).encode()))


def group_codes(samples: Sequence[Sample]) -> dict[str, int]:
    """Of the groups, by name: their columns in `group_draws`."""
    return {name: code for code, name in enumerate(sorted({s.group for s in samples}))}


def _average(cells: Sequence[Cell]) -> Cell:
    """Of tasks that are drawn apart: as the paper averages."""
    values, resampled = {}, {}
    for name in METRICS:
        resampled[name] = np.mean([cell.resampled[name] for cell in cells], axis=0)
        mean = float(np.mean([cell.values[name].value for cell in cells]))
        values[name] = interval(mean, resampled[name])
    return Cell(values, float(np.mean([cell.spread for cell in cells])), resampled)


def best_threshold(marks: Scored) -> float:
    """That of the largest F1; infinity without a positive window."""
    from sklearn.metrics import precision_recall_curve

    if not marks.positive.any():
        return float("inf")
    precision, recall, thresholds = precision_recall_curve(marks.positive, marks.score)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[f1[:-1].argmax()])


def _types(samples: Sequence[Sample], scores: Scores, threshold: float) -> TypeCell:
    kept = ~np.concatenate([sample.ignore for sample in samples])
    cost = np.concatenate([sample.cost for sample in samples])[kept]
    said = np.concatenate([np.asarray(scores[sample.id][1]) for sample in samples])[kept]
    score = np.concatenate([scores[sample.id][0] for sample in samples])[kept]
    positive = np.concatenate([sample.positive for sample in samples])[kept]
    given = type_metrics(typed_given_window(cost, said, positive, TYPES))
    flagged = score >= threshold
    both = Typed(
        np.where(positive, cost.argmax(axis=1), -1),
        np.where(flagged, said_types(said), -1),
        TYPES,
    )
    return TypeCell(given, type_metrics(both), confusion(both))
