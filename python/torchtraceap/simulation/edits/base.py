"""What an edit is: a change of the graph that stands for a fix.

Note [Two variants]: a trace doesn't say which work needs which data. So an edit gives its change as
far as it may go (`best`: only dependencies that the trace shows hold) and as far as it is certain
(`cautious`: program order is kept). The prediction lies between what the two do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["Change", "Edit", "EditedGraph", "NotApplicableError", "joined"]

_NOTHING = np.zeros(0, dtype=np.int64)


class NotApplicableError(Exception):
    """The edit has nothing to change in this trace; the message says why."""


class Change:
    """New lags of edges, edges that are gone, edges that are new. The graph itself stays as it is.

    Edges and points are numbers of `SimulatedRun.graph`; of two lags for one edge the later holds.
    """

    def __init__(self) -> None:
        self._lags: list[tuple[Array, Array]] = []
        self._dropped: list[Array] = []
        self._added: list[tuple[Array, Array, Array]] = []
        self._ratio: Array | None = None

    def set_lags(self, edges: npt.ArrayLike, lags_ns: npt.ArrayLike) -> None:
        """What these edges cost, ns; one number for all, or one for each."""
        chosen = np.asarray(edges, dtype=np.int64).ravel()
        lags = np.broadcast_to(np.asarray(lags_ns), chosen.shape)
        self._lags.append((chosen, np.maximum(np.rint(lags), 0).astype(np.int64)))

    def drop(self, edges: npt.ArrayLike) -> None:
        """These dependencies are gone."""
        self._dropped.append(np.asarray(edges, dtype=np.int64).ravel())

    def add(
        self, sources: npt.ArrayLike, destinations: npt.ArrayLike, lags_ns: npt.ArrayLike
    ) -> None:
        """New dependencies from point to point, ns. They must not close a cycle."""
        begin = np.asarray(sources, dtype=np.int64).ravel()
        end = np.asarray(destinations, dtype=np.int64).ravel()
        lags = np.broadcast_to(np.asarray(lags_ns), begin.shape)
        self._added.append((begin, end, np.maximum(np.rint(lags), 0).astype(np.int64)))

    @property
    def lags(self) -> tuple[Array, Array]:
        """Edges and their new lags, ns, in the order in which they were set."""
        edges = np.concatenate([_NOTHING, *(edges for edges, _ in self._lags)])
        return edges, np.concatenate([_NOTHING, *(lags for _, lags in self._lags)])

    def costs_ns(self, run: SimulatedRun) -> Array:
        """int64 `[edges]`: what every edge of the graph costs with this change."""
        costs = run.cost_ns.copy()
        for edges, lags in self._lags:
            costs[edges] = lags
        return costs

    @property
    def dropped(self) -> Array:
        """Edges, each once."""
        return np.unique(np.concatenate([_NOTHING, *self._dropped]))

    @property
    def added(self) -> tuple[Array, Array, Array]:
        """Sources, destinations, lags in ns."""
        columns = zip(*self._added, strict=True) if self._added else ((), (), ())
        begin, end, lags = (np.concatenate([_NOTHING, *column]) for column in columns)
        return begin, end, lags

    def __len__(self) -> int:
        parts = [*(e for e, _ in self._lags), *self._dropped, *(b for b, _, _ in self._added)]
        return sum(map(len, parts))

    def delta(self) -> _core.GraphDelta:
        """As the engine takes it."""
        delta = _core.GraphDelta()
        edges, lags = self.lags
        delta.set_lags(edges, lags)
        delta.drop_all(self.dropped.tolist())
        for source, destination, lag in zip(*map(np.ndarray.tolist, self.added), strict=True):
            delta.add(source, destination, lag)
        return delta

    def ratio(self, run: SimulatedRun) -> Array:
        """float64 `[edges]`: new cost over the one before; of an edge without cost the new one,
        plus 1. Kept once asked for: the change must be complete by then."""
        if self._ratio is None:
            before = run.cost_ns
            costs = self.costs_ns(run)
            self._ratio = np.where(before > 0, costs / np.maximum(before, 1), 1.0 + costs)
        return self._ratio

    def only_removes(self, run: SimulatedRun) -> bool:
        """No edge is new or costs more than before: a replay can't be later at any point."""
        return not self._added and bool((self.ratio(run) <= 1).all())


def joined(run: SimulatedRun, changes: Sequence[Change]) -> Change:
    """Several edits at once.

    Where they change the same edge their ratios are multiplied: half the bytes on a GPU that is
    twice as fast take a quarter of the time, and what one of them removes stays removed.
    """
    if len(changes) == 1:
        return changes[0]
    union = Change()
    if not changes:
        return union
    ratio = changes[0].ratio(run).copy()
    for change in changes[1:]:
        ratio *= change.ratio(run)
    edges = np.flatnonzero(ratio != 1)
    before = run.cost_ns[edges]
    union.set_lags(edges, np.where(before > 0, before * ratio[edges], ratio[edges] - 1))
    for change in changes:
        union.drop(change.dropped)
        union.add(*change.added)
    return union


@dataclass(frozen=True, slots=True)
class EditedGraph:
    """The change, as far as it is certain and as far as it may go. See Note [Two variants]."""

    best: Change
    """What the fix does if everything that can't be seen is in its favour."""
    cautious: Change | None = None
    """What it does at least; None: the same."""
    realised: tuple[float, float] = (1.0, 1.0)
    """Share of the simulated saving that runs have realised, from low to high."""
    source: str = ""
    """Where that share, or the durations put in, come from."""
    note: str = ""
    """For a person: what was changed, and what was assumed."""


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
