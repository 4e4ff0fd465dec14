"""Every rank's part in every collective, and the contention between communication and computation.

Note [Contention]: computation beside communication is slower, and so is communication: both share
memory bandwidth and multiprocessors. An edit that moves collectives brings them beside other
kernels, or takes them away. Kernels and transfers that have company for another share of their time
than in the trace get slower or faster by that share. By how much, a trace seldom shows: at best a
kernel that gets company runs as fast as before, and one that loses it regains the most that is
assumed; at least it is the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass, Phase
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import covered_before, union
from torchtraceap.core.sums import distinct, median
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.edits.view import ACCUMULATION, RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.grouping import Groups, repeat_keys, rows_by_key
from torchtraceap.tables.matching import rank_collectives

__all__ = [
    "RankParts",
    "contend",
    "measured_slowdown",
    "parts_of",
    "share_beside_computation",
]

GRADIENT_KINDS = ("all_reduce", "reduce_scatter", "reduce")
UNMEASURED = 1.3
"""The most that is assumed where the trace doesn't show it."""
BESIDE_COMPUTATION = (1.0, 1.2)
"""Least and most slowdown of data that moves beside computation. Assumed: a trace shows it for no
collective alone."""
MOST_MEASURED = 2.0
"""A larger ratio of kernels has another cause than contention."""
_MIDDLE_HALF = (0.25, 0.75)
"""Kernels don't all suffer alike, and few are seen both ways."""
_ENOUGH_NAMES = 5
_ENOUGH_EVENTS = 5
_HANDS_OVER = r"^c10d::|^record_param_comms$|^nccl:"


class RankParts:
    """The communication kernels of one rank, in order of their launches.

    Attributes:
        rows: GPU rows.
        kind: Name of the kind, such as "all_reduce".
        group: int64: the process group; -1 where unknown.
        group_size: int64: ranks in it; 0 where unknown.
        size: int64: bytes; -1 where unknown.
        phase: uint8: phase in which the collective was launched.
        step: int64: profiled step of its launch; -1 outside.
        wait_ns: int64: what it waits for other ranks; 0 where that is not told.
        transfer_ns: int64: from the arrival of the last rank with a trace to the end.
    """

    def __init__(
        self, run: SimulatedRun, view: RankView, core: _core.RankCollectives, group_sizes: Array
    ) -> None:
        self.view = view
        rows = view.gpu_class(GpuClass.COMMUNICATION)
        self.rows = rows[np.argsort(view.launch_times_ns(rows), kind="stable")]
        mine = np.flatnonzero(core.rank == run.places[view.index])
        mine = mine[np.argsort(core.row[mine], kind="stable")]
        place = np.searchsorted(core.row[mine], self.rows)
        known = np.append(core.row[mine], _core.NO_ROW)[place] == self.rows
        at = np.append(mine, 0)[place]
        names = _core.collective_kind_names()
        self.kind = np.array(
            [
                names[kind] if ok else "unknown"
                for kind, ok in zip(_pick(core.kind, at), known, strict=True)
            ]
        )
        self.group = np.where(known, _pick(core.group, at).astype(np.int64), -1)
        self.group_size = group_sizes[self.group]
        size = _pick(core.bytes, at)
        self.size = np.where(known & (size != _core.NO_ID), size, -1)
        self.wait_ns = np.where(known, _pick(core.wait_ns, at), 0)
        self.phase = view.phase_of(self.rows)
        self.step = view.step_of(self.rows)
        edges, owner = self.transfer_edges()
        self.transfer_ns = np.zeros(len(self.rows), dtype=np.int64)
        np.maximum.at(self.transfer_ns, owner, run.graph.lag_ns[edges])

    def transfer_edges(self) -> tuple[Array, Array]:
        """Return the edges that carry the transfer, into the end from the begin or the meeting
        point, and the collective of each."""
        ends = self.view.end_of[self.rows]
        edges = self.view.edges_into(ends, "execution", "rendezvous")
        by_end = np.argsort(ends)
        owner = by_end[np.searchsorted(ends[by_end], self.view.destination_of(edges))]
        return edges, owner

    def set_transfer(self, change: Change, to_ns: Array) -> None:
        """Set the times of transfers to `to_ns` `[rows]`; NaN leaves one as it is."""
        edges, owner = self.transfer_edges()
        lag_ns = self.view.cost_of(edges)
        # Of the two edges the one without cost is the begin of a part that only waits.
        chosen = ~np.isnan(to_ns[owner]) & (lag_ns > 0)
        change.set_lags(edges[chosen], to_ns[owner][chosen])

    def transfer_with(self, change: Change) -> Array:
        """Return the time of each transfer with a change, float64 `[rows]`, ns."""
        edges, owner = self.transfer_edges()
        moves_ns = np.zeros(len(self.rows))
        np.maximum.at(moves_ns, owner, change.costs_of(self.view.costs_ns, edges))
        return moves_ns

    def remove(self, change: Change, places: Array, *, operators: bool = False) -> None:
        """Remove collectives with their transfer and launch; `operators`: with all that the host
        does to hand them over."""
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
        """The outermost operator that hands each collective over, int64; -1 where none does."""
        view = self.view
        kinds = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
        rows = view.outermost(view.rows_named(_HANDS_OVER, *kinds))
        calls = view.launch_of(self.rows)
        place = np.full(len(calls), -1)
        known = calls >= 0
        place[known] = view.inside(view.begin_of[calls[known]].astype(np.int64), rows)
        return np.where(place >= 0, rows[place], -1) if len(rows) else place

    @cached_property
    def gradients(self) -> Array:
        """The number of parameters whose gradients each collective may hold, int64 `[rows]`: those
        that autograd accumulated since the one before, and one where a step has no more gradients
        than collectives; -1 for other collectives, and where that is not recorded."""
        view = self.view
        counts = np.full(len(self.rows), -1, dtype=np.int64)
        rows = view.outermost(view.rows_named(ACCUMULATION, EventKind.CPU_OP))
        places = np.flatnonzero(self.is_gradient)
        if not len(rows) or not len(places):
            return counts
        since_ns = np.sort(view.table.ts_ns[rows])
        done = np.searchsorted(since_ns, view.launch_times_ns(self.rows[places]))
        held = np.diff(done, prepend=0)
        for _, mine in rows_by_key(self.step[places]):
            # One by one, at the end of a backward pass as well as in it.
            if held[mine].sum() <= len(mine):
                held[mine] = 1
        counts[places] = np.maximum(held, 1)
        return counts

    @property
    def is_gradient(self) -> Array:
        """A mask of collectives that reduce gradients: of such a kind, in a backward pass or the
        beginning of the optimizer, or in no known phase between them."""
        of_kind = np.isin(self.kind, GRADIENT_KINDS)
        return of_kind & np.isin(self.phase, [Phase.BACKWARD, Phase.OPTIMIZER])


