"""Windows of equal time, and the features of each."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.rendering import renderable
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.trace.ranks import RankTrace

__all__ = ["FeatureTable", "build_features", "build_windows", "check_count", "feature_names"]


renderable(_core.WindowSet)


class FeatureTable(ColumnTable):
    """One row per window: start_ns, end_ns and the features of docs/features.md."""

    def __init__(self, windows: _core.WindowSet, block: _core.FeatureBlock) -> None:
        bounds_ns = windows.bounds_ns
        columns: dict[str, Any] = {"start_ns": bounds_ns[:-1], "end_ns": bounds_ns[1:]}
        super().__init__(columns | dict(zip(block.names, block.values.T, strict=True)))
        self.names: list[str] = block.names
        self.values_matrix = block.values
        """float64 `[windows, features]`."""
        self.zscores = block.zscores
        """float64 `[windows, features]`: (x - median) / (1.4826 MAD) within the trace."""


def build_windows(part: RankTrace, *, count: int = 100, length_ns: int = 0) -> _core.WindowSet:
    """Windows of equal time (or of `length_ns`) over the profiled time, with their rows.

    Raises:
        OptionError: No sensible number of windows, or a negative length.
    """
    check_count("count", count)
    if length_ns < 0:
        raise OptionError("length_ns must not be negative")
    return _core.build_windows(part.table, part.tree, count=count, length_ns=length_ns)


def build_features(part: RankTrace, *, count: int = 100) -> FeatureTable:
    """One row of numbers per window, and their robust z-scores."""
    windows = build_windows(part, count=count)
    return FeatureTable(windows, _core.build_features(part.table, part.tree, windows))


def check_count(name: str, count: int) -> None:
    """Raises OptionError unless `count` is a sensible number of windows."""
    if not isinstance(count, (int, np.integer)) or not 1 <= count <= 1_000_000:
        raise OptionError(f"{name} must be a number from 1 to 1000000, not {count!r}")


@cache
def feature_names() -> tuple[str, ...]:
    """Names of the features, in the order of the columns; the same for every trace."""
    from torchtraceap.trace.event_table import event_table

    table = event_table(
        ts_ns=[0], dur_ns=[1], name=["event"], category=["cpu_op"], pid=[0], tid=[0]
    )
    tree = _core.build_tree(table)
    windows = _core.build_windows(table, tree, count=1)
    return tuple(_core.build_features(table, tree, windows).names)
