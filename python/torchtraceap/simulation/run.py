"""A trace as an execution graph: its steps, replays and iteration times.

Note [Steady state]: with an edit the host may run ahead of the GPU or fall behind, so predictions
compare iterations (Note [Iteration] in tables/steps/iterations.py). The first of the recorded steps
begins in the state that the run without the edit left. So copies of all recorded steps are chained
(Note [Carried edges]), dependencies across the boundary count, and the last copy is measured. A run
without steps counts as a whole, from the first to the last of its work.

Note [Carried edges]: the thread that marks the steps goes on at once. A stream takes the first work
of the next copy a typical gap after the last of this one. Another thread that begins with work that
the steps hand to it also goes on at once; one that nothing in them starts keeps its own rhythm, the
measured time from its last point round to its first. The queue of launches does not reach into the
next copy.

Note [Working lanes]: the main threads, streams with GPU work, and lanes from which dependencies
lead to these. Else a thread that waits as long as the trace lasts, for something that nobody needs,
would end a run without steps, whatever an edit does, and count as usual host work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct, median
from torchtraceap.core.table import ColumnTable
from torchtraceap.core.threads import MemoCache
from torchtraceap.errors import SchemaError
from torchtraceap.tables.matching import JoinedRanks, join_ranks
from torchtraceap.tables.steps.iterations import (
    counted_steps,
    first_launched_row,
    held_up_row,
    is_held_up,
    lengths_ns,
    step_of_work,
    step_spans,
)
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["Replays", "RunStep", "SimulatedRun", "carried_edges"]


KINDS = {kind.name.lower(): kind for kind in _core.DependencyKind}
"""Dependencies by name."""
WHOLE = "whole trace"
_STEPS_TO_SETTLE = 2
"""Steps before the copy that counts: work in flight seldom reaches over more."""
_STEPS_TO_KEEP_A_PACE = 16
"""The same where an edit sets the rate of batches: a GPU that was far behind takes that long to
catch up, if it is only a little faster."""
_THREAD, _STREAM, _MEETING_POINTS = 0, 1, 2  # kinds of lanes
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of one rank (or the whole trace where it has none)."""

    rank: int
    """Index in the run's `ranks`."""
    name: str
    begin: int
    """Point where its host range begins."""
    end: int
    """Point where it ends."""
    work: Array
    """Points of which the last ends its work: its end, and the ends of GPU events launched until
    then."""
    counted: bool
    """Included in figures per step."""


@dataclass(frozen=True, slots=True)
class _RankSteps:
    """The steps of a rank, and points around the first."""

    steps: list[RunStep]
    start: Array
    """Points of which the last begins the first iteration: the first step's begin, and the ends of
    work that was launched before it."""
    held: Array = field(default_factory=lambda: _NONE)
    """Another such point: the begin of work that waited for unrecorded work, where that shows when
    the GPU was free for the first step."""
    first_work: tuple[int, Array] | None = None
    """The row of the first work that the first step launches, and points: begin and end of its
    call, and its own begin. It may have waited for unrecorded work."""


@dataclass(frozen=True, slots=True)
class Replays:
    """The results of replays with several edits."""

    steady_ns: Array
    """float64 `[deltas]`: time of an iteration, ns."""
    lengths_ns: Array
    """int64 `[deltas, steps]`: times of each step in the last copy, ns."""
    left_out: Array
    """uint32 `[deltas]`: added dependencies that close a cycle and are left out."""


