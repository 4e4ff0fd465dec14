"""`recorded`: a scene as the profiler would have recorded it.

Note [Ids]: a profiler numbers operators and calls as they come, so numbers that stand apart, or
come last, would give away what was put in. So what is put in has the number behind that of what
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
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.generation.program import Program
from torchtraceap.lab.generation.renumber import as_rank
from torchtraceap.lab.generation.scene import NewEvent, Outcome, Scene
from torchtraceap.lab.prediction.timeline.profilers import Profiler, distributed_info
from torchtraceap.simulation.edited_trace import event_text
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Clock", "Header", "recorded"]

_PROVISIONAL = 1 << 29
"""What is put in has such numbers until all are known. See Note [Ids]."""
_BLOCK, _HOLE = 512, 64
"""Of the numbers of operators of one thread; of what an excerpt or a range leaves out of them."""
_ALL = -1
"""The track of what all threads count together."""
_IDS = re.compile(rb'"(External id|external id|correlation|id|Ev Idx)"\s*:\s*(\d+)')
_OWN = ("Sequence number", "Fwd thread id", "external ts", "Module Hierarchy", "Concrete Inputs",
        "Input Strides", "Input strides", "Input type", "Input Dims", "Collective name",
        "Python id", "Python parent id", "Call stack", "cbid", "bytes",
        "memory bandwidth (GB/s)")  # fmt: skip
"""Of the arguments of another event of the kind, what is its own."""
_CALLBACKS = {"Malloc": 20, "Free": 22, "MemcpyAsync": 41, "StreamSynchronize": 131,
              "EventRecord": 135, "StreamWaitEvent": 147, "DeviceSynchronize": 165,
              "LaunchKernel": 211, "LaunchKernelExC": 430}  # fmt: skip
"""CUPTI's numbers of calls."""
_FLOATS = ("float", "c10::Half", "c10::BFloat16")
"""Types of elements, as inputs name them."""
_LAUNCHES = ("LaunchKernel", "LaunchKernelExC", "MemcpyAsync")


@dataclass(frozen=True, slots=True)
class Clock:
    """Of a recording."""

    offset_ns: int
    """What it is ahead of the program's at the origin."""
    origin_ns: int = 0
    """Of the program's clock."""
    rate: float = 0.0
    """By how much it goes faster."""

    def shown(self, times_ns: Array) -> Array:
        """int64: what it shows at times of the program; what is later there is not earlier here."""
        gained: Array = np.rint((times_ns - self.origin_ns) * self.rate).astype(np.int64)
        shown: Array = times_ns + self.offset_ns + gained
        return shown


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says beside its events."""

    rank: int
    world_size: int
    clock: Clock
    draw: str
    """Of its id and name."""


def recorded(base: Base, scene: Scene, outcome: Outcome, header: Header) -> RankTrace:
    """A rank, as a table that was read from what is written."""
    text = _with_ids(scene, outcome, header, _text(base, scene, outcome, header))
    text = as_rank(text, scene.program, header.rank)
    return RankTrace(_core.read_trace_bytes(text, base.name, threads=1), None)


def _text(base: Base, scene: Scene, outcome: Outcome, header: Header) -> bytes:
    program = scene.program
    table, first = program.table, scene.on(header.rank, 0)
    times = outcome.times_ns[first : first + len(program.graph)]
    ts_ns, dur_ns = _core.row_times(program.graph, 0, table, times)
    ts_ns, dur_ns = _shown(program, header.clock, ts_ns, dur_ns, program.is_work)
    kept = np.ones(len(table), dtype=bool)
    kept[scene.removed[header.rank]] = False
    kept &= ~np.isin(table.kind, (EventKind.METADATA, EventKind.PROFILER_TRACE))
    writer = _Writer(scene, outcome, header)
    mine = [event for event in scene.events if event.rank == header.rank]
    more = [text for event in mine for text in writer.texts(event)]
    begin, end = _extent(table, kept, ts_ns, dur_ns)
    more += base.frame(begin, end)
    edited = _core.edit_table(
        table,
        ts_ns=ts_ns,
        dur_ns=dur_ns,
        kept=_core.without_loose_flows(table, kept),
        correlation=table.correlation,
        more_events=more,
    )
    events = _core.trace_json(edited)
    return _head(base, header, program.profiler) + events[events.index(b'"traceEvents"') :]


def _shown(
    program: Program, clock: Clock, ts_ns: Array, dur_ns: Array, is_work: Array
) -> tuple[Array, Array]:
    """Starts and lengths as the recording has them."""
    starts, ends = clock.shown(ts_ns), clock.shown(ts_ns + dur_ns)
    return program.ticks.written(starts, ends - starts, is_work)


def _extent(table: _core.EventTable, kept: Array, ts_ns: Array, dur_ns: Array) -> tuple[int, int]:
    rows = kept & table.complete
    return int(ts_ns[rows].min()), int((ts_ns + dur_ns)[rows].max())


def _head(base: Base, header: Header, profiler: Profiler) -> bytes:
    """The trace's own id and name are drawn, as no two files have the same."""
    members = dict(base.members)
    if header.world_size > 1:
        job = distributed_info(header.rank, header.world_size, profiler)
        members["distributedInfo"] = json.dumps(job)
    rng = random.Random(header.draw)
    if "trace_id" in members:
        members["trace_id"] = json.dumps(f"{rng.getrandbits(128):032X}")
    name = "".join(rng.choice(string.ascii_lowercase + string.digits + "_") for _ in range(8))
    members["traceName"] = json.dumps(f"/tmp/tmp{name}.json")
    lines = [f"{json.dumps(key)}: {text},\n" for key, text in members.items()]
    return ("{\n" + "".join(lines)).encode()


