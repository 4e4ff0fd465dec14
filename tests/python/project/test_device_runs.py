"""Every stage of benchmarks/device/all.sh in small sizes on the CPU, and the reader of results."""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the stages run models")
pytest.importorskip("pyarrow", reason="a data set is written")

from torchtraceap.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[3]
DEVICE = ROOT / "benchmarks/device"
STAGES = {
    "kernels_parity", "emulated", "nccl_two_ranks", "scoring", "predictions", "runs", "pairs",
    "kernel_times", "products", "training",
}  # fmt: skip
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a tiny run leaves: the work folder, the folder that comes back, and the state."""
    folder = tmp_path_factory.mktemp("device")
    done = started(folder, "--work", str(folder / "work"))
    state = json.loads((folder / "out/state.json").read_text("utf-8"))
    yield {"folder": folder, "work": folder / "work", "state": state, "said": done.stdout}


def started(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # There is no pack, and what a checkout has in build/device stays as it is.
    environment = {
        **os.environ, "TINY": "1", "DEVICE": "cpu", "PYTHON": sys.executable,
        "OUT": str(folder / "out"), "PACK": str(folder / "pack"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [str(DEVICE / "all.sh"), *options],
        capture_output=True, text=True, check=False, timeout=1500, env=environment,
    )  # fmt: skip


def found(run: dict[str, Any], stage: str) -> Any:
    assert run["state"]["stages"][stage]["status"] == "complete", run["state"]["stages"][stage]
    document = json.loads((run["work"] / stage / "result.json").read_text("utf-8"))
    assert document["tiny"] is True and document["device"] == "cpu"
    return document["found"]


@pytest.mark.slow
def test_the_machine_is_described_first(run: dict[str, Any]) -> None:
    machine = run["state"]["machine"]
    assert machine["cores"] >= 1 and machine["libraries"]["torch"]
    assert json.loads(run["said"][: run["said"].index("\n}\n") + 2]) == machine
    assert set(run["state"]["stages"]) == STAGES


@pytest.mark.slow
def test_without_the_built_program_parity_says_what_is_missing(run: dict[str, Any]) -> None:
    stage = run["state"]["stages"]["kernels_parity"]
    assert stage["exit_code"] == 2 and "all.sh pack" in stage["end_of_log"][-1]


@pytest.mark.slow
def test_emulated_collectives_and_two_ranks(run: dict[str, Any]) -> None:
    checks = found(run, "emulated")["checks"]
    assert len(checks) == 4 and all(each["right"] for each in checks.values())
    assert checks["form all_reduce_after_backward"]["collectives_bad"] == 1
    ranks = json.loads((run["work"] / "nccl_two_ranks/result.json").read_text("utf-8"))
    assert ranks["works"] is True


@pytest.mark.slow
def test_both_networks_score_alike(run: dict[str, Any]) -> None:
    try:
        importlib.import_module("torchtraceap._model")
    except MissingDependencyError as error:
        pytest.skip(str(error))
    rows = {row["way"]: row for row in found(run, "scoring")["rows"]}
    assert set(rows) == {"pytorch", "cpu"}
    assert rows["cpu"]["largest_difference"] < 1e-3
    assert all(row["traces_per_s"] > 0 for row in rows.values())


@pytest.mark.slow
def test_steps_are_measured_as_predictions_need_them(run: dict[str, Any]) -> None:
    rows = found(run, "predictions")["rows"]
    assert [(row["model"], row["precision"]) for row in rows] == [
        ("dlrm", "fp32"),
        ("dlrm", "bf16"),
    ]
    for row in rows:
        assert min(row["fenced_step_ns"], row["free_step_ns"], row["profiled_step_ns"]) > 0
        assert (run["work"] / "predictions" / row["trace"]).is_file()


@pytest.mark.slow
def test_runs_are_recorded_and_judged(run: dict[str, Any]) -> None:
    kept = found(run, "runs")
    wins = {win["win"]: win for win in kept["wins"]}
    assert wins["host_work"]["bad"]["broken"]["launches_per_step"] > 100
    assert all(win["good"]["passed"] and win["clock_step_ns"]["bad"] > 0 for win in wins.values())
    assert kept["served"]["graph"] is False and kept["served"]["decode_step_ns"] > 0
    (model,) = kept["models"]
    with gzip.open(run["work"] / "runs" / model["trace"], "rt", encoding="utf-8") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"## forward ##", "## backward ##", "## optimizer ##"} <= names


@pytest.mark.slow
def test_pairs_have_labels(run: dict[str, Any]) -> None:
    kept = found(run, "pairs")
    assert kept["pairs"] == 3 and kept["to_do"] == 0 and kept["left_out_pairs"] == 0
    labels = (run["work"] / "pairs/traces/labels.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["split"] for line in labels} == {"cpu"} and len(labels) == 6


@pytest.mark.slow
def test_every_part_of_the_kernels_has_a_row(run: dict[str, Any]) -> None:
    machine = json.loads((run["work"] / "kernel_times/machine.json").read_text("utf-8"))
    counts = machine["rows"]
    assert counts.pop("contention") == 0  # two streams need a GPU
    assert len(counts) == 11 and all(count > 0 for count in counts.values())


@pytest.mark.slow
def test_parts_of_the_product_are_timed(run: dict[str, Any]) -> None:
    kept = found(run, "products")
    assert kept["contracts"]["one_item_a_step"]["syncs_per_step"] == ["failed", 1]
    assert kept["replays"]["rows"][0]["time_ns"] > 0
    assert set(kept["watching"]["times"]) == {"plain", "watched"}
    assert kept["fences"][0]["step_ns"]["median"] > 0


@pytest.mark.slow
def test_the_network_of_the_paper_trains(run: dict[str, Any]) -> None:
    figures = json.loads((run["work"] / "training/figures.json").read_text("utf-8"))
    assert set(figures["runs"]) == {"paper, seed 0"}
    assert 0 <= figures["runs"]["paper, seed 0"]["pooled"] <= 1


@pytest.mark.slow
def test_what_comes_back_fits_and_the_next_call_goes_on(run: dict[str, Any]) -> None:
    out = sorted(path.name for path in (run["folder"] / "out").iterdir())
    assert out[-1] == "state.json" and 2 <= len(out) <= 8
    assert all(path.stat().st_size <= 16 << 20 for path in (run["folder"] / "out").iterdir())
    again = started(run["folder"], "--work", str(run["work"]))
    # Parity had nothing to try: it alone is tried again.
    lines = [line for line in again.stdout.splitlines() if line.startswith("==>")]
    assert len(lines) == 1 and "kernels_parity" in lines[0]


# ------------------------------------------------------------------------- the reader


def read(back: Path, folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(DEVICE / "read.py"), str(back), "--docs", str(folder / "docs"),
         "--traces", str(folder / "traces"), "--dataset", str(folder / "dataset"),
         "--rows", str(folder / "rows"), *options],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next((folder / "docs").glob("*.md")).read_text("utf-8")


@pytest.mark.slow
def test_a_run_becomes_a_page_traces_and_a_data_set(run: dict[str, Any], tmp_path: Path) -> None:
    page = read(run["work"], tmp_path)
    assert "no figure counts" in page and "| form tiny_buckets | yes | 3, 3 |" in page
    assert "2 benign" in page or "accepted" in page
    index = json.loads((tmp_path / "traces/index.json").read_text("utf-8"))
    sizes = [(tmp_path / "traces" / name).stat().st_size for name in index["traces"]]
    assert "served_decode.json.gz" in index["traces"] and sum(sizes) <= 2_000_000
    from torchtraceap.datasets import DataSet

    assert {label["split"] for label in DataSet(tmp_path / "dataset").labels()} == {"cpu"}


def made_back(folder: Path) -> Path:
    """A folder as an H100 would leave it, with kernel times and one measured model."""
    folder.mkdir()
    state = {
        "device": "cuda", "tiny": False, "commit": "0" * 40,
        "machine": {"gpu": f"{H100}, 580.1, 81559 MiB", "python": "3.12.3", "cores": 16,
                    "libraries": {"torch": "2.11.0"}},
        "stages": {"predictions": {"status": "complete", "seconds": 1.0}},
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state), "utf-8")
    rows = {
        "gemm": {"dtype": "bf16", "batch": 1, "m": 4096, "n": 4096, "k": 4096, "ns": 200e3},
        "tiny_products": {"dtype": "fp32", "batch": 4096, "m": 16, "n": 16, "k": 16, "ns": 2e4},
        "precisions": {"dtype": "fp8", "m": 4096, "n": 4096, "k": 4096, "ns": 120e3},
        "rows": {"op": "layer_norm", "dtype": "fp32", "rows": 8192, "columns": 1024, "ns": 3e4},
        "softmax": {"op": "softmax_backward", "dtype": "bf16", "rows": 64, "columns": 65536,
                    "ns": 2e4},
        "elementwise": {"op": "add", "dtype": "fp32", "elements": 1 << 26, "ns": 3e5},
        "copies": {"direction": "HtoD", "pinned": 1, "bytes": 1 << 26, "ns": 1.3e6},
        "embedding_bag": {"rows": 1000000, "columns": 128, "batch": 4096, "lookups": 20,
                          "backward": 1, "ns": 6e4},
        "backward": {"op": "max_pool_backward", "dtype": "fp32", "batch": 32, "channels": 64,
                     "side": 56, "ns": 4e4},
        "convolutions": {"dtype": "tf32", "batch": 32, "inputs": 3, "outputs": 64, "kernel": 7,
                         "stride": 2, "side": 224, "pass": "forward", "ns": 3e5},
    }  # fmt: skip
    (folder / "kernel_times").mkdir()
    for part, row in rows.items():
        with (folder / f"kernel_times/{part}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerow(row)
    predicted = json.loads((DEVICE / "predicted.json").read_text("utf-8"))
    row = next(each for each in predicted["rows"] if each["model"] == "dlrm")
    first, second = row["ops"][:2]
    measured = {
        "model": "dlrm", "precision": "fp32", "profiled_step_ns": 2 * row["step_ns"],
        "fenced_step_ns": row["step_ns"], "free_step_ns": row["step_ns"],
        "gpu_busy_ns": row["gpu_busy_ns"], "peak_bytes": row["peak_bytes"],
        "ops": [{"name": first["name"], "gpu_ns": 3 * first["high_ns"]},
                {"name": second["name"], "gpu_ns": second["gpu_ns"]}],
    }  # fmt: skip
    (folder / "predictions").mkdir()
    document = {"found": {"rows": [measured]}, "left_out": ["gpt fp32: OutOfMemoryError: no room"]}
    (folder / "predictions/result.json").write_text(json.dumps(document), "utf-8")
    return folder


def test_measured_steps_are_compared_with_what_was_predicted(tmp_path: Path) -> None:
    page = read(made_back(tmp_path / "back"), tmp_path)
    assert "step: median error 50.0%, 1 of 1 inside" in page
    assert "GPU busy: median error 0.0%" in page and "peak memory: median error 0.0%" in page
    line = next(line for line in page.splitlines() if line.startswith("| dlrm | fp32"))
    assert float(line.split("|")[-2]) < 0.5  # the longest operator took three times its most
    assert "- predictions: gpt fp32: OutOfMemoryError: no room" in page


def test_every_part_of_the_kernel_times_is_asked_of_a_model(tmp_path: Path) -> None:
    page = read(made_back(tmp_path / "back"), tmp_path)
    section = page[page.index("## Duration models") :]
    lines = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:11]
    assert len(lines) == 10
    for cells in lines:
        assert cells[4].strip() == "1" and float(cells[5]) > 0, cells
    (path,) = (tmp_path / "rows/gemm_aiconfigurator").iterdir()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        (product,) = csv.DictReader(file)
    assert product["device"] == H100 and float(product["latency"]) == 0.2


def test_recordings_of_a_training_split_are_refused(tmp_path: Path) -> None:
    back = made_back(tmp_path / "back")
    (back / "pairs/traces").mkdir(parents=True)
    label = json.dumps({"id": "000000", "split": "train"})
    (back / "pairs/traces/labels.jsonl").write_text(label + "\n", "utf-8")
    with pytest.raises(AssertionError, match="recordings are for tests"):
        read(back, tmp_path)


def test_predictions_were_made_for_every_model_type_and_device() -> None:
    predicted = json.loads((DEVICE / "predicted.json").read_text("utf-8"))
    rows = predicted["rows"]
    assert len({(r["model"], r["precision"], r["device"]) for r in rows}) == len(rows) == 40
    assert len(predicted["commit"]) == 40 and predicted["torchtraceap"]
    for row in rows:
        assert 0 < row["low_ns"] < row["step_ns"] < row["high_ns"] and row["peak_bytes"] > 0
        assert all(op["low_ns"] <= op["gpu_ns"] <= op["high_ns"] for op in row["ops"])


def test_what_does_not_fit_is_left_behind_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = load_driver()
    monkeypatch.setattr(driver, "PIECE_BYTES", 30_000)
    monkeypatch.setattr(driver, "MOST_PIECES", 2)
    options = driver.Options("cpu", True, tmp_path / "work", tmp_path / "out")
    (options.work / "scoring").mkdir(parents=True)
    (options.work / "runs").mkdir()
    (options.work / "scoring/result.json").write_bytes(b"a" * 1000)
    (options.work / "runs/large.json.gz").write_bytes(os.urandom(50_000))
    state: dict[str, Any] = {"stages": {}}
    driver.pack(options, state)
    assert state["left_behind"] == ["runs/large.json.gz (50000 bytes)"]
    assert (options.out / "results.tar.0").stat().st_size <= 30_000


def test_keep_unpacks_and_leaves_small_files_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = load_driver()
    monkeypatch.setattr(driver, "BUILD", tmp_path / "build")
    monkeypatch.setattr(driver, "PACK", tmp_path / "build/pack")
    (tmp_path / "build").mkdir()
    options = driver.Options("cpu", True, tmp_path / "work", tmp_path / "out")
    (options.work / "pairs/traces/.pairs").mkdir(parents=True)
    (options.work / "pairs/traces/.pairs/0.json").write_text("{}", "utf-8")
    (options.work / "pairs/traces/0.json.gz").write_bytes(b"0" * 100)
    state = {"stages": {"pairs": {"status": "unfinished"}}, "device": "cpu", "tiny": True}
    (options.work / "state.json").write_text(json.dumps(state), "utf-8")
    driver.pack(options, state)
    assert driver.keep(options.out) == 0
    assert (tmp_path / "build/back/pairs/traces/0.json.gz").is_file()
    shutil.rmtree(options.work)
    driver._take_over(driver.Options("cuda", False, options.work, options.out))
    assert not (options.work / "state.json").exists()  # a trial on a CPU answers nothing
    driver._take_over(options)
    assert (options.work / "pairs/traces/.pairs/0.json").is_file()
    assert not (options.work / "pairs/traces/0.json.gz").exists()


def load_driver() -> Any:
    spec = importlib.util.spec_from_file_location("device_all", DEVICE / "all.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_never_ran_goes_first_and_training_last() -> None:
    driver = load_driver()
    before = {"kernels_parity": {"exit_code": 3}, "products": {"status": "no time was left"}}
    names = [entry.name for entry in driver._in_order(before)]
    assert names[0] == "emulated" and names[-2:] == ["kernels_parity", "training"]


def test_a_stage_that_hangs_is_stopped_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = load_driver()
    hangs = (
        "import subprocess as s; p = s.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    )
    monkeypatch.setattr(driver, "command", lambda *_: [sys.executable, "-c", hangs])
    options = driver.Options("cpu", True, tmp_path, tmp_path / "out")
    told = driver._run_stage(driver.STAGES[0], 2.0, options)
    assert told["status"] == "stopped at its limit" and told["seconds"] < 20
    child = int((tmp_path / "kernels_parity/log.txt").read_text("utf-8").split()[0])
    with pytest.raises(ProcessLookupError):
        for _ in range(50):
            os.kill(child, 0)
            time.sleep(0.1)
