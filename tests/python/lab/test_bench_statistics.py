"""Statistics of comparisons: exactness, error rates, and what must not depend on chance."""

from __future__ import annotations

import sys
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchtraceap.core.aliases import Array
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison.calibrate import (
    least_effect,
    replay_ours,
    replay_rule,
    share_of,
)
from torchtraceap.lab.bench.comparison.stored_runs import compare_unpaired
from torchtraceap.lab.bench.statistics import rank_tests as signed
from torchtraceap.lab.bench.statistics.rank_tests import rank_sum_p, shift, shift_interval
from torchtraceap.lab.bench.statistics.rules import RULES
from torchtraceap.lab.bench.statistics.sequential import (
    VERDICTS,
    Plan,
    abba,
    decide,
    decide_many,
    judge,
    log_ratios,
    look_at,
    q_values,
    whole_p,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "verdicts"))
from machines import MACHINES, Machine

SMALL = st.lists(st.integers(-4, 4), min_size=1, max_size=12)
LOGS = st.lists(st.floats(-0.2, 0.2), min_size=10, max_size=10)


def at_most(rate: float, trials: int) -> float:
    """What a share of trials stays below but for four standard errors."""
    return rate + 4 * (rate * (1 - rate) / trials) ** 0.5


# ------------------------------------------------------------------------------- exactness


def enumerated_p(values: list[int]) -> float:
    """Two-sided p over all signs, by trying each."""
    sizes = np.abs(values)
    ranks = stats.rankdata(sizes)
    kept = ranks[sizes > 0]
    seen = ranks[np.array(values) > 0].sum()
    signs = np.array(list(product((0, 1), repeat=len(kept))))
    sums = signs @ kept
    return min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))


@given(SMALL)
def test_signed_rank_p_is_that_of_all_signs_also_with_ties_and_zeros(values: list[int]) -> None:
    assert signed.p_values(np.array(values)) == pytest.approx(enumerated_p(values), abs=1e-14)


@pytest.mark.parametrize("pairs", [1, 2, 10, 20, 40])
def test_signed_rank_p_agrees_with_scipy(pairs: int) -> None:
    values = np.random.default_rng(pairs).normal(0.2, 1, (20, pairs))
    expected = [stats.wilcoxon(row, method="exact").pvalue for row in values]
    assert signed.p_values(values) == pytest.approx(expected, rel=1e-12)


def test_least_p_of_ten_pairs_is_two_in_1024() -> None:
    assert signed.p_values(np.arange(1.0, 11)) == signed.least_p(10) == 2 / 1024


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
def test_rank_sum_p_is_that_of_all_choices(before: list[int], after: list[int]) -> None:
    ranks = stats.rankdata([*before, *after])
    seen = ranks[len(before) :].sum()
    sums = np.array([sum(choice) for choice in combinations(ranks, len(after))])
    expected = min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))
    assert rank_sum_p(np.array(before), np.array(after)) == pytest.approx(expected, abs=1e-14)


def test_rank_sum_p_agrees_with_scipy() -> None:
    generator = np.random.default_rng(3)
    for m, n in ((3, 9), (10, 10), (17, 20)):
        a, b = generator.normal(size=m), generator.normal(0.7, size=n)
        expected = stats.mannwhitneyu(a, b, method="exact").pvalue
        assert rank_sum_p(a, b) == pytest.approx(expected, rel=1e-9)


# -------------------------------------------------------------------- estimates and intervals


@given(LOGS)
def test_estimate_is_the_median_of_means_of_two(values: list[float]) -> None:
    means = [(a + b) / 2 for i, a in enumerate(values) for b in values[i:]]
    assert look_at(values, Plan(), 0).best == pytest.approx(np.median(means), abs=1e-15)


@pytest.mark.parametrize(("pairs", "error"), [(10, 0.01), (20, 0.05), (40, 0.0045)])
def test_interval_holds_what_the_test_does_not_exclude(pairs: int, error: float) -> None:
    values = np.random.default_rng(pairs).standard_t(2, (30, pairs))
    low, high = signed.interval(signed.walsh_averages(values), pairs, error)
    for ends, outward in ((low, -1e-9), (high, 1e-9)):
        assert (signed.p_values(values - ends[:, None] - outward) <= error).all()
        assert (signed.p_values(values - ends[:, None] + outward) > error).all()


def test_interval_of_too_few_pairs_has_no_ends() -> None:
    low, high = signed.interval(signed.walsh_averages(np.arange(5.0)), 5, 0.05)
    assert (low, high) == (-np.inf, np.inf)


