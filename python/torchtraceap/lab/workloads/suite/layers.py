"""Layers and helpers that several workloads share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Attention", "Block", "Made", "Residual", "Targeted", "adam", "adamw", "classes",
           "conv", "momentum", "perceptron", "pick", "supervised", "trained"]  # fmt: skip

Made = dict[str, Any]
"""Model, inputs, loss and optimizer of a workload."""
_T = TypeVar("_T")


def pick(size: str, tiny: _T, full: _T) -> _T:
    """Return the value for the requested size."""
    return full if size == "full" else tiny


# ------------------------------------------------------------------------- workloads


class Targeted(nn.Module):
    """A module that takes the target as an input, so that it moves with the other inputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Any) -> tuple[Any, Any]:
        return self.net(*inputs[:-1]), inputs[-1]


def supervised(
    net: nn.Module,
    inputs: Tensor | Sequence[Tensor],
    target: Any,
    loss: Callable[[Any, Any], Tensor] = functional.cross_entropy,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> Made:
    """Make the parts of a network that learns a target by `loss(output, target)`."""
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return {
        "model": Targeted(net),
        "inputs": (*given, target),
        "loss": lambda output: loss(*output),
        "optimizer": optimizer or adamw,
    }


def trained(
    net: nn.Module,
    inputs: Sequence[Tensor],
    loss: Callable[[Any], Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> Made:
    """Make the parts of a network whose loss needs only its output."""
    return {
        "model": net, "inputs": tuple(inputs), "loss": loss, "optimizer": optimizer or adamw
    }  # fmt: skip


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def classes(batch: int, many: int, *more: int) -> Tensor:
    """Return random labels below `many`, of shape `[batch, *more]`."""
    return torch.randint(many, (batch, *more))


# ------------------------------------------------------------------------- layers


def conv(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    *,
    inplace: bool = True,
) -> nn.Sequential:
    """Return a convolution that keeps the resolution up to its stride, with batch normalization and
    ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=inplace),
    )


def perceptron(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with activations between them."""
    layers: list[nn.Module] = []
    for place in range(len(widths) - 1):
        layers += [nn.Linear(widths[place], widths[place + 1]), activation()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """A residual connection around a module."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Attention(nn.Module):
    """Multi-head attention to the input itself or to another sequence."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.rest = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, to: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        key, value = self.rest(x if to is None else to).chunk(2, -1)
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query(x), key, value)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, is_causal=self.causal and bias is None
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A pre-norm transformer layer; with `cross` it also attends to another sequence."""

    def __init__(
        self, width: int, heads: int = 4, causal: bool = False, cross: bool = False, times: int = 4
    ) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.cross = Attention(width, heads) if cross else None
        self.between = nn.LayerNorm(width) if cross else None
        self.mlp = perceptron(width, times * width, width, activation=nn.GELU)

    def forward(self, x: Tensor, to: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.first(x), bias=bias)
        if self.cross is not None and self.between is not None:
            x = x + self.cross(self.between(x), to)
        return x + self.mlp(self.second(x))
