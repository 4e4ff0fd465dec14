"""Costs from markers, and markers that leave nothing behind, on traces of a few events."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap import _core
from torchtraceap.errors import OptionError, ParseError, SchemaError
from torchtraceap.lab.collection.marker_removal import (
    ORIGIN_NS,
    first_ns,
    pack,
    read_document,
    remove_markers,
)
from torchtraceap.lab.collection.markers import (
    clip,
    cost_intervals,
    is_marker,
    marked_intervals,
)

Event = dict[str, Any]
HOST, THREAD = 4711, 4713


# ------------------------------------------------------------------------- a trace made by hand


def host(name: str, start: int, end: int, *, cat: str = "cpu_op", **args: Any) -> Event:
    """Times in ns."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": THREAD, "ts": start / 1000,
        "dur": (end - start) / 1000, "args": args,
    }  # fmt: skip


def gpu(name: str, start: int, end: int, correlation: int, *, cat: str = "kernel") -> Event:
    args = {"correlation": correlation, "stream": 7, "device": 0, "External id": 5 * correlation}
    if cat == "gpu_memcpy":
        args["bytes"] = 1 << 20
    return host(name, start, end, cat=cat, **args) | {"pid": 0, "tid": 7}


def copy(name: str, start: int, end: int, correlation: int) -> Event:
    return gpu(name, start, end, correlation, cat="gpu_memcpy")


