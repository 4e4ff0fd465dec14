"""TraceLens's tables on traces of a few events; the corpus stands in tests/oracles."""

from __future__ import annotations

import builtins
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.compat.tracelens import (
    compat_work,
    tracelens_sheets,
    write_tracelens_csvs,
    write_tracelens_xlsx,
)
from torchtraceap.compat.tracelens.compare import compare_sheets, write_tracelens_comparison
from torchtraceap.compat.tracelens.launchers import category_of, to_us, union_us
from torchtraceap.compat.tracelens.sheets import Sheet
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.ops.models.tracelens.registry import MODELS, transpose_of

Event = dict[str, Any]
WriteTrace = Callable[..., Path]


def host(category: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {key.replace("_", " "): value for key, value in args.items()},
    }


def launched(
    kernel: str,
    call: float,
    ts: float,
    dur: float,
    number: int,
    category: str = "kernel",
    **more: Any,
) -> list[Event]:
    """A call of 2 us on thread `tid`, its GPU event and the arrow between them."""
    tid, name = more.pop("tid", 1), more.pop("call_name", "cudaLaunchKernel")
    gpu = {"device": 0, "stream": 7, "correlation": number, **more}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    return [
        host("cuda_runtime", name, call, 2, tid) | {"args": {"correlation": number}},
        {"ph": "X", "cat": category, "name": kernel, "pid": 0, "tid": 7, "ts": ts, "dur": dur}
        | {"args": gpu},
        arrow | {"ph": "s", "pid": 1, "tid": tid, "ts": call},
        arrow | {"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": ts},
    ]


def op(name: str, ts: float, dur: float, dims: Any, types: Any, **more: Any) -> Event:
    strides = [[1] * len(shape) if shape else [] for shape in dims]
    args = {
        "Input Dims": dims,
        "Input type": types,
        "Input Strides": strides,
        "Concrete Inputs": more.pop("concrete", [""] * len(dims)),
    }
    event = host("cpu_op", name, ts, dur, more.pop("tid", 1))
    return event | {"args": args | {k.replace("_", " "): v for k, v in more.items()}}


BF16 = "c10::BFloat16"


def product(ts: float, number: int, dur: float = 10) -> list[Event]:
    """An aten::linear with the aten::mm below it that launches one kernel."""
    return [
        op("aten::linear", ts, 40, [[8, 4], [16, 4]], [BF16, BF16]),
        op("aten::mm", ts + 5, 20, [[8, 4], [4, 16]], [BF16, BF16]),
        *launched("gemm", ts + 10, 1000 + ts, dur, number),
    ]


def sheets_of(write_trace: WriteTrace, events: Any, **options: bool) -> dict[str, Sheet]:
    return tracelens_sheets(ttap.load(write_trace(events)).ranks[0], **options)


def row(sheet: Sheet, place: int = 0) -> dict[str, Any]:
    return {name: column[place] for name, column in sheet.items()}


# ----------------------------------------------------------------------------------- timeline


def test_timeline_is_in_doubles_of_microseconds(write_trace: WriteTrace) -> None:
    # At this time one unit in the last place is 0.25 us: the end of a 1.3 us kernel is at .25.
    start = 1712345678901234.0
    sheets = sheets_of(write_trace, launched("k", start - 10, start, 1.3, 1))
    times = dict(zip(*list(sheets["gpu_timeline"].values())[:2], strict=True))
    assert times["computation_time"] == 1.25 / 1e3
    assert times["total_time"] == times["busy_time"]
    assert sheets["kernel_summary"]["Kernel duration (µs)_sum"] == [1.3]


