"""`Scene`: a program on one or several ranks, with noise, into which work is injected.

    scene = Scene(program, ranks=1, host=1.2, gpu=0.9, link=1.0, seed=0)
    block = Block(scene, rank=0, places=program.main, place=17)
    with block.op("aten::item"), block.op("aten::_local_scalar_dense"):
        block.work("copy", "Memcpy DtoH (Device -> Pageable)", 1_500, bytes=4)
        block.wait("StreamSynchronize")
    block.close()
    outcome = scene.replay()

Points of the program keep their numbers, rank after rank; injected points come behind them. So two
scenes of one program, with and without a fault, have the same numbers for the same points.
`Injection` is what a fault is given: a scene, and the places that work may take in it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import Phase
from torchtraceap.core import Array
from torchtraceap.lab.generation.program import Places, Program, host_noise
from torchtraceap.lab.prediction.timeline.schedule import RETURN_NS
from torchtraceap.simulation import MEETING, Built, GraphBuilder

__all__ = ["Block", "Injection", "NewEvent", "NoPlaceError", "Outcome", "Scene"]

_LEAD_NS = 700
"""Host time between the begins of two nested ranges, spent in recording one and in its caller."""
_CALL_NS = 6_000
_NOISY_NS = 20_000
"""Longer host work consists of several pieces, whose noise evens out."""


@dataclass(slots=True)
class NewEvent:
    """An injected event."""

    rank: int
    kind: str
    """op, annotation, call, kernel or copy."""
    name: str
    begin: int
    end: int
    track: int
    """Track of its thread, or of the thread whose call launches it."""
    op: int | None = None
    """Key of the operator or range that it is, or of the operator that it lies in."""
    call: int | None = None
    """Key of the call that it is, or that launches it."""
    stream: int = 0
    """Number of its stream relative to the program's."""
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The times of a replay."""

    graph: _core.ExecutionGraph
    number: Array
    """int64 `[points]`: number in the graph of each point of the scene."""
    times_ns: Array
    """int64 `[points]`, by the scene's numbers."""

    def end_ns(self, begin: int, end: int) -> int:
        """Return the time of the last of a range of points."""
        return int(self.times_ns[begin:end].max())

    @cached_property
    def slack_ns(self) -> Array:
        """Delay that each point may have without a later end of all, int64 `[points]`."""
        graph = self.graph
        offsets = graph.in_offsets.astype(np.int64)
        destination = np.repeat(np.arange(len(graph)), np.diff(offsets))
        builder = GraphBuilder()
        builder.add_points(builder.add_lane(MEETING), len(graph))
        builder.add_edges(destination, graph.source, graph.lag_ns + graph.residual_ns)
        built = builder.build()
        left_ns = _core.replay(built.graph)[built.points(self.number)]
        return int(self.times_ns.max()) - self.times_ns - left_ns


