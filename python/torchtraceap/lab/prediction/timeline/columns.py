"""Columns of the events of all steps and the numbers that link them.

Note [Numbers]: numbers follow Kineto. Operators and ranges of a thread take `External id`s from
blocks of 512, which threads take in turn; `Ev Idx` counts thread by thread, the backward pass
first. Calls have `correlation`s in order of time; the runtime also counts calls that it does not
record, about as many per operator as `_unrecorded` says (ten public traces; none on AMD GPUs).
Arrows from the forward to the backward pass count the nodes of the backward pass from 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.prediction.timeline.frame import (
    Recording,
    SingleEvent,
    file_members,
    frame_events,
)
from torchtraceap.lab.prediction.timeline.library_calls import CALLBACKS
from torchtraceap.trace.event_table import Texts, event_table

__all__ = ["AUTOGRAD", "MAIN", "EventColumns", "StepEvent"]

MAIN, AUTOGRAD = 0, 1
"""Thread numbers."""
_BLOCK = 512
_TICK_NS = {"amd": 40}
"""Resolution of the GPU's clock; 32 ns on NVIDIA's."""
_ORDER = (
    "External id", "Record function id", "Sequence number", "Fwd thread id", "Concrete Inputs",
    "Input type", "Input Strides", "Input Dims", "Ev Idx", "cbid", "queued", "device", "context",
    "stream", "correlation", "registers per thread", "shared memory", "blocks per SM",
    "warps per SM", "grid", "block", "est. achieved occupancy %", "bytes",
    "memory bandwidth (GB/s)",
)  # fmt: skip
"""Order of arguments as Kineto writes them; others follow."""
_STARTED = frozenset({"cpu_op", "user_annotation"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})


@dataclass(slots=True)
class StepEvent:
    """An event that occurs in every step."""

    name: str
    category: str
    thread: int
    begin: Array
    """Begin in each step, int64 `[steps]`."""
    end: Array
    args: dict[str, Any]
    op: int | None = None
    """Number within a step of the operator or range, or of the one that launched it."""
    link: int | None = None
    """Number within a step of the call, or of the one that launched it."""
    sequence: int | None = None
    is_node: bool = False
    """True for a node of the backward pass."""
    is_gpu: bool = False
    step_name: str = ""
    """Prefix of a name that ends in the step's number."""

    @property
    def is_op(self) -> bool:
        """True if it has an External id of its own."""
        return self.category in _STARTED

    @property
    def is_call(self) -> bool:
        """True if it has a correlation of its own."""
        return self.category in _CALLS


