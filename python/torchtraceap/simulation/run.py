"""A trace as an execution graph: replays, iteration times, and what edits need to find their way.

Note [Iteration time]: with an edit the host may run ahead of the GPU or fall behind, so that the
step ranges of the host no longer say how long an iteration takes. An iteration ends when the last
of its host and GPU work ends; its time is the distance from the end of the one before, over
chained steps as recorded (a steady state). Predictions are the measured step time plus the
difference that the edit makes to that distance. A trace of one step has no such distance: copies of
the step are chained (`chain.py`), so that what crosses the boundary counts.

Note [Watchdogs]: a thread that only makes runtime calls and launches nothing, such as the one that
asks events of NCCL whether they are done, holds nothing up. What it does ends no iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.analysis.many_ranks.joined_ranks import join_ranks
from torchtraceap.ranks import Ranks, RankTrace
from torchtraceap.remember import Memory
from torchtraceap.simulation.chain import carried_edges
from torchtraceap.table import ColumnTable
from torchtraceap.units import format_ns

__all__ = ["RunStep", "SimulatedRun"]

KINDS = {kind.name.lower(): kind for kind in _core.DependencyKind}
"""Dependencies by name."""
WHOLE = "whole trace"
CHAINED = 3
"""Copies of a single step: the last two begin in the state that the one before left."""
_THREAD, _MEETING_POINTS = 0, 2  # kinds of lanes


@dataclass(frozen=True, slots=True)
class RunStep:
    """A profiled step of one rank (or the whole trace where it has none)."""

    rank: int
    """Index in the run's `ranks`."""
    name: str
    begin: int
    """Point where its host range begins."""
    end: int
    """Point where it ends."""
    points: Array
    """All points of its work: host rows inside it and GPU events launched there."""


class _StepColumns:
    """Steps as columns, for what every replay asks."""

    def __init__(self, steps: Sequence[RunStep], chosen: Sequence[bool]) -> None:
        rank = np.array([step.rank for step in steps], dtype=np.int64)
        self.begin = np.array([step.begin for step in steps], dtype=np.int64)
        self.is_first: Array = np.diff(rank, prepend=-1) != 0
        """bool `[steps]`: of its rank."""
        self.chosen = np.array(chosen, dtype=bool)
        work = [step.points if len(step.points) else np.array([step.end]) for step in steps]
        self._work = np.concatenate([*work, np.zeros(0, dtype=np.int64)])
        self._starts = np.cumsum([0, *map(len, work)])[:-1]

    def ends(self, times: Array) -> Array:
        """int64 `[..., steps]`: when all work of each has ended; times are `[..., points]`."""
        ends: Array = np.maximum.reduceat(times[..., self._work], self._starts, axis=-1)
        return ends


