"""`record_scene`: a scene as the profiler would have recorded it.

Note [Ids]: a profiler numbers operators and calls as they come, so numbers that stand apart, or
come last, would reveal what was injected. So an injected event has the number behind that of what
came before it on its thread, and all larger numbers move up; gaps between the recorded ones stay.
Where threads take numbers from blocks of 512, as with torch from 1.13 on, all are given anew.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.core import Array
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.generation.program import Program
from torchtraceap.lab.generation.scene import NewEvent, Outcome, Scene
from torchtraceap.lab.prediction.timeline.event_names import CALLBACKS
from torchtraceap.lab.prediction.timeline.profilers import distributed_info
from torchtraceap.simulation import event_text
from torchtraceap.trace import RankTrace

__all__ = ["Clock", "as_rank", "record_scene"]

_PROVISIONAL = 1 << 29
"""Injected events have such numbers until all are known. See Note [Ids]."""
_BLOCK, _HOLE = 512, 64
"""Numbers of operators in a block of one thread; numbers that an excerpt or a range leaves out."""
_ALL = -1
"""The track of a count that all threads share."""
_IDS = re.compile(rb'"(External id|external id|correlation|id|Ev Idx)"\s*:\s*(\d+)')
_OWN = ("Sequence number", "Fwd thread id", "external ts", "Module Hierarchy", "Concrete Inputs",
        "Input Strides", "Input strides", "Input type", "Input Dims", "Collective name",
        "Python id", "Python parent id", "Call stack", "cbid", "bytes",
        "memory bandwidth (GB/s)")  # fmt: skip
"""Arguments of a template that hold for that event alone."""
_FLOATS = ("float", "c10::Half", "c10::BFloat16")
"""Types of elements, as inputs name them."""
_LAUNCHES = ("LaunchKernel", "LaunchKernelExC", "MemcpyAsync")
_PLACE = re.compile(rb'"(pid|tid|device)"\s*:\s*(\d+)')
_NAMES_PROCESS = b'"name": "process_'
"""Part of events that name processes: those of all GPUs are there already."""
_APART = 67
"""Difference between the numbers of processes that are started one after the other."""
_GPUS = 8
"""GPUs of a machine."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a recording."""

    offset_ns: int
    """Time that it is ahead of the program's clock at the origin."""
    origin_ns: int = 0
    """Origin, on the program's clock."""
    rate: float = 0.0
    """Share by which it is faster."""

    def show(self, times_ns: Array) -> Array:
        """Return what it shows at times of the program, int64; the order of times is kept."""
        gained: Array = np.rint((times_ns - self.origin_ns) * self.rate).astype(np.int64)
        shown: Array = times_ns + self.offset_ns + gained
        return shown


def record_scene(
    base: Base, scene: Scene, outcome: Outcome, rank: int, clock: Clock, token: str
) -> RankTrace:
    """Return a rank of a scene as a trace that was read from a file.

    Args:
        base: The run that the scene is made of.
        scene: What runs.
        outcome: Its times.
        rank: The rank that is recorded.
        clock: Its clock.
        token: Seed of the trace's own id and name, as no two files have the same.
    """
    program, table = scene.program, scene.program.table
    mine = [event for event in scene.events if event.rank == rank]
    first = scene.number_of(rank, 0)
    times = outcome.times_ns[first : first + len(program.graph)]
    ts_ns, dur_ns = _core.row_times(program.graph, 0, table, times)
    starts, ends = clock.show(ts_ns), clock.show(ts_ns + dur_ns)
    ts_ns, dur_ns = program.quantize(starts, ends - starts, program.is_work)
    kept = np.ones(len(table), dtype=bool)
    kept[scene.removed[rank]] = False
    kept &= ~np.isin(table.kind, (EventKind.METADATA, EventKind.PROFILER_TRACE))
    writer = _Writer(program, clock.show(outcome.times_ns))
    more = [text for event in mine for text in writer.texts(event)]
    rows = kept & table.complete
    more += base.frame(int(ts_ns[rows].min()), int((ts_ns + dur_ns)[rows].max()))
    edited = _core.edit_table(
        table,
        ts_ns=ts_ns,
        dur_ns=dur_ns,
        kept=_core.without_loose_flows(table, kept),
        correlation=table.correlation,
        more_events=more,
    )
    events = _core.trace_json(edited)
    members = dict(base.members)
    if scene.ranks > 1:
        members["distributedInfo"] = json.dumps(
            distributed_info(rank, scene.ranks, program.profiler)
        )
    rng = random.Random(token)
    if "trace_id" in members:
        members["trace_id"] = json.dumps(f"{rng.getrandbits(128):032X}")
    name = "".join(rng.choice(string.ascii_lowercase + string.digits + "_") for _ in range(8))
    members["traceName"] = json.dumps(f"/tmp/tmp{name}.json")
    head = "{\n" + "".join(f"{json.dumps(key)}: {text},\n" for key, text in members.items())
    text = head.encode() + events[events.index(b'"traceEvents"') :]
    text = _with_ids(program, outcome.times_ns, first, mine, text)
    text = as_rank(text, program, rank)
    return RankTrace(_core.read_trace_bytes(text, base.name, threads=1), None)


