"""Columns of the events of all steps and the numbers that link them.

Note [Numbers]: numbers follow Kineto. Operators and ranges of a thread take `External id`s from
blocks of 512, which threads take in turn; `Ev Idx` counts thread by thread, the backward pass
first. Calls have `correlation`s in order of time; the runtime also counts calls that it does not
record, about one per operator and four more (ten public traces; none on AMD GPUs). Arrows from the
forward to the backward pass count the nodes of the backward pass from 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, product
from typing import Any

import numpy as np

from torchtraceap.core import Array
from torchtraceap.lab.prediction.timeline.event_names import CALLBACKS
from torchtraceap.lab.prediction.timeline.profilers import (
    Recording,
    SingleEvent,
    file_members,
    frame_events,
)
from torchtraceap.trace import Texts, event_table

__all__ = ["AUTOGRAD", "MAIN", "EventColumns", "StepEvent"]

MAIN, AUTOGRAD = 0, 1
"""Thread numbers."""
_BLOCK = 512
_FIRST_STEP = 2
"""Number of the first recorded step."""
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
_MISSING = object()
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
        self._is_amd = recording.device.vendor == "amd"
        host = {MAIN: recording.process, AUTOGRAD: recording.autograd_thread}
        self._tracks = [
            (recording.gpu, entry.thread) if entry.is_gpu
            else (recording.process, host[entry.thread])
            for entry in entries
        ]  # fmt: skip
        origin = recording.begin_ns - int(min(entry.begin.min() for entry in entries))
        self._begin = np.stack([entry.begin for entry in entries], axis=1) + origin
        self._end = np.stack([entry.end for entry in entries], axis=1) + origin
        # GPU times are ticks of the clock, up to a nanosecond of conversion.
        tick = _TICK_NS.get(recording.device.vendor, 32)
        is_gpu = np.array([entry.is_gpu for entry in entries])
        gpu = np.flatnonzero([e.is_gpu and e.category != "gpu_user_annotation" for e in entries])
        length = (self._end - self._begin)[:, gpu]
        ticks = np.maximum(np.rint(length / tick), 1).astype(np.int64) * tick
        odd = (self._begin[:, gpu] // 7) % 8 if not self._is_amd else np.full(length.shape, 1)
        self._end[:, gpu] = self._begin[:, gpu] + ticks - (odd == 1)
        # Of the warm-up only GPU work that ends later is recorded.
        self._kept = np.ones(self._begin.shape, dtype=bool)
        warm_up = recording.warm_up
        if warm_up:
            self._kept[:warm_up] = is_gpu & (self._end[:warm_up] > self._begin[warm_up, 0])

    def table(self) -> Any:
        """Return the `EventTable`."""
        entries, steps, recording = self._entries, self._steps, self._recording
        ids, indices, calls = self._numbers()
        extra = self._single_events(calls)
        kept = np.concatenate([self._kept.ravel(), np.ones(len(extra), dtype=bool)])
        starts = np.concatenate([self._begin.ravel(), [each.ts for each in extra]])
        lengths = np.concatenate([(self._end - self._begin).ravel(), [each.dur for each in extra]])
        first = _FIRST_STEP - recording.warm_up
        names = [
            f"{entry.step_name}{first + step}" if entry.step_name else entry.name
            for step in range(steps)
            for entry in entries
        ]
        args: dict[str, Any] = {}
        for key, values in self._arguments(ids, indices, calls, extra).items():
            if isinstance(values, Texts):
                codes = np.asarray(values.codes)[kept]
                args[key] = Texts(codes, values.texts, is_json=values.is_json)
            else:
                args[key] = values[kept]

        def column(values: list[Any], more: Iterable[Any]) -> list[Any]:
            return [*compress([*values, *more], kept)]

        none = [None] * len(names)
        return event_table(
            column(names, (each.name for each in extra)),
            starts[kept].astype(np.int64),
            lengths[kept].astype(np.int64),
            category=column(
                [entry.category for entry in entries] * steps, (each.category for each in extra)
            ),
            pid=column([pid for pid, _ in self._tracks] * steps, (each.pid for each in extra)),
            tid=column([tid for _, tid in self._tracks] * steps, (each.tid for each in extra)),
            phase=column(["X"] * len(names), (each.phase for each in extra)),
            args=args,
            members={
                "id": column(none, (e.args.get("id") if _is_arrow(e) else None for e in extra)),
                "bp": column(none, ("e" if each.phase == "f" else None for each in extra)),
                "s": column(none, (each.scope for each in extra)),
            },
            metadata=file_members(recording),
            path="predicted.json.gz",  # stands for the file in messages
        )

    # ------------------------------------------------------------------------- numbers

    def _in_time(self, wanted: Sequence[bool]) -> tuple[Array, Array]:
        """Return steps and entries of the wanted events by begin, enclosing ones first."""
        chosen = np.flatnonzero(wanted)
        begin, end = self._begin[:, chosen].ravel(), self._end[:, chosen].ravel()
        order = np.lexsort((np.arange(len(begin)), -end, begin))
        return order // len(chosen), chosen[order % len(chosen)]

    def _numbers(self) -> tuple[Array, Array, Array]:
        """Return the numbers that Note [Numbers] describes.

        Returns:
            External ids by number within a step, int64 `[steps, ops + 1]`; the Ev Idx of operators
            and ranges, int64 `[steps, entries]`; and correlations by number within a step, and of
            the final call, int64 `[steps, links + 1]`.
        """
        is_op = [entry.is_op for entry in self._entries]
        steps, places = self._in_time(is_op)
        ids = np.zeros((self._steps, self._ops + 1), dtype=np.int64)
        blocks = 0
        left: dict[int, list[int]] = {}
        for step, place in zip(steps.tolist(), places.tolist(), strict=True):
            entry = self._entries[place]
            own = left.setdefault(entry.thread, [])
            if not own:
                own += range((blocks + 1) * _BLOCK, blocks * _BLOCK, -1)
                blocks += 1
            ids[step, entry.op] = own.pop()
        indices = np.zeros(self._begin.shape, dtype=np.int64)
        thread = np.array([self._entries[place].thread for place in places.tolist()])
        order = np.argsort(thread != AUTOGRAD, kind="stable")
        indices[steps[order], places[order]] = np.arange(len(order))
        calls = np.zeros((self._steps, self._links + 1), dtype=np.int64)
        number, begun = self._recording.first_call, 0
        steps, places = self._in_time([entry.is_op or entry.is_call for entry in self._entries])
        for step, place in zip(steps.tolist(), places.tolist(), strict=True):
            if self._entries[place].is_call:
                number += 1 if self._is_amd or not begun else 5 + begun
                begun = 0
                calls[step, self._entries[place].link] = number
            else:
                begun += 1
        calls[-1, self._links] = number + 40
        return ids, indices, calls

    # ------------------------------------------------------------------------- single events

    def _single_events(self, calls: Array) -> list[SingleEvent]:
        """Return the final synchronization, arrows, and the frame of the file."""
        entries, recording = self._entries, self._recording
        host = [place for place, entry in enumerate(entries) if not entry.is_gpu]
        begin = int(self._end[-1, host].max()) + 150_000
        end = max(int(self._end.max()), begin) + 6_000
        name = f"{'hip' if self._is_amd else 'cuda'}DeviceSynchronize"
        args: dict[str, Any] = {"correlation": int(calls[-1, self._links])}
        if not self._is_amd:
            args["cbid"] = CALLBACKS[name]
        pid = recording.process
        last = SingleEvent(name, "X", pid, pid, begin, end - begin, "cuda_runtime", args)
        streams = sorted({entry.thread for entry in entries if entry.is_gpu})
        has_backward = any(e.thread == AUTOGRAD and not e.is_gpu for e in entries)
        begin, end = int(self._begin[self._kept].min()), int(self._end[self._kept].max()) + 200_000
        frame = frame_events(recording, begin, end, has_backward, streams)
        return [last, *self._arrows(calls), *frame]

    def _arrows(self, calls: Array) -> Iterator[SingleEvent]:
        """Yield arrows from launches to work, and from the innermost operator with a sequence
        number to its backward node."""
        launches: dict[int | None, int] = {}
        forward: dict[int, int] = {}
        nodes: dict[int, int] = {}
        for place, entry in enumerate(self._entries):
            if entry.is_call:
                launches[entry.link] = place
            if entry.sequence is not None and entry.thread != AUTOGRAD:
                forward[entry.sequence] = place
            elif entry.sequence is not None and entry.is_node:
                nodes[entry.sequence] = place
        works = [(e.link, place) for place, e in enumerate(self._entries)
                 if e.link is not None and e.is_gpu]  # fmt: skip
        steps = range(self._recording.warm_up, self._steps)
        for step in steps:
            for link, target in works:
                number = int(calls[step, link])
                yield from self._arrow("ac2g", number, step, launches[link], target)
        pairs = [(forward[each], place) for each, place in nodes.items() if each in forward]
        pairs.sort(key=lambda pair: int(self._begin[0, pair[1]]))
        for number, (step, (source, target)) in enumerate(product(steps, pairs), start=1):
            yield from self._arrow("fwdbwd", number, step, source, target)

    def _arrow(
        self, name: str, number: int, step: int, source: int, target: int
    ) -> Iterator[SingleEvent]:
        for phase, place in (("s", source), ("f", target)):
            begin = int(self._begin[step, place])
            yield SingleEvent(name, phase, *self._tracks[place], begin, 0, name, {"id": number})

    # ------------------------------------------------------------------------- arguments

    def _arguments(
        self, ids: Array, indices: Array, calls: Array, extra: Sequence[SingleEvent]
    ) -> dict[str, Any]:
        """Return the columns of `args`, `[steps * entries + extra]`, in Kineto's order."""
        entries, recording, more = self._entries, self._recording, len(extra)

        def column(values: Array, known: Sequence[bool]) -> Any:
            every = np.concatenate([values.ravel(), np.zeros(more, dtype=values.dtype)])
            missing = np.tile(~np.array(known, dtype=bool), self._steps)
            return np.ma.MaskedArray(every, np.concatenate([missing, np.ones(more, dtype=bool)]))

        def by_number(numbers: Array, own: Sequence[int | None]) -> Any:
            places = np.array([0 if each is None else each for each in own], dtype=np.int64)
            return column(numbers[:, places], [each is not None for each in own])

        is_op = [entry.is_op for entry in entries]
        linked = [entry.link if entry.is_call or entry.is_gpu else None for entry in entries]
        # Sequence numbers continue from earlier steps of the process.
        sequences = [entry.sequence for entry in entries if entry.sequence is not None]
        least, most = min(sequences, default=0), max(sequences, default=-1)
        own = np.array([(e.sequence or least) - least for e in entries], dtype=np.int64)
        steps = _FIRST_STEP - recording.warm_up + np.arange(self._steps)
        callbacks = [CALLBACKS.get(e.name, 0) if e.is_call else 0 for e in entries]
        moved = np.array([e.args.get("bytes", 0) if e.is_gpu else 0 for e in entries])
        columns: dict[str, Any] = {
            "External id": by_number(ids, [entry.op for entry in entries]),
            "Record function id": column(np.zeros_like(self._begin), is_op),
            "Ev Idx": column(indices, is_op),
            "correlation": by_number(calls, linked),
            "Sequence number": column(
                own + (most + 1 - least) * steps[:, None],
                [entry.sequence is not None for entry in entries],
            ),
            "cbid": column(
                np.tile(np.array(callbacks, dtype=np.int64), (self._steps, 1)),
                [number > 0 for number in callbacks],
            ),
            "memory bandwidth (GB/s)": column(
                moved / np.maximum(self._end - self._begin, 1),
                [entry.category in ("gpu_memcpy", "gpu_memset") for entry in entries],
            ),
        }
        for key in dict.fromkeys(key for entry in entries for key in entry.args):
            codes, texts = _encode_json([entry.args.get(key, _MISSING) for entry in entries])
            every = np.concatenate([np.tile(codes, self._steps), np.full(more, -1)])
            columns[key] = Texts(every, texts, is_json=True)
        first = len(entries) * self._steps
        rows = [(first + i, each.args) for i, each in enumerate(extra) if not _is_arrow(each)]
        for key in dict.fromkeys(key for _, args in rows for key in args):
            if key in columns:
                for row, args in rows:
                    if key in args:
                        columns[key][row] = args[key]
            else:
                own_codes, texts = _encode_json([args.get(key, _MISSING) for _, args in rows])
                codes = np.full(first + more, -1)
                codes[[row for row, _ in rows]] = own_codes
                columns[key] = Texts(codes, texts, is_json=True)
        order = {key: place for place, key in enumerate(_ORDER)}
        return dict(sorted(columns.items(), key=lambda item: order.get(item[0], len(_ORDER))))


def _encode_json(values: Sequence[Any]) -> tuple[Array, list[str]]:
    """Return the code of each value, -1 where it is missing, and the JSON texts by code."""
    texts: dict[str, int] = {}
    codes = [
        -1 if value is _MISSING else texts.setdefault(json.dumps(value), len(texts))
        for value in values
    ]
    return np.array(codes), [*texts]


def _is_arrow(event: SingleEvent) -> bool:
    return event.phase in ("s", "f")
