"""Tables of an evaluation, as text, JSON, and parts of a page with figures.

They are those of the paper in its layout, and what it does not report. A part of a page between
`<!-- begin NAME -->` and `<!-- end NAME -->` is replaced; all else stays as it is. A page that is
not there is made, with every part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core import PathLike, naming, write_text
from torchtraceap.datasets import TYPES
from torchtraceap.lab.building.describe import bars
from torchtraceap.lab.evaluation.methods import ABLATIONS
from torchtraceap.lab.evaluation.metrics import Interval, paired_difference
from torchtraceap.lab.evaluation.run import METRICS, Evaluation, Row

__all__ = [
    "HEADLINES",
    "METRIC_TITLES",
    "Table",
    "all_numbers",
    "document",
    "figures",
    "fill_parts",
    "finite",
    "headline_rows",
    "markdown",
    "metric_table",
    "numbers",
    "parts",
    "percent",
    "table_2",
    "table_3",
    "table_4",
    "table_5",
    "tables",
    "texts",
    "type_table",
    "with_interval",
    "write_report",
]

Table = list[list[str]]
"""The first row is the head."""
METRIC_TITLES = {
    "auc": "pooled AUC",
    "bad_only": "AUC on traces with a fault",
    "per_trace": "AUC by trace",
    "ap": "average precision",
    "fpr": "false alarms at 80 % recall",
    "hit": "event hit rate",
}
HEADLINES = (
    ("fused", "evidence", "bad_only"),
    ("structural", "boosted trees W, self-trained", "auc"),
    ("v2", "paper", "bad_only"),
)
"""Fixed before any look at test labels: first method, second method, metric; on the average of the
tasks of each test split in 100 windows."""
_MISSING = "–"
_PART = "<!-- begin {name} -->\n{text}\n<!-- end {name} -->"


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    head, *rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_2(evaluation: Evaluation) -> Table:
    """Traces with a fault, and positive windows at 100 (or the first number), by type and task."""
    count = _main_count(evaluation)
    samples = evaluation.samples[count]
    tasks = sorted({sample.task or "unknown" for sample in samples})
    head = ["type", *tasks, "all"]
    rows = []
    for place, kind in enumerate(TYPES):
        line = []
        for task in (*tasks, None):
            own = [s for s in samples if task is None or (s.task or "unknown") == task]
            traces = sum(sample.type == kind for sample in own)
            windows = sum(int((s.cost[:, place] >= 0.1).sum()) for s in own)
            line.append(f"{traces} / {windows}")
        rows.append([f"`{kind}`", *line])
    return [head, *rows]


def table_3(evaluation: Evaluation, count: int) -> Table:
    """Methods by tasks; a mean of seeds, and a 95 % interval where tasks are averaged."""
    head = ["method", "labels", "seeds", *map(_short, evaluation.columns)]
    rows = []
    for row in evaluation.rows:
        if row.missing is not None:
            cells = [_MISSING] * len(evaluation.columns)
            rows.append([f"{row.name} ({row.missing})", row.labels, _MISSING, *cells])
            continue
        found = [row.cells[count, column].values["auc"] for column in evaluation.columns]
        cells = [
            with_interval(value) if column.endswith(("average", "pooled")) else percent(value.value)
            for value, column in zip(found, evaluation.columns, strict=True)
        ]
        rows.append([row.name, row.labels, str(row.seeds), *cells])
    return [head, *rows]


def metric_table(evaluation: Evaluation, column: str, count: int) -> Table:
    """Methods by metrics, on one column."""
    head = ["method", *(METRIC_TITLES[metric] for metric in METRICS), "between seeds"]
    rows = []
    for row in _measured(evaluation):
        cell = row.cells[count, column]
        values = [with_interval(cell.values[metric]) for metric in METRICS]
        rows.append([row.name, *values, percent(cell.spread)])
    return [head, *rows]


def table_4(evaluation: Evaluation) -> Table:
    """Accuracy of types given a true window by tasks, and what the paper does not report."""
    columns = [column for column in evaluation.columns if not column.endswith("average")]
    head = ["method", "windows", *map(_short, columns), "macro-F1", "end to end", "its macro-F1"]
    rows = []
    for row in _measured(evaluation):
        for count in evaluation.windows:
            if (count, columns[0]) not in row.types:
                continue
            cells = [row.types[count, column] for column in columns]
            pooled = [cells[i] for i, c in enumerate(columns) if c.endswith("pooled")]
            more = [
                " / ".join(percent(getattr(cell, part)[name]) for cell in pooled)
                for part, name in (
                    ("given", "macro_f1"), ("end_to_end", "accuracy"), ("end_to_end", "macro_f1"),
                )
            ]  # fmt: skip
            given = [percent(cell.given["accuracy"]) for cell in cells]
            rows.append([row.name, str(count), *given, *more])
    return [head, *rows]


def table_5(evaluation: Evaluation) -> Table:
    """The eight cells of adapter, transformer and relation; from documents of scores named so."""
    count = _main_count(evaluation)
    averages = [column for column in evaluation.columns if column.endswith("average")]
    known = {row.name: row for row in _measured(evaluation)}
    head = ("adapter", "transformer", "relation")
    rows = []
    for marks in ABLATIONS:
        words = [word for word, mark in zip(head, marks, strict=True) if mark]
        row = known.get(f"paper: {', '.join(words) or 'none'}")
        line = [
            _MISSING if row is None else percent(row.cells[count, column].values["auc"].value)
            for column in averages
        ]
        rows.append([*("x" if mark else "" for mark in marks), *line])
    return [[*head, *averages], *rows]


def type_table(evaluation: Evaluation) -> Table:
    """Mean AUC by trace of each type, for every method."""
    rows = _measured(evaluation)
    kinds = [kind for kind in TYPES if any(kind in row.forms for row in rows)]
    head = ["method"]
    for kind in kinds:
        traces = max(row.forms[kind][0] for row in rows if kind in row.forms)
        head.append(f"`{kind}` ({traces})")
    body = [
        [row.name, *(percent(row.forms[k][1]) if k in row.forms else _MISSING for k in kinds)]
        for row in rows
    ]
    return [head, *body]


def count_table(evaluation: Evaluation) -> Table:
    """Traces and windows of each column."""
    head = ["windows", "column", "traces", "with a fault", "groups", "windows scored", "positive"]
    rows = [
        [str(count), column, *(str(value) for value in found.values())]
        for (count, column), found in evaluation.counts.items()
        if not column.endswith("average")
    ]
    return [head, *rows]


def headline_rows(evaluation: Evaluation) -> Table:
    """The comparisons of `HEADLINES`, on the same resamples."""
    count = _main_count(evaluation)
    known = {row.name: row for row in _measured(evaluation)}
    averages = [column for column in evaluation.columns if column.endswith("average")]
    rows = []
    for first, second, metric in HEADLINES:
        for column in averages:
            title = f"{first} over {second}: {METRIC_TITLES[metric]}"
            absent = [name for name in (first, second) if name not in known]
            if absent:
                rows.append([title, _short(column), f"no scores of {', '.join(absent)}"])
                continue
            cells = [known[name].cells[count, column] for name in (first, second)]
            values = cells[0].values[metric].value, cells[1].values[metric].value
            resampled = cells[0].resampled[metric], cells[1].resampled[metric]
            rows.append(
                [title, _short(column), with_interval(paired_difference(values, resampled))]
            )
    return [["comparison", "tasks", "difference in points"], *rows]


# ------------------------------------------------------------------------- texts and JSON


def tables(evaluation: Evaluation, number: int | None = None) -> dict[str, Table]:
    """Return the tables of the paper's number by title; None: all, and what it does not report."""
    found: dict[str, Table] = {}
    if number in (None, 2):
        found["Table 2: traces with a fault / positive windows, by type and task"] = table_2(
            evaluation
        )
    if number in (None, 3):
        for count in evaluation.windows:
            found[f"Table 3: pooled AUC, {count} windows"] = table_3(evaluation, count)
    if number in (None, 4):
        found["Table 4: types"] = table_4(evaluation)
    if number in (None, 5):
        found["Table 5: parts of the paper's network"] = table_5(evaluation)
    if number is None:
        count = _main_count(evaluation)
        for column in evaluation.columns:
            if column.endswith("average"):
                title = f"All metrics, {column}, {count} windows"
                found[title] = metric_table(evaluation, column, count)
        found["AUC by trace of each type"] = type_table(evaluation)
        found["Headline comparisons"] = headline_rows(evaluation)
        found["What is scored"] = count_table(evaluation)
    return found


