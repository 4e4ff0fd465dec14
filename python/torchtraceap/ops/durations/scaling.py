"""From one GPU to another: the measured time times the ratio of two estimates.

What a model misses alike on both GPUs cancels: docs/durations.md says how far a ratio is off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtraceap.core.rendering import renderable
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import Estimate, UnknownDurationError, the_device
from torchtraceap.ops.durations.operators import estimate_op
from torchtraceap.ops.models.arguments import OpCall

__all__ = ["Ratio", "estimate_ratio", "ratio", "ratio_of"]

_CANCELS = 0.5
"""Of the variance of either estimate: what is a kind's own."""


@renderable
class Ratio(NamedTuple):
    """Time on one device over time on another, and how far it may be off."""

    value: float
    low: float
    """In 10 of 100 cases like this one the ratio is smaller."""
    high: float
    """In 10 of 100 cases like this one the ratio is larger."""
    source: str
    """For a person: where both times come from."""


def ratio(op_call: OpCall, from_device: str | Device, to_device: str | Device) -> float | None:
    """Time on `to_device` over time on `from_device`; None where nothing tells it."""
    try:
        return estimate_ratio(op_call, from_device, to_device).value
    except UnknownDurationError:
        return None


def estimate_ratio(op_call: OpCall, from_device: str | Device, to_device: str | Device) -> Ratio:
    """As `ratio`, with an interval and its source.

    Raises:
        UnknownDurationError: A device or its peak is not known, or the work of the call.
    """
    old, new = the_device(from_device), the_device(to_device)
    before, after = estimate_op(op_call, old), estimate_op(op_call, new)
    if old is new:
        return Ratio(1.0, 1.0, 1.0, "the same device")
    return ratio_of(before, after)


def ratio_of(before: Estimate, after: Estimate) -> Ratio:
    """Of two estimates of one call on two devices."""
    value = after.ns / before.ns
    shorter = _together(after.ns / after.low_ns, before.high_ns / before.ns)
    longer = _together(after.high_ns / after.ns, before.ns / before.low_ns)
    told = dict.fromkeys((before.source, after.source))
    source = f"ratio of models: {'; over: '.join(reversed(told))}"
    return Ratio(value, value / shorter, value * longer, source)


def _together(*factors: float) -> float:
    """How far a ratio may be off where its parts may be off by these factors."""
    squares = np.square(np.log(factors))
    return float(np.exp(np.sqrt((1.0 - _CANCELS) * squares.sum())))
