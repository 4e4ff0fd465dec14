"""Scorers and baselines on the public traces that were labeled by looking, as tables and JSON.

Note [Number of a trace]: a trace is told from others by one number made of the scores of its
windows. `CANONICAL` was fixed before any trace was scored (docs/evaluation.md says why); the
others are shown beside it.

Note [Threshold]: a window is flagged from the threshold of the largest F1 on the validation split
of the data set. Without one, scores that claim to be chances flag from one half, and shares of a
window that findings cover from where a label is positive.

Note [Resampled recordings]: what is recorded of one program, such as twins and the ranks of a run,
is one group, as in Note [Resamples] of `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from public_labels import RealLabels, Recordings
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.datasets.labels import POSITIVE, TYPES
from torchtraceap.datasets.samples import Sample, load_samples, window_arrays
from torchtraceap.diagnosis.scoring import Scorer
from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.baselines import GpuEvents, Method, gpu_events, load_events
from torchtraceap.lab.evaluation.judged_traces import check_splits
from torchtraceap.lab.evaluation.methods import (
    METHODS,
    WANTED_SCORERS,
    StoredScores,
    check_names,
    make_methods,
    scored_ranks,
    scorer_methods,
)
from torchtraceap.lab.evaluation.metrics import (
    Interval,
    Scored,
    interval,
    paired_difference,
    replicates,
    type_metrics,
    window_auc,
)
from torchtraceap.lab.evaluation.run import (
    Bench,
    Cell,
    Options,
    Scores,
    best_threshold,
    check_packages,
    group_codes,
    group_draws,
    scored_windows,
    usable_scorers,
)
from torchtraceap.lab.evaluation.tables import (
    METRIC_TITLES,
    Table,
    all_numbers,
    finite,
    markdown,
    numbers,
    percent,
    with_interval,
)
from torchtraceap.trace.loader import load

__all__ = [
    "CANONICAL",
    "NUMBERS",
    "REFERENCE",
    "Flagged",
    "RealEvaluation",
    "RealRow",
    "evaluate_real",
    "real_document",
    "real_part",
    "real_tables",
]


NUMBERS: dict[str, Callable[[Array], float]] = {
    "highest": lambda scores: float(scores.max()),
    "top tenth": lambda scores: float(np.sort(scores)[-max(1, len(scores) // 10) :].mean()),
    "mean": lambda scores: float(scores.mean()),
}
"""The number of a trace, from the scores `[W]` of its windows."""
CANONICAL = "top tenth"
"""See Note [Number of a trace]."""
REFERENCE = "evidence"
"""The method that all others are compared with."""
_PAPER_PLACES = [TYPES.index(name) for name in PAPER_TYPES]


@dataclass(frozen=True)
class Flagged:
    """Windows of a healthy trace from the threshold on."""

    share: float
    """Share of all its windows."""
    false: float
    """Share of the windows in which neither pass sees a fault; NaN without one."""


@dataclass(frozen=True)
class RealRow:
    """Figures of one method; of a random one the mean over its seeds."""

    name: str
    labels: str
    seeds: int = 0
    missing: str | None = None
    """The reason why it has no numbers."""
    cell: Cell | None = None
    """Metrics of windows."""
    separation: dict[str, Interval] = field(default_factory=dict)
    """Separation by number of a trace: area under the curve, traces with a fault against those
    without."""
    resampled: dict[str, Array] = field(default_factory=dict, repr=False)
    """Resamples of `separation`, for paired differences."""
    threshold: float = float("nan")
    healthy: dict[str, Flagged] = field(default_factory=dict)
    """Healthy traces by path; of a random method, of its first seed."""
    types: dict[str, float] = field(default_factory=dict)
    """accuracy, macro_f1 and windows, of windows whose type is certain; empty without types."""
    traces: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures by path: `NUMBERS`, and "auc" within the trace; of the first seed."""


