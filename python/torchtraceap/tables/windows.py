"""Windows of equal time with their features, and their events as arrays for models of events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.rendering import renderable
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import check_count
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "MOST_TOKENS",
    "FeatureTable",
    "Tokens",
    "build_features",
    "build_tokens",
    "build_windows",
    "feature_names",
    "window_features",
]


renderable(_core.WindowSet)


class FeatureTable(ColumnTable):
    """One row per window: start_ns, end_ns and the features of docs/scorers.md."""

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
    """Build windows of equal time (or of `length_ns`) with their rows.

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
    """Return one row of numbers per window, and their robust z-scores.

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


def feature_names() -> tuple[str, ...]:
    """Return the names of the features in the order of the columns; equal for every trace."""
    return tuple(_core.feature_names())


MOST_TOKENS = 65536
"""The largest cap of a window."""


@dataclass(frozen=True)
class Tokens:
    """n tokens in W windows, by window and start. docs/scorers.md defines the columns."""

    offsets: Array
    """uint32 `[W + 1]`: into the columns."""
    folded: Array
    """uint32 `[W]`: events left out by the cap."""
    row: Array
    """uint32 `[n]`: the event; of gaps what explains them."""
    kind: Array
    """uint8 `[n]`: `_core.TokenKind`."""
    class_code: Array
    """uint8 `[n]`: in `_core.token_class_names()`."""
    flags: Array
    """uint8 `[n]`: 1 continued, 2 in a graph, 4 backward, 8 in a compiled region."""
    start_ns: Array
    """int64 `[n]`: of the whole event."""
    dur_ns: Array
    """int64 `[n]`: of the whole event."""
    position: Array
    """float32 `[n]`: start within the window, 0 to 1000."""
    name: Array
    """int32 `[n]`: in `names`."""
    cpu_name: Array
    """int32 `[n]`: of the innermost operator above the launch, in `names`."""
    delay_code: Array
    """int16 `[n]`: of the launch delay, 0 to 255; 256 without one."""
    duration_code: Array
    """int16 `[n]`: 0 to 255."""
    stream: Array
    """int32 `[n]`: index of the stream; -1 for gaps and host rows."""
    stream_role: Array
    """uint8 `[n]`: 0 compute, 1 communication, 2 copy, 3 none."""
    bytes: Array
    """int64 `[n]`: of copies, memsets and collectives; 0 if not told."""
    grid_blocks: Array
    """int64 `[n]`: of kernels; 0 if not told."""
    queue_depth: Array
    """int32 `[n]`: what the launch found queued; -1 if unknown."""
    stream_gap_ns: Array
    """int64 `[n]`: since the event before on the stream; -1 if none."""
    launch_dur_ns: Array
    """int64 `[n]`: of the launch call; -1 without one."""
    names: tuple[str, ...]
    """Distinct canonical names; [0] stands for none, [1] for an event without launch."""

    @property
    def window_count(self) -> int:
        return len(self.folded)

    def __len__(self) -> int:
        return len(self.row)

    def detached(self) -> Tokens:
        """Return a copy that does not keep the table of its trace in memory, as views do."""
        copies: dict[str, Any] = {
            field.name: getattr(self, field.name).copy()
            for field in dataclasses.fields(self)
            if field.name != "names"
        }
        return dataclasses.replace(self, **copies)

    def arrays(self) -> dict[str, Array]:
        """Return all fields, for a file: the names as an array of text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "names": np.array(self.names, dtype=np.str_)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Tokens:
        """Make the tokens from what `arrays` gave."""
        found: dict[str, Any] = {
            field.name: arrays[field.name] for field in dataclasses.fields(cls)
        }
        return cls(**{**found, "names": tuple(str(name) for name in found["names"])})


def build_tokens(
    part: RankTrace,
    *,
    windows: int | _core.WindowSet = 100,
    cap: int = 128,
    gaps: bool = True,
    host: bool = True,
    continued: bool = True,
) -> Tokens:
    """Return the events of every window of one rank.

    Args:
        part: The rank.
        windows: How many of equal time, or windows that were built from the same tree.
        cap: Most tokens of a window: of fuller ones the rarest classes are kept whole, the others
            evenly thinned.
        gaps: With a token for each longer time in which the GPU is idle.
        host: With tokens of what the host waits for, and of compiled regions.
        continued: Events are tokens of every window that they reach into, not of the first alone.

    Raises:
        OptionError: A number that makes no sense.
    """
    from torchtraceap.ops.kernel_names import canonical_name

    if not 1 <= cap <= MOST_TOKENS:
        raise OptionError(f"cap must be a number from 1 to {MOST_TOKENS}, not {cap!r}")
    made = build_windows(part, count=windows) if isinstance(windows, int) else windows
    found = _core.build_tokens(
        part.table, part.tree, made, cap=cap, gaps=gaps, host=host, continued=continued
    )
    distinct: dict[str, int] = {}
    codes = [distinct.setdefault(canonical_name(name), len(distinct)) for name in found.names]
    places = np.array(codes, dtype=np.int32)
    columns = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(Tokens)
        if field.name not in ("names", "name", "cpu_name")
    }
    return Tokens(
        **columns, name=places[found.name], cpu_name=places[found.cpu_name], names=tuple(distinct)
    )
