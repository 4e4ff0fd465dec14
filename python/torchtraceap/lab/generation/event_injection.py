"""`injected_traces`: traces with the events of faults between their own.

A block begins where no thread is inside an operator or a call. The host first waits for what it has
queued, so that the GPU is idle when the block begins; what follows on the host comes later by as
much as the block lasts, ranges around the place get longer, and GPU work that was launched behind
it comes as early as its launch and the work before it allow.

Note [Cropped and scaled]: some whole steps of the trace are taken. All times get one factor, and
GPU work is shortened by another, so that whatever waited for it still comes behind it. The twin has
the same steps, factors and path of writing, without the block.

Note [As its neighbors]: an injected event has the arguments of an event of its category, in their
order; its numbers are the next ones, and those behind it move on. Else a fault would be known by
what the file says of its events, and not by what it costs.
"""

from __future__ import annotations

import copy
import json
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.core import Array, union
from torchtraceap.datasets import TYPES
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.generation.event_faults import FILLS, LATENCY_US, Block, Interval
from torchtraceap.lab.generation.faults import EVENT_FAULTS, Fault
from torchtraceap.lab.generation.pairs import NO_FAULT
from torchtraceap.trace import RankTrace, parse_recorded

__all__ = ["Recording", "blend", "inject", "injected_traces"]

Event = dict[str, Any]
Label = dict[str, Any]
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_BUSY = ("cpu_op", "cuda_runtime", "cuda_driver")
_LOOK_ALIKES = 0.25
"""Share of pairs."""
_COST = (0.08, 0.4)
"""Bounds of the cost over the twin's length."""
_PLACES = (1, 2, 4, 8)
_CATEGORIES = {EventKind.CPU_OP: "cpu_op", EventKind.RUNTIME: "cuda_runtime",
               EventKind.DRIVER: "cuda_driver", EventKind.KERNEL: "kernel",
               EventKind.GPU_MEMCPY: "gpu_memcpy", EventKind.GPU_MEMSET: "gpu_memset"}  # fmt: skip
"""Categories of present profilers; older ones had other names."""
_RANGES = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver")
_NUMBERS = {"External id": _RANGES, "Ev Idx": _RANGES, "correlation": _CALLS}
"""Counts of a profiler, with the categories of events that have a number of their own."""
_INPUTS = {"Concrete Inputs": [""], "Input type": ["float"], "Input Strides": [[1]],
           "Input Dims": [[64]]}  # fmt: skip
_RARE = ("Collective name", "Sequence number", "Fwd thread id")
"""Arguments that only some events of a category have."""
_BANDWIDTH = "memory bandwidth (GB/s)"


# ------------------------------------------------------------------------- pairs of traces


