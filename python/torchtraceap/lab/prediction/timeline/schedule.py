"""Schedules steps of one or several ranks by replaying them as one graph.

The host of a rank is one lane, since its threads hand the step over to each other: forward pass and
optimizer on one, backward pass on another. Streams are ordered lanes. A collective begins after the
earlier work of the GPU, and transfers data once all ranks have begun; the stream, not the host,
waits for it.

Note [Kinds of ranks]: ranks that do the same are replayed once. If all ranks of a collective are of
one kind they begin at once; different kinds, such as stages of a pipeline, meet.

Note [Replays]: what waits for what does not depend on how long anything takes. A `StepSchedule` is
built once, with lags that no duration sets; each replay sets the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import Array
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import COMPUTE, Collective
from torchtraceap.lab.prediction.lowering.step import GpuWork, LoweredStep
from torchtraceap.simulation import MEETING, STREAM, THREAD, GraphBuilder

__all__ = [
    "RETURN_NS",
    "RankTimes",
    "StepSchedule",
    "schedule_steps",
    "stream_waits",
    "with_steady_loader",
]

_LAUNCH_TO_START_NS = 3_000
"""Time from a launch to its work on an idle stream, about the least in traces
(docs/simulation_edits.md)."""
_BETWEEN_WORK_NS = 1_000
"""Time between pieces of work on a busy stream."""
RETURN_NS = 5_000
"""Time from the end of work that the host waits for until it goes on."""
_QUEUE = 1_021
"""Launches in flight before the host waits (docs/simulation_edits.md, `queue_limit`)."""
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
    transfer_begin: Array
    """Begin of each work; of a collective, of its transfer, for which all ranks have come."""
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


class StepSchedule:
    """Consecutive steps of each kind of rank, from an idle GPU on; see Note [Replays].

    Args:
        steps: One of each kind of rank.
        kind_of_rank: Kind of each rank.
        count: Number of steps.

    Raises:
        OptionError: No step, or a send without its receive.
    """

    def __init__(
        self, steps: Sequence[LoweredStep], kind_of_rank: Sequence[int] = (0,), *, count: int = 3
    ) -> None:
        if count < 1:
            raise OptionError(f"at least one step is needed, not {count}")
        builder = GraphBuilder()
        self._meetings = _Meetings(kind_of_rank, steps)
        self._ranks = [
            _RankLanes(builder, kind, step, count, self._meetings)
            for kind, step in enumerate(steps)
        ]
        self._meetings.join(builder)
        self._built = builder.build()

    def replay(
        self, gpu_ns: Sequence[Array] | None = None, host_factor: float = 1.0
    ) -> tuple[RankTimes, ...]:
        """Return the times of each kind of rank.

        Args:
            gpu_ns: int64 `[works]` of each kind: times of its work; by default the estimates.
            host_factor: All times of the host are multiplied by it.
        """
        ranks, built, change = self._ranks, self._built, _core.GraphDelta()
        if gpu_ns is None:
            gpu_ns = [rank.estimates_ns for rank in ranks]
        lengths = [rank.slowed(own) for rank, own in zip(ranks, gpu_ns, strict=True)]
        for rank, own in zip(ranks, lengths, strict=True):
            for edges, lags in rank.lags(own, host_factor):
                change.set_lags(built.edges(edges), lags)
        alone = [own.copy() for own in lengths]
        for edges, parts, transfer in self._meetings.transfers(lengths):
            change.set_lags(built.edges(edges), np.full(len(edges), transfer))
            for kind, work in parts:
                alone[kind][work] = max(alone[kind][work], transfer)
        times = _core.replay(built.graph, change)
        return tuple(
            rank.times(times[built.points(rank.all)], own, host_factor)
            for rank, own in zip(ranks, alone, strict=True)
        )


def schedule_steps(
    steps: Sequence[LoweredStep],
    kind_of_rank: Sequence[int] = (0,),
    *,
    count: int = 3,
    gpu_ns: Sequence[Array] | None = None,
    host_factor: float = 1.0,
) -> tuple[RankTimes, ...]:
    """Return the times of one replay of a `StepSchedule`, for each kind of rank."""
    return StepSchedule(steps, kind_of_rank, count=count).replay(gpu_ns, host_factor)


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
    length = max(rank.step_length_ns() for rank in schedule_steps(free, kind_of_rank, count=2))
    if most > length:
        return list(steps)
    return [_with_fetch(s, ready=f.ahead) if f else s for s, f in zip(steps, fetches, strict=True)]


def _with_fetch(step: LoweredStep, **changes: Any) -> LoweredStep:
    fetch = step.loop.fetch
    if fetch is None:
        return step
    return replace(step, loop=replace(step.loop, fetch=replace(fetch, **changes)))


# ------------------------------------------------------------------------------------- one rank


class _HostPieces:
    """Host work of a step, cut at launches and waits."""

    def __init__(self, step: LoweredStep) -> None:
        around = step.loop
        pieces = [(0.0, 0.0, around.between_ns)]  # where the step's range begins
        if around.fetch is not None:
            pieces.append((0.0, around.fetch.host_ns, 0.0))
        gap = around.begin_ns
        launch_of, wait_of, first, last = list[int](), list[int](), list[int](), list[int]()
        lead, tail = list[float](), list[float]()
        for lowered in step.calls:
            host = lowered.host
            first.append(len(pieces))
            gap += host.before
            if any(op.works for op in lowered.ops):
                gap += host.to_launch
                lengths = iter(host.launches)
                for op in lowered.ops:
                    for _ in op.works:
                        launch_of.append(len(pieces))
                        wait_of.append(-1)
                        pieces.append((next(lengths), 0.0, gap))
                        gap = host.between
                    if op.works and op.host_waits:
                        wait_of[-1] = len(pieces)
                        pieces.append((0.0, 0.0, _BEFORE_WAIT_NS))
                lead.append(host.to_launch)
                tail.append(host.after)
            else:
                pieces.append((host.to_launch, 0.0, gap))
                lead.append(0.0)
                tail.append(0.0)
            last.append(len(pieces) - 1)
            gap = tail[-1]
        pieces.append((0.0, 0.0, gap + around.end_ns))  # where its range ends
        self.length, self.fixed, self.gap = np.array(pieces, dtype=np.float64).T
        """Of each piece its length, its time that doesn't scale with the host, and the gap before
        it, ns, float64 `[pieces]`."""
        self.first_of, self.last_of = np.array(first, np.int64), np.array(last, np.int64)
        """First and last piece of each call, int64 `[calls]`."""
        self.lead, self.tail = np.array(lead, np.float64), np.array(tail, np.float64)
        """Times of a call before its first and after its last piece, ns, float64 `[calls]`."""
        self.launch_of, self.wait_of = np.array(launch_of, np.int64), np.array(wait_of, np.int64)
        """Pieces that launch each work and wait for it (-1: none), int64 `[works]`."""


class _RankLanes:
    """The lanes of one kind of rank over all steps."""

    def __init__(
        self,
        builder: GraphBuilder,
        kind: int,
        step: LoweredStep,
        count: int,
        meetings: _Meetings,
    ) -> None:
        self._builder, self._count, self._slowdown = builder, count, step.slowdown
        self._pieces = pieces = _HostPieces(step)
        works = [*step.works()]
        self.estimates_ns = np.array([round(work.estimate.ns) for work in works], dtype=np.int64)
        """Estimated time of each work, int64 `[works]`."""
        self._computes = np.array([work.collective is None for work in works], dtype=bool)
        self._meets = np.array([meetings.is_needed(kind, work) for work in works], dtype=bool)
        size = len(pieces.length) * count
        self._host_edges = builder.edge_count + np.arange(2 * size - 1)
        """Edges of the host's pieces, then of the gaps before all but the first."""
        self._host = builder.add_work(builder.add_lane(THREAD, rank=kind), [0] * size)
        self._work_edges = list[tuple[Array, Array]]()
        """Of each lane its edges, int64 `[n]`, and the works whose times they take, int64 `[n]`."""
        self._work = self._add_works(kind, works, meetings)
        fetch = step.loop.fetch
        self._has_fetch = fetch is not None
        if fetch is not None and fetch.every_ns:  # processes that make batches
            lane = builder.add_lane(THREAD, rank=kind, index=1)
            ready = min(fetch.ready, count)
            made = builder.add_work(lane, [0] * ready + [round(fetch.every_ns)] * (count - ready))
            fetches = _FETCH + len(pieces.length) * np.arange(count)
            builder.add_edges(made.end, self._host.end[fetches], 0, kind="host_wait")
        self._link(step, works)
        parts = (self._host.begin, self._host.end, *self._work)
        self._sizes = [len(part) for part in parts]
        self.all = np.concatenate(parts)
        """Points whose times are needed."""

    def slowed(self, gpu_ns: Array) -> Array:
        """Return times of works as this rank takes them, int64 `[works]`."""
        if self._slowdown[1] == 1.0:
            return gpu_ns
        return np.round(np.where(self._computes, self._slowdown[1], 1.0) * gpu_ns).astype(np.int64)

    def lags(self, gpu_ns: Array, host_factor: float) -> Iterator[tuple[Array, Array]]:
        """Yield edges of the builder and their lags, ns, for times of works and of the host."""
        pieces, factor = self._pieces, host_factor * self._slowdown[0]
        length = np.round(pieces.length * factor + pieces.fixed).astype(np.int64)
        gap = np.round(pieces.gap * factor).astype(np.int64)
        yield (
            self._host_edges,
            np.concatenate([np.tile(length, self._count), np.tile(gap, self._count)[1:]]),
        )
        alone = np.where(self._meets, 0, gpu_ns)
        for edges, works in self._work_edges:
            yield edges, alone[works]

    def _add_works(
        self, kind: int, works: Sequence[GpuWork], meetings: _Meetings
    ) -> tuple[Array, Array]:
        """Return begin and end of each work of each step; each stream is a lane."""
        count = self._count
        by_lane: dict[str, list[int]] = defaultdict(list)
        for index, work in enumerate(works):
            by_lane[work.lane].append(index)
        begin, end = np.zeros((2, len(works) * count), dtype=np.int64)
        for number, members in enumerate(by_lane.values()):
            lane = self._builder.add_lane(STREAM, rank=kind, index=number)
            every = (np.array(members) + len(works) * np.arange(count)[:, None]).ravel()
            first = self._builder.edge_count
            made = self._builder.add_work(lane, [0] * len(every), gaps_ns=_BETWEEN_WORK_NS)
            begin[every], end[every] = made.begin, made.end
            self._work_edges.append((first + np.arange(len(every)), every % len(works)))
        for place in np.flatnonzero(np.tile(self._meets, count)).tolist():
            index = place % len(works)
            for each in works[index].collectives:
                meetings.add(kind, each, int(begin[place]), int(end[place]), index)
        return begin, end

    def _link(self, step: LoweredStep, works: Sequence[GpuWork]) -> None:
        """Add launches, waits between streams, waits of the host, and the queue limit."""
        builder, pieces, host_end = self._builder, self._pieces, self._host.end
        begin, end = self._work
        steps = np.arange(self._count)[:, None]
        size = len(pieces.length)
        launch = (pieces.launch_of + size * steps).ravel()
        builder.add_edges(host_end[launch], begin, _LAUNCH_TO_START_NS, kind="launch")
        waited = np.flatnonzero(pieces.wait_of >= 0)
        places = (waited + len(works) * steps).ravel()
        waits = (pieces.wait_of[waited] + size * steps).ravel()
        builder.add_edges(end[places], host_end[waits], RETURN_NS, kind="host_wait")
        pairs = np.array(stream_waits(step), dtype=np.int64).reshape(-1, 2)
        source, target = ((pairs[:, side] + len(works) * steps).ravel() for side in range(2))
        known = (source >= 0) & (target < len(begin))
        source, target = end[source[known]], begin[target[known]]
        builder.add_edges(source, target, _BETWEEN_WORK_NS, kind="stream_wait")
        on_compute = np.array([work.lane == COMPUTE for work in works])
        own = np.flatnonzero(np.tile(on_compute, self._count))
        if len(own) > _QUEUE:
            begun, held = begin[own[:-_QUEUE]], host_end[launch[own[_QUEUE:]]]
            builder.add_edges(begun, held, RETURN_NS, kind="queue_limit")

    def times(self, replayed: Array, gpu_ns: Array, host_factor: float) -> RankTimes:
        """Return the times of the rank from those of `all`.

        Args:
            replayed: Times of the points of `all`, int64 `[n]`, ns.
            gpu_ns: Time of each work without waits for other ranks, int64 `[works]`, ns.
            host_factor: See `StepSchedule.replay`.
        """
        places = np.split(replayed, np.cumsum(self._sizes)[:-1])
        begin, end, work_begin, work_end = (part.reshape(self._count, -1) for part in places)
        pieces, factor = self._pieces, host_factor * self._slowdown[0]
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
            transfer_begin=np.maximum(work_begin, work_end - gpu_ns),
            work_end=work_end,
            fetch_begin=begin[:, _FETCH] if self._has_fetch else None,
            fetch_end=end[:, _FETCH] if self._has_fetch else None,
        )


