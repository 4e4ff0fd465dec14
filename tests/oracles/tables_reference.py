"""The definitions of the tables once more, in plain Python over `json`: slow, short, ours to trust.

Like `interface_reference`, and for the same reason, nothing of the package is used here. All times
are integer nanoseconds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from .interface_reference import (
    CALL,
    COMMUNICATION,
    GPU,
    argument,
    complete,
    gpu_class,
    length,
    load,
    minus,
    union,
)

Event = dict[str, Any]
OPERATOR = {"cpu_op", "Operator"}
ANNOTATION = {"user_annotation", "Operator", "cpu_op"}
STEP = re.compile(r"ProfilerStep#\d+$")

HIDES = ("compute", "communication", "memcpy")  # each hides those after it
MICROSECOND = 1000


def duration(event: Event) -> int:
    length_ns: int = event["end"] - event["start"]
    return length_ns


def interval(event: Event) -> tuple[int, int]:
    return event["start"], event["end"]


def _depth(event: Event) -> tuple[int, int, int]:
    """Operators that begin and end together opened in the order of their ids."""
    return event["start"], -event["end"], argument(event, "External id") or 0


class Reference:
    """One file: its GPU events, each with its launch call and the operator above that."""

    def __init__(self, path: Path) -> None:
        self.events = complete(load(path)["traceEvents"])
        self.gpu = [e for e in self.events if e.get("cat") in GPU]
        self.gpu.sort(key=lambda e: (e["start"], -e["end"]))
        self._calls: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.get("cat") in CALL and argument(event, "correlation") is not None:
                self._calls[argument(event, "correlation")].append(event)
        self._threads: dict[Any, list[Event]] = defaultdict(list)
        self._external: dict[int, Event] = {}
        for event in self.events:
            if event.get("cat") in OPERATOR:
                self._threads[event["pid"], event["tid"]].append(event)
                self._external.setdefault(argument(event, "External id"), event)
        for ops in self._threads.values():
            ops.sort(key=_depth)

    def has_one_call_each(self) -> bool:
        """No correlation id is carried by several calls, so that no rule of choice is needed."""
        return all(len(calls) == 1 for calls in self._calls.values())

    def call_of(self, event: Event) -> Event | None:
        """The launch call; None for an orphan."""
        calls = self._calls.get(argument(event, "correlation"), [])
        return calls[0] if calls else None

    def owner_of(self, event: Event) -> Event | None:
        """The innermost operator around the launch call, else that of its External id, else it."""
        call = self.call_of(event)
        if call is None:
            return None
        ops = self._threads[call["pid"], call["tid"]]
        begun = bisect_right(ops, call["start"], key=itemgetter("start"))
        for op in reversed(ops[:begun]):
            # In whole microseconds a call may seem to end after its operator.
            late = MICROSECOND if call["start"] < op["end"] else 0
            if call["end"] <= op["end"] + late:
                return op
        return self._external.get(argument(call, "External id"), call)


def grouped(events: Iterable[Event], key: Callable[[Event], Any]) -> dict[Any, list[Event]]:
    groups: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    return groups


def exclusive_by_class(gpu: list[Event]) -> dict[str, int]:
    """Every instant belongs to one class: compute hides communication, which hides copies."""
    taken: list[tuple[int, int]] = []
    out = {}
    for name in HIDES:
        own = union([interval(e) for e in gpu if gpu_class(e) == name])
        out[name] = length(minus(own, taken))
        taken = union([*taken, *own])
    return out


def kernels_by_name(reference: Reference) -> dict[str, tuple[int, int, int, int]]:
    """GPU events by name: count, sum, least and greatest duration."""
    out = {}
    for name, events in grouped(reference.gpu, lambda e: e["name"]).items():
        lengths = [duration(e) for e in events]
        out[name] = len(lengths), sum(lengths), min(lengths), max(lengths)
    return out


def own_gpu_by_operator(reference: Reference) -> dict[str, int]:
    """Per call the union of the GPU events that it owns, summed by name; None has the orphans."""
    owned: dict[Any, list[Event]] = defaultdict(list)
    owners = {}
    for event in reference.gpu:
        owner = reference.owner_of(event)
        key = ("orphan", id(event)) if owner is None else ("call", id(owner))
        owned[key].append(event)
        owners[key] = None if owner is None else owner["name"]
    total: Counter[Any] = Counter()
    for key, events in owned.items():
        total[owners[key]] += length(union([interval(e) for e in events]))
    return dict(total)


def launches_by_call(reference: Reference) -> dict[str, tuple[int, int, int]]:
    """Calls that launched something by name: count, time on the host, sum of their delays.

    A delay is what passes between the end of the call and its first GPU event, at least 0.
    """
    first: dict[int, Event] = {}
    calls: dict[int, Event] = {}
    for event in reference.gpu:
        call = reference.call_of(event)
        if call is not None:
            first.setdefault(id(call), event)
            calls[id(call)] = call
    out: dict[str, tuple[int, int, int]] = {}
    for name, group in grouped(calls.values(), lambda e: e["name"]).items():
        delays = [max(0, first[id(call)]["start"] - call["end"]) for call in group]
        out[name] = len(group), sum(map(duration, group)), sum(delays)
    return out


def bytes_of(reference: Reference, copy: Event) -> int:
    """As the copy says, else as its call does (ROCm)."""
    call = reference.call_of(copy)
    said = (argument(copy, "bytes"), *(argument(call, k) for k in ("bytes", "size") if call))
    return next((int(size) for size in said if size is not None), 0)


def copies_by_direction(reference: Reference) -> dict[str, tuple[int, int, int]]:
    """Copies named `Memcpy HtoD (...)`: count, bytes, time."""
    copies = [e for e in reference.gpu if e["name"].startswith("Memcpy ")]
    return {
        direction: (
            len(events),
            sum(bytes_of(reference, e) for e in events),
            sum(map(duration, events)),
        )
        for direction, events in grouped(copies, lambda e: e["name"].split()[1]).items()
    }


def whole_steps(reference: Reference) -> list[int]:
    """Durations of the profiled steps; the first and last of more than two are left out."""
    steps: dict[str, Event] = {}
    for event in reference.events:
        if STEP.match(str(event.get("name"))) and event.get("cat") in ANNOTATION:
            steps.setdefault(event["name"], event)
    lengths = [duration(e) for e in sorted(steps.values(), key=lambda e: e["start"])]
    return lengths[1:-1] if len(lengths) > 2 else lengths


def step_time_difference(before: list[Reference], after: list[Reference]) -> float:
    """Median of the whole steps of all ranks, after minus before."""
    pooled = [[t for part in side for t in whole_steps(part)] for side in (after, before)]
    return median(pooled[0]) - median(pooled[1])


def waits_and_transfers(ranks: list[Reference]) -> list[tuple[list[int], list[int]]]:
    """Of ranks that run equal sequences of collectives: wait and transfer of each rank.

    A part that begins before the last rank has come waits until then, at the most for its duration.
    """
    parts = [[e for e in rank.gpu if COMMUNICATION.search(e["name"])] for rank in ranks]
    out = []
    for meeting in zip(*parts, strict=True):
        latest = max(e["start"] for e in meeting)
        waits = [min(duration(e), latest - e["start"]) for e in meeting]
        out.append((waits, [duration(e) - w for e, w in zip(meeting, waits, strict=True)]))
    return out
