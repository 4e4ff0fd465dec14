"""`gpu_timeline.csv` of TraceLens (commit 171dd747) against ours.

They keep linked GPU events only and work in doubles of microseconds: at an epoch time stamp one
ulp of a double is 0.25 us, at 1e12 us it is 2**-12 us. Each interval of a union has two edges, so
their sums may be off by up to one ulp per interval; ours are exact. The recompute split of the
checkpointing trace is a different question and has no counterpart here.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap

from .conftest import CORPUS

ROWS = {
    "computation_time": "compute_ns",
    "exposed_comm_time": "exposed_communication_ns",
    "exposed_memcpy_time": "exposed_memcpy_ns",
    "busy_time": "busy_ns",
    "idle_time": "idle_ns",
    "total_time": "span_ns",
    "total_comm_time": "communication_ns",
    "total_memcpy_time": "memcpy_ns",
}


def reference_tables() -> list[str]:
    tables = sorted(CORPUS.rglob("*_reference/gpu_timeline.csv"))
    return [str(t.relative_to(CORPUS)) for t in tables if not t.parts[-2].startswith("compare")]


@pytest.mark.parametrize("corpus_file", reference_tables(), indirect=True)
def test_gpu_timeline(corpus_file: Path) -> None:
    stem = corpus_file.parent.name.removesuffix("_reference")
    trace_file = corpus_file.parent.parent / f"{stem}.json.gz"
    trace = ttap.load(trace_file)
    ours = trace.summary(linked_only=True).timeline.to_dict()
    with corpus_file.open(newline="") as file:
        theirs = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    table = trace.ranks[0].table
    last_us = float(np.max(table.ts_ns)) / 1000
    tolerance_us = math.ulp(last_us) * (len(trace.ranks[0].tree.linked_gpu_rows) + 1)
    for row, key in ROWS.items():
        assert abs(ours[key] / 1000 - theirs[row] * 1000) <= tolerance_us, row
    # The totals have two edges only, whatever the number of events.
    assert abs(ours["span_ns"] / 1000 - theirs["total_time"] * 1000) <= 2 * math.ulp(last_us)
