"""A schedule as the events that a profiler would write.

What does not change from step to step (names, shapes, grids) is laid out once; times and the
numbers that link events are added for each step.

Note [Profiler]: fields are those of PyTorch 2.6 to 2.9 with CUDA 12, or ROCm 6, recorded with
`record_shapes` and without stacks; the metadata says so, and that the run was predicted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, groupby
from typing import Any

import numpy as np

from torchtraceap.aliases import Array
from torchtraceap.devices import Device
from torchtraceap.dtypes import dtype_named
from torchtraceap.event_table import Texts, event_table
from torchtraceap.prediction.capture.calls import COMPUTE, Call, Phase, Value
from torchtraceap.prediction.layout.names import (
    annotation_of,
    callers_of,
    collective_arguments,
    launch_name,
)
from torchtraceap.prediction.layout.schedule import RankTimes
from torchtraceap.prediction.lifting.durations import recorded_arguments
from torchtraceap.prediction.lifting.launching import LaunchingOp
from torchtraceap.prediction.lifting.step import LiftedCall, LiftedOp, LiftedStep
from torchtraceap.prediction.lifting.work import GpuWork, WorkKind
from torchtraceap.ranks import RankTrace

__all__ = ["Recording", "rank_trace"]

_MAIN, _AUTOGRAD, _DRIVER = 0, 1, 2
_COMPUTE_STREAM, _FIRST_OTHER_STREAM = 7, 20
_SYNC = "StreamSynchronize"
_ENTER, _EXIT = "profiler::_record_function_enter_new", "profiler::_record_function_exit"


@dataclass(frozen=True, slots=True)
class Recording:
    """What a profiler would have seen of the machine."""

    device: Device
    rank: int = 0
    world_size: int = 1
    process: int = 4_312
    begin_ns: int = 1_204_816_331_000_000
    """Of the profiler's clock."""
    first_step: int = 2
    """Number of the first step that is recorded."""
    warm_up: int = 0
    """Steps before those that are recorded, of which the GPU may still be busy."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further members of the file."""
    path: str = "predicted.json.gz"
    """Stands for the file in what is said of it."""


def rank_trace(step: LiftedStep, times: RankTimes, recording: Recording) -> RankTrace:
    """The events of one rank as a trace."""
    template = _Template(times, recording)
    template.add_step(step)
    table = template.table()
    return RankTrace(table, rank=recording.rank if recording.world_size > 1 else None)


@dataclass(slots=True)
class _Entry:
    """An event in every step."""

    name: str
    category: str
    thread: int
    begin: Array
    """int64 `[steps]`."""
    end: Array
    args: dict[str, Any]
    op: int | None = None
    """Number in a step of the operator or range that it is, or that launched it."""
    link: int | None = None
    """Number in a step of the launch."""
    sequence: int | None = None
    phase: str = "X"
    is_gpu: bool = False
    step_name: str = ""
    """Prefix of a name that ends in the number of the step."""


