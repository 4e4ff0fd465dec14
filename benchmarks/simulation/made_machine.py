"""A machine that runs made training programs and records them as the profiler would.

Host threads, streams, ranks that meet in collectives, and worker processes, as a discrete-event
simulation. It shares nothing with the package: what a program takes here, with a fault and without
it, is a truth that predictions from its trace can be held against. All times are in microseconds.

A process is a generator that yields how long it sleeps, or a `Signal` that it waits for:

    machine = Machine(seed=1, ranks=1, link=Link(), noise=Noise())
    def program(rank):
        main = rank.thread(1)
        for number in rank.steps(main, 6):
            with main.range("aten::mm"):
                yield from main.launch(7, "gemm", 500)
            yield from main.synchronize()
    machine.run(program, first_recorded=2)
    machine.documents()        # one trace for each rank
    machine.step_us()          # what a step took, from end of work to end of work
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from typing import Any

__all__ = [
    "Engine",
    "Link",
    "Machine",
    "Noise",
    "Process",
    "Rank",
    "Signal",
    "Stall",
    "Thread",
    "Work",
]

Event = dict[str, Any]
QUEUE_DEPTH = 1021
"""Launches that a stream takes before a launch call has to wait (docs/simulation_edits.md)."""
NCCL_STREAM = 20
TICK_US = 0.02


class Signal:
    """Something that happens once."""

    __slots__ = ("time_us", "waiting")

    def __init__(self) -> None:
        self.time_us: float | None = None
        self.waiting: list[Callable[[], None]] = []


Process = Generator[float | Signal, None, None]


class Engine:
    """Time, and who waits for what."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def call_in(self, us: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_us + max(us, 0.0), next(self._number), then))

    def fire(self, signal: Signal) -> None:
        signal.time_us = self.now_us
        for then in signal.waiting:
            self.call_in(0, then)
        signal.waiting = []

    def when(self, signal: Signal, then: Callable[[], None]) -> None:
        if signal.time_us is None:
            signal.waiting.append(then)
        else:
            self.call_in(0, then)

    def start(self, process: Process) -> Signal:
        """Runs a process beside the others; the signal is its end."""
        ended = Signal()
        self.call_in(0, partial(self._go_on, process, ended))
        return ended

    def _go_on(self, process: Process, ended: Signal) -> None:
        try:
            wish = next(process)
        except StopIteration:
            self.fire(ended)
            return
        again = partial(self._go_on, process, ended)
        if isinstance(wish, Signal):
            self.when(wish, again)
        else:
            self.call_in(wish, again)

    def run(self) -> None:
        while self._queue:
            self.now_us, _, then = heapq.heappop(self._queue)
            then()


@dataclass(frozen=True)
class Noise:
    """How much times vary: coefficients of variation of log-normal factors."""

    host: float = 0.08
    gpu: float = 0.02
    hiccups: float = 0.002
    """Share of stretches of host work that take `HICCUP` times as long."""


HICCUP = 8.0


@dataclass(frozen=True)
class Link:
    """What GPU work costs beside itself."""

    launch_us: float = 5.0
    """Of the call on the host."""
    latency_us: float = 3.0
    """From the end of the call to the start of the work, if nothing holds it up."""
    gap_us: float = 1.0
    """Between two works of a stream."""
    return_us: float = 6.0
    """From the end of the work to the return of the call that waits for it."""
    beside_collectives: float = 1.0
    """How many times as long computation takes while a collective moves data."""


@dataclass
class Stall:
    """Something that takes longer, once. What `kind` means by `number`, in a step of a rank:

    - "host": the training thread stands still before its launch of that number;
    - "sync": there it waits for the device;
    - "late": the work of that launch starts later than it could;
    - "work": that launch's work takes longer, a collective on every rank;
    - "fetch": the batch of the step takes longer to make (`number` is ignored).
    """

    kind: str
    step: int
    number: int = 0
    us: float = 0.0
    rank: int = 0
    found: Event | None = None
    """The row that shows it: the next call, the waiting call, or the GPU work."""


class Work:
    """One piece of GPU work."""

    def __init__(self, name: str, us: float, row: Event, meeting: Meeting | None = None) -> None:
        self.name, self.us, self.row, self.meeting = name, us, row, meeting
        self.gap_us: float | None = None
        self.arrived, self.started, self.ended = Signal(), Signal(), Signal()
        self.needs: list[Signal] = []

    def lengthen(self, us: float) -> None:
        self.us += us
        if self.meeting is not None:
            self.meeting.us += us


