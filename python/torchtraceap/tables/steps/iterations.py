"""`iterations_of`: what the steps of a rank take, host and GPU together.

Note [Iteration]: launches are asynchronous, so the host's range of a step says how long it took to
hand the work over, not how long the work takes. A step's work has ended when the host has left its
range and the GPU has done what was launched until then, and never before the work of the step
before. Its iteration is the distance from one such end to the next. The first begins with its
range, or where what was launched before it ends if that is later. Where that was not recorded, the
first GPU event tells: no launch takes so long that it explains a later begin, so until then the GPU
was busy; nor does the staging of a copy explain that its call waits for longer. What other threads
do counts through what waits for it: a thread for which nothing waits ends no step.

Note [Counted steps]: every step that is marked or inferred, but for those that begin in the warm-up
and for the last of inferred ones, which ends with its last event and not where another begins; all
of them where fewer than two would remain. A figure per step is the mean over the counted steps, so
that what is lost in one of three counts a third; over several ranks it is the mean of theirs.

`simulation/` replays these iterations; measured and replayed times come from `lengths_ns` alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import PHASES, StepTime
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "UNMARKED",
    "Iterations",
    "apart_notes",
    "counted_spans",
    "counted_steps",
    "counted_work",
    "first_launched_row",
    "held_up_row",
    "is_held_up",
    "is_served",
    "iterations_of",
    "lengths_ns",
    "recorded_steps",
    "step_of_work",
    "step_spans",
    "step_time",
]

UNMARKED = "unmarked"
"""Kind of a step that no serving engine marks."""
_LEAST_COUNTED = 2
LONGEST_LAUNCH_NS = 100_000
"""The longest time from the return of a launch call to the begin of its work on an idle GPU (the
bound of `launch_latency`, docs/idle_time.md)."""
SLOWEST_STAGING = 2.5
"""Bytes per ns at which pageable memory is copied at least: the slowest rate of public traces
(docs/durations.md)."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """The steps of a rank by start; all empty where it has none."""

    length_ns: Array
    """int64 `[steps]`: from the end of the work of the step before to that of its own."""
    end_ns: Array
    """int64 `[steps]`: when its work has ended."""
    host_ns: Array
    """int64 `[steps]`: of its range on the host."""
    counted: Array
    """bool `[steps]`. See Note [Counted steps]."""


def iterations_of(part: RankTrace) -> Iterations:
    """Return the measured iterations. See Note [Iteration]."""
    return part.cached("iterations", lambda: _build(part))


def is_served(part: RankTrace) -> bool:
    """Return whether an engine that serves a model was recorded, by its annotations or frames."""
    tree = part.tree
    return tree.workload.role in PHASES or any(step.kind != UNMARKED for step in tree.steps)


def step_time(parts: Sequence[RankTrace]) -> StepTime | None:
    """What a step takes, over the ranks that have steps; None where none has any."""
    found = [each for each in map(iterations_of, parts) if len(each.counted)]
    if not found:
        return None
    lengths = [each.length_ns[each.counted] for each in found]
    return StepTime(
        measured_ns=round(float(np.mean([ns.mean() for ns in lengths]))),
        median_ns=round(float(np.median(np.concatenate(lengths)))),
        host_ns=round(float(np.mean([each.host_ns[each.counted].mean() for each in found]))),
        steps=sum(map(len, lengths)),
        left_out=sum(int((~each.counted).sum()) for each in found),
        kinds=_median_by_kind(parts),
    )


def apart_notes(parts: Sequence[RankTrace], what: str) -> list[str]:
    """Say what a step takes where its range on the host, of which a table is, takes another time.

    Args:
        parts: The ranks.
        what: What the table does with the range, such as "this table splits up".
    """
    step = step_time(parts)
    if step is None or not step.host_apart:
        return []
    return [
        f"a step takes {format_ns(step.measured_ns)}, host and GPU together (mean of {step.steps})"
        f"; its range on the host, which {what}, takes {format_ns(step.host_ns)}."
    ]


def _median_by_kind(parts: Sequence[RankTrace]) -> dict[str, int]:
    """The median of the counted steps of each kind, in ns; empty where no engine marks them."""
    lengths: dict[str, list[int]] = {}
    for part in parts:
        found = iterations_of(part)
        for step, length, counted in zip(
            part.tree.steps, found.length_ns.tolist(), found.counted.tolist(), strict=True
        ):
            if counted:
                lengths.setdefault(step.kind, []).append(length)
    if not lengths.keys() - {UNMARKED}:
        return {}
    return {kind: round(float(np.median(values))) for kind, values in sorted(lengths.items())}


def lengths_ns(ends: Array) -> Array:
    """int64 `[..., steps]` from `[..., 1 + steps]`: where the first step of a rank begins and when
    the work of each has ended."""
    lengths: Array = np.diff(np.maximum.accumulate(ends, axis=-1), axis=-1)
    return lengths


def step_spans(part: RankTrace) -> Array:
    """int64 `[steps, 2]`: their ranges on the host, start and end in ns; kept."""

    def build() -> Array:
        spans = [(step.start_ns, _end_ns(part, step)) for step in part.tree.steps]
        return np.array(spans, dtype=np.int64).reshape(-1, 2)

    return part.cached("step_spans", build)


def _end_ns(part: RankTrace, step: _core.Step) -> int:
    """Return where a step ends: a thread does one thing at a time, so a marked one has ended where
    something begins that outlasts it, such as the call that ends it."""
    if step.row is None:
        return step.end_ns
    table, tree = part.table, part.tree
    track = int(table.track[step.row])
    rows = tree.host_rows[int(tree.host_offsets[track]) : int(tree.host_offsets[track + 1])]
    inside = rows[slice(*np.searchsorted(rows, [step.row + 1, _behind(table, step.end_ns)]))]
    longer = inside[table.ts_ns[inside] + table.dur_ns[inside] > step.end_ns]
    return max(step.start_ns, int(table.ts_ns[longer[0]])) if len(longer) else step.end_ns


def _behind(table: _core.EventTable, end_ns: int) -> int:
    """Return the first row that begins then or later."""
    return int(np.searchsorted(table.ts_ns, end_ns))


def recorded_steps(part: RankTrace) -> list[_core.Step]:
    """Return the steps whose GPU records are there: nothing can be said of the others."""
    flags = part.tree.step_is_recorded
    return [step for step, there in zip(part.tree.steps, flags, strict=True) if there]


def counted_steps(part: RankTrace) -> Array:
    """bool `[steps]`. See Note [Counted steps]."""
    warm_up = part.tree.warm_up
    starts = step_spans(part)[:, 0]
    whole = np.ones(len(starts), dtype=bool)
    whole[-1:] = not part.tree.steps_inferred
    if warm_up.known:
        whole &= starts >= warm_up.end_ns
    # A step whose records are lost has no length; without any other one the host's have to do.
    recorded = np.array(part.tree.step_is_recorded, dtype=bool)
    usable = recorded if recorded.any() else np.ones(len(starts), dtype=bool)
    whole &= usable
    return whole if whole.sum() >= _LEAST_COUNTED else usable


def counted_spans(part: RankTrace) -> Array:
    """int64 `[counted steps, 2]`: their ranges on the host, start and end in ns."""
    spans: Array = step_spans(part)[counted_steps(part)]
    return spans


def counted_work(part: RankTrace) -> Array:
    """int64 `[counted steps, 2]`: their iterations, start and end in ns, which leave nothing out
    between one and the next.

    Of a serving engine these are all iterations that are recorded: they differ by what requests
    ask for, so that neither the first nor the last stands for the others.
    """
    iterations = iterations_of(part)
    chosen = iterations.counted
    if any(step.kind != UNMARKED for step in part.tree.steps):
        chosen = np.array(part.tree.step_is_recorded, dtype=bool)
    end_ns = iterations.end_ns[chosen]
    return np.stack([end_ns - iterations.length_ns[chosen], end_ns], axis=1)


def step_of_work(part: RankTrace) -> Array:
    """int64 `[gpu rows]`: the step until whose end each of `tree.gpu_rows` was launched; kept.

    -1 for what was launched before the first step, the number of steps for what comes behind the
    last. Work without a launch counts from when it begins; ahead of all that the steps launch on
    its stream it is left from before them.
    """
    return part.cached("step_of_work", lambda: _step_of_work(part))


def _step_of_work(part: RankTrace) -> Array:
    tree, starts_ns = part.tree, part.table.ts_ns
    rows = tree.gpu_rows
    calls = tree.launch[rows]
    orphan = calls == _core.NO_ROW
    launched_ns = starts_ns[np.where(orphan, 0, calls)]
    launched_ns[orphan] = starts_ns[rows[orphan]] + tree.launch_delay_correction_ns
    spans = step_spans(part)
    steps: Array = np.searchsorted(spans[:, 1], launched_ns, side="right").astype(np.int64)
    if len(spans):
        steps[launched_ns < spans[0, 0]] = -1
    steps[orphan & _is_ahead(tree.stream_of[rows], ~orphan & (steps >= 0))] = -1
    return steps


def first_launched_row(part: RankTrace) -> int | None:
    """Return the first GPU event that has a launch, if that is in the first step."""
    tree, table = part.tree, part.table
    rows, spans = tree.gpu_rows, step_spans(part)
    linked = tree.launch[rows] != _core.NO_ROW
    if not len(spans) or not linked.any():
        return None
    row = int(rows[np.argmax(linked)])
    return row if spans[0, 0] <= table.ts_ns[int(tree.launch[row])] <= spans[0, 1] else None


def held_up_row(part: RankTrace) -> int | None:
    """The first launched GPU event, if it was launched in the first step and begins so late that
    work from before the recording must have held it up, of which none is recorded. See Note
    [Iteration]."""
    row = first_launched_row(part)
    if row is None or (step_of_work(part) < 0).any():
        return None
    tree, table = part.tree, part.table
    call = int(tree.launch[row])
    called_ns = int(table.ts_ns[call])
    returned_ns = called_ns + int(table.dur_ns[call])
    begun_ns = int(table.ts_ns[row]) + tree.launch_delay_correction_ns
    return row if is_held_up(part, row, called_ns, returned_ns, begun_ns) else None


def is_held_up(part: RankTrace, row: int, called_ns: int, returned_ns: int, begun_ns: int) -> bool:
    """Return True if a GPU event begins later than its launch explains.

    Args:
        part: The rank.
        row: The event.
        called_ns: When its call begins, of any clock.
        returned_ns: When the call returns.
        begun_ns: When the event begins.
    """
    launched_ns = returned_ns
    if part.tree.gpu_class[row] == _core.GpuClass.MEMCPY and begun_ns < returned_ns:
        # It waited for the stream, but for the time in which the host may have staged its bytes.
        size, known = part.table.int_column("bytes", rows=np.array([row]))
        staged_ns = int(size[0] / SLOWEST_STAGING) if known[0] and size[0] > 0 else 0
        launched_ns = min(called_ns + staged_ns, returned_ns)
    return begun_ns - launched_ns > LONGEST_LAUNCH_NS


def _is_ahead(stream: Array, stepped: Array) -> Array:
    """bool `[gpu rows]`, which are by start: none of its stream that steps launched began before,
    and some does behind it."""
    place = np.arange(len(stream))
    first = np.full(int(stream.max(initial=0)) + 1, -1)
    launched = np.flatnonzero(stepped)[::-1]
    first[stream[launched]] = launched  # of equal streams the last assignment, the first in time
    ahead: Array = place < first[stream]
    return ahead


def _build(part: RankTrace) -> Iterations:
    tree, table = part.tree, part.table
    starts, ends = step_spans(part).T
    if not len(ends):
        return Iterations(ends, ends, ends, np.zeros(0, dtype=bool))
    rows, place = tree.gpu_rows, step_of_work(part) + 1
    done_ns = table.ts_ns[rows] + table.dur_ns[rows] + tree.launch_delay_correction_ns
    work_ends = np.append(starts[0], ends)
    held_up = held_up_row(part)
    if held_up is not None:
        begun_ns = table.ts_ns[held_up] + tree.launch_delay_correction_ns
        work_ends[0] = max(work_ends[0], begun_ns)
    inside = place < len(work_ends)
    np.maximum.at(work_ends, place[inside], done_ns[inside])
    return Iterations(lengths_ns(work_ends), work_ends[1:], ends - starts, counted_steps(part))
