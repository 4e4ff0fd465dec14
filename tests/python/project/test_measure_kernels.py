"""The script that times kernels on a GPU machine, run on the CPU with tiny sizes."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "device" / "measure_kernels.py"

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow  # measures kernels for seconds
@needs_torch
def test_every_part_writes_its_rows(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--rows", "6", "--minutes", "2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["device"] == "cpu" and machine["notes"] == []
    for part in ("gemm", "elementwise", "rows", "copies", "embedding_bag", "softmax"):
        found = rows(tmp_path / f"{part}.csv")
        assert len(found) == machine["rows"][part] == 6
        assert all(float(row["ns"]) > 0 and int(row["repeats"]) > 0 for row in found)
    for row in rows(tmp_path / "embedding_bag.csv"):
        shares = [float(share) for share in row["histogram"].split()]
        assert len(shares) == 17 and sum(shares) == pytest.approx(1, abs=1e-4)
    profiled = rows(tmp_path / "profiler.csv")
    assert all(float(row["profiled_ns"]) > 0 for row in profiled)


@pytest.mark.slow  # measures kernels for seconds
@needs_torch
def test_the_same_seed_draws_the_same_work(tmp_path: Path) -> None:
    shapes = []
    for name in ("a", "b"):
        out = tmp_path / name
        run("--device", "cpu", "--rows", "4", "--only", "gemm", "--seed", "7", "--out", str(out))
        shapes.append(
            [[row[k] for k in ("dtype", "m", "n", "k")] for row in rows(out / "gemm.csv")]
        )
    assert shapes[0] == shapes[1] and len(shapes[0]) == 4


@needs_torch
def test_time_ends_a_part(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--minutes", "0", "--out", str(tmp_path))
    assert done.returncode == 0
    assert set(json.loads((tmp_path / "machine.json").read_text())["rows"].values()) == {0}


@needs_torch
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = run("--device", "cuda", "--out", str(tmp_path))
    assert done.returncode == 2 and "no GPU" in done.stderr and "Traceback" not in done.stderr
