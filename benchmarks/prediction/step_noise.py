#!/usr/bin/env python3
"""How much steps of one rank vary, and how long ranks wait for each other.

    python benchmarks/prediction/step_noise.py TRACES [--out FILE]

Of each public eager trace with several steps: host time (without waits) and GPU time (without
collectives and copies) of each step over their median. `layout/skew.py` has these ratios, as what
ranks differ by in a step. Of those of several ranks also what collectives take beyond the fastest
of the same place in a step, as a share of it, against what the slowest rank is expected to take
longer by the ratios of the other traces.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.lab.prediction.estimate import expected_maximum
from torchtraceap.lab.prediction.lowering.recorded_host import recorded_calls
from torchtraceap.trace.ranks import RankTrace

TRACES = (
    "hta/ddp_a100_rank_of_8_control.json.gz",
    "hta/nccl_a100_rank_of_2.json.gz",
    "hta/resnet_ddp_v100_ns_resolution.json.gz",
    "kineto/resnet50_num_workers_0.json.gz",
    "kineto/resnet50_num_workers_4.json.gz",
    "modded_nanogpt/overlap_before.json.gz",
    "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz",
)


def host_ns(part: RankTrace) -> np.ndarray:
    """Of each step."""
    calls = recorded_calls(part)
    inside = calls.to_launch + calls.between * np.maximum(calls.counts - 1, 0) + calls.after
    whole = np.nan_to_num(calls.before) + inside + np.array([sum(x) for x in calls.launches])
    found = np.bincount(part.tree.step[calls.rows].astype(np.int64), whole)
    return found[found > 0]


def gpu_ns(part: RankTrace, collectives: bool) -> list[np.ndarray]:
    """Of each step the times of its kernels, in order: collectives, or all others."""
    table, tree = part.table, part.tree
    rows = np.flatnonzero(tree.launch != _core.NO_ROW)
    names = [table.name_of(row).lower() for row in rows.tolist()]
    meets = np.array(["nccl" in name for name in names])
    kernels = np.array([not name.startswith("mem") for name in names])
    chosen = rows[kernels & (meets == collectives)]
    step = tree.step[tree.launch[chosen]].astype(np.int64)
    return [table.dur_ns[chosen[step == each]] for each in range(len(tree.steps))]


def waits(part: RankTrace) -> np.ndarray | None:
    """Of each step what its collectives take beyond the fastest of their place; None where steps
    have different ones."""
    found = gpu_ns(part, collectives=True)
    if not len(found[0]) or len({len(step) for step in found}) > 1:
        return None
    times = np.stack(found)
    return (times - times.min(axis=0)).sum(axis=1)


def row_of(folder: Path, path: str) -> dict[str, Any]:
    part = ttap.load(folder / path).rank()
    host = host_ns(part)
    gpu = np.array([step.sum() for step in gpu_ns(part, collectives=False)])
    steps = np.array([step.end_ns - step.start_ns for step in part.tree.steps])
    row: dict[str, Any] = {
        "trace": path,
        "host": np.round(host / np.median(host), 3).tolist(),
        "gpu": np.round(gpu / np.median(gpu), 3).tolist(),
    }
    waited = waits(part)
    ranks = part.world_size or 1
    if waited is not None and ranks > 1:
        row |= {"ranks": ranks, "waits": float(waited.mean() / steps.mean())}
        row["shares"] = {
            "host": float(host.mean() / steps.mean()),
            "gpu": float(gpu.mean() / steps.mean()),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row_of(options.traces, path) for path in TRACES]
    for one in rows:
        if "waits" in one:
            others = [row for row in rows if row is not one]
            one["predicted"] = max(
                share
                * (expected_maximum([r for row in others for r in row[side]], one["ranks"]) - 1)
                for side, share in one["shares"].items()
            )
        print(json.dumps(one))
    for side in ("host", "gpu"):
        print(side, sorted(ratio for row in rows for ratio in row[side]))
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
