"""Collectives across ranks: waits and transfers, bandwidths, what is missing and why."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_samples import ALL_REDUCE, Job, describe, late_rank
from report_samples import TraceMaker

import torchtraceap as ttap
from torchtraceap.ops.durations.collectives import bus_factor

FIXED_COLUMNS = {
    "name",
    "group",
    "sequence",
    "ranks",
    "bytes",
    "transfer_ns",
    "exposed_ns",
    "wait_ns",
}


def test_waits_and_transfer_of_one_all_reduce(tmp_path: Path) -> None:
    job = Job(3).all_reduce([100, 400, 250], 500, elements=1000)
    job.kernel(0, 150, 200)  # beside the collective, on another stream
    table = job.load(tmp_path).collectives()
    assert set(table.columns) >= FIXED_COLUMNS
    (row,) = table.records()
    assert row["name"] == "allreduce"
    assert row["kind"] == "all_reduce"
    assert row["group"] == "0"
    assert row["ranks"] == [0, 1, 2]
    assert row["bytes"] == 4000
    assert row["dtype"] == "float32"
    assert row["wait_ns"] == [300_000, 0, 150_000]
    assert row["transfer_ns"] == 100_000
    assert row["latest_rank"] == 1
    assert row["skew_ns"] == 300_000
    assert row["exposed_by_rank_ns"] == [200_000, 100_000, 250_000]
    assert row["exposed_ns"] == 250_000
    assert row["algorithm_bandwidth_gb_per_s"] == pytest.approx(4000 / 100_000)
    assert row["bus_bandwidth_gb_per_s"] == pytest.approx(4000 / 100_000 * 4 / 3)
    assert row["missing_ranks"] is None
    assert row["reason"] is None


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("all_to_all_v", 2, 0.5),
        ("gather", 4, 0.75),
        ("scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind: str, ranks: int, factor: float) -> None:
    assert bus_factor(kind, ranks) == factor


def test_a_barrier_has_no_bandwidth() -> None:
    assert np.isnan(bus_factor("barrier", 8))


def test_clocks_that_disagree_are_aligned_and_lateness_kept(tmp_path: Path) -> None:
    job = Job(2)
    for i in range(6):
        job.all_reduce([1000.0 * i + 100, 1000.0 * i + 130], 1000.0 * i + 500)
    table = job.load(tmp_path, offsets=[0, 77_000]).collectives()
    assert [row["wait_ns"] for row in table.records()] == [[30_000, 0]] * 6
    assert [row["transfer_ns"] for row in table.records()] == [370_000] * 6
    assert any("rank 1 by 77.0 ms" in note for note in table.notes)


def test_one_clock_is_left_alone(tmp_path: Path) -> None:
    job = Job(2)
    for i in range(4):
        job.all_reduce([1000.0 * i + 100, 1000.0 * i + 103], 1000.0 * i + 500)
    table = job.load(tmp_path, offsets=[0, 4]).collectives()
    assert table.to_list("wait_ns") == [[7_000, 0]] * 4
    assert any("clocks agree" in note for note in table.notes)


def test_one_rank_alone_has_no_waits(tmp_path: Path) -> None:
    job = Job(2).all_reduce([100, 120], 500)
    table = job.load(tmp_path, only=[0]).collectives()
    (row,) = table.records()
    assert row["wait_ns"] is None
    assert row["transfer_ns"] is None
    assert row["bus_bandwidth_gb_per_s"] is None
    assert row["duration_ns"] == [400_000]
    assert row["missing_ranks"] == [1]
    assert any("One rank alone" in note for note in table.notes)


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    job = Job(4).all_reduce([100, 120, 130, 140], 500)
    table = job.load(tmp_path, only=[0, 2]).collectives()
    (row,) = table.records()
    assert row["ranks"] == [0, 2]
    assert row["wait_ns"] == [30_000, 0]
    assert row["missing_ranks"] == [1, 3]
    assert row["reason"] == "rank 1, 3: no file"
    assert table.facts["absent_ranks"] == [1, 3]
    assert any("2 of 4 ranks are here (without 1, 3)" in note for note in table.notes)


def test_a_rank_that_recorded_less_says_why(tmp_path: Path) -> None:
    job = Job(2)
    for i in range(5):
        start: list[float | None] = [1000.0 * i + 100, 1000.0 * i + 150 if 0 < i < 4 else None]
        job.all_reduce(start, 1000.0 * i + 500)
    rows = job.load(tmp_path).collectives().records()
    assert [row["ranks"] for row in rows] == [[0], [0, 1], [0, 1], [0, 1], [0]]
    assert rows[0]["reason"] == "rank 1: not recording yet"
    assert rows[4]["reason"] == "rank 1: recording was over"
    assert rows[0]["wait_ns"] is None


def test_a_collective_left_out_in_the_middle(tmp_path: Path) -> None:
    job = Job(2)
    for i in range(5):
        size = 1000 * (i + 1)
        job.all_reduce(
            [1000.0 * i, None if i == 2 else 1000.0 * i], 1000.0 * i + 500, elements=size
        )
    rows = job.load(tmp_path).collectives().records()
    assert [len(row["ranks"]) for row in rows] == [2, 2, 1, 2, 2]
    assert rows[2]["reason"] == "rank 1: no such collective"


def test_sequence_numbers_decide(tmp_path: Path) -> None:
    job = Job(2)
    job.all_reduce([100, None], 200, Seq=4).all_reduce([1100, 1100], 1200, Seq=5)
    job.all_reduce([2100, 2100], 2200, Seq=6)
    rows = job.load(tmp_path).collectives().records()
    assert [(row["sequence"], row["ranks"]) for row in rows] == [(4, [0]), (5, [0, 1]), (6, [0, 1])]


def test_groups_of_different_ranks_stay_apart(tmp_path: Path) -> None:
    job = Job(4)
    for i in range(3):
        at = 1000.0 * i
        for ranks, name, start in (([0, 1], "tp0", at), ([2, 3], "tp1", at + 7)):
            for rank in ranks:
                args = describe("allreduce", 10, ranks) | {"Process Group Name": name}
                job.ranks[rank].gpu("kernel", ALL_REDUCE, start, 50, launch=start, **args)
    table = job.load(tmp_path).collectives()
    assert sorted((r["group"], tuple(r["ranks"])) for r in table.records()) == sorted(
        [("tp0", (0, 1)), ("tp1", (2, 3))] * 3
    )
    assert any("share no collective" in note for note in table.notes)


def test_sends_meet_receives(tmp_path: Path) -> None:
    job = Job(3).all_reduce([10, 10, 10], 50)  # shows that the clocks agree
    for source, target, start in ((0, 1, 100.0), (1, 2, 300.0), (0, 1, 500.0)):
        send = describe("send", 64, [0, 1, 2]) | {"Dst Rank": target}
        receive = describe("recv", 64, [0, 1, 2]) | {"Src Rank": source}
        name = "ncclDevKernel_SendRecv(ncclDevComm*)"
        job.ranks[source].gpu("kernel", name, start, 90, launch=start, **send)
        job.ranks[target].gpu("kernel", name, start + 30, 60, launch=start, **receive)
    rows = job.load(tmp_path).collectives().records()[1:]
    assert [(row["kind"], row["ranks"]) for row in rows] == [
        ("send_recv", [0, 1]),
        ("send_recv", [1, 2]),
        ("send_recv", [0, 1]),
    ]
    assert rows[0]["wait_ns"] == [30_000, 0]
    assert rows[0]["bus_bandwidth_gb_per_s"] == pytest.approx(256 / 60_000)


def test_collectives_of_a_cpu_backend(tmp_path: Path) -> None:
    for rank in (0, 1):
        maker = TraceMaker(rank=rank, world_size=2)
        for i in range(3):
            start = 1000.0 * i + 100 + 200 * rank
            maker.host(
                "user_annotation",
                "gloo:all_reduce",
                start,
                1000.0 * i + 600 - start,
                **{"Input Dims": [[25]], "Input type": ["float"]},
            )
        maker.write(tmp_path / f"rank{rank}.json")
    rows = ttap.load(tmp_path).collectives().records()
    assert [row["kind"] for row in rows] == ["all_reduce"] * 3
    assert [row["wait_ns"] for row in rows] == [[200_000, 0]] * 3
    assert rows[0]["bytes"] == 100


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.host("cpu_op", "aten::mm", 0, 10)
    table = ttap.load(maker.write(tmp_path / "a.json")).collectives()
    assert table.num_rows == 0
    assert set(table.columns) >= FIXED_COLUMNS
    assert any("no collectives" in note for note in table.notes)


def test_the_document_is_json(tmp_path: Path) -> None:
    document = json.loads(late_rank().load(tmp_path).collectives().to_json())
    assert document["schema"] == "torchtraceap.table/1"
    assert document["ranks"] == [0, 1, 2, 3]
    at = document["columns"].index("wait_ns")
    assert all(len(row[at]) == 4 for row in document["rows"])


arrivals = st.lists(st.lists(st.integers(0, 5000), min_size=3, max_size=3), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(arrivals=arrivals, offsets=st.lists(st.integers(-(10**6), 10**6), min_size=3, max_size=3))
def test_wait_and_transfer_make_up_every_duration(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[list[int]], offsets: list[int]
) -> None:
    job = Job(3)
    for i, late in enumerate(arrivals):
        at = 20_000.0 * i + 2_000_000
        job.all_reduce([at + value for value in late], at + max(late) + 50)
    folder = tmp_path_factory.mktemp("job")
    rows = job.load(folder, offsets=[float(o) for o in offsets]).collectives().records()
    assert len(rows) == len(arrivals)
    for row in rows:
        parts = zip(row["wait_ns"], row["transfer_by_rank_ns"], row["duration_ns"], strict=True)
        for wait, transfer, duration in parts:
            assert wait >= 0
            assert transfer >= 0
            assert wait + transfer == duration
    if len(arrivals) >= 3:  # fewer common ends can't show a small offset
        for row, late in zip(rows, arrivals, strict=True):
            expected = np.array([max(late) - value for value in late]) * 1000
            assert np.abs(np.array(row["wait_ns"]) - expected).max() <= 50_000
