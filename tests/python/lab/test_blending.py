"""Events that are put into a trace look like those that were there."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from torchtraceap import _core
from torchtraceap.lab.building.build import group_traces
from torchtraceap.lab.building.plan import Group, plan_groups
from torchtraceap.lab.generation.event_injection import blend
from torchtraceap.trace.ranks import RankTrace

Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: float, dur: float, number: int) -> Event:
    return event("cpu_op", name, ts, dur, **{"External id": number, "Input Dims": [[8, 8]]})


def launch(ts: float, number: int, op_number: int) -> Event:
    args = {"External id": op_number, "cbid": 211, "correlation": number}
    return event("cuda_runtime", "cudaLaunchKernel", ts, 2, **args)


def kernel(ts: float, number: int, op_number: int) -> Event:
    args = {"External id": op_number, "correlation": number, "grid": [4, 1, 1]}
    return event("kernel", "gemm", ts, 3, **args)


def test_numbers_go_on_and_arguments_are_those_of_neighbours() -> None:
    first = [op("aten::mm", 0, 5, 10), launch(1, 100, 10), kernel(4, 100, 10)]
    last = [op("aten::mm", 50, 5, 11), launch(51, 101, 11), kernel(54, 101, 11)]
    new = [
        event("cpu_op", "aten::add", 20, 6),
        event("cuda_runtime", "cudaLaunchKernel", 22, 2, correlation=900),
        event("kernel", "pointwise", 25, 1, correlation=900),
        event("cuda_runtime", "cudaDeviceSynchronize", 40, 2, correlation=901),
    ]
    made = {id(each) for each in new}
    blend([*first, *new, *last], lambda each: id(each) in made)
    added, call, work, wait = (each["args"] for each in new)
    assert added == {"External id": 11, "Input Dims": [[64]]}
    assert call == {"External id": 11, "cbid": 211, "correlation": 101}
    assert work == {"External id": 11, "correlation": 101, "grid": [4, 1, 1]}
    assert wait == {"cbid": 211, "correlation": 102}  # no operator is around it
    assert [each["args"]["External id"] for each in last] == [12, 12, 12]
    assert [each["args"]["correlation"] for each in last[1:]] == [103, 103]
    assert [each["args"]["External id"] for each in first] == [10, 10, 10]


def test_what_is_stated_stays_and_rates_are_of_the_copy() -> None:
    args = {"bytes": 8, "memory bandwidth (GB/s)": 1.0, "correlation": 1}
    copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 8, **args)
    call = event("cuda_runtime", "cudaMemcpyAsync", 9, 1, correlation=7)
    new = event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 10, 4, bytes=8_000, correlation=7)
    blend([copy, call, new], lambda each: each is new or each is call)
    assert new["args"]["bytes"] == 8_000
    assert new["args"]["memory bandwidth (GB/s)"] == pytest.approx(2.0)


@cache
def pairs() -> list[tuple[Event, RankTrace, RankTrace]]:
    group = next(group for group in plan_groups(640) if group.way == "event_space")
    found = list(group_traces(group, 3))
    parts = {label["id"]: part for label, part in found}
    return [(label, part, parts[label["twin"]]) for label, part in found if label["twin"]]


def keys_of(part: RankTrace) -> dict[str, set[tuple[str, ...]]]:
    found: dict[str, set[tuple[str, ...]]] = {}
    for each in json.loads(_core.trace_json(part.table))["traceEvents"]:
        if each["ph"] == "X" and each.get("cat") in ("cpu_op", "kernel"):
            found.setdefault(each["cat"], set()).add(tuple(each["args"]))
    return found


def test_a_fault_in_a_predicted_run_has_no_keys_of_its_own() -> None:
    group = Group(2, "train", 2, "segmentation", False, way="event_space")
    assert group in plan_groups(640)
    for label, faulty, twin in pairs():
        assert label["source"]["kind"] == "lifted_event_space"
        if "nccl" in label["form"] or "collective" in label["form"]:
            continue  # a run of one rank has no collectives to be like
        known = keys_of(twin)
        assert all(keys <= known[cat] for cat, keys in keys_of(faulty).items())


def test_numbers_of_calls_and_operators_are_there_once() -> None:
    for _, faulty, _ in pairs():
        table = faulty.table
        for kinds, numbers in (
            ((_core.EventKind.RUNTIME, _core.EventKind.DRIVER), table.correlation),
            ((_core.EventKind.CPU_OP,), table.external_id),
        ):
            of = [number for kind in kinds for number in numbers[table.kind == kind].tolist()]
            assert len(of) == len(set(of)) > 0


def test_a_number_that_one_operator_has_is_not_copied() -> None:
    args = {"External id": 1, "Sequence number": 7, "Fwd thread id": 0}
    own = event("cpu_op", "aten::add", 0, 5, **args)
    new = event("cpu_op", "aten::add", 10, 5)
    blend([own, new], lambda each: each is new)
    assert new["args"] == {"External id": 2}


def test_a_call_outside_of_operators_is_of_the_annotation_around_it() -> None:
    step = event("user_annotation", "ProfilerStep#3", 0, 100, **{"External id": 5})
    own = launch(2, 100, 5)
    wait = event("cuda_runtime", "cudaDeviceSynchronize", 40, 2, correlation=901)
    blend([step, own, wait], lambda each: each is wait)
    assert wait["args"] == {"External id": 5, "cbid": 211, "correlation": 101}
