"""Scorers on traces that were labelled by looking: here exported ones, with labels made up."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")
pytest.importorskip("pyarrow")

from public_labels import PASSES, RealLabels, Recordings, read_real_labels, read_recordings
from public_scores import NUMBERS, RealEvaluation, evaluate_real, real_document, real_part
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.datasets.labels import costs_of
from torchtraceap.datasets.reader import labeled_runs
from torchtraceap.diagnosis.scoring import load_scorer
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.building.add import export
from torchtraceap.lab.evaluation import run
from torchtraceap.trace.loader import load

ROOT = Path(__file__).resolve().parents[3]
FAULTY = {"0001-01": "nccl_blocks_main_stream", "0004-01": "high_memcpy"}
GOOD = {"0001-00": "0001-01", "0004-00": "0004-01", "0006-01": ""}
"""The good trace, and the trace of which it is the twin."""


def labels_of(path: Path, kind: str | None, cost: np.ndarray) -> dict[str, Any]:
    table = load(path).ranks[0].table
    first_ns = int(table.ts_ns[table.complete].min())
    none = {"present": False, "certainty": "certain", "evidence": "", "intervals_ns": []}
    types = {name: dict(none) for name in PAPER_TYPES}
    if kind is not None:
        types[kind] |= {"present": True, "intervals_ns": (cost - first_ns).tolist()}
    return {"first_event_ns": first_ns, "types": types}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "mini"
    source = ROOT / "examples/mini_dataset"
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(".cache"))
    return out


@pytest.fixture(scope="module")
def corpus(mini: Path) -> Path:
    folder = mini.parent / "corpus"
    folder.mkdir()
    costs = {
        label["id"]: np.concatenate(list(costs_of(label).values()))
        for run in labeled_runs(mini)
        for label in run.labels
        if label["id"] in FAULTY
    }
    found = {}
    for name in (*FAULTY, *GOOD):
        path = folder / f"{name}.json.gz"
        export(mini, name, path)
        found[path.name] = labels_of(path, FAULTY.get(name), costs.get(name, np.zeros((0, 2))))
    for name in PASSES:
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(found).encode()))
    groups = {twin: [f"{good}.json.gz", f"{twin}.json.gz"] for good, twin in GOOD.items() if twin}
    about = {"groups": groups, "healthy": [f"{name}.json.gz" for name in GOOD]}
    (folder / "recordings.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def labels(corpus: Path) -> RealLabels:
    return read_real_labels(corpus)


@pytest.fixture(scope="module")
def recordings(corpus: Path) -> Recordings:
    return read_recordings(corpus / "recordings.json")


def scorer_but_paper(name: str) -> Any:
    if name == "paper":
        raise MissingFileError("no weights")
    return load_scorer(name)


@pytest.fixture(scope="module")
def alone(corpus: Path, labels: RealLabels, recordings: Recordings) -> RealEvaluation:
    """With `paper` as where its weights are not there."""
    methods = ("evidence", "structural", "fused", "paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "load_scorer", scorer_but_paper)
        return evaluate_real(corpus, labels, recordings, methods=methods)


def test_labels_are_joined_to_truth_of_windows_and_traces(
    corpus: Path, labels: RealLabels, alone: RealEvaluation
) -> None:
    assert labels.fault("0004-01.json.gz") is True and labels.fault("0004-00.json.gz") is False
    (sample,) = (each for each in alone.samples if each.id == "0004-01.json.gz")
    part = load(corpus / sample.id).ranks[0]
    first_ns = int(part.table.ts_ns[part.table.complete].min())
    types = labels.window_types(sample.id, sample.bounds_ns, first_ns)
    assert (types == PAPER_TYPES.index("high_memcpy")).tolist() == sample.positive.tolist()
    cost = labels.costs_ns(sample.id, first_ns)
    assert sample.bounds_ns[0] <= cost.min() and cost.max() <= sample.bounds_ns[-1]
    assert alone.counts["traces"] == 5 and alone.counts["groups"] == 3
    assert alone.counts["faulty"] == 2 and alone.counts["free"] == 3
    assert alone.counts["typed"] == alone.counts["positive"] > 50


def test_the_packages_scorers_need_no_data_set(alone: RealEvaluation) -> None:
    rows = {row.name: row for row in alone.rows}
    assert rows["paper"].missing and rows["paper"].cell is None
    for name in ("evidence", "structural", "fused"):
        row = rows[name]
        assert row.cell is not None and row.cell.values["auc"].value > 0.7
        assert row.separation.keys() == NUMBERS.keys()
        assert row.types["windows"] == alone.counts["typed"]
        assert all(of.false == of.share <= 1 for of in row.healthy.values())
        assert row.traces["0004-00.json.gz"]["highest"] >= row.traces["0004-00.json.gz"]["mean"]
    assert (rows["evidence"].threshold, rows["fused"].threshold) == (0.1, 0.5)
    assert alone.difference(rows["evidence"], "auc") is None
    less = alone.difference(rows["fused"], "auc")
    cells = [rows[name].cell for name in ("fused", "evidence")]
    values = [cell.values["auc"].value for cell in cells if cell is not None]
    assert less is not None and less.value == pytest.approx(values[0] - values[1])
    assert less.low <= less.value <= less.high
    assert alone.difference(rows["paper"], "auc") is None


def test_baselines_and_thresholds_are_of_a_data_set(
    corpus: Path, labels: RealLabels, recordings: Recordings, mini: Path
) -> None:
    names = ("chance", "rule", "trees-s", "evidence")
    found = evaluate_real(corpus, labels, recordings, mini, methods=names, seeds=2)
    rows = {row.name: row for row in found.rows}
    assert rows["chance"].seeds == 2 and rows["rule: outliers among kernels"].seeds == 1
    chance = rows["chance"].cell
    assert chance is not None and chance.values["auc"].value == pytest.approx(0.5, abs=0.1)
    assert not rows["chance"].types and rows["boosted trees S"].types
    assert rows["evidence"].threshold != 0.1
    assert found.dataset == str(mini)


def test_all_of_it_is_shown(alone: RealEvaluation) -> None:
    text = real_part(alone)
    assert text.count("\n\n| ") == 4 and "paper (" in text and "`0006-01.json.gz`" in text
    for table in text.split("\n\n"):
        widths = {line.count(" | ") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) < 2
    found = json.loads(json.dumps(real_document(alone), allow_nan=False))
    assert [method["name"] for method in found["methods"]][-1] == "paper"
    assert found["methods"][0]["windows"]["auc"]["value"] > 0.7


def test_what_makes_no_sense_is_refused(
    corpus: Path, labels: RealLabels, recordings: Recordings, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="no method 'x'"):
        evaluate_real(corpus, labels, recordings, methods=("x",))
    with pytest.raises(OptionError, match="'chance' needs a data set"):
        evaluate_real(corpus, labels, recordings, methods=("chance",))
    with pytest.raises(MissingFileError):
        evaluate_real(tmp_path, labels, recordings, methods=("evidence",))
    with pytest.raises(MissingFileError):
        read_recordings(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(SchemaError, match="groups"):
        read_recordings(tmp_path / "other.json")


def test_the_recordings_are_those_of_the_labels() -> None:
    folder = ROOT / "benchmarks/detectors/real_labels"
    traces = read_real_labels(folder).traces
    found = read_recordings(folder / "recordings.json")
    assert found.group.keys() <= traces.keys() and set(found.healthy) <= traces.keys()


@pytest.fixture
def program() -> ModuleType:
    path = ROOT / "benchmarks/detectors/real.py"
    spec = importlib.util.spec_from_file_location("real_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_program_logs_the_look_and_writes(
    program: ModuleType, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "LABELS", corpus)
    log = tmp_path / "docs/benchmark_looks.jsonl"
    log.parent.mkdir()
    log.write_text("")
    page = tmp_path / "page.md"
    page.write_text("# Mine\n\n<!-- begin scorers -->\nold\n<!-- end scorers -->\n\nWords.\n")
    words = ["--why", "a test", "--scorer", "evidence", "--page", "page.md", "--output", "o.json"]
    monkeypatch.setattr(
        sys, "argv", ["real.py", str(corpus), *words, "--scores", str(tmp_path / "s.npz")]
    )
    program.main()
    assert json.loads(log.read_text())["why"] == "a test"
    assert "old" not in page.read_text() and "Words." in page.read_text()
    assert json.loads((tmp_path / "o.json").read_text())["counts"]["traces"] == 5
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["scores/evidence/0004-01.json.gz"].shape == (100,)
        assert set(np.unique(arrays["labels/0004-01.json.gz"])) <= {-1, 0, 1}