class _Writer:
    """The texts of injected events.

    Args:
        program: The program, whose events are templates.
        times_ns: int64 `[points]` of the scene, on the clock of the recording.
    """

    def __init__(self, program: Program, times_ns: Array) -> None:
        self._program, self._times = program, times_ns
        self._likes: dict[int, dict[str, Any]] = {}

    def texts(self, event: NewEvent) -> list[str]:
        """Return the event, and its end of the arrow from a call to its work, if there are any."""
        program = self._program
        begin = self._times[event.begin : event.begin + 1]
        length = self._times[event.end : event.end + 1] - begin
        is_work = event.kind in ("kernel", "copy")
        begin, length = program.quantize(begin, length, np.array([is_work]))
        begin_ns, dur_ns = int(begin[0]), int(length[0])
        if is_work:
            fields = self._work(event)
        else:
            fields = self._call(event) if event.kind == "call" else self._range(event)
        texts = [event_text(fields, begin_ns, dur_ns)]
        launches = event.name.removeprefix(program.runtime) in _LAUNCHES
        if program.arrows is not None and (is_work or (event.kind == "call" and launches)):
            place = {key: fields[key] for key in ("pid", "tid")}
            arrow = {**program.arrows[is_work], **place, "id": fields["args"]["correlation"]}
            texts.append(event_text(arrow, begin_ns, None))
        return texts

    def _like(self, track: int) -> dict[str, Any]:
        if track not in self._likes:
            self._likes[track] = self._program.template_op(track)
        return self._likes[track]

    def _range(self, event: NewEvent) -> dict[str, Any]:
        like = self._like(event.track)
        own = dict(event.args)
        dims = own.pop("dims", None)
        annotation = self._program.template_annotation
        if event.kind == "annotation" and annotation is not None:
            place = {key: like[key] for key in ("pid", "tid")}
            like = {**annotation, **place}
        args = _common_arguments(like["args"], event.op)
        if dims is not None:
            args |= _inputs(like["args"], dims)
        if "Ev Idx" in args and event.op is not None:
            args["Ev Idx"] = _PROVISIONAL + event.op
        return _event_like(like, {"name": event.name}, {**args, **own})

    def _call(self, event: NewEvent) -> dict[str, Any]:
        like, thread = self._program.template_call, self._like(event.track)
        args = _common_arguments(like["args"], event.op)
        args["correlation"] = _PROVISIONAL + (event.call or 0)
        if "cbid" in like["args"]:
            name = event.name.removeprefix(self._program.runtime)
            args["cbid"] = CALLBACKS.get(f"cuda{name}", like["args"]["cbid"])
        place = {key: thread[key] for key in ("pid", "tid")}
        return _event_like(like, {**place, "name": event.name}, args)

    def _work(self, event: NewEvent) -> dict[str, Any]:
        program = self._program
        like = program.template_kernel if event.kind == "kernel" else program.template_copy
        args = {**_common_arguments(like["args"], event.op), **event.args}
        args["correlation"] = _PROVISIONAL + (event.call or 0)
        if "memory bandwidth (GB/s)" in like["args"] and "bytes" in args:
            ns = int(self._times[event.end] - self._times[event.begin])
            args["memory bandwidth (GB/s)"] = args["bytes"] / max(ns, 1)
        stream = int(like["args"]["stream"]) + event.stream
        args["stream"] = stream
        tid = like["tid"]
        tid = stream if isinstance(tid, int) else re.sub(r"\d+$", str(stream), str(tid))
        return _event_like(like, {"tid": tid, "name": event.name}, args)


