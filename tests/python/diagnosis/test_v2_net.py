"""`v2` in LibTorch and in Python's torch give the same, on windows and events of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.diagnosis.scoring import common_bounds, load_scorer
from torchtraceap.diagnosis.scoring.v2 import (
    NAME_WIDTH,
    TOKEN_CODES,
    TOKEN_NUMBERS,
    TokenInputs,
    TokenView,
    squash,
    token_inputs,
)
from torchtraceap.diagnosis.scoring.weight_files import read_weights, shipped, write_weights
from torchtraceap.errors import MissingDependencyError, OptionError, SchemaError
from torchtraceap.tables.windows import build_tokens, feature_names

torch = pytest.importorskip("torch")
try:
    from torchtraceap._model import native
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

from torchtraceap.diagnosis.scoring.v2 import V2Scorer, load  # noqa: E402
from torchtraceap.lab.training.v2_data import make_batch  # noqa: E402
from torchtraceap.lab.training.v2_net import V2Net, V2Shape  # noqa: E402

FEATURES, TYPES = 10, 5
DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"
KEYS = ("window", "codes", "numbers", "name", "cpu_name", "names")


def net_of(seed: int = 0, *, tokens: bool = True, **changes: int) -> V2Net:
    """A network with random weights, also where they begin as 0."""
    torch.manual_seed(seed)
    sizes = {"width": 16, "heads": 4, "layers": 3, "reach": 5, "token_width": 12, **changes}
    shape = V2Shape(
        features=FEATURES,
        types=TYPES,
        token_codes=TOKEN_CODES if tokens else (),
        token_numbers=TOKEN_NUMBERS,
        name_width=NAME_WIDTH,
        **sizes,
    )
    net = V2Net(shape).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    net.set_statistics(torch.randn(FEATURES), torch.rand(FEATURES) + 0.5)
    return net


def native_of(net: V2Net) -> Any:
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    return native.V2Net(native.V2Shape(**net.shape.to_dict()), weights)


def features_of(windows: int, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 3, (windows, FEATURES)).astype(np.float32)


def tokens_of(windows: int, count: int, seed: int = 2) -> TokenInputs:
    rng = np.random.default_rng(seed)
    return TokenInputs(
        window=np.sort(rng.integers(0, windows, count)),
        codes=np.stack([rng.integers(0, size, count) for size in TOKEN_CODES], axis=1),
        numbers=rng.random((count, TOKEN_NUMBERS)).astype(np.float32),
        name=rng.integers(0, 7, count),
        cpu_name=rng.integers(0, 7, count),
        names=rng.normal(size=(7, NAME_WIDTH)).astype(np.float32),
    )


def given(tokens: TokenInputs | None) -> dict[str, Any]:
    return {} if tokens is None else {key: getattr(tokens, key) for key in KEYS}


def said_by_twin(net: V2Net, features: Any, tokens: TokenInputs | None) -> Mapping[str, Any]:
    with torch.no_grad():
        scores = net(*make_batch([features], [tokens], "cpu"))
    return {
        "any": scores.any[0].numpy(),
        "types": scores.types[0].numpy(),
        "severity": scores.severity[0].numpy(),
        "trace": scores.trace.numpy(),
        "tokens": np.zeros(0) if scores.tokens is None else scores.tokens.numpy(),
    }


@pytest.mark.parametrize("windows", [1, 2, 50, 130, 200])
@pytest.mark.parametrize("count", [0, 1, 3, 900])
def test_both_say_the_same_of_events(windows: int, count: int) -> None:
    net, features = net_of(), features_of(windows)
    tokens = tokens_of(windows, count)
    found = native_of(net).score(features, **given(tokens))
    for name, expected in said_by_twin(net, features, tokens).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_both_say_the_same_of_features_alone() -> None:
    net, features = net_of(tokens=False, layers=4, width=32), features_of(100)
    found = native_of(net).score(features)
    for name, expected in said_by_twin(net, features, None).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_logits_of_events_add_up_to_that_of_their_window() -> None:
    """What one event adds to its window: without it the sum of exp is less by its own."""
    net, features, tokens = net_of(), features_of(6), tokens_of(6, 40)
    found = native_of(net).score(features, **given(tokens))
    summed = np.zeros(6)
    np.add.at(summed, tokens.window, np.exp(found["tokens"]))
    plain = found["any"] - np.log1p(summed)
    with torch.no_grad():
        encoded = net.tokens(make_batch([features], [tokens], "cpu")[1], 6)
    assert encoded.shape == (40, 12)
    assert np.isfinite(plain).all()
    assert (found["any"] >= plain).all()


def test_extreme_features_and_logits_stay_finite() -> None:
    net, tokens = net_of(), tokens_of(4, 5000)
    with torch.no_grad():
        net.tokens.logit.bias.fill_(1000.0)
    features = np.full((4, FEATURES), 1e30, dtype=np.float32)
    found = native_of(net).score(features, **given(tokens))
    assert all(np.isfinite(array).all() for array in found.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": np.array([0, 1, 9])}, "no window"),
        ({"window": np.array([0, 1])}, "don't fit"),
        ({"name": np.array([0, 1, 7])}, "no name"),
        ({"cpu_name": np.array([0, 1, -1])}, "operator"),
        ({"codes": np.full((3, 3), 70)}, "unknown"),
        ({"numbers": np.zeros((3, 2), dtype=np.float32)}, "numbers"),
        ({"names": np.zeros((1, 5), dtype=np.float32)}, "name_width"),
    ],
)
def test_arrays_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    arrays = {**given(tokens_of(4, 3)), **change}
    with pytest.raises(SchemaError, match=said):
        native_of(net_of()).score(features_of(4), **arrays)


def test_features_that_do_not_fit() -> None:
    net = native_of(net_of())
    for features in (np.zeros((4, 3), np.float32), np.zeros(4, np.float32), features_of(0)):
        with pytest.raises(SchemaError):
            net.score(features)


def test_weights_that_do_not_fit() -> None:
    net = net_of()
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    shape = native.V2Shape(**net.shape.to_dict())
    for name, array in [
        ("stem.weight", np.zeros((2, 2), np.float32)),
        ("norm.bias", np.full(16, np.nan, np.float32)),
    ]:
        with pytest.raises(SchemaError, match=name):
            native.V2Net(shape, {**weights, name: array})
    with pytest.raises(SchemaError, match="missing"):
        native.V2Net(shape, {k: v for k, v in weights.items() if k != "trace_token"})


def test_a_trace_without_gpu_events_gets_no_scores(tmp_path: Path) -> None:
    scores = load_scorer("v2").score(GpuTrace().op("aten::mm", 0, 10).load(tmp_path), 7)
    assert scores.scores.tolist() == [0.0] * 7


@pytest.mark.parametrize("windows", [1, 3, 500])
def test_scores_are_probabilities(tmp_path: Path, windows: int) -> None:
    trace = GpuTrace()
    for i in range(50):
        trace.launch(f"gemm_α_{i % 3}", (100 * i, 5), (100 * i + 20, 30))
    scores = load_scorer("v2").score(trace.load(tmp_path), windows)
    assert scores.count == windows
    for found in (scores.scores, *scores.types.values()):
        assert ((found >= 0) & (found <= 1)).all()
    for found in scores.types.values():
        assert (found <= scores.scores + 1e-9).all()


def test_the_scorer_says_what_the_network_in_python_says() -> None:
    """On the demo trace, with the shipped weights: features, events, calibration and all."""
    scorer, trace = load_scorer("v2"), ttap.load(DEMO)
    weights = read_weights(shipped("v2"))
    shape = {k: tuple(v) if isinstance(v, list) else v for k, v in weights.about["shape"].items()}
    net = V2Net(V2Shape(**shape)).eval()
    tensors = {k: torch.from_numpy(v) for k, v in weights.arrays.items() if k != "calibration"}
    net.load_state_dict(tensors)
    block = trace.features(count=100)
    features = squash(block.values_matrix, block.zscores)
    tokens = build_tokens(trace.ranks[0], windows=100, cap=scorer.cap)
    inputs = token_inputs(tokens, common_bounds(trace, 100), scorer.view)
    with torch.no_grad():
        logit = net(*make_batch([features], [inputs], "cpu")).any[0].double().numpy()
    slope, intercept = weights.arrays["calibration"]
    expected = 1 / (1 + np.exp(-(slope * logit + intercept)))
    np.testing.assert_allclose(scorer.score(trace, 100).scores, expected, atol=1e-5)


def test_weights_of_another_scorer_or_version_are_refused(tmp_path: Path) -> None:
    given = read_weights(shipped("v2"))
    for changes, said in [
        ({"scorer": "structural"}, "another scorer"),
        ({"shape": {"width": 3}}, "another version"),
        ({"types": 3}, "types"),
    ]:
        path = tmp_path / "weights.safetensors"
        write_weights(path, given.arrays, {**given.about, **changes})
        with pytest.raises(SchemaError, match=said):
            V2Scorer(read_weights(path))


# ------------------------------------------------------------------------------ attribution


def events_net(view: TokenView) -> V2Net:
    """Of the package's features, with random weights also where they begin as 0."""
    torch.manual_seed(3)
    shape = V2Shape(
        features=2 * len(feature_names()),
        types=TYPES,
        token_codes=TOKEN_CODES,
        token_numbers=TOKEN_NUMBERS,
        name_width=view.name_width,
        token_width=8,
        token_layers=1,
        width=16,
        layers=2,
    )
    net = V2Net(shape).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def scorer_of(net: V2Net, view: TokenView, folder: Path) -> V2Scorer:
    arrays = {name: value.numpy() for name, value in net.state_dict().items()}
    about = {
        "scorer": "v2",
        "version": "1S",
        "shape": net.shape.to_dict(),
        "types": [f"type_{i}" for i in range(TYPES)],
        "features": feature_names(),
        "cap": 24,
        "view": asdict(view),
    }
    path = folder / "weights.safetensors"
    write_weights(path, {**arrays, "calibration": np.array([1.0, 0.0])}, about)
    return load(path)


