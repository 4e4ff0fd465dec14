"""Coefficients that were fitted to published iteration times, with the range of those jobs.

`data/training.json` is made by `benchmarks/prediction/many_gpus.py --fit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.records import dataclass
from torchtraceap.lab.jobs.composition import CalibratedJobs, Coefficients, Deviations
from torchtraceap.lab.jobs.jobs import Machine, TrainingJob
from torchtraceap.lab.jobs.terms import COEFFICIENTS
from torchtraceap.ops.devices import Device

__all__ = ["PublishedJobs", "published_jobs"]

_DATA = Path(__file__).with_name("data") / "training.json"


@dataclass(frozen=True, slots=True)
class PublishedJobs:
    """Coefficients of published jobs, and a description of these jobs."""

    coefficients: Coefficients
    deviations: Deviations
    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest size of the jobs: hidden, sequence, tensor, micro_batch, gpus, ..."""
    devices: tuple[str, ...]
    """Ids of the GPUs that they ran on."""
    source: str
    """The source in words."""

    def model_for(self, machine: Machine, device: Device) -> CalibratedJobs:
        """Return a model that is carried over to another cluster, and to another GPU if it is
        one."""
        start = self.coefficients.carried_over()
        if device.id not in self.devices:
            start = start.on_another_gpu()
        return CalibratedJobs(machine, [], start, self.deviations)

    def outside(self, job: TrainingJob, device: Device) -> tuple[str, ...]:
        """Return the properties in which a job lies outside of the measured ones."""
        found = [] if device.id in self.devices else [f"{device.name} was not measured"]
        for name, (low, high) in self.ranges.items():
            value = getattr(job, name)
            if not low <= value <= high:
                name = name.replace("_", "-")
                found.append(f"{name} {value:,} (measured: {low:,.0f} to {high:,.0f})")
        if job.zero:
            found.append(f"ZeRO stage {job.zero}")
        if job.flash_attention:
            found.append("flash attention")
        if job.gated or job.key_value_heads not in (0, job.attention_heads):
            found.append("gated feed-forward networks and shared keys and values")
        return tuple(found)


@cache
def published_jobs() -> PublishedJobs:
    """Load the coefficients that are shipped; the file is read once per process."""
    told: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    if tuple(told["coefficients"]) != COEFFICIENTS:
        raise RuntimeError(f"{_DATA.name} was fitted to other terms; fit it anew")
    return PublishedJobs(
        Coefficients(
            np.log(np.array(list(told["coefficients"].values()), dtype=np.float64)),
            np.array(told["covariance"], dtype=np.float64),
        ),
        Deviations(**told["deviations"]),
        {name: (float(low), float(high)) for name, (low, high) in told["ranges"].items()},
        tuple(told["devices"]),
        told["source"],
    )
