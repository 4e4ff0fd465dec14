"""Statistics that separate a real change of a row from chance, for `diff` and `bench.causes`.

Note [Two kinds of noise]: A row differs by chance from step to step, which the recordings show, and
from recording to recording, which rows that did not change show. The first is judged by Yuen's test
for trimmed means (The two-sample trimmed t for unequal population variances, Biometrika 61, 1974):
the mean over the middle half of the steps, its standard error from the winsorized variance, and
the quantile of Student's t for the number of steps that are kept. With few steps that quantile is
large, so four steps cannot tell 3 us. The second is the spread of the ratios after / before of
the rows that are called equally often. Both hold for all tested rows together (Bonferroni): with
probability 95 %, no row that did not change is called beyond noise.

Note [Everything slower]: A machine that runs at another clock, or shares its memory with others,
stretches all work by one factor. If most of the work that both recordings have shares a factor,
`common_factor` returns it, and the spread is measured around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.tables.steps.pieces import NORMAL_MAD, Cells

__all__ = [
    "EQUAL_CALLS",
    "FEWEST_STEPS",
    "LARGEST_SPREAD",
    "CommonFactor",
    "common_factor",
    "recording_noise_ns",
    "step_noise_ns",
    "student_t_quantile",
]

FALSE_ALARMS = 0.05
"""Probability that any of the tested rows is beyond noise although none has changed."""
FEWEST_STEPS = 3
"""The fewest whole steps on either side from which noise is known."""
EQUAL_CALLS = 0.02
"""Numbers of calls that differ by a smaller share are those of the same work."""
LEAST_COMMON = 0.02
"""A common factor closer to 1 cannot be told from the variation of the work."""
COMMON_SHARE = 0.5
"""The share of the common work that has to have the factor."""
MOST_WEIGHT = 0.05
"""The largest weight of one row in the factor: a change of one large row is not common."""
LARGEST_SPREAD = 0.1
"""If unchanged rows differ by more, the recordings were disturbed or are not of the same work."""
_NORMAL_FROM = 1000


@dataclass(frozen=True, slots=True)
class CommonFactor:
    """The factor by which all work differs between two recordings."""

    factor: float
    """After / before; 1 if no factor is common."""
    spread: float
    """Robust standard deviation of the logarithm of after / before around the factor."""


def common_factor(ns: Sequence[Array], calls: Sequence[Array], is_work: Array) -> CommonFactor:
    """Estimate the factor of Note [Everything slower] from rows that are called equally often.

    Args:
        ns: Time per step before and after, float64 `[rows]` each.
        calls: Calls per step before and after, float64 `[rows]` each.
        is_work: bool `[rows]`, False for idle time.
    """
    same = np.abs(calls[1] - calls[0]) <= EQUAL_CALLS * calls[0]
    known = is_work & same & (ns[0] > 0) & (ns[1] > 0)
    if not known.any():
        return CommonFactor(1.0, 0.0)
    ratio = np.log(ns[1][known] / ns[0][known])
    size = np.sqrt(ns[0][known] * ns[1][known])
    weight = np.minimum(size, MOST_WEIGHT * size.sum())
    middle = _weighted_median(ratio, weight)
    alike = float(weight[np.abs(ratio - middle) <= abs(middle) / 2].sum() / weight.sum())
    if abs(middle) < LEAST_COMMON or alike < COMMON_SHARE:
        middle = 0.0
    spread = NORMAL_MAD * _weighted_median(np.abs(ratio - middle), weight)
    return CommonFactor(float(np.exp(middle)), spread)


def _weighted_median(values: Array, weight: Array) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])


def step_noise_ns(cells: Sequence[Cells], tested: int) -> Array:
    """Return the largest difference of the middle means that chance between steps explains.

    Args:
        cells: Times of the rows in each step, before and after.
        tested: The number of rows that are tested together.

    Returns:
        float64 `[rows]` in ns; NaN if a side has fewer than `FEWEST_STEPS` steps.
    """
    if min(side.steps for side in cells) < FEWEST_STEPS:
        return np.full(cells[0].rows, np.nan)
    # The smaller number of degrees of freedom is the cautious choice for unequal variances.
    freedom = min(side.kept_steps() for side in cells) - 1
    quantile = student_t_quantile(1 - FALSE_ALARMS / (2 * max(1, tested)), freedom)
    noise: Array = quantile * np.hypot(*(side.standard_errors() for side in cells))
    return noise


def recording_noise_ns(ns: Sequence[Array], common: CommonFactor, tested: int) -> Array:
    """Return the largest difference that chance between recordings explains.

    Args:
        ns: Time per step before and after, float64 `[rows]` each.
        common: The factor and spread of unchanged rows.
        tested: The number of rows that are tested together.

    Returns:
        float64 `[rows]` in ns; 0 for a row that only one side has.
    """
    quantile = NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(1, tested)))
    return np.where((ns[0] > 0) & (ns[1] > 0), quantile * common.spread * common.factor * ns[0], 0)


def student_t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

    The distribution function is the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4,
    which is inverted by bisection.

    Args:
        probability: Above 0.5 and below 1.
        freedom: Degrees of freedom, at least 1. The normal distribution stands in from 1000 on.
    """
    if freedom >= _NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        below = _central_probability(middle, freedom) < 2 * probability - 1
        low, high = (middle, high) if below else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _central_probability(angle: float, freedom: int) -> float:
    """Return P(|t| < sqrt(freedom) tan(angle))."""
    cosine, odd = math.cos(angle), freedom % 2
    term, series = (cosine if odd else 1.0), 0.0
    for power in range(odd, freedom - 1, 2):
        series += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    inside = math.sin(angle) * series
    return 2 / math.pi * (angle + inside) if odd else inside