@pytest.mark.parametrize("view", [TokenView(), TokenView(names=False, relative=True)])
def test_events_and_the_rest_make_up_the_logit(tmp_path: Path, view: TokenView) -> None:
    """By the network in Python: what the windows have without events, and what events add."""
    net = events_net(view)
    scorer, rank = scorer_of(net, view, tmp_path), ttap.load(DEMO).ranks[0]
    bounds_ns = common_bounds(ttap.load(DEMO), 20)
    found = scorer.attribution(rank, bounds_ns)

    assert len(found.tokens) == len(found.window) == len(found.logit) > 100
    added = np.zeros(20)
    np.add.at(added, found.window, found.part)
    np.testing.assert_allclose(added + found.rest, found.of_windows, rtol=1e-12, atol=1e-12)
    summed = np.bincount(found.window, np.exp(found.logit), minlength=20)
    np.testing.assert_allclose(found.rest + np.log1p(summed), found.of_windows, atol=1e-12)

    block = ttap.load(DEMO).features(count=20)
    given = token_inputs(build_tokens(rank, windows=20, cap=24), bounds_ns, view)
    batch = make_batch([squash(block.values_matrix, block.zscores)], [given], "cpu")
    with torch.no_grad():
        whole = net(*batch)
        assert net.tokens is not None
        net.tokens.logit.weight.zero_()
        net.tokens.logit.bias.fill_(-100.0)
        without = net(*batch)
    np.testing.assert_allclose(found.of_windows, whole.any[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.rest, without.any[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.logit, whole.tokens, rtol=1e-4, atol=1e-4)
    top = found.greatest(7)
    assert top is not None
    assert found.part[top] == found.part[found.window == 7].max()
    assert found.greatest(99) is None


def test_a_network_of_features_attributes_nothing(tmp_path: Path) -> None:
    shape = V2Shape(features=2 * len(feature_names()), types=TYPES, width=16, layers=1)
    scorer, trace = scorer_of(V2Net(shape).eval(), TokenView(), tmp_path), ttap.load(DEMO)
    with pytest.raises(OptionError, match="without events"):
        scorer.attribution(trace.ranks[0], common_bounds(trace, 10))


def test_what_is_relative_does_not_tell_how_fast_a_trace_is() -> None:
    rank = ttap.load(DEMO).ranks[0]
    tokens = build_tokens(rank, windows=20, cap=24)
    bounds_ns = np.linspace(*rank.tree.profiled, 21).astype(np.int64)
    view = TokenView(names=False, relative=True)
    slower = replace(tokens, duration_code=tokens.duration_code + 20)
    found, other = (token_inputs(each, bounds_ns, view) for each in (tokens, slower))
    np.testing.assert_allclose(found.numbers[:, 0], other.numbers[:, 0], atol=1e-6)
    assert found.names.shape == (1, 1)
    assert not found.name.any()
