"""`served_iterations`: the iterations of a serving engine, and the GPU work that each launches.

Note [Source]: the first of these that a trace has: annotations of the engine; `ProfilerStep`; steps
that repeat on the main thread; replays of CUDA graphs, of which the shortest sequence that repeats
is one iteration; else the whole trace is one. An iteration launches what is launched within its
range on the host: under overlapped scheduling the GPU does that later, while the host prepares the
next one, so each iteration has two spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import union
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import PHASES
from torchtraceap.errors import OptionError
from torchtraceap.tables.serving.nodes import launch_order
from torchtraceap.tables.steps.iterations import (
    Iterations,
    counted_steps,
    iterations_of,
    step_spans,
)
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "PHASE_OF_ROLE",
    "ServedIterations",
    "batch_of",
    "busy_intervals",
    "cut_rank",
    "gpu_spans",
    "idle_within",
    "ranks_in_phase",
    "served_iterations",
]

PHASE_OF_ROLE = {
    "prefill": "prefill",
    "decode": "decode",
    "mixed": "mixed",
    "diffusion": "diffusion",
}
"""Phases by what the frames of the program say that it does."""


@dataclass(frozen=True, slots=True)
class ServedIterations:
    """The iterations of a rank, by start; arrays have one entry each."""

    source: str
    """annotations, profiler steps, pattern, graphs or trace. See Note [Source]."""
    track: int | None
    """The thread that the annotations stand on, else the main one; None without host events."""
    start_ns: Array
    """int64, host clock."""
    end_ns: Array
    """int64, host clock."""
    marks: tuple[_core.IterationMark | None, ...]
    """What the engine's annotation says; None where there is none."""
    phase: tuple[str | None, ...]
    """One of `PHASES`, or None where nothing tells."""
    of_event: Array
    """int64 `[gpu rows]`: the iteration that launched each of `tree.gpu_rows`, else -1."""
    gpu_start_ns: Array
    """int64, GPU clock: begin of the first event that each launched; -1 where it launched none."""
    gpu_end_ns: Array
    """int64, GPU clock: end of the last one; -1 where there is none."""
    work_ns: Array
    """int64 `[iterations, 2]`, GPU clock: from the end of the GPU work of the iteration before to
    that of its own, so that lengths sum to the time that passes; of zeros where nothing ran on a
    GPU."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def has_gpu(self) -> Array:
        """bool `[iterations]`: it launched GPU work."""
        launched: Array = self.gpu_end_ns >= 0
        return launched

    @property
    def engine(self) -> str | None:
        """vllm, sglang, atom, xdit or tensorrt-llm; None where no annotation names one."""
        return next((mark.engine for mark in self.marks if mark), None)

    def launched(self, part: RankTrace) -> list[Array]:
        """Return what each iteration launches, int64 index in `tree.gpu_rows`, by launch."""
        order = launch_order(part)
        order = order[np.argsort(self.of_event[order], kind="stable")]
        bounds = np.searchsorted(self.of_event[order], np.arange(len(self) + 1))
        return np.split(order, bounds)[1:-1]


def served_iterations(part: RankTrace) -> ServedIterations:
    """Return the iterations of a rank. See Note [Source]. O(n)."""
    return part.cached("served_iterations", lambda: _build(part))


def _build(part: RankTrace) -> ServedIterations:
    table, tree = part.table, part.tree
    source, spans, annotations = tree.iteration_spans()
    rows = annotations.astype(np.int64)
    texts = table.strings
    marks: list[_core.IterationMark | None] = [None] * len(spans)
    if len(rows):
        marks = [_core.read_iteration_name(texts[name]) for name in table.name[rows].tolist()]
    of_event = _launched_in(part, spans)
    inside = of_event >= 0
    start_ns = table.ts_ns[tree.gpu_rows]
    first = np.full(len(spans), np.iinfo(np.int64).max)
    last = np.full(len(spans), -1, dtype=np.int64)
    np.minimum.at(first, of_event[inside], start_ns[inside])
    np.maximum.at(last, of_event[inside], (start_ns + table.dur_ns[tree.gpu_rows])[inside])
    first[last < 0] = -1
    role = PHASE_OF_ROLE.get(tree.workload.role)
    phases = [mark.phase if mark else role for mark in marks]
    return ServedIterations(
        source=source,
        track=int(table.track[rows[0]]) if len(rows) else tree.main_track,
        start_ns=spans[:, 0],
        end_ns=spans[:, 1],
        marks=tuple(marks),
        phase=tuple(phase if phase in PHASES else None for phase in phases),
        of_event=of_event,
        gpu_start_ns=first,
        gpu_end_ns=last,
        work_ns=_work_spans(first, last),
    )


def _host_spans(served: ServedIterations) -> Array:
    """Return start and end of each iteration on the host, int64 `[iterations, 2]`."""
    return np.stack([served.start_ns, served.end_ns], axis=1)


def _launched_in(part: RankTrace, spans: Array) -> Array:
    """Return the range, of int64 `[ranges, 2]` on the host, in which each of `tree.gpu_rows` was
    launched, else -1."""
    tree = part.tree
    calls = tree.launch[tree.gpu_rows]
    launched = calls != _core.NO_ROW
    called_ns = part.table.ts_ns[np.where(launched, calls, 0).astype(np.int64)]
    found: Array = np.searchsorted(spans[:, 0], called_ns, side="right").astype(np.int64) - 1
    inside = launched & (found >= 0)
    inside[inside] = called_ns[inside] <= spans[found[inside], 1]
    found[~inside] = -1
    return found


def _work_spans(gpu_start_ns: Array, gpu_end_ns: Array) -> Array:
    """Return `ServedIterations.work_ns`."""
    end_ns = np.maximum.accumulate(gpu_end_ns)
    before_ns = np.concatenate([[-1], end_ns[:-1]])
    begin_ns = np.where(before_ns >= 0, before_ns, gpu_start_ns)
    spans: Array = np.stack([np.minimum(begin_ns, end_ns), end_ns], axis=1)
    spans[gpu_end_ns < 0] = 0
    return spans


def ranks_in_phase(ranks: Sequence[RankTrace], phase: str) -> list[RankTrace]:
    """Return each rank with the iterations of one phase alone: what lies in their ranges on the
    host, and the GPU work launched there. Time between them is neither busy nor idle.

    Raises:
        OptionError: There is no such phase, or a rank has no iteration of it.
    """
    if phase not in PHASES:
        raise OptionError(f"no phase {phase!r} (phases: {', '.join(PHASES)})")
    return [_rank_in_phase(part, phase) for part in ranks]


def _rank_in_phase(part: RankTrace, phase: str) -> RankTrace:
    served = served_iterations(part)
    chosen = np.array([each == phase for each in served.phase], dtype=bool)
    if not chosen.any():
        counts = Counter(each or "unknown" for each in served.phase)
        found = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        raise OptionError(f"{part.path}: no iteration is of phase {phase!r} (iterations: {found})")
    windows = _host_spans(served)[chosen]
    launched = np.zeros(len(served.of_event), dtype=bool)
    known = served.of_event >= 0
    launched[known] = chosen[served.of_event[known]]
    judged = union([served.work_ns[chosen], gpu_spans(part)[launched]])
    return cut_rank(part, windows, judged, iterations=chosen)


def gpu_spans(part: RankTrace) -> Array:
    """Return start and end of each of `tree.gpu_rows`, int64 `[n, 2]`."""
    rows = part.tree.gpu_rows
    start_ns = part.table.ts_ns[rows]
    return np.stack([start_ns, start_ns + part.table.dur_ns[rows]], axis=1)


def cut_rank(
    part: RankTrace,
    windows: Array,
    judged: Array,
    *,
    profiled: tuple[int, int] | None = None,
    lengths_ns: Array | None = None,
    iterations: Array | None = None,
) -> RankTrace:
    """Return a rank of what lies in ranges on the host and the GPU work launched there.

    Args:
        part: The whole rank.
        windows: The ranges, int64 `[n, 2]`, host clock.
        judged: Beyond it, time is neither busy nor idle: int64 `[n, 2]`, GPU clock.
        profiled: The profiled time, start and end; by default that of its steps.
        lengths_ns: What each of its steps takes; by default as in the whole.
        iterations: bool, those of `served_iterations` that lie in the ranges; None: of no interest.
    """
    begin_ns, end_ns = profiled or part.tree.profiled
    edges = [judged.min(initial=begin_ns), *judged.ravel(), judged.max(initial=end_ns)]
    between = np.array(edges, dtype=np.int64).reshape(-1, 2) if len(judged) else None
    table, tree = _core.excerpt(part.table, part.tree, windows, between, profiled)
    cut = RankTrace(table, part.rank, tree)
    cut.last_rank_began_ns = part.last_rank_began_ns
    if iterations is not None:
        served = served_iterations(part)
        kept_iterations = replace(
            served,
            start_ns=served.start_ns[iterations],
            end_ns=served.end_ns[iterations],
            marks=tuple(compress(served.marks, iterations)),
            phase=tuple(compress(served.phase, iterations)),
            of_event=_launched_in(cut, _host_spans(served)[iterations]),
            gpu_start_ns=served.gpu_start_ns[iterations],
            gpu_end_ns=served.gpu_end_ns[iterations],
            work_ns=served.work_ns[iterations],
        )
        cut.cached("served_iterations", lambda: kept_iterations)
    whole = iterations_of(part)
    steps = np.isin(
        [step.start_ns for step in part.tree.steps], [step.start_ns for step in tree.steps]
    )
    cut.cached("step_spans", lambda: step_spans(part)[steps])
    counted = whole.counted[steps]
    kept = Iterations(
        whole.length_ns[steps] if lengths_ns is None else lengths_ns,
        whole.end_ns[steps],
        whole.host_ns[steps],
        counted if counted.any() else counted_steps(cut),
    )
    cut.cached("iterations", lambda: kept)
    return cut


def batch_of(mark: _core.IterationMark | None) -> int | None:
    """Return the rows of the batch: the tokens that run through the model at once."""
    if mark is None:
        return None
    counts = (mark.prefill.tokens, mark.decode.tokens)
    known = [count for count in counts if count is not None]
    return sum(known) if known else mark.requests


def busy_intervals(part: RankTrace) -> Array:
    """Return when the GPU works, int64 `[n, 2]`, sorted and disjoint; kept."""
    return part.cached("busy intervals", lambda: _core.gpu_intervals(part.table, part.tree)["busy"])


def idle_within(part: RankTrace, start_ns: int, end_ns: int) -> Array:
    """Return the stretches of [start, end) without GPU work, int64 `[n, 2]`, GPU clock."""
    busy = busy_intervals(part)
    low = int(np.searchsorted(busy[:, 1], start_ns, side="right"))
    high = int(np.searchsorted(busy[:, 0], end_ns, side="left"))
    edges = np.concatenate([[start_ns], busy[low:high].ravel(), [end_ns]]).clip(start_ns, end_ns)
    gaps = edges.reshape(-1, 2)
    idle: Array = gaps[gaps[:, 1] > gaps[:, 0]]
    return idle
