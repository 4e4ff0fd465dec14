"""Compares sheets with a reference file of TraceLens, the way that their own regression test does.

Columns present in both count, cells that are empty in the reference do not; numbers agree to 1e-6
absolute, texts as Python literals. Rows stand in the same order, but for rows of equal sums: pandas
sorts those as it likes, as it does those without a sum.
"""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchtraceap.compat.tracelens.sheets import Sheet, csv_text

TOLERANCE = 1e-6
UIDS = ("ex_UID", "UID_first")
RUNNING = "Cumulative Percentage (%)"
SORTED_BY = (
    "total_direct_kernel_time_ms",
    "total_direct_kernel_time_sum",
    "Kernel duration (µs)_sum",
    "Short Kernel duration (µs) sum",
    "Kernel Time (µs)_sum",
    "dur_sum",
)

Row = dict[str, Any]


def read_rows(text: str) -> list[Row]:
    """Rows of a CSV text with parsed cells."""
    csv.field_size_limit(1 << 30)
    reader = csv.DictReader(text.splitlines())
    return [{name: parse(cell) for name, cell in row.items()} for row in reader]


def parse(cell: str | None) -> Any:
    """A cell as a Python literal, else as its text; None where it is empty or pandas 1 says so."""
    if cell is None or cell in ("", "None", "nan"):
        return None
    bare = re.sub(r"np\.float64\(([^()]*)\)", r"\1", cell).replace(": nan", ": None")
    try:
        return ast.literal_eval(bare)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell


def equal(ours: Any, theirs: Any) -> bool:
    if theirs is None:
        return True
    if isinstance(theirs, bool) or isinstance(ours, bool):
        return ours is theirs
    if isinstance(theirs, (int, float)) and isinstance(ours, (int, float)):
        if math.isnan(theirs):
            return True
        return abs(ours - theirs) <= TOLERANCE
    if isinstance(theirs, (list, tuple)) and isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[k], theirs[k]) for k in theirs)
    return bool(ours == theirs)


def differences(
    sheet: Sheet, reference: Path, same_event: Callable[[int, int], bool] | None
) -> Iterator[str]:
    """What differs, in words.

    Args:
        sheet: Ours.
        reference: Their file.
        same_event: Are our row and their place in `traceEvents` the same event? None: leave out.
    """
    theirs, ours = read_rows(reference.read_text()), read_rows(csv_text(sheet))
    if len(ours) != len(theirs):
        yield f"{len(ours)} rows for {len(theirs)}"
    if not theirs or not ours:
        return
    columns = [name for name in theirs[0] if name in ours[0]]
    missing = [name for name in theirs[0] if name not in ours[0]]
    if missing:
        yield f"columns missing: {missing}"
    if columns != [name for name in ours[0] if name in theirs[0]]:
        yield "columns in another order"
    if RUNNING in columns:
        for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if not equal(a[RUNNING], b[RUNNING]):
                yield f"row {place}: {RUNNING}: {a[RUNNING]} for {b[RUNNING]}"
    uids = [name for name in columns if name.split("::")[-1] in UIDS]
    plain = [name for name in columns if name not in (*uids, RUNNING)]

    def of_row(a: Row, b: Row) -> Iterator[str]:
        for name in plain:
            if not equal(a[name], b[name]):
                yield f"{name}: {str(a[name])[:300]} for {str(b[name])[:300]}"
        for name in uids:
            if same_event is not None and not same_event(a[name], b[name]):
                yield f"{name}: another event, {a[name]} for {b[name]}"

    for begin, end in tied_blocks(theirs):
        left = list(range(begin, min(end, len(ours))))
        for place in range(begin, end):
            fitting = [i for i in left if not any(of_row(ours[i], theirs[place]))]
            if fitting:
                left.remove(fitting[0])
            elif place < len(ours):
                words = "; ".join(of_row(ours[place], theirs[place]))
                yield f"row {place} ({str(next(iter(theirs[place].values())))[:60]}): {words}"


def tied_blocks(rows: list[Row]) -> Iterator[tuple[int, int]]:
    """Ranges of rows with equal sums, and of rows without one."""
    column = next((n for n in rows[0] if n.split("::")[-1] in SORTED_BY and "__" not in n), None)
    begin = 0
    for place in range(1, len(rows) + 1):
        if place < len(rows) and column is not None:
            a, b = rows[place][column], rows[place - 1][column]
            if a is None and b is None:
                continue
            if a is not None and b is not None and abs(a - b) <= TOLERANCE:
                continue
        yield begin, place
        begin = place
