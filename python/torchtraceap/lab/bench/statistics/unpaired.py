"""Comparison of two stored runs whose processes were measured at different times.

Note [No pairs]: what was measured in two sessions also differs by what the machine did in between,
and no statistic of the two can tell that from an effect. The test is exact for processes that could
have stood in any order; these could not. So a verdict here needs an estimate of the whole minimal
effect rather than half of it, and says what it is blind to. Alpha is spent at once.
"""

from __future__ import annotations

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.statistics.rank_sum import least_p, rank_sum_p, shift, shift_interval
from torchtraceap.lab.bench.statistics.sequential import Look, Plan

__all__ = ["FEWEST_PROCESSES", "compare_unpaired", "medians_by_process"]

FEWEST_PROCESSES = 4
"""The fewest processes per side that show how processes differ."""


def compare_unpaired(before: Array, after: Array, plan: Plan) -> tuple[Look, str]:
    """Compare two samples of processes at once.

    Args:
        before: float64 `[processes]`: log of the median step of each process of A.
        after: The same of B.
        plan: Its alpha and minimal effect count.

    Returns:
        The look, whose `pairs` are the processes of the smaller side, and why it is undecided
        (empty where it is not, or where the data are the reason).
    """
    whole = Plan(plan.minimal_effect, plan.alpha, (1,))
    fewest = min(len(before), len(after))
    best = shift(before, after)
    low, high = shift_interval(before, after, plan.alpha)
    p = rank_sum_p(before, after)
    if fewest < FEWEST_PROCESSES:
        why = f"{fewest} processes on a side, {FEWEST_PROCESSES} are needed"
        return Look(fewest, "undecided", p, plan.alpha, best, low, high, plan.alpha), why
    error = 2 * whole.equivalence_levels[0]
    inner = shift_interval(before, after, error)
    verdict = "undecided"
    if inner[0] > -plan.bound and inner[1] < plan.bound:
        return Look(fewest, "equivalent", p, plan.alpha, best, *inner, error), ""
    if p <= plan.alpha and abs(best) >= plan.bound:
        verdict = "slower" if best > 0 else "faster"
    why = ""
    if verdict == "undecided" and least_p(len(before), len(after)) > plan.alpha:
        why = (
            f"with {len(before)} and {len(after)} processes no p is below "
            f"{least_p(len(before), len(after)):.2g}; more processes are needed"
        )
    return Look(fewest, verdict, p, plan.alpha, best, low, high, plan.alpha), why


def medians_by_process(process: Array, ns: Array) -> Array:
    """Return the logarithm of the median of each process's samples, in order of the process
    number."""
    numbers = np.unique(process)
    return np.log([float(np.median(ns[process == number])) for number in numbers])
