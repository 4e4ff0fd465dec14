"""Workloads measured on a CPU and kept; what is read from runs; the size of a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_samples import MIB, made_process, made_run
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import MissingFileError, OptionError
from torchtraceap.lab.bench.processes.programs import ProgramResult, run_program
from torchtraceap.lab.bench.runs import batch_size
from torchtraceap.lab.bench.runs import run as running
from torchtraceap.lab.bench.runs.batch_size import Point, robust_line, search_batch
from torchtraceap.lab.bench.runs.breakdown import (
    break_down,
    break_down_runs,
    breakdown_page,
    mean_interval,
    task_table,
)
from torchtraceap.lab.bench.runs.child import MISSING, UNFIT, Spec
from torchtraceap.lab.bench.runs.child import main as run_child
from torchtraceap.lab.bench.runs.config import Protocol, WorkloadConfig, read_plan, select_names
from torchtraceap.lab.bench.runs.run import WorkloadError, metrics_of
from torchtraceap.lab.bench.runs.run_store import Store
from torchtraceap.lab.bench.runs.tables import (
    device_of,
    devices_table,
    eager_compiled_table,
    ratio_interval,
)

pytest.importorskip("pyarrow")

OWN = """
import torch

def linear(batch=4):
    return {"model": torch.nn.Linear(32, 8), "inputs": (torch.ones(batch, 32),),
            "loss": lambda y: y.sum(), "optimizer": lambda p: torch.optim.SGD(p, 0.1)}

def forward_only():
    return {"model": torch.nn.Linear(8, 8), "inputs": (torch.ones(2, 8),)}

def crash():
    raise ValueError("cracks")

def hang():
    import time; time.sleep(60)

def huge():
    return {"model": torch.nn.Linear(8, 8), "inputs": (torch.empty(10**14),)}

def needs():
    import not_to_be_found
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    pytest.importorskip("torch")
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(store: Store, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Calls the command line with the store of the test."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["bench", *words, "--store", str(store.folder)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


FEW = ("--threads", "1", "--processes", "2", "--steps", "3", "--warmup", "2")


# ------------------------------------------------------------------------- run


@pytest.mark.slow
def test_a_workload_is_measured_and_kept(own: str, bench: Bench, store: Store) -> None:
    code, out, err = bench("run", f"{own}:linear", *FEW, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["schema"] == "torchtraceap.bench/1"
    assert [each["status"] for each in document["outcomes"]] == ["measured"]
    run = store.load(document["runs"][0]["id"])
    assert run.name == "own.py:linear"  # its folders are nobody's business
    assert str(store.folder.parent) not in json.dumps(run.to_dict())
    figures = run.metrics
    assert figures["batch"] == 4 and figures["threads"] == 1
    assert figures["flops_per_step"] == 2 * 2 * 4 * 32 * 8  # forward, and the weight's gradient
    assert figures["flops_by"] == "torch.utils.flop_counter"
    first = figures["first_batch_ns"]
    assert 0 < first["first_step"] < first["total"] and first["import"] < first["total"]
    memory = figures["memory"]
    assert memory["rss_peak_bytes"] >= memory["rss_baseline_bytes"] > 1 << 24
    assert memory["allocated_peak_bytes"] is None
    for mode in ("fenced", "free"):
        assert [len(times) for times in run.samples.of(mode)] == [3, 3]
    assert run.trace and run.diagnosis and run.diagnosis["schema"] == "torchtraceap.diagnosis/1"
    assert run.counts["operators"] > 0 and run.counts["recompiles"] == 0
    breakdown = break_down_runs([run])[0][0].breakdown
    assert breakdown.steps == 4
    assert {"host_forward", "host_backward", "host_optimizer"} <= breakdown.parts.keys()

    code, out, err = bench("run", f"{own}:linear", *FEW, "--resume", "--json")
    assert json.loads(out)["outcomes"][0] | {"label": ""} == {
        "name": "own.py:linear", "label": "", "status": "kept", "run": run.id, "reason": "",
        "stderr": "", "unfit": False,
    }  # fmt: skip


@pytest.mark.slow
def test_what_fails_loses_only_itself(own: str, bench: Bench, store: Store) -> None:
    names = [f"{own}:{name}" for name in ("crash", "hang", "huge", "needs", "forward_only")]
    code, out, err = bench("run", *names, *FEW, "--timeout", "20", "--no-trace", "--json")
    assert code == 1
    outcomes = {each["name"]: each for each in json.loads(out)["outcomes"]}
    assert {name.partition(":")[2]: each["status"] for name, each in outcomes.items()} == {
        "crash": "failed",
        "hang": "timed out",
        "huge": "out of memory",
        "needs": "skipped",
        "forward_only": "skipped",
    }
    crashed = outcomes["own.py:crash"]
    assert "ValueError: cracks" in crashed["reason"] and "in crash" in crashed["stderr"]
    assert "pip install not_to_be_found" in outcomes["own.py:needs"]["reason"]
    assert "take eval" in outcomes["own.py:forward_only"]["reason"]
    assert "5/5 own.py:forward_only" in err
    assert not store.runs()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "name workloads"),
        (["run", "resnet", "--all"], "name workloads"),
        (["run", "resnett"], "did you mean resnet"),
        (["run", "--domain", "cooking"], "domains: "),
        (["run", "resnet", "--plan", "x.toml"], "--plan"),
        (["run", "resnet", "--steps", "1"], "at least 1 process, 2 steps"),
        (["run", "resnet", "--device", "tpu"], "no 'tpu'"),
        (["table", "devices", "A100"], "compares two devices"),
        (["breakdown"], "no run to break down"),
    ],
)
def test_unusable_options_are_told_in_a_sentence(words: list[str], said: str, bench: Bench) -> None:
    code, out, err = bench(*words)
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1


