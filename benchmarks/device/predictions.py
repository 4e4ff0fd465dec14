"""Predictions of ten models of the suite, written before any of them ran on the GPU, and measured.

    python benchmarks/device/predictions.py write [--only MODEL ...]      where there is no GPU
    python benchmarks/device/predictions.py --out FOLDER [--device cuda]  as a stage of all.py

`write` asks the product's `predict` for every model, type and device, and puts the answers into
`predicted.json`, with the commit and the version that made them. That file is committed before a
GPU is at hand and is never edited afterwards. The stage runs the same steps: their wall time with
each step waited for and running freely, their time and their kernels' time under the profiler, and
the peak memory that tensors take. `read.py` compares both.

A prediction is of a step that is profiled. With "fp32" TF32 is off for products, as PyTorch's
default is, and on for convolutions, as PyTorch's default is too; with "bf16" the step runs under
autocast. TF32 for products can't be asked for: `predict` takes no such setting.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stage import ROOT, Stage, run_stage

PREDICTED = Path(__file__).with_name("predicted.json")
SCHEMA = "torchtraceap.predicted/1"
MODELS = (
    "resnet", "gpt", "dlrm", "vit", "convnext", "unet", "conformer", "llama", "mobilenet", "detr",
)  # fmt: skip
PRECISIONS = ("fp32", "bf16")
DEVICES = ("H100-SXM", "H200 SXM")
_TINY_MODELS = ("dlrm",)
_STEPS, _WARM_UP, _RECORDED = 20, 5, 4


# ------------------------------------------------------------------------- before


def write(models: list[str], target: Path) -> None:
    """Predicts every model and adds it to `predicted.json`."""
    import torch

    import torchtraceap as ttap

    rows: list[dict[str, Any]] = []
    for model in models:
        for precision in PRECISIONS:
            for device in DEVICES:
                began = time.monotonic()
                try:
                    found = ttap.predict(workload_of(model, precision), device=device)
                except Exception as error:  # it is told, and the other models still count
                    rows.append(_head(model, precision, device) | {"failed": str(error)})
                    print(f"{model} {precision} {device}: {error}", flush=True)
                    continue
                rows.append(_head(model, precision, device) | _predicted(found))
                took = time.monotonic() - began
                step = found.step.predicted_ns / 1e6
                print(f"{model} {precision} {device}: {step:.3g} ms, in {took:.0f} s", flush=True)
    document = {
        "schema": SCHEMA,
        "commit": _commit(),
        "torchtraceap": ttap.__version__,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "python benchmarks/device/predictions.py write",
        "rows": rows,
    }
    target.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _head(model: str, precision: str, device: str) -> dict[str, str]:
    return {"model": model, "precision": precision, "device": device}


def workload_of(model: str, precision: str) -> Callable[[], Any]:
    """Makes the workload at full size; in bf16 its forward pass runs under autocast."""
    import torch
    from torch import nn

    from torchtraceap.lab.workloads.registry import find
    from torchtraceap.lab.workloads.workload import Workload, check_workload

    class Autocast(nn.Module):
        """The model, whose forward pass runs as autocast would have it on a GPU."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return self.inner(*args, **kwargs)

    def make() -> Workload:
        made = check_workload(find(model).make(None, "full"))
        if precision == "fp32":
            return made
        loss = made.loss

        def under_autocast(output: Any) -> torch.Tensor:
            assert loss is not None
            with torch.autocast("cuda", torch.bfloat16):
                return loss(output)

        return Workload(Autocast(made.model), made.inputs, loss and under_autocast, made.optimizer)

    return make


def _predicted(found: Any) -> dict[str, Any]:
    """The predicted figures that a measurement is compared with, in ns and bytes."""
    memory = found.memory_bytes
    return {
        "step_ns": found.step.predicted_ns,
        "low_ns": found.step.low_ns,
        "high_ns": found.step.high_ns,
        "gpu_busy_ns": found.gpu.busy_ns,
        "host_ns": found.host_ns,
        "bound_by": found.bound_by,
        "peak_bytes": None if memory is None else memory.peak,
        "ops": _predicted_ops(found),
        "unknown_ops": [op.name for op in found.unknown],
    }