def test_timeline_classes(write_trace: WriteTrace) -> None:
    events = [
        *launched("k", 0, 100, 10, 1),
        *launched("ncclDevKernel_AllReduce", 3, 105, 15, 2),
        *launched("Memcpy HtoD (Pageable -> Device)", 6, 118, 12, 3, "gpu_memcpy"),
        *launched("Memset (Device)", 9, 140, 5, 4, "gpu_memset"),
    ]
    sheet = sheets_of(write_trace, events)["gpu_timeline"]
    times = dict(zip(sheet["type"], (t * 1e3 for t in sheet["time ms"]), strict=True))
    assert times == pytest.approx(
        {
            "computation_time": 15,
            "exposed_comm_time": 10,
            "exposed_memcpy_time": 10,
            "busy_time": 35,
            "idle_time": 10,
            "total_time": 45,
            "total_comm_time": 15,
            "total_memcpy_time": 12,
        }
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 9)), max_size=30))
def test_union_is_what_a_grid_counts(intervals: list[tuple[int, int, int]]) -> None:
    index, start, length = (
        (np.asarray(c, dtype=np.int64) for c in zip(*intervals, strict=True))
        if (intervals)
        else (np.zeros(0, dtype=np.int64),) * 3
    )
    found = union_us(4, index, start.astype(float), (start + length).astype(float))
    for group in range(4):
        covered = {x for g, s, n in intervals if g == group for x in range(s, s + n)}
        assert found[group] == len(covered)


@given(st.integers(-(10**18), 2 * 10**18))
def test_microseconds_are_the_nearest_double_of_the_text(ns: int) -> None:
    sign, size = ("-" if ns < 0 else ""), abs(ns)
    text = f"{sign}{size // 1000}.{size % 1000:03d}"
    assert to_us(np.asarray([ns], dtype=np.int64))[0] == float(text)


# ---------------------------------------------------------------------------------- launchers


def test_operators_have_own_and_subtree_time(write_trace: WriteTrace) -> None:
    events = [
        op("aten::convolution_overrideable", 0, 100, [[2]], ["float"]),
        *launched("void at::native::reduce_kernel<1>", 5, 200, 10, 1),
        op("aten::contiguous", 10, 20, [[2]], ["float"]),
        *launched("k", 12, 205, 20, 2),
    ]
    sheets = sheets_of(write_trace, events)
    rows = {
        name: row(sheets["ops_summary"], i) for i, name in enumerate(sheets["ops_summary"]["name"])
    }
    outer = rows["aten::convolution_overrideable"]
    assert (outer["total_direct_kernel_time_sum"], outer["total_subtree_kernel_time_sum"]) == (
        10,
        25,
    )
    assert outer["Categories"] == "['reduce']"
    assert rows["aten::contiguous"]["total_direct_kernel_time_sum"] == 20
    assert sheets["ops_summary"]["Cumulative Percentage (%)"][-1] == pytest.approx(100)


def test_execute_and_missing_operators(write_trace: WriteTrace) -> None:
    events = [
        op("fused", 0, 100, [[2]], ["float"]),
        op("execute", 5, 50, [[2]], ["float"]),
        *launched("k", 10, 200, 10, 1),
        *launched("orphan", 150, 300, 5, 2),
    ]
    sheets = sheets_of(write_trace, events)
    assert sheets["ops_summary"]["name"] == ["fused", "cudaLaunchKernel"]
    assert sheets["kernel_summary"]["Parent cpu_op"] == ["execute", "cudaLaunchKernel"]
    assert sheets["kernel_summary"]["Parent op category"] == ["other", "runtime"]
    loose = sheets["unified_perf_summary"]["name"]
    assert "cudaLaunchKernel->orphan (Synthetic Op)" in loose


def test_a_gpu_event_without_an_arrow_is_not_linked(write_trace: WriteTrace) -> None:
    """As theirs; a trace without any arrow keeps its links here, where theirs has no tables."""
    first, second = launched("k", 0, 100, 10, 1), launched("no arrow", 5, 200, 10, 2)
    sheets = sheets_of(write_trace, [*first, *second[:2]])
    assert sheets["gpu_timeline"]["time ms"][3] == pytest.approx(0.01)
    assert len(sheets["kernel_summary"]["Kernel name"]) == 2
    without = sheets_of(write_trace, [*first[:2], *second[:2]])
    assert without["gpu_timeline"]["time ms"][3] == pytest.approx(0.02)