def test_what_can_only_be_skipped_is_unusable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: Any, **__: Any) -> ProgramResult:
        return ProgramResult(UNFIT, 1, 1, "", "can't be run so\n")

    monkeypatch.setattr(running, "run_fresh", unfit)
    code, _, err = bench("run", "resnet")
    assert code == 2
    assert "nothing could be run: can't be run so" in err


def test_a_missing_library_is_no_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> ProgramResult:
        return ProgramResult(MISSING, 1, 1, "", "resnet needs timm: pip install timm\n")

    monkeypatch.setattr(running, "run_fresh", missing)
    code, _, err = bench("run", "resnet")
    assert code == 0
    assert "skipped: resnet needs timm" in err


def test_a_device_that_is_not_there_is_told_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_fresh", lambda *_, **__: ProgramResult(1, 1, 1, "", ""))
    code, _, err = bench("run", "resnet", "--device", "cuda")
    assert code == 2 and "no GPU" in err


def test_more_processes_than_are_kept_are_measured_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, environment = WorkloadConfig("resnet"), {"cpu": "this"}
    monkeypatch.setattr(running, "fingerprint", lambda: environment)
    made = replace(made_run(environment=environment), config=asked.config())
    how = Protocol(processes=2, steps=3)
    made.config["protocol"] = how.stored_values()
    kept = store.save(made)
    assert next(running.run_all([asked], how, store, resume=True)).run == kept.id
    measured: list[WorkloadConfig] = []

    def measure(asked: WorkloadConfig, *_: object) -> Any:
        measured.append(asked)
        raise WorkloadError("failed", "not now")

    monkeypatch.setattr(running, "measure", measure)
    for other in (Protocol(processes=3, steps=3), Protocol(processes=2, steps=4)):
        list(running.run_all([asked], other, store, resume=True))
    list(running.run_all([replace(asked, batch=2)], how, store, resume=True))
    environment["cpu"] = "another"
    list(running.run_all([asked], how, store, resume=True))
    assert len(measured) == 4


def test_a_suite_process_is_a_program_like_any_other(own: str) -> None:
    spec = Spec(f"{own}:linear", threads=1, steps=2, warmup=2)
    run = run_program(spec.command())
    assert run.by_steps and len(run.step_ns) == 2 and len(run.all_step_ns) == 4


def test_a_process_says_what_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_child(["{"]) == UNFIT
    assert "no specification" in capsys.readouterr().err


def test_listing_imports_no_library() -> None:
    code = (
        "import sys; from torchtraceap.cli import main; main(['bench', 'list', '--json']); "
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'scipy') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed, loaded = ended.stdout.splitlines()
    assert loaded == "[]"
    document = json.loads(listed)
    assert document["schema"] == "torchtraceap.bench/1"
    assert {"name", "domain", "task", "available"} <= document["workloads"][0].keys()


# ------------------------------------------------------------------------- what is asked


