"""FLOPs of the models against those of `torch.utils.flop_counter`, on traces recorded here.

Small programs run on the CPU under both; the trace is exported, loaded and looked at with
`by="call"`. Only torch is needed, no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.ops.models import work_of

torch = pytest.importorskip("torch", reason="needs torch to record programs")

Program = Callable[[], Any]


def tensor(*shape: int, grad: bool = False) -> Any:
    return torch.randn(*shape, requires_grad=grad)


def conv(
    inputs: tuple[int, ...],
    weights: tuple[int, ...],
    *,
    backward: bool = False,
    input_grad: bool = True,
    **options: Any,
) -> Program:
    x = tensor(*inputs, grad=backward and input_grad)
    w = tensor(*weights, grad=backward)
    transposed = bool(options.get("transposed"))
    outputs = weights[1] * options.get("groups", 1) if transposed else weights[0]
    bias = tensor(outputs, grad=backward)
    rank = len(inputs) - 2
    arguments = (
        options.get("stride", [1] * rank),
        options.get("padding", [0] * rank),
        options.get("dilation", [1] * rank),
        transposed,
        options.get("output_padding", [0] * rank),
        options.get("groups", 1),
    )

    def run() -> None:
        y = torch.ops.aten.convolution(x, w, bias, *arguments)
        if backward:
            y.sum().backward()

    return run


def sdpa(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    *,
    backward: bool = False,
    backend: str = "MATH",
    values: tuple[int, ...] | None = None,
    **options: Any,
) -> Program:
    q, k, v = (tensor(*shape, grad=backward) for shape in (queries, keys, values or keys))

    def run() -> None:
        chosen = getattr(torch.nn.attention.SDPBackend, backend)
        with torch.nn.attention.sdpa_kernel([chosen]):
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            if backward:
                y.sum().backward()

    return run


def product_backward() -> None:
    a, b = tensor(6, 4, grad=True), tensor(4, 5, grad=True)
    (a @ b).sum().backward()


def linear_layers() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    layers(tensor(3, 7, 8)).sum().backward()


PROGRAMS: dict[str, Program] = {
    "mm": lambda: torch.mm(tensor(3, 5), tensor(5, 7)),
    "addmm": lambda: torch.addmm(tensor(7), tensor(3, 5), tensor(5, 7)),
    "bmm": lambda: torch.bmm(tensor(2, 3, 5), tensor(2, 5, 7)),
    "baddbmm": lambda: torch.baddbmm(tensor(2, 3, 7), tensor(2, 3, 5), tensor(2, 5, 7)),
    "matmul of batches": lambda: torch.matmul(tensor(4, 1, 3, 5), tensor(2, 5, 7)),
    "linear": lambda: torch.nn.functional.linear(tensor(4, 3, 5), tensor(7, 5), tensor(7)),
    "einsum": lambda: torch.einsum("bij,bjk->bik", tensor(2, 3, 5), tensor(2, 5, 7)),
    "mm backward": product_backward,
    "linear layers backward": linear_layers,
    "conv1d": conv((2, 4, 16), (6, 4, 3)),
    "conv2d": conv((2, 4, 16, 12), (6, 4, 3, 3), padding=[1, 1]),
    "conv2d strided": conv((2, 4, 17, 12), (6, 4, 3, 5), stride=[2, 3], padding=[1, 2]),
    "conv2d dilated": conv((2, 4, 16, 12), (6, 4, 3, 3), dilation=[2, 2]),
    "conv2d groups": conv((2, 8, 16, 12), (12, 2, 3, 3), groups=4),
    "conv2d depthwise": conv((2, 8, 16, 12), (8, 1, 3, 3), groups=8),
    "conv3d": conv((1, 2, 6, 7, 8), (3, 2, 2, 2, 2)),
    "conv transposed": conv((2, 4, 8, 8), (4, 6, 3, 3), transposed=True, stride=[2, 2]),
    "conv transposed, output padding": conv(
        (2, 4, 8, 8), (4, 6, 3, 3), transposed=True, stride=[2, 2], output_padding=[1, 1]
    ),
    "conv transposed, groups": conv((2, 4, 8, 8), (4, 3, 3, 3), transposed=True, groups=2),
    "conv2d backward": conv((2, 4, 16, 12), (6, 4, 3, 3), backward=True),
    "conv2d backward, first layer": conv(
        (2, 4, 16, 12), (6, 4, 3, 3), backward=True, input_grad=False
    ),
    "conv2d backward, strided": conv((2, 4, 17, 12), (6, 4, 3, 3), stride=[2, 2], backward=True),
    "conv transposed backward": conv(
        (2, 4, 8, 8), (4, 6, 3, 3), transposed=True, stride=[2, 2], backward=True
    ),
    "attention, math": sdpa((2, 3, 10, 8), (2, 3, 12, 8)),
    "attention, math, backward": sdpa((2, 3, 10, 8), (2, 3, 12, 8), backward=True),
    "attention, math, other depth of values": sdpa(
        (2, 3, 10, 8), (2, 3, 12, 8), values=(2, 3, 12, 16)
    ),
}


def recorded(run: Program, folder: Path) -> tuple[int, ttap.Trace]:
    """The counter's total and the trace of one run each; the program is deterministic."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        run()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        run()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return counter.get_total_flops(), ttap.load(path)


