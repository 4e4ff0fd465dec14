"""Tests of how far replays of a run predict a fix: trust, noise, and the least time of the GPU.

Note [What tests what]: a replay without residuals is right wherever dependencies are, whatever the
durations are, because these are the run's own: it tests the structure (`iteration_error`). A step
replayed with what the *other* steps cost tests structure and costs together (`held_out`), beside
the guess of somebody who knows nothing of the structure. The reaction of the step if all GPU work,
all host work or all collectives get longer says on what the prediction of a fix depends
(`sensitivity`).

Note [No prediction]: without an iteration, where no more than half of the ranks can be placed on
one clock (fewer strangers are left out, and said), with an iteration that its dependencies don't
explain, with steps that other steps' costs don't explain, and for one rank of many whose step is
mostly waiting for the others, no saving is simulated.

Note [Noise]: steps vary by themselves. The mean of n steps of the run after a fix differs from that
of the n before by chance: 2 CV / sqrt(n), about its 80 % interval for many steps. The interval of a
prediction takes Student's t for the few that there are, and the steps as they are with the fix: it
may take off what made them vary. A single step shows no variation: then the
interval takes that of kernels that repeat, and at least that of public runs (`ONE_STEP_NOISE`).

What has a known cause is no chance. So a saving is believed that is above the variation of the
steps with the fix, without what other findings put into few of them (`savings.py`): a checkpoint in
every tenth step hides no fix of the allocator. The interval keeps that variation.

Note [Least GPU time]: whatever an edit takes off the host, the GPU events that are left still run
one after the other on their streams. No prediction may be shorter than the stream that has most to
do, whatever the replays, their ratio, or the width of an interval say. Collectives count apart from
other work on their stream: an edit may give them one of their own.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from torchtraceap import _core
from torchtraceap._core import GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_share
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import HeldOut, Sensitivity, Trust
from torchtraceap.core.sums import distinct, median
from torchtraceap.simulation.edits.base import Change
from torchtraceap.simulation.run import SimulatedRun

__all__ = [
    "ONE_STEP_NOISE",
    "Noise",
    "absent_ranks",
    "gpu_floors_ns",
    "gpu_noise",
    "held_out_ns",
    "noise_of",
    "noise_of_lengths",
    "recorded_clause",
    "trust_of",
    "waiting_edges",
]

MOST_ITERATION_ERROR = 0.05
"""Beyond it the dependencies don't explain the iteration."""
MOST_HELD_OUT_ERROR, MOST_HELD_OUT_NOISE, MOST_HELD_OUT_BASELINE = 0.10, 3.0, 2.0
"""Share, times the noise of the steps, times what their mean is off: where half of the steps are
beyond all three, the other steps' costs don't explain a step."""
MOST_BASELINES = 3.0
"""Times what the mean of the other steps is off, from `MOST_HELD_OUT_ERROR` on: beyond it no noise
of the steps excuses a replay."""
MOST_WAITING = 0.5
"""Share of a step of one rank of many that follows the time of its collectives."""
_SCALE = 0.05
"""Durations are taken longer and shorter by this share to see what a step reacts to."""
ONE_STEP_NOISE = 0.05
"""Least widening of the interval of a prediction from a single step: 2 CV / sqrt(1) with 2.4 %,
the median CV of the iterations of the 13 runs with three or more steps in the corpus
(hta, kineto, luatil, modded_nanogpt, param, pytorch_benchmark, torchrec, tracelens)."""
_STUDENT = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
"""90th percentile of Student's t for 1, 2, ... degrees of freedom; 80 % lie between it and minus
it."""
_NORMAL = 1.2816
_NONE = np.zeros(0, dtype=np.int64)
_STREAM = 1  # kind of lanes


@dataclass(frozen=True, slots=True)
class Noise:
    """The variation of the mean of a run's steps. See Note [Noise]."""

    share: float | None
    """Share of the iteration; smaller savings are not shown. None: a single step shows none."""
    spread: float
    """Share of the iteration by which the interval of a prediction is widened."""
    note: str = ""
    """The substitute for the noise of a single step."""


def noise_of(run: SimulatedRun) -> Noise:
    """Return the noise of the measured steps, cached. See Note [Noise]."""
    return run.cached("noise", lambda: _noise_of(run, run.measured_ns) or _noise_of_one(run))


