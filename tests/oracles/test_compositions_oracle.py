"""Iteration times of jobs that nobody ran, against vTrain's published times (MIT, f8dda84).

docs/compositions.md says what these times are and what the splits mean.
"""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from torchtraceap.pipelines import (
    Machine,
    TrainingJob,
    calibrate,
    choose_measurements,
)

ROOT = Path(__file__).resolve().parents[2]
ORACLES = Path(os.environ.get("TORCHTRACEAP_ORACLES", ROOT.parent / "shared" / "oracles"))
TIMES = ORACLES / "vtrain" / "ground_truth_single.csv"
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
            _, batch, micro, hidden, _, layers, sequence, tensor, data, pipeline = map(
                int, row[:-1]
            )
            jobs.append(TrainingJob(batch, micro, hidden, layers, sequence, tensor, data, pipeline))
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
