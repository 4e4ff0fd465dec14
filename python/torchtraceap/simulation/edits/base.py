"""What an edit is: a change of the graph that stands for a fix.

Note [Two variants]: a trace doesn't say which work needs which data. So an edit gives its change as
far as it may go (`best`: only dependencies that the trace shows hold) and as far as it is certain
(`cautious`: program order is kept). The prediction lies between what the two do; where they are
factors apart, the edit may say which place is the likely one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import distinct
from torchtraceap.core.records import dataclass
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["Change", "Edit", "EditedGraph", "NewEvent", "NotApplicableError", "joined"]

_NOTHING = np.zeros(0, dtype=np.int64)


class NotApplicableError(Exception):
    """The edit has nothing to change in this trace; the message says why."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that an edit brings in, for the trace that is written of it."""

    rank: int
    """Index in the run's `ranks`."""
    name: str
    begin: int
    """The point of the graph at which it begins."""
    end: int
    """The point at which it ends."""
    like: int
    """The row that it looks like: on the same thread or stream, of the same category, with the
    same `args` where `args` says nothing else."""
    args: Mapping[str, int | float | str] = field(default_factory=dict)
    launches: Array | tuple[int, ...] = ()
    """GPU rows that it launches, in place of their calls."""


class Change:
    """New lags of edges, edges that are gone, edges that are new. The graph itself stays as it is.

    Edges and points are numbers of `SimulatedRun.graph`; of two lags for one edge the later holds.
    Nothing here is as long as the graph: what a change costs grows with what it touches.
    """

    def __init__(self) -> None:
        self._lags: list[tuple[Array, Array]] = []
        self._dropped: list[Array] = []
        self._is_unique = False
        self._delta: _core.GraphDelta | None = None
        self._added: list[tuple[Array, Array, Array]] = []
        self._carried: list[tuple[Array, Array, Array]] = []
        self._removed: list[tuple[int, Array]] = []
        self._inserted: list[NewEvent] = []
        self._touched: tuple[Array, Array] | None = None

    def set_lags(self, edges: npt.ArrayLike, lags_ns: npt.ArrayLike) -> None:
        """What these edges cost, ns; one number for all, or one for each; less than 0 counts as 0.

        No edge of a recorded run costs less than 0: what a point took beyond its dependencies is
        measured from the latest of them.
        """
        chosen = np.asarray(edges, dtype=np.int64).ravel()
        self._lags.append((chosen, _whole_ns(lags_ns, chosen.shape)))
        self._touched = None
        self._delta = None

    def drop(self, edges: npt.ArrayLike) -> None:
        """These dependencies are gone."""
        self._dropped.append(np.asarray(edges, dtype=np.int64).ravel())
        self._is_unique = False
        self._delta = None

    def add(
        self, sources: npt.ArrayLike, destinations: npt.ArrayLike, lags_ns: npt.ArrayLike
    ) -> None:
        """New dependencies from point to point, ns. Replays leave out those that close a cycle."""
        begin = np.asarray(sources, dtype=np.int64).ravel()
        end = np.asarray(destinations, dtype=np.int64).ravel()
        self._added.append((begin, end, _whole_ns(lags_ns, begin.shape)))
        self._delta = None

    def carry(
        self, sources: npt.ArrayLike, destinations: npt.ArrayLike, lags_ns: npt.ArrayLike
    ) -> None:
        """New dependencies from points of the recorded steps to points of the steps behind them,
        which go on in the same way, ns."""
        begin = np.asarray(sources, dtype=np.int64).ravel()
        end = np.asarray(destinations, dtype=np.int64).ravel()
        self._carried.append((begin, end, _whole_ns(lags_ns, begin.shape)))
        self._delta = None

    def remove(self, rank: int, rows: npt.ArrayLike) -> None:
        """These events are not in the trace that is written of the edit.

        It changes no time: what the events cost is for `set_lags` and `drop` to say.

        Args:
            rank: Index in the run's `ranks`.
            rows: Of its table; what lies inside a host row goes with it.
        """
        self._removed.append((rank, np.asarray(rows, dtype=np.int64).ravel()))

    def insert(self, event: NewEvent) -> None:
        """This event is in the trace that is written of the edit. It changes no time."""
        self._inserted.append(event)

    @property
    def lags(self) -> tuple[Array, Array]:
        """Edges, each once and in order, and their new lags, ns."""
        if self._touched is None:
            self._touched = _core.later_lags(self._lags)
        return self._touched

    def costs_of(self, before_ns: Array, edges: Array) -> Array:
        """int64 `[n]`: what edges cost with this change.

        Args:
            before_ns: int64, what every edge of the run costs.
            edges: Numbers of edges.
        """
        changed, lags = self.lags
        if not len(changed):
            return before_ns[edges]
        place = np.minimum(np.searchsorted(changed, edges), len(changed) - 1)
        costs: Array = np.where(changed[place] == edges, lags[place], before_ns[edges])
        return costs

    @property
    def dropped(self) -> Array:
        """Edges, each once and in order."""
        if len(self._dropped) > 1 or not self._is_unique:
            edges = np.sort(np.concatenate([_NOTHING, *self._dropped]))
            self._dropped = [edges[np.diff(edges, prepend=-1) != 0]]
            self._is_unique = True
        return self._dropped[0]

    @property
    def added(self) -> tuple[Array, Array, Array]:
        """Sources, destinations, lags in ns."""
        return _columns(self._added)

    @property
    def carried(self) -> tuple[Array, Array, Array]:
        """Sources, destinations, lags in ns."""
        return _columns(self._carried)

    def removed(self, rank: int) -> Array:
        """Rows of a rank that are gone, each once and in order."""
        rows = (rows for index, rows in self._removed if index == rank)
        return distinct(np.concatenate([_NOTHING, *rows]))

    @property
    def inserted(self) -> tuple[NewEvent, ...]:
        """In the order in which they were inserted."""
        return tuple(self._inserted)

    def __len__(self) -> int:
        parts = [*(e for e, _ in self._lags), *self._dropped, *(b for b, _, _ in self._added)]
        return sum(map(len, parts))

    def delta(self) -> _core.GraphDelta:
        """As the engine takes it; kept until something else is changed."""
        if self._delta is None:
            self._delta = _core.GraphDelta()
            self._delta.set_lags(*self.lags)
            self._delta.drop_all(self.dropped)
            self._delta.add_all(*self.added)
            self._delta.carry_all(*self.carried)
        return self._delta

    def only_removes(self, run: SimulatedRun) -> bool:
        """No edge is new or costs more than before: a replay can't be later at any point."""
        edges, lags = self.lags
        is_new = any(len(begin) for begin, _, _ in self._added) or bool(self._carried)
        return not is_new and bool((lags <= run.cost_ns[edges]).all())


