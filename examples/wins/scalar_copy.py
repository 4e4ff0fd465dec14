"""A constant made into a tensor on the GPU in every layer: it is made on the host, and copied.

TorchBench's paper, section 4.1: Reformer took `torch.rsqrt` of the size of its heads as a tensor,
which copies one number and waits for the GPU each time; huggingface/transformers#21496 computes it
in Python.
"""

import math

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 512, 8, 12, 512, 8


class TensorOfTheSize(nn.Module):
    """Keys scaled as Reformer's were."""

    def forward(self, keys: torch.Tensor, size: int) -> torch.Tensor:
        return keys * torch.rsqrt(torch.tensor(size, device=keys.device, dtype=keys.dtype))


class NumberOfPython(nn.Module):
    def forward(self, keys: torch.Tensor, size: int) -> torch.Tensor:
        return keys * (1 / math.sqrt(size))


class Attention(nn.Module):
    def __init__(self, scale: nn.Module) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(WIDTH), scale
        self.project, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        projected = self.project(self.norm(x)).view(batch, length, 2, HEADS, WIDTH // HEADS)
        keys, values = projected.permute(2, 0, 3, 1, 4)
        scaled = self.scale(keys, WIDTH // HEADS)
        seen = scaled_dot_product_attention(keys, scaled, values)
        return x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))


def workload(scale: type[nn.Module], batch: int) -> dict:
    return {
        "model": nn.Sequential(*[Attention(scale()) for _ in range(LAYERS)]),
        "inputs": (torch.randn(batch, LENGTH, WIDTH),),
        "loss": None,
        "optimizer": None,
    }


def bad(batch: int = BATCH) -> dict:
    return workload(TensorOfTheSize, batch)


def good(batch: int = BATCH) -> dict:
    return workload(NumberOfPython, batch)
