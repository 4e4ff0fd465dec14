"""Grids against the multiprocessors: waves, tails, and what a trace lacks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_samples import ALL_REDUCE

import torchtraceap as ttap
from torchtraceap.tables.gpu.recorded_device import LIMITS, Multiprocessor, resident_blocks

# Ten multiprocessors of an A100: 64 warps, 32 blocks, 65,536 registers, 164 KiB each.
TEN: dict[str, Any] = {
    "id": 0, "name": "Tiny", "numSms": 10, "maxThreadsPerMultiprocessor": 2048, "warpSize": 32,
    "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936,
    "computeMajor": 8, "computeMinor": 0,
}  # fmt: skip


def shape(grid: list[int], block: list[int], registers: int, shared: int = 0) -> dict[str, Any]:
    return {
        "grid": grid,
        "block": block,
        "registers per thread": registers,
        "shared memory": shared,
    }


def sample() -> GpuTrace:
    trace = GpuTrace()
    trace.launch("wide", (0, 5), (10, 30), **shape([25, 2, 1], [256, 1, 1], 32))
    trace.launch("deep", (50, 5), (60, 50), **shape([100, 1, 1], [128, 1, 1], 128))
    trace.launch("few", (120, 5), (130, 20), **shape([6, 1, 1], [1024, 1, 1], 16, 98304))
    trace.launch(ALL_REDUCE, (160, 5), (170, 40), **shape([8, 1, 1], [512, 1, 1], 96))
    return trace


def test_waves_worked_out_by_hand(tmp_path: Path) -> None:
    trace = sample().load(tmp_path, deviceProperties=[TEN])
    wide, deep, few, collective = trace.grids(by="event").records()
    # 256 threads of 32 registers: 8 blocks are all 64 warps. 50 of 80 places.
    assert (wide["blocks"], wide["block_threads"], wide["multiprocessors"]) == (50, 256, 10)
    assert (wide["resident_blocks"], wide["limited_by"]) == (8, "threads")
    assert (wide["waves"], wide["tail_share"], wide["used_share"]) == (0.625, 0.375, 1.0)
    # A warp takes 32 x 128 registers, so 16 warps fit, which are 4 blocks. 100 in 40 places each.
    assert (deep["resident_blocks"], deep["limited_by"]) == (4, "registers")
    assert (deep["waves"], deep["tail_share"]) == (2.5, 0.5)
    assert deep["empty_share"] == pytest.approx(0.5 / 3)
    # 96 KiB and the 1 KiB of the system: one block, on 6 of 10 multiprocessors.
    assert (few["resident_blocks"], few["limited_by"]) == (1, "shared memory")
    assert (few["waves"], few["tail_share"], few["used_share"]) == pytest.approx((0.6, 0.4, 0.6))
    assert collective["class"] == "communication"


def test_time_below_one_wave_leaves_collectives_out(tmp_path: Path) -> None:
    facts = sample().load(tmp_path, deviceProperties=[TEN]).grids().facts
    assert (facts["kernels_ns"], facts["compute_ns"]) == (140_000, 100_000)
    assert facts["below_one_wave_ns"] == 50_000  # wide and few
    assert facts["below_one_wave_share"] == 0.5
    assert facts["multiprocessors"] == [10]


def test_a_name_has_the_means_of_its_launches_by_time(tmp_path: Path) -> None:
    trace = GpuTrace()
    trace.launch("k", (0, 5), (10, 30), **shape([40, 1, 1], [256, 1, 1], 32))  # 0.5 waves
    trace.launch("k", (50, 5), (60, 10), **shape([120, 1, 1], [256, 1, 1], 32))  # 1.5 waves
    loaded = trace.load(tmp_path, deviceProperties=[TEN])
    (row,) = loaded.grids().records()
    assert (row["count"], row["grids"], row["sum_ns"]) == (2, 2, 40_000)
    assert row["waves"] == pytest.approx(0.75 * 0.5 + 0.25 * 1.5)
    assert row["below_one_wave_ns"] == 30_000
    assert loaded.grids(by="grid").to_list("waves") == [0.5, 1.5]


def test_a_full_wave_has_no_tail_and_is_not_below_one(tmp_path: Path) -> None:
    trace = GpuTrace().launch("k", (0, 5), (10, 30), **shape([80, 1, 1], [256, 1, 1], 32))
    table = trace.load(tmp_path, deviceProperties=[TEN]).grids()
    (row,) = table.records()
    assert (row["waves"], row["tail_share"], row["empty_share"]) == (1.0, 0.0, 0.0)
    assert table.facts["below_one_wave_ns"] == 0


def test_hip_calls_that_take_the_grid_in_threads(tmp_path: Path) -> None:
    """As Tensile's kernels of matrix products are launched."""
    trace = GpuTrace(runtime="cuda_runtime")
    for at, call in ((0, "hipExtModuleLaunchKernel"), (100, "hipLaunchKernel")):
        trace.launch("k", (at, 5), (at + 10, 30), call=call, grid=[2560, 1, 1], block=[256, 1, 1])
    mi = {"id": 0, "numSms": 10, "maxThreadsPerMultiprocessor": 2048, "warpSize": 64}
    table = trace.load(tmp_path, deviceProperties=[mi]).grids(by="event")
    assert table.to_list("blocks") == [10, 2560]
    assert table.to_list("waves") == [0.125, 32.0]
    assert any("threads alone" in note for note in table.notes)


