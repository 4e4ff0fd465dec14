"""`train paper`: from a small data set to weights that the scorer reads."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from torchtraceap.datasets.reader import labeled_runs
from torchtraceap.datasets.samples import load_samples
from torchtraceap.diagnosis.scoring.paper import PaperConfig, paper_tokens, read_paper_weights
from torchtraceap.errors import OptionError

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("pyarrow")

from conftest import ROOT

from torchtraceap.lab.training import train
from torchtraceap.lab.training.paper import PaperSettings

SETTINGS = """
[paper]
cell = "adapter+relation"
width = 16
heads = 2
windows = 20
cap = 16
batch = 2
pairs = 4
[losses]
objective = "twin"
[loop]
epochs = 1
"""


def test_it_learns_from_the_events_that_scoring_reads(tmp_path):
    """Of full windows too, from which events are left out."""
    data = tmp_path / "data"
    shutil.copytree(ROOT / "examples/mini_dataset", data)
    run = next(run for run in labeled_runs(data) if run.labels[0]["split"] == "validation")
    samples = load_samples(data, splits=["validation"], windows=20, tokens=16, gpu_only=True)
    by_id = {sample.id: sample for sample in samples}
    config = PaperConfig(cap=16)
    for label, part in zip(run.labels, run.load().ranks, strict=True):
        found = by_id[label["id"]].tokens
        read = paper_tokens(part, by_id[label["id"]].bounds_ns, config).tokens
        np.testing.assert_array_equal(found.offsets, read.offsets)
        np.testing.assert_array_equal(found.row, read.row)
        assert [found.names[i] for i in found.name] == [read.names[i] for i in read.name]
        assert np.diff(read.offsets.astype(int)).max() == 16


@pytest.mark.slow  # trains networks or trees
def test_training_writes_weights_that_load(tmp_path):
    data = tmp_path / "data"
    shutil.copytree(ROOT / "examples/mini_dataset", data)
    config = tmp_path / "settings.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    trained = train("paper", data, tmp_path / "out", config=config, seed=3)
    assert trained.finished and 0 <= trained.figures["pooled"] <= 1
    found, arrays = read_paper_weights(trained.weights)
    assert (found.width, found.transformer, found.cap) == (16, False, 16)
    assert found.platforms[0] == "unknown" and len(found.platforms) > 1
    assert all(np.isfinite(array).all() for array in arrays.values())
    again = train("paper", data, tmp_path / "again", config=config, seed=3)
    for name, array in read_paper_weights(again.weights)[1].items():
        np.testing.assert_array_equal(array, arrays[name])


def test_settings_that_make_no_sense():
    for wrong in ({"cell": "all"}, {"windows": 0}, {"pairs": -1}):
        with pytest.raises(OptionError, match=r"\[paper\]"):
            PaperSettings(**wrong)
