"""Gradients set to zero one by one: a tiny kernel for each parameter, in every step.

TorchBench's paper, section 4.1: `zero_grad` called `grad.zero_()` in a loop; pytorch/pytorch#82777
gave all gradients to one kernel, and since 2.0 they are dropped by default (#92731). A loop that
says `set_to_none=False` still has it.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

WIDTH, DEPTH, BATCH = 512, 32, 4096


class SgdThenZero:
    """An update, and gradients reset behind it."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, set_to_none: bool) -> None:
        self.inner, self.set_to_none = torch.optim.SGD(parameters, lr=1e-3), set_to_none

    def step(self) -> None:
        self.inner.step()
        self.inner.zero_grad(set_to_none=self.set_to_none)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Done already."""


def network() -> nn.Module:
    """Many small parameters: four for each block."""
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(DEPTH)
    ]
    return nn.Sequential(*blocks)


def workload(batch: int, *, set_to_none: bool) -> dict:
    return {
        "model": network(),
        "inputs": (torch.randn(batch, WIDTH),),
        "loss": lambda out: out.square().mean(),
        "optimizer": partial(SgdThenZero, set_to_none=set_to_none),
    }


def bad(batch: int = BATCH) -> dict:
    return workload(batch, set_to_none=False)


def good(batch: int = BATCH) -> dict:
    return workload(batch, set_to_none=True)
