"""`trace.stacks()`: calls merged by who called them, and the flame graph that is drawn of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.report import charts
from torchtraceap.tables.stacks import MAX_LEVELS
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

Event = dict[str, Any]
DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    place = {"pid": 1, "tid": tid, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, **place, "args": args}


def kernel(name: str, ts: float, dur: float, link: int, stream: int = 7) -> Event:
    args = {"device": 0, "stream": stream, "correlation": link}
    return event("kernel", name, ts, dur, stream, **args)


def trace_of(events: list[Event]) -> Trace:
    text = json.dumps({"traceEvents": events}).encode()
    return Trace([RankTrace(_core.read_trace_bytes(text, "t"), None)])


def program() -> list[Event]:
    """Two steps alike but for the kernels of the first; an operator of two names of one method."""
    events: list[Event] = []
    for step, at in enumerate((0, 100)):
        link = 10 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 100),
            event(
                "python_function", f"<built-in method mul of T object at 0x{step}f>", at + 10, 40
            ),
            event("cpu_op", "aten::mul", at + 20, 20),
            event("cuda_runtime", "cudaLaunchKernel", at + 22, 5, correlation=link + 1),
            kernel("mul", at + 30, 30, link + 1),
            event("cpu_op", "aten::add", at + 60, 10),
            event("cuda_runtime", "cudaLaunchKernel", at + 61, 2, correlation=link + 2),
            kernel("add", at + 50, 20, link + 2, stream=8),
        ]
    return [*events, event("cpu_op", "aten::add", 20, 30, 2), kernel("lost", 190, 10, 99)]


def by_path(table: ttap.ColumnTable) -> dict[tuple[str, ...], dict[str, Any]]:
    """Rows by the names from the thread down."""
    rows = {row["id"]: row for row in table.records()}

    def path(row: dict[str, Any]) -> tuple[str, ...]:
        above = () if row["parent_id"] is None else path(rows[row["parent_id"]])
        return (*above, row["name"])

    return {path(row): row for row in rows.values()}


def test_host_calls_of_one_name_below_one_caller_are_one_row() -> None:
    rows = by_path(trace_of(program()).stacks(by="host"))
    step = ("thread 1", "(step)")
    method = (*step, "<built-in method mul of T object>")
    assert (rows[step]["count"], rows[step]["total_ns"]) == (2, 200_000)
    assert rows[step]["self_ns"] == 100_000
    assert (rows[method]["count"], rows[method]["self_ns"]) == (2, 40_000)
    assert rows[(*method, "aten::mul", "cudaLaunchKernel")]["self_ns"] == 10_000
    assert rows[("thread 2", "aten::add")]["self_ns"] == 30_000
    assert rows[(*step, "aten::add")]["total_ns"] == 20_000
    assert rows[("thread 2",)]["kind"] is None


def test_gpu_events_stand_below_what_launched_them() -> None:
    table = trace_of(program()).stacks()
    rows = by_path(table)
    step = ("thread 1", "(step)")
    kernel_row = rows[
        (*step, "<built-in method mul of T object>", "aten::mul", "cudaLaunchKernel", "mul")
    ]
    assert (kernel_row["count"], kernel_row["self_ns"]) == (2, 60_000)
    assert kernel_row["caller"] == "aten::mul"
    # Compute of two streams at once: each instant belongs to the one that began first.
    assert rows[(*step, "aten::add", "cudaLaunchKernel", "add")]["self_ns"] == 20_000
    assert rows[("(no launch in the trace)", "lost")]["self_ns"] == 10_000
    assert not any(path[0] == "thread 2" for path in rows)
    assert table.facts["total_ns"] == 90_000


@pytest.mark.parametrize("by", ["gpu", "host"])
def test_times_sum_up_and_down(by: str) -> None:
    trace = ttap.load(DEMO)
    table = trace.stacks(by=by)
    assert table["self_ns"].sum() == table.facts["total_ns"]
    if by == "gpu":
        assert table.facts["total_ns"] == trace.timeline().busy_ns
    order = np.argsort(table["id"])
    own, below = table["self_ns"][order], table["total_ns"][order]
    parents = np.ma.filled(table["parent_id"], -1)[order]
    assert (parents < np.arange(len(order))).all()
    summed = own.copy()
    np.add.at(summed, parents[parents >= 0], below[parents >= 0])
    assert (summed == below).all()
    assert (np.diff(table["self_ns"]) <= 0).all()


def test_deep_calls_count_for_their_caller() -> None:
    deep = MAX_LEVELS + 50
    events = [event("cpu_op", f"f{i}", i, 2 * deep - 2 * i) for i in range(deep)]
    events.append(event("cuda_runtime", "cudaLaunchKernel", deep, 0.5, correlation=1))
    events.append(kernel("k", deep + 1, 7, 1))
    trace = trace_of(events)
    host, gpu = trace.stacks(by="host"), trace.stacks()
    assert host.facts["total_ns"] == 2_000 * deep
    assert max(host.to_list("depth")) == MAX_LEVELS
    assert any(str(MAX_LEVELS) in note for note in host.notes)
    last = max(gpu.records(), key=lambda row: row["depth"])
    assert (last["name"], last["caller"]) == ("k", f"f{MAX_LEVELS - 1}")


@pytest.mark.parametrize("by", ["gpu", "host"])
def test_nothing_to_merge_is_an_empty_table_with_a_reason(by: str) -> None:
    lone = [event("cpu_op", "aten::add", 0, 0)]
    table = trace_of(lone).stacks(by=by)
    assert table.num_rows == 0
    assert len(table.notes) == 1


def test_launches_inside_launches_are_no_callers() -> None:
    events = [
        event("cpu_op", "aten::add", 0, 30),
        event("cuda_runtime", "cudaLaunchKernel", 5, 20),
        event("cuda_driver", "cuLaunchKernel", 10, 5, correlation=1),
        kernel("k", 40, 10, 1),
    ]
    assert trace_of(events).stacks().to_list("caller")[0] == "aten::add"


# ------------------------------------------------------------------------------------- drawn


def test_a_flame_graph_keeps_the_calls_with_the_most_time() -> None:
    trace = ttap.load(DEMO)
    table = trace.stacks()
    whole = charts.stack_flame(table, trace.rank(), 10_000)
    assert whole["left"] == 0
    assert sum(whole["own"]) == table.facts["total_ns"]
    assert {"compute", "memcpy", "call", "thread"} <= set(whole["fill"])
    few = charts.stack_flame(table, trace.rank(), 20)
    assert len(few["name"]) == 20
    assert few["left"] == table.num_rows - 20
    assert sorted(few["below"], reverse=True) == sorted(whole["below"], reverse=True)[:20]
    for node, parent in enumerate(few["parent"]):
        assert -1 <= parent < node
        assert parent < 0 or few["below"][parent] >= few["below"][node]


def test_modules_are_drawn_by_their_own_time(tmp_path: Path) -> None:
    path = samples.slow_loader().write(tmp_path / "t.json")
    table = ttap.load(path).modules()
    chart = charts.module_flame(table, 1000)
    assert chart is not None
    assert sum(chart["own"]) == table["own_gpu_ns"].sum()
    tops = [b for b, parent in zip(chart["below"], chart["parent"], strict=True) if parent < 0]
    assert sum(tops) == sum(chart["own"])


def test_times_beyond_all_clocks_stop_at_the_largest() -> None:
    years = 2e15  # us, as long as an event may be
    events = [event("cpu_op", "a", 0, years, tid) for tid in range(1, 8)]
    table = trace_of(events).stacks(by="host")
    assert all(time_ns >= 0 for time_ns in table.to_list("total_ns"))
    assert table.facts["total_ns"] == 2**63 - 1
