"""Emulated collectives on a GPU: right results, right order, kernels that last as long as drawn.

    TORCHTRACEAP_EMULATED_KERNELS=... python benchmarks/device/check_emulated.py --out FOLDER

Writes the trace of DDP steps and of FSDP2 steps. Exit code: 0 all right, 1 not, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from torchtraceap.lab.collection import emulated

RANKS = 8
_TOLERANCE = 0.05
"""How far a kernel's time may be from the one drawn."""
_SPAN_NS = 1_000_000


def main() -> int:
    """Runs every check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for traces")
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        print("skipped: there is no GPU")
        return 2
    out.mkdir(parents=True, exist_ok=True)
    even = emulated.Network(rate=1e12, start_ns=_SPAN_NS, jitter=0.0, late_share=0.0)
    failed = 0
    with emulated.process_group(RANKS, even):
        failed += told("results are those of equal ranks", results_are_right())
        failed += told("a wait makes the current stream wait", waits_are_right())
        failed += told("kernels last as drawn", lengths_are_right(out / "lengths.json"))
    with emulated.process_group(RANKS, "nvlink"):
        for name in emulated.FORMS:
            failed += told(f"{name}: twins run", runs(name, out / f"{name}.json"))
    return 1 if failed else 0


def told(what: str, right: bool) -> int:
    print(f"  {'ok   ' if right else 'WRONG'} {what}")
    return 0 if right else 1


def results_are_right() -> bool:
    right = True
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64):
        values = torch.arange(1, 8 * RANKS + 1, device="cuda").to(dtype)
        summed, averaged = values.clone(), values.clone()
        whole, part = values.new_zeros(RANKS * len(values)), values.new_zeros(8)
        dist.all_reduce(summed)
        dist.all_gather_into_tensor(whole, values)
        dist.reduce_scatter_tensor(part, values)
        right &= torch.equal(summed, RANKS * values)
        right &= torch.equal(whole, values.repeat(RANKS))
        right &= torch.equal(part, RANKS * values[:8])
        if dtype.is_floating_point:
            dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
            right &= torch.equal(averaged, values)
    return bool(right)


def waits_are_right() -> bool:
    """What was queued before is in the sum, and the sum is in what is queued behind the wait."""
    slow = torch.ones(4096, 4096, device="cuda")
    values = torch.zeros(1 << 20, device="cuda")
    for _ in range(20):
        slow = slow @ slow * 1e-4
    values.add_(1)
    work = dist.all_reduce(values, async_op=True)
    work.wait()
    return bool((values.clone() == RANKS).all())


def traced(run: Callable[[], object], path: Path) -> list[dict[str, Any]]:
    """Kernels of NCCL's names, after a run that is not recorded."""
    run()
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    document = emulated.as_nccl_records(json.loads(path.read_text("utf-8")))
    path.write_text(json.dumps(document), "utf-8")
    kernels = [each for each in document["traceEvents"] if each.get("cat") == "kernel"]
    return [each for each in kernels if each["name"].startswith("ncclDevKernel_")]


def lengths_are_right(path: Path) -> bool:
    values = torch.ones(1 << 22, device="cuda")
    kernels = traced(lambda: [dist.all_reduce(values) for _ in range(10)], path)
    drawn_us = (
        emulated.TransferTimes(
            emulated.Network(rate=1e12, start_ns=_SPAN_NS, jitter=0.0, late_share=0.0)
        ).draw_ns("all_reduce", values.nbytes, RANKS)
        / 1e3
    )
    lengths = [kernel["dur"] for kernel in kernels]
    print(f"        drawn {drawn_us:.1f} us, lasted {min(lengths):.1f} to {max(lengths):.1f} us")
    described = all(kernel["args"].get("In msg nelems") == values.numel() for kernel in kernels)
    return described and all(abs(us / drawn_us - 1) < _TOLERANCE for us in lengths)


def runs(name: str, path: Path) -> bool:
    counts = []
    for bad in (False, True):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)]
        model = nn.Sequential(*layers).cuda()
        if name == "shared_statistics":
            model = nn.Sequential(*(nn.Sequential(each, nn.BatchNorm1d(1024)) for each in layers))
            model = model.cuda()
        parallel = emulated.FORMS[name].make(model, bad)
        inputs = torch.randn(512, 1024, device="cuda")

        def step(parallel: emulated.Parallel = parallel, inputs: torch.Tensor = inputs) -> None:
            parallel.module(inputs).square().mean().backward()
            parallel.reduce()

        counts.append(len(traced(step, path.with_stem(f"{path.stem}_{'bad' if bad else 'good'}"))))
    print(f"        {counts[0]} collectives without the fault, {counts[1]} with it")
    return min(counts) > 0


if __name__ == "__main__":
    sys.exit(main())
