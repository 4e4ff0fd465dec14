"""A sequential test of pairs with looks at 10, 20 and 40 of them, alone and in a suite.

Note [Order of a pair]: of every two pairs one runs A first and the other B first, and a coin says
which: ABBA or BAAB. A steady drift of the machine then cancels within two pairs, and the coin keeps
a rhythm of the machine from falling together with the sides. The signed ranks treat the pairs as
independent and symmetric, and that is a condition on the noise: a drift that bends within four runs
makes the two pairs of a block alike. At its worst, a machine with nothing but a first-order
autoregressive drift of coefficient 1/2, their correlation is 1/8. What the machine at hand does is
measured by `bench calibrate`.

Note [Spending]: whoever looks three times has three chances of a false alarm. Each look may spend a
part of alpha, and the parts sum to alpha, so that by the union bound the three together err with at
most alpha, however the looks depend on each other. The part of a look goes with the square root of
its pairs: then 0.00227 of 0.01 falls to the first of 10/20/40, and ten pairs that all point one way
(p = 2/1024 = 0.00195) can decide. Claims of equivalence spend an alpha of their own in the same
way, and p values of a whole comparison are the least p over its looks, each divided by its part.

Note [Significant and small]: a verdict needs the declared minimal effect, not only a small p. If
the whole interval lies inside the minimal effect the sides are equivalent, significant or not. Else
slower or faster takes a p below what the look may spend and an estimate of at least half the
minimal effect. So nothing is called slower for 0.1 %, and a change of exactly the minimal effect,
whose estimate falls on either side of it, is found. Both conditions only take alarms away.

Note [False discoveries]: of sixty comparisons at alpha 0.01 without any change, every second suite
would raise an alarm. By Benjamini and Hochberg (1995) the expected share of false ones among the
alarms stays below `FDR`, and where nothing changed at all so does the probability of any alarm. It
needs p values that hold for the whole sequential comparison (`whole_p`). Comparisons that stopped
early have a p that is hardly below alpha; they go on, look by look, where the suite needs a smaller
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchtraceap.core import Array, dataclass
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.statistics import scipy_stats
from torchtraceap.lab.bench.statistics.rank_tests import interval, p_values, walsh_averages

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_LOOKS",
    "DEFAULT_MINIMAL_EFFECT",
    "FDR",
    "VERDICTS",
    "Look",
    "Plan",
    "abba",
    "decide",
    "decide_many",
    "judge",
    "log_ratios",
    "look_at",
    "q_values",
    "whole_p",
]

VERDICTS = ("faster", "equivalent", "undecided", "slower")
FASTER, EQUIVALENT, UNDECIDED, SLOWER = range(4)
DEFAULT_LOOKS = (10, 20, 40)
DEFAULT_ALPHA = 0.01
"""The largest probability of a false alarm in a whole comparison."""
DEFAULT_MINIMAL_EFFECT = 0.02
EQUIVALENCE_ALPHA = 0.05
"""The largest probability of a claim of equivalence if the effect is as large as the minimal one:
the customary level of two one-sided tests."""
LEAST_SHARE = 0.5
"""The smallest estimate as a share of the minimal effect; see Note [Significant and small]."""
FDR = 0.05
"""The largest expected share of false alarms among the alarms of a suite."""


def abba(pairs: int, generator: np.random.Generator, rows: int | None = None) -> Array:
    """Draw the pairs in which A runs first, bool `[pairs]` or `[rows, pairs]`; see Note [Order of a
    pair]."""
    blocks = generator.integers(0, 2, size=(rows or 1, (pairs + 1) // 2)).astype(bool)
    found = np.stack([blocks, ~blocks], axis=-1).reshape(rows or 1, -1)[:, :pairs]
    return found if rows is not None else found[0]


def log_ratios(logs: Array, a_first: Array) -> Array:
    """Return the log ratios B / A, float64 `[..., pairs]`, of the logs of what runs took in order
    of time, `[..., 2 * pairs]`, with orders as from `abba`."""
    rise = logs[..., 1::2] - logs[..., 0::2]
    return np.where(a_first, rise, -rise)


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a test that are fixed before the first run.

    Raises:
        OptionError: A value makes no sense.
    """

    minimal_effect: float = DEFAULT_MINIMAL_EFFECT
    """The fraction below which a change does not matter to the user."""
    alpha: float = DEFAULT_ALPHA
    looks: tuple[int, ...] = DEFAULT_LOOKS
    """Numbers of pairs at which results are tested, from few to many."""
    least_share: float = LEAST_SHARE

    def __post_init__(self) -> None:
        if not 0 < self.minimal_effect < 10:
            raise OptionError(
                f"a minimal effect between 0 and 1000 % is needed, not {self.minimal_effect:.4g}"
            )
        if not 0 < self.alpha < 1:
            raise OptionError(f"alpha has to lie between 0 and 1, not at {self.alpha:.4g}")
        rising = all(a < b for a, b in zip(self.looks, self.looks[1:], strict=False))
        if not self.looks or self.looks[0] < 1 or not rising:
            raise OptionError(f"looks at rising numbers of pairs are needed, not {self.looks}")

    @property
    def levels(self) -> tuple[float, ...]:
        """The parts of alpha that the looks may spend; they sum to alpha."""
        return tuple(self.alpha * share for share in self.shares)

    @property
    def equivalence_levels(self) -> tuple[float, ...]:
        """The levels that the looks may spend on a claim of equivalence."""
        # The level is at least alpha / 2: the interval inside the bounds must not be wider than
        # that of the test, or a larger effect could turn slower into equivalent.
        total = max(EQUIVALENCE_ALPHA, self.alpha / 2)
        return tuple(total * share for share in self.shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of alpha by look; see Note [Spending]."""
        roots = [math.sqrt(pairs) for pairs in self.looks]
        return tuple(root / sum(roots) for root in roots)

    @property
    def bound(self) -> float:
        """The minimal effect as a log ratio, which is symmetric around 0."""
        return math.log1p(self.minimal_effect)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one comparison."""

    pairs: int
    verdict: str
    p: float
    """Two-sided p value of this look alone."""
    level: float
    """The part of alpha that this look may spend."""
    best: float
    """Estimate of the log ratio after / before."""
    low: float
    high: float
    """Upper end of the interval behind the verdict; infinite if so few pairs exclude nothing."""
    error: float
    """The largest probability that this interval misses: `level`, or for equivalence twice the
    level of each of its two tests."""


def judge(values: Array, plan: Plan, look: int) -> tuple[Array, Array, Array, Array, Array]:
    """Judge many comparisons at one look.

    Args:
        values: Log ratios after / before of the pairs so far, float64 `[..., pairs]`.
        plan: The settings, fixed before the first run.
        look: Number of the look.

    Returns:
        Of each row, `[...]`: index into `VERDICTS`; p; estimate of the log ratio after / before;
        ends of the interval behind the verdict, which for equivalence is the one inside the bounds,
        else that of the test.
    """
    pairs = values.shape[-1]
    averages = walsh_averages(values)
    # The averages are sorted: this is their median.
    middle = averages.shape[-1] // 2
    best = averages[..., middle]
    if averages.shape[-1] % 2 == 0:
        best = (averages[..., middle - 1] + best) / 2
    low, high = interval(averages, pairs, plan.levels[look])
    inner_low, inner_high = interval(averages, pairs, 2 * plan.equivalence_levels[look])
    p = p_values(values)
    inside = (inner_low > -plan.bound) & (inner_high < plan.bound)
    large = np.abs(best) >= plan.least_share * plan.bound
    significant = (p <= plan.levels[look]) & large
    code = np.where(significant, np.where(best > 0, SLOWER, FASTER), UNDECIDED)
    return (
        np.where(inside, EQUIVALENT, code),
        p,
        best,
        np.where(inside, inner_low, low),
        np.where(inside, inner_high, high),
    )


def look_at(values: Sequence[float] | Array, plan: Plan, look: int) -> Look:
    """Apply `judge` to one comparison."""
    judged = judge(np.asarray(values, np.float64), plan, look)
    code = int(judged[0])
    p, best, low, high = map(float, judged[1:])
    level = plan.levels[look]
    error = 2 * plan.equivalence_levels[look] if code == EQUIVALENT else level
    return Look(len(values), VERDICTS[code], p, level, best, low, high, error)


def decide(values: Sequence[float] | Array, plan: Plan) -> tuple[Look, ...]:
    """Take looks at pairs in the order in which they ran, until one decides, and return them.

    The log ratios after / before are at least as many as the first look takes. Looks that take more
    than there are don't happen.
    """
    ratios = np.asarray(values, np.float64)
    looks: list[Look] = []
    for number, pairs in enumerate(plan.looks):
        if pairs > len(ratios):
            break
        looks.append(look_at(ratios[:pairs], plan, number))
        if looks[-1].verdict != "undecided":
            break
    return tuple(looks)


def whole_p(looks: Sequence[Look], plan: Plan) -> float:
    """Return one p value for all looks together: the smallest p of a look divided by its share of
    alpha. It holds at any stopping point by the union bound, so that a suite may correct it
    further."""
    shares = plan.shares
    least = [look.p / share for look, share in zip(looks, shares, strict=False)]
    return min(1.0, *least) if least else 1.0


def q_values(p: Sequence[float]) -> Array:
    """Return the smallest false discovery rate at which each comparison is a discovery (Benjamini
    and Hochberg)."""
    found: Array = scipy_stats().false_discovery_control(p)
    return found


_AT_ONCE = 2_000


def decide_many(values: Array, plan: Plan) -> tuple[Array, Array]:
    """Apply `decide` to many comparisons, float64 `[comparisons, pairs]`, with as many pairs as the
    last look takes.

    Returns:
        Index into `VERDICTS` and pairs used, int64 `[comparisons]` both.
    """
    code = np.full(len(values), UNDECIDED)
    used = np.full(len(values), plan.looks[-1])
    for start in range(0, len(values), _AT_ONCE):
        open_ = np.arange(start, min(start + _AT_ONCE, len(values)))
        for number, pairs in enumerate(plan.looks):
            found = judge(values[open_, :pairs], plan, number)[0]
            decided = found != UNDECIDED
            code[open_[decided]], used[open_[decided]] = found[decided], pairs
            open_ = open_[~decided]
    return code, used
