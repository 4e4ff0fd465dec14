"""Train `paper`: pairs of a trace with a fault and its twin, by the losses of the paper.

Several of its equations (10 to 15) are wrong as printed: docs/scorers.md has them one by one.
`PaperLosses` is corrected by default, and each field takes the printed reading back, so that its
effect shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from torchtraceap.core import Array, PathLike, replacing
from torchtraceap.datasets import Sample, load_samples
from torchtraceap.diagnosis import (
    PAPER_CELLS,
    UNKNOWN_PLATFORM,
    PaperConfig,
    TextEncoder,
    TraceTokens,
    join_traces,
    squash,
    text_encoder,
)
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.loop import Fitted, PairLearner, Processes, fit_and_save, step_seed
from torchtraceap.lab.training.paper_net import PaperNet, batch_of
from torchtraceap.lab.training.settings import LoopSettings, RunOptions, Trained, take
from torchtraceap.lab.training.v2_data import pairs_of
from torchtraceap.lab.training.weak_labels import pseudo_targets, ranks, twin_distances

__all__ = ["OBJECTIVES", "PairWindows", "PaperLearner", "PaperLosses", "PaperSettings", "train"]

OBJECTIVES = ("average", "topk", "noisy-or", "twin")
_SMALL = 1e-6


@dataclass(frozen=True)
class PaperSettings:
    """`[paper]` in a file: the network's parts and sizes; `PaperConfig` says what they mean."""

    cell: str = "adapter+transformer+relation"
    """A cell of Table 5; one of `PAPER_CELLS`."""
    text_encoder: str = "hash"
    width: int = 128
    layers: int = 6
    heads: int = 8
    feed_forward: int = 1024
    position: str = "clamped"
    cap: int = 128
    """Events of a window, in training and afterwards."""
    windows: int = 100
    batch: int = 8
    """Pairs in a step."""
    pairs: int = 0
    """Drawn anew for each epoch; 0: all."""

    def __post_init__(self) -> None:
        if self.cell not in PAPER_CELLS:
            raise OptionError(f"[paper]: cell {self.cell!r} is none of {', '.join(PAPER_CELLS)}")
        if min(self.windows, self.batch, self.cap) < 1 or self.pairs < 0:
            raise OptionError(f"[paper]: these settings make no sense: {self}")

    def config(self, platforms: tuple[str, ...], encoder: TextEncoder) -> PaperConfig:
        return PaperConfig(
            text_encoder=self.text_encoder,
            text_width=encoder.width,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            feed_forward=self.feed_forward,
            platforms=platforms,
            position=self.position,
            cap=self.cap,
            **PAPER_CELLS[self.cell],
        )


class PairWindows(NamedTuple):
    """The output of the network for one trace of a pair; W windows."""

    scores: Tensor
    """`[W]` in [0, 1]: P_w."""
    features: Tensor
    """`[W, 2d]`."""
    labels: Tensor | None = None
    """`[W]` in [0, 1], of the bad trace: pseudo-labels from its twin, for the objective `twin`;
    NaN where a window is left out."""


