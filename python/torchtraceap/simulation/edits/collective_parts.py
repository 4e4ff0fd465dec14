"""What the edits of collectives start from: every rank's part in every collective."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass, Phase
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import distinct
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.tables.matching import rank_collectives

__all__ = ["ACCUMULATION", "RankParts", "parts_of"]

ACCUMULATION = r"(?:^|: )torch::autograd::AccumulateGrad$"
GRADIENT_KINDS = ("all_reduce", "reduce_scatter", "reduce")
_HANDS_OVER = r"^c10d::|^record_param_comms$|^nccl:"
_OPERATORS = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
_KIND_NAMES = _core.collective_kind_names()


class RankParts:
    """The communication kernels of one rank, in order of their launches.

    Attributes:
        rows: GPU rows.
        kind: Name of the kind, such as "all_reduce".
        group: int64: the process group; -1 where unknown.
        group_size: int64: ranks in it; 0 where unknown.
        size: int64: bytes; -1 where unknown.
        phase: uint8: in which the collective was launched.
        step: int64: profiled step of its launch; -1 outside.
        transfer_ns: int64: from the arrival of the last rank with a trace to the end.
    """

    def __init__(
        self, run: SimulatedRun, view: RankView, core: _core.RankCollectives, group_sizes: Array
    ) -> None:
        self.view = view
        rows = view.gpu_class(GpuClass.COMMUNICATION)
        order = np.argsort(view.launch_times_ns(rows), kind="stable")
        self.rows = rows[order]
        place = _place_in(core, run.places[view.index], self.rows)
        known = place >= 0
        at = np.maximum(place, 0)
        self.kind = np.array(
            [
                _KIND_NAMES[k] if ok else "unknown"
                for k, ok in zip(_pick(core.kind, at), known, strict=True)
            ]
        )
        self.group = np.where(known, _pick(core.group, at).astype(np.int64), -1)
        self.group_size = group_sizes[self.group]
        size = _pick(core.bytes, at)
        self.size = np.where(known & (size != _core.NO_ID), size, -1)
        self.phase = view.phase_of(self.rows)
        self.step = view.step_of(self.rows)
        graph = run.graph
        edges, owner = self.transfer_edges()
        self.transfer_ns = np.zeros(len(self.rows), dtype=np.int64)
        np.maximum.at(self.transfer_ns, owner, graph.lag_ns[edges])

    def transfer_edges(self) -> tuple[Array, Array]:
        """Edges that carry the transfer: into the end, from the begin or the meeting point."""
        ends = self.view.end_of[self.rows]
        edges = self.view.edges_into(ends, "execution", "rendezvous")
        by_end = np.argsort(ends)
        owner = by_end[np.searchsorted(ends[by_end], self.view.destination_of(edges))]
        return edges, owner

    def set_transfer(self, change: Change, to_ns: Array) -> None:
        """A collective's data takes `to_ns` `[rows]`; NaN leaves it."""
        edges, owner = self.transfer_edges()
        lag_ns = self.view.cost_of(edges)
        # Of the two edges the one without cost is the begin of a part that only waits.
        chosen = ~np.isnan(to_ns[owner]) & (lag_ns > 0)
        change.set_lags(edges[chosen], to_ns[owner][chosen])

    def transfer_with(self, change: Change) -> Array:
        """float64 `[rows]`: what each collective's data takes with a change, ns."""
        edges, owner = self.transfer_edges()
        moves_ns = np.zeros(len(self.rows))
        np.maximum.at(moves_ns, owner, change.costs_of(self.view.costs_ns, edges))
        return moves_ns

    def remove(self, change: Change, places: Array, *, operators: bool = False) -> None:
        """Collectives are gone, with their transfer and their launch; `operators`: with all that
        the host does to hand them over."""
        rows = self.rows[places]
        self.view.remove_gpu(change, rows)
        edges, owner = self.transfer_edges()
        change.set_lags(edges[np.isin(owner, places)], 0)
        calls = self.view.launch_of(rows)
        self.view.set_host_work(change, distinct(calls[calls >= 0]), 0)
        if operators:
            gone = distinct(self.operators[places])
            kept = np.delete(self.operators, places)
            self.view.set_host_work(change, np.setdiff1d(gone[gone >= 0], kept), 0)

    @cached_property
    def operators(self) -> Array:
        """int64: the outermost operator that hands each collective over; -1 where none does."""
        view = self.view
        rows = view.outermost(view.rows_named(_HANDS_OVER, *_OPERATORS))
        calls = view.launch_of(self.rows)
        place = np.full(len(calls), -1)
        known = calls >= 0
        place[known] = view.inside(view.begin_of[calls[known]].astype(np.int64), rows)
        return np.where(place >= 0, rows[place], -1) if len(rows) else place

    @cached_property
    def gradients(self) -> Array:
        """int64 `[rows]`: how many parameters' gradients each collective of gradients may hold:
        those that autograd accumulated since the one before, and one where a step has no more
        gradients than collectives; -1 for others, and where that is not recorded."""
        view = self.view
        found = np.full(len(self.rows), -1, dtype=np.int64)
        rows = view.outermost(view.rows_named(ACCUMULATION, EventKind.CPU_OP))
        places = np.flatnonzero(self.is_gradient)
        if not len(rows) or not len(places):
            return found
        since_ns = np.sort(view.table.ts_ns[rows])
        done = np.searchsorted(since_ns, view.launch_times_ns(self.rows[places]))
        held = np.diff(done, prepend=0)
        for _, mine in rows_by_key(self.step[places]):
            # One by one, at the end of a backward pass as well as in it.
            if held[mine].sum() <= len(mine):
                held[mine] = 1
        found[places] = np.maximum(held, 1)
        return found

    @property
    def is_gradient(self) -> Array:
        """bool `[rows]`: reduces gradients: of such a kind, in a backward pass or the optimizer's
        beginning, or in no known phase between them."""
        of_kind = np.isin(self.kind, GRADIENT_KINDS)
        return of_kind & np.isin(self.phase, [Phase.BACKWARD, Phase.OPTIMIZER])


def parts_of(run: SimulatedRun) -> tuple[RankParts, ...]:
    """By rank of the run; made once."""
    return run.cached("parts", lambda: _build(run))


def _build(run: SimulatedRun) -> tuple[RankParts, ...]:
    core = rank_collectives(run.trace)
    sizes = np.array([*(group.size for group in core.groups), 0], dtype=np.int64)
    return tuple(RankParts(run, view, core, sizes) for view in views(run))


def _pick(values: Array, at: Array) -> Array:
    return np.asarray(values)[at] if len(values) else np.zeros(len(at), dtype=np.int64)


def _place_in(core: _core.RankCollectives, rank: int, rows: Array) -> Array:
    """Of each row its part, or -1."""
    mine = np.flatnonzero(core.rank == rank)
    order = mine[np.argsort(core.row[mine], kind="stable")]
    if not len(order):
        return np.full(len(rows), -1)
    place = np.minimum(np.searchsorted(core.row[order], rows), len(order) - 1)
    return np.where(core.row[order[place]] == rows, order[place], -1)