class Scene:
    """A program on ranks, into which work is injected.

    Args:
        program: The program of all ranks.
        ranks: Number of ranks.
        host: Factor on recorded times of the host.
        gpu: Factor on recorded times of GPU work.
        link: Factor on those of the program's own collectives.
        seed: Seed of log-normal noise, which each rank has of its own.
    """

    def __init__(
        self, program: Program, ranks: int, *, host: float, gpu: float, link: float, seed: int
    ) -> None:
        self.program, self.ranks, self.seed = program, ranks, seed
        self._count = len(program.graph)
        self.cost_ns = [_noisy_costs(program, host, gpu, [seed, rank]) for rank in range(ranks)]
        """int64 `[edges]` for each rank: costs of the program's edges."""
        self.events: list[NewEvent] = []
        self.removed: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        """Rows of each rank that are not written."""
        self._next = self._count * ranks
        self._edges: list[tuple[int, int, int]] = []
        self._keys = 0
        self._tails: dict[tuple[int, int], int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        if ranks > 1:
            self._connect_collectives(link)

    def _connect_collectives(self, link: float) -> None:
        """Let data of the program's own collectives move when all ranks have come."""
        rng = np.random.default_rng([self.seed, self.ranks])
        program = self.program
        noise = np.exp(rng.normal(0, program.gpu_noise, len(program.collectives)))
        rows, edges = program.collectives.tolist(), program.edges_through_collectives.tolist()
        for row, edge, factor in zip(rows, edges, noise.tolist(), strict=True):
            begin, end = int(program.view.begin_of[row]), int(program.view.end_of[row])
            transfer_ns = float(program.run.cost_ns[edge]) * link * factor
            meeting = self.point()
            for rank in range(self.ranks):
                self.cost_ns[rank][edge] = 0
                self.edge(self.number_of(rank, begin), meeting, 0)
                self.edge(meeting, self.number_of(rank, end), transfer_ns)

    def bounds_of(self, rank: int) -> tuple[int, int]:
        """Return the first of the program's points on a rank, and the one behind the last."""
        return self._count * rank, self._count * (rank + 1)

    def course_of(self, rank: int) -> Array:
        """Return the program's points on a rank's stream in order, and its last point, int64."""
        view, rows = self.program.view, self.program.stream_rows
        pairs = np.stack([view.begin_of[rows], view.end_of[rows]], axis=1).astype(np.int64)
        last = int(self.program.graph.time_ns.argmax())
        return np.append(pairs.ravel(), last) + self._count * rank

    def number_of(self, rank: int, point: int) -> int:
        """Return the scene's number of a point of the program on a rank."""
        return self._count * rank + int(point)

    def point(self) -> int:
        """Add a point and return its number."""
        self._next += 1
        return self._next - 1

    def edge(self, source: int, destination: int, lag_ns: float) -> None:
        """Let a point happen at least so much later than another."""
        self._edges.append((source, destination, max(0, round(lag_ns))))

    def key(self) -> int:
        """Return a new key for an injected operator or call."""
        self._keys += 1
        return self._keys - 1

    def last_before(self, rank: int, slot: int) -> int | None:
        """Return the end of the stream's last work ahead of a slot."""
        if (rank, slot) in self._slots:
            return self._slots[rank, slot]
        rows = self.program.stream_rows
        return self.number_of(rank, self.program.view.end_of[rows[slot - 1]]) if slot else None

    def first_behind(self, rank: int, slot: int) -> int | None:
        """Return the begin of the program's first work on the stream from a slot on."""
        rows = self.program.stream_rows
        if slot >= len(rows):
            return None
        return self.number_of(rank, self.program.view.begin_of[rows[slot]])

    def queue(self, rank: int, slot: int, begin: int, end: int) -> None:
        """Put work on the program's stream at a slot."""
        gap_ns = self.program.view.gap_ns
        before, behind = self.last_before(rank, slot), self.first_behind(rank, slot)
        if before is not None:
            self.edge(before, begin, gap_ns)
        if behind is not None:
            self.edge(end, behind, gap_ns)
        self._slots[rank, slot] = end

    def replay(self) -> Outcome:
        """Return the replay."""
        builder = GraphBuilder()
        for rank in range(self.ranks):
            builder.add_graph(self.program.graph, rank=rank, lag_ns=self.cost_ns[rank])
        builder.add_points(builder.add_lane(MEETING), self._next - self._count * self.ranks)
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 3).T
        builder.add_edges(*edges)
        built: Built = builder.build()
        number = built.points(np.arange(self._next))
        return Outcome(built.graph, number, _core.replay(built.graph)[number])


def _noisy_costs(program: Program, host: float, gpu: float, seed: list[int]) -> Array:
    """Return the costs of the program's edges on a rank, int64 `[edges]`."""
    rng = np.random.default_rng(seed)
    cost_ns: Array = program.run.cost_ns.astype(np.float64)
    on_host = program.run.edges_of("program_order")
    on_gpu = program.run.edges_of("execution")
    cost_ns[on_host] *= host * host_noise(rng.random(len(on_host)), program.host_noise)
    noise = program.gpu_noise
    cost_ns[on_gpu] *= gpu * np.exp(rng.normal(-noise * noise / 2, noise, len(on_gpu)))
    return np.rint(cost_ns).astype(np.int64)


