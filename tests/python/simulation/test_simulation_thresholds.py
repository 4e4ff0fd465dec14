"""Both sides of what decides in a simulation: programs just below each bound, and just above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fix_programs import NCCL, FlawedProgram
from rank_samples import Job, describe

import torchtraceap as ttap
from torchtraceap.core.codes import EventKind
from torchtraceap.core.results import HeldOut
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import Change, EditedGraph, make_edit
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import EditOutcome, Simulation, simulate
from torchtraceap.simulation.trust import _doubt, noise_of, trust_of

WriteTrace = Callable[..., Path]
Program = Callable[[FlawedProgram], None]


@pytest.fixture
def tried(write_trace: WriteTrace) -> Callable[..., EditOutcome]:
    """What becomes of five equal steps with one edit."""

    def run(body: Program, edit: str) -> EditOutcome:
        return simulated(write_trace, body, edit).edits[0]

    return run


Tried = Callable[[Program, str], EditOutcome]


def simulated(write_trace: WriteTrace, body: Program, *edits: str) -> Simulation:
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            body(program)
    return simulate(ttap.load(write_trace(program.document())), edits)


# ------------------------------------------------------------------------------ trust


@pytest.mark.parametrize(
    ("off", "baseline", "noise", "reason"),
    [
        (0.29, 0.10, 1.0, ""),
        (0.31, 0.10, 1.0, "more than 3 times what their mean is off (10"),
        (0.09, 0.01, 1.0, ""),  # too little to matter
        (0.11, 0.02, 0.01, "far beyond what they vary"),
    ],
)
def test_no_noise_excuses_what_is_far_off(
    write_trace: WriteTrace, off: float, baseline: float, noise: float, reason: str
) -> None:
    run = simulated(write_trace, lambda p: p.launch("gemm", 200)).run
    held = HeldOut(error=off, median_error=off, baseline_error=baseline, noise=noise, steps=5)
    found = _doubt(run, replace(trust_of(run), held_out=held), 1e6)
    assert reason in found and bool(reason) == bool(found)


# ------------------------------------------------------------------------------ collectives


def pair_of(size: int | None, length: float) -> Program:
    """Two all-reduces in a row, of so many bytes if they are known."""

    def body(p: FlawedProgram) -> None:
        p.launch("gemm", 200)
        for _ in range(2):
            args = {} if size is None else describe("allreduce", size // 4, [0, 1])
            p.launch(NCCL, length, **args)
        p.synchronize()

    return body


@pytest.mark.parametrize(
    ("size", "length", "merged"),
    [
        ((64 << 10) - 4, 500, True),  # below 64 KiB, whatever they take
        (64 << 10, 5, False),
        (None, 20, True),  # of unknown size up to 20 us
        (None, 20.1, False),
    ],
)
def test_small_collectives(tried: Tried, size: int | None, length: float, merged: bool) -> None:
    outcome = tried(pair_of(size, length), "merge_collectives")
    assert outcome.applies == merged
    expected = "10 collectives become 5" if merged else "no small collectives follow"
    assert expected in outcome.note


def test_one_collective_is_not_merged(tried: Tried) -> None:
    outcome = tried(lambda p: p.launch(NCCL, 10) and p.synchronize(), "merge_collectives")
    assert not outcome.applies


@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", str(1 << 30), "inf"])
def test_sizes_of_buckets_that_make_no_sense(value: str) -> None:
    with pytest.raises(OptionError, match="a size in MiB"):
        make_edit(f"bucket_size_mb={value}")


def backward(*megabytes: float) -> Program:
    """Gradients of these sizes, reduced one after the other behind eight products."""

    def body(p: FlawedProgram) -> None:
        for number in range(8):
            with p.range("autograd::engine::evaluate_function: AddmmBackward0"):
                p.launch("gemm", 100)
                for size in megabytes if number == 7 else ():
                    args = describe("allreduce", int(size * (1 << 18)), [0, 1])
                    p.launch(NCCL, 100 * size, **args)
        p.synchronize()

    return body


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        ((10, 15), "buckets of 25 MiB: 10 collectives become 5"),
        ((24.999, 15), "buckets of 25 MiB: 10 collectives become 5"),
        ((25, 15), None),  # the first is a bucket
        ((25,), None),
        (
            (26,),
            "buckets of 25 MiB: larger ones become 10 pieces at best, which overlap computation",
        ),
        (
            (51,),
            "buckets of 25 MiB: larger ones become 15 pieces at best, which overlap computation",
        ),
    ],
)
def test_buckets(tried: Tried, sizes: tuple[float, ...], note: str | None) -> None:
    outcome = tried(backward(*sizes), "bucket_size_mb=25")
    assert outcome.note.startswith(note or "no gradients of known size")


def accumulated(gradients: int, size: int) -> Program:
    """As many gradients as given, then their all-reduce of so many MiB."""

    def body(p: FlawedProgram) -> None:
        for number in range(8):
            with p.range("autograd::engine::evaluate_function: AddmmBackward0"):
                p.launch("gemm", 100)
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            for _ in range(gradients if number == 7 else 0):
                with p.range(name), p.range("torch::autograd::AccumulateGrad"):
                    p.work(2)
        with p.range("autograd::engine::evaluate_function: AddmmBackward0"):
            p.launch(NCCL, 100 * size, **describe("allreduce", size << 18, [0, 1]))
        p.synchronize()

    return body


@pytest.mark.parametrize(
    ("gradients", "note"),
    [
        (1, "no gradients of known size"),  # a parameter is never split
        (2, "buckets of 25 MiB: larger ones become 10 pieces"),
        (3, "buckets of 25 MiB: larger ones become 15 pieces"),
        (9, "buckets of 25 MiB: larger ones become 15 pieces"),
    ],
)
def test_a_bucket_holds_whole_gradients(tried: Tried, gradients: int, note: str) -> None:
    assert tried(accumulated(gradients, 60), "bucket_size_mb=25").note.startswith(note)


# ----------------------------------------------------------------------------------- copies


def upload(size: int, *, pinned: int = 0) -> Program:
    def body(p: FlawedProgram) -> None:
        with p.range("aten::copy_"):
            p.copy("HtoD", "Pageable", size, 4_000)
        p.launch("gemm", 100)
        if pinned:
            p.copy("HtoD", "Pinned", pinned, pinned / 25_000)

    return body


@pytest.mark.parametrize(("pinned", "source"), [
    ((1 << 20) - 1, "share of the PCIe rate"), (1 << 20, "pinned copies of the trace"),
])  # fmt: skip
def test_pinned_copies_of_a_mebibyte_tell_their_rate(
    tried: Tried, pinned: int, source: str
) -> None:
    assert tried(upload(25_000_000, pinned=pinned), "pin_memory").source.startswith(source)


@pytest.mark.parametrize(("size", "is_result"), [(64 << 10, False), ((64 << 10) + 1, True)])
def test_reads_of_64_kib_are_values_and_larger_ones_results(
    tried: Tried, size: int, is_result: bool
) -> None:
    def body(p: FlawedProgram) -> None:
        p.launch("gemm", 1_000)
        with p.range("aten::cpu"):
            p.copy("DtoH", "Pageable", size, 20)
        p.work(800)

    assert tried(body, "pin_memory=DtoH").applies == is_result
    assert tried(body, "remove_host_sync").applies != is_result


# --------------------------------------------------------------------------------- launches


@pytest.mark.parametrize(("kernels", "applies"), [(9, False), (10, True)])
def test_ten_launches_make_a_graph(tried: Tried, kernels: int, applies: bool) -> None:
    def body(p: FlawedProgram) -> None:
        for _ in range(kernels):
            p.work(30)
            p.launch("gemm", 5)
        p.synchronize()

    outcome = tried(body, "cuda_graph")
    assert outcome.applies == applies
    assert ("50 launches become 5" in outcome.note) == applies


@pytest.mark.parametrize(("kernels", "applies"), [(49, False), (50, True)])
def test_fifty_kernels_of_an_optimizer_are_worth_fusing(
    tried: Tried, kernels: int, applies: bool
) -> None:
    def body(p: FlawedProgram) -> None:
        with p.range("Optimizer.step#Adam.step", "user_annotation"):
            for _ in range(kernels):
                with p.range("aten::mul_"):
                    p.launch("vectorized_elementwise_kernel", 4)
        p.synchronize()

    assert tried(body, "fused_optimizer").applies == applies


# ------------------------------------------------------------------------- workers, devices


@pytest.mark.parametrize(("fetch_us", "waited"), [(1_990, False), (2_010, True)])
def test_fetches_from_workers_wait_from_two_milliseconds_on(
    tried: Tried, fetch_us: float, waited: bool
) -> None:
    def body(p: FlawedProgram) -> None:
        with p.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            p.work(fetch_us - 2)
        p.launch("gemm", 100)
        p.synchronize()

    outcome = tried(body, "loader_workers=8")
    words = "5 fetches waited" if waited else "no fetch had to wait"
    assert words in outcome.note


@pytest.mark.parametrize(("workers", "is_fine"), [
    ("0", False), ("1", True), ("1024", True), ("1025", False),
])  # fmt: skip
def test_numbers_of_workers(workers: str, is_fine: bool) -> None:
    if is_fine:
        assert make_edit(f"loader_workers={workers}").name == f"loader_workers={workers}"
    else:
        with pytest.raises(OptionError, match="from 1 to 1024"):
            make_edit(f"loader_workers={workers}")


def test_two_microseconds_of_a_kernel_stay_on_any_device(write_trace: WriteTrace) -> None:
    """The H200 has 3.1 times the bandwidth of an A100 of 40 GB and 3.4 times its arithmetic."""

    def body(p: FlawedProgram) -> None:
        for _ in range(10):
            p.launch("some_kernel", 102)
        p.synchronize()

    simulation = simulated(write_trace, body, "device=H200")
    graph = simulation.applied["device=H200"]
    assert graph.cautious is not None
    before, best, cautious = (
        simulation.run.steady_ns(change.delta() if change else None, with_residuals=False)
        for change in (None, graph.best, graph.cautious)
    )
    assert before - best == pytest.approx(10 * 102_000 * (1 - 19.5 / 66.9), abs=100)
    assert before - cautious == pytest.approx(10 * 100_000 * (1 - 1_555 / 4_800), abs=100)


# -------------------------------------------------------------------------------- stragglers


def waiting(ranks: int, *, silent_us: float = 3_000, back_us: float = 15) -> Job:
    """One rank is 3 ms late; hosts say nothing until the all-reduce is over, then go on."""
    job = Job(ranks)
    for number in range(5):
        at = 10_000.0 * number + 100
        job.step(number + 5, at, 10_000)
        late = 3_000 if ranks > 1 else 0
        for rank in range(ranks):
            job.kernel(rank, at + 50, 1_000 + late * (rank == ranks - 1))
        starts = [at + 1_100 + late * (rank == ranks - 1) for rank in range(ranks)]
        job.all_reduce(starts, at + 4_400)
        for rank in range(ranks):
            begin = at + 4_400 + back_us
            job.host(rank, "prepare", begin - silent_us - 20, 1)
            job.host(rank, "after", begin, at + 9_990 - begin)
    return job


@pytest.mark.parametrize(("ranks", "late_ms"), [(2, 15.0), (3, 15.0), (4, 15.0)])
def test_of_two_ranks_the_faster_is_the_usual_one(
    tmp_path: Path, ranks: int, late_ms: float
) -> None:
    simulation = simulate(waiting(ranks).load(tmp_path / "job"), ["straggler_to_median"])
    note = simulation.edits[0].note
    assert note.startswith(f"rank {ranks - 1} took {late_ms} ms longer than the median rank")
    assert note.endswith(f"1 of {ranks} ranks did at some")


@pytest.mark.parametrize(
    ("late_us", "beyond_ms"),
    [((0, 3_000), 15.0), ((0, 1_000, 3_000), 10.0), ((0, 0, 2_000, 3_000), 10.0)],
)
def test_from_three_ranks_on_the_median_is_the_usual_one(
    tmp_path: Path, late_us: tuple[float, ...], beyond_ms: float
) -> None:
    job = Job(len(late_us))
    for number in range(5):
        at = 10_000.0 * number + 100
        job.step(number + 5, at, 10_000)
        for rank, late in enumerate(late_us):
            job.kernel(rank, at + 50, 1_000 + late)
        job.all_reduce([at + 1_100 + late for late in late_us], at + 4_400)
    simulation = simulate(job.load(tmp_path / "job"), ["straggler_to_median"])
    assert f"took {beyond_ms} ms longer than the median rank" in simulation.edits[0].note


@pytest.mark.parametrize(("back_us", "saves"), [(99, True), (101, False)])
def test_a_host_that_is_back_within_100_us_waited(
    tmp_path: Path, back_us: float, saves: bool
) -> None:
    job = waiting(3, back_us=back_us)
    simulation = simulate(job.load(tmp_path / "job"), ["straggler_to_median"])
    assert saved_us(simulation) == (pytest.approx(3_000, rel=0.1) if saves else 0)


@pytest.mark.parametrize(("silent_us", "saves"), [(980, False), (1_010, True)])
def test_a_host_waits_in_silence_of_a_millisecond(
    tmp_path: Path, silent_us: float, saves: bool
) -> None:
    job = waiting(3, silent_us=silent_us)
    simulation = simulate(job.load(tmp_path / "job"), ["straggler_to_median"])
    assert (saved_us(simulation) > 0) == saves


def saved_us(simulation: Simulation) -> float:
    predicted = simulation.edits[0].predicted_ns
    assert predicted is not None
    return (simulation.measured_ns - predicted) / 1e3


# --------------------------------------------------------------------------------- the plan


@pytest.mark.parametrize(("call_us", "planned"), [(8, False), (14, True)])
def test_a_fix_of_the_plan_adds_a_thousandth(
    write_trace: WriteTrace, call_us: float, planned: bool
) -> None:
    """Equal steps of 10 ms show no noise; an allocator call is gone."""

    def body(p: FlawedProgram) -> None:
        p.work(10_000 - 30)
        with p.range("cudaMalloc", "cuda_runtime"):
            p.work(call_us - 2)
        p.launch("gemm", 5)
        p.synchronize()

    simulation = simulated(write_trace, body, "no_allocator_calls")
    assert simulation.noise_ns == 0
    assert saved_us(simulation) == pytest.approx(call_us)
    assert bool(simulation.plan) == planned


@pytest.mark.parametrize(("error", "is_said"), [(0.0499, False), (0.0501, True), (-0.06, True)])
def test_savings_are_bounds_beyond_an_error_of_five_hundredths(
    write_trace: WriteTrace, error: float, is_said: bool
) -> None:
    simulation = simulated(write_trace, lambda p: p.synchronize())
    trust = replace(simulation.trust, iteration_error=error)  # as if the replay were so far off
    assert ("more than 5.0 %" in _doubt(simulation.run, trust, 1.0)) == is_said


def test_what_cannot_be_taken_together(write_trace: WriteTrace) -> None:
    simulation = simulated(write_trace, lambda p: p.synchronize(), "pin_memory")
    with pytest.raises(OptionError, match="no edit applies"):
        simulation.together()
    with pytest.raises(OptionError, match="can't be taken together: pin_memory: the trace has no"):
        simulation.together(["pin_memory"])
    assert simulation.applied == {}


# -------------------------------------------------------------------------------- contention


def beside(names: int, ratio: float) -> Program:
    """Kernels of so many names, alone and beside a collective; another collective is in the way."""

    def body(p: FlawedProgram) -> None:
        for name in range(names):
            p.launch(f"gemm_{name}", 50, grid=[8, 1, 1])
        p.synchronize()
        p.launch(NCCL, 60 * names * ratio + 300, stream=20)
        p.work(20)
        for name in range(names):
            p.launch(f"gemm_{name}", 50 * ratio, grid=[8, 1, 1])
        p.synchronize()
        p.launch(NCCL, 100)
        p.launch("gemm_behind", 100)
        p.synchronize()

    return body


@pytest.mark.parametrize(
    ("names", "ratio", "words"),
    [
        (4, 1.5, "1.30 times as long (assumed: the trace doesn't show it)"),
        (5, 1.5, "1.50 times as long (measured: 5 kernels ran both ways in this trace)"),
        (5, 0.8, "1.00 times as long (measured: 5 kernels"),
        (5, 2.5, "2.00 times as long (measured: 5 kernels"),
    ],
)
def test_five_kernels_tell_what_communication_beside_them_costs(
    tried: Tried, names: int, ratio: float, words: str
) -> None:
    assert words in tried(beside(names, ratio), "overlap_collectives").note


@pytest.mark.parametrize(("steps", "measured"), [(4, False), (5, True)])
def test_each_kernel_has_to_run_five_times(
    write_trace: WriteTrace, steps: int, measured: bool
) -> None:
    program = FlawedProgram()
    for number in range(steps):
        with program.step(number + 5):
            beside(5, 1.5)(program)
    trace = ttap.load(write_trace(program.document()))
    (outcome,) = simulate(trace, ["overlap_collectives"]).edits
    assert ("measured: 5 kernels" in outcome.note) == measured


# ------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize(
    ("lengths", "noise_us", "spread"),
    [
        ((1000, 1100), 100, 100 / 1050 * 3.078 / 1.2816),  # Student's t of two steps
        ((1000, 1100, 1000, 1100), 57.735, 57.735 / 1050 * 1.638 / 1.2816),
        ((1000,), None, 0.05),
    ],
)
def test_steps_show_noise_and_one_shows_none(
    write_trace: WriteTrace, lengths: tuple[float, ...], noise_us: float | None, spread: float
) -> None:
    """Twice the standard error of the steps; the interval is never narrower than it is known."""
    program = FlawedProgram()
    for number, length in enumerate(lengths):
        with program.step(number + 5):
            program.launch("gemm", 5)
            program.work(length - 7)
    simulation = simulate(ttap.load(write_trace(program.document())), ["remove_host_sync"])
    assert len(simulation.steps) == len(lengths)
    if noise_us is None:
        assert simulation.noise_ns is None
        assert simulation.to_dict()["noise_ns"] is None
        assert simulation.notes[0].startswith("One step shows no noise: intervals are widened by 5")
    else:
        assert simulation.noise_ns == pytest.approx(noise_us * 1_000)
    assert noise_of(simulation.run).spread == pytest.approx(spread, rel=0.001)


class SteadyAtBest:
    """Kernels take the least of their times at best, and what they took at least."""

    name = "steady"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best = Change()
        (view,) = views(run)
        edges = view.duration_edges(view.rows_named("^gemm$", EventKind.KERNEL))
        best.set_lags(edges, np.full(len(edges), run.cost_ns[edges].min()))
        return EditedGraph(best, Change())


def test_each_end_of_an_interval_has_the_noise_of_its_form(write_trace: WriteTrace) -> None:
    program = FlawedProgram()
    for number, length in enumerate((1_000, 1_100, 1_000, 1_100)):
        with program.step(number + 5):
            program.launch("gemm", length)
            program.synchronize()
    simulation = simulate(ttap.load(write_trace(program.document())), [SteadyAtBest()])
    outcome, measured_ns = simulation.edits[0], simulation.measured_ns
    spread = noise_of(simulation.run).spread
    assert spread > 0.05
    assert outcome.high_ns == pytest.approx(measured_ns * (1 + spread), rel=0.002)
    assert outcome.low_ns == pytest.approx(measured_ns - 50_000, rel=0.02)
