"""The critical path as a table: tiling, causes, steps, ranks, and HTA's rules beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.tables.steps.critical_path import BOUNDS, path_segments
from torchtraceap.tables.steps.hta_path import build_hta_path

WriteTrace = Callable[..., Path]
Event = dict[str, Any]


def host(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur} | (
        {"args": args} if args else {}
    )


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7) -> Event:
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return host(name, ts, dur, "kernel", stream) | {"pid": 0, "args": args}


def launch(name: str, call_ts: float, ts: float, dur: float, correlation: int) -> list[Event]:
    call = host("cudaLaunchKernel", call_ts, 5, "cuda_runtime", correlation=correlation)
    return [call, kernel(name, ts, dur, correlation)]


def step(number: int, ts: float, dur: float) -> Event:
    return host(f"ProfilerStep#{number}", ts, dur, "user_annotation")


GPU_BOUND = [
    step(1, 0, 100),
    *launch("gemm", 10, 20, 150, 1),
    step(2, 100, 200),
    *launch("relu", 110, 171, 120, 2),
    host("cudaDeviceSynchronize", 150, 145, "cuda_runtime", correlation=3),
]


def test_segments_tile_the_profiled_time(write_trace: WriteTrace) -> None:
    table = ttap.load(write_trace(GPU_BOUND)).critical_path(by="event")
    assert table["start_ns"][0] == table.facts["start_ns"] == 0
    assert table["end_ns"][-1] == table.facts["end_ns"] == 300_000
    assert (table["start_ns"][1:] == table["end_ns"][:-1]).all()
    assert table["duration_ns"].sum() == table.facts["total_ns"] == 300_000


def test_the_largest_share_says_what_bounds_the_path(write_trace: WriteTrace) -> None:
    table = ttap.load(write_trace(GPU_BOUND)).critical_path()
    assert table.facts["bound_by"] == "gpu_compute_bound"
    assert dict(zip(table.to_list("cause"), table.to_list("time_ns"), strict=True)) == {
        "gpu_compute": 270_000,
        "host_gap": 15_000,
        "launch_latency": 5_000,
        "host_forward": 5_000,
        "synchronization": 4_000,
        "gpu_gap": 1_000,
    }
    assert table["time_share"].sum() == pytest.approx(1.0)
    assert sum(table.facts["bound_shares"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("chosen", ["ProfilerStep#2", 1])
def test_a_step_is_a_part_of_the_whole_path(write_trace: WriteTrace, chosen: str | int) -> None:
    trace = ttap.load(write_trace(GPU_BOUND))
    table = trace.critical_path(step=chosen, by="name")
    assert (table.facts["start_ns"], table.facts["end_ns"]) == (100_000, 300_000)
    assert table.records()[0] == {
        "name": "relu",
        "cause": "gpu_compute",
        "time_ns": 120_000,
        "time_share": 0.6,
        "segments": 1,
    }


def test_steps_sum_to_the_whole(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(GPU_BOUND))
    whole, *parts = (trace.critical_path(step=chosen) for chosen in (None, 0, 1))
    by_cause = [dict(zip(t.to_list("cause"), t.to_list("time_ns"), strict=True)) for t in parts]
    for cause, time_ns in zip(whole.to_list("cause"), whole.to_list("time_ns"), strict=True):
        assert sum(part.get(cause, 0) for part in by_cause) == time_ns


@pytest.mark.parametrize("chosen", ["ProfilerStep#7", 2, -1])
def test_an_unknown_step_is_told_with_what_there_is(
    write_trace: WriteTrace, chosen: str | int
) -> None:
    with pytest.raises(OptionError, match="there are 2, from 'ProfilerStep#1' to 'ProfilerStep#2'"):
        ttap.load(write_trace(GPU_BOUND)).critical_path(step=chosen)


def test_a_trace_without_steps_says_so(write_trace: WriteTrace) -> None:
    with pytest.raises(OptionError, match="has no steps"):
        ttap.load(write_trace([host("aten::mm", 0, 5)])).critical_path(step=0)


@pytest.mark.parametrize("options", [{"by": "colour"}, {"compat": "nsight"}])
def test_unknown_options_are_refused(write_trace: WriteTrace, options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="must be one of"):
        ttap.load(write_trace(GPU_BOUND)).critical_path(**options)


def test_every_cause_counts_towards_one_bound(write_trace: WriteTrace) -> None:
    from torchtraceap import _core

    causes = [cause for part in BOUNDS.values() for cause in part]
    assert sorted(causes) == sorted(_core.path_cause_names())


def test_a_host_without_gpu_work(write_trace: WriteTrace) -> None:
    table = ttap.load(write_trace([host("aten::mm", 0, 5), host("aten::add", 8, 2)])).critical_path(
        by="event"
    )
    assert table.to_list("name") == ["aten::mm", "(no event)", "aten::add"]
    assert any("No GPU work" in note for note in table.notes)


def test_gpu_work_without_launches(write_trace: WriteTrace) -> None:
    events = [kernel("a", 0, 5, 1), kernel("b", 6, 5, 2), kernel("c", 12, 3, 3, stream=8)]
    table = ttap.load(write_trace(events)).critical_path(by="event")
    assert [n for n in table.to_list("name") if n != "(unknown)"] == ["a", "b", "b", "c"]
    assert any("order on the streams" in note for note in table.notes)
    assert table.facts["assumed_ns"] == 1_000  # b to c


def test_legacy_categories(write_trace: WriteTrace) -> None:
    legacy = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    events = [e | {"cat": legacy.get(e["cat"], e["cat"])} for e in GPU_BOUND]
    modern, old = (ttap.load(write_trace(e)).critical_path() for e in (GPU_BOUND, events))
    assert modern.records() == old.records()


def test_segments_come_as_plain_values(write_trace: WriteTrace) -> None:
    segments = path_segments(ttap.load(write_trace(GPU_BOUND)), step=1)
    assert json.loads(json.dumps(segments)) == segments
    assert {"row", "name", "lane", "start_ns", "end_ns", "cause", "evidence"} <= set(segments[0])
    assert [s["name"] for s in segments if s["cause"] == "gpu_compute"] == ["gemm", "relu"]


# ------------------------------------------------------------------------------------- ranks


def rank_file(write: WriteTrace, rank: int, arrives: float) -> Path:
    """Ten steps of 1 ms that end together with an all-reduce; `arrives`: when it begins."""
    events = []
    for i in range(10):
        start = 1000 * i
        seq = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Seq": i}
        seq |= {"Out msg nelems": 1024, "Group size": 2, "Process Group Name": "0"}
        call = host("cudaLaunchKernel", start + arrives - 10, 5, "cuda_runtime", correlation=i + 1)
        nccl = kernel("ncclDevKernel_AllReduce", start + arrives, 950 - arrives, i + 1)
        nccl["args"] |= seq
        sync = host("cudaDeviceSynchronize", start + arrives, 955 - arrives, "cuda_runtime")
        events += [step(i, start, 1000), host("work", start + 5, arrives - 20), call, nccl, sync]
    info = {"rank": rank, "world_size": 2, "backend": "nccl"}
    return write({"distributedInfo": info, "traceEvents": events}, f"rank{rank}.json")


def test_the_path_goes_on_with_the_rank_that_came_last(write_trace: WriteTrace) -> None:
    paths = [rank_file(write_trace, 0, 100), rank_file(write_trace, 1, 700)]
    table = ttap.load(paths).critical_path(by="event")
    assert table["duration_ns"].sum() == table.facts["total_ns"]
    time_ns = dict.fromkeys(("work", "ncclDevKernel_AllReduce"), 0)
    for segment in table.records():
        if segment["name"] == "work":
            assert segment["rank"] == 1
        if segment["name"] in time_ns and segment["cause"] != "launch_latency":
            time_ns[segment["name"]] += segment["duration_ns"]
    assert time_ns["work"] == 10 * 680_000
    assert time_ns["ncclDevKernel_AllReduce"] == 10 * 250_000  # 700 to 950, not 100 to 950
    assert any("last rank" in note for note in table.notes)


def test_hta_takes_one_of_several_ranks(write_trace: WriteTrace) -> None:
    paths = [rank_file(write_trace, 0, 100), rank_file(write_trace, 1, 700)]
    table = ttap.load(paths).critical_path(compat="hta")
    assert table.notes[-1] == "HTA's path runs through one rank: rank 0."


def test_ranks_without_a_common_collective(write_trace: WriteTrace) -> None:
    events = [step(1, 0, 100), *launch("gemm", 10, 20, 60, 1)]
    paths = [
        write_trace({"distributedInfo": {"rank": r, "world_size": 2}, "traceEvents": events}, name)
        for r, name in ((0, "a.json"), (1, "b.json"))
    ]
    table = ttap.load(paths).critical_path()
    assert table["time_ns"].sum() == table.facts["total_ns"] == 100_000
    assert any("1 of 2 ranks" in note for note in table.notes)


def test_one_rank_alone_takes_the_wait_for_communication(write_trace: WriteTrace) -> None:
    table = ttap.load(rank_file(write_trace, 0, 100)).critical_path()
    assert table.facts["bound_by"] == "communication_bound"
    assert any("Of 2 ranks 1 has a trace" in note for note in table.notes)


# --------------------------------------------------------------------------------- any trace

_times = st.integers(0, 2000)


@st.composite
def _events(draw: st.DrawFn) -> list[Event]:
    events = []
    for i in range(draw(st.integers(1, 25))):
        ts, dur = draw(_times), draw(st.integers(0, 400))
        kind = draw(st.sampled_from(["op", "launch", "sync", "kernel", "copy"]))
        tid = draw(st.integers(1, 2))
        if kind == "op":
            name = draw(st.sampled_from(["aten::mm", "autograd::engine::evaluate_function: A"]))
            events.append(host(name, ts, dur, tid=tid))
        elif kind == "sync":
            name = draw(st.sampled_from(["cudaDeviceSynchronize", "hipStreamSynchronize"]))
            events.append(host(name, ts, dur, "cuda_runtime", tid))
        else:
            if kind != "kernel":
                call = "cudaMemcpyAsync" if kind == "copy" else "cudaLaunchKernel"
                events.append(host(call, ts, dur, "cuda_runtime", tid, correlation=i + 1))
            work = kernel("k", draw(_times), draw(st.integers(0, 300)), i + 1, draw(_streams))
            if kind == "copy":
                work |= {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)"}
            events.append(work)
    return events


_streams = st.integers(7, 8)


@settings(max_examples=60, deadline=None)
@given(events=_events())
def test_any_trace_is_tiled(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    trace = ttap.load(path)
    table = trace.critical_path(by="event")
    durations = table["duration_ns"]
    assert durations.sum() == table.facts["total_ns"]
    assert (durations > 0).all()
    assert (table["start_ns"][1:] == table["end_ns"][:-1]).all()
    by_cause = trace.critical_path()
    assert np.sum(by_cause["time_ns"]) == table.facts["total_ns"]
    assert np.sum(by_cause["segments"]) == table.num_rows


# --------------------------------------------------------------------------------------- HTA


def test_hta_path_of_a_step(write_trace: WriteTrace) -> None:
    table = ttap.load(write_trace(GPU_BOUND)).critical_path(step=0, compat="hta")
    # gemm's call is the only one in the step that HTA keeps: the last step is cut off.
    assert table.facts["nodes"] == 4
    assert table.facts["total_ns"] == 160_000
    assert table.to_list("cause") == ["gpu_compute_bound", "gpu_kernel_launch_overhead"]
    assert table.to_list("time_ns") == [150_000, 10_000]


def test_launch_edges_can_be_left_out_of_htas_graph_alone(write_trace: WriteTrace) -> None:
    events = [
        host("aten::add", 0, 40, "cpu_op"),
        *launch("gemm", 10, 20, 60, 1),
        *launch("add", 30, 80, 5, 2),  # behind gemm: only its call's edge has no weight
    ]
    trace = ttap.load(write_trace(events))
    whole = trace.critical_path(step="", compat="hta").facts
    default = trace.critical_path(step="", compat="hta", launch_edges=False).facts
    assert default["nodes"] == whole["nodes"] and default["edges"] == whole["edges"] - 1
    with pytest.raises(OptionError, match="--compat hta"):
        trace.critical_path(launch_edges=False)


@pytest.mark.parametrize("by", ["name", "event"])
def test_hta_tables_have_rows(write_trace: WriteTrace, by: str) -> None:
    table = ttap.load(write_trace(GPU_BOUND)).critical_path(by=by, compat="hta")
    assert "gemm" in table.to_list("name")


def test_hta_counts_the_copies_of_steps_on_the_gpu_behind_the_steps(
    write_trace: WriteTrace,
) -> None:
    """Each step has a copy on the GPU's track, which begins before the next step does."""

    def copy(number: int, start: float, end: float) -> dict[str, Any]:
        name = f"ProfilerStep#{number}"
        return {**host(name, start, end - start, "gpu_user_annotation"), "pid": 0, "tid": 7}

    events = [
        step(1, 0, 100),
        *launch("gemm", 10, 20, 60, 1),
        host("aten::add", 50, 10, "cpu_op"),
        copy(1, 20, 80),
        step(2, 100, 100),
        *launch("relu", 110, 120, 61, 2),
        copy(2, 120, 181),
        step(3, 200, 100),
        *launch("sum", 210, 220, 62, 3),
        copy(3, 220, 282),
    ]
    trace = ttap.load(write_trace(events))

    def work(number: int) -> list[str]:
        table = trace.critical_path(step=number, by="event", compat="hta")
        causes = zip(table.to_list("name"), table.to_list("cause"), strict=True)
        return [name for name, cause in causes if cause == "gpu_compute_bound"]

    assert [work(number) for number in (0, 1)] == [["gemm"], ["relu"]]
    notes = [trace.critical_path(step=n, compat="hta").notes for n in (2, 3)]
    assert not any("copy of the annotation" in note for note in notes[0])
    assert any("copy of the annotation" in note for note in notes[1])


def test_hta_without_the_annotation(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(GPU_BOUND))
    with pytest.raises(OptionError, match="no path for instances 5 to 5"):
        trace.critical_path(step=5, compat="hta")
    with pytest.raises(OptionError, match="no path for instances"):
        trace.critical_path(step=10**12, compat="hta")
    with pytest.raises(OptionError, match="instances must be"):
        build_hta_path(trace.rank(), annotation="Profiler", instances=(2, 1))