def matrix_flops(trace: ttap.Trace) -> int:
    """Sum over products, convolutions and attention: what the counter has formulas for."""
    table = trace.roofline(by="call")
    families = ("gemm", "convolution_", "attention_")
    return sum(
        int(flops)
        for flops, family in zip(table["flops"], table["family"], strict=True)
        if family.startswith(families)
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_flops_are_those_of_the_counter(name: str, tmp_path: Path) -> None:
    expected, trace = recorded(PROGRAMS[name], tmp_path)
    assert expected > 0
    assert matrix_flops(trace) == expected


def attention_flops(queries: tuple[int, ...], keys: tuple[int, ...], *, backward: bool) -> int:
    """The counter's own formulas; it has none for the flash kernel of the CPU."""
    from torch.utils import flop_counter

    total = int(flop_counter.sdpa_flop_count(queries, keys, keys))
    if backward:
        total += int(flop_counter.sdpa_backward_flop_count(queries, queries, keys, keys))
    return total


@pytest.mark.parametrize("backward", [False, True])
def test_flash_attention_is_two_products_and_five_backward(backward: bool, tmp_path: Path) -> None:
    queries, keys = (2, 3, 10, 8), (2, 3, 12, 8)
    _, trace = recorded(sdpa(queries, keys, backend="FLASH_ATTENTION", backward=backward), tmp_path)
    assert matrix_flops(trace) == attention_flops(queries, keys, backward=backward)


@pytest.mark.parametrize("backward", [False, True])
def test_causal_attention_counts_the_pairs_that_meet(backward: bool, tmp_path: Path) -> None:
    """The counter ignores masks; the kernels skip what is masked."""
    shape = (2, 3, 16, 8)
    run = sdpa(shape, shape, backend="FLASH_ATTENTION", is_causal=True, backward=backward)
    _, trace = recorded(run, tmp_path)
    unmasked = attention_flops(shape, shape, backward=backward)
    assert matrix_flops(trace) * 16 * 16 == unmasked * (16 * 17 // 2)


# Operators of GPUs by their arguments: name, positions of queries and causal flag, layout.
GPU_ATTENTION: dict[str, tuple[int, int, int]] = {
    "aten::_scaled_dot_product_flash_attention": (0, 4, 7),
    "aten::_scaled_dot_product_efficient_attention": (0, 6, 8),
    "aten::_scaled_dot_product_cudnn_attention": (0, 6, 9),
    "aten::_scaled_dot_product_flash_attention_backward": (1, 11, 15),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, 11, 13),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 14, 16),
}


@pytest.mark.parametrize("name", GPU_ATTENTION)
def test_attention_of_gpus_has_the_formulas_of_the_counter(name: str) -> None:
    first, causal_at, length = GPU_ATTENTION[name]
    queries, keys = (2, 3, 10, 8), (2, 3, 12, 8)
    dims: list[list[int]] = [[] for _ in range(length)]
    types = ["Scalar"] * length
    shapes = [queries, keys, keys] if first == 0 else [queries, queries, keys, keys]
    for i, shape in enumerate(shapes):
        dims[i], types[i] = list(shape), "c10::BFloat16"
    concrete = [""] * length
    concrete[causal_at] = "False"
    work, reason = work_of(name, dims, types, None, concrete)
    assert work is not None, reason
    both = attention_flops(queries, keys, backward=True)
    forward = attention_flops(queries, keys, backward=False)
    assert work.flops == (forward if first == 0 else both - forward)


def test_the_weight_gradient_of_groups_is_not_multiplied_by_their_number(tmp_path: Path) -> None:
    """The counter multiplies all input with all output channels there; groups keep them apart.

    Each weight meets each output position once, so its gradient costs what the forward costs.
    """
    groups = 4
    run = conv((2, 8, 16, 12), (12, 2, 3, 3), groups=groups, backward=True)
    counted, trace = recorded(run, tmp_path)
    forward = 2 * (2 * 12 * 14 * 10) * (2 * 3 * 3)
    assert counted == (2 + groups) * forward
    assert matrix_flops(trace) == 3 * forward


def test_a_trace_without_shapes_gives_reasons_instead_of_numbers(tmp_path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        torch.mm(tensor(3, 5), tensor(5, 7))
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    assert ttap.load(path).roofline(by="call").num_rows == 0
