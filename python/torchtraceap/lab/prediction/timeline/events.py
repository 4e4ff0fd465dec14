"""Writes a schedule as a profiler's events.

What does not change from step to step (names, shapes, grids) is laid out once; times and the
numbers that link events are added for each step.

Note [Profiler]: fields are those of PyTorch 2.6 to 2.9 with CUDA 12, or ROCm 6, recorded with
`record_shapes` and without stacks; the metadata says so, and that the run was predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from torchtraceap.core import Array, parse_dtype
from torchtraceap.lab.prediction.capture.calls import COMPUTE, Call, Phase
from torchtraceap.lab.prediction.lowering.durations import profiled_arguments
from torchtraceap.lab.prediction.lowering.step import (
    GpuWork,
    LaunchingOp,
    LoweredCall,
    LoweredOp,
    LoweredStep,
    WorkKind,
)
from torchtraceap.lab.prediction.timeline.columns import AUTOGRAD, MAIN, EventColumns, StepEvent
from torchtraceap.lab.prediction.timeline.event_names import (
    NESTED_OPS,
    WRAPPER_OPS,
    annotation_of,
    callers_of,
    calls_before_launch,
    collective_arguments,
    launch_name,
    nested_arguments,
)
from torchtraceap.lab.prediction.timeline.profilers import (
    Recording,
    shared_memory_bytes,
    threads_per_multiprocessor,
)
from torchtraceap.lab.prediction.timeline.schedule import RankTimes
from torchtraceap.ops import Device
from torchtraceap.tables import Multiprocessor, resident_blocks
from torchtraceap.trace import RankTrace

__all__ = ["Recording", "rank_trace"]

_STREAMS = {"amd": (0, 4)}
"""Numbers of the main stream and the first other one; 7 and 20 on NVIDIA's."""
_CALL_NS, _BETWEEN_CALLS_NS = 700, 300
"""Duration of calls that begin no work, the median of ten public traces, and the gap between
them."""
_ENTER, _EXIT = "profiler::_record_function_enter_new", "profiler::_record_function_exit"


def rank_trace(step: LoweredStep, times: RankTimes, recording: Recording) -> RankTrace:
    """Return the events of one rank as a trace."""
    template = _StepTemplate(times, recording)
    template.add_step(step)
    return RankTrace(template.table(), rank=recording.rank if recording.world_size > 1 else None)


