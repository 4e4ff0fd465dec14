"""A sequential test with looks at 10, 20 and 40 pairs.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.statistics.signed_rank import interval, p_values, walsh_averages

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_LOOKS",
    "DEFAULT_MINIMAL_EFFECT",
    "VERDICTS",
    "Look",
    "LookResults",
    "Plan",
    "decide",
    "decide_many",
    "judge",
    "look_at",
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
    """Increasing numbers of pairs at which results are tested."""
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
class LookResults:
    """One look at many comparisons at once, as arrays `[...]` over the judged rows."""

    code: Array
    """Index into `VERDICTS`."""
    p: Array
    best: Array
    """Estimate of the log ratio after / before."""
    low: Array
    high: Array
    """Upper end of the interval behind the verdict: for equivalence the one inside the bounds, else
    that of the test."""


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


def judge(values: Array, plan: Plan, look: int) -> LookResults:
    """Judge comparisons at one look.

    Args:
        values: float64 `[..., pairs]`: log ratios after / before of the pairs so far.
        plan: As it was before the first run.
        look: Which of its looks.

    Returns:
        Codes and figures of each row.
    """
    pairs = values.shape[-1]
    averages = walsh_averages(values)
    best = _median(averages)
    low, high = interval(averages, pairs, plan.levels[look])
    inner_low, inner_high = interval(averages, pairs, 2 * plan.equivalence_levels[look])
    p = p_values(values)
    inside = (inner_low > -plan.bound) & (inner_high < plan.bound)
    large = np.abs(best) >= plan.least_share * plan.bound
    significant = (p <= plan.levels[look]) & large
    code = np.where(significant, np.where(best > 0, SLOWER, FASTER), UNDECIDED)
    return LookResults(
        code=np.where(inside, EQUIVALENT, code),
        p=p,
        best=best,
        low=np.where(inside, inner_low, low),
        high=np.where(inside, inner_high, high),
    )


def _median(ordered: Array) -> Array:
    middle = ordered.shape[-1] // 2
    if ordered.shape[-1] % 2:
        return ordered[..., middle]
    mean: Array = (ordered[..., middle - 1] + ordered[..., middle]) / 2
    return mean


def look_at(values: Sequence[float] | Array, plan: Plan, look: int) -> Look:
    """Apply `judge` to one comparison."""
    found = judge(np.asarray(values, np.float64), plan, look)
    level = plan.levels[look]
    equivalent = int(found.code) == EQUIVALENT
    return Look(
        pairs=len(values),
        verdict=VERDICTS[int(found.code)],
        p=float(found.p),
        level=level,
        best=float(found.best),
        low=float(found.low),
        high=float(found.high),
        error=2 * plan.equivalence_levels[look] if equivalent else level,
    )


def decide(values: Sequence[float] | Array, plan: Plan) -> tuple[Look, ...]:
    """Take looks at pairs in the order in which they ran, until one decides.

    Args:
        values: Log ratios after / before; at least as many as the first look takes. Looks that
            take more than there are don't happen.
        plan: As it was before the first run.

    Returns:
        Every look that was taken; the last one has the verdict.
    """
    return tuple(_looks(np.asarray(values, np.float64), plan))


def _looks(values: Array, plan: Plan) -> Iterator[Look]:
    for number, pairs in enumerate(plan.looks):
        if pairs > len(values):
            return
        look = look_at(values[:pairs], plan, number)
        yield look
        if look.verdict != "undecided":
            return


def whole_p(looks: Sequence[Look], plan: Plan) -> float:
    """Return one p value for all looks together: the smallest p of a look divided by its share of
    alpha. It holds at any stopping point by the union bound, so that a suite may correct it
    further.

    It holds whenever one stops, by the union bound, so that a suite may correct it further.
    """
    shares = plan.shares
    least = [look.p / shares[plan.looks.index(look.pairs)] for look in looks]
    return min(1.0, *least) if least else 1.0


_AT_ONCE = 2_000


def decide_many(values: Array, plan: Plan) -> tuple[Array, Array]:
    """Apply `decide` to many comparisons.

    Args:
        values: float64 `[comparisons, pairs]`, as many pairs as the last look takes.
        plan: As it was before the first run.

    Returns:
        Index into `VERDICTS` and pairs used, int64 `[comparisons]` both.
    """
    code = np.full(len(values), UNDECIDED)
    used = np.full(len(values), plan.looks[-1])
    for start in range(0, len(values), _AT_ONCE):
        open_ = np.arange(start, min(start + _AT_ONCE, len(values)))
        for number, pairs in enumerate(plan.looks):
            found = judge(values[open_, :pairs], plan, number).code
            decided = found != UNDECIDED
            code[open_[decided]], used[open_[decided]] = found[decided], pairs
            open_ = open_[~decided]
    return code, used
