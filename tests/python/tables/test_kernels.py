"""Tables of kernels, short kernels and sequences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gpu_traces import GpuTrace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float> >(int)"
SHAPE = {"grid": [2, 1, 1], "block": [128, 1, 1], "registers per thread": 16}


def row(table: ColumnTable, **wanted: object) -> dict[str, object]:
    """The one row with these values."""
    (found,) = (r for r in table.records() if all(r[k] == v for k, v in wanted.items()))
    return found


@pytest.fixture
def two_ops(tmp_path: Path) -> ttap.Trace:
    """aten::add launches a kernel three times, aten::mul another one once; one orphan."""
    trace = GpuTrace()
    for i in range(3):
        at = 100.0 * i
        trace.op("aten::add", at, 20)
        occupancy = {"est. achieved occupancy %": 50 if i < 2 else 100, "warps per SM": 32.0}
        grid = {"grid": [4, 1, 1]} if i == 2 else {}
        trace.launch(ADD, (at + 2, 4), (at + 30, 10 * (i + 1)), **(SHAPE | occupancy | grid))
    trace.op("aten::mul", 300, 20).launch(MUL, (302, 4), (330, 5), stream=8, **SHAPE)
    trace.gpu("orphan_kernel", 400, 7)
    return trace.load(tmp_path)


def test_kernels_by_name(two_ops: ttap.Trace) -> None:
    table = two_ops.kernels()
    assert table.num_rows == 3
    add = row(table, name=ADD)
    assert add["op"] == "aten::add"
    assert add["canonical"] == "at::native::vectorized_elementwise_kernel"
    assert (add["device"], add["stream"], add["class"]) == (0, 7, "compute")
    assert (add["count"], add["sum_ns"], add["mean_ns"]) == (3, 60_000, 20_000)
    assert (add["min_ns"], add["median_ns"], add["max_ns"]) == (10_000, 20_000, 30_000)
    assert add["p95_ns"] == pytest.approx(29_000)
    assert (add["grid"], add["grids"], add["block"], add["blocks"]) == (
        [2, 1, 1], 2, [128, 1, 1], 1,
    )  # fmt: skip
    # Weighted with time: 10 and 20 us at 50 %, 30 us at 100 %.
    assert add["occupancy_share"] == pytest.approx(0.75)
    assert add["registers_per_thread"] == pytest.approx(16)
    assert add["blocks_per_sm"] is None
    orphan = row(table, name="orphan_kernel")
    assert orphan["op"] is None
    assert orphan["grid"] is None
    assert any("no launch call" in note for note in table.notes)


def test_shares_sum_to_the_busy_time(two_ops: ttap.Trace) -> None:
    for by in ("name", "canonical"):
        table = two_ops.kernels(by=by)
        busy_ns = two_ops.timeline().busy_ns
        assert table.facts["busy_ns"] == busy_ns
        assert table["exclusive_ns"].sum() == busy_ns
        assert table["busy_share"].sum() == pytest.approx(1)
        assert table["cumulative_share"][-1] == pytest.approx(1)
        assert (np.diff(table["sum_ns"]) <= 0).all()


def test_kernels_by_canonical_name(two_ops: ttap.Trace) -> None:
    table = two_ops.kernels(by="canonical")
    both = row(table, canonical="at::native::vectorized_elementwise_kernel")
    assert (both["count"], both["names"], both["ops"], both["streams"]) == (4, 2, 2, 2)
    assert both["op"] == "aten::add"  # owns most of them


def test_every_event(two_ops: ttap.Trace) -> None:
    table = two_ops.kernels(by="event")
    first = table.records()[0]
    assert (first["start_ns"], first["duration_ns"]) == (30_000, 10_000)
    assert first["delay_ns"] == 24_000  # 30 us - (2 us + 4 us)
    assert two_ops.rank().table.name_of(first["op_row"]) == "aten::add"
    assert two_ops.rank().table.name_of(first["launch_row"]) == "cudaLaunchKernel"
    orphan = row(table, name="orphan_kernel")
    assert orphan["launch_row"] is None
    assert orphan["delay_ns"] is None


def test_overlap_by_operator(tmp_path: Path) -> None:
    """An all-reduce half hidden by a product, a copy under both, and another device beside."""
    trace = GpuTrace()
    trace.op("aten::mm", 0, 10).launch("gemm", (1, 2), (100, 100))
    trace.op("c10d::allreduce_", 20, 10)
    trace.launch("ncclDevKernel_AllReduce", (21, 2), (150, 100), stream=20)
    trace.op("aten::copy_", 40, 10)
    trace.launch("Memcpy HtoD", (41, 2), (190, 20), cat="gpu_memcpy", stream=21)
    trace.op("aten::add", 60, 10).launch("add", (61, 2), (195, 15), stream=22)
    trace.op("aten::mul", 80, 10)
    trace.launch("elsewhere", (81, 2), (100, 200), stream=7, device=1)
    rows = {r["op"]: r for r in trace.load(tmp_path).kernels(by="overlap").records()}
    found = {
        op: tuple(
            rows[op][name] // 1000
            for name in ("sum_ns", "under_compute_ns", "under_communication_ns", "under_memcpy_ns")
        )
        for op in rows
    }
    assert found == {
        "aten::mul": (200, 0, 0, 0),
        "aten::mm": (100, 5, 50, 10),
        "c10d::allreduce_": (100, 60, 0, 20),
        "aten::copy_": (20, 20, 20, 0),
        "aten::add": (15, 5, 15, 15),
    }
    alone = {op: rows[op]["alone_ns"] // 1000 for op in rows}
    assert alone == {
        "aten::mul": 200, "aten::mm": 50, "c10d::allreduce_": 40, "aten::copy_": 0, "aten::add": 0,
    }  # fmt: skip
    assert rows["c10d::allreduce_"]["overlap_share"] == pytest.approx(0.6)


def test_what_hides_communication_is_what_the_timeline_says(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(9):
        trace.launch("ncclDevKernel_AllReduce", (i, 0.5), (100 * i, 60), stream=20)
        trace.launch("gemm", (i, 0.5), (100 * i + 7 * i, 45))
    loaded = trace.load(tmp_path)
    timeline = loaded.timeline()
    rows = loaded.kernels(by="overlap").records()
    hidden = sum(r["under_compute_ns"] for r in rows if r["class"] == "communication")
    assert hidden == timeline.communication_ns - timeline.exposed_communication_ns


def test_triton_kernels_name_their_source(tmp_path: Path) -> None:
    trace = GpuTrace()
    told = {"kernel_backend": "triton", "kernel_file": "/tmp/x.py", "kernel_hash": "cqa"}
    trace.op("triton_poi_fused_add_relu_0", 0, 20, **told)
    trace.launch("triton_poi_fused_add_relu_0", (2, 4), (30, 10), call="cuLaunchKernel")
    # Older: all kernels have one name, the operator tells.
    trace.op("triton_red_fused_native_layer_norm_1", 100, 20)
    trace.launch("triton__0d1d2d", (102, 4), (130, 9), call="cuLaunchKernel")
    trace.op("aten::mm", 200, 20).launch("gemm", (202, 4), (230, 8))
    table = trace.load(tmp_path).kernels()
    first, second, third = table.records()
    assert (first["triton_kind"], first["source_ops"]) == ("pointwise", ["add", "relu"])
    assert (first["kernel_backend"], first["kernel_file"]) == ("triton", "/tmp/x.py")
    assert (second["triton_kind"], second["source_ops"]) == ("reduction", ["native_layer_norm"])
    assert (third["triton_kind"], third["source_ops"], third["kernel_hash"]) == (None, None, None)


def test_a_graph_owns_its_kernels(tmp_path: Path) -> None:
    trace = GpuTrace().call("hipGraphLaunch", 0, 5, correlation=1)
    for i in range(3):
        trace.gpu("k", 10 + 10 * i, 5, correlation=1)
    table = trace.load(tmp_path).kernels()
    assert table.records()[0]["op"] == "hipGraphLaunch"
    assert any("graph replays" in note for note in table.notes)


# --------------------------------------------------------------------------------- short kernels


def test_short_kernels(two_ops: ttap.Trace) -> None:
    table = two_ops.short_kernels(below_ns=11_000)
    assert table.num_rows == 3
    add = row(table, op="aten::add")
    assert (add["count"], add["sum_ns"], add["launch_ns"]) == (1, 10_000, 4_000)
    assert row(table, op=None)["launch_ns"] == 0
    assert table.facts["short_kernels"] == 3
    assert table.facts["short_ns"] == 22_000
    assert table.facts["kernels"] == 5
    assert sum(table.facts["histogram"]["count"]) == 3
    assert len(table.facts["histogram"]["bin_start_ns"]) == 100
    assert table.facts["histogram"]["bin_start_ns"][0] == 5_000
    assert table.facts["histogram"]["bin_end_ns"][-1] == 10_000
    assert row(table, op="aten::add")["kernel_share"] == pytest.approx(1 / 5)


def test_a_graph_splits_its_launch_cost(tmp_path: Path) -> None:
    trace = GpuTrace().call("cudaGraphLaunch", 0, 9, correlation=1)
    for i in range(3):
        trace.gpu(f"k{i}", 10 + 10 * i, 5, correlation=1)
    table = trace.load(tmp_path).short_kernels()
    assert table.to_list("launch_ns") == [3_000, 3_000, 3_000]


def test_kernels_without_length_are_short(tmp_path: Path) -> None:
    trace = GpuTrace().launch("k", (0, 5), (10, 0)).launch("k", (20, 5), (30, 0)).load(tmp_path)
    table = trace.short_kernels()
    assert table.to_list("count") == [2]
    assert table.facts["zero_length_kernels"] == 2
    assert any("no length" in note for note in table.notes)
    assert trace.kernels().records()[0]["busy_share"] == 0


def test_copies_are_no_short_kernels(tmp_path: Path) -> None:
    trace = GpuTrace().launch("Memset (Device)", (0, 5), (10, 1), cat="gpu_memset")
    table = trace.load(tmp_path).short_kernels()
    assert table.num_rows == 0
    assert "no kernels" in table.notes[0]


# ------------------------------------------------------------------------------------- sequences


def chain(letters: str, *, triton: bool = False) -> GpuTrace:
    trace = GpuTrace()
    for i, letter in enumerate(letters):
        name = f"triton_poi_fused_{letter}_{i}" if triton else f"{letter}<{letter}>(int)"
        trace.launch(name, (20.0 * i, 5), (20.0 * i + 10, 12))
    return trace


def test_sequences(tmp_path: Path) -> None:
    table = chain("abcxabcyabcz").load(tmp_path).sequences()
    (found,) = table.records()
    assert found["kernels"] == ["a", "b", "c"]
    assert found["names"] == ["a<a>(int)", "b<b>(int)", "c<c>(int)"]
    assert (found["count"], found["length"], found["launches"]) == (3, 3, 6)
    assert (found["launch_ns"], found["gap_ns"]) == (30_000, 48_000)
    assert (found["removable_ns"], found["gpu_ns"]) == (48_000, 108_000)


def test_numbers_of_generated_kernels_do_not_part_sequences(tmp_path: Path) -> None:
    # Ten layers of a compiled model: add_0, mul_1, add_2, mul_3, ...
    table = chain("abcxabcyabcz", triton=True).load(tmp_path).sequences()
    assert table.records()[0]["kernels"] == [f"triton_poi_fused_{letter}" for letter in "abc"]


def test_template_arguments_part_sequences(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i, name in enumerate(["a", "k<add>()", "b", "k<mul>()", "a", "k<mul>()", "b", "k<add>()"]):
        trace.launch(name, (20.0 * i, 5), (20.0 * i + 10, 12))
    assert trace.load(tmp_path).sequences().num_rows == 0


def test_sequences_of_a_length(tmp_path: Path) -> None:
    trace = chain("abcxabcyabz").load(tmp_path)
    assert trace.sequences(length=2).to_list("count") == [3]
    assert trace.sequences(length=3).to_list("count") == [2]
    for length in (-1, 1, 10**6):
        with pytest.raises(OptionError, match="length"):
            trace.sequences(length=length)


def test_communication_and_copies_part_sequences(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(3):
        at = 100.0 * i
        trace.launch("a", (at, 5), (at + 10, 5))
        trace.launch("ncclDevKernel_AllReduce", (at + 20, 5), (at + 30, 5))
        trace.launch("b", (at + 40, 5), (at + 50, 5))
        trace.launch("Memcpy DtoD (Device -> Device)", (at + 60, 5), (at + 70, 5), cat="gpu_memcpy")
    assert trace.load(tmp_path).sequences().num_rows == 0


# ------------------------------------------------------------------------------ empty and absurd


@pytest.mark.parametrize("by", ["name", "canonical", "event"])
def test_a_trace_without_gpu_events_says_so(tmp_path: Path, by: str) -> None:
    trace = GpuTrace().op("aten::add", 0, 5).load(tmp_path)
    table = trace.kernels(by=by)
    assert table.num_rows == 0
    assert "no GPU events" in table.notes[0]
    json.loads(table.to_json())
    assert trace.short_kernels().num_rows == trace.sequences().num_rows == 0


def test_shown_columns_exist_once(two_ops: ttap.Trace) -> None:
    tables = [two_ops.kernels(by=by) for by in ("name", "canonical", "event")]
    for table in (*tables, two_ops.short_kernels(), two_ops.sequences()):
        assert set(table.shown) <= set(table.columns)
        assert len(set(table.shown)) == len(table.shown)


def test_wrong_options(two_ops: ttap.Trace) -> None:
    with pytest.raises(OptionError, match="by must be one of name, canonical, overlap, event"):
        two_ops.kernels(by="colour")
    with pytest.raises(OptionError, match="positive"):
        two_ops.short_kernels(below_ns=0)


def test_arguments_that_are_no_numbers(tmp_path: Path) -> None:
    trace = GpuTrace()
    trace.launch("k", (0, 5), (10, 5), **{"est. achieved occupancy %": "high", "grid": "wide"})
    trace.launch("k", (20, 5), (30, 5), **{"est. achieved occupancy %": 1e400, "block": None})
    trace.launch("other", (40, 5), (50, 5), grid="[NaN]", block="[" * 100_000)
    table = trace.load(tmp_path).kernels()
    first, second = table.records()
    assert first["occupancy_share"] is None
    assert first["grid"] == "wide"
    assert second["grid"] == "[NaN]"
    json.loads(table.to_json())


durations = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 60), st.sampled_from("abc"), st.integers(0, 2)),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(durations)
def test_tables_agree_with_each_other(
    tmp_path: Path, events: list[tuple[int, int, str, int]]
) -> None:
    trace = GpuTrace().op("aten::add", 0, 1000)
    for start, lasts, name, stream in events:
        trace.launch(name, (start, 3), (start + 5, lasts), stream=stream)
    loaded = trace.load(tmp_path)
    by_event = loaded.kernels(by="event")
    assert by_event.num_rows == len(events)
    for by in ("name", "canonical"):
        table = loaded.kernels(by=by)
        assert table["count"].sum() == len(events)
        assert table["sum_ns"].sum() == 1000 * sum(lasts for _, lasts, _, _ in events)
        assert table["exclusive_ns"].sum() == loaded.timeline().busy_ns
    short = loaded.short_kernels(below_ns=10_000)
    assert short["count"].sum() == sum(lasts < 10 for _, lasts, _, _ in events)
    launches = loaded.launches(by="stream")
    assert launches["gpu_events"].sum() == len(events)
