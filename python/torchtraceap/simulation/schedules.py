"""`Schedule`: the times of all points of a run in a trace that is written of edits.

Note [Written steps]: of a form of the edits the steps are written in the state that it leaves, the
last copy of the chain of Note [Steady state] in run.py. Points before the first step keep the times
of the replay of the recording; the steps are moved as one, to where the old ones began, or as much
later as the points before demand. Work of the copy before that still runs on the GPU when the first
step begins is written too, as a recording from the middle of a training has it: events
without a launch. Else the first iteration would begin too early.

Note [Between forms]: a prediction is the mean of several replays, so no single one takes that time.
Without a requested form, each point happens between its times in two schedules, always the same
part of the way from the one to the other, so that a step takes the predicted time. Relations that
hold in both, such as the order on a thread and lags of dependencies, hold between them. The two
are, of the forms at best, as is likely and at least, those between which the prediction lies, in
the steady state, else in the state in which recording began. A prediction that keeps more of the
measured time than any form, as where a saving is lost in the noise, lies between the slowest and
the measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import add, distinct
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["MEASURED", "Blend", "RunningWork", "Schedule", "Schedules"]

MEASURED = "as measured"
"""The description of a schedule of measured times."""
_PARTS = 1 << 16
"""Parts of the way between two schedules: whole numbers keep the order of times."""
_FAR_NS = 1 << 46
"""A way that is longer (20 hours) is divided before it is multiplied."""
_MOST = 1 << 62
_NEVER = _core.NEVER


@dataclass(frozen=True, slots=True)
class RunningWork:
    """GPU events of the steps of all ranks, whose copies before the first step may still run."""

    rank: Array
    """int64 `[events]`: index in the run's `ranks`."""
    row: Array
    """int64 `[events]`."""
    ns: Array
    """int64 `[2, events]`: begin and end of the part after the begin of the first step, on the
    graph's clock; equal where there is none."""

    def rank_work(self, rank: int) -> tuple[Array, Array]:
        """Return the rows that run, and their begins and ends `[2, rows]`."""
        mine = (self.rank == rank) & (self.ns[0] < self.ns[1])
        return self.row[mine], self.ns[:, mine]

    def end_ns(self, rank: int) -> int:
        """Return the end of the last event of a rank, ns; NEVER where none runs."""
        return int(self.rank_work(rank)[1][1].max(initial=_NEVER))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times of all points on the graph's clock, ns."""

    times_ns: Array
    """int64 `[points]`."""
    running: RunningWork
    """Work of earlier steps that still runs on the GPU."""
    change: Change
    """The change whose events are written."""
    words: str
    """A description, for a person."""

    def interpolate(self, other: Schedule, part: int) -> Schedule:
        """Go `part` of `_PARTS` of the way, with the events of the nearer one. See Note [Between
        forms]."""
        ns = _between(self.running.ns, other.running.ns, part)
        return Schedule(
            _between(self.times_ns, other.times_ns, part),
            replace(self.running, ns=ns),
            self.change if 2 * part <= _PARTS else other.change,
            self.words,
        )


@dataclass(frozen=True, slots=True)
class Blend:
    """A schedule between two others."""

    schedule: Schedule
    one: Schedule
    other: Schedule
    share: float
    """Share of the way from the one to the other."""