@dataclass(frozen=True)
class RealEvaluation:
    """All of it."""

    labels: str
    """SHA-256 of the labels."""
    dataset: str | None
    counts: dict[str, int]
    """traces, groups, windows, positive, with_both, faulty, free, typed."""
    rows: tuple[RealRow, ...]
    samples: tuple[Sample, ...] = field(repr=False)
    scores: dict[str, Scores] = field(repr=False)
    """Scores of each method, of its first seed."""

    def difference(self, row: RealRow, metric: str) -> Interval | None:
        """A row less the reference: a metric of windows, or a number of a trace; None where one of
        them has no numbers."""
        other = next((each for each in self.rows if each.name == REFERENCE), None)
        if other is None or other is row or row.cell is None or other.cell is None:
            return None
        if metric in NUMBERS:
            values = row.separation[metric].value, other.separation[metric].value
            return paired_difference(values, (row.resampled[metric], other.resampled[metric]))
        values = row.cell.values[metric].value, other.cell.values[metric].value
        return paired_difference(values, (row.cell.resampled[metric], other.cell.resampled[metric]))


def evaluate_real(
    corpus: PathLike,
    labels: RealLabels,
    recordings: Recordings,
    dataset: PathLike | None = None,
    *,
    methods: Sequence[str] = (),
    windows: int = 100,
    seeds: int = 5,
) -> RealEvaluation:
    """Score every labelled trace by every method. Who calls it logs the look (`log_look`).

    Args:
        corpus: The folder in which the paths of the labels are.
        labels: Of the traces.
        recordings: Of the traces.
        dataset: A data set whose split "train" baselines learn from, and whose split "validation"
            tells thresholds; None: the package's scorers alone.
        methods: Names; empty: all.
        windows: Of a trace.
        seeds: Trainings of a method that is random.

    Raises:
        OptionError: An unknown method, or a baseline without a data set to learn from.
        MissingFileError: A trace or the data set is missing.
        SchemaError: It is no data set.
        MissingDependencyError: scikit-learn or LightGBM is not installed.
    """
    check_packages()
    names = tuple(methods) or ((*METHODS, *WANTED_SCORERS) if dataset else WANTED_SCORERS)
    check_names(names)
    baselines = [name for name in names if name in METHODS]
    if baselines and dataset is None:
        raise OptionError(f"{baselines[0]!r} needs a data set to learn from")
    scorers, missing = usable_scorers(names)
    traces = _Traces(corpus, labels, recordings, scorers, windows)
    learned: list[Sample] = []
    if dataset is not None:
        splits = ("train", "validation") if baselines else ("validation",)
        learned = load_samples(dataset, splits=splits, windows=windows)
        check_splits(learned)
        held_out = [sample.id for sample in learned if sample.split == "validation"]
        traces.add_scores(dataset, held_out, scorers)
        if baselines:
            traces.events |= load_events(dataset, held_out)
    exam = _Exam(traces, learned, Options(("real",), (windows,), seeds=seeds))
    rows = [exam.fitted(name) for name in baselines]
    rows += [exam.given(method) for method in traces.given]
    rows += [RealRow(row.name, row.labels, missing=row.missing) for row in missing]
    return RealEvaluation(
        labels.sha256, None if dataset is None else str(dataset), traces.counts(), tuple(rows),
        tuple(traces.samples), exam.said,
    )  # fmt: skip