@pytest.mark.parametrize("pairs", [10, 20])
def test_interval_covers_as_often_as_it_says(pairs: int) -> None:
    values = np.random.default_rng(pairs).laplace(1, 1, (8000, pairs))
    low, high = signed.interval(signed.walsh_averages(values), pairs, 0.05)
    missed = float(((low > 1) | (high < 1)).mean())
    # Sums of ranks are discrete, so the error is somewhat below what was allowed.
    assert 0.03 < missed < at_most(0.05, 8000)


def test_shift_interval_covers_and_is_centred() -> None:
    generator = np.random.default_rng(5)
    missed = 0
    for _ in range(400):
        a, b = generator.normal(size=8), generator.normal(1, size=9)
        low, high = shift_interval(a, b, 0.1)
        assert low <= shift(a, b) <= high
        missed += not low <= 1 <= high
    assert missed / 400 < at_most(0.1, 400)


# ----------------------------------------------------------------------- looks and verdicts


@given(
    st.floats(1e-4, 0.3),
    st.lists(st.integers(1, 200), min_size=1, max_size=5, unique=True).map(sorted),
)
def test_spent_levels_sum_to_alpha(alpha: float, looks: list[int]) -> None:
    plan = Plan(alpha=alpha, looks=tuple(looks))
    assert sum(plan.levels) == pytest.approx(alpha)
    assert all(level > 0 for level in plan.levels)


def test_first_of_the_usual_looks_can_decide() -> None:
    assert signed.least_p(10) <= Plan().levels[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"minimal_effect": 0.0},
        {"minimal_effect": float("nan")},
        {"alpha": 1.0},
        {"alpha": 0.0},
        {"looks": ()},
        {"looks": (10, 10)},
        {"looks": (0, 5)},
    ],
)
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        Plan(**wrong)  # type: ignore[arg-type]


@given(LOGS)
def test_swapping_sides_negates_the_effect_and_keeps_p(values: list[float]) -> None:
    plan = Plan(looks=(10,))
    one, other = look_at(values, plan, 0), look_at(np.negative(values), plan, 0)
    mirrored = {"slower": "faster", "faster": "slower"}
    assert other.verdict == mirrored.get(one.verdict, one.verdict)
    assert other.p == one.p
    assert (other.best, other.low, other.high) == pytest.approx(
        (-one.best, -one.high, -one.low), abs=1e-15
    )


@given(LOGS, st.floats(0, 0.2), st.sampled_from([0.01, 0.2]))
def test_a_slower_b_is_never_judged_faster_than_before(
    values: list[float], more: float, alpha: float
) -> None:
    plan = Plan(alpha=alpha, looks=(10,))
    order = {"faster": 0, "equivalent": 1, "undecided": 1, "slower": 2}
    one, other = (look_at(np.add(values, by), plan, 0).verdict for by in (0, more))
    assert order[one] <= order[other]


@pytest.mark.parametrize(
    ("size", "spread", "verdict"),
    [
        (0.0, 0.001, "equivalent"),
        (0.005, 0.001, "equivalent"),  # significant, and small
        (0.03, 0.001, "slower"),
        (-0.03, 0.001, "faster"),
        (0.0, 0.5, "undecided"),
    ],
)
def test_verdicts(size: float, spread: float, verdict: str) -> None:
    values = size + spread * np.random.default_rng(1).normal(size=40)
    assert decide(values, Plan())[-1].verdict == verdict


def test_looks_end_with_the_first_decision() -> None:
    clear = decide(np.full(40, 0.1) + np.arange(40) * 1e-6, Plan())
    assert [look.pairs for look in clear] == [10]
    noisy = decide(np.random.default_rng(1).normal(0, 0.5, 40), Plan())
    assert [look.pairs for look in noisy] == [10, 20, 40]
    assert len(decide(np.zeros(15) + 1, Plan())) == 1
    assert not decide(np.zeros(5), Plan())


def test_many_are_decided_as_one_is() -> None:
    values = np.random.default_rng(2).normal(0.015, 0.03, (60, 40))
    code, used = decide_many(values, Plan())
    last = [decide(row, Plan())[-1] for row in values]
    assert [VERDICTS[each] for each in code] == [look.verdict for look in last]
    assert used.tolist() == [look.pairs for look in last]
    assert len({look.verdict for look in last}) > 1


