"""A step is captured without computing it, and its operators are those that a GPU launches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import OptionError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from torchtraceap.lab.prediction.capture import (  # noqa: E402
    Capture,
    Phase,
    TensorInfo,
    capture_step,
)
from torchtraceap.lab.prediction.lowering import (  # noqa: E402
    LaunchingOp,
    Libraries,
    launching_ops,
    op_call,
    op_times,
)
from torchtraceap.lab.workloads.workload import check_workload, find_workload  # noqa: E402


def captured(model: Callable[[], Any], *inputs: Any, **more: Any) -> Capture:
    """The step of a model; inputs are made by functions, inside the capture."""

    def make() -> dict[str, Any]:
        return {"model": model(), "inputs": tuple(each() for each in inputs), **more}

    return capture_step(make)


def names(capture: Capture, phase: Phase = Phase.FORWARD) -> list[str]:
    ops = launching_ops(capture)
    return [op.name.removeprefix("aten::") for op in ops if op.phase is phase]


def half(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape, dtype=torch.bfloat16)


class Calls(nn.Module):
    """A model of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


# ------------------------------------------------------------------------------- what launches


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.transpose(-1, -2).contiguous(), ["copy_"]),
        (lambda x: x.view(-1)[2:].expand(3, -1), []),
        (lambda x: x.float(), ["copy_"]),
        (lambda x: x + torch.zeros_like(x), ["fill_", "add"]),
        (lambda x: 1 - x, ["sub"]),
        (lambda x: x.masked_fill(x > 0, 0.0), ["gt", "copy_", "masked_fill_"]),
        (lambda x: torch.stack([x, x]), ["cat"]),
        (lambda x: functional.softmax(x, -1), ["_softmax"]),
        (lambda x: functional.layer_norm(x, x.shape[-1:]), ["native_layer_norm"]),
        (lambda x: x.repeat(2, 1), ["copy_"]),
        (lambda x: functional.dropout(x, 0.1, training=True), ["native_dropout"]),
        (lambda x: functional.dropout(x, 0.1, training=False), []),
    ],
)
def test_the_innermost_operator_is_named(function: Any, expected: list[str]) -> None:
    assert names(captured(lambda: Calls(function), half(512, 1024))) == expected


def test_a_convolution_adds_its_bias_by_channel() -> None:
    capture = captured(lambda: nn.Conv2d(3, 64, 7), lambda: torch.randn(8, 3, 64, 64))
    for library in ("cudnn", "miopen"):
        convolution, bias = launching_ops(capture, Libraries(convolution=library))
        assert convolution.name == f"aten::{library}_convolution"
        assert [tensor.shape for tensor in convolution.tensors] == [(8, 3, 64, 64), (64, 3, 7, 7)]
        assert bias.name == "aten::add_"
        assert [tensor.shape for tensor in bias.tensors] == [(8, 64, 58, 58), (1, 64, 1, 1)]


def lowered_names(made: Capture, libraries: Libraries) -> list[str]:
    return [op.name.removeprefix("aten::") for op in launching_ops(made, libraries)]


CUDNN, MIOPEN = Libraries("cudnn"), Libraries("miopen")


def image(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


def test_depthwise_convolutions_are_atens_where_channels_lie_apart() -> None:
    def model() -> nn.Module:
        return nn.Conv2d(64, 64, 3, groups=64)

    made = captured(model, image(2, 64, 16, 16))
    assert lowered_names(made, CUDNN) == ["_conv_depthwise2d"]  # which adds the bias itself
    assert lowered_names(made, MIOPEN) == ["miopen_depthwise_convolution", "add_"]
    together = captured(
        model, lambda: torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last)
    )
    assert lowered_names(together, CUDNN) == ["cudnn_convolution", "add_"]


def test_convolutions_of_one_dimension_are_of_two() -> None:
    first, *_ = launching_ops(captured(lambda: nn.Conv1d(8, 16, 3), image(2, 8, 32)))
    assert [tensor.shape for tensor in first.tensors] == [(2, 8, 1, 32), (16, 8, 1, 3)]
    (out,) = first.outputs
    assert isinstance(out, TensorInfo) and out.shape == (2, 16, 1, 30)


