"""Predictions: a step on a GPU where it never ran, its trace, and what both have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import CaptureError

torch = pytest.importorskip("torch", reason="a prediction runs the model")

from torch import nn  # noqa: E402

GPU = "H100-SXM"


def mlp(width: int = 1024, layers: int = 2) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


def training(width: int = 1024, layers: int = 2, batch: int = 64) -> dict[str, Any]:
    return {
        "model": mlp(width, layers),
        "inputs": (torch.randn(batch, width),),
        "loss": lambda out: out.square().mean(),
        "optimizer": torch.optim.AdamW,
    }


def predicted(**options: Any) -> ttap.Prediction:
    return ttap.predict(training, device=GPU, **options)


@pytest.fixture(scope="module")
def trained() -> ttap.Prediction:
    return predicted()


def test_a_prediction_has_the_document_that_it_promises(trained: ttap.Prediction) -> None:
    document = json.loads(trained.to_json())
    assert document["schema"] == "torchtraceap.prediction/1"
    assert list(document)[1:] == [
        "source", "device", "dtype", "world_size", "strategy", "calibrated_by", "versions", "step",
        "unprofiled", "gpu", "communication", "host_ns", "bound_by", "memory_bytes", "memory_fit",
        "ops", "sequence", "unknown", "notes",
    ]  # fmt: skip
    step, gpu = document["step"], document["gpu"]
    assert 0 < step["low_ns"] <= step["predicted_ns"] <= step["high_ns"]
    assert gpu["busy_ns"] + gpu["idle_ns"] == step["predicted_ns"]
    assert document["versions"]["torch"] == torch.__version__
    assert sum(op["count"] for op in document["ops"]) == len(document["sequence"])
    times = [op["gpu_ns"] for op in document["ops"]]
    assert times == sorted(times, reverse=True)
    assert {op["method"] for op in document["ops"]} <= {"table", "model", "calibrated", "assumed"}


def test_the_sequence_is_that_of_the_host(trained: ttap.Prediction) -> None:
    assert trained.sequence[:4] == ("aten::addmm", "aten::relu", "aten::addmm", "aten::relu")
    assert trained.sequence[-1] == "aten::_foreach_addcdiv_"


def test_the_trace_says_the_same_step(trained: ttap.Prediction, tmp_path: Path) -> None:
    (path,) = trained.write_trace(tmp_path / "predicted.json.gz")
    loaded = ttap.load(path)
    summary = loaded.summary()
    assert summary.step is not None
    assert summary.step.measured_ns == trained.step.predicted_ns
    assert summary.step.steps == 3
    assert not summary.diagnostics
    assert summary.events.gpu == summary.events.gpu_linked
    assert summary.events.gpu == 3 * sum(op.kernels for op in trained.ops)
    assert summary.devices[0].name == "NVIDIA H100 80GB HBM3"
    assert loaded.diagnose().to_dict()["findings"] == trained.diagnose().to_dict()["findings"]


def test_work_runs_after_its_launch_and_in_order(trained: ttap.Prediction) -> None:
    part = trained.trace.ranks[0]
    starts, ends = part.table.ts_ns, part.table.ts_ns + part.table.dur_ns
    gpu = np.flatnonzero(part.tree.launch != _core.NO_ROW)
    assert len(gpu) == 3 * sum(op.kernels for op in trained.ops)
    assert (starts[gpu] > ends[part.tree.launch[gpu]]).all()
    order = gpu[np.argsort(starts[gpu])]
    assert (starts[order][1:] >= ends[order][:-1]).all()


def test_the_backward_pass_runs_on_a_thread_of_its_own(trained: ttap.Prediction) -> None:
    table = trained.trace.ranks[0].table
    rows = np.flatnonzero(table.kind != _core.EventKind.GPU_USER_ANNOTATION).tolist()
    threads = {
        prefix: {int(table.track[row]) for row in rows if table.name_of(row).startswith(prefix)}
        for prefix in ("autograd::engine::evaluate_function", "aten::addmm", "Optimizer.step")
    }
    backward, forward, optimizer = threads.values()
    assert len(backward) == len(forward) == 1
    assert forward == optimizer != backward


def test_memory_is_parameters_gradients_state_and_what_lives_at_once() -> None:
    need = predicted().memory_bytes
    assert need is not None
    parameters = 4 * 2 * (1024 * 1024 + 1024)
    assert need.parameters == parameters
    assert need.gradients == parameters
    assert need.optimizer == 2 * parameters
    assert need.peak >= 4 * parameters
    inputs = 4 * 64 * 1024
    assert need.activations >= 3 * inputs  # the input, two hidden layers kept for the way back


def test_a_larger_batch_takes_longer_on_the_gpu() -> None:
    small, large = predicted(batch=64), predicted(batch=65_536)
    assert large.gpu.busy_ns > 20 * small.gpu.busy_ns
    assert large.bound_by == "gpu"
    assert small.bound_by == "host"
    assert large.step.predicted_ns == pytest.approx(large.gpu.busy_ns, rel=0.05)
    assert small.step.predicted_ns == pytest.approx(small.host_ns, rel=0.05)
    assert large.ops[0].shapes != small.ops[0].shapes


def test_the_same_question_has_the_same_answer(trained: ttap.Prediction) -> None:
    again = predicted()
    assert again == trained
    table, other = (each.trace.ranks[0].table for each in (again, trained))
    assert (table.ts_ns == other.ts_ns).all()


def test_a_type_changes_the_model() -> None:
    half = predicted(dtype="bf16", batch=8192)
    assert half.dtype == "bf16"
    whole = predicted(batch=8192)
    assert half.gpu.busy_ns < whole.gpu.busy_ns
    assert half.memory_bytes is not None
    assert whole.memory_bytes is not None
    assert half.memory_bytes.parameters == whole.memory_bytes.parameters // 2


def test_a_model_with_inputs_is_a_source_as_well() -> None:
    found = ttap.predict(mlp(), (torch.randn(8, 1024),), device="A100_SXM_80GB")
    assert found.sequence == ("aten::addmm", "aten::relu") * 2
    assert found.device == "A100 SXM4 80 GB"


def test_a_trace_is_a_source_as_well(trained: ttap.Prediction, tmp_path: Path) -> None:
    (path,) = trained.write_trace(tmp_path / "recorded.json.gz")
    same = ttap.predict(path, device=GPU)
    assert same.source == "gpu_trace"
    assert same.sequence == trained.sequence
    assert same.gpu.busy_ns == pytest.approx(trained.gpu.busy_ns, rel=0.02)
    assert {op.method for op in same.ops} == {"calibrated"}
    other = ttap.predict(path, device="A100_SXM_80GB")
    assert other.gpu.busy_ns > same.gpu.busy_ns
    with pytest.raises(OptionError, match="tp cuts the model itself"):
        ttap.predict(path, device=GPU, world_size=8, strategy="tp")


def test_a_profile_of_a_cpu_is_a_source_as_well(tmp_path: Path) -> None:
    made = training()
    model, inputs = made["model"], made["inputs"]
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(3):
            with torch.profiler.record_function("ProfilerStep#0"), torch.inference_mode():
                model(*inputs)
    path = str(tmp_path / "cpu.json")
    profile.export_chrome_trace(path)
    found = ttap.predict(path, device=GPU)
    assert found.source == "cpu_profile"
    assert found.sequence == ttap.predict(model, inputs, device=GPU).sequence
    larger = ttap.predict(path, device=GPU, batch=4096)
    expected = ttap.predict(model, inputs, device=GPU, batch=4096)
    assert larger.gpu == expected.gpu
    assert [(op.name, op.shapes) for op in larger.ops] == [
        (op.name, op.shapes) for op in expected.ops
    ]


def test_a_probe_narrows_what_is_not_known_of_the_host() -> None:
    from torchtraceap.lab.prediction.lowering.recorded_host import probe

    blind, probed = predicted(batch=8), predicted(batch=8, probed=probe())
    assert blind.bound_by == "host"

    def width(found: ttap.Prediction) -> float:
        return found.step.high_ns / found.step.low_ns

    assert width(probed) < width(blind)
    assert any("probed" in note for note in probed.notes)
    assert probed.sequence == blind.sequence


def test_ranks_share_gradients() -> None:
    alone, shared = predicted(), predicted(world_size=8, strategy="ddp")
    assert shared.gpu.communication_ns > 0
    assert alone.gpu.communication_ns == 0
    assert "record_param_comms" in shared.sequence
    (rank,) = shared.trace.ranks
    assert (rank.rank, rank.world_size) == (0, 8)
    collectives = shared.trace.collectives().to_dict()
    assert "allreduce" in json.dumps(collectives) or "all_reduce" in json.dumps(collectives)


def test_what_no_model_knows_is_named() -> None:
    def special() -> dict[str, Any]:
        class Special(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.special.bessel_j0(x)

        return {"model": Special(), "inputs": (torch.randn(512, 512),)}

    found = ttap.predict(special, device=GPU)
    for op in found.unknown:
        assert op.assumed_ns > 0
        assert op.name in found.sequence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "H9000"}, "no device of that name"),
        ({"device": GPU, "steps": 0}, "at least one step"),
        ({"device": GPU, "dtype": "int8"}, "one of fp16"),
        ({"device": GPU, "batch": 0}, "makes no sense"),
        ({"device": GPU, "inputs": ()}, "a workload has its own"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ttap.predict(training, **options)


def test_what_a_program_raises_is_told() -> None:
    def broken() -> dict[str, Any]:
        return {"model": nn.Linear(8, 8), "inputs": (torch.randn(2, 4),)}

    with pytest.raises(CaptureError, match="RuntimeError"):
        ttap.predict(broken, device=GPU)
    with pytest.raises(OptionError, match="needs inputs"):
        ttap.predict(mlp(), device=GPU)
    with pytest.raises(OptionError, match="not int"):
        ttap.predict(7, device=GPU)


def _collectives(found: ttap.Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of the kernels of NCCL in the first step."""
    table = found.trace.ranks[0].table
    rows = [r for r in range(len(table.name)) if table.name_of(r).startswith("ncclDevKernel")]
    first = rows[: len(rows) // 3]
    return table.ts_ns[first], table.ts_ns[first] + table.dur_ns[first]


def test_gradients_are_sent_while_others_are_computed() -> None:
    made = ttap.predict(
        lambda: training(2048, 12, 16_384), device=GPU, world_size=8, strategy="ddp"
    )
    gpu = made.gpu
    assert gpu.communication_ns > 0
    assert gpu.exposed_communication_ns < 0.5 * gpu.communication_ns
    begin, end = _collectives(made)
    assert (begin[1:] >= end[:-1]).all()  # one stream


def test_layers_of_a_tensor_parallel_model_wait_for_each_other() -> None:
    made = ttap.predict(lambda: training(2048, 4, 16_384), device=GPU, world_size=4, strategy="tp")
    gpu = made.gpu
    assert gpu.communication_ns > 0
    assert gpu.exposed_communication_ns == gpu.communication_ns


@pytest.fixture(scope="module")
def shared() -> dict[str, ttap.Prediction]:
    """Steps of 8 ranks by what decides them."""
    small = {"width": 256, "layers": 24, "batch": 8}
    large = {"width": 2048, "layers": 12, "batch": 16_384}
    return {
        name: ttap.predict(
            lambda sizes=sizes: training(**sizes), device=GPU, world_size=8, strategy="ddp"
        )
        for name, sizes in {"host": small, "gpu": large}.items()
    }


def test_communication_is_transfers_and_waits(shared: dict[str, ttap.Prediction]) -> None:
    for name, found in shared.items():
        gpu, parts = found.gpu, found.communication
        assert parts.transfer_ns + parts.wait_ns == gpu.communication_ns
        assert parts.exposed_transfer_ns + parts.exposed_wait_ns == gpu.exposed_communication_ns
        assert 0 <= parts.exposed_transfer_ns <= parts.transfer_ns
        assert 0 <= parts.exposed_wait_ns <= parts.wait_ns
        (sent,) = {sum(op.gpu_ns for op in found.ops if op.name == "record_param_comms")}
        assert parts.transfer_ns == pytest.approx(sent, rel=0.02)
        assert found.bound_by == name
        assert json.loads(found.to_json())["communication"] == parts.to_dict()


def test_what_a_host_holds_back_is_no_communication(shared: dict[str, ttap.Prediction]) -> None:
    found = shared["host"]
    parts = found.communication
    assert parts.wait_ns > 3 * parts.transfer_ns
    assert parts.wait_ns > found.gpu.compute_ns  # the longest part of its GPU time
    types = {each.type for each in found.diagnose().findings}
    assert "cpu_bound" in types
    assert not types & {"nccl_compute_not_overlapped", "nccl_blocks_main_stream"}
    # a usual rank's kernels wait for the slowest, whose own do not
    usual, slowest = (each.timeline() for each in (found.trace, found.trace_of_slowest()))
    assert slowest.communication_ns == pytest.approx(3 * parts.transfer_ns, rel=0.02)
    assert usual.communication_ns == pytest.approx(3 * found.gpu.communication_ns, rel=0.02)


def test_one_rank_waits_for_nobody(trained: ttap.Prediction) -> None:
    assert not any(trained.communication.to_dict().values())
    slowest, usual = (each.ranks[0].table for each in (trained.trace_of_slowest(), trained.trace))
    assert (slowest.ts_ns == usual.ts_ns).all()


def test_stages_that_wait_for_each_other_are_not_bound_by_their_hosts() -> None:
    """Of four stages and four micro-batches each stage waits for three sevenths of a step."""
    found = ttap.predict(
        lambda: training(4096, 8, 65_536), device=GPU, world_size=4,
        strategy="pp=4,microbatches=4",
    )  # fmt: skip
    assert found.communication.exposed_wait_ns > 0.25 * found.step.predicted_ns
    assert found.communication.exposed_wait_ns > 10 * found.communication.transfer_ns
    assert found.bound_by == "gpu"


def products(width: int = 4096) -> dict[str, Any]:
    return {"model": torch.nn.Linear(width, width), "inputs": (torch.randn(width, width),)}


def test_products_are_computed_in_the_type_that_the_program_allows() -> None:
    """An H100 does 494 Tflop/s in tf32 and 67 in fp32."""
    exact = ttap.predict(products, device=GPU).gpu.busy_ns
    allowed = ttap.predict(products, device=GPU, dtype="tf32")
    assert allowed.dtype == "tf32"
    assert 4 < exact / allowed.gpu.busy_ns < 8.5

    def switched() -> dict[str, Any]:
        torch.set_float32_matmul_precision("high")
        return products()

    before = torch.get_float32_matmul_precision()
    try:
        assert ttap.predict(switched, device=GPU).gpu.busy_ns == allowed.gpu.busy_ns
        # A GPU without such units computes in fp32 whatever the program allows.
        assert ttap.predict(switched, device="T4").gpu.busy_ns == (
            ttap.predict(products, device="T4").gpu.busy_ns
        )
    finally:
        torch.set_float32_matmul_precision(before)
    with pytest.raises(OptionError, match="no units for tf32"):
        ttap.predict(products, device="T4", dtype="tf32")


def test_convolutions_use_tf32_unless_the_program_forbids_it() -> None:
    def convolution() -> dict[str, Any]:
        return {
            "model": torch.nn.Conv2d(256, 256, 3, padding=1),
            "inputs": (torch.randn(64, 256, 56, 56),),
            "loss": lambda out: out.square().mean(),
            "optimizer": torch.optim.SGD,
        }

    fast = ttap.predict(convolution, device=GPU).gpu.busy_ns
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert ttap.predict(convolution, device=GPU).gpu.busy_ns > 1.5 * fast
    finally:
        torch.backends.cudnn.allow_tf32 = True
