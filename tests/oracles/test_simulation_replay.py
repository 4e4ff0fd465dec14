"""How well replays give back what was measured: the plan's V1 to V4, on public traces.

A replay without residuals knows the structure, the work and typical latencies, and nothing else of
when things happened.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.trust import trust_of
from torchtraceap.trace.execution import load_execution_trace

from .conftest import corpus_files, dlrm_execution_trace

# ------------------------------------------------------------------------------- V1: eight ranks


@pytest.fixture
def dlrm(corpus: Path) -> SimulatedRun:
    folder = corpus / "param" / "dlrm_8ranks"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not in this corpus")
    return SimulatedRun(ttap.load(folder))


def test_eight_ranks_take_the_measured_time(dlrm: SimulatedRun) -> None:
    assert len(dlrm.ranks) == 8
    assert np.abs(dlrm.step_errors).mean() <= 0.005
    assert np.abs(dlrm.step_errors).max() <= 0.01


def test_collectives_end_when_they_did(dlrm: SimulatedRun) -> None:
    meetings = dlrm.meetings
    assert meetings is not None
    assert len(meetings) == 8
    assert len(meetings.rank) == 8 * len(dlrm.ranks)
    times = dlrm.replay(with_residuals=False)
    for rank, row in zip(meetings.rank.tolist(), meetings.row.tolist(), strict=True):
        end = int(dlrm.graph.end_of(rank)[row])
        assert abs(int(times[end] - dlrm.graph.time_ns[end])) <= 50_000


# --------------------------------------------------------------------- V2: single ranks, all traces


@pytest.mark.parametrize("name", corpus_files())
def test_every_trace_is_replayed(corpus: Path, name: str) -> None:
    try:
        trace = ttap.load(corpus / name)
    except ttap.errors.TraceError:
        pytest.skip("not readable, which other tests are about")
    run = SimulatedRun(trace)
    np.testing.assert_array_equal(run.replay(), run.graph.time_ns)
    if not len(run.step_errors):
        return
    assert np.abs(run.step_errors).mean() <= 0.02, run.step_errors
    assert np.abs(run.step_errors).max() <= 0.04, run.step_errors
    if (run.measured_ns > 0).all():
        assert abs(trust_of(run).iteration_error) <= 0.04


# ------------------------------------------------------------------------------- V3: held out

HELD_OUT = {
    "hta/ddp_a100_rank_of_8_control.json.gz": 1.5,
    "hta/nccl_a100_rank_of_2.json.gz": 1.5,
    "hta/resnet_ddp_v100_ns_resolution.json.gz": 1.5,
    "kineto/resnet50_num_workers_0.json.gz": 1.5,
    "kineto/resnet50_num_workers_4.json.gz": 1.5,
    "luatil/compiled_training_cudagraph.json.gz": 1.5,
    "modded_nanogpt/overlap_before.json.gz": 1.5,
    "modded_nanogpt/overlap_hook.json.gz": 1.5,
    "param/linear_training_2080ti.json.gz": 1.5,
    "pytorch_benchmark/copies_pageable.json": 1.5,
    "pytorch_benchmark/copies_pinned.json": 1.5,
}


@pytest.mark.parametrize(("corpus_file", "most"), list(HELD_OUT.items()), indirect=["corpus_file"])
def test_other_steps_predict_a_step(corpus_file: Path, most: float) -> None:
    run = SimulatedRun(ttap.load(corpus_file))
    held = trust_of(run).held_out
    assert held is not None
    assert held.steps == len(run.chosen_steps) >= 3
    assert held.error <= most * held.noise


# ------------------------------------------------------------------------------- V4: hidden waits


def stream_waits(path: Path, *evidence: str) -> set[tuple[int, int]]:
    """(correlation of the source, of the destination) of waits between streams."""
    run = SimulatedRun(ttap.load(path))
    graph, table = run.graph, run.ranks[0].table
    edges = run.edges_of("stream_wait")
    wanted = [_core.evidence_names().index(name) for name in evidence]
    edges = edges[np.isin(graph.evidence[edges], wanted)]
    source = table.correlation[graph.row[graph.source[edges]]]
    destination = table.correlation[graph.row[run.destination[edges]]]
    return set(zip(source.tolist(), destination.tolist(), strict=True))


def without_sync_rows(path: Path, folder: Path) -> Path:
    with gzip.open(path) as file:
        document: dict[str, Any] = json.load(file)
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event.get("cat") != "cuda_sync"
    ]
    hidden = folder / "hidden.json"
    hidden.write_text(json.dumps(document))
    return hidden


@pytest.mark.parametrize(
    "corpus_file", ["hta/alexnet_critical_path.json.gz"], indirect=["corpus_file"]
)
def test_hidden_waits_are_found_again(corpus_file: Path, tmp_path: Path) -> None:
    recorded = stream_waits(corpus_file, "explicit")
    assert len(recorded) == 6  # of 20 waits; the others are for streams without work
    found = stream_waits(without_sync_rows(corpus_file, tmp_path), "explicit", "inferred")
    assert found == recorded


# ------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("rank", [0, 5])
def test_known_dependencies_hold_in_the_replay(corpus: Path, rank: int, tmp_path: Path) -> None:
    kineto = corpus / "param" / "dlrm_8ranks" / f"rank{rank}.json"
    if not kineto.exists():
        pytest.skip(f"{kineto} is not in this corpus")
    execution = dlrm_execution_trace(rank, tmp_path)
    trace = ttap.load(kineto)
    known = load_execution_trace(execution).link(trace).gpu_dependencies
    run = SimulatedRun(trace, dependencies={trace.ranks[0].rank: known})
    edges = run.edges_of("tensor")
    assert len(edges) > 200
    assert run.graph.contradicted == 0
    assert abs(trust_of(run).iteration_error) <= 0.005
    # Whatever is faster, nothing begins before what it needs.
    generator = random.Random(rank)
    delta = _core.GraphDelta()
    executions = run.edges_of("execution")
    delta.set_lags(executions, [generator.randrange(100_000) for _ in executions])
    times = run.replay(delta)
    assert (times[run.graph.source[edges]] <= times[run.destination[edges]]).all()
