"""Whether a run can say what a fix does: `trust_of`, `noise_of`.

Note [What tests what]: a replay without residuals is right wherever dependencies are, whatever the
durations are, because these are the run's own: it tests the structure (`iteration_error`). A step
replayed with what the *other* steps cost tests structure and costs together (`held_out`), beside
what knowing nothing of the structure would have said. What the step reacts to if all GPU work, all
host work or all collectives get longer says what the prediction of a fix hangs on (`sensitivity`).

Note [No prediction]: without an iteration, where no more than half of the ranks can be placed on
one clock (fewer strangers are left out, and said), with an iteration that its dependencies don't
explain, with steps that other steps' costs don't explain, and for one rank of many whose step is
mostly waiting for the others, no saving is simulated.

Note [Noise]: steps vary by themselves. The mean of n steps of the run after a fix differs from that
of the n before by chance: 2 CV / sqrt(n), about its 80 % interval for many steps. The interval of a
prediction takes Student's t for the few that there are, and the steps as they are with the fix: it
may take off what made them vary. A single step shows no variation: then the
interval takes that of kernels that repeat, and at least that of public runs (`ONE_STEP_NOISE`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_share
from torchtraceap.core.order import distinct, median
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import HeldOut, Sensitivity, Trust
from torchtraceap.simulation.run import SimulatedRun

__all__ = [
    "ONE_STEP_NOISE",
    "Noise",
    "absent_ranks",
    "gpu_noise",
    "held_out_ns",
    "noise_of",
    "noise_with",
    "recorded",
    "trust_of",
    "waiting_edges",
]

MOST_ITERATION_ERROR = 0.05
"""Beyond it the dependencies don't explain the iteration."""
MOST_HELD_OUT_ERROR, MOST_HELD_OUT_NOISE, MOST_HELD_OUT_BASELINE = 0.10, 3.0, 2.0
"""Share, times the noise of the steps, times what their mean is off: where half of the steps are
beyond all three, the other steps' costs don't explain a step."""
MOST_WAITING = 0.5
"""Of a step of one rank of many: the share that follows how long its collectives take."""
_SCALE = 0.05
"""Durations are taken longer and shorter by this share to see what a step reacts to."""
ONE_STEP_NOISE = 0.05
"""What the interval of a prediction from a single step is widened by at least: 2 CV / sqrt(1) with
2.4 %, the median CV of the iterations of the 13 runs with three or more steps in the corpus
(hta, kineto, luatil, modded_nanogpt, param, pytorch_benchmark, torchrec, tracelens)."""
_STUDENT = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
"""90th percentile of Student's t for 1, 2, ... degrees of freedom; 80 % lie between it and minus
it."""
_NORMAL = 1.2816
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Noise:
    """By how much the mean of a run's steps varies. See Note [Noise]."""

    share: float | None
    """Of the iteration; smaller savings are not told. None: a single step shows none."""
    spread: float
    """Of the iteration: what the interval of a prediction is widened by."""
    note: str = ""
    """What stands in for the noise of a single step."""


def noise_of(run: SimulatedRun) -> Noise:
    """See Note [Noise]; kept."""
    return run.cached("noise", lambda: _noise_of(run, run.measured_ns) or _noise_of_one(run))


def noise_with(run: SimulatedRun, lengths_ns: Array) -> Noise:
    """The same where the steps take so long, int64 `[steps]`: a fix may take off what varied."""
    return _noise_of(run, lengths_ns) or noise_of(run)


def gpu_noise(run: SimulatedRun, work_ns: Array) -> float:
    """By how much the mean of what the GPU itself needs varies, float64 `[counted steps]`: as
    `Noise.spread`, of a single step by what kernels that repeat show."""
    lengths_ns = np.zeros(len(run.steps))
    lengths_ns[[step.counted for step in run.steps]] = work_ns
    found = _noise_of(run, lengths_ns)
    return _repeated(run) if found is None else found.spread


def _noise_of(run: SimulatedRun, lengths_ns: Array) -> Noise | None:
    """None where there are no two steps to compare."""
    lengths: dict[str, list[int]] = {}
    for step, ns in zip(run.steps, lengths_ns.tolist(), strict=True):
        if step.counted:
            lengths.setdefault(step.name, []).append(ns)
    means = np.array([np.mean(of_ranks) for of_ranks in lengths.values()])
    n = len(means)
    if n < 2 or not means.mean():
        return None
    share = 2 * _variation(means) / sqrt(n)
    few = _STUDENT[n - 2] / _NORMAL if n - 2 < len(_STUDENT) else 1.0
    return Noise(share, share * few)


def _noise_of_one(run: SimulatedRun) -> Noise:
    repeated = _repeated(run)
    what = "one step shows" if run.per_step else "without steps the trace shows"
    source = "kernels that repeat" if repeated > ONE_STEP_NOISE else "steps of public runs"
    spread = max(repeated, ONE_STEP_NOISE)
    note = f"{what} no noise: intervals are widened by {format_share(spread)}, as {source} vary"
    return Noise(None, spread, note)


def _repeated(run: SimulatedRun) -> float:
    """Twice what kernels that repeat vary, the most of all ranks; 0 where none repeats."""
    from torchtraceap.tables.steps.steps import repeat_variation

    found = map(repeat_variation, run.ranks)
    return 2 * max((cv for cv in found if cv is not None), default=0.0)


