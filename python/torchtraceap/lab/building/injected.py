"""`injected`: traces with the events of faults put between their own.

Note [Cropped and scaled]: some whole steps of the trace are taken. All times get one factor, and
GPU work is shortened by another, so that whatever waited for it still comes behind it. The twin has
the same steps, factors and path of writing, without the block.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import union
from torchtraceap.datasets.labels import TYPES
from torchtraceap.errors import OptionError
from torchtraceap.lab.building.blend import blend
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.generation.injected_forms import DECOYS, FAULTS, Fill
from torchtraceap.lab.generation.injection import Recording, plant
from torchtraceap.trace.ranks import RankTrace

__all__ = ["injected"]

Label = dict[str, Any]
_DECOYS = 0.25
"""Of pairs."""
_COST = (0.08, 0.4)
"""Of the twin's length."""
_PLACES = (1, 2, 4, 8)
_ON_GPU = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)
_CATEGORIES = {EventKind.CPU_OP: "cpu_op", EventKind.RUNTIME: "cuda_runtime",
               EventKind.DRIVER: "cuda_driver", EventKind.KERNEL: "kernel",
               EventKind.GPU_MEMCPY: "gpu_memcpy", EventKind.GPU_MEMSET: "gpu_memset"}  # fmt: skip
"""As a profiler of now calls them; older ones had other names."""


@dataclass(frozen=True)
class _Form:
    name: str
    fill: Fill
    looks_like: str
    is_decoy: bool


def injected(base: Base, size: int, seed: int) -> Iterator[tuple[Label, RankTrace]]:
    """Traces of a base with their labels; see Note [Cropped and scaled].

    Args:
        base: One rank of a run.
        size: How many.
        seed: The same gives the same.

    Raises:
        OptionError: It has no place for any fault.
    """
    forms = [form for form in _forms() if form.looks_like not in base.types]
    rng = random.Random(f"{seed}/injected")
    rng.shuffle(forms)
    faults = [form for form in forms if not form.is_decoy]
    decoys = [form for form in forms if form.is_decoy]
    if not faults:
        raise OptionError(f"{base.name}: has every fault by itself that could be put in")
    for place in range(size // 2):
        is_decoy = bool(decoys) and rng.random() < _DECOYS
        form = (decoys if is_decoy else faults)[place % len(decoys if is_decoy else faults)]
        yield from _pair(base, form, place, random.Random(f"{seed}/{place}"), seed)


def _forms() -> list[_Form]:
    """Of types that labels may have."""
    faults = [_Form(name, fill, name, False) for name, fill in FAULTS.items() if name in TYPES]
    decoys = [
        _Form(name, fill, types[0], True)
        for name, (fill, types) in DECOYS.items()
        if types[0] in TYPES
    ]
    return faults + decoys


def _pair(
    base: Base, form: _Form, place: int, rng: random.Random, seed: int
) -> Iterator[tuple[Label, RankTrace]]:
    recording = _recording(base.excerpt(rng), rng)
    clean = recording.copy()
    own = {id(event) for event in recording.events}
    intervals = _planted(recording, form, rng)
    blend(recording.events, lambda event: id(event) not in own)
    ids = [f"{2 * place:06d}", f"{2 * place + 1:06d}"]
    rng.shuffle(ids)
    twin, faulty = (_trace(each, base) for each in (clean, recording))
    cost_ns = 0 if form.is_decoy else int((intervals[:, 1] - intervals[:, 0]).sum())
    kind = "event_space" if base.kind == "real_graph" else "lifted_event_space"
    label: Label = {
        "seed": seed, "task": base.task, "source": {"kind": kind, "base": base.name},
        "device": base.device, "world_size": faulty.table.world_size or 1,
        "rank": faulty.table.rank or 0, "strategy": None, "profiler": None,
        "late_rank": None, "role": None, "already": sorted(base.types),
    }  # fmt: skip
    bad: Label = {
        "id": ids[0], "run": ids[0], "twin": ids[1], "form": form.name, "decoy": form.is_decoy,
        "type": None if form.is_decoy else form.looks_like, "looks_like": form.looks_like,
        "cost_ns": cost_ns, "severity": cost_ns / max(1, twin.profiled_ns),
        "intervals": [] if form.is_decoy else intervals.tolist(),
    }  # fmt: skip
    good: Label = {
        "id": ids[1], "run": ids[1], "twin": None, "form": "none", "decoy": False, "type": None,
        "looks_like": None, "cost_ns": 0, "severity": 0.0, "intervals": [],
    }  # fmt: skip
    both = [({**label, **bad}, faulty), ({**label, **good}, twin)]
    yield from sorted(both, key=lambda pair: str(pair[0]["id"]))


def _recording(part: RankTrace, rng: random.Random) -> Recording:
    """See Note [Cropped and scaled]; its first event is at 0."""
    table = part.table
    everything = float(np.exp(rng.gauss(0, 0.25)))
    on_gpu = everything * float(np.exp(-abs(rng.gauss(0, 0.3))))
    start_ns = int(table.ts_ns[table.complete].min())
    trace = json.loads(_core.trace_json(table))
    is_work = np.isin(table.kind, _ON_GPU)
    for row, event in enumerate(trace["traceEvents"]):
        kind = EventKind(int(table.kind[row]))
        if kind in _CATEGORIES:
            event["cat"] = _CATEGORIES[kind]
        if "dur" in event:
            event["ts"] = (int(table.ts_ns[row]) - start_ns) * 1e-3 * everything
            factor = on_gpu if is_work[row] else everything
            event["dur"] = int(table.dur_ns[row]) * 1e-3 * factor
    return Recording(trace)


def _planted(recording: Recording, form: _Form, rng: random.Random) -> Array:
    """Puts blocks at some places; int64 `[n, 2]`, ns: where they cost.

    Raises:
        OptionError: There is no place.
    """
    count = rng.choice(_PLACES)
    share = float(np.exp(rng.uniform(*np.log(_COST))))
    us = recording.span_us() * share / count
    truth: list[tuple[float, float]] = []
    later = 0.0
    places = recording.places(count)
    if not places:
        raise OptionError("the recorded trace has no place between operators")
    for at, thread in places:
        where = (at + later, thread)
        new, shift = plant(recording, where, lambda block: form.fill(block, us), not form.is_decoy)
        truth += new
        later += shift
    found = np.rint(np.array(truth, dtype=np.float64).reshape(-1, 2) * 1e3).astype(np.int64)
    return union([found])


def _trace(recording: Recording, base: Base) -> RankTrace:
    """As it would be read from a file."""
    trace = recording.write()
    for event in trace["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = round(float(event[key]), 3)
    table = _core.read_trace_bytes(json.dumps(trace).encode(), base.name, threads=1)
    return RankTrace(table, table.rank)