class Meeting:
    """A collective: data moves once every member has begun."""

    def __init__(self, members: int, us: float, contended: float = 1.0) -> None:
        self.members, self.us, self.contended = members, us, contended
        """`contended`: how many times as long data moves while a member computes."""
        self.begun: list[tuple[Gpu, Work]] = []
        self.left_us = self.since_us = 0.0
        self.version = 0

    def slowdown(self) -> float:
        return self.contended if any(gpu.computing for gpu, _ in self.begun) else 1.0


class Gpu:
    """Runs work of several streams; computation and collectives that move data slow each other
    down."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine, self._link = engine, link
        self._moving: list[Meeting] = []
        self._left: dict[Work, float] = {}
        self._since: dict[Work, float] = {}
        self._version: Counter[Work] = Counter()

    @property
    def computing(self) -> bool:
        return any(work.row["cat"] == "kernel" for work in self._left)

    def begin(self, work: Work) -> None:
        self._engine.fire(work.started)
        if work.meeting is not None:
            self._meet(work, work.meeting)
            return
        with self._repaced():
            self._left[work], self._since[work] = work.us, self._engine.now_us
        self._schedule(work)

    def _slowdown(self) -> float:
        return self._link.beside_collectives if self._moving else 1.0

    def _schedule(self, work: Work) -> None:
        self._version[work] += 1
        then = partial(self._finish, work, self._version[work])
        self._engine.call_in(self._left[work] * self._slowdown(), then)

    def _finish(self, work: Work, version: int) -> None:
        if self._version[work] == version:
            with self._repaced():
                del self._left[work], self._since[work], self._version[work]
            self._engine.fire(work.ended)

    @contextmanager
    def _repaced(self) -> Iterator[None]:
        """Collectives go on at another pace where computation begins or ends."""
        before = [(meeting, meeting.slowdown()) for meeting in self._moving]
        yield
        for meeting, slowdown in before:
            if meeting.slowdown() != slowdown:
                meeting.left_us -= (self._engine.now_us - meeting.since_us) / slowdown
                self._move(meeting)

    def _change_pace(self, moving: list[Meeting]) -> None:
        """A collective begins or ends to move data."""
        before = self._slowdown()
        self._moving = moving
        for work in [*self._left] if self._slowdown() != before else ():
            if work.row["cat"] == "kernel":
                self._left[work] -= (self._engine.now_us - self._since[work]) / before
                self._since[work] = self._engine.now_us
                self._schedule(work)

    def _meet(self, work: Work, meeting: Meeting) -> None:
        meeting.begun.append((self, work))
        if len(meeting.begun) < meeting.members:
            return
        for gpu, _ in meeting.begun:
            gpu._change_pace([*gpu._moving, meeting])
        meeting.left_us = meeting.us
        self._move(meeting)

    def _move(self, meeting: Meeting) -> None:
        meeting.since_us = self._engine.now_us
        meeting.version += 1
        then = partial(self._part, meeting, meeting.version)
        self._engine.call_in(meeting.left_us * meeting.slowdown(), then)

    def _part(self, meeting: Meeting, version: int) -> None:
        if meeting.version != version:
            return
        for gpu, work in meeting.begun:
            gpu._change_pace([other for other in gpu._moving if other is not meeting])
            self._engine.fire(work.ended)


class Stream:
    """Runs its work in order."""

    def __init__(self, engine: Engine, gpu: Gpu, gap_us: float) -> None:
        self._engine, self._gpu, self.gap_us = engine, gpu, gap_us
        self._queue: deque[Work] = deque()
        self._busy = False
        self._free_us = -1e9
        self.needs: list[Signal] = []
        """What the next work waits for."""
        self.all: list[Work] = []

    def put(self, work: Work) -> None:
        work.needs, self.needs = [*self.needs, work.arrived], []
        self._queue.append(work)
        self.all.append(work)
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        self._engine.start(self._run(self._queue.popleft()))

    def _run(self, work: Work) -> Process:
        yield from work.needs
        gap_us = self.gap_us if work.gap_us is None else work.gap_us
        yield max(0.0, self._free_us + gap_us - self._engine.now_us)
        self._gpu.begin(work)
        yield work.ended
        self._free_us, self._busy = self._engine.now_us, False
        self._next()

    @property
    def last(self) -> Signal | None:
        return self.all[-1].ended if self.all else None


class Thread:
    """One host thread of a rank: its process goes on through these methods."""

    def __init__(self, rank: Rank, tid: int) -> None:
        self.rank, self.tid = rank, tid
        self._engine = rank.engine

    def work(self, us: float, site: str = "python") -> Process:
        """The host computes; nothing is recorded."""
        yield self.rank.host_us(us, site)

    @contextmanager
    def range(self, name: str, cat: str = "cpu_op", **args: Any) -> Iterator[None]:
        row = self.rank.open(cat, name, self.tid, args)
        yield
        self.rank.close(row)

    def op(self, name: str, us: float, **args: Any) -> Process:
        """An operator that launches nothing."""
        with self.range(name, **args):
            yield self.rank.host_us(us, name)

    def call(self, name: str, us: float, **args: Any) -> Generator[Any, None, Event]:
        """A runtime call."""
        args = {"correlation": self.rank.next_correlation(), **args}
        row = self.rank.open("cuda_runtime", name, self.tid, args)
        yield self.rank.host_us(us, name)
        self.rank.close(row)
        return row

    def launch(
        self,
        stream: int,
        name: str,
        us: float,
        *,
        cat: str = "kernel",
        call: str = "cudaLaunchKernel",
        call_us: float | None = None,
        meeting: Meeting | None = None,
        **args: Any,
    ) -> Generator[Any, None, Work]:
        """A launch call and its work."""
        rank, link = self.rank, self.rank.link
        on = rank.stream(stream)
        stall = rank.next_stall()
        if stall is not None and stall.kind == "host":
            yield stall.us
        if stall is not None and stall.kind == "sync":
            yield from self.synchronize("cudaDeviceSynchronize", None, site="stall")
            stall.found = rank.events[-1]
        correlation = rank.next_correlation()
        row = rank.open("cuda_runtime", call, self.tid, {"correlation": correlation})
        if len(on.all) >= QUEUE_DEPTH:
            yield on.all[-QUEUE_DEPTH].started
        yield rank.host_us(link.launch_us if call_us is None else call_us, call)
        rank.close(row)
        where = {"correlation": correlation, "device": 0, "stream": stream, **args}
        work = Work(name, rank.gpu_us(us, name), rank.gpu_row(cat, name, stream, where), meeting)
        rank.note_work(work)
        late_us = 0.0
        if stall is not None:
            late_us = stall.us if stall.kind == "late" else 0.0
            work.lengthen(stall.us if stall.kind == "work" else 0.0)
            stall.found = stall.found or (row if stall.kind == "host" else work.row)
        on.put(work)
        arrives_us = rank.host_us(link.latency_us, "latency") + late_us
        self._engine.call_in(arrives_us, partial(self._engine.fire, work.arrived))
        return work

    def launch_graph(
        self, kernels: Sequence[tuple[str, float]], call_us: float, gap_us: float, stream: int = 7
    ) -> Process:
        """One call that starts kernels which follow each other within `gap_us`."""
        rank = self.rank
        row = yield from self.call("cudaGraphLaunch", call_us)
        arrived = rank.host_us(rank.link.latency_us, "latency")
        where = {"correlation": row["args"]["correlation"], "device": 0, "stream": stream}
        for name, us in kernels:
            work = Work(name, rank.gpu_us(us, name), rank.gpu_row("kernel", name, stream, where))
            work.gap_us = gap_us
            rank.note_work(work)
            rank.stream(stream).put(work)
            self._engine.call_in(arrived, partial(self._engine.fire, work.arrived))

    def copy(
        self, direction: str, memory: str, size: int, us: float, stream: int = 7
    ) -> Generator[Any, None, Work]:
        """A copy; one of pageable memory returns when it is done."""
        ends = {"HtoD": f"{memory} -> Device", "DtoH": f"Device -> {memory}"}
        name = f"Memcpy {direction} ({ends[direction]})"
        work = yield from self.launch(
            stream, name, us, cat="gpu_memcpy", call="cudaMemcpyAsync", bytes=size
        )
        if memory == "Pageable":
            yield work.ended
            yield self.rank.host_us(self.rank.link.return_us, "return")
            self.rank.reopen("cudaMemcpyAsync", self.tid)
        return work

    def synchronize(
        self, name: str = "cudaStreamSynchronize", stream: int | None = 7, site: str = "return"
    ) -> Process:
        """Until everything on the stream, or on all of them, has ended."""
        correlation = self.rank.next_correlation()
        row = self.rank.open("cuda_runtime", name, self.tid, {"correlation": correlation})
        streams = self.rank.streams if stream is None else {stream: self.rank.stream(stream)}
        waited = False
        for ended in [s.last for s in streams.values() if s.last is not None]:
            waited |= ended.time_us is None
            yield ended
        yield self.rank.host_us(self.rank.link.return_us if waited else 2.0, site)
        self.rank.close(row)

    def wait_stream(self, waiting: int, source: int) -> Process:
        """torch.cuda.Stream.wait_stream: record an event on one, let the other wait for it."""
        ended = self.rank.stream(source).last
        yield from self.call("cudaEventRecord", 1.2)
        yield from self.call("cudaStreamWaitEvent", 1.2)
        if ended is not None:
            self.rank.stream(waiting).needs.append(ended)

    def wait_for(self, waiting: int, work: Work) -> Process:
        """What the stream gets next waits for this work."""
        yield from self.call("cudaStreamWaitEvent", 1.2)
        self.rank.stream(waiting).needs.append(work.ended)


class Rank:
    """One process with its threads and streams, and what its profiler records."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number = machine, number
        self.engine, self.link = machine.engine, machine.link
        self.gpu = Gpu(self.engine, self.link)
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        self.step = -1
        self.step_begins: list[float] = []
        self.step_ends: list[float] = []
        self.step_work: list[list[Work]] = []
        self._correlation = 0
        self._seen: Counter[str] = Counter()
        self._last_call: dict[tuple[str, int], Event] = {}
        self.host_slow = 1.0
        """How many times as long the host takes, beside other processes."""
        self._collectives = 0
        self._hiccup = 1.0
        self._launches: Counter[int] = Counter()
        self._clock: dict[int, float] = {}

    def thread(self, tid: int) -> Thread:
        return Thread(self, tid)

    def stream(self, number: int) -> Stream:
        if number not in self.streams:
            self.streams[number] = Stream(self.engine, self.gpu, self.link.gap_us)
        return self.streams[number]

    def next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def meeting(self, us: float, contended: float = 1.0) -> Meeting:
        """The next collective of this rank: the same object on every rank."""
        self._collectives += 1
        return self.machine.meeting(self._collectives, us, contended)

    # ------------------------------------------------------------------------- time

    def factor(self, site: str, cv: float) -> float:
        """Log-normal, of mean 1: the same for the same occurrence of a site in a step, whatever
        else the program does, so that a program varies alike with a fault and without."""
        self._seen[site] += 1
        key = f"{self.machine.seed}/{self.number}/{self.step}/{site}/{self._seen[site]}"
        rng = random.Random(key)
        value = rng.lognormvariate(-(cv**2) / 2, cv) if cv else 1.0
        self._hiccup = rng.random()
        return value

    def factor_of(self, key: str, cv: float) -> float:
        """The same for a key whenever it is asked."""
        rng = random.Random(f"{self.machine.seed}/{self.number}/{key}")
        return rng.lognormvariate(-(cv**2) / 2, cv)

    def host_us(self, us: float, site: str) -> float:
        noise = self.machine.noise
        factor = self.factor(site, noise.host)
        hiccup = HICCUP if self._hiccup < noise.hiccups else 1.0
        return us * factor * hiccup * self.host_slow

    def gpu_us(self, us: float, site: str) -> float:
        return max(0.5, us * self.factor(f"gpu {site}", self.machine.noise.gpu))

    def steps(self, main: Thread, number: int) -> Iterator[int]:
        """Marked steps; each begins where the loop asks for the next."""
        for step in range(number):
            self.step, self._seen = step, Counter()
            self.step_work.append([])
            self.step_begins.append(self.engine.now_us)
            row = self.open("user_annotation", f"ProfilerStep#{step}", main.tid, {})
            yield step
            self.close(row)
            self.step_ends.append(self.engine.now_us)

    def note_work(self, work: Work) -> None:
        self.step_work[-1].append(work)

    def next_stall(self) -> Stall | None:
        """What happens at this launch."""
        number = self._launches[self.step]
        self._launches[self.step] += 1
        for stall in self.machine.stalls:
            if stall.kind != "fetch" and (stall.rank, stall.step, stall.number) == (
                self.number,
                self.step,
                number,
            ):
                return stall
        return None

    def fetch_stall_us(self, step: int) -> float:
        """What the batch of a step takes longer."""
        chosen = (s for s in self.machine.stalls if s.kind == "fetch" and s.rank == self.number)
        return sum(stall.us for stall in chosen if stall.step == step)

    # ------------------------------------------------------------------------- recording

    def open(self, cat: str, name: str, tid: int, args: Event) -> Event:
        row: Event = {"ph": "X", "cat": cat, "name": name, "pid": 100 + self.number, "tid": tid}
        row |= {"ts": self._tick(tid), "args": args, "step": self.step}
        self.events.append(row)
        if cat == "cuda_runtime":
            self._last_call[name, tid] = row
        return row

    def close(self, row: Event) -> None:
        row["dur"] = self._tick(row["tid"]) - row["ts"]

    def _tick(self, tid: int) -> float:
        """Now, but behind what the thread recorded before: a row that lies in another never begins
        or ends with it."""
        self._clock[tid] = max(self.engine.now_us, self._clock.get(tid, 0.0) + TICK_US)
        return self._clock[tid]

    def reopen(self, name: str, tid: int) -> None:
        """The last call of that name lasted until now."""
        self.close(self._last_call[name, tid])

    def gpu_row(self, cat: str, name: str, stream: int, args: Event) -> Event:
        row: Event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "args": args}
        row["step"] = self.step
        return row

    def recorded(self, first: int) -> list[Event]:
        """What began inside the recording, host and GPU."""
        since = self.step_begins[first]
        unlaunched = self.machine.keeps_unlaunched
        rows = [row for row in self.events if row["ts"] >= since and "dur" in row]
        for stream in self.streams.values():
            for work in stream.all:
                begun, ended = work.started.time_us, work.ended.time_us
                assert begun is not None and ended is not None
                if begun >= since and (unlaunched or work.row["step"] >= first):
                    rows.append({**work.row, "ts": begun, "dur": ended - begun})
        return rows


