"""Measurement of this machine's false alarms by comparing a program with itself.

Note [Replays]: all runs of the recorded sequence are of the same program. A window of it is cut
into pairs in the order of time, and a fresh draw of `abba` says which run of each pair is called A.
If calling it so changes nothing, which is true here by construction, every draw is a comparison of
the program with itself as `bench compare` would have made it. So the false alarms that come out are
those of the procedure on this machine's own noise. Windows overlap: the draws are independent, the
noise that they meet is not, and how many windows stand apart is told beside every rate. An effect
is planted by multiplying what B took: made up, but on real noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from torchtraceap.core import Array, Result, dataclass, pluralize, progress_stage
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
from torchtraceap.lab.bench.statistics.rules import RULES, Rule
from torchtraceap.lab.bench.statistics.sequential import (
    VERDICTS,
    Plan,
    abba,
    decide_many,
    log_ratios,
)
from torchtraceap.tables import NORMAL_MAD

__all__ = [
    "PLANTED",
    "Calibration",
    "CalibrationRow",
    "Noise",
    "Share",
    "build_calibration",
    "calibrate",
    "estimate_noise",
    "least_effect",
    "replay_ours",
    "replay_rule",
    "share_of",
]

OURS = "ours"
PLANTED = (0.0, 0.02, 0.03, 0.05)
"""Effects on which rules are tried; 0 compares the program with itself."""
DEFAULT_COMPARISONS = 1000
DEFAULT_RUNS = 160
_CONFIDENCE = 0.95
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
class Share(Result):
    """A share of trials with 95 % bounds by Clopper and Pearson (1934)."""

    count: int
    of: int
    value: float
    low: float
    high: float


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
    flagged: Share
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
    false_alarms: Share
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
        """Return the document of `torchtraceap bench calibrate --json`."""
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
        runs: Number of fresh processes, beside one that warms up the machine.
        comparisons: Number of replays of each rule and effect.
        plan: Settings of the comparisons; by default those of `compare`.
        seed: Decides windows and orders.

    Raises:
        OptionError: Too few runs for the last look.
        ProgramError: A run failed twice.
    """
    plan = plan or Plan()
    _check_runs(runs, plan)
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