def test_batch_norms_go_to_the_library_that_takes_their_types() -> None:
    single = captured(lambda: nn.BatchNorm2d(8), image(2, 8, 4, 4))
    assert lowered_names(single, CUDNN)[-1] == "cudnn_batch_norm"
    assert lowered_names(single, MIOPEN)[-1] == "miopen_batch_norm"
    bare = captured(lambda: nn.BatchNorm2d(8, affine=False), image(2, 8, 4, 4))
    assert lowered_names(bare, CUDNN)[-1] == "native_batch_norm"
    halves = captured(lambda: nn.BatchNorm2d(8).to(torch.bfloat16), half(2, 8, 4, 4))
    assert lowered_names(halves, CUDNN)[-1] == "native_batch_norm"


def test_amd_fills_a_counter_of_causal_attention() -> None:
    def causal(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(4, 128, 8, 64).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    made = captured(lambda: Calls(causal), half(4, 128, 512))
    assert lowered_names(made, CUDNN) == ["_flash_attention_forward"]
    assert lowered_names(made, MIOPEN) == ["_flash_attention_forward", "fill_"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: functional.mse_loss(x, x), ["mse_loss", "mean"]),
        (lambda x: functional.mse_loss(x, x, reduction="none"), ["mse_loss"]),
        (
            lambda x: functional.binary_cross_entropy_with_logits(x, x),
            ["log_sigmoid_forward", "sub", "mul_", "sub_", "mean"],
        ),
        (lambda x: x.sort(-1), ["arange", "copy_", "copy_", "sort"]),
        (lambda x: functional.pad(x, (1, 1)), ["fill_", "copy_"]),
        (lambda x: x[:0] + 1, []),
    ],
)
def test_operators_that_call_others_launch_in_these(function: Any, expected: list[str]) -> None:
    assert names(captured(lambda: Calls(function), image(64, 128))) == expected


def test_an_embedding_selects_rows() -> None:
    made = captured(lambda: nn.Embedding(100_000, 64), lambda: torch.zeros(4, 7, dtype=torch.long))
    (lookup,) = launching_ops(made)
    assert lookup.name == "aten::index_select"
    assert [tensor.shape for tensor in lookup.tensors] == [(100_000, 64), (28,)]


def attends(mask: bool = False) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(4, 128, 8, 64).transpose(1, 2)
        given = torch.ones(128, 128, dtype=torch.bool).tril() if mask else None
        return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=given)

    return function


def test_attention_is_what_a_gpu_takes() -> None:
    (flash,) = launching_ops(captured(lambda: Calls(attends()), half(4, 128, 512)))
    assert flash.name == "aten::_flash_attention_forward"
    assert [tensor.shape for tensor in flash.tensors] == [(4, 128, 8, 64)] * 3
    assert all(isinstance(out, TensorInfo) and out.is_contiguous for out in flash.outputs)
    in_fp32 = captured(lambda: Calls(attends()), lambda: torch.randn(4, 128, 512))
    assert names(in_fp32) == ["_efficient_attention_forward"]
    masked = captured(lambda: Calls(attends(mask=True)), half(4, 128, 512))
    assert names(masked)[-1] == "_efficient_attention_forward"


def test_attention_inside_of_torch_is_whole_too() -> None:
    trained = captured(
        lambda: nn.TransformerEncoderLayer(512, 8, batch_first=True).to(torch.bfloat16),
        half(2, 64, 512),
        loss=lambda out: out.float().sum(),
    )
    assert names(trained).count("_flash_attention_forward") == 1
    assert names(trained, Phase.BACKWARD).count("_flash_attention_backward") == 1


def test_the_call_of_another_program_is_not_changed() -> None:
    query = torch.randn(1, 2, 8, 16)
    before = functional.scaled_dot_product_attention(query, query, query)
    captured(lambda: Calls(attends()), half(4, 128, 512))
    torch.testing.assert_close(functional.scaled_dot_product_attention(query, query, query), before)
    assert not functional.dropout(torch.ones(1000), 0.5, training=True).all()


