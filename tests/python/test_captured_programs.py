"""Programs that are written for a GPU, or ask for values, are captured or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from torchtraceap.prediction.capture import Capture, CaptureError, Phase, capture_step  # noqa: E402
from torchtraceap.prediction.lifting import launching_ops  # noqa: E402


class Program(nn.Module):
    """A model of one function, with a parameter and a layer."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.layer = function, layer
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def captured(
    function: Callable[..., Any],
    *shape: int,
    layer: Callable[[], nn.Module] | None = None,
    trained: bool = False,
) -> Capture:
    def make() -> dict[str, Any]:
        made: dict[str, Any] = {
            "model": Program(function, layer() if layer else None),
            "inputs": (torch.randn(*(shape or (256, 512))),),
        }
        return made | ({"loss": lambda out: out.float().square().mean()} if trained else {})

    return capture_step(make)


def names(capture: Capture, phase: Phase = Phase.FORWARD) -> list[str]:
    ops = [op for op in launching_ops(capture) if op.phase is phase]
    return [op.name.removeprefix("aten::") for op in ops]


def linear() -> nn.Module:
    return nn.Linear(512, 512)


def on_cuda(model: Program, x: torch.Tensor) -> torch.Tensor:
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        y = model.layer(x.pin_memory().cuda(non_blocking=True).to("cuda:0"))  # type: ignore[misc]
    event.record()
    torch.cuda.synchronize()
    noise = torch.randn(512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    return y + noise.to(torch.device("cuda", 0))


def test_what_is_sent_to_a_gpu_stays_where_it_is() -> None:
    capture = captured(on_cuda, layer=lambda: linear().cuda().to("cuda", torch.float32))
    assert names(capture) == ["addmm", "randn", "add"]
    assert torch.Generator is torch._C.Generator
    assert not torch.cuda.is_available() or torch.cuda.Stream is not None


def mixed(model: Program, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return functional.layer_norm(model.layer(x), (512,)).softmax(-1)  # type: ignore[misc]


def test_mixed_precision_is_that_of_a_gpu() -> None:
    capture = captured(mixed, layer=linear)
    casts = ["copy_"] * 3  # what goes into the product
    assert names(capture) == [*casts, "addmm", "copy_", "native_layer_norm", "_softmax"]
    norm = next(op for op in launching_ops(capture) if op.name == "aten::native_layer_norm")
    assert norm.tensors[0].dtype.name == "float32"
    plain = captured(lambda model, x: model.layer(x), layer=linear)
    assert names(plain) == ["addmm"]


def test_recomputed_layers_are_in_the_backward_pass() -> None:
    def function(model: Program, x: torch.Tensor) -> Any:
        return checkpoint(model.layer, x * model.scale, use_reentrant=False)

    def layer() -> nn.Module:
        return nn.Sequential(linear(), nn.ReLU(), linear())

    capture = captured(function, layer=layer, trained=True)
    assert names(capture).count("addmm") == 2
    assert names(capture, Phase.BACKWARD).count("addmm") == 1  # up to what is needed


@pytest.mark.parametrize(
    ("layer", "states"), [(nn.LSTM, 2), (nn.GRU, 1), (nn.RNN, 1)], ids=["lstm", "gru", "rnn"]
)
def test_recurrent_layers_are_one_operator(layer: Any, states: int) -> None:
    def function(model: Program, x: torch.Tensor) -> Any:
        return model.layer(x)[0]  # type: ignore[misc]

    capture = captured(function, 8, 32, 64, layer=lambda: layer(64, 128, 2), trained=True)
    assert names(capture) == ["fill_"] * states + ["_cudnn_rnn", "pow", "mean"]
    assert names(capture, Phase.BACKWARD)[-1] == "_cudnn_rnn_backward"


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "SparseAdam"])
@pytest.mark.parametrize("in_bags", [True, False])
def test_sparse_gradients_have_a_row_for_each_lookup(in_bags: bool, optimizer: str) -> None:
    def make() -> dict[str, Any]:
        lookups, layer = torch.zeros(96, dtype=torch.long), nn.Embedding
        given = (lookups, torch.arange(0, 96, 32)) if in_bags else (lookups,)
        return {
            "model": (nn.EmbeddingBag if in_bags else layer)(100_000, 64, sparse=True),
            "inputs": given,
            "loss": lambda out: out.sum(),
            "optimizer": lambda tensors: getattr(torch.optim, optimizer)(list(tensors), lr=0.1),
        }

    capture = capture_step(make)
    ops = [op for op in launching_ops(capture) if op.phase is Phase.OPTIMIZER]
    assert all(tensor.elements for op in ops for tensor in op.tensors if tensor.shape)
    last = ops[-1]
    assert (last.name, last.tensors[0].shape) == ("aten::index_add_", (100_000, 64))
    assert last.tensors[2].shape == (96, 64)
    assert [note for note in capture.notes if "sparse" in note]
    if in_bags:
        backward = [op for op in launching_ops(capture) if op.phase is Phase.BACKWARD]
        picked = next(op for op in backward if op.name == "aten::index_select")
        assert picked.tensors[0].shape == (3, 64) and picked.tensors[1].shape == (96,)