def test_kinds_choose_workloads() -> None:
    assert "resnet" in select_names([], domain="vision")
    assert select_names(["resnet", "a.py:f", "resnet"]) == ["resnet", "a.py:f"]


def test_a_plan_has_runs(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'threads = 1\n[[run]]\nnames = ["resnet", "vit"]\nmode = "both"\n'
        '[[run]]\nnames = ["resnet"]\nbatch = 2\ncompiled = true\n'
    )
    asked = read_plan(path)
    assert [(each.workload, each.mode, each.batch) for each in asked] == [
        ("resnet", "train", None), ("resnet", "eval", None), ("vit", "train", None),
        ("vit", "eval", None), ("resnet", "train", 2),
    ]  # fmt: skip
    assert all(each.threads == 1 for each in asked) and asked[-1].compiled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[run]", "TOML"),
        ("", r"no \[\[run\]\]"),
        ("[[run]]\nnames = 3", "run 1: names is a list"),
        ("[[run]]\nnames = ['a']\nspeed = 1", "no key 'speed'"),
        ("[[run]]\nnames = ['a']\nmode = 'fast'", "no 'fast'"),
        ("[[run]]\nnames = ['a']\nbatch = 0", "batch of 0"),
    ],
)
def test_a_plan_of_another_form_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=said):
        read_plan(path)
    with pytest.raises(MissingFileError):
        read_plan(tmp_path / "none.toml")


# ------------------------------------------------------------------------- figures


def test_figures_of_processes() -> None:
    figures = metrics_of(
        [made_process([10, 20, 30], [8, 12]), made_process([20, 20, 20], [12, 16], peak=90 * MIB)]
    )
    assert figures["step_ns"] == {
        "median": 20, "p10": 15, "p90": 25, "mean": 20, "by_process": [20, 20]
    }  # fmt: skip
    assert figures["free_step_ns"] == {"mean": 12, "by_process": [10, 14]}
    assert figures["lost_overlap_ns"] == 8 and figures["lost_overlap_share"] == 0.4
    assert figures["samples_per_s"] == pytest.approx(4e9 / 12)
    assert figures["memory"]["rss_above_bytes"] == 90 * MIB


def test_without_a_batch_there_is_no_throughput() -> None:
    assert metrics_of([made_process([1], batch=None)])["samples_per_s"] is None


def test_intervals_hold_the_known_values() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == (
        2.0,
        pytest.approx(-0.4841, abs=1e-4),
        pytest.approx(4.4841, abs=1e-4),
    )
    assert mean_interval([5.0]) == (5.0, None, None)
    ratio, low, high = ratio_interval([2.0, 2.0], [1.0, 1.0])
    assert (ratio, low, high) == pytest.approx((2.0, 2.0, 2.0))
    ratio, low, high = ratio_interval([20.0, 22.0, 21.0], [10.0, 11.0, 10.5])
    assert low and high and low < 2.0 < high and ratio == pytest.approx(2.0)
    assert ratio_interval([2.0], [1.0, 1.0])[1:] == (None, None)


def test_an_outlier_does_not_move_the_line() -> None:
    assert robust_line([1, 2, 4, 8, 16], [13, 16, 22, 34, 999]) == pytest.approx((10.0, 3.0))


# ------------------------------------------------------------------------- tables


def test_eager_against_compiled(store: Store, bench: Bench) -> None:
    eager = [made_process([100, 100, 100]), made_process([110, 110, 110])]
    compiled = [
        made_process([50, 50, 50], peak=40 * MIB),
        made_process([55, 55, 55], peak=40 * MIB),
    ]
    store.save(made_run(processes=[made_process([9, 9])] * 2))  # of before
    store.save(made_run(processes=eager, when="2026-01-02T00:00:00"))
    store.save(made_run(processes=compiled, compiled=True))
    store.save(made_run("vit"))
    table = eager_compiled_table(store.runs())
    (row,) = table.records()
    assert row["workload"] == "resnet" and row["eager_ns"] == 105
    assert row["speedup"] == pytest.approx(2.0)
    assert row["speedup_low"] < 2.0 < row["speedup_high"]
    assert row["memory_ratio"] == 0.5
    assert table.facts["geometric_mean_speedup"] == pytest.approx(2.0)
    code, out, _ = bench("table", "eager-compiled", "--json")
    assert code == 0 and json.loads(out)["schema"] == "torchtraceap.table/1"


