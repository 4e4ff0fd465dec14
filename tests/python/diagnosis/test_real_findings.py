"""What real traces show of late ranks, first calls and silence; skipped without the corpus."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from conftest import CORPUS

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

import torchtraceap as ttap
from torchtraceap.report.view import build_view


def diagnose(name: str) -> ttap.Diagnosis:
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"no such trace: {path}")
    return ttap.diagnose(path)


def kinds_of(diagnosis: ttap.Diagnosis) -> str:
    finding = diagnosis.finding("cold_start")
    assert finding is not None
    return str(finding.facts["kinds"])


def test_a_rank_that_waits_a_second_per_step_asks_for_the_other_ranks() -> None:
    found = diagnose("torchrec_4ranks_late_rank/rank0.json.gz")
    assert found.waiting_ns > found.profiled_ns / 2
    assert build_view(found).headline.endswith("the other ranks' traces would tell who is late")


def test_a_long_transfer_between_two_gpus_is_no_waiting() -> None:
    assert diagnose("tokenomics/llama_tp2_rank0.json").waiting_ns == 0


def test_a_late_rank_that_calls_operators_for_the_first_time_compiles() -> None:
    finding = diagnose("tokenomics").finding("straggler")
    assert finding is not None
    assert "its compilation explains" in finding.why


def test_first_calls_and_recordings_are_named_as_what_they_are() -> None:
    assert "first calls of operators" in kinds_of(diagnose("hta/alexnet_critical_path.json.gz"))
    recorded = diagnose("gpu_puzzlers/cudagraph_mwe.json.gz")
    assert "recording of CUDA graphs" in kinds_of(recorded)
    assert recorded.further_verdicts["graph_recapture"] == "absent"  # once, and then replayed


def test_silence_asks_for_stacks_where_there_are_none() -> None:
    finding = diagnose("torchrec_4ranks_late_rank/rank2.json.gz").finding("host_silence")
    assert finding is not None
    assert "Python frames (with_stack)" in finding.missing_signals


def test_silence_before_the_first_kernel_is_nobodys() -> None:
    found = diagnose("tracelens/h100/timesformer_inference.json.gz")  # 215 of 382 ms
    assert found.further_verdicts["host_silence"] == "absent"


def test_results_that_are_read_into_pageable_memory_are_named_so() -> None:
    found = diagnose("gpu_puzzlers/dtoh_blocking.json.gz")
    finding = found.finding("pageable_readback")
    assert found.lead is not None and found.lead.type == "pageable_readback"
    assert finding is not None
    assert [str(finding.facts[name]) for name in ("copies", "meant to wait")] == ["100", "100"]
    pinned = diagnose("gpu_puzzlers/dtoh_non_blocking.json.gz")
    assert pinned.further_verdicts["pageable_readback"] == "absent"


def test_names_of_kernels_alone_make_no_misaligned_products(tmp_path: Path) -> None:
    path = CORPUS / "segment_anything_fast/amg_fast.json.gz"
    if not path.exists():
        pytest.skip(f"no such trace: {path}")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for event in trace["traceEvents"]:
        for key in ("Input Dims", "Input type", "Input Strides"):
            event.get("args", {}).pop(key, None)
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    assert ttap.diagnose(path).further_verdicts["misaligned_dimensions"] == "absent"
    without = ttap.diagnose(tmp_path / "trace.json")
    assert without.further_verdicts["misaligned_dimensions"] == "unknown"
