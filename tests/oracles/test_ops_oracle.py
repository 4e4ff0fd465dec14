"""`ops_summary.csv` and `ops_unique_args.csv` of TraceLens (commit 171dd747) against `trace.ops()`.

Where the two differ, and why:

- They sum in doubles of microseconds: 1e-3 us is allowed for each GPU event.
- They list launchers only: calls that own a GPU event. A name's subtree time is summed over these
  calls there, over all calls that none of their own name encloses here.
- They need an `ac2g` arrow from the launch call to the GPU event, which ROCm leaves out for some
  memsets and kernels: names that own such events are smaller there.
- They leave out collectives and GPU events without a launch; here all of busy time has a row.
"""

from __future__ import annotations

import ast
import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core

from .conftest import CORPUS, corpus_files
from .test_tracelens import arrow_ids

TOLERANCE_US = 1e-3


def references(name: str) -> list[str]:
    tables = sorted(CORPUS.rglob(f"*_reference/{name}"))
    return [str(t.relative_to(CORPUS)) for t in tables if not t.parts[-2].startswith("compare")]


def load(reference: Path) -> ttap.Trace:
    stem = reference.parent.name.removesuffix("_reference")
    return ttap.load(reference.parent.parent / f"{stem}.json.gz")


def rows_of(reference: Path) -> list[dict[str, str]]:
    with reference.open(newline="") as file:
        return list(csv.DictReader(file))


def names_they_see_in_part(trace: ttap.Trace) -> set[str]:
    """Names of rows that own, or enclose, a linked GPU event without an arrow."""
    part = trace.ranks[0]
    table, tree = part.table, part.tree
    arrows = arrow_ids(table)
    names: set[str] = set()
    for event in tree.linked_gpu_rows.tolist():
        if int(table.correlation[event]) in arrows:
            continue
        row = int(tree.launch[event])
        while row != _core.NO_ROW:
            names.add(table.name_of(row))
            row = int(tree.parent[row])
    return names


def launchers(trace: ttap.Trace) -> dict[str, list[dict[str, Any]]]:
    """Calls that own GPU events which have a launch, by name."""
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in trace.ops(by="call").records():
        if call["gpu_events"] and call["kind"] != "no launch":
            calls[call["name"]].append(call)
    return calls


@pytest.mark.parametrize("corpus_file", references("ops_summary.csv"), indirect=True)
def test_ops_summary(corpus_file: Path) -> None:
    trace = load(corpus_file)
    partly = names_they_see_in_part(trace)
    calls = launchers(trace)
    ours = {record["name"]: record for record in trace.ops().records()}
    theirs = rows_of(corpus_file)
    for row in theirs:
        name = row["name"]
        direct, subtree = (
            float(row[f"total_{kind}_kernel_time_sum"]) for kind in ("direct", "subtree")
        )
        tolerance = TOLERANCE_US * max(1, ours[name]["gpu_events"])
        own_us = ours[name]["own_gpu_ns"] / 1000
        if name in partly:
            assert own_us > direct - tolerance, name
            continue
        assert int(row["Count"]) == len(calls[name]), name
        assert own_us == pytest.approx(direct, abs=tolerance, rel=0), name
        below = sum(call["subtree_gpu_ns"] for call in calls[name]) / 1000
        assert below == pytest.approx(subtree, abs=tolerance, rel=0), name
    # What they do not list are collectives, and what has no launch.
    listed = {row["name"] for row in theirs}
    for name in set(calls) - listed - partly:
        assert ours[name]["family"] == "communication", name


def dims_text(text: str | None) -> str:
    return "" if text is None else repr(json.loads(text)).replace("[", "(").replace("]", ")")


def their_dims(text: str) -> str:
    if not text:
        return ""
    value = ast.literal_eval(text)
    return json.dumps(value).replace("[", "(").replace("]", ")")


@pytest.mark.parametrize("corpus_file", references("ops_unique_args.csv"), indirect=True)
def test_ops_unique_args(corpus_file: Path) -> None:
    trace = load(corpus_file)
    partly = names_they_see_in_part(trace)
    ours: dict[tuple[str, str], float] = defaultdict(float)
    events: dict[tuple[str, str], int] = defaultdict(int)
    for record in trace.ops(by="args").records():
        key = record["name"], dims_text(record["input_dims"])
        ours[key] += record["own_gpu_ns"] / 1000
        events[key] += record["gpu_events"]
    theirs: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows_of(corpus_file):
        key = row["name"], their_dims(row["Input Dims"])
        theirs[key] += float(row["total_direct_kernel_time_sum"])
    for key, direct in theirs.items():
        if key[0] in partly:
            continue
        assert ours[key] == pytest.approx(direct, abs=TOLERANCE_US * events[key], rel=0), key


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_every_view_sums_to_the_busy_time(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    busy_ns = trace.timeline().busy_ns
    events = len(trace.ranks[0].tree.gpu_rows)
    for by in ("name", "category", "args", "call"):
        table = trace.ops(by=by)
        assert int(table["exclusive_gpu_ns"].sum()) == busy_ns
        assert int(table["gpu_events"].sum()) == events
        if by != "call":
            assert np.all(np.diff(table["exclusive_gpu_ns"]) <= 0)
