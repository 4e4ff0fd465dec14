"""`load` and `Trace`: one or several ranks, their tables and trees, and views of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.errors import OptionError, ParseError
from torchtraceap.interop import ColumnTable, EventFrame, TextCodes
from torchtraceap.loading import PathLike, RankClaim, assign_ranks, expand_paths
from torchtraceap.results import Diagnosis, Diagnostic, Summary, Timeline, TraceFile

if TYPE_CHECKING:
    from torchtraceap.tree import TreeView

__all__ = ["Progress", "RankTrace", "Trace", "load"]

Progress = Callable[[int, int], object]
"""Called now and then with (compressed bytes read, in all)."""


class RankTrace:
    """One rank: its event table, and its tree once something asks for it."""

    __slots__ = ("_tree", "path", "rank", "table", "world_size")

    def __init__(self, table: _core.EventTable, rank: int | None) -> None:
        self.path: str = table.path
        self.rank = rank
        self.world_size: int | None = table.world_size
        self.table = table
        self._tree: _core.EventTree | None = None

    @property
    def tree(self) -> _core.EventTree:
        """The links between the rows, built at the first use."""
        if self._tree is None:
            self._tree = _core.build_tree(self.table)
        return self._tree

    @property
    def file(self) -> TraceFile:
        return TraceFile(self.path, self.rank, self.world_size)

    @property
    def profiled_ns(self) -> int:
        """First to last profiled step, else first to last complete event."""
        start_ns, end_ns = self.tree.profiled
        return end_ns - start_ns

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Of reading, then of linking."""
        entries = [*self.table.diagnostics, *self.tree.diagnostics]
        return tuple(
            Diagnostic(entry.code, entry.count, entry.first_byte_offset, entry.message)
            for entry in entries
        )

    def timeline(
        self,
        *,
        linked_only: bool = False,
        device: int | None = None,
        bounds: tuple[int, int] | None = None,
    ) -> Timeline:
        """GPU time by class, over its own span or clipped to `bounds` (start_ns, end_ns)."""
        core = _core.timeline(
            self.table,
            self.tree,
            linked_only=linked_only,
            device=-1 if device is None else device,
            bounds=bounds,
        )
        return from_core_timeline(core)

    def profiled_timeline(self) -> Timeline:
        """The timeline clipped to the profiled time."""
        return self.timeline(bounds=self.tree.profiled)

    def __repr__(self) -> str:
        return f"RankTrace(rank={self.rank}, events={len(self.table)}, path={self.path!r})"


def from_core_timeline(core: _core.Timeline) -> Timeline:
    return Timeline(
        core.span_ns,
        core.busy_ns,
        core.idle_ns,
        core.compute_ns,
        core.communication_ns,
        core.memcpy_ns,
        core.exposed_communication_ns,
        core.exposed_memcpy_ns,
    )


class IdleTable(ColumnTable):
    """Idle intervals of the GPU: start_ns, end_ns, cause, explained_by and next_gpu_row.

    The last two are rows of the event table, `_core.NO_ROW` where there is none.
    """

    def __init__(self, core: _core.IdleBreakdown) -> None:
        super().__init__(
            {
                "start_ns": core.start_ns,
                "end_ns": core.end_ns,
                "cause": TextCodes(core.cause.astype(np.int8), _core.idle_cause_names()),
                "explained_by": core.explained_by,
                "next_gpu_row": core.next_gpu_row,
            }
        )
        self.totals_ns: dict[str, int] = core.totals
        """Idle time by cause, ns; sums to the idle time exactly."""


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