def test_one_device_against_another(store: Store, tmp_path: Path, bench: Bench) -> None:
    for device, ns in (("NVIDIA A100-SXM4-80GB", 30), ("NVIDIA H100 80GB HBM3", 10)):
        store.save(made_run(processes=[made_process([ns] * 3, device=device)], device="cuda"))
    store.save(made_run())
    runs = store.runs()
    (row,) = devices_table(runs, "a100", "h100").records()
    assert row["speedup"] == pytest.approx(3.0) and row["speedup_low"] is None
    assert row["memory_ratio"] == 1.0
    (row,) = devices_table(runs, "cpu", "H100").records()
    assert row["memory_ratio"] is None  # resident memory is no memory of a GPU
    assert {device_of(run) for run in runs} >= {"cpu: Test CPU"}
    with pytest.raises(OptionError, match="no run is of a device 'MI300'"):
        devices_table(runs, "A100", "MI300")
    with pytest.raises(OptionError, match="both mean"):
        devices_table(runs, "NVIDIA", "H100")
    code, _, _ = bench("table", "devices", "A100", "H100", "--csv", str(tmp_path / "t.csv"))
    assert code == 0 and "NVIDIA H100" in (tmp_path / "t.csv").read_text()


# ------------------------------------------------------------------------- breakdown


def stepped(folder: Path) -> Path:
    """Two steps of 100 us: 40 us of a kernel, 20 us of a copy, half of which the kernel hides."""
    folder.mkdir(exist_ok=True)
    made = GpuTrace()
    for start in (0, 100):
        made.host("user_annotation", f"ProfilerStep#{1 + start // 100}", start, 100)
        made.launch("gemm", (start + 5, 2), (start + 10, 40))
        made.launch(
            "Memcpy HtoD (Pinned -> Device)",
            (start + 8, 2),
            (start + 40, 20),
            call="cudaMemcpyAsync",
            cat="gpu_memcpy",
            stream=8,
        )
    made.load(folder)
    return folder / "trace.json"


def test_a_step_is_active_moves_data_or_idles(tmp_path: Path) -> None:
    found = break_down(ttap.load(stepped(tmp_path)))
    assert found and (found.computes_on, found.steps, found.step_ns) == ("gpu", 2, 100_000)
    means = {group: share["mean"] for group, share in found.shares.items()}
    assert means == pytest.approx({"active": 0.4, "data_movement": 0.1, "idle": 0.5})
    assert found.shares["active"]["low"] == pytest.approx(0.4)  # both steps are alike
    assert sum(found.parts.values()) == pytest.approx(1.0)
    assert list(found.parts)[:2] == ["compute", "memcpy"]


def test_a_trace_without_work_has_no_parts(tmp_path: Path) -> None:
    made = GpuTrace().call("cudaLaunchKernel", 0, 5).load(tmp_path)
    assert break_down(made) is None


def test_runs_are_drawn_by_mode_and_task(store: Store, tmp_path: Path, bench: Bench) -> None:
    trace = stepped(tmp_path / "t")
    for name, mode in (("resnet", "train"), ("<b>&own", "train"), ("resnet", "eval")):
        store.save(made_run(name, trace=trace, mode=mode, device="cuda"))
    store.save(made_run("vit"))
    page = tmp_path / "page.html"
    code, out, err = bench("breakdown", "--html", str(page))
    assert (code, out) == (0, "") and "wrote" in err
    text = page.read_text()
    assert text.index("Training") < text.index("Evaluation")
    assert "&lt;b&gt;&amp;own" in text and "<b>" not in text and "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert "compute: 40.0 %" in text and "(vit): has no trace" in text
    found, notes = break_down_runs(store.runs())
    assert len(found) == 3 and len(notes) == 1
    rows = {(row["mode"], row["task"]): row for row in task_table(found).records()}
    assert rows["train", "classification"]["active_share"] == pytest.approx(0.4)
    assert rows["train", "other"]["runs"] == 1
    code, out, _ = bench("breakdown", "--json")
    rows = json.loads(out)
    assert code == 0 and rows["columns"][0] == "run" and len(rows["rows"]) == 3
    assert breakdown_page([]).startswith("<!doctype html>")


# ------------------------------------------------------------------------- batch size