class _Template:
    """Events of one step, with their times in all."""

    def __init__(self, times: RankTimes, recording: Recording) -> None:
        self._times, self._recording = times, recording
        self._entries: list[_Entry] = []
        self._ops = 0
        self._work = 0
        self._streams: dict[str, int] = {COMPUTE: _COMPUTE_STREAM}
        self._first = times.step_begin if times.fetch_end is None else times.fetch_end

    # ------------------------------------------------------------------------- host

    def add_step(self, step: LiftedStep) -> None:
        """All events of a step."""
        begin, end = self._times.step_begin, self._times.step_end
        self._add(
            "", "user_annotation", _MAIN, begin, end, op=self._next_op()
        ).step_name = "ProfilerStep#"
        self._add_fetch(step)
        for thread, calls in groupby(enumerate(step.calls), key=lambda item: _thread(item[1].call)):
            self._add_thread(thread, [*calls])

    def _add_fetch(self, step: LiftedStep) -> None:
        times, fetch = self._times, step.around.fetch
        if fetch is None or times.fetch_begin is None or times.fetch_end is None:
            return
        begin, end = times.fetch_begin, times.fetch_end
        self._add(fetch.name, "user_annotation", _MAIN, begin, end, op=self._next_op())

    def _add_thread(self, thread: int, calls: Sequence[tuple[int, LiftedCall]]) -> None:
        if thread == _AUTOGRAD:
            for _, of_node in groupby(calls, key=lambda item: _node(item[1].call)):
                self._add_node([*of_node])
            return
        ranges: list[tuple[str, int]] = []
        for index, lifted in calls:
            if lifted.call.name == _ENTER:
                ranges.append((_range_name(lifted.call), index))
            elif lifted.call.name == _EXIT:
                if ranges:
                    name, first = ranges.pop()
                    begin, end = self._times.call_begin[:, first], self._times.call_end[:, index]
                    self._add(name, "user_annotation", thread, begin, end, op=self._next_op())
            else:
                self._add_call(thread, index, lifted)

    def _add_node(self, calls: Sequence[tuple[int, LiftedCall]]) -> None:
        """An autograd node with the calls that it makes."""
        name, sequence = _node(calls[0][1].call)
        if name:
            begin = self._early(calls[0][0], 0.5)
            end = self._late(calls[-1][0], 0.3)
            args = {"Fwd thread id": 1} if sequence is not None else {}
            outer = f"autograd::engine::evaluate_function: {name}"
            self._add(
                outer, "cpu_op", _AUTOGRAD, begin, end, args, self._next_op(), sequence=sequence
            )
            self._add(
                name, "cpu_op", _AUTOGRAD, self._early(calls[0][0], 0.25),
                self._late(calls[-1][0], 0.15), args, self._next_op(), sequence=sequence,
            )  # fmt: skip
        for index, lifted in calls:
            self._add_call(_AUTOGRAD, index, lifted)

    def _early(self, call: int, share: float) -> Array:
        """So much of the gap before a call earlier."""
        begin = self._times.call_begin[:, call]
        before = self._times.call_end[:, call - 1] if call else self._first
        return begin - np.round((begin - before) * share).astype(np.int64)

    def _late(self, call: int, share: float) -> Array:
        end = self._times.call_end[:, call]
        is_last = call + 1 >= self._times.call_begin.shape[1]
        behind = self._times.step_end if is_last else self._times.call_begin[:, call + 1]
        return end + np.round((behind - end) * share).astype(np.int64)

    def _add_call(self, thread: int, index: int, lifted: LiftedCall) -> None:
        call = lifted.call
        begin, end = self._times.call_begin[:, index], self._times.call_end[:, index]
        recorded = _recorded(call)
        callers = callers_of(call)
        sequence = call.sequence if call.phase is Phase.FORWARD else None
        for depth, caller in enumerate(callers):
            share = 0.2 * (len(callers) - depth) / len(callers)
            self._add(
                caller, "cpu_op", thread, self._early(index, share), self._late(index, share),
                recorded, self._next_op(), sequence=sequence,
            )  # fmt: skip
        own = self._next_op()
        self._add(call.name, "cpu_op", thread, begin, end, recorded, own, sequence=sequence)
        is_itself = len(lifted.ops) == 1 and lifted.ops[0].op.name == call.name
        launching = [op for op in lifted.ops if op.works]
        for place, op in enumerate(launching):
            behind = self._work + len(op.works)
            is_last = place + 1 == len(launching)
            bound = end if is_last else self._times.launch_begin[:, behind]
            begin = self._add_op(thread, op, begin, bound, own if is_itself else None, sequence)

    def _add_op(
        self,
        thread: int,
        op: LiftedOp,
        begin: Array,
        end: Array,
        own: int | None,
        sequence: int | None,
    ) -> Array:
        """A launching operator with its launches, between two times; returns its end.

        Args:
            thread, op, begin, end, sequence: As they say.
            own: Number of the call, where the operator is that.
        """
        times = self._times
        first, last = self._work, self._work + len(op.works) - 1
        begin = begin + (times.launch_begin[:, first] - begin) // 2
        end = times.wait_end[:, last] + np.maximum(end - times.wait_end[:, last], 0) // 2
        number = own
        if number is None:
            number = self._next_op()
            args = _recorded(op.op)
            if op.works[0].collective is not None:
                args |= collective_arguments(op.works[0])
            self._add(op.op.name, "cpu_op", thread, begin, end, args, number, sequence=sequence)
        for work in op.works:
            self._add_work(thread, work, number)
        if op.host_waits:
            vendor = "hip" if self._recording.device.vendor == "amd" else "cuda"
            start = times.launch_end[:, last] + 500
            done = np.maximum(times.wait_end[:, last], start)
            self._add(f"{vendor}{_SYNC}", "cuda_runtime", thread, start, done, {}, number, last)
        return end

    # ------------------------------------------------------------------------- GPU

    def _add_work(self, thread: int, work: GpuWork, op: int) -> None:
        times, place = self._times, self._work
        self._work += 1
        category, name = launch_name(work, self._recording.device)
        begin, end = times.launch_begin[:, place], times.launch_end[:, place]
        self._add(name, category, thread, begin, end, {}, op, place)
        stream = self._streams.setdefault(
            work.lane, _FIRST_OTHER_STREAM + 4 * (len(self._streams) - 1)
        )
        args = _work_arguments(work, self._recording.device, stream)
        began, ended = times.work_begin[:, place], times.work_end[:, place]
        made = self._add(work.name, work.kind.value, stream, began, ended, args, op, place)
        made.is_gpu = True
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
    ) -> _Entry:
        entry = _Entry(name, category, thread, begin, end, args or {}, op, link, sequence)
        self._entries.append(entry)
        return entry

    def table(self) -> Any:
        """The `EventTable` of all steps."""
        return _Columns(self._entries, self._recording, self._ops, self._work).table()


