"""`load` and `Trace`: one or several ranks, their tables and trees, and views of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torchtraceap import _core
from torchtraceap.errors import OptionError, ParseError
from torchtraceap.interop import ColumnTable, EventFrame, TextCodes, stack_ranks
from torchtraceap.loading import PathLike, RankClaim, assign_ranks, expand_paths
from torchtraceap.results import Diagnosis, Diagnostic, Summary, Timeline, TraceFile
from torchtraceap.threads import core_count, map_on_threads

if TYPE_CHECKING:
    from torchtraceap.replay import ReplayResult
    from torchtraceap.simulation.edits.base import Edit
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.tree import TreeView

__all__ = ["Progress", "RankTrace", "Trace", "load"]

T = TypeVar("T")

Progress = Callable[[int, int], object]
"""Called now and then with (compressed bytes read, in all)."""


class RankTrace:
    """One rank: its event table, and its tree once something asks for it."""

    __slots__ = ("_costs", "_remembered", "_tree", "path", "rank", "table", "world_size")

    def __init__(self, table: _core.EventTable, rank: int | None) -> None:
        self.path: str = table.path
        self.rank = rank
        self.world_size: int | None = table.world_size
        self.table = table
        self._tree: _core.EventTree | None = None
        self._costs: _core.GpuCosts | None = None
        self._remembered: dict[Hashable, Any] = {}

    @property
    def tree(self) -> _core.EventTree:
        """The links between the rows, built at the first use."""
        if self._tree is None:
            self._tree = _core.build_tree(self.table)
        return self._tree

    @property
    def costs(self) -> _core.GpuCosts:
        """GPU and host time of every row, computed at the first use."""
        if self._costs is None:
            self._costs = _core.gpu_costs(self.table, self.tree)
        return self._costs

    def idle(self, bounds: tuple[int, int] | None) -> _core.IdleBreakdown:
        """Idle intervals and their causes within `bounds` (start_ns, end_ns), or from the first to
        the last GPU event; computed once."""
        return self.remember(
            ("idle", bounds), lambda: _core.explain_idle(self.table, self.tree, bounds=bounds)
        )

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gave for `key` the first time, for what several tables need.

        It is kept as long as the rank, so it should be small, and must not refer to the rank: a
        cycle would keep the whole trace in memory until Python looks for cycles.
        """
        if key not in self._remembered:
            self._remembered[key] = compute()
        found: T = self._remembered[key]
        return found

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
        known = ", ".join(str(c.rank) for c in self.ranks[:16] if c.rank is not None)
        there = f"there are: {known}" if known else "it does not say which rank it is of"
        raise OptionError(f"no rank {rank} in this trace; {there}")

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
        return _parse(self.rank(rank).table.event_json(row), row)

    def args(self, row: int, rank: int | None = None) -> dict[str, Any]:
        """The `args` of one event."""
        return _parse(self.rank(rank).table.args_json(row), row)

    def idle(self, rank: int | None = None, *, profiled: bool = False) -> IdleTable:
        """Every interval in which the GPU idles, with its cause and the host event behind it.

        Args:
            rank: Which rank.
            profiled: Over the profiled time; by default from the first to the last GPU event,
                which makes the causes sum to the timeline's `idle_ns`.
        """
        part = self.rank(rank)
        bounds = part.tree.profiled if profiled else None
        return IdleTable(part.idle(bounds))

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

    # ------------------------------------------------------------------------------ tables
    # Of every rank under each other, with a first column `rank`, unless one is named.

    def ops(self, *, by: str = "name", rank: int | None = None) -> ColumnTable:
        """GPU and host time of operators; forward and backward joined.

        Args:
            by: "name", "category", "args" (name, shapes, dtypes, strides, concrete inputs) or
                "call" (every call).
            rank: Only this rank.
        """
        from torchtraceap.analysis.ops import build_ops

        return self._per_rank(lambda part: build_ops(part, by=by), rank)

    def modules(self, *, rank: int | None = None) -> ColumnTable:
        """The tree of `nn.Module` calls with GPU and host time, backward included."""
        from torchtraceap.analysis.modules import build_modules

        return self._per_rank(build_modules, rank)

    def kernels(self, *, by: str = "name", rank: int | None = None) -> ColumnTable:
        """GPU events by name, op and stream: counts, times, grid, block.

        Args:
            by: "name" (as the trace writes it), "canonical" (without template arguments and
                numbers) or "event" (every event).
            rank: Only this rank.
        """
        from torchtraceap.analysis.kernels import build_kernels

        return self._per_rank(lambda part: build_kernels(part, by=by), rank)

    def short_kernels(self, *, below_ns: int = 10_000, rank: int | None = None) -> ColumnTable:
        """Kernels shorter than `below_ns` by owner, with what launching them costs."""
        from torchtraceap.analysis.kernels import build_short_kernels

        return self._per_rank(lambda part: build_short_kernels(part, below_ns=below_ns), rank)

    def sequences(self, *, length: int = 0, rank: int | None = None) -> ColumnTable:
        """Sequences of kernels that repeat, with what fusing each would remove.

        Args:
            length: Kernels in a sequence; 0 looks for all lengths.
            rank: Only this rank.
        """
        from torchtraceap.analysis.sequences import build_sequences

        return self._per_rank(lambda part: build_sequences(part, length=length), rank)

    def launches(self, *, by: str = "call", rank: int | None = None) -> ColumnTable:
        """Launch calls, CUDA and HIP: their cost on the host, delay, queue length.

        Args:
            by: "call" (name of the launch call), "kernel", "stream", "event" (every launch) or
                "queue" (queue length over time).
            rank: Only this rank.
        """
        from torchtraceap.analysis.launches import build_launches

        return self._per_rank(lambda part: build_launches(part, by=by), rank)

    def roofline(
        self,
        *,
        device: Any = None,
        by: str = "args",
        compat: str | None = None,
        rank: int | None = None,
    ) -> ColumnTable:
        """FLOPs, bytes, achieved and possible rates of every modelled operator.

        Args:
            device: A name of the device database or a `Device`; by default the trace's own.
            by: "args" (unique arguments), "family" or "call".
            compat: "tracelens" for the numbers of its models.
            rank: Only this rank.
        """
        from torchtraceap.analysis.roofline import build_roofline

        return self._per_rank(
            lambda part: build_roofline(part, device=device, by=by, compat=compat), rank
        )

    def memory(self, *, by: str = "direction", rank: int | None = None) -> ColumnTable:
        """Copies and the memory of the device.

        Args:
            by: "direction", "copy" (every copy with its bandwidth), "bandwidth" (over time),
                "allocator" (allocator calls), "timeline" (`[memory]` events).
            rank: Only this rank.
        """
        from torchtraceap.analysis.memory import build_memory

        return self._per_rank(lambda part: build_memory(part, by=by), rank)

    def host(self, *, by: str = "thread", rank: int | None = None) -> ColumnTable:
        """What the CPU threads did while the GPU waited.

        Args:
            by: "thread", "op" (names by self time) or "frame" (Python frames).
            rank: Only this rank.
        """
        from torchtraceap.analysis.host import build_host

        return self._per_rank(lambda part: build_host(part, by=by), rank)

    def steps(self, *, rank: int | None = None) -> ColumnTable:
        """Every step with its timeline, how unusual it is and what differs in it."""
        from torchtraceap.analysis.steps import build_steps

        return self._per_rank(build_steps, rank)

    def collectives(self) -> ColumnTable:
        """Collectives matched across the ranks: bytes, transfer, wait of each rank, bandwidth."""
        from torchtraceap.analysis.collectives import build_collectives

        return build_collectives(self)

    def ranks_table(self, *, by: str = "rank") -> ColumnTable:
        """Ranks compared: who arrives last, how often and because of what.

        Args:
            by: "rank", "op" (equal operators), "alltoall" (bytes from rank to rank) or "clock".
        """
        from torchtraceap.analysis.ranks import build_ranks

        return build_ranks(self, by=by)

    def critical_path(
        self, *, step: str | int | None = None, by: str = "cause", compat: str | None = None
    ) -> ColumnTable:
        """The longest chain of dependent work, and what it consists of.

        Args:
            step: Only this step, by name or place; by default all steps, else the whole trace.
            by: "cause" (shares), "event" (the path itself) or "name".
            compat: "hta" for the graph that HTA builds.
        """
        from torchtraceap.analysis.critical_path import build_critical_path

        return build_critical_path(self, step=step, by=by, compat=compat)

    def explain_idle(
        self, start_ns: int, end_ns: int | None = None, *, rank: int | None = None
    ) -> ColumnTable:
        """The chain of work that the longest idle interval of a range waits for.

        Args:
            start_ns: Where the range begins, in the clock of the rank.
            end_ns: Where it ends; by default it is an instant.
            rank: Whose GPU idles.
        """
        from torchtraceap.simulation.idle_chain import build_idle_chain

        return build_idle_chain(self, start_ns, start_ns if end_ns is None else end_ns, rank=rank)

    def simulate(self, edits: Iterable[str | Edit] | None = None) -> Simulation:
        """What a step would take if findings were fixed, replayed from its dependencies.

        Args:
            edits: Names such as "loader_workers=4" (`torchtraceap simulate --list`), or objects of
                your own; by default every fix that needs no decision.
        """
        from torchtraceap.simulation.simulate import simulate

        return simulate(self, edits)

    # ------------------------------------------------------------------------------ ways out

    def sql(self, query: str) -> ColumnTable:
        """One query of DuckDB's SQL over all tables; `torchtraceap.sql.SQL_TABLES` lists them."""
        from torchtraceap.sql import run_sql

        return run_sql(self, query)

    def annotate(self, path: PathLike, *, rank: int | None = None) -> None:
        """Writes the trace for Perfetto, with findings, idle causes, critical path and counters.

        Args:
            path: Ends in `.json`, `.json.gz` or, with the package `perfetto`, `.pftrace`.
            rank: Which of several ranks.
        """
        from torchtraceap.overlay import annotate

        annotate(self, path, rank=rank)

    def merge(self, path: PathLike) -> None:
        """Writes all ranks into one file for Perfetto, their clocks aligned."""
        from torchtraceap.analysis.merge import merge_ranks

        merge_ranks(self, path)

    def replay(
        self,
        row: int | None = None,
        *,
        op: str | None = None,
        rank: int | None = None,
        device: str = "cpu",
    ) -> ReplayResult:
        """Runs an operator of the trace again, here, and times it; needs torch.

        Args:
            row: The call's row, or
            op: a name such as "aten::mm": its longest call.
            rank: Which rank.
            device: Where to run it.
        """
        from torchtraceap.replay import replay

        return replay(self, row, op=op, rank=rank, device=device)

    def _per_rank(self, build: Callable[[RankTrace], ColumnTable], rank: int | None) -> ColumnTable:
        if rank is not None or len(self.ranks) == 1:
            return build(self.rank(rank))
        tables = map_on_threads(build, self.ranks)
        return stack_ranks([(p.rank, table) for p, table in zip(self.ranks, tables, strict=True)])