class _StepTemplate:
    """Events of one step with their times in all steps."""

    def __init__(self, times: RankTimes, recording: Recording) -> None:
        self._times, self._recording = times, recording
        self._vendor = recording.device.vendor
        self._entries: list[StepEvent] = []
        self._ops = 0
        self._work, self._links = 0, 0
        self._compute, self._other = _STREAMS.get(self._vendor, (7, 20))
        self._streams: dict[str, int] = {COMPUTE: self._compute}
        self._on_compute: list[int] = []
        self._first = times.step_begin if times.fetch_end is None else times.fetch_end

    # ------------------------------------------------------------------------- host

    def add_step(self, step: LoweredStep) -> None:
        """Add all events of a step."""
        times, fetch = self._times, step.loop.fetch
        whole = self._next_op()
        self._add(
            "", "user_annotation", MAIN, times.step_begin, times.step_end, op=whole
        ).step_name = "ProfilerStep#"
        if fetch is not None and times.fetch_begin is not None and times.fetch_end is not None:
            begin, end = times.fetch_begin, times.fetch_end
            self._add(fetch.name, "user_annotation", MAIN, begin, end, op=self._next_op())
        for is_backward, calls in groupby(
            enumerate(step.calls), key=lambda item: item[1].call.phase is Phase.BACKWARD
        ):
            if is_backward:
                for _, of_node in groupby(calls, key=lambda item: _node(item[1].call)):
                    self._add_node([*of_node])
                continue
            ranges: list[tuple[str, int, int]] = []
            for index, lowered in calls:
                if lowered.call.name == _ENTER:
                    name = lowered.call.inputs.get("name")
                    name = name if isinstance(name, str) else "record_function"
                    ranges.append((name, index, self._work))
                elif lowered.call.name == _EXIT:
                    if ranges:
                        name, first, work = ranges.pop()
                        begin, end = times.call_begin[:, first], times.call_end[:, index]
                        own = self._next_op()
                        self._add(name, "user_annotation", MAIN, begin, end, op=own)
                        self._add_on_gpu(name, own, work)
                else:
                    self._add_call(MAIN, index, lowered)
        self._add_on_gpu("", whole, 0, "ProfilerStep#")

    def _add_on_gpu(self, name: str, op: int, first: int, step_name: str = "") -> None:
        """Add a range over the main stream's work launched since a point."""
        works = [work for work in self._on_compute if work >= first]
        if works:
            begin = self._times.work_begin[:, works[0]]
            end = self._times.work_end[:, works].max(axis=1)
            made = self._add(name, "gpu_user_annotation", self._compute, begin, end, {}, op)
            made.is_gpu, made.step_name = True, step_name

    def _add_node(self, calls: Sequence[tuple[int, LoweredCall]]) -> None:
        """Add an autograd node with its calls."""
        name, sequence = _node(calls[0][1].call)
        first, last = calls[0][0], calls[-1][0]
        if name:
            args = {"Fwd thread id": 1} if sequence is not None else {}
            for label, early, late in (
                (f"autograd::engine::evaluate_function: {name}", 0.5, 0.3),
                (name, 0.25, 0.15),
            ):
                begin, end = self._early(first, early), self._late(last, late)
                made = self._add(
                    label, "cpu_op", AUTOGRAD, begin, end, args, self._next_op(), sequence=sequence
                )
            made.is_node = True
        for index, lowered in calls:
            self._add_call(AUTOGRAD, index, lowered)

    def _early(self, call: int, share: float) -> Array:
        """Return a begin shifted into the gap before a call by a share of it."""
        begin = self._times.call_begin[:, call]
        before = self._times.call_end[:, call - 1] if call else self._first
        return begin - np.round((begin - before) * share).astype(np.int64)

    def _late(self, call: int, share: float) -> Array:
        """Return an end shifted into the gap after a call by a share of it."""
        end = self._times.call_end[:, call]
        is_last = call + 1 >= self._times.call_begin.shape[1]
        behind = self._times.step_end if is_last else self._times.call_begin[:, call + 1]
        return end + np.round((behind - end) * share).astype(np.int64)

    def _add_call(self, thread: int, index: int, lowered: LoweredCall) -> None:
        call, times = lowered.call, self._times
        begin, end = times.call_begin[:, index], times.call_end[:, index]
        recorded = plain = _input_arguments(call)
        callers = callers_of(call)
        sequence = call.sequence if call.phase is Phase.FORWARD else None
        if sequence is not None:
            recorded = {**recorded, "Fwd thread id": 0}
        for depth, caller in enumerate(callers):
            share = 0.2 * (len(callers) - depth) / len(callers)
            early, late = self._early(index, share), self._late(index, share)
            self._add(
                caller, "cpu_op", thread, early, late, recorded, self._next_op(), sequence=sequence
            )
        own = self._next_op()
        self._add(call.name, "cpu_op", thread, begin, end, recorded, own, sequence=sequence)
        is_itself = len(lowered.ops) == 1 and lowered.ops[0].op.name == call.name
        launching = [op for op in lowered.ops if op.works]
        if launching and call.name in WRAPPER_OPS:
            last = self._work + sum(len(op.works) for op in launching) - 1
            start = begin + (times.launch_begin[:, self._work] - begin) // 6
            stop = end - np.maximum(end - times.wait_end[:, last], 0) // 4
            name = WRAPPER_OPS[call.name]
            self._add(name, "cpu_op", thread, start, stop, plain, self._next_op())
        if not launching and call.name in NESTED_OPS:
            self._add_inside(thread, NESTED_OPS[call.name][0], begin, end, recorded)
        for place, op in enumerate(launching):
            behind = self._work + len(op.works)
            is_last = place + 1 == len(launching)
            bound = end if is_last else times.launch_begin[:, behind]
            begin = self._add_op(thread, op, begin, bound, own if is_itself else None)

    def _add_op(
        self, thread: int, op: LoweredOp, begin: Array, end: Array, own: int | None
    ) -> Array:
        """Add a launching operator with its launches between two times; return its end.

        `own` is the number of the call, where the operator is that.
        """
        times = self._times
        first, last = self._work, self._work + len(op.works) - 1
        begin = begin + (times.launch_begin[:, first] - begin) // 3
        end = times.wait_end[:, last] + np.maximum(end - times.wait_end[:, last], 0) // 2
        args = _input_arguments(op.op)
        number = own
        if number is None:
            number = self._next_op()
            more = collective_arguments(op.works[0]) if op.works[0].collective is not None else {}
            self._add(op.op.name, "cpu_op", thread, begin, end, {**args, **more}, number)
        ahead, behind = NESTED_OPS.get(op.op.name, ((), ()))
        free = begin
        if ahead:
            free = begin + np.maximum(times.launch_begin[:, first] - begin, 0) * 2 // 3
            self._add_inside(thread, ahead, begin, free, args)
        self._add_inside(thread, behind, times.wait_end[:, last], end, args)
        for place, work in enumerate(op.works):
            calls = calls_before_launch(op.op.name, op.works, place, self._vendor)
            launch = times.launch_begin[:, self._work]
            each = np.maximum(launch - free, 0) // (len(calls) + 1)
            each = np.minimum(each, _CALL_NS + _BETWEEN_CALLS_NS)
            for before, name in zip(range(len(calls), 0, -1), calls, strict=True):
                start = launch - each * before
                stop = start + each * _CALL_NS // (_CALL_NS + _BETWEEN_CALLS_NS)
                self._add(name, "cuda_runtime", thread, start, stop, {}, number, self._next_link())
            free = times.launch_end[:, self._work]
            self._add_work(thread, work, number)
        if op.host_waits:
            name = f"{'hip' if self._vendor == 'amd' else 'cuda'}StreamSynchronize"
            start = times.launch_end[:, last] + 500
            stop = np.maximum(times.wait_end[:, last], start)
            self._add(name, "cuda_runtime", thread, start, stop, {}, number, self._next_link())
        return end

    def _add_inside(
        self, thread: int, names: Sequence[str], begin: Array, end: Array, around: dict[str, Any]
    ) -> None:
        """Add operators spread evenly between two times."""
        each = (end - begin) // (len(names) + 1)
        for place, name in enumerate(names):
            outer, _, inner = name.partition("/")
            start = begin + each * place + each * 3 // 5
            stop = start + each * 4 // 5
            args = nested_arguments(outer, around)
            self._add(outer, "cpu_op", thread, start, stop, args, self._next_op())
            if inner:
                self._add_inside(thread, (inner,), start, stop, around)

    # ------------------------------------------------------------------------- GPU

    def _add_work(self, thread: int, work: GpuWork, op: int) -> None:
        """Add the next work with its launch, and the ranges around a collective."""
        times, place, link = self._times, self._work, self._next_link()
        self._work += 1
        category, name = launch_name(work, self._recording.device)
        begin, end = times.launch_begin[:, place], times.launch_end[:, place]
        self._add(name, category, thread, begin, end, {}, op, link)
        stream = self._streams.setdefault(work.lane, self._other + 4 * (len(self._streams) - 1))
        args = _work_arguments(work, self._recording.device, stream)
        began, ended = times.work_begin[:, place], times.work_end[:, place]
        made = self._add(work.name, work.kind.value, stream, began, ended, args, op, link)
        made.is_gpu = True
        if stream == self._compute:
            self._on_compute.append(place)
        if work.collective is not None:
            label = annotation_of(work)
            around = self._next_op()
            self._add(label, "user_annotation", thread, begin - 1_000, end + 1_000, {}, around)
            gpu = self._add(label, "gpu_user_annotation", stream, began, ended, {}, around)
            gpu.is_gpu = True

    # ------------------------------------------------------------------------- all

    def _next_op(self) -> int:
        self._ops += 1
        return self._ops

    def _next_link(self) -> int:
        self._links += 1
        return self._links - 1

    def _add(
        self,
        name: str,
        category: str,
        thread: int,
        begin: Array,
        end: Array,
        args: dict[str, Any] | None = None,
        op: int | None = None,
        link: int | None = None,
        *,
        sequence: int | None = None,
    ) -> StepEvent:
        entry = StepEvent(name, category, thread, begin, end, args or {}, op, link, sequence)
        self._entries.append(entry)
        return entry

    def table(self) -> Any:
        """Return the `EventTable` of all steps."""
        return EventColumns(self._entries, self._recording, self._ops, self._links).table()


