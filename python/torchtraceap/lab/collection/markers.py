"""Where a planted fault costs time, from markers around its site and from correlation ids.

A marker is a `record_function("__m<k>")` range, k = 0, 1, ...; both twins of a pair have the same
markers. Costs follow the definitions of the types: what the GPU loses because of what the host did,
or launched, inside the markers. Where nothing of a GPU is recorded, the site itself is the cost.

All functions are pure; they take a table and its tree and give sets of intervals: int64 `[n, 2]`,
ns of the trace's clock, sorted and disjoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchtraceap import _core
from torchtraceap._core import ApiClass, CopyDirection, EventKind, GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import API_KINDS
from torchtraceap.core.intervals import overlaps, union
from torchtraceap.errors import OptionError, SchemaError

__all__ = ["COSTS", "clipped", "cost_intervals", "is_marker", "marked_intervals"]

_MARKER = re.compile(r"__m\d+")
_GPU_KINDS = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)
_REGION = "Torch-Compiled Region"
_CODE = ("CompiledFunction", "## Call CompiledFxGraph")
"""Of compiled code: with gradients, and any of inductor's."""


def is_marker(name: str) -> bool:
    """Whether an event of this name is a marker."""
    return _MARKER.fullmatch(name) is not None


def marked_intervals(table: _core.EventTable) -> Array:
    """The host's time inside markers."""
    return union([_spans(table, _rows(table, EventKind.USER_ANNOTATION, is_marker))])


def cost_intervals(rule: str, table: _core.EventTable, tree: _core.EventTree) -> Array:
    """The cost of what was planted inside the markers.

    Args:
        rule: One of `COSTS`.
        table: A trace with its markers.
        tree: Of the same trace.

    Raises:
        OptionError: There is no such rule.
        SchemaError: The trace holds no profiled step.
    """
    if rule not in COSTS:
        raise OptionError(f"no rule of costs is called {rule!r}: {', '.join(COSTS)}")
    if not tree.steps:
        raise SchemaError("the trace holds no profiled step")
    scene = _scene(table, tree)
    if not len(scene.gpu) and rule != "breaks":
        return scene.marked
    return COSTS[rule](scene)


def clipped(intervals: Array, start_ns: int, end_ns: int) -> Array:
    """What of a set lies between two times."""
    return _meet(intervals, np.array([[start_ns, end_ns]], dtype=np.int64))


@dataclass(frozen=True)
class _Scene:
    """The parts of a trace that costs are computed from."""

    table: _core.EventTable
    tree: _core.EventTree
    marked: Array
    gpu: Array
    """int64 `[n]`: rows of GPU events, by start."""
    launched_ns: Array
    """int64 `[n]`: when each was launched; -1 where that is not recorded."""
    busy: Array
    idle: Array


def _scene(table: _core.EventTable, tree: _core.EventTree) -> _Scene:
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
    idle = _without(np.array([[start, end]], dtype=np.int64), busy)
    return _Scene(table, tree, marked_intervals(table), gpu, launched, busy, idle)


# ------------------------------------------------------------------------- rules


def _fetches(scene: _Scene) -> Array:
    """The fetch on the training thread, where the GPU idles."""
    return _meet(scene.marked, scene.idle)


def _uploads(scene: _Scene) -> Array:
    """Copies to the device launched there, and the idle time behind each."""
    copies = scene.gpu[_launched_there(scene) & _is_copy(scene, CopyDirection.HOST_TO_DEVICE)]
    spans = _spans(scene.table, copies)
    return union([spans, _idle_from(scene, spans[:, 1])])


def _copies(scene: _Scene) -> Array:
    """Copies between host and device launched there where nothing computes, the idle time behind
    each, and the idle time while the host sits in a call there."""
    ways = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)
    copies = scene.gpu[_launched_there(scene) & _is_copy(scene, *ways)]
    computing = scene.tree.gpu_class[scene.gpu] != GpuClass.MEMCPY
    compute = union([_spans(scene.table, scene.gpu[computing])])
    spans = _spans(scene.table, copies)
    waits = np.isin(scene.table.kind, API_KINDS) & (scene.tree.api != ApiClass.NONE)
    calls = union([_spans(scene.table, np.flatnonzero(waits))])
    waiting = _meet(_meet(scene.marked, calls), scene.idle)
    exposed = _without(union([spans]), compute)
    return union([exposed, _idle_from(scene, spans[:, 1]), waiting])


def _breaks(scene: _Scene) -> Array:
    """From the end of compiled code to the start of the next region in the same call of the model,
    where the GPU idles or runs what was launched in between."""
    gaps = _gaps_of_regions(scene)
    if not len(scene.gpu):
        return gaps
    leftovers = scene.gpu[_inside(scene.launched_ns, gaps)]
    return union([_meet(gaps, scene.idle), _spans(scene.table, leftovers)])


def _host_time(scene: _Scene) -> Array:
    """Idle time while the host is there, and before what it launches there."""
    there = _launched_there(scene)
    starts = scene.table.ts_ns[scene.gpu[there]]
    place = np.searchsorted(scene.marked[:, 0], scene.launched_ns[there], side="right") - 1
    waits = np.stack([scene.marked[place, 0], starts], axis=1)
    before = _ending(_meet(scene.idle, union([waits])), starts)
    return union([_meet(scene.marked, scene.idle), before])


