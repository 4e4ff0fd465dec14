"""Edits, each on a program whose flaw costs a known time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import costs_after
from fix_programs import NCCL, FlawedProgram
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_samples import Job, describe

import torchtraceap as ttap
from torchtraceap._core import CopyDirection
from torchtraceap.core.codes import EventKind
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
    default_edits,
    edits_by_finding,
    join_changes,
    make_edit,
    register,
    share_work,
)
from torchtraceap.simulation.edits.collective_parts import contend, measured_slowdown, parts_of
from torchtraceap.simulation.edits.collectives import _consumers
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.edits.waits import _expected_slowest
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import EditOutcome, Simulation, simulate
from torchtraceap.simulation.trust import gpu_floors_ns
from torchtraceap.tables.grouping import Groups

WriteTrace = Callable[..., Path]
Program = Callable[[FlawedProgram], None]
STEPS = 5
ROOT = Path(__file__).resolve().parents[3]


def steps_of(body: Program, *, device: str | None = None) -> dict[str, Any]:
    """A trace of some steps that are all the same."""
    program = FlawedProgram(device) if device else FlawedProgram()
    for number in range(STEPS):
        with program.step(number + 5):
            body(program)
    return program.document()


def run_one(path: Path, edit: str) -> tuple[Simulation, EditOutcome]:
    simulation = simulate(ttap.load(path), [edit])
    return simulation, simulation.edits[0]


def saved_us(simulation: Simulation, outcome: EditOutcome) -> float:
    assert outcome.predicted_ns is not None, outcome.note
    return (simulation.measured_ns - outcome.predicted_ns) / 1e3


# ------------------------------------------------------------------------- loading


def loading(p: FlawedProgram) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    with p.range(name, "user_annotation"):
        p.work(40_000)
    p.launch("gemm", 20_000)
    p.synchronize()


def test_more_workers_hide_loading_but_for_taking_the_batch(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(loading)), "loader_workers=4")
    # From 40 ms to between 0.2 and 2 ms; the host does nothing else that workers could slow down.
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(39_800e3, rel=0.01)
    assert simulation.measured_ns - outcome.high_ns == pytest.approx(38_000e3, rel=0.01)
    assert "resnet" in outcome.source.lower()


def test_workers_make_no_more_batches_than_they_can(write_trace: WriteTrace) -> None:
    """One worker makes a batch in 40 ms, beside the 20 ms of the GPU: these alone are saved."""
    simulation, outcome = run_one(write_trace(steps_of(loading)), "loader_workers=1")
    assert saved_us(simulation, outcome) == pytest.approx(20_000, rel=0.03)


def loading_for(fetch_us: float) -> Program:
    def body(p: FlawedProgram) -> None:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        with p.range(name, "user_annotation"):
            p.work(fetch_us)
        p.work(10_000)
        p.launch("gemm", 4_000)
        p.synchronize()

    return body


@pytest.mark.parametrize("fetch_us", [40_000, 400_000, 5_000_000])
def test_enough_workers_take_the_same_time_whatever_a_fetch_took(
    write_trace: WriteTrace, fetch_us: float
) -> None:
    """10 ms of the host, which workers slow down by a fifth at most, and 4 ms of the GPU."""
    _, outcome = run_one(write_trace(steps_of(loading_for(fetch_us))), "loader_workers=1024")
    assert outcome.low_ns == pytest.approx(10_000e3 + 4_000e3 + 200e3, rel=0.01)
    assert outcome.high_ns == pytest.approx(12_000e3 + 4_000e3 + 2_000e3, rel=0.01)


def test_workers_slow_the_host_down_by_no_more_than_they_spare_it(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(loading_for(500))), "loader_workers=4")
    assert outcome.high_ns == simulation.measured_ns


def fetching(*waits_us: float) -> dict[str, Any]:
    """Steps that need 10 ms on the host, and wait so long for each batch."""
    program = FlawedProgram()
    for number, wait_us in enumerate(waits_us):
        with program.step(number + 5):
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            with program.range(name, "user_annotation"):
                program.work(wait_us)
            program.work(10_000)
            program.launch("gemm", 100)
            program.synchronize()
    return program.document()


def test_bursts_show_how_many_workers_there_are(write_trace: WriteTrace) -> None:
    """Three workers take 120 ms for a batch each: six make one every 20 ms, not every 40."""
    waits = [90_000 + 500 * (n % 2) if n % 3 == 0 else 100 for n in range(18)]
    edited = make_edit("loader_workers=6").apply(
        SimulatedRun(ttap.load(write_trace(fetching(*waits))))
    )
    assert "3 of them become 6" in edited.note
    _, _, every_ns = edited.best.added
    assert np.median(every_ns) == pytest.approx(20_000e3, rel=0.03)
    _, refused = run_one(write_trace(fetching(*waits), "again.json"), "loader_workers=3")
    assert refused.note == "the loader has 3 workers already"


def test_workers_that_the_trace_saw_start_are_counted(write_trace: WriteTrace) -> None:
    document = fetching(*[50_000] * 6)
    frames = [("torch/utils/data/dataloader.py(1017): __init__", 10.0, 80.0)]
    frames += [("multiprocessing/process.py(110): start", 20.0 + 30 * n, 10.0) for n in range(2)]
    for name, start, length in frames:
        event = {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1}
        document["traceEvents"].append(event | {"ts": start, "dur": length, "args": {}})
    _, outcome = run_one(write_trace(document), "loader_workers=4")
    assert "2 of them become 4" in outcome.note
    assert outcome.low_ns == pytest.approx(30_000e3, rel=0.02)


@pytest.mark.parametrize(
    ("waits", "fewest", "likely"),
    [
        ([50_000] * 6, 1, 1),  # nobody had a batch ready while another was awaited
        ([90_000, 100] * 2, 2, 2),
        ([90_000, 20_000] * 2, 1, 2),  # batches may vary by that much, but seldom do
        ([90_000, 100, 100, 90_000], 3, 12**0.5),  # one round: the middle of three and four
    ],
)
def test_workers_of_unknown_number_may_be_enough_already(
    write_trace: WriteTrace, waits: list[float], fewest: float, likely: float
) -> None:
    run = SimulatedRun(ttap.load(write_trace(fetching(*waits))))
    edited = make_edit("loader_workers=4").apply(run)
    assert "how many there are is not in the trace" in edited.note
    assert edited.cautious is not None and not len(edited.cautious)
    pace_ns = [np.median(change.added[2]) for change in (edited.best, *edited.likely)]
    assert pace_ns[1] / pace_ns[0] == pytest.approx(likely / fewest)


def test_one_worker_may_become_four_at_best(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(fetching(*[50_000] * 6)), "loader_workers=4")
    assert outcome.low_ns == pytest.approx(15_000e3, rel=0.02)
    assert outcome.high_ns == simulation.measured_ns


def test_a_single_fetch_tells_its_usual_time_only_roughly(write_trace: WriteTrace) -> None:
    program = FlawedProgram()
    with program.step(5):
        loading_for(400_000)(program)
    _, outcome = run_one(write_trace(program.document()), "loader_workers=4")
    assert outcome.low_ns == pytest.approx(0.87 * 100_000e3 / 1.05, rel=0.01)
    assert outcome.high_ns == pytest.approx(1.13 * 133_000e3 * 1.05, rel=0.01)


def test_a_gpu_far_behind_does_not_hide_the_pace_of_workers(write_trace: WriteTrace) -> None:
    """50 ms behind when the recording begins, and 5 ms faster than batches come: it waits for
    them in the end."""
    program = FlawedProgram()
    program.launch("from before", 50_000)
    for number in range(2):
        with program.step(number + 5):
            with program.range("_SingleProcessDataLoaderIter.__next__"):
                program.work(30_000)
            program.launch("gemm", 25_000)
    _, outcome = run_one(write_trace(program.document()), "loader_workers=1")
    assert outcome.high_ns is not None and outcome.high_ns >= 30_000e3


def test_worker_counts_that_make_no_sense_are_refused() -> None:
    for value in ("0", "-1", "many", "1.5"):
        with pytest.raises(OptionError, match="loader_workers"):
            make_edit(f"loader_workers={value}")


# ------------------------------------------------------------------------- waits and copies


def reading(p: FlawedProgram) -> None:
    p.launch("gemm", 1_000)
    with p.range("aten::item"), p.range("aten::_local_scalar_dense"):
        p.copy("DtoH", "Pageable", 4, 2)
        p.synchronize()
    p.work(900)


def test_without_reads_the_host_runs_beside_the_gpu(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(reading)), "remove_host_sync")
    # Host and GPU took turns: 1 000 and 900. Side by side the GPU's time remains.
    assert saved_us(simulation, outcome) == pytest.approx(900, rel=0.1)
    assert "5 reads of values" in outcome.note


def test_reads_that_no_gpu_work_precedes_are_no_waits(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        p.launch("gemm", 100)
        with p.range("aten::item"):
            p.work(50)

    _, outcome = run_one(write_trace(steps_of(body)), "remove_host_sync")
    assert not outcome.applies
    assert "no call makes the host wait" in outcome.note


def pageable(p: FlawedProgram) -> None:
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pageable", 25_000_000, 5_000)
    p.launch("gemm", 8_000)
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pinned", 25_000_000, 1_000)


def test_pinned_copies_take_the_rate_of_those_in_the_trace(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(pageable)), "pin_memory")
    # At best 5 ms become 1 ms; at least the host still moves the batch itself, beside the GPU.
    assert outcome.source == "pinned copies of the trace"
    assert outcome.low_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(4_000e3, rel=0.05)
    assert saved_us(simulation, outcome) > 1_000


def uploading(p: FlawedProgram) -> None:
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pageable", 50_000_000, 10_000)
    p.launch("gemm", 1_000)
    p.synchronize()


@pytest.mark.parametrize(
    ("device", "rate", "source"),
    [
        # 88 % of the link's 31.5, 450 and 15.75 GB/s.
        ("NVIDIA A100-SXM4-40GB", 27.7e9, "share of the PCIe rate"),
        ("NVIDIA GH200 480GB", 373.5e9, "share of the NVLink-C2C rate"),
        ("NVIDIA Unheard-of", 27.7e9, "device not known: share of the slowest plausible PCIe"),
        ("", 13.86e9, "device not known: share of the slowest plausible PCIe"),
    ],
)
def test_pinned_copies_are_no_faster_than_the_link(
    write_trace: WriteTrace, device: str, rate: float, source: str
) -> None:
    document = steps_of(uploading, device=device or "any")
    if "GH200" in device:
        document["deviceProperties"][0] |= {"computeMajor": 9}
    if not device:
        del document["deviceProperties"]
    simulation, outcome = run_one(write_trace(document), "pin_memory")
    assert outcome.source.startswith(source)
    assert outcome.low_ns is not None
    copied_ns = 10_000e3 - (simulation.measured_ns - outcome.low_ns)
    assert copied_ns == pytest.approx(50e6 / rate * 1e9, abs=20e3)


def test_a_rate_that_no_link_has_is_no_rate(write_trace: WriteTrace) -> None:
    """A pinned copy that seems to run at 1 TB/s: its times are wrong."""

    def body(p: FlawedProgram) -> None:
        uploading(p)
        p.copy("HtoD", "Pinned", 50_000_000, 50)

    simulation, outcome = run_one(write_trace(steps_of(body)), "pin_memory")
    assert outcome.source == "pinned copies of the trace"
    assert outcome.low_ns is not None
    copied_ns = 10_000e3 - (simulation.measured_ns - outcome.low_ns)
    assert copied_ns == pytest.approx(50e6 / 27.7e9 * 1e9, abs=20e3)


def test_copies_of_unknown_size_take_as_long_as_before(write_trace: WriteTrace) -> None:
    document = steps_of(uploading)
    for event in document["traceEvents"]:
        event["args"].pop("bytes", None)
    _, outcome = run_one(write_trace(document), "pin_memory=HtoD")
    assert "take 50.0 ms instead of 50.0 ms" in outcome.note


def test_without_workers_the_training_thread_pins(write_trace: WriteTrace) -> None:
    """50 MB over 10 GB/s at best, over the 5 GB/s of the pageable copy at least."""

    def body(p: FlawedProgram) -> None:
        with p.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            p.work(100)
        uploading(p)

    simulation, outcome = run_one(write_trace(steps_of(body)), "pin_memory")
    assert "the training thread pins the batches: 25.0 ms to 50.0 ms" in outcome.note
    assert outcome.low_ns is not None and outcome.high_ns is not None
    copied_ns = 50e6 / 27.72e9 * 1e9
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(5_000e3 - copied_ns, rel=0.02)
    assert outcome.high_ns >= simulation.measured_ns


@pytest.mark.parametrize(
    ("memory", "reason"), [("Pinned", "page-locked"), ("Unknown", "don't say what host memory")]
)
def test_copies_that_need_no_pinning_say_so(
    write_trace: WriteTrace, memory: str, reason: str
) -> None:
    def body(p: FlawedProgram) -> None:
        p.copy("HtoD", memory, 1_000_000, 100)

    _, outcome = run_one(write_trace(steps_of(body)), "pin_memory")
    assert outcome.predicted_ns is None
    assert reason in outcome.note


def test_memory_calls_of_a_steady_state_go(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        p.launch("gemm", 2)
        with p.range("cudaMalloc", "cuda_runtime"):
            p.work(300)

    simulation, outcome = run_one(write_trace(steps_of(body)), "no_allocator_calls")
    assert saved_us(simulation, outcome) == pytest.approx(302, abs=3)


def test_memory_calls_of_a_run_that_never_settles_may_be_warm_up(write_trace: WriteTrace) -> None:
    program = FlawedProgram()
    with program.range("cudaMalloc", "cuda_runtime"):
        program.work(300)
    program.launch("gemm", 100)
    simulation, outcome = run_one(write_trace(program.document()), "no_allocator_calls")
    assert outcome.high_ns == pytest.approx(1.05 * simulation.measured_ns)  # steps are not known
    assert "no steady state" in outcome.note


# ------------------------------------------------------------------------- communication


def communicating(p: FlawedProgram) -> None:
    p.launch("gemm_a", 500)
    p.launch(NCCL, 300)
    p.launch("gemm_b", 500)
    p.synchronize()


def test_computation_goes_on_beside_a_collective(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(communicating)), "overlap_collectives")
    # At best all of it is hidden; nothing shows that the next kernel does not need the result.
    assert outcome.low_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(301e3, rel=0.05)
    assert outcome.high_ns == simulation.measured_ns


@pytest.mark.parametrize(("best", "gemm_us"), [(True, 130 / 1.3), (False, 130)])
def test_a_kernel_whose_company_goes_regains_what_it_may_have_cost(
    write_trace: WriteTrace, best: bool, gemm_us: float
) -> None:
    def body(p: FlawedProgram) -> None:
        p.launch(NCCL, 150, stream=20)
        p.launch("gemm", 130)
        p.launch("later", 130)
        p.synchronize()

    run = SimulatedRun(ttap.load(write_trace(steps_of(body))))
    (view,) = views(run)
    change = Change()
    view.remove_gpu(change, view.rows_named("^nccl", EventKind.KERNEL))
    contend(run, change, best=best)
    edges = view.duration_edges(view.rows_named("^gemm$|^later$", EventKind.KERNEL))
    costs_us = change.costs_of(run.cost_ns, edges) / 1e3
    assert costs_us[0] == pytest.approx(gemm_us)
    assert costs_us[1] > (125 if best else 129)


@pytest.mark.parametrize(("best", "us"), [(True, 100), (False, 120)])
def test_data_that_move_beside_computation_may_take_longer(
    write_trace: WriteTrace, best: bool, us: float
) -> None:
    def body(p: FlawedProgram) -> None:
        p.launch("gemm_a", 50)
        p.launch(NCCL, 100, **describe("allreduce", 1 << 20, [0, 1]))
        p.launch("gemm_b", 500)
        p.synchronize()

    run = SimulatedRun(ttap.load(write_trace(steps_of(body))))
    (view,), (parts,) = views(run), parts_of(run)
    change = Change()
    waits = view.edges_into(view.begin_of[view.rows_named("^gemm_b$", EventKind.KERNEL)])
    change.drop(waits[np.isin(view.source_of(waits), view.end_of[parts.rows])])
    contend(run, change, best=best)
    assert parts.transfer_with(change) / 1e3 == pytest.approx(us, abs=0.5)


def test_work_from_before_the_recording_hides_no_overlap(write_trace: WriteTrace) -> None:
    """The host is three steps ahead: a kernel whose launch was not recorded lies in its step, but
    no collective of the steps before is needed by then."""

    def body(p: FlawedProgram) -> None:
        p.launch("gemm_a", 500)
        p.launch(NCCL, 300, stream=20, **describe("allreduce", 1 << 20, [0]))
        p.launch("gemm_b", 500)
        p.launch("gemm_c", 500)

    document = steps_of(body)
    late = next(e for e in document["traceEvents"] if e["name"] == "ProfilerStep#8")
    orphan = {"ph": "X", "cat": "kernel", "name": "earlier", "pid": 0, "tid": 7, "dur": 1.0}
    orphan |= {"ts": late["ts"] + 2, "args": {"device": 0, "stream": 9, "correlation": 10**6}}
    document["traceEvents"].append(orphan)
    run = SimulatedRun(ttap.load(write_trace(document)))
    (parts,) = parts_of(run)
    points = _consumers(parts, np.arange(len(parts.rows)))
    rows = run.graph.row[points[points >= 0]]
    assert {parts.view.table.name_of(int(row)) for row in rows} == {"gemm_a"}


def test_small_collectives_share_one_latency(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        for _ in range(10):
            p.launch(NCCL, 15)
        p.launch("gemm", 200)
        p.synchronize()

    simulation, outcome = run_one(write_trace(steps_of(body)), "merge_collectives")
    assert outcome.note.startswith("small ones (under 64 KiB): 50 collectives become 5")
    assert outcome.low_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(9 * 16e3, rel=0.1)


def test_collectives_whose_result_is_used_between_are_not_merged(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        for _ in range(5):
            p.launch(NCCL, 15)
            p.launch("gemm", 200)

    _, outcome = run_one(write_trace(steps_of(body)), "merge_collectives")
    assert "no small collectives follow each other" in outcome.note


def waiting_job(late: int = 2, ranks: int = 4) -> Job:
    """Every step one rank computes 3 ms longer, and all hosts wait for the all-reduce."""
    job = Job(ranks)
    for number in range(STEPS):
        at = 4_320.0 * number + 100
        job.step(number + 5, at, 4_320)
        for rank in range(ranks):
            done = at + (4_050 if rank == late else 1_050)
            job.kernel(rank, at + 50, done - at - 50)
            wait = at + 4_310 - (done + 15)
            job.ranks[rank].host("cuda_runtime", "cudaDeviceSynchronize", done + 15, wait)
        job.all_reduce([at + (4_060 if r == late else 1_060) for r in range(ranks)], at + 4_300)
    return job


def test_a_late_rank_that_keeps_up_saves_its_lateness(tmp_path: Path) -> None:
    simulation = simulate(waiting_job().load(tmp_path / "ranks"), ["straggler_to_median"])
    outcome = simulation.edits[0]
    assert saved_us(simulation, outcome) == pytest.approx(3_000, rel=0.02)
    assert outcome.note == (
        "rank 2 took 15.0 ms longer than the median rank between collectives, 1 of 4 ranks did at "
        "some"
    )


def test_a_host_that_goes_on_behind_a_collective_waited_for_it(tmp_path: Path) -> None:
    """As above, but no call shows the wait."""
    job = waiting_job()
    for maker in job.ranks:
        for event in maker.events:
            if event["name"] == "cudaDeviceSynchronize":
                event["ts"] += event["dur"] - 5
                event["dur"], event["name"] = 5, "cudaFree"
    simulation = simulate(job.load(tmp_path / "ranks"), ["straggler_to_median"])
    assert saved_us(simulation, simulation.edits[0]) == pytest.approx(3_000, rel=0.02)


def test_a_rank_like_the_others_is_now_and_then_the_slowest_itself() -> None:
    """The slowest of the others, and of three ranks a third of what it is ahead of the next."""
    keys = np.array([7, 7, 8, 7, 9, 9], dtype=np.int64)
    spans = np.array([5, 9, 4, 7, 3, 3], dtype=np.int64)
    expected = [9 + 2 / 3, 7 + 2 / 3, 0, 9 + 4 / 3, 3, 3]
    assert _expected_slowest(Groups(keys), spans) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("since", "us", "slower"),
    [(320, 50, (1.0, 1.3)), (1_010, 75, (1.5, 1.5))],
    ids=["beside a wait", "beside data"],
)
def test_what_waits_for_another_rank_tells_no_contention(
    tmp_path: Path, since: float, us: float, slower: tuple[float, float]
) -> None:
    """Of a collective that waits 0.7 ms and moves data for 0.5 ms."""
    job = Job(4)
    for number in range(STEPS):
        at = 2_000.0 * number + 100
        job.step(number + 5, at, 2_000)
        job.kernel(3, at + 50, 940)
        for maker in job.ranks[:3]:
            for place in range(5):
                for start, length in ((at + 50 + 50 * place, 49), (at + since + us * place, us)):
                    long = length * (49 / 50 if length > 49 else 1)
                    maker.gpu("kernel", f"gemm_{place}", start, long, launch=start - 20)
        job.all_reduce([at + (1_000 if rank == 3 else 310) for rank in range(4)], at + 1_500)
    found = measured_slowdown(SimulatedRun(job.load(tmp_path / "ranks")))
    assert found[:2] == pytest.approx(slower)


def test_kernels_of_other_shapes_do_other_work(write_trace: WriteTrace) -> None:
    """Products of one name and grid: the deeper ones run beside the collective."""

    def body(p: FlawedProgram) -> None:
        p.launch(NCCL, 5_000, stream=20)
        for depth in (64, 128):
            if depth == 64:
                p.synchronize()
                p.launch("behind", 10)
                p.synchronize()
            for name in range(5):
                with p.range("aten::mm", **{"Input Dims": [[8, depth], [depth, 8]]}):
                    p.launch(f"gemm_{name}", depth, grid=[8, 1, 1])
            if depth == 64:
                p.launch(NCCL, 5_000, stream=20)

    found = measured_slowdown(SimulatedRun(ttap.load(write_trace(steps_of(body)))))
    assert found[:2] == (1.0, 1.3)


def test_one_rank_has_no_straggler(write_trace: WriteTrace) -> None:
    _, outcome = run_one(write_trace(steps_of(communicating)), "straggler_to_median")
    assert outcome.note == "it compares ranks, and there is one"


# ------------------------------------------------------------------------- launches


def operators(p: FlawedProgram) -> None:
    for i in range(40):
        with p.range(f"aten::op{i % 4}"):
            p.work(40)
            p.launch("gemm", 10)


def launching(p: FlawedProgram) -> None:
    operators(p)
    p.synchronize()


def test_a_graph_leaves_the_kernels_alone(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(launching)), "cuda_graph")
    # 40 times 47 us on the host; the GPU needs 40 times 10 + 1.
    assert outcome.predicted_ns is not None
    assert simulation.measured_ns > 40 * 47e3
    assert outcome.predicted_ns == pytest.approx(40 * 11e3 + 65e3, abs=40e3)


def test_a_graph_spares_no_python_between_operators(write_trace: WriteTrace) -> None:
    """Python that goes on for 3 ms between two operators does something else than call them."""

    def body(p: FlawedProgram) -> None:
        operators(p)
        p.work(3_000)
        launching(p)

    simulation, outcome = run_one(write_trace(steps_of(body)), "cuda_graph")
    assert outcome.predicted_ns is not None and outcome.low_ns is not None
    assert outcome.low_ns >= 3_000e3
    assert simulation.measured_ns > 3_000e3 + 80 * 47e3


def test_a_graph_spares_no_first_calls(write_trace: WriteTrace) -> None:
    """One operator of each step tries algorithms for 4 ms before it launches."""

    def body(p: FlawedProgram) -> None:
        operators(p)
        with p.range("aten::cudnn_convolution"):
            p.work(4_000)
            p.launch("conv", 10)
        p.synchronize()

    _, outcome = run_one(write_trace(steps_of(body)), "cuda_graph")
    assert outcome.low_ns is not None
    assert outcome.low_ns >= 4_000e3


def waiting_inside(p: FlawedProgram) -> None:
    launching(p)
    with p.range("aten::item"), p.range("aten::_local_scalar_dense"):
        p.copy("DtoH", "Pageable", 4, 2)
    launching(p)


def masking(p: FlawedProgram) -> None:
    launching(p)
    with p.range("aten::masked_select"):
        p.launch("select", 10)


def growing(p: FlawedProgram) -> None:
    grid = len(p.events)
    for _ in range(40):
        p.launch("gemm", 10, grid=[grid, 1, 1])
    p.synchronize()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (waiting_inside, "waits for the GPU inside 3 steps, 6 times in total (first in "),
        (masking, "shapes depend on values: 5 operators such as aten::masked_select"),
        (growing, "steps launch different kernels or grids (3 kinds among 3 steps)"),
    ],
)
def test_what_a_graph_cannot_hold_is_said(
    write_trace: WriteTrace, body: Program, reason: str
) -> None:
    _, outcome = run_one(write_trace(steps_of(body)), "cuda_graph")
    assert not outcome.applies
    assert reason in outcome.note


def uneven(p: FlawedProgram) -> None:
    """The host prepares a step for 0.1 or 6 ms; the GPU needs 2.2 ms for it."""
    done = sum(event["name"].startswith("ProfilerStep") for event in p.events)
    p.work(6_000 if done % 2 == 0 else 100)
    for _ in range(11):
        p.launch("gemm", 200)
    p.synchronize()
    p.launch("relu", 10)


def test_nothing_is_faster_than_the_gpu(write_trace: WriteTrace) -> None:
    """The interval is wide for the noise of the steps, but the kernels stay."""
    simulation, outcome = run_one(write_trace(steps_of(uneven)), "remove_host_sync")
    assert outcome.predicted_ns is not None and outcome.low_ns is not None
    assert simulation.noise_ns > 1_000e3
    assert 2_200e3 <= outcome.low_ns <= outcome.predicted_ns


def test_waits_of_the_allocator_and_of_a_first_step_keep_no_graph_away(
    write_trace: WriteTrace,
) -> None:
    def body(p: FlawedProgram) -> None:
        operators(p)
        if not any(event["name"].startswith("ProfilerStep") for event in p.events):
            p.synchronize()
        p.synchronize("cudaFree")
        launching(p)

    _, outcome = run_one(write_trace(steps_of(body)), "cuda_graph")
    assert outcome.applies, outcome.note


def test_kernels_that_share_a_stream_count_once_for_the_floor(write_trace: WriteTrace) -> None:
    """Branches of a graph may overlap on the stream that shows them: 25 us for three of 10."""
    document = steps_of(waiting_inside)
    (first, *_) = (e["ts"] for e in document["traceEvents"] if e["name"] == "ProfilerStep#7")
    starts = (first, first + 5, first + 20)
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1}
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event["name"].startswith("ProfilerStep")
    ]
    document["traceEvents"].append(launch | {"ts": first + 1, "dur": 4, "args": {"correlation": 1}})
    for start in starts:
        args = {"correlation": 1, "device": 0, "stream": 7}
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": args}
        document["traceEvents"].append(kernel | {"ts": start + 9, "dur": 10})
    run = SimulatedRun(ttap.load(write_trace(document)))
    assert gpu_floors_ns(run, Change()).sum() == pytest.approx(25e3)


def test_few_launches_are_worth_no_graph(write_trace: WriteTrace) -> None:
    _, outcome = run_one(write_trace(steps_of(reading)), "cuda_graph")
    assert "nowhere are 10 kernels launched" in outcome.note


def optimizing(p: FlawedProgram) -> None:
    p.launch("gemm", 100)
    with p.range("Optimizer.step#Adam.step", "user_annotation"):
        for i in range(80):
            with p.range(("aten::mul_", "aten::add_", "aten::addcdiv_", "aten::sqrt")[i % 4]):
                p.work(20)
                p.launch("vectorized_elementwise_kernel", 4)
    p.synchronize()


def test_a_fused_optimizer_runs_each_operator_once(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(optimizing)), "fused_optimizer")
    # 80 operators of 27 us become 4; at least a quarter of the walk over parameters stays.
    assert outcome.note == "400 kernels of 5 optimizer steps are fused"
    assert saved_us(simulation, outcome) == pytest.approx(80 * 27 * 0.85, rel=0.12)


def test_an_optimizer_of_few_kernels_is_left_alone(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        with p.range("Optimizer.step#SGD.step", "user_annotation"):
            p.launch("multi_tensor_apply_kernel", 50)

    _, outcome = run_one(write_trace(steps_of(body)), "fused_optimizer")
    assert "no optimizer step launches 50 or more" in outcome.note


def pointwise(p: FlawedProgram) -> None:
    with p.range("aten::mm"):
        p.launch("ampere_sgemm_128x64_tn", 500)
    for name in ("aten::add", "aten::mul", "aten::relu"):
        with p.range(name):
            p.launch("vectorized_elementwise_kernel", 200, grid=[64, 1, 1])
    p.synchronize()


def test_pointwise_kernels_take_the_time_of_one(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(pointwise)), "fuse_pointwise")
    # 600 become 200 at best; at least each further one reads a tensor: 200 + 2 x 67.
    assert outcome.note.startswith("15 kernels become 5")
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(402e3, rel=0.03)
    assert simulation.measured_ns - outcome.high_ns == pytest.approx(268e3, rel=0.05)


def test_breaks_between_compiled_regions_close(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        with p.range("Torch-Compiled Region: 0/0", "user_annotation"):
            with p.range("CompiledFunction"):
                p.launch("triton_poi_fused_add_0", 50)
            p.work(600)
            with (
                p.range("Torch-Compiled Region: 1/0", "user_annotation"),
                p.range("CompiledFunction"),
            ):
                p.launch("triton_poi_fused_add_1", 50)
        p.synchronize()

    simulation, outcome = run_one(write_trace(steps_of(body)), "merge_compiled_regions")
    assert outcome.note.startswith("closed: 5 breaks between compiled regions")
    assert saved_us(simulation, outcome) == pytest.approx(550, rel=0.15)


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        ("zero_grad_to_none", "Optimizer.zero_grad#SGD.zero_grad"),
        ("no_unused_parameter_search", "torch.distributed.ddp.reducer::search_unused_parameters"),
        ("no_recompilation", "_compile.compile_inner (dynamo_timed)"),
    ],
)
def test_what_is_not_done_costs_nothing(write_trace: WriteTrace, edit: str, name: str) -> None:
    def body(p: FlawedProgram) -> None:
        p.launch("gemm", 50)
        with p.range(name, "user_annotation"):
            p.work(300)
            p.launch("FillFunctor", 400)
        p.synchronize()

    simulation, outcome = run_one(write_trace(steps_of(body)), edit)
    # The host's 302 and its launch, or the GPU's 400 behind them: the later of both.
    assert saved_us(simulation, outcome) == pytest.approx(302 + 5 + 400, abs=60)
    other = simulate(ttap.load(write_trace(steps_of(loading), "other.json")), [edit]).edits[0]
    assert not other.applies


def test_the_first_compilation_of_a_function_stays(write_trace: WriteTrace) -> None:
    program = FlawedProgram()
    for number in range(STEPS):
        with program.step(number + 5):
            program.launch("gemm", 50)
            compilation = {2: 0, 3: 1}.get(number)
            if compilation is not None:
                with program.range("_compile.compile_inner (dynamo_timed)", "user_annotation"):
                    program.work(300)
                with program.range(f"Torch-Compiled Region: 3/{compilation}"):
                    program.launch("triton_poi_3", 10)
            program.synchronize()
    _, outcome = run_one(write_trace(program.document()), "no_recompilation")
    assert outcome.note.startswith("gone: 1 compilation with")


def accumulating(p: FlawedProgram) -> None:
    """Two parameters, two backward passes: only the first adds to zeros."""
    with p.range("Optimizer.zero_grad#SGD.zero_grad", "user_annotation"):
        for _ in range(2):
            with p.range("aten::zero_"):
                p.launch("FillFunctor", 10)
    for _ in range(4):
        node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        with p.range(node), p.range("aten::add_"):
            p.launch("CUDAFunctor_add", 100)
    p.synchronize()


def test_no_gradient_is_added_to_zeros_that_are_not_there(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(accumulating)), "zero_grad_to_none")
    # The GPU's 2 fills go for sure, of 4 additions 2 at best; all with 1 us behind them.
    assert outcome.note.endswith("and at best 10 additions to zeros")
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert outcome.high_ns - outcome.low_ns == pytest.approx(2 * 101e3, abs=10e3)
    assert simulation.measured_ns - outcome.high_ns == pytest.approx(2 * 11e3, abs=15e3)


def test_the_host_hands_over_one_collective_for_many(write_trace: WriteTrace) -> None:
    """Each takes the host 40 us, the GPU 15: at best the host spares nine of ten."""

    def body(p: FlawedProgram) -> None:
        for _ in range(10):
            with p.range("c10d::allreduce_"), p.range("record_param_comms"):
                p.work(30)
                p.launch(NCCL, 15)
        p.launch("gemm", 20)
        p.synchronize()

    simulation, outcome = run_one(write_trace(steps_of(body)), "merge_collectives")
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(9 * 39e3, rel=0.05)
    # Cautiously the calls alone go, and the one takes the rest of the data: 9 x 15 x 1/4 longer.
    assert simulation.measured_ns - outcome.high_ns == pytest.approx(9 * (5e3 - 3_750), rel=0.1)


def searching(steps_us: list[float], rest_us: list[float]) -> FlawedProgram:
    """Steps that search for unused parameters, some for long, and wait for their kernel."""
    program = FlawedProgram()
    for number, (search_us, more_us) in enumerate(zip(steps_us, rest_us, strict=True)):
        with program.step(number + 5):
            with program.range("reducer::search_unused_parameters"):
                program.work(search_us)
            program.launch("gemm", 1_000)
            program.work(more_us)
            program.synchronize()
    return program


def test_what_makes_one_step_long_is_no_noise_for_its_fix(write_trace: WriteTrace) -> None:
    """One of four steps takes 100 times as long: the mean is 25 ms, and 1 ms behind the fix."""
    program = searching([10, 10, 100_000, 10], [0, 0, 0, 0])
    simulation, outcome = run_one(write_trace(program.document()), "no_unused_parameter_search")
    assert simulation.measured_ns == pytest.approx(26.0e6, rel=0.01)
    assert outcome.predicted_ns == pytest.approx(1.02e6, rel=0.02)
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert outcome.high_ns - outcome.low_ns < 0.1e6
    assert simulation.plan[0].edit == "no_unused_parameter_search"


def test_a_fix_that_leaves_steps_without_a_mean_is_lost_in_them(write_trace: WriteTrace) -> None:
    program = searching([300] * 4, [0, 100_000, 0, 100_000])
    simulation, outcome = run_one(write_trace(program.document()), "no_unused_parameter_search")
    assert outcome.predicted_ns == simulation.measured_ns
    assert "lies below the steps' own noise" in outcome.note


def test_buffers_are_not_broadcast(tmp_path: Path) -> None:
    job = Job(2)
    for number in range(STEPS):
        at = 1_000.0 * number + 100
        job.step(number + 5, at, 1_000)
        for rank in range(2):
            job.host(rank, "DistributedDataParallel.forward", at + 10, 300)
            job.ranks[rank].host("cuda_runtime", "cudaDeviceSynchronize", at + 400, 580)
        job.all_reduce([at + 100, at + 100], at + 980)
        for maker in job.ranks:
            maker.events[-1]["name"] = "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)"
            maker.events[-1]["args"]["Collective name"] = "broadcast"
    trace = job.load(tmp_path / "ranks")
    # Broadcasts alone bring no clocks together: a prediction would be of one rank.
    outcome = simulate(trace, ["no_broadcast_buffers"]).edits[0]
    assert outcome.note.startswith("only 1 of 2 ranks share collectives")
    run = SimulatedRun(trace)
    edited = make_edit("no_broadcast_buffers").apply(run)
    assert edited.note == "gone: 5 broadcasts"
    saved_ns = run.steady_ns() - run.steady_ns(edited.best.delta())
    assert saved_ns == pytest.approx(580e3, abs=30e3)


# ------------------------------------------------------------------------- faster kernels


def products(p: FlawedProgram) -> None:
    dims = [[2048, 2048], [2048, 2048]]
    args = {"Input Dims": dims, "Input type": ["float", "float"]}
    with p.range("aten::mm", **args):
        p.launch("ampere_sgemm_128x64_tn", 1_000)
    p.synchronize()


def test_products_in_bf16_take_what_models_say(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(products)), "mixed_precision=bf16")
    # 17 Gflop take 55 us at the peak of an A100, and the conversion of 34 MB 32 us.
    assert outcome.low_ns is not None and outcome.high_ns is not None
    best_ns, least_ns = (
        1e6 - (simulation.measured_ns - after) for after in (outcome.low_ns, outcome.high_ns)
    )
    assert 55e3 <= best_ns < 150e3
    assert best_ns + 30e3 < least_ns < 400e3


def test_a_product_is_never_faster_than_its_peak(write_trace: WriteTrace) -> None:
    """Already at 90 us, where the model would take a sixteenth of the time."""

    def body(p: FlawedProgram) -> None:
        dims = [[2048, 2048], [2048, 2048]]
        with p.range("aten::mm", **{"Input Dims": dims, "Input type": ["float", "float"]}):
            p.launch("ampere_sgemm_128x64_tn", 90)
        p.synchronize()

    _, outcome = run_one(write_trace(steps_of(body)), "mixed_precision=bf16")
    assert outcome.note.endswith("take 275 µs at best instead of 450 µs")


def nameless(p: FlawedProgram) -> None:
    p.launch("ampere_sgemm_128x64_tn", 900)
    p.launch("ampere_sgemm_32x32_sliced1x4_tn", 2)
    p.launch("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 100)
    p.synchronize()


@pytest.mark.parametrize("device", ["NVIDIA A100-SXM4-40GB", "NVIDIA Unheard-of", ""])
def test_products_without_shapes_are_priced_by_their_names(
    write_trace: WriteTrace, device: str
) -> None:
    """A sixteenth at best; half where neither a device nor its architecture is known; never less
    than what a kernel takes to start."""
    document = steps_of(nameless, device=device or "any")
    if not device:
        del document["deviceProperties"]
    simulation, outcome = run_one(write_trace(document), "mixed_precision=bf16")
    assert outcome.low_ns is not None
    saved = (simulation.measured_ns - outcome.low_ns) / 1e3
    ratio = 1 / 16 if device else 1 / 2
    assert saved == pytest.approx(900 * (1 - ratio) + 1, rel=0.01)
    assert outcome.high_ns == simulation.measured_ns
    assert "the work of 10 is not recorded" in outcome.note


def test_products_of_unknown_work_take_the_ratio_of_the_peaks_at_best(
    write_trace: WriteTrace,
) -> None:
    def convolutions(p: FlawedProgram) -> None:
        with p.range("aten::cudnn_convolution", **{"Input type": ["float", "float"]}):
            p.launch("implicit_convolve_sgemm", 1_000)
        with p.range("aten::cudnn_convolution", **{"Input type": ["c10::Half", "c10::Half"]}):
            p.launch("implicit_convolve_hgemm", 1_000)
        p.synchronize()

    simulation, outcome = run_one(write_trace(steps_of(convolutions)), "mixed_precision=bf16")
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(15 / 16 * 1e6, rel=0.02)
    # At least they take as long as now, behind an operator that casts: 1.2 times the 7 us of one.
    assert outcome.high_ns - simulation.measured_ns == pytest.approx(8.4e3, abs=1)
    assert "ratio of the peaks" in outcome.note
    assert outcome.predicted_ns is not None  # as a square product of 1 ms, nearer to the best
    assert 0.6e6 < simulation.measured_ns - outcome.predicted_ns < 15 / 16 * 1e6


def test_element_wise_kernels_of_unknown_work_move_half_the_bytes(write_trace: WriteTrace) -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, {}>(int)"

    def body(p: FlawedProgram) -> None:
        p.launch("ampere_sgemm_128x64_tn", 100)
        p.launch(name.format("Add", "float"), 600)
        p.launch(name.format("Add", "c10::Half"), 600)
        with p.range("Optimizer.step#Adam.step", "user_annotation"):
            p.launch(name.format("Mul", "float"), 600)
        p.synchronize()

    path = write_trace(steps_of(body, device="A100-SXM4-40GB"))
    simulation, outcome = run_one(path, "mixed_precision=bf16")
    assert outcome.predicted_ns is not None
    saved_us = (simulation.measured_ns - outcome.predicted_ns) / 1e3
    assert 300 < saved_us < 400


def test_a_device_without_the_type_says_so(write_trace: WriteTrace) -> None:
    path = write_trace(steps_of(products, device="Tesla V100-SXM2-32GB"))
    document = ttap.load(path)
    outcome = simulate(document, ["mixed_precision=bf16"]).edits[0]
    assert not outcome.applies


def test_layout_conversions_go_but_for_the_inputs(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        for _ in range(3):
            p.launch("void cudnn::ops::nchwToNhwcKernel<float, float>", 100)
            p.launch("conv", 200)
        p.synchronize()

    simulation, outcome = run_one(write_trace(steps_of(body)), "channels_last")
    assert outcome.low_ns is not None and outcome.high_ns is not None
    assert simulation.measured_ns - outcome.low_ns == pytest.approx(303e3, rel=0.05)
    assert simulation.measured_ns - outcome.high_ns == pytest.approx(202e3, rel=0.05)


def test_another_device_takes_the_ratio_of_attainable_times(write_trace: WriteTrace) -> None:
    simulation, outcome = run_one(write_trace(steps_of(products)), "device=H200")
    # fp32 on ordinary units: 19.5 against 66.9 TFLOPS.
    assert outcome.predicted_ns is not None
    ratio = (outcome.predicted_ns - (simulation.measured_ns - 1e6)) / 1e6
    assert ratio == pytest.approx(19.5 / 66.9, rel=0.1)


def test_copies_take_the_link_of_the_other_host(write_trace: WriteTrace) -> None:
    """An A100's PCIe 4 against the C2C of a GH200: 31.5 and 450 GB/s."""
    run = SimulatedRun(ttap.load(write_trace(steps_of(uploading))))
    edited = make_edit("device=gh200_96gb").apply(run)
    (view,) = views(run)
    edges = view.duration_edges(view.copies(CopyDirection.HOST_TO_DEVICE))
    changed = dict(zip(*map(np.ndarray.tolist, edited.best.lags), strict=True))
    for edge in edges.tolist():
        assert changed[edge] == pytest.approx(10_000e3 * 31.5 / 450, rel=0.05)


