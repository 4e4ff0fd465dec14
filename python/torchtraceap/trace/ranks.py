"""The data of a trace: one or several ranks, each with its event table and its tree."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.intervals import covered_ns, union
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.results import Diagnostic, Timeline, TraceFile
from torchtraceap.core.sums import total
from torchtraceap.core.threads import MemoCache
from torchtraceap.errors import OptionError, ParseError

__all__ = ["RankTrace", "Ranks", "from_core_timeline", "parse_recorded"]

_HOST_KINDS = (
    _core.EventKind.CPU_OP,
    _core.EventKind.USER_ANNOTATION,
    _core.EventKind.PYTHON_FUNCTION,
    _core.EventKind.RUNTIME,
    _core.EventKind.DRIVER,
)


class RankTrace(Renderable):
    """One rank: its event table, and its tree once something asks for it."""

    __slots__ = ("cached", "last_rank_began_ns", "path", "rank", "table", "world_size")

    def __init__(
        self, table: _core.EventTable, rank: int | None, tree: _core.EventTree | None = None
    ) -> None:
        self.path: str = table.path
        self.rank = rank
        self.world_size: int | None = table.world_size
        self.table = table
        self.last_rank_began_ns: int | None = None
        """When the last rank of the trace began to record; None where this one was read alone."""
        self.cached = MemoCache()
        """Cache of values that several tables need of the rank."""
        if tree is not None:
            self.cached("tree", lambda: tree)

    @property
    def tree(self) -> _core.EventTree:
        """The links between the rows, built at the first use."""
        return self.cached("tree", self._build_tree)

    def _build_tree(self) -> _core.EventTree:
        with progress_stage("linking events"):
            return _core.build_tree(self.table, last_rank_began_ns=self.last_rank_began_ns)

    @property
    def costs(self) -> _core.GpuCosts:
        """GPU and host time of every row, computed at the first use."""
        return self.cached("costs", lambda: _core.gpu_costs(self.table, self.tree))

    def idle(self, bounds: tuple[int, int] | None) -> _core.IdleBreakdown:
        """Return idle intervals and their causes within `bounds` (start_ns, end_ns), or from the
        first to the last GPU event."""
        return _core.explain_idle(self.table, self.tree, bounds=bounds)

    @property
    def computes_on_host(self) -> bool:
        """True if nothing of a GPU is recorded and operators do the work on the host; computed
        once."""
        return self.cached("on host", lambda: _core.runs_on_host(self.table, self.tree))

    @property
    def file(self) -> TraceFile:
        return TraceFile(self.path, self.rank, self.world_size)

    @property
    def profiled_ns(self) -> int:
        """First to last profiled step, else first to last complete event, without what the
        recording can't be trusted for; computed once."""

        def measure() -> int:
            start_ns, end_ns = self.tree.profiled
            left_out = union([self.tree.not_judged, self.tree.missing])
            if not len(left_out):
                return end_ns - start_ns
            return end_ns - start_ns - total(covered_ns(left_out, np.array([start_ns, end_ns])))

        return self.cached("profiled", measure)

    @property
    def began_ns(self) -> int | None:
        """Start of the first event of the host; None where there is none."""
        rows = self.table.complete & np.isin(self.table.kind, _HOST_KINDS)
        return int(self.table.ts_ns[np.argmax(rows)]) if rows.any() else None

    def step_bounds(self, step: str | int | None) -> tuple[int, int] | None:
        """Return start and end of a step, by name or by place (0 is the first); None for no step.

        Raises:
            OptionError: There is no such step.
        """
        if step is None:
            return None
        for place, candidate in enumerate(self.tree.steps):
            if step in (candidate.name, place):
                return candidate.start_ns, candidate.end_ns
        known = ", ".join(candidate.name for candidate in self.tree.steps[:8]) or "none"
        raise OptionError(f"no step {step!r} in this trace; there are: {known}")

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Diagnostics of reading, then of linking."""
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
        """Return GPU time by class, over its own span or clipped to `bounds` (start_ns, end_ns)."""
        core = _core.timeline(
            self.table,
            self.tree,
            linked_only=linked_only,
            device=-1 if device is None else device,
            bounds=bounds,
        )
        return from_core_timeline(core)

    def profiled_timeline(self) -> Timeline:
        """Return the timeline clipped to the profiled time."""
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


class Ranks(Renderable):
    """One or several ranks of a job, without the views that `torchtraceap.Trace` has of them."""

    def __init__(self, ranks: Iterable[RankTrace], diagnostics: Iterable[Diagnostic] = ()) -> None:
        self.ranks: tuple[RankTrace, ...] = tuple(ranks)
        """Ranks by number."""
        self.cached = MemoCache()
        """Cache of values that several tables need of all ranks together."""
        self._load_diagnostics = tuple(diagnostics)
        if not self.ranks:
            raise OptionError("a trace has at least one rank")
        if len(self.ranks) > 1:
            began = [ns for rank in self.ranks if (ns := rank.began_ns) is not None]
            for rank in self.ranks:
                rank.last_rank_began_ns = max(began, default=None)

    def __repr__(self) -> str:
        events = sum(len(rank.table) for rank in self.ranks)
        name, path = type(self).__name__, self.ranks[0].path
        return f"{name}(ranks={len(self.ranks)}, events={events}, path={path!r})"

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Diagnostics of choosing files, reading and linking; counts of one code are summed over
        the ranks."""
        merged: dict[str, Diagnostic] = {}
        for entry in (*self._load_diagnostics, *(d for r in self.ranks for d in r.diagnostics)):
            seen = merged.get(entry.code)
            if seen is None:
                merged[entry.code] = entry
                continue
            count = seen.count + entry.count
            offsets = (seen.first_byte_offset, entry.first_byte_offset)
            first = min((offset for offset in offsets if offset is not None), default=None)
            merged[entry.code] = Diagnostic(entry.code, count, first, seen.message)
        return tuple(merged.values())

    def rank(self, rank: int | None = None) -> RankTrace:
        """Return the rank of that number; by default the first.

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

    def timeline(self, *, linked_only: bool = False) -> Timeline:
        """Return GPU time by class, all devices of a rank in one union, summed over the ranks."""
        parts = (rank.timeline(linked_only=linked_only) for rank in self.ranks)
        return sum(parts, Timeline())


def parse_recorded(text: str | bytes, place: str) -> dict[str, Any]:
    """Return an event, its arguments or a whole trace, as the core writes it, as Python objects.

    Args:
        text: JSON whose numbers and depth are those of the file that was read.
        place: The row or file in messages.

    Raises:
        ParseError: A number or the depth is beyond what Python reads.
    """
    try:
        parsed: dict[str, Any] = json.loads(text, strict=False)
    except RecursionError:
        raise ParseError(f"{place}: nested too deeply for Python's objects") from None
    except ValueError as error:
        raise ParseError(f"{place}: {error}") from None
    return parsed
