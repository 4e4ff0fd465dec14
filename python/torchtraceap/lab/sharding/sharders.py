"""Sharders: seven published ones (Lin et al., IEEE TPDS 2024), and a local search by the costs.

Each of the published ones assigns every part to a rank. Greedy sharders assign parts from the
largest cost to the smallest, each to the rank with the least sum of costs among those with memory
for it (Zha et al., AutoShard, KDD 2022); they differ in the cost.

The local search improves an assignment. Each round evaluates all moves of a part away from the
critical ranks, and all swaps with a part of another rank, and applies the best one, until none
helps. Critical are the rank with the longest lookups and the one with the widest rows, which an
exchange waits for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchtraceap.lab.sharding.cost import Costs
from torchtraceap.lab.sharding.tables import Table

__all__ = ["PUBLISHED_SHARDERS", "NoRoomError", "assign_published", "greedy", "local_search"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


# The time of the slowest rank alone says nothing of moves between others; a little of the spread
# over ranks leads on over plateaus.
_EVENNESS = 1e-3
_ROUNDS_PER_PART = 4
# Greedy placement already balances thousands of tables, whose rounds cost more.
_MOST_ROUNDS = 1000
# Limits on a rank's parts and on candidates for swaps; larger sets are thinned out by time.
_MOST_OWN = 64
_MOST_OTHERS = 1024

PUBLISHED_SHARDERS = (
    "naive",
    "naive_chunk",
    "random",
    "size_greedy",
    "lookup_greedy",
    "norm_lookup_greedy",
    "size_lookup_greedy",
)


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


def assign_published(name: str, costs: Costs, seed: int) -> IntArray:
    """Return the assignment of a sharder of `PUBLISHED_SHARDERS`; `seed` is that of "random".

    Raises:
        NoRoomError: The sharder looks at memory, and no rank has any left.
    """
    count = len(costs.parts)
    if name == "naive":  # parts in turn
        return np.arange(count) % costs.ranks
    if name == "naive_chunk":  # equal runs of consecutive parts
        sizes = [len(chunk) for chunk in np.array_split(np.arange(count), costs.ranks)]
        return np.repeat(np.arange(costs.ranks), sizes)
    if name == "random":  # each part on any rank with room for it
        random, held = np.random.default_rng(seed), np.full(costs.ranks, costs.received)
        found = np.empty(count, np.int64)
        for part, memory in enumerate(costs.memory.tolist()):
            fits = np.flatnonzero(held + memory <= costs.limit)
            if not len(fits):
                raise NoRoomError(f"no rank has memory left for {costs.parts[part].table}")
            found[part] = random.choice(fits)
            held[found[part]] += memory
        return found
    tables = [costs.lookups.tables[part.table] for part in costs.parts]
    rows = np.array([table.rows for table in tables], np.float64)
    columns = np.array([part.columns for part in costs.parts], np.float64)
    lookup = columns * [table.pooling_factor for table in tables]
    if name == "size_greedy":  # by the size of the weights
        return greedy(costs, costs.width * rows)
    if name == "lookup_greedy":  # by the lookups of a sample times the elements of a row
        return greedy(costs, lookup)
    if name == "size_lookup_greedy":
        return greedy(costs, lookup * np.log10(np.maximum(rows, 2)))
    # A distinct row counts once per batch. The source names this sharder, "norm_lookup_greedy",
    # without saying what it normalizes by.
    return greedy(costs, lookup / [_mean_reuse(table, costs.lookups.bags) for table in tables])


def _mean_reuse(table: Table, bags: int) -> float:
    """Return the mean lookups of a distinct row in a batch."""
    asked = bags * table.pooling_factor
    if table.histogram is not None:
        return table.histogram.lookups_per_row()
    missing = np.exp(asked * np.log1p(-1.0 / table.rows)) if table.rows > 1 else 0.0
    return max(1.0, float(asked / (table.rows * (1.0 - missing))))


# ------------------------------------------------------------------------- local search


class _Steps(NamedTuple):
    """Moves (other is -1) and swaps with their targets."""

    own: IntArray
    other: IntArray
    to: IntArray


def local_search(costs: Costs, ranks: IntArray) -> IntArray:
    """Return an assignment that no move or swap improves; `ranks` must fit in memory."""
    found = ranks.copy()
    for _ in range(min(_MOST_ROUNDS, _ROUNDS_PER_PART * len(found) + 8)):
        values = costs.time, costs.width, costs.index_width
        sums = [costs.sums(each, found) for each in values]
        held = costs.sums(costs.memory, found) + costs.received
        now = float(_objective(costs, *(each[None] for each in sums))[0])
        best, best_value = None, now * (1.0 - 1e-9)
        for rank in dict.fromkeys(int(each.argmax()) for each in sums if each.any()):
            steps = _steps_from(costs, found, rank)
            after = _sums_after(costs.memory, held, rank, steps)
            steps = _Steps(*(column[(after <= costs.limit).all(axis=1)] for column in steps))
            if not len(steps.own):
                continue
            objective = _objective(
                costs,
                *(_sums_after(v, of, rank, steps) for v, of in zip(values, sums, strict=True)),
            )
            at = int(objective.argmin())
            if objective[at] < best_value:
                best_value = float(objective[at])
                best = int(steps.own[at]), int(steps.other[at]), int(steps.to[at])
        if best is None:
            break
        own, other, to = best
        if other >= 0:
            found[other] = found[own]
        found[own] = to
    return found


def _objective(
    costs: Costs, times: FloatArray, widths: FloatArray, index_widths: FloatArray
) -> FloatArray:
    evenness = np.sqrt((times**2).mean(axis=1))
    return np.asarray(costs.step_ns(times, widths, index_widths) + _EVENNESS * evenness)


def _steps_from(costs: Costs, ranks: IntArray, rank: int) -> _Steps:
    own = _thin_out(np.flatnonzero(ranks == rank), costs.time, _MOST_OWN)
    others = _thin_out(np.flatnonzero(ranks != rank), costs.time, _MOST_OTHERS)
    targets = np.delete(np.arange(costs.ranks), rank)
    moved, to = np.meshgrid(own, targets, indexing="ij")
    swapped, other = np.meshgrid(own, others, indexing="ij")
    return _Steps(
        np.concatenate([moved.ravel(), swapped.ravel()]),
        np.concatenate([np.full(moved.size, -1), other.ravel()]),
        np.concatenate([to.ravel(), ranks[other.ravel()]]),
    )


def _thin_out(parts: IntArray, times: FloatArray, most: int) -> IntArray:
    """Return at most so many parts, evenly from the longest to the shortest."""
    if len(parts) <= most:
        return parts
    order = parts[np.argsort(-times[parts], kind="stable")]
    return order[np.linspace(0, len(order) - 1, most).astype(np.int64)]


def _sums_after(values: FloatArray, sums: FloatArray, rank: int, steps: _Steps) -> FloatArray:
    """Return the sums of each rank after each step, `[steps, ranks]`."""
    back = np.where(steps.other >= 0, values[steps.other], 0.0)
    change = values[steps.own] - back
    after = np.repeat(sums[None], len(steps.own), axis=0)
    after[:, rank] -= change
    after[np.arange(len(after)), steps.to] += change
    return after
