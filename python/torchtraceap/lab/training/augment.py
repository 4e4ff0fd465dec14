"""What varies between machines and runs, drawn anew each time a trace is seen in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.diagnosis.scoring.v2 import TokenInputs
from torchtraceap.errors import OptionError

__all__ = ["Augmentation", "changed_features", "changed_tokens"]

_GPU_TIMES = ("kernel_median_us", "collective_median_us")
_HOST_TIMES = ("launch_delay_p10_us", "launch_delay_p50_us", "launch_delay_p90_us")
_LENGTH = "window_length_log10_us"
_TENFOLD_DURATION, _TENFOLD_DELAY = 1 / 6.3, 1 / 7
"""What a factor of ten adds to quantised times, over the decades of their ranges."""


@dataclass(frozen=True)
class Augmentation:
    """`[augmentation]` in a file. All 0: nothing is changed."""

    speed: float = 0.4
    """Standard deviation of the logarithms of two factors, on times of the host and of the GPU."""
    noise: float = 0.2
    """Of features, in standard deviations of the training set."""
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


def changed_features(
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
        names: Of the F raw features.
        scale: float32 `[2 F]`, standard deviations.
        settings: What is drawn.
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


def changed_tokens(
    tokens: TokenInputs, settings: Augmentation, rng: np.random.Generator
) -> tuple[TokenInputs, Array]:
    """Tokens of a trace with other speeds, fewer names and a few events less; and bool `[N]`: which
    of those given are left."""
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