@pytest.mark.parametrize("noise", ["normal", "cauchy", "ties"])
def test_false_alarms_stay_below_alpha(noise: str) -> None:
    """Also where nothing is ever equivalent, so that every look is taken, and any size counts."""
    generator = np.random.default_rng(11)
    trials = 1_000 if noise == "ties" else 12_000
    values: Array = {
        "normal": generator.normal(size=(trials, 40)),
        "cauchy": generator.standard_cauchy((trials, 40)),
        "ties": generator.integers(-3, 4, (trials, 40)).astype(float),
    }[noise]
    code, _ = decide_many(values, Plan(minimal_effect=1e-9, alpha=0.05, least_share=0.0))
    alarms = float((code != VERDICTS.index("undecided")).mean())
    assert 0.02 < alarms < at_most(0.05, trials)


def machine_verdicts(machine: Machine, effect: float, trials: int) -> dict[str, float]:
    generator = np.random.default_rng(17)
    logs = machine.logs(trials, 80, generator)
    values = log_ratios(logs, abba(40, generator, trials)) + np.log1p(effect)
    code, _ = decide_many(values, Plan())
    shares = np.bincount(code, minlength=len(VERDICTS)) / trials
    return dict(zip(VERDICTS, shares.tolist(), strict=True))


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_made_machines_raise_few_alarms_and_show_three_percent(name: str) -> None:
    same = machine_verdicts(MACHINES[name], 0.0, 4_000)
    assert same["slower"] + same["faster"] < 0.01
    assert machine_verdicts(MACHINES[name], 0.03, 2_000)["slower"] > 0.9


def test_bent_drift_within_two_pairs_costs_little() -> None:
    """The worst first-order drift for ABBA; see Note [Order of a pair]."""
    generator = np.random.default_rng(23)
    logs = Machine(run=0.0, drift=1.0, slow=0.0, memory=0.5).logs(12_000, 80, generator)
    values = log_ratios(logs, abba(40, generator, 12_000))
    code, _ = decide_many(values, Plan(minimal_effect=1e-9, least_share=0.0))
    assert float((code != VERDICTS.index("undecided")).mean()) < 0.02


def test_equivalence_is_seldom_claimed_of_the_minimal_effect() -> None:
    values = np.random.default_rng(29).normal(np.log1p(0.02), 0.01, (6_000, 40))
    code, _ = decide_many(values, Plan())
    assert float((code == VERDICTS.index("equivalent")).mean()) < at_most(0.05, 6_000)


def test_conditions_on_size_only_take_alarms_away() -> None:
    values = np.random.default_rng(31).normal(0.008, 0.02, (500, 20))
    strict, free = (judge(values, Plan(least_share=share), 1)[0] for share in (1.0, 0.0))
    alarms = (VERDICTS.index("slower"), VERDICTS.index("faster"))
    assert np.isin(free[np.isin(strict, alarms)], alarms).all()
    assert np.isin(strict, alarms).sum() < np.isin(free, alarms).sum()


def test_p_of_all_looks_together_holds() -> None:
    plan = Plan(minimal_effect=1e-9, least_share=0.0)
    values = np.random.default_rng(37).normal(size=(800, 40))
    p = np.array([whole_p(decide(row, plan), plan) for row in values])
    for level in (0.02, 0.1, 0.5):
        assert (p <= level).mean() < at_most(level, 800)
    assert whole_p((), plan) == 1.0


def test_q_values_are_those_of_benjamini_and_hochberg() -> None:
    p = [0.001, 0.01, 0.02, 0.8]
    assert q_values(p) == pytest.approx([0.004, 0.02, 0.02 * 4 / 3, 0.8])


# ----------------------------------------------------------------------------------- orders


