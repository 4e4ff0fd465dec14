"""Jobs of several ranks in which something lacks: files, clocks, partners, places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_samples import Job, describe

import torchtraceap as ttap
from torchtraceap.errors import OptionError, ParseError
from torchtraceap.tables.matching import join_ranks


def reducing(ranks: int, *, world_size: int | None = None, rounds: int = 4) -> Job:
    """An all-reduce every millisecond, in which all ranks begin together."""
    job = Job(ranks, world_size=world_size)
    for number in range(rounds):
        at = 1_000.0 * number + 100
        job.step(number, at, 1_000)
        for rank in range(ranks):
            job.kernel(rank, at + 50, 100)
        job.all_reduce([at + 200] * ranks, at + 600)
    return job


@pytest.mark.parametrize(("world_size", "listed"), [
    (10, "without 2, 3, 4, 5, 6, 7, 8, 9)"), (11, "without 2, 3, 4, 5, 6, 7, 8, 9, ...)"),
])  # fmt: skip
def test_eight_absent_ranks_are_listed(tmp_path: Path, world_size: int, listed: str) -> None:
    table = reducing(2, world_size=world_size).load(tmp_path / "job").collectives()
    assert any(f"2 of {world_size} ranks are here" in note for note in table.notes)
    assert any(listed in note for note in table.notes)
    (reason,) = set(table.to_list("reason"))
    assert reason == f"rank {listed[8:-1]}: no file"


def test_one_rank_of_a_job_lists_no_absent_ranks(tmp_path: Path) -> None:
    notes = reducing(2, world_size=10).load(tmp_path / "job", only=[0]).collectives().notes
    assert not any("ranks are here" in note for note in notes)
    assert any("One rank alone" in note for note in notes)


def test_ranks_of_worlds_of_other_sizes_are_no_job(tmp_path: Path) -> None:
    job = reducing(2, world_size=4)
    facts = job.load(tmp_path / "job").collectives().facts
    assert (facts["world_size"], facts["absent_ranks"]) == (4, [2, 3])
    job.ranks[1].top["distributedInfo"]["world_size"] = 6
    with pytest.raises(ParseError, match="several_jobs"):
        job.load(tmp_path / "others")


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(1, [None] * 4), (2, ["node 0", "node 0", "node 1", "node 1"])]
)
def test_machines_by_the_gpu_that_each_rank_uses(
    tmp_path: Path, gpus: int, nodes: list[str | None]
) -> None:
    job = reducing(4)
    for rank, maker in enumerate(job.ranks):
        maker.top["deviceProperties"] = [{"id": i, "name": "GPU"} for i in range(gpus)]
        for event in maker.events:
            if "device" in event["args"]:
                event["args"]["device"] = rank % gpus
    trace = job.load(tmp_path / "job")
    assert trace.ranks_table().to_list("node") == nodes
    span = None if gpus == 1 else "inter"
    assert set(trace.collectives().to_list("node_span")) == {span}


def test_ranks_on_other_gpus_than_their_number_says_are_on_no_machine(tmp_path: Path) -> None:
    job = reducing(2)
    for maker in job.ranks:
        maker.top["deviceProperties"] = [{"id": i, "name": "GPU"} for i in range(2)]
    assert job.load(tmp_path / "job").ranks_table().to_list("node") == [None, None]


def two_jobs(folder: Path) -> ttap.Trace:
    """Ranks 0 and 1 reduce together, and so do 2 and 3; the halves share nothing."""
    job = Job(4)
    for number in range(4):
        at = 1_000.0 * number + 100
        job.step(number, at, 1_000)
        for half in ([0, 1], [2, 3]):
            for rank in half:
                args = describe("allreduce", 1 << 20, half) | {"Process Group Name": str(half)}
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
                start = at + 200 + 100 * (rank % 2)
                job.ranks[rank].gpu("kernel", name, start, at + 600 - start, launch=at, **args)
    return job.load(folder)


def test_halves_of_a_job_are_not_compared(tmp_path: Path) -> None:
    trace = two_jobs(tmp_path / "job")
    notes = " ".join(trace.collectives().notes)
    assert "Ranks that share no collective cannot be compared in time (2 sets)." in notes
    assert trace.collectives().facts["wait_sum_ns"] == 8 * 100_000
    joined = join_ranks(trace)
    assert [part.rank for part in joined.parts] == [0, 1]
    assert joined.notes[0].startswith("2 of 4 ranks are taken together")


def test_a_rank_that_shares_nothing_is_named(tmp_path: Path) -> None:
    job = reducing(3)
    job.ranks[2].events = [e for e in job.ranks[2].events if "nccl" not in e["name"]]
    trace = job.load(tmp_path / "job")
    assert any("(2 sets: rank 2)" in note for note in trace.collectives().notes)
    (reason,) = set(trace.collectives().to_list("reason"))
    assert reason == "rank 2: its clock cannot be compared, no such collective"


def test_clocks_that_drift_are_brought_to_the_middle_of_the_time(tmp_path: Path) -> None:
    """Rank 1's clock runs fast by 400 us in a second, and is 5 ms ahead at the beginning."""
    job = reducing(2, rounds=60)
    for event in job.ranks[1].events:
        event["ts"] = 20 * event["ts"] * (1 + 400e-6) + 5_000
        event["dur"] *= 20
    for event in job.ranks[0].events:
        event["ts"], event["dur"] = 20 * event["ts"], event["dur"] * 20
    trace = job.load(tmp_path / "job")
    clock = trace.ranks_table(by="clock").records()[1]
    assert clock["drift_ppm"] == pytest.approx(400, rel=0.01)
    joined = join_ranks(trace)
    start_ns, end_ns = trace.ranks[1].tree.profiled
    middle_us = (start_ns + end_ns) / 2_000
    ahead_us = 5_000 + (middle_us - 5_000) * 400e-6
    assert joined.offsets_ns[0] == 0
    assert joined.offsets_ns[1] == pytest.approx(-1_000 * ahead_us, abs=3_000)


