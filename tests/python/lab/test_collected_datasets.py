"""From a run to a data set: collected, checked for what no trace may tell, added, described."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from bookkeeping import books_of
from torchtraceap.cli import main
from torchtraceap.datasets.reader import DataSet
from torchtraceap.datasets.samples import load_samples
from torchtraceap.errors import OptionError
from torchtraceap.lab.building.add import add, add_labelled
from torchtraceap.lab.collection.collect import collect
from torchtraceap.lab.collection.manifest import read_manifest

MANIFEST = """
[[workload]]
name = "classifier"
task = "classification"
make = "own:patch_classifier"
inputs = "images"
parallel = true
forms = ["all_reduce_by_parameter"]
tiny = { batch = 4, side = 32, width = 8, depth = 1 }
full = { batch = 32, side = 224, width = 64, depth = 4 }
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pair, of several ranks."""
    place = tmp_path_factory.mktemp("collected")
    (place / "manifest.toml").write_text(MANIFEST)
    found = collect(place / "out", read_manifest(place / "manifest.toml"), minutes=3)
    assert (found.left_out, found.to_do) == ({}, 0)
    return place / "out"


def test_no_number_tells_what_was_put_in(collected: Path) -> None:
    """Both twins had markers; their traces have every number, in order, and no mark."""
    books = books_of(collected, put_in=True)
    assert sorted(each.label for each in books) == [False, True]
    for each in books:
        for name in ("External id", "Record function id", "Ev Idx"):
            assert each.features[f"{name}: gaps"] == 0, name
        assert each.features["marks: names"] == each.features["order: against time"] == 0
        assert each.features["fwdbwd arrow: loose"] == 0


def test_traces_of_a_cpu_are_no_data_of_gpus(
    collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "set"
    with pytest.raises(OptionError, match="was collected on a CPU, so it is in the split 'cpu'"):
        add_labelled(folder, collected, split="train")
    assert main(["dataset", "add", str(folder), str(collected)]) == 0
    capsys.readouterr()
    assert main(["dataset", "info", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["traces"], found["cpu_traces"], found["types"]) == (0, 2, {})
    assert {name: of["traces"] for name, of in found["splits"].items()} == {"cpu": 2}
    assert (found["sources"], found["pair_slowdown"]) == ({}, None)
    assert main(["dataset", "info", str(folder)]) == 0
    assert "2 traces more are of CPUs" in capsys.readouterr().out
    assert "2 traces more are of CPUs" in " ".join((folder / "README.md").read_text().split())
    rows = [entry.row for entry in DataSet(folder).entries.values()]
    assert {(row["source"], row["family"], row["mode"], row["dtype"]) for row in rows} == {
        ("collected", "classifier", "training", "fp32")
    }
    assert not any(row["virtual_platform"] for row in rows)
    assert load_samples(folder) == []
    assert len(load_samples(folder, splits=["cpu"])) == 2


def test_one_of_them_is_none_either(collected: Path, tmp_path: Path) -> None:
    line = (collected / "labels.jsonl").read_text("utf-8").splitlines()[0]
    labels = tmp_path / "label.json"
    labels.write_text(line)
    trace = collected / f"{json.loads(line)['id']}.json.gz"
    with pytest.raises(OptionError, match="collected on a CPU"):
        add(tmp_path / "set", trace, labels, split="validation")
    name = add(tmp_path / "set", trace, labels)
    assert DataSet(tmp_path / "set").entries[name].row["split"] == "cpu"