def noise_of_lengths(run: SimulatedRun, lengths_ns: Array, explained_ns: Array | int = 0) -> Noise:
    """Return the noise of steps after a fix, which may remove variation. See Note [Noise].

    Args:
        run: The run.
        lengths_ns: The steps with the fix, int64 `[steps]`.
        explained_ns: The time in each measured step that has a known cause, int64 `[steps]`; what
            the fix saves of it is gone.
    """
    found = _noise_of(run, lengths_ns)
    left_ns = np.maximum(explained_ns - np.maximum(run.measured_ns - lengths_ns, 0), 0)
    if found is None or not left_ns.any():
        return found or noise_of(run)
    other = _noise_of(run, np.maximum(lengths_ns - left_ns, 0))
    if other is None or other.share is None or found.share is None:
        return found
    return replace(found, share=min(found.share, other.share))


def gpu_noise(run: SimulatedRun, work_ns: Array) -> float:
    """Return the variation of the mean GPU time of steps, float64 `[counted steps]`, like
    `Noise.spread`; of a single step that of kernels that repeat."""
    lengths_ns = np.zeros(len(run.steps))
    lengths_ns[[step.counted for step in run.steps]] = work_ns
    found = _noise_of(run, lengths_ns)
    return _kernel_variation(run) if found is None else found.spread


def _noise_of(run: SimulatedRun, lengths_ns: Array) -> Noise | None:
    """Return the noise of steps; None where there are no two steps to compare."""
    lengths: dict[str, list[int]] = {}
    for step, ns in zip(run.steps, lengths_ns.tolist(), strict=True):
        if step.counted:
            lengths.setdefault(step.name, []).append(ns)
    means = np.array([np.mean(lengths_of_ranks) for lengths_of_ranks in lengths.values()])
    n = len(means)
    if n < 2 or not means.mean():
        return None
    share = 2 * _variation(means) / sqrt(n)
    few = _STUDENT[n - 2] / _NORMAL if n - 2 < len(_STUDENT) else 1.0
    return Noise(share, share * few)


def _noise_of_one(run: SimulatedRun) -> Noise:
    repeated = _kernel_variation(run)
    subject = "one step shows" if run.per_step else "without steps the trace shows"
    source = "kernels that repeat" if repeated > ONE_STEP_NOISE else "steps of public runs"
    spread = max(repeated, ONE_STEP_NOISE)
    note = f"{subject} no noise: intervals are widened by {format_share(spread)}, as {source} vary"
    return Noise(None, spread, note)


def _kernel_variation(run: SimulatedRun) -> float:
    """Return twice the variation of kernels that repeat, the most of all ranks; 0 without such."""
    from torchtraceap.tables.steps.steps import repeat_variation

    found = map(repeat_variation, run.ranks)
    return 2 * max((cv for cv in found if cv is not None), default=0.0)


def _variation(values: Array) -> float:
    """Return the coefficient of variation; 0 for a single value."""
    mean = float(values.mean())
    return float(values.std(ddof=1)) / mean if len(values) > 1 and mean else 0.0


# ------------------------------------------------------------------------------------- trust


def trust_of(run: SimulatedRun) -> Trust:
    """Return how far replays of a run can be trusted, cached. Nine replays at most, one with the
    costs of other steps. See Notes [What tests what] and [No prediction]."""
    return run.cached("trust", lambda: _trust_of(run))


def _trust_of(run: SimulatedRun) -> Trust:
    held_out, held_out_note = _held_out(run)
    measured, sensitivity = run.steady_ns(), _sensitivity(run)
    trust = Trust(
        iteration_error=run.steady_ns(with_residuals=False) / measured - 1 if measured else 0.0,
        held_out=held_out,
        held_out_note=held_out_note,
        sensitivity=sensitivity,
        supports_prediction=True,
    )
    reason = _doubt(run, trust, measured)
    if not reason:
        return trust
    values = {name: getattr(trust, name) for name in trust.__slots__}
    return Trust(**values | {"supports_prediction": False, "reason": reason})


def held_out_ns(run: SimulatedRun) -> tuple[Array, Array]:
    """Return steps that have others to compare with, and their times at the costs of these.

    Returns:
        int64 `[tested]`, indices in the run's `steps`; int64 `[tested]`, ns.
    """
    counted = np.array([step.counted for step in run.steps], dtype=bool)
    ranks = np.array([step.rank for step in run.steps], dtype=np.int64)
    of_rank = np.bincount(ranks[counted], minlength=len(run.ranks))[ranks] if len(ranks) else ranks
    tested = np.flatnonzero(counted & (of_rank > 1) & (run.measured_ns > 0))
    if not run.per_step or not len(tested):
        return _NONE, _NONE
    # The costs of the other counted steps; those of the warm-up don't count, nor do threads for
    # which nobody waits.
    number = np.full(len(counted) + 1, _core.NO_ROW, dtype=np.uint32)
    number[np.flatnonzero(counted)] = np.arange(counted.sum())
    steps = number.take(np.minimum(run.step_of_point, len(counted)))
    steps[~run.works.take(run.graph.lane)] = _core.NO_ROW
    delta = _core.GraphDelta()
    lags = _core.held_out_lags(run.graph, steps, int(counted.sum()))
    delta.set_lags(np.arange(len(lags)), lags)
    return tested, run.lengths_ns([delta], with_residuals=False)[0, tested]


