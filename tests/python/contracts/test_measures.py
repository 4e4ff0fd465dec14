"""What is counted and timed in a trace, against counts made from the file's own text."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from gpu_traces import GpuTrace
from rank_samples import late_rank
from report_samples import TraceMaker, slow_loader

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.contracts.measures import MEASURES, counts, measure
from torchtraceap.contracts.measures.graph_breaks import graph_breaks
from torchtraceap.contracts.measures.vocabulary import COLLECTIVES, base_of, is_per_step
from torchtraceap.errors import OptionError

CORPUS = Path(
    os.environ.get("TORCHTRACEAP_CORPUS", Path(__file__).parents[4] / "shared" / "traces")
)
SYNCHRONISES = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
                "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"}  # fmt: skip
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
            "cudaGraphLaunch", "hipLaunchKernel", "hipExtLaunchKernel", "hipExtModuleLaunchKernel",
            "hipModuleLaunchKernel", "hipGraphLaunch"}  # fmt: skip
Event = dict[str, Any]
OLD_CATEGORIES = {"Operator": "cpu_op", "Runtime": "cuda_runtime", "Kernel": "kernel",
                  "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}  # fmt: skip


def steps_trace() -> TraceMaker:
    """Three steps with 2, 3 and 2 launches, a copy of 1000 bytes with its wait in each, and a copy
    of 5000 in the last; work before them, and the profiler's wait behind."""
    maker = TraceMaker()
    maker.host("cpu_op", "aten::ones", 10, 20)
    maker.gpu("kernel", "fill", 40, 5, launch=15, call_length=5)
    for step, launches in enumerate((2, 3, 2)):
        at = 1000 + 1000 * step
        maker.host("user_annotation", f"ProfilerStep#{step + 5}", at, 1000)
        maker.host("cpu_op", "aten::linear", at + 10, 300)
        maker.host("cpu_op", "aten::addmm", at + 15, 280)
        for i in range(launches):
            maker.gpu("kernel", "gemm", at + 100 + 60 * i, 50, launch=at + 20 + 20 * i)
        maker.host("cpu_op", "aten::to", at + 400, 100)
        copied = 1000 if step < 2 else 5000
        maker.gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 420, 30, launch=at + 405,
                  call="cudaMemcpyAsync", bytes=copied)  # fmt: skip
        maker.host("cuda_runtime", "cudaStreamSynchronize", at + 460, 20)
        maker.gpu("gpu_memset", "Memset (Device)", at + 540, 5, launch=at + 520,
                  call="cudaMemsetAsync", bytes=64)  # fmt: skip
    maker.host("cuda_runtime", "cudaMalloc", 2600, 10)
    maker.host("cuda_runtime", "cudaDeviceSynchronize", 4100, 10)
    return maker


def loaded(maker: TraceMaker, folder: Path) -> ttap.Trace:
    return ttap.load(maker.write(folder / "trace.json"))


def in_steps(events: list[Event]) -> list[Event]:
    """Complete events that begin between the first begin and the last end of a step, GPU events by
    their call."""
    exact = [
        dict(e, ts=Decimal(str(e["ts"])), dur=Decimal(str(e["dur"])),
             cat=OLD_CATEGORIES.get(e["cat"], e["cat"]))
        for e in events if e.get("ph") == "X" and "cat" in e
    ]  # fmt: skip
    steps = [e for e in exact if str(e["name"]).startswith("ProfilerStep")]
    steps = [e for e in steps if e.get("cat") in ("user_annotation", "cpu_op")]
    if not steps:
        return exact
    begin, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    calls = {
        e["args"]["correlation"]: e["ts"] for e in exact
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }  # fmt: skip

    def starts(event: Event) -> Any:
        of_gpu = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        correlation = event.get("args", {}).get("correlation")
        return calls.get(correlation, event["ts"]) if of_gpu else event["ts"]

    return [e for e in exact if begin <= starts(e) < end]


