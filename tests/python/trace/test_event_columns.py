"""Tables from arrays: what reading a file of the same events gives, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import SchemaError
from torchtraceap.trace.event_columns import Texts, event_table
from torchtraceap.trace.ranks import RankTrace

_METADATA = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
}


def _launch() -> _core.EventTable:
    """An operator that launches a kernel; an arrow between them; names of the tracks."""
    return event_table(
        ["aten::mm", "cudaLaunchKernel", "gemm<float>", "ac2g", "ac2g", "process_name"],
        ts_ns=[1_000, 2_500, 9_001, 2_500, 9_001, 0],
        dur_ns=[9_000, 3_000, 70_000, 0, 0, 0],
        phase=["X", "X", "X", "s", "f", "M"],
        category=["cpu_op", "cuda_runtime", "kernel", "ac2g", "ac2g", None],
        pid=[77, 77, 0, 77, 0, 77],
        tid=[5, 5, 7, 5, 7, "all"],
        args={
            "External id": [3, 3, 3, None, None, None],
            "correlation": [None, 11, 11, None, None, None],
            "device": [None, None, 0, None, None, None],
            "stream": np.ma.array([0, 0, 7, 0, 0, 0], mask=[1, 1, 0, 1, 1, 1]),
            "grid": Texts(np.array([-1, -1, 0, -1, -1, -1]), ["[8, 1, 1]"], is_json=True),
            "Input Dims": [[[4, 4], []], None, None, None, None, None],
            "est. achieved occupancy %": [None, None, 41.5, None, None, None],
            "name": [None, None, None, None, None, 'py "main"'],
        },
        members={"id": [None, None, None, 11, 11, None], "bp": [None] * 4 + ["e", None]},
        metadata=_METADATA,
        path="made",
    )


def test_a_table_from_arrays_is_the_one_that_its_file_gives(tmp_path: Path) -> None:
    made = _launch()
    path = tmp_path / "trace.json"
    _core.write_trace(made, path)
    read = _core.read_trace(path)
    assert _core.trace_json(read) == _core.trace_json(made)
    columns = "ts_ns dur_ns kind phase flags track device stream correlation external_id"
    for column in columns.split():
        assert getattr(read, column).tolist() == getattr(made, column).tolist(), column
    names = [[table.name_of(row) for row in range(len(table))] for table in (read, made)]
    assert names[0] == names[1]
    tracks = [[(t.pid, t.tid, t.process_name) for t in table.tracks] for table in (read, made)]
    assert tracks[0] == tracks[1]
    assert (made.rank, made.world_size, made.backend, made.path) == (3, 8, "nccl", "made")
    assert made.devices[0].name == "NVIDIA H100"
    assert not made.diagnostics


def test_events_of_arrays_are_linked(tmp_path: Path) -> None:
    trace = ttap.Trace([RankTrace(_launch(), 3)])
    tree = trace.ranks[0].tree
    names = [trace.ranks[0].table.name_of(row) for row in range(6)]
    kernel, call = names.index("gemm<float>"), names.index("cudaLaunchKernel")
    assert tree.launch[kernel] == call
    assert tree.parent[call] == names.index("aten::mm")
    assert trace.event(kernel)["args"]["grid"] == [8, 1, 1]
    assert trace.event(kernel)["args"]["est. achieved occupancy %"] == 41.5
    assert trace.event(kernel)["tid"] == 7
    assert trace.summary().timeline.compute_ns == 70_000


def test_ranges_of_begin_and_end_are_matched() -> None:
    made = event_table(
        ["step"] * 2, [5_000, 1_000], 0, phase=["E", "B"], category="cpu_op", pid=1, tid=1
    )
    assert made.dur_ns.tolist() == [4_000, 0]


def test_an_empty_table() -> None:
    assert len(event_table([], [], [], category=[], pid=[], tid=[])) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ts_ns": [1.5]}, "integers were expected"),
        ({"ts_ns": [2**62]}, "at most"),
        ({"dur_ns": [-1]}, "below 0"),
        ({"dur_ns": [1, 2]}, "one number or 1"),
        ({"name": ["a", "b"]}, "one for each of 1"),
        ({"name": Texts(np.array([3]), ["a"])}, "beyond the 1 texts"),
        ({"category": []}, "one for each of 1"),
        ({"phase": "XX"}, "a letter"),
        ({"phase": "1"}, "a letter"),
        ({"args": {"x": [float("nan")]}}, "no value that JSON has"),
        ({"args": {"x": np.array([np.inf])}}, "finite"),
        ({"args": {"x": [object()]}}, "no value that JSON has"),
        ({"args": {"x": [1, 2]}}, "one for each of 1"),
        ({"args": {"x": np.array([1, 2])}}, "one for each of 1"),
        ({"args": {"x": Texts(np.array([0]), ["{"], is_json=True)}}, "no JSON value"),
        ({"args": {"x": Texts(np.array([4]), ["{}"])}}, "there is no text 4"),
        ({"metadata": {"x": object()}}, "no value that JSON has"),
    ],
)
def test_what_makes_no_table_is_said(changed: dict[str, Any], message: str) -> None:
    whole: dict[str, Any] = {"name": ["a"], "ts_ns": [0], "dur_ns": [1], "category": "kernel"}
    with pytest.raises(SchemaError, match=message):
        event_table(**{**whole, "pid": 0, "tid": 7, **changed})


_VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(
    names=st.lists(st.text(max_size=10), min_size=1, max_size=6),
    keys=st.lists(st.text(max_size=6), max_size=3, unique=True),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_values_come_back(names: list[str], keys: list[str], data: st.DataObject) -> None:
    count = len(names)
    columns = {
        key: data.draw(st.lists(_VALUES, min_size=count, max_size=count), label=key) for key in keys
    }
    made = event_table(
        names, list(range(count)), 5, category="cpu_op", pid=1, tid="thread", args=columns
    )
    again = _core.read_trace_bytes(_core.trace_json(made), "again")
    assert len(again) == count
    for row in range(count):
        event = json.loads(again.event_json(row))
        place = int(again.ts_ns[row])
        clean = names[place].encode("utf-8", "replace").decode()
        assert event.get("name", "") == clean
        expected = {k: v[place] for k, v in columns.items() if v[place] is not None}
        assert event.get("args", {}) == expected