class _Traces:
    """The labelled traces with their features, labels, and what the package's scorers say."""

    def __init__(
        self,
        corpus: PathLike,
        labels: RealLabels,
        recordings: Recordings,
        scorers: Sequence[Scorer],
        windows: int,
    ) -> None:
        self._windows = windows
        self.healthy = recordings.healthy
        self.samples: list[Sample] = []
        self.events: dict[str, GpuEvents] = {}
        self.types: dict[str, Array] = {}
        """By path, int64 `[W]`; see `RealLabels.window_types`."""
        self.fault: dict[str, bool | None] = {path: labels.fault(path) for path in labels.traces}
        self.given: list[StoredScores] = scored_ranks((), scorers, ())
        with progress_stage(f"scores of {len(labels.traces)} traces"):
            for path in labels.traces:
                trace = load(Path(corpus) / path)
                part, (arrays,) = trace.ranks[0], window_arrays(trace, windows)
                first_ns = int(part.table.ts_ns[part.table.complete].min())
                where = path, arrays["bounds_ns"], first_ns
                group = recordings.group.get(path, path)
                self.types[path] = labels.window_types(*where)
                self.events[path] = gpu_events(part, labels.costs_ns(path, first_ns))
                self.samples.append(_sample(path, group, labels.windows(*where), arrays))
                self._merge(scored_ranks([(path, part)], scorers, (windows,)))

    def add_scores(self, dataset: PathLike, ids: Sequence[str], scorers: Sequence[Scorer]) -> None:
        """Add the scores of traces of a data set, for thresholds."""
        with progress_stage(f"scores of {len(ids)} traces for thresholds"):
            self._merge(scorer_methods(dataset, ids, scorers, (self._windows,)))

    def _merge(self, methods: Sequence[StoredScores]) -> None:
        for own, more in zip(self.given, methods, strict=True):
            own.found.update(more.found)

    def counts(self) -> dict[str, int]:
        kept = [sample.positive[~sample.ignore] for sample in self.samples]
        return {
            "traces": len(self.samples),
            "groups": len({sample.group for sample in self.samples}),
            "windows": sum(len(each) for each in kept),
            "positive": sum(int(each.sum()) for each in kept),
            "with_both": sum(bool(each.any() and not each.all()) for each in kept),
            "faulty": sum(fault is True for fault in self.fault.values()),
            "free": sum(fault is False for fault in self.fault.values()),
            "typed": sum(int((types >= 0).sum()) for types in self.types.values()),
        }


def _sample(path: str, group: str, marks: Array, arrays: Mapping[str, Array]) -> Sample:
    """Return a trace with its labels; columns of generated traces alone are empty."""
    none = np.zeros((len(marks), len(TYPES)), dtype=np.float32)
    return Sample(
        id=path, split="real", task=None, group=group, source="recorded", device=None,
        label=bool((marks == 1).any()), type=None, form="", twin=None, already=(), run=path,
        cost=none, positive=marks == 1, ignore=marks < 0, bounds_ns=arrays["bounds_ns"],
        values=arrays["values"], zscores=arrays["zscores"], evidence=arrays["evidence"],
        surprisal=arrays["surprisal"],
    )  # fmt: skip


