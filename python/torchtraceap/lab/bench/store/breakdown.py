"""Breakdown of a step's time into active, data movement and idle by cause (arXiv 2304.14226, 2.3).

Note [Parts of a step]: each instant of a step belongs to one part, by union of intervals. On a GPU
*active* is computation, or a collective with no computation beside it; *data movement* is copies
that run alone; *idle* is the rest, by cause. A run that computes on the host has the parts of its
critical path: operators are active, copies as above, and what no operator fills is idle. Shares are
means over the counted steps (tables/steps/iterations.py) with the 95 % interval of Student's t, in
which steps of one process count as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import encode_json, encode_texts
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.core.table import ColumnTable
from torchtraceap.diagnosis.verdict import COMPUTATION, computes_on, parts_over_time
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.store.intervals import mean_interval
from torchtraceap.lab.bench.store.run_store import StoredRun
from torchtraceap.lab.workloads.registry import workloads
from torchtraceap.tables.steps.iterations import counted_spans
from torchtraceap.trace.load import load
from torchtraceap.trace.ranks import Ranks

__all__ = ["GROUPS", "Breakdown", "RunBreakdown", "Share", "break_down", "break_down_runs",
           "breakdown_table", "task_table"]  # fmt: skip

GROUPS = ("active", "data_movement", "idle")
_ACTIVE = {*COMPUTATION, "communication"}
_MOVEMENT = {"memcpy", "device_memcpy", "copy"}
_NO_TASK = "other"


@dataclass(frozen=True, slots=True)
class Share(Result):
    """A share of a step's time."""

    mean: float
    low: float | None
    """Lower end of the 95 % interval of the mean over steps; None with fewer than two steps."""
    high: float | None


@dataclass(frozen=True, slots=True)
class Breakdown(Result):
    """The breakdown of a trace; see Note [Parts of a step]."""

    computes_on: str
    """"gpu" or "host"."""
    steps: int
    """Number of steps; 0 if the trace has none and the whole profiled time was used."""
    step_ns: int
    """The mean step."""
    shares: dict[str, Any]
    """A `Share` as plain values for each of `GROUPS`."""
    parts: dict[str, float]
    """Mean shares of all parts with time, largest first in each group."""


@dataclass(frozen=True, slots=True)
class RunBreakdown(Result):
    """The breakdown of a stored run."""

    run: str
    name: str
    task: str
    mode: str
    device: str
    breakdown: Breakdown


def group_of(part: str) -> str:
    """Return the group of `GROUPS` to which a part of `verdict.time_parts` belongs."""
    return "active" if part in _ACTIVE else "data_movement" if part in _MOVEMENT else "idle"


def break_down(trace: Ranks, where: str | None = None) -> Breakdown | None:
    """Break down the steps of all ranks; None if the trace does not hold the work.

    Args:
        trace: One or several ranks.
        where: "gpu" or "host", where it is known what the run computes on [`computes_on`]: of a run
            whose operators are lost among Python code the trace does not tell.
    """
    where = where or computes_on(trace)
    if where is None:
        return None
    lengths, by_part, steps = list[Array](), dict[str, list[Array]](), 0
    for rank in trace.ranks:
        spans = counted_spans(rank)
        steps += len(spans)
        if not len(spans):
            spans = np.array([rank.tree.profiled], dtype=np.int64).reshape(-1, 2)
        bounds, places = _bounds(spans)
        parts = parts_over_time(rank, bounds, where)
        lengths.append(np.diff(bounds)[places])
        for part, ns in parts.items():
            by_part.setdefault(part, []).append(ns[places])
    length = np.concatenate(lengths)
    if not len(length) or not length.all():
        return None
    shares = {
        part: np.concatenate(ns) / length for part, ns in by_part.items() if len(ns) == len(lengths)
    }
    return _broken_down(where, steps, length, shares)


def _bounds(spans: Array) -> tuple[Array, Array]:
    """Return ascending bounds of slots, int64 `[slots + 1]`, and which slots are the steps."""
    bounds = np.unique(spans)
    return bounds, np.searchsorted(bounds, spans[:, 0])


