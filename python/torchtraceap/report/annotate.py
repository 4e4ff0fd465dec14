"""A trace with its overlay as a file for Perfetto, in Chrome's format or in Perfetto's own."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import exact_us, format_part
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import check_target, replacing, replacing_stream
from torchtraceap.diagnosis.diagnose import build_diagnosis
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.tables.gpu.memory import build_memory
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.tables.host import build_idle
from torchtraceap.tables.launches import build_launches
from torchtraceap.tables.steps.critical_path import build_critical_path
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "Counter",
    "Slices",
    "annotate",
    "assign_lanes",
    "build_counters",
    "build_slices",
    "write_protobuf",
]


CHROME_SUFFIXES = (".json", ".json.gz")
PROTOBUF_SUFFIXES = (".pftrace", ".perfetto-trace")
_SEQUENCE = 1
_FREE = 2**64  # later than every end: any slice fits


def annotate(trace: Ranks, path: PathLike, *, rank: int | None = None) -> None:
    """Write one rank with findings, idle causes, critical path and counters as further tracks.

    Args:
        trace: One or several ranks.
        path: `.json` or `.json.gz` (Chrome's format), `.pftrace` or `.perfetto-trace` (Perfetto's
            own; needs the package `perfetto`).
        rank: Number of the rank; may be left out where there is only one.

    Raises:
        OptionError: Another ending, a file that was read, or several ranks and none chosen.
        MissingDependencyError: Perfetto's format without its package.
        OutputError: The file can't be written.
    """
    if rank is None and len(trace.ranks) > 1:
        raise OptionError(f"choose one of {len(trace.ranks)} ranks (merge shows them together)")
    target = Path(path)
    name = target.name.lower()
    if not name.endswith((*CHROME_SUFFIXES, *PROTOBUF_SUFFIXES)):
        raise OptionError(f"{target}: the name must end in .json, .json.gz or .pftrace")
    inputs = [part.path for part in trace.ranks]
    check_target(target, inputs)
    diagnosis, part = build_diagnosis(trace), trace.rank(rank)
    slices, counters = build_slices(diagnosis, rank), build_counters(diagnosis, rank)
    if name.endswith(CHROME_SUFFIXES):
        # Our processes have numbers above all that the trace has, so that tracks never mix.
        numbers = [t.pid_number for t in part.table.tracks if t.pid_number is not None]
        first_pid = max([0, *(n for n in numbers if n < 2**31)]) + 1
        more_events = []
        for event in _chrome_events(slices, counters, first_pid):
            # Times are exact decimal microseconds.
            times = {key: event.pop(key) for key in ("ts", "dur") if key in event}
            exact = "".join(f',"{key}":{exact_us(ns)}' for key, ns in times.items())
            more_events.append(json.dumps(event, separators=(",", ":"))[:-1] + exact + "}")
        with replacing(target, inputs=inputs) as staged:
            _core.write_trace(part.table, staged, more_events=more_events)
    else:
        with replacing_stream(target, inputs=inputs) as stream:
            write_protobuf(part, slices, counters, stream)


# ------------------------------------------------------------------------------ Chrome's format


def _chrome_events(
    slices: Sequence[Slices], counters: Sequence[Counter], first_pid: int
) -> Iterator[dict[str, Any]]:
    """Yield events for slices, a process for each group of tracks, then for counters."""
    groups = {
        group: first_pid + i for i, group in enumerate(dict.fromkeys(s.group for s in slices))
    }
    for group, pid in groups.items():
        yield _metadata("process_name", pid, 0, {"name": f"torchtraceap: {group}"})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid - first_pid - 1000})
    for tid, track in enumerate(slices):
        pid = groups[track.group]
        yield _metadata("thread_name", pid, tid, {"name": track.track})
        starts, ends = track.start_ns.tolist(), track.end_ns.tolist()
        for name, start_ns, end_ns, args in zip(track.names, starts, ends, track.args, strict=True):
            yield {
                "ph": "X",
                "cat": "torchtraceap",
                "name": name,
                "pid": pid,
                "tid": tid,
                "args": args,
                "ts": start_ns,
                "dur": end_ns - start_ns,
            }
    pid = first_pid + 100
    if counters:
        yield _metadata("process_name", pid, 0, {"name": "torchtraceap: counters"})
    for counter in counters:
        for time_ns, value in zip(counter.time_ns.tolist(), counter.value.tolist(), strict=True):
            yield {
                "ph": "C",
                "cat": "torchtraceap",
                "name": counter.name,
                "pid": pid,
                "args": {"value": round(value, 6)},
                "ts": time_ns,
            }


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


# ------------------------------------------------------------------------------ Perfetto's format


def write_protobuf(
    part: RankTrace, slices: Sequence[Slices], counters: Sequence[Counter], stream: BinaryIO
) -> None:
    """Write complete events of the trace as slices by track, and the overlay beside them.

    The format has no times before 0: a trace that has them is moved to begin there.

    Raises:
        MissingDependencyError: The package `perfetto` is missing.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError:
        raise MissingDependencyError(
            "Perfetto's format needs its package: pip install 'torchtraceap[perfetto]'"
        ) from None
    table = part.table
    rows = np.flatnonzero(table.complete)
    times = [
        table.ts_ns[rows],
        *(track.start_ns for track in slices),
        *(counter.time_ns for counter in counters),
    ]
    origin_ns = min(0, *(int(values.min(initial=0)) for values in times))
    writer = _PerfettoWriter(StreamingTraceProtoBuilder(stream), protos, origin_ns)
    # Every complete event goes to the track where the profiler drew it; overlaps get lanes.
    strings, tracks = table.strings, table.tracks
    for track_id, here in sorted(rows_by_key(table.track[rows]), key=itemgetter(0)):
        process = tracks[track_id]
        group = writer.group(process.process_name or f"process {process.pid}")
        mine = rows[here]
        starts = table.ts_ns[mine]
        ends = starts + table.dur_ns[mine]
        lanes = assign_lanes(starts, ends).tolist()
        label = process.thread_name or f"thread {process.tid}"
        uuids = [writer.track(label, parent=group) for _ in range(max(lanes) + 1)]
        names = table.name[mine].tolist()
        for lane, start, end, name in zip(
            lanes, starts.tolist(), ends.tolist(), names, strict=True
        ):
            writer.slice(uuids[lane], strings[name], start, end)
    for track in slices:
        group = writer.group(f"torchtraceap: {track.group}")
        uuid = writer.track(track.track, parent=group)
        for text, start, end in zip(
            track.names, track.start_ns.tolist(), track.end_ns.tolist(), strict=True
        ):
            writer.slice(uuid, text, start, end)
    for counter in counters:
        uuid = writer.track(counter.name, is_counter=True)
        for time_ns, value in zip(counter.time_ns.tolist(), counter.value.tolist(), strict=True):
            writer.count(uuid, time_ns, value)


