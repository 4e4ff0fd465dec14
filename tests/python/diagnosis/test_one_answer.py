"""One report gives one answer: what its parts say of one run agrees, on every trace at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import torchtraceap as ttap
from torchtraceap.core.formatting import format_ns, format_percent
from torchtraceap.core.results import GPU_PARTS
from torchtraceap.diagnosis.verdict import COMPUTATION, LEAST_SHARE
from torchtraceap.errors import TraceError
from torchtraceap.report.labels import BOUND_BY
from torchtraceap.report.view import ReportView, build_view
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.quality import is_unrecorded
from torchtraceap.tables.steps.iterations import iterations_of, step_time
from torchtraceap.tables.steps.steps import build_steps

SHARED = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))
CASES = Path(os.environ.get("TORCHTRACEAP_CASES", ROOT.parent / "shared" / "cases"))
LARGEST_BYTES = 3_000_000
BOUNDS = {"gpu_compute", "communication", "copies", "host", "data", "mixed", "unknown"}


def traces() -> list[Path]:
    files = [
        path
        for path in SHARED.rglob("*.json.gz")
        if path.stat().st_size <= LARGEST_BYTES and "metadata" not in path.name
    ]
    folders = list(CASES.iterdir()) if CASES.is_dir() else []
    return sorted([*(ROOT / "examples/traces").glob("*.json.gz"), *files, *folders])


@pytest.mark.parametrize("path", traces(), ids=lambda path: f"{path.parent.name}/{path.name}"[:60])
def test_the_parts_of_a_report_agree(path: Path) -> None:
    try:
        diagnosis = ttap.load(path).diagnose()
    except TraceError:
        pytest.skip("this is no trace that is read")
    view = build_view(diagnosis)
    document = diagnosis.to_dict()
    assert diagnosis.bound_by in BOUNDS
    label = BOUND_BY.get(diagnosis.bound_by)
    assert (f"bound by {label}" in view.explanation) is (label is not None)
    assert document["headline"] == view.headline
    assert_one_step_time(diagnosis, view)
    # The finding that leads is the first; none is disowned that explains what the headline names.
    if diagnosis.lead:
        assert diagnosis.findings[0].type == diagnosis.lead.type
    elif diagnosis.computes_on == "gpu" and diagnosis.findings:
        lost = {part: ns for part, ns in diagnosis.time_ns.items() if part not in COMPUTATION}
        part = max(lost, key=lambda name: lost[name])
        if part in diagnosis.idle_ns and lost[part] >= LEAST_SHARE * diagnosis.profiled_ns:
            for finding in diagnosis.findings:
                assert idle_inside(diagnosis, finding, part) < 0.5 * lost[part], finding.type
    # Times are of one window: what is recorded of it, unless hardly anything is.
    if diagnosis.summary.quality.recorded_share > 0.02:
        assert sum(diagnosis.time_ns.values()) in (0, diagnosis.profiled_ns)
    for finding in diagnosis.findings:
        assert 0 < finding.cost_ns <= diagnosis.profiled_ns
        saving = finding.saving
        assert saving is None or saving.low_ns <= saving.best_ns <= saving.high_ns
    assert_order(diagnosis)
    # No window bears a type that the rules exclude.
    verdicts = diagnosis.verdicts | diagnosis.further_verdicts
    for name, scores in diagnosis.windows.types.items():
        assert verdicts.get(name) != "absent" or not scores.any(), name
    # Advice and plan agree, and what is uncertain stays so.
    edits = [fix.edit.partition("=")[0] for fix in diagnosis.plan]
    if "cuda_graph" in edits:
        assert not any("No CUDA graph fits" in finding.fix for finding in diagnosis.findings)
    widths = [fix.high_ns - fix.low_ns for fix in diagnosis.plan]
    totals = [fix.total_ns_after for fix in diagnosis.plan]
    assert totals == sorted(totals, reverse=True)
    assert all(
        after >= min(before, total) - 1
        for before, after, total in zip(widths, widths[1:], totals[1:], strict=False)
    )


def assert_one_step_time(diagnosis: ttap.Diagnosis, view: ReportView) -> None:
    """Summary, diagnosis, replay and the table of steps have one list of steps and one step time,
    and the bar is as busy as the line above it says."""
    step, trace = diagnosis.summary.step, diagnosis.trace
    assert diagnosis.step == step and trace.summary().step == step
    told = f"{step.unit.capitalize()} {format_ns(step.measured_ns)} " if step else "no steps"
    assert told in view.explanation
    if step and diagnosis.replay:
        assert diagnosis.replay.per_step
        # A rank that meets no other is not replayed with them.
        replayed = step_time([trace.ranks[place] for place in SimulatedRun(trace).places])
        assert replayed and diagnosis.replay.measured_ns == replayed.measured_ns
    lengths = []
    for rank in trace.ranks:
        table = build_steps(rank)
        listed = [s for s in diagnosis.summary.steps if s.rank == rank.rank]
        pairs = zip(table["name"].tolist(), table["duration_ns"].tolist(), strict=True)
        assert list(pairs) == [(s.name, s.duration_ns) for s in listed]
        found = iterations_of(rank)
        if table.num_rows and found.counted.any():
            recorded = np.array(rank.tree.step_is_recorded, dtype=bool)
            assert table["iteration_ns"].tolist() == found.length_ns[recorded].tolist()
            lengths.append(found.length_ns[found.counted].mean())
    if lengths and step:
        assert step.measured_ns == round(float(np.mean(lengths)))
    if diagnosis.time_ns and diagnosis.computes_on == "gpu" and not is_unrecorded(trace):
        busy_ns = sum(rank.profiled_timeline().busy_ns for rank in trace.ranks)
        assert busy_ns / diagnosis.profiled_ns == pytest.approx(diagnosis.busy_share)
        drawn = sum(part.share for part in view.segments if part.key in GPU_PARTS)
        assert drawn == pytest.approx(diagnosis.busy_share)
        assert f"GPU busy {format_percent(diagnosis.busy_share)}" in view.explanation


def assert_order(diagnosis: ttap.Diagnosis) -> None:
    """Behind the finding that leads, findings stand in the order of what they save; behind these
    what adds nothing to them. A fix of the plan belongs to the first finding that it removes."""
    rest = list(diagnosis.findings[1 if diagnosis.lead else 0 :])
    edits = {f.saving.edit for f in diagnosis.findings[: 1 if diagnosis.lead else 0] if f.saving}
    saved = []
    while rest and (saving := rest[0].saving) and saving.believed_ns > 0:
        if saving.edit and saving.edit in edits:
            break
        edits.add(saving.edit)
        saved.append(saving.believed_ns)
        rest.pop(0)
    assert saved == sorted(saved, reverse=True)
    for finding in rest:
        saving = finding.saving
        assert saving is None or saving.believed_ns <= 0 or saving.edit in edits, finding.type
    assert [f.cost_ns for f in rest] == sorted((f.cost_ns for f in rest), reverse=True)
    firsts = {f.saving.edit: f.type for f in reversed(diagnosis.findings) if f.saving}
    assert all(firsts[fix.edit] == fix.type for fix in diagnosis.plan)


def idle_inside(diagnosis: ttap.Diagnosis, finding: ttap.Finding, part: str) -> int:
    """How much of the finding's cost lies in idle time of that cause, over all ranks, in ns."""
    from torchtraceap import _core

    code = _core.idle_cause_names().index(part)
    inside = 0
    for rank in diagnosis.trace.ranks:
        own = finding.intervals[np.array([r == rank.rank for r in finding.interval_ranks], bool)]
        idle = rank.idle(rank.tree.profiled)
        for start, end in zip(
            idle.start_ns[idle.cause == code].tolist(),
            idle.end_ns[idle.cause == code].tolist(),
            strict=True,
        ):
            low, high = np.maximum(own[:, 0], start), np.minimum(own[:, 1], end)
            inside += int(np.maximum(high - low, 0).sum())
    return inside
