"""The overlay of a trace: findings, idle causes and the critical path as slices, and counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import format_part
from torchtraceap.core.records import dataclass
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.tables.gpu.memory import build_memory
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.tables.host import build_idle
from torchtraceap.tables.launches import build_launches
from torchtraceap.tables.steps.critical_path import build_critical_path
from torchtraceap.trace.ranks import RankTrace

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
    """Make tracks of the findings by type, idle causes and the critical path of one rank."""
    part = diagnosis.trace.rank(rank)
    tracks = []
    for finding in diagnosis.findings:
        mine = np.array([rank == part.rank for rank in finding.interval_ranks], dtype=bool)
        starts, ends = finding.intervals[mine].T
        args = {"why": finding.why, "fix": finding.fix, "confidence": finding.confidence}
        names = [finding.title] * len(starts)
        tracks.append(Slices("findings", finding.type, starts, ends, names, [args] * len(starts)))

    idle = build_idle(part)
    strings = part.table.strings
    explained = [
        {"explained_by": strings[part.table.name[row]]} if row != _core.NO_ROW else {}
        for row in idle["explained_by"].tolist()
    ]
    starts, ends = idle["start_ns"], idle["end_ns"]
    causes = list(map(format_part, idle["cause"].tolist()))
    tracks.append(Slices("why the GPU idles", "cause", starts, ends, causes, explained))

    path = build_critical_path(diagnosis.trace, by="event")
    mine = np.array([rank in (None, part.rank) for rank in path.to_list("rank")], dtype=bool)
    path = path.take(np.flatnonzero(mine))
    causes = path.to_list("cause")
    tracks.append(
        Slices(
            "critical path",
            "path",
            np.asarray(path["start_ns"], dtype=np.int64),
            np.asarray(path["end_ns"], dtype=np.int64),
            [name or cause for name, cause in zip(path.to_list("name"), causes, strict=True)],
            [{"cause": cause} for cause in causes],
        )
    )
    return [track for track in tracks if len(track.start_ns)]


def build_counters(diagnosis: Diagnosis, rank: int | None) -> list[Counter]:
    """Make counters of score and GPU use by window, queues, copy bandwidth and memory."""
    part = diagnosis.trace.rank(rank)
    counters: list[Counter] = []
    windows = diagnosis.windows
    bounds = np.array(windows.bounds_ns, dtype=np.int64)
    if part.tree.gpu_rows.size and bounds[0] != bounds[-1]:
        pairs = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        timelines = _core.timelines(part.table, part.tree, pairs)
        busy = [100 * t.busy_ns / max(1, t.span_ns) for t in timelines]
        counters += [
            Counter("score of the window", bounds, np.append(windows.scores, 0.0)),
            Counter("GPU busy (%)", bounds, np.array([*busy, 0.0])),
        ]

    copies = build_memory(part, by="counter")
    directions, devices = copies.to_list("direction"), copies.to_list("device")
    several = len(set(devices)) > 1
    labels = (
        f"{direction} on GPU {device} (GB/s)" if several else f"{direction} (GB/s)"
        for direction, device in zip(directions, devices, strict=True)
    )
    times, rates = copies["time_ns"], copies["bandwidth_gb_per_s"]
    bandwidths = [Counter(name, times[r], rates[r]) for name, r in _rows_by_label(labels)]
    return [*counters, *_queue_counters(part), *bandwidths, *_memory_counters(part)]


def _queue_counters(part: RankTrace) -> list[Counter]:
    """Make a counter of waiting launches for each stream."""
    queue = build_launches(part, by="queue")
    times = np.asarray(queue["time_ns"], dtype=np.int64)
    lengths = np.asarray(queue["length"], dtype=np.float64)
    return [
        Counter(f"queue of stream {label}", times[rows], lengths[rows])
        for label, rows in _rows_by_label(str(stream) for stream in queue.to_list("stream"))
    ]


def _memory_counters(part: RankTrace) -> list[Counter]:
    """Make a counter for each device and total that memory events carry."""
    table = build_memory(part, by="timeline")
    kinds, numbers = table.to_list("device_type"), table.to_list("device")
    devices = (f"{kind} {number}" for kind, number in zip(kinds, numbers, strict=True))
    totals = {name: np.ma.asarray(table[f"{name}_bytes"]) for name in ("allocated", "reserved")}
    counters = []
    for device, of_device in _rows_by_label(devices):
        for total, values in totals.items():
            rows = of_device[~np.ma.getmaskarray(values)[of_device]]
            if len(rows):
                label, mebibytes = f"{total} on {device} (MiB)", values.data[rows] / 2**20
                counters.append(Counter(label, table["time_ns"][rows], mebibytes))
    return counters


def _rows_by_label(labels: Iterable[str]) -> Iterator[tuple[str, IntArray]]:
    """Yield each label with its rows, in the order in which labels first occur."""
    column = encode_texts(labels)
    for code, rows in rows_by_key(column.codes):
        yield column.texts[code], rows
