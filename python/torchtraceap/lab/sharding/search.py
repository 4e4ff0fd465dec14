"""Local search that improves assignments by moves and swaps.

Each round evaluates all moves of a part away from the critical ranks, and all swaps with a part of
another rank, and applies the best one, until none helps. Critical are the rank with the longest
lookups and the one with the widest rows, which an exchange waits for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchtraceap.lab.sharding.cost import Costs

__all__ = ["local_search"]

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


class _Steps(NamedTuple):
    """Moves (other is -1) and swaps with their targets."""

    own: IntArray
    other: IntArray
    to: IntArray


def local_search(costs: Costs, ranks: IntArray) -> IntArray:
    """Return an assignment that no move or swap improves; `ranks` must fit in memory."""
    found = ranks.copy()
    for _ in range(min(_MOST_ROUNDS, _ROUNDS_PER_PART * len(found) + 8)):
        better = _best_step(costs, found)
        if better is None:
            break
        own, other, to = better
        if other >= 0:
            found[other] = found[own]
        found[own] = to
    return found


def _best_step(costs: Costs, ranks: IntArray) -> tuple[int, int, int] | None:
    values = costs.time, costs.width, costs.index_width
    sums = [costs.sums(each, ranks) for each in values]
    held = costs.sums(costs.memory, ranks) + costs.received
    now = float(_objective(costs, *(each[None] for each in sums))[0])
    best, best_value = None, now * (1.0 - 1e-9)
    for rank in dict.fromkeys(int(each.argmax()) for each in sums if each.any()):
        steps = _steps_from(costs, ranks, rank)
        after = _sums_after(costs.memory, held, rank, steps)
        steps = _Steps(*(column[(after <= costs.limit).all(axis=1)] for column in steps))
        if not len(steps.own):
            continue
        after_steps = (
            _sums_after(v, now_of, rank, steps) for v, now_of in zip(values, sums, strict=True)
        )
        found = _objective(costs, *after_steps)
        at = int(found.argmin())
        if found[at] < best_value:
            best_value = float(found[at])
            best = int(steps.own[at]), int(steps.other[at]), int(steps.to[at])
    return best


def _objective(
    costs: Costs, times: FloatArray, widths: FloatArray, index_widths: FloatArray
) -> FloatArray:
    evenness = np.sqrt((times**2).mean(axis=1))
    return np.asarray(costs.step_ns(times, widths, index_widths) + _EVENNESS * evenness)


def _steps_from(costs: Costs, ranks: IntArray, rank: int) -> _Steps:
    own = _thinned(np.flatnonzero(ranks == rank), costs.time, _MOST_OWN)
    others = _thinned(np.flatnonzero(ranks != rank), costs.time, _MOST_OTHERS)
    targets = np.delete(np.arange(costs.ranks), rank)
    moved, to = np.meshgrid(own, targets, indexing="ij")
    swapped, other = np.meshgrid(own, others, indexing="ij")
    return _Steps(
        np.concatenate([moved.ravel(), swapped.ravel()]),
        np.concatenate([np.full(moved.size, -1), other.ravel()]),
        np.concatenate([to.ravel(), ranks[other.ravel()]]),
    )


def _thinned(parts: IntArray, times: FloatArray, most: int) -> IntArray:
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
