"""The same run as the profilers of other accelerators write it: busy time, launches, findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap

Event = dict[str, Any]
STEPS, KERNELS = 3, 8
KERNEL_US, EVERY_US, STEP_US = 300, 1_000, 10_000
HOST = {"ph": "X", "pid": 100, "tid": 100}
"""One thread launches a kernel of 300 us every 1 ms; the device waits for it."""


def host_events(step: int) -> list[Event]:
    at = 1_000_000 + step * STEP_US
    events = [
        HOST
        | {"cat": "user_annotation", "name": f"ProfilerStep#{step + 3}", "ts": at, "dur": STEP_US}
    ]
    for kernel in range(KERNELS):
        ts = at + kernel * EVERY_US
        events.append(HOST | {"cat": "cpu_op", "name": "aten::mm", "ts": ts, "dur": 900})
    return events


def kineto(runtime: str, call: str, work: str, *, linked: bool = True) -> list[Event]:
    """As Kineto writes it: a category for calls and one for work."""
    events: list[Event] = []
    for step in range(STEPS):
        events += host_events(step)
        for kernel in range(KERNELS):
            at = 1_000_000 + step * STEP_US + kernel * EVERY_US
            link = {"correlation": step * KERNELS + kernel + 1} if linked else {}
            launch = {"cat": runtime, "name": call, "ts": at + 880, "dur": 10, "args": link}
            where = {"device": 0, **({"stream": 5} if linked else {}), **link}
            gpu = {"ph": "X", "cat": work, "name": "gemm", "pid": 0, "tid": 5}
            events += [
                HOST | launch,
                gpu | {"ts": at + 900, "dur": KERNEL_US, "args": where},
            ]
    return events


def ascend() -> list[Event]:
    """As msprof writes it: no categories, times as texts, calls on a thread of the task queue."""
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in ((100, "Python"), (200, "CANN"), (300, "Ascend Hardware"))
    ]
    for step in range(STEPS):
        events += host_events(step)
        for kernel in range(KERNELS):
            at = 1_000_000 + step * STEP_US + kernel * EVERY_US
            link = {"connection_id": step * KERNELS + kernel + 1}
            task = {"Task Type": "AI_CORE", **link}
            flow = {"cat": "async_npu", "name": "torch_to_npu", "id": f"{at + 900}.0"}
            call = {"ph": "X", "pid": 200, "tid": 101, "name": "Node@launch", "dur": 10}
            work = {"ph": "X", "pid": 300, "tid": 5, "name": "MatMulV2", "dur": KERNEL_US}
            events += [
                call | {"ts": f"{at + 880}.0", "args": link},
                work | {"ts": f"{at + 900}.0", "args": task},
                flow | {"ph": "s", "pid": 100, "tid": 100, "ts": f"{at}.0"},
                flow | {"ph": "f", "pid": 300, "tid": 5, "ts": f"{at + 900}.0", "bp": "e"},
            ]
    # What repeats the same time is not counted again.
    events += [
        {"ph": "M", "name": "process_name", "pid": 400, "tid": 0, "args": {"name": name}}
        for name in ("Overlap Analysis",)
    ]
    free = {"ph": "X", "pid": 400, "tid": 1, "name": "Computing"}
    return [*events, free | {"ts": "1000000.0", "dur": 30_000, "args": {}}]


LINKED = {
    "intel": kineto("xpu_runtime", "urEnqueueKernelLaunch", "kernel"),
    "mtia": kineto("mtia_runtime", "runtimeLaunchKernel", "mtia_ccp_events"),
    "private_use": kineto("privateuse1_runtime", "launchKernel", "kernel"),
    "cambricon": kineto("mlu_runtime", "cnInvokeKernelLaunch", "kernel"),
    "ascend": ascend(),
}


def load(folder: Path, events: list[Event]) -> ttap.Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": []}), "utf-8")
    return ttap.load(path)


@pytest.mark.parametrize("vendor", LINKED)
def test_work_launches_and_findings_of_other_accelerators(vendor: str, tmp_path: Path) -> None:
    trace = load(tmp_path, LINKED[vendor])
    timeline = trace.summary().timeline
    assert timeline.busy_ns == STEPS * KERNELS * KERNEL_US * 1000
    tree = trace.ranks[0].tree
    assert len(tree.linked_gpu_rows) == STEPS * KERNELS
    operators = trace.ops().to_pandas()
    of_product = operators[operators["name"] == "aten::mm"].iloc[0]
    assert of_product["own_gpu_ns"] == STEPS * KERNELS * KERNEL_US * 1000
    diagnosis = trace.diagnose()
    assert diagnosis.computes_on == "gpu"
    # Which kernels cast or could be fused, only names of CUDA and HIP tell.
    assert diagnosis.abstained["cast_storm"] == ("kernel names of CUDA or HIP",)
    assert diagnosis.further_verdicts["layout_conversion"] == "unknown"
    assert diagnosis.verdicts["cpu_bound"] == "present"
    assert diagnosis.verdicts["high_memcpy"] == "absent"
    assert diagnosis.verdicts["nccl_blocks_main_stream"] == "absent"


def test_gaudi_records_no_links_and_what_waits_for_whom_is_unknown(tmp_path: Path) -> None:
    trace = load(tmp_path, kineto("hpu_op", "synLaunch", "kernel", linked=False))
    assert trace.summary().timeline.busy_ns == STEPS * KERNELS * KERNEL_US * 1000
    assert not len(trace.ranks[0].tree.linked_gpu_rows)
    diagnosis = trace.diagnose()
    assert diagnosis.verdicts["cpu_bound"] == "unknown"
    assert diagnosis.abstained["cpu_bound"]


def test_collectives_of_ascend_are_communication(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": 500, "tid": 0, "args": {"name": "HCCL"}}
    plane = {"ph": "M", "name": "thread_name", "pid": 500, "tid": 2, "args": {"name": "Plane 0"}}
    name = "hcom_allReduce__503_0_1"
    whole = {"ph": "X", "pid": 500, "tid": 1, "name": name, "ts": "1008200.0", "dur": 800}
    part = {"ph": "X", "pid": 500, "tid": 2, "name": "Notify_Wait", "ts": "1008200.0", "dur": 90}
    events = [*ascend(), named, plane, whole | {"args": {}}, part | {"args": {}}]
    timeline = load(tmp_path, events).summary().timeline
    assert timeline.communication_ns == 800_000
    assert timeline.exposed_communication_ns == 800_000


def test_intel_names_the_memory_that_it_copies_from(tmp_path: Path) -> None:
    events = kineto("xpu_runtime", "urEnqueueKernelLaunch", "kernel")
    for step in range(STEPS):
        at = 1_008_500 + step * STEP_US
        link = {"correlation": 1_000 + step}
        call = {"cat": "xpu_runtime", "name": "urEnqueueUSMMemcpy", "ts": at, "dur": 1_200}
        copy = {"ph": "X", "cat": "gpu_memcpy", "pid": 0, "tid": 5, "ts": at + 100, "dur": 1_000}
        name = "zeCommandListAppendMemoryCopy(M2D)"
        where = {"device": 0, "stream": 5, "bytes": 4 << 20, **link}
        events += [HOST | call | {"args": link}, copy | {"name": name, "args": where}]
    diagnosis = load(tmp_path, events).diagnose()
    assert diagnosis.verdicts["no_memory_pin"] == "present"
