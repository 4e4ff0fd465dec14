"""`Scene`: a program on one or several ranks, with noise, and with the work that is put into it.

    scene = Scene(program, speeds, ranks=1)
    block = scene.block(rank=0, places=program.main, place=17)
    with block.op("aten::item"), block.op("aten::_local_scalar_dense"):
        read = block.work("copy", "Memcpy DtoH (Device -> Pageable)", 1_500, bytes=4)
        block.wait("StreamSynchronize", read)
    block.close()
    outcome = scene.play()

Points of the program keep their numbers, rank after rank; points that are put in come behind them.
So two scenes of one program, with and without a fault, have the same numbers for the same points.
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
from torchtraceap.core.aliases import Array
from torchtraceap.lab.generation.noise import host_noise
from torchtraceap.lab.generation.program import Places, Program
from torchtraceap.lab.prediction.timeline.schedule import RETURN_NS
from torchtraceap.simulation.graph_builder import MEETING, Built, GraphBuilder

__all__ = ["Block", "NewEvent", "Outcome", "Scene", "Speeds", "Work"]

_LEAD_NS = 700
"""Of the host between the begins of two nested ranges: what recording one costs, and its caller."""
_CALL_NS = 6_000
_NOISY_NS = 20_000
"""What takes longer is several things."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """How much longer than recorded everything takes; noise is log-normal."""

    host: float
    gpu: float
    seed: int
    """Of the noise."""
    link: float = 1.0
    """Of what the program itself exchanges with other ranks."""


@dataclass(frozen=True, slots=True)
class Work:
    """GPU work that was put in."""

    begin: int
    end: int
    call_begin: int
    call: int
    """Key of the call that launches it."""


@dataclass(slots=True)
class NewEvent:
    """An event that was put in."""

    rank: int
    kind: str
    """op, annotation, call, kernel or copy."""
    name: str
    begin: int
    end: int
    track: int
    """Of the thread that it is on, or whose call launches it."""
    op: int | None = None
    """Key of the operator or range that it is, or of the operator that it lies in."""
    call: int | None = None
    """Key of the call that it is, or that launches it."""
    stream: int = 0
    """How many numbers behind that of the program's stream."""
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """When everything happens."""

    graph: _core.ExecutionGraph
    number: Array
    """int64 `[points]`: of each point of the scene that in the graph."""
    times_ns: Array
    """int64 `[points]`: by the scene's numbers."""

    def end_ns(self, begin: int, end: int) -> int:
        """When the last of a range of points happens."""
        return int(self.times_ns[begin:end].max())

    @cached_property
    def slack_ns(self) -> Array:
        """int64 `[points]`: by how much each point may be later without a later end of all."""
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
    """A program on ranks, into which work is put.

    Args:
        program: The same on all ranks.
        speeds: Of all ranks; each has its own noise.
        ranks: How many.
    """

    def __init__(self, program: Program, speeds: Speeds, ranks: int = 1) -> None:
        self.program, self.ranks, self.seed = program, ranks, speeds.seed
        self._count = len(program.graph)
        self.cost_ns = [_noisy(program, speeds, rank) for rank in range(ranks)]
        """int64 `[edges]` of each rank: what edges of the program cost."""
        self.events: list[NewEvent] = []
        self.removed: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        """Of each rank, rows that are not written."""
        self._next = self._count * ranks
        self._edges: list[tuple[int, int, int]] = []
        self._keys = 0
        self._tails: dict[tuple[int, int], int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        if ranks > 1:
            self._meet(speeds)

    def _meet(self, speeds: Speeds) -> None:
        """What the program itself exchanges: data moves when all ranks have come."""
        rng = np.random.default_rng([speeds.seed, self.ranks])
        program = self.program
        noise = np.exp(rng.normal(0, program.gpu_noise, len(program.collectives)))
        rows, edges = program.collectives.tolist(), program.edges_through_collectives.tolist()
        for row, edge, factor in zip(rows, edges, noise.tolist(), strict=True):
            begin, end = int(program.view.begin_of[row]), int(program.view.end_of[row])
            transfer_ns = float(program.run.cost_ns[edge]) * speeds.link * factor
            met = self.point()
            for rank in range(self.ranks):
                self.cost_ns[rank][edge] = 0
                self.edge(self.on(rank, begin), met, 0)
                self.edge(met, self.on(rank, end), transfer_ns)

    @property
    def common(self) -> int:
        """Points of the program on all ranks; they have the first numbers."""
        return self._count * self.ranks

    def bounds_of(self, rank: int) -> tuple[int, int]:
        """The first of the program's points on a rank, and the one behind the last."""
        return self._count * rank, self._count * (rank + 1)

    def course_of(self, rank: int) -> Array:
        """int64: points of a rank's stream that are the program's own, in order, and its last."""
        view, rows = self.program.view, self.program.stream_rows
        pairs = np.stack([view.begin_of[rows], view.end_of[rows]], axis=1).astype(np.int64)
        last = int(self.program.graph.time_ns.argmax())
        return np.append(pairs.ravel(), last) + self._count * rank

    def on(self, rank: int, point: int) -> int:
        """The scene's number of a point of the program on a rank."""
        return self._count * rank + int(point)

    def point(self) -> int:
        """A new one."""
        self._next += 1
        return self._next - 1

    def edge(self, source: int, destination: int, lag_ns: float) -> None:
        """The destination happens so much later than the source at the earliest."""
        self._edges.append((source, destination, max(0, round(lag_ns))))

    def key(self) -> int:
        """For an operator or a call that is put in."""
        self._keys += 1
        return self._keys - 1

    def block(self, rank: int, places: Places, place: int) -> Block:
        """Work at a place, behind other work that was put there before."""
        return Block(self, rank, places, place)

    def last_before(self, rank: int, slot: int) -> int | None:
        """The end of the stream's last work ahead of a slot."""
        if (rank, slot) in self._slots:
            return self._slots[rank, slot]
        rows = self.program.stream_rows
        return self.on(rank, self.program.view.end_of[rows[slot - 1]]) if slot else None

    def first_behind(self, rank: int, slot: int) -> int | None:
        """The begin of the stream's first work from a slot on, of the program's own."""
        rows = self.program.stream_rows
        if slot >= len(rows):
            return None
        return self.on(rank, self.program.view.begin_of[rows[slot]])

    def queue(self, rank: int, slot: int, begin: int, end: int) -> None:
        """Work of the main stream stands at a slot."""
        gap_ns = self.program.view.gap_ns
        before, behind = self.last_before(rank, slot), self.first_behind(rank, slot)
        if before is not None:
            self.edge(before, begin, gap_ns)
        if behind is not None:
            self.edge(end, behind, gap_ns)
        self._slots[rank, slot] = end

    def play(self) -> Outcome:
        """The replay."""
        builder = GraphBuilder()
        for rank in range(self.ranks):
            builder.add_graph(self.program.graph, rank=rank, lag_ns=self.cost_ns[rank])
        builder.add_points(builder.add_lane(MEETING), self._next - self.common)
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 3).T
        builder.add_edges(*edges)
        built: Built = builder.build()
        number = built.points(np.arange(self._next))
        return Outcome(built.graph, number, _core.replay(built.graph)[number])