# ------------------------------------------------------------------------------- a training step


def trained(optimizer: Callable[[Any], Any] | None = None) -> Capture:
    return captured(
        lambda: nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
        lambda: torch.randn(256, 512),
        loss=lambda out: functional.cross_entropy(out, torch.zeros(256, dtype=torch.long)),
        optimizer=optimizer,
    )


def test_a_step_is_forward_backward_and_optimizer() -> None:
    capture = trained(torch.optim.AdamW)
    backward = Counter(names(capture, Phase.BACKWARD))
    assert backward["mm"] == 3  # both weights, one input
    assert backward["threshold_backward"] == 1
    update = names(capture, Phase.OPTIMIZER)
    assert update == [
        "_foreach_mul_",
        "_foreach_lerp_",
        "_foreach_mul_",
        "_foreach_addcmul_",
        "_foreach_sqrt",
        "_foreach_div_",
        "_foreach_add_",
        "_foreach_addcdiv_",
    ]
    sgd = trained(lambda parameters: torch.optim.SGD(parameters, 0.1))
    assert names(sgd, Phase.OPTIMIZER) == ["_foreach_add_"]
    alone = trained(lambda parameters: torch.optim.SGD(parameters, 0.1, foreach=False))
    assert names(alone, Phase.OPTIMIZER) == ["add_"] * 4
    assert names(trained(), Phase.OPTIMIZER) == []


def test_what_an_optimizer_counts_stays_on_the_host() -> None:
    calls = [call for call in trained(torch.optim.AdamW).calls if call.on_host]
    assert {call.name for call in calls} == {"aten::_foreach_add_", "aten::_local_scalar_dense"}
    capturable = trained(lambda parameters: torch.optim.AdamW(parameters, fused=True))
    assert names(capturable, Phase.OPTIMIZER) == ["_foreach_add_", "_fused_adamw_"]


def test_calls_know_the_modules_around_them() -> None:
    first = next(op for op in launching_ops(trained()) if op.name == "aten::addmm")
    assert first.modules == ("Sequential", "Linear")


# ------------------------------------------------------------------------------- durations


def test_an_operator_takes_what_the_same_call_of_a_trace_takes() -> None:
    ops = launching_ops(captured(lambda: nn.Linear(4096, 4096).half(), half(512, 4096)))
    (time,) = op_times(ops, "H100 SXM")
    asked = ttap.durations.op_ns(op_call(ops[0]), "H100 SXM")
    assert asked == time.estimate
    product = ttap.durations.gemm_ns(512, 4096, 4096, "fp16", "H100 SXM")
    assert product is not None
    assert time.is_known
    assert time.estimate.ns == product.ns


def test_every_operator_of_a_training_step_has_a_time() -> None:
    model = Encoder(layers=1)
    capture = captured(
        lambda: model.to(torch.bfloat16),
        half(4, 3, 224, 224),
        loss=lambda out: out.float().square().mean(),
        optimizer=torch.optim.AdamW,
    )
    for device in ("A100 SXM 80GB", "H100 SXM", "MI300X"):
        ops = launching_ops(capture)
        times = op_times(ops, device)
        assert all(0 < t.estimate.low_ns <= t.estimate.ns <= t.estimate.high_ns for t in times)
        known = sum(t.estimate.ns for t in times if t.is_known)
        assert known > 0.9 * sum(t.estimate.ns for t in times)


def test_what_no_model_knows_is_said_to_be_assumed() -> None:
    (op,) = launching_ops(
        captured(lambda: Calls(lambda x: torch.logcumsumexp(x, 0)), half(512, 512))
    )
    for name, is_known in ((op.name, None), ("mylib::unheard_of", False)):
        (time,) = op_times([replace(op, name=name)], "H100 SXM")
        if is_known is not None:
            assert time.is_known == is_known
            assert time.estimate.high_ns == 16 * time.estimate.low_ns
            assert "no model knows mylib::unheard_of" in time.estimate.source
    with pytest.raises(ttap.durations.UnknownDurationError):
        op_times([op], "no such GPU")