def test_kernels_are_matched_by_their_place(write_trace: WriteTrace) -> None:
    events = []
    for i, durations in enumerate([(10, 1), (20, 3), (7,)]):
        ts = 100 * i
        events.append(op("two", ts, 90, [[2]], ["float"]))
        for j, dur in enumerate(durations):
            number = 10 * i + j + 1
            events += launched("ab"[j], ts + 5 + 5 * j, 1000 + ts + 30 * j, dur, number)
    sheet = sheets_of(write_trace, events)["ops_unique_args"]
    assert sheet["operation_count"] == [3]
    # The call with one kernel does not fit the pattern of the first.
    assert sheet["trunc_kernel_details"] == [
        "[{'name': 'b', 'stream': 7, 'mean_duration_us': 2.0}, "
        "{'name': 'a', 'stream': 7, 'mean_duration_us': 15.0}]"
    ]
    assert "'std_dev_duration_us': 5.0" in sheet["kernel_details_summary"][0]


def test_recomputation_splits_the_tables(write_trace: WriteTrace) -> None:
    frame = "torch/utils/checkpoint.py(1500): recompute_fn"
    events = [
        host("python_function", "main.py(1): run", 0, 1000),
        *product(10, 1),
        host("python_function", frame, 200, 100),
        *product(210, 2, dur=30),
    ]
    sheets = sheets_of(write_trace, events, detect_recompute=True)
    assert sheets["ops_summary"]["is_recompute"] == [True, False]
    assert sheets["ops_summary"]["total_direct_kernel_time_sum"] == [30, 10]
    assert sheets["gpu_timeline"]["is_recompute"] == [False] * 8 + [True] * 8
    assert "is_recompute" not in sheets_of(write_trace, events)["ops_summary"]


@pytest.mark.parametrize("last", ["thread 1 (python)", "thread 1 (pt_autograd_0)"])
def test_of_several_names_of_a_thread_the_last_counts(write_trace: WriteTrace, last: str) -> None:
    def named(what: str, name: str, tid: int) -> Event:
        key = "labels" if what == "process_labels" else "name"
        return {"ph": "M", "name": what, "pid": 1, "tid": tid, "ts": 0, "args": {key: name}}

    events = [
        named("process_name", "python", 0),
        named("process_labels", "CPU", 0),
        named("thread_name", "thread 1 (pt_main_thread)", 1),
        named("thread_name", last, 1),
        *product(10, 1),
    ]
    found = row(sheets_of(write_trace, events)["ops_unique_args"])
    assert found["process_name"] == "python"
    assert found["process_label"] == "CPU"
    assert found["thread_name"] == last


def test_collectives(write_trace: WriteTrace) -> None:
    metadata = {
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Collective name": "allreduce",
        "Group size": 2,
        "dtype": "BFloat16",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "In split size": "[]",
        "Out split size": "[]",
    }
    events = [
        *launched("ncclDevKernel_AllReduce", 0, 100, 10, 1, **metadata),
        *launched("ncclDevKernel_AllReduce", 5, 120, 14, 2, **metadata),
        *launched("ncclDevKernel_Broadcast", 9, 150, 14, 3),
    ]
    sheet = sheets_of(write_trace, events)["coll_analysis"]
    assert row(sheet) == {
        "rank": 0,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Collective name": "allreduce",
        "Group size": 2,
        "dtype": "BFloat16",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "In split size": "[]",
        "Out split size": "[]",
        "stream": 7,
        "In msg size (MB)_first": 2.0,
        "Out msg size (MB)_first": 2.0,
        "dur_sum": 24.0,
        "dur_mean": 12.0,
        "dur_std": pytest.approx(8**0.5),
        "dur_min": 10.0,
        "dur_max": 14.0,
        "operation_count": 2,
    }


# --------------------------------------------------------------------------------- work sheets


