"""The call tree of a rank: as text for a person, and as a table of rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, recode
from torchtraceap.core.formatting import format_ns, one_line
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import Option, TableSpec
from torchtraceap.tables.events import phases_of
from torchtraceap.tables.gpu.gpu_events import row_numbers
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "TreeView", "build_tree_rows"]


_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class _Filter:
    max_depth: int
    min_duration_ns: int
    kernels: bool


class TreeView(Renderable):
    """Reads the tree of one rank; rows are those of `trace.events(rank)`."""

    __slots__ = ("_gpu", "_rank", "_streams")

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._gpu: tuple[Array, Array] | None = None
        self._streams: Array | None = None

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
        below = tree.host_rows[position + 1 : int(tree.subtree_end[position])]
        chosen: npt.NDArray[np.uint32] = below[tree.parent[below] == row]
        return chosen

    def gpu_time(self, row: int) -> tuple[int, int]:
        """What a host row and all below it launched: sum of durations in ns, number of events."""
        position = int(self.core.host_position[row])
        if position == _core.NO_ROW:
            return 0, 0
        if self._gpu is None:
            self._gpu = self._gpu_by_position()
        positions, lasts_ns = self._gpu
        first, last = np.searchsorted(positions, (position, int(self.core.subtree_end[position])))
        return total(lasts_ns[first:last]), int(last - first)

    def _gpu_by_position(self) -> tuple[Array, Array]:
        """Place in `host_rows` of what launched a GPU event, ascending, and how long that lasts."""
        tree, table = self.core, self._rank.table
        gpu = tree.linked_gpu_rows
        position = tree.host_position[tree.launch[gpu]]
        known = position != _core.NO_ROW
        order = np.argsort(position[known], kind="stable")
        return position[known][order], table.dur_ns[gpu[known][order]]

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
        lines = list(islice(self._lines(self._rank.step_bounds(step), chosen), max_lines + 1))
        if len(lines) > max_lines:
            lines[-1] = f"... cut after {max_lines} lines"
        return "\n".join(lines)

    def _tracks(self) -> list[int]:
        tree = self.core
        tracks = [int(track) for track in tree.host_tracks]
        return sorted(tracks, key=lambda track: (track != tree.main_track, track))

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
            launched = self.launched_by(row)[: None if chosen.kernels else 0]
            note = "" if len(launched) else self._gpu_note(row)  # else the next lines say it
            yield f"{indent}{self._label(row)}{note}"
            for kernel in launched:
                yield f"{indent}  -> {self._label(kernel)}{self._stream(kernel)}"

    def _label(self, row: int) -> str:
        table = self._rank.table
        return f"{_one_line(table.name_of(row))}  {format_ns(int(table.dur_ns[row]))}"

    def _gpu_note(self, row: int) -> str:
        time_ns, events = self.gpu_time(row)
        if not events:
            return ""
        return f"  [GPU {format_ns(time_ns)}, {events} event{'s' if events != 1 else ''}]"

    def _stream(self, row: int) -> str:
        if self._streams is None:
            self._streams = self._rank.table.stream
        stream = int(self._streams[row])
        return f"  stream {stream}" if stream != _core.NO_ID else ""


def _one_line(text: str) -> str:
    return one_line(text, _MAX_NAME) or "(no name)"


ANY_DEPTH = 2**31 - 1
_SHOWN = ("row", "parent", "depth", "kind", "name", "duration_ns", "thread", "stream", "phase")


def build_tree_rows(
    part: RankTrace,
    *,
    step: str | int | None = None,
    max_depth: int = 6,
    min_duration_ns: int = 0,
    kernels: bool = True,
) -> ColumnTable:
    """The tree of one rank as rows by time; a GPU event's parent is the call that launched it.

    Args:
        part: The rank.
        step: Only what starts in this step, by name or by place (0 is the first).
        max_depth: Deepest level of host calls.
        min_duration_ns: Leave shorter host events out.
        kernels: List GPU events too.

    Raises:
        OptionError: There is no such step.
    """
    table, tree = part.table, part.tree
    rows = _chosen(part, part.step_bounds(step), max_depth, min_duration_ns, kernels)
    on_gpu = tree.gpu_class[rows] != 0
    columns: dict[str, Column] = {
        "row": rows,
        "parent": row_numbers(np.where(on_gpu, tree.launch[rows], tree.parent[rows])),
        "depth": np.ma.array(tree.depth[rows].astype(np.int64), mask=on_gpu),
        "kind": TextCodes(table.kind[rows].astype(np.int8), _core.kind_names()),
        "name": TextCodes(table.name[rows].astype(np.int32), table.strings),
        "start_ns": table.ts_ns[rows],
        "duration_ns": table.dur_ns[rows],
        "thread": _threads(part, rows, on_gpu),
        "stream": np.ma.masked_equal(table.stream[rows], _core.NO_ID),
        "phase": phases_of(part, rows),
    }
    return ColumnTable(columns, shown=_SHOWN)


def _chosen(
    part: RankTrace,
    bounds: tuple[int, int] | None,
    max_depth: int,
    min_duration_ns: int,
    kernels: bool,
) -> Array:
    table, tree = part.table, part.tree
    host = tree.host_rows.astype(np.int64)
    keep = tree.depth[host] <= max_depth
    keep &= table.dur_ns[host] >= min_duration_ns
    rows = host[keep]
    if kernels:
        rows = np.concatenate([rows, tree.gpu_rows.astype(np.int64)])
    if bounds is not None:
        # A GPU event belongs to the step that launched it, whenever it runs.
        launch = tree.launch[rows].astype(np.int64)
        start = table.ts_ns[np.where(launch == _core.NO_ROW, rows, launch)]
        rows = rows[(start >= bounds[0]) & (start < bounds[1])]
    return np.sort(rows)


def _threads(part: RankTrace, rows: Array, on_gpu: Array) -> TextCodes:
    """The number that the trace gives the thread; absent on the GPU."""
    threads = recode(part.table.track[rows], [track.tid for track in part.table.tracks])
    return TextCodes(np.where(on_gpu, np.int32(-1), threads.codes), threads.texts)


TABLE = TableSpec(
    build=build_tree_rows,
    options=(
        Option("step", "--step", "only this step, by name or place", kind="step", metavar="STEP"),
        Option(
            "max_depth",
            "--max-depth",
            "deepest level of calls [6]",
            kind="count",
            default=6,
            metavar="N",
        ),
        Option(
            "min_duration_ns",
            "--min-us",
            "leave shorter calls out",
            kind="microseconds",
            default=0,
            metavar="US",
        ),
        Option("kernels", "--no-kernels", "leave GPU events out", kind="no_flag", default=True),
    ),
    sql={"tree": {"max_depth": ANY_DEPTH}},
    first=("name", "duration_ns", "depth", "kind", "row"),
)
