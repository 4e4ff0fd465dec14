"""`record_pair`: both twins of an entry, as labelled traces.

Note [Once]: time on a GPU is scarce. A twin is built, warmed up, timed without the profiler and
recorded in one run of its steps (wait 1, warm-up 1, active 3); nothing is run a second time, but
for the faulty one where its level is raised.

Note [Accepted]: a fault that makes the step less than 1.10 times as long as its twin's, measured
without the profiler, is no fault: the trace is labelled benign. A decoy that makes it so much
longer is no decoy, and the pair is not kept. Copies between host and device are never accepted
where there is no device.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.datasets.labels import CPU_SPLIT
from torchtraceap.errors import TraceError
from torchtraceap.lab.collection.manifest import PlannedPair
from torchtraceap.lab.collection.marker_removal import (
    ORIGIN_NS,
    first_ns,
    packed,
    read_document,
    unmarked,
)
from torchtraceap.lab.collection.markers import clipped, cost_intervals
from torchtraceap.lab.generation.lost_time import covered_windows
from torchtraceap.record.export import as_nccl_records
from torchtraceap.record.torch_access import import_torch
from torchtraceap.tables.windows import build_windows
from torchtraceap.trace.ranks import RankTrace

__all__ = ["ACCEPTED_RATIO", "RecordingOptions", "UnfitError", "ids_of", "record_pair"]

ACCEPTED_RATIO = 1.10
_WANTED_RATIO = 1.20
"""The level of a fault is raised until it costs so much, to stay clear of the border."""
_NEEDS_GPU = frozenset({"no_memory_pin", "high_memcpy"})
_WINDOWS = (50, 100, 200)
_WARM, _BLOCKS, _IN_BLOCK, _ACTIVE = 3, 3, 2, 3
_CROPPED = 0.6
"""Of traces, those that begin, or end, in the middle of a step."""
_MOST_CROPPED = 0.4
"""Of that step."""
_LEAST_WORD = 8
"""Letters: a shorter host name, such as "gpu", may be a word of its own in a trace."""


class UnfitError(TraceError):
    """A pair that is not kept; the message says why."""


@dataclass(frozen=True)
class RecordingOptions:
    """What is the same for all pairs."""

    device: str
    seed: int
    workers: int

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class _Run:
    """One twin."""

    bad: bool
    step_ns: int
    level: int
    data: bytes
    intervals: Array
    windows: dict[str, list[int]]
    already: list[str]
    profiled_ns: int
    busy_ns: int
    steps: int
    world_size: int
    strategy: str | None


def ids_of(entry: PlannedPair, seed: int) -> dict[bool, str]:
    """Of the bad twin (True) and of the good one; which comes first is drawn."""
    first = random.Random(f"{seed}/{entry.index}/order").random() < 0.5
    return {first: f"{2 * entry.index:06d}", not first: f"{2 * entry.index + 1:06d}"}


def record_pair(
    entry: PlannedPair, options: RecordingOptions, context: Any
) -> list[tuple[dict[str, Any], bytes]]:
    """Records both twins one after the other, in an order that is drawn.

    Args:
        entry: Which workload and form.
        options: Of all pairs.
        context: What both share (workloads.Context); its batch may grow.

    Returns:
        A label and the bytes of a trace, for the bad twin and for the good one.

    Raises:
        UnfitError: See Note [Accepted].
        MissingDependencyError: A library is not installed.
    """
    from torchtraceap.lab.collection.workloads import STEPS, measured

    kind = STEPS[entry.form.name]
    context, healthy_s = measured(context, kind, entry.form.compiled)
    ids = ids_of(entry, options.seed)
    order = sorted(ids, key=lambda bad: ids[bad])
    runs = {bad: _run(entry, options, context, bad, healthy_s) for bad in order}
    ratio = runs[True].step_ns / runs[False].step_ns
    verdict = _verdict(entry, options, ratio)
    made = (
        (_label(entry, options, context, runs[bad], ids, (ratio, verdict)), runs[bad].data)
        for bad in (True, False)
    )
    return list(made)


def _verdict(entry: PlannedPair, options: RecordingOptions, ratio: float) -> str:
    """accepted, benign or decoy. See Note [Accepted]."""
    if entry.form.decoy:
        if ratio >= ACCEPTED_RATIO:
            raise UnfitError(f"as a decoy it makes a step {ratio:.2f} times as long")
        return "decoy"
    possible = options.on_gpu or entry.form.type not in _NEEDS_GPU
    return "accepted" if possible and ratio >= ACCEPTED_RATIO else "benign"


# ------------------------------------------------------------------------- a twin


def _run(
    entry: PlannedPair, options: RecordingOptions, context: Any, bad: bool, healthy_s: float
) -> _Run:
    """See Note [Once]."""
    from torchtraceap.lab.collection.workloads import STEPS

    twin = STEPS[entry.form.name](context, bad)
    gc.collect()
    gc.disable()
    try:
        _repeat(twin.step, _WARM)
        step_ns = _time_steps(twin)
        if bad and twin.levels > 1 and not entry.form.decoy:
            twin.level = _level(step_ns / (1e9 * healthy_s), twin.levels)
            step_ns = step_ns if twin.level == 1 else _time_steps(twin)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            _record(twin, path, with_modules=_draw(entry, options, "modules") < 0.5)
            return _labelled(entry, options, twin, path, step_ns)
    finally:
        gc.enable()
        twin.close()


def _repeat(step: Callable[[], None], count: int) -> None:
    for _ in range(count):
        step()


def _level(ratio: float, most: int) -> int:
    """How strong it must be to cost enough, if its cost grows with its level."""
    if ratio >= _WANTED_RATIO:
        return 1
    return min(most, max(2, round((_WANTED_RATIO - 1) / max(ratio - 1, 0.01))))


def _time_steps(twin: Any) -> int:
    """Median over blocks of the time of a step, ns, without a profiler."""
    times = []
    for _ in range(_BLOCKS):
        twin.context.synchronize()
        start = time.perf_counter_ns()
        _repeat(twin.step, _IN_BLOCK)
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


def _labelled(
    entry: PlannedPair, options: RecordingOptions, twin: Any, path: Path, step_ns: int
) -> _Run:
    """The trace without markers, and what they said."""
    raw = RankTrace(_core.read_trace(str(path), threads=1), None)
    cost = cost_intervals(twin.cost, raw.table, raw.tree)
    start_ns, end_ns = _crop(raw, random.Random(f"{options.seed}/{entry.index}/{twin.bad}/crop"))
    document = as_nccl_records(read_document(path))
    start_ns = max(start_ns, first_ns(document))
    data = packed(unmarked(document, start_ns, end_ns), _private_words())
    part = RankTrace(_core.read_trace_bytes(data, str(path), threads=1), None)
    # Of a step that is cut no mark is left: what the trace calls profiled ends before it.
    intervals = clipped(cost - start_ns + ORIGIN_NS, *part.tree.profiled)
    intervals = intervals if twin.bad else intervals[:0]
    bounds = {str(count): build_windows(part, count=count).bounds_ns for count in _WINDOWS}
    timeline = part.profiled_timeline()
    return _Run(
        twin.bad,
        step_ns,
        twin.level,
        data,
        intervals,
        {count: covered_windows(each, intervals) for count, each in bounds.items()},
        _already(part),
        part.profiled_ns,
        timeline.busy_ns,
        len(part.tree.steps),
        twin.world_size,
        twin.strategy,
    )


def _crop(part: RankTrace, rng: random.Random) -> tuple[int, int]:
    """What is kept: all steps, or all but a part of the first or of the last."""
    first, last = part.tree.steps[0], part.tree.steps[-1]
    where, share = rng.random(), _MOST_CROPPED * rng.random()
    head = share if where < _CROPPED / 2 else 0.0
    tail = share if _CROPPED / 2 <= where < _CROPPED else 0.0
    start_ns = first.start_ns + int(head * (first.end_ns - first.start_ns))
    if not tail:
        end = part.table.ts_ns + part.table.dur_ns
        return start_ns, max(last.end_ns, int(end[part.tree.gpu_rows].max(initial=0)))
    return start_ns, last.end_ns - int(tail * (last.end_ns - last.start_ns))


def _already(part: RankTrace) -> list[str]:
    """What `diagnose` finds."""
    from torchtraceap.diagnosis.diagnose import build_diagnosis
    from torchtraceap.trace.trace import Trace

    verdicts = build_diagnosis(Trace([part])).verdicts
    return sorted(type_ for type_, verdict in verdicts.items() if verdict == "present")


def _draw(entry: PlannedPair, options: RecordingOptions, what: str) -> float:
    """The same for both twins."""
    return random.Random(f"{options.seed}/{entry.index}/{what}").random()


def _private_words() -> list[str]:
    """Names of this machine's folders and of itself, which no trace may hold."""
    folders = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix)]
    words = [str(folder) for folder in folders if len(folder.parts) > 1]
    host = socket.gethostname()
    return [*words, host] if len(host) >= _LEAST_WORD else words


