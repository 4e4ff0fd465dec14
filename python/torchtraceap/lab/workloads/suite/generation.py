"""Generative image models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.classification import Patches
from torchtraceap.lab.workloads.suite.layers import (
    Attention,
    Made,
    Residual,
    adam,
    adamw,
    classes,
    conv,
    perceptron,
    pick,
    supervised,
    trained,
)  # fmt: skip


def _down_and_up(width: int, channels: int, code: int) -> tuple[nn.Module, nn.Module]:
    """Return an encoder to a quarter of the side with `code` channels, and its decoder."""
    encoder = nn.Sequential(
        nn.Conv2d(channels, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(2 * width, code, 1),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.ConvTranspose2d(code, 2 * width, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, channels, 1),
    )  # fmt: skip
    return encoder, decoder


class _Variational(nn.Module):
    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encoder, _ = _down_and_up(width, 3, 2 * code)
        _, self.decoder = _down_and_up(width, 3, code)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.encoder(x).float().chunk(2, 1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        apart = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).flatten(1).sum(1)
        return self.decoder(code), apart


def _evidence_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    made, apart = output
    entropy = functional.binary_cross_entropy_with_logits(made, target, reduction="none")
    return (entropy.flatten(1).sum(1) + apart).mean()


@workload(
    task="generation",
    domain="vision",
    exercises="A reparametrised draw of random numbers in each step, exponentials, chunks.",
)
def vae(batch: int = 8, size: str = "tiny") -> Made:
    """A variational autoencoder (arXiv 1312.6114) with convolutions."""
    width, code, side = pick(size, (16, 4, 32), (128, 16, 128))
    images = torch.rand(batch, 3, side, side)
    return supervised(_Variational(width, code), images, images, _evidence_loss, adam)


class _Quantised(nn.Module):
    """Vector quantization: each position takes the nearest code word, with a straight-through
    gradient."""

    def __init__(self, width: int, code: int, words: int) -> None:
        super().__init__()
        self.encoder, self.decoder = _down_and_up(width, 3, code)
        self.book = nn.Embedding(words, code)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.encoder(x).float().permute(0, 2, 3, 1)
        flat = seen.flatten(0, 2)
        word = torch.cdist(flat, self.book.weight).argmin(1)
        near = self.book(word).view_as(seen)
        apart = functional.mse_loss(near, seen.detach()) + 0.25 * functional.mse_loss(
            seen, near.detach()
        )
        used = torch.bincount(word, minlength=self.book.num_embeddings).to(x.dtype) / len(word)
        spread = torch.special.entr(used).sum()
        code = seen + (near - seen).detach()
        return self.decoder(code.permute(0, 3, 1, 2)), apart + 0 * spread


@workload(
    task="generation",
    domain="vision",
    exercises="A code book by cdist and argmin, bincount, detached straight-through gradients.",
)
def vqvae(batch: int = 8, size: str = "tiny") -> Made:
    """VQ-VAE (arXiv 1711.00937)."""
    width, code, words, side = pick(size, (16, 8, 64, 32), (128, 64, 1024, 128))
    images = torch.randn(batch, 3, side, side)
    return supervised(
        _Quantised(width, code, words), images, images,
        lambda output, target: functional.l1_loss(output[0], target) + output[1], adam,
    )  # fmt: skip


class _Adversaries(nn.Module):
    """A generator and a discriminator, each of which learns against a frozen copy of the other."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(code, 4 * width, 4), nn.BatchNorm2d(4 * width), nn.ReLU(),
            nn.ConvTranspose2d(4 * width, width, 4, 4), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            norm(nn.Conv2d(3, width, 4, 2, 1)), nn.LeakyReLU(0.2),
            norm(nn.Conv2d(width, 4 * width, 4, 4)), nn.LeakyReLU(0.2),
            norm(nn.Conv2d(4 * width, 1, 4)), nn.Flatten(),
        )  # fmt: skip

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fake = self.generator(noise)
        frozen = {
            name: each.detach()
            for name, each in (
                *self.discriminator.named_parameters(), *self.discriminator.named_buffers()
            )
        }  # fmt: skip
        judged = torch.func.functional_call(self.discriminator, frozen, (fake,))
        return self.discriminator(real), self.discriminator(fake.detach()), judged


def _hinge_loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    real, fake, judged = output
    return (1 - real).relu().mean() + (1 + fake).relu().mean() - judged.mean()


@workload(
    task="generation",
    domain="vision",
    exercises="Two networks in one step, spectral normalization, functional calls, tanh.",
)
def gan(batch: int = 8, size: str = "tiny") -> Made:
    """DCGAN (arXiv 1511.06434) with spectral normalization and hinge losses."""
    width, code = pick(size, (16, 16), (128, 128))
    inputs = (torch.randn(batch, 3, 32, 32), torch.randn(batch, code, 1, 1))
    return trained(
        _Adversaries(width, code), inputs, _hinge_loss,
        lambda weights: torch.optim.Adam(weights, lr=2e-4, betas=(0.5, 0.999)),
    )  # fmt: skip


