"""Replays of a recorded sequence of runs under fresh orders, which show how often rules raise
alarms.

Note [Replays]: all runs of the sequence are of the same program. A window of it is cut into pairs
in the order of time, and a fresh draw of `abba` says which run of each pair is called A. If calling
it so changes nothing, which is true here by construction, every draw is a comparison of the program
with itself as `bench compare` would have made it. So the false alarms that come out are those of
the procedure on this machine's own noise. Windows overlap: the draws are independent, the noise
that they meet is not, and how many windows stand apart is told beside every rate. An effect is
planted by multiplying what B took: made up, but on real noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.lab.bench.statistics import scipy_stats
from torchtraceap.lab.bench.statistics.orders import abba, log_ratios
from torchtraceap.lab.bench.statistics.rules import RULES, Rule
from torchtraceap.lab.bench.statistics.sequential import VERDICTS, Plan, decide_many

__all__ = ["OURS", "RunSequence", "Share", "least_effect", "replay_ours", "replay_rule", "share_of"]

OURS = "ours"
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Share(Result):
    """A share of trials with 95 % bounds by Clopper and Pearson (1934)."""

    count: int
    of: int
    value: float
    low: float
    high: float


def share_of(count: int, of: int) -> Share:
    """Return a share with its exact interval, which assumes independent trials."""

    error = (1 - _CONFIDENCE) / 2
    low = float(scipy_stats().beta.ppf(error, count, of - count + 1)) if count else 0.0
    high = float(scipy_stats().beta.ppf(1 - error, count + 1, of - count)) if count < of else 1.0
    return Share(count, of, count / of, low, high)


@dataclass(frozen=True, slots=True)
class RunSequence:
    """A sequence of runs of one program."""

    logs: Array
    """Logarithms of the median step of each run in order of time, float64 `[runs]`."""
    in_turns: bool = False
    """True if each two runs took turns, so that only their difference means something."""


def replay_ours(
    recorded: RunSequence,
    effect: float,
    plan: Plan,
    comparisons: int,
    generator: np.random.Generator,
) -> tuple[dict[str, int], Array]:
    """Return the verdicts of sequential comparisons of a sequence with itself.

    Args:
        recorded: The sequence.
        effect: Fraction by which B is made slower.
        plan: As for a comparison; its last look takes half the runs at most.
        comparisons: How many.
        generator: Draws windows and orders.

    Returns:
        Numbers of verdicts, and the pairs that each comparison used, int64 `[comparisons]`.
    """
    ratios = _drawn(recorded, plan.looks[-1], comparisons, generator)
    code, used = decide_many(ratios + np.log1p(effect), plan)
    counts = np.bincount(code, minlength=len(VERDICTS))
    return dict(zip(VERDICTS, counts.tolist(), strict=True)), used


def _drawn(
    recorded: RunSequence, pairs: int, comparisons: int, generator: np.random.Generator
) -> Array:
    logs, apart = recorded.logs, 2 if recorded.in_turns else 1
    starts = apart * generator.integers(0, (len(logs) - 2 * pairs) // apart + 1, comparisons)
    windows = logs[starts[:, None] + np.arange(2 * pairs)]
    return log_ratios(windows, abba(pairs, generator, comparisons))


def replay_rule(
    steps: Sequence[Array],
    effect: float,
    rule: Rule,
    comparisons: int,
    generator: np.random.Generator,
) -> dict[str, int]:
    """Return the answers of a rule that sees its runs of A and then those of B, next to each other.

    Args:
        steps: Steps of each run, ns, in the order of time.
        effect: Fraction by which B is made slower.
        rule: One of `RULES`.
        comparisons: How many.
        generator: Draws windows.

    Returns:
        Numbers of answers: slower, faster, no difference.
    """
    starts = generator.integers(0, len(steps) - 2 * rule.runs + 1, comparisons)
    places, times = np.unique(starts, return_counts=True)
    counts = {"slower": 0, "faster": 0, "no difference": 0}
    for start, number in zip(places.tolist(), times.tolist(), strict=True):
        before = steps[start : start + rule.runs]
        after = [run * (1 + effect) for run in steps[start + rule.runs : start + 2 * rule.runs]]
        counts[rule.say(before, after).verdict] += number
    return counts


def least_effect(
    recorded: RunSequence,
    plan: Plan,
    comparisons: int,
    seed: int,
    wanted: float = 0.9,
) -> float | None:
    """Return the smallest effect that is called slower with the given frequency if it is the
    minimal effect.

    Args:
        recorded: As for `replay_ours`.
        plan: Its minimal effect gives way to the one that is tried.
        comparisons: For each effect that is tried.
        seed: The same draws for each.
        wanted: Share of comparisons.

    Returns:
        In steps of 0.1 %; None if it is beyond 100 %.
    """

    def is_found(tenths: int) -> bool:
        effect = tenths / 1000
        tried = Plan(effect, plan.alpha, plan.looks)
        generator = np.random.default_rng(seed)
        counts, _ = replay_ours(recorded, effect, tried, comparisons, generator)
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


def names_of_rules() -> tuple[str, ...]:
    """Return the names of all rules, ours first."""
    return (OURS, *RULES)
