"""The Mann-Whitney test for two unpaired samples, with the shift and interval that belong to it.

Note [Rank sums]: if both sides take equally long and their processes could have stood in any order,
every choice of m of the n ranks is equally likely for side B. The number of choices for each sum
follows by counting them one rank at a time, ties included (they share the mean of their ranks).
SciPy's exact test is not used, because it assumes that there are no ties.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.statistics.signed_rank import doubled_midranks

__all__ = ["least_p", "rank_sum_p", "shift", "shift_interval"]


def rank_sum_p(before: Array, after: Array) -> float:
    """Return the exact two-sided p value of the hypothesis that both samples have one
    distribution."""
    doubled = doubled_midranks(np.concatenate([before, after]))
    summed = int(doubled[len(before) :].sum())
    ways = _ways(tuple(sorted(doubled.tolist())), len(after))
    total = ways.sum()
    below, above = ways[: summed + 1].sum() / total, ways[summed:].sum() / total
    return float(min(1.0, 2 * min(below, above)))


def least_p(before: int, after: int) -> float:
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