@pytest.mark.parametrize("pairs", [10, 20, 40, 7])
def test_each_two_pairs_run_in_both_orders(pairs: int) -> None:
    drawn = abba(pairs, np.random.default_rng(1), rows=50)
    assert drawn.shape == (50, pairs)
    even = drawn[:, : pairs // 2 * 2].reshape(50, -1, 2)
    assert (even[..., 0] != even[..., 1]).all()
    assert 0.3 < even[..., 0].mean() < 0.7
    assert abba(pairs, np.random.default_rng(1)).tolist() == drawn[0].tolist()


def test_steady_drift_cancels_within_two_pairs() -> None:
    first = abba(10, np.random.default_rng(1))
    ratios = log_ratios(np.arange(20) * 0.01, first)
    assert ratios.sum() == pytest.approx(0)
    assert log_ratios(np.array([1.0, 3.0]), np.array([True])).tolist() == [2.0]
    assert log_ratios(np.array([1.0, 3.0]), np.array([False])).tolist() == [-2.0]


# ---------------------------------------------------------------------------- stored runs


def test_two_stored_runs() -> None:
    generator = np.random.default_rng(41)
    a = generator.normal(0, 0.002, 12)
    slower, why = compare_unpaired(a, a + 0.05, Plan())
    assert (slower.verdict, why) == ("slower", "")
    assert compare_unpaired(a + 0.05, a, Plan())[0].verdict == "faster"
    equal, _ = compare_unpaired(a, a[::-1] + 1e-5, Plan())
    assert equal.verdict == "equivalent"


def test_few_stored_processes_say_why_nothing_is_decided() -> None:
    three, why = compare_unpaired(np.zeros(3), np.arange(8) + 1.0, Plan())
    assert (three.verdict, why) == ("undecided", "3 processes on a side, 4 are needed")
    four, why = compare_unpaired(np.arange(4) * 0.001, np.arange(4) * 0.001 + 1, Plan())
    assert four.verdict == "undecided"
    assert "more processes are needed" in why


# ------------------------------------------------------------------------------ other rules


def runs_of(*medians: float) -> list[Array]:
    return [median * np.array([0.999, 1.0, 1.001]) for median in medians]


def said(rule: str, before: list[Array], after: list[Array]) -> str:
    return RULES[rule].say(before, after)[0]


def test_single_runs_go_by_their_threshold() -> None:
    before = runs_of(100)
    for rule, quiet, loud in (
        ("torchbench_7_percent", 106.9, 107.1),
        ("single_run_2_percent", 101.9, 102.1),
    ):
        assert said(rule, before, runs_of(quiet)) == "no difference"
        assert said(rule, before, runs_of(loud)) == "slower"
    assert said("torchbench_7_percent", before, runs_of(90)) == "faster"


def test_asv_wants_significance_and_a_factor() -> None:
    generator = np.random.default_rng(43)
    before = [generator.normal(100, 0.1, 10) for _ in range(2)]
    small = [run * 1.05 for run in before]
    large = [run * 1.2 for run in before]
    assert said("asv", before, small) == "no difference"
    assert said("asv_without_factor", before, small) == "slower"
    assert said("asv", before, large) == "slower"
    assert said("asv", large, before) == "faster"
    assert said("asv_without_factor", before, before) == "no difference"


def test_asv_with_few_samples_compares_intervals() -> None:
    lone = [np.array([100.0]), np.array([100.0])]
    assert said("asv", lone, [run * 2 for run in lone]) == "no difference"  # no interval ends


def test_blocks() -> None:
    before = runs_of(*range(100, 110))
    assert said("blocks_mwu", before, runs_of(*range(120, 130))) == "slower"
    assert said("blocks_mwu", before, before) == "no difference"


# ---------------------------------------------------------------------------------- replays


def test_shares_have_exact_intervals() -> None:
    for count in (0, 3, 20):
        found = share_of(count, 20)
        exact = stats.binomtest(count, 20).proportion_ci(method="exact")
        assert (found.value, found.low, found.high) == pytest.approx(
            (count / 20, exact.low, exact.high)
        )


def test_replays_of_quiet_runs_raise_no_alarm_and_find_what_is_planted() -> None:
    generator = np.random.default_rng(47)
    logs = generator.normal(16, 0.004, 100)
    same, used = replay_ours(logs, 0.0, Plan(), 300, generator)
    assert same["slower"] + same["faster"] <= 3
    assert same["equivalent"] >= 297
    assert used.tolist() == [10] * 300
    planted, _ = replay_ours(logs, 0.03, Plan(), 300, generator)
    assert planted["slower"] >= 295


def test_replays_of_a_rule_count_its_answers() -> None:
    steps = [np.full(5, 100.0)] * 30
    counts = replay_rule(steps, 0.03, RULES["single_run_2_percent"], 50, np.random.default_rng(1))
    assert counts == {"slower": 50, "faster": 0, "no difference": 0}


def test_least_effect_grows_with_noise() -> None:
    generator = np.random.default_rng(53)
    found = [
        least_effect(generator.normal(0, noise, 80), Plan(), 100, 1) for noise in (0.005, 0.05)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert 0.001 < found[0] < 0.02 < found[1] < 0.2