def test_a_product_in_its_sheets(write_trace: WriteTrace) -> None:
    sheets = sheets_of(write_trace, [*product(10, 1), *product(100, 2, dur=30)])
    sheet = row(sheets["GEMM"])
    assert (sheet["param: M"], sheet["param: N"], sheet["param: K"]) == ("8", "16", "4")
    assert sheet["GFLOPS_first"] == 2 * 8 * 16 * 4 / 1e9
    assert sheet["Data Moved (MB)_first"] == (8 * 4 + 4 * 16 + 8 * 16) * 2 / 2**20
    assert sheet["Compute Spec"] == "matrix_bf16"
    assert sheet["Kernel Time (µs)_sum"] == 40
    assert sheet["TFLOPS/s_max"] == pytest.approx(1024 / 10e-6 / 1e12)
    assert sheet["name_count"] == 2
    unified = row(sheets["unified_perf_summary"])
    assert (unified["name"], unified["operation_count"]) == ("aten::mm", 2)
    assert unified["has_perf_model"] is True
    assert unified["mean_duration_us"] == 20


def test_backward_of_a_reduction(write_trace: WriteTrace) -> None:
    engine = "autograd::engine::evaluate_function: MeanBackward1"
    events = [
        op("aten::mean", 0, 20, [[8, 4]], ["float"], Sequence_number=5),
        *launched("reduce", 5, 100, 4, 1),
        host("cpu_op", engine, 200, 50, 2) | {"args": {"Sequence number": 5}},
        host("cpu_op", "MeanBackward1", 205, 40, 2) | {"args": {"Sequence number": 5}},
        op("aten::expand", 210, 20, [[1]], ["float"], tid=2),
        *launched("fill", 215, 300, 6, 2, tid=2),
    ]
    sheets = sheets_of(write_trace, events)
    backward = row(sheets["Reduce_bwd"])
    assert (backward["name"], backward["Kernel Time (µs)_sum"]) == ("aten::mean", 6)
    # Reductions have no category for a backward pass: its leaf stands for itself.
    unified = sheets["unified_perf_summary"]
    assert unified["name"] == ["aten::expand", "aten::mean"]
    assert unified["GFLOPS"] == [None, 32 / 1e9]
    assert unified["has_perf_model"] == [False, True]
    assert unified["Kernel Time (µs)_sum"] == [6, 4]


def test_backward_of_attention(write_trace: WriteTrace) -> None:
    """Its node has the work of the forward and the category of such a backward pass."""
    node = "ScaledDotProductEfficientAttentionBackward0"
    qkv = [[2, 4, 8, 16]] * 3
    concrete = ["", "", "", "", "True", "0.", "False", ""]
    events = [
        op(
            "aten::_scaled_dot_product_efficient_attention",
            0,
            20,
            qkv,
            [BF16] * 3,
            concrete=concrete,
            Sequence_number=5,
        ),
        *launched("attention", 5, 100, 4, 1),
        host("cpu_op", f"autograd::engine::evaluate_function: {node}", 200, 50, 2)
        | {"args": {"Sequence number": 5}},
        host("cpu_op", node, 205, 40, 2) | {"args": {"Sequence number": 5}},
        *launched("attention_backward", 215, 300, 6, 2, tid=2),
    ]
    unified = sheets_of(write_trace, events)["unified_perf_summary"]
    assert unified["name"] == [node, "aten::_scaled_dot_product_efficient_attention"]
    assert unified["op category"] == ["SDPA_bwd", "SDPA_fwd"]
    assert unified["has_perf_model"] == [True, True]
    assert unified["Kernel Time (µs)_sum"] == [6, 4]


def test_a_model_that_fails_keeps_the_time(write_trace: WriteTrace) -> None:
    events = [host("cpu_op", "aten::mm", 0, 50), *launched("gemm", 10, 100, 5, 1)]
    sheets = sheets_of(write_trace, events)
    assert "GEMM" not in sheets
    unified = row(sheets["unified_perf_summary"])
    assert unified["GFLOPS"] is None
    assert unified["has_perf_model"] is True
    assert unified["Kernel Time (µs)_sum"] == 5
    assert unified["Percentage (%)"] == 100


def test_a_reduction_without_shapes_has_a_row(write_trace: WriteTrace) -> None:
    events = [host("cpu_op", "aten::sum", 0, 50), *launched("reduce", 10, 100, 5, 1)]
    sheets = sheets_of(write_trace, events)
    found = row(sheets["Reduce_fwd"])
    assert (found["param: num_input_elems"], found["param: dtype_in_out"]) == ("0", "(None, None)")
    assert (found["GFLOPS_first"], found["Data Moved (MB)_first"]) == (0, None)
    assert (found["TFLOPS/s_mean"], found["Kernel Time (µs)_sum"]) == (0, 5)


