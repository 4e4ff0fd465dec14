"""A recorded step as one of another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap.core.dtypes import FP32
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    Collective,
    Gradient,
    Phase,
    TensorInfo,
)
from torchtraceap.lab.prediction.parallel.recorded import change_ranks, ddp_buckets
from torchtraceap.lab.prediction.parallel.strategy import parse_strategy

torch = pytest.importorskip("torch")

from test_captured_profile import launched, loss, recorded  # noqa: E402
from torch import nn  # noqa: E402

from torchtraceap.lab.prediction.capture import capture_gpu_trace, capture_profile  # noqa: E402
from torchtraceap.lab.prediction.parallel import capture_ranks  # noqa: E402

RESNET = "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz"
SHARDED = "modded_nanogpt/overlap_before.json.gz"


def wide() -> dict[str, Any]:
    layers = [nn.Linear(1024, 1024) for _ in range(9)]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    return {
        "model": model,
        "inputs": (torch.randn(8, 1024),),
        "loss": loss,
        "optimizer": torch.optim.AdamW,
    }


def exchanged(capture: Capture) -> list[tuple[Any, ...]]:
    """Collectives in their order."""
    started = [call.collective for call in capture.calls if call.collective is not None]
    return [(met.kind, met.group, met.elements_in, met.dtype.name) for met in started]


def real(name: str) -> str:
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"no {path}; set TORCHTRACEAP_CORPUS")
    return str(path)


def test_a_profile_of_one_process_gets_torchs_buckets(tmp_path: Path) -> None:
    part = ttap.load(recorded(tmp_path / "p.json", wide())).ranks[0]
    plan = parse_strategy("ddp", 4)
    found, _ = change_ranks(capture_profile(part), plan, part.path)
    (expected,) = capture_ranks(wide, plan).captures
    assert exchanged(found) == exchanged(expected)

    assert launched(found) == launched(expected)
    waits = [call for call in found.calls if call.waits_for is not None]
    assert [call.name for call in waits] == ["aten::copy_"] * len(exchanged(found))


def test_ranks_of_a_profile_take_time(tmp_path: Path) -> None:
    path = recorded(tmp_path / "p.json", wide())
    alone, shared = (ttap.predict(path, device="H100-SXM", world_size=n) for n in (1, 8))
    assert (alone.gpu.communication_ns, alone.world_size) == (0, 1)
    assert shared.gpu.communication_ns > 0
    assert shared.world_size == 8
    assert shared.sequence.count("record_param_comms") == 3


def gradient(calls: int, elements: int) -> Gradient:
    return Gradient(calls, TensorInfo((elements,), FP32, (1,), 0))


def test_buckets_are_full_at_1_and_25_mib() -> None:
    mib = 1 << 18
    found = ddp_buckets([gradient(k, mib) for k in range(30)])
    assert [len(bucket) for bucket in found] == [1, 25, 4]
    found = ddp_buckets([gradient(0, mib // 2), gradient(1, 30 * mib), gradient(2, 30 * mib)])
    assert [len(bucket) for bucket in found] == [2, 1]


def test_more_ranks_change_collectives_alone() -> None:
    path = real(RESNET)
    here, more = (ttap.predict(path, device="MI300X", world_size=n) for n in (8, 16))
    assert (here.world_size, more.world_size) == (8, 16)
    assert here.sequence == more.sequence
    assert here.gpu.compute_ns == pytest.approx(more.gpu.compute_ns, rel=1e-3)
    assert more.gpu.communication_ns > here.gpu.communication_ns
    of_here, of_more = (
        {(op.name, op.shapes): op.gpu_ns for op in found.ops if op.name != "record_param_comms"}
        for found in (here, more)
    )
    assert of_here == of_more
    sizes = [
        sorted(call.collective.elements_in for call in capture.calls if call.collective)
        for capture in (
            capture_gpu_trace(ttap.load(path).ranks[0]).capture,
            change_ranks(
                capture_gpu_trace(ttap.load(path).ranks[0]).capture, parse_strategy("ddp", 16), path
            )[0],
        )
    ]
    assert sizes[0] == sizes[1]


def test_more_ranks_have_smaller_shards() -> None:
    path = real(SHARDED)
    before = capture_gpu_trace(ttap.load(path).ranks[0]).capture
    after, _ = change_ranks(before, parse_strategy("ddp", 16), path)
    pairs = [
        (a.collective, b.collective)
        for a, b in zip(before.calls, after.calls, strict=True)
        if a.collective and b.collective
    ]
    assert pairs
    for old, new in pairs:
        part, whole = sorted((new.elements_in, new.elements_out))
        assert len(new.group) == 16
        assert whole == 16 * part
        assert whole - max(old.elements_in, old.elements_out) in range(16)


def step(*calls: Call, gradients: tuple[Gradient, ...] = ()) -> Capture:
    return Capture(calls, gradients=gradients)


def meeting(kind: str, phase: Phase, group: tuple[int, ...] = (0, 1), **more: Any) -> Call:
    met = Collective(kind, group, "default_pg", 8, 8, FP32, 0, **more)
    return Call("record_param_comms", "default", {}, (), phase, (), collective=met)


REFUSED: dict[str, tuple[Capture, str, str]] = {
    "tensor parallel": (step(), "tp", "cuts the model itself"),
    "pipeline": (step(), "pp=2,dp=2", "cuts the model itself"),
    "fsdp of one process": (step(gradients=(gradient(0, 8),)), "fsdp2", "which blocks"),
    "no gradients": (step(), "ddp", "accumulates no gradients"),
    "no groups": (
        step(Call("record_param_comms", "default", {}, (), Phase.BACKWARD, ())),
        "ddp",
        "between which ranks",
    ),
    "layers are split": (step(meeting("allreduce", Phase.FORWARD)), "ddp", "split among ranks"),
    "tables": (step(meeting("all_to_allv", Phase.FORWARD)), "ddp", "dealt out anew"),
    "stages": (step(meeting("send", Phase.FORWARD, peer=1)), "ddp", "stages of a pipeline"),
    "subgroups": (
        step(meeting("allreduce", Phase.BACKWARD), meeting("allreduce", Phase.BACKWARD, (2, 3))),
        "ddp",
        "2 of 4 ranks",
    ),
    "copies as shards": (step(meeting("allreduce", Phase.BACKWARD)), "fsdp2", "step of copies"),
}


@pytest.mark.parametrize(("capture", "strategy", "said"), REFUSED.values(), ids=REFUSED)
def test_what_a_record_does_not_tell_is_refused(capture: Capture, strategy: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        change_ranks(capture, parse_strategy(strategy, 4), "trace.json")
