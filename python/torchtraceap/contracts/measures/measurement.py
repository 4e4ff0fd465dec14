"""Measure one key of the vocabulary on a trace, or all exact counts that it knows.

A trace has the values of its worst rank (Note [Keys] in vocabulary.py). Everything is computed once
and cached with the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.contracts.measures.collectives import collective_bytes, collectives
from torchtraceap.contracts.measures.events import (
    CountedEvents,
    UnknownMeasureError,
    allocator_calls,
    copied_bytes,
    counted_places,
    is_without_gpu,
    launches,
    operators,
    peak_allocated_bytes,
    recompiles,
)
from torchtraceap.contracts.measures.graph_breaks import graph_breaks
from torchtraceap.contracts.measures.vocabulary import (
    MEASURES,
    PER_STEP,
    base_of,
    find_measure,
    is_per_step,
)
from torchtraceap.contracts.measures.waits import syncs
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Json
from torchtraceap.core.sums import median
from torchtraceap.tables.steps.iterations import counted_spans, iterations_of
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "Measurement",
    "counts",
    "measure",
    "measure_rank",
]

_NO_STEPS = "the trace has no steps; call profiler.step() at the end of each iteration"
_NO_GPU = "no GPU event is recorded; record with ProfilerActivity.CUDA, on a machine with a GPU"


_COUNTERS: dict[str, Callable[[RankTrace], CountedEvents]] = {
    "launches": launches,
    "syncs": syncs,
    "h2d_bytes": partial(copied_bytes, direction=_core.CopyDirection.HOST_TO_DEVICE),
    "d2h_bytes": partial(copied_bytes, direction=_core.CopyDirection.DEVICE_TO_HOST),
    "copied_bytes": copied_bytes,
    "collectives": collectives,
    "collective_bytes": collective_bytes,
    "recompiles": recompiles,
    "graph_breaks": graph_breaks,
    "operators": operators,
    "allocator_calls": allocator_calls,
    "peak_allocated_bytes": peak_allocated_bytes,
}


@dataclass(frozen=True, eq=False)
class Measurement:
    """The measurement of one key: on one rank, or over a trace, as the worst rank has it."""

    key: str
    part: RankTrace | None = None
    """The rank of the value; None for findings, which are those of the whole trace."""
    value: Any = None
    """int, float (shares, and times in ns), dict (collectives by kind) or list (findings); None
    where the trace doesn't say."""
    by_step: tuple[Any, ...] = ()
    """Values of the counted steps of the rank, in their order; empty without steps."""
    step_places: tuple[int, ...] = ()
    """Places of the counted steps among all."""
    found: CountedEvents | None = None
    """The events of the profiled time, for counts and sizes."""
    first_row: Callable[[], int | None] | None = None
    """Finds the event that shows most of a share or a time."""
    predicted: tuple[str, ...] | None = None
    """The operator that would launch each kernel of a step, for launches without a GPU."""
    note: str = ""
    """Note on what the value rests on."""
    reason: str = ""
    """Reason why the value is unknown; empty if it is known."""

    @property
    def known(self) -> bool:
        return not self.reason

    @property
    def rank(self) -> int | None:
        """Number of the rank; None for a lone one without a number."""
        return None if self.part is None else self.part.rank

    def events(self) -> list[tuple[int | None, int]]:
        """Return (rank, row) of the events counted, in order of time."""
        if self.found is not None:
            return [(self.rank, row) for row in self.found.rows.tolist()]
        row = self.first_row() if self.first_row is not None else None
        return [] if row is None else [(self.rank, row)]

    def to_dict(self) -> Json:
        """Return the figures, for JSON."""
        names = ("key", "value", "by_step", "note", "known", "reason", "rank")
        found = {name: getattr(self, name) for name in names}
        return {**found, "by_step": list(self.by_step)}


