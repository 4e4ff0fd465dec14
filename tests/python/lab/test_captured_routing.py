"""Mixtures of experts: which expert gets how many tokens in a captured step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture import capture_step

torch = pytest.importorskip("torch", reason="a capture runs the model")

from torch import nn  # noqa: E402

from torchtraceap.lab.prediction.capture.values import _choices, routing  # noqa: E402

WIDTH, INNER, EXPERTS, CHOSEN = 96, 160, 8, 2


class Mixture(nn.Module):
    """Experts, each of which runs on the tokens that chose it."""

    def __init__(self, pick: str) -> None:
        super().__init__()
        self.pick = pick
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        weights, chosen = torch.topk(self.router(flat).softmax(-1), CHOSEN, dim=-1)
        found = torch.zeros_like(flat)
        masks = nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)  # as in transformers
        order = chosen.reshape(-1).argsort()  # as in packed implementations
        counts = torch.bincount(chosen.reshape(-1), minlength=EXPERTS).tolist()
        for number, expert in enumerate(self.experts):
            if self.pick == "mask":
                slot, token = torch.where(masks[number])
            elif self.pick == "equal":
                token, slot = (chosen == number).nonzero(as_tuple=True)
            else:
                own = order.split(counts)[number]
                token, slot = own // CHOSEN, own % CHOSEN
            made = expert(flat[token]) * weights[token, slot, None]
            found.index_add_(0, token, made)
        return found


def workload(pick: str = "mask", tokens: int = 512, batch: int = 2) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "model": Mixture(pick),
        "inputs": (torch.zeros(batch, tokens, WIDTH),),  # all tokens alike
        "loss": lambda out: out.square().mean(),
        "optimizer": torch.optim.SGD,
    }


def rows_of(make: Callable[[], Any]) -> list[int]:
    """Return the rows that the first layer of each expert gets in the forward pass."""
    return [
        call.outputs[0].shape[0]
        for call in capture_step(make).calls
        if call.name in ("aten::addmm", "aten::linear") and call.outputs[0].shape[1] == INNER
    ]


@pytest.mark.parametrize("pick", ["mask", "equal", "packed"])
@pytest.mark.parametrize("tokens", [64, 512, 8192])
def test_experts_get_as_many_tokens(pick: str, tokens: int) -> None:
    rows = rows_of(workload(pick, tokens))
    assert rows == [2 * tokens * CHOSEN // EXPERTS] * EXPERTS
    notes = capture_step(workload(pick, tokens)).notes
    assert any("2 of 8 experts: all experts get as many" in note for note in notes)
    assert not any("values decide" in note for note in notes)


def test_a_skew_gives_some_experts_more() -> None:
    with routing(1.0):
        rows = rows_of(workload())
    assert sum(rows) == 2 * 512 * CHOSEN
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == pytest.approx(2 * rows[1], rel=0.01)
    assert rows[1] == pytest.approx(2 * rows[3], rel=0.01)
    assert rows_of(workload())[0] == 256  # no longer


@pytest.mark.parametrize("skew", [0.0, 0.7, 2.0, 8.0])
@pytest.mark.parametrize(("tokens", "experts", "each"), [(7, 5, 2), (64, 64, 8), (100, 3, 2)])
def test_a_token_never_chooses_an_expert_twice(
    tokens: int, experts: int, each: int, skew: float
) -> None:
    found = _choices(tokens, experts, each, skew)
    assert found.shape == (tokens, each)
    assert all(len({*row}) == each for row in found.tolist())
    counts = torch.bincount(found.reshape(-1), minlength=experts)
    assert counts.max() <= tokens
    assert counts.diff().max() <= 1  # but for rounding, none is chosen more than one before it
    if not skew:
        assert counts.max() - counts.min() <= 1


def test_what_is_no_router_is_left_alone() -> None:
    """The longest words of a vocabulary, and the best anchors of a picture."""

    class Picks(nn.Module):
        def forward(self, words: torch.Tensor, anchors: torch.Tensor) -> Any:
            return words.topk(5, -1).indices, anchors.topk(100, dim=1).indices

    def make() -> dict[str, Any]:
        inputs = torch.randn(4, 50_000), torch.randn(2, 20_000, 16)
        return {"model": Picks(), "inputs": inputs}

    assert not any("experts" in note for note in capture_step(make).notes)


def test_a_prediction_takes_a_skew() -> None:
    def rows(**options: Any) -> list[int]:
        found = ttap.predict(workload(), device="H100-SXM", **options)
        return [
            op.shapes[1][0] for op in found.ops for _ in range(op.count)
            if op.name == "aten::addmm" and op.shapes[2][1] == INNER
        ]  # fmt: skip

    assert {*rows()} == {256}
    assert max(rows(routing_skew=1.0)) > 2 * 256
    for skew in (-1.0, float("nan"), 100.0):
        with pytest.raises(OptionError, match="skew of routing"):
            ttap.predict(workload(), device="H100-SXM", routing_skew=skew)
