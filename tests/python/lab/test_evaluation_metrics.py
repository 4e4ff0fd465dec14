"""Metrics of window scores, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.metrics import (
    Scored,
    average_precision,
    calibration,
    confusion,
    draws,
    event_hits,
    false_positive_rate,
    group_pairs,
    interval,
    paired_difference,
    per_trace_auc,
    replicates,
    said_types,
    threshold_at,
    type_metrics,
    typed_given_window,
    window_auc,
)


def scored(score: list[float], positive: list[int], trace: list[int]) -> Scored:
    codes = np.array(trace)
    marks = np.array(positive, dtype=bool)
    bad = np.isin(codes, codes[marks])
    return Scored(np.array(score), marks, bad, codes, codes // 2)


@pytest.fixture
def drawn() -> Scored:
    rng = np.random.default_rng(5)
    positive = rng.random(400) < 0.2
    trace = np.repeat(np.arange(20), 20)
    score = np.round(rng.normal(size=400) + positive, 1)  # with ties
    positive &= trace % 2 == 0
    return Scored(score, positive, trace % 2 == 0, trace, trace // 4)


def test_a_pair_in_order_counts_one_and_a_tie_half() -> None:
    one = scored([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0], [0, 0, 0, 0])
    assert window_auc(one) == pytest.approx(3.5 / 4)


def test_one_class_alone_has_no_area() -> None:
    none = scored([0.9, 0.5], [0, 0], [0, 0])
    assert np.isnan(window_auc(none)) and np.isnan(average_precision(none))
    assert np.isnan(false_positive_rate(none)) and not len(per_trace_auc(none)[0])


def test_a_score_for_whole_traces_separates_them_and_points_nowhere() -> None:
    found = scored([1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], [0] * 4 + [1] * 4)
    assert window_auc(found) == pytest.approx(5 / 6)
    assert window_auc(found.part(found.bad)) == 0.5
    values, groups = per_trace_auc(found)
    assert values.tolist() == [0.5] and groups.tolist() == [0]


def test_false_alarms_are_counted_on_good_traces_at_a_recall() -> None:
    found = scored([5, 4, 3, 2, 1, 2.5, 0.5], [1, 1, 1, 1, 1, 0, 0], [0] * 5 + [2, 2])
    assert threshold_at(found, 0.8) == 2
    assert false_positive_rate(found, 0.8) == 0.5
    assert false_positive_rate(found, 0.6) == 0.0


def test_pairs_by_groups_sum_to_the_area(drawn: Scored) -> None:
    won, pairs = group_pairs(drawn, 5)
    assert won.sum() / pairs.sum() == pytest.approx(window_auc(drawn))


def test_a_resample_of_groups_is_what_repeating_their_windows_gives(drawn: Scored) -> None:
    weights = np.array([[1, 1, 1, 1, 1], [2, 0, 1, 0, 2]])
    areas = replicates(drawn, "auc", weights)
    assert areas[0] == pytest.approx(window_auc(drawn))
    rows = np.concatenate([np.flatnonzero(drawn.group == g) for g in (0, 0, 2, 4, 4)])
    assert areas[1] == pytest.approx(window_auc(drawn.part(rows)))
    precisions = replicates(drawn, "ap", weights)
    assert precisions[1] == pytest.approx(average_precision(drawn.part(rows)))
    rates = replicates(drawn, "fpr", weights)
    assert rates[1] == pytest.approx(false_positive_rate(drawn.part(rows)), nan_ok=True)
    values, groups = per_trace_auc(drawn)
    means = replicates(drawn, "per_trace", weights)
    assert means[1] == pytest.approx(np.average(values, weights=weights[1][groups]))


def test_draws_keep_the_number_of_groups() -> None:
    found = draws(3, resamples=50, seed=3)
    assert (found.sum(axis=1) == 3).all() and len(np.unique(found, axis=0)) > 3
    assert (found == draws(3, resamples=50, seed=3)).all()


def test_a_difference_on_the_same_resamples_is_narrower(drawn: Scored) -> None:
    better = Scored(drawn.score + 0.3 * drawn.positive, *list(vars(drawn).values())[1:])
    weights = draws(5)
    both = tuple(replicates(each, "auc", weights) for each in (better, drawn))
    values = window_auc(better), window_auc(drawn)
    difference = paired_difference(values, (both[0], both[1]))
    assert difference.low > 0 and difference.value == pytest.approx(values[0] - values[1])
    alone = interval(values[0], both[0])
    assert difference.high - difference.low < alone.high - alone.low
    assert np.isnan(interval(0.5, np.array([np.nan])).low)


def test_an_event_is_a_hit_where_costs_cover_half_of_it() -> None:
    cost = np.array([[100, 200], [300, 400]])
    assert event_hits([(100, 250)], [cost]) == 1.0
    assert event_hits([(150, 260)], [cost]) == 0.0
    assert event_hits([(150, 350)], [cost]) == 1.0  # in two parts
    assert event_hits([(120, 120), (250, 250), None], [cost] * 3) == pytest.approx(1 / 3)
    assert np.isnan(event_hits([], []))
    with pytest.raises(OptionError, match="1 events for 2 traces"):
        event_hits([None], [cost, cost])


def test_types_given_a_window_and_end_to_end() -> None:
    cost = np.array([[0.5, 0.2], [0, 0.4], [0, 0.3], [0, 0]])
    said = np.array([[0.9, 0.1], [0.6, 0.4], [0.1, 0.9], [0.5, 0.1]])
    given = typed_given_window(cost, said, np.array([True, True, True, False]))
    assert given[0].tolist() == [0, 1, 1] and given[1].tolist() == [0, 0, 1]
    found = type_metrics(*given)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    missed = np.array([0, 1, 1, -1, -1]), np.array([0, -1, 1, 0, -1])
    found = type_metrics(*missed)
    assert found["windows"] == 4 and found["accuracy"] == 0.5
    assert confusion(*missed, 2).tolist() == [[1, 0, 0], [0, 1, 1], [1, 0, 1]]
    assert np.isnan(type_metrics(np.array([-1]), np.array([-1]))["accuracy"])


def test_calibration_of_chances() -> None:
    score = np.array([0.05, 0.05, 0.95, 0.95])
    found = calibration(score, np.array([False, False, True, True]))
    assert found["ece"] == pytest.approx(0.05) and found["brier"] == pytest.approx(0.0025)
    assert calibration(score, np.array([True, True, False, False]))["ece"] == pytest.approx(0.95)
    assert np.isnan(calibration(score[:0], np.array([], dtype=bool))["ece"])
    with pytest.raises(OptionError, match="between 0 and 1"):
        calibration(np.array([2.0]), np.array([True]))


def test_what_is_not_named_is_no_type() -> None:
    said = np.array([[0.0, 0.0], [0.2, 0.1], [0.0, 0.3]])
    assert said_types(said).tolist() == [2, 0, 1]
    cost = np.array([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0]])
    typed = typed_given_window(cost, said, np.array([True] * 3))
    assert type_metrics(*typed)["accuracy"] == pytest.approx(1 / 3)
    assert confusion(*typed, 2).tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