# ------------------------------------------------------------------------------- values


def test_what_is_small_has_values() -> None:
    seen: list[Any] = []

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append((bool(mask.all()), mask.sum().item()))
        return x * 2 if mask.all() else x

    def mask() -> torch.Tensor:
        return torch.tensor([1, 0, 1])

    capture = captured(lambda: Calls(function), half(512, 1024), mask)
    assert seen == [(False, 2)]
    assert capture.notes == ()


def test_a_value_of_what_is_large_is_said_to_be_assumed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.mean())

    capture = captured(lambda: Calls(function), half(512, 1024))
    assert names(capture)[-1] == "mul"
    (note,) = capture.notes
    assert "taken to be 1 or true" in note


def test_a_model_larger_than_memory_is_captured() -> None:
    capture = captured(lambda: nn.Linear(1 << 18, 1 << 18), lambda: torch.randn(8, 1 << 18))
    assert names(capture) == ["addmm"]


def test_a_model_may_be_converted() -> None:
    assert names(captured(lambda: nn.Linear(512, 512).half(), half(256, 512))) == ["addmm"]


def test_a_copied_layer_may_be_converted() -> None:
    def made() -> dict[str, Any]:
        layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        inputs = (torch.randn(4, 64, 512, dtype=torch.bfloat16),)
        return {"model": model.to(torch.bfloat16), "inputs": inputs}

    ops = launching_ops(capture_step(made))
    assert sum(op.name in ("aten::addmm", "aten::mm") for op in ops) == 2 * 4
    assert {tensor.dtype.name for op in ops for tensor in op.tensors} == {"bfloat16"}


def test_calls_of_the_backward_pass_know_their_node() -> None:
    calls = trained().calls
    forward = [call for call in calls if call.name == "aten::addmm"]
    backward = [call for call in calls if call.node == "AddmmBackward0"]
    assert {call.name for call in backward} >= {"aten::mm", "aten::sum"}
    assert {call.sequence for call in backward} == {call.sequence for call in forward}
    assert not any(call.node for call in calls if call.phase is not Phase.BACKWARD)


def test_memory_of_a_step_comes_and_goes() -> None:
    held = trained(torch.optim.AdamW).storages
    assert held is not None
    sizes = [4 * elements for elements in (512 * 512, 512, 10 * 512, 10)]
    assert sorted(held.bytes[each] for each in held.parameters) == sorted(sizes)
    assert sorted(held.bytes[each] for each in held.gradients) == sorted(sizes)
    assert sorted(held.bytes[each] for each in held.optimizer) == sorted(2 * sizes)
    gone = [storage for _, storage in held.freed]
    assert len(gone) == len(set(gone))
    assert not held.parameters & set(gone)
    assert set(held.at_begin) >= held.parameters | held.optimizer
    hidden = 4 * 256 * 512
    assert sum(held.bytes[each] == hidden for each in gone) >= 3  # two activations, a gradient


def test_shapes_that_depend_on_values_are_computed() -> None:
    capture = captured(lambda: Calls(lambda x: x[x > 0]), half(512, 1024))
    index = next(call for call in capture.calls if call.name == "aten::index")
    assert index.output is not None
    assert 200_000 < index.output.elements < 320_000  # half of them


# ------------------------------------------------------------------------------- workloads


