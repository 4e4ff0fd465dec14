"""Savings of a long trace are simulated on a stretch of it, and say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.simulation.excerpt import MOST_EVENTS, _middle, most_simulated, simulated_run
from torchtraceap.simulation.simulate import Simulation
from torchtraceap.tables.steps.iterations import step_time

WriteTrace = Callable[..., Path]
Event = dict[str, Any]

STEPS, STEP_US = 20, 1000.0


def event(name: str, ts: float, dur: float, cat: str, tid: int = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur} | (
        {"args": args} if args else {}
    )


def steps(count: int = STEPS, *, marked: bool = True) -> list[Event]:
    """Steps of a kernel that the host waits for, and of host work behind it."""
    events = []
    for number in range(count):
        at = number * STEP_US
        link = {"correlation": number + 1}
        if marked:
            events.append(event(f"ProfilerStep#{number}", at, STEP_US, "user_annotation"))
        events += [
            event("aten::mm", at + 10, 50, "cpu_op"),
            event("cudaLaunchKernel", at + 20, 10, "cuda_runtime", **link),
            event("gemm", at + 40, 300, "kernel", 7, device=0, stream=7, **link) | {"pid": 0},
            event("cudaDeviceSynchronize", at + 100, 250, "cuda_runtime"),
            event("aten::add", at + 400, 500, "cpu_op"),
        ]
    return events


def test_a_short_trace_is_simulated_as_a_whole(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(steps()))
    run = simulated_run(trace)
    assert run.trace is trace
    assert run.stands_for == 1.0
    assert not any("Simulated on" in note for note in run.notes)


def test_the_steps_in_the_middle_of_a_long_one(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(steps()))
    run = simulated_run(trace, most_events=48, least_steps=3)
    names = [step.name for step in run.steps]
    assert names == [f"ProfilerStep#{i}" for i in range(6, 14)]
    assert sum(len(rank.table) for rank in run.ranks) <= 48
    assert any("8 of 20 steps" in note and "ProfilerStep#6" in note for note in run.notes)
    whole, part = Simulation(simulated_run(trace), []), Simulation(run, [])
    assert (part.measured_ns, part.replayed_ns) == (whole.measured_ns, whole.replayed_ns)
    assert any("scaled to the mean of all" in note for note in run.notes)


def test_no_fewer_steps_than_asked(write_trace: WriteTrace) -> None:
    run = simulated_run(ttap.load(write_trace(steps())), most_events=1, least_steps=5)
    assert len(run.steps) == 5


def test_where_all_steps_are_needed_nothing_is_cut(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(steps(4)))
    assert simulated_run(trace, most_events=1, least_steps=4).trace is trace


def test_a_stretch_without_steps_stands_for_the_whole(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(steps(marked=False)))
    run = simulated_run(trace, most_events=25)
    assert 0 < len(run.ranks[0].table) <= 25
    simulation = Simulation(run, [])
    whole_ns = trace.ranks[0].profiled_ns
    assert simulation.measured_ns == pytest.approx(whole_ns, rel=0.2)
    assert any("scaled" in note for note in run.notes)


def test_ranks_are_cut_at_the_same_steps(write_trace: WriteTrace) -> None:
    for rank in range(2):
        head = {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}
        path = write_trace(head | {"traceEvents": steps()}, f"ranks/rank{rank}.json")
    trace = ttap.load(path.parent)
    run = simulated_run(trace, most_events=96, least_steps=3)
    cut = [[step.name for step in rank.tree.steps] for rank in run.trace.ranks]
    assert len(cut) == 2
    assert cut[0] == cut[1] == [f"ProfilerStep#{i}" for i in range(6, 14)]


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_the_range_grows_round_the_middle(size: int) -> None:
    events = np.full(size, 10)
    assert _middle(events, 1000, 1) == (0, size)
    first, last = _middle(events, 0, min(3, size))
    assert last - first == min(3, size)
    assert abs((first + last) / 2 - size / 2) <= 1


def test_what_is_simulated_grows_with_the_trace() -> None:
    assert most_simulated(1_000_000) == MOST_EVENTS
    assert most_simulated(32_000_000) == 1_000_000


def test_savings_of_some_steps_are_scaled_to_the_mean_of_all(write_trace: WriteTrace) -> None:
    """The steps at both ends take three times as long: time of a step and savings count them."""
    events, at = [], 0.0
    for number in range(20):
        length = 1_000.0 if 6 <= number < 14 else 3_000.0
        link = {"correlation": number + 1}
        events += [
            event(f"ProfilerStep#{number + 5}", at, length, "user_annotation"),
            event("cudaLaunchKernel", at + 20, 10, "cuda_runtime", **link),
            event("gemm", at + 40, 300, "kernel", 7, device=0, stream=7, **link) | {"pid": 0},
            event("aten::add", at + 100, length - 150, "cpu_op"),
        ]
        at += length
    trace = ttap.load(write_trace(events))
    run = simulated_run(trace, most_events=32, least_steps=3)
    assert len(run.steps) == 8
    simulation = Simulation(run, [])
    whole = step_time(trace.ranks)
    assert whole is not None
    assert whole.measured_ns == pytest.approx(2_200_000, rel=0.01)
    assert simulation.measured_ns == pytest.approx(whole.measured_ns, abs=1)
    assert {step.measured_ns for step in simulation.steps} == {1_000_000}