def test_a_trace_that_does_not_describe_its_device(tmp_path: Path) -> None:
    """The profiler's blocks per multiprocessor give their number, not how many blocks fit."""
    trace = GpuTrace()
    for at, blocks, per in ((0, 16, 0.14814815), (50, 5000, 46.296295)):
        args = shape([blocks, 1, 1], [128, 1, 1], 86)
        trace.launch("k", (at, 5), (at + 10, 30), **args, **{"blocks per SM": per})
    table = trace.load(tmp_path).grids(by="event")
    assert table.to_list("multiprocessors") == [108, 108]
    assert table.to_list("used_share") == pytest.approx([16 / 108, 1.0])
    assert table.to_list("waves") == [None, None]
    assert any("deviceProperties" in note for note in table.notes)
    assert table.facts["below_one_wave_share"] is None


def test_a_device_told_by_its_name(tmp_path: Path) -> None:
    device = TEN | {"name": "NVIDIA A100-SXM4-80GB"}
    del device["numSms"]
    table = sample().load(tmp_path, deviceProperties=[device]).grids(by="event")
    assert set(table.to_list("multiprocessors")) == {108}


def test_devices_of_two_kinds_each_count_for_their_own_kernels(tmp_path: Path) -> None:
    trace = GpuTrace()
    for device in (0, 1):
        args = shape([40, 1, 1], [256, 1, 1], 32) | {"device": device}
        trace.launch("k", (50 * device, 5), (50 * device + 10, 30), **args)
    other = TEN | {"id": 1, "numSms": 5}
    table = trace.load(tmp_path, deviceProperties=[TEN, other]).grids(by="event")
    assert table.to_list("waves") == [0.5, 1.0]


@pytest.mark.parametrize("properties", [[], "x", [1, None], [{"numSms": 1e308}], {"id": 0}])
def test_properties_that_are_none(properties: Any, tmp_path: Path) -> None:
    table = sample().load(tmp_path, deviceProperties=properties).grids(by="grid")
    assert table.num_rows == 4
    assert set(table.to_list("waves")) == {None}


def test_traces_without_grids_or_kernels_say_so(tmp_path: Path) -> None:
    table = GpuTrace().gpu("k", 0, 5).load(tmp_path, deviceProperties=[TEN]).grids()
    assert (table.num_rows, table.to_list("waves")) == (1, [None])
    assert any("no grid sizes" in note for note in table.notes)
    nothing = GpuTrace().op("aten::mm", 0, 5).load(tmp_path).grids()
    assert nothing.num_rows == 0
    assert any("ProfilerActivity.CUDA" in note for note in nothing.notes)


@pytest.mark.parametrize(
    ("capability", "blocks", "threads"),
    [((7, 5), 16, 1024), ((8, 9), 24, 1536), ((9, 0), 32, 2048)],
)
def test_small_blocks_are_limited_by_their_number(
    capability: tuple[int, int], blocks: int, threads: int
) -> None:
    on = Multiprocessor(10, threads, 65536, 65536, capability=capability)
    one = np.array([32.0])
    held, limit = resident_blocks(on, one, np.array([16.0]), np.zeros(1))
    assert (held.tolist(), LIMITS[limit[0]]) == ([blocks], "blocks")


def test_a_block_that_ran_fits() -> None:
    """Whatever the figures say."""
    on = Multiprocessor(10, 2048, 65536, 1024, capability=(8, 0))
    held, _ = resident_blocks(on, np.array([1024.0]), np.array([255.0]), np.array([1e9]))
    assert held.tolist() == [1]


kernels = st.tuples(
    st.sampled_from(["a", "b<int>", "b<float>", ALL_REDUCE]),
    st.integers(0, 50),
    st.sampled_from([None, [1, 1, 1], [64, 3, 1], [0, 1, 1]]),
    st.sampled_from([None, [32, 1, 1], [256, 2, 1]]),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(kernels, max_size=12))
def test_times_of_every_view_sum_to_the_time_of_the_kernels(some: list[Any]) -> None:
    trace = GpuTrace()
    for at, (name, length, grid, block) in enumerate(some):
        args = {key: v for key, v in (("grid", grid), ("block", block)) if v is not None}
        trace.gpu(name, 100 * at, length, **args)
    with tempfile.TemporaryDirectory() as folder:
        loaded = trace.op("x", 0, 1).load(Path(folder), deviceProperties=[TEN])
        total_ns = 1000 * sum(length for _, length, _, _ in some)
        for by, column in (("name", "sum_ns"), ("grid", "sum_ns"), ("event", "duration_ns")):
            table = loaded.grids(by=by)
            assert int(table[column].sum()) == table.facts["kernels_ns"] == total_ns
            for share in ("tail_share", "empty_share", "used_share"):
                assert all(0 <= v <= 1 for v in table.to_list(share) if v is not None)


def test_ranks_stand_below_each_other(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        sample().load(folder, deviceProperties=[TEN], distributedInfo={"rank": rank})
        (folder / "trace.json").rename(tmp_path / f"rank{rank}.json")
        folder.rmdir()
    table = ttap.load(tmp_path).grids()
    assert table.num_rows == 8
    assert table.facts["kernels_ns"] == [140_000, 140_000]