class _Writer:
    """The texts of events that were put in."""

    def __init__(self, scene: Scene, outcome: Outcome, header: Header) -> None:
        self._program = scene.program
        self._times = header.clock.shown(outcome.times_ns)
        self._likes: dict[int, dict[str, Any]] = {}

    def texts(self, event: NewEvent) -> list[str]:
        """The event, and the arrow from a call to its work where the recording has such."""
        begin = self._times[event.begin : event.begin + 1]
        length = self._times[event.end : event.end + 1] - begin
        is_work = np.array([event.kind in ("kernel", "copy")])
        begin, length = self._program.ticks.written(begin, length, is_work)
        begin_ns, dur_ns = int(begin[0]), int(length[0])
        fields = {
            "op": self._range, "annotation": self._range, "call": self._call,
            "kernel": self._work, "copy": self._work,
        }[event.kind](event)  # fmt: skip
        texts = [event_text(fields, begin_ns, dur_ns)]
        arrows = self._program.arrows
        if arrows is not None and event.kind in ("kernel", "copy"):
            texts.append(self._arrow(arrows[1], fields, begin_ns))
        launches = event.name.removeprefix(self._program.runtime) in _LAUNCHES
        if arrows is not None and event.kind == "call" and launches:
            texts.append(self._arrow(arrows[0], fields, begin_ns))
        return texts

    def _arrow(self, like: Mapping[str, Any], fields: Mapping[str, Any], ts_ns: int) -> str:
        place = {key: fields[key] for key in ("pid", "tid")}
        arrow = {**like, **place, "id": fields["args"]["correlation"]}
        return event_text(arrow, ts_ns, None)

    def _like(self, track: int) -> dict[str, Any]:
        if track not in self._likes:
            self._likes[track] = self._program.like_op(track)
        return self._likes[track]

    def _range(self, event: NewEvent) -> dict[str, Any]:
        like = self._like(event.track)
        says = dict(event.args)
        dims = says.pop("dims", None)
        annotation = self._program.like_annotation
        if event.kind == "annotation" and annotation is not None:
            place = {key: like[key] for key in ("pid", "tid")}
            like = {**annotation, **place}
        args = _common(like["args"])
        if dims is not None:
            args |= _inputs(like["args"], dims)
        if "Ev Idx" in args and event.op is not None:
            args["Ev Idx"] = _PROVISIONAL + event.op
        return _written_as(like, {"name": event.name}, {**_with_id(args, event.op), **says})

    def _call(self, event: NewEvent) -> dict[str, Any]:
        like, thread = self._program.like_call, self._like(event.track)
        args = _with_id(_common(like["args"]), event.op)
        args["correlation"] = _PROVISIONAL + (event.call or 0)
        if "cbid" in like["args"]:
            name = event.name.removeprefix(self._program.runtime)
            args["cbid"] = _CALLBACKS.get(name, like["args"]["cbid"])
        place = {key: thread[key] for key in ("pid", "tid")}
        return _written_as(like, {**place, "name": event.name}, args)

    def _work(self, event: NewEvent) -> dict[str, Any]:
        program = self._program
        like = program.like_kernel if event.kind == "kernel" else program.like_copy
        args = _with_id({**_common(like["args"]), **event.args}, event.op)
        args["correlation"] = _PROVISIONAL + (event.call or 0)
        if "memory bandwidth (GB/s)" in like["args"] and "bytes" in args:
            ns = int(self._times[event.end] - self._times[event.begin])
            args["memory bandwidth (GB/s)"] = args["bytes"] / max(ns, 1)
        stream = int(like["args"]["stream"]) + event.stream
        args["stream"] = stream
        tid = like["tid"]
        tid = stream if isinstance(tid, int) else re.sub(r"\d+$", str(stream), str(tid))
        return _written_as(like, {"tid": tid, "name": event.name}, args)


def _written_as(
    like: Mapping[str, Any], own: Mapping[str, Any], args: Mapping[str, Any]
) -> dict[str, Any]:
    """Another event with members and arguments of its own, in the other's order: what stands in
    an order of its own would be known by that."""
    ordered = {key: args[key] for key in (*like["args"], *args) if key in args}
    return {**like, **own, "args": ordered}


