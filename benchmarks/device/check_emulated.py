"""Emulated collectives: right results, right order, kernels that last as long as drawn.

Steps of every form run in both twins, and their traces are kept. On a CPU the same checks run on
the backend's threads, but for the lengths of kernels, of which there are none.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stage import Stage, run_stage
from torch import distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from torchtraceap.lab.collection import emulated

RANKS = 8
_TOLERANCE = 0.05
"""How far a kernel's time may be from the one that was drawn, as a share."""
_SPAN_NS = 1_000_000
_EVEN = emulated.Network(rate=1e12, start_ns=_SPAN_NS, jitter=0.0, late_share=0.0)
_GPU_ALONE = ("shared_statistics",)
_TINY = ("tiny_buckets", "all_reduce_after_backward")


def check(stage: Stage) -> None:
    """Runs every check; `found["checks"]` says of each whether it holds."""
    checks: dict[str, Any] = {}

    def told(name: str, work: Callable[[], Any]) -> None:
        found = stage.attempt(name, work)
        right = found if isinstance(found, bool) else found is not None and found["right"]
        checks[name] = found if isinstance(found, dict) else {"right": right}
        stage.failed |= not right
        print(f"  {'ok   ' if right else 'WRONG'} {name}", flush=True)
        stage.keep(ranks=RANKS, checks=checks)

    with emulated.process_group(RANKS, _EVEN):
        told("results are those of equal ranks", lambda: results_are_right(stage.device))
        told("what waits sees the result", lambda: waits_are_right(stage))
        if stage.on_gpu:
            told("kernels last as drawn", lambda: lengths_are_right(stage.out / "lengths.json.gz"))
    names = [name for name in emulated.FORMS if stage.on_gpu or name not in _GPU_ALONE]
    with emulated.process_group(RANKS, "nvlink"):
        for name in stage.each(_TINY if stage.tiny else names, 3.0):
            told(f"form {name}", lambda name=name: twins_run(stage, name))


def results_are_right(device: str) -> bool:
    right = True
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64):
        values = torch.arange(1, 8 * RANKS + 1, device=device).to(dtype)
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


def waits_are_right(stage: Stage) -> bool:
    """What was queued before is in the sum, and the sum is in what is queued behind the wait."""
    width = 128 if stage.tiny else 4096
    slow = torch.ones(width, width, device=stage.device)
    values = torch.zeros(1 << 20, device=stage.device)
    for _ in range(20):
        slow = slow @ slow * 1e-4
    values.add_(1)
    work = dist.all_reduce(values, async_op=True)
    work.wait()
    return bool((values.clone() == RANKS).all())


def traced(run: Callable[[], object], path: Path, device: str) -> list[dict[str, Any]]:
    """Kernels with NCCL's names, or on a CPU transfers with gloo's, of a run that follows one
    that is not recorded."""
    activities = [ProfilerActivity.CPU]
    run()
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities, record_shapes=True) as profiler:
        run()
        if device != "cpu":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document = emulated.as_nccl_records(json.load(file))
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(document, file)
    events = document["traceEvents"]
    if device == "cpu":
        return [each for each in events if str(each.get("name", "")).startswith("gloo:")]
    kernels = [each for each in events if each.get("cat") == "kernel"]
    return [each for each in kernels if each["name"].startswith("ncclDevKernel_")]


def lengths_are_right(path: Path) -> dict[str, Any]:
    values = torch.ones(1 << 22, device="cuda")
    kernels = traced(lambda: [dist.all_reduce(values) for _ in range(10)], path, "cuda")
    drawn_us = emulated.TransferTimes(_EVEN).draw_ns("all_reduce", values.nbytes, RANKS) / 1e3
    lengths = [kernel["dur"] for kernel in kernels]
    described = all(kernel["args"].get("In msg nelems") == values.numel() for kernel in kernels)
    close = all(abs(us / drawn_us - 1) < _TOLERANCE for us in lengths)
    right = bool(lengths) and described and close
    return {"right": right, "drawn_us": drawn_us, "lasted_us": lengths}


def twins_run(stage: Stage, name: str) -> dict[str, Any]:
    """How many collectives a step of each twin issues."""
    width, depth, samples = (64, 4, 32) if stage.tiny else (1024, 12, 512)
    counts = []
    for bad in (False, True):
        torch.manual_seed(0)
        layers: list[nn.Module] = [
            nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)
        ]
        if name == "shared_statistics":
            layers = [nn.Sequential(each, nn.BatchNorm1d(width)) for each in layers]
        model = nn.Sequential(*layers).to(stage.device)
        parallel = emulated.FORMS[name].make(model, bad)
        inputs = torch.randn(samples, width, device=stage.device)

        def step(parallel: emulated.Parallel = parallel, inputs: torch.Tensor = inputs) -> None:
            parallel.module(inputs).square().mean().backward()
            parallel.reduce()

        path = stage.out / f"{name}_{'bad' if bad else 'good'}.json.gz"
        counts.append(len(traced(step, path, stage.device)))
    return {"right": min(counts) > 0, "collectives_good": counts[0], "collectives_bad": counts[1]}


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, check))
