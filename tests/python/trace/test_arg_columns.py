"""One key of `args` as a column: codes, integers, for all rows or some."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import TraceError

# Values that share templates (integers and numbers are packed), and some that don't.
VALUES = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([None, True, "", "7", "a\n", "[1]", [], [1, [2, 3]], [1.5, 1], {"b": 1}]),
    st.lists(st.integers(0, 300), max_size=3),
)
ARGS = st.dictionaries(st.sampled_from(["a", "a b", "stream", "device", "z"]), VALUES, max_size=4)


def table_of(args: list[dict[str, Any]]) -> _core.EventTable:
    events = [
        {"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": i, "dur": 1, "args": one}
        for i, one in enumerate(args)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        return ttap.load(path).ranks[0].table


@settings(deadline=None)
@given(args=st.lists(ARGS, min_size=1, max_size=30), data=st.data())
def test_codes_stand_for_the_texts(args: list[dict[str, Any]], data: st.DataObject) -> None:
    table = table_of(args)
    rows = np.array(data.draw(st.lists(st.integers(0, len(args) - 1))), dtype=np.int64)
    for key in ("a", "a b", "stream", "device", "z", "absent"):
        expected = table.text_column(key)
        codes, texts = table.text_codes(key)
        assert [texts[code] if code >= 0 else None for code in codes.tolist()] == expected
        assert len(set(texts)) == len(texts)
        codes, texts = table.text_codes(key, rows)
        some = [expected[row] for row in rows.tolist()]
        assert [texts[code] if code >= 0 else None for code in codes.tolist()] == some
        assert texts == list(dict.fromkeys(text for text in some if text is not None))


@settings(deadline=None)
@given(args=st.lists(ARGS, min_size=1, max_size=30), data=st.data())
def test_integers_of_rows_are_those_of_all(args: list[dict[str, Any]], data: st.DataObject) -> None:
    table = table_of(args)
    rows = np.array(data.draw(st.lists(st.integers(0, len(args) - 1))), dtype=np.int64)
    for key in ("a", "stream", "absent"):
        values, present = table.int_column(key)
        some, said = table.int_column(key, rows)
        assert (some == values[rows]).all()
        assert (said == present[rows]).all()


@pytest.mark.parametrize("read", ["text_codes", "int_column"])
def test_rows_outside_of_the_table_are_refused(read: str) -> None:
    with pytest.raises((IndexError, TraceError)):
        getattr(table_of([{"a": 1}]), read)("a", np.array([1]))
