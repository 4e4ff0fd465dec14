"""Every operator of a training step has a time within the limits of the hardware."""

from __future__ import annotations

from typing import Any

import pytest

from torchtraceap.ops.devices import load_devices

torch = pytest.importorskip("torch", exc_type=ImportError)

from torchtraceap.lab.prediction.capture import capture_step  # noqa: E402
from torchtraceap.lab.prediction.capture.calls import Capture  # noqa: E402
from torchtraceap.lab.prediction.lowering import launching_ops, op_times  # noqa: E402
from torchtraceap.lab.prediction.lowering.step import libraries_of  # noqa: E402

_GPUS = ("h100_sxm", "a100_sxm_80gb", "mi300x", "rtx_4090")


def workload() -> dict[str, Any]:
    """Vision, text and recommendation in one small model."""
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.GroupNorm(8, 64), nn.SiLU(),
                nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(2),
                nn.ConvTranspose2d(64, 64, 2, 2), nn.Upsample(scale_factor=2),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            )  # fmt: skip
            self.words, self.bag = nn.Embedding(50_000, 256), nn.EmbeddingBag(10_000, 64)
            self.norm, self.drop = nn.LayerNorm(256), nn.Dropout(0.1)
            self.head = nn.Linear(384, 1000)

        def forward(self, images: Any, ids: Any) -> Any:
            words = self.drop(self.norm(self.words(ids))).cumsum(1).max(1).values
            picked = words.gather(1, ids[:, :1].clamp(max=255))
            return self.head(torch.cat([self.stem(images), words + picked, self.bag(ids)], 1))

    targets = torch.randint(0, 1000, (32,))
    return {
        "model": Model(),
        "inputs": (torch.randn(32, 3, 224, 224), torch.randint(0, 9000, (32, 128))),
        "loss": lambda out: torch.nn.functional.cross_entropy(out, targets),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters),
    }


@pytest.fixture(scope="module")
def step() -> Capture:
    return capture_step(workload)


@pytest.mark.parametrize("name", _GPUS)
def test_operators_keep_to_the_limits_of_the_hardware(name: str, step: Capture) -> None:
    device = load_devices()[name]
    ops = launching_ops(step, libraries_of(device))
    names = {op.name.removeprefix("aten::") for op in ops}
    assert {"embedding_dense_backward", "_foreach_addcdiv_", "nll_loss_forward"} <= names
    unknown = set()
    for op, time in zip(ops, op_times(ops, device), strict=True):
        found = time.estimate
        if not time.is_known:
            unknown.add(op.name)
        assert found.low_ns * 6.1 > 1_000 and found.low_ns < found.ns < found.high_ns, op.name
        assert found.high_ns <= 100 * found.low_ns, op.name
        # What must be read at least: all but tables, of which only rows are.
        moved = sum(tensor.elements * tensor.dtype.size for tensor in op.tensors
                    if tensor.shape[:1] not in ((50_000,), (10_000,)))  # fmt: skip
        moving = 1e9 * moved / device.bandwidth
        if moved > 2 * device.l2_bytes:
            assert found.ns > 0.9 * moving, op.name
        assert found.ns < 60_000 + 60 * moving, op.name
    assert len(unknown) <= 1, unknown  # a range of numbers without any tensor
