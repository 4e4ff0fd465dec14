"""Iteration times of jobs that nobody ran, against vTrain's published times (MIT, f8dda84).

docs/prediction.md says what these times are and what the splits mean.
"""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from torchtraceap.lab.jobs import (
    CalibratedJobs,
    Coefficients,
    Machine,
    TrainingJob,
    calibrate,
    choose_measurements,
)

ROOT = Path(__file__).resolve().parents[2]
ORACLES = Path(os.environ.get("TORCHTRACEAP_ORACLES", ROOT.parent / "shared" / "oracles"))
TIMES = ORACLES / "vtrain" / "ground_truth_single.csv"
MANY_NODES = ROOT / "benchmarks" / "prediction" / "vtrain_many_nodes.csv"
SHARE = 0.05

pytestmark = pytest.mark.skipif(
    not TIMES.exists(), reason=f"no times of vTrain at {TIMES}; set TORCHTRACEAP_ORACLES"
)
Array = npt.NDArray[np.float64]


@cache
def measured() -> tuple[tuple[TrainingJob, ...], Array]:
    jobs, times = [], []
    with TIMES.open(encoding="utf-8-sig", newline="") as file:
        for row in list(csv.reader(file))[1:]:
            _, batch, micro, hidden, heads, layers, sequence, tensor, data, pipeline = map(
                int, row[:-1]
            )
            jobs.append(
                TrainingJob(
                    batch, micro, hidden, layers, sequence, tensor, data, pipeline, heads=heads
                )
            )
            times.append(float(row[-1]) * 1e6)
    return tuple(jobs), np.array(times)


def predicted_from(rows: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """All times from those of some rows, and the relative errors on the others."""
    jobs, times = measured()
    model = calibrate(Machine.of("a100_sxm_40gb"), [jobs[i] for i in rows], times[rows])
    predicted, _ = model.predict(jobs)
    others = np.setdiff1d(np.arange(len(jobs)), rows)
    return predicted, np.abs(predicted / times - 1)[others]


def designed(share: float) -> npt.NDArray[np.int64]:
    jobs, _ = measured()
    chosen = choose_measurements(Machine.of("a100_sxm_40gb"), jobs, int(share * len(jobs)))
    return np.array(chosen)


def test_calibration_on_jobs_chosen_by_shape() -> None:
    _, errors = predicted_from(designed(SHARE))
    assert errors.mean() <= 0.01
    assert errors.max() <= 0.06


def test_calibration_on_random_jobs() -> None:
    jobs, _ = measured()
    means = [
        predicted_from(
            np.random.default_rng(seed).choice(len(jobs), int(SHARE * len(jobs)), replace=False)
        )[1].mean()
        for seed in range(5)
    ]
    assert max(means) <= 0.05


def test_jobs_on_more_gpus_than_calibrated() -> None:
    jobs, _ = measured()
    gpus = np.array([job.gpus for job in jobs])
    rows = np.flatnonzero(gpus < gpus.max())
    assert predicted_from(rows)[1].mean() <= 0.0837  # vTrain's own error on all of them


def test_the_fastest_way_to_train_is_found() -> None:
    jobs, times = measured()
    predicted, _ = predicted_from(designed(SHARE))
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, job in enumerate(jobs):
        key = (job.gpus, job.global_batch, job.hidden, job.layers)
        groups.setdefault(key, []).append(row)
    regret = np.array(
        [
            times[rows[int(predicted[rows].argmin())]] / times[rows].min() - 1
            for rows in groups.values()
            if len(rows) > 1
        ]
    )
    assert (regret < 1e-9).mean() >= 0.85
    assert regret.mean() <= 0.01


@cache
def one_node() -> CalibratedJobs:
    jobs, times = measured()
    return calibrate(Machine.of("a100_sxm_40gb"), jobs, times)


def test_a_width_of_tensor_parallelism_that_was_not_measured() -> None:
    jobs, times = measured()
    widths = np.array([job.tensor for job in jobs])
    errors, held = [], []
    for width in np.unique(widths):
        known, left = np.flatnonzero(widths != width), np.flatnonzero(widths == width)
        model = calibrate(Machine.of("a100_sxm_40gb"), [jobs[i] for i in known], times[known])
        found, low, high = model.interval([jobs[i] for i in left])
        errors.append(np.abs(found / times[left] - 1))
        held.append((low <= times[left]) & (times[left] <= high))
    assert np.concatenate(errors).mean() <= 0.08
    assert 0.75 <= np.concatenate(held).mean() <= 0.92


@cache
def many_nodes() -> tuple[tuple[TrainingJob, ...], Array]:
    jobs, times = [], []
    with MANY_NODES.open(newline="") as file:
        for row in list(csv.reader(file))[1:]:
            _, batch, micro, hidden, heads, layers, sequence, tensor, data, pipeline = map(
                int, row[1:-1]
            )
            jobs.append(
                TrainingJob(
                    batch, micro, hidden, layers, sequence, tensor, data, pipeline,
                    heads=heads, recompute="full",
                )
            )  # fmt: skip
            times.append(float(row[-1]) * 1e6)
    return tuple(jobs), np.array(times)


def test_models_on_many_nodes_that_were_not_measured() -> None:
    jobs, times = many_nodes()
    start = one_node().coefficients.for_another_program()
    models = np.array([job.hidden for job in jobs])
    errors = []
    for model in np.unique(models):
        known, left = np.flatnonzero(models != model), np.flatnonzero(models == model)
        learned = calibrate(
            Machine.of("a100_sxm_80gb"), [jobs[i] for i in known], times[known], start=start
        )
        errors.append(np.abs(learned.predict([jobs[i] for i in left])[0] / times[left] - 1))
    assert np.concatenate(errors).mean() <= 0.12  # vTrain: 14.73 %


# Hidden size, heads, layers, stages, chunks, batch, micro-batch; seconds with layers computed
# again, and with sequence parallelism and attention computed again (Korthikanti et al., 2022).
MEGATRON = (
    (6144, 64, 48, 1, 1, 4, 4, 1.42, 1.10),
    (12288, 96, 96, 8, 3, 64, 1, 18.13, 13.75),
    (20480, 128, 105, 35, 3, 280, 1, 49.05, 37.83),
    (25600, 160, 128, 64, 1, 512, 1, 94.42, 71.49),
)


def megatron() -> tuple[list[TrainingJob], Array]:
    jobs, times = [], []
    for hidden, heads, layers, stages, chunks, batch, micro, full, selective in MEGATRON:
        for recompute, seconds in (("full", full), ("selective", selective)):
            jobs.append(
                TrainingJob(
                    batch, micro, hidden, layers, 2048, 8, 1, stages, heads=heads, chunks=chunks,
                    recompute=recompute, sequence_parallel=recompute == "selective",
                )
            )  # fmt: skip
            times.append(seconds * 1e9)
    return jobs, np.array(times)


def test_megatron_models_that_were_not_measured() -> None:
    many, many_times = many_nodes()
    machine = Machine.of("a100_sxm_80gb")
    start: Coefficients = one_node().coefficients.for_another_program()
    start = calibrate(machine, many, many_times, start=start).coefficients.for_another_program()
    jobs, times = megatron()
    errors = []
    for place in range(0, len(jobs), 2):
        known = [i for i in range(len(jobs)) if i not in (place, place + 1)]
        learned = calibrate(machine, [jobs[i] for i in known], times[known], start=start)
        found, _ = learned.predict(jobs[place : place + 2])
        errors.append(np.abs(found / times[place : place + 2] - 1))
    assert np.concatenate(errors).mean() <= 0.0365  # Calculon
