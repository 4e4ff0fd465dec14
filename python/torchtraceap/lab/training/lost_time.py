"""Where a trace loses time: by its labels, or by comparing its events with those of its twin.

A trace with a fault and its twin run the same program, so the kernels that compute are the same,
in the same order, and the fault is what lies between them: a wait, a copy, kernels more. The
longest common subsequence of their names says which kernel of the one is which of the other; where
the trace takes longer from one of them to the next than its twin, it loses the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from torchtraceap._core import GpuClass
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.intervals import union
from torchtraceap.core.order import median
from torchtraceap.datasets.labels import costs_of
from torchtraceap.datasets.runs import labeled_runs
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Kernels", "LostTime", "by_alignment", "kernels_of", "load_labelled", "load_lost"]

_MOST_CELLS = 100_000_000
"""Of the table of common subsequences; traces that differ in more are not compared."""
_LEAST_SHARED = 0.5
"""Of the shorter trace: with fewer kernels in common it is another program."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of a trace that compute, by begin."""

    profiled_ns: tuple[int, int]
    begin_ns: Array
    """int64 `[n]`."""
    end_ns: Array
    name: tuple[str, ...]


@dataclass(frozen=True)
class LostTime:
    """How much time a trace has lost until each moment."""

    at_ns: Array
    """float64 `[n]`, ascending."""
    lost_ns: Array
    """float64 `[n]`: until then."""

    @classmethod
    def of_intervals(cls, intervals: Array) -> LostTime:
        """All of the time in a set of intervals, int64 `[n, 2]`, sorted and disjoint."""
        at = intervals.reshape(-1).astype(np.float64)
        length = (intervals[:, 1] - intervals[:, 0]).astype(np.float64)
        return cls(at, np.stack([np.cumsum(length) - length, np.cumsum(length)], 1).reshape(-1))

    def share(self, begin_ns: Array, end_ns: Array) -> Array:
        """float32 `[m]`: the part of each interval that is lost; of one without length 0 or 1."""
        if not len(self.at_ns):
            return np.zeros(len(begin_ns), dtype=np.float32)
        end_ns = np.maximum(end_ns, begin_ns + 1)
        lost = np.interp(end_ns, self.at_ns, self.lost_ns)
        lost -= np.interp(begin_ns, self.at_ns, self.lost_ns)
        found: Array = np.clip(lost / (end_ns - begin_ns), 0.0, 1.0).astype(np.float32)
        return found


def kernels_of(part: RankTrace) -> Kernels:
    """The kernels of one rank that compute."""
    table, tree = part.table, part.tree
    rows = np.asarray(tree.gpu_rows)
    rows = rows[np.asarray(tree.gpu_class)[rows] == GpuClass.COMPUTE]
    begin = np.asarray(table.ts_ns, dtype=np.int64)[rows]
    order = np.argsort(begin, kind="stable")
    rows, begin = rows[order], begin[order]
    codes, first, inverse = np.unique(
        np.asarray(table.name)[rows], return_index=True, return_inverse=True
    )
    names = [canonical_name(table.name_of(int(row))) for row in rows[first]]
    start_ns, stop_ns = tree.profiled
    return Kernels(
        (int(start_ns), int(stop_ns)),
        begin,
        begin + np.asarray(table.dur_ns, dtype=np.int64)[rows],
        tuple(names[i] for i in inverse) if len(codes) else (),
    )


def by_alignment(trace: Kernels, twin: Kernels) -> LostTime | None:
    """Where a trace takes longer than its twin; None where they are not alike.

    The twin's times are stretched by the median factor between durations of the same kernel, so
    that a slower GPU is no lost time. What a trace wins back elsewhere is not counted.
    """
    pairs = _common(trace.name, twin.name)
    if pairs is None or len(pairs) < max(_LEAST_SHARED * min(len(trace.name), len(twin.name)), 1):
        return None
    own, other = pairs.T
    lengths = [(each.end_ns - each.begin_ns)[i] for each, i in ((trace, own), (twin, other))]
    factor = median(np.maximum(lengths[0], 1) / np.maximum(lengths[1], 1))
    at, usual = _moments(trace, own), _moments(twin, other)
    lost = np.maximum(np.diff(at) - factor * np.diff(usual), 0.0)
    # Kernels that begin together leave steps without length: only what has a length can be lost.
    lost = np.minimum(lost, np.diff(at))
    return LostTime(at, np.concatenate([[0.0], np.cumsum(lost)]))


def _moments(kernels: Kernels, places: Array) -> Array:
    """float64: begins and ends of some kernels between those of the trace, never falling."""
    start, stop = kernels.profiled_ns
    inner = np.stack([kernels.begin_ns[places], kernels.end_ns[places]], axis=1).reshape(-1)
    return np.maximum.accumulate(np.concatenate([[start], inner, [stop]]).astype(np.float64))


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> Array | None:
    """int64 `[n, 2]`: places of a longest common subsequence; None where that is too much work."""
    codes: dict[str, int] = {}
    a, b = (
        np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int64)
        for names in (first, second)
    )
    head = _shared_start(a, b)
    tail = _shared_start(a[head:][::-1], b[head:][::-1])
    x, y = a[head : len(a) - tail], b[head : len(b) - tail]
    if (len(x) + 1) * (len(y) + 1) > _MOST_CELLS:
        return None
    starts = np.arange(head)
    ends = np.arange(tail)
    return np.concatenate(
        [
            np.stack([starts, starts], axis=1),
            _subsequence(x, y) + head,
            np.stack([len(a) - tail + ends, len(b) - tail + ends], axis=1),
        ]
    )


def _shared_start(a: Array, b: Array) -> int:
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def _subsequence(x: Array, y: Array) -> Array:
    """int64 `[n, 2]`: by the table of lengths, a row at a time."""
    lengths = np.zeros((len(x) + 1, len(y) + 1), dtype=np.int32)
    for i, code in enumerate(x):
        best = lengths[i].copy()
        np.maximum(best[1:], lengths[i, :-1] + (y == code), out=best[1:])
        np.maximum.accumulate(best, out=lengths[i + 1])
    pairs: list[tuple[int, int]] = []
    i, j = len(x), len(y)
    while i and j:
        if lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        elif lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)


def load_labelled(dataset: PathLike, split: str = "train") -> dict[str, LostTime]:
    """Of each trace of a split, by its cost intervals."""
    return {
        label["id"]: LostTime.of_intervals(union(list(costs_of(label).values())))
        for run in labeled_runs(dataset)
        for label in run.labels
        if label["split"] == split
    }


def load_lost(dataset: PathLike, split: str = "train") -> dict[str, LostTime]:
    """Of each trace of a split that has a twin, by alignment; of labels only who is whose twin is
    read. Traces that are not like their twins are left out."""
    runs = [run for run in labeled_runs(dataset) if run.labels[0]["split"] == split]
    twins = {label["id"]: label["twin"] for run in runs for label in run.labels if label["twin"]}
    wanted = {*twins, *twins.values()}
    kernels: dict[str, Kernels] = {}
    for run in runs:
        if wanted.isdisjoint(label["id"] for label in run.labels):
            continue
        for label, part in zip(run.labels, run.load().ranks, strict=True):
            kernels[label["id"]] = kernels_of(part)
    return _aligned(kernels, twins)


def _aligned(kernels: Mapping[str, Kernels], twins: Mapping[str, str]) -> dict[str, LostTime]:
    found = {
        trace: by_alignment(kernels[trace], kernels[twin])
        for trace, twin in twins.items()
        if twin in kernels
    }
    return {trace: lost for trace, lost in found.items() if lost is not None}