class Block:
    """Host work at a place of one rank, with what it launches; `close` ends it."""

    def __init__(self, scene: Scene, rank: int, places: Places, place: int) -> None:
        self.scene, self.rank, self.track = scene, rank, places.track
        self._edge, self._behind = int(places.edge[place]), int(places.point[place])
        self._rng = random.Random(f"{scene.seed}/{rank}/{self._edge}")
        start = scene.number_of(rank, places.source[place])
        self.at = scene._tails.get((rank, self._edge), start)
        """The point that the host has come to."""
        self.slot = int(scene.program.slots(places.time_ns[place : place + 1])[0])
        self._ops: list[int] = []

    def close(self) -> None:
        """Let the program go on."""
        scene = self.scene
        scene._tails[self.rank, self._edge] = self.at
        left_ns = int(scene.cost_ns[self.rank][self._edge])
        scene.edge(self.at, scene.number_of(self.rank, self._behind), left_ns)

    def spend(self, ns: float) -> int:
        """Let the host work for about so long; return the point where it is then."""
        point = self.scene.point()
        share = min(1.0, math.sqrt(_NOISY_NS / max(ns, 1.0)))
        factor = float(host_noise(np.array([self._rng.random()]), share)[0])
        self.scene.edge(self.at, point, ns * factor)
        self.at = point
        return point

    def begin_range(self, kind: str, name: str, **args: Any) -> NewEvent:
        """Begin a range of the host."""
        begin, key = self.spend(_LEAD_NS), self.scene.key()
        event = NewEvent(self.rank, kind, name, begin, begin, self.track, key, args=args)
        self.scene.events.append(event)
        return event

    def end_range(self, event: NewEvent) -> None:
        """End a range of the host."""
        event.end = self.spend(_LEAD_NS)

    @contextmanager
    def range(self, kind: str, name: str, **args: Any) -> Iterator[NewEvent]:
        """Open a range of the host around what is injected meanwhile."""
        event = self.begin_range(kind, name, **args)
        if kind == "op" and event.op is not None:  # calls name the operator that they lie in
            self._ops.append(event.op)
        yield event
        if kind == "op" and event.op is not None:
            self._ops.pop()
        self.end_range(event)

    @contextmanager
    def copying(self, elements: int) -> Iterator[None]:
        """Open the operators of `Tensor.to` around what is injected meanwhile."""
        dims = [[elements]]
        copies = self.op("aten::copy_", dims=[*dims, *dims])
        with self.op("aten::to", dims=dims), self.op("aten::_to_copy", dims=dims), copies:
            yield

    def op(self, name: str, **args: Any) -> AbstractContextManager[NewEvent]:
        """Open an operator around what is injected meanwhile."""
        return self.range("op", name, **args)

    def call(self, name: str, ns: float = _CALL_NS) -> NewEvent:
        """Add a call of the runtime, named without its prefix."""
        begin, key = self.spend(_LEAD_NS), self.scene.key()
        op = self._ops[-1] if self._ops else None
        called = self.scene.program.runtime + name
        event = NewEvent(self.rank, "call", called, begin, self.spend(ns), self.track, op, key)
        self.scene.events.append(event)
        return event

    def work(
        self,
        kind: str,
        name: str,
        ns: float,
        *,
        call: str = "",
        stream: int = 0,
        blocking: bool = False,
        **args: Any,
    ) -> tuple[int, int]:
        """Add a kernel or a copy, and the call that launches it.

        Args:
            kind: kernel or copy.
            name: Name of the work.
            ns: Duration of the work.
            call: Name without its prefix; by default the call that usually launches such work.
            stream: Number of the stream relative to the program's; nothing waits for others.
            blocking: True if the call returns when the work is done.
            args: Arguments of the event.

        Returns:
            The points of the work's begin and end.
        """
        scene = self.scene
        event = self.call(call or {"kernel": "LaunchKernel"}.get(kind, "MemcpyAsync"))
        begin, end = scene.point(), scene.point()
        noise = scene.program.gpu_noise
        scene.edge(begin, end, ns * math.exp(self._rng.gauss(-noise * noise / 2, noise)))
        scene.edge(event.end, begin, scene.program.launch_latency_ns)
        if stream == 0:
            scene.queue(self.rank, self.slot, begin, end)
        if blocking:
            event.end = self._return_behind(end)
        scene.events.append(
            NewEvent(
                self.rank, kind, name, begin, end, self.track, event.op, event.call, stream, args
            )
        )
        return begin, end

    def wait(self, name: str) -> None:
        """Add a call that returns when all work that was launched on the stream is done."""
        event = self.call(name, 1_500)
        end = self.scene.last_before(self.rank, self.slot)
        if end is not None:
            event.end = self._return_behind(end)

    def _return_behind(self, end: int) -> int:
        """Let the host go on behind the end of work."""
        point = self.spend(500)
        self.scene.edge(end, point, RETURN_NS)
        return point


