"""The overlay as events of Chrome's trace format, behind those of the trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.core.formatting import exact_us
from torchtraceap.report.annotate.tracks import Counter, Slices
from torchtraceap.trace.ranks import RankTrace

__all__ = ["write_chrome"]


def write_chrome(
    part: RankTrace, slices: Sequence[Slices], counters: Sequence[Counter], path: Path
) -> None:
    """Writes the trace, nothing lost, with a process of our own per group of tracks."""
    first = _free_pid(part)
    events = [*_slice_events(slices, first), *_counter_events(counters, first)]
    _core.write_trace(part.table, path, more_events=[_dump(event) for event in events])


def _dump(event: dict[str, Any]) -> str:
    """JSON with times as exact decimal microseconds."""
    times = {key: event.pop(key) for key in ("ts", "dur") if key in event}
    exact = "".join(f',"{key}":{exact_us(ns)}' for key, ns in times.items())
    return json.dumps(event, separators=(",", ":"))[:-1] + exact + "}"


def _free_pid(part: RankTrace) -> int:
    """The first process number above all that the trace has, so that tracks never mix."""
    numbers = [t.pid_number for t in part.table.tracks if t.pid_number is not None]
    return max([0, *(n for n in numbers if n < 2**31)]) + 1


def _slice_events(slices: Sequence[Slices], first_pid: int) -> Iterator[dict[str, Any]]:
    groups = {
        group: first_pid + i for i, group in enumerate(dict.fromkeys(s.group for s in slices))
    }
    for group, pid in groups.items():
        yield _meta("process_name", pid, 0, {"name": f"torchtraceap: {group}"})
        yield _meta("process_sort_index", pid, 0, {"sort_index": pid - first_pid - 1000})
    for tid, track in enumerate(slices):
        pid = groups[track.group]
        yield _meta("thread_name", pid, tid, {"name": track.track})
        rows = zip(
            track.names, track.start_ns.tolist(), track.end_ns.tolist(), track.args, strict=True
        )
        for name, start_ns, end_ns, args in rows:
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


def _counter_events(counters: Sequence[Counter], first_pid: int) -> Iterator[dict[str, Any]]:
    pid = first_pid + 100
    if counters:
        yield _meta("process_name", pid, 0, {"name": "torchtraceap: counters"})
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


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
