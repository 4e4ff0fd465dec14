"""Gradients set to zero one by one: a tiny kernel for each parameter, in every step.

TorchBench's paper, section 4.1: `zero_grad` called `grad.zero_()` in a loop; pytorch/pytorch#82777
gave all gradients to one kernel, and since 2.0 they are dropped by default (#92731). A loop that
says `set_to_none=False` still has it.
"""

import torch
from torch import nn

WIDTH, DEPTH, BATCH = 512, 32, 4096


class ZeroesGradients(torch.optim.SGD):
    """Fills the gradients with zeros behind each update."""

    def step(self, closure=None):
        found = super().step(closure)
        self.zero_grad(set_to_none=False)
        return found


class DropsGradients(torch.optim.SGD):
    """Lets go of them, so that the backward pass writes instead of adding."""

    def step(self, closure=None):
        found = super().step(closure)
        self.zero_grad(set_to_none=True)
        return found


def network() -> nn.Module:
    """Many small parameters: four for each block."""
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(DEPTH)
    ]
    return nn.Sequential(*blocks)


def workload(optimizer: type[torch.optim.Optimizer]) -> dict:
    return {
        "model": network(),
        "inputs": (torch.randn(BATCH, WIDTH),),
        "loss": lambda out: out.square().mean(),
        "optimizer": lambda parameters: optimizer(parameters, lr=1e-3),
    }


def bad() -> dict:
    return workload(ZeroesGradients)


def good() -> dict:
    return workload(DropsGradients)
