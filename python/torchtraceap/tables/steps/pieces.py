"""Steps cut into disjoint pieces, and what is typical of them: for `steps` and `diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_part
from torchtraceap.core.records import dataclass
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "Cells",
    "Codebook",
    "Cut",
    "cut",
    "first_idle_part",
    "join_arrays",
    "median_ns",
    "middle_half",
    "part_titles",
    "robust_sigma",
    "step_bounds",
    "whole_step_bounds",
    "whole_steps",
]

Bounds = list[tuple[int, int]]

NORMAL_MAD = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
NORMAL_MEAN_AD = 1.2533
"""The same over its mean absolute deviation."""
_CELLS_AT_ONCE = 4_000_000
_TRIMMED_FROM = 8
"""Steps from which outliers are trimmed before the spread is measured."""


def whole_steps(count: int) -> slice:
    """Return the steps recorded from end to end: all but the first and last of three or more."""
    return slice(1, -1) if count > 2 else slice(0, count)


def step_bounds(part: RankTrace) -> Bounds:
    """Return (start_ns, end_ns) of every step."""
    return [(step.start_ns, step.end_ns) for step in part.tree.steps]


def whole_step_bounds(part: RankTrace) -> Bounds:
    """Return the bounds of the whole steps whose records are there; of all recorded ones, then of
    all whole ones, where there are none."""
    bounds, there = step_bounds(part), part.tree.step_is_recorded
    chosen = whole_steps(len(bounds))
    pairs = list(zip(bounds, there, strict=True))
    kept = [each for each, is_there in pairs[chosen] if is_there]
    return kept or [each for each, is_there in pairs if is_there] or bounds[chosen]


def median_ns(values: Array) -> int:
    """Return the median as an integer, halves to even; 0 of nothing."""
    if not len(values):
        return 0
    ordered = np.sort(values)
    low, high = (int(ordered[i]) for i in ((len(ordered) - 1) // 2, len(ordered) // 2))
    half, odd = divmod(low + high, 2)
    return half + (half & 1 if odd else 0)


def middle_half(durations: Array) -> Array:
    """Return the steps whose mean is the interquartile mean: a quarter dropped at each end."""
    order = np.argsort(durations, kind="stable")
    dropped = len(order) // 4
    kept: Array = order[dropped : len(order) - dropped]
    return kept


def robust_sigma(values: Array) -> Array:
    """Return the standard deviation along the last axis by the median absolute deviation.

    Where more than half the values are equal, so that the MAD is 0, the mean absolute deviation
    stands in (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993).
    """
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1])
    away = np.abs(values - np.median(values, axis=-1, keepdims=True))
    mad = NORMAL_MAD * np.median(away, axis=-1)
    sigma: Array = np.where(mad > 0, mad, NORMAL_MEAN_AD * np.mean(away, axis=-1))
    return sigma


@dataclass(frozen=True, slots=True)
class Cut:
    """Steps of a rank in pieces; columns of equal length, `[pieces]`."""

    part: RankTrace
    durations: Array
    """int64 `[steps]`."""
    step: Array
    """uint32: index of the step."""
    kind: Array
    """uint8: index in `_core.step_part_names()`."""
    row: Array
    """uint32: GPU event or explaining host row, or `_core.NO_ROW`."""
    ns: Array
    """int64; sums by step are the durations."""
    count: Array
    """uint32: stretches of time."""

    def row_texts(self, rows: Array, code: Callable[[str], int]) -> Array:
        """Return codes of names of rows, -1 for `_core.NO_ROW`; each distinct name is read once."""
        codes = np.full(len(rows), -1, dtype=np.int64)
        known = np.flatnonzero(rows != _core.NO_ROW)
        names = Groups(self.part.table.name[rows[known]])
        texts = [self.part.table.name_of(row) for row in rows[known[names.first]].tolist()]
        codes[known] = np.asarray([code(text) for text in texts], dtype=np.int64)[names.index]
        return codes

    def leaf_codes(self, book: Codebook) -> Array:
        """Return codes of what each piece shows: a kernel, or the host event of idle time."""
        codes = np.full(len(self.row), -1, dtype=np.int64)
        on_gpu = self.kind < _core.step_part_names().index("host")
        codes[on_gpu] = self.row_texts(
            self.row[on_gpu], lambda name: book.code(canonical_name(name))
        )
        codes[~on_gpu] = self.row_texts(self.row[~on_gpu], book.host_code)
        return codes


class Codebook:
    """Texts as consecutive integers; host events that CUDA and HIP call differently share one."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._shown: dict[int, dict[str, None]] = {}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def host_code(self, name: str) -> int:
        """Return the code of a host event's name as it is compared between recordings."""
        code = self.code(_core.comparable_names([name], vendor_free=True)[0])
        self._shown.setdefault(code, {})[_core.comparable_names([name])[0]] = None
        return code

    def texts(self) -> list[str]:
        """Return the text of each code for a person: the name, or the first that share it."""
        names = list(self._codes)
        for code, shown in self._shown.items():
            names[code] = " / ".join(list(shown)[:3])
        return names


