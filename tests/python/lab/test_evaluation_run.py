"""`evaluate`: tables, intervals, the page, and the log of looks at test labels."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")

from made_samples import made_samples

from torchtraceap.cli import main
from torchtraceap.datasets.samples import Sample
from torchtraceap.diagnosis.scoring import Scorer
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.evaluation import run as run_module
from torchtraceap.lab.evaluation.baselines import GpuEvents
from torchtraceap.lab.evaluation.judged_traces import log_look
from torchtraceap.lab.evaluation.run import Evaluation, Options, evaluate
from torchtraceap.lab.evaluation.tables import (
    document,
    table_2,
    table_3,
    table_5,
    tables,
    write_report,
)

SAMPLES = [
    *made_samples(64),
    *made_samples(16, "validation", 100),
    *made_samples(16, "seen", 200),
]


def made_events(dataset: object, ids: Iterable[str]) -> dict[str, GpuEvents]:
    """An event for each window of a made sample, and costs where it is positive."""
    found = {}
    wanted = set(ids)
    for sample in SAMPLES:
        if sample.id in wanted:
            bounds = sample.bounds_ns
            spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
            length = np.where(sample.positive, 900, 500)
            found[sample.id] = GpuEvents(
                bounds[:-1], bounds[:-1] + length, np.zeros(20, dtype=np.int64),
                spans[:0], spans[sample.positive],
            )  # fmt: skip
    return found


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(dataset: object, *, splits: Iterable[str], **rest: Any) -> list[Sample]:
        return [sample for sample in SAMPLES if sample.split in splits]

    monkeypatch.setattr(run_module, "load_samples", load)
    monkeypatch.setattr(run_module, "load_events", made_events)

    def absent(name: str) -> Scorer:
        raise MissingFileError(name)

    monkeypatch.setattr(run_module, "scorer_methods", lambda *rest: [])
    monkeypatch.setattr(run_module, "load_scorer", absent)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    methods = ("chance", "rule", "trees-s", "trees-s-constant", "paper")
    why = "a test"
    return evaluate(tmp_path, Options(("validation", "seen"), (20,), methods, seeds=2, why=why))


def test_what_is_known_scores_high_and_chance_half(evaluation: Evaluation) -> None:
    rows = {row.name: row for row in evaluation.rows}
    column = "seen: average"
    good = rows["boosted trees S"].cells[20, column]
    assert good.values["auc"].value > 0.9 and good.values["hit"].value > 0.7
    assert good.values["auc"].low <= good.values["auc"].value <= good.values["auc"].high
    chance = rows["chance"].cells[20, column].values
    assert chance["auc"].value == pytest.approx(0.5, abs=0.1)
    constant = rows["boosted trees S, one score a trace"].cells[20, column].values
    assert constant["per_trace"].value == 0.5 and constant["auc"].value > 0.6
    assert rows["rule: outliers among kernels"].seeds == 1 and rows["chance"].seeds == 2
    cells = rows["chance"].cells
    parts = [cells[20, f"seen: {task}"].values["auc"].value for task in ("pose", "depth")]
    assert chance["auc"].value == pytest.approx(np.mean(parts))
    assert rows["boosted trees S"].types[20, "seen: pooled"].given["accuracy"] > 0.8
    assert 0 <= rows["boosted trees S"].calibration[20]["ece"] <= 1


def test_a_method_without_weights_has_no_numbers(evaluation: Evaluation) -> None:
    missing = [row for row in evaluation.rows if row.missing is not None]
    assert missing
    assert not any(row.cells for row in missing)
    lines = [line for line in table_3(evaluation, 20) if line[0].startswith("paper (")]
    assert [set(line[3:]) for line in lines] == [{"–"}]
    assert all(set(line[3:]) == {"–"} for line in table_5(evaluation)[1:])


def test_tables_as_text_and_json(evaluation: Evaluation) -> None:
    found = tables(evaluation)
    assert [title for title in found if title.startswith("Table")] == [
        "Table 2: traces with a fault / positive windows, by type and task",
        "Table 3: pooled AUC, 20 windows", "Table 4: types",
        "Table 5: parts of the paper's network",
    ]  # fmt: skip
    assert all(len({len(line) for line in table}) == 1 for table in found.values())
    totals = [line[-1] for line in table_2(evaluation)[1:]]
    bad = sum(s.label for s in SAMPLES if s.split != "train")
    assert sum(int(total.split(" / ")[0]) for total in totals) == bad
    text = json.dumps(document(evaluation), allow_nan=False)
    assert json.loads(text)["schema"] == "torchtraceap.evaluation/1"
    assert len(document(evaluation, 3)["tables"]) == 1


def test_a_page_keeps_its_words_and_gets_its_numbers(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Mine\n\n<!-- begin validation-seen table 4 types -->\nold\n"
        "<!-- end validation-seen table 4 types -->\n\nWords.\n"
    )
    written = write_report(evaluation, page)
    text = page.read_text("utf-8")
    assert text.startswith("# Mine") and "Words." in text and "\nold\n" not in text
    assert {path.suffix for path in written} == {".md", ".svg"}
    assert all(path.read_text("utf-8").startswith("<svg") for path in written[1:])
    write_report(evaluation, page)
    assert page.read_text("utf-8") == text


def test_a_look_at_test_labels_is_written_down(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--why"):
        evaluate(tmp_path, Options(("seen",), (20,), ("chance",)))
    assert not (tmp_path / "looks.jsonl").exists()
    assert log_look(tmp_path, ["validation"], ["chance"], None) is None
    for why in ("first", "second"):
        assert log_look(tmp_path, ["validation", "seen"], ["chance"], why) is not None
    lines = [json.loads(line) for line in (tmp_path / "looks.jsonl").read_text().splitlines()]
    assert [line["why"] for line in lines] == ["first", "second"]
    assert lines[0]["splits"] == ["seen"] and lines[0]["methods"] == ["chance"]


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    for options, words in (
        (Options(methods=("vv2",)), "no method 'vv2'"),
        (Options(splits=("test",)), "no split 'test'"),
        (Options(splits=("unseen",), why="x", methods=("chance",)), "no traces of the split"),
        (Options(seeds=0), "a seed"),
    ):
        with pytest.raises(OptionError, match=words):
            evaluate(tmp_path, options)


def test_scores_of_a_document_are_a_row(tmp_path: Path) -> None:
    traces = [
        {"path": f"{sample.id}.json.gz", "scores": sample.positive.tolist(), "types": {}}
        for sample in SAMPLES
        if sample.split == "validation"
    ]
    document = {"schema": "torchtraceap.scores/1", "scorer": "paper: adapter", "traces": traces}
    path = tmp_path / "scores.json"
    path.write_text(json.dumps(document))
    found = evaluate(tmp_path, Options(windows=(20,), methods=("chance",), scores=(str(path),)))
    (row,) = [row for row in found.rows if row.name == "paper: adapter"]
    assert row.cells[20, "validation: pooled"].values["auc"].value == 1.0
    assert ["x", "", "", "100.0"] in table_5(found)
    path.write_text("{}")
    with pytest.raises(SchemaError):
        evaluate(tmp_path, Options(windows=(20,), methods=("chance",), scores=(str(path),)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(tmp_path), "--scorer", "chance", "--seeds", "1", "--windows", "50"]
    assert main([*words, "--json", "--table", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["table"] == 3 and found["methods"][0]["name"] == "chance"
    assert main([*words, "--split", "seen"]) == 2
    assert "--why" in capsys.readouterr().err
    page = tmp_path / "page.md"
    assert main([*words, "--report", str(page)]) == 0
    assert page.exists() and "wrote" in capsys.readouterr().err
    assert main(words) == 0
    assert "Table 3" in capsys.readouterr().out
