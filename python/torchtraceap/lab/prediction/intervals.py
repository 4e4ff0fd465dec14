"""Prediction interval of a step, from replays with sampled durations.

Note [What errs together]: the errors of a duration model are partly common to all calls of one
operator and partly specific to each shape, with half of the variance each. Intervals of single
kernels reflect the hardest cases of a family, and sums of many kernels err less. On the public
traces (20 groups, docs/prediction.md) 92 % of the sums lie within the sampled range if deviations
are `_INTERVAL_SHARE` of the intervals and all GPU work shares a factor with `_DEVICE_DEVIATION`,
the smallest values for which nine in ten do: both constants were chosen on these traces. Host times
have a factor of the machine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import exp, sqrt
from statistics import NormalDist

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.prediction.lowering.host import TAIL
from torchtraceap.lab.prediction.lowering.step import LoweredStep
from torchtraceap.lab.prediction.timeline import add_slowest_ranks, schedule_steps

__all__ = ["step_interval"]

_TAIL = 1.2816
"""Standard deviations to either side that hold 80 % of a normal distribution."""
_QUANTILES = 0.05, 0.95
"""Quantiles of the interval."""
_DRAWS = 60
_DEVICE_DEVIATION = 0.15
"""Deviation of the logarithm of all GPU time; a trace of another model doesn't reduce it."""
_INTERVAL_SHARE = 0.4


def step_interval(
    steps: Sequence[LoweredStep],
    kind_of_rank: Sequence[int],
    predicted_ns: float,
    *,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 90 % interval of a step, ns, which contains the prediction.

    Args:
        steps, kind_of_rank: See `schedule_steps`.
        predicted_ns: Predicted step time.
        seed: Seed of the samples.
    """
    rng = np.random.default_rng(seed)
    low, high = steps[0].host_range
    steps, kind_of_rank = add_slowest_ranks(steps, kind_of_rank)
    works = [_WorkTimes(step) for step in steps]
    found = []
    for of_device, of_host in zip(_stratified_scores(rng), _stratified_scores(rng), strict=True):
        device = exp(_DEVICE_DEVIATION * of_device)
        scores: dict[Hashable, float] = {}
        gpu_ns = [each.draw(device, scores, rng) for each in works]
        at = of_host / TAIL
        host = (1 / low) ** at if at < 0 else high**at
        times = schedule_steps(steps, kind_of_rank, count=2, gpu_ns=gpu_ns, host_factor=host).ranks
        found.append(max(rank.step_length_ns() for rank in times))
    least, most = np.quantile(found, _QUANTILES).tolist()
    return min(least, predicted_ns), max(most, predicted_ns)


def _stratified_scores(rng: np.random.Generator) -> list[float]:
    """Return a stratified sample of normal scores.

    Shared factors matter most, and few independent draws would move the interval's ends.
    """
    shares = (rng.permutation(_DRAWS) + 0.5) / _DRAWS
    return [NormalDist().inv_cdf(share) for share in shares.tolist()]


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
