"""The cost of an injected fault, from markers around its site and from correlation ids.

A marker is a `record_function("__m<k>")` range, k = 0, 1, ...; both twins of a pair have the same
markers. Costs follow the definitions of the types: what the GPU loses because of what the host did,
or launched, inside the markers. Where nothing of a GPU is recorded, the site itself is the cost.

All functions are pure; they take a table and its tree and return sets of intervals: int64 `[n, 2]`,
ns of the trace's clock, sorted and disjoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchtraceap import _core
from torchtraceap._core import ApiClass, CopyDirection, EventKind, GpuClass
from torchtraceap.core import API_KINDS, Array, difference, overlaps, union
from torchtraceap.errors import OptionError, SchemaError

__all__ = ["COSTS", "clip", "cost_intervals", "is_marker", "marked_intervals"]

_MARKER = re.compile(r"__m\d+")
_GPU_KINDS = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)
_REGION = "Torch-Compiled Region"
_CODE = ("CompiledFunction", "## Call CompiledFxGraph")
"""Names of compiled code: with gradients, and any of inductor's."""


def is_marker(name: str) -> bool:
    """Return True if an event of this name is a marker."""
    return _MARKER.fullmatch(name) is not None


def marked_intervals(table: _core.EventTable) -> Array:
    """Return the host's time inside markers."""
    rows = _rows(table, is_marker)
    return union([_spans(table, rows[table.kind[rows] == EventKind.USER_ANNOTATION])])


def cost_intervals(rule: str, table: _core.EventTable, tree: _core.EventTree) -> Array:
    """Return the cost of what was injected inside the markers.

    Args:
        rule: One of `COSTS`.
        table: A trace with its markers.
        tree: The tree of the same trace.

    Raises:
        OptionError: There is no such rule.
        SchemaError: The trace holds no profiled step.
    """
    if rule not in COSTS:
        raise OptionError(f"no rule of costs is called {rule!r}: {', '.join(COSTS)}")
    if not tree.steps:
        raise SchemaError("the trace holds no profiled step")
    gpu = np.flatnonzero(np.isin(table.kind, _GPU_KINDS) & table.complete)
    gpu = gpu[np.argsort(table.ts_ns[gpu], kind="stable")]
    call = tree.launch[gpu].astype(np.int64)
    known = call < len(table)
    launched = np.where(known, table.ts_ns[np.where(known, call, 0)], -1)
    busy = union([_spans(table, gpu)])
    start = min(step.start_ns for step in tree.steps)
    end = max(step.end_ns for step in tree.steps)
    if len(busy):
        end = max(end, int(busy[-1, 1]))
    idle = difference(np.array([[start, end]], dtype=np.int64), busy)
    scene = _Scene(table, tree, marked_intervals(table), gpu, launched, idle)
    if not len(gpu) and rule != "breaks":
        return scene.marked
    return COSTS[rule](scene)


def clip(intervals: Array, start_ns: int, end_ns: int) -> Array:
    """Return the part of a set between two times."""
    return _intersection(intervals, np.array([[start_ns, end_ns]], dtype=np.int64))


@dataclass(frozen=True)
class _Scene:
    """The parts of a trace that costs are computed from."""

    table: _core.EventTable
    tree: _core.EventTree
    marked: Array
    gpu: Array
    """int64 `[n]`: rows of GPU events, by start."""
    launched_ns: Array
    """int64 `[n]`: time of the launch of each; -1 where that is not recorded."""
    idle: Array

    def launched_inside(self) -> Array:
        """Return True for GPU events whose launch lies inside a marker, bool `[n]`."""
        return _is_inside(self.launched_ns, self.marked)

    def copies(self, *ways: CopyDirection) -> Array:
        """Return int64 `[n, 2]`: copies that were launched inside a marker."""
        is_copy = np.isin(self.tree.copy_direction[self.gpu], ways)
        return _spans(self.table, self.gpu[self.launched_inside() & is_copy])

    def collectives(self) -> Array:
        """Return True for collectives that were launched inside a marker, bool `[n]`."""
        of_ranks = self.tree.gpu_class[self.gpu] == GpuClass.COMMUNICATION
        found: Array = self.launched_inside() & of_ranks
        return found

    def idle_from(self, times_ns: Array) -> Array:
        """Return idle intervals that begin at one of the times."""
        return self.idle[np.isin(self.idle[:, 0], times_ns)]


# ------------------------------------------------------------------------- rules

COSTS: dict[str, Callable[[_Scene], Array]] = {}
"""Rules by name."""


def _rule(name: str) -> Callable[[Callable[[_Scene], Array]], Callable[[_Scene], Array]]:
    def add(rule: Callable[[_Scene], Array]) -> Callable[[_Scene], Array]:
        COSTS[name] = rule
        return rule

    return add


@_rule("fetches")
def _fetches(scene: _Scene) -> Array:
    """Return the fetch on the training thread, where the GPU idles."""
    return _intersection(scene.marked, scene.idle)


@_rule("uploads")
def _uploads(scene: _Scene) -> Array:
    """Return copies to the device launched there, and the idle time behind each."""
    copies = scene.copies(CopyDirection.HOST_TO_DEVICE)
    return union([copies, scene.idle_from(copies[:, 1])])