def _check_runs(runs: int, plan: Plan) -> None:
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
        name: Name of the program.
        steps: Steps of each run in the order of time, ns.
        ratios: Log ratios of each two runs, if they took turns; None if they ran one behind the
            other.
        comparisons, plan, seed: See `calibrate`.

    Raises:
        OptionError: Too few runs for the last look, or no comparisons.
    """
    plan = plan or Plan()
    _check_runs(len(steps), plan)
    if comparisons < 1:
        raise OptionError(f"at least one comparison is needed, not {comparisons}")
    arrays = [np.asarray(run, np.float64) for run in steps]
    medians = np.array([np.median(run) for run in arrays])
    logs, in_turns = np.log(medians), ratios is not None
    if ratios is not None:  # the second run of each two relative to the first
        logs = np.repeat(logs[0::2], 2)
        logs[1::2] += np.asarray(ratios)
    rows = _calibration_rows(arrays, logs, plan, comparisons, seed, in_turns)
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
        least_effect=least_effect(logs, plan, comparisons, seed, in_turns=in_turns),
        noise=estimate_noise(arrays),
        rows=tuple(rows),
        median_ns=round(float(np.median(medians))),
        run_ns=tuple(round(float(ns)) for ns in medians),
        notes=(
            _NOTES[0].format(windows=pluralize(windows, "window"), width=width, runs=len(steps)),
            *_NOTES[1:],
        ),
    )


def _calibration_rows(
    steps: Sequence[Array], logs: Array, plan: Plan, comparisons: int, seed: int, in_turns: bool
) -> list[CalibrationRow]:
    """Return the answers of each rule to each planted effect, ours first."""
    rows: list[CalibrationRow] = []
    for effect in PLANTED:
        generator = np.random.default_rng(seed)
        counts, used = replay_ours(logs, effect, plan, comparisons, generator, in_turns=in_turns)
        answers = [(OURS, counts, float(used.mean()))]
        for rule in RULES.values():
            if 2 * rule.runs <= len(steps):
                generator = np.random.default_rng(seed)
                said = replay_rule(steps, effect, rule, comparisons, generator)
                answers.append((rule.name, said, rule.runs))
        for rule_name, said, pairs in answers:
            alarms = said["slower"] if effect else said["slower"] + said["faster"]
            rows.append(
                CalibrationRow(
                    rule_name,
                    effect,
                    share_of(alarms, comparisons),
                    said.get("undecided", 0) / comparisons,
                    said.get("equivalent", 0) / comparisons,
                    pairs,
                )
            )
    return rows


def share_of(count: int, of: int) -> Share:
    """Return a share with its exact interval, which assumes independent trials."""
    error = (1 - _CONFIDENCE) / 2
    low = float(scipy_stats().beta.ppf(error, count, of - count + 1)) if count else 0.0
    high = float(scipy_stats().beta.ppf(1 - error, count + 1, of - count)) if count < of else 1.0
    return Share(count, of, count / of, low, high)


def replay_ours(
    logs: Array,
    effect: float,
    plan: Plan,
    comparisons: int,
    generator: np.random.Generator,
    *,
    in_turns: bool = False,
) -> tuple[dict[str, int], Array]:
    """Return the verdicts of sequential comparisons of a sequence of runs with itself.

    Args:
        logs: Logarithms of the median step of each run in order of time, float64 `[runs]`.
        effect: Fraction by which B is made slower.
        plan: Settings of a comparison; the last look takes half the runs at most.
        comparisons: Number of comparisons.
        generator: Draws windows and orders.
        in_turns: True if each two runs took turns, so that only their difference means something.

    Returns:
        Numbers of verdicts, and the pairs that each comparison used, int64 `[comparisons]`.
    """
    pairs, apart = plan.looks[-1], 2 if in_turns else 1
    starts = apart * generator.integers(0, (len(logs) - 2 * pairs) // apart + 1, comparisons)
    windows = logs[starts[:, None] + np.arange(2 * pairs)]
    ratios = log_ratios(windows, abba(pairs, generator, comparisons))
    code, used = decide_many(ratios + np.log1p(effect), plan)
    counts = np.bincount(code, minlength=len(VERDICTS))
    return dict(zip(VERDICTS, counts.tolist(), strict=True)), used


def replay_rule(
    steps: Sequence[Array],
    effect: float,
    rule: Rule,
    comparisons: int,
    generator: np.random.Generator,
) -> dict[str, int]:
    """Return the numbers of the answers of a rule, "slower", "faster" and "no difference", that
    sees its runs of A and then those of B, next to each other; see `replay_ours`. `steps` are those
    of each run in the order of time, ns."""
    starts = generator.integers(0, len(steps) - 2 * rule.runs + 1, comparisons)
    places, times = np.unique(starts, return_counts=True)
    counts = {"slower": 0, "faster": 0, "no difference": 0}
    for start, number in zip(places.tolist(), times.tolist(), strict=True):
        before = steps[start : start + rule.runs]
        after = [run * (1 + effect) for run in steps[start + rule.runs : start + 2 * rule.runs]]
        counts[rule.say(before, after)[0]] += number
    return counts


def least_effect(
    logs: Array,
    plan: Plan,
    comparisons: int,
    seed: int,
    wanted: float = 0.9,
    *,
    in_turns: bool = False,
) -> float | None:
    """Return the smallest effect, in steps of 0.1 %, that a share `wanted` of comparisons calls
    slower if it is the minimal effect; None if it is beyond 100 %. See `replay_ours`."""

    def is_found(tenths: int) -> bool:
        effect = tenths / 1000
        tried = Plan(effect, plan.alpha, plan.looks)
        generator = np.random.default_rng(seed)
        counts, _ = replay_ours(logs, effect, tried, comparisons, generator, in_turns=in_turns)
        return counts["slower"] >= wanted * comparisons

    low, high = 0, 1
    while not is_found(high):
        low, high = high, 2 * high
        if high > 1024:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high / 1000


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
    return float(NORMAL_MAD * np.median(np.abs(values - np.median(values))))
