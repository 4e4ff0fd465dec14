"""Replay: operators recorded on the CPU run again with the same shapes; no text is evaluated."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap
from torchtraceap.compat.replay import find_replayable, replay, replay_script
from torchtraceap.compat.replay.call import NotReplayableError, call_from_texts
from torchtraceap.compat.replay.fills import (
    DTYPE_NUMBERS,
    dtype_in_kernel_name,
    dtype_of_cpp_name,
)
from torchtraceap.errors import MissingDependencyError, OptionError

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(scope="session")
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torch", reason="torch is not installed")
    module.set_num_threads(1)
    return module


Record = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def record(torch: Any, tmp_path: Path) -> Record:
    """Runs a function under the profiler and loads the trace."""

    def run(work: Callable[[], Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            activities = [torch.profiler.ProfilerActivity.CPU]
            with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
                work()
            path = tmp_path / "recorded.json"
            profiler.export_chrome_trace(str(path))
        return torchtraceap.load(path)

    return run


def tensors_in(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [tensor for inner in value for tensor in tensors_in(inner)]
    return [value] if hasattr(value, "stride") else []


def run_script(script: str, folder: Path) -> Any:
    path = folder / "reproducer.py"
    path.write_text(script, encoding="utf-8")
    arguments, sys.argv = sys.argv, ["reproducer.py"]
    try:
        return runpy.run_path(str(path))
    finally:
        sys.argv = arguments


# -- many operators: what comes out has the shape that came out of the recorded call -----------


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e8m0fnu",
]


Prepare = Callable[[Any], Callable[[], Any]]
"""Takes torch, prepares inputs and gives the call."""


def simple(op: str, *shapes: Any, **options: Any) -> Prepare:
    def prepare(torch: Any) -> Callable[[], Any]:
        function: Any = torch
        for part in op.split("."):
            function = getattr(function, part)
        inputs = [torch.randn(*s) if isinstance(s, tuple) else s for s in shapes]
        return lambda: function(*inputs, **options)

    return prepare


def with_indices(call: Callable[[Any, Any], Any], high: int, *shape: int) -> Any:
    def prepare(torch: Any) -> Callable[[], Any]:
        indices = torch.randint(0, high, shape)
        return lambda: call(torch, indices)

    return prepare


def on_ones(call: Callable[[Any, Any], Any]) -> Prepare:
    def prepare(torch: Any) -> Callable[[], Any]:
        ones = torch.ones(4, 8)
        return lambda: call(torch, ones)

    return prepare


def fused_adam(torch: Any) -> Callable[[], Any]:
    weights = [torch.randn(3, 4, requires_grad=True), torch.randn(5, requires_grad=True)]
    optimizer = torch.optim.Adam(weights, fused=True)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return lambda: optimizer.step()


def strided(torch: Any) -> Callable[[], Any]:
    a = torch.randn(6, 10)[::2, 1:9:3]
    b = torch.randn(4, 3).t()
    return lambda: (torch.add(a, b[:, :3])).sum()


def channels_last(torch: Any) -> Callable[[], Any]:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3)
    return lambda: torch.conv2d(x, weight, stride=2, padding=1)


def out_variant(torch: Any) -> Callable[[], Any]:
    a, b, out = torch.randn(4, 5), torch.randn(5, 6), torch.empty(4, 6)
    return lambda: torch.mm(a, b, out=out)


def pool_backward(torch: Any) -> Callable[[], Any]:
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    return lambda: torch.nn.functional.max_pool2d(x, 2).sum().backward()


def conv_backward(torch: Any) -> Callable[[], Any]:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    layer = torch.nn.Conv2d(3, 4, 3)
    return lambda: layer(x).sum().backward()


def embedding_backward(torch: Any) -> Callable[[], Any]:
    layer, indices = torch.nn.Embedding(10, 4), torch.randint(0, 10, (3, 5))
    return lambda: layer(indices).sum().backward()


def embedding_bag(torch: Any) -> Callable[[], Any]:
    layer = torch.nn.EmbeddingBag(10, 4, mode="sum")
    indices, offsets = torch.randint(0, 10, (12,)), torch.tensor([0, 3, 3, 7])
    return lambda: layer(indices, offsets)


def where(torch: Any) -> Callable[[], Any]:
    condition, a = torch.randn(4, 8) > 0, torch.randn(4, 8)
    return lambda: torch.where(condition, a, torch.zeros(()))


def lstm(torch: Any) -> Callable[[], Any]:
    layer, x = torch.nn.LSTM(4, 5), torch.ones(2, 3, 4)
    return lambda: layer(x)


def cast(dtype: str) -> Prepare:
    return on_ones(lambda torch, x: x.to(getattr(torch, dtype)))


def typed(dtype: str) -> Prepare:
    def prepare(torch: Any) -> Callable[[], Any]:
        x = torch.ones(4, 8).to(getattr(torch, dtype))
        return lambda: x.clone()

    return prepare


CASES: dict[str, tuple[str, Prepare]] = {
    "mm": ("aten::mm", simple("mm", (4, 5), (5, 6))),
    "mm out": ("aten::mm", out_variant),
    "addmm": ("aten::addmm", simple("addmm", (6,), (4, 5), (5, 6), beta=0.5, alpha=2)),
    "bmm": ("aten::bmm", simple("bmm", (2, 4, 5), (2, 5, 6))),
    "baddbmm": ("aten::baddbmm", simple("baddbmm", (2, 4, 6), (2, 4, 5), (2, 5, 6))),
    "linear": ("aten::linear", simple("nn.functional.linear", (4, 5), (6, 5), (6,))),
    "strided": ("aten::add", strided),
    "expanded": ("aten::sum", lambda torch: torch.randn(1, 8).expand(4, 8).sum),
    "conv2d": ("aten::conv2d", channels_last),
    "convolution": ("aten::convolution", simple("conv1d", (1, 4, 9), (6, 2, 3), groups=2)),
    "convolution_backward": ("aten::convolution_backward", conv_backward),
    "conv_transpose": (
        "aten::convolution",
        simple("conv_transpose2d", (1, 4, 5, 5), (4, 2, 3, 3)),
    ),
    "layer_norm": ("aten::native_layer_norm", simple("layer_norm", (4, 8), [8])),
    "group_norm": ("aten::group_norm", simple("group_norm", (2, 6, 4), 3)),
    "batch_norm": (
        "aten::native_batch_norm",
        simple("nn.functional.batch_norm", (2, 3, 4), (3,), (3,), training=True),
    ),
    "softmax": ("aten::_softmax", simple("softmax", (4, 8), 1)),
    "log_softmax": ("aten::log_softmax", simple("log_softmax", (4, 8), -1)),
    "embedding": (
        "aten::embedding",
        with_indices(
            lambda torch, i: torch.nn.functional.embedding(i, torch.ones(10, 5)), 10, 3, 4
        ),
    ),
    "embedding backward": ("aten::embedding_dense_backward", embedding_backward),
    "embedding_bag": ("aten::_embedding_bag", embedding_bag),
    "index_select": (
        "aten::index_select",
        with_indices(lambda torch, i: torch.ones(4, 8).index_select(1, i), 8, 5),
    ),
    "index_add": (
        "aten::index_add",
        with_indices(lambda torch, i: torch.ones(4, 8).index_add(0, i, torch.ones(5, 8)), 4, 5),
    ),
    "gather": (
        "aten::gather",
        with_indices(lambda torch, i: torch.ones(4, 8).gather(1, i), 8, 4, 3),
    ),
    "scatter_add": (
        "aten::scatter_add",
        with_indices(
            lambda torch, i: torch.ones(4, 8).scatter_add(1, i, torch.ones(4, 3)), 8, 4, 3
        ),
    ),
    "one_hot": (
        "aten::one_hot",
        with_indices(lambda torch, i: torch.nn.functional.one_hot(i, 6), 6, 4),
    ),
    "cross_entropy": (
        "aten::cross_entropy_loss",
        with_indices(
            lambda torch, i: torch.nn.functional.cross_entropy(torch.ones(4, 10), i), 10, 4
        ),
    ),
    "cross_entropy 2d": (
        "aten::nll_loss2d_forward",
        with_indices(
            lambda torch, i: torch.nn.functional.cross_entropy(torch.ones(2, 7, 3, 3), i),
            7,
            2,
            3,
            3,
        ),
    ),
    "bce": (
        "aten::binary_cross_entropy",
        lambda torch: (
            lambda: torch.nn.functional.binary_cross_entropy(torch.full((4,), 0.5), torch.ones(4))
        ),
    ),
    "sdpa": (
        "aten::scaled_dot_product_attention",
        simple(
            "nn.functional.scaled_dot_product_attention",
            (1, 2, 4, 8),
            (1, 2, 6, 8),
            (1, 2, 6, 8),
            is_causal=True,
        ),
    ),
    "max_pool2d": ("aten::max_pool2d", simple("max_pool2d", (1, 3, 8, 8), 2)),
    "max_pool2d backward": ("aten::max_pool2d_with_indices_backward", pool_backward),
    "adaptive pool": (
        "aten::_adaptive_avg_pool2d",
        simple("nn.functional.adaptive_avg_pool2d", (1, 3, 8, 8), 3),
    ),
    "interpolate": (
        "aten::upsample_nearest2d",
        simple("nn.functional.interpolate", (1, 3, 4, 4), scale_factor=2.0),
    ),
    "dropout": ("aten::dropout", simple("dropout", (4, 8), 0.5, True)),
    "where": ("aten::where", where),
    "cat": ("aten::cat", on_ones(lambda torch, a: torch.cat([a, a], 1))),
    "stack": ("aten::stack", on_ones(lambda torch, a: torch.stack([a, a, a]))),
    "sum": ("aten::sum", simple("sum", (4, 8), 1, True)),
    "std": ("aten::std", simple("std", (4, 8), dim=1, correction=2)),
    "fill inf": ("aten::fill_", lambda torch: lambda: torch.empty(3).fill_(float("inf"))),
    "add complex": (
        "aten::add",
        on_ones(lambda torch, a: torch.add(a + 0j, a, alpha=1 - 2j)),
    ),
    "zeros like": ("aten::zeros_like", on_ones(lambda torch, a: torch.zeros_like(a))),
    "random_": ("aten::random_", lambda torch: lambda: torch.empty(4).random_(1, 9)),
    "clamp": ("aten::clamp", simple("clamp", (4, 8), min=0.1)),
    "foreach scalar": (
        "aten::_foreach_mul",
        on_ones(lambda torch, a: torch._foreach_mul([a, a], 2.0)),
    ),
    "foreach list": (
        "aten::_foreach_add",
        on_ones(lambda torch, a: torch._foreach_add([a, a], [a, a])),
    ),
    "foreach scalars": (
        "aten::_foreach_mul",
        on_ones(lambda torch, a: torch._foreach_mul([a, a], [1.0, 2.0])),
    ),
    "fused adam": ("aten::_fused_adam_", fused_adam),
    "lstm": ("aten::lstm", lstm),
    "searchsorted": (
        "aten::searchsorted",
        lambda torch: lambda: torch.searchsorted(torch.arange(5.0), torch.rand(3)),
    ),
    "cholesky": (
        "aten::linalg_cholesky_ex",
        lambda torch: lambda: torch.linalg.cholesky(torch.eye(4)),
    ),
    "to half": ("aten::to", cast("float16")),
    "to float8": ("aten::_to_copy", cast("float8_e4m3fn")),
    "view dtype": ("aten::view", on_ones(lambda torch, a: a.view(torch.int32))),
    **{f"clone {dtype}": ("aten::clone", typed(dtype)) for dtype in DTYPES},
}
"""Operator to replay, and what makes a call in which it occurs."""


def outputs_of(call: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """Shape, strides and type of what comes out of a call."""
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors_in(call())]


def row_of(trace: Any, op: str) -> int:
    names = trace.events()["name"].tolist()
    return names.index(op)


@pytest.mark.parametrize("case", CASES)
def test_replay_gives_what_the_recorded_call_gave(
    case: str, torch: Any, record: Record, tmp_path: Path
) -> None:
    op, prepare = CASES[case]
    torch.manual_seed(1)
    call = prepare(torch)
    seen: list[Any] = []
    trace = record(lambda: seen.append(call()))
    script = replay_script(trace, row_of(trace, op))
    again = run_script(script, tmp_path)["call"]
    again()
    outputs = outputs_of(again)
    # Where the recorded operator itself made the result, its shape and type are known.
    result = tensors_in(seen[0])
    direct = op.split("::")[1] in {"mm", "addmm", "bmm", "baddbmm", "conv2d", "embedding", "cat"}
    direct = direct or op.split("::")[1] in {"index_select", "gather", "where", "stack", "clone"}
    direct = direct or op.split("::")[1] in {"scatter_add", "index_add", "fill_", "lstm"}
    direct = direct or op.split("::")[1] == "zeros_like"
    if direct:
        assert outputs == [(tuple(t.shape), t.stride(), t.dtype) for t in result]


def test_inputs_have_the_recorded_strides(torch: Any, record: Record, tmp_path: Path) -> None:
    a = torch.randn(6, 10)[::2, 1:9:3]
    b = torch.randn(1, 3).expand(3, 3)
    trace = record(lambda: torch.add(a, b))
    made = run_script(replay_script(trace, op="aten::add"), tmp_path)
    assert (made["self"].shape, made["self"].stride()) == (a.shape, (20, 3))
    assert (made["other"].shape, made["other"].stride()) == (b.shape, (0, 1))
    assert made["self"].untyped_storage().nbytes() == 4 * (2 * 20 + 2 * 3 + 1)


def test_replay_measures(torch: Any, record: Record) -> None:
    trace = record(lambda: torch.mm(torch.ones(64, 64), torch.ones(64, 64)))
    result = replay(trace, op="aten::mm", min_run_time=0.01)
    assert result.overload == "aten::mm" and result.device == "cpu"
    assert result.time_ns > 0 and result.iqr_ns >= 0 and result.samples >= 1
    assert result.measured == "host"
    assert result.measured_in_trace_ns == trace.ranks[0].table.dur_ns[result.row]
    assert json.loads(json.dumps(result.to_dict()))["schema"] == "torchtraceap.replay/1"


def test_script_runs_alone(torch: Any, record: Record, tmp_path: Path) -> None:
    trace = record(lambda: torch.mm(torch.ones(8, 8), torch.ones(8, 8)))
    script = replay_script(trace, op="aten::mm")
    path = tmp_path / "alone.py"
    path.write_text(script, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", str(path), "cpu", "0.01"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "call()" in run.stdout and "torchtraceap" not in script


def test_the_random_state_is_left_alone(torch: Any, record: Record) -> None:
    trace = record(lambda: torch.mm(torch.ones(8, 8), torch.ones(8, 8)))
    torch.manual_seed(5)
    expected = torch.rand(3).tolist()
    torch.manual_seed(5)
    replay(trace, op="aten::mm", min_run_time=0.01)
    find_replayable(trace)
    assert torch.rand(3).tolist() == expected


# -- what cannot be rebuilt is said ------------------------------------------------------------


def event(name: str, at: int, dur: int = 5, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": at,
        "dur": dur,
        "args": args,
    }


def shaped(
    name: str, dims: Any, types: Any, strides: Any = None, values: Any = None
) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": types}
    if strides is not None:
        args["Input Strides"] = strides
    if values is not None:
        args["Concrete Inputs"] = values
    return event(name, 10, **args)


REFUSED = {
    "no shapes": (event("aten::mm", 10), "record_shapes"),
    "custom operator": (shaped("mylib::op", [[2]], ["float"]), "only operators of aten"),
    "unknown operator": (shaped("aten::op", [[2]], ["float"]), "no operator of this version"),
    "factory": (
        shaped(
            "aten::zeros",
            [[], [], [], [], []],
            ["ScalarList", *[""] * 4],
            values=["[3]", *[""] * 4],
        ),
        "no tensor as input",
    ),
    "annotation": (event("ProfilerStep#3", 10, cat="user_annotation"), "no registered operator"),
    "triton": (shaped("triton_poi_fused_add_0", [[2]], ["float"]), "no registered operator"),
    "node": (shaped("MmBackward0", [[2, 2]], ["float"]), "autograd node"),
    "engine": (event("autograd::engine::evaluate_function: MmBackward0", 10), "autograd node"),
    "unknown type": (shaped("aten::relu", [[2]], ["my::Type<3>"]), "my::Type<3>"),
    "quantised": (shaped("aten::relu", [[2]], ["c10::quint8"]), "c10::quint8"),
    "indices": (shaped("aten::index", [[4, 4], []], ["float", ""], values=["", ""]), "indices"),
    "no values": (
        shaped(
            "aten::convolution",
            [[1, 2, 4, 4], [2, 2, 1, 1], [], [], [], [], [], [], []],
            [
                "float",
                "float",
                "",
                "GenericList",
                "GenericList",
                "GenericList",
                "Bool",
                "GenericList",
                "Int",
            ],
        ),
        "Concrete Inputs",
    ),
    "long list": (
        shaped("aten::_foreach_mul", [[], []], ["TensorList", "Scalar"], values=["", "2."]),
        "30 tensors",
    ),
    "changes shape": (
        shaped("aten::unsqueeze_", [[4], []], ["float", "Scalar"], values=["", "0"]),
        "changes the shape",
    ),
    "collective": (
        shaped("c10d::barrier", [[2], [], [], []], ["float", "", "", "Scalar"]),
        "'c10d' may communicate",
    ),
    "too many arguments": (shaped("aten::relu", [[2]] * 7, ["float"] * 7), "no overload"),
    "lengths differ": (shaped("aten::mm", [[2, 2]], ["float", "float"]), "differ in number"),
    "negative size": (shaped("aten::relu", [[-2]], ["float"]), "no shape"),
    "huge size": (shaped("aten::relu", [[1 << 60]], ["float"]), "no shape"),
    "huge tensor": (shaped("aten::relu", [[1 << 40, 1 << 40]], ["float"]), "too large"),
    "text as shape": (shaped("aten::relu", [["os.abort()"]], ["float"]), "no shape"),
    "nested size": (
        shaped("aten::view", [[4], []], ["float", "ScalarList"], values=["", "[16, j3, 2]"]),
        "no literal",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rebuilt_is_said(case: str, torch: Any, write_trace: Any) -> None:
    recorded, reason = REFUSED[case]
    trace = torchtraceap.load(write_trace([recorded]))
    with pytest.raises(OptionError, match=reason):
        replay_script(trace, 0)
    table = find_replayable(trace)
    if recorded["cat"] == "cpu_op":
        assert not table["replayable"].any()
        assert re.search(reason, table["why"][0])


def test_inputs_too_large_for_the_memory_are_not_made(torch: Any, write_trace: Any) -> None:
    recorded = shaped("aten::relu", [[1 << 16, 1 << 21]], ["float"], values=[""])
    trace = torchtraceap.load(write_trace([recorded]))
    assert "2097152" in replay_script(trace, 0)
    with pytest.raises(OptionError, match="GB of memory are free"):
        replay(trace, 0, min_run_time=0.01)


def test_operators_of_other_devices_say_so(torch: Any, write_trace: Any) -> None:
    values = ["", "", "[1, 1]", "[0, 0]", "[1, 1]", "1", "False", "False", "True"]
    types = ["float", "float", *["ScalarList"] * 3, *["Scalar"] * 4]
    recorded = shaped(
        "aten::cudnn_convolution", [[1, 2, 4, 4], [2, 2, 1, 1], *[[]] * 7], types, values=values
    )
    trace = torchtraceap.load(write_trace([recorded]))
    assert find_replayable(trace)["runs_here"].tolist() == [False]
    with pytest.raises(OptionError, match="does not run on cpu"):
        replay(trace, 0, min_run_time=0.01)


def test_values_that_are_not_recorded_are_assumed_aloud(torch: Any, write_trace: Any) -> None:
    recorded = shaped("aten::add", [[4, 8], [8], []], ["float", "float", "Int"])
    trace = torchtraceap.load(write_trace([recorded]))
    result = replay(trace, 0, min_run_time=0.01)
    assert any("'alpha'" in note for note in result.notes)
    assert any("strides" in note for note in result.notes)


def test_an_optional_value_that_was_given_is_not_none(torch: Any, write_trace: Any) -> None:
    recorded = shaped("aten::clamp", [[4], [], []], ["float", "Int", ""])
    trace = torchtraceap.load(write_trace([recorded]))
    assert "(self, 0.0, None)" in replay_script(trace, 0)
    assert any("'min'" in note for note in replay(trace, 0, min_run_time=0.01).notes)


def test_copies_keep_their_ends(torch: Any, write_trace: Any) -> None:
    copy = shaped(
        "aten::copy_", [[4], [4], []], ["float", "float", "Scalar"], values=["", "", "False"]
    )
    launch = event("cudaMemcpyAsync", 11, 1, "cuda_runtime", correlation=7)
    gpu = event(
        "Memcpy HtoD (Pinned -> Device)", 12, 1, "gpu_memcpy", correlation=7, device=0, stream=7
    )
    script = replay_script(
        torchtraceap.load(write_trace([copy, launch, gpu | {"pid": 0, "tid": 7}])), 0
    )
    assert "self = normal((4,), (1,), torch.float32, DEVICE)" in script
    assert 'src = normal((4,), (1,), torch.float32, "cpu").pin_memory()' in script


def test_lists_take_their_type_from_the_kernel(torch: Any, write_trace: Any) -> None:
    cat = shaped("aten::cat", [[[4], [4]], []], ["TensorList", "Scalar"], values=["", "0"])
    launch = event("cudaLaunchKernel", 11, 1, "cuda_runtime", correlation=7)
    kernel = event(
        "CatArrayBatchedCopy<c10::BFloat16, unsigned>",
        12,
        1,
        "kernel",
        correlation=7,
        stream=7,
        device=0,
    )
    trace = torchtraceap.load(write_trace([cat, launch, kernel | {"pid": 0, "tid": 7}]))
    assert "torch.bfloat16" in replay_script(trace, 0)
    table = find_replayable(trace)
    assert table.facts["replayable_gpu_share"] == 1.0


def test_rows_and_names_that_are_not_there(torch: Any, write_trace: Any) -> None:
    trace = torchtraceap.load(write_trace([shaped("aten::relu", [[2]], ["float"])]))
    for arguments in (
        {"row": 5},
        {"row": -1},
        {"op": "aten::mm"},
        {},
        {"row": 0, "op": "aten::relu"},
    ):
        with pytest.raises(OptionError):
            replay_script(trace, **arguments)
    with pytest.raises(OptionError, match="min_run_time"):
        replay(trace, 0, min_run_time=0)
    with pytest.raises(OptionError, match="device"):
        replay(trace, 0, device="abacus")


def test_a_trace_without_operators_has_an_empty_table(torch: Any, write_trace: Any) -> None:
    table = find_replayable(torchtraceap.load(write_trace([event("k", 1, cat="kernel", stream=7)])))
    assert table.num_rows == 0 and "no operators" in table.notes[0]


# -- nothing of a trace is executed ----------------------------------------------------------------

PAYLOADS = [
    "__import__('pathlib').Path('{}').touch()",
    "(lambda: open('{}', 'w'))()",
    '"); open("{}", "w"); ("',
    "1); open('{}', 'w'",
    "2.\nopen('{}', 'w')",
    '"""\nopen("{}", "w")\n"""',
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("place", ["value", "list", "text", "name", "type", "shape"])
def test_code_in_a_trace_is_never_executed(
    payload: str, place: str, torch: Any, tmp_path: Path, write_trace: Any
) -> None:
    mark = tmp_path / "executed"
    code = payload.format(mark)
    recorded = {
        "value": shaped(
            "aten::add", [[4], [4], []], ["float", "float", "Scalar"], values=["", "", code]
        ),
        "list": shaped("aten::view", [[4], []], ["float", "ScalarList"], values=["", f"[{code}]"]),
        "text": shaped("aten::gelu", [[4], []], ["float", ""], values=["", code]),
        "name": shaped(code, [[4]], ["float"], values=[""]),
        "type": shaped("aten::relu", [[4]], [code], values=[""]),
        "shape": shaped("aten::relu", [[code]], ["float"], values=[""]),
    }[place]
    trace = torchtraceap.load(write_trace([recorded]))
    with pytest.raises(OptionError):
        replay_script(trace, 0)
    find_replayable(trace)
    assert not mark.exists()


# -- without torch -------------------------------------------------------------------------------


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_the_need_is_said(write_trace: Any) -> None:
    trace = torchtraceap.load(write_trace([shaped("aten::relu", [[2]], ["float"])]))
    for call in (replay, replay_script):
        with pytest.raises(MissingDependencyError, match="pip install torch"):
            call(trace, 0)
    with pytest.raises(MissingDependencyError, match="pip install torch"):
        find_replayable(trace)


def test_type_names_of_several_compilers() -> None:
    assert dtype_of_cpp_name("long int") == dtype_of_cpp_name("long") == "int64"
    assert dtype_of_cpp_name("__int64") == "int64"
    assert dtype_of_cpp_name("c10::complex<float>") == "complex64"
    assert dtype_of_cpp_name("c10::Float8_e4m3fn") == "float8_e4m3fn"
    assert dtype_of_cpp_name("c10::quint8") is None
    assert dtype_of_cpp_name("c10::Float8_new") is None, "no tensor of it can be made"
    assert dtype_of_cpp_name("fp4") is None
    assert (DTYPE_NUMBERS[15], DTYPE_NUMBERS[6]) == ("bfloat16", "float32")
    assert 12 not in DTYPE_NUMBERS, "quantised"


def test_type_of_a_kernel_is_the_narrow_one() -> None:
    name = "multi_tensor_apply_kernel<TensorListMetadata<1>, UnaryOp<c10::Half, float>>"
    assert dtype_in_kernel_name(name) == "float16"
    assert dtype_in_kernel_name("void f<float, 4>") == "float32"
    assert dtype_in_kernel_name("ampere_sgemm_128x64") is None


def test_calls_are_checked() -> None:
    call = call_from_texts(
        "aten::cat", ("[[[2,3],[4,3]],[]]", '["TensorList","Scalar"]', None, '["","0"]')
    )
    assert call.dims == (((2, 3), (4, 3)), ()) and call.values == (None, 0)
    for texts in (
        ("{}", "[]", None, None),
        ("[[2]]", "[", None, None),
        ("[" * 5000, "[]", None, None),
        ("[[2.5]]", '["float"]', None, None),
        ("[[true]]", '["float"]', None, None),
        ("[[2]]", '["float"]', "[[-1]]", None),
    ):
        with pytest.raises(NotReplayableError):
            call_from_texts("aten::relu", texts)