def measure(trace: Ranks, key: str, *, one_step: bool = False) -> Measurement:
    """Measure one key on every rank, and return the value of the worst.

    Args:
        trace: One or several ranks.
        key: A key of `MEASURES`.
        one_step: Take the whole trace as one step if no step is marked or inferred.

    Raises:
        OptionError: There is no such key.
    """
    from torchtraceap.tables.detection import verdicts_of

    find_measure(key)
    if key == "findings":
        verdicts = verdicts_of(trace)
        present = sorted(name for name, verdict in verdicts.items() if verdict == "present")
        untold = sorted(name for name, verdict in verdicts.items() if verdict == "unknown")
        note = f"not told by this trace: {', '.join(untold)}" if untold else ""
        return Measurement("findings", value=present, note=note)
    by_rank = [measure_rank(part, key, one_step=one_step) for part in trace.ranks]
    unknown = next((each for each in by_rank if not each.known), None)
    if unknown is not None:
        return unknown
    if isinstance(by_rank[0].value, dict):
        return max(by_rank, key=lambda each: sum(each.value.values()))
    choose = min if key == "gpu_busy" else max
    return choose(by_rank, key=lambda each: each.value)


def measure_rank(part: RankTrace, key: str, *, one_step: bool = False) -> Measurement:
    """Measure one key on one rank; `findings` are of the whole trace and no key of a rank."""
    try:
        if MEASURES[key].kind in ("share", "time"):
            return _measure_time(part, key)
        if base_of(key) == "launches" and is_without_gpu(part):
            return _predict_launches(part, key, one_step)
        return _measure_count(part, key, one_step)
    except UnknownMeasureError as error:
        return Measurement(key, part, reason=str(error))


def _measure_time(part: RankTrace, key: str) -> Measurement:
    """Measure a share of the profiled time, or the median time of the counted steps."""
    is_share = MEASURES[key].kind == "share"
    if not is_share and not part.tree.steps:
        raise UnknownMeasureError(_NO_STEPS)
    if key == "step_time":
        iterations = iterations_of(part)
        times = iterations.length_ns[iterations.counted]
    else:
        if not len(part.tree.gpu_rows):
            raise UnknownMeasureError(_NO_GPU)
        timeline = part.profiled_timeline()
        if timeline.span_ns <= 0:
            raise UnknownMeasureError("the profiled time is empty")
        if key == "gpu_time_per_step":
            bounds = [(int(start), int(end)) for start, end in counted_spans(part)]
            lines = _core.timelines(part.table, part.tree, bounds)
            times = np.array([line.busy_ns for line in lines], dtype=np.int64)
    first_row = partial(_telling_row, part, key)
    if not is_share:
        by_step = tuple(times.tolist())
        return Measurement(key, part, round(median(times)), by_step, first_row=first_row)
    time_ns = {
        "gpu_idle": timeline.idle_ns,
        "gpu_busy": timeline.busy_ns,
        "exposed_communication": timeline.exposed_communication_ns,
        "exposed_memcpy": timeline.exposed_memcpy_ns,
    }
    return Measurement(key, part, timeline.share(time_ns[key]), first_row=first_row)


def _telling_row(part: RankTrace, key: str) -> int | None:
    """Return the event that shows most of a share or a time: the annotation of the slowest counted
    step; the host's row that explains the longest idle interval, else the GPU event behind it; for
    other keys, the GPU event of the profiled time with most of it."""
    tree, table = part.tree, part.table
    start_ns, end_ns = tree.profiled
    if key == "step_time":
        iterations = iterations_of(part)
        slowest = int(np.argmax(iterations.length_ns[iterations.counted]))
        return tree.steps[counted_places(part)[slowest]].row
    if key in ("gpu_idle", "gpu_busy"):
        idle = part.idle(tree.profiled)
        if not len(idle):
            return None
        place = int(np.argmax(idle.end_ns - idle.start_ns))
        rows = (int(idle.explained_by[place]), int(idle.next_gpu_row[place]))
        return next((row for row in rows if row != _core.NO_ROW), None)
    gpu_rows = tree.gpu_rows.astype(np.int64)
    times = table.ts_ns[gpu_rows]
    gpu_rows = gpu_rows[(times >= start_ns) & (times < end_ns)]
    most_ns = table.dur_ns
    if key != "gpu_time_per_step":
        is_copy = key == "exposed_memcpy"
        kind = _core.GpuClass.MEMCPY if is_copy else _core.GpuClass.COMMUNICATION
        gpu_rows = gpu_rows[tree.gpu_class[gpu_rows] == kind]
        most_ns = part.costs.exclusive_ns
    return int(gpu_rows[int(np.argmax(most_ns[gpu_rows]))]) if len(gpu_rows) else None


