"""`simulate`: the document, noise, plan, and edits taken together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fix_programs import FlawedProgram

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.simulation.simulate import Simulation, simulate

WriteTrace = Callable[..., Path]


def two_flaws(lengths: list[float]) -> dict[str, Any]:
    """Steps that load for so long, then read a value, then work on the host."""
    program = FlawedProgram()
    for number, length in enumerate(lengths):
        with program.step(number + 5):
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            with program.range(name, "user_annotation"):
                program.work(length)
            program.launch("gemm", 5_000)
            with program.range("aten::item"):
                program.copy("DtoH", "Pageable", 4, 2)
            program.work(2_000)
    return program.document()


@pytest.fixture
def steady(write_trace: WriteTrace) -> Simulation:
    trace = ttap.load(write_trace(two_flaws([10_000] * 6)))
    return simulate(trace, ["remove_host_sync", "loader_workers=4", "channels_last", "bogus"])


def test_the_document_has_what_the_interface_says(steady: Simulation) -> None:
    document = json.loads(json.dumps(steady.to_dict(), allow_nan=False))
    assert document["schema"] == "torchtraceap.simulation/1"
    assert [step["name"] for step in document["steps"]] == [
        f"ProfilerStep#{n}" for n in range(5, 11)
    ]
    measured = [step["measured_ns"] for step in document["steps"]]
    assert document["measured_ns"] == round(np.mean(measured))
    assert document["median_ns"] == round(np.median(measured))
    assert document["replayed_ns"] == pytest.approx(document["measured_ns"], rel=0.02)
    for edit in document["edits"]:
        assert set(edit) >= {"edit", "predicted_ns", "low_ns", "high_ns", "note"}
    first, second, third, fourth = document["edits"]
    for edit in (first, second):
        assert edit["low_ns"] <= edit["predicted_ns"] <= edit["high_ns"] <= document["measured_ns"]
    assert third["predicted_ns"] is None
    assert third["note"] == "no kernel only converts between NCHW and NHWC"
    assert fourth["predicted_ns"] is None
    assert fourth["note"].startswith("no edit is called 'bogus'; there are: ")
    assert "pin_memory" in fourth["note"]


def test_fixes_of_a_plan_come_in_order_of_gain_and_do_not_add_up(steady: Simulation) -> None:
    plan = steady.plan
    assert [fix.edit for fix in plan] == ["loader_workers=4", "remove_host_sync"]
    assert plan[0].gain_ns >= plan[1].gain_ns > 0
    assert plan[0].predicted_ns == steady.edits[1].predicted_ns
    assert plan[1].predicted_ns == pytest.approx(plan[0].predicted_ns - plan[1].gain_ns, abs=2)
    both = steady.together(["loader_workers=4", "remove_host_sync"])
    assert both.predicted_ns == pytest.approx(plan[1].predicted_ns, abs=2)
    # The GPU's 5 ms remain whatever the host does.
    assert both.low_ns is not None and both.low_ns > 5_000e3


def test_what_does_not_apply_cannot_be_taken_together(steady: Simulation) -> None:
    with pytest.raises(OptionError, match="channels_last: no kernel"):
        steady.together(["loader_workers=4", "channels_last"])
    with pytest.raises(OptionError, match="not simulated"):
        steady.together(["cuda_graph"])


def test_a_saving_below_the_noise_is_not_shown(write_trace: WriteTrace) -> None:
    lengths = [10_000.0, 30_000, 10_000, 30_000, 10_000, 30_000]
    simulation = simulate(ttap.load(write_trace(two_flaws(lengths))), ["remove_host_sync"])
    outcome = simulation.edits[0]
    steps = np.array([step.measured_ns for step in simulation.steps])
    assert simulation.noise_ns == pytest.approx(2 * steps.std(ddof=1) / np.sqrt(len(steps)))
    assert outcome.predicted_ns == simulation.measured_ns
    assert "lies below the steps' own noise" in outcome.note
    assert not simulation.plan


def test_all_fixes_are_tried_unless_some_are_named(write_trace: WriteTrace) -> None:
    simulation = simulate(ttap.load(write_trace(two_flaws([10_000] * 4))))
    applied = [outcome.edit for outcome in simulation.edits if outcome.applies]
    assert {"loader_workers=4", "remove_host_sync"} <= set(applied)
    assert all(outcome.note for outcome in simulation.edits)


@pytest.mark.parametrize(
    "events",
    [
        [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}],
        [
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 0}
            | {"args": {"device": 0, "stream": 7, "correlation": 9}}
        ],
        [{"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1}],
    ],
    ids=["no GPU", "only a kernel of no length", "no complete event"],
)
def test_traces_without_much_say_why_nothing_applies(
    write_trace: WriteTrace, events: list[dict[str, Any]]
) -> None:
    simulation = simulate(ttap.load(write_trace(events)))
    document = simulation.to_dict()
    json.dumps(document, allow_nan=False)
    assert not document["plan"]
    for outcome in simulation.edits:
        assert outcome.note
        assert outcome.predicted_ns in (None, simulation.measured_ns)


def test_the_order_of_events_in_the_file_does_not_matter(write_trace: WriteTrace) -> None:
    document = two_flaws([10_000] * 5)
    names = ["loader_workers=4", "remove_host_sync"]
    forth = simulate(ttap.load(write_trace(document, "a.json")), names).to_dict()
    document["traceEvents"].reverse()
    back = simulate(ttap.load(write_trace(document, "b.json")), names).to_dict()
    assert forth == back