def _exchanges(scene: _Scene) -> Array:
    """Collectives launched there, where nothing computes."""
    computing = scene.tree.gpu_class[scene.gpu] == GpuClass.COMPUTE
    compute = union([_spans(scene.table, scene.gpu[computing])])
    return _without(union([_spans(scene.table, _collectives(scene))]), compute)


def _runs_of_exchanges(scene: _Scene) -> Array:
    """From the first to the last collective that was launched in the same marker."""
    rows = _collectives(scene)
    spans = _spans(scene.table, rows)
    launched = scene.launched_ns[np.isin(scene.gpu, rows)]
    runs = []
    for marker in scene.marked:
        inside = spans[_inside(launched, marker[None])]
        if len(inside):
            runs.append([inside[:, 0].min(), inside[:, 1].max()])
    return union([np.array(runs, dtype=np.int64).reshape(-1, 2)])


COSTS: dict[str, Callable[[_Scene], Array]] = {
    "fetches": _fetches,
    "uploads": _uploads,
    "copies": _copies,
    "breaks": _breaks,
    "host": _host_time,
    "exchanges": _exchanges,
    "runs_of_exchanges": _runs_of_exchanges,
}
"""Rules by name."""


# ------------------------------------------------------------------------- parts


def _launched_there(scene: _Scene) -> Array:
    """bool `[n]`: GPU events whose launch lies inside a marker."""
    return _inside(scene.launched_ns, scene.marked)


def _collectives(scene: _Scene) -> Array:
    """int64: rows of those that were launched inside a marker."""
    of_ranks = scene.tree.gpu_class[scene.gpu] == GpuClass.COMMUNICATION
    found: Array = scene.gpu[_launched_there(scene) & of_ranks]
    return found


def _is_copy(scene: _Scene, *ways: CopyDirection) -> Array:
    found: Array = np.isin(scene.tree.copy_direction[scene.gpu], ways)
    return found


def _idle_from(scene: _Scene, times_ns: Array) -> Array:
    """Idle intervals that begin at one of the times."""
    return scene.idle[np.isin(scene.idle[:, 0], times_ns)]


def _ending(intervals: Array, times_ns: Array) -> Array:
    """Intervals that end at one of the times."""
    return intervals[np.isin(intervals[:, 1], times_ns)]


def _gaps_of_regions(scene: _Scene) -> Array:
    """Between runs of compiled code inside the same marker.

    The region of what follows a graph break lies inside the region before it, since the code of
    the first calls the second (torch 2.13): regions nest, and only the code in them parts them.
    """
    runs = _compiled_runs(scene.table)
    gaps = []
    for start, end in scene.marked.tolist():
        inside = runs[(runs[:, 0] >= start) & (runs[:, 2] <= end)]
        gaps.append(np.stack([inside[:-1, 2], inside[1:, 0]], axis=1))
    return union(gaps)


def _compiled_runs(table: _core.EventTable) -> Array:
    """int64 `[n, 3]`: start of its region, start and end of the code, by time."""
    regions = _rows(table, None, lambda name: name.startswith(_REGION))
    codes = _rows(table, None, lambda name: name.startswith(_CODE))
    codes = codes[np.argsort(table.ts_ns[codes], kind="stable")]
    start, end = table.ts_ns, table.ts_ns + table.dur_ns
    runs: list[tuple[int, int, int]] = []
    for row in codes.tolist():
        holds = (table.track[regions] == table.track[row]) & (start[regions] <= start[row])
        around = regions[holds & (end[row] <= end[regions])]
        if len(around) and (not runs or start[row] >= runs[-1][2]):
            runs.append((int(start[around].max()), int(start[row]), int(end[row])))
    return np.array(runs, dtype=np.int64).reshape(-1, 3)


def _rows(table: _core.EventTable, kind: EventKind | None, wanted: Callable[[str], bool]) -> Array:
    """int64: rows of complete events with names that are wanted."""
    codes = [code for code, name in enumerate(table.strings) if wanted(name)]
    found = np.isin(table.name, codes) & table.complete
    if kind is not None:
        found &= table.kind == kind
    return np.flatnonzero(found)


def _spans(table: _core.EventTable, rows: Array) -> Array:
    """int64 `[n, 2]`, as they come."""
    start = table.ts_ns[rows]
    return np.stack([start, start + table.dur_ns[rows]], axis=1)


def _inside(times_ns: Array, intervals: Array) -> Array:
    """bool: which times lie in one of the intervals."""
    if not len(intervals):
        return np.zeros(len(times_ns), dtype=bool)
    place = np.searchsorted(intervals[:, 0], times_ns, side="right") - 1
    found: Array = (place >= 0) & (times_ns < intervals[np.maximum(place, 0), 1])
    return found


def _meet(left: Array, right: Array) -> Array:
    """What two sets share: neither overlaps itself."""
    return overlaps(np.concatenate([left, right]))


def _without(whole: Array, holes: Array) -> Array:
    """What of a set is not in another."""
    if not len(holes) or not len(whole):
        return whole
    first, last = int(whole[0, 0]), int(whole[-1, 1])
    begins = np.concatenate(([first], holes[:, 1]))
    ends = np.concatenate((holes[:, 0], [last]))
    return _meet(whole, np.stack([begins, ends], axis=1))
