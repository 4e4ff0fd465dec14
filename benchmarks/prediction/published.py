"""Step times and memory that others published, against what `plan` tells of the same jobs.

    python benchmarks/prediction/published.py [--json FILE]

published.csv has each run with its source, device and configuration. Every run is asked for as it
was configured (sharded parameters are ZeRO stage 3). Nothing of the package was fitted on these
runs, and a third (`held_out`, by a hash of the row) was set aside before any comparison; both parts
are shown. Rates are those of the sources, which round samples but not tokens per second. Runs that
fitted on the device are also a test of memory, of one side. A sweep is the runs of one model on one
device and number of GPUs whose throughput per token differs by sequence and micro-batch.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from torchtraceap.lab.jobs import Machine, TrainingJob, job_memory
from torchtraceap.lab.jobs.composition import published_jobs
from torchtraceap.lab.jobs.parallelism import job_fit
from torchtraceap.ops import device_named

PUBLISHED = Path(__file__).with_name("published.csv")
NODE_BANDWIDTH = {"a100_sxm_80gb": 200e9, "h100_sxm": 400e9}
"""Bytes per second of a machine's network: 1,600 Gbit/s are published for the A100 runs, those of
the H100 runs are not and are taken for 400 Gbit/s of each GPU."""
RECOMPUTE = {"none": "none", "full": "full"}


def job_of(row: dict[str, str]) -> TrainingJob:
    """Return the job of a row."""
    number = {key: int(value) for key, value in row.items() if value.isdigit()}
    return TrainingJob(
        number["global_batch"], number["micro_batch"], number["hidden"], number["layers"],
        number["sequence"], 1, number["gpus"], 1, number["vocabulary"], number["heads"],
        number["key_value_heads"], 0, number["feed_forward"], row["gated"] == "1", True,
        RECOMPUTE.get(row["recompute"], "none"), zero=3,
    )  # fmt: skip


def compare(row: dict[str, str]) -> dict[str, Any]:
    """Return what is predicted and published of a row whose device is known."""
    job, device = job_of(row), device_named(row["device"])
    machine = Machine.of(device, node_bandwidth=NODE_BANDWIDTH[device.id])
    times, low, high = published_jobs().model_for(machine, device).interval([job])
    measured = 1e9 * job.global_batch * job.sequence / float(row["tokens_per_second"])
    fit = job_fit(job, device)
    return {
        "model": row["model"],
        "device": device.id,
        "gpus": job.gpus,
        "sequence": job.sequence,
        "micro_batch": job.micro_batch,
        "recompute": job.recompute,
        "held_out": row["held_out"] == "1",
        "measured_ns": round(measured),
        "predicted_ns": round(float(times[0])),
        "error": float(times[0]) / measured - 1,
        "inside": bool(low[0] <= measured <= high[0]),
        "fits": fit is not None and fit.fits,
        "needed_gib": 0.0 if fit is None else fit.needed / 2**30,
    }


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line of a table."""
    errors = [abs(row["error"]) for row in rows]
    signed = median(row["error"] for row in rows)
    inside, fits = (sum(row[name] for row in rows) for name in ("inside", "fits"))
    return (
        f"{len(rows)} | {median(errors):.1%} | {signed:+.1%} | {max(errors):.0%} | "
        f"{inside} | {fits} |"
    )


def ordered_pairs(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return how many pairs of runs of one model are in the published order of time per token on
    both sides, and how many differ by more than 5 %."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        scale = row["gpus"] / row["tokens"]
        groups[row["model"], row["device"]].append(
            (log(row["measured_ns"] * scale), log(row["predicted_ns"] * scale))
        )
    right = total = 0
    for group in groups.values():
        for place, one in enumerate(group):
            for other in group[:place]:
                if abs(one[0] - other[0]) > 0.05:
                    total += 1
                    right += (one[0] < other[0]) == (one[1] < other[1])
    return right, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write all rows")
    options = parser.parse_args()
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        published = list(csv.DictReader(file))
    found = []
    for row in published:
        if row["device"] not in NODE_BANDWIDTH:
            continue
        one = compare(row)
        one["tokens"] = int(row["global_batch"]) * int(row["sequence"])
        found.append(one)
    print("| runs | count | median error | bias | largest | in 8 of 10 | said to fit |")
    print("|---|---|---|---|---|---|---|")
    parts = {
        "looked at": [row for row in found if not row["held_out"]],
        "set aside": [row for row in found if row["held_out"]],
        **{name: [row for row in found if row["device"] == name] for name in NODE_BANDWIDTH},
        "layers computed again": [row for row in found if row["recompute"] == "full"],
        "nothing computed again": [row for row in found if row["recompute"] == "none"],
        "sequences to 2,048": [row for row in found if row["sequence"] <= 2048],
        "longer": [row for row in found if row["sequence"] > 2048],
    }
    for name, rows in parts.items():
        print(f"| {name} | {summary(rows)}")
    right, total = ordered_pairs(found)
    print(f"\nOf {total} pairs of one model on one device {right} have the published order.")
    for row in published:
        if row["memory_gib"]:
            bounds = []
            for way in ("none", "full"):
                memory = job_memory(job_of({**row, "recompute": way}))
                bounds.append(memory.total / 2**30)
            print(
                f"{row['model']} on {row['gpus']}, compiled {row['compiled']}: published "
                f"{row['memory_gib']} GiB, tensors {bounds[1]:.1f} (layers computed again) to "
                f"{bounds[0]:.1f} GiB (nothing)"
            )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
