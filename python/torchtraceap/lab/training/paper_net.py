"""The network of the paper for training: the twin of `cpp/traceap/model/networks/paper.cpp`.

Both have one set of weights, by the names of this module's parameters, and give equal scores
(tests/python/lab/test_paper_net.py). This one is written to be read beside the paper; but names and
codes pass the front end once each, and of the last layer only the first tokens are computed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchtraceap.diagnosis import PaperConfig, PaperInputs, Weights

__all__ = ["PaperBatch", "PaperNet", "PaperOutput", "batch_of"]

_DELAY_CODES, _DURATION_CODES = 257, 256
_DROPOUT = 0.1
_PLATFORM_DROPOUT = 0.1
"""Probability that a trace in training is of an unknown platform, so that unseen ones mean
something."""


class PaperBatch(NamedTuple):
    """`PaperInputs` as tensors."""

    names: Tensor
    trace_offsets: Tensor
    platform: Tensor
    offsets: Tensor
    name: Tensor
    cpu_name: Tensor
    delay_code: Tensor
    duration_code: Tensor
    position: Tensor
    stream: Tensor


class PaperOutput(NamedTuple):
    """W windows of all traces of a batch, one trace behind the other."""

    scores: Tensor
    """`[W]` in [0, 1]: P_w."""
    features: Tensor
    """`[W, 2d]`: what the last layers see of a window; the contrastive losses compare them."""


def batch_of(inputs: PaperInputs, device: str = "cpu") -> PaperBatch:
    """The arrays on a device."""
    arrays = inputs.arrays()
    return PaperBatch(*(torch.from_numpy(arrays[name]).to(device) for name in PaperBatch._fields))


class PaperNet(nn.Module):
    """Equations 1 to 9. `forward` takes any number of traces."""

    def __init__(self, config: PaperConfig) -> None:
        super().__init__()
        self.config = config
        d, wide = config.width, 2 * config.width
        if config.adapter:
            self.name_adapter = nn.Linear(config.text_width, d)
            self.cpu_adapter = nn.Linear(config.text_width, d)
        else:
            scale = 1 / math.sqrt(config.text_width)
            self.register_buffer("projection", torch.randn(config.text_width, d) * scale)
        self.delay_table = nn.Embedding(_DELAY_CODES, d)
        self.duration_table = nn.Embedding(_DURATION_CODES, d)
        self.delay_norm, self.duration_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.delay_fc, self.duration_fc = nn.Linear(d, d), nn.Linear(d, d)
        self.neck1 = nn.Conv1d(4 * d, wide, 1, bias=False)
        self.neck2 = nn.Conv1d(wide, wide, 3, padding=1, bias=False)
        self.neck_norm1, self.neck_norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.cls = nn.Parameter(torch.randn(wide) * 0.02)
        if config.transformer:
            self.encoder = _Encoder(config)
        self.platform_tokens = nn.Parameter(
            torch.randn(len(config.platforms), config.platform_tokens, wide) * 0.02
        )
        self.platform_norm = nn.LayerNorm(wide)
        self.platform_q, self.platform_out = nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.platform_kv = nn.Linear(wide, 2 * wide)
        if config.relation:
            self.relation = _Relation(config)
        self.head1, self.head2 = nn.Linear(wide, wide), nn.Linear(wide, 1)

    def forward(self, batch: PaperBatch) -> PaperOutput:
        """Scores and features of all windows; a window without events has them too."""
        windows = self._windows(self._events(batch), batch.offsets)
        bounds = batch.trace_offsets.tolist()
        features = [
            self._trace(windows[start:end], int(platform))
            for start, end, platform in zip(bounds, bounds[1:], batch.platform, strict=False)
        ]
        joined = torch.cat(features) if features else windows
        hidden = F.relu(self.head1(joined))
        return PaperOutput(torch.sigmoid(self.head2(hidden)).squeeze(1), joined)

    def _events(self, batch: PaperBatch) -> Tensor:
        """Eq. 1 to 4, 7 and 8: `[events, 2d]`."""
        if self.config.adapter:
            gpu = F.relu(self.name_adapter(batch.names))
            cpu = F.relu(self.cpu_adapter(batch.names))
        else:
            gpu = cpu = batch.names @ self.projection
        delay = F.relu(self.delay_fc(self.delay_norm(self.delay_table.weight)))
        duration = F.relu(self.duration_fc(self.duration_norm(self.duration_table.weight)))
        # A convolution of 1 over [gpu, cpu, delay, duration] is the sum of one over each, and each
        # has few distinct rows.
        parts = zip(
            (gpu, cpu, delay, duration),
            (batch.name, batch.cpu_name, batch.delay_code, batch.duration_code),
            self.neck1.weight.squeeze(2).split(self.config.width, 1),
            strict=True,
        )
        x = self.neck_norm1(sum(F.embedding(at, rows @ w.t()) for rows, at, w in parts))
        x = self.neck_norm2(self._along_events(x, batch.offsets))
        d = self.config.width
        return x + torch.cat([_sinusoids(batch.position, d), _sinusoids(batch.stream, d)], 1)

    def _along_events(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The neck's second convolution, in which windows don't see each other."""
        count = len(x)
        if count == 0:
            return x
        window = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff().cpu())
        same = (window[1:] == window[:-1]).to(x).unsqueeze(1)
        zero = x.new_zeros(1, x.shape[1])
        before = torch.cat([zero, x[:-1] * same])
        after = torch.cat([x[1:] * same, zero])
        weight = self.neck2.weight
        return sum(F.linear(part, weight[:, :, i]) for i, part in enumerate((before, x, after)))

    def _windows(self, events: Tensor, offsets: Tensor) -> Tensor:
        """Eq. 5 and the window encoder: `[windows, 2d]`. Windows of one length go together."""
        bounds = offsets.tolist()
        lengths = np.diff(bounds)
        source = torch.cat([events, self.cls.unsqueeze(0)])
        parts, places = [], []
        for length in np.unique(lengths):
            chosen = np.flatnonzero(lengths == length)
            rows = np.asarray(bounds)[chosen, None] + np.arange(length)
            rows = np.concatenate([np.full((len(chosen), 1), len(events)), rows], 1)
            x = F.embedding(torch.from_numpy(rows).to(events.device), source)
            parts.append(self.encoder(x) if self.config.transformer else x.mean(1))
            places.append(chosen)
        if not parts:
            return events.new_zeros(0, 2 * self.config.width)
        order = np.argsort(np.concatenate(places))
        return torch.cat(parts)[torch.from_numpy(order).to(events.device)]

    def _trace(self, windows: Tensor, platform: int) -> Tensor:
        """The platform's tokens, then Eq. 9, for the windows of one trace."""
        if self.training and torch.rand(()).item() < _PLATFORM_DROPOUT:
            platform = 0
        q = self.platform_q(self.platform_norm(windows))
        k, v = self.platform_kv(self.platform_tokens[platform]).chunk(2, 1)
        x = windows + self.platform_out(_attend(q, k, v, self.config.heads))
        return self.relation(x) if self.config.relation else x

    def arrays(self) -> Weights:
        """Return the float32 arrays of a file of weights, by name."""
        return {
            name: value.detach().float().cpu().contiguous().numpy()
            for name, value in self.state_dict().items()
        }