class _Columns:
    """The columns of all events of all steps, and the flows between them."""

    def __init__(
        self, entries: Sequence[_Entry], recording: Recording, ops: int, works: int
    ) -> None:
        self._entries, self._recording = _from_first_sequence(entries), recording
        self._ops, self._works = ops, works
        self._steps = len(entries[0].begin)

    def table(self) -> Any:
        entries, recording, steps = self._entries, self._recording, self._steps
        begin = np.stack([entry.begin for entry in entries], axis=1)
        end = np.stack([entry.end for entry in entries], axis=1)
        origin = recording.begin_ns - int(begin.min(initial=0))
        per_step = len(entries)
        flow_columns = self._flows(begin, end)
        host_pid, gpu_pid = recording.process, recording.rank % 8
        pid = [gpu_pid if entry.is_gpu else host_pid for entry in entries] * steps
        tid = [self._tid(entry) for entry in entries] * steps
        flows = len(flow_columns["ts"])
        args = self._arguments(flows)
        starts = np.concatenate([begin.ravel(), flow_columns["ts"]]) + origin
        lengths = np.concatenate([(end - begin).ravel(), np.zeros(flows, dtype=np.int64)])
        phases = ["X"] * (per_step * steps) + flow_columns["ph"]
        kept = np.concatenate([self._recorded(begin, end), np.ones(flows, dtype=bool)])

        def chosen(column: list[Any]) -> list[Any]:
            return [*compress(column, kept)]

        return event_table(
            chosen(self._names() + flow_columns["name"]),
            starts[kept],
            lengths[kept],
            category=chosen([entry.category for entry in entries] * steps + flow_columns["name"]),
            pid=chosen(pid + flow_columns["pid"]),
            tid=chosen(tid + flow_columns["tid"]),
            phase=chosen(phases),
            args={key: _of(column, kept) for key, column in args.items()},
            members={
                "id": chosen([None] * (per_step * steps) + flow_columns["id"]),
                "bp": chosen([None] * (per_step * steps) + flow_columns["bp"]),
            },
            metadata=_metadata(recording),
            path=recording.path,
        )

    def _recorded(self, begin: Array, end: Array) -> Array:
        """bool `[steps * entries]`: of the warm-up only what the GPU does behind it."""
        kept = np.ones(begin.shape, dtype=bool)
        warm_up = self._recording.warm_up
        if warm_up:
            is_gpu = np.array([entry.is_gpu for entry in self._entries])
            kept[:warm_up] = is_gpu & (end[:warm_up] > begin[warm_up, 0])
        recorded: Array = kept.ravel()
        return recorded

    def _tid(self, entry: _Entry) -> int:
        return entry.thread if entry.is_gpu else self._recording.process + _TIDS[entry.thread]

    def _names(self) -> list[str]:
        first = self._recording.first_step - self._recording.warm_up
        return [
            f"{entry.step_name}{first + step}" if entry.step_name else entry.name
            for step in range(self._steps)
            for entry in self._entries
        ]

    def _arguments(self, flows: int) -> dict[str, Any]:
        """Columns of `args`; flows have none."""
        entries, steps = self._entries, self._steps
        columns: dict[str, Any] = {
            "External id": self._numbered([entry.op for entry in entries], self._ops, 1, flows),
            "correlation": self._numbered(
                [entry.link for entry in entries], self._works, 5_001, flows
            ),
            "Sequence number": self._numbered(
                [entry.sequence for entry in entries], self._sequences(), 0, flows
            ),
        }
        keys = dict.fromkeys(key for entry in entries for key in entry.args)
        for key in keys:
            codes, texts = [], dict[str, int]()
            for entry in entries:
                if key in entry.args:
                    text = json.dumps(entry.args[key])
                    codes.append(texts.setdefault(text, len(texts)))
                else:
                    codes.append(-1)
            every = np.concatenate([np.tile(codes, steps), np.full(flows, -1)])
            columns[key] = Texts(every, [*texts], is_json=True)
        return columns

    def _sequences(self) -> int:
        known = [entry.sequence for entry in self._entries if entry.sequence is not None]
        return max(known, default=0) + 1

    def _numbered(
        self, numbers: Sequence[int | None], per_step: int, first: int, flows: int
    ) -> np.ma.MaskedArray[Any, Any]:
        """Numbers that go on from step to step; masked where there are none."""
        missing = np.array([number is None for number in numbers])
        own = np.array([0 if number is None else number for number in numbers], dtype=np.int64)
        every = own + per_step * np.arange(self._steps)[:, None] + first
        values = np.concatenate([every.ravel(), np.zeros(flows, dtype=np.int64)])
        mask = np.concatenate([np.tile(missing, self._steps), np.ones(flows, dtype=bool)])
        return np.ma.MaskedArray(values, mask)

    def _flows(self, begin: Array, end: Array) -> dict[str, Any]:
        """Arrows from launches to work, and from operators to what their nodes do."""
        found: dict[str, Any] = {key: [] for key in ("name", "ph", "pid", "tid", "id", "bp", "ts")}
        launches = {
            entry.link: place
            for place, entry in enumerate(self._entries)
            if entry.link is not None and not entry.is_gpu and not entry.name.endswith(_SYNC)
        }
        works = {
            entry.link: place
            for place, entry in enumerate(self._entries)
            if entry.link is not None and entry.is_gpu
        }
        backward: dict[int, int] = {}
        forward: dict[int, int] = {}
        for place, entry in enumerate(self._entries):
            if entry.sequence is None:
                continue
            side = backward if entry.thread == _AUTOGRAD else forward
            side.setdefault(entry.sequence, place)
        for step in range(self._recording.warm_up, self._steps):
            for link, place in launches.items():
                number = 5_001 + link + self._works * step
                self._arrow(found, "ac2g", number, place, works[link], begin[step])
            for sequence, place in forward.items():
                if sequence in backward:
                    number = sequence + self._sequences() * step
                    self._arrow(found, "fwdbwd", number, place, backward[sequence], begin[step])
        found["ts"] = np.array(found["ts"], dtype=np.int64)
        return found

    def _arrow(
        self, found: dict[str, Any], name: str, number: int, source: int, target: int, begin: Array
    ) -> None:
        for phase, place, bound in (("s", source, None), ("f", target, "e")):
            entry = self._entries[place]
            found["name"].append(name)
            found["ph"].append(phase)
            is_gpu = entry.is_gpu
            found["pid"].append(self._recording.rank % 8 if is_gpu else self._recording.process)
            found["tid"].append(self._tid(entry))
            found["id"].append(number)
            found["bp"].append(bound)
            found["ts"].append(int(begin[place]))


