"""`trace.ops()`: sums, recursion, backward, families, and traces that lack one half."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

Event = dict[str, Any]
VIEWS = ("name", "category", "args", "call")


class Events(list[Event]):
    """A trace made event by event; times in us."""

    def host(self, name: str, ts: float, dur: float, *, tid: int = 1, **args: Any) -> Events:
        return self.add("cpu_op", name, ts, dur, tid, args)

    def add(
        self, cat: str, name: str, ts: float, dur: float, tid: int, args: dict[str, Any]
    ) -> Events:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
        self.append(event | {"args": args})
        return self

    def gpu(
        self, name: str, ts: float, dur: float, *, cat: str = "kernel", stream: int = 7, link: int
    ) -> Events:
        args = {"device": 0, "stream": stream, "correlation": link}
        return self.add(cat, name, ts, dur, stream, args)

    def launch(
        self, kernel: str, call: float, ts: float, dur: float, *, tid: int = 1, **more: Any
    ) -> Events:
        link = len(self) + 1000
        self.add("cuda_runtime", "cudaLaunchKernel", call, 1, tid, {"correlation": link})
        return self.gpu(kernel, ts, dur, link=link, **more)

    def trace(self) -> Trace:
        import json

        table = _core.read_trace_bytes(json.dumps({"traceEvents": self}).encode(), "test")
        return Trace([RankTrace(table, 0)])


def by_key(table: ColumnTable, key: str = "name") -> dict[str, dict[str, Any]]:
    return {record[key]: record for record in table.records()}


def training() -> Events:
    events = Events()
    events.host("aten::linear", 0, 30).host("aten::addmm", 5, 20, **{"Sequence number": 5})
    events.launch("gemm", 10, 50, 10)
    back = {"Sequence number": 5, "Fwd thread id": 1}
    events.host("autograd::engine::evaluate_function: AddmmBackward0", 100, 50, tid=2, **back)
    events.host("AddmmBackward0", 105, 40, tid=2, **back)
    events.host("aten::mm", 110, 10, tid=2).launch("gemm", 112, 130, 30, tid=2)
    return events


def test_forward_and_backward_are_joined() -> None:
    ops = by_key(training().trace().ops())
    assert ops["aten::addmm"]["backward_gpu_ns"] == 30_000
    assert ops["aten::linear"]["backward_gpu_ns"] == 0
    assert ops["aten::linear"]["subtree_backward_gpu_ns"] == 30_000
    assert ops["AddmmBackward0"]["backward_of"] == "aten::addmm"
    assert ops["aten::mm"]["backward_of"] is None
    assert ops["aten::mm"]["exclusive_gpu_ns"] == 30_000
    assert ops["AddmmBackward0"]["subtree_gpu_ns"] == 30_000


def test_rows_stand_by_exclusive_time_and_shares_add_up() -> None:
    table = training().trace().ops()
    assert list(table["name"])[:2] == ["aten::mm", "aten::addmm"]
    assert table["busy_share"].sum() == pytest.approx(1)
    assert table["cumulative_share"][-1] == pytest.approx(1)
    assert table.facts["busy_ns"] == 40_000 == table["exclusive_gpu_ns"].sum()
    assert table.notes == ()


def test_recursion_counts_once() -> None:
    events = Events().host("forward", 0, 100).host("forward", 10, 50).launch("k", 20, 200, 7)
    row = by_key(events.trace().ops())["forward"]
    assert (row["count"], row["own_gpu_ns"], row["subtree_gpu_ns"]) == (2, 7000, 7000)
    assert (row["host_ns"], row["self_host_ns"]) == (100_000, 99_000)
    assert row["host_max_ns"] == 100_000


def test_overlap_on_two_streams_is_owned_once() -> None:
    events = Events().host("a", 0, 10).launch("k", 1, 50, 10)
    events.host("b", 20, 10).launch("k", 21, 55, 10, stream=8)
    ops = by_key(events.trace().ops())
    assert (ops["a"]["exclusive_gpu_ns"], ops["b"]["exclusive_gpu_ns"]) == (10_000, 5_000)
    assert ops["b"]["own_gpu_ns"] == 10_000


def test_launches_without_operator_and_orphans_are_rows_of_their_own() -> None:
    events = Events().launch("triton_poi_fused_add_0", 0, 10, 5).launch("gemm", 20, 30, 5)
    events.gpu("lost", 50, 3, link=99)
    table = events.trace().ops()
    ops = by_key(table)
    assert ops["cudaLaunchKernel"]["kind"] == "launch"
    assert ops["cudaLaunchKernel"]["launches"] == 2
    assert ops["(no launch in the trace)"]["exclusive_gpu_ns"] == 3000
    assert ops["(no launch in the trace)"]["kind"] == "no launch"
    assert table.facts["gpu_events_without_launch"] == 1
    assert table.facts["without_launch_ns"] == 3000
    assert "no operators" in table.notes[0]
    assert "1 GPU event has" in table.notes[1]


def test_categories_of_copies_collectives_and_operators() -> None:
    events = Events().host("aten::copy_", 0, 10)
    link = {"correlation": 5}
    events.add("cuda_runtime", "cudaMemcpyAsync", 1, 2, 1, link)
    events.gpu("Memcpy HtoD (Pageable -> Device)", 20, 4, cat="gpu_memcpy", link=5)
    events.host("aten::addmm", 30, 10).launch("gemm", 31, 50, 8)
    events.launch("memset_after", 36, 60, 1)
    events.host("record_param_comms", 70, 10)
    events.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 71, 90, 20)
    families = by_key(events.trace().ops(by="category"), "family")
    assert families["memcpy"]["exclusive_gpu_ns"] == 4000
    assert families["memcpy"]["launches"] == 1
    assert families["communication"]["exclusive_gpu_ns"] == 20_000
    assert families["gemm"]["exclusive_gpu_ns"] == 9000
    assert families["gemm"]["launches"] == 2
    assert families["copy"]["count"] == 1
    assert families["copy"]["exclusive_gpu_ns"] == 0


def test_arguments_split_a_name() -> None:
    shapes = [[[2, 3], [3, 4]], [[2, 3], [3, 4]], [[8, 8], [8, 8]]]
    events = Events()
    for i, dims in enumerate(shapes):
        events.host("aten::mm", 100 * i, 10, **{"Input Dims": dims, "Input type": ["float"] * 2})
        events.launch("gemm", 100 * i + 1, 100 * i + 20, 10 * (i + 1))
    table = events.trace().ops(by="args")
    assert table.num_rows == 2
    assert table["count"].tolist() == [2, 1]
    first = table.records()[0]
    assert first["input_dims"].replace(" ", "") == "[[2,3],[3,4]]"
    assert first["input_strides"] is None
    assert (first["own_gpu_mean_ns"], first["own_gpu_median_ns"]) == (15_000, 15_000)
    assert first["own_gpu_std_ns"] == pytest.approx(math.sqrt(2) * 5000)
    assert table.records()[1]["own_gpu_std_ns"] is None
    assert first["example_row"] == 0


def test_calls_know_their_step_phase_and_module() -> None:
    events = Events().add("user_annotation", "ProfilerStep#3", 0, 100, 1, {})
    events.add("python_function", "nn.Module: Net_0", 2, 60, 1, {})
    events.host("aten::add", 10, 10).launch("k", 12, 40, 5).host("aten::mul", 150, 5)
    events.add("user_annotation", "ProfilerStep#4", 140, 50, 1, {})
    calls = by_key(events.trace().ops(by="call"))
    assert calls["aten::add"]["module"] == "Net_0"
    assert calls["aten::mul"]["module"] is None
    assert calls["aten::add"]["step"] == "ProfilerStep#3"
    assert calls["aten::mul"]["step"] == "ProfilerStep#4"
    assert calls["aten::add"]["duration_ns"] == 10_000
    assert calls["aten::add"]["forward_row"] is None


def test_without_gpu_events_host_time_decides() -> None:
    table = Events().host("small", 0, 10).host("large", 20, 30).trace().ops()
    assert list(table["name"]) == ["large", "small"]
    assert table.to_list("busy_share") == [None, None]
    assert table["self_host_share"].tolist() == [0.75, 0.25]
    assert "no GPU events" in table.notes[0]
    assert "self_host_ns" in table.shown


@pytest.mark.parametrize("by", VIEWS)
def test_empty_and_odd_traces(by: str) -> None:
    for events in (
        Events().add("user_annotation", "only a range", 0, 1, 1, {}),
        Events().gpu("zero", 5, 0, link=1),
        Events().host("op", 0, 0).launch("zero", 0, 0, 0),
    ):
        table = events.trace().ops(by=by)
        table.to_json()
        assert table.facts["busy_ns"] == 0


def test_unknown_view() -> None:
    with pytest.raises(OptionError, match="by must be one of name, category, args, call"):
        training().trace().ops(by="colour")


def test_ranks_are_stacked(write_trace: Callable[..., Path], tmp_path: Path) -> None:
    for rank in (0, 1):
        document = {"traceEvents": list(training()), "distributedInfo": {"rank": rank}}
        write_trace(document, f"ranks/rank{rank}.json")
    table = ttap.load(tmp_path / "ranks").ops()
    assert sorted(set(table["rank"].tolist())) == [0, 1]
    assert table.facts["busy_ns"] == [40_000, 40_000]


calls = st.tuples(
    st.sampled_from(["aten::add", "aten::mm", "forward", "MulBackward0", "cudaLaunchKernel"]),
    st.integers(0, 200),
    st.integers(0, 60),
    st.integers(0, 2),
)
kernels = st.tuples(
    st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD", "fill"]),
    st.integers(0, 200),
    st.integers(0, 300),
    st.integers(0, 40),
    st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
    st.booleans(),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(calls, max_size=12), st.lists(kernels, max_size=12))
def test_every_view_sums_to_the_busy_time(
    host: list[tuple[str, int, int, int]], gpu: list[tuple[str, int, int, int, str, bool]]
) -> None:
    events = Events().host("root", 0, 1)
    for name, ts, dur, tid in host:
        events.host(name, ts, dur, tid=tid)
    for i, (name, call, ts, dur, cat, linked) in enumerate(gpu):
        if linked:
            args = {"correlation": i + 1}
            events.add("cuda_runtime", "cudaLaunchKernel", call, 1, i % 3, args)
        events.gpu(name, ts, dur, cat=cat, stream=i % 2, link=i + 1)
    trace = events.trace()
    busy_ns = trace.timeline().busy_ns
    self_ns = set()
    for by in VIEWS:
        table = trace.ops(by=by)
        assert int(table["exclusive_gpu_ns"].sum()) == busy_ns, by
        assert int(table["gpu_events"].sum()) == len(gpu), by
        self_ns.add(int(table["self_host_ns"].sum()) if by != "category" else 0)
        if "own_gpu_ns" in table.columns:
            assert (table["own_gpu_ns"] >= table["exclusive_gpu_ns"]).all()
    assert len(self_ns - {0}) <= 1
    assert np.all(trace.ops()["count"] >= 1)