def _held_out(run: SimulatedRun) -> tuple[HeldOut | None, str]:
    """Compare each counted step with its replay at the costs of the others of its rank."""
    tested, replayed = held_out_ns(run)
    if not len(tested):
        return None, "no two steps to compare" if run.per_step else "no steps to compare"
    measured = run.measured_ns[tested].astype(np.float64)
    ranks = np.array([run.steps[place].rank for place in tested.tolist()])
    count = np.bincount(ranks)[ranks]
    others = (np.bincount(ranks, measured)[ranks] - measured) / np.maximum(count - 1, 1)
    errors = np.abs(replayed / measured - 1)
    return HeldOut(
        error=float(errors.mean()),
        median_error=median(errors),
        baseline_error=float(np.abs(others / measured - 1).mean()),
        noise=float(np.mean([_variation(measured[ranks == rank]) for rank in distinct(ranks)])),
        steps=len(tested),
    ), ""


def _sensitivity(run: SimulatedRun) -> Sensitivity:
    """Return the reaction of the recorded iteration to longer work, by central differences."""
    groups = (run.edges_of("execution"), run.edges_of("program_order"), waiting_edges(run))
    places = [place for place, edges in enumerate(groups) if len(edges)]
    measured = float(run.mean_ns(run.measured_ns))
    shares = np.zeros(len(groups))
    if places and measured:
        deltas = []
        for place in places:
            for scale in (1 - _SCALE, 1 + _SCALE):
                deltas.append(_core.GraphDelta())
                lags = np.rint(run.cost_ns[groups[place]] * scale).astype(np.int64)
                deltas[-1].set_lags(groups[place], lags)
        times = run.mean_ns(run.lengths_ns(deltas))
        shares[places] = np.maximum(times[1::2] - times[::2], 0.0) / (2 * _SCALE * measured)
    return Sensitivity(*shares.tolist())


def waiting_edges(run: SimulatedRun) -> Array:
    """Return the edges that hold the time of collectives, cached."""
    return run.cached("waiting_edges", lambda: _waiting_edges(run))


def _waiting_edges(run: SimulatedRun) -> Array:
    edges = run.edges_of("execution")
    communicates = np.zeros(len(run.graph), dtype=bool)
    for index, part in enumerate(run.ranks):
        rows = part.tree.gpu_rows
        mine = run.graph.end_of(index)[
            rows[part.tree.gpu_class[rows] == _core.GpuClass.COMMUNICATION]
        ]
        communicates[mine[mine != _core.NO_ROW]] = True
    waiting: Array = edges[communicates[run.destination[edges]]]
    return waiting


# ------------------------------------------------------------------------------------- the GPU


def gpu_floors_ns(run: SimulatedRun, change: Change) -> Array:
    """Return the time of GPU events back to back on the busiest stream, float64 `[chosen steps]`,
    ns. See Note [Least GPU time].

    Args:
        run: The run.
        change: An edit; events that it removes take no time.
    """
    edges, group, step, alone = run.cached("stream work", lambda: _stream_work(run))
    longest = np.zeros(len(run.chosen_steps))
    if len(edges):
        costs = change.costs_of(run.cost_ns, edges)
        sums = np.bincount(group, weights=costs, minlength=len(step)) * alone
        np.maximum.at(longest, step, sums)
    return longest


