"""Lowers a captured step to operators, kernels and times.

Note [Measured times]: measured times include what no model knows of the program. A call of a step
measured on one GPU therefore takes its measured time on another one, multiplied by the ratio of the
models' times on both devices; on the same device with the same types, that is the measured time.
Collectives take the model's time, since the measured time is mostly waiting for other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap

from torchtraceap.lab.prediction.capture.calls import Capture, TensorInfo
from torchtraceap.lab.prediction.lowering.durations import (
    collective_time,
    collective_work,
    host_copy,
    op_times,
)
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.kernels import kernels_of
from torchtraceap.lab.prediction.lowering.operators import launching_ops
from torchtraceap.lab.prediction.lowering.step import (
    LaunchingOp,
    LoweredCall,
    LoweredOp,
    LoweredStep,
    OpTime,
    libraries_of,
)
from torchtraceap.ops import Calibration, Device, Estimate, ratio_of

__all__ = ["lower", "with_measured_times"]

_REPEATS = 1.1
"""Ratio of the same call's times in two runs."""


def lower(
    capture: Capture,
    device: Device,
    *,
    host: HostModel | None = None,
    calibration: Calibration | None = None,
) -> LoweredStep:
    """Return a captured step as the host and GPU would run it.

    Args:
        capture: Its calls.
        device: The GPU.
        host: Host model; by default of machines with such a GPU.
        calibration: Calibration of durations by a trace of the device.
    """
    libraries = libraries_of(device)
    ops = launching_ops(capture, libraries)
    times = op_times(ops, device, calibration, libraries, capture.allows_tf32)
    by_call: dict[int, list[LoweredOp]] = defaultdict(list)
    held_ns: dict[int, float] = {}
    for op, time in zip(ops, times, strict=True):
        call = capture.calls[op.call]
        if call.move is not None:
            tensor = op.outputs[0]
            assert isinstance(tensor, TensorInfo)
            work, held_ns[op.call] = host_copy(tensor, call.move, device)
            copied = (replace(work, lane=call.stream),)
            by_call[op.call].append(LoweredOp(op, copied, OpTime(work.estimate, True)))
        elif call.collective is None:
            works = kernels_of(op, device, libraries, time)
            on_stream = tuple(replace(work, lane=call.stream) for work in works)
            by_call[op.call].append(LoweredOp(op, on_stream, time))
    # Calls that start collectives of one batch are one launch, which the last call makes.
    batches: dict[int, list[int]] = {}
    for index, call in enumerate(capture.calls):
        if call.collective is not None:
            batch = call.collective.batch
            batches.setdefault(index if batch is None else batch, []).append(index)
    for members in batches.values():
        lowered = _lower_collectives(capture, members, device, calibration)
        by_call[members[-1]].append(lowered)
    of_calls = [tuple(by_call.get(index, ())) for index in range(len(capture.calls))]
    launches = [sum(len(op.works) for op in of_call) for of_call in of_calls]
    host_times = (host or HostModel(device)).times(capture, launches)
    times_of_host = [*host_times.calls]
    for index, launch_ns in held_ns.items():
        times_of_host[index] = replace(times_of_host[index], launches=(launch_ns,))
    calls = starmap(LoweredCall, zip(capture.calls, of_calls, times_of_host, strict=True))
    return LoweredStep(tuple(calls), host_times.range)


def _lower_collectives(
    capture: Capture, members: list[int], device: Device, calibration: Calibration | None
) -> LoweredOp:
    """Return the launch of the collectives that some calls start together."""
    calls = [capture.calls[index] for index in members]
    started = [call.collective for call in calls if call.collective is not None]
    times = [collective_time(each, device, calibration) for each in started]
    time = max(times, key=lambda each: each.estimate.ns)
    call, index = calls[-1], members[-1]
    inputs = tuple(call.inputs.values())
    op = LaunchingOp("record_param_comms", inputs, call.outputs, call.phase, call.modules, index)
    work = collective_work(started[-1], time, device)
    return LoweredOp(op, (replace(work, others=tuple(started[:-1])),), time)


def with_measured_times(
    step: LoweredStep, recorded: Capture, measured_ns: Sequence[int], device: Device
) -> LoweredStep:
    """Return a lowered step with times measured on a GPU; see Note [Measured times].

    Args:
        step: The recorded step, lowered to any GPU.
        recorded: Capture before types were changed, with one call for each of the step.
        measured_ns: Measured GPU time of each call.
        device: The GPU on which it was measured.
    """
    ops = launching_ops(recorded, libraries_of(device))
    times = op_times(ops, device, allows_tf32=recorded.allows_tf32)
    before = {op.call: time.estimate for op, time in zip(ops, times, strict=True)}
    calls = []
    for place, lowered in enumerate(step.calls):
        known, ns = before.get(place), measured_ns[place]
        if known is not None and len(lowered.ops) == 1 and lowered.call.collective is None:
            op = lowered.ops[0]
            if known.ns > 0 and op.time.estimate.ns > 0 and ns > 0:
                lowered = replace(lowered, ops=(_with_measured_time(op, known, ns),))
        calls.append(lowered)
    return replace(step, calls=tuple(calls))


def _with_measured_time(op: LoweredOp, before: Estimate, ns: int) -> LoweredOp:
    """Return an operator with its measured time, split among its work as before.

    `before` is the time that models give it on the measured device.
    """
    if before == op.time.estimate:
        whole = Estimate.within_factor(float(ns), _REPEATS, "measured: this call in the trace")
    else:
        ratio = ratio_of(before, op.time.estimate)
        whole = Estimate(
            ns * ratio.value,
            ns * (ratio.low / _REPEATS),
            ns * (ratio.high * _REPEATS),
            f"measured in the trace, times {ratio.source}",
        )
    total = sum(work.estimate.ns for work in op.works)
    works = []
    for work in op.works:
        share = work.estimate.ns / total
        part = Estimate(whole.ns * share, whole.low_ns * share, whole.high_ns * share, whole.source)
        works.append(replace(work, estimate=part))
    return replace(op, works=tuple(works), time=replace(op.time, estimate=whole, is_known=True))
