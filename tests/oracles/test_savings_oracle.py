"""On every real trace: savings lie inside the step, the plan adds up, reasons are given."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchtraceap as ttap

from .conftest import corpus_files

FOLDERS = ("param/dlrm_8ranks", "torchrec_4ranks_late_rank")
FILES = [name for name in corpus_files() if not name.startswith(FOLDERS)]


def check(diagnosis: ttap.Diagnosis) -> None:
    replay = diagnosis.replay
    for finding in diagnosis.findings:
        saving = finding.saving
        if saving is None:
            continue
        assert saving.note, finding.type
        assert 0 <= saving.low_ns <= saving.best_ns <= saving.high_ns
        if saving.method == "simulated":
            assert replay is not None
            assert replay.trust.supports_prediction
            assert abs(replay.trust.iteration_error) <= 0.05
            assert saving.high_ns <= replay.measured_ns
            assert saving.per_step == replay.per_step
    check_plan(diagnosis)


def check_plan(diagnosis: ttap.Diagnosis) -> None:
    replay = diagnosis.replay
    if not diagnosis.plan:
        return
    assert replay is not None
    assert replay.trust.supports_prediction
    assert len({fix.edit for fix in diagnosis.plan}) == len(diagnosis.plan)
    reached = replay.measured_ns
    for fix in diagnosis.plan:
        assert fix.gain_ns > 0.001 * replay.measured_ns
        reached -= fix.gain_ns
        assert fix.total_ns_after == pytest.approx(reached, abs=2 * len(diagnosis.plan))
        assert 0 < fix.low_ns <= fix.total_ns_after <= fix.high_ns


@pytest.mark.parametrize("corpus_file", FILES, indirect=True)
def test_savings_of_a_trace(corpus_file: Path) -> None:
    diagnosis = ttap.diagnose(corpus_file)
    check(diagnosis)
    start_ns, end_ns = diagnosis.trace.rank().tree.profiled
    chain = diagnosis.trace.explain_idle(start_ns, end_ns)
    if chain.num_rows:
        assert chain["idle_ns"].sum() == chain.facts["duration_ns"]
    else:
        assert chain.notes


@pytest.mark.parametrize("folder", FOLDERS)
def test_savings_of_many_ranks(corpus: Path, folder: str) -> None:
    path = corpus / folder
    if not path.is_dir():
        pytest.skip(f"{path} is not in this corpus")
    check(ttap.diagnose(path))


def test_four_workers_are_predicted_from_none(corpus: Path) -> None:
    """Two recordings of one program: what the first predicts is what the second measured."""
    before = corpus / "kineto/resnet50_num_workers_0.json.gz"
    after = corpus / "kineto/resnet50_num_workers_4.json.gz"
    if not (before.exists() and after.exists()):
        pytest.skip("the pair is not in this corpus")
    diagnosis = ttap.diagnose(before)
    first = diagnosis.findings[0]
    assert first.type == "single_process_data_loading"
    assert first.saving is not None
    assert diagnosis.replay is not None
    # Every sixth fetch of the second waits: its mean is longer than the steps that are alike.
    measured_ns = ttap.simulate(after, edits=[]).median_ns
    predicted_ns = diagnosis.replay.measured_ns - first.saving.best_ns
    assert predicted_ns == pytest.approx(measured_ns, rel=0.05)
    slowest_ns = diagnosis.replay.measured_ns - first.saving.low_ns
    assert diagnosis.replay.measured_ns - first.saving.high_ns <= measured_ns <= slowest_ns