def counted_in(events: list[Event]) -> dict[str, int]:
    """The same counts from the events as they are written."""
    inside = in_steps(events)
    calls = [e for e in inside if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    copies = [e for e in inside if e.get("cat") == "gpu_memcpy"]

    def copied(direction: str) -> int:
        return sum(e["args"].get("bytes", 0) for e in copies if f"Memcpy {direction}" in e["name"])

    return {
        "launches": sum(e["name"] in LAUNCHES for e in calls),
        "syncs": sum(e["name"] in SYNCHRONISES for e in calls),
        "h2d_bytes": copied("HtoD"),
        "d2h_bytes": copied("DtoH"),
        "copied_bytes": sum(e["args"].get("bytes", 0) for e in copies),
        "operators": sum(e.get("cat") == "cpu_op" for e in inside),
    }


# ----------------------------------------------------------------------------- vocabulary


def test_every_count_has_one_of_a_step() -> None:
    for key, each in MEASURES.items():
        assert each.key == key and each.what and each.kind
        if each.is_exact and not is_per_step(key):
            assert MEASURES[f"{key}_per_step"].kind == each.kind
            assert base_of(f"{key}_per_step") == key
    assert base_of("gpu_time_per_step") == "gpu_time_per_step"


def test_kinds_of_collectives_are_those_of_the_core() -> None:
    assert {*COLLECTIVES} == {*_core.collective_kind_names()} - {"all_to_all_v"}


def test_unknown_key_names_the_one_that_is_like_it(tmp_path: Path) -> None:
    trace = loaded(steps_trace(), tmp_path)
    with pytest.raises(OptionError, match="did you mean launches_per_step"):
        measure(trace, "launch_per_step")


# ---------------------------------------------------------------------------------- counts


def test_counts_are_those_of_the_file(tmp_path: Path) -> None:
    maker = steps_trace()
    trace = loaded(maker, tmp_path)
    own = {key: measure(trace, key).value for key in counted_in(maker.events)}
    assert own == counted_in(maker.events)
    assert own == {
        "launches": 7,
        "syncs": 3,
        "h2d_bytes": 7000,
        "d2h_bytes": 0,
        "copied_bytes": 7000,
        "operators": 9,
    }
    assert measure(trace, "allocator_calls").value == 1


def test_counts_of_a_step_are_those_of_the_worst(tmp_path: Path) -> None:
    trace = loaded(steps_trace(), tmp_path)
    launches = measure(trace, "launches_per_step")
    assert (launches.value, launches.by_step) == (3, (2, 3, 2))
    assert measure(trace, "h2d_bytes_per_step").by_step == (1000, 1000, 5000)
    assert measure(trace, "syncs_per_step").value == 1


def test_events_come_in_order_of_time(tmp_path: Path) -> None:
    trace = loaded(steps_trace(), tmp_path)
    table = trace.ranks[0].table
    rows = [row for _, row in measure(trace, "launches").events()]
    assert [table.name_of(row) for row in rows] == ["cudaLaunchKernel"] * 7
    assert rows == sorted(rows)
    copies = [row for _, row in measure(trace, "h2d_bytes").events()]
    assert {table.name_of(row) for row in copies} == {"Memcpy HtoD (Pageable -> Device)"}


def test_counts_of_a_step_need_steps(tmp_path: Path) -> None:
    maker = steps_trace()
    maker.events = [e for e in maker.events if "ProfilerStep" not in e["name"]]
    trace = loaded(maker, tmp_path)
    assert measure(trace, "launches").value == 8  # the whole trace
    measured = measure(trace, "launches_per_step")
    assert not measured.known and "profiler.step()" in measured.reason
    assert measure(trace, "launches_per_step", one_step=True).value == 8


def test_graph_is_one_launch(tmp_path: Path) -> None:
    trace = GpuTrace().op("aten::add", 0, 100)
    trace.launch("a", (0, 5), (20, 30), call="cudaGraphLaunch")
    trace.gpu("b", 60, 5, correlation=101)
    trace.call("cudaGetLastError", 70, 1)
    assert measure(trace.load(tmp_path), "launches").value == 1


# ----------------------------------------------------------------------------------- waits


def waits_of(trace: GpuTrace, folder: Path) -> int:
    value: int = measure(trace.load(folder), "syncs").value
    return value


def test_profilers_own_wait_is_none(tmp_path: Path) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 30))
    trace.call("cudaDeviceSynchronize", 100, 5)
    assert waits_of(trace, tmp_path) == 0
    trace.call("cudaDeviceSynchronize", 90, 5)  # the program waits at its end too
    assert waits_of(trace, tmp_path) == 1
    trace.launch("b", (200, 5), (210, 5))  # then neither is the profiler's
    assert waits_of(trace, tmp_path) == 2