_TIDS = {_MAIN: 0, _AUTOGRAD: 97}
"""Of threads, behind the number of the process."""


def _of(column: Any, kept: Array) -> Any:
    """Some rows of a column of `args`."""
    if isinstance(column, Texts):
        return Texts(np.asarray(column.codes)[kept], column.texts, is_json=column.is_json)
    return column[kept]


def _thread(call: Call) -> int:
    return _AUTOGRAD if call.phase is Phase.BACKWARD else _MAIN


def _node(call: Call) -> tuple[str, int | None]:
    return call.node, call.sequence if call.node else None


def _from_first_sequence(entries: Sequence[_Entry]) -> Sequence[_Entry]:
    """Autograd counts on from what the process ran before; a trace of its own begins at 0."""
    first = min((each.sequence for each in entries if each.sequence is not None), default=0)
    return [
        each if each.sequence is None else replace(each, sequence=each.sequence - first)
        for each in entries
    ]


def _range_name(call: Call) -> str:
    name = call.inputs.get("name")
    return name if isinstance(name, str) else "record_function"


def _recorded(call: Call | LaunchingOp) -> dict[str, Any]:
    """Shapes, types and values of the arguments, as `record_shapes` writes them."""
    inputs: tuple[Value, ...]
    inputs = tuple(call.inputs.values()) if isinstance(call, Call) else call.inputs
    if not inputs:
        return {}
    dims, types, strides, concrete = recorded_arguments(inputs)
    return {
        "Concrete Inputs": concrete,
        "Input type": [_cxx_name(each) for each in types],
        "Input Strides": strides,
        "Input Dims": dims,
    }


