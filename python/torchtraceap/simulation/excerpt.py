"""`simulated_run`: the run on which savings are simulated.

Note [Excerpt]: a graph with its replays takes more memory than the trace, and steps repeat. So of a
trace with more than `MOST_EVENTS` events some steps are simulated: those in the middle, as many as
hold that many events, or `MOST_SHARE` of all, but never fewer than `LEAST_STEPS`. Their savings are
scaled to the mean of all steps, so that the figures are those of all. Where there are no steps, a
stretch in the middle stands for the whole. Simulated as a whole are ranks whose steps have
different names and several ranks without steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.steps.iterations import step_time
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["LEAST_STEPS", "MOST_EVENTS", "MOST_SHARE", "most_simulated", "simulated_run"]

MOST_EVENTS = 120_000
MOST_SHARE = 1 / 32
"""A graph with its edits and replays takes for so many events (some 850 bytes each) a seventh of
the densest JSON at most: `diagnose` stays below 0.6 times the size of large ones
(benchmarks/scaling/memory.py)."""
LEAST_STEPS = 8


def simulated_run(
    trace: Ranks, *, most_events: int | None = None, least_steps: int = LEAST_STEPS
) -> SimulatedRun:
    """Return the run as a graph, or an excerpt of it. See Note [Excerpt].

    Args:
        trace: One or several ranks.
        most_events: Events of all ranks together; by default as many as memory allows.
        least_steps: Fewest steps, where there are as many.
    """
    events = sum(len(rank.table) for rank in trace.ranks)
    most = most_simulated(events) if most_events is None else most_events
    names = [[step.name for step in rank.tree.steps] for rank in trace.ranks]
    if events > most and names[0] and all(other == names[0] for other in names):
        run = _middle_steps(trace, names[0], most, least_steps)
    elif events > most and not names[0] and len(trace.ranks) == 1:
        run = _middle_stretch(trace, most)
    else:
        run = SimulatedRun(trace)
    whole = step_time([trace.ranks[place] for place in run.places])
    part = float(run.mean_ns(run.measured_ns))
    if run.per_step and whole and part > 0:
        # For an excerpt the mean of all steps; else the time by which host ranges and GPU events
        # that overlap on a stream, which a graph cuts, make a step longer or shorter.
        run.stands_for = whole.measured_ns / part
    return run


def most_simulated(events: int) -> int:
    """Return the most events to simulate of a trace with so many."""
    return max(MOST_EVENTS, int(events * MOST_SHARE))


def _middle_steps(trace: Ranks, names: Sequence[str], most: int, least: int) -> SimulatedRun:
    events = np.zeros(len(names), dtype=np.int64)  # those that start in each step, of all ranks
    for rank in trace.ranks:
        starts, ends = zip(*((step.start_ns, step.end_ns) for step in rank.tree.steps), strict=True)
        times = rank.table.ts_ns
        events += np.searchsorted(times, ends) - np.searchsorted(times, starts)
    first, last = _middle(events, most, least)
    if last - first == len(names):
        return SimulatedRun(trace)
    bounds = [
        (rank.tree.steps[first].start_ns, rank.tree.steps[last - 1].end_ns) for rank in trace.ranks
    ]
    note = (
        f"Simulated on {last - first} of {len(names)} steps, those in the middle "
        f"({names[first]} to {names[last - 1]}), and scaled to the mean of all: the whole would "
        "take more memory than the trace."
    )
    return SimulatedRun(_excerpt(trace, bounds), notes=[note])


def _middle(events: Array, most: int, least: int) -> tuple[int, int]:
    """Return the range of steps around the middle with at most so many events, or `least` steps."""
    first, last = len(events) // 2, len(events) // 2
    held = 0
    while last - first < len(events):
        forward = first == 0 or (last < len(events) and (last - first) % 2 == 0)
        held += int(events[last] if forward else events[first - 1])
        if held > most and last - first >= least:
            break
        first, last = (first, last + 1) if forward else (first - 1, last)
    return first, last


def _middle_stretch(trace: Ranks, most: int) -> SimulatedRun:
    rank = trace.ranks[0]
    times = rank.table.ts_ns
    begin = (len(times) - most) // 2
    bounds = int(times[begin]), int(times[begin + most])
    length_ns = bounds[1] - bounds[0]
    if length_ns <= 0:
        return SimulatedRun(trace)
    note = (
        f"Simulated on {format_ns(length_ns)} in the middle, of {format_ns(rank.profiled_ns)}, and "
        "scaled: the whole would take more memory than the trace."
    )
    return SimulatedRun(
        _excerpt(trace, [bounds]), notes=[note], stands_for=rank.profiled_ns / length_ns
    )


def _excerpt(trace: Ranks, bounds: Sequence[tuple[int, int]]) -> Ranks:
    """Cut each rank to its start and end, ns."""
    ranks = []
    for whole, window in zip(trace.ranks, bounds, strict=True):
        table, tree = _core.excerpt(whole.table, whole.tree, np.array([window]))
        ranks.append(RankTrace(table, whole.rank, tree))
    return Ranks(ranks)
