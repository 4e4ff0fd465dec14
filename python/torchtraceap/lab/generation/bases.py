"""`Base`: a run into which faults are injected.

A base is a rank of a trace that somebody recorded, or of one that was predicted for a workload
(`predicted_bases.py`). Of a long one some whole steps are taken, drawn for each trace, with a part
of the steps around them: as a recording that begins and ends anywhere.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass, Phase
from torchtraceap.core import Array, ColumnTable
from torchtraceap.datasets import SEEN_TASKS
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.program import Program
from torchtraceap.simulation import SimulatedRun, event_text
from torchtraceap.tables import present_findings, recorded_device
from torchtraceap.trace import Ranks, RankTrace, load, parse_recorded

__all__ = ["Base", "Bases", "RecordedBases"]

_EVENTS = 20_000
"""Events of a trace, about."""
_LEAST_STEPS = 2
_LEAST_BACKWARD = 32
"""Operators of a backward pass, where gradients come one by one."""
_CUT = 0.5
"""Share of traces that begin, and share of traces that end, in the middle of a step."""
_MOST_RANKS = 8
_DROPPED = ("traceEvents", "distributedInfo", "predicted_by")


@dataclass(frozen=True)
class Base:
    """One rank of a run."""

    part: RankTrace
    name: str
    kind: str
    """real_graph or lifted."""
    task: str | None
    types: frozenset[str]
    """Types of anti-patterns that it has by itself."""
    strategy: str | None = None
    """Strategy by which its ranks share the work, where it is one of several."""
    world_size: int = 1
    profiler: str | None = None
    """Version of PyTorch that writes as it is written, where that is stated."""
    waits: Array | None = None
    """int64 `[n, 2]`: correlations of GPU work and of work that waits for it on another stream,
    where they are known; else they are found by times."""

    @cached_property
    def device(self) -> str | None:
        """Name of its GPU, if it is known."""
        found = map(recorded_device, self.part.table.devices)
        return next((device.name for device in found if device is not None), None)

    @property
    def split(self) -> str:
        """Split of all of its traces; tasks that are never trained on are unseen."""
        if self.task is not None and self.task not in SEEN_TASKS:
            return "unseen"
        place = int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 8
        return {0: "validation", 1: "seen"}.get(place, "train")

    @cached_property
    def members(self) -> dict[str, str]:
        """Members of the file beside its events, as JSON."""
        return {key: text for key, text in self.part.table.metadata if key not in _DROPPED}

    @cached_property
    def _frame(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Names of processes and threads, and the profiler's own span."""
        table = self.part.table
        names, spans = (
            [
                parse_recorded(table.event_json(row), f"row {row}")
                for row in np.flatnonzero(table.kind == kind).tolist()
            ]
            for kind in (EventKind.METADATA, EventKind.PROFILER_TRACE)
        )
        return names, spans

    def frame(self, start_ns: int, end_ns: int) -> list[str]:
        """Return the events that describe the recording, for one from and to these times."""
        names, spans = self._frame
        texts: list[str] = []
        for events, dur_ns in ((names, None), (spans, end_ns - start_ns)):
            for fields in events:
                rest = {key: value for key, value in fields.items() if key not in ("ts", "dur")}
                texts.append(event_text(rest, start_ns, dur_ns))
        return texts

    def program(self, rng: random.Random) -> Program:
        """Return some of its steps as a program."""
        part = self.excerpt(rng)
        known = {}
        if self.waits is not None:  # by rows, as far as both sides are there
            rows = part.tree.linked_gpu_rows.astype(np.int64)
            rows = rows[np.argsort(part.table.correlation[rows], kind="stable")]
            ids = part.table.correlation[rows]
            place = np.searchsorted(ids, self.waits).clip(max=len(ids) - 1)
            sides = rows[place[(ids[place] == self.waits).all(axis=1)]]
            columns = {"producer_row": sides[:, 0], "consumer_row": sides[:, 1]}
            known[part.rank] = ColumnTable(columns)
        return Program(SimulatedRun(Ranks([part]), dependencies=known))

    @cached_property
    def rank_counts(self) -> tuple[int, ...]:
        """Numbers of ranks with which all of them can be recorded."""
        if self.world_size > 1:
            return (self.world_size,)
        tree = self.part.tree
        if (tree.gpu_class == GpuClass.COMMUNICATION).any():
            return ()
        ops = (self.part.table.kind == EventKind.CPU_OP) & (tree.phase == Phase.BACKWARD)
        per_step = int(ops.sum()) / max(1, len(tree.steps))
        return tuple(range(2, _MOST_RANKS + 1)) if per_step >= _LEAST_BACKWARD else ()

    def excerpt(self, rng: random.Random) -> RankTrace:
        """Return some of its steps as a trace of its own."""
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
        table, tree = _core.excerpt(part.table, part.tree, np.array([[start_ns, end_ns]]))
        return RankTrace(table, part.rank, tree)


class Bases(Protocol):
    """A source of bases, for pairs of traces in units."""

    def get(self, unit: int, place: int) -> Base:
        """Return the base of a pair of a unit."""
        ...


class RecordedBases:
    """Traces that somebody recorded, in turn, from another one on in each unit."""

    def __init__(self, paths: Sequence[str], task: str | None) -> None:
        self._paths, self._task = tuple(paths), task
        self._kept: dict[str, Base] = {}

    def get(self, unit: int, place: int) -> Base:
        """Return the base of a pair of a unit, read once.

        Raises:
            OptionError: The trace has several ranks, or no GPU work with its launches.
            ParseError: The trace can't be read.
        """
        path = self._paths[(unit + place) % len(self._paths)]
        if path in self._kept:
            return self._kept[path]
        trace = load(path)
        if len(trace.ranks) != 1:
            raise OptionError(f"{path}: a base is a file of a single rank, not {len(trace.ranks)}")
        part = trace.ranks[0]
        if not len(part.tree.linked_gpu_rows):
            raise OptionError(f"{path}: a base has GPU work with its launches, and this has none")
        types = frozenset(present_findings(trace))
        ranks = part.table.world_size or 1
        has_others = bool((part.tree.gpu_class == GpuClass.COMMUNICATION).any())
        world_size = ranks if has_others and ranks <= _MOST_RANKS else 1
        base = Base(part, path, "real_graph", self._task, types, world_size=world_size)
        self._kept[path] = base
        return base
