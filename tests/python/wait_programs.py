"""Programs on several streams whose record and wait sites are known, as traces without sync rows.

A host issues launches, event records and waits; streams run what they got in order, waits included,
with random durations, launch delays and gaps. The truth of a wait is the last work launched on the
recorded stream before the record, and the next work launched on the waiting stream.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
MAIN, SIDE, OTHER, COMM, COPY = 7, 20, 21, 24, 28


@dataclass
class Work:
    """GPU work by correlation id."""

    correlation: int
    stream: int
    end_us: float


@dataclass
class Program:
    """Issues calls and keeps the clock of host and streams."""

    rng: random.Random
    host_us: float = 0.0
    events: list[Event] = field(default_factory=list)
    truth: set[tuple[int, int]] = field(default_factory=set)
    """(correlation of the source, of the destination)."""
    _last: dict[int, Work] = field(default_factory=dict)
    _free_us: dict[int, float] = field(default_factory=dict)
    _awaited: dict[int, list[Work]] = field(default_factory=dict)
    _correlation: int = 0
    thread: int = 1
    scale: float = 1.0

    def call(self, name: str, mean_us: float, correlation: int) -> None:
        length = mean_us * self.rng.uniform(0.7, 1.6)
        self._add("cuda_runtime", name, self.host_us, length, 1, self.thread, correlation)
        self.host_us += length

    def op(self, mean_us: float) -> None:
        """Host work between calls."""
        self.host_us += mean_us * self.rng.expovariate(1)

    def launch(self, stream: int, mean_us: float, name: str = "gemm") -> None:
        self.op(8)
        self._correlation += 1
        called = self.host_us
        self.call("cudaLaunchKernel", 5, self._correlation)
        start = max(called + self.rng.uniform(5, 9), self._free_us.get(stream, 0.0))
        for source in self._awaited.pop(stream, []):
            start = max(start, source.end_us + self.rng.uniform(1.0, 3.0))
            if source.stream != stream:
                self.truth.add((source.correlation, self._correlation))
        length = self.scale * mean_us * self.rng.uniform(0.5, 2.0)
        self._add("kernel", name, start, length, 0, stream, self._correlation, stream)
        self._free_us[stream] = start + length + self.rng.uniform(0.6, 1.5)
        self._last[stream] = Work(self._correlation, stream, start + length)

    def record(self, stream: int) -> Work | None:
        self._correlation += 1
        self.call("cudaEventRecord", 1.5, self._correlation)
        return self._last.get(stream)

    def wait(self, stream: int, event: Work | None) -> None:
        self._correlation += 1
        self.call("cudaStreamWaitEvent", 1.5, self._correlation)
        if event is not None:
            self._awaited.setdefault(stream, []).append(event)

    def wait_stream(self, waiting: int, source: int) -> None:
        """torch.cuda.Stream.wait_stream."""
        self.wait(waiting, self.record(source))

    def _add(
        self,
        category: str,
        name: str,
        ts: float,
        dur: float,
        pid: int,
        tid: int,
        correlation: int,
        stream: int | None = None,
    ) -> None:
        args = {"correlation": correlation}
        if stream is not None:
            args |= {"device": 0, "stream": stream}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
            | {"ts": round(ts, 3), "dur": round(dur, 3), "args": args}
        )


def all_reduce(program: Program) -> Work | None:
    """c10d: the communication stream waits for the current one, an event stands for the work."""
    program.wait_stream(COMM, MAIN)
    program.launch(COMM, 120, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    return program.record(COMM)


def side_branch(program: Program) -> None:
    program.wait_stream(SIDE, MAIN)
    for _ in range(program.rng.randint(1, 3)):
        program.launch(SIDE, 40)
    if program.rng.random() < 0.5:
        program.launch(MAIN, 30)
    program.wait_stream(MAIN, SIDE)


def backward_with_buckets(program: Program) -> None:
    pending = []
    for _ in range(program.rng.randint(2, 4)):
        for _ in range(program.rng.randint(1, 5)):
            program.launch(MAIN, 40)
        pending.append(all_reduce(program))
    for work in pending:
        program.wait(MAIN, work)
    program.launch(MAIN, 20, "multi_tensor_apply")


def blocking_collective(program: Program) -> None:
    program.wait(MAIN, all_reduce(program))


def prefetch(program: Program) -> None:
    program.launch(COPY, 60, "Memcpy HtoD")
    loaded = program.record(COPY)
    for _ in range(program.rng.randint(1, 6)):
        program.launch(MAIN, 30)
    program.wait(MAIN, loaded)


def plain(program: Program) -> None:
    for _ in range(program.rng.randint(1, 6)):
        program.launch(MAIN, program.rng.choice([5, 30, 90]))


def two_branches(program: Program) -> None:
    """The second branch begins while the thread's last launch was on the first."""
    program.wait_stream(SIDE, MAIN)
    program.launch(SIDE, 60)
    program.wait_stream(OTHER, MAIN)
    program.launch(OTHER, 60)
    program.launch(MAIN, 30)
    program.wait_stream(MAIN, SIDE)
    program.wait_stream(MAIN, OTHER)


def timed(program: Program) -> None:
    """Events that nobody waits for, around work on either stream."""
    program.record(MAIN)
    program.launch(MAIN, 50)
    program.record(MAIN)
    if program.rng.random() < 0.5:
        program.wait_stream(SIDE, MAIN)
        program.launch(SIDE, 30)
        program.record(SIDE)


def early_wait(program: Program) -> None:
    """The side stream waits now and gets its work later."""
    program.wait_stream(SIDE, MAIN)
    for _ in range(program.rng.randint(1, 3)):
        program.launch(MAIN, 40)
    program.launch(SIDE, 40)
    program.wait_stream(MAIN, SIDE)


def backward_thread(program: Program) -> None:
    """Buckets are reduced from the thread of the autograd engine."""
    program.thread = 2
    backward_with_buckets(program)
    program.thread = 1


PATTERNS = (
    side_branch,
    backward_with_buckets,
    blocking_collective,
    prefetch,
    two_branches,
    timed,
    early_wait,
    backward_thread,
    plain,
    plain,
)


def make_program(seed: int, patterns: int = 12, scale: float = 1.0) -> Program:
    """A random sequence of what training programs do; `scale` times the GPU's work."""
    program = Program(random.Random(seed), scale=scale)
    plain(program)
    for _ in range(patterns):
        program.rng.choice(PATTERNS)(program)
        program.launch(MAIN, 30)
    return program
