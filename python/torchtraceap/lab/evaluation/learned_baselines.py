"""Methods that learn from labels: boosted trees on window features, and a head like that of RTFM.

Note [Self-trained]: pseudo-labels of round 0 are, in each trace with a fault, the mean of two
ranks: of the isolation forest's score, and of the distance to the windows of the twin. The highest
8 % are positive, what lies below them down to 25 % is left out, and all else is negative, as are
all windows of good traces. Each of two more rounds takes the trees' own scores, out of fold by
groups, instead of the ranks.

Note [RTFM]: of Tian et al., ICCV 2021. The parts of the head are the TorchTraceAP paper's own (Eq.
9): three dilated convolutions along the windows and attention over all of them, side by side. What
it adds is the objective: the magnitude of a window's embedding tells it from usual ones, and the k
windows of largest magnitude stand for their trace, so that only they learn from its label (top-k
multiple-instance learning).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core import Array
from torchtraceap.datasets import Sample
from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.baselines import (
    Forest,
    Windows,
    WithoutTypes,
    features_of,
    one_thread,
)

__all__ = ["CopiedTrees", "Rtfm", "SelfTrainedTrees", "SupervisedTrees", "make_trees"]

_POSITIVE, _LEFT_OUT, _ROUNDS, _FOLDS, _LEAST = 0.08, 0.25, 2, 3, 10
_WIDTH, _HEADS, _DROPOUT = 64, 4, 0.3
_EPOCHS, _PAIRS, _RATE, _DECAY = 30, 8, 1e-3, 5e-3
_TOP = 0.1
"""Part of a trace's windows that stand for it."""
_MARGIN, _MAGNITUDES, _SMOOTH = 4.0, 0.05, 0.01
"""Margin of magnitudes, and the weights of that and of changes from window to window."""


def make_trees(seed: int) -> Any:
    """LightGBM's trees, as small as the number of groups asks for."""
    from lightgbm import LGBMClassifier

    return LGBMClassifier(
        n_estimators=150, learning_rate=0.08, num_leaves=15, min_child_samples=40, reg_lambda=1.0,
        colsample_bytree=0.3, subsample=0.8, subsample_freq=1, random_state=seed, n_jobs=1,
        deterministic=True, force_col_wise=True, verbose=-1,
    )  # fmt: skip


class _Trees(WithoutTypes):
    labels = "trace"
    _model: Any

    def score(self, sample: Sample) -> Array:
        found: Array = self._model.predict_proba(features_of(sample))[:, 1]
        return found


class CopiedTrees(_Trees):
    """Trees that take the label of the trace for that of each of its windows."""

    name = "boosted trees W, label copied"

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        windows = Windows(samples)
        self._model = make_trees(seed).fit(windows.x, windows.bad)


class SelfTrainedTrees(_Trees):
    """Trees with pseudo-labels; see Note [Self-trained]."""

    name = "boosted trees W, self-trained"

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        windows = Windows(samples)
        names = sorted({sample.group for sample in samples})
        group = np.array([names.index(sample.group) for sample in samples], dtype=np.int64)
        groups = group[windows.trace]
        forest = Forest(good_only=True)
        forest.fit(samples, seed)
        scores = np.concatenate([forest.score(sample) for sample in samples])
        ranks = _ranks_in_traces(scores, windows.trace)
        ranks = (ranks + _ranks_in_traces(_twin_distance(samples), windows.trace)) / 2
        for turn in range(_ROUNDS + 1):
            high = ranks > 1 - _POSITIVE
            label = windows.bad & high
            kept = ~windows.bad | high | (ranks <= 1 - _LEFT_OUT)
            self._model = make_trees(seed + turn).fit(windows.x[kept], label[kept])
            if turn < _ROUNDS:
                ranks = _out_of_fold(windows.x, label, kept, groups, seed + turn)
                ranks = _ranks_in_traces(ranks, windows.trace)


def _ranks_in_traces(scores: Array, trace: Array) -> Array:
    """Return the rank of each window among those of its trace, float64 in (0, 1]."""
    ranks = np.zeros(len(scores))
    for code in np.unique(trace):
        rows = np.flatnonzero(trace == code)
        ranks[rows[np.argsort(scores[rows], kind="stable")]] = np.arange(1, len(rows) + 1)
        ranks[rows] /= len(rows)
    return ranks