class SimulatedRun:
    """All ranks of a trace as one graph.

    Args:
        trace: One or several ranks; clocks are aligned and collectives matched.
        explicit_only: Leave out dependencies that rest on times alone.
        dependencies: By rank number, the `gpu_dependencies` of its linked execution trace: what
            each GPU event really needs.
        notes: What else a person should know of the run.
        stands_for: How many times as long the whole is, where the trace is a stretch without steps.
    """

    def __init__(
        self,
        trace: Ranks,
        *,
        explicit_only: bool = False,
        dependencies: Mapping[int | None, ColumnTable] | None = None,
        notes: Sequence[str] = (),
        stands_for: float = 1.0,
    ) -> None:
        scope = join_ranks(trace)
        self.trace = trace
        self.stands_for = stands_for
        self.remember = Memory()
        """What several edits need of the run."""
        self.ranks: tuple[RankTrace, ...] = tuple(scope.parts)
        """Those whose clocks can be compared; ranks that share no collective are left out."""
        self.notes: list[str] = [*notes, *scope.notes]
        self.places: list[int] = scope.places
        """Index of each in the trace."""
        self.meetings: _core.Meetings | None = scope.meetings
        """Matched collectives whose end needs every member; None where there is one rank."""
        self.graph: _core.ExecutionGraph = _core.execution_graph(
            scope.as_arguments,
            meetings=self.meetings,
            dependencies=self._known(dependencies or {}),
            explicit_only=explicit_only,
        )
        self.notes += self._doubts()

    def _known(self, tables: Mapping[int | None, ColumnTable]) -> list[tuple[int, int, int]]:
        known = []
        for index, part in enumerate(self.ranks):
            if part.rank not in tables:
                continue
            table = tables[part.rank]
            pairs = zip(table["producer_row"].tolist(), table["consumer_row"].tolist(), strict=True)
            known += [(index, producer, consumer) for producer, consumer in pairs]
        return known

    def _doubts(self) -> list[str]:
        """What is missing or contradicts itself, for a person."""
        notes = []
        if self.graph.contradicted:
            notes.append(
                f"{self.graph.contradicted} dependencies of the execution trace are left out: what "
                "needs them began before they were met."
            )
        if self.graph.dropped_edges:
            notes.append(
                f"{self.graph.dropped_edges} dependencies closed a circle and are left out, the "
                "least certain first: times in this trace contradict each other."
            )
        for part in self.ranks:
            notes += self._doubts_of(part)
        return notes

    def _doubts_of(self, part: RankTrace) -> list[str]:
        where = f"Rank {part.rank}: " if len(self.ranks) > 1 else ""
        notes = []
        gpu = part.tree.gpu_rows
        orphans = int((part.tree.launch[gpu] == _core.NO_ROW).sum())
        if orphans:
            notes.append(
                f"{where}{orphans} of {len(gpu)} GPU events have no launch in the trace: they keep "
                "their place behind the work before them, and no edit of the host moves them."
            )
        if not any(step.row is not None for step in part.tree.steps):
            notes.append(f"{where}no steps are marked: times are those of the whole trace.")
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
        """uint32 `[edges]`: the point that each edge leads to."""
        offsets: Array = self.graph.in_offsets.astype(np.int64)
        counts: Array = offsets[1:] - offsets[:-1]
        return np.repeat(np.arange(len(counts), dtype=np.uint32), counts)

    @cached_property
    def point_bounds(self) -> Array:
        """int64 `[ranks, 2]`: the points of each rank's threads and streams, which stand beside
        each other: the first one, and the one behind the last."""
        graph = self.graph
        own = graph.lane_kind != _MEETING_POINTS
        bounds = np.tile(np.array([len(graph), 0], dtype=np.int64), (len(self.ranks), 1))
        np.minimum.at(bounds[:, 0], graph.lane_rank[own], graph.lane_begin[own])
        np.maximum.at(bounds[:, 1], graph.lane_rank[own], graph.lane_end[own])
        return bounds

    @cached_property
    def cost_ns(self) -> Array:
        """int64 `[edges]`: lag and residual together, what the measured run took."""
        return self.graph.lag_ns + self.graph.residual_ns

    def edges_of(self, *kinds: str) -> Array:
        """Edges of these kinds, by the names of `_core.DependencyKind`."""
        return np.flatnonzero(np.isin(self.graph.kind, [KINDS[kind] for kind in kinds]))

    # ------------------------------------------------------------------------- time

    def replay(
        self, delta: _core.GraphDelta | None = None, *, with_residuals: bool = True
    ) -> Array:
        """int64 `[points]`: when each point happens."""
        edit = _core.GraphDelta() if delta is None else delta
        return _core.replay(self.graph, edit, with_residuals=with_residuals)

    @cached_property
    def steps(self) -> list[RunStep]:
        """By rank, then by start; one for each rank without steps."""
        return [step for mine in self.steps_by_rank for step in mine]

    @cached_property
    def chosen_steps(self) -> list[RunStep]:
        """Without the first and last of a rank that has more than two: they are often cut."""
        return [step for mine in self._chosen_by_rank for step in mine]

    @cached_property
    def steps_by_rank(self) -> list[list[RunStep]]:
        """By start; none where nothing of a rank is in the graph."""
        return [self._steps_of(index) for index in range(len(self.ranks))]

    @cached_property
    def _chosen_by_rank(self) -> list[list[RunStep]]:
        return [mine[1:-1] if len(mine) > 2 else mine for mine in self.steps_by_rank]

    def _steps_of(self, rank: int) -> list[RunStep]:
        part = self.ranks[rank]
        begin_of, end_of = self.graph.begin_of(rank), self.graph.end_of(rank)
        rows = [(step.name, step.row) for step in part.tree.steps if step.row is not None]
        marked = [(name, row) for name, row in rows if begin_of[row] != _core.NO_ROW]
        points = self._points_of_rank(rank)
        if not marked:
            if not len(points):
                return []
            times = self.graph.time_ns[points]
            first, last = points[int(times.argmin())], points[int(times.argmax())]
            return [RunStep(rank, WHOLE, int(first), int(last), points)]
        owner_ns = self._host_time_of(rank, points)
        order = np.argsort(owner_ns, kind="stable")
        points, owner_ns = points[order], owner_ns[order]
        steps = []
        for name, row in marked:
            begin, end = int(begin_of[row]), int(end_of[row])
            start_ns, stop_ns = self.graph.time_ns[begin], self.graph.time_ns[end]
            first = int(np.searchsorted(owner_ns, start_ns, side="left"))
            last = int(np.searchsorted(owner_ns, stop_ns, side="right"))
            steps.append(RunStep(rank, name, begin, end, np.sort(points[first:last])))
        return steps

    def _points_of_rank(self, rank: int) -> Array:
        points = np.arange(*self.point_bounds[rank])
        return points[~np.isin(self.graph.lane[points], self._watchdogs(rank))]

    def _watchdogs(self, rank: int) -> list[int]:
        """Lanes that hold nothing up. See Note [Watchdogs]."""
        part, graph = self.ranks[rank], self.graph
        is_call = part.tree.api != _core.ApiClass.NONE
        launching = np.zeros(len(is_call), dtype=bool)
        launches = part.tree.launch[part.tree.gpu_rows]
        launching[launches[launches != _core.NO_ROW]] = True
        threads = np.flatnonzero((graph.lane_rank == rank) & (graph.lane_kind == _THREAD)).tolist()
        held = []
        for lane in threads:
            rows = graph.row[graph.lane_begin[lane] : graph.lane_end[lane]]
            if len(rows) and is_call[rows].all() and not launching[rows].any():
                held.append(lane)
        return held if len(held) < len(threads) else []

    def _host_time_of(self, rank: int, points: Array) -> Array:
        """Measured time of each point; of a GPU point that of its launch, which places it."""
        part = self.ranks[rank]
        times = self.graph.time_ns[points].copy()
        rows = self.graph.row[points]
        launch = part.tree.launch[rows]
        launched = launch != _core.NO_ROW
        begins = self.graph.begin_of(rank)[launch[launched]]
        known = begins != _core.NO_ROW
        where = np.flatnonzero(launched)[known]
        times[where] = self.graph.time_ns[begins[known]]
        return times

    def measured_step_ns(self, step: RunStep) -> int:
        return int(self.graph.time_ns[step.end] - self.graph.time_ns[step.begin])

    def step_ns(self, step: RunStep, times: Array) -> int:
        """Length of the step's host range in a replay."""
        return int(times[step.end] - times[step.begin])

    def iteration_ns(self, times: Array) -> float:
        """Median time of an iteration in a replay. See Note [Iteration time]."""
        columns = self._step_columns
        if not columns.chosen.any():
            return 0.0
        ends = columns.ends(times)
        starts = np.where(columns.is_first, times[columns.begin], np.roll(ends, 1))
        return float(np.median((ends - starts)[columns.chosen]))

    @cached_property
    def _step_columns(self) -> _StepColumns:
        chosen = {id(step) for step in self.chosen_steps}
        return _StepColumns(self.steps, [id(step) in chosen for step in self.steps])

    def steady_ns(
        self,
        delta: _core.GraphDelta | None = None,
        *,
        with_residuals: bool = True,
        copies: int = CHAINED,
    ) -> float:
        """Time of an iteration in a steady state, with an edit. See Note [Iteration time].

        The same as `iteration_ns` of a replay, but for a trace of one marked step on each rank
        `copies` of that step are chained, and the last one counts.
        """
        if not self.chained:
            return self.iteration_ns(self.replay(delta, with_residuals=with_residuals))
        edit = _core.GraphDelta() if delta is None else delta
        times = _core.replay_chain(
            self.graph, self._carried, copies, edit, with_residuals=with_residuals
        )
        ends = self._step_columns.ends(times)
        return float(np.median(ends[-1] - ends[-2]))

    @cached_property
    def chained(self) -> bool:
        """Does each rank have one marked step, so that an iteration is measured on copies of it?"""
        marked = [step for step in self.steps if self.graph.row[step.begin] != _core.NO_ROW]
        ranks = [step.rank for step in marked if step.name != WHOLE]
        return ranks == list(range(len(self.ranks)))

    @cached_property
    def _carried(self) -> list[tuple[int, int, int]]:
        return carried_edges(self.graph, self.steps)

    # ------------------------------------------------------------------------- trust

    def replay_error(self, rank: int | None = None) -> float:
        """How far a replay from dependencies alone is off: replayed / measured - 1.

        The median over the chosen steps of a rank; without `rank` that of the rank which is worst.

        Args:
            rank: Index in `ranks`.
        """
        ends = np.cumsum([len(steps) for steps in self._chosen_by_rank])
        by_rank = np.split(self.step_errors, ends[:-1])
        errors = by_rank if rank is None else [by_rank[rank]]
        medians = [float(np.median(of_rank)) for of_rank in errors if of_rank.size]
        return max(medians, key=abs, default=0.0)

    @cached_property
    def step_errors(self) -> Array:
        """float64 `[chosen steps]`: replayed / measured - 1 of each."""
        times = self.replay(with_residuals=False)
        pairs = [(self.step_ns(s, times), self.measured_step_ns(s)) for s in self.chosen_steps]
        return np.array([got / known - 1 if known else 0.0 for got, known in pairs])
