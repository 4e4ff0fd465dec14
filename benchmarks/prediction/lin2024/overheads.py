"""Host overheads T1 to T5 of the source, measured from a Kineto trace.

T1 lies between two top-level operators, T2 from an operator's begin to its first launch, T3 from
its last launch to its end, T4 is a launch, T5 lies between two launches, and is all of an operator
without launches. T1 and T4 are the same for all operators, the others are means by name. What lies
outside of 1.5 interquartile ranges is left out of every mean. What synchronising calls take is no
overhead: the algorithm itself has the host wait.

Note [Top-level operators]: annotations and autograd's evaluate_function are no operators; what
stands directly in them, or in nothing, is top-level, autograd nodes such as AddmmBackward0 too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import LAUNCHES, SYNCHRONISATIONS, EventKind
from torchtraceap.errors import OptionError
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Overheads", "is_marker", "launches_by_name", "measure_overheads"]

_EVALUATE = "autograd::engine::evaluate_function"
_GAPS_NS = (2_000.0, 200_000.0)
EVENT_NS = 2_000.0
"""What the source takes off for each recorded operator in a time."""
LAUNCH_EVENT_NS = 6_000.0
"""What it takes off a launch: 2 us for the event, 4 us for the GPU's."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """Of a host, ns."""

    t1: float
    t4: float
    t2: Mapping[str, float]
    """By operator; "" is the mean of all, for those that were not seen."""
    t3: Mapping[str, float]
    t5: Mapping[str, float]

    def of(self, which: str, name: str) -> float:
        """t2, t3 or t5 of an operator."""
        known: Mapping[str, float] = getattr(self, which)
        return known.get(name, known.get("", 0.0))


def is_marker(name: str) -> bool:
    """It is no operator, but operators stand in it; see Note [Top-level operators]."""
    return name.startswith(_EVALUATE)


def measure_overheads(
    parts: Sequence[RankTrace],
    *,
    event_ns: float = EVENT_NS,
    launch_event_ns: float = LAUNCH_EVENT_NS,
) -> Overheads:
    """T1 to T5 of the hosts of some ranks, all together.

    Args:
        parts: With operators and launches.
        event_ns: Taken off for each operator that was recorded within a time, never below 0.
        launch_event_ns: Taken off each launch; 0 for both predicts a run that is profiled.

    Raises:
        OptionError: The traces hold no operator that launches something.
    """
    seen = _Seen()
    for part in parts:
        host = _Host(part)
        for at, before in host.top_level():
            if before is not None:
                seen.gap(float(host.begin[at] - host.end[before]))
            _measure(host, at, seen, event_ns, launch_event_ns)
    if not seen.launches:
        raise OptionError("no operator of these traces launches anything: no host overheads")
    return Overheads(
        t1=_mean(seen.gaps),
        t4=_mean(seen.launches),
        t2=_means(seen.before),
        t3=_means(seen.after),
        t5=_means(seen.between),
    )


