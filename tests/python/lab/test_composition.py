"""Iteration times composed from few measurements, on machines whose answers are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pipeline_job import Job

from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs import (
    Machine,
    TrainingJob,
    build_schedule,
    calibrate,
    choose_measurements,
    operator_trace,
)


def all_reduce_ns(size: float, ranks: int) -> float:
    """20 us and 200 GB/s of bus bandwidth."""
    return 20_000 + size * 2 * (ranks - 1) / ranks / 200


MACHINE = Machine(3e14, 1.5e12, all_reduce_ns)


def jobs_of_a_machine() -> list[TrainingJob]:
    """All ways to spread some models over 8 GPUs."""
    found = []
    ways = [(t, d, 8 // t // d) for t in (1, 2, 4, 8) for d in (1, 2, 4, 8) if 8 % (t * d) == 0]
    for (tensor, data, pipeline), layers, batch, micro in itertools.product(
        ways, (16, 24), (16, 32, 64), (1, 2, 4)
    ):
        if batch % (micro * data) == 0:
            found.append(TrainingJob(batch, micro, 2048, layers, 1024, tensor, data, pipeline))
    return found


def time_ns(job: TrainingJob) -> float:
    """A machine with its own idea of how long things take, in the form of the composition."""
    tokens = job.micro_batch * job.sequence
    odd = 1 + 0.2 * np.sin(7.0 * job.tensor + 3.0 * job.micro_batch)  # kernels aren't smooth
    layer = odd * (1.5e6 + 1.1e9 * 72 * tokens * job.hidden**2 / job.tensor / 3e14)
    if job.tensor > 1:
        layer += 4.4 * all_reduce_ns(2 * tokens * job.hidden, job.tensor)
    last = 1e6 + 1.3e9 * 6 * tokens * job.vocabulary * job.hidden / job.tensor / 3e14
    per_stage = layer * job.layers / job.pipeline
    weights = 12 * job.hidden**2 * job.layers / job.pipeline / job.tensor
    update = 1e9 * 20 * weights / 1.5e12
    if job.data > 1:
        update += all_reduce_ns(2 * weights, job.data)
    return job.microbatches * (per_stage + last) + (job.pipeline - 1) * per_stage + update


JOBS = jobs_of_a_machine()
TIMES = np.array([time_ns(job) for job in JOBS])


@pytest.mark.parametrize(
    ("stages", "chunks"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 3), (8, 3)]
)
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_formula_is_the_longest_path_of_the_schedule(
    stages: int, chunks: int, rounds: int
) -> None:
    """m (c + e) + (p - 1) / v c, where the last stage takes c + e, against a replay."""
    layer, end, microbatches = 3.0, 0.75, 4 * rounds if chunks == 1 else stages * rounds
    job = Job(
        stages,
        1,
        microbatches,
        forward=lambda r, s, b: (layer + (end if s == stages - 1 else 0)) / 3 / chunks,
        backward=lambda r, s, b: 2 * (layer + (end if s == stages - 1 else 0)) / 3 / chunks,
        collective=0.0,
        chunks=chunks,
    )
    schedule = build_schedule(operator_trace(job.frame))
    expected = microbatches * (layer + end) + (stages - 1) / chunks * layer + 0.25
    found = schedule.step_ns(schedule.replay())[0] / 1e9
    # What the last stage does for the loss delays it once for each further chunk at most.
    assert expected * (1 - 1e-6) <= found <= expected + (chunks - 1) * end + 1e-6


def test_few_measurements_chosen_by_shape_predict_all_others() -> None:
    chosen = choose_measurements(MACHINE, JOBS, 30)
    assert len(set(chosen)) == 30
    assert {JOBS[i].shape for i in chosen} == {job.shape for job in JOBS}
    model = calibrate(MACHINE, [JOBS[i] for i in chosen], TIMES[chosen])
    others = np.setdiff1d(np.arange(len(JOBS)), chosen)
    times, spread = model.predict([JOBS[i] for i in others])
    errors = np.abs(times / TIMES[others] - 1)
    assert errors.mean() < 0.02
    assert (np.abs(times - TIMES[others]) < 3 * spread).mean() > 0.9


def test_a_shape_that_was_not_measured_is_less_certain() -> None:
    known = [i for i, job in enumerate(JOBS) if job.tensor < 8]
    unknown = [i for i, job in enumerate(JOBS) if job.tensor == 8]
    model = calibrate(MACHINE, [JOBS[i] for i in known], TIMES[known])
    (inside, inside_spread), (outside, outside_spread) = (
        model.predict([JOBS[i] for i in rows]) for rows in (known, unknown)
    )
    assert np.median(outside_spread / outside) > 3 * np.median(inside_spread / inside)
    assert np.abs(outside / TIMES[unknown] - 1).mean() < 0.4


def test_more_measurements_do_not_hurt() -> None:
    chosen = choose_measurements(MACHINE, JOBS, 60)
    errors = []
    for count in (12, 60):
        model = calibrate(MACHINE, [JOBS[i] for i in chosen[:count]], TIMES[chosen[:count]])
        errors.append(np.abs(model.predict(JOBS)[0] / TIMES - 1).mean())
    assert errors[1] < errors[0]


def test_devices_come_from_the_database() -> None:
    machine = Machine.of("a100_sxm_40gb")
    assert machine.bandwidth == 1.555e12
    times = [machine.all_reduce_ns(2.0**n, 8) for n in range(0, 40, 4)]
    assert times == sorted(times)
    assert machine.all_reduce_ns(2.0**36, 8) == pytest.approx(
        4 * machine.all_reduce_ns(2.0**34, 8), rel=0.1
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"micro_batch": 0},
        {"micro_batch": 3},
        {"pipeline": 5},
    ],
)
def test_impossible_jobs_get_words(sizes: dict[str, int]) -> None:
    usual = {
        "global_batch": 16,
        "micro_batch": 2,
        "hidden": 64,
        "layers": 4,
        "sequence": 8,
        "tensor": 1,
        "data": 2,
        "pipeline": 2,
    }
    assert TrainingJob(**usual).gpus == 4
    with pytest.raises(OptionError):
        TrainingJob(**{**usual, **sizes})


def test_calibration_needs_positive_times() -> None:
    with pytest.raises(OptionError):
        calibrate(MACHINE, [], [])
    with pytest.raises(OptionError):
        calibrate(MACHINE, JOBS[:2], [1.0, 0.0])