def launch(start: int, end: int, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return host(name, start, end, cat="cuda_runtime", correlation=correlation)


def mark(start: int, end: int, identity: int = 40) -> list[Event]:
    args = {"External id": identity, "Ev Idx": identity, "Record function id": identity}
    annotation = host("__m0", start, end, cat="user_annotation", **args)
    return [annotation, host("__m0", start, end, cat="gpu_user_annotation") | {"pid": 0, "tid": 7}]


def flow(phase: str, at: Event, number: int, cat: str = "ac2g") -> Event:
    place = {key: at[key] for key in ("pid", "tid", "ts")}
    return {"ph": phase, "cat": cat, "name": cat, "id": number, "bp": "e", **place}


def step(start: int, end: int, number: int = 2) -> Event:
    return host(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def events_of(*parts: Event | list[Event]) -> list[Event]:
    return [event for part in parts for event in (part if isinstance(part, list) else [part])]


@pytest.fixture
def cost_of(tmp_path: Path) -> Any:
    def cost(rule: str, *parts: Event | list[Event]) -> list[list[int]]:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": events_of(*parts)}))
        table = _core.read_trace(str(path), threads=1)
        found: list[list[int]] = cost_intervals(rule, table, _core.build_tree(table)).tolist()
        return found

    return cost


# ------------------------------------------------------------------------- costs


def test_names_of_markers() -> None:
    assert [is_marker(name) for name in ("__m0", "__m12", "__m", "__mx", "a__m1")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_fetch_costs_where_the_gpu_idles(cost_of: Any) -> None:
    found = cost_of(
        "fetches", step(0, 1000), mark(100, 400), launch(10, 20, 1), gpu("k", 20, 200, 1),
        launch(450, 460, 2), gpu("k", 500, 900, 2),
    )  # fmt: skip
    assert found == [[200, 400]]


def test_an_upload_costs_itself_and_the_idle_time_behind(cost_of: Any) -> None:
    name = "Memcpy HtoD (Pageable -> Device)"
    found = cost_of(
        "uploads", step(0, 1000), mark(100, 400), launch(110, 390, 1, "cudaMemcpyAsync"),
        copy(name, 150, 350, 1), launch(420, 430, 2), gpu("k", 450, 700, 2),
        launch(500, 510, 3, "cudaMemcpyAsync"), copy(name, 750, 800, 3),
    )  # fmt: skip
    assert found == [[150, 450]]


def test_copies_cost_where_nothing_computes_and_while_the_host_waits(cost_of: Any) -> None:
    found = cost_of(
        "copies", step(0, 1000), mark(100, 600), launch(90, 95, 1), gpu("k", 100, 300, 1),
        launch(110, 500, 2, "cudaMemcpyAsync"),
        copy("Memcpy DtoH (Device -> Pageable)", 250, 350, 2),
        copy("Memcpy DtoD (Device -> Device)", 400, 420, 2), launch(650, 660, 3),
        gpu("k", 700, 900, 3),
    )  # fmt: skip
    # The exposed part of the copy, the idle time behind it, the host still inside the call.
    assert found == [[300, 400], [420, 500]]


def compiled(*codes: tuple[int, int, int], end: int) -> list[Event]:
    """Nested regions as torch writes them: each holds all that follow it."""
    events = []
    for number, (start, code_start, code_end) in enumerate(codes):
        events.append(host(f"Torch-Compiled Region: {number}/0", start, end - number))
        events.append(host("CompiledFunction", code_start, code_end))
        name = "## Call CompiledFxGraph fabc ##"
        events.append(host(name, code_start + 1, code_end - 1, cat="user_annotation"))
    return events


def test_a_break_costs_from_compiled_code_to_the_next_region(cost_of: Any) -> None:
    found = cost_of(
        "breaks", step(0, 2000), mark(100, 900),
        compiled((110, 150, 300), (500, 520, 700), end=800),
        launch(200, 210, 1), gpu("triton_a", 220, 350, 1),
        launch(400, 410, 2), gpu("leftover", 430, 600, 2),
        launch(600, 610, 3), gpu("triton_b", 620, 1500, 3),
    )  # fmt: skip
    # Idle from 350 to 430 inside the gap from 300 to 500, and all of the kernel launched in it.
    assert found == [[350, 600]]


def test_one_compiled_region_in_each_marker_is_no_break(cost_of: Any) -> None:
    found = cost_of(
        "breaks", step(0, 2000), mark(100, 900), compiled((110, 150, 700), end=800),
        mark(1000, 1900), compiled((1010, 1050, 1700), end=1800), launch(200, 210, 1),
        gpu("triton", 220, 350, 1),
    )  # fmt: skip
    assert found == []


def test_a_busy_host_costs_the_idle_time_there_and_before_its_launches(cost_of: Any) -> None:
    found = cost_of(
        "host", step(0, 1000), mark(100, 400), launch(50, 60, 1), gpu("k", 60, 150, 1),
        launch(380, 390, 2), gpu("tiny", 420, 430, 2), launch(500, 510, 3), gpu("k", 600, 900, 3),
    )  # fmt: skip
    assert found == [[150, 420]]


def test_collectives_cost_where_nothing_computes(cost_of: Any) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [
        step(0, 2000), mark(100, 900),
        launch(50, 60, 1), gpu(name, 60, 90, 1),
        launch(110, 120, 2), gpu(name, 200, 400, 2), launch(130, 140, 3), gpu("k", 250, 300, 3),
        launch(500, 510, 4), gpu(name, 600, 700, 4),
    ]  # fmt: skip
    assert cost_of("exchanges", *events) == [[200, 250], [300, 400], [600, 700]]
    assert cost_of("runs_of_exchanges", *events) == [[200, 700]]


def test_without_gpu_events_the_site_is_the_cost(cost_of: Any) -> None:
    site = [step(0, 1000), mark(100, 400), host("aten::add", 50, 60)]
    assert cost_of("copies", *site) == cost_of("host", *site) == [[100, 400]]
    with pytest.raises(SchemaError, match="no profiled step"):
        cost_of("copies", host("aten::add", 50, 60))
    with pytest.raises(OptionError, match="fetches, uploads"):
        cost_of("nothing", *site)


def test_sets_are_clipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": events_of(mark(0, 50), mark(40, 90), mark(200, 300))})
    )
    marked = marked_intervals(_core.read_trace(str(path), threads=1))
    assert marked.tolist() == [[0, 90], [200, 300]]
    assert clip(marked, 80, 250).tolist() == [[80, 90], [200, 250]]
    assert clip(marked, 90, 200).shape == (0, 2)
    assert clip(marked[:0], 0, 9).dtype == np.int64


# ------------------------------------------------------------------------- without markers


def document() -> dict[str, Any]:
    args = [{"External id": n, "Ev Idx": n - 1, "Sequence number": 10 * n} for n in (3, 41, 90)]
    ops = [host("aten::add", 1000 * i, 1000 * i + 900, **a) for i, a in enumerate(args)]
    call, kernel = launch(100, 200, 77), gpu("k", 300, 400, 77)
    kernel["args"]["External id"] = 41
    marks = mark(1000, 1950, 40)
    thread_name = {
        "ph": "M", "name": "thread_name", "pid": HOST, "tid": THREAD, "ts": 0.5,
        "args": {"name": f"thread {THREAD} (python)"},
    }  # fmt: skip
    return {
        "schemaVersion": 1, "host_name": "box", "baseTimeNanoseconds": 17,
        "distributedInfo": {"backend": "emu", "rank": 0, "world_size": 4, "pg_config": []},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "uuid": "ab-cd"}],
        "traceEvents": events_of(
            step(0, 1900, 7), step(1900, 3000, 9), ops, call, kernel, marks, thread_name,
            flow("s", call, 77), flow("f", kernel, 77),
            flow("s", marks[0], 5), flow("f", marks[1], 5),
            flow("s", ops[0], 1 << 41), flow("s", ops[0], 9, "fwdbwd"),
            flow("f", ops[2], 9, "fwdbwd"),
            host("triton_poi", 2100, 2200, kernel_file="/tmp/torchinductor_ada/ab/cab.py",
                 kinds=["/home/ada/x.py", "a/b"], occupancy=0.25),
            host("f.py(3): g", 0, 2500, cat="python_function"),
        ),
    }  # fmt: skip


