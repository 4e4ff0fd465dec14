"""Ten small training workloads with random weights; torch alone, no installed model library.

Every model calls `self.probe(place, x)` at four places of its forward pass and returns the loss
and a score tensor `[batch, ...]`. A probe is where a cause is planted; it returns x, so a model
computes the same with and without one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]
Probe = Callable[[int, Tensor], Tensor]
PROBES = 4
BLOCKS = PROBES // 2  # of a transformer or mixer: a probe behind each half; small traces
CLASSES = 16


@dataclasses.dataclass(frozen=True)
class Size:
    """`side` is the side of an image in pixels, or the length of a sequence."""

    batch: int
    side: int
    width: int


def keep(place: int, x: Tensor) -> Tensor:
    """The probe that does nothing."""
    return x


def match_scores(scores: Tensor) -> Tensor:
    """Weights that keep the best eighth of each row, as hard-example mining does."""
    best = scores.topk(max(1, scores.shape[1] // 8), dim=1).indices
    return torch.zeros_like(scores).scatter_(1, best, 1.0)


class Workload(nn.Module):
    """A model with its loss; see the module's docstring for what all of them share."""

    task = ""
    tiny = Size(2, 32, 8)
    full = Size(16, 128, 64)
    images = True

    def __init__(self) -> None:
        super().__init__()
        self.probe: Probe = keep
        self.match: Callable[[Tensor], Tensor] = match_scores

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        """One batch of made-up data on the host."""
        raise NotImplementedError


def pixels(size: Size, generator: torch.Generator) -> Tensor:
    return torch.randn(size.batch, 3, size.side, size.side, generator=generator)


def integers(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, high, shape, generator=generator)


def labelled_images(size: Size, generator: torch.Generator) -> Batch:
    labels = integers(CLASSES, (size.batch,), generator)
    return {"image": pixels(size, generator), "label": labels}


def to_channels_last(image: Tensor) -> Tensor:
    return image.contiguous(memory_format=torch.channels_last)


