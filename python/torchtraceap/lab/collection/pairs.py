"""`record_pair`: both twins of an entry, as labeled traces.

Note [Once]: time on a GPU is scarce. A twin is built, warmed up, timed without the profiler and
recorded in one run of its steps (wait 1, warm-up 1, active 3); nothing is run a second time, but
for the faulty one where its level is raised.

Note [Accepted]: a fault that makes the step less than 1.10 times as long as its twin's, measured
without the profiler, is no fault: the trace is labeled benign. A look-alike that makes it so much
longer is none, and the pair is not kept. Copies between host and device are never accepted where
there is no device.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.core import Array
from torchtraceap.datasets import CPU_SPLIT
from torchtraceap.errors import TraceError
from torchtraceap.lab.collection.manifest import PlannedPair
from torchtraceap.lab.collection.marker_removal import (
    ORIGIN_NS,
    first_ns,
    pack,
    read_document,
    remove_markers,
)
from torchtraceap.lab.collection.markers import clip, cost_intervals
from torchtraceap.lab.generation.faults import Fault
from torchtraceap.lab.generation.pairs import NO_FAULT, window_labels
from torchtraceap.record import as_nccl_records, import_torch
from torchtraceap.trace import RankTrace

__all__ = ["ACCEPTED_RATIO", "UnfitError", "ids_of", "record_pair"]

ACCEPTED_RATIO = 1.10
_WANTED_RATIO = 1.20
"""The level of a fault is raised until it costs so much, to stay clear of the border."""
_NEEDS_GPU = frozenset({"no_memory_pin", "high_memcpy"})
_WARM, _BLOCKS, _IN_BLOCK, _ACTIVE = 3, 3, 2, 3
_CROPPED = 0.6
"""Share of traces that begin, or end, in the middle of a step."""
_MOST_CROPPED = 0.4
"""Largest share of that step that is cut off."""
_LEAST_WORD = 8
"""Letters: a shorter host name, such as "gpu", may be a word of its own in a trace."""


class UnfitError(TraceError):
    """A pair that is not kept; the message says why."""


@dataclass(frozen=True)
class _Recorded:
    """A recorded twin."""

    bad: bool
    level: int
    world_size: int
    strategy: str | None
    step_ns: int
    data: bytes
    part: RankTrace
    intervals: Array
    already: list[str]


def ids_of(entry: PlannedPair, seed: int) -> dict[bool, str]:
    """Return the ids of the bad twin (True) and of the good one; it is drawn which comes first."""
    first = random.Random(f"{seed}/{entry.index}/order").random() < 0.5
    return {first: f"{2 * entry.index:06d}", not first: f"{2 * entry.index + 1:06d}"}


def record_pair(entry: PlannedPair, context: Any) -> list[tuple[dict[str, Any], bytes]]:
    """Record both twins one after the other, in an order that is drawn.

    Args:
        entry: The workload and the fault.
        context: What both share (workloads.Context); its batch may grow.

    Returns:
        A label and the bytes of a trace, for the bad twin and for the good one.

    Raises:
        UnfitError: See Note [Accepted].
        MissingDependencyError: A library is not installed.
    """
    from torchtraceap.lab.collection.workloads import STEPS, calibrate

    fault = entry.fault
    context, healthy_s = calibrate(context, STEPS[fault.name], fault.compiled)
    ids = ids_of(entry, context.seed)
    order = sorted(ids, key=lambda bad: ids[bad])
    runs = {bad: _run(entry, context, bad, healthy_s) for bad in order}
    ratio = runs[True].step_ns / runs[False].step_ns
    verdict = _verdict(fault, ratio, on_gpu=context.on_gpu)
    return [
        (_label(entry, context, runs[bad], ids, ratio, verdict), runs[bad].data)
        for bad in (True, False)
    ]


def _verdict(fault: Fault, ratio: float, *, on_gpu: bool) -> str:
    """Return accepted, benign or decoy. See Note [Accepted]."""
    if fault.look_alike:
        if ratio >= ACCEPTED_RATIO:
            raise UnfitError(f"as a decoy it makes a step {ratio:.2f} times as long")
        return "decoy"
    possible = on_gpu or fault.type not in _NEEDS_GPU
    return "accepted" if possible and ratio >= ACCEPTED_RATIO else "benign"


# ------------------------------------------------------------------------- a twin


def _run(entry: PlannedPair, context: Any, bad: bool, healthy_s: float) -> _Recorded:
    """Run and record a twin. See Note [Once]."""
    from torchtraceap.lab.collection.workloads import STEPS

    twin = STEPS[entry.fault.name](context, bad)
    gc.collect()
    gc.disable()
    try:
        for _ in range(_WARM):
            twin.step()
        step_ns = _time_steps(twin)
        if bad and twin.levels > 1 and not entry.fault.look_alike:
            twin.level = _level(step_ns / (1e9 * healthy_s), twin.levels)
            step_ns = step_ns if twin.level == 1 else _time_steps(twin)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            drawn = random.Random(f"{context.seed}/{entry.index}/modules").random()
            _record(twin, path, with_modules=drawn < 0.5)
            return _without_markers(entry, twin, path, step_ns)
    finally:
        gc.enable()
        twin.close()


def _level(ratio: float, most: int) -> int:
    """Return the level at which a fault costs enough, if its cost grows with its level."""
    if ratio >= _WANTED_RATIO:
        return 1
    return min(most, max(2, round((_WANTED_RATIO - 1) / max(ratio - 1, 0.01))))


def _time_steps(twin: Any) -> int:
    """Return the median over blocks of the time of a step without a profiler, ns."""
    times = []
    for _ in range(_BLOCKS):
        twin.context.synchronize()
        start = time.perf_counter_ns()
        for _ in range(_IN_BLOCK):
            twin.step()
        twin.context.synchronize()
        times.append((time.perf_counter_ns() - start) // _IN_BLOCK)
    return int(statistics.median(times))


def _record(twin: Any, path: Path, *, with_modules: bool) -> None:
    torch = import_torch()
    activity = torch.profiler.ProfilerActivity
    wait, warmup = 1, 1
    with torch.profiler.profile(
        activities=[activity.CPU, *([activity.CUDA] if twin.context.on_gpu else [])],
        record_shapes=True,
        with_modules=with_modules,
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=_ACTIVE, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for number in range(wait + warmup + _ACTIVE):
            twin.step()
            if number == wait + warmup - 1:
                # Work launched before the recording would be kernels without a launch in it.
                twin.context.synchronize()
            profiler.step()
        twin.context.synchronize()


def _without_markers(entry: PlannedPair, twin: Any, path: Path, step_ns: int) -> _Recorded:
    """Return the trace without markers, and where they say that it loses time."""
    from torchtraceap.diagnosis import build_diagnosis
    from torchtraceap.trace import Trace

    raw = RankTrace(_core.read_trace(str(path), threads=1), None)
    cost = cost_intervals(twin.cost, raw.table, raw.tree)
    seed = f"{twin.context.seed}/{entry.index}/{twin.bad}/crop"
    start_ns, end_ns = _crop(raw, random.Random(seed))
    document = as_nccl_records(read_document(path))
    start_ns = max(start_ns, first_ns(document))
    # Names of this machine's folders and of itself, which no trace may hold.
    folders = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix)]
    words = [str(folder) for folder in folders if len(folder.parts) > 1]
    if len(host := socket.gethostname()) >= _LEAST_WORD:
        words.append(host)
    data = pack(remove_markers(document, start_ns, end_ns), words)
    part = RankTrace(_core.read_trace_bytes(data, str(path), threads=1), None)
    # A step that is cut has no mark left: what the trace calls profiled ends before it.
    intervals = clip(cost - start_ns + ORIGIN_NS, *part.tree.profiled)
    intervals = intervals if twin.bad else intervals[:0]
    verdicts = build_diagnosis(Trace([part])).verdicts
    already = sorted(type_ for type_, verdict in verdicts.items() if verdict == "present")
    return _Recorded(
        twin.bad, twin.level, twin.world_size, twin.strategy,
        step_ns, data, part, intervals, already,
    )  # fmt: skip


def _crop(part: RankTrace, rng: random.Random) -> tuple[int, int]:
    """Return what is kept: all steps, or all but a part of the first or of the last."""
    first, last = part.tree.steps[0], part.tree.steps[-1]
    where, share = rng.random(), _MOST_CROPPED * rng.random()
    head = share if where < _CROPPED / 2 else 0.0
    tail = share if _CROPPED / 2 <= where < _CROPPED else 0.0
    start_ns = first.start_ns + int(head * (first.end_ns - first.start_ns))
    if not tail:
        end = part.table.ts_ns + part.table.dur_ns
        return start_ns, max(last.end_ns, int(end[part.tree.gpu_rows].max(initial=0)))
    return start_ns, last.end_ns - int(tail * (last.end_ns - last.start_ns))


# ------------------------------------------------------------------------- the label


def _label(
    entry: PlannedPair,
    context: Any,
    run: _Recorded,
    ids: dict[bool, str],
    ratio: float,
    verdict: str,
) -> dict[str, Any]:
    """Return a label in the format of `generate` (docs/labeled_data.md), with what is known of the
    recording under `collected`."""
    bad, part, intervals = run.bad, run.part, run.intervals
    torch, fault, workload = import_torch(), entry.fault, entry.workload
    is_accepted = bad and verdict == "accepted"
    own = NO_FAULT
    if bad:
        own = {
            **NO_FAULT, "twin": ids[False], "form": fault.name, "decoy": fault.look_alike,
            "looks_like": fault.type,
        }  # fmt: skip
    if is_accepted:
        cost_ns = int((intervals[:, 1] - intervals[:, 0]).sum())
        own = {
            **own, "type": fault.type, "cost_ns": cost_ns, "severity": round(ratio - 1, 6),
            "intervals": intervals.tolist(),
        }  # fmt: skip
    return {
        "id": ids[bad],
        "seed": context.seed,
        "task": workload.task,
        "source": {"kind": "collected", "base": workload.family},
        "device": torch.cuda.get_device_name() if context.on_gpu else "cpu",
        "world_size": run.world_size,
        "rank": 0,
        "strategy": run.strategy,
        "profiler": ".".join(torch.__version__.split(".")[:2]),
        "run": ids[bad],
        **own,
        "steps": len(part.tree.steps),
        "windows": window_labels(part, intervals if is_accepted else intervals[:0]),
        "already": [] if bad else run.already,
        "split": entry.split if context.on_gpu else CPU_SPLIT,
        "collected": {
            "workload": workload.name,
            "verdict": verdict if bad else "good",
            "cause": fault.name,
            "test": fault.test,
            "collectives": "emulated" if fault.parallel else None,
            "mode": "training" if workload.trains else "inference",
            "precision": workload.precision,
            "multiprocessors": workload.multiprocessors or None,
            "ratio": round(ratio, 4),
            "step_ns": run.step_ns,
            "profiled_ns": part.profiled_ns,
            "gpu_busy_ns": part.profiled_timeline().busy_ns,
            "marked": intervals.tolist() if bad else [],
            "level": run.level,
            "batch": context.scale.batch,
            "recorded_first": ids[bad] < ids[not bad],
            "torch": torch.__version__,
            "cuda": torch.version.cuda if context.on_gpu else None,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        },
    }
