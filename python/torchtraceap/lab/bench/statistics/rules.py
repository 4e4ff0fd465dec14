"""Well-known rules that judge the same runs, as yardsticks for verdicts.

- `torchbench_7_percent`: one run of a side, medians of their steps, an alarm beyond 7 %; what
  TorchBench's regression detector did (`userbenchmark/*/regression_detector.py`, both signs).
- `single_run_2_percent`: the same with 2 %.
- `asv`: samples of two processes a side, Mann-Whitney p < 0.002 where the sizes allow that, else
  99 % intervals of the medians that do not overlap, and a factor of 1.1 (`asv continuous`);
  `asv_without_factor` leaves the factor away.
- `blocks_mwu`: ten runs of A, then ten of B, Mann-Whitney p < 0.01 over their medians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.lab.bench.statistics import scipy_stats
from torchtraceap.lab.bench.statistics.rank_sum import least_p, rank_sum_p

__all__ = ["BLOCK_RUNS", "RULES", "Rule", "RuleAnswer"]

NO_DIFFERENCE = "no difference"
BLOCK_RUNS = 10
_ASV_P = 0.002
_ASV_FACTOR = 1.1
_ASV_PROCESSES = 2
_ASV_REPEATS = 10
"""Timings that asv takes in a process if time allows."""
_ASV_EXACT = 20
"""The number of samples per side above which asv uses the normal approximation."""

Steps = Sequence[Array]
"""Steps of each run, ns."""


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """The answer of a rule."""

    verdict: str
    """"slower", "faster" or "no difference"."""
    change: float
    """The change that the rule sees, after / before - 1."""
    runs: int
    """Number of runs per side that the rule used."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule."""

    name: str
    runs: int
    """Number of runs per side that the rule needs."""
    what: str
    say: Callable[[Steps, Steps], RuleAnswer]
    """Function of the steps of the runs of A and of those of B."""


def _single(threshold: float) -> Callable[[Steps, Steps], RuleAnswer]:
    def say(before: Steps, after: Steps) -> RuleAnswer:
        change = float(np.median(after[0]) / np.median(before[0])) - 1
        return RuleAnswer(_word(abs(change) > threshold, change), change, 1)

    return say


def _asv(factor: float) -> Callable[[Steps, Steps], RuleAnswer]:
    def say(before: Steps, after: Steps) -> RuleAnswer:
        a, b = (
            np.concatenate([run[:_ASV_REPEATS] for run in side[:_ASV_PROCESSES]])
            for side in (before, after)
        )
        change = float(np.median(b) / np.median(a)) - 1
        beyond = change > factor - 1 or change < 1 / factor - 1
        return RuleAnswer(_word(beyond and _asv_different(a, b), change), change, _ASV_PROCESSES)

    return say


def _asv_different(a: Array, b: Array) -> bool:
    if least_p(len(a), len(b)) / 2 < _ASV_P:
        if max(len(a), len(b)) <= _ASV_EXACT:
            return rank_sum_p(a, b) < _ASV_P

        asymptotic = scipy_stats().mannwhitneyu(a, b, use_continuity=False, method="asymptotic")
        return bool(asymptotic.pvalue < _ASV_P)
    (a_low, a_high), (b_low, b_high) = _median_interval(a), _median_interval(b)
    return bool(a_high < b_low or b_high < a_low)


def _median_interval(samples: Array) -> tuple[float, float]:
    """Return the 99 % interval of the median by order statistics; infinite for too few samples."""

    ordered = np.sort(samples)
    cut = int(scipy_stats().binom.ppf(0.005, len(ordered), 0.5))
    if cut == 0:
        return -np.inf, np.inf
    return float(ordered[cut - 1]), float(ordered[-cut])


def _blocks(before: Steps, after: Steps) -> RuleAnswer:
    a, b = (np.array([np.median(run) for run in side[:BLOCK_RUNS]]) for side in (before, after))
    change = float(np.median(b) / np.median(a)) - 1
    return RuleAnswer(_word(rank_sum_p(a, b) < 0.01, change), change, min(len(a), len(b)))


def _word(is_alarm: bool, change: float) -> str:
    if not is_alarm:
        return NO_DIFFERENCE
    return "slower" if change > 0 else "faster"


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("torchbench_7_percent", 1, "one run a side, 7 %", _single(0.07)),
        Rule("single_run_2_percent", 1, "one run a side, 2 %", _single(0.02)),
        Rule("asv", 2, "two runs a side, Mann-Whitney 0.002, factor 1.1", _asv(_ASV_FACTOR)),
        Rule("asv_without_factor", 2, "two runs a side, Mann-Whitney 0.002", _asv(1.0)),
        Rule("blocks_mwu", BLOCK_RUNS, "ten runs after ten runs, Mann-Whitney 0.01", _blocks),
    )
}