def times_as_waves(time: Tensor, width: int) -> Tensor:
    """Return sinusoidal embeddings of times, `[batch, width]`."""
    rates = torch.exp(torch.arange(width // 2, device=time.device) * (-9.2 / (width // 2)))
    angles = time[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


class _Timed(nn.Module):
    """A residual block with a time embedding and attention over positions."""

    def __init__(self, inputs: int, width: int, told: int, looks: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, width, 3, 1, 1)
        )
        self.time = nn.Linear(told, width)
        self.second = nn.Sequential(
            nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1)
        )
        self.short = nn.Conv2d(inputs, width, 1)
        self.attention = Attention(width, 2) if looks else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.second(self.first(x) + self.time(time)[:, :, None, None])
        y = y + self.short(x)
        if self.attention is not None:
            y = y + self.attention(y.flatten(2).mT).mT.reshape(y.shape)
        return y


class _Denoiser(nn.Module):
    """A U-Net that predicts the added noise."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth)]
        self.told = 4 * width
        self.time = perceptron(width, self.told, self.told, activation=nn.SiLU)
        self.stem, self.width = nn.Conv2d(3, width, 3, 1, 1), width
        pairs = list(zip([width, *widths[:-1]], widths, strict=True))
        looks = [level == depth - 1 for level in range(depth)]
        blocks = zip(pairs, looks, strict=True)
        self.down = nn.ModuleList(_Timed(a, b, self.told, look) for (a, b), look in blocks)
        self.up = nn.ModuleList(_Timed(2 * b, a, self.told, False) for a, b in reversed(pairs))
        self.last = nn.Conv2d(width, 3, 3, 1, 1)
        steps = torch.linspace(1e-4, 0.02, 1000)
        self.register_buffer("kept", torch.cumprod(1 - steps, 0))

    def forward(self, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        kept = self.kept[time][:, None, None, None]
        x = self.stem(kept.sqrt() * x + (1 - kept).sqrt() * noise)
        told, skips = self.time(times_as_waves(time, self.width)), []
        for down in self.down:
            x = down(x, told)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        for up in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, skips.pop()], 1), told)
        return self.last(x)


@workload(
    task="generation",
    domain="vision",
    exercises="Group normalization, time embeddings by sines, attention inside a U-Net.",
)
def ddpm(batch: int = 4, size: str = "tiny") -> Made:
    """A denoising step of DDPM (arXiv 2006.11239)."""
    width, depth, side = pick(size, (16, 3, 24), (128, 4, 64))
    images, noise = torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side)
    return supervised(
        _Denoiser(width, depth), (images, classes(batch, 1000), noise), noise, functional.mse_loss
    )


class _Modulated(nn.Module):
    """A transformer layer whose norms take scale and shift from a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.told = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        told = self.told(condition)[:, None].chunk(6, -1)
        x = x + told[0] * self.attention(torch.addcmul(told[1], self.norm(x), 1 + told[2]))
        return x + told[3] * self.mlp(torch.addcmul(told[4], self.norm(x), 1 + told[5]))


class _DiT(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, side: int) -> None:
        super().__init__()
        self.patches, self.width = Patches(side, 4, width), width
        self.time, self.label = perceptron(width, width, width), nn.Embedding(11, width)
        self.layers = nn.ModuleList(_Modulated(width, heads) for _ in range(depth))
        self.last = nn.Linear(width, 48)

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        condition = self.time(times_as_waves(time, self.width)) + self.label(label)
        y = self.patches(x)
        for layer in self.layers:
            y = layer(y, condition)
        patches = self.last(y[:, 1:]).mT
        return functional.fold(patches, x.shape[-2:], 4, stride=4)


@workload(
    task="generation",
    domain="vision",
    exercises="Modulated norms by addcmul, tanh GELU, patches folded back to a picture.",
)
def dit(batch: int = 4, size: str = "tiny") -> Made:
    """DiT (arXiv 2212.09748), with DiT-B/4 on latents of 256 pixels in full; its loss is flow
    matching."""
    width, depth, heads, side = pick(size, (64, 3, 4, 16), (768, 12, 12, 32))
    images, noise = torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side)
    time = torch.rand(batch)
    mixed = torch.lerp(images, noise, time[:, None, None, None])
    inputs = (mixed, 1000 * time, classes(batch, 11))
    net = _DiT(width, depth, heads, side)
    return supervised(net, inputs, noise - images, functional.mse_loss)