def _cxx_name(of: Any) -> Any:
    """A type as C++ names it, and so the profiler."""
    if isinstance(of, list):
        return [_cxx_name(each) for each in of]
    known = dtype_named(of)
    return known.cxx_name if known else of


def _work_arguments(work: GpuWork, device: Device, stream: int) -> dict[str, Any]:
    found: dict[str, Any] = {"device": 0, "stream": stream}
    if device.vendor != "amd":
        found |= {"context": 1}
    if work.kind is not WorkKind.KERNEL:
        return {**found, "bytes": work.bytes}
    if device.vendor == "amd":
        found |= {"kind": "Dispatch Kernel"}
    else:
        found |= {
            "queued": 0,
            "registers per thread": work.registers,
            "shared memory": work.shared_memory,
            **_occupancy(work, device),
        }
    found |= {"grid": list(work.grid), "block": list(work.block)}
    return {**found, **collective_arguments(work)} if work.collective is not None else found


def _occupancy(work: GpuWork, device: Device) -> dict[str, float]:
    """As Kineto calculates them: blocks and warps of the grid for each multiprocessor."""
    count = max(device.multiprocessors, 1)
    blocks = work.grid[0] * work.grid[1] * work.grid[2] / count
    warps = blocks * max(1, work.block[0] * work.block[1] * work.block[2] // 32)
    return {"blocks per SM": round(blocks, 6), "warps per SM": round(warps, 6)}


def _metadata(recording: Recording) -> dict[str, Any]:
    device = recording.device
    major, _, minor = device.architecture.partition(".")
    properties = {
        "id": 0,
        "name": device.reported_name,
        "totalGlobalMem": device.memory_bytes,
        "computeMajor": int(major) if major.isdigit() else 0,
        "computeMinor": int(minor) if minor.isdigit() else 0,
        "numSms": device.multiprocessors,
    }
    found: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [properties],
        "record_shapes": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
    }
    if recording.world_size > 1:
        found["distributedInfo"] = {
            "backend": "nccl",
            "rank": recording.rank,
            "world_size": recording.world_size,
        }
    return {**found, **recording.metadata}
