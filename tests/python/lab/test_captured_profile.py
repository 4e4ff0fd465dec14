"""A CPU profile of a step gives the operators that the model gives when it is captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule  # noqa: E402

from torchtraceap.lab.prediction.capture import (  # noqa: E402
    Capture,
    CaptureError,
    Phase,
    TensorInfo,
    capture_profile,
    capture_step,
)
from torchtraceap.lab.prediction.lowering import LaunchingOp, launching_ops  # noqa: E402


class Text(nn.Module):
    """Embedding, encoder, decoder, attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.TransformerDecoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        x = self.decoder(x, self.encoder(x))
        heads = x.view(*x.shape[:2], 4, 16).transpose(1, 2)
        found = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.head((x + found.transpose(1, 2).reshape(x.shape)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.first = nn.LSTM(64, 32, 2, batch_first=True, dropout=0.1)
        self.second = nn.GRU(32, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(self.words(ids))[0])[0][:, -1])


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(100, 64, mode="mean")
        self.head = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(ids))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, 2, bias=False),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10))


def ids() -> torch.Tensor:
    return torch.randint(0, 100, (4, 12))


Make = Callable[[], Any]
MODELS: dict[str, tuple[Make, Make]] = {
    "layers": (layers, lambda: torch.randn(8, 64)),
    "images": (images, lambda: torch.randn(4, 3, 16, 16)),
    "text": (Text, ids),
    "recurrent": (Recurrent, ids),
    "bags": (Bags, ids),
}
OPTIMIZERS: dict[str, Make | None] = {
    "forward": None,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1),
}


def loss(output: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long))


def workload(model: str, optimizer: str) -> dict[str, Any]:
    make, inputs = MODELS[model]
    made: dict[str, Any] = {"model": make(), "inputs": (inputs(),)}
    if OPTIMIZERS[optimizer] is not None:
        made |= {"loss": loss, "optimizer": OPTIMIZERS[optimizer]}
    return made


def recorded(path: Path, made: dict[str, Any], *, shapes: bool = True, steps: int = 2) -> Path:
    """Profiles a workload on the CPU."""
    model, trained = made["model"], "loss" in made
    model.train(trained)
    optimizer = made["optimizer"](model.parameters()) if trained else None
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=shapes, schedule=plan
    ) as recording:
        for _ in range(steps + 1):
            with torch.set_grad_enabled(trained):
                output = model(*made["inputs"])
            if optimizer is not None:
                optimizer.zero_grad()
                made["loss"](output).backward()
                optimizer.step()
            recording.step()
    recording.export_chrome_trace(str(path))
    return path


def of_profile(path: Path) -> Capture:
    return capture_profile(ttap.load(path).ranks[0])


def launched(capture: Capture) -> list[tuple[str, Phase, list[Any]]]:
    """Names, phases and shapes of what launches."""
    return [(op.name, op.phase, shapes_of(op)) for op in launching_ops(capture)]


def shapes_of(op: LaunchingOp) -> list[Any]:
    found: list[Any] = []
    for value in op.inputs:
        if isinstance(value, TensorInfo) and value.shape:
            found.append(value.shape)
        elif isinstance(value, tuple) and value and isinstance(value[0], TensorInfo):
            found.append([each.shape for each in value if isinstance(each, TensorInfo)])
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_profile_gives_what_the_model_gives(tmp_path: Path, model: str, optimizer: str) -> None:
    capture = of_profile(recorded(tmp_path / "p.json", workload(model, optimizer)))
    expected = capture_step(lambda: workload(model, optimizer))
    assert launched(capture) == launched(expected)
    assert capture.notes == ()


def test_what_lists_of_tensors_hold_is_not_known(tmp_path: Path) -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, torch.tensor([0, 2])] * 2

    path = recorded(tmp_path / "p.json", {"model": Picks(), "inputs": (torch.randn(4, 8),)})
    capture = of_profile(path)
    assert [name for name, _, _ in launched(capture)] == ["aten::index", "aten::mul"]
    (note,) = capture.notes
    assert "aten::index (1)" in note


def test_a_run_without_steps_is_one_step(tmp_path: Path) -> None:
    model, x = layers().eval(), torch.randn(8, 64)
    with (
        torch.no_grad(),
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording,
    ):
        model(x)
    recording.export_chrome_trace(str(tmp_path / "p.json"))
    capture = of_profile(tmp_path / "p.json")
    assert [name for name, _, _ in launched(capture)] == [
        "aten::addmm",
        "aten::gelu",
        "aten::addmm",
    ]
    assert "no steps" in capture.notes[0]


def test_a_profile_without_shapes_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "p.json", workload("layers", "forward"), shapes=False)
    with pytest.raises(CaptureError, match="record_shapes=True"):
        of_profile(path)


def test_an_optimizer_that_is_not_torchs_stays_as_it_is(tmp_path: Path) -> None:
    class Mine(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad)

    made = workload("layers", "adamw") | {"optimizer": Mine}
    capture = of_profile(recorded(tmp_path / "p.json", made))
    update = [name for name, phase, _ in launched(capture) if phase is Phase.OPTIMIZER]
    assert update == ["aten::sub_"] * 4
