"""Corners of analyses: names of threads, both sides of a verdict, instances of HTA's path, files
that can't be read, durations that no table has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_traces import GpuTrace
from test_simulation_run import host, launch, step

import torchtraceap as ttap
from torchtraceap.errors import MissingFileError, OptionError, ParseError
from torchtraceap.ops.devices import device_named
from torchtraceap.simulation.edits import gpu_work as lookups
from torchtraceap.tables.compare.alignment import compare
from torchtraceap.tables.detection import judge
from torchtraceap.tables.gpu.memory_timeline import read_memory_timeline
from torchtraceap.tables.grouping import thread_names
from torchtraceap.tables.steps.hta_path import build_hta_path

WriteTrace = Callable[..., Path]


def test_threads_of_one_name_are_told_apart_by_their_process(write_trace: WriteTrace) -> None:
    def named(pid: int, tid: int, name: str) -> dict[str, Any]:
        about = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid}
        return about | {"args": {"name": name}}

    events = [host("a", 10.0 * pid, 5) | {"pid": pid} for pid in (1, 2, 3)]
    events += [host("b", 50, 5, tid=7), host("c", 60, 5, tid=8)]
    events += [named(1, 7, "loader"), named(1, 8, " thread 8 (python) ")]
    (part,) = ttap.load(write_trace(events)).ranks
    assert sorted(thread_names(part)) == [
        "loader (7)",
        "thread 1",
        "thread 1 of process 2",
        "thread 1 of process 3",
        "thread 8 (python)",
    ]


def part(verdict: str, cost_ns: int, profiled_ns: int) -> Any:
    found = SimpleNamespace(verdict=verdict, cost_ns=cost_ns)
    return SimpleNamespace(profiled_ns=profiled_ns), found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Material are two hundredths of 10 000: from 200 on.
        ([part("present", 200, 5_000), part("absent", 0, 5_000)], "present"),
        ([part("present", 199, 5_000), part("absent", 0, 5_000)], "absent"),
        ([part("present", 100, 9_900), part("unknown", 0, 100)], "unknown"),
        ([part("present", 99, 9_900), part("unknown", 0, 100)], "absent"),
        ([part("absent", 150, 9_900), part("unknown", 0, 100)], "absent"),
        ([part("absent", 0, 9_800), part("unknown", 0, 200)], "unknown"),
        ([part("absent", 0, 9_801), part("unknown", 0, 199)], "absent"),
        ([part("present", 1, 0), part("absent", 0, 0)], "present"),
    ],
)
def test_from_two_hundredths_on_a_cost_is_material(parts: list[Any], expected: str) -> None:
    assert judge(parts) == expected


@pytest.fixture
def three_steps(write_trace: WriteTrace) -> ttap.Trace:
    events = []
    for number in range(4):
        at = 1_000 * number
        work = [host("aten::mm", at + 5, 100 + 10 * number)]
        work += launch(f"gemm_{number}", at + 10, at + 30, 300 + 10 * number, number + 1)
        events += [step(number, at, 900), *work, host("cudaDeviceSynchronize", at + 150, 400,
                                                      "cuda_runtime")]  # fmt: skip
    return ttap.load(write_trace(events))


def kernels_on_path(trace: ttap.Trace, **options: Any) -> set[str]:
    names = build_hta_path(trace.ranks[0], by="event", **options).to_list("name")
    return {name for name in names if name.startswith("gemm")}


def test_instances_of_an_annotation_are_a_first_and_a_last(three_steps: ttap.Trace) -> None:
    steps = {"annotation": "ProfilerStep"}
    assert kernels_on_path(three_steps, **steps) == {"gemm_0"}
    assert kernels_on_path(three_steps, **steps, instances=(1, 1)) == {"gemm_1"}
    assert kernels_on_path(three_steps, **steps, instances=(0, 1)) >= {"gemm_1"}
    assert kernels_on_path(three_steps, step=2) == {"gemm_2"}
    assert kernels_on_path(three_steps, step="ProfilerStep#1") == {"gemm_1"}
    for instances in ((2, 1), (-1, 0), (0, -1)):
        with pytest.raises(OptionError, match="a first and a last number"):
            build_hta_path(three_steps.ranks[0], annotation="", instances=instances)


def test_the_last_step_stays_out_of_htas_path_unless_it_is_kept(three_steps: ttap.Trace) -> None:
    (rank,) = three_steps.ranks
    with pytest.raises(OptionError, match="it leaves the last profiled step out"):
        build_hta_path(rank, step=3)
    assert build_hta_path(rank, step=3, keep_last_step=True).num_rows


def test_a_memory_timeline_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        read_memory_timeline(tmp_path / "none.json")
    with pytest.raises(ParseError, match="Is a directory"):
        read_memory_timeline(tmp_path)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ([0, 1, 8, 0], None),
        ([0, 4, 8, 7], None),
        ([0, 0, 8, 0], "actions from 1 to 4"),
        ([0, 5, 8, 0], "actions from 1 to 4"),
        ([0, 1, 8, -1], "categories from 0 to 7"),
        ([0, 1, 8, 8], "categories from 0 to 7"),
        ([0, 1, 2**63, 0], "found"),
        ([0, 1, 2**63 - 1, 0], None),
    ],
)
def test_numbers_of_a_memory_timeline(tmp_path: Path, event: list[int], words: str | None) -> None:
    path = tmp_path / "memory.raw.json"
    path.write_text(json.dumps([event]), encoding="utf-8")
    if words is None:
        assert read_memory_timeline(path).facts["peak_bytes"] == event[2]
    else:
        with pytest.raises(ParseError, match=words):
            read_memory_timeline(path)


def test_durations_need_a_device_and_two_ranks() -> None:
    device = device_named("A100 SXM4 40 GB")
    rates = lookups.host_rates("HtoD", [device])
    assert 5e9 < rates.least < rates.most == rates.cap < 31.5e9 and rates.source
    for ranks, known in ((0, False), (1, False), (2, True), (3, True)):
        from torchtraceap.ops import durations

        found = lookups.collective_ns("all_reduce", 8.0, ranks, device)
        expected = durations.collective_ns("all_reduce", 8.0, ranks, device) if known else None
        assert found == expected
    assert lookups.collective_ns("all_reduce", 8.0, 8, None) is None
    assert lookups.collective_ns("all_reduce", -1.0, 8, device) is None


def test_what_one_side_lacks_or_has_otherwise_is_said(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "empty").mkdir()
    full = GpuTrace().op("aten::mm", 0, 50).launch("gemm", (5, 5), (20, 30))
    properties = [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]
    other = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    before = full.load(tmp_path / "full", deviceProperties=properties)
    empty = GpuTrace().op("aten::mm", 0, 50).load(tmp_path / "empty")
    notes = compare(before, empty).notes
    assert not any("holds no events" in note for note in notes)
    assert any(note.startswith("The trace after has no GPU events") for note in notes)
    assert not any("Different devices" in note for note in notes)
    newer = full.load(tmp_path / "empty", deviceProperties=other)
    (said,) = (note for note in compare(before, newer).notes if "Different devices" in note)
    assert said == "Different devices: NVIDIA A100-SXM4-40GB before, NVIDIA H100 80GB HBM3 after."