# ------------------------------------------------------------------------------- streams


def stream_waits(step: LoweredStep) -> list[tuple[int, int]]:
    """Return pairs of works of which the second begins after the first has ended.

    A work is identified by its place among the works of a step: negative places belong to the
    previous step, those beyond the last to the next one. Where the host says that what a stream is
    given from here on waits, the next work that it gets does; those behind it follow in the
    stream's order. A collective waits for what the stream from which it is started was given
    before, and the stream goes on beside it.
    """
    count = sum(1 for _ in step.works())
    of_collective = {
        each.id: place for place, work in enumerate(step.works()) for each in work.collectives
    }
    reached = _last_works(step, of_collective)
    pairs: list[tuple[int, int]] = []
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    pending: dict[str, set[int]] = defaultdict(set)
    place = 0
    for lowered in step.calls:
        call = lowered.call
        sources = pending[call.stream]
        if call.waits_for in of_collective:
            sources.add(of_collective[call.waits_for])
        for index in call.after:
            before = 0 if index >= 0 else count
            sources.update(each - before for each in reached[index])
        for work in (work for op in lowered.ops for work in op.works):
            pairs += [(source, place) for source in sorted(sources) if source != place]
            if work.collective is None:
                sources.clear()
                last[call.stream] = place
                first.setdefault(call.stream, place)
            elif call.stream in last:
                pairs.append((last[call.stream], place))
            place += 1
    for stream, sources in pending.items():
        if stream in first:
            target = count + first[stream]
            pairs += [(source, target) for source in sorted(sources) if source != target]
    return pairs


