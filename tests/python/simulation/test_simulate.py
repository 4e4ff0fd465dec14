"""`simulate`: the document, noise, plan, and edits taken together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from fix_programs import NCCL, FlawedProgram
from rank_samples import describe

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.simulation.simulate import Simulation, simulate
from torchtraceap.tables.steps.iterations import step_time

WriteTrace = Callable[..., Path]


def two_flaws(lengths: list[float]) -> dict[str, Any]:
    """Steps that load for so long, then read a value, then work on the host."""
    program = FlawedProgram()
    for number, length in enumerate(lengths):
        with program.step(number + 5):
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            with program.range(name, "user_annotation"):
                program.work(length)
            program.launch("gemm", 5_000)
            with program.range("aten::item"):
                program.copy("DtoH", "Pageable", 4, 2)
            program.work(2_000)
    return program.document()


@pytest.fixture
def steady(write_trace: WriteTrace) -> Simulation:
    trace = ttap.load(write_trace(two_flaws([10_000] * 6)))
    return simulate(trace, ["remove_host_sync", "loader_workers=4", "channels_last", "bogus"])


def test_the_document_has_what_the_interface_says(steady: Simulation) -> None:
    document = json.loads(json.dumps(steady.to_dict(), allow_nan=False))
    assert document["schema"] == "torchtraceap.simulation/1"
    assert [step["name"] for step in document["steps"]] == [
        f"ProfilerStep#{n}" for n in range(5, 11)
    ]
    measured = [step["measured_ns"] for step in document["steps"]]
    assert document["measured_ns"] == round(np.mean(measured))
    assert document["median_ns"] == round(np.median(measured))
    assert document["replayed_ns"] == pytest.approx(document["measured_ns"], rel=0.02)
    for edit in document["edits"]:
        assert set(edit) >= {"edit", "predicted_ns", "low_ns", "high_ns", "note"}
    first, second, third, fourth = document["edits"]
    for edit in (first, second):
        assert edit["low_ns"] <= edit["predicted_ns"] <= edit["high_ns"] <= document["measured_ns"]
    assert third["predicted_ns"] is None
    assert third["note"] == "no kernel only converts between NCHW and NHWC"
    assert fourth["predicted_ns"] is None
    assert fourth["note"].startswith("no edit is called 'bogus'; there are: ")
    assert "pin_memory" in fourth["note"]


def test_fixes_of_a_plan_come_in_order_of_gain_and_do_not_add_up(steady: Simulation) -> None:
    plan = steady.plan
    assert [fix.edit for fix in plan] == ["loader_workers=4", "remove_host_sync"]
    assert plan[0].gain_ns >= plan[1].gain_ns > 0
    assert plan[0].predicted_ns == steady.edits[1].predicted_ns
    assert plan[1].predicted_ns == pytest.approx(plan[0].predicted_ns - plan[1].gain_ns, abs=2)
    both = steady.together(["loader_workers=4", "remove_host_sync"])
    assert both.predicted_ns == pytest.approx(plan[1].predicted_ns, abs=2)
    # The GPU's 5 ms remain whatever the host does.
    assert both.low_ns is not None and both.low_ns > 5_000e3


def test_what_does_not_apply_cannot_be_taken_together(steady: Simulation) -> None:
    with pytest.raises(OptionError, match="channels_last: no kernel"):
        steady.together(["loader_workers=4", "channels_last"])
    with pytest.raises(OptionError, match="not simulated"):
        steady.together(["cuda_graph"])


def test_a_saving_below_the_noise_is_not_shown(write_trace: WriteTrace) -> None:
    lengths = [10_000.0, 30_000, 10_000, 30_000, 10_000, 30_000]
    simulation = simulate(ttap.load(write_trace(two_flaws(lengths))), ["remove_host_sync"])
    outcome = simulation.edits[0]
    steps = np.array([step.measured_ns for step in simulation.steps])
    assert simulation.noise_ns == pytest.approx(2 * steps.std(ddof=1) / np.sqrt(len(steps)))
    assert outcome.predicted_ns == simulation.measured_ns
    assert "lies below the steps' own noise" in outcome.note
    assert not simulation.plan


def test_all_fixes_are_tried_unless_some_are_named(write_trace: WriteTrace) -> None:
    simulation = simulate(ttap.load(write_trace(two_flaws([10_000] * 4))))
    applied = [outcome.edit for outcome in simulation.edits if outcome.applies]
    assert {"loader_workers=4", "remove_host_sync"} <= set(applied)
    assert all(outcome.note for outcome in simulation.edits)


@pytest.mark.parametrize(
    "events",
    [
        [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}],
        [
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 0}
            | {"args": {"device": 0, "stream": 7, "correlation": 9}}
        ],
        [{"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1}],
    ],
    ids=["no GPU", "only a kernel of no length", "no complete event"],
)
def test_traces_without_much_say_why_nothing_applies(
    write_trace: WriteTrace, events: list[dict[str, Any]]
) -> None:
    simulation = simulate(ttap.load(write_trace(events)))
    document = simulation.to_dict()
    json.dumps(document, allow_nan=False)
    assert not document["plan"]
    for outcome in simulation.edits:
        assert outcome.note
        assert outcome.predicted_ns in (None, simulation.measured_ns)


def test_the_order_of_events_in_the_file_does_not_matter(write_trace: WriteTrace) -> None:
    document = two_flaws([10_000] * 5)
    names = ["loader_workers=4", "remove_host_sync"]
    forth = simulate(ttap.load(write_trace(document, "a.json")), names).to_dict()
    document["traceEvents"].reverse()
    back = simulate(ttap.load(write_trace(document, "b.json")), names).to_dict()
    assert forth == back


# ------------------------------------------------------------------------------- which steps


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_fault_of_one_step_in_three_counts_a_third(write_trace: WriteTrace, slow: int) -> None:
    """30 ms of allocator calls in one of the steps: whichever it is, a step takes 10 ms longer."""
    program = FlawedProgram()
    for number in range(3):
        with program.step(number + 5):
            program.work(10_000)
            with program.range("cudaMalloc", "cuda_runtime"):
                program.work(30_000 if number == slow else 10)
            program.launch("gemm", 100)
            program.synchronize()
    trace = ttap.load(write_trace(program.document()))
    simulation = simulate(trace, ["no_allocator_calls"])
    whole = step_time(trace.ranks)
    assert whole is not None
    assert simulation.measured_ns == whole.measured_ns
    (edit,) = simulation.edits
    assert edit.low_ns is not None
    saved = simulation.run.steady_ns() - simulation.run.steady_ns(
        simulation.applied["no_allocator_calls"].best.delta()
    )
    assert saved == pytest.approx(10_000e3, rel=0.01)


def test_bounds_and_savings_are_of_the_same_step(write_trace: WriteTrace) -> None:
    """Inferred steps are steps for both; nothing is said per step beside something per trace."""
    maker = samples.slow_loader(steps=12)
    maker.events = [e for e in maker.events if not e["name"].startswith("ProfilerStep")]
    diagnosis = ttap.diagnose(maker.write(write_trace([])))
    per_step = {f.saving.per_step for f in diagnosis.findings if f.saving}
    assert len(per_step) == 1
    assert diagnosis.replay is not None
    assert per_step == {diagnosis.replay.per_step} == {diagnosis.step is not None}


# ------------------------------------------------------------------------------- the plan


def test_one_fix_stands_in_a_plan_once(write_trace: WriteTrace) -> None:
    def body(p: FlawedProgram) -> None:
        p.copy("HtoD", "Pageable", 50_000_000, 9_000)
        p.launch("gemm", 2_000)
        p.copy("DtoH", "Pageable", 20_000_000, 4_000)
        p.synchronize()

    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            body(program)
    trace = ttap.load(write_trace(program.document()))
    plan = simulate(trace, ["pin_memory=HtoD", "pin_memory", "pin_memory=DtoH"]).plan
    assert [fix.edit for fix in plan] == ["pin_memory"]
    assert 0 < plan[0].low_ns <= plan[0].predicted_ns


def test_a_prediction_never_reaches_nothing(write_trace: WriteTrace) -> None:
    """Whatever is taken off the host, its lower bound is what the GPU needs, and never 0."""
    trace = ttap.load(write_trace(two_flaws([10_000])))
    simulation = simulate(trace, ["loader_workers=4", "remove_host_sync", "cuda_graph"])
    for edit in simulation.edits:
        if edit.low_ns is not None:
            assert edit.low_ns >= 5_000e3
    assert all(fix.low_ns >= 5_000e3 for fix in simulation.plan)


# ------------------------------------------------------------------------------- one rank of many


def alone(collective_us: float) -> dict[str, Any]:
    """One rank of eight: 2 ms of products, an all-reduce, and 10 us of allocator calls."""
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            program.launch("gemm", 2_000)
            program.launch(NCCL, collective_us, **describe("allreduce", 1 << 20, list(range(8))))
            program.launch("gemm_behind", 100)
            with program.range("cudaMalloc", "cuda_runtime"):
                program.work(1_000)
            program.synchronize()
            program.work(1_000)
    document = program.document()
    document["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 8}
    return document


def test_a_rank_alone_that_mostly_waits_is_not_predicted(write_trace: WriteTrace) -> None:
    simulation = simulate(ttap.load(write_trace(alone(9_000))), ["remove_host_sync"])
    assert not simulation.trust.supports_prediction
    assert simulation.trust.reason.startswith("1 of 8 ranks is recorded, and 7")
    (edit,) = simulation.edits
    assert edit.predicted_ns is None
    assert edit.note == simulation.trust.reason
    assert not simulation.plan


def test_a_rank_alone_says_what_its_collectives_leave_open(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(alone(1_000)))
    simulation = simulate(trace, ["overlap_collectives", "remove_host_sync"])
    share = simulation.trust.sensitivity.collective_share
    assert 0.1 < share < 0.5
    overlap, reads = simulation.edits
    assert overlap.predicted_ns is None
    assert "changes collectives, and 1 of 8 ranks" in overlap.note
    assert reads.high_ns is not None and reads.predicted_ns is not None
    saved = simulation.measured_ns - reads.predicted_ns
    assert reads.high_ns >= reads.predicted_ns + 0.9 * share * saved
    assert any(note.startswith("1 of 8 ranks is recorded") for note in simulation.notes)


def test_collectives_of_a_rank_alone_stay_its_own_however_many_kernels_they_slow(
    write_trace: WriteTrace,
) -> None:
    """Eighty kernels lose the company of small ones: what the edit changes first is these."""
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            for _ in range(4):
                few = describe("allreduce", 256, list(range(8)))
                program.launch(NCCL, 100, stream=20, **few)
                for _ in range(20):
                    program.launch("gemm_beside", 10)
            program.synchronize()
    document = program.document()
    document["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 8}
    (edit,) = simulate(ttap.load(write_trace(document)), ["merge_collectives"]).edits
    assert edit.predicted_ns is None
    assert "changes collectives, and 1 of 8 ranks" in edit.note


# ------------------------------------------------------------------------------- trust


def test_steps_that_other_steps_do_not_explain_are_not_predicted(write_trace: WriteTrace) -> None:
    """Equally long steps of which each does something else."""
    program = FlawedProgram()
    for number in range(4):
        with program.step(number + 5):
            for piece in range(6):
                with program.range(f"aten::op_{number}_{piece}"):
                    program.work(1_000 + 150 * (piece if number % 2 else 5 - piece))
    simulation = simulate(ttap.load(write_trace(program.document())), ["remove_host_sync"])
    held = simulation.trust.held_out
    assert held is not None
    assert held.baseline_error < 0.01  # the mean of the others would have been right
    if held.median_error > 0.1:
        assert not simulation.trust.supports_prediction
        assert "the other steps cost" in simulation.trust.reason
