"""Small networks of six tasks by width and depth, for runs that are drawn at random.

They have the shapes of what such tasks use: residual and plain convolutions, encoders with skip
connections, transformers over patches, heads for boxes, heat maps and dense maps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.suite.layers import Residual, conv, perceptron

__all__ = ["NETWORKS"]

Network = Callable[[int, int], nn.Module]
"""Makes a network of a width and a depth."""


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return conv(inputs, outputs, 3, stride, inplace=False)


class _Residual(nn.Module):
    """Two convolutions in a residual block, without a module around both, which costs host time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _conv(width, width), _conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


def _separable(width: int) -> nn.Module:
    """Return a layer over each channel by itself, then over all of them at each position."""
    return Residual(
        nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False), nn.BatchNorm2d(width),
        nn.Hardswish(), nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width),
    )  # fmt: skip


class _Dilated(nn.Module):
    """A wide neighborhood without a lower resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, 1, by, by) for by in (1, 2, 4))
        self.merge = nn.Conv2d(3 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(torch.cat([layer(x).relu() for layer in self.layers], 1))


class _Stages(nn.Module):
    """Four stages, each at half the resolution of the one before; returns all of their maps."""

    def __init__(
        self, width: int, depth: int, block: Callable[[int], nn.Module] = _Residual
    ) -> None:
        super().__init__()
        self.stem = _conv(3, width, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(_conv(width, width, 2), *(block(width) for _ in range(depth)))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        x = self.stem(x)
        for each in self.stages:
            x = each(x)
            found.append(x)
        return found


class _Transformer(nn.Module):
    """Patches of 16 pixels through encoder layers, as a map `[batch, 4 * width, high, wide]`."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4 * width, 16, 16)
        layers = (
            nn.TransformerEncoderLayer(4 * width, 4, 16 * width, 0.0, "gelu", batch_first=True)
            for _ in range(2 * depth)
        )
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        batch, channels, high, wide = x.shape
        x = x.flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.transpose(1, 2).reshape(batch, channels, high, wide)


