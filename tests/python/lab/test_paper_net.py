"""The network of the paper in LibTorch against its twin for training, part by part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from torchtraceap.diagnosis.scoring.paper import (
    PAPER_CELLS,
    PaperConfig,
    PaperInputs,
    TraceTokens,
    join_traces,
)
from torchtraceap.diagnosis.scoring.text_encoders import HashEncoder
from torchtraceap.errors import MissingDependencyError, OptionError, SchemaError
from torchtraceap.tables.windows import build_tokens
from torchtraceap.trace.loader import load

torch = pytest.importorskip("torch")
native = pytest.importorskip("torchtraceap._model", exc_type=MissingDependencyError).native
from torchtraceap.lab.training.paper_net import PaperNet, batch_of  # noqa: E402

SMALL = PaperConfig(width=32, layers=2, heads=4, feed_forward=64, platforms=("unknown", "H100"))


@pytest.fixture(scope="module")
def inputs(bundled) -> PaperInputs:
    """Two grids of a real trace, one on an unknown platform; some windows are empty."""
    part = load([bundled]).rank()
    only = {"gaps": False, "host": False, "continued": False}
    traces = [
        TraceTokens(build_tokens(part, windows=20, cap=64, **only), "H100"),
        TraceTokens(build_tokens(part, windows=33, cap=33, **only), "of no name"),
    ]
    return join_traces(traces, SMALL, HashEncoder())


def twins(config: PaperConfig, precision: str = "float32"):
    torch.manual_seed(7)
    module = PaperNet(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():  # norms and biases too
            parameter.add_(torch.randn_like(parameter) * 0.05)
    core = native.PaperNet(native.PaperConfig(**config.network), module.arrays(), precision)
    return module, core


def scores_of(module, inputs: PaperInputs):
    with torch.inference_mode():
        return module(batch_of(inputs)).scores.numpy()


@pytest.mark.parametrize("cell", PAPER_CELLS)
def test_both_give_the_same_scores(cell, inputs):
    config = dataclasses.replace(SMALL, **PAPER_CELLS[cell])
    module, core = twins(config)
    found, expected = core.score(**inputs.arrays()), scores_of(module, inputs)
    assert found.shape == (53,) and np.ptp(found) > 1e-4
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_full_size(inputs):
    config = PaperConfig(platforms=("unknown", "H100"))
    module, core = twins(config)
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(6.4e6, rel=0.02)
    np.testing.assert_allclose(
        core.score(**inputs.arrays()), scores_of(module, inputs), atol=1e-5, rtol=0
    )


def test_bfloat16_is_near(inputs):
    module, core = twins(SMALL, "bfloat16")
    np.testing.assert_allclose(
        core.score(**inputs.arrays()), scores_of(module, inputs), atol=2e-2, rtol=0
    )


def test_a_trace_scores_the_same_alone_and_among_others(inputs):
    _, core = twins(SMALL)
    end = int(inputs.trace_offsets[1])
    events = int(inputs.offsets[end])
    per_event = ("name", "cpu_name", "delay_code", "duration_code", "position", "stream")
    alone = {
        **inputs.arrays(),
        **{name: getattr(inputs, name)[:events] for name in per_event},
        "trace_offsets": inputs.trace_offsets[:2],
        "platform": inputs.platform[:1],
        "offsets": inputs.offsets[: end + 1],
    }
    np.testing.assert_allclose(
        core.score(**alone), core.score(**inputs.arrays())[:end], atol=1e-5, rtol=0
    )


def test_events_of_a_window_matter_to_others_only_by_the_relation(inputs):
    changed = {**inputs.arrays(), "duration_code": inputs.duration_code.copy()}
    first = int(inputs.offsets[np.flatnonzero(np.diff(inputs.offsets))[0]])
    changed["duration_code"][first] = 255
    for relation in (False, True):
        _, core = twins(dataclasses.replace(SMALL, relation=relation))
        difference = np.abs(core.score(**changed) - core.score(**inputs.arrays()))
        assert (np.count_nonzero(difference > 1e-7) > 1) == relation


def test_windows_without_any_event(inputs):
    module, core = twins(SMALL)
    empty = PaperInputs(
        names=np.zeros((0, SMALL.text_width), np.float32),
        trace_offsets=np.array([0, 3], np.int64),
        platform=np.zeros(1, np.int64),
        offsets=np.zeros(4, np.int64),
        **{name: np.zeros(0, np.int64) for name in
           ("name", "cpu_name", "delay_code", "duration_code")},
        position=np.zeros(0, np.float32),
        stream=np.zeros(0, np.float32),
    )  # fmt: skip
    found = core.score(**empty.arrays())
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, scores_of(module, empty), atol=1e-5, rtol=0)


def test_weights_and_arrays_that_do_not_fit_are_refused(inputs):
    module, core = twins(SMALL)
    arrays, sizes = module.arrays(), native.PaperConfig(**SMALL.network)
    with pytest.raises(SchemaError, match=r"head1.weight is \[64, 64\], not \[256, 256\]|is"):
        native.PaperNet(native.PaperConfig(**PaperConfig().network), arrays)
    with pytest.raises(SchemaError, match="cls is missing"):
        native.PaperNet(sizes, {k: v for k, v in arrays.items() if k != "cls"})
    with pytest.raises(SchemaError, match="not finite"):
        native.PaperNet(sizes, {**arrays, "cls": np.full(64, np.nan, np.float32)})
    with pytest.raises(OptionError, match="precision"):
        native.PaperNet(sizes, arrays, "float8")
    with pytest.raises(OptionError, match="device"):
        native.PaperNet(sizes, arrays, "float32", "elsewhere")
    for name, value in (("name", 10**6), ("delay_code", 257), ("duration_code", -1)):
        wrong = inputs.arrays()[name].copy()
        wrong[0] = value
        with pytest.raises(SchemaError, match=name):
            core.score(**{**inputs.arrays(), name: wrong})
    with pytest.raises(SchemaError, match="offsets"):
        core.score(**{**inputs.arrays(), "offsets": inputs.offsets[::-1].copy()})
