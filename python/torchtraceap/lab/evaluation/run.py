"""Evaluate methods: fit them, score windows, and give every metric with its interval.

Note [Splits]: methods learn from the training split. The threshold from which a window is flagged
is that of the largest F1 on validation. Test splits are read with a reason only (`log_look`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

from torchtraceap.core import Array, PathLike, progress_stage
from torchtraceap.datasets import TYPES, Sample, load_samples
from torchtraceap.diagnosis import SCORERS, Scorer, load_scorer
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError, TraceError
from torchtraceap.lab.evaluation.baselines import GpuEvents, Method, largest_in, load_events
from torchtraceap.lab.evaluation.judged_traces import TEST_SPLITS, check_splits, log_look
from torchtraceap.lab.evaluation.methods import (
    METHODS,
    NOT_HERE,
    WANTED_SCORERS,
    StoredScores,
    check_names,
    make_methods,
    read_scores,
    scorer_methods,
)
from torchtraceap.lab.evaluation.metrics import (
    Interval,
    Scored,
    average_precision,
    calibration,
    confusion,
    draws,
    event_hits,
    false_positive_rate,
    interval,
    mean,
    per_trace_auc,
    replicates,
    said_types,
    type_metrics,
    typed_given_window,
    weighted_means,
    window_auc,
)

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
    """Options of an evaluation.

    Args:
        splits: Those whose windows are scored; test splits need `why`.
        windows: Numbers of windows of a trace.
        methods: Names; empty: all.
        scores: Documents of `score --json`, each a method more.
        seeds: Trainings of a method that is random.
        why: The reason of a look at test labels.
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
    """Resamples of the metrics, for paired differences."""


@dataclass(frozen=True)
class TypeCell:
    """Types of one method and number of windows, on the traces of one column."""

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
    """The reason why it has no numbers."""
    cells: dict[tuple[int, str], Cell] = field(default_factory=dict)
    """Metrics by number of windows and column."""
    types: dict[tuple[int, str], TypeCell] = field(default_factory=dict)
    forms: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Traces by type, and their mean AUC by trace, over all splits in 100 windows."""
    calibration: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation."""

    dataset: str
    splits: tuple[str, ...]
    windows: tuple[int, ...]
    columns: tuple[str, ...]
    """Tasks by split, and their averages: "seen: pose", "seen: average", "seen: pooled"."""
    counts: dict[tuple[int, str], dict[str, int]]
    """Counts by number of windows and column: traces, bad, groups, windows, positive."""
    rows: tuple[Row, ...]
    samples: dict[int, list[Sample]] = field(repr=False)
    """The traces that were scored."""


def evaluate(dataset: PathLike, options: Options) -> Evaluation:
    """Score the windows of a data set's splits by all methods.

    Raises:
        OptionError: An unknown split or method, a split without traces, or one that is for tests
            without a reason.
        MissingFileError: There is no such data set, or a trace of it is missing.
        SchemaError: It is no data set, a group is in two splits, or scores are no document.
        MissingDependencyError: scikit-learn or LightGBM is not installed.
    """
    check_packages()
    names = options.methods or (*METHODS, *WANTED_SCORERS)
    check_names(names)
    for split in options.splits:
        if split not in _SPLITS:
            raise OptionError(f"there is no split {split!r}: {', '.join(_SPLITS)}")
    if not options.windows or options.seeds < 1:
        raise OptionError("a number of windows and a seed are needed")
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
    scorers, missing = usable_scorers(names)
    with progress_stage(f"scores of {len(scorers)} scorers"):
        given = scorer_methods(dataset, read, scorers, options.windows)
    given += [read_scores(path) for path in options.scores]
    if not options.methods:
        known = {method.name for method in given}
        missing += [
            Row(name, labels, missing=why) for name, labels, why in NOT_HERE if name not in known
        ]
    columns = _columns(first)
    bench = Bench(options, samples, scored, events, columns)
    rows = [bench.row(name) for name in names if name in METHODS]
    rows += [bench.given(method) for method in given]
    return Evaluation(
        str(dataset), options.splits, options.windows, tuple(columns),
        _counts(scored, columns), (*rows, *missing), scored,
    )  # fmt: skip


