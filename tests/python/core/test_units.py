"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from torchtraceap.core.formatting import format_fact, format_rate


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("count", 1, "1"),
        ("count", 123456, "123456"),
        ("duration_ns", 0, "0 ns"),
        ("duration_ns", 415_800_000, "416 ms"),
        ("duration_ns", 3_000, "3.00 µs"),
        ("bytes", 540_000, "527.34 KiB"),
        ("share", 0.375, "37.5 %"),
        ("share", 1.0, "100 %"),
        ("rate", 2.5, "2.5"),
        ("text", "aten::item", "aten::item"),
        ("text", "5", "5"),
    ],
)
def test_a_fact_is_written_by_its_kind(kind: str, value: float | str, text: str) -> None:
    assert format_fact(kind, value) == text


@pytest.mark.parametrize(("kind", "value"), [("colour", 1), ("count", "many"), ("text", 1)])
def test_a_fact_of_no_kind_is_refused(kind: str, value: float | str) -> None:
    with pytest.raises(ValueError, match="no fact of kind"):
        format_fact(kind, value)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (8.0, "8"),
        (14.79, "14.8"),
        (1.527, "1.53"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1234.5, "1234"),
    ],
)
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert format_rate(rate) == text