def test_gradients_add_up_in_place() -> None:
    def function(model: Program, x: torch.Tensor) -> torch.Tensor:
        y = model.layer(x)  # type: ignore[misc]
        return y.relu() + y.tanh()

    backward = names(captured(function, layer=linear, trained=True), Phase.BACKWARD)
    assert backward.count("add_") == 1
    assert backward.count("add") == 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda m, x: x * float(x.cpu().numpy().mean()), ["_local_scalar_dense", "mul"]),
        (lambda m, x: x * x.sum(0).tolist()[0], ["sum", "_local_scalar_dense", "mul"]),
        (lambda m, x: x * 2 if torch.equal(x, x) else x, ["equal", "mul"]),
        (
            lambda m, x: x * torch.bincount(x.argmax(-1), minlength=512),
            ["argmax", "bincount", "mul"],
        ),
        (
            lambda m, x: torch.view_as_real(torch.view_as_complex(x.view(512, -1, 2)) * 2),
            ["mul"],
        ),
        (lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x)), ["_fft_r2c", "_fft_c2r"]),
    ],
)
def test_what_is_read_of_a_tensor_is_taken_to_be_usual(function: Any, expected: Any) -> None:
    assert names(captured(function, 512, 512))[-len(expected) :] == expected


def test_lazy_layers_are_made_first() -> None:
    assert names(captured(lambda m, x: m.layer(x), layer=lambda: nn.LazyLinear(64))) == ["addmm"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Using `torch.compile")
def test_a_compiled_model_is_captured_as_if_it_was_not() -> None:
    layer = lambda: torch.compile(nn.Sequential(linear(), nn.ReLU()))  # noqa: E731
    assert names(captured(lambda m, x: m.layer(x), layer=layer)) == ["addmm", "relu"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda m, x: torch.nonzero(x),
            "nonzero.default gives depends on values; a CPU profile",
        ),
        (lambda m, x: x[x > 0], "aten.index.Tensor gives depends on values"),
        (lambda m, x: torch.unique(x), "_unique2"),
        (lambda m, x: x.no_such_thing(), r"AttributeError: .*no_such_thing"),
        (lambda m, x: m.layer(x[:, :3]), r"could not be run without values \(RuntimeError"),
    ],
)
def test_what_can_not_be_captured_is_refused_with_the_reason(function: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        captured(function, 512, 1024, layer=linear)


def test_a_workload_that_can_not_be_made_is_refused() -> None:
    def make() -> Any:
        raise ValueError("no such size")

    with pytest.raises(CaptureError, match=r"could not be made .*no such size"):
        capture_step(make)
