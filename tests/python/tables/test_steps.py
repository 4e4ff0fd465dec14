"""Statistics of steps: what is unusual, what differs, whether kernels slow down."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from conftest import WriteTrace
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import torchtraceap as ttap
from torchtraceap.tables.steps.steps import (
    _mann_kendall,
    _series,
    _theil_sen,
    build_steps,
    kernel_trend,
)
from torchtraceap.trace.ranks import RankTrace

Event = dict[str, Any]


def training(
    count: int,
    kernel_us: Callable[[int], float] = lambda _: 100.0,
    *,
    wait_us: Callable[[int], float] = lambda _: 0.0,
    kernels: int = 4,
    marked: bool = True,
) -> list[Event]:
    """Steps of equal kernels that follow each other; the host may wait in front of a step."""
    events: list[Event] = []
    clock, correlation = 0.0, 0

    def add(category: str, name: str, start: float, us: float, tid: int, **args: Any) -> None:
        pid = 0 if category == "kernel" else 1
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "args": args}
        events.append({**event, "ts": start, "dur": us})

    for number in range(count):
        begin = clock
        if waited := wait_us(number):
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            add("user_annotation", name, clock, waited, 1)
            clock += waited
        for _ in range(kernels):
            correlation += 1
            us = kernel_us(number)
            shapes = {"Input Dims": [[4, 4], [4, 4]]}
            add("cpu_op", "aten::mm", clock, 5, 1, **shapes)
            add("cuda_runtime", "cudaLaunchKernel", clock + 1, 3, 1, correlation=correlation)
            on_gpu = {"device": 0, "stream": 7, "correlation": correlation, "grid": [8, 1, 1]}
            add("kernel", "gemm", clock + 5, us, 7, **on_gpu)
            clock += 5 + us
        if marked:
            add("user_annotation", f"ProfilerStep#{number}", begin, clock - begin, 1)
    return events


@pytest.fixture
def load(write_trace: WriteTrace) -> Callable[[list[Event]], RankTrace]:
    return lambda events: ttap.load(write_trace(events)).rank()


Load = Callable[[list[Event]], RankTrace]


def test_classes_and_causes_sum_to_each_step(load: Load) -> None:
    table = build_steps(load(training(5, wait_us=lambda n: 100.0 * n)))
    assert table.num_rows == 5
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
    np.testing.assert_array_equal(sum(table[name] for name in parts), table["duration_ns"])
    causes = [n for n in table.columns if n.startswith("idle_") and n != "idle_ns"]
    assert len(causes) == 11
    np.testing.assert_array_equal(sum(table[name] for name in causes), table["idle_ns"])
    assert table["idle_data_loading_ns"].tolist() == [0, 100_000, 200_000, 300_000, 400_000]
    assert table.to_list("whole") == [False, True, True, True, False]
    assert not table["inferred"].any()


def test_outlier_and_what_differs_in_it(load: Load) -> None:
    table = build_steps(load(training(12, wait_us=lambda n: 900.0 if n == 6 else float(n % 2))))
    assert np.flatnonzero(table["outlier"]).tolist() == [6]
    assert np.flatnonzero(table["slow"]).tolist() == [6]
    assert table["z"][6] > 100
    (worst,) = table.to_list("differs")[6]
    assert worst["name"].startswith("idle: data loading (enumerate(DataLoader)")
    assert worst["delta_ns"] == pytest.approx(900_000, abs=1000)
    assert "+" in table.to_list("what_differs")[6]
    assert table.to_list("what_differs")[5] is None
    assert table.facts["jitter"]["outliers"] == 1


def test_slow_operator_is_named(load: Load) -> None:
    table = build_steps(load(training(9, lambda n: 300.0 if n == 4 else 100.0)))
    assert table.to_list("differs")[4] == [{"name": "aten::mm", "delta_ns": 800_000}]


def test_even_steps_have_no_outliers(load: Load) -> None:
    table = build_steps(load(training(8)))
    assert np.isnan(table["z"]).all()
    assert not table["outlier"].any()
    jitter = table.facts["jitter"]
    assert (jitter["steps"], jitter["mad_ns"], jitter["p95_over_median"]) == (6, 0, 1.0)
    assert table.to_json()


def test_tiny_deviations_are_no_outliers(load: Load) -> None:
    table = build_steps(load(training(12, wait_us=lambda n: 1.0 if n == 6 else 0.0)))
    assert table["z"][6] > 3.5
    assert not table["outlier"].any()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_steps(load: Load, count: int) -> None:
    events = training(count) or training(2, marked=False)
    table = build_steps(load(events))
    assert table.num_rows == count
    assert any("no steps" in note for note in table.notes) == (count == 0)
    assert any("Fewer than three" in note for note in table.notes) == (count > 0)
    assert table.to_list("whole") == ([False, True, False] if count == 3 else [True] * count)
    table.to_json()


def test_steps_without_gpu(load: Load) -> None:
    events = [e for e in training(5) if e["cat"] not in ("kernel", "cuda_runtime")]
    table = build_steps(load(events))
    assert any("No GPU events" in note for note in table.notes)
    np.testing.assert_array_equal(table["idle_ns"], table["duration_ns"])
    assert table.facts["trend"]["verdict"] == "unknown"


def test_ranks_stack(write_trace: WriteTrace, tmp_path: Any) -> None:
    for rank in range(2):
        document = {"distributedInfo": {"rank": rank}, "traceEvents": training(4 + rank)}
        write_trace(document, f"job/rank{rank}.json")
    table = ttap.load(tmp_path / "job").steps()
    assert table["rank"].tolist() == [0] * 4 + [1] * 5
    assert len(table.facts["trend"]) == 2


# ---------------------------------------------------------------------------------- trend


def test_kernels_that_slow_down_are_a_drop(load: Load) -> None:
    table = build_steps(load(training(40, lambda n: 100 + n + (n * 7919 % 5))))
    trend = table.facts["trend"]
    assert trend["verdict"] == "clock or thermal drop"
    assert trend["change_share"] == pytest.approx(0.33, abs=0.05)
    assert trend["agreeing_share"] == 1
    assert trend["p_value"] < 1e-6
    assert any("clock dropped" in note for note in table.notes)


@pytest.mark.parametrize(
    "kernel_us",
    [
        lambda n: 100 + n * 7919 % 40,  # noise
        lambda n: 100 + n * 0.1,  # 4 % over the trace
        lambda n: 150 - n,  # faster
        lambda _: 100,
    ],
)
def test_no_drop(load: Load, kernel_us: Callable[[int], float]) -> None:
    assert kernel_trend(load(training(40, kernel_us))).verdict == "none"


def test_too_few_repeats_are_unknown(load: Load) -> None:
    assert kernel_trend(load(training(1, kernels=3))).verdict == "unknown"


def test_one_kernel_among_many_is_no_drop(load: Load) -> None:
    events = training(40, lambda n: 100 + 2 * n, kernels=1)
    other = training(40, lambda _: 250, kernels=1)
    for event in other:
        event["args"] = {**event["args"], "stream": 9, "grid": [9, 1, 1]}
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 1000
    trend = kernel_trend(load(events + other))
    assert trend.verdict == "none"
    assert trend.agreeing_share is not None
    assert trend.agreeing_share < 0.75


@given(st.floats(-5, 5), st.floats(1, 100), st.integers(3, 40))
def test_theil_sen_finds_a_line(slope: float, level: float, points: int) -> None:
    time = np.linspace(0, 1, points)
    value = level + slope * (time - 0.5)
    assert _theil_sen(time, value) == pytest.approx(slope / np.median(value), abs=1e-6)


@given(arrays(np.float64, st.integers(2, 30), elements=st.integers(0, 5)))
def test_mann_kendall_is_a_probability(value: Any) -> None:
    p_value = _mann_kendall(value)
    assert 0 <= p_value <= 1
    assert p_value == pytest.approx(_mann_kendall(value[::-1]))


def test_mann_kendall_by_hand() -> None:
    # Eleven values without ties: the variance of S is 11 * 10 * 27 / 18 = 165.
    value = np.asarray([1, 2, 3, 4, 5, 6, 8, 7, 11, 10, 9], dtype=float)
    score = 55 - 2 * 4  # four of the 55 pairs fall
    assert _mann_kendall(value) == pytest.approx(erfc((score - 1) / sqrt(165) / sqrt(2)))


# ------------------------------------------------------------- both sides of each threshold

# Deviations of nine whole steps but one: their median is 0, the median of their size 1.
EVEN = (-2, -1, -1, 0, 0, 1, 1, 2)


def with_odd_step(odd_us: float, unit_us: float = 10) -> list[Event]:
    """Eleven steps of 520 us and a bit, of which the sixth deviates by `odd_us`."""
    waits = [100 + unit_us * d for d in EVEN]
    all_waits = [100, *waits[:4], 100 + odd_us, *waits[4:], 100]
    return training(len(all_waits), wait_us=lambda n: all_waits[n])


@pytest.mark.parametrize(("odd_us", "is_outlier"), [(51, False), (53, True)])
def test_outliers_begin_at_3_5_robust_sigmas(load: Load, odd_us: float, is_outlier: bool) -> None:
    table = build_steps(load(with_odd_step(odd_us)))
    assert table["z"][5] == pytest.approx(odd_us / (1.4826 * 10), rel=1e-3)  # 3.44 and 3.57
    assert table["outlier"][5] == is_outlier


@pytest.mark.parametrize(("odd_us", "is_outlier"), [(5.1, False), (5.3, True)])
def test_outliers_deviate_by_a_hundredth_of_the_median(
    load: Load, odd_us: float, is_outlier: bool
) -> None:
    table = build_steps(load(with_odd_step(odd_us, unit_us=0.1)))
    assert np.median(table["duration_ns"]) == 520_000
    assert table["outlier"][5] == is_outlier
    assert bool(table.to_list("differs")[5]) == is_outlier


@pytest.mark.parametrize(("odd_us", "is_slow"), [(259, False), (260, False), (261, True)])
def test_slow_steps_take_more_than_one_and_a_half_medians(
    load: Load, odd_us: float, is_slow: bool
) -> None:
    assert build_steps(load(with_odd_step(odd_us)))["slow"][5] == is_slow


def test_three_causes_are_named_for_a_step(load: Load) -> None:
    events = training(5, lambda n: 200.0 if n == 2 else 100.0)
    launches = [e for e in events if e["cat"] == "cpu_op"]
    for place, event in enumerate(launches):
        event["name"] = f"aten::op{place % 4}"
    longest = iter(range(4))
    for event in (e for e in events if e["cat"] == "kernel" and e["dur"] == 200):
        event["dur"] -= 10 * next(longest)
    differs = build_steps(load(events)).to_list("differs")[2]
    named = [part["name"] for part in differs]
    assert named[:3] == ["aten::op0", "aten::op1", "aten::op2"]
    assert len(named) == 3


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (7, "too few kernels repeat"),
        (8, "the kernels run in too few moments"),
        (47, "the kernels run in too few moments"),
        (48, ""),
    ],
)
def test_a_trend_needs_eight_repeats_in_six_slices(load: Load, count: int, reason: str) -> None:
    trend = kernel_trend(load(training(count, kernels=1)))
    assert trend.reason == reason
    assert trend.verdict == ("unknown" if reason else "none")


def test_a_trend_has_at_most_64_slices() -> None:
    time = np.arange(2_000.0)
    assert len(_series(np.ones(2_000), time, np.ones(2_000))) == 64
    assert len(_series(np.ones(8 * 40), time[: 8 * 40], np.ones(8 * 40))) == 40


@pytest.mark.parametrize(("slower_us", "verdict"), [(9, "none"), (13, "clock or thermal drop")])
def test_a_drop_is_a_tenth(load: Load, slower_us: float, verdict: str) -> None:
    trend = kernel_trend(load(training(40, lambda n: 100 + slower_us * n / 39)))
    assert trend.verdict == verdict
    assert trend.change_share == pytest.approx(slower_us / (100 + slower_us / 2), rel=0.1)


@pytest.mark.parametrize(("swapped", "verdict"), [(False, "clock or thermal drop"), (True, "none")])
def test_a_drop_is_no_chance(load: Load, swapped: bool, verdict: str) -> None:
    """Six slices that rise one after the other: p is 0.0085; with one pair swapped 0.024."""
    levels = [100, 120, 140, 160, 180, 200]
    if swapped:
        levels[2], levels[3] = levels[3], levels[2]
    # Slices are of equal time, so the pauses between kernels make up for their length.
    starts = training(48, lambda n: float(levels[n // 8]), kernels=1)
    trend = kernel_trend(load(evenly_spaced(starts)))
    assert trend.verdict == verdict
    assert trend.p_value is not None
    assert (trend.p_value < 0.01) == (not swapped)


def evenly_spaced(events: list[Event]) -> list[Event]:
    """Steps begin every millisecond, whatever they take."""
    number = -1
    shift = 0.0
    for event in sorted(events, key=lambda e: (e["ts"], e["name"] != "aten::mm")):
        if event["name"] == "aten::mm":
            number += 1
            shift = 1_000.0 * number - event["ts"]
        event["ts"] += shift if event["cat"] != "user_annotation" else 0
    return [e for e in events if e["cat"] != "user_annotation"]


@pytest.mark.parametrize(("other_us", "is_watched"), [(390, True), (410, False)])
def test_a_fifth_of_the_time_has_to_repeat(load: Load, other_us: float, is_watched: bool) -> None:
    """Each step runs 100 us of a kernel that repeats, and one of its own."""
    events = training(48, kernels=1)
    own = training(48, lambda _: other_us, kernels=1)
    for number, event in enumerate(e for e in own if e["cat"] == "kernel"):
        event["name"] = f"own_{number}"
        event["args"] = {**event["args"], "stream": 9}
    for event in own:
        event["tid"] += 10
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 1000
    own = [e for e in own if e["cat"] != "user_annotation"]
    trend = kernel_trend(load(events + own))
    assert trend.watched_share == pytest.approx(100 / (100 + other_us))
    assert (trend.reason != "too few kernels repeat") == is_watched


@pytest.mark.parametrize(("steady_us", "verdict"), [(32, "clock or thermal drop"), (50, "none")])
def test_three_quarters_of_the_time_have_to_agree(
    load: Load, steady_us: float, verdict: str
) -> None:
    """Beside kernels of 100 us that slow down run some of another length that speed up."""
    events = training(48, lambda n: 100 + n, kernels=1)
    other = training(48, lambda n: steady_us * (1 - 0.002 * n), kernels=1)
    for event in other:
        event["tid"] += 10
        event["args"] = {**event["args"], "grid": [9, 1, 1]}
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 1000
    other = [e for e in other if e["cat"] != "user_annotation"]
    trend = kernel_trend(load(events + other))
    slowing = 48 * 100 + 48 * 47 / 2
    share = slowing / (slowing + sum(steady_us * (1 - 0.002 * n) for n in range(48)))
    assert trend.agreeing_share == pytest.approx(share, abs=0.01)
    assert (trend.agreeing_share >= 0.75) == (verdict != "none")
    assert trend.verdict == verdict
