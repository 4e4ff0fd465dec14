"""The machine that gives twins their truth: what a program takes on it follows from its rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import torchtraceap as ttap
from made_machine import NCCL_STREAM, Link, Machine, Noise, Process, Rank
from made_training import Comm, Job, Loader, Upload, record
from torchtraceap.simulation.edits.base import edit_names
from twins import TWINS, in_whole_rounds, made_pair

STILL = Noise(host=0.0, gpu=0.0, hiccups=0.0)
PLAIN = Link(launch_us=5, latency_us=3, gap_us=1, return_us=6)


def run(
    body: Callable[[Rank], Process], *, link: Link = PLAIN, steps: int = 5, ranks: int = 1
) -> Machine:
    """Runs `body` in each of some steps; the first one isn't recorded."""

    def program(rank: Rank) -> Process:
        main = rank.thread(1)
        for _ in rank.steps(main, steps):
            yield from body(rank)

    machine = Machine(seed=1, ranks=ranks, link=link, noise=STILL)
    machine.run(program, first_recorded=1)
    return machine


def test_an_awaited_kernel_takes_its_launch_latency_and_return() -> None:
    def body(rank: Rank) -> Process:
        yield from rank.thread(1).launch(7, "gemm", 100)
        yield from rank.thread(1).synchronize()

    assert run(body).step_us() == pytest.approx(5 + 3 + 100 + 6)


def test_a_busy_gpu_sets_the_pace_whatever_the_host_does() -> None:
    def body(rank: Rank) -> Process:
        for _ in range(10):
            yield from rank.thread(1).launch(7, "gemm", 50)

    assert run(body).step_us() == pytest.approx(10 * 51)


def test_a_collective_waits_for_its_last_rank_and_slows_what_runs_beside_it() -> None:
    def body(rank: Rank) -> Process:
        main = rank.thread(1)
        yield from main.work(1_000 if rank.number else 0)
        yield from main.launch(NCCL_STREAM, "nccl", 100, meeting=rank.meeting(100))
        yield from main.launch(7, "gemm", 300)
        yield from main.synchronize(stream=None)

    machine = run(body, link=replace(PLAIN, beside_collectives=1.5), ranks=2)
    # The kernel starts 5 us behind the data of the collective, of which 95 us are left.
    beside, alone = 95, 300 - 95 / 1.5
    assert machine.iteration_us()[1][2] == pytest.approx(1_000 + 5 + 5 + 3 + beside + alone + 6)


def test_data_move_slower_while_a_member_computes() -> None:
    def body(rank: Rank) -> Process:
        main = rank.thread(1)
        if not rank.number:
            yield from main.launch(7, "gemm", 60)
        yield from main.launch(NCCL_STREAM, "nccl", 100, meeting=rank.meeting(100, 1.5))
        yield from main.synchronize(stream=None)

    # The collective starts 5 us behind the kernel, of which 55 us are left.
    beside, alone = 55, 100 - 55 / 1.5
    for mine in run(body, ranks=2).iteration_us():
        assert mine[2] == pytest.approx(5 + 5 + 3 + beside + alone + 6)


def test_workers_that_are_too_few_set_the_pace() -> None:
    job = Job(loader=Loader(60_000, 0.0, workers=3), reads_loss=True)
    assert record(job, seed=1, noise=STILL).step_us() == pytest.approx(20_000, rel=0.01)
    enough = replace(job, loader=replace(job.loader, workers=8))
    assert record(enough, seed=1, noise=STILL).step_us() < 12_000


def test_a_launch_waits_for_a_full_queue() -> None:
    def body(rank: Rank) -> Process:
        for _ in range(1_500):
            yield from rank.thread(1).launch(7, "gemm", 50)

    machine = run(body, steps=3)
    longest = max(row["dur"] for row in machine.members[0].events if row["cat"] == "cuda_runtime")
    assert longest > 40


def test_the_same_seed_varies_alike_with_a_fault_and_without() -> None:
    fault = Job(upload=Upload(50_000_000, pinned=False))
    fixed = replace(fault, upload=Upload(50_000_000))

    def kernels(job: Job) -> list[float]:
        events = record(job, seed=3).documents()[0]["traceEvents"]
        return [e["dur"] for e in events if e["name"] == "ampere_sgemm_128x64_tn"]

    assert kernels(fault)[-24:] == pytest.approx(kernels(fixed)[-24:], abs=0.0021)


def test_the_trace_says_what_ran(tmp_path: Path) -> None:
    job = Job(ranks=2, comm=Comm(bucket_mb=4), reads_loss=True, idle_threads=2, stack=True)
    machine = record(job, seed=1, clock_offsets_us=(0.0, 300.0))
    for rank, document in enumerate(machine.documents()):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    trace = ttap.load(tmp_path)
    for rank in trace.ranks:
        assert rank.world_size == 2
        assert len(rank.tree.steps) == job.steps
        assert not rank.table.diagnostics
        kinds = [rank.table.name_of(row) for row in rank.tree.gpu_rows]
        assert sum(name.startswith("ncclDevKernel_AllReduce") for name in kinds) >= job.steps


@pytest.mark.parametrize("twin", TWINS)
def test_every_twin_runs_and_its_fix_is_an_edit(twin: str) -> None:
    pair, how = made_pair(twin, 1)
    assert pair.fault != pair.fixed
    assert record(pair.fault, **how).step_us() > 0
    assert pair.edit.split("=")[0] in {name.split("[")[0].split("=")[0] for name in edit_names()}


def test_the_truth_of_workers_is_that_of_whole_rounds() -> None:
    """Four workers hand over their batches together: one step of four waits for all of them."""
    job = Job(steps=1, loader=Loader(60_000, 0.0, workers=4), reads_loss=True)
    assert record(job, seed=1, noise=STILL).step_us() < 10_000
    whole = in_whole_rounds(job)
    assert whole.steps == 4
    assert record(whole, seed=1, noise=STILL).step_us() == pytest.approx(15_000, rel=0.01)
    assert in_whole_rounds(replace(job, steps=6)).steps == 8
    assert in_whole_rounds(replace(job, steps=6, loader=Loader(60_000))).steps == 6


# The made machine has a GPU; these are held against runs on a host, with and without the fix
# (docs/results/simulation.md).
OF_THE_HOST = {"no_casts", "no_host_copies", "no_logging"}
# These against predicted runs with the fault and without (docs/results/wins.md).
OF_PREDICTIONS = {"no_small_copies"}
# These against served models whose waits are known (test_kernel_findings.py), or their planted
# faults (test_serving_findings.py).
OF_SERVING = {
    "balance_exchange",
    "draft_graph",
    "exact_batch",
    "sample_on_device",
    "schedule_ahead",
    "whole_graph",
}


# These are what somebody asks for, whose effect follows from the program (test_asked_edits.py).
OF_NAMED_WORK = {"family", "kernel", "operator", "remove", "stream"}


def test_every_edit_has_a_twin() -> None:
    known = {made_pair(twin, 1)[0].edit.split("=")[0] for twin in TWINS}
    known |= OF_THE_HOST | OF_PREDICTIONS | OF_SERVING | OF_NAMED_WORK
    assert {name.split("[")[0].split("=")[0] for name in edit_names()} - {"half"} <= known