def _inputs(like: Mapping[str, Any], dims: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What an operator says of its inputs, as far as others say it, in their type."""
    given = (each for each in like.get("Input type", ()) if each in _FLOATS)
    dtype = next(given, "float")
    strides = [[math.prod(each[i + 1 :]) for i in range(len(each))] for each in dims]
    says = {
        "Concrete Inputs": [""] * len(dims),
        "Input type": [dtype if each else "" for each in dims],
        "Input Strides": strides,
        "Input strides": strides,
        "Input Dims": dims,
    }
    return {key: value for key, value in says.items() if key in like}


def _common(args: Mapping[str, Any]) -> dict[str, Any]:
    """Of another event's arguments those that this one has alike."""
    return {key: value for key, value in args.items() if key not in _OWN}


def _with_id(args: dict[str, Any], op: int | None) -> dict[str, Any]:
    """Named by the operator that it is or lies in; by none as 0."""
    for key in ("External id", "external id"):
        if key in args:
            args[key] = 0 if op is None else _PROVISIONAL + op
    return args


# ------------------------------------------------------------------------- numbers


def _with_ids(scene: Scene, outcome: Outcome, header: Header, text: bytes) -> bytes:
    """See Note [Ids]."""
    mine = [event for event in scene.events if event.rank == header.rank]
    program, times = scene.program, outcome.times_ns
    table = program.table
    first = scene.on(header.rank, 0)
    view = program.view
    counted = np.isin(table.kind, (EventKind.CPU_OP, EventKind.USER_ANNOTATION))
    calls, ops = view.calls, np.flatnonzero(counted & view.has_points)
    at = times[first + view.begin_of.clip(max=len(program.graph) - 1).astype(np.int64)]
    new_calls = [_New(e.call, int(times[e.begin]), _ALL) for e in mine if e.kind == "call"]
    ranges = [event for event in mine if event.kind in ("op", "annotation")]
    new_ops = [_New(e.op, int(times[e.begin]), e.track) for e in ranges]
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


@dataclass(frozen=True, slots=True)
class _New:
    """What needs a number."""

    key: int | None
    at_ns: int
    track: int


class _Numbers(dict[int, int]):
    """From recorded and provisional numbers to those that are written. See Note [Ids].

    Args:
        ids: Recorded numbers.
        at_ns: When each begins, in the trace that is written.
        track: Whose count each is of.
        new: What was put in.
        blocks: Size of the blocks that tracks take their numbers from, if they do.
    """

    def __init__(
        self, ids: Array, at_ns: Array, track: Array, new: Sequence[_New], blocks: int = 0
    ) -> None:
        super().__init__()
        known = (ids != _core.NO_ID) & (ids > 0)
        ids, at_ns, track = ids[known].astype(np.int64), at_ns[known], track[known]
        if blocks and _are_blocks(ids, track, blocks):
            self._anchors = []
            self._count_blocks(ids, at_ns, track, new, blocks)
            return
        latest = {int(t): _latest(ids, at_ns, track == t) for t in np.unique(track)}
        placed = sorted((_before(latest, each), each.at_ns, each.key or 0) for each in new)
        self._anchors = [anchor for anchor, _, _ in placed]
        for rank, (anchor, _, key) in enumerate(placed):
            self[_PROVISIONAL + key] = anchor + rank + 1

    def _count_blocks(
        self, ids: Array, at_ns: Array, track: Array, new: Sequence[_New], size: int
    ) -> None:
        """Numbers all anew, as a profiler gives them."""
        rows = list(zip(at_ns.tolist(), ids.tolist(), track.tolist(), strict=True))
        rows += [(each.at_ns, _PROVISIONAL + (each.key or 0), each.track) for each in new]
        rows.sort()
        block = -(-(int(ids.min()) - 1) // size)  # behind what lies ahead of an excerpt
        left: dict[int, list[int]] = {}
        for _, number, track_ in rows:
            own = left.setdefault(track_, [])
            if not own:
                own += range((block + 1) * size, block * size, -1)
                block += 1
            self[number] = own.pop()

    def __missing__(self, number: int) -> int:
        moved = number + bisect_left(self._anchors, number) if number > 0 else number
        self[number] = moved
        return moved


def _latest(ids: Array, at_ns: Array, mine: Array) -> tuple[list[int], list[int]]:
    """Times of a track, and the largest number up to each."""
    order = np.argsort(at_ns[mine], kind="stable")
    return at_ns[mine][order].tolist(), np.maximum.accumulate(ids[mine][order]).tolist()


def _before(latest: Mapping[int, tuple[list[int], list[int]]], new: _New) -> int:
    """The number behind which a new one comes."""
    times, numbers = latest.get(new.track, ([], []))
    place = bisect_right(times, new.at_ns) - 1
    if place >= 0:
        return numbers[place]
    return numbers[0] - 1 if numbers else 0


def _are_blocks(ids: Array, track: Array, size: int) -> bool:
    """Every block belongs to one track, and blocks have no holes but at their ends."""
    pairs = np.unique(np.stack([(ids - 1) // size, track]), axis=1)
    unique = np.unique(ids)
    inside = (unique[1:] - 1) % size > 0
    steps = np.diff(unique)
    return len(np.unique(pairs[0])) == pairs.shape[1] and bool((steps[inside] < _HOLE).all())
