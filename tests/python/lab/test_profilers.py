"""What the profilers of several versions of PyTorch write."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from torchtraceap import _core
from torchtraceap.lab.prediction.timeline.profilers import (
    PROFILERS,
    all_reduce_kernel,
    detect_profiler,
    rewrite_for_profiler,
)
from torchtraceap.trace.event_columns import event_table

SAID = {"Collective name": "allreduce", "Group size": 4, "Process Group Name": "0", "Seq": 3}


@pytest.fixture
def newest() -> _core.EventTable:
    """An operator, a collective and a range on the GPU, and an arrow of the backward pass."""
    reduces = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    names = ["aten::mm", "record_param_comms", reduces, "nccl:all_reduce", "fwdbwd"]
    collective = [None, SAID, SAID, None, None]
    args: dict[str, Any] = {
        key: [each[key] if each else None for each in collective] for key in SAID
    }
    args["Record function id"] = [0, 0, None, None, None]
    args["Input Strides"] = ["[[1]]", None, None, None, None]
    args["External id"] = [1, 2, 2, 3, None]
    args["stream"] = [None, None, 20, 20, None]
    return event_table(
        names, [1_000, 5_500, 9_250, 9_250, 1_200], [3_999, 2_000, 7_777, 7_777, 0],
        category=["cpu_op", "cpu_op", "kernel", "gpu_user_annotation", "fwdbwd"],
        pid=[7, 7, 0, 0, 7], tid=[7, 7, 20, 20, 7], phase=["X", "X", "X", "X", "s"], args=args,
        members={"id": [None, None, None, None, 1]},
        metadata={
            "schemaVersion": 1, "trace_id": "A", "cupti_version": 28, "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1_759_300_074 * 10**9,
            "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 4},
        },
    )  # fmt: skip


def written(table: _core.EventTable) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_core.trace_json(table))
    return found


@pytest.mark.parametrize("version", PROFILERS)
def test_a_version_is_known_by_what_it_writes(newest: _core.EventTable, version: str) -> None:
    assert detect_profiler(rewrite_for_profiler(newest, PROFILERS[version])).torch == version


def test_torch_2_1_counts_whole_microseconds_since_1970(newest: _core.EventTable) -> None:
    said = written(rewrite_for_profiler(newest, PROFILERS["2.1"]))
    events = {event["name"]: event for event in said["traceEvents"]}
    assert set(events) == {
        "aten::mm", "record_param_comms",
        "ncclKernel_AllReduce_RING_LL_Sum___nv_bfloat16"
        "(ncclDevComm*, unsigned long, ncclWork*)",
    }  # fmt: skip
    assert events["aten::mm"]["ts"] == 1_759_300_074_000_001
    assert events["aten::mm"]["dur"] == 3  # from 1 to 4.999, both rounded down
    assert set(events["record_param_comms"]["args"]) == {"External id"}
    assert "displayTimeUnit" not in said and "trace_id" not in said
    assert said["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 4}


def test_torch_2_4_says_less_of_collectives(newest: _core.EventTable) -> None:
    said = written(rewrite_for_profiler(newest, PROFILERS["2.4"]))
    events = {event["name"]: event for event in said["traceEvents"]}
    kept = {"External id", "Record function id", "Collective name", "Group size"}
    assert set(events["record_param_comms"]["args"]) == kept
    kernel = all_reduce_kernel("bfloat16", PROFILERS["2.4"])
    assert set(events[kernel]["args"]) == {"External id", "stream"}
    assert said["distributedInfo"]["nccl_version"] == "2.20.5"
    assert said["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1, 2, 3]


@pytest.mark.parametrize("version", ["2.4", "2.6", "2.9"])
def test_newer_versions_keep_nanoseconds(newest: _core.EventTable, version: str) -> None:
    table = rewrite_for_profiler(newest, PROFILERS[version])
    assert np.array_equal(np.sort(table.ts_ns), np.sort(newest.ts_ns))
    assert len(table) == len(newest)
