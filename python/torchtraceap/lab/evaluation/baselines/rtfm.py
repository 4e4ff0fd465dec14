"""A head like that of RTFM (Tian et al., ICCV 2021) on window features.

Its parts are the paper's own (Eq. 9): three dilated convolutions along the windows and attention
over all of them, side by side. What it adds is the objective: the magnitude of a window's
embedding tells it from usual ones, and the k windows of largest magnitude stand for their trace, so
that only they learn from its label (top-k multiple-instance learning).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.samples import Sample
from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.baselines.protocol import Windows, features_of, one_thread

__all__ = ["Rtfm"]

_WIDTH, _HEADS, _DROPOUT = 64, 4, 0.3
_EPOCHS, _PAIRS, _RATE, _DECAY = 30, 8, 1e-3, 5e-3
_TOP = 0.1
"""Of a trace's windows, those that stand for it."""
_MARGIN, _MAGNITUDES, _SMOOTH = 4.0, 0.05, 0.01
"""Of magnitudes, and what that and changes from window to window weigh beside the labels."""


class Rtfm:
    """Magnitudes and top-k multiple-instance learning; needs torch."""

    name = "RTFM-like head"
    labels = "trace"
    is_random = True
    is_probability = False

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        import torch

        sides = [[s for s in samples if s.label is side] for side in (True, False)]
        if not all(sides):
            raise OptionError("traces with a fault and without are needed to learn from")
        x = Windows(samples).x
        self._mean, self._scale = x.mean(axis=0), x.std(axis=0) + 1e-6
        with torch.random.fork_rng(devices=[]), one_thread():
            torch.manual_seed(seed)
            self._train(sides, np.random.default_rng(seed))

    def _train(self, sides: list[list[Sample]], rng: np.random.Generator) -> None:
        import torch

        self._net: Any = _make_net(len(self._mean))
        inputs = [[self._input(sample) for sample in side] for side in sides]
        optimizer = torch.optim.AdamW(self._net.parameters(), lr=_RATE, weight_decay=_DECAY)
        self._net.train()
        for _ in range(_EPOCHS):
            for chosen in _batches([len(side) for side in inputs], rng):
                bad, good = (
                    torch.stack([side[i] for i in rows])
                    for side, rows in zip(inputs, chosen, strict=True)
                )
                loss = _loss(self._net(bad), self._net(good))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
                optimizer.step()
        self._net.eval()

    def _input(self, sample: Sample) -> Any:
        import torch

        return torch.from_numpy(((features_of(sample) - self._mean) / self._scale).astype("f4"))

    def score(self, sample: Sample) -> Array:
        import torch

        with torch.inference_mode(), one_thread():
            _, logits = self._net(self._input(sample)[None])
        return np.asarray(torch.sigmoid(logits)[0].double().numpy())

    def types(self, sample: Sample) -> Array | None:
        return None


def _batches(counts: list[int], rng: np.random.Generator) -> list[list[Array]]:
    """Of an epoch: each trace of the larger side once, of the other as often as needed."""
    most = max(counts)
    orders = [np.concatenate([rng.permutation(n) for _ in range(-(-most // n))]) for n in counts]
    starts = range(0, most, _PAIRS)
    return [[order[start : min(start + _PAIRS, most)] for order in orders] for start in starts]


def _make_net(features: int) -> Any:
    """float32 `[B, W, features]` to embeddings `[B, W, width]` and logits `[B, W]`."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(features, _WIDTH)
            self.near = nn.ModuleList(
                nn.Conv1d(_WIDTH, _WIDTH // 2, 3, padding=d, dilation=d) for d in (1, 2, 4)
            )
            self.far = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
            self.join = nn.Conv1d(3 * (_WIDTH // 2) + _WIDTH, _WIDTH, 3, padding=1)
            self.drop = nn.Dropout(_DROPOUT)
            self.leave = nn.Sequential(
                nn.Linear(_WIDTH, 32), nn.ReLU(), nn.Dropout(_DROPOUT), nn.Linear(32, 1)
            )

        def forward(self, x: Any) -> tuple[Any, Any]:
            h = torch.relu(self.enter(x))
            along = h.transpose(1, 2)
            far, _ = self.far(h, h, h, need_weights=False)
            parts = [torch.relu(conv(along)) for conv in self.near]
            joined = self.join(torch.cat([*parts, far.transpose(1, 2)], dim=1)).transpose(1, 2)
            embedded = self.drop(joined + h)
            return embedded, self.leave(embedded)[..., 0]

    return Net()


def _loss(bad: tuple[Any, Any], good: tuple[Any, Any]) -> Any:
    """The windows of largest magnitude get the trace's label, and magnitudes are apart."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    tops = [_top(*side) for side in (bad, good)]
    logits = torch.cat([tops[0][1], tops[1][1]])
    labels = torch.cat([torch.ones_like(tops[0][1]), torch.zeros_like(tops[1][1])])
    apart = torch.relu(_MARGIN - tops[0][0]) + tops[1][0]
    smooth = bad[1].sigmoid().diff(dim=1).square().mean()
    return cross_entropy(logits, labels) + _MAGNITUDES * apart.mean() + _SMOOTH * smooth


def _top(embedded: Any, logits: Any) -> tuple[Any, Any]:
    """Of each trace the mean magnitude, and the mean logit, of the windows that stand for it."""
    magnitude = embedded.norm(dim=-1)
    found = magnitude.topk(max(1, round(_TOP * magnitude.shape[1])), dim=1)
    return found.values.mean(dim=1), logits.gather(1, found.indices).mean(dim=1)