def _event_like(
    like: Mapping[str, Any], own: Mapping[str, Any], args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an event with members and arguments in the order of a template, as another order
    would reveal it."""
    ordered = {key: args[key] for key in (*like["args"], *args) if key in args}
    return {**like, **own, "args": ordered}


def _common_arguments(template: Mapping[str, Any], op: int | None) -> dict[str, Any]:
    """Return the arguments that an event has in common with a template, named by the operator that
    it is or lies in, or 0."""
    args = {key: value for key, value in template.items() if key not in _OWN}
    for key in ("External id", "external id"):
        if key in args:
            args[key] = 0 if op is None else _PROVISIONAL + op
    return args


def _inputs(like: Mapping[str, Any], dims: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return an operator's arguments about inputs, as far as a template has them, in its type."""
    dtype = next((each for each in like.get("Input type", ()) if each in _FLOATS), "float")
    strides = [[math.prod(each[i + 1 :]) for i in range(len(each))] for each in dims]
    args = {
        "Concrete Inputs": [""] * len(dims),
        "Input type": [dtype if each else "" for each in dims],
        "Input Strides": strides,
        "Input strides": strides,
        "Input Dims": dims,
    }
    return {key: value for key, value in args.items() if key in like}


# ------------------------------------------------------------------------- numbers


def _with_ids(
    program: Program, times_ns: Array, first: int, mine: Sequence[NewEvent], text: bytes
) -> bytes:
    """Return a file with final numbers. See Note [Ids]."""
    table, view = program.table, program.view
    counted = np.isin(table.kind, (EventKind.CPU_OP, EventKind.USER_ANNOTATION))
    calls, ops = view.calls, np.flatnonzero(counted & view.has_points)
    at = times_ns[first + view.begin_of.clip(max=len(program.graph) - 1).astype(np.int64)]
    new_calls = [(e.call or 0, int(times_ns[e.begin]), _ALL) for e in mine if e.kind == "call"]
    ranges = [event for event in mine if event.kind in ("op", "annotation")]
    new_ops = [(event.op or 0, int(times_ns[event.begin]), event.track) for event in ranges]
    indices, known = table.int_column("Ev Idx")
    track = table.track.astype(np.int64)
    indexed = ops[known[ops]]
    by_call = _Numbers(table.correlation[calls], at[calls], np.full(len(calls), _ALL), new_calls)
    by_op = _Numbers(table.external_id[ops], at[ops], track[ops], new_ops, blocks=_BLOCK)
    by_index = _Numbers(indices[indexed], at[indexed], track[indexed], new_ops)
    numbers = {
        b"correlation": by_call, b"id": by_call,
        b"External id": by_op, b"external id": by_op, b"Ev Idx": by_index,
    }  # fmt: skip

    def renumbered(found: re.Match[bytes]) -> bytes:
        return b'"%s": %d' % (found[1], numbers[found[1]][int(found[2])])

    begin = text.index(b'"traceEvents"')
    if not mine and not by_op:
        return text
    return text[:begin] + _IDS.sub(renumbered, text[begin:])


class _Numbers(dict[int, int]):
    """Final numbers by recorded and provisional ones. See Note [Ids].

    Args:
        ids: Recorded numbers.
        at_ns: Begin of each in the trace that is written.
        track: Track whose count each is of.
        new: Key, begin and track of what was injected.
        blocks: Size of the blocks that tracks take their numbers from, if they do.
    """

    def __init__(
        self,
        ids: Array,
        at_ns: Array,
        track: Array,
        new: Sequence[tuple[int, int, int]],
        blocks: int = 0,
    ) -> None:
        super().__init__()
        known = (ids != _core.NO_ID) & (ids > 0)
        ids, at_ns, track = ids[known].astype(np.int64), at_ns[known], track[known]
        self._anchors: list[int] = []
        if blocks and _are_blocks(ids, track, blocks):
            self._count_blocks(ids, at_ns, track, new, blocks)
            return
        latest: dict[int, tuple[list[int], list[int]]] = {}
        for each in np.unique(track):  # times of a track, and the largest number up to each
            own = np.flatnonzero(track == each)
            own = own[np.argsort(at_ns[own], kind="stable")]
            latest[int(each)] = at_ns[own].tolist(), np.maximum.accumulate(ids[own]).tolist()
        placed = []
        for key, begin_ns, thread in new:
            times, numbers = latest.get(thread, ([], []))
            place = bisect_right(times, begin_ns) - 1
            before = numbers[place] if place >= 0 else numbers[0] - 1 if numbers else 0
            placed.append((before, begin_ns, key))
        placed.sort()
        self._anchors = [anchor for anchor, _, _ in placed]
        for rank, (anchor, _, key) in enumerate(placed):
            self[_PROVISIONAL + key] = anchor + rank + 1

    def _count_blocks(
        self,
        ids: Array,
        at_ns: Array,
        track: Array,
        new: Sequence[tuple[int, int, int]],
        size: int,
    ) -> None:
        """Number all anew, as a profiler does."""
        rows = list(zip(at_ns.tolist(), ids.tolist(), track.tolist(), strict=True))
        rows += [(begin_ns, _PROVISIONAL + key, thread) for key, begin_ns, thread in new]
        rows.sort()
        block = -(-(int(ids.min()) - 1) // size)  # behind what lies ahead of an excerpt
        left: dict[int, list[int]] = {}
        for _, number, thread in rows:
            own = left.setdefault(thread, [])
            if not own:
                own += range((block + 1) * size, block * size, -1)
                block += 1
            self[number] = own.pop()

    def __missing__(self, number: int) -> int:
        moved = number + bisect_left(self._anchors, number) if number > 0 else number
        self[number] = moved
        return moved


def _are_blocks(ids: Array, track: Array, size: int) -> bool:
    """Return True if every block belongs to one track, with holes at its ends alone."""
    pairs = np.unique(np.stack([(ids - 1) // size, track]), axis=1)
    unique = np.unique(ids)
    inside = (unique[1:] - 1) % size > 0
    steps = np.diff(unique)
    return len(np.unique(pairs[0])) == pairs.shape[1] and bool((steps[inside] < _HOLE).all())


def as_rank(text: bytes, program: Program, rank: int) -> bytes:
    """Return a file with the process, threads and GPU of another rank of the machine.

    Args:
        text: The file of rank 0, with an event in each line.
        program: The program whose numbers the text has.
        rank: The rank, from 0.
    """
    if rank == 0:
        return text
    host: dict[bytes, bytes] = {}
    process = program.template_call.get("pid")
    if isinstance(process, int):
        host[b"pid %d" % process] = b"%d" % (process + rank * _APART)
        tracks = [(track.pid, track.tid) for track in program.table.tracks]
        streams = {tid for pid, tid in tracks if pid != str(process)}
        for pid, tid in tracks:
            if pid == str(process) and tid.isdecimal() and tid not in streams:
                host[b"tid " + tid.encode()] = b"%d" % (int(tid) + rank * _APART)
    gpu = b"%d" % (rank % _GPUS)
    is_first_gpu = program.template_kernel.get("pid") == 0
    numbers = {**host, **({b"pid 0": gpu, b"device 0": gpu} if is_first_gpu else {})}
    begin = text.index(b'"traceEvents"')
    lines = [
        _PLACE.sub(partial(_moved_number, host if _NAMES_PROCESS in line else numbers), line)
        for line in text[begin:].split(b"\n")
    ]
    return text[:begin] + b"\n".join(lines)


def _moved_number(numbers: Mapping[bytes, bytes], found: re.Match[bytes]) -> bytes:
    number = numbers.get(found[1] + b" " + found[2])
    return found[0] if number is None else b'"%s": %s' % (found[1], number)
