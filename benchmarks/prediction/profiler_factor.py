#!/usr/bin/env python3
"""How much slower torch.profiler makes the host, by its options.

    python benchmarks/prediction/profiler_factor.py

Needs torch, on a CPU: a transformer of tiny width, of which nearly all time is Python, dispatcher
and profiler. CPU time of the thread and the least of several rounds, so that other load on the
machine doesn't count. Prints the time of a step without a profiler and by its options, and how
gaps between operators and operators that compute nothing grow against the default options. The
constants of host.PROFILERS come from here.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import torchtraceap as ttap
from torchtraceap.lab.prediction.lowering.recorded_host import recorded_calls

ROUNDS, STEPS, LAYERS = 7, 6, 12
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "stack": {"record_shapes": True, "with_stack": True},
    "full": {
        "record_shapes": True,
        "with_stack": True,
        "with_modules": True,
        "with_flops": True,
        "profile_memory": True,
    },
}


class Block(nn.Module):
    """Attention and a feed-forward part, with modules around each as public models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        heads = [p(y).view(1, 4, 2, 4).transpose(1, 2) for p in list(self.projections)[:3]]
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.projections[3](mixed.transpose(1, 2).reshape(1, 4, 8))
        return x + self.feed(self.norms[1](x))


def step_ns(model: nn.Module, x: torch.Tensor) -> float:
    start = time.thread_time_ns()
    for _ in range(STEPS):
        model(x)
    return (time.thread_time_ns() - start) / STEPS


def one_round(model: nn.Module, x: torch.Tensor, options: dict[str, Any]) -> dict[str, float]:
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        model(x)
        taken = step_ns(model, x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        calls = recorded_calls(ttap.load(path).rank())
    views = [
        float(calls.to_launch[place])
        for place, call in enumerate(calls.call_contexts)
        if call.name in ("aten::view", "aten::t", "aten::transpose")
    ]
    gaps = calls.before[np.isfinite(calls.before)]
    return {"step": taken, "gaps": float(np.median(gaps)), "views": float(np.median(views))}


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block() for _ in range(LAYERS))).eval()
    x = torch.randn(1, 4, 8)
    with torch.inference_mode():
        step_ns(model, x)
        bare = min(step_ns(model, x) for _ in range(ROUNDS))
        print(f"without a profiler: {bare / 1e6:.2f} ms a step")
        found = {}
        for name, options in OPTIONS.items():
            rounds = [one_round(model, x, options) for _ in range(ROUNDS)]
            found[name] = {key: min(each[key] for each in rounds) for key in rounds[0]}
            against = {key: found[name][key] / found["plain"][key] for key in found[name]}
            shown = ", ".join(f"{key} {value:.2f}" for key, value in against.items())
            print(f"{name:7} {found[name]['step'] / bare:.2f} of it; against plain: {shown}")


if __name__ == "__main__":
    main()