def test_sends_meet_their_receives_and_broadcasts_meet_nobody(tmp_path: Path) -> None:
    """Rank 1 receives what rank 0 sends, 200 us late; a broadcast lets the root go on."""
    job = Job(2)
    for number in range(4):
        at = 1_000.0 * number + 100
        job.step(number, at, 1_000)
        job.all_reduce([at + 100] * 2, at + 200)
        for rank, kind in enumerate(("send", "recv")):
            key = ("Dst Rank", "Src Rank")[rank]
            args = describe(kind, 1 << 20, [0, 1]) | {key: 1 - rank}
            start = at + 300 + 200 * rank
            name = "ncclDevKernel_SendRecv(ncclDevComm*)"
            job.ranks[rank].gpu("kernel", name, start, at + 700 - start, launch=at, **args)
    table = job.load(tmp_path / "job").collectives()
    rows = [row for row in table.records() if row["kind"] == "send_recv"]
    assert [row["ranks"] for row in rows] == [[0, 1]] * 4
    assert {row["longest_wait_ns"] for row in rows} == {200_000}


@pytest.mark.parametrize("name", ["merged.txt", "merged", "merged.json.zip"])
def test_a_merged_trace_has_the_ending_of_a_trace(tmp_path: Path, name: str) -> None:
    trace = reducing(2).load(tmp_path / "job")
    with pytest.raises(OptionError, match=r"must end in \.json or \.json\.gz"):
        trace.merge(tmp_path / name)


def events_of(trace: ttap.Trace) -> list[tuple[Any, ...]]:
    table = trace.ranks[0].table
    rows = range(len(table))
    return sorted((table.name_of(r), int(table.ts_ns[r]), int(table.dur_ns[r])) for r in rows)


def test_a_merged_trace_is_on_one_clock(tmp_path: Path) -> None:
    trace = reducing(2).load(tmp_path / "job", offsets=[0, 7_000])
    trace.merge(tmp_path / "merged.JSON")
    level = reducing(2).load(tmp_path / "level")
    level.merge(tmp_path / "level.json")
    merged, expected = (ttap.load(tmp_path / n) for n in ("merged.JSON", "level.json"))
    assert events_of(merged) == events_of(expected)