def test_a_triton_kernel_without_arguments_has_no_model(write_trace: WriteTrace) -> None:
    """By the driver interface it has no leaf either: the kernel stands for itself."""
    name = "triton_poi_fused_add_0"
    by_driver = launched(name, 10, 100, 5, 1, call_name="cuLaunchKernel")
    by_driver[0]["cat"] = "cuda_driver"
    by_runtime = [host("cpu_op", name, 50, 30), *launched(name, 60, 200, 4, 2)]
    events = [host("cpu_op", name, 0, 40), *by_driver, *by_runtime]
    unified = sheets_of(write_trace, events)["unified_perf_summary"]
    assert unified["name"] == [f"{name}->{name} (Synthetic Op)", name]
    assert unified["op category"] == ["triton", "triton"]
    assert unified["has_perf_model"] == [False, False]
    assert unified["Kernel Time (µs)_sum"] == [5, 4]


def test_kernels_of_a_graph_are_of_one_category(write_trace: WriteTrace) -> None:
    """That of the first that the call launched."""
    graph = {"call_name": "cudaGraphLaunch"}
    second = launched("void at::native::reduce_kernel", 10, 110, 6, 1, **graph)
    events = [
        *product(200, 9),
        *launched("void at::native::vectorized_elementwise_kernel", 10, 100, 5, 1, **graph),
        second[1],
    ]
    unified = sheets_of(write_trace, events)["unified_perf_summary"]
    assert unified["op category"] == ["GEMM", "elementwise", "elementwise"]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("record_param_comms", "record_param_comms"),
        ("aten::_efficient_attention_forward", "SDPA_fwd"),
        ("aten::_efficient_attention_backward", "SDPA_bwd"),
        ("aten::upsample_nearest2d", "elementwise"),
        ("aten::upsample_bilinear2d", "other"),
        ("triton_tem_fused_mm_0", "triton"),
    ],
)
def test_categories(name: str, category: str) -> None:
    assert (
        category_of(name, "void at::native::(anonymous namespace)::upsample_out_frame") == category
    )


def work(name: str, dims: Any, types: Any, concrete: Any = None, strides: Any = None) -> Any:
    shapes = [[1] * len(s) if s else [] for s in dims or []] if strides is None else strides
    texts = (json.dumps(v) if v is not None else None for v in (dims, types, shapes, concrete))
    return compat_work(name, *texts)


