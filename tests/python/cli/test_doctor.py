"""`doctor` says what is there, and its bundle holds no name of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchtraceap.cli import doctor, main

TORCH = pytest.importorskip("torch", reason="torch is not installed")


def test_it_says_versions_scorers_and_what_a_recording_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == doctor.SCHEMA
    assert document["packages"]["torch"] == TORCH.__version__
    assert document["scorers"]["evidence"] == document["scorers"]["fused"] == "loads"
    recorded = document["recording"]
    assert recorded["operators"] > 0
    assert (recorded["kernels"] > 0) == TORCH.cuda.is_available()
    assert bool(recorded["hints"]) or recorded["gpu"]


def test_a_torch_that_does_not_record_is_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "- PyTorch does not record:" in said
    assert "scorer evidence    loads" in said


def test_the_bundle_holds_no_name_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    secret = tmp_path / "secret_project"
    secret.mkdir()
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": 9,
         "args": {"device": 0, "stream": 7}}
        for at, name in ((0, "secret_kernel_of_mine"), (10, "Memset (Device)"))
    ]  # fmt: skip
    path = secret / "secret_trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    bundle = tmp_path / "bug.json"
    assert main(["doctor", "--bundle", str(bundle), "--trace", str(path)]) == 0
    text = bundle.read_text()
    assert "secret" not in text
    document = json.loads(text)
    assert document["trace"]["events"] == 2
    assert [name for name, *_ in document["trace"]["kernels"]] == ["name_1", "Memset (Device)"]


def test_a_trace_without_a_bundle_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--trace", "x.json"]) == 2
    assert "--trace goes with --bundle FILE" in capsys.readouterr().err
