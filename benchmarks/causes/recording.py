"""Programs recorded by `torch.profiler` on the CPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from programs import Program
from torch.profiler import ProfilerActivity, profile, schedule

__all__ = ["record"]

WARM_UP, STEPS = 4, 10


def record(program: Program, path: Path, *, stacks: bool) -> Path:
    """Writes a trace of some steps.

    Args:
        program: What runs.
        path: Of the trace.
        stacks: With Python's frames and modules.
    """
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WARM_UP, warmup=2, active=STEPS),
            record_shapes=True,
            with_stack=stacks,
            on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(WARM_UP + 2 + STEPS):
                program.step()
                profiler.step()
    return path
