"""Kernels, short kernels, launches and queues: the published tables of TraceLens and HTA's numbers.

TraceLens (commit 171dd747): names, operators and streams are as ours, times to a nanosecond.
HTA rounds times to whole microseconds (start up, end down), cuts the last step away and knows four
CUDA calls, no HIP; its figures come from our columns by these rules.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.ops.kernel_names import canonical_name

from .conftest import CORPUS, corpus_files

# Those beside a trace; the comparison of two traces has no such table of its own.
REFERENCES = sorted(
    str(path.parent.relative_to(CORPUS))
    for path in CORPUS.glob("tracelens/**/kernel_summary.csv")
    if path.parent.with_name(path.parent.name.replace("_reference", ".json.gz")).exists()
)
NS_TRACE = "hta/resnet_ddp_v100_ns_resolution.json.gz"


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> Path:
    return CORPUS / request.param


def parametrize_references() -> pytest.MarkDecorator:
    missing = pytest.mark.skip(reason=f"no TraceLens tables at {CORPUS}; set TORCHTRACEAP_CORPUS")
    names = REFERENCES or [pytest.param("", marks=missing)]
    return pytest.mark.parametrize("reference", names, indirect=True)


def trace_of(reference: Path) -> ttap.Trace:
    name = reference.name.removesuffix("_reference")
    return ttap.load(reference.parent / f"{name}.json.gz")


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def kernels_of(trace: ttap.Trace) -> list[dict[str, Any]]:
    """Every event of category kernel."""
    kind = trace.rank().table.kind
    is_kernel = (kind == _core.EventKind.KERNEL).tolist()
    return [record for record in trace.kernels(by="event").records() if is_kernel[record["row"]]]


Key = tuple[str, str, str]


@parametrize_references()
def test_kernel_summary(reference: Path) -> None:
    theirs: dict[Key, tuple[float, ...]] = {}
    for row in rows_of(reference / "kernel_summary.csv"):
        # "launcher" stands where no operator encloses the call.
        key = (
            row.get("Parent cpu_op", ""),
            row["Kernel name"],
            str(int(float(row["Kernel stream"]))),
        )
        stem = "Kernel duration (µs)_"
        values = (float(row[stem + part]) for part in ("sum", "count", "mean", "min", "max"))
        assert key not in theirs
        theirs[key] = tuple(values)
    ours: dict[Key, list[float]] = defaultdict(list)
    with_op = any(op for op, _, _ in theirs)
    for record in kernels_of(trace_of(reference)):
        op = (record["op"] if with_op else None) or ""
        ours[op, record["name"], str(record["stream"])].append(record["duration_ns"] / 1000)
    assert set(ours) == set(theirs)
    for key, durations in ours.items():
        total = sum(durations)
        got = (total, len(durations), total / len(durations), min(durations), max(durations))
        assert got == pytest.approx(theirs[key], abs=1e-3), key


@parametrize_references()
def test_short_kernels(reference: Path) -> None:
    theirs: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows_of(reference / "short_kernels_summary.csv"):
        entry = theirs[row.get("Parent cpu_op", ""), canonical_name(row["Kernel name"])]
        entry[0] += float(row["Short Kernel duration (µs) sum"])
        entry[1] += float(row["Short Kernel count"])
    table = trace_of(reference).short_kernels()
    ours: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    with_op = any(op for op, _ in theirs)
    for record in table.records():
        if with_op and record["op"] is None:
            continue  # they lose kernels without an operator
        entry = ours[record["op"] if with_op else "", record["canonical"]]
        entry[0] += record["sum_ns"] / 1000
        entry[1] += record["count"]
    assert set(ours) == set(theirs)
    for key, entry in ours.items():
        assert entry == pytest.approx(theirs[key], abs=1e-3), key


@parametrize_references()
def test_short_kernel_histogram(reference: Path) -> None:
    bins = list(rows_of(reference / "short_kernel_histogram.csv"))
    trace = trace_of(reference)
    ours = trace.short_kernels().facts["histogram"]
    lasts = [record["duration_ns"] for record in kernels_of(trace)]
    short = [ns / 1000 for ns in lasts if ns < 10_000]
    in_microseconds = np.histogram(short, bins=100)[0] if short else np.zeros(0, dtype=int)
    theirs = {
        "count": [int(row["count"]) for row in bins],
        "bin_start_ns": [1000 * float(row["bin_start"]) for row in bins],
        "bin_end_ns": [1000 * float(row["bin_end"]) for row in bins],
    }
    for edge in ("bin_start_ns", "bin_end_ns"):
        assert ours[edge] == pytest.approx(theirs[edge], abs=1e-3)
    # A duration on an edge may fall to either side in their doubles of microseconds: redo those.
    assert sum(ours["count"]) == sum(theirs["count"])
    assert in_microseconds.tolist() == theirs["count"]


# ------------------------------------------------------------------------------------------- HTA


def hta_events(trace: ttap.Trace) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Our launch events before the last step, and their times as HTA rounds them, in us."""
    table = trace.launches(by="event")
    cut = trace.rank().tree.steps[-1].start_ns
    keep = table["call_start_ns"] < cut
    columns = {name: np.asarray(table[name])[keep] for name in table}
    core = trace.rank().table
    times = []
    for rows in (columns["call_row"], columns["row"]):
        start_ns, end_ns = core.ts_ns[rows], core.ts_ns[rows] + core.dur_ns[rows]
        # int / int rounds once, as reading the decimal text does; NumPy would round twice.
        start_us = np.array([int(t) / 1000 for t in start_ns])
        lasts_us = np.array([int(t) / 1000 for t in end_ns - start_ns])
        times += [np.ceil(start_us), np.floor(start_us + lasts_us)]
    return columns, np.array(times)


