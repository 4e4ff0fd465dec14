"""Runs every workload of the suite on the CPU: training and evaluation, fp32 and bf16, and some
compiled; docs/benchmarking.md.

What counts: a step runs, its loss is finite, and parameters get gradients. Times are seconds of a
core, so that a busy machine counts for nothing, and say no more than an order of magnitude.

Usage: run_all.py [NAME ...] [--compiled NAME ...] [--output FILE]
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["HF_HUB_OFFLINE"] = "1"

import harness
import torch

from torchtraceap.errors import TraceError
from torchtraceap.lab.workloads.registry import workloads
from torchtraceap.lab.workloads.steps import make_step

Row = dict[str, Any]


def tried(name: str, **options: Any) -> Row:
    row: Row = {"name": name, **options}
    try:
        with make_step(name, **options) as step:
            row |= of_training(step) if options["mode"] == "train" else {}
            step.step()
            begun = time.process_time()
            step.step()
            row["step_s"] = round(time.process_time() - begun, 4)
    except TraceError as error:
        row["skipped"] = str(error)
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    gc.collect()
    return row


def of_training(step: Any) -> Row:
    """A first step, with its loss and how many parameters it gave a gradient."""
    seen: set[int] = set()
    trained = [each for each in step.model.parameters() if each.requires_grad]
    hooks = [
        each.register_hook(lambda gradient, place=place: seen.add(place))
        for place, each in enumerate(trained)
    ]
    loss = step.step()
    for hook in hooks:
        hook.remove()
    return {
        "loss": round(float(loss), 5),
        "finite": bool(torch.isfinite(loss)),
        "with_gradient": len(seen),
        "parameters": len(trained),
        "weights": sum(each.numel() for each in trained),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compiled", nargs="*", default=["resnet", "gpt", "dlrm"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = workloads()
    rows: list[Row] = []
    for name in options.names or [entry.name for entry in known]:
        for precision in ("fp32", "bf16"):
            for mode in ("train", "eval"):
                rows.append(tried(name, mode=mode, precision=precision))
        print(*(row.get("failed") or row.get("skipped") or row["step_s"] for row in rows[-4:]),
              name, file=sys.stderr)  # fmt: skip
    for name in options.compiled:
        rows += [tried(name, mode=mode, compiled=True) for mode in ("train", "eval")]
    counts = {
        "workloads": len({row["name"] for row in rows}),
        "of_torch_alone": sum(not entry.needs for entry in known),
        "runs": len(rows),
        "failed": sum("failed" in row for row in rows),
        "skipped": sum("skipped" in row for row in rows),
        "not_finite": sum(row.get("finite") is False for row in rows),
        "all_with_gradient": sum(
            row.get("with_gradient", -1) == row.get("parameters") for row in rows
        ),
        "trained": sum("parameters" in row for row in rows),
    }
    print(counts)
    for row in rows:
        if "failed" in row or "skipped" in row:
            print(row)
    if options.output:
        harness.write_results(options.output, torch=torch.__version__, counts=counts, runs=rows)


if __name__ == "__main__":
    main()
