"""Traces and targets for `v2`: what is known of windows on each track, and batches of both.

| track | what labels tell |
|---|---|
| S | how much of each window is lost, and to which type |
| W | which traces have a fault, of which type, and which trace is the twin without it |
| Z | nothing |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.labels import window_labels
from torchtraceap.datasets.samples import TYPES, Sample
from torchtraceap.diagnosis.scoring.v2 import TokenInputs, TokenView, squash, token_inputs
from torchtraceap.lab.training.lost_time import LostTime
from torchtraceap.lab.training.v2_net import TokenBatch, WindowBatch

__all__ = [
    "Targets",
    "Traces",
    "aligned",
    "event_targets",
    "make_batch",
    "pairs_of",
    "supervised",
    "token_batch",
]

_POSITIVE, _IGNORED = 0.1, 0.02  # docs/generation.md: a tenth of a window, and a fiftieth
_IGNORED_WEIGHT = 0.2
_HALF = 0.5


@dataclass(frozen=True)
class Targets:
    """Of the windows of one trace."""

    any: Array
    """float32 `[W]`: 1 where time is lost, between 0 and 1 where it may be."""
    weight: Array
    """float32 `[W]`: how much that counts."""
    types: Array
    """float32 `[W, T]`."""
    types_weight: Array
    """float32 `[W, T]`."""
    severity: Array | None
    """float32 `[W]`: the part that is lost; None where nobody knows."""


@dataclass(frozen=True)
class Traces:
    """The traces of a split on one grid."""

    samples: Sequence[Sample]
    features: Sequence[Array]
    """Of each, float32 `[W, 2 F]`, of `squash`."""
    tokens: Sequence[TokenInputs | None]

    @classmethod
    def of(cls, samples: Sequence[Sample], view: TokenView | None = None) -> Traces:
        features = [squash(each.values, each.zscores) for each in samples]
        tokens = [
            None if each.tokens is None else token_inputs(each.tokens, each.bounds_ns, view)
            for each in samples
        ]
        return cls(samples, features, tokens)


def pairs_of(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    """Places of traces that belong together: one and its twin; a trace without one by itself."""
    places = {sample.id: place for place, sample in enumerate(samples)}
    pairs = [
        (place, places[sample.twin])
        for place, sample in enumerate(samples)
        if sample.twin is not None and sample.twin in places
    ]
    paired = {place for pair in pairs for place in pair}
    return [*pairs, *((place,) for place in range(len(samples)) if place not in paired)]


def supervised(sample: Sample) -> Targets:
    """Track S. Windows of which between a fiftieth and a tenth is lost are soft, and count less."""
    lost = np.minimum(sample.cost.sum(axis=1), 1.0).astype(np.float32)
    positive = sample.positive
    soft = np.where(sample.ignore, lost / (2 * _POSITIVE), 0.0)
    doubtful = (sample.cost >= _IGNORED) & (sample.cost < _POSITIVE)
    return Targets(
        any=np.where(positive, 1.0, soft).astype(np.float32),
        weight=np.where(sample.ignore, _IGNORED_WEIGHT, 1.0).astype(np.float32),
        types=(sample.cost >= _POSITIVE).astype(np.float32),
        types_weight=np.where(doubtful, 0.0, 1.0).astype(np.float32),
        severity=lost,
    )


def aligned(sample: Sample, lost: LostTime | None) -> Targets:
    """Track W, of a trace that was compared with its twin: as `supervised`, with the time that it
    lost for a label. Without such a comparison a trace with a fault says nothing."""
    share, types = np.zeros(len(sample.bounds_ns) - 1, dtype=np.float32), np.zeros_like(sample.cost)
    if sample.label and lost is not None:
        share = lost.share(sample.bounds_ns[:-1], sample.bounds_ns[1:])
        if sample.type in TYPES:
            types[:, TYPES.index(sample.type)] = share
    positive, ignore = window_labels(share[:, None])
    targets = supervised(replace(sample, cost=types, positive=positive, ignore=ignore))
    if sample.label and lost is None:
        nothing = np.zeros_like(targets.weight)
        types_weight = np.zeros_like(targets.types_weight)
        return replace(targets, weight=nothing, types_weight=types_weight)
    return targets


def event_targets(sample: Sample, lost: LostTime | None) -> Array:
    """float32 `[N]` of the tokens of a trace: 1 where half of the event or more is lost time."""
    tokens = sample.tokens
    if tokens is None or lost is None or not sample.label:
        return np.zeros(0 if tokens is None else len(tokens), dtype=np.float32)
    share = lost.share(tokens.start_ns, tokens.start_ns + tokens.dur_ns)
    return (share >= _HALF).astype(np.float32)


def make_batch(
    features: Sequence[Array], tokens: Sequence[TokenInputs | None], device: str
) -> WindowBatch:
    """Traces on one grid, on a device. Tokens go in only where all of them have some."""
    stacked = torch.from_numpy(np.stack(list(features))).to(device)
    given = [each for each in tokens if each is not None]
    whole = len(given) == len(tokens)
    return WindowBatch(stacked, token_batch(given, stacked.shape[1], device) if whole else None)


def token_batch(tokens: Sequence[TokenInputs], windows: int, device: str) -> TokenBatch:
    """One batch of the tokens of traces that have `windows` windows each."""
    first_name = np.cumsum([0, *(len(each.names) for each in tokens)])
    window = [each.window + place * windows for place, each in enumerate(tokens)]

    def joined(parts: Sequence[Array]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(parts))).to(device)

    return TokenBatch(
        window=joined(window),
        codes=joined([each.codes for each in tokens]),
        numbers=joined([each.numbers for each in tokens]),
        name=joined([t.name + n for t, n in zip(tokens, first_name, strict=False)]),
        cpu_name=joined([t.cpu_name + n for t, n in zip(tokens, first_name, strict=False)]),
        names=joined([each.names for each in tokens]),
    )