def test_a_workload_is_found_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def small():\n    return 1\n\nOTHER = 2\n")
    assert find_workload(f"{file}:small")() == 1
    for source, message in (
        ("mine", "FILE.py:FUNCTION"),
        (f"{file}:large", "has no function 'large'. It has small"),
        (f"{file}:OTHER", "has no function"),
        (f"{tmp_path}/none.py:small", "no such file"),
        ("no_such_package:small", "no module 'no_such_package'"),
    ):
        with pytest.raises(OptionError, match=message):
            find_workload(source)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", r"m\.py:1: can't be imported \(SyntaxError: invalid syntax"),
        ("x = 1\nimport no_such_module", r"m\.py:2: can't be imported \(ModuleNotFoundError: No"),
        ("raise SystemExit(3)", r"m\.py:1: can't be imported \(SystemExit: 3\)"),
        ("\n\n1 / 0", r"m\.py:3: can't be imported \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_a_file_that_can_not_be_imported_is_told_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "m.py"
    path.write_text(text)
    with pytest.raises(OptionError, match=said):
        find_workload(f"{path}:f")


def test_a_module_that_is_missing_is_told_from_one_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_another.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OptionError, match=r"there is no module 'no_such_package\.sub'"):
        find_workload("no_such_package.sub:f")
    with pytest.raises(OptionError, match="imports_another: can't be imported"):
        find_workload("imports_another:f")


def test_a_workload_is_checked() -> None:
    model, inputs = nn.Linear(1, 1), (torch.ones(1),)
    for made, message in (
        (3, "returns a dict"),
        ({"model": model}, "model, inputs, loss and optimizer, not model"),
        ({"model": model, "inputs": inputs, "losses": 1}, "not model, inputs, losses"),
        ({"model": print, "inputs": inputs}, "torch.nn.Module"),
        ({"model": model, "inputs": 3}, "a tuple or a dict, not int"),
        ({"model": model, "inputs": inputs, "loss": 3}, "loss is a function"),
        ({"model": model, "inputs": inputs, "optimizer": print}, "needs a loss"),
    ):
        with pytest.raises(OptionError, match=message):
            check_workload(made)
    workload = check_workload({"model": model, "inputs": {"input": torch.ones(1)}})
    assert workload.forward().shape == (1,)


# ------------------------------------------------------------------------------- a real trace


class Encoder(nn.Module):
    """A vision transformer as the trace has it: base size, patches of 16, with a pooler."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.pooler = nn.Linear(width, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.pooler(self.norm(x)[:, 0]))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        heads = [
            each(normed).view(*x.shape[:2], 12, 64).permute(0, 2, 1, 3)
            for each in (self.key, self.value, self.query)
        ]
        found = functional.scaled_dot_product_attention(heads[2], heads[0], heads[1])
        x = self.joined(found.permute(0, 2, 1, 3).reshape(x.shape)) + x
        return self.down(functional.gelu(self.up(self.after(x)))) + x


def recorded_ops(path: Path) -> list[tuple[str, list[Any]]]:
    """Innermost operators above launches, in the order of the host, and shapes of their tensors."""
    part = ttap.load(path).ranks[0]
    table, tree = part.table, part.tree
    calls = tree.launch[tree.gpu_rows].astype(np.int64)
    rows = np.unique(tree.op[calls[calls < len(table)]])
    rows = rows[rows != _core.NO_ROW].astype(np.int64)
    rows = rows[np.argsort(table.ts_ns[rows], kind="stable")]
    codes, texts = table.text_codes("Input Dims", rows=rows)
    shapes = [[each for each in json.loads(texts[code]) if each] for code in codes.tolist()]
    return list(zip((table.name_of(int(row)) for row in rows), shapes, strict=True))


def shapes_of(op: LaunchingOp) -> list[Any]:
    found: list[Any] = []
    for value in op.inputs:
        if isinstance(value, TensorInfo):
            found.append(list(value.shape))
        elif isinstance(value, tuple) and value and isinstance(value[0], TensorInfo):
            found.append([list(each.shape) for each in value if isinstance(each, TensorInfo)])
    return found


def test_the_operators_of_a_trace_from_an_h100_come_out() -> None:
    path = CORPUS / "tracelens" / "h100" / "vit_nsfw_inference.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}; set TORCHTRACEAP_CORPUS")
    recorded = recorded_ops(path)
    capture = captured(lambda: Encoder().to(torch.bfloat16), half(4, 3, 224, 224))
    assert [(op.name, shapes_of(op)) for op in launching_ops(capture)] == recorded
