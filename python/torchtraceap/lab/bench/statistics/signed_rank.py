"""Wilcoxon's signed rank test with its estimate and interval, all exact.

Note [Signed ranks]: under the hypothesis that both sides take equally long, the sign of each pair's
log ratio is a fair coin. Given the sizes, the sum of the ranks of the positive ones is then a sum
of independent coins, and its distribution follows exactly by convolution, one rank at a time. Equal
sizes share the mean of their ranks (doubled, these are integers), and a ratio of exactly 1 keeps
its rank out of every sum (Pratt 1959). So ties and zeros need neither an approximation nor random
draws, and a few hundred pairs cost microseconds. Ranks, not the values themselves, because now and
then a run is slow by several percent, and that should count as one pair.
SciPy's exact test is not used, because it covers neither ties nor zeros, nor the interval.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from torchtraceap.core.aliases import Array

__all__ = ["doubled_midranks", "interval", "least_p", "p_values", "walsh_averages"]


def p_values(values: Array) -> Array:
    """Return exact two-sided p values of the hypothesis that values are symmetric around 0.

    Args:
        values: float64 `[..., n]`; each row is a sample of its own.

    Returns:
        float64 `[...]`, exact.
    """
    rows = np.atleast_2d(np.asarray(values, np.float64))
    found = np.ones(rows.shape[:-1])
    sizes = np.sort(np.abs(rows), axis=-1)
    plain = (np.diff(sizes, axis=-1) > 0).all(axis=-1) & (sizes[..., 0] > 0)
    if plain.any():
        ranks = np.abs(rows[plain]).argsort(axis=-1).argsort(axis=-1) + 1
        sums = np.where(rows[plain] > 0, ranks, 0).sum(axis=-1)
        cumulated = np.cumsum(_untied(rows.shape[-1]))
        least = np.minimum(sums, len(cumulated) - 1 - sums)
        found[plain] = np.minimum(2 * cumulated[least], 1.0)
    for place in np.argwhere(~plain):
        found[tuple(place)] = _p_with_ties(rows[tuple(place)])
    return found.reshape(np.shape(values)[:-1])


def least_p(pairs: int) -> float:
    """Return the smallest two-sided p value of so many pairs: all signs alike, 2 of 2^n ways."""
    return min(1.0, 2.0 ** (1 - pairs))


def _p_with_ties(values: Array) -> float:
    doubled = doubled_midranks(np.abs(values))
    summed = int(doubled[values > 0].sum())
    distribution = _distribution(tuple(doubled[values != 0].tolist()))
    below = distribution[: summed + 1].sum()
    above = distribution[summed:].sum()
    return float(min(1.0, 2 * min(below, above)))


def doubled_midranks(sizes: Array) -> Array:
    """Return twice the rank of each size, int64; equal sizes share the mean of their ranks."""
    _, group, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Array = (2 * last - counts + 1)[group]
    return shared.astype(np.int64)


@lru_cache(maxsize=256)
def _untied(pairs: int) -> Array:
    """Return the probability of each sum of the ranks 1 ... n, each included by a fair coin."""
    return _distribution(tuple(range(1, pairs + 1)))


def _distribution(ranks: tuple[int, ...]) -> Array:
    """Return the probability of each sum, float64. Up to 53 ranks it is a multiple of 2^-53 and
    exact."""
    found = np.ones(1)
    for rank in ranks:
        longer = np.zeros(len(found) + rank)
        longer[: len(found)] = found
        longer[rank:] += found
        found = longer / 2
    return found


@lru_cache(maxsize=256)
def _corners(pairs: int) -> tuple[Array, Array]:
    first, second = np.triu_indices(pairs)
    return first, second


def walsh_averages(values: Array) -> Array:
    """Return the means of every two values, each with itself too, sorted.

    Their median is the estimate of Hodges and Lehmann (1963).

    Args:
        values: float64 `[..., n]`.

    Returns:
        float64 `[..., n (n + 1) / 2]`.
    """
    first, second = _corners(np.shape(values)[-1])
    means = (values[..., first] + values[..., second]) / 2
    means.sort(axis=-1)
    return means


def interval(averages: Array, pairs: int, error: float) -> tuple[Array, Array]:
    """Return the interval of values that the two-sided test does not exclude, by inversion.

    Args:
        averages: Of `walsh_averages`.
        pairs: Number of values that they come from.
        error: Probability that the interval misses, at most.

    Returns:
        Low and high ends, float64 `[...]`; infinite where so few pairs exclude nothing.
    """
    cumulated = np.cumsum(_untied(pairs))
    cut = int(np.searchsorted(cumulated, error / 2, side="right"))
    if cut == 0:
        nothing = np.full(averages.shape[:-1], np.inf)
        return -nothing, nothing
    cut = min(cut, (averages.shape[-1] + 1) // 2)
    return averages[..., cut - 1], averages[..., -cut]
