"""Edits that remove work of the host, with the GPU work that it launched."""

from __future__ import annotations

from functools import partial

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import ALLOCATOR_CALLS
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct, total
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.view import ACCUMULATION, RankView, views
from torchtraceap.simulation.run import SimulatedRun

__all__ = [
    "NoAllocatorCalls",
    "NoRecompilation",
    "NoSmallCopies",
    "RemoveEvidence",
    "RemoveRanges",
    "ZeroGradToNone",
    "no_casts",
    "no_host_copies",
    "no_logging",
    "no_recompilation",
    "no_unused_parameter_search",
]

_RANGES = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
_MAKES_A_COPY = r"^aten::(?:to|_to_copy|copy_|cuda)$"


@dataclass(frozen=True)
class RemoveRanges:
    """Remove host ranges of a name, with the GPU work that they launched."""

    name: str
    pattern: str
    noun: str
    """The word for one such range."""
    limited_to: str = ""
    """A phrase for those that are removed, if not all are."""

    def rows(self, view: RankView) -> Array:
        """Return the outermost host rows to remove."""
        return view.outermost(view.rows_named(self.pattern, *_RANGES))

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        ranges = work_ns = 0
        for view in views(run):
            rows = self.rows(view)
            ranges, work_ns = ranges + len(rows), work_ns + total(view.work_ns(rows))
            _remove(view, change, rows)
        if not ranges:
            raise NotApplicableError(f"the trace has no {self.noun}{self.limited_to}")
        note = f"gone: {pluralize(ranges, self.noun)} with {format_ns(work_ns)} on the host"
        return EditedGraph(change, note=note)


class NoRecompilation(RemoveRanges):
    """Remove compilations of code that was compiled before, by the rule `recompilation`."""

    def rows(self, view: RankView) -> Array:
        rows = super().rows(view)
        if not len(rows):
            return rows
        again = _core.recompiled_rows(view.table, view.tree)
        again = view.outermost(again[view.has_points[again]])
        inside: Array = view.inside(view.begin_of[rows].astype(np.int64), again) >= 0
        return rows[inside]


def _remove(view: RankView, change: Change, rows: Array) -> None:
    launched, _ = view.launched_inside(rows)
    view.remove_gpu(change, launched)
    calls = view.calls
    inside = view.inside(view.begin_of[calls].astype(np.int64), rows) >= 0
    change.drop(view.waits_of(calls[inside]))
    view.set_host_work(change, rows, 0)


no_unused_parameter_search = partial(
    RemoveRanges,
    "no_unused_parameter_search",
    "search_unused_parameters",
    "search for unused parameters",
)
no_recompilation = partial(
    NoRecompilation,
    "no_recompilation",
    r"\(dynamo_timed\)",
    "compilation",
    " of what was compiled before",
)


