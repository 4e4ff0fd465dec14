"""Both sides of bounds of the rules: a golden trace with one size changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import WriteTrace

import torchtraceap as ttap

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def found(write_trace: WriteTrace, case: str, key: str, size: int) -> set[str]:
    """Types that are present once all events of a case have that size."""
    document = json.loads((GOLDEN / case / "trace.json").read_text(encoding="utf-8"))
    for event in document["traceEvents"]:
        if key in event.get("args", {}):
            event["args"][key] = size
    return {finding.type for finding in ttap.diagnose(write_trace(document)).findings}


@pytest.mark.parametrize(("size", "is_value"), [(64 << 10, True), ((64 << 10) + 1, False)])
def test_reads_of_up_to_64_kib_are_values(
    write_trace: WriteTrace, size: int, is_value: bool
) -> None:
    assert ("host_sync_in_loop" in found(write_trace, "item_in_loop", "bytes", size)) == is_value


@pytest.mark.parametrize(("elements", "is_large"), [((25 << 20) - 1, False), (25 << 20, True)])
def test_one_bucket_holds_fifty_mebibytes(
    write_trace: WriteTrace, elements: int, is_large: bool
) -> None:
    """Of two bytes each."""
    types = found(write_trace, "all_reduce_at_the_end", "In msg nelems", elements)
    assert ("one_bucket_ddp" in types) == is_large


def test_twenty_pieces_of_evidence_are_shown(write_trace: WriteTrace) -> None:
    diagnosis = ttap.diagnose(GOLDEN / "item_in_loop" / "trace.json")
    finding = diagnosis.finding("host_sync_in_loop")
    assert finding is not None
    assert (len(finding.evidence), finding.evidence_count) == (20, 48)
