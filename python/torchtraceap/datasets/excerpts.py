"""Cut excerpts: a run as a profiler would have recorded it in a shorter time.

Note [Excerpts]: recordings may be as short as one kernel, and generated ones are steps long. What
learns from those alone takes a short recording for a fault (docs/scorers.md). An excerpt holds 1 to
1,000 launches of one of the ranks, tenfold more being as likely each time, and what the others do
in that time. Of most runs with a fault it is taken where that costs time.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.intervals import union
from torchtraceap.datasets.labels import costs_of
from torchtraceap.datasets.runs import Run
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

__all__ = ["cut_excerpts"]

_LAUNCHES = (0, 3)
"""Exponents of ten."""
_MARGIN = (3, 5)
"""Exponents of ten: nanoseconds before the first launch and behind the last."""
_AT_FAULT = 0.7
"""Probability that an excerpt of a run with a fault is taken where that costs time."""
_TRIES = 20


def cut_excerpts(run: Run) -> Run:
    """An excerpt of a run, always the same; its ids end in "/excerpt". See Note [Excerpts].

    A run of which no part has GPU events on all ranks stays whole.
    """
    labels = tuple({**label, "id": f"{label['id']}/excerpt"} for label in run.labels)
    return replace(run, labels=labels, load=lambda: _cut_excerpt(run))


def _cut_excerpt(run: Run) -> Trace:
    whole = run.load()
    draw = np.random.default_rng(zlib.crc32(run.name.encode()))
    place = int(draw.integers(len(whole.ranks)))
    part = whole.ranks[place]
    calls = part.tree.launch[part.tree.linked_gpu_rows]
    launches_ns = np.unique(part.table.ts_ns[calls])
    cost_ns = union(list(costs_of(run.labels[place]).values()))
    for _ in range(_TRIES if len(launches_ns) > 1 else 0):
        start_ns, end_ns = _window(launches_ns, cost_ns, draw)
        found = [_excerpt(each, start_ns, end_ns) for each in whole.ranks]
        if all(_has_work(each) for each in found):
            return Trace(found)
    return whole


def _window(launches_ns: Array, cost_ns: Array, draw: np.random.Generator) -> tuple[int, int]:
    count = min(round(10 ** draw.uniform(*_LAUNCHES)), len(launches_ns) - 1)
    most = len(launches_ns) - count - 1
    first = int(draw.integers(most + 1))
    if len(cost_ns) and draw.random() < _AT_FAULT:
        at_ns = draw.uniform(*cost_ns[draw.integers(len(cost_ns))])
        behind = int(np.searchsorted(launches_ns, at_ns))
        first = int(np.clip(behind - draw.integers(count + 1), 0, most))
    before, after = (round(10 ** draw.uniform(*_MARGIN)) for _ in range(2))
    return int(launches_ns[first]) - before, int(launches_ns[first + count]) + after


def _excerpt(part: RankTrace, start_ns: int, end_ns: int) -> RankTrace:
    table, tree = _core.excerpt(part.table, part.tree, start_ns, end_ns)
    return RankTrace(table, part.rank, tree)


def _has_work(part: RankTrace) -> bool:
    start_ns, end_ns = part.tree.profiled
    return len(part.tree.gpu_rows) > 0 and end_ns > start_ns
