"""`diff_stats` against what TraceLens's TraceDiff wrote for TimeSformer on MI300X and H100.

The trees are aligned in another way, so the calls that both have differ for the convolution alone
(`test_diff_oracle.py` says why); all else is equal.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.compat.tracelens.compare import diff_stats
from torchtraceap.compat.tracelens.sheets import csv_text

from .conftest import CORPUS
from .tracelens_reference import equal, read_rows

FILES = [f"tracelens/{where}/timesformer_inference.json.gz" for where in ("mi300", "h100")]
REFERENCE = "tracelens/tracediff_reference/diff_stats.csv"


def keyed(path: Path, rows: list[dict[str, Any]], trace: Any) -> dict[Any, dict[str, Any]]:
    """Rows by name and start of the kernel: their uid counts the events of the file."""
    if trace is None:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        starts = [round(Decimal(str(events[r["gpu_op_uid"]]["ts"])) * 1000) for r in rows]
    else:
        starts = [int(trace.rank().table.ts_ns[r["gpu_op_uid"]]) for r in rows]
    return {(r["name"], start): r for r, start in zip(rows, starts, strict=True)}


def test_diff_stats_is_that_of_tracelens() -> None:
    if not (CORPUS / REFERENCE).exists():
        pytest.skip(f"{REFERENCE} is not in this corpus")
    traces = [ttap.load(CORPUS / name) for name in FILES]
    ours = read_rows(csv_text(diff_stats(*traces)))
    theirs = read_rows((CORPUS / REFERENCE).read_text(encoding="utf-8"))
    assert list(ours[0]) == list(theirs[0])
    assert len(ours) == len(theirs) == 983
    differ: Counter[str] = Counter()
    for number, (name, trace) in enumerate(zip(FILES, traces, strict=True), 1):
        mine, other = (
            keyed(CORPUS / name, [r for r in rows if r["source"] == f"trace{number}"], of)
            for rows, of in ((ours, trace), (theirs, None))
        )
        assert mine.keys() == other.keys()
        for key, row in other.items():
            for column, value in row.items():
                if not column.endswith(("_uid", "_id")):
                    differ[column] += not equal(mine[key][column], value)
    assert +differ == {"lowest_common_ancestor_name": 13, "busy_time": 6}
