"""Compressed columns of one rank's events for the canvas timeline of the HTML report.

The page gets a gzip blob of typed columns, not JSON: 75,000 events fit in a few hundred kilobytes
and a browser decodes them in milliseconds. A blob is::

    u32 little endian: length of the header
    header: JSON, UTF-8 (names, lanes, and for each column its byte offset and number of planes)
    columns: unsigned integers split into byte planes, least significant plane first

Splitting into planes puts the bytes that hardly vary next to each other, which gzip then removes.
Starts are differences between neighbors. Times are nanoseconds after `origin_ns`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap._core import NO_ROW
from torchtraceap.core.columns import in_order_of_use
from torchtraceap.core.intervals import union
from torchtraceap.core.records import dataclass

IntArray = npt.NDArray[np.int64]

# Events kept before thinning starts: together about 3 MB of page, which a phone still scrolls.
MAX_GPU_EVENTS = 150_000
MAX_HOST_EVENTS = 250_000
# Longest compressed blob; base64 adds a third, so that the page stays under 5 MB.
MAX_BLOB_BYTES = 3_300_000
MAX_NAME_CHARS = 160  # a templated kernel name reaches thousands of characters
MAX_HOST_LANES = 10
MAX_MISSING = 1000  # stretches without GPU records, the longest
MAX_GPU_LANES = 16
MAX_DEPTH = 48  # rows of one thread: deeper frames cannot be told apart on a screen
OVERVIEW_BUCKETS = 600
# Events further from the profiled time than this many times its length are left out: one stray
# time stamp would otherwise shrink everything else to a point.
MAX_OUTSIDE = 10

_HOST_KINDS = ("cpu_op", "user_annotation", "python_function", "runtime", "driver")
_GPU_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class LaneInput:
    """Intervals that do not come from the event table: findings, idle causes."""

    kind: str
    label: str
    start_ns: IntArray
    end_ns: IntArray
    names: Sequence[str]
    name: IntArray
    """Index into `names`, shape [n]."""
    row: IntArray
    """Line of the lane, shape [n]."""
    code: IntArray
    """Color code, shape [n]; its meaning depends on `kind`."""


@dataclass(slots=True)
class _Lane:
    """A row of the timeline; its columns are start, dur, name, row, code and more."""

    kind: str
    label: str
    columns: dict[str, npt.NDArray[np.uint64]]
    detail: str = ""
    hidden: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class _Names:
    """The distinct names of one blob."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id_of(self, name: str) -> int:
        text = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"
        return self.ids.setdefault(text, len(self.ids))

    def ids_of(self, string_ids: npt.NDArray[Any], strings: Sequence[str]) -> IntArray:
        """Map string ids of a table to ids of the blob."""
        used, place = in_order_of_use(string_ids)
        mapped = np.array([self.id_of(strings[int(i)]) for i in used], dtype=np.int64)
        return mapped[place] if len(used) else np.zeros(0, np.int64)


