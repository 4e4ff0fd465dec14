"""Samples made in a test: windows of traces whose faults show in one feature."""

from __future__ import annotations

import numpy as np

from torchtraceap.datasets.labels import TYPES
from torchtraceap.datasets.samples import Sample

__all__ = ["made_sample", "made_samples"]

_WINDOWS, _FEATURES = 20, 4


def made_sample(number: int, *, bad: bool, split: str = "train", **changes: object) -> Sample:
    """Of a trace; where it is bad, four windows have a cost, and one is neither."""
    rng = np.random.default_rng(number)
    values = rng.normal(size=(_WINDOWS, _FEATURES)).astype(np.float32)
    cost = np.zeros((_WINDOWS, len(TYPES)), dtype=np.float32)
    kind = number // 2 % 2
    if bad:
        start = int(rng.integers(0, _WINDOWS - 5))
        cost[start : start + 4, kind] = 0.5
        cost[start + 4, kind] = 0.05
        values[start : start + 4, kind] += 4
    evidence = np.concatenate([cost, cost.max(axis=1, keepdims=True)], axis=1)
    fields = {
        "id": f"{number:06d}", "split": split, "task": ("pose", "depth")[number // 4 % 2],
        "group": f"{split} base {number // 4}", "source": "lifted", "device": None, "label": bad,
        "type": TYPES[kind] if bad else None, "form": f"form {number // 2 % 3}" if bad else "none",
        "twin": f"{number ^ 1:06d}" if bad else None, "already": (), "run": f"{number:06d}",
        "bounds_ns": np.arange(_WINDOWS + 1) * 1_000, "cost": cost,
        "positive": cost.max(axis=1) >= 0.1,
        "ignore": (cost.max(axis=1) > 0) & (cost.max(axis=1) < 0.1),
        "values": values, "zscores": values / 2, "evidence": evidence,
        "surprisal": evidence[:, -1] * 3.0,
    }  # fmt: skip
    return Sample(**{**fields, **changes})  # type: ignore[arg-type]


def made_samples(count: int, split: str = "train", first: int = 0) -> list[Sample]:
    """Pairs of a trace with a fault and its twin, two pairs for each group."""
    numbers = range(first, first + count)
    return [made_sample(number, bad=number % 2 == 0, split=split) for number in numbers]
