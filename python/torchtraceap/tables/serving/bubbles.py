"""`build_bubbles`: when the GPU waits between iterations of an engine, and what the host does then.

Note [Bubble]: a bubble lies between the last GPU work of one iteration and the first of the next,
where no other GPU work runs. It is split by what the thread that runs the engine does meanwhile:
the innermost frame, range or call whose name tells decides, so that a sort inside of the scheduler
is scheduling. The parts of a bubble sum to it exactly.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.columns import encode_json
from torchtraceap.core.records import dataclass
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.serving.iterations import ServedIterations, idle_within
from torchtraceap.trace.ranks import RankTrace

__all__ = ["HOST_CAUSES", "Bubble", "bubbles_of", "build_bubbles"]

HOST_CAUSES: tuple[str, ...] = tuple(_core.serving_work_names())
"""What the host does in a bubble. `waiting`: for requests, for another process or for a lock."""


@dataclass(frozen=True, slots=True)
class Bubble:
    """One stretch in which the GPU waits in front of an iteration."""

    iteration: int
    """The iteration that follows."""
    start_ns: int
    """GPU clock."""
    end_ns: int
    causes: dict[str, int]
    """ns by one of `HOST_CAUSES`, the longest first; they sum to the bubble."""


def bubbles_of(part: RankTrace, iterations: ServedIterations) -> list[Bubble]:
    """Return the bubbles in front of every iteration but the first. See Note [Bubble]."""
    return part.cached("serving bubbles", lambda: _build(part, iterations))


def _build(part: RankTrace, iterations: ServedIterations) -> list[Bubble]:
    stretches: list[tuple[int, int, int]] = []
    end_ns = -1
    for number, (begin, end) in enumerate(
        zip(iterations.gpu_start_ns.tolist(), iterations.gpu_end_ns.tolist(), strict=True)
    ):
        if end < 0:
            continue
        if 0 <= end_ns < begin:
            stretches += [(number, *each) for each in idle_within(part, end_ns, begin).tolist()]
        end_ns = max(end_ns, end)
    bounds = np.array(stretches, dtype=np.int64).reshape(-1, 3)
    sums = _core.serving_work(part.table, part.tree, iterations.track, bounds[:, 1:])
    return [
        Bubble(number, start, end, _causes(row))
        for (number, start, end), row in zip(stretches, sums.tolist(), strict=True)
    ]


def _causes(sums_ns: list[int]) -> dict[str, int]:
    """Return ns by cause, the longest first, without those of which there is nothing."""
    causes = {cause: ns for cause, ns in zip(HOST_CAUSES, sums_ns, strict=True) if ns}
    return dict(sorted(causes.items(), key=lambda item: -item[1]))


def build_bubbles(part: RankTrace, iterations: ServedIterations) -> ColumnTable:
    """Return one row for each bubble: `iteration` that follows, `start_ns`, `duration_ns`, and
    `causes` (JSON: ns by what the host did)."""
    bubbles = bubbles_of(part, iterations)
    return ColumnTable(
        {
            "iteration": np.array([each.iteration for each in bubbles], dtype=np.int64),
            "start_ns": np.array([each.start_ns for each in bubbles], dtype=np.int64),
            "duration_ns": np.array([each.end_ns - each.start_ns for each in bubbles], np.int64),
            "causes": encode_json([each.causes for each in bubbles]),
        }
    )