class Block:
    """Host work at a place of one rank, with what it launches; `close` ends it."""

    def __init__(self, scene: Scene, rank: int, places: Places, place: int) -> None:
        self.scene, self.rank, self.track = scene, rank, places.track
        self._edge, self._behind = int(places.edge[place]), int(places.point[place])
        self._rng = random.Random(f"{scene.seed}/{rank}/{self._edge}")
        start = scene.on(rank, places.source[place])
        self.at = scene._tails.get((rank, self._edge), start)
        """The point that the host has come to."""
        self.slot = int(scene.program.slots(places.time_ns[place : place + 1])[0])
        self._ops: list[int] = []

    def close(self) -> None:
        """The program goes on."""
        scene = self.scene
        scene._tails[self.rank, self._edge] = self.at
        left_ns = int(scene.cost_ns[self.rank][self._edge])
        scene.edge(self.at, scene.on(self.rank, self._behind), left_ns)

    def spend(self, ns: float) -> int:
        """The host works, for about so long; returns the point where it is then."""
        point = self.scene.point()
        share = min(1.0, math.sqrt(_NOISY_NS / max(ns, 1.0)))  # of many things, tails even out
        factor = float(host_noise(np.array([self._rng.random()]), share)[0])
        self.scene.edge(self.at, point, ns * factor)
        self.at = point
        return point

    def open(self, kind: str, name: str, **args: Any) -> NewEvent:
        """A range of the host begins."""
        begin, key = self.spend(_LEAD_NS), self.scene.key()
        event = NewEvent(self.rank, kind, name, begin, begin, self.track, key, args=args)
        self.scene.events.append(event)
        return event

    def shut(self, event: NewEvent) -> None:
        """It ends."""
        event.end = self.spend(_LEAD_NS)

    @contextmanager
    def range(self, kind: str, name: str, **args: Any) -> Iterator[NewEvent]:
        """A range of the host around what is put in meanwhile."""
        event = self.open(kind, name, **args)
        if kind == "op" and event.op is not None:  # calls name the operator that they lie in
            self._ops.append(event.op)
        yield event
        if kind == "op" and event.op is not None:
            self._ops.pop()
        self.shut(event)

    @contextmanager
    def copying(self, elements: int) -> Iterator[None]:
        """`.to()` of a tensor around what is put in meanwhile."""
        dims = [[elements]]
        copies = self.op("aten::copy_", dims=[*dims, *dims])
        with self.op("aten::to", dims=dims), self.op("aten::_to_copy", dims=dims), copies:
            yield

    def op(self, name: str, **args: Any) -> AbstractContextManager[NewEvent]:
        """An operator around what is put in meanwhile."""
        return self.range("op", name, **args)

    def call(self, name: str, ns: float = _CALL_NS) -> tuple[NewEvent, int]:
        """A call of the runtime, without its prefix, and the key of it."""
        begin, key = self.spend(_LEAD_NS), self.scene.key()
        op = self._ops[-1] if self._ops else None
        called = self.scene.program.runtime + name
        event = NewEvent(self.rank, "call", called, begin, self.spend(ns), self.track, op, key)
        self.scene.events.append(event)
        return event, key

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
    ) -> Work:
        """A call that launches a kernel or a copy, and that.

        Args:
            kind: kernel or copy.
            name: Of the work.
            ns: How long it takes.
            call: Without its prefix; by default what launches such work.
            stream: 0: the program's; else so many numbers behind it, where nothing waits for it.
            blocking: The call returns when the work is done.
            args: Of the event.
        """
        scene = self.scene
        event, key = self.call(call or {"kernel": "LaunchKernel"}.get(kind, "MemcpyAsync"))
        begin, end = scene.point(), scene.point()
        noise = scene.program.gpu_noise
        scene.edge(begin, end, ns * math.exp(self._rng.gauss(-noise * noise / 2, noise)))
        scene.edge(event.end, begin, scene.program.launch_latency_ns)
        if stream == 0:
            scene.queue(self.rank, self.slot, begin, end)
        if blocking:
            event.end = self._returned(end)
        scene.events.append(
            NewEvent(self.rank, kind, name, begin, end, self.track, event.op, key, stream, args)
        )
        return Work(begin, end, event.begin, key)

    def wait(self, name: str, work: Work | None = None) -> None:
        """A call that returns when work is done; None: all that was launched on the stream."""
        event, _ = self.call(name, 1_500)
        end = self.scene.last_before(self.rank, self.slot) if work is None else work.end
        if end is not None:
            event.end = self._returned(end)

    def _returned(self, end: int) -> int:
        """The host goes on behind the end of work."""
        point = self.spend(500)
        self.scene.edge(end, point, RETURN_NS)
        return point


def _noisy(program: Program, speeds: Speeds, rank: int) -> Array:
    """int64 `[edges]`: what edges cost on a rank."""
    rng = np.random.default_rng([speeds.seed, rank])
    cost_ns: Array = program.run.cost_ns.astype(np.float64)
    on_host = program.run.edges_of("program_order")
    on_gpu = program.run.edges_of("execution")
    cost_ns[on_host] *= speeds.host * host_noise(rng.random(len(on_host)), program.host_noise)
    noise = program.gpu_noise
    cost_ns[on_gpu] *= speeds.gpu * np.exp(rng.normal(-noise * noise / 2, noise, len(on_gpu)))
    return np.rint(cost_ns).astype(np.int64)
