"""Ranks compared: who is late and why, operators, all-to-all, clocks, the merged trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from rank_samples import Job, describe, late_rank

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.tables.matching import merge_ranks


def by_rank(trace: ttap.Trace) -> dict[int, dict[str, object]]:
    return {row["rank"]: row for row in trace.ranks_table().records()}


def test_a_rank_whose_kernels_take_longer_is_the_straggler(tmp_path: Path) -> None:
    rows = by_rank(late_rank().load(tmp_path))
    assert [rows[r]["verdict"] for r in range(4)] == ["on time", "on time", "straggler", "on time"]
    assert rows[2]["cause"] == "compute"
    assert rows[2]["cause_share"] == pytest.approx(1.0)
    assert rows[2]["lateness_ns"] == 6 * 3_000_000
    assert rows[2]["late_compute_ns"] == 6 * 3_000_000
    assert rows[2]["times_last"] == 6
    assert rows[0]["wait_ns"] == 6 * 3_000_000
    assert rows[2]["wait_ns"] == 0


def test_clock_offsets_are_not_lateness(tmp_path: Path) -> None:
    job = Job(2)
    for i in range(6):
        job.step(i, 10_000.0 * i + 100, 10_000)
        job.kernel(0, 10_000.0 * i + 150, 900).kernel(1, 10_000.0 * i + 150, 900)
        job.all_reduce([10_000.0 * i + 1_100] * 2, 10_000.0 * i + 1_500)
    rows = by_rank(job.load(tmp_path, offsets=[0, 250_000]))
    assert [rows[r]["verdict"] for r in (0, 1)] == ["on time", "on time"]
    assert rows[1]["offset_ns"] == 250_000_000
    assert rows[1]["lateness_ns"] == 0


def test_a_rank_that_loads_data_is_late_by_its_input(tmp_path: Path) -> None:
    job = Job(3)
    for s in range(4):
        at = 20_000.0 * s + 100
        job.step(s, at, 20_000)
        late = [at + 1_100, at + 1_100, at + 9_100]
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        job.host(2, name, at + 10, 8_000)
        for rank in range(3):
            job.kernel(rank, late[rank] - 1_000, 950)
        job.all_reduce(list(late), at + 9_500)
    trace = job.load(tmp_path)
    rows = by_rank(trace)
    assert rows[2]["verdict"] == "straggler"
    assert rows[2]["cause"] == "input"
    diagnosis = trace.diagnose()
    finding = diagnosis.finding("straggler")
    assert finding is not None
    assert finding.ranks == (0, 1)
    assert finding.cost_ns == 2 * 4 * 8_000_000
    assert "rank 2" in finding.why
    assert "input pipeline" in finding.why


def test_a_rank_that_allocates_is_late_by_its_allocator(tmp_path: Path) -> None:
    job = Job(3)
    for s in range(4):
        at = 20_000.0 * s + 100
        job.step(s + 5, at, 20_000)
        late = [at + 1_100, at + 1_100, at + 9_100]
        job.ranks[2].host("cuda_runtime", "cudaMalloc", at + 10, 7_900)
        for rank in range(3):
            job.kernel(rank, late[rank] - 1_000, 950)
        job.all_reduce(list(late), at + 9_500)
    trace = job.load(tmp_path)
    assert by_rank(trace)[2]["cause"] == "allocator"
    assert any("its allocator" in note for note in trace.ranks_table().notes)
    finding = trace.diagnose().finding("straggler")
    assert finding is not None
    assert "its allocator explains" in finding.why


def test_two_causes_prove_neither(tmp_path: Path) -> None:
    job = Job(3)
    for s in range(5):
        at = 20_000.0 * s + 100
        job.step(s, at, 20_000)
        for rank in range(2):
            job.kernel(rank, at + 50, 1_000)
        job.host(2, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, 4_000)
        job.kernel(2, at + 4_050, 5_000)
        job.all_reduce([at + 1_060, at + 1_060, at + 9_060], at + 9_500)
    trace = job.load(tmp_path)
    rows = by_rank(trace)
    assert rows[2]["verdict"] == "late, cause not proven"
    assert rows[2]["cause"] is None
    diagnosis = trace.diagnose()
    assert diagnosis.further_verdicts["straggler"] == "unknown"
    assert "rank 2" in diagnosis.abstained["straggler"][0]


def test_ranks_that_come_last_in_turn_are_no_stragglers(tmp_path: Path) -> None:
    job = Job(3)
    for s in range(9):
        at = 10_000.0 * s + 100
        job.step(s, at, 10_000)
        for rank in range(3):
            job.kernel(rank, at + 50, 1_500 if rank == s % 3 else 1_000)
        starts = [at + (1_560 if rank == s % 3 else 1_060) for rank in range(3)]
        job.all_reduce(list(starts), at + 1_800)
    trace = job.load(tmp_path)
    assert {row["verdict"] for row in trace.ranks_table().records()} == {"on time"}
    assert trace.diagnose().further_verdicts["straggler"] == "absent"


def test_one_rank_alone(tmp_path: Path) -> None:
    trace = late_rank().load(tmp_path, only=[0])
    for view in ("rank", "op", "alltoall", "clock"):
        table = trace.ranks_table(by=view)
        assert json.loads(table.to_json())["columns"]
    assert by_rank(trace)[0]["verdict"] == "unknown"
    assert trace.diagnose().further_verdicts["straggler"] == "unknown"


def test_an_unknown_view_is_an_option_error(tmp_path: Path) -> None:
    with pytest.raises(ttap.errors.OptionError, match="one of rank, op"):
        late_rank().load(tmp_path).ranks_table(by="colour")


def test_equal_operators_are_compared(tmp_path: Path) -> None:
    job = Job(3)
    for rank, length in enumerate((100.0, 101.0, 150.0)):
        for i in range(4):
            at = 1000.0 * i
            job.ranks[rank].host("cpu_op", "aten::mm", at, 30, **{"Input Dims": [[8, 8], [8, 8]]})
            job.kernel(rank, at + 40, length)
            job.ranks[rank].events[-2]["ts"] = at + 5  # the launch, inside the operator
            job.ranks[rank].events[-1]["ts"] = at + 40
    table = job.load(tmp_path).ranks_table(by="op")
    (row,) = table.records()
    assert row["name"] == "aten::mm"
    assert row["median_by_rank_ns"] == [100_000, 101_000, 150_000]
    assert row["slowest_rank"] == 2
    assert row["excess_ns"] == 4 * 49_000
    assert row["spread_share"] == pytest.approx(50 / 101)


def test_all_to_all_matrix_and_imbalance(tmp_path: Path) -> None:
    job = Job(2)
    splits = {0: ([10, 30], [10, 50]), 1: ([50, 10], [30, 10])}  # sent, received
    for i in range(3):
        for rank, (sent, received) in splits.items():
            args = describe("all_to_allv", 0, [0, 1]) | {
                "In msg nelems": sum(sent),
                "Out msg nelems": sum(received),
                "In split size": str(sent),
                "Out split size": str(received),
            }
            name = "ncclDevKernel_SendRecv(ncclDevComm*)"
            job.ranks[rank].gpu("kernel", name, 1000.0 * i, 500, launch=1000.0 * i, **args)
    table = job.load(tmp_path).ranks_table(by="alltoall")
    assert table.facts["matrix_bytes"] == [[120, 360], [600, 120]]
    assert table.facts["all_to_all_v"] == 3
    assert table.facts["received_imbalance"] == pytest.approx(720 / 600)
    assert [row["bytes"] for row in table.records()] == [120, 360, 600, 120]


def test_a_rank_twice_and_different_step_counts_are_said(tmp_path: Path) -> None:
    job = late_rank(ranks=2, late=1)
    for maker in job.ranks:
        maker.top["distributedInfo"]["rank"] = 0
    for rank in range(2):
        job.ranks[rank].write(tmp_path / f"{'ab'[rank]}.json")
    job.ranks[1].events = [e for e in job.ranks[1].events if e["name"] != "ProfilerStep#5"]
    job.ranks[1].write(tmp_path / "b.json")
    with pytest.raises(ttap.errors.SeveralRunsError):
        ttap.load(tmp_path)
    # Files that are named one by one are meant as they are.
    trace = ttap.load([tmp_path / "a.json", tmp_path / "b.json"])
    for table in (trace.collectives(), trace.ranks_table(), trace.ranks_table(by="clock")):
        text = " ".join(table.notes)
        assert "numbered in order" in text
        assert "different numbers of steps" in text
    assert [row["rank"] for row in trace.ranks_table().records()] == [0, 1]


# --- the merged trace ---


def raw(path: Path) -> dict[str, Any]:
    text = path.read_bytes()
    return json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)


def test_merged_ranks_are_one_trace_to_others(tmp_path: Path) -> None:
    """Without the record of what was merged it is a file of several processes."""
    trace = late_rank().load(tmp_path / "job", offsets=[0, 500_000, 0, 0])
    merge_ranks(trace, tmp_path / "merged.json.gz")
    document = raw(tmp_path / "merged.json.gz")
    assert len(document.pop("mergedRanks")) == 4
    (tmp_path / "other.json").write_text(json.dumps(document))
    merged = ttap.load(tmp_path / "other.json")
    assert [rank.rank for rank in merged.ranks] == [0, 1, 2, 3]
    correlations: list[int] = []
    for part, whole in zip(merged.ranks, trace.ranks, strict=True):
        assert int(part.table.complete.sum()) == int(whole.table.complete.sum())
        assert len(part.tree.linked_gpu_rows) == len(whole.tree.linked_gpu_rows)
        names = {track.process_name.split(":")[0] for track in part.table.tracks}
        assert f"rank {part.rank}" in names
        correlations += part.table.correlation[part.tree.gpu_rows].tolist()
    assert len(set(correlations)) == len(correlations)


def events_of(table: _core.EventTable) -> list[dict[str, Any]]:
    """All but what the processes are called, as written."""
    events = json.loads(_core.trace_json(table))["traceEvents"]
    kept = [event for event in events if not event["name"].startswith("process_")]
    return sorted(kept, key=lambda event: json.dumps(event, sort_keys=True))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_merged_ranks_load_as_the_ranks(tmp_path: Path, ranks: int) -> None:
    job = Job(ranks).all_reduce([100] * ranks, 500)
    for rank, maker in enumerate(job.ranks):
        maker.top["only"] = {"of": rank}
        maker.top.update({"shared": [1, 2]} if rank == 0 else {"later": "x"})
        maker.events += [
            {"ph": "s", "id": 7, "pid": 100, "tid": 100, "ts": 80, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": 7, "pid": 0, "tid": 20, "ts": 100, "cat": "ac2g", "name": "ac2g"},
            {"ph": "b", "id": "0x1f", "pid": "w", "tid": 1, "ts": 80, "cat": "x", "name": "x"},
            {
                "ph": "X",
                "pid": "w",
                "tid": "t",
                "ts": 1,
                "dur": 2,
                "cat": "cpu_op",
                "name": "op",
                "args": {"External id": 0, "Input Dims": [[1]], "text": "0:1"},
            },
            {
                "ph": "M",
                "name": "process_name",
                "pid": 100,
                "tid": 0,
                "ts": 0,
                "args": {"name": "python"},
            },
            {
                "ph": "M",
                "name": "process_labels",
                "pid": 100,
                "tid": 0,
                "ts": 0,
                "args": {"labels": "CPU"},
            },
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 100,
                "tid": 100,
                "ts": 0,
                "args": {"name": "main"},
            },
        ]
    trace = job.load(tmp_path / "job")
    merge_ranks(trace, tmp_path / "merged.json.gz")
    again = ttap.load(tmp_path / "merged.json.gz")
    assert [part.rank for part in again.ranks] == [part.rank for part in trace.ranks]
    assert not again.diagnostics
    for before, after in zip(trace.ranks, again.ranks, strict=True):
        assert events_of(after.table) == events_of(before.table)
        assert dict(after.table.metadata) == dict(before.table.metadata)
        assert after.table.rank == before.table.rank
        for one, other in zip(before.table.tracks, after.table.tracks, strict=True):
            assert (one.pid, one.tid, one.thread_name) == (other.pid, other.tid, other.thread_name)
            assert one.process_name == other.process_name
            assert one.process_labels == other.process_labels
    merge_ranks(again, tmp_path / "twice.json.gz")
    assert raw(tmp_path / "twice.json.gz") == raw(tmp_path / "merged.json.gz")


def test_merged_ranks_are_judged_as_the_ranks(tmp_path: Path) -> None:
    """On the clock that merging aligned, nothing is left to align."""
    trace = late_rank().load(tmp_path / "job", offsets=[0, 500_000, 0, 0])
    merge_ranks(trace, tmp_path / "merged.json")
    again = ttap.load(tmp_path / "merged.json")
    found, expected = again.diagnose(), trace.diagnose()
    assert [f.type for f in found.findings] == [f.type for f in expected.findings]
    assert [f.cost_ns for f in found.findings] == [f.cost_ns for f in expected.findings]
    assert again.ranks_table()["wait_ns"].tolist() == trace.ranks_table()["wait_ns"].tolist()
    assert not any(again.ranks_table(by="clock")["applied"])


@pytest.mark.parametrize(
    "record",
    [
        17,
        [],
        [3],
        [{"rank": 0}],
        [{"rank": 0, "processes": [{"pid": 1}], "members": {}, "without": []}],
        [{"rank": "x", "processes": [], "members": {}, "without": []}],
        [{"rank": 0, "processes": [], "members": [], "without": []}],
        [{"rank": 0, "processes": [], "members": {"a": 1}, "without": []}],
        [{"rank": 0, "processes": [], "members": {"a": "1}"}, "without": []}],
        [{"rank": 0, "processes": [], "members": {}, "without": [1]}],
        [{"rank": r, "processes": [{"pid": 100, "was": 1}], "members": {}, "without": []}
         for r in range(2)],
        [{"rank": 0, "processes": [{"pid": 100, "was": [1]}], "members": {}, "without": []}],
    ],
)  # fmt: skip
def test_a_record_of_merging_without_sense_is_left_alone(tmp_path: Path, record: Any) -> None:
    job = Job(1).all_reduce([100], 500)
    expected = job.load(tmp_path / "job")
    job.ranks[0].top["mergedRanks"] = record
    found = job.load(tmp_path / "again")
    assert len(found.ranks) == 1
    assert events_of(found.ranks[0].table) == events_of(expected.ranks[0].table)


def test_events_of_no_merged_rank_stay_with_the_first(tmp_path: Path) -> None:
    """A file that someone edited: a record that takes other members along, ranks without events."""
    entry = {"members": {"traceEvents": "[]", "own": "1"}, "without": ["gone"]}
    record = [
        {"rank": 5, "processes": [{"pid": 1, "was": 9}], **entry},
        {"rank": 6, "processes": [{"pid": 2, "was": "w"}], **entry},
        {"rank": 7, "processes": [], **entry},
    ]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{pid}", "pid": pid, "tid": 1, "ts": 1, "dur": 1}
        for pid in (1, 2, 3, "x")
    ]
    document = {"mergedRanks": record, "gone": 1, "kept": 2, "traceEvents": events}
    (tmp_path / "t.json").write_text(json.dumps(document))
    trace = ttap.load(tmp_path / "t.json")
    assert [part.rank for part in trace.ranks] == [5, 6]
    names = [[e["name"] for e in events_of(part.table)] for part in trace.ranks]
    assert [sorted(each) for each in names] == [["op1", "op3", "opx"], ["op2"]]
    assert [e["pid"] for e in events_of(trace.ranks[1].table)] == ["w"]
    assert dict(trace.ranks[0].table.metadata) == {"kept": "2", "own": "1"}


def test_merging_aligns_the_clocks(tmp_path: Path) -> None:
    trace = late_rank().load(tmp_path / "job", offsets=[0, 500_000, 0, 0])
    merge_ranks(trace, tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    ends: dict[float, int] = {}
    for event in events:
        if "AllReduce" in event["name"]:
            end = round(event["ts"] + event["dur"], 3)
            ends[end] = ends.get(end, 0) + 1
    assert list(ends.values()) == [4] * 6
    pids = [{e["pid"] for e in events if e.get("cat") == "kernel"}]
    assert all(type(pid) is int for pid in pids[0])
    assert len(pids[0]) == 4


def test_flows_of_ranks_do_not_meet(tmp_path: Path) -> None:
    job = Job(2).all_reduce([100, 120], 500)
    for maker in job.ranks:
        maker.events += [
            {"ph": "s", "id": 7, "pid": 100, "tid": 100, "ts": 80, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": 7, "pid": 0, "tid": 20, "ts": 100, "cat": "ac2g", "name": "ac2g"},
            {"ph": "s", "id": "0x1f", "pid": 100, "tid": 100, "ts": 80, "cat": "x", "name": "x"},
        ]
    merge_ranks(job.load(tmp_path / "job"), tmp_path / "m.json")
    events = json.loads((tmp_path / "m.json").read_text())["traceEvents"]
    ids = [event["id"] for event in events if event["ph"] in "sf"]
    assert len(ids) == 6
    assert len(set(ids)) == 4  # one pair and one lone arrow for each rank


def test_a_file_that_was_read_is_not_overwritten(tmp_path: Path) -> None:
    trace = late_rank().load(tmp_path)
    with pytest.raises(ttap.errors.OptionError, match="this file was read"):
        merge_ranks(trace, tmp_path / "rank0.json")
    with pytest.raises(ttap.errors.TraceError, match="can't be written"):
        merge_ranks(trace, tmp_path / "no" / "such" / "folder.json")
