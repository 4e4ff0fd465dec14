"""Trace and overlay in Perfetto's own format."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, BinaryIO

import numpy as np

from torchtraceap.errors import MissingDependencyError
from torchtraceap.report.annotate.lanes import assign_lanes
from torchtraceap.report.annotate.tracks import Counter, Slices
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.trace.ranks import RankTrace

__all__ = ["write_protobuf"]

SEQUENCE = 1


def write_protobuf(
    part: RankTrace, slices: Sequence[Slices], counters: Sequence[Counter], stream: BinaryIO
) -> None:
    """Writes complete events of the trace as slices by track, and the overlay beside them.

    The format has no times before 0: a trace that has them is moved to begin there.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError:
        raise MissingDependencyError(
            "Perfetto's format needs its package: pip install 'torchtraceap[perfetto]'"
        ) from None
    origin_ns = _first_time(part, slices, counters)
    writer = _Writer(StreamingTraceProtoBuilder(stream), protos, origin_ns)
    _write_events(writer, part)
    for track in slices:
        group = writer.group(f"torchtraceap: {track.group}")
        uuid = writer.track(track.track, parent=group)
        for name, start, end in zip(
            track.names, track.start_ns.tolist(), track.end_ns.tolist(), strict=True
        ):
            writer.slice(uuid, name, start, end)
    for counter in counters:
        uuid = writer.counter_track(counter.name)
        for time_ns, value in zip(counter.time_ns.tolist(), counter.value.tolist(), strict=True):
            writer.count(uuid, time_ns, value)


def _first_time(part: RankTrace, slices: Sequence[Slices], counters: Sequence[Counter]) -> int:
    """The earliest time of all if it is negative, else 0; ns."""
    times = [
        part.table.ts_ns[np.flatnonzero(part.table.complete)],
        *(track.start_ns for track in slices),
        *(counter.time_ns for counter in counters),
    ]
    return min(0, *(int(values.min(initial=0)) for values in times))


def _write_events(writer: _Writer, part: RankTrace) -> None:
    """Every complete event on the track where the profiler drew it; overlaps get lanes."""
    table = part.table
    rows = np.flatnonzero(part.table.complete)
    strings, tracks = table.strings, table.tracks
    for track_id, here in sorted(rows_by_key(table.track[rows]), key=itemgetter(0)):
        track = tracks[track_id]
        group = writer.group(track.process_name or f"process {track.pid}")
        mine = rows[here]
        starts, lengths = table.ts_ns[mine], table.dur_ns[mine]
        ends = starts + lengths
        lanes = assign_lanes(starts, ends).tolist()
        label = track.thread_name or f"thread {track.tid}"
        uuids = [writer.track(label, parent=group) for _ in range(max(lanes) + 1)]
        names = table.name[mine].tolist()
        for lane, start, end, name in zip(
            lanes, starts.tolist(), ends.tolist(), names, strict=True
        ):
            writer.slice(uuids[lane], strings[name], start, end)


class _Writer:
    """Track descriptors and track events, one packet each."""

    def __init__(self, builder: Any, protos: Any, origin_ns: int) -> None:
        self._builder = builder
        self._protos = protos
        self._origin_ns = origin_ns
        self._uuids = itertools.count(1)
        self._groups: dict[str, int] = {}
        self._pending: list[tuple[int, int, int, str]] = []

    def group(self, name: str) -> int:
        if name not in self._groups:
            self._groups[name] = self.track(name)
        return self._groups[name]

    def track(self, name: str, *, parent: int | None = None) -> int:
        packet = self._builder.create_packet()
        uuid = next(self._uuids)
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        self._builder.write_packet(packet)
        return uuid

    def counter_track(self, name: str) -> int:
        packet = self._builder.create_packet()
        uuid = next(self._uuids)
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        packet.track_descriptor.counter.SetInParent()
        self._builder.write_packet(packet)
        return uuid

    def slice(self, uuid: int, name: str, start_ns: int, end_ns: int) -> None:
        kinds = self._protos.TrackEvent
        self._event(uuid, start_ns, kinds.TYPE_SLICE_BEGIN).name = name
        self._send()
        self._event(uuid, end_ns, kinds.TYPE_SLICE_END)
        self._send()

    def count(self, uuid: int, time_ns: int, value: float) -> None:
        event = self._event(uuid, time_ns, self._protos.TrackEvent.TYPE_COUNTER)
        event.double_counter_value = value
        self._send()

    def _event(self, uuid: int, time_ns: int, kind: int) -> Any:
        self._packet = self._builder.create_packet()
        self._packet.timestamp = time_ns - self._origin_ns
        self._packet.trusted_packet_sequence_id = SEQUENCE
        self._packet.track_event.type = kind
        self._packet.track_event.track_uuid = uuid
        return self._packet.track_event

    def _send(self) -> None:
        self._builder.write_packet(self._packet)
