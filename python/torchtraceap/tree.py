"""The tree of a rank for a person: host stacks per thread with the kernels that they launched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.errors import OptionError
from torchtraceap.trace import RankTrace
from torchtraceap.units import format_ns

__all__ = ["TreeView"]

_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class _Filter:
    max_depth: int
    min_duration_ns: int
    kernels: bool


class TreeView:
    """Reads the tree of one rank; rows are those of `trace.events(rank)`."""

    __slots__ = ("_names", "_rank")

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._names: list[str] | None = None

    @property
    def core(self) -> _core.EventTree:
        """The columns: parent, depth, launch, op, forward, phase and so on."""
        return self._rank.tree

    @property
    def steps(self) -> list[_core.Step]:
        return self.core.steps

    @property
    def streams(self) -> list[_core.Stream]:
        return self.core.streams

    def __repr__(self) -> str:
        tree = self.core
        return (
            f"TreeView(host_rows={len(tree.host_rows)}, gpu_rows={len(tree.gpu_rows)}, "
            f"linked={len(tree.linked_gpu_rows)}, steps={len(tree.steps)}, "
            f"streams={len(tree.streams)})"
        )

    def launched_by(self, row: int) -> npt.NDArray[np.uint32]:
        """GPU events that a host row itself launched."""
        tree = self.core
        return tree.launched_rows[tree.launched_offsets[row] : tree.launched_offsets[row + 1]]

    def children(self, row: int) -> npt.NDArray[np.uint32]:
        """Host rows directly below a host row, in time order."""
        tree = self.core
        position = int(tree.host_position[row])
        if position == _core.NO_ROW:
            return np.zeros(0, dtype=np.uint32)
        end = int(np.searchsorted(tree.host_offsets, position, side="right"))
        behind = tree.host_rows[position + 1 : int(tree.host_offsets[end])]
        # The subtree is the run of deeper rows behind it.
        outside = np.flatnonzero(tree.depth[behind] <= tree.depth[row])
        below = behind[: outside[0]] if len(outside) else behind
        chosen: npt.NDArray[np.uint32] = below[tree.parent[below] == row]
        return chosen

    def to_text(
        self,
        *,
        step: str | int | None = None,
        max_lines: int = 200,
        max_depth: int = 6,
        min_duration_ns: int = 0,
        kernels: bool = True,
    ) -> str:
        """An indented listing by thread, the thread that drives the GPU first.

        Args:
            step: Only this step, by name or by place (0 is the first).
            max_lines: Where to stop; the last line says that there is more.
            max_depth: Deepest level shown.
            min_duration_ns: Leave shorter host events out.
            kernels: Show GPU events under the call that launched them.
        """
        if max_lines < 1:
            raise OptionError("max_lines must be at least 1")
        chosen = _Filter(max_depth, min_duration_ns, kernels)
        lines = list(islice(self._lines(self._bounds(step), chosen), max_lines + 1))
        if len(lines) > max_lines:
            lines[-1] = f"... cut after {max_lines} lines"
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    def _tracks(self) -> list[int]:
        tree = self.core
        tracks = [int(track) for track in tree.host_tracks]
        return sorted(tracks, key=lambda track: (track != tree.main_track, track))

    def _bounds(self, step: str | int | None) -> tuple[int, int] | None:
        if step is None:
            return None
        steps = self.steps
        for i, candidate in enumerate(steps):
            if step in (candidate.name, i):
                return candidate.start_ns, candidate.end_ns
        known = ", ".join(s.name for s in steps[:8]) or "none"
        raise OptionError(f"no step {step!r} in this trace; there are: {known}")

    def _shown_rows(
        self, track: int, bounds: tuple[int, int] | None, chosen: _Filter
    ) -> npt.NDArray[np.uint32]:
        tree, table = self.core, self._rank.table
        rows = tree.host_rows[tree.host_offsets[track] : tree.host_offsets[track + 1]]
        keep = tree.depth[rows] <= chosen.max_depth
        if chosen.min_duration_ns > 0:
            keep &= table.dur_ns[rows] >= chosen.min_duration_ns
        if bounds is not None:
            keep &= (table.ts_ns[rows] >= bounds[0]) & (table.ts_ns[rows] < bounds[1])
        return rows[keep]

    def _lines(self, bounds: tuple[int, int] | None, chosen: _Filter) -> Iterator[str]:
        tracks = self._rank.table.tracks
        for track in self._tracks():
            rows = self._shown_rows(track, bounds, chosen)
            if len(rows):
                yield from self._track_lines(tracks[track], rows, chosen)

    def _track_lines(
        self, info: _core.Track, rows: npt.NDArray[np.uint32], chosen: _Filter
    ) -> Iterator[str]:
        name = f" {_one_line(info.thread_name)}" if info.thread_name else ""
        yield f"thread {_one_line(info.tid)} of process {_one_line(info.pid)}{name}"
        depth = self.core.depth
        for row in rows:  # not as a list: the caller takes a few of maybe millions
            indent = "  " * (int(depth[row]) + 1)
            yield f"{indent}{self._label(row)}"
            if chosen.kernels:
                for kernel in self.launched_by(row):
                    yield f"{indent}  -> {self._label(kernel)}{self._stream(kernel)}"

    def _label(self, row: int) -> str:
        table = self._rank.table
        return f"{_one_line(table.name_of(row))}  {format_ns(int(table.dur_ns[row]))}"

    def _stream(self, row: int) -> str:
        stream = int(self._rank.table.stream[row])
        return f"  stream {stream}" if stream != _core.NO_ID else ""


def _one_line(text: str) -> str:
    """A text of the trace, fit for a terminal: short, and without what would steer it."""
    words = " ".join(text[: 2 * _MAX_NAME].split()) or "(no name)"
    shown = "".join(char if char.isprintable() else "\ufffd" for char in words)
    return shown if len(shown) <= _MAX_NAME else shown[: _MAX_NAME - 3] + "..."
