"""Real traces written back: without an edit as they were, with edits every step as long as the
replay says, and a step as long as is predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import TraceError
from torchtraceap.simulation.edited_trace import Form, edited_ranks
from torchtraceap.simulation.edits.base import Change, NotApplicableError, default_edits, make_edit
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import simulate
from torchtraceap.tables.steps.iterations import held_up_row
from torchtraceap.tables.summary import build_summary
from torchtraceap.trace.ranks import Ranks

from .conftest import corpus_files


def _changes(run: SimulatedRun) -> list[tuple[str, Change]]:
    found = []
    for name in default_edits():
        try:
            graph = make_edit(name).apply(run)
        except NotApplicableError:
            continue
        found.append((name, graph.best))
        if graph.cautious is not None:
            found.append((name, graph.cautious))
    return found


def _check(trace: Ranks) -> None:
    run = SimulatedRun(trace)
    same = edited_ranks(run, Change(), run.replay())
    for before, after in zip(trace.ranks, same, strict=True):
        assert _core.trace_json(after.table) == _core.trace_json(before.table)
    for name, change in _changes(run):
        written = Ranks(edited_ranks(run, change, run.replay(change.delta())))
        again, replayed_ns = SimulatedRun(written), run.lengths_ns([change.delta()])[0]
        read_ns = again.measured_ns
        if not run.per_step:  # may end with an event that is gone
            assert read_ns.sum() <= replayed_ns.sum(), name
            continue
        # Of steps that were inferred the last is not marked. A launch that an edit puts ahead of
        # what its work needs makes its step, the first, look held up.
        inferred = sum(part.tree.steps_inferred for part in run.ranks)
        assert len(replayed_ns) - len(read_ns) <= inferred
        same = np.ones(len(read_ns), dtype=bool)
        if [held_up_row(part) for part in again.ranks] != [held_up_row(p) for p in run.ranks]:
            same = np.diff([step.rank for step in again.steps], prepend=-1) == 0
        assert read_ns[same].tolist() == replayed_ns[: len(read_ns)][same].tolist(), name


def _check_predictions(trace: Ranks) -> None:
    """The summary of what is written says what is predicted, and so do both forms."""
    simulation = simulate(trace, [*default_edits(), "loader_workers=4", "mixed_precision=bf16"])
    run = simulation.run
    for name, graph in simulation.applied.items():
        written = simulation.edited_trace([name])
        step = build_summary(written).step
        if run.per_step:
            assert step is not None
            assert step.measured_ns == round(written.step_ns)
        predicted_ns = simulation.together([name]).predicted_ns
        assert written.step_ns == pytest.approx(predicted_ns, rel=0.01), name
        if run.trace is not trace:  # a part was simulated
            continue
        forms: list[Form] = ["best", "cautious"]
        for form in forms:
            change = graph.best if form == "best" else graph.least
            written = simulation.edited_trace([name], form=form)
            if "change nothing" in written.note:
                continue
            replays = run.replays([change.delta()])
            assert written.step_ns == pytest.approx(replays.steady_ns[0], rel=0.005), name


@pytest.mark.slow  # goes through every trace of the corpus
@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_real_traces(corpus_file: Path) -> None:
    try:
        trace = ttap.load(corpus_file)
    except TraceError:
        return
    _check(trace)
    _check_predictions(trace)


@pytest.mark.slow  # reads whole sets of ranks
def test_sets_of_ranks(corpus: Path) -> None:
    for folder in ("param/dlrm_8ranks", "torchrec_4ranks_late_rank"):
        if (corpus / folder).is_dir():
            _check(ttap.load(corpus / folder))
            _check_predictions(ttap.load(corpus / folder))
