"""Two traces compared: every nanosecond of the difference in one row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WriteTrace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rank_samples import late_rank

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.compare.diff import SPREAD, VIEWS, build_diff
from torchtraceap.tables.steps.pieces import median_ns, middle_half, robust_sigma
from torchtraceap.trace.trace import Trace

Event = dict[str, Any]
GOLDEN = Path(__file__).parents[2] / "golden"
SUMMING = ("op", "kernel", "ancestor", "cause", "finding")


class Recorder:
    """Writes events of a training loop; times in microseconds."""

    def __init__(self, *, vendor: str = "cuda") -> None:
        self.events: list[Event] = []
        self.clock = 0.0
        self._vendor = vendor
        self._correlation = 0

    def host(self, category: str, name: str, start: float, end: float, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": end - start,
                "args": args,
            }
        )

    def op(
        self, name: str, us: float, kernel: str = "k", *, dims: Any = None, category: str = "kernel"
    ) -> None:
        """An operator that takes 10 us and launches a kernel which starts right behind it."""
        self._correlation += 1
        start, self.clock = self.clock, self.clock + 10 + us
        shapes = {} if dims is None else {"Input Dims": dims}
        self.host("cpu_op", name, start, start + 10, **shapes)
        call = f"{self._vendor}LaunchKernel"
        self.host("cuda_runtime", call, start + 1, start + 9, correlation=self._correlation)
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": kernel,
                "pid": 0,
                "tid": 7,
                "ts": start + 10,
                "dur": us,
                "args": {"device": 0, "stream": 7, "correlation": self._correlation},
            }
        )

    def load(self, us: float) -> None:
        """The loader takes so long, on this thread."""
        start, self.clock = self.clock, self.clock + us
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.host("user_annotation", name, start, self.clock)

    def mark(self, number: int, start: float) -> None:
        self.host("user_annotation", f"ProfilerStep#{number}", start, self.clock)


def training(
    steps: int = 5,
    *,
    mm_us: float = 100,
    load_us: float = 0,
    jitter_us: float = 0,
    extra: str = "",
    marked: bool = True,
    vendor: str = "cuda",
) -> list[Event]:
    """Steps of loader, matrix product, ReLU and, by name, one more operator."""
    recorder = Recorder(vendor=vendor)
    for number in range(steps):
        start = recorder.clock
        if load_us:
            recorder.load(load_us)
        recorder.op("aten::mm", mm_us + jitter_us * (number % 3), "gemm", dims=[[8, 4], [4, 8]])
        recorder.op("aten::relu", 20, "relu_kernel", dims=[[8, 8]])
        if extra:
            recorder.op(extra, 50, "extra_kernel")
        if marked:
            recorder.mark(number, start)
    return recorder.events


def compared(write_trace: WriteTrace, a: Any, b: Any, by: str = "op") -> ColumnTable:
    before = ttap.load(write_trace(a, "a.json"))
    after = ttap.load(write_trace(b, "b.json"))
    table = build_diff(before, after, by=by)
    assert_closed(table)
    return table


def assert_closed(table: ColumnTable) -> None:
    assert int(table["delta_ns"].sum()) == table.facts["difference_ns"]
    assert int(table["before_ns"].sum()) == table.facts["before_step_ns"]
    assert int(table["after_ns"].sum()) == table.facts["after_step_ns"]
    for record in table.records():
        if (record["before_ns"] == 0) != (record["after_ns"] == 0):
            assert record["status"] != "unchanged", record


def row(table: ColumnTable, name: str) -> dict[str, Any]:
    found = [record for record in table.records() if record["name"] == name]
    assert len(found) == 1, [record["name"] for record in table.records()]
    return found[0]


# ---------------------------------------------------------------------------------- statistics


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=30))
def test_median_is_the_median(values: list[int]) -> None:
    found = median_ns(np.asarray(values, dtype=np.int64))
    ordered = sorted(values)
    twice = ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]
    assert abs(2 * found - twice) <= 1
    assert -found == median_ns(-np.asarray(values, dtype=np.int64))


def test_middle_half_keeps_those_around_the_median() -> None:
    kept = middle_half(np.asarray([50, 1, 2, 3, 4, 900, 5, 6]))
    assert sorted(kept.tolist()) == [3, 4, 6, 7]
    assert middle_half(np.asarray([7])).tolist() == [0]
    assert len(middle_half(np.zeros(0))) == 0


def test_robust_sigma_ignores_one_outlier_and_sees_rare_work() -> None:
    assert robust_sigma(np.asarray([10.0, 11, 12, 13, 10_000])) == pytest.approx(1.4826)
    assert robust_sigma(np.asarray([0.0, 0, 0, 0, 8])) == pytest.approx(1.2533 * 1.6)
    assert robust_sigma(np.zeros((3, 0))).tolist() == [0, 0, 0]


# ---------------------------------------------------------------------------------- views


def test_slower_operator_is_the_row_that_changed(write_trace: WriteTrace) -> None:
    table = compared(write_trace, training(), training(mm_us=160))
    assert table.facts["difference_ns"] == 60_000
    assert table.facts["before_steps"] == 3
    assert table.facts["basis"] == "whole steps"
    changed = [record for record in table.records() if record["delta_ns"]]
    assert [r["name"] for r in changed] == ["aten::mm"]
    found = changed[0]
    assert found["status"] == "regression"
    assert (found["before_ns"], found["after_ns"], found["delta_ns"]) == (100_000, 160_000, 60_000)
    assert found["before_calls"] == found["after_calls"] == 1
    assert found["matched_by"] == "name and shape"
    assert json.loads(found["before_dims"]) == [[8, 4], [4, 8]]
    assert found["significance"] == "beyond noise"


def test_loading_is_a_cause_that_vanished(write_trace: WriteTrace) -> None:
    before, after = training(load_us=500), training()
    by_cause = compared(write_trace, before, after, "cause")
    assert row(by_cause, "idle: data loading")["delta_ns"] == -500_000
    assert row(by_cause, "idle: data loading")["status"] == "gone"
    by_op = compared(write_trace, before, after, "op")
    assert by_op.to_list("name")[0].startswith("idle: data loading (enumerate(DataLoader)")
    assert by_op.to_list("delta_ns")[0] == -500_000


def test_new_operator(write_trace: WriteTrace) -> None:
    table = compared(write_trace, training(), training(extra="my::op"))
    found = row(table, "my::op")
    assert (found["status"], found["matched_by"]) == ("new", "unmatched")
    assert (found["before_calls"], found["after_calls"]) == (0, 1)
    back = compared(write_trace, training(extra="my::op"), training())
    assert row(back, "my::op")["status"] == "gone"
    assert row(back, "my::op")["delta_ns"] == -found["delta_ns"]


class Nest:
    """Calls inside calls: a step of modules, ranges and operators, whose kernels run in order."""

    def __init__(self) -> None:
        self.recorder = Recorder()

    def call(self, name: str, *inner: Any, category: str = "cpu_op", dims: Any = None) -> None:
        """A call around others: `(name, kernel, us)` launches, what is callable nests."""
        start = self.recorder.clock
        for part in inner:
            if callable(part):
                part()
            else:
                self.recorder.op(part[0], part[2], part[1], dims=[[8, 8]])
        shapes = {} if dims is None else {"Input Dims": dims}
        self.recorder.host(category, name, start, self.recorder.clock, **shapes)

    @property
    def events(self) -> list[Event]:
        return self.recorder.events


def mlp(*ops: tuple[str, str, float]) -> list[Event]:
    nest = Nest()
    nest.call("aten::linear", ("aten::addmm", "gemm", 40))
    nest.call("my::mlp", *ops)
    return nest.events


def by_name(table: ColumnTable) -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in table.records()}


def test_kernels_of_replaced_operators_meet_at_the_call_that_both_have(
    write_trace: WriteTrace,
) -> None:
    """Three operators became one that is fused: neither has a partner, their parent has."""
    before = mlp(("aten::mul", "mul", 30), ("aten::add", "add", 20), ("aten::gelu", "gelu", 25))
    after = mlp(("my::fused_gelu", "fused", 35))
    table = compared(write_trace, before, after, "ancestor")
    rows = by_name(table)
    assert {name: rows[name]["status"] for name in ("mul", "add", "gelu", "fused", "gemm")} == {
        "mul": "gone",
        "add": "gone",
        "gelu": "gone",
        "fused": "new",
        "gemm": "unchanged",
    }
    for name in ("mul", "fused"):
        found = rows[name]
        assert found["ancestor"] == "my::mlp"
        sums = found["ancestor_before_ns"], found["ancestor_after_ns"], found["ancestor_delta_ns"]
        assert sums == (75_000, 35_000, -40_000)
    assert rows["gemm"]["ancestor"] == "aten::addmm"
    assert (rows["mul"]["before_ops"], rows["mul"]["after_ops"]) == ("aten::mul", None)
    assert (rows["fused"]["before_ops"], rows["fused"]["after_ops"]) == (None, "my::fused_gelu")
    idle = [record for record in table.records() if record["name"].startswith("idle")]
    assert idle
    assert {record["ancestor_delta_ns"] for record in idle} == {None}


def test_a_kernel_that_another_operator_launches_has_one_row(write_trace: WriteTrace) -> None:
    before = mlp(("aten::mm", "gemm_b", 675), ("aten::relu", "relu", 5))
    after = mlp(("my::a", "first", 3), ("my::b", "gemm_b", 675), ("aten::relu", "relu", 5))
    found = by_name(compared(write_trace, before, after, "ancestor"))["gemm_b"]
    assert (found["before_ns"], found["after_ns"]) == (675_000, 675_000)
    assert (found["status"], found["ancestor"]) == ("unchanged", "my::mlp")
    assert (found["before_ops"], found["after_ops"]) == ("aten::mm", "my::b")


def test_a_kernel_under_two_calls_has_a_row_at_each(write_trace: WriteTrace) -> None:
    nest = Nest()
    nest.call("aten::linear", ("aten::addmm", "gemm", 40))
    nest.call("my::mlp", ("aten::mm", "gemm", 60))
    table = compared(write_trace, nest.events, nest.events, "ancestor")
    rows = [r for r in table.records() if r["name"] == "gemm"]
    assert {(r["ancestor"], r["before_ns"]) for r in rows} == {
        ("aten::addmm", 40_000),
        ("aten::mm", 60_000),
    }


def test_without_a_call_that_both_have_kernels_meet_by_name(write_trace: WriteTrace) -> None:
    a, b = Recorder(), Recorder()
    a.op("aten::mm", 30, "gemm")
    a.op("aten::sin", 30, "sin")
    b.op("my::gemm", 20, "gemm")
    found = by_name(compared(write_trace, a.events, b.events, "ancestor"))["gemm"]
    assert (found["ancestor"], found["path"], found["ancestor_before_ns"]) == (None, None, None)
    assert (found["delta_ns"], found["before_ops"]) == (-10_000, "aten::mm")


def test_kernels_are_compared_by_canonical_name(write_trace: WriteTrace) -> None:
    a, b = Recorder(), Recorder()
    a.op("aten::add", 30, "void at::native::add_kernel<float, 4>(int)")
    b.op("aten::add", 40, "void at::native::add_kernel<float, 8>(int)")
    table = compared(write_trace, a.events, b.events, "kernel")
    found = row(table, "at::native::add_kernel")
    assert (found["delta_ns"], found["status"]) == (10_000, "regression")


def test_vendors_share_their_calls(write_trace: WriteTrace) -> None:
    table = compared(write_trace, training(), training(vendor="hip"))
    assert not table["delta_ns"].any()
    assert set(table.to_list("status")) == {"unchanged"}


def test_noise_between_steps_is_no_regression(write_trace: WriteTrace) -> None:
    noisy = training(steps=14, jitter_us=30)
    slower = training(steps=14, jitter_us=30, mm_us=104)
    found = row(compared(write_trace, noisy, slower), "aten::mm")
    assert found["delta_ns"] > 0
    assert (found["significance"], found["status"]) == ("within noise", "unchanged")
    much = row(compared(write_trace, noisy, training(steps=14, mm_us=300)), "aten::mm")
    assert (much["significance"], much["status"]) == ("beyond noise", "regression")


def rare(*lengths: float) -> list[Event]:
    """Steps of one matrix product, some of which run a checksum for so long."""
    recorder = Recorder()
    for number, us in enumerate(lengths):
        start = recorder.clock
        recorder.op("aten::mm", 100_000, "gemm")
        if us:
            recorder.op("my::checksum", us, "checksum")
        recorder.mark(number, start)
    return recorder.events


@pytest.mark.parametrize("lengths", [(0, 675, 0), (0, 60, 0), (0, 675, 0, 675, 0, 675, 0)])
def test_time_on_one_side_alone_is_never_unchanged(
    write_trace: WriteTrace, lengths: tuple[float, ...]
) -> None:
    """Be it within noise, or too little to call what stayed a change."""
    with_it, without = rare(*lengths), rare(*(0 for _ in lengths))
    for by in ("op", "kernel", "ancestor"):
        gone = next(
            r
            for r in compared(write_trace, with_it, without, by).records()
            if "checksum" in r["name"]
        )
        assert (gone["status"], gone["after_ns"]) == ("gone", 0)
        new = next(
            r
            for r in compared(write_trace, without, with_it, by).records()
            if "checksum" in r["name"]
        )
        assert (new["status"], new["before_ns"]) == ("new", 0)
        assert new["significance"] in ("within noise", "beyond noise", None)


def test_slow_step_does_not_move_the_medians(write_trace: WriteTrace) -> None:
    recorder = Recorder()
    for number, us in enumerate([100, 9000, 100, 100, 100, 100]):
        start = recorder.clock
        recorder.op("aten::mm", us, "gemm")
        recorder.mark(number, start)
    table = compared(write_trace, recorder.events, recorder.events)
    assert table.facts["before_step_ns"] == 110_000
    assert any("1.5 times the median" in note for note in table.notes)


def test_spread_row_closes_the_sum(write_trace: WriteTrace) -> None:
    def steps(*lengths: float) -> list[Event]:
        recorder = Recorder()
        for number, us in enumerate(lengths):
            start = recorder.clock
            recorder.op("aten::mm", us, "gemm")
            recorder.mark(number, start)
        return recorder.events

    before = steps(1, 100, 110, 120, 190, 200, 1)
    table = compared(write_trace, before, steps(1, 100, 100, 100, 1))
    assert row(table, SPREAD)["before_ns"] == 120_000 - 140_000
    assert row(table, SPREAD)["status"] is None
    assert any(note.startswith(SPREAD) for note in table.notes)


def test_finding_that_vanished(write_trace: WriteTrace) -> None:
    table = compared(write_trace, training(load_us=900), training(), "finding")
    found = row(table, "single_process_data_loading")
    assert found["status"].startswith("vanished")
    assert found["delta_ns"] == -900_000
    assert row(table, "(everything else)")["status"] is None


def test_findings_are_those_of_the_diagnosis_with_every_rank_in_view(tmp_path: Path) -> None:
    """A late rank shows when ranks are compared: a rule that looks at one rank can't know it."""
    late, even = late_rank().load(tmp_path / "late"), late_rank(late=9).load(tmp_path / "even")
    assert late.diagnose().further_verdicts["straggler"] == "present"
    found = row(build_diff(late, even, by="finding"), "straggler")
    assert (found["before_verdict"], found["after_verdict"]) == ("present", "absent")
    assert found["status"] == "vanished"
    # Of the compared steps, the middle half, one in two is of a rank that waits for 3 ms.
    assert found["before_ns"] == 1_500_000
    assert found["after_ns"] == 0