class SimulatedRun:
    """All ranks of a trace as one graph.

    Args:
        trace: One or several ranks; clocks are aligned and collectives matched.
        dependencies: By rank number, the `gpu_dependencies` of its linked execution trace: the
            true dependencies of each GPU event.
        notes: Further notes on the run, for a person.
        stands_for: Time of the whole, or of the mean of all its steps, over that of this run,
            where the trace is a part of it.
    """

    def __init__(
        self,
        trace: Ranks,
        *,
        dependencies: Mapping[int | None, ColumnTable] | None = None,
        notes: Sequence[str] = (),
        stands_for: float = 1.0,
    ) -> None:
        scope = join_ranks(trace, one_clock=False)
        known = []
        for index, part in enumerate(scope.parts):
            if dependencies and part.rank in dependencies:
                table = dependencies[part.rank]
                rows = (table["producer_row"].tolist(), table["consumer_row"].tolist())
                known += [(index, *pair) for pair in zip(*rows, strict=True)]
        graph = _core.execution_graph(
            scope.as_arguments,
            meetings=scope.meetings,
            dependencies=known,
        )
        self._hold(trace, scope, graph, notes, stands_for)
        if graph.contradicted:
            self.notes.append(
                f"{graph.contradicted} dependencies of the execution trace are left out: what "
                "needs them began before they were met."
            )
        if graph.dropped_edges:
            self.notes.append(
                f"{graph.dropped_edges} dependencies closed a circle and are left out, the "
                "least certain first: times in this trace contradict each other."
            )
        for part in self.ranks:
            self.notes += self._notes_on(part)

    @classmethod
    def of_graph(
        cls,
        graph: _core.ExecutionGraph,
        steps: Sequence[tuple[int, str, int, int]],
    ) -> SimulatedRun:
        """Make a run without a trace: its graph, made by `GraphBuilder`, and its steps.

        Its measured times are those of a replay. Edits that look for events find none.

        Args:
            graph: Graph of one or several ranks.
            steps: Rank, name, and the points of a thread where the step begins and ends, by start.
                GPU work belongs to the step until whose end it was launched.

        Raises:
            SchemaError: A step of a rank, or from or to a point, that the graph does not have.
        """
        from torchtraceap.trace.event_columns import event_table

        ranks = int(graph.lane_rank.max(initial=0)) + 1
        for rank, name, begin, end in steps:
            if not (0 <= rank < ranks and 0 <= begin <= end < len(graph)):
                raise SchemaError(
                    f"step {name}: the graph of {ranks} ranks and {len(graph)} points has no step "
                    f"of rank {rank} from {begin} to {end}"
                )
        parts = [
            RankTrace(event_table([], [], [], category=None, pid=0, tid=0), rank)
            for rank in range(ranks)
        ]
        run = cls.__new__(cls)
        scope = JoinedRanks(parts, list(range(ranks)), [0] * ranks, None, [])
        run._hold(Ranks(parts), scope, graph, (), 1.0)
        run._given = list(steps)
        return run

    def _hold(
        self,
        trace: Ranks,
        scope: JoinedRanks,
        graph: _core.ExecutionGraph,
        notes: Sequence[str],
        stands_for: float,
    ) -> None:
        self.trace = trace
        self.stands_for = stands_for
        self.cached = MemoCache()
        """Values of the run that several edits need."""
        self.ranks: tuple[RankTrace, ...] = tuple(scope.parts)
        """Ranks that share collectives with others; strangers are left out."""
        self.notes: list[str] = [*notes, *scope.notes]
        self.places: list[int] = scope.places
        """Index of each rank in the trace."""
        self.offsets_ns: list[int] = scope.offsets_ns
        """Time by which the clock of the graph is ahead of each rank's own, ns."""
        self.meetings: _core.Meetings | None = scope.meetings
        """Matched collectives whose end needs every member; None where there is one rank."""
        self.graph = graph
        self._given: list[tuple[int, str, int, int]] | None = None

    def _notes_on(self, part: RankTrace) -> list[str]:
        """Describe gaps and contradictions in the recording of a rank."""
        where = f"Rank {part.rank}: " if len(self.ranks) > 1 else ""
        notes = []
        gpu = part.tree.gpu_rows
        orphans = int((part.tree.launch[gpu] == _core.NO_ROW).sum())
        if orphans:
            notes.append(
                f"{where}{orphans} of {len(gpu)} GPU events have no launch in the trace: they keep "
                "their place behind the work before them, and no edit of the host moves them."
            )
        if not part.tree.steps:
            notes.append(f"{where}no steps are marked: times are those of the whole trace.")
        elif part.tree.steps_inferred:
            notes.append(
                f"{where}no steps are marked: they are what the main thread repeats "
                f"({len(part.tree.steps)} times)."
            )
        shift_ns = part.tree.launch_delay_correction_ns
        if shift_ns:
            notes.append(
                f"{where}the clocks of host and GPU disagree; GPU times are moved by "
                f"{format_ns(shift_ns)}."
            )
        return notes

    # ------------------------------------------------------------------------- graph as arrays

    @cached_property
    def destination(self) -> Array:
        """The point to which each edge leads, uint32 `[edges]`."""
        return self.graph.destinations()

    @cached_property
    def point_bounds(self) -> Array:
        """The first point of each rank's threads and streams, which are adjacent, and the one after
        the last, int64 `[ranks, 2]`."""
        graph = self.graph
        own = graph.lane_kind != _MEETING_POINTS
        bounds = np.tile(np.array([len(graph), 0], dtype=np.int64), (len(self.ranks), 1))
        np.minimum.at(bounds[:, 0], graph.lane_rank[own], graph.lane_begin[own])
        np.maximum.at(bounds[:, 1], graph.lane_rank[own], graph.lane_end[own])
        return bounds

    @cached_property
    def cost_ns(self) -> Array:
        """The measured cost of each edge, lag and residual together, int64 `[edges]`, ns."""
        return self.graph.lag_ns + self.graph.residual_ns

    def edges_of(self, *kinds: str) -> Array:
        """Return edges of these kinds, by the names of `_core.DependencyKind`."""
        chosen = np.zeros(len(self.graph.kind), dtype=bool)
        for kind in kinds:
            chosen |= self.graph.kind == int(KINDS[kind])
        return np.flatnonzero(chosen)

    # ------------------------------------------------------------------------- steps

    @cached_property
    def steps(self) -> list[RunStep]:
        """Steps by rank, then by start; one for each rank without steps."""
        return [step for mine in self.steps_by_rank for step in mine]

    @cached_property
    def chosen_steps(self) -> list[RunStep]:
        """The steps of figures per step. See Note [Counted steps]."""
        return [step for step in self.steps if step.counted]

    @cached_property
    def steps_by_rank(self) -> list[list[RunStep]]:
        """Steps of each rank by start; none where nothing of a rank is in the graph."""
        return [mine.steps for mine in self._rank_steps]

    @cached_property
    def per_step(self) -> bool:
        """True where times are those of steps, false where of the whole trace."""
        return bool(self._given) or any(part.tree.steps for part in self.ranks)

    @cached_property
    def _rank_steps(self) -> list[_RankSteps]:
        """Steps of each rank. Beside ranks with steps those without have no comparable time."""
        ranks = range(len(self.ranks))
        if self._given:
            return [self._given_steps(rank, self._given) for rank in ranks]
        marked = [self._marked_steps(rank) for rank in ranks]
        return marked if self.per_step else [self._whole_run(rank) for rank in ranks]

    def _marked_steps(self, rank: int) -> _RankSteps:
        part = self.ranks[rank]
        bounds = self._step_points(rank)
        if not len(bounds):
            return _RankSteps([], _NONE)
        begin_of, end_of = self.graph.begin_of(rank), self.graph.end_of(rank)
        ends = end_of[part.tree.gpu_rows]
        place = np.where(ends == _core.NO_ROW, len(bounds), step_of_work(part))
        order = np.argsort(place, kind="stable")
        cuts = np.searchsorted(place[order], np.arange(-1, len(bounds) + 1))
        work = np.split(ends[order], cuts[1:])
        steps = [
            RunStep(rank, step.name, begin, end, np.append(end, done).astype(np.int64), bool(kept))
            for step, (begin, end), done, kept in zip(
                part.tree.steps, bounds.tolist(), work[1:], counted_steps(part), strict=False
            )
        ]
        start = np.append(bounds[0, 0], work[0]).astype(np.int64)
        held, first_work = _NONE, None
        row = held_up_row(part)
        if row is not None and begin_of[row] != _core.NO_ROW:
            held = np.array([begin_of[row]], dtype=np.int64)
        row = first_launched_row(part)
        if row is not None:
            call = part.tree.launch[row]
            points = np.array([begin_of[call], end_of[call], begin_of[row]], dtype=np.int64)
            first_work = None if (points == _core.NO_ROW).any() else (row, points)
        return _RankSteps(steps, start, held, first_work)

    def _given_steps(self, rank: int, given: Sequence[tuple[int, str, int, int]]) -> _RankSteps:
        """Return the steps of a rank in a run without a trace."""
        mine = [(name, begin, end) for index, name, begin, end in given if index == rank]
        if not mine:
            return _RankSteps([], _NONE)
        points = np.arange(*self.point_bounds[rank])
        on_stream = (self.graph.lane_kind == _STREAM)[self.graph.lane[points]]
        ends = points[self.graph.is_end[points].astype(bool) & on_stream]
        place = self._place_by_hand_over(ends, [(begin, end) for _, begin, end in mine])
        steps = [
            RunStep(rank, name, begin, end, np.append(ends[place == index], end), counted=True)
            for index, (name, begin, end) in enumerate(mine)
        ]
        return _RankSteps(steps, np.append(ends[place < 0], mine[0][1]))

    def _whole_run(self, rank: int) -> _RankSteps:
        """Return the whole run of a rank as one step, without lanes that do not work."""
        points = np.arange(*self.point_bounds[rank])
        lanes = self.graph.lane_rank == rank
        lanes = lanes & self.works if (lanes & self.works).any() else lanes
        points = points[np.isin(self.graph.lane[points], np.flatnonzero(lanes))]
        if not len(points):
            return _RankSteps([], _NONE)
        times = self.graph.time_ns[points]
        first, last = int(points[times.argmin()]), int(points[times.argmax()])
        step = RunStep(rank, WHOLE, first, last, points, counted=True)
        return _RankSteps([step], np.array([first]))

    def _place_by_hand_over(self, points: Array, bounds: Sequence[tuple[int, int]]) -> Array:
        """Return the step until whose end each point was launched or happened, int64 `[points]`;
        -1 before the first."""
        graph, times = self.graph, self.graph.time_ns
        ends = np.array([end for _, end in bounds])
        place = np.searchsorted(times[ends], self._handed_over_ns[points], side="left")
        place = place.astype(np.int64)
        place[self._handed_over_ns[points] < graph.time_ns[bounds[0][0]]] = -1
        return place

    @cached_property
    def _handed_over_ns(self) -> Array:
        """The time at which each point was launched, else happened, int64 `[points]`, ns."""
        graph = self.graph
        times = graph.time_ns.copy()
        launches = self.edges_of("launch")
        times[self.destination[launches]] = graph.time_ns[graph.source[launches]]
        work = self.edges_of("execution")
        work = work[graph.is_end[self.destination[work]].astype(bool)]
        times[self.destination[work]] = times[graph.source[work]]
        return times

    def _step_points(self, rank: int) -> Array:
        """Return begin and end of each step on the thread that carries them, int64 `[steps, 2]`;
        none where that has no points."""
        part = self.ranks[rank]
        spans = step_spans(part)
        own = self._main_lane(rank)
        if not len(spans) or own is None:
            return np.zeros((0, 2), dtype=np.int64)
        first = int(self.graph.lane_begin[own])
        times = self.graph.time_ns[first : self.graph.lane_end[own]]
        starts, stops = spans.T + self.offsets_ns[rank]
        begin = np.minimum(np.searchsorted(times, starts, side="left"), len(times) - 1)
        end = np.maximum(np.searchsorted(times, stops, side="right") - 1, begin)
        bounds: Array = np.stack([begin, end], axis=1) + first
        rows = [(place, step.row) for place, step in enumerate(part.tree.steps)]
        marked = np.array([pair for pair in rows if pair[1] is not None], dtype=np.int64)
        marked = marked.reshape(-1, 2)
        for side, of_row in enumerate((self.graph.begin_of(rank), self.graph.end_of(rank))):
            points = of_row[marked[:, 1]]
            known = points != _core.NO_ROW
            bounds[marked[known, 0], side] = points[known]
        return bounds

    def _main_lane(self, rank: int) -> int | None:
        """Return the thread that carries the steps or launches most; None without points."""
        graph = self.graph
        found = np.flatnonzero(
            (graph.lane_rank == rank)
            & (graph.lane_kind == _THREAD)
            & (graph.lane_index == self.ranks[rank].tree.main_track)
            & (graph.lane_end > graph.lane_begin)
        )
        return int(found[0]) if len(found) else None

    @cached_property
    def works(self) -> Array:
        """A mask of lanes that work, bool `[lanes]`. See Note [Working lanes]."""
        graph = self.graph
        works: Array = (graph.lane_kind == _STREAM) & (graph.lane_end > graph.lane_begin)
        main = (self._main_lane(rank) for rank in range(len(self.ranks)))
        works[[lane for lane in main if lane is not None]] = True
        works[[graph.lane[begin] for _, _, begin, _ in self._given or ()]] = True
        source, destination = graph.lane.take(graph.source), graph.lane.take(self.destination)
        leaves = (source != destination) & ~works[source]
        pairs = source[leaves].astype(np.int64) * len(works) + destination[leaves]
        source, destination = np.divmod(distinct(pairs), len(works))
        while (leading := works[destination] & ~works[source]).any():
            works[source[leading]] = True
        return works

    @cached_property
    def step_of_point(self) -> Array:
        """Index of the step until whose end a point happens or, of GPU events, is launched, uint32
        `[points]`; NO_ROW after the last step and before the first."""
        return self._place_of_points[0]

    @cached_property
    def before_steps(self) -> Array:
        """A mask of points that happen, or were launched, before the first step of their rank."""
        return self._place_of_points[1]

    @cached_property
    def _place_of_points(self) -> tuple[Array, Array]:
        steps = np.full(len(self.graph), _core.NO_ROW, dtype=np.uint32)
        is_before = np.zeros(len(self.graph), dtype=bool)
        before = 0
        for rank, mine in enumerate(self.steps_by_rank):
            if mine:
                points = np.arange(*self.point_bounds[rank])
                place = self._place_of(rank, points, mine)
                inside = (place >= 0) & (place < len(mine))
                steps[points[inside]] = place[inside] + before
                is_before[points[place < 0]] = True
            before += len(mine)
        return steps, is_before

    def _place_of(self, rank: int, points: Array, steps: Sequence[RunStep]) -> Array:
        """Return the step of each point, int64 `[points]`: from -1, before the first, to
        len(steps), after the last."""
        if self._given:
            return self._place_by_hand_over(points, [(step.begin, step.end) for step in steps])
        times = self.graph.time_ns
        ends = np.array([step.end for step in steps])
        place = np.searchsorted(times[ends], times[points], side="left").astype(np.int64)
        place[times[points] < times[steps[0].begin]] = -1
        if steps[0].name == WHOLE:
            return place
        base, part = int(self.point_bounds[rank, 0]), self.ranks[rank]
        for of_row in (self.graph.begin_of(rank), self.graph.end_of(rank)):
            mine = of_row[part.tree.gpu_rows]
            known = mine != _core.NO_ROW
            place[mine[known].astype(np.int64) - base] = step_of_work(part)[known]
        return place

    # ------------------------------------------------------------------------- time

    def replay(
        self, delta: _core.GraphDelta | None = None, *, with_residuals: bool = True
    ) -> Array:
        """Return the time at which each point happens, int64 `[points]`, ns."""
        return _core.replay(self.graph, delta, with_residuals=with_residuals)

    @cached_property
    def measured_ns(self) -> Array:
        """The measured iteration of each of `steps`, int64 `[steps]`, ns."""
        spans = self.measured_spans
        return spans[:, 1] - spans[:, 0]

    @cached_property
    def measured_spans(self) -> Array:
        """Where the measured iteration of each of `steps` begins and ends, int64 `[steps, 2]`, ns
        on the clock of the graph."""
        points, offsets = self._work
        times = self.graph.time_ns[points]
        ends = np.maximum.reduceat(times, offsets[:-1]) if len(times) else times
        parts = map(np.maximum.accumulate, np.split(ends, self._groups[1:]))
        spans = [np.stack((part[:-1], part[1:]), axis=1) for part in parts if len(part)]
        return np.concatenate([*spans, np.zeros((0, 2), dtype=np.int64)])

    def lengths_ns(
        self, deltas: Sequence[_core.GraphDelta | None] = (None,), *, with_residuals: bool = True
    ) -> Array:
        """Return the iteration of each step with each edit, int64 `[deltas, steps]`, ns."""
        ends, _ = self._batches.run(_without_none(deltas), with_residuals=with_residuals)
        return self._lengths(ends[:, 0])

    def lengths_at(self, times_ns: Array, running_ns: Array) -> Array:
        """Return iterations as a trace would show them in which points happen at these times, int64
        `[steps]`, ns.

        Args:
            times_ns: Times of the points, int64 `[points]`.
            running_ns: int64 `[ranks with steps]`: end of the GPU work that was launched before
                the first step and has no points.
        """
        lengths = []
        ranks = [rank for rank, mine in enumerate(self._rank_steps) if mine.steps]
        for rank, running in zip(ranks, running_ns.tolist(), strict=True):
            mine = self._rank_steps[rank]
            began = max(int(times_ns[mine.start].max()), running)
            is_recorded = len(mine.start) > 1 or running != _core.NEVER
            if mine.first_work is not None and not is_recorded:
                row, points = mine.first_work
                called, returned, begun = times_ns[points].tolist()
                if is_held_up(self.ranks[rank], row, called, returned, begun):
                    began = max(began, begun)
            ends = [int(times_ns[step.work].max()) for step in mine.steps]
            lengths.append(lengths_ns(np.array([began, *ends])))
        return np.concatenate([*lengths, _NONE])

    def bounding_work(self, rank: int) -> tuple[Array, Array]:
        """Return points of which the last begins the first iteration of a rank with steps, unless
        its work waited for unrecorded work; and those of which the last ends the last one."""
        mine = self._rank_steps[rank]
        return mine.start, mine.steps[-1].work

    def chain(self, delta: _core.GraphDelta) -> Array:
        """Return the times of points in copies of the steps one after the other, of which the last
        is in a steady state, int64 `[copies, points]`, ns; NEVER where one does not happen. See
        Note [Steady state].

        Args:
            delta: An edit.
        """
        copies = self._copies(delta.carries)
        return _core.replay_chain(self.graph, self._carried, copies, delta)

    def steady_ns(
        self, delta: _core.GraphDelta | None = None, *, with_residuals: bool = True
    ) -> float:
        """Return the time of an iteration with an edit, ns; cached without one. See Note [Steady
        state]."""
        if delta is not None:
            return float(self.replays([delta], with_residuals=with_residuals).steady_ns[0])
        return self.cached(
            ("steady_ns", with_residuals),
            lambda: float(self.replays([None], with_residuals=with_residuals).steady_ns[0]),
        )

    def replays(
        self,
        deltas: Sequence[_core.GraphDelta | None],
        *,
        with_residuals: bool = True,
    ) -> Replays:
        """Replay several edits at once, without Python's lock. See Note [Steady state].

        The time of an iteration is the mean over the counted steps of each rank, and over the
        ranks.

        Args:
            deltas: The edits.
            with_residuals: Add the time of the measured run beyond its dependencies.
        """
        _, offsets = self._work
        lengths = np.zeros((len(deltas), len(self.steps)), dtype=np.int64)
        left_out = np.zeros(len(deltas), dtype=np.uint32)
        if len(offsets) == 1:
            return Replays(np.zeros(len(deltas)), lengths, left_out)
        known = _without_none(deltas)
        carries = np.array([delta.carries for delta in known], dtype=bool)
        for kind in (False, True):
            places = np.flatnonzero(carries == kind)
            if not len(places):
                continue
            ends, left_out[places] = self._batches.run(
                [known[place] for place in places.tolist()],
                copies=self._copies(kind) if self.per_step else 1,
                with_residuals=with_residuals,
            )
            started = ends[:, -1]
            if self.per_step:
                # The first step of the last copy begins where the copy before has ended.
                parts = np.split(ends[:, -2], self._groups[1:], axis=-1)
                started = started.copy()
                started[..., self._groups] = np.stack([p.max(axis=-1) for p in parts], axis=-1)
            lengths[places] = self._lengths(started)
        return Replays(self.mean_ns(lengths), lengths, left_out)

    @cached_property
    def _batches(self) -> _core.BatchReplayer:
        carries = self._carried if self.per_step else _NONE
        return _core.BatchReplayer(self.graph, *self._work, carries)

    def _copies(self, keeps_a_pace: bool) -> int:
        """Return the number of copies after which the last begins in a steady state."""
        settle = _STEPS_TO_KEEP_A_PACE if keeps_a_pace else _STEPS_TO_SETTLE
        return max(2, settle // max(1, min(map(len, self.steps_by_rank))) + 1)

    @cached_property
    def step_errors(self) -> Array:
        """Relative error of each step replayed from its dependencies, float64 `[counted steps]`."""
        counted = np.array([step.counted for step in self.steps], dtype=bool)
        measured = self.measured_ns[counted]
        replayed = self.lengths_ns(with_residuals=False)[0, counted]
        share: Array = np.divide(replayed, measured, out=np.ones(len(measured)), where=measured > 0)
        return share - 1

    def mean_ns(self, lengths: Array) -> Array:
        """Return the mean over the counted steps of each rank, then over the ranks that have any,
        float64 `[...]` of `[..., steps]`."""
        ranks = np.array([step.rank for step in self.steps if step.counted], dtype=np.int64)
        if not len(ranks):
            return np.zeros(lengths.shape[:-1])
        counted = np.array([step.counted for step in self.steps])
        first = np.flatnonzero(np.diff(ranks, prepend=-1))
        sums = np.add.reduceat(lengths[..., counted].astype(np.float64), first, axis=-1)
        means: Array = (sums / np.diff(np.append(first, len(ranks)))).mean(axis=-1)
        return means

    @cached_property
    def _work(self) -> tuple[Array, Array]:
        """Points and offsets of the groups whose ends are needed: the begin of the first step of
        each rank with steps, then each step's work."""
        groups = [
            group
            for mine in self._rank_steps
            if mine.steps
            for group in (
                np.concatenate([mine.start, mine.held]),
                *(step.work for step in mine.steps),
            )
        ]
        offsets = np.cumsum([0, *map(len, groups)])
        return np.concatenate([*groups, _NONE]), offsets

    @cached_property
    def _groups(self) -> Array:
        """Offsets of the groups of each rank, int64 `[ranks with steps]`."""
        counts = [len(mine.steps) + 1 for mine in self._rank_steps if mine.steps]
        starts: Array = np.cumsum([0, *counts])[:-1]
        return starts

    def _lengths(self, ends: Array) -> Array:
        """Return lengths of steps, int64 `[..., steps]`, from ends `[..., groups]`."""
        parts = np.split(ends, self._groups[1:], axis=-1)
        return np.concatenate([lengths_ns(part) for part in parts], axis=-1)

    @cached_property
    def _carried(self) -> Array:
        stretches, inside, before = [], [], 0
        for steps in self.steps_by_rank:
            if steps:
                stretches.append((steps[0].begin, steps[-1].end))
                mine = self.step_of_point - np.uint32(before) < len(steps)  # NO_ROW stays large
                inside.append(np.flatnonzero(mine & (self.step_of_point != _core.NO_ROW)))
            before += len(steps)
        return carried_edges(self.graph, stretches, inside)


def _without_none(deltas: Sequence[_core.GraphDelta | None]) -> list[_core.GraphDelta]:
    return [_core.GraphDelta() if delta is None else delta for delta in deltas]


_STREAM = 1  # kind of a lane


def carried_edges(
    graph: _core.ExecutionGraph, stretches: Sequence[tuple[int, int]], inside: Sequence[Array]
) -> Array:
    """Return points of a copy, points of the next copy, and lags in ns, int64 `[carries, 3]`. See
    Note [Carried edges].

    Args:
        graph: The run.
        stretches: For each rank the points where the host's range of the first step begins and
            that of the last ends.
        inside: All points of each rank's steps, ascending.
    """
    lags = graph.lag_ns[graph.kind == _core.DependencyKind.STREAM_ORDER]
    gap_ns = int(median(lags)) if len(lags) else 0
    edges = []
    for (begin, end), mine in zip(stretches, inside, strict=True):
        edges.append((end, begin, 0))
        own = int(graph.lane[begin])
        # The points of a lane are adjacent.
        begins = np.flatnonzero(np.diff(graph.lane[mine], prepend=_core.NO_ROW))
        for points in np.split(mine, begins[1:]):
            lane = int(graph.lane[points[0]]) if len(points) else own
            if lane == own:
                continue
            times = graph.time_ns[points]
            first, last = int(points[times.argmin()]), int(points[::-1][times[::-1].argmax()])
            if _is_started(graph, first, mine):
                lag_ns = gap_ns if graph.lane_kind[lane] == _STREAM else 0
            else:
                before_ns = int(graph.time_ns[first] - graph.time_ns[begin])
                behind_ns = int(graph.time_ns[end] - graph.time_ns[last])
                lag_ns = max(0, before_ns + behind_ns)
            edges.append((last, first, lag_ns))
    return np.array(edges, dtype=np.int64).reshape(-1, 3)


def _is_started(graph: _core.ExecutionGraph, point: int, inside: Array) -> bool:
    """Return whether other work of the steps, sorted points, leads to a point."""
    sources = graph.source[graph.in_offsets[point] : graph.in_offsets[point + 1]]
    place = np.minimum(np.searchsorted(inside, sources), len(inside) - 1)
    known = inside[place] == sources
    return bool((known & (graph.lane[sources] != graph.lane[point])).any())