@pytest.mark.parametrize("corpus_file", [NS_TRACE], indirect=True)
def test_hta_launch_statistics(corpus_file: Path) -> None:
    columns, (call, call_end, start, end) = hta_events(ttap.load(corpus_file))
    assert len(columns["row"]) == 4876
    assert (call_end - call).mean() == pytest.approx(39.394586, abs=1e-6)
    assert (end - start).mean() == pytest.approx(76.809065, abs=1e-6)
    assert np.maximum(0, start - call_end).mean() == pytest.approx(66048.567884, abs=1e-6)
    # Ours are the same without the rounding.
    assert columns["host_ns"].mean() / 1000 == pytest.approx(39.394586, abs=1)
    assert columns["delay_ns"].mean() / 1000 == pytest.approx(66048.567884, abs=1)


@pytest.mark.parametrize("corpus_file", [NS_TRACE], indirect=True)
def test_hta_queue_length(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    columns, _ = hta_events(trace)
    starts_ns = trace.rank().table.ts_ns[columns["row"]]
    times = np.concatenate([columns["call_start_ns"], starts_ns])
    change = np.repeat([1, -1], len(starts_ns))
    length = np.cumsum(change[np.lexsort((-change, times))])
    assert len(length) == 9752
    assert length.mean() == pytest.approx(812.413454, abs=0.05)  # ties in whole microseconds
    assert length.max() == 1022


@pytest.mark.parametrize("corpus_file", [NS_TRACE], indirect=True)
def test_our_queue_is_htas_on_the_whole_trace(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    events = trace.launches(by="event")
    starts_ns = trace.rank().table.ts_ns[events["row"]]
    times = np.concatenate([events["call_start_ns"], starts_ns])
    change = np.repeat([1, -1], len(starts_ns))
    order = np.lexsort((-change, times))
    length = np.cumsum(change[order])
    queue = trace.launches(by="queue")
    assert (queue["time_ns"] == times[order]).all()
    assert (queue["length"] == length).all()
    (stream,) = trace.launches(by="stream").records()
    assert stream["mean_length_at_change"] == pytest.approx(length.mean())
    assert stream["full_ns"] == np.diff(times[order])[length[:-1] >= 1000].sum()


# (name, sum, max, min, mean) in us, from get_gpu_kernel_breakdown of HTA 0.5.
HTA_KERNELS = [
    ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", 16738, 650, 247, 348.708333),
    ("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", 8046, 282, 91, 251.4375),
    ("cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1", 4488, 607, 514, 561.0),
]


@pytest.mark.parametrize("corpus_file", [NS_TRACE], indirect=True)
def test_hta_kernel_times(corpus_file: Path) -> None:
    columns, (_, _, start, end) = hta_events(ttap.load(corpus_file))
    for name, total, longest, shortest, mean in HTA_KERNELS:
        lasts = (end - start)[columns["name"] == name]
        assert (lasts.sum(), lasts.max(), lasts.min()) == (total, longest, shortest)
        assert lasts.mean() == pytest.approx(mean, abs=1e-6)


HIP = {
    "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz": 2685,
    "tracelens/mi300/qwen_inference.json.gz": 1054,
    "hta/mi250_minitoy_training.json.gz": 16,
    "tracelens/mi210/gpu_only.json.gz": 562,
}


@pytest.mark.parametrize("corpus_file", HIP, indirect=True)
def test_hip_launches_count_where_hta_finds_none(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    table = trace.launches()
    expected = HIP[str(corpus_file.relative_to(CORPUS))]
    assert table["gpu_events"].sum() == expected
    assert all(call.startswith("hip") for call in table["call"])
    assert (table["host_median_ns"] > 0).all()


# --------------------------------------------------------------------------- every trace we have


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_tables_of_every_trace(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    busy_ns = trace.timeline().busy_ns
    for by in ("name", "canonical", "event"):
        assert trace.kernels(by=by)["exclusive_ns"].sum() == busy_ns
    assert trace.short_kernels(below_ns=2**62)["count"].sum() == len(kernels_of(trace))
    for row in trace.sequences().records():
        assert row["count"] >= 2
        assert row["gap_ns"] <= row["removable_ns"] <= row["gap_ns"] + row["launch_ns"]
        assert len(row["kernels"]) == row["length"] == len(row["names"])
    events = trace.launches(by="event").num_rows
    for by in ("call", "kernel", "stream"):
        assert trace.launches(by=by)["gpu_events"].sum() == events
    copies = trace.memory(by="copy")
    assert trace.memory()["count"].sum() == copies.num_rows
    moved = int(np.ma.filled(copies["size_bytes"], 0).sum())
    over_time = trace.memory(by="bandwidth")["moved_bytes"].sum()
    assert over_time == pytest.approx(moved, abs=1000)
