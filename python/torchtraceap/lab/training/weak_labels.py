"""Labels of windows where only traces are labeled, or nothing is.

A trace with a fault and its twin run the same program, so the kernels that compute are the same,
in the same order, and the fault is what lies between them: a wait, a copy, kernels more. The
longest common subsequence of their names says which kernel of the one is which of the other; where
the trace takes longer from one of them to the next than its twin, it loses the difference.

Without such a comparison there are pseudo-labels: windows that are unlike every window of the twin,
and windows that an isolation forest finds odd, as windows with a fault are rare. A network that was
trained on the windows that are surest by both is asked about the rest (self-training).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchtraceap._core import GpuClass
from torchtraceap.core import Array, PathLike, median, union
from torchtraceap.datasets import costs_of, labeled_ranks, labeled_runs
from torchtraceap.errors import MissingDependencyError
from torchtraceap.ops import canonical_name
from torchtraceap.trace import RankTrace

__all__ = [
    "Kernels",
    "LostTime",
    "by_alignment",
    "forest_scores",
    "kernels_of",
    "load_labeled",
    "load_lost",
    "pseudo_targets",
    "ranks",
    "twin_distances",
]

_MOST_CELLS = 100_000_000
"""Cells of the table of common subsequences; traces that differ in more are not compared."""
_LEAST_SHARED = 0.5
"""Part of the shorter trace: with fewer kernels in common it is another program."""
_NEIGHBORS = 3
_WINDOWS_OF_A_TREE = 1024


@dataclass(frozen=True)
class Kernels:
    """The kernels of a trace that compute, by begin."""

    profiled_ns: tuple[int, int]
    spans_ns: Array
    """int64 `[n, 2]`: begin and end of each."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class LostTime:
    """The time that a trace has lost until each moment."""

    at_ns: Array
    """float64 `[n]`, ascending."""
    lost_ns: Array
    """float64 `[n]`: lost until then."""

    @classmethod
    def of_intervals(cls, intervals: Array) -> LostTime:
        """The time in a set of intervals, int64 `[n, 2]`, sorted and disjoint."""
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
    end = begin + np.asarray(table.dur_ns, dtype=np.int64)[rows]
    return Kernels(
        (int(start_ns), int(stop_ns)),
        np.stack([begin, end], axis=1),
        tuple(names[i] for i in inverse) if len(codes) else (),
    )


def by_alignment(trace: Kernels, twin: Kernels) -> LostTime | None:
    """The time by which a trace takes longer than its twin; None where they are not alike.

    The twin's times are stretched by the median factor between durations of the same kernel, so
    that a slower GPU is no lost time. What a trace wins back elsewhere is not counted.
    """
    pairs = _common_subsequence(trace.names, twin.names)
    if pairs is None or len(pairs) < max(_LEAST_SHARED * min(len(trace.names), len(twin.names)), 1):
        return None
    own, other = pairs.T
    lengths = [np.diff(each.spans_ns[i])[:, 0] for each, i in ((trace, own), (twin, other))]
    factor = median(np.maximum(lengths[0], 1) / np.maximum(lengths[1], 1))
    at, usual = _moments(trace, own), _moments(twin, other)
    lost = np.maximum(np.diff(at) - factor * np.diff(usual), 0.0)
    # Kernels that begin together leave steps without length: only what has a length can be lost.
    lost = np.minimum(lost, np.diff(at))
    return LostTime(at, np.concatenate([[0.0], np.cumsum(lost)]))


def _moments(kernels: Kernels, places: Array) -> Array:
    """Return begins and ends of some kernels between those of the trace, float64, never falling."""
    start, stop = kernels.profiled_ns
    inner = kernels.spans_ns[places].reshape(-1)
    return np.maximum.accumulate(np.concatenate([[start], inner, [stop]]).astype(np.float64))


def _common_subsequence(first: tuple[str, ...], second: tuple[str, ...]) -> Array | None:
    """Return int64 `[n, 2]`, the places of a longest common subsequence, by the table of lengths;
    None where that is too much work."""
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
    lengths = np.zeros((len(x) + 1, len(y) + 1), dtype=np.int32)
    for i, code in enumerate(x):
        best = lengths[i].copy()
        np.maximum(best[1:], lengths[i, :-1] + (y == code), out=best[1:])
        np.maximum.accumulate(best, out=lengths[i + 1])
    pairs = [(len(a) - i, len(b) - i) for i in range(1, tail + 1)]
    i, j = len(x), len(y)
    while i and j:
        if lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        elif lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((head + i, head + j))
    pairs += [(i, i) for i in reversed(range(head))]
    return np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)