def check_packages() -> None:
    """Raise MissingDependencyError where a package that evaluates is not installed."""
    for package in ("sklearn", "lightgbm"):
        if find_spec(package) is None:
            raise MissingDependencyError(
                f"{package} is needed to evaluate: pip install 'torchtraceap[evaluate]'"
            )


def usable_scorers(names: Sequence[str]) -> tuple[list[Scorer], list[Row]]:
    """Return the package's scorers among these names, and rows of those that can't be had."""
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
    """Return the ids of the traces of each column; an average has none of its own but those of its
    tasks."""
    found: dict[str, list[str]] = {}
    for split in dict.fromkeys(sample.split for sample in samples):
        of_split = [sample for sample in samples if sample.split == split]
        for task in sorted({sample.task or "unknown" for sample in of_split}):
            found[f"{split}: {task}"] = [s.id for s in of_split if (s.task or "unknown") == task]
        found[f"{split}: average"] = [sample.id for sample in of_split]
        found[f"{split}: pooled"] = [sample.id for sample in of_split]
    return found


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
"""Scores `[W]` and types `[W, T]` by id."""


class Bench:
    """Traces on which all methods are measured.

    Args:
        options: Options of the evaluation.
        samples: All traces by number of windows.
        scored: Those of the splits that are scored.
        events: GPU events of the traces that are scored, and of validation.
        columns: Ids of the traces of each column of the tables.
    """

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
        """Return the row of a method that is fitted here."""
        method = make_methods([name], self._events)[0]
        seeds = self._options.seeds if method.is_random else 1
        with progress_stage(f"{method.name}, {seeds} seeds"):
            by_count = {
                count: [self.fitted(name, count, seed) for seed in range(seeds)]
                for count in self._options.windows
            }
        return self._measured(method, by_count, seeds)

    def given(self, method: StoredScores) -> Row:
        """Return the row of a method whose scores there are already."""
        try:
            by_count = {c: [self.scores(method, c)] for c in self._options.windows}
        except TraceError as error:
            return Row(method.name, method.labels, missing=str(error))
        return self._measured(method, by_count, 1)

    def fitted(self, name: str, count: int, seed: int) -> Scores:
        """Return the scores of a method of `METHODS` that has learned from the training split."""
        method = make_methods([name], self._events)[0]
        method.fit([s for s in self._samples[count] if s.split == "train"], seed)
        return self.scores(method, count)

    def scores(self, method: Method, count: int) -> Scores:
        """Return a method's scores of the scored splits, and of validation for thresholds."""
        wanted = (*self._options.splits, "validation")
        own = [s for s in self._samples[count] if s.split in wanted]
        return {sample.id: (method.score(sample), method.types(sample)) for sample in own}

    def _measured(self, method: Method, by_count: Mapping[int, list[Scores]], seeds: int) -> Row:
        row = Row(method.name, method.labels, seeds)
        for count, runs in by_count.items():
            own = {sample.id: sample for sample in self._scored[count]}
            threshold = None
            if all(types is not None for _, types in runs[0].values()):
                checked = [s for s in self._samples[count] if s.split == "validation"]
                threshold = best_threshold(scored_windows(checked, runs[0]))
            averages = [column for column in self._columns if column.endswith(": average")]
            for column, ids in self._columns.items():
                if column not in averages:
                    traces = [own[i] for i in ids]
                    row.cells[count, column] = self.cell(traces, runs)
                    if threshold is not None:
                        row.types[count, column] = _types(traces, runs[0], threshold)
            for column in averages:
                split = column.partition(":")[0]
                tasks = [
                    row.cells[count, each]
                    for each in self._columns
                    if each.startswith(f"{split}: ")
                    and not each.endswith((": average", ": pooled"))
                ]
                row.cells[count, column] = _average(tasks)
            if method.is_probability:
                marks = scored_windows(list(own.values()), runs[0])
                row.calibration[count] = calibration(marks.score, marks.positive)
        count = 100 if 100 in by_count else next(iter(by_count))
        for kind in TYPES:
            traces = [s for s in self._scored[count] if s.type == kind]
            if traces:
                aucs = [per_trace_auc(scored_windows(traces, run))[0] for run in by_count[count]]
                row.forms[kind] = len(traces), mean(np.concatenate(aucs))
        return row

    def cell(self, samples: Sequence[Sample], runs: Sequence[Scores]) -> Cell:
        """Return every metric on these traces, the mean over runs."""
        weights = group_draws(samples)
        found: dict[str, list[tuple[float, Array]]] = {}
        for scores in runs:
            for name, value in self._metrics(samples, scores, weights).items():
                found.setdefault(name, []).append(value)
        values, resampled = {}, {}
        for name, each in found.items():
            alone = np.nan if weights.shape[1] < 2 else 1.0  # one group says nothing of others
            resampled[name] = np.mean([own for _, own in each], axis=0) * alone
            values[name] = interval(mean(np.array([value for value, _ in each])), resampled[name])
        spread = float(np.std([value for value, _ in found["auc"]]))
        return Cell(values, spread, resampled)

    def _metrics(
        self, samples: Sequence[Sample], scores: Scores, weights: Array
    ) -> dict[str, tuple[float, Array]]:
        marks = scored_windows(samples, scores)
        bad = marks.part(marks.bad)
        traces, _ = per_trace_auc(marks)
        # A trace with a fault is a hit where the event pointed at lies in its cost.
        groups, hits, of_groups = group_codes(samples), [], []
        for sample in samples:
            if sample.label:
                top = int(scores[sample.id][0].argmax())
                events = self._events[sample.id]
                begin, end = sample.bounds_ns[top : top + 2].tolist()
                hits.append(event_hits([largest_in(events, begin, end)], [events.cost_ns]))
                of_groups.append(groups[sample.group])
        hit = np.array(hits), np.array(of_groups, dtype=np.int64)
        return {
            "auc": (window_auc(marks), replicates(marks, "auc", weights)),
            "bad_only": (window_auc(bad), replicates(bad, "auc", weights)),
            "per_trace": (mean(traces), replicates(marks, "per_trace", weights)),
            "ap": (average_precision(marks), replicates(marks, "ap", weights)),
            "fpr": (false_positive_rate(marks), replicates(marks, "fpr", weights)),
            "hit": (mean(hit[0]), weighted_means(*hit, weights)),
        }


def scored_windows(samples: Sequence[Sample], scores: Scores) -> Scored:
    """Return the windows of traces without those to be ignored; groups by name."""
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
    """Return the columns of groups in `group_draws`, by name."""
    return {name: code for code, name in enumerate(sorted({s.group for s in samples}))}


def _average(cells: Sequence[Cell]) -> Cell:
    """Return the average of tasks that are drawn apart, as the paper averages."""
    values, resampled = {}, {}
    for name in METRICS:
        resampled[name] = np.mean([cell.resampled[name] for cell in cells], axis=0)
        average = mean(np.array([cell.values[name].value for cell in cells]))
        values[name] = interval(average, resampled[name])
    return Cell(values, float(np.mean([cell.spread for cell in cells])), resampled)


def best_threshold(marks: Scored) -> float:
    """Return the threshold of the largest F1; infinity without a positive window."""
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
    given = type_metrics(*typed_given_window(cost, said, positive))
    flagged = score >= threshold
    truth = np.where(positive, cost.argmax(axis=1), -1)
    named = np.where(flagged, said_types(said), -1)
    return TypeCell(given, type_metrics(truth, named), confusion(truth, named, len(TYPES)))
