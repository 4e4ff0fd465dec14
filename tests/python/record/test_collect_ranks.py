"""Recordings of several ranks: one folder for each run, all files diagnosed together by rank 0."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples

from torchtraceap.errors import OptionError
from torchtraceap.record import RecordingWarning, on_trace_ready, profile, ranks
from torchtraceap.record.notices import analyse
from torchtraceap.record.ranks import Run, run_of


def run(size: int, *, name: str = "r", began: float = 0.0) -> Run:
    return Run(name, 0, size, began)


def written(folder: Path, name: str, text: str = "{}") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


# ------------------------------------------------------------------------------- made files


def test_rank_0_finds_the_files_of_the_others_by_rank(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    mine = written(folder, "a_rank0.json.gz")
    others = [written(folder, f"host{n}_rank{n}.json.gz") for n in (10, 2, 1)]
    written(folder, "a_rank12.json.gz")
    written(folder, "notes.txt")
    found = run(3).others_of(mine, 5)
    assert found == [others[2], others[1]]
    assert run(1).others_of(mine, 5) == []


def test_a_file_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    mine = written(folder, "trace_rank0.json")
    written(folder, "trace_rank1.json", "")  # the name is taken, the file not there yet
    threading.Timer(0.4, written, (folder, "trace_rank1.json")).start()
    assert run(2).others_of(mine, 30) == [folder / "trace_rank1.json"]


def test_a_rank_that_died_is_named_and_not_waited_for_longer(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    mine, two = (written(folder, f"trace_rank{rank}.json.gz") for rank in (0, 2))
    with pytest.warns(RecordingWarning) as caught:
        assert run(4).others_of(mine, 0.2) == [two]
    said = str(caught[0].message)
    assert "no file of rank 1, 3 of 4" in said
    assert str(folder) in said and "_rank1.json.gz" in said


def test_no_time_to_wait_means_no_other_rank(tmp_path: Path) -> None:
    mine = written(tmp_path / "r", "trace_rank0.json.gz")
    written(tmp_path / "r", "trace_rank1.json.gz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(2).others_of(mine, 0) == []


def test_beside_a_named_file_older_ones_and_other_names_are_left_alone(tmp_path: Path) -> None:
    now = time.time()
    old = written(tmp_path, "x_rank1.json.gz")
    os.utime(old, (now - 600, now - 600))
    written(tmp_path, "y_rank1.json.gz")
    fresh = written(tmp_path, "x_rank1_2.json.gz")
    for name in ("x.json.gz", "x_2.json.gz"):
        assert run(2, began=now).others_of(written(tmp_path, name), 5) == [fresh]
    own = written(tmp_path, "run_5.json.gz")
    theirs = written(tmp_path, "run_5_rank1.json.gz")
    assert run(2, began=now).others_of(own, 5) == [theirs]


def test_ranks_that_cannot_be_read_leave_rank_0_alone(tmp_path: Path) -> None:
    mine = samples.slow_loader(rank=0, world_size=2).write(tmp_path / "trace_rank0.json")
    broken = written(tmp_path, "trace_rank1.json", "no trace at all")
    with pytest.warns(RecordingWarning, match="this is rank 0 alone"):
        trace, diagnosis = analyse(mine, [broken])
    assert len(trace.ranks) == 1 and diagnosis.findings
    second = samples.slow_loader(rank=1, world_size=2).write(tmp_path / "trace_rank1.json")
    assert len(analyse(mine, [second])[0].ranks) == 2


@pytest.mark.parametrize("seconds", [-1, float("nan"), 1e9])
def test_a_time_to_wait_is_a_number_of_seconds(tmp_path: Path, seconds: float) -> None:
    for make in (profile, on_trace_ready):
        with pytest.raises(OptionError, match="between 0 and 86400"):
            make(tmp_path, ranks_timeout=seconds)


# ------------------------------------------------------------------------------- agreement


class Store:
    """As torch's stores: the first value stays."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        assert expected == ""
        return self.values.setdefault(key, desired).encode()