def parts_of(run: SimulatedRun) -> tuple[RankParts, ...]:
    """Return the parts of each rank of the run, cached."""
    return run.cached("parts", lambda: _rank_parts(run))


def _rank_parts(run: SimulatedRun) -> tuple[RankParts, ...]:
    core = rank_collectives(run.trace)
    sizes = np.array([*(group.size for group in core.groups), 0], dtype=np.int64)
    return tuple(RankParts(run, view, core, sizes) for view in views(run))


def _pick(values: Array, at: Array) -> Array:
    return np.asarray(values)[at] if len(values) else np.zeros(len(at), dtype=np.int64)


# ------------------------------------------------------------------------- contention


def contend(
    run: SimulatedRun,
    change: Change,
    *,
    best: bool,
    shares: Mapping[int, Array] | None = None,
) -> None:
    """Add to a change the contention that it brings or takes away. See Note [Contention].

    Args:
        run: The run.
        change: All other modifications of the edit.
        best: The change is the edit at best.
        shares: For each rank of the run, the share of its time in which the data of each
            collective moved beside computation, where that is not the trace's.
    """
    before, after = run.graph.time_ns, run.replay(change.delta())
    low, high, _ = measured_slowdown(run)
    contention = Change()  # what each rank is asked is of its own edges, and of the other changes
    for view, parts in zip(views(run), parts_of(run), strict=True):
        moves_ns = parts.transfer_with(change)
        rows = view.gpu_class(GpuClass.COMPUTE)
        had = _beside_data(parts, rows, parts.transfer_ns, before)
        has = _beside_data(parts, rows, moves_ns, after)
        ratio = _ratio(had, has, (low, high), best=best)
        edges = view.duration_edges(rows[ratio != 1])
        costs = change.costs_of(run.cost_ns, edges) * ratio[ratio != 1]
        contention.set_lags(edges[edges >= 0], costs[edges >= 0])
        had = share_beside_computation(run, parts)
        if shares is not None:
            had = shares.get(view.index, had)
        has = _moving_beside(parts, moves_ns, after)
        ratio = _ratio(had, has, BESIDE_COMPUTATION, best=best)
        changed = (ratio != 1) & (moves_ns > 0)
        parts.set_transfer(contention, np.where(changed, moves_ns * ratio, np.nan))
    change.set_lags(*contention.lags)


