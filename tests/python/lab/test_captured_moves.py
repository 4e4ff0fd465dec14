"""What a program moves between host and GPU within a step, in captures and predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap._core import CopyDirection
from torchtraceap.lab.prediction.capture.calls import Capture, Move

torch = pytest.importorskip("torch", reason="a capture runs the model")

from torchtraceap.lab.prediction.capture.dispatch import capture_step  # noqa: E402
from torchtraceap.lab.prediction.lowering.operators import launching_ops  # noqa: E402
from torchtraceap.lab.prediction.result import memory_need  # noqa: E402

UP, DOWN = Move(True), Move(False)
ROWS, WIDTH = 1024, 128


class Does(torch.nn.Module):  # type: ignore[misc]
    """A layer, and what a test puts behind it."""

    def __init__(self, then: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.then = torch.nn.Linear(WIDTH, WIDTH), then

    def forward(self, x: Any) -> Any:
        return self.then(self, self.layer(x))


def workload(then: Callable[[Any, Any], Any], *, trained: bool = False) -> dict[str, Any]:
    return {
        "model": Does(then),
        "inputs": (torch.randn(ROWS, WIDTH),),
        "loss": (lambda out: out.square().mean()) if trained else None,
        "optimizer": torch.optim.SGD if trained else None,
    }


def captured(then: Callable[[Any, Any], Any], *, trained: bool = False) -> Capture:
    return capture_step(lambda: workload(then, trained=trained))


def moves(capture: Capture) -> list[Move]:
    return [call.move for call in capture.calls if call.move is not None]


def there_and_back(_: Any, x: Any) -> Any:
    doubled = x.cpu() * 2
    assert doubled.device.type == "cpu"
    assert x.device.type == "cuda"
    return doubled.to(x.device) + x


def test_what_is_on_the_host_is_computed_there_until_it_is_sent_back() -> None:
    capture = captured(there_and_back)
    assert moves(capture) == [DOWN, UP]
    (doubled,) = (call for call in capture.calls if call.name == "aten::mul")
    assert doubled.on_host
    launched = [op.name for op in launching_ops(capture)]
    assert launched == ["aten::addmm", "aten::copy_", "aten::copy_", "aten::add"]


def test_gradients_take_the_way_back() -> None:
    capture = captured(there_and_back, trained=True)
    assert moves(capture) == [DOWN, UP, DOWN, UP]
    assert {call.node for call in capture.calls if call.move} == {"", "ToCopyBackward"}


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (lambda m, x: x * torch.tensor(2.0, device=x.device), [UP]),
        (lambda m, x: x * torch.tensor(2.0, device="cuda"), [UP]),
        (lambda m, x: x * torch.full((1,), 2.0, device=x.device), []),
        (lambda m, x: x * torch.tensor(2.0), []),
        (lambda m, x: x.to("cuda").cuda().to(x.device, torch.float16), []),
        (lambda m, x: x.to("cpu", torch.float16).to(x.device), [DOWN, UP]),
        (lambda m, x: x.cpu().to(x), [DOWN, UP]),
        (
            lambda m, x: x.cpu().pin_memory().to("cuda", non_blocking=True),
            [DOWN, Move(True, is_pinned=True, non_blocking=True)],
        ),
        (lambda m, x: x.copy_(x.to("cpu")), [DOWN, UP]),
        (lambda m, x: x.view(-1).cpu().view(ROWS, WIDTH).cuda(), [DOWN, UP]),
        (lambda m, x: x * float(x.cpu().mean()), [DOWN]),
    ],
)
def test_moves_are_those_that_the_program_makes(then: Any, expected: list[Move]) -> None:
    assert moves(captured(then)) == expected


def offloads(module: Any, x: Any) -> Any:
    module.layer.to("cpu")
    return module.layer.to(x.device)(x)


def test_a_module_that_is_sent_away_and_back_is_copied_in_every_step() -> None:
    assert moves(captured(offloads)) == [DOWN, DOWN, UP, UP]
    need = memory_need(captured(offloads))
    assert need is not None and need.parameters == need.peak - need.activations


def test_parameters_on_the_host_come_before_they_are_used() -> None:
    def make() -> dict[str, Any]:
        class Borrows(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(WIDTH, WIDTH)

            def forward(self, x: Any) -> Any:
                found = self.layer.to(x.device)(x)
                self.layer.to("cpu")
                return found

        return {**workload(there_and_back), "model": Borrows()}

    assert moves(capture_step(make)) == [UP, UP, DOWN, DOWN]


def test_the_host_waits_for_copies_unless_they_are_pinned_and_left() -> None:
    def sends(_: Any, x: Any, *, pinned: bool) -> Any:
        kept = x.cpu()
        kept = kept.pin_memory() if pinned else kept
        return kept.to(x.device, non_blocking=pinned)

    def waits(pinned: bool) -> list[int]:
        found = ttap.predict(
            lambda: workload(lambda m, x: sends(m, x, pinned=pinned)), device="H100-SXM", steps=1
        )
        part = found.trace.ranks[0]
        names = [part.table.strings[number] for number in part.table.name.tolist()]
        directions = part.tree.copy_direction[part.tree.gpu_rows].tolist()
        return [
            names.count("cudaStreamSynchronize"),
            directions.count(CopyDirection.DEVICE_TO_HOST),
            directions.count(CopyDirection.HOST_TO_DEVICE),
        ]

    assert waits(pinned=False) == [2, 1, 1]
    assert waits(pinned=True) == [1, 1, 1]