def starved(waits_us: Sequence[float]) -> dict[str, Any]:
    """Batches come at a pace of their own; the training process needs 11 ms for each."""
    program = FlawedProgram()
    ready_us = 0.0
    for number, wait_us in enumerate(waits_us):
        with program.step(number + 5):
            ready_us += wait_us
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            with program.range(name, "user_annotation"):
                program.work(max(100.0, ready_us - program.host_us))
            products(program)
            launching(program)
            program.work(8_000)
    return program.document()


@pytest.mark.parametrize(
    "waits_us",
    [[50_000.0] * 9, [90_000.0 if n % 3 == 0 else 100.0 for n in range(18)]],
    ids=["evenly", "in bursts"],
)
def test_nothing_but_workers_helps_a_starved_run(
    write_trace: WriteTrace, waits_us: list[float]
) -> None:
    edits = ["remove_host_sync", "mixed_precision", "device=H200", "loader_workers=32"]
    simulation = simulate(ttap.load(write_trace(starved(waits_us))), edits)
    *others, workers = simulation.edits
    for outcome in others:
        assert outcome.predicted_ns == pytest.approx(simulation.measured_ns, rel=0.01), outcome
    assert workers.predicted_ns is not None
    assert workers.predicted_ns < 0.75 * simulation.measured_ns