CONV = ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]
CONV_DIMS = [[10, 3, 224, 224], [64, 3, 7, 7], [64], [], [], [], [], [], []]
CONV_OUT = 10 * 64 * 112 * 112


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        # The bias counts once, and every operand as wide as A.
        (("aten::addmm", [[16], [8, 4], [4, 16]], [BF16] * 3), (1152, (32 + 64 + 128 + 16) * 2)),
        (("aten::bmm", [[3, 8, 4], [3, 4, 16]], ["float"] * 2), (3072, 3 * 224 * 4)),
        # Eight bits in, sixteen out.
        (
            ("aten::_scaled_mm", [[8, 4], [4, 16]], ["c10::Float8_e4m3fn"] * 2),
            (1024, 32 + 64 + 128 * 2),
        ),
        (("aten::mm", [[8, 4], [4, 16]], ["int", "int"]), (1024, (32 + 64 + 128) * 4)),
        (("aten::mm", [[8, 4], [4, 16]], ["short", "short"]), (1024, None)),
        # No shapes are no elements.
        (("aten::sum", None, None), (0, None)),
        (("aten::sum", [[8, 4]], None), (32, None)),
        # The bias of a convolution is missed, as it has nine arguments.
        (
            ("aten::convolution", CONV_DIMS, [BF16] * 3 + [""] * 6, CONV),
            (2 * 3 * 49 * CONV_OUT, (10 * 3 * 224**2 + 64 * 3 * 49 + CONV_OUT) * 2),
        ),
        # Both gradients, whatever the mask asks for.
        (
            (
                "aten::convolution_backward",
                [[10, 64, 112, 112], *CONV_DIMS[:2], *[[]] * 8],
                [BF16] * 3 + [""] * 8,
                ["", "", "", "", *CONV[3:], "[False, True, False]"],
            ),
            (4 * 3 * 49 * CONV_OUT, 2 * (10 * 3 * 224**2 + 64 * 3 * 49 + CONV_OUT) * 2),
        ),
        # Two bytes an element, even for float.
        (
            (
                "aten::_scaled_dot_product_flash_attention",
                [[2, 8, 128, 64]] * 3 + [[]] * 4,
                ["float"] * 3 + [""] * 4,
                ["", "", "", "0.", "True", "False", ""],
            ),
            (2 * 8 * 128 * 128 * 2 * 128 / 2, 4 * 2 * 8 * 128 * 64 * 2),
        ),
        # A scalar counts as one element of its own dtype.
        (("aten::mul", [[4, 8], []], ["float", "double"]), (32, 32 * 4 + 8 + 32 * 4)),
        (("aten::add", [[4, 1], [8]], ["float", BF16]), (32, 4 * 4 + 8 * 2 + 32 * 4)),
        (("aten::copy_", [[4, 8], [4, 8]], ["float", BF16]), (32, 32 * 4 + 32 * 2)),
        (
            ("aten::upsample_nearest1d", [[1, 2, 8], [], []], [BF16, "", ""], ["", "[16]", ""]),
            (32, 96),
        ),
        # The dimensions are a text, so that one element is left.
        (("aten::sum", [[4, 8], []], ["float", "ScalarList"], ["", "[0]"]), (32, 33 * 4)),
        (("aten::cumsum", [[4, 8], []], ["float", ""], ["", "0"]), (32, 64 * 4)),
        # "False" is a text that is not empty: training.
        (
            (
                "aten::batch_norm",
                [[2, 4, 8], [4], [4], [4], [4], [], [], [], []],
                ["float"] * 5 + [""] * 4,
                ["", "", "", "", "", "False", "0.1", "1e-5", "True"],
            ),
            (6 * 4 + 5 * 64, 2 * 64 * 4 + 6 * 4 * 4),
        ),
        (
            (
                "aten::_fused_rms_norm",
                [[4, 8], [], [8], []],
                [BF16, "ScalarList", BF16, ""],
                ["", "[8]", "", "1e-5"],
            ),
            (4 * 18 + 64, 2 * 32 * 2 + 16),
        ),
        (
            (
                "triton_poi_fused__to_copy_mul_silu_2",
                [[32], [32], []],
                [BF16, BF16, "Scalar"],
                ["", "", "32"],
            ),
            (5 * 32, 3 * 32 * 2),
        ),
        # `where` and `cat` count nothing, nor do elements that a trace calls "float". Of the
        # arguments the integers are numbers of elements.
        (
            (
                "triton_red_fused_cat_sub_where_0",
                [[32, 8], [8], [], [], []],
                ["float", BF16, "Scalar", "Scalar", "Scalar"],
                ["", "", "0.5", "32", "8"],
            ),
            (32 * 8, 8 * 2),
        ),
        # What a pointwise kernel writes is as many elements as it says.
        (
            (
                "triton_poi_fused_add_0",
                [[4], [8], []],
                ["c10::Half"] * 2 + ["Scalar"],
                ["", "", "32"],
            ),
            (32, (4 + 8) * 2 + 32 * 2),
        ),
        (("CrossEntropyFunction", [[4, 1, 10], [4, 1]], [BF16, "long int"]), (200, 80 + 48)),
    ],
)
def test_work_with_their_quirks(call: tuple[Any, ...], expected: tuple[float, float]) -> None:
    assert work(*call) == expected


