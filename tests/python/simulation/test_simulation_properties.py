"""What holds for every run: what stands beside it changes no number, a stall costs what it cost.

Runs are made on a machine of their own (`made_machine.py`), so that the truth is known.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from injected import KINDS, inject
from made_training import Job, record
from torchtraceap.simulation.edits.base import NotApplicableError, default_edits, make_edit
from torchtraceap.simulation.run import SimulatedRun
from twins import TWINS, draw_machine, judge, load_machine, made_pair

Document = dict[str, Any]
FEW = ("pin_memory", "loader_workers", "remove_host_sync", "cuda_graph", "overlap_collectives")


def written(documents: list[Document], folder: Path) -> ttap.Trace:
    """A trace of one file for each rank."""
    folder.mkdir(exist_ok=True)
    for rank, document in enumerate(documents):
        (folder / f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    return ttap.load(folder)


def made_documents(twin: str, seed: int, **changed: Any) -> list[Document]:
    """The faulty program of a twin, recorded."""
    pair, how = made_pair(twin, seed)
    return record(pair.fault, **(how | changed)).documents()


def numbers(trace: ttap.Trace) -> dict[str, Any]:
    """Every number of `simulate`, and the savings of `diagnose` with the plan."""
    simulated = trace.simulate().to_dict()
    del simulated["notes"]
    diagnosed = trace.diagnose().to_dict()
    savings = {finding["type"]: finding["saving"] for finding in diagnosed["findings"]}
    return {"simulated": simulated, "savings": savings, "plan": diagnosed["plan"]}


def waiting_thread(document: Document, tid: int) -> list[Document]:
    """A thread that waits in Python for as long as the recording lasts, in two frames."""
    begins = [event["ts"] for event in document["traceEvents"]]
    ends = [event["ts"] + event["dur"] for event in document["traceEvents"]]
    first, last = min(begins), max(ends)
    row = {"ph": "X", "cat": "python_function", "pid": 100, "tid": tid, "ts": first}
    waits = ("threading.py(327): wait", "threading.py(641): wait")
    return [row | {"name": name, "dur": last - first, "args": {}} for name in waits]


@pytest.mark.parametrize("twin", FEW)
@pytest.mark.parametrize("seed", range(2))
def test_a_thread_that_only_waits_changes_no_number(twin: str, seed: int, tmp_path: Path) -> None:
    plain = made_documents(twin, seed)
    waiting = copy.deepcopy(plain)
    for document in waiting:
        document["traceEvents"] += waiting_thread(document, tid=777)
    before, after = written(plain, tmp_path / "plain"), written(waiting, tmp_path / "waiting")
    assert numbers(before) == numbers(after)


@pytest.mark.parametrize("twin", FEW)
@pytest.mark.parametrize("seed", range(2))
def test_a_later_clock_changes_no_number(twin: str, seed: int, tmp_path: Path) -> None:
    plain = made_documents(twin, seed)
    later = copy.deepcopy(plain)
    for rank, document in enumerate(later):
        for event in document["traceEvents"]:
            event["ts"] += 4_096.0 * (rank + 1)
    before, after = written(plain, tmp_path / "plain"), written(later, tmp_path / "later")
    assert numbers(before) == numbers(after)


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_of_another_run_changes_nothing_that_is_simulated(seed: int, tmp_path: Path) -> None:
    plain = made_documents("overlap_collectives", seed)
    stranger = record(Job(), seed=99).documents()[0]
    stranger["deviceProperties"] = plain[0]["deviceProperties"]  # else it is refused
    world = len(plain) + 1
    for rank, document in enumerate([*plain, stranger]):
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    before = written(plain, tmp_path / "plain").simulate()
    after = written([*plain, stranger], tmp_path / "more").simulate()
    assert before.measured_ns == after.measured_ns
    assert before.edits == after.edits
    assert before.plan == after.plan


@pytest.mark.parametrize("twin", TWINS)
def test_without_an_edit_a_replay_gives_the_measured_times(twin: str, tmp_path: Path) -> None:
    run = SimulatedRun(written(made_documents(twin, 3), tmp_path))
    assert np.array_equal(run.replay(), run.graph.time_ns)


@pytest.mark.parametrize("twin", TWINS)
def test_what_only_removes_work_never_predicts_more(twin: str, tmp_path: Path) -> None:
    trace = written(made_documents(twin, 4), tmp_path)
    run = SimulatedRun(trace)
    removing = []
    for name in default_edits():
        try:
            graph = make_edit(name).apply(run)
        except NotApplicableError:
            continue
        if all(c is None or c.only_removes(run) for c in (graph.best, graph.cautious)):
            removing.append(name)
    simulation = trace.simulate(removing)
    for outcome in simulation.edits:
        if outcome.predicted_ns is not None:  # or refused
            assert outcome.predicted_ns <= simulation.measured_ns


@pytest.mark.parametrize("kind", KINDS)
def test_a_stall_costs_in_a_replay_what_it_cost_the_run(kind: str) -> None:
    found = [inject(kind, seed) for seed in range(6)]
    injections = [injection for injection in found if injection is not None]
    assert len(injections) >= 3
    for injection in injections:
        assert abs(injection.error) <= 0.02, injection


@pytest.mark.parametrize("seed", [8, 14])
def test_a_stall_that_hid_in_the_recording_is_not_taken_off_twice(seed: int) -> None:
    """The GPU still had work from before when the host stood still to compile."""
    outcome = judge("no_recompilation", seed)
    assert abs(outcome.error) <= 0.02, outcome


def test_a_machine_draws_the_same_for_the_same_seed(tmp_path: Path) -> None:
    job = Job()
    first, second = (record(job, seed=5, **draw_machine(random.Random(1), job)) for _ in range(2))
    assert first.documents() == second.documents()
    assert len(load_machine(first, tmp_path).ranks) == 1
