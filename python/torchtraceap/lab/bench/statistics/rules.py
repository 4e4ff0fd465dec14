"""Yardsticks for verdicts: well-known rules that judge the same runs.

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
from functools import partial

import numpy as np

from torchtraceap.core import Array, dataclass
from torchtraceap.lab.bench.statistics import scipy_stats
from torchtraceap.lab.bench.statistics.rank_tests import least_rank_sum_p, rank_sum_p

__all__ = ["BLOCK_RUNS", "RULES", "Rule"]

NO_DIFFERENCE = "no difference"
BLOCK_RUNS = 10
_ASV_P = 0.002
_ASV_PROCESSES = 2
_ASV_REPEATS = 10
"""Timings that asv takes in a process if time allows."""
_ASV_EXACT = 20
"""The number of samples per side above which asv uses the normal approximation."""

Steps = Sequence[Array]
"""Steps of each run, ns."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule."""

    name: str
    runs: int
    """Number of runs per side that the rule needs; it uses no more."""
    what: str
    say: Callable[[Steps, Steps], tuple[str, float]]
    """Function of the steps of the runs of A and of those of B. It returns "slower", "faster" or
    "no difference", and the change that the rule sees, after / before - 1."""


def _single(threshold: float, before: Steps, after: Steps) -> tuple[str, float]:
    change = float(np.median(after[0]) / np.median(before[0])) - 1
    return _verdict(abs(change) > threshold, change), change


def _asv(factor: float, before: Steps, after: Steps) -> tuple[str, float]:
    a, b = (
        np.concatenate([run[:_ASV_REPEATS] for run in side[:_ASV_PROCESSES]])
        for side in (before, after)
    )
    change = float(np.median(b) / np.median(a)) - 1
    if not (change > factor - 1 or change < 1 / factor - 1):
        return NO_DIFFERENCE, change
    if least_rank_sum_p(len(a), len(b)) / 2 >= _ASV_P:
        (a_low, a_high), (b_low, b_high) = _median_interval(a), _median_interval(b)
        return _verdict(a_high < b_low or b_high < a_low, change), change
    if max(len(a), len(b)) <= _ASV_EXACT:
        return _verdict(rank_sum_p(a, b) < _ASV_P, change), change
    asymptotic = scipy_stats().mannwhitneyu(a, b, use_continuity=False, method="asymptotic")
    return _verdict(bool(asymptotic.pvalue < _ASV_P), change), change


def _median_interval(samples: Array) -> tuple[float, float]:
    """Return the 99 % interval of the median by order statistics; infinite for too few samples."""
    ordered = np.sort(samples)
    cut = int(scipy_stats().binom.ppf(0.005, len(ordered), 0.5))
    if cut == 0:
        return -np.inf, np.inf
    return float(ordered[cut - 1]), float(ordered[-cut])


def _blocks(before: Steps, after: Steps) -> tuple[str, float]:
    a, b = (np.array([np.median(run) for run in side[:BLOCK_RUNS]]) for side in (before, after))
    change = float(np.median(b) / np.median(a)) - 1
    return _verdict(rank_sum_p(a, b) < 0.01, change), change


def _verdict(is_alarm: bool, change: float) -> str:
    if not is_alarm:
        return NO_DIFFERENCE
    return "slower" if change > 0 else "faster"


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("torchbench_7_percent", 1, "one run a side, 7 %", partial(_single, 0.07)),
        Rule("single_run_2_percent", 1, "one run a side, 2 %", partial(_single, 0.02)),
        Rule("asv", 2, "two runs a side, Mann-Whitney 0.002, factor 1.1", partial(_asv, 1.1)),
        Rule("asv_without_factor", 2, "two runs a side, Mann-Whitney 0.002", partial(_asv, 1.0)),
        Rule("blocks_mwu", BLOCK_RUNS, "ten runs after ten runs, Mann-Whitney 0.01", _blocks),
    )
}