def _measure_count(part: RankTrace, key: str, one_step: bool) -> Measurement:
    """Measure a count or a size: in the profiled time, or in the worst step; of kinds each."""
    found = _COUNTERS[base_of(key)](part).inside()
    places = tuple(counted_places(part)) if part.tree.steps else ()
    of_all = partial(Measurement, key, part, found=found, note=found.note)
    total: Any
    by_step: tuple[Any, ...]
    if found.kinds is not None or base_of(key) == "collectives":
        kinds = [] if found.kinds is None else sorted({int(kind) for kind in found.kinds})
        names = [found.names[kind] for kind in kinds]
        of_kind = {name: found.of_kind(name) for name in names}
        total = {name: each.total() for name, each in of_kind.items()}
        sums = {name: each.by_step() for name, each in of_kind.items()}
        by_step = tuple(
            {name: int(sums[name][place]) for name in names if sums[name][place]}
            for place in places
        )
        most = {name: max((each.get(name, 0) for each in by_step), default=0) for name in names}
        worst: Any = {name: number for name, number in most.items() if number}
    else:
        step_sums = found.by_step()
        by_step = tuple(int(step_sums[place]) for place in places)
        total, worst = found.total(), max(by_step, default=0)
    if not is_per_step(key):
        return of_all(total, by_step, places)
    if places:
        return of_all(worst, by_step, places)
    _check_one_step(one_step)
    return of_all(total, (total,))


def _check_one_step(one_step: bool) -> None:
    if not one_step:
        raise UnknownMeasureError(_NO_STEPS)


def _predict_launches(part: RankTrace, key: str, one_step: bool) -> Measurement:
    from torchtraceap.contracts.measures.predicted import predicted_launches

    operators, note = predicted_launches(part)
    steps = len(part.tree.steps)
    if is_per_step(key):
        if not steps:
            _check_one_step(one_step)
        value, by_step = len(operators), [len(operators)]
    else:
        if part.tree.steps_inferred:
            raise UnknownMeasureError(
                "there is no GPU in the trace, and without marked steps it can't be told how often "
                f"a step is launched; limit {key}{PER_STEP}"
            )
        value, by_step = len(operators) * max(1, steps), []
    return Measurement(key, part, value, tuple(by_step), predicted=operators, note=note)


def counts(trace: Ranks, *, per_step: bool = False) -> dict[str, int]:
    """Return all exact counts and sizes that a trace knows, flat: `collectives.all_reduce`.

    What is only predicted, as launches without a GPU, is left out.

    Args:
        trace: One or several ranks; counts are those of the worst rank.
        per_step: Measure the worst counted step, if there are steps, instead of the profiled time.
    """
    found: dict[str, int] = {}
    for key, each in MEASURES.items():
        if not each.is_exact or is_per_step(key):
            continue
        if key == "launches" and any(map(is_without_gpu, trace.ranks)):
            continue
        of_step = per_step and any(part.tree.steps for part in trace.ranks)
        measured = measure(trace, key + PER_STEP if of_step else key)
        if not measured.known:
            continue
        if isinstance(measured.value, dict):
            found |= {f"{key}.{name}": number for name, number in measured.value.items()}
        else:
            found[key] = measured.value
    return found