def _stream_work(run: SimulatedRun) -> tuple[Array, Array, Array, Array]:
    """Group the GPU events of the chosen steps by step and stream, collectives apart.

    Returns:
        int64 `[events]`: the edge from begin to end of each; int64 `[events]`: its group; int64
        `[groups]`: index of the chosen step; float64 `[groups]`: the time that the group's events
        cover over the sum of theirs, [0, 1].
    """
    graph = run.graph
    steps = run.chosen_steps
    points = np.concatenate([_NONE, *(step.work for step in steps)])
    step = np.repeat(np.arange(len(steps)), [len(step.work) for step in steps])
    on_stream = graph.lane_kind[graph.lane[points]] == _STREAM
    points, step = points[on_stream], step[on_stream]
    execution = run.edges_of("execution")
    own = np.full(len(graph), -1, dtype=np.int64)
    own[run.destination[execution]] = execution
    edges = own[points]
    edges, step = edges[edges >= 0], step[edges >= 0]
    points = run.destination[edges]
    lane = 2 * graph.lane[points].astype(np.int64)
    rank = graph.lane_rank[graph.lane[points]]
    for index, part in enumerate(run.ranks):
        mine = np.flatnonzero((rank == index) & (graph.row[points] != _core.NO_ROW))
        lane[mine] += part.tree.gpu_class[graph.row[points[mine]]] == GpuClass.COMMUNICATION
    begin, end = graph.time_ns[graph.source[edges]], graph.time_ns[points]
    order = np.lexsort((begin, lane, step))
    edges, step, lane = edges[order], step[order], lane[order]
    is_first = (np.diff(step, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0)
    group = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    return edges, group, step[first], _covered_shares(begin[order], end[order], first, group)


def _covered_shares(begin: Array, end: Array, first: Array, group: Array) -> Array:
    """Return for each group of events, by begin, the time that they cover over the sum of theirs,
    [0, 1]."""
    if not len(first):
        return np.zeros(0)
    # In floating point, which can't overflow: groups apart, so that one running maximum does for
    # all of them.
    since, until = (times - begin[first][group].astype(np.float64) for times in (begin, end))
    spans = np.maximum.reduceat(until, first)
    apart = (np.cumsum(spans) - spans)[group]
    since, until = since + apart, until + apart
    before = np.concatenate([since[:1], np.maximum.accumulate(until)[:-1]])
    covered = np.maximum(until - np.maximum(since, before), 0.0)
    sums = np.bincount(group, weights=until - since)
    share: Array = np.bincount(group, weights=covered) / np.maximum(sums, 1.0)
    return share.clip(0.0, 1.0)


# ------------------------------------------------------------------------------------- doubts


def absent_ranks(run: SimulatedRun) -> tuple[int, int] | None:
    """Return the number of recorded ranks and of all, where collectives wait for absent ones."""
    world, here = max((part.world_size or 0 for part in run.ranks), default=0), len(run.ranks)
    if world <= here or not len(waiting_edges(run)):
        return None
    return here, world


def recorded_clause(here: int, world: int) -> str:
    """Return a clause such as "1 of 8 ranks is recorded"."""
    return f"{here} of {world} ranks {'is' if here == 1 else 'are'} recorded"


def _doubt(run: SimulatedRun, trust: Trust, measured: float) -> str:
    """Return why nothing can be predicted, empty if it can. See Note [No prediction]."""
    ranks, used = run.trace.ranks, run.ranks
    if not measured > 0:
        return "the trace holds no iteration to replay"
    if 2 * len(used) <= len(ranks):
        return (
            f"only {len(used)} of {len(ranks)} ranks share collectives, so that the run can't be "
            "replayed as a whole"
        )
    if abs(trust.iteration_error) > MOST_ITERATION_ERROR:
        off, most = format_share(abs(trust.iteration_error)), format_share(MOST_ITERATION_ERROR)
        than = "slower" if trust.iteration_error > 0 else "faster"
        return (
            f"replayed from its dependencies the run is {off} {than} than measured, more than "
            f"{most}"
        )
    held = trust.held_out
    if held is not None:
        off = (
            "replayed with what the other steps cost, half of the steps are "
            f"{format_share(held.median_error)} off and more, "
        )
        by_chance = max(MOST_HELD_OUT_ERROR, MOST_HELD_OUT_NOISE * held.noise)
        if held.median_error > max(by_chance, MOST_HELD_OUT_BASELINE * held.baseline_error):
            return f"{off}far beyond what they vary ({format_share(held.noise)})"
        if held.median_error > max(MOST_HELD_OUT_ERROR, MOST_BASELINES * held.baseline_error):
            mean = format_share(held.baseline_error)
            return f"{off}more than {MOST_BASELINES:g} times what their mean is off ({mean})"
    alone, waiting = absent_ranks(run), trust.sensitivity.collective_share
    if alone is not None and waiting > MOST_WAITING:
        return (
            f"{recorded_clause(*alone)}, and {format_share(min(waiting, 1.0))} of the step are "
            "collectives, of which the part that waits for the others is not known"
        )
    return ""