class FakeTorch:
    """A process of a job whose launcher keeps a store."""

    def __init__(self, store: Any) -> None:
        self.distributed = self
        self._store = store

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return False

    def TCPStore(  # noqa: N802 - the name of torch
        self, *_: object, **__: object
    ) -> Any:
        if isinstance(self._store, Exception):
            raise self._store
        return self._store


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in (*ranks.JOB_VARIABLES, ranks.RESTARTS):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    yield monkeypatch


def runs(launched: pytest.MonkeyPatch, store: Any, what: str = "profile1") -> list[Run]:
    found = []
    for rank in ("1", "0"):
        launched.setenv("RANK", rank)
        found.append(run_of(FakeTorch(store), what, 0.0))
    return found


def test_ranks_agree_on_a_folder_and_runs_on_different_ones(
    launched: pytest.MonkeyPatch,
) -> None:
    store = Store()
    one, other = runs(launched, store)
    assert one.name == other.name and (one.rank, other.rank, one.size) == (1, 0, 2)
    second = runs(launched, store, "profile2")
    launched.setenv(ranks.RESTARTS, "1")
    restarted = runs(launched, store)
    rerun = runs(launched, Store())
    names = [found[0].name for found in ([one], second, restarted, rerun)]
    assert len(set(names)) == 4
    for pair in (second, restarted, rerun):
        assert pair[0].name == pair[1].name


def test_without_a_store_the_number_of_the_job_stands_for_it(
    launched: pytest.MonkeyPatch,
) -> None:
    launched.setenv("SLURM_JOB_ID", "../77")
    one, other = runs(launched, RuntimeError("nobody answers"))
    assert one.name == other.name == "job-.._77-0-profile1"
    assert one.size == 2


def test_without_both_each_rank_stands_alone(launched: pytest.MonkeyPatch) -> None:
    launched.setenv("TORCHELASTIC_RUN_ID", "none")
    one, other = runs(launched, RuntimeError("nobody answers"))
    assert one.name != other.name
    assert (one.size, other.size) == (1, 1)


def test_a_hostile_store_names_no_other_folder(launched: pytest.MonkeyPatch) -> None:
    store = Store()
    store.values["torchtraceap/0/profile1"] = "../../etc"
    assert all("/" not in found.name for found in runs(launched, store))


# ------------------------------------------------------------------------------- with torchrun

PROGRAM = """
import os
import sys
import torch
import torch.distributed as dist
import torchtraceap as ttap

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
elsewhere = len(sys.argv) > 3 and dist.get_rank() == 1  # a disk of its own
with ttap.profile(sys.argv[1 + 2 * elsewhere], active=2, ranks_timeout=float(sys.argv[2])) as p:
    for _ in range(5):
        model(torch.randn(8, 64)).sum().backward()
        p.step()
if dist.get_rank() == 0:
    print("RANKS", [rank.rank for rank in p.trace.ranks], flush=True)
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts now and then
"""


def torchrun(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--nproc-per-node=2", str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    return written(tmp_path, "train.py", PROGRAM)


@pytest.mark.slow  # starts processes that import torch
def test_torchrun_gives_one_diagnosis_of_both_ranks(program: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = torchrun(program, str(tmp_path / "runs"), "60")
        assert done.returncode == 0, done.stderr
        assert "RANKS [0, 1]" in done.stdout
        assert done.stdout.count("trace     ") == 1
        assert "RecordingWarning" not in done.stderr
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["trace_rank0.json.gz", "trace_rank1.json.gz"]
    assert sum(str(folder) in done.stdout for folder in folders) == 1


@pytest.mark.slow  # starts processes that import torch
def test_a_rank_without_a_file_is_named_under_torchrun(program: Path, tmp_path: Path) -> None:
    done = torchrun(program, str(tmp_path / "runs"), "3", str(tmp_path / "other"))
    assert done.returncode == 0, done.stderr
    assert "no file of rank 1 of 2" in done.stderr
    assert "RANKS [0]" in done.stdout
