"""Numbers that texts cite, and those that they say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.core.results import Fact
from torchtraceap.explanation.numbers import Metric, numbers_in, quantities_in


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it takes 12.3 ms (4.5 %) in 1,234 calls", [12.3, 4.5, 1234]),
        ("-3 or 5x, .5 and 1e3", [-3, 5, 0.5, 1000]),
        ("a dozen kernels run twice", [12, 2]),
        ("fp32 and TF32 on sm_90, int8, conv2d", []),
        ("one of them", []),
        ("ends with 7.", [7]),
        ("70 000", [70, 0]),
    ],
)
def test_finds_the_numbers_of_a_text(text: str, found: list[float]) -> None:
    assert sorted(numbers_in(text)) == sorted(found)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("12.3 ms", True),
        ("12.3", True),
        ("12.3ms", True),
        ("12.3 s", False),
        ("12.3 µs", False),
        ("12.3 %", False),
        ("12.4 ms", False),
    ],
)
def test_another_unit_is_another_quantity(text: str, holds: bool) -> None:
    metric = Metric.of_ns("x", 12_300_000)
    assert all(quantity.tells(metric) for quantity in quantities_in(text)) is holds


def test_micro_is_written_three_ways() -> None:
    metric = Metric.of_ns("x", 4_500)
    for unit in ("us", "\u00b5s", "\u03bcs"):
        assert [each.tells(metric) for each in quantities_in(f"4.50 {unit}")] == [True]


def test_names_are_no_numbers() -> None:
    text = "sgemm_128x64 and sgemm_128 take 3 ms"
    assert numbers_in(text, ["sgemm_128", "sgemm_128x64"]) == [3]
    assert len(numbers_in(text)) > 1


@given(st.integers(-(10**15), 10**15))
def test_a_time_says_its_own_value(ns: int) -> None:
    metric = Metric.of_ns("x", ns)
    assert numbers_in(metric.text) == [metric.value]
    unit = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[metric.unit]
    assert math.isclose(metric.value * unit, ns, rel_tol=6e-3, abs_tol=0.5)
    assert metric.exact == ns


@given(st.floats(0, 1))
def test_a_share_says_its_own_value(share: float) -> None:
    metric = Metric.of_share("x", share)
    assert numbers_in(metric.text) == [metric.value]
    assert metric.unit == "%"
    assert abs(metric.value - 100 * share) <= max(6e-3 * 100 * share, 1e-3)


@given(st.integers(0, 10**15), st.floats(0, 1e12))
def test_other_kinds_say_their_own_value(whole: int, rate: float) -> None:
    for metric in (
        Metric.of_count("x", whole),
        Metric.of_bytes("x", whole),
        Metric.of_rate("x", rate),
    ):
        assert numbers_in(metric.text) == [metric.value]


def test_a_text_is_no_metric() -> None:
    assert Metric.of_fact("x", Fact("text", "NVIDIA H100")) is None
    metric = Metric.of_fact("x", Fact("bytes", 2048))
    assert metric is not None and metric.text == "2.00 KiB"