def document(evaluation: Evaluation, number: int | None = None) -> dict[str, Any]:
    """Return the evaluation as JSON: numbers as shares, null where there is none."""
    return {
        "schema": "torchtraceap.evaluation/1",
        "dataset": evaluation.dataset,
        "splits": list(evaluation.splits),
        "windows": list(evaluation.windows),
        "table": number,
        "tables": [
            {"title": title, "head": table[0], "rows": table[1:]}
            for title, table in tables(evaluation, number).items()
        ],
        "counts": [
            {"windows": count, "column": column, **found}
            for (count, column), found in evaluation.counts.items()
        ],
        "methods": [_method(row) for row in evaluation.rows],
    }


def _method(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "labels": row.labels,
        "seeds": row.seeds,
        "missing": row.missing,
        "cells": [
            {
                "windows": count,
                "column": column,
                "metrics": {name: numbers(value) for name, value in cell.values.items()},
                "spread_between_seeds": finite(cell.spread),
            }
            for (count, column), cell in row.cells.items()
        ],
        "types": [
            {
                "windows": count,
                "column": column,
                "given_window": all_numbers(cell.given),
                "end_to_end": all_numbers(cell.end_to_end),
                "confusion": cell.confusion.tolist(),
            }
            for (count, column), cell in row.types.items()
        ],
        "by_type": {
            kind: {"traces": traces, "per_trace_auc": finite(value)}
            for kind, (traces, value) in row.forms.items()
        },
        "calibration": {str(c): all_numbers(found) for c, found in row.calibration.items()},
    }