class _Exam:
    """The examination of all methods."""

    def __init__(self, traces: _Traces, learned: Sequence[Sample], options: Options) -> None:
        self._traces, self._options = traces, options
        (self._count,) = options.windows
        every = {self._count: [*learned, *traces.samples]}
        self._validation = [sample for sample in learned if sample.split == "validation"]
        self._bench = Bench(options, every, {self._count: traces.samples}, traces.events, {})
        self.said: dict[str, Scores] = {}

    def fitted(self, name: str) -> RealRow:
        """Return the row of a method that learns from the data set."""
        method = make_methods([name], self._traces.events)[0]
        seeds = self._options.seeds if method.is_random else 1
        with progress_stage(f"{method.name}, {seeds} seeds"):
            runs = [self._bench.fitted(name, self._count, seed) for seed in range(seeds)]
        return self._row(method, runs)

    def given(self, method: StoredScores) -> RealRow:
        """Return the row of a scorer of the package."""
        return self._row(method, [self._bench.scores(method, self._count)])

    def _row(self, method: Method, runs: Sequence[Scores]) -> RealRow:
        samples, first = self._traces.samples, runs[0]
        self.said[method.name] = {sample.id: first[sample.id] for sample in samples}
        threshold = self._threshold(method, first)
        row = RealRow(
            method.name, method.labels, len(runs), cell=self._bench.cell(samples, runs),
            threshold=threshold, types=self._types(first), traces=self._by_trace(first),
            healthy={path: self._flagged(path, first, threshold) for path in self._traces.healthy},
        )  # fmt: skip
        for name in NUMBERS:
            value, resampled = self._separation(name, runs)
            row.resampled[name] = resampled
            row.separation[name] = interval(value, resampled)
        return row

    def _threshold(self, method: Method, scores: Scores) -> float:
        """See Note [Threshold]."""
        if self._validation:
            return best_threshold(scored_windows(self._validation, scores))
        return 0.5 if method.is_probability else POSITIVE

    def _flagged(self, path: str, scores: Scores, threshold: float) -> Flagged:
        (sample,) = (each for each in self._traces.samples if each.id == path)
        flagged = scores[path][0] >= threshold
        free = ~sample.positive & ~sample.ignore
        false = float(flagged[free].mean()) if free.any() else float("nan")
        return Flagged(float(flagged.mean()), false)

    def _separation(self, number: str, runs: Sequence[Scores]) -> tuple[float, Array]:
        """Area under the curve of a number of the traces, and its resamples."""
        fault = self._traces.fault
        judged = [sample for sample in self._traces.samples if fault[sample.id] is not None]
        positive = np.array([fault[sample.id] for sample in judged], dtype=np.bool_)
        codes, weights = group_codes(judged), group_draws(judged)
        groups = np.array([codes[sample.group] for sample in judged], dtype=np.int64)
        found = []
        for scores in runs:
            values = np.array([NUMBERS[number](scores[sample.id][0]) for sample in judged])
            marks = Scored(values, positive, positive, np.arange(len(judged)), groups)
            found.append((window_auc(marks), replicates(marks, "auc", weights)))
        mean = float(np.mean([value for value, _ in found]))
        return mean, np.mean([of for _, of in found], axis=0)

    def _types(self, scores: Scores) -> dict[str, float]:
        """Among the paper's eight, which the labels know; saying none of them is an error."""
        truth, said = [], []
        for path, types in self._traces.types.items():
            told = scores[path][1]
            if told is None:
                return {}
            own = np.asarray(told)[:, _PAPER_PLACES]
            truth.append(types)
            said.append(np.where(own.any(axis=1), own.argmax(axis=1), -1))
        known = np.concatenate(truth) >= 0
        pairs = np.concatenate(truth)[known], np.concatenate(said)[known].astype(np.int64)
        return type_metrics(*pairs)

    def _by_trace(self, scores: Scores) -> dict[str, dict[str, float]]:
        found = {}
        for sample in self._traces.samples:
            own = scores[sample.id][0]
            within = window_auc(scored_windows([sample], scores))
            found[sample.id] = {name: of(own) for name, of in NUMBERS.items()} | {"auc": within}
        return found


# ------------------------------------------------------------------------- tables and JSON

_WINDOW_METRICS = ("auc", "per_trace", "ap", "hit")
_COMPARED = ("auc", "per_trace")
_LESS = f"less `{REFERENCE}`"


def real_tables(evaluation: RealEvaluation) -> dict[str, Table]:
    """Return the tables by title."""
    return {
        "Windows": _windows(evaluation),
        "Traces with a certain fault against those without any": _traces(evaluation),
        "Healthy traces: windows flagged, in percent": _healthy(evaluation),
        "Types, where that of a window is certain": _types(evaluation),
    }


def real_part(evaluation: RealEvaluation) -> str:
    """Return the part of the page: the traces that were scored, and every table."""
    count = evaluation.counts
    about = (
        f"{count['traces']} traces in {count['groups']} groups, {count['windows']:,} windows, "
        f"{count['positive']:,} of them positive.\n"
        f"{count['with_both']} traces have windows of both kinds, "
        f"{count['faulty']} a certain fault, "
        f"and {count['free']} none."
    )
    shown = [
        f"**{title}**\n\n{markdown(table)}" for title, table in real_tables(evaluation).items()
    ]
    return "\n\n".join([about, *shown])


