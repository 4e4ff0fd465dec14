"""GPU work against what is expected of it: hand-made traces, and what holds for real ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.ops import durations
from torchtraceap.tables.ops.expected import METHODS, Expectation
from torchtraceap.tables.ops.gpu_work import between_neighbours, leave_one_out

H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028634624,
         "computeMajor": 9, "computeMinor": 0, "numSms": 132}]  # fmt: skip
BF16 = ["c10::BFloat16", "c10::BFloat16"]
GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"


def product(trace: GpuTrace, ts: float, dur: float, m: int = 4096) -> None:
    trace.op("aten::mm", ts, 20, **{"Input Dims": [[m, 4096], [4096, 4096]], "Input type": BF16})
    trace.launch(GEMM, (ts + 5, 5), (ts + 30, dur), grid=[m // 32, 1, 1], block=[384, 1, 1])


def custom(
    trace: GpuTrace, ts: float, dur: float, name: str = "my_kernel", grid: int = 100
) -> None:
    trace.op("mylib::op", ts, 20)
    trace.launch(name, (ts + 5, 5), (ts + 30, dur), grid=[grid, 1, 1], block=[256, 1, 1])


def rows_of(table: ttap.ColumnTable) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in table.records()}


def test_a_product_is_expected_to_take_what_the_tables_say(tmp_path: Path) -> None:
    trace = GpuTrace()
    for step in range(3):
        product(trace, 1000 * step, 190 + step)
    table = trace.load(tmp_path, deviceProperties=H100).expected()
    (row,) = table.records()
    told = durations.gemm_ns(4096, 4096, 4096, "bf16", "H100 SXM")
    assert told is not None
    assert [row[name] for name in ("expected_ns", "low_ns", "high_ns")] == list(told[:3])
    assert (row["method"], row["class"], row["count"]) == ("table", "gemm bf16", 3)
    assert row["median_ns"] == 191_000
    assert row["ratio"] == pytest.approx(191_000 / told.ns)
    assert table.facts["answered_share"] == table.facts["table_share"] == 1.0
    assert table.facts["device"] == "H100 SXM5 80 GB"


def test_an_operator_without_a_table_is_expected_by_its_work(tmp_path: Path) -> None:
    trace = GpuTrace()
    args = {"Input Dims": [[1 << 24], [1 << 24]], "Input type": ["float", "float"]}
    trace.op("aten::add", 0, 20, **args)
    trace.launch("vectorized_elementwise_kernel<4>", (5, 5), (30, 80), grid=[9, 1, 1])
    (row,) = trace.load(tmp_path, deviceProperties=H100).expected().records()
    assert row["method"] == "work" and "work over the peaks" in row["source"]
    ideal = 3 * 4 * (1 << 24) / 3.35e12 * 1e9
    assert 0.4 * ideal < row["low_ns"] < row["expected_ns"] < row["high_ns"]


def test_what_no_model_knows_is_expected_from_others_of_its_kind(tmp_path: Path) -> None:
    trace = GpuTrace()
    for step in range(9):
        custom(trace, 1000 * step, 50 if step else 500)
    table = trace.load(tmp_path, deviceProperties=H100).expected(by="event")
    rows = list(table.records())
    assert {row["method"] for row in rows} == {"own"}
    # The first is nine times as long and is expected from the others, which it hardly moves.
    assert rows[0]["expected_ns"] == pytest.approx(50_000) and rows[0]["high_ns"] < 500_000
    assert all(row["expected_ns"] == pytest.approx(50_000) for row in rows[1:])
    assert table.facts["own_share"] == 1.0


def test_a_kernel_launched_only_once_is_expected_from_its_name_then_its_family(
    tmp_path: Path,
) -> None:
    trace = GpuTrace()
    for step, grid in enumerate((100, 200, 400)):
        custom(trace, 1000 * step, 50 * 2**step, "my_gemm_kernel<float>", grid)
    custom(trace, 4000, 70, "another_gemm", 300)
    rows = list(trace.load(tmp_path, deviceProperties=H100).expected(by="event").records())
    assert [row["method"] for row in rows] == ["own"] * 4
    sources = trace.load(tmp_path, deviceProperties=H100).expected()
    told = {row["kernel"]: row["source"] for row in sources.records()}
    assert "same name" in told["my_gemm_kernel<float>"]
    assert "same family" in told["another_gemm"]
    spans = [row["high_ns"] / row["low_ns"] for row in rows]
    assert spans[3] > spans[0] > 2  # a family says less than a name, both say little


def test_a_known_family_always_has_an_answer_and_an_unknown_one_none(tmp_path: Path) -> None:
    trace = GpuTrace()
    custom(trace, 0, 50, "lonely_gemm")
    custom(trace, 1000, 50, "zzz")
    trace.launch("Memcpy HtoD (Pageable -> Device)", (2000, 5), (2030, 9), cat="gpu_memcpy")
    for devices in (H100, None):
        members = {"deviceProperties": devices} if devices else {}
        rows = rows_of(trace.load(tmp_path, **members).expected(by="event"))
        lonely, unknown = rows["lonely_gemm"], rows["zzz"]
        assert lonely["method"] == "launch"
        assert lonely["high_ns"] / lonely["low_ns"] > 20
        assert unknown["method"] == "none" and unknown["expected_ns"] is None
        assert rows["Memcpy HtoD (Pageable -> Device)"]["expected_ns"] > 0


def test_collectives_may_wait(tmp_path: Path) -> None:
    trace = GpuTrace()
    said = {"Collective name": "allreduce", "In msg nelems": 1 << 24, "Out msg nelems": 1 << 24,
            "dtype": "Float", "Group size": 8, "Process Group Name": "0",
            "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}  # fmt: skip
    trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", (0, 5), (10, 900), **said)
    (row,) = trace.load(tmp_path, deviceProperties=H100).expected().records()
    told = durations.collective_ns("all_reduce", 4 << 24, 8, "H100 SXM")
    assert told is not None and row["method"] == "table"
    assert row["class"] == "communication all_reduce"
    assert row["expected_ns"] == told.ns and row["high_ns"] > 5 * told.high_ns
    assert "waits for the others" in row["source"]


def test_calls_of_several_kernels_are_one_unit_split_among_its_events(tmp_path: Path) -> None:
    trace = GpuTrace()
    args = {"Input Dims": [[64, 4096], [4096, 4096]], "Input type": BF16}
    trace.op("aten::mm", 0, 40, **args)
    trace.launch(GEMM, (5, 5), (60, 30)).launch("splitKreduce_kernel", (15, 5), (90, 10))
    loaded = trace.load(tmp_path, deviceProperties=H100)
    (row,) = loaded.expected().records()
    assert (row["count"], row["gpu_ns"]) == (1, 40_000)
    events = list(loaded.expected(by="event").records())
    assert [event["expected_ns"] for event in events] == pytest.approx(
        [row["expected_ns"] * 0.75, row["expected_ns"] * 0.25]
    )


def test_another_device_is_asked_for_by_name(tmp_path: Path) -> None:
    trace = GpuTrace()
    product(trace, 0, 190)
    for step in range(1, 5):
        custom(trace, 1000 * step, 50)
    loaded = trace.load(tmp_path, deviceProperties=H100)
    here, there = (rows_of(loaded.expected(device=name)) for name in (None, "a100_sxm_80gb"))
    assert there["aten::mm"]["expected_ns"] > 1.5 * here["aten::mm"]["expected_ns"]
    ratio = there["mylib::op"]["expected_ns"] / here["mylib::op"]["expected_ns"]
    assert ratio == pytest.approx(3350 / 2039, rel=0.02)
    spans = [rows["mylib::op"]["high_ns"] / rows["mylib::op"]["low_ns"] for rows in (here, there)]
    assert spans[1] > spans[0]
    table = loaded.expected(device="a100_sxm_80gb")
    assert table.facts["inside_share"] is None
    assert "on A100 SXM4 80 GB, where nothing of this was measured." in table.notes[-1]
    assert {row["inside_share"] for row in table.records()} == {None}
    with pytest.raises(OptionError, match="several devices"):
        loaded.expected(device="A100")


def test_what_a_calibration_says_is_less_sure_on_another_device(tmp_path: Path) -> None:
    trace = GpuTrace()
    for step in range(20):
        product(trace, 1000 * step, 300)
    loaded = trace.load(tmp_path, deviceProperties=H100)
    (here,), (there,) = (
        list(loaded.expected(device=name, calibrated=True).records()) for name in (None, "H200")
    )
    spans = [row["high_ns"] / row["low_ns"] for row in (here, there)]
    assert spans[0] < 1.2 and spans[1] > 1.4
    assert there["expected_ns"] == pytest.approx(here["expected_ns"], rel=0.2)
    ratios = [loaded.expected(device=name, by="class")["median_ratio"] for name in (None, "H200")]
    assert ratios[0].tolist() == ratios[1].tolist()  # those of the device that was measured


def test_a_calibrated_trace_expects_what_it_measured(tmp_path: Path) -> None:
    trace = GpuTrace()
    for step in range(20):
        product(trace, 1000 * step, 300)
    loaded = trace.load(tmp_path, deviceProperties=H100)
    (plain,), (own,) = (list(loaded.expected(calibrated=on).records()) for on in (False, True))
    assert plain["ratio"] > 1.3
    assert own["ratio"] == pytest.approx(1.0, abs=0.02) and own["inside_share"] == 1.0
    calibration = durations.calibrate(loaded)
    (ratio,) = calibration.classes.values()
    assert (ratio.name, ratio.kinds, ratio.calls, ratio.is_few) == ("gemm bf16", 1, 20, True)
    assert ratio.median == pytest.approx(plain["ratio"])
    other = GpuTrace()
    product(other, 0, 100, m=8192)
    (told,) = other.load(tmp_path, deviceProperties=H100).expected(
        calibration=calibration
    ).records()  # fmt: skip
    model = durations.gemm_ns(8192, 4096, 4096, "bf16", "H100 SXM")
    assert model is not None and 1.02 < told["expected_ns"] / model.ns < plain["ratio"]


def test_classes_are_shown_with_their_ratios(tmp_path: Path) -> None:
    trace = GpuTrace()
    for step in range(6):
        product(trace, 1000 * step, 200, m=512 * (step + 1))
        custom(trace, 1000 * step + 500, 50)
    table = trace.load(tmp_path, deviceProperties=H100).expected(by="class")
    rows = {row["class"]: row for row in table.records()}
    assert rows["gemm bf16"]["kinds"] == 6 and rows["gemm bf16"]["few"] is False
    assert rows["gemm bf16"]["low_ratio"] < rows["gemm bf16"]["median_ratio"]
    assert rows["other"]["kinds"] is None and rows["other"]["median_ratio"] is None


def test_a_trace_without_gpu_events_says_so(tmp_path: Path) -> None:
    loaded = GpuTrace().op("aten::mm", 0, 20).load(tmp_path)
    for by in ("args", "class", "event"):
        table = loaded.expected(by=by)
        assert table.num_rows == 0 and "The trace has no GPU events." in table.notes
    assert "no kernels that a model estimates" in str(durations.calibrate(loaded))


def test_the_median_of_others_leaves_the_item_out() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 6, 200)
    values = rng.normal(size=200)
    known = rng.random(200) < 0.5
    group[:3] = 9, 9, 8  # two alike, one alone
    known[:3] = True
    middle, _, others = leave_one_out(group, values, known)
    for at in range(200):
        rest = known & (group == group[at])
        rest[at] = False
        assert others[at] == rest.sum()
        if rest.any():
            assert middle[at] == pytest.approx(np.median(values[rest]))
        else:
            assert math.isnan(middle[at])


def test_between_two_launches_the_time_is_between_theirs() -> None:
    group = np.array([0, 0, 0, 0, 1, 1, 2])
    log_size = np.array([0.0, 1.0, 3.0, 4.0, 2.0, 2.0, 5.0])
    times = np.array([0.0, 9.0, 6.0, 9.0, 1.0, 3.0, 7.0])
    known = np.array([True, False, True, False, True, True, True])
    told = between_neighbours(group, log_size, times, known)
    assert told[1] == pytest.approx(2.0)  # a third of the way from 0 to 6
    assert told[0] == pytest.approx(6.0 - 0.7 * 3)  # below the only other
    assert told[3] == pytest.approx(6.0 + 0.7)  # beyond the largest other
    assert told[4:6].tolist() == [3.0, 1.0]  # the other of the same size
    assert math.isnan(told[6])
    assert len(between_neighbours(group[:0], log_size[:0], times[:0], known[:0])) == 0


def test_every_real_trace_has_its_known_families_answered(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    for part in trace.ranks:
        expectation = Expectation(part)
        work, found = expectation.work, expectation.estimates
        answered = np.isfinite(found.ns)
        known = np.array([kind.family != "other" for kind in work.kinds], dtype=bool)
        assert answered[known[work.kind]].all() if len(work) else True
        assert (found.low_ns[answered] <= found.ns[answered]).all()
        assert (found.ns[answered] <= found.high_ns[answered]).all()
        assert (found.low_ns[answered] > 0).all() and np.isfinite(found.high_ns[answered]).all()
        assert set(np.unique(expectation.method)) <= set(range(len(METHODS)))
        calibrated = Expectation(part, calibration=expectation.fitted())
        assert np.isfinite(calibrated.estimates.ns[answered]).all()
