"""Small networks of six tasks, drawn at random, for runs that are predicted.

They have the shapes of what such tasks use: residual and plain convolutions, encoders with skips,
transformers over patches, heads for boxes, heat maps and dense maps. As they are drawn most are
small, so that the GPU waits for the host; `Drawn.heavier` gives the GPU more to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DEVICES", "NETS", "Drawn", "drawn_workload", "families_of"]

DEVICES = ("V100 SXM2 32 GB", "A100 SXM4 80 GB", "A10", "L4", "H100 SXM5 80 GB",
           "H200 SXM 141 GB", "GeForce RTX 4090")  # fmt: skip
_TRAINED = 0.8
"""Of workloads, those with a backward pass."""
_SHARED = 0.35
"""Of these, those that several ranks share by another way than copies of the whole model."""
_MOST_WIDTH, _MOST_BATCH = 512, 1024


@dataclass(frozen=True)
class Drawn:
    """A workload, and what it runs on."""

    task: str
    kind: Callable[[int, int], nn.Module]
    width: int
    depth: int
    batch: int
    side: int
    """Pixels of an image's edge."""
    optimizer: Callable[..., Any] | None
    """None: there is no backward pass."""
    device: str
    dtype: str
    strategy: str | None
    """How ranks share the work; None for one rank."""
    world_size: int

    @property
    def name(self) -> str:
        """What tells it from others."""
        way = "inference" if self.optimizer is None else "training"
        size = f"width {self.width}, depth {self.depth}, batch {self.batch}, {self.side} pixels"
        name = f"{self.task}: {_family(self.kind)}, {size}, {way}, {self.dtype} on {self.device}"
        return name + (f", {self.strategy} of {self.world_size}" if self.strategy else "")

    @property
    def steps(self) -> int:
        """So many have as many events as a trace should have, or more."""
        return 24 if self.optimizer is None else 10

    def make(self) -> dict[str, Any]:
        """What `predict` takes."""
        return {
            "model": self.kind(self.width, self.depth),
            "inputs": (torch.randn(self.batch, 3, self.side, self.side),),
            "loss": None if self.optimizer is None else _loss,
            "optimizer": self.optimizer,
        }

    def heavier(self) -> Drawn | None:
        """The same launches with some ten times the work of the GPU; None beyond sizes in use."""
        if self.batch >= _MOST_BATCH and self.width >= _MOST_WIDTH:
            return None
        width, batch = min(2 * self.width, _MOST_WIDTH), min(4 * self.batch, _MOST_BATCH)
        return replace(self, width=width, batch=batch)


def drawn_workload(
    task: str,
    rng: random.Random,
    *,
    is_trained: bool | None = None,
    by_copies: bool = False,
    families: Collection[str] = (),
) -> Drawn:
    """One of a task; the same generator gives the same.

    Args:
        task: Which.
        rng: Draws.
        is_trained: With a backward pass, or without; None: drawn as well.
        by_copies: No rank has a part of the model only.
        families: Names of networks that it may be, as they are in `Drawn.name`; empty: all.
    """
    kind = rng.choice([net for net in NETS[task] if not families or _family(net) in families])
    width = rng.choice((32, 48, 64, 96, 128))
    depth = rng.randint(2, 5)
    batch = rng.choice((2, 4, 8, 16, 32, 64, 128, 256))
    side = rng.choice((96, 128, 192, 224, 288, 384))
    optimizer = rng.choice((torch.optim.AdamW, torch.optim.Adam, _momentum))
    trained = rng.random() < _TRAINED if is_trained is None else is_trained
    device = rng.choice(DEVICES)
    dtypes = ("fp32", "fp16") if device.startswith("V100") else ("fp32", "bf16", "bf16")
    dtype = rng.choice(dtypes)
    strategy, ranks = _strategy(kind, rng) if trained and not by_copies else (None, 1)
    return Drawn(
        task, kind, width, depth, batch, side, optimizer if trained else None,
        device, dtype, strategy, ranks,
    )  # fmt: skip


