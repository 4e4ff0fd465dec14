"""The execution traces of the eight DLRM ranks against their Kineto traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torchtraceap
from torchtraceap.trace.execution import load_execution_trace

from .conftest import dlrm_execution_trace


@pytest.mark.parametrize("rank", range(8))
def test_every_node_is_an_event_and_every_kernel_waits(
    rank: int, tmp_path: Path, corpus: Path
) -> None:
    kineto = corpus / "param" / "dlrm_8ranks" / f"rank{rank}.json"
    if not kineto.exists():
        pytest.skip(f"{kineto} is not in this corpus")
    execution = load_execution_trace(dlrm_execution_trace(rank, tmp_path))
    trace = torchtraceap.load(kineto)
    linked = execution.link(trace)
    assert linked.matches.facts == {"nodes": 1672, "matched": 1672, "matched_by": "order"}
    table, strings = trace.ranks[0].table, trace.ranks[0].table.strings
    names = dict(
        zip(execution.nodes["node"].tolist(), execution.nodes["name"].tolist(), strict=True)
    )
    assert all(strings[table.name[row]] == names[node] for node, row in linked.rows.items())
    pairs = linked.gpu_dependencies
    assert pairs.num_rows > 200
    # Physics: what was written must be there before it is read, on every stream.
    assert np.all(pairs["slack_ns"] >= 0)