@dataclass(frozen=True)
class PaperLosses:
    """Weights and readings. Calling it gives Eq. 15 for one pair."""

    objective: str = "average"
    """The trace's probability from those of its windows (Eq. 10): their average; the mean of the
    highest tenth (`topk`); 1 minus the geometric mean of 1 - P (`noisy-or`); or pseudo-labels of
    windows (`twin`)."""
    svm_sign: str = "corrected"
    """Eq. 11: max(0, cos + margin), or `literal`, max(0, margin - cos), which rewards alike
    windows of good and bad traces."""
    selection: str = "corrected"
    """Eq. 12 and 13: the lowest windows of the good trace against the highest of the bad one, or
    `literal`, the highest of both."""
    cluster_target: str = "corrected"
    """Third term of Eq. 14: windows of equal labels are alike, 1 - 2 |p_i - p_j|, or `literal`,
    |p_i - p_j|, which is the reverse."""
    margin: float = 0.5
    cluster_margin: float = 0.5
    """m of the first two terms of Eq. 14, in cosines."""
    share: float = 0.1
    """S+ and S-: the part of the windows that Eq. 11 compares."""
    weights: tuple[float, float, float, float] = (1.0, 1.0, 0.5, 0.1)
    """Weights of Eq. 10, 11, 14 and of smoothness."""
    feature_smoothness: float = 0.1
    """Weight of the change of features beside that of scores."""

    def __post_init__(self) -> None:
        readings = (self.svm_sign, self.selection, self.cluster_target)
        if self.objective not in OBJECTIVES or not {*readings} <= {"corrected", "literal"}:
            raise OptionError(
                f"the objective is one of {', '.join(OBJECTIVES)}; readings corrected or literal"
            )
        if not 0 < self.share <= 0.5 or len(self.weights) != 4 or min(self.weights) < 0:
            raise OptionError("share is in (0, 0.5], and there are four weights, none negative")

    def __call__(self, good: PairWindows, bad: PairWindows) -> Tensor:
        """Eq. 15: a scalar."""
        return sum(self.parts(good, bad).values(), torch.zeros(()))

    def parts(self, good: PairWindows, bad: PairWindows) -> dict[str, Tensor]:
        """Its terms, weighted: for logs."""
        chosen_good, rest_good = self._choose(good.scores, highest=self.selection == "literal")
        chosen_bad, rest_bad = self._choose(bad.scores, highest=True)
        features = torch.cat([good.features[rest_good], bad.features[rest_bad]])
        scores = torch.cat([good.scores[rest_good], bad.scores[rest_bad]])
        terms = {
            "trace": self.trace(good, bad),
            "svm": self.separation(good.features[chosen_good], bad.features[chosen_bad]),
            "cluster": self.clustering(features, scores),
            "smooth": self.smoothness(good) + self.smoothness(bad),
        }
        return {
            name: weight * term
            for weight, (name, term) in zip(self.weights, terms.items(), strict=True)
        }

    def trace(self, good: PairWindows, bad: PairWindows) -> Tensor:
        """Eq. 10: cross entropy; 0 is good, 1 is bad."""
        if self.objective == "twin":
            if bad.labels is None:
                raise OptionError("the objective `twin` needs labels of the bad trace's windows")
            told = ~bad.labels.isnan()
            scores = torch.cat([good.scores, bad.scores[told]])
            labels = torch.cat([torch.zeros_like(good.scores), bad.labels[told]])
            return F.binary_cross_entropy(scores.clamp(_SMALL, 1 - _SMALL), labels)
        both = torch.stack([self._probability(good.scores), self._probability(bad.scores)])
        labels = torch.tensor([0.0, 1.0]).to(both)
        return F.binary_cross_entropy(both.clamp(_SMALL, 1 - _SMALL), labels)

    def _probability(self, scores: Tensor) -> Tensor:
        if self.objective == "topk":
            return scores.topk(self._count(len(scores))).values.mean()
        if self.objective == "noisy-or":
            # The mean of logarithms: 200 windows of 0.02 would make 0.98 otherwise.
            return 1 - torch.exp(torch.log1p(-scores.clamp(max=1 - _SMALL)).mean())
        return scores.mean()

    def _count(self, windows: int) -> int:
        return max(1, round(self.share * windows))

    def _choose(self, scores: Tensor, *, highest: bool) -> tuple[Tensor, Tensor]:
        """Places of the windows that Eq. 11 compares, and of the others."""
        order = scores.detach().argsort(descending=highest)
        count = self._count(len(scores))
        return order[:count], order[count:]

    def separation(self, good: Tensor, bad: Tensor) -> Tensor:
        """Eq. 11 over all pairs of `[n, 2d]` and `[m, 2d]`."""
        alike = _cosines(good, bad)
        if self.svm_sign == "literal":
            return F.relu(self.margin - alike).mean()
        return F.relu(alike + self.margin).mean()

    def clustering(self, features: Tensor, scores: Tensor) -> Tensor:
        """Eq. 14: windows of one pseudo-label are alike, of two are not: max(0, m - S) of those
        alike, max(0, S + m) of the others, and |S - target| of all.

        A window's pseudo-label is whether it scores above the median of the pair; no gradient
        passes it.
        """
        if len(scores) < 2:
            return features.sum() * 0
        alike = _cosines(features, features)
        told = scores.detach()
        label = told > told.median()
        same = label.unsqueeze(0) == label.unsqueeze(1)
        distance = (told.unsqueeze(0) - told.unsqueeze(1)).abs()
        target = distance if self.cluster_target == "literal" else 1 - 2 * distance
        others = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        return (
            _mean(F.relu(self.cluster_margin - alike)[same & others])
            + _mean(F.relu(alike + self.cluster_margin)[~same])
            + _mean((alike - target).abs()[others])
        )

    def smoothness(self, windows: PairWindows) -> Tensor:
        """Squared change of scores, and of features of length 1, from each window to the next."""
        features = F.normalize(windows.features, dim=1)
        change = features.diff(dim=0).square().sum(1)
        return _mean(windows.scores.diff().square()) + self.feature_smoothness * _mean(change)


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).t()


def _mean(values: Tensor) -> Tensor:
    """0 of nothing, with a gradient of 0."""
    return values.mean() if values.numel() else values.sum()


