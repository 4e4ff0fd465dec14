"""Tables that compare runs: eager with compiled, and one device with another (arXiv 2304.14226,
sections 3.2 and 3.3).

Note [Ratios]: of the geometric means of the processes' median fenced steps, with Welch's 95 %
interval over the processes; with one process a side there is none. The latest run of each
configuration counts. Memory is the allocator's peak on a GPU, and on a CPU what the workload added
to resident memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core import ColumnTable, encode_texts
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.processes.environment import content_hash
from torchtraceap.lab.bench.runs.run_store import StoredRun
from torchtraceap.lab.bench.statistics import scipy_stats

__all__ = ["device_of", "devices_table", "eager_compiled_table", "ratio_interval", "runs_table"]


def runs_table(runs: Sequence[StoredRun]) -> ColumnTable:
    """Return a table with a row for each run."""
    numbers = {
        "step_ns": [run.metrics["step_ns"]["median"] for run in runs],
        "p10_ns": [run.metrics["step_ns"]["p10"] for run in runs],
        "p90_ns": [run.metrics["step_ns"]["p90"] for run in runs],
        "free_step_ns": [run.metrics["free_step_ns"]["mean"] for run in runs],
        "first_batch_ns": [run.metrics["first_batch_ns"]["total"] for run in runs],
    }
    columns: dict[str, Any] = {
        "run": encode_texts(run.id for run in runs),
        "when": encode_texts(run.when[:19].replace("T", " ") for run in runs),
        "workload": encode_texts(run.name for run in runs),
        **{
            key: encode_texts(str(run.config.get(key, "")) for run in runs)
            for key in ("mode", "device", "precision")
        },
        "compiled": np.array([bool(run.config.get("compiled")) for run in runs]),
        "batch": np.ma.masked_equal([run.metrics["batch"] or 0 for run in runs], 0),
        **{name: np.array(values, dtype=np.int64) for name, values in numbers.items()},
        "samples_per_s": _floats(run.metrics["samples_per_s"] for run in runs),
        "peak_bytes": np.array([_peak_bytes(run) for run in runs], dtype=np.int64),
        "flops": _floats(run.metrics["flops_per_step"] for run in runs),
        "config": encode_texts(run.config_hash for run in runs),
        "environment": encode_texts(run.environment_hash for run in runs),
    }
    shown = ("run", "workload", "mode", "device", "precision", "compiled", "batch", "step_ns",
             "p90_ns", "samples_per_s", "peak_bytes", "first_batch_ns")  # fmt: skip
    return ColumnTable(columns, shown=shown, first=("run", "workload", "mode", "step_ns"))


def eager_compiled_table(runs: Iterable[StoredRun]) -> ColumnTable:
    """Return the effect of compilation by workload: speed-up is eager time over compiled time."""
    pairs = _pairs(runs, "compiled", lambda run: int(bool(run.config.get("compiled"))))
    none = "no workload was run both ways: bench run, then the same with --compile"
    return _comparison_table(pairs, ("eager", "compiled"), none)


def devices_table(runs: Iterable[StoredRun], first: str, second: str) -> ColumnTable:
    """Compare two devices by workload: speed-up is the first one's time over the second's. `first`
    and `second` are parts of their names, such as A100, or cpu.

    Raises:
        OptionError: A name fits no run, or both fit the same device.
    """
    every = list(runs)
    names = sorted({device_of(run) for run in every})
    found = [{name for name in names if part.lower() in name.lower()} for part in (first, second)]
    for part, fitting in zip((first, second), found, strict=True):
        if not fitting:
            there = ", ".join(names) or "none"
            raise OptionError(f"no run is of a device {part!r}; there are: {there}")
    if found[0] & found[1]:
        both = ", ".join(sorted(found[0] & found[1]))
        raise OptionError(f"{first!r} and {second!r} both mean {both}: say more of the names")

    def side(run: StoredRun) -> int | None:
        return next((i for i, fitting in enumerate(found) if device_of(run) in fitting), None)

    pairs = _pairs(every, "device", side)
    return _comparison_table(
        pairs, ("first", "second"), "no workload was run alike on both devices"
    )


def device_of(run: StoredRun) -> str:
    """Return the device of a run: the name of the GPU, else of the CPU."""
    if run.metrics.get("device"):
        return str(run.metrics["device"])
    return f"cpu: {(run.environment.get('cpu') or {}).get('model') or 'unknown'}"


_Pair = tuple[StoredRun, StoredRun]


def _pairs(runs: Iterable[StoredRun], differs: str, side: Any) -> list[_Pair]:
    """Return the latest run of each side for configurations that differ only by one key."""
    found: dict[str, list[StoredRun | None]] = {}
    for run in runs:  # in order of time
        place = side(run)
        if place is not None:
            config = {k: v for k, v in run.config.items() if k != "protocol"}
            alike = content_hash({**config, differs: None})
            found.setdefault(alike, [None, None])[place] = run
    pairs = [(a, b) for a, b in found.values() if a is not None and b is not None]
    return sorted(pairs, key=lambda pair: (pair[0].name, str(pair[0].config.get("mode"))))


def _comparison_table(pairs: Sequence[_Pair], sides: tuple[str, str], none: str) -> ColumnTable:
    ratios = [
        ratio_interval(*(run.metrics["step_ns"]["by_process"] for run in pair)) for pair in pairs
    ]
    columns: dict[str, Any] = {
        "workload": encode_texts(a.name for a, _ in pairs),
        **{
            key: encode_texts(str(a.config.get(key, "")) for a, _ in pairs)
            for key in ("mode", "precision")
        },
        "batch": np.ma.masked_equal([a.metrics["batch"] or 0 for a, _ in pairs], 0),
    }
    for place, name in enumerate(sides):
        runs = [pair[place] for pair in pairs]
        columns[f"{name}_device"] = encode_texts(device_of(run) for run in runs)
        columns[f"{name}_ns"] = _integers(run.metrics["step_ns"]["median"] for run in runs)
        columns[f"{name}_peak_bytes"] = _integers(_peak_bytes(run) for run in runs)
        columns[f"{name}_first_batch_ns"] = _integers(
            run.metrics["first_batch_ns"]["total"] for run in runs
        )
        columns[f"{name}_run"] = encode_texts(run.id for run in runs)
    for place, name in enumerate(("speedup", "speedup_low", "speedup_high")):
        columns[name] = _floats(ratio[place] for ratio in ratios)
    memory_ratios: list[float | None] = []
    for a, b in pairs:  # memory of different kinds is not compared
        alike = bool(a.metrics.get("device")) == bool(b.metrics.get("device"))
        peak = _peak_bytes(a)
        memory_ratios.append(_peak_bytes(b) / peak if alike and peak else None)
    columns["memory_ratio"] = _floats(memory_ratios)
    notes = [] if pairs else [none]
    if any(low is None for _, low, _ in ratios):
        notes.append("Runs of a single process have no interval.")
    keys = ("torch", "libraries", "variables")
    unlike = sorted(
        {
            a.name
            for a, b in pairs
            if any(a.environment.get(k) != b.environment.get(k) for k in keys)
        }
    )
    if unlike:
        notes.append(f"Versions or settings differ too between the runs of {', '.join(unlike)}.")
    mean = float(np.exp(np.mean(np.log([ratio[0] for ratio in ratios])))) if ratios else None
    shown = ("workload", "mode", "precision", "batch", f"{sides[0]}_ns", f"{sides[1]}_ns",
             "speedup", "speedup_low", "speedup_high", "memory_ratio")  # fmt: skip
    return ColumnTable(
        columns,
        shown=shown,
        first=("workload", "mode", "speedup"),
        facts={"geometric_mean_speedup": mean},
        notes=notes,
    )


def _peak_bytes(run: StoredRun) -> int:
    """Return the peak memory in bytes; see Note [Ratios]."""
    memory: Mapping[str, Any] = run.metrics["memory"]
    allocated = memory.get("allocated_peak_bytes")
    return int(memory["rss_above_bytes"] if allocated is None else allocated)


def _floats(values: Iterable[float | None]) -> Any:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=float)


def _integers(values: Iterable[int]) -> Any:
    return np.array(list(values), dtype=np.int64)


def ratio_interval(
    upper: npt.ArrayLike, lower: npt.ArrayLike
) -> tuple[float, float | None, float | None]:
    """Return the ratio of the geometric means of two sets of positive numbers, one for each
    process, with the ends of Welch's 95 % interval of logarithms; these None where either has a
    single number."""
    a, b = (np.log(np.asarray(each, dtype=np.float64)) for each in (upper, lower))
    distance = float(a.mean() - b.mean())
    if len(a) < 2 or len(b) < 2:
        return math.exp(distance), None, None
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if not va + vb:
        return math.exp(distance), math.exp(distance), math.exp(distance)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = float(scipy_stats().t.ppf(0.975, freedom)) * math.sqrt(va + vb)
    return math.exp(distance), math.exp(distance - half), math.exp(distance + half)
