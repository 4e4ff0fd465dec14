"""Programs that are written for a GPU, or ask for values, are captured or refused with a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from torchtraceap.lab.prediction.capture import Capture, CaptureError, Phase, capture_step  # noqa: E402
from torchtraceap.lab.prediction.lowering import launching_ops  # noqa: E402


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


def test_packed_sequences_have_the_lengths_that_were_given() -> None:
    def function(model: Program, x: torch.Tensor) -> Any:
        lengths = torch.tensor([30, 20, 10, 5])
        packed = nn.utils.rnn.pack_padded_sequence(x * model.scale, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(model.layer(packed)[0])[0]  # type: ignore[misc]

    capture = captured(function, 4, 30, 256, layer=lambda: nn.LSTM(256, 128), trained=True)
    layer = next(op for op in launching_ops(capture) if op.name == "aten::_cudnn_rnn")
    assert layer.tensors[0].shape == (65, 256)
    assert not capture.notes


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
        (lambda m, x: x * float(x.cpu().numpy().mean()), ["copy_", "mul"]),
        (lambda m, x: x * float(x.numpy().mean()), ["_local_scalar_dense", "mul"]),
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_captured_as_if_it_was_not() -> None:
    def function(model: Program, x: torch.Tensor) -> Any:
        @torch.compile(fullgraph=True)
        def doubled(y: torch.Tensor) -> torch.Tensor:
            return y * 2

        return doubled(model.layer(x))  # type: ignore[misc]

    layer = lambda: torch.compile(nn.Sequential(linear(), nn.ReLU()))  # noqa: E731
    capture = captured(function, layer=layer)
    assert names(capture) == ["addmm", "relu", "mul"]
    assert capture.notes == ("what torch.compile compiles is captured as if it was not compiled",)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_was_compiled_before_is_captured_too() -> None:
    compiled = torch.compile(nn.Sequential(linear(), nn.ReLU()))
    made = {"model": compiled, "inputs": (torch.randn(256, 512),)}
    assert names(capture_step(lambda: made)) == ["addmm", "relu"]


def note_of(capture: Capture) -> str:
    return next(note for note in capture.notes if "values" in note and "computed here" in note)


@pytest.mark.parametrize(
    ("function", "expected", "asked"),
    [
        (lambda m, x: x[torch.nonzero(torch.ones(512))[:, 0]], ["nonzero", "index"], None),
        (lambda m, x: x[x > 0], ["gt", "index"], "how much aten.index.Tensor gives"),
        (lambda m, x: torch.masked_select(x, x > 0), ["gt", "masked_select"], "masked_select"),
        (lambda m, x: torch.unique(x), ["_unique2"], "_unique2"),
        (lambda m, x: x * 2 if x.sum() == 7 else x + 2, ["add"], "a condition at test_captured"),
    ],
    ids=["small", "mask", "selected", "unique", "condition"],
)
def test_a_step_that_values_decide_on_is_computed(
    function: Any, expected: list[str], asked: str | None
) -> None:
    capture = captured(function, 512, 1024)
    assert names(capture)[-len(expected) :] == expected
    if asked is None:
        assert not capture.notes
    else:
        assert asked in note_of(capture)
        assert note_of(capture).endswith("it was computed here")


def rows_of_mask(capture: Capture) -> int:
    op = next(op for op in launching_ops(capture) if op.name == "aten::mm")
    return op.tensors[0].shape[0]


def masked(model: Program, x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0] > 0 * model.scale] @ torch.ones(512, 512)


def test_what_is_too_large_to_compute_is_as_large_as_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 400 < rows_of_mask(captured(masked, 1024, 512)) < 624  # half of them
    monkeypatch.setattr("torchtraceap.lab.prediction.capture.dispatch._MOST_BYTES", 0)
    capture = captured(masked, 1024, 512)
    assert rows_of_mask(capture) == 1024
    assert "sizes to be as large as can be" in note_of(capture)
    assert "too large" in note_of(capture)


def shrinks(model: Program, x: torch.Tensor) -> torch.Tensor:
    while x.norm() > 100:
        x = model.layer(x) / 10  # type: ignore[misc]
    return x


def test_a_loop_that_values_end_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = names(captured(shrinks, layer=linear)).count("addmm")
    assert 1 <= rounds < 5
    monkeypatch.setattr("torchtraceap.lab.prediction.capture.dispatch._MOST_WORK", 1e5)
    capture = captured(shrinks, layer=linear)
    assert names(capture).count("addmm") > rounds
    assert "it computes more than" in note_of(capture)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_what_is_written_down_whole_is_computed_too(kind: Any) -> None:
    """Attention and recurrent layers give what they give without a capture."""
    torch.manual_seed(0)
    cells, attention = kind(64, 64, batch_first=True), nn.MultiheadAttention(64, 4)
    x = torch.randn(8, 16, 64)
    seen: list[torch.Tensor] = []

    def function(model: Program, x: torch.Tensor) -> torch.Tensor:
        y = attention(cells(x)[0], x, x, need_weights=False)[0]
        seen.append(y.detach())
        return y[y > 0] * model.scale + y.sum()

    def make() -> dict[str, Any]:
        return {
            "model": Program(function, nn.ModuleList([cells, attention])),
            "inputs": (x,),
            "loss": lambda out: out.mean(),
        }

    before = [parameter.detach().clone() for parameter in cells.parameters()]
    found = names(capture_step(make))
    assert "_cudnn_rnn" in found
    assert any("attention" in name for name in found)
    expected = attention(cells(x)[0], x, x, need_weights=False)[0]
    torch.testing.assert_close(seen[-1], expected)
    torch.testing.assert_close(list(cells.parameters()), before)


def test_a_model_is_afterwards_what_it_was_before() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    held = list(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = {"model": model, "inputs": (torch.randn(4, 8),), "loss": lambda out: out.sum()}
    capture = capture_step(lambda: {**made, "optimizer": torch.optim.SGD})
    assert capture.calls
    torch.testing.assert_close(dict(model.state_dict()), before)
    assert all(one is other for one, other in zip(model.parameters(), held, strict=True))
    assert not model.training
    assert all(parameter.grad is None for parameter in held)


def test_a_loss_may_hold_parameters() -> None:
    def make() -> dict[str, Any]:
        model = nn.Linear(8, 8)
        held = list(model.parameters())
        optimizer = torch.optim.SGD(held, 0.1)
        return {
            "model": model,
            "inputs": (torch.randn(4, 8),),
            "loss": lambda out: out.mean() + sum(each.square().sum() for each in held),
            "optimizer": lambda _: optimizer,
        }

    assert names(capture_step(make), Phase.OPTIMIZER)[-1] == "_foreach_add_"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda m, x: x.no_such_thing(),
            r"could not be run \(AttributeError: .*no_such_thing.*, at test_captured_programs.py:",
        ),
        (lambda m, x: m.layer(x[:, :3]), r"could not be run \(RuntimeError: .*, at test_captured"),
    ],
)
def test_what_can_not_be_captured_is_refused_with_the_reason(function: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        captured(function, 512, 1024, layer=linear)


def without_values(model: Program, x: torch.Tensor) -> torch.Tensor:
    if isinstance(x, torch._subclasses.FakeTensor):
        raise RuntimeError("no address")
    return model.layer(x)  # type: ignore[misc]


def test_what_can_not_be_run_without_values_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(without_values, 512, 512, layer=linear)
    assert names(capture) == ["addmm"]
    assert "no address" in note_of(capture)
    monkeypatch.setattr("torchtraceap.lab.prediction.capture.dispatch._MOST_BYTES", 0)
    with pytest.raises(CaptureError, match=r"no address.*it is too large; .*a profile of that"):
        captured(without_values, 512, 512, layer=linear)


# ------------------------------------------------------------------------------- as on a GPU


def on_gpu_alone(model: Program, x: torch.Tensor) -> torch.Tensor:
    assert torch.cuda.is_available()
    assert torch.cuda.get_device_capability() >= (8, 0)
    assert x.is_cuda
    assert x.device.type == "cuda"
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.nvtx.range_push("layer")
    with torch.cuda.device(0), torch.device("cuda"):
        y = model.layer(x) + torch.ones(512)  # type: ignore[misc]
    assert torch.cuda.max_memory_allocated() / start.elapsed_time(end) >= 0
    return y + torch.zeros(512, device=x.device)


def test_a_program_finds_a_gpu() -> None:
    capture = captured(on_gpu_alone, layer=lambda: linear().to(torch.device("cuda")))
    assert names(capture) == ["addmm", "fill_", "add", "fill_", "add"]
    assert not torch.ones(1).is_cuda


class Scaled:
    """A step of an optimiser with scaled gradients."""

    def __init__(self, scaler: Any, parameters: Any) -> None:
        self.scaler, self.optimizer = scaler, torch.optim.SGD(parameters, 0.1)

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def test_gradients_are_scaled_as_on_a_gpu() -> None:
    def make() -> dict[str, Any]:
        scaler = torch.amp.GradScaler("cuda")
        return {
            "model": Program(mixed, linear()),
            "inputs": (torch.randn(256, 512),),
            "loss": lambda out: scaler.scale(out.mean()),
            "optimizer": lambda parameters: Scaled(scaler, parameters),
        }

    updates = names(capture_step(make), Phase.OPTIMIZER)
    assert "_amp_foreach_non_finite_check_and_unscale_" in updates
    assert updates.index("_foreach_add_") < updates.index("_amp_update_scale_")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_are_inputs(workers: int) -> None:
    def make() -> dict[str, Any]:
        data = torch.utils.data.TensorDataset(torch.randn(4096, 64))
        loader = torch.utils.data.DataLoader(
            data, 256, shuffle=True, num_workers=workers, pin_memory=True,
            persistent_workers=workers > 0,
        )  # fmt: skip
        return {"model": nn.Linear(64, 64), "inputs": next(iter(loader))}

    (op,) = launching_ops(capture_step(make))
    assert op.tensors[1].shape == (256, 64)


def test_a_workload_that_can_not_be_made_is_refused() -> None:
    def make() -> Any:
        raise ValueError("no such size")

    with pytest.raises(CaptureError, match=r"could not be made .*no such size"):
        capture_step(make)


def test_an_optimiser_that_lets_go_of_gradients_has_some_to_update_with() -> None:
    class Resets(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            self.zero_grad()
            return found

    def updates(optimizer: Any) -> list[str]:
        capture = captured_as(optimizer)
        return [op.name for op in launching_ops(capture) if op.phase is Phase.OPTIMIZER]

    def captured_as(optimizer: Any) -> Any:
        return capture_step(
            lambda: {
                "model": torch.nn.Linear(8, 8),
                "inputs": (torch.randn(2, 8),),
                "loss": lambda out: out.sum(),
                "optimizer": optimizer,
            }
        )

    assert updates(Resets) == updates(torch.optim.SGD) == ["aten::_foreach_add_"]


def test_a_model_on_the_meta_device_is_captured() -> None:
    def workload(device: str, inputs: str) -> dict[str, Any]:
        with torch.device(device):
            layers = nn.Sequential(nn.Linear(512, 2048), nn.BatchNorm1d(2048), nn.Linear(2048, 8))
            layers[2].bias = layers[2].bias
        return {
            "model": layers,
            "inputs": (torch.randn(64, 512, device=inputs),),
            "loss": lambda out: out.square().mean(),
            "optimizer": torch.optim.AdamW,
        }

    expected = capture_step(lambda: workload("cpu", "cpu"))
    for device, inputs in (("meta", "cpu"), ("meta", "meta")):
        found = capture_step(lambda device=device, inputs=inputs: workload(device, inputs))  # type: ignore[misc]
        assert [call.name for call in found.calls] == [call.name for call in expected.calls]
        assert [each.output for each in found.calls if each.output][-1].shape == (
            [each.output for each in expected.calls if each.output][-1].shape
        )
    with torch.device("meta"):
        model = nn.Linear(512, 64)
    capture_step(lambda: {"model": model, "inputs": (torch.randn(4, 512),)})
    assert model.weight.device.type == "meta"  # it gets its own parameters back


def test_no_clock_decides_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is a thousand times slower captures the same."""
    first = captured(shrinks, layer=linear)
    clocks = iter(range(0, 10**9, 1000))
    for name in ("monotonic", "time", "perf_counter"):
        monkeypatch.setattr(f"time.{name}", lambda: float(next(clocks)))
    assert names(captured(shrinks, layer=linear)) == names(first)


def test_torch_logs_no_errors_of_tensors_without_values() -> None:
    """torch logs what fails before it raises it; the capture's error is enough."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        with pytest.raises(CaptureError, match="could not be run"):
            captured(lambda _, x: torch.topk(x, 9_999), 1024, 512)
        assert not heard
        with FakeTensorMode(), pytest.raises(RuntimeError):
            torch.topk(torch.randn(1024, 512), 9_999)
        assert heard  # outside of a capture it says so as ever
    finally:
        log.removeHandler(handler)