@pytest.mark.parametrize(
    "call",
    [
        ("aten::nothing", [[1]], ["float"]),
        ("aten::mm", [[8, 4]], ["float"]),
        ("aten::mul", [[4], [3]], ["float", "float"]),
        # Lengths differ under a causal mask.
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 8, 128, 64], [2, 8, 64, 64], [2, 8, 64, 64]],
            [BF16] * 3,
            ["", "", "", "0.", "True", "False", ""],
        ),
        ("aten::instance_norm_backward", [[1, 2, 3]], ["float"]),
        ("aten::upsample_nearest1d", [[1, 2, 3]], ["bool"], ["", "[6]"]),
        ("aten::upsample_bilinear2d", [[1, 2, 3, 4]], ["float"], ["", "[6, 8]"]),
        ("triton_poi_fused_add_0", [[4], []], ["float", "Scalar"], ["", "0.5"]),
    ],
)
def test_no_work(call: tuple[Any, ...]) -> None:
    assert work(*call) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from([*MODELS, "triton_red_fused_add_1"]), st.lists(_json, min_size=4, max_size=4)
)
def test_models_never_raise(name: str, values: list[Any]) -> None:
    texts = [json.dumps(value) for value in values]
    found = compat_work(name, *texts)
    if found is not None:
        float(found[0]), float(found[1] or 0)


@pytest.mark.parametrize("name", ["aten::logsumexp", "aten::mm", "aten::sum"])
def test_a_text_among_sizes_is_not_repeated_as_often_as_they_say(name: str) -> None:
    dims = json.dumps([[1 << 40, 1 << 20, "0"]])
    assert compat_work(name, dims, json.dumps(["float"]), None, None) is None
    assert compat_work(name, json.dumps([[8, 8]]), None, dims, None) is None


def test_odd_arguments(write_trace: WriteTrace) -> None:
    deep = "[" * 4000 + "]" * 4000
    args = [{"Input Dims": deep}, {"Input Dims": [[10**400, 2], [2, 10**400]]}, {"Input Dims": 3}]
    events = []
    for i, more in enumerate(args):
        call = host("cpu_op", "aten::mm", 100 * i, 50)
        call["args"] = {"Input type": ["float", "float"], "Input Strides": [[1], [1]]} | more
        events += [call, *launched("k", 100 * i + 5, 1000 + 100 * i, 5, i + 1)]
    path = write_trace(events)
    path.write_text(path.read_text().replace(f'"{deep}"', deep))
    sheets = tracelens_sheets(ttap.load(path).ranks[0])
    assert sheets["unified_perf_summary"]["GFLOPS"] == [None] * 3
    assert "GEMM" not in sheets


def test_nothing_of_a_trace_is_evaluated(tmp_path: Path) -> None:
    mark = tmp_path / "evaluated"
    hostile = f"open({str(mark)!r}, 'w')"
    concrete = [*CONV[:6], hostile, *CONV[7:]]
    assert work("aten::convolution", CONV_DIMS, [BF16] * 9, concrete) is None
    assert not mark.exists()


def test_transposes_are_read_off_kernel_names() -> None:
    assert transpose_of("Cijk_Alik_Bljk_BBS_BH_MT64x16x64") == (True, False)
    assert transpose_of("nvjet_hsh_128x128_64x6_1x2_h_bz_TNT") == (True, False)
    assert transpose_of("sm80_xmma_gemm_bf16") is None


# -------------------------------------------------------------------------------------- files