class Trace:
    """A trace of one or several ranks; `ttap.load` makes it.

    Methods that take `rank` use the only (or first) rank where it is left out, except `events`,
    which then covers all of them.
    """

    def __init__(self, ranks: Iterable[RankTrace], diagnostics: Iterable[Diagnostic] = ()) -> None:
        self.ranks: tuple[RankTrace, ...] = tuple(ranks)
        """By rank number."""
        self._load_diagnostics = tuple(diagnostics)
        if not self.ranks:
            raise OptionError("a trace has at least one rank")

    def __repr__(self) -> str:
        events = sum(len(rank.table) for rank in self.ranks)
        return f"Trace(ranks={len(self.ranks)}, events={events}, path={self.ranks[0].path!r})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Of choosing files, reading and linking; counts of one code are summed over the ranks."""
        merged: dict[str, Diagnostic] = {}
        for entry in (*self._load_diagnostics, *(d for r in self.ranks for d in r.diagnostics)):
            seen = merged.get(entry.code)
            merged[entry.code] = entry if seen is None else _add(seen, entry)
        return tuple(merged.values())

    def rank(self, rank: int | None = None) -> RankTrace:
        """The rank of that number; by default the first.

        Raises:
            OptionError: There is no such rank.
        """
        if rank is None:
            return self.ranks[0]
        for candidate in self.ranks:
            if candidate.rank == rank:
                return candidate
        known = ", ".join(str(candidate.rank) for candidate in self.ranks[:16])
        raise OptionError(f"no rank {rank} in this trace; there are: {known}")

    def summary(self, *, linked_only: bool = False) -> Summary:
        """What is in the trace and where its GPU time goes.

        Args:
            linked_only: Leave GPU events out whose launch the trace does not hold.
        """
        from torchtraceap.summary import build_summary

        return build_summary(self, linked_only=linked_only)

    def diagnose(self, *, windows: int = 100) -> Diagnosis:
        """Which anti-patterns cost time, on what evidence, and what to change.

        Args:
            windows: Number of windows of equal time that get scores.
        """
        from torchtraceap.diagnose import build_diagnosis

        return build_diagnosis(self, windows=windows)

    def timeline(self, *, linked_only: bool = False) -> Timeline:
        """GPU time by class, all devices of a rank in one union, summed over the ranks."""
        parts = (rank.timeline(linked_only=linked_only) for rank in self.ranks)
        return sum(parts, Timeline())

    def tree(self, rank: int | None = None) -> TreeView:
        """Host stacks with the kernels that they launched."""
        from torchtraceap.tree import TreeView

        return TreeView(self.rank(rank))

    def events(self, rank: int | None = None) -> EventFrame:
        """The events as a table for NumPy, pandas and Arrow; all ranks unless one is given."""
        ranks = self.ranks if rank is None else (self.rank(rank),)
        tables = [(part.table, part.rank) for part in ranks]
        return EventFrame(tables, with_rank=rank is None and len(ranks) > 1)

    def event(self, row: int, rank: int | None = None) -> dict[str, Any]:
        """One event with every key that it had in the file."""
        parsed: dict[str, Any] = json.loads(self.rank(rank).table.event_json(row), strict=False)
        return parsed

    def args(self, row: int, rank: int | None = None) -> dict[str, Any]:
        """The `args` of one event."""
        parsed: dict[str, Any] = json.loads(self.rank(rank).table.args_json(row), strict=False)
        return parsed

    def idle(self, rank: int | None = None, *, profiled: bool = False) -> IdleTable:
        """Every interval in which the GPU idles, with its cause and the host event behind it.

        Args:
            rank: Which rank.
            profiled: Over the profiled time; by default from the first to the last GPU event,
                which makes the causes sum to the timeline's `idle_ns`.
        """
        part = self.rank(rank)
        bounds = part.tree.profiled if profiled else None
        return IdleTable(_core.explain_idle(part.table, part.tree, bounds=bounds))

    def windows(
        self, *, count: int = 100, length_ns: int = 0, rank: int | None = None
    ) -> _core.WindowSet:
        """Windows of equal time (or of `length_ns`) over the profiled time, with their rows."""
        check_count("count", count)
        if length_ns < 0:
            raise OptionError("length_ns must not be negative")
        part = self.rank(rank)
        return _core.build_windows(part.table, part.tree, count=count, length_ns=length_ns)

    def features(self, *, count: int = 100, rank: int | None = None) -> FeatureTable:
        """Numbers per window, and their robust z-scores."""
        part = self.rank(rank)
        windows = self.windows(count=count, rank=rank)
        return FeatureTable(windows, _core.build_features(part.table, part.tree, windows))


def check_count(name: str, count: int) -> None:
    """Raises OptionError unless `count` is a sensible number of windows."""
    if not 1 <= count <= 1_000_000:
        raise OptionError(f"{name} must lie between 1 and 1000000, not {count}")


def _add(a: Diagnostic, b: Diagnostic) -> Diagnostic:
    offsets = [d.first_byte_offset for d in (a, b) if d.first_byte_offset is not None]
    return Diagnostic(a.code, a.count + b.count, min(offsets, default=None), a.message)


def load(
    path: PathLike | Sequence[PathLike],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Reads a trace: a file, a folder with a file per rank, or a list of files.

    JSON, gzip and zstd are told apart by content. A damaged file is read as far as it makes sense;
    what could not be taken at face value is counted in `Trace.diagnostics`.

    Args:
        path: Where it is. In a folder, files that hold no trace are skipped, with a diagnostic.
        threads: Parsing threads; by default as many as there are cores.
        progress: Called now and then with (compressed bytes read, in all).

    Returns:
        One `Trace`, whose ranks come from `distributedInfo`, else from the file names, else from
        the order of the files; the diagnostics say which.

    Raises:
        MissingFileError: A path does not exist.
        ParseError: A file without a single event, or a folder without any trace.
        OptionError: A negative number of threads.
    """
    if threads is not None and threads < 0:
        raise OptionError(f"threads must not be negative, not {threads}")
    files, from_folder = expand_paths(path)
    tables, skipped = _read_all(files, threads or 0, progress, skip=from_folder)
    claims = [RankClaim(p, table.rank, table.world_size) for p, table in tables]
    numbers, diagnostics = assign_ranks(claims)
    ranks = [RankTrace(table, number) for (_, table), number in zip(tables, numbers, strict=True)]
    ranks.sort(key=lambda rank: -1 if rank.rank is None else rank.rank)
    return Trace(ranks, [*skipped, *diagnostics])


def _read_all(
    files: Sequence[Path], threads: int, progress: Progress | None, *, skip: bool
) -> tuple[list[tuple[Path, _core.EventTable]], list[Diagnostic]]:
    sizes = [os.stat(path).st_size for path in files]
    tables: list[tuple[Path, _core.EventTable]] = []
    failures: list[ParseError] = []
    for i, path in enumerate(files):
        report = _shifted(progress, sum(sizes[:i]), sum(sizes)) if progress else None
        try:
            tables.append((path, _core.read_trace(path, threads=threads, progress=report)))
        except ParseError as error:
            if not skip:
                raise
            failures.append(error)
    if not tables:
        first = f": {failures[0]}" if failures else ""
        raise ParseError(f"none of {len(files)} files is a trace{first}")
    if not failures:
        return tables, []
    message = f"files of the folder that hold no trace were skipped, the first: {failures[0]}"
    return tables, [Diagnostic("skipped_file", len(failures), None, message)]


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    def report(done: int, _: int) -> object:
        return progress(before + done, total)

    return report