def _variation(values: Array) -> float:
    """Coefficient of variation; 0 of a single value."""
    mean = float(values.mean())
    return float(values.std(ddof=1)) / mean if len(values) > 1 and mean else 0.0


# ------------------------------------------------------------------------------------- trust


def trust_of(run: SimulatedRun) -> Trust:
    """See Notes [What tests what] and [No prediction]. Nine replays at most, one with what other
    steps cost; kept."""
    return run.cached("trust", lambda: _trust_of(run))


def _trust_of(run: SimulatedRun) -> Trust:
    held_out, held_out_note = _held_out(run)
    measured, sensitivity = _sensitivity(run)
    replayed = run.steady_ns(with_residuals=False)
    trust = Trust(
        iteration_error=replayed / measured - 1 if measured else 0.0,
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
    """Steps that have others to compare with, and what each takes with what these cost.

    Returns:
        int64 `[tested]`, indices in the run's `steps`; int64 `[tested]`, ns.
    """
    counted = np.array([step.counted for step in run.steps], dtype=bool)
    ranks = np.array([step.rank for step in run.steps], dtype=np.int64)
    of_rank = np.bincount(ranks[counted], minlength=len(run.ranks))[ranks] if len(ranks) else ranks
    tested = np.flatnonzero(counted & (of_rank > 1) & (run.measured_ns > 0))
    if not run.per_step or not len(tested):
        return _NONE, _NONE
    return tested, run.lengths_ns([_others_costs(run, counted)], with_residuals=False)[0, tested]


def _held_out(run: SimulatedRun) -> tuple[HeldOut | None, str]:
    """Each counted step with what the others of its rank cost."""
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


def _others_costs(run: SimulatedRun, counted: Array) -> _core.GraphDelta:
    """What each edge costs in the other counted steps; those of the warm-up tell nothing, nor do
    threads for which nobody waits."""
    number = np.full(len(counted) + 1, _core.NO_ROW, dtype=np.uint32)
    number[np.flatnonzero(counted)] = np.arange(counted.sum())
    steps = number.take(np.minimum(run.step_of_point, len(counted)))
    steps[~run.works.take(run.graph.lane)] = _core.NO_ROW
    delta = _core.GraphDelta()
    lags = _core.held_out_lags(run.graph, steps, int(counted.sum()))
    delta.set_lags(np.arange(len(lags)), lags)
    return delta


def _sensitivity(run: SimulatedRun) -> tuple[float, Sensitivity]:
    """The iteration as it was, and what the recorded one reacts to, by central differences."""
    groups = (run.edges_of("execution"), run.edges_of("program_order"), waiting_edges(run))
    places = [place for place, edges in enumerate(groups) if len(edges)]
    measured = float(run.mean_ns(run.measured_ns))
    shares = np.zeros(len(groups))
    if places and measured:
        times = run.mean_ns(run.lengths_ns([*_scaled(run, [groups[place] for place in places])]))
        shares[places] = np.maximum(times[1::2] - times[::2], 0.0) / (2 * _SCALE * measured)
    return run.steady_ns(), Sensitivity(*shares.tolist())


def _scaled(run: SimulatedRun, groups: Sequence[Array]) -> Iterator[_core.GraphDelta]:
    """Each group of edges shorter, then longer."""
    for edges in groups:
        cost_ns = run.cost_ns[edges]
        for scale in (1 - _SCALE, 1 + _SCALE):
            delta = _core.GraphDelta()
            delta.set_lags(edges, np.rint(cost_ns * scale).astype(np.int64))
            yield delta


def waiting_edges(run: SimulatedRun) -> Array:
    """Edges that hold what collectives take; kept."""
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


# ------------------------------------------------------------------------------------- doubts


def absent_ranks(run: SimulatedRun) -> tuple[int, int] | None:
    """How many ranks are recorded, and of how many, where collectives wait for absent ones."""
    world, here = max((part.world_size or 0 for part in run.ranks), default=0), len(run.ranks)
    if world <= here or not len(waiting_edges(run)):
        return None
    return here, world


def recorded(here: int, world: int) -> str:
    """Such as "1 of 8 ranks is recorded"."""
    return f"{here} of {world} ranks {'is' if here == 1 else 'are'} recorded"


def _doubt(run: SimulatedRun, trust: Trust, measured: float) -> str:
    """See Note [No prediction]; empty if there is none."""
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
    return _doubt_of_costs(trust) or _doubt_of_waits(run, trust)


def _doubt_of_costs(trust: Trust) -> str:
    held = trust.held_out
    if held is None:
        return ""
    by_chance = max(MOST_HELD_OUT_ERROR, MOST_HELD_OUT_NOISE * held.noise)
    if held.median_error <= max(by_chance, MOST_HELD_OUT_BASELINE * held.baseline_error):
        return ""
    return (
        "replayed with what the other steps cost, half of the steps are "
        f"{format_share(held.median_error)} off and more, far beyond what they vary "
        f"({format_share(held.noise)})"
    )


def _doubt_of_waits(run: SimulatedRun, trust: Trust) -> str:
    alone = absent_ranks(run)
    waiting = trust.sensitivity.collective_share
    if alone is None or waiting <= MOST_WAITING:
        return ""
    share = format_share(min(waiting, 1.0))
    return (
        f"{recorded(*alone)}, and {share} of the step are collectives, of which the part that "
        "waits for the others is not known"
    )
