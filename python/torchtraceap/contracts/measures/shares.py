"""Shares of the profiled time and times of steps, and the event that shows most of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtraceap import _core
from torchtraceap.contracts.measures.events import UnknownMeasureError
from torchtraceap.core.aliases import Array
from torchtraceap.core.order import median
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Timeline
from torchtraceap.tables.steps.iterations import counted_spans, counted_steps, iterations_of
from torchtraceap.trace.ranks import RankTrace

__all__ = ["NO_STEPS", "TIMED", "ShareOrTime"]

NO_STEPS = "the trace has no steps; call profiler.step() at the end of each iteration"
_NO_GPU = "no GPU event is recorded; record with ProfilerActivity.CUDA, on a machine with a GPU"


@dataclass(frozen=True, slots=True)
class ShareOrTime:
    """A share or a time of one rank."""

    value: float
    by_step: tuple[int, ...]
    """Times of the counted steps in ns; empty for shares."""
    row: Callable[[], int | None]
    """The event that shows most of it, found when it is asked for."""


def _profiled_timeline(part: RankTrace) -> Timeline:
    if not len(part.tree.gpu_rows):
        raise UnknownMeasureError(_NO_GPU)
    timeline = part.profiled_timeline()
    if timeline.span_ns <= 0:
        raise UnknownMeasureError("the profiled time is empty")
    return timeline


def _gpu_idle(part: RankTrace) -> ShareOrTime:
    timeline = _profiled_timeline(part)
    return ShareOrTime(timeline.share(timeline.idle_ns), (), lambda: _longest_idle(part))


def _gpu_busy(part: RankTrace) -> ShareOrTime:
    timeline = _profiled_timeline(part)
    return ShareOrTime(timeline.share(timeline.busy_ns), (), lambda: _longest_idle(part))


def _exposed_communication(part: RankTrace) -> ShareOrTime:
    timeline = _profiled_timeline(part)
    share = timeline.share(timeline.exposed_communication_ns)
    kind = _core.GpuClass.COMMUNICATION
    return ShareOrTime(share, (), lambda: _most_exposed(part, kind))


def _exposed_memcpy(part: RankTrace) -> ShareOrTime:
    timeline = _profiled_timeline(part)
    share = timeline.share(timeline.exposed_memcpy_ns)
    return ShareOrTime(share, (), lambda: _most_exposed(part, _core.GpuClass.MEMCPY))


def _step_time(part: RankTrace) -> ShareOrTime:
    _check_steps(part)
    iterations = iterations_of(part)
    lengths = iterations.length_ns[iterations.counted]
    return ShareOrTime(median(lengths), tuple(lengths.tolist()), lambda: _step_row(part, lengths))


def _gpu_time_per_step(part: RankTrace) -> ShareOrTime:
    _check_steps(part)
    _profiled_timeline(part)
    bounds = [(int(start), int(end)) for start, end in counted_spans(part)]
    lines = _core.timelines(part.table, part.tree, bounds)
    busy = np.array([line.busy_ns for line in lines], dtype=np.int64)
    return ShareOrTime(median(busy), tuple(busy.tolist()), lambda: _longest_event(part))


def _check_steps(part: RankTrace) -> None:
    if not part.tree.steps:
        raise UnknownMeasureError(NO_STEPS)


def _longest_idle(part: RankTrace) -> int | None:
    """The host's row that explains the longest idle interval, else the GPU event behind it."""
    idle = part.idle(part.tree.profiled)
    if not len(idle):
        return None
    place = int(np.argmax(idle.end_ns - idle.start_ns))
    for row in (int(idle.explained_by[place]), int(idle.next_gpu_row[place])):
        if row != _core.NO_ROW:
            return row
    return None


def _most_exposed(part: RankTrace, kind: _core.GpuClass) -> int | None:
    """The event of a class with most time that counts for it alone, inside the profiled time."""
    rows = _profiled_rows(part)
    rows = rows[part.tree.gpu_class[rows] == kind]
    exposed_ns = part.costs.exclusive_ns[rows]
    return int(rows[int(np.argmax(exposed_ns))]) if len(rows) else None


def _longest_event(part: RankTrace) -> int | None:
    rows = _profiled_rows(part)
    return int(rows[int(np.argmax(part.table.dur_ns[rows]))]) if len(rows) else None


def _profiled_rows(part: RankTrace) -> Array:
    """GPU events that begin in the profiled time."""
    start_ns, end_ns = part.tree.profiled
    rows = part.tree.gpu_rows.astype(np.int64)
    times = part.table.ts_ns[rows]
    found: Array = rows[(times >= start_ns) & (times < end_ns)]
    return found


def _step_row(part: RankTrace, lengths: Array) -> int | None:
    """The annotation of the slowest counted step, if it has one."""
    place = int(np.flatnonzero(counted_steps(part))[int(np.argmax(lengths))])
    return part.tree.steps[place].row


TIMED: dict[str, Callable[[RankTrace], ShareOrTime]] = {
    "gpu_idle": _gpu_idle,
    "gpu_busy": _gpu_busy,
    "exposed_communication": _exposed_communication,
    "exposed_memcpy": _exposed_memcpy,
    "step_time": _step_time,
    "gpu_time_per_step": _gpu_time_per_step,
}
"""Functions by key. On a trace that lacks the signal they raise UnknownMeasureError."""