def test_wait_inside_a_marked_step_counts(tmp_path: Path) -> None:
    trace = GpuTrace().host("user_annotation", "ProfilerStep#1", 0, 200)
    trace.launch("a", (0, 5), (20, 30)).call("cudaDeviceSynchronize", 100, 5)
    trace.call("cudaDeviceSynchronize", 300, 5)
    assert waits_of(trace, tmp_path) == 1


@pytest.mark.parametrize(
    ("name", "call", "followed", "waits"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", True, 1),
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", False, 1),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", False, 0),
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", False, 0),
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpy", False, 1),
        ("CopyHostToDevice", "hipMemcpyWithStream", False, 1),
    ],
)
def test_copies_that_block_count_once(
    tmp_path: Path, name: str, call: str, followed: bool, waits: int
) -> None:
    trace = GpuTrace().op("aten::copy_", 0, 60)
    trace.launch(name, (5, 5), (20, 10), call=call, cat="gpu_memcpy", bytes=4)
    if followed:
        trace.call("cudaStreamIsCapturing", 12, 1).call("cudaStreamSynchronize", 15, 20)
    assert waits_of(trace, tmp_path) == waits
    note = measure(trace.load(tmp_path), "syncs").note
    assert bool(note) == (waits == 1 and not followed)


def reading(*, parent: str | None = None, seeds: bool = False) -> TraceMaker:
    """A run on the host: `.item()`, a mask by `nonzero`, a comparison."""
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    if parent:
        maker.host("user_annotation", parent, 0, 900)
    if seeds:
        maker.host("cpu_op", "aten::random_", 1, 3)
        maker.host("cpu_op", "aten::item", 5, 4)
    maker.host("cpu_op", "aten::item", 10, 10)
    maker.host("cpu_op", "aten::_local_scalar_dense", 12, 5)
    maker.host("cpu_op", "aten::index", 30, 40)
    maker.host("cpu_op", "aten::nonzero", 32, 20)
    maker.host("cpu_op", "aten::is_nonzero", 80, 20)
    maker.host("cpu_op", "aten::item", 82, 10)
    maker.host("cpu_op", "aten::_local_scalar_dense", 83, 5)
    maker.host("cpu_op", "aten::add", 200, 20)
    return maker


def test_without_a_gpu_operators_tell_what_would_wait(tmp_path: Path) -> None:
    trace = loaded(reading(), tmp_path)
    measured = measure(trace, "syncs")
    table = trace.ranks[0].table
    names = [table.name_of(row) for _, row in measured.events()]
    assert names == ["aten::item", "aten::nonzero", "aten::is_nonzero"]
    assert "would wait" in measured.note


@pytest.mark.parametrize(
    ("parent", "waits"),
    [
        ("Optimizer.step#AdamW.step", 0),
        ("Optimizer.step#LBFGS.step", 3),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0),
        ("my_range", 3),
    ],
)
def test_what_is_on_the_host_anyway_does_not_wait(tmp_path: Path, parent: str, waits: int) -> None:
    assert measure(loaded(reading(parent=parent), tmp_path), "syncs").value == waits


def test_seeds_are_on_the_host(tmp_path: Path) -> None:
    assert measure(loaded(reading(seeds=True), tmp_path), "syncs").value == 3


def test_closure_in_an_optimizers_step_is_no_counter(tmp_path: Path) -> None:
    maker = reading(parent="Optimizer.step#Adam.step")
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    maker.host("cpu_op", name, 60, 10)
    # The item and the mask lie before the backward pass, the comparison behind it.
    assert measure(loaded(maker, tmp_path), "syncs").value == 2


