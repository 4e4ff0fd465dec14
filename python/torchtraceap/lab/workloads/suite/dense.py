"""Dense prediction models: segmentation, depth and poses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.detection import Pyramid
from torchtraceap.lab.workloads.suite.layers import (
    Block,
    Made,
    Residual,
    adam,
    classes,
    conv,
    momentum,
    perceptron,
    pick,
    supervised,
)  # fmt: skip

_CLASSES = 21


class UNet(nn.Module):
    """An encoder with pooling and a decoder with transposed convolutions and skip connections."""

    def __init__(self, inputs: int, outputs: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth)]
        self.down = nn.ModuleList(
            nn.Sequential(conv(a, b), conv(b, b))
            for a, b in zip([inputs, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in widths[-2::-1])
        self.merge = nn.ModuleList(
            nn.Sequential(conv(2 * a, a), conv(a, a)) for a in widths[-2::-1]
        )
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for place, down in enumerate(self.down):
            x = down(functional.max_pool2d(x, 2) if place else x)
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.last(x)


def _dice_loss(output: Tensor, target: Tensor) -> Tensor:
    likely = output.float().softmax(1)
    wanted = functional.one_hot(target, _CLASSES).permute(0, 3, 1, 2)
    shared = (likely * wanted).sum((2, 3))
    dice = (2 * shared + 1) / (likely.sum((2, 3)) + wanted.sum((2, 3)) + 1)
    return functional.cross_entropy(output, target) + 1 - dice.mean()


@workload(
    task="segmentation",
    domain="vision",
    exercises="Transposed convolutions, wide concatenations, Dice loss over one-hot maps.",
)
def unet(batch: int = 2, size: str = "tiny") -> Made:
    """U-Net (arXiv 1505.04597) with batch normalization."""
    width, depth, side = pick(size, (8, 3, 48), (64, 5, 256))
    net = UNet(3, _CLASSES, width, depth)
    return supervised(
        net,
        torch.randn(batch, 3, side, side),
        classes(batch, _CLASSES, side, side),
        _dice_loss,
        adam,
    )


class _Atrous(nn.Module):
    """Atrous convolutions of several rates, with global pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.views = nn.ModuleList(conv(width, width, 3, dilation=by) for by in (1, 6, 12))
        self.whole = nn.Conv2d(width, width, 1)
        self.merge = conv(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.whole(x.mean((2, 3), keepdim=True)).expand_as(x)
        return self.merge(torch.cat([*(view(x) for view in self.views), whole], 1))


@workload(
    task="segmentation",
    domain="vision",
    exercises="Dilated convolutions, bilinear interpolation, ignored labels.",
)
def deeplab(batch: int = 4, size: str = "tiny") -> Made:
    """A network after DeepLabv3 (arXiv 1706.05587)."""
    width, depth, side = pick(size, (16, 1, 64), (256, 6, 512))
    layers = [conv(3, width, 3, 2), conv(width, width, 3, 2), conv(width, width, 3, 2)]
    net = nn.Sequential(
        *layers, *(Residual(conv(width, width, dilation=2)) for _ in range(depth)),
        _Atrous(width), nn.Conv2d(width, _CLASSES, 1),
        nn.Upsample(scale_factor=8, mode="bilinear", align_corners=False),
    )  # fmt: skip
    target = classes(batch, _CLASSES, side, side).masked_fill_(torch.rand(side, side) < 0.1, 255)
    return supervised(
        net, torch.randn(batch, 3, side, side), target,
        lambda output, wanted: functional.cross_entropy(output, wanted, ignore_index=255),
        momentum,
    )  # fmt: skip


class _Masks(nn.Module):
    """A mask for each query, as the product of its token with the feature map."""

    def __init__(self, width: int, queries: int, depth: int) -> None:
        super().__init__()
        self.pyramid = Pyramid(width, 1)
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.layers = nn.ModuleList(Block(width, cross=True) for _ in range(depth))
        self.logits, self.mask = nn.Linear(width, _CLASSES), perceptron(width, width, width)

    def forward(self, x: Tensor) -> Tensor:
        fine, _, coarse = self.pyramid(x)
        asked = self.queries.expand(len(x), -1, -1)
        for layer in self.layers:
            asked = layer(asked, coarse.flatten(2).mT)
        masks = torch.einsum("bqc,bchw->bqhw", self.mask(asked), fine).sigmoid()
        return torch.einsum("bqk,bqhw->bkhw", self.logits(asked).softmax(-1), masks)


@workload(
    task="segmentation",
    domain="vision",
    exercises="Masks by einsum of queries and a map, cross-attention, negative log likelihood.",
)
def mask_queries(batch: int = 4, size: str = "tiny") -> Made:
    """A network after MaskFormer (arXiv 2107.06278), with a loss on pixel classes."""
    width, queries, depth, side = pick(size, (32, 12, 2, 64), (256, 100, 6, 512))
    target = classes(batch, _CLASSES, side // 4, side // 4)
    return supervised(
        _Masks(width, queries, depth), torch.randn(batch, 3, side, side), target,
        lambda output, wanted: functional.nll_loss(output.float().clamp(min=1e-6).log(), wanted),
    )  # fmt: skip


class _Depth(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.pyramid = Pyramid(width, depth)
        self.fuse = nn.ModuleList(Residual(nn.ELU(), conv(width, width)) for _ in range(3))
        self.last = nn.Sequential(nn.Conv2d(width, 1, 3, 1, 1), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        maps = self.pyramid(x)
        y = self.fuse[0](maps[2])
        for fuse, finer in zip(self.fuse[1:], (maps[1], maps[0]), strict=True):
            up = functional.interpolate(y, scale_factor=2.0, mode="bicubic", align_corners=True)
            y = fuse(up + finer)
        return self.last(y)


def _depth_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the scale-invariant loss of Eigen et al. (arXiv 1406.2283) where depth is known, and
    the smoothness of gradients."""
    apart = (output.float() + 1e-3).log() - target.clamp(min=1e-3).log()
    known = target > 0.1
    mean = (apart * known).sum() / known.sum()
    spread = (apart.square() * known).sum() / known.sum()
    slopes = output.diff(dim=2).abs().mean() + output.diff(dim=3).abs().mean()
    return spread - 0.5 * mean.square() + 0.1 * slopes


@workload(
    task="depth",
    domain="vision",
    exercises="Bicubic interpolation, ELU, softplus, differences of neighbors in the loss.",
)
def depth_decoder(batch: int = 4, size: str = "tiny") -> Made:
    """Depth from one image, by an encoder and a decoder that fuses its maps."""
    width, depth, side = pick(size, (16, 1, 64), (256, 3, 384))
    target = 5 * torch.rand(batch, 1, side // 4, side // 4)
    return supervised(_Depth(width, depth), torch.randn(batch, 3, side, side), target, _depth_loss)


class _Warped(nn.Module):
    """Depth of one view and the motion to another, by which the other view is warped."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.depth = UNet(3, 1, width, depth)
        self.motion = nn.Sequential(conv(6, width, 3, 2), conv(width, 6, 3, 2))

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        near = self.depth(one).float().sigmoid()
        motion = 0.01 * self.motion(torch.cat([one, other], 1)).float().mean((2, 3))
        theta = torch.eye(2, 3, device=one.device) + motion.view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(one.shape), align_corners=False)
        grid = grid + 0.05 * near.permute(0, 2, 3, 1)
        made = functional.grid_sample(other, grid, padding_mode="reflection", align_corners=False)
        return made, near


def _photometric_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the structural similarity (SSIM) and brightness loss."""
    made, near = output
    a, b = (functional.avg_pool2d(each, 3, 1) for each in (made, target))
    aa, bb, ab = (
        functional.avg_pool2d(each, 3, 1) for each in (made * made, target * target, made * target)
    )
    alike = (2 * a * b + 1e-2) * (2 * (ab - a * b) + 1e-2)
    alike = alike / ((a * a + b * b + 1e-2) * (aa - a * a + bb - b * b + 1e-2))
    return 0.5 * (1 - alike).clamp(0, 2).mean() + (made - target).abs().mean() + near.mean()


@workload(
    task="depth",
    domain="vision",
    exercises="Affine grids, warping by grid_sample with gradients of the grid, SSIM.",
)
def monodepth(batch: int = 2, size: str = "tiny") -> Made:
    """Depth learned from two views without labels, after Monodepth2 (arXiv 1806.01260)."""
    width, depth, side = pick(size, (8, 3, 48), (64, 5, 256))
    one, other = torch.rand(batch, 3, side, side), torch.rand(batch, 3, side, side)
    return supervised(_Warped(width, depth), (one, other), one, _photometric_loss, adam)


class _Joints(nn.Module):
    """A heat map for each joint, whose mean position is the joint."""

    def __init__(self, width: int, depth: int, joints: int) -> None:
        super().__init__()
        down = [conv(3 if not i else width, width, 3, 2) for i in range(3)]
        body = [Residual(conv(width, width), conv(width, width)) for _ in range(depth)]
        up = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.layers = nn.Sequential(*down, *body, up, nn.ReLU(), nn.Conv2d(width, joints, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        heat = self.layers(x)
        share = heat.float().flatten(2).softmax(-1).view_as(heat)
        at = torch.linspace(-1, 1, heat.shape[-1], device=x.device)
        return heat, torch.stack([(share.sum(2) * at).sum(-1), (share.sum(3) * at).sum(-1)], -1)


def _heat_and_place_loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(output[0], target[0]) + functional.huber_loss(output[1], target[1])


@workload(
    task="pose",
    domain="vision",
    exercises="Heat maps, their spatial softmax and mean place, Huber loss.",
)
def heatmap_pose(batch: int = 4, size: str = "tiny") -> Made:
    """A network after Simple Baselines (arXiv 1804.06208), with integral regression of the
    joints."""
    width, depth, side = pick(size, (16, 2, 64), (256, 8, 256))
    target = (torch.rand(batch, 17, side // 4, side // 4), torch.rand(batch, 17, 2))
    net = _Joints(width, depth, 17)
    return supervised(net, torch.randn(batch, 3, side, side), target, _heat_and_place_loss, adam)


class _Hourglass(nn.Module):
    """A recursive encoder and decoder with a shortcut at each level."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.short = Residual(conv(width, width))
        self.down, self.up = conv(width, width), conv(width, width)
        self.inner = _Hourglass(width, levels - 1) if levels > 1 else Residual(conv(width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.inner(self.down(functional.max_pool2d(x, 2))))
        return self.short(x) + functional.interpolate(y, size=x.shape[-2:])


class _Stacked(nn.Module):
    """A stack of hourglasses, each of which sees the result of the previous one."""

    def __init__(self, width: int, levels: int, many: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 7, 2), conv(width, width, 3, 2))
        self.glasses = nn.ModuleList(_Hourglass(width, levels) for _ in range(many))
        self.heats = nn.ModuleList(nn.Conv2d(width, 17, 1) for _ in range(many))
        self.backs = nn.ModuleList(nn.Conv2d(17, width, 1) for _ in range(many))

    def forward(self, x: Tensor) -> Tensor:
        x, found = self.stem(x), []
        for glass, heat, back in zip(self.glasses, self.heats, self.backs, strict=True):
            y = glass(x)
            found.append(heat(y))
            x = x + y + back(found[-1])
        return torch.stack(found)


@workload(
    task="pose",
    domain="vision",
    exercises="A recursive network with many small kernels, and a loss at each stack.",
)
def hourglass(batch: int = 4, size: str = "tiny") -> Made:
    """Stacked hourglasses (arXiv 1603.06937)."""
    width, levels, many, side = pick(size, (16, 3, 2, 64), (256, 4, 2, 256))
    target = torch.rand(1, batch, 17, side // 4, side // 4).expand(many, -1, -1, -1, -1)
    return supervised(
        _Stacked(width, levels, many), torch.randn(batch, 3, side, side), target,
        functional.mse_loss,
        lambda weights: torch.optim.RMSprop(weights, lr=2.5e-4),
    )  # fmt: skip
