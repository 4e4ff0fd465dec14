"""What the trace's own kernels say of each other, for work that no model knows.

Note [Own kernels]: an event is estimated from others of its trace, never from itself: from those of
its kind (the same kernel, launch and call), else from kernels of that name, else from its family.
Between two launches of a kernel the time is between theirs, as the threads of the grid are; beyond
them, and between kernels of a family, it is taken to grow with the threads to the power `_GROWTH`,
between the two ends that occur: a kernel that waits for memory (1) and one that fits the device at
once (0). How far others of a group are off each other gives the interval; where they are
few, what is usual in such groups counts as so many more of them (`_Level`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.ops.durations.calibration import TAIL
from torchtraceap.ops.durations.estimate import Estimates
from torchtraceap.tables.gpu.gpu_work import GpuWork
from torchtraceap.tables.grouping import Groups

__all__ = ["between_neighbours", "leave_one_out", "own_estimates"]

FloatArray = npt.NDArray[np.float64]

_GROWTH = 0.7


@dataclass(frozen=True, slots=True)
class _Level:
    """A way to say what is alike."""

    says: str
    usual: float
    """Deviation of the logarithm that is usual within such a group: stated, not fitted."""
    weight: float
    """How many members that counts as."""


_KIND = _Level("other calls of the same kernel, launched alike, in this trace", 0.15, 3.0)
_NAME = _Level("kernels of the same name in this trace, by the size of their grids", 0.7, 5.0)
_FAMILY = _Level("kernels of the same family in this trace, by the size of their grids", 1.2, 5.0)
_NOTHING = "nothing else in the trace is like it"


def own_estimates(work: GpuWork, known: Array | None = None) -> Estimates:
    """Times of units by others of their rank; NaN where no other is of the family.

    Args:
        work: The units.
        known: bool `[units]`: only these may be looked at; by default all.
    """
    usable = work.ns > 0 if known is None else known & (work.ns > 0)
    log_ns = np.log(np.maximum(work.ns, 1).astype(np.float64))
    middle, spread, others = leave_one_out(work.kind, log_ns, usable)
    estimates = _estimates(_KIND, middle, spread, others)
    for level, group in ((_NAME, _names(work)), (_FAMILY, _families(work))):
        estimates = _where_missing(estimates, _scaled(work, level, group, log_ns, usable))
    return estimates


def _names(work: GpuWork) -> list[str]:
    return [f"{kind.name} {name}" for kind, name in zip(work.kinds, work.canonical, strict=True)]


def _families(work: GpuWork) -> list[str]:
    return [
        f"{kind.family} {kind.copy[0] if kind.copy else ''}" if kind.family != "other" else ""
        for kind in work.kinds
    ]


def _scaled(
    work: GpuWork, level: _Level, names: list[str], log_ns: Array, usable: Array
) -> Estimates:
    """From other kinds of a group: each counts once, by the median of its units."""
    if not names:
        return _estimates(level, np.empty(0), np.empty(0), np.empty(0))
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    sizes = np.array([_size(kind.threads, kind.copy) for kind in work.kinds])
    has_size = np.isfinite(sizes)
    group = np.array([codes[name] for name in names]) * 2 + has_size
    log_size = np.log(np.where(has_size, sizes, 1.0))
    times, present = _medians(work, log_ns, usable)
    present &= np.array([name != "" for name in names])
    growth = _GROWTH * log_size
    middle, spread, others = leave_one_out(group, times - growth, present)
    middle = middle + growth
    if level is _NAME:
        near = between_neighbours(group, log_size, times, present)
        middle = np.where(has_size, near, middle)
        spread = np.where(has_size, _spread(group, times - near, present), spread)
    others = np.where([name != "" for name in names], others, 0)
    return _estimates(level, middle[work.kind], spread[work.kind], others[work.kind])


def _medians(work: GpuWork, log_ns: Array, usable: Array) -> tuple[FloatArray, Array]:
    """Of the usable units of each kind; and which kinds have such."""
    seen = np.flatnonzero(usable)
    of_kind = Groups(work.kind[seen])
    times, present = np.zeros(len(work.kinds)), np.zeros(len(work.kinds), dtype=bool)
    first = work.kind[seen][of_kind.first]
    times[first], present[first] = of_kind.median(log_ns[seen]), True
    return times, present


def between_neighbours(
    group: Array, log_size: FloatArray, values: FloatArray, known: Array
) -> FloatArray:
    """For each item the value between those of the known others next to it in size.

    Beyond the smallest and the largest other it grows with the power `_GROWTH` of the size.

    Args:
        group: int64 `[n]`.
        log_size: float64 `[n]`, as the next: logarithms.
        values: Of times.
        known: bool `[n]`: may be looked at for others.

    Returns:
        float64 `[n]`, NaN without others.
    """
    order = np.lexsort((log_size, group))
    count = len(order)
    if not count:
        return np.empty(0)
    group, size, value, usable = group[order], log_size[order], values[order], known[order]
    at = np.arange(count)
    last = np.maximum.accumulate(np.where(usable, at, -1))
    following = np.minimum.accumulate(np.where(usable, at, count)[::-1])[::-1]
    below, above = np.append(-1, last[:-1]), np.append(following[1:], count)
    has_below = (below >= 0) & (group[np.maximum(below, 0)] == group)
    has_above = (above < count) & (group[np.minimum(above, count - 1)] == group)
    below, above = np.maximum(below, 0), np.minimum(above, count - 1)
    up, down = size - size[below], size[above] - size
    share = np.where(up + down > 0, up / np.where(up + down > 0, up + down, 1.0), 0.5)
    inside = value[below] + share * (value[above] - value[below])
    beyond = np.where(has_below, value[below] + _GROWTH * up, value[above] - _GROWTH * down)
    found = np.where(has_below & has_above, inside, beyond)
    result = np.empty(count)
    result[order] = np.where(has_below | has_above, found, np.nan)
    return result


def _size(threads: float, copy: tuple[str, str, float] | None) -> float:
    size = copy[2] if copy is not None else threads
    return size if size > 0 else float("nan")


def leave_one_out(
    group: Array, values: FloatArray, known: Array
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each item the median of the known others of its group.

    Args:
        group: int64 `[n]`.
        values: float64 `[n]`.
        known: bool `[n]`: may be looked at for others.

    Returns:
        float64 `[n]` each: the median (NaN without others); the deviation within the group, from
        the 80 % of members nearest to the median of their others; how many others there are.
    """
    count = len(group)
    order = np.lexsort((values, group))
    order = order[known[order]]
    sizes = np.bincount(group[order], minlength=int(group.max(initial=-1)) + 1)
    starts = np.cumsum(sizes) - sizes
    place = np.full(count, count, dtype=np.int64)
    place[order] = np.arange(len(order)) - starts[group[order]]
    others = sizes[group] - known
    sorted_values = np.append(values[order], np.nan)
    low, high = (
        sorted_values[_skipping(np.maximum(at, 0), place, starts[group], others)]
        for at in ((others - 1) // 2, others // 2)
    )
    middle = (low + high) / 2.0
    return middle, _spread(group, values - middle, known & (others > 0)), others.astype(np.float64)


def _spread(group: Array, off: FloatArray, known: Array) -> FloatArray:
    """Deviation within the group of each item, from the 80 % of known members that are off least;
    0 where nobody tells."""
    spread = np.zeros(int(group.max(initial=-1)) + 1)
    told = np.flatnonzero(known & np.isfinite(off))
    if len(told):
        groups = Groups(group[told])
        spread[group[told][groups.first]] = groups.quantile(np.abs(off[told]), 0.8) / TAIL
    return spread[group]


def _skipping(at: Array, place: Array, start: Array, others: Array) -> Array:
    """Where the `at`-th of a group's sorted members lies if the one at `place` is left out."""
    index: Array = start + at + (at >= place)
    return np.where(others > 0, index, -1)


def _estimates(
    level: _Level, middle: FloatArray, spread: FloatArray, others: FloatArray
) -> Estimates:
    variance = (level.weight * level.usual**2 + others * spread**2) / (level.weight + others)
    doubt = np.where(others > 0, 1.0 + 1.0 / np.maximum(others, 1.0), np.nan)
    factor = np.exp(TAIL * np.sqrt(variance * doubt))
    return Estimates.within_factor(np.exp(np.where(others > 0, middle, np.nan)), factor, level.says)


def _where_missing(first: Estimates, second: Estimates) -> Estimates:
    """The second where the first has none."""
    return Estimates.choose(np.where(np.isfinite(first.ns), 0, 1), [first, second])
