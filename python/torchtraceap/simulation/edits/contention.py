"""Computation beside communication is slower: both share memory bandwidth and multiprocessors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtraceap._core import GpuClass
from torchtraceap.aliases import Array
from torchtraceap.analysis.grouping import rows_by_key
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["Slowdown", "measured_slowdown", "slow_overlapped"]

UNMEASURED = 1.3
"""The most that is assumed where the trace doesn't show it."""
_ENOUGH_NAMES = 5
_ENOUGH_EVENTS = 5


@dataclass(frozen=True, slots=True)
class Slowdown:
    factor: float
    source: str


def slow_overlapped(run: SimulatedRun, change: Change) -> Slowdown:
    """Adds to a change that compute kernels which it brings beside communication get slower.

    How much slower: what kernels of the same name and grid show with and without communication
    beside them, if enough of them ran both ways in this trace; else up to 1.3.
    """
    slower = measured_slowdown(run)
    before, after = run.graph.time_ns, run.replay(change.delta())
    for view in views(run):
        rows = view.gpu_rows[view.tree.gpu_class[view.gpu_rows] == GpuClass.COMPUTE]
        more = _overlap(view, rows, after) - _overlap(view, rows, before)
        chosen = more > 0
        view.scale_gpu(change, rows[chosen], 1 + (slower.factor - 1) * more[chosen])
    return slower


def _overlap(view: RankView, rows: Array, times: Array) -> Array:
    """Share of each GPU event during which communication runs, [0, 1]."""
    begin, end = times[view.begin_of[rows]], times[view.end_of[rows]]
    other = view.gpu_class(GpuClass.COMMUNICATION)
    if not len(other) or not len(rows):
        return np.zeros(len(rows))
    starts, covered = _coverage(times[view.begin_of[other]], times[view.end_of[other]])
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
    return run.remember("slowdown", lambda: _measure(run))


def _measure(run: SimulatedRun) -> Slowdown:
    ratios = [ratio for view in views(run) for ratio in _ratios(view, run.graph.time_ns)]
    if len(ratios) < _ENOUGH_NAMES:
        return Slowdown(UNMEASURED, "assumed: the trace doesn't show it")
    factor = float(np.clip(np.median(ratios), 1.0, 2.0))
    return Slowdown(factor, f"measured: {len(ratios)} kernels ran both ways in this trace")


def _ratios(view: RankView, times: Array) -> list[float]:
    rows = view.gpu_rows[view.tree.gpu_class[view.gpu_rows] == GpuClass.COMPUTE]
    share = _overlap(view, rows, times)
    grid, _ = view.table.text_codes("grid", rows=rows)
    names, lengths = view.table.name[rows].astype(np.int64) << 32 | grid, view.table.dur_ns[rows]
    beside, alone = share >= 0.9, share <= 0
    both = np.intersect1d(names[beside], names[alone])
    rows_of = dict(rows_by_key(names))
    found = []
    for name in both.tolist():
        mine = rows_of[name]
        with_other, without = lengths[mine[beside[mine]]], lengths[mine[alone[mine]]]
        if min(len(with_other), len(without)) >= _ENOUGH_EVENTS and np.median(without) > 0:
            found.append(float(np.median(with_other) / np.median(without)))
    return found
