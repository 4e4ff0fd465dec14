"""`diagnose`: INTERFACE.md's document, one rank and several, on hand-made and on real traces."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from conftest import WriteTrace

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.intervals import covered_ns, union
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.diagnosis.scoring import label_of, load_scorer
from torchtraceap.tables.detection import judge

NEED_GPU_EVENTS = ("no_memory_pin", "high_memcpy", "cpu_bound")


def assert_diagnosis(document: dict[str, Any]) -> None:
    """What INTERFACE.md says of `diagnose --json`."""
    assert document["schema"] == "torchtraceap.diagnosis/1"
    profiled_ns = document["profiled_ns"]
    assert type(profiled_ns) is int
    assert list(document["verdicts"]) == list(PAPER_TYPES)
    verdicts = document["verdicts"] | document["further_verdicts"]
    assert set(verdicts.values()) <= {"present", "absent", "unknown"}
    assert set(verdicts) == {rule.type for rule in _core.rules()}
    present = {name for name, verdict in verdicts.items() if verdict == "present"}
    assert {finding["type"] for finding in document["findings"]} == present
    for finding in document["findings"]:
        assert_finding(finding, profiled_ns)
    unknown = {name for name, verdict in verdicts.items() if verdict == "unknown"}
    assert {entry["type"] for entry in document["abstained"]} == unknown
    assert all(entry["missing_signals"] for entry in document["abstained"])
    assert_windows(document["windows"])
    assert document["scorer"] == label_of(load_scorer())
    assert_plan(document)


def assert_finding(finding: dict[str, Any], profiled_ns: int) -> None:
    lengths = [end - start for start, end in finding["intervals"]]
    assert all(length > 0 for length in lengths)
    assert sum(lengths) == finding["cost_ns"] > 0
    assert finding["cost_share"] == pytest.approx(finding["cost_ns"] / profiled_ns)
    assert _core.MATERIAL_SHARE <= finding["cost_share"] <= 1
    assert 0 <= finding["unclaimed_cost_ns"] <= finding["cost_ns"]
    assert 0 <= finding["confidence"] <= 1
    for row in finding["evidence"]:
        assert all(type(row[key]) is int for key in ("row", "start_ns", "duration_ns"))
        assert type(row["name"]) is str
    assert len(finding["evidence"]) <= finding["evidence_count"]
    assert all(finding[key].strip() for key in ("title", "why", "fix", "code"))
    assert "{" not in finding["why"]
    if (saving := finding["saving"]) is not None:
        assert 0 <= saving["low_ns"] <= saving["best_ns"] <= saving["high_ns"]
        assert type(saving["per_step"]) is bool
        assert saving["method"] in ("simulated", "bound")
        assert bool(saving["edit"]) == (saving["method"] == "simulated")
        assert saving["note"]  # what was changed, or why it is only a bound


def assert_plan(document: dict[str, Any]) -> None:
    """Each fix goes on from where those before it lead to, and belongs to a finding."""
    replay = document["replay"]
    edits = {f["saving"]["edit"] for f in document["findings"] if f["saving"]}
    assert (replay is None) or set(replay["trust"]) == {
        "iteration_error",
        "held_out",
        "held_out_note",
        "sensitivity",
        "supports_prediction",
        "reason",
    }
    if replay and replay["per_step"]:
        assert document["step"] is not None
    reached = replay["measured_ns"] if replay else 0
    for fix in document["plan"]:
        assert fix["type"] in {finding["type"] for finding in document["findings"]}
        assert fix["edit"] in edits
        assert fix["gain_ns"] > 0
        reached -= fix["gain_ns"]
        assert fix["total_ns_after"] == pytest.approx(reached, abs=2)
        assert 0 <= fix["low_ns"] <= fix["total_ns_after"] <= fix["high_ns"]


def assert_windows(windows: dict[str, Any]) -> None:
    assert len(windows["bounds_ns"]) == windows["count"] + 1
    assert windows["bounds_ns"] == sorted(windows["bounds_ns"])
    assert set(windows["types"]) >= set(PAPER_TYPES)
    for scores in (windows["scores"], *windows["types"].values()):
        assert len(scores) == windows["count"]
        assert all(type(score) is float and 0 <= score <= 1 for score in scores)
    highest = np.max(list(windows["types"].values()), axis=0)
    assert np.all(np.asarray(windows["scores"]) >= highest - 1e-12)


@pytest.fixture
def diagnosis(write_trace: WriteTrace) -> ttap.Diagnosis:
    return ttap.load(samples.slow_loader(rank=0).write(write_trace([]))).diagnose()


def test_document_of_a_slow_loader(diagnosis: ttap.Diagnosis) -> None:
    document = json.loads(diagnosis.to_json())
    assert document == json.loads(json.dumps(diagnosis.to_dict()))
    assert_diagnosis(document)
    assert document["verdicts"]["single_process_data_loading"] == "present"
    finding = diagnosis.finding("single_process_data_loading")
    assert finding is not None
    assert finding.paper
    assert finding.evidence[0].name == samples.LOADER
    assert finding.evidence[0].duration_ns == 45_000_000
    assert finding.saving is not None
    assert finding.saving.per_step
    assert finding.saving.high_ns <= 46_000_000


def test_evidence_rows_are_rows_of_the_table(diagnosis: ttap.Diagnosis) -> None:
    events = diagnosis.trace.events()
    starts, lengths, names = (events[key] for key in ("ts_ns", "dur_ns", "name"))
    for finding in diagnosis.findings:
        for row in finding.evidence:
            assert (starts[row.row], lengths[row.row]) == (row.start_ns, row.duration_ns)
            assert names[row.row] == row.name
            assert row.rank == 0


def test_scores_are_the_covered_share_of_each_window(diagnosis: ttap.Diagnosis) -> None:
    windows = diagnosis.trace.diagnose(scorer="evidence").windows
    bounds = np.asarray(windows.bounds_ns)
    cost = union([finding.intervals for finding in diagnosis.findings])
    expected = covered_ns(cost, bounds) / np.diff(bounds)
    assert np.allclose(windows.scores, expected)
    assert windows.bounds_ns[0] == 1_000_000_000
    assert windows.bounds_ns[-1] - windows.bounds_ns[0] == diagnosis.profiled_ns == 400_000_000
    loading = windows.types["single_process_data_loading"]
    assert loading[2:10].min() > 0.9
    assert loading[13:24].max() < 0.1


@pytest.mark.parametrize("count", [1, 50, 100, 200])
def test_window_counts(write_trace: WriteTrace, count: int) -> None:
    trace = ttap.load(samples.slow_loader().write(write_trace([])))
    windows = trace.diagnose(windows=count).windows
    assert windows.count == count
    assert windows.bounds_ns == tuple(trace.windows(count=count).bounds_ns.tolist())


@pytest.mark.parametrize("count", [0, -1, 10**7])
def test_window_counts_out_of_range_are_errors(write_trace: WriteTrace, count: int) -> None:
    trace = ttap.load(write_trace(samples.healthy().events))
    with pytest.raises(ttap.errors.OptionError, match="windows"):
        trace.diagnose(windows=count)
    with pytest.raises(ttap.errors.OptionError, match="count"):
        trace.features(count=count)


def test_a_trace_without_gpu_events_says_unknown(write_trace: WriteTrace) -> None:
    diagnosis = ttap.load(samples.host_only().write(write_trace([]))).diagnose()
    assert_diagnosis(json.loads(diagnosis.to_json()))
    assert {diagnosis.verdicts[name] for name in NEED_GPU_EVENTS} == {"unknown"}
    assert "present" not in diagnosis.verdicts.values()
    assert diagnosis.findings == ()
    assert diagnosis.windows.scores.max() == 0
    assert sum(diagnosis.idle_ns.values()) == diagnosis.profiled_ns


@pytest.mark.parametrize(
    "event",
    [
        {"ph": "X", "cat": "kernel", "ts": 5, "dur": 0},
        {"ph": "i", "cat": "cpu_op", "ts": 5},
        {"ph": "M", "args": {"name": "python"}},
        {"ph": "X", "cat": "kernel", "ts": 2**60 // 1000, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "ts": -7, "dur": 5},
    ],
    ids=["instant-kernel", "instant", "metadata", "far-future", "negative-time"],
)
def test_odd_lone_events_are_answered(write_trace: WriteTrace, event: dict[str, Any]) -> None:
    trace = ttap.load(write_trace([{"name": "x", "pid": 0, "tid": 7} | event]))
    assert_diagnosis(json.loads(trace.diagnose().to_json()))
    assert isinstance(trace.tree().to_text(), str)
    assert len(trace.features(count=10)["start_ns"]) == 10


# --- several ranks ---


def load_ranks(folder: Path, makers: list[samples.TraceMaker]) -> ttap.Trace:
    for rank, maker in enumerate(makers):
        maker.top["distributedInfo"] = {"rank": rank, "world_size": len(makers), "backend": "nccl"}
        maker.write(folder / f"rank{rank}.json")
    return ttap.load(folder)


def test_costs_are_summed_and_savings_averaged(tmp_path: Path) -> None:
    trace = load_ranks(tmp_path, [samples.slow_loader() for _ in range(3)])
    merged = trace.diagnose()
    alone = ttap.load(tmp_path / "rank0.json").diagnose()
    assert_diagnosis(json.loads(merged.to_json()))
    assert merged.profiled_ns == 3 * alone.profiled_ns
    assert merged.verdicts == alone.verdicts
    ours = merged.finding("single_process_data_loading")
    one = alone.finding("single_process_data_loading")
    assert ours is not None
    assert one is not None
    assert ours.cost_ns == 3 * one.cost_ns
    assert ours.cost_share == pytest.approx(one.cost_share)
    assert one.saving is not None
    assert one.saving.method == "simulated"
    assert ours.saving is not None
    assert ours.saving.method == "bound"  # nothing says how these ranks depend on each other
    assert "1 of 3 ranks" in ours.saving.note
    assert ours.saving.low_ns == 22_500_000  # half of what the GPU idles for
    assert ours.ranks == (0, 1, 2)
    assert {row.rank for row in ours.evidence} == {0, 1, 2}
    assert np.allclose(merged.windows.scores, alone.windows.scores)
    for cause, ns in alone.idle_ns.items():
        assert merged.idle_ns[cause] == 3 * ns


def test_one_slow_rank_of_many_is_weighed_by_its_share(tmp_path: Path) -> None:
    few = load_ranks(tmp_path / "few", mkdir(tmp_path / "few", slow=1, fast=1))
    found = few.diagnose().finding("single_process_data_loading")
    assert found is not None
    assert found.ranks == (0,)
    assert {row.rank for row in found.evidence} == {0}


def mkdir(folder: Path, *, slow: int, fast: int) -> list[samples.TraceMaker]:
    folder.mkdir()
    makers = [samples.slow_loader() for _ in range(slow)]
    return makers + [samples.healthy() for _ in range(fast)]


def part(verdict: str, cost_ns: int, profiled_ns: int = 1000) -> Any:
    found = SimpleNamespace(verdict=verdict, cost_ns=cost_ns)
    return SimpleNamespace(profiled_ns=profiled_ns), found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part("present", 1)], "present"),  # a lone rank: the rule's word
        ([part("absent", 900)], "absent"),
        ([part("present", 100), part("absent", 0)], "present"),
        ([part("present", 30), part("absent", 0)], "absent"),  # 1.5 % of both
        ([part("present", 30), part("absent", 15)], "present"),
        ([part("absent", 15), part("absent", 15)], "absent"),
        ([part("absent", 500), part("absent", 500)], "absent"),  # no rule says present
        ([part("unknown", 0), part("unknown", 0)], "unknown"),
        ([part("unknown", 0), part("absent", 0)], "unknown"),  # half could hide anything
        ([part("unknown", 0), part("present", 100)], "present"),
        ([part("unknown", 0, 10), *[part("absent", 0)] * 9], "absent"),  # 0.1 % could hide little
    ],
)
def test_verdicts_of_several_ranks(parts: list[Any], expected: str) -> None:
    assert judge(parts) == expected


# --- real traces ---


def test_every_real_trace_has_a_diagnosis(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    diagnosis = trace.diagnose()
    assert_diagnosis(json.loads(diagnosis.to_json()))
    timeline = diagnosis.profiled_timeline
    assert timeline.span_ns == diagnosis.profiled_ns
    assert sum(diagnosis.idle_ns.values()) == timeline.idle_ns


def test_the_bundled_trace_loads_its_data_in_the_training_process(bundled: Path) -> None:
    diagnosis = ttap.diagnose(bundled)
    assert diagnosis.verdicts["single_process_data_loading"] == "present"
    twin = ttap.diagnose(bundled.with_name("resnet50_num_workers_4.json.gz"))
    assert twin.verdicts["single_process_data_loading"] == "absent"
    assert diagnosis.findings[0].type == "single_process_data_loading"


@pytest.mark.parametrize(
    ("device", "capability", "ratio", "precision"),
    [
        ("Tesla T4", (7, 5), "8", "half precision"),
        ("NVIDIA RTX A4000", (8, 6), "2", "TF32"),
        ("NVIDIA GeForce RTX 3060", (8, 6), "2", "half precision"),
    ],
)
def test_what_matrix_units_would_give_is_told_by_the_device(
    tmp_path: Path, device: str, capability: tuple[int, int], ratio: str, precision: str
) -> None:
    args = {"device": 0, "stream": 7, "correlation": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn", "args": args}
    major, minor = capability
    properties = {"id": 0, "name": device, "computeMajor": major, "computeMinor": minor}
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps(
            {
                "deviceProperties": [properties],
                "traceEvents": [kernel | {"ts": 0, "dur": 100, "pid": 0, "tid": 7}],
            }
        )
    )
    finding = ttap.load(path).diagnose().finding("fp32_matmul")
    assert finding is not None
    document = finding.to_dict()
    assert document["facts"] == {"device": device, "ratio": ratio, "precision": precision}
    assert document["figures"]["ratio"] == {"kind": "rate", "value": float(ratio)}
    assert f"on {device}, whose matrix units do {ratio} times" in finding.why
