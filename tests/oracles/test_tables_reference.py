"""Tables of every real trace against a second, independent implementation of their definitions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable

from . import tables_reference as plain
from .conftest import corpus_files

PAIRS = [
    ("kineto/resnet50_num_workers_0.json.gz", "kineto/resnet50_num_workers_4.json.gz"),
    ("modded_nanogpt/overlap_before.json.gz", "modded_nanogpt/overlap_hook.json.gz"),
    ("kineto/resnet50_num_workers_4.json.gz", "hta/ddp_a100_rank_of_8_control.json.gz"),
    ("torchrec_4ranks_late_rank", "torchrec_4ranks_late_rank"),
]


def reference_of(path: Path) -> plain.Reference:
    try:
        return plain.Reference(path)
    except json.JSONDecodeError:
        pytest.skip("no valid JSON: the reference can't read it")


def by_name(table: ColumnTable, *columns: str, key: str = "name") -> dict[Any, tuple[int, ...]]:
    """Sums of columns by name; rows without a value count nothing."""
    sums: dict[Any, Counter[str]] = {}
    for row in table.records():
        sums.setdefault(row[key], Counter()).update({c: round(row[c] or 0) for c in columns})
    return {name: tuple(found[c] for c in columns) for name, found in sums.items()}


@pytest.mark.slow  # goes through every trace of the corpus
@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_kernels_operators_launches_and_copies(corpus_file: Path) -> None:
    reference = reference_of(corpus_file)
    trace = ttap.load(corpus_file)
    check_kernels(reference, trace)
    check_copies(reference, trace)
    if reference.has_one_call_each():  # else docs/data_model.md's rule of choice has a say
        check_operators(reference, trace)
        check_launches(reference, trace)


def check_kernels(reference: plain.Reference, trace: ttap.Trace) -> None:
    table = trace.kernels(by="name")
    expected = plain.kernels_by_name(reference)
    got = by_name(table, "count", "sum_ns")
    assert got == {name: found[:2] for name, found in expected.items()}
    for row in table.records():
        count, _, least, greatest = expected[row["name"]]
        assert row["count"] <= count and least <= row["min_ns"] <= row["max_ns"] <= greatest
    by_class = by_name(table, "exclusive_ns", key="class")
    hidden = plain.exclusive_by_class(reference.gpu)
    assert by_class == {name: (hidden[name],) for name in by_class}


def check_copies(reference: plain.Reference, trace: ttap.Trace) -> None:
    got = by_name(trace.memory(), "count", "total_bytes", "time_ns", key="direction")
    expected = plain.copies_by_direction(reference)
    assert {d: got.get(d) for d in expected} == expected


def check_operators(reference: plain.Reference, trace: ttap.Trace) -> None:
    rows = by_name(trace.ops(), "own_gpu_ns")
    got = {name: own for name, (own,) in rows.items() if own}
    expected = {
        "(no launch in the trace)" if name is None else name: own
        for name, own in plain.own_gpu_by_operator(reference).items()
        if own
    }
    assert got == expected


def check_launches(reference: plain.Reference, trace: ttap.Trace) -> None:
    table = trace.launches(by="event")
    if table.facts["launch_delay_correction_ns"]:
        return  # the clocks disagree, and what delays are then is a matter of the correction
    first = {
        row["call_row"]: row for row in reversed(table.records()) if row["call_row"] is not None
    }
    calls: dict[str, Counter[str]] = {}
    for row in first.values():
        found = {"calls": 1, "host": row["host_ns"], "delay": row["delay_ns"]}
        calls.setdefault(row["call"], Counter()).update(found)
    got = {name: (c["calls"], c["host"], c["delay"]) for name, c in calls.items()}
    assert got == plain.launches_by_call(reference)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: Path(pair[1]).name)
def test_difference_of_step_times(corpus: Path, pair: tuple[str, str]) -> None:
    before, after = ([*files_of(corpus / name)] for name in pair)
    expected = plain.step_time_difference(
        [reference_of(path) for path in before], [reference_of(path) for path in after]
    )
    table = ttap.diff(ttap.load(before), ttap.load(after))
    assert table.facts["difference_ns"] == pytest.approx(expected, abs=1)  # halves are rounded
    assert sum(table["delta_ns"]) == table.facts["difference_ns"]


def files_of(path: Path) -> list[Path]:
    if not path.exists():
        pytest.skip(f"{path} is not in this corpus")
    return sorted(path.iterdir()) if path.is_dir() else [path]


def test_waits_and_transfers_of_dlrm(corpus: Path) -> None:
    """Eight ranks of one machine, on one clock, with equal sequences of collectives."""
    files = files_of(corpus / "param/dlrm_8ranks")
    expected = plain.waits_and_transfers([reference_of(path) for path in files])
    rows = ttap.load(files).collectives().records()
    got = [(row["wait_ns"], row["transfer_by_rank_ns"]) for row in rows]
    assert sorted(got) == sorted(expected)