def test_a_finding_whose_time_is_on_one_side_alone_changed(
    write_trace: WriteTrace,
) -> None:
    """Present in both, but where the compared steps are only before."""

    def steps(loads: Sequence[float]) -> list[Event]:
        recorder = Recorder()
        for number, us in enumerate(loads):
            start = recorder.clock
            if us:
                recorder.load(us)
            recorder.op("aten::mm", 1000, "gemm")
            recorder.mark(number, start)
        return recorder.events

    table = compared(
        write_trace, steps([5000, 1, 1, 1, 5000]), steps([5000, 0, 0, 0, 5000]), "finding"
    )
    found = row(table, "single_process_data_loading")
    assert (found["before_ns"] > 0, found["after_ns"]) == (True, 0)
    assert found["status"] == "improvement"


def test_finding_of_one_rank_that_is_little_of_all_ranks_is_none(tmp_path: Path) -> None:
    """5 % of one rank's time are 1.25 % of four ranks'."""
    for rank in range(4):
        events = training(load_us=8 if rank == 0 else 0)
        info = {"backend": "nccl", "rank": rank, "world_size": 4}
        text = json.dumps({"distributedInfo": info, "traceEvents": events})
        (tmp_path / f"rank{rank}.json").write_text(text)
    alone, trace = ttap.load(tmp_path / "rank0.json"), ttap.load(tmp_path)
    name = "single_process_data_loading"
    assert alone.diagnose().verdicts[name] == "present"
    assert trace.diagnose().verdicts[name] == "absent"
    assert row(build_diff(alone, alone, by="finding"), name)["before_verdict"] == "present"
    assert name not in build_diff(trace, trace, by="finding").to_list("name")


