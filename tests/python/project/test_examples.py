"""The traces that examples/make_ranks.py makes are what it says they are."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap

SCRIPT = Path(__file__).resolve().parents[3] / "examples/make_ranks.py"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> ttap.Trace:
    folder = tmp_path_factory.mktemp("ranks")
    runpy.run_path(str(SCRIPT))["write_ranks"](folder)
    return ttap.load(folder)


def test_the_files_are_whole(trace: ttap.Trace) -> None:
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2, 3]
    assert trace.diagnostics == ()
    summary = trace.summary()
    assert summary.events.gpu_orphan == 0
    assert [len(rank.tree.steps) for rank in trace.ranks] == [6] * 4


def test_rank_2_comes_last_in_every_all_reduce(trace: ttap.Trace) -> None:
    ranks = trace.ranks_table()
    assert ranks["times_last"].tolist() == [0, 0, 24, 0]
    assert ranks["wait_ns"][2] == 0
    assert ranks["verdict"].tolist() == ["on time", "on time", "straggler", "on time"]
    assert ranks["cause"].tolist() == [None, None, "input", None]


def test_the_first_all_reduce_of_a_step_waits_for_the_batch(trace: ttap.Trace) -> None:
    collectives = trace.collectives()
    assert collectives.num_rows == 24
    assert collectives["sequence"].tolist() == list(range(1, 25))
    first = collectives["longest_wait_ns"][::4]
    assert np.all(np.abs(first - 9_000_000) < 300_000)  # kernels vary by 1 %
    assert np.all(np.abs(collectives["transfer_ns"] - 2_097_152) < 10)
    assert np.allclose(collectives["bus_bandwidth_gb_per_s"], 24, rtol=1e-4)
    assert set(collectives["node_span"]) == {"inter"}


def test_the_second_host_is_2_5_ms_ahead(trace: ttap.Trace) -> None:
    offsets = trace.ranks_table(by="clock")["offset_ns"]
    assert np.abs(offsets - np.array([0, 0, 2_500_000, 2_500_000])).max() < 1000


def test_only_the_late_rank_waits_for_data(trace: ttap.Trace) -> None:
    waits = [trace.idle(rank=rank).totals_ns["data_loading"] for rank in range(4)]
    assert waits[2] > 40_000_000
    assert max(waits[0], waits[1], waits[3]) < 5_000_000


def test_the_script_needs_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT)]
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert "usage" in bad.stderr
    good = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True)
    assert len(good.stdout.splitlines()) == len(list(tmp_path.iterdir())) == 4
