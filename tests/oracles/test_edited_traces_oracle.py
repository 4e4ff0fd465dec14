"""Real traces written back: without an edit as they were, with edits every step as long as the
replay says."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import TraceError
from torchtraceap.ranks import Ranks
from torchtraceap.simulation.edited_trace import edited_ranks
from torchtraceap.simulation.edits.base import Change, NotApplicableError
from torchtraceap.simulation.registry import default_edits, make_edit
from torchtraceap.simulation.run import SimulatedRun

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
        again, replayed = SimulatedRun(written).measured_ns, run.lengths_ns([change.delta()])[0]
        if run.per_step:  # of steps that were inferred the last is not marked
            assert again.tolist() == replayed[: len(again)].tolist(), name
            assert len(replayed) - len(again) <= sum(r.tree.steps_inferred for r in run.ranks)
        else:  # may end with an event that is gone
            assert again.sum() <= replayed.sum(), name


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_real_traces(corpus_file: Path) -> None:
    try:
        trace = ttap.load(corpus_file)
    except TraceError:
        return
    _check(trace)


def test_sets_of_ranks(corpus: Path) -> None:
    for folder in ("param/dlrm_8ranks", "torchrec_4ranks_late_rank"):
        if (corpus / folder).is_dir():
            _check(ttap.load(corpus / folder))