@_rule("copies")
def _copies(scene: _Scene) -> Array:
    """Return copies between host and device launched there where nothing computes, the idle time
    behind each, and the idle time while the host sits in a call there."""
    copies = scene.copies(CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)
    computing = scene.tree.gpu_class[scene.gpu] != GpuClass.MEMCPY
    compute = union([_spans(scene.table, scene.gpu[computing])])
    waits = np.isin(scene.table.kind, API_KINDS) & (scene.tree.api != ApiClass.NONE)
    calls = union([_spans(scene.table, np.flatnonzero(waits))])
    waiting = _intersection(_intersection(scene.marked, calls), scene.idle)
    exposed = difference(union([copies]), compute)
    return union([exposed, scene.idle_from(copies[:, 1]), waiting])


@_rule("breaks")
def _breaks(scene: _Scene) -> Array:
    """Return the time from the end of compiled code to the start of the next region in the same
    call of the model, where the GPU idles or runs what was launched in between.

    The region of what follows a graph break lies inside the region before it, since the code of
    the first calls the second (torch 2.13): regions nest, and only the code in them parts them.
    """
    table = scene.table
    regions = _rows(table, lambda name: name.startswith(_REGION))
    codes = _rows(table, lambda name: name.startswith(_CODE))
    codes = codes[np.argsort(table.ts_ns[codes], kind="stable")]
    start, end = table.ts_ns, table.ts_ns + table.dur_ns
    found: list[tuple[int, int, int]] = []  # start of a region, start and end of its code
    for row in codes.tolist():
        holds = (table.track[regions] == table.track[row]) & (start[regions] <= start[row])
        around = regions[holds & (end[row] <= end[regions])]
        if len(around) and (not found or start[row] >= found[-1][2]):
            found.append((int(start[around].max()), int(start[row]), int(end[row])))
    runs = np.array(found, dtype=np.int64).reshape(-1, 3)
    between = []
    for begin_ns, end_ns in scene.marked.tolist():
        inside = runs[(runs[:, 0] >= begin_ns) & (runs[:, 2] <= end_ns)]
        between.append(np.stack([inside[:-1, 2], inside[1:, 0]], axis=1))
    gaps = union(between)
    if not len(scene.gpu):
        return gaps
    leftovers = scene.gpu[_is_inside(scene.launched_ns, gaps)]
    return union([_intersection(gaps, scene.idle), _spans(table, leftovers)])


@_rule("host")
def _host(scene: _Scene) -> Array:
    """Return idle time while the host is there, and before what it launches there."""
    there = scene.launched_inside()
    starts = scene.table.ts_ns[scene.gpu[there]]
    place = np.searchsorted(scene.marked[:, 0], scene.launched_ns[there], side="right") - 1
    waits = np.stack([scene.marked[place, 0], starts], axis=1)
    before = _intersection(scene.idle, union([waits]))
    before = before[np.isin(before[:, 1], starts)]
    return union([_intersection(scene.marked, scene.idle), before])


@_rule("exchanges")
def _exchanges(scene: _Scene) -> Array:
    """Return collectives launched there, where nothing computes."""
    computing = scene.tree.gpu_class[scene.gpu] == GpuClass.COMPUTE
    compute = union([_spans(scene.table, scene.gpu[computing])])
    return difference(union([_spans(scene.table, scene.gpu[scene.collectives()])]), compute)


@_rule("runs_of_exchanges")
def _runs_of_exchanges(scene: _Scene) -> Array:
    """Return the time from the first to the last collective launched in the same marker."""
    there = scene.collectives()
    spans, launched = _spans(scene.table, scene.gpu[there]), scene.launched_ns[there]
    runs = []
    for marker in scene.marked:
        inside = spans[_is_inside(launched, marker[None])]
        if len(inside):
            runs.append([inside[:, 0].min(), inside[:, 1].max()])
    return union([np.array(runs, dtype=np.int64).reshape(-1, 2)])


# ------------------------------------------------------------------------- sets


def _rows(table: _core.EventTable, wanted: Callable[[str], bool]) -> Array:
    """Return the rows of complete events with names that are wanted, int64."""
    codes = [code for code, name in enumerate(table.strings) if wanted(name)]
    return np.flatnonzero(np.isin(table.name, codes) & table.complete)


def _spans(table: _core.EventTable, rows: Array) -> Array:
    """Return begins and ends of rows, int64 `[n, 2]`, in their order."""
    start = table.ts_ns[rows]
    return np.stack([start, start + table.dur_ns[rows]], axis=1)


def _is_inside(times_ns: Array, intervals: Array) -> Array:
    """Return True for times that lie in one of the intervals, bool."""
    if not len(intervals):
        return np.zeros(len(times_ns), dtype=bool)
    place = np.searchsorted(intervals[:, 0], times_ns, side="right") - 1
    found: Array = (place >= 0) & (times_ns < intervals[np.maximum(place, 0), 1])
    return found


def _intersection(left: Array, right: Array) -> Array:
    """Return the intersection of two sets: neither overlaps itself."""
    return overlaps(np.concatenate([left, right]))
