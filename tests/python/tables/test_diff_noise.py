"""Tests of which differences between two recordings are called beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WriteTrace
from scipy import stats

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.compare.diff import build_diff
from torchtraceap.tables.compare.noise import (
    common_factor,
    recording_noise_ns,
    step_noise_ns,
    student_t_quantile,
)
from torchtraceap.tables.steps.pieces import Cells
from torchtraceap.trace.trace import Trace

EXAMPLES = Path(__file__).parents[3] / "examples/traces"
ROWS = 150


def cells_of(matrix: np.ndarray) -> Cells:
    row, step = np.indices(matrix.shape).reshape(2, -1)
    return Cells.of(row, step, matrix.ravel(), matrix.shape)


# ---------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 301, 999, 1000, 100_000])
@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9999, 1 - 1e-6])
def test_student_t_quantile_is_that_of_scipy(freedom: int, probability: float) -> None:
    # From 1000 degrees of freedom the normal distribution stands in.
    tolerance = 1e-6 if freedom < 1000 else 0.01
    expected = stats.t.ppf(probability, freedom)
    assert student_t_quantile(probability, freedom) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("steps", [8, 12, 20, 40])
def test_standard_error_is_that_of_yuens_test(steps: int) -> None:
    rng = np.random.default_rng(steps)
    before, after = rng.lognormal(size=(2, 30, steps))
    sides = cells_of(before), cells_of(after)
    error = np.hypot(*(side.standard_errors() for side in sides))
    difference = sides[1].middle_means() - sides[0].middle_means()
    yuen = stats.ttest_ind(after, before, axis=1, equal_var=False, trim=0.25)
    assert difference / error == pytest.approx(yuen.statistic)


def test_standard_error_of_few_steps_counts_every_step() -> None:
    values = np.array([[1.0, 2.0, 3.0, 90.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 8.0]])
    expected = values.std(axis=1, ddof=1) / 2
    assert cells_of(values).standard_errors() == pytest.approx(expected)


def hiccups(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Return times of rows that do not change, one in ten of which stands still for long."""
    calm = 100 + rng.normal(size=(ROWS, steps))
    return calm + 30 * (rng.random((ROWS, steps)) < 0.1)


@pytest.mark.parametrize("steps", [3, 4, 6, 8, 14, 30, 100])
def test_rows_that_do_not_change_are_not_beyond_noise(steps: int) -> None:
    """Without a change, at most one table in twenty has any row beyond noise."""
    rng = np.random.default_rng(steps)
    tables = 60
    alarms = 0
    for _ in range(tables):
        sides = cells_of(hiccups(rng, steps)), cells_of(hiccups(rng, steps))
        difference = sides[1].middle_means() - sides[0].middle_means()
        alarms += bool((np.abs(difference) > step_noise_ns(sides, ROWS)).any())
    assert alarms <= stats.binom.ppf(0.999, tables, 0.05)


@pytest.mark.parametrize(("steps", "change"), [(4, 25.0), (8, 20.0), (30, 3.0)])
def test_a_change_of_many_standard_deviations_is_beyond_noise(steps: int, change: float) -> None:
    rng = np.random.default_rng(steps)
    missed = 0
    for _ in range(40):
        before, after = 100 + rng.normal(size=(2, ROWS, steps))
        after[0] += change
        sides = cells_of(before), cells_of(after)
        difference = sides[1].middle_means() - sides[0].middle_means()
        missed += bool(difference[0] <= step_noise_ns(sides, ROWS)[0])
    assert missed <= 12


def test_noise_is_unknown_with_two_steps() -> None:
    sides = cells_of(np.ones((3, 2))), cells_of(np.ones((3, 9)))
    assert np.isnan(step_noise_ns(sides, 3)).all()


def test_spread_of_unchanged_rows_is_noise_between_recordings() -> None:
    rng = np.random.default_rng(1)
    before = rng.uniform(1e4, 1e6, size=400)
    after = before * np.exp(0.03 * rng.normal(size=400))
    after[0] = 2 * before[0]
    calls = [np.ones(400), np.ones(400)]
    common = common_factor([before, after], calls, np.ones(400, dtype=bool))
    assert common.factor == 1
    assert common.spread == pytest.approx(0.03, rel=0.2)
    beyond = np.abs(after - before) > recording_noise_ns([before, after], common, 400)
    assert np.flatnonzero(beyond).tolist() == [0]


def test_rows_called_more_often_do_not_count_for_the_spread() -> None:
    before = np.full(10, 100.0)
    after = np.array([100.0] * 5 + [300.0] * 5)
    calls = [np.ones(10), np.array([1.0] * 5 + [3.0] * 5)]
    common = common_factor([before, after], calls, np.ones(10, dtype=bool))
    assert (common.factor, common.spread) == (1, 0)


# ---------------------------------------------------------------------------------- tables