def _whole_ns(times_ns: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """int64 of this shape: whole nanoseconds, not below 0."""
    times = np.asarray(times_ns)
    if times.dtype.kind == "f":
        times = np.rint(times)
    return np.broadcast_to(np.maximum(times, 0).astype(np.int64), shape)


def _columns(parts: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    columns = zip(*parts, strict=True) if parts else ((), (), ())
    first, second, third = (np.concatenate([_NOTHING, *column]) for column in columns)
    return first, second, third


def joined(run: SimulatedRun, changes: Sequence[Change]) -> Change:
    """Several edits at once.

    Where they change the same edge their ratios are multiplied: half the bytes on a GPU that is
    twice as fast take a quarter of the time, and what one of them removes stays removed.
    """
    if len(changes) == 1:
        return changes[0]
    union = Change()
    lags = _NOTHING, _NOTHING
    for change in changes:
        lags = _core.both_lags(run.cost_ns, lags, change.lags) if len(lags[0]) else change.lags
        union.drop(change.dropped)
        union.add(*change.added)
        union._carried += change._carried
        union._removed += change._removed
        union._inserted += change._inserted
    union._lags, union._touched = [lags], lags
    return union


@dataclass(frozen=True, slots=True)
class EditedGraph:
    """The change, as far as it is certain and as far as it may go. See Note [Two variants]."""

    best: Change
    """What the fix does if everything that can't be seen is in its favour."""
    cautious: Change | None = None
    """What it does at least; None: the same."""
    likely: tuple[Change, ...] = ()
    """What it most likely does, for the guess, which is the mean of what these do; empty: nothing
    speaks for any place between the two, and it is the mean of them."""
    of_collectives: bool = False
    """What it changes is collectives, whatever else follows from that."""
    source: str = ""
    """Where the durations put in come from."""
    note: str = ""
    """For a person: what was changed, and what was assumed."""

    @property
    def least(self) -> Change:
        """What it does at least."""
        return self.best if self.cautious is None else self.cautious

    @property
    def guesses(self) -> tuple[Change, Change]:
        """The guess is the mean of what these do."""
        likely = self.likely or (self.best, self.least)
        return likely[0], likely[-1]


class Edit(Protocol):
    """One fix. `apply` is pure: it reads the run and returns a change."""

    @property
    def name(self) -> str:
        """As on the command line, its value included."""
        ...

    def apply(self, run: SimulatedRun) -> EditedGraph:
        """The change for this run.

        Raises:
            NotApplicableError: Nothing in this run would change.
        """
        ...
