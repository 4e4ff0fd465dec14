"""How far a predicted step may be off: the step replayed with times drawn from their intervals.

Note [What errs together]: a model of durations errs alike for all calls of one operator, so they
share a factor; what errs for the device as a whole (clocks, cooling, versions of libraries) is a
further one of all GPU work. Host times have a factor of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np

from torchtraceap.aliases import Array
from torchtraceap.prediction.layout import lay_out
from torchtraceap.prediction.lifting.step import LiftedStep

__all__ = ["TAIL", "step_interval"]

TAIL = 1.2816
"""Standard deviations of a normal distribution to either side that hold 80 %."""
_DRAWS = 48
_DEVICE_DEVIATION = 0.12
"""Of the logarithm of all GPU time, where no trace of the device corrects it; a tenth of the cases
lies beyond 17 % to either side."""
_CALIBRATED_DEVIATION = 0.05


def step_interval(
    steps: Sequence[LiftedStep],
    kind_of_rank: Sequence[int],
    predicted_ns: float,
    *,
    is_calibrated: bool = False,
    seed: int = 0,
) -> tuple[float, float]:
    """Between which times a step lies in 80 of 100 cases, ns; it holds the prediction.

    Args:
        steps, kind_of_rank: As for `lay_out`.
        predicted_ns: What is predicted.
        is_calibrated: A trace of the device corrects the durations.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)
    common = _CALIBRATED_DEVIATION if is_calibrated else _DEVICE_DEVIATION
    works = [_Works(step) for step in steps]
    low, high = steps[0].host_range
    found = []
    for _ in range(_DRAWS):
        device = exp(common * rng.standard_normal())
        by_op: dict[str, float] = {}
        gpu_ns = [each.drawn(device, by_op, rng) for each in works]
        at = float(rng.standard_normal()) / TAIL
        host = (1 / low) ** at if at < 0 else high**at
        times = lay_out(steps, kind_of_rank, count=2, gpu_ns=gpu_ns, host_factor=host).ranks
        found.append(max(rank.step_length_ns() for rank in times))
    least, most = np.quantile(found, (0.1, 0.9)).tolist()
    return min(least, predicted_ns), max(most, predicted_ns)


class _Works:
    """Times of all work of a step, and how far they may be off."""

    def __init__(self, step: LiftedStep) -> None:
        pairs = [(op.op.name, work.estimate) for op in step.ops() for work in op.works]
        self.names = [name for name, _ in pairs]
        self.ns = np.array([estimate.ns for _, estimate in pairs])
        self.deviation = np.array(
            [
                log(max(estimate.high_ns, 1.0) / max(estimate.low_ns, 1.0)) / (2 * TAIL)
                for _, estimate in pairs
            ]
        )

    def drawn(self, device: float, by_op: dict[str, float], rng: np.random.Generator) -> Array:
        """int64 `[works]`, ns."""
        for name in dict.fromkeys(self.names):
            if name not in by_op:
                by_op[name] = float(rng.standard_normal())
        scores = np.array([by_op[name] for name in self.names])
        found: Array = np.round(device * self.ns * np.exp(scores * self.deviation)).astype(np.int64)
        return found
