"""TraceLens's report of the collectives of several ranks, on a few of them, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap import cli
from torchtraceap.compat.tracelens import (
    collective_sheets,
    write_tracelens_csvs,
    write_tracelens_xlsx,
)

Event = dict[str, Any]
WriteTrace = Callable[..., Path]
MEGA = 1 << 20


def collective(
    name: str, ts: float, dur: float, sent: Any = MEGA, got: Any = None, **more: Any
) -> Event:
    args = {
        "stream": 7,
        "correlation": 1,
        "Collective name": name,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
        "dtype": "BFloat16",
        "In msg nelems": sent,
        "Out msg nelems": sent if got is None else got,
        "In split size": "[]",
        "Out split size": "[]",
    } | {key.replace("_", " "): value for key, value in more.items()}
    kept = {key: value for key, value in args.items() if value is not None}
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "pid": 0, "tid": 7}
    return event | {"ts": ts, "dur": dur, "args": kept}


RANKS = (
    [
        collective("allreduce", 100, 30),
        collective("_allgather_base", 200, 10, got=2 * MEGA),
        collective("all_to_allv", 300, 10),
        collective("broadcast", 400, 5),
    ],
    [
        collective("allreduce", 110, 20),
        collective("_allgather_base", 190, 25, got=2 * MEGA),
        collective("all_to_allv", 305, 10, 3 * MEGA),
        collective("broadcast", 400, 5),
    ],
)


def folder_of(write_trace: WriteTrace, ranks: Any, **document: Any) -> Path:
    for number, events in enumerate(ranks):
        told = {"distributedInfo": {"rank": number, "world_size": len(ranks)}, **document}
        path = write_trace({"traceEvents": events, **told}, f"run/rank{number}.json")
    return path.parent


def report(write_trace: WriteTrace, ranks: Any, **document: Any) -> Any:
    return collective_sheets(ttap.load(folder_of(write_trace, ranks, **document)).ranks)


def row(sheet: Any, place: int = 0) -> dict[str, Any]:
    return {name: column[place] for name, column in sheet.items()}


def test_who_waits_for_whom(write_trace: WriteTrace) -> None:
    sheet = report(write_trace, RANKS)["nccl_implicit_sync"]
    found = row(sheet)
    assert len(sheet["collective_id"]) == 2
    assert list(found)[:3] == ["collective_id", "Process Group Name", "Process Group Ranks"]
    assert found["collective_id"] == "0_0"
    assert (found["Full msg size (MB)"], found["comm_latency"]) == (2, 20)
    assert (found["skew in start time"], found["skew in end time"]) == (10, 0)
    assert (found["earliest arrival rank"], found["avg_wait_time"]) == (0, 5)
    assert found["algo bw (GB/s)"] == pytest.approx(2 / 1024 / 20e-6)
    assert found["bus bw (GB/s)"] == found["algo bw (GB/s)"]
    assert list(found)[-6:] == [
        "rank_0_ts",
        "rank_0_dur",
        "rank_1_ts",
        "rank_1_dur",
        "rank_0_wait_time",
        "rank_1_wait_time",
    ]
    gathered = row(sheet, 1)
    assert (gathered["Full msg size (MB)"], gathered["rank_1_wait_time"]) == (4, 10)
    assert gathered["algo bw (GB/s)"] == pytest.approx(4 / 1024 / 10e-6)
    assert gathered["bus bw (GB/s)"] == gathered["algo bw (GB/s)"] / 2


def test_summary(write_trace: WriteTrace) -> None:
    twice = [[*events, {**events[0], "ts": 500, "dur": 60}] for events in RANKS]
    sheets = report(write_trace, twice)
    found = row(sheets["nccl_summary_implicit_sync"])
    assert (found["Collective name"], found["In msg nelems"], found["count"]) == (
        "allreduce",
        MEGA,
        2,
    )
    assert found["Total comm latency (ms)"] == 0.08
    assert (found["comm_latency_mean"], found["comm_latency_max"]) == (40, 60)
    assert list(found)[3:6] == ["Process Group Name", "Group size", "Full msg size (MB)"]
    long = row(sheets["nccl_summary_long"])
    assert (long["rank"], long["dur_sum"], long["operation_count"]) == (0, 90, 2)
    assert len(sheets["nccl_long"]["rank"]) == 10


def test_exchange_of_different_amounts(write_trace: WriteTrace) -> None:
    sheets = report(write_trace, RANKS)
    found = row(sheets["nccl_all2allv"])
    assert (found["total data communicated (MB)"], found["wall_time (us)"]) == (8, 15)
    assert found["throughput (GB/s)"] == pytest.approx(8 / 1024 / 15e-6)
    assert found["size_imbalance"] == 1.5
    assert found["max_rank_throughput (GB/s)"] == pytest.approx(6 / 1024 / 10e-6)
    assert (found["rank_1_skew in start time"], found["rank_0_skew in end time"]) == (5, 5)
    assert row(sheets["nccl_summary_all2allv"])["Total wall_time (ms)"] == 0.015


def test_stragglers(write_trace: WriteTrace) -> None:
    sheet = report(write_trace, [*RANKS])["straggler_summary"]
    assert row(sheet) == {
        "rank": 0,
        "total_wait_time_us": 10,
        "mean_wait_time_us": 5,
        "times_arrived_last": 1,
        "times_arrived_first": 1,
        "pct_arrived_last": 50,
        "num_collectives": 2,
        "total_nccl_dur_us": 55,
    }


def test_nodes_are_as_wide_as_the_first_trace_says(write_trace: WriteTrace) -> None:
    one = {"deviceProperties": [{"id": 0, "name": "GPU"}]}
    sheets = report(write_trace, RANKS, **one)
    assert sheets["straggler_summary"]["node_id"] == [0, 1]
    assert set(sheets["nccl_long"]["node_span"]) == {"inter_node"}
    assert "node_id" not in sheets["nccl_implicit_sync"]
    wide = {"deviceProperties": [{"id": i, "name": "GPU"} for i in range(2)]}
    assert set(report(write_trace, RANKS, **wide)["nccl_long"]["node_span"]) == {"intra_node"}


def test_without_groups_order_decides(write_trace: WriteTrace) -> None:
    """All of them are taken for collectives in which every rank waits."""
    plain = [[{**e, "args": {"stream": 7, "correlation": 1}} for e in events] for events in RANKS]
    sheets = report(write_trace, plain)
    assert sheets["nccl_implicit_sync"]["collective_id"] == ["0", "1", "2", "3"]
    found = row(sheets["nccl_summary_implicit_sync"])
    assert (found["Collective name"], found["Process Group Name"]) == ("Unknown", "all")
    assert "algo bw (GB/s)_mean" not in found
    assert sheets["nccl_summary_long"]["rank"] == []
    plain[1][0]["args"]["stream"] = 8
    sheets = report(write_trace, plain)
    assert set(sheets["nccl_long"]["Process Group Name"]) == {"Unknown_Group"}
    assert sheets["nccl_implicit_sync"] == {}
    assert "straggler_summary" not in sheets


def test_what_is_no_number(write_trace: WriteTrace) -> None:
    odd: list[Any] = ["many", "9" * 5000, -1, 0, 2.5, [1], {"a": 1}, None, True, 10**30]
    for value in odd:
        for key in ("In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name"):
            ranks = [[{**e, "args": {**e["args"], key: value}} for e in events] for events in RANKS]
            assert len(report(write_trace, ranks)["nccl_long"]["rank"]) == 8


def test_files(write_trace: WriteTrace, tmp_path: Path) -> None:
    trace = ttap.load(folder_of(write_trace, RANKS))
    written = write_tracelens_csvs(trace, tmp_path / "out")
    assert tmp_path / "out" / "nccl_implicit_sync.csv" in written
    assert not (tmp_path / "out" / "rank0" / "nccl_long.csv").exists()
    pytest.importorskip("openpyxl")
    write_tracelens_xlsx(trace, tmp_path / "book.xlsx")
    assert (tmp_path / "book_nccl.xlsx").exists()
    alone = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    silent = ttap.load(folder_of(write_trace, [[alone], [alone]]))
    assert collective_sheets(silent.ranks) == {}
    write_tracelens_csvs(silent, tmp_path / "silent")
    assert not list((tmp_path / "silent").glob("*.csv"))


# --------------------------------------------------------------------------- the command line


def test_comparison_as_a_command(
    write_trace: WriteTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(write_trace, RANKS)
    files = [str(folder / f"rank{i}.json") for i in range(2)]
    assert cli.main(["diff", *files, "--tracelens-csv", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tables into" in shown.err
    head = (tmp_path / "out" / "kernel_summary.csv").read_text().splitlines()[0]
    assert "rank0::Kernel duration (µs)_sum" in head
    assert cli.main(["diff", files[0], files[0], "--tracelens-csv", str(tmp_path / "same")]) == 0
    head = (tmp_path / "same" / "gpu_timeline.csv").read_text().splitlines()[0]
    assert "baseline::time ms" in head
    kernels = (tmp_path / "same" / "diff_stats.csv").read_text().splitlines()
    assert kernels[0].startswith("name,cpu_op_name,cpu_op_uid,source,Input Dims")
    assert len(kernels) == 1  # no operator launched any of these
    assert cli.main(["diff", str(folder), files[0], "--tracelens-csv", str(tmp_path / "no")]) == 2
    assert "name one rank of A and one of B" in capsys.readouterr().err


def test_recompute_as_an_option(
    write_trace: WriteTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(folder_of(write_trace, RANKS) / "rank0.json")
    assert cli.main(["report", path, "--html", str(tmp_path / "a.html"), "--detect-recompute"]) == 2
    assert "--detect-recompute goes with" in capsys.readouterr().err
    words = ["report", path, "--tracelens-csv", str(tmp_path / "out"), "--detect-recompute"]
    assert cli.main(words) == 0
