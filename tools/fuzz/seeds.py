"""Cuts seeds for the fuzz targets out of real traces: a few events around GPU work each.

    cut_seeds.py [--per-trace N] [--max-bytes N] OUT TRACE_OR_FOLDER...

What belongs to an event comes with it: its launch, the operators around that, what stands beside it
on the stream, the names of its threads; of the metadata what a rank is and what its device. Traces
of one job give seeds of several ranks too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import TraceError

NEXT_TEXT = b"\n\x1e\n"  # as input.hpp has it
HEAD_KEYS = ("schemaVersion", "deviceProperties", "distributedInfo", "with_stack")
NEIGHBOURS = 3
MAX_HEAD_VALUE = 600
MAX_EVENT_BYTES = 1200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-trace", type=int, default=4)
    parser.add_argument("--max-bytes", type=int, default=4096)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    count = 0
    for source in arguments.sources:
        for seed in seeds_below(source, arguments.per_trace, arguments.max_bytes):
            (arguments.out / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
            count += 1
    print(f"{count} seeds in {arguments.out}")


def seeds_below(source: Path, per_trace: int, max_bytes: int) -> Iterator[bytes]:
    """Of each file by itself, and of the files of a folder side by side."""
    files = [source] if source.is_file() else sorted(p for p in source.rglob("*.json*"))
    folders: dict[Path, list[ttap.Trace]] = {}
    for file in files:
        try:
            trace = ttap.load(file)
        except TraceError:
            continue  # tables and references that lie beside the traces
        for anchor in anchors(trace, per_trace):
            yield seed_of(trace, anchor, max_bytes)
        if trace.ranks[0].table.world_size:
            folders.setdefault(file.parent, []).append(trace)
    for traces in folders.values():
        yield from job_seeds(traces, per_trace, max_bytes)


def anchors(trace: ttap.Trace, count: int) -> list[int]:
    """Rows to cut around: of each class of GPU work some, and calls that wait."""
    table, tree = trace.ranks[0].table, trace.ranks[0].tree
    groups = [tree.gpu_rows[tree.gpu_class[tree.gpu_rows] == code] for code in range(1, 4)]
    waits = (_core.ApiClass.STREAM_SYNC, _core.ApiClass.DEVICE_SYNC, _core.ApiClass.EVENT_SYNC)
    groups += [
        np.flatnonzero(np.isin(tree.api, waits)),
        np.array([s.row for s in tree.steps if s.row]),
    ]
    groups = [rows for rows in groups if len(rows)] or [np.arange(len(table))]
    return [
        int(rows[place])
        for rows in groups
        for place in np.linspace(0, len(rows) - 1, count, dtype=np.int64)
    ]


def job_seeds(traces: list[ttap.Trace], count: int, max_bytes: int) -> Iterator[bytes]:
    """The n-th communication kernel of two or three ranks."""
    for n in range(count):
        texts = []
        for trace in traces[:3]:
            tree = trace.ranks[0].tree
            rows = tree.gpu_rows[tree.gpu_class[tree.gpu_rows] == _core.GpuClass.COMMUNICATION]
            if n < len(rows):
                texts.append(seed_of(trace, int(rows[n]), max_bytes // 2))
        if len(texts) > 1:
            yield NEXT_TEXT.join(texts)


def seed_of(trace: ttap.Trace, anchor: int, max_bytes: int) -> bytes:
    table = trace.ranks[0].table
    head = head_of(table)
    size = len(head) + 24
    kept: list[int] = []
    for row in rows_around(trace, anchor):
        text = event_text(table, row)
        if row in kept or len(text) > MAX_EVENT_BYTES:
            continue
        size += len(text.encode()) + 2
        if size > max_bytes:
            break
        kept.append(row)
    events = ",\n".join(event_text(table, row) for row in sorted(kept))
    return f'{{{head}"traceEvents":[\n{events}\n]}}'.encode()


def event_text(table: _core.EventTable, row: int) -> str:
    """Without the layout, which only costs time."""
    return re.sub(r"(?<=[,{:])\s+", "", re.sub(r"\s*\n\s*", "", table.event_json(row)))


def head_of(table: _core.EventTable) -> str:
    members = [
        f"{json.dumps(key)}:{value}"
        for key, value in table.metadata
        if key in HEAD_KEYS and len(value) <= MAX_HEAD_VALUE
    ]
    return "".join(member + "," for member in members)


def rows_around(trace: ttap.Trace, anchor: int) -> Iterator[int]:
    """The most telling first."""
    table, tree = trace.ranks[0].table, trace.ranks[0].tree
    yield from with_company(tree, anchor)
    gpu = tree.gpu_rows
    place = int(np.searchsorted(gpu, anchor)) if len(gpu) else 0
    for distance in range(1, NEIGHBOURS + 1):
        for other in (place - distance, place + distance):
            if 0 <= other < len(gpu):
                yield from with_company(tree, int(gpu[other]))
    metadata = np.flatnonzero(table.kind == _core.EventKind.METADATA)
    tracks = {int(table.track[anchor]), int(table.track[int(tree.launch[anchor])])
              if tree.launch[anchor] != _core.NO_ROW else -1}  # fmt: skip
    yield from (int(row) for row in metadata if int(table.track[row]) in tracks)
    yield from (row for row in range(anchor - 20, anchor + 20) if 0 <= row < len(table))


def with_company(tree: _core.EventTree, row: int) -> Iterable[int]:
    """An event, its launch, and what is around that, or around itself."""
    yield row
    launch = int(tree.launch[row])
    current = row if launch == _core.NO_ROW else launch
    while current != _core.NO_ROW:
        yield current
        current = int(tree.parent[current])


if __name__ == "__main__":
    main()
