"""The seven published sharders that the search is compared with (Lin et al., IEEE TPDS 2024).

Each assigns every part to a rank. Greedy sharders assign parts from the largest cost to the
smallest, each to the rank with the least sum of costs among those with memory for it (Zha et al.,
AutoShard, KDD 2022); they differ in the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from torchtraceap.lab.sharding.cost import Costs
from torchtraceap.lab.sharding.tables import Table

__all__ = ["PUBLISHED_SHARDERS", "NoRoomError", "greedy"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class NoRoomError(Exception):
    """Raised if no rank has memory left; the message names the part."""


def greedy(costs: Costs, weights: FloatArray) -> IntArray:
    """Assign parts from the heaviest on, each to the lightest rank with room for it.

    Raises:
        NoRoomError: There is none.
    """
    sums, held = np.zeros(costs.ranks), np.full(costs.ranks, costs.received)
    found = np.empty(len(costs.parts), np.int64)
    for part in np.lexsort((-costs.memory, -weights)).tolist():
        fits = held + costs.memory[part] <= costs.limit
        if not fits.any():
            raise NoRoomError(f"no rank has memory left for {costs.parts[part].table}")
        order = np.lexsort((held, sums))
        rank = int(order[fits[order]][0])
        found[part] = rank
        sums[rank] += weights[part]
        held[rank] += costs.memory[part]
    return found


def _naive(costs: Costs, _: int) -> IntArray:
    """Assign parts in turn."""
    return np.arange(len(costs.parts)) % costs.ranks


def _naive_chunk(costs: Costs, _: int) -> IntArray:
    """Assign equal runs of consecutive parts."""
    sizes = [len(chunk) for chunk in np.array_split(np.arange(len(costs.parts)), costs.ranks)]
    return np.repeat(np.arange(costs.ranks), sizes)


def _random(costs: Costs, seed: int) -> IntArray:
    """Assign each part to a random rank with room for it."""
    random, held = np.random.default_rng(seed), np.full(costs.ranks, costs.received)
    found = np.empty(len(costs.parts), np.int64)
    for part, memory in enumerate(costs.memory.tolist()):
        fits = np.flatnonzero(held + memory <= costs.limit)
        if not len(fits):
            raise NoRoomError(f"no rank has memory left for {costs.parts[part].table}")
        found[part] = random.choice(fits)
        held[found[part]] += memory
    return found


def _size(costs: Costs) -> FloatArray:
    """Return the size of the weights, bytes."""
    return costs.width * _of_tables(costs, lambda table: float(table.rows))


def _lookup(costs: Costs) -> FloatArray:
    """Return lookups of a sample times elements of a row."""
    columns = np.array([part.columns for part in costs.parts], np.float64)
    return columns * _of_tables(costs, lambda table: table.pooling_factor)


def _norm_lookup(costs: Costs) -> FloatArray:
    """Return `_lookup` over the lookups of a distinct row, which counts once per batch.

    The source names this sharder without saying what it normalizes by.
    """
    return _lookup(costs) / _of_tables(costs, lambda table: _reuse(table, costs.lookups.bags))


def _size_lookup(costs: Costs) -> FloatArray:
    """Return lookups of a sample times elements of a row times log10 of the rows."""
    return _lookup(costs) * _of_tables(costs, lambda table: float(np.log10(max(table.rows, 2))))


def _of_tables(costs: Costs, value: Callable[..., float]) -> FloatArray:
    return np.array([value(costs.lookups.tables[part.table]) for part in costs.parts], np.float64)


def _reuse(table: Table, bags: int) -> float:
    """Return the mean lookups of a distinct row in a batch."""
    asked = bags * table.pooling_factor
    if table.histogram is not None:
        counts, shares = table.histogram.counts()
        return float((counts * shares).sum())
    missing = np.exp(asked * np.log1p(-1.0 / table.rows)) if table.rows > 1 else 0.0
    return max(1.0, float(asked / (table.rows * (1.0 - missing))))


def _greedy_by(weights: Callable[[Costs], FloatArray]) -> Callable[[Costs, int], IntArray]:
    return lambda costs, _: greedy(costs, weights(costs))


PUBLISHED_SHARDERS = MappingProxyType(
    {
        "naive": _naive,
        "naive_chunk": _naive_chunk,
        "random": _random,
        "size_greedy": _greedy_by(_size),
        "lookup_greedy": _greedy_by(_lookup),
        "norm_lookup_greedy": _greedy_by(_norm_lookup),
        "size_lookup_greedy": _greedy_by(_size_lookup),
    }
)
"""Sharders by name; each takes costs and a seed and may raise `NoRoomError`."""
