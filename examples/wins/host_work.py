"""Work that the host does sample by sample while the GPU idles.

TorchBench's paper, section 4.1: in BigBird the GPU idles for half of the time, as the host prepares
what attention looks at. Its masks are gathered in a Python loop over the batch; how much of the
idle time this loop is, is not said, so this network is modelled on it.
"""

from collections.abc import Callable

import torch
from torch import nn

WIDTH, BLOCKS, PICKED, LAYERS, BATCH = 256, 64, 16, 4, 32
Pick = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def picked_one_by_one(blocks: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.stack([blocks[sample][places[sample]] for sample in range(len(blocks))])


def picked_at_once(blocks: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    samples = torch.arange(len(blocks), device=blocks.device)
    return blocks[samples[:, None], places]


class SparseAttention(nn.Module):
    """Every block attends to the same few, picked at random for each sample."""

    def __init__(self, pick: Pick) -> None:
        super().__init__()
        self.pick = pick
        self.queries, self.keys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.rand(x.shape[:2], device=x.device).argsort(-1)[:, :PICKED]
        seen = self.pick(self.keys(x), places)
        scores = torch.softmax(self.queries(x) @ seen.transpose(1, 2) / WIDTH**0.5, -1)
        return x + scores @ seen


def workload(pick: Pick, batch: int) -> dict:
    return {
        "model": nn.Sequential(*[SparseAttention(pick) for _ in range(LAYERS)]),
        "inputs": (torch.randn(batch, BLOCKS, WIDTH),),
        "loss": None,
        "optimizer": None,
    }


def bad(batch: int = BATCH) -> dict:
    return workload(picked_one_by_one, batch)


def good(batch: int = BATCH) -> dict:
    return workload(picked_at_once, batch)