def _twin_distance(samples: Sequence[Sample]) -> Array:
    """Return the distance of each window to the nearest of the twin's; 0 without a twin."""
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import StandardScaler

    by_id = {sample.id: sample for sample in samples}
    scale = StandardScaler().fit(np.concatenate([features_of(sample) for sample in samples]))
    found = []
    for sample in samples:
        twin = by_id.get(sample.twin or "")
        if twin is None:
            found.append(np.zeros(len(sample.positive)))
            continue
        near = NearestNeighbors(n_neighbors=1).fit(scale.transform(features_of(twin)))
        found.append(near.kneighbors(scale.transform(features_of(sample)))[0][:, 0])
    return np.concatenate(found)


def _out_of_fold(x: Array, label: Array, kept: Array, groups: Array, seed: int) -> Array:
    from sklearn.model_selection import GroupKFold

    found = np.zeros(len(x))
    folds = min(_FOLDS, len(np.unique(groups)))
    if folds < 2:
        return np.asarray(make_trees(seed).fit(x[kept], label[kept]).predict_proba(x)[:, 1])
    for train, test in GroupKFold(folds).split(x, label, groups):
        rows = train[kept[train]]
        found[test] = make_trees(seed).fit(x[rows], label[rows]).predict_proba(x[test])[:, 1]
    return found


class SupervisedTrees(_Trees):
    """Trees with labels of windows, and a second model for the types of those that are positive."""

    name = "boosted trees S"
    labels = "window"
    is_probability = True

    def fit(self, samples: Sequence[Sample], seed: int) -> None:
        windows = Windows(samples)
        kept = ~windows.ignore
        self._model = make_trees(seed).fit(windows.x[kept], windows.positive[kept])
        self._types = windows.cost.shape[1]
        rows = np.flatnonzero(windows.positive)
        kind = windows.cost[rows].argmax(axis=1)
        common = np.isin(kind, np.flatnonzero(np.bincount(kind) >= _LEAST))
        self._type_model: Any = None
        if len(np.unique(kind[common])) > 1:
            weights = 1 / np.bincount(kind)[kind[common]] ** 0.5
            self._type_model = make_trees(seed)
            self._type_model.fit(windows.x[rows[common]], kind[common], sample_weight=weights)

    def types(self, sample: Sample) -> Array | None:
        found = np.zeros((len(sample.positive), self._types))
        if self._type_model is not None:
            found[:, self._type_model.classes_] = self._type_model.predict_proba(
                features_of(sample)
            )
        return found


class Rtfm(WithoutTypes):
    """Magnitudes and top-k multiple-instance learning, see Note [RTFM]; needs torch."""

    name = "RTFM-like head"
    labels = "trace"

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


def _batches(counts: list[int], rng: np.random.Generator) -> list[list[Array]]:
    """Return the batches of an epoch: each trace of the larger side once, of the other as often as
    needed."""
    most = max(counts)
    orders = [np.concatenate([rng.permutation(n) for _ in range(-(-most // n))]) for n in counts]
    starts = range(0, most, _PAIRS)
    return [[order[start : min(start + _PAIRS, most)] for order in orders] for start in starts]


def _make_net(features: int) -> Any:
    """Return a network from float32 `[B, W, features]` to embeddings `[B, W, width]` and logits
    `[B, W]`."""
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
    """Return the loss: windows of largest magnitude get the trace's label, magnitudes are apart."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    tops = [_top(*side) for side in (bad, good)]
    logits = torch.cat([tops[0][1], tops[1][1]])
    labels = torch.cat([torch.ones_like(tops[0][1]), torch.zeros_like(tops[1][1])])
    apart = torch.relu(_MARGIN - tops[0][0]) + tops[1][0]
    smooth = bad[1].sigmoid().diff(dim=1).square().mean()
    return cross_entropy(logits, labels) + _MAGNITUDES * apart.mean() + _SMOOTH * smooth


def _top(embedded: Any, logits: Any) -> tuple[Any, Any]:
    """Return the mean magnitude and the mean logit of the windows that stand for each trace."""
    magnitude = embedded.norm(dim=-1)
    found = magnitude.topk(max(1, round(_TOP * magnitude.shape[1])), dim=1)
    return found.values.mean(dim=1), logits.gather(1, found.indices).mean(dim=1)
