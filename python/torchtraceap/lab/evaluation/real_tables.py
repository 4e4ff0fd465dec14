"""Tables and JSON of what methods say of the public traces that were labelled by looking."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchtraceap.lab.evaluation.bootstrap import Interval
from torchtraceap.lab.evaluation.real import CANONICAL, NUMBERS, REFERENCE, RealEvaluation, RealRow
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

__all__ = ["real_document", "real_part", "real_tables"]

_WINDOW_METRICS = ("auc", "per_trace", "ap", "hit")
_COMPARED = ("auc", "per_trace")
_LESS = f"less `{REFERENCE}`"


def real_tables(evaluation: RealEvaluation) -> dict[str, Table]:
    """By title."""
    return {
        "Windows": _windows(evaluation),
        "Traces with a certain fault against those without any": _traces(evaluation),
        "Healthy traces: windows flagged, in percent": _healthy(evaluation),
        "Types, where that of a window is certain": _types(evaluation),
    }


def real_part(evaluation: RealEvaluation) -> str:
    """What the page shows: what was scored, and every table."""
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
    """Of the windows in which neither pass sees a fault, and of all in brackets."""
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
