"""Video models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.classification import Patches
from torchtraceap.lab.workloads.suite.layers import (
    Attention,
    Made,
    adam,
    classes,
    conv,
    momentum,
    perceptron,
    pick,
    supervised,
)  # fmt: skip

_ACTIONS = 400


@workload(
    task="video",
    domain="vision",
    exercises="Convolutions and pooling in three dimensions.",
)
def c3d(batch: int = 2, size: str = "tiny") -> Made:
    """A network after C3D (arXiv 1412.0767), narrower and with batch normalization."""
    width, frames, side = pick(size, (8, 8, 24), (64, 16, 112))
    layers: list[nn.Module] = []
    inputs = 3
    for stage in range(3):
        outputs = width << stage
        layers += [
            nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU(),
            nn.MaxPool3d(2 if stage else (1, 2, 2)),
        ]  # fmt: skip
        inputs = outputs
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(inputs, _ACTIONS))
    clips = torch.randn(batch, 3, frames, side, side)
    return supervised(net, clips, classes(batch, _ACTIONS), optimizer=momentum)


def _factored_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Return a convolution over each frame, then one over time."""
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
        nn.BatchNorm3d(outputs), nn.ReLU(),
        nn.Conv3d(outputs, outputs, (3, 1, 1), (2, 1, 1), (1, 0, 0), bias=False),
        nn.BatchNorm3d(outputs), nn.ReLU(),
    )  # fmt: skip


@workload(
    task="video",
    domain="vision",
    exercises="Convolutions over space and over time in turn.",
)
def r2plus1d(batch: int = 2, size: str = "tiny") -> Made:
    """A network after R(2+1)D (arXiv 1711.11248)."""
    width, frames, side = pick(size, (16, 8, 48), (64, 16, 112))
    net = nn.Sequential(
        _factored_conv(3, width),
        _factored_conv(width, 2 * width),
        _factored_conv(2 * width, 4 * width),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4 * width, _ACTIONS),
    )  # fmt: skip
    clips = torch.randn(batch, 3, frames, side, side)
    return supervised(net, clips, classes(batch, _ACTIONS), optimizer=momentum)


class _Divided(nn.Module):
    """Attention over time at each position, then over positions in each frame."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.time, self.space = Attention(width, heads), Attention(width, heads)
        self.mlp = perceptron(width, 4 * width, width, activation=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        batch, frames, places, width = x.shape
        along = self.norms[0](x).transpose(1, 2).reshape(-1, frames, width)
        x = x + self.time(along).view(batch, places, frames, width).transpose(1, 2)
        within = self.norms[1](x).flatten(0, 1)
        x = x + self.space(within).view_as(x)
        return x + self.mlp(self.norms[2](x))


class _TimeSformer(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, side: int) -> None:
        super().__init__()
        self.patches = Patches(side, 16, width)
        self.layers = nn.Sequential(*(_Divided(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, _ACTIONS)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.head(self.layers(tokens)[:, :, 0].mean(1))


@workload(
    task="video",
    domain="vision",
    exercises="Attention over time and over space, copies between the two layouts.",
)
def timesformer(batch: int = 2, size: str = "tiny") -> Made:
    """TimeSformer (arXiv 2102.05095)."""
    width, depth, heads, frames, side = pick(size, (48, 2, 4, 4, 64), (768, 12, 12, 8, 224))
    clips = torch.randn(batch, frames, 3, side, side)
    net = _TimeSformer(width, depth, heads, side)
    return supervised(net, clips, classes(batch, _ACTIONS))


class _ConvLSTM(nn.Module):
    """Convolutional gates over frames; the last state predicts the next frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.gates, self.out = nn.Conv2d(3 + width, 4 * width, 3, 1, 1), nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(len(x), self.width, *x.shape[-2:])
        for frame in x.unbind(1):
            gates = self.gates(torch.cat([frame, hidden], 1))
            keep, take, show, new = gates.chunk(4, 1)
            cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
        return self.out(hidden)


@workload(
    task="video",
    domain="vision",
    exercises="A recurrence of convolutions: a chain of small kernels over frames.",
)
def convlstm(batch: int = 2, size: str = "tiny") -> Made:
    """Prediction of the next frame by a convolutional LSTM (arXiv 1506.04214)."""
    width, frames, side = pick(size, (8, 6, 24), (64, 10, 64))
    clips = torch.randn(batch, frames, 3, side, side)
    target = torch.randn(batch, 3, side, side)
    return supervised(_ConvLSTM(width), clips, target, functional.mse_loss, adam)


class _Flow(nn.Module):
    """All-pairs correlations, looked up along the flow and refined by a recurrent cell."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(3, width, 7, 4), conv(width, width, 3, 2))
        self.times = times
        self.cell, self.delta = nn.GRUCell(width + 11, width), nn.Linear(width, 2)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        a, b = self.encoder(one), self.encoder(other)
        batch, width, high, wide = a.shape
        alike = torch.einsum("bcp,bcq->bpq", a.flatten(2), b.flatten(2)) / width**0.5
        alike = alike.float().view(batch * high * wide, 1, high, wide)
        lines = (torch.arange(n, device=one.device, dtype=torch.float32) for n in (high, wide))
        at = torch.stack(torch.meshgrid(*lines, indexing="ij")[::-1], -1).flatten(0, 1)
        near = torch.cartesian_prod(*[torch.arange(-1.0, 2.0, device=one.device)] * 2)
        seen = a.flatten(2).mT.flatten(0, 1)
        hidden, flow = torch.tanh(seen), torch.zeros(len(seen), 2, device=one.device)
        for _ in range(self.times):
            where = (at.repeat(batch, 1) + flow.detach())[:, None, None] + near[None, None]
            where = 2 * where / torch.tensor([wide, high], device=one.device) - 1
            looked = functional.grid_sample(alike, where, align_corners=True).flatten(1)
            hidden = self.cell(torch.cat([seen, looked, flow], -1).to(hidden.dtype), hidden)
            flow = flow + self.delta(hidden).float()
        return flow.view(batch, high, wide, 2)


@workload(
    task="optical flow",
    domain="vision",
    exercises="A volume of all pairs, lookups by grid_sample, GRU cells; a tensor from Python "
    "numbers in each round.",
)
def raft(batch: int = 2, size: str = "tiny") -> Made:
    """An optical flow network after RAFT (arXiv 2003.12039), with one correlation level."""
    width, times, side = pick(size, (16, 4, 64), (128, 12, 256))
    views = (torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side))
    target = torch.randn(batch, side // 8, side // 8, 2)
    return supervised(_Flow(width, times), views, target, functional.l1_loss)