def test_without_a_gpu_nothing_else_is_a_silent_zero(tmp_path: Path) -> None:
    trace = loaded(reading(), tmp_path)
    for key in ("h2d_bytes", "allocator_calls", "gpu_idle", "gpu_busy", "exposed_memcpy",
                "gpu_time_per_step", "launches", "peak_allocated_bytes"):  # fmt: skip
        measured = measure(trace, key)
        assert not measured.known and measured.value is None and measured.reason, key
    assert measure(trace, "operators").value == 8
    assert measure(trace, "collectives").value == {}


# ---------------------------------------------------------------------------- collectives


def test_collectives_are_counted_by_kind(tmp_path: Path) -> None:
    trace = GpuTrace().op("nccl:all_reduce", 0, 50)
    trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", (5, 5), (20, 30))
    trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", (60, 5), (70, 30))
    trace.launch("ncclDevKernel_AllGather_RING_LL(x)", (105, 5), (120, 30))
    assert measure(trace.load(tmp_path), "collectives").value == {"all_reduce": 2, "all_gather": 1}


def test_ranges_of_gloo_are_collectives(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.host("cpu_op", "c10d::allreduce_", 0, 50)
    maker.host("cpu_op", "record_param_comms", 5, 5)
    maker.host("user_annotation", "gloo:all_reduce", 20, 20)
    assert measure(loaded(maker, tmp_path), "collectives").value == {"all_reduce": 1}


def test_calls_tell_where_no_kernel_is_recorded(tmp_path: Path) -> None:
    maker = TraceMaker()
    for at, name in ((0, "c10d::allreduce_"), (100, "c10d::_allgather_base_")):
        maker.host("cpu_op", name, at, 50)
        kind = {"Collective name": name.removeprefix("c10d::").rstrip("_")}
        maker.host("cpu_op", "record_param_comms", at + 5, 5, **kind)
    maker.host("cpu_op", "record_param_comms", 200, 5, **{"Collective name": "wait"})
    measured = measure(loaded(maker, tmp_path), "collectives")
    assert measured.value == {"all_reduce": 1, "all_gather": 1}
    assert "host" in measured.note
    maker.events = [e for e in maker.events if e["name"] != "record_param_comms"]
    assert measure(loaded(maker, tmp_path), "collectives").value == measured.value


def test_a_value_is_that_of_the_worst_rank(tmp_path: Path) -> None:
    for rank in range(2):
        maker = TraceMaker(rank=rank, world_size=2)
        for i in range(3 + rank):
            maker.gpu("kernel", "gemm", 100 * i + 20, 50, launch=100 * i)
        maker.write(tmp_path / f"rank{rank}.json")
    measured = measure(ttap.load(tmp_path), "launches")
    assert (measured.value, measured.rank) == (4, 1)
    assert [rank for rank, _ in measured.events()] == [1] * 4


# ------------------------------------------------------------------------------- compiling


def compiled(*, breaks: int) -> TraceMaker:
    """A compiled call with regions inside it, one for each graph break."""
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    maker.host("user_annotation", "Torch-Compiled Region: 0/0", 0, 1000)
    for i in range(breaks):
        maker.host("user_annotation", f"Torch-Compiled Region: {i + 1}/0", 100 * (i + 1), 50)
    maker.host("cpu_op", "aten::add", 20, 10)
    maker.host("user_annotation", "Torch-Compiled Region: 9/0", 1100, 100)
    return maker


@pytest.mark.parametrize("breaks", [0, 1, 3])
def test_graph_breaks_need_no_gpu(tmp_path: Path, breaks: int) -> None:
    measured = measure(loaded(compiled(breaks=breaks), tmp_path), "graph_breaks")
    assert measured.value == len(measured.events()) == breaks


def test_region_inside_an_operator_is_no_break(tmp_path: Path) -> None:
    maker = compiled(breaks=0)
    maker.host("cpu_op", "CompiledFunction", 200, 200)
    maker.host("user_annotation", "Torch-Compiled Region: 5/0", 210, 50)
    assert measure(loaded(maker, tmp_path), "graph_breaks").value == 0


NESTED = (
    ("user_annotation", "Torch-Compiled Region: 0/0"),
    ("user_annotation", "Torch-Compiled Region: 1/0"),
    ("cpu_op", "Torch-Compiled Region: 2/0"),
    ("cpu_op", "CompiledFunction"),
    ("cpu_op", "## Call CompiledFxGraph x ##"),
    ("cpu_op", "aten::add"),
    ("cpu_op", "TorchDynamo Cache Lookup"),
    ("python_function", "torch/_dynamo/eval_frame.py(500): compile_wrapper"),
    ("python_function", "train.py(3): torch_dynamo_resume_in_forward_at_12"),
    ("python_function", "train.py(9): step"),
    ("user_annotation", "ProfilerStep#7"),
)


def nested(seed: int) -> list[Event]:
    """Ranges inside and behind each other, on two threads."""
    choice = random.Random(seed)
    most = choice.randint(2, 14)
    events: list[Event] = []

    def fill(thread: int, begin: int, end: int, depth: int) -> None:
        while begin + 4 <= end and len(events) < most and (not depth or choice.random() < 0.6):
            length = choice.randint(2, end - begin)
            category, name = choice.choice(NESTED)
            event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread}
            events.append(event | {"ts": begin, "dur": length, "args": {}})
            if depth < 5:
                fill(thread, begin + 1, begin + length - 1, depth + 1)
            begin += length + 1

    for thread in (1, 2):
        fill(thread, 0, 200, 0)
    return events


