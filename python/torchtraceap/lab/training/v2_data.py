"""Traces and targets for `v2`: labels of windows on each track, changes of traces, and batches.

| track | labels |
|---|---|
| S | how much of each window is lost, and to which type |
| W | which traces have a fault, of which type, and which trace is the twin without it |
| Z | none |

What varies between machines and runs is drawn anew each time a trace is seen in training
(`Augmentation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchtraceap.core import Array
from torchtraceap.datasets import TYPES, Sample, window_labels
from torchtraceap.diagnosis import TokenInputs, TokenView, squash, token_inputs
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.v2_net import TokenBatch
from torchtraceap.lab.training.weak_labels import LostTime

__all__ = [
    "Augmentation",
    "Targets",
    "Traces",
    "aligned_targets",
    "augment_features",
    "augment_tokens",
    "event_targets",
    "make_batch",
    "pairs_of",
    "supervised_targets",
    "token_batch",
]

_POSITIVE, _IGNORED = 0.1, 0.02  # docs/labeled_data.md: a tenth of a window, and a fiftieth
_IGNORED_WEIGHT = 0.2
_HALF = 0.5
_GPU_TIMES = ("kernel_median_us", "collective_median_us")
_HOST_TIMES = ("launch_delay_p10_us", "launch_delay_p50_us", "launch_delay_p90_us")
_LENGTH = "window_length_log10_us"
_TENFOLD_DURATION, _TENFOLD_DELAY = 1 / 6.3, 1 / 7
"""The change of quantized times by a factor of ten, over the decades of their ranges."""


@dataclass(frozen=True)
class Targets:
    """Targets of the windows of one trace."""

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
    """float32 `[W, 2 F]` of each trace, of `squash`."""
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


def supervised_targets(sample: Sample) -> Targets:
    """Return the targets of track S. Windows of which between a fiftieth and a tenth is lost are
    soft, and count less."""
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


def aligned_targets(sample: Sample, lost: LostTime | None) -> Targets:
    """Return the targets of track W: as `supervised`, with the time that the trace lost against its
    twin for a label. Without such a comparison a trace with a fault says nothing."""
    share, types = np.zeros(len(sample.bounds_ns) - 1, dtype=np.float32), np.zeros_like(sample.cost)
    if sample.label and lost is not None:
        share = lost.share(sample.bounds_ns[:-1], sample.bounds_ns[1:])
        if sample.type in TYPES:
            types[:, TYPES.index(sample.type)] = share
    positive, ignore = window_labels(share[:, None])
    targets = supervised_targets(replace(sample, cost=types, positive=positive, ignore=ignore))
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
) -> tuple[Tensor, TokenBatch | None]:
    """Return the features `[B, W, 2 F]` and tokens of traces on one grid, on a device. Tokens go in
    only where all traces have some."""
    stacked = torch.from_numpy(np.stack(list(features))).to(device)
    given = [each for each in tokens if each is not None]
    whole = len(given) == len(tokens)
    return stacked, token_batch(given, stacked.shape[1], device) if whole else None


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


# ------------------------------------------------------------------------------ changes


@dataclass(frozen=True)
class Augmentation:
    """`[augmentation]` in a file. All 0: nothing is changed."""

    speed: float = 0.4
    """Standard deviation of the logarithms of two factors, on times of the host and of the GPU."""
    noise: float = 0.2
    """Noise on features, in standard deviations of the training set."""
    names: float = 0.3
    """Share of a trace's distinct names that are taken away; classes stay."""
    events: float = 0.05
    """Share of tokens that are left out."""

    def __post_init__(self) -> None:
        if (
            min(self.speed, self.noise, self.names, self.events) < 0
            or max(self.names, self.events) > 1
        ):
            raise OptionError(f"[augmentation]: these settings make no sense: {self}")


def augment_features(
    features: Array,
    names: Sequence[str],
    scale: Array,
    settings: Augmentation,
    rng: np.random.Generator,
) -> Array:
    """Squashed features of a trace on another host and GPU. Shares and z-scores are left: they
    hardly depend on speeds.

    Args:
        features: float32 `[W, 2 F]`, of `squash`.
        names: Names of the F raw features.
        scale: float32 `[2 F]`, standard deviations.
        settings: The spread of what is drawn.
        rng: Draws.
    """
    found = features + settings.noise * scale * rng.standard_normal(features.shape, np.float32)
    host, gpu = rng.normal(0.0, settings.speed, 2)
    shifts = [*((name, gpu) for name in _GPU_TIMES), *((name, host) for name in _HOST_TIMES)]
    for name, shift in shifts:
        # log(1 + x) of times that are several us; those of nothing stay 0.
        column = list(names).index(name)
        found[:, column] += np.where(features[:, column] > 0.5, shift, 0.0)
    column = list(names).index(_LENGTH)
    length = np.sign(features[:, column]) * np.expm1(np.abs(features[:, column]))
    length = length + max(host, gpu) / np.log(10)
    found[:, column] = np.sign(length) * np.log1p(np.abs(length))
    return found.astype(np.float32)


def augment_tokens(
    tokens: TokenInputs, settings: Augmentation, rng: np.random.Generator
) -> tuple[TokenInputs, Array]:
    """Tokens of a trace with other speeds, fewer names and a few events less; and bool `[N]`: which
    of the original ones are left."""
    kept = rng.random(len(tokens.window)) >= settings.events
    numbers = tokens.numbers[kept].copy()
    host, gpu = rng.normal(0.0, settings.speed, 2) / np.log(10)
    numbers[:, 0] += np.float32(gpu * _TENFOLD_DURATION)
    numbers[:, 3] += np.float32(host * _TENFOLD_DELAY) * (numbers[:, 4] == 0)
    known = rng.random(len(tokens.names)) >= settings.names
    changed = replace(
        tokens,
        window=tokens.window[kept],
        codes=tokens.codes[kept],
        numbers=numbers,
        name=tokens.name[kept],
        cpu_name=tokens.cpu_name[kept],
        names=tokens.names * known[:, None].astype(np.float32),
    )
    return changed, kept
