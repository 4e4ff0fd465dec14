"""Schedules steps of one or several ranks by replaying them as one graph.

The host of a rank is one lane, since its threads hand the step over to each other: forward pass and
optimizer on one, backward pass on another. Streams are ordered lanes. A collective begins after the
earlier work of the GPU, and transfers data once all ranks have begun; the stream, not the host,
waits for it.

Note [Kinds of ranks]: ranks that do the same are replayed once. If all ranks of a collective are of
one kind they begin at once; different kinds, such as stages of a pipeline, meet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import COMPUTE, Collective
from torchtraceap.lab.prediction.lowering.step import GpuWork, LoweredCall, LoweredStep
from torchtraceap.lab.prediction.timeline.waits import stream_waits
from torchtraceap.simulation.graph_builder import MEETING, STREAM, THREAD, GraphBuilder, Work

__all__ = ["RETURN_NS", "RankTimes", "Schedule", "schedule_steps", "with_steady_loader"]

_LAUNCH_TO_START_NS = 3_000
"""Time from a launch to its work on an idle stream, about the least in traces
(docs/simulation.md)."""
_BETWEEN_WORK_NS = 1_000
"""Time between pieces of work on a busy stream."""
RETURN_NS = 5_000
"""Time from the end of work that the host waits for until it goes on."""
_QUEUE = 1_021
"""Launches in flight before the host waits (docs/simulation.md, `queue_limit`)."""
_BEFORE_WAIT_NS = 2_000.0
"""Time from a launch to the call that waits for its work."""
_FETCH = 1
"""Index of the fetch among the pieces of a step, if there is one."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of a rank's events, ns, `[steps, n]`."""

    step_begin: Array
    """Begin of the step's range on the host, int64 `[steps]`."""
    step_end: Array
    call_begin: Array
    call_end: Array
    launch_begin: Array
    """Begin of the call that launches each work, in the order of `LoweredStep.works`."""
    launch_end: Array
    wait_end: Array
    """End of the host's wait for a launch's work; else as `launch_end`."""
    work_begin: Array
    work_end: Array
    fetch_begin: Array | None = None
    """Begin of the fetch of a batch, int64 `[steps]`; None without one."""
    fetch_end: Array | None = None

    def step_length_ns(self) -> int:
        """Return the time between the ends of the last two steps, or the length of a single one,
        ns."""
        ends = (
            self.step_end
            if not self.work_end.size
            else np.maximum(self.step_end, self.work_end.max(axis=1))
        )
        before = ends[-2] if len(ends) > 1 else self.step_begin[-1]
        return int(ends[-1] - before)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Scheduled steps of ranks."""

    steps: tuple[LoweredStep, ...]
    """Step of each kind of rank."""
    ranks: tuple[RankTimes, ...]
    """Times of each kind of rank."""


def schedule_steps(
    steps: Sequence[LoweredStep],
    kind_of_rank: Sequence[int] = (0,),
    *,
    count: int = 3,
    gpu_ns: Sequence[Array] | None = None,
    host_factor: float = 1.0,
) -> Schedule:
    """Replay consecutive steps from an idle GPU on.

    Args:
        steps: One of each kind of rank.
        kind_of_rank: Kind of each rank.
        count: Number of steps.
        gpu_ns: int64 `[works]` of each kind: times of its work; by default the estimates.
        host_factor: All times of the host are multiplied by it.

    Raises:
        OptionError: No step, or a send without its receive.
    """
    if count < 1:
        raise OptionError(f"at least one step is needed, not {count}")
    builder = GraphBuilder()
    if gpu_ns is None:
        gpu_ns = [np.array([round(w.estimate.ns) for w in s.works()], np.int64) for s in steps]
    meetings = _Meetings(kind_of_rank, steps)
    lanes = [
        _RankLanes(builder, kind, step, count, gpu_ns[kind], host_factor, meetings)
        for kind, step in enumerate(steps)
    ]
    meetings.join(builder)
    built = builder.build()
    times = _core.replay(built.graph)
    return Schedule(
        tuple(steps), tuple(rank.times(times[built.points(rank.all)]) for rank in lanes)
    )


def with_steady_loader(
    steps: Sequence[LoweredStep], kind_of_rank: Sequence[int] = (0,)
) -> list[LoweredStep]:
    """Return steps with as many ready batches as in the midst of a run.

    Workers that are faster than the steps have prefetched all they may, slower ones only the first
    batch.
    """
    fetches = [step.loop.fetch for step in steps]
    most = max((fetch.every_ns for fetch in fetches if fetch is not None), default=0.0)
    if not most:
        return list(steps)
    free = [_with_fetch(step, every_ns=0.0) for step in steps]
    length = max(
        rank.step_length_ns() for rank in schedule_steps(free, kind_of_rank, count=2).ranks
    )
    if most > length:
        return list(steps)
    return [_with_fetch(s, ready=f.ahead) if f else s for s, f in zip(steps, fetches, strict=True)]


def _with_fetch(step: LoweredStep, **changes: Any) -> LoweredStep:
    fetch = step.loop.fetch
    if fetch is None:
        return step
    return replace(step, loop=replace(step.loop, fetch=replace(fetch, **changes)))


# ------------------------------------------------------------------------------------- one rank


class _RankLanes:
    """The lanes of one kind of rank over all steps."""

    def __init__(
        self,
        builder: GraphBuilder,
        kind: int,
        step: LoweredStep,
        count: int,
        gpu_ns: Array,
        host_factor: float,
        meetings: _Meetings,
    ) -> None:
        self._builder, self._count = builder, count
        self._pieces = _host_pieces(step)
        works = [*step.works()]
        host_factor *= step.slowdown[0]
        if step.slowdown[1] != 1.0:
            own = np.array([work.collective is None for work in works], dtype=bool)
            gpu_ns = np.round(np.where(own, step.slowdown[1], 1.0) * gpu_ns).astype(np.int64)
        host = builder.add_lane(THREAD, rank=kind)
        self._host = self._add_host(host, host_factor)
        self._work = self._add_works(kind, works, gpu_ns, meetings)
        self._add_workers(kind, step)
        self._link(step, works)
        self._has_fetch = step.loop.fetch is not None
        self._factor = host_factor
        parts = (self._host.begin, self._host.end, self._work[0], self._work[1])
        self._sizes = [len(part) for part in parts]
        self.all = np.concatenate(parts)
        """Points whose times are needed."""

    def _add_host(self, lane: int, factor: float) -> Work:
        pieces = self._pieces
        length = np.round(pieces.length * factor + pieces.given).astype(np.int64)
        gap = np.round(pieces.gap * factor).astype(np.int64)
        return self._builder.add_work(
            lane, np.tile(length, self._count), gaps_ns=np.tile(gap, self._count)
        )

    def _add_works(
        self, kind: int, works: Sequence[GpuWork], durations: Array, meetings: _Meetings
    ) -> tuple[Array, Array]:
        """Return begin and end of each work of each step; each stream is a lane."""
        by_lane: dict[str, list[int]] = defaultdict(list)
        for index, work in enumerate(works):
            by_lane[work.lane].append(index)
        total = len(works) * self._count
        begin, end = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
        for number, (_, members) in enumerate(by_lane.items()):
            lane = self._builder.add_lane(STREAM, rank=kind, index=number)
            own = np.array(members, dtype=np.int64)
            meets = np.array([meetings.is_needed(kind, works[each]) for each in own])
            lengths = np.where(meets, 0, durations[own])
            every = (own + len(works) * np.arange(self._count)[:, None]).ravel()
            made = self._builder.add_work(
                lane, np.tile(lengths, self._count), gaps_ns=_BETWEEN_WORK_NS
            )
            begin[every], end[every] = made.begin, made.end
        for place in range(total):
            work = works[place % len(works)]
            if meetings.is_needed(kind, work):
                transfer = int(durations[place % len(works)])
                for each in work.collectives:
                    meetings.add(kind, each, int(begin[place]), int(end[place]), transfer)
        return begin, end

    def _add_workers(self, kind: int, step: LoweredStep) -> None:
        """Add the processes that make batches."""
        fetch, count = step.loop.fetch, self._count
        if fetch is None or not fetch.every_ns:
            return
        lane = self._builder.add_lane(THREAD, rank=kind, index=1)
        ready = min(fetch.ready, count)
        made = self._builder.add_work(lane, [0] * ready + [round(fetch.every_ns)] * (count - ready))
        pieces = _FETCH + len(self._pieces.length) * np.arange(count)
        self._builder.add_edges(made.end, self._host.end[pieces], 0, kind="host_wait")

    def _link(self, step: LoweredStep, works: Sequence[GpuWork]) -> None:
        """Add launches, waits between streams, waits of the host, and the queue limit."""
        builder, count, pieces = self._builder, self._count, self._pieces
        begin, end = self._work
        size = len(pieces.length)
        launch = (pieces.launch_of + size * np.arange(count)[:, None]).ravel()
        builder.add_edges(self._host.end[launch], begin, _LAUNCH_TO_START_NS, kind="launch")
        waits = (pieces.wait_of >= 0).nonzero()[0]
        for each in waits.tolist():
            places = np.arange(count) * len(works) + each
            pieces_of = np.arange(count) * size + pieces.wait_of[each]
            builder.add_edges(end[places], self._host.end[pieces_of], RETURN_NS, kind="host_wait")
        pairs = np.array(stream_waits(step), dtype=np.int64).reshape(-1, 2)
        for shift in range(count):
            source, target = pairs[:, 0] + shift * len(works), pairs[:, 1] + shift * len(works)
            known = (source >= 0) & (target < len(begin))
            builder.add_edges(
                end[source[known]], begin[target[known]], _BETWEEN_WORK_NS, kind="stream_wait"
            )
        on_compute = np.array([work.lane == COMPUTE for work in works])
        own = np.flatnonzero(np.tile(on_compute, count))
        if len(own) > _QUEUE:
            builder.add_edges(
                begin[own[:-_QUEUE]],
                self._host.end[launch[own[_QUEUE:]]],
                RETURN_NS,
                kind="queue_limit",
            )

    def times(self, replayed: Array) -> RankTimes:
        """Return the times of the rank from those of `all`."""
        places = np.split(replayed, np.cumsum(self._sizes)[:-1])
        begin, end, work_begin, work_end = (part.reshape(self._count, -1) for part in places)
        pieces, factor = self._pieces, self._factor
        lead = np.round(pieces.lead * factor).astype(np.int64)
        tail = np.round(pieces.tail * factor).astype(np.int64)
        call_begin = begin[:, pieces.first_of] - lead
        call_end = end[:, pieces.last_of] + tail
        waited = np.where(pieces.wait_of >= 0, pieces.wait_of, pieces.launch_of)
        return RankTimes(
            step_begin=begin[:, 0],
            step_end=end[:, -1],
            call_begin=call_begin,
            call_end=call_end,
            launch_begin=begin[:, pieces.launch_of],
            launch_end=end[:, pieces.launch_of],
            wait_end=end[:, waited],
            work_begin=work_begin,
            work_end=work_end,
            fetch_begin=begin[:, _FETCH] if self._has_fetch else None,
            fetch_end=end[:, _FETCH] if self._has_fetch else None,
        )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Host work of a step, cut at launches and waits."""

    length: Array
    """Length of each piece, float64 `[pieces]`, ns."""
    given: Array
    """Time that doesn't scale with the host, float64 `[pieces]`."""
    gap: Array
    """Gap before each piece, float64 `[pieces]`."""
    first_of: Array
    """First piece of each call, int64 `[calls]`."""
    last_of: Array
    lead: Array
    """Time from the begin of a call to its first piece, float64 `[calls]`."""
    tail: Array
    launch_of: Array
    """Piece that launches each work, int64 `[works]`."""
    wait_of: Array
    """Piece that waits for each work, int64 `[works]`; -1 for none."""