def _predicted_ops(found: Any) -> list[dict[str, Any]]:
    """Operators that launch, calls of one name together."""
    by_name: dict[str, dict[str, Any]] = {}
    for op in found.ops:
        row = by_name.setdefault(
            op.name, {"name": op.name, "kernels": 0, "gpu_ns": 0, "low_ns": 0, "high_ns": 0}
        )
        for key in ("kernels", "gpu_ns", "low_ns", "high_ns"):
            row[key] += getattr(op, key)
    return sorted(by_name.values(), key=lambda row: -row["gpu_ns"])


def _measured_ops(trace: Any) -> list[dict[str, Any]]:
    """The same of a trace of `_RECORDED` steps, per step."""
    table = trace.ops()
    columns = (table[name] for name in ("name", "gpu_events", "exclusive_gpu_ns"))
    rows = (
        {"name": str(name), "kernels": count / _RECORDED, "gpu_ns": round(ns / _RECORDED)}
        for name, count, ns in zip(*columns, strict=True)
        if ns > 0
    )
    return sorted(rows, key=lambda row: -row["gpu_ns"])


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


# ------------------------------------------------------------------------- on the GPU


def measure(stage: Stage) -> None:
    """Measures the steps that `predicted.json` has."""
    rows = stage.rows("rows")
    known = {(row["model"], row["precision"]) for row in rows}
    pairs = [
        (model, precision)
        for precision in PRECISIONS
        for model in (_TINY_MODELS if stage.tiny else MODELS)
        if (model, precision) not in known
    ]
    for model, precision in stage.each(pairs, 8.0):
        row = stage.attempt(
            f"{model} {precision}",
            lambda model=model, precision=precision: _measured(stage, model, precision),
        )
        if row is not None:
            rows.append(row)
        stage.keep(rows=rows, recorded_steps=_RECORDED)


def _measured(stage: Stage, model: str, precision: str) -> dict[str, Any]:
    import torch

    import torchtraceap as ttap
    from torchtraceap.lab.workloads.steps import make_step

    steps = 3 if stage.tiny else _STEPS
    path = stage.out / f"{model}_{precision}.json.gz"
    path.unlink(missing_ok=True)
    if stage.on_gpu:
        gc.collect()  # the model before this one
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with make_step(model, device=stage.device, precision=precision, size=stage.size) as step:
        # A prediction follows PyTorch's defaults; make_step's "fp32" turns TF32 off everywhere.
        torch.backends.cudnn.allow_tf32 = True
        for _ in range(_WARM_UP):
            step.step()
        step.synchronize()
        fenced = []
        for _ in range(steps):
            began = time.perf_counter_ns()
            step.step()
            step.synchronize()
            fenced.append(time.perf_counter_ns() - began)
        began = time.perf_counter_ns()
        for _ in range(steps):
            step.step()
        step.synchronize()
        free = (time.perf_counter_ns() - began) / steps
        peak = torch.cuda.max_memory_allocated() if stage.on_gpu else None
        with ttap.profile(path, active=_RECORDED, diagnose=False) as recording:
            for _ in range(_RECORDED + 2):
                step.step()
                recording.step()
    trace = ttap.load(path)
    profiled = [each.end_ns - each.start_ns for each in trace.ranks[0].tree.steps]
    return {
        "model": model,
        "precision": precision,
        "fenced_step_ns": round(statistics.median(fenced)),
        "free_step_ns": round(free),
        "profiled_step_ns": round(statistics.median(profiled)),
        "gpu_busy_ns": round(trace.summary().timeline.busy_ns / _RECORDED),
        "peak_bytes": peak,
        "ops": _measured_ops(trace),
        "trace": path.name,
    }


def main() -> int:
    if sys.argv[1:2] != ["write"]:
        return run_stage(__doc__, measure)
    parser = argparse.ArgumentParser(prog="predictions.py write")
    parser.add_argument("write")
    parser.add_argument("--only", nargs="+", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--output", type=Path, default=PREDICTED)
    options = parser.parse_args()
    write(options.only, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