class PaperLearner(PairLearner):
    """The network of the paper with its data, a `loop.Learner`.

    Args:
        samples: Traces of the splits train and validation on one grid, with tokens of the GPU
            alone.
        settings: Settings of the network.
        losses: The losses of a pair.
        seed: Seed of everything that is drawn.
        processes: The group of processes, and which one this is.

    Raises:
        OptionError: A split has no trace, or no trace in "train" has its twin there.
    """

    module: PaperNet

    def __init__(
        self,
        samples: Sequence[Sample],
        settings: PaperSettings,
        losses: PaperLosses,
        seed: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.settings, self.losses = settings, losses
        self.train = [sample for sample in samples if sample.split == "train"]
        validation = [sample for sample in samples if sample.split == "validation"]
        pairs = [pair for pair in pairs_of(self.train) if len(pair) == 2]
        if not pairs or not validation:
            raise OptionError('`paper` learns from pairs in "train", and needs a "validation"')
        super().__init__(
            pairs,
            validation,
            batch=settings.batch,
            seed=seed,
            processes=processes,
            drawn=settings.pairs,
        )
        self.events = {
            s.id: TraceTokens(s.tokens, s.device) for s in samples if s.tokens is not None
        }
        self.encoder = text_encoder(settings.text_encoder)
        devices = sorted({sample.device for sample in self.train if sample.device})
        self.config = settings.config((UNKNOWN_PLATFORM, *devices), self.encoder)
        torch.manual_seed(step_seed(seed, 0))
        self.module = PaperNet(self.config).to(self.processes.device)

    @cached_property
    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for sample in self.train:
            tokens = self.events[sample.id].tokens
            digest.update(sample.id.encode() + tokens.duration_code.tobytes())
        return {
            "paper": asdict(self.settings),
            "losses": asdict(self.losses),
            "data": digest.hexdigest(),
        }

    @cached_property
    def _labels(self) -> dict[int, Tensor]:
        """Pseudo-labels of windows of traces with a fault, for the objective `twin`."""
        if self.losses.objective != "twin":
            return {}
        half = self.train[0].values.shape[1]
        values = [squash(s.values, s.zscores)[:, :half] for s in self.train]
        far = twin_distances(values, {pair[0]: pair[1] for pair in self.pairs})
        target, weight = pseudo_targets(ranks(list(far.values())), 0.08, 0.25)
        return {
            place: torch.from_numpy(np.where(counts > 0, one, np.nan).astype(np.float32))
            for place, one, counts in zip(far, target, weight, strict=True)
        }

    def loss(self, epoch: int, step: int) -> tuple[Tensor, float]:
        pairs = self.share(step)
        total = torch.zeros((), device=self.processes.device)
        if not pairs:
            return total, 0.0
        found = self._windows([self.train[place] for pair in pairs for place in pair])
        for i, (bad, _) in enumerate(pairs):
            marked, labels = found[2 * i], self._labels.get(bad)
            if labels is not None:
                marked = marked._replace(labels=labels.to(total.device))
            total = total + self.losses(found[2 * i + 1], marked)
        return total, float(len(pairs))

    def _windows(self, samples: Sequence[Sample]) -> list[PairWindows]:
        inputs = join_traces([self.events[s.id] for s in samples], self.config, self.encoder)
        found = self.module(batch_of(inputs, str(self.processes.device)))
        lengths = np.diff(inputs.trace_offsets).tolist()
        parts = zip(found.scores.split(lengths), found.features.split(lengths), strict=True)
        return [PairWindows(scores, features) for scores, features in parts]

    def validation_logits(self) -> list[Array]:
        self.module.eval()
        found: list[Array] = []
        with torch.no_grad():
            for first in range(0, len(self.validation), 8):
                parts = self._windows(self.validation[first : first + 8])
                found += [torch.logit(part.scores, 1e-6).cpu().numpy() for part in parts]
        return found

    def save(self, path: Path, fitted: Fitted) -> None:
        """Write the weights as `scoring.paper.load` reads them."""
        from safetensors.numpy import save_file

        about = {
            **self.config.metadata(),
            "settings": json.dumps({**self.identity, "seed": self.seed}),
            "validation": json.dumps(fitted.best_figures()),
        }
        with replacing(path) as staged:
            save_file(self.module.arrays(), staged, metadata=about)


def train(
    dataset: PathLike, out: PathLike, tables: Mapping[str, Any], **run: Unpack[RunOptions]
) -> Trained:
    """Train `paper`; see `training.train`. `tables` has `[paper]`, `[losses]` and `[loop]`."""
    settings = take(PaperSettings, tables, "paper")
    losses = take(PaperLosses, tables, "losses")
    loop = take(LoopSettings, tables, "loop")
    samples = load_samples(
        dataset,
        splits=("train", "validation"),
        windows=settings.windows,
        tokens=settings.cap,
        gpu_only=True,
    )
    return fit_and_save(
        lambda group: PaperLearner(samples, settings, losses, run["seed"], group),
        loop,
        out,
        **run,
    )