def _shared_start(a: Array, b: Array) -> int:
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def load_labeled(dataset: PathLike) -> dict[str, LostTime]:
    """Return the lost time of each trace to learn from, by its cost intervals."""
    return {
        label["id"]: LostTime.of_intervals(union(list(costs_of(label).values())))
        for run in labeled_runs(dataset)
        for label in run.labels
        if label["split"] == "train"
    }


def load_lost(dataset: PathLike) -> dict[str, LostTime]:
    """Return the lost time of each trace to learn from that has a twin, by alignment; of labels
    only which trace is whose twin is read. Traces that are not like their twins are left out."""
    runs = [run for run in labeled_runs(dataset) if run.labels[0]["split"] == "train"]
    twins = {label["id"]: label["twin"] for run in runs for label in run.labels if label["twin"]}
    wanted = {*twins, *twins.values()}
    kernels = {
        label["id"]: kernels_of(part)
        for label, part in labeled_ranks(runs, lambda label: label["id"] in wanted)
    }
    found = {}
    for trace, twin in twins.items():
        lost = by_alignment(kernels[trace], kernels[twin]) if twin in kernels else None
        if lost is not None:
            found[trace] = lost
    return found


# ------------------------------------------------------------------------------ pseudo-labels


def twin_distances(values: Sequence[Array], twins: Mapping[int, int]) -> dict[int, Array]:
    """Return how much further each window is from the nearest ones of the trace's twin than the
    twin's own windows are from each other (nine of ten of them).

    Features hold the phase and the place in the step, so the nearest windows are those of the same
    part of a step. Each is measured in standard deviations over the windows of all twins.

    Args:
        values: float `[W, F]` of each trace, squashed.
        twins: The place of a trace to that of its twin.

    Returns:
        float64 `[W]` of each trace that has a twin.
    """
    if not twins:
        return {}
    good = np.concatenate([values[twin] for twin in sorted(set(twins.values()))]).astype(np.float64)
    mean, scale = good.mean(0), np.maximum(good.std(0), 1e-3)
    normed = [np.clip((each - mean) / scale, -5, 5) for each in values]
    usual = {}
    for twin in set(twins.values()):
        windows = normed[twin]
        own = [
            _nearest(windows[i : i + 1], np.delete(windows, i, axis=0))[0]
            for i in range(len(windows))
        ]
        usual[twin] = float(np.quantile(own, 0.9))
    return {
        trace: _nearest(normed[trace], normed[twin]) - usual[twin] for trace, twin in twins.items()
    }


def _nearest(windows: Array, others: Array) -> Array:
    """Return the mean distance to the nearest three of `others`."""
    squares = (windows**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * windows @ others.T
    count = min(_NEIGHBORS, len(others))
    nearest = np.partition(np.sqrt(np.maximum(squares, 0)), count - 1, axis=1)[:, :count]
    found: Array = nearest.mean(axis=1)
    return found


def forest_scores(values: Sequence[Array], fitted_on: Sequence[int], seed: int) -> list[Array]:
    """Return how odd an isolation forest finds each window; higher is odder.

    Args:
        values: float `[W, F]` of each trace.
        fitted_on: Places of the traces whose windows are taken as usual.
        seed: Seed of the forest.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import IsolationForest
    except ImportError as error:
        raise MissingDependencyError(
            "pseudo-labels need scikit-learn: pip install 'torchtraceap[train]'"
        ) from error
    usual = np.concatenate([values[place] for place in fitted_on])
    size = min(_WINDOWS_OF_A_TREE, len(usual))
    forest = IsolationForest(n_estimators=200, max_samples=size, random_state=seed % 2**32)
    forest.fit(usual)
    scores = -forest.score_samples(np.concatenate(list(values)))
    ends = np.cumsum([len(each) for each in values])[:-1]
    return list(np.split(scores, ends))


def ranks(scores: Sequence[Array]) -> list[Array]:
    """Ranks in [0, 1] over the windows of all traces; equal scores have equal ranks."""
    flat = np.concatenate(list(scores))
    levels, inverse = np.unique(flat, return_inverse=True)
    found = inverse / max(len(levels) - 1, 1)
    return list(np.split(found, np.cumsum([len(each) for each in scores])[:-1]))


def pseudo_targets(
    scores: Sequence[Array], positive: float, dropped: float
) -> tuple[list[Array], list[Array]]:
    """Return targets: the highest scores over all traces are positive, the next are left out, the
    rest are negative.

    Args:
        scores: float `[W]` of each trace that may hold a fault.
        positive: Which part is positive.
        dropped: Up to which part is left out.

    Returns:
        Targets and weights of each trace, float32 `[W]`.
    """
    flat = np.concatenate(list(scores))
    high, low = np.quantile(flat, [1 - positive, 1 - dropped])
    targets = [(each >= high).astype(np.float32) for each in scores]
    weights = [((each >= high) | (each < low)).astype(np.float32) for each in scores]
    return targets, weights
