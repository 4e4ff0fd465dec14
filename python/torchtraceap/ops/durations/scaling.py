"""Scale a measured time from one GPU to another by the ratio of two estimates.

Errors of a model that are alike on both GPUs cancel; docs/results/durations.md has those of
ratios.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtraceap.core.rendering import renderable
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import Estimate, UnknownDurationError, resolve_device
from torchtraceap.ops.durations.operators import estimate_op
from torchtraceap.ops.models.arguments import OpCall

__all__ = ["Ratio", "estimate_ratio", "ratio", "ratio_of"]

_CANCELS = 0.5
"""Share of the variance of either estimate that is common to both and cancels."""


@renderable
class Ratio(NamedTuple):
    """Time on one device over time on another, with an 80 % interval."""

    value: float
    low: float
    """10th percentile: 10 of 100 such ratios are smaller."""
    high: float
    """90th percentile: 10 of 100 such ratios are larger."""
    source: str
    """Description of the measurements behind both times."""


def ratio(op_call: OpCall, from_device: str | Device, to_device: str | Device) -> float | None:
    """Return the time on `to_device` over that on `from_device`; None if either is unknown."""
    try:
        return estimate_ratio(op_call, from_device, to_device).value
    except UnknownDurationError:
        return None


def estimate_ratio(op_call: OpCall, from_device: str | Device, to_device: str | Device) -> Ratio:
    """Estimate the time on `to_device` over that on `from_device`, with an interval and source.

    Raises:
        UnknownDurationError: A device, its peak or the work of the call is not known.
    """
    old, new = resolve_device(from_device), resolve_device(to_device)
    before, after = estimate_op(op_call, old), estimate_op(op_call, new)
    if old is new:
        return Ratio(1.0, 1.0, 1.0, "the same device")
    return ratio_of(before, after)


def ratio_of(before: Estimate, after: Estimate) -> Ratio:
    """Return the ratio of the estimates of one call on two devices."""
    value = after.ns / before.ns
    shorter = _combine_factors(after.ns / after.low_ns, before.high_ns / before.ns)
    longer = _combine_factors(after.high_ns / after.ns, before.ns / before.low_ns)
    told = dict.fromkeys((before.source, after.source))
    source = f"ratio of models: {'; over: '.join(reversed(told))}"
    return Ratio(value, value / shorter, value * longer, source)


def _combine_factors(*factors: float) -> float:
    """Return the error factor of a ratio whose parts have these error factors."""
    squares = np.square(np.log(factors))
    return float(np.exp(np.sqrt((1.0 - _CANCELS) * squares.sum())))
