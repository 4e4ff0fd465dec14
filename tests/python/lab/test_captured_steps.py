"""A step is captured as it goes once the first ones are over, whatever makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchtraceap.errors import OptionError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchtraceap.lab.prediction.capture import Capture, Phase, capture_step  # noqa: E402
from torchtraceap.lab.prediction.lowering import launching_ops  # noqa: E402
from torchtraceap.lab.prediction.result import memory_need  # noqa: E402


def trained(
    model: Callable[[], nn.Module], optimizer: Any, loss: Any = lambda out: out.square().mean()
) -> Capture:
    def make() -> dict[str, Any]:
        inputs = (torch.randn(64, 256),)
        return {"model": model(), "inputs": inputs, "loss": loss, "optimizer": optimizer}

    return capture_step(make)


def names(capture: Capture, phase: Phase) -> list[str]:
    ops = [op for op in launching_ops(capture) if op.phase is phase]
    return [op.name.removeprefix("aten::") for op in ops]


class CountsForwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.layer(x)


class KeepsPositions(CountsForwards):
    def __init__(self) -> None:
        super().__init__()
        self.positions: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.positions is None:
            self.positions = torch.ones(256, 1) @ torch.ones(1, 256)
        return super().forward(x) + self.positions[: len(x)]


def test_a_model_is_run_once() -> None:
    model = CountsForwards()
    capture = trained(lambda: model, torch.optim.AdamW)
    assert model.count == 1
    updates = names(capture, Phase.OPTIMIZER)
    assert "_foreach_lerp_" in updates
    assert "fill_" not in updates  # which makes the state of the first step


def test_a_model_that_keeps_something_of_its_first_pass_is_run_again() -> None:
    model = KeepsPositions()
    capture = trained(lambda: model, None)
    assert model.count == 2
    assert names(capture, Phase.FORWARD) == ["addmm", "add", "pow", "mean"]


def test_state_of_the_optimizer_is_there_before_the_step() -> None:
    need = memory_need(trained(lambda: nn.Linear(256, 256), torch.optim.AdamW))
    assert need is not None
    assert need.optimizer == 2 * need.parameters
    assert need.peak >= 4 * need.parameters


def test_several_optimizers_and_schedules_make_one_step() -> None:
    def several(parameters: Any) -> list[Any]:
        weight, bias = parameters
        adam = torch.optim.AdamW([weight])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 10)
        return [adam, torch.optim.SGD([bias], 0.1), schedule]

    capture = trained(lambda: nn.Linear(256, 256), several)
    updates = names(capture, Phase.OPTIMIZER)
    assert updates.count("_foreach_lerp_") == 1
    assert updates[-1] == "_foreach_add_"


class Update:
    """What a training loop does between the backward pass and the next step."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)
        self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.SGD(self.parameters, 0.1, momentum=0.9)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(self.averages, self.parameters, strict=True):
                average.lerp_(parameter, 0.01)


def test_what_a_loop_does_around_the_optimizer_may_be_its_step() -> None:
    updates = names(trained(lambda: nn.Linear(256, 256), Update), Phase.OPTIMIZER)
    assert "_foreach_norm" in updates
    assert updates[-2:] == ["lerp_", "lerp_"]


@pytest.mark.parametrize(
    ("loss", "optimizer", "message"),
    [
        (lambda out: out.square().mean(), lambda _: 3, "something with step"),
        (lambda out: out.square(), None, r"\(64, 256\) numbers, not one"),
        (lambda _: 1.0, None, "a float, not a tensor"),
        (lambda out: out.detach().mean(), None, "does not depend on a parameter"),
    ],
)
def test_what_makes_no_step_is_refused(loss: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        trained(lambda: nn.Linear(256, 256), optimizer, loss)