def test_graph_breaks_are_those_of_the_rule(write_trace: Callable[..., Path]) -> None:
    compared = with_breaks = 0
    for seed in range(300):
        part = ttap.load(write_trace(nested(seed))).ranks[0]
        # Nothing is material then, so that the rule says what it found, with or without a GPU.
        rules = _core.detect(part.table, part.tree, material_share=1.0)
        (rule,) = [found for found in rules if found.type == "graph_break"]
        is_operator = part.table.kind == _core.EventKind.CPU_OP
        if rule.verdict != "unknown" and is_operator.any():
            breaks = rule.facts.get("graph breaks", ("count", 0))[1]
            assert len(graph_breaks(part).rows) == breaks, seed
            compared, with_breaks = compared + 1, with_breaks + bool(breaks)
    assert compared > 200 and with_breaks > 50


def test_recompilations_are_the_core_s(tmp_path: Path) -> None:
    maker = compiled(breaks=0)
    maker.host("user_annotation", "_compile.compile_inner (dynamo_timed)", 1300, 100)
    maker.host("user_annotation", "Torch-Compiled Region: 0/1", 1500, 100)
    trace = loaded(maker, tmp_path)
    part = trace.ranks[0]
    rows = _core.recompiled_rows(part.table, part.tree)
    assert measure(trace, "recompiles").value == len(rows) == 1


# ---------------------------------------------------------------------- memory, time, shares


def test_peak_is_the_highest_level(tmp_path: Path) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 30))
    for at, change, total in ((10, 100, 100), (20, 300, 400), (30, -300, 100)):
        device = {"Device Type": 1, "Device Id": 0, "Total Allocated": total}
        trace.memory(at, change, **device)
    trace.memory(25, 9000, **{"Device Type": 0, "Device Id": -1, "Total Allocated": 9000})
    measured = measure(trace.load(tmp_path), "peak_allocated_bytes")
    assert (measured.value, len(measured.events())) == (400, 3)
    trace.host("user_annotation", "ProfilerStep#5", 0, 15)
    trace.host("user_annotation", "ProfilerStep#6", 15, 8)
    trace.host("user_annotation", "ProfilerStep#7", 23, 20)
    stepped = trace.load(tmp_path)
    assert measure(stepped, "peak_allocated_bytes_per_step").by_step == (100, 400, 100)