class _PerfettoWriter:
    """A writer of track descriptors and track events, one packet each."""

    def __init__(self, builder: Any, protos: Any, origin_ns: int) -> None:
        self._builder = builder
        self._protos = protos
        self._origin_ns = origin_ns
        self._uuids = itertools.count(1)
        self._groups: dict[str, int] = {}

    def group(self, name: str) -> int:
        if name not in self._groups:
            self._groups[name] = self.track(name)
        return self._groups[name]

    def track(self, name: str, *, parent: int | None = None, is_counter: bool = False) -> int:
        packet = self._builder.create_packet()
        uuid = next(self._uuids)
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        if is_counter:
            packet.track_descriptor.counter.SetInParent()
        self._builder.write_packet(packet)
        return uuid

    def slice(self, uuid: int, name: str, start_ns: int, end_ns: int) -> None:
        kinds = self._protos.TrackEvent
        packet = self._event(uuid, start_ns, kinds.TYPE_SLICE_BEGIN)
        packet.track_event.name = name
        self._builder.write_packet(packet)
        self._builder.write_packet(self._event(uuid, end_ns, kinds.TYPE_SLICE_END))

    def count(self, uuid: int, time_ns: int, value: float) -> None:
        packet = self._event(uuid, time_ns, self._protos.TrackEvent.TYPE_COUNTER)
        packet.track_event.double_counter_value = value
        self._builder.write_packet(packet)

    def _event(self, uuid: int, time_ns: int, kind: int) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp = time_ns - self._origin_ns
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = uuid
        return packet


def assign_lanes(start_ns: Array, end_ns: Array) -> Array:
    """Return the first lane of each slice on which it nests in the open slices of that lane.

    Args:
        start_ns: int64 `[n]`, ascending.
        end_ns: int64 `[n]`, none before its start.

    Returns:
        int64 `[n]`, from 0 without a gap.
    """
    lanes = _Lanes()
    slices = zip(start_ns.tolist(), end_ns.tolist(), strict=True)
    return np.fromiter((lanes.place(start, end) for start, end in slices), np.int64, len(start_ns))


class _Lanes:
    """The open slices of each lane.

    A slice fits where the innermost open one ends no earlier. A tree of maxima over these ends
    finds the first such lane in log(lanes); a heap of all open ends finds the slices that ended.
    """

    def __init__(self) -> None:
        self._size = 1  # leaves of the tree, a power of two
        self._latest = [_FREE] * 2  # node i has 2i and 2i + 1 below it, leaves come last
        self._open: list[list[int]] = []  # by lane: ends of open slices, the innermost last
        self._ends: list[tuple[int, int]] = []  # heap of (end, lane)

    def place(self, start: int, end: int) -> int:
        while self._ends and self._ends[0][0] <= start:
            _, lane = heapq.heappop(self._ends)
            ends = self._open[lane]
            ends.pop()
            self._set(lane, ends[-1] if ends else _FREE)
        if self._latest[1] < end:  # no lane is free until `end`: twice as many, the new ones free
            leaves = self._latest[self._size :] + [_FREE] * self._size
            self._size *= 2
            self._latest = [0] * self._size + leaves
            for node in range(self._size - 1, 0, -1):
                self._latest[node] = max(self._latest[2 * node], self._latest[2 * node + 1])
        node = 1
        while node < self._size:
            node *= 2
            if self._latest[node] < end:
                node += 1
        lane = node - self._size
        if lane == len(self._open):
            self._open.append([])
        self._open[lane].append(end)
        heapq.heappush(self._ends, (end, lane))
        self._set(lane, end)
        return lane

    def _set(self, lane: int, value: int) -> None:
        node = lane + self._size
        self._latest[node] = value
        while node > 1:
            node //= 2
            latest = max(self._latest[2 * node], self._latest[2 * node + 1])
            if self._latest[node] == latest:
                return
            self._latest[node] = latest


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
