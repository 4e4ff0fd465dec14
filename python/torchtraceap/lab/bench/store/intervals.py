"""Means and ratios with intervals, and a robust line, for few numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from torchtraceap.lab.bench.statistics import scipy_stats

__all__ = ["mean_interval", "ratio_interval", "robust_line"]

_LEVEL = 0.95


def mean_interval(values: npt.ArrayLike) -> tuple[float, float | None, float | None]:
    """Return the mean of numbers `[n]`, n > 0, and its 95 % interval by Student's t.

    Returns:
        Mean, low and high; these None where n is 1.
    """
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return mean, None, None
    half = _quantile(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return mean, mean - half, mean + half


def ratio_interval(
    upper: npt.ArrayLike, lower: npt.ArrayLike
) -> tuple[float, float | None, float | None]:
    """Return the ratio of two typical positive numbers with Welch's 95 % interval of logarithms.

    Args:
        upper: Numbers `[n]`, one for each process.
        lower: Numbers `[m]`.

    Returns:
        Ratio of the geometric means, low and high; these None where either has a single number.
    """
    a, b = (np.log(np.asarray(each, dtype=np.float64)) for each in (upper, lower))
    distance = float(a.mean() - b.mean())
    if len(a) < 2 or len(b) < 2:
        return math.exp(distance), None, None
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if not va + vb:
        return math.exp(distance), math.exp(distance), math.exp(distance)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = _quantile(freedom) * math.sqrt(va + vb)
    return math.exp(distance), math.exp(distance - half), math.exp(distance + half)


def robust_line(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Return intercept and slope of the Theil-Sen line, which outliers do not move.

    Args:
        x: Different numbers `[n]`, n > 1.
        y: Numbers `[n]`.
    """
    places, values = (np.asarray(each, dtype=np.float64) for each in (x, y))
    first, second = np.triu_indices(len(places), 1)
    slope = float(np.median((values[second] - values[first]) / (places[second] - places[first])))
    return float(np.median(values - slope * places)), slope


def _quantile(freedom: float) -> float:
    return float(scipy_stats().t.ppf(0.5 + _LEVEL / 2, freedom))
