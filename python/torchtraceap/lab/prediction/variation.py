"""Variation of a step between ranks and between what durations may be.

Note [Skew]: each kind with several ranks gets a second one with the times of the slowest of them,
and the two meet at every collective. A step then takes as long as the slowest rank, and collectives
on a usual rank last from its arrival on. The expected slowdown of the slowest of n ranks follows
from the variation of a rank's steps in public traces, as if ranks varied within a step as a rank
does between steps: persistently slower ranks, and different inputs, are not included.

Note [What errs together]: the errors of a duration model are partly common to all calls of one
operator and partly specific to each shape, with half of the variance each. Intervals of single
kernels reflect the hardest cases of a family, and sums of many kernels err less. On the public
traces (20 groups, docs/results/prediction.md) 92 % of the sums lie within the sampled range if
deviations are `_INTERVAL_SHARE` of the intervals and all GPU work shares a factor with
`_DEVICE_DEVIATION`, the smallest values for which nine in ten do: both constants were chosen on
these traces. Host times have a factor of the machine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import exp, sqrt
from statistics import NormalDist

import numpy as np

from torchtraceap.core import Array
from torchtraceap.lab.prediction.lowering.host import TAIL
from torchtraceap.lab.prediction.lowering.step import LoweredStep
from torchtraceap.lab.prediction.timeline import schedule_steps

__all__ = ["add_slowest_ranks", "expected_maximum", "step_interval"]

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
_TAIL = 1.2816
"""Standard deviations to either side that hold 80 % of a normal distribution."""
_QUANTILES = 0.05, 0.95
"""Quantiles of the interval."""
_DRAWS = 60
_DEVICE_DEVIATION = 0.15
"""Deviation of the logarithm of all GPU time; a trace of another model doesn't reduce it."""
_INTERVAL_SHARE = 0.4


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
    usual = list(steps), tuple(kind_of_rank)
    ranks = [usual[1].count(kind) for kind in range(len(steps))]
    met = [[each for work in step.works() for each in work.collectives] for step in steps]
    if len({*ranks}) > 1 and any(each.peer is not None for own in met for each in own):
        return usual
    several = [kind for kind, count in enumerate(ranks) if count > 1]
    slowest = {kind: len(steps) + place for place, kind in enumerate(several)}
    first = {kind: usual[1].index(kind) for kind in several}
    kinds = tuple(
        kind if rank == first.get(kind, rank) else slowest[kind]
        for rank, kind in enumerate(kind_of_rank)
    )
    met += [met[kind] for kind in several]
    for kind, own in enumerate(met):
        groups = ({kinds[rank] for rank in each.group} for each in own if each.peer is None)
        if not own or not all(kind in group for group in groups):
            return usual
    if not several:
        return usual
    found = usual[0]
    for kind in several:
        factors = expected_maximum(_HOST, ranks[kind]), expected_maximum(_GPU, ranks[kind])
        found.append(replace(steps[kind], slowdown=factors, slowest_of=kind))
    return found, kinds


def step_interval(
    steps: Sequence[LoweredStep], kind_of_rank: Sequence[int], predicted_ns: float
) -> tuple[float, float]:
    """Return the 90 % interval of a step, ns, which contains the predicted time.

    The step is replayed with sampled durations; for `steps` and `kind_of_rank` see
    `schedule_steps`.
    """
    rng = np.random.default_rng(0)
    low, high = steps[0].host_range
    steps, kind_of_rank = add_slowest_ranks(steps, kind_of_rank)
    works = [_WorkTimes(step) for step in steps]
    # Scores of factors that all work shares are stratified: these matter most, and few independent
    # draws would move the interval's ends.
    device_scores, host_scores = (
        [NormalDist().inv_cdf((each + 0.5) / _DRAWS) for each in rng.permutation(_DRAWS).tolist()]
        for _ in range(2)
    )
    found = []
    for device_score, host_score in zip(device_scores, host_scores, strict=True):
        device = exp(_DEVICE_DEVIATION * device_score)
        scores: dict[Hashable, float] = {}
        gpu_ns = [each.draw(device, scores, rng) for each in works]
        at = host_score / TAIL
        host = (1 / low) ** at if at < 0 else high**at
        times = schedule_steps(steps, kind_of_rank, count=2, gpu_ns=gpu_ns, host_factor=host)
        found.append(max(rank.step_length_ns() for rank in times))
    least, most = np.quantile(found, _QUANTILES).tolist()
    return min(least, predicted_ns), max(most, predicted_ns)


class _WorkTimes:
    """Estimated times of all GPU work of a step and their deviations."""

    def __init__(self, step: LoweredStep) -> None:
        works = [(op.op, work) for op in step.ops() for work in op.works]
        self.ns = np.array([work.estimate.ns for _, work in works])
        self._names = [(op.name, work.kind) for op, work in works]
        self._kinds = [(op.name, *(tensor.shape for tensor in op.tensors)) for op, _ in works]
        estimates = [work.estimate for _, work in works]
        width = [max(each.high_ns, 1.0) / max(each.low_ns, 1.0) for each in estimates]
        self._deviation = _INTERVAL_SHARE * np.log(np.array(width)) / (2 * _TAIL)

    def draw(self, device: float, scores: dict[Hashable, float], rng: np.random.Generator) -> Array:
        """Sample times, int64 `[works]`, ns; new operators and shapes get a score."""
        for key in (*self._names, *self._kinds):
            if key not in scores:
                scores[key] = float(rng.standard_normal())
        common, own = (
            np.array([scores[key] for key in keys]) for keys in (self._names, self._kinds)
        )
        factors = np.exp(self._deviation * sqrt(0.5) * (common + own))
        found: Array = np.round(device * self.ns * factors).astype(np.int64)
        return found
