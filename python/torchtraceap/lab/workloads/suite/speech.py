"""Speech and audio models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import (
    Attention,
    Made,
    adam,
    classes,
    perceptron,
    pick,
    supervised,
)  # fmt: skip

_LETTERS = 32


def _ctc_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the CTC loss."""
    likely = output.float().log_softmax(-1).transpose(0, 1)
    heard = torch.full((likely.shape[1],), likely.shape[0], dtype=torch.long)
    written = torch.full((len(target),), target.shape[1], dtype=torch.long)
    return functional.ctc_loss(likely, target, heard, written, zero_infinity=True)


def _letters(batch: int, length: int) -> Tensor:
    return classes(batch, _LETTERS - 1, length) + 1


class _Raw(nn.Module):
    """Strided convolutions on a waveform, then a transformer with convolutional positions."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place, (kernel, stride) in enumerate(((10, 5), (3, 2), (3, 2), (3, 2), (2, 2))):
            layers += [nn.Conv1d(width if place else 1, width, kernel, stride, bias=False)]
            layers += [nn.GELU()] if place else [nn.GroupNorm(width, width), nn.GELU()]
        self.waves = nn.Sequential(*layers)
        norm = nn.utils.parametrizations.weight_norm
        self.places = norm(nn.Conv1d(width, width, 17, padding=8, groups=4), dim=2)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, _LETTERS)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.waves(wave)
        return self.head(self.layers((x + functional.gelu(self.places(x))).mT))


@workload(
    task="speech recognition",
    domain="speech",
    exercises="Convolutions over a raw wave, weight normalization, CTC.",
)
def wav2vec(batch: int = 2, size: str = "tiny") -> Made:
    """A network after wav2vec 2.0 (arXiv 2006.11477), trained with CTC."""
    width, depth, heads, length = pick(size, (32, 2, 4, 4000), (512, 12, 8, 160000))
    wave, text = torch.randn(batch, 1, length), _letters(batch, length // 800)
    return supervised(_Raw(width, depth, heads), wave, text, _ctc_loss)


class _Conformer(nn.Module):
    """A Conformer layer: half a perceptron, attention, convolution, half a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        halves = (perceptron(width, 4 * width, width, activation=nn.SiLU) for _ in range(2))
        self.first, self.last = halves
        self.attention = Attention(width, heads)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1),
            nn.Conv1d(width, width, 15, padding=7, groups=width), nn.BatchNorm1d(width),
            nn.SiLU(), nn.Conv1d(width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(self.norms[0](x))
        x = x + self.attention(self.norms[1](x))
        x = x + self.conv(self.norms[2](x).mT).mT
        return self.norms[4](x + 0.5 * self.last(self.norms[3](x)))


class _Heard(nn.Module):
    """A subsampled mel spectrogram, then Conformer layers."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        stem = (
            nn.Conv2d(1, width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.ReLU(),
        )
        self.stem, self.enter = nn.Sequential(*stem), nn.Linear(20 * width, width)
        self.layers = nn.Sequential(*(_Conformer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, _LETTERS)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.stem(mel[:, None]).transpose(1, 2).flatten(2)
        return self.head(self.layers(self.enter(x)))


@workload(
    task="speech recognition",
    domain="speech",
    exercises="Gated and depthwise one-dimensional convolutions next to attention, GLU, CTC.",
)
def conformer(batch: int = 2, size: str = "tiny") -> Made:
    """Conformer (arXiv 2005.08100)."""
    width, depth, heads, frames = pick(size, (32, 2, 4, 128), (256, 12, 4, 1600))
    mel, text = torch.randn(batch, frames, 80), _letters(batch, frames // 16)
    return supervised(_Heard(width, depth, heads), mel, text, _ctc_loss)


class _Listener(nn.Module):
    """A recurrent encoder and a recurrent predictor; each pair of their states predicts a
    letter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.GRU(80, width, 2, batch_first=True, bidirectional=True)
        self.letters, self.predictor = nn.Embedding(_LETTERS, width), nn.GRU(width, width)
        self.left, self.right = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.joint = nn.Linear(width, _LETTERS)

    def forward(self, mel: Tensor, text: Tensor) -> Tensor:
        heard = self.left(self.encoder(mel)[0])
        said = self.right(
            self.predictor(self.letters(functional.pad(text, (1, 0))).transpose(0, 1))[0]
        )
        both = torch.tanh(heard[:, :, None] + said.transpose(0, 1)[:, None])
        return self.joint(both).float().log_softmax(-1)


def _transducer_loss(likely: Tensor, text: Tensor) -> Tensor:
    """Return the transducer loss, computed along diagonals of the lattice of frames and letters."""
    batch, frames, states, _ = likely.shape
    silent = likely[..., 0]
    index = text[:, None, :, None].expand(-1, frames, -1, 1)
    spoken = likely[:, :, :-1].gather(3, index).squeeze(3)
    impossible = likely.new_full((batch, 1), float("-1e30"))
    before = [silent.new_zeros(batch), *[impossible[:, 0]] * (states - 1)]
    row = torch.stack(before, 1)
    for frame in range(frames):
        cells = [row[:, :1] if frame == 0 else row[:, :1] + silent[:, frame - 1, :1]]
        for state in range(1, states):
            stay = row[:, state : state + 1]
            if frame:
                stay = stay + silent[:, frame - 1, state : state + 1]
            move = cells[-1] + spoken[:, frame, state - 1 : state]
            cells.append(torch.logaddexp(stay, move))
        row = torch.cat(cells, 1)
    return -(row[:, -1] + silent[:, -1, -1]).mean() / frames


@workload(
    task="streaming speech recognition",
    domain="speech",
    exercises="A lattice of every frame and letter, filled cell by cell: launch-bound.",
)
def transducer(batch: int = 2, size: str = "tiny") -> Made:
    """An RNN transducer (arXiv 1211.3711) with its loss in plain PyTorch."""
    width, frames, letters = pick(size, (32, 16, 4), (512, 100, 16))
    mel, text = torch.randn(batch, frames, 80), _letters(batch, letters)
    return supervised(_Listener(width), (mel, text), text, _transducer_loss)


class _Speaker(nn.Module):
    """Letters to a spectrogram, frame by frame, with location-sensitive attention."""

    def __init__(self, width: int, mels: int = 40) -> None:
        super().__init__()
        self.letters = nn.Embedding(_LETTERS, width)
        self.encoder = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout()
        )
        self.before = nn.Sequential(perceptron(mels, width, width), nn.ReLU(), nn.Dropout())
        self.cell = nn.LSTMCell(2 * width, width)
        self.where, self.query = nn.Conv1d(1, width, 7, padding=3), nn.Linear(width, width)
        self.score, self.frame = nn.Linear(width, 1), nn.Linear(2 * width, mels + 1)

    def forward(self, text: Tensor, mel: Tensor) -> Tensor:
        memory = self.encoder(self.letters(text).mT).mT
        hidden = cell = memory.new_zeros(len(memory), memory.shape[2])
        looked, share = hidden, memory.new_zeros(memory.shape[:2])
        frames = []
        for frame in functional.pad(mel, (0, 0, 1, -1)).unbind(1):
            told = torch.cat([self.before(frame), looked], -1).to(hidden.dtype)
            hidden, cell = self.cell(told, (hidden, cell))
            place = self.where(share[:, None]).mT
            energy = self.score(torch.tanh(self.query(hidden)[:, None] + memory + place))
            share = energy.squeeze(2).softmax(1)
            looked = torch.einsum("bl,blw->bw", share.to(memory.dtype), memory)
            frames.append(self.frame(torch.cat([hidden, looked.to(hidden.dtype)], -1)))
        return torch.stack(frames, 1)


