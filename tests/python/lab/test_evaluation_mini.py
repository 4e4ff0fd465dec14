"""The small data set of the repository: splits hold, and the package's scorers find its faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")
pytest.importorskip("pyarrow")

from torchtraceap.cli import main
from torchtraceap.datasets.samples import load_samples
from torchtraceap.lab.evaluation.baselines import load_events
from torchtraceap.lab.evaluation.judged_traces import check_splits

MINI = Path(__file__).resolve().parents[3] / "examples/mini_dataset"


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "mini"
    shutil.copytree(MINI, out, ignore=shutil.ignore_patterns(".cache"))
    return out


def test_no_group_is_split(mini: Path) -> None:
    samples = load_samples(mini, windows=50)
    check_splits(samples)
    assert any(sample.label for sample in samples)


def test_costs_of_events_are_those_of_windows(mini: Path) -> None:
    samples = [sample for sample in load_samples(mini, windows=50) if sample.label]
    events = load_events(mini, [sample.id for sample in samples])
    for sample in samples:
        cost = events[sample.id].cost_ns
        inside = np.minimum(cost[:, 1], sample.bounds_ns[-1]) - np.maximum(
            cost[:, 0], sample.bounds_ns[0]
        )
        lengths = np.diff(sample.bounds_ns)
        costs_ns = (sample.cost.max(axis=1) * lengths).sum()
        assert np.maximum(inside, 0).sum() == pytest.approx(costs_ns, rel=0.01)
        assert len(events[sample.id].begin_ns) > 100


def test_scorers_are_evaluated_on_validation(
    mini: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(mini), "--scorer", "evidence", "--scorer", "structural"]
    assert main([*words, "--windows", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {method["name"]: method for method in found["methods"]}
    for name, least in (("evidence", 0.7), ("structural", 0.8)):
        cells = {cell["column"]: cell for cell in by_name[name]["cells"]}
        assert cells["validation: pooled"]["metrics"]["auc"]["value"] > least
    assert by_name["structural"]["types"]
