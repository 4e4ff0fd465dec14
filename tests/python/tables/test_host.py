"""`trace.host()`: CPU threads while the GPU waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import OptionError
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    place = {"pid": 1, "tid": tid, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, **place, "args": args}


def kernel(ts: float, dur: float, link: int) -> Event:
    return event("kernel", "k", ts, dur, 7, device=0, stream=7, correlation=link)


def trace_of(events: list[Event]) -> Trace:
    named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}}
    document = {"traceEvents": [named, *events]}
    return Trace([RankTrace(_core.read_trace_bytes(json.dumps(document).encode(), "t"), None)])


def program() -> list[Event]:
    """100 us; the GPU works from 20 to 40 and from 80 to 100."""
    return [
        event("python_function", "train.py(1): main", 0, 100),
        event("python_function", "<built-in method mul of Tensor object at 0x7f01>", 10, 20),
        event("cpu_op", "aten::mul", 12, 16),
        event("cuda_runtime", "cudaLaunchKernel", 14, 2, correlation=1),
        kernel(20, 20, 1),
        event("python_function", "<built-in method mul of Tensor object at 0x7f02>", 50, 20),
        event("cuda_runtime", "cudaStreamSynchronize", 52, 10),
        event("cuda_runtime", "cudaLaunchKernel", 66, 2, correlation=2),
        kernel(80, 20, 2),
        event("cpu_op", "aten::random_", 45, 10, 2),
    ]


def test_threads() -> None:
    table = trace_of(program()).host()
    main, other = table.records()
    assert (main["thread"], other["thread"]) == ("main (1)", "thread 2")
    assert (main["is_main"], other["is_main"]) == (True, False)
    assert table.facts["idle_ns"] == 60_000
    assert (main["busy_gpu_idle_ns"], main["silent_gpu_idle_ns"]) == (60_000, 0)
    assert (other["busy_gpu_idle_ns"], other["silent_gpu_idle_ns"]) == (10_000, 50_000)
    assert main["blocked_gpu_idle_ns"] == 10_000
    assert (main["launches"], main["events"]) == (2, 7)
    assert main["top_op"] == "train.py(1): main"
    assert (other["top_op"], other["top_op_gpu_idle_ns"]) == ("aten::random_", 10_000)
    assert main["profiled_share"] == 1


def test_names_by_self_time() -> None:
    rows = {record["name"]: record for record in trace_of(program()).host(by="op").records()}
    assert rows["train.py(1): main"]["self_ns"] == 60_000
    assert rows["train.py(1): main"]["gpu_idle_ns"] == 30_000
    assert rows["cudaLaunchKernel"]["gpu_idle_ns"] == 4_000
    # 12-14 and 16-20; the rest of its 14 us of self time lies under the first kernel.
    assert (rows["aten::mul"]["self_ns"], rows["aten::mul"]["gpu_idle_ns"]) == (14_000, 6_000)
    assert rows["cudaStreamSynchronize"]["idle_share"] == pytest.approx(1 / 6)


def test_frames_include_what_they_call_and_have_no_addresses() -> None:
    table = trace_of(program()).host(by="frame")
    rows = {record["name"]: record for record in table.records()}
    assert set(rows) == {"train.py(1): main", "<built-in method mul of Tensor object>"}
    built_in = rows["<built-in method mul of Tensor object>"]
    assert (built_in["count"], built_in["self_ns"], built_in["gpu_idle_ns"]) == (2, 40_000, 30_000)


def test_causes_add_up() -> None:
    for by in ("thread", "op", "frame"):
        table = trace_of(program()).host(by=by)
        causes = [f"{name}_ns" for name in _core.idle_cause_names()]
        total = sum(table[name].sum() for name in causes)
        assert total == table["busy_gpu_idle_ns" if by == "thread" else "gpu_idle_ns"].sum()
    assert sum(table.facts["idle_by_cause_ns"].values()) == table.facts["idle_ns"]


def test_without_frames() -> None:
    events = [e for e in program() if e["cat"] != "python_function"]
    table = trace_of(events).host(by="frame")
    assert table.num_rows == 0
    assert "with_stack=True" in table.notes[0]


def test_without_gpu_events_all_time_is_idle() -> None:
    events = [e for e in program() if e["cat"] == "cpu_op"]
    table = trace_of(events).host(by="op")
    assert "no GPU events" in table.notes[0]
    assert table["name"][0] == "aten::mul"
    assert table["gpu_idle_ns"].tolist() == table["self_ns"].tolist()


@pytest.mark.parametrize("by", ["thread", "op", "frame"])
def test_without_host_events(by: str) -> None:
    table = trace_of([kernel(0, 5, 1)]).host(by=by)
    assert table.num_rows == 0
    assert "no host events" in table.notes[0]
    table.to_json()


def test_unknown_view() -> None:
    with pytest.raises(OptionError, match="by must be one of thread, op, frame"):
        trace_of(program()).host(by="kernel")


def test_every_real_trace(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    threads, names = trace.host(), trace.host(by="op")
    idle_ns = threads.facts["idle_ns"]
    assert ((threads["busy_gpu_idle_ns"] + threads["silent_gpu_idle_ns"]) == idle_ns).all()
    assert (threads["silent_gpu_idle_ns"] >= 0).all()
    assert (threads["blocked_gpu_idle_ns"] <= threads["busy_gpu_idle_ns"]).all()
    assert names["gpu_idle_ns"].sum() == threads["busy_gpu_idle_ns"].sum()
    assert names["self_ns"].sum() == threads["busy_ns"].sum()
    frames = trace.host(by="frame")
    assert frames["gpu_idle_ns"].sum() <= names["gpu_idle_ns"].sum()
