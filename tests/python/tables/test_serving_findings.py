"""Findings of serving: planted faults with known cost, look-alikes, and healthy runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_faults import FAULTS, LOOK_ALIKES, ServedRun, healthy_run, planted_run

import torchtraceap as ttap
from torchtraceap.core.results import Finding

SERVING = {*FAULTS, "decode_batch_small"}


def diagnose(run: ServedRun, folder: Path) -> ttap.Diagnosis:
    path = folder / "trace.json"
    path.write_text(json.dumps(run.trace()[0]))
    return ttap.load(path).diagnose()


def types(diagnosis: ttap.Diagnosis) -> list[str]:
    return [finding.type for finding in diagnosis.findings]


def saving_of_run(diagnosis: ttap.Diagnosis, finding: Finding) -> tuple[float, float]:
    """Return the bounds of the saving over the whole run, us."""
    assert finding.saving is not None
    steps = len(diagnosis.trace.ranks[0].tree.steps) if finding.saving.per_step else 1
    return finding.saving.low_ns * steps / 1000, finding.saving.high_ns * steps / 1000


def judge(fault: str, seed: int, folder: Path) -> tuple[bool, bool, Any]:
    """Return whether the type leads, whether the truth lies within the saving or is the cost but
    for a twentieth, and what is said."""
    run, truth_us = planted_run(fault, seed)
    diagnosis = diagnose(run, folder)
    found = next((each for each in diagnosis.findings if each.type == fault), None)
    if found is None:
        return False, False, (truth_us, types(diagnosis))
    leads = types(diagnosis)[0] == fault
    low, high = saving_of_run(diagnosis, found)
    told = (truth_us, found.cost_ns / 1000, low, high, types(diagnosis))
    is_cost = found.cost_ns / 1000 == pytest.approx(truth_us, rel=0.05)
    return leads, is_cost or low <= truth_us <= high, told


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_leads_with_its_cost(fault: str, tmp_path: Path) -> None:
    for seed in range(2):
        leads, within, told = judge(fault, seed, tmp_path)
        assert leads, (fault, seed, told)
        assert within, (fault, seed, told)


@pytest.mark.slow
def test_planted_faults_are_told_by_type_and_cost(tmp_path: Path) -> None:
    judged = [judge(fault, seed, tmp_path)[:2] for fault in FAULTS for seed in range(12)]
    assert sum(leads for leads, _ in judged) >= 0.95 * len(judged)
    assert sum(within for _, within in judged) >= 0.9 * len(judged)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_found_in_healthy_runs(seed: int, tmp_path: Path) -> None:
    assert types(diagnose(healthy_run(seed), tmp_path)) == []


@pytest.mark.slow
def test_nothing_is_found_in_many_healthy_runs(tmp_path: Path) -> None:
    for seed in range(4, 40):
        assert types(diagnose(healthy_run(seed), tmp_path)) == [], seed


@pytest.mark.parametrize("mixed", [(0,), (1,), (11,), (0, 5, 11)])
def test_savings_count_the_first_and_the_last_iteration(
    mixed: tuple[int, ...], tmp_path: Path
) -> None:
    run = ServedRun(mixed=mixed, mixed_factor=4.0)
    truth_us = run.trace()[1] - ServedRun(mixed=mixed).trace()[1]
    diagnosis = diagnose(run, tmp_path)
    found = diagnosis.finding("prefill_stalls_decode")
    assert found is not None and found.saving is not None and found.saving.per_step
    assert saving_of_run(diagnosis, found)[1] == pytest.approx(truth_us, rel=0.02)


@pytest.mark.parametrize("what", LOOK_ALIKES)
def test_look_alikes_stay_silent(what: str, tmp_path: Path) -> None:
    run = ServedRun(**LOOK_ALIKES[what])
    assert not SERVING & set(types(diagnose(run, tmp_path)))


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void vllm::cross_device_reduce_1stage<c10::BFloat16, 4>(vllm::RankData*)", False),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport",
            False,
        ),
        ("multimem_all_reduce_kernel", False),
    ],
)
def test_small_all_reduces_are_told_where_there_is_a_quicker_kernel(
    kernel: str, found: bool, tmp_path: Path
) -> None:
    document = healthy_run(3).trace()[0]
    document["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 4}
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel" and "norm" in event["name"]:
            event["name"] = kernel
    (tmp_path / "trace.json").write_text(json.dumps(document))
    told = types(ttap.load(tmp_path / "trace.json").diagnose())
    assert ("small_nccl_kernels" in told) is found


@pytest.mark.parametrize(("batch", "found"), [(1, True), (8, True), (32, False), (256, False)])
def test_a_small_batch_is_told_by_the_knee_of_the_device(
    batch: int, found: bool, tmp_path: Path
) -> None:
    run = ServedRun(batch=batch, graph_batch=batch)
    diagnosis = diagnose(run, tmp_path)
    assert ("decode_batch_small" in types(diagnosis)) is found
    unknown = diagnose(ServedRun(batch=batch, graph_batch=batch, device="X 1"), tmp_path)
    assert unknown.further_verdicts["decode_batch_small"] == "unknown"


def test_a_bubble_is_told_once(tmp_path: Path) -> None:
    run, truth_us = planted_run("host_between_tokens", 3)
    diagnosis = diagnose(run, tmp_path)
    for finding in diagnosis.findings[1:]:
        assert finding.unclaimed_cost_ns < 0.05 * truth_us * 1000, finding.type


def test_training_knows_nothing_of_serving(tmp_path: Path) -> None:
    trace = ServedRun(overlapped=False, scheduling_us=3000.0).trace()[0]
    for name in ("Optimizer.step#AdamW.step", "autograd::engine::evaluate_function: MmBackward0"):
        trace["traceEvents"].append(
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 900.0, "dur": 5.0}
        )
    (tmp_path / "training.json").write_text(json.dumps(trace))
    diagnosis = ttap.load(tmp_path / "training.json").diagnose()
    assert not SERVING & set(types(diagnosis))
    assert set(diagnosis.not_applicable) >= SERVING - {"graph_recapture"}