def cleaned(tmp_path: Path, start_ns: int = 0, end_ns: int = 3000) -> dict[str, Any]:
    path = tmp_path / "raw.json"
    path.write_text(json.dumps(document()))
    data = pack(remove_markers(read_document(path), start_ns, end_ns), ["NVIDIA"])
    result = json.loads(gzip.decompress(data))
    assert isinstance(result, dict)
    return result


def of_name(result: dict[str, Any], name: str) -> list[Event]:
    return [event for event in result["traceEvents"] if event["name"] == name]


def test_markers_leave_no_gap_in_any_counter(tmp_path: Path) -> None:
    result = cleaned(tmp_path)
    text = json.dumps(result)
    for word in ("__m0", "box", "NVIDIA", "ab-cd", "gpu_user_annotation", "f.py", "ada"):
        assert word not in text
    ops = of_name(result, "aten::add")
    assert [op["args"]["External id"] for op in ops] == [1, 2, 3]
    assert [op["args"]["Ev Idx"] for op in ops] == [0, 1, 2]
    assert [op["args"]["Sequence number"] for op in ops] == [0, 1, 2]
    flows = [(e["ph"], e["cat"], e["id"]) for e in result["traceEvents"] if e["ph"] in "sf"]
    assert sorted(flows) == [
        ("f", "ac2g", 1), ("f", "fwdbwd", 1), ("s", "ac2g", 1), ("s", "ac2g", 1 << 40),
        ("s", "fwdbwd", 1),
    ]  # fmt: skip


def test_links_survive_the_new_numbers(tmp_path: Path) -> None:
    result = cleaned(tmp_path)
    (kernel,), (call,) = of_name(result, "k"), of_name(result, "cudaLaunchKernel")
    assert kernel["args"]["correlation"] == call["args"]["correlation"] == 1
    owner = [op["args"]["External id"] for op in of_name(result, "aten::add")].index(
        kernel["args"]["External id"]
    )
    assert owner == 1


def test_processes_steps_and_folders_are_neutral(tmp_path: Path) -> None:
    result = cleaned(tmp_path)
    text = json.dumps(result)
    assert str(HOST) not in text and str(THREAD) not in text
    assert {(e["pid"], e["tid"]) for e in result["traceEvents"]} == {(1000, 1000), (0, 7)}
    assert of_name(result, "thread_name")[0]["args"]["name"] == "thread 1000 (python)"
    assert of_name(result, "ProfilerStep#0") and of_name(result, "ProfilerStep#1")
    triton = of_name(result, "triton_poi")[0]["args"]
    assert triton == {"kernel_file": "cab.py", "kinds": ["x.py", "a/b"], "occupancy": 0.25}
    assert result["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 4}
    assert result["baseTimeNanoseconds"] == 0 and result["schemaVersion"] == 1


def test_times_start_at_one_second_and_stay_exact() -> None:
    late = document()
    for event in late["traceEvents"]:
        event["ts"] = Decimal(str(event["ts"])) + Decimal("4428476383717.443")
    begin = first_ns(late)
    events = remove_markers(late, begin, begin + 3000)["traceEvents"]
    starts = {e["name"]: round(e["ts"] * 1000) for e in events if e["ph"] == "X"}
    assert starts["ProfilerStep#0"] == ORIGIN_NS and starts["k"] == ORIGIN_NS + 300
    assert all(len(json.dumps(e["ts"]).partition(".")[2]) <= 3 for e in events)


def test_a_crop_keeps_what_is_inside_as_a_whole(tmp_path: Path) -> None:
    result = cleaned(tmp_path, 950, 2500)
    names = [event["name"] for event in result["traceEvents"] if event["ph"] == "X"]
    assert names == ["aten::add", "triton_poi"]
    assert result["traceEvents"][0]["args"] == {
        "External id": 1, "Ev Idx": 0, "Sequence number": 0,
    }  # fmt: skip
    assert not [e for e in result["traceEvents"] if e["ph"] in "sf"]
    assert round(result["traceEvents"][0]["ts"] * 1000) == ORIGIN_NS + 50


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    for text in ('{"traceEvents": []}', "[]"):
        (tmp_path / "trace.json").write_text(text)
        with pytest.raises(ParseError, match=r"trace\.json: is not a trace"):
            read_document(tmp_path / "trace.json")
