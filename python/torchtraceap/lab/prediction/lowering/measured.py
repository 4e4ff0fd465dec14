"""Lowers a step measured on one GPU to another, with its times scaled by models.

Measured times include what no model knows of the program. A call therefore takes its measured time
multiplied by the ratio of the models' times on both devices; on the same device with the same
types, that is the measured time. Collectives take the model's time, since the measured time is
mostly waiting for other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.lowering.durations import op_times
from torchtraceap.lab.prediction.lowering.launching_op import libraries_of
from torchtraceap.lab.prediction.lowering.operators import launching_ops
from torchtraceap.lab.prediction.lowering.step import LoweredCall, LoweredOp, LoweredStep
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import Estimate
from torchtraceap.ops.durations.scaling import ratio_of

__all__ = ["with_measured_times"]

_REPEATS = 1.1
"""Ratio of the same call's times in two runs."""


def with_measured_times(
    step: LoweredStep, recorded: Capture, measured_ns: Sequence[int], device: Device
) -> LoweredStep:
    """Return a lowered step with times measured on a GPU.

    Args:
        step: The recorded step, lowered to any GPU.
        recorded: Capture before types were changed, with one call for each of the step.
        measured_ns: Measured GPU time of each call.
        device: The GPU on which it was measured.
    """
    ops = launching_ops(recorded, libraries_of(device))
    before = {op.call: time.estimate for op, time in zip(ops, op_times(ops, device), strict=True)}
    calls = tuple(
        _scaled(lowered, before.get(place), measured_ns[place])
        for place, lowered in enumerate(step.calls)
    )
    return replace(step, calls=calls)


def _scaled(lowered: LoweredCall, before: Estimate | None, measured_ns: int) -> LoweredCall:
    if before is None or len(lowered.ops) != 1 or lowered.call.collective is not None:
        return lowered
    (op,) = lowered.ops
    after = op.time.estimate
    if before.ns <= 0 or after.ns <= 0 or measured_ns <= 0:
        return lowered
    return replace(lowered, ops=(_with_time(op, _measured(before, after, measured_ns)),))


def _measured(before: Estimate, after: Estimate, ns: int) -> Estimate:
    if before == after:
        return Estimate.within_factor(float(ns), _REPEATS, "measured: this call in the trace")
    ratio = ratio_of(before, after)
    low, high = ratio.low / _REPEATS, ratio.high * _REPEATS
    return Estimate(
        ns * ratio.value, ns * low, ns * high, f"measured in the trace, times {ratio.source}"
    )


def _with_time(op: LoweredOp, estimate: Estimate) -> LoweredOp:
    """Return the operator with a new time, split among its work as before."""
    whole = sum(work.estimate.ns for work in op.works)
    works = tuple(
        replace(work, estimate=_share(estimate, work.estimate.ns / whole)) for work in op.works
    )
    return replace(op, works=works, time=replace(op.time, estimate=estimate, is_known=True))


def _share(whole: Estimate, share: float) -> Estimate:
    return Estimate(whole.ns * share, whole.low_ns * share, whole.high_ns * share, whole.source)