class NoPlaceError(Exception):
    """The program has no place for this fault."""


@dataclass(frozen=True)
class Injection:
    """A scene without a fault, with the places that a fault may take."""

    scene: Scene
    rng: random.Random
    rank: int
    """The rank into which the fault is injected."""
    ns: float
    """Time to be lost in each step, about."""
    clean: Outcome
    """The outcome of the scene without the fault."""

    @property
    def program(self) -> Program:
        """The program of the scene."""
        return self.scene.program

    @cached_property
    def steps(self) -> list[int]:
        """The steps that get the fault: all, or every other one."""
        known = self.program.steps
        every = self.rng.choice((1, 1, 1, 2))
        return known[self.rng.randrange(every) :: every] if len(known) > every else known

    def places_in(self, step: int, *phases: Phase) -> Array:
        """Return indices of the main thread's places in a step, or in some phases of it.

        Raises:
            NoPlaceError: There is none.
        """
        places = self.program.main
        inside = places.step == step
        if phases:
            inside &= np.isin(places.phase, phases)
        found = np.flatnonzero(inside)
        if not len(found):
            raise NoPlaceError
        return found

    def sample(self, places: Array, count: int) -> list[int]:
        """Return so many of the places, or all, in order of time, drawn evenly spread."""
        parts = np.array_split(places, min(count, len(places)))
        return [int(self.rng.choice(part.tolist())) for part in parts]

    def first_place(self, step: int) -> int:
        """Return the first place in a step."""
        return int(self.places_in(step)[0])

    def block(self, place: int) -> Block:
        """Return a block at a place of the rank's main thread."""
        return Block(self.scene, self.rank, self.program.main, place)

    def with_slack(self, candidates: Array, ns: float) -> list[int]:
        """Return the places of the main thread that may be so much later at no cost.

        Raises:
            NoPlaceError: There is none.
        """
        points = self.program.main.point[candidates] + self.scene.number_of(self.rank, 0)
        found: list[int] = candidates[self.clean.slack_ns[points] >= ns].tolist()
        if not found:
            raise NoPlaceError
        return found

    def by_queue(self, step: int, *, least_ns: float = -np.inf, most_ns: float = np.inf) -> Array:
        """Return indices of the places in a step at which the stream has work for so long, ns;
        negative where it is idle.

        Raises:
            NoPlaceError: There is none.
        """
        main, scene = self.program.main, self.scene
        places = self.places_in(step)
        slots = self.program.slots(main.time_ns[places])
        places, slots = places[slots > 0], slots[slots > 0]
        rows = self.program.stream_rows[slots - 1]
        own, times = scene.number_of(self.rank, 0), self.clean.times_ns
        done = times[own + self.program.view.end_of[rows].astype(np.int64)]
        ahead_ns = done - times[own + main.source[places]]
        found: Array = places[(ahead_ns >= least_ns) & (ahead_ns <= most_ns)]
        if not len(found):
            raise NoPlaceError
        return found