def _last_works(step: LoweredStep, of_collective: dict[int, int]) -> list[tuple[int, ...]]:
    """Return the last work of the stream and the started collective, by call."""
    found: list[tuple[int, ...]] = []
    last: dict[str, int] = {}
    place = 0
    for lowered in step.calls:
        for op in lowered.ops:
            for work in op.works:
                if work.collective is None:
                    last[lowered.call.stream] = place
                place += 1
        own = [last[lowered.call.stream]] if lowered.call.stream in last else []
        started = lowered.call.collective
        found.append((*own, *([of_collective[started.id]] if started else [])))
    return found


# ------------------------------------------------------------------------------------- meetings


class _Meetings:
    """Collectives between several kinds of ranks; see Note [Kinds of ranks]."""

    def __init__(self, kind_of_rank: Sequence[int], steps: Sequence[LoweredStep]) -> None:
        self._kind_of_rank = kind_of_rank
        self._beside = {
            kind: step.slowest_of for kind, step in enumerate(steps) if step.slowest_of is not None
        }
        self._slowest = {usual: kind for kind, usual in self._beside.items()}
        self._parts: dict[tuple[Any, ...], list[tuple[int, int, int, int]]] = defaultdict(list)
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._transfers = list[tuple[Array, list[tuple[int, int]]]]()
        """Of each meeting the edges of its transfer and the parts' kinds and works."""

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

    def add(self, kind: int, collective: Collective, begin: int, end: int, work: int) -> None:
        """Add a rank's part in the next collective of its kinds: begin and end points, its
        work."""
        kinds = self.kinds(kind, collective)
        what: tuple[Any, ...] = (kinds, collective.kind)
        if collective.peer is not None:
            from_first = (collective.kind == "send") == (kind == kinds[0])
            what = (kinds, "forward" if from_first else "backward")
        number = self._seen[kind, what]
        self._seen[kind, what] += 1
        self._parts[what, number].append((begin, end, kind, work))

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
            begin, end, ranks, works = (list(column) for column in zip(*parts, strict=True))
            builder.add_edges(begin, [point] * len(begin), 0, kind="rendezvous")
            edges = builder.edge_count + np.arange(len(end))
            builder.add_edges([point] * len(end), end, 0, kind="rendezvous")
            self._transfers.append((edges, list(zip(ranks, works, strict=True))))

    def transfers(
        self, gpu_ns: Sequence[Array]
    ) -> Iterator[tuple[Array, list[tuple[int, int]], int]]:
        """Yield the edges of each transfer, the kinds and works of its parts, and its time, ns:
        that of the slowest part."""
        for edges, parts in self._transfers:
            yield edges, parts, max(int(gpu_ns[kind][work]) for kind, work in parts)
