"""Measurement of this machine's false alarms by comparing a program with itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import pluralize
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison.sides import (
    ProgramSide,
    Side,
    run_side,
    sides_can_take_turns,
    steps_of_last_run,
    take_turns,
)
from torchtraceap.lab.bench.statistics import scipy_stats
from torchtraceap.lab.bench.statistics.replay import (
    OURS,
    RunSequence,
    Share,
    least_effect,
    replay_ours,
    replay_rule,
    share_of,
)
from torchtraceap.lab.bench.statistics.rules import RULES
from torchtraceap.lab.bench.statistics.sequential import Plan

__all__ = [
    "PLANTED",
    "Calibration",
    "CalibrationRow",
    "Noise",
    "build_calibration",
    "calibrate",
    "estimate_noise",
]

PLANTED = (0.0, 0.02, 0.03, 0.05)
"""Effects on which rules are tried; 0 compares the program with itself."""
DEFAULT_COMPARISONS = 1000
DEFAULT_RUNS = 160
_ROBUST = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""
_SLOW_SIGMAS = 5.0

_NOTES = (
    "Orders of pairs are drawn anew for each comparison, which is what is random in bench "
    "compare too; the runs are recorded once. {runs} runs hold {windows} of {width} that stand "
    "apart; others overlap, and the intervals take comparisons as independent.",
    "Effects are planted by multiplying recorded times of B: made up, on this machine's noise.",
    "Other rules see their runs of A, then those of B, next to each other, as their tools run "
    "them.",
)


@dataclass(frozen=True, slots=True)
class Noise(Result):
    """Variation from run to run, as fractions of a run's time."""

    run: float
    """Standard deviation of a run over its neighbors: successive differences divided by the root of
    2."""
    whole: float
    """Standard deviation over the whole sequence."""
    drift: float
    """The part of `whole` beyond `run`."""
    trend: float
    """Change from the first run to the last, by the median slope (Theil and Sen)."""
    lag_one: float
    """Correlation of a run with the one before it."""
    slow_runs: float
    """Share of runs more than 5 robust standard deviations above the median."""
    step: float | None
    """Robust standard deviation of steps within a run; None if a run is one step."""


@dataclass(frozen=True, slots=True)
class CalibrationRow(Result):
    """The answers of one rule to one effect."""

    rule: str
    effect: float
    flagged: Any
    """Share called slower or faster if nothing was planted; else share called slower."""
    undecided: float
    equivalent: float
    pairs: float
    """Mean number of pairs used; for other rules, runs per side."""


@dataclass(frozen=True, slots=True)
class Calibration(Result):
    """The reliability of verdicts on this machine."""

    name: str
    runs: int
    comparisons: int
    windows: int
    """Number of windows that do not overlap."""
    minimal_effect: float
    alpha: float
    looks: tuple[int, ...]
    seed: int
    false_alarms: Any
    """False alarms of our rule, with nothing planted."""
    least_effect: float | None
    """The effect that 90 % of comparisons find if it is the minimal effect."""
    noise: Noise
    rows: tuple[CalibrationRow, ...]
    median_ns: int
    run_ns: tuple[int, ...]
    """Median step of each run, in the order of time."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The document of `torchtraceap bench calibrate --json`."""
        return {"schema": "torchtraceap.calibration/1", **Result.to_dict(self)}