def test_devices_that_nobody_knows_are_refused() -> None:
    with pytest.raises(OptionError, match="no device of that name"):
        make_edit("device=abacus")
    with pytest.raises(OptionError, match="device needs a value"):
        make_edit("device")


# ------------------------------------------------------------------------- a user's own


class HalfTheKernels:
    """docs/simulation_edits.md: kernels of one name take half of their time."""

    name = "half"

    def __init__(self, kernel: str | None = None) -> None:
        self.kernel = kernel or "gemm"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        for view in views(run):
            view.scale_gpu(change, view.rows_named(f"^{self.kernel}$", EventKind.KERNEL), 0.5)
        if not len(change):
            raise NotApplicableError(f"no kernel is called {self.kernel}")
        return EditedGraph(change, note=f"{self.kernel} takes half of its time")


def test_users_add_edits_of_their_own(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(steps_of(loading)))
    by_object = simulate(trace, [HalfTheKernels()]).edits[0]
    register("half", value="KERNEL")(HalfTheKernels)
    by_name = simulate(trace, ["half=gemm", "half=relu"])
    assert by_name.edits[0].predicted_ns == by_object.predicted_ns
    assert by_name.measured_ns - (by_object.predicted_ns or 0) == pytest.approx(10_000e3, rel=0.01)
    assert by_name.edits[1].note == "no kernel is called relu"


