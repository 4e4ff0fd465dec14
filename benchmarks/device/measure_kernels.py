#!/usr/bin/env python3
"""Times kernels, copies and what slows them down, for the duration models.

On a machine with a GPU, from the root of the repository (PyTorch is all it needs):

    python3 benchmarks/device/measure_kernels.py --device cuda --minutes 9 --out kernels_h200

writes one CSV per part and machine.json: products of matrices (600 rows), element-wise kernels
(500), norms, softmax and attention (300), copies (300), embedding bags forward and backward with
chosen histograms of reuse (300), two kernels at once on two streams (60), what the profiler adds to
a launch (20), and what no public measurement covers: the backward passes of batch norm and of
pooling (200), convolutions forward and backward, many of them first layers with three channels
(200), softmax of long and of many rows (150), batches of tiny products (150), and one product in
fp32 without and with TF32, bf16 and fp8 (60 shapes). Each part has its share of the time and its
rows are in random order, so that stopping early leaves a fair sample. On a CPU (`--device cpu
--rows 3`) the same code runs with tiny sizes; those times mean nothing.

Times are those of the GPU alone: repetitions are captured in a CUDA graph, so that launching does
not count, and they go through several sets of operands, so that L2 holds none of them
(`sets` = 1: the operands alone are larger than four caches, or there was no room for more). Where
NVML answers (the package nvidia-ml-py), each row has the clocks of multiprocessors and memory, MHz,
and the power, W, while its kernel ran.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

Row = dict[str, Any]
Work = Callable[[int], Any]

MAX_BYTES = 4 << 30
SMALL_BYTES = 1 << 16
COLD_CACHES = 4
MOST_SETS = 8
BURST_NS = 2e6
BURSTS = 5
MOST_REFUSED = 20
"""Rows of a part that may fail before it is given up."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass
class Bench:
    """Where and for how long to measure."""

    device: torch.device
    rng: random.Random
    end: float = 0.0
    graphs: bool = True
    """Whether kernels are timed in CUDA graphs; off once the device refuses one."""
    notes: list[str] = field(default_factory=list)
    sensors: Callable[[], Row] = dict
    """Clocks and power at this moment; nothing where NVML does not answer."""

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def most_bytes(self) -> int:
        return MAX_BYTES if self.cuda else SMALL_BYTES

    @property
    def cache_bytes(self) -> int:
        if not self.cuda:
            return 1
        return int(getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0))

    def sets(self, size: int) -> int:
        """Sets of operands of `size` bytes that L2 cannot hold."""
        wanted = math.ceil(COLD_CACHES * self.cache_bytes / max(size, 1))
        return max(1, min(MOST_SETS, wanted, self.most_bytes // max(size, 1)))

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)


# Timing -----------------------------------------------------------------------------------------


def burst_ns(bench: Bench, run: Callable[[], Any]) -> float:
    """Time of one call on the GPU's clock, else on the host's."""
    if not bench.cuda:
        begin = time.perf_counter_ns()
        run()
        return float(time.perf_counter_ns() - begin)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return 1e6 * before.elapsed_time(after)


def measured(bench: Bench, work: Work, sets: int = 1) -> Row:
    """Median and spread of the time of `work(number of its set)`, in ns.

    Repetitions that take about 2 ms are timed together, five times over.
    """
    _repeat(work, sets, sets)
    bench.synchronize()
    once = burst_ns(bench, lambda: _repeat(work, sets, sets)) / sets
    repeats = max(sets, min(200, math.ceil(BURST_NS / max(once, 1.0))))
    repeats = sets * math.ceil(repeats / sets)
    run = _captured(bench, lambda: _repeat(work, sets, repeats))
    run()
    times = [burst_ns(bench, run) / repeats for _ in range(BURSTS)]
    middle = statistics.median(times)
    run()
    seen = bench.sensors()
    bench.synchronize()
    return {
        "ns": round(middle, 1),
        "spread": round((max(times) - min(times)) / middle, 4) if middle else 0.0,
        "repeats": repeats,
        "sets": sets,
        "graph": int(bench.cuda and bench.graphs),
        **seen,
    }


def sensors() -> Callable[[], Row]:
    """Reads clocks and power of the first GPU through NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as error:  # no package, no driver: the rows go without
        print(f"no clocks and no power: {type(error).__name__}: {error}", file=sys.stderr)
        return dict
    return lambda: {
        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    }


def _repeat(work: Work, sets: int, repeats: int) -> None:
    """Results are dropped at once, so that their memory is used again."""
    for number in range(repeats):
        work(number % sets)


def _captured(bench: Bench, run: Callable[[], Any]) -> Callable[[], Any]:
    """The same work as one CUDA graph, where it can be captured."""
    if not (bench.cuda and bench.graphs):
        return run
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError as error:
        bench.graphs = False
        bench.notes.append(f"no CUDA graphs: {error}")
        torch.cuda.synchronize(bench.device)
        return run
    return graph.replay


def log_uniform(bench: Bench, low: float, high: float) -> int:
    return round(math.exp(bench.rng.uniform(math.log(low), math.log(high))))


def near(bench: Bench, size: int) -> int:
    """Sizes as models have them: mostly multiples of 64, some of 8, some odd."""
    step = bench.rng.choice((128, 128, 64, 64, 8, 1))
    return max(1, round(size / step) * step or size)


# Parts ------------------------------------------------------------------------------------------


def products(bench: Bench, rows: int) -> Iterator[Row]:
    """Linear layers and batched products."""
    most = 16384 if bench.cuda else 64
    for _ in range(rows):
        dtype = bench.rng.choice(("bf16", "bf16", "bf16", "fp16", "fp32"))
        batch = bench.rng.choice((1, 1, 1, log_uniform(bench, 2, 64 if bench.cuda else 3)))
        m, n, k = (near(bench, log_uniform(bench, 16, most)) for _ in range(3))
        m = bench.rng.choice((m, m, bench.rng.randint(1, 64)))
        width = 4 if dtype == "fp32" else 2
        size = width * batch * (m * k + k * n + m * n)
        if size > bench.most_bytes or 2.0 * batch * m * n * k > 2e13:
            continue
        sets = bench.sets(size)
        left = [_filled(bench, (batch, m, k), dtype) for _ in range(sets)]
        right = [_filled(bench, (batch, n, k), dtype) for _ in range(sets)]

        def work(number: int, a: Any = left, b: Any = right) -> Any:
            return torch.matmul(a[number], b[number].transpose(1, 2))

        shape = {"dtype": dtype, "batch": batch, "m": m, "n": n, "k": k}
        yield shape | measured(bench, work, sets)


UNARY: dict[str, Callable[[Any], Any]] = {
    "addu": lambda x: x + 1.5,
    "mulu": lambda x: x * 1.5,
    "powu": lambda x: x**3,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "copy": torch.clone,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "sub": torch.sub,
}


def elementwise(bench: Bench, rows: int) -> Iterator[Row]:
    """One tensor, or two."""
    for _ in range(rows):
        op = bench.rng.choice((*UNARY, *BINARY))
        dtype = bench.rng.choice(tuple(DTYPES))
        width = 4 if dtype == "fp32" else 2
        elements = log_uniform(bench, 256, bench.most_bytes / width / 8)
        tensors = 2 if op in UNARY else 3
        sets = bench.sets(tensors * width * elements)
        first = [_filled(bench, (elements,), dtype) for _ in range(sets)]
        second = [_filled(bench, (elements,), dtype) for _ in range(sets if op in BINARY else 0)]

        def work(number: int, op: str = op, a: Any = first, b: Any = second) -> Any:
            return UNARY[op](a[number]) if op in UNARY else BINARY[op](a[number], b[number])

        yield {"op": op, "dtype": dtype, "elements": elements} | measured(bench, work, sets)


def rows_and_attention(bench: Bench, rows: int) -> Iterator[Row]:
    """Softmax, layer norm and RMS norm over the last dimension; fused attention."""
    for _ in range(rows):
        op = bench.rng.choice(("softmax", "layer_norm", "rms_norm", "attention"))
        dtype = bench.rng.choice(("bf16", "fp16") if op == "attention" else tuple(DTYPES))
        if op == "attention":
            yield from _attention(bench, dtype)
            continue
        width = 4 if dtype == "fp32" else 2
        columns = near(bench, log_uniform(bench, 64, 32768 if bench.cuda else 256))
        count = log_uniform(bench, 16, max(17, min(2**17, bench.most_bytes / width / columns / 8)))
        sets = bench.sets(2 * width * count * columns)
        data = [_filled(bench, (count, columns), dtype) for _ in range(sets)]
        weight = _filled(bench, (columns,), dtype)

        def work(number: int, op: str = op, x: Any = data, w: Any = weight) -> Any:
            if op == "softmax":
                return torch.softmax(x[number], -1)
            if op == "layer_norm":
                return functional.layer_norm(x[number], w.shape, w, w)
            return functional.rms_norm(x[number], w.shape, w)

        shape = {"op": op, "dtype": dtype, "rows": count, "columns": columns}
        yield shape | measured(bench, work, sets)


def _attention(bench: Bench, dtype: str) -> Iterator[Row]:
    size = bench.rng.choice((64, 128))
    length = near(bench, log_uniform(bench, 128, 8192 if bench.cuda else 130))
    heads, batch = bench.rng.choice((8, 16, 32)), log_uniform(bench, 1, 16 if bench.cuda else 2)
    moved = 4 * 2 * batch * heads * length * size
    if bench.cuda and moved > bench.most_bytes // 4:
        return
    causal = bench.rng.random() < 0.5
    sets = bench.sets(moved)
    data = [
        tuple(_filled(bench, (batch, heads, length, size), dtype) for _ in range(3))
        for _ in range(sets)
    ]

    def work(number: int) -> Any:
        return functional.scaled_dot_product_attention(*data[number], is_causal=causal)

    shape = {"op": "attention", "dtype": dtype, "batch": batch, "heads": heads}
    shape |= {"rows": length, "columns": size, "causal": int(causal)}
    yield shape | measured(bench, work, sets)


def copies(bench: Bench, rows: int) -> Iterator[Row]:
    """Between host and device, pinned and pageable, and on the device."""
    graphs = bench.graphs
    for _ in range(rows):
        direction = bench.rng.choice(("HtoD", "DtoH", "HtoD", "DtoH", "DtoD"))
        pinned = direction != "DtoD" and bench.rng.random() < 0.6
        size = log_uniform(bench, 64, min(bench.most_bytes, 1 << 29))
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned and bench.cuda)
        there = torch.zeros(size, dtype=torch.uint8, device=bench.device)
        again = torch.zeros_like(there)
        source, target = {
            "HtoD": (host, there), "DtoH": (there, host), "DtoD": (there, again),
        }[direction]  # fmt: skip
        # A pageable copy cannot be captured.
        bench.graphs = graphs and (pinned or direction == "DtoD")

        def work(_: int, a: Any = source, b: Any = target, quick: bool = pinned) -> Any:
            return b.copy_(a, non_blocking=quick)

        shape = {"direction": direction, "pinned": int(pinned), "bytes": size}
        yield shape | measured(bench, work)
    bench.graphs = graphs


def embedding_bags(bench: Bench, rows: int) -> Iterator[Row]:
    """Sums of rows, with indices whose reuse is Zipf's of a chosen exponent."""
    graphs = bench.graphs
    for _ in range(rows):
        columns = bench.rng.choice((32, 64, 128, 256))
        most = bench.most_bytes // (4 * columns)
        count = log_uniform(bench, 64, max(65, most))
        batch = log_uniform(bench, 4, 8192) if bench.cuda else 8
        lookups = log_uniform(bench, 1, 128) if bench.cuda else 2
        exponent = bench.rng.choice((0.0, 0.6, 0.9, 1.05, 1.2, 1.5))
        weight = torch.zeros(count, columns, device=bench.device, requires_grad=True)
        indices = _zipf(bench, count, batch * lookups, exponent).view(batch, lookups)
        backward = bench.rng.random() < 0.5
        shape = {
            "rows": count, "columns": columns, "batch": batch, "lookups": lookups,
            "exponent": exponent, "backward": int(backward), "histogram": _histogram(indices),
        }  # fmt: skip
        result = functional.embedding_bag(indices, weight, mode="sum", sparse=True)
        grad = torch.ones_like(result)

        def forward(_: int, i: Any = indices, w: Any = weight) -> Any:
            with torch.no_grad():
                return functional.embedding_bag(i, w, mode="sum")

        def back(_: int, r: Any = result, g: Any = grad, w: Any = weight) -> Any:
            return torch.autograd.grad(r, w, g, retain_graph=True)

        bench.graphs = graphs and not backward  # coalescing asks the host
        yield shape | measured(bench, back if backward else forward)
    bench.graphs = graphs


def _zipf(bench: Bench, rows: int, lookups: int, exponent: float) -> torch.Tensor:
    """Indices drawn with probability rank^-exponent, ranks spread over the table."""
    generator = torch.Generator().manual_seed(bench.rng.randrange(1 << 31))
    ranks = torch.arange(1, min(rows, 1 << 22) + 1, dtype=torch.float64)
    total = torch.cumsum(ranks.pow(-exponent), 0)
    drawn = torch.rand(lookups, generator=generator, dtype=torch.float64) * total[-1]
    found = torch.searchsorted(total, drawn).clamp(max=rows - 1)
    return ((found * 2654435761) % rows).to(bench.device)


def _histogram(indices: torch.Tensor) -> str:
    """Shares of the distinct rows in the 17 bins (0, 1], (1, 2], (2, 4] ... above 32768."""
    _, counts = torch.unique(indices, return_counts=True)
    bins = torch.ceil(torch.log2(counts.double())).long().clamp(max=16)
    shares = torch.bincount(bins.cpu(), minlength=17).double() / counts.numel()
    return " ".join(f"{share:.6f}" for share in shares.tolist())


def contention(bench: Bench, rows: int) -> Iterator[Row]:
    """A product alone and beside a copy on the device on another stream (CUDA only)."""
    if not bench.cuda:
        return
    side = torch.cuda.Stream(bench.device)
    for _ in range(rows):
        n = near(bench, log_uniform(bench, 512, 8192))
        a, b = (_filled(bench, (n, n), "bf16") for _ in range(2))
        source = torch.zeros(log_uniform(bench, 1 << 22, 1 << 30), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        products_only = measured(bench, lambda _, a=a, b=b: torch.matmul(a, b))["ns"]
        copy_only = measured(bench, lambda _, s=source, t=target: t.copy_(s))["ns"]
        repeats = max(3, math.ceil(BURST_NS / products_only))
        both = _beside(
            side,
            repeats,
            lambda a=a, b=b: torch.matmul(a, b),
            lambda s=source, t=target: t.copy_(s),
            math.ceil(1.5 * repeats * products_only / copy_only),
        )
        yield {
            "n": n, "copied_bytes": source.numel(), "product_ns": products_only,
            "copy_ns": copy_only, "product_beside_copy_ns": round(both / repeats, 1),
        }  # fmt: skip


def _beside(
    side: torch.cuda.Stream,
    repeats: int,
    work: Callable[[], Any],
    other: Callable[[], Any],
    others: int,
) -> float:
    """ns of `repeats` calls while `other` runs on the side stream from before to after."""
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        for _ in range(max(1, others)):
            other()
    before.record()
    for _ in range(repeats):
        work()
    after.record()
    torch.cuda.synchronize()
    return 1e6 * before.elapsed_time(after)


def profiler_overhead(bench: Bench, rows: int) -> Iterator[Row]:
    """Host time of an operator that launches one small kernel, with and without the profiler."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * bench.cuda
    x = torch.zeros(16, device=bench.device)
    calls = 2000 if bench.cuda else 20
    for _ in range(rows):
        shapes, stack = bench.rng.random() < 0.5, bench.rng.random() < 0.5
        plain = _host_ns(bench, x, calls)
        with profile(activities=activities, record_shapes=shapes, with_stack=stack):
            profiled = _host_ns(bench, x, calls)
        yield {
            "record_shapes": int(shapes), "with_stack": int(stack), "calls": calls,
            "plain_ns": round(plain, 1), "profiled_ns": round(profiled, 1),
        }  # fmt: skip


def _host_ns(bench: Bench, x: torch.Tensor, calls: int) -> float:
    for _ in range(10):
        x.add_(1)
    bench.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(calls):
        x.add_(1)
    took = time.perf_counter_ns() - begin
    bench.synchronize()
    return took / calls


def backward_passes(bench: Bench, rows: int) -> Iterator[Row]:
    """Batch norm in training, and pooling: their backward kernels alone."""
    aten = torch.ops.aten
    for _ in range(rows):
        op = bench.rng.choice(("batch_norm", "batch_norm", "max_pool", "avg_pool", "adaptive_pool"))
        dtype = bench.rng.choice(("fp32", "bf16"))
        batch, channels, side = (
            (log_uniform(bench, 2, 128), near(bench, log_uniform(bench, 16, 1024)),
             bench.rng.choice((7, 14, 28, 56, 112)))
            if bench.cuda else (2, 8, 8)
        )  # fmt: skip
        if 4.0 * batch * channels * side**2 > bench.most_bytes / 8:
            continue
        last = int(bench.rng.random() < 0.5)
        x = _filled(bench, (batch, channels, side, side), dtype)
        x = x.to(memory_format=torch.channels_last) if last else x
        if op == "batch_norm":
            weight, mean, variance = (torch.ones(channels, device=bench.device) for _ in range(3))
            kept = (mean, variance, True)
            _, save_mean, save_invstd, reserve, impl = aten._batch_norm_impl_index(
                x, weight, weight, *kept, 0.1, 1e-5, True
            )
            saved = (save_mean, save_invstd, True, 1e-5, [True] * 3, reserve)

            def work(
                _: int, x: Any = x, i: int = impl, k: Any = kept, s: Any = saved, w: Any = weight
            ) -> Any:
                return aten._batch_norm_impl_index_backward(i, x, x, w, *k[:2], *s)  # fmt: skip
        elif op == "max_pool":
            out, where = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])

            def work(_: int, x: Any = x, g: Any = out, w: Any = where) -> Any:
                return aten.max_pool2d_with_indices_backward(
                    g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, w
                )
        elif op == "avg_pool":
            out = aten.avg_pool2d(x, [2, 2], [2, 2])

            def work(_: int, x: Any = x, g: Any = out) -> Any:
                return aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None)
        else:
            out = aten._adaptive_avg_pool2d(x, [1, 1])

            def work(_: int, x: Any = x, g: Any = out) -> Any:
                return aten._adaptive_avg_pool2d_backward(g, x)

        shape = {"op": f"{op}_backward", "dtype": dtype, "channels_last": last, "batch": batch}
        yield shape | {"channels": channels, "side": side} | measured(bench, work)


def convolutions(bench: Bench, rows: int) -> Iterator[Row]:
    """Forward, and backward to weights and inputs; half of them first layers of a network."""
    aten = torch.ops.aten
    firsts = ((7, 2, 64), (3, 2, 32), (4, 4, 96), (16, 16, 768))
    for _ in range(rows):
        first = bench.rng.random() < 0.5
        dtype = bench.rng.choice(("fp32", "tf32", "bf16"))
        if bench.cuda:
            batch = log_uniform(bench, 1, 128)
            kernel, stride, outputs = bench.rng.choice(firsts)
            inputs, side = 3, bench.rng.choice((128, 224, 256))
            if not first:
                kernel, stride = bench.rng.choice(((1, 1), (3, 1), (3, 2)))
                inputs, outputs = (near(bench, log_uniform(bench, 16, 1024)) for _ in range(2))
                side = bench.rng.choice((7, 14, 28, 56))
        else:
            batch, kernel, stride, inputs, outputs, side = 1, 3, 2, 3, 4, 16
        if 4.0 * batch * side**2 * max(inputs, outputs) > bench.most_bytes / 8:
            continue
        last, pad = int(bench.rng.random() < 0.5), 0 if kernel == stride else kernel // 2
        x = _filled(bench, (batch, inputs, side, side), "bf16" if dtype == "bf16" else "fp32")
        weight = torch.ones(outputs, inputs, kernel, kernel, device=bench.device, dtype=x.dtype)
        if last:
            x, weight = (each.to(memory_format=torch.channels_last) for each in (x, weight))
        shape = {"dtype": dtype, "channels_last": last, "batch": batch, "inputs": inputs,
                 "outputs": outputs, "kernel": kernel, "stride": stride, "side": side}  # fmt: skip
        layout = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1)
        with _tf32(dtype == "tf32"):
            out = aten.convolution(x, weight, None, *layout)

            def forward(_: int, x: Any = x, w: Any = weight, rest: Any = layout) -> Any:
                return aten.convolution(x, w, None, *rest)

            def backward(
                _: int,
                x: Any = x,
                w: Any = weight,
                g: Any = out,
                rest: Any = layout,
                mask: Any = (not first, True, False),
            ) -> Any:
                return aten.convolution_backward(g, x, w, None, *rest, list(mask))  # fmt: skip

            yield shape | {"pass": "forward"} | measured(bench, forward)
            yield shape | {"pass": "backward"} | measured(bench, backward)


def softmaxes(bench: Bench, rows: int) -> Iterator[Row]:
    """Forward and backward over long rows, and over very many short ones."""
    for _ in range(rows):
        long = bench.rng.random() < 0.5
        dtype = bench.rng.choice(("fp32", "bf16"))
        ends = ((4096, 1 << 18) if long else (8, 1024)) if bench.cuda else (16, 64)
        columns = near(bench, log_uniform(bench, *ends))
        most = max(2.0, bench.most_bytes / 32 / columns)
        count = log_uniform(bench, 1, min(most, 4096 if long else 1 << 22))
        sets = bench.sets(8 * count * columns)
        data = [_filled(bench, (count, columns), dtype) for _ in range(sets)]
        back = bench.rng.random() < 0.5

        def work(number: int, x: Any = data, back: bool = back) -> Any:
            if back:
                return torch.ops.aten._softmax_backward_data(x[number], x[number], -1, x[0].dtype)
            return torch.softmax(x[number], -1)

        shape = {"op": "softmax_backward" if back else "softmax", "dtype": dtype}
        yield shape | {"rows": count, "columns": columns} | measured(bench, work, sets)


def tiny_products(bench: Bench, rows: int) -> Iterator[Row]:
    """Batches of many products of small matrices."""
    for _ in range(rows):
        dtype = bench.rng.choice(("fp32", "bf16"))
        m, n, k = (bench.rng.choice((4, 8, 16, 26, 32, 64, 128)) for _ in range(3))
        batch = log_uniform(
            bench, 64, min(1 << 16, bench.most_bytes / 32 / max(m * n, n * k, m * k))
        )
        left, right = _filled(bench, (batch, m, k), dtype), _filled(bench, (batch, k, n), dtype)

        def work(_: int, a: Any = left, b: Any = right) -> Any:
            return torch.bmm(a, b)

        shape = {"dtype": dtype, "batch": batch, "m": m, "n": n, "k": k}
        yield shape | measured(bench, work)


def precisions(bench: Bench, rows: int) -> Iterator[Row]:
    """One product in fp32 without and with TF32, in bf16 and in fp8 with one scale a tensor."""
    for _ in range(rows):
        m, n, k = (
            16 * max(1, log_uniform(bench, 16, 16384 if bench.cuda else 64) // 16) for _ in range(3)
        )
        shape = {"m": m, "n": n, "k": k}
        for dtype in ("fp32", "tf32", "bf16", "fp8"):
            try:
                found = _in_precision(bench, dtype, m, n, k)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # fp8 needs hardware
                bench.notes.append(f"{dtype}: {str(error).splitlines()[0]}")
                continue
            yield {"dtype": dtype} | shape | found


def _in_precision(bench: Bench, dtype: str, m: int, n: int, k: int) -> Row:
    if dtype == "fp8":
        a = _filled(bench, (m, k), "bf16").to(torch.float8_e4m3fn)
        b = _filled(bench, (n, k), "bf16").to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=bench.device)

        def scaled(_: int) -> Any:
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        return measured(bench, scaled)
    kind = "bf16" if dtype == "bf16" else "fp32"
    left, right = _filled(bench, (m, k), kind), _filled(bench, (n, k), kind).t()
    with _tf32(dtype == "tf32"):
        return measured(bench, lambda _: torch.matmul(left, right))


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Products and convolutions in TF32, or nothing in it."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = allowed
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.allow_tf32 = was


def _filled(bench: Bench, shape: Sequence[int], dtype: str) -> torch.Tensor:
    return torch.empty(*shape, device=bench.device, dtype=DTYPES[dtype]).uniform_(0.5, 1.0)


@dataclass(frozen=True)
class Part:
    run: Callable[[Bench, int], Iterator[Row]]
    rows: int
    share: float
    """Of the time."""


PARTS = {
    "gemm": Part(products, 600, 0.30),
    "elementwise": Part(elementwise, 500, 0.15),
    "rows": Part(rows_and_attention, 300, 0.13),
    "copies": Part(copies, 300, 0.12),
    "embedding_bag": Part(embedding_bags, 300, 0.20),
    "contention": Part(contention, 60, 0.05),
    "profiler": Part(profiler_overhead, 20, 0.05),
    "backward": Part(backward_passes, 200, 0.15),
    "convolutions": Part(convolutions, 200, 0.2),
    "softmax": Part(softmaxes, 150, 0.1),
    "tiny_products": Part(tiny_products, 150, 0.1),
    "precisions": Part(precisions, 60, 0.15),
}


# The run ----------------------------------------------------------------------------------------


def write_part(bench: Bench, part: Part, rows: int, path: Path) -> int:
    """Rows as they are measured, until they or the time are at an end; returns how many."""
    names: list[str] = []
    count = refused = 0
    with path.open("w", newline="") as file:
        measured_rows = part.run(bench, rows)
        while time.monotonic() < bench.end:
            try:
                row = next(measured_rows)
            except StopIteration:
                break
            except RuntimeError as error:  # no room, or a kernel that refuses the operands
                bench.notes.append(f"{path.stem}: {str(error).splitlines()[0]}")
                refused += 1
                if refused > MOST_REFUSED:
                    break
                if isinstance(error, torch.OutOfMemoryError):
                    torch.cuda.empty_cache()
                measured_rows = part.run(bench, rows - count)
                continue
            if not set(row) <= set(names):
                names, count = _begin(file, names, row, path, count)
            csv.DictWriter(file, names, restval="").writerow(row)
            file.flush()
            count += 1
    return count


def _begin(file: Any, names: list[str], row: Row, path: Path, count: int) -> tuple[list[str], int]:
    """Writes the header; with new columns, what is there is written again below a new one."""
    file.flush()
    with path.open(newline="") as before:
        old = list(csv.DictReader(before)) if names else []
    names = [*names, *(name for name in row if name not in names)]
    file.seek(0)
    file.truncate()
    writer = csv.DictWriter(file, names, restval="")
    writer.writeheader()
    writer.writerows(old)
    return names, count


def describe(bench: Bench) -> Row:
    """The machine, for machine.json."""
    found: Row = {
        "schema": "torchtraceap.kernels/1",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": platform.machine(),
        "device": "cpu",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }
    if bench.cuda:
        properties = torch.cuda.get_device_properties(bench.device)
        found |= {
            "device": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": bench.cache_bytes,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--minutes", type=float, default=9.0, help="in all; default 9")
    parser.add_argument("--out", type=Path, required=True, help="folder for the CSV files")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--rows", type=int, help="of each part, instead of the plan's")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch sees no GPU here", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    bench = Bench(torch.device(options.device), random.Random(options.seed))
    if bench.cuda:
        bench.sensors = sensors()
    machine = describe(bench) | {"seed": options.seed, "rows": {}}
    total = sum(PARTS[name].share for name in options.only)
    left = 60.0 * options.minutes
    for name in options.only:
        part, begin = PARTS[name], time.monotonic()
        bench.end = begin + left * part.share / total
        count = write_part(bench, part, options.rows or part.rows, options.out / f"{name}.csv")
        took = time.monotonic() - begin
        left, total = left - took, total - part.share
        machine["rows"][name] = count
        print(f"{name}: {count} rows in {took:.0f} s", flush=True)
    machine["notes"] = bench.notes
    (options.out / "machine.json").write_text(json.dumps(machine, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
