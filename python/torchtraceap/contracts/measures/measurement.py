"""Measure one key of the vocabulary on a trace, or all exact counts that it knows.

`RankMeasurement` holds the values of one rank; a trace has those of its worst rank (Note [Keys] in
vocabulary.py). Everything is computed once and cached with the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from torchtraceap.contracts.measures.calls import allocator_calls, launches, operators, recompiles
from torchtraceap.contracts.measures.collectives import collective_bytes, collectives
from torchtraceap.contracts.measures.copies import copied_bytes, d2h_bytes, h2d_bytes
from torchtraceap.contracts.measures.events import (
    CountedEvents,
    UnknownMeasureError,
    counted_places,
    is_without_gpu,
)
from torchtraceap.contracts.measures.graph_breaks import graph_breaks
from torchtraceap.contracts.measures.memory import peak_allocated_bytes
from torchtraceap.contracts.measures.shares import NO_STEPS, TIMED, ShareOrTime
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
from torchtraceap.trace.ranks import Ranks, RankTrace

if TYPE_CHECKING:
    from torchtraceap.contracts.measures.predicted import PredictedLaunches

__all__ = ["Measurement", "RankMeasurement", "counts", "measure", "measure_rank"]

_COUNTERS: dict[str, Callable[[RankTrace], CountedEvents]] = {
    "launches": launches,
    "syncs": syncs,
    "h2d_bytes": h2d_bytes,
    "d2h_bytes": d2h_bytes,
    "copied_bytes": copied_bytes,
    "collectives": collectives,
    "collective_bytes": collective_bytes,
    "recompiles": recompiles,
    "graph_breaks": graph_breaks,
    "operators": operators,
    "allocator_calls": allocator_calls,
    "peak_allocated_bytes": peak_allocated_bytes,
}
_NO_EVENTS: Callable[[], list[tuple[int | None, int]]] = list


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one key over a trace."""

    key: str
    value: Any
    """int, float (shares, and times in ns), dict (collectives by kind) or list (findings); None
    where the trace doesn't say."""
    by_step: tuple[Any, ...] = ()
    """Values of the counted steps of its rank; empty without steps."""
    events: Callable[[], list[tuple[int | None, int]]] = field(
        default=_NO_EVENTS, repr=False, compare=False
    )
    """(rank, row) of the events counted, in order of time, of that rank."""
    note: str = ""
    """Note on what the value rests on."""
    known: bool = True
    reason: str = ""
    """Reason why the value is unknown."""
    rank: int | None = None
    """The rank of the value: the worst."""

    def to_dict(self) -> Json:
        """The fields but for the events, for JSON."""
        names = ("key", "value", "by_step", "note", "known", "reason", "rank")
        found = {name: getattr(self, name) for name in names}
        return {**found, "by_step": list(self.by_step)}


@dataclass(frozen=True)
class RankMeasurement:
    """The measurement of one key on one rank."""

    key: str
    part: RankTrace
    value: Any = None
    by_step: tuple[Any, ...] = ()
    """Values of the counted steps, in their order."""
    step_places: tuple[int, ...] = ()
    """Places of the counted steps among all."""
    found: CountedEvents | None = None
    """The events of the profiled time, for counts and sizes."""
    timed: ShareOrTime | None = None
    predicted: PredictedLaunches | None = None
    note: str = ""
    reason: str = ""
    """Reason why the value is unknown; empty if it is known."""

    @property
    def known(self) -> bool:
        return not self.reason

    def events(self) -> list[tuple[int | None, int]]:
        """(rank, row) of the events counted, in order of time."""
        if self.found is not None:
            return [(self.part.rank, row) for row in self.found.rows.tolist()]
        row = self.timed.row() if self.timed is not None else None
        return [] if row is None else [(self.part.rank, row)]


def measure(trace: Ranks, key: str, *, one_step: bool = False) -> Measurement:
    """One key, measured on every rank; the value of the worst.

    Args:
        trace: One or several ranks.
        key: A key of `MEASURES`.
        one_step: Take the whole trace as one step if no step is marked or inferred.

    Raises:
        OptionError: There is no such key.
    """
    find_measure(key)
    if key == "findings":
        return _findings(trace)
    by_rank = [measure_rank(part, key, one_step=one_step) for part in trace.ranks]
    unknown = next((each for each in by_rank if not each.known), None)
    if unknown is not None:
        return Measurement(key, None, known=False, reason=unknown.reason, rank=unknown.part.rank)
    worst = _worst(key, by_rank)
    return Measurement(
        key, worst.value, worst.by_step, worst.events, worst.note, rank=worst.part.rank
    )