def assert_verdicts_of_diagnosis(trace: Trace) -> None:
    """`diff` of a trace with itself lists what `diagnose` finds, and nothing has changed."""
    diagnosis, table = trace.diagnose(), build_diff(trace, trace, by="finding")
    records = {record["name"]: record for record in table.records()}
    del records["(everything else)"]
    assert set(records) == {finding.type for finding in diagnosis.findings}
    for record in records.values():
        assert record["before_verdict"] == record["after_verdict"] == "present"
        assert (record["status"], record["delta_ns"]) == ("unchanged", 0)


@pytest.mark.parametrize("case", sorted(GOLDEN.glob("*/trace.json")), ids=lambda p: p.parent.name)
def test_diff_of_a_golden_trace_with_itself_finds_what_diagnose_finds(case: Path) -> None:
    assert_verdicts_of_diagnosis(ttap.load(case))


def test_tree_has_both_rows(write_trace: WriteTrace) -> None:
    before = ttap.load(write_trace(training(), "a.json"))
    after = ttap.load(write_trace(training(extra="my::op"), "b.json"))
    table = build_diff(before, after, by="tree")
    for record in table.records():
        for side, trace in (("before", before), ("after", after)):
            if record[f"{side}_row"] is None:
                assert (record["name"], record["matched_by"]) == ("my::op", "unmatched")
                continue
            name = trace.rank().table.name_of(record[f"{side}_row"])
            assert name.startswith(record["name"].rstrip("#"))
    assert table.to_list("parent")[0] is None


