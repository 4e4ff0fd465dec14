"""Metrics of a run from the measurements of its processes.

Note [Lost overlap]: waiting for the device behind each step keeps the host from running ahead, as a
training loop lets it. The mean step that is waited for, less the mean step of the same process when
it runs freely, is what such waiting costs; near zero where the host does not run ahead at all. On a
CPU it is the noise of the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

__all__ = ["metrics_of"]


def metrics_of(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of a run; times in ns, memory in bytes.

    Args:
        processes: As `child` writes them, at least one.

    Returns:
        `batch`; `step_ns` of fenced steps: median, p10 and p90 over all, medians `by_process`, and
        `mean`; `free_step_ns`: the mean of a freely running step, median over the processes, and
        `by_process`; `lost_overlap_ns` and its share; `samples_per_s` by the mean free step and
        `samples_per_s_fenced` by the median fenced one; `first_batch_ns` with its parts, medians;
        `memory`, the largest of each; `device` and `threads`.
    """
    fenced = [each["times"]["fenced"] for each in processes]
    free = [fmean(each["times"]["free"]) for each in processes]
    every = np.concatenate([np.asarray(times, dtype=np.int64) for times in fenced])
    typical, freely = median(every.tolist()), median(free)
    lost = median(fmean(times) - mean for times, mean in zip(fenced, free, strict=True))
    batch = processes[0]["batch"]
    return {
        "batch": batch,
        "step_ns": {
            "median": round(typical),
            "p10": round(float(np.quantile(every, 0.1))),
            "p90": round(float(np.quantile(every, 0.9))),
            "mean": round(float(every.mean())),
            "by_process": [round(median(times)) for times in fenced],
        },
        "free_step_ns": {"mean": round(freely), "by_process": [round(mean) for mean in free]},
        "lost_overlap_ns": round(lost),
        "lost_overlap_share": lost / fmean(map(fmean, fenced)),
        "samples_per_s": _per_second(batch, freely),
        "samples_per_s_fenced": _per_second(batch, typical),
        "first_batch_ns": _medians([each["first_batch_ns"] for each in processes]),
        "memory": _largest([each["memory"] for each in processes]),
        "device": processes[0]["device"],
        "threads": processes[0]["threads"],
    }


def _per_second(batch: int | None, ns: float) -> float | None:
    return None if batch is None or not ns else batch * 1e9 / ns


def _medians(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: round(median(part[name] for part in parts)) for name in parts[0]}


def _largest(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in parts[0]:
        values = [part[name] for part in parts if part[name] is not None]
        found[name] = max(values) if values else None
    return found
