"""Computation beside communication is slower, and so is communication: both share memory bandwidth
and multiprocessors.

Note [Contention]: an edit that moves collectives brings them beside other kernels, or takes them
away. Kernels and transfers that have company for another share of their time than in the trace get
slower or faster by that share. By how much, a trace seldom shows: at best what gets company runs as
fast as before, and what loses it regains the most that is assumed; at least it is the other way
round.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchtraceap._core import GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import median
from torchtraceap.core.records import dataclass
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.edits.collective_parts import RankParts, parts_of
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.grouping import Groups, repeat_keys, rows_by_key

__all__ = ["Slowdown", "beside_computation", "contend", "measured_slowdown"]

UNMEASURED = 1.3
"""The most that is assumed where the trace doesn't show it."""
BESIDE_COMPUTATION = (1.0, 1.2)
"""How many times as long data may move beside computation. Assumed: a trace shows it for no
collective alone."""
MOST_MEASURED = 2.0
"""What kernels show beyond that is something else."""
_MIDDLE_HALF = (0.25, 0.75)
"""Kernels don't all suffer alike, and few are seen both ways."""
_ENOUGH_NAMES = 5
_ENOUGH_EVENTS = 5


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times as long computation takes beside communication."""

    low: float
    high: float
    source: str


def contend(
    run: SimulatedRun,
    change: Change,
    *,
    best: bool,
    shares: Mapping[int, Array] | None = None,
) -> None:
    """Adds to a change what contention it brings or takes away. See Note [Contention].

    Args:
        run: The run.
        change: With everything else that it changes.
        best: The change is the edit at best.
        shares: By rank of the run, for what share of its time the data of each collective moved
            beside computation, where that is not what the trace shows of it.
    """
    before, after = run.graph.time_ns, run.replay(change.delta())
    slower = measured_slowdown(run)
    for view, parts in zip(views(run), parts_of(run), strict=True):
        moves_ns = parts.transfer_with(change)
        rows = _computation(view)
        had = _beside_data(parts, rows, parts.transfer_ns, before)
        has = _beside_data(parts, rows, moves_ns, after)
        ratio = _ratio(had, has, (slower.low, slower.high), best=best)
        edges = view.duration_edges(rows[ratio != 1])
        costs = change.costs_of(run.cost_ns, edges) * ratio[ratio != 1]
        change.set_lags(edges[edges >= 0], costs[edges >= 0])
        had = beside_computation(run, parts)
        if shares is not None:
            had = shares.get(view.index, had)
        has = _moving_beside(parts, moves_ns, after)
        ratio = _ratio(had, has, BESIDE_COMPUTATION, best=best)
        changed = (ratio != 1) & (moves_ns > 0)
        parts.set_transfer(change, np.where(changed, moves_ns * ratio, np.nan))


def beside_computation(run: SimulatedRun, parts: RankParts) -> Array:
    """float64 `[collectives]`: for what share of its time the data of each moves beside
    computation, [0, 1]."""
    return _moving_beside(parts, parts.transfer_ns, run.graph.time_ns)


def _ratio(had: Array, has: Array, slowdown: tuple[float, float], *, best: bool) -> Array:
    """New time over old, where things have company for another share of their time."""
    low, high = slowdown
    factor = np.where((has > had) == best, low, high)
    ratio: Array = (1 + (factor - 1) * has) / (1 + (factor - 1) * had)
    return ratio


def _computation(view: RankView) -> Array:
    return view.gpu_class(GpuClass.COMPUTE)


def _moving_beside(parts: RankParts, moves_ns: Array, times: Array) -> Array:
    """Share of the time in which the data of each collective moves, during which computation
    runs."""
    computes = _running(parts.view, _computation(parts.view), times)
    return _share(*_moving(parts, moves_ns, times), *computes)


def _beside_data(parts: RankParts, rows: Array, moves_ns: Array, times: Array) -> Array:
    """Share of each GPU event during which the data of a collective move, [0, 1]: one that waits
    for its other ranks keeps nobody company."""
    return _share(*_running(parts.view, rows, times), *_moving(parts, moves_ns, times))


def _running(view: RankView, rows: Array, times: Array) -> tuple[Array, Array]:
    return times[view.begin_of[rows]], times[view.end_of[rows]]


def _moving(parts: RankParts, moves_ns: Array, times: Array) -> tuple[Array, Array]:
    """When the data of each collective move, at its end."""
    end = times[parts.view.end_of[parts.rows]]
    return end - moves_ns.astype(np.int64), end


def _share(begin: Array, end: Array, since: Array, until: Array) -> Array:
    """Of each interval, during which any of the others runs, [0, 1]."""
    if not len(since) or not len(begin):
        return np.zeros(len(begin))
    starts, covered = _coverage(since, until)
    lengths = np.maximum(end - begin, 1)
    share: Array = (_until(starts, covered, end) - _until(starts, covered, begin)) / lengths
    return share


def _coverage(begin: Array, end: Array) -> tuple[Array, Array]:
    """Disjoint union of intervals as (bounds `[n, 2]`, time covered before each)."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    new = np.concatenate([[True], begin[1:] > end[:-1]])
    last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(begin) - 1]])
    bounds = np.stack([begin[new], end[last]], axis=1)
    lengths = bounds[:, 1] - bounds[:, 0]
    return bounds, np.cumsum(lengths) - lengths


def _until(bounds: Array, covered: Array, time: Array) -> Array:
    place = np.searchsorted(bounds[:, 0], time, side="right") - 1
    at = np.maximum(place, 0)
    inside = np.clip(time, bounds[at, 0], bounds[at, 1]) - bounds[at, 0]
    return np.where(place >= 0, covered[at] + inside, 0)


def measured_slowdown(run: SimulatedRun) -> Slowdown:
    """What kernels show that ran both beside communication and without it; kept."""
    return run.cached("slowdown", lambda: _measure(run))


def _measure(run: SimulatedRun) -> Slowdown:
    ratios = [ratio for parts in parts_of(run) for ratio in _ratios(run, parts)]
    if len(ratios) < _ENOUGH_NAMES:
        return Slowdown(1.0, UNMEASURED, "assumed: the trace doesn't show it")
    low, high = np.clip(np.quantile(ratios, _MIDDLE_HALF), 1.0, MOST_MEASURED).tolist()
    return Slowdown(low, high, f"measured: {len(ratios)} kernels ran both ways in this trace")


def _ratios(run: SimulatedRun, parts: RankParts) -> list[float]:
    """Of kernels that do the same work. What waits for other ranks slows nothing down, so that time
    beside it is time alone."""
    view = parts.view
    rows = _computation(view)
    share = _beside_data(parts, rows, parts.transfer_ns, run.graph.time_ns)
    same = Groups(*repeat_keys(run.ranks[view.index], rows)).index
    lengths = view.table.dur_ns[rows]
    beside, alone = share >= 0.9, share <= 0
    both = np.intersect1d(same[beside], same[alone])
    rows_of = dict(rows_by_key(same))
    found = []
    for work in both.tolist():
        mine = rows_of[work]
        with_other, without = lengths[mine[beside[mine]]], lengths[mine[alone[mine]]]
        if min(len(with_other), len(without)) >= _ENOUGH_EVENTS and median(without) > 0:
            found.append(float(median(with_other) / median(without)))
    return found
