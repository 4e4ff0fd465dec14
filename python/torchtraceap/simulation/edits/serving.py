"""Edits of a serving engine: no bubbles between or inside of iterations (`schedule_ahead`,
`sample_on_device`, `whole_graph`, `draft_graph`), and graphs of the exact batch (`exact_batch`).

Note [Bubbles]: the rule of the finding says when the GPU waits for the host. At best what the host
does then is done while the GPU works on what it has, so that the next work starts at once; the
rest of the replay decides whether that is so. Cautious: half of the host's work stays in the way.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.intervals import union
from torchtraceap.core.sums import total
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.serving.iterations import served_iterations

__all__ = ["DraftGraph", "ExactBatch", "SampleOnDevice", "ScheduleAhead", "WholeGraph"]

_CAUTIOUS = 0.5


class ScheduleAhead:
    """The engine plans the next iteration while the GPU runs this one. See Note [Bubbles]."""

    name = "schedule_ahead"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        return _without_bubbles(run, ("host_between_tokens",), "the scheduler keeps no GPU waiting")


class SampleOnDevice:
    """No launch waits for tokens on the host, and their copies take no time of their own. See Note
    [Bubbles]."""

    name = "sample_on_device"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        return _without_bubbles(run, ("synchronous_sampling",), "nobody waits for sampled tokens")


class WholeGraph:
    """An iteration is one graph, and not many pieces or launches. At best a host that launches once
    is ahead of the GPU, so that it does not wait between iterations either. See Note [Bubbles]."""

    name = "whole_graph"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        return _without_bubbles(
            run,
            ("piecewise_gaps", "graph_not_used"),
            "the kernels of an iteration follow each other at once",
            at_best=("host_between_tokens",),
        )


class DraftGraph:
    """Drafting keeps no GPU waiting. See Note [Bubbles]."""

    name = "draft_graph"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        return _without_bubbles(run, ("idle_draft",), "drafting keeps no GPU waiting")


class ExactBatch:
    """Graphs run no row without a request: iterations get shorter by what the rule `graph_padding`
    says of each. Cautious: they stay as they are, since memory may bound them; by half where a fit
    through graphs of several sizes tells."""

    name = "exact_batch"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        count = 0
        for view in views(run):
            found = _finding(view, "graph_padding")
            iterations = served_iterations(view.part)
            fitted = "a row" in found.facts
            # Each interval ends with the iteration that it is of.
            ends = found.intervals[:, 1]
            places = np.flatnonzero(np.isin(iterations.gpu_end_ns, ends))
            for place in places.tolist():
                span_ns = int(iterations.gpu_end_ns[place] - iterations.gpu_start_ns[place])
                at = int(np.searchsorted(ends, iterations.gpu_end_ns[place]))
                padded_ns = int(found.intervals[at, 1] - found.intervals[at, 0])
                rows = view.part.tree.gpu_rows[iterations.of_event == place]
                share = min(1.0, padded_ns / max(span_ns, 1))
                view.scale_gpu(best, rows, 1.0 - share)
                view.scale_gpu(cautious, rows, 1.0 - _CAUTIOUS * share if fitted else 1.0)
                count += 1
        if not count:
            raise NotApplicableError("no graph of a decode iteration is padded by much")
        note = f"{pluralize(count, 'iteration')} without padded rows"
        return EditedGraph(best, cautious, note=note)


def _finding(view: RankView, name: str) -> _core.Finding:
    def find() -> dict[str, _core.Finding]:
        return {found.type: found for found in _core.detect(view.table, view.part.tree)}

    return view.cached("findings", find)[name]


def _without_bubbles(
    run: SimulatedRun, findings: tuple[str, ...], note: str, at_best: tuple[str, ...] = ()
) -> EditedGraph:
    """Take the host's work in the intervals of findings out of the GPU's way; at best that in those
    of `at_best` too."""
    best, cautious = Change(), Change()
    count = spared_ns = 0
    for view in views(run):
        intervals = union([_finding(view, name).intervals for name in findings])
        if not len(intervals):
            continue
        edges, _ = _edges_within(run, view, intervals)
        cautious.set_lags(edges, run.cost_ns[edges] * _CAUTIOUS)
        count += len(intervals)
        intervals = union([intervals, *(_finding(view, name).intervals for name in at_best)])
        edges, launches = _edges_within(run, view, intervals)
        best.set_lags(edges, 0)
        best.set_lags(launches, 0)
        spared_ns += total(run.cost_ns[edges])
        if "synchronous_sampling" in findings:
            copies = view.copies(_core.CopyDirection.DEVICE_TO_HOST)
            shown = copies[_starts_within(view.table.ts_ns[copies], intervals)]
            view.scale_gpu(best, shown, 0.0)
    if not count:
        raise NotApplicableError(f"there is no finding {' or '.join(findings)} in this trace")
    return EditedGraph(
        best,
        cautious,
        note=f"{note}: {pluralize(count, 'bubble')}, {format_ns(spared_ns)} of the host at best",
    )


def _edges_within(run: SimulatedRun, view: RankView, intervals: Array) -> tuple[Array, Array]:
    """Return the edges of host work on the engine's thread inside of intervals (clock of the
    table's GPU events), and those from launches to the work that ends an interval."""
    graph = run.graph
    first = view.gpu_rows[:1]
    shift = graph.time_ns[view.begin_of[first]] - view.table.ts_ns[first]
    bounds = intervals + (int(shift[0]) if len(shift) else 0)
    track = served_iterations(view.part).track
    on_thread = (graph.lane_rank == view.index) & (graph.lane_kind == 0)
    on_thread &= graph.lane_index == (-1 if track is None else track)
    lanes = np.stack([graph.lane_begin, graph.lane_end], axis=1)[on_thread].astype(np.int64)
    points = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(*lane) for lane in lanes)])
    host = points[_starts_within(graph.time_ns[points], bounds)]
    begins = view.begin_of[view.gpu_rows]
    work = begins[np.isin(graph.time_ns[begins], bounds[:, 1])]
    return view.edges_into(host, "program_order"), view.edges_into(work, "launch")


def _starts_within(times_ns: Array, bounds: Array) -> Array:
    """Return whether each time lies behind the start of an interval, and not behind its end."""
    place = np.searchsorted(bounds[:, 0], times_ns, side="left") - 1
    within: Array = (place >= 0) & (times_ns <= bounds[np.maximum(place, 0), 1])
    return within