def numbers(value: Interval) -> dict[str, float | None]:
    """Return the numbers of an interval as JSON takes them."""
    return all_numbers(asdict(value))


def all_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON takes them."""
    return {name: finite(value) for name, value in values.items()}


def finite(value: float) -> float | None:
    """Return a number as JSON takes it: null for what is not finite."""
    return round(float(value), 6) if math.isfinite(value) else None


def percent(value: float) -> str:
    """Return a share in percent with one digit; a dash where there is none."""
    return f"{100 * value:.1f}" if np.isfinite(value) else _MISSING


def with_interval(value: Interval) -> str:
    """Return an interval in percent, "70.1 (65.0 to 75.2)"."""
    if not np.isfinite(value.low):
        return percent(value.value)
    return f"{percent(value.value)} ({percent(value.low)} to {percent(value.high)})"


def _short(column: str) -> str:
    return column.replace(": ", " ")


def _measured(evaluation: Evaluation) -> list[Row]:
    return [row for row in evaluation.rows if row.missing is None]


def _main_count(evaluation: Evaluation) -> int:
    return 100 if 100 in evaluation.windows else evaluation.windows[0]


def texts(found: Mapping[str, Table]) -> Iterable[str]:
    """Yield each table as text with its title above."""
    for title, table in found.items():
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip()
                 for r in table]  # fmt: skip
        yield "\n".join([title, "", *lines, ""])


# ------------------------------------------------------------------------- pages


def write_report(evaluation: Evaluation, page: PathLike) -> list[Path]:
    """Write the page, and its figures as SVG into `benchmark_figures/` beside it.

    Raises:
        OutputError: One of them can't be written.
    """
    place = Path(page)
    old = place.read_text("utf-8") if place.exists() else "# Benchmark\n"
    written = [place]
    folder = place.parent / "benchmark_figures"
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in figures(evaluation).items():
        written.append(folder / f"{name}.svg")
        write_text(written[-1], text)
    write_text(place, fill_parts(old, parts(evaluation)))
    return written


def fill_parts(page: str, texts: Mapping[str, str]) -> str:
    """Return the page with these parts; those that it has no place for come last."""
    for name, text in texts.items():
        part = _PART.format(name=name, text=text)
        place = re.compile(
            rf"<!-- begin {re.escape(name)} -->.*?<!-- end {re.escape(name)} -->", re.DOTALL
        )
        if place.search(page):
            page = place.sub(lambda _, part=part: part, page)  # type: ignore[misc]
        else:
            page = f"{page.rstrip()}\n\n{part}\n"
    return page


def parts(evaluation: Evaluation) -> dict[str, str]:
    """Return the texts of parts by name: tables by the splits that they are of, so that those of
    other splits stay."""
    of = "-".join(evaluation.splits)
    found = {}
    for title, table in tables(evaluation).items():
        name = re.sub(r"[^a-z0-9]+", " ", title.lower()).strip()
        found[f"{of} {name}"] = f"**{title}**\n\n{markdown(table)}"
    shown = "\n".join(f"![{name}](benchmark_figures/{name}.svg)" for name in figures(evaluation))
    return {**found, f"{of} figures": shown}


def figures(evaluation: Evaluation) -> dict[str, str]:
    """Return SVG by name: the paper's Figure 6 (the shares of types in the data) and Figure 7 (AUC
    by task)."""
    count = _main_count(evaluation)
    positive: dict[str, float] = {}
    for sample in evaluation.samples[count]:
        if sample.type is not None:
            positive[sample.type] = positive.get(sample.type, 0) + int(sample.positive.sum())
    title = f"Positive windows by type, {count} windows a trace"
    found = {f"figure6-{'-'.join(evaluation.splits)}": bars(title, dict(sorted(positive.items())))}
    for column in evaluation.columns:
        if column.endswith("average"):
            values = {
                row.name: round(100 * row.cells[count, column].values["auc"].value, 1)
                for row in evaluation.rows
                if row.missing is None and np.isfinite(row.cells[count, column].values["auc"].value)
            }
            title = f"Pooled window AUC, {column} of tasks, {count} windows"
            found[f"figure7-{column.partition(':')[0]}"] = bars(title, values, "%")
    return found