@workload(
    task="speech synthesis",
    domain="speech",
    exercises="An LSTM cell, attention and a convolution of where it was, for each frame.",
)
def tacotron(batch: int = 4, size: str = "tiny") -> Made:
    """A network after Tacotron 2 (arXiv 1712.05884)."""
    width, letters, frames = pick(size, (32, 16, 16), (512, 128, 400))
    mel = torch.randn(batch, frames, 40)
    stop = torch.zeros(batch, frames, 1)
    inputs = (_letters(batch, letters), mel)
    return supervised(
        _Speaker(width), inputs, torch.cat([mel, stop], -1), functional.mse_loss, adam
    )


class _Wave(nn.Module):
    """Dilated causal convolutions with gates and skip connections to the output."""

    def __init__(self, width: int, depth: int, rounds: int) -> None:
        super().__init__()
        self.values, self.by = nn.Embedding(256, width), [1 << i for i in range(depth)] * rounds
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=by) for by in self.by)
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in self.by)
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1)
        )

    def forward(self, values: Tensor) -> Tensor:
        x = self.values(values).mT
        total = torch.zeros_like(x)
        for by, layer, out in zip(self.by, self.layers, self.outs, strict=True):
            shown, gate = layer(functional.pad(x, (by, 0))).chunk(2, 1)
            rest, skip = out(shown.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + rest, total + skip
        return self.head(total)


@workload(
    task="audio generation",
    domain="speech",
    exercises="Dilated causal convolutions with padding on one side, tanh times sigmoid.",
)
def wavenet(batch: int = 2, size: str = "tiny") -> Made:
    """WaveNet (arXiv 1609.03499) over 256 values."""
    width, depth, rounds, length = pick(size, (16, 5, 1, 400), (128, 10, 3, 16000))
    values = classes(batch, 256, length)
    return supervised(_Wave(width, depth, rounds), values, values.roll(-1, 1))


class _Mel(nn.Module):
    """A mel spectrogram with SpecAugment in training."""

    def __init__(self, window: int, mels: int) -> None:
        super().__init__()
        self.size = window
        self.register_buffer("window", torch.hann_window(window))
        self.register_buffer("filters", torch.rand(mels, window // 2 + 1))

    def forward(self, wave: Tensor) -> Tensor:
        turned = torch.stft(
            wave.float(), self.size, self.size // 4, window=self.window, return_complex=True
        )
        loud = (self.filters @ turned.abs().square()).clamp(min=1e-6).log()
        if self.training:
            at = torch.arange(loud.shape[2], device=loud.device)
            start = torch.randint(loud.shape[2], (len(loud), 1, 1), device=loud.device)
            loud = loud.masked_fill((at >= start) & (at < start + 4), 0)
        return loud


@workload(
    task="keyword spotting",
    domain="speech",
    exercises="Short-time Fourier transforms and logarithms in the model, masked stripes.",
)
def keyword_spotting(batch: int = 8, size: str = "tiny") -> Made:
    """Keyword spotting with a spectrogram and separable convolutions (arXiv 1711.07128)."""
    width, mels, length = pick(size, (16, 20, 4000), (172, 80, 16000))
    layers = [nn.Unflatten(1, (1, mels)), nn.Conv2d(1, width, 3, 2, 1), nn.ReLU()]
    for _ in range(3):
        layers += [
            nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.Conv2d(width, width, 1),
            nn.BatchNorm2d(width), nn.Hardswish(),
        ]  # fmt: skip
    head = (nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(width, 35))
    net = nn.Sequential(_Mel(256, mels), *layers, *head)
    return supervised(net, torch.randn(batch, length), classes(batch, 35))


class _Statistics(nn.Module):
    """Mean and spread over time."""

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(x.float(), 2)
        return torch.cat([mean, (spread + 1e-5).sqrt()], 1).to(x.dtype)


class _Voices(nn.Module):
    """An embedding of a speaker, compared with all speakers by angles."""

    def __init__(self, width: int, voices: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place, (kernel, by) in enumerate(((5, 1), (3, 2), (3, 3), (1, 1))):
            inputs = width if place else 24
            layers += [
                nn.Conv1d(inputs, width, kernel, dilation=by),
                nn.ReLU(),
                nn.BatchNorm1d(width),
            ]
        self.body = nn.Sequential(*layers, _Statistics(), nn.Linear(2 * width, width))
        self.voices = nn.Parameter(torch.randn(voices, width))

    def forward(self, frames: Tensor) -> Tensor:
        a, b = (functional.normalize(each.float()) for each in (self.body(frames), self.voices))
        return functional.linear(a, b)


def _margin_loss(near: Tensor, voice: Tensor) -> Tensor:
    angle = near.clamp(-0.999, 0.999).acos()
    own = functional.one_hot(voice, near.shape[1]).bool()
    return functional.cross_entropy(20 * torch.where(own, angle + 0.2, angle).cos(), voice)


@workload(
    task="speaker verification",
    domain="speech",
    exercises="Variance and mean over time, angles with a margin (acos, cos), normalized weights.",
)
def speaker(batch: int = 8, size: str = "tiny") -> Made:
    """X-vectors with an angular margin (arXiv 1801.07698)."""
    width, voices, frames = pick(size, (48, 200, 48), (512, 7000, 300))
    net = _Voices(width, voices)
    return supervised(
        net, torch.randn(batch, 24, frames), classes(batch, voices), _margin_loss, adam
    )


class _Separator(nn.Module):
    """Separation of two speakers by masks over a learned transform."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 16, 8, bias=False)
        self.leave = nn.ConvTranspose1d(width, 1, 16, 8, bias=False)
        blocks = (
            nn.Sequential(
                nn.Conv1d(width, width, 1), nn.PReLU(), nn.GroupNorm(1, width),
                nn.Conv1d(width, width, 3, padding=1 << i, dilation=1 << i, groups=width),
                nn.PReLU(), nn.GroupNorm(1, width), nn.Conv1d(width, width, 1),
            )
            for i in range(depth)
        )  # fmt: skip
        self.blocks, self.masks = nn.ModuleList(blocks), nn.Conv1d(width, 2 * width, 1)

    def forward(self, wave: Tensor) -> Tensor:
        seen = self.enter(wave)
        x = seen
        for block in self.blocks:
            x = x + block(x)
        masks = self.masks(x).sigmoid().unflatten(1, (2, -1))
        return self.leave((seen[:, None] * masks).flatten(0, 1)).unflatten(0, (-1, 2)).squeeze(2)


def _negative_snr(output: Tensor, target: Tensor) -> Tensor:
    """Return the permutation-invariant negative signal-to-noise ratio."""
    found = []
    for order in (target, target.flip(1)):
        scale = (output * order).sum(-1, keepdim=True) / order.square().sum(-1, keepdim=True)
        noise = (output - scale * order).float().norm(dim=-1)
        found.append(20 * torch.log10((scale * order).float().norm(dim=-1) / (noise + 1e-8)))
    return -torch.stack([each.mean(1) for each in found]).max(0).values.mean()


@workload(
    task="source separation",
    domain="speech",
    exercises="Transposed one-dimensional convolutions, global norms, the better of two orders.",
)
def tasnet(batch: int = 2, size: str = "tiny") -> Made:
    """Conv-TasNet (arXiv 1809.07454)."""
    width, depth, length = pick(size, (32, 4, 1600), (512, 8, 32000))
    voices = torch.randn(batch, 2, length)
    mixed = voices.sum(1, keepdim=True)
    return supervised(_Separator(width, depth), mixed, voices, _negative_snr, adam)


class _Vocoder(nn.Module):
    """A spectrogram to a waveform, with distances between their spectrograms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(40, width, 7, padding=3)]
        for by in (8, 4, 2):
            layers += [
                nn.LeakyReLU(0.1), nn.ConvTranspose1d(width, width // 2, 2 * by, by, by // 2),
                nn.LeakyReLU(0.1), nn.Conv1d(width // 2, width // 2, 3, padding=3, dilation=3),
            ]  # fmt: skip
            width //= 2
        self.layers = nn.Sequential(*layers, nn.Conv1d(width, 1, 7, padding=3), nn.Tanh())

    def forward(self, mel: Tensor) -> Tensor:
        return self.layers(mel).squeeze(1)


def _spectra_loss(output: Tensor, target: Tensor) -> Tensor:
    apart = []
    for window in (64, 128, 256):
        hann = torch.hann_window(window, device=output.device)
        a, b = (
            torch.stft(each.float(), window, window // 4, window=hann, return_complex=True).abs()
            for each in (output, target)
        )
        apart.append((a - b).abs().mean() + torch.linalg.norm(a - b) / torch.linalg.norm(b))
    return torch.stack(apart).sum()


@workload(
    task="vocoder",
    domain="speech",
    exercises="Long transposed convolutions, gradients through complex Fourier transforms.",
)
def vocoder(batch: int = 2, size: str = "tiny") -> Made:
    """A generator after HiFi-GAN (arXiv 2010.05646) with spectral losses only."""
    width, frames = pick(size, (32, 16), (512, 200))
    mel, wave = torch.randn(batch, 40, frames), torch.randn(batch, 64 * frames)
    return supervised(_Vocoder(width), mel, wave, _spectra_loss)
