"""Rows grouped by equal keys with statistics of each group, and what rows are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import TextCodes, encode_texts
from torchtraceap.core.sums import MOST, sum_groups

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "Groups",
    "names_without_addresses",
    "order_by",
    "phases_of",
    "repeat_keys",
    "rows_by_key",
    "steps_of",
    "thread_names",
    "threads_of",
]


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Groups:
    """Groups in order of their first row; groups are never empty. Arrays are read-only.

    Args:
        keys: Integer arrays `[n]`, one or several; rows with all keys equal form a group.
    """

    def __init__(self, *keys: Array) -> None:
        self._core = _core.group_rows(list(keys))
        self.first: Array = self._core.first
        """int64 `[groups]`: first row of each group."""
        self.index: Array = self._core.index
        """int64 `[n]`: group of each row."""
        self.count: Array = np.diff(self._core.offsets)
        """int64 `[groups]`: the number of rows."""
        self._sorted, self._starts = self._core.rows, self._core.offsets[:-1]

    def __len__(self) -> int:
        return len(self.first)

    def rows(self, group: int) -> Array:
        """Return the rows of one group, in order."""
        start = self._starts[group]
        return self._sorted[start : start + self.count[group]]

    def sum(self, values: Array) -> Array:
        """Return the sum of each group, exact for integers up to the ends of 64 bits."""
        if not len(self):
            return np.zeros(0, dtype=values.dtype)
        return sum_groups(values[self._sorted], self._starts)

    def minimum(self, values: Array) -> Array:
        """Return the smallest value of each group, `[groups]`."""
        if not len(self):
            return np.zeros(0, dtype=values.dtype)
        least: Array = np.minimum.reduceat(values[self._sorted], self._starts)
        return least

    def maximum(self, values: Array) -> Array:
        """Return the largest value of each group, `[groups]`."""
        if not len(self):
            return np.zeros(0, dtype=values.dtype)
        largest: Array = np.maximum.reduceat(values[self._sorted], self._starts)
        return largest

    def mean(self, values: Array) -> Array:
        """Return the mean of each group, float64 `[groups]`."""
        sums = self.sum(values)
        if values.dtype.kind == "i" and np.abs(sums).max(initial=0) >= MOST:
            sums = self.sum(values.astype(np.float64))
        means: Array = sums / self.count
        return means

    def std(self, values: Array, *, ddof: int = 0) -> Array:
        """Return the standard deviation, float64 `[groups]`; NaN for no more than `ddof` rows."""
        squares = self.sum((values - self.mean(values)[self.index]) ** 2)
        left = self.count - ddof
        deviations: Array = np.sqrt(squares / np.where(left > 0, left, np.nan))
        return deviations

    def median(self, values: Array) -> Array:
        """Return the median of each group, float64 `[groups]`."""
        return self.quantile(values, 0.5)

    def quantile(self, values: Array, q: float) -> Array:
        """Return quantiles, float64 `[groups]`, linear between neighbors (NumPy's default)."""
        return self._core.quantiles(values, q)

    def statistics(
        self, values: Array, *names: str, prefix: str = "", order: Array | slice = slice(None)
    ) -> dict[str, Array]:
        """Return statistics of each group as columns, such as `<prefix>mean_ns`.

        Args:
            values: `[n]` in ns.
            names: Of "sum", "mean", "median", "std" (of a sample), "min", "max" and "p95" (the 95th
                percentile).
            prefix: The beginning of the columns' names.
            order: The groups of the rows.
        """
        functions: dict[str, Callable[[Array], Array]] = {
            "sum": self.sum,
            "mean": self.mean,
            "median": self.median,
            "std": partial(self.std, ddof=1),
            "min": self.minimum,
            "max": self.maximum,
            "p95": partial(self.quantile, q=0.95),
        }
        return {f"{prefix}{name}_ns": functions[name](values)[order] for name in names}


def rows_by_key(keys: Array) -> Iterator[tuple[int, Array]]:
    """Yield each value of an integer array `[n]` with its rows, in order of its first row."""
    groups = Groups(keys)
    for group, key in enumerate(keys[groups.first].tolist()):
        yield key, groups.rows(group)


def repeat_keys(part: RankTrace, rows: Array) -> tuple[Array, ...]:
    """Return keys that are equal for kernels `[rows]` that do the same work: codes of name, device,
    grid and shapes of the operator, -1 where it has none."""
    table = part.table
    grid, _ = table.text_codes("grid", rows)
    ops = part.tree.op[rows]
    dims = np.full(len(rows), -1, dtype=np.int32)
    known = ops != _core.NO_ROW
    dims[known] = table.text_codes("Input Dims", ops[known])[0]
    return table.name[rows], table.device[rows], grid, dims


def order_by(*keys: Array, descending: Sequence[bool] = ()) -> Array:
    """Return the stable order of rows by the first key, ties by the next ones."""
    flips = [*descending, *[False] * (len(keys) - len(descending))]
    signed = [-key if flip else key for key, flip in zip(keys, flips, strict=True)]
    return np.lexsort(signed[::-1])


def thread_names(part: RankTrace) -> list[str]:
    """Return a name for each track: what the trace calls the thread, with its number; distinct."""
    labels: list[str] = []
    used: dict[str, int] = {}
    for track in part.table.tracks:
        number = f"thread {track.tid}"
        said = track.thread_name.strip()
        label = number if not said else said if track.tid in said else f"{said} ({track.tid})"
        seen = used.get(label, 0)
        used[label] = seen + 1
        labels.append(label if not seen else f"{label} of process {track.pid}")
    return labels


def threads_of(part: RankTrace, rows: Array) -> TextCodes:
    """Return the thread of each row."""
    return TextCodes(part.table.track[rows].astype(np.int32), thread_names(part))


def steps_of(part: RankTrace, rows: Array) -> TextCodes:
    """Return the step that each row belongs to, GPU events by their launch; absent outside."""
    index = part.tree.step[rows].astype(np.int32)  # NO_ROW becomes -1
    return TextCodes(index, [step.name for step in part.tree.steps])


def phases_of(part: RankTrace, rows: Array) -> TextCodes:
    """Return the part of a training step that each row belongs to."""
    return TextCodes(part.tree.phase[rows].astype(np.int32), _core.phase_names())


def names_without_addresses(part: RankTrace, rows: Array) -> TextCodes:
    """Return names of rows; `<built-in method to of Tensor object at 0x7f...>` is one for all."""
    groups, texts = Groups(part.table.name[rows]), part.table.strings
    used = part.table.name[rows[groups.first]]
    return encode_texts(_ADDRESS.sub("", texts[code]) for code in used.tolist()).take(groups.index)