def _parse(text: str, row: int) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(text, strict=False)
    except RecursionError:
        raise ParseError(f"row {row}: nested too deeply for Python's objects") from None
    return parsed


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
    at_once = min(threads or core_count(), len(files))
    each = max(1, (threads or core_count()) // at_once)
    reports = _shared(progress, files) if progress else [None] * len(files)

    def read(index: int) -> _core.EventTable | ParseError:
        try:
            return _core.read_trace(files[index], threads=each, progress=reports[index])
        except ParseError as error:
            if not skip:
                raise
            return error

    read_files = list(
        zip(files, map_on_threads(read, range(len(files)), threads=at_once), strict=True)
    )
    tables = [(path, table) for path, table in read_files if not isinstance(table, ParseError)]
    failures = [error for _, error in read_files if isinstance(error, ParseError)]
    if not tables:
        first = f": {failures[0]}" if failures else ""
        raise ParseError(f"none of {len(files)} files is a trace{first}")
    if not failures:
        return tables, []
    message = f"files of the folder that hold no trace were skipped, the first: {failures[0]}"
    return tables, [Diagnostic("skipped_file", len(failures), None, message)]


def _shared(progress: Progress, files: Sequence[Path]) -> list[Progress]:
    """A report for each file, which adds up what was read of all."""
    total = sum(os.stat(path).st_size for path in files)
    done = [0] * len(files)
    lock = Lock()

    def report(index: int, read: int, _: int) -> object:
        with lock:
            done[index] = read
            return progress(sum(done), total)

    return [partial(report, index) for index in range(len(files))]
