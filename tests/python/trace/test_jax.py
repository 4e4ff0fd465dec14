"""Traces of JAX: kinds from the names of processes and threads, HLO operations as operators.

`samples/jax_cpu.trace.json.gz` was recorded by jax.profiler of jaxlib 0.10.2 on a CPU; the GPU
trace is made here after what cupti_collector.cc and the trace viewer of openxla/xla write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torchtraceap
from torchtraceap import _core

Json = dict[str, Any]
CPU_SAMPLE = Path(__file__).parents[1] / "samples" / "jax_cpu.trace.json.gz"
HOST, DEVICE = 701, 1
STREAM, COPIES, OPS, MODULES, STEPS, SCOPES = 13, 14, 20, 21, 22, 23


def name_process(pid: int, name: str) -> Json:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def name_thread(pid: int, tid: int, name: str) -> Json:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def slice_(pid: int, tid: int, name: str, ts: float, dur: float, **args: str) -> Json:
    event: Json = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur}
    return event | {"args": args} if args else event


def launch(at: float, correlation: int, name: str = "cuLaunchKernel") -> Json:
    args = {"correlation_id": str(correlation), "device_id": "0", "context_id": "$$1"}
    return slice_(HOST, 7, name, at, 2, **args)


def kernel(at: float, dur: float, correlation: int, hlo_op: str, name: str) -> Json:
    details = "regs:32 static_shared:0 dynamic_shared:0 grid:4,1,1 block:128,1,1 occ_pct:100"
    return slice_(
        DEVICE,
        STREAM,
        name,
        at,
        dur,
        correlation_id=str(correlation),
        kernel_details=details,
        hlo_op=hlo_op,
        hlo_module="jit_step",
        tf_op=f"jit(step)/model/{hlo_op}",
    )


def copy(at: float, dur: float, correlation: int, name: str = "MemcpyH2D") -> Json:
    details = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
    return slice_(
        DEVICE, COPIES, name, at, dur, correlation_id=str(correlation), memcpy_details=details
    )


@pytest.fixture
def gpu_trace(write_trace: Any) -> Any:
    """Two steps: a copy, a GEMM of two kernels, a fusion; the same again on derived lines."""
    events: list[Json] = [
        name_process(HOST, "/host:CPU"),
        name_thread(HOST, 7, "python"),
        name_process(DEVICE, "/device:GPU:0"),
        name_thread(DEVICE, STREAM, "Stream #13(Compute)"),
        name_thread(DEVICE, COPIES, "Stream #14(MemcpyH2D)"),
        name_thread(DEVICE, OPS, "XLA Ops"),
        name_thread(DEVICE, MODULES, "XLA Modules"),
        name_thread(DEVICE, STEPS, "Steps"),
        name_thread(DEVICE, SCOPES, "Framework Name Scope"),
    ]
    for step in range(2):
        at, first = 1000.0 * step, 10 * step
        events += [
            slice_(HOST, 7, "train", at, 200, step_num=str(step)),
            slice_(HOST, 7, "$train.py:12 main", at + 1, 190),
            slice_(HOST, 7, "PjitFunction(step)", at + 2, 60),
            launch(at + 3, first + 1, "cuMemcpyHtoDAsync_v2"),
            launch(at + 10, first + 2),
            launch(at + 20, first + 3),
            launch(at + 30, first + 4),
            copy(at + 6, 4, first + 1),
            kernel(at + 40, 20, first + 2, "dot.3", "void cutlass::Kernel<gemm>"),
            kernel(at + 60, 5, first + 3, "dot.3", "splitKreduce_kernel"),
            kernel(at + 70, 10, first + 4, "loop_add_fusion.1", "loop_add_fusion_1"),
            slice_(DEVICE, OPS, "dot.3", at + 40, 25, hlo_op="dot.3", hlo_module="jit_step"),
            slice_(DEVICE, OPS, "loop_add_fusion.1", at + 70, 10, hlo_op="loop_add_fusion.1"),
            slice_(DEVICE, MODULES, "jit_step(123)", at + 40, 40, hlo_module="jit_step"),
            slice_(DEVICE, STEPS, str(step), at, 200),
            slice_(DEVICE, SCOPES, "model", at + 40, 40),
        ]
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    return torchtraceap.load(write_trace(document | {"traceEvents": [*events, {}]}))


def kinds_of(trace: Any) -> dict[str, str]:
    part = trace.ranks[0]
    names = _core.kind_names()
    return {part.table.name_of(row): names[part.table.kind[row]] for row in range(len(part.table))}


def test_kinds_follow_from_processes_and_threads(gpu_trace: Any) -> None:
    kinds = kinds_of(gpu_trace)
    assert kinds["void cutlass::Kernel<gemm>"] == kinds["loop_add_fusion_1"] == "kernel"
    assert kinds["MemcpyH2D"] == "gpu_memcpy"
    assert kinds["cuLaunchKernel"] == kinds["cuMemcpyHtoDAsync_v2"] == "driver"
    assert kinds["$train.py:12 main"] == "python_function"
    assert kinds["train"] == kinds["PjitFunction(step)"] == "user_annotation"
    assert kinds["dot.3"] == kinds["jit_step(123)"] == kinds["model"] == "gpu_user_annotation"


def test_derived_lines_are_not_counted(gpu_trace: Any) -> None:
    timeline = gpu_trace.timeline()
    assert timeline.busy_ns == 2 * (4 + 20 + 5 + 10) * 1000
    assert (timeline.compute_ns, timeline.exposed_memcpy_ns) == (70_000, 8_000)
    streams = [(s.device, s.stream, s.count) for s in gpu_trace.ranks[0].tree.streams]
    assert streams == [(0, 13, 6), (0, 14, 2)]


def test_kernels_find_their_launch_by_correlation_id(gpu_trace: Any) -> None:
    part = gpu_trace.ranks[0]
    assert len(part.tree.linked_gpu_rows) == len(part.tree.gpu_rows) == 8
    delays = part.tree.launch_delays_ns()
    assert sorted(delays.tolist()) == sorted([3000, 30_000, 40_000, 40_000] * 2)


def test_steps_are_those_of_step_trace_annotation(gpu_trace: Any) -> None:
    steps = gpu_trace.ranks[0].tree.steps
    assert [(s.name, s.end_ns - s.start_ns) for s in steps] == [
        ("train#0", 200_000),
        ("train#1", 200_000),
    ]


def test_hlo_operations_are_operators(gpu_trace: Any) -> None:
    rows = {row["name"]: row for row in gpu_trace.ops().records()}
    assert rows["dot.3"]["exclusive_gpu_ns"] == 50_000
    assert (rows["dot.3"]["kind"], rows["dot.3"]["gpu_events"]) == ("hlo operation", 4)
    assert rows["loop_add_fusion.1"]["exclusive_gpu_ns"] == 20_000
    assert rows["cuMemcpyHtoDAsync_v2"]["exclusive_gpu_ns"] == 8000
    assert sum(row["exclusive_gpu_ns"] for row in rows.values()) == gpu_trace.timeline().busy_ns


def test_programs_are_modules(gpu_trace: Any) -> None:
    table = gpu_trace.modules()
    assert any("jit_step" in text for text in table["outline"])


def test_kernels_of_streams_are_listed(gpu_trace: Any) -> None:
    names = set(gpu_trace.kernels()["name"])
    assert names >= {"void cutlass::Kernel<gemm>", "splitKreduce_kernel", "loop_add_fusion_1"}
    assert "jit_step(123)" not in names and "dot.3" not in names


def test_operations_are_the_work_of_devices_without_streams(write_trace: Any) -> None:
    events = [
        name_process(3, "/device:TPU:1"),
        name_thread(3, 1, "XLA Modules"),
        name_thread(3, 2, "XLA Ops"),
        name_thread(3, 3, "Async XLA Ops"),
        name_thread(3, 4, "Framework Ops"),
        slice_(3, 1, "jit_step(1)", 0, 100),
        slice_(3, 2, "fusion.1", 0, 30, hlo_op="fusion.1"),
        slice_(3, 2, "convolution.2", 50, 20, hlo_op="convolution.2"),
        slice_(3, 3, "copy-start.4", 10, 30),
        slice_(3, 4, "jit(step)/dot", 0, 30),
    ]
    trace = torchtraceap.load(write_trace(events))
    timeline = trace.timeline()
    assert (timeline.compute_ns, timeline.exposed_memcpy_ns) == (50_000, 10_000)
    assert timeline.busy_ns == 60_000
    assert {s.device for s in trace.ranks[0].tree.streams} == {1}
    rows = {row["name"]: row["exclusive_gpu_ns"] for row in trace.ops().records()}
    assert rows["fusion.1"] == 30_000


def test_a_category_is_believed(write_trace: Any) -> None:
    events = [name_process(1, "/device:GPU:0"), name_thread(1, 5, "Stream #5(Compute)")]
    events.append(slice_(1, 5, "k", 0, 1) | {"cat": "cpu_op"})
    assert kinds_of(torchtraceap.load(write_trace(events)))["k"] == "cpu_op"


@pytest.mark.parametrize(
    ("process", "thread", "device", "stream"),
    [
        ("/device:GPU:3", "Stream #7", 3, 7),
        ("host-1 /device:GPU:2", "Stream #7(Compute,MemcpyD2D)", 2, 7),
        ("/device:GPU", "Stream #x", -1, _core.NO_ID),
        ("/device:GPU:99999999999999999999", "Stream #99999999999999999999", -1, _core.NO_ID),
        ("/device:CUSTOM:abc", "Stream #-4", -1, _core.NO_ID),
    ],
)
def test_numbers_of_devices_and_streams(
    process: str, thread: str, device: int, stream: int, write_trace: Any
) -> None:
    events = [name_process(1, process), name_thread(1, 5, thread), slice_(1, 5, "k", 0, 1)]
    table = torchtraceap.load(write_trace(events)).ranks[0].table
    row = [table.name_of(r) for r in range(len(table))].index("k")
    assert (table.device[row], table.stream[row]) == (device, stream)
    assert _core.kind_names()[table.kind[row]] == "kernel"


def test_a_converted_trace_loads_to_the_same(gpu_trace: Any, tmp_path: Path) -> None:
    path = tmp_path / "again.json"
    _core.write_trace(gpu_trace.ranks[0].table, str(path))
    again = torchtraceap.load(path)
    assert kinds_of(again) == kinds_of(gpu_trace)
    assert again.timeline() == gpu_trace.timeline()


# -- recorded on a CPU -----------------------------------------------------------------------------


def test_a_recording_on_the_cpu() -> None:
    trace = torchtraceap.load(CPU_SAMPLE)
    assert [step.name for step in trace.ranks[0].tree.steps] == [f"train#{i}" for i in range(4)]
    assert trace.timeline().busy_ns == 0
    ops = {row["name"]: row["count"] for row in trace.ops().records()}
    assert ops["wrapped_tanh"] == 4
    kinds = kinds_of(trace)
    assert kinds["load"] == kinds["PjitFunction(step)"] == "user_annotation"
    assert trace.diagnose().to_dict()["verdicts"]
