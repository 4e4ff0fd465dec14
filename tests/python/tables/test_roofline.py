"""Rooflines of small hand-made traces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device, load_devices
from torchtraceap.ops.models import Work
from torchtraceap.tables.gpu.recorded_device import attainable_ns

WriteTrace = Callable[..., Path]

H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028634624,
         "computeMajor": 9, "computeMinor": 0, "numSms": 132}]  # fmt: skip
DEVICE = Device("test", bandwidth=1e12, matrix={"bf16": 100e12, "tf32": 50e12},
                vector={"fp32": 10e12})  # fmt: skip


def op(name: str, ts: float, dur: float, dims: Any = None, types: Any = None, **more: Any) -> Any:
    args: dict[str, Any] = {}
    if dims is not None:
        args = {"Input Dims": dims, "Input type": types, **more}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel") -> Any:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(
    ts: float, dur: float, correlation: int, name: str = "ampere_bf16_gemm", **more: Any
) -> Any:
    args = {"device": 0, "stream": 7, "correlation": correlation, **more}
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


BF16 = ["c10::BFloat16", "c10::BFloat16"]
MM = [[1024, 1024], [1024, 1024]]


def rows_of(table: ColumnTable) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in table.records()}


def load(write_trace: WriteTrace, events: list[Any], devices: Any = H100) -> ttap.Trace:
    document: dict[str, Any] = {"traceEvents": events}
    if devices is not None:
        document["deviceProperties"] = devices
    return ttap.load(write_trace(document))


def test_rates_and_bound_of_a_product(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 10, 1)]
    events += [op("aten::mm", 100, 20, MM, BF16), launch(105, 2), kernel(130, 30, 2)]
    table = load(write_trace, events).roofline()
    (row,) = table.records()
    assert (row["family"], row["count"], row["gpu_ns"]) == ("gemm", 2, 40_000)
    assert row["gpu_median_ns"] == 20_000
    assert row["flops"] == 2 * 1024**3
    assert row["bytes"] == 3 * 2 * 1024**2
    assert row["tflops"] == pytest.approx(2 * 2 * 1024**3 / 40e-6 / 1e12)
    assert row["peak"] == "bf16 matrix"
    assert row["bound"] == "compute"
    assert row["roofline_ns"] == pytest.approx(2 * 1024**3 / 989.4e12 * 1e9)
    assert row["roofline_share"] == pytest.approx(2 * row["roofline_ns"] / 40_000)
    assert table.facts["device_id"] == "h100_sxm"
    assert table.facts["modelled_share"] == 1
    assert row["warning"] is None


def test_each_event_goes_to_the_innermost_model(write_trace: WriteTrace) -> None:
    """`linear` calls `addmm`: one row; the copy beside it is a row of its own."""
    linear = [[8, 4], [6, 4], [6]]
    addmm = [[6], [8, 4], [4, 6], [], []]
    events = [
        op("aten::linear", 0, 100, linear, ["float"] * 3),
        op("aten::copy_", 5, 10, [[8, 4], [8, 4], []], ["float", "float", "Scalar"]),
        launch(6, 1),
        op("aten::addmm", 20, 30, addmm, ["float"] * 3 + ["Scalar"] * 2),
        launch(25, 2),
        kernel(50, 10, 1, "copy_kernel"),
        kernel(60, 10, 2),
    ]
    table = load(write_trace, events).roofline()
    rows = rows_of(table)
    assert set(rows) == {"aten::copy_", "aten::addmm"}
    assert sum(row["gpu_ns"] for row in rows.values()) == 20_000


def test_a_composite_counts_where_nothing_below_it_is_known(write_trace: WriteTrace) -> None:
    events = [
        op("aten::linear", 0, 100, [[8, 4], [6, 4], [6]], ["float"] * 3),
        op("vendor::fast_linear", 20, 30, [[8, 4], [6, 4]], ["float"] * 2),
        launch(25, 1),
        kernel(60, 10, 1),
    ]
    (row,) = load(write_trace, events).roofline().records()
    assert (row["name"], row["flops"]) == ("aten::linear", 2 * 8 * 4 * 6)


def test_a_composites_leftover_has_no_number(write_trace: WriteTrace) -> None:
    """`linear` launched something itself, but its work is that of the `addmm` below."""
    events = [
        op("aten::linear", 0, 100, [[8, 4], [6, 4], [6]], ["float"] * 3),
        launch(5, 1),
        op("aten::addmm", 20, 30, [[6], [8, 4], [4, 6], [], []],
           ["float"] * 3 + ["Scalar"] * 2),
        launch(25, 2),
        kernel(50, 10, 1, "other"),
        kernel(60, 10, 2),
    ]  # fmt: skip
    rows = rows_of(load(write_trace, events).roofline())
    assert rows["aten::addmm"]["has_model"] is True
    assert rows["aten::linear"]["has_model"] is False
    assert "rows of their own" in rows["aten::linear"]["why_not"]


def test_time_above_the_roofline_is_never_silent(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 1, 1)]
    table = load(write_trace, events).roofline()
    (row,) = table.records()
    assert row["roofline_share"] > 1
    assert row["warning"].startswith("above the roofline")
    assert table.facts["above_roofline"] == 1
    assert any("above the roofline" in note for note in table.notes)


def test_an_unknown_gpu_gives_no_percentage(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 10, 1)]
    for devices in (None, [], [{"id": 0, "name": "AMD Radeon Graphics"}]):
        table = load(write_trace, events, devices).roofline()
        (row,) = table.records()
        assert row["tflops"] > 0
        assert row["roofline_share"] is None
        assert row["bound"] is None
        assert table.facts["device"] is None
        assert any("name one with `device`" in note for note in table.notes)


def test_a_device_can_be_given(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 100, 1)]
    trace = load(write_trace, events, None)
    (named,) = trace.roofline(device="H200").records()
    assert named["roofline_ns"] == pytest.approx(2 * 1024**3 / 989.4e12 * 1e9)
    (own,) = trace.roofline(device=DEVICE).records()
    assert own["roofline_ns"] == pytest.approx(2 * 1024**3 / 100e12 * 1e9)
    with pytest.raises(OptionError, match="several"):
        trace.roofline(device="A100")
    with pytest.raises(OptionError, match="name or"):
        trace.roofline(device=3)


def test_copies_over_a_link_are_not_compared_with_memory(write_trace: WriteTrace) -> None:
    copy = op("aten::copy_", 0, 20, [[8], [8], []], ["float", "float", "Scalar"])
    events = [copy, launch(5, 1, "cudaMemcpyAsync"),
              kernel(30, 10, 1, "Memcpy HtoD (Pageable -> Device)")]  # fmt: skip
    (row,) = load(write_trace, events).roofline().records()
    assert (row["bound"], row["roofline_share"]) == ("link", None)
    assert row["bytes"] == 64


def test_without_shapes_the_reason_stands_in_the_row(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20), launch(5, 1), kernel(30, 10, 1)]
    table = load(write_trace, events).roofline()
    (row,) = table.records()
    assert row["flops"] is None
    assert "record_shapes" in row["why_not"]
    assert table.facts["modelled_share"] == 0


def test_events_without_operator_or_launch_have_rows(write_trace: WriteTrace) -> None:
    events = [launch(5, 1), kernel(30, 10, 1, "softmax_kernel"), kernel(50, 5, 99, "Memset"),
              kernel(60, 5, 98, "ncclDevKernel_AllReduce")]  # fmt: skip
    table = load(write_trace, events).roofline()
    rows = [(row["name"], row["family"], row["why_not"]) for row in table.records()]
    assert ("cudaLaunchKernel", "softmax", "not below an operator") in rows
    assert ("(no launch)", "communication", "the trace does not hold its launch") in rows
    assert sum(table["gpu_ns"]) == 20_000


def test_overlapping_kernels_of_a_call_count_once(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), launch(7, 2),
              kernel(30, 10, 1), kernel(35, 10, 2, stream=9)]  # fmt: skip
    (row,) = load(write_trace, events).roofline().records()
    assert row["gpu_ns"] == 15_000


def test_zero_length_kernels_have_no_rates(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 0, 1)]
    table = load(write_trace, events).roofline()
    (row,) = table.records()
    assert row["gpu_ns"] == 0
    assert row["tflops"] is None
    assert row["roofline_share"] is None
    table.to_json()


def test_by_family_and_by_call(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 10, 1)]
    events += [op("aten::mm", 100, 20, MM, BF16), launch(105, 2), kernel(130, 30, 2)]
    events += [op("vendor::op", 200, 20), launch(205, 3), kernel(230, 10, 3, "gemm_kernel")]
    trace = load(write_trace, events)
    (family,) = trace.roofline(by="family").records()
    assert family["family"] == "gemm"
    assert family["count"] == 3
    assert family["flops"] == 2 * 2 * 1024**3
    assert family["modelled_share"] == pytest.approx(40 / 50)
    calls = trace.roofline(by="call")
    assert calls.num_rows == 3
    assert sorted(calls["gpu_ns"]) == [10_000, 10_000, 30_000]
    assert {trace.event(int(row))["name"] for row in calls["row"]} == {"aten::mm", "vendor::op"}
    with pytest.raises(OptionError, match="by must be"):
        trace.roofline(by="colour")
    with pytest.raises(OptionError, match="compat"):
        trace.roofline(compat="hta")


def test_cpu_operators_of_a_trace_without_gpu(write_trace: WriteTrace) -> None:
    events = [op("aten::linear", 0, 50, [[8, 4], [6, 4]], ["float"] * 2),
              op("aten::mm", 10, 20, [[8, 4], [4, 6]], ["float"] * 2),
              op("aten::view", 40, 1, [[8, 6], []], ["float", "ScalarList"])]  # fmt: skip
    trace = load(write_trace, events, None)
    table = trace.roofline(by="call")
    (row,) = table.records()
    assert (row["name"], row["flops"], row["host_ns"]) == ("aten::mm", 384, 20_000)
    assert trace.roofline().num_rows == 0
    assert trace.roofline(by="family").num_rows == 0
    assert any("no GPU events" in note for note in trace.roofline().notes)


def test_an_empty_trace_is_an_empty_table(write_trace: WriteTrace) -> None:
    trace = load(write_trace, [op("aten::view", 0, 1)], None)
    for by in ("args", "family", "call"):
        assert trace.roofline(by=by).num_rows == 0


@pytest.mark.parametrize(
    ("kernels", "allowed", "peak"),
    [
        (("cutlass_80_tensorop_s1688gemm_128x128",), None, 156e12),
        (("ampere_sgemm_128x64_tn",), True, 19.5e12),
        (("some_kernel",), True, 156e12),
        (("some_kernel",), None, 19.5e12),
    ],
)
def test_tf32_is_told_by_the_kernel_then_by_the_call(
    kernels: tuple[str, ...], allowed: bool | None, peak: float
) -> None:
    work = Work(1e12, 1, 1, dtype="fp32", unit="matrix", allow_tf32=allowed)
    time_ns, bound = attainable_ns(work, load_devices()["a100_sxm_40gb"], kernels)
    assert bound == "compute"
    assert time_ns == pytest.approx(1e12 / peak * 1e9)


def test_a_type_without_a_rate_has_no_roofline() -> None:
    work = Work(1e12, 1, 1, dtype="fp8", unit="matrix")
    time_ns, bound = attainable_ns(work, load_devices()["a100_sxm_40gb"])
    assert math.isnan(time_ns)
    assert bound == ""


def test_the_document_names_its_sources(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 10, 1)]
    document = load(write_trace, events).roofline().to_dict()
    assert document["device"] == "H100 SXM5 80 GB"
    assert "H100" in document["device_sources"]["matrix"]


def test_conservation_and_warnings_on_real_traces(corpus_file: Path) -> None:
    """No event counts twice, and nothing is faster than its device without a word."""
    trace = ttap.load(corpus_file)
    for part in trace.ranks:
        table = trace.roofline(rank=part.rank) if len(trace.ranks) > 1 else trace.roofline()
        busy = int(part.costs.exclusive_ns[part.tree.gpu_rows].sum())
        assert table.facts["busy_ns"] == busy
        if busy:
            assert sum(table["busy_share"]) == pytest.approx(1)
        for row in table.records():
            assert bool(row["why_not"]) == (not row["has_model"])
            assert "failed with" not in (row["why_not"] or "")
            if (row["roofline_share"] or 0) > 1:
                assert row["warning"]


SMALL_CACHE = dataclasses.replace(DEVICE, l2_bytes=1 << 20)


@pytest.mark.parametrize(
    ("name", "dims", "more", "kernel_name", "reason"),
    [
        # Three tensors of 1.3 MiB are less than four caches of 1 MiB, of 1.4 MiB more.
        ("aten::add", [[1 << 10, 680]] * 2, {}, "add", "from the L2 cache"),
        ("aten::add", [[1 << 10, 684]] * 2, {}, "add", "strides are not recorded"),
        ("aten::add", [[1 << 10, 684]] * 2, {"Input Strides": [[684, 1]] * 2}, "add",
         "came from a cache, or the device is another one"),
        ("aten::mm", MM, {"Input type": ["float", "float"]}, "sgemm", "may compute in tf32"),
        ("aten::mm", MM, {}, "bf16_gemm", "the model counts more than was done"),
    ],
)  # fmt: skip
def test_what_is_faster_than_its_device_says_why(
    write_trace: WriteTrace, name: str, dims: Any, more: Any, kernel_name: str, reason: str
) -> None:
    types = more.pop("Input type", BF16)
    events = [op(name, 0, 20, dims, types, **more), launch(5, 1), kernel(30, 0.1, 1, kernel_name)]
    table = load(write_trace, events).roofline(device=SMALL_CACHE)
    (row,) = table.records()
    assert row["roofline_share"] > 1
    assert row["warning"].startswith("above the roofline: ")
    assert reason in row["warning"]
    assert "1 row lies above the roofline; the column warning says why." in table.notes


def test_rows_above_the_roofline_are_counted(write_trace: WriteTrace) -> None:
    events = [op("aten::mm", 0, 20, MM, BF16), launch(5, 1), kernel(30, 0.1, 1)]
    events += [op("aten::add", 50, 20, MM, BF16), launch(55, 2), kernel(80, 0.1, 2)]
    table = load(write_trace, events).roofline(device=SMALL_CACHE)
    assert "2 rows lie above the roofline; the column warning says why." in table.notes


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"], "GPUs of several kinds"),
        (["Some GPU"], "a GPU that is not told by its name ('Some GPU')"),
    ],
)
def test_devices_that_give_no_peak_are_said(
    write_trace: WriteTrace, names: list[str], reason: str
) -> None:
    devices = [{**H100[0], "id": i, "name": name} for i, name in enumerate(names)]
    events = [op("aten::mm", 0, 20, MM, BF16)]
    for i in range(len(names)):
        events += [launch(5 + i, 1 + i), kernel(30 + 10 * i, 5, 1 + i, device=i)]
    table = load(write_trace, events, devices).roofline()
    assert table.facts["device"] is None
    assert any(reason in note for note in table.notes)


# One prompt, and two sequences that go on with some keys together.
BATCH = "execute_{0}_context_1(sq{0}sk{0}sqsq{1}sqsk{1})_generation_2(sq2sk{2}sqsq2sqsk{2})"


def batch_of(ts: float, prompt: int, keys: int) -> list[Any]:
    """A step of a serving engine with an attention of 1024 rows."""
    name = BATCH.format(prompt, prompt * prompt, keys)
    dims, types = [[1024, 8, 64], *[[1024, 2, 64]] * 2, [1024, 8, 64]], ["c10::BFloat16"] * 4
    attention = op("vllm::unified_attention_with_output", ts + 10, 20, dims, types)
    around = {**op(name, ts, 50), "cat": "user_annotation", "args": {}}
    return [around, attention, launch(ts + 15, int(ts) + 1), kernel(ts + 60, 20, int(ts) + 1)]


def test_attention_of_a_serving_engine_takes_its_lengths_from_the_range_around_it(
    write_trace: WriteTrace,
) -> None:
    events = [*batch_of(0, 100, 300), *batch_of(1000, 100, 300), *batch_of(2000, 200, 300)]
    rows = load(write_trace, events).roofline().records()
    # A prompt meets itself up to each query: 100 * 101 / 2 pairs.
    pairs = {2: 5050 + 300, 1: 20100 + 300}
    assert {row["count"]: row["flops"] for row in rows} == {
        count: 2 * 8 * met * 128 for count, met in pairs.items()
    }
    first = next(row for row in rows if row["count"] == 2)
    assert first["bytes"] == 2 * 102 * 8 * 64 * 2 + 400 * 2 * 2 * 64 * 2
    assert first["upper_bound"]
    assert "windows" in first["note"]


# A prompt of 100, and two sequences that go on with 300 keys together, as each engine says it.
PROMPT, TWO = "c_sq=100 c_sqsq=10000 c_sqsk=10000 c_sk=100", "g_sqsq=2 g_sqsk=300 g_sk=300"
PREFILL, DECODE = (100, 100, 5050), (2, 300, 300)  # queries, keys, pairs


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (BATCH.format(100, 10_000, 300), [PREFILL, DECODE]),
        (f"step[MIXED bs=3 c=1 g=2 {PROMPT} g_sq=2 {TWO}]", [PREFILL, DECODE]),
        ("step[EXTEND bs=1 toks=100 c_sqsq=10000 c_sqsk=10000 c_sk=100]", [PREFILL]),
        (f"step[DECODE bs=2 {TWO}]", [DECODE]),
        ("prefill[bs=1 tok=100 ctx=100]", [PREFILL]),
        ("prefill[bs=1 tok=100 ctx=100 sqsq=10000 sqsk=10000 sk=100]", [PREFILL]),
        ("decode[bs=2/8 tok=2 d=2 sqsq=2 sqsk=300 sk=300]", [DECODE]),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "atom"])
def test_every_engine_says_the_lengths_of_its_batch(
    write_trace: WriteTrace, name: str, parts: list[tuple[int, int, int]], engine: str
) -> None:
    around, attention, *rest = batch_of(0, 100, 300)
    if engine == "sglang":  # heads and depth of queries and output in one dimension
        dims = [[1024, 8 * 64], *[[1024, 2, 64]] * 2, [1024, 8 * 64]]
        attention = op("sglang::unified_attention_with_output", 10, 20, dims, ["c10::BFloat16"] * 4)
    elif engine == "atom":
        dims = [[1024, 8 * 64], [], [1024, 128], [1024, 128], [1024], [], [], [1024, 768]]
        types = ["c10::BFloat16", "", "c10::BFloat16", "c10::BFloat16", "long int"]
        types += ["", "Scalar", "c10::BFloat16"]
        values = ["", "", "", "", "", "layer.0", "False", ""]
        attention = op("aiter::unified_attention_with_output_base", 10, 20, dims, types)
        attention["args"]["Concrete Inputs"] = values
    trace = load(write_trace, [{**around, "name": name}, attention, *rest])
    (row,) = trace.roofline().records()
    queries, keys, met = (sum(part[i] for part in parts) for i in range(3))
    assert row["flops"] == 2 * 8 * met * 128
    assert row["bytes"] == 2 * queries * 8 * 64 * 2 + keys * 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("name", "keys", "exact"),
    [
        ("step[DECODE bs=4 g_sqsq=4 g_sqsk=100 g_sk=100]", 100, True),
        ("decode[bs=4 tok=4 d=4 sqsq=4 sqsk=100 sk=100]", 100, True),
        # Of another number of queries, without lengths, and no engine's.
        ("step[DECODE bs=5 g_sqsq=5 g_sqsk=100 g_sk=100]", 4 * 64, False),
        ("step[DECODE bs=4]", 4 * 64, False),
        ("my step", 4 * 64, False),
    ],
)
def test_attention_over_pages_takes_the_lengths_in_use_from_the_range(
    write_trace: WriteTrace, name: str, keys: int, exact: bool
) -> None:
    """4 sequences of one query of 8 heads; at most 64 positions each, in pages of 16."""
    q, cache = [4, 8, 64], [1000, 16, 2, 64]
    dims = [q, q, cache, cache, [], [], [4, 4], [4], [], []]
    bf16, i32 = "c10::BFloat16", "int"
    types = [bf16, bf16, bf16, bf16, "Scalar", "Scalar", i32, i32, "Scalar", "Scalar"]
    attention = op("_C::paged_attention_v1", 10, 20, dims, types)
    attention["args"]["Concrete Inputs"] = ["", "", "", "", "2", "1.0", "", "", "16", "64"]
    around = {**op(name, 0, 50), "cat": "user_annotation", "args": {}}
    events = [around, attention, launch(15, 1), kernel(60, 20, 1)]
    (row,) = load(write_trace, events).roofline().records()
    assert row["flops"] == 2 * 8 * keys * 128
    assert row["upper_bound"] != exact


def test_without_such_a_range_attention_over_a_cache_has_no_numbers(
    write_trace: WriteTrace,
) -> None:
    around, *rest = batch_of(0, 100, 300)
    for name in ("execute_context_1(100)_generation_2(2)", "step[DECODE bs=2]", "step"):
        (row,) = load(write_trace, [{**around, "name": name}, *rest]).roofline().records()
        assert row["flops"] is None or math.isnan(row["flops"])
        assert "cache" in row["why_not"]
    # More tokens than rows: the range is of something else.
    far = [{**around, "name": BATCH.format(2000, 4_000_000, 300)}, *rest]
    assert "do not fit" in load(write_trace, far).roofline().records()[0]["why_not"]
