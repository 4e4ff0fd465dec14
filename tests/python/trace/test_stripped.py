"""Real traces without calls, operators or shapes: what they no longer show turns unknown.

A type that was present never becomes absent; one that was not is present only if it says what it
lacks, or costs no more than before. Skipped without the corpus.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

import torchtraceap as ttap

TRACES = [
    "gpu_puzzlers/dtoh_blocking.json.gz",
    "hta/gpu_user_annotation.json.gz",
    "hta/nccl_a100_rank_of_2.json.gz",
    "hta/sampled_rank_0_of_128.json.gz",
    "param/dlrm_8ranks/rank2.json",
    "segment_anything_fast/amg_baseline.json.gz",
    "tokenomics/llama_tp2_rank1.json",
    "tracelens/b200/eager_training_rank.json.gz",
    "tracelens/mi300/bert_inference.json.gz",
]
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime"}
OPERATORS = {"cpu_op", "Operator"}
SHAPES = ("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs")


def without(events: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    if what == "shapes":
        return [_without_shapes(event) for event in events]
    categories = CALLS if what == "calls" else OPERATORS
    return [event for event in events if event.get("cat") not in categories]


def _without_shapes(event: dict[str, Any]) -> dict[str, Any]:
    args = {key: value for key, value in event.get("args", {}).items() if key not in SHAPES}
    return {**event, "args": args} if "args" in event else event


def verdicts(diagnosis: ttap.Diagnosis) -> dict[str, str]:
    return {**diagnosis.verdicts, **diagnosis.further_verdicts}


@pytest.mark.parametrize("what", ["calls", "operators", "shapes"])
@pytest.mark.parametrize("name", TRACES)
def test_what_was_there_is_not_silently_absent(tmp_path: Path, name: str, what: str) -> None:
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"no such trace: {path}")
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    trace["traceEvents"] = without(trace["traceEvents"], what)
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    whole, stripped = ttap.diagnose(path), ttap.diagnose(tmp_path / "trace.json")
    said = verdicts(stripped)
    for kind, before in verdicts(whole).items():
        assert (before, said[kind]) != ("present", "absent"), kind
        if before == "absent" and said[kind] == "present":
            finding = stripped.finding(kind)
            assert finding is not None
            assert finding.missing_signals, kind
