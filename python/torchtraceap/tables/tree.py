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
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import Option, TableSpec
from torchtraceap.tables.gpu.gpu_events import row_numbers
from torchtraceap.tables.grouping import phases_of
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "TreeView", "build_tree_rows"]

_MAX_NAME = 100
ANY_DEPTH = 2**31 - 1
_SHOWN = ("row", "parent", "depth", "kind", "name", "duration_ns", "thread", "stream", "phase")


class TreeView(Renderable):
    """The tree of one rank: host stacks per thread with the kernels that they launched.

    Rows are those of `trace.events(rank)`.
    """

    __slots__ = ("_gpu", "_rank")

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._gpu: tuple[Array, Array] | None = None

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
        """Return the GPU events that a host row itself launched."""
        tree = self.core
        return tree.launched_rows[tree.launched_offsets[row] : tree.launched_offsets[row + 1]]

    def children(self, row: int) -> npt.NDArray[np.uint32]:
        """Return the host rows directly below a host row, in time order."""
        tree = self.core
        position = int(tree.host_position[row])
        if position == _core.NO_ROW:
            return np.zeros(0, dtype=np.uint32)
        below = tree.host_rows[position + 1 : int(tree.subtree_end[position])]
        chosen: npt.NDArray[np.uint32] = below[tree.parent[below] == row]
        return chosen

    def gpu_time(self, row: int) -> tuple[int, int]:
        """Return the sum of durations in ns, and the number, of the GPU events that a host row and
        all below it launched."""
        tree = self.core
        position = int(tree.host_position[row])
        if position == _core.NO_ROW:
            return 0, 0
        if self._gpu is None:
            # Place in `host_rows` of what launched a GPU event, ascending, and its duration.
            gpu = tree.linked_gpu_rows
            launcher = tree.host_position[tree.launch[gpu]]
            known = launcher != _core.NO_ROW
            order = np.argsort(launcher[known], kind="stable")
            self._gpu = launcher[known][order], self._rank.table.dur_ns[gpu[known][order]]
        positions, lasts_ns = self._gpu
        first, last = np.searchsorted(positions, (position, int(tree.subtree_end[position])))
        return total(lasts_ns[first:last]), int(last - first)

    def to_text(
        self,
        *,
        step: str | int | None = None,
        max_lines: int = 200,
        max_depth: int = 6,
        min_duration_ns: int = 0,
        kernels: bool = True,
    ) -> str:
        """Return an indented listing by thread, the thread that drives the GPU first.

        Args:
            step: Only this step, by name or by place (0 is the first).
            max_lines: Where to stop; the last line says that there is more.
            max_depth: Deepest level shown.
            min_duration_ns: Leave shorter host events out.
            kernels: Show GPU events under the call that launched them.
        """
        if max_lines < 1:
            raise OptionError("max_lines must be at least 1")
        all_lines = self._lines(self._rank.step_bounds(step), max_depth, min_duration_ns, kernels)
        lines = list(islice(all_lines, max_lines + 1))
        if len(lines) > max_lines:
            lines[-1] = f"... cut after {max_lines} lines"
        return "\n".join(lines)

    def _lines(
        self, bounds: tuple[int, int] | None, max_depth: int, min_duration_ns: int, kernels: bool
    ) -> Iterator[str]:
        tree, table = self.core, self._rank.table
        depth, stream, tracks = tree.depth, table.stream, table.tracks
        numbers = [int(track) for track in tree.host_tracks]
        for track in sorted(numbers, key=lambda track: (track != tree.main_track, track)):
            rows = tree.host_rows[tree.host_offsets[track] : tree.host_offsets[track + 1]]
            keep = depth[rows] <= max_depth
            if min_duration_ns > 0:
                keep &= table.dur_ns[rows] >= min_duration_ns
            if bounds is not None:
                keep &= (table.ts_ns[rows] >= bounds[0]) & (table.ts_ns[rows] < bounds[1])
            rows = rows[keep]
            if not len(rows):
                continue
            info = tracks[track]
            name = f" {_one_line(info.thread_name)}" if info.thread_name else ""
            yield f"thread {_one_line(info.tid)} of process {_one_line(info.pid)}{name}"
            for row in rows:  # not as a list: the caller takes a few of maybe millions
                indent = "  " * (int(depth[row]) + 1)
                launched = self.launched_by(row)[: None if kernels else 0]
                note = ""
                if not len(launched):  # else the next lines say it
                    time_ns, events = self.gpu_time(row)
                    plural = "s" if events != 1 else ""
                    note = f"  [GPU {format_ns(time_ns)}, {events} event{plural}]" if events else ""
                yield f"{indent}{self._label(row)}{note}"
                for kernel in launched:
                    number = int(stream[kernel])
                    where = f"  stream {number}" if number != _core.NO_ID else ""
                    yield f"{indent}  -> {self._label(kernel)}{where}"

    def _label(self, row: int) -> str:
        table = self._rank.table
        return f"{_one_line(table.name_of(row))}  {format_ns(int(table.dur_ns[row]))}"


def _one_line(text: str) -> str:
    return one_line(text, _MAX_NAME) or "(no name)"


def build_tree_rows(
    part: RankTrace,
    *,
    step: str | int | None = None,
    max_depth: int = 6,
    min_duration_ns: int = 0,
    kernels: bool = True,
) -> ColumnTable:
    """Build the table of `Trace.tree_rows` for one rank, by time.

    Raises:
        OptionError: There is no such step.
    """
    table, tree = part.table, part.tree
    bounds = part.step_bounds(step)
    host = tree.host_rows.astype(np.int64)
    rows = host[(tree.depth[host] <= max_depth) & (table.dur_ns[host] >= min_duration_ns)]
    if kernels:
        rows = np.concatenate([rows, tree.gpu_rows.astype(np.int64)])
    if bounds is not None:
        # A GPU event belongs to the step that launched it, whenever it runs.
        launch = tree.launch[rows].astype(np.int64)
        start = table.ts_ns[np.where(launch == _core.NO_ROW, rows, launch)]
        rows = rows[(start >= bounds[0]) & (start < bounds[1])]
    rows = np.sort(rows)
    on_gpu = tree.gpu_class[rows] != 0
    # The number that the trace gives the thread; absent on the GPU.
    threads = recode(table.track[rows], [track.tid for track in table.tracks])
    columns: dict[str, Column] = {
        "row": rows,
        "parent": row_numbers(np.where(on_gpu, tree.launch[rows], tree.parent[rows])),
        "depth": np.ma.array(tree.depth[rows].astype(np.int64), mask=on_gpu),
        "kind": TextCodes(table.kind[rows].astype(np.int8), _core.kind_names()),
        "name": TextCodes(table.name[rows].astype(np.int32), table.strings),
        "start_ns": table.ts_ns[rows],
        "duration_ns": table.dur_ns[rows],
        "thread": TextCodes(np.where(on_gpu, np.int32(-1), threads.codes), threads.texts),
        "stream": np.ma.masked_equal(table.stream[rows], _core.NO_ID),
        "phase": phases_of(part, rows),
    }
    return ColumnTable(columns, shown=_SHOWN)


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