def share_beside_computation(run: SimulatedRun, parts: RankParts) -> Array:
    """Return the share of its time in which the data of each collective moves beside computation,
    float64 `[collectives]`, [0, 1]."""
    return _moving_beside(parts, parts.transfer_ns, run.graph.time_ns)


def _ratio(had: Array, has: Array, slowdown: tuple[float, float], *, best: bool) -> Array:
    """Return new time over old, where work has company for another share of its time."""
    low, high = slowdown
    factor = np.where((has > had) == best, low, high)
    ratio: Array = (1 + (factor - 1) * has) / (1 + (factor - 1) * had)
    return ratio


def _moving_beside(parts: RankParts, moves_ns: Array, times: Array) -> Array:
    """Return the share of the transfer of each collective during which computation runs."""
    view, ends = parts.view, times[parts.view.end_of[parts.rows]]
    rows = view.gpu_class(GpuClass.COMPUTE)
    begins = ends - moves_ns.astype(np.int64)
    return _share(begins, ends, times[view.begin_of[rows]], times[view.end_of[rows]])


def _beside_data(parts: RankParts, rows: Array, moves_ns: Array, times: Array) -> Array:
    """Return the share of each GPU event during which the data of a collective move, [0, 1]: one
    that waits for its other ranks keeps nobody company."""
    view, ends = parts.view, times[parts.view.end_of[parts.rows]]
    begins = ends - moves_ns.astype(np.int64)
    return _share(times[view.begin_of[rows]], times[view.end_of[rows]], begins, ends)


def _share(begin: Array, end: Array, since: Array, until: Array) -> Array:
    """Return the share of each interval during which any of the others runs, [0, 1]."""
    if not len(since) or not len(begin):
        return np.zeros(len(begin))
    others = union([np.stack([since, until], axis=1)])
    inside = covered_before(others, end) - covered_before(others, begin)
    share: Array = inside / np.maximum(end - begin, 1)
    return share


def measured_slowdown(run: SimulatedRun) -> tuple[float, float, str]:
    """Return the least and the most slowdown of computation beside communication, by kernels that
    ran both ways, and the source of these; cached."""
    return run.cached("slowdown", lambda: _slowdown(run))


def _slowdown(run: SimulatedRun) -> tuple[float, float, str]:
    ratios = [ratio for parts in parts_of(run) for ratio in _ratios_of_kernels(run, parts)]
    if len(ratios) < _ENOUGH_NAMES:
        return 1.0, UNMEASURED, "assumed: the trace doesn't show it"
    low, high = np.clip(np.quantile(ratios, _MIDDLE_HALF), 1.0, MOST_MEASURED).tolist()
    return low, high, f"measured: {len(ratios)} kernels ran both ways in this trace"


def _ratios_of_kernels(run: SimulatedRun, parts: RankParts) -> list[float]:
    """Return ratios of kernels that do the same work. A wait for other ranks slows nothing down, so
    that time beside it is time alone."""
    view = parts.view
    rows = view.gpu_class(GpuClass.COMPUTE)
    share = _beside_data(parts, rows, parts.transfer_ns, run.graph.time_ns)
    same = Groups(*repeat_keys(run.ranks[view.index], rows)).index
    lengths = view.table.dur_ns[rows]
    beside, alone = share >= 0.9, share <= 0
    both = np.intersect1d(same[beside], same[alone])
    rows_of = dict(rows_by_key(same))
    ratios = []
    for work in both.tolist():
        mine = rows_of[work]
        with_other, without = lengths[mine[beside[mine]]], lengths[mine[alone[mine]]]
        if min(len(with_other), len(without)) >= _ENOUGH_EVENTS and median(without) > 0:
            ratios.append(float(median(with_other) / median(without)))
    return ratios
