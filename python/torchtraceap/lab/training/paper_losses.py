"""Losses of the paper (Eq. 10 to 15) on the windows of a good trace and of its bad twin.

Several equations are wrong as printed: docs/detectors.md has them one by one. `PaperLosses` is
corrected by default, and each field takes the printed reading back, so that its effect shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from torchtraceap.errors import OptionError

__all__ = ["OBJECTIVES", "PairWindows", "PaperLosses"]

OBJECTIVES = ("average", "topk", "noisy-or", "twin")
_SMALL = 1e-6


class PairWindows(NamedTuple):
    """What the network says of one trace of a pair; W windows."""

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
    """How windows make the trace's probability (Eq. 10): their average; the mean of the highest
    tenth (`topk`); 1 minus the geometric mean of 1 - P (`noisy-or`); or pseudo-labels of windows
    (`twin`)."""
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
    share: float = 0.1
    """S+ and S-: the part of the windows that Eq. 11 compares."""
    weights: tuple[float, float, float, float] = (1.0, 1.0, 0.5, 0.1)
    """Of Eq. 10, 11, 14 and of smoothness."""
    feature_smoothness: float = 0.1
    """Of the change of features beside that of scores."""

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
        both = torch.stack([self._of_trace(good.scores), self._of_trace(bad.scores)])
        labels = torch.tensor([0.0, 1.0]).to(both)
        return F.binary_cross_entropy(both.clamp(_SMALL, 1 - _SMALL), labels)

    def _of_trace(self, scores: Tensor) -> Tensor:
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
        """Eq. 14: windows of one pseudo-label are alike, of two are not.

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
            _mean((1 - alike)[same & others])
            + _mean(F.relu(alike - self.cluster_margin)[~same])
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
