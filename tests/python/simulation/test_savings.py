"""Savings of findings: simulated where the run can be replayed, bounds with a reason elsewhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.core.formatting import format_change, format_range
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.results import Finding, PlannedFix, ReplayCheck, Saving, Sensitivity, Trust
from torchtraceap.report.terminal import render_text
from torchtraceap.report.view import build_view
from torchtraceap.simulation import savings as module
from torchtraceap.simulation import trust
from torchtraceap.simulation.edits.base import Change, EditedGraph, edits_by_finding, make_edit
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import EditOutcome

WriteTrace = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[3]
LOADING = "single_process_data_loading"
MS = 1_000_000


def loader(write_trace: WriteTrace, **options: Any) -> ttap.Diagnosis:
    return ttap.diagnose(samples.slow_loader(**options).write(write_trace([])))


def found(diagnosis: ttap.Diagnosis, name: str = LOADING) -> Finding:
    finding = diagnosis.finding(name)
    assert finding is not None
    return finding


def saving_of(diagnosis: ttap.Diagnosis, name: str = LOADING) -> Saving:
    saving = found(diagnosis, name).saving
    assert saving is not None
    return saving


@pytest.fixture
def slow(write_trace: WriteTrace) -> Finding:
    return found(loader(write_trace))


def stray_kernels(maker: samples.TraceMaker) -> samples.TraceMaker:
    """The same without the calls that launched its kernels."""
    maker.events = [event for event in maker.events if event["cat"] != "cuda_runtime"]
    return maker


def outcome(predicted: int, low: int, high: int) -> EditOutcome:
    return EditOutcome("edit", predicted, low, high, "a note")


TRUST = Trust(0.0, None, "no two steps to compare", Sensitivity(0.5, 0.5, 0.0), True)
CHECK = ReplayCheck(100, 100, None, per_step=True, trust=TRUST)


# ------------------------------------------------------------------------------------ simulated


def test_a_slow_loader_is_replayed_with_workers(write_trace: WriteTrace) -> None:
    # Of 100 ms, 45 are loading; four workers leave 11.25 ms between batches, which the rest covers.
    # A fetch then takes 0.2 to 2 ms, and the host up to 1.2 times as long beside workers.
    diagnosis = loader(write_trace, steps=6)
    saving = saving_of(diagnosis)
    assert saving.method == "simulated"
    assert saving.edit == "loader_workers=4"
    assert saving.per_step
    assert 30 * MS < saving.low_ns <= saving.best_ns < 45 * MS
    assert saving.best_ns <= saving.high_ns < 46 * MS
    replay = diagnosis.replay
    assert replay is not None
    assert replay.trust.supports_prediction
    assert diagnosis.step is not None
    assert replay.measured_ns == diagnosis.step.measured_ns == pytest.approx(100 * MS, rel=0.005)
    assert abs(replay.trust.iteration_error) < 0.01
    held = replay.trust.held_out
    assert held is not None
    assert held.error <= held.baseline_error + 0.001


def test_the_saving_is_what_simulate_predicts(write_trace: WriteTrace) -> None:
    diagnosis = loader(write_trace)
    saving = saving_of(diagnosis)
    simulation = diagnosis.trace.simulate(edits=[saving.edit])
    (edit,) = simulation.to_dict()["edits"]
    measured = simulation.measured_ns
    assert saving.best_ns == measured - edit["predicted_ns"]
    assert saving.low_ns == max(0, measured - edit["high_ns"])
    # Where the GPU idles longer in the finding than the replay gives back, it may be all of that.
    assert 0 < measured - edit["low_ns"] < saving.high_ns < 46 * MS


def test_the_plan_lists_what_each_fix_adds(write_trace: WriteTrace) -> None:
    diagnosis = loader(write_trace)
    plan = diagnosis.plan
    assert plan
    assert plan[0].gain_ns == max(f.saving.best_ns for f in diagnosis.findings if f.saving)
    assert LOADING in {fix.type for fix in plan}
    assert diagnosis.replay is not None
    gained = diagnosis.replay.measured_ns - plan[-1].total_ns_after
    assert gained == pytest.approx(sum(fix.gain_ns for fix in plan), abs=len(plan))
    document = json.loads(diagnosis.to_json())
    assert document["plan"][0] == plan[0].to_dict()
    assert document["replay"]["trust"] == diagnosis.replay.trust.to_dict()
    assert document["step"]["measured_ns"] == document["replay"]["measured_ns"]


def test_a_fix_of_two_findings_is_planned_once() -> None:
    diagnosis = ttap.diagnose(ROOT / "tests/golden/host_bound/trace.json")
    edits = [saving_of(diagnosis, f.type).edit for f in diagnosis.findings]
    assert edits == ["cuda_graph", "cuda_graph"]
    assert [fix.edit for fix in diagnosis.plan] == ["cuda_graph"]
    assert diagnosis.plan[0].type == max(diagnosis.findings, key=lambda f: f.cost_ns).type
    assert "the same fix as 1" in render_text(diagnosis)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    predicted=st.integers(-50, 250),
    low=st.integers(-50, 250),
    high=st.integers(-50, 250),
)
def test_savings_are_ordered_and_lie_inside_the_step(
    slow: Finding, predicted: int, low: int, high: int
) -> None:
    saving = module._saving(slow, outcome(predicted, low, high), CHECK)
    assert saving is not None
    assert 0 <= saving.low_ns <= saving.best_ns <= saving.high_ns <= 100


def test_a_slower_prediction_saves_nothing(slow: Finding) -> None:
    saving = module._saving(slow, outcome(120, 110, 130), CHECK)
    assert saving is not None
    assert (saving.low_ns, saving.best_ns, saving.high_ns) == (0, 0, 0)


def test_an_edit_that_the_simulation_refuses_leaves_the_bound(slow: Finding) -> None:
    refused = EditOutcome("edit", None, None, None, "what it changes contradicts this trace")
    assert slow.saving is not None
    bound = dataclasses.replace(slow.saving, method="bound", edit="", note="")
    saving = module._saving(dataclasses.replace(slow, saving=bound), refused, CHECK)
    assert saving is not None
    assert saving.method == "bound"
    assert saving.note == "not simulated: what it changes contradicts this trace"


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_the_order_of_events_is_irrelevant(tmp_path: Path, steps: int, seed: int) -> None:
    import random

    maker = samples.slow_loader(steps=steps)
    before = ttap.diagnose(maker.write(tmp_path / "a.json"))
    random.Random(seed).shuffle(maker.events)
    after = ttap.diagnose(maker.write(tmp_path / "b.json"))
    assert saving_of(after) == saving_of(before)
    assert after.plan == before.plan


# ------------------------------------------------------------------------------------ bounds


def test_a_bad_replay_leaves_bounds(
    write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "MOST_ITERATION_ERROR", -1.0)
    diagnosis = loader(write_trace)
    saving = saving_of(diagnosis)
    assert saving.method == "bound"
    assert saving.edit == ""
    assert "than measured, more than" in saving.note
    assert diagnosis.plan == ()
    assert diagnosis.replay is not None
    assert not diagnosis.replay.trust.supports_prediction
    assert diagnosis.replay.trust.reason == saving.note
    text = render_text(diagnosis)
    assert "Savings are bounds: replayed from its dependencies" in text
    assert "saves at most" in text
    assert "simulated" not in text


def test_an_edit_that_changes_nothing_leaves_a_bound_with_its_reason(
    write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "edits_by_finding", lambda: {LOADING: ("pin_memory",)})
    saving = saving_of(loader(write_trace))
    assert saving.method == "bound"
    assert saving.note.startswith("not simulated: ")
    assert "copies" in saving.note


def test_the_first_edit_that_applies_stands(
    write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = {LOADING: ("pin_memory", "loader_workers=2")}
    monkeypatch.setattr(module, "edits_by_finding", lambda: edits)
    assert saving_of(loader(write_trace)).edit == "loader_workers=2"


def test_a_finding_without_an_edit_keeps_its_bound(
    write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "edits_by_finding", dict)
    diagnosis = loader(write_trace)
    saving = saving_of(diagnosis)
    assert (saving.method, saving.note) == ("bound", "no simulated edit stands for this fix")
    assert diagnosis.replay is None
    assert diagnosis.plan == ()
    assert json.loads(diagnosis.to_json())["replay"] is None


def test_a_trace_that_cannot_be_replayed_is_no_error(
    write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trace: ttap.Trace) -> None:
        raise ttap.errors.SchemaError("ranks disagree")

    monkeypatch.setattr(module, "simulated_run", fail)
    saving = saving_of(loader(write_trace))
    assert saving.method == "bound"
    assert saving.note == "the run can't be replayed: ranks disagree"


def test_ranks_that_share_nothing_keep_bounds(tmp_path: Path) -> None:
    for rank in range(2):
        samples.slow_loader(rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
    saving = saving_of(ttap.diagnose(tmp_path))
    assert saving.method == "bound"
    assert saving.note.startswith("only 1 of 2 ranks share collectives")


def test_a_lone_rank_of_several_says_so(write_trace: WriteTrace) -> None:
    maker = samples.slow_loader(rank=3, world_size=8)
    quiet = ttap.diagnose(maker.write(write_trace([])))
    assert quiet.replay is not None
    assert quiet.replay.notes == ()
    maker.gpu("kernel", "ncclDevKernel_AllReduce", 1_399_600, 300, launch=1_350_000)
    talking = ttap.diagnose(maker.write(write_trace([])))
    assert talking.replay is not None
    assert talking.replay.notes[0].startswith("1 of 8 ranks is recorded: a fix is taken to speed")


def test_host_only_and_healthy_traces_have_nothing_to_simulate(write_trace: WriteTrace) -> None:
    for maker in (samples.host_only(), samples.healthy()):
        diagnosis = ttap.diagnose(maker.write(write_trace([])))
        assert diagnosis.plan == ()
        assert all(f.saving is None or f.saving.method == "bound" for f in diagnosis.findings)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_orphans_and_few_steps_are_no_error(write_trace: WriteTrace, steps: int) -> None:
    diagnosis = ttap.diagnose(
        stray_kernels(samples.slow_loader(steps=steps)).write(write_trace([]))
    )
    for finding in diagnosis.findings:
        saving = finding.saving
        assert saving is None or 0 <= saving.low_ns <= saving.best_ns <= saving.high_ns
        assert saving is None or saving.note


def test_a_trace_without_steps_is_one_stretch(write_trace: WriteTrace) -> None:
    maker = samples.slow_loader(steps=3)
    maker.events = [e for e in maker.events if not e["name"].startswith("ProfilerStep")]
    diagnosis = ttap.diagnose(maker.write(write_trace([])))
    replay = diagnosis.replay
    if not diagnosis.summary.steps:
        assert replay is not None
        assert not replay.per_step
    for finding in diagnosis.findings:
        saving = finding.saving
        assert saving is None or replay is None or saving.high_ns <= 3 * 100 * MS


# ------------------------------------------------------------------------------------ mapping


def test_every_edit_of_a_finding_can_be_made() -> None:
    assert set(edits_by_finding()) <= set(load_knowledge())
    for names in edits_by_finding().values():
        assert [make_edit(name).name for name in names]


def test_the_documentation_lists_the_edits_of_every_finding() -> None:
    text = (ROOT / "docs/simulation_edits.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for finding, names in edits_by_finding().items():
        assert any(f"`{finding}`" in row and f"`{names[0]}`" in row for row in rows), finding


# ------------------------------------------------------------------------------------ words


def test_the_report_says_how_far_to_trust_before_any_saving(write_trace: WriteTrace) -> None:
    diagnosis = loader(write_trace)
    assert "Simulation check" not in render_text(diagnosis)
    text = render_text(diagnosis, verbose=True)
    places = [
        text.index(part)
        for part in (
            "Simulation check: unseen steps within ",
            " (steps vary by ",
            "ms per step (simulated, ",
            "less; simulated, ",
        )
    ]
    assert places == sorted(places)
    assert "100 → " in text


def test_the_view_draws_before_and_after(write_trace: WriteTrace) -> None:
    diagnosis = loader(write_trace)
    view = build_view(diagnosis)
    bars = view.findings[0].bars
    assert bars is not None
    assert bars.before == "100 ms"
    assert bars.before_share == 1.0
    assert 0 < bars.low_share <= bars.after_share <= bars.high_share < 1
    assert len(view.plan) == len(diagnosis.plan)
    page = diagnosis.to_html()
    assert page.count('class="before-after"') >= 1
    assert "Simulation check: unseen steps within" in page


def test_a_saving_below_the_noise_is_not_told(write_trace: WriteTrace) -> None:
    diagnosis = loader(write_trace)
    small = dataclasses.replace(saving_of(diagnosis), low_ns=0, best_ns=0, high_ns=2 * MS)
    finding = dataclasses.replace(diagnosis.findings[0], saving=small)
    replay = dataclasses.replace(diagnosis.replay, noise_ns=3 * MS)  # type: ignore[type-var]
    quiet = dataclasses.replace(diagnosis, findings=(finding,), plan=(), replay=replay)
    text = render_text(quiet)
    assert "saves less than step noise (simulated)" in text
    assert build_view(quiet).findings[0].bars is None
    assert build_view(quiet).findings[0].saves_short == "—"
    assert "saves less than step noise" in quiet._repr_html_()


def test_the_plan_in_words(write_trace: WriteTrace) -> None:
    diagnosis = loader(write_trace)
    fixes = (
        PlannedFix(LOADING, "loader_workers=4", 40 * MS, 60 * MS, 58 * MS, 62 * MS),
        PlannedFix("cpu_bound", "cuda_graph", 10 * MS, 50 * MS, 45 * MS, 55 * MS),
    )
    words = build_view(dataclasses.replace(diagnosis, plan=fixes)).together
    number = [f.type for f in diagnosis.findings].index(LOADING) + 1
    assert f"fix {number} (loader_workers=4), then " in words
    assert "(cuda_graph): 100 → 50.0 ms per step (50 % less; simulated, 45.0–55.0 ms)" in words


def test_pairs_of_times_share_their_unit() -> None:
    assert format_change(176_693_000, 129_580_146) == "177 → 130 ms"
    assert format_change(1_200_000, 900_000) == "1.20 ms → 900 µs"
    assert format_range(0, 2_163_073) == "0–2.16 ms"
    assert format_range(1_070_100_000, 1_070_200_000) == "1.07 s"


class _Circle:
    """Lets the first point wait for the last."""

    name = "circle"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        change.add([run.graph.order[-1]], [run.graph.order[0]], [0])
        return EditedGraph(change)


def test_what_contradicts_the_trace_is_left_out_of_an_edit(write_trace: WriteTrace) -> None:
    path = samples.slow_loader().write(write_trace([]))
    simulation = ttap.simulate(path, edits=[_Circle(), "loader_workers=4"])
    circle, workers = simulation.edits
    assert circle.predicted_ns == simulation.measured_ns
    assert circle.note.startswith("what contradicts the order of events in this trace is left out")
    assert workers.applies
    assert [step.edit for step in simulation.plan] == ["loader_workers=4"]


def test_fetches_on_several_threads_follow_each_other(write_trace: WriteTrace) -> None:
    maker = samples.slow_loader(steps=5)
    fetches = [event for event in maker.events if event["name"] == samples.LOADER]
    fetches[1]["tid"] = 7
    (edit,) = ttap.simulate(maker.write(write_trace([])), edits=["loader_workers=4"]).edits
    assert edit.applies, edit.note
