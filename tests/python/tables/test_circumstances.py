"""Advice fits the trace: its device, its loader, what is compiled, and what waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.core.results import Finding

V100 = {"name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
A100 = {"name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
MI300X = {"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304}

LoadTrace = Callable[..., ttap.Trace]


@pytest.fixture
def load_trace(tmp_path: Path) -> LoadTrace:
    def load(trace: GpuTrace, device: dict[str, object] | None = None) -> ttap.Trace:
        top = {"deviceProperties": [{"id": 0, **device}]} if device else {}
        return trace.load(tmp_path, **top)

    return load


def found(trace: ttap.Trace, finding_type: str) -> Finding:
    return next(f for f in trace.diagnose().findings if f.type == finding_type)


def products(*, training: bool) -> GpuTrace:
    trace = GpuTrace()
    for i in range(10):
        at = 1_000.0 * i
        trace.op("aten::mm", at, 20)
        trace.launch("volta_sgemm_128x64_tn", (at + 5, 5), (at + 15, 900))
        if training:
            node = "autograd::engine::evaluate_function: MmBackward0"
            trace.op(node, at + 100, 20, **{"Sequence number": i, "Fwd thread id": 1})
    return trace


@pytest.mark.parametrize(
    ("device", "training", "has", "has_not"),
    [
        (V100, True, {"float16", "GradScaler"}, {"bfloat16", "set_float32_matmul_precision"}),
        (V100, False, {"float16", "inference_mode"}, {"bfloat16", "GradScaler", "backward"}),
        (A100, True, {"bfloat16", "set_float32_matmul_precision"}, {"GradScaler", "get_device"}),
        (A100, False, {"bfloat16", "inference_mode"}, {"GradScaler", "criterion"}),
        (MI300X, True, {"bfloat16"}, {"set_float32_matmul_precision", "GradScaler"}),
        (None, True, {"get_device_capability", "GradScaler", "float16"}, set()),
    ],
)
def test_products_are_told_the_types_that_the_device_has(
    load_trace: LoadTrace,
    device: dict[str, object] | None,
    training: bool,
    has: set[str],
    has_not: set[str],
) -> None:
    finding = found(load_trace(products(training=training), device), "fp32_matmul")
    assert all(word in finding.code for word in has)
    assert not any(word in finding.code for word in has_not)


def busy_host(*, compiled: bool = False, reads: bool = False) -> GpuTrace:
    """Steps of launches of short kernels with a host that takes its time."""
    trace = GpuTrace()
    for step in range(4):
        begin = 20_000.0 * step
        trace.host("user_annotation", f"ProfilerStep#{step + 2}", begin, 20_000)
        if compiled:
            trace.op("Torch-Compiled Region: 0/0", begin, 19_900)
        for i in range(60):
            at = begin + 300.0 * i
            trace.op("aten::mul", at, 290)
            trace.launch("vectorized_elementwise_kernel", (at + 270, 10), (at + 285, 4))
        if not reads:
            continue
        for i in range(3):
            at = begin + 18_200.0 + 500.0 * i
            trace.op("aten::item", at, 400)
            copied = (at + 20, 10), (at + 40, 2)
            name = "Memcpy DtoH (Device -> Pageable)"
            trace.launch(name, *copied, call="cudaMemcpyAsync", cat="gpu_memcpy", bytes=4)
            trace.call("cudaStreamSynchronize", at + 31, 350, correlation=9_000 + 10 * step + i)
        trace.op("aten::mul", begin + 19_700, 40)
        trace.launch("elementwise_kernel", (begin + 19_710, 10), (begin + 19_725, 4))
    return trace


def test_a_host_that_cannot_keep_up_gets_a_graph_only_where_one_fits(load_trace: LoadTrace) -> None:
    plain = found(load_trace(busy_host()), "cpu_bound")
    assert "reduce-overhead" in plain.code and "compiled already" not in plain.fix
    compiled = found(load_trace(busy_host(compiled=True)), "cpu_bound")
    assert compiled.fix.startswith("The code is compiled already")
    waiting = found(load_trace(busy_host(reads=True)), "cpu_bound")
    assert "reduce-overhead" not in waiting.code and "No CUDA graph fits" in waiting.fix
    both = found(load_trace(busy_host(compiled=True, reads=True)), "cpu_bound")
    assert "torch.compile" not in both.code and "No CUDA graph fits" in both.fix


def uploads(*, loader: bool) -> GpuTrace:
    trace = GpuTrace()
    for i in range(6):
        at = 2_000.0 * i
        if loader:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            trace.host("user_annotation", name, at, 10)
        trace.op("aten::to", at + 20, 850)
        copied = (at + 25, 800), (at + 30, 790)
        name = "Memcpy HtoD (Pageable -> Device)"
        trace.launch(name, *copied, call="cudaMemcpyAsync", cat="gpu_memcpy", bytes=8 << 20)
        trace.op("aten::mm", at + 880, 20)
        trace.launch("gemm", (at + 885, 5), (at + 895, 900))
    return trace


def test_uploads_without_a_loader_are_not_told_to_use_one(load_trace: LoadTrace) -> None:
    assert "DataLoader" in found(load_trace(uploads(loader=True)), "no_memory_pin").code
    alone = found(load_trace(uploads(loader=False)), "no_memory_pin")
    assert "DataLoader" not in alone.code and "pin_memory=True" in alone.code
    assert "num_workers" not in alone.code + alone.fix