def injected_traces(base: Base, size: int, seed: int) -> Iterator[tuple[Label, RankTrace]]:
    """Yield traces of a base with their labels; see Note [Cropped and scaled].

    Args:
        base: One rank of a run.
        size: Number of traces.
        seed: The same seed gives the same traces.

    Raises:
        OptionError: It has no place for any fault.
    """
    known = [
        fault
        for fault in EVENT_FAULTS.values()
        if fault.type in TYPES and fault.type not in base.types
    ]
    rng = random.Random(f"{seed}/injected")
    rng.shuffle(known)
    faults = [fault for fault in known if not fault.look_alike]
    look_alikes = [fault for fault in known if fault.look_alike]
    if not faults:
        raise OptionError(f"{base.name}: has every fault by itself that could be put in")
    for place in range(size // 2):
        is_look_alike = bool(look_alikes) and rng.random() < _LOOK_ALIKES
        pool = look_alikes if is_look_alike else faults
        fault = pool[place % len(pool)]
        yield from _pair(base, fault, place, random.Random(f"{seed}/{place}"), seed)


def _pair(
    base: Base, fault: Fault, place: int, rng: random.Random, seed: int
) -> Iterator[tuple[Label, RankTrace]]:
    recording = _scaled_recording(base.excerpt(rng), rng)
    clean = recording.copy()
    own = {id(event) for event in recording.events}
    intervals = _inject_at_places(recording, fault, rng)
    blend(recording.events, lambda event: id(event) not in own)
    ids = [f"{2 * place:06d}", f"{2 * place + 1:06d}"]
    rng.shuffle(ids)
    parts = []
    for each in (recording, clean):
        trace = each.write()
        for event in trace["traceEvents"]:
            event |= {key: round(float(event[key]), 3) for key in ("ts", "dur") if key in event}
        table = _core.read_trace_bytes(json.dumps(trace).encode(), base.name, threads=1)
        parts.append(RankTrace(table, table.rank))
    faulty, twin = parts
    cost_ns = 0 if fault.look_alike else int((intervals[:, 1] - intervals[:, 0]).sum())
    kind = "event_space" if base.kind == "real_graph" else "lifted_event_space"
    label: Label = {
        "seed": seed, "task": base.task, "source": {"kind": kind, "base": base.name},
        "device": base.device, "world_size": faulty.table.world_size or 1,
        "rank": faulty.table.rank or 0, "strategy": None, "profiler": None,
        "late_rank": None, "role": None, "already": sorted(base.types),
    }  # fmt: skip
    bad: Label = {
        **label, "id": ids[0], "run": ids[0], "twin": ids[1], "form": fault.name,
        "decoy": fault.look_alike, "type": None if fault.look_alike else fault.type,
        "looks_like": fault.type, "cost_ns": cost_ns,
        "severity": cost_ns / max(1, twin.profiled_ns),
        "intervals": [] if fault.look_alike else intervals.tolist(),
    }  # fmt: skip
    both = [(bad, faulty), ({**label, "id": ids[1], "run": ids[1], **NO_FAULT}, twin)]
    yield from sorted(both, key=lambda pair: str(pair[0]["id"]))


def _scaled_recording(part: RankTrace, rng: random.Random) -> Recording:
    """Return a trace as a recording whose first event is at 0. See Note [Cropped and scaled]."""
    table = part.table
    everything = float(np.exp(rng.gauss(0, 0.25)))
    on_gpu = everything * float(np.exp(-abs(rng.gauss(0, 0.3))))
    start_ns = int(table.ts_ns[table.complete].min())
    trace = parse_recorded(_core.trace_json(table), table.path)
    for row, event in enumerate(trace["traceEvents"]):
        category = _CATEGORIES.get(EventKind(int(table.kind[row])))
        if category is not None:
            event["cat"] = category
        if "dur" in event:
            event["ts"] = (int(table.ts_ns[row]) - start_ns) * 1e-3 * everything
            factor = on_gpu if category in _GPU else everything
            event["dur"] = int(table.dur_ns[row]) * 1e-3 * factor
    return Recording(trace)


def _inject_at_places(recording: Recording, fault: Fault, rng: random.Random) -> Array:
    """Inject a fault at some places; return where it costs, int64 `[n, 2]`, ns.

    Raises:
        OptionError: There is no place.
    """
    count = rng.choice(_PLACES)
    share = float(np.exp(rng.uniform(*np.log(_COST))))
    us = recording.span_us() * share / count
    fill = FILLS[fault.name]
    truth: list[Interval] = []
    later = 0.0
    places = recording.places(count)
    if not places:
        raise OptionError("the recorded trace has no place between operators")
    for at, thread in places:
        where = (at + later, thread)
        new, shift = inject(recording, where, lambda block: fill(block, us), not fault.look_alike)
        truth += new
        later += shift
    found = np.rint(np.array(truth, dtype=np.float64).reshape(-1, 2) * 1e3).astype(np.int64)
    return union([found])


# ------------------------------------------------------------------------- one block


class Recording:
    """Events of a trace by time, with what a block needs to know of them."""

    def __init__(self, trace: dict[str, Any]) -> None:
        self.trace = {key: value for key, value in trace.items() if key != "traceEvents"}
        complete = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "dur" in e]
        kept = [e for e in complete if e.get("cat") != "gpu_user_annotation"]
        self.events = sorted(kept, key=lambda e: float(e["ts"]))
        for event in self.events:
            event["ts"], event["dur"] = float(event["ts"]), float(event["dur"])
        self.rest = [e for e in trace["traceEvents"] if e.get("ph") == "M"]
        self.gpu = [e for e in self.events if e.get("cat") in _GPU]
        self.ids = max((_id(e) for e in self.events), default=0)
        streams = [(e["pid"], e["args"]["stream"]) for e in self.gpu]
        if not streams:
            raise OptionError("the trace has no GPU work by the names that profilers give it now")
        self.device: tuple[Any, int] = max(set(streams), key=streams.count)

    def span_us(self) -> float:
        """Return the time from the first event to the end of the last."""
        span: float = max(e["ts"] + e["dur"] for e in self.events) - self.events[0]["ts"]
        return span

    def copy(self) -> Recording:
        """Return a copy whose events can be moved."""
        return copy.deepcopy(self)

    def _steps(self) -> list[Event]:
        return [e for e in self.events if str(e.get("name")).startswith("ProfilerStep#")]

    def steps(self) -> int:
        """Return the number of steps that the profiler marked."""
        return len(self._steps())

    def places(self, count: int) -> list[tuple[float, tuple[Any, Any]]]:
        """Return begins of operators of the main thread, evenly spread over the launches of its
        middle, while no other thread runs one; each with the thread.

        The main thread is that of the profiler's steps, or without steps the one with most
        operators.
        """
        named = self._steps() or [e for e in self.events if e.get("cat") == "cpu_op"]
        threads = [(e["pid"], e["tid"]) for e in named]
        main = max(set(threads), key=threads.count)
        free: list[float] = []
        busy_until = float("-inf")
        for event in self.events:
            if event.get("cat") not in _BUSY:
                continue
            here = (event["pid"], event["tid"]) == main and event["cat"] == "cpu_op"
            if here and event["ts"] > busy_until:
                free.append(event["ts"] - 0.5)
            busy_until = max(busy_until, event["ts"] + event["dur"])
        work = {_id(e) for e in self.gpu}
        calls = [e["ts"] for e in self.events if e.get("cat") in _BUSY and _id(e) in work]
        first, last = calls[len(calls) // 5], calls[-len(calls) // 4]
        free = [place for place in free if first < place < last]
        step = len(free) / (count + 1)
        return [(free[int(step * (i + 1))], main) for i in range(count)] if free else []

    def write(self) -> dict[str, Any]:
        """Return the trace as Kineto writes it."""
        return {**self.trace, "traceEvents": [*self.rest, *self.events]}


def _id(event: Event) -> int:
    value = event.get("args", {}).get("correlation", 0)
    return value if isinstance(value, int) and value < 1 << 31 else 0


def inject(
    recording: Recording,
    place: tuple[float, tuple[Any, Any]],
    fill: Callable[[Block], None],
    drain: bool = True,
) -> tuple[list[Interval], float]:
    """Inject the block that `fill` writes at a place.

    Args:
        recording: The events; they are changed.
        place: One of its places.
        fill: Writes the block.
        drain: True if the host first waits for the GPU; else that still works on what is queued.

    Returns:
        Intervals that it costs, and the delay of the host behind it, in microseconds.
    """
    at, thread = place
    launched = {_id(e): e["ts"] for e in recording.events if e.get("cat") in _BUSY and _id(e)}
    behind = [e for e in recording.gpu if launched.get(_id(e), e["ts"]) >= at]
    moved = {id(e) for e in behind}
    done = max((e["ts"] + e["dur"] for e in recording.gpu if id(e) not in moved), default=at)
    waits = max(done - at, 0.0) if drain else 0.0
    block = Block(at + waits + 1.0, thread, recording.device, recording.ids)
    if waits > 0:
        block.call("cudaDeviceSynchronize", at + 0.2, waits + 0.4)
    if not drain:
        block.gpu = max(done, block.begin)
    fill(block)
    shift = block.host + 1.0 - at
    first = bisect_left([e["ts"] for e in recording.events], at)
    for event in recording.events[first:]:
        if event.get("cat") not in _GPU:
            event["ts"] += shift
    for event in recording.events[:first]:
        if event.get("cat") not in _GPU and event["ts"] + event["dur"] > at:
            event["dur"] += shift
    if behind:  # GPU work comes no earlier than its launch, in the same order
        begin = max(block.gpu, block.host) if block.gpu > block.begin else block.host
        delay = begin - behind[0]["ts"]
        for event in behind:
            launch = launched.get(_id(event), float("-inf"))
            ready = launch + shift if launch >= at else float("-inf")
            delay = max(delay, ready + LATENCY_US - event["ts"])
            event["ts"] += delay
    recording.events = sorted([*recording.events, *block.events], key=lambda e: float(e["ts"]))
    recording.gpu = [e for e in recording.events if e.get("cat") in _GPU]
    recording.ids = block.correlation + 1
    return block.truth, shift


# ------------------------------------------------------------------------- arguments and numbers


def blend(events: Sequence[Event], is_new: Callable[[Event], bool]) -> None:
    """Fill in the arguments of injected events, and move numbers. See Note [As its neighbors].

    Args:
        events: All events with a length, by time; they are changed.
        is_new: Tells whether one was injected; the others are as the profiler wrote them.
    """
    own = [event for event in events if not is_new(event)]
    new = [event for event in events if is_new(event)]
    launches = {e["args"]["correlation"]: e for e in new if e["cat"] in _CALLS}
    samples: dict[tuple[str, str | None], Event] = {}  # by category and name, and the plainest
    for event in own:
        samples.setdefault((event["cat"], event["name"]), event)
        plainest = samples.get((event["cat"], None))
        if plainest is None or _rarity(event) < _rarity(plainest):
            samples[event["cat"], None] = event
    for event in new:
        _fill_arguments(event, samples)
    for key, categories in _NUMBERS.items():
        _number(key, own, [event for event in new if event["cat"] in categories], categories)
    # An operator is never open around a new call, but new ranges and annotations may be.
    ranges = [
        event
        for event in events
        if event["cat"] == "user_annotation" or (event["cat"] in _RANGES and is_new(event))
    ]
    for event in new:  # GPU work has the number of its call, both that of the range around it
        if event["cat"] in _RANGES:
            continue
        args = event["args"]
        call = event if event["cat"] in _CALLS else launches.get(args.get("correlation"))
        if call is None:
            continue
        args["correlation"] = call["args"]["correlation"]
        place = bisect_right(ranges, call["ts"], key=lambda each: float(each["ts"]))
        open_ = (e for e in reversed(ranges[:place]) if e["ts"] + e["dur"] > call["ts"])
        around = next(open_, None)
        number = around["args"].get("External id") if around else None
        if "External id" in args and number is not None:
            args["External id"] = number
        else:
            args.pop("External id", None)


def _rarity(event: Event) -> tuple[int, int]:
    """Return how much an event differs from most of its category."""
    args = event.get("args", {})
    return sum(key in args for key in _RARE), -len(args)


def _fill_arguments(event: Event, samples: dict[tuple[str, str | None], Event]) -> None:
    named = samples.get((event["cat"], event["name"]))
    plainest = samples.get((event["cat"], None), {}).get("args", {})
    stated = event["args"]
    args = dict(named.get("args", {}) if named else plainest)
    if event["cat"] in _CALLS:  # a call by this name may stand outside of all ranges, and this not
        args = {**plainest, **args}
    for key in _RARE:  # holds for that one event alone
        args.pop(key, None)
    if named is None:
        args |= {key: value for key, value in _INPUTS.items() if key in args}
    event["args"] = {**args, **stated}
    if _BANDWIDTH in args and stated.get("bytes"):
        event["args"][_BANDWIDTH] = stated["bytes"] * 1e-3 / event["dur"]


def _number(
    key: str, own: Sequence[Event], new: Sequence[Event], categories: Sequence[str]
) -> None:
    """Give new events of these categories the next numbers, and let all others move on."""
    counted = [event for event in own if event["cat"] in categories and key in event["args"]]
    if not counted:
        return
    times = [event["ts"] for event in counted]
    last = max(event["args"][key] for event in counted) + 1
    ahead: list[int] = []  # the number that each new event takes, before any moved on
    for event in new:
        place = bisect_left(times, event["ts"])
        ahead.append(counted[place]["args"][key] if place < len(counted) else last)
    ahead.sort()
    for event in own:
        if isinstance(number := event.get("args", {}).get(key), int):
            event["args"][key] = number + bisect_right(ahead, number)
    for place, event in enumerate(sorted(new, key=lambda each: float(each["ts"]))):
        event["args"][key] = ahead[place] + place
