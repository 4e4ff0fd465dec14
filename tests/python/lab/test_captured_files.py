"""Steps from traces of a GPU and from execution traces; what a file is, told by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap.errors import MissingFileError, OptionError

torch = pytest.importorskip("torch")

from test_captured_profile import launched, recorded, workload  # noqa: E402
from torch.profiler import ExecutionTraceObserver  # noqa: E402

from torchtraceap.lab.prediction.capture import (  # noqa: E402
    CapturedProfile,
    CaptureError,
    capture_execution_trace,
    capture_gpu_trace,
    capture_profile,
    capture_source,
    capture_step,
)
from torchtraceap.lab.prediction.capture.calls import with_dtype  # noqa: E402
from torchtraceap.lab.prediction.lowering import launching_ops  # noqa: E402
from torchtraceap.lab.prediction.result import known_memory, memory_need  # noqa: E402


def observed(path: Path, made: dict[str, Any]) -> Path:
    """An execution trace of the second step of a workload on the CPU."""
    model, optimizer = made["model"], made["optimizer"](made["model"].parameters())
    observer = ExecutionTraceObserver()
    observer.register_callback(str(path))
    for step in range(2):
        if step == 1:
            observer.start()
        optimizer.zero_grad()
        made["loss"](model(*made["inputs"])).backward()
        optimizer.step()
    observer.stop()
    observer.unregister_callback()
    return path


@pytest.mark.parametrize("model", ["layers", "images"])
def test_an_execution_trace_gives_what_the_model_gives(tmp_path: Path, model: str) -> None:
    capture = capture_execution_trace(observed(tmp_path / "et.json", workload(model, "adamw")))
    expected = capture_step(lambda: workload(model, "adamw"))
    assert launched(capture) == launched(expected)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_record_tells_of_memory_what_it_knows(tmp_path: Path, optimizer: str) -> None:
    need = memory_need(capture_step(lambda: workload("layers", optimizer)))
    said = known_memory(
        capture_execution_trace(observed(tmp_path / "et.json", workload("layers", optimizer)))
    )
    assert need is not None
    assert said is not None
    assert f"take {need.parameters:,} bytes" in said
    assert need.gradients == need.parameters
    assert f"state {need.optimizer:,};" in said
    profile = recorded(tmp_path / "p.json", workload("layers", "forward"))
    assert known_memory(capture_profile(ttap.load(profile).ranks[0])) is None


def test_an_execution_trace_without_arguments_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "et.json"
    file.write_text(json.dumps({"schema": "1.0.1", "nodes": [{"id": 1, "name": "aten::mm"}]}))
    with pytest.raises(CaptureError, match="no operator with its arguments"):
        capture_execution_trace(file)


def real(name: str) -> Path:
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"no {path}; set TORCHTRACEAP_CORPUS")
    return path


def test_a_trace_of_a_gpu_gives_what_launched() -> None:
    part = ttap.load(real("tracelens/h100/vit_nsfw_inference.json.gz")).ranks[0]
    found = capture_gpu_trace(part)
    ops = launching_ops(found.capture)
    assert len(ops) == len(found.measured_ns) == len(found.kernels) == 151
    assert [op.name for op in ops] == [call.name for call in found.capture.calls]
    assert sum(found.measured_ns) == int(part.table.dur_ns[part.tree.gpu_rows].sum()) - sum(
        int(part.table.dur_ns[row])
        for row in part.tree.gpu_rows.tolist()
        if part.tree.launch[row] >= len(part.table)
    )
    assert found.device == "NVIDIA H100 80GB HBM3"
    products = [op for op in ops if op.name == "aten::addmm"]
    assert all(len(op.tensors[1].shape) == 2 for op in products)
    assert all(ns > 0 for ns in found.measured_ns)


def test_collectives_of_a_trace_are_told() -> None:
    path = real("tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz")
    found = capture_gpu_trace(ttap.load(path).ranks[0])
    kinds = {call.collective.kind for call in found.capture.calls if call.collective}
    assert kinds == {"allreduce", "broadcast"}


def test_a_trace_without_shapes_is_refused() -> None:
    part = ttap.load(real("hta/nccl_a100_rank_of_2.json.gz")).ranks[0]
    with pytest.raises(CaptureError, match="record_shapes=True"):
        capture_gpu_trace(part)


def test_a_source_is_told_by_its_content(tmp_path: Path) -> None:
    profile = recorded(tmp_path / "a", workload("layers", "forward"))
    execution = observed(tmp_path / "b", workload("layers", "sgd"))
    program = tmp_path / "mine.py"
    program.write_text(
        "import torch\n"
        "def step():\n"
        "    return {'model': torch.nn.Linear(8, 8), 'inputs': (torch.ones(2, 8),)}\n"
    )
    assert capture_source(str(profile))[0] == "cpu_profile"
    assert capture_source(str(execution))[0] == "execution_trace"
    assert capture_source(f"{program}:step")[0] == "workload"
    kind, found = capture_source(str(real("tracelens/h100/vit_nsfw_inference.json.gz")))
    assert kind == "gpu_trace"
    assert isinstance(found, CapturedProfile)


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text("")
    with pytest.raises(OptionError, match="which function"):
        capture_source(str(program))
    with pytest.raises(MissingFileError):
        capture_source(str(tmp_path / "none.json"))
    with pytest.raises(OptionError, match="no such file"):
        capture_source(f"{tmp_path}/none.py:step")


def test_another_type_of_numbers() -> None:
    capture = with_dtype(capture_step(lambda: workload("layers", "adamw")), "bfloat16")
    kinds = {t.dtype.name for op in launching_ops(capture) for t in op.tensors}
    assert kinds == {"bfloat16", "bool", "int64"}
    with pytest.raises(OptionError, match="int8"):
        with_dtype(capture, "int8")
