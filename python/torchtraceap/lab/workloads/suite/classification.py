"""Image classification models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import (
    Block,
    Made,
    Residual,
    classes,
    conv,
    momentum,
    perceptron,
    pick,
    supervised,
    trained,
)  # fmt: skip


def _classifier(net: nn.Module, batch: int, side: int, **options: Any) -> Made:
    """Make the parts of a classifier of random images in 1,000 classes."""
    return supervised(net, torch.randn(batch, 3, side, side), classes(batch, 1000), **options)


class _Head(nn.Sequential):
    """Global average pooling and a linear layer."""

    def __init__(self, width: int, many: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, many))


class _Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions, with a projected shortcut if the shape
    changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv(inputs, width, 1),
            conv(width, width, 3, stride),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        same = stride == 1 and inputs == 4 * width
        self.short = nn.Identity() if same else nn.Conv2d(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.short(x), inplace=True)


@workload(
    task="classification",
    domain="vision",
    exercises="Bottlenecks with batch normalization and in-place ReLU; SGD with momentum.",
)
def resnet(batch: int = 8, size: str = "tiny") -> Made:
    """ResNet-50 in full (arXiv 1512.03385)."""
    depths, width, side = pick(size, ((1, 1, 1, 1), 8, 64), ((3, 4, 6, 3), 64, 224))
    layers: list[nn.Module] = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, depth in enumerate(depths):
        for place in range(depth):
            outputs = width << stage
            layers.append(_Bottleneck(inputs, outputs, 2 if stage and not place else 1))
            inputs = 4 * outputs
    net = nn.Sequential(*layers, _Head(inputs, 1000))
    return _classifier(net, batch, side, optimizer=momentum)


@workload(
    task="classification",
    domain="vision",
    exercises="Plain convolutions, max pooling, and a wide linear head with dropout.",
)
def vgg(batch: int = 4, size: str = "tiny") -> Made:
    """VGG-11 in full (arXiv 1409.1556)."""
    width, side, hidden = pick(size, (8, 32, 128), (64, 224, 4096))
    layers: list[nn.Module] = []
    inputs = 3
    for times, depth in ((1, 1), (2, 1), (4, 2), (8, 2), (8, 2)):
        for _ in range(depth):
            layers += [nn.Conv2d(inputs, times * width, 3, 1, 1), nn.ReLU(inplace=True)]
            inputs = times * width
        layers.append(nn.MaxPool2d(2))
    flat = inputs * (side // 32) ** 2
    head = (nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, 1000))
    net = nn.Sequential(*layers, *head)
    return _classifier(net, batch, side, optimizer=momentum)


def _inverted(inputs: int, outputs: int, stride: int) -> nn.Module:
    hidden = 6 * inputs
    layers = (
        nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
        nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
        nn.BatchNorm2d(hidden), nn.ReLU6(),
        nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
    )  # fmt: skip
    return Residual(*layers) if stride == 1 and inputs == outputs else nn.Sequential(*layers)


@workload(
    task="classification",
    domain="vision",
    exercises="Depthwise convolutions in channels-last memory, ReLU6, RMSprop.",
)
def mobilenet(batch: int = 8, size: str = "tiny") -> Made:
    """MobileNetV2 (arXiv 1801.04381)."""
    width, side = pick(size, (8, 64), (32, 224))
    inputs = width
    layers: list[nn.Module] = [conv(3, width, 3, 2)]
    for times, depth, stride in ((1, 2, 2), (2, 2, 2), (3, 2, 1), (5, 2, 2)):
        for place in range(depth):
            layers.append(_inverted(inputs, times * width, 1 if place else stride))
            inputs = times * width
    net = nn.Sequential(*layers, _Head(inputs, 1000)).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
    return supervised(
        net, images, classes(batch, 1000),
        optimizer=lambda weights: torch.optim.RMSprop(weights, lr=1e-3, momentum=0.9),
    )  # fmt: skip


class _Dense(nn.Module):
    """A dense block, in which each layer sees the outputs of all earlier ones."""

    def __init__(self, inputs: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + place * growth), nn.ReLU(),
                nn.Conv2d(inputs + place * growth, growth, 3, 1, 1, bias=False),
            )
            for place in range(depth)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@workload(
    task="classification",
    domain="vision",
    exercises="Concatenations that grow with the depth, average pooling, Nesterov momentum.",
)
def densenet(batch: int = 8, size: str = "tiny") -> Made:
    """DenseNet (arXiv 1608.06993)."""
    growth, depth, side = pick(size, (8, 3, 48), (32, 12, 224))
    width = 2 * growth
    layers: list[nn.Module] = [conv(3, width, 3, 2)]
    for _ in range(3):
        layers.append(_Dense(width, growth, depth))
        width += depth * growth
        layers += [conv(width, width // 2, 1), nn.AvgPool2d(2)]
        width //= 2
    net = nn.Sequential(*layers, _Head(width, 1000))
    return _classifier(
        net, batch, side,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9, nesterov=True),
    )  # fmt: skip


class _SqueezeExcite(nn.Module):
    """Squeeze and excitation of channels, with stochastic depth in training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 4 * width
        self.wide = nn.Sequential(nn.Conv2d(width, hidden, 1), nn.BatchNorm2d(hidden), nn.SiLU())
        self.deep = nn.Sequential(
            nn.Conv2d(hidden, hidden, 5, 1, 2, groups=hidden), nn.BatchNorm2d(hidden), nn.SiLU()
        )
        self.gate = nn.Sequential(
            nn.Conv2d(hidden, width, 1), nn.SiLU(), nn.Conv2d(width, hidden, 1), nn.Sigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(hidden, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.deep(self.wide(x))
        y = self.narrow(y * self.gate(y.mean((2, 3), keepdim=True)))
        if self.training:
            y = y * torch.empty(len(x), 1, 1, 1, device=x.device).bernoulli_(0.8).div_(0.8)
        return x + y


@workload(
    task="classification",
    domain="vision",
    exercises="Squeeze and excitation, SiLU, stochastic depth, label smoothing.",
)
def efficientnet(batch: int = 8, size: str = "tiny") -> Made:
    """Blocks of EfficientNet (arXiv 1905.11946)."""
    width, depth, side = pick(size, (8, 1, 64), (32, 4, 224))
    layers: list[nn.Module] = [conv(3, width, 3, 2)]
    for stage in range(3):
        here = width << stage
        layers += [_SqueezeExcite(here) for _ in range(depth)]
        layers.append(conv(here, 2 * here, 3, 2))
    net = nn.Sequential(*layers, nn.Dropout(0.2), _Head(8 * width, 1000))
    return _classifier(
        net, batch, side,
        loss=lambda output, target: functional.cross_entropy(output, target, label_smoothing=0.1),
    )  # fmt: skip


class _Next(nn.Module):
    """A depthwise 7x7 convolution and a channels-last perceptron with layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = perceptron(width, 4 * width, width, activation=nn.GELU)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.mlp(y)).permute(0, 3, 1, 2)


@workload(
    task="classification",
    domain="vision",
    exercises="Permutations between channels first and last, layer normalization, mixup.",
)
def convnext(batch: int = 8, size: str = "tiny") -> Made:
    """ConvNeXt-T in full (arXiv 2201.03545), with mixup and soft labels."""
    width, depths, side = pick(size, (16, (1, 1, 1), 64), (96, (3, 3, 9, 3), 224))
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4)]
    for stage, depth in enumerate(depths):
        if stage:
            layers.append(nn.Conv2d(width << (stage - 1), width << stage, 2, 2))
        layers += [_Next(width << stage) for _ in range(depth)]
    net = nn.Sequential(*layers, _Head(width << (len(depths) - 1), 1000))
    images = torch.randn(batch, 3, side, side)
    labels = functional.one_hot(classes(batch, 1000), 1000).float()
    share = torch.distributions.Beta(0.8, 0.8).sample((batch, 1))
    return supervised(
        net, torch.lerp(images, images.flip(0), share[..., None, None]),
        torch.lerp(labels, labels.flip(0), share),
    )  # fmt: skip


class Patches(nn.Module):
    """Image patches as tokens with learned positions and a class token."""

    def __init__(self, side: int, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places


class _FirstToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


@workload(
    task="classification",
    domain="vision",
    exercises="Scaled dot-product attention over patches, GELU, fused AdamW.",
)
def vit(batch: int = 8, size: str = "tiny") -> Made:
    """ViT-B/16 in full (arXiv 2010.11929)."""
    width, depth, heads, side = pick(size, (64, 3, 4, 64), (768, 12, 12, 224))
    net = nn.Sequential(
        Patches(side, 16, width), *(Block(width, heads) for _ in range(depth)),
        nn.LayerNorm(width), _FirstToken(), nn.Linear(width, 1000),
    )  # fmt: skip
    return _classifier(
        net, batch, side,
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-4, fused=True),
    )  # fmt: skip


class _Windows(nn.Module):
    """Attention inside windows, which every second layer shifts by half."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.block, self.window, self.shift = Block(width, heads), window, shift
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(*[torch.arange(window)] * 2, indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None]) + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])

    def forward(self, x: Tensor) -> Tensor:
        batch, high, wide, width = x.shape
        w = self.window
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(batch, high // w, w, wide // w, w, width).transpose(2, 3)
        x = self.block(x.reshape(-1, w * w, width), bias=self.bias[self.index].permute(2, 0, 1))
        x = x.view(batch, high // w, wide // w, w, w, width).transpose(2, 3)
        return torch.roll(x.reshape(batch, high, wide, width), (self.shift, self.shift), (1, 2))


class _Merge(nn.Module):
    """Patch merging: four neighbors become one token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1)))


class _ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).contiguous()


class _MeanOfPlaces(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).mean(1)


@workload(
    task="classification",
    domain="vision",
    exercises="Windows by views and rolls, a bias gathered by index, strided slices.",
)
def swin(batch: int = 8, size: str = "tiny") -> Made:
    """Swin (arXiv 2103.14030), without the mask of shifted windows."""
    width, depths, window, side = pick(size, (32, (2, 2), 4, 64), (96, (2, 2, 6, 2), 7, 224))
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), _ChannelsLast()]
    for stage, depth in enumerate(depths):
        here = width << stage
        layers += [_Merge(here // 2)] if stage else []
        layers += [
            _Windows(here, here // 16, window, window // 2 if place % 2 else 0)
            for place in range(depth)
        ]
    net = nn.Sequential(*layers, nn.LayerNorm(here), _MeanOfPlaces(), nn.Linear(here, 1000))
    return _classifier(net, batch, side)


class _Mixing(nn.Module):
    """A perceptron over positions, then one over channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = perceptron(places, 2 * places, places, activation=nn.GELU)
        self.channels = perceptron(width, 4 * width, width, activation=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.first(x).mT).mT
        return x + self.channels(self.second(x))


@workload(
    task="classification",
    domain="vision",
    exercises="Linear layers over transposed tokens; no attention and no convolution of overlap.",
)
def mixer(batch: int = 8, size: str = "tiny") -> Made:
    """MLP-Mixer B/16 in full (arXiv 2105.01601)."""
    width, depth, side = pick(size, (64, 3, 64), (768, 12, 224))
    places = (side // 16) ** 2
    net = nn.Sequential(
        nn.Conv2d(3, width, 16, 16), _ChannelsLast(), nn.Flatten(1, 2),
        *(_Mixing(places, width) for _ in range(depth)),
        nn.LayerNorm(width), _MeanOfPlaces(), nn.Linear(width, 1000),
    )  # fmt: skip
    return _classifier(net, batch, side)


@workload(
    task="classification",
    domain="vision",
    exercises="Grouped convolutions and a shuffle of channels, with PReLU and LocalResponseNorm.",
)
def shufflenet(batch: int = 8, size: str = "tiny") -> Made:
    """Blocks of ShuffleNet (arXiv 1707.01083)."""
    width, depth, side = pick(size, (24, 2, 64), (144, 4, 224))
    layers: list[nn.Module] = [conv(3, width, 3, 2), nn.LocalResponseNorm(5)]
    for stage in range(3):
        here = width << stage
        for _ in range(depth):
            layers.append(
                Residual(
                    conv(here, here, 1, groups=3), nn.ChannelShuffle(3),
                    nn.Conv2d(here, here, 3, 1, 1, groups=here), nn.BatchNorm2d(here), nn.PReLU(),
                    nn.Conv2d(here, here, 1, groups=3), nn.BatchNorm2d(here),
                )
            )  # fmt: skip
        layers.append(conv(here, 2 * here, 3, 2, groups=3))
    net = nn.Sequential(*layers, _Head(8 * width, 1000))
    return _classifier(net, batch, side, optimizer=momentum)


class _TwoViews(nn.Module):
    """The contrastive loss between two views of each image, a view's similarity to itself left
    out."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        seen = functional.normalize(self.encoder(torch.cat([one, other])), dim=-1)
        own = torch.eye(len(seen), dtype=torch.bool, device=seen.device)
        return (seen @ seen.T / 0.1).float().masked_fill(own, float("-inf"))


def _other_view_loss(alike: Tensor) -> Tensor:
    target = torch.arange(len(alike), device=alike.device).roll(len(alike) // 2)
    return functional.cross_entropy(alike, target)


@workload(
    task="classification",
    domain="vision",
    exercises="Contrastive loss over the whole batch: normalized products, a filled diagonal.",
)
def simclr(batch: int = 8, size: str = "tiny") -> Made:
    """SimCLR (arXiv 2002.05709) with a small residual encoder."""
    width, depth, side = pick(size, (16, 1, 48), (64, 4, 224))
    layers: list[nn.Module] = [conv(3, width, 3, 2)]
    for stage in range(3):
        here = width << stage
        layers += [Residual(conv(here, here), conv(here, here)) for _ in range(depth)]
        layers.append(conv(here, 2 * here, 3, 2))
    net = nn.Sequential(*layers, _Head(8 * width, 128), nn.ReLU(), nn.Linear(128, 64))
    views = (torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side))
    return trained(_TwoViews(net), views, _other_view_loss, momentum)