def families_of(task: str) -> tuple[str, ...]:
    """Names of the networks of a task."""
    return tuple(map(_family, NETS[task]))


def _family(kind: Callable[..., nn.Module]) -> str:
    return kind.__name__.lstrip("_")


def _strategy(kind: Callable[..., nn.Module], rng: random.Random) -> tuple[str | None, int]:
    """Layers are split where they are those of a transformer."""
    ways = ("fsdp2", "tp") if kind in _TRANSFORMERS else ("fsdp2",)
    if rng.random() >= _SHARED:
        return None, 1
    return rng.choice(ways), rng.choice((2, 4, 4, 8))


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _loss(outputs: Any) -> Tensor:
    """Of one output or of several."""
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.stack([each.float().square().mean() for each in several]).sum()


# ------------------------------------------------------------------------- parts


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _conv(width, width), _conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Added to what came in."""
        added: Tensor = x + self.second(self.first(x))
        return added


class _Separable(nn.Module):
    """Each channel by itself, then all of them at each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Added to what came in."""
        added: Tensor = x + self.layers(x)
        return added


class _Dilated(nn.Module):
    """A wide neighbourhood without a lower resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, 1, by, by) for by in (1, 2, 4))
        self.merge = nn.Conv2d(3 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """All distances together."""
        merged: Tensor = self.merge(torch.cat([layer(x).relu() for layer in self.layers], 1))
        return merged


class _Stages(nn.Module):
    """Four stages, each at half the resolution of the one before; all are given."""

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
        """From the finest to the coarsest."""
        found = []
        x = self.stem(x)
        for each in self.stages:
            x = each(x)
            found.append(x)
        return found


class _Transformer(nn.Module):
    """Patches of 16 pixels through encoder layers, as a map again."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4 * width, 16, 16)
        layers = (
            nn.TransformerEncoderLayer(4 * width, 4, 16 * width, 0.0, "gelu", batch_first=True)
            for _ in range(2 * depth)
        )
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, 4 * width, side / 16, side / 16]`."""
        x = self.patches(x)
        batch, channels, high, wide = x.shape
        x = x.flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.transpose(1, 2).reshape(batch, channels, high, wide)


class _Mixing(nn.Module):
    """Patches of 16 pixels, mixed among places and among channels in turn."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4 * width, 16, 16)
        self.pool = nn.AdaptiveAvgPool2d(8)
        self.places = nn.ModuleList(_perceptron(64, 128) for _ in range(2 * depth))
        self.channels = nn.ModuleList(_perceptron(4 * width, 16 * width) for _ in range(2 * depth))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, 4 * width, 8, 8]`."""
        x = self.pool(self.patches(x))
        shape = x.shape
        x = x.flatten(2)
        for places, channels in zip(self.places, self.channels, strict=True):
            x = x + places(x)
            x = x + channels(x.transpose(1, 2)).transpose(1, 2)
        return x.reshape(shape)


def _perceptron(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
    )


class _Up(nn.Module):
    """Back to twice the resolution, so many times."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        widths = [inputs, *[max(outputs, inputs >> (i + 1)) for i in range(times)]]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.last = nn.Conv2d(widths[-1], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A dense map."""
        for layer in self.layers:
            x = layer(x)
        dense: Tensor = self.last(x)
        return dense


class _Whole(nn.Module):
    """An encoder, what takes its features on, and nothing else."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Any:
        """What the head gives."""
        return self.head(self.encoder(x))


class _Pooled(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Any) -> Tensor:
        """Of the coarsest map."""
        last = x[-1] if isinstance(x, list) else x
        logits: Tensor = self.linear(last.mean((2, 3)))
        return logits


class _Boxes(nn.Module):
    """Classes and boxes at every place of a pyramid."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
        self.tower = nn.Sequential(*(_conv(width, width) for _ in range(depth)))
        self.classes, self.boxes = nn.Conv2d(width, 80, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, ...]:
        """A pair for each level."""
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
        """Of each query."""
        memory = x.flatten(2).transpose(1, 2)
        found = self.queries.expand(len(x), -1, -1)
        for layer in self.layers:
            found = layer(found, memory)
        return self.classes(found), self.boxes(found).sigmoid()


class _EachPlace(nn.Module):
    """Classes and boxes at every place of one map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.classes, self.boxes = nn.Conv2d(channels, 80, 1), nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A pair."""
        return self.classes(x), self.boxes(x).exp()


class _Skips(nn.Module):
    """A decoder that takes in each map of the encoder on its way up."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.merge = nn.ModuleList(_conv(2 * width, width) for _ in range(3))
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """At a quarter of the resolution."""
        x = maps[-1]
        for merge, skip in zip(self.merge, reversed(maps[:-1]), strict=True):
            x = functional.interpolate(x, size=skip.shape[-2:], mode="bilinear")
            x = merge(torch.cat([x, skip], 1))
        dense: Tensor = self.last(x)
        return dense


class _Last(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, maps: list[Tensor]) -> Any:
        """Of the coarsest map."""
        return self.head(maps[-1])


class _Generator(nn.Module):
    """A picture from what its pixels' mean says, as a generator makes one from noise."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.start = nn.Linear(3, 16 * 8 * width)
        self.width = width
        self.middle = nn.Sequential(*(_Residual(8 * width) for _ in range(depth)))
        self.up = _Up(8 * width, 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, 3, 64, 64]`."""
        start = self.start(x.mean((2, 3))).reshape(len(x), 8 * self.width, 4, 4)
        return torch.tanh(self.up(self.middle(start)))


# ------------------------------------------------------------------------- networks


def _residual_classifier(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth), _Pooled(width, 1000))


def _patch_classifier(width: int, depth: int) -> nn.Module:
    return _Whole(_Transformer(width, depth), _Pooled(4 * width, 1000))


def _separable_classifier(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, 2 * depth, _Separable), _Pooled(width, 1000))


def _mixing_classifier(width: int, depth: int) -> nn.Module:
    return _Whole(_Mixing(width, depth), _Pooled(4 * width, 1000))


def _patch_detector(width: int, depth: int) -> nn.Module:
    return _Whole(_Transformer(width, depth), _EachPlace(4 * width))


def _query_detector(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(4 * width, 1), _Last(_Queries(4 * width, depth)))


def _dilated_segmenter(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth, _Dilated), _Skips(width, 21))


def _pyramid_detector(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth), _Boxes(width, depth))


def _skip_segmenter(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth), _Skips(width, 21))


def _patch_segmenter(width: int, depth: int) -> nn.Module:
    return _Whole(_Transformer(width, depth), _Up(4 * width, 21, 2))


def _skip_denoiser(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth), _Skips(width, 3))


def _heat_maps(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth), _Last(_Up(width, 17, 3)))


def _patch_heat_maps(width: int, depth: int) -> nn.Module:
    return _Whole(_Transformer(width, depth), _Up(4 * width, 17, 2))


def _patch_depth(width: int, depth: int) -> nn.Module:
    return _Whole(_Transformer(width, depth), _Up(4 * width, 1, 4))


def _skip_depth(width: int, depth: int) -> nn.Module:
    return _Whole(_Stages(width, depth), _Skips(width, 1))


NETS: dict[str, tuple[Callable[[int, int], nn.Module], ...]] = {
    "classification": (
        _residual_classifier, _patch_classifier, _separable_classifier, _mixing_classifier,
    ),
    "detection": (_pyramid_detector, _patch_detector, _query_detector),
    "segmentation": (_skip_segmenter, _patch_segmenter, _dilated_segmenter),
    "generation": (_Generator, _skip_denoiser),
    "pose": (_heat_maps, _patch_heat_maps),
    "depth": (_patch_depth, _skip_depth),
}  # fmt: skip
_TRANSFORMERS = (
    _patch_classifier, _patch_detector, _patch_segmenter, _patch_heat_maps, _patch_depth,
)  # fmt: skip
