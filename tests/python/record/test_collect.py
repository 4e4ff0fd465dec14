"""Recording: files without private data, the profiler's traps, steps that are too few."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.core.writing import first_free
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.record import (
    Recording,
    RecordingError,
    RecordingWarning,
    on_trace_ready,
    profile,
)
from torchtraceap.record.export import TraceNames, holds_work, kept_pieces, private_cuts

ANALYSIS = importlib.util.find_spec("torchtraceap._core") is not None
needs_analysis = pytest.mark.skipif(not ANALYSIS, reason="torchtraceap._core is not built")


@pytest.fixture(scope="session")
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torch", reason="torch is not installed")
    module.set_num_threads(1)
    return module


@pytest.fixture
def loop(torch: Any) -> Any:
    """A training loop over a DataLoader without workers: `loop(steps, after_step)`."""
    features, targets = torch.randn(64, 16), torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(features, targets)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run(steps: int, after_step: Any = lambda: None) -> None:
        for x, y in itertools.islice(loader, steps):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            after_step()

    return run


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert isinstance(document, dict)
    return document


def step_names(path: Path) -> list[str]:
    events = read(path)["traceEvents"]
    return sorted(e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#"))


def operations(path: Path) -> int:
    return sum(event.get("cat") == "cpu_op" for event in read(path)["traceEvents"])


def clean(text: str) -> str:
    data = text.encode()
    return b"".join(kept_pieces(data, private_cuts(data))).decode()


# -- files -------------------------------------------------------------------------------------


def test_host_environment_and_folders_are_cut_and_nothing_else() -> None:
    document = {
        "schemaVersion": 1,
        "host_name": 'box-"7"',
        "metadata": {"env": {"HOME": "/home/ada", "DEEP": {"a": ["}", '"']}}, "kept": 1},
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": 'says "host_name": "x"', "args": {"env": "dev"}},
            {"ph": "X", "cat": "cpu_op", "name": "b", "args": {"hostname": "box", "n": 2}},
        ],
        "traceName": "/home/ada/runs/trace.json",
    }
    for indent in (None, 2):
        result = json.loads(clean(json.dumps(document, indent=indent)))
        assert result == {
            "schemaVersion": 1,
            "metadata": {"kept": 1},
            "traceEvents": [
                document["traceEvents"][0],
                {"ph": "X", "cat": "cpu_op", "name": "b", "args": {"n": 2}},
            ],
            "traceName": "trace.json",
        }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "host_name": "x"}', {"a": 1}),
        ('{"host_name": "x"}', {}),
        ('{"host_name": "x", "a": ["host_name", "env"]}', {"a": ["host_name", "env"]}),
        ('{"env": {"host_name": "x", "é": "\\u00e9"}, "b": 2}', {"b": 2}),
        ('{"env": "prod", "env2": {"x": 1}}', {"env": "prod", "env2": {"x": 1}}),
    ],
)
def test_cuts_leave_valid_json(text: str, expected: dict[str, Any]) -> None:
    assert json.loads(clean(text)) == expected


def test_an_unfinished_private_value_is_left_alone() -> None:
    for text in ('{"host_name": "x', '{"env": {"a": [', '{"env": ' + '{"a":' * 5000):
        assert clean(text) == text


def test_large_environment_is_cut_whole() -> None:
    document = {"env": {f"V{i}": "x" * 100 for i in range(3000)}, "z": 1}
    assert json.loads(clean(json.dumps(document))) == {"z": 1}


def test_marks_alone_are_no_work() -> None:
    marks = '{"cat": "Trace"}, {"cat": "user_annotation", "name": "ProfilerStep#4"}'
    assert not holds_work(marks.encode())
    assert holds_work((marks + ', {"cat":"kernel"}').encode())


def test_names_count_up_and_never_repeat(tmp_path: Path) -> None:
    def take(names: TraceNames) -> str:
        finished = tmp_path / "finished"
        finished.write_bytes(b"{}")
        return first_free(finished, names.candidates()).name

    names = TraceNames(tmp_path / "runs", rank=3, run="r", worker_name="my job/7")
    names.folder.mkdir()
    assert names.folder == tmp_path / "runs" / "r"
    taken = [take(names) for _ in range(2)]
    assert taken == ["my_job_7_rank3.json.gz", "my_job_7_rank3_2.json.gz"]
    for rank, expected in ((0, "one.json"), (0, "one_2.json"), (2, "one_rank2.json")):
        assert take(TraceNames(tmp_path / "one.json", rank=rank, run="r")) == expected


# -- profile -----------------------------------------------------------------------------------


def test_profile_records_the_planned_steps(tmp_path: Path, loop: Any) -> None:
    with profile(tmp_path, diagnose=False) as p:
        assert p.path is None
        loop(8, p.step)
    assert p.path is not None and p.path.parent.parent == tmp_path
    assert p.steps == 8 and p.recorded_steps == 3
    assert len(step_names(p.path)) == 3
    assert [path.name for path in p.path.parent.iterdir()] == ["trace_rank0.json.gz"]


def test_profile_writes_the_file_while_the_loop_goes_on(tmp_path: Path, loop: Any) -> None:
    seen: list[Path | None] = []
    with profile(tmp_path / "t.json", active=2, diagnose=False) as p:
        loop(6, lambda: (p.step(), seen.append(p.path)))
    assert seen == [None, None, None, *[tmp_path / "t.json"] * 3]


def test_profile_without_steps_records_the_whole_block(tmp_path: Path, loop: Any) -> None:
    with profile(tmp_path / "whole.json", diagnose=False) as p:
        loop(4)
    assert p.path == tmp_path / "whole.json"
    assert step_names(p.path) == []
    fetches = [e for e in read(p.path)["traceEvents"] if "enumerate(DataLoader)" in e["name"]]
    assert len(fetches) >= 4 and operations(p.path) > 100


@pytest.mark.parametrize(
    ("wait", "warmup", "active", "marks"), [(0, 0, 2, 2), (0, 1, 2, 2), (2, 0, 1, 1), (0, 2, 3, 3)]
)
def test_profile_follows_every_plan(
    tmp_path: Path, loop: Any, wait: int, warmup: int, active: int, marks: int
) -> None:
    with profile(tmp_path, wait=wait, warmup=warmup, active=active, diagnose=False) as p:
        loop(wait + warmup + active, p.step)
    assert p.path is not None
    assert len(step_names(p.path)) == marks and p.recorded_steps == active


@pytest.mark.parametrize(("steps", "recorded"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_profile_says_that_steps_were_too_few(
    tmp_path: Path, loop: Any, steps: int, recorded: int
) -> None:
    with (
        pytest.warns(RecordingWarning, match=f"called step\\(\\) {steps} times") as caught,
        profile(tmp_path, diagnose=False) as p,
    ):
        loop(steps, p.step)
    expected = f"{recorded} of the 3" if recorded else "only the first iteration"
    assert expected in str(caught[0].message)
    assert p.recorded_steps == recorded
    assert p.path is not None and operations(p.path) > 20


def test_profile_warns_of_a_block_without_work(tmp_path: Path, torch: Any) -> None:
    with pytest.warns(RecordingWarning, match="nothing was recorded"), profile(tmp_path) as p:
        pass
    assert p.path is None and list(tmp_path.iterdir()) == []
    with pytest.raises(RecordingError, match="nothing was recorded"):
        _ = p.diagnosis


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_exception_passes_and_the_recording_is_kept(
    tmp_path: Path, loop: Any, steps: int
) -> None:
    def fail() -> None:
        p.step()
        if p.steps == steps:
            raise KeyError("out of data")

    with (
        pytest.warns(RecordingWarning, match="kept in"),
        pytest.raises(KeyError, match="out of data"),
        profile(tmp_path) as p,
    ):
        if steps == 0:
            loop(1)
            raise KeyError("out of data")
        loop(8, fail)
    assert p.path is not None and operations(p.path) > 20
    with profile(tmp_path, diagnose=False) as again:  # nothing is left switched on
        loop(1)
    assert again.path is not None and again.path != p.path


def test_recordings_do_not_nest(tmp_path: Path, torch: Any, loop: Any) -> None:
    with profile(tmp_path, diagnose=False) as p:
        with pytest.raises(RecordingError, match="already recording"), profile(tmp_path):
            pass
        loop(5, p.step)
    assert p.path is not None
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(RecordingError, match="another torch profiler"),
        profile(tmp_path),
    ):
        pass
    with pytest.raises(RecordingError, match="used once"), p:
        pass


def test_step_belongs_to_the_block_and_its_thread(tmp_path: Path, loop: Any) -> None:
    errors: list[str] = []

    def step_elsewhere() -> None:
        try:
            p.step()
        except RecordingError as error:
            errors.append(str(error))

    p = profile(tmp_path, diagnose=False)
    with pytest.raises(RecordingError, match="outside"):
        p.step()
    with p:
        loop(1)
        thread = threading.Thread(target=step_elsewhere)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "another thread" in errors[0]
    with pytest.raises(RecordingError, match="outside"):
        p.step()


def test_no_host_name_and_no_folder_in_the_file(tmp_path: Path, loop: Any) -> None:
    with profile(tmp_path / "plain.json", diagnose=False) as p:
        loop(5, p.step)
    assert p.path is not None
    document = read(p.path)
    assert "host_name" not in document
    text = p.path.read_text()
    assert str(tmp_path) not in text and f'"{socket.gethostname()}"' not in text


def test_profile_never_overwrites(tmp_path: Path, loop: Any) -> None:
    (tmp_path / "t.json").write_text("mine")
    with profile(tmp_path / "t.json", diagnose=False) as p:
        loop(1)
    assert p.path == tmp_path / "t_2.json"
    assert (tmp_path / "t.json").read_text() == "mine"


def test_rank_of_the_launcher_is_in_the_name(
    tmp_path: Path, loop: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "5")
    with profile(tmp_path) as p:
        loop(5, p.step)
    assert p.path is not None and p.path.name == "trace_rank5.json.gz"
    assert capsys.readouterr().out == ""


def test_a_file_that_cannot_be_written_does_not_break_the_loop(
    tmp_path: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.warns(RecordingWarning) as caught, profile(tmp_path) as p:
        monkeypatch.setattr(os, "replace", refuse)
        loop(8, p.step)
    assert "No space left" in str(caught[0].message)
    assert p.path is None and list(tmp_path.iterdir()) == []


def test_options_are_checked() -> None:
    for options in ({"active": 0}, {"wait": -1}, {"warmup": 1.5}):
        with pytest.raises(OptionError):
            profile(**options)


def test_missing_torch_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    recording = profile(tmp_path)
    assert isinstance(recording, Recording)
    with pytest.raises(MissingDependencyError, match=r"needs PyTorch"), recording:
        pass
    with pytest.raises(ImportError), recording:
        pass


# -- on_trace_ready ----------------------------------------------------------------------------


@pytest.fixture
def profiler(torch: Any) -> Iterator[Any]:
    """`profiler(handler, **schedule)` -> torch.profiler.profile on the CPU."""

    def make(handler: Any, **schedule: int) -> Any:
        return torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(**schedule),
            on_trace_ready=handler,
        )

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(clears events|using warmup)")
        yield make


def test_each_cycle_gets_a_file(tmp_path: Path, loop: Any, profiler: Any) -> None:
    handler = on_trace_ready(tmp_path / "new", worker_name="w", diagnose=False)
    with profiler(handler, wait=1, warmup=1, active=2, repeat=2) as prof:
        loop(10, prof.step)
    assert [path.name for path in handler.paths] == ["w_rank0.json.gz"] * 2
    folders = [path.parent for path in handler.paths]
    assert sorted((tmp_path / "new").iterdir()) == sorted(folders)
    assert [folder.name[-9:] for folder in folders] == ["-cycle001", "-cycle002"]
    steps = [step_names(path) for path in handler.paths]
    assert [len(s) for s in steps] == [2, 2] and steps[0] != steps[1]
    assert all("host_name" not in read(path) for path in handler.paths)


def test_an_empty_last_cycle_leaves_the_files_alone(
    tmp_path: Path, loop: Any, profiler: Any
) -> None:
    handler = on_trace_ready(tmp_path, diagnose=False, use_gzip=False)
    with (
        pytest.warns(RecordingWarning, match="without a single operation"),
        profiler(handler, wait=0, warmup=0, active=2) as prof,
    ):
        loop(4, prof.step)
    assert [path.name for path in handler.paths] == ["trace_rank0.json"] * 2
    assert all(operations(path) > 20 for path in handler.paths)


def test_a_second_run_does_not_overwrite_the_first(
    tmp_path: Path, loop: Any, profiler: Any
) -> None:
    for _ in range(2):
        with profiler(
            on_trace_ready(tmp_path, diagnose=False), wait=0, warmup=1, active=1, repeat=1
        ) as p:
            loop(3, p.step)
    assert len(list(tmp_path.glob("*/*.json.gz"))) == 2


def test_a_profiler_that_was_exported_before_only_warns(
    tmp_path: Path, loop: Any, profiler: Any
) -> None:
    handler = on_trace_ready(tmp_path / "ours", diagnose=False)

    def both(prof: Any) -> None:
        prof.export_chrome_trace(str(tmp_path / "theirs.json"))
        handler(prof)

    with (
        pytest.warns(RecordingWarning, match="already saved"),
        profiler(both, wait=0, warmup=1, active=1, repeat=1) as prof,
    ):
        loop(4, prof.step)
    assert handler.paths == [] and (tmp_path / "theirs.json").exists()


def test_an_analysis_that_fails_does_not_break_the_loop(
    tmp_path: Path, loop: Any, profiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr("torchtraceap.record.trace_handler.analyse", fail)
    done: list[int] = []
    handler = on_trace_ready(tmp_path)
    with (
        pytest.warns(RecordingWarning, match="no such luck"),
        profiler(handler, wait=0, warmup=1, active=1, repeat=1) as prof,
    ):
        loop(4, lambda: (prof.step(), done.append(1)))
    assert len(done) == 4 and len(handler.paths) == 1


# -- with the analysis ---------------------------------------------------------------------------


@needs_analysis
def test_profile_prints_a_diagnosis_that_names_what_is_missing(
    tmp_path: Path, loop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with profile(tmp_path) as p:
        loop(6, p.step)
    printed = capsys.readouterr().out
    assert "computes on the host" in printed and "unknown" in printed and str(p.path) in printed
    assert p.diagnosis.summary.events.gpu == 0
    assert p.diagnosis.verdicts["high_memcpy"] == "unknown"
    assert len(p.diagnosis.summary.steps) == 3
    assert p.trace is p.diagnosis.trace


@needs_analysis
def test_on_trace_ready_prints_a_diagnosis_per_cycle(
    tmp_path: Path, loop: Any, profiler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = on_trace_ready(tmp_path)
    with profiler(handler, wait=0, warmup=1, active=2, repeat=2) as prof:
        loop(8, prof.step)
    printed = capsys.readouterr().out
    assert len(handler.paths) == 2 and all(str(path) in printed for path in handler.paths)
    assert handler.diagnosis is not None
