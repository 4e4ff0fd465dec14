"""Lowers a captured step to operators, kernels and times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import starmap

from torchtraceap.lab.prediction.capture.calls import Capture, TensorInfo
from torchtraceap.lab.prediction.lowering.collectives import collective_time, collective_work
from torchtraceap.lab.prediction.lowering.copies import host_copy
from torchtraceap.lab.prediction.lowering.durations import op_times
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.kernels import kernels_of
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp, libraries_of
from torchtraceap.lab.prediction.lowering.operators import launching_ops
from torchtraceap.lab.prediction.lowering.step import LoweredCall, LoweredOp, LoweredStep
from torchtraceap.lab.prediction.lowering.work import OpTime
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import Calibration

__all__ = ["lower"]


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
    times = op_times(ops, device, calibration, libraries)
    by_call: dict[int, list[LoweredOp]] = defaultdict(list)
    held_ns: dict[int, float] = {}
    for op, time in zip(ops, times, strict=True):
        move = capture.calls[op.call].move
        if move is not None:
            tensor = op.outputs[0]
            assert isinstance(tensor, TensorInfo)
            copied = host_copy(tensor, move, device)
            work = replace(copied.work, lane=capture.calls[op.call].stream)
            by_call[op.call].append(LoweredOp(op, (work,), OpTime(work.estimate, True)))
            held_ns[op.call] = copied.launch_ns
        elif capture.calls[op.call].collective is None:
            stream = capture.calls[op.call].stream
            works = tuple(
                replace(work, lane=stream) for work in kernels_of(op, device, libraries, time)
            )
            by_call[op.call].append(LoweredOp(op, works, time))
    for members in _launches(capture):
        index = members[-1]
        by_call[index].append(_lower_collective(capture, members, device, calibration))
    lowered = [tuple(by_call.get(index, ())) for index in range(len(capture.calls))]
    launches = [sum(len(op.works) for op in of_call) for of_call in lowered]
    times_of_host = (host or HostModel(device)).times(capture, launches)
    of_calls = [*times_of_host.calls]
    for index, launch_ns in held_ns.items():
        of_calls[index] = replace(of_calls[index], launches=(launch_ns,))
    calls = zip(capture.calls, lowered, of_calls, strict=True)
    range_of_host = times_of_host.low, times_of_host.high
    return LoweredStep(tuple(starmap(LoweredCall, calls)), range_of_host)


def _launches(capture: Capture) -> list[list[int]]:
    """Group calls that start collectives by launch, which the last call makes."""
    found: dict[int, list[int]] = {}
    for index, call in enumerate(capture.calls):
        if call.collective is not None:
            batch = call.collective.batch
            found.setdefault(index if batch is None else batch, []).append(index)
    return list(found.values())


def _lower_collective(
    capture: Capture, members: list[int], device: Device, calibration: Calibration | None
) -> LoweredOp:
    calls = [capture.calls[index] for index in members]
    started = [call.collective for call in calls if call.collective is not None]
    times = [collective_time(each, device, calibration) for each in started]
    time = max(times, key=lambda each: each.estimate.ns)
    call, index = calls[-1], members[-1]
    inputs = tuple(call.inputs.values())
    op = LaunchingOp("record_param_comms", inputs, call.outputs, call.phase, call.modules, index)
    work = collective_work(started[-1], time, device)
    return LoweredOp(op, (replace(work, others=tuple(started[:-1])),), time)