@dataclass(frozen=True, slots=True)
class RemoveEvidence:
    """Remove the host rows by which a rule shows its finding.

    Best: all of them. Cautious: half of their time stays, as the program may need some of it.
    """

    name: str
    finding: str
    noun: str
    """The word for one such row."""
    on_gpu: bool = False
    """The rows are the host's where a GPU computes, too."""

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        count = work_ns = 0
        for view in views(run):
            if not (self.on_gpu or view.part.computes_on_host):
                continue
            rows = view.evidence(self.finding)
            before_ns = view.work_ns(rows)
            count, work_ns = count + len(rows), work_ns + total(before_ns)
            _remove(view, best, rows)
            view.set_host_work(cautious, rows, before_ns // 2)
        if not count:
            where = "" if self.on_gpu else " of a run that computes on the host"
            raise NotApplicableError(f"the trace has no {self.noun}{where}")
        note = (
            f"gone at best: {pluralize(count, self.noun)} with {format_ns(work_ns)} on the host; "
            "at least half of that time"
        )
        return EditedGraph(best, cautious, note=note)


no_casts = partial(RemoveEvidence, "no_casts", "cast_storm", "cast")
no_host_copies = partial(
    RemoveEvidence, "no_host_copies", "device_to_device_copies", "memory transfer"
)
no_logging = partial(RemoveEvidence, "no_logging", "synchronous_logging", "log write", on_gpu=True)


class NoSmallCopies:
    """Constants stay on the device; the rule `small_copies` finds their uploads.

    Best: the uploads are gone with the operators that make them. Cautious: they change from step to
    step, and so are still made, from memory that nobody waits for.
    """

    name = "no_small_copies"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        count = 0
        for view in views(run):
            copies = _core.evidence_rows(view.table, view.tree, "small_copies").astype(np.int64)
            calls = view.launch_of(copies)
            calls = distinct(calls[calls >= 0])
            for change in (best, cautious):
                change.drop(view.waits_of(calls))
                view.remove_calls(change, view.waits_behind(calls))
            # Outermost operators that make copies, else their calls.
            operators = view.outermost(view.rows_named(_MAKES_A_COPY, EventKind.CPU_OP))
            place = view.inside(view.begin_of[calls].astype(np.int64), operators)
            makers = [operators[distinct(place[place >= 0])], calls[place < 0]]
            _remove(view, best, view.outermost(np.concatenate(makers)))
            view.remove_gpu(best, copies)
            count += len(calls)
        if not count:
            raise NotApplicableError("the trace has no small uploads that no batch explains")
        note = f"not awaited, and gone at best: {pluralize(count, 'small upload')}"
        return EditedGraph(best, cautious, note=note)


class ZeroGradToNone:
    """`zero_grad(set_to_none=True)`: no gradient is filled with zeros, and none is added to them.

    Cautious: the ranges of zero_grad go. Best: where autograd adds a gradient to zeros it takes the
    new one as it is, too. Of several backward passes per step only the first adds
    to zeros: as many additions go as gradients were filled, all where one operator fills them all.
    """

    name = "zero_grad_to_none"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        ranges = work_ns = additions = 0
        for view in views(run):
            rows = view.outermost(view.rows_named(r"^Optimizer\.zero_grad#", *_RANGES))
            # Operators that add a gradient to one that was filled with zeros.
            nodes = view.outermost(view.rows_named(ACCUMULATION, EventKind.CPU_OP))
            added = _operators_inside(view, r"^aten::add_?$", nodes)
            added = added[np.argsort(view.table.ts_ns[added], kind="stable")]
            begins_ns = np.sort(view.table.ts_ns[rows])
            after = np.searchsorted(begins_ns, view.table.ts_ns[added], side="right")
            place = np.arange(len(added)) - np.searchsorted(after, after)
            fills = len(_operators_inside(view, r"^aten::(?:zero_|fill_)$", rows))
            most = -(-fills // len(rows)) if fills else len(added)
            added = view.outermost(added[place < most])
            for change in (best, cautious):
                _remove(view, change, rows)
            _remove(view, best, added)
            ranges, work_ns = ranges + len(rows), work_ns + total(view.work_ns(rows))
            additions += len(added)
        if not ranges:
            raise NotApplicableError("the trace has no range of zero_grad")
        note = (
            f"gone: {pluralize(ranges, 'call')} of zero_grad with {format_ns(work_ns)} on the host"
            f", and at best {pluralize(additions, 'addition')} to zeros"
        )
        return EditedGraph(best, cautious, note=note)


def _operators_inside(view: RankView, pattern: str, holders: Array) -> Array:
    """Return the outermost operators of a name whose times lie in a row of the same thread; rows of
    one thread don't overlap. Of two with the same times either may have called the other."""
    operators = view.rows_named(pattern, EventKind.CPU_OP)
    begin_ns, end_ns = view.table.ts_ns, view.table.ts_ns + view.table.dur_ns
    held = np.zeros(len(operators), dtype=bool)
    for track in distinct(view.table.track[holders]).tolist():
        mine = holders[view.table.track[holders] == track]
        mine = mine[np.argsort(begin_ns[mine], kind="stable")]
        here = np.flatnonzero(view.table.track[operators] == track)
        place = np.searchsorted(begin_ns[mine], begin_ns[operators[here]], side="right") - 1
        inside = end_ns[operators[here]] <= end_ns[mine[np.maximum(place, 0)]]
        held[here] = (place >= 0) & inside
    return view.outermost(operators[held])


class NoAllocatorCalls:
    """cudaMalloc, cudaFree and their kin cost nothing and wait for nothing.

    Calls of the warm-up stay: a pool has to be filled once. Where a trace shows no steady state
    they all go at best, none at least.
    """

    name = "no_allocator_calls"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        calls, work_ns, sure = 0, 0, True
        for view in views(run):
            rows = view.outermost(view.calls_that(ALLOCATOR_CALLS))
            warm_up = view.tree.warm_up
            if warm_up.known:
                rows = rows[view.table.ts_ns[rows] >= warm_up.end_ns]
                view.remove_calls(cautious, rows)
            sure = sure and warm_up.known
            view.remove_calls(best, rows)
            calls += len(rows)
            work_ns += total(view.work_ns(rows))
        if not calls:
            raise NotApplicableError("no call in steady state takes or gives back memory")
        note = f"gone: {pluralize(calls, 'call')} that took {format_ns(work_ns)} without waiting"
        if not sure:
            note += ", at best: the trace shows no steady state, so they may be warm-up"
        return EditedGraph(best, cautious, note=note)