class _Seen:
    """Single times."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.launches: list[float] = []
        self.before: dict[str, list[float]] = defaultdict(list)
        self.after: dict[str, list[float]] = defaultdict(list)
        self.between: dict[str, list[float]] = defaultdict(list)

    def gap(self, ns: float) -> None:
        """One between two operators, if it is such and no pause."""
        if _GAPS_NS[0] <= ns <= _GAPS_NS[1]:
            self.gaps.append(ns)


class _Host:
    """The host's rows of a rank; what stands in a row follows it."""

    def __init__(self, part: RankTrace) -> None:
        table, tree = part.table, part.tree
        rows = tree.host_rows.astype(np.int64)
        self.begin: Array = table.ts_ns[rows]
        self.end: Array = self.begin + table.dur_ns[rows]
        self.is_op = _operators(part, rows)
        self.is_launch = np.isin(tree.api[rows], LAUNCHES)
        self.is_wait = np.isin(tree.api[rows], SYNCHRONISATIONS)
        self.subtree_end: Array = tree.subtree_end.astype(np.int64)
        self._track = table.track[rows]
        self._names, self._strings = table.name[rows], table.strings

    def name(self, at: int) -> str:
        return str(self._strings[self._names[at]])

    def top_level(self) -> Iterator[tuple[int, int | None]]:
        """Top-level operators, each with the one before on its thread."""
        last: dict[int, int] = {}
        for at in _top_level(self.is_op, self.subtree_end).tolist():
            track = int(self._track[at])
            yield at, last.get(track)
            last[track] = at

    def own(self, inside: Array, start: int, stop: int, event_ns: float) -> float:
        """A time less what recording the operators that begin in it took, and less waits."""
        within = inside[(self.begin[inside] >= start) & (self.begin[inside] < stop)]
        waits = within[self.is_wait[within]]
        waited = float((self.end[waits] - self.begin[waits]).sum())
        return max(0.0, stop - start - event_ns * int(self.is_op[within].sum()) - waited)


def _measure(host: _Host, at: int, seen: _Seen, event_ns: float, launch_event_ns: float) -> None:
    """Times of one top-level operator."""
    name, inside = host.name(at), np.arange(at + 1, host.subtree_end[at])
    launches = inside[host.is_launch[inside]]
    first, last = int(host.begin[at]), int(host.end[at])
    if not len(launches):
        seen.between[name].append(host.own(inside, first, last, event_ns))
        return
    begins, ends = host.begin[launches].tolist(), host.end[launches].tolist()
    seen.launches += [
        max(0.0, end - begin - launch_event_ns) for begin, end in zip(begins, ends, strict=True)
    ]
    seen.before[name].append(host.own(inside, first, begins[0], event_ns))
    seen.after[name].append(host.own(inside, ends[-1], last, event_ns))
    for end, begin in zip(ends[:-1], begins[1:], strict=True):
        seen.between[name].append(host.own(inside, end, begin, event_ns))


def _operators(part: RankTrace, host: Array) -> Array:
    """bool, by place among the host's rows."""
    table = part.table
    marker = np.array([is_marker(text) for text in table.strings], dtype=bool)
    found: Array = (table.kind[host] == EventKind.CPU_OP) & ~marker[table.name[host]]
    return found


def _top_level(is_op: Array, subtree_end: Array) -> Array:
    places = np.flatnonzero(is_op)
    ends = subtree_end[places]
    covered = np.maximum.accumulate(np.concatenate([[0], ends[:-1]])) if len(places) else ends
    top: Array = places[places >= covered]
    return top


def launches_by_name(parts: Sequence[RankTrace]) -> dict[str, int]:
    """How many launches an operator makes itself, not those in it: the median of its calls that
    launch something. Collectives are left out."""
    counts: dict[str, list[int]] = defaultdict(list)
    for part in parts:
        table, tree = part.table, part.tree
        host = tree.host_rows.astype(np.int64)
        rows = host[np.isin(tree.api[host], LAUNCHES)]
        marked = np.zeros(len(table), dtype=np.uint8)
        marked[host[_operators(part, host)]] = 1
        owners = _core.innermost_marked(table, tree, marked)[rows]
        owners = owners[owners != _core.NO_ROW]
        for row, count in zip(*np.unique(owners, return_counts=True), strict=True):
            counts[table.strings[table.name[row]]].append(int(count))
    return {
        name: int(np.median(each)) for name, each in counts.items() if name != "record_param_comms"
    }


def _means(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found = {name: _mean(each) for name, each in times.items()}
    found[""] = _mean([time for each in times.values() for time in each])
    return found


def _mean(times: Sequence[float]) -> float:
    """Without outliers."""
    if not times:
        return 0.0
    values = np.asarray(times, np.float64)
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return float(values[(values >= low - reach) & (values <= high + reach)].mean())
