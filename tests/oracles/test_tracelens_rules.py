"""Our sheets against TraceLens's rules applied event by event, on traces without its tables.

Run as a program it prints the share of rows and cells that are equal, by sheet.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.compat.tracelens import tracelens_sheets
from torchtraceap.compat.tracelens.sheets import Sheet

from .conftest import CORPUS
from .tracelens_reference import equal, parse
from .tracelens_rules import Row, rule_sheets

_LARGEST = 2 << 20
"""Bytes of a file, packed: the rules take a second for a megabyte of it."""
Counts = dict[str, list[int]]


def corpus_files() -> list[str]:
    """Of several ranks of a run the first is as good as all."""
    files = sorted([*CORPUS.rglob("*.json.gz"), *CORPUS.rglob("*.json")])
    kept = (f for f in files if f.stat().st_size <= _LARGEST and "reference" not in str(f))
    later = tuple(f"rank{i}" for i in range(1, 8))
    return [str(f.relative_to(CORPUS)) for f in kept if not f.name.startswith(later)]


def plain(value: Any) -> Any:
    return parse(value) if isinstance(value, str) else value


def keyed(rows: list[Row], columns: list[str]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(str(plain(row.get(c))) for c in columns)].append(row)
    return found


def agreement(sheet: Sheet, theirs: list[Row]) -> tuple[list[int], list[str]]:
    """[rows equal, rows, cells equal, cells], and what differs.

    Rows are those with equal texts; their numbers are compared, and a row that the other side
    lacks counts with all of its cells.
    """
    ours = [dict(zip(sheet, values, strict=True)) for values in zip(*sheet.values(), strict=True)]
    columns = list(dict.fromkeys(name for row in theirs for name in row))
    numbers = ("_sum", "_mean", "_median", "_std", "_min", "_max", "_ms", "_us", "ount", "GFLOPS")
    numbers += ("GFLOPS_first", "(MB)")
    texts = [c for c in columns if not c.endswith(numbers)]
    values = [c for c in columns if c not in texts]
    mine, other = keyed(ours, texts), keyed(theirs, texts)
    counts, found = [0, 0, 0, 0], []
    for key in mine.keys() | other.keys():
        a, b = mine.get(key, []), other.get(key, [])
        size = max(len(a), len(b))
        counts[1] += size
        counts[3] += size * len(columns)
        if len(a) != len(b):
            found.append(f"{len(a)} rows for {len(b)}: {key}"[:600])
        for x, y in zip(a, b, strict=False):
            wrong = [c for c in values if not equal(x.get(c), y.get(c))]
            counts[0] += not wrong
            counts[2] += len(columns) - len(wrong)
            found += [f"{c}: {x.get(c)} for {y.get(c)}: {key}"[:600] for c in wrong]
    return counts, found


def compared(path: Path) -> tuple[Counts, list[str]] | None:
    theirs = rule_sheets(path)
    if theirs is None:
        return None
    sheets = tracelens_sheets(ttap.load(path).ranks[0])
    counts: Counts = {}
    found: list[str] = []
    compared_names = theirs.keys() | (sheets.keys() & {"coll_analysis"})
    for name in sorted(compared_names):
        counts[name], differences = agreement(sheets.get(name, {}), theirs.get(name, []))
        found += [f"{name}: {text}" for text in differences]
    return counts, found


@pytest.mark.slow  # goes through every trace of the corpus
@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_rules(corpus_file: Path) -> None:
    try:
        result = compared(corpus_file)
    except ValueError:
        pytest.skip("no valid JSON: TraceLens does not read it")
    if result is None:
        pytest.skip("without arrows or operators TraceLens has no tables")
    assert not result[1], "\n".join(result[1][:10])


def main() -> None:
    total: Counts = defaultdict(lambda: [0, 0, 0, 0])
    for name in corpus_files():
        try:
            result = compared(CORPUS / name)
        except ValueError:
            continue
        for sheet, counts in (result[0] if result else {}).items():
            total[sheet] = [a + b for a, b in zip(total[sheet], counts, strict=True)]
    total["all"] = [sum(column) for column in zip(*total.values(), strict=True)]
    print(f"{'sheet':26} {'rows':>8} {'equal':>8} {'cells':>9} {'equal':>8}")
    for sheet, (rows, of_rows, cells, of_cells) in total.items():
        shares = (100 * rows / (of_rows or 1), 100 * cells / (of_cells or 1))
        print(f"{sheet:26} {of_rows:8} {shares[0]:7.2f}% {of_cells:9} {shares[1]:7.2f}%")


if __name__ == "__main__":
    main()
