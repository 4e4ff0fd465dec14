"""Both sides of what decides: a trace, or values, just below each bound of the tables and just
above."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace
from rank_samples import Job, describe

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.tables.compare.diff import build_diff
from torchtraceap.tables.gpu import sequences
from torchtraceap.tables.launches import _full_length
from torchtraceap.tables.steps.pieces import median_ns, middle_half, robust_sigma, whole_steps

# --------------------------------------------------------------------------------- queues


def queue(longest: int, at_top: int, *, elsewhere: int = 0) -> np.ndarray[Any, Any]:
    """Lengths of a queue: single launches, then up to the longest, where launches and starts
    alternate."""
    top = [longest - 1, longest] * at_top
    return np.array([1, 0] * elsewhere + [*range(1, longest + 1), *top])


@pytest.mark.parametrize(
    ("lengths", "full"),
    [
        (queue(999, 200), 997),  # CUDA's queue is full from 1000 on, others where they stay
        (queue(1000, 0), 1000),
        (queue(1001, 0), 1000),
        (queue(32, 61), 30),  # 64 launches find it within 2 of its longest: 30, 31 and 32 once
        (queue(32, 60), None),
        (queue(31, 200), None),  # too short to be a limit
        (queue(32, 100, elsewhere=898), 30),  # 103 of 1030 launches are a tenth
        (queue(32, 100, elsewhere=899), None),
    ],
)
def test_a_queue_is_full(lengths: np.ndarray[Any, Any], full: int | None) -> None:
    assert _full_length(lengths) == full


def test_an_event_is_short_if_shorter_than_its_call(tmp_path: Path) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 4)).launch("b", (30, 5), (50, 5))
    assert trace.load(tmp_path).launches(by="event").to_list("short") == [True, False]


# ------------------------------------------------------------------------------- sequences


@pytest.mark.parametrize("length", [-1, 1, 100_001])
def test_lengths_of_sequences_that_make_no_sense(tmp_path: Path, length: int) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 4)).load(tmp_path)
    with pytest.raises(OptionError, match="between 2 and 100000"):
        trace.sequences(length=length)


@pytest.mark.parametrize("length", [0, 2, 100_000])
def test_lengths_of_sequences_that_make_sense(tmp_path: Path, length: int) -> None:
    trace = GpuTrace()
    for i in range(6):
        trace.launch("ab"[i % 2], (20.0 * i, 5), (20.0 * i + 8, 4))
    assert trace.load(tmp_path).sequences(length=length).num_rows == (length < 100_000)


@pytest.mark.parametrize(("limit", "is_noted"), [(1, True), (2, False)])
def test_a_limited_list_of_sequences_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, is_noted: bool
) -> None:
    monkeypatch.setattr(sequences, "_LIMIT", limit)
    trace = GpuTrace()
    for i in range(6):
        trace.launch("ab"[i % 2], (20.0 * i, 5), (20.0 * i + 8, 4))
    table = trace.load(tmp_path).sequences(length=2)
    assert table.num_rows == 1
    assert any("Only the" in note for note in table.notes) == is_noted


# --------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(("count", "is_fine"), [(0, False), (1, True), (1_000_000, True),
                                                (1_000_001, False)])  # fmt: skip
def test_numbers_of_windows(tmp_path: Path, count: int, is_fine: bool) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 4)).load(tmp_path)
    if is_fine:
        assert len(trace.windows(count=count)) >= 1
    else:
        with pytest.raises(OptionError, match="from 1 to 1000000"):
            trace.windows(count=count)


def test_a_length_of_windows_is_not_negative(tmp_path: Path) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 4)).load(tmp_path)
    assert len(trace.windows(length_ns=8_000)) == 3
    assert len(trace.windows()) == trace.features().num_rows == 100
    with pytest.raises(OptionError, match="not be negative"):
        trace.windows(length_ns=-1)


# ---------------------------------------------------------------------------------- steps


def test_the_first_and_last_of_three_steps_are_left_out() -> None:
    kept = [list(range(count))[whole_steps(count)] for count in range(5)]
    assert kept == [[], [0], [0, 1], [1], [1, 2]]


def test_medians_are_integers_with_halves_to_even() -> None:
    assert [median_ns(np.array(v)) for v in ([], [3], [1, 2], [2, 3], [1, 3], [9, 1, 5])] == [
        0, 3, 2, 2, 2, 5,
    ]  # fmt: skip


def test_a_quarter_of_the_steps_is_dropped_at_each_end() -> None:
    kept = [len(middle_half(np.arange(count))) for count in (1, 3, 4, 7, 8, 12)]
    assert kept == [1, 3, 2, 5, 4, 6]


def test_spread_by_the_median_and_else_by_the_mean_deviation() -> None:
    assert robust_sigma(np.array([1.0, 2, 4])) == pytest.approx(1.4826)
    assert robust_sigma(np.array([5.0, 5, 5, 9])) == pytest.approx(1.2533)


# ------------------------------------------------------------------------------ differences


def steps_of(
    folder: Path, durations_us: Sequence[float], *, op: str = "aten::mm", kernel_us: float = 100,
    dims: Sequence[Any] = ([4, 4],), depth: int = 0,
) -> ttap.Trace:  # fmt: skip
    """Steps with an operator of one kernel for each shape; what remains of a step is idle."""
    folder.mkdir()
    trace = GpuTrace()
    at = 0.0
    for number, duration in enumerate(durations_us):
        trace.host("user_annotation", f"ProfilerStep#{number}", at, duration)
        for level in range(depth):
            trace.op(f"level{level}", at + 0.01 * level, 45)
        for place, shape in enumerate(dims):
            start = at + 1 + 2 * place
            trace.op(op, start, 1.5, **{"Input Dims": [shape]})
            trace.launch("k", (start + 0.2, 1), (at + 50 + kernel_us * place, kernel_us))
        at += duration
    return trace.load(folder)


def test_noise_is_known_from_three_steps_on(tmp_path: Path) -> None:
    """Of four steps two are whole, of five three."""
    for count in (4, 5):
        folder = tmp_path / str(count)
        folder.mkdir()
        sides = [steps_of(folder / side, [500] * count) for side in "ab"]
        table = build_diff(*sides)
        assert np.isnan(table["noise_ns"]).all() == (count == 4)
        assert any("Fewer than 3 whole steps" in note for note in table.notes) == (count == 4)


@pytest.mark.parametrize(("more_us", "status"), [(0.9, "unchanged"), (1.1, "regression")])
def test_without_noise_a_thousandth_of_the_step_is_a_change(
    tmp_path: Path, more_us: float, status: str
) -> None:
    before = steps_of(tmp_path / "a", [1000] * 4)
    after = steps_of(tmp_path / "b", [1000] * 4, kernel_us=100 + more_us)
    by_name = {row["name"]: row["status"] for row in build_diff(before, after).records()}
    assert by_name["aten::mm"] == status


@pytest.mark.parametrize("shapes", [16, 17])
def test_sixteen_shapes_of_an_operator_are_told_apart(tmp_path: Path, shapes: int) -> None:
    dims = [[n + 1, 4] for n in range(shapes)]
    sides = [steps_of(tmp_path / side, [2500] * 3, dims=dims, kernel_us=5) for side in "ab"]
    rows = [row for row in build_diff(*sides).records() if row["name"] == "aten::mm"]
    assert len(rows) == (16 if shapes == 16 else 1)
    assert {row["dims"] for row in rows} == (
        {f"[[{n + 1}, 4]]" for n in range(16)} if shapes == 16 else {"(17 shapes)"}
    )


@pytest.mark.parametrize("depth", [39, 40, 41])
def test_paths_have_forty_names(tmp_path: Path, depth: int) -> None:
    sides = [steps_of(tmp_path / side, [500] * 3, depth=depth) for side in "ab"]
    (row,) = [row for row in build_diff(*sides).records() if row["name"] == "aten::mm"]
    path = row["path"].split(" / ")
    assert len(path) == min(depth, 40)
    assert path[-1] == row["parent"] == f"level{depth - 1}"


@pytest.mark.parametrize(("others", "is_other"), [(9, False), (10, True)])
def test_a_tenth_of_the_operators_makes_a_program_the_same(
    tmp_path: Path, others: int, is_other: bool
) -> None:
    """One operator is in both; each of the others is in one."""

    def program(folder: Path, side: str) -> ttap.Trace:
        folder.mkdir()
        trace = GpuTrace()
        names = ["aten::mm"] + [f"b::{letter}" for letter in "acdefghijk"[:others] if side == "b"]
        for number in range(3):
            at = 2_000.0 * number
            trace.host("user_annotation", f"ProfilerStep#{number}", at, 2_000)
            for place, name in enumerate(names):
                start = at + 100 * place
                trace.op(name, start, 20).launch("k", (start + 1, 5), (start + 30, 10))
        return trace.load(folder)

    table = build_diff(program(tmp_path / "a", "a"), program(tmp_path / "b", "b"))
    assert any("hardly recordings of the same" in note for note in table.notes) == is_other


@pytest.mark.parametrize(("long_us", "slow"), [(1500, False), (1501, True)])
def test_steps_of_one_and_a_half_medians_are_noted(
    tmp_path: Path, long_us: float, slow: bool
) -> None:
    before = steps_of(tmp_path / "a", [1000] * 3 + [long_us] + [1000] * 2)
    after = steps_of(tmp_path / "b", [1000] * 6)
    notes = build_diff(before, after).notes
    assert any("Steps longer than 1.5 times" in note for note in notes) == slow
    assert any("1 before, 0 after" in note for note in notes) == slow


def test_ranks_without_a_partner_are_said(tmp_path: Path) -> None:
    def job(name: str, numbers: Sequence[int]) -> ttap.Trace:
        made = Job(len(numbers), world_size=8)
        for rank, number in enumerate(numbers):
            made.ranks[rank].top["distributedInfo"]["rank"] = number
            for n in range(4):
                made.kernel(rank, 1_000.0 * n + 100, 500)
        return made.step(0, 50, 2_000).load(tmp_path / name)

    paired = build_diff(job("a", [0, 1]), job("b", [2, 3, 4])).notes
    assert any("No rank is in both" in note for note in paired)
    assert any("1 ranks have no partner" in note for note in paired)
    same = build_diff(job("c", [0, 1, 2]), job("d", [1, 2])).notes
    assert not any("No rank is in both" in note for note in same)
    assert any("1 ranks have no partner" in note for note in same)
    assert not any(
        "partner" in note for note in build_diff(job("e", [0, 1]), job("f", [0, 1])).notes
    )


# --------------------------------------------------------------------------------- lateness


def late_job(late_us: float, *, by_kernel: float = 1.0, steps: int = 5) -> Job:
    """Rank 2 of four comes `late_us` late in each step of 10 ms, by its kernel or its host."""
    job = Job(4)
    for number in range(steps):
        at = 10_000.0 * number + 100
        job.step(number, at, 10_000)
        for rank in range(4):
            more = late_us * by_kernel if rank == 2 else 0
            job.kernel(rank, at + 50, 1_000 + more)
        starts = [at + 1_060 + (late_us if rank == 2 else 0) for rank in range(4)]
        job.all_reduce(starts, at + 4_300)
    return job


@pytest.mark.parametrize(("late_us", "verdict"), [(199, "on time"), (201, "straggler")])
def test_a_late_rank_keeps_the_others_waiting_for_two_hundredths(
    tmp_path: Path, late_us: float, verdict: str
) -> None:
    """Of a recording of 50 ms these are 200 us in each of five steps."""
    table = late_job(late_us).load(tmp_path / "job").ranks_table()
    assert table.to_list("verdict") == ["on time", "on time", verdict, "on time"]
    assert table["lateness_ns"][2] == 5_000 * late_us


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.79, "late, cause not proven"), (0.81, "straggler")]
)
def test_a_cause_is_proven_by_eight_tenths(tmp_path: Path, share: float, verdict: str) -> None:
    table = late_job(1_000, by_kernel=share).load(tmp_path / "job").ranks_table()
    row = table.records()[2]
    assert row["verdict"] == verdict
    assert row["cause_share"] is None or row["cause_share"] == pytest.approx(share, abs=0.005)


# ------------------------------------------------------------------------------- all-to-all


@pytest.mark.parametrize(("most", "is_uneven"), [(24, False), (25, True)])
def test_parts_are_uneven_from_1_2_times_their_mean(
    tmp_path: Path, most: int, is_uneven: bool
) -> None:
    """Two ranks send `most` and 40 - `most` to themselves, so their mean is 20."""
    job = Job(2)
    for number in range(4):
        at = 10_000.0 * number + 100
        job.step(number, at, 10_000)
        for rank, size in enumerate((most, 40 - most)):
            splits = [size if rank == other else 0 for other in range(2)]
            args = describe("all_to_allv", size, [0, 1]) | {
                "In split size": str(splits), "Out split size": str(splits),
            }  # fmt: skip
            name = "ncclDevKernel_SendRecv(ncclDevComm*)"
            job.ranks[rank].gpu("kernel", name, at + 100, 8_000, launch=at, **args)
    diagnosis = job.load(tmp_path / "job").diagnose()
    finding = diagnosis.finding("collective_imbalance")
    assert (finding is not None) == is_uneven
    if finding is not None:
        # Each of four exchanges takes 8 ms on either rank, 20 / 25 of it with even parts.
        assert finding.facts["imbalance"].value == pytest.approx(1.25)
        assert finding.cost_ns == 2 * 4 * 8_000_000 * (25 - 20) / 25


# -------------------------------------------------------------------------- calls that differ


def test_the_longest_call_of_an_operator_is_told(tmp_path: Path) -> None:
    trace = GpuTrace()
    for start, host_us, gpu_us in ((0, 10, 5), (100, 30, 20), (200, 20, 2)):
        trace.op("aten::mm", start, host_us)
        trace.launch("k", (start + 1, 4), (start + 40, gpu_us))
    (row,) = trace.load(tmp_path).ops().records()
    assert (row["own_gpu_max_ns"], row["host_max_ns"]) == (20_000, 30_000)
    assert row["own_gpu_mean_ns"] == pytest.approx(9_000)
    assert row["host_mean_ns"] == pytest.approx(20_000)


def test_kernels_are_compared_with_their_own_kind_only(tmp_path: Path) -> None:
    """Kernels of 10 us become rarer and ones of 100 us more frequent: nothing slows down."""
    trace = GpuTrace()
    for number in range(120):
        is_long = number * 7 % 120 < number
        start = 200.0 * number
        trace.launch(
            "long" if is_long else "short", (start, 4), (start + 9, 100 if is_long else 10)
        )
    trend = trace.load(tmp_path).steps().facts["trend"]
    assert trend["verdict"] == "none"
    assert trend["change_share"] == 0
    assert trend["p_value"] == 1


def test_old_triton_kernels_are_told_apart_by_their_operator(tmp_path: Path) -> None:
    """All are called `triton__0d1d2d`; the operators around them say what they do."""
    trace = GpuTrace()
    for number in range(6):
        start = 40.0 * number
        what = ("triton_poi_fused_add_3", "triton_red_fused_mul_4")[number % 2]
        trace.op(what, start, 12)
        trace.launch("triton__0d1d2d", (start + 1, 5), (start + 14, 4))
    table = trace.load(tmp_path).sequences(length=2)
    kernels = {frozenset(row["kernels"]) for row in table.records()}
    assert kernels == {frozenset({"triton_poi_fused_add", "triton_red_fused_mul"})}


@pytest.mark.parametrize("recomputes", [False, True])
def test_forward_work_in_the_backward_pass_is_recompute(tmp_path: Path, recomputes: bool) -> None:
    trace = GpuTrace()
    trace.host("python_function", "nn.Module: Linear_0", 0, 100, **{"Python id": 1})
    trace.op("aten::mm", 10, 50).launch("k", (20, 5), (30, 40))
    trace.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 200, 200)
    if recomputes:
        trace.host("python_function", "nn.Module: Linear_0", 210, 100, **{"Python id": 2})
    trace.op("aten::mm", 220, 50).launch("k", (230, 5), (240, 30))
    table = trace.load(tmp_path).modules()
    row = table.records()[0]
    assert row["forward_gpu_ns"] == 40_000
    assert row["recompute_gpu_ns"] == 30_000 * recomputes
    assert row["recompute_calls"] == int(recomputes)
    assert ("recompute_gpu_ns" in table.shown) == recomputes
    assert any("activation checkpointing" in note for note in table.notes) == recomputes