def operators(*steps: Sequence[float]) -> list[dict[str, Any]]:
    """Return the events of steps whose operators `op0`, `op1`, ... take so many us on the CPU."""
    events: list[dict[str, Any]] = []
    clock = 0.0

    def add(category: str, name: str, start: float) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "args": {}}
        events.append({**event, "ts": start, "dur": clock - start})

    for number, lengths in enumerate(steps):
        start = clock
        for index, us in enumerate(lengths):
            begin, clock = clock, clock + us
            add("cpu_op", f"op{index}", begin)
        add("user_annotation", f"ProfilerStep#{number}", start)
    return events


def significances(table: ColumnTable) -> dict[str, str | None]:
    return dict(zip(table.to_list("name"), table.to_list("significance"), strict=True))


@pytest.fixture
def compared(write_trace: WriteTrace) -> Any:
    def compare(before: Any, after: Any, by: str = "op") -> ColumnTable:
        loaded = [
            ttap.load(write_trace(operators(*steps), f"{number}.json"))
            for number, steps in enumerate((before, after))
        ]
        return build_diff(loaded[0], loaded[1], by=by)

    return compare


def times(rng: np.random.Generator, steps: int, *scales: float) -> list[list[float]]:
    """Return steps of operators around `scales` us that vary by 2 % and are whole nanoseconds."""
    values = np.array(scales) * (1 + 0.02 * rng.normal(size=(steps + 2, len(scales))))
    return [[round(us, 3) for us in step] for step in values.tolist()]


def test_four_steps_cannot_tell_three_microseconds(compared: Any) -> None:
    rng = np.random.default_rng(3)
    many = [95.0] * 40
    found = significances(compared(times(rng, 4, *many), times(rng, 4, 98, *many[1:])))
    assert set(found.values()) - {None} == {"within noise"}


def test_an_operator_of_twice_the_time_is_beyond_noise_with_four_steps(compared: Any) -> None:
    rng = np.random.default_rng(4)
    many = [95.0] * 40
    before, after = times(rng, 4, *many), times(rng, 4, *many[1:], 95 * 3)
    found = significances(compared(before, after))
    assert [name for name, word in found.items() if word == "beyond noise"] == ["op39"]


def test_a_step_that_stood_still_is_within_noise(compared: Any) -> None:
    """One of the middle steps stands still in one operator, which another one makes up for."""
    before = [[100.0, 500.0]] * 14
    after = [[100.0, 500.0]] * 5 + [[400.0, 200.0]] + [[100.0, 500.0]] * 8
    table = compared(before, after)
    row = next(record for record in table.records() if record["name"] == "op0")
    assert row["delta_ns"] > 0
    assert (row["significance"], row["status"]) == ("within noise", "unchanged")


def test_a_faster_machine_changes_every_row(compared: Any) -> None:
    rng = np.random.default_rng(5)
    before = times(rng, 12, *[1000.0] * 8)
    after = times(rng, 12, *(1000 / factor for factor in (2, 3, 2.5, 4, 2, 3.5, 2, 3)))
    table = compared(before, after)
    changed = {
        record["name"]: (record["status"], record["significance"])
        for record in table.records()
        if record["name"].startswith("op")
    }
    assert set(changed.values()) == {("improvement", "beyond noise")}


# ---------------------------------------------------------------------------------- example


@pytest.fixture(scope="module")
def example() -> list[Trace]:
    return [ttap.load(EXAMPLES / f"resnet50_num_workers_{n}.json.gz") for n in (0, 4)]


def beyond(table: ColumnTable) -> list[dict[str, Any]]:
    return [record for record in table.records() if record["significance"] == "beyond noise"]


def test_the_loader_is_the_one_operator_beyond_noise(example: list[Trace]) -> None:
    (row,) = beyond(build_diff(*example))
    assert row["name"].startswith("idle: data loading (enumerate(DataLoader)")


def test_other_convolution_algorithms_are_kernels_beyond_noise(example: list[Trace]) -> None:
    names = {row["name"] for row in beyond(build_diff(*example, by="kernel"))}
    assert {"explicit_convolve_sgemm", "cudnn::cnn::im2col4d_kernel"} <= names
    assert not any("bn_" in name for name in names)


@pytest.mark.parametrize("by", ["op", "kernel", "ancestor", "cause"])
def test_a_row_is_beyond_noise_if_it_differs_by_more_than_its_noise(
    example: list[Trace], by: str
) -> None:
    table = build_diff(*example, by=by)
    assert int(table["delta_ns"].sum()) == table.facts["difference_ns"]
    for row in table.records():
        if row["noise_ns"] is None:
            assert row["significance"] is None
        else:
            outside = abs(row["delta_ns"]) > row["noise_ns"]
            assert row["significance"] == ("beyond noise" if outside else "within noise")


@pytest.mark.parametrize("by", ["op", "kernel", "ancestor", "cause"])
def test_a_recording_does_not_differ_from_itself(example: list[Trace], by: str) -> None:
    table = build_diff(example[0], example[0], by=by)
    assert beyond(table) == []
    assert set(table.to_list("status")) <= {"unchanged", None}
