"""The columns that list the kernels behind a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap.compat.tracelens.launchers import CompatTree
from torchtraceap.core.aliases import Array
from torchtraceap.tables.grouping import Groups

__all__ = ["kernel_columns"]

_NAME_LENGTH = 64


def kernel_columns(
    tree: CompatTree, group: Array, groups: int, owner: Array, rows: Array
) -> tuple[list[str], list[str | None]]:
    """Kernels of each group: the whole list, and the one with short names and mean times.

    The first member with kernels is the pattern; of the others those count that launched as many,
    kernel by kernel. Entries stand by total time and name.

    Args:
        tree: Of the rank.
        group: `[members]`, the group of each member.
        groups: Number of groups.
        owner: `[entries]`, the member that launched a kernel, ascending.
        rows: `[entries]`, rows of the kernels, in launch order within a member.
    """
    members = len(group)
    lengths = np.bincount(owner, minlength=members)
    begins = np.cumsum(lengths) - lengths
    busy = np.flatnonzero(lengths)
    pattern = np.full(groups, -1, dtype=np.int64)
    pattern[group[busy][::-1]] = busy[::-1]  # the first one is written last
    width = np.where(pattern >= 0, lengths[pattern], 0)
    offset = np.cumsum(width) - width
    counts = (lengths == width[group]) & (lengths > 0)
    kept = counts[owner]
    place = np.arange(len(owner)) - begins[owner]
    entry = (offset[group[owner]] + place)[kept]
    found = Groups(entry)
    durations = tree.dur_us[rows[kept]]
    columns = (
        found.count,
        found.sum(durations),
        found.mean(durations),
        found.median(durations),
        found.std(durations),
        found.minimum(durations),
        found.maximum(durations),
        _rounded_means(found, durations),
    )
    order = np.argsort(entry[found.first]) if len(found) else np.zeros(0, dtype=np.int64)
    values = list(zip(*(column[order].tolist() for column in columns), strict=True))
    streams = tree.part.table.stream
    names, numbers = [], []
    for member, size in zip(pattern.tolist(), width.tolist(), strict=True):
        first = int(begins[member]) if size else 0
        for row in rows[first : first + size].tolist():
            names.append(tree.strings[tree.name[row]])
            numbers.append(int(streams[row]))
    return _printed(names, numbers, values, offset.tolist(), width.tolist())


def _rounded_means(found: Groups, durations: Array) -> Array:
    """Two digits as NumPy rounds, which is not as Python does.

    Where a mean lies halfway the order of the sum decides: those are added up as NumPy does.
    """
    means = found.mean(durations)
    near = np.abs(np.mod(means * 100, 1) - 0.5) < 1e-6
    for group in np.flatnonzero(near).tolist():
        means[group] = durations[found.rows(group)].mean()
    return np.round(means, 2)


def _printed(
    names: list[str],
    streams: list[int],
    values: list[tuple[Any, ...]],
    offsets: list[int],
    widths: list[int],
) -> tuple[list[str], list[str | None]]:
    whole: list[str] = []
    short: list[str | None] = []
    for offset, width in zip(offsets, widths, strict=True):
        entries = sorted(
            range(offset, offset + width), key=lambda entry: (values[entry][1], names[entry])
        )
        whole.append(str([_entry(names[e], streams[e], values[e]) for e in entries]))
        brief = [_brief(names[e], streams[e], values[e]) for e in entries]
        short.append(str(brief) if brief else None)
    return whole, short


def _stream(stream: int) -> int | None:
    return None if stream == -(2**63) else stream


def _entry(name: str, stream: int, values: tuple[Any, ...]) -> dict[str, Any]:
    count, total, mean, median, deviation, least, most, _ = values
    return {
        "name": name,
        "stream": _stream(stream),
        "count": count,
        "total_duration_us": total,
        "mean_duration_us": mean,
        "median_duration_us": median,
        "std_dev_duration_us": deviation,
        "min_duration_us": least,
        "max_duration_us": most,
    }


def _brief(name: str, stream: int, values: tuple[Any, ...]) -> dict[str, Any]:
    cut = name[:_NAME_LENGTH] + "..." if len(name) > _NAME_LENGTH else name
    return {"name": cut, "stream": _stream(stream), "mean_duration_us": values[7]}
