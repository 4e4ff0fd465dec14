"""The critical path by the rules of HolisticTraceAnalysis (HTA), to compare with its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import check_choice
from torchtraceap.tables.grouping import Groups, order_by
from torchtraceap.trace.ranks import RankTrace

__all__ = ["build_hta_path"]

_MANY = 2**32 - 1  # no trace has so many instances
_UNNAMED = "(between calls)"
_EXPLAINED = (
    "By the rules of HTA: times in whole microseconds, rounded inwards; the last profiled step is "
    "left out; only CUDA's names for calls that wait. docs/idle_time.md tells what differs."
)
_GPU_COPY = (
    "The range is that of a copy of the annotation on a GPU's track: HTA counts these after the "
    "host's, in the order of the file, which is by time here."
)


def build_hta_path(
    part: RankTrace,
    *,
    step: str | int | None = None,
    by: str = "cause",
    annotation: str | None = None,
    instances: tuple[int, int] = (0, 0),
    launch_edges: bool = True,
    keep_last_step: bool = False,
    release: str = "main",
) -> ColumnTable:
    """Build HTA's path within instances of an annotation, one after the other as in the file.

    Args:
        part: The rank.
        step: Short for `annotation`: a name, or the place of a "ProfilerStep" (the host's in
            their order, then their copies on the GPU's tracks by time).
        by: "cause" (HTA's `bound_by`), "name" or "event" (the edges of the path).
        annotation: Part of an annotation's name; "" is the whole trace. By default the first
            "ProfilerStep", or the whole trace if it has none.
        instances: First and last instance of the annotation, both included.
        launch_edges: Edges of no weight from every launch call to its work.
        keep_last_step: Don't cut the last profiled step off.
        release: "main", or "0.5.0": without the order of calls that take the runtime's lock,
            without counting the backward thread to the forward one, and with gaps between kernels
            of any length.

    Raises:
        OptionError: An option has no such value, or the annotation has no such instance.
    """
    check_choice("by", by, ("cause", "name", "event"))
    check_choice("release", release, ("main", "0.5.0"))
    if annotation is None:
        has_steps = any(name.startswith("ProfilerStep") for name in part.table.strings)
        instances = (0, 0)
        if isinstance(step, str):
            annotation = step
        elif step is not None:
            annotation, instances = "ProfilerStep", (step, step)
        else:
            annotation = "ProfilerStep" if has_steps else ""
    if min(instances) < 0 or instances[1] < instances[0]:
        raise OptionError(f"instances must be a first and a last number, not {instances}")
    path = _core.hta_critical_path(
        part.table,
        annotation=annotation,
        instances=(min(instances[0], _MANY), min(instances[1], _MANY)),
        launch_edges=launch_edges,
        keep_last_step=keep_last_step,
        release_0_5_0=release == "0.5.0",
    )
    if not path.found:
        raise OptionError(
            f"HTA's graph has no path for instances {instances[0]} to {instances[1]} of "
            f"annotations with {annotation!r} in their name; it leaves the last profiled step out"
            if annotation
            else "HTA's graph of this trace has no path: it holds no operator, call or linked work"
        )
    tables = {"cause": _by_cause, "name": _by_name, "event": _by_event}
    notes = [_EXPLAINED, *([_GPU_COPY] if path.of_gpu_copy else [])]
    facts: dict[str, Any] = {
        "total_ns": path.duration_us * 1000,
        "nodes": path.nodes,
        "edges": path.edges,
        "edges_by_type": path.edges_of_kind,
        "path_nodes": path.path_nodes,
        "path_edges": len(path.weight_us),
        "path_events": path.path_events,
    }
    return ColumnTable(tables[by](part, path), facts=facts, notes=notes)


def _by_cause(part: RankTrace, path: _core.HtaPath) -> dict[str, Column]:
    groups = Groups(path.bound)
    time_ns = groups.sum(path.weight_us * 1000)
    rows = order_by(time_ns, descending=[True])
    return {
        "cause": _causes(path.bound[groups.first[rows]]),
        "time_ns": time_ns[rows],
        "time_share": time_ns[rows] / (1000 * max(1, path.duration_us)),
        "segments": groups.count[rows],
    }


def _by_name(part: RankTrace, path: _core.HtaPath) -> dict[str, Column]:
    names = _names(part, path)
    groups = Groups(path.bound, names.codes)
    time_ns = groups.sum(path.weight_us * 1000)
    rows = order_by(time_ns, descending=[True])
    first = groups.first[rows]
    return {
        "name": names.take(first),
        "cause": _causes(path.bound[first]),
        "time_ns": time_ns[rows],
        "time_share": time_ns[rows] / (1000 * max(1, path.duration_us)),
        "segments": groups.count[rows],
    }


def _by_event(part: RankTrace, path: _core.HtaPath) -> dict[str, Column]:
    missing = path.row == _core.NO_ROW
    row = np.where(missing, 0, path.row).astype(np.int64)
    return {
        "row": np.ma.array(row, mask=missing),
        "name": _names(part, path),
        "start_ns": path.node_us[path.begin] * 1000,
        "duration_ns": path.weight_us * 1000,
        "cause": _causes(path.bound),
        "edge": TextCodes(path.kind.astype(np.int32), _core.hta_edge_kind_names()),
    }


def _names(part: RankTrace, path: _core.HtaPath) -> TextCodes:
    strings = [*part.table.strings, _UNNAMED]
    missing = path.row == _core.NO_ROW
    names = part.table.name[np.where(missing, 0, path.row)] if len(part.table) else path.row
    return TextCodes(np.where(missing, len(strings) - 1, names).astype(np.int32), strings)


def _causes(bound: Array) -> TextCodes:
    names = _core.hta_bound_names()
    return TextCodes(bound.astype(np.int32), [names[0] or "none", *names[1:]])