class Schedules:
    """Schedules of a run, and the lengths of its steps in them."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._ranks = [rank for rank, steps in enumerate(run.steps_by_rank) if steps]
        firsts = [run.steps_by_rank[rank][0].begin for rank in self._ranks]
        self._firsts = np.array(firsts, dtype=np.int64)

    @cached_property
    def _launched(self) -> tuple[Array, Array]:
        """Ranks and rows of GPU events that a call of the steps launches; empty without steps."""
        ranks, rows = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for rank in self._ranks if self._run.per_step else []:
            part = self._run.ranks[rank]
            mine = part.tree.gpu_rows.astype(np.int64)
            points = self._run.graph.begin_of(rank)[mine]
            known = (points != _core.NO_ROW) & (part.tree.launch[mine] != _core.NO_ROW)
            known &= self._run.graph.end_of(rank)[mine] != _core.NO_ROW
            known[known] = self._run.step_of_point[points[known]] != _core.NO_ROW
            rows.append(mine[known])
            ranks.append(np.full(len(rows[-1]), rank))
        return np.concatenate(ranks), np.concatenate(rows)

    # ------------------------------------------------------------------------- schedules

    def measured_schedule(self, change: Change) -> Schedule:
        """Return the schedule of measured times, with the events of a change."""
        return self._without_running_work(self._run.graph.time_ns, change, MEASURED)

    def recorded_schedule(self, change: Change, words: str) -> Schedule:
        """Replay the recording, whose first step begins in the state that was recorded."""
        times = self._with_calls(self._run.replay(change.delta()), change)
        return self._without_running_work(
            times, change, f"{words}, in the state in which recording began"
        )

    def steady_schedule(self, change: Change, words: str) -> Schedule:
        """Replay in a steady state; without steps as recorded. See Note [Written steps]."""
        if not self._run.per_step or not self._ranks:
            times = self._with_calls(self._run.replay(change.delta()), change)
            return self._without_running_work(times, change, words)
        words = f"{words}, in a steady state"
        copies = self._run.chain(change.delta())
        recorded, before, last = copies[0], copies[-2], copies[-1]
        happens = (last != _NEVER) & ~self._run.before_steps
        # Work that was launched before the first step has ended where its iteration begins.
        by_ns = self._delay_by_dependencies_ns(change, recorded, last, happens)
        for rank in self._ranks:
            first, ended = self._run.bounding_work(rank)
            by_ns = max(by_ns, int(recorded[first].max()) - int(before[ended].max()))
        times = np.where(happens, add(np.where(happens, last, 0), by_ns), recorded)
        times = self._with_calls(times, change)
        of_rank, of_row = self._launched
        points = np.zeros((2, len(of_row)), dtype=np.int64)
        for rank in self._ranks:
            rows = of_row[of_rank == rank]
            begin_of, end_of = self._run.graph.begin_of(rank), self._run.graph.end_of(rank)
            points[:, of_rank == rank] = begin_of[rows], end_of[rows]
        running_ns = before[points]
        running_ns = np.where(running_ns == _NEVER, running_ns, add(running_ns, by_ns))
        running = RunningWork(
            *self._launched, np.maximum(running_ns, self._first_step_begins(times))
        )
        return Schedule(times, running, change, words)

    def _without_running_work(self, times_ns: Array, change: Change, words: str) -> Schedule:
        """Make a schedule in which no unrecorded work runs when the first step begins."""
        begins = self._first_step_begins(times_ns)
        running = RunningWork(*self._launched, np.stack([begins, begins]))
        return Schedule(times_ns, running, change, words)

    def _with_calls(self, times_ns: Array, change: Change) -> Array:
        """Move GPU events of which nothing is left after the calls that launch them, int64
        `[points]`, so that nothing begins before its launch on the way between schedules."""
        graph = self._run.graph
        launches = change.dropped[graph.kind[change.dropped] == _core.DependencyKind.LAUNCH]
        begins = self._run.destination[launches].astype(np.int64)
        ends = np.minimum(begins + 1, len(graph) - 1)
        gone = (graph.row[ends] == graph.row[begins]) & (times_ns[ends] == times_ns[begins])
        launches, begins, ends = launches[gone], begins[gone], ends[gone]
        moved = times_ns.copy()
        moved[begins] = np.maximum(times_ns[begins], times_ns[graph.source[launches]])
        moved[ends] = np.maximum(times_ns[ends], moved[begins])
        for lane in distinct(graph.lane[begins]).tolist():
            mine = slice(int(graph.lane_begin[lane]), int(graph.lane_end[lane]))
            others = times_ns[mine].copy()
            inside = [points[graph.lane[points] == lane] - mine.start for points in (begins, ends)]
            others[np.concatenate(inside)] = _MOST
            others = np.minimum.accumulate(others[::-1])[::-1]
            moved[mine] = np.maximum(times_ns[mine], np.minimum(moved[mine], others))
        return moved

    def _first_step_begins(self, times_ns: Array) -> Array:
        """Return for each launched event the begin of the first step of its rank, int64."""
        of_rank = np.zeros(len(self._run.ranks), dtype=np.int64)
        of_rank[self._ranks] = times_ns[self._firsts]
        begins: Array = of_rank[self._launched[0]]
        return begins

    def _delay_by_dependencies_ns(
        self, change: Change, recorded: Array, last: Array, happens: Array
    ) -> int:
        """Return by how much later than in the chain the steps must be written, so that they begin
        no earlier than the old ones, nor than dependencies on earlier points allow, ns."""
        graph = self._run.graph
        cost_ns = self._run.cost_ns.copy()
        edges, lags = change.lags
        cost_ns[edges] = lags
        kept = np.ones(len(cost_ns), dtype=bool)
        kept[change.dropped] = False
        begin, end, more_ns = change.added
        open_ = np.ones(len(begin), dtype=bool)
        open_[_core.closing_edges(graph, change.delta())] = False
        source = np.concatenate([graph.source[kept].astype(np.int64), begin[open_]])
        destination = np.concatenate([self._run.destination[kept].astype(np.int64), end[open_]])
        cost_ns = np.concatenate([cost_ns[kept], more_ns[open_]])
        enters = ~happens[source] & happens[destination]
        at, to = source[enters], destination[enters]
        reached = add(recorded[at], cost_ns[enters])
        firsts = self._firsts[happens[self._firsts]]
        late = np.concatenate([add(reached, -last[to]), add(recorded[firsts], -last[firsts])])
        return int(late.max(initial=-_MOST))

    # ------------------------------------------------------------------------- lengths

    def step_ns(self, schedule: Schedule) -> float:
        """Return the mean of the counted steps, ns."""
        return float(self._run.mean_ns(self.lengths_ns(schedule)))

    def lengths_ns(self, schedule: Schedule) -> Array:
        """Return the iteration of each of the run's steps, int64 `[steps]`, ns."""
        running = [schedule.running.end_ns(rank) for rank in self._ranks]
        return self._run.lengths_at(schedule.times_ns, np.array(running, dtype=np.int64))

    # ------------------------------------------------------------------------- between

    def find_blend(self, step_ns: float, ways: Sequence[tuple[Schedule, Schedule]]) -> Blend:
        """Return the schedule on the first way between two others on which a step takes so long,
        else the nearest end of one."""
        for one, other in ways:
            if self.step_ns(one) <= step_ns <= self.step_ns(other):
                return self._between(one, other, step_ns)
            if self.step_ns(other) <= step_ns <= self.step_ns(one):
                return self._between(one, other, step_ns)
        ends = [end for way in ways for end in way]
        nearest = min(ends, key=lambda end: abs(self.step_ns(end) - step_ns))
        return Blend(nearest, nearest, nearest, 0.0)

    def _between(self, one: Schedule, other: Schedule, step_ns: float) -> Blend:
        for end in (one, other):  # times are whole
            if abs(self.step_ns(end) - step_ns) <= 1:
                return Blend(end, end, end, 0.0)
        ascends = self.step_ns(one) <= self.step_ns(other)
        low, high = 0, _PARTS
        while high - low > 1:
            middle = (low + high) // 2
            is_below = self.step_ns(one.interpolate(other, middle)) <= step_ns
            low, high = (middle, high) if is_below == ascends else (low, middle)
        ends = [one.interpolate(other, part) for part in (low, high)]
        off_ns = [abs(self.step_ns(end) - step_ns) for end in ends]
        nearer = 1 if off_ns[1] < off_ns[0] else 0
        return Blend(ends[nearer], one, other, (low, high)[nearer] / _PARTS)


def _between(one_ns: Array, other_ns: Array, part: int) -> Array:
    """Return times between others, int64; every order that holds in both is kept."""
    if part in (0, _PARTS):
        return other_ns if part else one_ns
    way_ns = add(other_ns, -one_ns)
    near = np.clip(way_ns, -_FAR_NS, _FAR_NS) * part // _PARTS
    return add(one_ns, np.where(np.abs(way_ns) <= _FAR_NS, near, way_ns // _PARTS * part))
