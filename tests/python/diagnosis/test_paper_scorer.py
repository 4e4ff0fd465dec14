"""The scorer `paper`: any trace gets scores, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.diagnosis.scoring import common_bounds, paper
from torchtraceap.diagnosis.scoring.paper import PaperConfig, read_paper_weights
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError, SchemaError
from torchtraceap.trace.loader import load as load_trace

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")
pytest.importorskip("torchtraceap._model", exc_type=MissingDependencyError)

from torchtraceap.lab.training.paper_net import PaperNet  # noqa: E402

CONFIG = PaperConfig(
    width=32, layers=1, heads=4, feed_forward=64, cap=50,
    platforms=("unknown", "NVIDIA A100-SXM4-40GB"),
)  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("paper") / "paper.safetensors"
    safetensors.save_file(PaperNet(CONFIG).arrays(), path, CONFIG.metadata())
    return path


def kernel(ts, name="gemm", **event):
    return {
        "ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": 1.0, "pid": 0, "tid": 7,
        "args": {"device": 0, "stream": 7}, **event,
    }  # fmt: skip


def check(found, count):
    assert found.scores.shape == (count,)
    assert np.isfinite(found.scores).all()
    assert ((found.scores >= 0) & (found.scores <= 1)).all()
    assert set(found.types) == set(PAPER_TYPES)


def test_a_real_trace(weights, bundled):
    scorer, trace = paper.load(weights), load_trace([bundled])
    found = scorer.score(trace, 50)
    check(found, 50)
    assert found.bounds_ns == tuple(common_bounds(trace, 50).tolist())
    assert np.ptp(found.scores) > 0
    np.testing.assert_array_equal(scorer.score(trace, 50).scores, found.scores)
    assert paper.load(weights).version == scorer.version


@pytest.mark.parametrize("count", [1, 2, 200])
def test_any_number_of_windows(weights, write_trace, count):
    trace = load_trace([write_trace([kernel(i) for i in range(30)])])
    check(paper.load(weights).score(trace, count), count)


def test_a_trace_without_gpu_events_has_nothing_to_judge(weights, write_trace):
    host = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    found = paper.load(weights).score(load_trace([write_trace([host])]), 10)
    check(found, 10)
    assert not found.scores.any()


def test_names_of_any_letters_and_unknown_devices(weights, write_trace):
    events = [kernel(i, name) for i, name in enumerate(("größer", "核", "\u202e", "", "x" * 5000))]
    device = {"id": 0, "name": "a device of tomorrow"}
    document = {"traceEvents": events, "deviceProperties": [device]}
    check(paper.load(weights).score(load_trace([write_trace(document)]), 5), 5)


def test_a_full_window_is_read_in_part(weights, write_trace):
    trace = load_trace([write_trace([kernel(i * 0.01) for i in range(20_000)])])
    tokens = paper.paper_tokens(trace.rank(), common_bounds(trace, 2), CONFIG).tokens
    assert tokens.window_count == 2 and len(tokens) == 100 and tokens.folded.sum() == 19_900
    check(paper.load(weights).score(trace, 2), 2)


def test_the_worst_rank_counts(weights, write_trace, tmp_path):
    paths = [
        write_trace(
            {"traceEvents": [kernel(10 * i * (rank + 1)) for i in range(30)],
             "distributedInfo": {"rank": rank, "world_size": 2}},
            f"rank{rank}.json",
        )
        for rank in range(2)
    ]  # fmt: skip
    scorer, trace = paper.load(weights), load_trace(paths)
    bounds = common_bounds(trace, 8)
    each = scorer.score_tokens([paper.paper_tokens(r, bounds, CONFIG) for r in trace.ranks])
    np.testing.assert_array_equal(scorer.score(trace, 8).scores, np.max(each, axis=0))


def test_many_traces_at_once_score_as_each_alone(weights, bundled, monkeypatch):
    scorer, part = paper.load(weights), load_trace([bundled]).rank()
    bounds = common_bounds(load_trace([bundled]), 20)
    tokens = [paper.paper_tokens(part, bounds, CONFIG)] * 3
    together = scorer.score_tokens(tokens)
    monkeypatch.setattr(paper, "_EVENTS_AT_ONCE", 1)
    for one, other in zip(together, scorer.score_tokens(tokens), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_files_that_are_no_weights(tmp_path, weights):
    with pytest.raises(MissingFileError, match="no weights"):
        paper.load(tmp_path / "none.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(SchemaError, match="not a file of weights"):
        paper.load(broken)
    other = tmp_path / "other.safetensors"
    safetensors.save_file({"a": np.zeros(3, np.float32)}, other)
    with pytest.raises(SchemaError, match="format"):
        paper.load(other)
    arrays = PaperNet(CONFIG).arrays()
    wrong = {**CONFIG.metadata(), "config": json.dumps({"width": 30, "platforms": ["unknown"]})}
    safetensors.save_file(arrays, other, wrong)
    with pytest.raises(SchemaError, match="configuration"):
        paper.load(other)
    safetensors.save_file(arrays, other, PaperConfig().metadata())
    with pytest.raises(SchemaError, match="name_adapter"):
        paper.load(other)


def test_a_configuration_survives_its_file(weights):
    config, arrays = read_paper_weights(weights)
    assert config == CONFIG and set(arrays) == set(PaperNet(CONFIG).arrays())
    for wrong in ({"width": 30}, {"position": "middle"}, {"text_encoder": "none"}, {"layers": 0}):
        with pytest.raises(OptionError):
            PaperConfig(**wrong)
