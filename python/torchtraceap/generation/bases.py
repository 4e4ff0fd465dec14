"""`Base`: a run into which faults are put.

A base is a rank of a trace that somebody recorded, or of one that was predicted for a workload. Of
a long one some whole steps are taken, drawn for each trace, with a part of the steps around them:
as a recording that begins and ends anywhere.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.analysis.recorded_device import recorded_device
from torchtraceap.errors import OptionError
from torchtraceap.generation.program import Program
from torchtraceap.loading import load
from torchtraceap.ranks import Ranks, RankTrace
from torchtraceap.simulation.edited_trace import event_text
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["SEEN_TASKS", "TASKS", "UNITS_OF_A_BASE", "Base", "Bases", "make_bases"]

SEEN_TASKS = ("classification", "detection", "segmentation")
TASKS = (*SEEN_TASKS, "generation", "pose", "depth")
_EVENTS = 20_000
"""Of a trace, about."""
_LEAST_STEPS = 2
_CUT = 0.5
"""Of traces, those that begin, and those that end, in the middle of a step."""
UNITS_OF_A_BASE = 2
"""Made one behind the other by one process: predicting a run takes longer than a unit."""
_DRAWS = 8
_DROPPED = ("traceEvents", "distributedInfo", "traceName", "predicted_by")


@dataclass(frozen=True)
class Base:
    """One rank of a run."""

    part: RankTrace
    name: str
    kind: str
    """real_graph or lifted."""
    task: str | None
    types: frozenset[str]
    """Of anti-patterns that it has by itself."""

    @cached_property
    def device(self) -> str | None:
        """Its name."""
        found = map(recorded_device, self.part.table.devices)
        known = next((device for device in found if device is not None), None)
        return None if known is None else known.name

    @property
    def split(self) -> str:
        """Traces of one base are all in one split; tasks that are never trained on are unseen."""
        if self.task is not None and self.task not in SEEN_TASKS:
            return "unseen"
        place = int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 8
        return {0: "validation", 1: "seen"}.get(place, "train")

    @cached_property
    def members(self) -> dict[str, str]:
        """What the file says beside its events, as JSON."""
        return {key: text for key, text in self.part.table.metadata if key not in _DROPPED}

    @cached_property
    def _frame(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Names of processes and threads, and the profiler's own span."""
        table = self.part.table
        kinds = (EventKind.METADATA, EventKind.PROFILER_TRACE)
        found = []
        for kind in kinds:
            rows = np.flatnonzero(table.kind == kind).tolist()
            found.append([json.loads(table.event_json(row)) for row in rows])
        return found[0], found[1]

    def frame(self, start_ns: int, end_ns: int) -> list[str]:
        """Events that say what the recording is."""
        names, spans = self._frame
        texts: list[str] = []
        for events, dur_ns in ((names, None), (spans, end_ns - start_ns)):
            for fields in events:
                rest = {key: value for key, value in fields.items() if key not in ("ts", "dur")}
                texts.append(event_text(rest, start_ns, dur_ns))
        return texts

    def program(self, rng: random.Random) -> Program:
        """Some of its steps."""
        return Program(SimulatedRun(Ranks([self._excerpt(rng)])))

    def _excerpt(self, rng: random.Random) -> RankTrace:
        part = self.part
        steps = part.tree.steps
        share = _EVENTS / max(1, len(part.table))
        count = max(_LEAST_STEPS, round(len(steps) * share))
        if count >= len(steps):
            return part
        first = rng.randrange(len(steps) - count + 1)
        start_ns, end_ns = steps[first].start_ns, steps[first + count - 1].end_ns
        if first and rng.random() < _CUT:
            before = steps[first - 1]
            start_ns -= round(rng.uniform(0.1, 0.6) * (before.end_ns - before.start_ns))
        if first + count < len(steps) and rng.random() < _CUT:
            behind = steps[first + count]
            end_ns += round(rng.uniform(0.1, 0.6) * (behind.end_ns - behind.start_ns))
        table, tree = _core.excerpt(part.table, part.tree, start_ns, end_ns)
        return RankTrace(table, part.rank, tree)


class Bases(Protocol):
    """The base of each unit."""

    def __getitem__(self, unit: int) -> Base:
        """Made when it is asked for."""
        ...


class RecordedBases:
    """Traces that somebody recorded, in turn."""

    def __init__(self, paths: Sequence[str], task: str | None) -> None:
        self._paths, self._task = tuple(paths), task
        self._kept: dict[str, Base] = {}

    def __getitem__(self, unit: int) -> Base:
        path = self._paths[unit % len(self._paths)]
        if path not in self._kept:
            self._kept[path] = self._read(path)
        return self._kept[path]

    def _read(self, path: str) -> Base:
        trace = load(path)
        if len(trace.ranks) != 1:
            raise OptionError(f"{path}: a base is a file of one rank, not {len(trace.ranks)}")
        part = trace.ranks[0]
        if not len(part.tree.linked_gpu_rows):
            raise OptionError(f"{path}: a base has GPU work with its launches, and this has none")
        types = frozenset(finding.type for finding in trace.diagnose().findings)
        return Base(part, path, "real_graph", self._task, types)


class PredictedBases:
    """Runs that are predicted for workloads, drawn at random, each for some units."""

    def __init__(self, seed: int, tasks: Sequence[str]) -> None:
        self._seed, self._tasks = seed, tuple(tasks)
        self._kept: tuple[int, Base] | None = None

    def __getitem__(self, unit: int) -> Base:
        place = unit // UNITS_OF_A_BASE
        if self._kept is None or self._kept[0] != place:
            self._kept = place, self._predict(place)
        return self._kept[1]

    def _predict(self, place: int) -> Base:
        """Of what can be run without values, the first that is drawn."""
        from torchtraceap.generation.workloads import drawn_workload
        from torchtraceap.prediction.capture import CaptureError
        from torchtraceap.prediction.predicting import predict

        task = self._tasks[place % len(self._tasks)]
        for turn in range(_DRAWS):
            drawn = drawn_workload(task, random.Random(f"{self._seed}/base/{place}/{turn}"))
            try:
                found = predict(
                    drawn.make, device=drawn.device, dtype=drawn.dtype, steps=drawn.steps
                )
            except CaptureError:
                continue
            types = frozenset(finding.type for finding in found.trace.diagnose().findings)
            return Base(found.trace.ranks[0], drawn.name, "lifted", task, types)
        raise OptionError(f"no workload of the task {task} could be run")


def make_bases(seed: int, tasks: Sequence[str], paths: Sequence[str]) -> Bases:
    """The given traces; without any, runs that are predicted for workloads of the tasks."""
    if paths:
        return RecordedBases(paths, tasks[0] if tasks else None)
    return PredictedBases(seed, tasks or TASKS)