# ---------------------------------------------------------------------------------- the basis


def test_without_steps_the_whole_range(write_trace: WriteTrace) -> None:
    table = compared(write_trace, training(2, marked=False), training(2, mm_us=130, marked=False))
    assert table.facts["basis"] == "profiled range"
    assert table.facts["difference_ns"] == 60_000
    assert any("Neither has steps" in note for note in table.notes)
    mixed = compared(write_trace, training(2, marked=False), training(2))
    assert any("Only one of the two has steps" in note for note in mixed.notes)


def test_host_time_where_there_is_no_gpu(write_trace: WriteTrace) -> None:
    def program(us: float) -> list[Event]:
        recorder = Recorder()
        recorder.host("cpu_op", "aten::mm", 0, us)
        recorder.host("cpu_op", "aten::relu", us, us + 5)
        return recorder.events

    table = compared(write_trace, program(10), program(40))
    found = row(table, "aten::mm")
    assert (found["part"], found["delta_ns"]) == ("host", 30_000)
    assert any("No GPU events in either" in note for note in table.notes)


def test_one_side_without_a_gpu(write_trace: WriteTrace) -> None:
    recorder = Recorder()
    recorder.host("cpu_op", "aten::mm", 0, 30)
    table = compared(write_trace, recorder.events, training())
    assert any("before has no GPU events" in note for note in table.notes)