def measure_rank(part: RankTrace, key: str, *, one_step: bool = False) -> RankMeasurement:
    """One key on one rank; `findings` are of the whole trace and no key of a rank."""
    try:
        if key in TIMED:
            return _measure_time(part, key)
        if base_of(key) == "launches" and is_without_gpu(part):
            return _predict_launches(part, key, one_step)
        return _measure_count(part, key, one_step)
    except UnknownMeasureError as error:
        return RankMeasurement(key, part, reason=str(error))


def _measure_time(part: RankTrace, key: str) -> RankMeasurement:
    timed = TIMED[key](part)
    value: Any = timed.value
    if MEASURES[key].kind == "time":
        value = round(timed.value)
    return RankMeasurement(key, part, value, timed.by_step, timed=timed)


def _measure_count(part: RankTrace, key: str, one_step: bool) -> RankMeasurement:
    found = _COUNTERS[base_of(key)](part).inside()
    places = tuple(counted_places(part)) if part.tree.steps else ()
    of_all = partial(RankMeasurement, key, part, found=found, note=found.note)
    if found.kinds is not None or base_of(key) == "collectives":
        return _measure_kinds(found, places, key, one_step, of_all)
    sums = found.by_step()
    by_step = tuple(int(sums[place]) for place in places)
    if not is_per_step(key):
        return of_all(found.total(), by_step, places)
    if not places:
        _check_one_step(one_step)
        return of_all(found.total(), (found.total(),))
    return of_all(max(by_step), by_step, places)


def _measure_kinds(
    found: CountedEvents,
    places: Sequence[int],
    key: str,
    one_step: bool,
    of_all: Callable[..., RankMeasurement],
) -> RankMeasurement:
    """Measure each kind: in the profiled time, or in the kind's worst step."""
    kinds = [] if found.kinds is None else sorted({int(kind) for kind in found.kinds})
    names = [found.names[kind] for kind in kinds]
    sums = {name: found.of_kind(name).by_step() for name in names}
    by_step = tuple(
        {name: int(sums[name][place]) for name in names if sums[name][place]} for place in places
    )
    totals = {name: found.of_kind(name).total() for name in names}
    if not is_per_step(key):
        return of_all(totals, by_step, tuple(places))
    if not places:
        _check_one_step(one_step)
        return of_all(totals, (totals,))
    worst = {name: max(int(sums[name][place]) for place in places) for name in names}
    return of_all({n: worst[n] for n in names if worst[n]}, by_step, tuple(places))


def _check_one_step(one_step: bool) -> None:
    if not one_step:
        raise UnknownMeasureError(NO_STEPS)


def _predict_launches(part: RankTrace, key: str, one_step: bool) -> RankMeasurement:
    from torchtraceap.contracts.measures.predicted import predicted_launches

    launched = predicted_launches(part)
    steps = len(part.tree.steps)
    if part.tree.steps_inferred and not is_per_step(key):
        raise UnknownMeasureError(
            "there is no GPU in the trace, and without marked steps it can't be told how often a "
            f"step is launched; limit {key}{PER_STEP}"
        )
    if is_per_step(key) and not steps:
        _check_one_step(one_step)
    value = launched.count if is_per_step(key) else launched.count * max(1, steps)
    by_step = (launched.count,) if is_per_step(key) else ()
    return RankMeasurement(key, part, value, by_step, predicted=launched, note=launched.note)


def _worst(key: str, by_rank: Sequence[RankMeasurement]) -> RankMeasurement:
    """The rank with the largest value; of what should be large the smallest."""
    if isinstance(by_rank[0].value, dict):
        return max(by_rank, key=lambda each: sum(each.value.values()))
    choose = min if key == "gpu_busy" else max
    return choose(by_rank, key=lambda each: each.value)


def _findings(trace: Ranks) -> Measurement:
    """Types that are present, by name."""
    from torchtraceap.tables.detection import detect, judge

    verdicts = {name: judge(parts) for name, parts in detect(trace).items()}
    present = sorted(name for name, verdict in verdicts.items() if verdict == "present")
    unknown = sorted(name for name, verdict in verdicts.items() if verdict == "unknown")
    note = f"not told by this trace: {', '.join(unknown)}" if unknown else ""
    return Measurement("findings", present, note=note)


def counts(trace: Ranks, *, per_step: bool = False) -> dict[str, int]:
    """All exact counts and sizes that a trace knows, flat: `collectives.all_reduce`.

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