def _host_pieces(step: LoweredStep) -> _Pieces:
    made = _PieceBuilder()
    around = step.loop
    made.add(0.0, around.between_ns)  # where the step's range begins
    if around.fetch is not None:
        made.add(0.0, given=around.fetch.host_ns)
    made.ahead = around.begin_ns
    first, last, lead, tail = [], [], [], []
    for lowered in step.calls:
        host = lowered.host
        first.append(len(made.length))
        made.ahead += host.before
        if any(op.works for op in lowered.ops):
            made.ahead += host.to_launch
            made.add_launches(lowered)
            lead.append(host.to_launch)
            tail.append(host.after)
        else:
            made.add(host.to_launch)
            lead.append(0.0)
            tail.append(0.0)
        last.append(len(made.length) - 1)
        made.ahead = tail[-1]
    made.add(0.0, around.end_ns)  # where its range ends
    return _Pieces(
        *(np.array(each) for each in (made.length, made.given, made.gap)),
        *(np.array(each, dtype=np.int64) for each in (first, last)),
        *(np.array(each, dtype=np.float64) for each in (lead, tail)),
        *(np.array(each, dtype=np.int64) for each in (made.launch_of, made.wait_of)),
    )


class _PieceBuilder:
    """Builds the pieces of the host."""

    def __init__(self) -> None:
        self.length: list[float] = []
        self.given: list[float] = []
        self.gap: list[float] = []
        self.launch_of: list[int] = []
        self.wait_of: list[int] = []
        self.ahead = 0.0
        """Gap before the next piece."""

    def add(self, length: float, more: float = 0.0, *, given: float = 0.0) -> None:
        self.length.append(length)
        self.given.append(given)
        self.gap.append(self.ahead + more)
        self.ahead = 0.0

    def add_launches(self, lowered: LoweredCall) -> None:
        lengths = iter(lowered.host.launches)
        is_first = True
        for op in lowered.ops:
            for _ in op.works:
                self.ahead += 0.0 if is_first else lowered.host.between
                is_first = False
                self.launch_of.append(len(self.length))
                self.wait_of.append(-1)
                self.add(next(lengths))
            if op.works and op.host_waits:
                self.wait_of[-1] = len(self.length)
                self.add(0.0, _BEFORE_WAIT_NS)


