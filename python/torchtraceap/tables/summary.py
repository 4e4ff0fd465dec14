"""`build_summary`: the document of `torchtraceap summary`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.results import Device, EventCounts, RankTimeline, Step, Summary, Timeline
from torchtraceap.tables.quality import quality_of
from torchtraceap.tables.steps.iterations import recorded_steps, step_time
from torchtraceap.trace.ranks import Ranks, RankTrace, from_core_timeline

__all__ = ["build_summary"]


def build_summary(trace: Ranks, *, linked_only: bool = False) -> Summary:
    """Return counts, timelines of ranks, devices and steps, the time of a step, and diagnostics.

    Args:
        trace: The ranks to sum up.
        linked_only: Leave GPU events out whose launch the trace does not hold.
    """
    timelines = [rank.timeline(linked_only=linked_only) for rank in trace.ranks]
    return Summary(
        files=tuple(rank.file for rank in trace.ranks),
        events=_event_counts(trace.ranks),
        diagnostics=trace.diagnostics,
        timeline=sum(timelines, Timeline()),
        devices=tuple(d for rank in trace.ranks for d in _devices(rank, linked_only)),
        ranks=tuple(
            RankTimeline(rank.rank, timeline)
            for rank, timeline in zip(trace.ranks, timelines, strict=True)
        ),
        steps=tuple(s for rank in trace.ranks for s in _steps(rank, linked_only)),
        steps_inferred=any(rank.tree.steps_inferred for rank in trace.ranks),
        versions=_versions(trace.ranks[0].table),
        step=step_time(trace.ranks),
        quality=quality_of(trace),
    )


def _versions(table: _core.EventTable) -> dict[str, str | int]:
    """Return members of the file, and of what it says of the job, that are called a version."""
    members: dict[str, Any] = {}
    for key, text in table.metadata:
        if key == "distributedInfo":
            job = _value(text)
            members |= job if isinstance(job, dict) else {}
        elif _is_version(key):
            members[key] = _value(text)
    return {
        key: value
        for key, value in members.items()
        if _is_version(key) and (type(value) is int or (type(value) is str and len(value) < 100))
    }


def _is_version(key: str) -> bool:
    return len(key) < 100 and key.lower().endswith("version")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # the core keeps what it read, valid or not


def _event_counts(ranks: Sequence[RankTrace]) -> EventCounts:
    by_category: Counter[str] = Counter()
    complete_events = 0
    for rank in ranks:
        table = rank.table
        complete = table.complete
        complete_events += int(np.count_nonzero(complete))
        codes, counts = np.unique(table.category[complete], return_counts=True)
        strings = table.strings
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            by_category["" if code == _core.NO_STRING else strings[code]] += count
    gpu = sum(len(rank.tree.gpu_rows) for rank in ranks)
    linked = sum(len(rank.tree.linked_gpu_rows) for rank in ranks)
    return EventCounts(
        total=sum(rank.table.total_objects for rank in ranks),
        complete=complete_events,
        gpu=gpu,
        gpu_linked=linked,
        gpu_orphan=gpu - linked,
        by_category=dict(sorted(by_category.items())),
    )


def _devices(rank: RankTrace, linked_only: bool) -> list[Device]:
    streams: dict[int | None, int] = {}
    for stream in rank.tree.streams:
        streams[stream.device] = streams.get(stream.device, 0) + 1
    names = {device.id: device.name for device in rank.table.devices}
    timelines = {
        None if device < 0 else device: from_core_timeline(timeline)
        for device, timeline in _core.device_timelines(
            rank.table, rank.tree, linked_only=linked_only
        )
    }
    return [
        Device(
            device=device,
            name=names.get(device) or None,
            streams=count,
            timeline=timelines.get(device, Timeline()),  # none of its events may be linked
            rank=rank.rank,
        )
        for device, count in streams.items()
    ]


def _steps(rank: RankTrace, linked_only: bool) -> list[Step]:
    # Nothing can be said of a step whose records are lost.
    steps = recorded_steps(rank)
    bounds = [(step.start_ns, step.end_ns) for step in steps]
    timelines = _core.timelines(rank.table, rank.tree, bounds, linked_only=linked_only)
    return [
        Step(
            name=step.name,
            start_ns=step.start_ns,
            duration_ns=step.end_ns - step.start_ns,
            timeline=from_core_timeline(timeline),
            rank=rank.rank,
        )
        for step, timeline in zip(steps, timelines, strict=True)
    ]