def cut(part: RankTrace, bounds: Bounds) -> Cut:
    """Cut steps (sorted, disjoint) into pieces."""
    pieces = _core.step_pieces(part.table, part.tree, bounds)
    durations = np.asarray([end - start for start, end in bounds], dtype=np.int64)
    return Cut(part, durations, pieces.step, pieces.part, pieces.row, pieces.ns, pieces.count)


def first_idle_part() -> int:
    """Return the first kind of piece that is an idle cause; those behind it are too."""
    return _core.step_part_names().index("host") + 1


def part_titles() -> list[str]:
    """Return the text of each kind of piece for a person."""
    names = [format_part(name) for name in _core.step_part_names()]
    idle = first_idle_part()
    return names[:idle] + [f"idle: {name}" for name in names[idle:]]


@dataclass(frozen=True, slots=True)
class Cells:
    """Sums by row and step where there are any, by row; columns of equal length, `[cells]`.

    Rows and steps may both be many, so that most of their pairs hold nothing. What is asked of a
    row's values, zeros included, is looked up in a matrix only where at least half are not zero.
    """

    row: Array
    """int64."""
    step: Array
    """int64."""
    ns: Array
    """float64, at least 0."""
    rows: int
    steps: int

    @classmethod
    def of(cls, row: Array, step: Array, ns: Array, shape: tuple[int, int]) -> Cells:
        """Add up pieces.

        Args:
            row: Of each piece, below `shape[0]`.
            step: Of each piece, below `shape[1]`.
            ns: Of each piece.
            shape: (rows, steps).
        """
        rows, steps = shape
        keys, cell = np.unique(row.astype(np.int64) * max(1, steps) + step, return_inverse=True)
        added = np.bincount(cell, weights=ns.astype(np.float64), minlength=len(keys))
        return cls(keys // max(1, steps), keys % max(1, steps), added, rows, steps)

    def of_steps(self, chosen: Array) -> Cells:
        """Return the cells of some steps, bool `[steps]`, numbered anew."""
        kept = chosen[self.step]
        number = np.cumsum(chosen) - 1
        row, step, ns = self.row[kept], number[self.step[kept]], self.ns[kept]
        return Cells(row, step, ns, self.rows, int(chosen.sum()))

    def medians(self) -> Array:
        """Return the median of each row over all steps, float64 `[rows]`."""
        result = np.zeros(self.rows)
        # Of a row with fewer values that are not zero the median is zero.
        for rows, matrix in self._filled((max(1, self.steps) + 1) // 2):
            result[rows] = np.median(matrix, axis=1)
        return result

    def middle_means(self) -> Array:
        """Return the mean over the middle half of each row's own values, float64 `[rows]`."""
        result = np.zeros(self.rows)
        dropped = self.steps // 4
        for rows, matrix in self._filled(dropped + 1):
            ordered = np.sort(matrix, axis=1)
            result[rows] = ordered[:, dropped : self.steps - dropped].mean(axis=1)
        return result

    def kept_steps(self) -> int:
        """Return the number of steps that `standard_errors` keeps after trimming."""
        return self.steps - 2 * self._trimmed()

    def standard_errors(self) -> Array:
        """Return the standard error of each row's middle mean, float64 `[rows]` in ns.

        It is that of a trimmed mean, from the winsorized variance (Yuen 1974). With fewer than 8
        steps nothing is trimmed, because an outlier cannot be told from the spread.
        """
        result = np.zeros(self.rows)
        trimmed, kept = self._trimmed(), self.kept_steps()
        scale = np.sqrt((self.steps - 1) / (kept * (kept - 1))) if kept > 1 else np.nan
        for rows, matrix in self._filled(trimmed + 1):
            ordered = np.sort(matrix, axis=1)
            middle = ordered[:, trimmed : trimmed + kept]
            winsorized = np.clip(ordered, middle[:, :1], middle[:, -1:])
            result[rows] = scale * winsorized.std(axis=1, ddof=1)
        return result

    def _trimmed(self) -> int:
        """Return the number of steps that are dropped at either end."""
        return self.steps // 4 if self.steps >= _TRIMMED_FROM else 0

    def _filled(self, least: int) -> Iterable[tuple[Array, Array]]:
        """Yield rows with at least so many values that are not zero, and all their values."""
        count = np.bincount(self.row, minlength=self.rows)
        chosen = np.flatnonzero(count >= least)
        place = np.full(self.rows, -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        kept = place[self.row] >= 0
        row, step, ns = place[self.row[kept]], self.step[kept], self.ns[kept]
        at_once = max(1, _CELLS_AT_ONCE // max(1, self.steps))
        for begin in range(0, len(chosen), at_once):
            end = min(len(chosen), begin + at_once)
            low, high = np.searchsorted(row, (begin, end))
            matrix = np.zeros((end - begin, self.steps))
            matrix[row[low:high] - begin, step[low:high]] = ns[low:high]
            yield chosen[begin:end], matrix


def join_arrays(parts: Sequence[Array], dtype: Any) -> Array:
    """Join arrays, also none of them."""
    return np.concatenate([np.zeros(0, dtype=dtype), *parts]).astype(dtype, copy=False)