# ------------------------------------------------------------------------------------- meetings


class _Meetings:
    """Collectives between several kinds of ranks; see Note [Kinds of ranks]."""

    def __init__(self, kind_of_rank: Sequence[int], steps: Sequence[LoweredStep]) -> None:
        self._kind_of_rank = kind_of_rank
        self._beside = {
            kind: step.slowest_of for kind, step in enumerate(steps) if step.slowest_of is not None
        }
        self._slowest = {usual: kind for kind, usual in self._beside.items()}
        self._parts: dict[tuple[Any, ...], list[tuple[int, int, int]]] = defaultdict(list)
        self._seen: Counter[tuple[Any, ...]] = Counter()

    def kinds(self, kind: int, collective: Collective) -> tuple[int, ...]:
        """Return the kinds of the participating ranks."""
        if collective.peer is not None:
            other = self._kind_of_rank[collective.peer]
            usual = self._beside.get(other, other)
            # The slowest ranks of both kinds talk to each other, as the usual ones do.
            met = self._slowest.get(usual, usual) if kind in self._beside else usual
            return tuple(sorted({kind, met}))
        return tuple(sorted({self._kind_of_rank[rank] for rank in collective.group}))

    def is_needed(self, kind: int, work: GpuWork) -> bool:
        """Return whether ranks of another kind participate."""
        return any(len(self.kinds(kind, each)) > 1 for each in work.collectives)

    def add(self, kind: int, collective: Collective, begin: int, end: int, transfer: int) -> None:
        """Add a rank's part in the next collective of its kinds: its begin and end points."""
        kinds = self.kinds(kind, collective)
        what: tuple[Any, ...] = (kinds, collective.kind)
        if collective.peer is not None:
            from_first = (collective.kind == "send") == (kind == kinds[0])
            what = (kinds, "forward" if from_first else "backward")
        number = self._seen[kind, what]
        self._seen[kind, what] += 1
        self._parts[what, number].append((begin, end, transfer))

    def join(self, builder: GraphBuilder) -> None:
        """Let each transfer begin when the last participant has begun.

        Raises:
            OptionError: A rank waits for one that never comes.
        """
        if not self._parts:
            return
        lane = builder.add_lane(MEETING)
        met = builder.add_points(lane, len(self._parts))
        for point, ((what, number), parts) in zip(met.tolist(), self._parts.items(), strict=True):
            kinds = what[0]
            if len(parts) != len(kinds):
                raise OptionError(
                    f"collective {number} ({what[1]}) between ranks of kinds {kinds} has "
                    f"{len(parts)} of {len(kinds)} sides"
                )
            begin, end, transfer = (list(column) for column in zip(*parts, strict=True))
            builder.add_edges(begin, [point] * len(begin), 0, kind="rendezvous")
            builder.add_edges([point] * len(end), end, max(transfer), kind="rendezvous")
