"""Puts a block of events into a recorded trace, at a known place and with a known cost.

A block begins where no thread is inside an operator or a call. The host first waits for what it has
queued, so that the GPU is idle when the block begins; what follows on the host comes later by as
much as the block lasts, ranges around the place get longer, and GPU work that was launched behind
it comes as early as its launch and the work before it allow. `injected_forms.py` has blocks.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtraceap.errors import OptionError

__all__ = ["Block", "Interval", "Recording", "plant"]

Event = dict[str, Any]
Interval = tuple[float, float]
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_BUSY = ("cpu_op", "cuda_runtime", "cuda_driver")
_LATENCY_US = 8.0


@dataclass
class Block:
    """Events from `begin` on; times in microseconds. `host` and `gpu` say how far each has come."""

    begin: float
    thread: tuple[Any, Any]
    device: tuple[Any, int]
    correlation: int
    host: float = 0.0
    gpu: float = 0.0
    events: list[Event] = field(default_factory=list)
    truth: list[Interval] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = self.gpu = self.begin

    def range(self, name: str, begin: float, end: float, cat: str = "user_annotation") -> None:
        """An event of the host."""
        pid, tid = self.thread
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": {}}
        self.events.append({**event, "ts": begin, "dur": end - begin})

    def op(self, name: str, dur: float, lead: float = 1.0) -> float:
        """An operator behind the last one; returns its begin and moves on to its end."""
        begin = self.host + lead
        self.range(name, begin, begin + dur, "cpu_op")
        self.host = begin + dur
        return begin

    def call(self, name: str, begin: float, dur: float) -> int:
        """A call of the runtime; returns its correlation id."""
        self.correlation += 1
        self.range(name, begin, begin + dur, "cuda_runtime")
        self.events[-1]["args"] = {"correlation": self.correlation}
        return self.correlation

    def work(
        self, name: str, begin: float, dur: float, cat: str = "kernel", stream: int = 0, **args: Any
    ) -> Interval:
        """GPU work of the last call; on the main stream, or one so many numbers from it."""
        pid, main = self.device
        where = {"device": pid, "stream": main + stream, "correlation": self.correlation}
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": main + stream}
        self.events.append({**event, "ts": begin, "dur": dur, "args": {**where, **args}})
        self.gpu = max(self.gpu, begin + dur)
        return begin, begin + dur

    def kernel(self, name: str, dur: float, *, op: str = "aten::mul", **args: Any) -> Interval:
        """An operator that launches a kernel behind what is queued."""
        begin = self.op(op, 6.0)
        self.call("cudaLaunchKernel", begin + 1, 4)
        return self.work(name, max(begin + 1 + _LATENCY_US, self.gpu), dur, **args)

    def waste(self, begin: float, end: float) -> None:
        """This time would not pass without the fault."""
        self.truth.append((begin, end))


class Recording:
    """Events of a trace by time, with what a block has to know of them."""

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
        """From the first event to the end of the last."""
        span: float = max(e["ts"] + e["dur"] for e in self.events) - self.events[0]["ts"]
        return span

    def copy(self) -> Recording:
        """The same events, to be moved."""
        return copy.deepcopy(self)

    def steps(self) -> int:
        """How many steps the profiler marked."""
        return sum(str(e.get("name")).startswith("ProfilerStep#") for e in self.events)

    def main_thread(self) -> tuple[Any, Any]:
        """The thread of the profiler's steps; without steps the one with most operators."""
        steps = [e for e in self.events if str(e.get("name")).startswith("ProfilerStep#")]
        named = steps or [e for e in self.events if e.get("cat") == "cpu_op"]
        threads = [(e["pid"], e["tid"]) for e in named]
        return max(set(threads), key=threads.count)

    def places(self, count: int) -> list[tuple[float, tuple[Any, Any]]]:
        """Begins of operators of the main thread while no other thread runs one, evenly spread over
        the launches of its middle; each with the thread."""
        main = self.main_thread()
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
        """As Kineto writes it."""
        return {**self.trace, "traceEvents": [*self.rest, *self.events]}


def _id(event: Event) -> int:
    value = event.get("args", {}).get("correlation", 0)
    return value if isinstance(value, int) and value < 1 << 31 else 0


def plant(
    recording: Recording,
    place: tuple[float, tuple[Any, Any]],
    fill: Callable[[Block], None],
    drain: bool = True,
) -> tuple[list[Interval], float]:
    """Puts the block that `fill` writes at the place; returns what it costs, as intervals, and by
    how much the host is later behind it, in microseconds.

    Without `drain` the host does not wait first: the GPU still works on what is queued.
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
    begins = [e["ts"] for e in recording.events]
    for event in recording.events[bisect_left(begins, at) :]:
        if id(event) not in moved and event.get("cat") not in _GPU:
            event["ts"] += shift
    for event in recording.events[: bisect_left(begins, at)]:
        if event.get("cat") not in _GPU and event["ts"] + event["dur"] > at:
            event["dur"] += shift
    _follow(behind, {key: ts + shift for key, ts in launched.items() if ts >= at}, block)
    _insert(recording, block)
    return block.truth, shift


def _follow(behind: Sequence[Event], launched: dict[int, float], block: Block) -> None:
    """Moves GPU work behind the block: no earlier than its launch, in the same order."""
    if not behind:
        return
    begin = max(block.gpu, block.host) if block.gpu > block.begin else block.host
    delay = begin - behind[0]["ts"]
    for event in behind:
        ready = launched.get(_id(event), float("-inf")) + _LATENCY_US
        delay = max(delay, ready - event["ts"])
        event["ts"] += delay


def _insert(recording: Recording, block: Block) -> None:
    recording.events = sorted([*recording.events, *block.events], key=lambda e: float(e["ts"]))
    recording.gpu = [e for e in recording.events if e.get("cat") in _GPU]
    recording.ids = block.correlation + 1
