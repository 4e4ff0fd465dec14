"""`recorded`: a scene as the profiler would have recorded it.

Note [Ids]: a profiler numbers operators and calls as they come, so numbers that stand apart, or
come last, would give away what was put in. So what is put in has the number behind that of what
came before it, and all later numbers move up; gaps between the recorded ones stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.aliases import Array
from torchtraceap.generation.bases import Base
from torchtraceap.generation.scene import NewEvent, Outcome, Scene
from torchtraceap.ranks import RankTrace
from torchtraceap.simulation.edited_trace import event_text

__all__ = ["Clock", "Header", "recorded"]

_PROVISIONAL = 1 << 29
"""What is put in has such numbers until all are known. See Note [Ids]."""
_IDS = re.compile(rb'"(External id|external id|correlation|id|Ev Idx)"\s*:\s*(\d+)')
_OWN = ("Sequence number", "Fwd thread id", "external ts", "Module Hierarchy", "Concrete Inputs",
        "Input Strides", "Input strides", "Input type", "Input Dims", "Collective name",
        "Python id", "Python parent id", "cbid", "bytes", "memory bandwidth (GB/s)")  # fmt: skip
"""Of the arguments of another event of the kind, what is its own."""
_CALLBACKS = {"Malloc": 20, "Free": 22, "MemcpyAsync": 41, "StreamSynchronize": 131,
              "EventRecord": 135, "StreamWaitEvent": 147, "DeviceSynchronize": 165,
              "LaunchKernel": 211, "LaunchKernelExC": 430}  # fmt: skip
"""CUPTI's numbers of calls."""
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


def recorded(base: Base, scene: Scene, outcome: Outcome, header: Header) -> RankTrace:
    """A rank, as a table that was read from what is written."""
    text = _with_ids(scene, outcome, header, _text(base, scene, outcome, header))
    return RankTrace(_core.read_trace_bytes(text, base.name, threads=1), None)


def _text(base: Base, scene: Scene, outcome: Outcome, header: Header) -> bytes:
    program = scene.program
    table, first = program.table, scene.on(header.rank, 0)
    times = outcome.times_ns[first : first + len(program.graph)]
    ts_ns, dur_ns = _core.row_times(program.graph, 0, table, times)
    ends_ns, ts_ns = header.clock.shown(ts_ns + dur_ns), header.clock.shown(ts_ns)
    dur_ns = ends_ns - ts_ns
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
    return _head(base, header) + events[events.index(b'"traceEvents"') :]


def _extent(table: _core.EventTable, kept: Array, ts_ns: Array, dur_ns: Array) -> tuple[int, int]:
    rows = kept & table.complete
    return int(ts_ns[rows].min()), int((ts_ns + dur_ns)[rows].max())


def _head(base: Base, header: Header) -> bytes:
    members = dict(base.members)
    if header.world_size > 1:
        members["distributedInfo"] = json.dumps(
            {"backend": "nccl", "rank": header.rank, "world_size": header.world_size}
        )
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
        begin_ns = int(self._times[event.begin])
        dur_ns = int(self._times[event.end]) - begin_ns
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
        return event_text({key: v for key, v in arrow.items() if key != "ts"}, ts_ns, None)

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
        if "Input Dims" in like["args"] and dims is not None:
            args["Input Dims"] = dims
        if "Input type" in like["args"] and dims is not None:
            args["Input type"] = ["float" if each else "" for each in dims]
        if "Ev Idx" in args and event.op is not None:
            args["Ev Idx"] = _PROVISIONAL + event.op
        return {**like, "name": event.name, "args": {**_with_id(args, event.op), **says}}

    def _call(self, event: NewEvent) -> dict[str, Any]:
        like, thread = self._program.like_call, self._like(event.track)
        args = _with_id(_common(like["args"]), event.op)
        args["correlation"] = _PROVISIONAL + (event.call or 0)
        if "cbid" in like["args"]:
            name = event.name.removeprefix(self._program.runtime)
            args["cbid"] = _CALLBACKS.get(name, like["args"]["cbid"])
        place = {key: thread[key] for key in ("pid", "tid")}
        return {**like, **place, "name": event.name, "args": args}

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
        return {**like, "tid": tid, "name": event.name, "args": args}


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
    if not mine:
        return text
    program, times = scene.program, outcome.times_ns
    table = program.table
    first = scene.on(header.rank, 0)
    view = program.view
    calls, ops = view.calls, np.flatnonzero((table.kind == EventKind.CPU_OP) & view.has_points)
    at = times[first + view.begin_of.clip(max=len(program.graph) - 1).astype(np.int64)]
    new_calls = _firsts(mine, times, lambda event: event.call if event.kind == "call" else None)
    new_ops = _firsts(mine, times, lambda event: event.op if event.kind == "op" else None)
    indices, known = table.int_column("Ev Idx")
    indexed = ops[known[ops]]
    by_call = _Numbers(table.correlation[calls], at[calls], new_calls)
    by_op = _Numbers(table.external_id[ops], at[ops], new_ops)
    by_index = _Numbers(indices[indexed], at[indexed], new_ops)
    numbers = {
        b"correlation": by_call, b"id": by_call,
        b"External id": by_op, b"external id": by_op, b"Ev Idx": by_index,
    }  # fmt: skip

    def renumbered(found: re.Match[bytes]) -> bytes:
        return b'"%s": %d' % (found[1], numbers[found[1]][int(found[2])])

    begin = text.index(b'"traceEvents"')
    return text[:begin] + _IDS.sub(renumbered, text[begin:])


def _firsts(
    events: Sequence[NewEvent], times: Array, key: Callable[[NewEvent], int | None]
) -> dict[int, int]:
    """Begin of each, ns, by key."""
    begins = ((key(event), int(times[event.begin])) for event in events)
    return {which: begin for which, begin in begins if which is not None}


class _Numbers(dict[int, int]):
    """From recorded and provisional numbers to those that are written."""

    def __init__(self, ids: Array, at_ns: Array, new: Mapping[int, int]) -> None:
        super().__init__()
        known = (ids != _core.NO_ID) & (ids > 0)
        order = np.argsort(at_ns[known], kind="stable")
        times, latest = at_ns[known][order], np.maximum.accumulate(ids[known][order])
        keys = sorted(new, key=lambda key: (new[key], key))
        place = np.searchsorted(times, [new[key] for key in keys], side="right") - 1
        anchors = np.zeros(len(keys), dtype=np.int64)
        if len(latest):
            first = ids[known].min() - 1  # of what comes before all that is recorded
            anchors = np.where(place >= 0, latest[np.maximum(place, 0)], first)
        self._anchors = np.maximum.accumulate(anchors).tolist() if len(anchors) else []
        for rank, (key, anchor) in enumerate(zip(keys, self._anchors, strict=True)):
            self[_PROVISIONAL + key] = int(anchor) + rank + 1

    def __missing__(self, number: int) -> int:
        from bisect import bisect_left

        moved = number + bisect_left(self._anchors, number) if number > 0 else number
        self[number] = moved
        return moved