# ------------------------------------------------------------------------- the label


def _label(
    entry: PlannedPair,
    options: RecordingOptions,
    context: Any,
    run: _Run,
    ids: dict[bool, str],
    judged: tuple[float, str],
) -> dict[str, Any]:
    """In the format of `generate` (docs/generation.md), and under `collected` what is known."""
    ratio, verdict = judged
    faulty = run.bad and verdict == "accepted"
    torch = import_torch()
    form = entry.form
    return {
        "id": ids[run.bad],
        "seed": options.seed,
        "task": entry.workload.task,
        "source": {"kind": "collected", "base": entry.workload.family},
        "device": torch.cuda.get_device_name() if options.on_gpu else "cpu",
        "world_size": run.world_size,
        "rank": 0,
        "strategy": run.strategy,
        "profiler": ".".join(torch.__version__.split(".")[:2]),
        "run": ids[run.bad],
        "twin": ids[False] if run.bad else None,
        "type": form.type if faulty else None,
        "form": form.name if run.bad else "none",
        "decoy": run.bad and form.decoy,
        "looks_like": form.type if run.bad else None,
        "late_rank": None,
        "role": None,
        "cost_ns": _length(run.intervals) if faulty else 0,
        "severity": round(ratio - 1, 6) if faulty else 0.0,
        "intervals": run.intervals.tolist() if faulty else [],
        "steps": run.steps,
        "windows": run.windows if faulty else {k: [0] * len(w) for k, w in run.windows.items()},
        "already": run.already if not run.bad else [],
        "split": entry.split if options.on_gpu else CPU_SPLIT,
        "collected": {
            "workload": entry.workload.name,
            "verdict": verdict if run.bad else "good",
            "cause": form.name,
            "test": form.test,
            "collectives": "emulated" if form.parallel else None,
            "mode": "training" if entry.workload.trains else "inference",
            "precision": entry.workload.precision,
            "multiprocessors": entry.workload.multiprocessors or None,
            "ratio": round(ratio, 4),
            "step_ns": run.step_ns,
            "profiled_ns": run.profiled_ns,
            "gpu_busy_ns": run.busy_ns,
            "marked": run.intervals.tolist() if run.bad else [],
            "level": run.level,
            "batch": context.scale.batch,
            "recorded_first": ids[run.bad] < ids[not run.bad],
            "torch": torch.__version__,
            "cuda": torch.version.cuda if options.on_gpu else None,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        },
    }


def _length(intervals: Array) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).sum())