class _Encoder(nn.Module):
    def __init__(self, config: PaperConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(2 * config.width)

    def forward(self, x: Tensor) -> Tensor:
        """`[windows, length, 2d]` to the first tokens `[windows, 2d]`."""
        for layer in self.layers[:-1]:
            x = layer(x)
        return self.norm(self.layers[-1](x, asking=1).squeeze(1))


class _Layer(nn.Module):
    def __init__(self, config: PaperConfig) -> None:
        super().__init__()
        wide = 2 * config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.fc1 = nn.Linear(wide, config.feed_forward)
        self.fc2 = nn.Linear(config.feed_forward, wide)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, asking: int | None = None) -> Tensor:
        """`[windows, length, 2d]` to its first `asking` tokens, or all."""
        wide = x.shape[2]
        normed = self.norm1(x)
        weights, biases = self.qkv.weight, self.qkv.bias
        q = F.linear(normed[:, :asking], weights[:wide], biases[:wide])
        k, v = F.linear(normed, weights[wide:], biases[wide:]).chunk(2, 2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x[:, :asking] + self.dropout(self.out(attended))
        return x + self.dropout(self.fc2(self.dropout(F.gelu(self.fc1(self.norm2(x))))))


class _Relation(nn.Module):
    """Eq. 9: dilated convolutions beside attention, over the windows of one trace."""

    def __init__(self, config: PaperConfig) -> None:
        super().__init__()
        d, wide = config.width, 2 * config.width
        self.heads = config.heads
        self.near = nn.Conv1d(wide, d, 3, padding=1, dilation=1)
        self.middle = nn.Conv1d(wide, d, 3, padding=2, dilation=2)
        self.far = nn.Conv1d(wide, d, 3, padding=4, dilation=4)
        self.qkv, self.out = nn.Linear(wide, 3 * d), nn.Linear(d, d)
        self.merge = nn.Conv1d(4 * d, wide, 3, padding=1)

    def forward(self, windows: Tensor) -> Tensor:
        """`[W, 2d]` to the same."""
        count, wide = windows.shape
        x = windows + _sinusoids(torch.arange(count).to(windows), wide)
        q, k, v = self.qkv(x).chunk(3, 1)
        everywhere = self.out(_attend(q, k, v, self.heads))
        near, middle, far = (
            F.relu(convolution(x.t())).t() for convolution in (self.near, self.middle, self.far)
        )
        return F.relu(self.merge(torch.cat([near, middle, far, everywhere], 1).t())).t()


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """`[n, width]` asks `[m, width]`."""
    q, k, v = (part.view(1, len(part), heads, -1).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).squeeze(0)


def _sinusoids(values: Tensor, width: int) -> Tensor:
    """sin and cos at `width` / 2 frequencies 10000^(-2k / width): `[n, width]`."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half).to(values) * (-math.log(10000.0) / half))
    angles = values.unsqueeze(1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)
