"""The two complete public sets of ranks, and one with a late rank: our tables against plain Python.

What is expected is worked out here from the JSON with nothing of ours: the n-th NCCL kernel of each
rank belongs together (counted by hand: 8 of DLRM, 5 all-to-alls and 3 all-reduces; 19 of the
tensor-parallel llama; 12 of 13 of TorchRec, whose rank 2 began to record after the first), wait is
latest start minus own start, transfer what is left of the duration. TraceLens calls the
shortest duration over the ranks the latency of a collective, which is our transfer on the rank that
came last.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap

DLRM = [f"param/dlrm_8ranks/rank{r}.json" for r in range(8)]
LLAMA = [f"tokenomics/llama_tp2_rank{r}.json" for r in range(2)]
TORCHREC = [f"torchrec_4ranks_late_rank/rank{r}.json.gz" for r in range(4)]


@pytest.mark.parametrize("names", [DLRM, LLAMA, TORCHREC], ids=["dlrm", "llama", "torchrec"])
def test_merged_ranks_are_the_ranks(corpus: Path, tmp_path: Path, names: list[str]) -> None:
    trace, _ = load(corpus, names)
    trace.merge(tmp_path / "merged.json.gz")
    again = ttap.load(tmp_path / "merged.json.gz")
    assert [part.rank for part in again.ranks] == [part.rank for part in trace.ranks]
    by_type = [{f.type: f.cost_ns for f in t.diagnose().findings} for t in (trace, again)]
    assert by_type[0] == by_type[1]
    rows, expected = again.ranks_table().records(), trace.ranks_table().records()
    for row in expected:  # on the common clock nothing is left to move
        row.update({"offset_ns": 0, "offset_applied": False} if row["offset_applied"] else {})
    assert rows == expected
    for before, after in zip(trace.ranks, again.ranks, strict=True):
        assert len(after.tree.linked_gpu_rows) == len(before.tree.linked_gpu_rows)
        assert int(after.table.complete.sum()) == int(before.table.complete.sum())


def nccl_kernels(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(text)["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    return sorted(kernels, key=lambda e: e["ts"])


def load(corpus: Path, names: list[str]) -> tuple[ttap.Trace, list[list[dict[str, Any]]]]:
    paths = [corpus / name for name in names]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        pytest.skip(f"not in this corpus: {', '.join(missing)}")
    return ttap.load(paths), [nccl_kernels(path) for path in paths]


def ns(us: float) -> int:
    return round(us * 1000)


def test_dlrm_waits_and_transfers(corpus: Path) -> None:
    trace, kernels = load(corpus, DLRM)
    rows = trace.collectives().records()
    assert [row["kind"] for row in rows] == ["all_to_all"] * 4 + ["all_reduce"] + [
        "all_to_all",
        "all_reduce",
        "all_reduce",
    ]
    for n, row in enumerate(rows):
        parts = [of_rank[n] for of_rank in kernels]
        latest = max(part["ts"] for part in parts)
        waits = [ns(min(latest - part["ts"], part["dur"])) for part in parts]
        assert row["wait_ns"] == waits
        assert row["duration_ns"] == [ns(part["dur"]) for part in parts]
        assert row["transfer_ns"] == np.median(
            [ns(part["dur"]) - wait for part, wait in zip(parts, waits, strict=True)]
        )
        assert row["ranks"] == list(range(8))
        assert row["end_skew_ns"] <= 7_000  # ends of one collective agree to 7 us
        assert row["latest_rank"] == max(range(8), key=lambda r: parts[r]["ts"])
    # From the annotations' shapes: 394241, 112 and 226960 floats.
    assert [row["bytes"] for row in rows if row["kind"] == "all_reduce"] == [
        1_576_964,
        448,
        907_840,
    ]
    assert {row["node_span"] for row in rows} == {"intra"}


def test_dlrm_is_waiting_for_the_most_part(corpus: Path) -> None:
    trace, kernels = load(corpus, DLRM)
    total = wait = 0
    for parts in zip(*kernels, strict=True):
        latest = max(part["ts"] for part in parts)
        total += sum(part["dur"] for part in parts)
        wait += sum(min(latest - part["ts"], part["dur"]) for part in parts)
    share = trace.collectives().facts["wait_share"]
    assert share == pytest.approx(wait / total)
    assert 0.96 < share < 0.97
    assert not any(row["applied"] for row in trace.ranks_table(by="clock").records())


def test_llama_has_two_clocks(corpus: Path) -> None:
    trace, kernels = load(corpus, LLAMA)
    clock = trace.ranks_table(by="clock").records()[1]
    apart = [
        (b["ts"] + b["dur"]) - (a["ts"] + a["dur"]) for a, b in zip(*kernels, strict=True)
    ]  # by hand: 207, 193, 336, ... us
    assert len(apart) == 19
    assert clock["applied"]
    assert abs(clock["offset_ns"] / 1000 - np.median(apart)) < 15
    assert clock["residual_ns"] == pytest.approx(
        1000 * np.median(np.abs(np.array(apart) - clock["offset_ns"] / 1000)), abs=1000
    )
    rows = trace.collectives().records()
    assert [row["kind"] for row in rows] == ["reduce_scatter", "all_gather"] * 9 + ["all_gather"]
    offset = clock["offset_ns"] / 1000
    for row, a, b in zip(rows, *kernels, strict=True):
        latest = max(a["ts"], b["ts"] - offset)
        waits = [latest - a["ts"], latest - b["ts"] + offset]
        assert row["wait_ns"] == pytest.approx([1000 * wait for wait in waits], abs=1001)
        assert row["group"] == "0"
        assert row["group_size"] == 2


def test_torchrec_waits_for_rank_2(corpus: Path) -> None:
    trace, kernels = load(corpus, TORCHREC)
    assert [len(of_rank) for of_rank in kernels] == [13, 13, 12, 13]
    table = trace.collectives()
    rows = table.records()
    assert len(rows) == 13
    assert rows[0]["ranks"] == [0, 1, 3]
    assert rows[0]["reason"] == "rank 2: not recording yet"
    last = []
    for n, row in enumerate(rows[1:], start=1):
        parts = [of_rank[n - 1 if r == 2 else n] for r, of_rank in enumerate(kernels)]
        latest = max(part["ts"] for part in parts)
        assert row["wait_ns"] == [ns(min(latest - part["ts"], part["dur"])) for part in parts]
        last.append(max(range(4), key=lambda r: parts[r]["ts"]))
    assert last.count(2) == 9
    ranks = {row["rank"]: row for row in trace.ranks_table().records()}
    assert ranks[2]["times_last"] == 9
    assert ranks[2]["verdict"] == "straggler"
    assert ranks[2]["cause"] == "host"
    assert {ranks[r]["verdict"] for r in (0, 1, 3)} == {"on time"}


def test_torchrec_is_diagnosed_as_waiting_for_a_late_rank(corpus: Path) -> None:
    trace, _ = load(corpus, TORCHREC)
    diagnosis = trace.diagnose()
    assert diagnosis.findings[0].type == "straggler"
    assert diagnosis.findings[0].ranks == (0, 1, 3)
    assert "rank 2" in diagnosis.findings[0].why
    assert diagnosis.verdicts["nccl_blocks_main_stream"] == "present"
    blocked = diagnosis.finding("nccl_blocks_main_stream")
    assert blocked is not None
    assert blocked.unclaimed_cost_ns < 0.05 * blocked.cost_ns


def test_ranks_sampled_from_a_large_job_match_by_their_ends(corpus: Path) -> None:
    """Ten kernels picked from each of two ranks of 128: five pairs end within 0.4 ms."""
    names = [f"hta/sampled_rank_{r}_of_128.json.gz" for r in (0, 1)]
    trace, kernels = load(corpus, names)
    ends = [[k["ts"] + k["dur"] for k in of_rank] for of_rank in kernels]
    pairs = sum(1 for a in ends[0] for b in ends[1] if abs(a - b) < 1000)
    assert pairs == 5
    table = trace.collectives()
    both = [row for row in table.records() if len(row["ranks"]) == 2]
    assert len(both) == 5
    assert all(row["end_skew_ns"] < 1_000_000 for row in both)
    assert any("2 of 128 ranks are here" in note for note in table.notes)