def machine(
    fixed: float, each: float, *, base: int = 100, sample: int = 1, memory: int | None = None
) -> tuple[Callable[[int], Point], list[int]]:
    """A workload whose step takes `fixed + each * batch`, and the sizes that were tried."""
    tried: list[int] = []

    def measure(batch: int) -> Point:
        tried.append(batch)
        taken = base + sample * batch
        if memory is not None and taken > memory:
            raise WorkloadError("out of memory", "too large")
        return Point(batch, fixed + each * batch, taken)

    return measure, tried


def test_the_knee_is_where_samples_stop_paying() -> None:
    """b / (a + c b) reaches 0.95 / c at b = 19 a / c."""
    measure, tried = machine(fixed=100.0, each=50.0)
    found = search_batch(measure)
    assert found.batch == 38
    assert (found.fixed_ns, found.sample_ns) == pytest.approx((100.0, 50.0))
    assert found.best_samples_per_s == pytest.approx(1e9 / 50)
    assert tried == [1, 2, 4, 8, 16, 32, 64, 38]
    assert [point.batch for point in found.points] == sorted(tried)
    at = next(point for point in found.points if point.batch == 38)
    assert at.samples_per_s >= 0.95 * found.best_samples_per_s


def test_without_a_fixed_part_the_first_size_is_best() -> None:
    measure, tried = machine(fixed=0.0, each=10.0)
    assert search_batch(measure, start=4).batch == 4
    assert tried == [4, 8, 16, 32]


def test_a_ceiling_bounds_what_can_be_had() -> None:
    """At most a batch of 20 fits, which brings 20 / 1100; 0.95 of that needs 12.7."""
    measure, tried = machine(fixed=100.0, each=50.0, base=0, sample=10)
    found = search_batch(measure, memory_ceiling_bytes=205)
    assert (found.largest_batch, found.stopped_at) == (20, 32)
    assert found.best_samples_per_s == pytest.approx(20e9 / 1100)
    assert found.batch == 13
    assert tried == [1, 2, 4, 8, 16, 13]  # what can't fit is not even tried


def test_running_out_of_memory_ends_the_doubling() -> None:
    measure, tried = machine(fixed=1e6, each=1.0, base=0, sample=1, memory=9)
    found = search_batch(measure)
    assert found.stopped_at == 16 and max(p.batch for p in found.points) == 8
    assert found.batch == 8
    assert tried == [1, 2, 4, 8, 16]


def test_steps_that_cost_no_more_want_the_largest_size() -> None:
    measure, tried = machine(fixed=100.0, each=0.0)
    found = search_batch(measure)
    assert found.batch == max(tried) == 2048
    assert "still rise" in found.why


def test_not_even_the_first_size_fits() -> None:
    measure, _ = machine(1.0, 1.0, memory=10)
    with pytest.raises(OptionError, match="batch of 2 does not fit"):
        search_batch(measure, start=2)
    with pytest.raises(OptionError, match="makes no sense"):
        search_batch(measure, start=0)


def test_other_failures_are_told() -> None:
    def measure(batch: int) -> Point:
        raise WorkloadError("failed", "cracks")

    with pytest.raises(WorkloadError, match="cracks"):
        search_batch(measure)


def test_a_size_above_the_ceiling_is_told(own: str, bench: Bench, store: Store) -> None:
    words = ("--start", "64", "--memory-ceiling", "1MiB")
    code, _, err = bench("batch-size", f"{own}:linear", *FEW, *words)
    assert code == 2 and "batch of 64 does not fit" in err
    assert not store.runs()


def test_the_size_that_is_found_is_kept_with_its_search(
    bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, tried = machine(fixed=100.0, each=50.0)
    monkeypatch.setattr(batch_size, "measure_batches", lambda *_: measure)

    def measured(asked: WorkloadConfig, *_: object) -> Any:
        assert asked.batch is not None
        return made_run(processes=[made_process([9, 9], batch=asked.batch)], batch=asked.batch)

    monkeypatch.setattr(running, "measure", measured)
    code, out, err = bench("batch-size", "resnet", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["search"]["batch"] == 38 == tried[-1]
    kept = store.load(document["run"]["id"])
    assert kept.metrics["batch_search"] == document["search"]
    assert kept.config["batch"] == kept.metrics["batch"] == 38
    code, out, _ = bench("batch-size", "resnet", "--no-keep")
    assert code == 0 and "batch 38: the smallest" in out
    assert len(store.runs()) == 1
