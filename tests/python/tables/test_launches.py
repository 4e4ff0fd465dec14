"""Launch calls, delays and queue lengths, CUDA and HIP."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from gpu_traces import GpuTrace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.errors import OptionError

VIEWS = ("call", "kernel", "op", "stream", "idle", "event", "queue")


@pytest.fixture(params=["cudaLaunchKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel"])
def launched(tmp_path: Path, request: pytest.FixtureRequest) -> ttap.Trace:
    """Three kernels in a row and a call that launched nothing."""
    trace = GpuTrace().op("aten::add", 0, 100)
    trace.launch("a", (0, 5), (20, 30), call=request.param)
    trace.launch("b", (10, 5), (50, 30), call=request.param)
    trace.launch("a", (20, 5), (80, 2), call=request.param)
    trace.call(request.param, 200, 5, correlation=9)
    return trace.load(tmp_path)


def test_by_call(launched: ttap.Trace) -> None:
    (record,) = launched.launches().records()
    assert record["call"].endswith("LaunchKernel")
    assert (record["calls"], record["calls_without_event"], record["gpu_events"]) == (3, 1, 3)
    assert (record["host_sum_ns"], record["host_median_ns"]) == (15_000, 5_000)
    # Starts at 20, 50, 80 us; calls end at 5, 15, 25 us.
    assert (record["delay_median_ns"], record["delay_max_ns"]) == (35_000, 55_000)
    assert (record["gpu_sum_ns"], record["short"]) == (62_000, 1)
    # They find 0, 1 and (a began at 20 us, after the launch of that instant) 2 launches queued.
    assert (record["queue_mean"], record["queue_max"]) == (1, 2)


def test_by_kernel(launched: ttap.Trace) -> None:
    first, second = launched.launches(by="kernel").records()
    assert (first["name"], first["gpu_events"], first["short"]) == ("a", 2, 1)
    assert (second["name"], second["gpu_mean_ns"]) == ("b", 30_000)


def test_by_event(launched: ttap.Trace) -> None:
    records = launched.launches(by="event").records()
    assert [r["delay_ns"] for r in records] == [15_000, 35_000, 55_000]
    assert [r["start_delay_ns"] for r in records] == [20_000, 40_000, 60_000]
    assert [r["queue_found"] for r in records] == [0, 1, 2]
    assert [r["short"] for r in records] == [False, False, True]
    assert {r["op"] for r in records} == {"aten::add"}
    assert records[0]["call_start_ns"] == 0


def test_queue_over_time(launched: ttap.Trace) -> None:
    table = launched.launches(by="queue")
    assert table.to_list("time_ns") == [0, 10_000, 20_000, 20_000, 50_000, 80_000]
    assert table.to_list("length") == [1, 2, 3, 2, 1, 0]
    (stream,) = launched.launches(by="stream").records()
    assert (stream["device"], stream["stream"], stream["changes"]) == (0, 7, 6)
    # 10 us at 1, 10 at 2, 30 at 2, 30 at 1.
    assert stream["mean_length"] == pytest.approx(120 / 80)
    assert stream["mean_length_at_change"] == pytest.approx(9 / 6)
    assert (stream["max_length"], stream["waiting_ns"]) == (3, 80_000)
    assert (stream["full_length"], stream["full_ns"]) == (None, 0)


def test_by_op(tmp_path: Path) -> None:
    """Two calls launch a and b, one of the same name a graph of ten kernels, one launches twice."""
    trace = GpuTrace()
    for at in (0, 1000):
        trace.op("aten::norm", at, 100)
        trace.launch("void a<4>(int)", (at + 10 + at / 100, 5), (at + 40, 30))
        trace.launch("b", (at + 30, 5), (at + 70, 20))
    trace.op("aten::norm", 2000, 100).call("cudaGraphLaunch", 2050, 5, correlation=1)
    for i in range(10):
        trace.gpu(f"k{i}", 2060 + 10 * i, 2, correlation=1)
    trace.op("aten::norm", 3000, 100)
    trace.launch("b", (3010, 5), (3040, 30)).launch("void a<8>(int)", (3030, 5), (3070, 20))
    trace.launch("lone", (4000, 5), (4010, 1))  # no operator
    table = trace.load(tmp_path).launches(by="op")
    rows = {record["kernels"]: record for record in table.records()}
    assert set(rows) == {
        "a → b",
        "b → a",
        "k0 → k1 → k2 → k3 → k4 → k5 → k6 → k7 → 2 more",
    }
    first = table.records()[0]
    assert (first["op"], first["calls"], first["gpu_events"]) == ("aten::norm", 2, 2)
    # From the operator's start to its first launch, and from there to its first kernel.
    assert (first["op_delay_mean_ns"], first["op_delay_max_ns"]) == (15_000, 20_000)
    assert (first["start_delay_mean_ns"], first["start_delay_max_ns"]) == (25_000, 30_000)
    assert (first["host_sum_ns"], first["gpu_sum_ns"]) == (200_000, 100_000)
    graph = rows["k0 → k1 → k2 → k3 → k4 → k5 → k6 → k7 → 2 more"]
    assert (graph["gpu_events"], graph["op_delay_mean_ns"], graph["gpu_sum_ns"]) == (
        10,
        50_000,
        20_000,
    )


def test_sequences_of_equal_names_in_another_order_are_others(tmp_path: Path) -> None:
    """As often as there are orders of three kernels, whatever their codes."""
    trace = GpuTrace()
    for number, names in enumerate(permutations("abc")):
        trace.op("aten::x", 100.0 * number, 90)
        for i, name in enumerate(names):
            at = 100.0 * number + 10 * i
            trace.launch(name, (at, 5), (at + 6, 2))
    table = trace.load(tmp_path).launches(by="op")
    assert sorted(table.to_list("kernels")) == sorted(map(" → ".join, permutations("abc")))


def test_idle_by_stream(tmp_path: Path) -> None:
    trace = GpuTrace()
    trace.launch("a", (0, 5), (10, 30))
    trace.launch("b", (15, 5), (41, 9))  # was queued: 1 us
    trace.launch("c", (70, 5), (80, 10))  # called 20 us after b ended
    trace.launch("d", (71, 5), (90, 10))  # no gap
    trace.launch("e", (72, 5), (200, 10))  # queued, yet 100 us late
    trace.launch("inside", (73, 5), (202, 3))
    trace.launch("f", (74, 5), (211, 1))  # behind e, not behind what e covers
    trace.launch("g", (300, 5), (310, 9), stream=8)
    trace.gpu("orphan", 340, 5, stream=8)
    table = trace.load(tmp_path).launches(by="idle")
    found = [
        (r["stream"], r["cause"], r["gaps"], r["idle_ns"], r["stream_share"])
        for r in table.records()
    ]
    assert found == [
        (7, "host wait", 1, 30_000, pytest.approx(30 / 132)),
        (7, "kernel wait", 2, 2_000, pytest.approx(2 / 132)),
        (7, "other", 1, 100_000, pytest.approx(100 / 132)),
        (8, "kernel wait", 1, 21_000, 1),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(0, 2)),
        min_size=1,
        max_size=30,
    )
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
def test_gaps_and_work_of_a_stream_are_its_span(
    tmp_path: Path, events: list[tuple[int, int, int]]
) -> None:
    trace = GpuTrace()
    for start, lasts, stream in events:
        trace.launch("k", (max(0, start - 20), 2), (start + 20, lasts), stream=stream)
    table = trace.load(tmp_path).launches(by="idle")
    for stream in {stream for *_, stream in events}:
        own = [(start, start + lasts) for start, lasts, of in events if of == stream]
        covered = {t for start, end in own for t in range(start, end)}
        span = max(end for _, end in own) - min(start for start, _ in own)
        idle = sum(r["idle_ns"] for r in table.records() if r["stream"] == stream)
        assert idle == 1000 * (span - len(covered))


def test_a_kernel_that_begins_while_the_call_returns(tmp_path: Path) -> None:
    trace = GpuTrace().launch("k", (0, 50), (20, 10)).load(tmp_path)
    record = trace.launches(by="event").records()[0]
    assert (record["delay_ns"], record["start_delay_ns"]) == (0, 20_000)


def test_a_graph_replay_is_one_call(tmp_path: Path) -> None:
    trace = GpuTrace().call("cudaGraphLaunch", 0, 5, correlation=1)
    for i in range(4):
        trace.gpu("k", 10 + 10 * i, 2, correlation=1)
    table = trace.load(tmp_path).launches()
    (record,) = table.records()
    assert (record["calls"], record["gpu_events"]) == (1, 4)
    assert record["delay_max_ns"] == 5_000  # that of its first kernel
    assert record["short"] == 0  # one kernel of several does not compare with the call
    assert table.facts["max_queue_length"] == 1


def full_queue(longest: int, launches: int) -> GpuTrace:
    """The host fills the queue, then launches at the pace of the GPU."""
    trace = GpuTrace()
    for i in range(launches):
        runs_at = 5000 + 10.0 * i
        calls_at = float(i) if i < longest else runs_at - 10.0 * longest + 5
        trace.launch("k", (calls_at, 0.5), (runs_at, 10))
    return trace


def test_full_queue(tmp_path: Path) -> None:
    table = full_queue(1010, 1300).load(tmp_path).launches(by="stream")
    (record,) = table.records()
    assert record["full_length"] == 1000
    assert record["max_length"] >= 1009
    assert record["full_ns"] > 2_000_000
    assert any("full" in note for note in table.notes)


def test_a_shorter_queue_is_full_where_it_stays_at_its_longest(tmp_path: Path) -> None:
    (record,) = full_queue(100, 600).load(tmp_path).launches(by="stream").records()
    assert 96 <= record["full_length"] <= 100
    assert record["full_ns"] > 4_000_000


def test_a_queue_that_grows_is_not_full(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(400):
        trace.launch("k", (float(i), 0.5), (5000 + 10.0 * i, 10))
    (record,) = trace.load(tmp_path).launches(by="stream").records()
    assert record["max_length"] == 400
    assert record["full_length"] is None


def test_legacy_categories(tmp_path: Path) -> None:
    trace = GpuTrace(runtime="Runtime").launch("k", (0, 5), (20, 5), cat="Kernel")
    assert trace.load(tmp_path).launches().to_list("calls") == [1]


@pytest.mark.parametrize("by", VIEWS)
def test_shown_columns_exist_once(launched: ttap.Trace, by: str) -> None:
    table = launched.launches(by=by)
    assert set(table.shown) <= set(table.columns)
    assert len(set(table.shown)) == len(table.shown)


@pytest.mark.parametrize("by", VIEWS)
def test_nothing_launched(tmp_path: Path, by: str) -> None:
    table = GpuTrace().op("aten::add", 0, 5).load(tmp_path).launches(by=by)
    assert table.num_rows == 0
    assert "no GPU events" in table.notes[0]
    json.loads(table.to_json())


@pytest.mark.parametrize("by", VIEWS)
def test_orphans_only(tmp_path: Path, by: str) -> None:
    table = GpuTrace().gpu("k", 0, 5).load(tmp_path).launches(by=by)
    assert table.num_rows == 0
    assert "no launch call" in table.notes[0]


def test_wrong_view(launched: ttap.Trace) -> None:
    with pytest.raises(OptionError, match="by must be one of call, kernel"):
        launched.launches(by="colour")
