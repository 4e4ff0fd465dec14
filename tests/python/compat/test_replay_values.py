"""Values in a trace: parsed as C++ prints them, never evaluated."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.compat.replay.call import parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-100", -100),
        ("2.", 2.0),
        ("0.10000000000000001", 0.1),
        ("1e-08", 1e-8),
        ("1.0000000000000001e-05", 1e-5),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("True", True),
        ("None", None),
        ("[]", []),
        ("[1, -1]", [1, -1]),
        ("[2., 0.5]", [2.0, 0.5]),
        ("[True, False, True]", [True, False, True]),
        ("1.+2.j", 1 + 2j),
        ("-1.5-2.j", -1.5 - 2j),
        ("2.j", 2j),
        ("(1,2)", 1 + 2j),
        ("[1.+2.j, 3.]", [1 + 2j, 3.0]),
    ],
)
def test_values_as_traces_write_them(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value and type(parsed) is type(value)


def test_nan_is_a_number() -> None:
    parsed = parse_value("nan")
    assert isinstance(parsed, float) and math.isnan(parsed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "1 2",
        "[1",
        "1]",
        "[1,]",
        "[,1]",
        "[[1]]",
        "j3",
        "1 if 1 else 2",
        "1+1",
        "()",
        "(1,)",
        "0x10",
        "1_000",
        "[16, j3, 2]",
        "True and 1",
        "exit()",
        "9" * 100,
        "٣",
        "infinity",
        "(1,inf)",
    ],
)
def test_all_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_value(text)


ALLOWED = (type(None), bool, int, float, complex)


@given(st.text(alphabet="0123456789+-.,eEjinfaTrueFlsNo[]() \n_x", max_size=40))
def test_any_text_is_a_plain_value_or_refused(text: str) -> None:
    try:
        value = parse_value(text)
    except ValueError:
        return
    values = value if isinstance(value, list) else [value]
    assert all(type(inner) in ALLOWED for inner in values)


@given(st.one_of(st.integers(-(10**30), 10**30), st.floats(allow_nan=False), st.booleans()))
def test_what_python_writes_comes_back(value: Any) -> None:
    parsed = parse_value(repr(value))
    assert parsed == value and type(parsed) is type(value)