def split_planes(values: npt.NDArray[Any]) -> tuple[bytes, int]:
    """Return the bytes of unsigned integers, plane by plane, and the number of planes."""
    wide = np.ascontiguousarray(values, dtype="<u8")
    if not len(wide):
        return b"", 1
    planes = max(1, (int(wide.max()).bit_length() + 7) // 8)
    matrix = wide.view(np.uint8).reshape(-1, 8)[:, :planes]
    return np.ascontiguousarray(matrix.T).tobytes(), planes


def distance_after(times_ns: npt.NDArray[Any], origin_ns: int) -> npt.NDArray[np.uint64]:
    """Return the unsigned distance of each time from the origin; 0 for times before it."""
    times = np.asarray(times_ns, dtype=np.int64)
    distance = times.view(np.uint64) - np.uint64(origin_ns % 2**64)
    return np.where(times >= origin_ns, distance, np.uint64(0))


def keep_longest(dur_ns: IntArray, limit: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the `limit` longest events, the first of equal ones."""
    count = len(dur_ns)
    if count <= limit:
        return np.ones(count, dtype=bool)
    if limit <= 0:
        return np.zeros(count, dtype=bool)
    threshold = np.partition(dur_ns, count - limit)[count - limit]
    mask: npt.NDArray[np.bool_] = dur_ns > threshold
    ties = np.flatnonzero(dur_ns == threshold)
    mask[ties[: limit - int(mask.sum())]] = True
    return mask


def visible_range(table: Any, profiled: tuple[int, int]) -> tuple[int, int]:
    """Return the time range of all complete events, but not further out than MAX_OUTSIDE."""
    mask = table.complete
    low, high = int(profiled[0]), int(profiled[1])
    if not mask.any():
        return low, max(high, low + 1)
    reach = max(1, high - low) * MAX_OUTSIDE
    starts = np.asarray(table.ts_ns)[mask]
    ends = starts + np.asarray(table.dur_ns)[mask]
    inside = (starts >= low - reach) & (ends <= high + reach)
    if inside.any():
        low, high = min(low, int(starts[inside].min())), max(high, int(ends[inside].max()))
    return low, max(high, low + 1)


def bucket_shares(
    intervals: npt.NDArray[np.int64], start_ns: int, end_ns: int, buckets: int = OVERVIEW_BUCKETS
) -> npt.NDArray[np.float64]:
    """Return the share of each of `buckets` equal pieces of a range that intervals cover.

    Args:
        intervals: Disjoint and sorted, [n, 2].
    """
    edges = np.linspace(0.0, float(end_ns - start_ns), buckets + 1)
    if not len(intervals):
        return np.zeros(buckets)
    clipped = np.clip(intervals, start_ns, end_ns) - start_ns
    points = clipped.reshape(-1).astype(np.float64)
    lengths = (clipped[:, 1] - clipped[:, 0]).astype(np.float64)
    covered = np.zeros(len(points))
    covered[1::2] = np.cumsum(lengths)
    covered[2::2] = covered[1:-1:2]
    share: npt.NDArray[np.float64] = np.diff(np.interp(edges, points, covered)) / np.diff(edges)
    return np.clip(share, 0.0, 1.0)


def overview(
    gpu: dict[str, npt.NDArray[np.int64]], start_ns: int, end_ns: int
) -> dict[str, list[int]]:
    """Return the GPU time of each bucket, as 0-255: compute, exposed communication and copies."""
    compute = gpu["compute"]
    either = union([compute, gpu["communication"]])
    layers = [bucket_shares(part, start_ns, end_ns) for part in (compute, either, gpu["busy"])]
    stack = [layers[0], layers[1] - layers[0], layers[2] - layers[1]]
    names = ("compute", "communication", "memcpy")
    return {
        name: np.rint(np.clip(part, 0, 1) * 255).astype(int).tolist()
        for name, part in zip(names, stack, strict=True)
    }


def _columns(
    start_ns: npt.NDArray[Any],
    dur_ns: npt.NDArray[Any],
    origin_ns: int,
    name: npt.NDArray[Any],
    row: npt.NDArray[Any],
    code: npt.NDArray[Any],
) -> dict[str, npt.NDArray[np.uint64]]:
    """Return the columns of any lane; starts ascend and become differences of neighbors."""
    start = distance_after(start_ns, origin_ns)
    return {
        "start": np.diff(start, prepend=np.uint64(0)) if len(start) else start,
        "dur": np.maximum(np.asarray(dur_ns, np.int64), 0).astype(np.uint64),
        "name": name.astype(np.uint64),
        "row": row.astype(np.uint64),
        "code": code.astype(np.uint64),
    }


def _input_lane(source: LaneInput, names: _Names, origin_ns: int, limit: int) -> _Lane:
    length = source.end_ns - source.start_ns
    kept = np.flatnonzero(keep_longest(length, limit) & (source.end_ns >= origin_ns))
    order = kept[np.argsort(source.start_ns[kept], kind="stable")]
    columns = _columns(
        source.start_ns[order],
        length[order],
        origin_ns,
        names.ids_of(source.name[order], source.names),
        source.row[order],
        source.code[order],
    )
    return _Lane(source.kind, source.label, columns, hidden=len(length) - len(order))


def _step_lane(tree: Any, names: _Names, origin_ns: int) -> _Lane:
    steps = sorted(tree.steps, key=lambda step: step.start_ns)
    start = np.array([s.start_ns for s in steps], np.int64)
    end = np.array([s.end_ns for s in steps], np.int64)
    name = np.array([names.id_of(step.name) for step in steps], np.int64)
    zero = np.zeros(len(steps), np.int64)
    return _Lane("step", "steps", _columns(start, end - start, origin_ns, name, zero, zero))


def _gpu_columns(
    table: Any, tree: Any, rows: IntArray, names: _Names, origin_ns: int
) -> dict[str, npt.NDArray[np.uint64]]:
    """Return the columns of a stream, with the operator, the call and the delay of each event."""
    all_starts, name = np.asarray(table.ts_ns), np.asarray(table.name)
    start, dur = all_starts[rows], np.asarray(table.dur_ns)[rows]
    # Events that overlap an earlier one stand in a second row.
    reached = np.maximum.accumulate(start + dur)
    overlaps = np.r_[False, start[1:] < reached[:-1]][: len(rows)]
    columns = _columns(
        start,
        dur,
        origin_ns,
        names.ids_of(name[rows], table.strings),
        overlaps,
        np.asarray(tree.gpu_class)[rows],
    )
    op, launch = (np.asarray(link)[rows].astype(np.int64) for link in (tree.op, tree.launch))
    for key, target in (("op", op), ("call", launch)):
        ids = np.zeros(len(rows), np.int64)
        ids[target != NO_ROW] = names.ids_of(name[target[target != NO_ROW]], table.strings) + 1
        columns[key] = ids.astype(np.uint64)
    # Start of a GPU event after the start of its launch, plus one; 0 without a launch.
    linked = launch != NO_ROW
    delay = np.full(len(rows), -1, np.int64)
    delay[linked] = start[linked] - all_starts[launch[linked]]
    columns["delay"] = np.maximum(delay + 1, 0).astype(np.uint64)
    return columns


def _stream_lanes(
    table: Any, tree: Any, rows: IntArray, names: _Names, origin_ns: int
) -> tuple[list[_Lane], int]:
    """Return the lanes of the busiest streams, and the number of streams left out."""
    stream_of = np.asarray(tree.stream_of)[rows].astype(np.int64)
    counts = np.bincount(stream_of[stream_of != NO_ROW], minlength=len(tree.streams))
    busiest = sorted(np.argsort(-counts, kind="stable")[:MAX_GPU_LANES].tolist())
    streams = tree.streams
    devices = {stream.device for stream in streams}
    lanes = []
    for index in busiest:
        stream = streams[index]
        mine = rows[stream_of == index]
        if not len(mine):
            continue
        label = "stream ?" if stream.stream is None else f"stream {stream.stream}"
        if len(devices) > 1 and stream.device is not None:
            label = f"GPU {stream.device} {label}"
        columns = _gpu_columns(table, tree, mine, names, origin_ns)
        lanes.append(_Lane("gpu", label, columns, str(stream.role)))
    return lanes, int((counts > 0).sum()) - len(lanes)


def _host_lanes(
    table: Any, tree: Any, rows: IntArray, names: _Names, origin_ns: int
) -> tuple[list[_Lane], int]:
    """Return the lanes of the main thread and the busiest others, and the number left out."""
    tracks = np.asarray(table.track)[rows].astype(np.int64)
    depth = np.asarray(tree.depth)[rows]
    top_time = np.bincount(
        tracks[depth == 0],
        weights=np.asarray(table.dur_ns)[rows[depth == 0]].astype(np.float64),
        minlength=len(table.tracks),
    )
    main = tree.main_track
    order = np.argsort(-top_time, kind="stable")
    present = np.bincount(tracks, minlength=len(table.tracks)) > 0
    chosen = [int(t) for t in order if present[t] and t != main]
    if main is not None and present[main]:
        chosen.insert(0, main)
    lanes = []
    for number in chosen[:MAX_HOST_LANES]:
        mine = rows[(tracks == number) & (depth < MAX_DEPTH)]
        columns = _columns(
            np.asarray(table.ts_ns)[mine],
            np.asarray(table.dur_ns)[mine],
            origin_ns,
            names.ids_of(np.asarray(table.name)[mine], table.strings),
            np.asarray(tree.depth)[mine],
            np.asarray(table.kind)[mine],
        )
        track, is_main = table.tracks[number], number == main
        name = str(track.thread_name or "").strip()
        label = "main thread" if is_main else (name or f"thread {track.tid}")
        detail = f"{track.tid}" if is_main or name else ""
        lanes.append(_Lane("host", label, columns, detail, extra={"main": is_main}))
    return lanes, max(0, len(chosen) - MAX_HOST_LANES)


def _serialize(names: _Names, lanes: list[_Lane], more: dict[str, Any]) -> bytes:
    """Write a blob: the header with names, lanes and `more`, then the columns."""
    body: list[bytes] = []
    offset = 0
    described = []
    for lane in lanes:
        columns = {}
        for key, values in lane.columns.items():
            data, planes = split_planes(values)
            columns[key] = [offset, planes]
            body.append(data)
            offset += len(data)
        described.append(
            {
                "kind": lane.kind,
                "label": lane.label,
                "detail": lane.detail,
                **lane.extra,
                "count": len(lane.columns["start"]),
                "hidden": lane.hidden,
                "columns": columns,
            }
        )
    header = json.dumps({"names": list(names.ids), "lanes": described} | more).encode()
    packed = len(header).to_bytes(4, "little") + header + b"".join(body)
    return gzip.compress(packed, compresslevel=6, mtime=0)


def _longest_rows(
    table: Any, inside: npt.NDArray[np.bool_], kinds: list[int], limit: int
) -> IntArray:
    rows = np.flatnonzero(inside & np.isin(np.asarray(table.kind), kinds))
    rows = rows[keep_longest(np.asarray(table.dur_ns)[rows], limit)]
    return rows.astype(np.int64)


def _pack_once(
    table: Any,
    tree: Any,
    kind_names: Sequence[str],
    inputs: Sequence[LaneInput],
    gpu: dict[str, npt.NDArray[np.int64]],
    share: float,
) -> tuple[bytes, list[str]]:
    """Pack a share of the most events that a page may have."""
    low, high = visible_range(table, tree.profiled)
    start, dur = np.asarray(table.ts_ns), np.asarray(table.dur_ns)
    inside = table.complete & (start >= low) & (start + dur <= high)
    of_gpu = [number for number, name in enumerate(kind_names) if name in _GPU_KINDS]
    of_host = [number for number, name in enumerate(kind_names) if name in _HOST_KINDS]
    gpu_rows = _longest_rows(table, inside, of_gpu, int(MAX_GPU_EVENTS * share))
    host_rows = _longest_rows(table, inside, of_host, int(MAX_HOST_EVENTS * share))

    names = _Names()
    lanes = [_step_lane(tree, names, low)] if len(tree.steps) else []
    lanes += [_input_lane(source, names, low, int(100_000 * share)) for source in inputs]
    stream_lanes, hidden_streams = _stream_lanes(table, tree, gpu_rows, names, low)
    host_lanes, hidden_tracks = _host_lanes(table, tree, host_rows, names, low)
    shown = sum(len(lane.columns["start"]) for lane in stream_lanes + host_lanes)
    total = int((inside & np.isin(np.asarray(table.kind), of_gpu + of_host)).sum())
    first, last = int(tree.profiled[0]), int(tree.profiled[1])
    more = {
        "length": high - low,
        "profiled": [first - low, last - low],
        "overview": overview(gpu, low, high),
        "kinds": list(kind_names),
    }
    missing = np.clip(tree.missing, low, high) - low
    missing = missing[np.argsort(missing[:, 0] - missing[:, 1], kind="stable")][:MAX_MISSING]
    if len(missing):
        more["missing"] = np.sort(missing, axis=0).tolist()  # hatched; sets are disjoint
    notes = []
    if shown < total:
        notes.append(f"The timeline shows the {shown:,} longest of {total:,} events.")
    if hidden_streams > 0:
        notes.append(f"{hidden_streams} GPU streams with fewer events are not drawn.")
    if hidden_tracks > 0:
        notes.append(f"{hidden_tracks} host threads with less work are not drawn.")
    return _serialize(names, lanes + stream_lanes + host_lanes, more), notes


def pack_timeline(
    table: Any,
    tree: Any,
    *,
    kind_names: Sequence[str],
    inputs: Sequence[LaneInput],
    gpu: dict[str, npt.NDArray[np.int64]],
    max_bytes: int = MAX_BLOB_BYTES,
) -> tuple[bytes, list[str]]:
    """Pack one rank for the page, thinned out until it fits.

    Args:
        table: EventTable of the rank.
        tree: EventTree of the rank.
        kind_names: Names of the event kinds by number.
        inputs: Lanes that are not in the table: findings and idle causes.
        gpu: Unions of GPU intervals by class, each int64 [n, 2].
        max_bytes: Longest compressed blob.

    Returns:
        The blob, and notes on events that were left out.
    """
    share = min(1.0, max_bytes / MAX_BLOB_BYTES)
    while True:
        blob, notes = _pack_once(table, tree, kind_names, inputs, gpu, share)
        if len(blob) <= max_bytes or share < 1e-3:
            return blob, notes
        share *= min(0.7, 0.9 * max_bytes / len(blob))
