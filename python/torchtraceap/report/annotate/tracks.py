"""What is drawn over a trace: slices on tracks, and counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.tables.gpu.memory import build_memory
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.tables.host import build_idle
from torchtraceap.tables.launches import build_launches
from torchtraceap.tables.steps.critical_path import build_critical_path
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["Counter", "Slices", "build_counters", "build_slices"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slices:
    """One track: named intervals that do not overlap."""

    group: str
    track: str
    start_ns: IntArray
    end_ns: IntArray
    names: list[str]
    args: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Counter:
    """A number over time; it holds from one time to the next."""

    name: str
    time_ns: IntArray
    value: npt.NDArray[np.float64]


def build_slices(diagnosis: Diagnosis, rank: int | None) -> list[Slices]:
    """Findings by type, idle causes and the critical path, each where there are any."""
    trace = diagnosis.trace
    part = trace.rank(rank)
    tracks = [*_findings(diagnosis, part), _idle_causes(part), _critical_path(trace, part)]
    return [track for track in tracks if len(track.start_ns)]


def _findings(diagnosis: Diagnosis, part: RankTrace) -> list[Slices]:
    tracks = []
    for finding in diagnosis.findings:
        mine = np.array([rank == part.rank for rank in finding.interval_ranks], dtype=bool)
        intervals = finding.intervals[mine]
        says = {"why": finding.why, "fix": finding.fix, "confidence": finding.confidence}
        count = len(intervals)
        tracks.append(
            Slices(
                "findings",
                finding.type,
                intervals[:, 0],
                intervals[:, 1],
                [finding.title] * count,
                [says] * count,
            )
        )
    return tracks


def _idle_causes(part: RankTrace) -> Slices:
    idle = build_idle(part)
    names = part.table.strings
    explained = idle["explained_by"]
    args = [
        {"explained_by": names[part.table.name[row]]} if row != _core.NO_ROW else {}
        for row in explained.tolist()
    ]
    return Slices(
        "why the GPU idles", "cause", idle["start_ns"], idle["end_ns"], idle["cause"].tolist(), args
    )


def _critical_path(trace: Ranks, part: RankTrace) -> Slices:
    path = build_critical_path(trace, by="event")
    mine = np.array([rank in (None, part.rank) for rank in path.to_list("rank")], dtype=bool)
    chosen = path.take(np.flatnonzero(mine))
    causes = chosen.to_list("cause")
    names = [name or cause for name, cause in zip(chosen.to_list("name"), causes, strict=True)]
    return Slices(
        "critical path",
        "path",
        np.asarray(chosen["start_ns"], dtype=np.int64),
        np.asarray(chosen["end_ns"], dtype=np.int64),
        names,
        [{"cause": cause} for cause in causes],
    )


def build_counters(diagnosis: Diagnosis, rank: int | None) -> list[Counter]:
    """Score and GPU use by window, launches waiting by stream, copy bandwidth, memory."""
    part = diagnosis.trace.rank(rank)
    return [*_window_counters(diagnosis, rank), *_queues(part), *_copies(part), *_memory(part)]


def _window_counters(diagnosis: Diagnosis, rank: int | None) -> list[Counter]:
    part = diagnosis.trace.rank(rank)
    windows = diagnosis.windows
    bounds = np.array(windows.bounds_ns, dtype=np.int64)
    pairs = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    if not part.tree.gpu_rows.size or bounds[0] == bounds[-1]:
        return []
    timelines = _core.timelines(part.table, part.tree, pairs)
    busy = [100 * t.busy_ns / max(1, t.span_ns) for t in timelines]
    return [
        Counter("score of the window", bounds, np.append(windows.scores, 0.0)),
        Counter("GPU busy (%)", bounds, np.array([*busy, 0.0])),
    ]


def _queues(part: RankTrace) -> list[Counter]:
    queue = build_launches(part, by="queue")
    times, lengths = queue["time_ns"], queue["length"]
    return [
        Counter(
            f"queue of stream {label}",
            np.asarray(times[rows], dtype=np.int64),
            np.asarray(lengths[rows], dtype=np.float64),
        )
        for label, rows in _by_label(str(stream) for stream in queue.to_list("stream"))
    ]


def _copies(part: RankTrace) -> list[Counter]:
    """Copy bandwidth by direction and device."""
    table = build_memory(part, by="counter")
    directions, devices = table.to_list("direction"), table.to_list("device")
    several = len(set(devices)) > 1
    labels = (
        f"{direction} on GPU {device} (GB/s)" if several else f"{direction} (GB/s)"
        for direction, device in zip(directions, devices, strict=True)
    )
    times, rates = table["time_ns"], table["bandwidth_gb_per_s"]
    return [Counter(label, times[rows], rates[rows]) for label, rows in _by_label(labels)]


def _by_label(labels: Iterable[str]) -> Iterator[tuple[str, IntArray]]:
    """Each label with its rows, in order of its first."""
    column = encode_texts(labels)
    for code, rows in rows_by_key(column.codes):
        yield column.texts[code], rows


def _memory(part: RankTrace) -> list[Counter]:
    """One counter per device and total, of the events that carry one."""
    table = build_memory(part, by="timeline")
    kinds, numbers = table.to_list("device_type"), table.to_list("device")
    devices = (f"{kind} {number}" for kind, number in zip(kinds, numbers, strict=True))
    totals = {name: np.ma.asarray(table[f"{name}_bytes"]) for name in ("allocated", "reserved")}
    counters = []
    for device, of_device in _by_label(devices):
        for total, values in totals.items():
            rows = of_device[~np.ma.getmaskarray(values)[of_device]]
            if len(rows):
                mebibytes = values.data[rows] / 2**20
                label = f"{total} on {device} (MiB)"
                counters.append(Counter(label, table["time_ns"][rows], mebibytes))
    return counters