def test_sums_of_sizes_stop_at_64_bits(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(8200):  # of the largest size that is believed
        trace.launch("Memcpy HtoD (Pinned -> Device)", (10 * i, 1), (10 * i + 2, 1),
                     call="cudaMemcpyAsync", cat="gpu_memcpy", bytes=2**50 - 1)  # fmt: skip
    assert measure(trace.load(tmp_path), "h2d_bytes").value == 2**63 - 1


def test_shares_are_those_of_the_timeline(tmp_path: Path) -> None:
    trace = loaded(slow_loader(), tmp_path)
    timeline = trace.ranks[0].profiled_timeline()
    assert measure(trace, "gpu_idle").value == timeline.share(timeline.idle_ns)
    busy = measure(trace, "gpu_busy").value
    assert busy == pytest.approx(1 - measure(trace, "gpu_idle").value)
    ((_, row),) = measure(trace, "gpu_idle").events()
    assert "DataLoader" in trace.ranks[0].table.name_of(row) or "stack" in (
        trace.ranks[0].table.name_of(row)
    )


def test_step_time_is_the_median_of_iterations(tmp_path: Path) -> None:
    trace = loaded(slow_loader(), tmp_path)
    measured = measure(trace, "step_time")
    assert measured.value == sorted(measured.by_step)[len(measured.by_step) // 2]
    assert measured.value == pytest.approx(100e6, rel=0.05)
    assert 50e6 < measure(trace, "gpu_time_per_step").value < 55e6


def test_findings_are_those_of_the_diagnosis(tmp_path: Path) -> None:
    trace = loaded(slow_loader(), tmp_path)
    present = sorted(finding.type for finding in trace.diagnose().findings)
    assert measure(trace, "findings").value == present != []


# -------------------------------------------------------------------------------- all of it


def test_counts_are_flat_and_of_what_is_known(tmp_path: Path) -> None:
    found = counts(loaded(steps_trace(), tmp_path))
    assert found["launches"] == 7 and found["h2d_bytes"] == 7000
    assert "peak_allocated_bytes" not in found  # no memory events
    of_step = counts(loaded(steps_trace(), tmp_path), per_step=True)
    assert of_step["launches"] == 3
    assert all(isinstance(value, int) for value in {**found, **of_step}.values())
    assert "launches" not in counts(loaded(reading(), tmp_path))


def test_counts_of_ranks_have_kinds_of_collectives(tmp_path: Path) -> None:
    found = counts(late_rank(2, 2).load(tmp_path))
    assert any(key.startswith("collectives.") for key in found)


def test_every_measure_answers_on_an_empty_trace(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.host("user_annotation", "nothing", 0, 10)
    trace = loaded(maker, tmp_path)
    for key in MEASURES:
        measured = measure(trace, key, one_step=True)
        assert measured.known == (measured.value is not None), key
        assert measured.known or measured.reason, key
        json.dumps(measured.to_dict(), allow_nan=False)


REAL = (
    "hta/nccl_a100_rank_of_2.json.gz",
    "hta/mi250_minitoy_training.json.gz",
    "param/dlrm_8ranks/rank0.json",
    "pytorch_benchmark/copies_pageable.json",
    "luatil/compiled_training_cudagraph.json.gz",
)


@pytest.mark.parametrize("name", REAL)
def test_counts_of_real_traces_are_those_of_their_files(name: str) -> None:
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"no real traces at {CORPUS}")
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    trace = ttap.load(path)
    expected = Counter(counted_in(json.loads(text)["traceEvents"]))
    is_amd = "mi250" in name
    if is_amd:  # a copy of HIP's blocks, and its call says the size
        expected["syncs"] += 2
    keys = ["launches", "syncs", "operators"]
    keys += [] if is_amd else ["h2d_bytes", "d2h_bytes", "copied_bytes"]
    assert {key: measure(trace, key).value for key in keys} == {key: expected[key] for key in keys}


def test_a_cpu_run_tells_what_a_gpu_would_be_given(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    inputs = torch.randn(32, 8)
    plan = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as recorded:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            recorded.step()
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    trace = ttap.load(path)
    launches = measure(trace, "launches_per_step")
    assert launches.known and "A100" in launches.note
    assert 10 < launches.value < 60
    assert measure(trace, "launches").value == 3 * launches.value
    # The optimiser's own `.item()` of its counters is none.
    assert set(measure(trace, "syncs_per_step").by_step) == {1}
