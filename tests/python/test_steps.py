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
from torchtraceap.analysis.steps import (
    _mann_kendall,
    _theil_sen,
    build_steps,
    kernel_trend,
)
from torchtraceap.ranks import RankTrace

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
    assert len(causes) == 10
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
