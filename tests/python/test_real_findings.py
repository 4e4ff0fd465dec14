"""What real traces show of late ranks, first calls and silence; skipped without the corpus."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("tracelens/h100/timesformer_inference.json.gz", False),
        ("torchrec_4ranks_late_rank/rank2.json.gz", True),
    ],
)
def test_silence_asks_for_stacks_only_where_there_are_none(name: str, asks: bool) -> None:
    finding = diagnose(name).finding("host_silence")
    assert finding is not None
    assert ("Python frames (with_stack)" in finding.missing_signals) is asks
