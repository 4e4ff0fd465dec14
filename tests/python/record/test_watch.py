"""`watch`: recordings within a budget, what they find over time, and that training goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from trainings import library, names, slow_optimizer_step, torch_on_one_thread, traces

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.record import RecordingError, RecordingWarning, profile
from torchtraceap.record.costs import Costs, parse_interval
from torchtraceap.record.history import (
    Changes,
    Kept,
    append_line,
    metrics_of,
    read_lines,
    series_table,
)
from torchtraceap.record.integrations.logging import Sinks, active_runs, sink_of
from torchtraceap.record.watch import Watch, watch


@pytest.fixture
def torch() -> Any:
    return torch_on_one_thread()


def found(name: str, share: float = 0.2) -> dict[str, Any]:
    return {"type": name, "cost_share": share, "saving_share": 0.1, "cost_ns": 5, "saving_ns": 3}


def row(*names: str, step: int = 7, **more: Any) -> dict[str, Any]:
    findings = [found(name) for name in names]
    return {
        "schema": "torchtraceap.watch/1",
        "run": "r",
        "time": 1.5,
        "step": step,
        "step_time_ns": 2_000_000,
        "busy_share": None,
        "findings": findings,
        **more,
    }


# ------------------------------------------------------------------------- the budget


def costs(budget: float = 0.01, every_s: float = 600.0) -> Costs:
    made = Costs(budget, every_s, 4, 0.0)
    for _ in range(10):
        made.plain_step(0.1)
    return made


def test_the_first_recording_waits_until_the_budget_has_grown() -> None:
    made = costs()
    due = made.expected_s / 0.01
    assert made.expected_s >= 0.5 + 0.5 * 4 * 0.1
    assert made.seconds_left(0.0) == pytest.approx(due)
    assert made.seconds_left(due + 1) < 0
    assert Costs(0.01, 600.0, 4, 0.0).seconds_left(1e9) > 0  # no step has been seen


def test_a_dear_recording_stretches_the_interval() -> None:
    made = costs()
    made.begin(200.0)
    made.own_s += 9.0
    made.add_recording([0.2, 0.4])  # two steps of 0.1
    made.add_examination([0.1, 0.1, 0.5], 0.25)  # no more than the CPU time of the child
    made.end()
    assert made.slower_steps_s == pytest.approx(0.4)
    assert made.examining_s == pytest.approx(0.25)
    assert made.total_s == pytest.approx(9.65)
    # Twice what one costs has to be 1 % of the time by then.
    assert made.seconds_left(800.0) == pytest.approx(2 * 9.65 / 0.01 - 800)
    assert made.share(965.0) == pytest.approx(0.01)


def test_a_cheap_recording_keeps_to_the_interval() -> None:
    made = costs()
    made.begin(200.0)
    made.own_s += 0.5
    made.add_recording([0.1, 0.05])  # a faster step is no gain
    made.end()
    assert made.total_s == pytest.approx(0.5)
    assert made.seconds_left(300.0) == pytest.approx(500.0)


def test_intervals_and_budgets_are_checked() -> None:
    assert [parse_interval(text) for text in ("10m", "90s", "1.5 h", 30, "2")] == [
        *(600, 90, 5400, 30, 2),
    ]
    for options in ({"every": "often"}, {"every": 0}, {"budget": 0}, {"budget": 2}, {"keep": 0}):
        with pytest.raises(OptionError):
            watch(**options)
    for options in ({"steps": 0}, {"keep_bytes": 0}, {"ranks_timeout": -1}, {"log": [3]}):
        with pytest.raises(OptionError):
            watch(**options)


# ------------------------------------------------------------------------- what changes


def test_findings_appear_and_go_after_two_recordings_without_them() -> None:
    changes = Changes()

    def told(*names: str) -> list[tuple[str, str | None]]:
        return [(c.kind, c.finding) for c in changes.compare_findings([found(n) for n in names], 5)]

    assert told("a") == [("appeared", "a")]
    assert told("a", "b") == [("appeared", "b")]
    assert told("a") == []
    assert told("a", "b") == []
    assert told("a") == []
    assert told("a") == [("gone", "b")]
    assert told("a", "b") == [("appeared", "b")]


def test_steps_that_take_longer_are_told_once() -> None:
    changes = Changes()
    slow = [0.120, 0.121, 0.119, 0.120, 0.122]
    assert changes.compare_steps([0.1] * 9, 10) is None
    assert changes.compare_steps([0.105] * 9, 20) is None
    drift = changes.compare_steps(slow, 30)
    assert drift is not None and "step 30: a step takes 120 ms, +20 % against 100 ms" in drift.text
    assert changes.compare_steps(slow, 40) is None
    back = changes.compare_steps([0.1] * 9, 50)
    assert back is not None and "-17 %" in back.text
    noisy = Changes()
    assert noisy.compare_steps([0.1, 0.2, 0.1, 0.3, 0.05], 1) is None
    assert noisy.compare_steps([0.12, 0.25, 0.1, 0.3, 0.05], 2) is None


# ------------------------------------------------------------------------- what stays


def recorded(root: Path, name: str, size: int = 100) -> str:
    (root / name).mkdir(parents=True)
    (root / name / "trace_rank0.json.gz").write_bytes(b"x" * size)
    return name


def test_the_latest_traces_stay_and_those_with_something_new(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 2, 10_000)
    for n in range(6):
        kept.add(recorded(tmp_path, f"s{n}"), is_new=n in (0, 2))
    assert kept.names == ["s0", "s2", "s4", "s5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept.names


def test_all_traces_together_have_a_bound(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 3, 250)
    for n, is_new in enumerate((True, False, True)):
        kept.add(recorded(tmp_path, f"s{n}"), is_new)
    assert kept.names == ["s0", "s2"]  # what had nothing new goes first
    kept.add(recorded(tmp_path, "s3", 1000), is_new=False)
    assert kept.names == ["s3"]
    (tmp_path / "s3" / "notes.txt").write_text("mine")
    kept.add(recorded(tmp_path, "s4"), is_new=False)
    assert [path.name for path in (tmp_path / "s3").iterdir()] == ["notes.txt"]


def test_another_rank_keeps_what_rank_0_keeps(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 1, 1)
    for n in range(3):
        kept.note(recorded(tmp_path, f"s{n}"))
    kept.follow(["s1", "s2"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s1", "s2"]


# ------------------------------------------------------------------------- the series


def test_lines_survive_a_writer_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    append_line(path, row("a", step=1))
    with path.open("ab") as file:
        file.write(b'{"schema": "torchtraceap.wa')
    append_line(path, row(step=2, run="other"))
    assert [read["step"] for read in read_lines(path)] == [1, 2]
    assert [read["step"] for read in read_lines(path, "r")] == [1]


def test_the_series_is_a_table_of_findings_by_time() -> None:
    table = series_table([row("a", "b", step=1, overhead_share=0.01), row(step=2)])
    assert table.to_list("step") == [1, 1, 2]
    assert table.to_list("finding") == ["a", "b", None]
    assert table.to_list("cost_share") == [0.2, 0.2, None]
    assert table.to_list("busy_share") == [None] * 3
    assert series_table([]).notes


def test_metrics_have_names_and_a_finding_that_has_gone_is_zero() -> None:
    metrics = metrics_of(row("a", gone=["b"], overhead_share=0.002))
    assert metrics["torchtraceap/step_time_ms"] == 2.0
    assert metrics["torchtraceap/findings"] == 1
    assert metrics["torchtraceap/cost_share/a"] == 0.2
    assert metrics["torchtraceap/saving_share/a"] == 0.1
    assert metrics["torchtraceap/cost_share/b"] == 0
    assert "torchtraceap/gpu_busy_share" not in metrics


# ------------------------------------------------------------------------- loggers


def test_what_can_be_logged_to_is_recognised(tmp_path: Path) -> None:
    class Logger:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def log_metrics(self, metrics: Any, step: int) -> None:
            self.told.append((step, metrics))

    class Run:
        def __init__(self) -> None:
            self.axes: list[str] = []
            self.told: list[Any] = []

        def define_metric(self, name: str, step_metric: str | None = None) -> None:
            self.axes.append(name)

        def log(self, data: Any, commit: bool) -> None:
            self.told.append((commit, data))

    logger, run, rows = Logger(), Run(), list[Any]()
    sinks = Sinks([logger, run, rows.append, tmp_path / "more.jsonl"], tmp_path)
    sinks.write(row("a"))
    sinks.close()
    assert logger.told[0][0] == 7 and "torchtraceap/cost_share/a" in logger.told[0][1]
    assert run.told[0][0] is False and run.told[0][1]["torchtraceap/step"] == 7
    assert run.axes == ["torchtraceap/step", "torchtraceap/*"]
    assert rows == [row("a")] == read_lines(tmp_path / "more.jsonl")


def test_a_logger_that_fails_is_told_of_once(tmp_path: Path) -> None:
    rows: list[Any] = []

    def fail(_: Any) -> None:
        raise OSError("no route")

    sinks = Sinks([fail, rows.append], tmp_path)
    with pytest.warns(RecordingWarning, match="fail, which is left out: OSError: no route"):
        sinks.write(row())
    sinks.write(row())
    assert len(rows) == 2


def test_tensorboard_gets_scalars_and_text(tmp_path: Path, torch: Any) -> None:
    library("tensorboard")
    from test_integrations import scalars

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sinks = Sinks(["tensorboard", tmp_path / "other"], tmp_path)
        sinks.write(row("a"))
        sinks.close()
    for folder in (tmp_path / "tensorboard", tmp_path / "other"):
        assert scalars(folder)["torchtraceap/findings"] == [(7, 1.0)]


def test_mlflow_gets_metrics_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = library("mlflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.set_tracking_uri((tmp_path / "store").as_uri())
        assert active_runs() == []
        with mlflow.start_run() as run:
            Sinks(None, tmp_path).write(row("a"))
        Sinks([run], tmp_path).write(row("a", "b", step=9))
        client = mlflow.MlflowClient()
        history = client.get_metric_history(run.info.run_id, "torchtraceap/findings")
    assert sorted((each.step, each.value) for each in history) == [(7, 1), (9, 2)]


def test_wandb_gets_rows_of_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = library("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = wandb.init(mode="offline", dir=tmp_path, project="p")
        run.log({"loss": 1.0}, step=40)
        Sinks(None, tmp_path).write(row("a", step=7))  # a step that W&B is beyond
        run.log({"loss": 0.5}, step=41)
        run.log({"loss": 0.4}, step=42)  # ends the row before
        summary = dict(run.summary)
        run.finish()
    assert summary["torchtraceap/findings"] == 1 and summary["torchtraceap/step"] == 7
    assert summary["loss"] == 0.5 and summary["_step"] == 41


def test_what_is_not_installed_is_told_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependencyError, match="needs mlflow"):
        sink_of("mlflow", tmp_path)
    assert active_runs() == []


# ------------------------------------------------------------------------- trainings


def train(w: Watch, step: Any, recordings: int, timeout_s: float = 60.0) -> int:
    """Steps until so many recordings have been examined; how many steps."""
    end = time.monotonic() + timeout_s
    steps = 0
    while len(w.rows) < recordings and time.monotonic() < end:
        step()
        w.step()
        steps += 1
    return steps


def test_a_training_is_watched(tmp_path: Path, torch: Any) -> None:
    step = slow_optimizer_step(torch)
    told: list[str] = []
    (tmp_path / "watch.jsonl").write_text(json.dumps(row("old")) + "\n")
    with watch(tmp_path, every=0.01, budget=1.0, keep=1, notify=told.append, log=[]) as w:
        steps = train(w, step, 2)
        step()
    first, second = w.rows[:2]
    assert {"unfused_optimizer"} <= {finding["type"] for finding in first["findings"]}
    assert "unfused_optimizer" in first["appeared"]
    assert "unfused_optimizer" not in second["appeared"]
    assert first["steps"] == 3 and 0 < first["step"] < second["step"] <= steps
    assert first["recorded_step_ns"] > 0 and first["step_time_ns"] > 0
    assert told == w.notices and any("unfused_optimizer has appeared" in text for text in told)
    assert 0 < w.overhead_share < 1 and set(w.costs_s) >= {"own", "examining"}
    # Those with something new, and the latest.
    kept = traces(tmp_path)
    wanted = [each["trace"] for each in w.rows if each["appeared"] or each is w.rows[-1]]
    assert [str(path.parent.relative_to(tmp_path)) for path in kept] == wanted
    assert len(names(kept[-1], "ProfilerStep#")) == 3
    assert not list(tmp_path.rglob(".torchtraceap*"))
    lines = read_lines(tmp_path / "watch.jsonl")
    assert lines[1:] == w.rows and lines[0]["findings"][0]["type"] == "old"
    assert set(w.series.to_list("step")) == {each["step"] for each in w.rows}
    assert w.diagnosis.finding("unfused_optimizer") is not None


def test_a_short_training_under_a_small_budget_is_left_alone(tmp_path: Path, torch: Any) -> None:
    step = slow_optimizer_step(torch)
    with (
        pytest.warns(RecordingWarning, match="nothing was recorded .* above the budget of 0.10%"),
        watch(tmp_path, every=0.01, budget=0.001) as w,
    ):
        for _ in range(30):
            step()
            w.step()
    assert w.rows == [] and traces(tmp_path) == []
    assert w.overhead_share < 0.05
    with pytest.raises(RecordingError, match="no recording"):
        _ = w.diagnosis


def test_what_goes_wrong_ends_the_watch_and_not_the_training(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = slow_optimizer_step(torch)
    with watch(tmp_path, every=0.01, budget=1.0) as w:
        for _ in range(6):
            step()
            w.step()
        monkeypatch.setattr(w._costs, "seconds_left", lambda now: 1 / 0)
        with pytest.warns(RecordingWarning, match="the training goes on: ZeroDivisionError"):
            w.step()
        for _ in range(3):
            step()
            w.step()
    with profile(tmp_path / "next", diagnose=False) as p:  # the profiler is free
        step()
    assert p.path is not None


def test_a_recording_that_cannot_be_examined_is_told(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtraceap.record.examiner.PROGRAM", "raise SystemExit('out of memory')")
    step = slow_optimizer_step(torch)
    end = time.monotonic() + 60
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RecordingWarning)
        with watch(tmp_path, every=60, budget=1.0) as w:
            while not told and time.monotonic() < end:
                step()
                w.step()
    assert "is lost: the examining process ended with 1: out of memory" in str(told[0].message)
    assert w.rows == [] and not list(tmp_path.rglob(".torchtraceap*"))


def test_a_pause_cuts_a_recording_and_another_profiler_postpones_it(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = slow_optimizer_step(torch)
    with watch(tmp_path, every=0.05, budget=1.0, steps=50) as w:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            monkeypatch.setattr(w._costs, "seconds_left", lambda now: 0.0)
            for _ in range(3):
                step()
                w.step()
        assert not w._recorder.is_running
        for number in range(100, 106):
            step()
            w.step(number)
        w.pause()
        monkeypatch.setattr(w._costs, "seconds_left", lambda now: 9.0)
    (path,) = traces(tmp_path)
    (only,) = w.rows
    assert only["step"] == 105 and only["steps"] == 4
    assert len(names(path, "ProfilerStep#")) == 4 and len(names(path, "unfinished")) == 1


def test_another_thread_and_a_forked_worker_change_nothing(tmp_path: Path, torch: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with (
        pytest.warns(RecordingWarning, match="nothing was recorded"),
        watch(tmp_path, budget=0.001) as w,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(w.step).result()
        pool.submit(w.pause).result()
    assert w._steps == 0
    w.step()
    w.stop()


# ------------------------------------------------------------------------- ranks

PROGRAM = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torchtraceap.record.watch import watch

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = torch.zeros(1)
end = time.monotonic() + 90
with watch(sys.argv[1], every=0.2, budget=1.0, steps=2, keep=1) as w:
    while not done.item():
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        w.step()
        done.fill_(float(len(w.rows) >= 3 or time.monotonic() > end))
        dist.broadcast(done, 0)
if dist.get_rank() == 0:
    rows = [[row["step"], row["ranks"], row["appeared"]] for row in w.rows]
    print("WATCHED", json.dumps(rows), flush=True)
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts now and then
"""


@pytest.mark.slow  # starts processes that import torch
def test_ranks_record_the_same_steps_under_torchrun(tmp_path: Path, torch: Any) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(program), str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "RecordingWarning" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("WATCHED")]
    rows = json.loads(line.removeprefix("WATCHED"))
    assert len(rows) >= 3 and all(ranks == 2 for _, ranks, _ in rows)
    folders = {path.parent for path in traces(tmp_path / "runs")}
    latest = max(folders)
    assert sorted(path.name for path in latest.iterdir()) == [
        *("trace_rank0.json.gz", "trace_rank1.json.gz"),
    ]
    first, second = (names(path, "ProfilerStep#") for path in traces(latest))
    assert first == second and len(first) == 2
    assert len({folder.parent for folder in folders}) == 1
    told = sum(bool(appeared) for _, _, appeared in rows)  # a busy machine starves some
    assert len(folders) <= told + 1  # what has nothing new goes, but for the latest
