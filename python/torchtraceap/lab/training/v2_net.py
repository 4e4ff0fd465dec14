"""`v2`: the network that scores windows from their features and their events.

Events are encoded lightly: an embedding of each and a few convolutions along their order. Capacity
is at the level of windows, where a trace is 50 to 200 of them: dilated convolutions and attention
with a relative bias, over the windows and one token for the trace. The core runs the same network
(`cpp/traceap/model/networks/v2.cpp`); both read the tensors of `state_dict()` by these names, and
tests hold their outputs to 1e-5.

Note [Additive logits]: the logit of a window is log(1 + sum of exp(token logit)) plus a linear
term of the window. A token's share of the first is exp(its logit) over that sum, exactly and
without a gradient; a window without tokens has 0 there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchtraceap.diagnosis import TokenColumns

__all__ = ["GRIDS", "Scores", "TokenBatch", "V2Net", "V2Shape"]

GRIDS = (50, 100, 200)
"""Numbers of windows that have a scale embedding; another number takes the nearest."""
_CLIP = 5.0  # standard deviations: features of hardware never seen stay near what was seen
_LARGEST_TOKEN = 30.0  # exp of it, summed over a million tokens, is far below the largest float


@dataclass(frozen=True)
class V2Shape:
    """Sizes of the network."""

    features: int
    """Columns of the window features, raw values and z-scores together."""
    types: int
    token_codes: tuple[int, ...] = ()
    """The number of values of each code of a token; empty: a network without tokens."""
    token_numbers: int = 0
    name_width: int = 0
    token_width: int = 48
    token_layers: int = 2
    width: int = 64
    heads: int = 4
    layers: int = 3
    reach: int = 24
    """Distances in windows, from which on the relative bias is the same."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


TokenBatch: TypeAlias = TokenColumns[Tensor]
"""Tokens of all windows of a batch, by window and then by start."""


@dataclass
class Scores:
    """Logits of a batch."""

    any: Tensor
    """float32 `[B, W]`: that time is lost."""
    types: Tensor
    """float32 `[B, W, types]`."""
    severity: Tensor
    """float32 `[B, W]`: share of the window that is lost, in [0, 1]."""
    trace: Tensor
    """float32 `[B]`: that the trace has a fault."""
    tokens: Tensor | None
    """float32 `[N]`; see Note [Additive logits]."""


class V2Net(nn.Module):
    """The network; see the module."""

    def __init__(self, shape: V2Shape, dropout: float = 0.1, pretrained: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("feature_mean", torch.zeros(shape.features))
        self.register_buffer("feature_scale", torch.ones(shape.features))
        self.stem = nn.Linear(shape.features, shape.width)
        self.scale = nn.Embedding(len(GRIDS), shape.width)
        self.trace_token = nn.Parameter(torch.zeros(shape.width))
        self.tokens = TokenEncoder(shape, dropout) if shape.token_codes else None
        self.layers = nn.ModuleList(
            WindowLayer(shape, dilation=2**i, dropout=dropout) for i in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.any = nn.Linear(shape.width, 1)
        self.any_features = nn.Linear(shape.features, 1, bias=False)
        self.types = nn.Linear(shape.width, shape.types)
        self.severity = nn.Linear(shape.width, 1)
        self.trace = nn.Linear(shape.width, 1)
        self.pretraining = nn.Linear(shape.width, shape.features) if pretrained else None
        nn.init.zeros_(self.any_features.weight)
        # Lost time is rare, and of one type rarer still.
        nn.init.constant_(self.any.bias, -2.0)
        nn.init.constant_(self.types.bias, -5.0)

    def set_statistics(self, mean: Tensor, scale: Tensor) -> None:
        """Mean and standard deviation of each feature over the training windows."""
        self.feature_mean.copy_(mean)
        self.feature_scale.copy_(scale.clamp(min=1e-3))

    def normalize(self, features: Tensor) -> Tensor:
        features = (features - self.feature_mean) / self.feature_scale
        return features.clamp(-_CLIP, _CLIP)

    def embed(self, features: Tensor) -> Tensor:
        windows = features.shape[1]
        grid = min(range(len(GRIDS)), key=lambda i: abs(GRIDS[i] - windows))
        return self.stem(features) + self.scale.weight[grid]

    def contexts(self, x: Tensor) -> Tensor:
        """`[B, 1 + W, width]`: of the trace, and of each window among the others."""
        x = torch.cat([self.trace_token.expand(len(x), 1, -1), x], dim=1)
        for layer in self.layers:
            x = layer(x)
        normed: Tensor = self.norm(x)
        return normed

    def reconstruction_error(self, features: Tensor, hidden: Tensor) -> Tensor:
        """Return the error of pretraining: of windows that are hidden, as told from the others.

        Args:
            features: float32 `[B, W, features]`: of `squash`.
            hidden: bool `[B, W]`.

        Returns:
            float32 `[B]`: the mean over a trace's hidden windows.
        """
        assert self.pretraining is not None
        normed = self.normalize(features)
        seen = normed * ~hidden[:, :, None]
        told = self.pretraining(self.contexts(self.embed(seen))[:, 1:])
        errors = F.smooth_l1_loss(told, normed, reduction="none").mean(2) * hidden
        return errors.sum(1) / hidden.sum(1).clamp(min=1)

    def forward(self, features: Tensor, tokens: TokenBatch | None = None) -> Scores:
        """Return the logits of traces that all have the same number of windows.

        Args:
            features: float32 `[B, W, features]`: of `squash`.
            tokens: The events of the windows.
        """
        features = self.normalize(features)
        traces, windows = features.shape[:2]
        x = self.embed(features)
        encoded = None
        if self.tokens is not None and tokens is not None:
            encoded = self.tokens(tokens, windows)
            pooled = self.tokens.pool(encoded, tokens.window, traces * windows)
            x = x + pooled.view(traces, windows, -1)
        x = self.contexts(x)
        context = x[:, 1:]
        any_logit = self.any(context).squeeze(-1) + self.any_features(features).squeeze(-1)
        token_logits = None
        if self.tokens is not None and tokens is not None:
            window = tokens.window
            token_logits = self.tokens.logits(encoded, context.flatten(0, 1), window)
            summed = torch.zeros(traces * windows, dtype=token_logits.dtype, device=x.device)
            summed = summed.index_add(0, window, token_logits.exp())
            any_logit = any_logit + summed.log1p().view(traces, windows)
        return Scores(
            any_logit,
            self.types(context),
            self.severity(context).squeeze(-1).sigmoid(),
            self.trace(x[:, 0]).squeeze(-1),
            token_logits,
        )


class WindowLayer(nn.Module):
    """A dilated convolution over windows, attention with a relative bias, and an MLP."""

    def __init__(self, shape: V2Shape, dilation: int, dropout: float) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.reach = shape.heads, shape.reach
        self.conv_norm, self.attention_norm, self.mlp_norm = (nn.LayerNorm(width) for _ in range(3))
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(shape.heads, 2 * shape.reach + 1))
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        windows = self.conv_norm(x[:, 1:]).transpose(1, 2)
        mixed = F.gelu(self.conv(windows)).transpose(1, 2)
        x = x + self.dropout(F.pad(mixed, (0, 0, 1, 0)))
        x = x + self.dropout(self.attend(self.attention_norm(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))))

    def attend(self, x: Tensor) -> Tensor:
        traces, length, width = x.shape
        parts = self.qkv(x).view(traces, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        weights = (weights + self.relative_bias(length)).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(traces, length, width))

    def relative_bias(self, length: int) -> Tensor:
        """`[heads, length, length]`; 0 from and to the trace's token, which comes first."""
        place = torch.arange(length - 1, device=self.bias.device)
        distance = (place[:, None] - place[None, :]).clamp(-self.reach, self.reach) + self.reach
        return F.pad(self.bias[:, distance], (1, 0, 1, 0))


