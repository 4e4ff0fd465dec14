"""`write_report`: numbers and figures of a page, made anew between marks in its text.

A part of the page between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced; all else stays
as it is. A page that is not there is made, with every part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.writing import naming, write_text
from torchtraceap.lab.building.describe import bars
from torchtraceap.lab.evaluation.run import Evaluation
from torchtraceap.lab.evaluation.tables import markdown, tables

__all__ = ["figures", "parts", "write_report"]

_PART = "<!-- begin {name} -->\n{text}\n<!-- end {name} -->"


def write_report(evaluation: Evaluation, page: PathLike) -> list[Path]:
    """Writes the page, and its figures as SVG into `benchmark_figures/` beside it.

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
    write_text(place, filled(old, parts(evaluation)))
    return written


def filled(page: str, texts: Mapping[str, str]) -> str:
    """The page with these parts; those that it has no place for come last."""
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
    """Texts by name: tables by the splits that they are of, so that those of other splits stay."""
    of = "-".join(evaluation.splits)
    found = {
        f"{of} {_slug(title)}": f"**{title}**\n\n{markdown(table)}"
        for title, table in tables(evaluation).items()
    }
    shown = "\n".join(f"![{name}](benchmark_figures/{name}.svg)" for name in figures(evaluation))
    return {**found, f"{of} figures": shown}


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", title.lower()).strip()


def figures(evaluation: Evaluation) -> dict[str, str]:
    """SVG by name: the paper's Figure 6 (what the data is like) and Figure 7 (AUC by task)."""
    count = 100 if 100 in evaluation.windows else evaluation.windows[0]
    of = "-".join(evaluation.splits)
    found = {f"figure6-{of}": _shares(evaluation, count)}
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


def _shares(evaluation: Evaluation, count: int) -> str:
    """Positive windows of the traces with a fault, by type."""
    values: dict[str, float] = {}
    for sample in evaluation.samples[count]:
        if sample.type is not None:
            values[sample.type] = values.get(sample.type, 0) + int(sample.positive.sum())
    return bars(f"Positive windows by type, {count} windows a trace", dict(sorted(values.items())))