@dataclass
class Machine:
    """Ranks with one clock, and what they ran."""

    seed: int
    ranks: int = 1
    link: Link = field(default_factory=Link)
    noise: Noise = field(default_factory=Noise)
    device: Event = field(default_factory=dict)
    clock_offsets_us: tuple[float, ...] = ()
    stalls: Sequence[Stall] = ()
    keeps_unlaunched: bool = True
    """The recording has GPU work whose launch lies before it."""
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        self._meetings: dict[int, Meeting] = {}
        self.members = [Rank(self, number) for number in range(self.ranks)]
        self._first = 0

    def meeting(self, number: int, us: float, contended: float) -> Meeting:
        """Collectives meet in the order in which each rank makes them."""
        return self._meetings.setdefault(number, Meeting(self.ranks, us, contended))

    def run(self, program: Callable[[Rank], Process], first_recorded: int) -> None:
        """Runs the program on every rank; the recording begins with a step and stops at the end,
        where the profiler waits for the device."""
        for rank in self.members:
            self.engine.start(self._program(program, rank))
        self._first = first_recorded
        self.engine.run()

    def _program(self, program: Callable[[Rank], Process], rank: Rank) -> Process:
        yield from program(rank)
        yield from rank.thread(1).synchronize("cudaDeviceSynchronize", None)

    # ------------------------------------------------------------------------- what it took

    def iteration_us(self) -> list[list[float]]:
        """For each rank what every recorded step took: from the end of the work of the step
        before to the end of its own, host or GPU."""
        ends = [self._step_ends(rank) for rank in self.members]
        return [[later - end for end, later in pairwise(mine)] for mine in ends]

    def _step_ends(self, rank: Rank) -> list[float]:
        """When the work of each recorded step ended, and before it that of the step before."""
        ends = [rank.step_begins[0]]
        for host_us, works in zip(rank.step_ends, rank.step_work, strict=True):
            times = [work.ended.time_us for work in works]
            ends.append(max([host_us, *(time for time in times if time is not None)]))
        return ends[self._first :]

    def step_us(self) -> float:
        """Mean over recorded steps and ranks."""
        rows = self.iteration_us()
        return sum(map(sum, rows)) / sum(map(len, rows))

    def end_us(self) -> float:
        """When the last work of the last step of any rank ended."""
        return max(self._step_ends(rank)[-1] for rank in self.members)

    def documents(self) -> list[Event]:
        """A trace for each rank, as the profiler writes it."""
        return [self._document(rank) for rank in self.members]

    def _document(self, rank: Rank) -> Event:
        offset = self.clock_offsets_us[rank.number] if self.clock_offsets_us else 0.0
        events = []
        for row in rank.recorded(self._first):
            kept = {key: value for key, value in row.items() if key != "step"}
            ts, end = round(row["ts"] + offset, 3), round(row["ts"] + row["dur"] + offset, 3)
            events.append(kept | {"ts": 1e6 + ts, "dur": round(end - ts, 3)})
        document: Event = {"schemaVersion": 1, "deviceProperties": [{"id": 0, **self.device}]}
        if self.ranks > 1:
            spread = {"backend": "nccl", "rank": rank.number, "world_size": self.ranks}
            document["distributedInfo"] = spread
        return document | {"traceEvents": events}