def conv_unit(
    inputs: int, outputs: int, stride: int = 1, kernel: int = 3, **more: Any
) -> nn.Module:
    padding = more.pop("padding", kernel // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False, **more)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_unit(inputs, outputs, stride)
        self.second = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.body = nn.Sequential(
            conv_unit(inputs, inner, kernel=1),
            conv_unit(inner, inner, stride),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ConvClassifier(Workload):
    """Stem, four stages of one residual block each, pooling, linear."""

    task = "classification"
    block: type[nn.Module] = BasicBlock
    make_batch = staticmethod(labelled_images)

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.stem = conv_unit(3, width, 2)
        self.stages = nn.ModuleList(
            self.block(width << max(0, i - 1), width << i, 1 if i == 0 else 2)
            for i in range(PROBES)
        )
        self.head = nn.Linear(width << (PROBES - 1), CLASSES)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.stem(to_channels_last(batch["image"]))
        x = self.probe(0, self.stages[0](x))
        x = self.probe(1, self.stages[1](x))
        x = self.probe(2, self.stages[2](x))
        x = self.probe(3, self.stages[3](x))
        scores = self.head(x.mean((2, 3)))
        return functional.cross_entropy(scores, batch["label"]), scores


class ResNet(ConvClassifier):
    pass


class BottleneckResNet(ConvClassifier):
    block = Bottleneck
    full = Size(16, 128, 128)


class Attention(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.causal = causal
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, causal: bool = False) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def mix_tokens(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm_1(x))

    def mix_channels(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm_2(x))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.within = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def mix_tokens(self, x: Tensor) -> Tensor:
        return x + self.across(self.norm_1(x).transpose(1, 2)).transpose(1, 2)

    def mix_channels(self, x: Tensor) -> Tensor:
        return x + self.within(self.norm_2(x))


class PatchModel(Workload):
    """Patches of 8 pixels through two blocks; a ViT or a mixer by its block."""

    task = "classification"
    patch = 8
    full = Size(16, 128, 384)
    make_batch = staticmethod(labelled_images)

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, size.width, self.patch, self.patch)
        tokens = (size.side // self.patch) ** 2
        self.position = nn.Parameter(torch.zeros(1, tokens, size.width))
        self.blocks = nn.ModuleList(self.make_block(tokens, size.width) for _ in range(BLOCKS))
        self.head = nn.Linear(size.width, CLASSES)

    def make_block(self, tokens: int, width: int) -> nn.Module:
        raise NotImplementedError

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.embed(batch["image"]).flatten(2).transpose(1, 2) + self.position
        x = self.probe(0, self.blocks[0].mix_tokens(x))
        x = self.probe(1, self.blocks[0].mix_channels(x))
        x = self.probe(2, self.blocks[1].mix_tokens(x))
        x = self.probe(3, self.blocks[1].mix_channels(x))
        scores = self.head(x.mean(1))
        return functional.cross_entropy(scores, batch["label"]), scores


class VisionTransformer(PatchModel):
    def make_block(self, tokens: int, width: int) -> nn.Module:
        return TransformerBlock(width)


class Mixer(PatchModel):
    def make_block(self, tokens: int, width: int) -> nn.Module:
        return MixerBlock(tokens, width)


class Detector(Workload):
    """One-level anchor-free detector: a backbone, a class and a box for every cell of 8 pixels."""

    task = "detection"

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.stem = conv_unit(3, width, 2)
        self.down_1 = BasicBlock(width, 2 * width, 2)
        self.down_2 = BasicBlock(2 * width, 4 * width, 2)
        self.tower = conv_unit(4 * width, 4 * width)
        self.classify = nn.Conv2d(4 * width, CLASSES, 3, padding=1)
        self.locate = nn.Conv2d(4 * width, 4, 3, padding=1)

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        cells = (size.batch, (size.side // 8) ** 2)
        boxes = torch.rand(*cells, 4, generator=generator)
        classes = integers(CLASSES, cells, generator)
        return {"image": pixels(size, generator), "class": classes, "box": boxes}

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.probe(0, self.stem(to_channels_last(batch["image"])))
        x = self.probe(1, self.down_1(x))
        x = self.probe(2, self.down_2(x))
        x = self.probe(3, self.tower(x))
        logits = self.classify(x).flatten(2).transpose(1, 2)
        boxes = self.locate(x).flatten(2).transpose(1, 2)
        losses = functional.cross_entropy(logits.transpose(1, 2), batch["class"], reduction="none")
        scores = logits.amax(2)
        weights = self.match(scores.detach())
        distance = (boxes - batch["box"]).abs().sum(2)
        return ((losses + distance) * weights).sum() / weights.sum(), scores


class Segmenter(Workload):
    """Dilated convolutions at a quarter of the resolution, mined pixels in the loss."""

    task = "segmentation"

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.stem = nn.Sequential(conv_unit(3, width, 2), conv_unit(width, 2 * width, 2))
        self.context = nn.ModuleList(
            conv_unit(2 * width, 2 * width, padding=rate, dilation=rate) for rate in (1, 2, 4)
        )
        self.head = nn.Conv2d(2 * width, CLASSES, 1)

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        mask = integers(CLASSES, (size.batch, size.side // 4, size.side // 4), generator)
        return {"image": pixels(size, generator), "mask": mask}

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.probe(0, self.stem(to_channels_last(batch["image"])))
        x = self.probe(1, self.context[0](x))
        x = self.probe(2, self.context[1](x))
        x = self.probe(3, self.context[2](x))
        losses = functional.cross_entropy(self.head(x), batch["mask"], reduction="none").flatten(1)
        weights = self.match(losses.detach())
        return (losses * weights).sum() / weights.sum(), losses


class UNet(Workload):
    """Noise prediction at two resolutions with a skip connection and a time embedding."""

    task = "generation"

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Sequential(self.unit(width, width), nn.Conv2d(width, 2 * width, 4, 2, 1))
        self.middle = self.unit(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.leave = nn.Sequential(self.unit(2 * width, width), nn.Conv2d(width, 3, 3, padding=1))

    @staticmethod
    def unit(inputs: int, outputs: int) -> nn.Module:
        norm = nn.GroupNorm(4, inputs)
        return nn.Sequential(norm, nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        time = torch.rand(size.batch, 1, generator=generator)
        noise = pixels(size, generator)
        return {"image": pixels(size, generator), "noise": noise, "time": time}

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        level = batch["time"][:, :, None, None]
        noisy = torch.lerp(batch["image"], batch["noise"], level)
        skip = self.probe(0, self.enter(to_channels_last(noisy)))
        x = self.probe(1, self.down(skip) + self.time(batch["time"])[:, :, None, None])
        x = self.probe(2, self.middle(x) + x)
        x = self.probe(3, self.up(x))
        guess = self.leave(torch.cat([x, skip], 1))
        return functional.mse_loss(guess, batch["noise"]), guess


class TextModel(Workload):
    """Token and position embeddings, two transformer blocks, a vocabulary head."""

    images = False
    causal = False
    vocabulary = 4096
    tiny = Size(2, 16, 16)
    full = Size(8, 256, 384)

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(self.vocabulary, size.width)
        self.position = nn.Parameter(torch.zeros(1, size.side, size.width))
        self.blocks = nn.ModuleList(
            TransformerBlock(size.width, self.causal) for _ in range(BLOCKS)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, self.vocabulary, bias=False)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.embed(batch["token"]) + self.position
        x = self.probe(0, self.blocks[0].mix_tokens(x))
        x = self.probe(1, self.blocks[0].mix_channels(x))
        x = self.probe(2, self.blocks[1].mix_tokens(x))
        x = self.probe(3, self.blocks[1].mix_channels(x))
        scores = self.head(self.norm(x))
        loss = functional.cross_entropy(scores.flatten(0, 1), batch["target"].flatten())
        return loss, scores.amax(2)


class Gpt(TextModel):
    task = "language modelling"
    causal = True

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        text = integers(TextModel.vocabulary, (size.batch, size.side + 1), generator)
        return {"token": text[:, :-1].contiguous(), "target": text[:, 1:].contiguous()}


class Bert(TextModel):
    task = "masked language modelling"

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        text = integers(TextModel.vocabulary, (size.batch, size.side), generator)
        hidden = torch.rand(text.shape, generator=generator) < 0.15
        hidden[:, 0] = True
        target = torch.where(hidden, text, torch.full_like(text, -100))
        return {"token": text.masked_fill(hidden, 0), "target": target}


class Dlrm(Workload):
    """Embedding bags and a dense tower, pairwise products, a top tower."""

    task = "recommendation"
    images = False
    tables = 4
    rows = 20_000
    tiny = Size(4, 4, 8)
    full = Size(1024, 16, 64)  # side: indices per bag

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.bags = nn.ModuleList(nn.EmbeddingBag(self.rows, width) for _ in range(self.tables))
        self.bottom = nn.Sequential(
            nn.Linear(64, 8 * width), nn.ReLU(), nn.Linear(8 * width, width)
        )
        pairs = (self.tables + 1) ** 2
        self.top_1 = nn.Sequential(nn.Linear(pairs + width, 16 * width), nn.ReLU())
        self.top_2 = nn.Sequential(nn.Linear(16 * width, 16 * width), nn.ReLU())
        self.head = nn.Linear(16 * width, 1)

    @staticmethod
    def make_batch(size: Size, generator: torch.Generator) -> Batch:
        return {
            "dense": torch.randn(size.batch, 64, generator=generator),
            "index": integers(Dlrm.rows, (size.batch, Dlrm.tables, size.side), generator),
            "click": torch.rand(size.batch, 1, generator=generator).round(),
        }

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        dense = self.probe(0, self.bottom(batch["dense"]))
        sparse = [bag(batch["index"][:, i].contiguous()) for i, bag in enumerate(self.bags)]
        features = self.probe(1, torch.stack([dense, *sparse], 1))
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        x = self.probe(2, self.top_1(torch.cat([products, dense], 1)))
        x = self.probe(3, self.top_2(x))
        scores = self.head(x)
        loss = functional.binary_cross_entropy_with_logits(scores, batch["click"])
        return loss, scores


WORKLOADS: dict[str, type[Workload]] = {
    "resnet": ResNet,
    "bottleneck": BottleneckResNet,
    "vit": VisionTransformer,
    "detector": Detector,
    "segmenter": Segmenter,
    "unet": UNet,
    "gpt": Gpt,
    "bert": Bert,
    "dlrm": Dlrm,
    "mixer": Mixer,
}


def build_workload(name: str, size: Size, seed: int) -> Workload:
    """The model on the host, the same weights for the same seed."""
    torch.manual_seed(seed)
    model: Workload = WORKLOADS[name](size)  # type: ignore[call-arg]
    return model.to(memory_format=torch.channels_last) if model.images else model