def test_files(write_trace: WriteTrace, tmp_path: Path) -> None:
    trace = ttap.load(write_trace(product(10, 1)))
    written = write_tracelens_csvs(trace, tmp_path / "new" / "folder")
    assert {path.stem for path in written} >= {"gpu_timeline", "ops_summary", "GEMM"}
    with (tmp_path / "new" / "folder" / "ops_summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["name"] == "aten::mm"
    assert float(rows[0]["total_direct_kernel_time_ms"]) == 0.01


def test_several_ranks_have_a_folder_each(write_trace: WriteTrace, tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        document = {
            "distributedInfo": {"rank": rank, "world_size": 2},
            "traceEvents": product(1, 1),
        }
        paths.append(write_trace(document, f"rank{rank}.json"))
    trace = ttap.load(paths)
    written = write_tracelens_csvs(trace, tmp_path / "out")
    assert {path.parent.name for path in written} == {"rank0", "rank1"}
    pytest.importorskip("openpyxl")
    first = write_tracelens_xlsx(trace, tmp_path / "report.xlsx")
    assert first.name == "report_rank0.xlsx"
    assert (tmp_path / "report_rank1.xlsx").exists()


def test_workbook(write_trace: WriteTrace, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    events = [
        *product(10, 1),
        op("=1+1", 100, 50, [[2]], ["float"]),
        *launched("bell\u0007kernel" + "x" * 40_000, 110, 3000, 5, 2),
    ]
    path = write_tracelens_xlsx(ttap.load(write_trace(events)), tmp_path / "report.xlsx")
    book = openpyxl.load_workbook(path)
    assert book["ops_summary"]["A2"].value == "aten::mm"
    assert book["ops_summary"]["A3"].value == "=1+1"
    assert book["ops_summary"]["A3"].data_type == "s"
    assert book["ops_summary"]["B2"].value == 10


def test_no_openpyxl(
    write_trace: WriteTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name == "openpyxl":
            raise ImportError(name)
        return real(name, *args)

    trace = ttap.load(write_trace(product(10, 1)))
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingDependencyError, match="openpyxl"):
        write_tracelens_xlsx(trace, tmp_path / "report.xlsx")


@pytest.mark.parametrize(
    "events",
    [
        [host("cpu_op", "aten::mm", 0, 5)],
        [host("python_function", "f", 0, 5)],
        launched("k", 0, 10, 0, 1),
        launched("k", 0, 10, 0, 1)[1:2],
        launched("ncclKernel", 0, 10, 3, 1),
    ],
    ids=["cpu only", "frames only", "empty kernel", "orphan", "collective only"],
)
@pytest.mark.parametrize("detect_recompute", [False, True])
def test_thin_traces(
    write_trace: WriteTrace, tmp_path: Path, events: list[Event], detect_recompute: bool
) -> None:
    trace = ttap.load(write_trace(events))
    written = write_tracelens_csvs(trace, tmp_path, detect_recompute=detect_recompute)
    assert tmp_path / "gpu_timeline.csv" in written


def test_a_trace_without_operators(write_trace: WriteTrace) -> None:
    sheets = sheets_of(write_trace, launched("k", 0, 10, 3, 1, call_name="hipGraphLaunch"))
    assert list(sheets) == [
        "gpu_timeline",
        "kernel_summary",
        "short_kernel_histogram",
        "short_kernels_summary",
    ]
    assert sheets["kernel_summary"]["Parent op category"] == ["graph"]
    assert "Parent cpu_op" not in sheets["kernel_summary"]
    assert next(iter(sheets["short_kernels_summary"])) == "Kernel name"
    assert sum(sheets["short_kernel_histogram"]["count"]) == 1


# ---------------------------------------------------------------------------------- comparison


def test_comparison(write_trace: WriteTrace, tmp_path: Path) -> None:
    before = [*product(10, 1), op("aten::old", 100, 9, [[1]], ["float"])]
    before += launched("old", 102, 2000, 5, 2)
    parts = [
        ttap.load(write_trace(events, name)).ranks[0]
        for events, name in ((before, "a.json"), (product(10, 1, dur=15), "b.json"))
    ]
    written = write_tracelens_comparison(parts, ("a", "b"), tmp_path / "out")
    assert tmp_path / "out" / "GEMM_intersect_b.csv" in written
    sheets = compare_sheets([tracelens_sheets(part) for part in parts], ("a", "b"))
    both = row(sheets["ops_unique_args_intersect_b"])
    assert both["total_direct_kernel_time_sum__b_diff"] == 5
    assert both["total_direct_kernel_time_sum__b_pct"] == 50
    assert sheets["ops_unique_args_only_baseline_b"]["name"] == ["aten::old"]
    assert sheets["ops_unique_args_only_variant_b"] == {}
    assert sheets["ops_summary"]["b::Count"] == [1, None]


def test_comparison_needs_names(write_trace: WriteTrace) -> None:
    sheets = sheets_of(write_trace, product(10, 1))
    with pytest.raises(OptionError, match="name of its own"):
        compare_sheets([sheets, sheets], ("a", "a"))