class _Coupling(nn.Module):
    """An affine coupling layer, in which half of the channels scale and shift the others, then a
    mixing of channels."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, channels, 3, 1, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.einsum("oc,bchw->bohw", self.mix, x)
        kept, other = x.chunk(2, 1)
        scale, shift = self.net(kept).float().chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        volume = scale.log().flatten(1).sum(1)
        volume = volume + torch.linalg.slogdet(self.mix.float())[1] * x[0, 0].numel()
        return torch.cat([kept, other * scale + shift], 1), volume


class _Flow(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Coupling(12, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.pixel_unshuffle(x, 2)
        total = torch.zeros(len(x), device=x.device)
        for layer in self.layers:
            y, volume = layer(y)
            total = total + volume
        spread = 0.5 * y.float().square().flatten(1).sum(1) + 0.5 * math.log(2 * math.pi)
        return (spread - total).mean() / x[0].numel()


def _identity(output: Tensor) -> Tensor:
    return output


@workload(
    task="generation",
    domain="vision",
    exercises="Determinants by slogdet, pixel_unshuffle, a likelihood as the model's output.",
)
def glow(batch: int = 4, size: str = "tiny") -> Made:
    """A normalizing flow after Glow (arXiv 1807.03039)."""
    width, depth, side = pick(size, (16, 4, 24), (512, 32, 64))
    return trained(_Flow(width, depth), (torch.randn(batch, 3, side, side),), _identity, adam)


@workload(
    task="super-resolution",
    domain="vision",
    exercises="Pixel shuffle, reflected padding, long residual chains, L1 loss.",
)
def super_resolution(batch: int = 4, size: str = "tiny") -> Made:
    """Super-resolution by a factor of two, after EDSR (arXiv 1707.02921)."""
    width, depth, side = pick(size, (16, 4, 24), (256, 32, 96))
    body = (
        Residual(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
        )
        for _ in range(depth)
    )  # fmt: skip
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), Residual(*body),
        nn.Conv2d(width, 12, 3, 1, 1), nn.PixelShuffle(2),
    )  # fmt: skip
    target = torch.randn(batch, 3, 2 * side, 2 * side)
    return supervised(net, torch.randn(batch, 3, side, side), target, functional.l1_loss, adam)


class _Styled(nn.Module):
    """A network that paints, and a frozen one that extracts features of the painting."""

    def __init__(self, width: int) -> None:
        super().__init__()
        norm = nn.InstanceNorm2d(width, affine=True)
        self.painter = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1), norm, nn.ReLU(), nn.Conv2d(width, 3, 3, 1, 1)
        )
        looking = (nn.Sequential(conv(a, b), nn.MaxPool2d(2)) for a, b in ((3, 16), (16, 32)))
        self.looking = nn.ModuleList(looking).requires_grad_(False)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        made, apart = self.painter(x), []
        for look in self.looking:
            made, style = look(made), look(style)
            apart.append((_gram(made) - _gram(style)).square().mean())
        return torch.stack(apart).sum()


def _gram(x: Tensor) -> Tensor:
    flat = x.flatten(2).float()
    return torch.baddbmm(flat.new_zeros(()), flat, flat.mT, alpha=1 / flat.shape[2])


@workload(
    task="style transfer",
    domain="vision",
    exercises="Gram matrices by baddbmm, instance normalization, a frozen network under gradients.",
)
def style_transfer(batch: int = 2, size: str = "tiny") -> Made:
    """Style transfer by perceptual losses of a frozen network (arXiv 1603.08155)."""
    width, side = pick(size, (16, 48), (128, 256))
    inputs = (torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side))
    return trained(_Styled(width), inputs, _identity, adamw)


class _Masked(nn.Conv2d):
    """A masked convolution that sees only what precedes a pixel."""

    def __init__(self, inputs: int, outputs: int, kernel: int, itself: bool) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        mask = torch.ones(kernel, kernel)
        mask[kernel // 2, kernel // 2 + itself :] = 0
        mask[kernel // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.mask, self.bias)


class _Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.out = _Masked(width, 2 * width, 5, True), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Any:
        return x + self.out(functional.glu(self.layer(x), 1))


@workload(
    task="generation",
    domain="vision",
    exercises="Masked kernels, gated linear units, a softmax over 256 values at each pixel.",
)
def pixelcnn(batch: int = 4, size: str = "tiny") -> Made:
    """A network after Gated PixelCNN (arXiv 1606.05328) with one channel."""
    width, depth, side = pick(size, (16, 3, 16), (128, 15, 32))
    net = nn.Sequential(
        _Masked(1, width, 7, False), *(_Gated(width) for _ in range(depth)),
        nn.ReLU(), nn.Conv2d(width, 256, 1),
    )  # fmt: skip
    values = classes(batch, 256, side, side)
    return supervised(net, values[:, None] / 255.0, values)