class TokenEncoder(nn.Module):
    """Tokens to vectors, vectors to windows, and back to a logit for each token."""

    def __init__(self, shape: V2Shape, dropout: float) -> None:
        super().__init__()
        width = shape.token_width
        self.codes = nn.ModuleList(nn.Embedding(count, width) for count in shape.token_codes)
        self.numbers = nn.Linear(shape.token_numbers, width)
        self.name = nn.Linear(shape.name_width, width, bias=False)
        self.cpu_name = nn.Linear(shape.name_width, width, bias=False)
        self.layers = nn.ModuleList(
            TokenLayer(width, 2**i, dropout) for i in range(shape.token_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, shape.heads)
        self.value = nn.Linear(width, shape.width)
        self.heads = shape.heads
        self.own = nn.Linear(width, width)
        self.context = nn.Linear(shape.width, width, bias=False)
        self.logit = nn.Linear(width, 1)
        # Tokens start out as innocent: a window of a hundred would begin as guilty otherwise.
        nn.init.constant_(self.logit.bias, -5.0)

    def forward(self, tokens: TokenBatch, windows: int) -> Tensor:
        x = self.numbers(tokens.numbers)
        # Once per distinct name: a trace has a few hundred of them.
        x = x + self.name(tokens.names)[tokens.name] + self.cpu_name(tokens.names)[tokens.cpu_name]
        for i, embedding in enumerate(self.codes):
            x = x + embedding(tokens.codes[:, i])
        trace = tokens.window // windows
        for layer in self.layers:
            x = layer(x, trace)
        return self.norm(x)

    def leave_windows(self) -> None:
        """Pooled tokens add nothing to windows, and never will."""
        for parameter in self.value.parameters():
            nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
        self.attention.requires_grad_(False)

    def pool(self, x: Tensor, window: Tensor, windows: int) -> Tensor:
        """`[windows, width]`: for each head the mean of its part, weighted by attention."""
        weights = self.attention(x).clamp(max=_LARGEST_TOKEN).exp()
        total = torch.zeros(windows, self.heads, dtype=x.dtype, device=x.device)
        total = total.index_add(0, window, weights)
        size = self.value.out_features // self.heads
        values = self.value(x).view(len(x), self.heads, size) * weights[:, :, None]
        summed = torch.zeros(windows, *values.shape[1:], dtype=x.dtype, device=x.device)
        summed = summed.index_add(0, window, values)
        return (summed / (total[:, :, None] + 1e-6)).flatten(1)

    def logits(self, x: Tensor, context: Tensor, window: Tensor) -> Tensor:
        mixed = F.gelu(self.own(x) + self.context(context)[window])
        return self.logit(mixed).squeeze(-1).clamp(max=_LARGEST_TOKEN)


class TokenLayer(nn.Module):
    """A convolution of three tokens along their order, never across traces, and an MLP."""

    def __init__(self, width: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.dilation = dilation
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(3 * width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, trace: Tensor) -> Tensor:
        normed = self.norm(x)
        before, after = (shift(normed, trace, by) for by in (self.dilation, -self.dilation))
        x = x + self.dropout(F.gelu(self.mix(torch.cat([before, normed, after], dim=-1))))
        return x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))))


def shift(x: Tensor, trace: Tensor, by: int) -> Tensor:
    """The row `by` places before each, zero where that is of another trace or none."""
    moved = torch.zeros_like(x)
    if abs(by) >= len(x):
        return moved
    here, there = (slice(by, None), slice(None, -by)) if by > 0 else (slice(by), slice(-by, None))
    moved[here] = x[there] * (trace[here] == trace[there])[:, None]
    return moved