def test_the_documented_edit_is_this_one() -> None:
    documented = (ROOT / "docs/simulation_edits.md").read_text(encoding="utf-8")
    body = inspect.getsource(HalfTheKernels.apply).splitlines()[1:]
    assert len(body) > 5
    assert "\n".join(body) in documented


# ------------------------------------------------------------------------- laws


@pytest.fixture(scope="module")
def any_run(tmp_path_factory: pytest.TempPathFactory) -> SimulatedRun:
    import json

    path = tmp_path_factory.mktemp("run") / "trace.json"
    path.write_text(json.dumps(steps_of(launching)), encoding="utf-8")
    return SimulatedRun(ttap.load(path))


@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_removing_work_makes_nothing_later(any_run: SimulatedRun, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    edges = np.flatnonzero(rng.random(len(any_run.cost_ns)) < share)
    change = Change()
    change.set_lags(edges, any_run.cost_ns[edges] * rng.random(len(edges)))
    change.drop(rng.choice(edges, size=len(edges) // 4, replace=False) if len(edges) else edges)
    assert change.only_removes(any_run)
    assert (any_run.replay(change.delta()) <= any_run.replay()).all()


def test_edits_of_the_same_edge_multiply(any_run: SimulatedRun) -> None:
    edge = int(any_run.cost_ns.argmax())
    cost = int(any_run.cost_ns[edge])
    half, fifth, gone = Change(), Change(), Change()
    half.set_lags([edge], cost / 2)
    fifth.set_lags([edge], cost / 5)
    gone.set_lags([edge], 0)
    both = costs_after(any_run, join_changes(any_run, [half, fifth]))
    assert both[edge] == pytest.approx(cost / 10, abs=1)
    assert costs_after(any_run, join_changes(any_run, [gone, half]))[edge] == 0
    assert (np.delete(both, edge) == np.delete(any_run.cost_ns, edge)).all()


def test_a_change_holds_what_it_touches_and_nothing_else(any_run: SimulatedRun) -> None:
    change = Change()
    change.set_lags([9, 4], [1, 2])
    change.set_lags([4, 5], any_run.cost_ns[[4, 5]])
    assert change.lags[0].tolist() == [4, 5, 9]
    costly = np.flatnonzero(any_run.cost_ns > 1)[:2]
    halves = Change()
    halves.set_lags(costly, any_run.cost_ns[costly] // 2)
    both = join_changes(any_run, [change, halves])
    assert np.isin(both.lags[0], np.union1d([4, 5, 9], costly)).all()
    for edge in np.setdiff1d(costly, [9]).tolist():
        assert costs_after(any_run, both)[edge] == any_run.cost_ns[edge] // 2


def test_edits_that_change_nothing_together_change_nothing(any_run: SimulatedRun) -> None:
    assert not len(join_changes(any_run, []))
    assert not len(join_changes(any_run, [Change(), Change()]))


def test_a_change_knows_which_events_are_gone(any_run: SimulatedRun) -> None:
    view = views(any_run)[0]
    first, second = Change(), Change()
    view.remove_gpu(first, view.gpu_rows[:2])
    view.remove_calls(second, view.calls[:1])
    both = join_changes(any_run, [first, second])
    gone = np.union1d(view.gpu_rows[:2], view.calls[:1])
    assert both.removed(0).tolist() == gone.tolist()
    assert both.removed(1).tolist() == []


def test_of_two_lags_the_later_holds(any_run: SimulatedRun) -> None:
    change = Change()
    change.set_lags([3, 3], [7, 8])
    change.set_lags([3], 9)
    edges, lags = change.lags
    assert (edges.tolist(), lags.tolist()) == ([3], [9])


def test_an_added_edge_is_no_removal(any_run: SimulatedRun) -> None:
    change = Change()
    assert change.only_removes(any_run)
    change.add([0], [1], 5)
    assert not change.only_removes(any_run)


def test_every_proposed_edit_has_a_name_that_works() -> None:
    for text in {
        *default_edits(),
        *(name for names in edits_by_finding().values() for name in names),
    }:
        assert make_edit(text).name == text


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("pin_memory", "pin_memory=HtoD", True),
        ("pin_memory=DtoH", "pin_memory=HtoD", False),
        ("loader_workers=4", "loader_workers=8", True),
        ("mixed_precision=tf32", "mixed_precision", True),
        ("bucket_size_mb=25", "merge_collectives", True),
        ("cuda_graph", "remove_host_sync", False),
        ("a user's own", "cuda_graph", False),
    ],
)
def test_edits_say_which_others_do_the_same(one: str, other: str, shared: bool) -> None:
    assert share_work(one, other) is share_work(other, one) is shared
    assert share_work(one, one)


def test_findings_are_types_that_the_rules_know() -> None:
    assert set(edits_by_finding()) <= {rule.type for rule in ttap._core.rules()}