def calibrate(
    side: Side,
    *,
    runs: int = DEFAULT_RUNS,
    comparisons: int = DEFAULT_COMPARISONS,
    plan: Plan | None = None,
    seed: int = 0,
) -> Calibration:
    """Run a program repeatedly, and evaluate what rules would conclude.

    Args:
        side: The program.
        runs: Fresh processes, beside one that warms up the machine.
        comparisons: Replays of each rule and effect.
        plan: Of the comparisons; by default that of `compare`.
        seed: Of windows and orders.

    Raises:
        OptionError: Too few runs for the last look.
        ProgramError: A run failed twice.
    """
    plan = plan or Plan()
    check_runs(runs, plan)
    with progress_stage("warming up"):
        run_side(side, side.name)
    steps: list[Array] = []
    ratios: list[float] | None = None
    if isinstance(side, ProgramSide) and sides_can_take_turns(side, side):
        other, ratios = copy(side), []
        for number in range(runs // 2):
            with progress_stage(f"pair {number + 1} of {runs // 2}"):
                ratios.append(take_turns(side, other, seed + number)[0])
            steps += [steps_of_last_run(each, 1) for each in (side, other)]
    else:
        for number in range(runs):
            with progress_stage(f"run {number + 1} of {runs}"):
                median_ns = run_side(side, side.name)
            steps.append(steps_of_last_run(side, median_ns))
    return build_calibration(
        side.name, steps, ratios=ratios, comparisons=comparisons, plan=plan, seed=seed
    )


def check_runs(runs: int, plan: Plan) -> None:
    """Check that there are enough runs for the last look.

    Raises:
        OptionError: There are too few.
    """
    if runs < 2 * plan.looks[-1]:
        raise OptionError(
            f"{runs} runs are too few: {plan.looks[-1]} pairs take {2 * plan.looks[-1]}"
        )


def build_calibration(
    name: str,
    steps: Sequence[Sequence[int] | Array],
    *,
    ratios: Sequence[float] | Array | None = None,
    comparisons: int = DEFAULT_COMPARISONS,
    plan: Plan | None = None,
    seed: int = 0,
) -> Calibration:
    """Calibrate with recorded runs; see Note [Replays].

    Args:
        name: Of the program.
        steps: Steps of each run, ns, in the order of time.
        ratios: Log ratios of runs that took turns, of each two of them; None: they ran one behind
            the other.
        comparisons: Replays of each rule and effect.
        plan: Of the comparisons.
        seed: Of windows and orders.

    Raises:
        OptionError: Too few runs for the last look, or no comparisons.
    """
    plan = plan or Plan()
    check_runs(len(steps), plan)
    if comparisons < 1:
        raise OptionError(f"at least one comparison is needed, not {comparisons}")
    arrays = [np.asarray(run, np.float64) for run in steps]
    medians = np.array([np.median(run) for run in arrays])
    logs, in_turns = np.log(medians), ratios is not None
    if ratios is not None:  # the second run of each two relative to the first
        logs = np.repeat(logs[0::2], 2)
        logs[1::2] += np.asarray(ratios)
    ours = RunSequence(logs, in_turns)
    rows = tuple(
        row for effect in PLANTED for row in _rows(arrays, ours, effect, plan, comparisons, seed)
    )
    width = 2 * plan.looks[-1]
    windows = len(steps) // width
    return Calibration(
        name=name,
        runs=len(steps),
        comparisons=comparisons,
        windows=windows,
        minimal_effect=plan.minimal_effect,
        alpha=plan.alpha,
        looks=plan.looks,
        seed=seed,
        false_alarms=rows[0].flagged,
        least_effect=least_effect(ours, plan, comparisons, seed),
        noise=estimate_noise(arrays),
        rows=rows,
        median_ns=round(float(np.median(medians))),
        run_ns=tuple(round(float(ns)) for ns in medians),
        notes=(
            _NOTES[0].format(windows=pluralize(windows, "window"), width=width, runs=len(steps)),
            *_NOTES[1:],
        ),
    )


def _rows(
    steps: Sequence[Array],
    ours: RunSequence,
    effect: float,
    plan: Plan,
    comparisons: int,
    seed: int,
) -> list[CalibrationRow]:
    counts, used = replay_ours(ours, effect, plan, comparisons, np.random.default_rng(seed))
    rows = [
        CalibrationRow(
            OURS,
            effect,
            _alarm_share(counts, effect, comparisons),
            counts["undecided"] / comparisons,
            counts["equivalent"] / comparisons,
            float(used.mean()),
        )
    ]
    for rule in RULES.values():
        if 2 * rule.runs > len(steps):
            continue
        said = replay_rule(steps, effect, rule, comparisons, np.random.default_rng(seed))
        rows.append(
            CalibrationRow(
                rule.name, effect, _alarm_share(said, effect, comparisons), 0.0, 0.0, rule.runs
            )
        )
    return rows


def _alarm_share(counts: dict[str, int], effect: float, comparisons: int) -> Share:
    alarms = counts["slower"] if effect else counts["slower"] + counts["faster"]
    return share_of(alarms, comparisons)


def estimate_noise(steps: Sequence[Array]) -> Noise:
    """Estimate the variation from run to run in a sequence of runs of one program.

    Args:
        steps: Steps of each run, ns, in the order of time; three runs at least.
    """
    logs = np.log([float(np.median(run)) for run in steps])
    run = math.sqrt(float(np.mean(np.diff(logs) ** 2)) / 2)
    whole = float(np.std(logs, ddof=1))
    centred = logs - logs.mean()
    total = float(np.dot(centred, centred))
    within = [_robust_sd(np.log(each)) for each in steps if len(each) > 2]
    return Noise(
        run=run,
        whole=whole,
        drift=math.sqrt(max(0.0, whole**2 - run**2)),
        trend=float(scipy_stats().theilslopes(logs).slope) * (len(logs) - 1),
        lag_one=float(np.dot(centred[1:], centred[:-1])) / total if total else 0.0,
        slow_runs=float(np.mean(logs > np.median(logs) + _SLOW_SIGMAS * _robust_sd(logs))),
        step=float(np.median(within)) if within else None,
    )


def _robust_sd(values: Array) -> float:
    return float(_ROBUST * np.median(np.abs(values - np.median(values))))