def _broken_down(
    where: str, steps: int, length: Array, shares: Mapping[str, Array]
) -> Breakdown | None:
    groups = {group: np.zeros(len(length)) for group in GROUPS}
    for part, share in shares.items():
        groups[group_of(part)] += share
    # The rest is host time in which nothing on the path ran.
    groups["idle"] += np.maximum(0.0, 1.0 - sum(groups.values()))
    means = {part: float(share.mean()) for part, share in shares.items() if share.any()}
    order = sorted(means, key=lambda part: (GROUPS.index(group_of(part)), -means[part]))
    return Breakdown(
        computes_on=where,
        steps=steps,
        step_ns=round(float(length.mean())),
        shares={group: _share(values).to_dict() for group, values in groups.items()},
        parts={part: means[part] for part in order},
    )


def _share(values: Array) -> Share:
    mean, low, high = mean_interval(values)
    if low is None or high is None:
        return Share(mean, None, None)
    return Share(mean, max(0.0, low), min(1.0, high))


# ------------------------------------------------------------------------- of runs


def break_down_runs(runs: Sequence[StoredRun]) -> tuple[list[RunBreakdown], list[str]]:
    """Return the breakdowns of runs that have a trace with their work, and the reasons why others
    have none.

    Raises:
        StoreError: A trace is missing or damaged.
        OptionError: There is not one run.
    """
    if not runs:
        raise OptionError("there is no run to break down: torchtraceap bench run keeps some")
    tasks = {entry.name: entry.task for entry in workloads()}
    found, without = [], []
    for run in runs:
        path = run.trace
        if path is None:
            without.append(f"{run.id} ({run.name}): has no trace")
            continue
        with progress_stage(f"breaking down {run.name}"):
            is_cpu = run.config.get("device") == "cpu"
            breakdown = break_down(load(path), "host" if is_cpu else None)
        if breakdown is None:
            without.append(f"{run.id} ({run.name}): its trace does not hold the work of steps")
            continue
        mode, device = str(run.config.get("mode", "")), str(run.config.get("device", ""))
        task = tasks.get(run.name) or _NO_TASK
        found.append(RunBreakdown(run.id, run.name, task, mode, device, breakdown))
    return found, without


def breakdown_table(found: Sequence[RunBreakdown], notes: Sequence[str] = ()) -> ColumnTable:
    """Return a table with a row for each run."""
    columns: dict[str, Any] = {
        "run": encode_texts(each.run for each in found),
        "workload": encode_texts(each.name for each in found),
        "task": encode_texts(each.task for each in found),
        "mode": encode_texts(each.mode for each in found),
        "device": encode_texts(each.device for each in found),
        "computes_on": encode_texts(each.breakdown.computes_on for each in found),
        "steps": np.array([each.breakdown.steps for each in found], dtype=np.int64),
        "step_ns": np.array([each.breakdown.step_ns for each in found], dtype=np.int64),
    }
    for group in GROUPS:
        for field in ("mean", "low", "high"):
            name = f"{group}_share" if field == "mean" else f"{group}_{field}_share"
            columns[name] = np.array(
                [each.breakdown.shares[group][field] for each in found],
                dtype=np.float64,  # None becomes NaN
            )
    idle = [_idle(each.breakdown) for each in found]
    columns["largest_idle"] = encode_texts(
        max(each, key=each.__getitem__, default=None) for each in idle
    )
    columns["idle_causes"] = encode_json(idle)
    columns["parts"] = encode_json(each.breakdown.parts for each in found)
    shown = ("workload", "task", "mode", "device", "steps", "step_ns", "active_share",
             "data_movement_share", "idle_share", "largest_idle")  # fmt: skip
    first = ("workload", "mode", "active_share", "idle_share")
    return ColumnTable(columns, shown=shown, first=first, notes=notes)


def task_table(found: Sequence[RunBreakdown], notes: Sequence[str] = ()) -> ColumnTable:
    """Return means over the workloads of each task by mode, as in Figures 1 and 2 of the paper."""
    keys = sorted(
        {(each.mode, each.task) for each in found}, key=lambda key: (key[0] != "train", key)
    )
    grouped = [[e for e in found if (e.mode, e.task) == key] for key in keys]
    columns: dict[str, Any] = {
        "mode": encode_texts(mode for mode, _ in keys),
        "task": encode_texts(task for _, task in keys),
        "runs": np.array([len(runs) for runs in grouped], dtype=np.int64),
    }
    for group in GROUPS:
        columns[f"{group}_share"] = np.array(
            [np.mean([e.breakdown.shares[group]["mean"] for e in runs]) for runs in grouped],
            dtype=np.float64,
        )
    return ColumnTable(columns, notes=notes)


def _idle(breakdown: Breakdown) -> dict[str, float]:
    return {part: share for part, share in breakdown.parts.items() if group_of(part) == "idle"}
