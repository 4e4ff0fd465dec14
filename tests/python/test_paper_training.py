"""`train paper`: from a small data set to weights that the scorer reads."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from torchtraceap.analysis.tokens import build_tokens
from torchtraceap.errors import OptionError
from torchtraceap.loading import load
from torchtraceap.scoring.paper_config import read_paper_weights

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("pyarrow")

from conftest import ROOT

from torchtraceap.training import train
from torchtraceap.training.paper import PaperSettings, gpu_events

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


def test_events_of_the_gpu_are_those_that_scoring_reads(bundled):
    part = load([bundled]).rank()
    every = build_tokens(part, windows=10, cap=4096)
    alone = build_tokens(part, windows=10, cap=4096, gaps=False, host=False, continued=False)
    found = gpu_events(every)
    np.testing.assert_array_equal(found.offsets, alone.offsets)
    np.testing.assert_array_equal(found.row, alone.row)
    assert [found.names[i] for i in found.cpu_name] == [alone.names[i] for i in alone.cpu_name]
    with pytest.raises(OptionError, match="tokens"):
        gpu_events(None)


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