class _Mixing(nn.Module):
    """Patches of 16 pixels, mixed among positions and among channels in turn, as a map of 8x8."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4 * width, 16, 16)
        self.pool = nn.AdaptiveAvgPool2d(8)
        self.places, self.channels = (
            nn.ModuleList(
                nn.Sequential(
                    nn.LayerNorm(size), *perceptron(size, hidden, size, activation=nn.GELU)
                )
                for _ in range(2 * depth)
            )
            for size, hidden in ((64, 128), (4 * width, 16 * width))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.patches(x))
        shape = x.shape
        x = x.flatten(2)
        for places, channels in zip(self.places, self.channels, strict=True):
            x = x + places(x)
            x = x + channels(x.transpose(1, 2)).transpose(1, 2)
        return x.reshape(shape)


class _Up(nn.Module):
    """A decoder of a map to a dense one, so many times twice the resolution."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        widths = [inputs, *[max(outputs, inputs >> (i + 1)) for i in range(times)]]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.last = nn.Conv2d(widths[-1], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class _Pooled(nn.Module):
    """Classes of the coarsest map."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Any) -> Tensor:
        last = x[-1] if isinstance(x, list) else x
        return self.linear(last.mean((2, 3)))


class _Boxes(nn.Module):
    """Classes and boxes at every position of a pyramid."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
        self.tower = nn.Sequential(*(_conv(width, width) for _ in range(depth)))
        self.classes, self.boxes = nn.Conv2d(width, 80, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        above: Tensor | None = None
        for lateral, each in zip(reversed(self.lateral), reversed(maps), strict=True):
            x = lateral(each)
            if above is not None:
                x = x + functional.interpolate(above, size=x.shape[-2:])
            above = x
            x = self.tower(x)
            found += [self.classes(x), self.boxes(x).exp()]
        return tuple(found)


class _Queries(nn.Module):
    """Classes and boxes of learned queries that look at a map."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(64, channels))
        layers = (
            nn.TransformerDecoderLayer(channels, 4, 4 * channels, 0.0, "relu", batch_first=True)
            for _ in range(depth)
        )
        self.layers = nn.ModuleList(layers)
        self.classes, self.boxes = nn.Linear(channels, 80), nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        memory = x.flatten(2).transpose(1, 2)
        found = self.queries.expand(len(x), -1, -1)
        for layer in self.layers:
            found = layer(found, memory)
        return self.classes(found), self.boxes(found).sigmoid()


class _EachPlace(nn.Module):
    """Classes and boxes at every position of one map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.classes, self.boxes = nn.Conv2d(channels, 80, 1), nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.classes(x), self.boxes(x).exp()


class _Skips(nn.Module):
    """A decoder to a quarter of the resolution that takes in each map of the encoder."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.merge = nn.ModuleList(_conv(2 * width, width) for _ in range(3))
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        x = maps[-1]
        for merge, skip in zip(self.merge, reversed(maps[:-1]), strict=True):
            x = functional.interpolate(x, size=skip.shape[-2:], mode="bilinear")
            x = merge(torch.cat([x, skip], 1))
        return self.last(x)


class _Last(nn.Module):
    """A head on the coarsest map."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, maps: list[Tensor]) -> Any:
        return self.head(maps[-1])


class _Generator(nn.Module):
    """A picture of 64 pixels from an image's mean, as a generator makes one from noise."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.start = nn.Linear(3, 16 * 8 * width)
        self.width = width
        self.middle = nn.Sequential(*(_Residual(8 * width) for _ in range(depth)))
        self.up = _Up(8 * width, 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        start = self.start(x.mean((2, 3))).reshape(len(x), 8 * self.width, 4, 4)
        return torch.tanh(self.up(self.middle(start)))


def _model(encoder: nn.Module, head: nn.Module) -> nn.Module:
    """Return both in a row; FSDP names its ranges after them."""
    return nn.Sequential(OrderedDict(encoder=encoder, head=head))


NETWORKS: dict[str, dict[str, Network]] = {
    "classification": {
        "residual_classifier": lambda width, depth: _model(
            _Stages(width, depth), _Pooled(width, 1000)
        ),
        "patch_classifier": lambda width, depth: _model(
            _Transformer(width, depth), _Pooled(4 * width, 1000)
        ),
        "separable_classifier": lambda width, depth: _model(
            _Stages(width, 2 * depth, _separable), _Pooled(width, 1000)
        ),
        "mixing_classifier": lambda width, depth: _model(
            _Mixing(width, depth), _Pooled(4 * width, 1000)
        ),
    },
    "detection": {
        "pyramid_detector": lambda width, depth: _model(
            _Stages(width, depth), _Boxes(width, depth)
        ),
        "patch_detector": lambda width, depth: _model(
            _Transformer(width, depth), _EachPlace(4 * width)
        ),
        "query_detector": lambda width, depth: _model(
            _Stages(4 * width, 1), _Last(_Queries(4 * width, depth))
        ),
    },
    "segmentation": {
        "skip_segmenter": lambda width, depth: _model(_Stages(width, depth), _Skips(width, 21)),
        "patch_segmenter": lambda width, depth: _model(
            _Transformer(width, depth), _Up(4 * width, 21, 2)
        ),
        "dilated_segmenter": lambda width, depth: _model(
            _Stages(width, depth, _Dilated), _Skips(width, 21)
        ),
    },
    "generation": {
        "Generator": _Generator,
        "skip_denoiser": lambda width, depth: _model(_Stages(width, depth), _Skips(width, 3)),
    },
    "pose": {
        "heat_maps": lambda width, depth: _model(_Stages(width, depth), _Last(_Up(width, 17, 3))),
        "patch_heat_maps": lambda width, depth: _model(
            _Transformer(width, depth), _Up(4 * width, 17, 2)
        ),
    },
    "depth": {
        "patch_depth": lambda width, depth: _model(
            _Transformer(width, depth), _Up(4 * width, 1, 4)
        ),
        "skip_depth": lambda width, depth: _model(_Stages(width, depth), _Skips(width, 1)),
    },
}
"""Networks by task and name; names of those of transformer layers begin with "patch"."""
