"""Skew between equal ranks, whose collectives wait for the slowest.

Note [Skew]: each kind with several ranks gets a second one with the times of the slowest of them,
and the two meet at every collective. A step then takes as long as the slowest rank, and collectives
on a usual rank last from its arrival on. The expected slowdown of the slowest of n ranks follows
from the variation of a rank's steps in public traces, as if ranks varied within a step as a rank
does between steps: persistently slower ranks, and different inputs, are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtraceap.lab.prediction.lowering.step import LoweredStep

__all__ = ["add_slowest_ranks", "expected_maximum"]

# Steps of seven public traces (A100, V100, H100, MI300X; benchmarks/prediction/step_noise.py) over
# the median of their trace: host times without waits, GPU times without collectives and copies.
_HOST = (
    0.914, 0.96, 0.961, 0.966, 0.966, 0.981, 0.985, 0.988, 0.989, 0.989, 0.997, 0.997, 0.998, 1.0,
    1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.002, 1.013, 1.015, 1.019, 1.021, 1.028, 1.031, 1.036, 1.042,
    1.051, 1.08, 1.116, 1.247,
)  # fmt: skip
_GPU = (
    0.961, 0.987, 0.988, 0.995, 0.996, 0.997, 0.997, 0.998, 0.999, 0.999, 0.999, 1.0, 1.0, 1.0,
    1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.001, 1.002, 1.005, 1.006, 1.007,
    1.007, 1.018, 1.026,
)  # fmt: skip


def expected_maximum(ratios: Sequence[float], count: int) -> float:
    """Return the mean of the largest of `count` draws from these values; 1 for none."""
    if count < 1:
        return 1.0
    shares = np.arange(len(ratios) + 1) / len(ratios)
    return float(np.diff(shares**count) @ np.sort(ratios))


def add_slowest_ranks(
    steps: Sequence[LoweredStep], kind_of_rank: Sequence[int]
) -> tuple[list[LoweredStep], tuple[int, ...]]:
    """Return steps followed by those of the slowest rank of each kind, and the kind of each rank.

    Unchanged where the slowest of a kind would meet others than the usual one does: where ranks
    never meet, in pipelines whose stages have not as many ranks, in groups without two of a kind.
    """
    ranks = [list(kind_of_rank).count(kind) for kind in range(len(steps))]
    if len({*ranks}) > 1 and _has_send_recv(steps):
        return list(steps), tuple(kind_of_rank)
    slowest = {
        kind: len(steps) + place
        for place, kind in enumerate(kind for kind, count in enumerate(ranks) if count > 1)
    }
    found = list(steps)
    for kind in slowest:
        factors = expected_maximum(_HOST, ranks[kind]), expected_maximum(_GPU, ranks[kind])
        found.append(replace(steps[kind], slowdown=factors, slowest_of=kind))
    first = {kind: list(kind_of_rank).index(kind) for kind in slowest}
    kinds = tuple(
        kind if rank == first.get(kind, rank) else slowest[kind]
        for rank, kind in enumerate(kind_of_rank)
    )
    meets = all(_meets(kind, step, kinds) for kind, step in enumerate(found))
    return (found, kinds) if slowest and meets else (list(steps), tuple(kind_of_rank))


def _has_send_recv(steps: Sequence[LoweredStep]) -> bool:
    """Return whether ranks exchange point-to-point messages."""
    works = (work for step in steps for work in step.works())
    return any(each.peer is not None for work in works for each in work.collectives)


def _meets(kind: int, step: LoweredStep, kinds: Sequence[int]) -> bool:
    """Return whether a step has collectives and takes part in all their groups."""
    met = [each for work in step.works() for each in work.collectives]
    return bool(met) and all(
        each.peer is not None or kind in {kinds[rank] for rank in each.group} for each in met
    )