def _node(call: Call) -> tuple[str, int | None]:
    return call.node, call.sequence if call.node else None


def _input_arguments(call: Call | LaunchingOp) -> dict[str, Any]:
    """Return shapes, types and values of the arguments as `record_shapes` writes them."""
    inputs = tuple(call.inputs.values()) if isinstance(call, Call) else call.inputs
    if not inputs:
        return {}
    dims, types, strides, concrete = profiled_arguments(inputs)
    return {
        "Concrete Inputs": concrete,
        "Input type": [_cxx_name(each) for each in types],
        "Input Strides": strides,
        "Input Dims": dims,
    }


def _cxx_name(of: Any) -> Any:
    """Return the profiler's C++ name of a type."""
    if isinstance(of, list):
        return [_cxx_name(each) for each in of]
    known = parse_dtype(of)
    return known.cxx_name if known else of


def _work_arguments(work: GpuWork, device: Device, stream: int) -> dict[str, Any]:
    found: dict[str, Any] = {"device": 0, "stream": stream}
    if device.vendor != "amd":
        found["context"] = 1
    if work.kind is not WorkKind.KERNEL:
        return {**found, "bytes": work.bytes}
    if device.vendor == "amd":
        found["kind"] = "Dispatch Kernel"
    else:
        shown = {"registers per thread": work.registers, "shared memory": work.shared_memory}
        found |= {"queued": 0, **shown, **_occupancy(work, device)}
    found |= {"grid": list(work.grid), "block": list(work.block)}
    return {**found, **collective_arguments(work)} if work.collective is not None else found


def _occupancy(work: GpuWork, device: Device) -> dict[str, float]:
    """Return blocks and warps per multiprocessor as Kineto computes them."""
    threads = threads_per_multiprocessor(device)
    size = work.block[0] * work.block[1] * work.block[2]
    blocks = work.grid[0] * work.grid[1] * work.grid[2] / max(device.multiprocessors, 1)
    major, _, minor = device.architecture.partition(".")
    on = Multiprocessor(
        device.multiprocessors,
        threads,
        65_536,
        shared_memory_bytes(device),
        32,
        (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0),
    )
    given = (size, work.registers, work.shared_memory)
    resident, _ = resident_blocks(on, *(np.array([float(each)]) for each in given))
    held = min(blocks, float(np.nan_to_num(resident[0], nan=1.0))) * size / threads
    return {
        "blocks per SM": round(blocks, 6),
        "warps per SM": round(blocks * max(1, size // 32), 6),
        "est. achieved occupancy %": min(100, round(100 * held)),
    }