class EventColumns:
    """The columns of all events and the arrows between them."""

    def __init__(
        self, entries: Sequence[StepEvent], recording: Recording, ops: int, links: int
    ) -> None:
        self._entries, self._recording = entries, recording
        self._ops, self._links = ops, links
        self._steps = len(entries[0].begin)
        origin = recording.begin_ns - int(min(entry.begin.min() for entry in entries))
        self._begin = np.stack([entry.begin for entry in entries], axis=1) + origin
        self._end = np.stack([entry.end for entry in entries], axis=1) + origin
        self._tick_lengths()
        self._kept = self._recorded()
        self._sequences = max((e.sequence for e in entries if e.sequence is not None), default=-1)

    def _tick_lengths(self) -> None:
        """Round GPU times to ticks of the clock, up to a nanosecond of conversion."""
        is_amd = self._recording.device.vendor == "amd"
        tick = _TICK_NS.get(self._recording.device.vendor, 32)
        gpu = np.flatnonzero([e.is_gpu and e.category != "gpu_user_annotation"
                              for e in self._entries])  # fmt: skip
        length = (self._end - self._begin)[:, gpu]
        ticks = np.maximum(np.rint(length / tick), 1).astype(np.int64) * tick
        odd = (self._begin[:, gpu] // 7) % 8 if not is_amd else np.full(length.shape, 1)
        self._end[:, gpu] = self._begin[:, gpu] + ticks - (odd == 1)

    def _recorded(self) -> Array:
        """Mark recorded events; of the warm-up only GPU work that ends later, bool `[steps,
        entries]`."""
        kept = np.ones(self._begin.shape, dtype=bool)
        warm_up = self._recording.warm_up
        if warm_up:
            is_gpu = np.array([entry.is_gpu for entry in self._entries])
            kept[:warm_up] = is_gpu & (self._end[:warm_up] > self._begin[warm_up, 0])
        return kept

    def table(self) -> Any:
        """Return the `EventTable`."""
        steps, recording = self._steps, self._recording
        ids, calls = self._op_ids(), self._correlations()
        arrows = self._arrows(calls)
        extra = [*self._waited_for_all(calls), *arrows]
        streams = sorted({entry.thread for entry in self._entries if entry.is_gpu})
        begin, end = int(self._begin[self._kept].min()), int(self._end[self._kept].max()) + 200_000
        has_backward = any(e.thread == AUTOGRAD and not e.is_gpu for e in self._entries)
        extra += frame_events(recording, begin, end, has_backward, streams)
        host, gpu = recording.process, recording.gpu
        every = [(gpu if e.is_gpu else host, self._tid(e)) for e in self._entries] * steps
        kept = np.concatenate([self._kept.ravel(), np.ones(len(extra), dtype=bool)])
        starts = np.concatenate([self._begin.ravel(), [each.ts for each in extra]])
        lengths = np.concatenate([(self._end - self._begin).ravel(), [each.dur for each in extra]])
        events = len(every)
        categories = [entry.category for entry in self._entries] * steps
        arguments = self._arguments(ids, calls, extra)

        def column(values: list[Any], more: Iterable[Any]) -> list[Any]:
            return [*compress([*values, *more], kept)]

        def member(more: Iterable[Any]) -> list[Any]:
            return column([None] * events, more)

        return event_table(
            column(self._names(), (each.name for each in extra)),
            starts[kept].astype(np.int64),
            lengths[kept].astype(np.int64),
            category=column(categories, (each.category for each in extra)),
            pid=column([pid for pid, _ in every], (each.pid for each in extra)),
            tid=column([tid for _, tid in every], (each.tid for each in extra)),
            phase=column(["X"] * events, (each.phase for each in extra)),
            args={key: _of(values, kept) for key, values in arguments.items()},
            members={
                "id": member(each.args.get("id") if _is_arrow(each) else None for each in extra),
                "bp": member("e" if each.phase == "f" else None for each in extra),
                "s": member(each.scope for each in extra),
            },
            metadata=file_members(recording),
            path=recording.path,
        )

    # ------------------------------------------------------------------------- numbers

    def _in_time(self, wanted: Sequence[bool]) -> tuple[Array, Array]:
        """Return steps and entries of the wanted events by begin, enclosing ones first."""
        chosen = np.flatnonzero(wanted)
        begin, end = self._begin[:, chosen].ravel(), self._end[:, chosen].ravel()
        order = np.lexsort((np.arange(len(begin)), -end, begin))
        return order // len(chosen), chosen[order % len(chosen)]

    def _op_ids(self) -> Array:
        """Return the External id by number within a step, int64 `[steps, ops + 1]`."""
        steps, places = self._in_time([entry.is_op for entry in self._entries])
        found = np.zeros((self._steps, self._ops + 1), dtype=np.int64)
        blocks = 0
        left: dict[int, list[int]] = {}
        for step, place in zip(steps.tolist(), places.tolist(), strict=True):
            entry = self._entries[place]
            own = left.setdefault(entry.thread, [])
            if not own:
                own += range((blocks + 1) * _BLOCK, blocks * _BLOCK, -1)
                blocks += 1
            found[step, entry.op] = own.pop()
        return found

    def _indices(self) -> Array:
        """Return Ev Idx of operators and ranges, int64 `[steps, entries]`."""
        found = np.zeros(self._begin.shape, dtype=np.int64)
        steps, places = self._in_time([entry.is_op for entry in self._entries])
        thread = np.array([self._entries[place].thread for place in places.tolist()])
        order = np.argsort(thread != AUTOGRAD, kind="stable")
        found[steps[order], places[order]] = np.arange(len(order))
        return found

    def _correlations(self) -> Array:
        """Return correlations by number within a step, and of the final call, int64 `[steps,
        links + 1]`."""
        wanted = [entry.is_op or entry.is_call for entry in self._entries]
        steps, places = self._in_time(wanted)
        found = np.zeros((self._steps, self._links + 1), dtype=np.int64)
        number, begun = self._recording.first_call, 0
        is_amd = self._recording.device.vendor == "amd"
        for step, place in zip(steps.tolist(), places.tolist(), strict=True):
            entry = self._entries[place]
            if not entry.is_call:
                begun += 1
                continue
            number += 1 if is_amd else 1 + _unrecorded(begun)
            begun = 0
            found[step, entry.link] = number
        found[-1, self._links] = number + 40
        return found

    # ------------------------------------------------------------------------- arrows

    def _arrows(self, calls: Array) -> list[SingleEvent]:
        """Return arrows from launches to work and from operators to backward nodes."""
        launches = {e.link: i for i, e in enumerate(self._entries) if e.is_call}
        found: list[SingleEvent] = []
        works = [(e.link, i) for i, e in enumerate(self._entries)
                 if e.link is not None and e.is_gpu]  # fmt: skip
        for step in range(self._recording.warm_up, self._steps):
            for link, target in works:
                number = int(calls[step, link])
                found += self._arrow("ac2g", number, step, launches[link], target)
        return found + self._backward_arrows()

    def _backward_arrows(self) -> list[SingleEvent]:
        """Return arrows from the innermost operator with a sequence number to its node."""
        forward: dict[int, int] = {}
        nodes: dict[int, int] = {}
        for place, entry in enumerate(self._entries):
            if entry.sequence is None:
                continue
            if entry.thread != AUTOGRAD:
                forward[entry.sequence] = place
            elif entry.is_node:
                nodes[entry.sequence] = place
        pairs = [(forward[each], place) for each, place in nodes.items() if each in forward]
        found: list[SingleEvent] = []
        number = 0
        for step in range(self._recording.warm_up, self._steps):
            for source, target in sorted(pairs, key=lambda pair: int(self._begin[0, pair[1]])):
                number += 1
                found += self._arrow("fwdbwd", number, step, source, target)
        return found

    def _arrow(
        self, name: str, number: int, step: int, source: int, target: int
    ) -> list[SingleEvent]:
        return [
            SingleEvent(
                name, phase, self._pid(self._entries[place]), self._tid(self._entries[place]),
                int(self._begin[step, place]), 0, name, {"id": number},
            )
            for phase, place in (("s", source), ("f", target))
        ]  # fmt: skip

    def _waited_for_all(self, calls: Array) -> list[SingleEvent]:
        """Return the device synchronization with which the profiler stops."""
        vendor = "hip" if self._recording.device.vendor == "amd" else "cuda"
        host = [i for i, entry in enumerate(self._entries) if not entry.is_gpu]
        begin = int(self._end[-1, host].max()) + 150_000
        end = max(int(self._end.max()), begin) + 6_000
        name = f"{vendor}DeviceSynchronize"
        args: dict[str, Any] = {"correlation": int(calls[-1, self._links])}
        if vendor == "cuda":
            args["cbid"] = CALLBACKS[name]
        pid = self._recording.process
        return [SingleEvent(name, "X", pid, pid, begin, end - begin, "cuda_runtime", args)]

    # ------------------------------------------------------------------------- columns

    def _pid(self, entry: StepEvent) -> int:
        return self._recording.gpu if entry.is_gpu else self._recording.process

    def _tid(self, entry: StepEvent) -> int:
        if entry.is_gpu:
            return entry.thread
        recording = self._recording
        return recording.autograd_thread if entry.thread == AUTOGRAD else recording.process

    def _names(self) -> list[str]:
        first = self._recording.first_step - self._recording.warm_up
        return [
            f"{entry.step_name}{first + step}" if entry.step_name else entry.name
            for step in range(self._steps)
            for entry in self._entries
        ]

    def _arguments(self, ids: Array, calls: Array, extra: Sequence[SingleEvent]) -> dict[str, Any]:
        """Return the columns of `args`."""
        entries, more = self._entries, len(extra)
        ops = [None if entry.op is None else entry.op for entry in entries]
        linked = [entry.link if entry.is_call or entry.is_gpu else None for entry in entries]
        is_op = [entry.is_op for entry in entries]
        columns: dict[str, Any] = {
            "External id": self._looked_up(ids, ops, more),
            "Record function id": self._column(np.zeros_like(self._begin), is_op, more),
            "Ev Idx": self._column(self._indices(), is_op, more),
            "correlation": self._looked_up(calls, linked, more),
            "Sequence number": self._sequence_numbers(more),
            "cbid": self._callbacks(more),
            "memory bandwidth (GB/s)": self._bandwidths(more),
        }
        keys = dict.fromkeys(key for entry in entries for key in entry.args)
        columns |= {key: self._texts(key, more) for key in keys}
        self._add_extra(columns, extra)
        order = {key: place for place, key in enumerate(_ORDER)}
        return dict(sorted(columns.items(), key=lambda item: order.get(item[0], len(_ORDER))))

    def _column(self, values: Array, known: Sequence[bool], more: int) -> Any:
        """Return a column `[steps * entries + more]`, masked where unknown and for single
        events."""
        every = np.concatenate([values.ravel(), np.zeros(more, dtype=values.dtype)])
        missing = ~np.array(known, dtype=bool)
        mask = np.concatenate([np.tile(missing, self._steps), np.ones(more, dtype=bool)])
        return np.ma.MaskedArray(every, mask)

    def _looked_up(self, numbers: Array, own: Sequence[int | None], more: int) -> Any:
        places = np.array([0 if each is None else each for each in own], dtype=np.int64)
        return self._column(numbers[:, places], [each is not None for each in own], more)

    def _sequence_numbers(self, more: int) -> Any:
        """Return sequence numbers that continue from earlier steps of the process."""
        known = [entry.sequence is not None for entry in self._entries]
        least = min((e.sequence for e in self._entries if e.sequence is not None), default=0)
        own = np.array([(e.sequence or least) - least for e in self._entries], dtype=np.int64)
        per_step = self._sequences + 1 - least
        first = self._recording.first_step - self._recording.warm_up
        steps = first + np.arange(self._steps)
        return self._column(own + per_step * steps[:, None], known, more)

    def _callbacks(self, more: int) -> Any:
        numbers = [CALLBACKS.get(e.name, 0) if e.is_call else 0 for e in self._entries]
        every = np.tile(np.array(numbers, dtype=np.int64), (self._steps, 1))
        return self._column(every, [number > 0 for number in numbers], more)

    def _bandwidths(self, more: int) -> Any:
        moved = np.array([e.args.get("bytes", 0) if e.is_gpu else 0 for e in self._entries])
        is_copy = [entry.category in ("gpu_memcpy", "gpu_memset") for entry in self._entries]
        rates = moved / np.maximum(self._end - self._begin, 1)
        return self._column(rates, is_copy, more)

    def _texts(self, key: str, more: int) -> Texts:
        codes, texts = [], dict[str, int]()
        for entry in self._entries:
            if key in entry.args:
                text = json.dumps(entry.args[key])
                codes.append(texts.setdefault(text, len(texts)))
            else:
                codes.append(-1)
        every = np.concatenate([np.tile(codes, self._steps), np.full(more, -1)])
        return Texts(every, [*texts], is_json=True)

    def _add_extra(self, columns: dict[str, Any], extra: Sequence[SingleEvent]) -> None:
        """Add the arguments of single events."""
        first = len(self._entries) * self._steps
        rows = [(first + i, each.args) for i, each in enumerate(extra) if not _is_arrow(each)]
        for key in dict.fromkeys(key for _, args in rows for key in args):
            mine = {row: args[key] for row, args in rows if key in args}
            if key in columns:
                column = columns[key]
                for row, value in mine.items():
                    column[row] = value
            else:
                columns[key] = _sparse(mine, first + len(extra))


def _of(column: Any, kept: Array) -> Any:
    """Select rows of a column of `args`."""
    if isinstance(column, Texts):
        return Texts(np.asarray(column.codes)[kept], column.texts, is_json=column.is_json)
    return column[kept]


def _is_arrow(event: SingleEvent) -> bool:
    return event.phase in ("s", "f")


def _unrecorded(begun: int) -> int:
    """Return how many calls are counted without being recorded after so many operators."""
    return 0 if begun == 0 else 4 + begun


def _sparse(values: dict[int, Any], events: int) -> Texts:
    codes = np.full(events, -1)
    texts: dict[str, int] = {}
    for row, value in values.items():
        codes[row] = texts.setdefault(json.dumps(value), len(texts))
    return Texts(codes, [*texts], is_json=True)
