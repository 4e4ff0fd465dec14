"""Exact rank tests of pairs and of unpaired samples, with their estimates and intervals.

Note [Signed ranks]: under the hypothesis that both sides take equally long, the sign of each pair's
log ratio is a fair coin. Given the sizes, the sum of the ranks of the positive ones is then a sum
of independent coins, and its distribution follows exactly by convolution, one rank at a time. Equal
sizes share the mean of their ranks (doubled, these are integers), and a ratio of exactly 1 keeps
its rank out of every sum (Pratt 1959). So ties and zeros need neither an approximation nor random
draws, and a few hundred pairs cost microseconds. Ranks, not the values themselves, because now and
then a run is slow by several percent, and that should count as one pair.

Note [Rank sums]: if both sides take equally long and their processes could have stood in any order,
every choice of m of the n ranks is equally likely for side B. The number of choices for each sum
follows by counting them one rank at a time, ties included (they share the mean of their ranks).

SciPy's exact tests are not used, because they assume that there are no ties.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from torchtraceap.core import Array

__all__ = [
    "interval",
    "least_p",
    "least_rank_sum_p",
    "p_values",
    "rank_sum_p",
    "shift",
    "shift_interval",
    "walsh_averages",
]


def p_values(values: Array) -> Array:
    """Return exact two-sided p values, float64 `[...]`, of the hypothesis that the values of each
    row, float64 `[..., n]`, are symmetric around 0."""
    rows = np.atleast_2d(np.asarray(values, np.float64))
    found = np.ones(rows.shape[:-1])
    sizes = np.sort(np.abs(rows), axis=-1)
    plain = (np.diff(sizes, axis=-1) > 0).all(axis=-1) & (sizes[..., 0] > 0)
    if plain.any():
        ranks = np.abs(rows[plain]).argsort(axis=-1).argsort(axis=-1) + 1
        sums = np.where(rows[plain] > 0, ranks, 0).sum(axis=-1)
        cumulated = np.cumsum(_sum_probabilities(tuple(range(1, rows.shape[-1] + 1))))
        least = np.minimum(sums, len(cumulated) - 1 - sums)
        found[plain] = np.minimum(2 * cumulated[least], 1.0)
    for place in map(tuple, np.argwhere(~plain)):
        row = rows[place]
        doubled = _doubled_midranks(np.abs(row))
        chances = _sum_probabilities(tuple(doubled[row != 0].tolist()))
        summed = int(doubled[row > 0].sum())
        found[place] = min(1.0, 2 * min(chances[: summed + 1].sum(), chances[summed:].sum()))
    return found.reshape(np.shape(values)[:-1])


def least_p(pairs: int) -> float:
    """Return the smallest two-sided p value of so many pairs: all signs alike, 2 of 2^n ways."""
    return min(1.0, 2.0 ** (1 - pairs))


@lru_cache(maxsize=256)
def _sum_probabilities(ranks: tuple[int, ...]) -> Array:
    """Return the probability of each sum of the ranks, each included by a fair coin. Up to 53 ranks
    it is a multiple of 2^-53 and exact."""
    found = np.ones(1)
    for rank in ranks:
        longer = np.zeros(len(found) + rank)
        longer[: len(found)] = found
        longer[rank:] += found
        found = longer / 2
    return found


def _doubled_midranks(sizes: Array) -> Array:
    """Return twice the rank of each size, int64; equal sizes share the mean of their ranks."""
    _, group, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Array = (2 * last - counts + 1)[group]
    return shared.astype(np.int64)


def walsh_averages(values: Array) -> Array:
    """Return the means of every two values of rows `[..., n]`, each with itself too, sorted,
    float64 `[..., n (n + 1) / 2]`. Their median is the estimate of Hodges and Lehmann (1963)."""
    first, second = np.triu_indices(np.shape(values)[-1])
    means = (values[..., first] + values[..., second]) / 2
    means.sort(axis=-1)
    return means


def interval(averages: Array, pairs: int, error: float) -> tuple[Array, Array]:
    """Return the interval of values that the two-sided test does not exclude, by inversion.

    Args:
        averages: The result of `walsh_averages`.
        pairs: Number of values that they come from.
        error: Probability that the interval misses, at most.

    Returns:
        Low and high ends, float64 `[...]`; infinite where so few pairs exclude nothing.
    """
    cumulated = np.cumsum(_sum_probabilities(tuple(range(1, pairs + 1))))
    cut = int(np.searchsorted(cumulated, error / 2, side="right"))
    if cut == 0:
        nothing = np.full(averages.shape[:-1], np.inf)
        return -nothing, nothing
    cut = min(cut, (averages.shape[-1] + 1) // 2)
    return averages[..., cut - 1], averages[..., -cut]


# ------------------------------------------------------------------------- unpaired samples


def rank_sum_p(before: Array, after: Array) -> float:
    """Return the exact two-sided p value of the hypothesis that both samples have one
    distribution (Mann and Whitney)."""
    doubled = _doubled_midranks(np.concatenate([before, after]))
    ways = _ways(tuple(sorted(doubled.tolist())), len(after))
    summed, total = int(doubled[len(before) :].sum()), ways.sum()
    below, above = ways[: summed + 1].sum() / total, ways[summed:].sum() / total
    return float(min(1.0, 2 * min(below, above)))


def least_rank_sum_p(before: int, after: int) -> float:
    """Return the smallest two-sided p value that samples of these sizes can have."""
    return min(1.0, 2 / comb(before + after, before))


@lru_cache(maxsize=64)
def _ways(ranks: tuple[int, ...], chosen: int) -> Array:
    """Count the choices of `chosen` ranks by their sum."""
    top = sum(ranks[len(ranks) - chosen :])
    ways = np.zeros((chosen + 1, top + 1))
    ways[0, 0] = 1
    for number, rank in enumerate(ranks, 1):
        most = min(chosen, number)
        if rank <= top:
            ways[1 : most + 1, rank:] += ways[:most, : top + 1 - rank].copy()
    found: Array = ways[chosen]
    return found


def shift(before: Array, after: Array) -> float:
    """Return the median of all differences after - before (Hodges and Lehmann)."""
    return float(np.median(np.subtract.outer(after, before)))


def shift_interval(before: Array, after: Array, error: float) -> tuple[float, float]:
    """Return the range of shifts that the two-sided test does not exclude; infinite if it can
    exclude none."""
    differences = np.sort(np.subtract.outer(after, before), axis=None)
    m, n = len(after), len(before)
    ways = _ways(tuple(range(1, m + n + 1)), m)[m * (m + 1) // 2 :]
    cumulated = np.cumsum(ways) / ways.sum()
    cut = int(np.searchsorted(cumulated, error / 2, side="right"))
    if cut == 0:
        return -np.inf, np.inf
    cut = min(cut, (len(differences) + 1) // 2)
    return float(differences[cut - 1]), float(differences[-cut])