def test_other_programs_are_said_to_be_other(write_trace: WriteTrace) -> None:
    a, b = Recorder(), Recorder()
    for i in range(20):
        a.op(f"left::{'abcdefghijklmnopqrst'[i]}", 10)
        if i < 15:
            b.op(f"right::{'abcdefghijklmnopqrst'[i]}", 10)
    table = compared(write_trace, a.events, b.events)
    assert any("hardly recordings of the same program" in note for note in table.notes)


def test_nothing_to_compare(write_trace: WriteTrace) -> None:
    nothing = [{"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1}]
    for by in SUMMING:
        table = compared(write_trace, nothing, nothing, by)
        assert table.facts["difference_ns"] == 0
        compared(write_trace, nothing, training(), by)


def test_ranks_are_paired_by_number(write_trace: WriteTrace, tmp_path: Path) -> None:
    def job(folder: str, ranks: list[int], us: float) -> Trace:
        for rank in ranks:
            document = {
                "distributedInfo": {"rank": rank, "world_size": 4},
                "traceEvents": training(mm_us=us + 10 * rank),
            }
            write_trace(document, f"{folder}/rank{rank}.json")
        return ttap.load(tmp_path / folder)

    before, after = job("a", [0, 1, 2], 100), job("b", [1, 2, 3], 150)
    table = build_diff(before, after)
    assert_closed(table)
    assert table.facts["difference_ns"] == 50_000
    assert table.facts["before_steps"] == 6
    assert any("2 ranks have no partner" in note for note in table.notes)
    apart = build_diff(job("c", [0], 100), job("d", [3], 100))
    assert apart.facts["difference_ns"] == 30_000


def test_unknown_view(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(training()))
    with pytest.raises(OptionError, match="there is no 'nothing'"):
        build_diff(trace, trace, by="nothing")


# ---------------------------------------------------------------------------------- properties

HOST = ("aten::mm", "aten::relu", "aten::to", "aten::item", "ProfilerStep#3", "nn.Module: Net_1")
GPU = ("gemm<float>", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)")


@st.composite
def random_events(draw: st.DrawFn) -> list[Event]:
    """Events of any kind that overlap as they like, linked or not."""
    events = []
    for number in range(draw(st.integers(1, 25))):
        start, length = draw(st.integers(0, 1000)), draw(st.integers(0, 300))
        common = {"ph": "X", "ts": start + 0.001 * number, "dur": length}
        if draw(st.booleans()):
            name = draw(st.sampled_from(HOST))
            kind = "python_function" if name.startswith("nn.") else "cpu_op"
            events.append({**common, "cat": kind, "name": name, "pid": 1, "tid": number % 2})
            continue
        name = draw(st.sampled_from(GPU))
        args = {"device": 0, "stream": number % 2, "correlation": number}
        events.append({**common, "cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": args})
        if draw(st.booleans()):
            call = {**common, "ts": max(0, start - 20), "dur": 5, "cat": "cuda_runtime"}
            args = {"correlation": number}
            events.append({**call, "name": "cudaLaunchKernel", "pid": 1, "tid": 0, "args": args})
    return events


def loaded(events: list[Event], path: Path) -> Trace:
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return ttap.load(path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(random_events(), random_events())
def test_any_two_traces_add_up(tmp_path: Path, a: list[Event], b: list[Event]) -> None:
    before, after = loaded(a, tmp_path / "a.json"), loaded(b, tmp_path / "b.json")
    for by in SUMMING:
        there, back = build_diff(before, after, by=by), build_diff(after, before, by=by)
        assert_closed(there)
        assert there.facts["difference_ns"] == -back.facts["difference_ns"]
        assert there["delta_ns"].sum() == -back["delta_ns"].sum()
        assert not build_diff(before, before, by=by)["delta_ns"].any()
    mine = build_diff(before, before, by="tree")
    assert set(mine.to_list("matched_by")) <= {"name and shape"}


def test_bundled_trace_against_itself(bundled: Path) -> None:
    trace = ttap.load(bundled)
    for by in VIEWS:
        table = build_diff(trace, trace, by=by)
        assert table.num_rows
        column = "delta_gpu_ns" if by == "tree" else "delta_ns"
        assert not table[column].any()
    assert set(build_diff(trace, trace).to_list("status")) == {"unchanged"}


def test_core_refuses_what_does_not_fit(bundled: Path, write_trace: WriteTrace) -> None:
    one = ttap.load(write_trace(training())).rank()
    other = ttap.load(bundled).rank()
    with pytest.raises(ttap.errors.OptionError, match="sorted and disjoint"):
        _core.step_pieces(one.table, one.tree, [(0, 10), (5, 20)])
    with pytest.raises(ttap.errors.OptionError, match="as many ranks"):
        _core.tree_diff([], [(one.table, one.tree, one.costs, np.zeros(0, np.int32))])
    with pytest.raises(ttap.errors.SchemaError):
        _core.tree_diff(
            *[[(one.table, other.tree, one.costs, np.zeros(len(one.table), np.int32))]] * 2
        )
    with pytest.raises(ttap.errors.SchemaError):
        _core.tree_diff(*[[(one.table, one.tree, one.costs, np.zeros(1, np.int32))]] * 2)
