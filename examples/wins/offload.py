"""Parts of a network brought to the GPU for each use and sent back, though all of it fits there.

TorchBench's paper, section 4.1: a diffusion model (pig2) kept most of itself on the host to save
memory and spent half of its time on copies. Only its name is public, so this network is modelled
on what is said of it.
"""

import torch
from torch import nn

WIDTH, DEPTH, BATCH, DENOISING = 1024, 4, 1024, 2


class Denoiser(nn.Module):
    """A few steps of denoising by blocks."""

    def __init__(self, *, offloads: bool) -> None:
        super().__init__()
        self.offloads = offloads
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(DEPTH)
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        for _ in range(DENOISING):
            for block in self.blocks:
                noise = noise - 0.1 * self.run(block, noise)
        return noise

    def run(self, block: nn.Module, noise: torch.Tensor) -> torch.Tensor:
        if not self.offloads:
            return block(noise)
        found = block.to(noise.device)(noise)
        block.to("cpu")
        return found


def workload(batch: int, *, offloads: bool) -> dict:
    return {
        "model": Denoiser(offloads=offloads),
        "inputs": (torch.randn(batch, WIDTH),),
        "loss": None,
        "optimizer": None,
    }


def bad(batch: int = BATCH) -> dict:
    return workload(batch, offloads=True)


def good(batch: int = BATCH) -> dict:
    return workload(batch, offloads=False)
