"""Windows of equal time, and the features of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.rendering import renderable
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "FeatureTable",
    "build_features",
    "build_windows",
    "check_count",
    "feature_names",
    "window_features",
]


renderable(_core.WindowSet)


class FeatureTable(ColumnTable):
    """One row per window: start_ns, end_ns and the features of docs/features.md."""

    def __init__(self, windows: _core.WindowSet, block: _core.FeatureBlock) -> None:
        bounds_ns = windows.bounds_ns
        columns: dict[str, Any] = {"start_ns": bounds_ns[:-1], "end_ns": bounds_ns[1:]}
        super().__init__(columns | dict(zip(block.names, block.values.T, strict=True)))
        self.windows = windows
        self.names: list[str] = block.names
        self.values_matrix = block.values
        """float64 `[windows, features]`."""
        self.zscores = block.zscores
        """float64 `[windows, features]`: (x - median) / (1.4826 MAD) within the trace."""


def build_windows(
    part: RankTrace,
    *,
    count: int = 100,
    length_ns: int = 0,
    within_ns: tuple[int, int] | None = None,
) -> _core.WindowSet:
    """Windows of equal time (or of `length_ns`) with their rows.

    Args:
        part: The rank.
        count: The number of windows.
        length_ns: The length of a window, instead of a number.
        within_ns: Start and end of the time that is cut; None: the profiled time.

    Raises:
        OptionError: No sensible number of windows, or a negative length.
    """
    check_count("count", count)
    if length_ns < 0:
        raise OptionError("length_ns must not be negative")
    return _core.build_windows(
        part.table, part.tree, count=count, length_ns=length_ns, bounds=within_ns
    )


def window_features(part: RankTrace, windows: _core.WindowSet | Array) -> FeatureTable:
    """One row of numbers per window, and their robust z-scores.

    Args:
        part: The rank.
        windows: Windows of the rank, or the bounds of windows of equal time, int64 `[W + 1]`.
    """
    if not isinstance(windows, _core.WindowSet):
        within_ns = int(windows[0]), int(windows[-1])
        windows = build_windows(part, count=len(windows) - 1, within_ns=within_ns)
    return FeatureTable(windows, _core.build_features(part.table, part.tree, windows))


def build_features(part: RankTrace, *, count: int = 100) -> FeatureTable:
    """Return the features of `count` windows of equal time over the profiled time."""
    return window_features(part, build_windows(part, count=count))


def check_count(name: str, count: int) -> None:
    """Raises OptionError unless `count` is a sensible number of windows."""
    if not isinstance(count, (int, np.integer)) or not 1 <= count <= 1_000_000:
        raise OptionError(f"{name} must be a number from 1 to 1000000, not {count!r}")


def feature_names() -> tuple[str, ...]:
    """Names of the features, in the order of the columns; the same for every trace."""
    return tuple(_core.feature_names())