def _measured(evaluation: RealEvaluation) -> list[tuple[RealRow, Any]]:
    return [(row, row.cell) for row in evaluation.rows if row.cell is not None]


def _windows(evaluation: RealEvaluation) -> Table:
    head = ["method", "labels", "seeds"]
    for metric in _WINDOW_METRICS:
        head += [METRIC_TITLES[metric], *([_LESS] if metric in _COMPARED else [])]
    body = []
    for row, cell in _measured(evaluation):
        line = [row.name, row.labels, str(row.seeds)]
        for metric in _WINDOW_METRICS:
            line.append(with_interval(cell.values[metric]))
            if metric in _COMPARED:
                line.append(_difference(evaluation.difference(row, metric)))
        body.append(line)
    absent = [
        [f"{row.name} ({row.missing})", row.labels, *["–"] * (len(head) - 2)]
        for row in evaluation.rows
        if row.cell is None
    ]
    return [head, *body, *absent]


def _traces(evaluation: RealEvaluation) -> Table:
    others = [name for name in NUMBERS if name != CANONICAL]
    head = ["method", f"by the {CANONICAL}", _LESS, *(f"by the {name}" for name in others)]
    body = [
        [
            row.name,
            with_interval(row.separation[CANONICAL]),
            _difference(evaluation.difference(row, CANONICAL)),
            *(with_interval(row.separation[name]) for name in others),
        ]
        for row, _ in _measured(evaluation)
    ]
    return [head, *body]


def _healthy(evaluation: RealEvaluation) -> Table:
    """Return flagged shares of windows in which neither pass sees a fault, and of all in
    brackets."""
    rows = [row for row, _ in _measured(evaluation) if row.types]
    paths = list(rows[0].healthy) if rows else []
    head = ["trace", *(f"{row.name} from {row.threshold:.2f} on" for row in rows)]
    body = []
    for path in paths:
        flagged = [row.healthy[path] for row in rows]
        cells = [f"{percent(each.false)} ({percent(each.share)})" for each in flagged]
        body.append([f"`{path}`", *cells])
    return [head, *body]


def _types(evaluation: RealEvaluation) -> Table:
    body = [
        [
            row.name,
            str(int(row.types["windows"])),
            percent(row.types["accuracy"]),
            percent(row.types["macro_f1"]),
        ]
        for row, _ in _measured(evaluation)
        if row.types
    ]
    return [["method", "windows", "accuracy", "macro-F1"], *body]


def _difference(value: Interval | None) -> str:
    return "" if value is None else with_interval(value)


def real_document(evaluation: RealEvaluation) -> dict[str, Any]:
    """All of it as JSON: numbers as shares, null where there is none."""
    return {
        "labels_sha256": evaluation.labels,
        "dataset": evaluation.dataset,
        "number_of_a_trace": CANONICAL,
        "counts": evaluation.counts,
        "methods": [_method(evaluation, row) for row in evaluation.rows],
    }


def _method(evaluation: RealEvaluation, row: RealRow) -> dict[str, Any]:
    about = {"name": row.name, "labels": row.labels, "seeds": row.seeds, "missing": row.missing}
    if row.cell is None:
        return about
    compared = {name: evaluation.difference(row, name) for name in (*_COMPARED, *NUMBERS)}
    return {
        **about,
        "windows": {name: numbers(row.cell.values[name]) for name in _WINDOW_METRICS},
        "separation": {name: numbers(value) for name, value in row.separation.items()},
        f"less_{REFERENCE}": {
            name: numbers(value) for name, value in compared.items() if value is not None
        },
        "threshold": finite(row.threshold),
        "healthy": {path: all_numbers(asdict(of)) for path, of in row.healthy.items()},
        "types": all_numbers(row.types),
        "traces": {path: all_numbers(of) for path, of in row.traces.items()},
    }
